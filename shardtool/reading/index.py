"""Where the samples of each shard lie, as columns: read when a shard is first needed, and kept while there is room."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shardtool.dataset.opened import read_part
from shardtool.entries.arrow import numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from shardtool.dataset.opened import OpenedIndex, OpenedShard
    from shardtool.reading.catalog import Catalog
    from shardtool.values import Kind

_ROOM = 2**25  # bytes of indexes that are kept


@dataclass(frozen=True)
class ShardIndex:
    """Where the samples of a shard lie.

    Attributes:
        keys: Their bytes, end to end.
        key_ends: int64 [samples + 1]: where each key starts in `keys`, and where the last one ends.
        starts: int64 [samples]: the first byte of each sample's first record.
        sizes: int64 [samples]: bytes to the end of its last record.
        firsts: int64 [samples + 1]: where its fields start in the columns below.
        names: The field names that `codes` stands for.
        codes: int32 [fields].
        offsets: int64 [fields]: where payloads start in the shard.
        lengths: int64 [fields]: bytes.
        crcs: uint32 [fields]: CRC-32C; None where they are not known.
        kinds: Field to what it holds in a TFRecord, where the shard was walked.
    """

    keys: bytes
    key_ends: NDArray[np.int64]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    firsts: NDArray[np.int64]
    names: tuple[str, ...]
    codes: NDArray[np.int32]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    crcs: NDArray[np.uint32] | None
    kinds: Mapping[str, Kind]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in memory, about."""
        return len(self.keys) + 32 * len(self.starts) + 28 * len(self.codes)

    def keys_of(self, rows: NDArray[np.int64]) -> list[str]:
        """Return the keys of some samples."""
        starts, ends = self.key_ends[rows].tolist(), self.key_ends[rows + 1].tolist()
        return [self.keys[start:end].decode() for start, end in zip(starts, ends, strict=True)]


class IndexStore:
    """The indexes of a catalog's shards; safe in threads, and made anew by a process that gets it."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._lock, self._kept, self._room = threading.Lock(), OrderedDict[int, ShardIndex](), _ROOM

    def __reduce__(self) -> tuple[type[IndexStore], tuple[Catalog]]:
        return IndexStore, (self._catalog,)

    def index(self, shard: int) -> ShardIndex:
        """Return the index of a shard, by its place in the catalog.

        Raises:
            CorruptShard: There is no sound sidecar, and the shard cannot be read.
        """
        with self._lock:
            found = self._kept.get(shard)
            if found is not None:
                self._kept.move_to_end(shard)
                return found
        found = read_index(self._catalog.shards[shard])
        with self._lock:
            if shard not in self._kept:
                self._kept[shard] = found
                self._room -= found.nbytes
            while self._room < 0 and len(self._kept) > 1:
                self._room += self._kept.popitem(last=False)[1].nbytes
        return found


def read_index(shard: OpenedShard) -> ShardIndex:
    """Return the index of a shard: its sidecar, or what a walk finds.

    Raises:
        CorruptShard: There is no sound sidecar, and the shard is damaged.
    """
    part = read_part(shard)
    if part.walked and part.damage:
        raise part.damage[-1]
    return _columns(part)


def _columns(part: OpenedIndex) -> ShardIndex:
    fields, firsts = part.fields(), part.starts().astype(np.int64)
    names = fields.field("name")
    coded = names if hasattr(names, "dictionary") else names.dictionary_encode()
    crcs = fields.field("crc32c")
    keys, key_ends = _text(part.table.column("__key__").combine_chunks())
    return ShardIndex(
        keys=keys,
        key_ends=key_ends,
        starts=numbers(part.table.column("__offset__").combine_chunks()).astype(np.int64),
        sizes=numbers(part.table.column("__size__").combine_chunks()).astype(np.int64),
        firsts=firsts if len(firsts) else np.zeros(1, np.int64),
        names=tuple(coded.dictionary.to_pylist()),
        codes=numbers(coded.indices).astype(np.int32),
        offsets=numbers(fields.field("offset")).astype(np.int64),
        lengths=numbers(fields.field("length")).astype(np.int64),
        crcs=None if crcs.null_count else numbers(crcs).astype(np.uint32),
        kinds=part.kinds,
    )


def _text(column: pa.Array) -> tuple[bytes, NDArray[np.int64]]:
    """Return the bytes of strings, end to end, and where each starts."""
    if not len(column):
        return b"", np.zeros(1, np.int64)
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset).astype(np.int64)
    raw = bytes(memoryview(data)[int(ends[0]) : int(ends[-1])]) if data is not None else b""
    return raw, ends - ends[0]
