"""Compare two datasets, or a dataset and its source, by key.

To save memory, only samples that differ become Python objects.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.dataset.expand import recorded_range
from shardtool.dataset.scan import decode_name
from shardtool.entries.arrow import number_array, number_values, to_plain, to_python_values
from shardtool.entries.sample_table import field_ids, match_ids
from shardtool.errors import InvalidRequest, format_list
from shardtool.messages import option_text
from shardtool.names import to_bytes
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
from shardtool.source.recorded_run import (
    RecordedSource,
    has_appended_sources,
    recorded_run,
    table_folders,
    verify_options_in_errors,
)
from shardtool.source.shard_listing import list_datasets
from shardtool.table.keys import find_positions
from shardtool.units import format_size, pluralize

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from shardtool.dataset.stored import StoredDataset
    from shardtool.entries.sample_table import SampleTable
    from shardtool.execute.pool import Pool
    from shardtool.request.dataset_options import DiffOptions
    from shardtool.request.observer import Notes
    from shardtool.source.base import Source

    Rows = NDArray[np.int64]
    from shardtool.entries.strings import PackedStrings


class ComparedSide(NamedTuple):
    """One side of the comparison: the samples of datasets, or of their source.

    Attributes:
        split: Each sample's split, or "" if unknown.
    """

    entries: SampleTable
    split: NDArray[np.object_]
    classes: Mapping[str, list[str]]
    source: Source | None = None

    def take(self, samples: Rows) -> ComparedSide:
        """Return a `ComparedSide` with only these samples."""
        return self._replace(entries=self.entries.take(samples), split=self.split[samples])


class Exclusions(NamedTuple):
    """Fields and samples that are not compared with the source.

    Attributes:
        fields: Fields that the `--join` table may have added, if the table was not found.
        ignore_added: Whether to ignore samples that only the source has.
        keys: Keys (or hashes of keys) of skipped samples. A skipped sample is ignored if only the source has it.
        as_numbers: Whether to encode numbers as in TFRecord shards before the comparison.
    """

    fields: tuple[str, ...] = ()
    ignore_payloads: bool = False
    ignore_added: bool = False
    keys: frozenset[str] = frozenset()
    as_numbers: bool = False
    ignore_metadata: bool = False


def dataset_sides(
    first: list[StoredDataset], second: list[StoredDataset], pool: Pool, notes: Notes
) -> tuple[ComparedSide, ComparedSide]:
    """List the samples of two groups of datasets. If their formats differ, list numbers in TFRecord shards as text."""
    formats_a, formats_b = (
        {shard.format for dataset in datasets for shard in dataset.shards} for datasets in (first, second)
    )
    same_format = len(formats_a | formats_b) == 1
    side_a = _side_of_datasets(first, pool, notes, as_stored=same_format or "tfrecord" not in formats_a)
    return side_a, _side_of_datasets(second, pool, notes, as_stored=same_format or "tfrecord" not in formats_b)


def _side_of_datasets(datasets: list[StoredDataset], pool: Pool, notes: Notes, *, as_stored: bool) -> ComparedSide:
    given = [dataset.argument for dataset in datasets]
    listed = list_datasets(given, pool, notes.observer, to_format="tfrecord", as_stored=as_stored)
    notes.add(*listed.notes)
    splits = np.array([dataset.split for dataset, _ in listed.stored], np.object_)
    classes = {name: names for dataset in datasets if dataset.file for name, names in dataset.file.classes.items()}
    return ComparedSide(listed.entries, splits[listed.entries.known_spans.file], classes)


def dataset_and_source(
    datasets: list[StoredDataset], given: Any, options: DiffOptions, pool: Pool, notes: Notes
) -> tuple[tuple[ComparedSide, ComparedSide], Exclusions]:
    """List the samples of datasets that one run created, and the current samples of its source."""
    files = [dataset.file for dataset in datasets if dataset.file is not None]
    for dataset in datasets[1:]:
        if dataset.file is None or not dataset.file.run.is_sibling_split_of(files[0].run):
            expected = "all splits of one run, or one dataset"
            raise InvalidRequest(dataset.where, "created by a different run than the other datasets", expected=expected)
    folders = table_folders(given, [dataset.folder for dataset in datasets])
    run = recorded_run(files[0] if files else None, options, folders)
    if run.map:
        found = f"{option_text('map')} {run.map} created the samples, and is not run again"
        raise InvalidRequest(datasets[0].where, found, expected="unchanged samples of the source")
    patterns = [(recorded_range(dataset.file) if dataset.file else None, dataset.folder) for dataset in datasets]
    outputs = [replace(pattern, folder=folder) for pattern, folder in patterns if pattern is not None]
    source = format_list(files[0].run.source.split(", ")) if files else ""
    origin = f"{datasets[0].where} was created by {run.verb} {source}. " if files else ""
    advice = f"{origin}Pass the source of A, or another dataset, as B."
    source_errors = partial(verify_options_in_errors, given, options.join, advice)
    with source_errors():
        recorded_source = RecordedSource(run, datasets, given, outputs)
    stored = _side_of_datasets(datasets, pool, notes, as_stored=True)
    kept = _drop_appended(stored, datasets, notes)
    with source_errors():
        listed, split = recorded_source.list_samples(pool, notes.observer)
    run, missing = recorded_source.run, recorded_source.missing_splits()
    if run.without_table is not None:
        notes.add(f"compared with {option_text('join')} {run.table}")
    notes.add(*(f"not compared: {text}" for text in (*run.unchecked(), *filter(None, [missing]))))
    if run.changes_payloads:
        notes.add(f"not compared: fields, which {option_text('resize')} or {option_text('encode')} changed")
    keys, unread = recorded_source.skipped_keys()
    notes.add(*(f"{where}: the list of skipped samples cannot be read" for where in unread))
    as_numbers = any(shard.format == "tfrecord" for dataset in datasets for shard in dataset.shards)
    excluded = Exclusions(
        run.made_fields, run.changes_payloads, bool(run.selecting_options or missing), frozenset(keys), as_numbers
    )
    splits = np.array([dataset.split for dataset in datasets], np.object_)[split]
    theirs = ComparedSide(listed.entries, splits, listed.entries.values.classes, recorded_source.source)
    if kept is not stored:  # exclude source samples that are only in appended shards, which are not compared
        in_stored, in_kept = (find_positions(theirs.entries.keys, side.entries.keys) >= 0 for side in (stored, kept))
        theirs = theirs.take(np.flatnonzero(in_kept | ~in_stored))
    return (kept, theirs), excluded


def _drop_appended(side: ComparedSide, datasets: list[StoredDataset], notes: Notes) -> ComparedSide:
    kept = [
        dataset.file is None or not has_appended_sources(dataset.file) or number < dataset.file.appends[0]
        for dataset in datasets
        for number in range(len(dataset.shards))
    ]
    if all(kept):
        return side
    samples = np.flatnonzero(np.array(kept)[side.entries.known_spans.file])
    notes.add(f"not compared: {pluralize(len(side.entries) - len(samples), 'sample')} appended from other sources")
    return side.take(samples)


_SPLIT_COLUMN = "split"


class SideComparison:
    """Compare the samples of two sides by key. Samples with the same key are paired in order."""

    def __init__(self, a: ComparedSide, b: ComparedSide, excluded: Exclusions, pool: Pool, notes: Notes) -> None:
        self._a, self._b, self._excluded, self._pool, self._notes = a, b, excluded, pool, notes
        ours, theirs = _key_ids(a.entries.keys, b.entries.keys)
        self._rows_a, self._rows_b, self._removed, self._added = match_ids(ours, theirs)
        self._names = sorted({*a.entries.fields, *b.entries.fields}, key=to_bytes)
        # The id of a sample's field is `sample * width + field`. The last field number is used for all metadata.
        self._width = len(self._names) + 1

    def result(self) -> DiffResult:
        """Return the differences. The caller must set the result's `a`, `b`, `notes` and `seconds`."""
        a, b = self._a, self._b
        removed, added = self._removed, self._added
        if self._excluded.ignore_added:
            added = added[:0]
        elif self._excluded.keys:
            is_skipped = [is_skipped_key(b.entries.keys[index], self._excluded.keys) for index in added.tolist()]
            added = added[~np.array(is_skipped, np.bool_)]
        before, now = a.split[self._rows_a], b.split[self._rows_b]
        moved = np.flatnonzero((before != "") & (now != "") & (before != now))
        metadata_ids, columns = self._changed_metadata(moved)
        ids = np.sort(np.concatenate((self._changed_fields(), metadata_ids)))
        ids = ids[np.diff(ids, prepend=-1) > 0]  # ten times faster than `np.unique`, which hashes the ids
        samples, firsts = np.unique(ids // self._width, return_index=True)
        ends = np.append(firsts[1:], len(ids))
        metadata_only = np.count_nonzero((ends - firsts == 1) & (ids[firsts] % self._width == len(self._names)))
        counts = np.bincount(ids % self._width, minlength=self._width).tolist()
        labels = [*self._names, METADATA_FIELD]

        def build_change(index: int) -> SampleDifference:
            codes = (ids[firsts[index] : ends[index]] % self._width).tolist()
            return SampleDifference(_key_text(a, samples[index]), tuple(labels[code] for code in codes))

        def build_move(index: int) -> MovedSample:
            return MovedSample(_key_text(a, self._rows_a[moved[index]]), before[moved[index]], now[moved[index]])

        return DiffResult(
            samples=(len(a.entries), len(b.entries)),
            added=LazyList(len(added), lambda index: _key_text(b, added[index])),
            removed=LazyList(len(removed), lambda index: _key_text(a, removed[index])),
            changed=LazyList(len(samples), build_change),
            moved=LazyList(len(moved), build_move),
            fields={name: count for name, count in zip(labels, counts, strict=True) if count},
            classes=tuple(name for name in sorted(a.classes.keys() & b.classes.keys()) if self._classes_differ(name)),
            metadata=columns,
            metadata_only=int(metadata_only),
            uncompared=self._excluded.fields,
        )

    def _classes_differ(self, name: str) -> bool:
        # Classes added at the end of a list do not change the numbers of other classes, so `zip` can ignore them.
        pairs = zip(self._a.classes[name] or (), self._b.classes[name] or (), strict=False)
        return any(before != now for before, now in pairs)

    def _changed_fields(self) -> Rows:
        excluded = self._excluded
        if excluded.ignore_payloads:
            return np.zeros(0, np.int64)
        name_ids = {name: index if name not in excluded.fields else -1 for index, name in enumerate(self._names)}
        ids = []
        for entries, rows in ((self._a.entries, self._rows_a), (self._b.entries, self._rows_b)):
            samples = np.full(len(entries), -1, np.int64)
            samples[rows] = self._rows_a
            ids.append(field_ids(samples, entries.counts(), entries.rows.code, entries.fields, name_ids))
        ours, theirs = ids
        index_a, index_b, only_a, only_b = match_ids(ours, theirs)
        return np.concatenate((ours[only_a], theirs[only_b], ours[index_a[self._payloads_differ(index_a, index_b)]]))

    def _payloads_differ(self, rows_a: Rows, rows_b: Rows) -> NDArray[np.bool_]:
        a, b, as_numbers = self._a, self._b, self._excluded.as_numbers
        sides = (a, rows_a), (b, rows_b)
        inline = [inline_checksums(side.entries, rows, as_numbers=as_numbers) for side, rows in sides]
        sizes, sums = zip(*inline, strict=True)
        # Do not compare files from URLs, because they are not fetched again.
        fetched = b.entries.rows.kind[rows_b] == URL
        differ = np.asarray((sizes[0] != sizes[1]) & ~fetched)
        if fetched.any():
            count = pluralize(int(fetched.sum()), "file")
            self._notes.add(f"not compared: {count} from URLs, which are not fetched again")
        same_size = np.flatnonzero(~differ & ~fetched)
        for (side, rows), checksums in zip(sides, sums, strict=True):
            unknown, observer = same_size[checksums[same_size] < 0], self._notes.observer
            self._report_reads(side, rows[unknown])
            checksums[unknown] = source_checksums(side.source, side.entries, rows[unknown], self._pool, observer)
        differ[same_size] = sums[0][same_size] != sums[1][same_size]
        return differ

    def _report_reads(self, side: ComparedSide, rows: Rows) -> None:
        rows = rows[side.entries.rows.kind[rows] == SPAN]
        if side.source is None and (unknown := rows[side.entries.known_spans.crc[rows] < 0]).size:
            unread = f"{pluralize(len(unknown), 'payload')}, {format_size(int(side.entries.rows.size[unknown].sum()))}"
            self._notes.add(f"payloads were read, because no index has their checksums: {unread}")

    def _changed_metadata(self, moved: Rows) -> tuple[Rows, dict[str, ColumnDifference]]:
        if self._excluded.ignore_metadata:
            self._notes.add("not compared: metadata")
            return np.zeros(0, np.int64), {}
        a, b = self._a.entries.metadata, self._b.entries.metadata
        before, now = ({} if table is None else dict.fromkeys(table.column_names) for table in (a, b))
        names = [name for name in before | now if self._b.source is None or name in before.keys() & now.keys()]
        columns: dict[str, ColumnDifference] = {}
        any_differs = np.zeros(len(self._rows_a), np.bool_)
        for name in names:
            values_a, values_b = _column_values(a, name, self._rows_a), _column_values(b, name, self._rows_b)
            differs = _values_differ(values_a, values_b)
            if name == _SPLIT_COLUMN:
                differs[moved] = False
            if differs.any():
                change = "added" if name not in before else "removed" if name not in now else "changed"
                columns[name] = ColumnDifference(change, int(np.count_nonzero(differs)))
            any_differs |= differs
        return np.asarray(self._rows_a[any_differs] * self._width + len(self._names)), columns


def _key_text(side: ComparedSide, sample: int) -> str:
    return decode_name(side.entries.keys[int(sample)])


def _key_ids(first: PackedStrings, second: PackedStrings) -> tuple[Rows, Rows]:
    # The n-th sample with a key gets the same id on both sides.
    codes = number_values(pa.concat_arrays([first.array(), second.array()]).dictionary_encode().indices)
    ours, theirs = codes[: len(first)].astype(np.int64), codes[len(first) :].astype(np.int64)
    counts = [_occurrences(side_codes) for side_codes in (ours, theirs)]
    return ours + counts[0] * len(codes), theirs + counts[1] * len(codes)


def _occurrences(codes: Rows) -> Rows:
    order = np.argsort(codes, kind="stable")
    is_first = np.append(True, codes[order][1:] != codes[order][:-1])[: len(codes)]
    positions = np.arange(len(codes))
    occurrences = np.empty(len(codes), np.int64)
    occurrences[order] = positions - np.maximum.accumulate(np.where(is_first, positions, 0))
    return occurrences


def _column_values(table: pa.Table | None, name: str, rows: Rows) -> pa.ChunkedArray:
    if table is None or name not in table.column_names:
        return pa.chunked_array([pa.nulls(len(rows))])
    return to_plain(table.column(name).take(number_array(rows)))


def _values_differ(first: pa.ChunkedArray, second: pa.ChunkedArray) -> NDArray[np.bool_]:
    try:
        equal = pc.fill_null(pc.equal(first, second), False)  # noqa: FBT003
        equal = pc.or_(equal, pc.and_(pc.is_null(first, nan_is_null=True), pc.is_null(second, nan_is_null=True)))
    except MemoryError:
        raise
    except pa.ArrowException:  # compare in Python, because Arrow cannot compare lists or incompatible types
        return ~np.array([*map(_are_equal, to_python_values(first), to_python_values(second))], np.bool_)
    return np.array(~equal.to_numpy().astype(np.bool_))


def _are_equal(first: Any, second: Any) -> bool:
    """Return whether two values are equal. NaN equals NaN and None, also in lists, structs and maps."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(_are_equal(first[name], second[name]) for name in first)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(_are_equal, first, second))
    return bool(first == second) or all(value is None or value != value for value in (first, second))  # noqa: PLR0124
