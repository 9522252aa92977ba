"""The bytes of one finished shard, at any place, compressed or not; and which of these it is.

Its name tells, and where that tells nothing, as for the blobs of a store and TensorFlow's `train-00000-of-01024`, its
first bytes do.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

from shardtool.errors import CorruptShard, InvalidRequest, OutputFailed, machine_reads, printable, reason
from shardtool.fingerprint import crc32c
from shardtool.format import tar, tfrecord
from shardtool.pattern import KNOWN, NameFacts, part_of, read_name
from shardtool.storage.places import base_name, dangling, is_file, is_url, open_file, read_head

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader

    from typing_extensions import Self

FETCH = "Fetch what it leads to: `git annex get`, `dvc pull`, or the download again."
_WINDOW = 2**20
_STEP = 2**14  # bytes that are unpacked at once: what lies before damage in them cannot be read
_STARTS = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}  # of compressed files
_XZ_MEMORY = 2**27  # bytes that unpacking may take: `xz -9` asks for half; a file may claim 4 GiB


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
            raise unopened(path, error) from None
        fact = self._file.fact()
        self.size, self.mtime_ns = fact.st_size, fact.st_mtime_ns
        self._start, self._window = 0, b""

    def stream(self) -> BufferedReader:
        """Return it as a file of Python's that is read from its start on, and that must be closed, too."""
        with machine_reads(self.path):
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
        near = 0 <= at <= len(self._window) + file.near
        self._start, self._window = offset, self._read(offset, max(length, file.window if near else file.hop))
        return self._window[:length]

    def _read(self, offset: int, length: int) -> bytes:
        with self._reads(offset):
            return self._file.read(offset, min(length, max(0, self.size - offset)))

    @contextmanager
    def _reads(self, offset: int) -> Iterator[None]:
        """Tell what the disk says of a place as what is wrong with the shard, unless the machine is to blame."""
        try:
            with machine_reads(self.path):
                yield
        except OSError as error:
            raise CorruptShard(self.path, f"cannot be read: {reason(error)}", offset=offset) from None


