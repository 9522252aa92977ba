"""Whether a shard that an earlier run has left is kept, compared with its source, or written again.

A shard's modification time is a while before its run listed the source, and its nanoseconds name the source's root.
So nothing below this root that leads to the shard's files has changed since; and the time is ours, not that of a copy
of the shard, which would say nothing of when its source was read. Where sizes are to be trusted, times are not
looked at. Of a source in a store the nanoseconds name the versions of the shard's objects, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from shardtool.dataset.sidecar_read import read_sidecar
from shardtool.dataset.sidecar_write import encode_table
from shardtool.errors import ShardError, StoreFailed
from shardtool.fingerprint import crc32c
from shardtool.pattern import sidecar_name
from shardtool.plan.shard_samples import fingerprint
from shardtool.request.options import CreateOptions
from shardtool.storage.sources import identity
from shardtool.values import SPAN, output_text
from shardtool.write.task import Compare, Keep, Write

if TYPE_CHECKING:
    from shardtool.dataset.sidecar import ShardFact
    from shardtool.entries.entries import Entries
    from shardtool.pack.request import Manner, Request
    from shardtool.plan.plan import Plan
    from shardtool.publish.destination import Destination
    from shardtool.values import Dots, ShardSamples

_CLOCK_SLACK_S = 60  # by how much the clocks of a source's and an output's file systems may differ
_SECOND_NS = 10**9


@dataclass(frozen=True, slots=True)
class Planned:
    """A shard that is to be there.

    Attributes:
        plan: The plan that it is in.
        shard: Its number there.
        name: Its name.
        samples: Its samples.
    """

    plan: Plan
    shard: int
    name: str
    samples: ShardSamples

    def fingerprint(self, manner: Manner) -> str:
        """Return its plan fingerprint."""
        return shard_fingerprint(self.plan, self.shard, self.samples, manner.request, manner.dots)


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about a shard: keep, compare or write it.

    Attributes:
        todo: What a worker is to do.
        sidecar: The sound sidecar of a shard of changed samples that may be kept; empty otherwise.
    """

    todo: Keep | Compare | Write
    sidecar: bytes = b""


@dataclass(frozen=True, slots=True)
class _Said:
    """The sidecar of an earlier run's shard, if it is of the same plan."""

    sidecar: bytes
    fact: ShardFact
    crc: int
    crcs: bytes


def mtime_of(entries: Entries, manner: Manner) -> int:
    """Return the modification time of the shards of a run, in nanoseconds."""
    return (int(manner.begun) - _CLOCK_SLACK_S) * _SECOND_NS + _stamp(entries)


def mtime_of_shard(planned: Planned, mtime_ns: int) -> int:
    """Return that of one of them; of objects, its nanoseconds name their versions too: a store's clock proves little.

    Args:
        planned: The shard.
        mtime_ns: That of all shards of the run.
    """
    if not planned.plan.entries.is_remote:
        return mtime_ns
    seconds, stamp = divmod(mtime_ns, _SECOND_NS)
    return seconds * _SECOND_NS + _nine_digits(planned.samples.mtimes, stamp)


def is_newer(planned: Planned, mtime_ns: int) -> bool:
    """Tell whether a shard's modification time proves that its source has not changed since."""
    of_run = mtime_ns // _SECOND_NS * _SECOND_NS + _stamp(planned.plan.entries)
    return planned.plan.changed_ns(planned.shard) < mtime_ns == mtime_of_shard(planned, of_run)


def decide(planned: Planned, output: Destination, manner: Manner) -> Decision:
    """Return what becomes of a shard, as far as what is there and its sidecar say."""
    there = output.existing.get(planned.name)
    if not output.resumes or there is None:
        return Decision(Write())
    size, changes = planned.plan.sizes[planned.shard], manner.transform is not None
    if not changes and there.size != size:
        # Another plan's, or one that left samples out, and would again.
        lost = manner.options.on_error == "skip" and there.size < size
        return Decision(Compare() if lost else Write())
    unread = manner.options.trust == "size"
    said = _said(planned, output, manner) if unread or is_newer(planned, there.mtime_ns) else None
    if changes:
        again = isinstance(manner.options, CreateOptions) and manner.options.retry_failed
        return _decide_changed(planned, said, unread=unread, again=again)
    # Only reading finds numbers that are alone in lists: see `digest`.
    if said is None or len(said.crcs) != 2 * len(planned.samples.content.codes) or planned.samples.content.lists:
        return Decision(Compare())
    if not _tells_content(planned.samples, said.crcs, unread=unread):
        return Decision(Compare())
    return Decision(Keep(said.crc, said.crcs, there.size, unread))


