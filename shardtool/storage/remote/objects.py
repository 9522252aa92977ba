"""Read an object at any offset, always from the same version.

Each range is one request. The answer must have the requested range and the version of the first answer. A response
that is cut off is continued by another request. An object has no read position, so several threads may read it at
once. Neighbouring ranges are read with one request, and large ranges with several.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os  # noqa: TC003 - the alias below is a value
import re
from contextlib import closing
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from shardtool.errors import StoreFailed
from shardtool.storage.remote import retry
from shardtool.storage.remote.address import (
    display_address,
    is_huggingface,
    parse_address,
    uses_fsspec,
)
from shardtool.storage.remote.buckets import version_number
from shardtool.storage.remote.fsspec import call_fsspec, cat_file
from shardtool.storage.remote.http import (
    PIECE_BYTES,
    HuggingFaceLink,
    content_length,
    discard_response,
    google_hashes,
    iter_body,
    object_md5,
    request_object,
)
from shardtool.storage.remote.requests import ordered_results, request_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import urllib3


_MAX_SINGLE_READ_BYTES = 2**24  # bytes that are read as one: a join of pieces would copy them


_CONTENT_RANGE = re.compile(
    r"bytes (?:([0-9]{1,18})-(-?[0-9]{1,18})|\*)/([0-9]{1,18})"
)  # of an empty blob azurite says 0--1/0


class RemoteObject:
    """An object in a store or behind HTTP, as it was when this was made.

    Args:
        address: Where it is.
        size: Bytes that it must have: nothing is asked for then before the first read; None: not known.

    Attributes:
        address: Where it is.
        size: Its bytes.
        version: Its ETag; empty where the server gives none, or nothing was asked for yet.
        ranges: Whether the server gives parts of it, as far as that is known.
        md5: Of all of it, as the store said last; None: it says none, or nothing was read yet.

    Raises:
        FileNotFoundError: There is no such object.
        AccessRefused: We may not read it.
        StoreFailed: The server fails time and again.
    """

    md5: str | None = None

    def __init__(self, address: str, size: int | None = None) -> None:
        self.address, self._where, self._links = address, display_address(address), list[HuggingFaceLink]()
        self._seen = dict[str, str]()  # the first answer's ETag: who sets it first, of several threads, wins
        if size is None:
            self.size, self._seen["version"], self.ranges = retry.with_retries(self._where, self._look)
        else:
            self.size, self.ranges = size, True

    @property
    def version(self) -> str:
        """Its ETag; empty where the server gives none, or nothing was asked for yet."""
        return self._seen.get("version", "")

    def fact(self) -> ObjectInfo:
        """Return what is known of it."""
        return ObjectInfo(self.size, version_number(self.version))

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset` on: fewer only at the end of the object.

        Raises:
            OSError: It is another one by now, or it is gone.
            AccessRefused: We may not read it any more.
            StoreFailed: The server fails time and again, or knows no ranges.
        """
        pieces = list(self._pieces(offset, min(self.size, offset + length), _MAX_SINGLE_READ_BYTES))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def pieces(self) -> Iterator[bytes]:
        """Yield all bytes, some MB at a time at most, by one request where nothing fails.

        Raises:
            OSError: It is another one by now, or it is gone.
            AccessRefused: We may not read it any more.
            StoreFailed: The server fails time and again, or knows no ranges.
        """
        return self._pieces(0, self.size, PIECE_BYTES)

    def _pieces(self, offset: int, end: int, most: int) -> Iterator[bytes]:
        """Yield the bytes of a range, `most` at a time."""
        attempts = retry.RetryState(self._where)
        while offset < end:
            try:
                for piece in iter_body(self._opened(offset, end), self.address, end - offset, most):
                    offset += len(piece)
                    yield piece
                    attempts.progress()  # now, so that the caller's own work is not counted as a stall
            except retry.TransientError as error:
                self._links.clear()
                attempts.failed(error)

    def verified_pieces(self) -> Iterator[bytes]:
        """Yield all bytes as `pieces` does; at the end they are compared with what the store says of them.

        Raises:
            OSError: It is another one by now, it is gone, or has other bytes than the store says.
            AccessRefused: We may not read it any more.
            StoreFailed: The server fails time and again, or knows no ranges.
        """
        md5 = hashlib.md5(usedforsecurity=False)
        for piece in self.pieces():
            md5.update(piece)
            yield piece
        if self.md5 is not None:
            _check_md5(self.address, self.md5, md5)

    def _look(self) -> tuple[int, str, bool]:
        """Return the size, the version, and whether ranges can be had: by its first byte, for HEAD may be forbidden."""
        answer = request_object(self.address, {"Range": "bytes=0-0"}, self._links)
        if answer.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            discard_response(answer)
            answer = request_object(self.address)  # an empty object, where not all servers say so
        discard_response(answer)
        version = answer.headers.get("ETag", "")
        if "Content-Range" in answer.headers:
            if where := _CONTENT_RANGE.fullmatch(answer.headers["Content-Range"]):
                return int(where[3]), version, True
            raise StoreFailed(self._where, "an answer that does not say which range it is")
        _check_unencoded(answer, self._where)
        return _require_length(answer, self._where), version, False

    def _opened(self, offset: int, end: int) -> urllib3.BaseHTTPResponse:
        """Return the answer to a request for a range, checked; its body is not read yet."""
        whole = offset == 0 and end == self.size
        if not self.ranges and not whole:
            raise self._whole_only()
        headers = {"Range": f"bytes={offset}-{end - 1}"} if self.ranges else {}
        is_asked_for = not is_huggingface(self.address)  # where the Hub leads to, the ETag is another one
        if is_asked_for and self.version and not self.version.startswith("W/"):
            headers["If-Match"] = self.version
        try:
            answer = request_object(self.address, headers, self._links)
        except FileExistsError:
            raise OSError(errno.ESTALE, "changed while it was read", self._where) from None
        try:
            self._check(answer, offset, end)
        except BaseException:
            answer.close()
            raise
        return answer

    def _check(self, answer: urllib3.BaseHTTPResponse, offset: int, end: int) -> None:
        _check_unencoded(answer, self._where)
        said = answer.headers.get("Content-Range", "")  # with 206; rclone's server says 200
        if answer.status == HTTPStatus.OK and not said:
            if offset or end < self.size:
                raise self._whole_only()
            self.ranges, found = False, None
            size = _require_length(answer, self._where)
        else:
            found = _CONTENT_RANGE.fullmatch(said)
            size = int(found[3]) if found else self.size
        tag = answer.headers.get("ETag", "")
        if size != self.size and "version" not in self._seen:
            raise OSError(errno.ESTALE, f"{size:,} bytes, where {self.size:,} were expected", self._where)
        if size != self.size or self._seen.setdefault("version", tag) != tag:
            raise OSError(errno.ESTALE, "changed while it was read", self._where)
        self.md5 = object_md5(self.address, answer.headers)
        asked = f"bytes {offset}-{end - 1}/{self.size}"
        if self.ranges and said != asked:
            raise StoreFailed(self._where, f"the status {answer.status}, {said[:60] or 'no range'}", expected=asked)
        if (length := answer.headers.get("Content-Length", str(end - offset))) != str(end - offset):
            what = f"an answer of {length[:20]} bytes, where {end - offset:,} were asked for"
            raise StoreFailed(self._where, what)

    def _whole_only(self) -> StoreFailed:
        return StoreFailed(
            self._where, "the server gives whole files only", expected="ranges (HTTP Range requests)",
            remedy="Copy the files first: `shardtool copy`.",
        )  # fmt: skip


