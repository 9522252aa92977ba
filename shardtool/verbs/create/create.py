"""`create`: a folder or a manifest becomes a dataset. The library twin of `shardtool create`."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest, OutputExists, current_folder, printable
from shardtool.execute.local import start_pool
from shardtool.execute.pool import Needs, folders_of
from shardtool.request.choices import given_options
from shardtool.request.options import CreateOptions, ReshardOptions
from shardtool.request.results import Notes, Observer
from shardtool.source.open import open_source
from shardtool.verbs.create.place import arrange_payloads, check_memory, check_method, temporary_file
from shardtool.verbs.create.request import (
    Manner,
    check_other_place,
    keep_classes,
    open_publishers,
    open_targets,
    output_pattern,
    read_request,
    remove_splits,
    run_record,
)
from shardtool.verbs.create.samples import list_samples, spool
from shardtool.wording import either, option

if TYPE_CHECKING:
    from shardtool.execute.pool import Pool
    from shardtool.request.options import OutputOptions
    from shardtool.request.results import CreateResult, DryRun
    from shardtool.source.base import Source
    from shardtool.values import Datasets
    from shardtool.verbs.create.request import OutputDataset, OutputNames, Request
    from shardtool.verbs.create.samples import Samples


# What `create` and `reshard` share: samples from a source become one dataset, or one for each split.
#
# `write_dataset` is the whole run, from top to bottom; the imports say where each of its steps stands.
#
# Start-up is a part of the work: on 60,000 files, importing pyarrow and NumPy costs more than
# packing. So workers are forked before anything heavy is imported, list the source while a thread of
# the parent imports what the plan and the sidecars need, and never need it themselves.


_OF_WORKERS = ("shardtool.write.pack_shard", "shardtool.write.pack_shard")


def write_dataset(
    source: object, output: OutputNames, options: CreateOptions | ReshardOptions, observer: Observer | None
) -> CreateResult:
    """Write the samples of a source into shards, with sidecars and a dataset file.

    Args:
        source: A folder, a manifest, or datasets.
        output: A shard pattern, or the shards' names; with `{split}` in it for splits.
        options: What was asked for.
        observer: Gets the progress, and what the user should know.
    """
    begun, notes = time.time(), Notes(observer or Observer())
    with start_workers(options) as pool, ExitStack() as stack:
        request = read_request(output, options, dry=False)
        opened, samples = _open_and_list(request, source, pool, notes)

        from shardtool.verbs.create.parts import begin_part, end_part, merge_if_last
        from shardtool.verbs.create.plans import check_output, plan_shards
        from shardtool.verbs.create.result import (
            WrittenDataset,
            check_content,
            publish_dataset,
            removal_notes,
            result,
            unchanged,
        )
        from shardtool.verbs.create.rounds import PackingRun

        samples = check_output(request, samples, notes)
        if not samples.targets:
            untouched = [unchanged(target) for target in samples.untouched]
            return result(request, untouched, None, notes, time.time() - begun)
        targets, temporary, publishers = samples.targets, temporary_file(request, samples.targets), []
        if samples.binary:  # workers read binary columns from a file beside the output
            publishers = open_publishers(targets, temporary, pool, stack)
            samples = spool(samples, opened, publishers[0])
        plans = plan_shards(request, samples, pool, notes)
        samples, targets = replace(samples, targets=plans.targets), plans.targets
        publishers = publishers or open_publishers(targets, temporary, pool, stack)
        made = [run_record(request, samples.listed, target.split) for target in targets]
        whole = zip(publishers, plans.each, made, strict=True)
        parts = [begin_part(*one, notes) for one in whole if request.part is not None]
        placed = arrange_payloads(request, samples, plans, pool, notes)
        packed, manner, made_keys = [], Manner(request, begun, samples.dots), set[bytes]()
        for plan, publisher in zip(placed, publishers, strict=True):
            packed.append(PackingRun(plan, publisher, manner, notes.observer, made_keys).pack(pool))
            notes.add(*map(str, packed[-1].misread))
        written = [unchanged(target) for target in samples.untouched]
        if parts:
            content = samples.listed.digest if len(parts) == 1 else None
            datasets = [end_part(*one, content) for one in zip(packed, publishers, parts, strict=True)]
        else:
            check_content(samples.listed, packed)
            datasets = [publish_dataset(*one) for one in zip(packed, publishers, made, strict=True)]
        for target, dataset, one in zip(targets, datasets, packed, strict=True):
            written.append(WrittenDataset(target, dataset, one.kept, one.dropped))
        remove_splits(request, plans.gone)
        notes.add(*removal_notes(request, publishers), *(f"split {printable(name)} removed" for name in plans.gone))
        for target in targets if request.exports or request.appends else ():
            _export(request, target, pool, notes)
    merged = [merge_if_last(target.output, notes) for target in targets if request.part is not None]
    return result(request, written, plans.changes, notes, time.time() - begun, merged=bool(merged) and all(merged))


def plan_dataset(
    source: object, output: OutputNames, options: CreateOptions | ReshardOptions, observer: Observer | None
) -> DryRun:
    """Return what `write_dataset` would write, to the byte unless samples are changed on the way; write nothing."""
    notes = Notes(observer or Observer())
    with start_workers(options) as pool:
        request = read_request(output, options, dry=True)
        opened, samples = _open_and_list(request, source, pool, notes)

        from shardtool.source.plan_file import RecordedSource
        from shardtool.verbs.create.plans import check_output, plan_shards
        from shardtool.verbs.create.result import dry_result

        samples = check_output(request, samples, notes)
        plans = plan_shards(request, samples, pool, notes)
        if isinstance(opened, RecordedSource):
            notes.add(opened.write_plan())
    return dry_result(request, samples, plans, notes)


def start_workers(options: OutputOptions) -> Pool:
    """Start the workers, before anything is imported that starts threads: then they can be forked.

    What they need is imported before, once for all of them.
    """
    for name in _OF_WORKERS:
        import_module(name)
    again = f"Run the same command with {option('if_exists', 'resume')}: finished shards are kept."
    return start_pool(options, again)


def _open_and_list(request: Request, source: object, pool: Pool, notes: Notes) -> tuple[Source, Samples]:
    """Open the output and the source; return the source, and the samples that were asked for."""
    try:
        targets = open_targets(request)
    except OutputExists:
        if request.verb == "reshard" and not request.appends:
            check_other_place(request, source)
        raise
    patterns = [target.pattern for target in targets] or [output_pattern(request.names)]  # a column will name splits
    opened = open_source(source, keep_classes(request, targets), patterns)
    check_memory(request)
    function = request.options.map if isinstance(request.options, CreateOptions) else None
    pool.check(Needs(folders_of(source), function=str(function or "")))
    samples = list_samples(request, opened, targets, pool, notes)
    pool.check(Needs(samples.listed.entries.files()))
    check_method(request, samples.listed)
    return opened, samples


def _export(request: Request, target: OutputDataset, pool: Pool, notes: Notes) -> None:
    """Write the indexes of other tools for a dataset that is there; those of one appended to are renewed unasked."""
    from shardtool.publish.foreign_indexes import Exporter, renew_exports

    if request.exports:
        folder, name = target.output.folder, target.pattern.dataset_file
        advises = "huggingface" in request.options.readers
        exporter = Exporter(folder, name, request.exports, notes, advises=advises)
        exporter.write(folder, pool, overwrite=request.options.if_exists != "error")
    renew_exports(target.output.folder, target.pattern.dataset_file, target.output.old, request.exports, notes)


@current_folder()
def create(
    source: object, output: OutputNames, options: CreateOptions | None = None, *, observer: Observer | None = None
) -> CreateResult:
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
    options = given_options(options, CreateOptions)
    if not options.stat:
        raise InvalidRequest(
            option("stat"),
            "a run that writes",
            expected=either("`dry_run`, which writes nothing", "--dry-run beside it"),
        )
    if options.plan_only is not None:
        raise InvalidRequest(
            option("plan_only"), "a run that writes shards", expected="`dry_run`, which writes the plan"
        )
    return write_dataset(source, output, options, observer)


@current_folder()
def dry_run(
    source: object, output: OutputNames, options: CreateOptions | None = None, *, observer: Observer | None = None
) -> DryRun:
    """Return what `create` would write, to the byte unless samples are changed on the way; write no shard.

    With `plan_only`, the file of the plan is written.

    Raises:
        InvalidRequest: The request makes no sense.
        SampleFailed: The source has files that cannot be packed.
        OutputExists: There is a file where the plan is to go.
        OutputFailed: The plan cannot be written.
    """
    return plan_dataset(source, output, given_options(options, CreateOptions), observer)


# `reshard`: datasets become another one, without decoding a sample. The library twin of `shardtool reshard`.
#
# It is `create` with shards as the source: the same planner, packers and publisher. What is its own is how samples
# are chosen and changed between the listing and the plan, and how a global shuffle reads its source.


@current_folder()
def reshard(
    datasets: Datasets, output: OutputNames, options: ReshardOptions | None = None, *, observer: Observer | None = None
) -> CreateResult:
    """Write the samples of one or several datasets into other shards, with sidecars and a dataset file.

    Bytes are moved and checked, never decoded: where an index has a payload's checksum, a payload with another one
    ends the run. Where all samples stay as they are, the fingerprint of what was written must be that of the source.

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
    return write_dataset(datasets, output, given_options(options, ReshardOptions), observer)


@current_folder()
def reshard_dry_run(
    datasets: Datasets, output: OutputNames, options: ReshardOptions | None = None, *, observer: Observer | None = None
) -> DryRun:
    """Return what `reshard` would write, to the byte; write nothing.

    Raises:
        InvalidRequest: The request makes no sense.
        CorruptShard: A dataset is damaged, as far as it was read.
    """
    return plan_dataset(datasets, output, given_options(options, ReshardOptions), observer)
