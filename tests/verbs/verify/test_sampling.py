"""Laws of `verify --sample`: a seed reads whole shards, consecutive seeds read all, and unread shards are reported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool import CreateOptions, InvalidRequest, VerifyOptions, create, verify
from shardtool.dataset.stored import StoredShard
from shardtool.verbs.verify.verified_dataset import ShardCheck
from shardtool.verbs.verify.verify import sampled_shards
from tests.helpers import flip, shards, typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path


def _cases(sizes: list[int | None]) -> list[ShardCheck]:
    return [ShardCheck(StoredShard(f"{at}.tar"), sidecar_required=False, size=size) for at, size in enumerate(sizes)]


SIZES = st.lists(st.none() | st.integers(0, 10**9), max_size=12)


@settings(max_examples=15)
@given(SIZES, st.sampled_from([7, 10, 25, 30, 50, 100]), st.integers(-(2**63), 2**62))
def test_consecutive_seeds_read_all_shards(sizes: list[int | None], percent: int, first: int) -> None:
    """Each seed reads at least one shard, always the same, and enough consecutive seeds read all shards."""
    cases, seeds = _cases(sizes), range(first, first + -(-100 // percent))
    there = {at for at, size in enumerate(sizes) if size is not None}
    chosen = [sampled_shards(cases, VerifyOptions(sample=f"{percent}%", seed=seed)) for seed in seeds]
    assert set().union(*chosen) == there
    assert all(item == sorted(set(item)) and bool(item) == bool(there) for item in chosen)
    assert chosen[0] == sampled_shards(cases, VerifyOptions(sample=percent / 100, seed=first))
    assert sampled_shards(cases, VerifyOptions()) == sorted(there)


@pytest.mark.parametrize("share", ["10%", 0.1, "25%"])
def test_a_seed_reads_the_requested_share(share: float | str) -> None:
    """Among many shards of one size, a seed reads the share, and the seeds of one round read no shard twice."""
    cases = _cases([1000] * 200)
    seeds = range(10) if share != "25%" else range(4)
    chosen = [sampled_shards(cases, VerifyOptions(sample=share, seed=seed)) for seed in seeds]
    assert {len(item) for item in chosen} == {200 // len(seeds)}
    assert len({number for item in chosen for number in item}) == 200


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Give a dataset of eight shards."""
    source = write_tree(tmp_path / "source", {f"{at:02}.txt": b"%d" % at for at in range(16)})
    create(source, f"{tmp_path}/out/x-{{0..}}.tar", CreateOptions(max_count=2, workers=0))
    return tmp_path / "out"


def _verify(given_: Path, **options: Any) -> Any:
    return verify(given_, VerifyOptions(workers=0, **options))


def test_damage_is_found_by_one_seed_in_a_round(dataset: Path) -> None:
    """A flipped bit is found by the one seed that reads its shard; the other reports list what was not read."""
    flip(shards(dataset)[3], 512)
    reports = [_verify(dataset, sample="25%", seed=seed) for seed in range(4)]
    assert sorted("payload-checksum" in report.counts for report in reports) == [False, False, False, True]
    sound = next(report for report in reports if report.sound)
    assert sound.read == (2, 2 * shards(dataset)[0].stat().st_size)
    assert sound.samples == 4
    assert any(text.startswith("the bytes of 6 of 8 shards (75%)") for text in sound.unchecked)
    assert sound.to_json()["read"] == {"shards": 2, "size": sound.read[1]}


def test_names_sizes_and_sidecars_are_always_checked(dataset: Path) -> None:
    """Every seed finds a missing or truncated shard and a damaged sidecar."""
    shards(dataset)[5].unlink()
    with shards(dataset)[1].open("ab") as file:
        file.write(b"x")
    flip(dataset / "x-7.index", 100)
    for seed in range(4):
        assert {"shard-missing", "shard-size"} < set(_verify(dataset, sample="25%", seed=seed).counts)
        assert "sidecar-checksum" in _verify(dataset, sample="25%", seed=seed).counts


def test_100_percent_equals_no_sampling(dataset: Path) -> None:
    """100 % gives the same report as no sampling."""
    whole, sampled = _verify(dataset).to_json(), _verify(dataset, sample=1).to_json()
    assert {**sampled, "seconds": 0} == {**whole, "seconds": 0, "read": sampled["read"]}


@pytest.mark.parametrize(
    "options",
    [{"sample": "0"}, {"sample": "120%"}, {"sample": "x"}, {"seed": 1}, {"sample": "1%", "quick": True},
     {"sample": "1%", "repair": True}, {"sample": "1%", "source": "x"}],
)  # fmt: skip
def test_invalid_sampling_options_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    """Invalid shares, a seed without a share, and options that need all shards are refused."""
    with pytest.raises(InvalidRequest):
        _verify(tmp_path, **options)


def test_sampling_on_the_command_line(dataset: Path) -> None:
    """The command line has both options."""
    ran = typed("verify", dataset, "--sample", "25%", "--seed", "3")
    assert (ran.code, "4 samples in 2 of 8 shards" in ran.out, "--seed 4 selects others" in ran.out) == (0, True, True)
