"""What `reshard` believes of an earlier run and of its source: nothing that it has not compared."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardtool import CorruptShard, CreateOptions, InvalidRequest, ReshardOptions, SampleFailed, create, reshard, verify
from shardtool.pack import resume
from shardtool.request.observer import Observer
from shardtool.source.shard_listing import open_datasets
from shardtool.source.source_shard import ExaminedFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Make new shards appear younger than their sources, so `--resume` may trust them."""
    return lambda: monkeypatch.setattr(resume, "_CLOCK_SLACK_S", -3600)


def _dataset(folder: Path, name: str, files: Mapping[str, bytes], **options: Any) -> Path:
    source = folder / f"{name}-source"
    for path, data in files.items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_bytes(data)
    create(source, folder / name / "in-{000..}.tar", CreateOptions(workers=0, **options))
    return folder / name / "in.json"


def _reshard(datasets: Any, folder: Path, ending: str = "tar", **options: Any) -> Path:
    options = {"workers": 0, "max_count": 2, **options}
    reshard(datasets, folder / f"out-{{000..}}.{ending}", ReshardOptions(**options))
    return folder / "out.json"


def _contents(folder: Path) -> dict[str, bytes]:
    result: dict[str, bytes] = {}
    for path in sorted(folder.glob("out-*.tar")):
        with tarfile.open(path) as shard:
            result |= {member.name: file.read() for member in shard if (file := shard.extractfile(member))}
    return result


def _interrupt(dataset_file: Path) -> None:
    """Leave what a run would that was killed after its first shard."""
    dataset_file.unlink()
    for path in dataset_file.parent.glob("out-001*"):
        path.unlink()


def test_resume_with_other_fields(tmp_path: Path, trusting: Callable[[], None]) -> None:
    """A shard of the same keys, names and sizes with other payloads is no finished one: two fields change places."""
    files = {f"k{at}.{field}": (field * 4 + str(at)).encode() for at in range(4) for field in "ab"}
    dataset = _dataset(tmp_path, "x", files)
    trusting()
    _interrupt(_reshard(dataset, tmp_path / "o"))
    _reshard(dataset, tmp_path / "o", rename_fields=("a=b", "b=a"), resume=True)
    swapped = {"a": "b", "b": "a"}
    expected = {f"{name[:2]}.{swapped[name[3]]}": data for name, data in files.items()}
    assert _contents(tmp_path / "o") == expected


def test_resume_with_another_rule_for_duplicates(tmp_path: Path, trusting: Callable[[], None]) -> None:
    """So is a shard that has the other one of two samples with one key."""
    one = _dataset(tmp_path, "x", {f"k{at}.a": b"1" for at in range(4)})
    other = _dataset(tmp_path, "y", {f"k{at}.a": b"2" for at in range(4)})
    trusting()
    _interrupt(_reshard([one, other], tmp_path / "o", on_duplicate="first"))
    _reshard([one, other], tmp_path / "o", on_duplicate="last", resume=True)
    assert set(_contents(tmp_path / "o").values()) == {b"2"}


def test_resume_with_numbers_for_texts(tmp_path: Path, trusting: Callable[[], None]) -> None:
    """A TFRecord whose texts become numbers is written again, although the sizes are equal."""
    dataset = _dataset(tmp_path, "x", {f"k{at}.a": b"1" for at in range(4)})
    keys = [f"k{at}" for at in range(4)]
    texts, numbers = pa.table({"key": keys, "n": ["5"] * 4}), pa.table({"key": keys, "n": [5] * 4})
    options: dict[str, Any] = {"on": "key", "field": ("n=n",)}
    trusting()
    _interrupt(_reshard(dataset, tmp_path / "o", "tfrecord", join=texts, **options))
    again = _reshard(dataset, tmp_path / "o", "tfrecord", join=numbers, resume=True, **options)
    anew = _reshard(dataset, tmp_path / "n", "tfrecord", join=numbers, **options)
    for path in sorted((tmp_path / "n").iterdir()):
        assert (tmp_path / "o" / path.name).read_bytes() == path.read_bytes(), path.name
    assert verify(again).sound
    assert anew.read_bytes() == again.read_bytes()


