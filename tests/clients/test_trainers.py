"""Two ranks of Accelerate, the Trainer of transformers, Lightning and torch.distributed.checkpoint, from our shards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import shardtool

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.clients
SAMPLES = 48  # full batches for 2 ranks with 2 workers each: Accelerate pads others
_NEEDS = {
    "accelerate": "accelerate",
    "trainer": "transformers",
    "lightning": "lightning",
    "dcp": "torch",
    "steps": "torch",
}
_CURE = "StreamDataset: already divided among 2 ranks; Accelerate's "


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[dict[str, Any]]]:
    """Return what runs a program on two ranks, with a dataset of numbers, and returns what each rank was given."""
    folder = tmp_path_factory.mktemp("numbers")
    with shardtool.ShardWriter(folder / "x-{000000..}.tar", max_count=7) as writer:
        for number in range(SAMPLES):
            writer.write({"__key__": f"{number:02}", "cls": number})

    def run(name: str) -> list[dict[str, Any]]:
        if not find_spec(_NEEDS[name]):
            pytest.skip(f"{_NEEDS[name]} is not installed")
        place = tmp_path_factory.mktemp(name)
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        script = Path(__file__).with_name("on_ranks.py")
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*launch, script, name, folder / "x.json", place],
            env=environment, cwd=place, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        found = [place / f"{rank}.json" for rank in range(2)]
        assert all(file.exists() for file in found), done.stderr  # gloo's threads may outlive their group
        return [json.loads(file.read_text()) for file in found]

    return run


def _check_epochs(ranks: list[list[list[int]]]) -> None:
    """Check that ranks together were given each number once an epoch, as many each, in another order each."""
    epochs = [[numbers for rank in ranks for numbers in rank[epoch]] for epoch in range(len(ranks[0]))]
    assert [sorted(epoch) for epoch in epochs] == [[*range(SAMPLES)]] * len(epochs)
    assert {len(epoch) for rank in ranks for epoch in rank} == {SAMPLES // 2}
    assert len({*map(tuple, epochs)}) == len(epochs)


def test_ranks_that_wait_for_each_other(ranks: Callable[[str], list[dict[str, Any]]]) -> None:
    """Ranks make equal steps, of one epoch, though a filter takes more from some, and one looks at a batch before."""
    found = ranks("steps")
    for way in found[0]:
        given = [rank[way] for rank in found]
        assert [[len(epoch) for epoch in rank] for rank in given] == [[SAMPLES // 2] * 2] * 2
        assert given == [rank["loader"] for rank in found]
        for epoch in zip(*given, strict=True):
            assert {number for numbers in epoch for number in numbers} == {*range(SAMPLES)} - _UNWANTED


_UNWANTED = {number for number in range(SAMPLES) if number % 8 < 3}


def test_accelerate(ranks: Callable[[str], list[dict[str, Any]]]) -> None:
    """However Accelerate divides, every sample comes once an epoch, or a stream that is divided already is refused."""
    found = ranks("accelerate")
    for way in found[0]:
        given = [rank[way] for rank in found]
        if way.startswith("divided"):
            assert all(one.startswith(_CURE) and "rank=0, world_size=1" in one for one in given)
        else:
            _check_epochs(given)
    assert len(found[0]) == 13


def test_trainer_of_transformers(ranks: Callable[[str], list[dict[str, Any]]]) -> None:
    """The Trainer trains with each sample once per epoch, by number and from a stream, which it does not change."""
    found = ranks("trainer")
    for way in ("map", "stream"):
        half = SAMPLES // 2
        _check_epochs([[rank[way][:half], rank[way][half:]] for rank in found])
    assert all(rank["refused"].startswith(_CURE) for rank in found)


def test_lightning(ranks: Callable[[str], list[dict[str, Any]]]) -> None:
    """Lightning trains with each sample once an epoch, sees all of val each time, and goes on in mid-epoch."""
    found = ranks("lightning")
    _check_epochs([rank["whole"][1:] for rank in found])
    for checked in zip(*(rank["valid"][1:] for rank in found), strict=True):  # before the first epoch, too
        assert sorted(number for numbers in checked for number in numbers) == [*range(11)]
    for rank in found:
        (rest,) = rank["resumed"]
        assert rest == rank["whole"][2][-len(rest) :]
        assert len(rest) == 4 * 4  # of twelve steps, eight were made


def test_distributed_checkpoint(ranks: Callable[[str], list[dict[str, Any]]]) -> None:
    """A loader among the things that are saved goes on at the exact batch."""
    for rank in ranks("dcp"):
        assert rank["parts"] == rank["whole"]
