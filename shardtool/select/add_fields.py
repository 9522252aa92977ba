"""Add fields whose values are known, replacing fields of the same names.

The rows of a sample stay ordered by the bytes of their field names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from shardtool.entries import metadata_columns
from shardtool.entries.sample_table import FieldRows, FieldValues, SampleTable, concat_columns, take_values
from shardtool.entries.strings import PackedStrings, StringColumn
from shardtool.messages import option_text
from shardtool.names import to_bytes
from shardtool.select.field_rows import check_field_count, field_codes, order_rows
from shardtool.shard_samples import INLINE
from shardtool.values import ValueType, chunk_slices

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from shardtool.table.render import ArrowStrings


_Number = TypeVar("_Number", bound=np.generic)


class NewField(NamedTuple):
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
    texts: ArrowStrings | PackedStrings
    given: NDArray[np.bool_]
    kind: ValueType | None = None
    labels: list[str] | None = None
    column: pa.Array | None = None


def add_fields(entries: SampleTable, made: Sequence[NewField]) -> SampleTable:
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
    check_field_count(option_text("values"), fields, f"Leave some out with {option_text('drop_fields')}.")
    sizes = [one.texts.lengths()[one.given] for one in made]
    new = [np.full(len(size), fields.index(one.name), np.uint16) for one, size in zip(made, sizes, strict=True)]
    firsts, codes = [np.append(0, np.cumsum(one.given)) for one in made], [*new, field_codes(entries, fields)]
    order, first = order_rows([*firsts, entries.first], codes)
    before = sum(map(len, new))

    def extended(values: NDArray[_Number], value: int) -> NDArray[_Number]:
        """Return a value for each row, the same for all new ones."""
        return take_values(concat_columns((np.broadcast_to(values.dtype.type(value), before), values)), order)

    if spans is not None:  # new rows are not in them
        whole = None if spans.whole is None else extended(spans.whole, 0)
        row_file = None if spans.row_file is None else extended(spans.row_file, 0)
        offset, expected = extended(spans.offset, 0), extended(spans.expected, -1)
        spans = replace(spans, offset=offset, expected=expected, whole=whole, row_file=row_file)

    def is_alike(one: NewField) -> bool:
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
            paths=None if rows.paths is None else _extend_paths(rows.paths, order - before),
        ),
        values=values.select({*fields} - names).merge(known),
        spans=spans,
        metadata=metadata_columns.with_number_columns(entries.metadata, {one.name: one.column for one in made}),
    )


def _extend_paths(paths: StringColumn, source: NDArray[np.int64]) -> PackedStrings:
    """Return the path of each row, empty for new ones."""
    parts = []
    for some in map(source.__getitem__, chunk_slices(len(source))):
        texts = iter(paths.gather(some[some >= 0]).split(b"\0"))
        parts.append(b"".join([(next(texts) if at >= 0 else b"") + b"\0" for at in some.tolist()]))
    return PackedStrings.parse(b"".join(parts))
