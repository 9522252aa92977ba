"""Copy a dataset under its lock, and publish the files: shards first, the dataset file last."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from shardtool import errors
from shardtool.dataset.expand import recorded_range
from shardtool.pattern import ShardPattern, parse_pattern
from shardtool.publish.publication import Publication
from shardtool.publish.stale_indexes import StaleIndexes
from shardtool.storage import copying, folders, remote
from shardtool.verbs.copy.source import CopySource, ShardCopy, read_dataset_bytes
from shardtool.verbs.copy.threads import ByteMeter, run_in_threads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardtool.publish.publication import OldDataset
    from shardtool.request.dataset_options import CopyOptions
    from shardtool.request.observer import Notes
    from shardtool.storage.copying import OriginalFile
    from shardtool.storage.staging import DurableFile
    from shardtool.verbs.copy.destination import CopyTarget

    StagedPair = tuple[DurableFile | None, DurableFile | None]  # a shard and its sidecar; None: it is right


class Transfer:
    """The copy of one dataset, under its lock."""

    def __init__(self, target: CopyTarget, pending: list[ShardCopy], options: CopyOptions, notes: Notes) -> None:
        self.target, self.pending, self._notes = target, pending, notes
        self._options, self._refusal = options, ""  # why the store refuses server-side copies
        self._grows, pattern = target.has_grown, _shard_pattern(target.source)
        names = () if pattern is None else target.folder.names()
        indexes = StaleIndexes(target.folder, pattern, names, appends=self._grows)
        old: OldDataset = "keep" if self._grows else "replace"
        self._publication = Publication(target.folder, target.source.name, old, target.facts[0], indexes, target.below)
        self._publication.old_list = target.source.old_list

    def run(self) -> None:
        """Copy the pending shards, and publish the dataset."""
        observer, target = self._notes.observer, self.target
        observer.start(
            sum(shard.samples for shard in self.pending), sum(shard.size for shard in self.pending), len(self.pending)
        )
        if not self._grows and not target.folder.has_staging:
            self._notes.add("the old dataset file is removed first: in a store, shards are replaced one by one")
            self._publication.withdraw()
        for state, (shard, sidecar) in run_in_threads(self._stage_pair, self._prepare(), self._options, observer):
            read_sidecar = partial(read_dataset_bytes, state.sidecar.path)
            self._publication.add_staged(state.shard.name, shard, sidecar, read_sidecar, replaces=bool(state.wrong))
            observer.advance(state.samples, 0, 1)
            observer.shard(state.shard.name, "copied", state.samples, state.size)
        if self._refusal:
            how = "the bytes were copied through this machine"
            self._notes.add_new(f"the store refused server-side copies ({self._refusal}): {how}")
        self._finish()

    def _prepare(self) -> Iterator[ShardCopy]:
        for state in self.pending:
            if state.wrong and not self._grows:
                self._publication.prepare_shard(state.shard.name)
            yield state

    def _stage_pair(self, state: ShardCopy, meter: ByteMeter) -> StagedPair:
        """Copy a shard and its sidecar under temporary names, unless they are already right."""
        shard, sidecar = state.parts
        return self._stage(self.target.below, shard, meter), self._stage(self.target.folder, sidecar, meter)

    def _stage(
        self, folder: folders.OutputFolder, part: tuple[OriginalFile, bool | None], meter: ByteMeter
    ) -> DurableFile | None:
        original, is_right = part
        if is_right:
            return None
        # Otherwise, the existing file may be right and the source wrong.
        use_server_copy = is_right is None or not self._grows
        try:
            copied = self._copy_inside_store(folder, original, meter) if use_server_copy else None
            return copied or copying.copy_verified(folder, original, meter.add, keep_mtime=True)
        except (OSError, errors.CorruptShard) as error:
            errors.raise_if_machine_error(error, original.path)
            raise self._source_error(original, error) from None

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

    def _finish(self) -> None:
        """Delete files that only the old dataset file lists, and publish the new one."""
        target, source, remedy = self.target, self.target.source, "Run the same command again."
        folders.check_published(target.below, {pair.shard.name: pair.shard.size for pair in source.pairs}, remedy)
        folders.check_published(target.folder, {pair.sidecar.name: pair.sidecar.size for pair in source.pairs}, remedy)
        stale, stale_shards = ([], []) if self._grows else target.removed()
        self._publication.finish(
            source.data,
            None if self._grows else [entry.name for entry in source.file.shards],
            before={source.file.skipped_file: source.skipped} if source.skipped else {},
            stale=stale,
            stale_shards=(target.old_below, stale_shards),
            leftovers=[source.old_list] if source.old_list in target.facts[0] or not self._grows else [],
        )


def _shard_pattern(source: CopySource) -> ShardPattern | None:
    """Return the pattern of the shards if they are in the dataset file's folder and a pattern can describe them."""
    if source.file.shards_folder:
        return None
    if (pattern := recorded_range(source.file)) is not None:
        return pattern
    with suppress(errors.InvalidRequest):
        return parse_pattern([pair.shard.name for pair in source.pairs])
    return None
