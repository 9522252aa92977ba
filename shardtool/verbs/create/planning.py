"""Plan the shards of each dataset of a run, and add notes before anything is written."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shardtool.errors import (
    printable,
    reporting_memory_errors,
)
from shardtool.interop.readers import READERS_BY_PROBLEM, find_reader_problems
from shardtool.messages import flag_text, option_text
from shardtool.plan.plan import make_plan
from shardtool.plan.shard_bounds import ShardBounds
from shardtool.publish.advice import folder_notes, loader_notes, name_notes
from shardtool.publish.append_target import remaining_names
from shardtool.request.option_values import parse_share
from shardtool.shard_samples import INLINE, URL
from shardtool.source.base import skipped_notes
from shardtool.units import format_size, parse_size, pluralize
from shardtool.verbs.create import changes
from shardtool.verbs.create.checks import (
    check_append,
    check_export_targets,
    check_listed,
    check_metadata_size,
    check_shard_sizes,
    idle_option_notes,
)
from shardtool.verbs.create.estimate import estimate_sizes
from shardtool.verbs.create.new_samples import get_sample_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.entries.sample_table import SampleTable
    from shardtool.verbs.create.run import Run, RunOutput


@reporting_memory_errors("planning the shards")
def plan_shards(run: Run) -> None:
    """Assign samples to shards."""
    options, entries = run.options, run.entries
    check_listed(run)
    if not run.outputs:
        return
    estimate = None if run.transform is None else estimate_sizes(run, run.transform)
    if estimate is not None and run.dry:
        url_count = f"{pluralize(int(np.count_nonzero(entries.rows.kind == URL)), 'URL')} not fetched"
        fetched = f"{url_count}: their sizes are unknown until they are fetched"
        run.notes.add(fetched if run.fetches else "sizes are estimates, because samples are transformed")
        if run.listed.later is not None:
            run.notes.add(
                f"{run.listed.later.query} is evaluated when samples are read, so the counts are upper bounds"
            )
    seed = options.seed if options.shuffle else None
    for output in run.outputs:
        pattern, bounds = remaining_names(output.pattern, output.destination.first), _make_bounds(run, output)
        output.plan = make_plan(entries, pattern, bounds, seed, which=output.sample_numbers, estimate=estimate)
    for output in run.outputs:
        output.destination = output.destination.with_shard_count(output.plan.shards)
        check_shard_sizes(output)
    check_append(run)
    _note_changes(run)
    _add_plan_notes(run)
    check_export_targets(run)
    if run.transform is None and not run.is_binary:
        for output in run.outputs:
            check_metadata_size(output)
    # Samples that the source skipped belong to no split; the first split lists them.
    first = run.outputs[0]
    first.plan = replace(first.plan, skipped=(*run.listed.skipped, *first.plan.skipped))


_MAX_URL_SAMPLES = 10_000  # samples per shard without another bound, because sizes are unknown


def _make_bounds(run: Run, output: RunOutput) -> ShardBounds:
    options, by_hash = run.options, run.options.place == "hash"
    has_bound = (options.max_size, options.shards, output.pattern.count) != (None, None, None)
    shards = options.shards
    if shards is not None and run.updates and output.destination.appends:
        shards = min(shards, len(get_sample_numbers(run, output)))  # an update may have fewer samples than shards
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


def _note_changes(run: Run) -> None:
    if run.updates:
        run.notes.add(*changes.other_plan_notes(run))
    if run.options.if_exists not in ("resume", "resume-overwrite"):
        return
    resume_changes = changes.find_changes(run)
    run.notes.add(*changes.other_plan_notes(run))
    if resume_changes is None:
        return
    max_removed = parse_share("max_removed", run.options.max_removed)
    if (
        run.options.if_exists == "resume"
        and (refused := changes.find_refusal(run, resume_changes, max_removed)) is not None
    ):
        if not run.dry:
            raise refused
        run.notes.add(f"this run would fail: {refused.where}: {refused.found}; expected {refused.expected}")
    if run.part is None:  # a part does not know the changes of the whole run
        run.lost_splits = tuple(changes.find_lost_splits(run)) if run.options.if_exists == "resume-overwrite" else ()
        run.changes = changes.add_planned_counts(resume_changes, run) if run.dry else resume_changes


def _add_plan_notes(run: Run) -> None:
    entries, notes = run.entries, run.notes
    for output in run.outputs:
        notes.add(*output.plan.notes)
    notes.add(*skipped_notes(run.listed.skipped))
    if run.options.is_given("seed") and "seed" not in run.options.recorded():
        notes.add(f"{option_text('seed')} has no effect without {flag_text('shuffle')} or {option_text('split')}")
    notes.add(*idle_option_notes(run), *_small_shard_notes(run))
    if (
        run.verb == "create"
        and not run.options.shuffle
        and not any(output.destination.appends for output in run.outputs)
    ):
        from shardtool.entries.classes import sorted_labels_note

        label_notes = {note: None for output in run.outputs if (note := sorted_labels_note(entries, output.plan.order))}
        notes.add(*label_notes)
    if run.takes_only_new:
        entries = entries.take(np.sort(np.concatenate([get_sample_numbers(run, output) for output in run.outputs])))
    if run.verb == "create":
        notes.add(*_empty_file_notes(entries), *_label_notes(run))
    if run.format == "tar":
        problems = [
            problem
            for problem in find_reader_problems(entries)
            if not {*READERS_BY_PROBLEM[problem.code]}.isdisjoint(run.options.readers)
        ]
        fix = "" if run.options.portable else f" ({flag_text('portable')} renames them)"
        notes.add(
            *(
                str(replace(problem, readers=problem.readers + fix) if problem.fixable else problem)
                for problem in problems
            )
        )
    outputs = [(output.destination, output.plan.shards) for output in run.outputs]
    if run.options.shards is None:
        notes.add(*loader_notes(outputs, [int(output.plan.sizes.sum()) for output in run.outputs]))
    notes.add(*name_notes(outputs, run.options.readers))
    if "huggingface" in run.options.readers:
        notes.add(*folder_notes(outputs, run.exports))


_OPTIONAL_TEXT_FIELDS = ("txt", "text")


_MANY_SHARDS, _FEW_SAMPLES, _SMALL_SHARD_BYTES = 1000, 100, 2**22  # bytes per shard


def _empty_file_notes(entries: SampleTable) -> Iterator[str]:
    rows, text_codes = entries.rows, [code for code, name in enumerate(entries.fields) if name in _OPTIONAL_TEXT_FIELDS]
    empty = ((rows.size == 0) & (rows.kind != INLINE) & (rows.kind != URL)).nonzero()[0]
    empty = empty[~np.isin(rows.code[empty], text_codes)]
    if len(empty):
        key, field = printable(entries.key(int(entries.owners(empty[:1])[0]))), entries.fields[rows.code[empty[0]]]
        first = f"first: {printable(field)} of '{key}'"
        yield f"{pluralize(len(empty), 'file of 0 bytes')} ({first}), as interrupted copies leave"


def _label_notes(run: Run) -> Iterator[str]:
    for name, names in run.entries.values.classes.items() if getattr(run.options, "label_from_folder", False) else ():
        if len(names) == 1:
            found = f"all samples have the same {name}, {printable(names[0])!r}"
            yield f"{found}: {flag_text('label_from_folder')} numbers the top folders of the source"


def _small_shard_notes(run: Run) -> Iterator[str]:
    """Yield which datasets have so many tiny shards that opening them dominates reading."""
    bounds = [name for name in ("max_count", "max_size", "shards") if run.options.is_given(name)]
    for output in run.outputs:
        plan = output.plan
        shards, samples, size = plan.shards, len(plan), int(plan.sizes.sum())
        if bounds and shards >= _MANY_SHARDS and samples < shards * _FEW_SAMPLES and size < shards * _SMALL_SHARD_BYTES:
            average = f"about {pluralize(samples // shards, 'sample')} ({format_size(size // shards)})"
            fix = f"use {'a smaller' if bounds == ['shards'] else 'a larger'} {option_text(bounds[0])}"
            yield f"{pluralize(shards, 'shard')} of {average} each are slow to read: {fix}"
