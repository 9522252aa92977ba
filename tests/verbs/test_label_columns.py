"""Laws of labels as columns: a number field that is made is a column, and a query may name its classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardtool
from shardtool import (
    CreateOptions,
    InvalidRequest,
    ReshardOptions,
    SampleFailed,
    VerifyOptions,
    create,
    reshard,
    verify,
)
from shardtool.entries import metadata_columns
from shardtool.select.query import match_rows
from tests.helpers import existing, members, shards, sidecar, write_tree

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KINDS = ("bee", "cat", "dog")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder of three classes, of four samples each."""
    return write_tree(tmp_path / "in", {f"{kind}/{at}.txt": b"%d" % at for kind in KINDS for at in range(4)})


def _create(source: Any, output: Path, ending: str = "tar", **options: Any) -> Path:
    create(source, output / f"out-{{0..}}.{ending}", CreateOptions(**{"workers": 0, "max_count": 5, **options}))
    return output / "out.json"


def _reshard(dataset: Path | list[Path], output: Path, ending: str = "tar", **options: Any) -> Path:
    reshard(dataset, output / f"out-{{0..}}.{ending}", ReshardOptions(**{"workers": 0, "max_count": 5, **options}))
    return output / "out.json"


def _column(dataset_file: Path, name: str = "cls") -> dict[str, Any] | None:
    """Return key to value of a column; None where no sidecar has it."""
    folder, result = dataset_file.parent, dict[str, Any]()
    for shard in shards(folder):
        table = pq.read_table(folder / sidecar(shard.name))
        if name not in table.column_names:
            return None
        result |= dict(zip(table["__key__"].to_pylist(), table[name].to_pylist(), strict=True))
    return result


def _keys(dataset: Path) -> list[str]:
    return [key.rpartition("/")[0] for key in shardtool.open(dataset).keys]


QUERIES = {
    "cls == 'cat'": {"cat"},
    "'cat' == cls": {"cat"},
    "cls != 'cat'": {"bee", "dog"},
    "cls in ('cat', 'dog') and not cls == 2": {"cat"},
    "cls.isin(['bee'])": {"bee"},
    "`cls` not in ['bee', 1]": {"dog"},
    "cls >= 1": {"cat", "dog"},
}


def test_a_query_names_classes(source: Path, ending: str, tmp_path: Path) -> None:
    """By the name of a class or its number, in the run that makes the labels, in the next, and in training code."""
    whole = _create(source, tmp_path / "a", ending, label_from_folder=True)
    for query, kinds in QUERIES.items():
        assert {key.rpartition("/")[0] for key in shardtool.open(whole).where(query).keys} == kinds
    query, kinds = [*QUERIES.items()][3]
    assert {*_keys(_create(source, tmp_path / "b", ending, label_from_folder=True, where=query))} == kinds
    assert {*_keys(_reshard(whole, tmp_path / "c", ending, where=query))} == kinds


def test_a_label_is_a_column_in_every_verb(source: Path, ending: str, tmp_path: Path) -> None:
    """Sidecars have it, `verify` finds them sound and equal to the source, and a reshard keeps it."""
    whole = _create(source, tmp_path / "a", ending, label_from_folder=True)
    expected = {f"{kind}/{at}": number for number, kind in enumerate(KINDS) for at in range(4)}
    assert _column(whole) == expected
    assert verify(whole, VerifyOptions(workers=0, source=source)).findings == ()
    assert _column(_reshard(whole, tmp_path / "b", ending, shuffle=True)) == expected
    assert _column(_reshard(whole, tmp_path / "c", ending, fields={"label": "cls"}), "label") == expected
    assert _column(tmp_path / "c" / "out.json") is None


def test_the_column_of_a_field_that_is_dropped_chooses_and_divides(source: Path, tmp_path: Path) -> None:
    """A test set without labels has none in its sidecars; and they may choose which samples are in it."""
    whole = _create(source, tmp_path / "a", label_from_folder=True)
    options: dict[str, Any] = {"where": "cls != 'bee'", "split": "x=0.5,y=0.5", "stratify": "cls", "fields": "-cls"}
    reshard(whole, tmp_path / "o" / "{split}-{0..}.tar", ReshardOptions(workers=0, **options))
    for name in ("x", "y"):
        assert sorted(_keys(tmp_path / "o" / f"{name}.json")) == ["cat", "cat", "dog", "dog"]
        assert "cls" not in pq.read_schema(tmp_path / "o" / f"{name}-0.index").names
    kept = _reshard(whole, tmp_path / "k", fields="-cls", columns_from=("cls",))
    assert _column(kept) == _column(whole)


