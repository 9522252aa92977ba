"""Several tables as one source: named, or by a glob."""

from __future__ import annotations

import gzip
import json
import re
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from shardtool import InvalidRequest, create, verify
from shardtool import open as open_dataset
from tests.helpers import write_tree

if TYPE_CHECKING:
    from pathlib import Path

_FILES = {f"clips/{number}.txt": f"{number}".encode() for number in range(6)}
OUT = "out/x-{000..}.tar"


def _csv(path: Path, rows: list[dict[str, Any]], **options: Any) -> None:
    pd.DataFrame(rows).to_csv(path, index=False, **options)


def _rows(*numbers: int, **more: Any) -> list[dict[str, Any]]:
    return [{"path": f"clips/{number}.txt", "value": number, **more} for number in numbers]


@pytest.fixture(autouse=True)
def _work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(tmp_path, _FILES)
    monkeypatch.chdir(tmp_path)


def _samples(dataset: str) -> list[tuple[str, Any]]:
    return [(sample["__key__"], json.loads(sample["json"])) for sample in open_dataset(dataset)]


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_tables_are_packed_like_their_concatenation(tmp_path: Path, ending: str, compression: str | None) -> None:
    """Named tables, and a glob of them, give the samples that one table with all rows gives, in order."""
    suffix = f"{ending}.gz" if compression else ending
    for name, rows in (("a", _rows(3, 1)), ("b", _rows(0)), ("all", _rows(3, 1, 0))):
        frame, path = pd.DataFrame(rows), tmp_path / f"{name}.{suffix}"
        if ending == "jsonl":
            data = frame.to_json(orient="records", lines=True).encode()
            path.write_bytes(gzip.compress(data) if compression else data)
        else:
            frame.to_csv(path, index=False, sep="," if ending == "csv" else "\t", compression=compression)
    whole = create(f"all.{suffix}", "all/x-{000..}.tar", workers=0)
    for source in ([f"a.{suffix}", f"b.{suffix}"], f"[ab].{suffix}"):
        result = create(source, OUT, workers=0, overwrite=True)
        assert (result.fingerprint, result.samples) == (whole.fingerprint, 3)
        assert _samples("out/x.json") == _samples("all/x.json")


def test_each_table_becomes_a_split(tmp_path: Path) -> None:
    """`split_by="file"` names a split after each file, without its extensions; `verify` accepts the same sources."""
    _csv(tmp_path / "train.tsv", _rows(0, 1, 2), sep="\t")
    _csv(tmp_path / "dev.tsv.gz", _rows(3), sep="\t")
    sources = ["train.tsv", "dev.tsv.gz"]
    result = create(sources, "out/{split}-{000..}.tar", split_by="file", workers=0)
    assert {name: split.samples for name, split in result.splits.items()} == {"train": 3, "dev": 1}
    assert verify("out/{split}.json", source=sources, workers=0).sound


def test_a_column_is_text_if_one_file_has_text(tmp_path: Path) -> None:
    """Numbers of one file keep their digits if another file has text in the column."""
    _csv(tmp_path / "a.csv", _rows(0, code="1.50"))
    _csv(tmp_path / "b.csv", _rows(1, code="x"))
    create(["a.csv", "b.csv"], OUT, workers=0)
    assert [row["code"] for _, row in _samples("out/x.json")] == ["1.50", "x"]


def test_messages_name_the_file_of_a_row(tmp_path: Path) -> None:
    """A repeated key and a missing file are reported with the row's number in its own file."""
    _csv(tmp_path / "a.csv", _rows(0, 1))
    _csv(tmp_path / "b.csv", _rows(2, 1))
    with pytest.raises(InvalidRequest, match=r"'clips/1' \(row 2 of a.csv, row 2 of b.csv\)"):
        create(["a.csv", "b.csv"], OUT, workers=0)
    _csv(tmp_path / "b.csv", _rows(9))
    with pytest.raises(Exception, match=r"clips/9.txt.*row 1 of b.csv"):
        create(["a.csv", "b.csv"], OUT, workers=0)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("path\nclips/1.txt\n", "b.csv: columns differ from those of a.csv: value; expected the same columns"),
        ("path,value,more\nclips/1.txt,1,2\n", "b.csv: columns differ from those of a.csv: more;"),
        ("", "b.csv: empty"),
    ],
)
def test_text_files_must_have_the_same_columns(tmp_path: Path, other: str, message: str) -> None:
    """A missing column is an error instead of nulls; JSON lines may lack keys."""
    _csv(tmp_path / "a.csv", _rows(0))
    (tmp_path / "b.csv").write_text(other)
    with pytest.raises(InvalidRequest, match=message):
        create(["a.csv", "b.csv"], OUT, workers=0)


def test_tables_that_do_not_fit_together(tmp_path: Path) -> None:
    """Other types, several folders without `root`, and a table next to a folder are named."""
    (tmp_path / "a.jsonl").write_text('{"path": "clips/0.txt", "n": 1}\n')
    (tmp_path / "b.jsonl").write_text('{"path": "clips/1.txt", "n": [1]}\n')
    with pytest.raises(InvalidRequest, match=r"types differ between the files: 'n' \(int64, list"):
        create(["a.jsonl", "b.jsonl"], OUT, workers=0)
    (tmp_path / "clips" / "b.jsonl").write_text('{"path": "clips/1.txt", "n": 1}\n')
    with pytest.raises(InvalidRequest, match="the source: tables in several folders"):
        create(["a.jsonl", "clips/b.jsonl"], OUT, workers=0)
    assert create(["a.jsonl", "clips/b.jsonl"], OUT, root=".", workers=0).samples == 2
    with pytest.raises(InvalidRequest, match=r"a.jsonl: one of 2 sources, but a table; expected only tables"):
        create(["clips", "a.jsonl"], OUT, workers=0)


@pytest.mark.parametrize("is_below", [True, False])
def test_the_root_that_contains_the_files_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_below: bool
) -> None:
    """If no file exists, the error names the `root` that works: a folder below or above the folder of the tables."""
    folder, prefix = (tmp_path, "") if is_below else (tmp_path / "tables", "clips/")
    folder.mkdir(exist_ok=True)
    for number, name in enumerate(("a.csv", "b.csv")):
        _csv(folder / name, [{"path": f"{prefix}{number}.txt"}])
    monkeypatch.chdir(folder)
    with pytest.raises(InvalidRequest, match="every row names a missing file") as caught:
        create(["a.csv", "b.csv"], OUT, workers=0)
    root = re.search(r"root='([^']+)'", caught.value.remedy)
    assert root is not None
    assert create(["a.csv", "b.csv"], OUT, workers=0, root=root[1]).samples == 2
