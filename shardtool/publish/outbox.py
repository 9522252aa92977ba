"""Files that appear together: written under temporary names, then published, in a folder and in folders below it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from shardtool.dataset.dataset_file import shard_names
from shardtool.errors import OutputExists
from shardtool.pattern import DATASET_SUFFIX
from shardtool.storage.folders import open_folder
from shardtool.storage.staging import write_whole
from shardtool.wording import flag, option

if TYPE_CHECKING:
    from typing_extensions import Self

    from shardtool.storage.folders import OutputFolder
    from shardtool.storage.staging import Staged


class Outbox:
    """Files that appear together, to be used in a `with` block; leaving it removes what was not published.

    Args:
        folder: Where they go.
        names: Paths in `folder` of what may be written: what a killed run has left of them is removed.
        overwrite: Replace other files of their names.
    """

    def __init__(self, folder: OutputFolder, names: list[str], *, overwrite: bool) -> None:
        self.kept = 0
        self._overwrite = overwrite
        self._folders = {"": folder}
        self._names: dict[str, list[str]] = {"": []}
        self._staged: dict[str, list[Staged]] = {}
        for path in names:
            below, _, name = path.rpartition("/")
            if below not in self._folders:
                self._folders[below] = _below(folder, below)
            self._names.setdefault(below, []).append(name)

    def __enter__(self) -> Self:
        self._discard()
        return self

    def __exit__(self, *_: object) -> None:
        self._discard()

    def add(self, path: str, data: bytes, *, replace: bool = False, lasting: bool = False) -> None:
        """Stage a file, unless it is there with the same bytes.

        Args:
            path: Where in the folder.
            data: Its bytes.
            replace: Whether what is there may be replaced even without `overwrite`.
            lasting: Whether it stays where it is there, whatever it holds.

        Raises:
            OutputExists: There is another one, which may not be replaced.
            OutputFailed: It cannot be written.
        """
        below, _, name = path.rpartition("/")
        folder = self._folders[below]
        if (lasting and folder.facts([name])) or _is_there(folder, name, data, overwrite=self._overwrite or replace):
            self.kept += 1
            return
        if below:
            folder.ready()
        self._staged.setdefault(below, []).append(write_whole(folder, name, data))

    def publish(self) -> None:
        """Let all appear, folder by folder, each in the order in which they were added.

        Raises:
            OutputFailed: The file system refuses.
        """
        for below, staged in self._staged.items():
            self._folders[below].publish(*staged)

    def _discard(self) -> None:
        for below, folder in self._folders.items():
            folder.discard_staged(self._names[below])


def _below(folder: OutputFolder, name: str) -> OutputFolder:
    fact = folder.facts([name]).get(name)
    if fact is not None and not fact.is_folder:  # a link to one would lead elsewhere
        raise OutputExists(folder.full_path(name), "no folder", remedy="Move it away.")
    return open_folder(folder.full_path(name))


def _is_there(folder: OutputFolder, name: str, data: bytes, *, overwrite: bool) -> bool:
    """Tell whether a file has these bytes already.

    Raises:
        OutputExists: It lists others, and may not be replaced.
    """
    fact = folder.facts([name]).get(name)
    if fact is None:
        return False
    where, remedy = folder.full_path(name), f"choose another folder with {option('output')}."
    if fact.special:
        raise OutputExists(where, fact.special, remedy=remedy.capitalize())
    if fact.size == len(data):
        with suppress(OSError):
            if folder.read(name) == data:
                return True
    if not overwrite:
        raise OutputExists(
            where,
            "a file there already, with other bytes",
            remedy=f"Replace it with {flag('overwrite')}, or {remedy}",
        )
    if name.endswith(DATASET_SUFFIX):
        with suppress(OSError):
            if shard_names(folder.read(name)) is not None:
                raise OutputExists(where, "a dataset file", remedy=remedy.capitalize())
    return False
