"""The columns of a table by name and type: which hold text or bytes, and which names cannot be read."""

from __future__ import annotations

import re
from collections import Counter
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from shardtool.entries import arrow
from shardtool.entries.entries import Names
from shardtool.errors import InvalidRequest, listing, printable
from shardtool.values import NAME_LIMIT, chunks_of, counted, is_utf8, to_bytes
from shardtool.wording import flag, option

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray


MEDIA_NAMES = (
    "video_path", "video_file", "video", "clip_path", "clip_file", "clip", "audio_path", "audio_file", "audio_filepath",
    "audio", "wav_path", "wav_file", "wav", "media_path", "media_file", "media", "mask_path", "mask_file", "mask",
)  # fmt: skip
PATH_NAMES = (
    "path", "file", "filename", "file_name", "filepath", "file_path", "image_path", "img_path", "image_file",
    "image", "img", *MEDIA_NAMES,
)  # fmt: skip
BAD_FIELD = re.compile(r"[/\x00-\x1f\x7f]|^\.|\.$|^$")
_NOT_SAID = re.compile(r"[=,]|^-|^\s|\s$")
NAME_APART = "Name them apart."
_INDEX = re.compile(r"__index_level_\d+__")  # what pandas makes of an index without a name


def heavy_columns(schema: pa.Schema) -> list[str]:
    """Return the columns that hold bytes, however deep: they are streamed, or never read."""
    return [one.name for one in schema if any(is_bytes(kind) for kind, _ in _levels(one.type))]


def is_bytes(kind: pa.DataType) -> bool:
    """Tell whether a type is one of bytes."""
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    return any(test(kind) for test in tests)


def is_hollow(kind: pa.DataType) -> bool:
    """Tell whether objects without any name are in a type: what JSON's `{}` in all rows becomes."""
    return any(pa.types.is_struct(one) and not one.num_fields for one, _ in _levels(kind))


def is_wrapped_bytes(kind: pa.DataType) -> bool:
    """Tell whether a type is Hugging Face's `struct<bytes, path>`."""
    return bool(pa.types.is_struct(kind)) and kind.get_field_index("bytes") >= 0 and is_bytes(kind.field("bytes").type)


def is_index(column: str) -> bool:
    """Tell whether a name is what pandas calls the column that it makes of an index without a name."""
    return _INDEX.match(column) is not None


