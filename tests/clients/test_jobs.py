from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import webdataset as wds

from tests.jobs import inputs
from tests.jobs.test_jobs import check_foreign, run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.clients,
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),  # webdataset leaves the last shard open
]


def test_shards_of_the_tools_themselves(tmp_path: Path) -> None:
    """What webdataset's and TensorFlow's own writers wrote, as img2dataset uses them, becomes one clean dataset."""
    tf = pytest.importorskip("tensorflow")
    for name in ("webdataset", "img2dataset", "tensorflow"):
        (tmp_path / "theirs" / name).mkdir(parents=True)
    with wds.ShardWriter(f"{tmp_path}/theirs/webdataset/shard-%06d.tar", maxcount=5, verbose=0) as writer:
        for shard in range(2):
            for key, fields in inputs.webdataset_samples(shard).items():
                writer.write({"__key__": key, **fields})
    for shard in range(2):
        with wds.TarWriter(f"{tmp_path}/theirs/img2dataset/{shard:05}.tar") as tar:
            for key, fields in inputs.img2dataset_samples(shard).items():
                tar.write({"__key__": key, **fields})
        inputs.img2dataset_tables(tmp_path / "theirs/img2dataset", shard)
        with tf.io.TFRecordWriter(f"{tmp_path}/theirs/tensorflow/train-{shard:05}-of-00002") as records:
            for name, image, label in inputs.tensorflow_samples(shard):
                records.write(_example(tf, name, image, label))
    ran = run("foreign.sh", tmp_path)
    assert ran.code == 0, ran
    check_foreign(tmp_path)
    images = [*wds.WebDataset(f"{tmp_path}/clean/train-000000.tar", shardshuffle=False).decode("pil").to_tuple("jpg")]
    assert {image.size[1] for (image,) in images} == {36}


def _example(tf: Any, name: str, image: bytes, label: int) -> bytes:
    texts = {"filename": f"{name}.JPEG".encode(), "encoded": image, "format": b"JPEG"}
    features = {
        f"image/{field}": tf.train.Feature(bytes_list=tf.train.BytesList(value=[text])) for field, text in texts.items()
    }
    for field, number in {"class/label": label, "height": 36}.items():
        features[f"image/{field}"] = tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))
    example: bytes = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
    return example
