from __future__ import annotations

import gzip
import io
import multiprocessing
import pickle
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

import shardtool
from shardtool import InvalidRequest, SampleFailed
from shardtool.tensorflow import feature_spec, keras_sequence, tf_dataset
from tests.clients.packed import shardtool as run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.clients.packed import Packed

pytestmark = pytest.mark.clients
tf = pytest.importorskip("tensorflow")


def _fields(sample: dict[str, Any]) -> dict[str, bytes]:
    """Return a sample as the source has it: a number is its text."""
    values = {name: value.numpy() for name, value in sample.items() if name != "__key__"}
    return {name: value if isinstance(value, bytes) else b"%d" % value for name, value in values.items()}


def _keys(dataset: Any) -> list[str]:
    return [key.decode() for sample in dataset for key in np.ravel(sample["__key__"].numpy())]


@pytest.mark.parametrize("made", ["photo_records", "odd_records"])
def test_gives_every_sample_in_order(made: str, request: pytest.FixtureRequest) -> None:
    """Without shuffle come every key, byte and label, in the order of the dataset; a field that is lacking is empty."""
    packed: Packed = request.getfixturevalue(made)
    dataset = tf_dataset(packed.folder / "out.json")
    names = {name for fields in packed.samples.values() for name in fields}
    right = {key: {name: fields.get(name, b"") for name in names} for key, fields in packed.samples.items()}
    assert [(sample["__key__"].numpy().decode(), _fields(sample)) for sample in dataset] == [*right.items()]
    assert len(dataset) == len(packed.samples)


def test_batches_hold_the_same(photo_records: Packed) -> None:
    """A batch has the values of its samples, and the number of batches is known; only asked-for fields are parsed."""
    dataset = tf_dataset(photo_records.urls, fields=["__key__", "cls"], batch_size=40)
    batches = [(batch["__key__"].numpy().tolist(), batch["cls"].numpy().tolist()) for batch in dataset]
    assert [len(keys) for keys, _ in batches] == [40, 40, 18]
    assert len(dataset) == 3
    labels = {key.decode(): label for keys, labels in batches for key, label in zip(keys, labels, strict=True)}
    assert labels == {key: int(fields["cls"]) for key, fields in photo_records.samples.items()}
    assert {key: dataset.classes["cls"][label] for key, label in labels.items()} == {
        key: key.split("/")[0] for key in labels
    }


def test_an_order_is_one_of_seed_and_epoch(photo_records: Packed) -> None:
    """A shuffled pass gives every sample once, another order in each pass, and the same ones in each run."""
    folder = photo_records.folder
    first, again = (tf_dataset(folder, shuffle=True, seed=5) for _ in range(2))
    passes = [_keys(first), _keys(first)]
    assert passes == [_keys(again), _keys(again)]
    assert passes[0] != passes[1]
    fixed = tf_dataset(folder, shuffle=True, seed=5, epoch=3, batch_size=7)
    orders = [_keys(fixed), _keys(fixed), _keys(tf_dataset(folder, shuffle=True, seed=5, epoch=3))]
    assert orders[0] == orders[1] == orders[2]
    other = [_keys(tf_dataset(folder, shuffle=True, seed=seed, epoch=epoch)) for seed, epoch in ((5, 4), (6, 3))]
    assert orders[0] not in other
    assert all(sorted(keys) == sorted(photo_records.samples) for keys in (*passes, *orders, *other))


def test_packed_and_foreign_records(tmp_path: Path) -> None:
    """Records of other tools are read, with gzip or without, indexed or not, with lists and without keys."""
    (tmp_path / "packed").mkdir()
    (tmp_path / "plain").mkdir()
    kinds: dict[str, Any] = {
        "label": lambda at: tf.train.Feature(int64_list=tf.train.Int64List(value=[at])),
        "box": lambda at: tf.train.Feature(float_list=tf.train.FloatList(value=[0.5] * at)),
        "text": lambda at: tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"t%d" % at])),
    }
    with tf.io.TFRecordWriter(str(tmp_path / "plain" / "x-0.tfrecord")) as writer:
        for at in range(5):
            features = tf.train.Features(feature={name: make(at) for name, make in kinds.items()})
            writer.write(tf.train.Example(features=features).SerializeToString())
    data = (tmp_path / "plain" / "x-0.tfrecord").read_bytes()
    (tmp_path / "packed" / "x-0.tfrecord.gz").write_bytes(gzip.compress(data))
    for folder in ("packed", "plain", "indexed"):
        if folder == "indexed":
            run("index", "plain", cwd=tmp_path)
        (batch,) = tf_dataset(tmp_path / folder.replace("indexed", "plain"), batch_size=8)
        assert batch["label"].numpy().tolist() == [*range(5)]
        assert batch["text"].numpy().tolist() == [b"t%d" % at for at in range(5)]
        assert tf.sparse.to_dense(batch["box"]).numpy().sum(axis=1).tolist() == [at / 2 for at in range(5)]
        assert set(batch["__key__"].numpy()) == {b""}


def test_the_spec_is_for_any_parser(photo_records: Packed) -> None:
    """`feature_spec` is the specification that TensorFlow's parser needs for the selected fields."""
    spec = feature_spec(photo_records.folder, ["cls"])
    assert spec == {"cls": tf.io.FixedLenFeature([], tf.int64)}
    records = tf.data.TFRecordDataset(str(photo_records.shards[0]))
    assert [int(tf.io.parse_single_example(one, spec)["cls"]) for one in records.take(3)] == [0, 0, 0]


