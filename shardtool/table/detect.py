"""Detect tables and archives by the type or name of the source, or by the start of a JSON file."""

from __future__ import annotations

import fnmatch
import os
import re
from itertools import islice
from typing import TYPE_CHECKING, TypeGuard

from shardtool.pattern import is_shard_name, parse_format
from shardtool.request.option_values import DEFAULT_FORMAT, DelimitedFormat
from shardtool.storage import files, paths, remote
from shardtool.storage.files import is_file, iter_entries, list_folder_names
from shardtool.storage.remote import address

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd


DELIMITERS = {".csv": ",", ".tsv": "\t"}
JSON_LINES_ENDINGS = (".jsonl", ".ndjson")
JSON_ENDING = ".json"
ARROW_ENDINGS = (".feather", ".arrow", ".ipc")
PARQUET_ENDING = ".parquet"
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}


def is_frame(source: object) -> TypeGuard[pd.DataFrame]:
    """Return whether an object is a pandas DataFrame, without importing pandas."""
    kind = type(source)
    return kind.__name__ == "DataFrame" and kind.__module__.partition(".")[0] == "pandas"


def table_ending(path: str) -> str:
    """Return the extension of a table, such as `.csv` for `a.csv.gz`, or "" for other files."""
    lower = paths.base_name(path).lower() if address.is_web(path) else path.lower()
    compression = next((suffix for suffix in COMPRESSIONS if lower.endswith(suffix)), "")
    ending = os.path.splitext(lower.removesuffix(compression))[1]
    text = (*DELIMITERS, *JSON_LINES_ENDINGS, JSON_ENDING)
    return ending if ending in text or (not compression and ending in (PARQUET_ENDING, *ARROW_ENDINGS)) else ""


def is_parquet_glob(path: str) -> bool:
    """Return whether the last component of a path is a glob for Parquet files."""
    is_pattern = any(mark in paths.base_name(path) for mark in "*?[") and not address.is_web(path)
    return is_pattern and table_ending(path) == PARQUET_ENDING and not is_file(path)


def list_parquet_files(path: str) -> list[str]:
    """Return the sorted paths of the Parquet files that match a glob or are below a folder.

    If the folder also contains other files, return []. Names that start with a dot or an underscore, such as
    `_SUCCESS`, are ignored in a folder.
    """
    if is_parquet_glob(path):
        return [file for file in match_glob(path) if paths.base_name(file)[0] != "."]
    if address.is_web(path):
        return []
    parquet_files = list[str]()
    try:
        for file in _iter_objects(path) if address.is_url(path) else _iter_files(path):
            if not file.lower().endswith(PARQUET_ENDING):
                return []  # stop at the first other file, because there may be millions of files
            parquet_files.append(file)
    except OSError:
        if address.is_url(path):
            raise
        return []
    return sorted(parquet_files, key=os.fsencode)


def match_glob(path: str) -> list[str]:
    """Return the sorted paths that match the glob in the last component of `path`."""
    folder = paths.folder_of(path)
    names = fnmatch.filter(list_folder_names(folder), paths.base_name(path))
    return [paths.join(folder, name) for name in sorted(names, key=os.fsencode)]


def _iter_files(folder: str) -> Iterator[str]:
    folders = [folder]
    while folders:
        for entry in iter_entries(folders.pop()):
            if entry.name[0] not in "._":
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    yield entry.path


def _iter_objects(folder: str) -> Iterator[str]:
    for item in remote.objects.iter_objects(folder):
        if item.size and not any(part[0] in "._" for part in item.key.split("/")):
            yield paths.join(folder, item.key)


_MAX_NAMES_READ = 8
_HEAD_BYTES = 2**16
_COCO_START = re.compile(rb'^\{.*"(images|annotations|categories|licenses)"\s*:\s*\[', re.DOTALL)


def _json_has_rows(path: str) -> bool:
    try:
        head = files.read_head(path, _HEAD_BYTES)[0].removeprefix(b"\xef\xbb\xbf").lstrip()
    except OSError:
        return False
    return head[:1] == b"[" or (_COCO_START.search(head) is not None and b'"shardlist"' not in head)


def find_archive(source: object) -> tuple[str, str] | None:
    """Split a path such as `a.zip/b` into the archive `a.zip` and the folder `b/`. Return None for other paths.

    For `a.zip`, the folder is "".
    """
    if not isinstance(source, str | os.PathLike) or os.path.isdir(source):
        return None
    path, folder = os.fspath(source).rstrip("/"), ""
    while path and not os.path.lexists(path):
        path, name = os.path.split(path)
        folder = f"{name}/{folder}"
    has_archive_name = path.lower().endswith(".zip") or parse_format(os.path.basename(path)) == "tar"
    return (path, folder) if has_archive_name and os.path.isfile(path) else None


def is_table(source: object, form: DelimitedFormat = DEFAULT_FORMAT) -> bool:
    """Return whether a source is a table. If `form` is not the default, every file is a table."""
    if not isinstance(source, str | os.PathLike):
        return True
    path = os.fspath(source)
    if path == "-" or (form != DEFAULT_FORMAT and os.path.isfile(path)):
        return True
    if (ending := table_ending(path)) and not os.path.isdir(path):
        is_readable_json = ending == JSON_ENDING and path.lower().endswith(JSON_ENDING)
        return not is_readable_json or _json_has_rows(path)  # compressed JSON is not read
    if address.is_url(path):
        if address.is_web(path) or is_shard_name(paths.base_name(path)) or path.lower().endswith(".zip"):
            return False
        names: Iterator[str] = (item.key for item in remote.objects.iter_objects(path))
    else:
        names = (item.name for item in iter_entries(path)) if os.path.isdir(path) else iter(())
    try:
        first_names = list(islice(names, _MAX_NAMES_READ))
    except OSError:
        return False
    may_be_parquet = any(name.endswith(PARQUET_ENDING) or "=" in name for name in [*first_names, path])
    return may_be_parquet and bool(list_parquet_files(path))
