"""Stages over real shards: order, resuming and counting stay exact with any stages."""

from __future__ import annotations

import json
import os
import pickle
from typing import TYPE_CHECKING, Any, cast

import pytest

import shardtool
from shardtool import CorruptShard, CreateOptions, InvalidRequest, SampleFailed, create
from shardtool.read import open_files
from shardtool.read.dataset import open as open_data
from tests.helpers import write_tree
from tests.read.made_data import make

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardtool.read.dataset import Dataset
    from shardtool.read.stream import Stream
    from tests.read.made_data import Made

_SAMPLES = 30
_BAD = 7  # its class is not a number


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 30 samples in shards of four. One class is not a number, and every fifth sample has no text."""
    root = tmp_path_factory.mktemp("chain")
    files = {f"{at:02}.cls": b"none" if at == _BAD else str(at).encode() for at in range(_SAMPLES)}
    write_tree(root / "in", files | {f"{at:02}.txt": b"text" for at in range(_SAMPLES) if at % 5})
    create(root / "in", str(root / "out-{000000..}.tar"), CreateOptions(max_count=4, workers=0))
    return root


@pytest.fixture
def dataset(folder: Path) -> Dataset:
    """The dataset, newly opened."""
    return open_data(folder / "out.json")


def _keys(stream: Stream) -> list[Any]:
    return [sample["__key__"] for sample in stream]


@pytest.mark.parametrize("shuffle", [False, True, "full"])
def test_stages_keep_the_order(dataset: Dataset, shuffle: Any) -> None:
    """A stream yields the results of its stages in the order of the samples, epoch after epoch."""
    plain = dataset.stream(shuffle=shuffle, seed=3)
    chained = (
        dataset.stream(shuffle=shuffle, seed=3)
        .decode({"cls": None})
        .fields("cls")
        .map(lambda sample: sample["__key__"])
    )
    for _ in range(2):
        assert list(chained) == _keys(plain)


def test_a_stream_has_the_stages_of_its_dataset(dataset: Dataset) -> None:
    """A dataset's stages apply to its streams; the original dataset is unchanged."""
    decoded = dataset.decode({"cls": "text"}).tuple("cls")
    assert sorted(decoded.stream()) == sorted((sample["cls"].decode(),) for sample in dataset)
    assert list(decoded.stream(shuffle=False).map(len)) == [1] * _SAMPLES
    assert isinstance(dataset[0], dict)


