"""Copy a dataset under its lock, and publish the files: shards first, the dataset file last."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from shardtool import errors
from shardtool.dataset.expand import recorded_range
from shardtool.pattern import ShardPattern, parse_pattern
from shardtool.publish.stale_indexes import StaleIndexes
from shardtool.storage import copying, folders, remote
from shardtool.verbs.copy.source import CopySource, ShardCopy, read_dataset_bytes
from shardtool.verbs.copy.threads import ByteMeter, run_in_threads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.request.dataset_options import CopyOptions
    from shardtool.request.observer import Notes
    from shardtool.storage.copying import OriginalFile
    from shardtool.storage.staging import DurableFile
    from shardtool.verbs.copy.destination import CopyTarget

    StagedPair = tuple[list[DurableFile], list[DurableFile]]  # a shard and its sidecar; a list may be empty


class Transfer:
    """The copy of one dataset, under its lock."""

    def __init__(self, target: CopyTarget, pending: list[ShardCopy], options: CopyOptions, notes: Notes) -> None:
        self.target, self.pending, self._notes = target, pending, notes
        self._options, self._refusal = options, ""  # why the store refuses server-side copies
        self._grows, self._pattern = target.has_grown, _shard_pattern(target.source)
        names = () if self._pattern is None else target.folder.names()
        self._stale_indexes = StaleIndexes(target.folder, self._pattern, names, appends=self._grows)

    def run(self) -> None:
        """Copy the pending shards, and publish the dataset."""
        observer, target = self._notes.observer, self.target
        waiting: list[StagedPair] = []
        observer.start(
            sum(shard.samples for shard in self.pending), sum(shard.size for shard in self.pending), len(self.pending)
        )
        if not self._grows and not target.folder.hides:
            self._withdraw()
        for state, staged in run_in_threads(self._stage_pair, self.pending, self._options, observer):
            if staged[0] and self._pattern is not None:
                self._stale_indexes.compare(
                    state.shard.name, partial(read_dataset_bytes, state.sidecar.path), written=True
                )
            if state.wrong and target.folder.hides and not self._grows:
                waiting.append(staged)
            else:
                self._publish([staged])
            observer.advance(state.samples, 0, 1)
            observer.shard(state.shard.name, "copied", state.samples, state.size)
        if self._refusal:
            how = "the bytes were copied through this machine"
            self._notes.add_new(f"the store refused server-side copies ({self._refusal}): {how}")
        self._finish(waiting)

    def _withdraw(self) -> None:
        """Remove the old dataset file first, because a store shows each replaced shard immediately."""
        self._notes.add("the old dataset file is removed first: in a store, shards are replaced one by one")
        self.target.folder.remove([self.target.source.name])
        for state in self.pending:
            if state.wrong:
                self._stale_indexes.drop(state.shard.name)
        self._remove_old()

    def _remove_old(self) -> None:
        """Delete files that only the old dataset file lists, and their indexes of other tools."""
        self._stale_indexes.keep_only([entry.name for entry in self.target.source.file.shards])
        self._stale_indexes.remove()
        names, shards = self.target.removed()
        self.target.folder.remove(names)
        self.target.old_below.remove(shards)

    def _stage_pair(self, state: ShardCopy, meter: ByteMeter) -> StagedPair:
        """Copy a shard and its sidecar under temporary names, unless they are already right."""
        staged_pair: StagedPair = ([], [])
        folders = self.target.below, self.target.folder
        for staged, folder, (original, is_right) in zip(staged_pair, folders, state.parts, strict=True):
            if not is_right:
                use_server_copy = (
                    is_right is None or not self._grows
                )  # otherwise, the existing file may be right and the source wrong
                try:
                    copied = self._copy_inside_store(folder, original, meter) if use_server_copy else None
                    staged.append(copied or copying.copy_verified(folder, original, meter.add, keep_mtime=True))
                except (OSError, errors.CorruptShard) as error:
                    errors.raise_if_machine_error(error, original.path)
                    raise self._source_error(original, error) from None
        return staged_pair

    def _copy_inside_store(
        self, folder: folders.OutputFolder, original: OriginalFile, meter: ByteMeter
    ) -> DurableFile | None:
        """Return a server-side copy; None: not possible, so the file must be read and written."""
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

    def _publish(self, staged: Sequence[StagedPair]) -> None:
        self._stale_indexes.remove()
        for folder, part in ((self.target.below, 0), (self.target.folder, 1)):
            if files := [file for pair in staged for file in pair[part]]:
                folder.publish(*files)

    def _finish(self, waiting: Sequence[StagedPair]) -> None:
        """Publish waiting shards, delete files that only the old dataset file lists, and publish the new one."""
        target, source = self.target, self.target.source
        first: list[DurableFile] = []
        fact = target.facts[0].get(source.file.skipped_file)
        exists = fact is not None and fact.size == len(source.skipped)
        if source.skipped and not (exists and target.folder.read(source.file.skipped_file) == source.skipped):
            first.append(target.folder.stage_bytes(source.file.skipped_file, source.skipped))
        if target.data == source.data and not first:
            return
        last = target.folder.stage_bytes(source.name, source.data)
        if not self._grows and target.folder.hides:
            target.folder.remove([source.name])
            self._remove_old()
        self._publish(waiting)
        remedy = "Run the same command again."
        folders.check_published(target.below, {pair.shard.name: pair.shard.size for pair in source.pairs}, remedy)
        folders.check_published(target.folder, {pair.sidecar.name: pair.sidecar.size for pair in source.pairs}, remedy)
        target.folder.publish(*first, last)


def _shard_pattern(source: CopySource) -> ShardPattern | None:
    """Return the pattern of the shards if they are in the dataset file's folder and a pattern can describe them."""
    if source.file.shards_folder:
        return None
    if (pattern := recorded_range(source.file)) is not None:
        return pattern
    with suppress(errors.InvalidRequest):
        return parse_pattern([pair.shard.name for pair in source.pairs])
    return None
