"""Copy a dataset under its lock, and publish the files: shards first, the dataset file last."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from shardtool import errors
from shardtool.dataset.expand import recorded_range
from shardtool.pattern import ShardPattern, parse_pattern
from shardtool.publish.stale_indexes import StaleIndexes
from shardtool.storage import copying, folders
from shardtool.storage.remote import store_copy
from shardtool.verbs.copy.source import CopySource, ShardCopy, read_dataset_bytes
from shardtool.verbs.copy.threads import ByteMeter, run_in_threads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.request.dataset_options import CopyOptions
    from shardtool.request.observer import Notes
    from shardtool.storage.copying import OriginalFile
    from shardtool.storage.staging import DurableFile
    from shardtool.verbs.copy.destination import CopyTarget

    Staged = tuple[list[DurableFile], list[DurableFile]]  # of a shard, and of its sidecar


class Transfer:
    """One copy, under its lock."""

    def __init__(self, goal: CopyTarget, todo: list[ShardCopy], options: CopyOptions, notes: Notes) -> None:
        self.goal, self.todo, self._notes = goal, todo, notes
        self._options, self._refusal = options, ""  # why a store makes no copies itself
        self._grows, self._pattern = goal.has_grown, _shard_pattern(goal.source)
        there = () if self._pattern is None else goal.folder.names()
        self._beside = StaleIndexes(goal.folder, self._pattern, there, appends=self._grows)

    def run(self) -> None:
        """Copy all shards that are to be copied, and publish."""
        observer, goal = self._notes.observer, self.goal
        waiting: list[Staged] = []
        observer.start(sum(one.samples for one in self.todo), sum(one.size for one in self.todo), len(self.todo))
        if not self._grows and not goal.folder.hides:
            self._withdraw()
        for state, staged in run_in_threads(self._staged, self.todo, self._options, observer):
            if staged[0] and self._pattern is not None:
                self._beside.compare(state.shard.name, partial(read_dataset_bytes, state.sidecar.path), written=True)
            if state.wrong and goal.folder.hides and not self._grows:
                waiting.append(staged)
            else:
                self._publish([staged])
            observer.advance(state.samples, 0, 1)
            observer.shard(state.shard.name, "copied", state.samples, state.size)
        if self._refusal:
            how = "the bytes came through this machine"
            self._notes.add_new(f"the store makes no copies itself ({self._refusal}): {how}")
        self._finish(waiting)

    def _withdraw(self) -> None:
        """Where a shard is seen at once, have nothing lead to those that are replaced or removed."""
        self._notes.add("the old dataset file is removed first: in a store, shards are replaced one by one")
        self.goal.folder.remove([self.goal.source.name])
        for state in self.todo:
            if state.wrong:
                self._beside.drop(state.shard.name)
        self._remove_old()

    def _remove_old(self) -> None:
        """Remove what only the old dataset file lists, and what leads to it."""
        self._beside.keep_only([one.name for one in self.goal.source.file.shards])
        self._beside.remove()
        gone, gone_shards = self.goal.removed()
        self.goal.folder.remove(gone)
        self.goal.old_below.remove(gone_shards)

    def _staged(self, state: ShardCopy, meter: ByteMeter) -> Staged:
        """Copy a shard and its sidecar, under temporary names; what is right already stays."""
        found: Staged = ([], [])
        goals = self.goal.below, self.goal.folder
        for staged, folder, (original, is_right) in zip(found, goals, state.parts, strict=True):
            if not is_right:
                inside = is_right is None or not self._grows  # else what is there may be right, and the source wrong
                try:
                    made = self._made_inside(folder, original, meter) if inside else None
                    staged.append(made or copying.copy_verified(folder, original, meter.took, keep_mtime=True))
                except (OSError, errors.CorruptShard) as error:
                    errors.raise_if_machine_error(error, original.path)
                    raise self._source_error(original, error) from None
        return found

    def _made_inside(
        self, folder: folders.OutputFolder, original: OriginalFile, meter: ByteMeter
    ) -> DurableFile | None:
        """Return the copy that a store has made of its own file; None: it is to be read and written."""
        if not self._refusal:
            try:
                return copying.copy_inside_store(folder, original, meter.took)
            except store_copy.NotCopied as error:
                self._refusal = self._refusal or str(error)
        return None

    def _source_error(self, original: OriginalFile, error: OSError | errors.CorruptShard) -> errors.CorruptShard:
        """Return what is said of a file of the source that is not what the dataset file says, or cannot be read."""
        cure = "`shardtool verify` shows what is damaged at the source."
        if self.goal.source.has_changed():
            cure = "The source was changed while it was copied: run the same command again."
        if isinstance(error, OSError):
            return errors.CorruptShard(original.path, f"cannot be read: {errors.os_error_text(error)}", remedy=cure)
        expected = f"{error.expected}, as the dataset file says"
        return errors.CorruptShard(original.path, error.problem, expected=expected, remedy=cure)

    def _publish(self, staged: Sequence[Staged]) -> None:
        """Give shards, then their sidecars, their names."""
        self._beside.remove()
        for folder, part in ((self.goal.below, 0), (self.goal.folder, 1)):
            if files := [file for one in staged for file in one[part]]:
                folder.publish(*files)

    def _finish(self, waiting: Sequence[Staged]) -> None:
        """Publish what waits, remove what only the old dataset file lists, and publish the new one."""
        goal, source = self.goal, self.goal.source
        first: list[DurableFile] = []
        fact = goal.facts[0].get(source.file.skipped_file)
        there = fact is not None and fact.size == len(source.skipped)
        if source.skipped and not (there and goal.folder.read(source.file.skipped_file) == source.skipped):
            first.append(goal.folder.stage_bytes(source.file.skipped_file, source.skipped))
        if goal.data == source.data and not first:
            return
        last = goal.folder.stage_bytes(source.name, source.data)
        if not self._grows and goal.folder.hides:
            goal.folder.remove([source.name])
            self._remove_old()
        self._publish(waiting)
        again = "Run the same command again."
        folders.check_published(goal.below, {one.shard.name: one.shard.size for one in source.pairs}, again)
        folders.check_published(goal.folder, {one.sidecar.name: one.sidecar.size for one in source.pairs}, again)
        goal.folder.publish(*first, last)


def _shard_pattern(source: CopySource) -> ShardPattern | None:
    """Return the names of shards, where they lie beside the dataset file and are such as a pattern can have."""
    if source.file.shards_folder:
        return None
    if (pattern := recorded_range(source.file)) is not None:
        return pattern
    with suppress(errors.InvalidRequest):
        return parse_pattern([one.shard.name for one in source.pairs])
    return None
