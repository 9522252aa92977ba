"""A pool whose only worker is the process that runs the tests: a fork of that costs more than most runs do."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from shardtool.execute.local_pool import LocalPool
from shardtool.execute.pool import as_reportable, describe_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shardtool.execute.pool import Progress
    from shardtool.values import StartMethod


class OwnWorker(LocalPool):
    """Worker processes, but none where one would do; tasks and results are then pickled as for its pipes."""

    def __init__(self, workers: int, start: StartMethod = "auto", again: str = "Run the same command again.") -> None:
        self._own = workers == 1 and start == "auto"
        super().__init__(workers, start, again)

    def _start_worker(self) -> Any:
        return None if self._own else super()._start_worker()

    def map(
        self, function: Callable[..., Any], tasks: Iterable[object], progress: Progress | None = None
    ) -> Iterator[tuple[int, Any]]:
        """Yield (number, result) of each task, in order."""
        if not self._own:
            yield from super().map(function, tasks, progress)
            return
        for number, task in enumerate(tasks):
            _, result = _sent((number, _served(function, _sent(task), number, progress)))
            yield number, result


def _served(function: Callable[..., Any], task: object, number: int, progress: Progress | None) -> object:
    """Return the result of a task; raise what a pool would."""
    what = describe_task(function, task)
    try:
        if progress is None:
            return function(task)
        return function(task, lambda *done: progress(number, *done))
    except Exception as error:  # noqa: BLE001 - as a worker does
        raise _sent(as_reportable(what, error)) from None


def _sent(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))  # noqa: S301 - our own process
