"""The plans of a run, one for each dataset: made, checked before a byte is written, and carried out.

Everything here runs in the parent process; it holds no sample's bytes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cached_property
from hashlib import blake2b, shake_128
from typing import TYPE_CHECKING

import numpy as np

from shardtool.dataset import shard_index
from shardtool.dataset.shard_index import most_metadata
from shardtool.entries.arrow import ipc_stream, number_array, with_column, with_found, without_numbers
from shardtool.entries.entries import Names
from shardtool.errors import Bug, InvalidRequest, SampleFailed, ShardError, listing, memory_for, printable
from shardtool.fetch import shown_bytes
from shardtool.interop.indexes import check_splits, check_timm_splits
from shardtool.interop.readers import READERS, NameProblem, misread_keys, misreads
from shardtool.plan.order import Bounds, shuffled
from shardtool.plan.plan import Plan, make_plan, shard_samples
from shardtool.publish.publisher import EndedAppend, names_left
from shardtool.request.options import CHANGES, CreateOptions
from shardtool.request.texts import share
from shardtool.skipped import Skipped, failures, key_mark, reasons, without_keys
from shardtool.source.base import check_some, files_at_once, none_taken, skipped_notes
from shardtool.storage.folders import open_folder
from shardtool.values import INLINE, URL, counted, output_text, parse_size, show_size, source_name, to_bytes, to_text
from shardtool.verbs.create import earlier
from shardtool.verbs.create.result import check_same, folder_notes, loader_notes, name_notes
from shardtool.verbs.create.run import Output, Run, Totals, check_source_stays
from shardtool.wording import flag, option
from shardtool.write.pack_shard import pack_shard
from shardtool.write.packer import ShardResult, ShardTask, TransformWork
from shardtool.write.transformed import measure_samples

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.entries.entries import Entries
    from shardtool.transform import Transform


@memory_for("planning the shards")
def check_outputs(run: Run) -> None:
    """Refuse samples whose files the output would replace, or that are in the datasets that are appended to.

    Where only new ones are wanted, these stay, for the datasets that get any. How far each append is, is found out.

    Raises:
        InvalidRequest: There are such samples.
        CorruptShard: What is appended to is damaged.
    """
    check_source_stays(run)
    _leave_out_removed(run)
    if not any(output.destination.appends for output in run.outputs):
        return
    if run.updates:
        earlier.check_same_request(run)
    if run.takes_only_new:
        new = earlier.new_samples(run)
        run.listed = run.listed if new.all() else replace(run.listed, digest=None)  # that of all samples
        for output in run.outputs:
            which = _which(run, output)
            output.which = which[new[which]]
        for output in run.outputs:
            if (old := output.destination.old) is not None and not len(_which(run, output)):
                output.dataset = old
                run.untouched.append(output)
        run.outputs = [output for output in run.outputs if len(_which(run, output))]
    earlier.begin_append(run)


def _which(run: Run, output: Output) -> NDArray[np.int64]:
    """Return the places of an output's samples."""
    return np.arange(len(run.entries)) if output.which is None else output.which


def _leave_out_removed(run: Run) -> None:
    """Leave out samples that were removed from a dataset that goes on, and their names in what is said of others.

    A dataset that is replaced has them again.

    Raises:
        CorruptShard: The list of what was left out is damaged.
    """
    keys = run.entries.keys
    for output in run.outputs:
        gone = output.destination.removed()
        which = _which(run, output) if gone else np.zeros(0, np.int64)
        again = np.array([key_mark(keys[at]) in gone for at in which.tolist()], np.bool_)
        what, replaced = counted(int(again.sum()), "sample"), "overwrite" in output.destination.if_exists
        if replaced and again.any():
            run.notes.add(f"{what} that `remove` had taken out of the dataset will be in it again")
        elif again.any():
            output.which, run.listed = which[~again], replace(run.listed, digest=None)
            run.notes.add(f"{what} left out, which `remove` took out of the dataset")
        if gone and not replaced:
            hidden = {printable(keys[at]) for at in which[again].tolist()}
            hidden |= {printable(one.key) for one in run.listed.skipped if key_mark(to_bytes(one.key)) in gone}
            run.listed = replace(run.listed, skipped=tuple(without_keys(run.listed.skipped, hidden)))


