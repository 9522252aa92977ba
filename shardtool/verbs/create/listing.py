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
    """Open the outputs and the source, list the samples that were asked for, and return the source."""
    outputs.open_outputs(run)
    # Without outputs, a column will name splits.
    patterns = [output.pattern for output in run.outputs] or [runs.parse_output_pattern(run.names)]
    options = outputs.keep_class_numbers(run)
    if isinstance(options, CreateOptions) and options.plan_only is not None:
        from shardtool.source.plan_file import check_plan_target
        from shardtool.source.plan_request import make_plan_request

        run.plan_only, run.asked = os.fspath(options.plan_only), make_plan_request(source, options, run.format)
        try:
            check_plan_target(run.plan_only, overwrite="overwrite" in options.if_exists)
        except OutputExists as error:
            run.refusal = error
    opened = open_source(source, options, patterns)
    run.pool.check(function=run.transform.function if run.transform else "")
    _list_samples(run, opened)
    if run.refusal is not None:
        if run.verb == "reshard":
            _check_other_location(run, source)
        from shardtool.verbs.create.checks import check_listed

        check_listed(run)
        raise run.refusal
    run.pool.check(run.entries.files())
    spans, compressed = run.entries.spans, run.listed.compressed
    if run.part is not None and spans is not None and (compressed or not spans.files):
        found = "payloads in a table or a compressed archive, which are unpacked into one file first"
        found = "compressed shards, which can only be read in sequence" if compressed else found
        expected, remedy = "payloads that each part can read at their places", "Write it in one run."
        raise InvalidRequest(option_text("part", run.options.part), found, expected=expected, remedy=remedy)
    if run.shuffle is not None and run.shuffle.method == "gather" and compressed:
        expected = "scatter or auto: they can only be read in sequence"
        raise InvalidRequest(option_text("method"), "gather, of compressed shards", expected=expected)
    return opened


def _check_other_location(run: runs.Run, datasets: Any) -> None:
    """Refuse to reshard datasets onto themselves: what is there already is not to be replaced, then.

    Raises:
        OutputExists: The output has a name of a shard of theirs.
    """
    pattern = runs.parse_output_pattern(run.names)
    for one in datasets if isinstance(datasets, list | tuple) else [datasets]:
        for path in (path for dataset in expand_if_pattern(one) for path in find_dataset(dataset).paths):
            same = os.path.realpath(os.path.dirname(path)) == os.path.realpath(pattern.folder)
            if not is_url(path) and same and pattern.owns(os.path.basename(path)):
                raise OutputExists(
                    path, outputs.OUTPUT_IS_SOURCE, expected=outputs.OTHER_OUTPUT, remedy=outputs.NOTHING_CHANGED
                )


@reporting_memory_errors("listing the source")
def _list_samples(run: runs.Run, source: Source) -> None:
    """Find the samples that were asked for, in their order, and divide them.

    Raises:
        InvalidRequest: There are none, or their names cannot be in shards.
        SampleFailed: Some cannot be packed, and they are not to be skipped.
        CorruptShard: A dataset that they are in is damaged.
    """
    run.listed = source.list_samples(run.pool, run.notes.observer)
    run.listed = source.choose(run.listed, lambda: None if run.updates else _read_taken_keys(run))
    run.listed = _drop_duplicates(run, source)
    if run.asked is not None:
        run.chosen = run.listed
    run.notes.add(*run.listed.notes)
    from shardtool.select.portable_names import check_case, make_portable
    from shardtool.select.storable_names import check_storable_names

    if not run.options.portable:
        check_storable_names(run.entries, run.listed.name, skip=source.may_skip_names)
    _choose_dots(run)
    if run.dividing is not None:
        _split_samples(run, source, run.dividing)
        if run.options.portable:
            other = option_text("split" if run.dividing.column is None else run.dividing.option)
            raise InvalidRequest(option_text("portable"), f"used with {other}", remedy="Choose one of them.")
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
        run.transform = run.transform._replace(where=_make_condition(run, run.listed.later, run.transform))
        run.identity = run.transform.identity()


