"""Read and cache the indexes of a catalog's shards.

The first process that needs an index reads it into shared memory (`SharedBlocks`). If shared memory is full, each
process caches the most recently used indexes.
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
from shardtool.read.catalog import Catalog, logger
from shardtool.read.metadata import VERIFY_FIX, metadata_schema, read_index, read_sidecar_table
from shardtool.storage.remote.address import is_url
from shardtool.storage.shared_blocks import ForkLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.read.catalog import Numbers

    Hashes = NDArray[np.uint64]


_INDEX_CACHE_BYTES = 2**25
_MAX_CACHED_INDEXES = 4096
_MAX_KEYS_SEARCHED_SINGLY = 16
_MAX_HASHES_IN_MEMORY = 2**22
_HASH_BYTES = 8
Key = TypeVar("Key")
Value = TypeVar("Value")


class LruCache(Generic[Key, Value]):
    """A cache of the most recently used values. Their total size is at most `max_size`, but one value is always kept.

    The cache is safe in threads and after a fork. It calls `on_release` when it removes a value.
    """

    def __init__(
        self, max_size: int, size: Callable[[Value], int] = lambda _: 1, on_release: Callable[[], None] = lambda: None
    ) -> None:
        self.max_size, self._size, self._on_release = max_size, size, on_release
        self._kept, self._used, self._lock = OrderedDict[Key, Value](), 0, ForkLock()

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """Return the cached value of a key, or cache the result of `make`."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        value = make()  # not locked, so another thread may create the same value
        with self._lock:
            if key not in self._kept:
                self._kept[key] = value
                self._used += self._size(value)
            kept = self._kept[key]
            while self._used > self.max_size and len(self._kept) > 1:
                self._used -= self._size(self._kept.popitem(last=False)[1])
                self._on_release()
        return kept