class SummedFile(ShardFile):
    """The bytes of one shard, best read from its start on: the CRC-32C of the file is taken on the way.

    Each block is summed while it is in the processor's cache, so that taking checksums of payloads too costs
    for one pass. A place behind the window is read again, and not summed twice. What `read` returns holds until the
    next call.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._stream = self.stream()
        self._view = memoryview(bytearray(2 * _WINDOW))
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
        if length + _WINDOW > len(self._view):
            self._view = memoryview(bytearray(length + _WINDOW))
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
        block = self._view[at : at + min(_WINDOW, max(0, self.size - self._end))]
        with self._reads(self._end):
            got = self._stream.readinto(block) if len(block) else 0
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

        self._unpack = LZMADecompressor(FORMAT_XZ, memlimit=_XZ_MEMORY)

    def read(self, size: int) -> bytes:
        """Return some bytes, and none at the end.

        Raises:
            ValueError: The data is damaged, or wants more memory than it may.
            OSError: It ends too early, or cannot be read.
        """
        from lzma import LZMAError

        while True:
            if self._unpack.eof:
                self._packed = (self._unpack.unused_data or self._file.read(_WINDOW)).lstrip(b"\0")
                if not self._packed:
                    return b""
                self._next()
            elif self._unpack.needs_input and not self._packed:
                self._packed = self._file.read(_WINDOW)
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


class PackedFile:
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
        packing = packing or shard_kind(path).packing
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
            while at < end and (block := self.read(at, min(_WINDOW, end - at))):
                self._held.write(block)
                at += len(block)
            self._held.flush()
        except OSError as error:
            remedy = "Let TMPDIR name a folder that has room, or make plain shards of it with `shardtool reshard`."
            raise OutputFailed(gettempdir(), f"no room to unpack {self.path}: {reason(error)}", remedy=remedy) from None
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
                self._window = self._unpacked(_WINDOW)
                if not self._window:
                    return b""
            at = offset - self._start
            while len(self._window) < at + length and (more := self._unpacked(max(_WINDOW, length))):
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
            while got < length and (part := self._stream.read(_STEP)):
                parts.append(part)
                got += len(part)
        except (OSError, ValueError) as error:
            self._failed = error
            if not parts:
                raise
        return b"".join(parts)


def unopened(path: str, error: OSError, remedy: str = "") -> CorruptShard:
    """Return the error that a shard cannot be opened, with what to do where it is a link to what was not fetched."""
    if not is_url(path) and (target := dangling(path)) is not None:
        return CorruptShard(path, f"cannot be opened: a link to nothing, {printable(target)}", remedy=FETCH)
    return CorruptShard(path, f"cannot be opened: {reason(error)}", remedy=remedy)


def open_shard(path: str) -> ShardFile | PackedFile:
    """Return a shard for reading, compressed or not.

    Raises:
        CorruptShard: It cannot be opened.
        InvalidRequest: It is no shard.
    """
    packing = shard_kind(path).packing
    return PackedFile(path, packing) if packing else ShardFile(path)


def is_packed(path: str) -> bool:
    """Tell whether a shard is compressed.

    Raises:
        CorruptShard: Its name does not tell, and it cannot be opened.
        InvalidRequest: It is no shard.
    """
    return bool(shard_kind(path).packing)


def shard_kind(path: str) -> NameFacts:
    """Return what a shard is, as its name or else its first bytes tell.

    Raises:
        CorruptShard: Its name does not tell, and it cannot be opened.
        InvalidRequest: Neither tells, so that it is no shard.
    """
    if facts := read_name(base_name(path)):
        return facts
    if (is_file(path) if is_url(path) else os.path.lexists(path)) and (facts := looks_like(path)):
        return facts
    if part_of(base_name(path)):
        return NameFacts("tfrecord")  # a missing, empty or damaged one: only TensorFlow numbers files so
    expected = f"a name that ends in one of {KNOWN}"
    raise InvalidRequest(path, "neither tar nor TFRecord by its name or its first bytes", expected=expected)


def misnamed(path: str, error: CorruptShard) -> CorruptShard:
    """Return what is wrong with a shard of which nothing could be read: its name may tell another kind than it is."""
    found = looks_like(path)
    if found in (None, shard_kind(path)):
        return error
    what = f"a {found.format} shard{found.packing and f' packed with {found.packing}'}"
    return CorruptShard(
        path, f"not what its name tells: by its first bytes {what}", offset=0,
        remedy="Give it the right ending, or a link to it that has one.",
    )  # fmt: skip


def looks_like(path: str) -> NameFacts | None:
    """Return what the first bytes of a file tell; None: it is no shard, or an empty one.

    Raises:
        CorruptShard: It cannot be opened.
    """
    try:
        start, _ = read_head(path, tar.BLOCK)
    except OSError as error:
        raise unopened(path, error) from None
    packing = next((name for magic, name in _STARTS.items() if start.startswith(magic)), "")
    if packing:
        start = b""
        with suppress(CorruptShard), PackedFile(path, packing) as packed:
            start = bytes(packed.read(0, tar.BLOCK))
    if tfrecord.is_start(start):
        return NameFacts("tfrecord", packing)
    return NameFacts("tar", packing) if tar.is_start(start) else None


def payload(
    shard: ShardFile | PackedFile, offset: int, length: int, where: str, *, most: int | None = None
) -> Iterator[bytes]:
    """Yield the bytes of a payload, a piece at a time, and no more than the first `most`.

    Raises:
        CorruptShard: The shard ends before.
    """
    if shard.size >= 0 and not 0 <= offset <= offset + length <= shard.size:
        raise CorruptShard(where, f"{length:,} bytes at {offset:,}", expected=f"a place in {shard.size:,} bytes")
    length = length if most is None else min(length, most)
    while length > 0:
        block = bytes(shard.read(offset, min(length, _WINDOW)))
        if not block:
            raise CorruptShard(where, f"the shard ends at {offset:,}", expected=f"{length:,} more bytes")
        yield block
        offset, length = offset + len(block), length - len(block)
