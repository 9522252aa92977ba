"""The bytes of one shard, compressed or not, and its format.

The file name gives the format. If it does not, as for blobs of a store or TensorFlow's `train-00000-of-01024`, the
first bytes do.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

from shardtool.errors import (
    CorruptShard,
    InvalidRequest,
    OutputFailed,
    os_error_text,
    printable,
    raise_if_machine_error,
    raising_machine_errors,
)
from shardtool.fingerprint import crc32c
from shardtool.format import tar_read, tar_write, tfrecord_read
from shardtool.shard_names import READABLE_ENDINGS, ShardName, count_suffix, parse_shard_name
from shardtool.storage.files import open_file, read_head
from shardtool.storage.lookup import dangling_target, is_file
from shardtool.storage.paths import base_name
from shardtool.storage.remote.address import is_url

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader

    from typing_extensions import Self


FETCH_ADVICE = "Fetch what it leads to: `git annex get`, `dvc pull`, or the download again."


_WINDOW_BYTES = 2**20


_STEP_BYTES = 2**14  # bytes that are unpacked at once: what lies before damage in them cannot be read


_SIGNATURES = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bz2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}  # of compressed files


_MAX_XZ_MEMORY_BYTES = 2**27  # bytes that unpacking may take: `xz -9` asks for half; a file may claim 4 GiB


class ShardFile:
    """The bytes of one shard, at any place, through a window: many headers cost one system call, or one request.

    Of a place that lies far from the last one only a little is read. Use it in a `with` block.

    Raises:
        CorruptShard: It is no plain file, or cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._file = open_file(path)
        except OSError as error:
            raise open_error(path, error) from None
        fact = self._file.fact()
        self.size, self.mtime_ns = fact.st_size, fact.st_mtime_ns
        self._start, self._window = 0, b""

    def stream(self) -> BufferedReader:
        """Return it as a file of Python's that is read from its start on, and that must be closed, too."""
        with raising_machine_errors(self.path):
            return self._file.stream()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, offset: int, length: int) -> bytes | memoryview:
        """Return `length` bytes from `offset` on: fewer only at the end of the file.

        Raises:
            CorruptShard: The disk fails, or another file is there by now.
        """
        at = offset - self._start
        if at >= 0 and at + length <= len(self._window):
            return self._window[at : at + length]
        file = self._file
        near = 0 <= at <= len(self._window) + file.max_gap_bytes
        best_size = file.sequential_read_bytes if near else file.random_read_bytes
        self._start, self._window = offset, self._read(offset, max(length, best_size))
        return self._window[:length]

    def _read(self, offset: int, length: int) -> bytes:
        try:  # a context manager would take as long as the reading
            return self._file.read(offset, min(length, max(0, self.size - offset)))
        except OSError as error:
            raise self._failed(offset, error) from None

    def _failed(self, offset: int, error: OSError) -> CorruptShard:
        """Return what the disk says of a place as what is wrong with the shard, unless the machine is to blame."""
        raise_if_machine_error(error, self.path)
        return CorruptShard(self.path, f"cannot be read: {os_error_text(error)}", offset=offset)


class ChecksummedFile(ShardFile):
    """The bytes of one shard, best read from its start on: the CRC-32C of the file is taken on the way.

    Each block is summed while it is in the processor's cache, so that taking checksums of payloads too costs
    for one pass. A place behind the window is read again, and not summed twice. What `read` returns holds until the
    next call.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._stream = self.stream()
        self._view = memoryview(bytearray(2 * _WINDOW_BYTES))
        self._crc = self._end = self._held = 0  # of what was summed; where that ends; bytes in the window

    def read(self, offset: int, length: int) -> bytes | memoryview:
        """Return `length` bytes from `offset` on: fewer only at the end of the file.

        Raises:
            CorruptShard: The disk fails, or another file is there by now.
        """
        at = offset - self._start
        if at >= 0 and at + length <= self._held:
            return self._view[at : at + length]
        if at < 0:
            return self._read(offset, length)
        while self._end < offset and self._fill(0):
            at = offset - self._start
        kept = max(0, self._held - at)
        moved = self._view[at : at + kept]
        if length + _WINDOW_BYTES > len(self._view):
            self._view = memoryview(bytearray(length + _WINDOW_BYTES))
        self._view[:kept] = moved
        self._start, self._held = offset, kept
        while self._held < length and self._fill(self._held):
            pass
        return self._view[: min(length, self._held)]

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        super().__exit__()

    def crc(self) -> int:
        """Read the rest, and return the CRC-32C of the file."""
        while self._fill(0):
            pass
        return self._crc

    def _fill(self, at: int) -> int:
        """Read the next block to a place in the window; return its bytes. At 0 it is all that the window holds."""
        block = self._view[at : at + min(_WINDOW_BYTES, max(0, self.size - self._end))]
        try:
            got = self._stream.readinto(block) if len(block) else 0
        except OSError as error:
            raise self._failed(self._end, error) from None
        self._crc = crc32c(block[:got], self._crc)
        if not at:
            self._start = self._end
        self._held = at + got
        self._end += got
        return got


class _XzStream:
    """What an xz file holds, one stream after the other: pyarrow unpacks all other kinds, but not these."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._packed = file, b""
        self._next()

    def _next(self) -> None:
        from lzma import FORMAT_XZ, LZMADecompressor

        self._unpack = LZMADecompressor(FORMAT_XZ, memlimit=_MAX_XZ_MEMORY_BYTES)

    def read(self, size: int) -> bytes:
        """Return some bytes, and none at the end.

        Raises:
            ValueError: The data is damaged, or wants more memory than it may.
            OSError: It ends too early, or cannot be read.
        """
        from lzma import LZMAError

        while True:
            if self._unpack.eof:
                self._packed = (self._unpack.unused_data or self._file.read(_WINDOW_BYTES)).lstrip(b"\0")
                if not self._packed:
                    return b""
                self._next()
            elif self._unpack.needs_input and not self._packed:
                self._packed = self._file.read(_WINDOW_BYTES)
                if not self._packed:
                    raise OSError("Truncated compressed stream")
            try:
                found = self._unpack.decompress(self._packed, size)
            except LZMAError as error:
                raise ValueError(str(error)) from None
            self._packed = b""
            if found:
                return found

    def close(self) -> None:
        """Give the file back."""
        self._file.close()


