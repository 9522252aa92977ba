"""A sidecar that is there, held against what a walk over its shard found: whether it stays, and what it adds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardtool.errors import CorruptShard
from shardtool.storage.places import base_name
from shardtool.values import output_text

if TYPE_CHECKING:
    import pyarrow as pa

    from shardtool.dataset.sidecar import ShardFact
    from shardtool.dataset.walk import Survey


@dataclass(frozen=True, slots=True)
class Right:
    """A sidecar that says what the walk found.

    Attributes:
        table: Its rows, with what only it knows: checksums and metadata.
        fact: What it says of the shard.
        data: Its bytes; None where it is to be written: with checksums that it lacked, or in the new format.
    """

    table: pa.Table
    fact: ShardFact
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Wrong:
    """A sidecar that was read and found wrong: what it is, and the columns that only it has."""

    found: str
    lost: frozenset[str] = frozenset()


def compare_sidecar(found: Survey, where: str, data: bytes, walked: pa.Table, *, checksum: bool) -> Right | Wrong:
    """Return whether a sidecar is right.

    Args:
        found: What the walk found.
        where: The sidecar's path.
        data: The sidecar's bytes.
        walked: The rows that the walk found, as the sidecar's table.
        checksum: Whether payloads were read.

    Raises:
        CorruptShard: The shard has another checksum than its sidecar says.
    """
    from shardtool.dataset.opened import places_of
    from shardtool.dataset.sidecar import FORMAT_VERSION, SCHEMA
    from shardtool.dataset.sidecar_read import read_sidecar

    try:
        known = read_sidecar(data, where, found.size)
        fact, table = known.fact, known.plain_table()
    except CorruptShard:
        return Wrong("damaged")
    lost = frozenset({*table.column_names} - {*SCHEMA.names})
    same = (fact.name, fact.size) == (output_text(base_name(found.path)), found.size)
    if not same or places_of(table) != places_of(walked):
        return Wrong("of another shard", lost)
    current = data if known.version == FORMAT_VERSION else None
    if not checksum:
        return Right(table, fact, current)
    if fact.crc is not None and fact.crc != found.crc:
        what = f"the checksum {found.crc:08x}"
        expected = f"{fact.crc:08x}, as its sidecar says"
        raise CorruptShard(found.path, what, expected=expected, remedy="`shardtool verify` shows what is damaged.")
    new = _with_checksums(table, walked)
    if new is None:
        return Wrong("checksums of other payloads", lost)
    if fact.crc is not None and not new[1]:
        return Right(table, fact, current)
    return Right(new[0], replace(fact, crc=found.crc))


def _with_checksums(old: pa.Table, walked: pa.Table) -> tuple[pa.Table, bool] | None:
    """Return a sidecar's table with the checksums of the payloads that a walk has read, and whether they are new to it.

    Returns:
        None where it has others.
    """
    import pyarrow.compute as pc

    at = old.column_names.index("__fields__")
    before, now = (table.column("__fields__").combine_chunks().flatten().field("crc32c") for table in (old, walked))
    if pc.any(pc.not_equal(before, now)).as_py():  # null, an unknown checksum, is neither
        return None
    new = old.set_column(at, walked.schema.field("__fields__"), walked.column("__fields__"))
    return new.replace_schema_metadata(None), bool(before.null_count)
