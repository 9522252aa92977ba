"""The shards that are open for reading: not more than a process can spare, given back when others are wanted."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

from shardtool.dataset.shard_file import unopened
from shardtool.errors import CorruptShard, reason
from shardtool.storage.reading import SpanSource

if TYPE_CHECKING:
    from shardtool.dataset.opened import OpenedShard

_MOST_OPEN = 128


class CachedShard(Protocol):
    """A shard in a local cache, held until it is closed."""

    path: str

    def close(self) -> None:
        """Let the cache remove the shard when it needs room."""


class ShardCache(Protocol):
    """A cache of whole shards, which gives each a path that is fast to read."""

    def open(self, shard: OpenedShard) -> CachedShard:
        """Return a shard, copied into the cache where it is not there yet."""


class OpenFile:
    """The bytes of one shard; closed with the last reference to it, so that other threads may still read."""

    def __init__(self, shard: OpenedShard, cache: ShardCache | None) -> None:
        self._held: CachedShard | None = None
        self._held = cache.open(shard) if cache else None
        self.path = shard.path
        try:
            self._source = SpanSource(os.fsencode(self._held.path if self._held else shard.path))
        except OSError as error:
            raise unopened(shard.path, error) from None

    def __del__(self) -> None:
        if hasattr(self, "_source"):
            self._source.close()
        if self._held is not None:
            self._held.close()

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset` on.

        Raises:
            CorruptShard: The shard ends before, or the disk fails.
        """
        data = bytearray(length)
        try:
            got = self._source.read(memoryview(data), offset)
        except OSError as error:
            raise CorruptShard(self.path, f"cannot be read: {reason(error)}", offset=offset) from None
        if got < length:
            found = f"the shard ends at {offset + got:,}"
            raise CorruptShard(self.path, found, expected=f"{length - got:,} more bytes", remedy=_REMEDY)
        return bytes(data)


_REMEDY = "Run `shardtool verify`; read with on_error='skip' to go on without the sample."


class OpenFiles:
    """The open shards of a catalog; safe in threads, and empty in a process that gets it."""

    def __init__(self, cache: ShardCache | None) -> None:
        self._cache, self._lock, self._open = cache, threading.Lock(), OrderedDict[str, OpenFile]()

    def __reduce__(self) -> tuple[type[OpenFiles], tuple[ShardCache | None]]:
        return OpenFiles, (self._cache,)

    def open(self, shard: OpenedShard) -> OpenFile:
        """Return a shard, opened now or before.

        Raises:
            CorruptShard: It cannot be opened.
        """
        with self._lock:
            found = self._open.get(shard.path)
            if found is None:
                found = self._open[shard.path] = OpenFile(shard, self._cache)
            self._open.move_to_end(shard.path)
            while len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)
        return found
