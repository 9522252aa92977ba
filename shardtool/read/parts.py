"""Chosen columns of one shard's index, read and forgotten: for passes over many shards in bounded memory.

What `OpenedShard.table` keeps whole is here read by column, from the sidecar where there is one that
fits the shard, or else found by a walk. And the bytes of a payload, a piece at a time. What is read is never trusted:
a sidecar that tells of more than its shard could hold is damage, and so is a payload that lies elsewhere.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from shardtool.errors import CorruptShard
from shardtool.read.opened import table_of
from shardtool.reading import read_small
from shardtool.sidecar import SCHEMA, read_facts
from shardtool.survey import SurveyTask, survey, walked_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardtool.read.opened import OpenedShard
    from shardtool.reading import PackedFile, ShardFile
    from shardtool.survey import Survey

FIELDS = "__fields__"
_LEAF = f"{FIELDS}.list.element."
_ROWS_LIMIT = 2**26  # samples or fields in one shard: a footer that tells of more wants our memory
_LEAST_SAMPLE = 16  # bytes: an empty TFRecord
_BLOCK = 2**20
_REMEDY = "`shardtool index` makes it again."


@dataclass(frozen=True)
class Part:
    """Some columns of a shard's index.

    Attributes:
        table: A `pyarrow.Table` with those columns at least; text may be dictionaries.
        samples: How many there are in the shard.
        schema: Of all columns of the index, and their types.
        kinds: Of a TFRecord that was walked: field to `bytes`, `int64` or `float`.
        walked: There is no sound sidecar.
        damage: What is wrong with the sidecar, or with a shard that was walked: the table ends there.
    """

    table: Any = field(repr=False)
    samples: int
    schema: Any
    kinds: Mapping[str, str]
    walked: bool
    damage: tuple[CorruptShard, ...]

    def fields(self) -> Any:
        """Return the fields of all samples, one after the other: a struct array."""
        column = self.table.column(FIELDS).combine_chunks()
        return column.flatten() if len(column) else pa.array([], column.type.value_type)

    def starts(self) -> Any:
        """Return where in `fields` each sample starts, and where the last one ends."""
        offsets = self.table.column(FIELDS).combine_chunks().offsets.to_numpy()
        return offsets - offsets[0] if len(offsets) else offsets


def read_part(shard: OpenedShard, columns: Sequence[str], *, metadata: bool = False) -> Part:
    """Return some columns of a shard's index, by a walk where there is no sound sidecar.

    Args:
        shard: Which.
        columns: Of the sidecar's own columns, those wanted.
        metadata: Whether each plain column of metadata is wanted too: numbers, text, truth and times, no lists.

    Raises:
        CorruptShard: There is no sound sidecar, and the shard cannot be opened.
    """
    found = sidecar_part(shard, columns, metadata=metadata)
    if isinstance(found, Part):
        return found
    return walked_part(survey(SurveyTask(shard.path, dots=shard.dots)), found)


def sidecar_part(shard: OpenedShard, columns: Sequence[str], *, metadata: bool = False) -> Part | CorruptShard | None:
    """Return what a sidecar tells, or what is wrong with it; None where there is none. Arguments as in `read_part`."""
    size = None
    with suppress(OSError):
        size = os.stat(shard.path).st_size
    try:
        return _of_sidecar(read_small(shard.sidecar), shard, size, columns, metadata=metadata)
    except FileNotFoundError:
        return None
    except OSError as error:
        return CorruptShard(shard.sidecar, f"cannot be read: {(error.strerror or str(error)).lower()}")
    except CorruptShard as error:
        return error


def walked_part(found: Survey, damage: CorruptShard | None = None) -> Part:
    """Return what a walk found, all columns; `damage` is what is wrong with the sidecar."""
    table = table_of(found)
    kinds = {walked_text(name): kind for name, kind in zip(found.names, found.kinds, strict=True)}
    return Part(
        table=table,
        samples=table.num_rows,
        schema=table.schema,
        kinds=kinds if found.format == "tfrecord" else {},
        walked=True,
        damage=tuple(error for error in (damage, found.error) if error is not None),
    )


def _of_sidecar(data: bytes, shard: OpenedShard, size: int | None, columns: Sequence[str], *, metadata: bool) -> Part:
    where = shard.sidecar
    fact = read_facts(data, where)
    if size is not None and fact.size != size:
        found = f"the index of a shard of {fact.size:,} bytes"
        raise CorruptShard(where, found, expected=f"{size:,}, the size of {shard.name}", remedy=_REMEDY)
    try:
        footer = pq.read_metadata(pa.BufferReader(data))
        schema = footer.schema.to_arrow_schema()
        wanted = [*columns, *(_plain(schema) if metadata else ())]
        _check_schema(schema, where)
        _check_counts(data, footer, fact.size, where)
        texts = [one.name for one in schema if pt.is_string(one.type) and one.name != "__key__"]
        file = pq.ParquetFile(
            pa.BufferReader(data), read_dictionary=[*texts, f"{_LEAF}name"], page_checksum_verification=True
        )
        table = _read(file, wanted)
        table.validate(full=True)
    except (ValueError, TypeError, KeyError, OSError, MemoryError, pa.ArrowException) as error:
        raise CorruptShard(where, f"no sidecar: {str(error)[:200]}", remedy=_REMEDY) from None
    return Part(table, footer.num_rows, schema, {}, walked=False, damage=())


def _read(file: Any, columns: Sequence[str]) -> Any:
    """Return columns of a Parquet file, one chunk each: group by group, since pyarrow cannot read lists of several."""
    groups = [file.read_row_group(at, columns) for at in range(file.num_row_groups)]
    return pa.concat_tables(groups).combine_chunks() if groups else file.schema_arrow.empty_table().select(columns)


def _plain(schema: Any) -> Iterator[str]:
    """Yield the columns of metadata whose values can be counted, whatever a hostile file says of their length."""
    for one in schema:
        kind = one.type
        flat = pt.is_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind)
        if not one.name.startswith("__") and (flat or pt.is_string(kind) or pt.is_temporal(kind)):
            yield one.name


def _kind(kind: Any) -> str:
    """Return a type as text: whether nulls are allowed is no matter, since checksums may be unknown."""
    return str(kind).replace(" not null", "").replace("<item:", "<element:")


def _check_schema(schema: Any, where: str) -> None:
    """See that a sidecar has its columns.

    Raises:
        CorruptShard: It has not.
    """
    for wanted in SCHEMA:
        at = schema.get_field_index(wanted.name)
        if at < 0 or _kind(schema.field(at).type) != _kind(wanted.type):
            raise CorruptShard(where, f"no column {wanted.name} of the type {wanted.type}"[:200], remedy=_REMEDY)


def _check_counts(data: bytes, footer: Any, size: int, where: str) -> None:
    """See that a sidecar tells of no more than a shard of `size` bytes could hold, before memory is taken for it.

    Raises:
        CorruptShard: It does.
    """
    fields, leaf = 0, f"{_LEAF}length"
    paths = [footer.schema.column(at).path for at in range(footer.num_columns)]
    if leaf not in paths:
        raise CorruptShard(where, f"no column {leaf}", remedy=_REMEDY)
    at, file = paths.index(leaf), pq.ParquetFile(pa.BufferReader(data))
    for group in range(footer.num_row_groups):
        # Where the footer is damaged, reading says so; pyarrow's `column` would end the process (seen, 26.0.1).
        next(file.iter_batches(batch_size=1, row_groups=[group], columns=[leaf], use_threads=False), None)
        fields += footer.row_group(group).column(at).num_values
    if footer.num_rows > min(_ROWS_LIMIT, size // _LEAST_SAMPLE) or not 0 <= fields <= min(_ROWS_LIMIT, size):
        found = f"{footer.num_rows:,} samples with {fields:,} fields"
        raise CorruptShard(where, found, expected=f"what a shard of {size:,} bytes can hold", remedy=_REMEDY)


def payload(
    shard: ShardFile | PackedFile, offset: int, length: int, where: str, *, most: int | None = None
) -> Iterator[bytes]:
    """Yield the bytes of a payload, a piece at a time, and no more than the first `most`.

    Raises:
        CorruptShard: The shard ends before.
    """
    if shard.size >= 0 and not 0 <= offset <= offset + length <= shard.size:
        raise CorruptShard(where, f"{length:,} bytes at {offset:,}", expected=f"a place in {shard.size:,} bytes")
    length = length if most is None else min(length, most)
    while length > 0:
        block = bytes(shard.read(offset, min(length, _BLOCK)))
        if not block:
            raise CorruptShard(where, f"the shard ends at {offset:,}", expected=f"{length:,} more bytes")
        yield block
        offset, length = offset + len(block), length - len(block)
