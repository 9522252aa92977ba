"""Find samples of datasets: all, the first ones, those that match a query, or one by key or number; one shard at a
time.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from shardtool.dataset.features import number_features
from shardtool.dataset.payload import (
    MAX_INSPECTED_IMAGE_BYTES,
)
from shardtool.dataset.scan import index_text
from shardtool.dataset.shard_file import iter_payload, open_shard
from shardtool.errors import CorruptShard, InvalidRequest, printable
from shardtool.format import tfrecord_read
from shardtool.format.tfrecord_write import FRAME_HEAD_BYTES, FRAME_TAIL_BYTES
from shardtool.messages import choose_text, option_text
from shardtool.read.metadata import queryable_table
from shardtool.select.query import match_rows
from shardtool.verbs.inspect.overview import StoredSample, stored_samples

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.dataset.shard_index import ShardIndex
    from shardtool.dataset.stored import StoredDataset, StoredShard
    from shardtool.values import NumberType


class SelectedShard(NamedTuple):
    """A shard of one of the datasets.

    Attributes:
        dataset: The dataset.
        shard: The shard.
        part: Its index.
        first: The number of its first sample, counted from 0 over all datasets.
        rows: The samples that are asked for, in order.
    """

    dataset: StoredDataset
    shard: StoredShard
    part: ShardIndex
    first: int
    rows: NDArray[np.int64]

    def raise_damage(self) -> None:
        """Raise what ended a walk over the shard: there may be more samples.

        Raises:
            CorruptShard: Something did.
        """
        if self.part.problems:
            raise self.part.problems[-1]


def selected_shards(
    datasets: Sequence[StoredDataset], where: str | None = None, *, metadata: bool = False
) -> Iterator[SelectedShard]:
    """Yield the shards of datasets, those without a sample that is asked for, too.

    Args:
        datasets: In order.
        where: A query over the columns of the sidecars, and `key`, `shard`, `size` and `fields`; None: all samples.
        metadata: Whether the sidecars' columns are wanted, too.

    Raises:
        InvalidRequest: The query is none, or true for no sample.
        CorruptShard: A shard has no sound sidecar, and cannot be opened.
    """
    columns = set() if where is None else _query_columns(datasets)
    first = found = 0
    for dataset in datasets:
        for shard in dataset.shards:
            part = shard.index(metadata=metadata or where is not None)
            rows = np.arange(len(part))
            if where is not None:
                classes = dataset.file.classes if dataset.file else {}
                rows = match_rows(queryable_table(shard, part, columns, classes), where, classes)
            yield SelectedShard(dataset, shard, part, first, rows)
            first, found = first + len(part), found + len(rows)
    if where is not None and not found:
        raise InvalidRequest(option_text("where"), f"no sample for which {where}", expected="one sample or more")


def _query_columns(datasets: Sequence[StoredDataset]) -> set[str]:
    """Return the columns that any sidecar has; a query may name one that a shard lacks."""
    names: set[str] = set()
    for dataset in datasets:
        if dataset.file is not None:
            names.update(dataset.file.schema)
        else:
            names.update(name for shard in dataset.shards for name in shard.index().schema.names)
    return {name for name in names if not name.startswith("__")}


def decode_dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column without dictionaries."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


_MAX_NUMBER_DIGITS = 18  # of a number of samples


def iter_keys(datasets: Sequence[StoredDataset], where: str | None = None) -> Iterator[str]:
    """Yield all keys, in the order of the samples; with a query, of those for which it is true."""
    for piece in selected_shards(datasets, where):
        column = piece.part.table.column("__key__")
        yield from (column if where is None else column.take(piece.rows)).to_pylist()
        piece.raise_damage()


def first_samples(
    datasets: Sequence[StoredDataset], most: int | None = None, where: str | None = None
) -> Iterator[StoredSample]:
    """Yield the first samples, or all; with a query, of those for which it is true."""
    left = sys.maxsize if most is None else most
    for piece in selected_shards(datasets, where, metadata=True):
        for row in piece.rows[:left].tolist():
            yield _stored_sample(piece.dataset, piece.shard, piece.part, row, piece.first + row)
        left -= len(piece.rows)
        if left <= 0:
            return
        piece.raise_damage()


def find_sample(datasets: Sequence[StoredDataset], key: str) -> StoredSample:
    """Return the first sample of that key or else, if the key is a number, that sample counted from 0 over all.

    Raises:
        InvalidRequest: There is none.
        CorruptShard: A shard cannot be read.
    """
    if (sample := _find_in_key_ranges(datasets, key)) is not None:
        return sample
    wanted = int(key) if key.isascii() and key.isdigit() and len(key) <= _MAX_NUMBER_DIGITS else -1
    number, by_number, example = 0, None, ""
    damage: list[CorruptShard] = []
    for dataset, shard in ((one, shard) for one in datasets for shard in one.shards):
        try:
            part = shard.index()
        except CorruptShard as error:
            damage.append(error)
            continue
        damage += part.problems
        column = part.table.column("__key__")
        row = column.index(key).as_py()
        if row >= 0:
            return _stored_sample(dataset, shard, part if part.walk else None, row, number + row)
        if number <= wanted < number + len(part):
            by_number = (dataset, shard, part if part.walk else None, wanted - number)
        example = example or (column[0].as_py() if len(part) else "")
        number += len(part)
    if by_number is not None:
        return _stored_sample(*by_number, wanted)
    if damage:
        raise damage[0]
    such = f", such as {printable(example)!r}" if example else ""
    expected = f"a key{such}, or a number below {number:,}" if number else "shards with samples: there are none here"
    raise InvalidRequest(choose_text(f"sample {key}", f"--show {key}"), "no such sample", expected=expected)


def _find_in_key_ranges(datasets: Sequence[StoredDataset], key: str) -> StoredSample | None:
    """Return the sample of a key, if a dataset file lists shards in the order of keys, and one has room for it.

    Then one index is read instead of thousands. None: where it lies, if anywhere, only all indexes say.
    """
    file, shards = datasets[0].file, datasets[0].shards
    if len(datasets) > 1 or file is None or len(file.shards) != len(shards):
        return None
    listed = file.shards
    if any(one.last_key >= after.first_key for one, after in pairwise(listed)):
        return None
    at = next((at for at, one in enumerate(listed) if one.first_key <= key <= one.last_key), None)
    if at is None:
        return None
    try:
        part = shards[at].index()
    except CorruptShard:
        return None
    row = part.table.column("__key__").index(key).as_py()
    before = sum(one.samples for one in listed[:at])
    return None if row < 0 else _stored_sample(datasets[0], shards[at], part if part.walk else None, row, before + row)


def _stored_sample(
    dataset: StoredDataset, shard: StoredShard, part: ShardIndex | None, row: int, number: int
) -> StoredSample:
    """Return a sample with all that its index says; None: that is to be read."""
    part = shard.index(metadata=True) if part is None else part
    found = stored_samples(shard, part, np.array([row]), first=number - row)[0]
    kinds = part.kinds
    if shard.format == "tfrecord" and part.walk is None:
        kinds = (
            number_features(dataset.file.features) if dataset.file else _record_kinds(shard, found.offset, found.size)
        )
    return replace(found, kinds=kinds, classes=dataset.file.classes if dataset.file else {})


def _record_kinds(shard: StoredShard, offset: int, size: int) -> dict[str, NumberType]:
    """Return what the features of a record are, if it is not too large to be read for that."""
    if size > MAX_INSPECTED_IMAGE_BYTES:
        return {}
    with open_shard(shard.path) as file:
        start = offset + FRAME_HEAD_BYTES
        data = b"".join(iter_payload(file, start, max(0, size - FRAME_HEAD_BYTES - FRAME_TAIL_BYTES), shard.path))
        found = tfrecord_read.parse_features(data, start, shard.path)
    return {index_text(one.name): one.kind for one in found if one.kind != "bytes"}
