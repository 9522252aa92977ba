"""Which fields samples keep, and under which names: pure, without I/O.

No payload is found by its field's name, so fields can get other names: the rows of files have their paths then.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from shardtool.entries import arrow
from shardtool.entries.entries import Entries, FieldRows, FieldSpans, FieldValues, Names, Texts, joined, taken
from shardtool.errors import InvalidRequest, listing, printable
from shardtool.skipped import Skipped
from shardtool.table.columns import check_field, no_such, places_among
from shardtool.values import FIELD_LIMIT, INLINE, ValueType, agreed_type, chunks_of, to_bytes
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from shardtool.table.values import ArrowTexts


_SHOWN = 100  # names in a message
_READERS_OWN = re.compile(r"__.*__")  # WebDataset puts `__key__` and `__url__` beside a sample's fields
_PATHS = "source_paths"  # the column of a portable dataset that has a value per field: docs/format.md, "Sidecar"


def select_fields(
    entries: Entries,
    select: Sequence[str] = (),
    drop: Sequence[str] = (),
    rename: tuple[tuple[str, str], ...] = (),
    *,
    to_format: str = "tar",
) -> tuple[Entries, tuple[Skipped, ...]]:
    """Return the samples with some of their fields, under other names, and those that keep none, which are left out.

    Args:
        entries: The samples.
        select: The fields that stay; none: all.
        drop: Fields that do not.
        rename: Old and new names of fields that stay, all at once: two can change places, and two become one where no
            sample has both.
        to_format: What the samples will be written as: in a tar, numbers are text, so that they become one with text.

    Raises:
        InvalidRequest: A field that no sample has, names that contradict each other or cannot be fields, or no sample
            that keeps a field.
    """
    if not (select or drop or rename):
        return entries, ()
    becomes = _becoming(entries.fields, select, drop, rename)
    stays = np.array([name in becomes for name in entries.fields], np.bool_)[entries.rows.code]
    rows = np.flatnonzero(stays)
    first = np.concatenate((np.zeros(1, np.int64), np.cumsum(stays, dtype=np.int64)))[entries.first]
    used = np.bincount(entries.rows.code[rows], minlength=len(entries.fields)).tolist()
    becomes = {name: becomes[name] for name, uses in zip(entries.fields, used, strict=True) if uses}
    fields = tuple(sorted(set(becomes.values()), key=to_bytes))
    number = [fields.index(becomes[name]) if name in becomes else 0 for name in entries.fields]
    code = np.array(number, np.uint16)[entries.rows.code[rows]]
    if rename:  # else the fields of a sample are in order already
        order, _ = _in_order([first], [code])
        rows, code = rows[order], code[order]
    taken = entries.take_rows(rows)
    found = replace(
        taken,
        first=first,
        fields=fields,
        rows=replace(taken.rows, code=code),
        values=_values(entries.values, becomes),
        metadata=_with_paths_of(entries, rows, first),
    )
    _check_merged(entries, found, becomes, to_format)
    where, why = option("select_fields" if select else "drop_fields"), "none of the fields that were selected"
    return without_empty(found, where, "no sample keeps a field", why)


def _becoming(
    fields: tuple[str, ...], select: Sequence[str], drop: Sequence[str], rename: tuple[tuple[str, str], ...]
) -> dict[str, str]:
    """Return the fields that stay, and what they are called then."""
    old = [name for name, _ in rename]
    for asked, names in (("select_fields", select), ("drop_fields", drop), ("rename_fields", old)):
        for name in names:
            if name not in fields:
                raise no_such("field", option(asked), name, fields)
    stay = [name for name in fields if name not in drop and (not select or name in select)]
    both = [name for name in select if name in drop]
    gone = [name for name in old if name not in stay]
    twice = [name for name, count in Counter(old).items() if count > 1]
    for asked, bad, found, expected in (
        ("drop_fields", both, ", which is to be kept, too", "each field to be kept, or left out"),
        ("rename_fields", gone, ", which does not stay", f"of {_quoted(stay)}"),
        ("rename_fields", twice, " more than once", "one new name for each"),
    ):
        if bad:
            raise InvalidRequest(option(asked), f"{_quoted(bad)}{found}", expected=expected)
    for _, name in rename:
        _check_name(name)
    return {name: name for name in stay} | dict(rename)


def _merged(becomes: dict[str, str]) -> dict[str, list[str]]:
    """Return the names that several fields get, and what these were called."""
    old: dict[str, list[str]] = {}
    for name, new in becomes.items():
        old.setdefault(new, []).append(name)
    return {new: names for new, names in old.items() if len(names) > 1}


def _values(values: FieldValues, becomes: dict[str, str]) -> FieldValues:
    """Return what is known of the fields under their new names: of several that become one, what holds for all."""
    found = values.renamed(becomes)
    inline, types = {**found.inline}, {**found.types}
    for new, names in _merged(becomes).items():
        columns = [values.inline[name] for name in names if name in values.inline]
        if len(columns) > 1:
            inline[new] = _one_column(columns)
        types.pop(new, None)
        if (kind := agreed_type(map(values.types.get, names))) is not None:
            types[new] = kind
    return found._replace(inline=inline, types=types)


def _one_column(columns: list[Texts]) -> Names:
    """Return the text of each sample, which all columns but one have as nothing."""
    count = len(columns[0])
    texts = [Names.parse(column.span(0, count)) for column in columns]
    which = np.argmax([one.lengths() for one in texts], axis=0)
    return Names.parse(b"".join(one.span(0, count) for one in texts)).take(which * count + np.arange(count))


def _check_merged(entries: Entries, found: Entries, becomes: dict[str, str], to_format: str) -> None:
    """Refuse fields that get the same name where a sample has two of them, or what one is would be lost."""
    values = entries.values
    for new, merged in _merged(becomes).items():
        owners, code = np.repeat(np.arange(len(found)), found.counts()), found.fields.index(new)
        ours = owners[found.rows.code == code]
        twice = ours[1:][ours[1:] == ours[:-1]]
        typed = [name for name in merged if name in {*values.classes, *values.lists}]
        unlike = to_format == "tfrecord" and len({values.numbers.get(name) for name in merged}) > 1
        if len(twice) or typed or unlike:
            whose = f" of {printable(found.key(int(twice[0])))!r}" if len(twice) else ""
            problem = f"{_quoted(merged)}{whose} would all be called {new!r}"
            kinds = ", and no numbers beside text in TFRecords" if unlike else ""
            expected = f"each its own name, or fields that no sample has both of: no labels or lists{kinds}"
            remedy = f"Rename the others too, or leave them out with {option('drop_fields')}."
            raise InvalidRequest(option("rename_fields"), problem, expected=expected, remedy=remedy)


def _check_name(name: str) -> None:
    if _READERS_OWN.fullmatch(name):
        raise InvalidRequest(option("rename_fields"), f"{name!r}, a name that readers keep for themselves")
    check_field(option("rename_fields"), f"{name!r}, no name for a field", name)


def _quoted(names: Collection[str]) -> str:
    return listing([repr(name) for name in names], _SHOWN)


def _with_paths_of(entries: Entries, rows: NDArray[np.int64], first: NDArray[np.int64]) -> pa.Table | None:
    """Return the metadata with the source paths of `rows` alone, for they stand in the order of the fields."""
    import pyarrow.compute as pc

    columns = entries.metadata
    if columns is None or _PATHS not in columns.column_names:
        return columns
    at = columns.column_names.index(_PATHS)
    lists = arrow.one_chunk(columns.column(at))
    if not pa.types.is_list(lists.type) or lists.null_count:
        return columns
    if not np.array_equal(arrow.numbers(pc.list_value_length(lists)), entries.counts()):
        return columns  # not of this tool's making
    paths = lists.flatten().take(arrow.number_array(rows))
    found = pa.ListArray.from_arrays(arrow.number_array(first.astype(np.int32)), paths)
    return columns.set_column(at, columns.schema.field(at), pc.cast(found, lists.type))


def paths_of(entries: Entries) -> Names:
    """Return the source's path of each row; empty for what is no file."""
    if (paths := entries.rows.paths) is not None:
        return Names.parse(paths.span(0, len(paths)))
    chunks = []
    for some in chunks_of(len(entries.rows.kind)):
        found = entries.paths(np.arange(some.start, some.stop))
        for at in np.flatnonzero(entries.rows.kind[some] == INLINE).tolist():
            found[at] = b""
        chunks.append(b"\0".join(found) + b"\0")
    return Names.parse(b"".join(chunks))


