"""Compare two indexes of one shard."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardtool.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.dataset.shard_index import ShardIndex


class IndexDifference(NamedTuple):
    """A difference between two indexes of one shard.

    Attributes:
        what: `samples` (their number), `key`, `offset`, `size`, `number of fields`, `field`, `length` or `checksum`.
        sample: The sample, or -1.
    """

    what: str
    first: str
    second: str
    sample: int = -1
    row: int = -1


def compare_indexes(first: ShardIndex, second: ShardIndex) -> Iterator[IndexDifference]:
    """Yield the difference in sample count, then the first other difference. If only checksums differ, yield each one.

    If the second index is from a scan that ended early, its last sample is ignored.
    """
    samples = min(len(first), len(second))
    if second.error is not None:
        samples = max(0, samples - 1)  # the last one may be truncated
    elif len(first) != len(second):
        yield IndexDifference("samples", f"{len(first):,}", f"{len(second):,}")
    difference = next(_column_differences(first, second, samples), None)
    if difference is not None:
        yield difference
        return
    if first.crcs is not None and second.crcs is not None:
        rows = int(first.firsts[samples])
        owners = first.owners()
        for row in np.flatnonzero(first.crcs[:rows] != second.crcs[:rows]).tolist():
            crcs = f"{int(first.crcs[row]):08x}", f"{int(second.crcs[row]):08x}"
            yield IndexDifference("checksum", *crcs, int(owners[row]), row)


def _column_differences(first: ShardIndex, second: ShardIndex, samples: int) -> Iterator[IndexDifference]:
    if first.keys != second.keys or not np.array_equal(first.key_ends, second.key_ends):
        for index, keys in enumerate(zip(first.all_keys()[:samples], second.all_keys(), strict=False)):
            if keys[0] != keys[1]:
                yield IndexDifference("key", printable(keys[0]), printable(keys[1]), index)
    code_by_name = {name: index for index, name in enumerate(first.names)}
    codes = np.array([*(code_by_name.get(name, -1) for name in second.names), -1], np.int64)[second.codes]
    recoded, rows = replace(second, codes=codes), int(first.firsts[samples])
    for kind, column, count in (
        ("offset", "starts", samples), ("size", "sizes", samples), ("number of fields", "counts", samples),
        ("field", "codes", rows), ("offset", "offsets", rows), ("length", "lengths", rows),
    ):  # fmt: skip
        left, right = getattr(first, column)[:count], getattr(recoded, column)[:count]
        for index in np.flatnonzero(left != right)[:1].tolist():
            values = f"{left[index]:,}", f"{right[index]:,}"
            if kind == "field":
                values = printable(first.names[left[index]]), printable(second.names[second.codes[index]])
            is_field_column = column in ("codes", "offsets", "lengths")
            position = (int(np.searchsorted(first.firsts, index, "right")) - 1, index) if is_field_column else (index,)
            yield IndexDifference(kind, *values, *position)
