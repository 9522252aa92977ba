"""Check whether the keys, fields, columns and classes of new samples can be appended to a dataset."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardtool.dataset import sidecar_schema
from shardtool.entries.classes import merge_classes
from shardtool.entries.metadata_columns import drop_number_columns
from shardtool.entries.strings import PackedStrings
from shardtool.errors import InvalidRequest, format_list, printable
from shardtool.messages import flag_text, option_text
from shardtool.names import to_bytes
from shardtool.pack.run import Listed, Output, Planned, Run, make_record
from shardtool.publish.append_target import FinishedAppend
from shardtool.publish.dataset_keys import check_new_keys, read_dataset_keys
from shardtool.publish.foreign_index_files import export_notes
from shardtool.publish.listed_files import read_listed_sidecar
from shardtool.publish.publish_dataset import join_kinds, join_schemas
from shardtool.table.keys import contains_hashes, hash_keys
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.entries.sample_table import SampleTable
    from shardtool.plan.plan import Plan
    from shardtool.publish.destination import Destination
    from shardtool.request.create_options import CreateOptions, ReshardOptions
    from shardtool.request.run_record import RunRecord
    from shardtool.source.base import Listing
    from shardtool.values import FeatureType


def read_taken_keys(run: Run, listing: Listing, outputs: Sequence[Output]) -> PackedStrings:
    """Return the keys of the existing datasets. If this run resumes an append, ignore the shards of that append."""
    keys = []
    for output in outputs:
        if (old := output.destination.old) is not None:
            first_shard = _find_same_append(output.destination, old, make_record(run, listing, output, outputs))
            folder = output.destination.folder
            keys += [read_listed_sidecar(folder, shard).keys_with_nul() for shard in old.shards[:first_shard]]
    return PackedStrings.parse(b"".join(keys))


def prepare_append(listed: Listed) -> Listed:
    """Check that the listed samples can be appended to the existing datasets.

    Raise an error if a dataset already contains the key of a new sample, or was created with another value of `dots`.
    If an earlier run has appended the same samples to a dataset, set the destination's `append` to a `FinishedAppend`.
    """
    listed = _drop_label_columns(listed)
    entries = listed.entries
    new_keys, outputs = list[PackedStrings](), list[Output]()
    for output in listed.outputs:
        outputs.append(output)
        destination, append, record = output.destination, output.destination.append, listed.record(output)
        if append is None:
            continue
        if append.old.format == "tar" and (old_dots := append.old.run.dots) != record.dots:
            new_dots = f"keys that end at the {record.dots} dot of member names"
            expected = f"at the {old_dots} dot, as in the dataset"
            remedy = f"Use {option_text('dots', old_dots)}, or `shardtool reshard` to combine both datasets."
            raise InvalidRequest(flag_text("append"), new_dots, expected=expected, remedy=remedy)
        keys = entries.keys if output.sample_numbers is None else entries.keys.take(output.sample_numbers)
        first_shard = _find_same_append(destination, append.old, record)
        has_map = listed.run.map_returns_keys
        if first_shard is not None and (has_map or _has_same_samples(keys, destination, append.old, first_shard)):
            finished_append = FinishedAppend(append.old, append.data, first_shard)
            outputs[-1] = replace(output, destination=replace(destination, append=finished_append))
        elif not has_map:
            new_keys.append(keys)
    for output in outputs if new_keys else ():
        if (old := output.destination.old) is not None:
            taken_keys = read_dataset_keys(output.destination.folder, old.shards)
            for keys in new_keys:
                check_new_keys(keys, taken_keys, output.destination.dataset_file)
    return replace(listed, outputs=tuple(outputs))


def _drop_label_columns(listed: Listed) -> Listed:
    """Drop label columns from the metadata if an existing dataset stores these labels only as fields.

    Queries on these columns would not find existing samples.
    """
    entries = listed.entries
    old_datasets = [output.destination.old for output in listed.outputs if output.destination.old]
    labels = {*entries.values.numbers, *entries.values.classes}.difference(listed.run.options.columns_from)
    field_only = {name for name in labels for old in old_datasets if name in old.fields and name not in old.schema}
    if not field_only or entries.metadata is None:
        return listed
    entries = replace(entries, metadata=drop_number_columns(entries.metadata, field_only))
    return replace(listed, listing=replace(listed.listing, entries=entries))


def _find_same_append(destination: Destination, old: DatasetFile, record: RunRecord) -> int | None:
    """Return the first shard of the append that this run resumes, or None."""
    if destination.if_exists != "append-resume" or not old.appends:
        return None
    return old.appends[-1] if old.run.appended[-1] == record.as_append_to(old.run) else None


def _has_same_samples(keys: PackedStrings, destination: Destination, old: DatasetFile, first_shard: int) -> bool:
    appended_keys, new_hashes = read_dataset_keys(destination.folder, old.shards[first_shard:]), hash_keys(keys)
    appended_hashes = hash_keys(appended_keys)
    if not len(appended_hashes) or not contains_hashes(appended_hashes, np.sort(new_hashes)).all():
        return False
    skipped_keys = {row.key for row in destination.load_skipped()}
    missing = np.flatnonzero(~contains_hashes(new_hashes, np.sort(appended_hashes))).tolist()
    return all(printable(keys[index]) in skipped_keys for index in missing)


def check_append_schema(old: DatasetFile, plan: Plan, options: CreateOptions | ReshardOptions) -> None:
    """Raise an error if planned fields, columns or classes do not match the dataset `old`."""
    values, metadata, field_counts = plan.entries.values, plan.entries.metadata, _count_fields(plan)
    text_fields = {name for name in values.inline if values.numbers.get(name) != "int64"}.difference(values.classes)
    for name in old.classes:
        if name in field_counts and name in text_fields:
            expected = "class numbers, as in the dataset"
            remedy = (
                f"Add {option_text('classes', (name,))}, with {option_text('classes_from')} set to the dataset file."
            )
            raise InvalidRequest(f"field {name}", "texts in the new samples", expected=expected, remedy=remedy)
    merge_classes(old.classes, values.classes)
    if old.format == "tfrecord":
        kinds: dict[str, FeatureType] = {**values.numbers, **values.lists}
        join_kinds(old, {name: kinds.get(name, "bytes") for name in field_counts})
    if metadata is None:
        return
    try:
        join_schemas(old.schema, _get_parquet_types(metadata))
    except InvalidRequest as error:
        from shardtool.source.manifest.roles import META_FIELD

        name, given_options = error.where.removeprefix("column "), [*filter(options.is_given, ("columns_from", "join"))]
        fixes = [f"remove {' and '.join(map(option_text, given_options))}"] if given_options else []
        fixes = fixes or [f"exclude it with {option_text('meta')}"] * (META_FIELD in values.inline)
        found = f"{error.found}{_describe_example(plan, name, old.schema[name])}"
        remedy = f"{', or '.join(['Convert it to that type', 'rename it', *fixes])}."
        raise InvalidRequest(error.where, found, expected=error.expected, remedy=remedy) from None


def _describe_example(plan: Plan, name: str, type_name: str) -> str:
    numbers = range(len(plan.entries)) if plan.order is None else np.sort(plan.order).tolist()
    column = plan.entries.metadata.column(name) if plan.entries.metadata is not None else []
    for number in numbers:
        try:
            column[number].cast(pa.type_for_alias(type_name))
        except (ValueError, TypeError, NotImplementedError):
            return f", for example {column[number].as_py()!r:.60} in sample {printable(plan.entries.key(number))!r}"
    return ""


def append_notes(planned: Planned) -> Iterator[str]:
    """Yield notes about outdated indexes, and about fields, columns and classes that old or new samples lack."""
    run, listed = planned.run, planned.listed
    destinations = planned.destinations
    for output in planned.outputs:
        if (old := output.destination.old) is not None:
            if not isinstance(output.destination.append, FinishedAppend):
                yield from _field_notes(old, output.plan, changed=listed.transform is not None)
            yield from export_notes(output.destination.folder, old, run.exports)
    if not any(isinstance(destination.append, FinishedAppend) for destination in destinations):
        yield from _class_notes([old for destination in destinations if (old := destination.old)], listed.entries)


def _field_notes(old: DatasetFile, plan: Plan, *, changed: bool) -> Iterator[str]:
    samples = sum(shard.samples for shard in old.shards)
    if not changed:
        new_counts = _count_fields(plan)
        if new_fields := sorted({*new_counts} - {*old.fields}, key=to_bytes):
            yield f"fields that the {pluralize(samples, 'sample')} of the dataset lack: {format_list(new_fields)}"
        complete_fields = [name for name, count in old.fields.items() if count == samples]
        incomplete_fields = [name for name in complete_fields if new_counts.get(name, 0) < len(plan)]
        if incomplete_fields:
            incomplete = format_list(sorted(incomplete_fields, key=to_bytes))
            yield f"fields that all samples of the dataset have, but some new samples lack: {incomplete}"
    metadata_columns = [] if plan.entries.metadata is None else plan.entries.metadata.column_names
    columns = [sidecar_schema.SHARD_COLUMN.name, *metadata_columns]
    if new_columns := [name for name in columns if name not in old.schema]:
        lacking = f"columns that the sidecars of the dataset lack: {format_list(new_columns)}"
        yield f"{lacking}; to read all sidecars as one table, merge the schemas (DuckDB: union_by_name)"


def _class_notes(old_datasets: Iterable[DatasetFile], entries: SampleTable) -> Iterator[str]:
    old_classes: dict[str, list[str]] = reduce(merge_classes, (file.classes for file in old_datasets), {})
    for name, names in entries.values.classes.items():
        if (old_count := len(old_classes.get(name, ()))) and names[old_count:]:
            new_classes = [f"{text!r} is number {number:,}" for number, text in enumerate(names[old_count:], old_count)]
            yield f"{pluralize(len(new_classes), f'label of {name} not in the dataset')}: {format_list(new_classes)}"


def _get_parquet_types(columns: pa.Table) -> dict[str, str]:
    sink = pa.BufferOutputStream()
    pq.write_table(columns.slice(0, 0).replace_schema_metadata(None), sink, store_schema=False)
    return sidecar_schema.column_types(pq.read_schema(pa.BufferReader(sink.getvalue())))


def _count_fields(plan: Plan) -> dict[str, int]:
    entries = plan.entries
    codes = entries.rows.code if plan.order is None else entries.rows.code[entries.rows_of(plan.order)]
    unique_codes, counts = np.unique(codes, return_counts=True)
    return {entries.fields[code]: count for code, count in zip(unique_codes.tolist(), counts.tolist(), strict=True)}
