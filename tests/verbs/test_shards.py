"""How many shards there are, and which sample goes into which: `--shards`, ranges, and `--place hash`."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import pytest

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
from tests.helpers import existing, flip, identity, members, read_tree, shards, sidecar, typed, write_tree
from tests.stored import age, sound

if TYPE_CHECKING:
    from pathlib import Path

STEM = "out-{000..}"
HASH = CreateOptions(workers=0, place="hash", max_size=20_000)
_COUNT = 60


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Give 60 samples of two fields."""
    files = {f"{number:03}.txt": b"caption" * 100 for number in range(0, 2 * _COUNT, 2)}
    return write_tree(tmp_path / "in", {**files, **{f"{name[:3]}.cls": b"1" for name in files}})


def _again(source: Path, output: Path | str, options: CreateOptions, **changes: Any) -> int:
    """Run `create --resume`; return how many shards it kept."""
    return create(source, str(output), replace(options, resume=True, **changes)).kept


# Numbers of shards


def test_more_names_than_samples(source: Path, tmp_path: Path, ending: str) -> None:
    """A range of a thousand names with few samples gives as many shards as the default bound requires, with a note."""
    output = tmp_path / "o" / f"out-<000..999>.{ending}"
    ran = typed("create", source, output, "--workers", "0")
    assert ran.code == 0
    message = (
        "1 shard of at most 1 GB; 1,000 shards need at least 1,000 samples; there are 60 (--shards 60 is the maximum)"
    )
    assert message in ran.err
    assert [path.name for path in shards(tmp_path / "o")] == [f"out-000.{ending}"]
    assert verify(tmp_path / "o" / "out.json").sound
    assert verify(str(output)).sound
    assert _again(source, output, CreateOptions(workers=0)) == 1
    write_tree(tmp_path / "more", {"x.txt": b"1", "y.txt": b"2"})
    create(tmp_path / "more", str(output), CreateOptions(workers=0, append=True))
    assert list(map(len, sound(tmp_path / "o" / "out.json"))) == [60, 2]


@pytest.mark.slow
@pytest.mark.parametrize("names", ["{000..}", "{000..999}", "%03d", "<000..006>"])
def test_exactly_so_many(names: str, source: Path, tmp_path: Path, ending: str) -> None:
    """`--shards` makes exactly so many under any pattern; it is recorded, resumed, repaired and resharded to."""
    output, dataset = tmp_path / "o" / f"out-{names}.{ending}", tmp_path / "o" / "out.json"
    ran = typed("create", source, output, "--shards", "7", "--workers", "0")
    assert (ran.code, len(sound(dataset))) == (0, 7)
    assert _again(source, output, CreateOptions(workers=0, shards=7)) == 7
    with pytest.raises(OutputExists, match="shards differs: 7 before, now not given"):
        _again(source, output, CreateOptions(workers=0))
    before = read_tree(tmp_path / "o")
    flip(shards(tmp_path / "o")[3], 600)
    assert verify(dataset, VerifyOptions(repair=True, source=source)).sound
    assert read_tree(tmp_path / "o") == before
    reshard(dataset, f"{tmp_path}/r/{STEM}.tar", ReshardOptions(workers=0, shards=11))
    assert len(sound(tmp_path / "r" / "out.json")) == 11


def test_so_many_of_each_split(source: Path, tmp_path: Path) -> None:
    """With splits each has so many; of an append, so many are new."""
    options = CreateOptions(workers=0, shards=3, split="train=0.7,val=0.3")
    create(source, f"{tmp_path}/o/{{split}}-{{000..}}.tar", options)
    assert [len(sound(tmp_path / "o" / f"{name}.json")) for name in ("train", "val")] == [3, 3]
    write_tree(tmp_path / "more", {f"more{number}.txt": b"1" for number in range(9)})
    options = CreateOptions(workers=0, shards=2, append=True)
    create(tmp_path / "more", f"{tmp_path}/o/train-{{000..}}.tar", options)
    assert list(map(len, sound(tmp_path / "o" / "train.json")))[3:] in ([4, 5], [5, 4])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--shards 70", "70 shards for 60 samples; expected at least one sample per shard. Use at most --shards 60."),
        ("--shards 2 --max-count 20", "2 shards cannot hold 60 samples within the limits. Use --shards 3,"),
        ("--shards 0", "--shards: 0; expected a whole number from 1 to"),
        ("--shards 40 --place hash", "expected a sample in each shard. Use --shards "),
        ("--place hash --equal-count", "--place hash: used with --equal-count; expected only one of them"),
        ("--place hash --oversize alone", "--place hash: used with --oversize alone; expected only one of them"),
    ],
)
def test_what_cannot_be(words: str, message: str, source: Path, tmp_path: Path) -> None:
    """What the samples cannot fill, or the bounds do not allow, is refused before anything is written."""
    ran = typed("create", source, f"{tmp_path}/o/{STEM}.tar", *words.split(), "--workers", "0")
    assert (ran.code, message in ran.err) == (2, True), ran.err
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("place", ["order", "hash"])
def test_samples_that_grow(place: Any, tmp_path: Path) -> None:
    """If transformed samples do not fit into the requested shards, the run fails with advice."""
    keys = [f"{number:03}" for number in range(200)]
    hashes = [blake2b(key.encode(), digest_size=8, person=b"shardtool place").digest()[0] for key in keys]
    large = {key for key, number in zip(keys, hashes, strict=True) if (number % 2 if place == "hash" else key < "100")}
    write_tree(tmp_path / "in", {f"{key}.txt": b"3000" if key in large else b"1000" for key in keys})
    options = CreateOptions(workers=0, place=place, shards=2, max_size="330kB", map="tests.mapped:told")
    with pytest.raises(InvalidRequest, match=r"3 shards or more after transforming; expected 2.*Raise shards"):
        create(tmp_path / "in", f"{tmp_path}/o/{STEM}.tar", options)
    assert not (tmp_path / "o" / "out.json").exists()


