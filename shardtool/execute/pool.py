"""`Pool`: run tasks in this process, the interface of all pools; and reports about running tasks."""

from __future__ import annotations

import time
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeVar

from shardtool.errors import (
    MEMORY_FIX,
    Bug,
    OutOfMemory,
    PlainError,
    is_out_of_memory,
)
from shardtool.messages import option_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from typing_extensions import Self

    Progress = Callable[..., None]  # a task's number, samples, bytes, and of URLs the samples that failed


Result = TypeVar("Result")


_MAX_CHECKED_PATHS = 6  # paths that are all looked at


class Pool:
    """Does tasks in this process; to be used in a `with` block, as those are that have workers, which it then ends.

    Attributes:
        most: How many tasks run at the same time at most.
        most_together: How many of them run on one machine.
    """

    most = max_per_machine = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self, paths: Sequence[str | bytes] = (), *, output: str | None = None, function: str = "") -> None:
        """Refuse machines that lack what tasks will need, the same as this process sees; this one has that.

        Args:
            paths: Files and folders, of which a few are looked at; a name that leads nowhere here is passed over.
            output: A folder that workers write into; None: none is asked about.
            function: `module:name` of a function of the user's; empty: there is none.

        Raises:
            InvalidRequest: One does; it is named, with what it has.
            WorkerDied: One does not answer.
        """

    def map(
        self, function: Callable[..., Result], tasks: Iterable[object], progress: Progress | None = None
    ) -> Iterator[tuple[int, Result]]:
        """Yield (number, result) of each task as it is done; tasks are drawn as workers become free.

        Args:
            function: A function of a module; it gets the task and, with `progress`, a function that reports it.
            tasks: What to do, in order.
            progress: Called with a task's number, and the samples and bytes that its worker reports.

        Raises:
            WorkerDied: A worker was killed, or crashed; on a cluster, a task was lost too often.
            ShardError: What `function` raised.
            OutOfMemory: There was no memory for a task.
            Bug: `function` raised something else, in a worker.
        """
        for number, task in enumerate(tasks):
            if progress is None:
                yield number, function(task)
            else:
                yield number, function(task, lambda *done, number=number: progress(number, *done))

    def close(self) -> None:
        """Kill the workers and wait for them; what they have staged is the caller's to discard."""


def sample_paths(paths: Sequence[str | bytes]) -> Sequence[str | bytes]:
    """Return the first, the middle and the last of many paths: enough to see whether a machine has the same files."""
    return paths if len(paths) <= _MAX_CHECKED_PATHS else [paths[at] for at in (0, len(paths) // 2, -1)]


def describe_task(function: Callable[..., object], task: object) -> str:
    """Return what a worker does, for messages."""
    on = getattr(task, "name", None) or getattr(task, "path", None)
    does = function.__name__.strip("_").replace("_", " ")
    return f"a worker, {does} {on}" if isinstance(on, str) else f"a worker, {does}"


def as_reportable(what: str, error: Exception) -> Exception:
    """Return what the parent is to raise for an exception that ended a task."""
    if isinstance(error, PlainError):
        return error
    if is_out_of_memory(error):
        return OutOfMemory(what, "not enough memory", remedy=f"{MEMORY_FIX} Use fewer {option_text('workers')}.")
    return Bug.of(what, error)


def make_reporter(tell: Callable[[list[int]], object], pause_s: float, *, cumulative: bool) -> Callable[..., None]:
    """Return what a task reports to: now and then, `tell` gets what was done since it was called, or `in_all`."""
    last, done = time.monotonic(), [0, 0]

    def report(*more: int) -> None:
        nonlocal last, done
        done = [one + other for one, other in zip_longest(done, more, fillvalue=0)]
        if any(done) and time.monotonic() - last > pause_s:
            tell(done)
            last, done = time.monotonic(), done if cumulative else [0, 0]

    return report
