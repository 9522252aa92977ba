"""Look up sizes and types of files and objects, and list folders. Symbolic links are followed.

Functions raise `OSError` if a file is missing or not accessible, unless they say otherwise. They raise `ShardError` if
the machine, a store or a server fails. Web servers cannot be listed.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from shardtool.errors import AccessRefused, raise_if_machine_error
from shardtool.names import to_bytes
from shardtool.storage import remote
from shardtool.storage.paths import base_name, folder_of, is_address, source_address
from shardtool.storage.remote import address
from shardtool.storage.remote.address import is_url, is_web, parse_address
from shardtool.storage.remote.requests import Item, Result, imap_requests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shardtool.storage.remote.buckets import BucketEntry
    from shardtool.storage.remote.objects import FileInfo


_MAX_SINGLE_LOOKUPS = 4


def stat_file(path: str) -> os.stat_result:
    """Return the stat result of a local path."""
    return os.stat(path)


def file_info(path: str | bytes) -> FileInfo:
    """Return the size and times of a file, or the size and version of an object."""
    location = to_bytes(path) if isinstance(path, str) else path
    return remote.objects.open_remote(source_address(location)).stat() if is_address(location) else os.stat(path)


def is_file(path: str) -> bool:
    """Return whether a location is a regular file or an object."""
    return plain_size(path) is not None


def is_regular(path: str) -> bool:
    """Return whether a local path is a regular file. A link does not count."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def plain_size(path: str) -> int | None:
    """Return the size of a regular file or object, or None for anything else."""
    try:
        if is_url(path):
            return remote.objects.open_remote(path).size
        info = os.stat(path)
    except (OSError, ValueError) as error:
        if is_url(path) and not isinstance(error, FileNotFoundError):
            raise
        raise_if_machine_error(error, path)
        return None
    return info.st_size if stat.S_ISREG(info.st_mode) else None


def plain_sizes(paths: Iterable[str]) -> list[int | None]:
    """Return the `plain_size` of each path, with few requests."""
    paths = list(paths)
    folders = [*{folder_of(path) for path in paths}]
    if len(paths) > _MAX_SINGLE_LOOKUPS and len(folders) == 1 and is_url(folders[0]) and not is_web(folders[0]):
        with suppress(AccessRefused):  # a store may allow reading but not listing
            sizes = {entry.name: entry.size for entry in _list_remote(folders[0]) if not entry.is_folder}
            return [sizes.get(base_name(path)) for path in paths]
    return list(map_paths(plain_size, paths))


def recorded_crc(path: str) -> int | None:
    """Return the CRC-32C that a store has recorded for an object, or None."""
    return remote.objects.object_crc(path) if is_url(path) else None


def map_paths(
    look_up: Callable[[Item], Result], items: Iterable[Item], path_of: Callable[[Item], str] = str
) -> Iterator[Result]:
    """Yield `look_up(item)` for each item, in order. If any path is a URL, the calls run in parallel threads."""
    items = list(items)
    return imap_requests(look_up, items) if any(is_url(path_of(item)) for item in items) else map(look_up, items)


def dangling_target(path: str) -> str | None:
    """Return the target of a broken symbolic link, or None for any other path."""
    try:
        return None if os.path.exists(path) else os.readlink(path)
    except (OSError, ValueError):
        return None


def is_folder(path: str) -> bool:
    """Return whether a path is a folder. An address is a folder if a store has objects below it."""
    if not is_url(path) or is_web(path):
        return not is_url(path) and os.path.isdir(path)
    # a store lists the first objects below an address with one request, but all names in a folder with many
    entries = iter_objects(path) if parse_address(path).scheme in address.STORES else list_folder(path)
    return any(True for _ in entries)


def list_folder(folder: str) -> list[str]:
    """Return the names of the entries of a folder, unsorted."""
    if is_url(folder):
        return [entry.name for entry in _list_remote(folder)]
    try:
        return os.listdir(folder or ".")
    except OSError as error:
        if not isinstance(error, PermissionError):  # files may be readable in a folder that cannot be listed
            raise_if_machine_error(error, folder or ".")
        raise


def list_folder_names(folder: str, *, needed: bool = False) -> list[str]:
    """Return the sorted names in a folder, or an empty list if the folder cannot be listed.

    If `needed`, raise an error if a store denies listing.
    """
    try:
        return [] if is_web(folder) else sorted(list_folder(folder))
    except OSError:
        if is_url(folder):
            raise
    except AccessRefused:
        if needed:
            raise
    return []


def list_folders(folder: str) -> list[str]:
    """Return the names of the subfolders of a folder, unsorted, without links to folders."""
    if is_url(folder):
        return [entry.name for entry in _list_remote(folder) if entry.is_folder]
    return [entry.name for entry in iter_entries(folder or ".") if entry.is_dir(follow_symlinks=False)]


def iter_entries(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a folder one by one, because there can be millions."""
    with os.scandir(folder) as entries:
        yield from entries


def iter_objects(folder: str) -> Iterator[BucketEntry]:
    """Yield all objects below an address, with keys relative to the address.

    An empty object may represent a folder. Its key is returned without the slash at its end.
    """
    prefix_length = len(parse_address(folder).key.rstrip("/"))
    for entry in _list_remote(folder, below=True):
        if relative_key := entry.key[prefix_length:].lstrip("/"):
            yield entry._replace(key=relative_key)


def _list_remote(folder: str, *, below: bool = False) -> Iterator[BucketEntry]:
    if address.is_huggingface(folder) or address.uses_fsspec(folder):
        return remote.fsspec.list_fsspec(folder, below=below)
    return remote.buckets.list_objects(folder, below=below)
