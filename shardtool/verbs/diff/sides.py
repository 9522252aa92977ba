"""The two sides of a comparison as columns: the samples of datasets, or of a source as it is now."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardtool.dataset.expand import recorded_range
from shardtool.errors import InvalidRequest, format_list
from shardtool.messages import option_text
from shardtool.source.shard_listing import list_datasets
from shardtool.table.keys import find_positions
from shardtool.units import pluralize
from shardtool.verbs.verify.recorded_run import (
    has_appended_sources,
    recorded_run,
    table_folders,
    verify_options_in_errors,
)
from shardtool.verbs.verify.recorded_source import RecordedSource

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
        split: The name of each one's split; empty where that is not known.
        classes: Field to the names of its class numbers.
        source: Where samples come from that are in no shards.
    """

    entries: SampleTable
    split: NDArray[np.object_]
    classes: Mapping[str, list[str]]
    source: Source | None = None

    def take(self, samples: Rows) -> ComparedSide:
        """Return the side with these of its samples."""
        return self._replace(entries=self.entries.take(samples), split=self.split[samples])


class Uncompared(NamedTuple):
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


def dataset_sides(
    first: list[StoredDataset], second: list[StoredDataset], pool: Pool, notes: Notes
) -> tuple[ComparedSide, ComparedSide]:
    """Return the samples of datasets; of TFRecords beside tars, with the texts of numbers, as tars have them."""
    forms = [{shard.format for one in some for shard in one.shards} for some in (first, second)]
    alike = len(forms[0] | forms[1]) == 1
    one, other = (
        _side_of_datasets(some, pool, notes, as_stored=alike or "tfrecord" not in own)
        for some, own in zip((first, second), forms, strict=True)
    )
    return one, other


def _side_of_datasets(datasets: list[StoredDataset], pool: Pool, notes: Notes, *, as_stored: bool) -> ComparedSide:
    """Return the samples of datasets; `as_stored`: with numbers as the bytes that shards have."""
    given = [one.given for one in datasets]
    listed = list_datasets(given, pool, notes.observer, to_format="tfrecord", as_stored=as_stored)
    notes.add(*listed.notes)
    splits = np.array([one.split for one, _ in listed.stored], np.object_)
    classes = {name: names for one in datasets if one.file for name, names in one.file.classes.items()}
    return ComparedSide(listed.entries, splits[listed.entries.known_spans.file], classes)


def dataset_and_source(
    datasets: list[StoredDataset], given: Any, options: DiffOptions, pool: Pool, notes: Notes
) -> tuple[tuple[ComparedSide, ComparedSide], Uncompared]:
    """Return datasets that one run made, and its source as it is now.

    Raises:
        InvalidRequest: They are of several runs, or a function made their samples, or there is no such source.
    """
    files = [one.file for one in datasets if one.file is not None]
    for one in datasets[1:]:
        if one.file is None or not one.file.made.is_sibling_split_of(files[0].made):
            expected = "all splits of one run, or one dataset"
            raise InvalidRequest(one.where, "not made by the run of the others", expected=expected)
    folders = table_folders(given, [one.folder for one in datasets])
    run = recorded_run(files[0] if files else None, options, folders)
    if run.map:
        found = f"{option_text('map')} {run.map} made the samples, and is not run again"
        raise InvalidRequest(datasets[0].where, found, expected="samples as they are in their source")
    patterns = [(recorded_range(one.file) if one.file else None, one.folder) for one in datasets]
    outputs = [replace(pattern, folder=folder) for pattern, folder in patterns if pattern is not None]
    source = format_list(files[0].made.source.split(", ")) if files else ""
    made = f"{datasets[0].where} was made by {run.verb} {source}; " if files else ""
    words = partial(
        verify_options_in_errors, given, options.join, f"{made}B is that source as it is now, or another dataset."
    )
    with words():
        again = RecordedSource(run, datasets, given, outputs)
    stored = _side_of_datasets(datasets, pool, notes, as_stored=True)
    mine = _drop_appended(stored, datasets, notes)
    with words():
        listed, split = again.list_samples(pool, notes.observer)
    run, lost = again.run, again.missing_splits()
    if run.without_table is not None:
        notes.add(f"compared with {option_text('join')} {run.table}")
    notes.add(*(f"not compared: {text}" for text in (*run.unchecked(), *filter(None, [lost]))))
    if run.changes:
        notes.add(f"not compared: fields, which {option_text('resize')} or {option_text('encode')} changed")
    keys, unread = again.skipped_keys()
    notes.add(*(f"{where}: the list of what was left out cannot be read" for where in unread))
    as_numbers = any(shard.format == "tfrecord" for one in datasets for shard in one.shards)
    left_out = Uncompared(run.made_fields, run.changes, bool(run.choosing or lost), frozenset(keys), as_numbers)
    which = np.array([one.split for one in datasets], np.object_)[split]
    theirs = ComparedSide(listed.entries, which, listed.entries.values.classes, again.source)
    if mine is not stored:  # the source may have them by now
        there, own = (find_positions(theirs.entries.keys, one.entries.keys) >= 0 for one in (stored, mine))
        theirs = theirs.take(np.flatnonzero(own | ~there))
    return (mine, theirs), left_out


def _drop_appended(side: ComparedSide, datasets: list[StoredDataset], notes: Notes) -> ComparedSide:
    """Return the samples of the first run: those that were appended from other sources are left out."""
    kept = [
        one.file is None or not has_appended_sources(one.file) or at < one.file.appends[0]
        for one in datasets
        for at in range(len(one.shards))
    ]
    if all(kept):
        return side
    samples = np.flatnonzero(np.array(kept)[side.entries.known_spans.file])
    notes.add(f"not compared: {pluralize(len(side.entries) - len(samples), 'sample')} appended from other sources")
    return side.take(samples)
