"""Which source is it? Folders, an archive, a manifest or datasets. What each needs is imported only for that one."""

from __future__ import annotations

import glob
import os
from shlex import quote
from typing import TYPE_CHECKING, Any

from shardtool.dataset.find import is_dataset_file
from shardtool.errors import InvalidRequest, ShardError
from shardtool.pattern import DATASET_SUFFIX, ShardPattern, is_shard_name, parse_pattern, read_name, sidecar_name
from shardtool.request.options import CreateOptions, ReshardOptions
from shardtool.source.folder import EXPECTED, ArchiveSource, FolderSource, FoldersSource, again, only
from shardtool.storage.places import base_name, is_url, is_web, parse_address, refuse_near_url, similar_path
from shardtool.table.kinds import PARQUET, archive_in, is_table, joining, table_ending
from shardtool.wording import either, option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.source.base import Source


def open_source(source: Any, options: CreateOptions | ReshardOptions, outputs: Sequence[ShardPattern]) -> Source:
    """Return a source.

    Args:
        source: What the user gave.
        options: What is to be done: of `reshard`, the source is datasets.
        outputs: What will be written: a folder that holds it does not list it.

    Raises:
        InvalidRequest: It is nothing that can be packed, or options do not go with it.
    """
    if isinstance(options, ReshardOptions):
        from shardtool.source.shards import ShardSource

        return ShardSource(source, options, outputs[0].format)
    if options.plan is not None:
        from shardtool.source.plan_file import PlannedSource, asked_of

        return PlannedSource(os.fspath(options.plan), asked_of(source, options, outputs[0].format))
    return _open_listed(source, options, outputs)


def _open_listed(source: Any, options: CreateOptions, outputs: Sequence[ShardPattern]) -> Source:
    """Return a source of `create` that lists its samples.

    Raises:
        InvalidRequest: It is nothing that can be packed, or options do not go with it.
    """
    if isinstance(source, list | tuple):
        return _open_folders(source, options, outputs)
    if options.complete:
        raise InvalidRequest(option("complete"), "there is one source", expected="several folders, or not this option")
    if (archive := archive_in(source)) is not None:
        check_archive(archive[0])
        options.check_for(manifest=False)
        return ArchiveSource(*archive, options)
    is_manifest = is_table(source, options.text_form)
    options.check_for(manifest=is_manifest)
    if is_manifest:
        from shardtool.source.manifest import ManifestSource

        return ManifestSource(source, options)
    check_folder(os.fspath(source))
    return FolderSource(os.fspath(source), options, outputs)


def _open_folders(sources: Sequence[Any], options: CreateOptions, outputs: Sequence[ShardPattern]) -> Source:
    """Return several folders as one source.

    Raises:
        InvalidRequest: They are none.
    """
    check_not_shards(sources)
    if not sources:
        raise InvalidRequest("the source", "none given", expected=_OR_TABLE)
    for one in sources:
        is_path = isinstance(one, str | os.PathLike)
        if not is_path or not _may_be_folder(os.fspath(one)):
            where, found = f"{one}" if is_path else f"{one!r:.80}", f"one of {len(sources)} sources, and no folder"
            if is_path and not os.path.lexists(one):
                check_folder(os.fspath(one))
            expected = "one source, or several folders whose files share their keys"
            remedy = f"Of the files of one folder, {option('include', '*.jpg')} takes some."
            if not is_path:
                remedy = "Rows are a table: pyarrow.Table.from_pylist(rows)."
            elif is_table(one, options.text_form):
                found = f"one of {len(sources)} sources, and a table"
                expected = "one table, or several folders whose files share their keys"
                remedy = _one_table(sources, one)
            elif archive_in(one) is not None:
                remedy = "An archive is a source by itself."
                check_archive(os.fspath(one))
            raise InvalidRequest(where, found, expected=expected, remedy=remedy)
    if len(sources) == 1:
        return _open_listed(sources[0], options, outputs)
    options.check_for(manifest=False)
    return FoldersSource([os.fspath(one) for one in sources], options, outputs)