class CompressedFile:
    """The bytes of a compressed shard, in sequence: a place before the last one can be read again only if it is held.

    Args:
        path: Where it is.
        packing: How it is compressed; None: as its name, or its first bytes, tell.

    Attributes:
        packed_size: Bytes of the file.

    Raises:
        CorruptShard: It is no plain file, or cannot be opened.
    """

    def __init__(self, path: str, packing: str | None = None) -> None:
        import pyarrow as pa

        self.path, self.size = path, -1
        packing = packing or detect_kind(path).packing
        with ShardFile(path) as plain:  # opens no FIFO
            self.packed_size, file = plain.size, plain.stream()
        self._stream: Any  # with `read` and `close`
        try:
            xz = packing == "xz"
            self._stream = _XzStream(file) if xz else pa.CompressedInputStream(pa.PythonFile(file, "r"), packing)
        except (OSError, ValueError) as error:
            file.close()
            raise CorruptShard(path, f"cannot be opened: {error}") from None
        except (ImportError, NotImplementedError):
            file.close()
            raise InvalidRequest(path, f"compressed with {packing}, which this Python cannot unpack") from None
        self._start, self._window = 0, b""
        self._failed: Exception | None = None
        self._held: IO[bytes] | None = None
        self._held_start = self._held_end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        if self._held is not None:
            self._held.close()

    def hold(self, offset: int, length: int) -> IO[bytes]:
        """Keep the bytes at a place at hand, in a temporary file, until the next are: these can be read in any order.

        Returns:
            The file, which has no name.

        Raises:
            CorruptShard: The compressed data is damaged.
            OutputFailed: There is no room for them.
        """
        from tempfile import TemporaryFile, gettempdir

        at, end = offset, offset + length
        self._held_end = 0
        try:
            if self._held is None:
                self._held = TemporaryFile()  # noqa: SIM115 - closed with this object
            self._held.seek(0)
            self._held.truncate()
            while at < end and (block := self.read(at, min(_WINDOW_BYTES, end - at))):
                self._held.write(block)
                at += len(block)
            self._held.flush()
        except OSError as error:
            remedy = "Let TMPDIR name a folder that has room, or make plain shards of it with `shardtool reshard`."
            raise OutputFailed(
                gettempdir(), f"no room to unpack {self.path}: {os_error_text(error)}", remedy=remedy
            ) from None
        self._held_start, self._held_end = offset, at
        return self._held

    def read(self, offset: int, length: int) -> bytes | memoryview:
        """Return `length` bytes from `offset` on: fewer only at the end.

        Raises:
            CorruptShard: The compressed data is damaged.
        """
        if self._held is not None and self._held_start <= offset < self._held_end:
            found = os.pread(self._held.fileno(), min(length, self._held_end - offset), offset - self._held_start)
            return found if len(found) == length else found + self.read(offset + len(found), length - len(found))
        if offset < self._start:
            raise CorruptShard(self.path, "a compressed shard is read in sequence only", offset=offset)
        try:
            while offset >= self._start + len(self._window):
                self._start += len(self._window)
                self._window = self._unpacked(_WINDOW_BYTES)
                if not self._window:
                    return b""
            at = offset - self._start
            while len(self._window) < at + length and (more := self._unpacked(max(_WINDOW_BYTES, length))):
                self._window = self._window[at:] + more
                self._start, at = offset, 0
        except (OSError, ValueError) as error:
            raise CorruptShard(self.path, f"cannot be decompressed: {error}", offset=offset) from None
        return self._window[at : at + length]

    def _unpacked(self, length: int) -> bytes:
        """Return what comes next, up to damage if there is any, in steps that are always the same."""
        if self._failed is not None:
            raise self._failed
        parts, got = [], 0
        try:
            while got < length and (part := self._stream.read(_STEP_BYTES)):
                parts.append(part)
                got += len(part)
        except (OSError, ValueError) as error:
            self._failed = error
            if not parts:
                raise
        return b"".join(parts)


