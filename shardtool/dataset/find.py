"""Finished shards, read: which ones are meant, and their bytes at any place.

A dataset is given as its dataset file, a shard pattern, a glob, a folder, or a list of shards. Nothing that
such a name or a dataset file says makes us read outside of the folder that the user named.
"""

from __future__ import annotations

import errno
import glob
import os
import re
import stat
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, TypeVar

from shardtool.dataset.dataset_file import shard_names
from shardtool.errors import CorruptShard, InvalidRequest, OutputFailed, listing, printable
from shardtool.fingerprint import crc32c
from shardtool.pattern import DATASET_SUFFIX, parse_pattern, sidecar_name
from shardtool.storage.staging import READ_FOLLOWING, READ_PLAIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.pattern import ShardPattern

ENDINGS = (".tar", ".tfrecord", ".tfrecords", ".tar.gz", ".tgz", ".tar.zst")
COMPRESSED = (".gz", ".tgz", ".zst")
_LARGE = 2**25
_WINDOW = 2**20
_HOP = 2**12  # what is read at a place that lies far from the last one
_NEAR = 2**16
_NUMBER = re.compile(r"(\d+)", re.ASCII)  # other digits, such as superscripts, are letters to `int`
_SHARD_NAME = re.compile(r"(?:[^/\0]+/)*[^/\0]+")
_EXPECTED = "a dataset file, a shard pattern, a glob, a folder, or shards"


@dataclass(frozen=True, slots=True)
class Found:
    """The shards of a dataset.

    Attributes:
        shards: Their paths, in order.
        dataset_file: The path of the dataset file; None where there is none.
        folder: Where the dataset file lies, and the shards, or folders that hold them; "" is the current folder.
        own: Whether the dataset file is one of ours, damaged or not: then sidecars lie beside it.
    """

    shards: tuple[str, ...]
    dataset_file: str | None
    folder: str
    own: bool = False

    @property
    def index_folder(self) -> str | None:
        """Where all sidecars lie; None: each beside its shard."""
        return self.folder if self.own else None

    def sidecar(self, shard: str) -> str:
        """Return the path of a shard's sidecar, which need not be there."""
        return sidecar_path(shard, self.index_folder)

    def folders(self) -> list[str]:
        """Return the folders of the shards, in order."""
        return list(dict.fromkeys(map(os.path.dirname, self.shards)))


def sidecar_path(shard: str, folder: str | None) -> str:
    """Return the path of a shard's sidecar, in a folder, or beside the shard where that is None."""
    beside, name = os.path.split(shard)
    return os.path.join(beside if folder is None else folder, sidecar_name(name))