def check_listed(run: Run) -> None:
    """Refuse a source without samples.

    Raises:
        InvalidRequest: It has none.
    """
    options = run.options
    if not len(run.entries) and isinstance(options, CreateOptions) and (options.include or options.exclude):
        from shardtool.source.unmatched import refuse_globs

        if not run.listed.skipped:
            folder = to_text(run.entries.root.rstrip(b"/") or run.entries.root)
            refuse_globs(folder, options.include, options.exclude, hidden=options.hidden)
    check_some(run.listed)


@memory_for("planning the shards")
def plan_shards(run: Run) -> None:
    """Decide which sample goes into which shard.

    Raises:
        InvalidRequest: Samples do not fit the bounds, the names, or the dataset that they are appended to.
        OutputExists: A run that resumes would replace what is there by something else.
    """
    options, entries = run.options, run.entries
    check_listed(run)
    if not run.outputs:
        return
    estimate = None if run.transform is None else _estimate(run, run.transform)
    if estimate is not None and run.dry:
        urls = f"{counted(int(np.count_nonzero(entries.rows.kind == URL)), 'URL')} not asked: what they give, and how"
        fetched = f"{urls} large it is, shows only when they are fetched"
        run.notes.add(fetched if run.fetches else "sizes are estimates: samples are changed on the way")
        if run.listed.later is not None:
            run.notes.add(f"which samples have {run.listed.later.query}, shows only when they are read")
    seed = options.seed if options.shuffle else None
    for output in run.outputs:
        left, bounds = names_left(output.pattern, output.destination.first), _bounds(run, output)
        output.plan = make_plan(entries, left, bounds, seed, which=output.which, estimate=estimate)
    for output in run.outputs:
        output.destination = output.destination.planned(output.plan.shards)
        _check_sizes(output)
    _check_appended(run)
    _find_changes(run)
    _note_plans(run)
    _check_exports(run)
    if run.transform is None and not run.is_binary:  # sizes are known, and where payloads lie
        for output in run.outputs:
            _check_metadata(output)
    # What the source left out belongs to no split; the first one's list has it.
    first = run.outputs[0]
    first.plan = replace(first.plan, skipped=(*run.listed.skipped, *first.plan.skipped))


_FETCHED = 10_000  # samples of URLs in a shard, where nothing bounds it: how much that is, is not known


def _bounds(run: Run, output: Output) -> Bounds:
    """Return what limits the shards of an output: where files are fetched, without other limits, their number."""
    options, by_hash = run.options, run.options.place == "hash"
    bounded = (options.max_size, options.shards, output.pattern.count) != (None, None, None)
    shards = options.shards
    if shards is not None and run.updates and output.destination.appends:
        shards = min(shards, len(_which(run, output)))  # as many as were asked for once, or what a night can fill
    return Bounds(
        max_size=None if options.max_size is None else parse_size(options.max_size),
        max_count=options.max_count or (_FETCHED if run.fetches and not bounded else None),
        shards=shards,
        equal_count=options.equal_count,
        multiple_of=options.shards_multiple_of,
        oversize=options.oversize,
        by_hash=by_hash,
        before=earlier.shards_before(output.destination) if by_hash else None,
    )


def _check_sizes(output: Output) -> None:
    """Refuse shards that are larger than a file may be where they go.

    Raises:
        InvalidRequest: One is.
    """
    most, sizes = output.destination.folder.largest, output.plan.sizes
    if most is not None and len(sizes) and int(sizes.max()) > most:
        where = output.destination.folder.full_path(output.shard_name(int(sizes.argmax())))
        expected = f"at most {show_size(most)}, as one request of a store takes"
        remedy = f"Lower {option('max_size')}."
        raise InvalidRequest(where, show_size(int(sizes.max())), expected=expected, remedy=remedy)


def _check_appended(run: Run) -> None:
    """Refuse samples that do not go with those that are there."""
    from shardtool.publish.foreign_indexes import export_notes

    for output in run.outputs:
        if (old := output.destination.old) is not None:
            earlier.check_appended(old, output.plan, run.options)
            if not isinstance(output.destination.append, EndedAppend):
                run.notes.add(*earlier.append_notes(old, output.plan, changed=run.transform is not None))
            run.notes.add(*export_notes(output.destination.folder, old, run.exports))
    there = [one.destination for one in (*run.outputs, *run.untouched)]
    if not any(isinstance(one.append, EndedAppend) for one in there):
        run.notes.add(*earlier.class_notes([one.old for one in there if one.old is not None], run.entries))


