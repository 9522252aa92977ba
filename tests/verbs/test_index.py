"""Laws of `index`: what a walk over shards finds is what was written, and what is right stays."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardtool import (
    CorruptShard,
    CreateOptions,
    IndexOptions,
    InvalidRequest,
    OutputExists,
    create,
    index,
    verify,
)
from tests.helpers import flip, read_tree, shards, typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path

FILES = {f"{folder}/{at:02}.{field}": f"{folder}{at}".encode() * at for folder in "ab" for at in range(9)
         for field in ("txt", "bin")}  # fmt: skip
ONE = IndexOptions(workers=1)
READ = IndexOptions(workers=1, checksum=True)


@pytest.fixture(scope="module")
def packed(ending: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of a dataset of several shards, with numbers in it, not to be changed."""
    folder = tmp_path_factory.mktemp("packed")
    options = CreateOptions(max_count=5, label_from_folder=True, workers=1)
    create(write_tree(folder / "in", FILES), f"{folder}/out/out-{{000..}}.{ending}", options)
    return folder / "out"


@pytest.fixture
def dataset(packed: Path, tmp_path: Path) -> Path:
    """Give a copy of it."""
    return shutil.copytree(packed, tmp_path / "out")


def _bare(dataset: Path) -> None:
    for path in dataset.iterdir():
        if path.suffix in (".index", ".json"):
            path.unlink()


@pytest.mark.parametrize("options", [ONE, READ, IndexOptions(workers=2, start_method="spawn")])
def test_what_is_right_stays(options: IndexOptions, dataset: Path) -> None:
    """A sound dataset is left as it is, to the byte, whether payloads are read or not."""
    before = read_tree(dataset)
    result = index(dataset / "out.json", options)
    assert (result.shards, result.kept, result.samples, result.notes) == (4, 4, 18, ())
    assert read_tree(dataset) == before


def test_what_was_lost_is_found_again(dataset: Path, ending: str) -> None:
    """Without sidecars and dataset file, reading the shards gives the same rows, checksums and fingerprint."""
    rows = [pq.read_table(path.with_suffix(".index")).to_pylist() for path in shards(dataset)]
    before = json.loads((dataset / "out.json").read_bytes())
    _bare(dataset)
    result = index(f"{dataset}/out-{{000..}}.{ending}", READ)
    assert (result.kept, result.dataset_file) == (0, f"{dataset}/out.json")
    assert [pq.read_table(path.with_suffix(".index")).to_pylist() for path in shards(dataset)] == rows
    after = json.loads((dataset / "out.json").read_bytes())
    for key in ("fingerprint", "fields", "format", "totals", "features"):
        assert after["shardtool"].get(key) == before["shardtool"].get(key)
    assert [one["crc32c"] for one in after["shardlist"]] == [one["crc32c"] for one in before["shardlist"]]
    assert verify(dataset).sound


def test_without_reading_payloads(dataset: Path) -> None:
    """Places are told without checksums, which are null then; the dataset has no finding, and no fingerprint."""
    rows = [pq.read_table(path.with_suffix(".index")).to_pylist() for path in shards(dataset)]
    _bare(dataset)
    result = index(dataset, ONE)
    assert any("checksum=True" in note for note in result.notes)
    for path, known in zip(shards(dataset), rows, strict=True):
        for found, right in zip(pq.read_table(path.with_suffix(".index")).to_pylist(), known, strict=True):
            assert {**found, "__fields__": [{**one, "crc32c": None} for one in right["__fields__"]]} == {
                **right, "__fields__": found["__fields__"]
            }  # fmt: skip
    assert json.loads((dataset / "out.json").read_bytes())["shardtool"]["fingerprint"] == ""
    assert verify(dataset).sound


def test_a_lost_sidecar(dataset: Path) -> None:
    """Where one sidecar is lost, what the dataset file knew of the others and of the whole stays."""
    before = json.loads((dataset / "out.json").read_bytes())
    (dataset / "out-001.index").unlink()
    assert index(dataset, ONE).kept == 3
    after = json.loads((dataset / "out.json").read_bytes())
    assert {**after["shardtool"]} == {**before["shardtool"]}
    assert verify(dataset).sound
    flip(shards(dataset)[1], 300)
    assert not verify(dataset).sound