@pytest.mark.parametrize("by", ["stratify", "group_by"])
def test_splits_by_label_do_not_depend_on_class_numbers(by: str, source: Path, tmp_path: Path) -> None:
    """A split in `create` equals that of a reshard, and of a dataset with other class numbers."""
    options: dict[str, Any] = {"workers": 0, "split": "x=0.5,y=0.5", by: "cls", "seed": 1}
    names = tmp_path / "names.txt"
    names.write_text("dog\nbee\ncat\n")
    create(source, tmp_path / "a" / "{split}-{0..}.tar", CreateOptions(label_from_folder=True, **options))
    result = [_keys(tmp_path / "a" / f"{name}.json") for name in "xy"]
    for at, known in enumerate((None, names)):
        whole = _create(source, tmp_path / f"w{at}", label_from_folder=True, classes_from=known)
        reshard(whole, tmp_path / f"r{at}" / "{split}-{0..}.tar", ReshardOptions(**options))
        assert [_keys(tmp_path / f"r{at}" / f"{name}.json") for name in "xy"] == result


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("cls == 'cta'", r"no class 'cta'; expected one of bee, cat, dog\. Did you mean 'cat'\?"),
        ("cls in ('cat', 'wolf')", "no class 'wolf'"),
        ("cls < 'dog'", "different types: cls is a number and 'dog' is text"),
        ("key == 1", "different types"),
    ],
)
def test_queries_of_labels_that_make_no_sense(query: str, message: str, source: Path, tmp_path: Path) -> None:
    """A class that there is not is an error that names near ones; classes have no order."""
    whole = _create(source, tmp_path / "a", label_from_folder=True)
    with pytest.raises(InvalidRequest, match=message):
        _reshard(whole, tmp_path / "b", where=query)
    with pytest.raises(InvalidRequest, match=message):
        shardtool.open(whole).where(query)


def test_numbers_outside_the_classes_have_no_name() -> None:
    """A number that is not a class number matches no class name."""
    table = pa.table({"cls": [0, 7, None]})
    assert match_rows(table, "cls != 7", {"cls": ("a", "b")}).tolist() == [0, 2]
    with pytest.raises(
        InvalidRequest, match="cls: contains numbers without a class; expected class numbers from 0 to 1"
    ):
        match_rows(table, "cls == 'a'", {"cls": ("a", "b")})


@pytest.mark.parametrize("name", ["../up", ".hidden", "a/b"])
def test_names_of_classes_name_no_place(name: str, tmp_path: Path) -> None:
    """A dataset of others may call its classes anything; a split, and so a file, is not called so."""
    table = pd.DataFrame({"key": ["a", "b"], "kind": [name, "x"]})
    whole = _create(table, tmp_path / "in", field={"cls": "kind"}, classes=("cls",))
    with pytest.raises(InvalidRequest, match="split"):
        reshard(whole, tmp_path / "o" / "{split}-{0..}.tar", ReshardOptions(workers=0, split_column="cls"))
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "in") in ([], ["o"])


# Manifests.


def _tables() -> Iterator[tuple[str, dict[str, list[Any]], list[Any]]]:
    yield "label", {"label": ["dog", "cat", "dog"]}, [1, 0, 1]
    yield "label", {"label": ["dog", "cat", "dog"], "cls": [9, 9, 8]}, [1, 0, 1]  # its own numbers are in the JSON
    yield "label", {"label": ["dog", "cat", "dog"], "cls": ["x", "y", "z"]}, ["x", "y", "z"]
    yield "cls", {"cls": ["dog", "cat", "dog"]}, ["dog", "cat", "dog"]
    yield "cls", {"cls": [30, 20, 30]}, [1, 0, 1]


@pytest.mark.parametrize(("column", "table", "expected"), [*_tables()])
def test_a_column_with_the_name_of_the_labels(
    column: str, table: dict[str, list[Any]], expected: list[Any], tmp_path: Path
) -> None:
    """Texts are kept as names. Numbers are those of the field, so queries never confuse classes."""
    manifest = pd.DataFrame({"key": ["a", "b", "c"], **table})
    options: dict[str, Any] = {"field": {"cls": column}, "classes": ("cls",)}
    made = _create(manifest, tmp_path / "o", **options)
    assert [*(_column(made) or {}).values()] == expected
    result = dict(members(*shards(tmp_path / "o")))
    assert [result[f"{key}.cls"] for key in "abc"] == [b"1", b"0", b"1"]
    assert verify(made, VerifyOptions(workers=0, source=manifest)).findings == ()
    if expected != ["x", "y", "z"]:
        first = "20" if column == "cls" and 1 in expected else "cat"
        assert len(shardtool.open(made).where(f"cls == '{first}'")) == 1


