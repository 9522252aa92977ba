"""Check that the files listed in a manifest exist, and return their sizes and times. Runs in workers.

Results are columns of bytes with one row per path, in the order of the paths. No file is opened, and neither NumPy
nor
pyarrow is imported.
"""

from __future__ import annotations

import os
import stat
from array import array
from typing import TYPE_CHECKING, NamedTuple

from shardtool.messages import cli_option
from shardtool.shard_samples import FILE, LINK
from shardtool.source.collect_files import resolve_folder
from shardtool.source.scan_result import ALWAYS_CHANGED, SPECIAL_FILE_MESSAGE, link_failure, path_failure
from shardtool.storage.lookup import file_info
from shardtool.storage.paths import is_address
from shardtool.storage.remote.requests import imap_requests

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardtool.skipped import SkipCode


class StatTask(NamedTuple):
    """Files for one worker.

    Attributes:
        root: What paths count from, ending in a slash.
        paths: A NUL after each.
        outside: Whether what a path leads to may lie outside of `root`.
    """

    root: bytes
    paths: bytes
    outside: bool


class StatResult(NamedTuple):
    """The files that were found, one per path.

    Attributes:
        kinds: FILE or LINK.
        facts: int64[paths, 4]: bytes; when they were modified and the latest time at which anything could have changed
            what the path gives, in nanoseconds; and 0, or one more than the place in `problems`: all else is 0 then.
        problems: (code, message), each once.
    """

    kinds: bytes
    facts: bytes
    problems: list[tuple[SkipCode, str]]


class _FolderState(NamedTuple):
    """A folder on the way to files: whether a link is on the way, when it last changed, what is wrong with it."""

    linked: bool
    changed_ns: int
    problem: tuple[SkipCode, str] | None


class _FileState(NamedTuple):
    """What is at a path: its kind, and facts as in `StatResult`, or why it cannot be packed."""

    kind: int = FILE
    size: int = 0
    mtime_ns: int = 0
    changed_ns: int = 0
    problem: tuple[SkipCode, str] | None = None


def stat_files(task: StatTask) -> StatResult:
    """Look at the files, or objects, of a task.

    Raises:
        AccessRefused: We may not look at objects.
        StoreFailed: The store or server fails time and again.
    """
    paths, kinds, facts = task.paths[:-1].split(b"\0"), bytearray(), array("q")
    found: dict[tuple[SkipCode, str], int] = {}
    if is_address(task.root):
        all_seen: Iterable[_FileState] = imap_requests(_inspect_object, [task.root + path for path in paths])
    else:
        all_seen = map(_FileInspector(task.root, outside=task.outside).look_at, paths)
    for kind, size, mtime_ns, changed_ns, problem in all_seen:
        kinds.append(kind)
        number = 0 if problem is None else found.setdefault(problem, len(found) + 1)
        facts.extend((size, mtime_ns, changed_ns, number))
    return StatResult(bytes(kinds), facts.tobytes(), [*found])


class _FileInspector:
    """Looks at files below a root, and at each folder on the way once.

    Args:
        root: Ending in a slash.
        outside: Whether links may lead out of it.
    """

    def __init__(self, root: bytes, *, outside: bool) -> None:
        self._root, self._outside = root, outside
        self._real = os.path.realpath(root).rstrip(b"/") + b"/"
        changed = max(os.lstat(root.rstrip(b"/") or b"/").st_ctime_ns, os.stat(root).st_ctime_ns)
        self._device = os.stat(root).st_dev
        self._folders = {b"": _FolderState(linked=False, changed_ns=changed, problem=None)}

    def look_at(self, path: bytes) -> _FileState:
        """Return what is at a path, relative to the root."""
        folder, kind = resolve_folder(self._folders, path[: path.rfind(b"/") + 1], self._below), FILE
        if folder.problem is not None:
            return _FileState(problem=folder.problem)
        try:
            fact = os.lstat(self._root + path)
            if stat.S_ISLNK(fact.st_mode):
                kind = LINK
                if problem := self._outside_problem(self._root + path):
                    return _FileState(problem=problem)
                fact = os.stat(self._root + path)
        except OSError as error:
            return _FileState(problem=link_failure(error) if kind == LINK else path_failure(error))
        if not stat.S_ISREG(fact.st_mode):
            what = "a folder" if stat.S_ISDIR(fact.st_mode) else SPECIAL_FILE_MESSAGE
            return _FileState(problem=("special-file", what))
        changed_ns = ALWAYS_CHANGED if kind == LINK else max(fact.st_ctime_ns, folder.changed_ns)
        return _FileState(kind, fact.st_size, fact.st_mtime_ns, changed_ns)

    def _below(self, above: _FolderState, prefix: bytes) -> _FolderState:
        if above.problem is not None:
            return above
        path = self._root + prefix
        try:
            fact = os.lstat(path[:-1])
            linked = above.linked or stat.S_ISLNK(fact.st_mode)
            sure = not linked and fact.st_dev == self._device
            problem = self._outside_problem(path) if linked else None
        except OSError as error:
            return _FolderState(linked=above.linked, changed_ns=0, problem=path_failure(error))
        return _FolderState(linked, max(above.changed_ns, fact.st_ctime_ns) if sure else ALWAYS_CHANGED, problem)

    def _outside_problem(self, path: bytes) -> tuple[SkipCode, str] | None:
        if self._outside or (os.path.realpath(path) + b"/").startswith(self._real):
            return None
        return "link-outside", f"leads out of the root by a link; {cli_option('allow_outside', value=True)} packs it"


def _inspect_object(place: bytes) -> _FileState:
    try:
        fact = file_info(place)
    except OSError as error:
        return _FileState(problem=path_failure(error))
    version = fact.st_mtime_ns  # it shows each change, and no clock does
    return _FileState(FILE, fact.st_size, version, 0 if version else ALWAYS_CHANGED)
