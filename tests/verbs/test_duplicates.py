"""Laws of duplicates: samples with equal content are found by their bytes, and skipped on request."""

from __future__ import annotations

import json
import random
import shutil
from collections import defaultdict
from typing import TYPE_CHECKING

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardtool
from shardtool import CreateOptions, InvalidRequest, ShardWriter
from shardtool.fingerprint import crc32c
from shardtool.verbs.inspect.duplicates import find_duplicates
from tests.helpers import read_tree, typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path

Samples = dict[str, dict[str, bytes]]

_KEYS = st.sampled_from([f"{folder}/{at}" for folder in ("a", "é") for at in range(8)])
_LABEL = st.sampled_from([b"1", b"2"])
_SAMPLE = st.fixed_dictionaries(
    {"jpg": st.sampled_from([b"", b"1", b"2", b"12"])}, optional={"png": st.just(b"1"), "cls": _LABEL}
)
_SAMPLES = st.dictionaries(_KEYS, _SAMPLE, min_size=1, max_size=12)


def write(pattern: Path, samples: Samples) -> str:
    """Write samples into shards of three."""
    with ShardWriter(pattern, max_count=3) as writer:
        for key, fields in samples.items():
            writer.write({"__key__": key, **fields})
    return str(pattern)


def grouped(samples: Samples) -> list[list[str]]:
    """Return the keys of samples with the same images, in groups of two or more."""
    groups = defaultdict(list)
    for key in sorted(samples, key=str.encode):
        fields = samples[key]
        groups[tuple(sorted(data for name, data in fields.items() if name != "cls"))].append(key)
    return sorted(([group for group in groups.values() if len(group) > 1]), key=lambda group: group[0].encode())


