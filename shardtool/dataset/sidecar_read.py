"""Read sidecars, which are untrusted.

Before pyarrow decodes a page, `parquet_bounds` adds up the memory that all pages need; it must be in proportion to
the sidecar and its shard. The index must fit the shard: samples follow each other, each payload is inside its
sample,
and payloads do not overlap. Dictionary-encoded text stays encoded until it is needed, and its size is checked
before
it is decoded. `MemoryError` means that memory ran out, not that the sidecar is damaged.

Source: docs/format.md, "Sidecar"; docs/decisions/012-bounded-sidecars.md.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
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

    # For reading, they are int32 where the shard is smaller than 2 GiB, which halves what an index takes.


FORMAT_VERSION = 2


READ_VERSIONS = (1, 2)  # version 1 is without the column that names the shard


METADATA_PREFIX = "shardtool."


_FIELD_LEAVES = [f"__fields__.list.element.{name}" for name in ("name", "offset", "length", "crc32c")]


_INDEX_LEAVES = ["__key__", "__offset__", "__size__", *_FIELD_LEAVES]


_FOOTER_READ_BYTES = 2**14  # bytes at the end of a sidecar, which nearly always hold its footer


_MIN_FIELD_BYTES = 2  # bytes of a shard that a field takes, at the least; a sample takes more


_MAX_SAMPLES_PER_BYTE = 8  # samples, and fields, a byte of a sidecar: the most regular ones have one (measured)


_SAMPLES_SLACK = 2**16  # samples, or fields, that any sidecar may have


_INDEX_BYTES_PER_FIELD = 64  # bytes of index a field, without its name and its sample's key


_INDEX_SLACK_BYTES = 2**24  # bytes that the index in any sidecar may take


_METADATA_SLACK_BYTES = 2**25  # bytes that metadata in any sidecar may take


_MAX_BYTES_PER_BYTE = 64  # bytes that either may take, more, a byte of the sidecar; metadata also a byte of the shard


_VERSION_KEY = f"{METADATA_PREFIX}format_version"


_ARROW_SCHEMA_KEY = "ARROW:schema"  # would change how columns are read; sidecars are written without one


_MAX_ERROR_LENGTH = 300  # characters of what pyarrow says


def _verify_advice() -> str:
    return f"`shardtool verify` tells what is wrong; {call_text('verify', repair=True)} mends what can be mended."


def load_sidecar(path: str) -> bytes:
    """Return the bytes of the file that has a sidecar's name, if it can be one.

    Raises:
        OSError: It is not there, no plain file, or cannot be read.
    """
    return read_small(path, ending=PARQUET_MAGIC)


def parse_sidecar(data: bytes, where: str, size: int | None, *, metadata: bool = True) -> ShardIndex:
    """Return what a sidecar says, if its parts fit each other and what it takes in memory fits its shard.

    Args:
        data: Its bytes.
        where: Its path, for messages.
        size: Bytes of the shard that is there, None where there is none: more metadata is believed of a larger one.
        metadata: Whether the columns of metadata are wanted, too.

    Raises:
        CorruptShard: They do not.
        MemoryError: There is no memory for it; that says nothing of the sidecar.
    """
    fact, footer = _parse_footer(data, where)
    try:
        return _parse_index(data, footer, fact, size or 0, metadata=metadata)
    except MemoryError:
        raise  # of pyarrow, it is an ArrowException, too
    except (ValueError, KeyError, IndexError, OverflowError, OSError, pa.ArrowException) as error:
        found = printable(str(error))[:_MAX_ERROR_LENGTH].strip().rstrip(".")
        raise CorruptShard(where, f"no sidecar: {found}", remedy=recreate_hint()) from None


def has_small_metadata(data: bytes, metadata: pa.Table, size: int) -> bool:
    """Tell, without decoding it, whether a reader surely takes the metadata of a sidecar of ours.

    Args:
        data: The sidecar's bytes.
        metadata: Its metadata.
        size: Bytes of its shard.
    """
    if any(pt.is_dictionary(column.type) for column in metadata.columns):
        return False
    extents = leaf_memory(data, parse_footer(data))
    memory = sum(one.memory for one in extents if one.leaf.top not in OWN_COLUMNS)
    return bool(max(memory, metadata.nbytes) <= max_metadata_bytes(size + len(data)))


def max_metadata_bytes(size: int) -> int:
    """Return the memory that the metadata of a shard may take which has, with its sidecar, `size` bytes."""
    return _METADATA_SLACK_BYTES + _MAX_BYTES_PER_BYTE * size


def parse_shard_sidecar(
    data: bytes, where: str, name: str, size: int | None, entry: ShardEntry | None = None, *, metadata: bool = True
) -> ShardIndex:
    """Return what the sidecar of a shard says, if it is about that shard, and is the one that the dataset file lists.

    Args:
        data: Its bytes.
        where: Its path, for messages.
        name: The file name of the shard.
        size: Bytes of the shard; None where it is not there.
        entry: What the dataset file says of it; None: none of ours does.
        metadata: Whether the columns of metadata are wanted, too.

    Raises:
        CorruptShard: It is damaged, about another shard, or another one than is listed.
        MemoryError: There is no memory for it; that says nothing of the sidecar.
    """
    if entry is not None:
        check_listed_sidecar(data, where, entry)
    index = parse_sidecar(data, where, size, metadata=metadata)
    _check_same_shard(index.fact, where, name, size)
    if entry is not None and len(index) != entry.samples:
        found, expected = pluralize(len(index), "sample"), f"{entry.samples:,}, as the dataset file says"
        raise CorruptShard(where, found, expected=expected, remedy=_verify_advice())
    return index


def _check_same_shard(fact: ShardFacts, where: str, name: str, size: int | None) -> None:
    """Check that a sidecar is about the shard beside it; of one that is not there, that it has its name."""
    size = fact.size if size is None else size
    if (fact.name, fact.size) != (name, size):
        found, expected = f"the index of {printable(fact.name)}, {fact.size:,} bytes", f"that of {name}, {size:,} bytes"
        raise CorruptShard(where, found, expected=expected, remedy=recreate_hint())


def check_listed_sidecar(data: bytes, where: str, entry: ShardEntry) -> None:
    """Check that the bytes of a sidecar are those that the dataset file lists.

    Raises:
        CorruptShard: They are others.
    """
    crc = crc32c(data)
    if (len(data), crc) != (entry.sidecar_size, entry.sidecar_crc):
        found = f"{len(data):,} bytes with the CRC-32C {crc:08x}"
        expected = f"{entry.sidecar_size:,} bytes with {entry.sidecar_crc:08x}, as the dataset file says"
        raise CorruptShard(where, found, expected=expected, remedy=_verify_advice())


def check_offsets(index: ShardIndex, size: int) -> None:
    """Check that samples follow each other in a shard, payloads lie in their samples, and no two share a byte.

    Args:
        index: Where they lie.
        size: Bytes of the shard.

    Raises:
        ValueError: They do not: a copy of such payloads would be larger than the shard.
    """
    if any(np.any(column > size) for column in (index.starts, index.sizes, index.offsets, index.lengths)):
        raise ValueError(f"offsets that do not fit a shard of {size:,} bytes")  # so that no sum overflows
    ends, stops = index.starts + index.sizes, index.offsets + index.lengths
    if np.any(ends > size) or np.any(ends[:-1] > index.starts[1:]):
        raise ValueError(f"samples that do not follow each other in a shard of {size:,} bytes")
    outside = (index.offsets < np.repeat(index.starts, index.counts)) | (stops > np.repeat(ends, index.counts))
    if np.any(outside):
        raise ValueError("payloads outside of their samples")
    filled = index.lengths > 0
    starts, stops = index.offsets[filled], stops[filled]
    if np.any(starts[1:] < stops[:-1]):  # out of order, or worse
        order = np.argsort(starts)
        if np.any(starts[order][1:] < stops[order][:-1]):
            raise ValueError("payloads that overlap")


def _parse_index(data: bytes, footer: ParquetFooter, fact: ShardFacts, size: int, *, metadata: bool) -> ShardIndex:
    if _ARROW_SCHEMA_KEY in footer.facts:
        raise ValueError("a schema of Arrow, which no sidecar has")
    tops = [*dict.fromkeys(leaf.top for leaf in footer.leaves)]
    own = SIDECAR_SCHEMA.names if int(footer.facts[_VERSION_KEY]) == 1 else OWN_COLUMNS
    more = [name for name in tops if name not in own]
    if bad := [name for name in more if name.startswith("__")]:
        raise ValueError(f"columns that no sidecar has: {format_list(bad)}")
    extents = leaf_memory(data, footer)
    most = max_metadata_bytes(size + len(data))
    most_index = _INDEX_SLACK_BYTES + _MAX_BYTES_PER_BYTE * len(data) + 2 * size
    _check_counts(
        extents,
        own,
        footer.rows,
        min(_SAMPLES_SLACK + _MAX_SAMPLES_PER_BYTE * len(data), fact.size // _MIN_FIELD_BYTES + 1),
    )
    _check_index_memory(extents, most_index)
    _check_metadata_memory(sum(one.memory for one in extents if one.leaf.top in more), most)
    wanted = [*own, *(more if metadata else ())]
    table, schema = _decode_columns(data, extents, wanted)
    if schema.names != tops or len(set(tops)) < len(schema.names):
        raise ValueError("two columns of one name")
    _check_types(table.schema)
    table.validate(full=True)
    if SHARD_COLUMN.name in own:
        _check_shard_column(table.column(SHARD_COLUMN.name), fact.name)
    more = [name for name in table.column_names if name not in own]
    index = _index_columns(table, most_index)
    check_offsets(index, fact.size)
    _check_metadata_memory(sum(_decoded_bytes(chunk) for name in more for chunk in table.column(name).chunks), most)
    return replace(index, fact=fact, metadata=table.select(more), schema=schema)


def _check_shard_column(column: pa.ChunkedArray, name: str) -> None:
    """Check that every row names the shard."""
    if _plain_type(column.type) != SHARD_COLUMN.type:
        raise ValueError(f"a column {SHARD_COLUMN.name} of {column.type}")
    for chunk in column.chunks:
        coded = chunk if pt.is_dictionary(chunk.type) else chunk.dictionary_encode()
        used = [] if coded.null_count else np.flatnonzero(np.bincount(number_values(coded.indices))).tolist()
        if coded.null_count or any(coded.dictionary[code].as_py() != name for code in used):
            raise ValueError(f"rows of other shards than {printable(name)}")


def _check_counts(extents: Sequence[LeafMemory], own: Sequence[str], rows: int, most: int) -> None:
    """Check that a sidecar has its own columns, of at most so many samples and fields."""
    values = {one.leaf.path: one.values for one in extents if one.leaf.top in own}
    if sorted(values) != sorted(_INDEX_LEAVES + [SHARD_COLUMN.name] * (SHARD_COLUMN.name in own)):
        raise ValueError("other columns than a sidecar's")
    fields = values[_FIELD_LEAVES[0]]
    if any(values[leaf] != fields for leaf in _FIELD_LEAVES):
        raise ValueError("columns of unequal length")
    if rows > most or fields > most + rows:  # a sample without a field has a place in the list of its fields, too
        raise ValueError(f"{rows:,} samples with {fields:,} fields, more than a sidecar and shard of their sizes have")


def _check_index_memory(extents: Sequence[LeafMemory], most: int) -> None:
    """Check that the pages of the index take no more than `most` bytes, and what a field needs."""
    index = [one for one in extents if one.leaf.top in OWN_COLUMNS]
    unfolded, values = sum(one.unfolded for one in index), max(one.values for one in index)
    if unfolded > most + _INDEX_BYTES_PER_FIELD * values:
        raise ValueError(f"{unfolded:,} bytes of index, more than a sidecar and shard of their sizes have")


def _check_metadata_memory(found: int, most: int) -> None:
    if found > most:
        raise ValueError(f"{found:,} bytes of metadata, more than {most:,} for a sidecar and shard of their sizes")


def _decode_columns(data: bytes, extents: Sequence[LeafMemory], wanted: Sequence[str]) -> tuple[pa.Table, pa.Schema]:
    """Return the wanted columns, one chunk each, text in dictionaries where the file has them; and the whole schema."""
    places = [at for at, one in enumerate(extents) if one.leaf.top in wanted]
    coded = [one.leaf.path for one in extents if one.coded and one.leaf.kind == BYTE_ARRAY]
    schema = pq.read_schema(pa.BufferReader(data)).remove_metadata()
    with pq.ParquetFile(pa.BufferReader(data), read_dictionary=coded, page_checksum_verification=True) as file:
        # Group by group: pyarrow cannot read lists of several as one (seen, 26.0.1).
        read = partial(file.reader.read_row_group, column_indices=places, use_threads=False)
        groups = [read(at) for at in range(file.num_row_groups)]
        table = pa.concat_tables(groups) if groups else file.schema_arrow.empty_table().select(wanted)
    return table.replace_schema_metadata(None).combine_chunks().select(wanted), schema


def _index_columns(table: pa.Table, most: int) -> ShardIndex:
    """Return the index without metadata, if keys take no more than `most` bytes."""
    keys, lists = _single_chunk(table, "__key__"), _single_chunk(table, "__fields__")
    if pt.is_dictionary(keys.type):
        if _decoded_bytes(keys) > most:
            raise ValueError("keys longer than their shard")
        keys = keys.dictionary_decode()
    if keys.null_count or lists.null_count:
        raise ValueError("a sample without a key or fields")
    places = number_values(lists.offsets).astype(np.int64)
    fields = lists.values[int(places[0]) : int(places[-1])]  # what `flatten` returns; that imports pyarrow.compute
    coded = fields.field("name")
    if not pt.is_dictionary(coded.type):
        coded = coded.dictionary_encode()
    if fields.null_count or coded.null_count or coded.dictionary.null_count:
        raise ValueError("a field without a name")
    crcs = fields.field("crc32c")
    raw, ends = _string_bytes(keys)
    return ShardIndex(
        keys=raw,
        key_ends=ends,
        starts=_to_numbers(_single_chunk(table, "__offset__")),
        sizes=_to_numbers(_single_chunk(table, "__size__")),
        firsts=places - places[0],
        names=tuple(coded.dictionary.to_pylist()),
        codes=number_values(coded.indices).astype(np.int64),
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
    """Check that columns have the types that docs/format.md says; text may come as places in a dictionary."""
    lists = schema.field("__fields__").type
    inner = lists.value_type if pt.is_list(lists) else None
    parts = [(one.name, _plain_type(one.type)) for one in inner] if inner is not None and pt.is_struct(inner) else []
    wanted = [(one.name, one.type) for one in SIDECAR_SCHEMA.field("__fields__").type.value_type]
    if (
        parts != wanted
        or [_plain_type(schema.field(one.name).type) for one in SIDECAR_SCHEMA][:3] != SIDECAR_SCHEMA.types[:3]
    ):
        raise ValueError(f"columns of other types: {[str(one) for one in schema.types]}")


def _plain_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pt.is_dictionary(kind) else kind


def _to_numbers(column: pa.Array) -> NDArray[np.int64]:
    if column.null_count:
        raise ValueError("a null where a number must be")
    values = number_values(column)
    if len(values) and values.max() >= 2**63:
        raise ValueError(f"the number {values.max()}")
    return np.asarray(values.view(np.int64))


def _string_bytes(column: pa.Array) -> tuple[bytes, NDArray[np.int64]]:
    """Return the bytes of strings, end to end, and where each starts."""
    if not len(column):
        return b"", np.zeros(1, np.int64)
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset).astype(np.int64)
    raw = bytes(memoryview(data)[int(ends[0]) : int(ends[-1])]) if data is not None else b""
    return raw, ends - ends[0]


def _decoded_bytes(array: pa.Array) -> int:
    """Return how many bytes the text in an array takes once it is in no dictionary, nested columns included."""
    kind = array.type
    if pt.is_dictionary(kind):
        import pyarrow.compute as pc

        lengths = number_values(pc.binary_length(array.dictionary))
        return int(lengths[number_values(array.indices.drop_null())].sum(dtype=np.int64)) if len(lengths) else 0
    if pt.is_struct(kind):
        return sum(_decoded_bytes(array.field(at)) for at in range(kind.num_fields))
    if pt.is_map(kind):
        return _decoded_bytes(array.keys) + _decoded_bytes(array.items)
    return _decoded_bytes(array.values) if pt.is_list(kind) else 0


def parse_facts(data: bytes, name: str) -> ShardFacts:
    """Return what a sidecar says of its shard.

    Args:
        data: The sidecar's bytes.
        name: Its name, for messages.

    Raises:
        CorruptShard: It is no sidecar of a version that this program knows.
    """
    return _parse_footer(data, name)[0]


def read_sample_count(path: str, name: str, size: int | None) -> tuple[int, ShardFacts]:
    """Return how many samples the sidecar of a shard lists, and what it says of it; no more than its footer is read.

    Args:
        path: Where the sidecar is.
        name: The file name of the shard.
        size: Bytes of the shard; None where it is not there.

    Raises:
        CorruptShard: It is no sidecar of a version that this program knows, or about another shard.
        OSError: It is not there, or cannot be read.
    """
    fact, footer = _parse_footer(_read_footer_bytes(path), path)
    _check_same_shard(fact, path, name, size)
    return footer.rows, fact


def read_sidecar_schema(path: str) -> pa.Schema:
    """Return the columns of a sidecar and their types; no more than its footer is read.

    Raises:
        CorruptShard: It is no sidecar.
        StoreFailed: The machine, a store or a server fails.
    """
    try:
        return pq.read_schema(pa.BufferReader(_read_footer_bytes(path))).remove_metadata()
    except MemoryError:
        raise  # of pyarrow, it is an ArrowException, too
    except (OSError, pa.ArrowException) as error:
        raise_if_machine_error(error, path)
        raise CorruptShard(path, f"no sidecar: {error}", remedy=recreate_hint()) from None


def _read_footer_bytes(path: str) -> bytes:
    """Return the end of the file that has a sidecar's name, with all of its footer."""
    data = read_tail(path, _FOOTER_READ_BYTES)
    size = int.from_bytes(data[-8:-4], "little") + len(PARQUET_MAGIC) + 4
    return read_tail(path, size + 4) if data[-4:] == PARQUET_MAGIC and len(data) == _FOOTER_READ_BYTES < size else data


