"""What is taken for an index of another tool."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from shardtool.dataset.shard_index import UNREAD
from shardtool.interop.indexes import EXPORTS, HEAD_SIZE, Digests, IndexedShard, difference, form_of, index_name


def _table(offset: int) -> pa.Table:
    rows = []
    for key, start in (("a", offset), ("b", offset + 1024)):
        fields = [{"name": "jpg", "offset": start + 512, "length": 9}]
        rows.append({"__key__": key, "__offset__": start, "__size__": 1024, "__fields__": fields})
    return pa.Table.from_pylist([dict.fromkeys(UNREAD.names) | row for row in rows], UNREAD)


@pytest.mark.parametrize("export", [name for name, one in EXPORTS.items() if one.encode is not None])
def test_the_index_of_each_export_is_known_again(export: str) -> None:
    """What an export makes of a shard has the form of its index, and differs from that of other offsets."""
    made = EXPORTS[export]
    shard = IndexedShard(f"x-0.{made.shard_format}", 4096, _table(0), Digests(0, "0" * 40, "0" * 64, bytes(64)))
    assert made.encode is not None
    data = made.encode(shard)
    form = form_of(index_name(shard.name, made), data[:HEAD_SIZE], len(data))
    assert EXPORTS[form].encode is made.encode
    assert difference(export, data, shard) == ""
    assert difference(export, data, replace(shard, table=_table(1024)))
