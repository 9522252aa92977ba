"""Describe the source and the options that a plan file must match."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import TYPE_CHECKING, NamedTuple

from shardtool.entries.classes import Classes
from shardtool.errors import InvalidRequest, os_error_text, printable
from shardtool.messages import option_text
from shardtool.request.option_spec import option_specs
from shardtool.request.run_record import to_recorded_name
from shardtool.shard_samples import SpanFile
from shardtool.source.folder import folder_name
from shardtool.source.multi_folder import name_folders
from shardtool.storage.files import stat_file
from shardtool.storage.paths import folder_of, source_identity, source_root
from shardtool.table.detect import list_parquet_files

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardtool.request.create_options import CreateOptions
    from shardtool.source.open import SourceArgument


# without effect on the plan, or stored as other attributes
_UNCHECKED_OPTIONS = frozenset({
    "plan", "plan_only", "dry_run", "part", "workers", "start_method", "append", "resume", "overwrite", "update",
    "max_removed", "trust", "target", "export", "root", "allow_outside", "stat",
})  # fmt: skip


class PlanRequest(NamedTuple):
    """The source and the options of a run.

    Attributes:
        kind: As in `SourceArgument`.
        stamps: Size and modification time of each manifest or archive.
        root: The folder to which paths are relative, with a final slash.
        folders: For several source folders, maps the first component of each path to its folder.
        source_identity: The result of `paths.source_identity`, or empty if `root` identifies the source.
    """

    kind: str
    names: tuple[str, ...]
    stamps: tuple[tuple[int, int], ...] = ()
    root: bytes = b""
    folders: Mapping[bytes, bytes] = {}
    archive: SpanFile | None = None
    source_identity: str = ""
    outside: bool = False
    options: Mapping[str, object] = {}


def make_plan_request(argument: SourceArgument, options: CreateOptions, shard_format: str) -> PlanRequest:
    """Return the source and the options of a run, to write or check its plan file."""
    checked: dict[str, object] = {"format": shard_format}
    checked_options = option_specs(type(options)).keys() - _UNCHECKED_OPTIONS
    for option in fields(options):
        value = getattr(options, option.name)
        if option.name not in checked_options or value == option.default or isinstance(value, Classes):
            continue
        if option.name in ("join", "classes_from", "keys_from"):
            if not isinstance(value, str | os.PathLike):
                expected = "a file, to write or use a plan"
                raise InvalidRequest(option_text(option.name), "something in memory", expected=expected)
            value = os.path.basename(os.fspath(value))
        checked[to_recorded_name(option.name)] = value
    return _describe_source(argument, options)._replace(options={**checked, **options.recorded()})


def _describe_source(argument: SourceArgument, options: CreateOptions) -> PlanRequest:
    kind, value = argument
    values = value if isinstance(value, list) else [value]
    follows = options.symlinks == "follow"
    if kind == "folder":
        return PlanRequest(kind, (folder_name(value),), root=source_root(value, needed=True), outside=follows)
    if kind == "folders":
        roots, labels = [source_root(path, needed=True) for path in values], name_folders(values)
        folders, identity = dict(zip(labels, roots, strict=True)), " ".join(map(source_identity, roots))
        return PlanRequest(kind, (*map(printable, labels),), folders=folders, source_identity=identity, outside=follows)
    if kind == "archive":
        path, inner_folder = value
        stamp, file_path = _file_stamp(path), os.fsencode(path)
        file = SpanFile(file_path, *stamp, "zip" if path.lower().endswith(".zip") else "tar")
        identity = source_identity(file_path)
        return PlanRequest(kind, (folder_name(path), inner_folder), (stamp,), archive=file, source_identity=identity)
    if value == "-" or not all(isinstance(item, str | os.PathLike) for item in values):
        found = "standard input" if value == "-" else "a table in memory"
        name = "plan" if options.plan else "plan_only"
        remedy = "Write the table to a file first, because each run must read the same table."
        raise InvalidRequest(option_text(name), found, expected="a source that other runs can read", remedy=remedy)
    from shardtool.source.manifest.paths import choose_root

    tables = [os.fspath(item) for item in values]
    files = [file for path in tables for file in (list_parquet_files(path) if os.path.isdir(path) else [path])]
    folder, *others = {folder_of(path.rstrip("/")) or "." for path in tables}
    root = choose_root(options, "" if others else folder)
    names, stamps = (*map(folder_name, tables),), (*map(_file_stamp, files),)
    return PlanRequest(kind, names, stamps, root, outside=options.allow_outside)


def _file_stamp(path: str) -> tuple[int, int]:
    try:
        file_stat = stat_file(path)
    except OSError as error:
        raise InvalidRequest(path, os_error_text(error), expected="a source") from None
    return file_stat.st_size, file_stat.st_mtime_ns
