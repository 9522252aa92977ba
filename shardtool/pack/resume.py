"""Choose whether to keep, compare or rewrite a shard of an earlier run, without reading the shard.

Each finished shard has a stamp, a time shortly before its run listed the source. The nanoseconds of the stamp are a
hash of the source folder and, in stores, of the object versions. A shard is up to date if the hash matches and no
source file is newer than the stamp.

The journal of an unfinished run records the stamp, size and checksum of each shard. Without a journal, the stamp is
the modification time of the shard, so a copied shard with a new time is compared or rewritten. `--trust size` ignores
stamps.
"""

from __future__ import annotations

from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardtool.dataset import shard_index, sidecar_read, sidecar_write
from shardtool.entries.arrow import hashable_stream
from shardtool.errors import CorruptShard, ShardError
from shardtool.fingerprint import crc32c
from shardtool.names import to_output_name
from shardtool.pattern import sidecar_name
from shardtool.plan.shard_task import hash_shard_plan
from shardtool.publish.journal import Journal
from shardtool.shard_samples import SPAN, ShardSamples
from shardtool.skipped import failed_rows
from shardtool.storage.paths import source_identity
from shardtool.write.task import KeepShard, ShardAction

if TYPE_CHECKING:
    from shardtool.entries.sample_table import SampleTable
    from shardtool.pack.run import Listed, PlannedOutput
    from shardtool.plan.plan import Plan
    from shardtool.publish.destination import Destination


_CLOCK_SLACK_S = 60
_SECOND_NS = 10**9


class ShardPlan(NamedTuple):
    """A planned shard."""

    listed: Listed
    plan: Plan
    shard: int
    name: str
    samples: ShardSamples

    def fingerprint(self) -> str:
        """Return a hash of the samples in the shard and of their transform."""
        listed, plan = self.listed, self.plan
        identity = listed.transform_identity
        if identity:
            identity += f" {plan.limits.max_bytes} {plan.limits.max_count} {listed.run.options.oversize}"
            identity += " last" if listed.dots == "last" else ""
            # Two source datasets with different content can have the same plan, so add checksums.
            if listed.run.reshard_options is not None:
                identity += " " + blake2b(self.samples.spans.crcs, digest_size=16).hexdigest()
            if (metadata := plan.metadata(self.shard)) is not None:
                identity += " " + blake2b(hashable_stream(metadata), digest_size=16).hexdigest()
        return hash_shard_plan(plan.format, self.samples, identity)


def get_run_stamp(listed: Listed) -> int:
    """Return the stamp of a run in nanoseconds: a time, and a hash of the source folder."""
    return (int(listed.run.started) - _CLOCK_SLACK_S) * _SECOND_NS + _hash_source(listed.entries)


def get_shard_stamp(planned: ShardPlan, run_stamp: int) -> int:
    """Return the stamp of a shard: the stamp of its run, and for remote samples also a hash of their versions."""
    if not planned.plan.entries.is_remote:
        return run_stamp
    seconds, nanoseconds = divmod(run_stamp, _SECOND_NS)
    return seconds * _SECOND_NS + _hash_to_nanoseconds(planned.samples.mtimes, nanoseconds)


def is_source_unchanged(planned: ShardPlan, stamp: int) -> bool:
    """Return whether the samples of a shard have not changed since its stamp."""
    run_stamp = stamp // _SECOND_NS * _SECOND_NS + _hash_source(planned.plan.entries)
    return planned.plan.changed_ns(planned.shard) < stamp and stamp == get_shard_stamp(planned, run_stamp)


class JournalLine(NamedTuple):
    """The journal line of a finished shard."""

    shard: str
    size: int
    crc: int
    stamp: int


class ShardJournal:
    """The journal of a run. Stores have no journal, so `--resume` compares each shard with its source."""

    def __init__(self, destination: Destination) -> None:
        base, part = destination.pattern.base, destination.part
        self._journal = Journal(destination.folder, base if part is None else f"{base}.{part.tag}")
        publishes_at_once = destination.if_exists != "overwrite" and destination.repaired_dataset is None
        self._is_used = destination.folder.has_staging and publishes_at_once
        lines = self._journal.read()[1:] if self._is_used and destination.resumes else []
        self.lines_by_shard = {line.shard: line for line in map(_parse_line, lines) if line is not None}

    def add(self, line: JournalLine) -> None:
        """Record a finished shard."""
        if not self._is_used or self.lines_by_shard.get(line.shard) == line:
            return
        if not self._journal.is_started:
            old_lines = (old._asdict() for old in self.lines_by_shard.values())
            self._journal.start({"version": 1, "run": "create"}, old_lines)
        self._journal.append(line._asdict(), durable=False)

    def remove(self) -> None:
        """Delete the journal."""
        self._journal.remove()


