"""Compare an existing sidecar with the scan of its shard: keep it, complete it, or report how it differs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from shardtool.dataset.dataset_file import RUN_VERIFY
from shardtool.errors import CorruptShard

if TYPE_CHECKING:
    from shardtool.dataset.shard_index import ShardIndex


class DifferingSidecar(NamedTuple):
    """A wrong sidecar: its problem, and the metadata columns that only it contains."""

    found: str
    lost: frozenset[str] = frozenset()


def compare_sidecar(
    path: str, scanned: ShardIndex, where: str, data: bytes
) -> tuple[ShardIndex, bytes | None] | DifferingSidecar:
    """Return how a sidecar differs, or its index, completed from the scan, and its bytes (None: rewrite it)."""
    from shardtool.dataset.index_differences import compare_indexes
    from shardtool.dataset.sidecar_read import FORMAT_VERSION, parse_sidecar

    scanned_facts = scanned.fact
    try:
        index = parse_sidecar(data, where, scanned_facts.size)
    except CorruptShard:
        return DifferingSidecar("damaged")
    facts, columns = index.fact, frozenset(index.metadata.column_names)
    difference = next(compare_indexes(index, scanned), None)
    if (facts.name, facts.size) != (scanned_facts.name, scanned_facts.size) or (
        difference is not None and difference.what != "checksum"
    ):
        return DifferingSidecar("of another shard", columns)
    if facts.crc is not None and scanned_facts.crc not in (facts.crc, None):
        found, expected = f"checksum {scanned_facts.crc:08x}", f"{facts.crc:08x}, as in its sidecar"
        raise CorruptShard(path, found, expected=expected, remedy=RUN_VERIFY)
    if difference is not None:
        return DifferingSidecar("checksums of other payloads", columns)
    if scanned_facts.crc is None or (facts.crc is not None and index.crcs is not None):
        return index, data if index.version == FORMAT_VERSION else None
    return replace(index, crcs=scanned.crcs, fact=facts._replace(crc=scanned_facts.crc)), None
