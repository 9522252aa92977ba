"""A plan is carried out: tasks to workers, results to the publisher, totals to the dataset file.

What every verb that writes shares. Everything here runs in the parent process; it holds no sample's bytes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shardtool.dataset.dataset_file import DatasetFile, ShardEntry, feature_spec
from shardtool.dataset.sidecar import (
    MadeFact,
    ShardFact,
    Tally,
    Written,
    encode,
    encode_table,
    index_of,
    read_facts,
    string_lists,
    tally_of,
    types_of,
)
from shardtool.dataset.sidecar_read import read_sidecar
from shardtool.entries.metadata import with_column, with_images
from shardtool.errors import Bug, InvalidRequest, SampleFailed, ShardError, listing, memory_for
from shardtool.fingerprint import crc32c, show_fingerprint
from shardtool.interop.portability import misread_keys
from shardtool.names import Names
from shardtool.pattern import sidecar_name
from shardtool.plan.plan import fingerprint
from shardtool.publish.append import existing_keys, joined
from shardtool.publish.appended import Done
from shardtool.publish.skipped_file import encode_skipped
from shardtool.storage.staging import identity
from shardtool.table.arrow import number_array
from shardtool.values import SPAN, counted, output_text, to_bytes, to_text
from shardtool.write.shard import pack_shard
from shardtool.write.task import Kept, Made, ShardResult, ShardTask, Work

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardtool.entries.entries import Entries
    from shardtool.execute.local import LocalPool
    from shardtool.interop.portability import Misread
    from shardtool.pack.request import Request
    from shardtool.plan.plan import Plan
    from shardtool.publish.destination import Destination
    from shardtool.publish.publisher import Publisher
    from shardtool.request.observer import Observer
    from shardtool.request.options import OutputOptions
    from shardtool.storage.staging import FileFact
    from shardtool.transform.steps import Transform
    from shardtool.values import Dots, Oversize, ShardSamples, Skipped

_CLOCK_SLACK_S = 60  # by how much the clocks of a source's and an output's file systems may differ
_SECOND_NS = 10**9


@dataclass(frozen=True, slots=True)
class Manner:
    """How plans are carried out.

    Attributes:
        request: What was asked for.
        begun: When the run began, before the source was listed: seconds since 1970.
        dots: The dot at which keys end in the names of a tar's members.
        keys: Hashes of the keys that the user's function made, over all splits.
    """

    request: Request
    begun: float
    dots: Dots = "first"
    keys: set[bytes] = field(default_factory=set)

    @property
    def transform(self) -> Transform | None:
        """What is done to each sample; None: nothing."""
        return self.request.transform

    @property
    def options(self) -> OutputOptions:
        """The options of the run."""
        return self.request.options


class Packing:
    """A plan being carried out, under the lock.

    Where transforms change sizes, a shard may not have room for all that was planned for it. Such remainders
    are planned again, into shards after the last planned one, in rounds, until nothing is left.

    Args:
        plan: What to do.
        publisher: Where it goes.
        manner: How.
        observer: Is told of progress.

    Attributes:
        kept: How many shards an earlier run had finished.
        dropped: How many samples the user's function dropped.
        misread: What readers would get wrong about the keys that it made, by code.
    """

    def __init__(self, plan: Plan, publisher: Publisher, manner: Manner, observer: Observer) -> None:
        self.plan, self.publisher, self.manner, self.observer = plan, publisher, manner, observer
        self.output = publisher.destination
        self.stamp = _stamp(plan.entries)
        self.mtime_ns = (int(manner.begun) - _CLOCK_SLACK_S) * _SECOND_NS + self.stamp  # see `_trusted`
        self.entries: dict[int, ShardEntry] = {}
        self.skipped: list[Skipped] = [*plan.entries.left_out, *plan.left_out]
        self.digest = self.kept = self.field_bytes = self.dropped = 0
        self.fields: Counter[str] = Counter()
        self.schema: dict[str, str] = {}
        self._round, self._base = plan, self.output.first  # the plan of this round, and the number of its first shard
        self._consumed: dict[int, int] = {}  # of this round's shards
        self._done = 0  # planned samples that are written, left out or dropped
        self._working: dict[int, ShardSamples] = {}
        self._sidecars: dict[int, bytes] = {}  # of shards that are to be kept, where samples are changed
        self.misread: dict[str, Misread] = {}
        self._reported: dict[int, tuple[int, int]] = {}

    @memory_for("packing the shards")
    def pack(self, pool: LocalPool) -> None:
        """Have every shard written, and publish each as it is done."""
        plan = self.plan
        self.publisher.check_space(new_sizes(plan, self.output, self.manner.request))
        self.observer.start(len(plan), int(plan.sizes.sum()), plan.shards)
        while True:
            self._consumed = {}
            for _, result in pool.map(pack_shard, self._tasks(), self._progress):
                self._publish(result)
            rest = self._rest()
            if not len(rest):
                break
            self._base += self._round.shards
            self._round = self._round.again(rest)
            self._check_names()
        if self._done != len(plan):
            raise Bug(
                self.output.pattern.text,
                f"{self._done:,} of {len(plan):,} planned samples are accounted for; no dataset file was written",
            )  # fmt: skip
        self._check_shape()
        if not any(shard.samples for shard in self.entries.values()):
            raise SampleFailed(
                to_text(plan.entries.root), f"none of {len(plan):,} samples could be packed",
                remedy="Run it without --on-error skip to see why. No dataset file was written.",
            )  # fmt: skip
        if empty := [shard.name for shard in self.entries.values() if not shard.samples]:
            self.observer.note(f"{counted(len(empty), 'shard')} without a sample, all left out: {listing(empty)}")

    @memory_for("the dataset file")
    def publish_dataset(self, made: Mapping[str, object]) -> DatasetFile:
        """Publish what was skipped and the dataset file; return what it says.

        Args:
            made: How the dataset was made, or what was appended: goes into the dataset file as it is.
        """
        if isinstance(self.output.append, Done):
            self._check_done(self.output.append, self.output.first + len(self.entries))
            return self.output.append.old
        plan, pattern = self.plan, self.output.pattern
        self.skipped.sort(key=lambda one: (to_bytes(one.path), to_bytes(one.key)))
        skipped = self.publisher.all_skipped(self.skipped)
        shards = range(self.output.first, self.output.first + len(self.entries))
        dataset = DatasetFile(
            name=output_text(pattern.base),
            pattern=output_text(pattern.text),
            format=pattern.format,
            shards=tuple(self.entries[shard] for shard in shards),
            fields={name: self.fields[name] for name in sorted(self.fields, key=to_bytes)},
            field_bytes=self.field_bytes,
            skipped=len(skipped),
            schema=self.schema,
            classes=plan.entries.classes,
            features=self._features() if plan.format == "tfrecord" else {},
            made=made,
            fingerprint=show_fingerprint(self.digest),
            skipped_crc=crc32c(encode_skipped(skipped)) if skipped else None,
            numbers=self._numbers() if plan.format == "tar" else {},
        )
        if self.output.old is not None:
            dataset = joined(self.output.old, dataset)
        self.publisher.finish([pattern.shard(shard) for shard in shards], dataset.encode(), skipped)
        return dataset

    def _check_done(self, done: Done, number: int) -> None:
        """See that a shard is the one that the dataset has; or, after the last, that it has no more."""
        if [*done.old.shards[number : number + 1]] != [*filter(None, [self.entries.get(number)])]:
            raise InvalidRequest(
                self.output.pattern.text, "the dataset has these samples already, with other content",
                remedy="Give the new samples other keys, and leave --resume out.",
            )  # fmt: skip

    def _features(self) -> dict[str, str]:
        samples = sum(shard.samples for shard in self.entries.values())
        entries = self.plan.entries
        return feature_spec(self.fields, {**entries.numbers, **entries.lists}, samples, entries.lists)

    def _numbers(self) -> dict[str, str]:
        numbers = self.plan.entries.numbers
        return {name: numbers[name] for name in sorted(numbers, key=to_bytes) if name in self.fields}

    def _tasks(self) -> Iterator[ShardTask]:
        plan, manner = self._round, self.manner
        room, work = plan.limits.room, None
        if manner.transform is not None:
            work = Work(manner.transform, room, plan.limits.max_count, manner.options.oversize, manner.dots)
        for shard in range(plan.shards):
            samples = self._working[shard] = plan.samples(shard)
            name = self.output.pattern.shard(self._base + shard)
            kept = self._kept(shard, name, samples)
            folder = self.output.folder
            yield ShardTask(
                shard, name, plan.format, folder, samples, manner.options.on_error, self.mtime_ns, kept, work
            )

    def _rest(self) -> Any:
        """Return the places of the samples that found no room in this round's shards."""
        rest = [np.zeros(0, np.int64)]
        for shard in range(self._round.shards):
            first, last = self._round.span(shard)
            rest.append(np.arange(first + self._consumed[shard], last))
        return np.concatenate(rest)

    def _check_shape(self) -> None:
        """See that shards of changed samples are what was asked for: their plan could only guess."""
        if self.manner.transform is None:
            return
        counts = [shard.samples for shard in self.entries.values()]
        again = "--append --resume" if self.output.appends else "--overwrite"
        remedy = f"Leave that option out, and run it with {again}: `reshard` can even shards out afterwards."
        where = self.output.pattern.text
        if self.manner.options.equal_count and max(counts) - min(counts) > 1:
            found = f"shards of {min(counts):,} to {max(counts):,} samples, now that the sizes are known"
            raise InvalidRequest(where, found, expected="equally many, by --equal-count", remedy=remedy)
        if len(counts) % self.manner.options.shards_multiple_of:
            found, multiple = (
                f"{len(counts):,} shards, now that the sizes are known",
                self.manner.options.shards_multiple_of,
            )
            raise InvalidRequest(
                where, found, expected=f"a multiple of {multiple:,}, by --shards-multiple-of", remedy=remedy
            )

    def _check_names(self) -> None:
        pattern, needed = self.output.pattern, self._base + self._round.shards
        again = "--append --resume" if self.output.appends else "--overwrite"
        if pattern.count is not None and needed > pattern.count:
            raise InvalidRequest(
                pattern.text, f"{pattern.count:,} names for {needed:,} shards, now that the sizes are known",
                remedy=f"Use an open range such as out-{{000000..}}.tar, or a wider one, and run it with {again}.",
            )  # fmt: skip

    def _kept(self, shard: int, name: str, samples: ShardSamples) -> Kept | None:
        """Return what is known of a file that an earlier run has left; None where it must be written."""
        fact = self.output.existing.get(name)
        if not self.output.resumes or fact is None:
            return None
        changes = self.manner.transform is not None
        if not changes and fact.size != self._round.sizes[shard]:
            # Another plan's, or one that left samples out, and would again.
            return Kept() if self.manner.options.on_error == "skip" and fact.size < self._round.sizes[shard] else None
        found = self._trusted(shard, fact, name, samples)
        unread = self.manner.options.trust == "size"
        if changes:
            kept = self._kept_changed(shard, *found[:2]) if found else None
            return replace(kept, unread=unread, size=fact.size) if kept else None
        if found is None or len(found[2]) != 2 * len(samples.codes):
            return Kept()
        if not _tells_content(samples, found[2], unread=unread):
            return Kept()
        return Kept(found[1].crc, found[2], unread and not samples.lists, fact.size)

    def _trusted(
        self, shard: int, fact: FileFact, name: str, samples: ShardSamples
    ) -> tuple[bytes, ShardFact, bytes] | None:
        """Return the sidecar of a shard whose source has not changed since, what it says, and its fields' checksums.

        A shard's modification time is a while before its run listed the source, and its nanoseconds name the
        source's root. So nothing below this root that leads to the shard's files has changed since; and the time
        is ours, not that of a copy of the shard, which would tell nothing of when its source was read.

        Where sizes are to be trusted, times are not looked at.
        """
        if self.manner.options.trust == "time" and not self._is_newer(shard, fact.mtime_ns):
            return None
        index = sidecar_name(name)
        try:
            data = self.output.folder.read(index)
            sidecar = read_sidecar(data, index, fact.size, metadata=False)
        except (OSError, ShardError):
            return None
        said, crcs = sidecar.fact, b"" if sidecar.rows.crcs is None else sidecar.rows.crcs.tobytes()
        same = (said.plan, said.name, said.size) == (self._fingerprint(shard, samples), output_text(name), fact.size)
        return (data, said, crcs) if same else None

    def _is_newer(self, shard: int, mtime_ns: int) -> bool:
        """Tell whether a shard's modification time proves that its source has not changed since."""
        return self._round.changed_ns(shard) < mtime_ns and mtime_ns % _SECOND_NS == self.stamp

    def _renew_time(self, shard: int, name: str) -> None:
        """Let the next run trust a shard that this one has compared with its source: it is as good as written anew.

        Only where that helps: not while the source is younger than the clocks may differ.
        """
        if self._is_newer(shard, self.mtime_ns):
            self.output.folder.set_time(name, self.mtime_ns)

    def _kept_changed(self, shard: int, data: bytes, said: ShardFact) -> Kept | None:
        """Return what is known of a shard of changed samples; what was left out of one is not known."""
        if said.made is None or said.made.skipped:
            return None
        name = sidecar_name(self.output.pattern.shard(self._base + shard))
        try:
            table = read_sidecar(data, name, said.size).plain_table()
            sound = encode_table(table, said) == data  # nothing else finds a flipped bit in its facts
        except ShardError:
            sound = False
        if not sound:
            return None
        self._sidecars[shard] = data
        return Kept(said.crc)

    def _fingerprint(self, shard: int, samples: ShardSamples) -> str:
        manner = self.manner
        return shard_fingerprint(
            self._round,
            shard,
            samples,
            work=manner.request.identity,
            oversize=manner.options.oversize,
            dots=manner.dots,
        )

    def _publish(self, result: ShardResult) -> None:
        """Publish a shard and its sidecar, and add it to the totals."""
        shard, samples = result.shard, self._working.pop(result.shard)
        number = self._base + shard
        name = self.output.pattern.shard(number)
        known = self._sidecars.pop(shard, None)
        if known is not None and result.staged is None:
            tally, fact, data = self._known(shard, known, name)
        elif result.made is not None:
            tally, fact, data = self._index_made(result, result.made, samples, name)
        else:
            tally, fact, data = self._index(result, samples, name)
        self.entries[number] = ShardEntry(
            fact.name, tally.samples, fact.size, fact.crc, sidecar_name(fact.name), len(data), crc32c(data),
            tally.first_key, tally.last_key,
        )  # fmt: skip
        if isinstance(self.output.append, Done):
            self._check_done(self.output.append, number)
            self.output.folder.discard_staged([name])
            self.kept += 1
        else:
            self.publisher.add(result.staged, data, name)
            self.kept += result.staged is None
            if result.compared:
                self._renew_time(shard, name)
        self.field_bytes += tally.field_bytes
        self.fields.update(tally.fields)
        done_samples, done_bytes = self._reported.pop(shard, (0, 0))
        more = self._consumed[shard] - done_samples, int(self._round.sizes[shard]) - done_bytes
        self.observer.advance(max(0, more[0]), max(0, more[1]), 1)
        state = "kept" if result.staged is None else "written"
        self.observer.log(f"{name}: {state}, {tally.samples:,} samples, {fact.size:,} bytes")

    def _index(self, result: ShardResult, samples: ShardSamples, name: str) -> tuple[Tally, ShardFact, bytes]:
        """Return what is to be told of a shard that was packed as planned, and its sidecar."""
        plan, shard = self._round, result.shard
        left_out = tuple(place for place, _ in result.skipped)
        columns = plan.columns(shard)
        written = Written(plan.format, samples, columns, result.field_crcs, left_out, plan.entries.source_paths)
        fact = ShardFact(
            output_text(name), result.size, result.crc, self._fingerprint(shard, samples), None,
            self._first, self._planned(shard, plan.count(shard)),
        )  # fmt: skip
        index = index_of(written)
        data, self.schema = encode(index, fact)
        tally = index.tally()
        self._count(shard, plan.count(shard), tally.samples + len(left_out), result)
        return tally, fact, data

    def _index_made(
        self, result: ShardResult, made: Made, samples: ShardSamples, name: str
    ) -> tuple[Tally, ShardFact, bytes]:
        """Return what is to be told of a shard of changed samples, and its sidecar."""
        plan, shard = self._round, result.shard
        sources = np.frombuffer(made.sources, np.int64)
        columns = plan.columns(shard)
        if plan.entries.source_paths and samples.paths is not None:
            counts = np.frombuffer(samples.counts, np.uint16).astype(np.int64)
            columns = with_column(columns, "source_paths", string_lists(samples.paths[:-1].split(b"\0"), counts))
        if columns is not None:
            columns = columns.take(number_array(sources))
        if made.images or (self.manner.transform and self.manner.transform.probes):
            columns = with_images(columns, made.images)
        fact = ShardFact(
            output_text(name), result.size, result.crc, self._fingerprint(shard, samples),
            MadeFact(result.digest, made.consumed, made.dropped, len(result.skipped)),
            self._first, self._planned(shard, made.consumed),
        )  # fmt: skip
        index = index_of(Written(plan.format, made.samples, columns, result.field_crcs, (), source_paths=False))
        data, self.schema = encode(index, fact)
        self._check_keys(index.keys[:-1].split(b"\0") if index.keys else [])
        self.dropped += made.dropped
        self._count(shard, made.consumed, len(np.unique(sources)) + made.dropped + len(result.skipped), result)
        return index.tally(), fact, data

    def _known(self, shard: int, data: bytes, name: str) -> tuple[Tally, ShardFact, bytes]:
        """Return what a sound sidecar tells of a shard of changed samples that stays as it is."""
        index = sidecar_name(name)
        fact = read_facts(data, index)
        table = read_sidecar(data, index, fact.size).plain_table()  # as it was read when it was found to be sound
        self.schema = types_of(table.schema)
        made = fact.made
        if made is None:
            raise Bug(name, "a kept shard without its facts")
        if fact.shards != (planned := self._planned(shard, made.consumed)):  # the source has grown or shrunk since
            fact = replace(fact, first=self._first, shards=planned)
            data = encode_table(table, fact)
        self.digest += made.content
        self.dropped += made.dropped
        self._consumed[shard] = made.consumed
        self._done += made.consumed
        self._check_keys([key.encode() for key in table.column("__key__").to_pylist()])
        return tally_of(table), fact, data

    @property
    def _first(self) -> str:
        return output_text(self.output.pattern.shard(self.output.first))

    def _planned(self, shard: int, consumed: int) -> int:
        """Return how many shards this run is to make, as far as it is known when a shard is written.

        Those of this round and of all before, and one more where samples planned for this shard found no room in it:
        so, of all shards that a killed run has left, one tells of more than there are.
        """
        before = self._base - self.output.first
        return before + self._round.shards + (consumed < self._round.count(shard))

    def _count(self, shard: int, consumed: int, accounted: int, result: ShardResult) -> None:
        """Add a shard's samples to the totals; what is neither written, left out nor dropped would be lost."""
        if consumed != accounted:
            name = self.output.pattern.shard(self._base + shard)
            raise Bug(
                name, f"{accounted:,} of {consumed:,} samples accounted for; no dataset file was written"
            )  # fmt: skip
        self._consumed[shard] = consumed
        self._done += consumed
        self.digest += result.digest
        self.skipped += [one for _, one in result.skipped]

    def _check_keys(self, keys: list[bytes]) -> None:
        """Refuse keys that the user's function gave twice: the plan could not know them."""
        if self.manner.transform is None or not self.manner.transform.function:
            return
        if self.plan.format == "tar" and keys:
            for one in misread_keys(Names.of(keys)):
                before = self.misread.get(one.code)
                self.misread[one.code] = replace(before, count=before.count + one.count) if before else one
        for key in keys:
            mark = blake2b(key, digest_size=16).digest()
            if mark in self._taken:
                raise SampleFailed(
                    to_text(key), "a key that the function of --map gave, and the dataset appended to has already",
                    remedy="Give each sample that it returns a key of its own.",
                )  # fmt: skip
            if mark in self.manner.keys:
                raise SampleFailed(
                    to_text(key), "a key that the function of --map gave to two samples",
                    remedy="Give each sample that it returns a key of its own.",
                )  # fmt: skip
            self.manner.keys.add(mark)

    @cached_property
    def _taken(self) -> frozenset[bytes]:
        """Hashes of the keys of the dataset that is appended to."""
        old = self.output.old
        keys = Names.of(()) if old is None else existing_keys(self.output.folder, old.shards[: self.output.first])
        return frozenset(blake2b(keys[at], digest_size=16).digest() for at in range(len(keys)))

    def _progress(self, shard: int, samples: int, size: int) -> None:
        done = self._reported.get(shard, (0, 0))
        self._reported[shard] = done[0] + samples, done[1] + size
        self.observer.advance(samples, size, 0)


