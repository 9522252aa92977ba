"""Laws of `shardtool.ray.datasource`: Ray Data reads the content of the shards."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

import shardtool
import shardtool.ray
from shardtool.errors import InvalidRequest
from tests.clients.packed import PHOTOS
from tests.helpers import REPO

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray then keeps to the loopback address, here too
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardtool.read.dataset import Dataset

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]


@pytest.fixture(scope="module")
def data() -> Iterator[Any]:
    """Give `ray.data`, on a cluster of this machine."""
    import ray
    import ray.data

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="CRITICAL")
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield ray.data
    ray.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the photographs with their classes, as tar shards and as TFRecords."""
    place = tmp_path_factory.mktemp("ray-data")
    options = shardtool.CreateOptions(label_from_folder=True, max_count=15, probe=True, workers=1)
    shardtool.create(PHOTOS, place / "out-{000000..}.tar", options)
    shardtool.reshard(place / "out.json", place / "rec-{000000..}.tfrecord", shardtool.ReshardOptions(max_count=40))
    return place


def rows(data: Any, dataset: Dataset, **options: Any) -> list[dict[str, Any]]:
    """Return all that Ray Data reads, in the order of the keys."""
    source = shardtool.ray.datasource(dataset, **options)
    return sorted(data.read_datasource(source).take_all(), key=lambda row: str(row["__key__"]))


@pytest.mark.parametrize("name", ["out.json", "rec.json"])
def test_rows_are_samples(data: Any, folder: Path, name: str) -> None:
    """Each sample is a row, with its key and its fields, and columns have the types of the fields."""
    dataset = shardtool.open(folder / name)
    wanted = sorted((dict(sample) for sample in dataset), key=lambda one: str(one["__key__"]))
    assert rows(data, dataset) == wanted
    kinds = dict(zip(*_schema(data, dataset), strict=True))
    assert kinds["jpg"] == "large_binary"
    assert kinds["cls"] == ("int64" if name == "rec.json" else "large_binary")


def _schema(data: Any, dataset: Dataset) -> tuple[list[str], list[str]]:
    schema = data.read_datasource(shardtool.ray.datasource(dataset)).schema()
    return schema.names, [str(one) for one in schema.types]


def test_fields_metadata_and_views(data: Any, folder: Path) -> None:
    """Selected fields are read, metadata are columns, and a view contains only its samples."""
    dataset = shardtool.open(folder / "out.json", metadata=True)
    view = dataset[10:70:7]
    found = rows(data, view, fields=("cls",))
    assert [row["__key__"] for row in found] == sorted(view.keys)
    assert {*found[0]} == {"__key__", "cls", *(name for name in dataset.schema.names if name[:2] != "__")}
    assert all(row["width"] > 0 for row in found)


def test_rows_are_known_before_reading(folder: Path) -> None:
    """A task is a shard, and its rows are known from the index before it runs."""
    source = shardtool.ray.datasource(shardtool.open(folder / "out.json"))
    tasks = source.get_read_tasks(4)
    assert [one.metadata.num_rows for one in tasks] == [15] * 6 + [8]
    assert [[*one.metadata.input_files] for one in tasks] == [[str(path)] for path in sorted(folder.glob("out-*.tar"))]
    assert source.estimate_inmemory_data_size() == sum(one.stat().st_size for one in folder.glob("out-*.tar"))


def test_a_large_shard_gives_several_blocks(data: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that is larger than a block of Ray Data's is read a block at a time."""
    monkeypatch.setattr("shardtool.ray._MAX_BLOCK_BYTES", 10 * shardtool.open(folder / "out.json").reader.mean_size)
    task = shardtool.ray.datasource(shardtool.open(folder / "out.json")).get_read_tasks(1)[0]
    assert [block.num_rows for block in task()] == [10, 5]
    assert data.read_datasource(shardtool.ray.datasource(shardtool.open(folder / "out.json"))).count() == 98


def test_equal_splits(data: Any, folder: Path) -> None:
    """Two trainers get equally many samples, none of them twice: what Ray Train asks for."""
    import ray

    @ray.remote(num_cpus=0)  # type: ignore[untyped-decorator,unused-ignore]
    def keys(share: Any) -> list[str]:
        return [key for batch in share.iter_batches(batch_size=10) for key in batch["__key__"]]

    read = data.read_datasource(shardtool.ray.datasource(shardtool.open(folder / "out.json"), fields=("cls",)))
    one, other = ray.get([keys.remote(share) for share in read.streaming_split(2, equal=True)])
    assert len(one) == len(other) == 49
    assert len({*one, *other}) == 98


def test_damage_is_named(data: Any, folder: Path, tmp_path: Path) -> None:
    """A damaged shard is an error that names it; where damaged samples are skipped, the others are read."""
    for path in folder.glob("out*"):
        shutil.copy(path, tmp_path)
    shard = tmp_path / "out-000002.tar"
    shard.write_bytes(shard.read_bytes()[:-20_000])
    with pytest.raises(Exception, match=r"out-000002\.tar"):
        rows(data, shardtool.open(tmp_path / "out.json"))
    found = rows(data, shardtool.open(tmp_path / "out.json", on_error="skip"))
    assert 80 <= len(found) < 98


def test_requests_that_make_no_sense(folder: Path) -> None:
    """A path, stages and unknown fields are refused, with what to do."""
    dataset = shardtool.open(folder / "out.json")
    with pytest.raises(InvalidRequest, match=r"expected a dataset from shardtool\.open"):
        shardtool.ray.datasource("out.json")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="map_batches"):
        shardtool.ray.datasource(dataset.decode())
    with pytest.raises(InvalidRequest, match="no field png"):
        shardtool.ray.datasource(dataset, fields=("png",))


def test_the_example(tmp_path: Path) -> None:
    """examples/ray_data.py works, and gives both ranks the same share."""
    (tmp_path / "sample_data").symlink_to(REPO / "sample_data")
    for name in ("make_shards.py", "ray_data.py"):
        command = [sys.executable, str(REPO / "examples" / name)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
    assert done.stdout == "77 samples in 5 shards\nrank 0: 38 samples\nrank 1: 38 samples\n"
