"""Choose whether to keep, compare or rewrite the shard of an earlier run, without reading it.

The modification time of a shard is shortly before its run listed the source. Its nanoseconds identify the root of the
source and, in a store, the versions of the shard's objects. If the times match, the files under that root have not
changed since. A copied shard has another time and is not trusted. With `--trust size`, times are ignored.
"""

from __future__ import annotations

from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardtool.dataset import shard_index, sidecar_read, sidecar_write
from shardtool.entries.arrow import ipc_stream
from shardtool.errors import CorruptShard, ShardError
from shardtool.fingerprint import crc32c
from shardtool.names import to_output_name
from shardtool.pattern import sidecar_name
from shardtool.plan.shard_task import hash_shard_plan
from shardtool.shard_samples import SPAN, ShardSamples
from shardtool.skipped import failed_rows
from shardtool.storage.paths import source_identity
from shardtool.write.task import KeepShard, ShardAction

if TYPE_CHECKING:
    from shardtool.entries.sample_table import SampleTable
    from shardtool.plan.plan import Plan
    from shardtool.publish.destination import Destination
    from shardtool.verbs.create.run import Listed, PlannedOutput


_CLOCK_SLACK_S = 60  # allowed clock difference between the file systems of source and output


_SECOND_NS = 10**9


class ShardPlan(NamedTuple):
    """A planned shard: its plan, number, file name and samples."""

    listed: Listed
    plan: Plan
    shard: int
    name: str
    samples: ShardSamples

    def fingerprint(self) -> str:
        """Return a hash over the samples and their transform."""
        listed, plan = self.listed, self.plan
        work = listed.identity
        if work:
            work += f" {plan.limits.room} {plan.limits.max_count} {listed.run.options.oversize}"
            work += " last" if listed.dots == "last" else ""
            if listed.run.shuffle is not None:  # offsets in source shards do not identify content
                work += " " + blake2b(self.samples.spans.expected, digest_size=16).hexdigest()
            if (metadata := plan.metadata(self.shard)) is not None:
                work += " " + blake2b(ipc_stream(metadata), digest_size=16).hexdigest()
        return hash_shard_plan(plan.format, self.samples, work)


def get_run_mtime_ns(listed: Listed) -> int:
    """Return the modification time of a run's shards."""
    return (int(listed.run.started) - _CLOCK_SLACK_S) * _SECOND_NS + _hash_source(listed.entries)


def get_shard_mtime_ns(planned: ShardPlan, mtime_ns: int) -> int:
    """Return the modification time of a shard in a run with `mtime_ns`. For objects, it identifies their versions."""
    if not planned.plan.entries.is_remote:
        return mtime_ns
    seconds, nanoseconds = divmod(mtime_ns, _SECOND_NS)
    return seconds * _SECOND_NS + _hash_to_nanoseconds(planned.samples.mtimes, nanoseconds)


def is_source_unchanged(planned: ShardPlan, mtime_ns: int) -> bool:
    """Return whether a shard's modification time shows an unchanged source."""
    run_mtime_ns = mtime_ns // _SECOND_NS * _SECOND_NS + _hash_source(planned.plan.entries)
    return planned.plan.changed_ns(planned.shard) < mtime_ns == get_shard_mtime_ns(planned, run_mtime_ns)


def choose_action(planned: ShardPlan, output: Destination) -> tuple[ShardAction, shard_index.ShardIndex | None]:
    """Return the action for a shard, and the index of a kept shard of transformed samples."""
    file_info, samples = output.existing.get(planned.name), planned.samples
    options, transform = planned.listed.run.options, planned.listed.transform
    if not output.resumes or file_info is None:
        return "write", None
    trusts_sizes = options.trust == "size"
    if transform is None and file_info.size != planned.plan.sizes[planned.shard]:
        # The shard has another plan, or it skipped samples and would skip them again.
        may_lack_samples = options.on_error == "skip" and file_info.size < planned.plan.sizes[planned.shard]
        return "compare" if may_lack_samples else "write", None
    index = (
        _read_matching_index(planned, output)
        if trusts_sizes or is_source_unchanged(planned, file_info.mtime_ns)
        else None
    )
    crc = None if index is None else index.fact.crc
    if index is None or crc is None:
        return "compare" if transform is None else "write", None
    if transform is None:
        crcs = b"" if index.crcs is None else index.crcs.tobytes()
        is_as_expected = len(crcs) == 2 * len(samples.content.codes) and _has_expected_content(
            samples, crcs, accept_unknown=trusts_sizes
        )
        return KeepShard(
            crc, crcs, file_info.size, trusts_sizes
        ) if is_as_expected and not samples.content.lists else "compare", None
    retries = transform.fetch is not None and transform.fetch.retry_failed
    if retries and index.fact.made and failed_rows(index.fact.made.left_out):
        return "write", None
    return KeepShard(crc, b"", file_info.size, trusts_sizes), index


def _read_matching_index(planned: ShardPlan, output: Destination) -> shard_index.ShardIndex | None:
    """Return the index in a sidecar; None if it is damaged or has another plan.

    For transformed samples, it must be unmodified and list every skipped sample.
    """
    name, size = sidecar_name(planned.name), output.existing[planned.name].size
    is_transformed = planned.listed.transform is not None
    try:
        data = output.folder.read(name)
        index = sidecar_read.parse_sidecar(data, name, size, metadata=is_transformed)
    except (OSError, CorruptShard):
        return None
    facts = index.fact
    if (facts.plan, facts.name, facts.size) != (planned.fingerprint(), to_output_name(planned.name), size):
        return None
    if not is_transformed:
        return index
    with suppress(ShardError):
        if facts.made is not None and len(facts.made.left_out) == facts.made.skipped:
            encoded = sidecar_write.encode_sidecar_table(index.plain_table(), facts, index.version)
            return index if encoded == data else None  # detects any flipped bit in the facts
    return None


def list_unwritten_sizes(listed: Listed, output: PlannedOutput) -> list[int]:
    """Return the planned sizes of the shards still to be written."""
    existing = output.destination.existing if output.destination.resumes else {}
    may_differ = listed.run.options.on_error == "skip" or listed.transform is not None
    sizes = []
    for shard in output.own_shards:
        size, file_info = int(output.plan.sizes[shard]), existing.get(output.shard_name(shard))
        if file_info is None or (file_info.size != size and not may_differ):
            sizes.append(size)
    return sizes


def _has_expected_content(samples: ShardSamples, field_crcs: bytes, *, accept_unknown: bool) -> bool:
    spans = np.frombuffer(samples.kinds, np.uint8) == SPAN
    if not spans.any():
        return True
    if not samples.spans.expected:
        return accept_unknown
    expected_crcs = np.frombuffer(samples.spans.expected, np.int64)[spans]
    shard_crcs = np.frombuffer(field_crcs, np.uint32)[spans]
    return bool(np.all((expected_crcs == shard_crcs) | (accept_unknown & (expected_crcs < 0))))


def _hash_source(entries: SampleTable) -> int:
    return _hash_to_nanoseconds((entries.identity or source_identity(entries.root)).encode())


def _hash_to_nanoseconds(data: bytes, crc: int = 0) -> int:
    return crc32c(data, crc) % (_SECOND_NS - 1) + 1