def shard_fingerprint(  # noqa: PLR0913 - all that decides the bytes
    plan: Plan, shard: int, samples: ShardSamples, *, work: str, oversize: Oversize, dots: Dots
) -> str:
    """Return what tells a planned shard from any other: what goes into it, and what is done to that.

    Args:
        plan: The plan.
        shard: Its number there.
        samples: Its samples.
        work: What tells the transform from any other; empty for none.
        oversize: What becomes of a sample that turns out to fit in no shard.
        dots: Where keys end in the names of a tar's members.
    """
    if work:
        work += f" {plan.limits.room} {plan.limits.max_count} {oversize}"
        work += " last" if dots == "last" else ""  # other keys of the function's may be in the way
        if (columns := plan.columns(shard)) is not None:
            work += " " + _table_hash(columns)
    return fingerprint(plan.format, samples, work)


def new_sizes(plan: Plan, output: Destination, request: Request) -> list[int]:
    """Return the sizes of the shards that are yet to be written, as planned."""
    existing, resume = output.existing, output.resumes
    names = [output.pattern.shard(output.first + at) for at in range(plan.shards)]
    loose = request.options.on_error == "skip" or request.transform is not None
    return [
        int(size) for name, size in zip(names, plan.sizes, strict=True)
        if not (resume and name in existing and (existing[name].size == size or loose))
    ]  # fmt: skip


def _tells_content(samples: ShardSamples, field_crcs: bytes, *, unread: bool) -> bool:
    """Tell whether payloads are those that are wanted, as far as their checksums do: their places say nothing of that.

    Args:
        samples: What is planned.
        field_crcs: uint32 a field, of the shard that is there.
        unread: Whether payloads without a checksum are taken for right.
    """
    spans = np.frombuffer(samples.kinds, np.uint8) == SPAN
    if not spans.any():
        return True
    if samples.expected is None:
        return unread
    wanted = np.frombuffer(samples.expected, np.int64)[spans]
    there = np.frombuffer(field_crcs, np.uint32)[spans]
    return bool(np.all((wanted == there) | (unread & (wanted < 0))))


def _table_hash(table: Any) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return blake2b(sink.getvalue(), digest_size=16).hexdigest()


def _stamp(entries: Entries) -> int:
    """Return nine digits for what the source's path leads to now, such as could be a time's nanoseconds."""
    return crc32c((entries.identity or identity(entries.root)).encode()) % (_SECOND_NS - 1) + 1
