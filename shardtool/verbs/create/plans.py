"""The plans of a run, one for each dataset, and all that is refused or noted before a byte is written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import shake_128
from typing import TYPE_CHECKING

import numpy as np

from shardtool.dataset.sidecar import ShardFact
from shardtool.dataset.sidecar_read import most_metadata
from shardtool.dataset.sidecar_write import WrittenShard, encode, index_of
from shardtool.errors import InvalidRequest, memory_for
from shardtool.interop.indexes import check_timm_splits
from shardtool.plan.order import Bounds, shuffled
from shardtool.plan.plan import make_plan, shard_samples
from shardtool.publish.destination import EndedAppend
from shardtool.request.options import CreateOptions, share
from shardtool.source.base import check_some, skipped_notes
from shardtool.storage.folders import open_folder
from shardtool.values import URL, counted, output_text, parse_size, show_size
from shardtool.verbs.create.advice import empty_notes, folder_notes, loader_notes, name_notes
from shardtool.verbs.create.append import AppendedSamples, append_notes, begin, check_appended
from shardtool.verbs.create.request import check_source_stays, run_record
from shardtool.verbs.create.resume import (
    ResumedDataset,
    find_changes,
    plan_notes,
    refusal,
    shards_before,
    splits_gone,
    with_shards,
)
from shardtool.wording import flag, option
from shardtool.write.task import ShardTask, TransformWork, Write
from shardtool.write.transformed import measure_samples

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.entries.entries import Entries
    from shardtool.execute.pool import Pool
    from shardtool.interop.readers import NameProblem
    from shardtool.pattern import ShardPattern
    from shardtool.plan.plan import Plan
    from shardtool.request.options import OutputOptions
    from shardtool.request.results import Changes, Notes
    from shardtool.transform.steps import Transform
    from shardtool.verbs.create.request import OutputDataset, Request
    from shardtool.verbs.create.samples import Samples


# What samples will take once they are changed: some are changed to find out, and the rest is estimated.
#
# The estimate decides how many shards are planned, and never how large they are: the bound is kept while they
# are written. It depends on the samples alone, so that the same request gives the same plan.


_TRIED = 64  # samples
_AT_ONCE = 8
_SEED = 20
_LEAST = 8  # fewer say nothing of how the size depends on the source's
_BLOCK = 512  # what a small sample takes at least, in most formats


def estimate_sizes(
    entries: Entries, pattern: ShardPattern, transform: Transform | None, pool: Pool
) -> NDArray[np.int64]:
    """Return int64[samples]: about how many bytes the records of each changed sample take.

    Args:
        entries: The samples.
        pattern: The shards' names, which give the format.
        transform: What is done to them; None: it cannot be tried, so that their own sizes must do.
        pool: Tries it on some samples.
    """
    before: NDArray[np.int64] = np.add.reduceat(entries.rows.size, entries.first[:-1]) + _BLOCK
    if transform is None or not len(entries):
        return before
    tried = np.sort(shuffled(len(entries), _SEED)[:_TRIED])
    bounds = Bounds(max_count=_AT_ONCE)
    tries = replace(pattern, count=None, names=None)  # nothing gets these names
    plan = make_plan(entries, tries, bounds, which=tried, estimate=np.ones(len(entries), np.int64))
    after: dict[int, int] = {}
    for number, sizes in pool.map(measure_samples, _tasks(plan, transform)):
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
        yield ShardTask(shard, "", plan.format, open_folder(""), shard_samples(plan, shard), "skip", 0, Write(), work)


_FETCHED = 10_000  # samples of URLs in a shard, where nothing bounds it: how much that is, is not known


@dataclass(frozen=True, slots=True)
class Plans:
    """The plans of a run.

    Attributes:
        each: The plan of each target.
        changes: What a run that resumes would change; None if nothing is there.
        gone: The splits of the first run that the source has no sample of any more: they are to be removed.
        targets: Where each plan is carried out; a part knows now which shards are its own.
    """

    each: tuple[Plan, ...]
    changes: Changes | None
    gone: tuple[str, ...] = ()
    targets: tuple[OutputDataset, ...] = ()


@memory_for("planning the shards")
def plan_shards(request: Request, samples: Samples, pool: Pool, notes: Notes) -> Plans:
    """Decide which sample goes into which shard.

    Raises:
        InvalidRequest: Samples do not fit the bounds, the names, or the dataset that they are appended to.
        OutputExists: A run that resumes would replace what is there by something else.
    """
    options, entries, targets = request.options, samples.entries, samples.targets
    check_some(samples.listed)
    if not targets:
        return Plans((), None)
    estimate = _estimate(request, samples, pool)
    if estimate is not None and request.dry:
        notes.add(_dry_note(request, entries))
    seed = options.seed if options.shuffle else None
    plans = tuple(
        make_plan(entries, target.output.pattern_left, _bounds(options, target), seed, which=part, estimate=estimate)
        for target, part in zip(targets, samples.parts, strict=True)
    )
    targets = tuple(
        replace(target, output=target.output.planned(plan.shards)) for target, plan in zip(targets, plans, strict=True)
    )
    samples = replace(samples, targets=targets)
    for target, plan in zip(targets, plans, strict=True):
        _check_sizes(target, plan)
    _check_appended(request, targets, plans, notes)
    changes, gone = _changes(request, samples, plans, notes)
    _note_plans(request, samples, plans, notes)
    _check_exports(request, targets, plans)
    if request.transform is None and not samples.binary:  # sizes are known, and where payloads lie
        for target, plan in zip(targets, plans, strict=True):
            _check_metadata(target, plan)
    # What the source left out belongs to no split; the first one's list has it.
    first = replace(plans[0], skipped=(*samples.listed.skipped, *plans[0].skipped))
    return Plans((first, *plans[1:]), changes, gone, targets)


def _check_sizes(target: OutputDataset, plan: Plan) -> None:
    """Refuse shards that are larger than a file may be where they go.

    Raises:
        InvalidRequest: One is.
    """
    most = target.output.folder.largest()
    if most is None or not plan.shards or int(plan.sizes.max()) <= most:
        return
    shard = int(plan.sizes.argmax())
    where = target.output.folder.full_path(target.output.pattern.shard(target.output.first + shard))
    found, expected = show_size(int(plan.sizes[shard])), f"at most {show_size(most)}, as one request of a store takes"
    raise InvalidRequest(where, found, expected=expected, remedy=f"Lower {option('max_size')}.")


def _dry_note(request: Request, entries: Entries) -> str:
    """Return what a plan cannot know of samples that are changed on the way."""
    if request.transform is None or request.transform.fetch is None:
        return "sizes are estimates: samples are changed on the way"
    urls = int(np.count_nonzero(entries.rows.kind == URL))
    return f"{counted(urls, 'URL')} not asked: what they give, and how large it is, shows only when they are fetched"


def _bounds(options: OutputOptions, target: OutputDataset) -> Bounds:
    """Return what limits the shards of a target: where files are fetched, without other limits, their number."""
    by_hash, max_count = options.place == "hash", options.max_count
    limits = options.max_size, options.shards, target.pattern.count
    if isinstance(options, CreateOptions) and options.urls and limits == (None, None, None):
        max_count = max_count or _FETCHED
    return Bounds(
        max_size=None if options.max_size is None else parse_size(options.max_size),
        max_count=max_count,
        shards=options.shards,
        equal_count=options.equal_count,
        multiple_of=options.shards_multiple_of,
        oversize=options.oversize,
        by_hash=by_hash,
        before=shards_before(target.output) if by_hash else None,
    )


def _estimate(request: Request, samples: Samples, pool: Pool) -> NDArray[np.int64] | None:
    """Return about what changed samples will take; None if they stay as they are."""
    transform = request.transform
    if transform is None:
        return None

    transform.check_fields(samples.entries.fields)
    pattern = samples.targets[0].pattern
    tried = None if samples.binary or transform.fetch is not None else transform  # a plan asks no server
    return estimate_sizes(samples.entries, pattern, tried, pool)


@memory_for("planning the shards")
def check_output(request: Request, samples: Samples, notes: Notes) -> Samples:
    """Refuse samples whose files the output would replace, or that are in the datasets that are appended to.

    Returns:
        The samples, with how far each append is; where only new ones are wanted, these, for the datasets that get any.

    Raises:
        InvalidRequest: There are such samples.
        CorruptShard: What is appended to is damaged.
    """
    check_source_stays(samples.targets, samples.entries)
    if not any(target.output.appends for target in samples.targets):
        return samples
    if request.takes_only_new:
        samples = _only_new(request, samples, notes)
    keys = [samples.entries.keys if part is None else samples.entries.keys.take(part) for part in samples.parts]
    both = zip(samples.targets, keys, strict=True)
    outputs = begin(
        [AppendedSamples(one.output, names, run_record(request, samples.listed, one.split)) for one, names in both]
    )
    pairs = zip(samples.targets, outputs, strict=True)
    return replace(samples, targets=tuple(replace(target, output=output) for target, output in pairs))


def _only_new(request: Request, samples: Samples, notes: Notes) -> Samples:
    """Return the samples whose keys are in none of the datasets."""
    from shardtool.verbs.create.append import known_samples

    entries, targets = samples.entries, samples.targets
    known = known_samples(entries, [one.output for one in targets], transformed=request.transform is not None)
    notes.add(*known.notes(entries))
    new = known.new
    parts = [np.flatnonzero(new) if part is None else part[new[part]] for part in samples.parts]
    both = [(target, part) for target, part in zip(targets, parts, strict=True) if len(part)]
    untouched = tuple(target for target, part in zip(targets, parts, strict=True) if not len(part))
    return replace(
        samples,
        targets=tuple(target for target, _ in both),
        parts=tuple(part for _, part in both),
        untouched=untouched,
    )


def _check_appended(request: Request, targets: Sequence[OutputDataset], plans: Sequence[Plan], notes: Notes) -> None:
    """Refuse samples that do not go with those that are there."""
    for target, plan in zip(targets, plans, strict=True):
        if (old := target.output.old) is not None:
            check_appended(old, plan)
            if not isinstance(target.output.append, EndedAppend):
                notes.add(*append_notes(old, plan, changed=request.transform is not None))
            from shardtool.publish.foreign_indexes import export_notes

            notes.add(*export_notes(target.output.folder, target.output.old, request.exports))


def _changes(
    request: Request, samples: Samples, plans: Sequence[Plan], notes: Notes
) -> tuple[Changes | None, tuple[str, ...]]:
    """Return what a run that resumes would change, and the splits that go, unless it would make another dataset."""
    options = request.options
    if options.if_exists not in ("resume", "resume-overwrite"):
        return None, ()
    resumed = [
        ResumedDataset(target.output, plan, run_record(request, samples.listed, target.split), request, samples.dots)
        for target, plan in zip(samples.targets, plans, strict=True)
    ]
    changes = find_changes(resumed)
    notes.add(*plan_notes(resumed))
    if changes is None:
        return None, ()
    most = share("max_removed", options.max_removed)
    if options.if_exists == "resume" and (refused := refusal(resumed, changes, most)) is not None:
        if not request.dry:
            raise refused
        notes.add(f"this run would be refused: {refused.where}: {refused.found}; expected {refused.expected}")
    if request.part is not None:  # what the whole run changes, no part knows
        return None, ()
    gone = tuple(splits_gone(resumed)) if options.if_exists == "resume-overwrite" else ()
    return with_shards(changes, resumed) if request.dry else changes, gone


def _note_plans(request: Request, samples: Samples, plans: Sequence[Plan], notes: Notes) -> None:
    """Note what the user should know before a byte is written."""
    for plan in plans:
        notes.add(*plan.notes)
    notes.add(*skipped_notes(samples.listed.skipped))
    if request.verb == "create" and not request.options.shuffle:
        from shardtool.entries.classes import sorted_note

        notes.add(*{note: None for plan in plans if (note := sorted_note(samples.entries, plan.order))})
    entries = samples.entries
    if request.takes_only_new:
        entries = entries.take(np.sort(np.concatenate([part for part in samples.parts if part is not None])))
    if request.verb == "create":
        notes.add(*empty_notes(entries))
    if request.format == "tar":
        notes.add(*map(str, _misreads(entries, request.options)))
    outputs = [(target.output, plan.shards) for target, plan in zip(samples.targets, plans, strict=True)]
    if request.options.shards is None:
        notes.add(*loader_notes(outputs, [int(plan.sizes.sum()) for plan in plans]))
    notes.add(*name_notes(outputs, request.options.readers))
    if "huggingface" in request.options.readers:
        notes.add(*folder_notes(outputs, request.exports))


def _misreads(entries: Entries, options: OutputOptions) -> list[NameProblem]:
    from shardtool.interop.readers import READERS, misreads

    found = [one for one in misreads(entries) if not {*READERS[one.code]}.isdisjoint(options.readers)]
    if options.portable or not any(one.mendable for one in found):
        return found
    return [
        replace(one, readers=f"{one.readers} ({flag('portable')} makes them safe)") if one.mendable else one
        for one in found
    ]


def _check_exports(request: Request, targets: Sequence[OutputDataset], plans: Sequence[Plan]) -> None:
    """Refuse indexes of other tools that could not be written once the shards are there."""
    if not request.exports or request.dry:
        return
    from shardtool.interop.indexes import check_splits
    from shardtool.publish.foreign_indexes import check_exports

    splits = [target.split for target in targets]
    if any(export.readme for export in request.exports.values()):
        check_splits(splits)
    if "timm" in request.exports:
        check_timm_splits(splits)
    overwrite = request.options.if_exists != "error"
    patterns = [target.pattern for target in targets]
    for target, plan in zip(targets, plans, strict=True):
        shards = target.output.first + plan.shards
        check_exports(target.pattern, shards, request.exports, patterns, overwrite=overwrite)


def _check_metadata(target: OutputDataset, plan: Plan) -> None:
    """Refuse metadata that no reader takes, if that shows of the shard that has the most of it for its size.

    That one's sidecar is made, with other checksums. Whatever this does not see, is refused when it is written.
    """
    metadata = plan.entries.metadata
    if metadata is None or not plan.shards:
        return
    a_row, excess = metadata.nbytes / max(1, len(metadata)), []
    for shard, size in enumerate(plan.sizes.tolist()):
        first, last = plan.span(shard)
        taken = metadata.slice(first, last - first).nbytes if plan.order is None else a_row * (last - first)
        excess.append(taken - most_metadata(size))
    worst = max(range(plan.shards), key=excess.__getitem__)
    if excess[worst] <= 0:
        return
    samples, name = shard_samples(plan, worst), target.output.pattern.shard(target.output.first + worst)
    paths = samples.paths if plan.entries.source_paths else b""
    crcs = shake_128(b"").digest(2 * len(samples.content.codes))  # as hard to compress as others
    index = index_of(WrittenShard(plan.format, samples.content, plan.metadata(worst), crcs, (), paths))
    encode(index, ShardFact(output_text(name), int(plan.sizes[worst]), 0, ""))
