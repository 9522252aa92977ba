"""Write sidecars: encode an index, or a table, as a Parquet file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardtool.dataset.shard_index import ShardIndex, part_ends
from shardtool.dataset.sidecar_read import FORMAT_VERSION, METADATA_PREFIX, has_small_metadata, parse_sidecar
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

    # For reading, they are int32 where the shard is smaller than 2 GiB, which halves what an index takes.


_ROW_GROUP_SAMPLES = 2**17  # samples


def written_index(
    shard_format: str,
    content: ShardContent,
    columns: pa.Table | None,
    field_crcs: bytes,
    skipped: Sequence[int] = (),
    source_paths: bytes = b"",
) -> ShardIndex:
    """Return the index of a shard that was written.

    Args:
        shard_format: `tar` or `tfrecord`.
        content: What was planned.
        columns: Their metadata, if there are any.
        field_crcs: uint32 for each field that was written.
        skipped: The places of samples that were not.
        source_paths: The source's name of each field, a NUL after each; empty: they are no column.
    """
    counts = np.frombuffer(content.counts, np.uint16).astype(np.int64)
    codes, sizes = np.frombuffer(content.codes, np.uint16), np.frombuffer(content.stored, np.int64)
    keys, whole = content.keys, np.frombuffer(content.whole, np.bool_) if content.whole else None
    paths = source_paths[:-1].split(b"\0") if source_paths else []
    if skipped:
        stays = np.ones(len(counts), bool)
        stays[list(skipped)] = False
        rows = np.repeat(stays, counts)
        keys = b"".join(key + b"\0" for key, stay in zip(keys[:-1].split(b"\0"), stays, strict=True) if stay)
        paths = [path for path, stay in zip(paths, rows, strict=True) if stay] if paths else []
        counts, codes, sizes = counts[stays], codes[rows], sizes[rows]
        whole = None if whole is None else whole[rows]
        columns = None if columns is None else columns.take(number_array(np.flatnonzero(stays)))
    more = {} if columns is None else {name: columns.column(name) for name in columns.column_names}
    if source_paths:
        more["source_paths"] = string_list_column(paths, counts)
    metadata = pa.Table.from_arrays([*more.values()], names=[*more])
    texts, names, firsts = PackedStrings.parse(keys), tuple(name.decode() for name in content.fields), part_ends(counts)
    heads, tails = head_and_tail_sizes(shard_format, RecordColumns(texts, firsts, names, codes, sizes, whole))
    after = part_ends(heads + sizes + tails)
    starts = after[firsts]
    return ShardIndex(
        keys=keys.replace(b"\0", b""),
        key_ends=part_ends(texts.lengths()),
        starts=starts[:-1],
        sizes=np.diff(starts),
        firsts=firsts,
        names=names,
        codes=codes,
        offsets=after[:-1] + heads,
        lengths=sizes,
        crcs=np.frombuffer(field_crcs, np.uint32),
        metadata=metadata,
        schema=pa.schema([*SIDECAR_SCHEMA, *metadata.schema]),
    )


def encode_sidecar(index: ShardIndex, shard: ShardFacts) -> tuple[bytes, dict[str, str]]:
    """Return the sidecar's bytes, and its columns with their types.

    Raises:
        InvalidRequest: Its metadata takes more memory than a reader gives it.
    """
    table, more = index.plain_table(), index.metadata
    try:
        data = encode_sidecar_table(table, shard)
    except pa.ArrowNotImplementedError as error:  # objects without names
        raise InvalidRequest(shard.name, f"metadata that Parquet cannot hold: {error}") from None
    if more.num_columns and not has_small_metadata(data, more, shard.size):
        _check_readable(data, shard)
    # Parquet does not keep all of Arrow's types: what the dataset file says is what a reader gets.
    return data, column_types(
        pq.read_schema(pa.BufferReader(data)) if more.num_columns else with_shard_column(table.schema)
    )


def _check_readable(data: bytes, shard: ShardFacts) -> None:
    """Refuse a sidecar that would be taken for a trap: text that many samples share, longer than they are."""
    try:
        parse_sidecar(data, sidecar_name(shard.name), shard.size)
    except CorruptShard as error:
        found = error.found.removeprefix("no sidecar: ")
        remedy = f"Leave long columns out, or pack them: {option_text('values', 'txt=COLUMN')}."
        raise InvalidRequest(shard.name, found, remedy=remedy) from None


def encode_sidecar_table(table: pa.Table, shard: ShardFacts, version: int = FORMAT_VERSION) -> bytes:
    """Return the bytes of a sidecar.

    Args:
        table: Its rows, a `pyarrow.Table` with the columns of `SCHEMA`.
        shard: What it says of its shard.
        version: Of the format; 1 is written only to compare.
    """
    sink = pa.BufferOutputStream()
    facts = {"format_version": f"{version}", "shard": shard.name, "size": f"{shard.size}"}
    if shard.crc is not None:
        facts["crc32c"] = f"{shard.crc:08x}"
    if shard.plan:
        facts["plan"] = shard.plan
    if shard.shards is not None:
        facts |= {"first": shard.first, "shards": f"{shard.shards}"}
    if shard.made is not None:
        made = shard.made
        facts |= {"content": f"{made.content:064x}", "consumed": f"{made.consumed}"}
        facts |= {"dropped": f"{made.dropped}", "skipped": f"{made.skipped}"}
        if made.left_out:
            facts["left_out"] = pack_rows(made.left_out)
        facts["check"] = f"{crc32c(' '.join(facts.values()).encode()):08x}"  # what the plan cannot give again
    more = table.column_names[len(SIDECAR_SCHEMA) :]
    if version > 1:
        first = number_array(np.zeros(len(table), np.int8))
        names = pa.DictionaryArray.from_arrays(first, bytes_array([shard.name.encode()]))
        table = table.add_column(1, SHARD_COLUMN.with_type(names.type), names)
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        use_dictionary=["__fields__.list.element.name", SHARD_COLUMN.name, *more],
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        writer.write_table(table, row_group_size=_ROW_GROUP_SAMPLES)
        for name, value in facts.items():  # one by one: the order of a dict does not survive pyarrow's hash table
            writer.add_key_value_metadata({METADATA_PREFIX + name: value})
    return bytes(sink.getvalue().to_pybytes())


def string_list_column(names: list[bytes], counts: NDArray[np.int64]) -> pa.Array:
    """Return a list of strings a sample: the source's `names` in turn, `counts` at a time."""
    names = [quote_name(name).encode() for name in names]
    values = bytes_array(names)
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    kind = pa.list_(pa.field("element", pa.string(), nullable=False))
    return pa.ListArray.from_arrays(number_array(offsets), values, type=kind)