class IndexStore(LruCache[int, ShardIndex]):
    """The indexes of a catalog's shards.

    If the key ranges of the shards are known and do not overlap, a key is looked up in the shard whose range contains
    the key. Otherwise, or if the key is not found there, an index of all keys is built (12 or 16 bytes per sample).
    """

    def __init__(self, catalog: Catalog, on_release: Callable[[], None] = lambda: None) -> None:
        super().__init__(
            _INDEX_CACHE_BYTES,
            lambda index: _INDEX_CACHE_BYTES // _MAX_CACHED_INDEXES if index.is_shared else index.nbytes,
            on_release,
        )
        self.catalog, self._tables = catalog, LruCache[int, pa.Table](_INDEX_CACHE_BYTES, lambda table: table.nbytes)
        # shards whose shared index this process has mapped
        self._mapped, self._mapped_bytes = set[int](), 0
        self._all_keys: tuple[Hashes, NDArray[np.integer]] | None = None

    def __reduce__(self) -> tuple[type[IndexStore], tuple[Catalog]]:
        return IndexStore, (self.catalog,)

    def index(self, shard: int) -> ShardIndex:
        """Return the index of a shard. Release mapped pages if this process maps more than 32 MB of indexes."""
        index = self.get(shard, lambda: self._read(shard))
        with self._lock:
            if index.is_shared and shard not in self._mapped:
                self._mapped.add(shard)
                self._mapped_bytes += index.nbytes
                if self._mapped_bytes > _INDEX_CACHE_BYTES:
                    for catalog in (self.catalog, *self.catalog.parts):
                        catalog.shared.release_pages()
                    self._mapped_bytes = 0
                    self._mapped.clear()
                    self._on_release()
        return index

    def _read(self, shard: int) -> ShardIndex:
        dataset, position = self.catalog.dataset(shard)
        if (block := dataset.shared.read(position)) is None:
            return read_shard_index(self.catalog, shard).store_in(dataset.shared, position)
        return ShardIndex.unpacked(block)

    def keys(self, numbers: Numbers) -> list[str]:
        """Return the keys of the samples `numbers`."""
        keys = [""] * len(numbers)
        for shard, rows, indexes in self.catalog.group_by_shard(numbers):
            for index, key in zip(indexes.tolist(), self.index(shard).keys_of(rows), strict=True):
                keys[index] = key
        return keys

    @cached_property
    def _first_keys(self) -> list[str]:
        """First key of each shard, or [] if key ranges are unknown or overlap."""
        ranges = self.catalog.key_ranges
        are_known = ("", "") not in ranges and all(first <= last for first, last in ranges)
        are_disjoint = all(last < next_first for (_, last), (next_first, _) in pairwise(ranges))
        return [first for first, _ in ranges] if are_known and are_disjoint else []

    def numbers(self, keys: Sequence[str]) -> Numbers:
        """Return the sample number of each key, int64 [keys], or -1 for an unknown key.

        A duplicate key has the number of its first sample.
        """
        encoded = [key.encode("utf-8", "surrogatepass") for key in keys]  # a lone surrogate matches no key
        numbers = np.full(len(keys), -1, np.int64)
        if self._all_keys is None and self._first_keys:
            self._search_ranges(keys, encoded, numbers)
        missing = np.flatnonzero(numbers < 0)
        if len(missing):
            numbers[missing] = self._search_index([encoded[index] for index in missing.tolist()])
        return numbers

    def _search_ranges(self, keys: Sequence[str], encoded: list[bytes], numbers: Numbers) -> None:
        positions_by_shard: dict[int, list[int]] = {}
        for position, key in enumerate(keys):
            shard = bisect_right(self._first_keys, key) - 1
            if shard >= 0 and key <= self.catalog.key_ranges[shard][1]:
                positions_by_shard.setdefault(shard, []).append(position)
        for shard, positions in sorted(positions_by_shard.items()):
            index, first = self.index(shard), int(self.catalog.first_samples[shard])
            if len(positions) <= _MAX_KEYS_SEARCHED_SINGLY:
                rows = [index.find_row(encoded[position]) for position in positions]
            else:
                # reversed, so a duplicate key keeps its first row
                row_by_key = {key: row for row, key in reversed([*enumerate(index.all_keys())])}
                rows = [row_by_key.get(encoded[position], -1) for position in positions]
            numbers[positions] = [row if row < 0 else first + row for row in rows]

    def _search_index(self, keys: list[bytes]) -> Numbers:
        if self._all_keys is None:
            self._all_keys = self._sorted_keys()
        hashes, number_by_hash = self._all_keys
        key_hashes = hash_keys(keys)
        cursor = np.searchsorted(hashes, key_hashes)
        result = np.full(len(keys), -1, np.int64)
        pending = np.arange(len(keys))
        while len(pending):  # the loop repeats only if different keys have equal hashes
            pending = pending[cursor[pending] < len(hashes)]
            pending = pending[hashes[cursor[pending]] == key_hashes[pending]]
            numbers = number_by_hash[cursor[pending]].astype(np.int64)
            stored = zip(self.keys(numbers), pending.tolist(), strict=True)
            matches = np.array([key.encode() == keys[position] for key, position in stored], np.bool_)
            result[pending[matches]] = numbers[matches]
            pending = pending[~matches]
            cursor[pending] += 1
        return result

    def _sorted_keys(self) -> tuple[Hashes, NDArray[np.integer]]:
        catalog, count = self.catalog, len(self.catalog)
        dtype = np.dtype(np.uint32 if count < 2**32 else np.int64)
        size, position = count * (_HASH_BYTES + dtype.itemsize), len(catalog.shards)
        block: memoryview | bytearray | None = catalog.shared.read(position)
        if block is None:
            started = time.monotonic()
            block = catalog.shared.write(position, size, self._key_index_parts(dtype))
            if block is None:
                block = bytearray(size)
                for offset, data in self._key_index_parts(dtype):
                    block[offset : offset + len(data)] = data
            logger.info("an index of %s keys was built in %.1f s", f"{count:,}", time.monotonic() - started)
        return np.frombuffer(block, np.uint64, count), np.frombuffer(block, dtype, count, count * _HASH_BYTES)

    def _key_index_parts(self, dtype: np.dtype[np.integer]) -> Iterator[tuple[int, bytes]]:
        catalog, count = self.catalog, len(self.catalog)
        hashes = _hash_buffer(count)
        for shard, (first, last) in enumerate(pairwise(catalog.first_samples.tolist())):
            hashes[first:last] = hash_keys(self.index(shard).all_keys())
        written = 0
        part_count = -(-count // _MAX_HASHES_IN_MEMORY)
        for part in range(part_count):
            low, high = np.uint64(2**64 * part // part_count), np.uint64(2**64 * (part + 1) // part_count - 1)
            chunks = [hashes[first : first + _MAX_HASHES_IN_MEMORY] for first in range(0, count, _MAX_HASHES_IN_MEMORY)]
            rows = [
                np.flatnonzero((chunk >= low) & (chunk <= high)) + n * _MAX_HASHES_IN_MEMORY
                for n, chunk in enumerate(chunks)
            ]
            indexes = np.concatenate(rows)
            part_hashes = hashes[indexes]
            order = np.argsort(part_hashes, kind="stable")
            yield written * _HASH_BYTES, part_hashes[order].tobytes()
            yield count * _HASH_BYTES + written * dtype.itemsize, indexes[order].astype(dtype).tobytes()
            written += len(indexes)

    def metadata(self, shard: int) -> pa.Table:
        """Return the metadata of a shard's samples. Columns that exist only in sidecars of other shards are null."""
        return self._tables.get(shard, lambda: read_sidecar_table(self.catalog, shard, self._schema))

    @cached_property
    def _schema(self) -> pa.Schema:
        return metadata_schema(self.catalog)


def _hash_buffer(count: int) -> Hashes:
    from tempfile import TemporaryFile

    if count > _MAX_HASHES_IN_MEMORY and hasattr(os, "posix_fallocate"):
        with suppress(OSError), TemporaryFile() as file:
            # allocate now, because writing to a mapped file on a full disk raises SIGBUS
            os.posix_fallocate(file.fileno(), 0, count * _HASH_BYTES)
            return np.memmap(file, np.uint64, "r+", shape=(count,))
    return np.empty(count, np.uint64)


def hash_keys(keys: list[bytes]) -> Hashes:
    """Return one uint64 hash per key, with CRC-32C in the high half and CRC-32 in the low half."""
    high, low = (np.fromiter(map(crc, keys), np.uint64, len(keys)) for crc in (crc32c, zlib.crc32))
    hashes: Hashes = high << np.uint64(32) | low
    return hashes


def read_shard_index(catalog: Catalog, number: int) -> ShardIndex:
    """Return the index of a shard, from its sidecar or a scan, or raise CorruptShard."""
    shard, dataset, size = catalog.shards[number], catalog.dataset(number)[0], int(catalog.sizes[number])
    if dataset.listed and not is_url(shard.path):  # the size of a remote shard is checked when it is read
        actual_size = shard.size()  # None if the shard is missing, which `read_index` reports
        if actual_size is not None and actual_size != size:
            expected = f"{size:,}, as the dataset file lists"
            raise CorruptShard(shard.path, f"{actual_size:,} bytes", expected=expected, remedy=VERIFY_FIX)
    return read_index(catalog, number).for_reading()
