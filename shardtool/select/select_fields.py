"""Select, drop and rename the fields of samples.

Payloads are not found by field names, so fields can be renamed; rows of files get explicit paths then.
"""

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
from shardtool.table.columns import check_field_name, missing_name_error
from shardtool.values import common_type

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from shardtool.entries.sample_table import FieldValues, SampleTable
    from shardtool.skipped import Skipped


_MAX_LISTED_FIELDS = 100  # names in a message


_RESERVED_NAME = re.compile(r"__.*__")  # WebDataset puts `__key__` and `__url__` beside a sample's fields


_PATHS_COLUMN = "source_paths"  # the column of a portable dataset that has a value per field: docs/format.md, "Sidecar"


def select_fields(
    entries: SampleTable,
    select: Sequence[str] = (),
    drop: Sequence[str] = (),
    rename: tuple[tuple[str, str], ...] = (),
    *,
    to_format: str = "tar",
) -> tuple[SampleTable, tuple[Skipped, ...]]:
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
    becomes = _choose_names(entries.fields, select, drop, rename)
    stays = np.array([name in becomes for name in entries.fields], np.bool_)[entries.rows.code]
    rows = np.flatnonzero(stays)
    first = np.concatenate((np.zeros(1, np.int64), np.cumsum(stays, dtype=np.int64)))[entries.first]
    used = np.bincount(entries.rows.code[rows], minlength=len(entries.fields)).tolist()
    becomes = {name: becomes[name] for name, uses in zip(entries.fields, used, strict=True) if uses}
    fields = tuple(sorted(set(becomes.values()), key=to_bytes))
    number = [fields.index(becomes[name]) if name in becomes else 0 for name in entries.fields]
    code = np.array(number, np.uint16)[entries.rows.code[rows]]
    if rename:  # else the fields of a sample are in order already
        order, _ = order_rows([first], [code])
        rows, code = rows[order], code[order]
    taken = entries.take_rows(rows)
    found = replace(
        taken,
        first=first,
        fields=fields,
        rows=replace(taken.rows, code=code),
        values=_rename_values(entries.values, becomes),
        metadata=_select_source_paths(entries, rows, first),
    )
    _check_merged(entries, found, becomes, to_format)
    where, why = option_text("select_fields" if select else "drop_fields"), "none of the fields that were selected"
    return drop_empty_samples(found, where, "no sample keeps a field", why)


def _choose_names(
    fields: tuple[str, ...], select: Sequence[str], drop: Sequence[str], rename: tuple[tuple[str, str], ...]
) -> dict[str, str]:
    """Return the fields that stay, and what they are called then."""
    old = [name for name, _ in rename]
    for asked, names in (("select_fields", select), ("drop_fields", drop), ("rename_fields", old)):
        for name in names:
            if name not in fields:
                raise missing_name_error("field", option_text(asked), name, fields)
    stay = [name for name in fields if name not in drop and (not select or name in select)]
    both = [name for name in select if name in drop]
    gone = [name for name in old if name not in stay]
    twice = [name for name, count in Counter(old).items() if count > 1]
    for asked, bad, found, expected in (
        ("drop_fields", both, ", which is to be kept, too", "each field to be kept, or left out"),
        ("rename_fields", gone, ", which does not stay", f"of {_quote_names(stay)}"),
        ("rename_fields", twice, " more than once", "one new name for each"),
    ):
        if bad:
            raise InvalidRequest(option_text(asked), f"{_quote_names(bad)}{found}", expected=expected)
    for _, name in rename:
        _check_new_name(name)
    return {name: name for name in stay} | dict(rename)


def _merged_names(becomes: dict[str, str]) -> dict[str, list[str]]:
    """Return the names that several fields get, and what these were called."""
    old: dict[str, list[str]] = {}
    for name, new in becomes.items():
        old.setdefault(new, []).append(name)
    return {new: names for new, names in old.items() if len(names) > 1}


def _rename_values(values: FieldValues, becomes: dict[str, str]) -> FieldValues:
    """Return what is known of the fields under their new names: of several that become one, what holds for all."""
    found = values.rename(becomes)
    inline, types = {**found.inline}, {**found.types}
    for new, names in _merged_names(becomes).items():
        columns = [values.inline[name] for name in names if name in values.inline]
        if len(columns) > 1:
            inline[new] = _merge_texts(columns)
        types.pop(new, None)
        if (kind := common_type(map(values.types.get, names))) is not None:
            types[new] = kind
    return found._replace(inline=inline, types=types)


def _merge_texts(columns: list[StringColumn]) -> PackedStrings:
    """Return the text of each sample, which all columns but one have as nothing."""
    count = len(columns[0])
    texts = [PackedStrings.parse(column.span(0, count)) for column in columns]
    which = np.argmax([one.lengths() for one in texts], axis=0)
    return PackedStrings.parse(b"".join(one.span(0, count) for one in texts)).take(which * count + np.arange(count))


def _check_merged(entries: SampleTable, found: SampleTable, becomes: dict[str, str], to_format: str) -> None:
    """Refuse fields that get the same name where a sample has two of them, or what one is would be lost."""
    values = entries.values
    for new, merged in _merged_names(becomes).items():
        owners, code = np.repeat(np.arange(len(found)), found.counts()), found.fields.index(new)
        ours = owners[found.rows.code == code]
        twice = ours[1:][ours[1:] == ours[:-1]]
        typed = [name for name in merged if name in {*values.classes, *values.lists}]
        unlike = to_format == "tfrecord" and len({values.numbers.get(name) for name in merged}) > 1
        if len(twice) or typed or unlike:
            whose = f" of {printable(found.key(int(twice[0])))!r}" if len(twice) else ""
            problem = f"{_quote_names(merged)}{whose} would all be called {new!r}"
            kinds = ", and no numbers beside text in TFRecords" if unlike else ""
            expected = f"each its own name, or fields that no sample has both of: no labels or lists{kinds}"
            remedy = f"Rename the others too, or leave them out with {option_text('drop_fields')}."
            raise InvalidRequest(option_text("rename_fields"), problem, expected=expected, remedy=remedy)


def _check_new_name(name: str) -> None:
    if _RESERVED_NAME.fullmatch(name):
        raise InvalidRequest(option_text("rename_fields"), f"{name!r}, a name that readers keep for themselves")
    check_field_name(option_text("rename_fields"), f"{name!r}, no name for a field", name)


def _quote_names(names: Collection[str]) -> str:
    return format_list([repr(name) for name in names], _MAX_LISTED_FIELDS)


def _select_source_paths(entries: SampleTable, rows: NDArray[np.int64], first: NDArray[np.int64]) -> pa.Table | None:
    """Return the metadata with the source paths of `rows` alone, for they stand in the order of the fields."""
    import pyarrow.compute as pc

    columns = entries.metadata
    if columns is None or _PATHS_COLUMN not in columns.column_names:
        return columns
    at = columns.column_names.index(_PATHS_COLUMN)
    lists = arrow.to_one_chunk(columns.column(at))
    if not pa.types.is_list(lists.type) or lists.null_count:
        return columns
    if not np.array_equal(arrow.number_values(pc.list_value_length(lists)), entries.counts()):
        return columns  # not of this tool's making
    paths = lists.flatten().take(arrow.number_array(rows))
    found = pa.ListArray.from_arrays(arrow.number_array(first.astype(np.int32)), paths)
    return columns.set_column(at, columns.schema.field(at), pc.cast(found, lists.type))
