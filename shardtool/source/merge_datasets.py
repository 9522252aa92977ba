"""Merge the classes, metadata and content fingerprints of several datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from shardtool.dataset.features import number_features
from shardtool.entries import arrow
from shardtool.errors import InvalidRequest, format_list
from shardtool.fingerprint import sum_fingerprints
from shardtool.messages import option_text
from shardtool.source.open_datasets import source_dataset_name
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from shardtool.dataset.stored import StoredDataset
    from shardtool.source.source_shard import SourceShard


def merge_classes(
    datasets: Sequence[StoredDataset], parts: Sequence[SourceShard], is_wanted: Callable[[str], bool]
) -> tuple[dict[str, list[str]], list[str]]:
    """Return the class names by field, and notes; datasets that disagree are an error."""
    merged: dict[str, list[str]] = {}
    datasets_of_field: dict[str, dict[int, None]] = {}  # datasets that have a field
    for part in parts:
        for name in filter(is_wanted, part.index.names):
            datasets_of_field.setdefault(name, {})[part.dataset] = None
    notes = []
    for name, indices in datasets_of_field.items():
        class_lists = {
            index: file.classes[name] for index in indices if (file := datasets[index].file) and name in file.classes
        }
        for index, classes in class_lists.items():
            if classes != merged.setdefault(name, classes):
                first = source_dataset_name(datasets[next(iter(class_lists))])
                problem = f"other classes in {source_dataset_name(datasets[index])} ({format_list(classes)})"
                expected = f"the classes of {first}: {format_list(merged[name])}"
                values, labels = option_text("values", {name: "COLUMN"}), option_text("classes", (name,))
                drop = option_text("drop_fields", (name,))
                remedy = f"Number them again with {values} {labels}, or drop the field with {drop}."
                raise InvalidRequest(f"the field {name!r}", problem, expected=expected, remedy=remedy)
        if class_lists and len(class_lists) < len(indices):
            others = [source_dataset_name(datasets[index]) for index in indices if index not in class_lists]
            source = f"the class names of {name!r} come from the datasets that list them"
            notes.append(f"{source}, not from {format_list(others)}")
    return merged, notes


def agreed_classes(datasets: Sequence[StoredDataset]) -> dict[str, list[str]]:
    """Return the class names by field that all datasets with class names agree on."""
    agreed: dict[str, list[str]] = {}
    for name, names in (
        (name, names) for dataset in datasets if dataset.file for name, names in dataset.file.classes.items()
    ):
        agreed[name] = names if agreed.setdefault(name, names) == names else []
    return {name: names for name, names in agreed.items() if names}


def drop_partial_labels(
    columns: pa.Table | None, parts: Sequence[SourceShard], labels: Collection[str]
) -> tuple[pa.Table | None, list[str]]:
    """Drop label columns that some shards with the field lack; return the metadata, and notes."""
    notes = []
    for name in sorted({*labels}.intersection(() if columns is None else columns.column_names)):
        lacking = [part for part in parts if name in part.index.names and name not in part.index.metadata.column_names]
        if lacking and columns is not None:
            kept = [part for part in columns.column_names if part != name]
            columns = columns.select(kept) if kept else None
            dropped = f"column {name!r} dropped: {pluralize(len(lacking), 'shard')} of field {name!r} lack it"
            notes.append(f"{dropped} (use {option_text('columns_from', (name,))} to create it from the field)")
    return columns, notes


def merge_metadata(parts: Sequence[SourceShard], datasets: Sequence[StoredDataset]) -> pa.Table | None:
    """Return the metadata of all parts, with null for missing columns, or None."""
    tables = [part.index.metadata for part in parts]
    names = [*dict.fromkeys(name for table in tables for name in table.column_names)]
    if not names:
        return None
    tables = [
        table if table.num_columns else pa.Table.from_arrays([pa.nulls(len(part.index))], [names[0]])
        for table, part in zip(tables, parts, strict=True)
    ]
    try:
        return arrow.compact_table(pa.concat_tables(tables, promote_options="permissive").select(names))
    except MemoryError:
        raise
    except pa.ArrowException as error:
        raise _metadata_conflict(names, parts, datasets, error) from None


def _metadata_conflict(
    names: Sequence[str], parts: Sequence[SourceShard], datasets: Sequence[StoredDataset], error: pa.ArrowException
) -> InvalidRequest:
    for name in names:
        holders = [part for part in parts if name in part.index.metadata.column_names]
        columns = [part.index.metadata.select([name]) for part in holders]
        try:
            # Values may conflict too: large whole numbers do not fit into floats.
            pa.concat_tables(columns, promote_options="permissive")
        except MemoryError:
            raise
        except pa.ArrowException:
            kinds: dict[str, str] = {}
            for part, column in zip(holders, columns, strict=True):
                kinds.setdefault(str(column.schema.types[0]), source_dataset_name(datasets[part.dataset]))
            shown = ", ".join(f"{kind} in {where}" for kind, where in kinds.items())
            remedy = f"Reshard them separately, with {option_text('join')} to give the column another type."
            return InvalidRequest(f"the column {name!r}", shown, expected="compatible types", remedy=remedy)
    where = format_list([*map(source_dataset_name, datasets)])
    return InvalidRequest(where, f"metadata that does not fit into one table: {str(error)[:200]}")


def merge_fingerprints(datasets: Sequence[StoredDataset]) -> int | None:
    """Return the sum of the fingerprints; None if one may not match the samples."""
    files = [dataset.file for dataset in datasets if dataset.file is not None and not dataset.file.part_of]
    for file in files:
        kinds = {*number_features(file.features).values()}
        may_map = any("map" in run.options for run in (file.made, *file.made.appended))
        # The fingerprint may be of texts that the numbers do not reproduce.
        if "float" in kinds or (kinds and may_map):
            return None
    return sum_fingerprints(file.fingerprint for file in files) if len(files) == len(datasets) else None
