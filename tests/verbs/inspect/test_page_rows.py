"""The table of all samples in the page, and the charts of its columns."""

from __future__ import annotations

import math
from datetime import date
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool import CreateOptions, create, inspect, remove
from shardtool.request.dataset_options import RemoveOptions
from shardtool.verbs.inspect.page import charts, rows
from tests.verbs.inspect.made import labelled, write_shard
from tests.verbs.inspect.test_page import read_page

if TYPE_CHECKING:
    from pathlib import Path

_COUNT = 60
_TABLE = pa.table({
    "key": [f"k{at:03}" for at in range(_COUNT)],
    "txt": ["text"] * _COUNT,
    "lang": [("en", "de", None)[at % 3] for at in range(_COUNT)],
    "score": [None if at == 7 else at / 8 for at in range(_COUNT)],
    "single": pa.array([at / 10 for at in range(_COUNT)], pa.float32()),
    "id": [2**60 + at for at in range(_COUNT)],
    "stars": [at % 5 for at in range(_COUNT)],
    "ok": [at % 2 == 0 for at in range(_COUNT)],
    "day": [date(2024, 1, 1 + at % 28) for at in range(_COUNT)],
    "tags": [["x"] * (at % 4) if at else None for at in range(_COUNT)],
    "long": ["z" * 5 * at for at in range(_COUNT)],
    "turns": [[{"role": "user", "content": f"{at}"}] * (at % 3) for at in range(_COUNT)],
})  # fmt: skip


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the dataset file of a table with columns of all kinds, in several shards."""
    folder = tmp_path_factory.mktemp("rows")
    create(_TABLE, f"{folder}/d-{{0..}}.tar", CreateOptions(field=("txt=txt",), max_count=25, workers=0))
    return folder / "d.json"


def test_the_table_contains_all_values(dataset: Path) -> None:
    """The table has a row per sample, and each value of each column, also of samples without a card."""
    page = read_page(dataset, samples=4)
    assert len(page.samples) == 4
    assert page.table["count"] == _COUNT
    assert page.keys == _TABLE["key"].to_pylist()
    for name in ("lang", "score", "stars"):
        assert page.column(name) == _TABLE[name].to_pylist()
    assert page.column("single") == [round(at / 10, 1) for at in range(_COUNT)]
    assert page.column("id")[1] == str(2**60 + 1)  # JavaScript has no such integer
    assert page.column("ok")[:2] == ["True", "False"]
    assert page.column("day")[2] == "2024-01-03"
    assert page.column("tags")[:4] == [None, ["x"], ["x", "x"], ["x", "x", "x"]]
    assert [len(text) for text in page.column("long")[39:42]] == [195, 200, 201]
    assert next(sample for sample in page.table["columns"] if sample["name"] == "turns")["lengths"][:4] == [0, 1, 2, 0]
    assert {*page.column("shard")} == {"d-0.tar", "d-1.tar", "d-2.tar"}


def test_numbers_are_valid_json() -> None:
    """NaN and infinity, which JSON lacks, are texts; a 32-bit float has no more digits than it needs."""
    values = pa.chunked_array([pa.array([math.nan, math.inf, -math.inf, 0.1, None], pa.float32())])
    document = rows._column_document([rows._convert(values, ())])  # noqa: SLF001
    assert document == {"kind": "number", "values": ["nan", "inf", "-inf", 0.1, None]}


def test_each_card_has_its_row(dataset: Path) -> None:
    """The row of a card has its key, for shown and unusual samples."""
    page = read_page(dataset, samples=7)
    assert [page.keys[sample["row"]] for sample in page.samples + page.unusual] == [
        sample["key"] for sample in page.samples + page.unusual
    ]


@pytest.mark.parametrize("limit", ["MAX_ROWS", "MAX_ROW_BYTES"])
def test_the_table_is_bounded(dataset: Path, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a limit, the table contains the first samples and those shown as cards, and the page says how many."""
    monkeypatch.setattr(f"shardtool.verbs.inspect.page.page.{limit}", {"MAX_ROWS": 10, "MAX_ROW_BYTES": 3000}[limit])
    page = read_page(dataset, samples=6)
    shown = {sample["key"] for sample in page.samples + page.unusual}
    count = int(page.text.partition("cover the first ")[2].split()[0])
    assert count == 10 or limit == "MAX_ROW_BYTES"
    assert page.keys[:count] == _TABLE["key"].to_pylist()[:count]
    assert {*page.keys[count:]} <= shown <= {*page.keys}
    assert len({*page.keys}) == len(page.keys) < _COUNT
    for name in ("lang", "score", "stars"):
        values = dict(zip(_TABLE["key"].to_pylist(), _TABLE[name].to_pylist(), strict=True))
        assert page.column(name) == [values[key] for key in page.keys]


