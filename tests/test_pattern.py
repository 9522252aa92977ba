"""Shard patterns, and closed patterns, which readers and shells expand."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from braceexpand import braceexpand
from hypothesis import given
from hypothesis import strategies as st

from shardtool import CreateOptions, create
from shardtool.errors import InvalidRequest
from shardtool.pattern import check_writable, parse_pattern, sidecar_name
from tests.helpers import shards, typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path


class Expected(NamedTuple):
    """The expected result of parsing a pattern; the dataset file records `text`."""

    folder: str
    names: tuple[str, ...]
    capacity: int | None
    base: str
    text: str


_OPEN = Expected("", ("out-000000.tar", "out-000001.tar"), None, "out", "out-{000000..}.tar")
_CLOSED = Expected("", ("out-000000.tar", "out-000999.tar"), 1000, "out", "out-{000000..000999}.tar")

FORMS: list[tuple[str | list[str], Expected]] = [
    ("out-{000000..}.tar", _OPEN),
    ("out-<000000..>.tar", _OPEN),
    ("out-%06d.tar", _OPEN),
    ("out-{000000..000999}.tar", _CLOSED),
    ("out-<000000..000999>.tar", _CLOSED),
    ([f"out-{number:06}.tar" for number in range(1000)], _CLOSED),
    (["out-{000000..000499}.tar", "out-{000500..000999}.tar"], _CLOSED),
    (
        [f"d/out-{number}.tar" for number in range(8, 1008)],
        Expected("d", ("out-8.tar", "out-1007.tar"), 1000, "out", "out-{8..1007}.tar"),
    ),
    ("out-%d.tar", Expected("", ("out-0.tar", "out-1.tar"), None, "out", "out-{0..}.tar")),
    ("/a/b/train_{05..12}.tar", Expected("/a/b", ("train_05.tar", "train_12.tar"), 8, "train", "train_{05..12}.tar")),
    ("../s/{00..}.tar", Expected("../s", ("00.tar", "01.tar"), None, "dataset", "{00..}.tar")),
    ("/out-{0..}.tar", Expected("/", ("out-0.tar", "out-1.tar"), None, "out", "out-{0..}.tar")),
    ("out-{0..3}-v2.tar", Expected("", ("out-0-v2.tar", "out-3-v2.tar"), 4, "out--v2", "out-{0..3}-v2.tar")),
    ("d/one.tar", Expected("d", ("one.tar", "one.tar"), 1, "one", "one.tar")),
    (["b.tar", "a.tar"], Expected("", ("b.tar", "a.tar"), 2, "dataset", "b.tar,a.tar")),
    ("out-{b,a,c}.tar", Expected("", ("out-b.tar", "out-c.tar"), 3, "out", "out-b.tar,...,out-c.tar")),
]


@pytest.mark.parametrize(("output", "expected"), FORMS)
def test_forms_of_patterns(output: str | list[str], expected: Expected) -> None:
    """Each form has these names, dataset name and capacity."""
    pattern = parse_pattern(output)
    last = 1 if pattern.count is None else pattern.count - 1
    parsed = Expected(
        pattern.folder, (pattern.shard(0), pattern.shard(last)), pattern.count, pattern.base, pattern.text
    )
    assert parsed == expected
    assert (pattern.dataset_file, pattern.skipped_file) == (f"{expected.base}.json", f"{expected.base}.skipped")
    assert pattern.format == "tar"


@pytest.mark.parametrize(("output", "means"), [row for row in FORMS if ",..." not in row[1].text])
def test_a_recorded_pattern_means_the_same(output: str | list[str], means: Expected) -> None:
    """The recorded text of a range is a pattern with the same names."""
    again, pattern = parse_pattern(means.text.split(",")), parse_pattern(output)
    places = range(min(pattern.count or 20, 20))
    assert [again.shard(at) for at in places] == [pattern.shard(at) for at in places]
    assert again.count == pattern.count


def test_a_thousand_names_of_a_shell_are_the_range() -> None:
    """Names expanded by a shell are the range."""
    names = [f"out-{number:06}.tar" for number in range(1000)]
    pattern = parse_pattern(names)
    assert [pattern.shard(at) for at in range(1000)] == names
    assert pattern == parse_pattern("out-{000000..000999}.tar")


@given(st.integers(0, 10**7), st.integers(0, 3000), st.integers(1, 8))
def test_names_grow_beyond_their_width(first: int, number: int, width: int) -> None:
    """A number longer than the width is used in full, and its name is owned."""
    pattern = parse_pattern(f"o-{{{first:0{width}d}..}}.tar")
    name = pattern.shard(number)
    assert int(name[2:-4]) == first + number
    assert pattern.owns(name)
    assert pattern.owns(sidecar_name(name))
    assert name != pattern.shard(number + 1)


OWNED = {
    "d/out-{000..}.tar": (
        ["out-000.tar", "out-000.index", "out-999.tar", "out-1000.tar", "out-1000.index", "out.json", "out.skipped"],
        ["out-0.tar", "out-0000.tar", "out-00.index", "out-.tar", "out-abc.tar", "out-000", "out-000.json", "out.tar",
         "out-000.tar.index", "out-000.tar.bak", "xout-000.tar", "out-\u0660\u0660\u0660.tar",
         "out-000.txt", "other.json", ".out-000.tar.part", "out-000-x.tar", "out-2024-01.tar",
         "out--01.tar", "out-+01.tar", "out-0_1.tar"],
    ),
    "{000000..}.tar": (["000000.tar", "1234567.index", "dataset.json"], ["x-000000.tar", "2024.tar", "0.index"]),
    "a-<0..3>-b.tar": (["a-0-b.tar", "a-17-b.index", "a--b.json"], ["a-0.tar", "a-00-b.tar", "a-b.tar", "a-0-b.json"]),
    "one.tar": (["one.tar", "one.index", "one.json", "one.skipped"], ["one", "one.txt", "two.tar", "one-0.tar"]),
    "out-{b,a}.tar": (["out-a.tar", "out-b.index", "out.json"], ["out-c.tar", "out-.tar", "out-a"]),
}  # fmt: skip


@pytest.mark.parametrize("output", OWNED)
def test_a_pattern_owns_only_names_it_can_write(output: str) -> None:
    """A pattern owns only names that it can write, so nothing else is replaced."""
    pattern, (owned, foreign) = parse_pattern(output), OWNED[output]
    assert [name for name in owned if not pattern.owns(name)] == []
    assert [name for name in foreign if pattern.owns(name)] == []


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ([], "not given"),
        ("out", "no file extension"),
        ("out-{000..}", "no file extension"),
        ("out-{000..}.zip", r"'\.zip'"),
        ("out-{5..2}.tar", "before it starts"),
        ("{0..3}/out-{000..}.tar", "one range"),
        ("out-{0..3}-{0..3}.tar", "one range"),
        ("d-{0..3}/out.tar", "one range"),
        (["a/x-0.tar", "b/x-1.tar"], "2 folders"),
        (["x-0.tar", "x-1.tar", "x-0.tar"], "duplicate names: x-0.tar"),
        (["x-0.tar", "x-1.txt"], r"'\.txt'"),
        (["out-{000..}.tar", "x.tar"], "range"),
        ("out-{000..003.tar", "brace"),
        ("out-{split}.tar", "split"),
        ("", "no file extension"),
        ("d/", "no file extension"),
        (None, "the output: None; expected"),
        (["out-0.tar", 1], "the output: 1; expected"),
    ],
)
def test_invalid_patterns_are_refused(output: Any, message: str) -> None:
    """Invalid patterns are refused with the problem and the expected form."""
    with pytest.raises(InvalidRequest, match=message) as caught:
        parse_pattern(output)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("shard", "sidecar"),
    [("out-0.tar", "out-0.index"), ("a.b-0.tar", "a.b-0.index"), ("tar.tar", "tar.index"), ("v1.2.tar", "v1.2.index")],
)
def test_sidecars_are_named_after_their_shard(shard: str, sidecar: str) -> None:
    """A sidecar has the name of its shard with another extension."""
    assert sidecar_name(shard) == sidecar


def test_parsing_a_pattern_creates_no_files(tmp_path: os.PathLike[str]) -> None:
    """Parsing a pattern creates no folder and no file."""
    parse_pattern(os.path.join(tmp_path, "new", "out-{000..009}.tar"))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "pattern", ["x-{0..9" + "9" * 18 + "}.tar", "x-{" + "9" * 5000 + "..}.tar", "x-%0999999999d.tar"]
)
def test_huge_numbers_are_refused(pattern: str) -> None:
    """Numbers that are too long are refused before names are created."""
    with pytest.raises(InvalidRequest):
        parse_pattern(pattern)


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("o-[000..999].tar", "o-{000..999}.tar"),
        ("o-[0..].tfrecord", "o-{0..}.tfrecord"),
        ("[00-99].tar", "{00..99}.tar"),
    ],
)
def test_a_range_in_brackets_is_refused(name: str, right: str) -> None:
    """A range in brackets is refused with the right spelling."""
    with pytest.raises(InvalidRequest, match=re.escape(f"a range in brackets; expected braces: {right}")):
        check_writable(parse_pattern(f"folder/{name}"))
    check_writable(parse_pattern("folder/x[1].tar"))


@pytest.mark.parametrize(
    "text",
    ["out-{000000..}.tar", "a/b/out-{008..}.tar", "x%03d-y.tar", "o-{7..2000}.tfrecord", "/abs/{0..}.tar", "x-0.tar"],
)
@pytest.mark.parametrize("count", [1, 2, 3, 105])
def test_a_closed_pattern_expands_to_the_shards(text: str, count: int) -> None:
    """A shell expands a closed pattern to the names of the first shards, in order."""
    pattern = parse_pattern(text)
    if pattern.names is not None:
        count = 1
    folder = f"{pattern.folder}/" if pattern.folder else ""
    assert list(braceexpand(pattern.closed_pattern(count))) == [f"{folder}{pattern.shard(at)}" for at in range(count)]


def test_lists_have_no_closed_pattern() -> None:
    """Lists and numbers that get longer than their width have no closed pattern."""
    assert parse_pattern("x-{08..}.tar").closed_pattern(105) == ""
    assert parse_pattern(["a.tar", "b.tar"]).closed_pattern(2) == ""
    assert parse_pattern(["x-0.tar", "x-1.tar", "x-2.tar"]).closed_pattern(3) == "x-{0..2}.tar"


def test_the_summary_prints_the_webdataset_call(tmp_path: Path) -> None:
    """Summary and JSON contain the argument for webdataset, also after an append."""
    source = write_tree(tmp_path / "in", {f"{at}.txt": b"x" for at in range(5)})
    ran = typed("create", source, "out/x-{00..}.tar", "--max-count", "2", cwd=tmp_path)
    assert '  wds.WebDataset("out/x-{00..02}.tar", shardshuffle=False)\n' in ran.out
    more = write_tree(tmp_path / "more", {"new.txt": b"y"})
    ran = typed("create", more, "out/x-{00..}.tar", "--append", "--json", cwd=tmp_path)
    urls = json.loads(ran.out)["urls"]
    assert [tmp_path / name for name in braceexpand(urls)] == shards(tmp_path / "out")


def test_each_split_has_its_own_pattern(tmp_path: Path) -> None:
    """Each split has its own line and its own `urls` in the JSON."""
    source = write_tree(tmp_path / "in", {f"{at}.txt": b"x" for at in range(9)})
    ran = typed("create", source, "{split}-{0..}.tar", "--split", "train=0.8,val=0.2", "--max-count", "2", cwd=tmp_path)
    assert ran.out.count("wds.WebDataset(") == 2
    ran = typed("create", source, "{split}-{0..}.tar", "--split", "train=0.8,val=0.2", "--max-count", "2", "--resume",
                "--json", cwd=tmp_path)  # fmt: skip
    result = json.loads(ran.out)
    assert "urls" not in result
    paths = [tmp_path / name for split in result["splits"].values() for name in braceexpand(split["urls"])]
    assert sorted(paths) == shards(tmp_path)


@pytest.mark.parametrize("pattern", ["a#{0..}.tar", "a::b-{0..}.tar", "x-{0..}.tfrecord"])
def test_no_webdataset_call_for_unsupported_shards(pattern: str, tmp_path: Path) -> None:
    """No call is printed for shards that webdataset cannot read."""
    result = create(write_tree(tmp_path / "in", {"a.txt": b"x"}), f"{tmp_path}/{pattern}", CreateOptions(workers=0))
    assert (result.urls, "urls" in result.to_json()) == ("", False)


def test_query_in_a_pattern_is_not_shown() -> None:
    """An error about a wildcard names the wildcard, and does not show the query of a URL."""
    with pytest.raises(
        InvalidRequest, match=r"^https://h/x-\{000\.\.\}\.tar\?\.\.\.: a range and '\?'; expected one range"
    ):
        parse_pattern("https://u:secret@h/x-{000..}.tar?token=secret")
