"""Rename keys by a substitution as in `sed`, or to the values of a column.

The metadata column `old_key` stores the previous keys.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from shardtool.entries import arrow
from shardtool.entries.metadata_columns import with_column
from shardtool.entries.strings import PackedStrings
from shardtool.errors import InvalidRequest, format_list, printable
from shardtool.messages import choose_text, option_text, quote_for_shell
from shardtool.names import MAX_NAME_BYTES, is_utf8, to_bytes, to_text
from shardtool.request.option_values import Substitution, parse_substitution
from shardtool.select.field_rows import list_source_paths
from shardtool.table.keys import find_repeated, gather_keys, inexact_positions, is_key_type, iter_key_texts
from shardtool.table.payloads import missing_positions
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from shardtool.entries.sample_table import SampleTable
    from shardtool.skipped import Skipped


OLD_KEY_COLUMN = "old_key"
_CHUNK_KEYS = 2**12
_MAX_LISTED_KEYS = 3


def check_key_rename(rename: str) -> None:
    """Raise an error if the regular expression in `rename` is invalid."""
    if (substitution := parse_substitution("rename_keys", rename)) is not None:
        _substitute(arrow.text_array([""]), substitution)


def rename_keys(
    entries: SampleTable, rename: str, column_of: Callable[[str], pa.ChunkedArray], *, has_paths: bool
) -> tuple[SampleTable, list[str]]:
    """Rename the keys of samples. Return the samples, in unchanged order, and notes.

    Args:
        rename: `s/PATTERN/REPLACEMENT/`, or the name of a column with the new keys.
        has_paths: Whether fields are files. If true, the returned table stores the paths, which cannot be computed from
            the new keys.
    """
    keys = entries.keys
    if not is_utf8(keys.data):
        bad = next(name for _, names in keys.chunks() for name in names if not is_utf8(name))
        raise _error(f"the key '{printable(bad)}' is not UTF-8", "keys in UTF-8", "Rename its files.")
    if (substitution := parse_substitution("rename_keys", rename)) is not None:
        new_keys, invalid = gather_keys(_substituted(keys, substitution))
    else:
        new_keys, invalid = gather_keys(iter_key_texts(_check_column(keys, column_of(rename), rename)))
    if len(invalid):
        examples = _show(keys, invalid)
        found = f"{pluralize(len(invalid), 'key')} that a shard cannot store, from {examples}"
        shape = "without control characters and parts such as '', '.' or '..'"
        raise _error(found, f"text of 1 to {MAX_NAME_BYTES:,} bytes, {shape}")
    _check_unique(keys, new_keys)
    rows, old = entries.rows, entries.metadata
    if has_paths:
        rows = replace(rows, paths=list_source_paths(entries))
    metadata = with_column(old, OLD_KEY_COLUMN, arrow.split_at_nuls(keys.data, pa.large_string()))
    notes = [_rename_note(keys, new_keys)]
    if old is not None and OLD_KEY_COLUMN in old.column_names and rename != OLD_KEY_COLUMN:
        notes.append(f"column {OLD_KEY_COLUMN!r} replaced by the previous keys")
    return replace(entries, keys=new_keys, rows=rows, metadata=metadata), notes


def old_keys(entries: SampleTable) -> PackedStrings:
    """Return the keys that the samples had before `rename_keys`."""
    if entries.metadata is None or OLD_KEY_COLUMN not in entries.metadata.column_names:
        return entries.keys
    return PackedStrings.parse(arrow.append_nuls(arrow.to_one_chunk(entries.metadata.column(OLD_KEY_COLUMN))))


def rename_skipped(rows: Iterable[Skipped], rename: str) -> tuple[Skipped, ...]:
    """Apply `rename` to the keys of skipped samples. If `rename` is a column, change nothing."""
    skipped, substitution = [*rows], parse_substitution("rename_keys", rename)
    named = [index for index, row in enumerate(skipped) if row.key and is_utf8(to_bytes(row.key))]
    if substitution is not None and named:
        texts = arrow.text_array([skipped[index].key for index in named])
        for index, key in zip(named, _substitute(texts, substitution).to_pylist(), strict=True):
            skipped[index] = skipped[index]._replace(key=to_text(key.encode()))
    return tuple(skipped)


def _substitute(texts: pa.Array, substitution: Substitution) -> pa.Array:
    import pyarrow.compute as pc

    pattern, replacement, limit = substitution
    try:
        return pc.replace_substring_regex(texts, pattern, replacement, max_replacements=limit)
    except pa.ArrowInvalid as error:
        found = str(error).partition(": ")[2].removeprefix("Rewrite schema ")
        expected = "an RE2 regular expression, without look-ahead and back-references"
        raise _error(f"'{printable(pattern)}': {found}", expected) from None


def _substituted(keys: PackedStrings, substitution: Substitution) -> Iterator[pa.Array]:
    for start in range(0, len(keys), _CHUNK_KEYS):
        span = keys.span(start, min(start + _CHUNK_KEYS, len(keys)))
        texts = _substitute(arrow.split_at_nuls(span, pa.large_string()), substitution)
        if (too_long := np.flatnonzero(arrow.byte_lengths(texts) > MAX_NAME_BYTES)).size:
            found = f"the new key of '{printable(keys[start + int(too_long[0])])}' is too long"
            raise _error(found, f"at most {MAX_NAME_BYTES:,} bytes")
        yield texts


def _check_column(keys: PackedStrings, column: pa.ChunkedArray, name: str) -> pa.Array:
    values = arrow.to_one_chunk(arrow.to_plain(column))
    if not is_key_type(values.type):
        raise _error(f"column {name!r} holds {values.type}", "text or whole numbers")
    is_text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    missing = np.flatnonzero(arrow.byte_lengths(values) == 0) if is_text else missing_positions(values)
    if len(missing):
        found = f"no value in column {name!r} for {pluralize(len(missing), 'sample')}, such as {_show(keys, missing)}"
        query = f"{name}.len() > 0" if is_text else f"{name}.notna()"
        excluded = option_text("where", choose_text(query, quote_for_shell(query)))
        raise _error(found, "a new key for each sample", f"Exclude these samples with {excluded}.")
    if len(inexact := inexact_positions(values)):
        raise _error(f"column {name!r}: not a whole number for {_show(keys, inexact)}", "text or whole numbers")
    return values


def _check_unique(keys: PackedStrings, new_keys: PackedStrings) -> None:
    # Ignore old keys that were already equal, because `on_duplicate` handles them.
    repeated = {new: [*dict.fromkeys(keys[at] for at in rows)] for new, rows in find_repeated(new_keys).items()}
    if clashes := {new: old for new, old in repeated.items() if len(old) > 1}:
        new, old = next(iter(clashes.items()))
        shown = format_list([f"'{printable(key)}'" for key in old[:_MAX_LISTED_KEYS]], _MAX_LISTED_KEYS, total=len(old))
        found = f"{pluralize(len(clashes), 'key')} would not be unique: for example, '{printable(new)}' for {shown}"
        raise _error(found, "a unique new key for each sample", "Keep a part of the key that differs.")


def _rename_note(keys: PackedStrings, new_keys: PackedStrings) -> str:
    import pyarrow.compute as pc

    changed = arrow.true_positions(pc.not_equal(keys.array(), new_keys.array()))
    if not len(changed):
        return f"{option_text('rename_keys')} changes no key"
    first = f"'{printable(keys[int(changed[0])])}' -> '{printable(new_keys[int(changed[0])])}'"
    undo = f"undo with `reshard` and {option_text('rename_keys', OLD_KEY_COLUMN)}"
    return f"{pluralize(len(changed), 'key')} renamed: {format_list([first], 1, total=len(changed))} ({undo})"


def _show(keys: PackedStrings, positions: NDArray[np.int64]) -> str:
    first = [f"'{printable(keys[at])}'" for at in positions[:_MAX_LISTED_KEYS].tolist()]
    return format_list(first, _MAX_LISTED_KEYS, total=len(positions))


def _error(found: str, expected: str, remedy: str = "Nothing was written.") -> InvalidRequest:
    return InvalidRequest(option_text("rename_keys"), found, expected=expected, remedy=remedy)
