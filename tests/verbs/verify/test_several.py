"""Laws of verifying several datasets: each is verified separately, and samples in two splits are found."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pyarrow as pa
import pytest

from shardtool import CorruptShard, CreateOptions, Report, ReshardOptions, VerifyOptions, create, reshard, verify
from tests.helpers import flip, shards, typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path

ONE = CreateOptions(workers=0, max_count=4)


def _verify(given: Any, **options: Any) -> Report:
    return verify(given, VerifyOptions(workers=0, **options))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a source and two splits of it, which tests do not change."""
    folder = tmp_path_factory.mktemp("packed")
    write_tree(folder / "source", {f"{at:02}.txt": b"caption %d" % at for at in range(12)})
    options = CreateOptions(workers=0, split="train=0.5,val=0.5", max_count=4)
    create(folder / "source", f"{folder}/out/{{split}}-{{0..}}.tar", options)
    return folder


@pytest.fixture
def splits(packed: Path, tmp_path: Path) -> Path:
    """Return a copy of the splits, which the test may damage."""
    shutil.copytree(packed / "out", tmp_path / "out")
    return tmp_path / "out"


def _without_time(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in ("seconds", "checked")}


def test_each_dataset_is_verified_separately(splits: Path) -> None:
    """The combined report contains each dataset's report, and the sums of their counts."""
    files = [splits / "train.json", splits / "val.json"]
    assert _verify(splits).sound
    flip(shards(splits)[-1], 700)
    report, alone = _verify(files), [_verify(file) for file in files]
    assert [*map(_without_time, (dataset.to_json() for dataset in report.datasets))] == [
        _without_time(item.to_json()) for item in alone
    ]
    assert (report.sound, report.datasets[0].sound) == (False, True)
    assert report.counts == alone[1].counts
    assert report.findings == alone[1].findings
    assert (report.samples, report.size) == (12, sum(item.size for item in alone))


def test_a_dataset_that_cannot_be_opened_is_a_finding(splits: Path) -> None:
    """A damaged dataset file is a finding with exit code 4; others are verified. A missing dataset is an error."""
    (splits / "val.json").write_bytes(b"{}")
    files = [splits / "train.json", splits / "val.json"]
    report = _verify(files)
    assert [dataset.samples > 0 for dataset in report.datasets] == [True, False]
    assert report.counts == {"dataset-file-damaged": 1}
    ran = typed("verify", *files)
    assert (ran.code, "dataset-file-damaged" in ran.out) == (4, True)
    ran = typed("verify", *files, splits / "test.json")
    assert (ran.code, ran.out, "test.json: no such file" in ran.err) == (2, "", True)


@pytest.mark.parametrize("lost", ["val.json", "val-0.tar"])
def test_an_unfinished_split_is_a_finding(lost: str, splits: Path) -> None:
    """A folder with a complete and an incomplete split has findings."""
    for name in {lost, "val.json"}:
        (splits / name).unlink()
    assert len(list(splits.glob("val-*.tar"))) in (1, 2)
    report = _verify(splits)
    assert report.datasets[0].sound
    assert set(report.counts) <= {"dataset-file-missing", "dataset-incomplete"}
    assert not report.sound


def test_a_sample_in_two_splits_is_a_leak(packed: Path, tmp_path: Path) -> None:
    """A sample in splits of separate runs is a finding of the later split; the same key with other content is not."""
    create(packed / "source", f"{tmp_path}/train-{{0..}}.tar", ONE)
    other = write_tree(tmp_path / "other", {"03.txt": b"caption 3", "04.txt": b"of another", "99.txt": b"caption 5"})
    create(other, f"{tmp_path}/val-{{0..}}.tar", ONE)
    (one,) = _verify(tmp_path).findings
    assert (one.code, one.file, one.key) == ("split-leak", "val-0.tar", "03")
    assert one.found == f"also in {tmp_path}/train.json, shard train-0.tar"
    assert _verify([tmp_path / "val.json", tmp_path / "train.json"]).findings[0].file == "train-0.tar"
    assert [*_verify([f"{tmp_path}/train-{{0..}}.tar", tmp_path / "val-0.tar"]).counts] == ["split-leak"]


def test_a_key_in_two_splits_of_one_run_is_a_leak(tmp_path: Path) -> None:
    """Content does not matter within one run; only the first of many leaks are listed."""
    keys = [f"{at:03}" for at in range(150)]
    options = CreateOptions(workers=0, split_column="split", key="key", field=("txt=text",))
    for split, text in (("a", "one"), ("b", "another")):
        table = pa.table({"key": keys, "text": [text] * 150, "split": [split] * 150})
        create(table, f"{tmp_path}/{{split}}-{{0..}}.tar", options)
    report = _verify(tmp_path)
    assert report.counts == {"split-leak": 150}
    assert [finding.key for finding in report.findings] == keys[:100]


def test_datasets_that_are_not_splits_may_share_samples(packed: Path, tmp_path: Path) -> None:
    """Two datasets with the same samples have no findings unless their names contain split names."""
    for name in ("small", "large"):
        create(packed / "source", f"{tmp_path}/{name}-{{0..}}.tar", ONE)
    assert _verify(tmp_path).sound


def test_several_datasets_print_one_document(splits: Path) -> None:
    """JSON and JUnit XML are one document with all findings; the exit code is the worst."""
    flip(shards(splits)[0], 700)
    ran = typed("verify", splits, "--json")
    document = json.loads(ran.out)
    rates = {"bytes_per_s", "samples_per_s"}
    assert (ran.code, set(document) - rates) == (3, {"dataset", "sound", "datasets", "counts", "totals", "seconds"})
    assert [item["sound"] for item in document["datasets"]] == [False, True]
    assert document["totals"]["samples"] == sum(item["totals"]["samples"] for item in document["datasets"])
    root = ET.fromstring(typed("verify", splits, "--format", "junit").out)  # noqa: S314 - our own
    result = sum(document["counts"].values())
    assert (root.tag, root.get("failures"), len(root.findall(".//failure"))) == ("testsuites", str(result), result)
    assert [int(suite.get("tests", 0)) for suite in root] == [result, 1]
    assert typed("verify", splits, "--format", "github").out.count("::error") == result


def test_each_split_is_compared_with_the_source(packed: Path, splits: Path) -> None:
    """Damage in the source is an error, not a finding of a dataset."""
    assert _verify(splits, source=packed / "source").sound
    options = ReshardOptions(workers=0, split="a=0.5,b=0.5", seed=1)
    reshard(splits / "train.json", f"{splits}/again/{{split}}-{{0..}}.tar", options)
    assert _verify(splits / "again", source=splits / "train.json").sound
    (splits / "train.json").write_bytes(b"{}")
    with pytest.raises(CorruptShard, match=r"train\.json"):
        _verify(splits / "again", source=splits / "train.json")


def test_each_dataset_is_repaired(splits: Path) -> None:
    """`--repair` repairs each of several datasets."""
    for name in ("train-0.index", "val-0.index"):
        (splits / name).unlink()
    report = _verify(splits, repair=True)
    assert (report.sound, len(report.repaired)) == (True, 2)
