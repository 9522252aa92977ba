"""Rename keys and fields so that every tar reader interprets them the same way: see `interop.readers`."""

from __future__ import annotations

import re
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from shardtool.entries.strings import PackedStrings
from shardtool.errors import InvalidRequest, format_list, printable
from shardtool.format.tar_write import USTAR_NAME_BYTES as HEADER_LIMIT
from shardtool.messages import option_text
from shardtool.names import source_label
from shardtool.select.field_rows import list_source_paths
from shardtool.values import chunk_slices

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardtool.entries.sample_table import SampleTable


_UNSAFE = re.compile(rb"[^A-Za-z0-9_\-/]|^__")
_UNSAFE_IN_CHUNK = re.compile(rb"[^A-Za-z0-9_\-/\0]|(?:^|[/\0])__")
_HASH_LENGTH = 16


def make_portable(entries: SampleTable, *, by_key: bool = True) -> SampleTable:
    """Return the samples under portable names; `by_key`: in the order of their new keys.

    Unsafe bytes of a key are percent-encoded, see `urllib.parse.unquote_to_bytes`. Fields are lower-cased. A hash
    replaces the end of a key that is too long for the header. The sidecar records the source's names.
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
    keys, typed_fields = _portable_keys(entries.keys, key_bytes), (*entries.values.classes, *entries.values.numbers)
    renamed = replace(
        entries,
        keys=keys,
        fields=unique,
        rows=replace(entries.rows, code=new_code[entries.rows.code], paths=list_source_paths(entries)),
        # The dataset file lists class names in this order.
        values=entries.values.rename({name: _portable_field(name) for name in (*typed_fields, *entries.fields)}),
        source_paths=True,
    )
    check_case(renamed)
    # Lower-casing may change the order of fields, and encoding may change the order of keys.
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
            hashed = [key for key in renamed if b"~" in key]  # only hashed keys can collide: encoding is one-to-one
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
    """Refuse fields of a sample that differ only in case: webdataset lower-cases fields."""
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
        remedy = f"Rename or {option_text('exclude')} one of each."
        raise InvalidRequest(source_label(entries.root), found, expected=expected, remedy=remedy)