def without_empty(entries: Entries, where: str, found: str, why: str) -> tuple[Entries, tuple[Skipped, ...]]:
    """Return the samples that have fields, and the others, which are left out.

    Args:
        entries: The samples.
        where: What is named where none has one.
        found: What is said of it.
        why: What is said of each that is left out.

    Raises:
        InvalidRequest: None has.
    """
    counts = entries.counts()
    empty = np.flatnonzero(counts == 0)
    if not len(empty):
        return entries, ()
    if len(empty) == len(entries):
        remedy = "" if entries.spans is None else "`shardtool inspect` lists the fields."
        raise InvalidRequest(where, found, remedy=remedy)
    skipped = tuple(Skipped(entries.key(sample), "", "no-field", why) for sample in empty.tolist())
    return entries.take(np.flatnonzero(counts)), skipped


def check_count(where: str, names: Sequence[str] | Sequence[bytes], remedy: str = "") -> None:
    """Check that there are not more different fields than can be counted.

    Raises:
        InvalidRequest: There are.
    """
    if len(names) > FIELD_LIMIT:
        found = f"{len(names):,} different fields, such as {printable(names[0])!r}"
        raise InvalidRequest(where, found, expected=f"at most {FIELD_LIMIT:,}", remedy=remedy)


# Fields whose values are known become rows of samples, in place of the rows of fields of the same names.
#
# How the values are found is the caller's affair. The rows of a sample stay ordered by the bytes of their fields'
# names.


