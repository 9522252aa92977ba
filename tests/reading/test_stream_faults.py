"""Streams over damage: samples before it come first, the error names it, and skipped it is counted."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import pytest

from shardtool.errors import CorruptShard, InvalidRequest
from tests.helpers import flip
from tests.reading.made_data import Made, make

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def own(ending: str, tmp_path: Path) -> Made:
    """Give a dataset that a test damages."""
    return make(tmp_path, ending)


@pytest.mark.parametrize("ends", ["drop", "pad"])
def test_an_error_comes_at_its_sample(own: Made, *, ends: str) -> None:
    """All samples before a damaged one come first; the state then stands in front of it, and skipping goes on."""
    sample, shard, offset = own.place(70_000)
    flip(shard, offset)
    at = own.samples.index(sample)
    options = {"shuffle": False, "rank": 0, "world_size": 1, "ends": ends}
    stream = own.open(check=True).stream(**options)  # type: ignore[arg-type]
    samples = iter(stream)
    assert [one["__key__"] for one in islice(samples, at)] == [one["__key__"] for one in own.samples[:at]]
    with pytest.raises(CorruptShard, match=f"{sample['__key__']}, jpg: the checksum"):
        next(samples)
    state = stream.state_dict()
    assert state["position"] == at
    skipping = own.open(check=True, on_error="skip").stream(**options)  # type: ignore[arg-type]
    skipping.load_state_dict(state)
    assert [one["__key__"] for one in skipping] == [one["__key__"] for one in own.samples[at + 1 :]]
    assert (skipping.skipped.samples, dict(skipping.skipped.shards)) == (1, {str(shard): 1})
    assert list(skipping.skipped.reasons) == [reason for reason in skipping.skipped.reasons if "jpg" in reason]


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_removed_shard_costs_its_samples_only(own: Made, *, shuffle: bool) -> None:
    """A shard that is missing leaves out its own samples; every other one comes, and each is counted once."""
    data = own.open(on_error="skip")
    firsts = data.fetcher.catalog.firsts.tolist()
    own.shard(2).unlink()
    stream = data.stream(shuffle=shuffle, rank=0, world_size=1)
    got = sorted(str(one["__key__"]).encode() for one in stream)
    rest = own.samples[: firsts[2]] + own.samples[firsts[3] :]
    assert got == [str(one["__key__"]).encode() for one in rest]
    assert stream.skipped.samples == data.skipped.samples == firsts[3] - firsts[2]
    assert len(stream.skipped.reasons) == 1
    with pytest.raises(CorruptShard, match=own.shard(1).name.replace("1", "2")):
        list(own.open().stream(shuffle=shuffle, rank=0, world_size=1))


def test_a_damaged_sidecar_is_said_once(own: Made, caplog: pytest.LogCaptureFixture) -> None:
    """Where a sidecar is damaged, its shard is walked, which is said once, not once for each sample or round."""
    sidecar = own.shard(1).with_suffix(".index")
    flip(sidecar, -300)
    stream = own.open(on_error="skip").stream(shuffle=False, buffer=64, rank=0, world_size=1)
    assert list(stream) == list(stream) == own.samples
    assert stream.skipped.samples == 0
    assert [sidecar.name in one.getMessage() for one in caplog.records] == [True]


def test_a_policy_must_be_one(own: Made) -> None:
    """A policy for errors that there is not is refused."""
    with pytest.raises(InvalidRequest, match="one of raise, skip"):
        own.fetcher(on_error="ignore")
