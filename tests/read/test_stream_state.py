"""A stream resumes: the state of any rank is the state of all."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import cycle, islice, zip_longest
from typing import TYPE_CHECKING, NamedTuple, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardtool
from shardtool.errors import InvalidRequest
from shardtool.read.epoch_samples import CatalogSamples
from shardtool.read.order import OrderOptions
from shardtool.read.sample_reader import SampleReader
from shardtool.read.stream import StreamState
from tests.helpers import write_tree
from tests.read.catalogs import made_catalog

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from shardtool.read.options import Samples
    from shardtool.read.order import Ends, Shuffle

VIEW = CatalogSamples(made_catalog([30, 70]))
STATE = StreamState("made", OrderOptions("full", 7, 3, 8, 4), 42)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> shardtool.Dataset:
    """A dataset of 100 samples in some shards."""
    folder = tmp_path_factory.mktemp("state")
    write_tree(folder / "in", {f"{at:03}.txt": b"%d" % at * (1 + at % 7) for at in range(100)})
    shardtool.create(folder / "in", folder / "out-{000000..}.tar", shardtool.CreateOptions(max_size=20_000, workers=0))
    return shardtool.open(folder / "out.json")


def _steps(streams: list[shardtool.Stream], max_steps: int | None) -> list[str]:
    """Return the keys that ranks read, one sample per step each, for at most `most` steps."""
    readers = [iter(stream) for stream in streams]
    keys: list[str] = []
    while max_steps is None or max_steps:
        step = [str(sample["__key__"]) for sample in (next(reader, None) for reader in readers) if sample]
        keys += step
        max_steps = None if max_steps is None else max_steps - 1
        if len(step) < len(readers):
            break
    return keys


def test_json() -> None:
    """A state is a few numbers, and survives JSON."""
    given = STATE.to_json()
    assert given == {
        "version": 1, "fingerprint": "made", "shuffle": "full", "seed": 7, "epoch": 3, "parts": 8, "window": 4,
        "position": 42,
    }  # fmt: skip
    assert StreamState.from_json(json.loads(json.dumps(given)), VIEW) == STATE
    of_ranks = STATE._replace(options=replace(STATE.options, ranks=2))
    assert of_ranks.to_json() == {**given, "version": 2, "ranks": 2}
    assert StreamState.from_json(json.loads(json.dumps(of_ranks.to_json())), VIEW) == of_ranks


def test_end_of_an_epoch() -> None:
    """At the end of an epoch, the state is the start of the next one."""
    assert StreamState.at_position(VIEW, STATE.options, 99, 100).position == 99
    for end in (96, 100, 104):
        after = StreamState.at_position(VIEW, STATE.options, end, end)
        assert (after.options.epoch, after.position) == (4, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 3}, "version of the state: 3; expected 1 or 2"),
        ({"version": True}, "version of the state: True; expected 1 or 2"),
        ({"version": None}, "version of the state: None; expected 1 or 2"),
        ({"version": 2}, "the state: no ranks"),
        ({"version": 2, "ranks": 3}, "parts: 8; expected a multiple of 3 ranks"),
        ({"version": 2, "ranks": -1}, "ranks: -1"),
        ({"fingerprint": "b2:other"}, "belongs to other samples, with fingerprint b2:other; expected made"),
        ({"fingerprint": 3}, "fingerprint of the state: 3; expected text"),
        ({"position": 100}, "position of the state: 100; expected 0 to 99"),
        ({"position": -1}, "position of the state: -1; expected 0 to 99"),
        ({"position": 1.0}, "position of the state: 1.0; expected a whole number"),
        ({"seed": "7"}, "seed of the state: '7'; expected a whole number"),
        ({"epoch": True}, "epoch of the state: True; expected a whole number"),
        ({"epoch": -1}, "epoch: -1"),
        ({"parts": 0}, "parts: 0"),
        ({"shuffle": "half"}, "shuffle: 'half'"),
        ({"shuffle": [1]}, r"shuffle: \[1\]"),
    ],
)
def test_invalid_states(change: dict[str, object], message: str) -> None:
    """The error names the invalid value, or other samples."""
    with pytest.raises(InvalidRequest, match=message):
        StreamState.from_json({**STATE.to_json(), **change}, VIEW)


def test_incomplete_states() -> None:
    """The error names the missing value."""
    with pytest.raises(InvalidRequest, match="the state: a list; expected a dictionary"):
        StreamState.from_json([1], VIEW)
    with pytest.raises(InvalidRequest, match="version of the state: 'none'"):
        StreamState.from_json({}, VIEW)
    for key in STATE.to_json():
        short = {name: value for name, value in STATE.to_json().items() if name != key}
        with pytest.raises(InvalidRequest, match=key):
            StreamState.from_json(short, VIEW)


@settings(max_examples=15, deadline=None)
@given(
    worlds=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 12)), min_size=1, max_size=4),
    shuffle=st.sampled_from([True, False, "full"]),
    ranks=st.integers(1, 9),
    parts=st.sampled_from([None, 4]),
)
def test_resumes_with_other_ranks(
    dataset: shardtool.Dataset, worlds: list[tuple[int, int]], shuffle: Shuffle, ranks: int, parts: int | None
) -> None:
    """Runs interrupted within an epoch and resumed with other ranks read each sample once, in one order.

    Each run continues from the state of any rank of the previous one, whatever order it was created with.
    """
    state = dataset.stream(shuffle=shuffle, seed=5, rank=0, world_size=ranks, buffer=40, parts=parts).state_dict()
    first = dataset.stream(rank=0, world_size=1)
    first.load_state_dict(state)
    expected = [sample["__key__"] for sample in first]
    keys: list[str] = []
    for world_size, steps in [*worlds, (3, None)]:
        streams = [
            dataset.stream(rank=rank, world_size=world_size, ends="uneven", seed=1, shuffle="full")
            for rank in range(world_size)
        ]
        for rank in streams:
            rank.load_state_dict(json.loads(json.dumps(state)))
        keys += _steps(streams, steps)
        states = [rank.state_dict() for rank in streams]
        assert states == [states[0]] * world_size
        state = states[-1]
        if state["epoch"]:
            break
    assert keys == expected
    assert (state["epoch"], state["position"]) == (1, 0)


class World(NamedTuple):
    """Ranks with loader workers, interrupted after some batches."""

    ranks: int
    workers: int
    batch: int
    steps: int


def _batches(stream: shardtool.Stream, world: World) -> Iterator[list[str]]:
    """Yield the keys of a rank's batches in the order in which a loader receives them from its workers."""
    at = cast("int", stream.state_dict()["position"])
    readers = [iter(stream.worker_stream(worker, world.workers, world.batch, at)) for worker in range(world.workers)]
    for reader in cycle(readers):
        batch = [sample["__key__"] for sample in islice(reader, world.batch)]
        if not batch:
            return
        yield batch


