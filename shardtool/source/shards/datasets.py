"""The datasets that are given as a source: which shards each has, and what its dataset file says of them.

A dataset file of ours that lists the shards is found beside them, even where they are not all that it lists: it knows
classes, numbers and checksums that nothing else does. Nothing is read here but dataset files.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from shardtool.dataset.feature import numbers_in
from shardtool.dataset.find import check_finished, find_dataset, listed_by
from shardtool.dataset.opened import said_of
from shardtool.dataset.shard_file import shard_format
from shardtool.errors import CorruptShard, InvalidRequest, listing, printable
from shardtool.fingerprint import sum_fingerprints
from shardtool.pattern import DATASET_SUFFIX
from shardtool.source.shards.shard_columns import Shard, stat_shard
from shardtool.storage.open_file import file_fact
from shardtool.storage.places import base_name, folder_of, for_each, is_url, join, names_in
from shardtool.table import arrays
from shardtool.values import SpanFile, counted, output_text
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardtool.dataset.dataset_file import DatasetFile, ShardEntry
    from shardtool.dataset.find import DatasetFiles
    from shardtool.source.shards.shard_columns import FilesSeen, ShardColumns
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


def open_datasets(givens: Sequence[Given], seen: FilesSeen) -> list[Dataset]:
    """Return the datasets that are meant, each as its dataset file, a pattern, a glob, a folder, or a list of shards.

    Args:
        givens: One for each.
        seen: Takes which files these are.

    Raises:
        InvalidRequest: There is no such dataset.
        CorruptShard: A dataset file is damaged, or not what is there: a shard is missing, or has another size.
    """
    return [_open(given, number, seen) for number, given in enumerate(givens)]


def _open(given: Given, number: int, seen: FilesSeen) -> Dataset:
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


def _unfinished(found: DatasetFiles) -> list[str]:
    """Return what the sidecars of shards without a dataset file say of a run that did not end, as notes."""
    try:
        check_finished(found.folder, found.shards)
    except InvalidRequest as error:
        return [f"{error.where}: {error.found}; only these are taken"]
    return []


def _facts(shards: Sequence[str], seen: FilesSeen) -> Iterator[FileFact]:
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


def _check_of_one(found: DatasetFiles) -> None:
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


def _called(given: Given, found: DatasetFiles, file: DatasetFile | None) -> str:
    if file is not None:
        return file.name
    if not isinstance(given, (str, os.PathLike)):
        names = [_name(one) for one in found.shards]
        return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more"
    path = os.fspath(given)
    if is_url(path):
        return printable(base_name(path.rstrip("/")))
    return printable(os.fsencode(os.path.basename(os.path.realpath(path) if os.path.isdir(path) else path)))


# What datasets say of their samples besides payloads, joined: classes, metadata, and the content fingerprint.


def joined_classes(
    datasets: Sequence[Dataset], parts: Sequence[ShardColumns], wanted: Callable[[str], bool]
) -> tuple[dict[str, list[str]], list[str]]:
    """Return what the numbers of labels stand for, and notes.

    Raises:
        InvalidRequest: It is not the same in all datasets.
    """
    found: dict[str, list[str]] = {}
    having: dict[str, dict[int, None]] = {}  # the datasets that have a field
    for part in parts:
        for name in filter(wanted, part.names):
            having.setdefault(name, {})[part.shard.dataset] = None
    notes = []
    for name, places in having.items():
        known = {at: file.classes[name] for at in places if (file := datasets[at].file) and name in file.classes}
        for at, classes in known.items():
            if classes != found.setdefault(name, classes):
                first = datasets[next(iter(known))].name
                problem = f"other classes in {datasets[at].name} ({listing(classes)})"
                expected = f"those of {first}: {listing(found[name])}"
                remedy = (
                    f"Number them anew with {option('values', {name: 'COLUMN'})} {option('classes', (name,))}, "
                    f"or leave the field out with {option('drop_fields', (name,))}."
                )
                raise InvalidRequest(f"the field {name!r}", problem, expected=expected, remedy=remedy)
        if known and len(known) < len(places):
            others = [datasets[at].name for at in places if at not in known]
            notes.append(
                f"the classes of {name!r} are those of the datasets that name them: {listing(others)} does not"
            )
    return found, notes


def joined_columns(parts: Sequence[ShardColumns], datasets: Sequence[Dataset]) -> pa.Table | None:
    """Return the metadata of all parts, null where one has none of a name; None where there is none at all.

    Raises:
        InvalidRequest: Values of one name have types that cannot be one.
    """
    names = [*dict.fromkeys(name for part in parts if part.columns is not None for name in part.columns.column_names)]
    if not names:
        return None
    tables = [
        part.columns if part.columns is not None else pa.Table.from_arrays([pa.nulls(len(part))], [names[0]])
        for part in parts
    ]
    try:
        return arrays.compact(pa.concat_tables(tables, promote_options="permissive").select(names))
    except MemoryError:
        raise
    except pa.ArrowException as error:
        for name in names:
            _check_alike(name, parts, datasets)
        where = ", ".join(dataset.name for dataset in datasets)
        raise InvalidRequest(where, f"metadata that cannot be one table: {str(error)[:200]}") from None


def _check_alike(name: str, parts: Sequence[ShardColumns], datasets: Sequence[Dataset]) -> None:
    """Check that the values of a column can be one column."""
    kinds: dict[str, str] = {}
    columns = []
    for part in parts:
        if part.columns is not None and name in part.columns.column_names:
            columns.append(part.columns.select([name]))
            kinds.setdefault(str(columns[-1].schema.types[0]), datasets[part.shard.dataset].name)
            try:
                pa.concat_tables(columns, promote_options="permissive")
            except MemoryError:
                raise
            except pa.ArrowException:
                shown = ", ".join(f"{kind} in {where}" for kind, where in kinds.items())
                expected = "types that can be one"
                remedy = f"Reshard them apart, with {option('join')} to give the column another type."
                raise InvalidRequest(f"the column {name!r}", shown, expected=expected, remedy=remedy) from None


def joined_digest(datasets: Sequence[Dataset]) -> int | None:
    """Return the sum of the datasets' fingerprints; None where one is not known to be that of what was listed."""
    files = [dataset.file for dataset in datasets if dataset.whole and dataset.file is not None]
    if len(files) < len(datasets) or any(map(_from_other_texts, files)):
        return None
    return sum_fingerprints(file.fingerprint for file in files)


def _from_other_texts(file: DatasetFile) -> bool:
    """Tell whether a fingerprint may be that of texts which a TFRecord's numbers do not give back."""
    kinds = {*numbers_in(file.features).values()}
    return "float" in kinds or bool(kinds and any("map" in run.options for run in (file.made, *file.made.appended)))
