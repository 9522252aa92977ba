"""Find the shards of the given datasets, and read the dataset files.

A dataset file that lists the given shards is used even if it lists more shards: it has the classes, numbers and
checksums.
"""

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
    """Return the datasets that are meant, and their shards, which are not listed yet; only dataset files are read.

    Args:
        givens: One for each: its dataset file, a pattern, a glob, a folder, or a list of shards.
        seen: Takes which files these are.

    Raises:
        InvalidRequest: There is no such dataset.
        CorruptShard: A dataset file is damaged, or not what is there: a shard is missing, or has another size.
    """
    datasets, shards = list[StoredDataset](), list[SourceShard]()
    for number, given in enumerate(givens):
        found = find_dataset(given).read()
        file = found.file
        if file is not None and found.dataset_file is not None:
            seen.add(found.dataset_file, file_info(found.dataset_file))
        elif found.dataset_file is None:
            _check_one_dataset(found)
        of_records: Mapping[str, NumberType] | None = None
        # What other tools made may have lists of values, whatever was said of it; how these lie only a walk can find.
        if file is not None and file.made.verb != "index" and not any(one.is_list for one in file.features.values()):
            of_records = number_features(file.features)
        for stored, fact in zip(found.shards, map_paths(source_shard.stat_shard, found.paths), strict=True):
            seen.add(stored.path, fact)
            if stored.entry is not None and stored.entry.size != fact.st_size:
                found_there, expected = f"{fact.st_size:,} bytes", f"{stored.entry.size:,}, as the dataset file says"
                remedy = "`shardtool verify` shows what is wrong."
                raise CorruptShard(stored.path, found_there, expected=expected, remedy=remedy)
            place = SpanFile(os.fsencode(stored.path), fact.st_size, fact.st_mtime_ns)
            kinds = of_records if (form := stored.format) == "tfrecord" else file.numbers if file else {}
            shards.append(SourceShard(stored, place, form, number, kinds))
        datasets.append(found)
    return datasets, shards


def dataset_notes(dataset: StoredDataset) -> list[str]:
    """Return what the user should know: shards that are not listed, or sidecars of a run that did not end."""
    if dataset.unlisted and dataset.dataset_file:
        name, more = to_output_name(base_name(dataset.dataset_file)), [*map(_shard_name, dataset.unlisted)]
        return [f"{name} does not list {pluralize(len(more), 'shard')}, left out: {format_list(more)}"]
    if dataset.dataset_file is None:
        try:
            require_finished(dataset)
        except InvalidRequest as error:
            return [f"{error.where}: {error.found}; only these are taken"]
    return []


def _check_one_dataset(found: StoredDataset) -> None:
    """Refuse shards of several datasets as one: what their numbers of classes stand for would be lost."""
    wanted = {shard.name for shard in found.shards}
    if {*found.folders()} != {found.folder}:
        return
    names = (name for name in list_folder_names(found.folder) if name.endswith(DATASET_SUFFIX))
    some = [name for name in names if wanted & names_listed_by(join(found.folder, name))]
    if len(some) > 1:
        problem = f"shards of {len(some)} datasets: {format_list(some)}"
        remedy = f"Give the datasets one by one, by their dataset files: {' '.join(some[:3])}."
        raise InvalidRequest(found.folder or ".", problem, expected="those of one", remedy=remedy)


def _shard_name(path: str) -> str:
    return to_output_name(base_name(path))


def source_dataset_name(dataset: StoredDataset) -> str:
    """Return the name of a dataset for people and the dataset file: no folder."""
    if dataset.file is not None:
        return dataset.file.name
    if not isinstance(dataset.given, (str, os.PathLike)):
        names = [*map(_shard_name, dataset.paths)]
        return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more"
    path = os.fspath(dataset.given)
    if is_url(path):
        return printable(base_name(path.rstrip("/")))
    return printable(os.fsencode(os.path.basename(os.path.realpath(path) if os.path.isdir(path) else path)))
