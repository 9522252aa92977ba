"""`copy`: copy datasets unchanged to another folder or store."""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from shardtool import errors
from shardtool.dataset.expand import expand_datasets, recorded_range
from shardtool.pattern import DATASET_SUFFIX, ShardPattern, is_shard_name, parse_pattern
from shardtool.publish.foreign_index_files import StaleIndexes, copy_folder_indexes, copy_indexes
from shardtool.publish.publication import OldDataset, Publication
from shardtool.request.dataset_options import CopyOptions
from shardtool.request.observer import Notes, Observer
from shardtool.request.results import CopiedDataset, CopyResult
from shardtool.request.verb_call import accepts_options
from shardtool.storage import copying, folders, paths, remote
from shardtool.storage.folders import check_space, open_folder
from shardtool.storage.remote import address
from shardtool.units import format_size
from shardtool.verbs.copy.destination import (
    CopySource,
    CopyTarget,
    ShardCopy,
    open_source,
    open_target,
    read_dataset_bytes,
    shards_to_copy,
)
from shardtool.verbs.copy.threads import ByteMeter, run_in_threads

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.storage.copying import OriginalFile
    from shardtool.storage.staging import DurableFile
    from shardtool.values import DatasetLike

    StagedPair = tuple[DurableFile | None, DurableFile | None]


@accepts_options(CopyOptions)
def copy(dataset: DatasetLike, where: str | os.PathLike[str], options: CopyOptions, observer: Observer) -> CopyResult:
    """Copy datasets into a folder, and verify each file by the checksum in the dataset file.

    Shards, sidecars, the list of skipped samples, valid indexes of other tools, and the dataset file are copied under
    the same names. Identical existing files are not copied again, so the same call continues an interrupted copy.

    Args:
        dataset: Datasets with a dataset file, in any form that `verify` accepts.
        where: The destination folder, created if missing.

    Raises:
        InvalidRequest: The dataset does not exist, or the request is invalid.
        CorruptShard: A file is missing, or its size or checksum is not as recorded. This file was not copied.
        OutputExists: The destination contains another dataset, or another run is writing there.
        OutputFailed: A file cannot be written.
        StoreFailed: A store or server keeps failing.
    """
    notes, started = Notes(observer), time.monotonic()
    target = _target_folder(where)
    sources = [open_source(given) for given in expand_datasets(_with_endpoint(dataset, options.source_endpoint))]
    folders = _target_folders(sources, target)
    datasets = [_copy_dataset(source, folder, options, notes) for source, folder in zip(sources, folders, strict=True)]
    if not options.dry_run:
        for folder in dict.fromkeys(folders):
            copied = [source for source, other in zip(sources, folders, strict=True) if other == folder]
            copy_folder_indexes([source.file for source in copied], copied[0].folder, open_folder(folder))
    return CopyResult(tuple(datasets), tuple(notes.texts), time.monotonic() - started, options.dry_run)


def _with_endpoint(given: DatasetLike, endpoint: str | None) -> DatasetLike:
    if not endpoint and not any(name.startswith(address.SOURCE_PREFIX) for name in os.environ):
        return given
    if isinstance(given, str | os.PathLike):
        return remote.store_access.source_address_for(os.fspath(given), endpoint)
    if isinstance(given, list | tuple):
        return [remote.store_access.source_address_for(os.fspath(item), endpoint) for item in given]
    return given


def _target_folder(given: object) -> str:
    expected = "a folder or a prefix of a store, because files keep their names"
    where = os.fspath(given) if isinstance(given, str | os.PathLike) else ""
    name = paths.base_name(where.rstrip("/"))
    if not where or address.is_web(where) or "\0" in where:
        raise errors.InvalidRequest(where or "the destination", "not a writable location", expected=expected)
    is_file = os.path.exists(where) and not os.path.isdir(where)
    is_file_name = is_shard_name(name) or name.endswith(DATASET_SUFFIX) or any(mark in name for mark in "{}<>*")
    if is_file or (is_file_name and not os.path.isdir(where)):
        raise errors.InvalidRequest(where, "a file name or a pattern", expected=expected)
    return where


def _target_folders(sources: Sequence[CopySource], where: str) -> list[str]:
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
        target.shard_folder.create()
        with target.folder.lock(source.name.removesuffix(DATASET_SUFFIX)):
            target = open_target(source, where)
            _remove_leftovers(target)
            try:
                pending = shards_to_copy(target, options, notes)
                _check_space(target, pending)
                _Transfer(target, pending, options, notes).run()
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
    for folder, names in zip((target.folder, target.shard_folder), target.source.names, strict=True):
        folder.discard_staged(sorted({*names}.intersection(folder.staged_names())))


def _check_space(target: CopyTarget, pending: Sequence[ShardCopy]) -> None:
    limit = target.shard_folder.max_file_bytes
    if limit is not None and (too_large := [pair.shard for pair in pending if pair.shard.size > limit]):
        found, expected = format_size(too_large[0].size), f"at most {format_size(limit)}, the limit of the store"
        remedy = "`reshard` writes smaller shards."
        raise errors.InvalidRequest(too_large[0].path, found, expected=expected, remedy=remedy)
    check_space(target.folder, sum(shard.size for shard in pending), "copied")