def test_the_limit_is_shared_by_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several datasets are in one table with a column `dataset`; a limit applies to all of them together."""
    for name in ("one", "two"):
        write_shard(tmp_path / name / f"{name}-000000.tar", labelled(range(40), 3))
    monkeypatch.setattr("shardtool.verbs.inspect.page.page.MAX_ROWS", 30)
    page = read_page(tmp_path / "one", tmp_path / "two", samples=2)
    first = [row for row in range(page.table["count"]) if page.column("dataset")[row] == "two"]
    assert len(first) <= 15 + 1 + len(page.unusual)
    assert {*page.column("dataset")} == {"one", "two"}
    assert [page.column("dataset")[sample["row"]] for sample in page.samples] == [
        sample["labels"]["dataset"] for sample in page.samples
    ]


def test_labels_of_fields_are_a_column(tmp_path: Path) -> None:
    """Labels in a field without a sidecar column are a column of the table."""
    write_shard(tmp_path / "d" / "s-000000.tar", labelled(range(10), 3))
    page = read_page(tmp_path / "d")
    assert page.column("cls") == [str(at % 3) for at in range(10)]


def test_saved_keys_select_the_samples(tmp_path: Path) -> None:
    """The keys of the table, one per line, are accepted by `remove --keys-from`, also if they are shown escaped."""
    keys = ["a b", "日本/写真", "turned\u202egnp", "</script>", "k" * 3000]
    source = pa.table({"key": keys, "txt": ["t"] * len(keys)})
    create(source, f"{tmp_path}/d-{{0..}}.tar", CreateOptions(field=("txt=txt",), workers=0))
    page = read_page(tmp_path / "d.json")
    assert page.keys == keys
    assert page.column("key") != keys
    (tmp_path / "page.keys").write_text("".join(key + "\n" for key in page.keys[1:]), "utf-8")
    remove(tmp_path / "d.json", RemoveOptions(keys_from=str(tmp_path / "page.keys")))
    assert inspect(tmp_path / "d.json").samples == 1


def test_a_column_with_few_values_is_no_label(dataset: Path) -> None:
    """Only classes and columns that are named like a label are labels of a card."""
    page = read_page(dataset, samples=20)
    assert any("lang" in sample["labels"] for sample in page.samples)
    assert not any(span.get("class") == "label" for span in page.tags("span"))
    assert "labels in" not in page.text


def test_class_numbers_have_names(tmp_path: Path) -> None:
    """Numbers and lists of numbers of a field with classes have the names in cards, table and charts."""
    source = pa.table({
        "key": [f"{at:02}" for at in range(30)],
        "kind": [("cat", "dog")[at % 2] for at in range(30)],
    })  # fmt: skip
    options = CreateOptions(field=("cls=kind",), classes=("cls",), workers=0)
    create(source, f"{tmp_path}/d-{{0..}}.tar", options)
    page = read_page(tmp_path / "d.json", samples=3)
    assert page.column("cls")[:2] == ["cat", "dog"]
    assert next(sample for sample in page.table["columns"] if sample["name"] == "cls")["label"]


def test_each_column_has_a_chart(dataset: Path) -> None:
    """The page has a chart of each number, time, text and list, and counts the samples without a value."""
    page = read_page(dataset, samples=4)
    labels = [str(sample["aria-label"]) for sample in page.tags("svg") if sample.get("class") == "bars"]
    assert len(labels) == len(_TABLE.column_names) - 1
    assert "lang: 2 values, 20 without a value" in labels
    assert any(label.startswith("tags: list length, 1 without a value") for label in labels)
    assert any(label.startswith("long: characters") for label in labels)
    assert "2024-01-28" in page.text


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=60))
def test_bars_count_all_values(values: list[float]) -> None:
    """The bars of a chart count every value, whatever the range."""
    bars, _ = charts._histogram(np.array([value for value in values if math.isfinite(value)] or [0.0]))  # noqa: SLF001
    assert sum(count for _, count in bars) == (sum(map(math.isfinite, values)) or 1)
    assert len(bars) <= 25


@given(st.lists(st.integers(0, 40), max_size=4), st.integers(1, 3000))
def test_kept_numbers_are_bounded(sizes: list[int], scale: int) -> None:
    """Whatever the number of values, at most a fixed number is kept, regularly spaced."""
    kept, total = charts._KeptNumbers(), 0  # noqa: SLF001
    for size in sizes:
        kept.add(np.arange(total, total + size * scale, dtype=np.float64))
        total += size * scale
    values: Any = kept.values
    assert len(values) <= 2**13
    assert values.tolist() == list(range(0, total, kept.step))
