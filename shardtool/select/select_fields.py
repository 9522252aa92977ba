"""Select, drop and rename the fields of samples."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from shardtool.entries import arrow
from shardtool.entries.strings import PackedStrings, StringColumn
from shardtool.errors import InvalidRequest, format_list, printable
from shardtool.messages import option_text
from shardtool.names import to_bytes
from shardtool.select.field_rows import drop_empty_samples, order_rows
from shardtool.table.columns import check_direction, check_field_name, missing_name_error
from shardtool.values import common_type

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from shardtool.entries.sample_table import FieldValues, SampleTable
    from shardtool.skipped import Skipped


_MAX_LISTED_FIELDS = 100
_RESERVED_NAME = re.compile(r"__.*__")  # WebDataset adds fields such as `__key__` and `__url__` to samples
_PATHS_COLUMN = "source_paths"  # a list with one path per field, see docs/format.md, "Sidecar"


def select_fields(
    entries: SampleTable,
    select: Sequence[str] = (),
    drop: Sequence[str] = (),
    rename: tuple[tuple[str, str], ...] = (),
    *,
    to_format: str = "tar",
) -> tuple[SampleTable, tuple[Skipped, ...]]:
    """Select, drop and rename fields, and skip samples that keep no field.

    Args:
        select: The fields to keep, or () for all fields.
        rename: Pairs of new and old names. All names change at the same time. Two fields can get the same name if no
            sample has both fields, and neither contains labels or lists.
        to_format: The output format. For TFRecords, a number field and a text field must not get the same name.
    """
    if not (select or drop or rename):
        return entries, ()
    new_names = _choose_names(entries.fields, select, drop, rename)
    is_kept = np.array([name in new_names for name in entries.fields], np.bool_)[entries.rows.code]
    rows = np.flatnonzero(is_kept)
    first = np.concatenate((np.zeros(1, np.int64), np.cumsum(is_kept, dtype=np.int64)))[entries.first_rows]
    used = np.bincount(entries.rows.code[rows], minlength=len(entries.fields)).tolist()
    new_names = {name: new_names[name] for name, uses in zip(entries.fields, used, strict=True) if uses}
    fields = tuple(sorted(set(new_names.values()), key=to_bytes))
    new_codes = [fields.index(new_names[name]) if name in new_names else 0 for name in entries.fields]
    code = np.array(new_codes, np.uint16)[entries.rows.code[rows]]
    if rename:
        order, _ = order_rows([first], [code])
        rows, code = rows[order], code[order]
    kept = entries.take_rows(rows)
    selected = replace(
        kept,
        first_rows=first,
        fields=fields,
        rows=replace(kept.rows, code=code),
        values=_rename_values(entries.values, new_names),
        metadata=_select_source_paths(entries, rows, first),
    )
    _check_merged(entries, selected, new_names, to_format)
    where, why = option_text("select_fields" if select else "drop_fields"), "none of the selected fields"
    return drop_empty_samples(selected, where, "no sample keeps a field", why)


def _choose_names(
    fields: tuple[str, ...], select: Sequence[str], drop: Sequence[str], rename: tuple[tuple[str, str], ...]
) -> dict[str, str]:
    old = [name for _, name in rename]
    check_direction("rename_fields", rename, fields)
    for option, names in (("select_fields", select), ("drop_fields", drop), ("rename_fields", old)):
        for name in names:
            if name not in fields:
                raise missing_name_error("field", option_text(option), name, fields)
    kept = [name for name in fields if name not in drop and (not select or name in select)]
    contradictory = [name for name in select if name in drop]
    not_kept = [name for name in old if name not in kept]
    twice = [name for name, count in Counter(old).items() if count > 1]
    for option, bad, problem, expected in (
        ("drop_fields", contradictory, ", which is also selected", "each field either selected or dropped"),
        ("rename_fields", not_kept, ", which is dropped", f"one of {_quote_names(kept)}"),
        ("rename_fields", twice, " more than once", "one new name for each"),
    ):
        if bad:
            raise InvalidRequest(option_text(option), f"{_quote_names(bad)}{problem}", expected=expected)
    for name, _ in rename:
        if _RESERVED_NAME.fullmatch(name):
            raise InvalidRequest(option_text("rename_fields"), f"{name!r}, a name that readers reserve")
        check_field_name(option_text("rename_fields"), f"{name!r}, which is not a valid field name", name)
    return {name: name for name in kept} | {old: new for new, old in rename}


def _merged_names(new_names: dict[str, str]) -> dict[str, list[str]]:
    merged: dict[str, list[str]] = {}
    for name, new in new_names.items():
        merged.setdefault(new, []).append(name)
    return {new: names for new, names in merged.items() if len(names) > 1}


def _rename_values(values: FieldValues, new_names: dict[str, str]) -> FieldValues:
    renamed = values.rename(new_names)
    inline, types = {**renamed.inline}, {**renamed.types}
    for new, names in _merged_names(new_names).items():
        columns = [values.inline[name] for name in names if name in values.inline]
        if len(columns) > 1:
            inline[new] = _merge_texts(columns)
        types.pop(new, None)
        if (kind := common_type(map(values.types.get, names))) is not None:
            types[new] = kind
    return renamed._replace(inline=inline, types=types)


def _merge_texts(columns: list[StringColumn]) -> PackedStrings:
    count = len(columns[0])
    texts = [PackedStrings.parse(column.span(0, count)) for column in columns]
    source = np.argmax([text.lengths() for text in texts], axis=0)
    return PackedStrings.parse(b"".join(text.span(0, count) for text in texts)).take(source * count + np.arange(count))


def _check_merged(entries: SampleTable, selected: SampleTable, new_names: dict[str, str], to_format: str) -> None:
    values = entries.values
    for new, merged in _merged_names(new_names).items():
        sample_of_row = np.repeat(np.arange(len(selected)), selected.counts())
        samples = sample_of_row[selected.rows.code == selected.fields.index(new)]
        has_both = samples[1:][samples[1:] == samples[:-1]]
        typed = [name for name in merged if name in {*values.classes, *values.lists}]
        mixes_types = to_format == "tfrecord" and len({values.numbers.get(name) for name in merged}) > 1
        if len(has_both) or typed or mixes_types:
            whose = f" of {printable(selected.key(int(has_both[0])))!r}" if len(has_both) else ""
            problem = f"{_quote_names(merged)}{whose} would all be renamed to {new!r}"
            kinds = ", and in TFRecords no mix of numbers and text" if mixes_types else ""
            expected = f"different names, or fields that never occur in the same sample: no labels or lists{kinds}"
            remedy = f"Rename the others too, or drop them with {option_text('drop_fields')}."
            raise InvalidRequest(option_text("rename_fields"), problem, expected=expected, remedy=remedy)


def _quote_names(names: Collection[str]) -> str:
    return format_list([repr(name) for name in names], _MAX_LISTED_FIELDS)


def _select_source_paths(entries: SampleTable, rows: NDArray[np.int64], first: NDArray[np.int64]) -> pa.Table | None:
    import pyarrow.compute as pc

    columns = entries.metadata
    if columns is None or _PATHS_COLUMN not in columns.column_names:
        return columns
    index = columns.column_names.index(_PATHS_COLUMN)
    lists = arrow.to_one_chunk(columns.column(index))
    if not pa.types.is_list(lists.type) or lists.null_count:
        return columns
    if not np.array_equal(arrow.number_values(pc.list_value_length(lists)), entries.counts()):
        return columns  # the lists do not match the fields, so another tool wrote this column
    paths = lists.flatten().take(arrow.number_array(rows))
    kept_paths = pa.ListArray.from_arrays(arrow.number_array(first.astype(np.int32)), paths)
    return columns.set_column(index, columns.schema.field(index), pc.cast(kept_paths, lists.type))
