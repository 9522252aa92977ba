"""Samples by their numbers, read with few system calls: by shard, in file order, near ones together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shardtool.dataset.payload import numbers_in
from shardtool.errors import CorruptShard
from shardtool.fingerprint import crc32c
from shardtool.reading.files import OpenFiles
from shardtool.reading.index import IndexStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardtool.reading.catalog import Catalog
    from shardtool.reading.files import ShardCache
    from shardtool.reading.index import ShardIndex

    Numbers = NDArray[np.int64]

Sample = dict[str, object]
_GAP = 2**16  # bytes that are read for nothing, rather than in a system call of their own
_LONGEST = 2**22  # bytes of one read


@dataclass(frozen=True)
class ReadOptions:
    """How samples are read.

    Attributes:
        check: Whether the CRC-32C of each payload is compared with its index.
        cache: Where shards are copied to before they are read.
    """

    check: bool = False
    cache: ShardCache | None = None


class Fetcher:
    """Reads samples of a catalog; safe in threads, picklable, and without open files in a process that gets it."""

    def __init__(self, catalog: Catalog, options: ReadOptions) -> None:
        self.catalog, self.options = catalog, options
        self.store, self._files = IndexStore(catalog), OpenFiles(options.cache)

    def fetch(self, numbers: Numbers) -> list[Sample]:
        """Return samples, in the order of their numbers in the argument.

        Args:
            numbers: int64 [n].

        Raises:
            CorruptShard: A shard is missing or damaged.
        """
        shards, rows = self.catalog.places(numbers)
        found: list[Sample] = [{}] * len(numbers)
        for shard in np.unique(shards).tolist():
            (which,) = np.nonzero(shards == shard)
            which = which[np.argsort(rows[which], kind="stable")]
            for place, sample in zip(which.tolist(), self._of_shard(shard, rows[which]), strict=True):
                found[place] = sample
        return found

    def _of_shard(self, shard: int, rows: Numbers) -> Iterator[Sample]:
        """Yield samples of one shard; `rows` ascend."""
        index, file = self.store.index(shard), self._files.open(self.catalog.shards[shard])
        keys = index.keys_of(rows)
        starts, ends = index.starts[rows], index.starts[rows] + index.sizes[rows]
        for first, last in _runs(starts, ends):
            start = int(starts[first])
            block = file.read(start, int(ends[last - 1]) - start)
            for at in range(first, last):
                yield self._sample(index, int(rows[at]), keys[at], block, start)

    def _sample(self, index: ShardIndex, row: int, key: str, block: bytes, start: int) -> Sample:
        sample: Sample = {"__key__": key}
        for at in range(int(index.firsts[row]), int(index.firsts[row + 1])):
            name, offset = index.names[index.codes[at]], int(index.offsets[at]) - start
            data = block[offset : offset + int(index.lengths[at])]
            if self.options.check and index.crcs is not None and crc32c(data) != index.crcs[at]:
                raise CorruptShard(self.catalog.name, f"{name} of {key}: another checksum than its index says")
            kind = index.kinds.get(name) or self.catalog.kinds.get(name, "bytes")
            sample[name] = data if kind == "bytes" else _number(data, kind)
        return sample


def _number(data: bytes, kind: str) -> object:
    numbers = numbers_in(data, kind)
    return numbers[0] if len(numbers) == 1 else numbers


def _runs(starts: Numbers, ends: Numbers) -> list[tuple[int, int]]:
    """Return which samples one read takes each: from the first to before the last."""
    far = starts[1:] - ends[:-1] > _GAP
    runs, first = [], 0
    for at in range(1, len(starts) + 1):
        if at == len(starts) or far[at - 1] or ends[at] - starts[first] > _LONGEST:
            runs.append((first, at))
            first = at
    return runs
