"""Look at the files that a manifest lists: the half of that source that runs in workers.

What comes back is columns of plain bytes, a row per path, in the order of the paths. No file is
opened, and neither NumPy nor pyarrow is imported (see `scan`).
"""

from __future__ import annotations

import errno
import os
import stat
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from shardtool.errors import reason
from shardtool.source.folder.scan import ALWAYS
from shardtool.storage.sources import at_once, object_fact
from shardtool.values import FILE, LINK
from shardtool.wording import typed_option

if TYPE_CHECKING:
    from shardtool.skipped import SkipCode


@dataclass(frozen=True, slots=True)
class ListedTask:
    """Files for one worker.

    Attributes:
        root: What paths count from, ending in a slash.
        paths: A NUL after each.
        outside: Whether what a path leads to may lie outside of `root`.
        samples: How many samples the paths belong to.
    """

    root: bytes
    paths: bytes
    outside: bool
    samples: int


@dataclass(slots=True)
class ListedPart:
    """The files that were found, one per path; zeros where there is a problem.

    Attributes:
        samples: How many samples the paths belong to.
        kinds: FILE or LINK.
        sizes: Bytes.
        mtimes: Nanoseconds.
        changed: The latest time at which anything could have changed what the path gives.
        problems: (code, message), each once.
        problem: 0, or one more than the place in `problems`.
    """

    samples: int = 0
    kinds: bytearray = field(default_factory=bytearray)
    sizes: array[int] = field(default_factory=lambda: array("q"))
    mtimes: array[int] = field(default_factory=lambda: array("q"))
    changed: array[int] = field(default_factory=lambda: array("q"))
    problems: list[tuple[SkipCode, str]] = field(default_factory=list)
    problem: array[int] = field(default_factory=lambda: array("I"))

    def __len__(self) -> int:
        return self.samples


class _Folder(NamedTuple):
    """A folder on the way to files: whether a link is on the way, when it last changed, what is wrong with it."""

    linked: bool
    changed_ns: int
    problem: tuple[SkipCode, str] | None


_NOTHING = os.stat_result(range(10))


def stat_listed(task: ListedTask) -> ListedPart:
    """Look at the files of a task."""
    part, look = ListedPart(task.samples), PathChecks(task.root, outside=task.outside)
    found: dict[tuple[SkipCode, str], int] = {}
    last, folder = None, None
    for path in task.paths[:-1].split(b"\0"):
        above = path[: path.rfind(b"/") + 1]
        if above != last or folder is None:
            last, folder = above, look.folder(above)
        kind, size, mtime_ns, changed_ns, problem = FILE, 0, 0, 0, folder.problem
        if problem is None:
            try:
                fact = os.lstat(task.root + path)
                if stat.S_ISLNK(fact.st_mode):
                    kind = LINK
                    fact, problem = look.link(path)
                if problem is None and not stat.S_ISREG(fact.st_mode):
                    problem = _special(fact.st_mode)
                if problem is None:
                    size, mtime_ns = fact.st_size, fact.st_mtime_ns
                    changed_ns = ALWAYS if kind == LINK else max(fact.st_ctime_ns, folder.changed_ns)
            except OSError as error:
                problem = _failure(error)
        part.kinds.append(kind)
        part.sizes.append(size)
        part.mtimes.append(mtime_ns)
        part.changed.append(changed_ns)
        part.problem.append(0 if problem is None else found.setdefault(problem, len(found) + 1))
    part.problems = list(found)
    return part


class PathChecks:
    """Looks at folders and links below a root, at each folder once.

    Args:
        root: Ending in a slash.
        outside: Whether links may lead out of it.
    """

    def __init__(self, root: bytes, *, outside: bool) -> None:
        self._root, self._outside = root, outside
        self._real = os.path.realpath(root).rstrip(b"/") + b"/"
        changed = max(os.lstat(root.rstrip(b"/") or b"/").st_ctime_ns, os.stat(root).st_ctime_ns)
        self._device = os.stat(root).st_dev
        self._folders = {b"": _Folder(linked=False, changed_ns=changed, problem=None)}

    def folder(self, prefix: bytes) -> _Folder:
        """Return what is known of a folder, relative to the root and ending in a slash."""
        new = []
        while prefix not in self._folders:  # no recursion: a path may have a thousand parts
            new.append(prefix)
            prefix = prefix[: prefix.rfind(b"/", 0, -1) + 1]
        known = self._folders[prefix]
        for below in reversed(new):
            known = self._folders[below] = self._below(known, below)
        return known

    def _below(self, above: _Folder, prefix: bytes) -> _Folder:
        if above.problem is not None:
            return above
        path = self._root + prefix
        try:
            fact = os.lstat(path[:-1])
            linked = above.linked or stat.S_ISLNK(fact.st_mode)
            sure = not linked and fact.st_dev == self._device
            problem = self._outside_problem(path) if linked else None
        except OSError as error:
            return _Folder(linked=above.linked, changed_ns=0, problem=_failure(error))
        return _Folder(linked, max(above.changed_ns, fact.st_ctime_ns) if sure else ALWAYS, problem)

    def link(self, path: bytes) -> tuple[os.stat_result, tuple[SkipCode, str] | None]:
        """Return what a link leads to, and why it cannot be followed."""
        problem = self._outside_problem(self._root + path)
        if problem is not None:
            return _NOTHING, problem
        try:
            return os.stat(self._root + path), None
        except FileNotFoundError:
            return _NOTHING, ("dangling-link", "a link to nothing")
        except OSError as error:
            code: SkipCode = "link-loop" if error.errno == errno.ELOOP else "unreadable"
            return _NOTHING, (code, reason(error))

    def _outside_problem(self, path: bytes) -> tuple[SkipCode, str] | None:
        if self._outside or (os.path.realpath(path) + b"/").startswith(self._real):
            return None
        return "link-outside", f"leads out of the root by a link; {typed_option('allow_outside', value=True)} packs it"


def _special(mode: int) -> tuple[SkipCode, str]:
    return "special-file", "a folder" if stat.S_ISDIR(mode) else "a fifo, socket or device; only files can be packed"


def _failure(error: OSError) -> tuple[SkipCode, str]:
    gone = isinstance(error, FileNotFoundError | NotADirectoryError)
    return "vanished" if gone else "unreadable", reason(error)


# Look at the objects that a manifest lists: what `stat` does for files. Runs in workers.


class _Seen(NamedTuple):
    size: int = 0
    version: int = 0
    problem: tuple[SkipCode, str] | None = None


def look_at_objects(task: ListedTask) -> ListedPart:
    """Look at the objects of a task.

    Raises:
        AccessRefused: We may not.
        StoreFailed: The store or server fails time and again.
    """
    part = ListedPart(task.samples)
    found: dict[tuple[SkipCode, str], int] = {}
    for seen in at_once(_look_at, [task.root + path for path in task.paths[:-1].split(b"\0")]):
        part.kinds.append(FILE)
        part.sizes.append(seen.size)
        part.mtimes.append(seen.version)
        part.changed.append(0 if seen.version else ALWAYS)  # a version shows each change, and no clock does
        problem = seen.problem
        part.problem.append(0 if problem is None else found.setdefault(problem, len(found) + 1))
    part.problems = list(found)
    return part


def _look_at(place: bytes) -> _Seen:
    try:
        fact = object_fact(place)
    except OSError as error:
        gone = isinstance(error, FileNotFoundError)
        return _Seen(problem=("vanished" if gone else "unreadable", reason(error)))
    return _Seen(fact.st_size, fact.st_mtime_ns)