def test_an_old_number_under_a_new_name(tmp_path: Path) -> None:
    """A TFRecord's number that gives its name to new labels is still read as a number."""
    table = pa.table({"key": ["a", "b"], "n": [300, 4], "label": ["cat", "dog"]})
    options = CreateOptions(key="key", field=("cls=n",), meta="label", workers=0)
    create(table, tmp_path / "x" / "in-{000..}.tfrecord", options)
    changes: dict[str, Any] = {"rename_fields": ("old=cls",), "field": ("cls=label",), "classes": ("cls",)}
    _reshard(tmp_path / "x" / "in.json", tmp_path / "o", **changes)
    result = _contents(tmp_path / "o")
    assert {name: data for name, data in result.items() if not name.endswith("json")} == {
        "a.cls": b"0", "a.old": b"300", "b.cls": b"1", "b.old": b"4",
    }  # fmt: skip


def test_shards_of_two_datasets(tmp_path: Path) -> None:
    """Shards of datasets that number their labels otherwise are not taken for one dataset without labels."""
    for name, folders in (("x", ("cat", "dog")), ("y", ("dog", "emu"))):
        files = {f"{folder}/{name}{at}.txt": b"1" for folder in folders for at in range(2)}
        dataset = _dataset(tmp_path, name, files, label_from_folder=True)
        for path in dataset.parent.iterdir():
            both = tmp_path / "both" / path.name.replace("in", name)
            both.parent.mkdir(exist_ok=True)
            os.link(path, both)
    with pytest.raises(InvalidRequest, match="other classes"):
        _reshard([tmp_path / "x" / "in.json", tmp_path / "y" / "in.json"], tmp_path / "o")
    for name in ("x", "y"):
        listed = (tmp_path / "both" / f"{name}.json").read_bytes().replace(b"in-000", f"{name}-000".encode())
        (tmp_path / "both" / f"{name}.json").write_bytes(listed)
    with pytest.raises(InvalidRequest, match=r"shards of 2 datasets: x\.json, y\.json"):
        _reshard(str(tmp_path / "both" / "*.tar"), tmp_path / "o")


def test_a_shard_that_changes_while_it_is_read(tmp_path: Path) -> None:
    """A source without checksums that is overwritten during the run is an error."""
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as shard:
        for at in range(400):
            member = tarfile.TarInfo(f"k{at:03d}.bin")
            member.size = 3000
            shard.addfile(member, io.BytesIO(bytes(3000)))

    class Vandal(Observer):
        def advance(self, samples: int, size: int, shards: int) -> None:  # noqa: ARG002
            with path.open("r+b") as file:
                file.seek(1200 * 512)
                file.write(b"\xff" * 512)
            os.utime(path)

    options = ReshardOptions(workers=0, max_count=100)
    with pytest.raises(SampleFailed, match="changed while it was read"):
        reshard(path, tmp_path / "o" / "out-{000..}.tar", options, observer=Vandal())
    assert not (tmp_path / "o" / "out.json").exists()


def test_other_files_beside_shards(tmp_path: Path) -> None:
    """A huge JSON file next to foreign shards is ignored."""
    with tarfile.open(tmp_path / "x.tar", "w") as shard:
        shard.addfile(tarfile.TarInfo("a.txt"))
    with (tmp_path / "annotations.json").open("wb") as file:
        file.truncate(2**30 + 1)
    ((result,), _) = open_datasets([str(tmp_path / "x.tar")], ExaminedFiles())
    assert result.file is None


