"""The two sides of a comparison as columns: samples of datasets, or of a source in its current state."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardtool.dataset.expand import recorded_range
from shardtool.errors import InvalidRequest, format_list
from shardtool.messages import option_text
from shardtool.source.recorded_run import (
    has_appended_sources,
    recorded_run,
    table_folders,
    verify_options_in_errors,
)
from shardtool.source.recorded_source import RecordedSource
from shardtool.source.shard_listing import list_datasets
from shardtool.table.keys import find_positions
from shardtool.units import pluralize

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


class ComparedSide(NamedTuple):
    """The samples of one side.

    Attributes:
        entries: The samples.
        split: The split name of each sample; empty if unknown.
        classes: Class names by field.
        source: The source, if the samples are not in shards.
    """

    entries: SampleTable
    split: NDArray[np.object_]
    classes: Mapping[str, list[str]]
    source: Source | None = None

    def take(self, samples: Rows) -> ComparedSide:
        """Return the side with only these samples."""
        return self._replace(entries=self.entries.take(samples), split=self.split[samples])


class Uncompared(NamedTuple):
    """What is not compared between a dataset and its source.

    Attributes:
        fields: Fields that came from a table that is not available.
        payloads: Whether fields are ignored because the run changed payloads.
        added: Whether samples that only the source has are ignored.
        keys: Keys of skipped samples.
        as_numbers: Whether the dataset stores numbers like TFRecord.
    """

    fields: tuple[str, ...] = ()
    payloads: bool = False
    added: bool = False
    keys: frozenset[str] = frozenset()
    as_numbers: bool = False
    metadata: bool = False


def dataset_sides(
    first: list[StoredDataset], second: list[StoredDataset], pool: Pool, notes: Notes
) -> tuple[ComparedSide, ComparedSide]:
    """Return the samples of datasets. If only one side is TFRecord, its numbers become texts, as in tar shards."""
    forms = [{shard.format for side_a in datasets for shard in side_a.shards} for datasets in (first, second)]
    same_format = len(forms[0] | forms[1]) == 1
    side_a, side_b = (
        _side_of_datasets(datasets, pool, notes, as_stored=same_format or "tfrecord" not in own_forms)
        for datasets, own_forms in zip((first, second), forms, strict=True)
    )
    return side_a, side_b


def _side_of_datasets(datasets: list[StoredDataset], pool: Pool, notes: Notes, *, as_stored: bool) -> ComparedSide:
    """Return the samples of datasets; `as_stored`: keep numbers as the bytes in the shards."""
    given = [dataset.given for dataset in datasets]
    listed = list_datasets(given, pool, notes.observer, to_format="tfrecord", as_stored=as_stored)
    notes.add(*listed.notes)
    splits = np.array([dataset.split for dataset, _ in listed.stored], np.object_)
    classes = {name: names for dataset in datasets if dataset.file for name, names in dataset.file.classes.items()}
    return ComparedSide(listed.entries, splits[listed.entries.known_spans.file], classes)


def dataset_and_source(
    datasets: list[StoredDataset], given: Any, options: DiffOptions, pool: Pool, notes: Notes
) -> tuple[tuple[ComparedSide, ComparedSide], Uncompared]:
    """Return the datasets of one run, and its source in its current state.

    Raises:
        InvalidRequest: The datasets are of several runs, a function created their samples, or the source does not
            exist.
    """
    files = [dataset.file for dataset in datasets if dataset.file is not None]
    for dataset in datasets[1:]:
        if dataset.file is None or not dataset.file.made.is_sibling_split_of(files[0].made):
            expected = "all splits of one run, or one dataset"
            raise InvalidRequest(dataset.where, "created by another run than the others", expected=expected)
    folders = table_folders(given, [dataset.folder for dataset in datasets])
    run = recorded_run(files[0] if files else None, options, folders)
    if run.map:
        found = f"{option_text('map')} {run.map} created the samples, and is not run again"
        raise InvalidRequest(datasets[0].where, found, expected="unchanged samples of the source")
    patterns = [(recorded_range(dataset.file) if dataset.file else None, dataset.folder) for dataset in datasets]
    outputs = [replace(pattern, folder=folder) for pattern, folder in patterns if pattern is not None]
    source = format_list(files[0].made.source.split(", ")) if files else ""
    made = f"{datasets[0].where} was created by {run.verb} {source}; " if files else ""
    source_errors = partial(
        verify_options_in_errors, given, options.join, f"{made}B is that source or another dataset."
    )
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
    excluded = Uncompared(
        run.made_fields, run.changes_payloads, bool(run.selecting_options or missing), frozenset(keys), as_numbers
    )
    splits = np.array([dataset.split for dataset in datasets], np.object_)[split]
    theirs = ComparedSide(listed.entries, splits, listed.entries.values.classes, recorded_source.source)
    if kept is not stored:  # the source may contain the appended samples now
        in_stored, in_kept = (
            find_positions(theirs.entries.keys, dataset.entries.keys) >= 0 for dataset in (stored, kept)
        )
        theirs = theirs.take(np.flatnonzero(in_kept | ~in_stored))
    return (kept, theirs), excluded


def _drop_appended(side: ComparedSide, datasets: list[StoredDataset], notes: Notes) -> ComparedSide:
    """Return the samples of the first run, without samples appended from other sources."""
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
