"""Find the fields of datasets that are numbers or lists, and read the texts of the numbers.

All TFRecord shards must agree on the type of a field. A tar shard stores texts, whatever they represent, and no
lists.
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
    """The fields that are numbers or lists.

    Attributes:
        numbers: Field to what it is in all shards that have it.
        texts: For each part, the fields whose rows are INLINE, and the texts of these.
        lists: Field to what its values are, where not all samples that have it hold just one: none of `numbers`.
        notes: What the user should know.
    """

    numbers: Mapping[str, NumberType]
    texts: Sequence[Mapping[str, NumberTexts]]
    lists: Mapping[str, FeatureType]
    notes: tuple[str, ...]

    def columns(self, parts: Sequence[SourceShard]) -> dict[str, PackedStrings]:
        """Return, by field, a text for each sample of all parts; empty where it is not INLINE."""
        names = dict.fromkeys(name for texts in self.texts for name in texts)
        both = [*zip(parts, self.texts, strict=True)]
        return {
            name: PackedStrings.parse(b"".join([_spread_texts(name, part, texts) for part, texts in both]))
            for name in names
        }

    def damaged(self, parts: Sequence[SourceShard]) -> list[tuple[int, str]]:
        """Return the samples, counted over all parts, with a number that has not its checksum; and their shards."""
        lost, first = dict[int, str](), 0
        for part, fields in zip(parts, self.texts, strict=True):
            for name, texts in fields.items():
                if texts.damaged:
                    owners = part.index.owners()[part.rows_of(name)[texts.damaged]]
                    lost.update(dict.fromkeys((first + owners).tolist(), part.name))
            first += len(part.index)
        return sorted(lost.items())


def _spread_texts(name: str, part: SourceShard, texts: Mapping[str, NumberTexts]) -> bytes:
    """Return a text for each sample of a part, a NUL after each, where `texts` has those of a field."""
    if name not in texts:
        return bytes(len(part.index))
    data, rows = texts[name].data, part.rows_of(name)
    if len(rows) == len(part.index):
        return data
    column = [b"\0"] * len(part.index)
    for owner, text in zip(part.index.owners()[rows].tolist(), data.split(b"\0")[:-1], strict=True):
        column[owner] = text + b"\0"
    return b"".join(column)


def find_number_fields(
    parts: Sequence[SourceShard], wanted: Callable[[str], bool], to_format: str, run: _Run, *, salvage: bool = False
) -> NumberFields:
    """Return which fields are numbers, and read their texts.

    Args:
        parts: The columns of all shards, in order.
        wanted: Whether a field of this name is needed.
        to_format: What the samples will be written as.
        run: Yields (number, result) of a function for each task: `Pool.map`.
        salvage: Whether a damaged number is noted, and no error.

    Raises:
        InvalidRequest: A feature is no single value and what is written is a tar, or shards do not agree on what a
            field is.
        CorruptShard: A number has not its checksum.
    """
    for part in parts:
        _check_kinds(part, wanted, to_format)
    having: dict[str, list[SourceShard]] = {}
    for part in parts:
        for name in filter(wanted, part.index.names):
            having.setdefault(name, []).append(part)
    stored = {name: kind for name, some in having.items() if (kind := _stored_kind(name, some)) is not None}
    lists = {name: kind for name, kind in stored.items() if _is_list(name, kind, having[name])}
    numbers = {name: kind for name, kind in stored.items() if kind != "bytes" and name not in lists}
    kinds = {name: sorted({part.kind(name) for part in some}) for name, some in having.items()}
    recorded: dict[str, list[NumberType]] = {
        name: [kind for kind in some if kind != "bytes"] for name, some in kinds.items() if name not in stored
    }
    maybe = {name: kinds[0] for name, kinds in recorded.items() if len(kinds) == 1 and to_format == "tfrecord"}
    notes = [
        f"{name!r} stays text: it stands for {' and '.join(kinds)} in different datasets"
        for name, kinds in recorded.items()
        if len(kinds) > 1 and to_format == "tfrecord"
    ]
    agreed = {name: some[0] for name, some in kinds.items() if len(some) == 1 and some[0] != "bytes"}
    of_tar = {**numbers, **maybe} if to_format == "tfrecord" else {}
    found = _read_fields(parts, numbers, of_tar, run, salvage=salvage)
    for name in of_tar:
        bad = {at: texts[name] for at, texts in enumerate(found) if name in texts and texts[name].bad}
        if bad and name in numbers:
            at, texts = next(iter(bad.items()))
            where = parts[at].describe_value(name, texts.first_bad)
            expected = f"{numbers[name]}, as in TFRecord shards"
            raise _kind_conflict(where, name, "a text that no such number gives back", expected)
        if bad:
            notes.append(_text_note(name, maybe.pop(name), [*bad.values()]))
            for fields in found:
                fields.pop(name, None)
    return NumberFields({**numbers, **maybe} if to_format == "tfrecord" else agreed, found, lists, tuple(notes))


def _check_kinds(part: SourceShard, wanted: Callable[[str], bool], to_format: str) -> None:
    """Check that the values of each field of a part are of one kind, and single where a tar is to hold them."""
    unlike = {name: one for name, one in part.unlike.items() if wanted(name)}
    for name, one in unlike.items():
        if one.kind != part.kind(name):
            raise _kind_conflict(
                part.where(one.sample), name, one.kind, f"{part.kind(name)}, as in the samples before it"
            )
        if to_format == "tar":
            found = f"the field {name!r} is a list of {one.values:,} {one.kind} values"
            remedy = f"Write TFRecord shards, or leave lists out with {option_text('drop_fields', tuple(unlike))}."
            expected = "one: a tar shard holds no lists"
            raise InvalidRequest(part.where(one.sample), found, expected=expected, remedy=remedy)


def _is_list(name: str, kind: FeatureType, having: Sequence[SourceShard]) -> bool:
    """Tell whether some sample has not just one value of a field that these shards have.

    Raises:
        InvalidRequest: They are numbers, and a tar shard has texts of that name.
    """
    first = next((part for part in having if name in part.unlike), None)
    if first is None:
        return False
    for part in having if kind != "bytes" else ():
        if part.format == "tar":
            raise _kind_conflict(part.describe_first(name), name, "text", f"a list of {kind}, as in {first.name}")
    return True


def _stored_kind(name: str, having: Sequence[SourceShard]) -> FeatureType | None:
    """Return what TFRecord shards have in a field that these shards have; None where none of them is a TFRecord."""
    stored = [part for part in having if part.format == "tfrecord"]
    for part in stored:
        if part.kind(name) != (first := stored[0]).kind(name):
            before = f"{first.kind(name)}, as in {first.name}"
            raise _kind_conflict(part.describe_first(name), name, part.kind(name), before)
    return stored[0].kind(name) if stored else None


def _kind_conflict(where: str, name: str, kind: str, expected: str) -> InvalidRequest:
    remedy = f"Reshard them apart, or leave it out with {option_text('drop_fields', (name,))}."
    return InvalidRequest(where, f"the field {name!r} is {kind}", expected=expected, remedy=remedy)


def _read_fields(
    parts: Sequence[SourceShard],
    numbers: Mapping[str, NumberType],
    of_tar: Mapping[str, NumberType],
    run: _Run,
    *,
    salvage: bool,
) -> list[dict[str, NumberTexts]]:
    """Return, for each part, the texts of each of the fields."""
    tasks, places, found = [], [], [dict[str, NumberTexts]() for _ in parts]
    for at, part in enumerate(parts):
        index, stored = part.index, part.format == "tfrecord"
        kinds, fields = numbers if stored else of_tar, list[NumberField]()
        crcs = np.broadcast_to(-1, len(index.codes)) if index.crcs is None else index.crcs
        for name in filter(kinds.__contains__, index.names):
            rows = part.rows_of(name)
            columns = (one[rows].astype(np.int64).tobytes() for one in (index.offsets, index.lengths, crcs))
            fields.append(NumberField(name, kinds[name], stored, *columns))
        if fields:
            tasks.append(NumberTask(part.file, tuple(fields), salvage))
            places.append(at)
    for number, results in run(read_number_texts, tasks):
        names = [one.field for one in tasks[number].wanted]
        found[places[number]].update(zip(names, results, strict=True))
    return found


def _text_note(name: str, kind: str, bad: list[NumberTexts]) -> str:
    count, rounded = sum(texts.bad for texts in bad), sum(texts.rounded for texts in bad)
    if kind == "float" and rounded == count:
        return f"{name!r} stays text: {pluralize(count, 'value')} would be rounded in TFRecord's 32-bit floats"
    return f"{name!r} stays text: {pluralize(count, 'value')} would be another text after TFRecord's {kind}"
