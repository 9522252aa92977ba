"""Look at the objects that a manifest lists: what `stat` does for files. Runs in workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shardtool.errors import reason
from shardtool.source.folder.scan import ALWAYS
from shardtool.source.manifest.stat import ListedPart
from shardtool.storage.sources import at_once, object_fact
from shardtool.values import FILE

if TYPE_CHECKING:
    from shardtool.skipped import SkipCode
    from shardtool.source.manifest.stat import ListedTask


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
