"""Laws of `.npy` fields."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardtool import CreateOptions, InvalidRequest, VerifyOptions, create, diff, reshard, verify
from shardtool.write.task import BUFFER_SIZE
from tests.helpers import members, typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path


def _saved(value: Any) -> bytes:
    stream = BytesIO()
    np.save(stream, value)
    return stream.getvalue()


def _table(path: Path, keys: list[str], values: np.ndarray[Any, Any]) -> Path:
    """Write a table of keys and, in the column `emb`, the rows of an array as lists."""
    ends = pa.array([*range(0, values.size + 1, values.shape[1])], pa.int32())
    pq.write_table(pa.table({"key": keys, "emb": pa.ListArray.from_arrays(ends, pa.array(values.ravel()))}), path)
    return path


def test_lists_become_arrays(ending: str, tmp_path: Path) -> None:
    """Every way to make a field of a column of lists writes the same `.npy`, which `verify` and `diff` accept."""
    keys, values = ["a/1", "b/2"], np.arange(6, dtype=np.float32).reshape(2, 3)
    table = str(_table(tmp_path / "emb.parquet", keys, values))
    folder = write_tree(tmp_path / "src", {f"{key}.bin": key.encode() for key in keys})
    joined: dict[str, Any] = {"join": table, "on": "key", "workers": 0}

    def out(name: str) -> str:
        return f"{tmp_path}/{name}/x-{{000..}}.{ending}"

    create(folder, out("joined"), field=("npy=emb",), **joined)
    create(folder, out("columns"), **joined)
    reshard(tmp_path / "columns", out("later"), field=("npy=emb",), workers=0)
    reshard(tmp_path / "columns", out("resharded"), field=("npy=emb",), **joined)
    create(table, out("table"), field=("npy=emb",), meta="none", workers=0)
    expected = [(f"{key}.npy", _saved(row)) for key, row in zip(keys, values, strict=True)]
    for name in ("joined", "later", "resharded", "table"):
        result = members(tmp_path / name / f"x-000.{ending}")
        assert [item for item in result if item[0].endswith(".npy")] == expected, name
    assert diff(tmp_path / "joined", tmp_path / "resharded", workers=0).content_same
    for name, source, join in (("joined", folder, table), ("table", table, None)):
        options = VerifyOptions(source=str(source), join=join, decode=True, workers=0)
        assert not verify(tmp_path / name, options).findings


def test_arrays_of_any_size(ending: str, tmp_path: Path) -> None:
    """An array larger than the writer's buffer is written as any other."""
    values = np.ones((1, BUFFER_SIZE // 8 + 1))
    table = _table(tmp_path / "t.parquet", ["a"], values)
    create(table, f"{tmp_path}/x-{{0..}}.{ending}", field=("npy=emb",), meta="none", workers=0)
    assert members(tmp_path / f"x-0.{ending}") == [("a.npy", _saved(values[0]))]


def test_other_values_are_refused_alike(tmp_path: Path) -> None:
    """Each way to create a field refuses text in a binary format and ragged lists; nothing is written."""
    keys = ["a", "b"]
    table = {"key": keys, "text": ["x", "y"], "ragged": [[1], [1, 2]]}
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    folder = write_tree(tmp_path / "src", {f"{key}.bin": b"." for key in keys})
    create(folder, f"{tmp_path}/plain/x-{{0..}}.tar", workers=0)
    options: dict[str, Any] = {"join": str(tmp_path / "t.parquet"), "on": "key", "workers": 0}
    for field, column, message in (
        ("png", "text", r"column 'text' \(field png\) holds string; .* Use another field: field={'txt': 'text'}\."),
        ("npy", "text", r"column 'text' \(field npy\) holds string; expected lists of numbers"),
        (
            "npy",
            "ragged",
            r"'ragged' \(field npy\): a list of 2 although the first has 1, in (row 2|1 sample, such as 'b')",
        ),
    ):
        chosen = (f"{field}={column}",)
        with pytest.raises(InvalidRequest, match=message):
            create(folder, f"{tmp_path}/no/x-{{0..}}.tar", field=chosen, **options)
        with pytest.raises(InvalidRequest, match=message):
            reshard(tmp_path / "plain", f"{tmp_path}/no/x-{{0..}}.tar", field=chosen, **options)
        with pytest.raises(InvalidRequest, match=message):
            create(tmp_path / "t.parquet", f"{tmp_path}/no/x-{{0..}}.tar", field=chosen, workers=0)
    assert not [*tmp_path.glob("no/*")]


def test_npy_is_npy(tmp_path: Path) -> None:
    """No verb writes text into a .npy field, and `--decode` finds fields that NumPy cannot read."""
    table = tmp_path / "m.jsonl"
    table.write_text('{"key": "a", "xs": ["1", "2"]}\n')
    refused = typed("create", table, f"{tmp_path}/m-{{0..}}.tar", "--field", "npy=xs")
    assert (refused.code, "(field npy) holds list" in refused.err) == (2, True), refused
    good = BytesIO()
    np.save(good, np.arange(6).reshape(2, 3))
    data = good.getvalue()
    files = {"a.npy": data, "b.npy": b"[1,2]", "c.npy": data[:-1], "d.npy": data.replace(b"3)", b"3 ")}
    folder = write_tree(tmp_path / "src", files)
    create(folder, f"{tmp_path}/out-{{0..}}.tar", CreateOptions(workers=0))
    report = verify(tmp_path / "out.json", VerifyOptions(decode=True, workers=0))
    assert [(finding.code, finding.key) for finding in report.findings] == [("array-bad", key) for key in "bcd"]
