"""Existing files in output folders, and invalid requests."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import pyarrow.parquet as pq
import pytest

from shardtool import CreateOptions, InvalidRequest, OutputExists, SampleFailed, create
from tests.helpers import existing, identity, members, read_tree, shards, tool, typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Six samples in two classes."""
    names = [f"{folder}/{number}.txt" for folder in ("cat", "dog") for number in range(3)]
    return write_tree(tmp_path / "s", {name: name.encode() for name in names})


def options(**values: Any) -> CreateOptions:
    """Return options for one worker."""
    return CreateOptions(workers=0, **values)


@pytest.mark.parametrize("if_exists", ["error", "resume", "overwrite"])
def test_a_foreign_file_is_never_replaced(source: Path, tmp_path: Path, if_exists: str) -> None:
    """A file with the dataset file's name that is not a dataset file is kept, and the run is refused."""
    for text in ('{"mine": 1}', "[]", "no JSON", "[" * 100_000):
        (tmp_path / "out.json").write_text(text)
        with pytest.raises(OutputExists, match=r"out\.json"):
            create(source, f"{tmp_path}/out-{{0..}}.tar", options(**existing(if_exists)))
        assert (tmp_path / "out.json").read_text() == text
        assert shards(tmp_path) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x-{0..}.tar", "x-{000..}.tar"),
        ("x-{0..}.tar", "x-{0..}.tfrecord"),
        ("x-{0..}.tfrecord", "x-{0..}.tar"),
        ("x-{0..}.tar", "x_{0..}.tar"),
        (["a.tar", "b.tar"], ["c.tar", "d.tar"]),
    ],
)
def test_shards_are_never_orphaned(source: Path, tmp_path: Path, old: Any, new: Any) -> None:
    """A pattern that would leave shards of an earlier dataset behind is refused."""

    def placed(names: Any) -> Any:
        return f"{tmp_path}/{names}" if isinstance(names, str) else [f"{tmp_path}/{name}" for name in names]

    create(source, placed(old), options())
    before = identity(tmp_path)
    for if_exists in ("resume", "overwrite"):
        with pytest.raises(OutputExists, match=r"\.json"):
            create(source, placed(new), options(**existing(if_exists)))
        assert identity(tmp_path) == before


@pytest.mark.parametrize("name", ["out-1.tar", "out-1.index", "out.json", "out.skipped"])
def test_a_folder_in_the_way_is_seen_before_anything_is_written(source: Path, tmp_path: Path, name: str) -> None:
    """A folder with the name of an output file is refused, and an old dataset stays complete."""
    pattern = f"{tmp_path}/out-{{0..}}.tar"
    create(source, pattern, options(max_count=6))
    before = read_tree(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).mkdir()
    with pytest.raises(OutputExists, match=name):
        create(source, pattern, options(max_count=2, overwrite=True))
    assert {**before, **read_tree(tmp_path)} == before


def test_a_folder_under_a_temporary_name_is_an_error(source: Path, tmp_path: Path) -> None:
    """A folder with the name of a temporary file is reported."""
    (tmp_path / ".out-0.index.part" / "kept").mkdir(parents=True)
    with pytest.raises(OutputExists, match=r"out-0\.index\.part: a folder"):
        create(source, f"{tmp_path}/out-{{0..}}.tar", options())


@pytest.mark.parametrize(
    "values",
    [
        {"overwrite": "Overwrite"},
        {"on_error": "Stop"},
        {"symlinks": "Inside"},
        {"oversize": "Alone"},
        {"dots": "both"},
        {"start_method": "thread"},
        {"include": 5},
        {"exclude": b"*.jpg"},
    ],
)
def test_invalid_option_values_are_refused(values: dict[str, Any]) -> None:
    """An invalid value of an option is refused."""
    with pytest.raises(InvalidRequest, match=f"^{next(iter(values))}: "):
        CreateOptions(**values)