def find_dataset(given: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Found:
    """Return the shards that `given` means.

    Raises:
        InvalidRequest: There are none, or several datasets are in a folder.
        CorruptShard: A dataset file names what is no shard beside it.
    """
    names = [os.fspath(one) for one in ([given] if isinstance(given, (str, os.PathLike)) else given)]
    if not names:
        raise InvalidRequest("DATASET", "nothing given", expected=_EXPECTED)
    if len(names) > 1:
        return _of_names(names)
    name = names[0]
    if "://" in name:
        raise InvalidRequest(name, "a URL", expected="local files")
    if os.path.isdir(name):
        return _of_folder(name)
    if name.endswith(DATASET_SUFFIX):
        return _of_dataset_file(name)
    if os.path.exists(name):
        return _of_names([name])
    if any(mark in name for mark in "*?["):
        return _of_names(sorted(glob.glob(name), key=natural) or [name])
    return _of_pattern(name)


def natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts `s-9` before `s-10`."""
    return [(int(part), "") if at % 2 else (-1, part) for at, part in enumerate(_NUMBER.split(name))]


def _of_names(names: list[str]) -> Found:
    for name in names:
        if not os.path.isfile(name):
            raise InvalidRequest(name, "no such file", expected=_EXPECTED)
    if len(names) == 1 and names[0].endswith(DATASET_SUFFIX):
        return _of_dataset_file(names[0])
    folder = os.path.dirname(names[0])
    file = _dataset_file_of(folder, names)
    return Found(tuple(names), file, folder, own=file is not None)


def _of_folder(folder: str) -> Found:
    try:
        names = sorted(os.listdir(folder), key=natural)
    except OSError as error:
        raise InvalidRequest(folder, (error.strerror or str(error)).lower(), expected=_EXPECTED) from None
    files = [name for name in names if name.endswith(DATASET_SUFFIX) and _is_dataset_file(os.path.join(folder, name))]
    if len(files) > 1:
        raise InvalidRequest(
            folder, f"{len(files)} datasets: {listing(files)}", expected="one", remedy="Give the dataset file."
        )
    if files:
        return _of_dataset_file(os.path.join(folder, files[0]))
    shards = [os.path.join(folder, name) for name in names if name.endswith(ENDINGS) and not name.startswith(".")]
    if not shards:
        raise InvalidRequest(folder, "no shards in it", expected=f"files that end in {', '.join(ENDINGS)}")
    return Found(tuple(shards), None, folder.rstrip("/") or "/")


def _of_pattern(text: str) -> Found:
    try:
        pattern = parse_pattern(text)
    except InvalidRequest as error:
        if text.endswith(ENDINGS) and not any(mark in text for mark in "{<%"):
            raise InvalidRequest(text, "no such file", expected=_EXPECTED) from None
        raise error from None
    found = _existing(pattern)
    if not found:
        raise InvalidRequest(text, "no shards of that pattern", expected=_EXPECTED)
    shards = [os.path.join(pattern.folder, name) for name in found]
    file = os.path.join(pattern.folder, pattern.dataset_file)
    own = _is_dataset_file(file)
    return Found(tuple(shards), file if own else None, pattern.folder, own=own)


def _existing(pattern: ShardPattern) -> list[str]:
    if pattern.names is not None:
        return [name for name in pattern.names if os.path.isfile(os.path.join(pattern.folder, name))]
    try:
        names = os.listdir(pattern.folder or ".")
    except OSError:
        return []
    numbers = {}
    for name in names:
        digits = name[len(pattern.prefix) : len(name) - len(pattern.suffix)]
        if name.startswith(pattern.prefix) and name.endswith(pattern.suffix) and digits.isascii() and digits.isdigit():
            at = int(digits) - pattern.first
            if at >= 0 and (pattern.count is None or at < pattern.count) and pattern.shard(at) == name:
                numbers[at] = name
    return [numbers[at] for at in sorted(numbers)]


def _of_dataset_file(path: str) -> Found:
    try:
        data = read_small(path)
    except OSError as error:
        raise InvalidRequest(path, (error.strerror or str(error)).lower(), expected=_EXPECTED) from None
    names = listed = shard_names(data)
    urls = names is None  # what wids lists may lie anywhere; a dataset file of ours names files, colons or not
    if names is None:
        names = _wids_names(data)
    if names is None:
        raise CorruptShard(path, "no dataset file", expected="one of shardtool, or an index of wids")
    folder = os.path.dirname(path)
    bad = [
        name for name in names
        if not _SHARD_NAME.fullmatch(name) or ".." in name.split("/") or printable(name) != name
        or (":" in name if urls else "://" in name)
    ]  # fmt: skip
    if bad:
        raise CorruptShard(
            path, f"names that are no shards beside it: {listing([printable(name) for name in bad])}",
            expected="names of files", remedy="Nothing was read from there.",
        )  # fmt: skip
    check_below(path, {os.path.dirname(name) for name in names})
    return Found(tuple(os.path.join(folder, name) for name in names), path, folder, own=listed is not None)


def check_below(path: str, folders: set[str]) -> None:
    """See that none of the folders that a dataset file names is a link that leads out of its own folder.

    Raises:
        CorruptShard: One is.
    """
    folder = os.path.dirname(path)
    top = os.path.join(os.path.realpath(folder or "."), "")
    for below in sorted(folders - {""}):
        if not os.path.join(os.path.realpath(os.path.join(folder, below)), "").startswith(top):
            raise CorruptShard(
                path, f"the folder {printable(below)} is a link out of {printable(folder or '.')}",
                expected="shards in the dataset file's folder, or below it", remedy="Nothing was read from there.",
            )  # fmt: skip


def _wids_names(data: bytes) -> list[str] | None:
    import json

    try:
        document = json.loads(data)
        names = [shard["url"] for shard in document["shardlist"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return names if all(isinstance(name, str) for name in names) else None


def _is_dataset_file(path: str) -> bool:
    try:
        return os.path.isfile(path) and shard_names(read_small(path)) is not None
    except OSError:
        return False


def _dataset_file_of(folder: str, shards: list[str]) -> str | None:
    """Return the dataset file that lists exactly these shards; None where there is none."""
    try:
        names = sorted(os.listdir(folder or "."))
    except OSError:
        return None
    wanted = [os.path.basename(shard) for shard in shards]
    for name in names:
        path = os.path.join(folder, name)
        if name.endswith(DATASET_SUFFIX) and _is_dataset_file(path) and shard_names(read_small(path)) == wanted:
            return path
    return None


def read_small(path: str, limit: int = 2**30, *, ending: bytes = b"") -> bytes:
    """Return a whole file that must be small and plain.

    Args:
        path: Of the file.
        limit: Bytes that it may have.
        ending: How a large one must end, or none of it is read: large files that hold nothing are cheap to make.

    Raises:
        OSError: It cannot be read, or is too large.
    """
    with open(os.open(path, READ_FOLLOWING), "rb") as file:
        fact = os.fstat(file.fileno())
        if not stat.S_ISREG(fact.st_mode):
            raise OSError(errno.EINVAL, "no plain file", path)
        if fact.st_size > limit:
            raise OSError(errno.EFBIG, f"{fact.st_size:,} bytes, too large", path)
        if fact.st_size > _LARGE and os.pread(file.fileno(), len(ending), fact.st_size - len(ending)) != ending:
            raise OSError(errno.EINVAL, "not what its name says", path)
        return file.read()


Self = TypeVar("Self", bound="ShardFile")


class ShardFile:
    """The bytes of one shard, at any place, through a window: many headers cost one system call.

    A place that lies far from the last one is read by 4 KiB only. Use it in a `with` block.

    Raises:
        CorruptShard: It is no plain file, or cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._fd = os.open(path, READ_PLAIN)
        except OSError as error:
            raise CorruptShard(path, f"cannot be opened: {(error.strerror or str(error)).lower()}") from None
        fact = os.fstat(self._fd)
        self.size, self.mtime_ns = fact.st_size, fact.st_mtime_ns
        if not stat.S_ISREG(fact.st_mode):
            os.close(self._fd)
            raise CorruptShard(path, "no plain file")
        self._start, self._window = 0, b""

    def fileno(self) -> int:
        """Return the file's descriptor, which is closed with this object."""
        return self._fd

    def __enter__(self: Self) -> Self:  # noqa: PYI019 - typing.Self is new in 3.11
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def read(self, offset: int, length: int) -> bytes | memoryview:
        """Return `length` bytes from `offset` on: fewer only at the end of the file.

        Raises:
            CorruptShard: The disk fails.
        """
        at = offset - self._start
        if at >= 0 and at + length <= len(self._window):
            return self._window[at : at + length]
        near = 0 <= at <= len(self._window) + _NEAR
        wanted = min(max(length, _WINDOW if near else _HOP), max(0, self.size - offset))
        try:
            self._start, self._window = offset, os.pread(self._fd, wanted, offset)
            while len(self._window) < min(length, self.size - offset):  # a network file system may return less
                more = os.pread(self._fd, length - len(self._window), offset + len(self._window))
                if not more:
                    break
                self._window += more
        except OSError as error:
            raise self._failed(offset, error) from None
        return self._window[:length]

    def _failed(self, offset: int, error: OSError) -> CorruptShard:
        found = (error.strerror or str(error)).lower()
        return CorruptShard(self.path, f"cannot be read: {found}", offset=offset)


class SummedFile(ShardFile):
    """The bytes of one shard, best read from its start on: the CRC-32C of the file is taken on the way.

    Each block is summed while it is in the processor's cache, so that whoever takes checksums of payloads too pays
    for one pass. A place behind the window is read again, and not summed twice. What `read` returns holds until the
    next call.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._view = memoryview(bytearray(2 * _WINDOW))
        self._crc = self._end = self._held = 0  # of what was summed; where that ends; bytes in the window

    def read(self, offset: int, length: int) -> bytes | memoryview:
        """Return `length` bytes from `offset` on: fewer only at the end of the file.

        Raises:
            CorruptShard: The disk fails.
        """
        at = offset - self._start
        if at >= 0 and at + length <= self._held:
            return self._view[at : at + length]
        if at < 0:
            return self._again(offset, length)
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

    def crc(self) -> int:
        """Read the rest, and return the CRC-32C of the file."""
        while self._fill(0):
            pass
        return self._crc

    def _fill(self, at: int) -> int:
        """Read the next block to a place in the window; return its bytes. At 0 it is all that the window holds."""
        block = self._view[at : at + min(_WINDOW, max(0, self.size - self._end))]
        try:
            got = os.preadv(self._fd, [block], self._end) if len(block) else 0
        except OSError as error:
            raise self._failed(self._end, error) from None
        self._crc = crc32c(block[:got], self._crc)
        if not at:
            self._start = self._end
        self._held = at + got
        self._end += got
        return got

    def _again(self, offset: int, length: int) -> bytes:
        try:
            return os.pread(self._fd, min(length, max(0, self.size - offset)), offset)
        except OSError as error:
            raise self._failed(offset, error) from None


class PackedFile:
    """The bytes of a compressed shard, in sequence: a place before the last one can be read again only if it is held.

    Raises:
        CorruptShard: It is no plain file, or cannot be opened.
    """

    def __init__(self, path: str) -> None:
        import pyarrow as pa

        self.path, self.size = path, -1
        kind = "zstd" if path.endswith(".zst") else "gzip"
        with ShardFile(path) as plain:  # opens no FIFO, and follows no link
            file = os.fdopen(os.dup(plain.fileno()), "rb")
        try:
            self._stream = pa.CompressedInputStream(pa.PythonFile(file, "r"), kind)
        except (OSError, ValueError) as error:
            file.close()
            raise CorruptShard(path, f"cannot be opened: {error}") from None
        self._start, self._window = 0, b""
        self._held: IO[bytes] | None = None
        self._held_start = self._held_end = 0

    def __enter__(self) -> PackedFile:  # noqa: PYI034 - typing.Self is new in 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        if self._held is not None:
            self._held.close()

    def hold(self, offset: int, length: int) -> None:
        """Keep the bytes at a place at hand, in a temporary file, until the next are: these can be read in any order.

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
            found = f"no room for {length:,} bytes of {self.path}: {(error.strerror or str(error)).lower()}"
            raise OutputFailed(gettempdir(), found, remedy="Let TMPDIR name a folder that has room.") from None
        self._held_start, self._held_end = offset, at

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
                self._window = self._stream.read(_WINDOW)
                if not self._window:
                    return b""
            at = offset - self._start
            while len(self._window) < at + length and (more := self._stream.read(max(_WINDOW, length))):
                self._window = self._window[at:] + more
                self._start, at = offset, 0
        except (OSError, ValueError) as error:
            raise CorruptShard(self.path, f"cannot be decompressed: {error}", offset=offset) from None
        return self._window[at : at + length]


def open_shard(path: str) -> ShardFile | PackedFile:
    """Return a shard for reading, compressed or not.

    Raises:
        CorruptShard: It cannot be opened.
    """
    return PackedFile(path) if path.endswith(COMPRESSED) else ShardFile(path)


def shard_format(path: str) -> str:
    """Return `tar` or `tfrecord`.

    Raises:
        InvalidRequest: The name has neither's ending.
    """
    name = path.removesuffix(".gz").removesuffix(".zst")
    if name.endswith((".tar", ".tgz")):
        return "tar"
    if name.endswith((".tfrecord", ".tfrecords")) or ".tfrecord-" in os.path.basename(name):
        return "tfrecord"
    raise InvalidRequest(path, "neither tar nor TFRecord by its name", expected=f"one of {', '.join(ENDINGS)}")