def is_text(kind: pa.DataType) -> bool:
    """Tell whether a type is one of text, behind a dictionary or not."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def check_names(name: str, columns: list[str]) -> None:
    """Refuse columns without a name, and several of one.

    Raises:
        InvalidRequest: There are such columns.
    """
    without = [str(at) for at, column in enumerate(columns, 1) if not column.strip()]
    if without:
        found = f"column {listing(without)} without a name"
        remedy = "pandas writes its index like that: df.to_csv(..., index=False) does not."
        raise InvalidRequest(name, found, expected="a name for each", remedy=remedy)
    twice = sorted(repr(column) for column, count in Counter(columns).items() if count > 1)
    if twice:
        raise InvalidRequest(name, f"columns of the same name: {listing(twice)}", remedy="Rename them.")


def no_such(thing: str, option: str, name: str, names: Sequence[str]) -> InvalidRequest:
    """Return the error for a column or field that is not there, with the nearest names."""
    lower = {one.casefold(): one for one in names}
    near = [lower[one] for one in get_close_matches(name.casefold(), lower, n=3)]
    remedy = f"Did you mean {' or '.join(map(repr, near))}?" if near else ""
    if name.isdigit() and thing == "column":
        remedy = f"{flag('no_header')} calls columns of a text by their numbers."
    return InvalidRequest(option, f"no {thing} {name!r}", expected=f"one of {listing([*names], 100)}", remedy=remedy)


def check_sidecar_names(where: str, columns: list[str], *, remedy: str) -> None:
    """Refuse columns of metadata with names that the sidecars have for themselves.

    Raises:
        InvalidRequest: There are such columns.
    """
    own = [repr(name) for name in columns if name.startswith("__")]
    if own:
        found = f"column {listing(own)}: names that start with two underscores are the sidecar's own"
        raise InvalidRequest(where, found, remedy=f"Rename them, or {remedy}.")


def check_field(where: str, found: str, name: str) -> None:
    """Refuse a new name that no field can have, or that `--fields` could not say of one.

    Raises:
        InvalidRequest: It is such.
    """
    if BAD_FIELD.search(name) or _NOT_SAID.search(name) or not is_utf8(to_bytes(name)):
        expected = "an ending, such as jpg, cls or seg.png, without =, a comma, and a - or blank at its ends"
        raise InvalidRequest(where, found, expected=expected)


def check_fields(where: str, names: Sequence[str], *, remedy: str = NAME_APART) -> None:
    """Refuse names that no field can have, and one that several columns give to theirs.

    Raises:
        InvalidRequest: There are such names.
    """
    for name in names:
        check_field(f"field {name!r}", "no name for a field", name)
    twice = sorted({repr(name) for name in names if names.count(name) > 1})
    if twice:
        raise InvalidRequest(where, f"several columns become the field {listing(twice)}", remedy=remedy)


def check_labels(classes: Sequence[str], fields: Sequence[tuple[str, str]]) -> None:
    """Refuse labels that are none of the fields, given as (field, column).

    Raises:
        InvalidRequest: There are such labels.
    """
    unknown = [name for name in classes if name not in dict(fields)]
    if unknown:
        remedy = f"Name its column: {option('values', {unknown[0]: 'COLUMN'})}."
        raise InvalidRequest(option("classes"), f"no field {listing([repr(name) for name in unknown])}", remedy=remedy)


# How large a table's shape may be: what readers, and the files that come of a table, stand.


MOST_COLUMNS = 10_000  # each has its own part in the sidecar of each shard
MOST_LEVELS = 32  # lists and structs in each other: Parquet's reader takes 100 of its own, up to three a level
LONGEST_ROW = 2**28  # bytes of text: they are in memory several times, and a few in a compressed file may mean all


def check_shape(where: str, schema: pa.Schema) -> None:
    """Refuse a table with too many columns, or with one that is nested too deep.

    Raises:
        InvalidRequest: It has.
    """
    if len(schema) > MOST_COLUMNS:
        raise too_many_columns(where, len(schema))
    for one in schema:
        left = MOST_COLUMNS
        for _, level in _levels(one.type):
            if level > MOST_LEVELS:
                raise too_deep(f"{where}, column {one.name!r}")
            left -= 1
            if left < 0:
                found = f"column {one.name!r} with more than {MOST_COLUMNS:,} parts"
                raise InvalidRequest(where, found, expected="fewer")


def _levels(kind: pa.DataType) -> Iterator[tuple[pa.DataType, int]]:
    """Yield each type within a type and its level, 1 for what lies in a column."""
    stack = [(kind, 0)]
    while stack:
        one, level = stack.pop()
        yield one, level
        if isinstance(one, pa.BaseExtensionType):
            stack.append((one.storage_type, level))
        elif pa.types.is_dictionary(one):
            stack.append((one.value_type, level))
        elif pa.types.is_nested(one):
            stack += [(one.field(at).type, level + 1) for at in range(one.num_fields)]


def too_many_columns(where: str, count: int | None = None) -> InvalidRequest:
    """Return the error for a table with too many columns."""
    found = f"more than {MOST_COLUMNS:,} columns" if count is None else f"{count:,} columns"
    remedy = "Put numbers that belong together into one column of lists."
    return InvalidRequest(where, found, expected=f"at most {MOST_COLUMNS:,}", remedy=remedy)


def too_deep(where: str) -> InvalidRequest:
    """Return the error for values that are nested too deep."""
    found = f"lists or objects more than {MOST_LEVELS} deep in each other"
    return InvalidRequest(where, found, expected=f"at most {MOST_LEVELS}", remedy="Write such a value as text.")


def too_long(where: str) -> InvalidRequest:
    """Return the error for a row that is too long."""
    found = f"a row of more than {LONGEST_ROW >> 20} MiB"
    remedy = f"Write it to a file, and its path into the table ({option('files', {'FIELD': 'COLUMN'})})."
    return InvalidRequest(where, found, expected="less text in a row", remedy=remedy)


# The rows of a table, and how messages name them: row 1 is the first after the header.


_SHOWN = 5  # rows in a message
_EXAMPLES = 3  # values, or keys
_SHOWN_LETTERS = 120  # of each value, or key


def mixed_types(name: str, column: str, kinds: dict[str, list[int]]) -> InvalidRequest:
    """Return the error for a column with values of several types; `kinds` gives the rows of each."""
    most, *rare = sorted(kinds, key=lambda kind: -len(kinds[kind]))
    found = [f"{kind} in {rows_text(kinds[kind])}" for kind in rare]
    what = f"column {column!r} mixes types: {most} in {counted(len(kinds[most]), 'row')}, {listing(found)}"
    return InvalidRequest(name, what, expected="values of one type")


def rows_text(rows: list[int], *, total: int | None = None) -> str:
    """Return `row 3`, or `rows 3, 17 and 12 more`, for the numbers of rows, of which there are `total`."""
    total = len(rows) if total is None else total
    return f"row{'' if total == 1 else 's'} {listing([f'{row:,}' for row in rows[:_SHOWN]], total=total)}"


class Rows(NamedTuple):
    """The rows of a table that are left.

    Attributes:
        where: What the table is called.
        columns: Those that hold no bytes, an array each.
        numbers: int64, their numbers in the table, counted from 0; None: all are left.
    """

    where: str
    columns: Mapping[str, pa.ChunkedArray]
    numbers: NDArray[np.int64] | None

    def named(self, at: NDArray[np.int64]) -> str:
        """Return `rows 3, 17 and 12 more` for places among these rows."""
        first = at[:_SHOWN]
        shown = (first if self.numbers is None else self.numbers[first]) + 1
        return rows_text(shown.tolist(), total=len(at))

    def refuse(self, at: NDArray[np.int64], found: str, *, expected: str = "", remedy: str = "") -> None:
        """Raise for the rows at these places, where there are any.

        Raises:
            InvalidRequest: There are.
        """
        if len(at):
            raise InvalidRequest(self.where, f"{found} in {self.named(at)}", expected=expected, remedy=remedy)

    def refuse_repeated(
        self, keys: Names, which: NDArray[np.int64] | None = None, *, expected: str, remedy: str
    ) -> None:
        """Raise for rows that share a key, where there are any: among those at the places `which`, or among all.

        Raises:
            InvalidRequest: There are.
        """
        if twice := repeated(keys if which is None else keys.take(which)):
            places = [np.array(at, np.int64) for at in islice(twice.values(), _EXAMPLES)]
            rows = [self.named(at if which is None else which[at]) for at in places]
            some = [f"'{short(printable(key))}' ({named})" for key, named in zip(twice, rows, strict=False)]
            found = f"{counted(len(twice), 'key')} more than once: {listing(some, _EXAMPLES, total=len(twice))}"
            raise InvalidRequest(self.where, found, expected=expected, remedy=remedy)

    def examples(self, column: pa.ChunkedArray, at: NDArray[np.int64]) -> str:
        """Return the first few of the values at these places."""
        values = column.take(arrow.number_array(at[:_EXAMPLES])).to_pylist()
        return listing([f"'{short(printable(str(value)))}'" for value in values], _EXAMPLES, total=len(at))


def short(text: str) -> str:
    """Return the first letters of a text."""
    return text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]}..."


# Keys as a table gives them: text in one buffer, sound as names, each once, and found among others.


_PARTS = 16  # of keys that are sought among others, one at a time in a hash table
_BAD = r"\p{Cc}|(?:^|/)\.{0,2}(?:/|$)"  # a control character, or a part that is empty, `.` or `..`
_BAD_PARTS = (b"//", b"/./", b"/../")
_CONTROLS = bytes([*range(32), 127, 0xC2])  # and the first byte of those beyond ASCII


def is_key(kind: pa.DataType) -> bool:
    """Tell whether values of an Arrow type can be keys: text, whole numbers, and floats that happen to be whole."""
    numbers = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return is_text(kind) or bool(numbers or (pa.types.is_decimal(kind) and kind.scale == 0))


def broken_numbers(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return where a column of floats is not a whole number that a float can distinguish from its neighbours."""
    if not pa.types.is_floating(column.type):
        return np.zeros(0, np.int64)
    values = arrow.numbers(column)
    return np.flatnonzero(~((np.abs(values) < 2.0**53) & (values == np.floor(values))))


