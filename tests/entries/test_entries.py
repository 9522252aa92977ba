"""The blocks of `Entries`."""

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


def test_what_is_the_same_for_all_takes_no_memory() -> None:
    """A value that all rows or samples share stays one value when samples are taken; others are theirs, in order."""
    entries = changed(
        flat_entries([b"a", b"b", b"c"], [1, 2, 1], ("jpg", "txt"), code=[0, 0, 1, 1], offset=[7, 8, 9, 10]),
        files=(SpanFile(b"in.tar", 99, 1),),
        file=np.broadcast_to(np.uint32(0), 3),
        expected=np.broadcast_to(np.int64(-1), 4),
        changed_ns=np.broadcast_to(np.int64(5), 4),
    )
    found = entries.take(np.array([2, 1, 1]))
    assert [found.keys[at] for at in range(3)] == [b"c", b"b", b"b"]
    assert found.known_spans.offset.tolist() == [10, 8, 9, 8, 9]
    for column, values in (
        (found.known_spans.file, [0] * 3),
        (found.known_spans.expected, [-1] * 5),
        (found.rows.changed_ns, [5] * 5),
    ):
        assert (column.strides, column.tolist()) == ((0,), values)
    assert len(entries.take(np.zeros(0, np.int64)).rows.changed_ns) == 0


def test_a_path_costs_the_same_among_many_fields() -> None:
    """A plan of a million links asks for as many paths, one by one: none looks at all of 65,536 fields."""

    class Fields(tuple[str, ...]):
        """Names that are only asked for by their places."""

        __slots__ = ()

        def __iter__(self) -> Iterator[str]:
            raise AssertionError("all fields were looked at for one path")

    entries = flat_entries([b"a", b"b/c"], [1, 2], ("jpg", "txt"), code=[1, 0, 1])
    found = replace(entries, fields=Fields(entries.fields))
    assert [found.path(row) for row in range(3)] == entries.paths(np.arange(3)) == [b"a.txt", b"b/c.jpg", b"b/c.txt"]


def test_samples_that_lie_in_no_shards() -> None:
    """Whoever asks where they lie has a fault: that is no error of a user's."""
    with pytest.raises(Bug):
        _ = made_entries([[1]]).known_spans
