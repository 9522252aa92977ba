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

from shardtool.dataset import shard_index
from shardtool.dataset.shard_index import MadeFact, ShardFact, ShardIndex, types_of, with_shard
from shardtool.entries.arrow import number_array, with_column, with_found, without_numbers
from shardtool.entries.entries import Names
from shardtool.errors import Bug, InvalidRequest, SampleFailed, ShardError, listing, memory_for
from shardtool.fetch import shown_bytes
from shardtool.interop.readers import READERS, NameProblem, misread_keys
from shardtool.pattern import sidecar_name
from shardtool.plan.plan import shard_samples
from shardtool.publish.publisher import EndedAppend
from shardtool.skipped import Skipped, failures, reasons
from shardtool.source.base import none_taken
from shardtool.source.payloads import files_at_once
from shardtool.values import counted, output_text, source_name, to_text
from shardtool.verbs.create.earlier import (
    ShardPlan,
    decide,
    existing_keys,
    is_newer,
    mtime_of,
    mtime_of_shard,
    new_sizes,
)
from shardtool.verbs.create.plans import work_of
from shardtool.verbs.create.result import check_same
from shardtool.verbs.create.run import Output, Run, Totals
from shardtool.wording import flag, option
from shardtool.write.pack_shard import pack_shard
from shardtool.write.packer import ShardResult, ShardTask, TransformWork

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.transform import Transform


_FEW = 100  # samples of a shard, of which a share says little


