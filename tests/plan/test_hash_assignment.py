from __future__ import annotations

import re
from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool.errors import InvalidRequest
from shardtool.pattern import ShardPattern, parse_pattern
from shardtool.plan.plan import Plan, make_plan
from shardtool.plan.shard_bounds import ShardBounds
from shardtool.plan.shard_task import build_shard_samples
from tests.made import made_entries

OPEN = parse_pattern("out-{000..}.tar")
KEYS = st.sets(st.integers(0, 10**6), min_size=1, max_size=200).map(lambda numbers: [b"%07d" % n for n in numbers])
SEEDS = st.none() | st.integers(0, 5)
_SAMPLE = 1024  # a header and a block


def _plan(keys: list[bytes], seed: int | None = None, pattern: ShardPattern = OPEN, **bounds: Any) -> Plan:
    return make_plan(made_entries([[1]] * len(keys), keys), pattern, ShardBounds(by_hash=True, **bounds), seed)


def _keys(plan: Plan) -> list[list[bytes]]:
    """Return the keys of each shard, as a worker would get them."""
    return [build_shard_samples(plan, shard).content.keys.split(b"\0")[:-1] for shard in range(plan.shards)]


def _number(key: bytes, count: int) -> int:
    digest = blake2b(key, digest_size=8, person=b"shardtool place").digest()
    return int.from_bytes(digest, "little") % count


@given(KEYS, SEEDS, st.none() | st.integers(4, 40))
def test_the_hash_of_the_key_chooses_the_shard(keys: list[bytes], seed: int | None, max_count: int | None) -> None:
    """Each sample is in the shard given by its key's hash, in key order; no shard is empty or too full."""
    try:
        plan = _plan(keys, seed, max_count=max_count)
    except InvalidRequest as error:
        assert error.where == "place='hash'"  # noqa: PT017 - few samples may leave one empty with any number
        return
    shards = _keys(plan)
    expected: list[list[bytes]] = [[] for _ in range(plan.shards)]
    for key in sorted(keys):
        expected[_number(key, plan.shards)].append(key)
    assert [sorted(shard) for shard in shards] == expected
    assert all(0 < len(shard) <= (max_count or 1000) for shard in shards)
    if seed is None:
        assert shards == expected


@given(KEYS, st.integers(0, 10**6), SEEDS)
def test_one_key_more_changes_one_shard(keys: list[bytes], number: int, seed: int | None) -> None:
    """A new key changes only its own shard, shuffled or not; the order of the source is irrelevant."""
    key = b"%07d+" % number
    plan = _plan(keys, seed, max_count=max(4, len(keys) // 8)) if len(keys) > 100 else _plan(keys, seed)
    before, after = _keys(plan), _keys(_plan([key, *reversed(keys)], seed, shards=plan.shards))
    shard = _number(key, plan.shards)
    assert [other_key for other_key in after[shard] if other_key != key] == before[shard]
    assert after[:shard] + after[shard + 1 :] == before[:shard] + before[shard + 1 :]


def test_the_shard_count_stays_if_possible() -> None:
    """A free shard count leaves room to grow; once shards are too full, another is chosen, with a note."""
    keys = [b"%05d" % number for number in range(2000)]
    shards = _plan(keys[:1000], max_size=50 * _SAMPLE).shards
    assert _plan(keys[:1010], max_size=50 * _SAMPLE, current_shards=shards).shards == shards
    grown = _plan(keys, max_size=50 * _SAMPLE, current_shards=shards)
    assert grown.shards > shards
    assert [f"{shards} shards by hash can no longer hold" in note for note in grown.notes] == [True]
    assert _plan(keys[:3], current_shards=10**15).shards == 1


@pytest.mark.parametrize(
    ("bounds", "problem"),
    [
        ({"shards": 900}, "shards by hash would be empty"),
        ({"shards": 2000}, "2,000 shards for 1,000 samples"),
        ({"shards": 20, "max_count": 50}, "samples in one of 20 shards"),
        ({"shards": 20, "max_size": 52 * _SAMPLE}, "in one of 20 shards by hash; expected at most"),
        ({"shards": 900, "multiple_of": 30}, "shards by hash would be empty"),
    ],
)
def test_impossible_shard_counts_are_refused(bounds: dict[str, Any], problem: str) -> None:
    """A count that leaves a shard empty or over a limit is refused; the error suggests one that works."""
    keys = [b"%05d" % number for number in range(1000)]
    with pytest.raises(InvalidRequest, match=problem) as caught:
        _plan(keys, **bounds)
    shards = int(re.findall(r"shards=(\d+)", caught.value.remedy)[0])
    assert _plan(keys, **{**bounds, "shards": shards}).shards == shards


def test_samples_that_fit_no_shard_count() -> None:
    """If every count leaves a shard empty or over the limits, the plan is refused."""
    keys = [b"%05d" % number for number in range(40)]
    with pytest.raises(InvalidRequest, match=r"^place='hash': 40 samples.*Use place='order', or allow larger shards"):
        _plan(keys, max_count=1)


@pytest.mark.parametrize(("names", "shards"), [("{00..19}", 20), ("{0000..4999}", 1)])
def test_a_closed_range_sets_the_shard_count(names: str, shards: int) -> None:
    """A closed range without other limits sets the shard count, if there are enough samples."""
    plan = _plan([b"%05d" % number for number in range(1000)], pattern=parse_pattern(f"out-{names}.tar"))
    assert (plan.shards, len(plan.notes)) == (shards, shards == 1)


def test_hash_shard_count_is_a_multiple() -> None:
    """A free shard count is a multiple of the requested number too."""
    plan = _plan([b"%05d" % number for number in range(1000)], max_count=60, multiple_of=8)
    assert plan.shards % 8 == 0
