"""The shards that are open for reading: not more than a process can spare, given back when others are wanted.

A shard is read at places only (`os.pread`, or ranges of an object), so that threads and forked processes share no
position in it. It is not mapped into memory: where a file was cut, or a disk fails, a mapping ends the process instead
of naming the shard, and from a cold disk a sample of 14 KB takes 200 KB of reading (measured). A compressed one is
unpacked once into a temporary file without a name, which goes with its descriptor.
"""

from __future__ import annotations

import os
import resource
from collections import OrderedDict
from dataclasses import dataclass
from functools import reduce
from os import PathLike
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from shardtool.dataset.shard_file import PackedFile, is_packed, unopened
from shardtool.errors import CorruptShard, InvalidRequest, raise_if_machines, reason
from shardtool.fingerprint import crc32c
from shardtool.request.settings import check_choice
from shardtool.storage.open_file import open_blob, open_plain
from shardtool.storage.places import is_url
from shardtool.storage.remote.blob import Blob, read_places
from shardtool.storage.shared import ForkLock
from shardtool.values import BLOCK, OnBadSample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.dataset.find import StoredShard

    Numbers = NDArray[np.int64]


REMEDY = "Run `shardtool verify`; read with on_error='skip' to go on without what is damaged."
_MOST_OPEN = 256
_SHARE = 4  # of the descriptors that a process may have, shards take one in so many
_ALL = 2**62  # bytes: no shard has more
_ADVICE = 2**17  # bytes: some systems take no more of one piece of advice
_GLANCE = 2**20  # bytes: where the last of so many is in memory, no advice is given: it takes 1 us for each 64 KB
_pread = os.pread


class CachedShard(Protocol):
    """A shard in a local cache, held until it is closed."""

    path: str

    def close(self) -> None:
        """Let the cache remove the shard when it needs room."""


class ShardCache(Protocol):
    """A cache of whole shards, which gives each a path that is fast to read."""

    def open(self, shard: StoredShard) -> CachedShard:
        """Return a shard, copied into the cache where it is not there yet."""


@runtime_checkable
class CopyingCache(ShardCache, Protocol):
    """A cache whose shards have a source, from which they are copied."""

    def expect(self, shard: StoredShard) -> None:
        """Copy a shard that is read soon, where there is room."""

    def drop(self, shard: StoredShard) -> None:
        """Remove the copy of a shard, which was found damaged and is held no more."""


@runtime_checkable
class TakenShards(ShardCache, Protocol):
    """The paths of shards that a growing cache holds, for as long as something refers to this."""

    def __iter__(self) -> Iterator[str]:
        """Return the paths."""
        ...


@runtime_checkable
class GrowingCache(Protocol):
    """A cache into which samplers write."""

    def refresh(self) -> TakenShards:
        """Return the shards that are finished by now."""
        ...


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
        self._blob: Blob | None = None
        self._checksum: int | None = None
        self._held: CachedShard | None = None
        self.path, self._pid = shard.path, os.getpid()
        self._held = cache.open(shard) if cache else None
        path = self._held.path if self._held else shard.path
        self.copied = path != shard.path
        packed = is_packed(shard.path)
        try:
            if not is_url(path):
                self.fd, fact = open_plain(path)
                found = fact.st_size
            elif not packed:
                self._blob = open_blob(path, size)
                found = self._blob.size
        except OSError as error:
            raise unopened(shard.path, error) from None
        if size is not None and not (packed and is_url(path)) and found != size:
            raise CorruptShard(
                shard.path, f"{found:,} bytes", expected=f"{size:,}, as its dataset says",
                remedy="The shard changed or was cut: `shardtool verify` says more.",
            )  # fmt: skip
        if packed:
            if self.fd >= 0:
                os.close(self.fd)
                self.fd = -1
            with PackedFile(path) as unpacked:
                self.fd = os.dup(unpacked.hold(0, _ALL).fileno())

    def __del__(self) -> None:
        if os is None:  # the interpreter ends: its modules are gone, and the system closes files
            return
        if self.fd >= 0:
            os.close(self.fd)
        if self._held is not None and self._pid == os.getpid():  # a forked process has no lease of its own
            self._held.close()

    def let_go(self) -> None:
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
                yield from _read_elsewhere(self._blob, offsets, lengths)
                return
            for at, length in zip(offsets, lengths, strict=True):
                yield read_at(fd, length, at)
        except EOFError as error:
            end, missing = error.args
            expected = f"{missing:,} more bytes"
            raise CorruptShard(self.path, "the shard ends", offset=end, expected=expected, remedy=REMEDY) from None
        except OSError as error:
            raise_if_machines(error, self.path)
            raise CorruptShard(self.path, f"cannot be read: {reason(error)}", offset=at, remedy=REMEDY) from None

    def checksum(self, size: int) -> int:
        """Return the CRC-32C of the first bytes, so many: each is read once, for as long as the shard is open."""
        if self._checksum is None:
            starts = range(0, size, BLOCK)
            sizes = [min(BLOCK, size - at) for at in starts]
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
        begins = np.flatnonzero(np.append(True, starts[1:] - ends[:-1] > _ADVICE))
        lasts = ends[np.append(begins[1:], len(starts)) - 1].tolist()
        for start, end in zip(starts[begins].tolist(), lasts, strict=True):
            for first in range(start, end, _GLANCE):
                last = min(end, first + _GLANCE)
                for at in () if self._holds(last - 1) else range(first, last, _ADVICE):
                    os.posix_fadvise(self.fd, at, _ADVICE, os.POSIX_FADV_WILLNEED)

    def _holds(self, at: int) -> bool:
        """Tell whether the system has a byte in its memory; not, where it cannot say."""
        try:
            return os.preadv(self.fd, (bytearray(1),), at, os.RWF_NOWAIT) == 1
        except (OSError, AttributeError, NotImplementedError):
            return False


