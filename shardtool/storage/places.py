"""What is read by name, wherever it lies: a path of the file system, or an address of a store or of the web.

Those who read datasets ask here. Names are texts: `join`, `folder_of` and `base_name` take them apart and put them
together, by the rules of what they are. For a path each function is the one of `storage.reading`, or of `os.path`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from shardtool.errors import AccessRefused
from shardtool.storage import other_schemes, reading
from shardtool.storage.other_schemes import listed, read_end, read_small_object
from shardtool.storage.remote import address, output
from shardtool.storage.remote.blob import Blob, called, read_places, together
from shardtool.storage.remote.stores import use_endpoint as _use_endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["Blob", "called", "read_places"]  # as they are, for those who read shards

Item = TypeVar("Item")
Result = TypeVar("Result")
_FEW = 4  # files that are asked for one by one, and not by a listing

is_url, is_web, use_endpoint, use_headers = address.is_url, address.is_web, _use_endpoint, address.use_headers
refuse_near_url = address.refuse_near_url


def join(folder: str, name: str) -> str:
    """Return the path or address of `name`, a plain one, in a folder."""
    return address.join(folder, name) if is_url(folder) else os.path.join(folder, name)


def folder_of(path: str) -> str:
    """Return the folder that something lies in; "" is the current one."""
    return address.split(path)[0] if is_url(path) else os.path.dirname(path)


def base_name(path: str) -> str:
    """Return the plain name of something in its folder."""
    return address.split(path)[1] if is_url(path) else os.path.basename(path)


def same_place(one: str, other: str) -> bool:
    """Tell whether two texts mean one folder."""
    if is_url(one) or is_url(other):
        return one.rstrip("/") == other.rstrip("/")
    return os.path.realpath(one or ".") == os.path.realpath(other or ".")


def open_blob(where: str, size: int | None = None) -> Blob:
    """Return an object at an address, to be read at any place.

    Args:
        where: The address.
        size: Bytes that it must have, where that is known: nothing is asked for then before the first read.

    Raises:
        OSError: It is not there.
        ShardError: It cannot be read.
    """
    return other_schemes.open_blob(where, size)


def is_file(path: str) -> bool:
    """Tell whether a path or an address leads to a plain file."""
    return plain_size(path) is not None


def plain_size(path: str) -> int | None:
    """Return the bytes of the plain file that a path or an address leads to; None where it leads to none.

    Raises:
        ShardError: A store or a server cannot be asked.
    """
    if not is_url(path):
        return reading.plain_size(path)
    try:
        return open_blob(path).size
    except FileNotFoundError:
        return None


def sizes_of(folder: str, names: Iterable[str]) -> dict[str, int] | None:
    """Return the bytes of those of `names` that are plain files in a folder; of a store by one listing.

    Returns:
        Bytes by name; None: the folder is on the web, where each file must be asked for.

    Raises:
        ShardError: A store cannot be asked.
    """
    if is_web(folder):
        return None
    if is_url(folder):
        found = {one.name: one.size for one in listed(folder) if not one.is_folder}
        return {name: found[name] for name in names if name in found}
    sizes = {name: reading.plain_size(os.path.join(folder, name)) for name in names}
    return {name: size for name, size in sizes.items() if size is not None}


def stored_crc(path: str) -> int | None:
    """Return the CRC-32C of an object as its store says it, without reading it; None: no store says it.

    Raises:
        OSError: It is not there.
        ShardError: A store cannot be asked.
    """
    return output.stored_crc(path) if is_url(path) and not other_schemes.is_other(path) else None


def plain_sizes(paths: Iterable[str]) -> list[int | None]:
    """Return the same for many: those in one folder of a store by a listing, others elsewhere at once.

    Raises:
        ShardError: A store or a server cannot be asked.
    """
    paths = list(paths)
    folders = {folder_of(path) for path in paths}
    if len(paths) > _FEW and len(folders) == 1 and is_url(folder := folders.pop()) and not is_web(folder):
        with suppress(AccessRefused):  # who may read may not be allowed to list
            sizes = sizes_of(folder, map(base_name, paths)) or {}
            return [sizes.get(base_name(path)) for path in paths]
    return list(for_each(plain_size, paths))


def for_each(
    ask: Callable[[Item], Result], items: Iterable[Item], path_of: Callable[[Item], str] = str
) -> Iterator[Result]:
    """Yield what `ask` returns for each item, in order; many are asked for at once where their paths lead elsewhere."""
    items = list(items)
    return together(ask, items) if any(is_url(path_of(one)) for one in items) else map(ask, items)


def is_folder(path: str) -> bool:
    """Tell whether a path leads to a folder, or whether a store has something below an address.

    Raises:
        ShardError: A store cannot be asked.
    """
    if not is_url(path):
        return os.path.isdir(path)
    return not is_web(path) and bool(list_folder(path))


def list_folder(folder: str) -> list[str]:
    """Return the names of all that lies directly in a folder, in no order; "" is the current one.

    Raises:
        OSError: It cannot be listed.
        ShardError: A store cannot be asked, or it is an address of the web, where nothing is listed.
    """
    if not is_url(folder):
        return reading.list_folder(folder)
    return [one.name for one in listed(folder)]


def names_in(folder: str, *, needed: bool = False) -> list[str]:
    """Return the sorted names of all that lies in a folder; none where it cannot be listed, as on the web.

    Args:
        folder: The folder.
        needed: Nothing can be said without them: a store that does not let us list is an error.

    Raises:
        ShardError: A store cannot be asked.
    """
    if not is_url(folder):
        return reading.names_in(folder)
    try:
        return [] if is_web(folder) else sorted(list_folder(folder))
    except AccessRefused:
        if needed:
            raise
        return []


def folders_in(folder: str) -> list[str]:
    """Return the names of the folders in a folder, in no order; not of links.

    Raises:
        OSError: It cannot be listed.
        ShardError: A store cannot be asked.
    """
    if not is_url(folder):
        return [one.name for one in reading.entries_in(folder or ".") if one.is_dir(follow_symlinks=False)]
    return [one.name for one in listed(folder) if one.is_folder]


def read_small(path: str, limit: int = 2**30, *, ending: bytes = b"") -> bytes:
    """Return a whole file that must be small; see `storage.reading.read_small`.

    Raises:
        OSError: It cannot be read, or is too large.
        ShardError: A store or a server cannot be asked.
    """
    if not is_url(path):
        return reading.read_small(path, limit, ending=ending)
    return read_small_object(
        path,
        lambda size: reading.check_small(address.shown(path), size, limit, lambda: read_end(path, len(ending)), ending),
    )


def read_beside(path: str) -> bytes | None:
    """Return a small file that may be there; None where it cannot be read, or a store says that we may not.

    That it says also of what is not there, to those who may read and not list.

    Raises:
        ShardError: A store or a server fails.
    """
    try:
        return read_small(path)
    except (OSError, AccessRefused):
        return None


def read_head(path: str, limit: int) -> tuple[bytes, int]:
    """Return the first bytes of a file, and how many it has.

    Raises:
        OSError: It cannot be read.
        ShardError: A store or a server cannot be asked.
    """
    if not is_url(path):
        return reading.read_head(path, limit)
    blob = open_blob(path)
    return blob.read(0, limit), blob.size


def read_tail(path: str, limit: int) -> bytes:
    """Return the last bytes of a file.

    Raises:
        OSError: It cannot be read.
        ShardError: A store or a server cannot be asked.
    """
    if not is_url(path):
        return reading.read_tail(path, limit)
    return read_end(path, limit)
