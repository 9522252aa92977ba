"""Open, read and list objects in stores, on web servers and through fsspec.

All bytes of an object come from the same version. If a response ends early, another request reads the rest.

Reading raises these errors:

- `FileNotFoundError`: The object does not exist.
- `OSError`: The object has changed, or differs from the store's checksum.
- `AccessRefused`: The store denies access.
- `StoreFailed`: The server keeps failing, or does not support ranges.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import io
import os
import re
from contextlib import AbstractContextManager, closing, suppress
from http import HTTPStatus
from operator import methodcaller
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeAlias

from shardtool.errors import StoreFailed
from shardtool.storage.remote import http, retry
from shardtool.storage.remote.address import (
    SCHEMES,
    display_address,
    is_huggingface,
    is_web,
    parse_address,
    uses_fsspec,
)
from shardtool.storage.remote.buckets import list_objects, version_number
from shardtool.storage.remote.fsspec import call_fsspec, list_fsspec
from shardtool.storage.remote.requests import ReadAheadStream, ordered_results, request_threads
from shardtool.values import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    import urllib3
    from typing_extensions import Buffer

    from shardtool.storage.remote.buckets import BucketEntry


_MAX_SINGLE_READ_BYTES = 2**24
_MAX_WHOLE_BYTES = 2**30  # limit for objects in memory, if the server does not support range requests


# Azurite sends 0--1/0 for an empty blob.
_CONTENT_RANGE = re.compile(r"bytes (?:([0-9]{1,18})-(-?[0-9]{1,18})|\*)/([0-9]{1,18})")


# While reads are sequential, each request is twice as large as the previous one.
_MIN_READ_AHEAD_BYTES, _MAX_READ_AHEAD_BYTES = 2**16, 2**21


class RemoteObject(AbstractContextManager["RemoteObject"]):
    """One version of an object in a store or on a web server. Has the same methods as `LocalFile`.

    If `size` is given, no request is sent before the first read. `read` is thread-safe. Sequential calls of `read_into`
    request the next bytes in advance.
    """

    sequential_read_bytes, random_read_bytes, max_gap_bytes = 2**22, 2**16, 2**20
    md5: str | None = None
    _window, _window_start, _request_bytes = b"", 0, 0
    _next_request: tuple[int, Future[bytes]] | None = None

    def __init__(self, address: str, size: int | None = None) -> None:
        self.address, self._where, self._links = address, display_address(address), list[http.HuggingFaceLink]()
        # The ETag of the first response, in a dict because `setdefault` is thread-safe.
        self._first_response = dict[str, str]()
        if size is None:
            self.size, self._first_response["version"], self.ranges = retry.with_retries(self.address, self._inspect)
        else:
            self.size, self.ranges = size, True

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def version(self) -> str:
        """ETag of the object, or ""."""
        return self._first_response.get("version", "")

    def stat(self) -> ObjectInfo:
        return ObjectInfo(self.size, version_number(self.version))

    def read(self, offset: int, length: int) -> bytes:
        pieces = list(self._pieces(offset, min(self.size, offset + length), _MAX_SINGLE_READ_BYTES))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def pieces(self) -> Iterator[bytes]:
        """Yield the object in pieces of at most 1 MiB."""
        return self._pieces(0, self.size, http.PIECE_BYTES)

    def _pieces(self, offset: int, end: int, max_bytes: int) -> Iterator[bytes]:
        attempts = retry.RetryState(self.address)
        while offset < end:
            try:
                for piece in http.iter_body(self._request_range(offset, end), self.address, end - offset, max_bytes):
                    offset += len(piece)
                    yield piece
                    # record progress after the yield, so the caller's own time does not count as a stall
                    attempts.record_progress()
            except retry.TransientError as error:
                self._links.clear()
                attempts.wait_or_give_up(error)

    def read_into(self, into: memoryview, offset: int) -> int:
        done = 0
        while done < len(into) and offset + done < self.size:
            start = offset + done - self._window_start
            if not 0 <= start < len(self._window):
                self._load_window(offset + done, len(into) - done)
                start = 0
            piece = self._window[start : start + len(into) - done]
            into[done : done + len(piece)] = piece
            done += len(piece)
        return done

    def read_parts(self, parts: list[memoryview], offset: int, total: int) -> int:
        done = 0
        for part in parts:
            done += self.read_into(part, offset + done)
        return min(done, total)

    def blocks(self, _into: memoryview) -> Iterator[memoryview]:
        """Yield the whole object. At the end, verify the MD5 that the store reports."""
        md5 = hashlib.md5(usedforsecurity=False)
        for piece in self.pieces():
            md5.update(piece)
            yield memoryview(piece)
        if self.md5 is not None:
            _check_md5(self.address, self.md5, md5)

    def stream(self) -> io.BufferedReader:
        return io.BufferedReader(ReadAheadStream(self.pieces), self.sequential_read_bytes)

    def expect_random_reads(self) -> None:
        """Do nothing, because objects are read ahead only while reads are sequential."""

    def close(self) -> None:
        if self._next_request is not None:
            self._next_request[1].cancel()

    def _load_window(self, offset: int, min_bytes: int) -> None:
        gap = offset - self._window_start - len(self._window)
        is_sequential = bool(self._window) and 0 <= gap <= _MAX_MERGED_GAP_BYTES
        next_bytes = 2 * self._request_bytes if is_sequential else _MIN_READ_AHEAD_BYTES
        self._request_bytes = min(_MAX_READ_AHEAD_BYTES, next_bytes)
        request, self._next_request = self._next_request, None
        if request is not None and request[0] == offset:
            self._window = retry.wait_interruptibly(request[1]).result()
        else:
            self._window = self.read(offset, max(self._request_bytes, min(min_bytes, _MAX_READ_AHEAD_BYTES)))
        self._window_start = offset
        end = offset + len(self._window)
        if is_sequential and end < self.size:
            self._next_request = end, request_threads().submit(self.read, end, self._request_bytes)

    def _inspect(self) -> tuple[int, str, bool]:
        """Return the size, the version, and whether ranges are supported.

        The request is a GET for one byte, because HEAD may be forbidden.
        """
        response = http.request_object(self.address, {"Range": "bytes=0-0"}, self._links)
        if response.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            http.discard_response(response)
            # The object is empty. Request it again, because some servers omit its size in a response with status 416.
            response = http.request_object(self.address)
        http.discard_response(response)
        version = response.headers.get("ETag", "")
        content_range = response.headers.get("Content-Range", "")
        if content_range or response.status == HTTPStatus.PARTIAL_CONTENT:
            if match := _CONTENT_RANGE.fullmatch(content_range):
                return int(match[3]), version, True
            raise StoreFailed(self._where, "a partial response without a valid Content-Range")
        _check_unencoded(response, self._where)
        return _require_length(response, self._where), version, False

    def _request_range(self, offset: int, end: int) -> urllib3.BaseHTTPResponse:
        is_whole = offset == 0 and end == self.size
        if not self.ranges and not is_whole:
            raise self._no_ranges_error()
        headers = {"Range": f"bytes={offset}-{end - 1}"} if self.ranges else {}
        has_stable_etag = not is_huggingface(self.address)  # the Hub redirects to a server that reports another ETag
        if has_stable_etag and self.version and not self.version.startswith("W/"):
            headers["If-Match"] = self.version
        try:
            response = http.request_object(self.address, headers, self._links)
        except FileExistsError:  # status 412: If-Match failed
            raise OSError(errno.ESTALE, "changed while it was read", self._where) from None
        try:
            self._check_response(response, offset, end)
        except BaseException:
            response.close()
            raise
        return response

    def _check_response(self, response: urllib3.BaseHTTPResponse, offset: int, end: int) -> None:
        _check_unencoded(response, self._where)
        # rclone's server sends Content-Range with status 200 instead of 206
        content_range = response.headers.get("Content-Range", "")
        if response.status == HTTPStatus.OK and not content_range:
            if offset or end < self.size:
                raise self._no_ranges_error()
            self.ranges, match = False, None
            size = _require_length(response, self._where)
        else:
            match = _CONTENT_RANGE.fullmatch(content_range)
            size = int(match[3]) if match else self.size
        tag = response.headers.get("ETag", "")
        if size != self.size and "version" not in self._first_response:
            raise OSError(errno.ESTALE, f"{size:,} bytes; expected {self.size:,}", self._where)
        if size != self.size or self._first_response.setdefault("version", tag) != tag:
            raise OSError(errno.ESTALE, "changed while it was read", self._where)
        self.md5 = http.object_md5(self.address, response.headers)
        requested = f"bytes {offset}-{end - 1}/{self.size}"
        if self.ranges and content_range != requested:
            found = f"status {response.status}, {content_range[:60] or 'no range'}"
            raise StoreFailed(self._where, found, expected=requested)
        if (length := response.headers.get("Content-Length", str(end - offset))) != str(end - offset):
            raise StoreFailed(self._where, f"a response of {length[:20]} bytes; expected {end - offset:,}")

    def _no_ranges_error(self) -> StoreFailed:
        return StoreFailed(
            self._where, "the server does not support range requests", expected="HTTP Range requests",
            remedy="Copy the files first: `shardtool copy`.",
        )  # fmt: skip


class ObjectInfo(NamedTuple):
    """The size and version of an object. The attributes have the same names as in `os.stat_result`.

    `st_mtime_ns` is a number derived from the version.
    """

    st_size: int
    st_mtime_ns: int
    st_ctime_ns: int = 0


FileInfo: TypeAlias = "os.stat_result | ObjectInfo"


def read_object(address: str, check_size: Callable[[int], object]) -> tuple[bytes, ObjectInfo]:
    """Return the content, size and version of an object, read with one request if possible.

    `check_size` receives the size before the content is read. If it returns False, the returned content is empty.
    """

    def read_whole(remote: RemoteObject) -> tuple[bytes, ObjectInfo]:
        return b"" if check_size(remote.size) is False else remote.read(0, remote.size), remote.stat()

    def attempt() -> tuple[bytes, ObjectInfo]:
        with closing(http.request_object(address)) as response:
            length = http.content_length(response)
            is_partial = response.status == HTTPStatus.PARTIAL_CONTENT
            if length is None or is_partial or "Content-Encoding" in response.headers:
                return read_whole(RemoteObject(address))
            info = ObjectInfo(length, version_number(response.headers.get("ETag", "")))
            if check_size(length) is False:
                return b"", info
            data = b"".join(http.iter_body(response, address, length, length))
        if (md5 := http.object_md5(address, response.headers)) is not None:
            _check_md5(address, md5, hashlib.md5(data, usedforsecurity=False))
        return data, info

    if uses_fsspec(address):
        return read_whole(FsspecObject(address))
    return retry.with_retries(address, attempt)


def _require_length(response: urllib3.BaseHTTPResponse, where: str) -> int:
    if (length := http.content_length(response)) is None:
        raise StoreFailed(where, "the server does not report the size")
    return length


def _check_unencoded(response: urllib3.BaseHTTPResponse, where: str) -> None:
    if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
        raise StoreFailed(where, f"the server compresses the response ({encoding})", expected="the file unchanged")


def _check_md5(address: str, md5: str, digest: Any) -> None:
    if digest.hexdigest() != md5:
        found = f"data with MD5 {digest.hexdigest()}; expected {md5}, as the store reports"
        raise OSError(errno.EBADMSG, found, display_address(address))


_MAX_MERGED_GAP_BYTES = 2**16
_MAX_REQUEST_BYTES = 2**22
_MAX_REQUESTS_AHEAD = 16


def read_ranges(remote: RemoteObject, offsets: Sequence[int], lengths: Sequence[int]) -> Iterator[bytes]:
    """Yield the bytes of each range. If the ranges are sorted, neighbouring ranges are read with one request."""
    spans = _merge_ranges(offsets, lengths)
    requests = [
        (offset, min(end, offset + _MAX_REQUEST_BYTES))
        for start, end, _ in spans
        for offset in (range(start, end, _MAX_REQUEST_BYTES) if end > start else (start,))
    ]

    def read(request: tuple[int, int]) -> bytes:
        return remote.read(request[0], request[1] - request[0])

    results: Iterator[bytes] = map(read, requests)
    if len(requests) > 1:
        results = ordered_results(request_threads(), read, requests, _MAX_REQUESTS_AHEAD)
    first_index = 0
    for start, end, count in spans:
        pieces = [next(results) for _ in range(start, max(end, start + 1), _MAX_REQUEST_BYTES)]
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        for index in range(first_index, first_index + count):
            skip = offsets[index] - start
            yield data if not skip and lengths[index] == len(data) else data[skip : skip + lengths[index]]
        first_index += count


def _merge_ranges(offsets: Sequence[int], lengths: Sequence[int]) -> list[tuple[int, int, int]]:
    spans: list[tuple[int, int, int]] = []
    for offset, length in zip(offsets, lengths, strict=True):
        if spans:
            start, end, count = spans[-1]
            new_end = max(end, offset + length)
            if start <= offset <= end + _MAX_MERGED_GAP_BYTES and new_end - start <= _MAX_REQUEST_BYTES:
                spans[-1] = start, new_end, count + 1
                continue
        spans.append((offset, offset + length, 1))
    return spans


_FSSPEC_READ_BYTES = 4 * http.PIECE_BYTES


class FsspecObject(RemoteObject):
    """A file read through fsspec."""

    def __init__(self, address: str) -> None:
        address = parse_address(address).text()  # fsspec requires a lower-case scheme
        self.address, self._where, self.ranges = address, display_address(address), True
        self._path = parse_address(address).plain_text()
        info = call_fsspec(address, methodcaller("info", self._path))
        if info["type"] != "file" or info["size"] is None:
            raise FileNotFoundError(2, "no such file", self._where)
        self.size, self._first_response = int(info["size"]), dict[str, str]()

    def _pieces(self, offset: int, end: int, max_bytes: int) -> Iterator[bytes]:
        while offset < end:
            length = min(max(max_bytes, _FSSPEC_READ_BYTES), end - offset)
            read_piece = methodcaller("cat_file", self._path, start=offset, end=offset + length)
            piece = bytes(call_fsspec(self.address, read_piece))
            if len(piece) != length:
                raise StoreFailed(self._where, f"{len(piece):,} bytes at {offset:,}", expected=f"{length:,}")
            yield piece
            offset += length


def open_remote(address: str, size: int | None = None) -> RemoteObject:
    """Open an object for random access."""
    return FsspecObject(address) if uses_fsspec(address) else RemoteObject(address, size)


class _ObjectFile(io.RawIOBase):
    def __init__(self, source: RemoteObject) -> None:
        self._object, self._position = source, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._object.size}[whence]
        return self._position

    def readinto(self, into: Buffer, /) -> int:
        view = memoryview(into).cast("B")
        data = self._object.read(self._position, len(view))
        view[: len(data)] = data
        self._position += len(data)
        return len(data)


def open_object(address: str) -> BinaryIO:
    """Return a seekable file object that reads an object with range requests, if the server supports them."""
    source = open_remote(address)
    if not source.ranges and source.size <= _MAX_WHOLE_BYTES:
        return io.BytesIO(source.read(0, source.size))
    return io.BufferedReader(_ObjectFile(source), BLOCK_BYTES)


class RemoteFiles:
    """Reads objects and lists folders."""

    def open(self, address: str, _flags: int = 0) -> RemoteObject:
        return open_remote(address)

    def read(self, address: str, check_size: Callable[[int], object], _flags: int = 0) -> bytes:
        return read_object(address, check_size)[0]

    def read_end(self, address: str, limit: int) -> bytes:
        def read_from(remote: RemoteObject) -> bytes:
            return remote.read(max(0, remote.size - limit) if remote.ranges else 0, remote.size)[-limit:]

        def attempt() -> bytes:
            with closing(http.request_object(address, {"Range": f"bytes=-{limit}"})) as response:
                match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
                _check_unencoded(response, display_address(address))
                if match is None or match[1] is None:
                    return read_from(RemoteObject(address))
                start, end, size = map(int, match.groups())
                if end != size - 1 or start != max(0, size - limit):
                    expected = f"the last {limit:,} bytes"
                    raise StoreFailed(display_address(address), f"the range {match[0]}", expected=expected)
                return b"".join(http.iter_body(response, address, end + 1 - start))

        if uses_fsspec(address):
            return read_from(FsspecObject(address))
        return retry.with_retries(address, attempt)

    def blocks(self, address: str, _flags: int = 0) -> Iterator[bytes]:
        return open_remote(address).pieces()

    def info(self, address: str) -> ObjectInfo:
        return open_remote(address).stat()

    def size(self, address: str) -> int | None:
        with suppress(FileNotFoundError):
            return open_remote(address).size
        return None

    def crc(self, address: str) -> int | None:
        """Return the CRC-32C that Google's store reports, or None for other stores."""
        if parse_address(address).scheme != "gs":
            return None
        response = retry.with_retries(address, lambda: http.request_object(address, {"Range": "bytes=0-0"}))
        http.discard_response(response)
        encoded = http.google_hashes(response.headers).get("crc32c", "")
        try:
            return int.from_bytes(base64.b64decode(encoded, validate=True), "big") if encoded else None
        except ValueError:
            return None

    def names(self, folder: str) -> list[str]:
        return [entry.name for entry in list_entries(folder)]

    def list_folders(self, folder: str) -> list[str]:
        return [entry.name for entry in list_entries(folder) if entry.is_folder]

    def is_folder(self, address: str) -> bool:
        if is_web(address):
            return False
        # in a store, a recursive listing finds an object with its first request; listing one level may need many
        below = parse_address(address).scheme in SCHEMES
        return any(True for _ in (iter_objects if below else list_entries)(address))


REMOTE = RemoteFiles()


def iter_objects(folder: str) -> Iterator[BucketEntry]:
    """Yield all objects below an address, with keys relative to the address.

    An empty object may represent a folder. Its key is returned without the final slash.
    """
    prefix_length = len(parse_address(folder).key.rstrip("/"))
    for entry in list_entries(folder, below=True):
        if relative_key := entry.key[prefix_length:].lstrip("/"):
            yield entry._replace(key=relative_key)


def list_entries(folder: str, *, below: bool = False) -> Iterator[BucketEntry]:
    """Yield the entries of a folder or, if `below`, all objects below the folder."""
    list_function = list_objects if parse_address(folder).scheme in SCHEMES else list_fsspec
    return list_function(folder, below=below)
