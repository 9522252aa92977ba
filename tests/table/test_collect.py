"""Laws of `collect`: the rows of each key become lists, and no row is lost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardtool
from shardtool import CreateOptions, InvalidRequest, VerifyOptions, create, diff, extract, reshard, verify
from shardtool.table.rows import collect_lists, group_rows
from tests.helpers import members, read_tree, typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path

_BOXES = "image,label,x\nb,cat,0.1\na,dog,0.2\nb,,0.3\na,cat,\nb,dog,0.5\nz,cat,1\n"
_LISTS = {"a": (["dog", "cat"], [0.2, None]), "b": (["cat", "", "dog"], [0.1, 0.3, 0.5])}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a folder of three images and a table with several rows for two of them."""
    (tmp_path / "boxes.csv").write_text(_BOXES)
    return write_tree(tmp_path / "in", {f"{key}.jpg": key.encode() * 9 for key in "abc"})


def _metadata(dataset: str) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = shardtool.open(dataset).to_pandas().set_index("__key__").to_dict("index")
    return rows


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.one_of(st.none(), st.integers(0, 9))), min_size=1))
def test_lists_keep_the_order_of_rows(rows: list[tuple[str, int | None]]) -> None:
    """Groups are in the order of their first rows, and each list has all values of its key, in row order."""
    keys, values = [key for key, _ in rows], [value for _, value in rows]
    groups = group_rows(pa.array(keys))
    distinct = [*dict.fromkeys(keys)]
    assert groups.first.tolist() == [keys.index(key) for key in distinct]
    assert [distinct[group] for group in groups.of_row.tolist()] == keys
    expected = [[value for other, value in rows if other == key] for key in distinct]
    column = pa.array(values, pa.int64())
    assert collect_lists({"n": column}, groups.of_row, len(distinct))["n"].to_pylist() == expected
    omitted = np.where(groups.of_row == 0, -1, groups.of_row)
    assert collect_lists({"n": column}, omitted, len(distinct))["n"].to_pylist() == [[], *expected[1:]]


@pytest.mark.parametrize("form", ["csv", "parquet", "frame"])
@pytest.mark.parametrize("ending", ["tar", "tfrecord"])
def test_joined_rows_become_lists(form: str, ending: str, source: Path, tmp_path: Path) -> None:
    """All columns of a joined table are lists: in sidecars, fields, queries and data frames, and after `reshard`."""
    table: Any = pd.read_csv(tmp_path / "boxes.csv", keep_default_na=False, na_values={"x": ""})
    if form != "frame":
        path = tmp_path / f"boxes.{form}"
        table = (table.to_csv(path, index=False) if form == "csv" else table.to_parquet(path)) or path
    options = CreateOptions(join=table, on="image", collect="all", field={"labels.json": "label"}, where="x.len() > 1")
    made = create(source, tmp_path / f"o.{ending}", options)
    assert any("6 rows of " in note and "collected into lists for 3 keys" in note for note in made.notes)
    assert any("1 key of " in note and "matches no sample, such as 'z'" in note for note in made.notes)
    for dataset in (made, reshard(made.dataset_file, tmp_path / "r.tar", where="label.contains('cat')")):
        rows = _metadata(dataset.dataset_file)
        assert {key: [*row["label"]] for key, row in rows.items()} == {key: lists[0] for key, lists in _LISTS.items()}
        for key, (_, numbers) in _LISTS.items():
            assert [None if value is None or np.isnan(value) else value for value in rows[key]["x"]] == numbers
    if ending == "tar":
        fields = {name: json.loads(data) for name, data in members(tmp_path / "o.tar") if name.endswith("json")}
        assert fields == {f"{key}.labels.json": lists[0] for key, lists in _LISTS.items()}
    if form != "frame":
        assert verify(made.dataset_file, VerifyOptions(source=source)).sound
        assert diff(made.dataset_file, source).same


def test_rows_of_a_manifest_become_lists(source: Path, tmp_path: Path) -> None:
    """Rows that repeat a path are one sample with lists; columns that are not collected keep their single value."""
    table = tmp_path / "captions.csv"
    table.write_text("path,caption,license,n\nb.jpg,one,CC0,1\na.jpg,two,X,2\nb.jpg,three,CC0,3\n")
    options = CreateOptions(root=source, collect="caption,n", field={"captions.json": "caption"}, workers=0)
    made = create(table, tmp_path / "o.tar", options)
    assert dict(members(tmp_path / "o.tar")) == {
        "b.captions.json": b'["one","three"]', "b.jpg": b"b" * 9, "b.json": b'{"license":"CC0","n":[1,3]}',
        "a.captions.json": b'["two"]', "a.jpg": b"a" * 9, "a.json": b'{"license":"X","n":[2]}',
    }  # fmt: skip
    assert verify(made.dataset_file, VerifyOptions(source=table, root=source)).sound
    for where, count in (("n.len() > 1", 1), ("license == 'X'", 1), ("caption.contains('one') or n.len() == 1", 2)):
        chosen = create(
            table, tmp_path / "w.tar", CreateOptions(root=source, collect="caption,n", where=where), overwrite=True
        )
        assert chosen.samples == count
    limited = create(table, tmp_path / "h.tar", root=source, collect="caption,n", head=1, keys_from=["a", "b"])
    assert [name for name, _ in members(tmp_path / "h.tar")] == ["b.jpg", "b.json"]
    assert limited.samples == 1
    by_key = pd.DataFrame({"key": [7, 8, 7], "text": ["x", "y", "z"]})
    create(by_key, tmp_path / "k.tar", field={"t.json": "text"}, collect="text")
    assert dict(members(tmp_path / "k.tar")) == {"7.t.json": b'["x","z"]', "8.t.json": b'["y"]'}