class _Transfer:
    def __init__(self, target: CopyTarget, pending: list[ShardCopy], options: CopyOptions, notes: Notes) -> None:
        self.target, self.pending, self._notes = target, pending, notes
        self._options = options
        self._refusal = ""  # why the store refuses server-side copies
        self._only_adds = target.only_adds_shards
        pattern = _shard_pattern(target.source)
        names = () if pattern is None else target.folder.names()
        indexes = StaleIndexes(target.folder, pattern, names, appends=self._only_adds)
        old: OldDataset = "keep" if self._only_adds else "replace"
        existing, shard_folder = target.existing, target.shard_folder
        self._publication = Publication(target.folder, target.source.name, old, existing, indexes, shard_folder)
        self._publication.old_list = target.source.old_list

    def run(self) -> None:
        observer, target, pending = self._notes.observer, self.target, self.pending
        observer.start(sum(shard.samples for shard in pending), sum(shard.size for shard in pending), len(pending))
        if not self._only_adds and not target.folder.has_staging:
            self._notes.add("the old dataset file is removed first: in a store, shards are replaced one by one")
            self._publication.withdraw()
        for state, (shard, sidecar) in run_in_threads(self._stage_pair, self._prepare(), self._options, observer):
            read_sidecar = partial(read_dataset_bytes, state.sidecar.path)
            self._publication.add_staged(state.shard.name, shard, sidecar, read_sidecar, replaces=bool(state.differing))
            observer.advance(state.samples, 0, 1)
            observer.shard(state.shard.name, "copied", state.samples, state.size)
        if self._refusal:
            how = "the bytes were copied through this machine"
            self._notes.add_new(f"the store refused server-side copies ({self._refusal}): {how}")
        self._finish()

    def _prepare(self) -> Iterator[ShardCopy]:
        for state in self.pending:
            if state.differing and not self._only_adds:
                self._publication.prepare_shard(state.shard.name)
            yield state

    def _stage_pair(self, state: ShardCopy, meter: ByteMeter) -> StagedPair:
        shard, sidecar = state.parts
        return self._stage(self.target.shard_folder, shard, meter), self._stage(self.target.folder, sidecar, meter)

    def _stage(
        self, folder: folders.OutputFolder, part: tuple[OriginalFile, bool | None], meter: ByteMeter
    ) -> DurableFile | None:
        original, matches = part
        if matches:
            return None
        # A server-side copy replaces the existing file before the new bytes are verified, so a bad copy could damage a
        # valid dataset.
        use_server_copy = matches is None or not self._only_adds
        try:
            copied = self._copy_inside_store(folder, original, meter) if use_server_copy else None
            return copied or copying.copy_verified(folder, original, meter.add, keep_mtime=True)
        except (OSError, errors.CorruptShard) as error:
            errors.raise_if_machine_error(error, original.path)
            raise self._source_error(original, error) from None

    def _copy_inside_store(
        self, folder: folders.OutputFolder, original: OriginalFile, meter: ByteMeter
    ) -> DurableFile | None:
        if not self._refusal:
            try:
                return copying.copy_inside_store(folder, original, meter.add)
            except remote.store_copy.NotCopied as error:
                self._refusal = self._refusal or str(error)
        return None

    def _source_error(self, original: OriginalFile, error: OSError | errors.CorruptShard) -> errors.CorruptShard:
        remedy = "`shardtool verify` shows what is damaged at the source."
        if self.target.source.has_changed():
            remedy = "The source was changed while it was copied: run the same command again."
        if isinstance(error, OSError):
            return errors.CorruptShard(original.path, f"cannot be read: {errors.os_error_text(error)}", remedy=remedy)
        expected = f"{error.expected}, as in the dataset file"
        return errors.CorruptShard(original.path, error.problem, expected=expected, remedy=remedy)

    def _finish(self) -> None:
        target, source, remedy = self.target, self.target.source, "Run the same command again."
        shard_sizes = {pair.shard.name: pair.shard.size for pair in source.pairs}
        folders.check_published(target.shard_folder, shard_sizes, remedy)
        folders.check_published(target.folder, {pair.sidecar.name: pair.sidecar.size for pair in source.pairs}, remedy)
        removed, removed_shards = target.removed()
        self._publication.finish(
            source.data,
            None if self._only_adds else [entry.name for entry in source.file.shards],
            before={source.file.skipped_file: source.skipped} if source.skipped else {},
            stale=[] if self._only_adds else removed,
            stale_shards=(target.old_shard_folder, [] if self._only_adds else removed_shards),
            leftovers=[source.old_list] if source.old_list in target.existing or not self._only_adds else [],
        )


def _shard_pattern(source: CopySource) -> ShardPattern | None:
    if source.file.shards_folder:
        return None
    if (pattern := recorded_range(source.file)) is not None:
        return pattern
    with suppress(errors.InvalidRequest):
        return parse_pattern([pair.shard.name for pair in source.pairs])
    return None
