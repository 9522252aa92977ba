"""What a sidecar is: the Parquet file beside a shard that says where every sample and field lies.

One row a sample, in shard order. The bytes depend on nothing but the samples, the shard and the version of pyarrow, so
that two runs can be compared file by file. Page checksums are on: a flipped bit in a page is an error when it is read.

Source: docs/format.md, "Sidecar".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

import pyarrow as pa

if TYPE_CHECKING:
    from shardtool.skipped import Skipped

FORMAT_VERSION = 2
READ_VERSIONS = (1, 2)  # version 1 is without the column that names the shard
PREFIX = "shardtool."
FIELD = pa.struct(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("offset", pa.uint64(), nullable=False),
        pa.field("length", pa.uint64(), nullable=False),
        pa.field("crc32c", pa.uint32(), nullable=False),
    ]
)


class FieldRow(TypedDict):
    """A field of a sample, as a sidecar has it; `crc32c` is None where it is not known."""

    name: str
    offset: int
    length: int
    crc32c: int | None


def _schema(field: pa.DataType) -> pa.Schema:
    return pa.schema(
        [
            pa.field("__key__", pa.string(), nullable=False),
            pa.field("__offset__", pa.uint64(), nullable=False),
            pa.field("__size__", pa.uint64(), nullable=False),
            pa.field("__fields__", pa.list_(pa.field("element", field, nullable=False)), nullable=False),
        ]
    )


SCHEMA = _schema(FIELD)
SHARD = pa.field("__shard__", pa.string(), nullable=False)
OWN_COLUMNS = (*SCHEMA.names, SHARD.name)  # all others are metadata
# For shards whose payloads were not read: checksums are null.
UNREAD = _schema(pa.struct([one.with_nullable(one.name == "crc32c") for one in FIELD]))


@dataclass(frozen=True, slots=True)
class MadeFact:
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


@dataclass(frozen=True, slots=True)
class ShardFact:
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
    made: MadeFact | None = None
    first: str = ""
    shards: int | None = None


@dataclass(frozen=True, slots=True)
class ShardTally:
    """The figures of a shard that the dataset file lists or adds up: `fields` is how many samples have each."""

    samples: int
    first_key: str
    last_key: str
    fields: dict[str, int]
    field_bytes: int


def with_shard(schema: pa.Schema) -> pa.Schema:
    """Return the schema of the sidecar of a table: with the shard's name behind the key, so that many read as one."""
    return schema.insert(1, SHARD)


def types_of(schema: pa.Schema) -> dict[str, str]:
    """Return a sidecar's columns and their types, as the dataset file lists them."""
    return {column.name: str(column.type) for column in schema}
