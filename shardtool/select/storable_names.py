"""Check that shards can store the keys and field names of samples, or rename keys and fields for `--portable`."""

from __future__ import annotations

import re
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from shardtool.entries.strings import PackedStrings
from shardtool.errors import InvalidRequest, format_list, printable
from shardtool.format.tar_write import USTAR_NAME_BYTES as HEADER_LIMIT
from shardtool.messages import flag_text, option_text
from shardtool.names import (
    MAX_NAME_BYTES,
    field_problem,
    has_early_dot,
    is_utf8,
    name_problem,
    source_label,
    to_bytes,
    to_text,
)
from shardtool.select.field_rows import list_source_paths
from shardtool.skipped import Skipped
from shardtool.table.rows import shorten
from shardtool.units import pluralize
from shardtool.values import Dots, chunk_slices

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardtool.entries.sample_table import SampleTable


_CONTROL_BYTES = bytes([*range(1, 32), 127])
_C1_LEAD_BYTE = b"\xc2"
_DOTTED_PART = re.compile(rb"\.[^/\0]*\0")
_PART_STARTS = b"/\0."


def has_dotted_keys(keys: PackedStrings) -> bool:
    """Return whether the last component of any key contains a dot after its first character."""
    data = keys.data
    return any(
        b"." in match[0][1:] or data[max(0, match.start() - 1)] not in _PART_STARTS
        for match in _DOTTED_PART.finditer(data)
    )


def check_storable_names(entries: SampleTable, where: str, *, may_skip: bool) -> None:
    """Raise an error if a shard cannot store a key or field name."""
    keys, fields = _unsafe_keys(entries.keys), _unsafe_fields(entries)
    bad = [entries.keys[index] for index in keys[:5]] + [to_bytes(name) for name in fields]
    if not bad:
        return
    kinds = [*dict.fromkeys(field_problem(name) for name in bad)]
    names = [shorten(printable(name)) for name in bad]
    skip_hint = f", or skip them with {option_text('on_error', 'skip')}" if may_skip else ""
    total = len(keys) + len(fields)
    summary = f"{pluralize(total, 'name')} that a shard cannot store ({', '.join(kinds)})"
    found = f"{summary}: {format_list(names, total=total)}"
    limits = f"keys and fields in UTF-8 of at most {MAX_NAME_BYTES:,} bytes, without control characters or a part `..`"
    expected = "other field names" if kinds == ["a reserved name"] else limits
    remedy = f"Rename them, or pack them under portable names with {flag_text('portable')}{skip_hint}."
    raise InvalidRequest(where, found, expected=expected, remedy=remedy)


def skip_unsafe_names(entries: SampleTable) -> tuple[SampleTable, tuple[Skipped, ...]]:
    """Skip samples with a key or field name that a shard cannot store."""
    keys, fields = _unsafe_keys(entries.keys), _unsafe_fields(entries)
    codes = [entries.fields.index(name) for name in fields]
    rows = np.flatnonzero(np.isin(entries.rows.code, codes)) if codes else np.zeros(0, np.int64)
    samples = entries.samples_of(rows)
    lost = {sample: (entries.path(int(entries.first_rows[sample])), entries.keys[sample]) for sample in keys}
    for sample, row in zip(samples.tolist(), rows.tolist(), strict=True):
        lost.setdefault(sample, (entries.path(row), to_bytes(entries.fields[entries.rows.code[row]])))
    if not lost:
        return entries, ()
    skipped = tuple(
        Skipped(to_text(entries.keys[sample]), to_text(path), "unsafe-name", f"a name with {field_problem(name)}")
        for sample, (path, name) in sorted(lost.items())
    )
    return entries.without(lost), skipped


def choose_dots(entries: SampleTable, requested: Dots | None, where: str) -> tuple[Dots, str]:
    """Choose whether the first or the last dot of a tar member's name ends the key. Return the choice and a note.

    By default, choose the last dot only if keys contain dots. Raise an error if a name would be split at the wrong dot.
    """
    fields = [name for name in entries.used_fields() if "." in name]
    if requested != "last" and not has_dotted_keys(entries.keys):
        return "first", ""
    if requested == "last" and not fields:
        return "last", ""
    key = next((sample for sample in range(len(entries)) if has_early_dot(entries.keys[sample])), None)
    example = "" if key is None else f", such as '{shorten(printable(entries.keys[key]))}'"
    last, safe = option_text("dots", "last"), f"make the keys safe with {flag_text('portable')}"
    keys = f"keys with dots in their last part{example}"
    if fields:
        dotted = f"fields with dots: {format_list([*map(repr, fields)])}"
        choice = "" if requested else f"use {last} if they come from the endings of paths, "
        found, remedy = f"{keys}, and {dotted}", f"Rename these fields, {choice}or {safe}"
        if requested == "last":
            found, remedy = dotted, f"Rename these fields, omit {last}, or use {flag_text('portable')} instead"
        expected = "names in which the first or the last dot ends the key"
        raise InvalidRequest(where, found, expected=expected, remedy=f"{remedy}.")
    if requested == "first":
        raise InvalidRequest(where, keys, expected="keys that end at the first dot", remedy=f"Use {last}, or {safe}.")
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
    if len(chunk.translate(None, _CONTROL_BYTES)) < len(chunk) or b".." in chunk:
        return False
    return chunk.isascii() or (_C1_LEAD_BYTE not in chunk and is_utf8(chunk))


def _unsafe_fields(entries: SampleTable) -> list[str]:
    return [name for name in entries.used_fields() if field_problem(to_bytes(name))]


