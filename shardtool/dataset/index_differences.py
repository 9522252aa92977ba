"""Compare two indexes of one shard."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardtool.errors import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.dataset.shard_index import ShardIndex

    # For reading, they are int32 where the shard is smaller than 2 GiB, which halves what an index takes.


class IndexDifference(NamedTuple):
    """Where two indexes of one shard differ.

    Attributes:
        what: `samples` (how many there are), `key`, `offset`, `size`, `number of fields`, `field`, `length` or
            `checksum`.
        first: What the first index says.
        second: What the second one says.
        sample: The sample; -1: it is about none.
        row: The field's row; -1: it is about no field.
    """

    what: str
    first: str
    second: str
    sample: int = -1
    row: int = -1


def compare_indexes(first: ShardIndex, second: ShardIndex) -> Iterator[IndexDifference]:
    """Yield where two indexes of one shard differ: how many samples there are, the first place, all other checksums.

    Args:
        first: One of them.
        second: The other one; of a walk that ended too early, the samples before its last one are compared.
    """
    samples = min(len(first), len(second))
    if second.error is not None:
        samples = max(0, samples - 1)  # the last one may be cut
    elif len(first) != len(second):
        yield IndexDifference("samples", f"{len(first):,}", f"{len(second):,}")
    place = next(_column_differences(first, second, samples), None)
    if place is not None:
        yield place
        return
    if first.crcs is not None and second.crcs is not None:
        rows = int(first.firsts[samples])
        owners = first.owners()
        for row in np.flatnonzero(first.crcs[:rows] != second.crcs[:rows]).tolist():
            crcs = f"{int(first.crcs[row]):08x}", f"{int(second.crcs[row]):08x}"
            yield IndexDifference("checksum", *crcs, int(owners[row]), row)


def _column_differences(first: ShardIndex, second: ShardIndex, samples: int) -> Iterator[IndexDifference]:
    """Yield, of each column, the first place in which it differs."""
    if first.keys != second.keys or not np.array_equal(first.key_ends, second.key_ends):
        for at, keys in enumerate(zip(first.all_keys()[:samples], second.all_keys(), strict=False)):
            if keys[0] != keys[1]:
                yield IndexDifference("key", printable(keys[0]), printable(keys[1]), at)
    known = {name: at for at, name in enumerate(first.names)}
    codes = np.array([*(known.get(name, -1) for name in second.names), -1], np.int64)[second.codes]
    theirs, rows = replace(second, codes=codes), int(first.firsts[samples])
    for what, column, many in (
        ("offset", "starts", samples), ("size", "sizes", samples), ("number of fields", "counts", samples),
        ("field", "codes", rows), ("offset", "offsets", rows), ("length", "lengths", rows),
    ):  # fmt: skip
        one, other = getattr(first, column)[:many], getattr(theirs, column)[:many]
        for at in np.flatnonzero(one != other)[:1].tolist():
            said = f"{one[at]:,}", f"{other[at]:,}"
            if what == "field":
                said = printable(first.names[one[at]]), printable(second.names[second.codes[at]])
            of_field = column in ("codes", "offsets", "lengths")
            place = (int(np.searchsorted(first.firsts, at, "right")) - 1, at) if of_field else (at,)
            yield IndexDifference(what, *said, *place)
