"""Laws of labels and splits that folders name, of the numbers that classes have, and of the notes about them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool import (
    CreateOptions,
    InvalidRequest,
    OutputExists,
    ReshardOptions,
    VerifyOptions,
    create,
    reshard,
    verify,
)
from shardtool.dataset.class_names import read_classes
from shardtool.entries.classes import Classes, number_classes
from shardtool.names import quote_name
from tests.helpers import existing, members, read_tree, shards, typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path

LABELS = st.text("ab%é \udcff", min_size=1, max_size=3).map(lambda text: text.encode("utf-8", "surrogateescape"))


def _options(**options: Any) -> CreateOptions:
    return CreateOptions(**{"workers": 0, "max_count": 2, **options})


def _classes(path: Path) -> Any:
    return json.loads(path.read_bytes())["shardtool"]["classes"]


def _labels(folder: Path) -> dict[str, str]:
    return {name.removesuffix(".cls"): data.decode() for name, data in members(*shards(folder)) if name[-4:] == ".cls"}


def _tree(root: Path, *names: str) -> Path:
    return write_tree(root, {f"{name}.txt": name.encode() for name in names})


# Splits that folders name.


def test_folders_name_splits_and_classes(ending: str, tmp_path: Path) -> None:
    """The top folder is the split; a class has one number in all splits, though some lack it; each split is sound."""
    source = _tree(tmp_path / "in", "train/cat/0", "train/dog/0", "train/dog/1", "val/bee/0", "val/dog/2")
    told = create(source, f"{tmp_path}/o/{{split}}-{{0..}}.{ending}", _options(
        split_from_folder=True, label_from_folder=True
    ))  # fmt: skip
    assert {name: one.samples for name, one in told.splits.items()} == {"train": 3, "val": 2}
    assert not [note for note in told.notes if "as classes" in note]
    expected = {"train/cat/0": "1", "train/dog/0": "2", "train/dog/1": "2", "val/bee/0": "0", "val/dog/2": "2"}
    assert _labels(tmp_path / "o") == expected
    for split in ("train", "val"):
        file = tmp_path / "o" / f"{split}.json"
        assert _classes(file) == {"cls": ["bee", "cat", "dog"]}
        assert verify(file, VerifyOptions(workers=0, source=source)).findings == ()


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (
            ["train/0", "1"],
            {},
            r"split_from_folder: 1 sample not deep enough in folders: \./1\.\*; expected paths such as SPLIT/FILE",
        ),
        (
            ["train/0", "val/a/1"],
            {"label_from_folder": True},
            r"1 sample not deep enough in folders: train/0\.\*; expected paths such as SPLIT/CLASS",
        ),
        (["my split/0", "val/1"], {}, r"split_from_folder: invalid split names: 'my split'"),
        (["train/0"], {"split": "a=1"}, r"split_from_folder: used with split; expected only one of them"),
    ],
)
def test_folders_that_name_no_splits(names: list[str], options: Any, message: str, tmp_path: Path) -> None:
    """Samples outside the split folders and invalid split names are refused by name."""
    source = _tree(tmp_path / "in", *names)
    with pytest.raises(InvalidRequest, match=message):
        create(source, f"{tmp_path}/o/{{split}}-{{0..}}.tar", _options(split_from_folder=True, **options))


def test_split_from_folder_is_about_folders(tmp_path: Path) -> None:
    """A manifest has no folders; and OUTPUT must have a place for the split."""
    with pytest.raises(InvalidRequest, match="split_from_folder: the source is a manifest"):
        create(pd.DataFrame({"key": ["a"]}), f"{tmp_path}/{{split}}-{{0..}}.tar", _options(split_from_folder=True))
    with pytest.raises(InvalidRequest, match=r"a pattern without \{split\}"):
        create(_tree(tmp_path / "in", "train/0"), f"{tmp_path}/o-{{0..}}.tar", _options(split_from_folder=True))
    with pytest.raises(InvalidRequest, match=r"split_by='COLUMN' or split_by='folder'"):
        create(tmp_path / "in", f"{tmp_path}/{{split}}-{{0..}}.tar", _options())


@pytest.mark.parametrize(
    ("folders", "told"),
    [(["train", "val"], True), (["Train", "test", "extra"], True), (["train"], True), (["cat", "dog"], False),
     (["cat", "test"], False)],
)  # fmt: skip
def test_classes_named_like_splits_are_noted(folders: list[str], told: Any, tmp_path: Path) -> None:
    """If class folders have names of splits, a note names the option that treats them as splits."""
    source = _tree(tmp_path / "in", *(f"{folder}/cat/{at}" for folder in folders for at in "01"))
    notes = create(source, f"{tmp_path}/o-{{0..}}.tar", _options(label_from_folder=True), dry_run=True).notes
    assert (
        any("if these folders are splits that contain class folders, add split_from_folder" in note for note in notes)
        is told
    )


# The numbers of classes.


def test_classes_keep_the_numbers_of_another_run(ending: str, tmp_path: Path) -> None:
    """With `--classes-from`, a class has the number that another dataset gives it, also where others are missing."""
    first, second = _tree(tmp_path / "a", "bee/0", "cat/0", "dog/0"), _tree(tmp_path / "b", "cat/1", "dog/1", "dog/2")
    create(first, f"{tmp_path}/x/x-{{0..}}.{ending}", _options(label_from_folder=True))
    options = {"classes_from": tmp_path / "x/x.json"}
    create(second, f"{tmp_path}/y/y-{{0..}}.{ending}", _options(label_from_folder=True, **options))
    assert _labels(tmp_path / "y") == {"cat/1": "1", "dog/1": "2", "dog/2": "2"}
    assert _classes(tmp_path / "y/y.json") == {"cls": ["bee", "cat", "dog"]}
    assert str(tmp_path) not in (tmp_path / "y/y.json").read_text(encoding="ascii")
    assert verify(tmp_path / "y/y.json", VerifyOptions(workers=0, source=second)).findings == ()
    table = pd.DataFrame({"key": ["p", "q"], "label": ["dog", "bee"]})
    create(table, f"{tmp_path}/z/z-{{0..}}.{ending}", _options(field=("cls=label",), classes=("cls",), **options))
    assert _labels(tmp_path / "z") == {"p": "2", "q": "0"}
    assert verify(tmp_path / "z/z.json", VerifyOptions(workers=0, source=table)).findings == ()
    remade = ReshardOptions(workers=0, field=("cls=label",), classes=("cls",), classes_from=["dog", "bee"])
    reshard(tmp_path / "z/z.json", f"{tmp_path}/r/r-{{0..}}.{ending}", remade)
    assert _labels(tmp_path / "r") == {"p": "0", "q": "1"}
    assert verify(tmp_path / "r/r.json", VerifyOptions(workers=0, source=tmp_path / "z/z.json")).findings == ()


def test_a_name_of_a_class_is_text(tmp_path: Path) -> None:
    """A lone surrogate is refused, because no reader could read the dataset file."""
    source = _tree(tmp_path / "in", "cat/0", "dog/0")
    with pytest.raises(InvalidRequest, match="an invalid name or no names"):
        create(source, f"{tmp_path}/o/o-{{0..}}.tar", _options(label_from_folder=True, classes_from=["cat", "\ud800"]))
    assert not (tmp_path / "o").exists()


def test_a_repair_keeps_the_numbers(tmp_path: Path) -> None:
    """A rebuilt shard has the same bytes, also with class numbers of another run."""
    source = _tree(tmp_path / "in", "cat/0", "dog/0", "dog/1")
    options = _options(label_from_folder=True, classes_from=["ape", "cat", "bee", "dog"])
    create(source, f"{tmp_path}/o/o-{{0..}}.tar", options)
    before = read_tree(tmp_path / "o")
    (tmp_path / "o/o-0.tar").unlink()
    assert verify(tmp_path / "o", VerifyOptions(workers=0, source=source, repair=True)).findings == ()
    assert read_tree(tmp_path / "o") == before


@pytest.mark.parametrize("own", [False, True], ids=["unasked", "own dataset file"])
@pytest.mark.parametrize("added", [("dog/1",), ("ape/0", "dog/1"), ("zoo/0", "ape/0", "cow/0")])
def test_an_append_never_changes_a_number(ending: str, own: bool, added: tuple[str, ...], tmp_path: Path) -> None:  # noqa: FBT001
    """Labels keep their numbers, new labels get the next numbers in the order of their names, with a note."""
    source, names = _tree(tmp_path / "in", "bee/0", "dog/0"), ["bee", "dog"]
    output = f"{tmp_path}/o/o-{{0..}}.{ending}"
    create(source, output, _options(label_from_folder=True))
    _tree(source, *added)
    options: dict[str, Any] = {"label_from_folder": True, "on_duplicate": "first", "append": True}
    options |= {"classes_from": tmp_path / "o/o.json"} if own else {}
    assert sum(item.samples for item in create(source, output, _options(**options), dry_run=True).planned) == len(added)
    told = create(source, output, _options(**options))
    names += sorted({name.partition("/")[0] for name in added} - {*names})
    assert _classes(tmp_path / "o/o.json") == {"cls": names}
    labels = {name: str(names.index(name.partition("/")[0])) for name in ("bee/0", "dog/0", *added)}
    assert _labels(tmp_path / "o") == labels
    new = ", ".join(f"{name!r} is number {number}" for number, name in [*enumerate(names)][2:])
    assert [note for note in told.notes if "label" in note] == ([
        f"{len(names) - 2} label{'s' * (len(names) > 3)} of cls not in the dataset: {new}"
    ] if new else [])  # fmt: skip
    assert verify(tmp_path / "o", VerifyOptions(workers=0, source=source)).findings == ()
    before = read_tree(tmp_path / "o")
    create(source, output, _options(**{**options, "append": True, "resume": True}))
    assert read_tree(tmp_path / "o") == before


@pytest.mark.parametrize("by", ["table", "shares", "folders"])
def test_an_append_to_splits_and_of_several_labels_keeps_numbers(by: str, tmp_path: Path) -> None:
    """Each of several labels keeps its numbers, and a class has one number in all splits, though one lacks it."""
    output = f"{tmp_path}/o/{{split}}-{{0..}}.tar"
    options: dict[str, Any] = {"field": ("cls=a", "top=b"), "classes": ("cls", "top")}
    rows = [
        ("k0", "dog", "x", "train"),
        ("k1", "dog", "y", "val"),
        ("k2", "dog", "x", "train"),
        ("k3", "e", "x", "val"),
    ]
    more = [
        ("n0", "ant", "x", "train"),
        ("n1", "cat", "w", "val"),
        ("n2", "dog", "v", "train"),
        ("n3", "e", "x", "val"),
    ]
    first, second = (pd.DataFrame(item, columns=["key", "a", "b", "where"]) for item in (rows, more))
    expected = {"cls": ["dog", "e", "ant", "cat"], "top": ["x", "y", "v", "w"]}
    if by == "folders":
        first, second = (
            _tree(tmp_path / str(len(item)), *(f"{r[3]}/{r[1]}/{r[0]}" for r in item)) for item in (rows, more[:3])
        )
        options, expected = {"label_from_folder": True, "split_from_folder": True}, {"cls": ["dog", "e", "ant", "cat"]}
    elif by == "table":
        options |= {"split_column": "where", "meta": "none"}
    else:
        options |= {"split": "train=0.5,val=0.5", "meta": "none"}
    create(first, output, _options(**options))
    before = _labels(tmp_path / "o")
    create(second, output, _options(**options, append=True))
    for split in ("train", "val"):
        assert _classes(tmp_path / "o" / f"{split}.json") == expected
    labels = _labels(tmp_path / "o")
    assert before.items() <= labels.items()
    assert {labels[key] for key in labels if key.endswith("n0")} == {"2"}


def test_a_resumed_run_keeps_the_numbers_of_its_dataset_file(tmp_path: Path) -> None:
    """A new label that would change numbers is refused, and the suggested command works."""
    source = _tree(tmp_path / "in", "bee/0", "dog/0")
    output, options = f"{tmp_path}/o-{{0..}}.tar", {"label_from_folder": True, "resume": True}
    create(source, output, _options(**options))
    _tree(source, "cat/0")
    with pytest.raises(OutputExists, match="class 1 of cls would be 'cat'") as refused:
        create(source, output, _options(**options))
    create(source, output, _options(**options, classes_from=refused.value.expected.partition("=")[2].strip("'")))
    assert _labels(tmp_path) == {"bee/0": "0", "cat/0": "2", "dog/0": "1"}


def test_a_list_of_ones_own_stays_the_list(tmp_path: Path) -> None:
    """Labels that are not in a list that was given are refused in an append, too; so are other numbers."""
    output, options = f"{tmp_path}/o-{{0..}}.tar", {"label_from_folder": True, "append": True}
    create(_tree(tmp_path / "a", "bee/0", "dog/0"), output, _options(label_from_folder=True))
    more = _tree(tmp_path / "b", "ape/1")
    with pytest.raises(InvalidRequest, match="1 label of 'cls' not in the list: 'ape'"):
        create(more, output, _options(**options, classes_from=["bee", "dog"]))
    with pytest.raises(InvalidRequest, match="set classes_from to its dataset file"):
        create(more, output, _options(**options, classes_from=["ape", "bee"]))


@pytest.mark.parametrize("text", ['["cat", "50%"]', '{"cls": ["cat", "50%"]}', "cat\n50%\n", "\ufeffcat\r\n50%\r\n"])
def test_files_that_name_classes(text: str, tmp_path: Path) -> None:
    """A JSON list, lists by field, and text with a name a line, as any editor writes it, all name the same classes."""
    (tmp_path / "c.txt").write_text(text, encoding="utf-8", newline="")
    known = read_classes(tmp_path / "c.txt")
    assert known is not None
    assert number_classes([b"50%"], "cls", known) == ({b"50%": 1}, ["cat", "50%25"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cat\ncat\n", "contains 'cat' twice"), ("", "an invalid name or no names"),
        ("[1, 2]", "an invalid name or no names"), ('{"cls": 5}', "does not contain a list of names"),
        ("[" * 10_000, "c.json"), ("[", "c.json"), ("a\n\nb", "an invalid name or no names"),
        ('{"a": ["x"], "b": ["y"]}', "no classes of 'cls' in c.json; expected a field with classes: a, b"),
        ('["bee"]', r"2 labels of 'cls' not in c.json: 'cat', 'dog'; expected one of its 1 name: 'bee'"),
        (None, "c.json: no such file"),
    ],
)  # fmt: skip
def test_files_that_do_not_name_the_classes(text: str | None, message: str, tmp_path: Path) -> None:
    """A list that is none, or that lacks a class, is refused by name before anything is written."""
    if text is not None:
        (tmp_path / "c.json").write_text(text, encoding="utf-8")
    source = _tree(tmp_path / "in", "cat/0", "dog/0")
    with pytest.raises(InvalidRequest, match=message):
        create(
            source, f"{tmp_path}/o/o-{{0..}}.tar", _options(label_from_folder=True, classes_from=tmp_path / "c.json")
        )
    assert not (tmp_path / "o").exists()


def test_classes_from_needs_labels(tmp_path: Path) -> None:
    """The error names the required option."""
    with pytest.raises(InvalidRequest, match="expected label_from_folder, classes or field, too"):
        _options(classes_from=["a"])
    with pytest.raises(InvalidRequest, match="no field is converted to class numbers; expected classes or field, too"):
        ReshardOptions(classes_from=["a"])
    ran = typed("create", tmp_path, "o-{0..}.tar", "--classes-from", "x.json")
    assert (ran.code, "--classes-from: no field is converted to class numbers" in ran.err) == (2, True)


@given(st.sets(LABELS, min_size=1), st.lists(LABELS, unique=True))
def test_numbers_are_one_to_one(found: set[bytes], listed: list[bytes]) -> None:
    """Numbers are positions in the list of names; a longer list keeps the numbers, and adds others."""
    for known in (None, Classes("l", {"cls": [quote_name(name) for name in listed]}, allows_new=True)):
        numbers, names = number_classes(found, "cls", known)
        assert {name: names[at] for name, at in numbers.items()} == {name: quote_name(name) for name in found}
        assert len(set(names)) == len(names)
        if known is None:
            assert [name for name, _ in sorted(numbers.items(), key=lambda one: one[1])] == sorted(found)
        else:
            assert names[: len(listed)] == [quote_name(name) for name in listed]


# Notes.


@pytest.mark.parametrize(
    ("labels", "options", "told"),
    [("aabb", {}, True), ("abab", {}, False), ("aabb", {"shuffle": True}, False), ("aaaa", {}, False),
     ("abcd", {}, False)],
)  # fmt: skip
def test_shards_sorted_by_class(labels: str, options: Any, told: Any, tmp_path: Path) -> None:
    """If unshuffled samples are sorted by class, a note names the option that mixes them."""
    table = pd.DataFrame({"key": range(4), "label": [*labels]})
    changes = _options(field=("cls=label",), classes=("cls",), **options)
    notes = create(table, f"{tmp_path}/o-{{0..}}.tar", changes, dry_run=True).notes
    assert any("use shuffle=True to mix them" in note for note in notes) is told


@pytest.mark.parametrize(
    ("field", "values", "classes", "ending", "told"),
    [("cls", ["dog", "3"], (), "tar", True), ("a.id", ["x", "y"], (), "tar", True),
     ("cls", ["dog", "x"], ("cls",), "tar", False),
     ("cls", ["1", " 2"], (), "tar", False), ("cls", [1, 2], (), "tar", False), ("txt", ["dog", "x"], (), "tar", False),
     ("cls", ["dog", "x"], (), "tfrecord", False)],
)  # fmt: skip
def test_text_where_a_reader_wants_numbers(
    field: str, values: list[Any], classes: Any, ending: str, told: Any, tmp_path: Path
) -> None:
    """Text in a field that webdataset decodes as a whole number is told of, with `--classes`, by both verbs."""
    table = pd.DataFrame({"key": ["a", "b"], "label": values})
    options = _options(field=(f"{field}=label",), classes=classes, overwrite=True)
    told_of = create(table, f"{tmp_path}/o-{{0..}}.{ending}", options)
    assert any(f"(classes=('{field}',) replaces text by numbers)" in note for note in told_of.notes) is told
    again = ReshardOptions(workers=0, field=(f"{field}=label",), classes=classes)
    told_of = reshard(tmp_path / "o.json", f"{tmp_path}/r/o-{{0..}}.{ending}", again)
    assert any(f"(classes=('{field}',) replaces text by numbers)" in note for note in told_of.notes) is told


def test_an_append_with_other_fields_is_noted(ending: str, tmp_path: Path) -> None:
    """An append that adds or lacks fields or columns is noted; one with the same fields is not."""
    pattern = f"{tmp_path}/o-{{0..}}.{ending}"

    def append(**columns: list[Any]) -> list[str]:
        values = tuple(f"{name}={name}" for name in columns if name in ("txt", "cap"))
        options = _options(field=values, meta=",".join(c for c in columns if c in ("score", "more")) or "none")
        exists = "append" if (tmp_path / "o.json").exists() else "error"
        told = create(pd.DataFrame(columns), pattern, CreateOptions(**{
            **{name: getattr(options, name) for name in ("field", "meta", "workers", "max_count")}, **existing(exists)
        }))  # fmt: skip
        return [note for note in told.notes if "dataset" in note and "Hugging" not in note]

    append(key=["a", "b"], txt=["1", "2"], score=[1, 2])
    assert append(key=["c"], txt=["1"], score=[3]) == []
    assert append(key=["d"], txt=["1"], cap=["x"], score=[4], more=[5]) == [
        "fields that the 3 samples of the dataset lack: cap",
        (
            "columns that the sidecars of the dataset lack: more; "
            "to read all sidecars as one table, merge the schemas (DuckDB: union_by_name)"
        ),
    ]
    assert append(key=["e"], cap=["x"], score=[4]) == [
        "fields that all samples of the dataset have, but some new samples lack: txt"
    ]