@pytest.mark.parametrize(
    "pattern",
    ["out-{0..1}{a,b}.tar", "{a,b}/out-{0..1}.tar", "out-*.tar", "out-%s.tar", ".tar", "q" * 245 + "-{0..1}.tar"],
)
def test_misread_patterns_are_refused(source: Path, tmp_path: Path, pattern: str) -> None:
    """Pattern syntax of other tools and names too long for a file system are refused early."""
    with pytest.raises(InvalidRequest):
        create(source, f"{tmp_path}/{pattern}", options())
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_path_objects_are_accepted(source: Path, tmp_path: Path) -> None:
    """OUTPUT may be a path object, or several; a folder may contain a percent sign."""
    assert create(source, tmp_path / "a%d" / "out-{0..1}.tar", options()).shards == 2
    assert create(source, [tmp_path / "b-0.tar", tmp_path / "b-1.tar"], options()).shards == 2


def test_class_numbers_follow_the_folders_names(ending: str, tmp_path: Path) -> None:
    """Classes are numbered as torchvision's ImageFolder does: by the names, not by the keys with their slash."""
    names = ["cat", "cat 3", "cat-2", "dog"]
    source = write_tree(tmp_path / "s", {f"{name}/0.txt": b"x" for name in reversed(names)})
    create(source, f"{tmp_path}/out-{{0..}}.{ending}", options(label_from_folder=True))
    assert json.loads((tmp_path / "out.json").read_bytes())["shardtool"]["classes"] == {"cls": names}
    labels = {name.split("/")[0]: data for name, data in members(*shards(tmp_path)) if name.endswith(".cls")}
    assert labels == {name: b"%d" % number for number, name in enumerate(names)}


def test_class_numbers_survive_a_class_that_cannot_be_read(tmp_path: Path) -> None:
    """A class whose samples are all skipped keeps its number."""
    source = write_tree(tmp_path / "s", {"a/0.txt": b"x", "c/0.txt": b"x"})
    (source / "b").mkdir()
    os.mkfifo(source / "b" / "0.txt")
    create(source, f"{tmp_path}/out-{{0..}}.tar", options(label_from_folder=True, on_error="skip"))
    assert dict(members(*shards(tmp_path)))["c/0.cls"] == b"2"


def test_a_dataset_without_samples_is_an_error(source: Path, tmp_path: Path) -> None:
    """If no sample can be packed, no dataset file is written, for any `--on-error`."""
    for path in source.rglob("*.txt"):
        path.unlink()
        os.mkfifo(path)
    with pytest.raises((SampleFailed, InvalidRequest)):
        create(source, f"{tmp_path}/out-{{0..}}.tar", options(on_error="skip"))
    assert not (tmp_path / "out.json").exists()


def test_fields_of_webdatasets_own_are_renamed(tmp_path: Path) -> None:
    """A field with a reserved name is refused, or renamed with `--portable`."""
    source = write_tree(tmp_path / "s", {"a.__key__": b"k", "a.txt": b"t"})
    with pytest.raises(InvalidRequest, match="__key__"):
        create(source, f"{tmp_path}/plain-{{0..}}.tar", options())
    create(source, f"{tmp_path}/out-{{0..}}.tar", options(portable=True))
    assert members(tmp_path / "out-0.tar") == [("a.txt", b"t"), ("a.x__key__", b"k")]


def test_source_paths_tell_any_name(tmp_path: Path) -> None:
    """The bytes of every source name can be restored from the sidecar's `source_paths`; a label has no path."""
    names = [b"c/a\xff.txt", b"c/a%FF.txt", b"c/b.txt", "c/\u00e9 \t.txt".encode()]
    source = write_tree(tmp_path / "s", dict.fromkeys(names, b"x"))
    create(source, f"{tmp_path}/out-{{0..}}.tar", options(portable=True, label_from_folder=True))
    rows = pq.read_table(tmp_path / "out-0.index").column("source_paths").to_pylist()
    assert sorted(unquote_to_bytes(path) for row in rows for path in row if path) == sorted(names)
    assert [row[0] for row in rows] == [""] * 4  # cls sorts before txt


