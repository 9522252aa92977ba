"""Rename keys and fields so that every reader of tar shards reads them alike: see `interop.readers`."""

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
from shardtool.names import (
    source_label,
)
from shardtool.select.field_rows import list_source_paths
from shardtool.values import chunk_slices

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardtool.entries.sample_table import SampleTable


_UNSAFE = re.compile(rb"[^A-Za-z0-9_\-/]|^__")


_UNSAFE_IN_CHUNK = re.compile(rb"[^A-Za-z0-9_\-/\0]|(?:^|[/\0])__")


_HASH_LENGTH = 16


def make_portable(entries: SampleTable, *, by_key: bool = True) -> SampleTable:
    """Return the samples under names that every reader reads alike; `by_key`: in the order of their new keys.

    What is unsafe in a key becomes `%` and two hex digits, so that `urllib.parse.unquote_to_bytes` gives
    it back; fields are lower-cased; a key too long for the header's name field is cut and ends in a
    hash of the whole. The source's names go into the sidecar.

    Raises:
        InvalidRequest: Two fields of a sample get the same name, or a field leaves no room for keys.
    """
    fields = tuple(_portable_field(name) for name in entries.fields)
    longest = max((fields[code] for code in np.unique(entries.rows.code).tolist()), key=len, default="")
    room = HEADER_LIMIT - 1 - len(longest)
    if room < 2 * _HASH_LENGTH:
        found = f"the field {longest!r} leaves {room} of {HEADER_LIMIT} bytes for keys"
        raise InvalidRequest(
            option_text("portable"), found, expected=f"{2 * _HASH_LENGTH} at least", remedy="Rename it."
        )
    unique = tuple(sorted(set(fields), key=str.encode))
    new_code = np.array([unique.index(name) for name in fields], np.uint16)
    keys, known = _portable_keys(entries.keys, room), (*entries.values.classes, *entries.values.numbers)
    renamed = replace(
        entries,
        keys=keys,
        fields=unique,
        rows=replace(entries.rows, code=new_code[entries.rows.code], paths=list_source_paths(entries)),
        # In the order of the classes, for that is the one in which the dataset file lists them.
        values=entries.values.rename({name: _portable_field(name) for name in (*known, *entries.fields)}),
        source_paths=True,
    )
    check_case(renamed)
    # Lower-cased, the fields of a sample may stand in another order; encoded, so may the keys.
    if np.any(np.diff(new_code.astype(np.int64)) < 0):
        by_field = np.lexsort((renamed.rows.code, np.repeat(np.arange(len(renamed)), renamed.counts())))
        renamed = renamed.take_rows(by_field)
    return renamed.take(keys.sorted_order()) if by_key and keys.data != entries.keys.data else renamed


def _portable_field(name: str) -> str:
    safe = re.sub(r"[^a-z0-9_.\-]", "_", name.lower().encode("utf-8", "replace").decode())
    return f"x{safe}" if safe.startswith("__") else safe


def _portable_keys(keys: PackedStrings, room: int) -> PackedStrings:
    """Return the portable keys: a chunk at a time, and only those looked at that need it."""
    lengths, chunks = keys.lengths(), []
    cut: set[bytes] = set()
    for some in chunk_slices(len(keys)):
        chunk = keys.span(some.start, some.stop)
        if _UNSAFE_IN_CHUNK.search(chunk) or lengths[some].max() > room:
            new = [_portable_key(key, room) for key in chunk[:-1].split(b"\0")]
            twins = [key for key in new if b"~" in key]  # only these can meet: what is encoded is encoded one to one
            if len(cut) + len(twins) > len(cut.union(twins)):
                raise InvalidRequest(option_text("portable"), "two long keys become one", remedy="Rename one of them.")
            cut.update(twins)
            chunk = b"\0".join(new) + b"\0"
        chunks.append(chunk)
    return PackedStrings.parse(b"".join(chunks))


def _portable_key(key: bytes, room: int) -> bytes:
    safe = _UNSAFE.sub(lambda match: b"".join(b"%%%02X" % byte for byte in match[0]), key)
    safe = re.sub(rb"/__", b"/%5F%5F", safe)
    if len(safe) <= room:
        return safe
    digest = blake2b(key, digest_size=_HASH_LENGTH // 2).hexdigest().encode()
    cut = re.sub(rb"%[0-9A-F]?$", b"", safe[: room - _HASH_LENGTH - 1])
    return cut + b"~" + digest


def check_case(entries: SampleTable) -> None:
    """Refuse samples with two fields that differ in case only: webdataset, which lower-cases, fails on them.

    Raises:
        InvalidRequest: There are such samples.
    """
    lower = [name.lower() for name in entries.fields]
    twins: NDArray[np.int64] = np.array([lower.index(name) for name in lower], np.int64)
    if len(set(lower)) == len(lower) and not entries.source_paths:
        return
    samples = np.repeat(np.arange(len(entries)), entries.counts())
    pairs = samples * (len(lower) + 1) + (twins[entries.rows.code] if len(twins) else 0)
    values, counts = np.unique(pairs, return_counts=True)
    clash = values[counts > 1] // (len(lower) + 1)
    if len(clash):
        why = "that get the same name" if entries.source_paths else "that differ in case only"
        found = f"fields {why}: {format_list([entries.key(int(at)) for at in clash[:5]], total=len(clash))}"
        twin = (pairs == values[counts > 1][0]).nonzero()[0].tolist()
        if files := [printable(path) for path in map(entries.path, twin) if path]:
            found += f", of {' and '.join(files)}"
        expected = "one field of a name in a sample, in any case"
        remedy = f"Rename or {option_text('exclude')} one of each."
        raise InvalidRequest(source_label(entries.root), found, expected=expected, remedy=remedy)
