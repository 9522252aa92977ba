"""This process in place of a pool of workers: where one worker is asked for, none is started."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Task = TypeVar("Task")
Result = TypeVar("Result")


class Here:
    """Does the work of a pool in this process."""

    def map(self, function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[tuple[int, Result]]:
        """Yield (number, result) of each task."""
        for number, task in enumerate(tasks):
            yield number, function(task)
