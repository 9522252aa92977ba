"""`inspect`: tables of samples, queries, and the bytes of a field."""

from __future__ import annotations

import csv
import json
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from shardtool import CreateOptions, InvalidRequest, ReshardOptions, create, reshard
from shardtool.dataset.find import open_dataset
from shardtool.dataset.sidecar_read import parse_sidecar
from shardtool.verbs.inspect.samples import first_samples, iter_keys
from shardtool.verbs.inspect.table import write_table
from tests.helpers import flip, members, read_tree, shards, typed

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory, ending: str) -> Path:
    """Return a dataset of 30 samples with metadata in ten shards; do not change it."""
    folder = tmp_path_factory.mktemp(f"packed-{ending}")
    table = pa.table({
        "key": [f"{at:03}" for at in range(30)], "text": ["x" * at for at in range(30)], "width": [*range(30)],
        "name": ['a "b", c\n', None, "é"] * 10, "tags": [["a", "b"], None, []] * 10,
        "seen": pa.array([0, 86400, None] * 10, pa.timestamp("s")),
    })  # fmt: skip
    create(table, f"{folder}/out-{{00..}}.{ending}", CreateOptions(max_count=3, workers=0, field=("txt=text",)))
    return folder


def _sidecars(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of all sidecars."""
    tables = [parse_sidecar(path.read_bytes(), "x", None).plain_table() for path in sorted(folder.glob("*.index"))]
    return [row for table in tables for row in table.to_pylist()]


def test_a_table_has_the_rows_of_all_sidecars(packed: Path, tmp_path: Path) -> None:
    """A Parquet table has the rows of all sidecars, each with the path of its shard."""
    assert write_table([open_dataset(packed)], f"{tmp_path}/t.parquet") == 30
    rows = parquet.read_table(tmp_path / "t.parquet").to_pylist()
    paths = [row.pop("__shard__") for row in rows]
    assert rows == _sidecars(packed)
    assert paths == [str(shard) for shard in shards(packed) for _ in range(3)]


def test_a_csv_has_the_same_values(packed: Path, tmp_path: Path) -> None:
    """In CSV, texts are unchanged, lists are JSON, and null is empty."""
    write_table([open_dataset(packed)], f"{tmp_path}/t.csv")
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    expected = _sidecars(packed)
    assert [row["__key__"] for row in rows] == [row["__key__"] for row in expected]
    assert [int(row["__offset__"]) for row in rows] == [row["__offset__"] for row in expected]
    assert [json.loads(row["__fields__"]) for row in rows] == [row["__fields__"] for row in expected]
    assert [row["name"] for row in rows] == [row["name"] or "" for row in expected]
    assert [row["tags"] for row in rows[:3]] == ['["a", "b"]', "", "[]"]
    assert [row["seen"] for row in rows[:3]] == ["1970-01-01 00:00:00.000", "1970-01-02 00:00:00.000", ""]


def test_columns_missing_in_some_shards_are_null(packed: Path, tmp_path: Path, ending: str) -> None:
    """Missing columns are null, with or without sidecars; two number types become one that fits both."""
    folder = tmp_path / "mixed"
    shutil.copytree(packed, folder)
    (folder / "out-00.index").unlink()
    table = pa.table({"key": ["x"], "text": ["y"], "width": [0.5]})
    create(table, f"{tmp_path}/more-{{0..}}.{ending}", CreateOptions(workers=0, field=("txt=text",)))
    opened = [open_dataset(folder), open_dataset(f"{tmp_path}/more.json")]
    assert write_table(opened, f"{tmp_path}/t.parquet") == 31
    found = parquet.read_table(tmp_path / "t.parquet")
    assert found.column("width").to_pylist() == [None, None, None, *range(3, 30), 0.5]
    assert found.column("name").to_pylist()[-2:] == ["é", None]
    assert list(iter_keys(opened, "width < 5 and name.isna()")) == ["004", "x"]
    text = pa.table({"key": ["x"], "text": ["y"], "tags": [1]})
    create(text, f"{tmp_path}/text-{{0..}}.{ending}", CreateOptions(workers=0, field=("txt=text",)))
    with pytest.raises(InvalidRequest, match="--table"):
        write_table([opened[0], open_dataset(f"{tmp_path}/text.json")], f"{tmp_path}/u.parquet")


@pytest.mark.parametrize("name", ["t.parquet", "t.csv"])
def test_a_table_is_written_completely_or_not_at_all(name: str, packed: Path, tmp_path: Path) -> None:
    """A query without a match, or damage in a late shard, leaves no file; an existing file needs `--overwrite`."""
    folder = tmp_path / "x"
    shutil.copytree(packed, folder)
    path, opened = tmp_path / name, [open_dataset(folder)]
    with pytest.raises(InvalidRequest, match="no sample matches width > 99"):
        write_table(opened, str(path), where="width > 99")
    (folder / "out-09.index").unlink()
    last = shards(folder)[-1]
    last.write_bytes(last.read_bytes()[:600])
    flip(last, 3)
    assert typed("inspect", folder, "--table", path).code == 4
    assert sorted(one.name for one in tmp_path.iterdir()) == ["x"]
    path.write_bytes(b"mine")
    assert typed("inspect", packed, "--table", path).code == 5
    assert path.read_bytes() == b"mine"
    path.write_bytes(b"")
    assert typed("inspect", packed, "--table", path, "--overwrite").code == 0
    assert typed("inspect", packed, "--table", path, "--overwrite").code == 0
    assert typed("inspect", packed, "--table", tmp_path / "t.txt").code == 2


QUERIES = (
    "width % 7 == 0", "key > '020'", "shard.str.contains('-0[12]')", "size % 2 == 0 and fields == 2", "name.isna()",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("query", QUERIES)
def test_a_query_selects_the_same_samples_as_reshard(query: str, packed: Path, tmp_path: Path) -> None:
    """`--where` of `inspect` and of `reshard` select the same samples, for keys, samples and tables."""
    reshard(packed, f"{tmp_path}/r-{{0..}}.tar", ReshardOptions(where=query, workers=0))
    expected = list(iter_keys([open_dataset(tmp_path / "r.json")]))
    opened = [open_dataset(packed)]
    assert 0 < len(expected) < 30
    assert list(iter_keys(opened, query)) == expected
    found = list(first_samples(opened, None, query))
    assert [one.key for one in found] == expected
    assert [one.number for one in found] == [int(key) for key in expected]
    assert write_table(opened, f"{tmp_path}/t.parquet", where=query) == len(expected)
    assert parquet.read_table(tmp_path / "t.parquet").column("__key__").to_pylist() == expected


def test_a_query_works_with_head_keys_and_extract(packed: Path, tmp_path: Path) -> None:
    """`--where` works with `--head`, `--keys` and `--extract`; `--head` reads no later shards."""
    query = ("--where", "width >= 10")
    assert typed("inspect", packed, "--keys", *query).out.split() == [f"{at:03}" for at in range(10, 30)]
    assert len(typed("inspect", packed, "--head", "4", *query).out.splitlines()) == 4
    ran = typed("inspect", packed, "--extract", tmp_path / "x", "--where", "width in [3, 17]")
    assert (ran.code, len(ran.out.splitlines())) == (0, 2)
    files = read_tree(tmp_path / "x")
    assert {name: data for name, data in files.items() if name.endswith("txt")} == {
        "003.txt": b"xxx",
        "017.txt": b"x" * 17,
    }
    shutil.copytree(packed, tmp_path / "y")
    (tmp_path / "y" / "out-09.index").write_bytes(b"PAR1")
    assert typed("inspect", tmp_path / "y", "--head", "4", *query).code == 0
    for words in (["--keys", "--where", "widht > 3"], ["--head", "1", "--where", "width > 99"]):
        assert typed("inspect", packed, *words).code == 2


@pytest.mark.parametrize(
    "words",
    [("--where", "width > 1"), ("--show", "1", "--where", "width > 1"), ("--raw", "txt"),
     ("--show", "1", "--show", "2", "--raw", "txt"), ("--show", "1", "--raw", "txt", "--json"),
     ("--show", "1", "--raw", "txt", "--extract", "x"), ("--keys", "--table", "x.csv"),
     ("--keys", "--extract", "x"),
     ("--table", "x.csv", "--extract", "x", "--where", "width > 1"), ("--show", "1", "--raw", "png")],
)  # fmt: skip
def test_conflicting_options_are_refused(words: tuple[str, ...], packed: Path) -> None:
    """Conflicting options and a missing field are refused, and nothing is written."""
    before = read_tree(packed)
    assert typed("inspect", packed, *words, cwd=packed).code == 2
    assert read_tree(packed) == before


def test_raw_writes_the_payload_of_a_field(packed: Path, tmp_path: Path) -> None:
    """`--raw` writes only the payload; damage is an error, and an unknown field is an error that names `--raw`."""
    assert (
        "--raw: 000 has no field 'png'; expected one of "
        in typed("inspect", packed, "--show", "000", "--raw", "png").err
    )
    payloads = dict(members(*shards(packed)))
    for key in ("000", "007", "29"):
        ran = typed("inspect", packed, "--show", key, "--raw", "txt")
        assert (ran.code, ran.out.encode(), ran.err) == (0, payloads[f"{int(key):03}.txt"], "")
    shutil.copytree(packed, tmp_path / "x")
    shard = shards(tmp_path / "x")[-1]
    flip(shard, shard.read_bytes().index(b"x" * 29))
    assert typed("inspect", tmp_path / "x", "--show", "029", "--raw", "txt").code == 4
