"""Read the columns of a manifest that contain payloads."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries import arrow
from shardtool.entries.sample_table import FieldSpans, SampleTable
from shardtool.errors import SampleFailed
from shardtool.messages import flag_text
from shardtool.shard_samples import SPAN
from shardtool.source.manifest.paths import CHUNK_ROWS
from shardtool.source.manifest.roles import ending_of_bytes, path_ending
from shardtool.table import keys
from shardtool.table.base import reading_table
from shardtool.table.columns import is_text_type, is_wrapped_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardtool.entries.strings import PackedStrings
    from shardtool.source.base import Writable
    from shardtool.table.base import Table
    from shardtool.values import Dots

    Rows = NDArray[np.int64]

_BATCH_ROWS = 256
_LAST_ENDING = r"(?s)([^/])\.[^./]*$"


def first_ending(table: Table, column: str, dots: Dots) -> str:
    """Return the extension of the first value in a column of `struct<bytes, path>`, or ""."""
    if _has_paths(table.schema.field(column).type):
        with reading_table(table.location):
            for batch in table.batches([column]):
                first = batch.column(0).slice(0, 1)
                first.validate(full=True)
                for value in first.to_pylist():
                    path = (value or {}).get("path")
                    data = (value or {}).get("bytes") or b""
                    return path_ending(path, dots) or ending_of_bytes(data)
    return ""


def _has_paths(kind: pa.DataType) -> bool:
    return is_wrapped_bytes(kind) and bool(kind.get_field_index("path") >= 0)


class BytesColumns:
    """Reads columns of payloads.

    `rows` contains the ascending numbers of the selected rows, or is None for all rows.
    """

    def __init__(self, table: Table, names: list[str]) -> None:
        self._table, self._names = table, names

    def _batches(self, rows: Rows | None) -> Iterator[list[pa.Array]]:
        first_row = 0
        with reading_table(self._table.location):
            for batch in self._table.batches(self._names):
                for first in range(0, batch.num_rows, _BATCH_ROWS):
                    piece = batch.slice(first, _BATCH_ROWS)
                    piece.validate(full=True)  # when pyarrow reads a table, it does not check the offsets of values
                    arrays = [_to_bytes(piece.column(column)) for column in range(len(self._names))]
                    if rows is not None:
                        low, high = np.searchsorted(rows, (first_row, first_row + len(piece)))
                        selected = arrow.number_array(rows[low:high] - first_row)
                        arrays = [array.take(selected) for array in arrays]
                    first_row += len(piece)
                    yield arrays

    def measure(self, rows: Rows | None) -> list[Rows]:
        """Return the lengths of each column's values. The length of a null is -1."""
        lengths_of_columns = [[np.zeros(0, np.int64)] for _ in self._names]
        for batch in self._batches(rows) if self._names else ():
            for array, lengths in zip(batch, lengths_of_columns, strict=True):
                lengths.append(arrow.byte_lengths(array))
                if array.null_count:
                    lengths[-1][arrow.true_positions(pc.is_null(array))] = -1
        return [np.concatenate(lengths) for lengths in lengths_of_columns]

    def write_payloads(self, file: Writable, rows: Rows | None, lengths: list[Rows]) -> None:
        """Write the values row by row. Raise `SampleFailed` if a value does not have its measured length."""
        row = 0
        for batch in self._batches(rows) if lengths else ():
            planned = [column[row : row + len(batch[0])] for column in lengths]
            self._check_unchanged(same=all(map(np.array_equal, map(arrow.byte_lengths, batch), planned)))
            _write_rows(file, batch, planned)
            row += len(batch[0])
        self._check_unchanged(same=all(len(column) == row for column in lengths))

    def _check_unchanged(self, *, same: bool) -> None:
        if not same:
            found, expected = "changed while it was packed", "a table that does not change during the run"
            remedy = f"Run again with {flag_text('resume')}."
            raise SampleFailed(self._table.location, found, expected=expected, remedy=remedy)

    @cached_property
    def path_stems(self) -> PackedStrings | None:
        """The paths without extensions as keys, or None if a key would be missing, invalid or repeated."""
        column = next((name for name in self._names if _has_paths(self._table.schema.field(name).type)), None)
        if column is None:
            return None
        with reading_table(self._table.location):
            parts = [*self._table.iter_struct_field(column, "path")]
            for part in parts:
                part.validate(full=True)
        if not parts or not is_text_type(parts[0].type) or any(part.null_count for part in parts):
            return None
        chunks = (part.slice(start, CHUNK_ROWS) for part in parts for start in range(0, len(part), CHUNK_ROWS))
        texts = (pc.cast(chunk, pa.large_string()) for chunk in chunks)
        stems, bad = keys.gather_keys(pc.replace_substring_regex(text, _LAST_ENDING, r"\1") for text in texts)
        return None if len(bad) or (keys.may_repeat(stems) and keys.find_repeated(stems)) else stems


def _to_bytes(array: pa.Array) -> pa.Array:
    if is_wrapped_bytes(array.type):
        array = array.flatten()[array.type.get_field_index("bytes")]
    array = arrow.to_plain(array)
    return pc.cast(array, pa.binary()) if pa.types.is_fixed_size_binary(array.type) else array


def _write_rows(file: Writable, batch: list[pa.Array], lengths: list[Rows]) -> None:
    if len(batch) == 1:
        file.write(arrow.concat_values(batch[0]))
        return
    columns = []
    for array, sizes in zip(batch, lengths, strict=True):
        data, ends = arrow.concat_values(array), np.cumsum(sizes)
        columns.append([data[start:end] for start, end in zip((ends - sizes).tolist(), ends.tolist(), strict=True)])
    for row in zip(*columns, strict=True):
        for value in row:
            file.write(value)


def written_spans(entries: SampleTable) -> FieldSpans:
    """Return the location of each payload in the file that `BytesColumns.write_payloads` writes."""
    spans = entries.rows.kind == SPAN
    sizes = np.where(spans, entries.rows.size, 0)
    offset = np.where(spans, np.cumsum(sizes) - sizes, 0)
    first, unknown = np.broadcast_to(np.uint32(0), len(entries)), np.broadcast_to(np.int64(-1), len(offset))
    return FieldSpans(files=(), file=first, offset=offset, crc=unknown)
