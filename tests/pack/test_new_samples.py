"""`--append --on-duplicate first`: a growing source is packed by key, and existing samples stay."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from shardtool import CreateOptions, InvalidRequest, SampleFailed, create, export, verify
from shardtool.request.dataset_options import VerifyOptions
from tests.helpers import existing, identity, read_tree, typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path

    from shardtool.request.results import CreateResult

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

_LONG_AGO = 10**9


def _append_new(source: Any, output: str, **options: Any) -> CreateResult:
    options = {"workers": 0, "append": True, "on_duplicate": "first", **options}
    return create(source, output, CreateOptions(**options))


def _tree(root: Path, *keys: str) -> Path:
    """Write samples with one field and old modification times."""
    write_tree(root, {f"{key}.txt": key.encode() for key in keys})
    for key in keys:
        os.utime(root / f"{key}.txt", (_LONG_AGO, _LONG_AGO))
    return root


@pytest.fixture(params=["tar", "tfrecord"])
def output(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the pattern of a dataset with the samples `a` and `b` of the folder `source`."""
    pattern = f"{tmp_path}/out/out-{{0..}}.{request.param}"
    create(_tree(tmp_path / "source", "a", "b"), pattern, CreateOptions(workers=0))
    return pattern


def test_only_new_keys_are_appended(output: str, tmp_path: Path) -> None:
    """Samples with new keys are appended, the others are counted, and `verify` accepts the whole source."""
    source = _tree(tmp_path / "source", "0", "c")
    before = read_tree(tmp_path / "out")
    result = _append_new(source, output)
    assert (result.samples, result.shards, result.skipped) == (4, 2, 0)
    assert result.appended is not None
    assert result.appended.samples == 2
    assert "2 samples skipped: the dataset already has their keys" in result.notes
    after = read_tree(tmp_path / "out")
    assert {name: after[name] for name in before if name != "out.json"} == {
        name: data for name, data in before.items() if name != "out.json"
    }
    report = verify(tmp_path / "out", VerifyOptions(source=source, workers=0))
    assert report.sound
    assert "the source" in report.checked
    assert not report.unchecked
    write_tree(source, {"d.txt": b"not packed yet"})
    assert [finding.key for finding in verify(tmp_path / "out", VerifyOptions(source=source, workers=0)).findings] == [
        "d"
    ]


def test_a_run_without_new_samples_changes_no_file(output: str, tmp_path: Path) -> None:
    """If all keys exist, the run succeeds with one note and changes no file, also with `--resume`."""
    before = identity(tmp_path / "out")
    command = ("create", tmp_path / "source", output, "--append", "--on-duplicate", "first", "--workers", "0")
    for more in ((), ("--resume",)):
        done = typed(*command, *more)
        assert (done.code, done.err) == (0, "")
        assert done.out == f"nothing new: {tmp_path}/out/out.json is unchanged, 2 samples in 1 shard\n"
    assert json.loads(typed(*command, "--json").out)["appended"] == {"shards": 0, "samples": 0, "size": 0}
    assert typed(*command, "--dry-run").code == 0
    assert identity(tmp_path / "out") == before


@pytest.mark.parametrize("change", ["size", "time", "file"])
def test_changed_samples_are_noted(output: str, tmp_path: Path, change: str) -> None:
    """A sample whose files changed keeps its old content, and a note names it."""
    source = tmp_path / "source"
    if change == "size":
        write_tree(source, {"b.txt": b"longer"})
        os.utime(source / "b.txt", (_LONG_AGO, _LONG_AGO))
    elif change == "time":
        os.utime(source / "b.txt", (4 * _LONG_AGO, 4 * _LONG_AGO))
    else:
        write_tree(source, {"b.bin": b""})
        os.utime(source / "b.bin", (_LONG_AGO, _LONG_AGO))
    before = identity(tmp_path / "out")
    (note,) = _append_new(source, output).notes
    assert note.startswith("1 sample (b) changed")
    assert identity(tmp_path / "out") == before


def test_changed_samples_are_compared_by_time(tmp_path: Path) -> None:
    """With transforms, sizes in shards are not compared with the source."""
    table = {"key": ["a"], "n": [1]}
    import pyarrow as pa

    pattern = f"{tmp_path}/out-{{0..}}.tfrecord"
    create(pa.table(table), pattern, CreateOptions(workers=0, key="key", field=("n=n",)))
    table = {"key": ["a", "b"], "n": [100_000, 2]}
    result = _append_new(pa.table(table), pattern, key="key", field=("n=n",))
    assert result.samples == 2
    assert not any("changed" in note for note in result.notes), "a number is no file"


