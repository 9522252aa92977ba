"""Read the bytes of one shard, compressed or not, and detect its format."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, TypeAlias

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
from shardtool.pattern import READABLE_ENDINGS, ShardName, find_count_suffix, parse_shard_name
from shardtool.storage.files import dangling_target, files_at, is_file, read_head
from shardtool.storage.paths import base_name
from shardtool.storage.remote.address import is_url

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader

    from typing_extensions import Self


FETCH_ADVICE = "Fetch the target: run `git annex get` or `dvc pull`, or repeat the download."
_WINDOW_BYTES = 2**20
_STEP_BYTES = 2**14
_SIGNATURES = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_STARTS = {"tfrecord": tfrecord_read.is_record_start, "tar": tar_read.is_tar_start}
_MAX_XZ_MEMORY_BYTES = 2**27  # `xz -9` needs 64 MiB; a malicious file may request 4 GiB


class ShardFile:
    """An open uncompressed shard. `read` reads ahead, to avoid many small reads."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._file = files_at(path).open(path)
        except OSError as error:
            raise open_error(path, error) from None
        status = self._file.stat()
        self.size, self.mtime_ns = status.st_size, status.st_mtime_ns
        self._start, self._window = 0, b""

    def stream(self) -> BufferedReader:
        """Open the shard as a Python file. The caller must close the file."""
        with raising_machine_errors(self.path):
            return self._file.stream()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, offset: int, length: int) -> bytes | memoryview:
        """Return `length` bytes at `offset`, or fewer at the end of the file."""
        position = offset - self._start
        if position >= 0 and position + length <= len(self._window):
            return self._window[position : position + length]
        file = self._file
        is_near = 0 <= position <= len(self._window) + file.max_gap_bytes
        best_size = file.sequential_read_bytes if is_near else file.random_read_bytes
        self._start, self._window = offset, self._read(offset, max(length, best_size))
        return self._window[:length]

    def _read(self, offset: int, length: int) -> bytes:
        try:  # `raising_machine_errors` would take as long as the read itself
            return self._file.read(offset, min(length, max(0, self.size - offset)))
        except OSError as error:
            raise self._failed(offset, error) from None

    def _failed(self, offset: int, error: OSError) -> CorruptShard:
        raise_if_machine_error(error, self.path)
        return CorruptShard(self.path, f"cannot be read: {os_error_text(error)}", offset=offset)


class ChecksummedFile(ShardFile):
    """A `ShardFile` that computes its CRC-32C during reading. The result of `read` is valid until the next call."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._stream = self.stream()
        self._view = memoryview(bytearray(2 * _WINDOW_BYTES))
        # `_crc` covers all bytes before `_end`. `_view[:_held]` contains the shard's bytes from `_start`.
        self._crc = self._end = self._held = 0

    def read(self, offset: int, length: int) -> bytes | memoryview:
        """See `ShardFile.read`."""
        position = offset - self._start
        if position >= 0 and position + length <= self._held:
            return self._view[position : position + length]
        if position < 0:
            return self._read(offset, length)
        while self._end < offset and self._fill(0):
            position = offset - self._start
        kept = max(0, self._held - position)
        moved = self._view[position : position + kept]
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
        """Read the rest of the file, and return the file's CRC-32C."""
        while self._fill(0):
            pass
        return self._crc

    def _fill(self, position: int) -> int:
        # Read the next block into the window at `position`. If `position` is 0, start a new window.
        block = self._view[position : position + min(_WINDOW_BYTES, max(0, self.size - self._end))]
        try:
            count = self._stream.readinto(block) if len(block) else 0
        except OSError as error:
            raise self._failed(self._end, error) from None
        self._crc = crc32c(block[:count], self._crc)
        if not position:
            self._start = self._end
        self._held = position + count
        self._end += count
        return count