def _decide_changed(planned: Planned, said: _Said | None, *, unread: bool, again: bool) -> Decision:
    """Return what becomes of a shard of changed samples; `again`: it is written again if it left samples out."""
    if said is None or not _is_sound(said, planned.name) or (again and said.fact.made and said.fact.made.skipped):
        return Decision(Write())
    if planned.samples.content.lists and not unread:
        return Decision(Compare(), said.sidecar)
    return Decision(Keep(said.crc, b"", said.fact.size, unread), said.sidecar)


def _said(planned: Planned, output: Destination, manner: Manner) -> _Said | None:
    """Return what a shard's sidecar says; None if it is not of this shard and this plan."""
    index, size = sidecar_name(planned.name), output.existing[planned.name].size
    try:
        data = output.folder.read(index)
        sidecar = read_sidecar(data, index, size, metadata=False)
    except StoreFailed:
        raise
    except (OSError, ShardError):
        return None
    fact, crcs = sidecar.fact, b"" if sidecar.rows.crcs is None else sidecar.rows.crcs.tobytes()
    wanted = planned.fingerprint(manner), output_text(planned.name), size
    if fact.crc is None or (fact.plan, fact.name, fact.size) != wanted:
        return None
    return _Said(data, fact, fact.crc, crcs)


def _is_sound(said: _Said, name: str) -> bool:
    """Tell whether a sidecar of changed samples is as it was written, and whether nothing was left out of them."""
    if said.fact.made is None or len(said.fact.made.left_out) != said.fact.made.skipped:
        return False
    try:
        found = read_sidecar(said.sidecar, sidecar_name(name), said.fact.size)
        return (
            encode_table(found.plain_table(), said.fact, found.version) == said.sidecar
        )  # nothing else finds a flipped bit in its facts
    except ShardError:
        return False


def shard_fingerprint(plan: Plan, shard: int, samples: ShardSamples, request: Request, dots: Dots) -> str:
    """Return the fingerprint of a planned shard: what goes into it, and what is done to that.

    Args:
        plan: The plan.
        shard: Its number there.
        samples: Its samples.
        request: The run: its transform, and what becomes of a sample that turns out to fit in no shard.
        dots: Where keys end in the names of a tar's members.
    """
    work = request.identity
    if work:
        work += f" {plan.limits.room} {plan.limits.max_count} {request.options.oversize}"
        work += " last" if dots == "last" else ""  # other keys of the function's may be in the way
        if (metadata := plan.metadata(shard)) is not None:
            work += " " + _table_hash(metadata)
    return fingerprint(plan.format, samples, work)


def _table_hash(table: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return blake2b(sink.getvalue(), digest_size=16).hexdigest()


def own_shards(plan: Plan, output: Destination) -> range:
    """Return the shards of a plan that a run writes: all, or those of its part."""
    return range(plan.shards) if output.own is None else output.own.part.shards(plan.shards)


def new_sizes(plan: Plan, output: Destination, request: Request) -> list[int]:
    """Return the sizes of the shards that are yet to be written, as planned."""
    existing, resume = output.existing, output.resumes
    loose = request.options.on_error == "skip" or request.transform is not None
    found = []
    for shard in own_shards(plan, output):
        size = int(plan.sizes[shard])
        there = existing.get(output.pattern.shard(output.first + shard)) if resume else None
        if there is None or (there.size != size and not loose):
            found.append(size)
    return found


def _tells_content(samples: ShardSamples, field_crcs: bytes, *, unread: bool) -> bool:
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


def _stamp(entries: Entries) -> int:
    """Return nine digits for what the source's path leads to now, such as could be a time's nanoseconds."""
    return _nine_digits((entries.identity or identity(entries.root)).encode())


def _nine_digits(data: bytes, before: int = 0) -> int:
    return crc32c(data, before) % (_SECOND_NS - 1) + 1