class ObjectInfo(NamedTuple):
    """What a server says of an object, under the names by which `os.stat_result` has it of a file.

    What lists a source notes which version of each object it saw; who reads it compares, so that nothing that was
    changed meanwhile is taken for it.

    Attributes:
        st_size: Bytes.
        st_mtime_ns: Its version, as a number: see `version_number`.
        st_ctime_ns: Always 0: a version shows every change.
    """

    st_size: int
    st_mtime_ns: int
    st_ctime_ns: int = 0


FileInfo: TypeAlias = "os.stat_result | ObjectInfo"  # of a local file, or of an object


def read_object(address: str, wanted: Callable[[int], object]) -> tuple[bytes, ObjectInfo]:
    """Return an object, by one request where nothing fails, and what the server says of it.

    Args:
        address: Where it is.
        wanted: Gets its size, and raises what is wrong with that; where it returns False, nothing is read.

    Raises:
        FileNotFoundError: There is no such object.
        OSError: It has other bytes than the store says.
        AccessRefused: We may not read it.
        StoreFailed: The server fails time and again.
    """

    def of_blob(blob: RemoteObject) -> tuple[bytes, ObjectInfo]:
        return b"" if wanted(blob.size) is False else blob.read(0, blob.size), blob.fact()

    def once() -> tuple[bytes, ObjectInfo]:
        with closing(request_object(address)) as answer:
            length = content_length(answer)
            if length is None or "Content-Encoding" in answer.headers:
                return of_blob(RemoteObject(address))  # which says what is wrong
            fact = ObjectInfo(length, version_number(answer.headers.get("ETag", "")))
            if wanted(length) is False:
                return b"", fact
            data = b"".join(iter_body(answer, address, length, length))
        if (md5 := object_md5(address, answer.headers)) is not None:
            _check_md5(address, md5, hashlib.md5(data, usedforsecurity=False))
        return data, fact

    return (
        of_blob(FsspecObject(address)) if uses_fsspec(address) else retry.with_retries(display_address(address), once)
    )