class _XzStream:
    """Decompresses xz files, because pyarrow cannot. A file may consist of several streams."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._compressed = file, b""
        self._next()

    def _next(self) -> None:
        from lzma import FORMAT_XZ, LZMADecompressor

        self._unpack = LZMADecompressor(FORMAT_XZ, memlimit=_MAX_XZ_MEMORY_BYTES)

    def read(self, size: int) -> bytes:
        from lzma import LZMAError

        while True:
            if self._unpack.eof:
                self._compressed = (self._unpack.unused_data or self._file.read(_WINDOW_BYTES)).lstrip(b"\0")
                if not self._compressed:
                    return b""
                self._next()
            elif self._unpack.needs_input and not self._compressed:
                self._compressed = self._file.read(_WINDOW_BYTES)
                if not self._compressed:
                    raise OSError("Truncated compressed stream")
            try:
                block = self._unpack.decompress(self._compressed, size)
            except LZMAError as error:
                raise ValueError(str(error)) from None
            self._compressed = b""
            if block:
                return block

    def close(self) -> None:
        self._file.close()


class CompressedFile:
    """An open compressed shard. Bytes must be read in order, except bytes that `hold` keeps.

    Offsets count decompressed bytes.
    """

    def __init__(self, path: str, compression: str | None = None) -> None:
        import pyarrow as pa

        self.path, self.size = path, -1
        compression = compression or detect_kind(path).compression
        with ShardFile(path) as shard:  # `open` would block on a FIFO
            self.packed_size, self._file = shard.size, shard.stream()
        self._stream: Any
        try:
            if compression == "xz":
                self._stream = _XzStream(self._file)
            else:
                self._stream = pa.CompressedInputStream(pa.PythonFile(self._file, "r"), compression)
        except (OSError, ValueError) as error:
            self._file.close()
            raise CorruptShard(path, f"cannot be opened: {error}") from None
        except (ImportError, NotImplementedError):
            self._file.close()
            raise InvalidRequest(path, f"compressed with {compression}, which this Python cannot decompress") from None
        self._start, self._window = 0, b""
        self._failed: Exception | None = None
        self._held: IO[bytes] | None = None
        self._held_start = self._held_end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._stream.close()
        finally:
            self._file.close()  # pyarrow does not close the file after damaged data
            if self._held is not None:
                self._held.close()

    def hold(self, offset: int, length: int) -> IO[bytes]:
        """Copy bytes to a temporary file, and return the file.

        Until the next `hold`, `read` returns these bytes from the temporary file.
        """
        from tempfile import TemporaryFile, gettempdir

        position, end = offset, offset + length
        self._held_end = 0
        try:
            if self._held is None:
                self._held = TemporaryFile()  # noqa: SIM115 - closed with this object
            self._held.seek(0)
            self._held.truncate()
            while position < end and (block := self.read(position, min(_WINDOW_BYTES, end - position))):
                self._held.write(block)
                position += len(block)
            self._held.flush()
        except OSError as error:
            problem = f"no space to decompress {self.path}: {os_error_text(error)}"
            remedy = "Set TMPDIR to a folder with free space, or write plain shards with `shardtool reshard`."
            raise OutputFailed(gettempdir(), problem, remedy=remedy) from None
        self._held_start, self._held_end = offset, position
        return self._held

    def read(self, offset: int, length: int) -> bytes | memoryview:
        """See `ShardFile.read`."""
        if self._held is not None and self._held_start <= offset < self._held_end:
            block = os.pread(self._held.fileno(), min(length, self._held_end - offset), offset - self._held_start)
            return block if len(block) == length else block + self.read(offset + len(block), length - len(block))
        if offset < self._start:
            raise CorruptShard(self.path, "a compressed shard can only be read sequentially", offset=offset)
        try:
            while offset >= self._start + len(self._window):
                self._start += len(self._window)
                self._window = self._decompress(_WINDOW_BYTES)
                if not self._window:
                    return b""
            position = offset - self._start
            while len(self._window) < position + length and (more := self._decompress(max(_WINDOW_BYTES, length))):
                self._window = self._window[position:] + more
                self._start, position = offset, 0
        except (OSError, ValueError) as error:
            raise CorruptShard(self.path, f"cannot be decompressed: {error}", offset=offset) from None
        return self._window[position : position + length]

    def _decompress(self, length: int) -> bytes:
        # If a read from `_stream` reaches damage, the bytes before the damage are lost, so read in small steps.
        if self._failed is not None:
            raise self._failed
        parts, size = [], 0
        try:
            while size < length and (part := self._stream.read(_STEP_BYTES)):
                parts.append(part)
                size += len(part)
        except (OSError, ValueError) as error:
            self._failed = error
            if not parts:
                raise
        return b"".join(parts)


OpenShard: TypeAlias = ShardFile | CompressedFile


def open_error(path: str, error: OSError, remedy: str = "") -> CorruptShard:
    """Return the error for a shard that cannot be opened."""
    if (target := dangling_target(path)) is not None:
        return CorruptShard(path, f"cannot be opened: a broken link to {printable(target)}", remedy=FETCH_ADVICE)
    return CorruptShard(path, f"cannot be opened: {os_error_text(error)}", remedy=remedy)


def describe_missing(path: str) -> tuple[str, str]:
    """Return why a shard is missing, and advice to the user, which may be ""."""
    if is_url(path):
        return "no such object", ""
    if (target := dangling_target(path)) is not None:
        return f"a broken link to {printable(target)}", FETCH_ADVICE
    return "not a regular file" if os.path.lexists(path) else "no such file", ""


def open_shard(path: str) -> OpenShard:
    """Open a shard, compressed or not."""
    compression = detect_kind(path).compression
    return CompressedFile(path, compression) if compression else ShardFile(path)


def is_compressed(path: str) -> bool:
    """Return whether a shard is compressed."""
    return bool(detect_kind(path).compression)


def detect_kind(path: str) -> ShardName:
    """Return the format and compression of a shard from its name, or from its first bytes."""
    if kind := parse_shard_name(base_name(path)):
        return kind
    if (is_file(path) if is_url(path) else os.path.lexists(path)) and (kind := detect_kind_by_content(path)):
        return kind
    if find_count_suffix(base_name(path)):
        return ShardName("tfrecord")
    expected = f"a name that ends in one of {READABLE_ENDINGS}"
    raise InvalidRequest(path, "neither a tar nor a TFRecord file, by its name and its first bytes", expected=expected)


def wrong_kind_error(path: str, error: CorruptShard) -> CorruptShard:
    """Return `error`, or a better error if a shard's content contradicts its name."""
    kind = detect_kind_by_content(path)
    if kind in (None, detect_kind(path)):
        return error
    what = f"a {kind.format} shard{kind.compression and f' compressed with {kind.compression}'}"
    return CorruptShard(
        path, f"its first bytes are those of {what}, but its name has another ending", offset=0,
        remedy="Rename it with the right ending, or create a link with the right ending.",
    )  # fmt: skip


