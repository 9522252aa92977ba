"""Keep shards open, within the process's file descriptor limit.

Threads and forked processes share the file position, so reads use explicit offsets. Shards are not memory-mapped,
because a mapping kills the process if a file is truncated or a disk fails.
"""

from __future__ import annotations

import os
import resource
from functools import reduce
from typing import TYPE_CHECKING
from weakref import WeakSet

import numpy as np

from shardtool.dataset.shard_file import CompressedFile, is_compressed, open_error
from shardtool.errors import CorruptShard, os_error_text, raise_if_machine_error
from shardtool.fingerprint import crc32c
from shardtool.read.index_store import LruCache
from shardtool.read.options import CachedShard, CopyingCache, ShardCache
from shardtool.storage import remote
from shardtool.storage.files import open_plain
from shardtool.storage.remote.address import is_url
from shardtool.storage.shared_blocks import ForkLock
from shardtool.values import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardtool.dataset.stored import StoredShard
    from shardtool.read.catalog import Numbers
    from shardtool.storage.remote.objects import RemoteObject


DAMAGE_FIX = "Run `shardtool verify`, or open with on_error='skip' to skip damaged samples."
_MAX_SHARD_BYTES = 2**62
_ADVICE_BYTES = 2**17  # some systems read ahead at most this many bytes per call of posix_fadvise
_ADVICE_BLOCK_BYTES = 2**20  # skip blocks in the page cache, because posix_fadvise is slow (1 us per 64 KB)
_pread = os.pread
_MAX_OPEN_SHARDS = 256
_DESCRIPTORS_PER_SHARD = 4  # a dataset uses at most a quarter of the file descriptors
_DESCRIPTORS_PER_SHARD_OF_ALL = 3  # all datasets together use at most a third of the file descriptors


class OpenShardFile:
    """An open shard. It is closed when the last reference is deleted, so other threads can finish reading.

    Attributes:
        fd: File descriptor, or -1 for an uncompressed remote shard.
    """

    def __init__(self, shard: StoredShard, cache: ShardCache | None, size: int | None = None) -> None:
        self.fd = -1
        self._blob: RemoteObject | None = None
        self._checksum: int | None = None
        self._lease: CachedShard | None = None
        self.path, self._pid = shard.path, os.getpid()
        self._lease = cache.open(shard) if cache else None
        path = self._lease.path if self._lease else shard.path
        self.copied = path != shard.path
        compressed = is_compressed(shard.path)
        try:
            if not is_url(path):
                self.fd, status = open_plain(path)
                actual_size = status.st_size
            elif not compressed:
                self._blob = remote.objects.open_remote(path, size)
                actual_size = self._blob.size
        except OSError as error:
            raise open_error(shard.path, error) from None
        if size is not None and not (compressed and is_url(path)) and actual_size != size:
            raise CorruptShard(
                shard.path, f"{actual_size:,} bytes", expected=f"{size:,}, as its dataset lists",
                remedy="The shard changed or was truncated. Run `shardtool verify`.",
            )  # fmt: skip
        if compressed:
            if self.fd >= 0:
                os.close(self.fd)
                self.fd = -1
            with CompressedFile(path) as unpacked:
                self.fd = os.dup(unpacked.hold(0, _MAX_SHARD_BYTES).fileno())

    def __del__(self) -> None:
        if os is None:  # at exit, Python sets module variables to None
            return
        if self.fd >= 0:
            os.close(self.fd)
        if self._lease is not None and self._pid == os.getpid():  # after a fork, only the parent releases the lease
            self._lease.close()

    def release_lease(self) -> None:
        """Allow the cache to delete the copied shard. This object can still read it."""
        if self._lease is not None:
            self._lease.close()

    def read(self, offsets: Sequence[int], lengths: Sequence[int]) -> Iterator[bytes]:
        """Yield the bytes of several ranges, or raise CorruptShard."""
        fd, offset = self.fd, 0
        try:
            if self._blob is not None:
                yield from _read_blob(self._blob, offsets, lengths)
                return
            for offset, length in zip(offsets, lengths, strict=True):
                yield read_exactly(fd, length, offset)
        except EOFError as error:
            end, missing = error.args
            expected = f"{missing:,} more bytes"
            raise CorruptShard(self.path, "the shard ends", offset=end, expected=expected, remedy=DAMAGE_FIX) from None
        except OSError as error:
            raise_if_machine_error(error, self.path)
            found = f"cannot be read: {os_error_text(error)}"
            raise CorruptShard(self.path, found, offset=offset, remedy=DAMAGE_FIX) from None

    def checksum(self, size: int) -> int:
        """Return the CRC-32C of the first `size` bytes, computed once."""
        if self._checksum is None:
            starts = range(0, size, BLOCK_BYTES)
            sizes = [min(BLOCK_BYTES, size - start) for start in starts]
            self._checksum = reduce(lambda crc, block: crc32c(block, crc), self.read(starts, sizes), 0)
        return self._checksum

    def read_ahead(self, starts: Numbers, ends: Numbers) -> None:
        """Ask the operating system to load these ranges (ascending) into its page cache."""
        if not len(starts) or not hasattr(os, "posix_fadvise"):
            return
        # join ranges with small gaps
        firsts = np.flatnonzero(np.append(True, starts[1:] - ends[:-1] > _ADVICE_BYTES))
        lasts = np.append(firsts[1:], len(starts)) - 1
        for start, end in zip(starts[firsts].tolist(), ends[lasts].tolist(), strict=True):
            for first in range(start, end, _ADVICE_BLOCK_BYTES):
                last = min(end, first + _ADVICE_BLOCK_BYTES)
                for offset in () if self._is_cached(last - 1) else range(first, last, _ADVICE_BYTES):
                    os.posix_fadvise(self.fd, offset, _ADVICE_BYTES, os.POSIX_FADV_WILLNEED)

    def _is_cached(self, offset: int) -> bool:
        try:
            return os.preadv(self.fd, (bytearray(1),), offset, os.RWF_NOWAIT) == 1
        except (OSError, AttributeError, NotImplementedError):
            return False


