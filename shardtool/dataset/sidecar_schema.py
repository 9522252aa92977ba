"""The columns of a sidecar, and what its footer records about the shard (docs/format.md, "Sidecar")."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypedDict

import pyarrow as pa

from shardtool.dataset.dataset_file import ShardEntry
from shardtool.fingerprint import crc32c
from shardtool.pattern import sidecar_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardtool.skipped import Skipped


_FIELD_TYPES = {"name": pa.string(), "offset": pa.uint64(), "length": pa.uint64(), "crc32c": pa.uint32()}


class FieldRow(TypedDict):
    """An item in the column `__fields__` of a sidecar."""

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
OWN_COLUMNS = (*SIDECAR_SCHEMA.names, SHARD_COLUMN.name)  # all other columns are metadata
# For shards whose payloads were not read: all checksums are null.
SCHEMA_WITHOUT_CRC = _make_schema("crc32c")


class TransformFacts(NamedTuple):
    """Additional facts that a sidecar records if samples were transformed.

    Attributes:
        digest: The content fingerprint of the shard.
        consumed: Number of processed source samples.
        dropped: Number of source samples that `--map` dropped.
        skipped_rows: The `skipped` samples. If the list is incomplete, a resumed run packs the shard again.
    """

    digest: int
    consumed: int
    dropped: int
    skipped: int
    skipped_rows: tuple[Skipped, ...] = ()


class ShardFacts(NamedTuple):
    """What a sidecar records about its shard.

    Attributes:
        crc: CRC-32C of the shard, or None if unknown.
        plan: Hash of the shard's plan, or "" if unknown.
        first: Name of the run's first shard, or "" if unknown.
        shards: The complete run has at least this many shards. None if unknown.
    """

    name: str
    size: int
    crc: int | None
    plan: str
    transform: TransformFacts | None = None
    first: str = ""
    shards: int | None = None


class ShardTally(NamedTuple):
    """What a dataset file records about a shard's samples. `fields` counts the samples with each field."""

    samples: int
    first_key: str
    last_key: str
    fields: dict[str, int]
    field_bytes: int

    def entry(self, facts: ShardFacts, sidecar: bytes) -> ShardEntry:
        """Return the shard's entry for the dataset file. `sidecar` contains the bytes of the sidecar."""
        index = sidecar_name(facts.name), len(sidecar), crc32c(sidecar)
        return ShardEntry(facts.name, self.samples, facts.size, facts.crc, *index, self.first_key, self.last_key)


def with_shard_column(schema: pa.Schema) -> pa.Schema:
    """Add a column with the shard's name, for users who read several sidecars as one table."""
    return schema.insert(1, SHARD_COLUMN)


def column_types(schema: pa.Schema) -> dict[str, str]:
    """Return the types of the columns as text, by name."""
    return {column.name: str(column.type) for column in schema}


_NULL_TYPE = "null"


def merge_types(types: dict[str, str], new_types: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Add column types to `types`. Yield the name and both types of each metadata column with incompatible types.

    If one type is null, use the other type.
    """
    for name, new_type in new_types.items():
        known_type = types.setdefault(name, new_type)
        if known_type == _NULL_TYPE:
            types[name] = new_type
        elif new_type not in (known_type, _NULL_TYPE) and not name.startswith("__"):
            yield name, known_type, new_type


FIELDS_COLUMN = "__fields__"