def read_object_end(address: str, limit: int) -> bytes:
    """Return the last bytes of an object, by one request where nothing fails.

    Raises:
        FileNotFoundError: There is no such object.
        AccessRefused: We may not read it.
        StoreFailed: The server fails time and again.
    """

    def of_blob(blob: RemoteObject) -> bytes:
        return blob.read(max(0, blob.size - limit) if blob.ranges else 0, blob.size)[-limit:]

    def once() -> bytes:
        with closing(request_object(address, {"Range": f"bytes=-{limit}"})) as answer:
            found = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
            _check_unencoded(answer, display_address(address))
            if found is None or found[1] is None:
                return of_blob(RemoteObject(address))
            start, end, size = map(int, found.groups())
            if end != size - 1 or start != max(0, size - limit):
                raise StoreFailed(
                    display_address(address), f"the range {found[0]}", expected=f"the last {limit:,} bytes"
                )
            return b"".join(iter_body(answer, address, end + 1 - start))

    return (
        of_blob(FsspecObject(address)) if uses_fsspec(address) else retry.with_retries(display_address(address), once)
    )


def _require_length(answer: urllib3.BaseHTTPResponse, where: str) -> int:
    if (length := content_length(answer)) is None:
        raise StoreFailed(where, "the server does not say how large it is")
    return length


def _check_unencoded(answer: urllib3.BaseHTTPResponse, where: str) -> None:
    if (packed := answer.headers.get("Content-Encoding", "identity")) != "identity":
        raise StoreFailed(where, f"the server packs it on the way ({packed})", expected="the file as it is")


def _check_md5(address: str, md5: str, read: Any) -> None:
    """See that what was read is what the store once took.

    Raises:
        OSError: It is not.
    """
    if read.hexdigest() != md5:
        found = f"bytes with the MD5 {read.hexdigest()}, where the store says {md5}"
        raise OSError(errno.EBADMSG, found, display_address(address))


def object_crc(address: str) -> int | None:
    """Return the CRC-32C of an object that its store says, without reading it; None: it says none. Google's store does.

    Raises:
        FileNotFoundError: There is no such object.
        StoreFailed: The store fails, or does not let us.
    """
    if parse_address(address).scheme != "gs":
        return None
    answer = retry.with_retries(display_address(address), lambda: request_object(address, {"Range": "bytes=0-0"}))
    discard_response(answer)
    given = google_hashes(answer.headers).get("crc32c", "")
    try:
        return int.from_bytes(base64.b64decode(given, validate=True), "big") if given else None
    except ValueError:
        return None


