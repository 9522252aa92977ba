"""The indexes of a catalog's shards: where the samples of each shard are, and which number a key has.

A shard's index is read when it is first needed, by one process, which leaves the columns in the catalog's
`SharedBlocks`.
Other processes, and later rounds of a stream, map them from there. Without shared blocks, each process keeps as
many
indexes as fit.
"""

from __future__ import annotations

import os
import time
import zlib
from bisect import bisect_right
from collections import OrderedDict
from contextlib import suppress
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
import pyarrow as pa

from shardtool.dataset.shard_index import ShardIndex
from shardtool.errors import CorruptShard
from shardtool.fingerprint import crc32c
from shardtool.messages import recreate_hint
from shardtool.read.catalog import Catalog, logger
from shardtool.read.metadata import metadata_schema, read_sidecar_table
from shardtool.storage.remote.address import is_url
from shardtool.storage.shared_blocks import ForkLock
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Hashes = NDArray[np.uint64]


_INDEX_CACHE_BYTES = 2**25  # bytes of indexes that a process looks at, or keeps where there are no shared blocks


_MAX_CACHED_INDEXES = 4096  # indexes, each with a few arrays


_VERIFY_FIX = "Run `shardtool verify`."


_MAX_KEYS_SEARCHED_SINGLY = 16  # keys that are looked for in a shard one by one


_MAX_HASHES_IN_MEMORY = 2**22  # keys that are sorted in memory at a time


_HASH_BYTES = 8  # bytes of a hash


Key = TypeVar("Key")


Value = TypeVar("Value")


