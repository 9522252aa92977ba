"""What a query can ask of samples that lie in shards: the columns of sidecars, and a few that follow from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.dataset.opened import FIELDS
from shardtool.errors import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shardtool.dataset.opened import OpenedIndex, OpenedShard


def asked_table(shard: OpenedShard, part: OpenedIndex, columns: Iterable[str]) -> pa.Table:
    """Return what can be asked of a shard's samples, as of those of `reshard` (`select.order.table_of`).

    Args:
        shard: The shard.
        part: Its index, with metadata.
        columns: Those of other shards, too: where this one lacks them, they are null.
    """
    table = part.table.select([name for name in part.table.column_names if not name.startswith("__")])
    for name in sorted({*columns}.difference(table.column_names)):
        table = table.append_column(name, pa.nulls(part.samples))
    starts = part.starts()
    sums = np.concatenate(([0], np.cumsum(part.fields().field("length").to_numpy()))).astype(np.int64)
    own: dict[str, Callable[[], pa.Array]] = {
        "key": lambda: part.table.column("__key__"),
        "shard": lambda: pa.array([printable(shard.name)] * part.samples, pa.string()),
        "size": lambda: pa.array(np.diff(sums[starts]) if part.samples else np.zeros(0, np.int64)),
        "fields": lambda: pc.list_value_length(part.table.column(FIELDS)).cast(pa.int64()),
    }
    for name, make in own.items():
        if name not in table.column_names:
            table = table.append_column(name, make())
    return table