def _find_changes(run: Run) -> None:
    """Find what a run that resumes would change, and the splits that go, unless it would make another dataset."""
    if run.updates:
        run.notes.add(*earlier.plan_notes(run))
    if run.options.if_exists not in ("resume", "resume-overwrite"):
        return
    changes = earlier.find_changes(run)
    run.notes.add(*earlier.plan_notes(run))
    if changes is None:
        return
    most = share("max_removed", run.options.max_removed)
    if run.options.if_exists == "resume" and (refused := earlier.refusal(run, changes, most)) is not None:
        if not run.dry:
            raise refused
        run.notes.add(f"this run would be refused: {refused.where}: {refused.found}; expected {refused.expected}")
    if run.part is None:  # what the whole run changes, no part knows
        run.gone = tuple(earlier.splits_gone(run)) if run.options.if_exists == "resume-overwrite" else ()
        run.changes = earlier.with_planned(changes, run) if run.dry else changes


def _note_plans(run: Run) -> None:
    """Note what the user should know before a byte is written."""
    entries, notes = run.entries, run.notes
    for output in run.outputs:
        notes.add(*output.plan.notes)
    notes.add(*skipped_notes(run.listed.skipped))
    if run.options.is_given("seed") and "seed" not in run.options.recorded():
        notes.add(f"{option('seed')} has no effect without {flag('shuffle')} or {option('split')}")
    notes.add(*_idle_notes(run), *_small_notes(run))
    if run.verb == "create" and not run.options.shuffle and not any(one.destination.appends for one in run.outputs):
        from shardtool.entries.classes import sorted_note

        said = {note: None for output in run.outputs if (note := sorted_note(entries, output.plan.order))}
        notes.add(*said)
    if run.takes_only_new:
        entries = entries.take(np.sort(np.concatenate([_which(run, output) for output in run.outputs])))
    if run.verb == "create":
        notes.add(*_empty_notes(entries), *_label_notes(run))
    if run.format == "tar":
        found = [one for one in misreads(entries) if not {*READERS[one.code]}.isdisjoint(run.options.readers)]
        safe = "" if run.options.portable else f" ({flag('portable')} makes them safe)"
        notes.add(*(str(replace(one, readers=one.readers + safe) if one.mendable else one) for one in found))
    outputs = [(output.destination, output.plan.shards) for output in run.outputs]
    if run.options.shards is None:
        notes.add(*loader_notes(outputs, [int(output.plan.sizes.sum()) for output in run.outputs]))
    notes.add(*name_notes(outputs, run.options.readers))
    if "huggingface" in run.options.readers:
        notes.add(*folder_notes(outputs, run.exports))


# Options that act only together with others. Unlike those with `needs`, they were accepted alone before, and dataset
# files record some of them.
_ACTS_WITH = (("resize_mode", "resize"), ("max_removed", "if_exists=resume"))
_ONLY_SCATTER = ("memory", "temp_dir")


def _idle_notes(run: Run) -> Iterator[str]:
    """Yield which options have no effect on this run."""
    options = run.options
    for name, other in _ACTS_WITH:
        if options.is_given(name) and not options.first_given(other):
            needed, _, value = other.partition("=")
            yield f"{option(name)} has no effect without {option(needed, value or None)}"
    if getattr(options, "method", "") == "gather":
        for name in filter(options.is_given, _ONLY_SCATTER):
            yield f"{option(name)} has no effect with {option('method', 'gather')}"


_MAY_BE_EMPTY = ("txt", "text")  # a caption, or objects of an image that has none
_MANY, _SPARSE, _SMALL = 1000, 100, 2**22  # shards, and samples and bytes of one


def _empty_notes(entries: Entries) -> Iterator[str]:
    """Yield how many fields of samples have no bytes: they are packed, but an interrupted download leaves such."""
    rows, texts = entries.rows, [code for code, name in enumerate(entries.fields) if name in _MAY_BE_EMPTY]
    empty = ((rows.size == 0) & (rows.kind != INLINE) & (rows.kind != URL)).nonzero()[0]
    empty = empty[~np.isin(rows.code[empty], texts)]
    if len(empty):
        key, field = printable(entries.key(int(entries.owners(empty[:1])[0]))), entries.fields[rows.code[empty[0]]]
        where = f"the first as {printable(field)} of '{key}'"
        yield f"{counted(len(empty), 'file without a byte')} among the samples, {where}: interrupted copies leave such"


