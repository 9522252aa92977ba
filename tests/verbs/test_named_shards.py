"""Named means exact: a range, a glob, a list and a predicate denote the dataset of exactly those shards."""

from __future__ import annotations

import csv
import json
import shutil
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardtool
from shardtool import (  # fmt: skip
    CreateOptions,
    IndexOptions,
    ReshardOptions,
    ShardError,
    VerifyOptions,
    copy,
    create,
    index,
    inspect,
    reshard,
    verify,
)
from tests.helpers import flip, members, read_tree, typed, write_tree

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers.processes import Server

Ways = dict[str, Any]
_SHARDS = 6
PARTS = [(0, 5), (0, 2), (2, 3), (4, 5), (3, 3)]  # an append wrote the last ones
_HOW = VerifyOptions(workers=0)


@dataclass(frozen=True)
class Stored:
    """A stored dataset; `at` is its address, and `folder` the local folder with its files."""

    at: str
    folder: Path
    source: Path
    ending: str = "tar"

    def names(self, first: int, last: int) -> list[str]:
        """Return the paths of some shards."""
        return [f"{self.at}/out-{number:03}.{self.ending}" for number in range(first, last + 1)]

    def ways(self, first: int, last: int) -> Ways:
        """Return the ways to name some of the shards; stores support fewer, and the web fewest."""
        names = self.names(first, last)
        result: Ways = {
            "range": f"{self.at}/out-{{{first:03}..{last:03}}}.{self.ending}",
            "angles": f"{self.at}/out-<{first:03}..{last:03}>.{self.ending}",
            "list": names,
        }
        if not self.at.startswith("http"):
            result["glob"] = f"{self.at}/out-00[{first}-{last}].{self.ending}"
        if not self.at.startswith("http") and last == _SHARDS - 1:
            result["open"] = f"{self.at}/out-{{{first:03}..}}.{self.ending}"
        if last - first == _SHARDS - 1:
            result |= {"file": f"{self.at}/out.json"} | ({} if self.at.startswith("http") else {"folder": self.at})
        if first == last:
            result["one"] = names[0]
        return result

    def wanted(self, numbers: list[int]) -> list[dict[str, Any]]:
        """Return the entries of these shards in the dataset file, read without our code."""
        listed = json.loads((self.folder / "out.json").read_bytes())["shardlist"]
        return [listed[number] for number in numbers]

    def content(self, numbers: list[int]) -> list[tuple[str, bytes]]:
        """Return all fields of shards in order, as Python's tarfile reads them."""
        return members(*(self.folder / f"out-{number:03}.tar" for number in numbers))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Give a dataset of six shards, two of them appended, with classes and a field that few have; and its source."""
    top = tmp_path_factory.mktemp("named")
    files = {f"{'ab'[at % 2]}/{at:03}.txt": b"text %d" % at * (at + 1) for at in range(8)} | {"a/006.bin": b"few"}
    write_tree(top / "source", files)
    options = CreateOptions(max_count=2, label_from_folder=True, workers=0)
    create(top / "source", f"{top}/ds/out-{{000..}}.tar", options)
    write_tree(top / "source", {f"{'ab'[at % 2]}/{at:03}.txt": b"text %d" % at for at in range(8, 12)})
    create(top / "source", f"{top}/ds/out-{{000..}}.tar", replace(options, append=True, on_duplicate="first"))
    assert len([*(top / "ds").glob("*.tar")]) == _SHARDS
    return top / "ds", top / "source"


@pytest.fixture
def here(made: tuple[Path, Path], tmp_path: Path) -> Stored:
    """Yield a copy of the dataset that a test may damage."""
    shutil.copytree(made[0], tmp_path / "ds")
    return Stored(str(tmp_path / "ds"), tmp_path / "ds", made[1])


@pytest.fixture(params=["folder", "web"])
def stored(request: pytest.FixtureRequest, made: tuple[Path, Path], http_files: Server) -> Stored:
    """Give the dataset in a folder, and behind HTTP; tests/clients has it in a store."""
    if request.param == "folder":
        return Stored(str(made[0]), *made)
    at = http_files.new_prefix()
    shutil.copytree(made[0], http_files.local(at), dirs_exist_ok=True)
    return Stored(at, *made)


@pytest.mark.parametrize(
    ("stored", "part"),
    [*(("folder", part) for part in PARTS), ("web", PARTS[0]), ("web", PARTS[2]), ("web", PARTS[-1])],
    indirect=["stored"],
)
def test_every_way_is_the_same_dataset(stored: Stored, part: tuple[int, int], tmp_path: Path) -> None:
    """For some shards, `open`, `inspect`, `verify` and `reshard` report what the dataset file lists for them."""
    check_every_way(stored, part, tmp_path)


def check_every_way(stored: Stored, part: tuple[int, int], tmp_path: Path) -> None:
    """Check that for all ways to name some shards."""
    numbers = [*range(part[0], part[1] + 1)]
    expected, content = stored.wanted(numbers), stored.content(numbers)
    samples, fields = sum(item["nsamples"] for item in expected), Counter(name.partition(".")[2] for name, _ in content)
    keys = list(dict.fromkeys(name.partition(".")[0] for name, _ in content))
    prints = set()
    for way, given in stored.ways(*part).items():
        opened = shardtool.open(given)
        assert (len(opened), [*opened.keys], dict(opened.field_counts)) == (samples, keys, dict(fields)), way
        assert [f"{item['__key__']}.{name}" for item in opened for name in item if name[:2] != "__"] == [
            name for name, _ in content
        ], way
        assert sorted(item["__key__"] for item in opened.stream(seed=1)) == sorted(keys), way
        assert opened.classes == {"cls": ["a", "b"]}, way
        assert opened[keys[-1]]["__key__"] == keys[-1], way
        prints.add((opened.fingerprint, opened.source.fingerprint))
        summary = inspect(given)
        assert (summary.samples, summary.size) == (samples, sum(item["filesize"] for item in expected)), way
        assert summary.field_bytes == sum(len(data) for _, data in content), way
        assert (summary.problems, summary.complete, summary.shard_sizes.count) == ((), True, len(numbers)), way
        assert {name: one.samples for name, one in summary.fields.items()} == dict(fields), way
        assert (summary.part_of is None) == (len(numbers) == _SHARDS), way
        for quick in (False, True):
            report = verify(given, VerifyOptions(workers=0, quick=quick))
            assert (report.counts, report.shards, report.size) == ({}, len(numbers), summary.size), way
        reshard([given], f"{tmp_path}/{way}/new-{{0..}}.tar", ReshardOptions(workers=0))
        assert members(*sorted((tmp_path / way).glob("*.tar"))) == content, way
        assert shardtool.open(tmp_path / way / "new.json").classes == {"cls": ["a", "b"]}, way
    assert len(prints) == 1
    assert len({str(read_tree(tmp_path / way)) for way in stored.ways(*part)}) == 1


def test_the_order_of_a_list_is_kept(here: Stored) -> None:
    """Shards in another order are read in that order, each with its own entry."""
    order = [4, 0, 5, 2]
    opened = shardtool.open([here.names(number, number)[0] for number in order], check=True)
    assert [item["__key__"] for item in opened] == list(
        dict.fromkeys(name.partition(".")[0] for name, _ in here.content(order))
    )
    assert verify([*reversed(here.names(0, 5))], _HOW).sound


@pytest.mark.parametrize("part", [(1, 3), (4, 5)])
def test_unnamed_shards_are_not_reported(here: Stored, part: tuple[int, int]) -> None:
    """Damage to other shards and their sidecars, and more samples in the source, are not reported."""
    source = VerifyOptions(workers=0, source=here.source)
    for given in here.ways(*part).values():
        assert verify(given, source).sound
    (here.folder / "out-000.tar").unlink()
    (here.folder / "out-000.index").write_bytes(b"none")
    (here.folder / "out-017.tar").write_bytes(b"none")
    for way, given in here.ways(*part).items():
        assert verify(given, source).sound or way == "open"
        assert inspect(given).problems == () or way == "open"
    assert len(shardtool.open(here.ways(*part)["range"])) == 2 * (part[1] - part[0] + 1)
    flip(here.folder / f"out-00{part[1]}.tar", 700)
    for given in here.ways(*part).values():
        assert "shard-checksum" in verify(given, _HOW).counts


def test_a_page_and_a_table_are_of_the_part(here: Stored, tmp_path: Path) -> None:
    """`inspect --table` has the rows of the shards that were named, and `--html` their number."""
    given = here.ways(2, 4)["range"]
    assert typed("inspect", given, "--table", tmp_path / "t.csv").code == 0
    with (tmp_path / "t.csv").open(encoding="utf-8") as file:
        assert {row["__shard__"] for row in csv.DictReader(file)} == {*here.names(2, 4)}
    assert typed("inspect", given, "--html", tmp_path / "p.html").code == 0
    assert "3 shards of 6" in (tmp_path / "p.html").read_text(encoding="utf-8")
    assert "3 of the dataset's 6 shards" in typed("inspect", given).out


@pytest.mark.parametrize("part", [(0, 2), (3, 3), (0, 5)])
def test_a_part_is_never_taken_for_the_whole(here: Stored, part: tuple[int, int], tmp_path: Path) -> None:
    """`index` and `copy` of all shards, named in any way, leave and copy the dataset; of a part they touch nothing."""
    before, whole = read_tree(here.folder), part == (0, 5)
    for way, given in here.ways(*part).items():
        given_ = [*reversed(given)] if way == "list" else given
        for act in (partial(index, given_, IndexOptions(workers=0)), partial(copy, given_, tmp_path / way)):
            if whole:
                act()
            else:
                with pytest.raises(ShardError, match=r"out\.json.* (Index|`reshard`)"):
                    act()
        assert read_tree(here.folder) == before, way
        assert (read_tree(tmp_path / way) if whole else (tmp_path / way).exists()) == (before if whole else False), way


def test_a_part_is_repaired_in_its_dataset(here: Stored) -> None:
    """`verify --repair` repairs the named shards, and the dataset file lists all."""
    before = read_tree(here.folder)
    (here.folder / "out-001.index").unlink()
    report = verify(here.ways(1, 2)["range"], VerifyOptions(workers=0, repair=True))
    assert report.sound
    assert report.repaired
    assert len(here.wanted([*range(_SHARDS)])) == _SHARDS
    assert verify(here.folder, _HOW).sound
    after = read_tree(here.folder)
    assert {name: data for name, data in after.items() if name.endswith(".tar")} == {
        name: data for name, data in before.items() if name.endswith(".tar")
    }
    flip(here.folder / "out.json", -5)
    report = verify(here.ways(1, 2)["range"], VerifyOptions(workers=0, repair=True))
    assert (report.counts, report.repaired) == ({"dataset-file-damaged": 1}, ())
    assert "only some of its shards were given" in report.unchecked[-1]
    assert verify(here.folder, VerifyOptions(workers=0, repair=True)).sound


def test_what_is_named_and_not_there(stored: Stored, tmp_path: Path) -> None:
    """A range that goes further than the dataset is refused with the names that lack; `verify` finds each of them."""
    check_what_lacks(stored, tmp_path)


def check_what_lacks(stored: Stored, tmp_path: Path) -> None:
    """Check this for all verbs."""
    given = f"{stored.at}/out-{{004..008}}.tar"
    assert [(finding.code, finding.file) for finding in verify(given, _HOW).findings] == [
        ("shard-missing", f"out-00{number}.tar") for number in (6, 7, 8)
    ]
    for act in (
        shardtool.open, inspect, index, lambda one: copy(one, tmp_path / "copy"),
        lambda one: reshard(one, f"{tmp_path}/new-{{0..}}.tar", ReshardOptions(workers=0)),
    ):  # fmt: skip
        with pytest.raises(ShardError, match=r"no out-006\.tar, out-007\.tar, out-008\.tar"):
            act(given)


def test_the_range_that_a_dataset_records_is_all_of_it(here: Stored, tmp_path: Path) -> None:
    """The names that `create` was given mean the dataset that it made, though it did not need them all."""
    given = f"{tmp_path}/own/x-<000..999>.tar"
    create(here.source, given, CreateOptions(max_count=5, workers=0))
    assert verify(given, _HOW).sound
    assert "numbering" in verify(given, VerifyOptions(quick=True)).checked[0]
    assert len(shardtool.open(given)) == inspect(given).samples == 12
    copy(given, tmp_path / "copy")
    assert read_tree(tmp_path / "copy") == read_tree(tmp_path / "own")
    with pytest.raises(ShardError, match=r"no x-003\.tar"):
        shardtool.open(f"{tmp_path}/own/x-<000..998>.tar")


def test_a_deleted_shard_is_always_missed(here: Stored) -> None:
    """A listed shard that was deleted is reported, for each way to name it."""
    (here.folder / "out-002.tar").unlink()
    there = {name.partition(".")[0] for name, _ in here.content([0, 1, 3, 4, 5])}
    by_file = [item["__key__"] for item in shardtool.open(f"{here.at}/out.json", on_error="skip").stream(shuffle=False)]
    for way, given in here.ways(0, 5).items():
        dataset = shardtool.open(given, on_error="skip")
        stream = dataset.stream(shuffle=False)
        keys = [item["__key__"] for item in stream]
        assert (keys, {*keys}) == (by_file, there), way
        assert (len(dataset), stream.skipped.samples) == (12, 2), way
        with pytest.raises(ShardError, match=r"out-002\.tar"):
            [*shardtool.open(given)]
        report = verify(given, _HOW)
        assert [(finding.code, finding.file) for finding in report.findings] == [("shard-missing", "out-002.tar")], way
        assert [item.code for item in inspect(given).problems] == ["missing-shard"], way


def test_globs_of_dataset_files(small_once: Path, tmp_path: Path) -> None:
    """A glob of dataset files is each of these datasets: `reshard` makes one of them, and `index` indexes each."""
    create(small_once, f"{tmp_path}/{{split}}-{{0..}}.tar", CreateOptions(split={"a": 0.5, "b": 0.5}, workers=0))
    glob, files = f"{tmp_path}/*.json", [f"{tmp_path}/a.json", f"{tmp_path}/b.json"]
    for name, given in {"glob": glob, "files": files}.items():
        reshard(given, f"{tmp_path}/{name}/x-{{0..}}.tar", ReshardOptions(workers=0))
        assert verify(f"{tmp_path}/{name}/x.json", replace(_HOW, source=given)).sound
    assert read_tree(tmp_path / "glob") == read_tree(tmp_path / "files")
    before = read_tree(tmp_path)
    ran = typed("index", glob, "--json", "--workers", "0")
    assert [item["dataset_file"] for item in json.loads(ran.out)["datasets"]] == files
    assert read_tree(tmp_path) == before
    (tmp_path / "b-0.index").unlink()
    assert "already valid" in typed("index", glob, "--overwrite", "--workers", "0").out
    assert verify(glob, _HOW).sound


def test_a_glob_of_parquet_files_is_one_table(tmp_path: Path) -> None:
    """A glob of Parquet files is one manifest, in the order of their names, as a folder of them is."""
    (tmp_path / "meta").mkdir()
    for part in (1, 0, 2):
        table = pa.table({"key": [f"k{part}{at}" for at in range(3)], "txt": [f"text {part} {at}" for at in range(3)]})
        pq.write_table(table, tmp_path / "meta" / f"part-{part}.parquet")
    for way, given in {"glob": "meta/part-*.parquet", "one": "meta/part-[1].parquet", "folder": "meta"}.items():
        ran = typed(
            "create", tmp_path / given, f"{way}/x-{{0..}}.tar", "--field", "txt=txt", "--workers", "0", cwd=tmp_path
        )
        assert ran.code == 0, ran.err
    keys = [key for key, _ in members(tmp_path / "glob" / "x-0.tar")]
    assert keys == [f"k{part}{at}.txt" for part in range(3) for at in range(3)]
    assert members(tmp_path / "one" / "x-0.tar") == members(tmp_path / "glob" / "x-0.tar")[3:6]
    assert (tmp_path / "folder" / "x-0.tar").read_bytes() == (tmp_path / "glob" / "x-0.tar").read_bytes()
    assert typed("create", "none-*.parquet", "none/x-{0..}.tar", cwd=tmp_path).code == 2
