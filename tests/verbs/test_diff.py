"""Laws of `diff`: differences between datasets, and between a dataset and its source."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardtool
from shardtool import CreateOptions, InvalidRequest, ShardWriter
from tests.helpers import typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path

    from shardtool import DiffResult

Samples = dict[str, dict[str, bytes]]

_KEYS = st.sampled_from([f"{folder}/{at}" for folder in ("a", "é") for at in range(6)])
_SAMPLE = st.dictionaries(st.sampled_from(["jpg", "txt", "cls"]), st.sampled_from([b"", b"1", b"2", b"12"]), min_size=1)
_SAMPLES = st.dictionaries(_KEYS, _SAMPLE, min_size=1, max_size=12)


def write(pattern: Path, samples: Samples) -> str:
    """Write samples into shards of three."""
    with ShardWriter(pattern, max_count=3) as writer:
        for key, fields in samples.items():
            writer.write({"__key__": key, **fields})
    return str(pattern)


def compared(found: DiffResult) -> tuple[set[str], set[str], dict[str, tuple[str, ...]]]:
    """Return added, removed and changed keys."""
    return {*found.added}, {*found.removed}, {item.key: item.fields for item in found.changed}


@given(first=_SAMPLES, second=_SAMPLES, ending=st.sampled_from(["tar", "tfrecord"]), bare=st.booleans())
def test_differences_match_those_in_memory(
    *, first: Samples, second: Samples, ending: str, bare: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The reported keys and fields equal those of a comparison in memory, for each format, with and without index."""
    folder = tmp_path_factory.mktemp("diff")
    one, other = write(folder / "a-{0..}.tar", first), write(folder / f"b-{{0..}}.{ending}", second)
    for file in [*folder.glob("b*.index"), *folder.glob("b.json")] if bare else []:
        file.unlink()
    result = shardtool.diff(one, other, workers=0)
    changed = {
        key: fields
        for key in first.keys() & second.keys()
        if (fields := tuple(sorted({name for name, _ in first[key].items() ^ second[key].items()})))
    }
    assert compared(result) == ({*second} - {*first}, {*first} - {*second}, changed)
    assert result.same == (first == second)
    assert result.samples == (len(first), len(second))
    assert not result.moved


def test_order_sharding_and_format_are_no_difference(tmp_path: Path) -> None:
    """A rewritten dataset has no differences, even if numbers are stored natively."""
    rows = pd.DataFrame({"key": [f"{at:02}" for at in range(20)], "n": range(20), "x": [at / 4 for at in range(20)]})
    options = CreateOptions(field={"cls": "n", "score": "x"}, workers=0)
    shardtool.create(rows, tmp_path / "a-{0..}.tar", options)
    shardtool.create(rows, tmp_path / "b-{0..}.tfrecord", options)
    shardtool.reshard(tmp_path / "b.json", tmp_path / "c-{0..}.tar", shuffle=True, max_count=3, workers=0)
    for item in "abc":
        for other in "abc":
            assert shardtool.diff(tmp_path / f"{item}.json", tmp_path / f"{other}.json", workers=0).same


def test_metadata_columns_are_compared(tmp_path: Path) -> None:
    """A sample whose columns differ has changed; equal values of other types, and two nulls, are equal."""
    rows = pd.DataFrame({"key": list("abcd"), "w": [1, 2, 3, 4], "x": [1.5, None, 3.0, None], "t": list("pqrs")})
    other = rows.assign(w=rows["w"].astype("float64"), x=[1.5, None, 9.0, 1.0], new=[None, "n", None, None])
    for name, table in (("a", rows), ("b", other)):
        shardtool.create(table, tmp_path / f"{name}-{{0..}}.tar", bytes={}, field={"txt": "t"}, workers=0)
    result = shardtool.diff(tmp_path / "a.json", tmp_path / "b.json", workers=0)
    assert {item.key for item in result.changed if "(metadata)" in item.fields} == {"b", "c", "d"}


