"""Compare two sides by key. Only samples that differ become objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.dataset.scan import index_text
from shardtool.entries.arrow import number_array, to_plain
from shardtool.names import to_bytes, to_text
from shardtool.request.results import (
    METADATA_FIELD,
    ColumnDifference,
    DiffResult,
    LazyList,
    MovedSample,
    SampleDifference,
)
from shardtool.shard_samples import SPAN, URL
from shardtool.skipped import is_skipped_key
from shardtool.source.checksums import inline_checksums, source_checksums
from shardtool.units import format_size, pluralize
from shardtool.verbs.verify.source_checks import field_ids, match_ids

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardtool.entries.strings import PackedStrings
    from shardtool.execute.pool import Pool
    from shardtool.request.observer import Notes
    from shardtool.verbs.diff.sides import ComparedSide, Uncompared

    Rows = NDArray[np.int64]


_SPLIT_COLUMN = "split"  # of metadata: what a run divided


class SideComparison:
    """Two sides, whose samples are paired by their keys; several of one key in their order."""

    def __init__(self, a: ComparedSide, b: ComparedSide, left_out: Uncompared, pool: Pool, notes: Notes) -> None:
        self._a, self._b, self._left_out, self._pool, self._notes = a, b, left_out, pool, notes
        ours, theirs = _key_ids(a.entries.keys, b.entries.keys)
        self._of_a, self._of_b, self._removed, self._added = match_ids(ours, theirs)
        names = {*map(to_bytes, a.entries.fields), *map(to_bytes, b.entries.fields)}
        self._names = [*map(to_text, sorted(names))]
        self._width = len(self._names) + 1  # the last one stands for all columns

    def result(self) -> DiffResult:
        """Return what differs, without the names of the sides."""
        a, b = self._a, self._b
        removed, added = self._removed, self._added
        if self._left_out.added:
            added = added[:0]
        elif self._left_out.keys:
            known = [is_skipped_key(b.entries.keys[at], self._left_out.keys) for at in added.tolist()]
            added = added[~np.array(known, np.bool_)]
        before, now = a.split[self._of_a], b.split[self._of_b]
        moved = np.flatnonzero((before != "") & (now != "") & (before != now))
        metadata_ids, columns = self._changed_metadata(moved)
        ids = np.sort(np.concatenate((self._changed_fields(), metadata_ids)))
        ids = ids[np.diff(ids, prepend=-1) > 0]  # `np.unique` would hash millions of numbers, at ten times the cost
        samples, firsts = np.unique(ids // self._width, return_index=True)
        ends = np.append(firsts[1:], len(ids))
        metadata_only = np.count_nonzero((ends - firsts == 1) & (ids[firsts] % self._width == len(self._names)))
        counts = np.bincount(ids % self._width, minlength=self._width).tolist()
        labels = [*self._names, METADATA_FIELD]

        def change(at: int) -> SampleDifference:
            codes = (ids[firsts[at] : ends[at]] % self._width).tolist()
            return SampleDifference(_key_text(a, samples[at]), tuple(labels[code] for code in codes))

        def move(at: int) -> MovedSample:
            return MovedSample(_key_text(a, self._of_a[moved[at]]), before[moved[at]], now[moved[at]])

        return DiffResult(
            samples=(len(a.entries), len(b.entries)),
            added=LazyList(len(added), lambda at: _key_text(b, added[at])),
            removed=LazyList(len(removed), lambda at: _key_text(a, removed[at])),
            changed=LazyList(len(samples), change),
            moved=LazyList(len(moved), move),
            fields={name: count for name, count in zip(labels, counts, strict=True) if count},
            classes=tuple(name for name in sorted(a.classes.keys() & b.classes.keys()) if self._renames(name)),
            metadata=columns,
            metadata_only=int(metadata_only),
            uncompared=self._left_out.fields,
        )

    def _renames(self, name: str) -> bool:
        """Tell whether a number of a class stands for another name now; names may have come since."""
        pairs = zip(self._a.classes[name] or (), self._b.classes[name] or (), strict=False)
        return any(before != now for before, now in pairs)

    def _changed_fields(self) -> Rows:
        """Return the ids of fields that differ: the sample of the first side, and the name."""
        left_out = self._left_out
        if left_out.payloads:
            return np.zeros(0, np.int64)
        known = {name: at if name not in left_out.fields else -1 for at, name in enumerate(self._names)}
        ids = []
        for entries, own in ((self._a.entries, self._of_a), (self._b.entries, self._of_b)):
            samples = np.full(len(entries), -1, np.int64)
            samples[own] = self._of_a
            ids.append(field_ids(samples, entries.counts(), entries.rows.code, entries.fields, known))
        ours, theirs = ids
        mine, other, lone, lone_of_b = match_ids(ours, theirs)
        return np.concatenate((ours[lone], theirs[lone_of_b], ours[mine[self._payloads_differ(mine, other)]]))

    def _payloads_differ(self, mine: Rows, other: Rows) -> NDArray[np.bool_]:
        """Tell of fields that both sides have whether their payloads differ."""
        a, b, as_numbers = self._a, self._b, self._left_out.as_numbers
        sizes, sums = zip(
            *(inline_checksums(one.entries, rows, as_numbers=as_numbers) for one, rows in ((a, mine), (b, other))),
            strict=True,
        )
        fetched = b.entries.rows.kind[other] == URL  # what is there by now says nothing of what was there
        differ = np.asarray((sizes[0] != sizes[1]) & ~fetched)
        if fetched.any():
            self._notes.add(
                f"not compared: {pluralize(int(fetched.sum()), 'file')} of URLs, which are not fetched again"
            )
        alike = np.flatnonzero(~differ & ~fetched)
        for side, rows, found in ((a, mine, sums[0]), (b, other, sums[1])):
            wanted = alike[found[alike] < 0]
            self._say_what_is_read(side, rows[wanted])
            found[wanted] = source_checksums(side.source, side.entries, rows[wanted], self._pool, self._notes.observer)
        differ[alike] = sums[0][alike] != sums[1][alike]
        return differ

    def _say_what_is_read(self, side: ComparedSide, rows: Rows) -> None:
        """Tell the user of shards that are read because no index has checksums; that a source is read is no news."""
        rows = rows[side.entries.rows.kind[rows] == SPAN]
        if side.source is None and (unknown := rows[side.entries.known_spans.expected[rows] < 0]).size:
            what = f"{pluralize(len(unknown), 'payload')}, {format_size(int(side.entries.rows.size[unknown].sum()))}"
            self._notes.add(f"read for their checksums, which no index has: {what}")

    def _changed_metadata(self, moved: Rows) -> tuple[Rows, dict[str, ColumnDifference]]:
        """Return the ids of samples whose columns differ, and these columns; of a source, columns that both have."""
        if self._left_out.metadata:
            self._notes.add("not compared: metadata")
            return np.zeros(0, np.int64), {}
        a, b = self._a.entries.metadata, self._b.entries.metadata
        before, now = ({} if table is None else dict.fromkeys(table.column_names) for table in (a, b))
        names = [name for name in before | now if self._b.source is None or name in before.keys() & now.keys()]
        columns: dict[str, ColumnDifference] = {}
        differ = np.zeros(len(self._of_a), np.bool_)
        for name in names:
            one, other = _column_values(a, name, self._of_a), _column_values(b, name, self._of_b)
            unlike = _values_differ(one, other)
            if name == _SPLIT_COLUMN:
                unlike[moved] = False
            if unlike.any():
                change = "added" if name not in before else "removed" if name not in now else "changed"
                columns[name] = ColumnDifference(change, int(np.count_nonzero(unlike)))
            differ |= unlike
        return np.asarray(self._of_a[differ] * self._width + len(self._names)), columns


def _key_text(side: ComparedSide, sample: int) -> str:
    return index_text(side.entries.keys[int(sample)])


def _key_ids(first: PackedStrings, second: PackedStrings) -> tuple[Rows, Rows]:
    """Return a number for each key of both sides, alike where keys are; the second of a key on one side has another."""
    codes = pa.chunked_array([first.array(), second.array()]).combine_chunks().dictionary_encode().indices.to_numpy()
    ours, theirs = codes[: len(first)].astype(np.int64), codes[len(first) :].astype(np.int64)
    times = [_occurrences(some) for some in (ours, theirs)]
    return ours + times[0] * len(codes), theirs + times[1] * len(codes)


def _occurrences(codes: Rows) -> Rows:
    """Return how often each code stood before."""
    order = np.argsort(codes, kind="stable")
    is_first = np.append(True, codes[order][1:] != codes[order][:-1])[: len(codes)]
    places = np.arange(len(codes))
    found = np.empty(len(codes), np.int64)
    found[order] = places - np.maximum.accumulate(np.where(is_first, places, 0))
    return found


def _column_values(table: pa.Table | None, name: str, rows: Rows) -> pa.ChunkedArray:
    """Return the values of a column for some samples, without dictionaries; null where there is no such column."""
    if table is None or name not in table.column_names:
        return pa.chunked_array([pa.nulls(len(rows))])
    return to_plain(table.column(name).take(number_array(rows)))


def _values_differ(one: pa.ChunkedArray, other: pa.ChunkedArray) -> NDArray[np.bool_]:
    """Tell which values of two columns differ; two nulls are the same, and so are two NaNs."""
    try:
        alike = pc.fill_null(pc.equal(one, other), False)  # noqa: FBT003 - the value
        alike = pc.or_(alike, pc.and_(pc.is_null(one, nan_is_null=True), pc.is_null(other, nan_is_null=True)))
    except MemoryError:
        raise
    except pa.ArrowException:  # of lists, or of types that have nothing in common
        return np.array([x != y for x, y in zip(one.to_pylist(), other.to_pylist(), strict=True)], np.bool_)
    return np.array(~alike.to_numpy().astype(np.bool_))