def _one_table(sources: Sequence[Any], table: Any) -> str:
    """Return what to do about several sources, one of which is a table."""
    name = os.fspath(table)
    if any(isinstance(one, str | os.PathLike) and os.path.isdir(one) for one in sources):
        joined = either(f"join={name!r}", f"--join {quote(name)}")
        return f"To add the columns of the table to the samples of the folder, use {joined}."
    names = [os.fspath(one) for one in sources if isinstance(one, str | os.PathLike)]
    alone = "Or pack each table by itself, and combine the datasets with `reshard`."
    if len(names) == len(sources) and all(table_ending(one) == PARQUET for one in names):
        return f"A folder of Parquet files, or a quoted glob such as '*.parquet', is one table. {alone}"
    return f"{joining(names)} {alone}"


def _may_be_folder(path: str) -> bool:
    if not is_url(path):
        return os.path.isdir(path)
    check_folder(path)
    return True


# What a source is that is neither a folder nor a manifest, and what to give instead.


_FROM_COMMAND = "`shardtool create 'pipe:COMMAND' OUTPUT`"
_TABLES = (".xlsx", ".xls", ".ods", ".pkl", ".pickle", ".orc", ".sqlite", ".db")  # of other programs
_OR_TABLE = "a folder of samples, or a table: CSV, TSV, JSON, Parquet or Feather"


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
        raise InvalidRequest(source, what, expected=EXPECTED, remedy=f"{again()}.")
    if os.path.isfile(source):
        raise InvalidRequest(source, "a file that is no table", expected=_OR_TABLE, remedy=_of_file(source))
    if os.path.lexists(source):
        raise InvalidRequest(source, "no folder", expected=EXPECTED)
    if any(mark in source for mark in "*?[") and glob.glob(source):
        raise InvalidRequest(source, "a glob", expected=EXPECTED, remedy=_of_glob(source))
    refuse_near_url(source)
    expected = _OR_TABLE if os.path.splitext(source)[1] else EXPECTED
    raise InvalidRequest(source, "no such file or folder", expected=expected, remedy=similar_path(source))


def _check_address(source: str) -> None:
    """Check that an address may be that of a folder; whether something lies below it is seen when it is listed."""
    parse_address(source)  # which refuses what is none
    if is_web(source):
        expected = f"{_OR_TABLE}; or a folder of a store: s3://, gs:// or az://"
        raise InvalidRequest(source, "on the web, where no folder can be listed", expected=expected)
    if read_name(base_name(source)):
        other = f"A tar of files is taken from a command: {_FROM_COMMAND}."
        raise InvalidRequest(source, "a shard", expected=EXPECTED, remedy=f"{again()}. {other}")
    if source.lower().endswith(".zip"):
        remedy = f"Copy it to this machine, or let a command write it: {_FROM_COMMAND}."
        raise InvalidRequest(source, "an archive that is not on this machine", expected=EXPECTED, remedy=remedy)


def check_archive(path: str) -> None:
    """Check that an archive is no shard with its index, which has more to go by than its files.

    Raises:
        InvalidRequest: It is one.
    """
    folder, name = os.path.split(path)
    if read_name(name) and os.path.isfile(os.path.join(folder, sidecar_name(name))):
        raise InvalidRequest(path, "a shard", expected=EXPECTED, remedy=f"{again()}.")


def check_not_shards(sources: Sequence[Any]) -> None:
    """Check that several sources are not all shards, as of a glob that the shell made names of.

    Raises:
        InvalidRequest: They are.
    """
    names = [os.path.basename(one) for one in sources if isinstance(one, str | os.PathLike) and os.path.isfile(one)]
    if len(names) > 1 and len(names) == len(sources) and all(map(is_shard_name, names)):
        found = f"one of {len(names)} shards"
        raise InvalidRequest(os.fspath(sources[0]), found, expected=EXPECTED, remedy=f"{again()}.")


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
        return "JSON is a table where it is a list of objects, a row each, or COCO's images and annotations."
    if source.endswith(_TABLES):
        return "Save it as CSV or Parquet."
    if source.endswith(".txt"):
        return f"A list of paths, one a line, goes to standard input: `shardtool create - OUTPUT < {quote(source)}`."
    folder, name = os.path.split(source)
    return f"Give the folder that it lies in, {folder or '.'}, with {only(name)}."


def _of_glob(source: str) -> str:
    folder, name = os.path.split(source)
    if any(mark in folder for mark in "*?[") or not os.path.isfile(glob.glob(source)[0]):
        return f"Give the folder above, with {option('include')} or {option('exclude')}."
    return f"Give the folder, {folder or '.'}, with {only(name)}."
