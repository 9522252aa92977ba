"""Publish the files of a dataset in a safe order (docs/format.md, "Publication order").

- The dataset file lists only complete files. It is replaced last, or deleted before a listed shard changes.
- Before a shard changes, its index files for other tools are deleted if they may not match the new shard.
- A shard is published before its sidecar.
- Only the parent process publishes files, so a worker that outlives the run publishes nothing.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, TypeAlias

from shardtool.dataset.dataset_file import DatasetFile, parse_dataset, read_valid_dataset
from shardtool.dataset.find import EXPECTED_DATASET
from shardtool.errors import CorruptShard, os_error_text
from shardtool.names import list_names, to_local_name
from shardtool.pattern import DATASET_SUFFIX, replacement_plan_name, sidecar_name
from shardtool.publish.foreign_index_files import StaleIndexes
from shardtool.publish.listed_files import wrong_size_error
from shardtool.storage.copying import OriginalFile, publish_staged
from shardtool.storage.file_system import check_owner
from shardtool.storage.files import is_folder
from shardtool.storage.folders import open_staging_folder
from shardtool.storage.paths import base_name, folder_of
from shardtool.storage.remote.address import STORES, is_url, parse_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shardtool.request.observer import Notes
    from shardtool.storage.file_system import EntryInfo
    from shardtool.storage.folders import OutputFolder
    from shardtool.storage.staging import DurableFile


OldDataset: TypeAlias = Literal["keep", "withdraw", "replace", "exchange"]


class Publication:
    """Publishes one dataset. The caller must hold the lock of the dataset.

    `old` selects what happens to an existing dataset:

    - "keep": No listed shard changes. The old dataset file exists until the new one replaces it.
    - "withdraw": The old dataset file is deleted before the first file changes.
    - "replace": All files are staged first, so the old dataset stays complete until `finish`. In a store, "replace"
      works like "withdraw", because there is no staging.
    - "exchange": Like "replace", but once all files are staged, a list of them is published. After an
      interruption, the next run uses the list to finish.

    Args:
        stale_indexes: Index files of other tools, or None if no shard changes.

    Attributes:
        old_list: The name to which `withdraw` renames the dataset file, or "" to delete the file.
        keeps_staged: Whether files stay staged until `finish`.
    """

    def __init__(
        self,
        folder: OutputFolder,
        dataset_file: str,
        old: OldDataset,
        existing: Mapping[str, EntryInfo] | None = None,
        stale_indexes: StaleIndexes | None = None,
        shards_folder: OutputFolder | None = None,
    ) -> None:
        self.old_list = ""
        self.folder, self.dataset_file = folder, dataset_file
        self.stale_indexes = stale_indexes or StaleIndexes(folder, None, (), appends=True)
        self.shards_folder = folder if shards_folder is None else shards_folder
        self.keeps_staged = old in ("replace", "exchange") and folder.has_staging
        self._old, self._existing = old, dict(existing or {})
        # the shards and sidecars that stay staged until `finish`
        self._waiting: list[tuple[list[DurableFile], list[DurableFile]]] = []

    def withdraw(self) -> None:
        """Delete the old dataset file, or rename it to `old_list`. If `old` is "keep", do nothing."""
        if self._old != "keep" and self._existing.pop(self.dataset_file, None) is not None:
            if self.old_list:
                self.folder.publish_bytes(self.old_list, self.folder.read(self.dataset_file))
            self.folder.remove([self.dataset_file])

    def prepare_shard(self, name: str) -> None:
        """Without staging, call `withdraw` and delete all indexes of a shard, before the shard is replaced."""
        if not self.folder.has_staging:
            self.withdraw()
            self.stale_indexes.mark_shard(name)
            self.stale_indexes.remove_marked()

    def add(self, shard: DurableFile | None, sidecar: bytes, name: str) -> None:
        """Publish a shard and its sidecar. `shard` is None if the shard already exists."""
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
        """Publish a staged shard and sidecar. Pass None for a file that already exists.

        If `replaces` is false, the files are new, and are published immediately.
        """
        shards, others = [[] if file is None else [file] for file in (shard, sidecar)]
        self.stale_indexes.compare(name, read_sidecar, written=shard is not None)
        if not shards and not others:
            return
        if self.dataset_file:
            check_owner(self.folder.full_path(self.dataset_file))
        if replaces and self.keeps_staged:
            self._waiting.append((shards, others))
            return
        if replaces:
            self.withdraw()
        self.stale_indexes.remove_marked()
        self._publish(shards, others)

    def read_sidecar(self, shard: str) -> bytes:
        """Return the sidecar of a shard, staged or published."""
        return (self.folder.read_staged if self.keeps_staged else self.folder.read)(sidecar_name(shard))

    def replace_sidecars(self, sidecars: Mapping[str, bytes]) -> None:
        """Replace the sidecars of shards. `sidecars` maps shard names to content."""
        staged = [self.folder.stage_bytes(sidecar_name(shard), data) for shard, data in sidecars.items()]
        if staged and not self.keeps_staged:
            self.withdraw()
            self.folder.publish(*staged)

    def finish(
        self,
        dataset_file: bytes,
        shards: Iterable[str] | None = None,
        *,
        before: Mapping[str, bytes] | None = None,
        stale: Sequence[str] = (),
        stale_shards: tuple[OutputFolder, Sequence[str]] | None = None,
        leftovers: Sequence[str] = (),
    ) -> None:
        """Publish the files that are still staged and the dataset file, and delete stale files.

        Args:
            shards: All shards in the dataset file. If given, indexes of other shards are deleted.
            before: Small files to publish before the dataset file, by name.
            stale: Files to delete before publishing the dataset file.
            stale_shards: Another folder, and shards to delete there.
            leftovers: Files to delete last.
        """
        small = {name: data for name, data in (before or {}).items() if not self._has_file(name, data)}
        stale_shards = (self.folder, ()) if stale_shards is None else stale_shards
        if shards is not None:
            self.stale_indexes.mark_all_except(shards)
        self.stale_indexes.remove_marked()
        is_changed = bool(self._waiting or stale or stale_shards[1] or small)
        if is_changed or not self._has_file(self.dataset_file, dataset_file):
            staged = [self.folder.stage_bytes(name, data) for name, data in small.items()]
            if self._old == "exchange":
                self._exchange(staged, dataset_file)
            else:
                staged_dataset_file = self.folder.stage_bytes(self.dataset_file, dataset_file)
                if is_changed:
                    self.withdraw()
                waiting_shards = [file for files, _ in self._waiting for file in files]
                self._publish(waiting_shards, [*(file for _, files in self._waiting for file in files), *staged])
                self.folder.remove([*stale])
                stale_shards[0].remove([*stale_shards[1]])
                self.folder.publish(staged_dataset_file)
            self._waiting = []
        self.folder.remove([*leftovers])

    def abandon(self, names: Iterable[str]) -> None:
        """Delete the staged files of `names` and of the dataset file, unless an interrupted exchange needs them."""
        if not self.folder.find_entries([self._plan]):
            self.folder.discard_staged([*names, self.dataset_file, self._plan])

    @property
    def _plan(self) -> str:
        return replacement_plan_name(self.dataset_file.removesuffix(DATASET_SUFFIX))

    def _exchange(self, small: Sequence[DurableFile], dataset_file: bytes) -> None:
        staged = [*small, *(file for waiting in self._waiting for files in waiting for file in files)]
        names, paths = {file.name for file in staged}, {file.path for file in staged}
        others = [file.path for file in self.folder.staged() if file.name in names and file.path not in paths]
        self.folder.remove([*map(base_name, others)])
        self.folder.publish_bytes(self._plan, dataset_file)
        finish_replacement(self.folder, self.dataset_file.removesuffix(DATASET_SUFFIX))

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


def finish_replacement(folder: OutputFolder, base: str) -> None:
    """Finish an interrupted replacement of shards ("exchange"). The caller must hold the lock."""
    plan = replacement_plan_name(base)
    if not folder.find_entries([plan]):
        return
    where = folder.full_path(plan)
    try:
        data = folder.read(plan)
    except OSError as error:
        found = f"not a plan for replacing shards: {os_error_text(error)}"
        raise CorruptShard(where, found, remedy="Move it to another folder.") from None
    file = parse_dataset(data, where)
    listed = _list_files(file)
    staged = {new.name: new.path for new in folder.staged() if new.name in listed or new.name == file.skipped_file}
    # If the dataset file is missing, an earlier attempt has already checked the published files.
    old = read_valid_dataset(folder.full_path(base + DATASET_SUFFIX))
    old_files = listed if old is None else _list_files(old)
    published = {name for name in listed.keys() - staged.keys() if old_files.get(name) != listed[name]}
    existing = folder.find_entries(published)
    for name in sorted(published):
        size = existing[name].size if name in existing else None
        if size != listed[name][0]:
            raise wrong_size_error(folder.full_path(name), size, listed[name][0])
    if file.skipped_file in staged:
        path = staged[file.skipped_file]
        listed[file.skipped_file] = folder.find_entries([base_name(path)])[base_name(path)].size, file.skipped_crc
    folder.remove([base + DATASET_SUFFIX])
    publish_staged(folder, [OriginalFile(staged[name], *listed[name], name) for name in listed if name in staged])
    folder.publish_bytes(base + DATASET_SUFFIX, data)
    folder.remove([plan])


def _list_files(file: DatasetFile) -> dict[str, tuple[int, int | None]]:
    shards: dict[str, tuple[int, int | None]] = {entry.name: (entry.size, entry.crc) for entry in file.shards}
    sidecars = {entry.sidecar: (entry.sidecar_size, entry.sidecar_crc) for entry in file.shards}
    return {to_local_name(name): facts for name, facts in (shards | sidecars).items()}


def finish_replacements(dataset: object, notes: Notes) -> bool:
    """Finish interrupted replacements of shards in the folders of a dataset. Return whether one was found."""
    # Search folders, because an interrupted run may have deleted the dataset file.
    names = list_names("the dataset", dataset, EXPECTED_DATASET)
    writable = [name for name in names if not is_url(name) or parse_address(name).scheme in STORES]
    folders = [name if is_folder(name) else folder_of(name) for name in writable]
    plan = re.compile(re.escape(replacement_plan_name("\0")).replace("\0", "(.+)"), re.DOTALL)
    any_finished = False
    for folder in map(open_staging_folder, dict.fromkeys(folders)):
        for match in filter(None, map(plan.fullmatch, folder.names())):
            with folder.lock(match[1], continues_replacement=True):
                finish_replacement(folder, match[1])
            notes.add(f"{match[1]}{DATASET_SUFFIX}: an interrupted replacement of shards was finished")
            any_finished = True
    return any_finished
