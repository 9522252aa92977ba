"""Publish staged files: shard, then sidecar, and the dataset file last.

Each dataset of a run has one `Publisher`, in the parent process. Only the parent gives final names, so a worker
that
outlives its run cannot publish. Every intermediate state is safe:

- The dataset file names only files that exist and are complete. It is removed before one of its shards is replaced
  or removed.
- `--overwrite` stages all files next to the old dataset, and replaces it only when all are staged.
- In a store, a shard is visible as soon as it is written, so `--overwrite` removes the old dataset file first
  (`before`).
- `--append` changes no shard that the old dataset file names, so that file stays until the new one replaces it.
- Another tool's index that no longer fits is removed before its shard changes (`StaleIndexes`).
"""

from __future__ import annotations

import os
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING

from shardtool.errors import CorruptShard, OutputFailed
from shardtool.messages import option_text
from shardtool.names import to_local_name
from shardtool.pattern import sidecar_name
from shardtool.publish import part_records, skipped_list
from shardtool.publish.append_target import FinishedAppend, list_later_files
from shardtool.publish.stale_indexes import StaleIndexes
from shardtool.skipped import Skipped, sort_rows
from shardtool.storage.folders import OutputFolder, check_published
from shardtool.units import format_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardtool.dataset.dataset_file import (
        ShardEntry,
    )
    from shardtool.publish.destination import Destination
    from shardtool.publish.part_records import PartRecord
    from shardtool.storage.staging import DurableFile, StagedFile


_SPOOL_SUFFIX = ".spool"


_INDEX_SPACE_FACTOR = 1.01  # sidecars and the dataset file, as a share of the shards