_Number = TypeVar("_Number", bound=np.generic)


class Field(NamedTuple):
    """A field of samples whose values are known.

    Attributes:
        name: What it is called.
        texts: Its values, one per sample.
        given: bool[samples]: which samples get it; all others keep what they have.
        kind: What the values are; None: bytes.
        labels: The names of the numbers; None: they are no labels.
        column: The numbers as a column of metadata, which takes the place of one of that name; None: they become none.
    """

    name: str
    texts: ArrowTexts | Names
    given: NDArray[np.bool_]
    kind: ValueType | None = None
    labels: list[str] | None = None
    column: pa.Array | None = None


def with_fields(entries: Entries, made: Sequence[Field]) -> Entries:
    """Return the samples with some fields, in place of those of the same names.

    A name that no sample has any more is none of their fields, and nothing is said of it.

    Raises:
        InvalidRequest: There are more fields than can be counted.
    """
    made = [one for one in made if one.given.any()]
    if not made:
        return entries
    rows, values, spans = entries.rows, entries.values, entries.spans
    used, names = {*entries.used_fields()}, {one.name for one in made}
    fields = tuple(sorted(used | names, key=to_bytes))
    check_count(option("values"), fields, f"Leave some out with {option('drop_fields')}.")
    sizes = [one.texts.lengths()[one.given] for one in made]
    new = [np.full(len(size), fields.index(one.name), np.uint16) for one, size in zip(made, sizes, strict=True)]
    firsts, codes = [np.append(0, np.cumsum(one.given)) for one in made], [*new, _codes(entries, fields)]
    order, first = _in_order([*firsts, entries.first], codes)
    before = sum(map(len, new))

    def extended(values: NDArray[_Number], value: int) -> NDArray[_Number]:
        """Return a value for each row, the same for all new ones."""
        return taken(joined((np.broadcast_to(values.dtype.type(value), before), values)), order)

    if spans is not None:  # new rows are not in them
        whole = None if spans.whole is None else extended(spans.whole, 0)
        of_row = None if spans.of_row is None else extended(spans.of_row, 0)
        offset, expected = extended(spans.offset, 0), extended(spans.expected, -1)
        spans = replace(spans, offset=offset, expected=expected, whole=whole, of_row=of_row)

    def is_alike(one: Field) -> bool:
        """Tell whether all that a field holds is of one kind: samples that do not get it may have another."""
        return bool(one.given.all()) or one.name not in used or values.types.get(one.name) == one.kind

    known = FieldValues(
        inline={one.name: one.texts for one in made},
        types={one.name: one.kind for one in made if one.kind and is_alike(one)},
        classes={one.name: one.labels for one in made if one.labels is not None},
    )
    return replace(
        entries,
        first=first,
        fields=fields,
        rows=FieldRows(
            code=np.concatenate(codes)[order],
            kind=extended(rows.kind, INLINE),
            size=np.concatenate([*sizes, rows.size])[order],
            mtime_ns=extended(rows.mtime_ns, 0),
            changed_ns=extended(rows.changed_ns, 0),
            paths=None if rows.paths is None else _extended_paths(rows.paths, order - before),
        ),
        values=values.only({*fields} - names).with_more(known),
        spans=spans,
        metadata=arrow.with_columns(entries.metadata, {one.name: one.column for one in made}),
    )


def _codes(entries: Entries, fields: Sequence[str]) -> NDArray[np.uint16]:
    """Return the codes of all rows where they are places among `fields`, which have all that are used."""
    place = {name: at for at, name in enumerate(fields)}
    return np.array([place.get(name, 0) for name in entries.fields], np.uint16)[entries.rows.code]