def test_metadata_that_unfolds(tmp_path: Path) -> None:
    """A sidecar of some kilobytes whose metadata would take gigabytes is damaged, and is not unfolded to see that."""
    dataset = _dataset(tmp_path, "x", {f"k{at:04d}.a": b"1" for at in range(3000)})
    index = dataset.parent / "in-000.index"
    table, facts = pq.read_table(index), pq.read_metadata(index).metadata
    text = "x" * 2**17
    coded = pa.DictionaryArray.from_arrays(pa.array([0] * table.num_rows, pa.int32()), pa.array([text]))
    table = table.append_column("text", coded).replace_schema_metadata(None)
    with pq.ParquetWriter(
        index, table.schema, compression="zstd", write_page_checksum=True, store_schema=False
    ) as file:
        file.write_table(table)
        file.add_key_value_metadata({k: v for k, v in facts.items() if k.startswith(b"shardtool.")})
    dataset.unlink()  # which would show that the sidecar was replaced
    assert index.stat().st_size < 200_000
    with pytest.raises(CorruptShard, match=r"[0-9,]+ bytes of metadata"):
        _reshard(dataset.parent, tmp_path / "o")


def test_dots_of_two_kinds(tmp_path: Path) -> None:
    """Keys with dots and fields with dots, of two datasets, cannot be told apart in a tar: that is refused."""
    one = _dataset(tmp_path, "x", {"scan.0.jpg": b"1", "scan.1.jpg": b"1"}, dots="last")
    other = _dataset(tmp_path, "y", {"k.seg.png": b"2"}, dots="first")
    with pytest.raises(InvalidRequest, match=r"fields with dots: seg\.png"):
        _reshard([one, other], tmp_path / "o")
    assert verify(_reshard([one, other], tmp_path / "r", rename_fields=("png=seg.png",))).sound
    assert verify(_reshard([one, other], tmp_path / "p", portable=True)).sound


def test_shards_without_checksums_are_noted(tmp_path: Path) -> None:
    """A note says that damage in shards without checksums cannot be found."""
    with tarfile.open(tmp_path / "x.tar", "w") as shard:
        member = tarfile.TarInfo("a.txt")
        member.size = 1
        shard.addfile(member, io.BytesIO(b"1"))
    result = reshard(tmp_path / "x.tar", tmp_path / "o-{000..}.tar", ReshardOptions(workers=0))
    assert any("1 shard without checksums" in note for note in result.notes)
    assert json.loads((tmp_path / "o.json").read_bytes())["shardtool"]["totals"]["samples"] == 1


def test_few_files_may_be_open(tmp_path: Path) -> None:
    """With a low limit of open files, the least recently read ones are closed: no sample is skipped."""
    files = {f"k{at:03d}.a": b"%d" % at for at in range(120)}
    dataset = _dataset(tmp_path, "x", files, max_count=1)
    code = (
        "import resource, sys, shardtool\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))\n"
        "asked = shardtool.ReshardOptions(workers=0, on_error='skip', shuffle=True, method='gather')\n"
        "print(shardtool.reshard(sys.argv[1], sys.argv[2], asked).samples)\n"
    )
    words = [sys.executable, "-c", code, str(dataset), str(tmp_path / "o" / "out-{000..}.tar")]
    done = subprocess.run(words, cwd=Path(__file__).parents[2], capture_output=True, check=True, text=True)
    assert done.stdout == "120\n"
    assert _contents(tmp_path / "o") == files


def test_fields_of_excluded_samples_are_ignored(tmp_path: Path) -> None:
    """Fields that a tar cannot store are no error in samples that `--where` excludes."""
    one = _dataset(tmp_path, "x", {"scan.0.jpg": b"1", "scan.1.jpg": b"1"}, dots="last")
    other = _dataset(tmp_path, "y", {"k.seg.png": b"2", "l.txt": b"3"}, dots="first")
    _reshard([one, other], tmp_path / "o", where="key != 'k'")
    assert _contents(tmp_path / "o") == {"scan.0.jpg": b"1", "scan.1.jpg": b"1", "l.txt": b"3"}
