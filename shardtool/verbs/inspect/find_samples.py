"""Find samples of datasets, one shard at a time."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from shardtool.dataset.features import number_features
from shardtool.dataset.payload import MAX_INSPECTED_IMAGE_BYTES
from shardtool.dataset.scan import index_text
from shardtool.dataset.shard_file import iter_payload, open_shard
from shardtool.errors import CorruptShard, InvalidRequest, printable
from shardtool.format import tfrecord_read
from shardtool.format.tfrecord_write import FRAME_HEAD_BYTES, FRAME_TAIL_BYTES
from shardtool.messages import choose_text
from shardtool.read.selected_shards import selected_shards
from shardtool.verbs.inspect.overview import StoredSample, stored_samples

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.dataset.shard_index import ShardIndex
    from shardtool.dataset.stored import StoredDataset, StoredShard
    from shardtool.values import NumberType


_MAX_NUMBER_DIGITS = 18


def iter_keys(datasets: Sequence[StoredDataset], where: str | None = None) -> Iterator[str]:
    """Yield the keys of all samples, or of those that match a query."""
    for selected in selected_shards(datasets, where):
        column = selected.shard_index.table.column("__key__")
        yield from (column if where is None else column.take(selected.rows)).to_pylist()
        selected.raise_damage()


def first_samples(
    datasets: Sequence[StoredDataset], max_samples: int | None = None, where: str | None = None
) -> Iterator[StoredSample]:
    """Yield the first samples, or all; with a query, only matching ones."""
    remaining = sys.maxsize if max_samples is None else max_samples
    for selected in selected_shards(datasets, where, metadata=True):
        for row in selected.rows[:remaining].tolist():
            yield _stored_sample(selected.dataset, selected.shard, selected.shard_index, row, selected.first + row)
        remaining -= len(selected.rows)
        if remaining <= 0:
            return
        selected.raise_damage()


def find_sample(datasets: Sequence[StoredDataset], key: str) -> StoredSample:
    """Return the first sample with this key, or else the sample with this number, counted from 0 over all datasets."""
    if (sample := _find_in_key_ranges(datasets, key)) is not None:
        return sample
    sample_number = int(key) if key.isascii() and key.isdigit() and len(key) <= _MAX_NUMBER_DIGITS else -1
    first_number, match, example = 0, None, ""
    damage: list[CorruptShard] = []
    for dataset, shard in ((stored, shard) for stored in datasets for shard in stored.shards):
        try:
            shard_index = shard.index()
        except CorruptShard as error:
            damage.append(error)
            continue
        damage += shard_index.problems
        column = shard_index.table.column("__key__")
        row = column.index(key).as_py()
        if row >= 0:
            return _stored_sample(dataset, shard, shard_index if shard_index.walk else None, row, first_number + row)
        if first_number <= sample_number < first_number + len(shard_index):
            match = (dataset, shard, shard_index if shard_index.walk else None, sample_number - first_number)
        example = example or (column[0].as_py() if len(shard_index) else "")
        first_number += len(shard_index)
    if match is not None:
        return _stored_sample(*match, sample_number)
    if damage:
        raise damage[0]
    example_text = f" such as {printable(example)!r}" if example else ""
    expected = (
        f"a key{example_text}, or a number below {first_number:,}"
        if first_number
        else "a dataset with samples; this one is empty"
    )
    raise InvalidRequest(choose_text(f"sample {key}", f"--show {key}"), "no such sample", expected=expected)


def _find_in_key_ranges(datasets: Sequence[StoredDataset], key: str) -> StoredSample | None:
    """Find a key by the key ranges in the dataset file, so only one index is read.

    Returns None if the ranges overlap or do not contain the key.
    """
    file, shards = datasets[0].file, datasets[0].shards
    if len(datasets) > 1 or file is None or len(file.shards) != len(shards):
        return None
    entries = file.shards
    if any(entry.last_key >= following.first_key for entry, following in pairwise(entries)):
        return None
    index = next((index for index, entry in enumerate(entries) if entry.first_key <= key <= entry.last_key), None)
    if index is None:
        return None
    try:
        shard_index = shards[index].index()
    except CorruptShard:
        return None
    row = shard_index.table.column("__key__").index(key).as_py()
    first_number = sum(entry.samples for entry in entries[:index])
    return (
        None
        if row < 0
        else _stored_sample(
            datasets[0], shards[index], shard_index if shard_index.walk else None, row, first_number + row
        )
    )


def _stored_sample(
    dataset: StoredDataset, shard: StoredShard, shard_index: ShardIndex | None, row: int, number: int
) -> StoredSample:
    """Return a sample with all columns of its index; `shard_index` None: read the index first."""
    shard_index = shard.index(metadata=True) if shard_index is None else shard_index
    sample = stored_samples(shard, shard_index, np.array([row]), first=number - row)[0]
    kinds = shard_index.kinds
    if shard.format == "tfrecord" and shard_index.walk is None:
        kinds = (
            number_features(dataset.file.features) if dataset.file else _record_kinds(shard, sample.offset, sample.size)
        )
    return replace(sample, kinds=kinds, classes=dataset.file.classes if dataset.file else {})


def _record_kinds(shard: StoredShard, offset: int, size: int) -> dict[str, NumberType]:
    if size > MAX_INSPECTED_IMAGE_BYTES:
        return {}
    with open_shard(shard.path) as file:
        start = offset + FRAME_HEAD_BYTES
        data = b"".join(iter_payload(file, start, max(0, size - FRAME_HEAD_BYTES - FRAME_TAIL_BYTES), shard.path))
        features = tfrecord_read.parse_features(data, start, shard.path)
    return {index_text(feature.name): feature.kind for feature in features if feature.kind != "bytes"}