def test_the_labels_of_a_manifest_divide_and_choose_in_the_run_that_makes_them(tmp_path: Path) -> None:
    """`where` and `stratify` know the field by its name, which is not the column's."""
    table = pd.DataFrame({"key": range(8), "kind": ["cat", "dog"] * 4})
    options: dict[str, Any] = {"field": {"cls": "kind"}, "classes": ("cls",), "meta": "none"}
    made = _create(table, tmp_path / "a", where="cls == 'dog'", **options)
    assert shardtool.open(made).keys[:] == ["1", "3", "5", "7"]
    create(table, tmp_path / "{split}" / "o-{0..}.tar", CreateOptions(split="x=0.5,y=0.5", stratify="cls", **options))
    for name in "xy":
        assert sorted((_column(tmp_path / name / "o.json") or {}).values()) == [0, 0, 1, 1]


def test_numbers_of_a_column_are_a_column_of_the_field(tmp_path: Path) -> None:
    """A field of numbers without classes is a column under its own name, too."""
    made = _create(pd.DataFrame({"key": [1, 2], "n": [5, 6]}), tmp_path / "o", field={"cls": "n"}, meta="none")
    assert _column(made) == {"1": 5, "2": 6}
    assert len(shardtool.open(made).where("cls == 6")) == 1


def test_labels_that_a_function_may_change_are_no_column(source: Path, tmp_path: Path) -> None:
    """If a function may change labels, they are not a column, because the parent does not know them."""
    (source / "bee" / "0.py").write_bytes(b"{**sample, 'cls': b'2'}")
    made = _create(source, tmp_path / "o", label_from_folder=True, map="tests.mapped:evaluated", include=("*.py",))
    assert _column(made) is None
    assert dict(members(*shards(tmp_path / "o")))["bee/0.cls"] == b"2"


def test_a_repair_restores_the_label_column(source: Path, ending: str, tmp_path: Path) -> None:
    """A rebuilt sidecar contains the labels, identified by the checksums of payloads."""
    whole = _create(source, tmp_path / "a", ending, label_from_folder=True)
    columns, lost = _column(whole), whole.parent / "out-1.index"
    lost.unlink()
    report = verify(whole, VerifyOptions(workers=0, repair=True))
    assert report.findings == ()
    assert not any("may be lost" in item for item in report.repaired)
    assert _column(whole) == columns
    assert len(shardtool.open(whole).where("cls == 'cat'")) == 4


# Datasets from before, and of other tools: their labels are fields alone.