def test_a_collected_dataset_runs_again(source: Path, tmp_path: Path) -> None:
    """Updates, parts and extracted tables keep the lists; collecting other columns is refused."""
    table, output = tmp_path / "boxes.csv", tmp_path / "out" / "o-{0..}.tar"
    options = CreateOptions(join=table, on="image", collect=("label", "x"), max_count=1)
    create(source, output, options)
    for part in ("1/2", "2/2"):
        create(source, tmp_path / "parts" / "o-{0..}.tar", options, part=part)
    assert read_tree(tmp_path / "parts") == read_tree(tmp_path / "out")
    with pytest.raises(shardtool.OutputExists, match="collect differs"):
        create(source, output, join=table, on="image", collect="all", max_count=1, update=True)
    (source / "d.jpg").write_bytes(b"d")
    table.write_text(f"{_BOXES}d,cat,7\nd,dog,8\n")
    made = create(source, output, options, update=True)
    assert [*_metadata(made.dataset_file)["d"]["x"]] == [7, 8]
    files = extract(made.dataset_file, tmp_path / "x")
    again = create(tmp_path / "x", tmp_path / "again.tar", **files.create)
    assert diff(made.dataset_file, again.dataset_file).same


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, ("2 keys more than once: 'b' (rows 1, 3, 5), 'a' (rows 2, 4); expected one row for each value of column "
         "'image'. Collect the rows of each key into lists with collect='all'.")),
        ({"collect": "label"}, ("column 'x' differs from the first row with the same key, in rows 3, 4, 5; "
         "expected one value for each key. Collect it, too, with collect='label,x'.")),
        ({"collect": "lable"}, "collect: no column 'lable'; expected one of label, x. Did you mean 'label'?"),
        ({"collect": "image"}, "collect: no column 'image'"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_joined(options: dict[str, Any], message: str, source: Path, tmp_path: Path) -> None:
    """Repeated keys name the option; single columns must have one value; unknown columns are refused."""
    with pytest.raises(InvalidRequest) as caught:
        create(source, tmp_path / "o.tar", join=tmp_path / "boxes.csv", on="image", **options)
    assert message in str(caught.value)
    assert not (tmp_path / "o.json").exists()


def test_coco_annotations_are_lists_already(source: Path, tmp_path: Path) -> None:
    """Columns of COCO annotations are not collected again."""
    (tmp_path / "coco.json").write_text(
        '{"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": [{"image_id": 1, "caption": "x"}]}'
    )
    with pytest.raises(InvalidRequest, match=r"collect: the columns of coco\.json are already lists"):
        create(source, tmp_path / "o.tar", join=tmp_path / "coco.json", collect="all")


def test_manifests_that_cannot_be_collected(source: Path, tmp_path: Path) -> None:
    """A key needs one file, bytes cannot be collected, and a table without keys has nothing to collect."""
    paths = pd.DataFrame({"key": ["a", "a", "b"], "path": ["a.jpg", "c.jpg", "b.jpg"], "n": range(3)})
    data = pd.DataFrame({"key": ["a", "a"], "jpg": [b"1", b"2"], "n": [1, 2]})
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (paths, {"collect": "n"}, "column 'path' differs from the first row with the same key, in row 2"),
        (paths[["path", "n"]].iloc[[0, 0]], {}, "or collect the rows of each key with collect='all'"),
        (data, {"collect": "all"}, "collect: used with a column of bytes, 'jpg'; expected paths of files"),
        (data[["n"]], {"collect": "all", "field": "txt=n"}, "no column of keys or paths"),
        (paths.assign(key=[None, "a", "b"]), {"collect": "all"}, "column 'key': no key in row 1"),
    ]  # fmt: skip
    for table, options, message in cases:
        with pytest.raises(InvalidRequest) as caught:
            create(table, tmp_path / "o.tar", root=source, **options)
        assert message in str(caught.value)
    ran = typed("create", source, tmp_path / "o.tar", "--collect", "all")
    assert (ran.code, "--collect: no table; expected a manifest, or --join TABLE" in ran.err) == (2, True), ran.err
