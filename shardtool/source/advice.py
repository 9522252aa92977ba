"""What a source is that is neither a folder nor a manifest, and what to give instead."""

from __future__ import annotations

import glob
import os
from shlex import quote
from typing import TYPE_CHECKING, Any

from shardtool.dataset.find import is_dataset_file, listed_by, sidecar_path, usual_names
from shardtool.errors import InvalidRequest, ShardError, printable
from shardtool.pattern import DATASET_SUFFIX, is_shard_name, parse_pattern, read_name, sidecar_name
from shardtool.storage.places import base_name, folder_of, is_file, is_url, is_web, join, refuse_near_url
from shardtool.storage.sources import check_scheme
from shardtool.values import counted, output_text
from shardtool.wording import either, option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.entries.entries import Entries

_FROM_COMMAND = "`shardtool create 'pipe:COMMAND' OUTPUT`"
_EXPECTED = "a folder of samples"
_TABLES = (".xlsx", ".xls", ".ods", ".pkl", ".pickle", ".orc", ".sqlite", ".db")  # of other programs
_LOOKED_AT = 8  # shards of a kind that show whether they are of a dataset
_OR_TABLE = "a folder of samples, or a table: CSV, TSV, JSON lines, Parquet or Feather"


def check_folder(source: str) -> None:
    """Check that a source is a folder.

    Raises:
        InvalidRequest: It is not; the remedy depends on what it is instead.
    """
    if is_url(source):
        _check_address(source)
        return
    if os.path.isdir(source):
        return
    if what := _shards(source):
        raise InvalidRequest(source, what, expected=_EXPECTED, remedy=f"{_again()}.")
    if os.path.isfile(source):
        raise InvalidRequest(source, "a file that is no table", expected=_OR_TABLE, remedy=_of_file(source))
    if os.path.lexists(source):
        raise InvalidRequest(source, "no folder", expected=_EXPECTED)
    if any(mark in source for mark in "*?[") and glob.glob(source):
        raise InvalidRequest(source, "a glob", expected=_EXPECTED, remedy=_of_glob(source))
    refuse_near_url(source)
    expected = _OR_TABLE if os.path.splitext(source)[1] else _EXPECTED
    raise InvalidRequest(source, "no such file or folder", expected=expected)


def _check_address(source: str) -> None:
    """Check that an address may be that of a folder; whether something lies below it is seen when it is listed."""
    check_scheme(source)
    if is_web(source):
        expected = f"{_OR_TABLE}; or a folder of a store: s3://, gs:// or az://"
        raise InvalidRequest(source, "on the web, where no folder can be listed", expected=expected)
    if read_name(base_name(source)):
        other = f"A tar of files is taken from a command: {_FROM_COMMAND}."
        raise InvalidRequest(source, "a shard", expected=_EXPECTED, remedy=f"{_again()}. {other}")
    if source.lower().endswith(".zip"):
        remedy = f"Copy it to this machine, or let a command write it: {_FROM_COMMAND}."
        raise InvalidRequest(source, "an archive that is not on this machine", expected=_EXPECTED, remedy=remedy)


def check_archive(path: str) -> None:
    """Check that an archive is no shard with its index, which has more to go by than its files.

    Raises:
        InvalidRequest: It is one.
    """
    folder, name = os.path.split(path)
    if read_name(name) and os.path.isfile(os.path.join(folder, sidecar_name(name))):
        raise InvalidRequest(path, "a shard", expected=_EXPECTED, remedy=f"{_again()}.")


def check_not_shards(sources: Sequence[Any]) -> None:
    """Check that several sources are not all shards, as of a glob that the shell made names of.

    Raises:
        InvalidRequest: They are.
    """
    names = [os.path.basename(one) for one in sources if isinstance(one, str | os.PathLike) and os.path.isfile(one)]
    if len(names) > 1 and len(names) == len(sources) and all(map(is_shard_name, names)):
        found = f"one of {len(names)} shards"
        raise InvalidRequest(os.fspath(sources[0]), found, expected=_EXPECTED, remedy=f"{_again()}.")


def shards_note(entries: Entries, *, named: bool) -> str:
    """Return what the user should know of files in a folder that are shards; empty where there are none.

    Args:
        entries: The files.
        named: Whether the user has said which files are meant.

    Raises:
        InvalidRequest: They are those of a dataset, or all that there is, and nobody has said that they are meant.
    """
    counts = entries.code_counts()
    codes = [code for code, field in enumerate(entries.fields) if counts[code] and is_shard_name(f"x.{field}")]
    if not codes:
        return ""
    total = sum(counts[code] for code in codes)
    rows = [row for code in codes for row in (entries.rows.code == code).nonzero()[0][:_LOOKED_AT].tolist()]
    first = printable(entries.path(rows[0]))
    alone = total == len(entries.rows.code)
    for path in () if named else (os.fsdecode(entries.place(row)) for row in rows):
        if alone or _is_of_dataset(path):
            found = "a shard, as all files here are" if alone else "a shard of a dataset"
            remedy = f"{_again()}; {option('exclude')} leaves them out; {_only('*')} packs the files as they are."
            raise InvalidRequest(path, found, expected=_EXPECTED, remedy=remedy)
    files = f"{counted(total, 'file')} that {'is a shard' if total == 1 else 'are shards'}"
    return f"{files}, such as {first}, packed as any file: {_again()}"


def _is_of_dataset(path: str) -> bool:
    """Tell whether a shard has its index beside it, or a dataset file of the usual name that lists it."""
    folder, shard = folder_of(path), base_name(path)
    names = usual_names([shard]) if is_shard_name(shard) else ()
    listed = any(output_text(shard) in listed_by(join(folder, name)) for name in names)
    return listed or is_file(sidecar_path(path, None))


def _again() -> str:
    return f"{either('`reshard`', '`shardtool reshard`')} packs the samples of shards into other shards"


def _shards(source: str) -> str:
    """Return what a source is if it is shards; empty: it is not."""
    if source.endswith(DATASET_SUFFIX):
        return "a dataset file" if is_dataset_file(source) else ""
    if os.path.isfile(source):
        return "a shard" if read_name(os.path.basename(source)) else ""
    if any(mark in source for mark in "*?["):
        found = glob.glob(source)
        return "a glob of shards" if found and all(read_name(os.path.basename(one)) for one in found) else ""
    try:
        pattern = parse_pattern(source)
    except ShardError:
        return ""
    first = os.path.join(pattern.folder, pattern.shard(0))
    return "a shard pattern" if first != source and os.path.isfile(first) else ""


def _of_file(source: str) -> str:
    if source.endswith(DATASET_SUFFIX):
        return "JSON, such as COCO's, or a list of rows, becomes a table first: docs/examples.md shows how."
    if source.endswith(_TABLES):
        return "Save it as CSV or Parquet."
    if source.endswith(".txt"):
        return f"A list of paths, one a line, goes to standard input: `shardtool create - OUTPUT < {quote(source)}`."
    folder, name = os.path.split(source)
    return f"Give the folder that it lies in, {folder or '.'}, with {_only(name)}."


def _only(name: str) -> str:
    return either(f"include=({name!r},)", f"--include {quote(name)}")


def _of_glob(source: str) -> str:
    folder, name = os.path.split(source)
    if any(mark in folder for mark in "*?[") or not os.path.isfile(glob.glob(source)[0]):
        return f"Give the folder above, with {option('include')} or {option('exclude')}."
    return f"Give the folder, {folder or '.'}, with {_only(name)}."
