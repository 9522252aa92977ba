"""Carry out a plan: send tasks to the workers, publish the finished shards, and sum up the totals."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from shardtool.dataset import shard_index, sidecar_schema, sidecar_write
from shardtool.entries.arrow import number_array
from shardtool.entries.metadata_columns import drop_number_columns, with_column, with_measured_columns
from shardtool.entries.strings import PackedStrings
from shardtool.errors import (
    Bug,
    InvalidRequest,
    SampleFailed,
    ShardError,
    format_list,
    printable,
    reporting_memory_errors,
)
from shardtool.fetch.options import redact_url_bytes
from shardtool.interop.readers import READERS_BY_PROBLEM, NameProblem, find_key_problems
from shardtool.messages import flag_text, option_text
from shardtool.names import source_label, to_output_name, to_text
from shardtool.pack import resume
from shardtool.pack.checks import check_content_fingerprint
from shardtool.pack.run import Packed, PackedOutput, Planned, PlannedOutput
from shardtool.pattern import sidecar_name
from shardtool.plan.shard_task import build_shard_samples, encode_known_columns
from shardtool.publish import dataset_keys
from shardtool.publish.append_target import FinishedAppend
from shardtool.publish.publish_dataset import check_append_is_unchanged
from shardtool.publish.totals import DatasetTotals
from shardtool.skipped import Skipped, count_reasons, failed_rows
from shardtool.source.base import no_match_error
from shardtool.source.read_tasks import choose_parallel_reads
from shardtool.units import pluralize
from shardtool.write.pack_shard import pack_shard
from shardtool.write.task import ShardResult, ShardTask, TransformWork

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.transform.transform import Transform


def pack_shards(planned: Planned) -> Packed:
    """Write and publish all shards."""
    made_keys: set[bytes] = set()
    packed = Packed(planned, tuple(Packing(planned, output, made_keys).pack() for output in planned.outputs))
    if planned.run.part is None:
        check_content_fingerprint(packed)
    return packed


_MIN_SAMPLES_FOR_SHARE = 100


class Packing:
    """Writes the planned shards of one dataset. The caller must hold the lock.

    If transformed samples are larger than estimated, the remaining samples go into additional shards.
    """

    def __init__(self, planned: Planned, output: PlannedOutput, made_keys: set[bytes]) -> None:
        self.planned, self.listed, self.run = planned, planned.listed, planned.run
        self.output, self.plan, self.destination = output, output.plan, output.destination
        self.observer = self.run.notes.observer
        self._run_stamp = resume.get_run_stamp(self.listed)
        self._unpublished = len(output.own_shards)
        self.kept = self.dropped = 0
        self._made_keys = made_keys
        part = self.run.part
        values = self.plan.entries.values
        if self.run.options.map:  # the user's function may change text and JSON, but not numbers
            values = values._replace(types=values.numbers)
        self.totals = DatasetTotals(values)
        # Only the first part lists the samples that the plan skips.
        self.totals.skipped += self.plan.skipped if part is None or part.number == 1 else ()
        self._first_name = to_output_name(output.shard_name(0))
        self._current_plan, self._first_number = self.plan, self.destination.first
        self._current_shards = output.own_shards
        self._shard_numbers: dict[str, int] = {}
        self._consumed: dict[int, int] = {}
        self._finished_samples = 0
        # For each task number: the planned shard, and its index if an existing shard of transformed samples is kept.
        self._pending: dict[int, tuple[resume.ShardPlan, shard_index.ShardIndex | None]] = {}
        self._fetch_counts = np.zeros(2, np.int64)
        self._key_problems: dict[str, NameProblem] = {}
        self._reported: dict[int, tuple[int, int, int]] = {}

    @reporting_memory_errors("packing the shards")
    def pack(self) -> PackedOutput:
        """Write all shards, and publish each one when it is complete."""
        self.publication, self._journal = self.destination.open_publication(), resume.ShardJournal(self.destination)
        plan, shards, totals = self.plan, self._current_shards, self.totals
        samples = sum(map(plan.count, shards))
        if not self.run.fetches:
            self.destination.check_space(resume.sum_unwritten_sizes(self.listed, self.output))
        size = 0 if self.run.fetches else int(plan.sizes[shards.start : shards.stop].sum())
        self._note_missing_dataset_file()
        self.observer.start(samples, size, len(shards))
        while True:
            self._consumed = {}
            differing_shards = self._pack_shards(self._current_shards)
            self._pack_shards(differing_shards, write=True)
            remaining = self._find_remaining()
            if not len(remaining):
                break
            self._first_number += self._current_plan.shards
            self._current_plan = self._current_plan.subset(remaining)
            self._current_shards = range(self._current_plan.shards)
            self._unpublished += self._current_plan.shards
            self._check_names()
        if self._finished_samples != samples:
            found = f"{self._finished_samples:,} of {samples:,} planned samples were processed"
            raise Bug(self.output.pattern.text, f"{found}; no dataset file was written")
        totals.shards.sort(key=lambda shard: self._shard_numbers[shard.name])
        self._check_shard_counts()
        has_earlier_data = any(destination.old for destination in self.planned.destinations)
        may_be_empty = has_earlier_data and not failed_rows(totals.skipped) and not self.dropped
        if self.run.part is None and not totals.samples and not may_be_empty:
            self._remove_shards()
            raise self._none_packed_error()
        if (self.run.fetches or self.listed.listing.condition) and totals.skipped:
            failed = f"{len(totals.skipped):,} of {pluralize(samples, 'sample')}"
            self.run.notes.add(f"{failed} skipped: {count_reasons(totals.skipped)}")
        if empty_shards := [shard.name for shard in totals.shards if not shard.samples]:
            self.run.notes.add(f"{pluralize(len(empty_shards), 'shard')} without samples: {format_list(empty_shards)}")
        readers, problems = {*self.run.options.readers}, self._key_problems.values()
        relevant = [problem for problem in problems if not readers.isdisjoint(READERS_BY_PROBLEM[problem.code])]
        self.run.notes.add(*map(str, relevant))
        return PackedOutput(self.output, self.publication, totals, self.kept, self.dropped)

    def _pack_shards(self, shards: Iterable[int], *, write: bool = False) -> list[int]:
        """Pack and publish shards. Return existing shards to replace, for a second call with `write=True`."""
        differing_shards, tasks = [], self._make_tasks(shards, write=write)
        for task_number, result in self.run.pool.map(pack_shard, tasks, self._advance):
            if result.wrong:
                differing_shards.append(self._pending.pop(task_number)[0].shard)
            else:
                self._publish(task_number, result)
        return differing_shards

    def _remove_shards(self) -> None:
        if not isinstance(self.destination.append, FinishedAppend):
            shards = [self.output.pattern.shard(number) for number in self._shard_numbers.values()]
            self.destination.folder.remove(sorted(name for shard in shards for name in (shard, sidecar_name(shard))))
            self._journal.remove()

    def _note_missing_dataset_file(self) -> None:
        destination = self.destination
        overwrites = self.output.pattern.dataset_file in destination.existing and destination.if_exists == "overwrite"
        if overwrites and not destination.folder.has_staging:
            written = "the new one is written when this run ends"
            self.run.notes.add(f"in a store, the old dataset file is deleted first; {written}")

    def _make_tasks(self, shards: Iterable[int], *, write: bool = False) -> Iterator[ShardTask]:
        plan, run, work, parallel_reads = self._current_plan, self.run, None, self._choose_parallel_reads()
        if self.listed.transform is not None:
            transform, limits = self._make_task_transform(self.listed.transform), plan.limits
            work = TransformWork(transform, limits.max_bytes, limits.max_count, run.options.oversize, self.listed.dots)
        lines = self._journal.lines_by_shard
        for task_number, shard in enumerate(shards):
            name, folder = self.output.pattern.shard(self._first_number + shard), self.destination.folder
            planned = resume.ShardPlan(self.listed, plan, shard, name, build_shard_samples(plan, shard))
            action, kept_index = (
                ("write", None) if write else resume.choose_action(planned, self.destination, lines.get(name))
            )
            if action == "write":
                if isinstance(self.destination.append, FinishedAppend):
                    # the dataset already contains this shard, so write a temporary file to compare
                    folder = folder.temporary
                else:
                    self.publication.prepare_shard(name)
            self._pending[task_number] = planned, kept_index
            yield ShardTask(
                name=name,
                format=plan.format,
                folder=folder,
                samples=planned.samples,
                on_error="skip" if run.fetches else run.options.on_error,
                mtime_ns=resume.get_shard_stamp(planned, self._run_stamp),
                action=action,
                work=work and work._replace(known_columns=encode_known_columns(plan, shard, work.transform.where)),
                parallel_reads=parallel_reads,
                size=None if work else int(plan.sizes[shard]),
            )

    @property
    def _parallel_tasks(self) -> int:
        return min(len(self._current_shards) or 1, self.run.pool.max_tasks)

    def _make_task_transform(self, transform: Transform) -> Transform:
        if transform.fetch is None:
            return transform
        per_host = max(1, transform.fetch.per_host // self._parallel_tasks)
        return transform._replace(fetch=replace(transform.fetch, per_host=per_host))

    def _choose_parallel_reads(self) -> int:
        if self.run.map_returns_keys or self.run.fetches:
            return 1
        reads, reason = choose_parallel_reads(self._current_plan.entries, self._parallel_tasks)
        if reason:
            self.observer.log(reason)
        return reads

    def _find_remaining(self) -> NDArray[np.int64]:
        numbers = [np.zeros(0, np.int64)]
        for shard in self._current_shards:
            first, last = self._current_plan.span(shard)
            numbers.append(np.arange(first + self._consumed[shard], last))
        return np.concatenate(numbers)

    def _check_failed_urls(self, shard: str, skipped_rows: Sequence[Skipped], samples: int) -> None:
        if self.listed.transform is None or self.listed.transform.fetch is None:
            return
        failed = len(skipped_rows)
        self._fetch_counts += np.array([failed, samples])
        if samples < _MIN_SAMPLES_FOR_SHARE:
            failed, samples = self._fetch_counts.tolist()
        max_failed = self.listed.transform.fetch.max_failed
        if failed > max_failed * samples:
            ((code, message), count), *_ = Counter((row.code, row.message) for row in skipped_rows).most_common(1)
            found = f"{failed:,} of {pluralize(samples, 'sample')} failed, {count:,} of this shard with: {message}"
            expected = f"at most {float(100 * max_failed):.4g}%"
            fix = f"Add {option_text('max_failed', '100%')} if the URLs are gone."
            if code == "refused-address":
                fix = f"Add {flag_text('allow_private')} to allow private addresses."
            remedy = f"Continue with {self.run.continue_option}. {fix}"
            raise SampleFailed(shard, found, expected=expected, remedy=remedy)

    def _none_packed_error(self) -> ShardError:
        failed = failed_rows(self.totals.skipped)
        if not failed and not self.dropped:
            return no_match_error(self.run.options.where, self.output.split, self._empty_split_fix())
        reasons = count_reasons(self.totals.skipped, self.dropped)
        samples, next_step = pluralize(len(self.plan), "sample"), "This run left no files."
        if self.output.split:
            samples = f"{samples} of the split {printable(self.output.split)}"
            next_step = self._other_splits_fix
        problem = f"none of {samples} could be packed: {reasons}"
        fix = "Fix the cause and run it again."
        if any(row.code == "refused-address" for row in failed):
            fix = f"Add {flag_text('allow_private')} to allow private addresses."
        elif failed and self.run.options.on_error == "skip" and not self.run.fetches:
            fix = f"Run it without {option_text('on_error', 'skip')} to see why."
        return SampleFailed(source_label(self.plan.entries.root), problem, remedy=f"{fix} {next_step}")

    def _empty_split_fix(self) -> str:
        if self.run.split_options is None:
            return ""
        shares = f"use larger shares, or another {option_text('seed')}"
        fix = shares if self.run.split_options.shares else f"exclude that split with {option_text('where')}"
        return f"Relax the query, or {fix}. {self._other_splits_fix}"

    @property
    def _other_splits_fix(self) -> str:
        return f"Add {self._rerun_option} if shards of other splits exist."

    def _check_shard_counts(self) -> None:
        if self.listed.transform is None:
            return
        counts = [shard.samples for shard in self.totals.shards]
        remedy = f"Run again with {self._rerun_option}, without that option. Then run `reshard` with that option."
        where = self.output.pattern.text
        if self.run.options.equal_count and max(counts) - min(counts) > 1:
            found = f"shards of {min(counts):,} to {max(counts):,} samples after transforming"
            raise InvalidRequest(where, found, expected=f"equal counts ({flag_text('equal_count')})", remedy=remedy)
        if self.run.part is None and len(counts) % self.run.options.shards_multiple_of:
            found = f"{len(counts):,} shards after transforming"
            expected = f"a multiple of {self.run.options.shards_multiple_of:,} ({option_text('shards_multiple_of')})"
            raise InvalidRequest(where, found, expected=expected, remedy=remedy)

    @property
    def _rerun_option(self) -> str:
        return self.run.continue_option if self.run.may_append else flag_text("overwrite")

    def _check_names(self) -> None:
        pattern, needed = self.output.pattern, self._first_number + self._current_plan.shards
        options, shards = self.run.options, needed - self.destination.first
        if options.shards is not None or options.place == "hash" or options.part is not None:
            found = f"{shards:,} shards or more after transforming"
            remedy = f"Raise {option_text('shards')} or {option_text('max_size')}, and add {self._rerun_option}."
            if options.part is not None:
                remedy = f"Use {option_text('shards')}, not {option_text('max_count')}, and add {flag_text('resume')}."
            raise InvalidRequest(pattern.text, found, expected=f"{self.plan.shards:,} as planned", remedy=remedy)
        if pattern.count is not None and needed > pattern.count:
            found = f"{pattern.count:,} names for {needed:,} shards after transforming"
            remedy = f"Use an open range such as out-{{000000..}}.tar, or a wider one, and add {self._rerun_option}."
            raise InvalidRequest(pattern.text, found, remedy=remedy)

    def _publish(self, task_number: int, result: ShardResult) -> None:
        planned, kept_index = self._pending.pop(task_number)
        shard, name, folder, append = planned.shard, planned.name, self.destination.folder, self.destination.append
        is_kept, skipped_rows = result.staged is None, tuple(row for _, row in result.skipped)
        if kept_index is not None and is_kept:
            index = kept_index
            facts, data, schema = self._describe_kept_shard(planned, index)
            skipped_rows = facts.transform.skipped_rows if facts.transform else ()
        else:
            index, facts, data, schema = self._describe_written_shard(result, planned)
        tally, transform = index.tally(), facts.transform
        self._consumed[shard] = self._current_plan.count(shard) if transform is None else transform.consumed
        self._finished_samples += self._consumed[shard]
        self.dropped += transform.dropped if transform else 0
        self.kept += is_kept or isinstance(append, FinishedAppend)
        if self.run.map_returns_keys:
            self._add_made_keys(index.all_keys())
        self.totals.schema = schema
        entry = self.totals.add(facts, data, tally, transform.digest if transform else result.digest, skipped_rows)
        self._shard_numbers[facts.name] = number = self._first_number + shard
        if isinstance(append, FinishedAppend):
            if not is_kept:
                folder.temporary.discard_staged([name])
            check_append_is_unchanged(append, number, entry, self.destination)
        else:
            stamp = resume.get_shard_stamp(planned, self._run_stamp)
            self._unpublished -= 1
            # Write the journal line first, so `--resume` keeps every shard that has a sidecar.
            if self._unpublished and (result.compared or not is_kept):
                self._journal.add(resume.JournalLine(name, result.size, result.crc, stamp))
            self.publication.add(result.staged, data, name)
            if result.compared and resume.is_source_unchanged(planned, stamp):
                # `--resume` keeps shards with this modification time
                folder.set_mtime(name, stamp)
        reported_samples, reported_bytes, failed = self._reported.pop(task_number, (0, 0, 0))
        size = facts.size if self.run.fetches else int(self._current_plan.sizes[shard])
        if self.run.fetches:
            self.observer.failed(max(0, len(failed_rows(row for _, row in result.skipped)) - failed))
        self.observer.advance(max(0, self._consumed[shard] - reported_samples), max(0, size - reported_bytes), 1)
        self.observer.shard(name, "kept" if is_kept else "written", tally.samples, facts.size)

    def _describe_written_shard(
        self, result: ShardResult, planned: resume.ShardPlan
    ) -> tuple[shard_index.ShardIndex, sidecar_schema.ShardFacts, bytes, dict[str, str]]:
        """Return index, facts, sidecar and column types."""
        plan, samples, transformed = self._current_plan, planned.samples, result.transformed
        columns, consumed = plan.metadata(planned.shard), plan.count(planned.shard)
        transform_facts = None
        paths = samples.output_paths(redact_url_bytes) if plan.entries.source_paths else b""
        if transformed is None:
            content, skipped = samples.content, tuple(position for position, _ in result.skipped)
        else:
            sources = np.frombuffer(transformed.sources, np.int64)
            content, consumed = transformed.content, transformed.consumed
            skipped = ()
            if plan.entries.source_paths:
                counts = np.frombuffer(samples.content.counts, np.uint16).astype(np.int64)
                lists = sidecar_write.string_list_column(paths[:-1].split(b"\0"), counts)
                columns = with_column(columns, "source_paths", lists)
                paths = b""
            columns = None if columns is None else columns.take(number_array(sources))
            if columns is not None and self.run.map_returns_keys:
                columns = drop_number_columns(columns, plan.entries.fields)
            if self.listed.transform is not None:
                columns = with_measured_columns(columns, self.listed.transform.measured_columns, transformed.measured)
            skipped_rows = tuple(row for _, row in result.skipped)
            failed = failed_rows(skipped_rows)
            self._check_failed_urls(planned.name, failed, consumed)
            if failed and not self.run.fetches:
                skipped_rows = ()  # without this list, a resumed run packs the shard again
            transform_facts = sidecar_schema.TransformFacts(
                result.digest, consumed, transformed.dropped, len(result.skipped), skipped_rows
            )
        shards, name = self._count_known_shards(planned.shard, consumed), to_output_name(planned.name)
        facts = sidecar_schema.ShardFacts(
            name, result.size, result.crc, planned.fingerprint(), transform_facts, self._first_name, shards
        )
        index = sidecar_write.written_index(plan.format, content, columns, result.field_crcs, skipped, paths)
        accounted = len(np.unique(sources)) + transformed.dropped if transformed else len(index)
        if consumed != accounted + len(result.skipped):
            found = f"{accounted + len(result.skipped):,} of {consumed:,} samples were processed"
            raise Bug(planned.name, f"{found}; no dataset file was written")
        return index, facts, *sidecar_write.encode_sidecar(index, facts)

    def _describe_kept_shard(
        self, planned: resume.ShardPlan, index: shard_index.ShardIndex
    ) -> tuple[sidecar_schema.ShardFacts, bytes, dict[str, str]]:
        facts, table = index.facts, index.plain_table()
        if facts.transform is None:
            raise Bug(planned.name, "a kept shard without a record of its transform")
        schema = sidecar_schema.column_types(sidecar_schema.with_shard_column(table.schema))
        shards = self._count_known_shards(planned.shard, facts.transform.consumed)
        facts = facts._replace(first=self._first_name, shards=shards)
        return facts, sidecar_write.encode_sidecar_table(table, facts), schema

    def _count_known_shards(self, shard: int, consumed: int) -> int:
        """Return the planned number of shards, plus one if the `consumed` samples in `shard` are fewer than planned."""
        before = self._first_number - self.destination.first
        return before + self._current_plan.shards + (consumed < self._current_plan.count(shard))

    def _add_made_keys(self, keys: list[bytes]) -> None:
        """Reject duplicate keys from the user's function. Record problems that other tools have with the keys."""
        if self.plan.format == "tar" and keys:
            for problem in find_key_problems(PackedStrings.of(keys)):
                earlier = self._key_problems.get(problem.code)
                self._key_problems[problem.code] = (
                    replace(earlier, count=earlier.count + problem.count) if earlier else problem
                )
        for key in keys:
            key_hash, conflict = blake2b(key, digest_size=16).digest(), ""
            if key_hash in self._taken_key_hashes:
                conflict = ", which the existing dataset already contains"
            elif key_hash in self._made_keys:
                conflict = " for two samples"
            if conflict:
                found = f"the function of {option_text('map')} returned this key{conflict}"
                raise SampleFailed(to_text(key), found, remedy="Return a unique key for each sample.")
            self._made_keys.add(key_hash)

    @cached_property
    def _taken_key_hashes(self) -> frozenset[bytes]:
        destination, old = self.destination, self.destination.old
        if old is None:
            return frozenset()
        keys = dataset_keys.read_dataset_keys(destination.folder, old.shards[: destination.first])
        return frozenset(blake2b(keys[index], digest_size=16).digest() for index in range(len(keys)))

    def _advance(self, task_number: int, samples: int, size: int, failed: int = 0) -> None:
        reported = self._reported.get(task_number, (0, 0, 0))
        self._reported[task_number] = reported[0] + samples, reported[1] + size, reported[2] + failed
        if failed:
            self.observer.failed(failed)
        self.observer.advance(samples, size, 0)
