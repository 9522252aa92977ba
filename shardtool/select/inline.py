"""Fields whose values are known become rows of samples, in place of the rows of fields of the same names.

How the values are found is the caller's affair. The rows of a sample stay ordered by the bytes of their fields' names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from shardtool.entries.entries import FieldRows, FieldValues
from shardtool.errors import InvalidRequest
from shardtool.names import Names
from shardtool.values import INLINE, to_bytes
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.entries.entries import Entries, FieldSpans
    from shardtool.names import Texts
    from shardtool.table.json_text import ColumnTexts
    from shardtool.values import Number

_MOST = 2**16 - 1  # different fields, and fields of one sample
_CHUNK = 2**16  # samples, or rows, at a time
_Value = TypeVar("_Value")
_Number = TypeVar("_Number", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of samples whose values are known.

    Attributes:
        name: What it is called.
        texts: Its values, one per sample.
        given: bool[samples]: which samples get it; all others keep what they have.
        number: What the values stand for, where they are numbers.
        labels: The names of the numbers; None: they are no labels.
    """

    name: str
    texts: ColumnTexts | Names
    given: NDArray[np.bool_]
    number: Number | None = None
    labels: list[str] | None = None


@dataclass(frozen=True, slots=True)
class _Merged:
    """Rows of samples, old and new ones.

    Attributes:
        fields: The names that `code` stands for.
        code: uint16[rows].
        size: int64[rows].
        source: int64[rows]: which row it was before; -1: it is new.
        counts: int64[samples]: how many each has.
    """

    fields: tuple[str, ...]
    code: NDArray[np.uint16]
    size: NDArray[np.int64]
    source: NDArray[np.int64]
    counts: NDArray[np.int64]

    def extend(self, values: NDArray[_Number], value: int) -> NDArray[_Number]:
        """Return a value for each row, which is the same for all new ones; where it is for all rows, in no memory."""
        if len(values) and not any(values.strides) and values[0] == value:
            return np.broadcast_to(values[0], len(self.source))
        found, old = np.full(len(self.source), value, values.dtype), self.source >= 0
        found[old] = values[self.source[old]]
        return found

    def extend_spans(self, spans: FieldSpans) -> FieldSpans:
        """Return where the payloads of SPAN rows lie: new ones are no such rows."""
        offset, expected = self.extend(spans.offset, 0), self.extend(spans.expected, -1)
        whole = None if spans.whole is None else self.extend(spans.whole, 0)
        return replace(spans, offset=offset, expected=expected, whole=whole)

    def extend_paths(self, paths: Texts) -> Names:
        """Return the path of each row, empty for new ones."""
        parts = []
        for first in range(0, len(self.source), _CHUNK):
            source = self.source[first : first + _CHUNK]
            old = np.flatnonzero(source >= 0)
            found = [b""] * len(source)
            texts = paths.gather(source[old]).split(b"\0")[:-1]
            for at, text in zip(old.tolist(), texts, strict=True):
                found[at] = text
            parts.append(b"\0".join(found) + b"\0")
        return Names.parse(b"".join(parts))


def with_fields(entries: Entries, made: Sequence[Field]) -> Entries:
    """Return the samples with some fields, in place of those of the same names.

    A name that no sample has any more is none of their fields, and nothing is said of it.

    Raises:
        InvalidRequest: There are more fields than can be counted.
    """
    made = [one for one in made if one.given.any()]
    if not made:
        return entries
    merged = _merge(entries, made)
    if len(merged.fields) > _MOST or merged.counts.max(initial=0) > _MOST:
        found = f"{len(merged.fields):,} different fields, {int(merged.counts.max()):,} in one sample"
        remedy = f"Leave some out with {option('drop_fields')}."
        raise InvalidRequest(option("values"), found, expected=f"at most {_MOST:,}", remedy=remedy)
    old = {*merged.fields} - {one.name for one in made}
    rows, values, spans = entries.rows, entries.values, entries.spans
    return replace(
        entries,
        first=np.concatenate(([0], np.cumsum(merged.counts))),
        fields=merged.fields,
        rows=FieldRows(
            code=merged.code,
            kind=merged.extend(rows.kind, INLINE),
            size=merged.size,
            mtime_ns=merged.extend(rows.mtime_ns, 0),
            changed_ns=merged.extend(rows.changed_ns, 0),
            paths=None if rows.paths is None else merged.extend_paths(rows.paths),
        ),
        values=FieldValues(
            inline=_of(old, values.inline) | {one.name: one.texts for one in made},
            numbers=_of(old, values.numbers) | {one.name: one.number for one in made if one.number is not None},
            lists=_of(old, values.lists),
            classes=_of(old, values.classes) | {one.name: one.labels for one in made if one.labels is not None},
        ),
        spans=None if spans is None else merged.extend_spans(spans),
    )


def _of(names: Collection[str], known: Mapping[str, _Value]) -> dict[str, _Value]:
    return {name: value for name, value in known.items() if name in names}


def _merge(entries: Entries, made: Sequence[Field]) -> _Merged:
    """Return the rows that stay and the new ones, a number of samples at a time: that takes more than what it gives."""
    counts = np.bincount(entries.rows.code, minlength=len(entries.fields)).tolist()
    used = {name for name, count in zip(entries.fields, counts, strict=True) if count}
    fields = tuple(sorted(used | {one.name for one in made}, key=to_bytes))
    place = {name: at for at, name in enumerate(fields)}
    code = np.array([place.get(name, 0) for name in entries.fields], np.uint16)[entries.rows.code]
    new = [_New(place[one.name], one.given, one.texts.lengths()) for one in made]
    ends = range(0, len(entries), _CHUNK)
    parts = [_some_rows(entries, code, new, slice(at, min(at + _CHUNK, len(entries)))) for at in ends]
    return _Merged(fields, *(np.concatenate(columns) for columns in zip(*parts, strict=True)))


class _New(NamedTuple):
    """A new field: the place of its name, bool[samples] that get it, and int64[samples], the bytes of its values."""

    place: int
    given: NDArray[np.bool_]
    size: NDArray[np.int64]


def _some_rows(
    entries: Entries, code: NDArray[np.uint16], new: Sequence[_New], samples: slice
) -> tuple[NDArray[np.uint16], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the last four attributes of `_Merged`, for some samples."""
    first = entries.first[samples.start : samples.stop + 1]
    before = slice(int(first[0]), int(first[-1]))
    count, code = len(first) - 1, code[before]
    owner, stays = np.repeat(np.arange(count), np.diff(first)), np.ones(len(code), bool)
    for one in new:
        stays &= (code != one.place) | ~one.given[samples][owner]
    kept, given = np.flatnonzero(stays), [np.flatnonzero(one.given[samples]) for one in new]
    owner = np.concatenate([owner[kept], *given])
    codes = [np.full(len(at), one.place, np.uint16) for one, at in zip(new, given, strict=True)]
    sizes = [one.size[samples][at] for one, at in zip(new, given, strict=True)]
    code = np.concatenate([code[kept], *codes])
    size = np.concatenate([entries.rows.size[before][kept], *sizes])
    source = np.concatenate([kept + before.start, np.full(len(owner) - len(kept), -1)])
    order = np.lexsort((code, owner))
    return code[order], size[order], source[order], np.bincount(owner, minlength=count)
