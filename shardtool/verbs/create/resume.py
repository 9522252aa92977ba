"""Choose whether to keep, compare or rewrite the shard of an earlier run.

No shard is read for this. The modification time of a shard is shortly before its run listed the source, and its
nanoseconds identify the root of the source, and in a store also the versions of the shard's objects. Files under
that root have therefore not changed since, and a copied shard, which has another time, is not trusted. With
`--trust
size`, times are ignored.
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
    from shardtool.verbs.create.run import Run, RunOutput


_CLOCK_SLACK_S = 60  # by how much the clocks of a source's and an output's file systems may differ


_SECOND_NS = 10**9


class ShardPlan(NamedTuple):
    """A shard that is to be there.

    Attributes:
        run: The run.
        plan: The plan that it is in.
        shard: Its number there.
        name: Its name.
        samples: Its samples.
    """

    run: Run
    plan: Plan
    shard: int
    name: str
    samples: ShardSamples

    def fingerprint(self) -> str:
        """Return its plan fingerprint: what goes into it, and what is done to that."""
        work, plan = self.run.identity, self.plan
        if work:
            work += f" {plan.limits.room} {plan.limits.max_count} {self.run.options.oversize}"
            work += " last" if self.run.dots == "last" else ""  # other keys of the function's may be in the way
            if self.run.shuffle is not None:  # of shards: the places of payloads say nothing of what they are
                work += " " + blake2b(self.samples.spans.expected, digest_size=16).hexdigest()
            if (metadata := plan.metadata(self.shard)) is not None:
                work += " " + blake2b(ipc_stream(metadata), digest_size=16).hexdigest()
        return hash_shard_plan(plan.format, self.samples, work)


def get_run_mtime_ns(run: Run) -> int:
    """Return the modification time of the shards of a run, in nanoseconds."""
    return (int(run.started) - _CLOCK_SLACK_S) * _SECOND_NS + _hash_source(run.entries)


def get_shard_mtime_ns(planned: ShardPlan, mtime_ns: int) -> int:
    """Return that of one of them; of objects, its nanoseconds name their versions too: a store's clock proves little.

    Args:
        planned: The shard.
        mtime_ns: That of all shards of the run.
    """
    if not planned.plan.entries.is_remote:
        return mtime_ns
    seconds, stamp = divmod(mtime_ns, _SECOND_NS)
    return seconds * _SECOND_NS + _hash_to_nanoseconds(planned.samples.mtimes, stamp)


def is_source_unchanged(planned: ShardPlan, mtime_ns: int) -> bool:
    """Tell whether a shard's modification time proves that its source has not changed since."""
    of_run = mtime_ns // _SECOND_NS * _SECOND_NS + _hash_source(planned.plan.entries)
    return planned.plan.changed_ns(planned.shard) < mtime_ns == get_shard_mtime_ns(planned, of_run)


def choose_action(planned: ShardPlan, output: Destination) -> tuple[ShardAction, shard_index.ShardIndex | None]:
    """Return what becomes of a shard, as far as what is there and its sidecar say.

    Returns:
        What a worker is to do, and the index of a shard of changed samples that may be kept; None otherwise.
    """
    there, run, samples = output.existing.get(planned.name), planned.run, planned.samples
    if not output.resumes or there is None:
        return "write", None
    transform, unread = run.transform, run.options.trust == "size"
    if transform is None and there.size != planned.plan.sizes[planned.shard]:
        # Another plan's, or one that left samples out, and would again.
        lost = run.options.on_error == "skip" and there.size < planned.plan.sizes[planned.shard]
        return "compare" if lost else "write", None
    index = _read_matching_index(planned, output) if unread or is_source_unchanged(planned, there.mtime_ns) else None
    crc = None if index is None else index.fact.crc
    if index is None or crc is None:
        return "compare" if transform is None else "write", None
    if transform is None:
        crcs = b"" if index.crcs is None else index.crcs.tobytes()
        told = len(crcs) == 2 * len(samples.content.codes) and _has_expected_content(samples, crcs, unread=unread)
        # Only reading finds numbers that are alone in lists: see `digest`.
        return KeepShard(crc, crcs, there.size, unread) if told and not samples.content.lists else "compare", None
    again = transform.fetch is not None and transform.fetch.retry_failed
    if again and index.fact.made and failed_rows(index.fact.made.left_out):
        return "write", None
    return KeepShard(crc, b"", there.size, unread), index


def _read_matching_index(planned: ShardPlan, output: Destination) -> shard_index.ShardIndex | None:
    """Return what the sidecar of a shard says; None: it is of another plan, or damaged.

    Of changed samples it must be as it was written, and nothing may have been left out but what it lists.
    """
    name, size = sidecar_name(planned.name), output.existing[planned.name].size
    changed = planned.run.transform is not None
    try:
        data = output.folder.read(name)
        index = sidecar_read.parse_sidecar(data, name, size, metadata=changed)
    except (OSError, CorruptShard):
        return None
    fact = index.fact
    if (fact.plan, fact.name, fact.size) != (planned.fingerprint(), to_output_name(planned.name), size):
        return None
    if not changed:
        return index
    with suppress(ShardError):
        if fact.made is not None and len(fact.made.left_out) == fact.made.skipped:
            again = sidecar_write.encode_sidecar_table(index.plain_table(), fact, index.version)
            return index if again == data else None  # else no bit flipped in its facts shows
    return None


def list_unwritten_sizes(run: Run, output: RunOutput) -> list[int]:
    """Return the sizes of the shards that are yet to be written, as planned."""
    existing = output.destination.existing if output.destination.resumes else {}
    loose = run.options.on_error == "skip" or run.transform is not None
    found = []
    for shard in output.own_shards:
        size, there = int(output.plan.sizes[shard]), existing.get(output.shard_name(shard))
        if there is None or (there.size != size and not loose):
            found.append(size)
    return found


def _has_expected_content(samples: ShardSamples, field_crcs: bytes, *, unread: bool) -> bool:
    """Tell whether payloads are those that are wanted, as far as their checksums do: their places say nothing of that.

    Args:
        samples: What is planned.
        field_crcs: uint32 per field, of the shard that is there.
        unread: Whether payloads without a checksum are taken for right.
    """
    spans = np.frombuffer(samples.kinds, np.uint8) == SPAN
    if not spans.any():
        return True
    if not samples.spans.expected:
        return unread
    wanted = np.frombuffer(samples.spans.expected, np.int64)[spans]
    there = np.frombuffer(field_crcs, np.uint32)[spans]
    return bool(np.all((wanted == there) | (unread & (wanted < 0))))


def _hash_source(entries: SampleTable) -> int:
    """Return nine digits for what the source's path leads to now, such as could be a time's nanoseconds."""
    return _hash_to_nanoseconds((entries.identity or source_identity(entries.root)).encode())


def _hash_to_nanoseconds(data: bytes, before: int = 0) -> int:
    return crc32c(data, before) % (_SECOND_NS - 1) + 1
