"""Reading ahead in threads: results in order, errors in their place, and no thread left behind."""

from __future__ import annotations

import gc
import threading
from itertools import count

import pytest

from shardtool.read.stream import read_ahead


def test_results_are_in_order() -> None:
    """Each job is yielded with its result, in order, for any number of jobs ahead."""
    for ahead in (1, 3, 50):
        made = read_ahead(range(20), lambda job: job * job, ahead)
        assert [(job, result.result()) for job, result in made] == [(at, at * at) for at in range(20)]
    assert list(read_ahead([], str)) == []


def test_reads_no_further_ahead_than_requested() -> None:
    """While one result is used, exactly `ahead` further results are computed."""
    made: list[int] = []
    jobs = count()
    results = read_ahead(jobs, made.append, ahead=2)
    next(results)
    next(results)
    results.close()
    assert next(jobs) == 4
    assert made == [0, 1, 2, 3][: len(made)]


def test_an_error_is_raised_after_earlier_results() -> None:
    """A job's error is raised in place of its result."""
    got = []
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - includes earlier results
        for _, result in read_ahead([3, 2, 1, 0, 5], lambda job: 6 // job, ahead=3):
            got.append(result.result())
    assert got == [2, 3, 6]


def test_a_break_ends_the_thread() -> None:
    """The thread ends with the generator, however that ends."""
    before = {*threading.enumerate()}
    for _ in read_ahead(count(), str):
        assert len({*threading.enumerate()} - before) == 1
        break
    assert {*threading.enumerate()} <= before


def test_the_garbage_collector_does_not_wait_for_threads() -> None:
    """If the collector closes a generator, it cancels the pending jobs; the running job and the threads end later."""
    before, released, finished = {*threading.enumerate()}, threading.Event(), list[int]()

    def wait(job: int) -> None:
        released.wait(5)
        finished.append(job)

    cycle: list[object] = [results := read_ahead(count(), wait, ahead=3)]
    cycle.append(cycle)
    next(results)
    del results, cycle
    gc.collect()
    assert finished == []
    released.set()
    for thread in {*threading.enumerate()} - before:
        thread.join(5)
    assert finished == [0]
    assert {*threading.enumerate()} <= before


def test_shards_are_prefetched_ahead() -> None:
    """Each job is passed to a thread a fixed number of jobs ahead, whatever the thread does; the thread ends."""
    seen: list[int] = []

    def expect(job: int) -> None:
        seen.append(job)
        if job == 3:
            raise ZeroDivisionError

    before, jobs = {*threading.enumerate()}, count()
    coming = read_ahead(jobs, expect, 5)
    assert [next(coming)[0] for _ in range(7)] == [*range(7)]
    assert next(jobs) == 12
    coming.close()
    assert {*threading.enumerate()} <= before
    assert seen == [*range(12)][: len(seen)]
    assert [job for job, _ in read_ahead(range(4), expect, 9)] == [*range(4)]