def _in_order(
    firsts: Sequence[NDArray[np.int64]], codes: Sequence[NDArray[np.uint16]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows of several parts, end to end, in the order of samples and their fields, and where samples start.

    Where several parts have a field of a sample, the first of them has it alone. Some samples at a time, for this takes
    more than what it gives.

    Args:
        firsts: Of each part, int64[samples + 1], where the rows of the samples start.
        codes: Of each part, the fields of the rows.
    """
    orders, counts = [np.zeros(0, np.int64)], [np.zeros(1, np.int64)]
    before = np.cumsum([0, *map(len, codes)])
    for samples in chunks_of(len(firsts[0]) - 1):
        some = [first[samples.start : samples.stop + 1] for first in firsts]
        rows = np.concatenate([np.arange(one[0], one[-1]) + at for one, at in zip(some, before, strict=False)])
        owner = np.concatenate([np.repeat(np.arange(len(one) - 1), np.diff(one)) for one in some])
        code = np.concatenate([of[one[0] : one[-1]] for one, of in zip(some, codes, strict=True)])
        order = np.lexsort((code, owner))
        rows, owner, code = rows[order], owner[order], code[order]
        part, place = np.searchsorted(before, rows, "right"), np.arange(len(rows))
        place[1:][(owner[1:] == owner[:-1]) & (code[1:] == code[:-1])] = 0
        stays = part == part[np.maximum.accumulate(place)]
        orders.append(rows[stays])
        counts.append(np.bincount(owner[stays], minlength=len(some[0]) - 1))
    return np.concatenate(orders), np.cumsum(np.concatenate(counts))


def _extended_paths(paths: Texts, source: NDArray[np.int64]) -> Names:
    """Return the path of each row, empty for new ones."""
    parts = []
    for some in map(source.__getitem__, chunks_of(len(source))):
        texts = iter(paths.gather(some[some >= 0]).split(b"\0"))
        parts.append(b"".join([(next(texts) if at >= 0 else b"") + b"\0" for at in some.tolist()]))
    return Names.parse(b"".join(parts))


# Fields of other samples with the same keys, put beside those that samples have.


def places_beside(entries: Entries, other: Entries, where: str) -> NDArray[np.int64]:
    """Return int64[samples]: the place among others of the one with the same key; -1 where there is none.

    Args:
        entries: The samples.
        other: The others, each with a key of its own.
        where: What the others are called.

    Raises:
        InvalidRequest: Both have a field of one name.
    """
    both = sorted({*entries.used_fields()} & {*other.used_fields()}, key=to_bytes)
    if both:
        found = f"{listing([repr(name) for name in both])} in {where}, too"
        renamed = option("rename_fields", {both[0]: "NEW"})
        remedy = (
            f"{option('drop_fields', tuple(both))} leaves those of the samples out, {renamed} gives one another name."
        )
        raise InvalidRequest(option("add"), found, expected="fields that the samples lack", remedy=remedy)
    return places_among(entries.keys, other.keys)


def put_beside(entries: Entries, other: Entries) -> Entries:
    """Return samples with the fields of others, one for each in the same order, and with columns that they lack.

    All of them lie in shards.
    """
    names = sorted({*entries.used_fields(), *other.used_fields()}, key=to_bytes)
    check_count(option("add"), names)
    codes, columns = [_codes(one, names) for one in (entries, other)], entries.metadata
    order, first = _in_order([entries.first, other.first], codes)
    if other.metadata is not None:
        for name in other.metadata.column_names:
            if columns is None or name not in columns.column_names:
                columns = arrow.with_column(columns, name, other.metadata.column(name))
    return replace(
        entries,
        first=first,
        fields=tuple(names),
        rows=FieldRows.joined([entries.rows, other.rows], codes).take(order),
        values=entries.values.with_more(other.values),
        spans=_spans_of_both(entries, other).take_rows(order),
        metadata=columns,
        identity=f"{entries.identity} {other.identity}",
    )


def _spans_of_both(entries: Entries, other: Entries) -> FieldSpans:
    """Return where the payloads of both lie: the files of the others come after those of the samples."""
    ours, theirs = entries.known_spans, other.known_spans
    files = [one.files_of(np.arange(len(one.rows.code))) for one in (entries, other)]
    wholes = [np.zeros(len(one.offset), np.bool_) if one.whole is None else one.whole for one in (ours, theirs)]
    return replace(
        ours,
        files=(*ours.files, *theirs.files),
        offset=np.concatenate((ours.offset, theirs.offset)),
        expected=joined((ours.expected, theirs.expected)),
        whole=None if ours.whole is None and theirs.whole is None else np.concatenate(wholes),
        of_row=np.concatenate((files[0], files[1] + np.uint32(len(ours.files)))),
    )
