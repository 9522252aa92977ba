"""Check the files of a manifest without opening them."""

from __future__ import annotations

import os
import stat
from array import array
from typing import TYPE_CHECKING, NamedTuple

from shardtool.messages import cli_option
from shardtool.shard_samples import FILE, LINK
from shardtool.source.scan_part import ALWAYS_CHANGED, SPECIAL_FILE_MESSAGE, link_failure, path_failure, resolve_folder
from shardtool.storage import remote
from shardtool.storage.paths import is_address, source_address
from shardtool.storage.remote.requests import imap_requests

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardtool.skipped import SkipCode


PROBLEM_NUMBER = 3  # column of `StatResult.states`


class StatTask(NamedTuple):
    """Paths to check, relative to `root`, each followed by NUL. If `outside`, paths may leave the root."""

    root: bytes
    paths: bytes
    outside: bool


class StatResult(NamedTuple):
    """The states of the files, in the order of the paths.

    Attributes:
        kinds: FILE or LINK for each path.
        states: int64[paths, 4]: size, mtime_ns, latest ctime of the file and the folders above it in nanoseconds, and
            1 + index in `problems` (0 for no problem).
        problems: Pairs of reason code and message.
    """

    kinds: bytes
    states: bytes
    problems: list[tuple[SkipCode, str]]


class _FolderState(NamedTuple):
    linked: bool
    changed_ns: int
    problem: tuple[SkipCode, str] | None


class _FileState(NamedTuple):
    kind: int = FILE
    size: int = 0
    mtime_ns: int = 0
    changed_ns: int = 0
    problem: tuple[SkipCode, str] | None = None


def stat_files(task: StatTask) -> StatResult:
    """Examine the files or objects of a task."""
    paths, kinds, numbers = task.paths[:-1].split(b"\0"), bytearray(), array("q")
    problems: dict[tuple[SkipCode, str], int] = {}
    if is_address(task.root):
        states: Iterable[_FileState] = imap_requests(_inspect_object, [task.root + path for path in paths])
    else:
        states = map(_FileInspector(task.root, outside=task.outside).inspect, paths)
    for kind, size, mtime_ns, changed_ns, problem in states:
        kinds.append(kind)
        number = 0 if problem is None else problems.setdefault(problem, len(problems) + 1)
        numbers.extend((size, mtime_ns, changed_ns, number))
    return StatResult(bytes(kinds), numbers.tobytes(), [*problems])


class _FileInspector:
    def __init__(self, root: bytes, *, outside: bool) -> None:
        self._root, self._outside = root, outside
        self._real = os.path.realpath(root).rstrip(b"/") + b"/"
        changed = max(os.lstat(root.rstrip(b"/") or b"/").st_ctime_ns, os.stat(root).st_ctime_ns)
        self._device = os.stat(root).st_dev
        self._folders = {b"": _FolderState(linked=False, changed_ns=changed, problem=None)}

    def inspect(self, path: bytes) -> _FileState:
        folder, kind = resolve_folder(self._folders, path[: path.rfind(b"/") + 1], self._folder_state), FILE
        if folder.problem is not None:
            return _FileState(problem=folder.problem)
        try:
            file_stat = os.lstat(self._root + path)
            if stat.S_ISLNK(file_stat.st_mode):
                kind = LINK
                if problem := self._outside_problem(self._root + path):
                    return _FileState(problem=problem)
                file_stat = os.stat(self._root + path)
        except OSError as error:
            return _FileState(problem=link_failure(error) if kind == LINK else path_failure(error))
        if not stat.S_ISREG(file_stat.st_mode):
            found = "a folder" if stat.S_ISDIR(file_stat.st_mode) else SPECIAL_FILE_MESSAGE
            return _FileState(problem=("special-file", found))
        changed_ns = ALWAYS_CHANGED if kind == LINK else max(file_stat.st_ctime_ns, folder.changed_ns)
        return _FileState(kind, file_stat.st_size, file_stat.st_mtime_ns, changed_ns)

    def _folder_state(self, parent: _FolderState, prefix: bytes) -> _FolderState:
        if parent.problem is not None:
            return parent
        path = self._root + prefix
        try:
            folder_stat = os.lstat(path[:-1])
            linked = parent.linked or stat.S_ISLNK(folder_stat.st_mode)
            is_reliable = not linked and folder_stat.st_dev == self._device
            problem = self._outside_problem(path) if linked else None
        except OSError as error:
            return _FolderState(linked=parent.linked, changed_ns=0, problem=path_failure(error))
        changed_ns = max(parent.changed_ns, folder_stat.st_ctime_ns) if is_reliable else ALWAYS_CHANGED
        return _FolderState(linked, changed_ns, problem)

    def _outside_problem(self, path: bytes) -> tuple[SkipCode, str] | None:
        if self._outside or (os.path.realpath(path) + b"/").startswith(self._real):
            return None
        return "link-outside", f"leaves the root by a link; {cli_option('allow_outside', value=True)} packs it"


def _inspect_object(location: bytes) -> _FileState:
    try:
        info = remote.objects.REMOTE.info(source_address(location))
    except OSError as error:
        return _FileState(problem=path_failure(error))
    version = info.st_mtime_ns
    return _FileState(FILE, info.st_size, version, 0 if version else ALWAYS_CHANGED)
