"""Objects that are read whole, as the payloads of samples are: by one request each where nothing fails.

What lists a source notes which version of each object it saw; who reads it compares, so that nothing that was changed
meanwhile is taken for it.
"""

from __future__ import annotations

import errno
import hashlib
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from shardtool.errors import StoreFailed
from shardtool.storage.remote.address import shown
from shardtool.storage.remote.client import body_of, length_of, object_md5, send
from shardtool.storage.remote.retry import retried

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.storage.remote.blob import Blob


class ObjectFact(NamedTuple):
    """What a server says of an object, under the names by which `os.stat_result` has it of a file.

    Attributes:
        st_size: Bytes.
        st_mtime_ns: Its version, as a number: see `version_number`.
    """

    st_size: int
    st_mtime_ns: int


def version_number(etag: str) -> int:
    """Return an ETag as a number of 63 bits, the same from a listing and from an answer; 0 where there is none."""
    tag = etag.removeprefix("W/").strip('"')  # Azure's listing has no quotes
    return int.from_bytes(blake2b(tag.encode(), digest_size=8).digest(), "little") >> 1 if tag else 0


def read_object(address: str, into: memoryview) -> tuple[int, ObjectFact]:
    """Fill `into` with an object; of one of another size nothing is read.

    Returns:
        How much was read, and what the server says of the object.

    Raises:
        FileNotFoundError: There is no such object.
        OSError: It has other bytes than the store says.
        AccessRefused: We may not read it.
        StoreFailed: The server fails time and again.
    """
    return retried(shown(address), lambda: _read(address, into))


def _read(address: str, into: memoryview) -> tuple[int, ObjectFact]:
    answer = send("GET", address)
    got, size = 0, length_of(answer)
    fact = ObjectFact(size or 0, version_number(answer.headers.get("ETag", "")))
    if size != len(into):
        answer.close()
        if size is None:
            raise StoreFailed(shown(address), "the server does not say how large it is")
        return 0, fact
    for piece in body_of(answer, address, size, size):
        into[got : got + len(piece)] = piece
        got += len(piece)
    if (md5 := object_md5(address, answer.headers)) is not None:
        _compare(address, md5, hashlib.md5(into, usedforsecurity=False))
    return got, fact


def _compare(address: str, md5: str, read: Any) -> None:
    """See that what was read is what the store once took.

    Raises:
        OSError: It is not.
    """
    if read.hexdigest() != md5:
        found = f"bytes with the MD5 {read.hexdigest()}, where the store says {md5}"
        raise OSError(errno.EBADMSG, found, shown(address))


def object_blocks(blob: Blob, into: memoryview) -> Iterator[int | ObjectFact]:
    """Read an object of any size block by block: fill `into`, yield the bytes that are new, and again; then its facts.

    Raises:
        OSError: It is not there, is another one by now, or has other bytes than the store says.
        AccessRefused: We may not read it.
        StoreFailed: The server fails time and again.
    """
    limit, md5 = len(into), hashlib.md5(usedforsecurity=False)
    for piece in blob.pieces():
        for first in range(0, len(piece), limit):
            block = piece[first : first + limit]
            into[: len(block)] = block
            yield len(block)
        md5.update(piece)
    if blob.md5 is not None:
        _compare(blob.address, blob.md5, md5)
    yield ObjectFact(blob.size, version_number(blob.version))
