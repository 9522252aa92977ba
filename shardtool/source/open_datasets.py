"""Find the shards of datasets, and merge their classes, metadata and fingerprints."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pyarrow as pa

from shardtool.dataset.features import number_features
from shardtool.dataset.find import find_dataset, names_listed_by
from shardtool.dataset.stored import StoredDataset
from shardtool.dataset.unfinished import require_finished
from shardtool.entries import arrow
from shardtool.errors import CorruptShard, InvalidRequest, format_list, printable
from shardtool.fingerprint import sum_fingerprints
from shardtool.messages import option_text
from shardtool.names import to_output_name
from shardtool.pattern import DATASET_SUFFIX
from shardtool.shard_samples import SpanFile
from shardtool.source import source_shard
from shardtool.source.source_shard import ExaminedFiles, SourceShard
from shardtool.storage.lookup import file_info, list_folder_names, map_paths
from shardtool.storage.paths import base_name, join
from shardtool.storage.remote.address import is_url
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from shardtool.values import DatasetLike, NumberType


def open_datasets(
    sources: Sequence[DatasetLike], examined: ExaminedFiles
) -> tuple[list[StoredDataset], list[SourceShard]]:
    """Return the given datasets and their shards. Add their files to `examined`. Only dataset files are read."""
    datasets, shards = list[StoredDataset](), list[SourceShard]()
    for number, source in enumerate(sources):
        dataset = find_dataset(source).read()
        file = dataset.file
        if file is not None and dataset.dataset_file is not None:
            examined.add(dataset.dataset_file, file_info(dataset.dataset_file))
        elif dataset.dataset_file is None:
            _check_one_dataset(dataset)
        record_types: Mapping[str, NumberType] | None = None
        # `index` also runs on shards of other tools. Only a scan can find lists in such shards.
        is_ours = file is not None and file.made.verb != "index"
        if file is not None and is_ours and not any(feature.is_list for feature in file.features.values()):
            record_types = number_features(file.features)
        for stored, file_stat in zip(dataset.shards, map_paths(source_shard.stat_shard, dataset.paths), strict=True):
            examined.add(stored.path, file_stat)
            if stored.entry is not None and stored.entry.size != file_stat.st_size:
                problem, expected = f"{file_stat.st_size:,} bytes", f"{stored.entry.size:,}, as in the dataset file"
                remedy = "Run `shardtool verify` to see what is wrong."
                raise CorruptShard(stored.path, problem, expected=expected, remedy=remedy)
            span_file = SpanFile(os.fsencode(stored.path), file_stat.st_size, file_stat.st_mtime_ns)
            kinds = record_types if (form := stored.format) == "tfrecord" else file.numbers if file else {}
            shards.append(SourceShard(stored, span_file, form, number, kinds))
        datasets.append(dataset)
    return datasets, shards


def dataset_notes(dataset: StoredDataset) -> list[str]:
    """Return a note about shards that the dataset file does not list, or about an unfinished run."""
    if dataset.unlisted and dataset.dataset_file:
        name, unlisted = to_output_name(base_name(dataset.dataset_file)), [*map(_shard_name, dataset.unlisted)]
        return [f"{name} does not list {pluralize(len(unlisted), 'shard')}, excluded: {format_list(unlisted)}"]
    if dataset.dataset_file is None:
        try:
            require_finished(dataset)
        except InvalidRequest as error:
            return [f"{error.where}: {error.found}; only these are used"]
    return []


def _check_one_dataset(dataset: StoredDataset) -> None:
    shard_names = {shard.name for shard in dataset.shards}
    if {*dataset.folders()} != {dataset.folder}:
        return
    names = (name for name in list_folder_names(dataset.folder) if name.endswith(DATASET_SUFFIX))
    listing_files = [name for name in names if shard_names & names_listed_by(join(dataset.folder, name))]
    if len(listing_files) > 1:
        problem = f"shards of {len(listing_files)} datasets: {format_list(listing_files)}"
        remedy = f"Name the datasets one by one, by their dataset files: {' '.join(listing_files[:3])}."
        raise InvalidRequest(dataset.folder or ".", problem, expected="shards of one dataset", remedy=remedy)


def _shard_name(path: str) -> str:
    return to_output_name(base_name(path))


def source_dataset_name(dataset: StoredDataset) -> str:
    """Return the name of a dataset for messages, without folders."""
    if dataset.file is not None:
        return dataset.file.name
    if not isinstance(dataset.argument, (str, os.PathLike)):
        names = [*map(_shard_name, dataset.paths)]
        return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more"
    path = os.fspath(dataset.argument)
    if is_url(path):
        return printable(base_name(path.rstrip("/")))
    return printable(os.fsencode(os.path.basename(os.path.realpath(path) if os.path.isdir(path) else path)))


def merge_classes(
    datasets: Sequence[StoredDataset], parts: Sequence[SourceShard], is_wanted: Callable[[str], bool]
) -> tuple[dict[str, list[str]], list[str]]:
    """Return the class names by field, and notes. Raise an error if datasets have different names for a field."""
    merged: dict[str, list[str]] = {}
    datasets_of_field: dict[str, dict[int, None]] = {}
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
                values, labels = option_text("field", {name: "COLUMN"}), option_text("classes", (name,))
                drop = option_text("drop_fields", (name,))
                remedy = f"Number them again with {values} {labels}, or drop the field with {drop}."
                raise InvalidRequest(f"the field {name!r}", problem, expected=expected, remedy=remedy)
        if class_lists and len(class_lists) < len(indices):
            others = [source_dataset_name(datasets[index]) for index in indices if index not in class_lists]
            notes.append(f"no class names for {name!r} in {format_list(others)}; using those of the other datasets")
    return merged, notes


def agreed_classes(datasets: Sequence[StoredDataset]) -> dict[str, list[str]]:
    """Return the class names by field. Omit fields for which two datasets have different class names."""
    agreed: dict[str, list[str]] = {}
    for dataset in datasets:
        for name, names in dataset.file.classes.items() if dataset.file else ():
            agreed[name] = names if agreed.setdefault(name, names) == names else []
    return {name: names for name, names in agreed.items() if names}


def drop_partial_labels(
    columns: pa.Table | None, parts: Sequence[SourceShard], labels: Collection[str]
) -> tuple[pa.Table | None, list[str]]:
    """Drop a label column if a shard has the label's field but not the column. Return the other columns, and notes."""
    notes = []
    for name in sorted({*labels}.intersection(() if columns is None else columns.column_names)):
        lacking = [part for part in parts if name in part.index.names and name not in part.index.metadata.column_names]
        if lacking and columns is not None:
            kept = [part for part in columns.column_names if part != name]
            columns = columns.select(kept) if kept else None
            dropped = f"column {name!r} dropped: {pluralize(len(lacking), 'shard')} with this field lack the column"
            notes.append(f"{dropped} (create it from the field with {option_text('columns_from', (name,))})")
    return columns, notes


def merge_metadata(parts: Sequence[SourceShard], datasets: Sequence[StoredDataset]) -> pa.Table | None:
    """Concatenate the metadata of all shards, or return None if there is none. Missing columns become null."""
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
            # Compare values as well as types, because large whole numbers do not fit into floats.
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
    """Return the fingerprint of all samples, or None if the fingerprints of the datasets do not determine it."""
    files = [dataset.file for dataset in datasets if dataset.file is not None and not dataset.file.part_of]
    for file in files:
        kinds = {*number_features(file.features).values()}
        may_map = any("map" in run.options for run in (file.made, *file.made.appended))
        # The fingerprint may have been computed from strings to which the stored numbers do not convert back.
        if "float" in kinds or (kinds and may_map):
            return None
    return sum_fingerprints(file.fingerprint for file in files) if len(files) == len(datasets) else None
