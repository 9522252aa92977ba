"""Look up files and objects: sizes, types, listings.

Local and remote locations use the same functions. Many remote lookups run at once.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from shardtool.errors import AccessRefused, raise_if_machine_error
from shardtool.names import to_bytes
from shardtool.storage.paths import base_name, folder_of, is_address, source_address
from shardtool.storage.remote import address, buckets, fsspec, objects
from shardtool.storage.remote.address import is_url, is_web, parse_address
from shardtool.storage.remote.objects import FileInfo, open_remote
from shardtool.storage.remote.requests import imap_requests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


Item = TypeVar("Item")


Result = TypeVar("Result")


_MAX_SINGLE_LOOKUPS = 4  # files that are asked for one by one, and not by a listing


def stat_file(path: str) -> os.stat_result:
    """Return what the file system says of what a path leads to.

    Raises:
        OSError: It leads to nothing, or nowhere that we may look.
    """
    return os.stat(path)


def file_info(path: str | bytes) -> FileInfo:
    """Return what the file system says of what a path leads to, or a server of an object.

    Raises:
        OSError: It leads to nothing, or nowhere that we may look.
        ShardError: A store or a server cannot be asked.
    """
    place = to_bytes(path) if isinstance(path, str) else path
    return open_remote(source_address(place)).fact() if is_address(place) else os.stat(path)


def is_file(path: str) -> bool:
    """Tell whether a path or an address leads to a plain file."""
    return plain_size(path) is not None


def is_regular(path: str) -> bool:
    """Return whether a local path is a regular file, and no link to one."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def plain_size(path: str) -> int | None:
    """Return the bytes of the plain file that a path or an address leads to; None where it leads to none.

    Raises:
        ShardError: The machine cannot tell, or a store or a server cannot be asked.
    """
    try:
        if is_url(path):
            return open_remote(path).size
        fact = os.stat(path)
    except (OSError, ValueError) as error:
        if is_url(path) and not isinstance(error, FileNotFoundError):
            raise
        raise_if_machine_error(error, path)
        return None
    return fact.st_size if stat.S_ISREG(fact.st_mode) else None


def plain_sizes(paths: Iterable[str]) -> list[int | None]:
    """Return the same for many: those in one folder of a store by a listing, others elsewhere at once.

    Raises:
        ShardError: A store or a server cannot be asked.
    """
    paths = list(paths)
    folders = {folder_of(path) for path in paths}
    if (
        len(paths) > _MAX_SINGLE_LOOKUPS
        and len(folders) == 1
        and is_url(folder := folders.pop())
        and not is_web(folder)
    ):
        with suppress(AccessRefused):  # who may read may not be allowed to list
            sizes = {one.name: one.size for one in _list_remote(folder) if not one.is_folder}
            return [sizes.get(base_name(path)) for path in paths]
    return list(map_paths(plain_size, paths))


def recorded_crc(path: str) -> int | None:
    """Return the CRC-32C of an object as its store says it, without reading it; None: no store says it.

    Raises:
        OSError: It is not there.
        ShardError: A store cannot be asked.
    """
    return objects.object_crc(path) if is_url(path) else None


def map_paths(
    ask: Callable[[Item], Result], items: Iterable[Item], path_of: Callable[[Item], str] = str
) -> Iterator[Result]:
    """Yield what `ask` returns for each item, in order; many are asked for at once where their paths lead elsewhere."""
    items = list(items)
    return imap_requests(ask, items) if any(is_url(path_of(one)) for one in items) else map(ask, items)


def dangling_target(path: str) -> str | None:
    """Return where a link leads that leads to nothing; None: it is no such link."""
    try:
        return None if os.path.exists(path) else os.readlink(path)
    except (OSError, ValueError):
        return None


def is_folder(path: str) -> bool:
    """Tell whether a path leads to a folder, or whether a store has something below an address.

    Raises:
        ShardError: A store cannot be asked.
    """
    return not is_web(path) and bool(list_folder(path)) if is_url(path) else os.path.isdir(path)


def list_folder(folder: str) -> list[str]:
    """Return the names of all that lies directly in a folder, in no order; "" is the current one.

    Raises:
        OSError: It cannot be listed.
        ShardError: The machine has no means to, a store cannot be asked, or it is an address of the web, where nothing
            is listed.
    """
    if is_url(folder):
        return [one.name for one in _list_remote(folder)]
    try:
        return os.listdir(folder or ".")
    except OSError as error:
        if not isinstance(error, PermissionError):  # one who may read a file need not be allowed to list
            raise_if_machine_error(error, folder or ".")
        raise


def list_folder_names(folder: str, *, needed: bool = False) -> list[str]:
    """Return the sorted names of all that lies in a folder; none where it cannot be listed, as on the web.

    Args:
        folder: The folder.
        needed: Nothing can be said without them: a store that does not let us list is an error.

    Raises:
        ShardError: A store cannot be asked.
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
    """Return the names of the folders in a folder, in no order; not of links.

    Raises:
        OSError: It cannot be listed.
        ShardError: A store cannot be asked.
    """
    if is_url(folder):
        return [one.name for one in _list_remote(folder) if one.is_folder]
    return [one.name for one in iter_entries(folder or ".") if one.is_dir(follow_symlinks=False)]


def iter_entries(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yield what lies in a folder of the file system, which may be millions of files, no further than it is asked for.

    Raises:
        OSError: It cannot be listed.
    """
    with os.scandir(folder) as entries:
        yield from entries


def iter_objects(folder: str) -> Iterator[buckets.BucketEntry]:
    """Yield the objects below an address, at any depth, in the store's order; their keys count from there.

    Folders are none, but an empty object that stands for one is there, without the slash at its end.

    Raises:
        ShardError: The store cannot be asked, or it is an address of the web, where nothing is listed.
    """
    above = len(parse_address(folder).key.rstrip("/"))
    for one in _list_remote(folder, below=True):
        if path := one.key[above:].lstrip("/"):
            yield one._replace(key=path)


def _list_remote(folder: str, *, below: bool = False) -> Iterator[buckets.BucketEntry]:
    ask = fsspec.list_fsspec if address.is_huggingface(folder) or address.uses_fsspec(folder) else buckets.list_objects
    return ask(folder, below=below)
