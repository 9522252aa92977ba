"""Which files and objects are tables, by name and type: nothing heavy is imported, nor any file read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shardtool.storage.places import base_name, is_url, is_web, join
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


def parquet_files(folder: str) -> list[str]:
    """Return the files of a folder and below, sorted, where all are Parquet; else none.

    Names that start with a dot or an underscore are a writer's own, such as `_SUCCESS`.
    """
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