class Packing:
    """A plan being carried out, under the lock.

    Where transforms change sizes, a shard may not have room for all that was planned for it. Such remainders
    are planned again, into shards after the last planned one, in rounds, until nothing is left.

    Args:
        run: The run.
        output: What has the plan, and gets what its shards hold.
    """

    def __init__(self, run: Run, output: Output) -> None:
        self.run, self.output, self.plan, self.publisher = run, output, output.plan, output.publisher
        self.destination, self.observer = output.destination, run.notes.observer
        self.mtime_ns = mtime_of(run)
        own = self.destination.own  # what the plan leaves out is listed once, by the first of several parts
        values = self.plan.entries.values
        if run.options.map:  # the function may make anything of text and JSON, and is trusted with numbers
            values = replace(values, types=values.numbers)
        self.totals = output.totals = Totals(values)
        self.totals.skipped += self.plan.skipped if own is None or own.part.number == 1 else ()
        self._round, self._base = self.plan, self.destination.first  # this round's plan, and its first shard's number
        self._shards = output.own_shards  # of this round
        self._numbers: dict[str, int] = {}  # of published shards
        self._consumed: dict[int, int] = {}  # of this round's shards
        self._done = 0  # planned samples that are written, left out or dropped
        self._working: dict[int, tuple[ShardPlan, bytes]] = {}  # with the sidecar of a shard of changed samples
        self._fetched = np.zeros(2, np.int64)  # failed, and all: samples of URLs in this run
        self._misread: dict[str, NameProblem] = {}
        self._reported: dict[int, tuple[int, int, int]] = {}  # samples, bytes, samples that failed

    @memory_for("packing the shards")
    def pack(self) -> None:
        """Have every shard written, and publish each as it is done."""
        plan, shards, pool, totals = self.plan, self._shards, self.run.pool, self.totals
        samples = sum(map(plan.count, shards))
        if not self.run.fetches:  # of the web, no sizes are known
            self.publisher.check_space(new_sizes(self.run, self.output))
        size = 0 if self.run.fetches else int(plan.sizes[shards.start : shards.stop].sum())
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
        totals.shards.sort(key=lambda shard: self._numbers[shard.name])
        self._check_shape()
        grows = any(one.destination.old for one in (*self.run.outputs, *self.run.untouched))  # maybe by a new split
        chose = grows and not failures(totals.skipped) and not self.output.dropped
        if self.destination.own is None and not totals.samples and not chose:
            self.publisher.take_back([self.output.pattern.shard(number) for number in self._numbers.values()])
            raise self._none_packed()
        if (self.run.fetches or self.run.listed.later) and totals.skipped:
            failed = f"{len(totals.skipped):,} of {counted(samples, 'sample')}"
            self.observer.note(f"{failed} left out: {reasons(totals.skipped)}")
        if empty := [shard.name for shard in totals.shards if not shard.samples]:
            self.observer.note(f"{counted(len(empty), 'shard')} without a sample, all left out: {listing(empty)}")
        counting = {code for code, readers in READERS.items() if not {*readers}.isdisjoint(self.run.options.readers)}
        self.run.notes.add(*(str(one) for one in self._misread.values() if one.code in counting))

    def _note_gap(self) -> None:
        """Say that a dataset goes before another is there, where nothing can wait unseen."""
        there = self.destination
        overwrites = self.output.pattern.dataset_file in there.existing and there.if_exists == "overwrite"
        if overwrites and not there.folder.hides:
            self.observer.note("in a store the old dataset file goes first: there is none until this run has ended")

    def _tasks(self, shards: Iterable[int], *, write: bool = False) -> Iterator[ShardTask]:
        """Yield the tasks of some shards of this round; `write`: they are written, whatever is there."""
        plan, run, work, reads = self._round, self.run, None, self._reads()
        if run.transform is not None:
            transform, limits = self._transform(run.transform), plan.limits
            work = TransformWork(transform, limits.room, limits.max_count, run.options.oversize, run.dots)
        for shard in shards:
            name, folder = self.output.pattern.shard(self._base + shard), self.destination.folder
            planned = ShardPlan(run, plan, shard, name, shard_samples(plan, shard))
            todo, known = ("write", b"") if write else decide(planned, self.destination)
            if todo == "write":
                if isinstance(self.destination.append, EndedAppend):
                    folder = folder.temporary  # it is only compared: the dataset that is there lists its name
                else:
                    self.publisher.before(name)
            self._working[shard] = planned, known
            yield ShardTask(
                shard=shard,
                name=name,
                format=plan.format,
                folder=folder,
                samples=planned.samples,
                on_error="skip" if run.fetches else run.options.on_error,
                mtime_ns=mtime_of_shard(planned, self.mtime_ns),
                todo=todo,
                work=work and work_of(plan, shard, work),
                reads=reads,
                size=None if work else int(plan.sizes[shard]),
            )

    @property
    def _at_once(self) -> int:
        """How many of this round's tasks run at the same time."""
        return min(len(self._shards) or 1, self.run.pool.most)

    def _transform(self, transform: Transform) -> Transform:
        """Return the transform of one task: of the requests that a host gets at once, it has its share."""
        if transform.fetch is None:
            return transform
        per_host = max(1, transform.fetch.per_host // self._at_once)
        return transform._replace(fetch=replace(transform.fetch, per_host=per_host))

    def _reads(self) -> int:
        """Return how many files each worker reads at the same time: one, beside a user's function, which may fork."""
        if self.run.makes_keys or self.run.fetches:
            return 1
        reads, why = files_at_once(self._round.entries, self._at_once)
        if why:
            self.observer.log(why)
        return reads

    def _rest(self) -> NDArray[np.int64]:
        """Return the places of the samples that found no room in this round's shards."""
        rest = [np.zeros(0, np.int64)]
        for shard in self._shards:
            first, last = self._round.span(shard)
            rest.append(np.arange(first + self._consumed[shard], last))
        return np.concatenate(rest)

    def _check_failed(self, shard: str, left_out: Sequence[Skipped], samples: int) -> None:
        """End the run where too many URLs gave no file: rather the network is gone than they are.

        Raises:
            SampleFailed: There are too many in this shard or, if it is a small one, in all of this run so far.
        """
        if self.run.transform is None or self.run.transform.fetch is None:
            return
        failed = len(left_out)
        self._fetched += np.array([failed, samples])
        if samples < _FEW:
            failed, samples = self._fetched.tolist()
        most = self.run.transform.fetch.max_failed
        if failed > most * samples:
            ((code, why), times), *_ = Counter((one.code, one.message) for one in left_out).most_common(1)
            found = f"{failed:,} of {counted(samples, 'sample')} failed, {times:,} of this shard with: {why}"
            expected, again = f"{float(100 * most):.4g}% at most", self.run.again
            remedy = f"Go on with {again}, and with {option('max_failed', '100%')} if these URLs are really gone."
            if code == "refused-address":
                remedy = f"{flag('allow_private')} asks these, too; go on with {again}."
            raise SampleFailed(shard, found, expected=expected, remedy=remedy)

    def _none_packed(self) -> ShardError:
        """Return the error of a run that packed nothing: no list is left beside a dataset, so it says why."""
        if not failures(self.totals.skipped) and not self.output.dropped:
            return none_taken(self.run.options.where, self.output.split)
        problem = (
            f"none of {len(self.plan):,} samples could be packed: {reasons(self.totals.skipped, self.output.dropped)}"
        )
        remedy = "Nothing of this run is left: run it again once that has changed."
        if any(one.code == "refused-address" for one in self.totals.skipped):
            remedy = f"{flag('allow_private')} asks addresses that are not public, too. Nothing of this run is left."
        elif self.run.options.on_error == "skip" and not self.run.fetches:
            remedy = f"Run it without {option('on_error', 'skip')} to see why. Nothing of this run is left."
        return SampleFailed(source_name(self.plan.entries.root), problem, remedy=remedy)

    def _check_shape(self) -> None:
        """Check that shards of changed samples are what was asked for: their plan could only guess."""
        if self.run.transform is None:
            return
        counts = [shard.samples for shard in self.totals.shards]
        remedy = f"Leave that option out, and run it with {self._anew}: `reshard` can even shards out afterwards."
        where = self.output.pattern.text
        if self.run.options.equal_count and max(counts) - min(counts) > 1:
            found = f"shards of {min(counts):,} to {max(counts):,} samples, now that the sizes are known"
            raise InvalidRequest(where, found, expected=f"equally many, by {flag('equal_count')}", remedy=remedy)
        if self.destination.own is None and len(counts) % self.run.options.shards_multiple_of:
            found = f"{len(counts):,} shards, now that the sizes are known"
            expected = f"a multiple of {self.run.options.shards_multiple_of:,}, by {option('shards_multiple_of')}"
            raise InvalidRequest(where, found, expected=expected, remedy=remedy)

    @property
    def _anew(self) -> str:
        """The option with which the run is repeated once others are changed."""
        return self.run.again if self.run.appends else option("if_exists", "overwrite")

    def _check_names(self) -> None:
        pattern, needed = self.output.pattern, self._base + self._round.shards
        options, shards = self.run.options, needed - self.destination.first
        if options.shards is not None or options.place == "hash":
            found = f"{shards:,} shards or more, now that the sizes are known"
            remedy = f"Raise {option('shards')} or {option('max_size')}, and run it with {self._anew}."
            raise InvalidRequest(pattern.text, found, expected=f"{self.plan.shards:,}, as planned", remedy=remedy)
        if pattern.count is not None and needed > pattern.count:
            found = f"{pattern.count:,} names for {needed:,} shards, now that the sizes are known"
            remedy = f"Use an open range such as out-{{000000..}}.tar, or a wider one, and run it with {self._anew}."
            raise InvalidRequest(pattern.text, found, remedy=remedy)

    def _publish(self, result: ShardResult) -> None:
        """Publish a shard and its sidecar, and add it to the totals."""
        shard, (planned, known) = result.shard, self._working.pop(result.shard)
        name, folder, append = planned.name, self.destination.folder, self.destination.append
        stays, left_out = result.staged is None, tuple(one for _, one in result.skipped)
        if known and stays:
            index, fact, data = self._known(planned, known)
            left_out = fact.made.left_out if fact.made else ()
        else:
            index, fact, data = self._index(result, planned)
        tally, made = index.tally(), fact.made
        self._consumed[shard] = self._round.count(shard) if made is None else made.consumed
        self._done += self._consumed[shard]
        self.output.dropped += made.dropped if made else 0
        self.output.kept += stays or isinstance(append, EndedAppend)
        self.totals.digest += made.content if made else result.digest
        self.totals.skipped += left_out
        if self.run.makes_keys:
            self._check_keys(index.all_keys())
        entry = self.totals.add(fact, data, tally)
        self._numbers[fact.name] = number = self._base + shard
        if isinstance(append, EndedAppend):
            if not stays:
                folder.temporary.discard_staged([name])
            check_same(append, number, entry, self.destination)
        else:
            self.publisher.add(result.staged, data, name)
            mtime_ns = mtime_of_shard(planned, self.mtime_ns)
            if result.compared and is_newer(planned, mtime_ns):  # not while the clocks may differ by more
                folder.set_time(name, mtime_ns)  # so that the next run trusts it
        samples, done, failed = self._reported.pop(shard, (0, 0, 0))
        size = fact.size if self.run.fetches else int(self._round.sizes[shard])
        if self.run.fetches:
            self.observer.failed(max(0, len(failures(one for _, one in result.skipped)) - failed))
        self.observer.advance(max(0, self._consumed[shard] - samples), max(0, size - done), 1)
        self.observer.shard(name, "kept" if stays else "written", tally.samples, fact.size)

    def _index(self, result: ShardResult, planned: ShardPlan) -> tuple[ShardIndex, ShardFact, bytes]:
        """Return the index of a shard that was packed, its facts, and its sidecar.

        Raises:
            Bug: Samples are neither written, left out nor dropped: they would be lost.
        """
        plan, samples, made = self._round, planned.samples, result.made
        columns, of_made, consumed = plan.metadata(planned.shard), None, plan.count(planned.shard)
        paths = samples.shown_paths(shown_bytes) if plan.entries.source_paths else b""
        if made is None:
            content, skipped = samples.content, tuple(place for place, _ in result.skipped)
        else:
            sources, content, skipped, consumed = np.frombuffer(made.sources, np.int64), made.content, (), made.consumed
            if plan.entries.source_paths:
                counts = np.frombuffer(samples.content.counts, np.uint16).astype(np.int64)
                lists = shard_index.string_lists(paths[:-1].split(b"\0"), counts)
                columns = with_column(columns, "source_paths", lists)
                paths = b""
            columns = None if columns is None else columns.take(number_array(sources))
            if columns is not None and self.run.makes_keys:  # whose function may have changed labels
                columns = without_numbers(columns, plan.entries.fields)
            if self.run.transform is not None:
                columns = with_found(columns, self.run.transform.found, made.found)
            left_out = tuple(one for _, one in result.skipped)
            failed = failures(left_out)
            self._check_failed(planned.name, failed, consumed)
            if failed and not self.run.fetches:
                left_out = ()  # another run tries them again
            of_made = MadeFact(result.digest, consumed, made.dropped, len(result.skipped), left_out)
        shards, name = self._planned(planned.shard, consumed), output_text(planned.name)
        fact = ShardFact(name, result.size, result.crc, planned.fingerprint(), of_made, self._first, shards)
        index = shard_index.index_of(plan.format, content, columns, result.field_crcs, skipped, paths)
        data, self.totals.schema = shard_index.encode(index, fact)
        accounted = len(np.unique(sources)) + made.dropped if made else len(index)
        if consumed != accounted + len(result.skipped):
            found = f"{accounted:,} of {consumed:,} samples accounted for; no dataset file was written"
            raise Bug(planned.name, found)
        return index, fact, data

    def _known(self, planned: ShardPlan, data: bytes) -> tuple[ShardIndex, ShardFact, bytes]:
        """Return what a sound sidecar says of a shard of changed samples that stays as it is."""
        name = sidecar_name(planned.name)
        fact = shard_index.read_facts(data, name)
        index = shard_index.read_sidecar(data, name, fact.size)  # as it was read when it was found to be sound
        table = index.plain_table()
        self.totals.schema = types_of(with_shard(table.schema))
        if fact.made is None:
            raise Bug(planned.name, "a kept shard without its facts")
        shards = self._planned(planned.shard, fact.made.consumed)  # another if the source has grown or shrunk since
        if (fact.shards, index.version) != (shards, shard_index.FORMAT_VERSION):
            fact = fact._replace(first=self._first, shards=shards)
            data = shard_index.encode_table(table, fact)
        return index, fact, data

    @property
    def _first(self) -> str:
        return output_text(self.output.shard_name(0))

    def _planned(self, shard: int, consumed: int) -> int:
        """Return how many shards this run is to make, as far as it is known when a shard is written.

        Those of this round and of all before, and one more where samples planned for this shard found no room in it:
        so, of all shards that a killed run has left, one names more than there are.
        """
        before = self._base - self.destination.first
        return before + self._round.shards + (consumed < self._round.count(shard))

    def _check_keys(self, keys: list[bytes]) -> None:
        """Refuse keys that the user's function gave twice: the plan could not know them."""
        if self.plan.format == "tar" and keys:
            for one in misread_keys(Names.of(keys)):
                before = self._misread.get(one.code)
                self._misread[one.code] = replace(before, count=before.count + one.count) if before else one
        for key in keys:
            mark, twice = blake2b(key, digest_size=16).digest(), ""
            if mark in self._taken:
                twice = ", and the dataset appended to has already"
            elif mark in self.run.made_keys:
                twice = " to two samples"
            if twice:
                found = f"a key that the function of {option('map')} gave{twice}"
                raise SampleFailed(to_text(key), found, remedy="Give each sample that it returns a key of its own.")
            self.run.made_keys.add(mark)

    @cached_property
    def _taken(self) -> frozenset[bytes]:
        """Hashes of the keys of the dataset that is appended to."""
        there, old = self.destination, self.destination.old
        keys = Names.of(()) if old is None else existing_keys(there.folder, old.shards[: there.first])
        return frozenset(blake2b(keys[at], digest_size=16).digest() for at in range(len(keys)))

    def _progress(self, shard: int, samples: int, size: int, failed: int = 0) -> None:
        done = self._reported.get(shard, (0, 0, 0))
        self._reported[shard] = done[0] + samples, done[1] + size, done[2] + failed
        if failed:
            self.observer.failed(failed)
        self.observer.advance(samples, size, 0)
