"""Errors for sources that cannot be packed as given, with what to use instead."""

from __future__ import annotations

import glob
import os
from shlex import quote
from typing import TYPE_CHECKING, Any

from shardtool.dataset.find import default_dataset_names, is_dataset_file, names_listed_by
from shardtool.dataset.stored import sidecar_path
from shardtool.errors import InvalidRequest, ShardError, printable
from shardtool.messages import choose_text, option_text
from shardtool.names import to_output_name
from shardtool.pattern import DATASET_SUFFIX, parse_pattern, sidecar_name
from shardtool.shard_names import is_shard_name, parse_shard_name
from shardtool.storage import lookup, paths
from shardtool.storage.paths import base_name, similar_path
from shardtool.storage.remote.address import is_url, is_web, parse_address, refuse_near_url
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.entries.sample_table import SampleTable

if TYPE_CHECKING:
    from collections.abc import Sequence


EXPECTED_FOLDER = "a folder of samples"


_MAX_PROBED_SHARDS = 8  # shards of a kind that show whether they are of a dataset


def shards_note(entries: SampleTable, *, named: bool) -> str:
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
    rows = [row for code in codes for row in (entries.rows.code == code).nonzero()[0][:_MAX_PROBED_SHARDS].tolist()]
    first = printable(entries.path(rows[0]))
    alone = total == len(entries.rows.code)
    for path in () if named else (os.fsdecode(entries.file_path(row)) for row in rows):
        if alone or _is_dataset_shard(path):
            found = "a shard, as all files here are" if alone else "a shard of a dataset"
            remedy = f"{reshard_advice()}; {option_text('exclude')} leaves them out; {include_advice('*')} packs the files as they are."
            raise InvalidRequest(path, found, expected=EXPECTED_FOLDER, remedy=remedy)
    files = f"{pluralize(total, 'file')} that {'is a shard' if total == 1 else 'are shards'}"
    return f"{files}, such as {first}, packed as any file: {reshard_advice()}"


def _is_dataset_shard(path: str) -> bool:
    """Tell whether a shard has its index beside it, or a dataset file of the usual name that lists it."""
    folder, shard = paths.folder_of(path), paths.base_name(path)
    names = default_dataset_names([shard]) if is_shard_name(shard) else ()
    listed = any(to_output_name(shard) in names_listed_by(paths.join(folder, name)) for name in names)
    return listed or lookup.is_file(sidecar_path(path, None))


def reshard_advice() -> str:
    """Return what to do with shards instead."""
    return f"{choose_text('`reshard`', '`shardtool reshard`')} packs the samples of shards into other shards"


def include_advice(name: str) -> str:
    """Return the option that takes one name."""
    return choose_text(f"include=({name!r},)", f"--include {quote(name)}")


_PIPE_COMMAND = "`shardtool create 'pipe:COMMAND' OUTPUT`"


_UNSUPPORTED_TABLES = (".xlsx", ".xls", ".ods", ".pkl", ".pickle", ".orc", ".sqlite", ".db")  # of other programs


FOLDER_OR_TABLE = "a folder of samples, or a table: CSV, TSV, JSON, Parquet or Feather"


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
    if what := _describe_shards(source):
        raise InvalidRequest(source, what, expected=EXPECTED_FOLDER, remedy=f"{reshard_advice()}.")
    if os.path.isfile(source):
        raise InvalidRequest(source, "a file that is no table", expected=FOLDER_OR_TABLE, remedy=_file_advice(source))
    if os.path.lexists(source):
        raise InvalidRequest(source, "no folder", expected=EXPECTED_FOLDER)
    if any(mark in source for mark in "*?[") and glob.glob(source):
        raise InvalidRequest(source, "a glob", expected=EXPECTED_FOLDER, remedy=_glob_advice(source))
    refuse_near_url(source)
    expected = FOLDER_OR_TABLE if os.path.splitext(source)[1] else EXPECTED_FOLDER
    raise InvalidRequest(source, "no such file or folder", expected=expected, remedy=similar_path(source))


def _check_address(source: str) -> None:
    """Check that an address may be that of a folder; whether something lies below it is seen when it is listed."""
    parse_address(source)  # which refuses what is none
    if is_web(source):
        expected = f"{FOLDER_OR_TABLE}; or a folder of a store: s3://, gs:// or az://"
        raise InvalidRequest(source, "on the web, where no folder can be listed", expected=expected)
    if parse_shard_name(base_name(source)):
        other = f"A tar of files is taken from a command: {_PIPE_COMMAND}."
        raise InvalidRequest(source, "a shard", expected=EXPECTED_FOLDER, remedy=f"{reshard_advice()}. {other}")
    if source.lower().endswith(".zip"):
        remedy = f"Copy it to this machine, or let a command write it: {_PIPE_COMMAND}."
        raise InvalidRequest(source, "an archive that is not on this machine", expected=EXPECTED_FOLDER, remedy=remedy)


def check_archive(path: str) -> None:
    """Check that an archive is no shard with its index, which has more to go by than its files.

    Raises:
        InvalidRequest: It is one.
    """
    folder, name = os.path.split(path)
    if parse_shard_name(name) and os.path.isfile(os.path.join(folder, sidecar_name(name))):
        raise InvalidRequest(path, "a shard", expected=EXPECTED_FOLDER, remedy=f"{reshard_advice()}.")


def check_not_shards(sources: Sequence[Any]) -> None:
    """Check that several sources are not all shards, as of a glob that the shell made names of.

    Raises:
        InvalidRequest: They are.
    """
    names = [os.path.basename(one) for one in sources if isinstance(one, str | os.PathLike) and os.path.isfile(one)]
    if len(names) > 1 and len(names) == len(sources) and all(map(is_shard_name, names)):
        found = f"one of {len(names)} shards"
        raise InvalidRequest(os.fspath(sources[0]), found, expected=EXPECTED_FOLDER, remedy=f"{reshard_advice()}.")


def _describe_shards(source: str) -> str:
    """Return what a source is if it is shards; empty: it is not."""
    if source.endswith(DATASET_SUFFIX):
        return "a dataset file" if is_dataset_file(source) else ""
    if os.path.isfile(source):
        return "a shard" if parse_shard_name(os.path.basename(source)) else ""
    if any(mark in source for mark in "*?["):
        found = glob.glob(source)
        return "a glob of shards" if found and all(parse_shard_name(os.path.basename(one)) for one in found) else ""
    try:
        pattern = parse_pattern(source)
    except ShardError:
        return ""
    first = os.path.join(pattern.folder, pattern.shard(0))
    return "a shard pattern" if first != source and os.path.isfile(first) else ""


def _file_advice(source: str) -> str:
    if source.endswith(DATASET_SUFFIX):
        return "JSON is a table where it is a list of objects, a row each, or COCO's images and annotations."
    if source.endswith(_UNSUPPORTED_TABLES):
        return "Save it as CSV or Parquet."
    if source.endswith(".txt"):
        return f"A list of paths, one a line, goes to standard input: `shardtool create - OUTPUT < {quote(source)}`."
    folder, name = os.path.split(source)
    return f"Give the folder that it lies in, {folder or '.'}, with {include_advice(name)}."


def _glob_advice(source: str) -> str:
    folder, name = os.path.split(source)
    if any(mark in folder for mark in "*?[") or not os.path.isfile(glob.glob(source)[0]):
        return f"Give the folder above, with {option_text('include')} or {option_text('exclude')}."
    return f"Give the folder, {folder or '.'}, with {include_advice(name)}."
