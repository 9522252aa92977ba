"""Where tasks run: in this process, as `Pool` does them, or in workers; the pools of those offer the same."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeVar

from shardtool.errors import MEMORY_REMEDY, Bug, OutOfMemory, PlainError, is_out_of_memory
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from typing_extensions import Self

    Progress = Callable[..., None]  # a task's number, samples, bytes, and of URLs the samples that failed

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Needs:
    """What every machine with workers must have: the same as this process sees.

    Attributes:
        paths: Files, a few of many, and folders; a name that leads nowhere here is passed over.
        output: A folder that workers write into; empty: none is asked about.
        function: `module:name` of a function of the user's; empty: there is none.
    """

    paths: tuple[str | bytes, ...] = ()
    output: str | None = None
    function: str = ""


class Pool:
    """Does tasks in this process; to be used in a `with` block, as those are that have workers, which it then ends.

    Attributes:
        most: How many tasks run at the same time at most.
        most_together: How many of them run on one machine.
    """

    most = most_together = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self, needs: Needs) -> None:
        """Refuse machines that lack what tasks will need; this one sees what this process sees.

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


def folders_of(source: object) -> tuple[str | bytes, ...]:
    """Return the folders that a source, as the user gave it, names; a table is read by this process alone."""
    each = source if isinstance(source, list | tuple) else [source]
    named = [os.fspath(one) for one in each if isinstance(one, str | bytes | os.PathLike)]
    return tuple(one for one in named if os.path.isdir(one))


def a_few(paths: Sequence[str | bytes]) -> tuple[str | bytes, ...]:
    """Return the first, the middle and the last of many paths: enough to see whether a machine has the same files."""
    return tuple({paths[at]: None for at in (0, len(paths) // 2, -1)}) if paths else ()


# What is said of a task, wherever a worker does it.


def what_of(function: Callable[..., object], task: object) -> str:
    """Return what a worker does, for messages."""
    on = getattr(task, "name", None) or getattr(task, "path", None)
    does = function.__name__.strip("_").replace("_", " ")
    return f"a worker, {does} {on}" if isinstance(on, str) else f"a worker, {does}"


def reported(what: str, error: Exception) -> Exception:
    """Return what the parent is to raise for an exception that ended a task."""
    if isinstance(error, PlainError):
        return error
    if is_out_of_memory(error):
        return OutOfMemory(what, "not enough memory", remedy=f"{MEMORY_REMEDY} Use fewer {option('workers')}.")
    return Bug.of(what, error)


def reporter(tell: Callable[[list[int]], object], pause_s: float, *, in_all: bool) -> Callable[..., None]:
    """Return what a task reports to: now and then, `tell` gets what was done since it was called, or `in_all`."""
    last, done = time.monotonic(), [0, 0]

    def report(*more: int) -> None:
        nonlocal last, done
        done = [one + other for one, other in zip_longest(done, more, fillvalue=0)]
        if time.monotonic() - last > pause_s:
            tell(done)
            last, done = time.monotonic(), done if in_all else [0, 0]

    return report
