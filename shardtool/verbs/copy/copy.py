"""`copy`: copy datasets, as they are, to another folder or store.

A dataset is checked, compared, copied shard by shard, and published, the dataset file last.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import TYPE_CHECKING

from shardtool import errors
from shardtool.dataset.expand import expand_datasets
from shardtool.pattern import DATASET_SUFFIX
from shardtool.publish.copy_indexes import copy_folder_indexes, copy_indexes
from shardtool.publish.publisher import check_space
from shardtool.request.dataset_options import CopyOptions
from shardtool.request.observer import Notes, Observer
from shardtool.request.results import CopiedDataset, CopyResult
from shardtool.request.verb_call import accepts_options
from shardtool.shard_names import is_shard_name
from shardtool.storage import paths
from shardtool.storage.folders import open_folder
from shardtool.storage.remote import address, store_access
from shardtool.units import format_size
from shardtool.verbs.copy.destination import CopyTarget, open_target, shards_to_copy
from shardtool.verbs.copy.source import CopySource, ShardCopy, open_source
from shardtool.verbs.copy.transfer import Transfer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.values import DatasetLike


@accepts_options(CopyOptions)
def copy(dataset: DatasetLike, where: str | os.PathLike[str], options: CopyOptions, observer: Observer) -> CopyResult:
    """Copy datasets into a folder, each file checked on the way by the checksum that the dataset file has for it.

    Shards, sidecars, the list of what was left out, indexes of other tools that are right, and at last the dataset
    file; all keep their names. What is there with the right bytes is not copied again: so a run that was killed goes
    on, and of a dataset that was appended to only the new shards are copied.

    Args:
        dataset: A dataset with a dataset file, or several, as `verify` takes them.
        where: The folder; made where it is missing.
        options: See `CopyOptions`.
        observer: Gets progress, and notes for the user.

    Raises:
        InvalidRequest: There is no such dataset, or the request makes no sense.
        CorruptShard: A file is not what the dataset file says, or is missing; nothing of it is visible.
        OutputExists: Another dataset is there, or another run is writing it.
        OutputFailed: The copy cannot be written.
        StoreFailed: A store or a server fails time and again.
    """
    notes, begun = Notes(observer), time.monotonic()
    target = _target_folder(where)
    sources = [open_source(given) for given in expand_datasets(_with_endpoint(dataset, options.source_endpoint))]
    goals = _target_folders(sources, target)
    datasets = [_copy_dataset(source, place, options, notes) for source, place in zip(sources, goals, strict=True)]
    if not options.dry_run:
        for place in dict.fromkeys(goals):
            here = [source for source, one in zip(sources, goals, strict=True) if one == place]
            copy_folder_indexes([source.file for source in here], here[0].folder, open_folder(place))
    return CopyResult(tuple(datasets), tuple(notes.said), time.monotonic() - begun, options.dry_run)


def _with_endpoint(given: DatasetLike, endpoint: str | None) -> DatasetLike:
    """Return what is given by the addresses by which a source's server is asked."""
    if isinstance(given, str | os.PathLike):
        return store_access.source_address_for(os.fspath(given), endpoint)
    return (
        [store_access.source_address_for(os.fspath(one), endpoint) for one in given]
        if isinstance(given, list | tuple)
        else given
    )


def _target_folder(given: object) -> str:
    """Return the folder that datasets are copied into; refuse what is none, as far as its name shows."""
    expected = "a folder, or a prefix of a store: the files keep their names"
    where = os.fspath(given) if isinstance(given, str | os.PathLike) else ""
    name = paths.base_name(where.rstrip("/"))
    if not where or address.is_web(where) or "\0" in where:
        raise errors.InvalidRequest(where or "the destination", "nowhere that can be written to", expected=expected)
    is_file = os.path.exists(where) and not os.path.isdir(where)
    is_named_so = is_shard_name(name) or name.endswith(DATASET_SUFFIX) or any(mark in name for mark in "{}<>*")
    if is_file or (is_named_so and not os.path.isdir(where)):
        raise errors.InvalidRequest(where, "a file, or a pattern of files", expected=expected)
    return where


def _target_folders(sources: Sequence[CopySource], where: str) -> list[str]:
    """Return the folder for each dataset: of datasets in several folders, one of the same name below.

    Raises:
        InvalidRequest: Two would have one place, or one would be copied onto itself.
    """
    in_one = len({source.folder for source in sources}) == 1
    goals = [where if in_one else paths.join(where, paths.base_name(source.folder)) for source in sources]
    names = Counter(
        (place, name)
        for source, place in zip(sources, goals, strict=True)
        for name in (source.name, *(pair.sidecar.name for pair in source.pairs))
    )
    if twice := sorted({name for (_, name), count in names.items() if count > 1}):
        found = f"several datasets have files of one name: {errors.format_list([*map(errors.printable, twice)], 3)}"
        raise errors.InvalidRequest(where, found, expected="one folder for each", remedy="Copy them one by one.")
    for source, place in zip(sources, goals, strict=True):
        if paths.is_same_location(source.folder, place):
            raise errors.InvalidRequest(place, "the folder that the dataset lies in", expected="another one")
    return goals


def _copy_dataset(source: CopySource, where: str, options: CopyOptions, notes: Notes) -> CopiedDataset:
    """Copy a dataset into a folder, or say what that would do.

    Raises:
        CorruptShard: A file of the source is not what its dataset file says; nothing of it is visible.
        OutputExists: Another dataset is there, or another run is writing it; nothing was touched.
        OutputFailed: The folder cannot be written to.
        StoreFailed: A store or a server fails time and again.
    """
    goal, indexes = open_target(source, where), 0
    if options.dry_run:
        todo = shards_to_copy(goal, options, notes)
    else:
        goal.folder.ready()
        goal.below.ready()
        with goal.folder.lock(source.name.removesuffix(DATASET_SUFFIX)):
            goal = open_target(source, where)
            _remove_leftovers(goal)
            try:
                todo = shards_to_copy(goal, options, notes)
                _check_space(goal, todo)
                Transfer(goal, todo, options, notes).run()
                indexes = copy_indexes(source.path, source.file, goal.folder, notes)
            finally:
                _remove_leftovers(goal)
    shards = source.file.shards
    return CopiedDataset(
        source=errors.redact_secrets(errors.printable(source.path)),
        dataset_file=errors.printable(goal.dataset_file),
        shards=len(shards),
        copied=len(todo),
        kept=len(shards) - len(todo),
        removed=len(goal.removed()[1]),
        samples=sum(one.samples for one in shards),
        size=sum(one.size for one in shards),
        copied_size=sum(one.size for one in todo),
        indexes=indexes,
    )


def _remove_leftovers(goal: CopyTarget) -> None:
    """Remove what this or a killed run has left under temporary names. Call it under the lock."""
    for folder, names in zip((goal.folder, goal.below), goal.source.names, strict=True):
        folder.discard_staged(sorted({*names}.intersection(folder.staged_names())))


def _check_space(goal: CopyTarget, todo: Sequence[ShardCopy]) -> None:
    largest = goal.below.largest
    if largest is not None and (too_large := [one.shard for one in todo if one.shard.size > largest]):
        found, expected = format_size(too_large[0].size), f"{format_size(largest)} at most, as stores take at once"
        raise errors.InvalidRequest(too_large[0].path, found, expected=expected, remedy="`reshard` makes smaller ones.")
    check_space(goal.folder, sum(one.size for one in todo), "copied")
