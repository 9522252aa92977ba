"""`index` rebuilds sidecars by scanning shards, and keeps valid files."""

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
    ReshardOptions,
    create,
    index,
    inspect,
    reshard,
    verify,
)
from tests.helpers import flip, read_tree, shards, typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path

FILES = {f"{folder}/{at:02}.{field}": f"{folder}{at}".encode() * at for folder in "ab" for at in range(9)
         for field in ("txt", "bin")}  # fmt: skip
ONE = IndexOptions(workers=0)
READ = IndexOptions(workers=0, checksum=True)


@pytest.fixture(scope="module")
def packed(ending: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a dataset with several shards and numbers, which tests do not change."""
    folder = tmp_path_factory.mktemp("packed")
    options = CreateOptions(max_count=5, label_from_folder=True, workers=0)
    create(write_tree(folder / "in", FILES), f"{folder}/out/out-{{000..}}.{ending}", options)
    return folder / "out"


@pytest.fixture
def dataset(packed: Path, tmp_path: Path) -> Path:
    """Return a copy."""
    return shutil.copytree(packed, tmp_path / "out")


def _bare(dataset: Path) -> None:
    for path in dataset.iterdir():
        if path.suffix in (".index", ".json"):
            path.unlink()


@pytest.mark.parametrize("options", [ONE, READ, IndexOptions(workers=2, start_method="spawn")])
def test_valid_files_are_kept(options: IndexOptions, dataset: Path) -> None:
    """A valid dataset does not change, whether payloads are read or not."""
    before = read_tree(dataset)
    result = index(dataset / "out.json", options)
    assert (result.shards, result.kept, result.samples, result.notes) == (4, 4, 18, ())
    assert read_tree(dataset) == before


def test_lost_files_are_restored(dataset: Path, ending: str) -> None:
    """Without sidecars and dataset file, reading the shards gives the same rows, checksums and fingerprint.

    Only the label columns are lost, because shards do not record which numbers are classes.
    """
    rows = [pq.read_table(path.with_suffix(".index")).drop_columns(["cls"]).to_pylist() for path in shards(dataset)]
    before = json.loads((dataset / "out.json").read_bytes())
    _bare(dataset)
    result = index(f"{dataset}/out-{{000..}}.{ending}", READ)
    assert (result.kept, result.dataset_file) == (0, f"{dataset}/out.json")
    assert [pq.read_table(path.with_suffix(".index")).to_pylist() for path in shards(dataset)] == rows
    after = json.loads((dataset / "out.json").read_bytes())
    for key in ("fingerprint", "fields", "format", "totals", "features"):
        assert after["shardtool"].get(key) == before["shardtool"].get(key)
    assert [item["crc32c"] for item in after["shardlist"]] == [item["crc32c"] for item in before["shardlist"]]
    assert verify(dataset).sound


def test_without_reading_payloads(dataset: Path) -> None:
    """Offsets are recorded with null checksums; the dataset has no finding, and no fingerprint."""
    rows = [pq.read_table(path.with_suffix(".index")).drop_columns(["cls"]).to_pylist() for path in shards(dataset)]
    _bare(dataset)
    result = index(dataset, ONE)
    assert not result.notes
    for path, known in zip(shards(dataset), rows, strict=True):
        for found, right in zip(pq.read_table(path.with_suffix(".index")).to_pylist(), known, strict=True):
            assert {**found, "__fields__": [{**item, "crc32c": None} for item in right["__fields__"]]} == {
                **right, "__fields__": found["__fields__"]
            }  # fmt: skip
    assert json.loads((dataset / "out.json").read_bytes())["shardtool"]["fingerprint"] == ""
    assert verify(dataset).sound


def test_a_lost_sidecar(dataset: Path) -> None:
    """If one sidecar is lost, the information about other shards and the whole dataset is kept."""
    before = json.loads((dataset / "out.json").read_bytes())
    (dataset / "out-001.index").unlink()
    assert index(dataset, ONE).kept == 3
    after = json.loads((dataset / "out.json").read_bytes())
    assert {**after["shardtool"]} == {**before["shardtool"]}
    assert verify(dataset).sound
    flip(shards(dataset)[1], 300)
    assert not verify(dataset).sound


def test_a_damaged_shard(dataset: Path) -> None:
    """A truncated shard is an error with its offset, and so is a payload that differs from its sidecar."""
    path = shards(dataset)[2]
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(CorruptShard, match=path.name):
        index(dataset, ONE)
    path.write_bytes(raw.replace(b"b1", b"c1"))
    with pytest.raises(CorruptShard, match=path.name):
        index(dataset, READ)


def test_shards_of_gnu_tar(tmp_path: Path) -> None:
    """`./` before names is ignored; folders and names without a field are reported and are not samples."""
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
    assert {raw[item["offset"] : item["offset"] + item["length"]] for row in rows for item in row["__fields__"]} == {
        b"abc"
    }
    assert any("3 members outside of samples" in note for note in result.notes)


def test_columns_of_all_shards(tmp_path: Path) -> None:
    """The dataset file lists the columns of all sidecars in shard order, for any number of workers.

    A column without values has the type of other sidecars; differing types are noted.
    """
    columns: list[dict[str, list[Any]]] = [
        {"a": [None, None]},
        {"b": [1, 2], "a": ["x", "y"]},
        {"c": [0.5, 1.0], "b": [1.5, 2.5]},
        {"a": ["z", "z"]},
    ]
    for number, more in enumerate(columns):
        table = pa.table({"key": [f"{number}-0", f"{number}-1"], "txt": ["x" * 2000 * (4 - number)] * 2, **more})
        options = CreateOptions(field=("txt=txt",), meta=",".join(more), workers=0)
        create(table, f"{tmp_path}/x-{number}.tar", options)
        (tmp_path / f"x-{number}.json").unlink()
    expected = {"a": "string", "b": "int64", "c": "double"}
    for workers in (1, 2, 2, 2):
        result = index(f"{tmp_path}/x-*.tar", IndexOptions(workers=workers))
        schema = json.loads((tmp_path / "x.json").read_bytes())["shardtool"]["schema"]
        assert [*schema.items()][5:] == [*expected.items()]
        assert [note for note in result.notes if "'b'" in note and "x-2.index" in note]
        (tmp_path / "x.json").unlink()


@pytest.mark.parametrize("repair", [False, True])
def test_single_shard_of_a_pattern(tmp_path: Path, ending: str, *, repair: bool) -> None:
    """The pattern that the user names determines the name of the dataset file, so later runs find the dataset."""
    source, pattern = write_tree(tmp_path / "in", {"a.txt": b"a"}), f"{tmp_path}/out/x-{{000..}}.{ending}"
    create(source, pattern, CreateOptions(workers=0))
    (tmp_path / "out/x.json").unlink()
    if repair:
        assert verify(pattern, workers=0, repair=True).sound
    else:
        index(pattern, READ)
    assert sorted(read_tree(tmp_path / "out")) == ["x-000.index", f"x-000.{ending}", "x.json"]
    write_tree(source, {"b.txt": b"b"})
    assert create(source, pattern, CreateOptions(workers=0, append=True, on_duplicate="first")).samples == 2


def test_invalid_requests_are_refused(tmp_path: Path) -> None:
    """Compressed shards, two formats and a foreign file are refused, and nothing changes."""
    write_tree(tmp_path, {"x-0.tar": bytes(1024), "y-0.tfrecord": b"", "z-0.tar.gz": b"", "x.json": b"{}"})
    for given in (f"{tmp_path}/z-0.tar.gz", [f"{tmp_path}/x-0.tar", f"{tmp_path}/y-0.tfrecord"], f"{tmp_path}/n-*.tar"):
        with pytest.raises(InvalidRequest):
            index(given, ONE)
    write_tree(tmp_path, {"x-0.json": b"{}", "x-1.tar": bytes(1024)})
    with pytest.raises(OutputExists, match=r"x\.json"):
        index(f"{tmp_path}/x-{{0..}}.tar", ONE)
    assert (tmp_path / "x.json").read_bytes() == b"{}"
    assert not list(tmp_path.glob("*.index"))


def test_command_line(dataset: Path, ending: str) -> None:
    """The command line creates the same files and prints counts; its JSON is one document."""
    _bare(dataset)
    ran = typed("index", dataset, "--checksum", "--json", "--quiet")
    assert (ran.code, json.loads(ran.out)["samples"]) == (0, 18)
    made = read_tree(dataset)
    _bare(dataset)
    assert typed("index", f"{dataset}/out-*.{ending}", "--checksum", "--quiet").out == ""
    assert read_tree(dataset) == made


def _made(tmp_path: Path) -> Path:
    files = {f"{key}.txt": key.encode() for key in "abcd"}
    create(write_tree(tmp_path / "in", files), f"{tmp_path}/o/x-{{00..}}.tar", CreateOptions(max_count=1, workers=0))
    return tmp_path / "o" / "x.json"


def test_a_reformatted_dataset_file_is_damaged(tmp_path: Path) -> None:
    """JSON on one line is a damaged dataset file, and not a wids index."""
    file = _made(tmp_path)
    file.write_text(json.dumps(json.loads(file.read_bytes())))
    assert {finding.code for finding in verify(file).findings} == {"dataset-file-damaged"}
    with pytest.raises(OutputExists, match="another program rewrote"):
        index(file)
    index(file, IndexOptions(overwrite=True))
    assert verify(file).sound


@pytest.mark.parametrize("left", [0, 40])
def test_a_truncated_dataset_file(tmp_path: Path, left: int) -> None:
    """A truncated dataset file is replaced with `overwrite`; other JSON is never replaced."""
    file = _made(tmp_path)
    file.write_bytes(file.read_bytes()[:left])
    with pytest.raises(OutputExists, match="not valid JSON: truncated or damaged"):
        index(file.parent)
    index(file.parent, IndexOptions(overwrite=True))
    assert verify(file).sound
    file.write_text("{}")
    with pytest.raises(OutputExists, match="not a shardtool dataset file"):
        index(file.parent, IndexOptions(overwrite=True))


def test_an_unlisted_shard_is_added(tmp_path: Path) -> None:
    """A shard that the dataset file does not list is one finding, and is added as suggested."""
    file = _made(tmp_path)
    more = write_tree(tmp_path / "more", {"e.txt": b"e"})
    create(more, f"{tmp_path}/p/x-{{04..}}.tar", CreateOptions(workers=0))
    for name in ("x-04.tar", "x-04.index"):
        (tmp_path / "p" / name).rename(file.parent / name)
    findings = verify(f"{file.parent}/x-{{00..}}.tar").findings
    assert sorted(item.code for item in findings) == ["shard-extra", "sidecar-extra"]
    assert "'FOLDER/*.tar' --overwrite" in typed("verify", file).out
    assert typed("index", f"{file.parent}/*.tar", "--overwrite").code == 0
    assert verify(file).sound


def test_an_unfinished_run_is_reported(tmp_path: Path) -> None:
    """`reshard` reads the shards of an unfinished run, and notes that some are missing."""
    file = _made(tmp_path)
    for name in ("x.json", "x-03.tar", "x-03.index"):
        (file.parent / name).unlink()
    result = reshard(file.parent, f"{tmp_path}/q/x-{{0..}}.tar", ReshardOptions(workers=0))
    assert any("3 shards of 4 planned" in note for note in result.notes)
    assert result.samples == 3


def test_trust_needs_resume() -> None:
    """`--trust size` has no effect on a run that reuses nothing."""
    with pytest.raises(InvalidRequest, match="trust='size': nothing to resume"):
        CreateOptions(trust="size")
    CreateOptions(trust="size", append=True, resume=True)


@pytest.mark.parametrize("verb", ["verify", "index", "reshard", "inspect"])
def test_sidecars_determine_the_dots_rule(tmp_path: Path, verb: str) -> None:
    """Without the dataset file, keys with dots in sidecars show that keys end at the last dot."""
    files = {"scan.2019.txt": b"1", "scan.2020.txt": b"2"}
    options = CreateOptions(dots="last", workers=0)
    create(write_tree(tmp_path / "in", files), f"{tmp_path}/o/x-{{0..}}.tar", options)
    (tmp_path / "o" / "x.json").unlink()
    folder = tmp_path / "o"
    if verb == "verify":
        assert {finding.code for finding in verify(folder).findings} == {"dataset-file-missing"}
    elif verb == "index":
        assert index(folder).kept == 1
        assert verify(folder).sound
    elif verb == "reshard":
        reshard(folder, f"{tmp_path}/q/x-{{0..}}.tar", ReshardOptions(workers=0))
        assert verify(tmp_path / "q" / "x.json").sound
    else:
        assert typed("inspect", folder, "--keys").out == "scan.2019\nscan.2020\n"


def test_an_export_that_clashes_is_refused_first(tmp_path: Path) -> None:
    """If an index would have the name of the dataset file, nothing is written."""
    file = _made(tmp_path)
    shutil.copy(file.parent / "x-00.tar", tmp_path / "one.tar")
    done = typed("index", tmp_path / "one.tar", "--export", "huggingface")
    assert done.code == 2
    assert "the dataset file would both be one.json" in done.err
    assert not (tmp_path / "one.json").exists()


@pytest.mark.parametrize("left", [0, 100])
def test_a_truncated_dataset_file_is_reported_as_damaged(tmp_path: Path, left: int) -> None:
    """Reports call a truncated dataset file damaged; `index --overwrite` repairs it."""
    file = _made(tmp_path)
    file.write_bytes(file.read_bytes()[:left])
    messages = [finding.found for finding in verify(file.parent).findings if finding.code == "dataset-file-missing"]
    assert len(messages) == 1, messages
    assert f"a damaged {file.name}" in messages[0]
    with pytest.raises(CorruptShard, match=rf"a damaged .*file of {left} bytes.*`shardtool index"):
        inspect(file)
    index(file.parent, IndexOptions(overwrite=True))
    assert verify(file).sound
