"""Open an output folder: a local folder, or a prefix in an object store."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from shardtool.errors import InvalidRequest, OutputFailed
from shardtool.storage import remote
from shardtool.storage.remote.address import STORES, WEB, is_url, parse_address, refuse_mistyped_address
from shardtool.storage.remote.store_options import object_headers
from shardtool.storage.staging import Folder
from shardtool.units import format_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardtool.storage.remote_folder import RemoteFolder

    OutputFolder: TypeAlias = Folder | RemoteFolder


_INDEX_SPACE_FACTOR = 1.01


def open_folder(path: str) -> OutputFolder:
    """Return the output folder at a local path or an address. Raise `InvalidRequest` if the address is read-only."""
    if not is_url(path):
        refuse_mistyped_address(path)
        return Folder(path)
    parts = parse_address(path)
    if parts.scheme not in STORES:
        expected = "a local folder, or an address in a store: s3://, gs://, az://"
        kind = "web servers" if parts.scheme in WEB else f"{parts.scheme}:// locations"
        raise InvalidRequest(path, f"{kind} are read-only", expected=expected)
    if any(part in ("", ".", "..") for part in parts.key.rstrip("/").split("/") if parts.key):
        found, expected = "an empty, `.` or `..` component", "an address without `//`, `/./` and `/../`"
        raise InvalidRequest(path, found, expected=expected)
    object_headers(path)  # raises an error for unsupported store options
    folder: RemoteFolder = remote.remote_folder.RemoteFolder(path)
    return folder


def open_staging_folder(path: str) -> OutputFolder:
    """Return an output folder whose files are invisible until they are published."""
    folder = open_folder(path)
    return folder if isinstance(folder, Folder) else replace(folder, has_staging=True)


def check_published(folder: OutputFolder, sizes: Mapping[str, int], remedy: str) -> None:
    """Raise `OutputFailed` if a file in `sizes` is missing in the store, or has another size."""
    if folder.has_staging:  # staged files do not have their final names yet
        return
    listed = folder.find_entries(sizes)
    for name, size in sizes.items():
        info = listed.get(name)
        if info is None or info.size != size:
            found = "missing" if info is None else f"{info.size:,} bytes"
            expected = f"{size:,} bytes, as uploaded"
            raise OutputFailed(folder.full_path(name), found, expected=expected, remedy=remedy)


def check_space(folder: OutputFolder, size: int, action: str, *, keeps_old: bool = False) -> None:
    """Raise `OutputFailed` if there is no space for shards of `size` bytes and their sidecars.

    The message contains `action`, such as `copied`.
    """
    need, free = int(size * _INDEX_SPACE_FACTOR), folder.free_bytes()
    if free is not None and need > free:
        advice = ", then run the same command again."
        if keeps_old:
            advice = ": the old dataset is kept until the new one is complete."
        found = f"{format_size(free)} free, {format_size(need)} needed; nothing was {action}"
        raise OutputFailed(folder.path or ".", found, remedy=f"Free some space{advice}")