def _label_notes(run: Run) -> Iterator[str]:
    """Yield that the folders whose numbers are wanted are one, as where the source is a folder too high or too low."""
    for name, names in run.entries.values.classes.items() if getattr(run.options, "label_from_folder", False) else ():
        if len(names) == 1:
            found = f"all samples have one class of {name}, {printable(names[0])!r}"
            yield f"{found}: {flag('label_from_folder')} numbers the folders that lie in the source"


def _small_notes(run: Run) -> Iterator[str]:
    """Yield which datasets have so many shards, of so few samples, that opening them takes longer than reading."""
    bounds = [name for name in ("max_count", "max_size", "shards") if run.options.is_given(name)]
    for output in run.outputs:
        plan = output.plan
        shards, samples, size = plan.shards, len(plan), int(plan.sizes.sum())
        if bounds and shards >= _MANY and samples < shards * _SPARSE and size < shards * _SMALL:
            each = f"{counted(samples // shards, 'sample')} ({show_size(size // shards)}) or so"
            cure = f"{'a smaller' if bounds == ['shards'] else 'a larger'} {option(bounds[0])} makes fewer"
            yield f"{counted(shards, 'shard')} of {each} each are slow to read: {cure}"


def _check_exports(run: Run) -> None:
    """Refuse indexes of other tools that could not be written once the shards are there."""
    if not run.exports or run.dry:
        return
    from shardtool.publish.foreign_indexes import check_exports

    splits = [output.split for output in run.outputs]
    if any(export.readme for export in run.exports.values()):
        check_splits(splits)
    if "timm" in run.exports:
        check_timm_splits(splits)
    outputs = [(output.pattern, output.destination.first + output.plan.shards) for output in run.outputs]
    check_exports(outputs, run.exports, overwrite=run.options.if_exists != "error")


def _check_metadata(output: Output) -> None:
    """Refuse metadata that no reader takes, if that shows of the shard that has the most of it for its size.

    That one's sidecar is made, with other checksums. Whatever this does not see, is refused when it is written.
    """
    plan, metadata, excess = output.plan, output.plan.entries.metadata, []
    if metadata is None or not plan.shards:
        return
    a_row = metadata.nbytes / max(1, len(metadata))
    for shard, size in enumerate(plan.sizes.tolist()):
        first, last = plan.span(shard)
        taken = metadata.slice(first, last - first).nbytes if plan.order is None else a_row * (last - first)
        excess.append(taken - most_metadata(size))
    worst = max(range(plan.shards), key=excess.__getitem__)
    if excess[worst] > 0:
        samples = shard_samples(plan, worst)
        paths = samples.paths if plan.entries.source_paths else b""
        crcs = shake_128(b"").digest(2 * len(samples.content.codes))  # as hard to compress as others
        index = shard_index.index_of(plan.format, samples.content, plan.metadata(worst), crcs, (), paths)
        name, size = output_text(output.shard_name(worst)), int(plan.sizes[worst])
        shard_index.encode(index, shard_index.ShardFact(name, size, 0, ""))


# What samples will take once they are changed: some are changed to find out, and the rest is estimated.
#
# The estimate decides how many shards are planned, and never how large they are: the bound is kept while they
# are written. It depends on the samples alone, so that the same request gives the same plan.


_TRIED = 64  # samples
_AT_ONCE = 8
_SEED = 20
_LEAST = 8  # fewer say nothing of how the size depends on the source's
_BLOCK = 512  # what a small sample takes at least, in most formats


def _estimate(run: Run, transform: Transform) -> NDArray[np.int64]:
    """Return int64[samples]: about how many bytes the records of each changed sample take."""
    entries = run.entries
    transform.check_fields(entries.fields)
    if lists := [*entries.values.lists]:
        asked = option(next(name for name in CHANGES if getattr(run.options, name)))
        remedy = f"Leave them out with {option('drop_fields', tuple(lists))}."
        raise InvalidRequest(asked, f"lists of values: {listing(lists)}", expected="single ones", remedy=remedy)
    before: NDArray[np.int64] = np.add.reduceat(entries.rows.size, entries.first[:-1]) + _BLOCK
    if run.is_binary or run.fetches or run.listed.compressed or not len(entries):  # a plan asks no server
        return before
    tried = np.sort(shuffled(len(entries), _SEED)[:_TRIED])
    tries = replace(run.outputs[0].pattern, count=None, names=None)  # nothing gets these names
    plan = make_plan(entries, tries, Bounds(max_count=_AT_ONCE), which=tried, estimate=np.ones(len(entries), np.int64))
    after: dict[int, int] = {}
    for number, sizes in run.pool.map(measure_samples, _tasks(plan, transform)):
        places = tried[slice(*plan.span(number))].tolist()
        after |= {place: size for place, size in zip(places, sizes, strict=True) if size >= 0}
    if not after:
        return before
    x = before[list(after)].astype(np.float64)
    y = np.array(list(after.values()), np.float64)
    return np.maximum(1, _line(x, y, before)).astype(np.int64)


