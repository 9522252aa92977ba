"""One pass over a dataset's indexes: counts everything, and chooses the samples that are shown.

The indexes are read one at a time and let go. Of thousands of shards, some are read, evenly spread. The choice is
the first `samples` of all by (place among those of its label, a number drawn from the seed), so that rare labels are
shown too; without labels it goes by shard in the same way.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.dataset.opened import read_part
from shardtool.dataset.parquet_bounds import read_footer
from shardtool.dataset.sidecar_read import read_bytes
from shardtool.entries.arrow import python_rows
from shardtool.errors import CorruptShard, printable, reason
from shardtool.inspection.page.figures import Chosen, Figures, LabelSet, ShardFigure, Sizes
from shardtool.inspection.page.labels import (
    LABEL_FIELDS,
    SPLIT,
    FieldLabels,
    column_labels,
    count_labels,
    label_columns,
)
from shardtool.pattern import sidecar_name
from shardtool.plan.shuffle import FIRST_FACTOR, SECOND_FACTOR, random_numbers
from shardtool.storage.reading import file_stat

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from shardtool.dataset.opened import OpenedDataset, OpenedShard

_MOST_SHARDS = 256  # whose indexes are read
_MOST_ROWS = 4_000_000
_MOST_FIELDS = 1000
_MOST_PINNED = 50  # samples that are shown because something is wrong with them


class FindingLike(Protocol):
    """What is wrong somewhere: what `verify` returns."""

    @property
    def code(self) -> str:
        """Stable, for programs."""

    @property
    def file(self) -> str:
        """The name of the shard, sidecar or dataset file."""

    @property
    def key(self) -> str:
        """The sample's key; empty for none."""

    @property
    def found(self) -> str:
        """What is there."""


@dataclass
class Gathered:
    """What a report shows: the figures, and the samples in the order of the dataset."""

    figures: Figures
    chosen: list[Chosen]


@dataclass
class _Candidate:
    """A sample that may be shown, with what decides about it."""

    stratum: str
    priority: int
    chosen: Chosen


def gather(dataset: OpenedDataset, samples: int, seed: int, findings: Sequence[FindingLike] = ()) -> Gathered:
    """Count a dataset, and choose samples to show.

    Args:
        dataset: What to look at. Damaged shards are told of in the figures.
        samples: How many samples to choose at most.
        seed: Of the choice.
        findings: What is known to be wrong; the samples that they name are chosen first.
    """
    gathering = _Gathering(dataset, samples, seed, findings)
    for number in gathering.readable():
        gathering.read(dataset.shards[number])
    return gathering.result()


