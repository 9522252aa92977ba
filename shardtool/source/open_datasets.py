"""Find the shards of the given datasets, and read the dataset files, which may list more shards than the given ones."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shardtool.dataset.features import number_features
from shardtool.dataset.find import find_dataset, names_listed_by
from shardtool.dataset.stored import StoredDataset
from shardtool.dataset.unfinished import require_finished
from shardtool.errors import CorruptShard, InvalidRequest, format_list, printable
from shardtool.names import to_output_name
from shardtool.pattern import DATASET_SUFFIX
from shardtool.shard_samples import SpanFile
from shardtool.source import source_shard
from shardtool.source.source_shard import FilesSeen, SourceShard
from shardtool.storage.lookup import file_info, list_folder_names, map_paths
from shardtool.storage.paths import base_name, join
from shardtool.storage.remote.address import is_url
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardtool.values import DatasetLike, NumberType


def open_datasets(givens: Sequence[DatasetLike], seen: FilesSeen) -> tuple[list[StoredDataset], list[SourceShard]]:
    """Return the requested datasets and their shards; only the dataset files are read.

    Each of `givens` is a dataset file, a pattern, a glob, a folder, or a list of shards. `seen` records the files.
    """
    datasets, shards = list[StoredDataset](), list[SourceShard]()
    for number, given in enumerate(givens):
        dataset = find_dataset(given).read()
        file = dataset.file
        if file is not None and dataset.dataset_file is not None:
            seen.add(dataset.dataset_file, file_info(dataset.dataset_file))
        elif dataset.dataset_file is None:
            _check_one_dataset(dataset)
        record_types: Mapping[str, NumberType] | None = None
        # Only a scan can tell whether another tool stores lists.
        if (
            file is not None
            and file.made.verb != "index"
            and not any(feature.is_list for feature in file.features.values())
        ):
            record_types = number_features(file.features)
        for stored, file_stat in zip(dataset.shards, map_paths(source_shard.stat_shard, dataset.paths), strict=True):
            seen.add(stored.path, file_stat)
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
    """Return notes about unlisted shards, or about sidecars of an unfinished run."""
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
    if not isinstance(dataset.given, (str, os.PathLike)):
        names = [*map(_shard_name, dataset.paths)]
        return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more"
    path = os.fspath(dataset.given)
    if is_url(path):
        return printable(base_name(path.rstrip("/")))
    return printable(os.fsencode(os.path.basename(os.path.realpath(path) if os.path.isdir(path) else path)))
