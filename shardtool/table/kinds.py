"""Which files and objects are tables, by name and type: nothing heavy is imported, nor any file read."""

from __future__ import annotations

import fnmatch
import os
import re
from itertools import islice
from shlex import quote
from typing import TYPE_CHECKING, TypeGuard

from shardtool.pattern import format_of, is_shard_name
from shardtool.request.texts import BY_NAME, TextForm
from shardtool.storage import places

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas as pd


SEPARATORS = {".csv": ",", ".tsv": "\t"}
JSON_LINES = (".jsonl", ".ndjson")
JSON = ".json"
ARROW = (".feather", ".arrow", ".ipc")
PARQUET = ".parquet"
_MAX_TYPED = 4  # files that a command in a message names
PACKED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}  # by ending, as pyarrow calls it


def is_frame(source: object) -> TypeGuard[pd.DataFrame]:
    """Tell whether an object is a pandas DataFrame, without importing pandas."""
    kind = type(source)
    return kind.__name__ == "DataFrame" and kind.__module__.partition(".")[0] == "pandas"


def table_ending(path: str) -> str:
    """Return the ending that names a table's format, without that of a compression; empty for no table."""
    lower = places.base_name(path).lower() if places.is_web(path) else path.lower()  # an address may end in a query
    packed = next((one for one in PACKED if lower.endswith(one)), "")
    ending = os.path.splitext(lower.removesuffix(packed))[1]
    text = (*SEPARATORS, *JSON_LINES, JSON)
    return ending if ending in text or (not packed and ending in (PARQUET, *ARROW)) else ""


def joining(files: Sequence[str]) -> str:
    """Return how to make one table of several text files of one form."""
    endings = {table_ending(one) for one in files}
    packed = any(one.lower().endswith(tuple(PACKED)) for one in files)
    words = " ".join(map(quote, files[:_MAX_TYPED])) + (" ..." if len(files) > _MAX_TYPED else "")
    if not packed and len(endings) == 1 and endings <= {*JSON_LINES}:
        return f"Join the files into one: `cat {words} > all{endings.pop()}`."
    if not packed and len(endings) == 1 and endings <= {*SEPARATORS}:
        return f"Join the files into one, with one header: `awk 'NR == 1 || FNR > 1' {words} > all{endings.pop()}`."
    return "Join the files into one."


def is_glob(path: str) -> bool:
    """Tell whether a path names several Parquet files, and no file is called so; only its last part may be a glob."""
    is_pattern = any(mark in places.base_name(path) for mark in "*?[") and not places.is_web(path)
    return is_pattern and table_ending(path) == PARQUET and not places.is_file(path)


def parquet_files(folder: str) -> list[str]:
    """Return the files of a folder and below, sorted, where all are Parquet, else none; or those of a glob.

    Names that start with a dot or an underscore are a writer's own, such as `_SUCCESS`.
    """
    if is_glob(folder):
        above = places.folder_of(folder)
        names = fnmatch.filter(places.names_in(above), places.base_name(folder))
        return [places.join(above, name) for name in sorted(names, key=os.fsencode) if name[0] != "."]
    if places.is_url(folder):
        return _parquet_objects(folder)
    found, folders = [], [folder]
    try:
        while folders:
            # Up to the first that is something else: there may be millions.
            for entry in places.entries_in(folders.pop()):
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
    if places.is_web(folder):
        return []
    for one in places.objects_below(folder):
        if any(part[0] in "._" for part in one.key.split("/")) or not one.size:
            continue
        if not one.key.lower().endswith(PARQUET):
            return []
        found.append(places.join(folder, one.key))
    return sorted(found, key=os.fsencode)


# Is a source an archive, or a manifest? Nothing heavy is imported to tell, and of a folder few names are looked at.


_LOOKED_AT = 8  # names in a folder: there may be millions
_HEAD = 2**16  # bytes of JSON
_OF_COCO = re.compile(rb'^\{.*"(images|annotations|categories|licenses)"\s*:\s*\[', re.DOTALL)


def _holds_rows(path: str) -> bool:
    """Tell whether JSON may be rows, or COCO's annotations: a list, or an object with such names and no shards."""
    if not path.lower().endswith(JSON):  # packed, which a dataset file never is
        return True
    try:
        head = places.read_head(path, _HEAD)[0].removeprefix(b"\xef\xbb\xbf").lstrip()
    except OSError:
        return False
    return head[:1] == b"[" or (_OF_COCO.search(head) is not None and b'"shardlist"' not in head)


def archive_in(source: object) -> tuple[str, str] | None:
    """Return the path of an archive, and that of a folder in it, empty or ending in a slash; None: it is none."""
    if not isinstance(source, str | os.PathLike) or os.path.isdir(source):
        return None
    path, folder = os.fspath(source).rstrip("/"), ""
    while path and not os.path.lexists(path):
        path, name = os.path.split(path)
        folder = f"{name}/{folder}"
    is_named = path.lower().endswith(".zip") or format_of(os.path.basename(path)) == "tar"
    return (path, folder) if is_named and os.path.isfile(path) else None


def is_table(source: object, form: TextForm = BY_NAME) -> bool:
    """Tell whether a source is a table: by the name of a file, or by what a folder holds; an object must be one.

    A file is one in any case, where somebody says how it is written.
    """
    if not isinstance(source, str | os.PathLike):
        return True
    path = os.fspath(source)
    if path == "-" or (form != BY_NAME and os.path.isfile(path)):
        return True
    if (ending := table_ending(path)) and not os.path.isdir(path):
        return ending != JSON or _holds_rows(path)
    if places.is_url(path):
        if places.is_web(path) or is_shard_name(places.base_name(path)) or path.lower().endswith(".zip"):
            return False
        names: Iterator[str] = (one.key for one in places.objects_below(path))
    else:
        names = (one.name for one in places.entries_in(path)) if os.path.isdir(path) else iter(())
    try:
        some = list(islice(names, _LOOKED_AT))
    except OSError:
        return False
    return any(name.endswith(PARQUET) or "=" in name for name in [*some, path]) and bool(parquet_files(path))