def test_nested_metadata_with_nan_equals_itself(tmp_path: Path) -> None:
    """NaN in lists, structs and maps, and times that Python cannot represent, are equal in a dataset and its copy."""
    nan, time = math.nan, pa.list_(pa.timestamp("s"))
    columns = {
        "list": pa.array([[1.0, nan], [nan], None]),
        "struct": pa.array([{"x": nan}, {"x": 1.0}, None]),
        "map": pa.array([[("k", nan)], [], None], pa.map_(pa.string(), pa.float64())),
        "times": pa.array([[10**12], [], None], pa.list_(pa.int64())).cast(time),
    }
    pq.write_table(pa.table({"key": [*"abc"], "txt": [*"xyz"], **columns}), tmp_path / "t.parquet")
    shardtool.create(tmp_path / "t.parquet", tmp_path / "a-{0..}.tar", key="key", field={"txt": "txt"}, meta="all")
    shardtool.reshard(tmp_path / "a.json", tmp_path / "b-{0..}.tar", max_count=1, where="key != 'c'")
    shardtool.reshard(tmp_path / "a.json", tmp_path / "c-{0..}.tar", max_count=1)
    result = shardtool.diff(tmp_path / "a.json", tmp_path / "b.json", workers=0)
    assert ([*result.removed], [*result.changed]) == (["c"], [])
    assert shardtool.diff(tmp_path / "a.json", tmp_path / "c.json", workers=0).same
    assert shardtool.diff(tmp_path / "a.json", tmp_path / "t.parquet", workers=0).same


def test_metadata_is_reported_separately(tmp_path: Path) -> None:
    """Different columns are listed with their counts, separately from content; `ignore_metadata` skips them."""
    old: list[dict[str, object]] = [{"w": at, "old": "x"} for at in range(4)]
    new: list[dict[str, object]] = [{"w": at or 9, **({} if at == 1 else {"cls": 1})} for at in range(4)]
    sides: dict[str, tuple[str, list[dict[str, object]]]] = {
        "a": ("pqrs", old),
        "b": ("pqrs", [{"w": at} for at in range(4)]),
        "c": ("pqrs", new),
        "d": ("pqrz", new),
    }
    for name, (texts, columns) in sides.items():
        with ShardWriter(tmp_path / f"{name}-{{0..}}.tar") as writer:
            for key, text, metadata in zip("abcd", texts, columns, strict=True):
                writer.write({"__key__": key, "txt": text.encode()}, metadata=metadata)
    files = {name: tmp_path / f"{name}.json" for name in "abcd"}
    result = shardtool.diff(files["a"], files["c"], workers=0)
    assert result.metadata == {"w": ("changed", 1), "old": ("removed", 4), "cls": ("added", 3)}
    assert (result.same, result.content_same, len(result.changed), result.metadata_only) == (False, True, 4, 4)
    assert result.fields == {"(metadata)": 4}
    assert shardtool.diff(files["a"], files["c"], ignore_metadata=True, workers=0).same
    result = shardtool.diff(files["a"], files["d"], workers=0)
    assert (result.content_same, len(result.changed), result.metadata_only) == (False, 4, 3)
    result = shardtool.diff(files["a"], files["d"], ignore_metadata=True, workers=0)
    assert compared(result) == (set(), set(), {"d": ("txt",)})
    ran = typed("diff", files["a"], files["b"])
    assert (ran.code, "~" in ran.out) == (3, False)
    assert "content equal; metadata: column old removed (4 samples), " in ran.out
    assert "1 changed (txt 1); metadata: column w changed (1 sample), " in typed("diff", files["b"], files["d"]).out
    ran = typed("diff", files["a"], files["b"], "--ignore-metadata")
    assert (ran.code, "not compared: metadata" in ran.err, "equal" in ran.out) == (0, True, True)
    document = json.loads(typed("diff", files["a"], files["b"], "--json").out)
    assert document["metadata"] == {"old": {"change": "removed", "samples": 4}}
    assert (document["same"], document["content_same"], document["metadata_only"]) == (False, True, 4)


