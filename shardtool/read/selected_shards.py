"""The samples of datasets that match a query, one shard at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardtool.errors import InvalidRequest
from shardtool.messages import option_text
from shardtool.read.metadata import queryable_table
from shardtool.select.query import match_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.dataset.shard_index import ShardIndex
    from shardtool.dataset.stored import StoredDataset, StoredShard


class SelectedShard(NamedTuple):
    """A shard and its selected samples; `first` is its first number, over all datasets."""

    dataset: StoredDataset
    shard: StoredShard
    shard_index: ShardIndex
    first: int
    rows: NDArray[np.int64]

    def raise_damage(self) -> None:
        """Raise the damage that stopped the scan: later samples are unknown."""
        if self.shard_index.problems:
            raise self.shard_index.problems[-1]


def selected_shards(
    datasets: Sequence[StoredDataset], where: str | None = None, *, metadata: bool = False
) -> Iterator[SelectedShard]:
    """Yield all shards with their samples that match a query, or all samples.

    `where` is a query over the sidecar columns and `key`, `shard`, `size` and `fields`.
    """
    columns = set() if where is None else _query_columns(datasets)
    first = matches = 0
    for dataset in datasets:
        for shard in dataset.shards:
            shard_index = shard.index(metadata=metadata or where is not None)
            rows = np.arange(len(shard_index))
            if where is not None:
                classes = dataset.file.classes if dataset.file else {}
                rows = match_rows(queryable_table(shard, shard_index, columns, classes), where, classes)
            yield SelectedShard(dataset, shard, shard_index, first, rows)
            first, matches = first + len(shard_index), matches + len(rows)
    if where is not None and not matches:
        raise InvalidRequest(option_text("where"), f"no sample matches {where}", expected="at least one match")


def _query_columns(datasets: Sequence[StoredDataset]) -> set[str]:
    names: set[str] = set()
    for dataset in datasets:
        if dataset.file is not None:
            names.update(dataset.file.schema)
        else:
            names.update(name for shard in dataset.shards for name in shard.index().schema.names)
    return {name for name in names if not name.startswith("__")}
