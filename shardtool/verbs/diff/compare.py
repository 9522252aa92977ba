"""Two sides as columns, and what differs between them: no object is made for a sample that does not."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.dataset.find import StoredDataset, recorded_pattern
from shardtool.dataset.shard_file import walked_text
from shardtool.entries.arrow import number_array, plain
from shardtool.errors import InvalidRequest, listing
from shardtool.request.results import METADATA, ChangedColumn, ChangedSample, DiffResult, LazyList, MovedSample
from shardtool.skipped import is_listed
from shardtool.source.base import inline_sums, source_sums
from shardtool.source.shards import list_datasets
from shardtool.table.columns import places_among
from shardtool.values import SPAN, URL, counted, show_size, to_bytes, to_text
from shardtool.verbs.verify.source import (
    SourceAgain,
    field_ids,
    has_others,
    paired,
    recorded_run,
    source_words,
    table_folders,
)
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from shardtool.entries.entries import Entries, Names
    from shardtool.execute.pool import Pool
    from shardtool.request.options import DiffOptions
    from shardtool.request.settings import Notes
    from shardtool.source.base import Source

    Rows = NDArray[np.int64]

_SPLIT_COLUMN = "split"  # of metadata: what a run divided


class Side(NamedTuple):
    """The samples of one side.

    Attributes:
        entries: The samples.
        split: The name of each one's split; empty where that is not known.
        classes: Field to the names of its class numbers.
        source: Where samples come from that are in no shards.
    """

    entries: Entries
    split: NDArray[np.object_]
    classes: Mapping[str, list[str]]
    source: Source | None = None

    def take(self, samples: Rows) -> Side:
        """Return the side with these of its samples."""
        return self._replace(entries=self.entries.take(samples), split=self.split[samples])


class LeftOut(NamedTuple):
    """What is not compared, of a dataset and its source.

    Attributes:
        fields: Fields that were made of a table that is not available.
        payloads: Whether fields are left out, since they were changed on the way.
        added: Whether samples that only the source has are left out.
        keys: Keys that samples have which were left out of the dataset for a reason.
        as_numbers: Whether the dataset has numbers as TFRecords have them.
        metadata: Whether metadata columns are ignored.
    """

    fields: tuple[str, ...] = ()
    payloads: bool = False
    added: bool = False
    keys: frozenset[str] = frozenset()
    as_numbers: bool = False
    metadata: bool = False


def two_sides(first: list[StoredDataset], second: list[StoredDataset], pool: Pool, notes: Notes) -> tuple[Side, Side]:
    """Return the samples of datasets; of TFRecords beside tars, with the texts of numbers, as tars have them."""
    forms = [{shard.format for one in some for shard in one.shards} for some in (first, second)]
    alike = len(forms[0] | forms[1]) == 1
    one, other = (
        _of_datasets(some, pool, notes, as_stored=alike or "tfrecord" not in own)
        for some, own in zip((first, second), forms, strict=True)
    )
    return one, other


def _of_datasets(datasets: list[StoredDataset], pool: Pool, notes: Notes, *, as_stored: bool) -> Side:
    """Return the samples of datasets; `as_stored`: with numbers as the bytes that shards have."""
    given = [one.given for one in datasets]
    listed = list_datasets(given, pool, notes.observer, to_format="tfrecord", as_stored=as_stored)
    notes.add(*listed.notes)
    splits = np.array([one.split for one, _ in listed.stored], np.object_)
    classes = {name: names for one in datasets if one.file for name, names in one.file.classes.items()}
    return Side(listed.entries, splits[listed.entries.known_spans.file], classes)


def with_source(
    datasets: list[StoredDataset], given: Any, options: DiffOptions, pool: Pool, notes: Notes
) -> tuple[tuple[Side, Side], LeftOut]:
    """Return datasets that one run made, and its source as it is now.

    Raises:
        InvalidRequest: They are of several runs, or a function made their samples, or there is no such source.
    """
    files = [one.file for one in datasets if one.file is not None]
    for one in datasets[1:]:
        if one.file is None or not one.file.made.is_split_with(files[0].made):
            expected = "all splits of one run, or one dataset"
            raise InvalidRequest(one.where, "not made by the run of the others", expected=expected)
    folders = table_folders(given, [one.folder for one in datasets])
    run = recorded_run(files[0] if files else None, options, folders)
    if run.map:
        found = f"{option('map')} {run.map} made the samples, and is not run again"
        raise InvalidRequest(datasets[0].where, found, expected="samples as they are in their source")
    patterns = [(recorded_pattern(one.file) if one.file else None, one.folder) for one in datasets]
    outputs = [replace(pattern, folder=folder) for pattern, folder in patterns if pattern is not None]
    source = listing(files[0].made.source.split(", ")) if files else ""
    made = f"{datasets[0].where} was made by {run.verb} {source}; " if files else ""
    words = partial(source_words, given, options.join, f"{made}B is that source as it is now, or another dataset.")
    with words():
        again = SourceAgain(run, datasets, given, outputs)
    stored = _of_datasets(datasets, pool, notes, as_stored=True)
    mine = _without_appended(stored, datasets, notes)
    with words():
        listed, split = again.list_samples(pool, notes.observer)
    run, lost = again.run, again.lost_splits()
    if run.without_table is not None:
        notes.add(f"compared with {option('join')} {run.table}")
    notes.add(*(f"not compared: {text}" for text in (*run.unchecked(), *filter(None, [lost]))))
    if run.changes:
        notes.add(f"not compared: fields, which {option('resize')} or {option('encode')} changed")
    keys, unread = again.keys_left_out()
    notes.add(*(f"{where}: the list of what was left out cannot be read" for where in unread))
    as_numbers = any(shard.format == "tfrecord" for one in datasets for shard in one.shards)
    left_out = LeftOut(run.made_fields, run.changes, bool(run.choosing or lost), frozenset(keys), as_numbers)
    which = np.array([one.split for one in datasets], np.object_)[split]
    theirs = Side(listed.entries, which, listed.entries.values.classes, again.source)
    if mine is not stored:  # the source may have them by now
        there, own = (places_among(theirs.entries.keys, one.entries.keys) >= 0 for one in (stored, mine))
        theirs = theirs.take(np.flatnonzero(own | ~there))
    return (mine, theirs), left_out


def _without_appended(side: Side, datasets: list[StoredDataset], notes: Notes) -> Side:
    """Return the samples of the first run: those that were appended from other sources are left out."""
    kept = [
        one.file is None or not has_others(one.file) or at < one.file.appends[0]
        for one in datasets
        for at in range(len(one.shards))
    ]
    if all(kept):
        return side
    samples = np.flatnonzero(np.array(kept)[side.entries.known_spans.file])
    notes.add(f"not compared: {counted(len(side.entries) - len(samples), 'sample')} appended from other sources")
    return side.take(samples)


# What differs.


class Comparison:
    """Two sides, whose samples are paired by their keys; several of one key in their order."""

    def __init__(self, a: Side, b: Side, left_out: LeftOut, pool: Pool, notes: Notes) -> None:
        self._a, self._b, self._left_out, self._pool, self._notes = a, b, left_out, pool, notes
        ours, theirs = _key_ids(a.entries.keys, b.entries.keys)
        self._of_a, self._of_b, self._removed, self._added = paired(ours, theirs)
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
            known = [is_listed(b.entries.keys[at], self._left_out.keys) for at in added.tolist()]
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
        labels = [*self._names, METADATA]

        def change(at: int) -> ChangedSample:
            codes = (ids[firsts[at] : ends[at]] % self._width).tolist()
            return ChangedSample(_key(a, samples[at]), tuple(labels[code] for code in codes))

        def move(at: int) -> MovedSample:
            return MovedSample(_key(a, self._of_a[moved[at]]), before[moved[at]], now[moved[at]])

        return DiffResult(
            samples=(len(a.entries), len(b.entries)),
            added=LazyList(len(added), lambda at: _key(b, added[at])),
            removed=LazyList(len(removed), lambda at: _key(a, removed[at])),
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
        mine, other, lone, lone_of_b = paired(ours, theirs)
        return np.concatenate((ours[lone], theirs[lone_of_b], ours[mine[self._payloads_differ(mine, other)]]))

    def _payloads_differ(self, mine: Rows, other: Rows) -> NDArray[np.bool_]:
        """Tell of fields that both sides have whether their payloads differ."""
        a, b, as_numbers = self._a, self._b, self._left_out.as_numbers
        sizes, sums = zip(
            *(inline_sums(one.entries, rows, as_numbers=as_numbers) for one, rows in ((a, mine), (b, other))),
            strict=True,
        )
        fetched = b.entries.rows.kind[other] == URL  # what is there by now says nothing of what was there
        differ = np.asarray((sizes[0] != sizes[1]) & ~fetched)
        if fetched.any():
            self._notes.add(f"not compared: {counted(int(fetched.sum()), 'file')} of URLs, which are not fetched again")
        alike = np.flatnonzero(~differ & ~fetched)
        for side, rows, found in ((a, mine, sums[0]), (b, other, sums[1])):
            wanted = alike[found[alike] < 0]
            self._say_what_is_read(side, rows[wanted])
            found[wanted] = source_sums(side.source, side.entries, rows[wanted], self._pool, self._notes.observer)
        differ[alike] = sums[0][alike] != sums[1][alike]
        return differ

    def _say_what_is_read(self, side: Side, rows: Rows) -> None:
        """Tell the user of shards that are read because no index has checksums; that a source is read is no news."""
        rows = rows[side.entries.rows.kind[rows] == SPAN]
        if side.source is None and (unknown := rows[side.entries.known_spans.expected[rows] < 0]).size:
            what = f"{counted(len(unknown), 'payload')}, {show_size(int(side.entries.rows.size[unknown].sum()))}"
            self._notes.add(f"read for their checksums, which no index has: {what}")

    def _changed_metadata(self, moved: Rows) -> tuple[Rows, dict[str, ChangedColumn]]:
        """Return the ids of samples whose columns differ, and these columns; of a source, columns that both have."""
        if self._left_out.metadata:
            self._notes.add("not compared: metadata")
            return np.zeros(0, np.int64), {}
        a, b = self._a.entries.metadata, self._b.entries.metadata
        before, now = ({} if table is None else dict.fromkeys(table.column_names) for table in (a, b))
        names = [name for name in before | now if self._b.source is None or name in before.keys() & now.keys()]
        columns: dict[str, ChangedColumn] = {}
        differ = np.zeros(len(self._of_a), np.bool_)
        for name in names:
            one, other = _column(a, name, self._of_a), _column(b, name, self._of_b)
            unlike = _values_differ(one, other)
            if name == _SPLIT_COLUMN:
                unlike[moved] = False
            if unlike.any():
                change = "added" if name not in before else "removed" if name not in now else "changed"
                columns[name] = ChangedColumn(change, int(np.count_nonzero(unlike)))
            differ |= unlike
        return np.asarray(self._of_a[differ] * self._width + len(self._names)), columns


def _key(side: Side, sample: int) -> str:
    return walked_text(side.entries.keys[int(sample)])


def _key_ids(first: Names, second: Names) -> tuple[Rows, Rows]:
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


def _column(table: pa.Table | None, name: str, rows: Rows) -> pa.ChunkedArray:
    """Return the values of a column for some samples, without dictionaries; null where there is no such column."""
    if table is None or name not in table.column_names:
        return pa.chunked_array([pa.nulls(len(rows))])
    return plain(table.column(name).take(number_array(rows)))


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
