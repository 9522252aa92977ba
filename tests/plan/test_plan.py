from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardtool.errors import InvalidRequest
from shardtool.format.tar_write import TRAILER, encode_header, padding_size
from shardtool.pattern import parse_pattern
from shardtool.plan.plan import Plan, make_plan
from shardtool.plan.random_order import random_permutation
from shardtool.plan.shard_bounds import ShardBounds
from shardtool.plan.shard_task import build_shard_samples, hash_shard_plan
from tests import tfrecords
from tests.helpers import ENVIRONMENT, REPO
from tests.made import FIELDS, made_entries

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardtool.values import Oversize

Sizes = list[list[int]]
OPEN = parse_pattern("out-{000..}.tar")
RECORDS = parse_pattern("out-{000..}.tfrecord")
_BLOCK = 512

# payload bytes of each field of each sample; a sample has 1 to 3 fields
SAMPLES = st.lists(st.lists(st.integers(0, 4000), min_size=1, max_size=3), min_size=1, max_size=40)
SEEDS = st.none() | st.integers(0, 5)


def _sample_bytes(key: bytes, sizes: Sequence[int]) -> int:
    """Return the bytes of a sample in a tar shard, added up from real headers."""
    names = [key + b"." + field.encode() for field in FIELDS]
    return sum(
        len(encode_header(name, size)) + size + padding_size(size) for name, size in zip(names, sizes, strict=False)
    )


def _record_bytes(key: bytes, sizes: Sequence[int]) -> int:
    """Return the bytes of a sample in a TFRecord shard, with payloads of zeros."""
    features = [(name.encode(), tfrecords.BYTES, bytes(size)) for name, size in zip(FIELDS, sizes, strict=False)]
    return len(tfrecords.frame(tfrecords.example([(b"__key__", tfrecords.BYTES, key), *features])))


def _sizes(samples: Sizes, sample_size: Callable[[bytes, Sequence[int]], int] = _sample_bytes) -> list[int]:
    return [sample_size(b"%08d" % number, sizes) for number, sizes in enumerate(samples)]


def _samples_by_shard(plan: Plan) -> list[list[int]]:
    """Return the samples of each shard, as a worker would get them."""
    return [
        [int(key) for key in build_shard_samples(plan, shard).content.keys.split(b"\0")[:-1]]
        for shard in range(plan.shards)
    ]


def _check_complete(plan: Plan, samples: Sizes, skipped: frozenset[int] = frozenset()) -> list[int]:
    """Check that each sample is in one shard, and that shard sizes are exact. Return the shard sizes."""
    shards, sizes = _samples_by_shard(plan), _sizes(samples)
    assert sorted(sample for shard in shards for sample in shard) == [
        sample for sample in range(len(samples)) if sample not in skipped
    ]
    assert all(shards)
    shard_sizes = [sum(sizes[sample] for sample in shard) + len(TRAILER) for shard in shards]
    assert plan.sizes.tolist() == shard_sizes
    assert [plan.count(shard) for shard in range(plan.shards)] == [len(shard) for shard in shards]
    return shard_sizes


