"""Random draws depend on the seed, the epoch and the sample's position, and on nothing else."""

from __future__ import annotations

import pickle
import random
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import shardtool
from shardtool import SampleFailed
from shardtool.read.decode import DecodedField, has_rng_parameter
from shardtool.read.order import OrderOptions, rng_at

if TYPE_CHECKING:
    from pathlib import Path

SAMPLES = 23


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A dataset of 23 samples."""
    folder: Path = tmp_path_factory.mktemp("drawn")
    with shardtool.ShardWriter(folder / "out-{000000..}.tar", max_count=6) as writer:
        for number in range(SAMPLES):
            writer.write({"__key__": f"k{number:02d}", "cls": number})
    return shardtool.open(folder / "out.json")


def _drawn(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "drawn": float(rng.random())}


class Drawing:
    """A callable with a parameter `rng`."""

    def __call__(self, sample: Any, *, rng: np.random.Generator) -> Any:
        """Return a sample with a random number."""
        return _drawn(sample, rng)


def _of(stream: Any) -> dict[str, float]:
    return {sample["__key__"]: sample["drawn"] for sample in stream}


@pytest.mark.parametrize("shuffle", [True, False, "full"])
def test_draws_are_equal_for_any_ranks_and_after_a_resume(dataset: Any, shuffle: Any) -> None:
    """Draws depend on the seed, the epoch and the position only."""
    chain = dataset.map(_drawn)
    options = {"shuffle": shuffle, "ends": "uneven", "parts": 2, "buffer": 4}
    whole = _of(chain.stream(**options, rank=0, world_size=1))
    assert len(set(whole.values())) == SAMPLES
    for ranks in (2, 5):
        each = [_of(chain.stream(**options, rank=rank, world_size=ranks)) for rank in range(ranks)]
        assert {key: one for found in each for key, one in found.items()} == whole
    stream = chain.stream(**options)
    begun = iter(stream)
    first = _of([next(begun) for _ in range(9)])
    other = chain.stream(**options)
    other.load_state_dict(stream.state_dict())
    assert {**first, **_of(other)} == whole
    assert _of(pickle.loads(pickle.dumps(chain)).stream(**options)) == whole  # noqa: S301 - ours
    assert _of(chain.stream(**options, epoch=1)) != whole
    assert _of(chain.stream(**options, seed=1)) != whole


def test_stages_draw_different_numbers(dataset: Any) -> None:
    """Stages draw different numbers; a stage after a batch uses the position of its last sample."""

    def again(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {**sample, "again": float(rng.random())}

    sample = next(iter(dataset.map(_drawn).map(again).stream()))
    assert sample["drawn"] != sample["again"]
    batches = list(dataset.map(_drawn).batch(4).map(again).stream())
    assert len({batch["again"] for batch in batches} | {one for batch in batches for one in batch["drawn"]}) == (
        SAMPLES + len(batches)
    )
    assert [batch["again"] for batch in dataset.map(_drawn).batch(4).map(again).stream()] == [
        batch["again"] for batch in batches
    ]


def test_a_replacement_draws_the_numbers_of_its_position(dataset: Any) -> None:
    """It gets the generator of the skipped sample."""
    seen: list[tuple[str, float]] = []

    def chosen(sample: dict[str, Any], rng: np.random.Generator) -> bool:
        seen.append((sample["__key__"], float(rng.random())))
        return str(sample["__key__"]) != "k07"

    list(dataset.filter(chosen).stream(shuffle=False, ends="pad"))
    assert [key for key, _ in seen].count("k07") >= 1
    at = [key for key, _ in seen].index("k07")
    assert seen[at][1] == seen[at + 1][1]


def test_draws_by_number_use_python_random(dataset: Any) -> None:
    """Outside a stream, Python's `random` seeds the generator."""
    chain = dataset.map(Drawing())
    random.seed(4)
    first = [chain[3]["drawn"], chain[3]["drawn"]]
    random.seed(4)
    assert [chain[3]["drawn"], chain[3]["drawn"]] == first
    assert first[0] != first[1]


def test_detects_the_rng_parameter() -> None:
    """A function gets a generator if it has an unbound parameter `rng`."""
    generator = np.random.default_rng(0)
    assert all(map(has_rng_parameter, (_drawn, Drawing(), partial(_drawn), lambda data, rng=None: (data, rng))))
    for other in (str.upper, len, int, np.add, partial(_drawn, rng=generator), None, "pil"):
        assert not has_rng_parameter(other)


def test_a_decoder_can_add_fields(dataset: Any) -> None:
    """Added fields are available to the next stages; errors name the field."""

    def number(data: bytes, rng: np.random.Generator) -> DecodedField:
        return DecodedField(int(data), {"drawn": float(rng.random()), "length": len(data)})

    samples = list(dataset.decode({"cls": number}).tuple("cls", "length", "drawn").stream(shuffle=False))
    assert [sample[:2] for sample in samples] == [(n, len(str(n))) for n in range(SAMPLES)]
    with pytest.raises(SampleFailed, match="field cls: cannot be decoded: no number"):
        list(dataset.decode({"cls": _refusing}).stream())


def _refusing(_: bytes, rng: np.random.Generator) -> None:
    raise ValueError(f"no number {rng.random() < 2}")


def test_draws_never_change() -> None:
    """A run that continues with another version draws the same numbers."""
    found = [rng_at(OrderOptions(seed=seed), at, stage).integers(2**32) for seed, at, stage in GOLDEN]
    assert found == list(GOLDEN.values())


GOLDEN = {(0, 0, 0): 427472002, (0, 1, 0): 35655685, (0, 0, 1): 4198375598, (7, 10**9, 2): 3330521343}


def test_stages_after_a_batch_of_a_mix_draw_different_numbers(dataset: Any) -> None:
    """Also from the longest pipeline of its datasets."""

    def noted(value: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {**value, "drawn": [*value.get("drawn", ()), float(rng.random())]}

    chain = dataset
    for _ in range(5):
        chain = chain.map(noted)
    mixed = shardtool.mix([chain, dataset.map(noted)]).map(noted).batch(1)
    for _ in range(3):
        mixed = mixed.map(lambda batch, rng: {**batch, "drawn": [*np.ravel(batch["drawn"]), float(rng.random())]})
    drawn = [one for batch in mixed.stream() for one in np.ravel(batch["drawn"])]
    assert len(set(drawn)) == len(drawn)


def test_draws_in_mixes_and_batches_by_size(dataset: Any) -> None:
    """Stages of samples before a mix or a batch by size draw reproducibly."""
    for made in (
        shardtool.mix([dataset.map(_drawn), dataset.map(Drawing())]),
        dataset.map(_drawn).batch(by="length", tokens=9),
    ):
        first, again, other = ([sample["drawn"] for sample in made.stream(epoch=epoch)] for epoch in (0, 0, 1))
        assert np.array_equal(np.hstack(first), np.hstack(again))
        assert len(set(np.hstack(first).tolist())) == np.hstack(first).size
        assert {*np.hstack(first).tolist()} != {*np.hstack(other).tolist()}
