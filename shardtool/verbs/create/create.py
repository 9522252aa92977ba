"""`create`: a folder or a manifest becomes a dataset. The library twin of `shardtool create`."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from shardtool.dataset.find import find_dataset, of_glob
from shardtool.errors import InvalidRequest, OutputExists, listing, memory_for, printable
from shardtool.execute import start_pool
from shardtool.request.options import CreateOptions, OutputOptions, ReshardOptions
from shardtool.request.settings import Notes, Observer, by_names
from shardtool.source.open import open_source
from shardtool.storage.places import is_url
from shardtool.values import SPAN, Datasets, Dots, SpanFile, show_size
from shardtool.verbs.create import run as runs
from shardtool.wording import either, option

if TYPE_CHECKING:
    from shardtool.entries.entries import Names
    from shardtool.execute.pool import Pool
    from shardtool.request.results import CreateResult, DryRun
    from shardtool.request.texts import SplitOptions
    from shardtool.source.base import Listing, Source
    from shardtool.transform import Condition, Transform


# What `create` and `reshard` share: samples from a source become one dataset, or one for each split.
#
# `write_dataset` is the whole run, from top to bottom; the imports say where each of its steps stands.
#
# Start-up is a part of the work: on 60,000 files, importing pyarrow and NumPy costs more than
# packing. So workers are forked before anything heavy is imported, list the source while a thread of
# the parent imports what the plan and the sidecars need, and never need it themselves.


def write_dataset(
    source: object, names: runs.OutputNames, options: CreateOptions | ReshardOptions, observer: Observer
) -> CreateResult:
    """Write the samples of a source into shards, with sidecars and a dataset file.

    Args:
        source: A folder, a manifest, or datasets.
        names: A shard pattern, or the shards' names; with `{split}` in it for splits.
        options: What was asked for.
        observer: Gets the progress, and what the user should know.
    """
    begun, notes = time.time(), Notes(observer)
    with start_workers(options, notes.observer) as pool, ExitStack() as stack:
        run = runs.read_run(names, options, pool, notes, begun=begun, dry=False)
        opened = _open_and_list(run, source)

        from shardtool.verbs.create import packing, result
        from shardtool.verbs.create.shuffle import arrange_payloads, spool_place

        packing.check_outputs(run)
        if not run.outputs:
            _export_missing(run)
            return result.create_result(run)
        is_binary, temporary = run.is_binary, spool_place(run)
        if is_binary:  # workers read binary columns from a file beside the output
            runs.open_publishers(run, temporary, stack)
            _spool(run, opened)
        packing.plan_shards(run)
        if not is_binary:
            runs.open_publishers(run, temporary, stack)
        if run.part is not None:
            for output in run.outputs:
                result.begin_part(run, output, run.part)
        arrange_payloads(run)
        for output in run.outputs:
            packing.Packing(run, output).pack()
        if run.part is None:
            result.check_content(run)
        for output in run.outputs:
            output.dataset = (
                result.end_part(run, output, run.part)
                if run.part
                else result.publish_dataset(output.totals, output.publisher, run.record(output))
            )
        runs.remove_splits(run)
        for output in run.outputs:
            notes.add(*output.publisher.beside.removal_notes(output.destination.dataset_file, run.exports))
        notes.add(*(f"split {printable(name)} removed" for name in run.gone))
        _export(run)
    merged = [result.merge_if_last(output.destination, notes) for output in run.outputs if run.part]
    return result.create_result(run, merged=bool(merged) and all(merged))


def plan_dataset(
    source: object, names: runs.OutputNames, options: CreateOptions | ReshardOptions, observer: Observer
) -> DryRun:
    """Return what `write_dataset` would write, to the byte unless samples are changed on the way; write nothing."""
    begun, notes = time.time(), Notes(observer)
    with start_workers(options, notes.observer) as pool:
        run = runs.read_run(names, options, pool, notes, begun=begun, dry=True)
        opened = _open_and_list(run, source)

        from shardtool.verbs.create import packing, result

        packing.check_outputs(run)
        packing.plan_shards(run)
        if run.asked is not None:
            from shardtool.source.plan_file import write_plan

            path, overwrite = run.plan_only, "overwrite" in run.options.if_exists
            size = write_plan(path, run.chosen, run.divides, run.asked, by_key=opened.by_key, overwrite=overwrite)
            notes.add(f"the plan is in {path} ({show_size(size)}): {option('plan', path)} goes by it")
    return result.dry_result(run)


def start_workers(options: OutputOptions, observer: Observer) -> Pool:
    """Start the workers, before anything is imported that starts threads: then they can be forked.

    What they need is imported before, once for all of them.
    """
    import_module("shardtool.write.pack_shard")
    again = f"with {option('if_exists', 'resume')}" if options.if_exists != "update" else "again"
    return start_pool(options, f"Run the same command {again}: finished shards are kept.", observer)


def _open_and_list(run: runs.Run, source: object) -> Source:
    """Open the outputs and the source, list the samples that were asked for, and return the source."""
    runs.open_outputs(run)
    # Without outputs, a column will name splits.
    patterns = [output.pattern for output in run.outputs] or [runs.output_pattern(run.names)]
    options = runs.keep_classes(run)
    if isinstance(options, CreateOptions) and options.plan_only is not None:
        from shardtool.source.plan_file import asked_of, check_plan_target

        run.plan_only, run.asked = os.fspath(options.plan_only), asked_of(source, options, run.format)
        try:
            check_plan_target(run.plan_only, overwrite="overwrite" in options.if_exists)
        except OutputExists as error:
            run.refusal = error
    opened = open_source(source, options, patterns)
    run.pool.check(function=run.transform.function if run.transform else "")
    _list_samples(run, opened)
    if run.refusal is not None:
        if run.verb == "reshard":
            _check_other_place(run, source)
        from shardtool.verbs.create.packing import check_listed

        check_listed(run)
        raise run.refusal
    run.pool.check(run.entries.files())
    spans, compressed = run.entries.spans, run.listed.compressed
    if run.part is not None and spans is not None and (compressed or not spans.files):
        found = "payloads in a table or a compressed archive, which are unpacked into one file first"
        found = "compressed shards, which can only be read in sequence" if compressed else found
        expected, remedy = "payloads that each part can read at their places", "Write it in one run."
        raise InvalidRequest(option("part", run.options.part), found, expected=expected, remedy=remedy)
    if run.shuffle is not None and run.shuffle.method == "gather" and compressed:
        expected = "scatter or auto: they can only be read in sequence"
        raise InvalidRequest(option("method"), "gather, of compressed shards", expected=expected)
    return opened


def _check_other_place(run: runs.Run, datasets: Any) -> None:
    """Refuse to reshard datasets onto themselves: what is there already is not to be replaced, then.

    Raises:
        OutputExists: The output has a name of a shard of theirs.
    """
    pattern = runs.output_pattern(run.names)
    for one in datasets if isinstance(datasets, list | tuple) else [datasets]:
        for path in (path for dataset in of_glob(one) for path in find_dataset(dataset).paths):
            same = os.path.realpath(os.path.dirname(path)) == os.path.realpath(pattern.folder)
            if not is_url(path) and same and pattern.owns(os.path.basename(path)):
                raise OutputExists(path, runs.REPLACED, expected=runs.ELSEWHERE, remedy=runs.UNTOUCHED)


@memory_for("listing the source")
def _list_samples(run: runs.Run, source: Source) -> None:
    """Find the samples that were asked for, in their order, and divide them.

    Raises:
        InvalidRequest: There are none, or their names cannot be in shards.
        SampleFailed: Some cannot be packed, and they are not to be skipped.
        CorruptShard: A dataset that they are in is damaged.
    """
    run.listed = source.list_samples(run.pool, run.notes.observer)
    run.listed = source.choose(run.listed, lambda: None if run.updates else _taken_keys(run))
    run.listed = _each_once(run, source)
    if run.asked is not None:
        run.chosen = run.listed
    run.notes.add(*run.listed.notes)
    from shardtool.select.names import check_case, check_storable, make_portable

    if not run.options.portable:
        check_storable(run.entries, run.listed.name, skip=source.may_skip_names)
    _settle_dots(run)
    if run.dividing is not None:
        _divide(run, source, run.dividing)
        if run.options.portable:
            other = option("split" if run.dividing.column is None else run.dividing.option)
            raise InvalidRequest(option("portable"), f"used with {other}", remedy="Choose one of them.")
    if run.options.portable:
        entries = make_portable(run.entries, by_key=source.by_key)
        if entries.metadata is not None and "source_paths" in entries.metadata.column_names:
            entries = replace(entries, source_paths=False)  # names made safe before: those of the first time stay
        run.listed = replace(run.listed, entries=entries)
    elif run.format == "tar":
        check_case(run.entries)
    run.listed = run.listed.without_dropped()
    if run.asked is not None:
        run.chosen = run.chosen.without_dropped()
    if run.listed.later is not None and run.transform is not None:
        run.transform = run.transform._replace(where=_condition(run, run.listed.later, run.transform))
        run.identity = run.transform.identity()


def _each_once(run: runs.Run, source: Source) -> Listing:
    """Return the samples without duplicates, if that was asked for; a run that will be refused reads no payloads."""
    if run.refusal is not None:
        return run.listed
    from shardtool.source.selecting import each_once

    taken = partial(_taken_keys, run) if run.updates else lambda: None
    return each_once(run.listed, source, run.options, run.pool, run.notes.observer, taken)


def _condition(run: runs.Run, later: Condition, transform: Transform) -> Condition:
    """Return what of a query the workers judge, by what sidecars will have: of these columns they know the values.

    Raises:
        InvalidRequest: It names other columns, or is used with what needs the samples before they are read.
    """
    from shardtool.entries.arrow import with_found
    from shardtool.select.query import matching

    for name in ("plan_only", "equal_count"):
        if getattr(run.options, name, None):
            found = f"used with {option('where')} {later.query}, which shows only when samples are read"
            raise InvalidRequest(option(name), found, expected="samples that a plan can know")
    columns, classes = run.entries.metadata, run.listed.all_classes
    columns = with_found(None if columns is None else columns.slice(0, 0), transform.found, [])
    names = [] if columns is None else columns.column_names
    if unknown := [name for name in later.columns if name not in names]:
        found = f"{later.query}: shows only when samples are read, and no sidecar will have {unknown[0]}"
        remedy = f"What names {unknown[0]} can be a part of its own, joined by `and`."
        raise InvalidRequest(option("where"), found, expected=f"columns of sidecars: {listing(names)}", remedy=remedy)
    matching(columns, later.query, classes)
    return later._replace(classes=tuple((name, (*classes[name],)) for name in later.columns if name in classes))


def _taken_keys(run: runs.Run) -> Names | None:
    """Return the keys of the datasets that are appended to; None: there are no such datasets."""
    if not any(output.destination.appends for output in run.outputs):
        return None
    from shardtool.verbs.create.earlier import taken_keys

    return taken_keys(run)


def _settle_dots(run: runs.Run) -> None:
    """Decide at which dot keys end in a tar: at the last, which is recorded, if only that one divides all names."""
    known = {**run.options.recorded(), **run.listed.recorded}
    asked: Dots | None = "last" if known.get("dots") == "last" else "first" if "dots" in known else None
    if run.format != "tar" or (run.options.portable and asked != "last"):
        run.dots = asked or "first"
        return
    from shardtool.select.names import choose_dots

    run.dots, note = choose_dots(run.entries, asked, run.listed.name)
    if note:
        run.listed = replace(run.listed, recorded={**run.listed.recorded, "dots": run.dots})
        run.notes.add(note)


def _divide(run: runs.Run, source: Source, dividing: SplitOptions) -> None:
    """Give each output its samples, and these the column `split`."""
    from shardtool.entries.arrow import with_split
    from shardtool.select.splits import divide

    entries = run.entries
    values = source.labels(run.listed, dividing.reads[1]) if dividing.reads else None
    run.divides = None if run.asked is None else values
    splits = divide(entries.keys, dividing, values)
    run.notes.add(*splits.notes)
    if dividing.column is not None:
        there = runs.splits_there(run) if run.updates else []
        runs.open_outputs(run, [*splits.names, *(name for name in there if name not in splits.names)])
    for at, output in enumerate(run.outputs):
        output.which = splits.samples(at)
    lacking = [one for one in run.outputs if one.which is not None and not len(one.which)]
    # An update leaves splits that are there as they are.
    if empty := [one.split for one in lacking if not (run.updates and one.destination.appends)]:
        found = f"no sample falls into {', '.join(empty)}: {len(entries):,} in all"
        remedy = f"Use larger shares, another {option('seed')}, or {option('stratify')}."
        raise InvalidRequest(option("split"), found, remedy=remedy)
    entries = replace(entries, metadata=with_split(entries.metadata, splits.names, splits.number))
    run.listed = replace(run.listed, entries=entries)


def _spool(run: runs.Run, source: Source) -> None:
    """Write the payloads that lie in a table to a file beside the output for workers; the run removes it."""
    entries = run.entries
    size = int(entries.rows.size[entries.rows.kind == SPAN].sum())
    file = run.outputs[0].publisher.spool(size)
    source.write_binary(file)  # also of samples that were left out since
    spans = replace(entries.known_spans, files=(SpanFile(os.fsencode(file.path), file.size, -1),))
    run.listed = replace(run.listed, entries=replace(entries, spans=spans))


def _export(run: runs.Run) -> None:
    """Write the indexes of other tools for datasets that are there; those of one appended to are renewed unasked."""
    from shardtool.publish.foreign_indexes import Exporter, renew_exports

    for output in run.outputs if run.exports or run.appends else ():
        folder, name = output.destination.folder, output.pattern.dataset_file
        if run.exports:
            exporter = Exporter(folder, name, run.exports, run.notes)
            exporter.write(folder, run.pool, overwrite=run.options.if_exists != "error")
        renew_exports(folder, name, output.destination.old, run.exports, run.notes)


def _export_missing(run: runs.Run) -> None:
    """Write indexes of other tools for a dataset that nothing new was found for: the last run may have been killed."""
    from shardtool.publish.foreign_indexes import Exporter, exports_beside

    for output in run.untouched if run.exports else ():
        folder, base = output.destination.folder, output.pattern.base
        there = exports_beside(folder, output.destination.old)
        if missing := {name: export for name, export in run.exports.items() if name not in there}:
            with folder.lock(base):
                exporter = Exporter(folder, output.pattern.dataset_file, missing, run.notes)
                exporter.write(folder, run.pool, overwrite=True)


@by_names(CreateOptions)
def create(source: object, output: runs.OutputNames, options: CreateOptions, observer: Observer) -> CreateResult:
    """Write the samples of `source` into shards, with sidecars and a dataset file.

    Args:
        source: A folder tree, where files that share a key are one sample, or a list of several, whose files share
            keys; a zip or tar of files; or a manifest, a row per sample or file: a file, `-` for standard input, or a
            table in memory (pandas, pyarrow, anything with the Arrow C stream interface).
        output: A shard pattern such as `out-{000000..}.tar`, or the shards' names; with `{split}` in it for splits.
        options: See `CreateOptions`.
        observer: Gets the progress, and what the user should know.

    Raises:
        InvalidRequest: The request makes no sense; nothing was written.
        OutputExists: The output is there already, or another run is writing it; nothing was touched.
        SampleFailed: Samples cannot be read or changed; finished shards are kept for `if_exists="resume"`.
        OutputFailed: The output cannot be written.
        WorkerDied: A worker was killed.
    """
    if not options.stat:
        expected = either("`dry_run`, which writes nothing", "--dry-run beside it")
        raise InvalidRequest(option("stat"), "a run that writes", expected=expected)
    if options.plan_only is not None:
        expected = "`dry_run`, which writes the plan"
        raise InvalidRequest(option("plan_only"), "a run that writes shards", expected=expected)
    return write_dataset(source, output, options, observer)


@by_names(CreateOptions)
def dry_run(source: object, output: runs.OutputNames, options: CreateOptions, observer: Observer) -> DryRun:
    """Return what `create` would write, to the byte unless samples are changed on the way; write no shard.

    With `plan_only`, the file of the plan is written.

    Raises:
        InvalidRequest: The request makes no sense.
        SampleFailed: The source has files that cannot be packed.
        OutputExists: There is a file where the plan is to go.
        OutputFailed: The plan cannot be written.
    """
    return plan_dataset(source, output, options, observer)


# `reshard`: datasets become another one, and no sample is decoded that stays as it is. The library twin of the command.
#
# It is `create` with shards as the source: the same planner, packers and publisher. What is its own is how samples
# are chosen and changed between the listing and the plan, and how a global shuffle reads its source.


@by_names(ReshardOptions)
def reshard(datasets: Datasets, output: runs.OutputNames, options: ReshardOptions, observer: Observer) -> CreateResult:
    """Write the samples of one or several datasets into other shards, with sidecars and a dataset file.

    Bytes are moved and checked, and decoded only where they are to be changed: where an index has a payload's checksum,
    a payload with another one ends the run. Where all samples stay as they are, the fingerprint of what was written
    must be that of the source.

    Args:
        datasets: A dataset, or a list of them: each a dataset file, a pattern, a glob, a folder, or a list of shards.
        output: A shard pattern such as `out-{000000..}.tar`, or the shards' names; with `{split}` in it for splits.
        options: See `ReshardOptions`.
        observer: Gets the progress, and what the user should know.

    Raises:
        InvalidRequest: The request makes no sense; nothing was written.
        CorruptShard: A dataset is damaged, as far as it was read; nothing damaged was copied.
        OutputExists: The output is there already, or another run is writing it; nothing was touched.
        OutputFailed: The output, or the folder of temporary files, cannot be written.
        WorkerDied: A worker was killed.
    """
    return write_dataset(datasets, output, options, observer)


@by_names(ReshardOptions)
def reshard_dry_run(
    datasets: Datasets, output: runs.OutputNames, options: ReshardOptions, observer: Observer
) -> DryRun:
    """Return what `reshard` would write, to the byte unless samples are changed on the way; write nothing.

    Raises:
        InvalidRequest: The request makes no sense.
        CorruptShard: A dataset is damaged, as far as it was read.
    """
    return plan_dataset(datasets, output, options, observer)