@settings(max_examples=10, deadline=None)
@given(st.lists(st.builds(World, *[st.integers(1, 4)] * 4), min_size=1, max_size=3), st.sampled_from([True, "full"]))
def test_resumes_with_other_workers(dataset: shardtool.Dataset, worlds: list[World], shuffle: Shuffle) -> None:
    """With loader workers, too, runs continue with other ranks, workers and batches in the order of the epoch.

    The samples of all ranks at a step are contiguous in the order: the first sample of each rank, then the second, and
    so on.
    """
    whole = dataset.stream(shuffle=shuffle, seed=8, rank=0, world_size=1, buffer=32, parts=8)
    state = whole.state_dict()
    expected = [sample["__key__"] for sample in whole]
    all_keys: list[str] = []
    for world in [*worlds, World(2, 3, 5, 100)]:
        ranks = [dataset.stream(rank=rank, world_size=world.ranks, ends="uneven") for rank in range(world.ranks)]
        for rank in ranks:
            rank.load_state_dict(state)
        readers = [_batches(rank, world) for rank in ranks]
        for _ in range(world.steps):
            step = [next(reader, []) for reader in readers]
            all_keys += [key for keys in zip_longest(*step) for key in keys if key is not None]
        state = ranks[0].state_after(world.steps * world.batch)
        if state["epoch"]:
            break
    assert all_keys == expected
    assert (state["epoch"], state["position"]) == (1, 0)


