"""Pack the samples of a source into a dataset, for `create`, `reshard` and `verify --repair`.

Workers are forked before NumPy and pyarrow are imported. These imports take longer than packing a small source, so
workers list the source folder meanwhile.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import ExitStack
from dataclasses import replace
from glob import escape as glob_escape
from glob import glob
from importlib import import_module
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest, printable
from shardtool.execute import start_pool
from shardtool.messages import flag_text, option_text
from shardtool.names import list_names
from shardtool.pack.listing import list_source
from shardtool.pack.run import FinishedOutput, Listed, Packed, PlanFile, Run, make_run
from shardtool.pattern import DATASET_SUFFIX, OUTPUT_EXAMPLE, parse_pattern
from shardtool.request.create_options import CreateOptions, ReshardOptions
from shardtool.request.observer import Notes, Observer
from shardtool.shard_samples import SPAN, SpanFile
from shardtool.storage.remote.address import is_url
from shardtool.units import format_size

if TYPE_CHECKING:
    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.execute.pool import Pool
    from shardtool.publish.destination import Destination
    from shardtool.request.output_options import OutputOptions
    from shardtool.request.results import CreateResult
    from shardtool.values import OutputNames


def pack_dataset(
    source: object,
    names: OutputNames,
    options: CreateOptions | ReshardOptions,
    observer: Observer,
    repaired_dataset: DatasetFile | None = None,
) -> CreateResult:
    """Write the samples of a source into shards, with sidecars and a dataset file. A dry run only plans the shards.

    If the new shards differ from `repaired_dataset`, raise an error and change nothing.
    """
    started, notes = time.time(), Notes(observer)
    with start_workers(options, notes.observer) as pool, ExitStack() as stack:
        names = name_shards(names, source, options, notes)
        run = make_run(names, options, pool, notes, started=started, repaired_dataset=repaired_dataset)
        listed = list_source(run, source)

        from shardtool.pack.new_samples import choose_samples
        from shardtool.pack.planning import plan_shards
        from shardtool.pack.result import make_dry_run, make_result

        listed = choose_samples(listed)
        if run.dry:
            planned = plan_shards(listed)
            if listed.plan_file is not None:
                _write_plan_file(listed, listed.plan_file)
            return make_dry_run(planned)

        from shardtool.pack.outputs import lock_outputs
        from shardtool.pack.pack_shards import pack_shards
        from shardtool.pack.run_parts import merge_finished_parts, start_parts
        from shardtool.pack.shuffle import arrange_payloads, get_spool

        if not listed.outputs:
            planned = plan_shards(listed)
            _export_missing_indexes(listed)
            return make_result(planned, ())
        spool = get_spool(run, listed.outputs)
        # workers cannot read payloads in the memory of this process, so write a temporary file
        if listed.has_payloads_in_memory:
            listed = _write_payload_spool(lock_outputs(listed, spool, stack), stack)
            planned = plan_shards(listed)
        else:
            planned = lock_outputs(plan_shards(listed), spool, stack)
        if run.part is not None:
            planned = start_parts(planned, run.part)
        finished = _publish(pack_shards(arrange_payloads(planned, spool)))
    is_merged = run.part is not None and merge_finished_parts(planned)
    return make_result(planned, finished, merged=is_merged)


def start_workers(options: OutputOptions, observer: Observer) -> Pool:
    """Fork the workers. Call this before you import modules that start threads."""
    for module in ("source.scan", "write.pack_shard"):
        import_module(f"shardtool.{module}")
    rerun = "again" if options.update else f"with {flag_text('resume')}"
    return start_pool(options, f"Run the same command {rerun}: finished shards are reused.", observer)


def _write_plan_file(listed: Listed, plan_file: PlanFile) -> None:
    from shardtool.source.plan_file import write_plan

    path, values, overwrite = plan_file.path, plan_file.split_values, listed.run.options.overwrite
    by_key = listed.source.by_key
    size = write_plan(path, plan_file.listing, values, plan_file.request, by_key=by_key, overwrite=overwrite)
    listed.run.notes.add(f"plan written to {path} ({format_size(size)}); use it with {option_text('plan', path)}")


def _write_payload_spool(listed: Listed, stack: ExitStack) -> Listed:
    entries = listed.entries
    file = listed.outputs[0].destination.create_spool(int(entries.rows.size[entries.rows.kind == SPAN].sum()))
    stack.callback(file.abandon)
    listed.source.write_payloads(file)  # also writes samples that are not selected
    spans = replace(entries.known_spans, files=(SpanFile(os.fsencode(file.path), file.size, -1),))
    return replace(listed, listing=replace(listed.listing, entries=replace(entries, spans=spans)))


def _publish(packed: Packed) -> list[FinishedOutput]:
    from shardtool.pack.outputs import remove_empty_splits
    from shardtool.pack.run_parts import finish_part
    from shardtool.publish.foreign_index_files import find_existing_exports
    from shardtool.publish.publish_dataset import publish_dataset

    planned, run, finished = packed.planned, packed.planned.run, list[FinishedOutput]()
    for output in packed.outputs:
        destination, record = output.planned.destination, planned.listed.record(output.planned)
        if run.part is None:
            dataset = publish_dataset(output.totals, output.publication, destination, record)
        else:
            dataset = finish_part(planned, output, run.part)
        finished.append(FinishedOutput(output.planned.split, destination, dataset, output.kept, output.dropped))
    remove_empty_splits(planned)
    for output in packed.outputs:
        dataset_file = output.planned.destination.dataset_file
        run.notes.add(*output.publication.stale_indexes.removal_notes(dataset_file, run.exports))
    run.notes.add(*(f"split {printable(name)} removed" for name in planned.empty_splits))
    for output in packed.outputs if run.exports or run.may_append else ():
        destination = output.planned.destination
        if run.exports or find_existing_exports(destination.folder, destination.old):
            _export_indexes(run, destination)
    return finished


def _export_indexes(run: Run, destination: Destination) -> None:
    from shardtool.publish.export_indexes import Exporter, update_exports

    folder, name = destination.folder, destination.pattern.dataset_file
    if run.exports:
        overwrite = run.options.if_exists != "error"
        Exporter(folder, name, run.exports, run.notes).write(folder, run.pool, overwrite=overwrite)
    update_exports(folder, name, destination.old, run.exports, run.notes)


def _export_missing_indexes(listed: Listed) -> None:
    run = listed.run
    if not run.exports:
        return
    from shardtool.publish.export_indexes import Exporter
    from shardtool.publish.foreign_index_files import find_existing_exports

    for destination in [output.destination for output in listed.unchanged_outputs]:
        folder, pattern = destination.folder, destination.pattern
        existing_exports = find_existing_exports(folder, destination.old)
        if missing := {name: export for name, export in run.exports.items() if name not in existing_exports}:
            with folder.lock(pattern.base):
                Exporter(folder, pattern.dataset_file, missing, run.notes).write(folder, run.pool, overwrite=True)


_DEFAULT_NAME = "data"
_ENDINGS = re.compile(
    r"(\.(csv|tsv|txt|jsonl?|ndjson|parquet|feather|arrow|zip|tar|tgz|gz|bz2|xz|zst))+$", re.IGNORECASE
)
_UNSAFE_CHARACTERS = re.compile(r"[^\w.-]+")
_RANGE_OR_GLOB = re.compile(r"[{}<>*?\[]|%\d*d")


def name_shards(
    output: object, source: object, options: CreateOptions | ReshardOptions, notes: Notes
) -> tuple[str, ...]:
    """Return the shard names. If the output is a folder, name the shards after the source, and add a note."""
    names = (*list_names("the output", output, OUTPUT_EXAMPLE),)
    if len(names) != 1 or not _is_folder(names[0]):
        if names and "." not in names[0].rpartition("/")[2] and not _RANGE_OR_GLOB.search(names[0]):
            raise InvalidRequest(names[0], "no file extension", expected=f"{OUTPUT_EXAMPLE}; or {names[0]}/, a folder")
        return names
    split = "" if options.make_split_options() is None else "-{split}"
    path = os.path.join(names[0], f"{_make_name(source, options)}{split}-{{000000..}}.tar")
    notes.add(f"shards are named {path}")
    return (path,)


def _is_folder(name: str) -> bool:
    return name.endswith("/") or (not is_url(name) and os.path.isdir(name))


def _make_name(source: object, options: CreateOptions | ReshardOptions) -> str:
    sources = [*source] if isinstance(source, list | tuple) else [source]
    paths = [os.fspath(path) for path in sources if isinstance(path, str | os.PathLike)]
    if not paths or paths == ["-"] or not all(isinstance(path, str) for path in paths):
        return _DEFAULT_NAME
    path = paths[0].partition("?")[0] if is_url(paths[0]) else os.path.abspath(paths[0])
    name = path.rstrip("/").rpartition("/")[2]
    if len(paths) > 1:
        name = os.path.commonpath([*map(os.path.abspath, paths)]).rpartition("/")[2]
    elif _RANGE_OR_GLOB.search(name):
        try:
            name = parse_pattern(path).base
        except InvalidRequest:
            name = path.split("/")[-2]
    elif not os.path.isdir(path):
        name = _ENDINGS.sub("", name)
    elif isinstance(options, ReshardOptions):
        files = glob(os.path.join(glob_escape(path), f"*{DATASET_SUFFIX}"))
        name = os.path.basename(files[0]).removesuffix(DATASET_SUFFIX) if len(files) == 1 else name
    return _UNSAFE_CHARACTERS.sub("-", name).strip("-_. ") or _DEFAULT_NAME