def open_error(path: str, error: OSError, remedy: str = "") -> CorruptShard:
    """Return the error that a shard cannot be opened, with what to do where it is a link to what was not fetched."""
    if not is_url(path) and (target := dangling_target(path)) is not None:
        return CorruptShard(path, f"cannot be opened: a link to nothing, {printable(target)}", remedy=FETCH_ADVICE)
    return CorruptShard(path, f"cannot be opened: {os_error_text(error)}", remedy=remedy)


def describe_missing(path: str) -> tuple[str, str]:
    """Return what there is in place of a shard that is no plain file, and how to get it; empty: that is not known."""
    if is_url(path):
        return "no such object", ""
    if (target := dangling_target(path)) is not None:
        return f"a link to nothing, {printable(target)}", FETCH_ADVICE
    return "no plain file" if os.path.lexists(path) else "no such file", ""


def open_shard(path: str) -> ShardFile | CompressedFile:
    """Return a shard for reading, compressed or not.

    Raises:
        CorruptShard: It cannot be opened.
        InvalidRequest: It is no shard.
    """
    packing = detect_kind(path).packing
    return CompressedFile(path, packing) if packing else ShardFile(path)


def is_compressed(path: str) -> bool:
    """Tell whether a shard is compressed.

    Raises:
        CorruptShard: Its name does not tell, and it cannot be opened.
        InvalidRequest: It is no shard.
    """
    return bool(detect_kind(path).packing)


def detect_kind(path: str) -> ShardName:
    """Return what a shard is, as its name or else its first bytes tell.

    Raises:
        CorruptShard: Its name does not tell, and it cannot be opened.
        InvalidRequest: Neither tells, so that it is no shard.
    """
    if facts := parse_shard_name(base_name(path)):
        return facts
    if (is_file(path) if is_url(path) else os.path.lexists(path)) and (facts := kind_of_content(path)):
        return facts
    if count_suffix(base_name(path)):
        return ShardName("tfrecord")  # a missing, empty or damaged one: only TensorFlow numbers files so
    expected = f"a name that ends in one of {READABLE_ENDINGS}"
    raise InvalidRequest(path, "neither tar nor TFRecord by its name or its first bytes", expected=expected)


def wrong_kind_error(path: str, error: CorruptShard) -> CorruptShard:
    """Return what is wrong with a shard of which nothing could be read: its name may tell another kind than it is."""
    found = kind_of_content(path)
    if found in (None, detect_kind(path)):
        return error
    what = f"a {found.format} shard{found.packing and f' packed with {found.packing}'}"
    return CorruptShard(
        path, f"not what its name tells: by its first bytes {what}", offset=0,
        remedy="Give it the right ending, or a link to it that has one.",
    )  # fmt: skip


def kind_of_content(path: str) -> ShardName | None:
    """Return what the first bytes of a file tell; None: it is no shard, or an empty one.

    Raises:
        CorruptShard: It cannot be opened.
    """
    try:
        start, _ = read_head(path, tar_write.TAR_BLOCK_BYTES)
    except OSError as error:
        raise open_error(path, error) from None
    packing = next((name for magic, name in _SIGNATURES.items() if start.startswith(magic)), "")
    if packing:
        start = b""
        with suppress(CorruptShard), CompressedFile(path, packing) as packed:
            start = bytes(packed.read(0, tar_write.TAR_BLOCK_BYTES))
    if tfrecord_read.is_record_start(start):
        return ShardName("tfrecord", packing)
    return ShardName("tar", packing) if tar_read.is_tar_start(start) else None


def iter_payload(
    shard: ShardFile | CompressedFile, offset: int, length: int, where: str, *, most: int | None = None
) -> Iterator[bytes]:
    """Yield the bytes of a payload, a piece at a time, and no more than the first `most`.

    Raises:
        CorruptShard: The shard ends before.
    """
    if shard.size >= 0 and not 0 <= offset <= offset + length <= shard.size:
        raise CorruptShard(where, f"{length:,} bytes at {offset:,}", expected=f"a place in {shard.size:,} bytes")
    length = length if most is None else min(length, most)
    while length > 0:
        block = bytes(shard.read(offset, min(length, _WINDOW_BYTES)))
        if not block:
            raise CorruptShard(where, f"the shard ends at {offset:,}", expected=f"{length:,} more bytes")
        yield block
        offset, length = offset + len(block), length - len(block)
