"""`copy`: copy datasets unchanged to another folder or store.

A dataset is checked, compared with the destination, copied shard by shard, and published, the dataset file last.
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
from shardtool.request.dataset_options import CopyOptions
from shardtool.request.observer import Notes, Observer
from shardtool.request.results import CopiedDataset, CopyResult
from shardtool.request.verb_call import accepts_options
from shardtool.shard_names import is_shard_name
from shardtool.storage import paths, remote
from shardtool.storage.folders import check_space, open_folder
from shardtool.storage.remote import address
from shardtool.units import format_size
from shardtool.verbs.copy.destination import CopyTarget, open_target, shards_to_copy
from shardtool.verbs.copy.source import CopySource, ShardCopy, open_source
from shardtool.verbs.copy.transfer import Transfer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.values import DatasetLike


@accepts_options(CopyOptions)
def copy(dataset: DatasetLike, where: str | os.PathLike[str], options: CopyOptions, observer: Observer) -> CopyResult:
    """Copy datasets into a folder, and verify each file against the dataset file while copying.

    Shards, sidecars, the list of skipped samples, valid indexes of other tools and the dataset file keep their names.
    Files that already exist with the right bytes are not copied, so the same command continues an interrupted copy, or
    copies only the new shards after an append.

    Args:
        dataset: One or several datasets with a dataset file, as for `verify`.
        where: The destination folder; created if missing.
        options: See `CopyOptions`.
        observer: Receives progress and notes.

    Raises:
        InvalidRequest: The dataset does not exist, or the request is invalid.
        CorruptShard: A file is missing or differs from the dataset file; the copy of this file is not visible.
        OutputExists: The destination contains another dataset, or another run is writing there.
        OutputFailed: The copy cannot be written.
        StoreFailed: A store or server keeps failing.
    """
    notes, started = Notes(observer), time.monotonic()
    target = _target_folder(where)
    sources = [open_source(given) for given in expand_datasets(_with_endpoint(dataset, options.source_endpoint))]
    folders = _target_folders(sources, target)
    datasets = [_copy_dataset(source, folder, options, notes) for source, folder in zip(sources, folders, strict=True)]
    if not options.dry_run:
        for folder in dict.fromkeys(folders):
            sources_here = [
                source for source, other_folder in zip(sources, folders, strict=True) if other_folder == folder
            ]
            copy_folder_indexes([source.file for source in sources_here], sources_here[0].folder, open_folder(folder))
    return CopyResult(tuple(datasets), tuple(notes.said), time.monotonic() - started, options.dry_run)


def _with_endpoint(given: DatasetLike, endpoint: str | None) -> DatasetLike:
    """Return the source with addresses that use the source's endpoint."""
    if not endpoint and not any(name.startswith(address.SOURCE_PREFIX) for name in os.environ):
        return given
    if isinstance(given, str | os.PathLike):
        return remote.store_access.source_address_for(os.fspath(given), endpoint)
    return (
        [remote.store_access.source_address_for(os.fspath(item), endpoint) for item in given]
        if isinstance(given, list | tuple)
        else given
    )


def _target_folder(given: object) -> str:
    """Return the destination folder; raise `InvalidRequest` if it is a file or looks like one."""
    expected = "a folder, or a prefix of a store: the files keep their names"
    where = os.fspath(given) if isinstance(given, str | os.PathLike) else ""
    name = paths.base_name(where.rstrip("/"))
    if not where or address.is_web(where) or "\0" in where:
        raise errors.InvalidRequest(where or "the destination", "not a writable location", expected=expected)
    is_file = os.path.exists(where) and not os.path.isdir(where)
    is_file_name = is_shard_name(name) or name.endswith(DATASET_SUFFIX) or any(mark in name for mark in "{}<>*")
    if is_file or (is_file_name and not os.path.isdir(where)):
        raise errors.InvalidRequest(where, "a file, or a pattern of files", expected=expected)
    return where


def _target_folders(sources: Sequence[CopySource], where: str) -> list[str]:
    """Return the destination folder for each dataset: a subfolder each if the datasets are in several folders."""
    is_one_folder = len({source.folder for source in sources}) == 1
    folders = [where if is_one_folder else paths.join(where, paths.base_name(source.folder)) for source in sources]
    names = Counter(
        (folder, name)
        for source, folder in zip(sources, folders, strict=True)
        for name in (source.name, *(pair.sidecar.name for pair in source.pairs))
    )
    if duplicates := sorted({name for (_, name), count in names.items() if count > 1}):
        names_text = errors.format_list([*map(errors.printable, duplicates)], 3)
        found = f"several datasets have files with the same name: {names_text}"
        raise errors.InvalidRequest(where, found, expected="one folder for each", remedy="Copy them one by one.")
    for source, folder in zip(sources, folders, strict=True):
        if paths.is_same_location(source.folder, folder):
            raise errors.InvalidRequest(folder, "the folder of the dataset itself", expected="another folder")
    return folders


def _copy_dataset(source: CopySource, where: str, options: CopyOptions, notes: Notes) -> CopiedDataset:
    target, indexes = open_target(source, where), 0
    if options.dry_run:
        pending = shards_to_copy(target, options, notes)
    else:
        target.folder.create()
        target.below.create()
        with target.folder.lock(source.name.removesuffix(DATASET_SUFFIX)):
            target = open_target(source, where)
            _remove_leftovers(target)
            try:
                pending = shards_to_copy(target, options, notes)
                _check_space(target, pending)
                Transfer(target, pending, options, notes).run()
                indexes = copy_indexes(source.path, source.file, target.folder, notes)
            finally:
                _remove_leftovers(target)
    shards = source.file.shards
    return CopiedDataset(
        source=errors.redact_secrets(errors.printable(source.path)),
        dataset_file=errors.printable(target.dataset_file),
        shards=len(shards),
        copied=len(pending),
        kept=len(shards) - len(pending),
        removed=len(target.removed()[1]),
        samples=sum(shard.samples for shard in shards),
        size=sum(shard.size for shard in shards),
        copied_size=sum(shard.size for shard in pending),
        indexes=indexes,
    )


def _remove_leftovers(target: CopyTarget) -> None:
    """Delete temporary files of this or an interrupted run. Call it under the lock."""
    for folder, names in zip((target.folder, target.below), target.source.names, strict=True):
        folder.discard_staged(sorted({*names}.intersection(folder.staged_names())))


def _check_space(target: CopyTarget, pending: Sequence[ShardCopy]) -> None:
    largest = target.below.largest
    if largest is not None and (too_large := [shard.shard for shard in pending if shard.shard.size > largest]):
        found, expected = format_size(too_large[0].size), f"at most {format_size(largest)}, the limit of the store"
        raise errors.InvalidRequest(
            too_large[0].path, found, expected=expected, remedy="`reshard` writes smaller shards."
        )
    check_space(target.folder, sum(shard.size for shard in pending), "copied")
