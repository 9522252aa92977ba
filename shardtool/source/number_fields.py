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
        texts: For each shard, maps fields to numbers as strings.
        lists: The type of each TFRecord field that has no value or several values in at least one sample.
    """

    numbers: Mapping[str, NumberType]
    texts: Sequence[Mapping[str, NumberTexts]]
    lists: Mapping[str, FeatureType]
    notes: tuple[str, ...]

    def columns(self, shards: Sequence[SourceShard]) -> dict[str, PackedStrings]:
        """Return the numbers of all samples as strings, by field. A missing number is ""."""
        names = dict.fromkeys(name for texts in self.texts for name in texts)
        shard_texts = [*zip(shards, self.texts, strict=True)]
        return {
            name: PackedStrings.parse(b"".join([_spread_texts(name, shard, texts) for shard, texts in shard_texts]))
            for name in names
        }

    def damaged(self, shards: Sequence[SourceShard]) -> list[tuple[int, str]]:
        """Return the index and the shard name of each sample with a damaged number."""
        damaged, first = dict[int, str](), 0
        for shard, fields in zip(shards, self.texts, strict=True):
            for name, texts in fields.items():
                if texts.damaged:
                    samples = shard.index.sample_of_row()[shard.rows_of(name)[texts.damaged]]
                    damaged.update(dict.fromkeys((first + samples).tolist(), shard.name))
            first += len(shard.index)
        return sorted(damaged.items())


def _spread_texts(name: str, shard: SourceShard, texts: Mapping[str, NumberTexts]) -> bytes:
    if name not in texts:
        return bytes(len(shard.index))
    data, rows = texts[name].data, shard.rows_of(name)
    if len(rows) == len(shard.index):
        return data
    column = [b"\0"] * len(shard.index)
    for sample, text in zip(shard.index.sample_of_row()[rows].tolist(), data.split(b"\0")[:-1], strict=True):
        column[sample] = text + b"\0"
    return b"".join(column)


def find_number_fields(
    shards: Sequence[SourceShard], is_wanted: Callable[[str], bool], to_format: str, run: _Run, *, salvage: bool = False
) -> NumberFields:
    """Find the fields that contain numbers, and read the numbers as strings. `run` is `Pool.map`.

    Args:
        is_wanted: Function that returns whether to inspect a field.
        salvage: Record damaged numbers in `NumberTexts.damaged` instead of raising an error.
    """
    for shard in shards:
        _check_types(shard, is_wanted, to_format)
    holders: dict[str, list[SourceShard]] = {}
    for shard in shards:
        for name in filter(is_wanted, shard.index.names):
            holders.setdefault(name, []).append(shard)
    tfrecord_types = {name: found for name, group in holders.items() if (found := _tfrecord_type(name, group))}
    lists = {name: found for name, found in tfrecord_types.items() if _is_list(name, found, holders[name])}
    numbers = {name: found for name, found in tfrecord_types.items() if found != "bytes" and name not in lists}
    types = {name: sorted({shard.kind(name) for shard in group}) for name, group in holders.items()}
    if to_format == "tar":
        agreed = {name: first for name, (first, *others) in types.items() if first != "bytes" and not others}
        return NumberFields(agreed, _read_fields(shards, numbers, {}, run, salvage=salvage), lists, ())
    only_in_tar = [name for name in types if name not in tfrecord_types]
    recorded = {name: [found for found in types[name] if found != "bytes"] for name in only_in_tar}
    convertible = {name: found[0] for name, found in recorded.items() if len(found) == 1}
    mixed = {name: " and ".join(found) for name, found in recorded.items() if len(found) > 1}
    notes = [f"{name!r} stays text: it represents {found} in different datasets" for name, found in mixed.items()]
    wanted_types = {**numbers, **convertible}
    texts_of_shards = _read_fields(shards, numbers, wanted_types, run, salvage=salvage)
    for name in wanted_types:
        texts_of_name = {index: texts[name] for index, texts in enumerate(texts_of_shards) if name in texts}
        conflicts = {index: texts for index, texts in texts_of_name.items() if texts.changed}
        if conflicts and name in numbers:
            index, texts = next(iter(conflicts.items()))
            where = shards[index].describe_value(name, texts.first_changed)
            expected = f"{numbers[name]}, as in TFRecord shards"
            raise _type_conflict(where, name, "text that would change if stored as a number", expected)
        if conflicts:
            notes.append(_text_note(name, convertible.pop(name), [*conflicts.values()]))
            for fields in texts_of_shards:
                fields.pop(name, None)
    return NumberFields({**numbers, **convertible}, texts_of_shards, lists, tuple(notes))


def _check_types(shard: SourceShard, is_wanted: Callable[[str], bool], to_format: str) -> None:
    conflicts = {name: conflict for name, conflict in shard.conflicts.items() if is_wanted(name)}
    for name, conflict in conflicts.items():
        if conflict.kind != shard.kind(name):
            expected = f"{shard.kind(name)}, as in the samples before it"
            raise _type_conflict(shard.where(conflict.sample), name, conflict.kind, expected)
        if to_format == "tar":
            found = f"the field {name!r} is a list of {conflict.values:,} {conflict.kind} values"
            remedy = f"Write TFRecord shards, or drop lists with {option_text('drop_fields', tuple(conflicts))}."
            expected = "one value, because tar shards store no lists"
            raise InvalidRequest(shard.where(conflict.sample), found, expected=expected, remedy=remedy)


def _is_list(name: str, field_type: FeatureType, holders: Sequence[SourceShard]) -> bool:
    # `_check_types` accepts no conflicts except lists
    first = next((shard for shard in holders if name in shard.conflicts), None)
    if first is None:
        return False
    for shard in holders if field_type != "bytes" else ():
        if shard.format == "tar":
            expected = f"a list of {field_type}, as in {first.name}"
            raise _type_conflict(shard.describe_value(name), name, "text", expected)
    return True


def _tfrecord_type(name: str, holders: Sequence[SourceShard]) -> FeatureType | None:
    shards = [shard for shard in holders if shard.format == "tfrecord"]
    for shard in shards:
        if shard.kind(name) != (first := shards[0]).kind(name):
            expected = f"{first.kind(name)}, as in {first.name}"
            raise _type_conflict(shard.describe_value(name), name, shard.kind(name), expected)
    return shards[0].kind(name) if shards else None


def _type_conflict(where: str, name: str, found_type: str, expected: str) -> InvalidRequest:
    drop = option_text("drop_fields", (name,))
    remedy = f"Reshard datasets with different types separately, or drop the field with {drop}."
    return InvalidRequest(where, f"the field {name!r} is {found_type}", expected=expected, remedy=remedy)


def _read_fields(
    shards: Sequence[SourceShard],
    numbers: Mapping[str, NumberType],
    wanted_types: Mapping[str, NumberType],
    run: _Run,
    *,
    salvage: bool,
) -> list[dict[str, NumberTexts]]:
    tasks, shard_of_task, texts_of_shards = [], [], [dict[str, NumberTexts]() for _ in shards]
    for shard_number, shard in enumerate(shards):
        index, is_tfrecord = shard.index, shard.format == "tfrecord"
        types = numbers if is_tfrecord else wanted_types
        fields: list[NumberField] = []
        crcs = np.broadcast_to(-1, len(index.codes)) if index.crcs is None else index.crcs
        for name in filter(types.__contains__, index.names):
            rows = shard.rows_of(name)
            columns = (column[rows].astype(np.int64).tobytes() for column in (index.offsets, index.lengths, crcs))
            fields.append(NumberField(name, types[name], is_tfrecord, *columns))
        if fields:
            tasks.append(NumberTask(shard.file, tuple(fields), salvage))
            shard_of_task.append(shard_number)
    for number, results in run(read_number_texts, tasks):
        names = [number_field.field for number_field in tasks[number].fields]
        texts_of_shards[shard_of_task[number]].update(zip(names, results, strict=True))
    return texts_of_shards


def _text_note(name: str, number_type: str, changed: list[NumberTexts]) -> str:
    count, rounded = sum(texts.changed for texts in changed), sum(texts.rounded for texts in changed)
    if number_type == "float" and rounded == count:
        return f"{name!r} stays text: {pluralize(count, 'value')} would be rounded to TFRecord's 32-bit floats"
    return f"{name!r} stays text: {pluralize(count, 'value')} would change as TFRecord's {number_type}"