def _drop_duplicates(run: runs.Run, source: Source) -> Listing:
    """Return the samples without duplicates, if that was asked for; a run that will be refused reads no payloads."""
    if run.refusal is not None:
        return run.listed
    from shardtool.source.duplicates import drop_duplicate_samples

    taken = partial(_read_taken_keys, run) if run.updates else lambda: None
    return drop_duplicate_samples(run.listed, source, run.options, run.pool, run.notes.observer, taken)


def _make_condition(run: runs.Run, later: ReadCondition, transform: Transform) -> ReadCondition:
    """Return what of a query the workers judge, by what sidecars will have: of these columns they know the values.

    Raises:
        InvalidRequest: It names other columns, or is used with what needs the samples before they are read.
    """
    from shardtool.entries.metadata_columns import with_measured_columns
    from shardtool.select.query import match_rows

    for name in ("plan_only", "equal_count"):
        if getattr(run.options, name, None):
            found = f"used with {option_text('where')} {later.query}, which shows only when samples are read"
            raise InvalidRequest(option_text(name), found, expected="samples that a plan can know")
    columns, classes = run.entries.metadata, run.listed.all_classes
    columns = with_measured_columns(None if columns is None else columns.slice(0, 0), transform.found, [])
    names = [] if columns is None else columns.column_names
    if unknown := [name for name in later.columns if name not in names]:
        found = f"{later.query}: shows only when samples are read, and no sidecar will have {unknown[0]}"
        remedy = f"What names {unknown[0]} can be a part of its own, joined by `and`."
        raise InvalidRequest(
            option_text("where"), found, expected=f"columns of sidecars: {format_list(names)}", remedy=remedy
        )
    match_rows(columns, later.query, classes)
    return later._replace(classes=tuple((name, (*classes[name],)) for name in later.columns if name in classes))


def _read_taken_keys(run: runs.Run) -> PackedStrings | None:
    """Return the keys of the datasets that are appended to; None: there are no such datasets."""
    if not any(output.destination.appends for output in run.outputs):
        return None
    from shardtool.verbs.create.append import read_taken_keys

    return read_taken_keys(run)


def _choose_dots(run: runs.Run) -> None:
    """Decide at which dot keys end in a tar: at the last, which is recorded, if only that one divides all names."""
    known = {**run.options.recorded(), **run.listed.recorded}
    asked: Dots | None = "last" if known.get("dots") == "last" else "first" if "dots" in known else None
    if run.format != "tar" or (run.options.portable and asked != "last"):
        run.dots = asked or "first"
        return
    from shardtool.select.storable_names import choose_dots

    run.dots, note = choose_dots(run.entries, asked, run.listed.name)
    if note:
        run.listed = replace(run.listed, recorded={**run.listed.recorded, "dots": run.dots})
        run.notes.add(note)


def _split_samples(run: runs.Run, source: Source, dividing: SplitOptions) -> None:
    """Give each output its samples, and these the column `split`."""
    from shardtool.entries.metadata_columns import with_split
    from shardtool.select.splits import assign_splits

    entries = run.entries
    values = source.labels(run.listed, dividing.reads[1]) if dividing.reads else None
    run.divides = None if run.asked is None else values
    splits = assign_splits(entries.keys, dividing, values)
    run.notes.add(*splits.notes)
    if dividing.column is not None:
        there = outputs.find_existing_splits(run) if run.updates else []
        outputs.open_outputs(run, [*splits.names, *(name for name in there if name not in splits.names)])
    for at, output in enumerate(run.outputs):
        output.which = splits.samples(at)
    lacking = [one for one in run.outputs if one.which is not None and not len(one.which)]
    # An update leaves splits that are there as they are.
    if empty := [one.split for one in lacking if not (run.updates and one.destination.appends)]:
        found = f"no sample falls into {', '.join(empty)}: {len(entries):,} in all"
        remedy = f"Use larger shares, another {option_text('seed')}, or {option_text('stratify')}."
        raise InvalidRequest(option_text("split"), found, remedy=remedy)
    entries = replace(entries, metadata=with_split(entries.metadata, splits.names, splits.number))
    run.listed = replace(run.listed, entries=entries)