@given(samples=_SAMPLES, ending=st.sampled_from(["tar", "tfrecord"]))
def test_groups_equal_those_in_memory(samples: Samples, ending: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Groups and their conflicting labels equal those in memory; after dropping, each content exists once."""
    folder = tmp_path_factory.mktemp("twins")
    dataset = write(folder / f"a-{{0..}}.{ending}", samples)
    result, groups = find_duplicates(dataset), grouped(samples)
    assert [[item.key for item in group] for group in result.groups] == groups
    labels = [[samples[key].get("cls") for key in group] for group in groups]
    assert [[bool(item.differs) for item in group] for group in result.groups] == [
        [None not in (label, group[0]) and label != group[0] for label in group] for group in labels
    ]
    shardtool.reshard(dataset, folder / "b-{0..}.tar", drop_duplicates=True, workers=0)
    lost = [key for group in groups for key in group[1:]]
    assert [*shardtool.open(folder / "b.json").keys] == [key for key in samples if key not in lost]
    assert not find_duplicates(folder / "b.json").groups
    left_out = (folder / "b.skipped").read_text().splitlines() if lost else []
    assert sorted(json.loads(line)["key"] for line in left_out) == sorted(lost)


def test_equal_checksums_are_no_proof(tmp_path: Path) -> None:
    """Payloads with the same length and CRC-32C but other bytes are no duplicates, on the page and in splits, too."""
    known: dict[int, bytes] = {}
    drawn = random.Random(1)  # noqa: S311 - no secret
    for _ in range(2**20):
        data = drawn.randbytes(8)
        if (other := known.setdefault(crc32c(data), data)) != data:
            break
    else:
        pytest.fail("no collision")
    write(tmp_path / "a-{0..}.tar", {"x": {"jpg": data}, "y": {"jpg": other}, "z": {"jpg": other}})
    (group,) = find_duplicates(tmp_path / "a.json").groups
    assert [item.key for item in group] == ["y", "z"]

    several = {f"{number:02}": {"txt": b"%d" % number, "cls": b"1"} for number in range(30)}
    write(tmp_path / "train-{0..}.tar", several | {"x": {"txt": data}, "y": {"txt": other, "cls": b"1"}})
    write(tmp_path / "val-{0..}.tar", {"x": {"txt": other}, "y": {"txt": other, "cls": b"2"}, "z": {"cls": b"1"}})
    report = shardtool.verify([tmp_path / "train.json", tmp_path / "val.json"])
    assert [(finding.code, finding.key) for finding in report.findings] == [("split-leak", "y")]
    typed("inspect", tmp_path / "train.json", "--html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "1 sample has the sizes and checksums of an earlier sample" in page
    assert "duplicate: same content as" not in page


def test_splits_and_datasets(tmp_path: Path) -> None:
    """Groups in several splits are marked, across formats; a label or a text that differs is named."""
    write(tmp_path / "train-{0..}.tar", {"a": {"jpg": b"1", "cls": b"1"}, "b": {"jpg": b"2", "txt": b"cat"}})
    write(tmp_path / "val-{0..}.tfrecord", {"c": {"jpg": b"1", "cls": b"2"}, "d": {"jpg": b"2", "txt": b"dog"}})
    result = find_duplicates([tmp_path / "train.json", tmp_path / "val.json"])
    assert [[(item.key, item.split, item.differs) for item in group] for group in result.groups] == [
        [("a", "train", ()), ("c", "val", ("cls",))],
        [("b", "train", ()), ("d", "val", ("txt",))],
    ]
    assert (result.leaks, result.unlike, result.surplus, result.size) == (2, 2, 2, 2)
    ran = typed("inspect", tmp_path / "train.json", tmp_path / "val.json", "--duplicates")
    assert (ran.code, "train: a = val: c  in several splits  different cls" in ran.out) == (0, True)
    document = json.loads(typed("inspect", tmp_path / "train.json", "--duplicates", "--json").out)
    assert (document["counts"]["groups"], document["fields"]) == (0, ["jpg"])


def test_what_create_leaves_out(tmp_path: Path) -> None:
    """Samples with the same content become one, by any number of workers, in a dry run, and resumed."""
    files = {f"{at:02}.jpg": b"%d" % (at % 7) for at in range(30)} | {"03.cls": b"1", "17.cls": b"2", "99.txt": b"0"}
    source = write_tree(tmp_path / "in", files)
    changes = {"one": 1, "two": 2}
    for name, workers in changes.items():
        options = CreateOptions(drop_duplicates=True, workers=workers, max_count=2)
        shardtool.create(source, tmp_path / name / "a-{0..}.tar", options)
    one = read_tree(tmp_path / "one")
    assert read_tree(tmp_path / "two") == one
    assert [*shardtool.open(tmp_path / "one/a.json").keys] == ["00", "01", "02", "03", "04", "05", "06", "99"]
    rows = {row["key"]: row for row in map(json.loads, one["a.skipped"].splitlines())}
    assert rows["17"] == {
        "key": "17", "path": "", "code": "duplicate", "message": "has the same content as 03, which has another cls"
    }  # fmt: skip
    assert len(rows) == 23
    plan = shardtool.create(
        source, tmp_path / "three/a-{0..}.tar", drop_duplicates=True, plan_only=tmp_path / "p", dry_run=True
    )
    assert plan.skipped == len(rows)
    (tmp_path / "one" / "a.json").unlink()
    (tmp_path / "one" / "a-1.tar").unlink()
    shardtool.create(
        source, tmp_path / "one/a-{0..}.tar", CreateOptions(drop_duplicates=True, max_count=2, resume=True)
    )
    assert read_tree(tmp_path / "one") == one
    assert typed("verify", tmp_path / "one/a.json", "--source", source).code == 0
    assert shardtool.diff(tmp_path / "one/a.json", source).same


@pytest.mark.parametrize("packed", ["zip", "gztar", "table"])
def test_sources_other_than_folders(packed: str, tmp_path: Path) -> None:
    """Payloads of archives, also of sequentially read ones, and of a table are compared by their bytes."""
    files = {"a.jpg": b"1", "b.jpg": b"2", "c.jpg": b"1", "d.jpg": b"3"}
    source: object = pd.DataFrame({"key": [name[0] for name in files], "jpg": [*files.values()]})
    if packed != "table":
        write_tree(tmp_path / "in", files)
        source = shutil.make_archive(str(tmp_path / "x"), packed, tmp_path / "in")
    binary = ("jpg=jpg",) if packed == "table" else ()
    shardtool.create(source, tmp_path / "a-{0..}.tar", bytes=binary, drop_duplicates=True, workers=0)
    assert [*shardtool.open(tmp_path / "a.json").keys] == ["a", "b", "d"]


@pytest.mark.parametrize("option", ["split_by", "stratify", "group_by"])
def test_splits_of_a_table(option: str, tmp_path: Path) -> None:
    """Duplicates of a table are dropped before its rows are split by a column."""
    rows = [f"{number:02},text {number // 2},{'dog' if number % 4 else 'cat'}\n" for number in range(24)]
    table = tmp_path / "t.csv"
    table.write_text("key,text,animal\n" + "".join(rows))
    options = {option: "animal", **({} if option == "split_by" else {"split": "cat=0.5,dog=0.5", "seed": 1})}
    output = tmp_path / "{split}-{0..}.tar"
    shardtool.create(table, output, CreateOptions(**options, field="txt=text", drop_duplicates=True, workers=0))  # type: ignore[arg-type]
    splits = [tmp_path / "cat.json", tmp_path / "dog.json"]
    found = {sample["__key__"]: (path.stem, sample["txt"]) for path in splits for sample in shardtool.open(path)}
    texts = {f"{number:02}": b"text %d" % (number // 2) for number in range(0, 24, 2)}
    assert {key: text for key, (_, text) in found.items()} == texts
    if option == "split_by":
        assert {key for key, (split, _) in found.items() if split == "cat"} == {f"{n:02}" for n in range(0, 24, 4)}
    assert typed("verify", *splits, "--source", table).code == 0


def test_dropping_requires_all_samples(tmp_path: Path) -> None:
    """Appends and parts, which do not read all samples, are refused."""
    source = write_tree(tmp_path / "in", {"a.jpg": b"1"})
    for more in ({"append": True}, {"part": "1/2"}):
        with pytest.raises(InvalidRequest, match="drop_duplicates: used with"):
            shardtool.create(source, tmp_path / "a-{0..}.tar", CreateOptions(drop_duplicates=True, **more))


def test_an_update_keeps_existing_samples(tmp_path: Path) -> None:
    """A sample of the dataset is kept; later samples with its content are skipped."""
    source = write_tree(tmp_path / "in", {"m.jpg": b"1", "n.jpg": b"1", "o.jpg": b"2"})
    options = CreateOptions(drop_duplicates=True, update=True, workers=0)
    nights = [{}, {"a.jpg": b"1", "b.jpg": b"3", "c.jpg": b"3"}, {"d.jpg": b"2", "e.jpg": b"4"}, {"f.jpg": b"4"}]
    for night in nights:
        write_tree(source, night)
        shardtool.create(source, tmp_path / "x-{0..}.tar", options)
    assert [*shardtool.open(tmp_path / "x.json").keys] == ["m", "o", "b", "e"]
    listed = [json.loads(line) for line in (tmp_path / "x.skipped").read_text().splitlines()]
    assert {item["key"]: item["message"][-1] for item in listed} == {"n": "m", "a": "m", "c": "b", "d": "o"}
    assert typed("verify", tmp_path / "x.json", "--source", source).code == 0
    assert shardtool.diff(tmp_path / "x.json", source, workers=0).same


def test_labels_that_are_the_same_in_other_forms(tmp_path: Path) -> None:
    """A number in a TFRecord is the label that a tar has as text; a sample without a label has no other one."""
    rows = pd.DataFrame({"key": ["a", "b"], "jpg": [b"1", b"2"], "n": [1, 2]})
    for name, table in {"a-{0..}.tar": rows, "b-{0..}.tfrecord": rows, "c-{0..}.tar": rows[["key", "jpg"]]}.items():
        values = {"cls": "n"} if "n" in table else {}
        shardtool.create(table, tmp_path / name, bytes=("jpg=jpg",), field=values, meta="none", workers=0)
    result = find_duplicates([tmp_path / f"{name}.json" for name in "abc"])
    assert (len(result.groups), result.surplus, result.unlike) == (2, 4, 0)
