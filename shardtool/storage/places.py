"""What is read by name, wherever it lies: a path of the file system, or an address of a store or of the web.

Those who read datasets ask here. Names are texts: `join`, `folder_of` and `base_name` take them apart and put them
together, by the rules of what they are. For a path each function is the one of `storage.reading`, or of `os.path`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from shardtool.storage import reading
from shardtool.storage.remote import address
from shardtool.storage.remote.blob import Blob
from shardtool.storage.remote.objects import listed
from shardtool.storage.remote.whole import ObjectFact, object_blocks, read_object, version_number

if TYPE_CHECKING:
    from collections.abc import Iterator

    FileFact = os.stat_result | ObjectFact

is_url, is_web = address.is_url, address.is_web


def join(folder: str, name: str) -> str:
    """Return the path or address of `name`, a plain one, in a folder."""
    return address.join(folder, name) if is_url(folder) else os.path.join(folder, name)


def check_scheme(where: str) -> None:
    """Check that an address is of a scheme that is known, and names a bucket or a server.

    Raises:
        InvalidRequest: It is not, or does not.
    """
    address.parse_address(where)


def folder_of(path: str) -> str:
    """Return the folder that something lies in; "" is the current one."""
    return address.split(path)[0] if is_url(path) else os.path.dirname(path)


def base_name(path: str) -> str:
    """Return the plain name of something in its folder."""
    return address.split(path)[1] if is_url(path) else os.path.basename(path)


def open_blob(where: str) -> Blob:
    """Return an object at an address, to be read at any place.

    Raises:
        OSError: It is not there.
        ShardError: It cannot be read.
    """
    return Blob(where)


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
    prefix = address.parse_address(folder).key.rstrip("/")
    return [one.key[len(prefix) :].lstrip("/") for one in listed(folder) if one.key != prefix]


def read_small(path: str, limit: int = 2**30, *, ending: bytes = b"") -> bytes:
    """Return a whole file that must be small; see `storage.reading.read_small`.

    Raises:
        OSError: It cannot be read, or is too large.
        ShardError: A store or a server cannot be asked.
    """
    if not is_url(path):
        return reading.read_small(path, limit, ending=ending)
    blob = open_blob(path)
    reading.check_small(path, blob.size, limit, lambda: blob.read(blob.size - len(ending), len(ending)), ending)
    return blob.read(0, blob.size)


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
    blob = open_blob(path)
    return blob.read(max(0, blob.size - limit), limit)


class FoundObject(NamedTuple):
    """An object below an address.

    Attributes:
        path: Where it lies, counted from there.
        size: Bytes.
        version: Its ETag as a number, as `read_file` has it; 0 where it has none.
        changed_ns: When it was written, by the store's clock.
    """

    path: str
    size: int
    version: int
    changed_ns: int


def objects_below(folder: str) -> Iterator[FoundObject]:
    """Yield the objects below an address, at any depth, in the store's order, as they are listed.

    Folders are none, but an empty object that stands for one is there, without the slash at its end.

    Raises:
        ShardError: The store cannot be asked, or it is an address of the web, where nothing is listed.
    """
    above = len(address.parse_address(folder).key.rstrip("/"))
    for one in listed(folder, below=True):
        if path := one.key[above:].lstrip("/"):
            yield FoundObject(path, one.size, version_number(one.version), one.changed_ns)


def inside(folder: str, root: bytes) -> bytes | None:
    """Return where an output folder lies below a source: empty, or a path ending in a slash; None: elsewhere."""
    if not is_place(root):
        return None if is_url(folder) else reading.inside(folder, root)
    below = os.fsencode(folder).rstrip(b"/") + b"/"
    return below[len(root) :] if below.startswith(root) else None


def is_place(path: bytes) -> bool:
    """Tell whether the path of a source's file is an address."""
    return b"://" in path and is_url(os.fsdecode(path))


def read_file(path: bytes, into: memoryview, flags: int) -> tuple[int, FileFact]:
    """Fill `into` from the start of a file; see `storage.reading.read_file`. Of an object the facts hold its version.

    Raises:
        OSError: It cannot be opened or read.
        ShardError: A store or a server cannot be asked.
    """
    return read_object(os.fsdecode(path), into) if is_place(path) else reading.read_file(path, into, flags)


def read_blocks(path: bytes, into: memoryview, flags: int) -> Iterator[int | FileFact]:
    """Read a file of any size block by block; see `storage.reading.read_blocks`.

    Raises:
        OSError: It cannot be opened or read.
        ShardError: A store or a server cannot be asked.
    """
    return object_blocks(os.fsdecode(path), into) if is_place(path) else reading.read_blocks(path, into, flags)
