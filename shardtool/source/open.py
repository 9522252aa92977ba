"""Open a source: a folder, several folders, an archive, a manifest, a plan file or datasets.

Modules that only one kind of source needs are imported when it is opened.
"""

from __future__ import annotations

import os
from shlex import quote
from typing import TYPE_CHECKING, Any

from shardtool.errors import InvalidRequest
from shardtool.messages import choose_text, option_text
from shardtool.request.create_options import CreateOptions, ReshardOptions
from shardtool.source.archive import ArchiveSource
from shardtool.source.folder import FolderSource
from shardtool.source.multi_folder import MultiFolderSource
from shardtool.source.source_checks import (
    FOLDER_OR_TABLE,
    check_archive,
    check_folder,
    check_not_shards,
)
from shardtool.storage.remote.address import is_url
from shardtool.table.detect import PARQUET_ENDING, find_archive, is_table, joining, table_ending

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.pattern import ShardPattern
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
        from shardtool.source.shards import DatasetSource

        return DatasetSource(source, options, outputs[0].format)
    if options.plan is not None:
        from shardtool.source.plan_file import PlannedSource
        from shardtool.source.plan_request import make_plan_request

        return PlannedSource(os.fspath(options.plan), make_plan_request(source, options, outputs[0].format))
    return _open_listed(source, options, outputs)


def _open_listed(source: Any, options: CreateOptions, outputs: Sequence[ShardPattern]) -> Source:
    """Return a source of `create` that lists its samples.

    Raises:
        InvalidRequest: It is nothing that can be packed, or options do not go with it.
    """
    if isinstance(source, list | tuple):
        return _open_folders(source, options, outputs)
    if options.complete:
        raise InvalidRequest(
            option_text("complete"), "there is one source", expected="several folders, or not this option"
        )
    if (archive := find_archive(source)) is not None:
        check_archive(archive[0])
        options.check_for(manifest=False)
        return ArchiveSource(*archive, options)
    is_manifest = is_table(source, options.text_form)
    options.check_for(manifest=is_manifest)
    if is_manifest:
        from shardtool.source.manifest.source import ManifestSource

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
        raise InvalidRequest("the source", "none given", expected=FOLDER_OR_TABLE)
    for one in sources:
        is_path = isinstance(one, str | os.PathLike)
        if not is_path or not _may_be_folder(os.fspath(one)):
            where, found = f"{one}" if is_path else f"{one!r:.80}", f"one of {len(sources)} sources, and no folder"
            if is_path and not os.path.lexists(one):
                check_folder(os.fspath(one))
            expected = "one source, or several folders whose files share their keys"
            remedy = f"Of the files of one folder, {option_text('include', '*.jpg')} takes some."
            if not is_path:
                remedy = "Rows are a table: pyarrow.Table.from_pylist(rows)."
            elif is_table(one, options.text_form):
                found = f"one of {len(sources)} sources, and a table"
                expected = "one table, or several folders whose files share their keys"
                remedy = _one_table(sources, one)
            elif find_archive(one) is not None:
                remedy = "An archive is a source by itself."
                check_archive(os.fspath(one))
            raise InvalidRequest(where, found, expected=expected, remedy=remedy)
    if len(sources) == 1:
        return _open_listed(sources[0], options, outputs)
    options.check_for(manifest=False)
    return MultiFolderSource([os.fspath(one) for one in sources], options, outputs)


def _one_table(sources: Sequence[Any], table: Any) -> str:
    """Return what to do about several sources, one of which is a table."""
    name = os.fspath(table)
    if any(isinstance(one, str | os.PathLike) and os.path.isdir(one) for one in sources):
        joined = choose_text(f"join={name!r}", f"--join {quote(name)}")
        return f"To add the columns of the table to the samples of the folder, use {joined}."
    names = [os.fspath(one) for one in sources if isinstance(one, str | os.PathLike)]
    alone = "Or pack each table by itself, and combine the datasets with `reshard`."
    if len(names) == len(sources) and all(table_ending(one) == PARQUET_ENDING for one in names):
        return f"A folder of Parquet files, or a quoted glob such as '*.parquet', is one table. {alone}"
    return f"{joining(names)} {alone}"


def _may_be_folder(path: str) -> bool:
    if not is_url(path):
        return os.path.isdir(path)
    check_folder(path)
    return True