# By hash


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"shuffle": True, "seed": 1}], ids=["by key", "shuffled"])
@pytest.mark.parametrize("number", [{}, {"shards": 6, "max_size": None}], ids=["as many as it takes", "six"])
def test_a_new_file_changes_one_shard(
    more: dict[str, Any], number: dict[str, Any], source: Path, tmp_path: Path, ending: str
) -> None:
    """However early its name is: all other shards and sidecars are not touched."""
    output, folder, options = f"{tmp_path}/o/{STEM}.{ending}", tmp_path / "o", replace(HASH, **more, **number)
    made = create(source, output, options)
    before, kept = identity(folder), read_tree(folder)
    write_tree(source, {"000a.txt": b"new", "000a.cls": b"1"})
    assert create(source, output, replace(options, resume=True), dry_run=True).changes is not None
    assert _again(source, output, options) == made.shards - 1 >= 3
    changed = {name for name, fact in identity(folder).items() if fact != before.get(name)}
    [shard] = [path.name for path in shards(folder) if path.name in changed]
    assert changed == {shard, sidecar(shard), "out.json"}
    assert dict(members(*shards(folder))) == read_tree(source)
    assert verify(folder / "out.json", VerifyOptions(source=source)).sound
    for name in ("000a.txt", "000a.cls"):
        (source / name).unlink()
    assert _again(source, output, options) == made.shards - 1
    assert read_tree(folder) == kept


def test_a_killed_resume_keeps_the_number(source: Path, tmp_path: Path) -> None:
    """The number of shards of the first run is known from the sidecars, too, while there is no dataset file."""
    output, options = f"{tmp_path}/o/{STEM}.tar", replace(HASH, max_size=40_000)
    made = create(source, output, options)
    write_tree(source, {f"new{number}.txt": b"new" for number in range(5)})
    fresh = create(source, output, options, dry_run=True)
    (tmp_path / "o" / "out.json").unlink()
    create(source, output, replace(options, resume=True))
    assert len(fresh.planned) > len(sound(tmp_path / "o" / "out.json")) == made.shards


def test_a_repair_of_shards_by_hash(source: Path, tmp_path: Path) -> None:
    """A damaged shard is made again from the source, to the byte."""
    create(source, f"{tmp_path}/o/{STEM}.tar", HASH)
    before = read_tree(tmp_path / "o")
    flip(shards(tmp_path / "o")[1], 600)
    assert verify(tmp_path / "o" / "out.json", VerifyOptions(repair=True, source=source)).sound
    assert read_tree(tmp_path / "o") == before


def test_the_order_of_a_manifest_does_not_matter(source: Path, tmp_path: Path) -> None:
    """The same samples in another order of rows, or out of shards, are the same shards."""
    rows = [f"{path.stem},in/{path.name}" for path in sorted(source.glob("*.txt"))]
    for name, lines in (("a", rows), ("b", rows[::-1])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["key,path", *lines]))
        create(tmp_path / f"{name}.csv", f"{tmp_path}/{name}/{STEM}.tar", replace(HASH, meta="none"))
    create(tmp_path / "a.csv", f"{tmp_path}/c/{STEM}.tar", CreateOptions(workers=0, meta="none", shuffle=True))
    options = ReshardOptions(workers=0, place="hash", max_size=HASH.max_size)
    reshard(tmp_path / "c" / "out.json", f"{tmp_path}/d/{STEM}.tar", options)
    made = [[path.read_bytes() for path in shards(tmp_path / name)] for name in "abd"]
    assert made[0] == made[1] == made[2]
    with pytest.raises(InvalidRequest, match=r"sort_by: used with place='hash'"):
        replace(options, sort_by="width")


def test_splits_and_appends_by_hash(source: Path, tmp_path: Path) -> None:
    """Each split keeps its number of shards; an append assigns new samples by hash to new shards."""
    output, options = f"{tmp_path}/o/{{split}}-{{000..}}.tar", replace(HASH, split="train=0.8,val=0.2")
    made = create(source, output, options)
    numbers = [item.shards for item in made.splits.values()]
    assert numbers[0] > numbers[1]
    write_tree(source, {"000a.txt": b"new", "000a.cls": b"1"})
    assert _again(source, output, options) == sum(numbers) - 1
    write_tree(tmp_path / "more", {f"more{number}.txt": b"1" * 999 for number in range(50)})
    for if_exists, kept in (("append", 0), ("append-resume", 3)):
        added = replace(HASH, shards=3, max_size=None, **existing(if_exists))
        again = create(tmp_path / "more", f"{tmp_path}/o/val-{{000..}}.tar", added)
        assert (again.shards, again.kept) == (numbers[1] + 3, kept)
    assert verify(tmp_path / "o" / "val.json").sound


def test_transforms_by_hash(source: Path, tmp_path: Path) -> None:
    """If a function changes samples, sizes are estimated, and a new file still changes only one shard."""
    for number in range(0, 2 * _COUNT, 2):
        (source / f"{number:03}.txt").write_text(f"{number * 9}")
    output, options = f"{tmp_path}/o/{STEM}.tar", replace(HASH, map="tests.mapped:told", max_size="30kB")
    made = create(source, output, options)
    assert all(path.stat().st_size <= 30_000 for path in shards(tmp_path / "o"))
    write_tree(source, {"000a.txt": b"99", "000a.cls": b"1"})
    age(tmp_path / "o", source)
    assert _again(source, output, options) == made.shards - 1 > 2