def _parse_line(line: dict[str, Any]) -> JournalLine | None:
    try:
        parsed = JournalLine(**line)
    except TypeError:
        return None
    is_valid = type(parsed.shard) is str and {*map(type, parsed[1:])} == {int}
    return parsed if is_valid else None


def choose_action(
    planned: ShardPlan, destination: Destination, line: JournalLine | None
) -> tuple[ShardAction, shard_index.ShardIndex | None]:
    """Return the action for a planned shard.

    If a shard of transformed samples is kept, also return its index. `line` is the journal line of the shard, or None.
    """
    file_info, samples = destination.existing.get(planned.name), planned.samples
    options, transform = planned.listed.run.options, planned.listed.transform
    if not destination.resumes or file_info is None:
        return "write", None
    trusts_sizes = options.trust == "size"
    if transform is None and file_info.size != planned.plan.sizes[planned.shard]:
        # A smaller shard may be complete except for samples that an earlier run skipped.
        may_lack_samples = options.on_error == "skip" and file_info.size < planned.plan.sizes[planned.shard]
        return "compare" if may_lack_samples else "write", None
    if line is None:
        is_unchanged = is_source_unchanged(planned, file_info.mtime_ns)
    else:
        is_unchanged = line.size == file_info.size and is_source_unchanged(planned, line.stamp)
    index = _read_matching_index(planned, destination) if trusts_sizes or is_unchanged else None
    crc = None if index is None else index.facts.crc
    if index is None or crc is None or not (trusts_sizes or line is None or line.crc == crc):
        return "compare" if transform is None else "write", None
    if transform is None:
        crcs = b"" if index.crcs is None else index.crcs.tobytes()
        has_all_crcs = len(crcs) // 4 == len(samples.content.codes) // 2  # uint32 checksums, uint16 codes
        can_keep = has_all_crcs and _has_expected_content(samples, crcs, accept_unknown=trusts_sizes)
        can_keep = can_keep and not samples.content.lists
        return (KeepShard(crc, crcs, file_info.size, trusts_sizes) if can_keep else "compare"), None
    retries = transform.fetch is not None and transform.fetch.retry_failed
    if retries and index.facts.transform and failed_rows(index.facts.transform.skipped_rows):
        return "write", None
    return KeepShard(crc, b"", file_info.size, trusts_sizes), index


def _read_matching_index(planned: ShardPlan, destination: Destination) -> shard_index.ShardIndex | None:
    """Return the index in the sidecar of a shard, or None if the sidecar is damaged or belongs to another plan.

    With a transform, the sidecar must be unmodified and list every skipped sample.
    """
    name, size = sidecar_name(planned.name), destination.existing[planned.name].size
    is_transformed = planned.listed.transform is not None
    try:
        data = destination.folder.read(name)
        index = sidecar_read.parse_sidecar(data, name, size, metadata=is_transformed)
    except (OSError, CorruptShard):
        return None
    facts = index.facts
    if (facts.plan, facts.name, facts.size) != (planned.fingerprint(), to_output_name(planned.name), size):
        return None
    if not is_transformed:
        return index
    with suppress(ShardError):
        if facts.transform is not None and len(facts.transform.skipped_rows) == facts.transform.skipped:
            encoded = sidecar_write.encode_sidecar_table(index.plain_table(), facts, index.version)
            return index if encoded == data else None
    return None


def sum_unwritten_sizes(listed: Listed, output: PlannedOutput) -> int:
    """Return the total planned size of the shards that do not exist or have a wrong size."""
    existing = output.destination.existing if output.destination.resumes else {}
    may_differ = listed.run.options.on_error == "skip" or listed.transform is not None
    total = 0
    for shard in output.own_shards:
        size, file_info = int(output.plan.sizes[shard]), existing.get(output.shard_name(shard))
        if file_info is None or (file_info.size != size and not may_differ):
            total += size
    return total


def _has_expected_content(samples: ShardSamples, field_crcs: bytes, *, accept_unknown: bool) -> bool:
    spans = np.frombuffer(samples.kinds, np.uint8) == SPAN
    if not spans.any():
        return True
    if not samples.spans.crcs:
        return accept_unknown
    expected_crcs = np.frombuffer(samples.spans.crcs, np.int64)[spans]
    shard_crcs = np.frombuffer(field_crcs, np.uint32)[spans]
    return bool(np.all((expected_crcs == shard_crcs) | (accept_unknown & (expected_crcs < 0))))


def _hash_source(entries: SampleTable) -> int:
    return _hash_to_nanoseconds((entries.source_identity or source_identity(entries.root)).encode())


def _hash_to_nanoseconds(data: bytes, crc: int = 0) -> int:
    return crc32c(data, crc) % (_SECOND_NS - 1) + 1