def test_each_split_gets_its_new_samples(tmp_path: Path) -> None:
    """A split without new samples does not change, and the result contains all splits."""
    pattern, options = f"{tmp_path}/out/{{split}}-{{0..}}.tar", {"split_from_folder": True}
    source = _tree(tmp_path / "source", "train/a", "val/b")
    create(source, pattern, CreateOptions(workers=0, split_from_folder=True))
    val = (tmp_path / "out" / "val.json").read_bytes()
    result = _append_new(_tree(source, "train/c"), pattern, **options)
    assert {name: split.samples for name, split in result.splits.items()} == {"train": 2, "val": 1}
    assert result.appended is not None
    assert result.appended.samples == 1
    assert (tmp_path / "out" / "val.json").read_bytes() == val
    for name in ("train", "val"):
        assert verify(tmp_path / "out" / f"{name}.json", VerifyOptions(source=source, workers=0)).sound


def test_skipped_samples_are_not_tried_again(output: str, tmp_path: Path) -> None:
    """Samples listed as skipped are not listed again in every run."""
    source = _tree(tmp_path / "source", "c", "d")
    result = _append_new(source, output)
    assert result.samples == 4
    write_tree(source, {"large.txt": b"x" * 5000, "e.txt": b"e"})
    bounds = {"on_error": "skip", "max_size": "4kB", "oversize": "skip"}
    assert _append_new(source, output, **bounds).skipped == 1
    before = identity(tmp_path / "out")
    result = _append_new(source, output, **bounds)
    assert result.skipped == 1
    assert "1 sample (large) skipped again" in result.notes[-1]
    assert identity(tmp_path / "out") == before


def test_a_run_in_which_all_new_samples_fail(tmp_path: Path) -> None:
    """The run fails, and leaves no files that block the next one."""
    pattern, options = f"{tmp_path}/out/out-{{0..}}.tar", {"on_error": "skip", "encode": "png"}
    source = write_tree(tmp_path / "source", {"a.txt": b"1"})
    create(source, pattern, CreateOptions(workers=0, encode="png"))
    write_tree(source, {"bad.jpg": b"no image"})
    before = identity(tmp_path / "out")
    for _ in range(2):
        with pytest.raises(SampleFailed, match="none of 1 sample could be packed"):
            _append_new(source, pattern, **options)
        assert identity(tmp_path / "out") == before
    write_tree(source, {"b.txt": b"2"})
    assert _append_new(source, pattern, **options).skipped == 1
    assert verify(tmp_path / "out", VerifyOptions(source=source, workers=0)).sound


def test_on_duplicate_needs_append_and_known_keys(output: str, tmp_path: Path) -> None:
    """`--on-duplicate first` needs a dataset to append to, and keys that are known before packing."""
    with pytest.raises(InvalidRequest, match="no dataset to compare keys with"):
        CreateOptions(on_duplicate="first")
    with pytest.raises(InvalidRequest, match=r"map.* creates keys"):
        CreateOptions(on_duplicate="first", append=True, map="tests.mapped:evaluated")
    source = _tree(tmp_path / "source", "c")
    options = CreateOptions(workers=0, append=True, on_duplicate="first")
    assert [shard.first_key for shard in create(source, output, options, dry_run=True).planned] == ["c"]


@pytest.mark.parametrize("if_exists", ["append", "append-resume"])
def test_the_first_run_creates_the_dataset(tmp_path: Path, if_exists: str) -> None:
    """Without a dataset, the command creates one with the bytes of a run without `--append`."""
    source, pattern = _tree(tmp_path / "source", "a", "b"), "out-{0..}.tar"
    _append_new(source, f"{tmp_path}/out/{pattern}", **existing(if_exists))
    create(source, f"{tmp_path}/other/{pattern}", CreateOptions(workers=0))
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "other")
    (tmp_path / "out" / "out.json").unlink()
    if if_exists == "append":
        with pytest.raises(InvalidRequest, match="no dataset file"):
            _append_new(source, f"{tmp_path}/out/{pattern}")
    else:
        _append_new(source, f"{tmp_path}/out/{pattern}", **existing(if_exists))
        assert read_tree(tmp_path / "out") == read_tree(tmp_path / "other")


def test_verify_needs_the_first_source(output: str, tmp_path: Path) -> None:
    """Only samples that are new in the first source allow `verify --source` for the whole dataset."""
    _append_new(_tree(tmp_path / "other", "a", "c"), output)
    report = verify(tmp_path / "out", VerifyOptions(source=tmp_path / "source", workers=0))
    assert report.sound
    assert any("first 1 shard" in text for text in report.unchecked)


def test_exported_indexes_cover_appended_samples(tmp_path: Path) -> None:
    """Indexes of other tools cover the appended samples."""
    pattern = f"{tmp_path}/out/out-{{0..}}.tar"
    create(_tree(tmp_path / "source", "a"), pattern, CreateOptions(workers=0, export=("energon",)))
    _append_new(_tree(tmp_path / "source", "b"), pattern)
    index = tmp_path / "out" / ".nv-meta"
    assert list(json.loads((index / ".info.json").read_text())["shard_counts"]) == ["out-0.tar", "out-1.tar"]
    assert "out-1.tar" in (index / "split.yaml").read_text()
    assert export(tmp_path / "out" / "out.json", "energon").kept == len(
        export(tmp_path / "out" / "out.json", "energon").files
    )
