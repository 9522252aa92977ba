"""Publish staged files: shard, then sidecar, and the dataset file last.

Only the parent process uses final names, so a worker that outlives its run cannot publish. Every intermediate state is
safe:

- The dataset file names only complete files. It is deleted before one of its shards is replaced or deleted.
- `--overwrite` stages all files before it replaces the old dataset.
- In a store, a shard is visible as soon as it is written, so `--overwrite` deletes the old dataset file first
  (`prepare_shard`).
- `--append` changes no listed shard, so the old dataset file stays until the new one replaces it.
- Another tool's index that no longer fits is deleted before its shard changes (`StaleIndexes`).
"""

from __future__ import annotations

import os
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING

from shardtool.dataset import skipped_list
from shardtool.errors import CorruptShard, OutputFailed
from shardtool.messages import option_text
from shardtool.names import to_local_name
from shardtool.pattern import sidecar_name
from shardtool.publish import part_records
from shardtool.publish.append_target import FinishedAppend, list_later_files
from shardtool.publish.stale_indexes import StaleIndexes
from shardtool.skipped import Skipped, sort_rows
from shardtool.storage.folders import OutputFolder, check_published
from shardtool.units import format_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardtool.dataset.dataset_file import ShardEntry
    from shardtool.publish.destination import Destination
    from shardtool.publish.part_records import PartRecord
    from shardtool.storage.staging import DurableFile, StagedFile


_SPOOL_SUFFIX = ".spool"


_INDEX_SPACE_FACTOR = 1.01


