"""Fields of other samples with the same keys, put beside those that samples have: pure, without I/O."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from shardtool.entries.entries import FieldRows, FieldValues
from shardtool.errors import InvalidRequest, listing
from shardtool.select.fields import check_count
from shardtool.table.columns import places_among
from shardtool.values import to_bytes
from shardtool.wording import option

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardtool.entries.entries import Entries, FieldSpans

_Number = TypeVar("_Number", bound=np.generic)


def places_beside(entries: Entries, other: Entries, where: str) -> NDArray[np.int64]:
    """Return int64[samples]: the place among others of the one with the same key; -1 where there is none.

    Args:
        entries: The samples.
        other: The others, each with a key of its own.
        where: What the others are called.

    Raises:
        InvalidRequest: Both have a field of one name.
    """
    both = sorted({*_used(entries)} & {*_used(other)}, key=to_bytes)
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
    names = sorted({*_used(entries), *_used(other)}, key=to_bytes)
    check_count(option("add"), names)
    parts, place = (entries, other), {name: at for at, name in enumerate(names)}
    codes = [np.array([place.get(name, 0) for name in one.fields], np.uint16)[one.rows.code] for one in parts]
    owners = np.concatenate([np.repeat(np.arange(len(one)), one.counts()) for one in parts])
    order = np.lexsort((np.concatenate(codes), owners))
    rows, values, columns = [one.rows for one in parts], [one.values for one in parts], entries.metadata
    if other.metadata is not None:
        from shardtool.entries.arrow import with_column

        for name in other.metadata.column_names:
            if columns is None or name not in columns.column_names:
                columns = with_column(columns, name, other.metadata.column(name))
    return replace(
        entries,
        first=np.concatenate(([0], np.cumsum(entries.counts() + other.counts()))).astype(np.int64),
        fields=tuple(names),
        rows=FieldRows(
            code=np.concatenate(codes)[order],
            kind=_joined([one.kind for one in rows], order),
            size=_joined([one.size for one in rows], order),
            mtime_ns=_joined([one.mtime_ns for one in rows], order),
            changed_ns=_joined([one.changed_ns for one in rows], order),
        ),
        values=FieldValues(
            inline={**values[0].inline, **values[1].inline},
            types={**values[0].types, **values[1].types},
            lists={**values[0].lists, **values[1].lists},
            classes={**values[0].classes, **values[1].classes},
        ),
        spans=_spans(entries, other, order),
        metadata=columns,
        identity=f"{entries.identity} {other.identity}",
    )


def _used(entries: Entries) -> list[str]:
    """Return the fields that any sample has."""
    return [name for name, count in zip(entries.fields, entries.code_counts(), strict=True) if count]


def _joined(columns: list[NDArray[_Number]], order: NDArray[np.int64]) -> NDArray[_Number]:
    """Return columns of rows as one, in another order; where all are one value, in no memory."""
    if not any(any(one.strides) for one in columns) and len({one[0].item() for one in columns if len(one)}) == 1:
        return np.broadcast_to(next(one[0] for one in columns if len(one)), len(order))
    return np.concatenate(columns)[order]


def _spans(entries: Entries, other: Entries, order: NDArray[np.int64]) -> FieldSpans:
    """Return where the payloads of both lie: the files of the others come after those of the samples."""
    ours, theirs = entries.known_spans, other.known_spans
    files = [one.files_of(np.arange(len(one.rows.code))) for one in (entries, other)]
    wholes = [np.zeros(len(one.offset), np.bool_) if one.whole is None else one.whole for one in (ours, theirs)]
    return replace(
        ours,
        files=(*ours.files, *theirs.files),
        offset=_joined([ours.offset, theirs.offset], order),
        expected=_joined([ours.expected, theirs.expected], order),
        whole=None if ours.whole is None and theirs.whole is None else _joined(wholes, order),
        of_row=_joined([files[0], files[1] + np.uint32(len(ours.files))], order),
    )
