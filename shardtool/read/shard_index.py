"""The index of one shard, as columns; also as one block of bytes, which processes can share."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from shardtool.values import RESERVED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from shardtool.dataset.sidecar_read import Rows
    from shardtool.storage.shared import JoinedBlocks, SharedBlocks
    from shardtool.values import Kind

    # Where the shard is smaller than 2 GiB they are int32, which halves what an index takes.
    Places = NDArray[np.int64]

_SMALL = 2**31
_ALIGNED = 8
_PLACES = ("key_ends", "starts", "sizes", "firsts", "offsets", "lengths")


@dataclass(frozen=True)
class ShardIndex:
    """Where the samples of a shard lie.

    Attributes:
        keys: Their bytes, end to end.
        key_ends: [samples + 1]: where each key starts in `keys`, and where the last one ends.
        starts: [samples]: the first byte of each sample's first record.
        sizes: [samples]: bytes to the end of its last record.
        firsts: [samples + 1]: where its fields start in the columns below.
        names: The field names that `codes` stands for.
        codes: uint8 or uint16 [fields].
        offsets: [fields]: where payloads start in the shard.
        lengths: [fields]: bytes.
        crcs: uint32 [fields]: CRC-32C; None where they are not known.
        kinds: What each of `names` holds in a TFRecord that was walked: `bytes`, `int64` or `float`; else empty.
    """

    keys: bytes | memoryview = field(repr=False)
    key_ends: Places = field(repr=False)
    starts: Places = field(repr=False)
    sizes: Places = field(repr=False)
    firsts: Places = field(repr=False)
    names: tuple[str, ...]
    codes: NDArray[np.unsignedinteger] = field(repr=False)
    offsets: Places = field(repr=False)
    lengths: Places = field(repr=False)
    crcs: NDArray[np.uint32] | None = field(repr=False)
    kinds: Mapping[str, Kind]

    @classmethod
    def of(cls, rows: Rows, kinds: Mapping[str, Kind]) -> ShardIndex:
        """Return the index of a shard whose samples lie at `rows`."""
        rows = _without_reserved(rows)
        names = tuple(name.decode() for name in rows.names)
        last = int(rows.starts[-1] + rows.sizes[-1]) if len(rows.starts) else 0
        place = np.int32 if max(last, len(rows.keys)) < _SMALL else np.int64
        return cls(
            keys=rows.keys,
            key_ends=_ends(rows.key_sizes, place),
            starts=rows.starts.astype(place),
            sizes=rows.sizes.astype(place),
            firsts=_ends(rows.counts, place),
            names=names,
            codes=rows.codes.astype(np.uint8 if len(names) <= np.iinfo(np.uint8).max else np.uint32),
            offsets=rows.offsets.astype(place),
            lengths=rows.lengths.astype(place),
            crcs=rows.crcs,
            kinds=kinds,
        )

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def views(self) -> tuple[memoryview, ...]:
        """The columns `key_ends`, `firsts`, `codes`, `offsets` and `lengths`: single numbers come from these fast."""
        columns = (self.key_ends, self.firsts, self.codes, self.offsets, self.lengths)
        return tuple([column.data for column in columns])

    @property
    def is_shared(self) -> bool:
        """Whether its columns lie in a block that processes share."""
        return isinstance(self.keys, memoryview)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in memory, about."""
        return len(self.keys) + sum(column.nbytes for column in self._columns().values())

    def keys_of(self, rows: NDArray[np.int64]) -> list[str]:
        """Return the keys of some samples."""
        starts, ends, keys = self.key_ends[rows].tolist(), self.key_ends[rows + 1].tolist(), self.keys
        return [str(keys[start:end], "utf-8") for start, end in zip(starts, ends, strict=True)]

    def all_keys(self) -> list[bytes]:
        """Return the keys of all samples."""
        keys, ends = bytes(self.keys), self.key_ends.tolist()
        return [keys[start:end] for start, end in pairwise(ends)]

    def row_of(self, key: bytes) -> int:
        """Return the first sample of a key; -1 where there is none."""
        if not key:
            empty = np.flatnonzero(np.diff(self.key_ends) == 0)
            return int(empty[0]) if len(empty) else -1
        keys, at = bytes(self.keys), -1
        while (at := keys.find(key, at + 1)) >= 0:
            row = int(np.searchsorted(self.key_ends, at, side="right")) - 1
            if row < len(self) and self.key_ends[row] == at and self.key_ends[row + 1] == at + len(key):
                return row
        return -1

    def field_counts(self, rows: NDArray[np.int64]) -> list[int]:
        """Return how many of some samples have each of `names`."""
        counts = np.diff(self.firsts)[rows]
        flat = np.repeat(self.firsts[rows] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        found: list[int] = np.bincount(self.codes[flat], minlength=len(self.names)).tolist()
        return found

    def _columns(self) -> dict[str, NDArray[np.generic]]:
        columns = {name: getattr(self, name) for name in (*_PLACES, "codes")}
        return columns if self.crcs is None else {**columns, "crcs": self.crcs}

    def packed(self) -> list[tuple[int, bytes | memoryview]]:
        """Return the index as one block of bytes: parts of it, and where each stands. The last one ends the block."""
        columns = self._columns()
        facts = {name: (column.dtype.str, len(column)) for name, column in columns.items()}
        head = json.dumps([self.names, self.kinds, facts]).encode()
        head = len(head).to_bytes(_ALIGNED, "little") + head
        parts, at = [(0, cast("bytes | memoryview", head))], _aligned(len(head))
        for column in columns.values():
            parts.append((at, column.tobytes()))
            at = _aligned(at + column.nbytes)
        return [*parts, (at, self.keys)]

    def put_into(self, blocks: SharedBlocks | JoinedBlocks, number: int) -> ShardIndex:
        """Return the index as it now lies in shared blocks, as block `number`; itself where there is no room for it."""
        parts = self.packed()
        block = blocks.write(number, parts[-1][0] + len(parts[-1][1]), parts)
        return self if block is None else ShardIndex.unpacked(block)

    @classmethod
    def unpacked(cls, block: bytes | memoryview) -> ShardIndex:
        """Return the index that `packed` made a block of; its columns lie there."""
        size = int.from_bytes(block[:_ALIGNED], "little") + _ALIGNED
        names, kinds, facts = json.loads(bytes(block[_ALIGNED:size]))
        columns, at = dict[str, Any](), _aligned(size)
        for name, (dtype, count) in facts.items():
            columns[name] = np.frombuffer(block, dtype, count, at)
            at = _aligned(at + columns[name].nbytes)
        return cls(**{"crcs": None, **columns}, names=tuple(names), kinds=kinds, keys=block[at:])


def _ends(sizes: NDArray[np.int64], place: type[np.int32 | np.int64]) -> Places:
    ends = np.zeros(len(sizes) + 1, place)
    np.cumsum(sizes, out=ends[1:])
    return cast("Places", ends)


def _aligned(at: int) -> int:
    return -(-at // _ALIGNED) * _ALIGNED


def _without_reserved(rows: Rows) -> Rows:
    """Return rows without fields that have the name of what every sample has, such as its key: no shard gives these."""
    reserved = [code for code, name in enumerate(rows.names) if name in RESERVED]
    if not reserved:
        return rows
    kept = ~np.isin(rows.codes, reserved)
    counts = np.bincount(np.repeat(np.arange(len(rows.counts)), rows.counts)[kept], minlength=len(rows.counts))
    crcs = None if rows.crcs is None else rows.crcs[kept]
    codes, offsets, lengths = rows.codes[kept], rows.offsets[kept], rows.lengths[kept]
    return replace(rows, counts=counts, codes=codes, offsets=offsets, lengths=lengths, crcs=crcs)
