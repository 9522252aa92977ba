"""Identify and open a source."""

from __future__ import annotations

import os
from importlib import import_module
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from shardtool.errors import InvalidRequest
from shardtool.messages import choose_text, option_text
from shardtool.request.create_options import CreateOptions
from shardtool.source.source_checks import FOLDER_OR_TABLE, check_archive, check_folder, check_not_shards
from shardtool.storage.remote.address import is_url
from shardtool.table.detect import find_archive, is_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.pattern import ShardPattern
    from shardtool.request.create_options import ReshardOptions
    from shardtool.source.base import Source


# The module (imported only when needed) and class for each kind of source.
SOURCE_CLASSES = {
    "archive": ("archive", "ArchiveSource"),
    "datasets": ("shards", "DatasetSource"),
    "folder": ("folder", "FolderSource"),
    "folders": ("multi_folder", "MultiFolderSource"),
    "manifest": ("manifest.source", "ManifestSource"),
    "plan": ("plan_file", "PlannedSource"),
}


class SourceArgument(NamedTuple):
    """The source that the user names, and its kind.

    Attributes:
        value: The path or paths, or a table in memory. For an archive, its path and the folder in it. For datasets, one
            or several arguments of `find_dataset`.
    """

    kind: Literal["folder", "folders", "archive", "manifest", "datasets"]
    value: Any


def identify_source(source: Any, options: CreateOptions | ReshardOptions) -> SourceArgument:
    """Return the kind of a source. Raise an error if the options do not fit this kind."""
    if not isinstance(options, CreateOptions):
        return SourceArgument("datasets", source)
    sources = source if isinstance(source, list | tuple) else [source]
    url = next((item for item in sources if isinstance(item, str) and is_url(item)), None)
    if url is not None and (options.plan is not None or options.plan_only is not None):
        raise InvalidRequest(url, "a URL", expected="a source on a file system, for a plan file")
    argument = _identify_several(source, options) if source is sources else _identify_one(source, options)
    if options.complete and argument.kind != "folders":
        expected = "several folders, or not this option"
        raise InvalidRequest(option_text("complete"), "there is only one source", expected=expected)
    options.check_for(manifest=argument.kind == "manifest")
    if argument.kind == "folder":
        check_folder(argument.value)
    return argument


def open_source(
    argument: SourceArgument, options: CreateOptions | ReshardOptions, outputs: Sequence[ShardPattern]
) -> Source:
    """Open a source, or the plan file that replaces it."""
    if options.rename_keys is not None:
        from shardtool.select.rename_keys import check_key_rename

        check_key_rename(options.rename_keys)
    kind, value = argument
    is_planned = isinstance(options, CreateOptions) and options.plan is not None
    module, name = SOURCE_CLASSES["plan" if is_planned else kind]
    value = argument if is_planned else value
    source: Source = getattr(import_module(f"shardtool.source.{module}"), name)(value, options, outputs)
    return source


def _identify_one(source: Any, options: CreateOptions) -> SourceArgument:
    if (archive := find_archive(source)) is not None:
        check_archive(archive[0])
        return SourceArgument("archive", archive)
    if is_table(source, options.delimited_format):
        return SourceArgument("manifest", source)
    return SourceArgument("folder", os.fspath(source))


def _identify_several(sources: Sequence[Any], options: CreateOptions) -> SourceArgument:
    check_not_shards(sources)
    if not sources:
        raise InvalidRequest("the source", "none given", expected=FOLDER_OR_TABLE)
    if len(sources) > 1 and all(_is_table_path(path, options) for path in sources):
        return SourceArgument("manifest", [*map(os.fspath, sources)])
    for path in sources:
        is_path = isinstance(path, str | os.PathLike)
        if not is_path or not _may_be_folder(os.fspath(path)):
            where = f"{path}" if is_path else f"{path!r:.80}"
            found = f"one of {len(sources)} sources, but not a folder"
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
        return _identify_one(sources[0], options)
    return SourceArgument("folders", [os.fspath(path) for path in sources])


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
