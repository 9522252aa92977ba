"""Laws of `SampleTable`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shardtool.errors import Bug
from shardtool.shard_samples import SpanFile
from tests.made import changed, flat_entries, made_entries

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_constant_columns_take_no_memory() -> None:
    """A value shared by all rows stays one value when samples are taken; other values follow their samples."""
    entries = changed(
        flat_entries([b"a", b"b", b"c"], [1, 2, 1], ("jpg", "txt"), code=[0, 0, 1, 1], offset=[7, 8, 9, 10]),
        files=(SpanFile(b"in.tar", 99, 1),),
        file=np.broadcast_to(np.uint32(0), 3),
        crc=np.broadcast_to(np.int64(-1), 4),
        changed_ns=np.broadcast_to(np.int64(5), 4),
    )
    taken = entries.take(np.array([2, 1, 1]))
    assert [taken.keys[sample] for sample in range(3)] == [b"c", b"b", b"b"]
    assert taken.known_spans.offset.tolist() == [10, 8, 9, 8, 9]
    for column, values in (
        (taken.known_spans.file, [0] * 3),
        (taken.known_spans.crc, [-1] * 5),
        (taken.rows.changed_ns, [5] * 5),
    ):
        assert (column.strides, column.tolist()) == ((0,), values)
    assert len(entries.take(np.zeros(0, np.int64)).rows.changed_ns) == 0


def test_a_path_costs_the_same_among_many_fields() -> None:
    """The cost of a path does not depend on the number of fields: a plan of a million links reads paths one by one."""

    class Fields(tuple[str, ...]):
        """Field names that must only be read by index."""

        __slots__ = ()

        def __iter__(self) -> Iterator[str]:
            raise AssertionError("one path read all field names")

    entries = flat_entries([b"a", b"b/c"], [1, 2], ("jpg", "txt"), code=[1, 0, 1])
    table = replace(entries, fields=Fields(entries.fields))
    assert [table.path(row) for row in range(3)] == entries.paths(np.arange(3)) == [b"a.txt", b"b/c.jpg", b"b/c.txt"]


def test_spans_of_a_source_without_shards_are_a_bug() -> None:
    """Requesting spans of a source without SPAN rows raises Bug, not a user's error."""
    with pytest.raises(Bug):
        _ = made_entries([[1]]).known_spans
