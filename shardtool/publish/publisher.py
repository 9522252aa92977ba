"""Staged files become visible: shard, then sidecar, and after all of them the dataset file.

One `Publisher` a run, in the parent process, which alone gives final names: a worker that outlived
its time could never publish. It holds the rules about what may be there already, and the order
that makes every instant safe:

- the dataset file names only files that are there and whole: whatever replaces or removes one of
  its shards removes the dataset file first;
- `--overwrite` stages everything beside the old dataset, and replaces it only when all is staged;
- `--append` touches no shard that the old dataset file names, so that file stays until another takes its place;
- an index file of another tool that would lead into other bytes is removed before its shard changes (`Beside`).
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from shardtool.dataset.dataset_file import shard_names, tells_of_appends
from shardtool.errors import CorruptShard, OutputExists, OutputFailed, listing, reason
from shardtool.pattern import sidecar_name
from shardtool.publish.appended import check_none_left, check_old, later_files, names_left, nothing_there
from shardtool.publish.foreign_indexes import Beside
from shardtool.publish.skipped_file import check_ledger, encode_skipped, merged, read_skipped, without
from shardtool.storage.staging import write_whole
from shardtool.values import counted, show_size, to_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.pattern import ShardPattern
    from shardtool.storage.staging import FileFact, Folder, Staged, StagedFile
    from shardtool.values import IfExists, Skipped

_SPOOL_SUFFIX = ".spool"
_SPACE_FOR_INDEXES = 1.01  # sidecars and the dataset file, as a share of the shards


class Publisher:
    """The output of one run.

    Args:
        folder: Where it goes.
        pattern: Its names.
        if_exists: What to do about an earlier output.

    Attributes:
        existing: What is known of the files that are there under the pattern's names.
        old: The dataset that is appended to, once it was checked; None: there is none.
        done_from: Where this append is in that dataset already: the number of its first shard. Then nothing is
            published, and what would be is compared.
        beside: The index files of other tools, and which of them were removed.
    """

    def __init__(self, folder: Folder, pattern: ShardPattern, if_exists: IfExists) -> None:
        self.folder, self.pattern, self.if_exists = folder, pattern, if_exists
        self.existing: dict[str, FileFact] = {}
        self.old: DatasetFile | None = None
        self.done_from: int | None = None
        self._old_data: bytes | None = None
        self._waiting: list[Staged] = []
        self._spool: StagedFile | None = None
        self._withdrawn = False
        self.beside = Beside(folder, pattern, appends=self.appends)

    @property
    def appends(self) -> bool:
        """Whether the new shards join those of a dataset that is there."""
        return self.if_exists in ("append", "append-resume")

    @property
    def resumes(self) -> bool:
        """Whether shards that a killed run has finished are kept."""
        return self.if_exists in ("resume", "resume-overwrite", "append-resume")

    @property
    def first(self) -> int:
        """The number of the first shard of this run."""
        if self.done_from is not None:
            return self.done_from
        return 0 if self.old is None else len(self.old.shards)

    @property
    def pattern_left(self) -> ShardPattern:
        """The pattern of the names that this run may use.

        Raises:
            InvalidRequest: There are none.
        """
        return names_left(self.pattern, self.first)

    def check(self) -> None:
        """Find what is there, and refuse to touch it where nobody asked for that.

        Raises:
            OutputExists: There is output, and `if_exists` is `error`; or shards that were appended, and it is
                `resume`; or what a killed append has left, and it is `append`; or the dataset that is appended to
                has changed since it was checked before.
            InvalidRequest: There is nothing to append to, or its shards have other names.
            CorruptShard: What is appended to is damaged.
        """
        there = self.folder.names()
        self.existing = self.folder.facts(name for name in there if self.pattern.owns(name))
        where, names = self.folder.path or ".", sorted(self.existing)
        if folders := [name for name in names if self.existing[name].is_folder]:
            raise OutputExists(where, f"a folder is called {listing(folders, 3)}", remedy="Choose another name.")
        if self.pattern.dataset_file in self.existing:
            self._check_dataset_file()
        if rivals := sorted(name for name in there if self.pattern.rivals(name)):
            raise OutputExists(
                self.folder.path or ".", f"shards of another format under these names: {listing(rivals, 3)}",
                expected="none that would share their indexes", remedy="Choose another name, or move them away.",
            )  # fmt: skip
        if self.appends:
            self._check_old()
        elif self.existing and self.if_exists == "error":
            finish = "." if self.pattern.dataset_file in self.existing else ", or finish that run with --resume."
            found = f"{counted(len(names), 'file')} there already: {listing(names, 3)}"
            raise OutputExists(where, found, remedy=f"Choose another name, or --overwrite{finish}")
        self.beside.look(there)
        if not self.resumes and self.if_exists != "overwrite":
            self.beside.check_none_left(set(there))

    def _check_dataset_file(self) -> None:
        """See that what has the dataset file's name is one, and lists no shard that would be left behind."""
        name, data = self.pattern.dataset_file, b""
        with suppress(OSError):
            data = self.folder.read(name)
        shards = shard_names(data)
        if shards is None:
            raise OutputExists(
                self.folder.full_path(name), "a file that is no dataset file of shardtool",
                remedy="Choose another pattern, or move it away.",
            )  # fmt: skip
        if self.appends:
            return  # damaged or not: `_check_old` tells
        names = [os.fsdecode(to_bytes(shard)) for shard in shards]
        if foreign := [name for name in names if not self.pattern.owns(name)]:
            raise OutputExists(
                self.folder.full_path(name), f"the dataset file of other shards: {listing(foreign, 3)}",
                expected=f"those of {self.pattern.text}",
                remedy="Choose another pattern, use that dataset's own, or remove it first.",
            )  # fmt: skip
        if self.if_exists == "resume" and tells_of_appends(data):
            raise OutputExists(
                self.folder.full_path(name), "shards that were appended, which this run would remove",
                remedy="Add --append to go on with an append, or --overwrite to replace the dataset by a new one.",
            )  # fmt: skip

    def _check_old(self) -> None:
        """See that there is a dataset to append to, and that it is the one which was there before."""
        name = self.pattern.dataset_file
        if name not in self.existing:
            raise nothing_there(self.folder, self.pattern, self.existing)
        data = self.folder.read(name)
        if self._old_data not in (None, data):
            raise OutputExists(
                self.folder.full_path(name), "the dataset was changed meanwhile, by another run",
                expected="the one that was there at the start", remedy="Run the same command again.",
            )  # fmt: skip
        self._old_data, self.old = data, check_old(self.folder, self.pattern, self.existing, data)
        later = later_files(self.pattern, self.existing, len(self.old.shards))
        if not self.resumes:
            check_none_left(self.folder, later)
        if not later:  # a killed append may have put its own list there, with its shards
            check_ledger(encode_skipped(self.listed_skipped()), self.old, self._ledger)

    @property
    def _ledger(self) -> str:
        return self.folder.full_path(self.pattern.skipped_file)

    def listed_skipped(self) -> list[Skipped]:
        """Return the list of what was left out that is there.

        Raises:
            CorruptShard: It is none.
        """
        name = self.pattern.skipped_file
        try:
            return read_skipped(self.folder.read(name) if name in self.existing else b"", self._ledger)
        except OSError as error:
            raise CorruptShard(self._ledger, f"cannot be read: {reason(error)}") from None

    def all_skipped(self, skipped: Sequence[Skipped]) -> list[Skipped]:
        """Return all that the dataset leaves out: what this run did, and what the dataset that is appended to did.

        Raises:
            CorruptShard: The list that is there is not that of this dataset.
        """
        if self.old is None:
            return [*skipped]
        listed = self.listed_skipped()
        try:
            check_ledger(encode_skipped(listed), self.old, self._ledger)
        except CorruptShard:
            listed = without(listed, skipped)  # an append may have been killed once its own list was there
            check_ledger(encode_skipped(listed), self.old, self._ledger)
        return merged(listed, skipped)

    def clean(self) -> None:
        """Remove what this or a killed run has left under temporary names. Call it under the lock."""
        if self._spool is not None:
            self._spool.abandon()
            self._spool = None
        spool = self.pattern.base + _SPOOL_SUFFIX
        names = self.folder.staged_names()
        self.folder.discard_staged([name for name in names if name == spool or self.pattern.owns(name)])

    def spool(self, size: int, write: Callable[[StagedFile], None]) -> str:
        """Have payloads written to a temporary file, and return where workers can read it. `clean` removes it.

        Raises:
            OutputFailed: There is no space for `size` bytes, or the file system refuses.
        """
        self.check_space([size])
        self._spool = self.folder.stage(self.pattern.base + _SPOOL_SUFFIX)
        write(self._spool)
        return self._spool.path

    def check_space(self, sizes: Sequence[int]) -> None:
        """Refuse to start what cannot end.

        Args:
            sizes: Bytes of the shards that are yet to be written.

        Raises:
            OutputFailed: The folder has less space than the shards take.
        """
        need, free = int(sum(sizes) * _SPACE_FOR_INDEXES), self.folder.free_bytes()
        if need > free:
            if self.if_exists == "overwrite" and self.existing:
                remedy = "Make space: the old dataset stays until the new one is complete."
            else:
                remedy = "Make space, then run the same command."
            found = f"{show_size(free)} free, {show_size(need)} needed; nothing was written"
            raise OutputFailed(self.folder.path or ".", found, remedy=remedy)

    def add(self, shard: Staged | None, sidecar: bytes, name: str) -> None:
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
            staged.append(write_whole(self.folder, index, sidecar))
        self.beside.compare(name, sidecar, written=shard is not None)
        if self.if_exists == "overwrite":
            self._waiting += staged
        elif staged:
            self._withdraw_dataset_file()
            self.beside.remove()
            self.folder.publish(*staged)

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
        ledger = encode_skipped(skipped)
        if ledger:
            wanted.add(self.pattern.skipped_file)
        stale = sorted(set(self.existing) - wanted)
        if self.appends:
            stale = later_files(self.pattern, self.existing, self.first + len(shards))
        if ledger and not self._has(self.pattern.skipped_file, ledger):
            self._waiting.append(write_whole(self.folder, self.pattern.skipped_file, ledger))
        self.beside.keep_only([*shards, *(() if self.old is None else (one.name for one in self.old.shards))])
        self.beside.remove()
        if not (self._waiting or stale) and self._has(self.pattern.dataset_file, dataset_file):
            return
        last = write_whole(self.folder, self.pattern.dataset_file, dataset_file)
        if self._waiting or stale:
            self._withdraw_dataset_file()
        if self._waiting:
            self.folder.publish(*self._waiting)
        self.folder.remove(stale)
        self.folder.publish(last)
        self._waiting = []

    def _withdraw_dataset_file(self) -> None:
        """Remove the old dataset file before the first of its shards changes; an append changes none."""
        if not self.appends and not self._withdrawn and self.pattern.dataset_file in self.existing:
            self.folder.remove([self.pattern.dataset_file])
            del self.existing[self.pattern.dataset_file]
        self._withdrawn = True

    def _has(self, name: str, data: bytes) -> bool:
        """Tell whether a file is there with exactly these bytes."""
        fact = self.existing.get(name)
        if fact is None or fact.size != len(data):
            return False
        with suppress(OSError):
            return self.folder.read(name) == data
        return False
