"""Open shards: no more than a process can spare, least recently used closed first.

A shard is read at offsets only (`os.pread`, or ranges of an object), so that threads and forked processes share no
file
position. It is not memory-mapped: where a file was cut or a disk fails, a mapping kills the process instead of
naming the
shard, and from a cold disk a sample of 14 KB takes 200 KB of reading (measured). A compressed shard is unpacked
once into
a temporary file without a name.
"""

from __future__ import annotations

import os
import resource
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from shardtool.dataset.shard_file import CompressedFile, is_compressed, open_error
from shardtool.errors import CorruptShard, os_error_text, raise_if_machine_error
from shardtool.fingerprint import crc32c
from shardtool.read.index_store import LruCache
from shardtool.read.options import CachedShard, CopyingCache, ShardCache
from shardtool.storage.files import open_plain
from shardtool.storage.remote.address import is_url
from shardtool.storage.remote.objects import RemoteObject, open_remote, read_ranges
from shardtool.values import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardtool.dataset.stored import StoredShard
    from shardtool.read.catalog import Numbers


DAMAGE_FIX = "Run `shardtool verify`; read with on_error='skip' to go on without what is damaged."


_MAX_SHARD_BYTES = 2**62  # bytes: no shard has more


_ADVICE_BYTES = 2**17  # bytes: some systems take no more of one piece of advice


_ADVICE_BLOCK_BYTES = (
    2**20
)  # bytes: where the last of so many is in memory, no advice is given: it takes 1 us for each 64 KB


_pread = os.pread


_MAX_OPEN_SHARDS = 256


_DESCRIPTORS_PER_SHARD = 4  # of the descriptors that a process may have, shards take one in so many


class OpenFile:
    """The bytes of one shard; closed with the last reference to it, so that other threads may still read.

    Args:
        shard: Which one.
        cache: Where it is copied to first.
        size: Bytes that it must have; None: not known.

    Attributes:
        fd: Its descriptor; -1: it lies elsewhere, and is read by `read` alone.
        path: Of the shard, for messages.
        copied: Whether a copy of it is read.

    Raises:
        CorruptShard: It cannot be opened, or has another size.
        OutputFailed: There is no room to unpack it.
    """

    def __init__(self, shard: StoredShard, cache: ShardCache | None, size: int | None = None) -> None:
        self.fd = -1
        self._blob: RemoteObject | None = None
        self._checksum: int | None = None
        self._held: CachedShard | None = None
        self.path, self._pid = shard.path, os.getpid()
        self._held = cache.open(shard) if cache else None
        path = self._held.path if self._held else shard.path
        self.copied = path != shard.path
        packed = is_compressed(shard.path)
        try:
            if not is_url(path):
                self.fd, fact = open_plain(path)
                found = fact.st_size
            elif not packed:
                self._blob = open_remote(path, size)
                found = self._blob.size
        except OSError as error:
            raise open_error(shard.path, error) from None
        if size is not None and not (packed and is_url(path)) and found != size:
            raise CorruptShard(
                shard.path, f"{found:,} bytes", expected=f"{size:,}, as its dataset says",
                remedy="The shard changed or was cut: `shardtool verify` says more.",
            )  # fmt: skip
        if packed:
            if self.fd >= 0:
                os.close(self.fd)
                self.fd = -1
            with CompressedFile(path) as unpacked:
                self.fd = os.dup(unpacked.hold(0, _MAX_SHARD_BYTES).fileno())

    def __del__(self) -> None:
        if os is None:  # the interpreter ends: its modules are gone, and the system closes files
            return
        if self.fd >= 0:
            os.close(self.fd)
        if self._held is not None and self._pid == os.getpid():  # a forked process has no lease of its own
            self._held.close()

    def release_lease(self) -> None:
        """End the lease on a copy; what is open stays readable."""
        if self._held is not None:
            self._held.close()

    def read(self, offsets: Sequence[int], lengths: Sequence[int]) -> Iterator[bytes]:
        """Yield the bytes at some places, each read when it is asked for.

        Raises:
            CorruptShard: The shard ends before, or the disk fails.
        """
        fd, at = self.fd, 0
        try:
            if self._blob is not None:
                yield from _read_blob(self._blob, offsets, lengths)
                return
            for at, length in zip(offsets, lengths, strict=True):
                yield read_exactly(fd, length, at)
        except EOFError as error:
            end, missing = error.args
            expected = f"{missing:,} more bytes"
            raise CorruptShard(self.path, "the shard ends", offset=end, expected=expected, remedy=DAMAGE_FIX) from None
        except OSError as error:
            raise_if_machine_error(error, self.path)
            raise CorruptShard(
                self.path, f"cannot be read: {os_error_text(error)}", offset=at, remedy=DAMAGE_FIX
            ) from None

    def checksum(self, size: int) -> int:
        """Return the CRC-32C of the first bytes, so many: each is read once, for as long as the shard is open."""
        if self._checksum is None:
            starts = range(0, size, BLOCK_BYTES)
            sizes = [min(BLOCK_BYTES, size - at) for at in starts]
            self._checksum = reduce(lambda crc, block: crc32c(block, crc), self.read(starts, sizes), 0)
        return self._checksum

    def expect(self, starts: Numbers, ends: Numbers) -> None:
        """Let the system read places ahead, into its own memory; where it cannot, they are read when they are wanted.

        Args:
            starts: int64 [n], ascending.
            ends: int64 [n].
        """
        if not len(starts) or not hasattr(os, "posix_fadvise"):
            return
        begins = np.flatnonzero(np.append(True, starts[1:] - ends[:-1] > _ADVICE_BYTES))
        lasts = ends[np.append(begins[1:], len(starts)) - 1].tolist()
        for start, end in zip(starts[begins].tolist(), lasts, strict=True):
            for first in range(start, end, _ADVICE_BLOCK_BYTES):
                last = min(end, first + _ADVICE_BLOCK_BYTES)
                for at in () if self._holds(last - 1) else range(first, last, _ADVICE_BYTES):
                    os.posix_fadvise(self.fd, at, _ADVICE_BYTES, os.POSIX_FADV_WILLNEED)

    def _holds(self, at: int) -> bool:
        """Tell whether the system has a byte in its memory; not, where it cannot say."""
        try:
            return os.preadv(self.fd, (bytearray(1),), at, os.RWF_NOWAIT) == 1
        except (OSError, AttributeError, NotImplementedError):
            return False