def _parse_footer(data: bytes, name: str) -> tuple[ShardFacts, ParquetFooter]:
    """Return what a sidecar says of its shard, and the footer that says it."""
    try:
        footer = parse_footer(data)
        facts = {name.removeprefix(METADATA_PREFIX): value for name, value in footer.facts.items()}
        version = int(facts["format_version"])
        made = None
        if "consumed" in facts:
            counts = int(facts["consumed"]), int(facts["dropped"]), int(facts["skipped"])
            left_out = unpack_rows(facts["left_out"]) if "left_out" in facts else ()
            made = TransformFacts(int(facts["content"], 16), *counts, left_out)
        crc = int(facts["crc32c"], 16) if "crc32c" in facts else None
        shards = int(facts["shards"]) if "shards" in facts else None
        plan, first = facts.get("plan", ""), facts.get("first", "")
        fact = ShardFacts(facts["shard"], int(facts["size"]), crc, plan, made, first, shards)
        _check_numbers(fact)
    except KeyError as error:
        raise CorruptShard(
            name, f"no sidecar: without {METADATA_PREFIX}{error.args[0]}", remedy=recreate_hint()
        ) from None
    except ValueError as error:
        raise CorruptShard(name, f"no sidecar: {error}", remedy=recreate_hint()) from None
    if version not in READ_VERSIONS:
        found = f"format version {version}"
        raise CorruptShard(name, found, expected=f"{READ_VERSIONS[-1]} at the most", remedy="Use a newer shardtool.")
    return fact, footer


def _check_numbers(fact: ShardFacts) -> None:
    """Check that numbers are such as files have."""
    counts = () if fact.made is None else (fact.made.consumed, fact.made.dropped, fact.made.skipped)
    if not all(0 <= number < 2**63 for number in (fact.size, *counts)):
        raise ValueError("a size or count that no shard has")
    if not 0 <= (fact.crc or 0) < 2**32 or not 0 <= (fact.made.content if fact.made else 0) < 2**256:
        raise ValueError("a checksum that is none")
    if fact.made is not None and fact.made.left_out and len(fact.made.left_out) != fact.made.skipped:
        raise ValueError("a list of what was left out of another length than it says")
