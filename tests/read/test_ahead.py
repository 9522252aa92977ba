"""Reading ahead in a thread: results in order, errors at their place, and no thread that stays."""

from __future__ import annotations

import threading
from itertools import count

import pytest

from shardtool.read.stream import read_ahead


def test_results_come_in_order() -> None:
    """Each job comes with what was made of it, in order, however many are made ahead; and none without jobs."""
    for ahead in (1, 3, 50):
        made = read_ahead(range(20), lambda job: job * job, ahead)
        assert [(job, result.result()) for job, result in made] == [(at, at * at) for at in range(20)]
    assert list(read_ahead([], str)) == []


def test_no_more_is_read_than_is_asked_for() -> None:
    """While a result is used, so many others are made as were asked for, and no more."""
    made: list[int] = []
    jobs = count()
    results = read_ahead(jobs, made.append, ahead=2)
    next(results)
    next(results)
    results.close()
    assert next(jobs) == 4
    assert made == [0, 1, 2, 3][: len(made)]


def test_an_error_comes_behind_the_results_before_it() -> None:
    """What a job raises is raised where its result would be."""
    got = []
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the results before it, too
        for _, result in read_ahead([3, 2, 1, 0, 5], lambda job: 6 // job, ahead=3):
            got.append(result.result())
    assert got == [2, 3, 6]


def test_a_break_ends_the_thread() -> None:
    """However the reading ends, its thread ends with it."""
    before = {*threading.enumerate()}
    for _ in read_ahead(count(), str):
        assert len({*threading.enumerate()} - before) == 1
        break
    assert {*threading.enumerate()} <= before


def test_what_is_expected() -> None:
    """Each job is given to a thread so many jobs before it comes, whatever that makes of it; the thread ends."""
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
