"""Where a source lies, and what tells it from another, without a listing of it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from shardtool.errors import InvalidRequest, printable, reason
from shardtool.source.folder.source import label
from shardtool.source.kinds import archive_in, is_table
from shardtool.storage.places import is_url
from shardtool.storage.reading import file_stat, identity, source_root
from shardtool.table.kinds import parquet_files
from shardtool.table.open import folder_of
from shardtool.values import SpanFile
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardtool.request.options import CreateOptions

PlaceKind = Literal["folder", "folders", "archive", "manifest"]


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """Where a source lies.

    Attributes:
        kind: What it is.
        names: What its files or folders are called, without the folders above them.
        stamps: The bytes and the modification time of each file that is read as a whole: of a manifest, an archive.
        root: What paths count from, ending in a slash; empty for several folders, and for an archive.
        folders: Of several folders: what the first part of each path stands for.
        archive: The archive that payloads lie in.
        identity: What tells the source from any other on this machine; empty: what `root` leads to does.
        outside: Whether the user lets paths lead out of the source, by links or, in a manifest, by `..`.
    """

    kind: PlaceKind
    names: tuple[str, ...]
    stamps: tuple[tuple[int, int], ...] = ()
    root: bytes = b""
    folders: Mapping[bytes, bytes] = field(default_factory=dict)
    archive: SpanFile | None = None
    identity: str = ""
    outside: bool = False


def find_place(source: object, options: CreateOptions) -> SourcePlace:
    """Return where a source lies.

    Raises:
        InvalidRequest: It is nowhere, or not on a disk.
    """
    for one in source if isinstance(source, list | tuple) else [source]:
        if isinstance(one, str) and is_url(one):
            found, expected = "an address", "a source on a file system, for a plan file"
            raise InvalidRequest(one, found, expected=expected)
    if isinstance(source, list | tuple) and len(source) != 1:
        return _of_folders([os.fspath(one) for one in source], options)
    one = source[0] if isinstance(source, list | tuple) else source
    if not isinstance(one, str | os.PathLike) or one == "-":
        found = "standard input" if one == "-" else "a table in memory"
        name = "plan" if options.plan else "plan_only"
        remedy = "Write the table to a file first: each run must find the same."
        raise InvalidRequest(option(name), found, expected="a source that stays where it is", remedy=remedy)
    path = os.fspath(one)
    if (archive := archive_in(path)) is not None:
        return _of_archive(*archive)
    if is_table(path):
        files = parquet_files(path) if os.path.isdir(path) else [path]
        root = os.fsencode(options.root or folder_of(path)).rstrip(b"/") + b"/"
        stamps = tuple(_stamp(file) for file in files)
        return SourcePlace("manifest", (_name(path),), stamps, root, outside=options.allow_outside)
    return SourcePlace("folder", (_name(path),), root=source_root(path), outside=options.symlinks == "follow")


def _of_folders(sources: Sequence[str], options: CreateOptions) -> SourcePlace:
    roots = [source_root(one) for one in sources]
    labels = label(sources)
    return SourcePlace(
        "folders",
        tuple(map(printable, labels)),
        folders=dict(zip(labels, roots, strict=True)),
        identity=" ".join(map(identity, roots)),
        outside=options.symlinks == "follow",
    )


def _of_archive(path: str, folder: str) -> SourcePlace:
    form = "zip" if path.lower().endswith(".zip") else "tar"
    size, mtime_ns = stamp = _stamp(path)
    file = SpanFile(os.fsencode(path), size, mtime_ns, form)
    return SourcePlace("archive", (_name(path), folder), (stamp,), archive=file, identity=identity(os.fsencode(path)))


def _name(path: str) -> str:
    return printable(os.fsencode(os.path.basename(os.path.realpath(path))))


def _stamp(path: str) -> tuple[int, int]:
    try:
        fact = file_stat(path)
    except OSError as error:
        raise InvalidRequest(path, reason(error), expected="a source") from None
    return fact.st_size, fact.st_mtime_ns