class Publisher:
    """The output of one run.

    Args:
        destination: Where it goes, and what is there, found out under the lock.

    Attributes:
        beside: The index files of other tools, and which of them were removed.
    """

    def __init__(self, destination: Destination) -> None:
        self.destination, self.folder, self.pattern = destination, destination.folder, destination.pattern
        self._existing = dict(destination.existing)
        self._waiting: list[DurableFile] = []
        self._spool: StagedFile | None = None
        self.beside = StaleIndexes(self.folder, self.pattern, self.folder.names(), appends=destination.appends)

    def all_skipped(self, skipped: Sequence[Skipped]) -> list[Skipped]:
        """Return all that the dataset leaves out: what this run did, and what the dataset that is appended to did.

        Raises:
            CorruptShard: The list that is there is not that of this dataset.
        """
        old, where = self.destination.old, self.destination.skipped_file
        if old is None:
            removed = self.destination.removed() if self.destination.if_exists == "resume" else {}
            return sort_rows([*skipped, *removed.values()]) if removed else [*skipped]
        listed = self.destination.load_skipped()
        try:
            skipped_list.check_skipped_file(skipped_list.encode_skipped(listed), old, where)
        except CorruptShard:
            listed = skipped_list.unmerge_skipped(
                listed, skipped
            )  # an append may have been killed once its own list was there
            skipped_list.check_skipped_file(skipped_list.encode_skipped(listed), old, where)
        return skipped_list.merge_skipped(listed, skipped)

    def spool(self, size: int) -> StagedFile:
        """Return a temporary file that workers can read once payloads are written to it.

        Raises:
            OutputFailed: There is no space for `size` bytes, or the file system refuses.
        """
        if self.folder.hides:
            self.check_space([size])
        self._spool = self.folder.temporary.stage(_make_spool_name(self.destination))
        return self._spool

    def abandon(self) -> None:
        """Give up the temporary file; `clean` removes it."""
        if self._spool is not None:
            self._spool.abandon()
            self._spool = None

    def check_space(self, sizes: Sequence[int]) -> None:
        """Refuse to start what cannot end.

        Args:
            sizes: Bytes of the shards that are yet to be written.

        Raises:
            OutputFailed: The folder has less space than the shards take.
        """
        stays = self.destination.if_exists == "overwrite" and bool(self._existing)
        check_space(self.folder, sum(sizes), "written", old_stays=stays)

    def before(self, name: str) -> None:
        """Make ready for a shard that a worker writes: where it is seen at once, nothing may lead to it any more.

        Args:
            name: The shard's final name.

        Raises:
            OutputFailed: The old dataset file, or an index of another tool, cannot be removed.
        """
        if not self.folder.hides:
            self._withdraw_dataset_file()
            self.beside.drop(name)
            self.beside.remove()

    @property
    def _waits(self) -> bool:
        """Whether all is published at the end, in place of an old dataset that stays until then."""
        return self.destination.if_exists == "overwrite" and self.folder.hides

    def add(self, shard: DurableFile | None, sidecar: bytes, name: str) -> None:
        """Publish a shard and its sidecar, or keep them for the end of an `--overwrite`.

        Args:
            shard: The staged shard; None: the one that is there stays.
            sidecar: Its sidecar's bytes.
            name: The shard's final name.

        Raises:
            OutputFailed: The file system refuses.
        """
        staged = [] if shard is None else [shard]
        index = sidecar_name(name)
        if shard is not None or not self._has(index, sidecar):
            staged.append(self.folder.stage_bytes(index, sidecar))
        self.beside.compare(name, lambda: sidecar, written=shard is not None)
        if self._waits:
            self._waiting += staged
        elif staged:
            self._withdraw_dataset_file()
            self.beside.remove()
            self.folder.publish(*staged)

    def sidecar(self, shard: str) -> bytes:
        """Return the bytes of a sidecar that this run has added, or that was there.

        Raises:
            OSError: It cannot be read.
        """
        index = sidecar_name(shard)
        return self.folder.read_staged(index) if self._waits else self.folder.read(index)

    def renew(self, sidecars: Mapping[str, bytes]) -> None:
        """Replace the sidecars of shards of this run by others, now that more is known.

        Args:
            sidecars: The bytes of each, by its shard's name.

        Raises:
            OutputFailed: The file system refuses.
        """
        staged = [self.folder.stage_bytes(sidecar_name(shard), data) for shard, data in sidecars.items()]
        if staged and not self._waits:  # there, they wait under the same names
            self._withdraw_dataset_file()
            self.folder.publish(*staged)

    def check_there(self, shards: Sequence[ShardEntry]) -> None:
        """See that a store has what workers have given it: one listing before the dataset file names it all.

        Args:
            shards: What the dataset file is to say of each.

        Raises:
            OutputFailed: A shard or a sidecar is not there, or has another size.
        """
        sizes = {to_local_name(one.name): one.size for one in shards}
        sizes |= {to_local_name(one.sidecar): one.sidecar_size for one in shards}
        check_published(self.folder, sizes, f"Run the same command again with {option_text('if_exists', 'resume')}.")

    def finish(self, shards: Sequence[str], dataset_file: bytes, skipped: Sequence[Skipped]) -> None:
        """Publish what waits, remove what is stale, and publish the dataset file, last.

        Args:
            shards: The final names of all shards of this run.
            dataset_file: Its bytes.
            skipped: What was left out, in the order of its list: `all_skipped`.

        Raises:
            OutputFailed: The file system refuses.
        """
        wanted = {*shards, *map(sidecar_name, shards), self.pattern.dataset_file}
        rows = skipped_list.encode_skipped(skipped)
        if rows:
            wanted.add(self.pattern.skipped_file)
        stale, old = sorted(set(self._existing) - wanted), self.destination.old
        if old is not None:
            stale = list_later_files(self.pattern, self._existing, self.destination.first + len(shards))
        if rows and not self._has(self.pattern.skipped_file, rows):
            self._waiting.append(self.folder.stage_bytes(self.pattern.skipped_file, rows))
        self.beside.keep_only([*shards, *(() if old is None else (one.name for one in old.shards))])
        self.beside.remove()
        if not (self._waiting or stale) and self._has(self.pattern.dataset_file, dataset_file):
            part_records.remove_part_records(self.folder, self.pattern)
            return
        last = self.folder.stage_bytes(self.pattern.dataset_file, dataset_file)
        if self._waiting or stale:
            self._withdraw_dataset_file()
        if self._waiting:
            self.folder.publish(*self._waiting)
        self.folder.remove(stale)
        self.folder.publish(last)
        self._waiting = []
        part_records.remove_part_records(self.folder, self.pattern)

    def begin(self) -> None:
        """Remove the record that this part has left before: until it ends again, it has not ended.

        Raises:
            OutputFailed: The file system refuses.
        """
        part = self.destination.part
        if part is not None and (name := part_records.part_record_name(self.pattern, part)) in self._existing:
            self.folder.remove([name])

    def finish_part(self, record: PartRecord, *, stays: bool) -> None:
        """Publish the record of a part whose shards are all there.

        Args:
            record: The record.
            stays: Whether the dataset file that is there lists these shards; otherwise it is removed before.

        Raises:
            OutputFailed: The file system refuses.
        """
        staged = self.folder.stage_bytes(part_records.part_record_name(self.pattern, record.part), record.encode())
        if not stays:
            self._withdraw_dataset_file()
        self.folder.publish(staged)

    def take_back(self, shards: Sequence[str]) -> None:
        """Remove the shards of a run that nothing came of: they would be in the way of the next one."""
        if not isinstance(self.destination.append, FinishedAppend):
            self.folder.remove(sorted(name for shard in shards for name in (shard, sidecar_name(shard))))

    def _withdraw_dataset_file(self) -> None:
        """Remove the old dataset file before the first of its shards changes; an append changes none."""
        if not self.destination.appends and self._existing.pop(self.pattern.dataset_file, None) is not None:
            self.folder.remove([self.pattern.dataset_file])

    def _has(self, name: str, data: bytes) -> bool:
        """Tell whether a file is there with exactly these bytes."""
        fact = self._existing.get(name)
        if fact is None or fact.size != len(data):
            return False
        with suppress(OSError):
            return self.folder.read(name) == data
        return False


def check_space(folder: OutputFolder, size: int, done: str, *, old_stays: bool = False) -> None:
    """Refuse to start what cannot end: `size` bytes of shards are yet to be `done`.

    Raises:
        OutputFailed: The folder has less space than the shards take.
    """
    need, free = int(size * _INDEX_SPACE_FACTOR), folder.free_bytes()
    if free is not None and need > free:
        cure = ": the old dataset stays until the new one is complete." if old_stays else ", then run the same command."
        found = f"{format_size(free)} free, {format_size(need)} needed; nothing was {done}"
        raise OutputFailed(folder.path or ".", found, remedy=f"Make space{cure}")


def remove_staged(destination: Destination) -> None:
    """Remove what this or a killed run has left under temporary names. Call it under the lock."""
    folder = destination.folder
    folder.discard_staged([name for name in folder.staged_names() if destination.owns(name)])
    folder.temporary.discard_staged([_make_spool_name(destination)])


def _make_spool_name(destination: Destination) -> str:
    """Return the name of the temporary file: where those of several datasets lie side by side, one of its own."""
    folder, base = destination.folder, destination.pattern.base
    own = "" if folder.hides else "-" + blake2b(os.fsencode(folder.path), digest_size=6).hexdigest()
    return f"{base}{own}{_SPOOL_SUFFIX}"
