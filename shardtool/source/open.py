"""Open a source of any kind."""

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
from shardtool.source.source_checks import FOLDER_OR_TABLE, check_archive, check_folder, check_not_shards
from shardtool.storage.remote.address import is_url
from shardtool.table.detect import find_archive, is_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.pattern import ShardPattern
    from shardtool.source.base import Source


def open_source(source: Any, options: CreateOptions | ReshardOptions, outputs: Sequence[ShardPattern]) -> Source:
    """Open a folder, several folders, an archive, a manifest, a plan file or datasets."""
    if options.rename_keys is not None:
        from shardtool.select.rename_keys import check_key_rename

        check_key_rename(options.rename_keys)
    if isinstance(options, ReshardOptions):
        from shardtool.source.shards import DatasetSource

        return DatasetSource(source, options, outputs[0].format)
    if options.plan is not None:
        from shardtool.source.plan_file import PlannedSource
        from shardtool.source.plan_request import make_plan_request

        return PlannedSource(os.fspath(options.plan), make_plan_request(source, options, outputs[0].format))
    return _open_listed(source, options, outputs)


def _open_listed(source: Any, options: CreateOptions, outputs: Sequence[ShardPattern]) -> Source:
    if isinstance(source, list | tuple):
        return _open_folders(source, options, outputs)
    if options.complete:
        expected = "several folders, or not this option"
        raise InvalidRequest(option_text("complete"), "there is only one source", expected=expected)
    if (archive := find_archive(source)) is not None:
        check_archive(archive[0])
        options.check_for(manifest=False)
        return ArchiveSource(*archive, options)
    is_manifest = is_table(source, options.delimited_format)
    options.check_for(manifest=is_manifest)
    if is_manifest:
        from shardtool.source.manifest.source import ManifestSource

        return ManifestSource(source, options)
    check_folder(os.fspath(source))
    return FolderSource(os.fspath(source), options, outputs)


def _open_folders(sources: Sequence[Any], options: CreateOptions, outputs: Sequence[ShardPattern]) -> Source:
    check_not_shards(sources)
    if not sources:
        raise InvalidRequest("the source", "none given", expected=FOLDER_OR_TABLE)
    if len(sources) > 1 and all(_is_table_path(path, options) for path in sources):
        from shardtool.source.manifest.source import ManifestSource

        options.check_for(manifest=True)
        return ManifestSource([*map(os.fspath, sources)], options)
    for path in sources:
        is_path = isinstance(path, str | os.PathLike)
        if not is_path or not _may_be_folder(os.fspath(path)):
            where, found = f"{path}" if is_path else f"{path!r:.80}", f"one of {len(sources)} sources, but not a folder"
            if is_path and not os.path.lexists(path):
                check_folder(os.fspath(path))
            expected = "one source, or several folders whose files share their keys"
            remedy = f"To pack some files of a folder, use {option_text('include', '*.jpg')}."
            if not is_path:
                remedy = "Rows are packed as a table: pyarrow.Table.from_pylist(rows)."
            elif is_table(path, options.delimited_format):
                found = f"one of {len(sources)} sources, but a table"
                expected = "only tables, or only folders whose files share their keys"
                remedy = _one_table(sources, path)
            elif find_archive(path) is not None:
                remedy = "Use an archive as the only source."
                check_archive(os.fspath(path))
            raise InvalidRequest(where, found, expected=expected, remedy=remedy)
    if len(sources) == 1:
        return _open_listed(sources[0], options, outputs)
    options.check_for(manifest=False)
    return MultiFolderSource([os.fspath(path) for path in sources], options, outputs)


def _one_table(sources: Sequence[Any], table: Any) -> str:
    name = os.fspath(table)
    if any(isinstance(path, str | os.PathLike) and os.path.isdir(path) for path in sources):
        join_option = choose_text(f"join={name!r}", f"--join {quote(name)}")
        return f"To add the columns of the table to the samples of the folder, use {join_option}."
    return "Pack it separately, and merge the datasets with `reshard`."


def _is_table_path(path: Any, options: CreateOptions) -> bool:
    return isinstance(path, str | os.PathLike) and os.fspath(path) != "-" and is_table(path, options.delimited_format)


def _may_be_folder(path: str) -> bool:
    if not is_url(path):
        return os.path.isdir(path)
    check_folder(path)
    return True
