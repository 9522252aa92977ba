"""TFRecord shards for TensorFlow, without importing it."""

from __future__ import annotations

import gzip
import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest

from shardtool import CreateOptions, InvalidRequest, create
from shardtool.dataset.features import TfFeature
from shardtool.tensorflow import feature_spec, find_tfrecords, keras_sequence, tf_dataset
from tests.helpers import write_tree

if TYPE_CHECKING:
    from pathlib import Path

_KEY = TfFeature()


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three datasets: TFRecords `a` with a class and `b` with another field, and the tar shards `c`."""
    folder = tmp_path_factory.mktemp("packed")
    write_tree(folder / "a", {"dog/1.txt": b"1", "dog/2.txt": b"22", "cat/3.txt": b"3"})
    write_tree(folder / "b", {"4.bin": b"4"})
    options = CreateOptions(max_count=2, label_from_folder=True)
    create(str(folder / "a"), str(folder / "a-{0..}.tfrecord"), options)
    create(str(folder / "b"), str(folder / "b-{0..}.tfrecord"))
    create(str(folder / "a"), str(folder / "c-{0..}.tar"), options)
    return folder


@pytest.fixture
def made(packed: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return shutil.copytree(packed, tmp_path, dirs_exist_ok=True)


def test_features_come_from_the_dataset_file(made: Path) -> None:
    """Features, classes and counts are those of the dataset file, in shard order."""
    found = find_tfrecords(str(made / "a.json"), None)
    assert dict(found.features) == {"__key__": _KEY, "cls": TfFeature("int64"), "txt": _KEY}
    assert found.classes == {"cls": ["cat", "dog"]}
    assert found.paths == tuple(str(made / f"a-{at}.tfrecord") for at in range(2))
    assert found.samples == 3
    assert find_tfrecords(str(made / "a-{0..}.tfrecord"), ["txt", "cls"]).features == {
        "txt": _KEY,
        "cls": TfFeature("int64"),
    }


def test_several_datasets(made: Path) -> None:
    """A field that one dataset lacks is optional."""
    found = find_tfrecords([str(made / "a.json"), str(made / "b.json")], None)
    optional = TfFeature(is_optional=True)
    assert dict(found.features) == {
        "__key__": _KEY,
        "cls": TfFeature("int64", is_optional=True),
        "txt": optional,
        "bin": optional,
    }
    assert found.samples == 4


def test_unlisted_shards_are_scanned(made: Path) -> None:
    """Compressed shards, and some of a dataset, are scanned for their features; the key is optional."""
    (made / "packed").mkdir()
    for path in made.glob("a-*.tfrecord"):
        (made / "packed" / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    found = find_tfrecords(str(made / "packed"), None)
    assert found.compression == "GZIP"
    assert found.samples == 3
    assert dict(found.features) == {"__key__": TfFeature(is_optional=True), "cls": TfFeature("int64"), "txt": _KEY}
    one = find_tfrecords([str(made / "a-1.tfrecord")], ["txt"])
    with pytest.raises(InvalidRequest, match=r"gz: compressed with gzip, unlike other shards"):
        find_tfrecords([str(made / "packed"), str(made / "a.json")], None)
    assert (one.samples, one.compression) == (1, "")


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ("c.json", {}, "tar shards; expected TFRecords.*`shardtool reshard .*c.json .*keras_sequence"),
        ("a.json", {"fields": ["jpg"]}, "fields: no jpg; expected some of __key__, cls, txt"),
        ("a.json", {"fields": []}, "fields: none"),
        ("a.json", {"batch_size": 0}, "batch_size: 0; expected a whole number, 1 or more"),
        ("a.json", {"seed": -1}, "seed: -1; expected a whole number, 0 or more"),
        ("a.json", {"epoch": -1}, "epoch: -1"),
        ("a.json", {"epoch": "1"}, "epoch: '1'; expected a whole number"),
        ("a.json", {"shuffle": -1}, "shuffle: -1"),
        ("nothing.json", {}, "nothing.json: no such file"),
        ("x.tfrecord.zst", {}, "compressed with zstd, which TensorFlow cannot decompress"),
    ],
)
def test_invalid_requests(made: Path, given: str, options: dict[str, Any], message: str) -> None:
    """They are rejected before TensorFlow is imported, with what to do."""
    shutil.copy(made / "a-0.tfrecord", made / "x.tfrecord.zst")
    with pytest.raises(InvalidRequest, match=message):
        tf_dataset(str(made / given), **options)


def test_keras_needs_an_opened_dataset(made: Path) -> None:
    """A path is rejected."""
    for wrong in (str(made / "a.json"), made / "a.json", None):
        with pytest.raises(InvalidRequest, match=r"the dataset: .*; expected a dataset from shardtool.open"):
            keras_sequence(wrong, 2)  # type: ignore[arg-type]


def test_incompatible_datasets(made: Path) -> None:
    """Different classes, or fields of different types, are rejected."""
    write_tree(made / "d", {"emu/1.txt": b"1", "ant/2.txt": b"2"})
    create(str(made / "d"), str(made / "d-{0..}.tfrecord"), CreateOptions(label_from_folder=True))
    with pytest.raises(InvalidRequest, match="classes of 'cls': differ between two datasets"):
        find_tfrecords([str(made / "a.json"), str(made / "d.json")], None)
    write_tree(made / "e", {"1.cls": b"1"})
    create(str(made / "e"), str(made / "e-{0..}.tfrecord"))
    with pytest.raises(InvalidRequest, match="field 'cls': int64 in one dataset, bytes in another"):
        find_tfrecords([str(made / "a.json"), str(made / "e.json")], None)


def test_missing_libraries(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without TensorFlow or Keras, the error says what to install."""
    for module in ("keras", "tensorflow"):
        monkeypatch.setitem(sys.modules, module, None)
    for call in (lambda: tf_dataset(str(made / "a.json")), lambda: feature_spec(str(made / "a.json"))):
        with pytest.raises(InvalidRequest, match=r"tensorflow is not installed. Run `pip install 'shardtool"):
            call()
    with pytest.raises(InvalidRequest, match="keras is not installed"):
        keras_sequence([], 1)


def test_shuffle_buffer(made: Path) -> None:
    """A number is the size of the buffer; otherwise a small dataset fits completely."""
    found = find_tfrecords(str(made / "a.json"), None)
    assert [found.buffer(shuffle) for shuffle in (True, 2, 100)] == [3, 2, 100]