def key_texts(column: pa.ChunkedArray) -> Iterator[pa.Array]:
    """Yield the keys that the values of a column are."""
    import pyarrow.compute as pc

    for chunk in map(column.__getitem__, chunks_of(len(column))):
        yield pc.cast(pc.cast(chunk, pa.int64()) if pa.types.is_floating(chunk.type) else chunk, pa.large_string())


def row_numbers(rows: NDArray[np.int64]) -> Iterator[pa.Array]:
    """Yield keys that are the numbers of rows, counted from 0, with nine digits or more."""
    for some in chunks_of(len(rows)):
        yield arrow.texts([f"{row:09}" for row in rows[some].tolist()])


def gather(chunks: Iterable[pa.Array]) -> tuple[Names, NDArray[np.int64]]:
    """Return keys in one buffer, and the places of those that are no sound names."""
    parts, bad, before = [], [np.zeros(0, np.int64)], 0
    for chunk in chunks:
        lengths = arrow.lengths(chunk)
        parts.append(arrow.ended(chunk))
        if int(lengths.max(initial=0)) > NAME_LIMIT or _may_be_unsound(parts[-1], len(chunk)):
            bad.append(_unsound(chunk, lengths) + before)
        before += len(chunk)
    places = np.concatenate(bad)
    return (Names.of([]) if len(places) else Names.parse(b"".join(parts))), places


