"""Which fields of shards are numbers or lists; the numbers' texts: of TFRecords, and those that go into TFRecords.

All TFRecord shards must agree on what a field is. A tar shard holds texts, whatever they stand for, and no lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shardtool.errors import InvalidRequest
from shardtool.names import Names
from shardtool.source.shards.number_text import NumberField, TextTask, read_texts
from shardtool.values import counted
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.source.shards.number_text import Texts
    from shardtool.source.shards.shard_columns import ShardColumns
    from shardtool.values import Kind, Number

    _Run = Callable[[Callable[[TextTask], list[Texts]], Iterable[TextTask]], Iterator[tuple[int, list[Texts]]]]


@dataclass(frozen=True, slots=True)
class NumberFields:
    """The fields that are numbers or lists.

    Attributes:
        numbers: Field to what it is in all shards that have it.
        texts: Field to its text, one per sample of all parts; empty for samples that do not have it, or not as INLINE.
        sizes: Field to int64 arrays, by the place of a part in which its rows are INLINE: bytes of each text.
        lists: Field to what its values are, where not all samples that have it hold just one: none of `numbers`.
        notes: What the user should know.
        damaged: The samples with a number that has not its checksum, by the place of their part, ascending.
    """

    numbers: Mapping[str, Number]
    texts: Mapping[str, Names]
    sizes: Mapping[str, Mapping[int, NDArray[np.int64]]]
    lists: Mapping[str, Kind]
    notes: tuple[str, ...]
    damaged: Mapping[int, NDArray[np.int64]]


def find_numbers(
    parts: Sequence[ShardColumns], wanted: Callable[[str], bool], to_format: str, run: _Run, *, salvage: bool = False
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
        _check_alike(part, wanted, to_format)
    having: dict[str, list[ShardColumns]] = {}
    for part in parts:
        for name in filter(wanted, part.names):
            having.setdefault(name, []).append(part)
    stored = {name: kind for name, some in having.items() if (kind := _stored_kind(name, some)) is not None}
    lists = {name: kind for name, kind in stored.items() if _is_list(name, kind, having[name])}
    numbers = {name: kind for name, kind in stored.items() if kind != "bytes" and name not in lists}
    recorded = {name: _recorded_kinds(name, some) for name, some in having.items() if name not in stored}
    maybe = {name: kinds[0] for name, kinds in recorded.items() if len(kinds) == 1 and to_format == "tfrecord"}
    notes = [
        f"{name!r} stays text: it stands for {' and '.join(kinds)} in different datasets"
        for name, kinds in recorded.items()
        if len(kinds) > 1 and to_format == "tfrecord"
    ]
    of_tar = {**numbers, **maybe} if to_format == "tfrecord" else {}
    found = _read(parts, numbers, of_tar, run, salvage=salvage)
    for name in of_tar:
        bad = {at: texts for (field, at), texts in found.items() if field == name and texts.bad}
        if bad and name in numbers:
            raise _no_number(parts[min(bad)], name, bad[min(bad)], numbers[name])
        if bad:
            notes.append(_stays(name, maybe.pop(name), [*bad.values()]))
            found = {key: texts for key, texts in found.items() if key[0] != name}
    sizes: dict[str, dict[int, NDArray[np.int64]]] = {}
    for (name, at), texts in found.items():
        sizes.setdefault(name, {})[at] = Names.parse(texts.data).lengths()
    return NumberFields(
        numbers={**numbers, **maybe} if to_format == "tfrecord" else _agreed(having),
        texts=_columns(sizes, parts, found),
        sizes=sizes,
        lists=lists,
        notes=tuple(notes),
        damaged=_damaged(parts, found),
    )


def _damaged(parts: Sequence[ShardColumns], found: Mapping[tuple[str, int], Texts]) -> dict[int, NDArray[np.int64]]:
    """Return the samples with a damaged number, by the place of their part."""
    samples: dict[int, set[int]] = {}
    for (name, at), texts in found.items():
        if texts.damaged:
            rows = dict(parts[at].rows())[name][texts.damaged]
            samples.setdefault(at, set()).update(parts[at].owners()[rows].tolist())
    return {at: np.array(sorted(some), np.int64) for at, some in samples.items()}


def _check_alike(part: ShardColumns, wanted: Callable[[str], bool], to_format: str) -> None:
    """Check that the values of each field of a part are of one kind, and single where a tar is to hold them."""
    for name, one in part.unlike.items():
        if not wanted(name):
            continue
        if one.kind != _kind(part, name):
            raise _other_kind(part, one.sample, name, one.kind, f"{_kind(part, name)}, as in the samples before it")
        if to_format == "tar":
            lists = [name for name in part.unlike if wanted(name)]
            found = f"the field {name!r} is a list of {one.values:,} {one.kind} values"
            expected = "one: a tar shard holds no lists"
            remedy = f"Write TFRecord shards, or leave lists out with {option('drop_fields', tuple(lists))}."
            raise InvalidRequest(part.where(one.sample), found, expected=expected, remedy=remedy)


def _is_list(name: str, kind: Kind, having: Sequence[ShardColumns]) -> bool:
    """Tell whether some sample has not just one value of a field that these shards have.

    Raises:
        InvalidRequest: They are numbers, and a tar shard has texts of that name.
    """
    first = next((part for part in having if name in part.unlike), None)
    if first is None:
        return False
    for part in having if kind != "bytes" else ():
        if part.shard.format == "tar":
            sample = int(part.owners()[dict(part.rows())[name][0]])
            raise _other_kind(part, sample, name, "text", f"a list of {kind}, as in {first.shard.name}")
    return True


def _kind(part: ShardColumns, name: str) -> Kind:
    return part.kinds.get(name, "bytes")


def _stored_kind(name: str, having: Sequence[ShardColumns]) -> Kind | None:
    """Return what TFRecord shards have in a field that these shards have; None where none of them is a TFRecord."""
    first: ShardColumns | None = None
    for part in having:
        if part.shard.format != "tfrecord":
            continue
        first = first or part
        if _kind(part, name) != _kind(first, name):
            sample = int(part.owners()[dict(part.rows())[name][0]])
            before = f"{_kind(first, name)}, as in {first.shard.name}"
            raise _other_kind(part, sample, name, _kind(part, name), before)
    return None if first is None else _kind(first, name)


def _other_kind(part: ShardColumns, sample: int, name: str, kind: str, expected: str) -> InvalidRequest:
    remedy = f"Reshard them apart, or leave it out with {option('drop_fields', (name,))}."
    return InvalidRequest(part.where(sample), f"the field {name!r} is {kind}", expected=expected, remedy=remedy)


def _recorded_kinds(name: str, having: Sequence[ShardColumns]) -> list[Number]:
    """Return what the texts of a field of tar shards are said to stand for."""
    return sorted({part.shard.numbers[name] for part in having if name in part.shard.numbers})


def _agreed(having: Mapping[str, Sequence[ShardColumns]]) -> dict[str, Number]:
    """Return the fields that are the same kind of number in all shards that have them."""
    found: dict[str, Number] = {}
    for name, parts in having.items():
        kinds: set[Kind] = {
            _kind(part, name) if part.shard.format == "tfrecord" else part.shard.numbers.get(name, "bytes")
            for part in parts
        }
        kind, *others = kinds
        if kind != "bytes" and not others:
            found[name] = kind
    return found


def _read(
    parts: Sequence[ShardColumns],
    numbers: Mapping[str, Number],
    of_tar: Mapping[str, Number],
    run: _Run,
    *,
    salvage: bool,
) -> dict[tuple[str, int], Texts]:
    """Return the texts of each of the fields in each of the parts, by name and place."""
    tasks, places = [], []
    for at, part in enumerate(parts):
        kinds = numbers if part.shard.format == "tfrecord" else of_tar
        if kinds.keys() & {*part.names}:
            fields = tuple(_wanted(part, name, kinds[name], rows) for name, rows in part.rows() if name in kinds)
            tasks.append(TextTask(part.shard.file, part.shard.path, fields, salvage))
            places.append(at)
    return {
        (field.field, places[number]): texts
        for number, results in run(read_texts, tasks)
        for field, texts in zip(tasks[number].wanted, results, strict=True)
    }


def _wanted(part: ShardColumns, name: str, kind: Number, rows: NDArray[np.int64]) -> NumberField:
    crcs = np.full(len(part.codes), -1) if part.crcs is None else part.crcs
    columns = [column[rows].astype(np.int64).tobytes() for column in (part.offsets, part.lengths, crcs)]
    return NumberField(name, kind, part.shard.format == "tfrecord", *columns)


def _no_number(part: ShardColumns, name: str, texts: Texts, kind: str) -> InvalidRequest:
    sample = int(part.owners()[dict(part.rows())[name][texts.first_bad]])
    return _other_kind(part, sample, name, "a text that no such number gives back", f"{kind}, as in TFRecord shards")


def _stays(name: str, kind: str, bad: list[Texts]) -> str:
    count, rounded = sum(texts.bad for texts in bad), sum(texts.rounded for texts in bad)
    if kind == "float" and rounded == count:
        return f"{name!r} stays text: {counted(count, 'value')} would be rounded in TFRecord's 32-bit floats"
    return f"{name!r} stays text: {counted(count, 'value')} would be another text after TFRecord's {kind}"


def _columns(
    names: Collection[str], parts: Sequence[ShardColumns], found: Mapping[tuple[str, int], Texts]
) -> dict[str, Names]:
    """Return a text for each sample of all parts, by field; empty where a sample has none."""
    blocks: dict[str, list[bytes]] = {name: [] for name in names}
    for at, part in enumerate(parts):
        rows = dict(part.rows()) if any((name, at) in found for name in names) else {}
        for name, column in blocks.items():
            texts = found.get((name, at))
            column.append(bytes(len(part)) if texts is None else _spread(texts.data, part, rows[name]))
    return {name: Names.parse(b"".join(column)) for name, column in blocks.items()}


def _spread(texts: bytes, part: ShardColumns, rows: NDArray[np.int64]) -> bytes:
    """Return a text for each sample of a part, a NUL after each, from those of some rows."""
    if len(rows) == len(part):
        return texts
    column = [b"\0"] * len(part)
    for owner, text in zip(part.owners()[rows].tolist(), texts.split(b"\0"), strict=False):  # after the last is nothing
        column[owner] = text + b"\0"
    return b"".join(column)
