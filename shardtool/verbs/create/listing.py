"""List, select and split the samples of a source, before they are planned."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from shardtool.dataset.expand import expand_if_pattern
from shardtool.dataset.find import find_dataset
from shardtool.errors import InvalidRequest, OutputExists, format_list, reporting_memory_errors
from shardtool.messages import option_text
from shardtool.request.create_options import CreateOptions
from shardtool.source.open import open_source
from shardtool.storage.remote.address import is_url
from shardtool.verbs.create import outputs
from shardtool.verbs.create import run as runs

if TYPE_CHECKING:
    from shardtool.entries.strings import PackedStrings
    from shardtool.request.split_options import SplitOptions
    from shardtool.source.base import Listing, Source
    from shardtool.transform.transform import ReadCondition, Transform
    from shardtool.values import Dots


def list_source(run: runs.Run, source: object) -> Source:
    """List the requested samples, and return the opened source."""
    outputs.open_outputs(run)
    patterns = [output.pattern for output in run.outputs] or [runs.parse_output_pattern(run.names)]
    options = outputs.keep_class_numbers(run)
    if isinstance(options, CreateOptions) and options.plan_only is not None:
        from shardtool.source.plan_file import check_plan_target
        from shardtool.source.plan_request import make_plan_request

        run.plan_only, run.plan_request = os.fspath(options.plan_only), make_plan_request(source, options, run.format)
        try:
            check_plan_target(run.plan_only, overwrite="overwrite" in options.if_exists)
        except OutputExists as error:
            run.refusal = error
    opened_source = open_source(source, options, patterns)
    run.pool.check(function=run.transform.function if run.transform else "")
    _list_samples(run, opened_source)
    if run.refusal is not None:
        if run.verb == "reshard":
            _check_other_location(run, source)
        from shardtool.verbs.create.checks import check_listed

        check_listed(run)
        raise run.refusal
    run.pool.check(run.entries.files())
    spans, compressed = run.entries.spans, run.listed.compressed
    if run.part is not None and spans is not None and (compressed or not spans.files):
        found = "payloads in a table or a compressed archive, which must be unpacked into one file first"
        found = "compressed shards, which can only be read in sequence" if compressed else found
        expected, remedy = "payloads that each part can read by offset", f"Run without {option_text('part')}."
        raise InvalidRequest(option_text("part", run.options.part), found, expected=expected, remedy=remedy)
    if run.shuffle is not None and run.shuffle.method == "gather" and compressed:
        expected = "scatter or auto, because compressed shards can only be read in sequence"
        raise InvalidRequest(option_text("method"), "gather with compressed shards", expected=expected)
    return opened_source


def _check_other_location(run: runs.Run, datasets: Any) -> None:
    pattern = runs.parse_output_pattern(run.names)
    for dataset_like in datasets if isinstance(datasets, list | tuple) else [datasets]:
        for path in (path for dataset in expand_if_pattern(dataset_like) for path in find_dataset(dataset).paths):
            is_same_folder = os.path.realpath(os.path.dirname(path)) == os.path.realpath(pattern.folder)
            if not is_url(path) and is_same_folder and pattern.owns(os.path.basename(path)):
                raise OutputExists(
                    path, outputs.OUTPUT_IS_SOURCE, expected=outputs.OTHER_OUTPUT, remedy=outputs.NOTHING_CHANGED
                )


@reporting_memory_errors("listing the source")
def _list_samples(run: runs.Run, source: Source) -> None:
    run.listed = source.list_samples(run.pool, run.notes.observer)
    run.listed = source.choose(run.listed, lambda: None if run.updates else _read_taken_keys(run))
    run.listed = _drop_duplicates(run, source)
    if run.plan_request is not None:
        run.plan_listing = run.listed
    run.notes.add(*run.listed.notes)
    from shardtool.select.portable_names import check_case, make_portable
    from shardtool.select.storable_names import check_storable_names

    if not run.options.portable:
        check_storable_names(run.entries, run.listed.name, skip=source.may_skip_names)
    _choose_dots(run)
    if run.split_options is not None:
        _split_samples(run, source, run.split_options)
        if run.options.portable:
            other_option = option_text("split" if run.split_options.column is None else run.split_options.option)
            raise InvalidRequest(option_text("portable"), f"used with {other_option}", remedy="Choose one of them.")
    if run.options.portable:
        entries = make_portable(run.entries, by_key=source.by_key)
        if entries.metadata is not None and "source_paths" in entries.metadata.column_names:
            entries = replace(entries, source_paths=False)
        run.listed = replace(run.listed, entries=entries)
    elif run.format == "tar":
        check_case(run.entries)
    run.listed = run.listed.without_dropped()
    if run.plan_request is not None:
        run.plan_listing = run.plan_listing.without_dropped()
    if run.listed.later is not None and run.transform is not None:
        run.transform = run.transform._replace(where=_make_condition(run, run.listed.later, run.transform))
        run.identity = run.transform.identity()


def _drop_duplicates(run: runs.Run, source: Source) -> Listing:
    """Drop duplicates. A run that will be refused reads no payloads."""
    if run.refusal is not None:
        return run.listed
    from shardtool.source.duplicates import drop_duplicate_samples

    read_taken = partial(_read_taken_keys, run) if run.updates else lambda: None
    return drop_duplicate_samples(run.listed, source, run.options, run.pool, run.notes.observer, read_taken)


def _make_condition(run: runs.Run, condition: ReadCondition, transform: Transform) -> ReadCondition:
    from shardtool.entries.metadata_columns import with_measured_columns
    from shardtool.select.query import match_rows

    for name in ("plan_only", "equal_count"):
        if getattr(run.options, name, None):
            found = f"used with {option_text('where')} {condition.query}, which needs the content of the samples"
            raise InvalidRequest(option_text(name), found, expected="a query on names and metadata only")
    columns, classes = run.entries.metadata, run.listed.all_classes
    columns = with_measured_columns(None if columns is None else columns.slice(0, 0), transform.found, [])
    names = [] if columns is None else columns.column_names
    if unknown := [name for name in condition.columns if name not in names]:
        found = f"{condition.query} needs the content of the samples, and no sidecar will have the column {unknown[0]}"
        remedy = f"Write the condition on {unknown[0]} as a separate term, joined by `and`."
        raise InvalidRequest(
            option_text("where"), found, expected=f"columns of sidecars: {format_list(names)}", remedy=remedy
        )
    match_rows(columns, condition.query, classes)
    return condition._replace(classes=tuple((name, (*classes[name],)) for name in condition.columns if name in classes))


def _read_taken_keys(run: runs.Run) -> PackedStrings | None:
    if not any(output.destination.appends for output in run.outputs):
        return None
    from shardtool.verbs.create.append import read_taken_keys

    return read_taken_keys(run)


def _choose_dots(run: runs.Run) -> None:
    recorded_options = {**run.options.recorded(), **run.listed.recorded}
    requested_dots: Dots | None = (
        "last" if recorded_options.get("dots") == "last" else "first" if "dots" in recorded_options else None
    )
    if run.format != "tar" or (run.options.portable and requested_dots != "last"):
        run.dots = requested_dots or "first"
        return
    from shardtool.select.storable_names import choose_dots

    run.dots, note = choose_dots(run.entries, requested_dots, run.listed.name)
    if note:
        run.listed = replace(run.listed, recorded={**run.listed.recorded, "dots": run.dots})
        run.notes.add(note)


def _split_samples(run: runs.Run, source: Source, split_options: SplitOptions) -> None:
    from shardtool.entries.metadata_columns import with_split
    from shardtool.select.splits import assign_splits

    entries = run.entries
    values = source.labels(run.listed, split_options.reads[1]) if split_options.reads else None
    run.split_values = None if run.plan_request is None else values
    splits = assign_splits(entries.keys, split_options, values)
    run.notes.add(*splits.notes)
    if split_options.column is not None:
        existing_splits = outputs.find_existing_splits(run) if run.updates else []
        outputs.open_outputs(run, [*splits.names, *(name for name in existing_splits if name not in splits.names)])
    for index, output in enumerate(run.outputs):
        output.sample_numbers = splits.samples(index)
    without_samples = [
        output for output in run.outputs if output.sample_numbers is not None and not len(output.sample_numbers)
    ]
    if empty_splits := [output.split for output in without_samples if not (run.updates and output.destination.appends)]:
        found = f"no sample in split {', '.join(empty_splits)}: {len(entries):,} in total"
        remedy = f"Use larger shares, another {option_text('seed')}, or {option_text('stratify')}."
        raise InvalidRequest(option_text("split"), found, remedy=remedy)
    entries = replace(entries, metadata=with_split(entries.metadata, splits.names, splits.number))
    run.listed = replace(run.listed, entries=entries)
