"""List, select and split the samples of a source, before planning."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest, OutputExists, format_list, reporting_memory_errors
from shardtool.messages import option_text
from shardtool.pack import outputs
from shardtool.pack.run import Listed, Output, PlanFile, Run
from shardtool.request.create_options import CreateOptions
from shardtool.source.open import identify_source, open_source
from shardtool.storage.remote.address import is_url

if TYPE_CHECKING:
    import pyarrow as pa

    from shardtool.entries.strings import PackedStrings
    from shardtool.request.split_options import SplitOptions
    from shardtool.source.base import Listing, Source
    from shardtool.source.plan_request import PlanRequest
    from shardtool.transform.transform import ReadCondition, Transform
    from shardtool.values import Dots


def list_source(run: Run, source: object) -> Listed:
    """List the requested samples, and find the output datasets."""
    found = outputs.find_outputs(run)
    patterns = [output.pattern for output in found.outputs] or [run.pattern]
    source_options = outputs.make_source_options(run, found.outputs)
    plan_request = None
    argument = identify_source(source, source_options)
    if isinstance(source_options, CreateOptions) and source_options.plan_only is not None:
        from shardtool.source.plan_file import check_plan_target
        from shardtool.source.plan_request import make_plan_request

        plan_request = make_plan_request(argument, source_options, run.pattern.format)
        try:
            check_plan_target(os.fspath(source_options.plan_only), overwrite=source_options.overwrite)
        except OutputExists as error:  # report errors of the source first
            found = found._replace(refusal=error)
    opened_source = open_source(argument, source_options, patterns)
    run.pool.check_access(function=run.transform.function if run.transform else "")
    listed = _list_samples(run, opened_source, found, plan_request)
    if listed.refusal is not None:
        if run.verb == "reshard":
            _check_output_is_not_source(run, listed.listing)
        from shardtool.pack.checks import check_listed

        check_listed(listed)
        raise listed.refusal
    run.pool.check_access(listed.entries.files())
    spans, compressed = listed.entries.spans, listed.listing.compressed
    if run.part is not None and spans is not None and (compressed or not spans.files):
        problem = "payloads in a table or compressed archive"
        problem = "compressed shards, which can only be read in sequence" if compressed else problem
        expected, remedy = "payloads that each part can read by offset", f"Run without {option_text('part')}."
        raise InvalidRequest(option_text("part", run.options.part), problem, expected=expected, remedy=remedy)
    if run.reshard_options is not None and run.reshard_options.method == "gather" and compressed:
        expected = "scatter or auto, because compressed shards can only be read in sequence"
        raise InvalidRequest(option_text("method"), "gather with compressed shards", expected=expected)
    return listed


def _check_output_is_not_source(run: Run, listing: Listing) -> None:
    for _, shard in listing.stored:
        path = shard.path
        is_same_folder = os.path.realpath(os.path.dirname(path)) == os.path.realpath(run.pattern.folder)
        if not is_url(path) and is_same_folder and run.pattern.owns(os.path.basename(path)):
            expected, remedy = outputs.OTHER_OUTPUT, outputs.NOTHING_CHANGED
            raise OutputExists(path, outputs.OUTPUT_IS_SOURCE, expected=expected, remedy=remedy)


@reporting_memory_errors("listing the source")
def _list_samples(run: Run, source: Source, found: outputs.FoundOutputs, plan_request: PlanRequest | None) -> Listed:
    from shardtool.select.storable_names import check_case, check_storable_names, make_portable

    listing = source.list_samples(run.pool, run.notes.observer)
    read_existing_keys = partial(_read_taken_keys, run, listing, found.outputs)
    # In an update, `find_new_samples` excludes the existing samples later.
    listing = source.select_and_sort(listing, (lambda: None) if run.updates else read_existing_keys)
    if found.refusal is None:  # a refused run need not read payloads
        from shardtool.source.duplicates import drop_duplicate_samples

        read_existing_keys = partial(_read_taken_keys, run, listing, found.outputs)
        listing = drop_duplicate_samples(listing, source, run.options, run.pool, run.notes.observer, read_existing_keys)
    unsplit = None if plan_request is None else listing
    values = None
    run.notes.add(*listing.notes)
    if not run.options.portable:
        check_storable_names(listing.entries, listing.name, may_skip=source.may_skip_unstorable)
    dots, listing = _choose_dots(run, listing)
    if run.split_options is not None:
        listing, found, values = _split_samples(run, source, listing, found, run.split_options)
    if run.options.portable:
        entries = make_portable(listing.entries, by_key=source.by_key)
        if entries.metadata is not None and "source_paths" in entries.metadata.column_names:
            entries = replace(entries, source_paths=False)
        listing = replace(listing, entries=entries)
    elif run.pattern.format == "tar":
        check_case(listing.entries)
    listing = listing.without_dropped()
    transform, plan_file = run.transform, None
    if unsplit is not None and plan_request is not None:
        path = os.fspath(getattr(run.options, "plan_only", ""))
        plan_file = PlanFile(path, plan_request, unsplit.without_dropped(), values)
    if listing.condition is not None and transform is not None:
        transform = transform._replace(where=_make_condition(run, listing, listing.condition, transform))
    identity = transform.identity() if transform else ""
    return Listed(run, source, listing, found.outputs, transform, dots, plan_file, identity, refusal=found.refusal)


def _make_condition(run: Run, listing: Listing, condition: ReadCondition, transform: Transform) -> ReadCondition:
    from shardtool.entries.metadata_columns import with_measured_columns
    from shardtool.select.query import match_rows

    for name in ("plan_only", "equal_count"):
        if getattr(run.options, name, None):
            found = f"used with {option_text('where')} {condition.query}, which needs the content of the samples"
            raise InvalidRequest(option_text(name), found, expected="a query on names and metadata only")
    columns, classes = listing.entries.metadata, listing.all_classes
    columns = with_measured_columns(None if columns is None else columns.slice(0, 0), transform.measured_columns, [])
    names = [] if columns is None else columns.column_names
    if unknown := [name for name in condition.columns if name not in names]:
        found = f"{condition.query} needs the content of the samples, and no sidecar will have the column {unknown[0]}"
        remedy = f"Write the condition on {unknown[0]} as a separate term, joined by `and`."
        expected = f"columns of sidecars: {format_list(names)}"
        raise InvalidRequest(option_text("where"), found, expected=expected, remedy=remedy)
    match_rows(columns, condition.query, classes)  # checks the query with a table that has no rows
    return condition._replace(classes=tuple((name, (*classes[name],)) for name in condition.columns if name in classes))


def _read_taken_keys(run: Run, listing: Listing, found: tuple[Output, ...]) -> PackedStrings | None:
    if not any(output.destination.appends for output in found):
        return None
    from shardtool.pack.append import read_taken_keys

    return read_taken_keys(run, listing, found)


def _choose_dots(run: Run, listing: Listing) -> tuple[Dots, Listing]:
    # see `Listed.dots`
    recorded_options = {**run.options.recorded(), **listing.recorded}
    requested_dots: Dots | None = None
    if "dots" in recorded_options:
        requested_dots = "last" if recorded_options["dots"] == "last" else "first"
    if run.pattern.format != "tar" or (run.options.portable and requested_dots != "last"):
        return requested_dots or "first", listing
    from shardtool.select.storable_names import choose_dots

    dots, note = choose_dots(listing.entries, requested_dots, listing.name)
    if note:
        listing = replace(listing, recorded={**listing.recorded, "dots": dots})
        run.notes.add(note)
    return dots, listing


def _split_samples(
    run: Run, source: Source, listing: Listing, found: outputs.FoundOutputs, split_options: SplitOptions
) -> tuple[Listing, outputs.FoundOutputs, pa.ChunkedArray | None]:
    from shardtool.entries.metadata_columns import with_split
    from shardtool.select.splits import assign_splits

    option_and_column = split_options.option_and_column
    values = source.labels(listing, *option_and_column) if option_and_column else None
    splits = assign_splits(listing.entries.keys, split_options, values)
    run.notes.add(*splits.notes)
    if split_options.column is not None:
        existing_splits = outputs.find_existing_splits(run) if run.updates else []
        names = [*splits.names, *(name for name in existing_splits if name not in splits.names)]
        refusal, found = found.refusal, outputs.find_outputs(run, names)
        found = found._replace(refusal=refusal or found.refusal)
    split_outputs = [
        replace(output, sample_numbers=splits.samples(index)) for index, output in enumerate(found.outputs)
    ]
    _check_splits_filled(run, listing, split_outputs)
    if run.options.portable:
        other_option = option_text("split" if split_options.column is None else split_options.option)
        raise InvalidRequest(option_text("portable"), f"used with {other_option}", remedy="Choose one of them.")
    metadata = with_split(listing.entries.metadata, splits.names, splits.number)
    listing = replace(listing, entries=replace(listing.entries, metadata=metadata))
    return listing, found._replace(outputs=tuple(split_outputs)), values


def _check_splits_filled(run: Run, listing: Listing, split_outputs: list[Output]) -> None:
    empty_splits = [
        output.split
        for output in split_outputs
        if not len(output.positions(listing.entries)) and not (run.updates and output.destination.appends)
    ]
    if empty_splits and len(listing.entries):
        problem = f"no sample in split {', '.join(empty_splits)}: {len(listing.entries):,} in total"
        remedy = f"Use larger shares, another {option_text('seed')}, or {option_text('stratify')}."
        raise InvalidRequest(option_text("split"), problem, remedy=remedy)