class Publisher:
    """Publishes one dataset. `destination` was inspected under the lock."""

    def __init__(self, destination: Destination) -> None:
        self.destination, self.folder, self.pattern = destination, destination.folder, destination.pattern
        self._existing = dict(destination.existing)
        self._staged: list[DurableFile] = []
        self._spool: StagedFile | None = None
        self.stale_indexes = StaleIndexes(self.folder, self.pattern, self.folder.names(), appends=destination.appends)

    def merge_skipped_rows(self, skipped: Sequence[Skipped]) -> list[Skipped]:
        """Return the samples skipped by this run and by earlier appends."""
        old_dataset, where = self.destination.old, self.destination.skipped_file
        if old_dataset is None:
            removed = self.destination.load_removed() if self.destination.if_exists == "resume" else {}
            return sort_rows([*skipped, *removed.values()]) if removed else [*skipped]
        old_rows = self.destination.load_skipped()
        try:
            skipped_list.check_skipped_file(skipped_list.encode_skipped(old_rows), old_dataset, where)
        except CorruptShard:
            old_rows = skipped_list.unmerge_skipped(old_rows, skipped)  # the list of an interrupted append
            skipped_list.check_skipped_file(skipped_list.encode_skipped(old_rows), old_dataset, where)
        return skipped_list.merge_skipped(old_rows, skipped)

    def spool(self, size: int) -> StagedFile:
        """Return a temporary file for payloads."""
        if self.folder.hides:
            self.check_space([size])
        self._spool = self.folder.temporary.stage(_make_spool_name(self.destination))
        return self._spool

    def abandon(self) -> None:
        """Abandon the temporary file, which `remove_staged` deletes."""
        if self._spool is not None:
            self._spool.abandon()
            self._spool = None

    def check_space(self, sizes: Sequence[int]) -> None:
        """Check that there is space for shards with these sizes."""
        keeps_old = self.destination.if_exists == "overwrite" and bool(self._existing)
        check_space(self.folder, sum(sizes), "written", old_stays=keeps_old)

    def prepare_shard(self, name: str) -> None:
        """Delete files that refer to an old shard, before a worker replaces it in place."""
        if not self.folder.hides:
            self._withdraw_dataset_file()
            self.stale_indexes.drop(name)
            self.stale_indexes.remove()

    @property
    def _publishes_at_end(self) -> bool:
        """Whether the old dataset stays until the end."""
        return self.destination.if_exists == "overwrite" and self.folder.hides

    def add(self, shard: DurableFile | None, sidecar: bytes, name: str) -> None:
        """Publish a shard (None: it exists) and its sidecar; `--overwrite` keeps them staged."""
        staged = [] if shard is None else [shard]
        sidecar_file = sidecar_name(name)
        if shard is not None or not self._has_file(sidecar_file, sidecar):
            staged.append(self.folder.stage_bytes(sidecar_file, sidecar))
        self.stale_indexes.compare(name, lambda: sidecar, written=shard is not None)
        if self._publishes_at_end:
            self._staged += staged
        elif staged:
            self._withdraw_dataset_file()
            self.stale_indexes.remove()
            self.folder.publish(*staged)

    def sidecar(self, shard: str) -> bytes:
        """Return a shard's sidecar, staged or existing.

        Raises:
            OSError: It cannot be read.
        """
        sidecar_file = sidecar_name(shard)
        return self.folder.read_staged(sidecar_file) if self._publishes_at_end else self.folder.read(sidecar_file)

    def replace_sidecars(self, sidecars: Mapping[str, bytes]) -> None:
        """Replace sidecars, given by shard name."""
        staged = [self.folder.stage_bytes(sidecar_name(shard), data) for shard, data in sidecars.items()]
        if staged and not self._publishes_at_end:
            self._withdraw_dataset_file()
            self.folder.publish(*staged)

    def check_published_shards(self, shards: Sequence[ShardEntry]) -> None:
        """Check with one listing that a store has all shards and sidecars."""
        sizes = {to_local_name(shard.name): shard.size for shard in shards}
        sizes |= {to_local_name(shard.sidecar): shard.sidecar_size for shard in shards}
        check_published(self.folder, sizes, f"Run the same command again with {option_text('if_exists', 'resume')}.")

    def finish(self, shards: Sequence[str], dataset_file: bytes, skipped: Sequence[Skipped]) -> None:
        """Publish staged files, delete stale files, and publish the dataset file last."""
        kept_names = {*shards, *map(sidecar_name, shards), self.pattern.dataset_file}
        rows = skipped_list.encode_skipped(skipped)
        if rows:
            kept_names.add(self.pattern.skipped_file)
        stale, old = sorted(set(self._existing) - kept_names), self.destination.old
        if old is not None:
            stale = list_later_files(self.pattern, self._existing, self.destination.first + len(shards))
        if rows and not self._has_file(self.pattern.skipped_file, rows):
            self._staged.append(self.folder.stage_bytes(self.pattern.skipped_file, rows))
        self.stale_indexes.keep_only([*shards, *(() if old is None else (shard.name for shard in old.shards))])
        self.stale_indexes.remove()
        if not (self._staged or stale) and self._has_file(self.pattern.dataset_file, dataset_file):
            part_records.remove_part_records(self.folder, self.pattern)
            return
        staged_dataset_file = self.folder.stage_bytes(self.pattern.dataset_file, dataset_file)
        if self._staged or stale:
            self._withdraw_dataset_file()
        if self._staged:
            self.folder.publish(*self._staged)
        self.folder.remove(stale)
        self.folder.publish(staged_dataset_file)
        self._staged = []
        part_records.remove_part_records(self.folder, self.pattern)

    def start_part(self) -> None:
        """Delete the earlier record of this part."""
        part = self.destination.part
        if part is not None and (name := part_records.part_record_name(self.pattern, part)) in self._existing:
            self.folder.remove([name])

    def finish_part(self, record: PartRecord, *, keeps_dataset_file: bool) -> None:
        """Publish the record of a part; first delete a dataset file that does not list its shards."""
        staged = self.folder.stage_bytes(part_records.part_record_name(self.pattern, record.part), record.encode())
        if not keeps_dataset_file:
            self._withdraw_dataset_file()
        self.folder.publish(staged)

    def remove_shards(self, shards: Sequence[str]) -> None:
        """Delete the shards of a run without samples."""
        if not isinstance(self.destination.append, FinishedAppend):
            self.folder.remove(sorted(name for shard in shards for name in (shard, sidecar_name(shard))))

    def _withdraw_dataset_file(self) -> None:
        if not self.destination.appends and self._existing.pop(self.pattern.dataset_file, None) is not None:
            self.folder.remove([self.pattern.dataset_file])

    def _has_file(self, name: str, data: bytes) -> bool:
        file_info = self._existing.get(name)
        if file_info is None or file_info.size != len(data):
            return False
        with suppress(OSError):
            return self.folder.read(name) == data
        return False


def check_space(folder: OutputFolder, size: int, done: str, *, old_stays: bool = False) -> None:
    """Check that there is space for `size` bytes of shards and their indexes."""
    need, free = int(size * _INDEX_SPACE_FACTOR), folder.free_bytes()
    if free is not None and need > free:
        advice = (
            ": the old dataset is kept until the new one is complete."
            if old_stays
            else ", then run the same command again."
        )
        found = f"{format_size(free)} free, {format_size(need)} needed; nothing was {done}"
        raise OutputFailed(folder.path or ".", found, remedy=f"Free some space{advice}")


def remove_staged(destination: Destination) -> None:
    """Delete temporary files, under the lock."""
    folder = destination.folder
    folder.discard_staged([name for name in folder.staged_names() if destination.owns(name)])
    folder.temporary.discard_staged([_make_spool_name(destination)])


def _make_spool_name(destination: Destination) -> str:
    folder, base = destination.folder, destination.pattern.base
    suffix = "" if folder.hides else "-" + blake2b(os.fsencode(folder.path), digest_size=6).hexdigest()
    return f"{base}{suffix}{_SPOOL_SUFFIX}"