def read_at(fd: int, length: int, offset: int) -> bytes:
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


def _read_elsewhere(blob: Blob, offsets: Sequence[int], lengths: Sequence[int]) -> Iterator[bytes]:
    """Yield the bytes at places of an object.

    Raises:
        OSError: It is another one by now, or it is gone.
        ShardError: A store or a server fails.
        EOFError: It ends before: where, and how many bytes are missing.
    """
    for at, length, data in zip(offsets, lengths, read_places(blob, offsets, lengths), strict=True):
        if len(data) < length:
            raise EOFError(at + len(data), length - len(data))
        yield data


class OpenFiles:
    """The open shards of a catalog; safe in threads.

    Args:
        cache: Where shards are copied to before they are read.
        given_back: Called when shards are no longer kept: who keeps some at hand lets them go.

    Attributes:
        most: How many are kept open.
    """

    def __init__(self, cache: ShardCache | None, given_back: Callable[[], None] = lambda: None) -> None:
        self._cache, self._open, self._given_back = cache, OrderedDict[str, OpenFile](), given_back
        self._renewed = set[str]()
        self.most = _most_open()
        self._lock = ForkLock()

    def open(self, shard: StoredShard, size: int | None = None) -> OpenFile:
        """Return a shard, opened now or before.

        Args:
            shard: Which one.
            size: Bytes that it must have; None: not known.

        Raises:
            CorruptShard: It cannot be opened, or has another size.
            OutputFailed: There is no room to unpack it.
        """
        with self._lock:
            found = self._open.get(shard.path)
            if found is not None:
                self._open.move_to_end(shard.path)
                return found
        found = OpenFile(shard, self._cache, size)
        with self._lock:
            found = self._open.setdefault(shard.path, found)
            while len(self._open) > self.most:
                self._open.popitem(last=False)
                self._given_back()
        return found

    def renew(self, shard: StoredShard, file: OpenFile) -> bool:
        """Drop the copy of a shard in the cache, which was found damaged; return whether to read the shard again.

        A shard is copied again once: what is damaged then has a damaged source.
        """
        with self._lock:
            if not file.copied or not isinstance(self._cache, CopyingCache):
                return False
            if shard.path in self._renewed:
                return self._open.get(shard.path) is not file  # another thread has dropped it meanwhile
            self._renewed.add(shard.path)
            if self._open.get(shard.path) is file:
                del self._open[shard.path]
            self._given_back()
            file.let_go()
            self._cache.drop(shard)
            return True


def _most_open() -> int:
    """Return how many shards may be open."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MOST_OPEN if most == resource.RLIM_INFINITY else max(1, min(_MOST_OPEN, most // _SHARE))


# How samples are read: what `shardtool.open` is asked for, and which fields the stages behind it want.


@dataclass(frozen=True)
class ReadOptions:
    """How samples are read.

    Attributes:
        check: Whether the CRC-32C of each payload is compared with its index.
        cache: Where shards are copied to before they are read.
        on_error: Whether a damaged sample is an error, or left out and counted.
        metadata: Whether samples have the metadata of their sidecar, too.
        fields: The fields that are wanted; None: all.
    """

    check: bool = False
    cache: ShardCache | None = None
    on_error: OnBadSample = "raise"
    metadata: bool = False
    fields: frozenset[str] | None = None

    def __post_init__(self) -> None:
        check_choice("on_error", self.on_error, OnBadSample)
        if isinstance(self.cache, str | PathLike):
            raise InvalidRequest("cache", f"{self.cache!r}", expected="a shardtool.Cache of that folder")
