"""Check that new samples can be appended to a dataset: keys, fields, columns and classes."""

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
from shardtool.messages import option_text
from shardtool.names import to_bytes
from shardtool.publish.append_target import FinishedAppend
from shardtool.publish.dataset_keys import check_new_keys, encode_shard_keys, read_dataset_keys
from shardtool.publish.join_datasets import join_kinds, join_schemas
from shardtool.publish.listed_files import read_listed_sidecar
from shardtool.table.keys import contains_hashes, hash_keys
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.entries.sample_table import SampleTable
    from shardtool.plan.plan import Plan
    from shardtool.publish.destination import Destination
    from shardtool.request.create_options import CreateOptions, ReshardOptions
    from shardtool.request.run_record import RunRecord
    from shardtool.values import FeatureType
    from shardtool.verbs.create.run import Run


def read_taken_keys(run: Run) -> PackedStrings:
    """Return the keys that new samples cannot have: those of the datasets that are appended to.

    Where this very append may have been killed when all but its end was done, its own samples are not counted.

    Raises:
        CorruptShard: A sidecar of a dataset is damaged.
    """
    found = []
    for output in run.outputs:
        if (old := output.destination.old) is not None:
            shards = old.shards[: _find_same_append(output.destination, old, run.record(output))]
            found += [encode_shard_keys(read_listed_sidecar(output.destination.folder, shard)) for shard in shards]
    return PackedStrings.parse(b"".join(found))


def prepare_append(run: Run) -> None:
    """Decide, for each dataset appended to, whether all keys are new, or whether this same append already finished.

    It may have been killed before its end, or while it went on with the next split; only `--resume` may find it
    `FinishedAppend`, and only if the dataset file has it as the last append, made in the same way. Keys that the user's
    function makes are checked when they are known.

    Raises:
        InvalidRequest: A key is taken, in any of the datasets, or `--dots` is not as it was.
        CorruptShard: A sidecar of a dataset is damaged.
    """
    _drop_label_columns(run)
    new, entries = [], run.entries
    for output in run.outputs:
        destination, found, made = output.destination, output.destination.append, run.record(output)
        if found is None:
            continue
        if found.old.format == "tar" and (before := found.old.made.dots) != made.dots:
            dots = f"keys that end at the {made.dots} dot of members' names"  # readers take one rule per dataset
            expected = f"at the {before}, as those of the dataset"
            remedy = f"`create` has {option_text('dots', before)}; `reshard` makes one dataset of both."
            raise InvalidRequest(option_text("if_exists", "append"), dots, expected=expected, remedy=remedy)
        keys = entries.keys if output.which is None else entries.keys.take(output.which)
        first = _find_same_append(destination, found.old, made)
        if first is not None and (run.makes_keys or _has_same_samples(keys, destination, found.old, first)):
            output.destination = replace(destination, append=FinishedAppend(found.old, found.data, first))
        elif not run.makes_keys:
            new.append(keys)
    for output in run.outputs if new else ():
        if (old := output.destination.old) is not None:
            taken = read_dataset_keys(output.destination.folder, old.shards)
            for keys in new:
                check_new_keys(keys, taken, output.destination.dataset_file)


def _drop_label_columns(run: Run) -> None:
    """Make no columns of labels that the dataset has as fields alone: a query would take some of its samples for all.

    Versions before had no such columns. Other columns, and those that are asked for, become new ones.
    """
    entries, there = run.entries, [output.destination.old for output in run.outputs if output.destination.old]
    labels = {*entries.values.numbers, *entries.values.classes}.difference(run.options.columns_from)
    before = {name for name in labels for old in there if name in old.fields and name not in old.schema}
    if before and entries.metadata is not None:
        columns = drop_number_columns(entries.metadata, before)
        run.listed = replace(run.listed, entries=replace(entries, metadata=columns))


def _find_same_append(destination: Destination, old: DatasetFile, made: RunRecord) -> int | None:
    """Return the first shard of the last append, if that was made in the same way and may be resumed."""
    if destination.if_exists != "append-resume" or not old.appends:
        return None
    return old.appends[-1] if old.made.appended[-1] == made.as_append_to(old.made) else None


def _has_same_samples(keys: PackedStrings, destination: Destination, old: DatasetFile, first: int) -> bool:
    """Tell whether samples are those in the shards from `first` on, and such as are listed as left out."""
    there, ours = hash_keys(read_dataset_keys(destination.folder, old.shards[first:])), hash_keys(keys)
    if not len(there) or not contains_hashes(there, np.sort(ours)).all():
        return False
    skipped = {one.key for one in destination.load_skipped()}
    return all(printable(keys[at]) in skipped for at in np.flatnonzero(~contains_hashes(ours, np.sort(there))).tolist())


