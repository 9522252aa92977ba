"""Which samples of datasets are asked for: all, or those for which a query is true; a shard at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from shardtool.dataset.opened import read_part
from shardtool.errors import InvalidRequest
from shardtool.select.asked import asked_table
from shardtool.select.query import matching
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.dataset.opened import OpenedDataset, OpenedIndex, OpenedShard


@dataclass(frozen=True)
class Piece:
    """A shard of one of the datasets.

    Attributes:
        dataset: The dataset.
        shard: The shard.
        part: Its index.
        first: The number of its first sample, counted from 0 over all datasets.
        rows: The samples that are asked for, in order.
    """

    dataset: OpenedDataset
    shard: OpenedShard
    part: OpenedIndex = field(repr=False)
    first: int
    rows: NDArray[np.int64] = field(repr=False)

    def raise_damage(self) -> None:
        """Raise what ended a walk over the shard: there may be more samples.

        Raises:
            CorruptShard: Something did.
        """
        if self.part.walked and self.part.damage:
            raise self.part.damage[-1]


def pieces(datasets: Sequence[OpenedDataset], where: str | None = None, *, metadata: bool = False) -> Iterator[Piece]:
    """Yield the shards of datasets, those without a sample that is asked for, too.

    Args:
        datasets: In order.
        where: A query over the columns of the sidecars, and `key`, `shard`, `size` and `fields`; None: all samples.
        metadata: Whether the sidecars' columns are wanted, too.

    Raises:
        InvalidRequest: The query is none, or true for no sample.
        CorruptShard: A shard has no sound sidecar, and cannot be opened.
    """
    columns = set() if where is None else _columns(datasets)
    first = found = 0
    for dataset in datasets:
        for shard in dataset.shards:
            part = read_part(shard, metadata=metadata or where is not None)
            rows = np.arange(part.samples) if where is None else matching(asked_table(shard, part, columns), where)
            yield Piece(dataset, shard, part, first, rows)
            first, found = first + part.samples, found + len(rows)
    if where is not None and not found:
        raise InvalidRequest(option("where"), f"no sample for which {where}", expected="one sample or more")


def _columns(datasets: Sequence[OpenedDataset]) -> set[str]:
    """Return the columns that any sidecar has; a query may name one that a shard lacks."""
    names: set[str] = set()
    for dataset in datasets:
        if dataset.file is not None:
            names.update(dataset.file.schema)
        else:
            names.update(name for shard in dataset.shards for name in read_part(shard).schema.names)
    return {name for name in names if not name.startswith("__")}


def texts_of(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column without dictionaries."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
