"""Base class of pools."""

from __future__ import annotations

import sys
import time
from contextlib import redirect_stdout
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeVar

from shardtool.errors import MEMORY_FIX, Bug, OutOfMemory, PlainError, is_out_of_memory
from shardtool.messages import option_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from typing_extensions import Self

    Progress = Callable[..., None]


Result = TypeVar("Result")
_MAX_CHECKED_PATHS = 6


class Pool:
    """Runs one task at a time in the calling process. Use it in a `with` block."""

    max_tasks = max_per_machine = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_access(self, paths: Sequence[str | bytes] = (), *, output: str | None = None, function: str = "") -> None:
        """Raise `InvalidRequest` if a worker's machine lacks input files, the output folder or a `--map` function."""

    def start(self, tasks: int) -> None:
        """Start the workers of a lazy pool if there is more than one task."""

    def map(
        self, function: Callable[..., Result], tasks: Iterable[object], progress: Progress | None = None
    ) -> Iterator[tuple[int, Result]]:
        """Run a function on tasks, and yield the number and result of each task as it finishes.

        A task is taken from `tasks` when a worker is free. `progress` is called with the task number, and the numbers
        of samples and bytes processed since the last call.

        Raises:
            ShardError: Raised by `function`.
            Bug: `function` raised another exception.
        """
        for number, task in enumerate(tasks):
            callbacks = [] if progress is None else [partial(progress, number)]
            try:
                # redirect the output of a user's function to stderr, as worker processes do
                with redirect_stdout(sys.stderr):
                    result = function(task, *callbacks)
            except PlainError:
                raise
            except Exception as error:
                raise as_reportable(describe_task(function, task), error) from error
            yield number, result

    def close(self) -> None:
        """Kill the workers, and wait until they have exited. The caller must delete the staged files of the workers."""


def sample_paths(paths: Sequence[str | bytes]) -> Sequence[str | bytes]:
    """Return all paths, or only the first, middle and last if there are more than six."""
    return paths if len(paths) <= _MAX_CHECKED_PATHS else [paths[index] for index in (0, len(paths) // 2, -1)]


def describe_task(function: Callable[..., object], task: object) -> str:
    """Describe a task for messages, for example `worker (pack shard out-000000.tar)`."""
    target = getattr(task, "name", None) or getattr(task, "path", None)
    action = function.__name__.strip("_").replace("_", " ")
    return f"worker ({action} {target})" if isinstance(target, str) else f"worker ({action})"


def as_reportable(location: str, error: Exception) -> Exception:
    """Convert a task's exception to the exception that the parent process raises."""
    if isinstance(error, PlainError):
        return error
    if is_out_of_memory(error):
        return OutOfMemory(location, "not enough memory", remedy=f"{MEMORY_FIX} Use fewer {option_text('workers')}.")
    return Bug.from_exception(location, error)


def make_reporter(
    send_report: Callable[[list[int]], object], pause_s: float, *, cumulative: bool
) -> Callable[..., None]:
    """Return a progress callback that calls `send_report` at most every `pause_s` seconds.

    If `cumulative` is true, the callback reports totals, else the counts since the last report.
    """
    reported_at, counts = time.monotonic(), [0, 0]

    def report(*added_counts: int) -> None:
        nonlocal reported_at, counts
        counts = [count + added for count, added in zip_longest(counts, added_counts, fillvalue=0)]
        if any(counts) and time.monotonic() - reported_at > pause_s:
            send_report(counts)
            reported_at = time.monotonic()
            counts = counts if cumulative else [0, 0]

    return report
