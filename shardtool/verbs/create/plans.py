"""The plans of a run, one for each dataset, and all that is refused or noted before a byte is written."""

from __future__ import annotations

from dataclasses import replace
from hashlib import shake_128
from typing import TYPE_CHECKING

import numpy as np

from shardtool.dataset.shard_index import ShardFact, encode, index_of, most_metadata
from shardtool.entries.arrow import ipc_stream
from shardtool.errors import InvalidRequest, listing, memory_for, printable
from shardtool.interop.indexes import check_splits, check_timm_splits
from shardtool.interop.readers import READERS, misreads
from shardtool.plan.order import Bounds, shuffled
from shardtool.plan.plan import Plan, make_plan, shard_samples
from shardtool.publish.publisher import EndedAppend, names_left
from shardtool.request.options import CHANGES
from shardtool.request.texts import share
from shardtool.skipped import key_mark, without_keys
from shardtool.source.base import check_some, skipped_notes
from shardtool.storage.folders import open_folder
from shardtool.values import URL, counted, output_text, parse_size, show_size, to_bytes
from shardtool.verbs.create import earlier, result
from shardtool.verbs.create.run import Output, Run, check_source_stays
from shardtool.wording import flag, option
from shardtool.write.packer import ShardTask, TransformWork
from shardtool.write.transformed import measure_samples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

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


@memory_for("planning the shards")
def plan_shards(run: Run) -> None:
    """Decide which sample goes into which shard.

    Raises:
        InvalidRequest: Samples do not fit the bounds, the names, or the dataset that they are appended to.
        OutputExists: A run that resumes would replace what is there by something else.
    """
    options, entries = run.options, run.entries
    check_some(run.listed)
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
    notes.add(*result.seed_notes(run.options), *result.small_notes(run.outputs, run.options))
    if run.verb == "create" and not run.options.shuffle and not any(one.destination.appends for one in run.outputs):
        from shardtool.entries.classes import sorted_note

        said = {note: None for output in run.outputs if (note := sorted_note(entries, output.plan.order))}
        notes.add(*said)
    if run.takes_only_new:
        entries = entries.take(np.sort(np.concatenate([_which(run, output) for output in run.outputs])))
    if run.verb == "create":
        notes.add(*result.empty_notes(entries), *result.label_notes(entries, run.options))
    if run.format == "tar":
        found = [one for one in misreads(entries) if not {*READERS[one.code]}.isdisjoint(run.options.readers)]
        safe = "" if run.options.portable else f" ({flag('portable')} makes them safe)"
        notes.add(*(str(replace(one, readers=one.readers + safe) if one.mendable else one) for one in found))
    outputs = [(output.destination, output.plan.shards) for output in run.outputs]
    if run.options.shards is None:
        notes.add(*result.loader_notes(outputs, [int(output.plan.sizes.sum()) for output in run.outputs]))
    notes.add(*result.name_notes(outputs, run.options.readers))
    if "huggingface" in run.options.readers:
        notes.add(*result.folder_notes(outputs, run.exports))


def _check_exports(run: Run) -> None:
    """Refuse indexes of other tools that could not be written once the shards are there."""
    if not run.exports or run.dry:
        return
    from shardtool.publish.foreign_indexes import check_exports

    splits, patterns = zip(*((output.split, output.pattern) for output in run.outputs), strict=True)
    if any(export.readme for export in run.exports.values()):
        check_splits(splits)
    if "timm" in run.exports:
        check_timm_splits(splits)
    for output in run.outputs:
        shards, overwrite = output.destination.first + output.plan.shards, run.options.if_exists != "error"
        check_exports(output.pattern, shards, run.exports, patterns, overwrite=overwrite)


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
        index = index_of(plan.format, samples.content, plan.metadata(worst), crcs, (), paths)
        encode(index, ShardFact(output_text(output.shard_name(worst)), int(plan.sizes[worst]), 0, ""))


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