def test_a_damaged_shard(dataset: Path) -> None:
    """A shard that ends too early is an error with its place; so is a payload that its sidecar knows otherwise."""
    path = shards(dataset)[2]
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(CorruptShard, match=path.name):
        index(dataset, ONE)
    path.write_bytes(raw.replace(b"b1", b"c1"))
    with pytest.raises(CorruptShard, match=path.name):
        index(dataset, READ)


def test_shards_of_gnu_tar(tmp_path: Path) -> None:
    """`./` before names is not counted; folders and names without a field are no samples, and are told of."""
    with tarfile.open(tmp_path / "x-0.tar", "w", format=tarfile.GNU_FORMAT) as tar:
        for name in ("./", "./a", "./a/1.jpg", "./a/1.json", "./a/README", f"./a/{'n' * 150}.jpg"):
            member = tarfile.TarInfo(name)
            member.type = tarfile.DIRTYPE if name in ("./", "./a") else tarfile.REGTYPE
            member.size = 0 if member.type == tarfile.DIRTYPE else 3
            tar.addfile(member, io.BytesIO(b"abc"))
    result = index(tmp_path, READ)
    rows = pq.read_table(tmp_path / "x-0.index").to_pylist()
    assert [row["__key__"] for row in rows] == ["a/1", "a/" + "n" * 150]
    assert [[field["name"] for field in row["__fields__"]] for row in rows] == [["jpg", "json"], ["jpg"]]
    raw = (tmp_path / "x-0.tar").read_bytes()
    assert {raw[one["offset"] : one["offset"] + one["length"]] for row in rows for one in row["__fields__"]} == {b"abc"}
    assert any("3 members no part of a sample" in note for note in result.notes)


def test_columns_of_all_shards(tmp_path: Path) -> None:
    """The dataset file lists the columns of all sidecars, in the order of the shards, however many workers there are.

    A column without a value has the type that it has elsewhere; types that differ are told.
    """
    columns: list[dict[str, list[Any]]] = [
        {"a": [None, None]},
        {"b": [1, 2], "a": ["x", "y"]},
        {"c": [0.5, 1.0], "b": [1.5, 2.5]},
        {"a": ["z", "z"]},
    ]
    for number, more in enumerate(columns):
        table = pa.table({"key": [f"{number}-0", f"{number}-1"], "txt": ["x" * 2000 * (4 - number)] * 2, **more})
        options = CreateOptions(values=("txt=txt",), meta=",".join(more), workers=1)
        create(table, f"{tmp_path}/x-{number}.tar", options)
        (tmp_path / f"x-{number}.json").unlink()
    expected = {"a": "string", "b": "int64", "c": "double"}
    for workers in (1, 2, 2, 2):
        result = index(f"{tmp_path}/x-*.tar", IndexOptions(workers=workers))
        schema = json.loads((tmp_path / "x.json").read_bytes())["shardtool"]["schema"]
        assert [*schema.items()][5:] == [*expected.items()]
        assert [note for note in result.notes if "'b'" in note and "x-2.index" in note]
        (tmp_path / "x.json").unlink()


def test_requests_that_make_no_sense(tmp_path: Path) -> None:
    """Compressed shards, two formats at once and a foreign file in the way are refused, and nothing is touched."""
    write_tree(tmp_path, {"x-0.tar": bytes(1024), "y-0.tfrecord": b"", "z-0.tar.gz": b"", "x.json": b"{}"})
    for given in (f"{tmp_path}/z-0.tar.gz", [f"{tmp_path}/x-0.tar", f"{tmp_path}/y-0.tfrecord"], f"{tmp_path}/n-*.tar"):
        with pytest.raises(InvalidRequest):
            index(given, ONE)
    write_tree(tmp_path, {"x-0.json": b"{}", "x-1.tar": bytes(1024)})
    with pytest.raises(OutputExists, match=r"x\.json"):
        index(f"{tmp_path}/x-{{0..}}.tar", ONE)
    assert (tmp_path / "x.json").read_bytes() == b"{}"
    assert not list(tmp_path.glob("*.index"))


def test_the_command(dataset: Path, ending: str) -> None:
    """The command line makes the same files, tells how many, and its JSON is one document."""
    _bare(dataset)
    ran = typed("index", dataset, "--checksum", "--json", "--quiet")
    assert (ran.code, json.loads(ran.out)["samples"]) == (0, 18)
    made = read_tree(dataset)
    _bare(dataset)
    assert typed("index", f"{dataset}/out-*.{ending}", "--checksum", "--quiet").out == ""
    assert read_tree(dataset) == made
