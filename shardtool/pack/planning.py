"""Plan the shards of each dataset. The sizes of transformed samples are estimated from a few samples."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shardtool.errors import InvalidRequest, format_list, printable, reporting_memory_errors
from shardtool.interop.readers import READERS_BY_PROBLEM, find_reader_problems
from shardtool.messages import flag_text, option_text
from shardtool.pack import changes, checks
from shardtool.pack.append import append_notes, check_append_schema
from shardtool.pack.run import Listed, Output, Planned, PlannedOutput
from shardtool.plan.plan import Plan, make_plan
from shardtool.plan.random_order import random_permutation
from shardtool.plan.shard_bounds import ShardBounds
from shardtool.plan.shard_task import build_shard_samples, encode_known_columns
from shardtool.publish.advice import folder_notes, loader_notes, name_notes
from shardtool.publish.append_target import remaining_names
from shardtool.request.option_values import parse_share
from shardtool.request.output_options import TRANSFORM_OPTIONS
from shardtool.shard_samples import INLINE, URL
from shardtool.source.base import skipped_notes
from shardtool.storage.folders import open_folder
from shardtool.units import format_size, parse_size, pluralize
from shardtool.write.task import ShardTask, TransformWork
from shardtool.write.transform_packer import measure_samples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardtool.entries.sample_table import SampleTable
    from shardtool.request.create_options import CreateOptions, ReshardOptions
    from shardtool.transform.transform import Transform


@reporting_memory_errors("planning the shards")
def plan_shards(listed: Listed) -> Planned:
    """Assign samples to shards, check the plan, and add notes about it."""
    run, entries = listed.run, listed.entries
    checks.check_listed(listed)
    if not listed.outputs:
        return Planned(listed, ())
    estimate = None if listed.transform is None else _estimate_sizes(listed, listed.transform)
    if estimate is not None and run.dry:
        url_count = f"{pluralize(int(np.count_nonzero(entries.rows.kind == URL)), 'URL')} not fetched"
        fetched = f"{url_count}: their sizes are unknown until they are fetched"
        run.notes.add(fetched if run.fetches else "sizes are estimates, because samples are transformed")
        if (condition := listed.listing.condition) is not None:
            run.notes.add(f"{condition.query} is evaluated when samples are read, so the counts are upper bounds")
    seed = run.options.seed if run.options.shuffle else None
    outputs = list[PlannedOutput]()
    for output in listed.outputs:
        pattern = remaining_names(output.pattern, output.destination.first)
        bounds = _make_bounds(listed, output)
        plan = make_plan(entries, pattern, bounds, seed, samples=output.sample_numbers, estimate=estimate)
        if not outputs:  # samples that the source skipped belong to no split, so list them in the first split
            plan = replace(plan, skipped=(*listed.listing.skipped, *plan.skipped))
        destination = output.destination.with_shard_count(plan.shards)
        outputs.append(PlannedOutput(output.split, destination, output.sample_numbers, plan=plan))
        checks.check_shard_sizes(outputs[-1])
    planned = Planned(listed, tuple(outputs))
    for planned_output in planned.outputs:
        if (old := planned_output.destination.old) is not None:
            check_append_schema(old, planned_output.plan, run.options)
    run.notes.add(*append_notes(planned))
    planned = _add_changes(planned)
    _add_plan_notes(planned)
    checks.check_export_targets(planned)
    if listed.transform is None and not listed.has_payloads_in_memory:
        for planned_output in planned.outputs:
            checks.check_metadata_size(planned_output)
    return planned


_MAX_URL_SAMPLES = 10_000  # default `max_count` for downloads, because their sizes are unknown


def _make_bounds(listed: Listed, output: Output) -> ShardBounds:
    run, options = listed.run, listed.run.options
    has_bound = (options.max_size, options.shards, output.pattern.count) != (None, None, None)
    shards, by_hash = options.shards, options.place == "hash"
    if shards is not None and run.updates and output.destination.appends:
        shards = min(shards, len(output.positions(listed.entries)))
    return ShardBounds(
        max_size=None if options.max_size is None else parse_size(options.max_size),
        max_count=options.max_count or (_MAX_URL_SAMPLES if run.fetches and not has_bound else None),
        shards=shards,
        equal_count=options.equal_count,
        multiple_of=options.shards_multiple_of,
        oversize=options.oversize,
        by_hash=by_hash,
        current_shards=changes.count_earlier_shards(output.destination) if by_hash else None,
    )


def _add_changes(planned: Planned) -> Planned:
    run, options = planned.run, planned.run.options
    if run.updates:
        run.notes.add(*changes.other_plan_notes(planned))
    if run.may_append or not options.resume:
        return planned
    resume_changes = changes.find_changes(planned)
    run.notes.add(*changes.other_plan_notes(planned))
    if resume_changes is None:
        return planned
    if not options.overwrite:
        max_removed = parse_share("max_removed", options.max_removed)
        if (refused := changes.find_refusal(planned, resume_changes, max_removed)) is not None:
            if not run.dry:
                raise refused
            run.notes.add(f"this run would fail: {refused.where}: {refused.found}; expected {refused.expected}")
        run.notes.add(*changes.lost_columns_notes(planned))
    if run.part is not None:
        return planned
    empty_splits = tuple(changes.find_empty_splits(planned.outputs)) if options.overwrite else ()
    counted = changes.add_planned_counts(resume_changes, planned) if run.dry else resume_changes
    return replace(planned, changes=counted, empty_splits=empty_splits)


def _add_plan_notes(planned: Planned) -> None:
    run, entries, notes = planned.run, planned.listed.entries, planned.run.notes
    for output in planned.outputs:
        notes.add(*output.plan.notes)
    notes.add(*skipped_notes(planned.listed.listing.skipped))
    if run.options.is_given("seed") and "seed" not in run.options.recorded():
        notes.add(f"{option_text('seed')} has no effect without {flag_text('shuffle')} or {option_text('split')}")
    notes.add(*checks.unused_option_notes(run.options), *_small_shard_notes(planned))
    if run.verb == "create" and not run.options.shuffle and not planned.listed.appends:
        from shardtool.entries.classes import sorted_labels_note

        label_notes = [sorted_labels_note(entries, output.plan.order) for output in planned.outputs]
        notes.add(*dict.fromkeys(filter(None, label_notes)))
    if run.skips_existing:
        entries = entries.take(np.sort(np.concatenate([output.positions(entries) for output in planned.outputs])))
    if run.verb == "create":
        notes.add(*_empty_file_notes(entries), *_label_notes(planned.listed))
    if run.pattern.format == "tar":
        notes.add(*_reader_notes(entries, run.options))
    outputs = [(output.destination, output.plan.shards) for output in planned.outputs]
    if run.options.shards is None:
        notes.add(*loader_notes(outputs, [int(output.plan.sizes.sum()) for output in planned.outputs]))
    notes.add(*name_notes(outputs, run.options.readers))
    if "huggingface" in run.options.readers:
        notes.add(*folder_notes(outputs, run.exports))


_OPTIONAL_TEXT_FIELDS = ("txt", "text")
_MANY_SHARDS, _FEW_SAMPLES, _SMALL_SHARD_BYTES = 1000, 100, 2**22  # a plan of many small shards gets a note


def _reader_notes(entries: SampleTable, options: CreateOptions | ReshardOptions) -> Iterator[str]:
    fix = "" if options.portable else f" ({flag_text('portable')} renames them)"
    for problem in find_reader_problems(entries):
        if not {*READERS_BY_PROBLEM[problem.code]}.isdisjoint(options.readers):
            yield str(replace(problem, readers=problem.readers + fix) if problem.fixable else problem)


def _empty_file_notes(entries: SampleTable) -> Iterator[str]:
    rows, text_codes = entries.rows, [code for code, name in enumerate(entries.fields) if name in _OPTIONAL_TEXT_FIELDS]
    empty_rows = np.flatnonzero((rows.size == 0) & (rows.kind != INLINE) & (rows.kind != URL))
    empty_rows = empty_rows[~np.isin(rows.code[empty_rows], text_codes)]
    if len(empty_rows):
        key, field = entries.key(int(entries.samples_of(empty_rows[0]))), entries.fields[rows.code[empty_rows[0]]]
        first = f"first: {printable(field)} of '{printable(key)}'"
        yield f"{pluralize(len(empty_rows), 'file of 0 bytes')} ({first}), perhaps left by an interrupted copy"


def _label_notes(listed: Listed) -> Iterator[str]:
    has_labels = getattr(listed.run.options, "label_from_folder", False)
    for name, names in listed.entries.values.classes.items() if has_labels else ():
        if len(names) == 1:
            found = f"all samples have the same {name}, {printable(names[0])!r}"
            yield f"{found}: {flag_text('label_from_folder')} numbers the top folders of the source"


def _small_shard_notes(planned: Planned) -> Iterator[str]:
    bounds = [name for name in ("max_count", "max_size", "shards") if planned.run.options.is_given(name)]
    for output in planned.outputs:
        plan = output.plan
        shards, samples, size = plan.shards, len(plan), int(plan.sizes.sum())
        if bounds and shards >= _MANY_SHARDS and samples < shards * _FEW_SAMPLES and size < shards * _SMALL_SHARD_BYTES:
            average = f"about {pluralize(samples // shards, 'sample')} ({format_size(size // shards)})"
            fix = f"use {'a smaller' if bounds == ['shards'] else 'a larger'} {option_text(bounds[0])}"
            yield f"{pluralize(shards, 'shard')} of {average} each are slow to read: {fix}"


_MAX_TRIED_SAMPLES = 64
_SAMPLES_PER_TASK = 8
_SAMPLE_SEED = 20
_MIN_FITTED_SAMPLES = 8
_SAMPLE_OVERHEAD_BYTES = 512


def _estimate_sizes(listed: Listed, transform: Transform) -> NDArray[np.int64]:
    run, entries = listed.run, listed.entries
    transform.check_fields(entries.fields)
    if lists := [*entries.values.lists]:
        option = option_text(next(name for name in TRANSFORM_OPTIONS if getattr(run.options, name)))
        remedy = f"Drop these fields with {option_text('drop_fields', tuple(lists))}."
        raise InvalidRequest(option, f"lists of values: {format_list(lists)}", expected="single values", remedy=remedy)
    source_sizes = np.add.reduceat(entries.rows.size, entries.first_rows[:-1]) + _SAMPLE_OVERHEAD_BYTES
    if listed.has_payloads_in_memory or run.fetches or listed.listing.compressed or not len(entries):
        return source_sizes
    sample_numbers = np.sort(random_permutation(len(entries), _SAMPLE_SEED)[:_MAX_TRIED_SAMPLES])
    pattern = replace(listed.outputs[0].pattern, count=None, names=None)
    plan = make_plan(
        entries,
        pattern,
        ShardBounds(max_count=_SAMPLES_PER_TASK),
        samples=sample_numbers,
        estimate=np.ones(len(entries), np.int64),
    )
    measured: dict[int, int] = {}
    for task, sizes in run.pool.map(measure_samples, _make_tasks(plan, transform)):
        numbers = sample_numbers[slice(*plan.span(task))].tolist()
        measured |= {number: size for number, size in zip(numbers, sizes, strict=True) if size >= 0}
    if not measured:
        return source_sizes
    x = source_sizes[list(measured)].astype(np.float64)
    y = np.array(list(measured.values()), np.float64)
    return np.maximum(1, _fit_line(x, y, source_sizes)).astype(np.int64)


def _fit_line(x: NDArray[np.float64], y: NDArray[np.float64], points: NDArray[np.int64]) -> NDArray[np.float64]:
    spread = x - x.mean()
    if len(x) >= _MIN_FITTED_SAMPLES and (square := float(spread @ spread)) > 0:
        slope = float(spread @ y) / square
        base = float(y.mean()) - slope * float(x.mean())
        if slope > 0 and base > 0:
            return np.asarray(base + slope * points, np.float64)
        if slope > 0:
            return np.asarray(float(y.sum()) / float(x.sum()) * points, np.float64)
    return np.full(len(points), y.mean(), np.float64)


def _make_tasks(plan: Plan, transform: Transform) -> Iterator[ShardTask]:
    for shard in range(plan.shards):
        known = encode_known_columns(plan, shard, transform.where)
        work = TransformWork(transform, 2**62, None, "alone", known_columns=known)
        yield ShardTask("", plan.format, open_folder(""), build_shard_samples(plan, shard), "skip", 0, work=work)
