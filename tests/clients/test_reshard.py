from __future__ import annotations

import io
import json
import tarfile
from typing import TYPE_CHECKING, Any

import pytest
import webdataset as wds
import wids

from tests.clients.packed import Fields, Packed, shardtool

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.clients,
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),  # webdataset leaves the last shard open
]


def _read(pattern: str) -> dict[str, Fields]:
    """Return what webdataset reads, in order."""
    return {
        sample["__key__"]: {name: value for name, value in sample.items() if not name.startswith("__")}
        for sample in wds.WebDataset(pattern, shardshuffle=False)
    }


@pytest.fixture
def written(tmp_path: Path) -> dict[str, Fields]:
    """Write shards `theirs-*.tar` with webdataset's ShardWriter, without an index; return their content."""
    samples: dict[str, Fields] = {}
    with wds.ShardWriter(f"{tmp_path}/theirs-%06d.tar", maxcount=7, verbose=0) as writer:
        for number in range(40):
            fields = {"bin": bytes([number]) * (500 + number), "cls": b"%d" % (number % 3), "txt": b"t" * number}
            writer.write({"__key__": f"c{number % 4}/{number:04d}", **fields})
            samples[f"c{number % 4}/{number:04d}"] = fields
    return samples


def test_shards_of_webdataset(written: dict[str, Fields], tmp_path: Path) -> None:
    """What ShardWriter wrote, whose headers tell times and users, is read as it was from other shards."""
    shardtool("reshard", "theirs-*.tar", "ours-{000000..}.tar", "--max-count", "11", cwd=tmp_path)
    assert _read(f"{tmp_path}/ours-{{000000..000003}}.tar") == written


def test_shuffled_shards(written: dict[str, Fields], tmp_path: Path) -> None:
    """Shuffled, webdataset and wids read the same samples in one other order, wids by number."""
    shardtool("reshard", "theirs-*.tar", "ours-{000000..000002}.tar", "--shuffle", "--seed", "5", cwd=tmp_path)
    read = _read(f"{tmp_path}/ours-{{000000..000002}}.tar")
    assert read == written
    assert [*read] != [*written]
    dataset = wids.ShardListDataset(str(tmp_path / "ours.json"), cache_dir=str(tmp_path / "cache"), transformations=[])
    assert [dataset[place]["__key__"] for place in range(len(dataset))] == [*read]
    dataset.close()


def test_appended_shards(written: dict[str, Fields], photos: Packed, tmp_path: Path) -> None:
    """Webdataset and wids read old and appended shards; readers of the old dataset file can continue."""
    shardtool("reshard", "theirs-*.tar", "all-{000000..}.tar", "--max-count", "20", cwd=tmp_path)
    before = wids.ShardListDataset(str(tmp_path / "all.json"), cache_dir=str(tmp_path / "before"), transformations=[])
    shardtool("reshard", str(photos.folder / "out.json"), "all-{000000..}.tar", "--append", cwd=tmp_path)
    assert [before[place]["__key__"] for place in range(len(before))] == [*written]
    before.close()
    listed = [shard["url"] for shard in json.loads((tmp_path / "all.json").read_bytes())["shardlist"]]
    assert _read([f"{tmp_path}/{name}" for name in listed]) == written | photos.samples  # type: ignore[arg-type]


def test_examples_of_tensorflow(tmp_path: Path) -> None:
    """Examples that TFRecordWriter wrote, keys and all, become tar shards, and Examples again that it parses alike."""
    tf: Any = pytest.importorskip("tensorflow")
    rows = [(f"k/{number:03d}", bytes([number]) * number, number - 20, number / 8) for number in range(50)]
    with tf.io.TFRecordWriter(str(tmp_path / "in.tfrecord")) as writer:
        for key, data, label, score in rows:
            feature = {
                "key": tf.train.Feature(bytes_list=tf.train.BytesList(value=[key.encode()])),
                "bin": tf.train.Feature(bytes_list=tf.train.BytesList(value=[data])),
                "cls": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
                "score": tf.train.Feature(float_list=tf.train.FloatList(value=[score])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    shardtool("reshard", "in.tfrecord", "t-{000000..000002}.tar", "--drop-fields", "key", cwd=tmp_path)
    found: dict[str, Fields] = {}
    for path in sorted(tmp_path.glob("t-*.tar")):
        with tarfile.open(fileobj=io.BytesIO(path.read_bytes())) as shard:
            for member in shard:
                key, _, field = member.name.partition(".")
                file = shard.extractfile(member)
                found.setdefault(key, {})[field] = file.read() if file else b""
    assert found == {
        key: {"bin": data, "cls": b"%d" % label, "score": repr(score).encode()} for key, data, label, score in rows
    }
    shardtool("reshard", "t.json", "r-{000000..}.tfrecord", cwd=tmp_path)
    features = {
        name: eval(kind, {"tf": tf})  # noqa: S307 - our own text
        for name, kind in json.loads((tmp_path / "r.json").read_bytes())["shardtool"]["features"].items()
    }
    parsed = [
        tf.io.parse_single_example(record, features)
        for record in tf.data.TFRecordDataset([str(path) for path in sorted(tmp_path.glob("r-*.tfrecord"))])
    ]
    again = [
        (one["__key__"].numpy().decode(), one["bin"].numpy(), one["cls"].numpy(), one["score"].numpy())
        for one in parsed
    ]
    assert [(key, data, int(label), float(score)) for key, data, label, score in again] == rows
