"""`index --columns-from` adds columns of fields to the sidecars of existing shards."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import shardtool
from shardtool import (
    IndexOptions,
    InvalidRequest,
    OutputExists,
    SampleFailed,
    ShardError,
    create,
    index,
    reshard,
    verify,
)
from tests.helpers import members, read_tree, shards, typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path

_KEYS = [f"{number:02}" for number in range(7)]
_WIDTHS = {key: {"width": 10 * number, "kind": "ab"[number % 2], "list": [1]} for number, key in enumerate(_KEYS)}
_SOURCE = {f"{key}.json": json.dumps(values).encode() for key, values in _WIDTHS.items()} | {
    f"{key}.n": b"%d" % number for number, key in enumerate(_KEYS)
}


def _create(root: Path, ending: str, files: dict[str, bytes] = _SOURCE, **options: Any) -> Path:
    create(write_tree(root / "in", files), root / f"out/x-{{0..}}.{ending}", max_count=3, workers=0, **options)
    return root / "out/x.json"


def _rows(dataset_file: Path) -> dict[str, dict[str, Any]]:
    paths = sorted(dataset_file.parent.glob("*.index"))
    return {row["__key__"]: row for path in paths for row in pq.read_table(path).to_pylist()}


def _shard_bytes(dataset_file: Path) -> list[bytes]:
    return [path.read_bytes() for path in shards(dataset_file.parent)]


def _schema(dataset_file: Path) -> dict[str, str]:
    schema: dict[str, str] = json.loads(dataset_file.read_bytes())["shardtool"]["schema"]
    return schema


def test_columns_are_added_and_shards_stay(tmp_path: Path, ending: str) -> None:
    """The sidecars get the columns that `create` writes, and other commands use them; a second run changes nothing."""
    dataset, options = _create(tmp_path, ending), IndexOptions(columns_from=("json", "n"), workers=0)
    before, rows = _shard_bytes(dataset), _rows(dataset)
    result = index(dataset, options)
    assert (result.columns, result.kept, result.shards) == (("width", "kind", "n"), 0, 3)
    assert _shard_bytes(dataset) == before
    expected = {"width": "int64", "kind": "string", "n": "int64"}
    assert {name: kind for name, kind in _schema(dataset).items() if not name.startswith("__")} == expected
    for number, (key, row) in enumerate(_rows(dataset).items()):
        assert row == rows[key] | {"width": 10 * number, "kind": "ab"[number % 2], "n": number}
    assert verify(dataset, workers=0).sound
    assert [*shardtool.open(dataset).where("width > 20 and kind == 'b'").keys] == ["03", "05"]
    alike = tmp_path / "alike"
    create(tmp_path / "in", alike / f"x-{{0..}}.{ending}", max_count=3, workers=0, columns_from=("json", "n"))
    assert [path.read_bytes() for path in sorted(alike.glob("*.index"))] == [
        path.read_bytes() for path in sorted(dataset.parent.glob("*.index"))
    ]
    files, written = read_tree(dataset.parent), dataset.stat().st_ino
    assert index(dataset, options).kept == 3
    assert (read_tree(dataset.parent), dataset.stat().st_ino) == (files, written)


def test_later_runs_keep_the_columns(tmp_path: Path, ending: str) -> None:
    """`index`, `--update` and `reshard` keep the columns; `index` adds them to new shards. `--resume` has a note."""
    dataset = _create(tmp_path, ending)
    index(dataset, columns_from="json", workers=0)
    index(dataset, checksum=True, workers=0)
    write_tree(tmp_path / "in", {"99.json": b'{"width": 5}', "99.n": b"4"})
    create(tmp_path / "in", dataset.parent / f"x-{{0..}}.{ending}", max_count=3, workers=0, update=True)
    assert [row["width"] for row in _rows(dataset).values() if "width" in row] == [*range(0, 70, 10)]
    assert verify(dataset, workers=0).sound
    reshard(dataset, tmp_path / f"r/x-0.{ending}", workers=0)
    assert [row["width"] for row in _rows(tmp_path / "r/x.json").values()] == [*range(0, 70, 10), None]
    result = index(dataset, columns_from="json", workers=0)
    assert (result.kept, result.shards, _rows(dataset)["99"]["width"]) == (3, 4, 5)
    assert verify(dataset, workers=0).sound
    second = _create(tmp_path / "second", ending)
    index(second, columns_from="json", workers=0)
    note = create(tmp_path / "second/in", second.parent / f"x-{{0..}}.{ending}", max_count=3, workers=0, resume=True)
    assert note.notes[0].startswith("x.json: the sidecars lose the columns width, kind; `index(columns_from=")


def test_shards_of_other_tools(tmp_path: Path) -> None:
    """Shards without sidecars get sidecars with the columns; a payload can be missing, empty or a text."""
    files = {"a.cls": b"3\n", "a.jpg": b"1", "b.jpg": b"2", "c.cls": b"", "c.jpg": b"3", "d.cls": b"-1", "d.jpg": b"4"}
    dataset = _create(tmp_path, "tar", files)
    for path in [*dataset.parent.glob("*.index"), dataset]:
        path.unlink()
    before = [members(path) for path in shards(dataset.parent)]
    ran = typed("index", "x-0.tar", "x-1.tar", "--columns-from", "cls", "--json", cwd=dataset.parent)
    assert (ran.code, json.loads(ran.out)["columns"]) == (0, ["cls"])
    assert {key: row["cls"] for key, row in _rows(dataset).items()} == {"a": 3, "b": None, "c": None, "d": -1}
    assert [members(path) for path in shards(dataset.parent)] == before
    ran = typed("index", "x.json", "--columns-from", "cls", cwd=dataset.parent)
    assert ran.out == "4 samples in 2 shards (2 already valid)\ndataset file  x.json\ncolumns       cls\n"


def test_values_of_several_types_become_text(tmp_path: Path) -> None:
    """As for `create`, a note tells so, and the type is the same in all sidecars."""
    dataset = _create(tmp_path, "tar", {f"{key}.v": b"7" if key < "04" else b"seven" for key in _KEYS})
    result = index(dataset, columns_from="v", workers=0)
    assert result.notes == ("column 'v' of field 'v' is stored as text, because it mixes 4 numbers, 3 texts",)
    assert [row["v"] for row in _rows(dataset).values()] == ["7"] * 4 + ["seven"] * 3
    assert _schema(dataset)["v"] == "string"


_OTHER = {f"{key}.json": b'{"width": 1, "x": 2}' for key in _KEYS} | {f"{key}.b.json": b'{"width": 2}' for key in _KEYS}
_WRONG: dict[str, tuple[dict[str, bytes], Any, type[ShardError], str]] = {
    "absent": (_SOURCE, "jsn", InvalidRequest, "columns_from: no field 'jsn'; expected one of json, n. Did you mean"),
    "two fields": (
        _OTHER,
        ("json", "b.json"),
        InvalidRequest,
        "field 'b.json' and another field both contain a value named 'width'",
    ),
    "not JSON": (
        {"a.json": b"{", "b.json": b'{"x": 1}'},
        "json",
        SampleFailed,
        "x.json: 1 sample without a value to store: a (field 'json': not JSON: ",
    ),
    "binary": ({"a.jpg": b"\xff" * 2000}, "jpg", SampleFailed, "(field 'jpg': 2,000 bytes: not a JSON object, nor"),
    "reserved": ({"a.json": b'{"__key__": 1}'}, "json", InvalidRequest, "field 'json': column '__key__': names that"),
    "lists only": ({"a.json": b'{"x": [1]}'}, "json", InvalidRequest, "field 'json': no text, number or boolean"),
}


@pytest.mark.parametrize("name", _WRONG)
def test_fields_without_columns_are_refused(name: str, tmp_path: Path) -> None:
    """An error names the field and the first samples, and nothing changes."""
    files, fields, kind, message = _WRONG[name]
    dataset = _create(tmp_path, "tar", files)
    before = read_tree(dataset.parent)
    with pytest.raises(kind) as refused:
        index(dataset, columns_from=fields, workers=0)
    assert message in str(refused.value)
    assert read_tree(dataset.parent) == before


def test_columns_with_other_values_are_refused(tmp_path: Path) -> None:
    """A column of this name stays, unless `--overwrite` replaces it."""
    dataset = _create(tmp_path, "tar", _OTHER, columns_from="json")
    before = read_tree(dataset.parent)
    with pytest.raises(OutputExists) as refused:
        index(dataset, columns_from="b.json", workers=0)
    result = "x-0.index: column 'width' exists, with other values than the field in 3 samples, such as 00; expected no"
    assert result in str(refused.value)
    assert "use overwrite=True" in refused.value.remedy
    assert read_tree(dataset.parent) == before
    assert index(dataset, columns_from="b.json", workers=0, overwrite=True).columns == ("width",)
    assert {(row["width"], row["x"]) for row in _rows(dataset).values()} == {(2, 2)}
    assert verify(dataset, workers=0).sound
    ran = typed("index", "x.json", "--columns-from", "json", "--merge", cwd=dataset.parent)
    assert (ran.code, "--merge: used with --columns-from" in ran.err) == (2, True)


@pytest.mark.parametrize("name", ["x.json", "x-1.index"])
def test_symbolic_links_are_refused(tmp_path: Path, name: str) -> None:
    """A dataset file or sidecar that is a link stays, because another dataset may use its target."""
    dataset = _create(tmp_path, "tar")
    target = tmp_path / "target"
    (dataset.parent / name).rename(target)
    (dataset.parent / name).symlink_to(target)
    before = read_tree(dataset.parent)
    with pytest.raises(OutputExists, match=f"{name}: a symbolic link; expected a regular file"):
        index(dataset, columns_from="n", workers=0)
    assert read_tree(dataset.parent) == before