@pytest.fixture
def before(source: Path, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dataset as earlier versions made it: it has the labels and their classes, and no column of them."""
    with monkeypatch.context() as patch:
        patch.setattr(metadata_columns, "with_number_columns", lambda columns, _more: columns)
        made = _create(source, tmp_path / "old", ending, label_from_folder=True)
    assert _column(made) is None
    return made


def test_labels_from_before_are_read_if_asked_for(before: Path, ending: str, tmp_path: Path) -> None:
    """`columns_from` reads them, and what needs the column advises that."""
    with pytest.raises(InvalidRequest, match=r"`reshard\(columns_from=\('cls',\)\)` turns the field into a column"):
        _reshard(before, tmp_path / "x", ending, where="cls == 'cat'")
    options: dict[str, Any] = {"workers": 0, "split": "x=0.5,y=0.5", "stratify": "cls"}
    with pytest.raises(InvalidRequest, match=r"Turn the field into a column with columns_from=\('cls',\)"):
        reshard(before, tmp_path / "x-{split}-{0..}.tar", ReshardOptions(**options))
    made = _reshard(before, tmp_path / "a", ending, columns_from=("cls",), where="cls == 'cat'")
    assert _keys(made) == ["cat"] * 4
    assert {*(_column(made) or {}).values()} == {1}
    assert verify(made, VerifyOptions(workers=0, source=before)).findings == ()


@pytest.mark.parametrize("again", ["resume", "resume-overwrite"])
def test_a_resume_adds_the_column_and_keeps_the_shards(
    again: Any, before: Path, source: Path, ending: str, tmp_path: Path
) -> None:
    """Shards of an earlier version are kept, byte by byte; their sidecars get the column."""
    held = {path.name: path.read_bytes() for path in before.parent.iterdir() if path.name.endswith(ending)}
    made = create(source, tmp_path / "old" / f"out-{{0..}}.{ending}", CreateOptions(
        workers=0, max_count=5, label_from_folder=True, **existing(again)
    ))  # fmt: skip
    assert made.kept == made.shards == len(held)
    assert all((before.parent / name).read_bytes() == data for name, data in held.items())
    assert len(_column(before) or {}) == 12
    assert verify(before, VerifyOptions(workers=0, source=source)).findings == ()


def test_an_append_to_a_dataset_from_before_stays_without_the_column(before: Path, ending: str, tmp_path: Path) -> None:
    """Where only some samples had it, a query would take these for all; so it is the same for all, again and again."""
    more = write_tree(tmp_path / "more", {"cat/9.txt": b"9", "emu/0.txt": b"0"})
    for how in ("append", "append-resume"):
        _create(more, before.parent, ending, label_from_folder=True, **existing(how))
    assert verify(before, VerifyOptions(workers=0)).findings == ()
    with pytest.raises(InvalidRequest, match=r"(turns|Turn) the field into a column"):
        _reshard(before, tmp_path / "x", ending, where="cls == 'cat'")
    assert (
        len(shardtool.open(_reshard(before, tmp_path / "y", ending, columns_from=("cls",), where="cls == 'cat'"))) == 5
    )


def test_only_some_datasets_have_the_column(before: Path, ending: str, tmp_path: Path) -> None:
    """If only some datasets have labels, a query on them is refused, and a reshard reports the missing ones."""
    more = write_tree(tmp_path / "more", {"bee/9.txt": b"9", "cat/9.txt": b"9", "dog/9.txt": b"0"})
    new = _create(more, tmp_path / "new", ending, label_from_folder=True)
    with pytest.raises(InvalidRequest, match=r"(turns|Turn) the field into a column"):
        shardtool.open([before, new]).where("cls == 'cat'")
    made = reshard([before, new], tmp_path / "o" / f"out-{{0..}}.{ending}", ReshardOptions(workers=0))
    assert [note for note in made.notes if "column 'cls' dropped: 3 shards with this field lack the column" in note]
    both = _reshard([before, new], tmp_path / "p", ending, columns_from=("cls",), where="cls == 'cat'")
    assert len(shardtool.open(both)) == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("payloads", "expected"),
    [
        ((b"7", b"-12\n", b" 0 "), [7, -12, 0]),
        ((b"1.5", b"2", b"1e3"), [1.5, 2.0, 1000.0]),
        ((b"007", b"cat", b""), ["007", "cat", None]),
        ((b"7", b"cat", b"true"), ["7", "cat", "true"]),
        ((b'{"a": 1}', b'{"a": 2}', b" {}"), None),
        ((b"99999999999999999999", b"x", b"y"), ["99999999999999999999", "x", "y"]),
    ],
)
def test_plain_numbers_and_short_texts_are_columns(
    payloads: tuple[bytes, ...], expected: list[Any] | None, ending: str, tmp_path: Path
) -> None:
    """A field of other tools' shards that is one value is a column of its name; JSON objects are as ever."""
    files = {f"{at}.val": payload for at, payload in enumerate(payloads)} | {f"{at}.txt": b"x" for at in range(3)}
    plain = _create(write_tree(tmp_path / "in", files), tmp_path / "a", ending)
    for made in (
        _reshard(plain, tmp_path / "b", ending, columns_from=("val",)),
        _create(tmp_path / "in", tmp_path / "c", ending, columns_from=("val",)),
    ):
        result = _column(made, "val" if expected else "a")
        assert [*(result or {}).values()] == (expected or [1, 2, None])


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"x" * 1025, "1,025 bytes: not a JSON object, nor a number or text of at most 1,024"),
        (b"\xff\xd8", "text that is not valid UTF-8"),
        (b"a\0b", "control characters: not a JSON object, number or text"),
        (b'{"a": ', "not JSON"),
    ],
)
def test_fields_that_are_no_small_value(payload: bytes, message: str, tmp_path: Path) -> None:
    """Images and long texts are no columns."""
    source = write_tree(tmp_path / "in", {"a.val": payload, "b.val": b"7"})
    with pytest.raises(SampleFailed, match=rf"a\.val \(field 'val': {message}"):
        _create(source, tmp_path / "o", columns_from=("val",))
