"""In source datasets, find the fields that contain numbers or lists, and read the numbers.

A field must have the same type in all TFRecord shards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardtool.entries.strings import PackedStrings
from shardtool.errors import InvalidRequest
from shardtool.messages import option_text
from shardtool.source.number_texts import NumberField, NumberTask, NumberTexts, read_number_texts
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from shardtool.source.source_shard import SourceShard
    from shardtool.values import FeatureType, NumberType

    _Run = Callable[
        [Callable[[NumberTask], list[NumberTexts]], Iterable[NumberTask]], Iterator[tuple[int, list[NumberTexts]]]
    ]


class NumberFields(NamedTuple):
    """The fields that contain numbers or lists.

    Attributes:
        numbers: The type of each field with one number per sample.
        texts: For each shard, the numbers as strings, by field.
        lists: The type of each TFRecord field that has no value or several values in at least one sample.
    """

    numbers: Mapping[str, NumberType]
    texts: Sequence[Mapping[str, NumberTexts]]
    lists: Mapping[str, FeatureType]
    notes: tuple[str, ...]

    def columns(self, parts: Sequence[SourceShard]) -> dict[str, PackedStrings]:
        """Return the numbers of all samples as strings, by field. A missing number is ""."""
        names = dict.fromkeys(name for texts in self.texts for name in texts)
        part_texts = [*zip(parts, self.texts, strict=True)]
        return {
            name: PackedStrings.parse(b"".join([_spread_texts(name, part, texts) for part, texts in part_texts]))
            for name in names
        }

    def damaged(self, parts: Sequence[SourceShard]) -> list[tuple[int, str]]:
        """Return the index and the shard name of each sample with a damaged number."""
        damaged, first = dict[int, str](), 0
        for part, fields in zip(parts, self.texts, strict=True):
            for name, texts in fields.items():
                if texts.damaged:
                    samples = part.index.sample_of_row()[part.rows_of(name)[texts.damaged]]
                    damaged.update(dict.fromkeys((first + samples).tolist(), part.name))
            first += len(part.index)
        return sorted(damaged.items())


def _spread_texts(name: str, part: SourceShard, texts: Mapping[str, NumberTexts]) -> bytes:
    if name not in texts:
        return bytes(len(part.index))
    data, rows = texts[name].data, part.rows_of(name)
    if len(rows) == len(part.index):
        return data
    column = [b"\0"] * len(part.index)
    for sample, text in zip(part.index.sample_of_row()[rows].tolist(), data.split(b"\0")[:-1], strict=True):
        column[sample] = text + b"\0"
    return b"".join(column)


def find_number_fields(
    parts: Sequence[SourceShard], is_wanted: Callable[[str], bool], to_format: str, run: _Run, *, salvage: bool = False
) -> NumberFields:
    """Find the fields that contain numbers, and read the numbers as strings. `run` is `Pool.map`.

    Args:
        is_wanted: Returns whether to inspect a field.
        salvage: Record damaged numbers in `NumberTexts.damaged` instead of raising an error.
    """
    for part in parts:
        _check_kinds(part, is_wanted, to_format)
    holders: dict[str, list[SourceShard]] = {}
    for part in parts:
        for name in filter(is_wanted, part.index.names):
            holders.setdefault(name, []).append(part)
    tfrecord_types = {name: kind for name, shards in holders.items() if (kind := _tfrecord_type(name, shards))}
    lists = {name: kind for name, kind in tfrecord_types.items() if _is_list(name, kind, holders[name])}
    numbers = {name: kind for name, kind in tfrecord_types.items() if kind != "bytes" and name not in lists}
    kinds = {name: sorted({part.kind(name) for part in shards}) for name, shards in holders.items()}
    if to_format == "tar":
        agreed = {name: first for name, (first, *others) in kinds.items() if first != "bytes" and not others}
        return NumberFields(agreed, _read_fields(parts, numbers, {}, run, salvage=salvage), lists, ())
    recorded = {name: [kind for kind in kinds[name] if kind != "bytes"] for name in kinds if name not in tfrecord_types}
    convertible = {name: types[0] for name, types in recorded.items() if len(types) == 1}
    mixed = {name: " and ".join(types) for name, types in recorded.items() if len(types) > 1}
    notes = [f"{name!r} stays text: it represents {types} in different datasets" for name, types in mixed.items()]
    tar_types = {**numbers, **convertible}
    texts_of_parts = _read_fields(parts, numbers, tar_types, run, salvage=salvage)
    for name in tar_types:
        texts_of_name = {index: texts[name] for index, texts in enumerate(texts_of_parts) if name in texts}
        conflicts = {index: texts for index, texts in texts_of_name.items() if texts.changed}
        if conflicts and name in numbers:
            index, texts = next(iter(conflicts.items()))
            where = parts[index].describe_value(name, texts.first_changed)
            expected = f"{numbers[name]}, as in TFRecord shards"
            raise _kind_conflict(where, name, "text that would change if stored as a number", expected)
        if conflicts:
            notes.append(_text_note(name, convertible.pop(name), [*conflicts.values()]))
            for fields in texts_of_parts:
                fields.pop(name, None)
    return NumberFields({**numbers, **convertible}, texts_of_parts, lists, tuple(notes))


def _check_kinds(part: SourceShard, is_wanted: Callable[[str], bool], to_format: str) -> None:
    conflicts = {name: conflict for name, conflict in part.conflicts.items() if is_wanted(name)}
    for name, conflict in conflicts.items():
        if conflict.kind != part.kind(name):
            expected = f"{part.kind(name)}, as in the samples before it"
            raise _kind_conflict(part.where(conflict.sample), name, conflict.kind, expected)
        if to_format == "tar":
            found = f"the field {name!r} is a list of {conflict.values:,} {conflict.kind} values"
            remedy = f"Write TFRecord shards, or drop lists with {option_text('drop_fields', tuple(conflicts))}."
            expected = "one value, because tar shards store no lists"
            raise InvalidRequest(part.where(conflict.sample), found, expected=expected, remedy=remedy)


def _is_list(name: str, kind: FeatureType, holders: Sequence[SourceShard]) -> bool:
    first = next((part for part in holders if name in part.conflicts), None)
    if first is None:
        return False
    for part in holders if kind != "bytes" else ():
        if part.format == "tar":
            raise _kind_conflict(part.describe_value(name), name, "text", f"a list of {kind}, as in {first.name}")
    return True


def _tfrecord_type(name: str, holders: Sequence[SourceShard]) -> FeatureType | None:
    shards = [part for part in holders if part.format == "tfrecord"]
    for part in shards:
        if part.kind(name) != (first := shards[0]).kind(name):
            expected = f"{first.kind(name)}, as in {first.name}"
            raise _kind_conflict(part.describe_value(name), name, part.kind(name), expected)
    return shards[0].kind(name) if shards else None


def _kind_conflict(where: str, name: str, kind: str, expected: str) -> InvalidRequest:
    remedy = f"Reshard them separately, or drop the field with {option_text('drop_fields', (name,))}."
    return InvalidRequest(where, f"the field {name!r} is {kind}", expected=expected, remedy=remedy)


def _read_fields(
    parts: Sequence[SourceShard],
    numbers: Mapping[str, NumberType],
    tar_types: Mapping[str, NumberType],
    run: _Run,
    *,
    salvage: bool,
) -> list[dict[str, NumberTexts]]:
    tasks, part_of_task, texts_of_parts = [], [], [dict[str, NumberTexts]() for _ in parts]
    for part_number, part in enumerate(parts):
        index, stored = part.index, part.format == "tfrecord"
        kinds, fields = numbers if stored else tar_types, list[NumberField]()
        crcs = np.broadcast_to(-1, len(index.codes)) if index.crcs is None else index.crcs
        for name in filter(kinds.__contains__, index.names):
            rows = part.rows_of(name)
            columns = (column[rows].astype(np.int64).tobytes() for column in (index.offsets, index.lengths, crcs))
            fields.append(NumberField(name, kinds[name], stored, *columns))
        if fields:
            tasks.append(NumberTask(part.file, tuple(fields), salvage))
            part_of_task.append(part_number)
    for number, results in run(read_number_texts, tasks):
        names = [number_field.field for number_field in tasks[number].fields]
        texts_of_parts[part_of_task[number]].update(zip(names, results, strict=True))
    return texts_of_parts


def _text_note(name: str, kind: str, changed: list[NumberTexts]) -> str:
    count, rounded = sum(texts.changed for texts in changed), sum(texts.rounded for texts in changed)
    if kind == "float" and rounded == count:
        return f"{name!r} stays text: {pluralize(count, 'value')} would be rounded to TFRecord's 32-bit floats"
    return f"{name!r} stays text: {pluralize(count, 'value')} would change as TFRecord's {kind}"
