"""Check that shards, sidecars and readers can represent all names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from shardtool.errors import InvalidRequest, format_list, printable
from shardtool.messages import flag_text, option_text
from shardtool.names import MAX_NAME_BYTES, field_problem, has_early_dot, is_utf8, name_problem, to_bytes, to_text
from shardtool.skipped import Skipped
from shardtool.table.rows import shorten
from shardtool.units import pluralize
from shardtool.values import chunk_slices

if TYPE_CHECKING:
    from shardtool.entries.sample_table import SampleTable
    from shardtool.entries.strings import PackedStrings
    from shardtool.values import Dots


_CONTROL_BYTES = bytes([*range(1, 32), 127])
_C1_LEAD_BYTE = b"\xc2"  # first UTF-8 byte of non-ASCII control characters and some letters
_DOTTED_PART = re.compile(rb"\.[^/\0]*\0")
_PART_STARTS = b"/\0."  # bytes before the dot at the start of a part; `.` itself for the first key


def has_dotted_keys(keys: PackedStrings) -> bool:
    """Check whether a dot is in, but not at the start of, a key's last part."""
    data = keys.data
    return any(
        b"." in match[0][1:] or data[max(0, match.start() - 1)] not in _PART_STARTS
        for match in _DOTTED_PART.finditer(data)
    )


def check_storable_names(entries: SampleTable, where: str, *, skip: bool = False) -> None:
    """Refuse names that a shard, a sidecar or a reader cannot represent."""
    keys, fields = _unsafe_keys(entries.keys), _unsafe_fields(entries)
    bad = [entries.keys[index] for index in keys[:5]] + [to_bytes(name) for name in fields]
    if not bad:
        return
    kinds = [*dict.fromkeys(field_problem(name) for name in bad)]
    names = [shorten(printable(name)) for name in bad]
    skip_hint = f", or skip them with {option_text('on_error', 'skip')}" if skip else ""
    total = len(keys) + len(fields)
    summary = f"{pluralize(total, 'name')} that a shard cannot store ({', '.join(kinds)})"
    found = f"{summary}: {format_list(names, total=total)}"
    expected = f"keys and fields in UTF-8, without control characters, of at most {MAX_NAME_BYTES:,} bytes"
    remedy = f"Rename them, or pack them under portable names with {flag_text('portable')}{skip_hint}."
    raise InvalidRequest(where, found, expected=expected, remedy=remedy)


def skip_unsafe_names(entries: SampleTable) -> tuple[SampleTable, tuple[Skipped, ...]]:
    """Return the samples whose names a shard can store, and the others as skipped."""
    keys, fields = _unsafe_keys(entries.keys), _unsafe_fields(entries)
    codes = [entries.fields.index(name) for name in fields]
    rows = np.flatnonzero(np.isin(entries.rows.code, codes)) if codes else np.zeros(0, np.int64)
    owners = entries.owners(rows)
    lost = {sample: (entries.path(int(entries.first[sample])), entries.keys[sample]) for sample in keys}
    for sample, row in zip(owners.tolist(), rows.tolist(), strict=True):
        lost.setdefault(sample, (entries.path(row), to_bytes(entries.fields[entries.rows.code[row]])))
    if not lost:
        return entries, ()
    skipped = tuple(
        Skipped(to_text(entries.keys[sample]), to_text(path), "unsafe-name", f"a name with {field_problem(name)}")
        for sample, (path, name) in sorted(lost.items())
    )
    return entries.without(lost), skipped


def choose_dots(entries: SampleTable, requested: Dots | None, where: str) -> tuple[Dots, str]:
    """Return the dot that ends keys in the names of tar members, and a note.

    `requested` is the user's or the source's; None: the first, or the last if only that can be read back.
    """
    fields = [name for name in entries.used_fields() if "." in name]
    if requested != "last" and not has_dotted_keys(entries.keys):
        return "first", ""
    if requested == "last" and not fields:
        return "last", ""
    key = next((sample for sample in range(len(entries)) if has_early_dot(entries.keys[sample])), None)
    example = "" if key is None else f", such as '{shorten(printable(entries.keys[key]))}'"
    last, safe = option_text("dots", "last"), f"or make the keys safe with {flag_text('portable')}"
    keys, dotted = (
        f"keys with dots in their last part{example}",
        f"fields with dots: {format_list([*map(repr, fields)])}",
    )
    if fields:
        choice = {"last": f"or omit {last}, ", None: f"use {last} if they come from the endings of paths, "}
        found, remedy = f"{keys}, and {dotted}", f"Rename these fields, {choice.get(requested, '')}{safe}"
        if requested == "last":
            found, remedy = dotted, f"{remedy} alone"
        expected = "names in which the first or the last dot ends the key"
        raise InvalidRequest(where, found, expected=expected, remedy=f"{remedy}.")
    if requested == "first":
        raise InvalidRequest(where, keys, expected="keys that end at the first dot", remedy=f"Use {last}, {safe}.")
    return "last", f"keys contain dots{example}: in member names, keys end at the last dot, as with {last}"


def _unsafe_keys(keys: PackedStrings) -> list[int]:
    unsafe, lengths = [], keys.lengths()
    for span in chunk_slices(len(keys)):
        chunk = keys.span(span.start, span.stop)
        if lengths[span].max() > MAX_NAME_BYTES or not _is_safe(chunk):
            names = enumerate(chunk.split(b"\0")[:-1], span.start)
            unsafe += [index for index, name in names if name_problem(name)]
    return unsafe


def _is_safe(chunk: bytes) -> bool:
    if len(chunk.translate(None, _CONTROL_BYTES)) < len(chunk):
        return False
    return chunk.isascii() or (_C1_LEAD_BYTE not in chunk and is_utf8(chunk))


def _unsafe_fields(entries: SampleTable) -> list[str]:
    return [name for name in entries.used_fields() if field_problem(to_bytes(name))]
