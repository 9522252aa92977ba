"""Carry out a plan: send tasks to the workers, publish their results, and sum up the totals.

This runs in the parent process, which holds no payloads.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from shardtool.dataset import shard_index, sidecar_schema, sidecar_write
from shardtool.entries.arrow import ipc_stream, number_array
from shardtool.entries.metadata_columns import drop_number_columns, with_column, with_measured_columns
from shardtool.entries.strings import PackedStrings
from shardtool.errors import (
    Bug,
    InvalidRequest,
    SampleFailed,
    ShardError,
    format_list,
    reporting_memory_errors,
)
from shardtool.fetch.urls import redact_url_bytes
from shardtool.interop.readers import READERS_BY_PROBLEM, NameProblem, find_key_problems
from shardtool.messages import flag_text, option_text
from shardtool.names import source_label, to_output_name, to_text
from shardtool.plan.shard_task import build_shard_samples
from shardtool.publish import dataset_keys
from shardtool.publish.append_target import FinishedAppend
from shardtool.publish.publish_dataset import check_same_append
from shardtool.publish.totals import DatasetTotals
from shardtool.skipped import Skipped, count_reasons, failed_rows
from shardtool.source.base import no_match_error
from shardtool.source.parallel_reads import choose_parallel_reads
from shardtool.units import pluralize
from shardtool.verbs.create import resume
from shardtool.write.pack_shard import pack_shard
from shardtool.write.task import ShardResult, ShardTask, TransformWork

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.plan.plan import Plan
    from shardtool.transform.transform import Transform
    from shardtool.verbs.create.run import Run, RunOutput


def make_shard_work(plan: Plan, shard: int, work: TransformWork) -> TransformWork:
    """Return what is done to the samples of a shard, with the columns that a condition needs of them."""
    where = work.transform.where
    if where is None or (metadata := plan.metadata(shard)) is None:
        return work
    names = [name for name in where.columns if name in metadata.column_names]
    return work._replace(known=bytes(ipc_stream(metadata.select(names)))) if names else work


_MIN_SAMPLES_FOR_SHARE = 100  # samples of a shard, of which a share says little


class Packing:
    """A plan being carried out, under the lock.

    Where transforms change sizes, a shard may not have room for all that was planned for it. Such remainders
    are planned again, into shards after the last planned one, in rounds, until nothing is left.

    Args:
        run: The run.
        output: What has the plan, and gets what its shards hold.
    """

    def __init__(self, run: Run, output: RunOutput) -> None:
        self.run, self.output, self.plan, self.publisher = run, output, output.plan, output.publisher
        self.destination, self.observer = output.destination, run.notes.observer
        self.mtime_ns = resume.get_run_mtime_ns(run)
        part = self.destination.part  # what the plan leaves out is listed once, by the first of several parts
        values = self.plan.entries.values
        if run.options.map:  # the function may make anything of text and JSON, and is trusted with numbers
            values = values._replace(types=values.numbers)
        self.totals = output.totals = DatasetTotals(values)
        self.totals.skipped += self.plan.skipped if part is None or part.number == 1 else ()
        self._first = to_output_name(output.shard_name(0))
        self._round, self._base = self.plan, self.destination.first  # this round's plan, and its first shard's number
        self._shards = output.own_shards  # of this round
        self._numbers: dict[str, int] = {}  # of published shards
        self._consumed: dict[int, int] = {}  # of this round's shards
        self._done = 0  # planned samples that are written, left out or dropped
        # The tasks of workers; with the index of a shard of changed samples that may stay.
        self._working: dict[int, tuple[resume.ShardPlan, shard_index.ShardIndex | None]] = {}
        self._fetched = np.zeros(2, np.int64)  # failed, and all: samples of URLs in this run
        self._misread: dict[str, NameProblem] = {}
        self._reported: dict[int, tuple[int, int, int]] = {}  # samples, bytes, samples that failed

    @reporting_memory_errors("packing the shards")
    def pack(self) -> None:
        """Have every shard written, and publish each as it is done."""
        plan, shards, pool, totals = self.plan, self._shards, self.run.pool, self.totals
        samples = sum(map(plan.count, shards))
        if not self.run.fetches:  # of the web, no sizes are known
            self.publisher.check_space(resume.list_unwritten_sizes(self.run, self.output))
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
            self._round = self._round.subset(rest)
            self._shards = range(self._round.shards)
            self._check_names()
        if self._done != samples:
            found = f"{self._done:,} of {samples:,} planned samples are accounted for; no dataset file was written"
            raise Bug(self.output.pattern.text, found)
        totals.shards.sort(key=lambda shard: self._numbers[shard.name])
        self._check_shape()
        grows = any(one.destination.old for one in (*self.run.outputs, *self.run.untouched))  # maybe by a new split
        chose = grows and not failed_rows(totals.skipped) and not self.output.dropped
        if self.destination.part is None and not totals.samples and not chose:
            self.publisher.take_back([self.output.pattern.shard(number) for number in self._numbers.values()])
            raise self._none_packed_error()
        if (self.run.fetches or self.run.listed.later) and totals.skipped:
            failed = f"{len(totals.skipped):,} of {pluralize(samples, 'sample')}"
            self.run.notes.add(f"{failed} left out: {count_reasons(totals.skipped)}")
        if empty := [shard.name for shard in totals.shards if not shard.samples]:
            self.run.notes.add(f"{pluralize(len(empty), 'shard')} without a sample, all left out: {format_list(empty)}")
        counting = {
            code for code, readers in READERS_BY_PROBLEM.items() if not {*readers}.isdisjoint(self.run.options.readers)
        }
        self.run.notes.add(*(str(one) for one in self._misread.values() if one.code in counting))

    def _note_gap(self) -> None:
        """Say that a dataset goes before another is there, where nothing can wait unseen."""
        there = self.destination
        overwrites = self.output.pattern.dataset_file in there.existing and there.if_exists == "overwrite"
        if overwrites and not there.folder.hides:
            self.run.notes.add("in a store the old dataset file goes first: there is none until this run has ended")

    def _tasks(self, shards: Iterable[int], *, write: bool = False) -> Iterator[ShardTask]:
        """Yield the tasks of some shards of this round; `write`: they are written, whatever is there."""
        plan, run, work, reads = self._round, self.run, None, self._reads()
        if run.transform is not None:
            transform, limits = self._transform(run.transform), plan.limits
            work = TransformWork(transform, limits.room, limits.max_count, run.options.oversize, run.dots)
        for shard in shards:
            name, folder = self.output.pattern.shard(self._base + shard), self.destination.folder
            planned = resume.ShardPlan(run, plan, shard, name, build_shard_samples(plan, shard))
            todo, known = ("write", None) if write else resume.choose_action(planned, self.destination)
            if todo == "write":
                if isinstance(self.destination.append, FinishedAppend):
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
                mtime_ns=resume.get_shard_mtime_ns(planned, self.mtime_ns),
                todo=todo,
                work=work and make_shard_work(plan, shard, work),
                reads=reads,
                size=None if work else int(plan.sizes[shard]),
            )

    @property
    def _at_once(self) -> int:
        """How many of this round's tasks run at the same time."""
        return min(len(self._shards) or 1, self.run.pool.max_tasks)

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
        reads, why = choose_parallel_reads(self._round.entries, self._at_once)
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
        if samples < _MIN_SAMPLES_FOR_SHARE:
            failed, samples = self._fetched.tolist()
        most = self.run.transform.fetch.max_failed
        if failed > most * samples:
            ((code, why), times), *_ = Counter((one.code, one.message) for one in left_out).most_common(1)
            found = f"{failed:,} of {pluralize(samples, 'sample')} failed, {times:,} of this shard with: {why}"
            expected, again = f"{float(100 * most):.4g}% at most", self.run.again
            remedy = f"Go on with {again}, and with {option_text('max_failed', '100%')} if these URLs are really gone."
            if code == "refused-address":
                remedy = f"{flag_text('allow_private')} asks these, too; go on with {again}."
            raise SampleFailed(shard, found, expected=expected, remedy=remedy)

    def _none_packed_error(self) -> ShardError:
        """Return the error of a run that packed nothing: no list is left beside a dataset, so it says why."""
        if not failed_rows(self.totals.skipped) and not self.output.dropped:
            return no_match_error(self.run.options.where, self.output.split, self._empty_split_fix())
        why = count_reasons(self.totals.skipped, self.output.dropped)
        problem = f"none of {len(self.plan):,} samples could be packed: {why}"
        remedy = "Nothing of this run is left: run it again once that has changed."
        if any(one.code == "refused-address" for one in self.totals.skipped):
            remedy = (
                f"{flag_text('allow_private')} asks addresses that are not public, too. Nothing of this run is left."
            )
        elif self.run.options.on_error == "skip" and not self.run.fetches:
            remedy = f"Run it without {option_text('on_error', 'skip')} to see why. Nothing of this run is left."
        return SampleFailed(source_label(self.plan.entries.root), problem, remedy=remedy)

    def _empty_split_fix(self) -> str:
        """Return how each split gets a sample where a query takes none of one; empty: there are no splits."""
        if self.run.dividing is None:
            return ""
        shares = f"use larger shares, or another {option_text('seed')}"
        cure = shares if self.run.dividing.shares else f"leave that split out, too, with {option_text('where')}"
        return f"Ask for less, or {cure}; and run it with {self._rerun_option} where shards of other splits are there."

    def _check_shape(self) -> None:
        """Check that shards of changed samples are what was asked for: their plan could only guess."""
        if self.run.transform is None:
            return
        counts = [shard.samples for shard in self.totals.shards]
        remedy = (
            f"Leave that option out, and run it with {self._rerun_option}: `reshard` can even shards out afterwards."
        )
        where = self.output.pattern.text
        if self.run.options.equal_count and max(counts) - min(counts) > 1:
            found = f"shards of {min(counts):,} to {max(counts):,} samples, now that the sizes are known"
            raise InvalidRequest(where, found, expected=f"equally many, by {flag_text('equal_count')}", remedy=remedy)
        if self.destination.part is None and len(counts) % self.run.options.shards_multiple_of:
            found = f"{len(counts):,} shards, now that the sizes are known"
            expected = f"a multiple of {self.run.options.shards_multiple_of:,}, by {option_text('shards_multiple_of')}"
            raise InvalidRequest(where, found, expected=expected, remedy=remedy)

    @property
    def _rerun_option(self) -> str:
        """The option with which the run is repeated once others are changed."""
        return self.run.again if self.run.appends else option_text("if_exists", "overwrite")

    def _check_names(self) -> None:
        pattern, needed = self.output.pattern, self._base + self._round.shards
        options, shards = self.run.options, needed - self.destination.first
        if options.shards is not None or options.place == "hash":
            found = f"{shards:,} shards or more, now that the sizes are known"
            remedy = (
                f"Raise {option_text('shards')} or {option_text('max_size')}, and run it with {self._rerun_option}."
            )
            raise InvalidRequest(pattern.text, found, expected=f"{self.plan.shards:,}, as planned", remedy=remedy)
        if pattern.count is not None and needed > pattern.count:
            found = f"{pattern.count:,} names for {needed:,} shards, now that the sizes are known"
            remedy = (
                f"Use an open range such as out-{{000000..}}.tar, or a wider one, and run it with {self._rerun_option}."
            )
            raise InvalidRequest(pattern.text, found, remedy=remedy)

    def _publish(self, result: ShardResult) -> None:
        """Publish a shard and its sidecar, and add it to the totals."""
        shard, (planned, known) = result.shard, self._working.pop(result.shard)
        name, folder, append = planned.name, self.destination.folder, self.destination.append
        stays, left_out = result.staged is None, tuple(one for _, one in result.skipped)
        if known is not None and stays:
            index, (fact, data) = known, self._known(planned, known)
            left_out = fact.made.left_out if fact.made else ()
        else:
            index, fact, data = self._index(result, planned)
        tally, made = index.tally(), fact.made
        self._consumed[shard] = self._round.count(shard) if made is None else made.consumed
        self._done += self._consumed[shard]
        self.output.dropped += made.dropped if made else 0
        self.output.kept += stays or isinstance(append, FinishedAppend)
        self.totals.digest += made.content if made else result.digest
        self.totals.skipped += left_out
        if self.run.makes_keys:
            self._check_keys(index.all_keys())
        entry = self.totals.add(fact, data, tally)
        self._numbers[fact.name] = number = self._base + shard
        if isinstance(append, FinishedAppend):
            if not stays:
                folder.temporary.discard_staged([name])
            check_same_append(append, number, entry, self.destination)
        else:
            self.publisher.add(result.staged, data, name)
            mtime_ns = resume.get_shard_mtime_ns(planned, self.mtime_ns)
            if result.compared and resume.is_source_unchanged(
                planned, mtime_ns
            ):  # not while the clocks may differ by more
                folder.set_mtime(name, mtime_ns)  # so that the next run trusts it
        samples, done, failed = self._reported.pop(shard, (0, 0, 0))
        size = fact.size if self.run.fetches else int(self._round.sizes[shard])
        if self.run.fetches:
            self.observer.failed(max(0, len(failed_rows(one for _, one in result.skipped)) - failed))
        self.observer.advance(max(0, self._consumed[shard] - samples), max(0, size - done), 1)
        self.observer.shard(name, "kept" if stays else "written", tally.samples, fact.size)

    def _index(
        self, result: ShardResult, planned: resume.ShardPlan
    ) -> tuple[shard_index.ShardIndex, sidecar_schema.ShardFacts, bytes]:
        """Return the index of a shard that was packed, its facts, and its sidecar.

        Raises:
            Bug: Samples are neither written, left out nor dropped: they would be lost.
        """
        plan, samples, made = self._round, planned.samples, result.made
        columns, of_made, consumed = plan.metadata(planned.shard), None, plan.count(planned.shard)
        paths = samples.output_paths(redact_url_bytes) if plan.entries.source_paths else b""
        if made is None:
            content, skipped = samples.content, tuple(place for place, _ in result.skipped)
        else:
            sources, content, skipped, consumed = np.frombuffer(made.sources, np.int64), made.content, (), made.consumed
            if plan.entries.source_paths:
                counts = np.frombuffer(samples.content.counts, np.uint16).astype(np.int64)
                lists = sidecar_write.string_list_column(paths[:-1].split(b"\0"), counts)
                columns = with_column(columns, "source_paths", lists)
                paths = b""
            columns = None if columns is None else columns.take(number_array(sources))
            if columns is not None and self.run.makes_keys:  # whose function may have changed labels
                columns = drop_number_columns(columns, plan.entries.fields)
            if self.run.transform is not None:
                columns = with_measured_columns(columns, self.run.transform.found, made.found)
            left_out = tuple(one for _, one in result.skipped)
            failed = failed_rows(left_out)
            self._check_failed(planned.name, failed, consumed)
            if failed and not self.run.fetches:
                left_out = ()  # another run tries them again
            of_made = sidecar_schema.TransformFacts(
                result.digest, consumed, made.dropped, len(result.skipped), left_out
            )
        shards, name = self._planned(planned.shard, consumed), to_output_name(planned.name)
        fact = sidecar_schema.ShardFacts(
            name, result.size, result.crc, planned.fingerprint(), of_made, self._first, shards
        )
        index = sidecar_write.written_index(plan.format, content, columns, result.field_crcs, skipped, paths)
        data, self.totals.schema = sidecar_write.encode_sidecar(index, fact)
        accounted = len(np.unique(sources)) + made.dropped if made else len(index)
        if consumed != accounted + len(result.skipped):
            found = f"{accounted:,} of {consumed:,} samples accounted for; no dataset file was written"
            raise Bug(planned.name, found)
        return index, fact, data

    def _known(
        self, planned: resume.ShardPlan, index: shard_index.ShardIndex
    ) -> tuple[sidecar_schema.ShardFacts, bytes]:
        """Return the facts and the sidecar of a shard of changed samples that stays as it is.

        They are as before, but for the number of shards where the source has grown or shrunk since.
        """
        fact, table = index.fact, index.plain_table()
        if fact.made is None:
            raise Bug(planned.name, "a kept shard without its facts")
        self.totals.schema = sidecar_schema.column_types(sidecar_schema.with_shard_column(table.schema))
        fact = fact._replace(first=self._first, shards=self._planned(planned.shard, fact.made.consumed))
        return fact, sidecar_write.encode_sidecar_table(table, fact)

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
            for one in find_key_problems(PackedStrings.of(keys)):
                before = self._misread.get(one.code)
                self._misread[one.code] = replace(before, count=before.count + one.count) if before else one
        for key in keys:
            mark, twice = blake2b(key, digest_size=16).digest(), ""
            if mark in self._taken:
                twice = ", and the dataset appended to has already"
            elif mark in self.run.made_keys:
                twice = " to two samples"
            if twice:
                found = f"a key that the function of {option_text('map')} gave{twice}"
                raise SampleFailed(to_text(key), found, remedy="Give each sample that it returns a key of its own.")
            self.run.made_keys.add(mark)

    @cached_property
    def _taken(self) -> frozenset[bytes]:
        """Hashes of the keys of the dataset that is appended to."""
        there, old = self.destination, self.destination.old
        keys = (
            PackedStrings.of(())
            if old is None
            else dataset_keys.read_dataset_keys(there.folder, old.shards[: there.first])
        )
        return frozenset(blake2b(keys[at], digest_size=16).digest() for at in range(len(keys)))

    def _progress(self, shard: int, samples: int, size: int, failed: int = 0) -> None:
        done = self._reported.get(shard, (0, 0, 0))
        self._reported[shard] = done[0] + samples, done[1] + size, done[2] + failed
        if failed:
            self.observer.failed(failed)
        self.observer.advance(samples, size, 0)
