"""List the source of a recorded run again, with the recorded options."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.dataset.expand import expand_if_pattern, sibling_splits
from shardtool.dataset.find import find_dataset
from shardtool.dataset.skipped_list import read_skipped_rows
from shardtool.entries.arrow import append_nuls, to_one_chunk, to_plain
from shardtool.entries.strings import PackedStrings
from shardtool.errors import CorruptShard, InvalidRequest, format_list
from shardtool.messages import option_text
from shardtool.request.create_options import ReshardOptions
from shardtool.select.rename_keys import OLD_KEY_COLUMN
from shardtool.source.duplicates import drop_duplicate_samples
from shardtool.source.open import open_source
from shardtool.table.columns import is_text_type
from shardtool.table.keys import find_positions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shardtool.dataset.stored import StoredDataset
    from shardtool.execute.pool import Pool
    from shardtool.pattern import ShardPattern
    from shardtool.request.observer import Observer
    from shardtool.source.base import Listing, Source
    from shardtool.source.recorded_run import RecordedRun

    Rows = NDArray[np.int64]


class RecordedSource:
    """The current source of a recorded run.

    `datasets` are the datasets that the run created, or some of its splits. If the table that was found cannot be
    joined, `run.without_table` replaces `run`.
    """

    def __init__(
        self, run: RecordedRun, datasets: Sequence[StoredDataset], source_argument: Any, outputs: Sequence[ShardPattern]
    ) -> None:
        self.run, self._datasets = run, datasets
        if isinstance(run.options, ReshardOptions):
            for item in source_argument if isinstance(source_argument, (list, tuple)) else [source_argument]:
                if not isinstance(item, (str, os.PathLike, list, tuple)):
                    found = f"a {type(item).__name__}"
                    raise InvalidRequest(option_text("source"), found, expected="the source datasets")
                for dataset in expand_if_pattern(item):
                    find_dataset(dataset)
        self._source_argument, self._outputs = source_argument, outputs
        self.source = self._open(run)
        self._fixed_splits = self._find_fixed_splits()

    def _open(self, run: RecordedRun) -> Source:
        options = replace(run.options, on_error="skip")
        if run.key_list:
            options = replace(options, keys_from=_stored_keys(self._datasets, old=options.rename_keys is not None))
        source = open_source(self._source_argument, options, self._outputs)
        source.may_lack_values = True
        return source

    def _find_fixed_splits(self) -> list[StoredDataset]:
        split_options = self.run.options.make_split_options()
        if split_options is None or split_options.required_column is None:
            return []
        names = {dataset.split for dataset in self._datasets}
        others = [dataset for dataset in sibling_splits(self._datasets[0]) if dataset.split not in names]
        splits = [*self._datasets, *others]
        return splits if split_options.stratify or _have_grown(splits) else []

    def list_samples(self, pool: Pool, observer: Observer) -> tuple[Listing, Rows]:
        """Return the samples of the source that belong in the datasets, and the index of each sample's dataset."""
        try:
            return self._list_samples(pool, observer)
        except InvalidRequest as error:
            if (without := self.run.without_table) is None:
                raise
            self.run = without._replace(table_problem=f"which cannot be joined as found in {self.run.table}: {error}")
            self.source = self._open(self.run)
            self._fixed_splits = self._find_fixed_splits()
            return self._list_samples(pool, observer)

    def _list_samples(self, pool: Pool, observer: Observer) -> tuple[Listing, Rows]:
        options, source, datasets = self.run.options, self.source, self._datasets
        listed = source.choose(source.list_samples(pool, observer), lambda: None)
        listed = drop_duplicate_samples(listed, source, options, pool, observer, partial(_stored_keys, datasets))
        entries, split_options = listed.entries, options.make_split_options()
        dataset_indexes = np.zeros(len(entries), np.int64)
        if split_options is not None:
            from shardtool.select.splits import assign_splits

            values = source.labels(listed, *split_options.required_column) if split_options.required_column else None
            splits = assign_splits(entries.keys, split_options, values)
            names = (dataset.split for dataset in (*datasets, *self._fixed_splits))
            numbers = {name: number for number, name in enumerate(dict.fromkeys([*splits.names, *names]))}
            for dataset in self._fixed_splits:
                positions = find_positions(_stored_keys([dataset]), entries.keys)
                splits.number[positions[positions >= 0]] = numbers[dataset.split]
            split_samples = [splits.samples(numbers[dataset.split]) for dataset in datasets]
            dataset_indexes = np.repeat(np.arange(len(split_samples)), [len(samples) for samples in split_samples])
            entries = entries.take(np.concatenate(split_samples))
        if options.portable:
            from shardtool.select.storable_names import make_portable

            entries = make_portable(entries)
        return replace(listed, entries=entries), dataset_indexes

    def missing_splits(self) -> str:
        """Describe which samples are not compared because splits are missing. Return an empty string if none are."""
        split_options = self.run.options.make_split_options()
        if split_options is None or split_options.stratify is None or not _have_grown(self._fixed_splits):
            return ""
        existing = {dataset.split for dataset in self._fixed_splits}
        missing = [name for name, _ in split_options.shares if name not in existing]
        reason = f"they may be in {format_list(missing)}, which is missing"
        return f"samples that only the source has: {reason}" if missing else ""

    def skipped_keys(self) -> tuple[set[str], list[str]]:
        """Return the keys of skipped samples, and the datasets whose list of skipped samples cannot be read."""
        keys, unread = set[str](), list[str]()
        for dataset in self._fixed_splits or self._datasets:
            try:
                keys |= {row.key for row in read_skipped_rows(dataset.file, dataset.folder)} if dataset.file else set()
            except CorruptShard:
                unread.append(dataset.where)
        return keys, unread


def _have_grown(datasets: Sequence[StoredDataset]) -> bool:
    return any(dataset.file and dataset.file.appends for dataset in datasets)


def _stored_keys(datasets: Sequence[StoredDataset], *, old: bool = False) -> PackedStrings:
    encoded = []
    for shard in (shard for dataset in datasets for shard in dataset.shards):
        with suppress(CorruptShard):
            index = shard.index(metadata=old)
            names = index.table.column_names if old else ()
            column = to_one_chunk(to_plain(index.table.column(OLD_KEY_COLUMN))) if OLD_KEY_COLUMN in names else None
            is_valid = column is not None and is_text_type(column.type)
            encoded.append(append_nuls(column) if is_valid else index.keys_with_nul())
    return PackedStrings.parse(b"".join(encoded))