class _Gathering:
    """The state of the pass."""

    def __init__(self, dataset: OpenedDataset, samples: int, seed: int, findings: Sequence[FindingLike]) -> None:
        self._dataset, self._most, self._seed = dataset, samples, seed
        self.figures = Figures(_shard_figures(dataset))
        self._pool: list[_Candidate] = []
        self._pinned: list[Chosen] = []
        self._wrong: dict[str, dict[str, list[tuple[str, str]]]] = {}
        of = {sidecar_name(shard.name): shard.name for shard in dataset.shards}
        for one in findings:
            if one.key:
                keys = self._wrong.setdefault(of.get(one.file, one.file), {})
                keys.setdefault(one.key, []).append((printable(one.code), printable(one.found)))
        self._fields = _label_fields(dataset)
        self._sets = {labels.name: LabelSet(labels.name) for labels in self._fields}
        self._columns: dict[str, LabelSet] = {}

    def readable(self) -> list[int]:
        """Return the numbers of the shards whose indexes are read."""
        shards = self.figures.shards
        there = [number for number, shard in enumerate(shards) if shard.size is not None]
        rows = sum(shards[number].samples or 0 for number in there)
        most = min(_MOST_SHARDS, max(8, _MOST_ROWS * len(there) // max(rows, 1)))
        if len(there) > most:
            ends = [len(there) * at // most for at in range(most + 1)]
            drawn = _numbers(self._seed, 2**32, most)
            even = {
                there[low + int(draw) % (high - low)]
                for draw, low, high in zip(drawn.tolist(), ends, ends[1:], strict=False)
            }
            wrong = [number for number in there if shards[number].name in self._wrong][:_MOST_PINNED]
            there = sorted(even | set(wrong))
        return there

    def read(self, shard: OpenedShard) -> None:
        """Count one shard, and let its samples take part in the choice."""
        figure = self.figures.shards[shard.number]
        try:
            part = read_part(shard, metadata=True)
        except CorruptShard as error:
            figure.problems.append(error.found)
            return
        for one in part.damage:
            figure.problems.append(f"its index: {one.found}" if one.where == shard.sidecar else one.found)
        table = part.table
        if figure.samples is not None and figure.samples != table.num_rows:
            figure.problems.append(f"{table.num_rows:,} samples, the dataset file says {figure.samples:,}")
        figure.samples = table.num_rows
        self.figures.counted += 1
        self.figures.counted_samples += table.num_rows
        for column in part.schema:
            if not column.name.startswith("__") and len(self.figures.columns) < _MOST_FIELDS:
                self.figures.columns.setdefault(column.name, str(column.type))
        parts = _parts(table)
        payload = np.bincount(parts["parent"], weights=parts["length"], minlength=table.num_rows)
        self.figures.sizes.add(payload.astype(np.uint64))
        self._count_fields(parts)
        self._choose(shard.number, table, self._labels(shard.path, table, parts))

    def _count_fields(self, parts: dict[str, Any]) -> None:
        for name in pc.unique(parts["name"]).to_pylist():
            if name not in self.figures.fields and len(self.figures.fields) >= _MOST_FIELDS:
                continue
            mask = pc.equal(parts["name"], name).to_numpy(zero_copy_only=False)
            self.figures.fields.setdefault(name, Sizes()).add(parts["length"][mask])

    def _labels(self, path: str, table: Any, parts: dict[str, Any]) -> dict[str, tuple[NDArray[np.int64], list[str]]]:
        """Return each set's codes of this shard, and count them."""
        found = {}
        for field in self._fields:
            found[field.name] = field.of_shard(path, parts, table.num_rows)
            count_labels(self._sets[field.name], *found[field.name])
        for name in label_columns(table.schema):
            labels = self._columns.setdefault(name, LabelSet(name, name.lower() in LABEL_FIELDS))
            if labels.crowded or name in self._sets:
                continue
            values = column_labels(table.column(name))
            if values is None:
                labels.crowded = True
            else:
                found[name] = values
                count_labels(labels, *values)
        return found

    def _choose(self, number: int, table: Any, labels: dict[str, tuple[NDArray[np.int64], list[str]]]) -> None:
        rows = table.num_rows
        codes, names = self._strata(labels, number, rows)
        priority = _numbers(self._seed, number, rows)
        order = np.lexsort((priority, codes))
        starts = np.flatnonzero(np.diff(codes[order], prepend=-2))
        rank = np.arange(rows) - np.repeat(starts, np.diff(np.append(starts, rows)))
        best = order[np.lexsort((priority[order], rank))][: self._most]  # no other row of this shard can be chosen
        taken = best.tolist()
        wrong = self._wrong.get(self.figures.shards[number].name, {})
        if wrong and len(self._pinned) < _MOST_PINNED:
            at = pc.index_in(table.column("__key__"), pa.array(list(wrong), pa.string())).combine_chunks()
            taken += np.flatnonzero(at.is_valid().to_numpy(zero_copy_only=False))[:_MOST_PINNED].tolist()
        taken = list(dict.fromkeys(taken))
        for at, values in zip(taken, python_rows(table.take(pa.array(taken, pa.int64()))), strict=True):
            shown = {name: texts[code] for name, (coded, texts) in labels.items() if (code := int(coded[at])) >= 0}
            one = Chosen(number, at, values, shown, wrong.get(values["__key__"], []))
            if one.findings:
                self._pinned.append(one)
            self._pool.append(_Candidate(names[int(codes[at])] if names else "", int(priority[at]), one))
        self._pool = _first(self._pool, self._most)

    def _strata(self, labels: dict[str, Any], number: int, rows: int) -> tuple[NDArray[np.int64], list[str]]:
        """Return what the choice is spread over: the first set's labels, or the shard."""
        name = _first_set(self._sets.values(), self._columns.values())
        if name in labels:
            codes, texts = labels[name]
            return codes, [*texts, ""]  # -1 is the last one
        return np.zeros(rows, np.int64), [f"shard {number}"]

    def result(self) -> Gathered:
        """Return all of it."""
        pinned = {(one.shard, one.row): one for one in self._pinned[:_MOST_PINNED]}
        for candidate in self._pool:
            if len(pinned) >= self._most:
                break
            pinned.setdefault((candidate.chosen.shard, candidate.chosen.row), candidate.chosen)
        chosen = [pinned[place] for place in sorted(pinned)][: self._most]
        figures, most = self.figures, self.figures.counted_samples // 2
        columns = [one for one in self._columns.values() if _useful(one, most) and one.name not in self._sets]
        figures.splits = next((one for one in columns if one.name == SPLIT), None)
        columns.sort(key=lambda one: not one.is_label)
        figures.labels = [one for one in self._sets.values() if one.counts]
        for one in columns:  # a column that says what a field says is shown once
            if one is not figures.splits and all(one.counts != other.counts for other in figures.labels):
                figures.labels.append(one)
        return Gathered(figures, chosen)


def _useful(labels: LabelSet, most: int) -> bool:
    return not labels.crowded and (1 < len(labels.counts) <= max(most, 2) or labels.name in (*LABEL_FIELDS, SPLIT))


def _first_set(fields: Iterable[LabelSet], columns: Iterable[LabelSet]) -> str:
    """Return the name of the set that samples are spread over: a field, or a column that is called a label."""
    for one in fields:
        if one.counts:
            return one.name
    return next((one.name for one in columns if one.counts and one.is_label), "")


def _first(pool: list[_Candidate], most: int) -> list[_Candidate]:
    """Return the first of the pool by place in the stratum, then by number.

    What is let go cannot come back: more candidates only push it further down.
    """
    pool.sort(key=lambda one: (one.stratum, one.priority, one.chosen.shard, one.chosen.row))
    ranks: list[int] = []
    for at, one in enumerate(pool):
        ranks.append(ranks[-1] + 1 if at and pool[at - 1].stratum == one.stratum else 0)
    order = sorted(range(len(pool)), key=lambda at: (ranks[at], pool[at].priority, pool[at].stratum))
    return [pool[at] for at in order[:most]]


def _numbers(seed: int, stream: int, count: int) -> NDArray[np.uint64]:
    """Return `count` numbers that look random, others for each seed and stream."""
    return random_numbers((seed * FIRST_FACTOR + stream * SECOND_FACTOR) % 2**64, count)


def _parts(table: Any) -> dict[str, Any]:
    """Return the fields of all samples as columns; `parent` is the sample's row."""
    lists = table.column("__fields__").combine_chunks()
    flat = lists.flatten()
    crcs, names = flat.field("crc32c"), flat.field("name")
    return {
        "name": names.dictionary_decode() if pa.types.is_dictionary(names.type) else names,
        "offset": flat.field("offset").to_numpy(),
        "length": flat.field("length").to_numpy(),
        "crc32c": None if crcs.null_count else crcs.to_numpy(),
        "parent": pc.list_parent_indices(lists).to_numpy(),
    }


def _shard_figures(dataset: OpenedDataset) -> list[ShardFigure]:
    listed = {entry.name: entry for entry in dataset.file.shards} if dataset.file else {}
    figures = []
    for shard in dataset.shards:
        figure, entry = ShardFigure(shard.name), listed.get(shard.name)
        try:
            figure.size = file_stat(shard.path).st_size
        except OSError as error:
            figure.problems.append(reason(error))
        if entry is not None:
            figure.samples = entry.samples
            if figure.size not in (None, entry.size):
                figure.problems.append(f"{figure.size:,} bytes, the dataset file says {entry.size:,}")
        elif figure.size is not None:
            figure.samples = _rows(shard.sidecar)
        if figure.size is not None and entry is not None and not os.path.exists(shard.sidecar):
            figure.problems.append("its index is missing")
        figures.append(figure)
    return figures


def _rows(sidecar: str) -> int | None:
    """Return how many samples a sidecar claims to have: only a choice of shards goes by it."""
    try:
        return read_footer(read_bytes(sidecar)).rows
    except (OSError, ValueError):
        return None


def _label_fields(dataset: OpenedDataset) -> list[FieldLabels]:
    classes = dataset.file.classes if dataset.file else {}
    features = dataset.file.features if dataset.file else {}
    names = [*classes, *(name for name in LABEL_FIELDS if name not in classes)]
    found = []
    for name in names:
        named = classes.get(name)
        texts = [str(one) for one in named] if isinstance(named, list) else []
        packed = dataset.format == "tfrecord" and ("int64" in str(features.get(name, "")) or not dataset.file)
        found.append(FieldLabels(name, texts, packed=packed))
    return found
