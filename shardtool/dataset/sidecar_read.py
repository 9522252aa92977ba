"""Read untrusted sidecars.

A sidecar is rejected before decoding if its pages need more memory than the sizes of sidecar and shard allow (see
`parquet_bounds`).

Source: docs/format.md, "Sidecar"; docs/decisions/012-bounded-sidecars.md.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from shardtool.dataset.parquet_bounds import (
    BYTE_ARRAY,
    PARQUET_MAGIC,
    LeafMemory,
    ParquetFooter,
    leaf_memory,
    parse_footer,
)
from shardtool.dataset.shard_index import ShardIndex
from shardtool.dataset.sidecar_schema import OWN_COLUMNS, SHARD_COLUMN, SIDECAR_SCHEMA, ShardFacts, TransformFacts
from shardtool.entries.arrow import number_values
from shardtool.errors import CorruptShard, format_list, printable, raise_if_machine_error
from shardtool.fingerprint import crc32c
from shardtool.messages import call_text, recreate_hint
from shardtool.skipped import unpack_rows
from shardtool.storage.files import read_small, read_tail
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shardtool.dataset.dataset_file import ShardEntry


FORMAT_VERSION = 2
_READ_VERSIONS = (1, 2)  # version 1 has no column with the shard's name
METADATA_PREFIX = "shardtool."
_FIELD_LEAVES = [f"__fields__.list.element.{name}" for name in ("name", "offset", "length", "crc32c")]
_INDEX_LEAVES = ["__key__", "__offset__", "__size__", *_FIELD_LEAVES]
_FOOTER_READ_BYTES = 2**14
_MIN_FIELD_BYTES = 2
# maximum number of samples, and of fields, per byte of a sidecar (at most 1 in real sidecars)
_MAX_SAMPLES_PER_BYTE = 8
_SAMPLES_SLACK = 2**16
_INDEX_BYTES_PER_FIELD = 64
_INDEX_SLACK_BYTES = 2**24
_METADATA_SLACK_BYTES = 2**25
_MAX_BYTES_PER_BYTE = 64  # maximum decoded bytes per sidecar byte (for metadata, per byte of sidecar and shard)
_VERSION_KEY = f"{METADATA_PREFIX}format_version"
_ARROW_SCHEMA_KEY = "ARROW:schema"  # this key is rejected, because it changes how pyarrow decodes columns
_MAX_ERROR_LENGTH = 300


def _verify_advice() -> str:
    return f"`shardtool verify` lists all damage; {call_text('verify', repair=True)} repairs what it can."


def load_sidecar(path: str) -> bytes:
    """Return the bytes of a sidecar.

    Raises:
        OSError: The file cannot be read, is not a regular file, or is large and not a Parquet file.
    """
    return read_small(path, ending=PARQUET_MAGIC)


def parse_sidecar(data: bytes, where: str, size: int | None, *, metadata: bool = True) -> ShardIndex:
    """Parse a sidecar. `size` is the shard's size, which limits the decoded bytes, or None if the shard is missing.

    Raises:
        CorruptShard: The sidecar is invalid.
        MemoryError: The machine ran out of memory.
    """
    facts, footer = _parse_footer(data, where)
    try:
        return _parse_index(data, footer, facts, size or 0, metadata=metadata)
    except MemoryError:
        raise  # pyarrow's MemoryError is also an ArrowException
    except (ValueError, KeyError, IndexError, OverflowError, OSError, pa.ArrowException) as error:
        found = printable(str(error))[:_MAX_ERROR_LENGTH].strip().rstrip(".")
        raise CorruptShard(where, f"not a valid sidecar: {found}", remedy=recreate_hint()) from None


def has_small_metadata(data: bytes, metadata: pa.Table, size: int) -> bool:
    """Check whether readers accept the amount of metadata in a sidecar, without decoding the sidecar.

    Return False for dictionary-encoded columns, because their decoded size is unknown.
    """
    if any(pt.is_dictionary(column.type) for column in metadata.columns):
        return False
    leaves = leaf_memory(data, parse_footer(data))
    memory = sum(part.memory for part in leaves if part.leaf.top not in OWN_COLUMNS)
    return bool(max(memory, metadata.nbytes) <= max_metadata_bytes(size + len(data)))


def max_metadata_bytes(size: int) -> int:
    """Return the maximum bytes of decoded metadata. `size` is the total size of shard and sidecar."""
    return _METADATA_SLACK_BYTES + _MAX_BYTES_PER_BYTE * size


def parse_shard_sidecar(
    data: bytes, where: str, name: str, size: int | None, entry: ShardEntry | None = None, *, metadata: bool = True
) -> ShardIndex:
    """Parse a sidecar, and check that it matches the shard and the entry in the dataset file."""
    if entry is not None:
        check_listed_sidecar(data, where, entry)
    index = parse_sidecar(data, where, size, metadata=metadata)
    _check_same_shard(index.facts, where, name, size)
    if entry is not None and len(index) != entry.samples:
        found, expected = pluralize(len(index), "sample"), f"{entry.samples:,} samples, as listed in the dataset file"
        raise CorruptShard(where, found, expected=expected, remedy=_verify_advice())
    return index


def _check_same_shard(facts: ShardFacts, where: str, name: str, size: int | None) -> None:
    size = facts.size if size is None else size
    if (facts.name, facts.size) != (name, size):
        found = f"the index of {printable(facts.name)}, {facts.size:,} bytes"
        raise CorruptShard(where, found, expected=f"the index of {name}, {size:,} bytes", remedy=recreate_hint())


def check_listed_sidecar(data: bytes, where: str, entry: ShardEntry) -> None:
    """Raise an error if the size or checksum of a sidecar differs from the dataset file."""
    crc = crc32c(data)
    if (len(data), crc) != (entry.sidecar_size, entry.sidecar_crc):
        found = f"{len(data):,} bytes with CRC-32C {crc:08x}"
        expected = f"{entry.sidecar_size:,} bytes with CRC-32C {entry.sidecar_crc:08x}, as listed in the dataset file"
        raise CorruptShard(where, found, expected=expected, remedy=_verify_advice())


def check_offsets(index: ShardIndex, size: int) -> None:
    """Raise `ValueError` if samples or payloads overlap, or if a payload is outside its sample.

    Copying overlapping payloads could write more bytes than the shard has.
    """
    if any(np.any(column > size) for column in (index.starts, index.sizes, index.offsets, index.lengths)):
        # without this check, the sums below could overflow
        raise ValueError(f"offsets that do not fit a shard of {size:,} bytes")
    sample_ends, ends = index.starts + index.sizes, index.offsets + index.lengths
    if np.any(sample_ends > size) or np.any(sample_ends[:-1] > index.starts[1:]):
        raise ValueError(f"samples that overlap or exceed a shard of {size:,} bytes")
    starts_before = index.offsets < np.repeat(index.starts, index.counts)
    if np.any(starts_before | (ends > np.repeat(sample_ends, index.counts))):
        raise ValueError("payloads outside their samples")
    has_bytes = index.lengths > 0
    starts, ends = index.offsets[has_bytes], ends[has_bytes]
    if np.any(starts[1:] < ends[:-1]):
        order = np.argsort(starts)
        if np.any(starts[order][1:] < ends[order][:-1]):
            raise ValueError("payloads that overlap")


def _parse_index(data: bytes, footer: ParquetFooter, facts: ShardFacts, size: int, *, metadata: bool) -> ShardIndex:
    if _ARROW_SCHEMA_KEY in footer.key_values:
        raise ValueError("an Arrow schema, which shardtool does not write")
    top_names = [*dict.fromkeys(leaf.top for leaf in footer.leaves)]
    own_columns = SIDECAR_SCHEMA.names if int(footer.key_values[_VERSION_KEY]) == 1 else OWN_COLUMNS
    metadata_columns = [name for name in top_names if name not in own_columns]
    if reserved := [name for name in metadata_columns if name.startswith("__")]:
        raise ValueError(f"unknown columns: {format_list(reserved)}")
    leaves = leaf_memory(data, footer)
    max_metadata = max_metadata_bytes(size + len(data))
    max_index = _INDEX_SLACK_BYTES + _MAX_BYTES_PER_BYTE * len(data) + 2 * size
    max_samples = min(_SAMPLES_SLACK + _MAX_SAMPLES_PER_BYTE * len(data), facts.size // _MIN_FIELD_BYTES + 1)
    _check_counts(leaves, own_columns, footer.rows, max_samples)
    _check_index_memory(leaves, max_index)
    _check_metadata_memory(sum(part.memory for part in leaves if part.leaf.top in metadata_columns), max_metadata)
    table, schema = _decode_columns(data, leaves, [*own_columns, *(metadata_columns if metadata else ())])
    if schema.names != top_names or len(set(top_names)) < len(schema.names):
        raise ValueError("two columns with the same name")
    _check_types(table.schema)
    table.validate(full=True)
    if SHARD_COLUMN.name in own_columns:
        _check_shard_column(table.column(SHARD_COLUMN.name), facts.name)
    metadata_columns = [name for name in table.column_names if name not in own_columns]
    index = _index_columns(table, max_index)
    check_offsets(index, facts.size)
    decoded = sum(_decoded_bytes(chunk) for name in metadata_columns for chunk in table.column(name).chunks)
    _check_metadata_memory(decoded, max_metadata)
    return replace(index, facts=facts, metadata=table.select(metadata_columns), schema=schema)


def _check_shard_column(column: pa.ChunkedArray, name: str) -> None:
    if _plain_type(column.type) != SHARD_COLUMN.type:
        raise ValueError(f"a column {SHARD_COLUMN.name} of type {column.type}")
    for chunk in column.chunks:
        encoded = chunk if pt.is_dictionary(chunk.type) else chunk.dictionary_encode()
        used_codes = [] if encoded.null_count else np.flatnonzero(np.bincount(number_values(encoded.indices))).tolist()
        if encoded.null_count or any(encoded.dictionary[code].as_py() != name for code in used_codes):
            raise ValueError(f"rows that do not belong to {printable(name)}")


def _check_counts(leaves: Sequence[LeafMemory], own_columns: Sequence[str], rows: int, limit: int) -> None:
    values = {part.leaf.path: part.values for part in leaves if part.leaf.top in own_columns}
    expected_paths = [*_INDEX_LEAVES, SHARD_COLUMN.name] if SHARD_COLUMN.name in own_columns else _INDEX_LEAVES
    if sorted(values) != sorted(expected_paths):
        raise ValueError("missing or unknown columns")
    fields = values[_FIELD_LEAVES[0]]
    if any(values[path] != fields for path in _FIELD_LEAVES):
        raise ValueError("columns of unequal length")
    if rows > limit or fields > limit + rows:  # `fields` also counts empty lists, at most one per sample
        raise ValueError(f"{rows:,} samples with {fields:,} fields, more than the sizes of sidecar and shard allow")


def _check_index_memory(leaves: Sequence[LeafMemory], limit: int) -> None:
    index_leaves = [part for part in leaves if part.leaf.top in OWN_COLUMNS]
    uncompressed, values = sum(part.uncompressed for part in index_leaves), max(part.values for part in index_leaves)
    if uncompressed > limit + _INDEX_BYTES_PER_FIELD * values:
        raise ValueError(f"{uncompressed:,} bytes of index, more than the sizes of sidecar and shard allow")


def _check_metadata_memory(size: int, limit: int) -> None:
    if size > limit:
        allowed = f"the {limit:,} that the sizes of sidecar and shard allow"
        raise ValueError(f"{size:,} bytes of metadata, more than {allowed}")


def _decode_columns(data: bytes, leaves: Sequence[LeafMemory], requested: Sequence[str]) -> tuple[pa.Table, pa.Schema]:
    column_indices = [index for index, part in enumerate(leaves) if part.leaf.top in requested]
    dictionary_columns = [part.leaf.path for part in leaves if part.is_dictionary and part.leaf.kind == BYTE_ARRAY]
    reader = _open_parquet(data, read_dictionary=dictionary_columns, page_checksum_verification=True)
    # pyarrow 26.0.1 cannot read lists from several row groups in one call
    read = partial(reader.read_row_group, column_indices=column_indices, use_threads=False)
    groups = [read(index) for index in range(reader.num_row_groups)]
    table = pa.concat_tables(groups) if groups else reader.schema_arrow.empty_table().select(requested)
    return table.replace_schema_metadata(None).combine_chunks().select(requested), _stored_schema(reader)


def _open_parquet(data: bytes, **options: Any) -> Any:
    # `pyarrow.parquet` imports all file systems of pyarrow, which takes 12 ms
    try:
        from pyarrow._parquet import ParquetReader

        reader = ParquetReader()
        reader.open(pa.BufferReader(data), **options)
    except (ImportError, TypeError, AttributeError):  # `_parquet` is private and may change
        from pyarrow.parquet import ParquetFile

        reader = ParquetFile(pa.BufferReader(data), **options).reader
    return reader


def parquet_schema(data: bytes) -> pa.Schema:
    """Return the schema of a Parquet file, without key-value metadata. `data` may be only the footer."""
    return _stored_schema(_open_parquet(data))


def _stored_schema(reader: Any) -> pa.Schema:
    return reader.metadata.schema.to_arrow_schema().remove_metadata()


def _index_columns(table: pa.Table, limit: int) -> ShardIndex:
    keys, lists = _single_chunk(table, "__key__"), _single_chunk(table, "__fields__")
    if pt.is_dictionary(keys.type):
        if _decoded_bytes(keys) > limit:
            raise ValueError("keys that are longer than the shard")
        keys = keys.dictionary_decode()
    if keys.null_count or lists.null_count:
        raise ValueError("a sample without a key or fields")
    list_offsets = number_values(lists.offsets).astype(np.int64)
    fields = lists.values[int(list_offsets[0]) : int(list_offsets[-1])]  # `flatten` would import pyarrow.compute
    names = fields.field("name")
    if not pt.is_dictionary(names.type):
        names = names.dictionary_encode()
    if fields.null_count or names.null_count or names.dictionary.null_count:
        raise ValueError("a field without a name")
    crcs = fields.field("crc32c")
    key_bytes, key_offsets = _string_bytes(keys)
    return ShardIndex(
        keys=key_bytes,
        key_offsets=key_offsets,
        starts=_to_numbers(_single_chunk(table, "__offset__")),
        sizes=_to_numbers(_single_chunk(table, "__size__")),
        first_rows=list_offsets - list_offsets[0],
        names=tuple(names.dictionary.to_pylist()),
        codes=number_values(names.indices).astype(np.int64),
        offsets=_to_numbers(fields.field("offset")),
        lengths=_to_numbers(fields.field("length")),
        crcs=None if crcs.null_count else number_values(crcs).astype(np.uint32),
    )


def _single_chunk(table: pa.Table, name: str) -> pa.Array:
    chunks = table.column(name).chunks
    if len(chunks) > 1:
        raise ValueError(f"{name} of more than 2 GB")
    return chunks[0] if chunks else pa.array([], table.schema.field(name).type)


def _check_types(schema: pa.Schema) -> None:
    fields_type = schema.field("__fields__").type
    element_type = fields_type.value_type if pt.is_list(fields_type) else fields_type
    fields = element_type if pt.is_struct(element_type) else ()
    field_types = [(column.name, _plain_type(column.type)) for column in fields]
    expected_types = [(column.name, column.type) for column in SIDECAR_SCHEMA.field("__fields__").type.value_type]
    scalar_columns = [*SIDECAR_SCHEMA][:-1]
    is_expected = all(_plain_type(schema.field(column.name).type) == column.type for column in scalar_columns)
    if not pt.is_list(fields_type) or field_types != expected_types or not is_expected:
        raise ValueError(f"unexpected column types: {[str(column) for column in schema.types]}")


def _plain_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pt.is_dictionary(kind) else kind


def _to_numbers(column: pa.Array) -> NDArray[np.int64]:
    if column.null_count:
        raise ValueError("a null instead of a number")
    values = number_values(column)
    if len(values) and values.max() >= 2**63:
        raise ValueError(f"a number above 2**63: {values.max()}")
    return np.asarray(values.view(np.int64))


def _string_bytes(column: pa.Array) -> tuple[bytes, NDArray[np.int64]]:
    if not len(column):
        return b"", np.zeros(1, np.int64)
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset).astype(np.int64)
    content = bytes(memoryview(data)[int(ends[0]) : int(ends[-1])]) if data is not None else b""
    return content, ends - ends[0]


def _decoded_bytes(array: pa.Array) -> int:
    array_type = array.type
    if pt.is_dictionary(array_type):
        import pyarrow.compute as pc

        lengths = number_values(pc.binary_length(array.dictionary))
        return int(lengths[number_values(array.indices.drop_null())].sum(dtype=np.int64)) if len(lengths) else 0
    if pt.is_struct(array_type):
        return sum(_decoded_bytes(array.field(index)) for index in range(array_type.num_fields))
    if pt.is_map(array_type):
        return _decoded_bytes(array.keys) + _decoded_bytes(array.items)
    return _decoded_bytes(array.values) if pt.is_list(array_type) else 0


def parse_facts(data: bytes, name: str) -> ShardFacts:
    """Return the `ShardFacts` in the footer of a sidecar."""
    return _parse_footer(data, name)[0]


def read_sample_count(path: str, name: str, size: int | None) -> tuple[int, ShardFacts]:
    """Return the sample count and the `ShardFacts` in the footer of a sidecar."""
    facts, footer = _parse_footer(_read_footer_bytes(path), path)
    _check_same_shard(facts, path, name, size)
    return footer.rows, facts


def read_sidecar_schema(path: str) -> pa.Schema:
    """Return the schema in the footer of a sidecar."""
    try:
        return parquet_schema(_read_footer_bytes(path))
    except MemoryError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise_if_machine_error(error, path)
        raise CorruptShard(path, f"not a valid sidecar: {error}", remedy=recreate_hint()) from None


def _read_footer_bytes(path: str) -> bytes:
    data = read_tail(path, _FOOTER_READ_BYTES)
    if data[-4:] != PARQUET_MAGIC or len(data) < _FOOTER_READ_BYTES:
        return data
    size = int.from_bytes(data[-8:-4], "little") + 12  # `parse_footer` expects 12 more bytes
    return read_tail(path, size) if size > _FOOTER_READ_BYTES else data


def _parse_footer(data: bytes, name: str) -> tuple[ShardFacts, ParquetFooter]:
    try:
        footer = parse_footer(data)
        values = {key.removeprefix(METADATA_PREFIX): value for key, value in footer.key_values.items()}
        version = int(values["format_version"])
        transform = None
        if "consumed" in values:
            counts = int(values["consumed"]), int(values["dropped"]), int(values["skipped"])
            skipped_rows = unpack_rows(values["left_out"]) if "left_out" in values else ()
            transform = TransformFacts(int(values["content"], 16), *counts, skipped_rows)
        crc = int(values["crc32c"], 16) if "crc32c" in values else None
        shards = int(values["shards"]) if "shards" in values else None
        plan, first = values.get("plan", ""), values.get("first", "")
        facts = ShardFacts(values["shard"], int(values["size"]), crc, plan, transform, first, shards)
        _check_numbers(facts)
    except (KeyError, ValueError) as error:
        problem = f"{METADATA_PREFIX}{error.args[0]} is missing" if isinstance(error, KeyError) else error
        raise CorruptShard(name, f"not a valid sidecar: {problem}", remedy=recreate_hint()) from None
    if version not in _READ_VERSIONS:
        found = f"format version {version}"
        raise CorruptShard(name, found, expected=f"at most {_READ_VERSIONS[-1]}", remedy="Use a newer shardtool.")
    return facts, footer


def _check_numbers(facts: ShardFacts) -> None:
    transform = facts.transform or TransformFacts(digest=0, consumed=0, dropped=0, skipped=0)
    counts = (facts.size, transform.consumed, transform.dropped, transform.skipped)
    if not all(0 <= count < 2**63 for count in counts):
        raise ValueError("an impossible size or count")
    if not 0 <= (facts.crc or 0) < 2**32 or not 0 <= transform.digest < 2**256:
        raise ValueError("an invalid checksum")
    if transform.skipped_rows and len(transform.skipped_rows) != transform.skipped:
        raise ValueError("a list of skipped samples whose length differs from their recorded number")
