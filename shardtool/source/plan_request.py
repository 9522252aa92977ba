"""Describe the source and the options that a plan file must match."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

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
from shardtool.storage.remote.address import is_url
from shardtool.table.detect import find_archive, is_table, list_parquet_files

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardtool.request.create_options import CreateOptions


_UNCHECKED_OPTIONS = frozenset({
    "plan", "plan_only", "dry_run", "part", "workers", "start_method", "append", "resume", "overwrite", "update",
    "max_removed", "trust", "target", "export", "root", "allow_outside", "stat",
})  # fmt: skip


class PlanRequest(NamedTuple):
    """The source and the options of a run.

    Attributes:
        stamps: Size and modification time of each manifest or archive.
        root: The folder to which paths are relative, with a final slash.
        folders: If there are several source folders, the folder for each first component of a path.
        identity: Identifies the source on this machine. Empty if `root` identifies the source.
    """

    kind: Literal["folder", "folders", "archive", "manifest"]
    names: tuple[str, ...]
    stamps: tuple[tuple[int, int], ...] = ()
    root: bytes = b""
    folders: Mapping[bytes, bytes] = {}
    archive: SpanFile | None = None
    identity: str = ""
    outside: bool = False
    options: Mapping[str, object] = {}


def make_plan_request(source: object, options: CreateOptions, shard_format: str) -> PlanRequest:
    """Return the source and the options of a run, to write or check its plan file."""
    recorded: dict[str, object] = {"format": shard_format}
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
        recorded[to_recorded_name(option.name)] = value
    request = _find_source(source, options)
    options.check_for(manifest=request.kind == "manifest")
    return request._replace(options={**recorded, **options.recorded()})


def _find_source(source: object, options: CreateOptions) -> PlanRequest:
    sources: list[Any] = [*source] if isinstance(source, list | tuple) else [source]
    if url := next((item for item in sources if isinstance(item, str) and is_url(item)), None):
        raise InvalidRequest(url, "a URL", expected="a source on a file system, for a plan file")
    follows = options.symlinks == "follow"
    if len(sources) != 1:
        paths = [os.fspath(item) for item in sources]
        roots, labels = [source_root(item, needed=True) for item in paths], name_folders(paths)
        folders, identity = dict(zip(labels, roots, strict=True)), " ".join(map(source_identity, roots))
        names = tuple(map(printable, labels))
        return PlanRequest("folders", names, folders=folders, identity=identity, outside=follows)
    (item,) = sources
    if not isinstance(item, str | os.PathLike) or item == "-":
        found, name = "standard input" if item == "-" else "a table in memory", "plan" if options.plan else "plan_only"
        remedy = "Write the table to a file first, because each run must read the same table."
        raise InvalidRequest(option_text(name), found, expected="a source that other runs can read", remedy=remedy)
    path = os.fspath(item)
    if (archive := find_archive(path)) is not None:
        path, folder = archive
        stamp, file_path = _file_stamp(path), os.fsencode(path)
        file = SpanFile(file_path, *stamp, "zip" if path.lower().endswith(".zip") else "tar")
        names, identity = (folder_name(path), folder), source_identity(file_path)
        return PlanRequest("archive", names, (stamp,), archive=file, identity=identity)
    if is_table(path, options.delimited_format):
        stamps = tuple(map(_file_stamp, list_parquet_files(path) if os.path.isdir(path) else [path]))
        root = os.fsencode(options.root or folder_of(path.rstrip("/")) or ".").rstrip(b"/") + b"/"
        return PlanRequest("manifest", (folder_name(path),), stamps, root, outside=options.allow_outside)
    return PlanRequest("folder", (folder_name(path),), root=source_root(path, needed=True), outside=follows)


def _file_stamp(path: str) -> tuple[int, int]:
    try:
        file_stat = stat_file(path)
    except OSError as error:
        raise InvalidRequest(path, os_error_text(error), expected="a source") from None
    return file_stat.st_size, file_stat.st_mtime_ns
