"""The files of a source, wherever they lie: below a folder, in a store, on the web.

Paths are bytes here, as those of file systems are: what paths count from (`source_root`), and a path behind it. For a
file each function is that of `storage.reading`.
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, NamedTuple

from shardtool.storage import other_schemes, reading
from shardtool.storage.other_schemes import listed
from shardtool.storage.places import is_url, is_web, open_blob
from shardtool.storage.remote import address
from shardtool.storage.remote.blob import ObjectFact, together, version_number
from shardtool.values import to_bytes, to_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from typing_extensions import Buffer

    from shardtool.storage.remote.blob import Blob

    FileFact = os.stat_result | ObjectFact


# An object as a file that is read at any place, for libraries that want one: pyarrow, zipfile.


class BlobFile(io.RawIOBase):
    """An object; each read is a request.

    Args:
        blob: The object.
    """

    def __init__(self, blob: Blob) -> None:
        self._blob, self._at = blob, 0

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def seekable(self) -> bool:
        """Tell that it can be read at any place."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to a place; return it."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._blob.size}[whence]
        return self._at

    def readinto(self, into: Buffer, /) -> int:
        """Fill `into`; return how much there was.

        Raises:
            OSError: It is another object by now, or it is gone.
            ShardError: The server refuses, or fails.
        """
        got = self._blob.read_into(memoryview(into).cast("B"), self._at)
        self._at += got
        return got


at_once = together  # many requests, and their answers in order
_READ_AHEAD = 2**20  # bytes
_HELD = 2**30  # at most, of an object that its server gives whole only


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


def check_scheme(where: str) -> None:
    """Check that an address is of a scheme that is known, and names a bucket or a server.

    Raises:
        InvalidRequest: It is not, or does not.
    """
    address.parse_address(where)


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


def source_root(folder: str) -> bytes:
    """Return what paths of a source's files count from: put before a path, it gives what `read_file` reads.

    Of a folder or a prefix it ends in a slash. An address of the web may end in a query, and has its names encoded: so
    what counts from there stands behind a `#`, which ends such an address.
    """
    root = to_bytes(folder)
    return root + b"#" if is_web(folder) else root.rstrip(b"/") + b"/"


def identity(root: bytes) -> str:
    """Return what tells a source from any other: of a folder, what its path leads to now; of an address, itself."""
    return to_text(root) if is_place(root) else reading.identity(root)


def inside(folder: str, root: bytes) -> bytes | None:
    """Return where an output folder lies below a source: empty, or a path ending in a slash; None: elsewhere."""
    if not is_place(root):
        return None if is_url(folder) else reading.inside(folder, root)
    below = to_bytes(folder).rstrip(b"/") + b"/"
    return below[len(root) :] if below.startswith(root) else None


def is_place(path: bytes) -> bool:
    """Tell whether the path of a source's file is an address."""
    return b"://" in path and is_url(to_text(path))


def address_of(path: bytes) -> str:
    """Return the address of a source's file."""
    text = to_text(path)
    folder, mark, below = text.partition("#") if is_web(text) else (text, "", "")
    return address.join(folder, below) if mark else folder


def object_fact(path: bytes) -> ObjectFact:
    """Return what is known of a source's object.

    Raises:
        OSError: It is not there.
        ShardError: A store or a server cannot be asked.
    """
    blob = open_blob(address_of(path))
    return ObjectFact(blob.size, version_number(blob.version))


def read_file(path: bytes, into: memoryview, flags: int) -> tuple[int, FileFact]:
    """Fill `into` from the start of a file; see `storage.reading.read_file`. Of an object the facts hold its version.

    Raises:
        OSError: It cannot be opened or read.
        ShardError: A store or a server cannot be asked.
    """
    return other_schemes.read_file(address_of(path), into) if is_place(path) else reading.read_file(path, into, flags)


def read_blocks(path: bytes, into: memoryview, flags: int) -> Iterator[int | FileFact]:
    """Read a file of any size block by block; see `storage.reading.read_blocks`.

    Raises:
        OSError: It cannot be opened or read.
        ShardError: A store or a server cannot be asked.
    """
    return (
        other_schemes.read_blocks(address_of(path), into) if is_place(path) else reading.read_blocks(path, into, flags)
    )


def open_object(where: str) -> BinaryIO:
    """Return an object at an address as a file; what is read of it is asked for then, some at a time.

    Raises:
        OSError: It is not there.
        ShardError: It cannot be read.
    """
    blob = open_blob(where)
    if not blob.ranges and blob.size <= _HELD:
        return io.BytesIO(blob.read(0, blob.size))
    return io.BufferedReader(BlobFile(blob), _READ_AHEAD)
