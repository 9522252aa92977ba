"""Staged files become visible: shard, then sidecar, and after all of them the dataset file.

One `Publisher` for each dataset of a run, in the parent process, which alone gives final names: a worker that
outlived its time could never publish. It holds the order that makes every instant safe; what may be there
already is decided before (`look`):

- the dataset file names only files that are there and whole: whatever replaces or removes one of
  its shards removes the dataset file first;
- `--overwrite` stages everything beside the old dataset, and replaces it only when all is staged;
- in a store, where a shard is seen as soon as it is written, all that waits elsewhere is done before (`before`): so
  `--overwrite` takes the old dataset away first;
- `--append` touches no shard that the old dataset file names, so that file stays until another takes its place;
- an index file of another tool that would lead into other bytes is removed before its shard changes (`StaleIndexes`).
"""

from __future__ import annotations

import os
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING

from shardtool.errors import CorruptShard, OutputFailed
from shardtool.pattern import sidecar_name
from shardtool.publish.destination import EndedAppend, later_files
from shardtool.publish.foreign_indexes import StaleIndexes
from shardtool.publish.records import check_skipped_file, encode_skipped, merged, record_name, remove_records, unmerged
from shardtool.storage.folders import check_there
from shardtool.values import show_size, to_bytes
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardtool.dataset.dataset_file import ShardEntry
    from shardtool.publish.destination import Destination
    from shardtool.publish.records import PartRecord
    from shardtool.skipped import Skipped
    from shardtool.storage.staging import DurableFile, StagedFile

_SPOOL_SUFFIX = ".spool"
_SPACE_FOR_INDEXES = 1.01  # sidecars and the dataset file, as a share of the shards


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
        self.beside = StaleIndexes(self.folder, self.pattern, appends=destination.appends)
        self.beside.look(self.folder.names())

    def all_skipped(self, skipped: Sequence[Skipped]) -> list[Skipped]:
        """Return all that the dataset leaves out: what this run did, and what the dataset that is appended to did.

        Raises:
            CorruptShard: The list that is there is not that of this dataset.
        """
        old, where = self.destination.old, self.destination.skipped_file
        if old is None:
            return [*skipped]
        listed = self.destination.listed_skipped()
        try:
            check_skipped_file(encode_skipped(listed), old, where)
        except CorruptShard:
            listed = unmerged(listed, skipped)  # an append may have been killed once its own list was there
            check_skipped_file(encode_skipped(listed), old, where)
        return merged(listed, skipped)

    def spool(self, size: int) -> StagedFile:
        """Return a temporary file that workers can read once payloads are written to it.

        Raises:
            OutputFailed: There is no space for `size` bytes, or the file system refuses.
        """
        if self.folder.hides:
            self.check_space([size])
        self._spool = self.folder.temporary.stage(_spool_name(self.destination))
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
        need, free = int(sum(sizes) * _SPACE_FOR_INDEXES), self.folder.free_bytes()
        if free is not None and need > free:
            if self.destination.if_exists == "overwrite" and self._existing:
                remedy = "Make space: the old dataset stays until the new one is complete."
            else:
                remedy = "Make space, then run the same command."
            found = f"{show_size(free)} free, {show_size(need)} needed; nothing was written"
            raise OutputFailed(self.folder.path or ".", found, remedy=remedy)

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
            staged.append(self.folder.stage_whole(index, sidecar))
        self.beside.compare(name, sidecar, written=shard is not None)
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
        staged = [self.folder.stage_whole(sidecar_name(shard), data) for shard, data in sidecars.items()]
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
        sizes = {os.fsdecode(to_bytes(one.name)): one.size for one in shards}
        sizes |= {os.fsdecode(to_bytes(one.sidecar)): one.sidecar_size for one in shards}
        check_there(self.folder, sizes, f"Run the same command again with {option('if_exists', 'resume')}.")

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
        rows = encode_skipped(skipped)
        if rows:
            wanted.add(self.pattern.skipped_file)
        stale, old = sorted(set(self._existing) - wanted), self.destination.old
        if old is not None:
            stale = later_files(self.pattern, self._existing, self.destination.first + len(shards))
        if rows and not self._has(self.pattern.skipped_file, rows):
            self._waiting.append(self.folder.stage_whole(self.pattern.skipped_file, rows))
        self.beside.keep_only([*shards, *(() if old is None else (one.name for one in old.shards))])
        self.beside.remove()
        if not (self._waiting or stale) and self._has(self.pattern.dataset_file, dataset_file):
            remove_records(self.folder, self.pattern)
            return
        last = self.folder.stage_whole(self.pattern.dataset_file, dataset_file)
        if self._waiting or stale:
            self._withdraw_dataset_file()
        if self._waiting:
            self.folder.publish(*self._waiting)
        self.folder.remove(stale)
        self.folder.publish(last)
        self._waiting = []
        remove_records(self.folder, self.pattern)

    def begin(self) -> None:
        """Remove the record that this part has left before: until it ends again, it has not ended.

        Raises:
            OutputFailed: The file system refuses.
        """
        own = self.destination.own
        if own is not None and (name := record_name(self.pattern, own.part)) in self._existing:
            self.folder.remove([name])

    def end_part(self, record: PartRecord, *, stays: bool) -> None:
        """Publish the record of a part whose shards are all there.

        Args:
            record: The record.
            stays: Whether the dataset file that is there lists these shards; otherwise it is removed before.

        Raises:
            OutputFailed: The file system refuses.
        """
        staged = self.folder.stage_whole(record_name(self.pattern, record.part), record.encode())
        if not stays:
            self._withdraw_dataset_file()
        self.folder.publish(staged)

    def take_back(self, shards: Sequence[str]) -> None:
        """Remove the shards of a run that nothing came of: they would be in the way of the next one."""
        if not isinstance(self.destination.append, EndedAppend):
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


def clean(destination: Destination) -> None:
    """Remove what this or a killed run has left under temporary names. Call it under the lock."""
    folder = destination.folder
    folder.discard_staged([name for name in folder.staged_names() if destination.owns(name)])
    folder.temporary.discard_staged([_spool_name(destination)])


def _spool_name(destination: Destination) -> str:
    """Return the name of the temporary file: where those of several datasets lie side by side, one of its own."""
    folder, base = destination.folder, destination.pattern.base
    own = "" if folder.hides else "-" + blake2b(os.fsencode(folder.path), digest_size=6).hexdigest()
    return f"{base}{own}{_SPOOL_SUFFIX}"
