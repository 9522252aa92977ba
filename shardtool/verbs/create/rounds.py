"""A plan is carried out: tasks to workers, results to the publisher, totals to the dataset file.

What every verb that writes shares. Everything here runs in the parent process; it holds no sample's bytes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from shardtool.dataset.dataset_file import ShardEntry
from shardtool.dataset.sidecar import FORMAT_VERSION, MadeFact, ShardFact, ShardTally, types_of, with_shard
from shardtool.dataset.sidecar_read import read_facts, read_sidecar
from shardtool.dataset.sidecar_write import WrittenShard, encode, encode_table, index_of, string_lists
from shardtool.entries.arrow import number_array, with_column, with_images
from shardtool.errors import Bug, InvalidRequest, SampleFailed, listing, memory_for
from shardtool.fetch import shown_bytes
from shardtool.fingerprint import crc32c
from shardtool.interop.readers import misread_keys
from shardtool.names import Names
from shardtool.pattern import sidecar_name
from shardtool.plan.plan import shard_samples
from shardtool.publish.destination import EndedAppend
from shardtool.request.options import CreateOptions, share
from shardtool.skipped import reasons
from shardtool.values import counted, output_text, source_name, to_bytes, to_text
from shardtool.verbs.create.append import existing_keys
from shardtool.verbs.create.read_cost import REMOTE_READS, opening_s, reads_at_once, show_time
from shardtool.verbs.create.result import PackedShards, check_same
from shardtool.verbs.create.resume import (
    PlannedShard,
    ShardDecision,
    decide,
    is_newer,
    mtime_of,
    mtime_of_shard,
    new_sizes,
    own_shards,
)
from shardtool.wording import flag, option
from shardtool.write.pack_shard import pack_shard
from shardtool.write.task import ShardResult, ShardTask, TransformedSamples, TransformWork, Write

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.execute.pool import Pool
    from shardtool.interop.readers import NameProblem
    from shardtool.plan.plan import Plan
    from shardtool.publish.publisher import Publisher
    from shardtool.request.results import Observer
    from shardtool.skipped import Skipped
    from shardtool.transform.steps import Transform
    from shardtool.verbs.create.request import Manner


_FEW = 100  # samples of a shard, of which a share says little


class PackingRun:
    """A plan being carried out, under the lock.

    Where transforms change sizes, a shard may not have room for all that was planned for it. Such remainders
    are planned again, into shards after the last planned one, in rounds, until nothing is left.

    Args:
        plan: What to do.
        publisher: Where it goes.
        manner: How.
        observer: Gets the progress.
        made_keys: Hashes of the keys that the user's function has given so far, in all splits of the run; grows.
    """

    def __init__(
        self, plan: Plan, publisher: Publisher, manner: Manner, observer: Observer, made_keys: set[bytes]
    ) -> None:
        self._made_keys = made_keys
        self.plan, self.publisher, self.manner, self.observer = plan, publisher, manner, observer
        self.output = publisher.destination
        self.mtime_ns = mtime_of(plan.entries, manner)
        self.entries: dict[int, ShardEntry] = {}
        own = self.output.own  # what the plan leaves out is listed once, by the first of several parts
        self.skipped: list[Skipped] = [*plan.skipped] if own is None or own.part.number == 1 else []
        self.digest = self.kept = self.field_bytes = self.dropped = 0
        self.fields: Counter[str] = Counter()
        self.schema: dict[str, str] = {}
        self._round, self._base = plan, self.output.first  # the plan of this round, and the number of its first shard
        self._shards = own_shards(plan, self.output)  # of this round
        self._consumed: dict[int, int] = {}  # of this round's shards
        self._most = 1  # tasks at the same time
        self._done = 0  # planned samples that are written, left out or dropped
        self._working: dict[int, tuple[PlannedShard, bytes]] = {}  # with the sidecar of a shard of changed samples
        self._fetched = np.zeros(2, np.int64)  # failed, and all: samples of URLs in this run
        self.misread: dict[str, NameProblem] = {}
        self._reported: dict[int, tuple[int, int, int]] = {}  # samples, bytes, samples that failed

    @memory_for("packing the shards")
    def pack(self, pool: Pool) -> PackedShards:
        """Have every shard written, and publish each as it is done; return what they hold."""
        plan, shards, self._most = self.plan, self._shards, pool.most
        samples = sum(map(plan.count, shards))
        if not self._fetches:  # of the web, no sizes are known
            self.publisher.check_space(new_sizes(plan, self.output, self.manner.request))
        size = 0 if self._fetches else int(plan.sizes[shards.start : shards.stop].sum())
        self._note_gap()
        self.observer.start(samples, size, len(shards))
        while True:
            self._consumed, again = {}, []
            for _, result in pool.map(pack_shard, self._tasks(self._shards), self._progress):
                again.append(result.shard) if result.wrong else self._publish(result)
            for _, result in pool.map(pack_shard, self._tasks(again, write=True), self._progress):
                self._publish(result)
            rest = self._rest()
            if not len(rest):
                break
            self._base += self._round.shards
            self._round = self._round.again(rest)
            self._shards = range(self._round.shards)
            self._check_names()
        if self._done != samples:
            found = f"{self._done:,} of {samples:,} planned samples are accounted for; no dataset file was written"
            raise Bug(self.output.pattern.text, found)
        self._check_shape()
        if self.output.own is None and not any(shard.samples for shard in self.entries.values()):
            self.publisher.take_back([self.output.pattern.shard(number) for number in self.entries])
            raise self._none_packed()
        if self._fetches and self.skipped:
            failed = f"{len(self.skipped):,} of {counted(samples, 'sample')}"
            self.observer.note(f"{failed} left out: {reasons(self.skipped)}")
        if empty := [shard.name for shard in self.entries.values() if not shard.samples]:
            self.observer.note(f"{counted(len(empty), 'shard')} without a sample, all left out: {listing(empty)}")
        return PackedShards(
            plan.entries.values,
            tuple(self.entries[shard] for shard in sorted(self.entries)),
            dict(self.fields),
            self.field_bytes,
            self.schema,
            self.digest,
            tuple(sorted(self.skipped, key=lambda one: (to_bytes(one.path), to_bytes(one.key)))),
            self.kept,
            self.dropped,
            tuple(self.misread.values()),
        )

    def _note_gap(self) -> None:
        """Say that a dataset goes before another is there, where nothing can wait unseen."""
        there = self.output.pattern.dataset_file in self.output.existing
        if there and self.output.if_exists == "overwrite" and not self.output.folder.hides:
            self.observer.note("in a store the old dataset file goes first: there is none until this run has ended")

    def _tasks(self, shards: Iterable[int], *, write: bool = False) -> Iterator[ShardTask]:
        """Yield the tasks of some shards of this round; `write`: they are written, whatever is there."""
        plan, manner = self._round, self.manner
        room, work = plan.limits.room, None
        reads = self._reads()
        if manner.transform is not None:
            work = TransformWork(
                self._transform(manner.transform), room, plan.limits.max_count, manner.options.oversize, manner.dots
            )
        for shard in shards:
            name = self.output.pattern.shard(self._base + shard)
            planned = PlannedShard(plan, shard, name, shard_samples(plan, shard))
            decision = ShardDecision(Write()) if write else decide(planned, self.output, manner)
            folder, on_error = self.output.folder, "skip" if self._fetches else manner.options.on_error
            if isinstance(decision.todo, Write):
                if isinstance(self.output.append, EndedAppend):
                    folder = folder.temporary  # it is only compared: the dataset that is there lists its name
                else:
                    self.publisher.before(name)
            self._working[shard] = planned, decision.sidecar
            mtime_ns, size = (
                mtime_of_shard(planned, self.mtime_ns),
                None if work or self._fetches else int(plan.sizes[shard]),
            )
            how = mtime_ns, decision.todo, work, reads, size
            yield ShardTask(shard, name, plan.format, folder, planned.samples, on_error, *how)

    def _transform(self, transform: Transform) -> Transform:
        """Return the transform of one task: of the requests that a host gets at once, it has its share."""
        if transform.fetch is None:
            return transform
        at_once = min(len(self._shards) or 1, self._most)
        return replace(transform, fetch=replace(transform.fetch, per_host=max(1, transform.fetch.per_host // at_once)))

    def _reads(self) -> int:
        """Return how many files each worker reads at the same time: one, beside a user's function, which may fork."""
        if self.manner.transform and (self.manner.transform.function or self.manner.transform.fetch):
            return 1
        if self._round.entries.is_remote:
            return REMOTE_READS
        file_s = opening_s(self._round.entries)
        reads = reads_at_once(file_s, min(len(self._shards) or 1, self._most))
        if reads > 1:
            self.observer.log(f"opening a file takes {show_time(file_s)}: each worker reads {reads} at the same time")
        return reads

    def _rest(self) -> NDArray[np.int64]:
        """Return the places of the samples that found no room in this round's shards."""
        rest = [np.zeros(0, np.int64)]
        for shard in self._shards:
            first, last = self._round.span(shard)
            rest.append(np.arange(first + self._consumed[shard], last))
        return np.concatenate(rest)

    @property
    def _fetches(self) -> bool:
        return self.manner.transform is not None and self.manner.transform.fetch is not None

    def _check_failed(self, shard: str, left_out: Sequence[Skipped], samples: int) -> None:
        """End the run where too many URLs gave no file: rather the network is gone than they are.

        Raises:
            SampleFailed: There are too many in this shard or, if it is a small one, in all of this run so far.
        """
        if not self._fetches or not isinstance(self.manner.options, CreateOptions):
            return
        failed = len(left_out)
        self._fetched += np.array([failed, samples])
        if samples < _FEW:
            failed, samples = self._fetched.tolist()
        most = share("max_failed", self.manner.options.max_failed)
        if failed > most * samples:
            ((code, why), times), *_ = Counter((one.code, one.message) for one in left_out).most_common(1)
            found = f"{failed:,} of {counted(samples, 'sample')} failed, {times:,} of this shard with: {why}"
            expected, again = f"{float(100 * most):.4g}% at most", option("if_exists", "resume")
            remedy = f"Go on with {again}, and with {option('max_failed', '100%')} if these URLs are really gone."
            if code == "refused-address":
                remedy = f"{flag('allow_private')} asks these, too; go on with {again}."
            raise SampleFailed(shard, found, expected=expected, remedy=remedy)

    def _none_packed(self) -> SampleFailed:
        """Return the error of a run that packed nothing: no list is left beside a dataset, so it says why."""
        problem = f"none of {len(self.plan):,} samples could be packed: {reasons(self.skipped, self.dropped)}"
        remedy = "Nothing of this run is left: run it again once that has changed."
        if any(one.code == "refused-address" for one in self.skipped):
            remedy = f"{flag('allow_private')} asks addresses that are not public, too. Nothing of this run is left."
        elif self.manner.options.on_error == "skip" and not self._fetches:
            remedy = f"Run it without {option('on_error', 'skip')} to see why. Nothing of this run is left."
        return SampleFailed(source_name(self.plan.entries.root), problem, remedy=remedy)

    def _check_shape(self) -> None:
        """Check that shards of changed samples are what was asked for: their plan could only guess."""
        if self.manner.transform is None:
            return
        counts = [shard.samples for shard in self.entries.values()]
        again = option("if_exists", "append-resume" if self.output.appends else "overwrite")
        remedy = f"Leave that option out, and run it with {again}: `reshard` can even shards out afterwards."
        where = self.output.pattern.text
        if self.manner.options.equal_count and max(counts) - min(counts) > 1:
            found = f"shards of {min(counts):,} to {max(counts):,} samples, now that the sizes are known"
            raise InvalidRequest(where, found, expected=f"equally many, by {flag('equal_count')}", remedy=remedy)
        if self.output.own is None and len(counts) % self.manner.options.shards_multiple_of:
            found = f"{len(counts):,} shards, now that the sizes are known"
            expected = f"a multiple of {self.manner.options.shards_multiple_of:,}, by {option('shards_multiple_of')}"
            raise InvalidRequest(where, found, expected=expected, remedy=remedy)

    def _check_names(self) -> None:
        pattern, needed = self.output.pattern, self._base + self._round.shards
        again = option("if_exists", "append-resume" if self.output.appends else "overwrite")
        options, shards = self.manner.options, needed - self.output.first
        if options.shards is not None or options.place == "hash":
            found = f"{shards:,} shards or more, now that the sizes are known"
            remedy = f"Raise {option('shards')} or {option('max_size')}, and run it with {again}."
            raise InvalidRequest(pattern.text, found, expected=f"{self.plan.shards:,}, as planned", remedy=remedy)
        if pattern.count is not None and needed > pattern.count:
            found = f"{pattern.count:,} names for {needed:,} shards, now that the sizes are known"
            remedy = f"Use an open range such as out-{{000000..}}.tar, or a wider one, and run it with {again}."
            raise InvalidRequest(pattern.text, found, remedy=remedy)

    def _publish(self, result: ShardResult) -> None:
        """Publish a shard and its sidecar, and add it to the totals."""
        shard, (planned, known) = result.shard, self._working.pop(result.shard)
        number, name = self._base + shard, planned.name
        if known and result.staged is None:
            tally, fact, data = self._known(shard, known, name)
        elif result.made is not None:
            tally, fact, data = self._index_made(result, result.made, planned)
        else:
            tally, fact, data = self._index(result, planned)
        sidecar, keys = (sidecar_name(fact.name), len(data), crc32c(data)), (tally.first_key, tally.last_key)
        self.entries[number] = ShardEntry(fact.name, tally.samples, fact.size, fact.crc, *sidecar, *keys)
        if isinstance(self.output.append, EndedAppend):
            if result.staged is not None:
                self.output.folder.temporary.discard_staged([name])
            check_same(self.output.append, number, self.entries[number], self.output)
            self.kept += 1
        else:
            self.publisher.add(result.staged, data, name)
            self.kept += result.staged is None
            mtime_ns = mtime_of_shard(planned, self.mtime_ns)
            if result.compared and is_newer(planned, mtime_ns):  # not while the clocks may differ by more
                self.output.folder.set_time(name, mtime_ns)  # so that the next run trusts it
        self.field_bytes += tally.field_bytes
        self.fields.update(tally.fields)
        done_samples, done_bytes, done_failed = self._reported.pop(shard, (0, 0, 0))
        size = fact.size if self._fetches else int(self._round.sizes[shard])
        more = self._consumed[shard] - done_samples, size - done_bytes
        if self._fetches:
            self.observer.failed(max(0, len(result.skipped) - done_failed))
        self.observer.advance(max(0, more[0]), max(0, more[1]), 1)
        state = "kept" if result.staged is None else "written"
        self.observer.log(f"{name}: {state}, {tally.samples:,} samples, {fact.size:,} bytes")

    def _index(self, result: ShardResult, planned: PlannedShard) -> tuple[ShardTally, ShardFact, bytes]:
        """Return the facts of a shard that was packed as planned, and its sidecar."""
        plan, shard, samples = self._round, result.shard, planned.samples
        skipped = tuple(place for place, _ in result.skipped)
        paths = samples.shown_paths(shown_bytes) if plan.entries.source_paths else b""
        written = WrittenShard(plan.format, samples.content, plan.metadata(shard), result.field_crcs, skipped, paths)
        fact = self._fact(result, planned, None, plan.count(shard))
        index = index_of(written)
        data, self.schema = encode(index, fact)
        tally = index.tally()
        self._count(shard, plan.count(shard), tally.samples + len(skipped), result)
        return tally, fact, data

    def _index_made(
        self, result: ShardResult, made: TransformedSamples, planned: PlannedShard
    ) -> tuple[ShardTally, ShardFact, bytes]:
        """Return the facts of a shard of changed samples, and its sidecar."""
        plan, shard, samples = self._round, result.shard, planned.samples
        sources = np.frombuffer(made.sources, np.int64)
        columns = plan.metadata(shard)
        if plan.entries.source_paths:
            counts = np.frombuffer(samples.content.counts, np.uint16).astype(np.int64)
            paths = samples.shown_paths(shown_bytes)[:-1].split(b"\0")
            columns = with_column(columns, "source_paths", string_lists(paths, counts))
        if columns is not None:
            columns = columns.take(number_array(sources))
        if made.images or (self.manner.transform and self.manner.transform.probes):
            columns = with_images(columns, made.images)
        left_out = tuple(one for _, one in result.skipped) if self._fetches else ()
        self._check_failed(planned.name, left_out, made.consumed)
        of_made = MadeFact(result.digest, made.consumed, made.dropped, len(result.skipped), left_out)
        fact = self._fact(result, planned, of_made, made.consumed)
        index = index_of(WrittenShard(plan.format, made.content, columns, result.field_crcs, ()))
        data, self.schema = encode(index, fact)
        self._check_keys(index.all_keys())
        self.dropped += made.dropped
        self._count(shard, made.consumed, len(np.unique(sources)) + made.dropped + len(result.skipped), result)
        return index.tally(), fact, data

    def _fact(self, result: ShardResult, planned: PlannedShard, made: MadeFact | None, consumed: int) -> ShardFact:
        """Return what the sidecar of a shard says of it."""
        name, plan_hash = output_text(planned.name), planned.fingerprint(self.manner)
        shards = self._planned(result.shard, consumed)
        return ShardFact(name, result.size, result.crc, plan_hash, made, self._first, shards)

    def _known(self, shard: int, data: bytes, name: str) -> tuple[ShardTally, ShardFact, bytes]:
        """Return what a sound sidecar says of a shard of changed samples that stays as it is."""
        index = sidecar_name(name)
        fact = read_facts(data, index)
        sidecar = read_sidecar(data, index, fact.size)  # as it was read when it was found to be sound
        self.schema = types_of(with_shard(sidecar.plain_table().schema))
        made = fact.made
        if made is None:
            raise Bug(name, "a kept shard without its facts")
        planned = self._planned(shard, made.consumed)  # another number if the source has grown or shrunk since
        if (fact.shards, sidecar.version) != (planned, FORMAT_VERSION):
            fact = replace(fact, first=self._first, shards=planned)
            data = encode_table(sidecar.plain_table(), fact)
        self.digest += made.content
        self.dropped += made.dropped
        self.skipped += made.left_out
        self._consumed[shard] = made.consumed
        self._done += made.consumed
        self._check_keys(sidecar.all_keys())
        return sidecar.tally(), fact, data

    @property
    def _first(self) -> str:
        return output_text(self.output.pattern.shard(self.output.first))

    def _planned(self, shard: int, consumed: int) -> int:
        """Return how many shards this run is to make, as far as it is known when a shard is written.

        Those of this round and of all before, and one more where samples planned for this shard found no room in it:
        so, of all shards that a killed run has left, one names more than there are.
        """
        before = self._base - self.output.first
        return before + self._round.shards + (consumed < self._round.count(shard))

    def _count(self, shard: int, consumed: int, accounted: int, result: ShardResult) -> None:
        """Add a shard's samples to the totals; what is neither written, left out nor dropped would be lost."""
        if consumed != accounted:
            name = self.output.pattern.shard(self._base + shard)
            raise Bug(name, f"{accounted:,} of {consumed:,} samples accounted for; no dataset file was written")
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
                found = f"a key that the function of {option('map')} gave, and the dataset appended to has already"
                raise SampleFailed(to_text(key), found, remedy="Give each sample that it returns a key of its own.")
            if mark in self._made_keys:
                found = f"a key that the function of {option('map')} gave to two samples"
                raise SampleFailed(to_text(key), found, remedy="Give each sample that it returns a key of its own.")
            self._made_keys.add(mark)

    @cached_property
    def _taken(self) -> frozenset[bytes]:
        """Hashes of the keys of the dataset that is appended to."""
        old = self.output.old
        keys = Names.of(()) if old is None else existing_keys(self.output.folder, old.shards[: self.output.first])
        return frozenset(blake2b(keys[at], digest_size=16).digest() for at in range(len(keys)))

    def _progress(self, shard: int, samples: int, size: int, failed: int = 0) -> None:
        done = self._reported.get(shard, (0, 0, 0))
        self._reported[shard] = done[0] + samples, done[1] + size, done[2] + failed
        if failed:
            self.observer.failed(failed)
        self.observer.advance(samples, size, 0)
