"""The datasets that are given as a source: which shards each has, and what its dataset file says of them.

A dataset file of ours that lists the shards is found beside them, even where they are not all that it lists: it knows
classes, numbers and checksums that nothing else does. Nothing is read here but dataset files.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardtool.dataset.feature import numbers_in
from shardtool.dataset.find import find_dataset, listed_by
from shardtool.dataset.opened import said_of
from shardtool.dataset.shard_file import shard_format
from shardtool.dataset.unfinished import check_finished
from shardtool.errors import CorruptShard, InvalidRequest, listing, printable
from shardtool.pattern import DATASET_SUFFIX
from shardtool.source.shards.shard_columns import Shard, stat_shard
from shardtool.storage.open_file import file_fact
from shardtool.storage.places import base_name, folder_of, for_each, is_url, join, names_in
from shardtool.values import SpanFile, counted, output_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.dataset.dataset_file import DatasetFile, ShardEntry
    from shardtool.dataset.find import Found
    from shardtool.source.shards.shard_columns import Seen
    from shardtool.storage.sources import FileFact
    from shardtool.values import Given

_REMEDY = "`shardtool verify` shows what is wrong."


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset that is there.

    Attributes:
        name: For people and the dataset file: no folder.
        file: What its dataset file says of these shards; None where it has none of ours.
        shards: In order.
        notes: What the user should know.
    """

    name: str
    file: DatasetFile | None
    shards: tuple[Shard, ...]
    notes: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """Whether these are all the shards that a dataset file lists."""
        return self.file is not None and not self.file.part_of


def open_datasets(givens: Sequence[Given], seen: Seen) -> list[Dataset]:
    """Return the datasets that are meant, each as its dataset file, a pattern, a glob, a folder, or a list of shards.

    Args:
        givens: One for each.
        seen: Takes which files these are.

    Raises:
        InvalidRequest: There is no such dataset.
        CorruptShard: A dataset file is damaged, or not what is there: a shard is missing, or has another size.
    """
    return [_open(given, number, seen) for number, given in enumerate(givens)]


def _open(given: Given, number: int, seen: Seen) -> Dataset:
    found = find_dataset(given)
    path, notes = found.dataset_file, list[str]()
    file, shards = said_of(found)
    if file is not None and path is not None:
        seen.add(path, file_fact(path))
        if more := [_name(one) for one in found.shards if one not in shards]:
            name = output_text(base_name(path))
            notes.append(f"{name} does not list {counted(len(more), 'shard')}, left out: {listing(more)}")
    elif path is None:
        _check_of_one(found)
        notes += _unfinished(found)
    entries = [None] * len(shards) if file is None else file.shards
    opened = tuple(
        replace(_shard(one, fact, number, file, entry), index_folder=found.index_folder)
        for one, fact, entry in zip(shards, _facts(shards, seen), entries, strict=True)
    )
    return Dataset(_called(given, found, file), file, opened, tuple(notes))


def _unfinished(found: Found) -> list[str]:
    """Return what the sidecars of shards without a dataset file say of a run that did not end, as notes."""
    try:
        check_finished(found.folder, found.shards)
    except InvalidRequest as error:
        return [f"{error.where}: {error.found}; only these are taken"]
    return []


def _facts(shards: Sequence[str], seen: Seen) -> Iterator[FileFact]:
    for path, fact in zip(shards, for_each(stat_shard, shards), strict=True):
        seen.add(path, fact)
        yield fact


def _shard(path: str, fact: FileFact, dataset: int, file: DatasetFile | None, entry: ShardEntry | None) -> Shard:
    place, kind = SpanFile(os.fsencode(path), fact.st_size, fact.st_mtime_ns), shard_format(path)
    if entry is not None and entry.size != place.size:
        expected = f"{entry.size:,}, as the dataset file says"
        raise CorruptShard(path, f"{place.size:,} bytes", expected=expected, remedy=_REMEDY)
    kinds, numbers = None, file.numbers if file else {}
    # What other tools made may have lists of values, whatever was said of it; how these lie only a walk can find.
    if file is not None and file.made.verb != "index" and not any(one.is_list for one in file.features.values()):
        kinds = numbers_in(file.features)
    return Shard(place, _name(path), dataset, kind, entry, file.made.dots if file else "first", kinds, numbers)


def _check_of_one(found: Found) -> None:
    """Refuse shards of several datasets as one: what their numbers of classes stand for would be lost."""
    wanted = {_name(shard) for shard in found.shards}
    if {folder_of(shard) for shard in found.shards} != {found.folder}:
        return
    names = (name for name in names_in(found.folder) if name.endswith(DATASET_SUFFIX))
    some = [name for name in names if wanted & listed_by(join(found.folder, name))]
    if len(some) > 1:
        problem = f"shards of {len(some)} datasets: {listing(some)}"
        remedy = f"Give the datasets one by one, by their dataset files: {' '.join(some[:3])}."
        raise InvalidRequest(found.folder or ".", problem, expected="those of one", remedy=remedy)


def _name(path: str) -> str:
    return output_text(base_name(path))


def _called(given: Given, found: Found, file: DatasetFile | None) -> str:
    if file is not None:
        return file.name
    if not isinstance(given, (str, os.PathLike)):
        names = [_name(one) for one in found.shards]
        return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more"
    path = os.fspath(given)
    if is_url(path):
        return printable(base_name(path.rstrip("/")))
    return printable(os.fsencode(os.path.basename(os.path.realpath(path) if os.path.isdir(path) else path)))
