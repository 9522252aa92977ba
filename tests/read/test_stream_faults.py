"""Streams over damage: earlier samples are returned, errors name the sample, skips are counted."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool import ShardWriter
from shardtool.dataset import scan as scan_module
from shardtool.dataset import stored
from shardtool.dataset.dataset_file import parse_dataset
from shardtool.errors import CorruptShard, InvalidRequest, SampleFailed
from shardtool.read.dataset import open as open_data
from tests.helpers import flip
from tests.read.made_data import SAMPLES, Made, make

if TYPE_CHECKING:
    from pathlib import Path

    from shardtool.read.order import Ends, Shuffle
    from shardtool.read.stream import Stream


@pytest.fixture(scope="module")
def even(ending: str, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A dataset that no test changes."""
    return make(tmp_path_factory.mktemp("even"), ending, even=True)


@pytest.fixture(scope="module")
def made(ending: str, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A dataset with fields of many sizes, which no test changes."""
    return make(tmp_path_factory.mktemp("made"), ending)


@pytest.fixture
def writable(made: Made, tmp_path: Path) -> Made:
    """A copy that a test may damage."""
    return made.copy_to(tmp_path)


@pytest.mark.parametrize("ends", ["drop", "pad"])
def test_an_error_is_raised_at_its_sample(writable: Made, *, ends: Ends) -> None:
    """Earlier samples are returned; the state is before the damage, and skipping replaces the sample."""
    sample, shard, offset = writable.place(70_000)
    flip(shard, offset)
    at = writable.samples.index(sample)
    options = {"shuffle": False, "rank": 0, "world_size": 1, "ends": ends}
    stream = writable.open(check=True).stream(**options)  # type: ignore[arg-type]
    samples = iter(stream)
    assert [sample["__key__"] for sample in islice(samples, at)] == [
        sample["__key__"] for sample in writable.samples[:at]
    ]
    with pytest.raises(CorruptShard, match=f"{sample['__key__']}, jpg: the checksum"):
        next(samples)
    state = stream.state_dict()
    assert state["position"] == at
    skipping = writable.open(check=True, on_error="skip").stream(**options)  # type: ignore[arg-type]
    skipping.load_state_dict(state)
    instead, *rest = skipping
    assert [sample["__key__"] for sample in rest] == [sample["__key__"] for sample in writable.samples[at + 1 :]]
    assert instead["__key__"] in {one["__key__"] for one in writable.samples if one is not sample}
    assert instead.get("__padding__", ends == "pad") == (ends == "pad")
    assert (skipping.skipped.samples, dict(skipping.skipped.shards)) == (1, {str(shard): 1})
    assert list(skipping.skipped.reasons) == [reason for reason in skipping.skipped.reasons if "jpg" in reason]


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_deleted_shard_costs_only_its_samples(writable: Made, *, shuffle: bool) -> None:
    """All other samples are returned, and each skipped one is counted once."""
    data = writable.open(on_error="skip")
    firsts = data.reader.catalog.first_samples.tolist()
    writable.shard(2).unlink()
    stream = data.stream(shuffle=shuffle, rank=0, world_size=1, ends="uneven")
    keys = sorted(str(sample["__key__"]).encode() for sample in stream)
    rest = writable.samples[: firsts[2]] + writable.samples[firsts[3] :]
    assert keys == [str(sample["__key__"]).encode() for sample in rest]
    assert stream.skipped.samples == data.skipped.samples == firsts[3] - firsts[2]
    assert len(stream.skipped.reasons) == 1
    with pytest.raises(CorruptShard, match=writable.shard(1).name.replace("1", "2")):
        list(writable.open().stream(shuffle=shuffle, rank=0, world_size=1))


@pytest.mark.parametrize("ends", ["drop", "pad"])
def test_ranks_perform_equal_steps_over_damage(writable: Made, ends: Ends) -> None:
    """Whatever is damaged, each rank returns as many samples as `len` reports, valid ones in their own positions.

    Skipped samples are counted once, and replacements are the same for any number of ranks.
    """
    whole = [sample["__key__"] for sample in writable.open().stream(parts=64, rank=0, world_size=1)]
    writable.shard(1).unlink()
    data, keys_by_ranks = writable.open(check=True, on_error="skip"), {}
    for world_size in (1, 2, 3, 7):
        ranks = [data.stream(parts=64, rank=rank, world_size=world_size, ends=ends) for rank in range(world_size)]
        keys = [[str(sample["__key__"]) for sample in stream] for stream in ranks]
        assert [*map(len, keys)] == [*map(len, ranks)]
        keys_by_ranks[world_size] = [key for step in zip(*keys, strict=True) for key in step][:SAMPLES]
        places = [whole[at % SAMPLES] for at in range(sum(map(len, ranks)))]
        assert sum(stream.skipped.samples for stream in ranks) == sum(key not in keys_by_ranks[1] for key in places)
    for keys in keys_by_ranks.values():
        assert keys == keys_by_ranks[1][: len(keys)]
        assert all(
            key == whole_key for key, whole_key in zip(keys, whole, strict=False) if whole_key in keys_by_ranks[1]
        )


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_replacement_depends_only_on_the_position(even: Made, data: st.DataObject) -> None:
    """For any ranks, workers and batches, and after a resume."""
    bad = data.draw(st.sets(st.integers(0, SAMPLES - 1), max_size=SAMPLES - 1))
    keys = {str(even.samples[at]["__key__"]) for at in bad}
    world_size, workers, size = (data.draw(st.integers(1, 4)) for _ in range(3))
    taken = data.draw(st.integers(0, SAMPLES // world_size - 1))

    def made(rank: int, of: int) -> Stream:
        stream = even.open().stream(seed=3, parts=64, rank=rank, world_size=of, ends="pad")
        return stream.map(lambda sample: sample if sample["__key__"] in keys else {**sample, "ok": 1}).fields(
            "ok", missing="skip"
        )

    single = [sample["__key__"] for sample in made(0, 1)]
    assert len(single) == SAMPLES
    order = [sample["__key__"] for sample in even.open().stream(seed=3, parts=64, rank=0, world_size=1)]
    assert [key_of_stream for key, key_of_stream in zip(order, single, strict=True) if key not in keys] == [
        key for key in order if key not in keys
    ]
    state = made(0, world_size).state_after(taken)
    for rank in range(world_size):
        stream = made(rank, world_size)
        stream.load_state_dict(state)
        for worker in range(workers):
            part = stream.worker_stream(worker, workers, size, taken * world_size)
            found_keys = [sample["__key__"] for sample in part]
            local = [at for at in range(len(stream) - taken) if at // size % workers == worker]
            places = [(taken + at) * world_size + rank for at in local]
            assert len(found_keys) == len(places)
            assert all(key == single[at] for key, at in zip(found_keys, places, strict=True) if at < SAMPLES)
            assert not {*found_keys} & keys


def test_if_all_samples_are_dropped(even: Made) -> None:
    """Padding raises an error that names the first; without padding, the epoch is empty."""
    stream = even.open().fields("none", missing="skip").stream(rank=0, world_size=1, ends="pad")
    with pytest.raises(SampleFailed, match=rf"^the stream: skipped {SAMPLES} samples in a row, first sample \S+: no"):
        list(stream)
    single = even.open().take(1).fields("none", missing="skip").stream(rank=0, world_size=1, ends="pad")
    with pytest.raises(SampleFailed, match="skipped 1 sample in a row, first"):
        list(single)
    for ends in ("drop", "uneven"):
        assert list(even.open().fields("none", missing="skip").stream(rank=0, world_size=1, ends=ends)) == []


@pytest.mark.parametrize(
    ("shuffle", "ends", "way"),
    [  # each pair of values occurs
        (True, None, "filter"), (True, "drop", "map"), (True, "uneven", "missing"),
        (False, None, "map"), (False, "drop", "missing"), (False, "uneven", "filter"),
        ("full", None, "missing"), ("full", "drop", "filter"), ("full", "uneven", "map"),
    ],
)  # fmt: skip
def test_one_rank_returns_each_kept_sample_once(even: Made, shuffle: Shuffle, ends: Ends | None, way: str) -> None:
    """Dropped samples shorten its epoch, also after a resume; `len` is an upper bound."""
    kept = sorted(str(sample["__key__"]) for sample in even.samples if "3" not in str(sample["__key__"]))
    data = even.open()

    def made() -> Stream:
        stream = data.stream(shuffle=shuffle, seed=1, rank=0, world_size=1, ends=ends)
        if way == "filter":
            return stream.filter(lambda sample: "3" not in sample["__key__"])
        if way == "map":
            return stream.map(lambda sample: sample if "3" not in sample["__key__"] else None)
        return stream.map(lambda sample: sample | ({"ok": 1} if "3" not in sample["__key__"] else {})).fields(
            "ok", missing="skip"
        )

    stream = made()
    assert sorted(sample["__key__"] for sample in stream) == kept
    assert len(stream) == SAMPLES == len(kept) + stream.skipped.samples
    for taken in (1, 7, len(kept) - 1):
        before = made()
        kept_keys = [sample["__key__"] for sample in islice(before, taken)]
        after = made()
        after.load_state_dict(before.state_dict())
        kept_keys += [sample["__key__"] for sample in after]
        assert sorted(kept_keys) == kept


@pytest.mark.parametrize("ranks", [2, 3])
def test_several_ranks_reject_many_dropped_samples(even: Made, ranks: int) -> None:
    """Above 1 % dropped on a rank, the stream raises an error that names the choices."""
    stream = even.open().filter(lambda sample: "3" not in sample["__key__"]).stream(rank=0, world_size=ranks)
    with pytest.raises(InvalidRequest, match=r"more than 1 % of the samples of rank 0 .*dataset\.select.*ends='pad'"):
        list(stream)


def test_several_ranks_replace_few_dropped_samples(tmp_path: Path) -> None:
    """Up to 1 % per rank, all ranks perform as many steps as `len` reports."""
    with ShardWriter(tmp_path / "x-{0..}.tar", max_count=100) as writer:
        for number in range(400):
            writer.write({"__key__": f"{number:03}", "cls": number})
    chosen = open_data(tmp_path / "x.json").filter(lambda sample: sample["__key__"] not in ("007", "300"))
    streams = [chosen.stream(rank=rank, world_size=2) for rank in range(2)]
    parts = [[sample["__key__"] for sample in stream] for stream in streams]
    assert [*map(len, parts)] == [*map(len, streams)] == [200, 200]
    assert sum(stream.skipped.samples for stream in streams) == 2
    assert len({*parts[0], *parts[1]}) == 398


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_padding_marks_replacements(even: Made, ranks: int) -> None:
    """With `ends="pad"`, each kept sample comes once without a mark."""
    chosen = even.open().filter(lambda sample: "3" not in sample["__key__"])
    streams = [chosen.stream(rank=rank, world_size=ranks, ends="pad") for rank in range(ranks)]
    parts = [[*stream] for stream in streams]
    assert [*map(len, parts)] == [*map(len, streams)]
    real = sorted(sample["__key__"] for samples in parts for sample in samples if not sample["__padding__"])
    assert real == sorted(sample["__key__"] for sample in chosen)


def test_a_warning_reports_many_skipped_samples(even: Made, caplog: pytest.LogCaptureFixture) -> None:
    """Above 1 %, one warning names a fix; a loop over the dataset gives none."""
    chosen = even.open().filter(lambda sample: "3" not in sample["__key__"])
    list(chosen)
    assert not caplog.records
    stream = chosen.stream(rank=0, world_size=1)
    list(stream)
    list(stream)
    (record,) = caplog.records
    assert "More than 1 % of the samples" in record.getMessage()
    assert "dataset.where(QUERY)" in record.getMessage()


def test_a_damaged_sidecar_is_reported_once(writable: Made, caplog: pytest.LogCaptureFixture) -> None:
    """Its shard is scanned with one warning, not one per sample or round."""
    sidecar = writable.shard(1).with_suffix(".index")
    flip(sidecar, len(sidecar.read_bytes()) // 2)
    stream = writable.open(on_error="skip").stream(shuffle=False, buffer=64, rank=0, world_size=1)
    assert list(stream) == list(stream) == writable.samples
    assert stream.skipped.samples == 0
    assert [sidecar.name in record.getMessage() for record in caplog.records] == [True]


def test_unknown_policy(writable: Made) -> None:
    """An unknown `on_error` is rejected."""
    with pytest.raises(InvalidRequest, match="one of raise, skip"):
        writable.reader(on_error="ignore")


def test_a_broken_shard_is_scanned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that skips does not scan a damaged shard in each round."""
    walks = list[object]()

    def scan_counted(*args: Any, **options: Any) -> object:
        walks.append(args)
        return scan_module.scan_shard(*args, **options)

    monkeypatch.setattr(stored, "scan_shard", scan_counted)
    with ShardWriter(tmp_path / "x-{0..}.tar", max_count=50) as writer:
        for number in range(200):
            writer.write({"__key__": f"{number:03}", "bin": bytes(3000)})
    (tmp_path / "x-1.index").unlink()
    for at in range(51_200, 66_560):
        flip(tmp_path / "x-1.tar", at)
    data = open_data(tmp_path / "x.json", on_error="skip")
    opened = len(walks)
    seen = [len([*data.stream(shuffle=True, parts=4, buffer=8, ends="uneven")]) for _ in range(3)]
    assert seen == [150] * 3
    assert len(walks) - opened <= 4


@pytest.mark.parametrize(("missing", "lengths"), [("none", [50_000] * 3 + [0] * 3), ("skip", [50_000] * 3)])
def test_wrong_field_counts_in_a_dataset_file(missing: str, lengths: list[int], tmp_path: Path) -> None:
    """A shard whose samples lack a listed field is read by its index."""
    with ShardWriter(tmp_path / "x-{0..}.tar", max_count=3) as writer:
        for number in range(6):
            writer.write({"__key__": f"{number}", "jpg" if number < 3 else "png": bytes(50_000), "txt": b"1"})
    path = tmp_path / "x.json"
    told = parse_dataset(path.read_bytes(), str(path))
    path.write_bytes(replace(told, fields={**told.fields, "jpg": 6}).encode())
    data = open_data(path).tuple("jpg", missing=missing)  # type: ignore[arg-type]
    assert sorted((len(one or b"") for (one,) in data.stream(shuffle=True, ends="uneven")), reverse=True) == lengths
