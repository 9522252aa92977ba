"""What a plan file must match: the source, without listing it, and the options that affect the listing."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from shardtool.entries.classes import Classes
from shardtool.errors import (
    InvalidRequest,
    os_error_text,
    printable,
)
from shardtool.messages import option_text
from shardtool.request.option_spec import option_specs
from shardtool.shard_samples import SpanFile
from shardtool.source.folder import folder_name
from shardtool.source.multi_folder import name_folders
from shardtool.storage.lookup import stat_file
from shardtool.storage.paths import folder_of, source_identity, source_root
from shardtool.storage.remote.address import is_url
from shardtool.table.detect import find_archive, is_table, list_parquet_files

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardtool.request.create_options import CreateOptions


# What says how a run goes about it, or where things lie on a machine, and not which samples there are.
_UNCHECKED_OPTIONS = frozenset({
    "plan", "plan_only", "part", "workers", "start_method", "if_exists", "max_removed", "trust", "target", "export",
    "root", "allow_outside", "stat",
})  # fmt: skip


class PlanRequest(NamedTuple):
    """What a plan must be of: a source, and what decides how it is listed and what is made of it.

    Attributes:
        kind: What the source is.
        names: What its files or folders are called, without the folders above them.
        stamps: The bytes and the modification time of each file that is read as a whole: of a manifest, an archive.
        root: What paths count from, ending in a slash; empty for several folders, and for an archive.
        folders: Of several folders: what the first part of each path stands for.
        archive: The archive that payloads lie in.
        identity: What tells the source from any other on this machine; empty: what `root` leads to does.
        outside: Whether the user lets paths lead out of the source, by links or, in a manifest, by `..`.
        options: What was asked for.
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
    """Return what a plan of a run must be of.

    Raises:
        InvalidRequest: The source, or a table that an option names, is nowhere, or not on a disk.
    """
    asked: dict[str, object] = {"format": shard_format}
    known = option_specs(type(options)).keys() - _UNCHECKED_OPTIONS
    for one in fields(options):
        value = getattr(options, one.name)
        if one.name not in known or value == one.default or isinstance(value, Classes):
            continue
        if one.name in ("join", "classes_from"):
            if not isinstance(value, str | os.PathLike):
                expected = "a file, where a plan is written or used"
                raise InvalidRequest(option_text(one.name), "something in memory", expected=expected)
            value = os.path.basename(os.fspath(value))
        asked[one.name] = value
    found = _find_source(source, options)
    options.check_for(manifest=found.kind == "manifest")
    return found._replace(options={**asked, **options.recorded()})


def _find_source(source: object, options: CreateOptions) -> PlanRequest:
    """Return where a source lies.

    Raises:
        InvalidRequest: It is nowhere, or not on a disk.
    """
    sources: list[Any] = [*source] if isinstance(source, list | tuple) else [source]
    if url := next((one for one in sources if isinstance(one, str) and is_url(one)), None):
        raise InvalidRequest(url, "an address", expected="a source on a file system, for a plan file")
    follows = options.symlinks == "follow"
    if len(sources) != 1:
        paths = [os.fspath(one) for one in sources]
        roots, labels = [source_root(one, needed=True) for one in paths], name_folders(paths)
        below, whose = dict(zip(labels, roots, strict=True)), " ".join(map(source_identity, roots))
        return PlanRequest("folders", tuple(map(printable, labels)), folders=below, identity=whose, outside=follows)
    (one,) = sources
    if not isinstance(one, str | os.PathLike) or one == "-":
        found, name = "standard input" if one == "-" else "a table in memory", "plan" if options.plan else "plan_only"
        remedy = "Write the table to a file first: each run must find the same."
        raise InvalidRequest(option_text(name), found, expected="a source that stays where it is", remedy=remedy)
    path = os.fspath(one)
    if (archive := find_archive(path)) is not None:
        path, folder = archive
        stamp, place = _file_stamp(path), os.fsencode(path)
        file = SpanFile(place, *stamp, "zip" if path.lower().endswith(".zip") else "tar")
        return PlanRequest(
            "archive", (folder_name(path), folder), (stamp,), archive=file, identity=source_identity(place)
        )
    if is_table(path, options.text_form):
        stamps = tuple(map(_file_stamp, list_parquet_files(path) if os.path.isdir(path) else [path]))
        root = os.fsencode(options.root or folder_of(path.rstrip("/")) or ".").rstrip(b"/") + b"/"
        return PlanRequest("manifest", (folder_name(path),), stamps, root, outside=options.allow_outside)
    return PlanRequest("folder", (folder_name(path),), root=source_root(path, needed=True), outside=follows)


def _file_stamp(path: str) -> tuple[int, int]:
    try:
        fact = stat_file(path)
    except OSError as error:
        raise InvalidRequest(path, os_error_text(error), expected="a source") from None
    return fact.st_size, fact.st_mtime_ns
