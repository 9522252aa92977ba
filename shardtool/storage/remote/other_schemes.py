"""Addresses of other schemes, such as `hf://` and `sftp://`: read through fsspec, where that is installed.

They are found, listed and read as objects of stores are; nothing is written to them. What fsspec says of versions
differs from one of its file systems to the next, and between a listing and a file: so only sizes and checksums show
that one changed.
"""

from __future__ import annotations

import functools
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from shardtool.errors import AccessRefused, StoreFailed
from shardtool.storage.remote.address import MEANT, parse_address, shown
from shardtool.storage.remote.blob import PIECE, Blob
from shardtool.storage.remote.stores import BucketEntry

if TYPE_CHECKING:
    from collections.abc import Iterator


_AT_ONCE = 4 * PIECE  # bytes asked for at a time: each of them is a call


class OtherBlob(Blob):
    """A file of a scheme that fsspec knows, as it was when this was made.

    Args:
        address: Where it is.

    Raises:
        FileNotFoundError: There is no such file.
        AccessRefused: We may not read it.
        StoreFailed: fsspec fails.
    """

    def __init__(self, address: str) -> None:
        self.address, self._where, self.ranges = address, shown(address), True
        with _failures(address):
            files, path = _files(address)
            found = files.info(path)
        if found["type"] != "file" or found["size"] is None:
            raise FileNotFoundError(2, "no such file", self._where)
        self.size, self._seen = int(found["size"]), dict[str, str]()

    def _pieces(self, offset: int, end: int, most: int) -> Iterator[bytes]:
        """Yield the bytes of a range, `most` at a time."""
        while offset < end:
            wanted = min(max(most, _AT_ONCE), end - offset)
            with _failures(self.address):
                files, path = _files(self.address)
                piece = bytes(files.cat_file(path, start=offset, end=offset + wanted))
            if len(piece) != wanted:
                raise StoreFailed(self._where, f"{len(piece):,} bytes at {offset:,}", expected=f"{wanted:,}")
            yield piece
            offset += wanted


def listed(address: str, *, below: bool = False) -> Iterator[BucketEntry]:
    """Yield what lies directly in a folder, or with `below` all at any depth; as `stores.listed` does.

    Raises:
        AccessRefused: We may not list it.
        StoreFailed: It fails.
    """
    with _failures(address):
        files, path = _files(address)
        root = str(files._strip_protocol(address)).strip("/")  # noqa: SLF001 - fsspec's own way to say what it lists
        found = files.find(path, detail=True).values() if below else files.ls(path, detail=True)
    key = parse_address(address).key.rstrip("/")
    for one in sorted(found, key=lambda one: str(one["name"])):
        name = str(one["name"]).strip("/")[len(root) :].strip("/")
        size = -1 if one["type"] == "directory" else int(one["size"] or 0)
        if name:
            yield BucketEntry(f"{key}/{name}" if key else name, size, 0, 0)


def _files(address: str) -> tuple[Any, str]:
    return _file_system(address.partition("://")[0], parse_address(address).host, os.getpid()), address


@functools.lru_cache(maxsize=16)
def _file_system(scheme: str, host: str, _pid: int) -> Any:
    """Return fsspec's object, made anew in each process: those that ask asynchronously do not survive a fork."""
    from fsspec.core import url_to_fs

    return url_to_fs(f"{scheme}://{host}/", skip_instance_cache=True)[0]


@contextmanager
def _failures(address: str) -> Iterator[None]:
    """Turn what fsspec and its many file systems say, which may hold secrets, into our errors."""
    where = shown(address)
    try:
        yield
    except MemoryError:
        raise
    except FileNotFoundError:
        raise FileNotFoundError(2, "no such file", where) from None
    except PermissionError:
        raise AccessRefused(where, "not allowed", remedy="Check the credentials and the permissions.") from None
    except ImportError:
        from fsspec.registry import known_implementations

        scheme = parse_address(address).scheme
        remedy = f"{known_implementations.get(scheme, {}).get('err', 'See what fsspec wants for it')}."
        if scheme in MEANT:
            remedy = f"Write {MEANT[scheme]}:// instead, which needs no other library."
        raise StoreFailed(where, f"what reads {scheme}:// is not installed", remedy=remedy) from None
    except Exception as error:  # noqa: BLE001 - each of fsspec's file systems has errors of its own
        raise StoreFailed(where, f"fsspec fails ({type(error).__name__})") from None
