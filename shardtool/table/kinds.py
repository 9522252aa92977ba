"""Which files and objects are tables, by name and type: nothing heavy is imported, nor any file read."""

from __future__ import annotations

import fnmatch
import os
from typing import TYPE_CHECKING

from shardtool.storage.places import base_name, folder_of, is_file, is_url, is_web, join, names_in
from shardtool.storage.reading import entries_in
from shardtool.storage.sources import objects_below

if TYPE_CHECKING:
    from typing import TypeGuard

    import pandas as pd

SEPARATORS = {".csv": ",", ".tsv": "\t"}
JSON_LINES = (".jsonl", ".ndjson")
ARROW = (".feather", ".arrow", ".ipc")
PARQUET = ".parquet"
_PACKED = (".gz", ".bz2", ".zst")


def is_frame(source: object) -> TypeGuard[pd.DataFrame]:
    """Tell whether an object is a pandas DataFrame, without importing pandas."""
    kind = type(source)
    return kind.__name__ == "DataFrame" and kind.__module__.partition(".")[0] == "pandas"


def table_ending(path: str) -> str:
    """Return the ending that names a table's format, without that of a compression; empty for no table."""
    lower = base_name(path).lower() if is_web(path) else path.lower()  # an address may end in a query
    packed = next((one for one in _PACKED if lower.endswith(one)), "")
    ending = os.path.splitext(lower.removesuffix(packed))[1]
    text = (*SEPARATORS, *JSON_LINES)
    return ending if ending in text or (not packed and ending in (PARQUET, *ARROW)) else ""


def is_glob(path: str) -> bool:
    """Tell whether a path names several Parquet files, and no file is called so; only its last part may be a glob."""
    several = any(mark in base_name(path) for mark in "*?[") and table_ending(path) == PARQUET and not is_web(path)
    return several and not is_file(path)


def parquet_files(folder: str) -> list[str]:
    """Return the files of a folder and below, sorted, where all are Parquet, else none; or those of a glob.

    Names that start with a dot or an underscore are a writer's own, such as `_SUCCESS`.
    """
    if is_glob(folder):
        above = folder_of(folder)
        names = fnmatch.filter(names_in(above), base_name(folder))
        return [join(above, name) for name in sorted(names, key=os.fsencode) if name[0] != "."]
    if is_url(folder):
        return _parquet_objects(folder)
    found, folders = [], [folder]
    try:
        while folders:
            for entry in entries_in(folders.pop()):  # up to the first that is something else: there may be millions
                if entry.name[0] in "._":
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.name.lower().endswith(PARQUET):
                    found.append(entry.path)
                else:
                    return []
    except OSError:
        return []
    return sorted(found, key=os.fsencode)


def _parquet_objects(folder: str) -> list[str]:
    found = []
    if is_web(folder):
        return []
    for one in objects_below(folder):
        if any(part[0] in "._" for part in one.path.split("/")) or not one.size:
            continue
        if not one.path.lower().endswith(PARQUET):
            return []
        found.append(join(folder, one.path))
    return sorted(found, key=os.fsencode)