def test_a_shard_that_is_cut_is_an_error(photo_records: Packed, tmp_path: Path) -> None:
    """Fewer records than the dataset file lists are never taken for all of them."""
    for path in (photo_records.folder / "out.json", *photo_records.shards):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / photo_records.shards[-1].name).write_bytes(b"")
    with pytest.raises(tf.errors.FailedPreconditionError):
        list(tf_dataset(tmp_path))


class _Prepared:
    """Photographs of a dataset in the form of Keras; records the requested ones."""

    def __init__(self, packed: Packed) -> None:
        self.dataset = shardtool.open(packed.folder)
        self.asked: list[str] = []
        self.threads: set[int] = set()

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, which: Any) -> list[tuple[Any, int]]:
        samples = self.dataset[which]
        self.threads.add(threading.get_ident())
        self.asked += [str(sample["__key__"]) for sample in samples]
        return [(_pixels(sample["jpg"]), int(sample["cls"])) for sample in samples]


def _pixels(data: Any) -> Any:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB").resize((16, 16)), np.float32) / 255


@pytest.mark.parametrize("made", ["photos", "photo_records"])
def test_keras_fits(made: str, request: pytest.FixtureRequest) -> None:
    """`fit` takes every sample once an epoch, read in several threads, in the order of seed and epoch."""
    import keras

    packed: Packed = request.getfixturevalue(made)
    prepared = _Prepared(packed)
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(8, activation="softmax")])
    model.compile("adam", "sparse_categorical_crossentropy")
    sequence = keras_sequence(prepared, 20, seed=1)
    model.fit(sequence, epochs=2, shuffle=False, verbose=0)
    assert len(prepared.threads) > 1
    assert set(prepared.asked) == set(packed.samples)
    again = keras_sequence(_Prepared(packed), 20, seed=1, epoch=2)
    assert [label.tolist() for _, label in _batches(sequence)] == [label.tolist() for _, label in _batches(again)]


def _batches(sequence: Any) -> list[Any]:
    return [sequence[at] for at in range(len(sequence))]


def test_batches_of_a_sequence(photos: Packed) -> None:
    """Each epoch contains every sample once, in a different order; arrays have the values' dtypes."""
    dataset = shardtool.open(photos.folder)
    sequence = keras_sequence(dataset, 40)
    assert len(sequence) == 3
    orders = []
    for _ in range(2):
        sequence.on_epoch_begin()
        batches = _batches(sequence)
        assert [len(batch["jpg"]) for batch in batches] == [40, 40, 18]
        found = {key: batch["jpg"][at] for batch in batches for at, key in enumerate(batch["__key__"])}
        assert found == {key: fields["jpg"] for key, fields in photos.samples.items()}
        orders.append([*found])
        sequence.on_epoch_end()
    assert orders[0] != orders[1]
    looped = keras_sequence(dataset, 40)
    next(iter(looped))
    assert [[key for batch in looped for key in batch["__key__"]] for _ in range(2)] == orders
    looped.set_epoch(0)
    assert [*looped[0]["__key__"]] == orders[0][:40]
    with pytest.raises(InvalidRequest, match=r"expected a dataset from shardtool\.open"):
        keras_sequence(dataset.stream(), 40)
    plain = keras_sequence(dataset, 98, shuffle=False)
    assert [*plain[0]["__key__"]] == [*photos.samples]
    with pytest.raises(IndexError, match="batch 1 of 1"):
        plain[1]
    skipped = keras_sequence(dataset.filter(lambda _: False), 40)
    with pytest.raises(SampleFailed, match=r"^a batch: all of its 40 samples were skipped"):
        skipped[0]


def test_a_sequence_goes_to_another_process(photos: Packed) -> None:
    """Keras pickles a sequence for processes that it spawns: there it gives the same batches, of the same epoch."""
    sequence = keras_sequence(shardtool.open(photos.folder), 40, workers=2)
    sequence.set_epoch(3)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        batches = pool.apply(_batches, (sequence,))
    assert [[*batch["__key__"]] for batch in batches] == [[*batch["__key__"]] for batch in _batches(sequence)]
    again = pickle.loads(pickle.dumps(sequence))  # noqa: S301 - made here
    assert (type(again), again.workers, len(again)) == (type(sequence), 2, 3)


def test_values_of_a_batch() -> None:
    """Numbers, arrays and texts are stacked by their type; other values are an error with the reason."""
    samples = [{"i": 1, "f": 0.5, "s": "a", "b": b"\0", "a": np.zeros((2, 3), np.uint8)}] * 2
    batch = keras_sequence(_Listed(samples), 2)[0]
    assert {name: (value.dtype, value.shape) for name, value in batch.items()} == {
        "i": (np.int64, (2,)),
        "f": (np.float32, (2,)),
        "s": (object, (2,)),
        "b": (object, (2,)),
        "a": (np.uint8, (2, 2, 3)),
    }
    assert [*batch["b"]] == [b"\0"] * 2
    pair = keras_sequence(_Listed([(np.zeros(3), 1), (np.ones(3), 2)]), 2, shuffle=False)[0]
    assert [one.tolist() for one in pair] == [[[0.0] * 3, [1.0] * 3], [1, 2]]
    with pytest.raises(InvalidRequest, match=r"shapes \(2,\) and \(3,\).*one size"):
        keras_sequence(_Listed([np.zeros(3), np.zeros(2)]), 2)[0]
    with pytest.raises(InvalidRequest, match="some samples lack the field 'b'"):
        keras_sequence(_Listed([{"a": 1}, {"a": 2, "b": 3}]), 2)[0]
    with pytest.raises(InvalidRequest, match="batch_size: 0; expected a whole number, 1 or more"):
        keras_sequence(_Listed(samples), 0)


class _Listed(list[Any]):
    """Samples of a list."""

    def __getitem__(self, which: Any) -> Any:
        return [list.__getitem__(self, at) for at in which]