@given(SAMPLES, st.integers(8000, 30_000), st.none() | st.integers(1, 9), SEEDS)
def test_shards_are_within_the_limits(samples: Sizes, max_size: int, max_count: int | None, seed: int | None) -> None:
    """Each sample is in exactly one shard; no shard exceeds a limit, and none could hold the next sample too."""
    samples = [[size // 3 for size in sizes] for sizes in samples]
    plan = make_plan(made_entries(samples), OPEN, ShardBounds(max_size, max_count), seed)
    shard_sizes, shards, sizes = _check_complete(plan, samples), _samples_by_shard(plan), _sizes(samples)
    assert max(shard_sizes) <= max_size
    assert max_count is None or max(map(len, shards)) <= max_count
    for size, shard, next_shard in zip(shard_sizes, shards, shards[1:], strict=False):
        assert size + sizes[next_shard[0]] > max_size or len(shard) == max_count


@pytest.mark.parametrize("shard_format", ["tar", "tfrecord"])
@given(samples=SAMPLES)
def test_the_size_limit_is_exact(shard_format: str, samples: Sizes) -> None:
    """A limit of the exact total makes one shard; one byte less makes two. Only a tar has a trailer."""
    is_tar = shard_format == "tar"
    pattern = OPEN if is_tar else RECORDS
    total = sum(_sizes(samples)) + len(TRAILER) if is_tar else sum(_sizes(samples, _record_bytes))
    assert make_plan(made_entries(samples), pattern, ShardBounds(total)).sizes.tolist() == [total]
    if len(samples) > 1:
        assert make_plan(made_entries(samples), pattern, ShardBounds(total - 1)).shards == 2
    else:
        with pytest.raises(InvalidRequest, match="00000000"):
            make_plan(made_entries(samples), pattern, ShardBounds(total - 1))


@pytest.mark.parametrize("oversize", ["error", "alone", "skip"])
def test_the_tfrecord_record_limit_is_exact(oversize: Oversize) -> None:
    """An Example of 2^31 - 1 bytes is planned; one byte more is refused or skipped."""
    limit = 2**31 - 1
    max_payload = limit - (_record_bytes(b"00000000", [0]) - 16) - 5 * 4  # each of five lengths takes 5 bytes, not 1
    plan_at_limit = make_plan(made_entries([[max_payload]]), RECORDS, ShardBounds(2**40, oversize=oversize))
    assert plan_at_limit.sizes.tolist() == [limit + 16]
    entries, bounds = made_entries([[1], [max_payload + 1]]), ShardBounds(2**40, oversize=oversize)
    if oversize == "skip":
        plan = make_plan(entries, RECORDS, bounds)
        assert ([sample.key for sample in plan.skipped], plan.key_at(0)) == (["00000001"], "00000000")
        return
    with pytest.raises(InvalidRequest, match=r"00000001.*2 GiB"):
        make_plan(entries, RECORDS, bounds)


def test_the_default_limit_is_a_gigabyte() -> None:
    """Without other limits, a shard has at most 10^9 bytes; with a count, only the count limits it."""
    samples = [[99_999_000]] * 25
    assert make_plan(made_entries(samples), OPEN, ShardBounds()).sizes.tolist() == [
        999_998_464,
        999_998_464,
        499_999_744,
    ]
    assert make_plan(made_entries(samples), OPEN, ShardBounds(max_count=20)).ends.tolist() == [20, 25]


@given(SAMPLES, st.integers(1, 12), SEEDS)
def test_equal_count(samples: Sizes, max_count: int, seed: int | None) -> None:
    """With `equal_count`, sample counts differ by at most one, within the limits."""
    bounds = ShardBounds(max(_sizes(samples)) * 4 + 1024, max_count, equal_count=True)
    plan = make_plan(made_entries(samples), OPEN, bounds, seed)
    shard_sizes, counts = _check_complete(plan, samples), [len(shard) for shard in _samples_by_shard(plan)]
    assert max(counts) - min(counts) <= 1
    assert max(counts) <= max_count
    assert max(shard_sizes) <= (bounds.max_size or 0)


def _plan_or_error(samples: Sizes, bounds: ShardBounds, seed: int | None = None) -> Plan | InvalidRequest:
    try:
        return make_plan(made_entries(samples), OPEN, bounds, seed)
    except InvalidRequest as error:
        return error


def _plan_or_reason(samples: Sizes, bounds: ShardBounds, seed: int | None = None) -> Plan | str:
    """Return the plan, or which part of the request was refused."""
    plan = _plan_or_error(samples, bounds, seed)
    return plan.where if isinstance(plan, InvalidRequest) else plan


@given(SAMPLES, st.integers(1, 6), st.integers(1024, 5000), st.integers(1, 9))
@example([[4608], [0], [4608], [512]], 3, 1536, 9)
def test_shard_count_is_a_multiple(samples: Sizes, multiple: int, room: int, max_count: int) -> None:
    """The number of shards is a multiple of the requested number, within the limits, or refused if there is none."""
    max_size = max(_sizes(samples)) + room
    min_shards = make_plan(made_entries(samples), OPEN, ShardBounds(max_size, max_count)).shards
    plan = _plan_or_reason(samples, ShardBounds(max_size, max_count, multiple_of=multiple))
    if isinstance(plan, str):
        assert plan == "shards_multiple_of"
        assert len(samples) // multiple * multiple < min_shards
        return
    assert plan.shards % multiple == 0
    assert max(_check_complete(plan, samples)) <= max_size
    assert max(map(len, _samples_by_shard(plan))) <= max_count


@given(SAMPLES, st.integers(1, 6), st.integers(2, 9))
@example([[1000]] * 50 + [[100_000]] * 50, 4, 10)
def test_shard_count_is_the_smallest_multiple(samples: Sizes, multiple: int, max_count: int) -> None:
    """The number of shards is the smallest multiple that satisfies the limits."""
    min_shards = make_plan(made_entries(samples), OPEN, ShardBounds(max_count=max_count)).shards
    plan = _plan_or_reason(samples, ShardBounds(max_count=max_count, multiple_of=multiple))
    if -(-min_shards // multiple) * multiple <= len(samples):
        assert not isinstance(plan, str)
        assert plan.shards == -(-min_shards // multiple) * multiple


@given(SAMPLES, st.integers(1, 6), st.integers(1, 9))
def test_multiple_of_with_equal_counts(samples: Sizes, multiple: int, max_count: int) -> None:
    """Both requirements hold, or the multiple is refused."""
    bounds = ShardBounds(max(_sizes(samples)) + 3000, max_count, equal_count=True, multiple_of=multiple)
    plan = _plan_or_reason(samples, bounds)
    if isinstance(plan, str):
        assert plan == "shards_multiple_of"
        assert multiple > 1
        return
    counts = [len(shard) for shard in _samples_by_shard(plan)]
    assert plan.shards % multiple == 0
    assert max(counts) - min(counts) <= 1
    assert max(_check_complete(plan, samples)) <= (bounds.max_size or 0)


@given(SAMPLES, st.integers(1, 40), SEEDS)
def test_a_closed_range_is_filled(samples: Sizes, count: int, seed: int | None) -> None:
    """A closed range makes exactly that many shards, each at most one sample off its share of the bytes."""
    count = min(count, len(samples))
    plan = make_plan(made_entries(samples), parse_pattern(f"out-{{1..{count}}}.tar"), ShardBounds(), seed)
    shard_sizes = _check_complete(plan, samples)
    assert plan.shards == count
    largest, share = max(_sizes(samples)), sum(_sizes(samples)) / count
    if share > largest:  # otherwise single samples are larger than a share, and no cut is even
        assert all(abs(size - len(TRAILER) - share) <= largest for size in shard_sizes)


@given(SAMPLES, st.integers(1, 40))
def test_a_closed_range_is_filled_with_equal_counts(samples: Sizes, count: int) -> None:
    """With `equal_count`, sample counts of a closed range differ by at most one."""
    count = min(count, len(samples))
    plan = make_plan(made_entries(samples), parse_pattern(f"out-{{1..{count}}}.tar"), ShardBounds(equal_count=True))
    _check_complete(plan, samples)
    counts = [len(shard) for shard in _samples_by_shard(plan)]
    assert len(counts) == count
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(
    ("output", "bounds", "where"),
    [
        ("out-{0..8}.tar", ShardBounds(max_count=1), "out-{0..8}.tar"),
        ("out-{0..}.tar", ShardBounds(shards=11), "shards=11"),
        ("out-{0..3}.tar", ShardBounds(shards=5), "out-{0..3}.tar"),
        ("out-{0..}.tar", ShardBounds(shards=4, multiple_of=3), "shards_multiple_of"),
        ("out-{0..}.tar", ShardBounds(shards=4, max_count=2), "shards=4"),
        ("out-{0..}.tar", ShardBounds(shards=2, max_size=5000, equal_count=True), "shards=2"),
        ("out-{0..3}.tar", ShardBounds(multiple_of=3), "shards_multiple_of"),
        ("out-{0..}.tar", ShardBounds(max_count=9, multiple_of=11), "shards_multiple_of"),
        ("out-{0..}.tar", ShardBounds(max_size=2047), "max_size"),
        ("out-{0..}.tar", ShardBounds(max_size=1), "max_size"),
        ("out-{0..}.tar", ShardBounds(max_size=1024, oversize="skip"), "max_size"),
    ],
)
def test_impossible_requests_are_refused(output: str, bounds: ShardBounds, where: str) -> None:
    """The error names the pattern, multiple or limit that cannot hold the ten samples."""
    with pytest.raises(InvalidRequest) as caught:
        make_plan(made_entries([[1]] * 10), parse_pattern(output), bounds)
    assert caught.value.where == where
    assert caught.value.found


@given(SAMPLES, st.integers(1, 40), st.none() | st.integers(1, 9), st.booleans())
def test_the_requested_shard_count(samples: Sizes, count: int, max_count: int | None, equal_count: bool) -> None:  # noqa: FBT001 - a parameter
    """`shards` makes exactly that many within the limits; otherwise the error suggests a possible number."""
    bounds = ShardBounds(max(_sizes(samples)) + 3000, max_count, shards=count, equal_count=equal_count)
    plan = _plan_or_error(samples, bounds)
    if isinstance(plan, InvalidRequest):
        assert plan.where == f"shards={count}"
        possible_count = int(re.findall(r"shards=(\d+)", plan.remedy)[0])
        plan, count = make_plan(made_entries(samples), OPEN, bounds._replace(shards=possible_count)), possible_count
    assert plan.shards == count
    assert max(_check_complete(plan, samples)) <= (bounds.max_size or 0)
    assert max(map(len, _samples_by_shard(plan))) <= (max_count or len(samples))


@given(SAMPLES, st.integers(1, 60))
def test_a_range_with_more_names_than_samples(samples: Sizes, extra_names: int) -> None:
    """With too few samples, the default limit decides how many names are used, with a note."""
    count = len(samples) + extra_names
    plan = make_plan(made_entries(samples), parse_pattern(f"out-{{1..{count}}}.tar"), ShardBounds())
    assert plan.ends.tolist() == make_plan(made_entries(samples), OPEN, ShardBounds()).ends.tolist()
    assert [
        f"{count} shards need at least {count} samples; there are {len(samples)}" in note for note in plan.notes
    ] == [True]


@pytest.mark.parametrize("bounds", [ShardBounds(max_count=1), ShardBounds(max_size=2048), ShardBounds()])
def test_all_names_can_be_used(bounds: ShardBounds) -> None:
    """Ten shards fit ten names."""
    plan = make_plan(made_entries([[1]] * 10), parse_pattern("out-{0..9}.tar"), bounds)
    assert plan.ends.tolist() == list(range(1, 11))


_LARGE = st.lists(st.sampled_from([100, 1500, 9000, 20_000]).map(lambda size: [size]), min_size=2, max_size=20)


@given(_LARGE, SEEDS)
def test_oversize_error(samples: Sizes, seed: int | None) -> None:
    """A sample too large for a shard is an error that names the sample."""
    large = [sample for sample, sizes in enumerate(samples) if sizes[0] >= 9000]
    if large:
        with pytest.raises(InvalidRequest) as caught:
            make_plan(made_entries(samples), OPEN, ShardBounds(8000), seed)
        assert f"{large[0]:08}" in caught.value.found
        assert "oversize" in caught.value.remedy
    else:
        _check_complete(make_plan(made_entries(samples), OPEN, ShardBounds(8000), seed), samples)


@given(_LARGE, SEEDS, st.integers(1, 3), st.sampled_from(["bytes", "count"]))
@example([[9000], [100], [100], [100], [9000], [100]], None, 2, "bytes")
def test_oversize_alone(samples: Sizes, seed: int | None, multiple: int, even: str) -> None:
    """With `alone`, a shard over the limit has one sample, and no sample is skipped."""
    bounds = ShardBounds(8000, multiple_of=multiple, equal_count=even == "count", oversize="alone")
    plan = _plan_or_reason(samples, bounds, seed)
    if isinstance(plan, str):
        assert plan != "max_size"
        assert multiple > 1 or even == "count"
        return
    shard_sizes = _check_complete(plan, samples)
    over = [shard for shard, size in enumerate(shard_sizes) if size > 8000]
    assert [plan.count(shard) for shard in over] == [1] * sum(sizes[0] >= 9000 for sizes in samples)
    assert bool(plan.notes) == bool(over)


@given(_LARGE, SEEDS)
def test_oversize_skip(samples: Sizes, seed: int | None) -> None:
    """With `skip`, a sample too large for a shard is listed as skipped: in = planned + skipped."""
    large = frozenset(sample for sample, sizes in enumerate(samples) if sizes[0] >= 9000)
    if len(large) == len(samples):
        return
    plan = make_plan(made_entries(samples), OPEN, ShardBounds(8000, oversize="skip"), seed)
    assert max(_check_complete(plan, samples, large)) <= 8000
    assert [(int(row.key), row.code) for row in plan.skipped] == [(sample, "oversize") for sample in sorted(large)]


@given(st.lists(st.integers(1, 130).map(lambda size: b"k" * size), min_size=1, max_size=12, unique=True))
def test_sizes_are_exact_for_long_names(keys: list[bytes]) -> None:
    """Sizes include the headers of long names, with and without a slash to split at."""
    keys = sorted([*keys, *(b"folder/" + key for key in keys)])
    plan = make_plan(made_entries([[1, 513]] * len(keys), keys), OPEN, ShardBounds())
    assert plan.sizes.tolist() == [sum(_sample_bytes(key, [1, 513]) for key in keys) + len(TRAILER)]


def test_sizes_are_exact_for_huge_files() -> None:
    """Sizes include the pax header of an 8 GiB payload."""
    sizes = [8 * 2**30 - 1, 8 * 2**30]
    plan = make_plan(made_entries([sizes]), parse_pattern("out.tar"), ShardBounds())
    assert plan.sizes.tolist() == [512 + 8 * 2**30 + 3 * 512 + 8 * 2**30 + 1024]


@given(st.integers(0, 3000), st.integers())
def test_a_shuffle_is_a_permutation(count: int, seed: int) -> None:
    """A shuffle contains every position once, and is the same for the same seed."""
    order = random_permutation(count, seed)
    assert sorted(order.tolist()) == list(range(count))
    assert order.tolist() == random_permutation(count, seed).tolist()


@pytest.mark.parametrize(
    ("seed", "order"),
    [
        (0, [7, 9, 4, 5, 0, 1, 6, 2, 8, 3]),
        (1, [0, 4, 5, 9, 1, 3, 2, 7, 8, 6]),
        (-1, [1, 0, 7, 4, 9, 6, 8, 3, 5, 2]),
        (2**70, [2, 6, 5, 4, 9, 7, 3, 8, 0, 1]),
    ],
)
def test_a_shuffle_is_the_same_everywhere(seed: int, order: list[int]) -> None:
    """A seed gives this order on every machine, with every version of Python and NumPy."""
    assert random_permutation(10, seed).tolist() == order


def test_a_large_shuffle_is_the_same_everywhere() -> None:
    """A seed gives the same order of 100,000 positions on every machine."""
    raw = random_permutation(100_000, 7).astype("<i8").tobytes()
    assert hashlib.sha256(raw).hexdigest() == "60da1813bd0e4dc6d770cdaae343928c3a2c142169fbf9ab50095c3fd9bcc7b0"


@pytest.mark.parametrize("seed", range(6))
def test_a_shuffle_is_random(seed: int) -> None:
    """New positions are independent of old ones: chi-square, correlation, neighbours, and other seeds."""
    count, bins = 2**16, 16
    order = random_permutation(count, seed)
    table = np.zeros((bins, bins))
    np.add.at(table, (np.arange(count) * bins // count, order * bins // count), 1)
    expected, freedom = count / bins**2, (bins - 1) ** 2
    assert abs(((table - expected) ** 2 / expected).sum() - freedom) < 6 * (2 * freedom) ** 0.5
    limit = 6 / count**0.5
    assert abs(np.corrcoef(np.arange(count), order)[0, 1]) < limit
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < limit
    for other_seed in range(seed):
        assert abs(np.corrcoef(order, random_permutation(count, other_seed))[0, 1]) < limit


@given(SAMPLES.filter(lambda samples: len(samples) > 3), st.integers(0, 5))
def test_a_shuffled_plan_is_in_the_shuffled_order(samples: Sizes, seed: int) -> None:
    """Shards are runs of the shuffled order, each sample with its own fields and sizes."""
    entries = made_entries(samples)
    plan = make_plan(entries, OPEN, ShardBounds(20_000), seed)
    assert [sample for shard in _samples_by_shard(plan) for sample in shard] == random_permutation(
        len(samples), seed
    ).tolist()
    for shard, shard_samples in enumerate(_samples_by_shard(plan)):
        sizes = np.frombuffer(build_shard_samples(plan, shard).content.sizes, np.int64).tolist()
        assert sizes == [size for sample in shard_samples for size in samples[sample]]
        assert np.frombuffer(build_shard_samples(plan, shard).content.counts, np.uint16).tolist() == [
            len(samples[sample]) for sample in shard_samples
        ]


@given(SAMPLES, SAMPLES)
def test_plan_hashes_distinguish_plans(first: Sizes, second: Sizes) -> None:
    """A shard's plan hash depends on sizes, fields and format, but not on the source's location."""
    hashes = [
        hash_shard_plan(
            pattern.format, build_shard_samples(make_plan(made_entries(samples), pattern, ShardBounds()), 0)
        )
        for samples in (first, second)
        for pattern in (OPEN, RECORDS)
    ]
    assert (hashes[:2] == hashes[2:]) == (first == second)
    assert not set(hashes[::2]) & set(hashes[1::2])


_NO_FILES = """
import sys
from shardtool.pattern import parse_pattern
from shardtool.plan.shard_bounds import ShardBounds
from shardtool.plan.plan import make_plan
from shardtool.plan.shard_task import build_shard_samples
from tests.made import made_entries
entries = made_entries([[7, 100_000 + at] for at in range(20_000)])
sys.addaudithook(lambda event, _: sys.exit(event) if event in {"open", "os.listdir", "os.scandir"} else None)
plan = make_plan(entries, parse_pattern("/nowhere/out-{000..}.tar"), ShardBounds(10**8, multiple_of=4), 1)
print(plan.shards, len(build_shard_samples(plan, 0).content.keys) > 0)
"""


def test_a_plan_opens_no_file() -> None:
    """Planning opens no file and lists no folder."""
    process = subprocess.run(
        [sys.executable, "-c", _NO_FILES], cwd=REPO, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert (process.stdout, process.stderr, process.returncode) == ("24 True\n", "", 0)
