"""Closed patterns, which readers and shells expand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from braceexpand import braceexpand

from shardtool import CreateOptions, create
from shardtool.pattern import parse_pattern
from tests.helpers import shards, typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path


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
