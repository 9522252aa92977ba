"""Encode the index of a shard as a sidecar."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from shardtool.dataset.shard_index import ShardIndex, part_offsets
from shardtool.dataset.sidecar_read import (
    FORMAT_VERSION,
    METADATA_PREFIX,
    has_small_metadata,
    parquet_schema,
    parse_sidecar,
)
from shardtool.dataset.sidecar_schema import SHARD_COLUMN, SIDECAR_SCHEMA, ShardFacts, column_types, with_shard_column
from shardtool.entries.arrow import bytes_array, number_array
from shardtool.entries.record_sizes import RecordColumns, head_and_tail_sizes
from shardtool.entries.strings import PackedStrings
from shardtool.errors import CorruptShard, InvalidRequest
from shardtool.fingerprint import crc32c
from shardtool.messages import option_text
from shardtool.names import quote_name
from shardtool.pattern import sidecar_name
from shardtool.skipped import pack_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shardtool.shard_samples import ShardContent


_ROW_GROUP_SAMPLES = 2**17


def written_index(
    shard_format: str,
    content: ShardContent,
    columns: pa.Table | None,
    field_crcs: bytes,
    skipped: Sequence[int] = (),
    source_paths: bytes = b"",
) -> ShardIndex:
    """Compute the index of a shard that was written from the planned `content`.

    Args:
        columns: The metadata of the planned samples.
        skipped: Indexes of planned samples that were not written.
        source_paths: The NUL-terminated source path of each field, or b"" to store no paths.
    """
    counts = np.frombuffer(content.counts, np.uint16).astype(np.int64)
    codes, sizes = np.frombuffer(content.codes, np.uint16), np.frombuffer(content.stored_sizes, np.int64)
    keys = content.keys
    is_list = np.frombuffer(content.is_list, np.bool_) if content.is_list else None
    paths = source_paths[:-1].split(b"\0") if source_paths else []
    if skipped:
        is_written = np.ones(len(counts), bool)
        is_written[list(skipped)] = False
        rows = np.repeat(is_written, counts)
        keys = b"".join(key + b"\0" for key, written in zip(keys[:-1].split(b"\0"), is_written, strict=True) if written)
        paths = [path for path, written in zip(paths, rows, strict=True) if written] if paths else []
        counts, codes, sizes = counts[is_written], codes[rows], sizes[rows]
        is_list = None if is_list is None else is_list[rows]
        columns = None if columns is None else columns.take(number_array(np.flatnonzero(is_written)))
    metadata_columns = {} if columns is None else {name: columns.column(name) for name in columns.column_names}
    if source_paths:
        metadata_columns["source_paths"] = string_list_column(paths, counts)
    metadata = pa.Table.from_arrays([*metadata_columns.values()], names=[*metadata_columns])
    packed_keys, first_rows = PackedStrings.parse(keys), part_offsets(counts)
    # A field name may not be UTF-8 if only excluded samples have the field.
    names = tuple(name.decode("utf-8", "replace") for name in content.fields)
    records = RecordColumns(packed_keys, first_rows, names, codes, sizes, is_list)
    head_sizes, tail_sizes = head_and_tail_sizes(shard_format, records)
    record_ends = part_offsets(head_sizes + sizes + tail_sizes)
    starts = record_ends[first_rows]
    return ShardIndex(
        keys=keys.replace(b"\0", b""),
        key_offsets=part_offsets(packed_keys.lengths()),
        starts=starts[:-1],
        sizes=np.diff(starts),
        first_rows=first_rows,
        names=names,
        codes=codes,
        offsets=record_ends[:-1] + head_sizes,
        lengths=sizes,
        crcs=np.frombuffer(field_crcs, np.uint32),
        metadata=metadata,
        schema=pa.schema([*SIDECAR_SCHEMA, *metadata.schema]),
    )


def encode_sidecar(index: ShardIndex, shard: ShardFacts) -> tuple[bytes, dict[str, str]]:
    """Return the sidecar's bytes, and its column types."""
    table, metadata = index.plain_table(), index.metadata
    try:
        data = encode_sidecar_table(table, shard)
    except pa.ArrowNotImplementedError as error:  # Parquet cannot store a struct without fields
        raise InvalidRequest(shard.name, f"metadata that Parquet cannot store: {error}") from None
    if metadata.num_columns and not has_small_metadata(data, metadata, shard.size):
        _check_readable(data, shard)
    # Return the types that readers get, because Parquet does not preserve all Arrow types.
    return data, column_types(parquet_schema(data) if metadata.num_columns else with_shard_column(table.schema))


def _check_readable(data: bytes, shard: ShardFacts) -> None:
    # Readers may reject a sidecar in which many samples share a long string, so fail now.
    try:
        parse_sidecar(data, sidecar_name(shard.name), shard.size)
    except CorruptShard as error:
        found = error.found.removeprefix("not a valid sidecar: ")
        remedy = f"Exclude long columns, or pack them with {option_text('field', 'txt=COLUMN')}."
        raise InvalidRequest(shard.name, found, remedy=remedy) from None


def encode_sidecar_table(table: pa.Table, shard: ShardFacts, version: int = FORMAT_VERSION) -> bytes:
    """Return the bytes of a sidecar. `table` starts with the columns of `SIDECAR_SCHEMA`."""
    from pyarrow.parquet import ParquetWriter

    sink = pa.BufferOutputStream()
    facts = {"format_version": f"{version}", "shard": shard.name, "size": f"{shard.size}"}
    if shard.crc is not None:
        facts["crc32c"] = f"{shard.crc:08x}"
    if shard.plan:
        facts["plan"] = shard.plan
    if shard.shards is not None:
        facts |= {"first": shard.first, "shards": f"{shard.shards}"}
    if (transform := shard.transform) is not None:
        facts |= {"content": f"{transform.digest:064x}", "consumed": f"{transform.consumed}"}
        facts |= {"dropped": f"{transform.dropped}", "skipped": f"{transform.skipped}"}
        if transform.skipped_rows:
            facts["left_out"] = pack_rows(transform.skipped_rows)
        # `--resume` encodes these facts again and compares the bytes, so this checksum reveals a changed fact.
        facts["check"] = f"{crc32c(' '.join(facts.values()).encode()):08x}"
    metadata_columns = table.column_names[len(SIDECAR_SCHEMA) :]
    if version > 1:
        codes = number_array(np.zeros(len(table), np.int8))
        names = pa.DictionaryArray.from_arrays(codes, bytes_array([shard.name.encode()]))
        table = table.add_column(1, SHARD_COLUMN.with_type(names.type), names)
    with ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        use_dictionary=["__fields__.list.element.name", SHARD_COLUMN.name, *metadata_columns],
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        writer.write_table(table, row_group_size=_ROW_GROUP_SAMPLES)
        for name, value in facts.items():  # pyarrow does not keep the order of a dict
            writer.add_key_value_metadata({METADATA_PREFIX + name: value})
    return bytes(sink.getvalue().to_pybytes())


def string_list_column(names: list[bytes], counts: NDArray[np.int64]) -> pa.Array:
    """Return a column of lists of strings. `counts` has the number of strings in each list."""
    values = bytes_array([quote_name(name).encode() for name in names])
    kind = pa.list_(pa.field("element", pa.string(), nullable=False))
    return pa.ListArray.from_arrays(number_array(part_offsets(counts).astype(np.int32)), values, type=kind)
