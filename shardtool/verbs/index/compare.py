"""Compare an existing sidecar with the scan of its shard: keep it, complete it, or report how it differs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from shardtool.errors import CorruptShard
from shardtool.publish.listed_files import RUN_VERIFY

if TYPE_CHECKING:
    from shardtool.dataset.shard_index import ShardIndex


class DifferingSidecar(NamedTuple):
    """A sidecar that was read and found wrong: what it is, and the columns that only it has."""

    found: str
    lost: frozenset[str] = frozenset()


def compare_sidecar(
    path: str, walked: ShardIndex, where: str, data: bytes
) -> tuple[ShardIndex, bytes | None] | DifferingSidecar:
    """Return what a sidecar says, with what only it knows: checksums and metadata; or that it is not right.

    Args:
        path: The shard's path.
        walked: What a walk found in the shard, with checksums where payloads were read.
        where: The sidecar's path.
        data: The sidecar's bytes.

    Returns:
        With its bytes; None where it is to be written: with checksums that it lacked, or in the new format.

    Raises:
        CorruptShard: The shard has another checksum than its sidecar says.
    """
    from shardtool.dataset.index_differences import compare_indexes
    from shardtool.dataset.sidecar_read import FORMAT_VERSION, parse_sidecar

    seen = walked.fact
    try:
        known = parse_sidecar(data, where, seen.size)
    except CorruptShard:
        return DifferingSidecar("damaged")
    fact, lost = known.fact, frozenset(known.metadata.column_names)
    wrong = next(compare_indexes(known, walked), None)
    if (fact.name, fact.size) != (seen.name, seen.size) or (wrong is not None and wrong.what != "checksum"):
        return DifferingSidecar("of another shard", lost)
    if fact.crc is not None and seen.crc not in (fact.crc, None):
        what, expected = f"the checksum {seen.crc:08x}", f"{fact.crc:08x}, as its sidecar says"
        raise CorruptShard(path, what, expected=expected, remedy=RUN_VERIFY)
    if wrong is not None:
        return DifferingSidecar("checksums of other payloads", lost)
    if seen.crc is None or (fact.crc is not None and known.crcs is not None):
        return known, data if known.version == FORMAT_VERSION else None
    return replace(known, crcs=walked.crcs, fact=fact._replace(crc=seen.crc)), None
