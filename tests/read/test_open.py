"""What can be opened, and what cannot."""

from __future__ import annotations

import gzip
import json
import logging
import os
import pickle
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import shardtool
from shardtool import CreateOptions, create
from shardtool.errors import CorruptShard, InvalidRequest
from tests.helpers import ENVIRONMENT, shards, sidecar, write_tree
from tests.read.packed import COUNT, key_of, packed, sample_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardtool import Dataset

SAMPLES = [sample_of(number) for number in range(COUNT)]


@pytest.fixture(scope="module")
def packed_once(tmp_path_factory: pytest.TempPathFactory, ending: str) -> Path:
    """A folder with a dataset that no test changes."""
    folder = tmp_path_factory.mktemp("packed") / "set"
    packed(folder, f"out-{{000..}}.{ending}")
    return folder


@pytest.fixture
def folder(packed_once: Path, tmp_path: Path) -> Path:
    """A folder with a dataset that a test may change."""
    return shutil.copytree(packed_once, tmp_path / "set")


def _read(given: Any) -> list[Any]:
    dataset = shardtool.open(given)
    assert dataset[[*range(len(dataset))]] == [*dataset]
    return [*dataset]


def test_every_way_to_name_a_dataset(folder: Path, ending: str) -> None:
    """A dataset file, a pattern, a glob, a folder and a list of shards open the same dataset."""
    names = ("out.json", f"out-{{000..}}.{ending}", f"out-<000..005>.{ending}", f"out-*.{ending}", "")
    for given in (folder / "out.json", *(f"{folder}/{name}" for name in names), shards(folder)):
        assert _read(given) == SAMPLES


def test_shards_without_a_dataset_file(folder: Path) -> None:
    """Sidecars are enough to count the samples, without a scan."""
    (folder / "out.json").unlink()
    dataset = shardtool.open(folder)
    assert [*dataset] == SAMPLES
    assert dataset.field_counts == {"bin": COUNT, "txt": COUNT - 3}
    assert dataset[key_of(7)] == SAMPLES[7]
    assert dataset.splits == {"set": COUNT}


def test_shards_without_sidecars_are_scanned(folder: Path, ending: str, caplog: pytest.LogCaptureFixture) -> None:
    """Once, with a warning; then everything works except metadata."""
    for path in (*folder.glob("*.index"), folder / "out.json"):
        path.unlink()
    dataset = shardtool.open(folder)
    assert "Scanned 6 shards without a valid sidecar, for example out-000" in caplog.text
    for shard in shards(folder):
        shard.rename(shard.with_suffix(".away"))
    assert [*dataset.keys] == [sample["__key__"] for sample in SAMPLES]  # the shards were deleted
    for shard in folder.glob("*.away"):
        shard.rename(shard.with_suffix(f".{ending}"))
    assert [*dataset] == SAMPLES
    assert dataset[key_of(20)] == SAMPLES[20]
    assert dataset.field_counts == {"bin": COUNT, "txt": COUNT - 3}
    assert [*dataset.where("fields == 1").keys] == [key_of(at) for at in (5, 11, 17)]
    assert dataset.table().to_table(columns=["__key__"]).num_rows == COUNT