class LruCache(Generic[Key, Value]):
    """What was made for keys, and used last; safe in threads and after a fork.

    Args:
        room: How much is kept; a value at least.
        size: How much of that a value takes.
        given_back: Called when something is no longer kept: who keeps some at hand lets it go.
    """

    def __init__(
        self, room: int, size: Callable[[Value], int] = lambda _: 1, on_release: Callable[[], None] = lambda: None
    ) -> None:
        self.room, self._size, self._given_back = room, size, on_release
        self._kept, self._used, self._lock = OrderedDict[Key, Value](), 0, ForkLock()

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """Return the value of a key, made now or before."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = make()  # meanwhile, another thread may make it, too
        with self._lock:
            if key not in self._kept:
                self._kept[key] = made
                self._used += self._size(made)
            found = self._kept[key]
            while self._used > self.room and len(self._kept) > 1:
                self._used -= self._size(self._kept.popitem(last=False)[1])
                self._given_back()
        return found


class IndexStore(LruCache[int, ShardIndex]):
    """The indexes of a catalog's shards, and what they say together; picklable without them.

    A key is looked for in the shard whose first and last key, as the dataset file says, lie around it. That keys ascend
    in between is only a guess: what is not found there is looked up in an index of all keys, 12 to 16 bytes a sample:
    their hashes, ascending, and the number of the sample of each. It is built once for all processes when it is first
    needed, and lies in the catalog's shared blocks behind those of shards, or in memory where there is no room for it.

    Args:
        catalog: Whose.
        given_back: Called when indexes, or their pages, are no longer kept.

    Attributes:
        catalog: As given.
    """

    def __init__(self, catalog: Catalog, on_release: Callable[[], None] = lambda: None) -> None:
        super().__init__(
            _INDEX_CACHE_BYTES,
            lambda one: _INDEX_CACHE_BYTES // _MAX_CACHED_INDEXES if one.is_shared else one.nbytes,
            on_release,
        )
        self.catalog, self._tables = catalog, LruCache[int, pa.Table](_INDEX_CACHE_BYTES, lambda one: one.nbytes)
        self._seen, self._looked_at = set[int](), 0  # shared indexes that this process has looked at, and their bytes
        self._all_keys: tuple[Hashes, NDArray[np.integer]] | None = None

    def __reduce__(self) -> tuple[type[IndexStore], tuple[Catalog]]:
        return IndexStore, (self.catalog,)

    def index(self, shard: int) -> ShardIndex:
        """Return the index of a shard, by its place in the catalog.

        Where this makes too many that are shared, their pages go back to the system.

        Raises:
            CorruptShard: There is no sound sidecar, and the shard cannot be read; or it has other samples than the
                dataset file says.
        """
        found = self.get(shard, lambda: self._read(shard))
        with self._lock:
            if found.is_shared and shard not in self._seen:
                self._seen.add(shard)
                self._looked_at += found.nbytes
                if self._looked_at > _INDEX_CACHE_BYTES:
                    for one in (self.catalog, *self.catalog.parts):
                        one.shared.release_pages()
                    self._looked_at = 0
                    self._seen.clear()
                    self._given_back()
        return found

    def _read(self, shard: int) -> ShardIndex:
        dataset, place = self.catalog.dataset(shard)
        if (block := dataset.shared.read(place)) is None:
            return read_shard_index(self.catalog, shard).store_in(dataset.shared, place)
        return ShardIndex.unpacked(block)

    def keys(self, numbers: Numbers) -> list[str]:
        """Return the keys of samples, in the order of their numbers in the argument."""
        found = [""] * len(numbers)
        for shard, rows, which in self.catalog.group_by_shard(numbers):
            for at, key in zip(which.tolist(), self.index(shard).keys_of(rows), strict=True):
                found[at] = key
        return found

    @cached_property
    def _first_keys(self) -> list[str]:
        """The first key of each shard, where all keys of a shard lie before those of the next; otherwise none."""
        ranges = self.catalog.key_ranges
        ascend = all(first <= last for first, last in ranges)
        ascend = ascend and all(before[1] < after[0] for before, after in pairwise(ranges))
        return [first for first, _ in ranges] if ascend and ("", "") not in ranges else []

    def numbers(self, keys: Sequence[str]) -> Numbers:
        """Return the number of the sample of each key, -1 where there is none: int64 [keys].

        Of several samples with one key, it is always the same one.

        Raises:
            CorruptShard: A shard that had to be looked at has no sound sidecar, and is damaged.
        """
        wanted = [key.encode("utf-8", "surrogatepass") for key in keys]  # half of a pair is in no key
        found = np.full(len(keys), -1, np.int64)
        if self._all_keys is None and self._first_keys:
            self._look_in_ranges(keys, wanted, found)
        left = np.flatnonzero(found < 0)
        if len(left):
            found[left] = self._in_index([wanted[at] for at in left.tolist()])
        return found

    def _look_in_ranges(self, keys: Sequence[str], wanted: list[bytes], found: Numbers) -> None:
        """Fill in the samples that lie in the shard whose first and last key say so."""
        group_by_shard: dict[int, list[int]] = {}
        for at, key in enumerate(keys):
            shard = bisect_right(self._first_keys, key) - 1
            if shard >= 0 and key <= self.catalog.key_ranges[shard][1]:
                group_by_shard.setdefault(shard, []).append(at)
        for shard, places in sorted(group_by_shard.items()):
            index, first = self.index(shard), int(self.catalog.firsts[shard])
            if len(places) <= _MAX_KEYS_SEARCHED_SINGLY:
                rows = [index.find_row(wanted[at]) for at in places]
            else:
                of_key = {key: row for row, key in reversed([*enumerate(index.all_keys())])}
                rows = [of_key.get(wanted[at], -1) for at in places]
            found[places] = [row if row < 0 else first + row for row in rows]

    def _in_index(self, keys: list[bytes]) -> Numbers:
        """Return the number of the first sample of each key, -1 where there is none."""
        if self._all_keys is None:
            self._all_keys = self._sorted_keys()
        known, number = self._all_keys
        wanted = hash_keys(keys)
        at = np.searchsorted(known, wanted)
        found, left = np.full(len(keys), -1, np.int64), np.arange(len(keys))
        while len(left):  # once, but for hashes that several keys share
            left = left[at[left] < len(known)]
            left = left[known[at[left]] == wanted[left]]
            numbers = number[at[left]].astype(np.int64)
            there = zip(self.keys(numbers), left.tolist(), strict=True)
            fits = np.array([key.encode() == keys[one] for key, one in there], np.bool_)
            found[left[fits]] = numbers[fits]
            left = left[~fits]
            at[left] += 1
        return found

    def _sorted_keys(self) -> tuple[Hashes, NDArray[np.integer]]:
        """Return the index of all keys, which the first process that needs it makes."""
        catalog, count = self.catalog, len(self.catalog)
        kind = np.dtype(np.uint32 if count < 2**32 else np.int64)
        size, place = count * (_HASH_BYTES + kind.itemsize), len(catalog.shards)
        block: memoryview | bytearray | None = catalog.shared.read(place)
        if block is None:
            started = time.monotonic()
            block = catalog.shared.write(place, size, self._parts_of_keys(kind))
            if block is None:
                block = bytearray(size)
                for at, data in self._parts_of_keys(kind):
                    block[at : at + len(data)] = data
            logger.info("an index of %s keys was built in %.1f s", f"{count:,}", time.monotonic() - started)
        return np.frombuffer(block, np.uint64, count), np.frombuffer(block, kind, count, count * _HASH_BYTES)

    def _parts_of_keys(self, kind: np.dtype[np.integer]) -> Iterator[tuple[int, bytes]]:
        """Yield parts of the block, and where they stand: hashes, and numbers, of so many keys at a time."""
        catalog, count = self.catalog, len(self.catalog)
        everything = _hash_buffer(count)
        for shard, (first, last) in enumerate(pairwise(catalog.firsts.tolist())):
            everything[first:last] = hash_keys(self.index(shard).all_keys())
        parts, done = -(-count // _MAX_HASHES_IN_MEMORY), 0
        for part in range(parts):
            low, high = np.uint64(2**64 * part // parts), np.uint64(2**64 * (part + 1) // parts - 1)
            some = [
                everything[first : first + _MAX_HASHES_IN_MEMORY] for first in range(0, count, _MAX_HASHES_IN_MEMORY)
            ]
            rows = [
                np.flatnonzero((one >= low) & (one <= high)) + at * _MAX_HASHES_IN_MEMORY for at, one in enumerate(some)
            ]
            where = np.concatenate(rows)
            found = everything[where]
            order = np.argsort(found, kind="stable")
            yield done * _HASH_BYTES, found[order].tobytes()
            yield count * _HASH_BYTES + done * kind.itemsize, where[order].astype(kind).tobytes()
            done += len(where)

    def metadata(self, shard: int) -> pa.Table:
        """Return the metadata of a shard's samples: the columns of all sidecars, null where this one lacks them.

        Raises:
            CorruptShard: There is no sound sidecar, and the shard cannot be read.
        """
        return self._tables.get(shard, lambda: read_sidecar_table(self.catalog.shards[shard], self._schema))

    @cached_property
    def _schema(self) -> pa.Schema:
        return metadata_schema(self.catalog)


def _hash_buffer(count: int) -> Hashes:
    """Return room for so many hashes: many of them in a temporary file, if there is room for it."""
    from tempfile import TemporaryFile

    if count > _MAX_HASHES_IN_MEMORY and hasattr(os, "posix_fallocate"):
        with suppress(OSError), TemporaryFile() as file:  # the mapping outlives its descriptor
            os.posix_fallocate(file.fileno(), 0, count * _HASH_BYTES)  # or a full disk would be a signal, not an error
            return np.memmap(file, np.uint64, "r+", shape=(count,))
    return np.empty(count, np.uint64)


def hash_keys(keys: list[bytes]) -> Hashes:
    """Return a hash of each key, uint64 [keys], which depends on nothing else: its checksums of two kinds."""
    high, low = (np.fromiter(map(crc, keys), np.uint64, len(keys)) for crc in (crc32c, zlib.crc32))
    found: Hashes = high << np.uint64(32) | low
    return found


def read_shard_index(catalog: Catalog, number: int) -> ShardIndex:
    """Return the index of a shard: its sidecar, or what a walk finds.

    Raises:
        CorruptShard: There is no sound sidecar, and the shard is damaged; or it has other samples than the dataset
            file says.
    """
    shard, dataset, size = catalog.shards[number], catalog.dataset(number)[0], int(catalog.sizes[number])
    if dataset.listed and not is_url(shard.path):  # one that is elsewhere has that size, or the first read of it fails
        there = shard.size()  # of one that is missing, what opens it says more
        if there is not None and there != size:
            expected = f"{size:,}, as the dataset file says"
            raise CorruptShard(shard.path, f"{there:,} bytes", expected=expected, remedy=_VERIFY_FIX)
    found = shard.index()
    if found.walk is not None and not dataset.walks:
        raise found.damage or CorruptShard(shard.sidecar, "missing", remedy=recreate_hint())
    if found.error is not None:
        raise found.error
    if found.walk is not None and (dataset.listed or found.damage is not None):
        problem = "missing" if found.damage is None else found.damage.found
        logger.warning(
            "%s: %s; its shard was walked instead. `shardtool index` makes it again.", shard.sidecar, problem
        )
    samples = int(catalog.firsts[number + 1] - catalog.firsts[number])
    if len(found) != samples:
        expected = f"{samples:,}, as when the dataset was opened, or as its dataset file says"
        what, remedy = pluralize(len(found), "sample"), _VERIFY_FIX
        raise CorruptShard(shard.path, what, expected=expected, remedy=remedy)
    crc = int(catalog.crcs[number])
    if found.fact.crc is not None and crc not in (found.fact.crc, -1):
        what = f"the checksum {found.fact.crc:08x}, as its sidecar says"
        expected = f"{crc:08x}, as when the dataset was opened"
        raise CorruptShard(shard.path, what, expected=expected, remedy="Was it replaced? Open the dataset again.")
    return found.for_reading()
