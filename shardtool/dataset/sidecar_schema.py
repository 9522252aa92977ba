"""Columns of a sidecar, and the facts that it records about its shard. Source: docs/format.md, "Sidecar"."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypedDict

import pyarrow as pa

from shardtool.dataset.dataset_file import ShardEntry
from shardtool.fingerprint import crc32c
from shardtool.pattern import sidecar_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardtool.skipped import Skipped

    # For reading, they are int32 where the shard is smaller than 2 GiB, which halves what an index takes.


_FIELD_TYPES = {"name": pa.string(), "offset": pa.uint64(), "length": pa.uint64(), "crc32c": pa.uint32()}


class FieldRow(TypedDict):
    """A field of a sample, as a sidecar has it; `crc32c` is None where it is not known."""

    name: str
    offset: int
    length: int
    crc32c: int | None


def _make_schema(nullable: str = "") -> pa.Schema:
    fields = pa.struct([pa.field(name, kind, nullable=name == nullable) for name, kind in _FIELD_TYPES.items()])
    lists = pa.list_(pa.field("element", fields, nullable=False))
    kinds = {"__key__": pa.string(), "__offset__": pa.uint64(), "__size__": pa.uint64(), "__fields__": lists}
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in kinds.items()])


SIDECAR_SCHEMA = _make_schema()


SHARD_COLUMN = pa.field("__shard__", pa.string(), nullable=False)


OWN_COLUMNS = (*SIDECAR_SCHEMA.names, SHARD_COLUMN.name)  # all others are metadata


# For shards whose payloads were not read: checksums are null.
SCHEMA_WITHOUT_CRC = _make_schema("crc32c")


class TransformFacts(NamedTuple):
    """Facts of a shard of changed samples, which its plan could not know.

    Attributes:
        content: The content fingerprint of the shard.
        consumed: How many of the samples planned for it are dealt with.
        dropped: How many of these the user's function dropped.
        skipped: How many of them were left out.
        left_out: Which, and why; empty where that is not kept, since another run shall try them again.
    """

    content: int
    consumed: int
    dropped: int
    skipped: int
    left_out: tuple[Skipped, ...] = ()


class ShardFacts(NamedTuple):
    """The facts of a shard in its sidecar.

    Attributes:
        name: The shard's file name.
        size: Bytes.
        crc: CRC-32C of the file; None: unknown, since it was not read.
        plan: The fingerprint of the shard's plan; empty where no plan is known.
        made: What transforms made of the samples; None: they are as in the source.
        first: The name of the first shard of its run; empty where no plan is known.
        shards: How many shards that run was to make, at least, when this one was written; None: unknown.
    """

    name: str
    size: int
    crc: int | None
    plan: str
    made: TransformFacts | None = None
    first: str = ""
    shards: int | None = None


class ShardTally(NamedTuple):
    """The figures of a shard that the dataset file lists or adds up: `fields` is how many samples have each."""

    samples: int
    first_key: str
    last_key: str
    fields: dict[str, int]
    field_bytes: int

    def entry(self, fact: ShardFacts, sidecar: bytes) -> ShardEntry:
        """Return what the dataset file lists of the shard: with its facts, and its sidecar's bytes."""
        index = sidecar_name(fact.name), len(sidecar), crc32c(sidecar)
        return ShardEntry(fact.name, self.samples, fact.size, fact.crc, *index, self.first_key, self.last_key)


def with_shard_column(schema: pa.Schema) -> pa.Schema:
    """Return the schema of the sidecar of a table: with the shard's name behind the key, so that many read as one."""
    return schema.insert(1, SHARD_COLUMN)


def column_types(schema: pa.Schema) -> dict[str, str]:
    """Return a sidecar's columns and their types, as the dataset file lists them."""
    return {column.name: str(column.type) for column in schema}


_NULL_TYPE = "null"  # the type of a column without a value: it goes with any


def merge_types(known: dict[str, str], more: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Take further columns with their types, of each the first type that holds values.

    Args:
        known: The columns so far, to which they are added.
        more: Those of other sidecars.

    Yields:
        A column of metadata that has another type there, and both types.
    """
    for name, kind in more.items():
        before = known.setdefault(name, kind)
        if before == _NULL_TYPE:
            known[name] = kind
        elif kind not in (before, _NULL_TYPE) and not name.startswith("__"):
            yield name, before, kind


FIELDS_COLUMN = "__fields__"
