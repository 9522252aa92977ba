"""Output folders: a local folder, or a prefix in an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from shardtool.errors import InvalidRequest, OutputFailed
from shardtool.storage.remote.address import (
    STORES,
    WEB,
    is_url,
    parse_address,
    refuse_near_url,
)
from shardtool.storage.remote.store_options import object_headers
from shardtool.storage.remote_folder import RemoteFolder
from shardtool.storage.staging import Folder

if TYPE_CHECKING:
    from collections.abc import Mapping


OutputFolder: TypeAlias = Folder | RemoteFolder  # plain values, which travel to workers


def open_folder(path: str) -> OutputFolder:
    """Return the output folder that a path or an address means.

    Raises:
        InvalidRequest: It is an address that cannot be written to, or a path that looks like a torn one.
    """
    if not is_url(path):
        refuse_near_url(path)
        return Folder(path)
    at = parse_address(path)
    if at.scheme not in STORES:
        expected = "a folder, or an address in a store: s3://, gs://, az://"
        where = "a server of the web" if at.scheme in WEB else "a place that is only read"
        raise InvalidRequest(path, f"{where}, where nothing can be written", expected=expected)
    if any(part in ("", ".", "..") for part in at.key.rstrip("/").split("/") if at.key):
        raise InvalidRequest(path, "a name with an empty part, or . or ..", expected="names without `//` and `/../`")
    object_headers(path)  # which the store can be told
    return RemoteFolder(path)


def check_published(folder: OutputFolder, sizes: Mapping[str, int], remedy: str) -> None:
    """See, by a listing, that a store still has what it was given: others may have removed something meanwhile.

    Args:
        folder: A folder; of a file system nothing is looked at.
        sizes: The bytes of each file, by its name.
        remedy: What to do where one is missing.

    Raises:
        OutputFailed: One is not there, or has another size.
    """
    if folder.hides:
        return
    there = folder.facts(sizes)
    for name, size in sizes.items():
        fact = there.get(name)
        if fact is None or fact.size != size:
            found = "not there" if fact is None else f"{fact.size:,} bytes"
            expected = f"{size:,} bytes, which the store has taken"
            raise OutputFailed(folder.full_path(name), found, expected=expected, remedy=remedy)
