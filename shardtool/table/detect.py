"""Detect tables and archives by file name and object type.

Nothing heavy is imported. Of a folder only a few names are read.
"""

from __future__ import annotations

import fnmatch
import os
import re
from itertools import islice
from shlex import quote
from typing import TYPE_CHECKING, TypeGuard

from shardtool.request.option_values import DEFAULT_FORMAT, DelimitedFormat
from shardtool.shard_names import is_shard_name, parse_format
from shardtool.storage import files, lookup, paths
from shardtool.storage.remote import address

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas as pd


DELIMITERS = {".csv": ",", ".tsv": "\t"}


JSON_LINES_ENDINGS = (".jsonl", ".ndjson")


JSON_ENDING = ".json"


ARROW_ENDINGS = (".feather", ".arrow", ".ipc")


PARQUET_ENDING = ".parquet"


_MAX_TYPED = 4  # files that a command in a message names


COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}  # by ending, as pyarrow calls it


def is_frame(source: object) -> TypeGuard[pd.DataFrame]:
    """Tell whether an object is a pandas DataFrame, without importing pandas."""
    kind = type(source)
    return kind.__name__ == "DataFrame" and kind.__module__.partition(".")[0] == "pandas"


def table_ending(path: str) -> str:
    """Return the ending that names a table's format, without that of a compression; empty for no table."""
    lower = paths.base_name(path).lower() if address.is_web(path) else path.lower()  # an address may end in a query
    packed = next((one for one in COMPRESSIONS if lower.endswith(one)), "")
    ending = os.path.splitext(lower.removesuffix(packed))[1]
    text = (*DELIMITERS, *JSON_LINES_ENDINGS, JSON_ENDING)
    return ending if ending in text or (not packed and ending in (PARQUET_ENDING, *ARROW_ENDINGS)) else ""


def joining(files: Sequence[str]) -> str:
    """Return how to make one table of several text files of one form."""
    endings = {table_ending(one) for one in files}
    packed = any(one.lower().endswith(tuple(COMPRESSIONS)) for one in files)
    words = " ".join(map(quote, files[:_MAX_TYPED])) + (" ..." if len(files) > _MAX_TYPED else "")
    if not packed and len(endings) == 1 and endings <= {*JSON_LINES_ENDINGS}:
        return f"Join the files into one: `cat {words} > all{endings.pop()}`."
    if not packed and len(endings) == 1 and endings <= {*DELIMITERS}:
        return f"Join the files into one, with one header: `awk 'NR == 1 || FNR > 1' {words} > all{endings.pop()}`."
    return "Join the files into one."


def is_parquet_glob(path: str) -> bool:
    """Tell whether a path names several Parquet files, and no file is called so; only its last part may be a glob."""
    is_pattern = any(mark in paths.base_name(path) for mark in "*?[") and not address.is_web(path)
    return is_pattern and table_ending(path) == PARQUET_ENDING and not lookup.is_file(path)


def list_parquet_files(folder: str) -> list[str]:
    """Return the files of a folder and below, sorted, where all are Parquet, else none; or those of a glob.

    Names that start with a dot or an underscore are a writer's own, such as `_SUCCESS`.
    """
    if is_parquet_glob(folder):
        above = paths.folder_of(folder)
        names = fnmatch.filter(lookup.list_folder_names(above), paths.base_name(folder))
        return [paths.join(above, name) for name in sorted(names, key=os.fsencode) if name[0] != "."]
    if address.is_url(folder):
        return _parquet_objects(folder)
    found, folders = [], [folder]
    try:
        while folders:
            # Up to the first that is something else: there may be millions.
            for entry in lookup.iter_entries(folders.pop()):
                if entry.name[0] in "._":
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.name.lower().endswith(PARQUET_ENDING):
                    found.append(entry.path)
                else:
                    return []
    except OSError:
        return []
    return sorted(found, key=os.fsencode)


def _parquet_objects(folder: str) -> list[str]:
    found = []
    if address.is_web(folder):
        return []
    for one in lookup.iter_objects(folder):
        if any(part[0] in "._" for part in one.key.split("/")) or not one.size:
            continue
        if not one.key.lower().endswith(PARQUET_ENDING):
            return []
        found.append(paths.join(folder, one.key))
    return sorted(found, key=os.fsencode)


_MAX_NAMES_READ = 8  # names in a folder: there may be millions


_HEAD_BYTES = 2**16  # bytes of JSON


_COCO_START = re.compile(rb'^\{.*"(images|annotations|categories|licenses)"\s*:\s*\[', re.DOTALL)


def _is_row_json(path: str) -> bool:
    """Tell whether JSON may be rows, or COCO's annotations: a list, or an object with such names and no shards."""
    if not path.lower().endswith(JSON_ENDING):  # packed, which a dataset file never is
        return True
    try:
        head = files.read_head(path, _HEAD_BYTES)[0].removeprefix(b"\xef\xbb\xbf").lstrip()
    except OSError:
        return False
    return head[:1] == b"[" or (_COCO_START.search(head) is not None and b'"shardlist"' not in head)


def find_archive(source: object) -> tuple[str, str] | None:
    """Return the path of an archive, and that of a folder in it, empty or ending in a slash; None: it is none."""
    if not isinstance(source, str | os.PathLike) or os.path.isdir(source):
        return None
    path, folder = os.fspath(source).rstrip("/"), ""
    while path and not os.path.lexists(path):
        path, name = os.path.split(path)
        folder = f"{name}/{folder}"
    is_named = path.lower().endswith(".zip") or parse_format(os.path.basename(path)) == "tar"
    return (path, folder) if is_named and os.path.isfile(path) else None


def is_table(source: object, form: DelimitedFormat = DEFAULT_FORMAT) -> bool:
    """Tell whether a source is a table: by the name of a file, or by what a folder holds; an object must be one.

    A file is one in any case, where somebody says how it is written.
    """
    if not isinstance(source, str | os.PathLike):
        return True
    path = os.fspath(source)
    if path == "-" or (form != DEFAULT_FORMAT and os.path.isfile(path)):
        return True
    if (ending := table_ending(path)) and not os.path.isdir(path):
        return ending != JSON_ENDING or _is_row_json(path)
    if address.is_url(path):
        if address.is_web(path) or is_shard_name(paths.base_name(path)) or path.lower().endswith(".zip"):
            return False
        names: Iterator[str] = (one.key for one in lookup.iter_objects(path))
    else:
        names = (one.name for one in lookup.iter_entries(path)) if os.path.isdir(path) else iter(())
    try:
        some = list(islice(names, _MAX_NAMES_READ))
    except OSError:
        return False
    return any(name.endswith(PARQUET_ENDING) or "=" in name for name in [*some, path]) and bool(
        list_parquet_files(path)
    )
