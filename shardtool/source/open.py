"""Which source is it? Folders, an archive, a manifest or datasets. What each needs is imported only for that one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from shardtool.errors import InvalidRequest
from shardtool.request.options import ReshardOptions
from shardtool.source.advice import check_archive, check_folder, check_not_shards
from shardtool.source.kinds import archive_in, is_table
from shardtool.storage.places import is_url
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.pattern import ShardPattern
    from shardtool.request.options import CreateOptions
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
    if options.plan_only is None:
        return _open_listed(source, options, outputs)
    from shardtool.source.plan_file import RecordedSource, asked_of

    asked = asked_of(source, options, outputs[0].format)
    return RecordedSource(_open_listed(source, options, outputs), asked, options)


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
        from shardtool.source.archive import ArchiveSource

        return ArchiveSource(*archive, options)
    is_manifest = is_table(source)
    options.check_for(manifest=is_manifest)
    if is_manifest:
        from shardtool.source.manifest.manifest import ManifestSource

        return ManifestSource(source, options)
    from shardtool.source.folder.source import FolderSource

    check_folder(os.fspath(source))
    return FolderSource(os.fspath(source), options, outputs)


def _open_folders(sources: Sequence[Any], options: CreateOptions, outputs: Sequence[ShardPattern]) -> Source:
    """Return several folders as one source.

    Raises:
        InvalidRequest: They are none.
    """
    check_not_shards(sources)
    for one in sources or [None]:
        is_path = isinstance(one, str | os.PathLike)
        if not is_path or not _may_be_folder(os.fspath(one)):
            where, found = str(one) if is_path else "source", f"one of {len(sources)} sources, and no folder"
            expected = "one source, or several folders whose files share their keys"
            remedy = f"Of the files of one folder, {option('include', '*.jpg')} takes some."
            if is_path and archive_in(one) is not None:
                remedy = "An archive is a source by itself."
                check_archive(os.fspath(one))
            raise InvalidRequest(where, found, expected=expected, remedy=remedy)
    if len(sources) == 1:
        return _open_listed(sources[0], options, outputs)
    options.check_for(manifest=False)
    from shardtool.source.folder.source import FoldersSource

    return FoldersSource([os.fspath(one) for one in sources], options, outputs)


def _may_be_folder(path: str) -> bool:
    if not is_url(path):
        return os.path.isdir(path)
    check_folder(path)
    return True