_UNSAFE = re.compile(rb"[^A-Za-z0-9_\-/]|^__")
_UNSAFE_IN_CHUNK = re.compile(rb"[^A-Za-z0-9_\-/\0]|(?:^|[/\0])__")
_HASH_LENGTH = 16


def make_portable(entries: SampleTable, *, by_key: bool = True) -> SampleTable:
    """Rename keys and fields to names that all readers accept. If `by_key`, sort the samples by the new keys.

    Bytes of a key other than ASCII letters, digits, `_`, `-` and `/` are percent-encoded. Field names become lower
    case, with `_` for most other characters. A hash replaces the end of a key that does not fit into a tar header. The
    sidecar records the original names.
    """
    fields = tuple(_portable_field(name) for name in entries.fields)
    longest = max((fields[code] for code in np.unique(entries.rows.code).tolist()), key=len, default="")
    key_bytes = HEADER_LIMIT - 1 - len(longest)
    if key_bytes < 2 * _HASH_LENGTH:
        found = f"the field {longest!r} leaves {key_bytes} of {HEADER_LIMIT} bytes for keys"
        expected = f"at least {2 * _HASH_LENGTH}"
        raise InvalidRequest(option_text("portable"), found, expected=expected, remedy="Rename the field.")
    unique = tuple(sorted(set(fields), key=str.encode))
    new_code = np.array([unique.index(name) for name in fields], np.uint16)
    keys = _portable_keys(entries.keys, key_bytes)
    typed_fields = (*entries.values.classes, *entries.values.numbers)
    renamed = replace(
        entries,
        keys=keys,
        fields=unique,
        rows=replace(entries.rows, code=new_code[entries.rows.code], paths=list_source_paths(entries)),
        # typed fields first, to keep the order of class names in the dataset file
        values=entries.values.rename({name: _portable_field(name) for name in (*typed_fields, *entries.fields)}),
        source_paths=True,
    )
    check_case(renamed)
    # The new names may sort differently than the original names.
    if np.any(np.diff(new_code.astype(np.int64)) < 0):
        by_field = np.lexsort((renamed.rows.code, np.repeat(np.arange(len(renamed)), renamed.counts())))
        renamed = renamed.take_rows(by_field)
    return renamed.take(keys.sorted_order()) if by_key and keys.data != entries.keys.data else renamed


def _portable_field(name: str) -> str:
    safe = re.sub(r"[^a-z0-9_.\-]", "_", name.lower().encode("utf-8", "replace").decode())
    return f"x{safe}" if safe.startswith("__") else safe


def _portable_keys(keys: PackedStrings, max_bytes: int) -> PackedStrings:
    lengths, chunks = keys.lengths(), []
    hashed_keys: set[bytes] = set()
    for span in chunk_slices(len(keys)):
        chunk = keys.span(span.start, span.stop)
        if _UNSAFE_IN_CHUNK.search(chunk) or lengths[span].max() > max_bytes:
            renamed = [_portable_key(key, max_bytes) for key in chunk[:-1].split(b"\0")]
            # Only shortened keys, which end in `~` and a hash, can become equal.
            hashed = [key for key in renamed if b"~" in key]
            if len(hashed_keys) + len(hashed) > len(hashed_keys.union(hashed)):
                found = "two long keys become the same key"
                raise InvalidRequest(option_text("portable"), found, remedy="Rename one of them.")
            hashed_keys.update(hashed)
            chunk = b"\0".join(renamed) + b"\0"
        chunks.append(chunk)
    return PackedStrings.parse(b"".join(chunks))


def _portable_key(key: bytes, max_bytes: int) -> bytes:
    safe = _UNSAFE.sub(lambda match: b"".join(b"%%%02X" % byte for byte in match[0]), key)
    safe = re.sub(rb"/__", b"/%5F%5F", safe)
    if len(safe) <= max_bytes:
        return safe
    digest = blake2b(key, digest_size=_HASH_LENGTH // 2).hexdigest().encode()
    cut = re.sub(rb"%[0-9A-F]?$", b"", safe[: max_bytes - _HASH_LENGTH - 1])
    return cut + b"~" + digest


def check_case(entries: SampleTable) -> None:
    """Raise an error if fields of a sample differ only in case, because webdataset converts names to lower case."""
    lower = [name.lower() for name in entries.fields]
    first_equal: NDArray[np.int64] = np.array([lower.index(name) for name in lower], np.int64)
    if len(set(lower)) == len(lower) and not entries.source_paths:
        return
    samples = np.repeat(np.arange(len(entries)), entries.counts())
    pairs = samples * (len(lower) + 1) + (first_equal[entries.rows.code] if len(first_equal) else 0)
    values, counts = np.unique(pairs, return_counts=True)
    clash = values[counts > 1] // (len(lower) + 1)
    if len(clash):
        how = "that get the same name" if entries.source_paths else "that differ only in case"
        found = f"fields {how}: {format_list([entries.key(int(sample)) for sample in clash[:5]], total=len(clash))}"
        clashing_rows = (pairs == values[counts > 1][0]).nonzero()[0].tolist()
        if files := [printable(path) for path in map(entries.path, clashing_rows) if path]:
            found += f", of {' and '.join(files)}"
        expected = "fields of a sample that differ in more than case"
        remedy = f"Rename or exclude one of each with {option_text('fields')}."
        raise InvalidRequest(source_label(entries.root), found, expected=expected, remedy=remedy)