def _may_be_unsound(data: bytes, count: int) -> bool:
    """Tell whether any of so many keys may be no sound name, each with a NUL after it."""
    if len(data) - len(data.translate(None, _CONTROLS)) != count:
        return True
    paths = b"/" + data.replace(b"\0", b"/")
    return any(part in paths for part in _BAD_PARTS)


def _unsound(chunk: pa.Array, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    import pyarrow.compute as pc

    found = lengths > NAME_LIMIT
    found[arrow.places(pc.match_substring_regex(chunk, _BAD))] = True
    return np.flatnonzero(found)


def may_repeat(keys: Names) -> bool:
    """Tell whether keys may occur more than once: their hashes do."""
    ordered = np.sort(hashes(keys))
    return bool(np.any(ordered[1:] == ordered[:-1]))


def repeated(keys: Names) -> dict[bytes, list[int]]:
    """Return the keys that occur more than once, with their places.

    By 64-bit hashes, sorted: a table of ten million keys takes gigabytes. Only keys that share a hash are compared.
    """
    found_hashes = hashes(keys)
    ordered = np.sort(found_hashes)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(twice):
        return {}
    found: dict[bytes, list[int]] = {}
    for place in np.flatnonzero(np.isin(found_hashes, twice)).tolist():
        found.setdefault(keys[place], []).append(place)
    return {key: places for key, places in found.items() if len(places) > 1}


def places_among(keys: Names, others: Names) -> NDArray[np.int64]:
    """Return the place of each key among others that are all different; -1 where it is not among them.

    One hash table of five million keys would take 480 MB; in parts it is as fast, and takes less than half of that.
    """
    import pyarrow.compute as pc

    found = np.full(len(keys), -1, np.int64)
    ours, theirs = (hashes(names) % np.uint64(_PARTS) for names in (keys, others))
    sought, values = keys.array(), others.array()
    for part in range(_PARTS):
        some, among = np.flatnonzero(ours == part), np.flatnonzero(theirs == part)
        place = pc.index_in(sought.take(arrow.number_array(some)), value_set=values.take(arrow.number_array(among)))
        known = arrow.places(place.is_valid())
        found[some[known]] = among[arrow.numbers(place)[known]]
    return found


def hashes(keys: Names) -> NDArray[np.uint64]:
    """Return Python's hash of each key: the same in this process only."""
    found = np.empty(len(keys), np.int64)
    for first, names in keys.chunks():
        found[first : first + len(names)] = np.fromiter(map(hash, names), np.int64, len(names))
    return found.view(np.uint64)


def among(sought: NDArray[np.uint64], ordered: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return which hashes are among others, which are sorted.

    They are sought in order: `np.isin` of five million takes 12 s, and this 2 s.
    """
    found = np.zeros(len(sought), bool)
    if len(ordered):
        order = np.argsort(sought)
        sought = sought[order]
        found[order] = ordered[np.minimum(np.searchsorted(ordered, sought), len(ordered) - 1)] == sought
    return found
