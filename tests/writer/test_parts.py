"""Several writers under one pattern, side by side."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING

import pytest

from shardtool import InvalidRequest, ShardWriter, verify
from shardtool.pattern import parse_pattern
from shardtool.writer.parts import PartFiles, find_parts, part_pattern
from tests.helpers import read_tree

if TYPE_CHECKING:
    from pathlib import Path


def _write_part(pattern: Path, part: int | str, parts: int | None, samples: int) -> None:
    with ShardWriter(pattern, part=part, parts=parts, max_count=2) as writer:
        for n in range(samples):
            writer.write({"__key__": f"{part}/{n}", "jpg": b"x"})


@pytest.mark.parametrize("ending", ["tar", "tfrecord"])
def test_parts_do_not_clash(tmp_path: Path, ending: str) -> None:
    """Writers of parts run at once in one folder, each makes a whole dataset, and what there is of each is found."""
    pattern = tmp_path / f"out-{{000000..}}.{ending}"
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_write_part, args=(pattern, part, 11, part % 3 * 2)) for part in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    _write_part(pattern, "ray_7", None, 3)
    killed = ShardWriter(pattern, part=10, parts=11, max_count=1)
    for key in "ab":
        killed.write({"__key__": key, "jpg": b""})
    killed.abandon()
    found = find_parts(parse_pattern(pattern), [path.name for path in tmp_path.iterdir()])
    names = {number: f"out-part{number:02}of11" for number in (0, 1, 2, 10)}

    def shards(stem: str, count: int) -> list[str]:
        return [f"{stem}-{number:06}.{ending}" for number in range(count)]

    assert [*found.values()] == [
        PartFiles("part00of11", 0, 11, [], "", empty=True),
        PartFiles("part01of11", 1, 11, shards(names[1], 1), f"{names[1]}.json"),
        PartFiles("part02of11", 2, 11, shards(names[2], 2), f"{names[2]}.json"),
        PartFiles("part10of11", 10, 11, shards(names[10], 1), ""),
        PartFiles("part_ray_7", None, None, shards("out-part_ray_7", 2), "out-part_ray_7.json"),
    ]
    assert [part.ended for part in found.values()] == [True, True, True, False, True]
    for part in found.values():
        assert not part.dataset_file or verify(tmp_path / part.dataset_file).findings == ()


def test_a_part_is_resumed(tmp_path: Path) -> None:
    """A part that was killed goes on as any writer does; one that ended without a sample may be written anew."""
    pattern = tmp_path / "out-{000000..}.tar"
    _write_part(pattern, 0, 2, 0)
    assert [*read_tree(tmp_path)] == ["out-part0of2.empty"]
    writer = ShardWriter(pattern, part=0, parts=2, max_count=1)
    for key in "abc":
        writer.write({"__key__": key, "jpg": b""})
    writer.abandon()
    with ShardWriter(pattern, part=0, parts=2, max_count=1, resume=True) as writer:
        assert writer.last_key == "b"
        writer.write({"__key__": "c", "jpg": b""})
    assert verify(tmp_path / "out-part0of2.json").samples == 3


def test_no_names_for_parts(tmp_path: Path) -> None:
    """Parts take an open range, since nobody knows how many shards they make; other datasets' files are no parts."""
    with pytest.raises(InvalidRequest, match="open range"):
        ShardWriter(tmp_path / "out-{000..009}.tar", part=0, parts=2)
    pattern = parse_pattern("out-{000000..}.tar")
    assert part_pattern(pattern, 1, 2).text == "out-part1of2-{000000..}.tar"
    assert (
        find_parts(pattern, ["out-000000.tar", "out-party-000000.tar", "out-part1of2-x.tar", "out-part1of2.txt"]) == {}
    )