def test_notes_cannot_steer_a_terminal(tmp_path: Path) -> None:
    """Control characters in names are escaped in notes and errors."""
    source = write_tree(tmp_path / "s", {b"k\x1b]0;pwn\x07.bin": b"x", b"a b.bin": b"x"})
    for words, code in ((["--on-error", "skip"], 0), (["--overwrite"], 2)):
        ran = typed("create", source, f"{tmp_path}/out-{{0..}}.tar", "--workers", "0", *words)
        assert ran.code == code
        assert "k\\x1b]0;pwn\\x07" in ran.err
        assert "\x1b" not in ran.err


def test_a_shard_that_left_samples_out_is_kept(ending: str, source: Path, tmp_path: Path) -> None:
    """`--resume` keeps a shard without the samples that failed, as long as they still fail in the same way."""
    resuming = options(on_error="skip", resume=True, max_count=3)
    big = source / "cat" / "1.txt"
    big.chmod(0)
    if os.access(big, os.R_OK):  # root may read anything: let the file be a fifo from the start instead
        big.unlink()
        os.mkfifo(big)
    create(source, f"{tmp_path}/out-{{0..}}.{ending}", resuming)
    before = identity(tmp_path)
    result = create(source, f"{tmp_path}/out-{{0..}}.{ending}", resuming)
    assert (result.kept, result.skipped) == (2, 1)
    assert identity(tmp_path)[f"out-0.{ending}"] == before[f"out-0.{ending}"]
    assert identity(tmp_path)["out.json"] == before["out.json"]


def test_a_dataset_is_its_own_in_any_locale(source: Path, tmp_path: Path) -> None:
    """A dataset whose name is not ASCII is resumed with a locale that is not UTF-8."""
    output = f"{tmp_path}/\u00fc-{{0..}}.tar"
    assert typed("create", source, output, "--workers", "0").code == 0
    ran = tool(
        "create", source, output, "--resume", "--workers", "0",
        LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0",
    )  # fmt: skip
    assert ran.code == 0, ran.err


@pytest.mark.slow
def test_names_are_judged_alike_in_any_locale(tmp_path: Path) -> None:
    """A dataset with non-ASCII names is read, checked and indexed from its parent folder with any locale."""
    write_tree(tmp_path / "in", {f"{at}.txt": b"x" for at in range(3)})
    file, above = tmp_path / "ds" / "\u00e4" / "o-\u00fc.json", tmp_path / "ds" / "o-\u00fc.json"
    assert tool("create", tmp_path / "in", f"{file.parent}/o-\u00fc-{{0..}}.tar", "--workers", "0").code == 0
    index = ("index", f"{file.parent}/o-\u00fc-*.tar", "--output", above.parent)
    assert tool(*index).code == 0
    expected = above.read_bytes()
    above.unlink()
    for words in (index, ("verify", file), ("verify", above), ("inspect", file), ("index", file, "--checksum"), index):
        ran = tool(*words, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
        assert ran.code == 0, ran.err
    assert above.read_bytes() == expected


def test_a_damaged_dataset_file_still_guards_its_shards(source: Path, tmp_path: Path) -> None:
    """A pattern that would orphan shards is refused, even if the dataset file that lists them is damaged."""
    create(source, f"{tmp_path}/x-{{0..}}.tar", options())
    text = (tmp_path / "x.json").read_text()
    (tmp_path / "x.json").write_text(text.replace('"shardlist": [', '"shardlist": '))
    with pytest.raises(OutputExists, match=r"x-0\.tar"):
        create(source, f"{tmp_path}/x_{{0..}}.tar", options(overwrite=True))


def test_names_outside_the_encoding_of_stdout(tmp_path: Path) -> None:
    """Every verb escapes names that the encoding of stdout cannot express."""
    write_tree(tmp_path / "in", {"\u03b1.txt": b"x"})
    ran = tool("create", tmp_path / "in", tmp_path / "o-{0..}.tar", "--dry-run", PYTHONIOENCODING="latin-1")
    assert (ran.code, "\\u03b1" in ran.out) == (0, True), ran.err
