"""Laws of concurrent tasks: each runs once, few at a time, and none after the loop."""

from __future__ import annotations

import threading
import time

import pytest

from shardtool.errors import InvalidRequest
from shardtool.request.dataset_options import CopyOptions
from shardtool.request.observer import Observer
from shardtool.verbs.copy.threads import ByteMeter, ThreadCount, run_in_threads
from tests.helpers import PATIENCE_S


class _Counting(Observer):
    def __init__(self) -> None:
        self.size = 0

    def advance(self, samples: int, size: int, shards: int) -> None:  # noqa: ARG002 - of an observer
        self.size += size


@pytest.mark.parametrize("threads", [1, 3])
def test_each_task_is_yielded_once(threads: int) -> None:
    """Each task is yielded once with its result, the number of threads is respected, and all bytes are counted."""
    running, most = [0], [0]
    lock, observer = threading.Lock(), _Counting()

    def work(task: int, meter: ByteMeter) -> int:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.001)
        meter.add(task)
        with lock:
            running[0] -= 1
        return task * task

    result = dict(run_in_threads(work, range(40), CopyOptions(workers=threads), observer))
    assert result == {task: task * task for task in range(40)}
    assert observer.size == sum(range(40))
    assert most[0] <= threads


def test_without_threads() -> None:
    """With `workers=0`, tasks run in the calling thread in order, and their bytes are counted while they run."""
    observer, threads = _Counting(), set()

    def work(task: int, meter: ByteMeter) -> int:
        threads.add(threading.get_ident())
        meter.add(task)
        assert observer.size == sum(range(task + 1))
        return -task

    copied = list(run_in_threads(work, range(40), CopyOptions(workers=0), observer))
    assert copied == [(task, -task) for task in range(40)]
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize(
    ("options", "gains", "numbers"),
    [
        (None, 16, [4, 8, 16, 16, 16]),  # the bytes a second grow with the number, up to this one
        (None, 8, [4, 8, 16, 8, 8]),
        (None, 4, [4, 8, 4, 4, 4]),
        (None, 1, [4, 8, 4, 4, 4]),  # a disk, or a limit
        (6, 16, [6, 6, 6, 6, 6]),
        (1, 16, [1, 1, 1, 1, 1]),
    ],
)
@pytest.mark.parametrize("size", [0, 10**6])
def test_the_number_of_threads_follows_throughput(
    options: int | None, gains: int, numbers: list[int], size: int
) -> None:
    """The number grows as long as throughput grows, also for tasks without bytes; a fixed number stays."""
    pace, now, result = ThreadCount(options), time.monotonic(), list[int]()
    for _ in numbers:
        result.append(pace.limit)
        ended = 40 * pace.limit
        now += ended / min(pace.limit, gains)  # each takes a second
        pace.note(ended * size, ended, now)
    assert result == numbers


def test_short_measurements_change_nothing() -> None:
    """Neither a moment nor a few tasks change the number of threads."""
    pace, now = ThreadCount(None), time.monotonic()
    pace.note(10**9, 100, now + 0.5)
    assert pace.limit == 4
    pace = ThreadCount(None)
    pace.note(10**9, 3, now + 50)
    assert pace.limit == 4
    pace.note(0, 1, now + 51)
    assert pace.limit == 8


def test_eight_tasks_run_after_four_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once four tasks have finished, eight run concurrently: they wait for each other."""
    monkeypatch.setattr("shardtool.verbs.copy.threads._MEASURE_S", 0.0)
    together = threading.Barrier(8, timeout=PATIENCE_S)

    def work(task: int, meter: ByteMeter) -> int:
        meter.add(1000)
        if 4 <= task < 12:
            together.wait()
        return task

    result = dict(run_in_threads(work, range(40), CopyOptions(), Observer()))
    assert result == {task: task for task in range(40)}


@pytest.mark.parametrize(("limit", "most"), [("50KB/s", 1), ("250KB/s", 2), ("1MB/s", 4)])
def test_a_rate_limit_reduces_the_threads(limit: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a rate limit, each thread gets a block every ten seconds, because stores close silent connections."""
    monkeypatch.setattr("shardtool.verbs.copy.threads._MEASURE_S", 0.01)
    running: set[int] = set()
    seen: list[int] = []

    def work(task: int, _: ByteMeter) -> None:
        running.add(task)
        seen.append(len(running))
        time.sleep(0.03)
        running.remove(task)

    list(run_in_threads(work, range(12), CopyOptions(limit=limit), Observer()))
    assert max(seen) == most


def test_an_error_stops_all_threads() -> None:
    """The error of a task is raised; other tasks stop at their next block, and no thread remains."""
    ended = threading.Event()

    def work(task: int, meter: ByteMeter) -> None:
        if task == 1:
            raise ValueError(task)
        try:
            while True:
                meter.add(1)
                time.sleep(0.001)
        finally:
            ended.set()

    before = {*threading.enumerate()}
    with pytest.raises(ValueError, match="1"):
        list(run_in_threads(work, range(100), CopyOptions(workers=2), Observer()))
    assert ended.is_set()
    assert {*threading.enumerate()} <= before


def test_tasks_are_drawn_lazily() -> None:
    """Only a few of a million tasks are created in advance, and none after the loop ends early."""
    drawn = [0]

    def tasks() -> object:
        for task in range(10**6):
            drawn[0] += 1
            yield task

    for _ in run_in_threads(lambda task, _: task, tasks(), CopyOptions(workers=2), Observer()):  # type: ignore[arg-type]
        break
    assert drawn[0] < 20


def test_the_rate_limit_is_respected() -> None:
    """All threads together stay within the limit; a rate of zero or an invalid rate is refused."""
    begun = time.monotonic()
    list(run_in_threads(lambda size, meter: meter.add(size), [10_000] * 20, CopyOptions(limit="1MB/s"), Observer()))
    assert time.monotonic() - begun >= 0.2  # 200 kB: a machine may be slower, never faster
    for limit in ("0", "fast", "1MB/h"):
        with pytest.raises(InvalidRequest, match="limit"):
            CopyOptions(limit=limit)