def check_append_schema(old: DatasetFile, plan: Plan, options: CreateOptions | ReshardOptions) -> None:
    """Check that fields, columns and classes of planned samples go with those of a dataset, as far as they are known.

    Args:
        old: What is appended to.
        plan: The samples.
        options: What was asked for, by which columns may be left out.

    Raises:
        InvalidRequest: They do not.
    """
    values, metadata, used = plan.entries.values, plan.entries.metadata, _count_fields(plan)
    texts = {name for name in values.inline if values.numbers.get(name) != "int64"}.difference(values.classes)
    for name in old.classes:
        if name in used and name in texts:
            expected = "numbers of classes, as in the dataset"
            remedy = f"{option_text('classes', (name,))} numbers them, {option_text('classes_from')} as the dataset file says."
            raise InvalidRequest(f"field {name}", "texts in the new samples", expected=expected, remedy=remedy)
    merge_classes(old.classes, values.classes)
    if old.format == "tfrecord":
        kinds: dict[str, FeatureType] = {**values.numbers, **values.lists}
        join_kinds(old, {name: kinds.get(name, "bytes") for name in used})
    if metadata is None:
        return
    try:
        join_schemas(old.schema, _get_parquet_types(metadata))
    except InvalidRequest as error:
        from shardtool.source.manifest.roles import META_FIELD

        name, asked = error.where.removeprefix("column "), [*filter(options.is_given, ("columns_from", "join"))]
        ways = [f"leave out {' and '.join(map(option_text, asked))}"] if asked else []
        ways = ways or [f"leave it out with {option_text('meta')}"] * (META_FIELD in values.inline)
        found = f"{error.found}{_describe_example(plan, name, old.schema[name])}"
        remedy = f"{', or '.join(['Give it that type', 'another name', *ways])}."
        raise InvalidRequest(error.where, found, expected=error.expected, remedy=remedy) from None


def _describe_example(plan: Plan, name: str, kind: str) -> str:
    """Return, for a message, the first planned sample that has no value of a type in a column, and its value."""
    places = range(len(plan.entries)) if plan.order is None else np.sort(plan.order).tolist()
    column = plan.entries.metadata.column(name) if plan.entries.metadata is not None else []
    for place in places:
        try:
            column[place].cast(pa.type_for_alias(kind))
        except (ValueError, TypeError, NotImplementedError):  # a value, or the type, has no such form
            return f", such as {column[place].as_py()!r:.60} of {printable(plan.entries.key(place))!r}"
    return ""


def append_notes(old: DatasetFile, plan: Plan, *, changed: bool) -> Iterator[str]:
    """Yield what the user should know of fields and columns that only some of the samples will have.

    Args:
        old: The dataset that is appended to.
        plan: What is appended.
        changed: Whether fields are changed on the way, so that they are not known yet.
    """
    samples = sum(shard.samples for shard in old.shards)
    if not changed:
        new = _count_fields(plan)
        if added := sorted({*new} - {*old.fields}, key=to_bytes):
            yield f"fields that the {pluralize(samples, 'sample')} of the dataset do not have: {format_list(added)}"
        whole = [name for name, count in old.fields.items() if count == samples]
        if lacking := sorted((name for name in whole if new.get(name, 0) < len(plan)), key=to_bytes):
            yield f"fields that all samples of the dataset have, and not all new ones: {format_list(lacking)}"
    columns = [
        sidecar_schema.SHARD_COLUMN.name,
        *([] if plan.entries.metadata is None else plan.entries.metadata.column_names),
    ]
    if more := [name for name in columns if name not in old.schema]:
        yield (
            f"columns that the dataset's sidecars do not have: {format_list(more)}; who reads all as one table "
            "must ask for them (DuckDB: union_by_name)"
        )


def class_notes(there: Iterable[DatasetFile], entries: SampleTable) -> Iterator[str]:
    """Yield which classes no dataset that is appended to has, and the numbers that they get."""
    before: dict[str, list[str]] = reduce(merge_classes, (file.classes for file in there), {})
    for name, names in entries.values.classes.items():
        if (known := len(before.get(name, ()))) and names[known:]:
            later = [f"{text!r} is number {number:,}" for number, text in enumerate(names[known:], known)]
            yield f"{pluralize(len(later), f'label of {name} that the dataset does not have')}: {format_list(later)}"


def _get_parquet_types(columns: pa.Table) -> dict[str, str]:
    """Return the types that columns have in a sidecar: Parquet does not keep all of Arrow's."""
    sink = pa.BufferOutputStream()
    pq.write_table(columns.slice(0, 0).replace_schema_metadata(None), sink, store_schema=False)
    return sidecar_schema.column_types(pq.read_schema(pa.BufferReader(sink.getvalue())))


def _count_fields(plan: Plan) -> dict[str, int]:
    """Return how many of the planned samples have each field."""
    entries = plan.entries
    codes = entries.rows.code if plan.order is None else entries.rows.code[entries.rows_of(plan.order)]
    found, counts = np.unique(codes, return_counts=True)
    return {entries.fields[code]: count for code, count in zip(found.tolist(), counts.tolist(), strict=True)}
