"""Publish the files of one dataset in a safe order (docs/format.md, "Publication order").

Only the parent process uses final names, so a worker that outlives its run cannot publish. Every intermediate state is
safe:

- The dataset file names only complete files. It is replaced last, and deleted before a listed file changes.
- Another tool's index that no longer fits is deleted before its shard changes (`StaleIndexes`).
- A shard gets its name before its sidecar.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Literal, TypeAlias

from shardtool.pattern import sidecar_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shardtool.publish.stale_indexes import StaleIndexes
    from shardtool.storage.file_system import EntryInfo
    from shardtool.storage.folders import OutputFolder
    from shardtool.storage.staging import DurableFile


OldDataset: TypeAlias = Literal["keep", "withdraw", "replace"]


class Publication:
    """The publication of one dataset, under its lock.

    Args:
        folder: The folder of the dataset file and the sidecars.
        dataset_file: The name of the dataset file.
        old: What happens to an existing dataset. "keep": no listed file changes, so its dataset file stays until the
            new one replaces it. "withdraw": its dataset file is deleted before the first file changes. "replace": all
            files are staged first, so it stays complete until `finish`; a store shows each shard when it is written,
            so there it means "withdraw".
        existing: The existing files in `folder`.
        stale_indexes: Index files of other tools.
        shards_folder: The folder of the shards; None: `folder`.
    """

    def __init__(
        self,
        folder: OutputFolder,
        dataset_file: str,
        old: OldDataset,
        existing: Mapping[str, EntryInfo],
        stale_indexes: StaleIndexes,
        shards_folder: OutputFolder | None = None,
    ) -> None:
        self.folder, self.dataset_file, self.stale_indexes = folder, dataset_file, stale_indexes
        self.shards_folder = folder if shards_folder is None else shards_folder
        self.waits = old == "replace" and folder.hides
        self._keeps_old, self._existing = old == "keep", dict(existing)
        self._waiting: list[tuple[list[DurableFile], list[DurableFile]]] = []  # shards and other files

    def withdraw(self) -> None:
        """Delete the old dataset file, unless it stays valid."""
        if not self._keeps_old and self._existing.pop(self.dataset_file, None) is not None:
            self.folder.remove([self.dataset_file])

    def prepare_shard(self, name: str) -> None:
        """Delete files that refer to an old shard, before a worker replaces it in place."""
        if not self.folder.hides:
            self.withdraw()
            self.stale_indexes.drop(name)
            self.stale_indexes.remove()

    def add(self, shard: DurableFile | None, sidecar: bytes, name: str) -> None:
        """Publish a shard (None: it exists) and its sidecar."""
        sidecar_file = sidecar_name(name)
        is_new = shard is not None or not self._has_file(sidecar_file, sidecar)
        staged_sidecar = self.folder.stage_bytes(sidecar_file, sidecar) if is_new else None
        self.add_staged(name, shard, staged_sidecar, lambda: sidecar)

    def add_staged(
        self,
        name: str,
        shard: DurableFile | None,
        sidecar: DurableFile | None,
        read_sidecar: Callable[[], bytes],
        *,
        replaces: bool = True,
    ) -> None:
        """Publish a staged shard and sidecar; None: it exists. `replaces`: whether an existing file may be replaced."""
        shards, others = [[] if file is None else [file] for file in (shard, sidecar)]
        self.stale_indexes.compare(name, read_sidecar, written=shard is not None)
        if not shards and not others:
            return
        if replaces and self.waits:
            self._waiting.append((shards, others))
            return
        if replaces:
            self.withdraw()
        self.stale_indexes.remove()
        self._publish(shards, others)

    def read_sidecar(self, shard: str) -> bytes:
        """Return a shard's sidecar, staged or existing.

        Raises:
            OSError: It cannot be read.
        """
        return (self.folder.read_staged if self.waits else self.folder.read)(sidecar_name(shard))

    def replace_sidecars(self, sidecars: Mapping[str, bytes]) -> None:
        """Replace sidecars, given by shard name."""
        staged = [self.folder.stage_bytes(sidecar_name(shard), data) for shard, data in sidecars.items()]
        if staged and not self.waits:  # otherwise a waiting file was replaced
            self.withdraw()
            self.folder.publish(*staged)

    def finish(
        self,
        dataset_file: bytes,
        shards: Iterable[str],
        *,
        before: Mapping[str, bytes] | None = None,
        stale: Sequence[str] = (),
        stale_shards: tuple[OutputFolder, Sequence[str]] | None = None,
        leftovers: Callable[[], Sequence[str]] = lambda: (),
    ) -> None:
        """Publish the waiting files, delete stale ones, and publish the dataset file last.

        Args:
            dataset_file: Its bytes.
            shards: The names of all listed shards; indexes of other shards are deleted.
            before: Bytes by name of other small files, published just before the dataset file.
            stale: Files that only the old dataset file lists.
            stale_shards: The same for shards in another folder.
            leftovers: Returns files that are deleted once the dataset file exists.
        """
        small = {name: data for name, data in (before or {}).items() if not self._has_file(name, data)}
        stale_shards = (self.folder, ()) if stale_shards is None else stale_shards
        self.stale_indexes.keep_only(shards)
        self.stale_indexes.remove()
        is_changed = bool(self._waiting or stale or stale_shards[1] or small)
        if is_changed or not self._has_file(self.dataset_file, dataset_file):
            staged = [self.folder.stage_bytes(name, data) for name, data in small.items()]
            last = self.folder.stage_bytes(self.dataset_file, dataset_file)
            if is_changed:
                self.withdraw()
            self._publish(
                [file for waiting, _ in self._waiting for file in waiting],
                [*(file for _, waiting in self._waiting for file in waiting), *staged],
            )
            self._waiting = []
            self.folder.remove([*stale])
            stale_shards[0].remove([*stale_shards[1]])
            self.folder.publish(last)
        self.folder.remove([*leftovers()])

    def _publish(self, shards: Sequence[DurableFile], others: Sequence[DurableFile]) -> None:
        if self.shards_folder == self.folder:
            shards, others = (), [*shards, *others]
        for folder, files in ((self.shards_folder, shards), (self.folder, others)):
            if files:
                folder.publish(*files)

    def _has_file(self, name: str, data: bytes) -> bool:
        file_info = self._existing.get(name)
        if file_info is None or file_info.size != len(data):
            return False
        with suppress(OSError):
            return self.folder.read(name) == data
        return False