def test_a_sample_in_another_split_has_moved(tmp_path: Path) -> None:
    """A sample in another split has moved; its changed column `split` is no further change."""
    source = write_tree(tmp_path / "in", {f"{at:02}.txt": b"%d" % at for at in range(30)})
    for name, seed in (("a", 1), ("b", 2)):
        pattern = tmp_path / name / "{split}-{0..}.tar"
        shardtool.create(source, pattern, split="train=0.5,val=0.5", seed=seed, workers=0)
    splits = {name: shardtool.diff(tmp_path / name, tmp_path / name, workers=0) for name in "ab"}
    assert all(item.same for item in splits.values())
    keys = {(name, split): {*shardtool.open(tmp_path / name / f"{split}.json").keys}
            for name in "ab" for split in ("train", "val")}  # fmt: skip
    result = shardtool.diff(tmp_path / "a" / "{split}.json", tmp_path / "b" / "{split}.json", workers=0)
    assert {item.key: item.now for item in result.moved} == {
        **dict.fromkeys(keys["a", "train"] & keys["b", "val"], "val"),
        **dict.fromkeys(keys["a", "val"] & keys["b", "train"], "train"),
    }
    assert (result.moved[:0], result.same, len(result.changed)) == ([], False, 0)
    assert all(item.before != item.now for item in result.moved)


def test_diff_with_a_source_predicts_create(tmp_path: Path) -> None:
    """The differences from a changed folder are those of a dataset created from it."""
    files = {f"{folder}/{at}.{ending}": b"%d" % at for folder in ("cat", "dog") for at in range(9) for ending in "ab"}
    source = write_tree(tmp_path / "in", files)
    options = CreateOptions(label_from_folder=True, exclude=("*/7.*",), workers=0)
    shardtool.create(source, tmp_path / "a-{0..}.tar", options)
    assert shardtool.diff(tmp_path / "a.json", source, workers=0).same
    (source / "cat/1.a").unlink()
    (source / "cat/2.a").write_bytes(b"x")
    (source / "dog/3.b").write_bytes(b"longer")
    for name in "ab":
        (source / f"dog/8.{name}").rename(source / f"dog/new.{name}")
    shardtool.create(source, tmp_path / "b-{0..}.tar", options)
    result = shardtool.diff(tmp_path / "a.json", source, workers=2)
    assert compared(result) == compared(shardtool.diff(tmp_path / "a.json", tmp_path / "b.json", workers=0))
    assert compared(result) == ({"dog/new"}, {"dog/8"}, {"cat/1": ("a",), "cat/2": ("a",), "dog/3": ("b",)})


def test_splits_are_compared_with_their_manifest(tmp_path: Path) -> None:
    """All splits of a run are compared with its table; a sample with a changed split has moved."""
    rows = pd.DataFrame({"key": list("abcdef"), "t": list("pqrstu"), "part": ["train", "val"] * 3})
    shardtool.create(rows, tmp_path / "{split}-{0..}.tar", field={"txt": "t"}, split_by="part", workers=0)
    splits = str(tmp_path / "{split}.json")
    assert shardtool.diff(splits, rows, workers=0).same
    changed = rows.assign(part=["train", "train", *rows["part"][2:]], t=["p", "q", "other", *rows["t"][3:]])
    result = shardtool.diff(splits, changed, workers=0)
    assert [*result.moved] == [("b", "val", "train")]
    assert result.changed[0].key == "c"
    assert "txt" in result.changed[0].fields


def test_appended_samples_are_not_added_by_the_source(tmp_path: Path) -> None:
    """Appended samples are in the dataset, so the source does not add them, though they are not compared."""
    files = {f"{at}.txt": b"%d" % at for at in range(4)}
    first = write_tree(tmp_path / "one", files)
    second = write_tree(tmp_path / "two", files | {"new.txt": b"5"})
    for source in (first, second):
        shardtool.create(source, tmp_path / "a-{0..}.tar", update=True, workers=0)
    result = shardtool.diff(tmp_path / "a.json", second, workers=0)
    assert (result.same, result.samples) == (True, (4, 4))
    assert any("1 sample appended from other sources" in note for note in result.notes)
    (second / "later.txt").write_bytes(b"6")
    assert [*shardtool.diff(tmp_path / "a.json", second, workers=0).added] == ["later"]