MAX_GAP_BYTES = 2**16  # bytes that are read for nothing, rather than in a request of their own


_MAX_REQUEST_BYTES = 2**22  # bytes of one request


_MAX_REQUESTS_AHEAD = 16  # requests of one caller that run, or whose answers wait to be taken


def read_ranges(blob: RemoteObject, offsets: Sequence[int], lengths: Sequence[int]) -> Iterator[bytes]:
    """Yield the bytes at some places, fewer only at the end of the object; places in its order cost the least.

    Raises:
        OSError: It is another one by now, or it is gone.
        AccessRefused: We may not read it.
        StoreFailed: The server fails time and again, or knows no ranges.
    """
    spans = _merge_ranges(offsets, lengths)
    cut = [
        (at, min(end, at + _MAX_REQUEST_BYTES))
        for start, end, _ in spans
        for at in (range(start, end, _MAX_REQUEST_BYTES) if end > start else (start,))
    ]

    def read(part: tuple[int, int]) -> bytes:
        return blob.read(part[0], part[1] - part[0])

    parts = ordered_results(request_threads(), read, cut, _MAX_REQUESTS_AHEAD) if len(cut) > 1 else map(read, cut)
    place = 0
    for start, end, count in spans:
        pieces = [next(parts) for _ in range(start, max(end, start + 1), _MAX_REQUEST_BYTES)]
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        for at in range(place, place + count):
            first = offsets[at] - start
            yield data if not first and lengths[at] == len(data) else data[first : first + lengths[at]]
        place += count


def _merge_ranges(offsets: Sequence[int], lengths: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return what is read as one: where it starts and ends, and how many places lie in it."""
    spans: list[tuple[int, int, int]] = []
    for offset, length in zip(offsets, lengths, strict=True):
        if spans:
            start, end, count = spans[-1]
            if start <= offset <= end + MAX_GAP_BYTES and max(end, offset + length) - start <= _MAX_REQUEST_BYTES:
                spans[-1] = start, max(end, offset + length), count + 1
                continue
        spans.append((offset, offset + length, 1))
    return spans


_FSSPEC_READ_BYTES = 4 * PIECE_BYTES  # bytes asked for at a time: each of them is a call


class FsspecObject(RemoteObject):
    """A file of a scheme that fsspec knows, as it was when this was made.

    Args:
        address: Where it is.

    Raises:
        FileNotFoundError: There is no such file.
        AccessRefused: We may not read it.
        StoreFailed: fsspec fails.
    """

    def __init__(self, address: str) -> None:
        address = parse_address(address).text()  # its scheme in small letters: fsspec knows no others
        self.address, self._where, self.ranges = address, display_address(address), True
        found = call_fsspec(address, lambda files: files.info(address))
        if found["type"] != "file" or found["size"] is None:
            raise FileNotFoundError(2, "no such file", self._where)
        self.size, self._seen = int(found["size"]), dict[str, str]()

    def _pieces(self, offset: int, end: int, most: int) -> Iterator[bytes]:
        """Yield the bytes of a range, `most` at a time."""
        while offset < end:
            wanted = min(max(most, _FSSPEC_READ_BYTES), end - offset)
            span = {"start": offset, "end": offset + wanted}
            piece = bytes(call_fsspec(self.address, partial(cat_file, self.address, span)))
            if len(piece) != wanted:
                raise StoreFailed(self._where, f"{len(piece):,} bytes at {offset:,}", expected=f"{wanted:,}")
            yield piece
            offset += wanted


def open_remote(address: str, size: int | None = None) -> RemoteObject:
    """Return an object at an address, to be read at any place.

    Args:
        address: Where it is.
        size: Bytes that it must have, where that is known: nothing is asked for then before the first read.

    Raises:
        OSError: It is not there.
        ShardError: It cannot be read.
    """
    return FsspecObject(address) if uses_fsspec(address) else RemoteObject(address, size)
