"""Staged files become visible: shard, then sidecar, and after all of them the dataset file.

One `Publisher` a run, in the parent process, which alone gives final names: a worker that outlived
its time could never publish. It holds the rules about what may be there already, and the order
that makes every instant safe:

- the dataset file names only files that are there and whole: whatever replaces or removes one of
  its shards removes the dataset file first;
- `--overwrite` stages everything beside the old dataset, and replaces it only when all is staged.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from shardtool.dataset import shard_names
from shardtool.errors import OutputExists, OutputFailed, listing, printable
from shardtool.pattern import sidecar_name
from shardtool.sample import counted, show_size, to_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardtool.pattern import ShardPattern
    from shardtool.sample import Skipped
    from shardtool.storage import FileFact, Folder, Output, Staged

IfExists = Literal["error", "resume", "overwrite"]
_SPOOL_SUFFIX = ".spool"
_SPACE_FOR_INDEXES = 1.01  # sidecars and the dataset file, as a share of the shards


class Publisher:
    """The output of one run.

    Args:
        folder: Where it goes.
        pattern: Its names.
        if_exists: What to do about an earlier output.
    """

    def __init__(self, folder: Folder, pattern: ShardPattern, if_exists: IfExists) -> None:
        self.folder, self.pattern, self.if_exists = folder, pattern, if_exists
        self.existing: dict[str, FileFact] = {}
        self._waiting: list[Staged] = []
        self._spool: Output | None = None
        self._withdrawn = False

    def check(self) -> None:
        """Find what is there, and refuse to touch it where nobody asked for that.

        Raises:
            OutputExists: There is output, and `if_exists` is `error`.
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
        if self.existing and self.if_exists not in ("resume", "overwrite"):
            finish = "." if self.pattern.dataset_file in self.existing else ", or finish that run with --resume."
            found = f"{counted(len(names), 'file')} there already: {listing(names, 3)}"
            raise OutputExists(where, found, remedy=f"Choose another name, or --overwrite{finish}")

    def _check_dataset_file(self) -> None:
        """See that what has the dataset file's name is one, and lists no shard that would be left behind."""
        name = self.pattern.dataset_file
        try:
            shards = shard_names(self.folder.read(name))
        except OSError:
            shards = None
        if shards is None:
            raise OutputExists(
                self.folder.full_path(name), "a file that is no dataset file of shardtool",
                remedy="Choose another pattern, or move it away.",
            )  # fmt: skip
        names = [os.fsdecode(to_bytes(shard)) for shard in shards]
        if foreign := [name for name in names if not self.pattern.owns(name)]:
            raise OutputExists(
                self.folder.full_path(name), f"the dataset file of other shards: {listing(foreign, 3)}",
                expected=f"those of {self.pattern.text}",
                remedy="Choose another pattern, use that dataset's own, or remove it first.",
            )  # fmt: skip

    def clean(self) -> None:
        """Remove what this or a killed run has left under temporary names. Call it under the lock."""
        if self._spool is not None:
            self._spool.abandon()
            self._spool = None
        spool = self.pattern.base + _SPOOL_SUFFIX
        names = self.folder.staged_names()
        self.folder.discard_staged([name for name in names if name == spool or self.pattern.owns(name)])

    def spool(self, size: int, write: Callable[[Output], None]) -> str:
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
            staged.append(self._stage(index, sidecar))
        if self.if_exists == "overwrite":
            self._waiting += staged
        elif staged:
            self._withdraw_dataset_file()
            self.folder.publish(*staged)

    def finish(self, shards: Sequence[str], dataset_file: bytes, skipped: Sequence[Skipped]) -> None:
        """Publish what waits, remove what is stale, and publish the dataset file, last.

        Args:
            shards: The final names of all shards.
            dataset_file: Its bytes.
            skipped: What was left out.

        Raises:
            OutputFailed: The file system refuses.
        """
        wanted = {*shards, *map(sidecar_name, shards), self.pattern.dataset_file}
        ledger = encode_skipped(skipped)
        if ledger:
            wanted.add(self.pattern.skipped_file)
        stale = sorted(set(self.existing) - wanted)
        if ledger and not self._has(self.pattern.skipped_file, ledger):
            self._waiting.append(self._stage(self.pattern.skipped_file, ledger))
        if not (self._waiting or stale) and self._has(self.pattern.dataset_file, dataset_file):
            return
        last = self._stage(self.pattern.dataset_file, dataset_file)
        if self._waiting or stale:
            self._withdraw_dataset_file()
        if self._waiting:
            self.folder.publish(*self._waiting)
        self.folder.remove(stale)
        self.folder.publish(last)
        self._waiting = []

    def _withdraw_dataset_file(self) -> None:
        """Remove the old dataset file before the first of its shards changes."""
        if not self._withdrawn and self.pattern.dataset_file in self.existing:
            self.folder.remove([self.pattern.dataset_file])
            del self.existing[self.pattern.dataset_file]
        self._withdrawn = True

    def _stage(self, name: str, data: bytes) -> Staged:
        output = self.folder.stage(name)
        try:
            output.write(data)
            return output.finish()
        except BaseException:
            output.abandon()
            raise

    def _has(self, name: str, data: bytes) -> bool:
        """Tell whether a file is there with exactly these bytes."""
        fact = self.existing.get(name)
        if fact is None or fact.size != len(data):
            return False
        with suppress(OSError):
            return self.folder.read(name) == data
        return False


def encode_skipped(skipped: Sequence[Skipped]) -> bytes:
    """Return the bytes of the list of what was left out."""
    return b"".join(_row(one) for one in skipped)


def _row(one: Skipped) -> bytes:
    row = {"key": printable(one.key), "path": printable(one.path), "code": one.code, "message": printable(one.message)}
    return json.dumps(row, ensure_ascii=True).encode() + b"\n"