def read_exactly(fd: int, length: int, offset: int) -> bytes:
    """Return `length` bytes of a file.

    Raises:
        OSError: The file cannot be read.
        EOFError: The file ends too early. The error's arguments are the file size and the number of missing bytes.
    """
    data = _pread(fd, length, offset)
    if len(data) == length:
        return data
    parts, count = [data], len(data)
    # network file systems may return fewer bytes, and the kernel returns at most 2 GiB
    while parts[-1] and count < length:
        parts.append(_pread(fd, length - count, offset + count))
        count += len(parts[-1])
    if count < length:
        raise EOFError(offset + count, length - count)
    return b"".join(parts)


def _read_blob(blob: RemoteObject, offsets: Sequence[int], lengths: Sequence[int]) -> Iterator[bytes]:
    for offset, length, data in zip(offsets, lengths, remote.objects.read_ranges(blob, offsets, lengths), strict=True):
        if len(data) < length:
            raise EOFError(offset + len(data), length - len(data))
        yield data


class OpenFiles(LruCache[str, OpenShardFile]):
    """The open shards of a catalog."""

    def __init__(self, cache: ShardCache | None, on_release: Callable[[], None] = lambda: None) -> None:
        super().__init__(_max_open_shards(_DESCRIPTORS_PER_SHARD, _MAX_OPEN_SHARDS), on_release=on_release)
        self._cache, self._renewed = cache, set[str]()
        with _all_files_lock:
            _all_files.add(self)

    def __len__(self) -> int:
        return len(self._kept)

    def open(self, shard: StoredShard, size: int | None = None) -> OpenShardFile:
        """Return an open shard. `size` is the expected size, if known."""
        return self.get(shard.path, lambda: self._open(shard, size))

    def _open(self, shard: StoredShard, size: int | None) -> OpenShardFile:
        with _all_files_lock:
            all_files = [*_all_files]
        excess = sum(map(len, all_files)) + 1 - _max_open_shards(_DESCRIPTORS_PER_SHARD_OF_ALL)
        if excess > 0:
            max(all_files, key=len).close_oldest(excess)
        return OpenShardFile(shard, self._cache, size)

    def close_oldest(self, count: int) -> None:
        """Close the least recently used shards, but keep one."""
        with self._lock:
            for _ in range(min(count, len(self._kept) - 1)):
                self._kept.popitem(last=False)
                self._used -= 1
            self._on_release()

    def renew(self, shard: StoredShard, file: OpenShardFile) -> bool:
        """Delete a damaged copy from the cache, and return whether to open the shard again.

        A shard is copied again only once, because the original may be damaged.
        """
        with self._lock:
            if not file.copied or not isinstance(self._cache, CopyingCache):
                return False
            if shard.path in self._renewed:
                return self._kept.get(shard.path) is not file  # True if another thread has deleted the copy
            self._renewed.add(shard.path)
            if self._kept.get(shard.path) is file:
                del self._kept[shard.path]
                self._used -= 1
            self._on_release()
            file.release_lease()
            self._cache.drop(shard)
            return True


_all_files = WeakSet[OpenFiles]()
_all_files_lock = ForkLock()


def _max_open_shards(descriptors_per_shard: int, maximum: int = 2**20) -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return maximum if limit == resource.RLIM_INFINITY else max(1, min(maximum, limit // descriptors_per_shard))