def read_exactly(fd: int, length: int, offset: int) -> bytes:
    """Return `length` bytes of a file. A hot path: one call a payload.

    Raises:
        OSError: It cannot be read.
        EOFError: It ends before: where, and how many bytes are missing.
    """
    data = _pread(fd, length, offset)
    if len(data) == length:
        return data
    parts, got = [data], len(data)
    while parts[-1] and got < length:  # a network file system may give less, and no call gives more than 2 GiB
        parts.append(_pread(fd, length - got, offset + got))
        got += len(parts[-1])
    if got < length:
        raise EOFError(offset + got, length - got)
    return b"".join(parts)


def _read_blob(blob: RemoteObject, offsets: Sequence[int], lengths: Sequence[int]) -> Iterator[bytes]:
    """Yield the bytes at places of an object.

    Raises:
        OSError: It is another one by now, or it is gone.
        ShardError: A store or a server fails.
        EOFError: It ends before: where, and how many bytes are missing.
    """
    for at, length, data in zip(offsets, lengths, read_ranges(blob, offsets, lengths), strict=True):
        if len(data) < length:
            raise EOFError(at + len(data), length - len(data))
        yield data


class OpenFiles(LruCache[str, OpenFile]):
    """The open shards of a catalog, not more than a process can spare.

    Args:
        cache: Where shards are copied to before they are read.
        given_back: Called when shards are no longer kept.
    """

    def __init__(self, cache: ShardCache | None, on_release: Callable[[], None] = lambda: None) -> None:
        super().__init__(_max_open_shards(), on_release=on_release)
        self._cache, self._renewed = cache, set[str]()

    def open(self, shard: StoredShard, size: int | None = None) -> OpenFile:
        """Return a shard, opened now or before.

        Args:
            shard: Which one.
            size: Bytes that it must have; None: not known.

        Raises:
            CorruptShard: It cannot be opened, or has another size.
            OutputFailed: There is no room to unpack it.
        """
        return self.get(shard.path, lambda: OpenFile(shard, self._cache, size))

    def renew(self, shard: StoredShard, file: OpenFile) -> bool:
        """Drop the copy of a shard in the cache, which was found damaged; return whether to read the shard again.

        A shard is copied again once: what is damaged then has a damaged source.
        """
        with self._lock:
            if not file.copied or not isinstance(self._cache, CopyingCache):
                return False
            if shard.path in self._renewed:
                return self._kept.get(shard.path) is not file  # another thread has dropped it meanwhile
            self._renewed.add(shard.path)
            if self._kept.get(shard.path) is file:
                del self._kept[shard.path]
                self._used -= 1
            self._given_back()
            file.release_lease()
            self._cache.drop(shard)
            return True


def _max_open_shards() -> int:
    """Return how many shards may be open."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        _MAX_OPEN_SHARDS
        if most == resource.RLIM_INFINITY
        else max(1, min(_MAX_OPEN_SHARDS, most // _DESCRIPTORS_PER_SHARD))
    )