def _line(x: NDArray[np.float64], y: NDArray[np.float64], at: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return a least-squares line of `y` over `x`; the mean where there is too little, or the line makes no sense."""
    spread = x - x.mean()
    if len(x) >= _LEAST and (square := float(spread @ spread)) > 0:
        slope = float(spread @ y) / square
        base = float(y.mean()) - slope * float(x.mean())
        if slope > 0:
            slope, base = (slope, base) if base > 0 else (float(y.sum()) / float(x.sum()), 0.0)
            return np.asarray(base + slope * at, np.float64)
    return np.full(len(at), y.mean(), np.float64)


def _tasks(plan: Plan, transform: Transform) -> Iterator[ShardTask]:
    work = TransformWork(transform, 2**62, None, "alone")
    for shard in range(plan.shards):
        samples, own = shard_samples(plan, shard), work_of(plan, shard, work)
        yield ShardTask(shard, "", plan.format, open_folder(""), samples, "skip", 0, "write", own)


def work_of(plan: Plan, shard: int, work: TransformWork) -> TransformWork:
    """Return what is done to the samples of a shard, with the columns that a condition needs of them."""
    where = work.transform.where
    if where is None or (metadata := plan.metadata(shard)) is None:
        return work
    names = [name for name in where.columns if name in metadata.column_names]
    return work._replace(known=bytes(ipc_stream(metadata.select(names)))) if names else work


# A plan is carried out: tasks to workers, results to the publisher, totals to the dataset file.


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
        self.mtime_ns = earlier.mtime_of(run)
        part = self.destination.part  # what the plan leaves out is listed once, by the first of several parts
        values = self.plan.entries.values
        if run.options.map:  # the function may make anything of text and JSON, and is trusted with numbers
            values = values._replace(types=values.numbers)
        self.totals = output.totals = Totals(values)
        self.totals.skipped += self.plan.skipped if part is None or part.number == 1 else ()
        self._first = output_text(output.shard_name(0))
        self._round, self._base = self.plan, self.destination.first  # this round's plan, and its first shard's number
        self._shards = output.own_shards  # of this round
        self._numbers: dict[str, int] = {}  # of published shards
        self._consumed: dict[int, int] = {}  # of this round's shards
        self._done = 0  # planned samples that are written, left out or dropped
        # The tasks of workers; with the index of a shard of changed samples that may stay.
        self._working: dict[int, tuple[earlier.ShardPlan, shard_index.ShardIndex | None]] = {}
        self._fetched = np.zeros(2, np.int64)  # failed, and all: samples of URLs in this run
        self._misread: dict[str, NameProblem] = {}
        self._reported: dict[int, tuple[int, int, int]] = {}  # samples, bytes, samples that failed

    @memory_for("packing the shards")
    def pack(self) -> None:
        """Have every shard written, and publish each as it is done."""
        plan, shards, pool, totals = self.plan, self._shards, self.run.pool, self.totals
        samples = sum(map(plan.count, shards))
        if not self.run.fetches:  # of the web, no sizes are known
            self.publisher.check_space(earlier.new_sizes(self.run, self.output))
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
        if self.destination.part is None and not totals.samples and not chose:
            self.publisher.take_back([self.output.pattern.shard(number) for number in self._numbers.values()])
            raise self._none_packed()
        if (self.run.fetches or self.run.listed.later) and totals.skipped:
            failed = f"{len(totals.skipped):,} of {counted(samples, 'sample')}"
            self.run.notes.add(f"{failed} left out: {reasons(totals.skipped)}")
        if empty := [shard.name for shard in totals.shards if not shard.samples]:
            self.run.notes.add(f"{counted(len(empty), 'shard')} without a sample, all left out: {listing(empty)}")
        counting = {code for code, readers in READERS.items() if not {*readers}.isdisjoint(self.run.options.readers)}
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
            planned = earlier.ShardPlan(run, plan, shard, name, shard_samples(plan, shard))
            todo, known = ("write", None) if write else earlier.decide(planned, self.destination)
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
                mtime_ns=earlier.mtime_of_shard(planned, self.mtime_ns),
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
            return none_taken(self.run.options.where, self.output.split, self._cure_of_split())
        why = reasons(self.totals.skipped, self.output.dropped)
        problem = f"none of {len(self.plan):,} samples could be packed: {why}"
        remedy = "Nothing of this run is left: run it again once that has changed."
        if any(one.code == "refused-address" for one in self.totals.skipped):
            remedy = f"{flag('allow_private')} asks addresses that are not public, too. Nothing of this run is left."
        elif self.run.options.on_error == "skip" and not self.run.fetches:
            remedy = f"Run it without {option('on_error', 'skip')} to see why. Nothing of this run is left."
        return SampleFailed(source_name(self.plan.entries.root), problem, remedy=remedy)

    def _cure_of_split(self) -> str:
        """Return how each split gets a sample where a query takes none of one; empty: there are no splits."""
        if self.run.dividing is None:
            return ""
        shares = f"use larger shares, or another {option('seed')}"
        cure = shares if self.run.dividing.shares else f"leave that split out, too, with {option('where')}"
        return f"Ask for less, or {cure}; and run it with {self._anew} where shards of other splits are there."

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
        if self.destination.part is None and len(counts) % self.run.options.shards_multiple_of:
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
        if known is not None and stays:
            index, (fact, data) = known, self._known(planned, known)
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
            mtime_ns = earlier.mtime_of_shard(planned, self.mtime_ns)
            if result.compared and earlier.is_newer(planned, mtime_ns):  # not while the clocks may differ by more
                folder.set_time(name, mtime_ns)  # so that the next run trusts it
        samples, done, failed = self._reported.pop(shard, (0, 0, 0))
        size = fact.size if self.run.fetches else int(self._round.sizes[shard])
        if self.run.fetches:
            self.observer.failed(max(0, len(failures(one for _, one in result.skipped)) - failed))
        self.observer.advance(max(0, self._consumed[shard] - samples), max(0, size - done), 1)
        self.observer.shard(name, "kept" if stays else "written", tally.samples, fact.size)

    def _index(
        self, result: ShardResult, planned: earlier.ShardPlan
    ) -> tuple[shard_index.ShardIndex, shard_index.ShardFact, bytes]:
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
            of_made = shard_index.MadeFact(result.digest, consumed, made.dropped, len(result.skipped), left_out)
        shards, name = self._planned(planned.shard, consumed), output_text(planned.name)
        fact = shard_index.ShardFact(name, result.size, result.crc, planned.fingerprint(), of_made, self._first, shards)
        index = shard_index.index_of(plan.format, content, columns, result.field_crcs, skipped, paths)
        data, self.totals.schema = shard_index.encode(index, fact)
        accounted = len(np.unique(sources)) + made.dropped if made else len(index)
        if consumed != accounted + len(result.skipped):
            found = f"{accounted:,} of {consumed:,} samples accounted for; no dataset file was written"
            raise Bug(planned.name, found)
        return index, fact, data

    def _known(self, planned: earlier.ShardPlan, index: shard_index.ShardIndex) -> tuple[shard_index.ShardFact, bytes]:
        """Return the facts and the sidecar of a shard of changed samples that stays as it is.

        They are as before, but for the number of shards where the source has grown or shrunk since.
        """
        fact, table = index.fact, index.plain_table()
        if fact.made is None:
            raise Bug(planned.name, "a kept shard without its facts")
        self.totals.schema = shard_index.types_of(shard_index.with_shard(table.schema))
        fact = fact._replace(first=self._first, shards=self._planned(planned.shard, fact.made.consumed))
        return fact, shard_index.encode_table(table, fact)

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
        keys = Names.of(()) if old is None else earlier.existing_keys(there.folder, old.shards[: there.first])
        return frozenset(blake2b(keys[at], digest_size=16).digest() for at in range(len(keys)))

    def _progress(self, shard: int, samples: int, size: int, failed: int = 0) -> None:
        done = self._reported.get(shard, (0, 0, 0))
        self._reported[shard] = done[0] + samples, done[1] + size, done[2] + failed
        if failed:
            self.observer.failed(failed)
        self.observer.advance(samples, size, 0)