def test_datasets_of_several_runs_have_no_common_source(tmp_path: Path) -> None:
    """Datasets of several runs, and a missing folder, are refused."""
    source = write_tree(tmp_path / "in", {"a.txt": b"a"})
    for name in ("a", "b"):
        shardtool.create(source, tmp_path / f"{name}-{{0..}}.tar", workers=0)
    with pytest.raises(InvalidRequest, match="created by a different run than the other datasets"):
        shardtool.diff([tmp_path / "a.json", tmp_path / "b.json"], source)
    with pytest.raises(InvalidRequest, match="no such file or folder"):
        shardtool.diff(tmp_path / "a.json", tmp_path / "nowhere")
    shardtool.reshard(tmp_path / "a.json", tmp_path / "c-{0..}.tar", workers=0)
    with pytest.raises(InvalidRequest, match=r"c\.json was created by reshard a\. Pass the source of A"):
        shardtool.diff(tmp_path / "c.json", source)


def test_only_the_first_run_is_compared_with_its_source(tmp_path: Path) -> None:
    """If other sources were appended, only the samples of the first run are compared."""
    first, more = (write_tree(tmp_path / name, {f"{name}.txt": b"a"}) for name in ("one", "two"))
    shardtool.create(first, tmp_path / "a-{0..}.tar", workers=0)
    shardtool.create(more, tmp_path / "a-{0..}.tar", append=True, workers=0)
    result = shardtool.diff(tmp_path / "a.json", first, workers=0)
    assert result.same
    assert result.notes == ("not compared: 1 sample appended from other sources",)


def test_diff_prints_ten_lines_of_each_kind(tmp_path: Path) -> None:
    """The exit code is 3 if there are differences; -v and JSON list all of them."""
    one = write(tmp_path / "a-{0..}.tar", {f"{at:02}": {"txt": b"a"} for at in range(14)})
    other = write(tmp_path / "b-{0..}.tar", {"99": {"txt": b"a"}, "03": {"txt": b"b"}})
    ran = typed("diff", one, other)
    assert (ran.code, ran.out.count("  - "), "and 3 more" in ran.out) == (3, 10, True)
    assert "1 added, 13 removed, 1 changed (txt 1)" in ran.out
    assert typed("diff", one, other, "-v").out.count("  - ") == len(shardtool.diff(one, other).removed)
    document = json.loads(typed("diff", one, other, "--json").out)
    assert document["counts"] == {"added": 1, "removed": 13, "changed": 1, "moved": 0}
    assert (document["added"], document["changed"]) == (["99"], [{"key": "03", "fields": ["txt"]}])
    assert (typed("diff", one, one).code, typed("diff", one).code) == (0, 2)
    assert json.loads(typed("diff", one, one, "--json").out)["same"] is True


def test_renamed_classes_are_a_difference(tmp_path: Path) -> None:
    """Equal numbers with other class names are a difference; a new class is not."""
    for name, folders in {"a": ("cat", "dog"), "b": ("dog", "cat"), "c": ("cat", "dog", "eel")}.items():
        names = tmp_path / f"{name}.txt"
        names.write_text("\n".join(folders))
        rows = pd.DataFrame({"key": ["x", "y"], "t": ["1", "2"], "label": folders[:2]})
        options = CreateOptions(field={"cls": "label", "txt": "t"}, classes=("cls",), classes_from=names, meta="none")
        shardtool.create(rows, tmp_path / f"{name}-{{0..}}.tar", options)
    assert shardtool.diff(tmp_path / "a.json", tmp_path / "c.json", workers=0).same
    result = shardtool.diff(tmp_path / "a.json", tmp_path / "b.json", workers=0)
    assert (result.classes, result.same, len(result.changed)) == (("cls",), False, 0)
    ran = typed("diff", tmp_path / "a.json", tmp_path / "b.json")
    assert (ran.code, "class numbers of cls have different names" in ran.out) == (3, True)
