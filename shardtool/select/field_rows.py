"""The rows of fields: their order, codes and source paths, samples without fields, and the limit on fields."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardtool.entries.strings import PackedStrings
from shardtool.errors import InvalidRequest, printable
from shardtool.names import MAX_FIELDS
from shardtool.shard_samples import INLINE
from shardtool.skipped import Skipped
from shardtool.values import chunk_slices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shardtool.entries.sample_table import SampleTable


def list_source_paths(entries: SampleTable) -> PackedStrings:
    """Return the source's path of each row; empty for what is no file."""
    if (paths := entries.rows.paths) is not None:
        return PackedStrings.parse(paths.span(0, len(paths)))
    chunks = []
    for some in chunk_slices(len(entries.rows.kind)):
        found = entries.paths(np.arange(some.start, some.stop))
        for at in np.flatnonzero(entries.rows.kind[some] == INLINE).tolist():
            found[at] = b""
        chunks.append(b"\0".join(found) + b"\0")
    return PackedStrings.parse(b"".join(chunks))


def drop_empty_samples(
    entries: SampleTable, where: str, found: str, why: str
) -> tuple[SampleTable, tuple[Skipped, ...]]:
    """Return the samples that have fields, and the others, which are left out.

    Args:
        entries: The samples.
        where: What is named where none has one.
        found: What is said of it.
        why: What is said of each that is left out.

    Raises:
        InvalidRequest: None has.
    """
    counts = entries.counts()
    empty = np.flatnonzero(counts == 0)
    if not len(empty):
        return entries, ()
    if len(empty) == len(entries):
        remedy = "" if entries.spans is None else "`shardtool inspect` lists the fields."
        raise InvalidRequest(where, found, remedy=remedy)
    skipped = tuple(Skipped(entries.key(sample), "", "no-field", why) for sample in empty.tolist())
    return entries.take(np.flatnonzero(counts)), skipped


def check_field_count(where: str, names: Sequence[str] | Sequence[bytes], remedy: str = "") -> None:
    """Check that there are not more different fields than can be counted.

    Raises:
        InvalidRequest: There are.
    """
    if len(names) > MAX_FIELDS:
        found = f"{len(names):,} different fields, such as {printable(names[0])!r}"
        raise InvalidRequest(where, found, expected=f"at most {MAX_FIELDS:,}", remedy=remedy)


def field_codes(entries: SampleTable, fields: Sequence[str]) -> NDArray[np.uint16]:
    """Return the codes of all rows where they are places among `fields`, which have all that are used."""
    place = {name: at for at, name in enumerate(fields)}
    return np.array([place.get(name, 0) for name in entries.fields], np.uint16)[entries.rows.code]


def order_rows(
    firsts: Sequence[NDArray[np.int64]], codes: Sequence[NDArray[np.uint16]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows of several parts, end to end, in the order of samples and their fields, and where samples start.

    Where several parts have a field of a sample, the first of them has it alone. Some samples at a time, for this takes
    more than what it gives.

    Args:
        firsts: Of each part, int64[samples + 1], where the rows of the samples start.
        codes: Of each part, the fields of the rows.
    """
    orders, counts = [np.zeros(0, np.int64)], [np.zeros(1, np.int64)]
    before = np.cumsum([0, *map(len, codes)])
    for samples in chunk_slices(len(firsts[0]) - 1):
        some = [first[samples.start : samples.stop + 1] for first in firsts]
        rows = np.concatenate([np.arange(one[0], one[-1]) + at for one, at in zip(some, before, strict=False)])
        owner = np.concatenate([np.repeat(np.arange(len(one) - 1), np.diff(one)) for one in some])
        code = np.concatenate([of[one[0] : one[-1]] for one, of in zip(some, codes, strict=True)])
        order = np.lexsort((code, owner))
        rows, owner, code = rows[order], owner[order], code[order]
        part, place = np.searchsorted(before, rows, "right"), np.arange(len(rows))
        place[1:][(owner[1:] == owner[:-1]) & (code[1:] == code[:-1])] = 0
        stays = part == part[np.maximum.accumulate(place)]
        orders.append(rows[stays])
        counts.append(np.bincount(owner[stays], minlength=len(some[0]) - 1))
    return np.concatenate(orders), np.cumsum(np.concatenate(counts))
