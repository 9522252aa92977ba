"""Which fields samples keep, and under which names: pure, without I/O.

The rows are SPAN or INLINE, as those of shards are: no payload is found by its name, so fields can get other names.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries.arrow import number_array
from shardtool.errors import InvalidRequest, listing, printable
from shardtool.table import buffers
from shardtool.table.columns import BAD_FIELD, no_such
from shardtool.values import NO_FIELD, Skipped, is_utf8, to_bytes
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from shardtool.entries.entries import Entries

_SHOWN = 100  # names in a message
_READERS_OWN = re.compile(r"__.*__")  # WebDataset puts `__key__` and `__url__` beside a sample's fields
_PATHS = "source_paths"  # the column of a portable dataset that has a value a field: docs/format.md, "Sidecar"


def select_fields(
    entries: Entries,
    select: tuple[str, ...] = (),
    drop: tuple[str, ...] = (),
    rename: tuple[tuple[str, str], ...] = (),
) -> Entries:
    """Return the samples with some of their fields, under other names.

    A sample that keeps none is listed in `left_out`.

    Args:
        entries: The samples.
        select: The fields that stay; none: all.
        drop: Fields that do not.
        rename: Old and new names of fields that stay, all at once: two can change places, and two become one where no
            sample has both.

    Raises:
        InvalidRequest: A field that no sample has, names that contradict each other or cannot be fields, or no sample
            that keeps a field.
    """
    if not (select or drop or rename):
        return entries
    becomes = _becoming(entries.fields, select, drop, rename)
    stays = np.array([name in becomes for name in entries.fields], np.bool_)[entries.code]
    rows = np.flatnonzero(stays)
    first = np.concatenate((np.zeros(1, np.int64), np.cumsum(stays, dtype=np.int64)))[entries.first]
    used = np.bincount(entries.code[rows], minlength=len(entries.fields)).tolist()
    becomes = {name: becomes[name] for name, uses in zip(entries.fields, used, strict=True) if uses}
    fields = tuple(sorted(set(becomes.values()), key=to_bytes))
    number = [fields.index(becomes[name]) if name in becomes else 0 for name in entries.fields]
    code = np.array(number, np.uint16)[entries.code[rows]]
    if rename:  # else the fields of a sample are in order already
        order = _order_of(first, code, len(fields))
        rows, code = rows[order], code[order]
    found = replace(
        entries.take_rows(rows),
        first=first,
        fields=fields,
        code=code,
        inline=_renamed(entries.inline, becomes),
        numbers=_renamed(entries.numbers, becomes),
        classes=_renamed(entries.classes, becomes),
        lists=_renamed(entries.lists, becomes),
        columns=_with_paths_of(entries, rows, first),
    )
    _check_merged(entries, found, becomes)
    where, why = option("select_fields" if select else "drop_fields"), "none of the fields that were selected"
    return without_empty(found, where, "no sample keeps a field", why)


def _becoming(
    fields: tuple[str, ...], select: tuple[str, ...], drop: tuple[str, ...], rename: tuple[tuple[str, str], ...]
) -> dict[str, str]:
    """Return the fields that stay, and what they are called then."""
    old = [name for name, _ in rename]
    for asked, names in (("select_fields", select), ("drop_fields", drop), ("rename_fields", old)):
        for name in names:
            if name not in fields:
                raise no_such("field", option(asked), name, fields)
    both = [name for name in select if name in drop]
    if both:
        raise InvalidRequest(
            option("drop_fields"),
            f"{_quoted(both)}, which {option('select_fields')} names too",
            expected="each field in one of them",
        )
    stay = [name for name in fields if name not in drop and (not select or name in select)]
    gone = [name for name in old if name not in stay]
    if gone:
        raise InvalidRequest(
            option("rename_fields"), f"{_quoted(gone)}, which does not stay", expected=f"of {_quoted(stay)}"
        )
    if twice := [name for name, count in Counter(old).items() if count > 1]:
        raise InvalidRequest(
            option("rename_fields"), f"{_quoted(twice)} more than once", expected="one new name for each"
        )
    for _, name in rename:
        _check_name(name)
    return {name: name for name in stay} | dict(rename)


def _check_merged(entries: Entries, found: Entries, becomes: dict[str, str]) -> None:
    """Refuse fields that get the same name where a sample has two of them, or one is a number, label or list."""
    for new, count in Counter(becomes.values()).items():
        if count == 1:
            continue
        merged = [name for name in becomes if becomes[name] == new]
        owners, code = np.repeat(np.arange(len(found)), found.counts()), found.fields.index(new)
        ours = owners[found.code == code]
        twice = ours[1:][ours[1:] == ours[:-1]]
        typed = [name for name in merged if name in entries.inline or name in entries.classes or name in entries.lists]
        if len(twice) or typed:
            whose = f" of {printable(found.key(int(twice[0])))!r}" if len(twice) else ""
            raise InvalidRequest(
                option("rename_fields"), f"{_quoted(merged)}{whose} would all be called {new!r}",
                expected="each its own name, or fields that no sample has both of: no numbers, labels or lists",
                remedy=f"Rename the others too, or leave them out with {option('drop_fields')}.",
            )  # fmt: skip


def _check_name(name: str) -> None:
    if _READERS_OWN.fullmatch(name):
        raise InvalidRequest(option("rename_fields"), f"{name!r}, a name that readers keep for themselves")
    if BAD_FIELD.search(name) or not is_utf8(to_bytes(name)):
        raise InvalidRequest(
            option("rename_fields"), f"{name!r}, no name for a field", expected="an ending, such as jpg, cls or seg.png"
        )


def _quoted(names: Collection[str]) -> str:
    return listing([repr(name) for name in names], _SHOWN)


def _order_of(first: NDArray[np.int64], code: NDArray[np.uint16], fields: int) -> NDArray[np.int64]:
    """Return the order of rows in which those of each sample have ascending codes."""
    rank = np.repeat(np.arange(len(first) - 1) * fields, np.diff(first))
    rank += code
    return np.argsort(rank, kind="stable")


def _renamed(found: Any, becomes: dict[str, str]) -> dict[str, Any]:
    """Return facts of fields, by their new names."""
    return {new: found[old] for old, new in becomes.items() if old in found}


def _with_paths_of(entries: Entries, rows: NDArray[np.int64], first: NDArray[np.int64]) -> Any:
    """Return the metadata with the source paths of `rows` alone, for they stand in the order of the fields."""
    columns = entries.columns
    if columns is None or _PATHS not in columns.column_names:
        return columns
    at = columns.column_names.index(_PATHS)
    lists = buffers.one_chunk(columns.column(at))
    if not pa.types.is_list(lists.type) or lists.null_count:
        return columns
    if not np.array_equal(buffers.numbers(pc.list_value_length(lists)), entries.counts()):
        return columns  # not of this tool's making
    paths = lists.flatten().take(number_array(rows))
    found = pa.ListArray.from_arrays(number_array(first.astype(np.int32)), paths)
    return columns.set_column(at, columns.schema.field(at), pc.cast(found, lists.type))


def without_empty(entries: Entries, where: str, found: str, why: str) -> Entries:
    """Return the samples that have fields; the others are listed in `left_out`.

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
        return entries
    if len(empty) == len(entries):
        raise InvalidRequest(where, found, remedy="`shardtool inspect` tells what fields there are.")
    lost = [Skipped(entries.key(sample), "", NO_FIELD, why) for sample in empty.tolist()]
    return replace(entries.take(np.flatnonzero(counts)), left_out=(*entries.left_out, *lost))