def detect_kind_by_content(path: str) -> ShardName | None:
    """Return the format and compression of a shard from its first bytes, or None if unknown."""
    try:
        start, _ = read_head(path, tar_write.TAR_BLOCK_BYTES)
    except OSError as error:
        raise open_error(path, error) from None
    compression = next((name for magic, name in _SIGNATURES.items() if start.startswith(magic)), "")
    if compression:
        start = b""
        with suppress(CorruptShard), CompressedFile(path, compression) as file:
            start = bytes(file.read(0, tar_write.TAR_BLOCK_BYTES))
    kind = next((kind for kind, is_start in _STARTS.items() if is_start(start)), None)
    return None if kind is None else ShardName(kind, compression)


def iter_payload(
    shard: OpenShard, offset: int, length: int, location: str, *, max_bytes: int | None = None
) -> Iterator[bytes]:
    """Yield a payload, or its first `max_bytes` bytes, in blocks. `location` is for messages."""
    if shard.size >= 0 and not 0 <= offset <= offset + length <= shard.size:
        expected = f"a range inside the {shard.size:,} bytes of the shard"
        raise CorruptShard(location, f"{length:,} bytes at {offset:,}", expected=expected)
    length = length if max_bytes is None else min(length, max_bytes)
    while length > 0:
        block = bytes(shard.read(offset, min(length, _WINDOW_BYTES)))
        if not block:
            raise CorruptShard(location, f"the shard ends at {offset:,}", expected=f"{length:,} more bytes")
        yield block
        offset, length = offset + len(block), length - len(block)