@pytest.mark.parametrize("what", ["out.json", ".", "index.json"])
def test_changing_the_working_directory(folder: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset opened by a relative path stays readable."""
    (folder / "index.json").write_text(json.dumps(json.loads((folder / "out.json").read_text()) | {"shardtool": None}))
    monkeypatch.chdir(folder)
    opened, read = shardtool.open(what), shardtool.open(what)
    assert read[3]["__key__"] == key_of(3)
    assert str(folder) not in repr(opened)
    monkeypatch.chdir("/")
    for dataset in (opened, read, pickle.loads(pickle.dumps(read))):  # noqa: S301 - ours
        assert [*dataset] == SAMPLES
        assert dataset.table().count_rows() == len(dataset.where("size >= 0")) == COUNT


def test_names_of_unlisted_shards(folder: Path) -> None:
    """Without a dataset file, the name is the first shard, and the number of others."""
    (folder / "out.json").unlink()
    first = shards(folder)[0]
    assert f"<Dataset {first} and 5 more: 23 samples in 6 shards>" == repr(shardtool.open(folder))
    assert repr(shardtool.open(first)) == f"<Dataset {first}: 4 samples in 1 shard>"


def test_some_sidecars(folder: Path) -> None:
    """Shards with and without sidecars are one dataset, and one table."""
    (folder / "out.json").unlink()
    (folder / sidecar(shards(folder)[2].name)).unlink()
    dataset = shardtool.open(folder)
    assert [*dataset] == SAMPLES
    keys = dataset.table().to_table(columns=["__key__"]).column(0).to_pylist()
    assert keys == [sample["__key__"] for sample in SAMPLES]


def test_a_sidecar_that_becomes_invalid(folder: Path) -> None:
    """Without a dataset file, a damaged or deleted sidecar is an error that names it."""
    (folder / "out.json").unlink()
    first, last = (folder / sidecar(shards(folder)[at].name) for at in (0, -1))
    first.write_bytes(b"PAR1" + bytes(40) + first.read_bytes()[44:])
    dataset = shardtool.open(folder)
    last.unlink()
    for number, path in ((0, first), (-1, last)):
        with pytest.raises(CorruptShard, match=path.name):
            dataset[number]


def test_keys_with_dots(tmp_path: Path) -> None:
    """A shard that lost its sidecar keeps its keys if the other sidecars record the key rule."""
    for at in range(4):
        (tmp_path / "source").mkdir(exist_ok=True)
        (tmp_path / "source" / f"scan.{at}.txt").write_bytes(b"%d" % at)
    create(tmp_path / "source", f"{tmp_path}/set/out-{{0..}}.tar", CreateOptions(max_count=2, dots="last", workers=0))
    (tmp_path / "set" / "out.json").unlink()
    (tmp_path / "set" / "out-1.index").unlink()
    assert [*shardtool.open(tmp_path / "set").keys] == [f"scan.{at}" for at in range(4)]


def test_a_wids_index(tmp_path: Path) -> None:
    """A wids index opens the same dataset as its shards."""
    packed(tmp_path / "set")
    listed = [{"url": shard.name, "nsamples": 4} for shard in shards(tmp_path / "set")]
    index = tmp_path / "set" / "wids.json"
    index.write_text(json.dumps({"wids_version": 1, "shardlist": listed}))
    assert _read(index) == SAMPLES


def test_several_datasets(tmp_path: Path) -> None:
    """Datasets of any format are concatenated in the given order, each a split."""
    packed(tmp_path / "one", count=9)
    packed(tmp_path / "two", "x-{000..}.tfrecord", first=9, count=COUNT - 9)
    dataset = shardtool.open([tmp_path / "one", tmp_path / "two"])
    assert [*dataset] == SAMPLES
    assert dataset[[20, 3]] == [SAMPLES[20], SAMPLES[3]]
    assert dataset[[key_of(20), key_of(3)]] == [SAMPLES[20], SAMPLES[3]]
    assert dataset.splits == {"out": 9, "x": COUNT - 9}
    assert [*dataset.partition("x")] == SAMPLES[9:]
    other = shardtool.open([tmp_path / "two", tmp_path / "one"])
    assert [*other] == SAMPLES[9:] + SAMPLES[:9]
    assert dataset.fingerprint != other.fingerprint
    assert dataset.field_counts == {"bin": COUNT, "txt": COUNT - 3}
    assert [*dataset.where("number == 8 or number == 9").keys] == [key_of(8), key_of(9)]
    assert dataset.table().count_rows() == COUNT


def test_splits(tmp_path: Path) -> None:
    """A folder of splits opens all of them; a name with `{split}` does the same."""
    packed(tmp_path / "set", "{split}-{000..}.tar", split="train=0.75,val=0.25")
    for given in (tmp_path / "set", f"{tmp_path}/set/{{split}}.json", f"{tmp_path}/set/{{split}}-{{000..}}.tar"):
        dataset = shardtool.open(given)
        assert dataset.splits.keys() == {"train", "val"}
        train = shardtool.open(tmp_path / "set" / "train.json")
        assert [*dataset.partition("train")] == [*train]
        assert dataset.partition("train").fingerprint == train.fingerprint
        assert [*dataset[::-1].partition("train")] == [*train][::-1]
        parts = [*dataset.partition("train").keys, *dataset.partition("val").keys]
        assert sorted(parts) == [key_of(number) for number in range(COUNT)]
        assert dataset.splits == {name: len(dataset.partition(name)) for name in ("train", "val")}
        assert dataset[:].splits == dataset.splits
        assert len(dataset[:3].partition("val")) + len(dataset[:3].partition("train")) == 3
        with pytest.raises(InvalidRequest, match="no split 'test'; expected one of train, val"):
            dataset.partition("test")


def test_classes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If class numbers differ between datasets, class names are omitted with a warning."""
    options: dict[str, Any] = {"field": ("cls=bi",), "classes": ("cls",), "where": "bi.notna()"}
    packed(tmp_path / "one", **options)
    packed(tmp_path / "two", "x-{000..}.tar", first=50, count=3, **{**options, "where": "bi == 'dog'"})
    assert shardtool.open(tmp_path / "one").classes == {"cls": ["cat", "dog"]}
    assert shardtool.open([tmp_path / "one", tmp_path / "two"]).classes == {}
    assert "cls: class numbers differ between the datasets" in caplog.text


def test_no_dataset(tmp_path: Path) -> None:
    """The error says what was searched."""
    givens: tuple[Any, ...] = (
        tmp_path,
        tmp_path / "out.json",
        f"{tmp_path}/out-{{000..}}.tar",
        [],
        f"{tmp_path}/{{split}}.json",
        "",
        None,
        5,
        b"out.json",
        [None],
        [["out.json"]],
    )
    for given in givens:
        with pytest.raises(InvalidRequest, match="expected"):
            shardtool.open(given)


def test_invalid_names(folder: Path) -> None:
    """An opened dataset, an iterator, and the folder of a cache are rejected."""
    with pytest.raises(InvalidRequest, match=r"^the dataset: <Dataset .*; expected a dataset file"):
        shardtool.open(shardtool.open(folder))  # type: ignore[call-overload]
    for cache in ("cache", folder, 5):
        with pytest.raises(InvalidRequest, match=r"^cache: .*expected shardtool.Cache\(FOLDER"):
            shardtool.open(folder, cache=cache)  # type: ignore[call-overload]
    assert [*shardtool.open(shard for shard in shards(folder))] == SAMPLES  # type: ignore[call-overload]


def test_a_missing_shard(folder: Path) -> None:
    """Reading it is an error that names it; the others are read."""
    dataset = shardtool.open(folder)
    missing = shards(folder)[1]
    missing.unlink()
    assert dataset[[0, 1, 2, 3, 8]] == [*SAMPLES[:4], SAMPLES[8]]
    with pytest.raises(CorruptShard, match=missing.name):
        dataset[4]


def test_a_shard_of_another_size(folder: Path) -> None:
    """A truncated or replaced shard is an error with the expected size."""
    shard = shards(folder)[1]
    os.truncate(shard, shard.stat().st_size - 1)
    dataset = shardtool.open(folder / "out.json")
    assert dataset[3] == SAMPLES[3]
    with pytest.raises(CorruptShard, match=rf"{shard.name}: .* bytes; expected .*, as (the|its) dataset"):
        dataset[4]


@pytest.mark.parametrize("listed", [True, False])
def test_a_dataset_replaced_while_open(tmp_path: Path, ending: str, *, listed: bool) -> None:
    """Samples of another dataset with the same layout are never returned."""
    pattern = f"{tmp_path}/out-{{0..}}.{ending}"
    for content in (b"old", b"new"):
        source = write_tree(tmp_path / content.decode(), {f"{at}.txt": content for at in range(4)})
        create(source, pattern, CreateOptions(workers=0, max_count=2, overwrite=True))
        if not listed:
            (tmp_path / "out.json").unlink()
        if content == b"old":
            dataset = shardtool.open(tmp_path)
            assert dataset[0]["txt"] == content
    assert dataset[1]["txt"] == b"old"  # its index is loaded, and its shard is open
    with pytest.raises(
        CorruptShard, match=r"out-1.*: the checksum .*; expected .*Open the dataset again if it was replaced"
    ):
        dataset[2]
    assert shardtool.open(tmp_path)[2]["txt"] == b"new"


@pytest.mark.parametrize("keys", ["dcba", "abcdefg", "ab"])
@pytest.mark.parametrize("listed", [True, False])
def test_metadata_of_a_dataset_replaced_while_open(keys: str, tmp_path: Path, *, listed: bool) -> None:
    """Columns and queries never use the rows of another dataset, which would belong to other samples."""
    datasets = []
    for version in ("abcd", keys):
        with shardtool.ShardWriter(tmp_path / "out-{0..}.tar", overwrite=True) as writer:
            for number, key in enumerate(version):
                writer.write({"__key__": key, "txt": key}, metadata={"number": number})
        if not listed:
            (tmp_path / "out.json").unlink()
        datasets.append(shardtool.open(tmp_path, metadata=True))
    opened, current = datasets
    calls: list[Callable[[shardtool.Dataset], Any]] = [
        lambda dataset: dataset.column("number"), lambda dataset: dataset[::-1].to_pandas(),
        lambda dataset: dataset.where("number >= 0"), lambda dataset: dataset[0],
    ]  # fmt: skip
    for call in calls:
        assert len(call(current)) > 0
        with pytest.raises(CorruptShard, match=r"as when the dataset was opened|as the dataset file lists"):
            call(opened)


def test_a_missing_sidecar(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If a listed sidecar is missing or damaged, its shard is scanned with a warning."""
    missing, damaged = (folder / sidecar(shards(folder)[at].name) for at in (0, 1))
    missing.unlink()
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert _read(folder / "out.json") == SAMPLES
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2
    assert "missing. The shard was scanned instead" in warnings[0]
    assert damaged.name in warnings[1]


@pytest.mark.parametrize("lost", [0, 1])
def test_metadata_without_a_sidecar(lost: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If a listed sidecar is missing, its metadata is null, with a warning. The other shards keep their columns."""
    with shardtool.ShardWriter(tmp_path / "o-{0..}.tar", max_count=2) as writer:
        for number in range(4):
            writer.write({"__key__": f"{number}", "txt": b""}, metadata={"width": number})
    (tmp_path / f"o-{lost}.index").unlink()
    expected = [None if number // 2 == lost else number for number in range(4)]
    dataset = shardtool.open(tmp_path / "o.json", metadata=True)
    readers: list[Callable[[], list[int | None]]] = [
        lambda: dataset.column("width"),
        lambda: [*dataset.table().to_table()["width"].to_pylist()],
        lambda: [sample["width"] for sample in dataset],
        lambda: [number if str(number) in dataset.where("width >= 0") else None for number in range(4)],
    ]
    for read in readers:
        caplog.clear()
        assert read() == expected
        assert f"o-{lost}.index: missing. The shard was scanned instead; all its metadata is null." in caplog.text


def test_columns_of_several_types(tmp_path: Path) -> None:
    """Datasets whose columns have no common type can be read and queried, but not combined to a table."""
    widths: dict[str, list[Any]] = {"int": [2**60 + 1, 2], "float": [0.5, 1.5], "text": ["a", "b"]}
    for name, values in widths.items():
        with shardtool.ShardWriter(tmp_path / f"{name}-{{0..}}.tar") as writer:
            for number, value in enumerate(values):
                writer.write({"__key__": f"{name}{number}", "txt": b""}, metadata={"width": value})
    for other in ("float", "text"):
        dataset = shardtool.open([tmp_path / "int.json", tmp_path / f"{other}.json"])
        assert dataset.columns == ["width"]
        assert len([*dataset]) == 4
        assert [*dataset.where(f"key == '{other}1'").keys] == [f"{other}1"]
        with pytest.raises(InvalidRequest, match=r"the metadata: .*; expected the same types in all datasets"):
            dataset.column("width")
    with pytest.raises(InvalidRequest, match="different types: width is text and 1 is a number"):
        dataset.where("width > 1")


def test_another_number_of_samples(folder: Path) -> None:
    """A shard and sidecar of the same size with other samples are an error."""
    first, last = shards(folder)[0], shards(folder)[-1]  # with four and three samples
    for path in (first, folder / sidecar(first.name)):
        path.unlink()
    data = last.read_bytes()
    size = json.loads((folder / "out.json").read_text())["shardlist"][0]["filesize"]
    first.write_bytes(data + bytes(max(0, size - len(data))) if first.suffix == ".tar" else data)
    with pytest.raises(CorruptShard, match=f"{first.name}: .*; expected .*"):
        shardtool.open(folder / "out.json")[0]


def test_compressed_shards(tmp_path: Path) -> None:
    """Compressed shards are scanned, and read like others."""
    packed(tmp_path / "set")
    (tmp_path / "packed").mkdir()
    for shard in shards(tmp_path / "set"):
        (tmp_path / "packed" / f"{shard.name}.gz").write_bytes(gzip.compress(shard.read_bytes()))
    dataset = shardtool.open(tmp_path / "packed")
    assert [*dataset.keys] == [sample["__key__"] for sample in SAMPLES]


_FORKS = """
import multiprocessing, os, sys, threading
import shardtool

def read(dataset, numbers):
    keys = [sample["__key__"] for sample in dataset[numbers]]
    assert keys == dataset.keys.at_positions(__import__("numpy").array(numbers))
    return keys

if __name__ == "__main__":
    dataset = shardtool.open(sys.argv[1])
    expected = [*dataset.keys]
    dataset[0]
    numbers = [*range(len(dataset))]
    for method in sys.argv[2:]:
        context = multiprocessing.get_context(method)
        with context.Pool(1) as pool:
            assert pool.starmap(read, [(dataset, numbers), (dataset, numbers[::-1])]) == [expected, expected[::-1]]
    print("read")
"""


@pytest.mark.slow
def test_processes(tmp_path: Path) -> None:
    """Forked and spawned processes, and those of a fork server, read the same samples."""
    packed(tmp_path / "set")
    (tmp_path / "run.py").write_text(_FORKS)
    command = [sys.executable, f"{tmp_path}/run.py", f"{tmp_path}/set", "fork", "spawn", "forkserver"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "read\n"), done.stderr


def test_a_copied_dataset_has_the_same_fingerprint(folder: Path, tmp_path: Path) -> None:
    """The fingerprint does not depend on the path."""
    before: Dataset = shardtool.open(folder)
    shutil.copytree(folder, tmp_path / "copy")
    assert shardtool.open(tmp_path / "copy").fingerprint == before.fingerprint
    assert before.fingerprint == json.loads((folder / "out.json").read_text())["shardtool"]["fingerprint"]


def test_a_path_is_not_a_cache(folder: Path, tmp_path: Path) -> None:
    """The path of a cache, instead of a `Cache`, is rejected."""
    for cache in (str(tmp_path), tmp_path):
        with pytest.raises(InvalidRequest, match=r"expected shardtool\.Cache"):
            shardtool.open(folder, cache=cache)  # type: ignore[call-overload]
