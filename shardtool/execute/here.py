"""This process in place of a pool of workers: where one worker is asked for, none is started."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from typing_extensions import Self

    from shardtool.execute.pool import Needs, Progress

Result = TypeVar("Result")


class Here:
    """Does the work of a pool in this process."""

    most = most_together = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def check(self, needs: Needs) -> None:
        """Refuse nothing: the tasks see what this process sees."""

    def map(
        self, function: Callable[..., Result], tasks: Iterable[object], progress: Progress | None = None
    ) -> Iterator[tuple[int, Result]]:
        """Yield (number, result) of each task, in order."""
        for number, task in enumerate(tasks):
            if progress is None:
                yield number, function(task)
            else:
                yield number, function(task, lambda *done, number=number: progress(number, *done))

    def close(self) -> None:
        """End nothing: there is no worker."""
