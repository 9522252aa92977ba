"""`create` and `reshard`: write the samples of a source, or of datasets, as a dataset.

`reshard` is the same run with shards as the source. It copies unchanged samples without decoding them.

Workers are forked before NumPy and pyarrow are imported, because these imports take longer than packing a small source.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest, printable
from shardtool.execute import start_pool
from shardtool.messages import flag_text, option_text
from shardtool.request.create_options import CreateOptions, ReshardOptions
from shardtool.request.observer import Notes, Observer
from shardtool.request.verb_call import accepts_options
from shardtool.shard_samples import SPAN, SpanFile
from shardtool.units import format_size
from shardtool.verbs.create import outputs
from shardtool.verbs.create import run as runs
from shardtool.verbs.create.listing import list_source
from shardtool.verbs.create.output_folder import name_shards

if TYPE_CHECKING:
    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.execute.pool import Pool
    from shardtool.request.output_options import OutputOptions
    from shardtool.request.results import CreateResult
    from shardtool.source.base import Source
    from shardtool.values import Datasets, OutputNames


def write_dataset(
    source: object,
    names: OutputNames,
    options: CreateOptions | ReshardOptions,
    observer: Observer,
    expected: DatasetFile | None = None,
) -> CreateResult:
    """Write the samples of a source into shards, with sidecars and a dataset file.

    `expected` is the dataset that the run must recreate; otherwise it fails, and nothing changes.
    """
    started, notes = time.time(), Notes(observer)
    with start_workers(options, notes.observer) as pool, ExitStack() as stack:
        names = name_shards(names, source, options, notes)
        run = runs.make_run(names, options, pool, notes, started=started, dry=False)
        run.expected = expected
        opened_source = list_source(run, source)

        from shardtool.publish import publish_dataset
        from shardtool.verbs.create import checks, new_samples, packing, parts, planning, result
        from shardtool.verbs.create.shuffle import arrange_payloads, get_spool_location

        new_samples.choose_samples(run)
        if not run.outputs:
            _export_missing_indexes(run)
            return result.make_result(run)
        is_binary, temporary = run.is_binary, get_spool_location(run)
        if is_binary:  # workers read binary columns from a file next to the output
            outputs.open_publications(run, temporary, stack)
            _write_binary_spool(run, opened_source, stack)
        planning.plan_shards(run)
        if not is_binary:
            outputs.open_publications(run, temporary, stack)
        if run.part is not None:
            for output in run.outputs:
                parts.start_part(run, output, run.part)
        arrange_payloads(run)
        for output in run.outputs:
            packing.Packing(run, output).pack()
        if run.part is None:
            checks.check_content_fingerprint(run)
        for output in run.outputs:
            output.dataset = (
                parts.finish_part(run, output, run.part)
                if run.part
                else publish_dataset.publish_dataset(
                    output.totals, output.publication, output.destination, run.record(output)
                )
            )
        outputs.remove_lost_splits(run)
        for output in run.outputs:
            notes.add(*output.publication.stale_indexes.removal_notes(output.destination.dataset_file, run.exports))
        notes.add(*(f"split {printable(name)} removed" for name in run.lost_splits))
        _export_indexes(run)
    merged = [parts.merge_if_last(output.destination, notes) for output in run.outputs if run.part]
    return result.make_result(run, merged=bool(merged) and all(merged))


def plan_dataset(
    source: object, names: OutputNames, options: CreateOptions | ReshardOptions, observer: Observer
) -> CreateResult:
    """Return what `write_dataset` would write."""
    started, notes = time.time(), Notes(observer)
    with start_workers(options, notes.observer) as pool:
        names = name_shards(names, source, options, notes)
        run = runs.make_run(names, options, pool, notes, started=started, dry=True)
        opened_source = list_source(run, source)

        from shardtool.verbs.create import new_samples, planning, result

        new_samples.choose_samples(run)
        planning.plan_shards(run)
        if run.plan_request is not None:
            from shardtool.source.plan_file import write_plan

            path, overwrite = run.plan_only, "overwrite" in run.options.if_exists
            size = write_plan(
                path,
                run.plan_listing,
                run.split_values,
                run.plan_request,
                by_key=opened_source.by_key,
                overwrite=overwrite,
            )
            notes.add(f"plan written to {path} ({format_size(size)}); use it with {option_text('plan', path)}")
    return result.make_dry_run(run)


def start_workers(options: OutputOptions, observer: Observer) -> Pool:
    """Fork the workers before an import starts threads."""
    import_module("shardtool.write.pack_shard")
    how = f"with {flag_text('resume')}" if options.if_exists != "update" else "again"
    return start_pool(options, f"Run the same command {how}: finished shards are reused.", observer)


def _write_binary_spool(run: runs.Run, source: Source, stack: ExitStack) -> None:
    entries = run.entries
    size = int(entries.rows.size[entries.rows.kind == SPAN].sum())
    file = run.outputs[0].destination.create_spool(size)
    stack.callback(file.abandon)
    source.write_binary(file)  # including samples that were skipped later
    spans = replace(entries.known_spans, files=(SpanFile(os.fsencode(file.path), file.size, -1),))
    run.listed = replace(run.listed, entries=replace(entries, spans=spans))


def _export_indexes(run: runs.Run) -> None:
    if not (run.exports or run.appends):
        return
    from shardtool.publish.export_indexes import Exporter, renew_exports

    for output in run.outputs:
        folder, name = output.destination.folder, output.pattern.dataset_file
        if run.exports:
            exporter = Exporter(folder, name, run.exports, run.notes)
            exporter.write(folder, run.pool, overwrite=run.options.if_exists != "error")
        renew_exports(folder, name, output.destination.old, run.exports, run.notes)


def _export_missing_indexes(run: runs.Run) -> None:
    if not run.exports:
        return
    from shardtool.publish.export_indexes import Exporter, find_existing_exports

    for output in run.untouched:
        folder, base = output.destination.folder, output.pattern.base
        existing_exports = find_existing_exports(folder, output.destination.old)
        if missing := {name: export for name, export in run.exports.items() if name not in existing_exports}:
            with folder.lock(base):
                exporter = Exporter(folder, output.pattern.dataset_file, missing, run.notes)
                exporter.write(folder, run.pool, overwrite=True)


@accepts_options(CreateOptions)
def create(source: object, output: OutputNames, options: CreateOptions, observer: Observer) -> CreateResult:
    """Write the samples of `source` into shards, with sidecars and a dataset file.

    With `dry_run`, return the plan and write nothing; sizes are exact unless samples are transformed. With `plan_only`,
    write only the plan, to that file.

    Args:
        source: A folder tree in which files that share a key are one sample, a list of folders whose files share keys,
            or a zip or tar archive. Or a manifest with one row per sample or file: a path, `-` for standard input, or a
            table in memory (pandas, pyarrow, or anything with the Arrow C stream interface).
        output: A shard pattern such as `out-{000000..}.tar`, or a list of shard names, with `{split}` for splits.
        options: See `CreateOptions`.
        observer: Receives progress and notes.

    Raises:
        InvalidRequest: The request is invalid. Nothing was written.
        OutputExists: The output exists, or another run is writing it. Nothing was changed.
        SampleFailed: A sample cannot be read or changed during the run. Finished shards are kept for
            `resume=True`.
        OutputFailed: The output cannot be written.
        WorkerDied: A worker process was killed.

    Example:
        ```
        result = shardtool.create("photos", "out-{000000..}.tar", max_size="500MB")
        print(result.samples, result.dataset_file)
        ```
    """
    if options.dry_run or options.plan_only is not None:
        return plan_dataset(source, output, options, observer)
    if not options.stat:
        raise InvalidRequest(option_text("stat"), "a run that writes", expected=flag_text("dry_run"))
    return write_dataset(source, output, options, observer)


@accepts_options(ReshardOptions)
def reshard(dataset: Datasets, output: OutputNames, options: ReshardOptions, observer: Observer) -> CreateResult:
    """Write the samples of one or more datasets into other shards, with sidecars and a dataset file.

    Payloads are copied without decoding, unless a transform changes them, and compared with their checksums in the
    index. If no sample changes, the output must have the content fingerprint of the source. With `dry_run`, return the
    plan and write nothing.

    Args:
        dataset: A dataset file, a pattern, a glob, a folder, a list of shards, or a list of these.
        output: A shard pattern such as `out-{000000..}.tar`, or a list of shard names, with `{split}` for splits.
        options: See `ReshardOptions`.
        observer: Receives progress and notes.

    Raises:
        InvalidRequest: The request is invalid. Nothing was written.
        CorruptShard: A dataset is damaged. No damaged data was copied.
        OutputExists: The output exists, or another run is writing it. Nothing was changed.
        OutputFailed: The output or the folder for temporary files cannot be written.
        WorkerDied: A worker process was killed.

    Example:
        ```
        shardtool.reshard("out.json", "shuffled-{000000..}.tar", shuffle=True, seed=1)
        ```
    """
    run = plan_dataset if options.dry_run else write_dataset
    return run(dataset, output, options, observer)
