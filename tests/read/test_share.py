"""Ranks and workers divide an epoch, and change nothing else."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shardtool.errors import InvalidRequest
from shardtool.read.order import Ends, Share, rank_and_world_size

if TYPE_CHECKING:
    from collections.abc import Sequence

ends_of_epochs = st.sampled_from(["drop", "pad", "uneven"])


def _ranks(share: Share) -> list[Share]:
    return [replace(share, rank=rank) for rank in range(share.world_size)]


def _positions(share: Share, length: int) -> list[int]:
    """Return all positions of a reader from its origin on."""
    return list(map(int, share.positions(share.origin, share.end(length), length)))


def _batches(share: Share, length: int) -> list[list[int]]:
    """Return the batches of a rank in the order in which a loader receives them from its workers."""
    size = share.batch_size
    workers = [_positions(replace(share, worker=worker), length) for worker in range(share.workers)]
    cut = [[worker[at : at + size] for at in range(0, len(worker), size)] for worker in workers]
    return [one[step] for step in range(max(map(len, cut), default=0)) for one in cut if step < len(one)]


def _steps(share: Share, length: int) -> list[list[int]]:
    """Return the positions of all ranks at each step."""
    ranks = [_batches(rank, length) for rank in _ranks(share)]
    steps = max(map(len, ranks), default=0)
    return [sorted(at for rank in ranks if step < len(rank) for at in rank[step]) for step in range(steps)]


def _together(parts: Sequence[Sequence[int]]) -> list[int]:
    return sorted(at for part in parts for at in part)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 300), st.integers(1, 40), ends_of_epochs, st.data())
def test_ranks_divide_the_rest(length: int, world_size: int, ends: Ends, data: st.DataObject) -> None:
    """From any position on, ranks read each position once (`uneven`), except a few, or some twice (`pad`)."""
    origin = data.draw(st.integers(0, max(0, length - 1)))
    share = Share(0, world_size, ends, origin=origin)
    parts = [_positions(rank, length) for rank in _ranks(share)]
    assert [rank.count(length) for rank in _ranks(share)] == [len(part) for part in parts]
    left = length - origin
    taken = {"drop": left // world_size, "uneven": left / world_size, "pad": -(-left // world_size)}[ends]
    assert _together(parts) == list(range(origin, origin + round(taken * world_size)))
    assert ends == "uneven" or len({len(part) for part in parts}) == 1
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert share.end(length) == origin + sum(map(len, parts))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 400), ends_of_epochs, st.integers(1, 5), st.lists(st.integers(1, 6), min_size=4, max_size=4))
def test_steps_do_not_depend_on_ranks(length: int, ends: Ends, batch: int, numbers: list[int]) -> None:
    """Step n has the same positions for any ranks and workers with the same global batch size.

    This holds up to the last whole global batch. The rest is divided as `ends` requires.
    """
    many, other, workers, more = numbers
    size = batch * many * other
    one = Share(0, many, ends, workers=workers, batch_size=size // many)
    another = Share(0, other, ends, workers=more, batch_size=size // other)
    whole = length // size
    expected = [list(range(step * size, (step + 1) * size)) for step in range(whole)]
    assert _steps(one, length)[:whole] == _steps(another, length)[:whole] == expected


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 300), st.integers(1, 9), ends_of_epochs, st.integers(1, 7), st.integers(1, 7))
def test_workers_divide_a_rank(length: int, world_size: int, ends: Ends, workers: int, batch: int) -> None:
    """Batches of a rank's workers, in turn, are the rank's samples in order."""
    share = Share(world_size - 1, world_size, ends, workers=workers, batch_size=batch)
    alone = replace(share, workers=1)
    assert [at for one in _batches(share, length) for at in one] == _positions(alone, length)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 300), st.integers(1, 9), st.integers(1, 9), st.data())
def test_resumes_with_other_ranks(length: int, before: int, after: int, data: st.DataObject) -> None:
    """Ranks that stop at a step, and others that continue, read each position once."""
    first = Share(0, before, "uneven")
    steps = data.draw(st.integers(0, (length - 1) // before))
    taken = [_positions(rank, length)[:steps] for rank in _ranks(first)]
    ats = {rank.next_position(one[-1]) for rank, one in zip(_ranks(first), taken, strict=True) if one}
    assert ats <= {steps * before}
    rest = [_positions(rank, length) for rank in _ranks(Share(0, after, "uneven", origin=steps * before))]
    assert _together(taken + rest) == list(range(length))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 300), st.integers(1, 9), ends_of_epochs, st.lists(st.integers(0, 320), max_size=5))
def test_rounds_add_up(length: int, world_size: int, ends: Ends, cuts: list[int]) -> None:
    """The positions of a reader do not depend on the cuts between rounds."""
    share = Share(world_size // 2, world_size, ends, origin=length // 3)
    end = share.end(length)
    edges = sorted({share.origin, end, *(cut for cut in cuts if share.origin < cut < end)})
    assume(len(edges) > 1)
    pieces = [share.positions(start, stop, length).tolist() for start, stop in pairwise(edges)]
    assert [at for piece in pieces for at in piece] == _positions(share, length)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 300), st.integers(1, 6), st.integers(1, 6), ends_of_epochs)
def test_ranks_of_a_group_are_equal(length: int, groups: int, each: int, ends: Ends) -> None:
    """All ranks of a group read the same positions, and groups divide an epoch like ranks."""
    ranks = [share.in_groups(groups) for share in _ranks(Share(0, groups * each, ends))]
    taken = [_positions(share, length) for share in ranks]
    assert taken == [_positions(rank, length) for rank in _ranks(Share(0, groups, ends)) for _ in range(each)]
    assert {share.world_size * share.group_size for share in ranks} == {groups * each}


@pytest.mark.parametrize(
    ("groups", "message"), [(3, "groups: 3 for 4 ranks"), (8, "groups: 8"), (0, "groups: 0"), (2.0, "groups: 2.0")]
)
def test_invalid_groups(groups: Any, message: str) -> None:
    """Groups of unequal size, or none, are rejected."""
    with pytest.raises(InvalidRequest, match=message):
        Share(1, 4).in_groups(groups)
    assert Share(1, 4).in_groups(None) == Share(1, 4)


@pytest.mark.parametrize(
    ("share", "where"),
    [
        ({"rank": 4, "world_size": 4}, "rank"),
        ({"rank": -1}, "rank"),
        ({"rank": 0.0}, "rank"),
        ({"world_size": 0}, "world_size"),
        ({"world_size": -2}, "world_size"),
        ({"world_size": "2"}, "world_size"),
        ({"worker": 2, "workers": 2}, "worker"),
        ({"batch_size": 0}, "batch_size"),
        ({"origin": -1}, "origin"),
        ({"ends": "even"}, "ends"),
    ],
)
def test_invalid_shares(share: dict[str, object], where: str) -> None:
    """The error names the invalid number."""
    with pytest.raises(InvalidRequest) as caught:
        Share(**share)  # type: ignore[arg-type]
    assert caught.value.where == where
    assert caught.value.expected


def test_ranks_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default, rank and world size come from the environment if both are set; one alone is rejected."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert rank_and_world_size(None, None) == (0, 1)
    monkeypatch.setenv("RANK", "3")
    assert rank_and_world_size(None, None) == (3, 4)
    assert rank_and_world_size(1, 2) == (1, 2)
    for rank, world_size, name in ((1, None, "rank"), (None, 2, "world_size")):
        with pytest.raises(InvalidRequest, match=f"{name}: given alone"):
            rank_and_world_size(rank, world_size)
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(InvalidRequest, match="'first', '4'"):
        rank_and_world_size(None, None)