@pytest.mark.parametrize(("before", "after"), [((0, 1), (0, 1)), ((0, 2), (1, 3)), ((1, 3), (0, 1))])
def test_resumes_between_batches(dataset: Dataset, before: tuple[int, int], after: tuple[int, int]) -> None:
    """A state taken after some batches continues with the next sample, also with another number of ranks."""

    def batches(rank: int, world_size: int) -> Stream:
        stream = dataset.stream(seed=1, parts=64, rank=rank, world_size=world_size)
        return stream.fields("cls").batch(2)

    stream = batches(*before)
    for number, _ in enumerate(stream, 1):
        if number == 3:
            break
    position = number * 2 * before[1]
    resumed = batches(*after)
    resumed.load_state_dict(json.loads(json.dumps(stream.state_dict())))
    everything = _keys(dataset.stream(seed=1, parts=64, rank=0, world_size=1))
    rest = everything[position:][after[0] :: after[1]]
    assert [key for batch in resumed for key in batch["__key__"]] == rest[: (_SAMPLES - position) // after[1]]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world_size", [1, 4])
def test_len_equals_the_number_of_outputs(dataset: Dataset, world_size: int, *, drop_last: bool) -> None:
    """For datasets, views, mixes and streams, with and without batches."""
    mixed = shardtool.mix([dataset, dataset[:9]], weights=[1, 1])
    for source in (dataset, dataset[:7], mixed):
        for chain in (source, *(source.fields("cls").batch(4, drop_last=drop_last).batch(size) for size in (1, 3))):
            assert len(chain) == sum(1 for _ in chain)
            stream = chain.stream(rank=world_size - 1, world_size=world_size, ends="uneven")
            assert len(stream) == sum(1 for _ in stream)
    chained = dataset.batch(4)
    assert (len(chained[:7]), len(chained.select([True] * _SAMPLES)), len(chained.keys)) == (2, len(chained), _SAMPLES)


def test_one_rank_without_shuffle_equals_a_plain_loop(dataset: Dataset) -> None:
    """It yields each sample once, whatever a filter drops."""
    chosen = dataset.fields("cls", "__key__").filter(lambda sample: sample["cls"] != b"3")
    stream = chosen.stream(shuffle=False, rank=0, world_size=1)
    assert [*stream] == [*chosen]
    assert 0 < stream.skipped.samples == len(stream) - len([*stream])


def test_dataloader_options_are_rejected(dataset: Dataset, tmp_path: Path) -> None:
    """A dataset and its stream reject options of PyTorch's DataLoader, and name the equivalent."""
    for name in ("batch_size", "num_workers", "sampler", "collate_fn", "drop_last"):
        options: dict[str, Any] = {name: 2}
        with pytest.raises(InvalidRequest, match=rf"^{name}: an option of PyTorch's DataLoader\. .*[(]"):
            dataset.stream(**options)
        with pytest.raises(InvalidRequest, match=rf"^{name}: an option of PyTorch's DataLoader\. .*[(]"):
            shardtool.open(tmp_path, **options)
    workers: dict[str, Any] = {"num_workers": 2}
    for refuses in (lambda: dataset.batch(2, **workers), lambda: shardtool.mix([dataset], **workers)):
        with pytest.raises(InvalidRequest, match=r"^num_workers: an option of PyTorch's DataLoader\."):
            refuses()
    with pytest.raises(TypeError, match="unexpected keyword"):
        dataset.stream(no_such=1)  # type: ignore[call-arg]


def test_skipped_samples_are_counted(dataset: Dataset) -> None:
    """A stream counts skipped samples by shard and reason, and its position stays exact."""
    stream = dataset.decode(on_error="skip").tuple("cls", "txt", missing="skip").stream(shuffle=False)
    expected = [at for at in range(_SAMPLES) if at % 5 and at != _BAD]
    assert [number for number, _ in stream] == expected
    assert stream.skipped.samples == _SAMPLES - len(expected)
    assert {name.rpartition("-")[2]: count for name, count in stream.skipped.shards.items()} == {
        "000000.tar": 1, "000001.tar": 2, "000002.tar": 1, "000003.tar": 1, "000005.tar": 1, "000006.tar": 1,
    }  # fmt: skip
    assert sum("not a whole number" in reason for reason in stream.skipped.reasons) == 1


def test_errors_end_a_stream(dataset: Dataset) -> None:
    """Unless a stage skips, the first failing sample ends the stream with an error that names it."""
    with pytest.raises(SampleFailed, match="sample 07, field cls"):
        list(dataset.decode().stream(shuffle=False))
    with pytest.raises(SampleFailed, match="sample 00: no field txt; it has cls"):
        list(dataset.stream(shuffle=False).fields("txt"))


def test_samples_by_number_and_key_pass_through_stages(dataset: Dataset) -> None:
    """By number, key, list, or from a view."""
    numbers = dataset.decode({"cls": "text"}).map(lambda sample: sample["cls"])
    assert (numbers[3], numbers[-1], numbers["04"]) == ("3", "29", "04".lstrip("0"))
    assert numbers[[5, 2]] == numbers[["05", "02"]] == ["5", "2"]
    assert list(numbers[10:12]) == list(numbers.select(["10", "11"])) == ["10", "11"]
    assert list(numbers)[:3] == ["0", "1", "2"]
    assert list(numbers[:0]) == []


def test_one_policy_for_bad_samples(folder: Path) -> None:
    """`on_error` of `open` applies to `decode` and streams; that of a stream replaces it, also in a mix."""
    options: dict[str, Any] = {"shuffle": False, "rank": 0, "world_size": 1, "ends": "uneven"}
    raising, skipping = (open_data(folder / "out.json", on_error=policy).decode() for policy in ("raise", "skip"))
    for streams in (raising, shardtool.mix([raising, skipping])):
        with pytest.raises(SampleFailed, match="sample 07, field cls"):
            list(streams.stream(**options))
        with pytest.raises(SampleFailed, match="sample 07, field cls"):
            list(skipping.stream(**options, on_error="raise"))
    for streams, copies in ((raising, 1), (skipping, 1), (shardtool.mix([raising, skipping]), 2)):
        stream = streams.stream(**options, on_error="skip")
        assert len([*stream]) == copies * (_SAMPLES - 1)
        assert (stream.skipped.samples, stream.skipped.damaged) == (copies, 0)
    assert len([*skipping]) == _SAMPLES - 1
    with pytest.raises(InvalidRequest, match=r"^on_error: 'ignore'"):
        raising.stream(on_error="ignore")  # type: ignore[arg-type]


def test_a_requested_sample_is_never_skipped(dataset: Dataset) -> None:
    """It is an error instead, unless it is in a list; and single batches cannot be requested."""
    tuples = dataset.decode(on_error="skip").tuple("cls", "txt", missing="skip")
    assert tuples[1] == (1, "text")
    for which, where in ((_BAD, "sample 07, field cls"), ("05", "sample 05: no field txt")):
        with pytest.raises(SampleFailed, match=where):
            tuples[which]
    before = dataset.skipped.samples
    assert tuples[[1, _BAD, 5, 1]] == [(1, "text"), (1, "text")]
    assert dataset.skipped.samples == before + 2
    with pytest.raises(InvalidRequest, match="batch: one sample was requested"):
        tuples.batch(2)[0]
    assert [len(batch[0]) for batch in tuples.batch(20)] == [20, 3]


def test_a_requested_damaged_sample_is_an_error(folder: Path, tmp_path: Path) -> None:
    """With `on_error="skip"`, a single damaged sample is an error; in a list it is skipped."""
    for path in folder.glob("out*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "out-000001.tar").unlink()
    dataset = open_data(tmp_path / "out.json", on_error="skip")
    with pytest.raises(CorruptShard, match=r"out-000001\.tar"):
        dataset[4]
    assert [sample["__key__"] for sample in dataset[[3, 4, 8]]] == ["03", "08"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, ending: str) -> Made:
    """Samples with a label and a picture; three of four have a text."""
    return make(tmp_path_factory.mktemp("made"), ending)


_CHOSEN: list[Callable[[Any], Any]] = [
    lambda dataset: dataset.fields("cls"),
    lambda dataset: dataset.tuple("__key__", "jpg"),
    lambda dataset: dataset.decode({"jpg": None}).tuple("cls", "jpg"),
    lambda dataset: dataset.tuple("cls", "txt", missing="none"),
    lambda dataset: dataset.tuple("txt;jpg"),
    lambda dataset: dataset.fields("txt", missing="skip").fields("txt"),
    lambda dataset: dataset.fields("cls", "jpg").map(dict).fields("cls"),
]


@pytest.mark.parametrize("chain", _CHOSEN)
def test_selecting_fields_early_changes_nothing(made: Made, chain: Callable[[Any], Any]) -> None:
    """Selected fields equal those of the whole sample: by number, in lists, streams and mixes."""
    whole, chosen = made.open(), chain(made.open())
    expected = [*chosen.stages.run(whole, lambda _: None)]
    assert [*chosen] == expected
    assert [*pickle.loads(pickle.dumps(chosen))[::-1]] == expected[::-1]  # noqa: S301
    assert [*chain(whole.stream(shuffle=False, ends="uneven"))] == expected
    stream = whole.stream(seed=5)
    assert [*chosen.stream(seed=5, ends="uneven")] == [*chosen.stages.run(stream, lambda _: None)]
    mixed = shardtool.mix([whole, whole[:9]], weights=[1, 1])
    assert [*chain(mixed)] == [*chosen.stages.run(mixed, lambda _: None)]
    if len(expected) == len(whole):
        assert [chosen[at] for at in range(len(whole))] == expected == chosen[range(len(whole))]


def test_a_missing_field_error_lists_all_fields(made: Made) -> None:
    """The error lists all fields of the sample, not only the selected ones."""
    at = next(at for at, sample in enumerate(made.samples) if "txt" not in sample)
    for lacking in (made.open().tuple("cls", "txt"), made.open().fields("cls", "jgp")):
        with pytest.raises(SampleFailed, match=r"no field (txt|jgp); it has cls, jpg"):
            lacking[at]


def test_unselected_fields_are_not_read(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only fields selected first are read, and only they are checked."""
    read = [0]

    def counting(fd: int, length: int, offset: int) -> bytes:
        data = os.pread(fd, length, offset)
        read[0] += len(data)
        return data

    monkeypatch.setattr(open_files, "_pread", counting)
    pictures = sum(len(cast("bytes", sample["jpg"])) for sample in made.samples)
    costs = []
    for dataset in (made.open(), made.open().decode().tuple("cls"), made.open(check=True).fields("cls")):
        read[0] = 0
        assert len([*dataset.stream()]) == len([dataset[at] for at in range(len(dataset))])
        costs.append(read[0])
    assert costs[0] > 2 * pictures > 10 * max(costs[1:])
