"""The source of a recorded run, opened and listed again as the run listed it."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.dataset.expand import expand_if_pattern, sibling_splits
from shardtool.dataset.find import find_dataset
from shardtool.entries.strings import PackedStrings
from shardtool.errors import CorruptShard, InvalidRequest, format_list
from shardtool.messages import option_text
from shardtool.publish.skipped_list import read_skipped_rows
from shardtool.request.create_options import ReshardOptions
from shardtool.source.duplicates import drop_duplicate_samples
from shardtool.source.open import open_source
from shardtool.table.keys import find_positions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shardtool.dataset.stored import StoredDataset
    from shardtool.execute.pool import Pool
    from shardtool.pattern import ShardPattern
    from shardtool.request.observer import Observer
    from shardtool.source.base import Listing, Source
    from shardtool.verbs.verify.recorded_run import RecordedRun

    Rows = NDArray[np.int64]


class RecordedSource:
    """The source of a recorded run, as it is now.

    Args:
        run: The run.
        datasets: What it made: one dataset, or some of its splits.
        given: What the source is; a list of datasets or folders where there were several.
        outputs: The patterns of what was made.

    Attributes:
        source: The source.
        run: The run; without the table, if the table that was found cannot be joined.

    Raises:
        InvalidRequest: There is no such source.
    """

    def __init__(
        self, run: RecordedRun, datasets: Sequence[StoredDataset], given: Any, outputs: Sequence[ShardPattern]
    ) -> None:
        self.run, self._datasets = run, datasets
        if isinstance(run.options, ReshardOptions):
            for one in given if isinstance(given, (list, tuple)) else [given]:
                if not isinstance(one, (str, os.PathLike, list, tuple)):
                    found = f"a {type(one).__name__}"
                    raise InvalidRequest(option_text("source"), found, expected="what it was made from: datasets")
                for dataset in expand_if_pattern(one):
                    find_dataset(dataset)  # before shards are read, where there is none
        self._given, self._outputs = given, outputs
        self.source = self._open(run)
        self._stay = self._splits_that_stay()

    def _open(self, run: RecordedRun) -> Source:
        source = open_source(self._given, replace(run.options, on_error="skip"), self._outputs)
        source.may_lack_values = True
        return source

    def _splits_that_stay(self) -> list[StoredDataset]:
        """Return all splits, where samples stay in theirs: a larger source would be divided in another way.

        That is so of labels that keep their shares, and of all that an append added to.
        """
        dividing = self.run.options.make_split_options()
        if dividing is None or dividing.reads is None:
            return []
        known = {one.split for one in self._datasets}
        found = [*self._datasets, *(one for one in sibling_splits(self._datasets[0]) if one.split not in known)]
        return found if dividing.stratify or any(one.file and one.file.appends for one in found) else []

    def list_samples(self, pool: Pool, observer: Observer) -> tuple[Listing, Rows]:
        """Return the samples of the source that belong into the datasets, and the place of each one's dataset.

        Raises:
            InvalidRequest: The source cannot be listed.
        """
        try:
            return self._list_samples(pool, observer)
        except InvalidRequest as error:
            if (without := self.run.without_table) is None:
                raise
            self.run = without._replace(no_table=f"which cannot be joined as found in {self.run.table}: {error}")
            self.source = self._open(self.run)
            self._stay = self._splits_that_stay()
            return self._list_samples(pool, observer)

    def _list_samples(self, pool: Pool, observer: Observer) -> tuple[Listing, Rows]:
        options, source, datasets = self.run.options, self.source, self._datasets
        listed = source.choose(source.list_samples(pool, observer), lambda: None)
        listed = drop_duplicate_samples(listed, source, options, pool, observer, partial(_stored_keys, datasets))
        entries, dividing, which = listed.entries, options.make_split_options(), np.zeros(len(listed.entries), np.int64)
        if dividing is not None:
            from shardtool.select.splits import assign_splits

            values = source.labels(listed, dividing.reads[1]) if dividing.reads else None
            splits = assign_splits(entries.keys, dividing, values)
            there = (one.split for one in (*datasets, *self._stay))
            numbers = {name: at for at, name in enumerate(dict.fromkeys([*splits.names, *there]))}  # it may lack some
            for one in self._stay:
                place = find_positions(_stored_keys([one]), entries.keys)
                splits.number[place[place >= 0]] = numbers[one.split]
            places = [splits.samples(numbers[one.split]) for one in datasets]
            which = np.repeat(np.arange(len(places)), [len(some) for some in places])
            entries = entries.take(np.concatenate(places))
        if options.portable:
            from shardtool.select.portable_names import make_portable

            entries = make_portable(entries)
        return replace(listed, entries=entries), which

    def missing_splits(self) -> str:
        """Return what is not compared since splits that may have any sample are not there; empty: none is missing."""
        dividing, there = self.run.options.make_split_options(), {one.split for one in self._stay}
        if (
            dividing is None
            or dividing.stratify is None
            or not any(one.file and one.file.appends for one in self._stay)
        ):
            return ""
        lost = [name for name, _ in dividing.shares if name not in there]
        why = f"they may be in {format_list(lost)}, which is not beside, and {option_text('stratify')} would divide all anew"
        return f"samples that only the source has: {why}" if lost else ""

    def skipped_keys(self) -> tuple[set[str], list[str]]:
        """Return the keys listed as left out, as listed, and the datasets of which that list cannot be read."""
        found, unread = set[str](), list[str]()
        for one in self._stay or self._datasets:
            try:
                found |= {row.key for row in read_skipped_rows(one.file, one.folder)} if one.file else set()
            except CorruptShard:
                unread.append(one.where)
        return found, unread


def _stored_keys(datasets: Sequence[StoredDataset]) -> PackedStrings:
    """Return the keys of datasets, but for shards that nothing is known of any more."""
    from shardtool.publish.dataset_keys import encode_shard_keys

    found = []
    for shard in (shard for one in datasets for shard in one.shards):
        with suppress(CorruptShard):
            found.append(encode_shard_keys(shard.index()))
    return PackedStrings.parse(b"".join(found))