def test_a_state_of_many_ranks_is_read_in_pieces(dataset: shardtool.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank that continues for fifty reads at most four of its rounds at a time."""
    state = dataset.stream(rank=0, world_size=50, parts=50, buffer=100).state_dict()
    sizes: list[list[int]] = []
    read = SampleReader.read

    def counted(self: SampleReader, numbers: NDArray[np.int64], **options: bool) -> Samples:
        sizes[-1].append(len(numbers))
        return read(self, numbers, **options)

    monkeypatch.setattr(SampleReader, "read", counted)
    epochs = []
    for buffer, parts in ((100, 50), (4, 2)):
        sizes.append([])
        stream = dataset.stream(rank=0, world_size=1, buffer=buffer, parts=parts)
        stream.load_state_dict(state)
        epochs.append([sample["__key__"] for sample in stream])
    assert epochs[0] == epochs[1]
    assert sizes == [[100], [16] * 6 + [4]]


def test_lengths_after_a_resume(dataset: shardtool.Dataset) -> None:
    """The length of a stream is a whole epoch of its rank; the rest after a state is divided again."""
    stream = dataset.stream(rank=0, world_size=1)
    reader = iter(stream)
    before = [next(reader)["__key__"] for _ in range(30)]
    rest = [str(sample["__key__"]) for sample in reader]
    state = {**stream.state_dict(), "epoch": 0, "position": 30}
    lengths: dict[Ends, int] = {"drop": 14, "pad": 15, "uneven": 15}
    for ends, length in lengths.items():
        ranks = [dataset.stream(rank=rank, world_size=7, ends=ends) for rank in range(7)]
        assert len(ranks[0]) == length
        for rank in ranks:
            rank.load_state_dict(state)
        keys_by_rank = [[str(sample["__key__"]) for sample in rank] for rank in ranks]
        assert [len(keys) for keys in keys_by_rank] == [10] * 7
        assert sorted(key for keys in keys_by_rank for key in keys) == sorted(rest)
    assert len({*before, *rest}) == 100


def test_padding_is_marked(dataset: shardtool.Dataset) -> None:
    """With `pad`, padding samples are marked, and are the first ones of the epoch."""
    ranks = [list(dataset.stream(rank=rank, world_size=7, ends="pad")) for rank in range(7)]
    assert [len(rank) for rank in ranks] == [15] * 7
    padding = [str(sample["__key__"]) for rank in ranks for sample in rank if sample["__padding__"]]
    real = [sample["__key__"] for rank in ranks for sample in rank if not sample["__padding__"]]
    assert len(real) == len(set(real)) == 100
    assert sorted(padding) == sorted(str(ranks[rank][0]["__key__"]) for rank in range(5))
    (alone,) = dataset[:1].stream(rank=3, world_size=4, ends="pad")
    assert alone["__padding__"]


def test_a_state_of_another_view_is_rejected(dataset: shardtool.Dataset) -> None:
    """A state is valid only for the same samples."""
    state = dataset[:50].stream(rank=0, world_size=1).state_dict()
    dataset[0:50].stream(rank=0, world_size=1).load_state_dict(state)
    for other in (dataset, dataset[:51], dataset[1:51]):
        with pytest.raises(InvalidRequest, match="belongs to other samples"):
            other.stream(rank=0, world_size=1).load_state_dict(state)


def test_setting_the_epoch_of_a_state(dataset: shardtool.Dataset) -> None:
    """Setting the epoch of the state continues there; another epoch starts at its beginning."""
    stream = dataset.stream(seed=2, rank=0, world_size=1)
    expected = [[sample["__key__"] for sample in stream] for _ in range(3)]
    state = {**stream.state_dict(), "epoch": 1, "position": 60}
    again = dataset.stream(rank=0, world_size=1)
    again.load_state_dict(state)
    epochs = []
    for epoch in (1, 2):
        again.set_epoch(epoch)
        epochs.append([sample["__key__"] for sample in again])
    assert epochs == [expected[1][60:], expected[2]]
    again.load_state_dict(state)
    again.set_epoch(0)
    assert [sample["__key__"] for sample in again] == expected[0]
