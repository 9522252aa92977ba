from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import pytest

from tests.clients.packed import shardtool

if TYPE_CHECKING:
    from pathlib import Path

    from tests.clients.packed import Packed

pytestmark = pytest.mark.clients


@pytest.fixture(params=["photo_records", "odd_records"])
def packed(request: pytest.FixtureRequest) -> Packed:
    """Yield each dataset."""
    found: Packed = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def tf() -> Any:
    """Give TensorFlow, which takes seconds to import."""
    return pytest.importorskip("tensorflow")


def _dataset(tf: Any, packed: Packed) -> Any:
    return tf.data.TFRecordDataset([str(shard) for shard in packed.shards])


def _features(tf: Any, folder: Path) -> dict[str, Any]:
    """Return what a user pastes from the dataset file."""
    listed = json.loads((folder / "out.json").read_bytes())["shardtool"]["features"]
    return {name: eval(kind, {"tf": tf}) for name, kind in listed.items()}  # noqa: S307 - our own text


def _wanted(packed: Packed) -> list[tuple[str, dict[str, bytes | int]]]:
    """Return what a reader must give: labels as numbers."""
    return [
        (key, {name: int(payload) if name == "cls" else payload for name, payload in fields.items()})
        for key, fields in packed.samples.items()
    ]


def test_tensorflow_parses_every_sample(packed: Packed, tf: Any) -> None:
    """`parse_single_example`, with the features in the dataset file, gives every key, byte and label, in order."""
    features, read = _features(tf, packed.folder), []
    for row in _dataset(tf, packed).map(lambda record: tf.io.parse_single_example(record, features)):
        fields = {name: value.numpy() for name, value in row.items()}
        key = fields.pop("__key__").decode()
        assert fields.keys() >= packed.samples[key].keys()
        assert all(fields.pop(name) == b"" for name in fields.keys() - packed.samples[key].keys())
        read.append((key, fields))
    assert read == _wanted(packed)


def test_protobuf_serializes_the_same_bytes(packed: Packed, tf: Any) -> None:
    """A record is, to the byte, what protobuf makes of its Example, the order of features included."""
    read = 0
    for record in _dataset(tf, packed).as_numpy_iterator():
        parsed = tf.train.Example.FromString(record)
        assert parsed.SerializeToString(deterministic=True) == record
        read += 1
    assert read == len(packed.samples)


def test_tensorflow_reads_numbers_of_a_table(tf: Any, tmp_path: Path) -> None:
    """Numbers of a manifest come back as int64 and float32, and classes as the numbers of their names."""
    (tmp_path / "table.csv").write_text(
        "key,count,score,bi,path\na,-7,0.1,dog,a.txt\nb,9007199254740993,1e30,cat,b.txt\nc,0,-2.5,dog,c.txt\n"
    )
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(f"text of {name}")
    options = ["--field", "count=count", "--field", "score=score", "--field", "cls=bi", "--classes", "cls"]
    shardtool("create", "table.csv", "out-{0..}.tfrecord", *options, cwd=tmp_path)
    features = _features(tf, tmp_path)
    rows = [
        {name: value.numpy() for name, value in tf.io.parse_single_example(record, features).items()}
        for record in tf.data.TFRecordDataset(str(tmp_path / "out-0.tfrecord"))
    ]
    assert [(row["__key__"], row["txt"], int(row["count"]), int(row["cls"])) for row in rows] == [
        (b"a", b"text of a", -7, 1),
        (b"b", b"text of b", 9007199254740993, 0),
        (b"c", b"text of c", 0, 1),
    ]
    assert [row["score"].item() for row in rows] == [
        struct.unpack("f", struct.pack("f", one))[0] for one in (0.1, 1e30, -2.5)
    ]


def test_tensorflow_finds_any_flipped_byte(tf: Any, tmp_path: Path) -> None:
    """For any flipped byte of a shard, TensorFlow's reader fails and returns no other record."""
    (tmp_path / "s").mkdir()
    for name in ("a.txt", "b.txt", "b.json"):
        (tmp_path / "s" / name).write_text(name)
    shardtool("create", "s", "out-{0..}.tfrecord", cwd=tmp_path)
    shard = tmp_path / "out-0.tfrecord"
    raw = shard.read_bytes()
    right = list(tf.data.TFRecordDataset(str(shard)).as_numpy_iterator())
    assert len(right) == 2
    for at in range(len(raw)):
        shard.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        read = []
        with pytest.raises(tf.errors.DataLossError):
            read += tf.data.TFRecordDataset(str(shard)).as_numpy_iterator()
        assert read == right[: len(read)]


def test_tensorflow_reads_lists(tf: Any, tmp_path: Path) -> None:
    """Lists that TensorFlow wrote come back through `reshard` as the same Examples, and parse as the file tells."""
    made: list[dict[str, Any]] = [
        {"box": [0.5] * 4 * (at % 3), "ids": [*range(-at, at)], "names": [b"x"] * (at % 4), "label": [at - 4]}
        for at in range(9)
    ]
    kinds = {"box": "float_list", "ids": "int64_list", "label": "int64_list", "names": "bytes_list"}
    types = {"float_list": tf.train.FloatList, "int64_list": tf.train.Int64List, "bytes_list": tf.train.BytesList}
    examples = [
        tf.train.Example(
            features=tf.train.Features(
                feature={
                    name: tf.train.Feature(**{kinds[name]: types[kinds[name]](value=values)})
                    for name, values in one.items()
                }
                | {"__key__": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"k%d" % at]))}
            )
        )
        for at, one in enumerate(made)
    ]
    (tmp_path / "src").mkdir()
    with tf.io.TFRecordWriter(str(tmp_path / "src" / "x.tfrecord")) as writer:
        for example in examples:
            writer.write(example.SerializeToString())
    shardtool("reshard", "src", "out-{0..}.tfrecord", "--max-count", "4", cwd=tmp_path)
    shards = tf.data.TFRecordDataset([str(path) for path in sorted(tmp_path.glob("out-*.tfrecord"))])
    records = [*shards.as_numpy_iterator()]
    assert records == [example.SerializeToString(deterministic=True) for example in examples]
    features = _features(tf, tmp_path)
    for at, row in enumerate(shards.map(lambda record: tf.io.parse_single_example(record, features))):
        assert row.pop("__key__").numpy() == b"k%d" % at
        assert [row.pop("label").numpy()] == made[at].pop("label")
        assert {name: list(values.values.numpy()) for name, values in row.items()} == made[at]
