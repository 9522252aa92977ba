"""Check that a shard, a sidecar and readers can represent all keys and fields.

The rule is the same for all sources. Keys of tables and datasets that are not paths are refused when they are read
(`table.columns`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from shardtool.errors import InvalidRequest, format_list, printable
from shardtool.messages import flag_text, option_text
from shardtool.names import (
    MAX_NAME_BYTES,
    field_problem,
    has_early_dot,
    is_utf8,
    name_problem,
    to_bytes,
    to_text,
)
from shardtool.skipped import Skipped
from shardtool.table.rows import shorten
from shardtool.units import pluralize
from shardtool.values import chunk_slices

if TYPE_CHECKING:
    from shardtool.entries.sample_table import SampleTable
    from shardtool.entries.strings import PackedStrings
    from shardtool.values import Dots


_CONTROL_BYTES = bytes([*range(1, 32), 127])


_C1_LEAD_BYTE = b"\xc2"  # starts the controls beyond ASCII, and some letters


_DOTTED_PART = re.compile(rb"\.[^/\0]*\0")  # starts with what is fast to look for


_PART_STARTS = b"/\0."  # what stands before a last part; or, at the start of all, that part's dot itself


def has_dotted_keys(keys: PackedStrings) -> bool:
    """Tell whether the first dot would end a key before its end. One that starts the last part is no such dot."""
    data = keys.data
    return any(
        b"." in found[0][1:] or data[max(0, found.start() - 1)] not in _PART_STARTS
        for found in _DOTTED_PART.finditer(data)
    )


def check_storable_names(entries: SampleTable, where: str, *, skip: bool = False) -> None:
    """Refuse names that a shard, a sidecar or a reader cannot hold.

    Args:
        entries: The samples.
        where: What the source is called.
        skip: Whether `--on-error skip` is a way out that this source has not taken.

    Raises:
        InvalidRequest: There are such names.
    """
    keys, fields = _unsafe_keys(entries.keys), _unsafe_fields(entries)
    bad = [entries.keys[at] for at in keys[:5]] + [to_bytes(name) for name in fields]
    if not bad:
        return
    kinds = [*dict.fromkeys(field_problem(name) for name in bad)]
    names = [shorten(printable(name)) for name in bad]
    also = f", or leave them out with {option_text('on_error', 'skip')}" if skip else ""
    total = len(keys) + len(fields)
    held = f"{pluralize(total, 'name')} that no shard can hold ({', '.join(kinds)})"
    found = f"{held}: {format_list(names, total=total)}"
    expected = f"keys and fields in UTF-8, without control characters, of at most {MAX_NAME_BYTES:,} bytes"
    remedy = f"Rename them, or pack them under safe names with {flag_text('portable')}{also}."
    raise InvalidRequest(where, found, expected=expected, remedy=remedy)


def skip_unsafe_names(entries: SampleTable) -> tuple[SampleTable, tuple[Skipped, ...]]:
    """Return the samples whose names a shard can hold, and the others, which are left out whole."""
    keys, fields = _unsafe_keys(entries.keys), _unsafe_fields(entries)
    codes = [entries.fields.index(name) for name in fields]
    rows = np.flatnonzero(np.isin(entries.rows.code, codes)) if codes else np.zeros(0, np.int64)
    owners = entries.owners(rows)
    lost = {at: (entries.path(int(entries.first[at])), entries.keys[at]) for at in keys}
    for at, row in zip(owners.tolist(), rows.tolist(), strict=True):
        lost.setdefault(at, (entries.path(row), to_bytes(entries.fields[entries.rows.code[row]])))
    if not lost:
        return entries, ()
    skipped = tuple(
        Skipped(to_text(entries.keys[at]), to_text(path), "unsafe-name", f"a name with {field_problem(name)}")
        for at, (path, name) in sorted(lost.items())
    )
    return entries.without(lost), skipped


def choose_dots(entries: SampleTable, asked: Dots | None, where: str) -> tuple[Dots, str]:
    """Return the dot of a tar member's name at which its key ends, such that all keys and fields come back; and a note.

    Args:
        entries: The samples.
        asked: What was asked for, or is known of the source; None: the first, and the last where only that will do.
        where: What the source is called.

    Raises:
        InvalidRequest: What was asked for tears a name, or both would.
    """
    fields = [name for name in entries.used_fields() if "." in name]
    if asked != "last" and not has_dotted_keys(entries.keys):
        return "first", ""
    if asked == "last" and not fields:
        return "last", ""
    key = next((at for at in range(len(entries)) if has_early_dot(entries.keys[at])), None)
    example = "" if key is None else f", such as '{shorten(printable(entries.keys[key]))}'"
    last, safe = option_text("dots", "last"), f"or make the keys safe with {flag_text('portable')}"
    keys, dotted = (
        f"keys with dots in their last part{example}",
        f"fields with dots: {format_list([*map(repr, fields)])}",
    )
    if fields:
        choice = {"last": f"or leave {last} out, ", None: f"choose {last} if they come from the endings of paths, "}
        found, remedy = f"{keys}, and {dotted}", f"Give these fields other names, {choice.get(asked, '')}{safe}"
        if asked == "last":
            found, remedy = dotted, f"{remedy} alone"
        expected = "names that the first dot divides, or the last"
        raise InvalidRequest(where, found, expected=expected, remedy=f"{remedy}.")
    if asked == "first":
        raise InvalidRequest(where, keys, expected="keys that end at the first dot", remedy=f"Choose {last}, {safe}.")
    return "last", f"keys have dots{example}: in members' names they end at the last dot, as with {last}"


def _unsafe_keys(keys: PackedStrings) -> list[int]:
    """Return the places of keys that no shard can hold: a chunk at a time, and only those looked at that need it."""
    found, lengths = [], keys.lengths()
    for some in chunk_slices(len(keys)):
        chunk = keys.span(some.start, some.stop)
        if lengths[some].max() > MAX_NAME_BYTES or not _is_safe(chunk):
            names = enumerate(chunk.split(b"\0")[:-1], some.start)
            found += [at for at, name in names if name_problem(name)]
    return found


def _is_safe(chunk: bytes) -> bool:
    """Tell whether keys are in UTF-8, without what may be a control character."""
    if len(chunk.translate(None, _CONTROL_BYTES)) < len(chunk):
        return False
    return chunk.isascii() or (_C1_LEAD_BYTE not in chunk and is_utf8(chunk))


def _unsafe_fields(entries: SampleTable) -> list[str]:
    return [name for name in entries.used_fields() if field_problem(to_bytes(name))]
