"""Payloads stored in the binary columns of a manifest.

They are read twice, and never all in memory: measured for the plan, then written for the workers row by row, in the
order of the field names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries import arrow
from shardtool.entries.sample_table import FieldSpans, SampleTable
from shardtool.shard_samples import SPAN
from shardtool.table import columns as tables

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardtool.source.base import Writable


BINARY_BATCH_ROWS = 256  # limits the memory of copies


def binary_spans(entries: SampleTable) -> FieldSpans:
    """Return the offsets of the payloads in the file that `write_binary_rows` writes."""
    spans = entries.rows.kind == SPAN
    sizes = np.where(spans, entries.rows.size, 0)
    offset = np.where(spans, np.cumsum(sizes) - sizes, 0)
    first, unknown = np.broadcast_to(np.uint32(0), len(entries)), np.broadcast_to(np.int64(-1), len(offset))
    return FieldSpans(files=(), file=first, offset=offset, expected=unknown)


def binary_values(array: pa.Array) -> pa.Array:
    """Return the bytes of a column of bytes, of text, or of `struct<bytes, path>`."""
    if tables.is_wrapped_bytes(array.type):
        array = array.flatten()[array.type.get_field_index("bytes")]
    array = arrow.to_plain(array)
    return pc.cast(array, pa.binary()) if pa.types.is_fixed_size_binary(array.type) else array


def write_binary_rows(file: Writable, batch: list[pa.Array], lengths: list[NDArray[np.int64]]) -> None:
    """Write the values of columns, row by row."""
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
