"""Parts of a run, concurrent or one after the other, create the dataset of a single run."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import tarfile
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardtool import (
    CorruptShard,
    CreateOptions,
    InvalidRequest,
    Observer,
    OutputExists,
    ReshardOptions,
    create,
    merge,
    reshard,
    verify,
)
from shardtool.fingerprint import crc32c
from shardtool.pack import run_parts
from shardtool.publish.destination import Destination
from shardtool.publish.parts import find_run_parts, read_part_record
from shardtool.request.run_part import RunPart, parse_part
from shardtool.request.run_record import RunRecord
from shardtool.storage.folders import open_folder
from tests.faults.helpers import start
from tests.helpers import flip, identity, read_tree, typed, write_tree

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardtool.pattern import ShardPattern
    from shardtool.request.observer import Notes
    from shardtool.request.results import CreateResult

_OPTIONS = CreateOptions(workers=0, max_count=2, label_from_folder=True, on_error="skip")
_PARTS = 3


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder with a source of 14 samples, and skipped files of every kind."""
    files = {f"{'ab'[n % 2]}/{n:02}.txt".encode(): b"text of %d" % n for n in range(13)}
    write_tree(tmp_path / "in", {**files, b"b/none": b"no ending", b"a/\xff.txt": b"no UTF-8", b"c/empty.bin": b""})
    (tmp_path / "in/b/gone.txt").symlink_to("nothing")
    return tmp_path


def _pack(folder: Path, part: str | None = None, out: str = "out", ending: str = "tar", **more: Any) -> CreateResult:
    options: dict[str, Any] = {"part": part, **more}
    return create(folder / "in", folder / out / f"x-{{000..}}.{ending}", replace(_OPTIONS, **options))


def _all(folder: Path, order: tuple[int, ...] = (1, 2, 3), **more: Any) -> list[CreateResult]:
    return [_pack(folder, f"{number}/{_PARTS}", **more) for number in order]


def _merge(place: Path, ending: str = "tar") -> None:
    merge(place / "out" / f"x-{{000..}}.{ending}")


@contextmanager
def _no_merge(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Prevent parts in the block from merging."""

    def never(destination: Destination, notes: Notes) -> bool:  # noqa: ARG001
        return False

    with monkeypatch.context() as patched:
        patched.setattr(run_parts, "merge_if_last", never)
        yield


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [{}, {"shuffle": True, "max_count": 1}, {"ending": "tfrecord", "place": "hash", "max_count": None, "shards": 4}],
)
def test_parts_write_the_bytes_of_a_single_run(place: Path, more: dict[str, Any]) -> None:
    """Parts in any order write the bytes of one run; the last part publishes the dataset file."""
    _pack(place, out="one", **more)
    expected = read_tree(place / "one")
    for order in permutations((1, 2, 3)):
        results = _all(place, order, **more)
        assert [result.merged for result in results] == [False, False, True]
        assert [result.part for result in results] == [f"{number}/3" for number in order]
        assert read_tree(place / "out") == expected, order
        shutil.rmtree(place / "out")
    assert sum(result.samples for result in results) == 14
    assert sum(result.skipped for result in results) == expected["x.skipped"].count(b"\n") == 3


class _Progress(Observer):
    """Sums up the reported work."""

    def __init__(self) -> None:
        self.planned = self.done = (0, 0, 0)

    def start(self, samples: int, size: int, shards: int) -> None:
        self.planned = samples, size, shards

    def advance(self, samples: int, size: int, shards: int) -> None:
        self.done = self.done[0] + samples, self.done[1] + size, self.done[2] + shards


def test_progress_of_a_part(place: Path) -> None:
    """A part reports each of its samples and bytes once."""
    for number in range(1, _PARTS + 1):
        progress = _Progress()
        options = replace(_OPTIONS, part=f"{number}/{_PARTS}")
        create(place / "in", place / "out/x-{000..}.tar", options, observer=progress)
        assert progress.done == progress.planned != (0, 0, 0), number


def test_more_parts_than_shards(place: Path) -> None:
    """A part without shards finishes like any other, and is required."""
    _pack(place, out="one", shards=2, max_count=None)
    results = [_pack(place, f"{number}/5", shards=2, max_count=None) for number in range(1, 6)]
    assert [result.shards for result in results] == [0, 0, 1, 0, 1]
    assert read_tree(place / "out") == read_tree(place / "one")


def test_parts_of_reshard_and_of_splits(place: Path) -> None:
    """`reshard` and splits work in parts; each split gets a dataset file and a list of skipped samples."""
    _pack(place, out="source")
    flip(place / "source/x-003.tar", 512)  # a payload, which is found when it is packed
    flip(place / "source/x-001.tar", 512)
    options = ReshardOptions(workers=0, max_count=3, shuffle=True, seed=4, split="train=0.6,val=0.4", on_error="skip")
    for out, each in (("one", [None]), ("out", ["2/2", "1/2"])):
        for part in each:
            reshard(place / "source/x.json", place / out / "{split}-{000..}.tar", replace(options, part=part))
    assert read_tree(place / "out") == read_tree(place / "one")
    assert read_tree(place / "out").keys() >= {"train.json", "val.json"}
    assert sum(data.count(b"corrupt") for name, data in read_tree(place / "out").items() if "skipped" in name) == 2


def test_a_repeated_part_is_refused_or_resumed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished part is refused, or kept with `resume`, before and after the merge."""
    _pack(place, "2/3")
    before = identity(place / "out")
    with pytest.raises(OutputExists, match=r"already exist: \.x\.part2of3, x-002\.index, x-002\.tar"):
        _pack(place, "2/3")
    assert identity(place / "out") == before
    with _no_merge(monkeypatch):
        again = _pack(place, "2/3", resume=True)
    assert (again.kept, again.shards, again.merged) == (2, 2, False)
    _all(place, (1, 3))
    whole = read_tree(place / "out")
    with pytest.raises(OutputExists, match="already exist"):
        _pack(place, "2/3")
    again = _pack(place, "2/3", resume=True)
    assert (again.kept, again.merged) == (2, True)
    assert {name: data for name, data in read_tree(place / "out").items() if name[0] != "."} == whole
    _all(place, (1, 3), resume=True)
    assert read_tree(place / "out") == whole


def test_a_changed_source_removes_the_dataset_file(place: Path) -> None:
    """If a part finds other content, the dataset file is deleted until all parts have run again."""
    _all(place)
    for changed, order in (("a/00.txt", (1, 2, 3)), ("c/empty.bin", (1, 2, 3)), ("b/13.txt", (2, 1, 3))):
        (place / "in" / changed).write_bytes(b"TEXT")
        shutil.rmtree(place / "one", ignore_errors=True)
        _pack(place, out="one")
        assert _all(place, order, resume=True)[-1].merged
        assert read_tree(place / "out") == read_tree(place / "one"), changed
    for name in ("b/11.txt", "b/13.txt"):
        (place / "in" / name).unlink()  # one shard less
    shutil.rmtree(place / "one")
    _pack(place, out="one")
    _all(place, (3, 1, 2), resume=True, max_removed="50%")
    assert read_tree(place / "out") == read_tree(place / "one")


def test_missing_and_interrupted_parts_are_listed(place: Path) -> None:
    """A merge lists interrupted and missing parts, and changes nothing; after resuming, it succeeds."""
    _pack(place, out="one")
    _pack(place, "1/3")
    words = ["--max-count", "2", "--label-from-folder", "--on-error", "skip", "--workers", "0", "--part", "2/3"]
    run = start(place / "in", place / "out/x-{000..}.tar", *words, code="import os; os.kill(os.getpid(), 9)").end()
    assert run.code == -signal.SIGKILL
    before = read_tree(place / "out")
    expected = "not finished: 2/3; missing: 3/3; expected all parts finished"
    with pytest.raises(InvalidRequest, match=expected):
        _merge(place)
    assert read_tree(place / "out").items() >= {k: v for k, v in before.items() if k != ".x.lock"}.items()
    _pack(place, "2/3", resume=True)
    with pytest.raises(InvalidRequest, match="parts: missing: 3/3"):
        _merge(place)
    _pack(place, "3/3")
    assert read_tree(place / "out") == read_tree(place / "one")


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"max_count": 3, "resume": True}, "other options: max_count"),
        ({"shuffle": True}, "other options: shuffle"), ({"seed": 1, "shuffle": True}, "other options: shuffle, seed"),
        ({"more": "a/98.txt", "resume": True}, "other samples in the source"),
        ({"more": "b/none2"}, "other samples in the source"),
    ],
)  # fmt: skip
def test_parts_with_another_plan_are_refused(place: Path, change: dict[str, Any], difference: str) -> None:
    """A part with another source or other options is refused before it starts, or at the merge, with the difference."""
    _pack(place, out="one")
    _all(place, (1, 3))
    if more := change.pop("more", ""):
        write_tree(place / "in", {more: b"text of 9"})
    plan = r"\([0-9a-f]{8}\)"
    pattern = f"a different plan in 2/3: {difference} {plan}; expected the plan of the other 2 parts {plan}"
    before = read_tree(place / "out")
    with pytest.raises(InvalidRequest, match=pattern):
        _pack(place, "2/3", **change)
    if not change.get("resume"):
        assert read_tree(place / "out") == before
    else:
        with pytest.raises(InvalidRequest, match=pattern):
            _merge(place)
    if more:
        (place / "in" / more).unlink()
    again = partial(_pack, place, resume=True, max_removed=1)
    part = "2/3"
    if change.get("resume"):  # the part has replaced a shard of another part
        with pytest.raises(CorruptShard, match=r"as part [13]/3 recorded\. Run part='[13]/3' again") as error:
            again("2/3")
        part = re.findall("part='(./3)'", str(error.value))[0]
    assert again(part).merged
    assert read_tree(place / "out") == read_tree(place / "one")


def test_another_total_number_of_parts_is_refused(place: Path) -> None:
    """Another total is refused while such a part runs and after it; the lock of an interrupted part does not matter."""
    folder, base = open_folder(str(place / "out")), "x.part2of4"
    folder.create()
    with folder.lock(base), pytest.raises(OutputExists, match="part 2/4 of this dataset; expected 3 parts in total"):
        _pack(place, "1/3")
    assert read_tree(place / "out").keys() == {".x.lock"}
    (place / f"out/.{base}.lock").touch()
    _pack(place, "1/3")
    with pytest.raises(OutputExists, match=r"part 1/3 of this dataset; expected 4 parts in total, as in part='1/4'"):
        _pack(place, "1/4", resume=True)
    shutil.copy(place / "out/.x.part1of3", place / "out/.x.part1of4")
    with pytest.raises(InvalidRequest, match="different numbers of parts: 3, 4; expected"):
        _merge(place)


def test_concurrent_parts_lock_the_dataset(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a part runs, no other run can use the dataset; the last running part merges."""
    _pack(place, out="one")
    folder = open_folder(str(place / "out"))
    with _no_merge(monkeypatch):
        _all(place)
    with folder.lock("x", shared=True):  # like a part that has not yet released its lock
        with pytest.raises(OutputExists, match="another run is writing"):
            _merge(place)
        with pytest.raises(OutputExists, match="another run is writing"):
            _pack(place, resume=True)
        again = _pack(place, "1/3", resume=True)
        assert not again.merged
        assert any("holds the lock and publishes" in note for note in again.notes)
    with folder.lock("x.part2of3"), pytest.raises(OutputExists, match=r"\.x\.part2of3\.lock: another run"):
        _pack(place, "2/3", resume=True)
    with folder.lock("x"), pytest.raises(OutputExists, match="another run is writing"):  # a merge at work
        _pack(place, "3/3", resume=True)
    assert find_run_parts(_pattern(place), folder.names()) == ([RunPart(n, 3) for n in (1, 2, 3)], [])
    _merge(place)
    assert read_tree(place / "out") == read_tree(place / "one")


def _pattern(place: Path) -> ShardPattern:
    from shardtool.pattern import parse_pattern

    return parse_pattern(place / "out/x-{000..}.tar")


def test_temporary_files_of_other_parts_are_kept(place: Path) -> None:
    """A part deletes its own leftover files, and none of another part that may be running."""
    out = write_tree(place / "out", {f".x-00{n}.{end}.part": b"" for n in range(7) for end in ("tar", "index")})
    _pack(place, "2/3")
    left = {name for name in read_tree(out) if name.endswith(".part")}
    assert left == {f".x-00{n}.{end}.part" for n in (0, 1, 4, 5, 6) for end in ("tar", "index")}
    for number in (0, 1, 4, 5, 6):
        assert f"x-00{number}.tar" not in read_tree(out)
    _all(place, (1, 3))
    assert not any(name.startswith(".") for name in read_tree(out))


def test_an_interrupted_merge_is_repeated(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge interrupted after its dataset file is completed by the next one; a whole run deletes records, too."""
    with _no_merge(monkeypatch):
        _all(place)
    records = {name: data for name, data in read_tree(place / "out").items() if name.startswith(".x.part")}
    _merge(place)
    whole = read_tree(place / "out")
    (place / "out/x.json").unlink()
    write_tree(place / "out", records)  # killed after the list of skipped samples was written
    _merge(place)
    assert read_tree(place / "out") == whole
    del records[".x.part1of3"]
    write_tree(place / "out", records)
    _merge(place)
    assert read_tree(place / "out") == whole
    write_tree(place / "out", records)
    _pack(place, resume=True)
    assert read_tree(place / "out") == whole
    with pytest.raises(InvalidRequest, match="no parts to merge"):
        _merge(place)


def test_records_and_files_of_parts_are_checked(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge detects any flipped bit of a record, and changed shards or sidecars, before it renames anything."""
    with _no_merge(monkeypatch):
        _all(place)
    out, before = place / "out", read_tree(place / "out")
    for at in (0, 20, 40, *range(60, len(before[".x.part2of3"]), 211)):
        flip(out / ".x.part2of3", at)
        with pytest.raises(
            CorruptShard, match=r"part2of3: not a valid part record: .* Delete it, and run part='2/3' again"
        ):
            _merge(place)
        flip(out / ".x.part2of3", at)
    for name, problem in (("x-002.tar", "bytes"), ("x-003.index", "bytes")):
        with (out / name).open("ab") as file:
            file.write(b"\0")
        with pytest.raises(CorruptShard, match=problem):
            _merge(place)
        (out / name).write_bytes(before[name])
    flip(out / "x-003.index", 50)
    with pytest.raises(CorruptShard, match="CRC-32C"):
        _merge(place)
    flip(out / "x-003.index", 50)
    (out / "x-007.tar").touch()
    with pytest.raises(OutputExists, match=r"belong to no part: x-007\.tar"):
        _merge(place)
    (out / "x-007.tar").unlink()
    shutil.copy(out / ".x.part2of3", out / ".x.part1of3")
    with pytest.raises(CorruptShard, match="part1of3: not a valid part record: the record of part 2/3"):
        _merge(place)
    (out / ".x.part1of3").write_bytes(before[".x.part1of3"])
    assert typed("index", out / "x-{000..}.tar", "--merge").code == 0
    assert verify(out / "x.json").findings == ()


@pytest.mark.parametrize(
    "change",
    [
        {"part": 1}, {"parts": True}, {"planned": 0}, {"planned": 2**62}, {"planned": 8}, {"planned": "7"},
        {"resumed": 1}, {"plan": "x"}, {"plan": None}, {"content": "b2:"}, {"dataset": ""}, {"dataset": "{}"},
        {"dataset": 3}, {"skipped": [["a", "b"]]}, {"skipped": [["", "", "", ""]]}, {"skipped": {}},
    ],
)  # fmt: skip
def test_a_forged_record_is_refused(place: Path, change: dict[str, Any]) -> None:
    """A record with a valid checksum but impossible values is refused like a damaged one."""
    _pack(place, "2/3")
    record = place / "out/.x.part2of3"
    body = json.dumps({**json.loads(record.read_bytes().partition(b"\n")[2]), **change}).encode()
    record.write_bytes(b"shardtool part 1 crc32c:%08x\n%b" % (crc32c(body), body))
    with pytest.raises(CorruptShard, match="part2of3: not a valid part record: "):
        read_part_record(open_folder(str(place / "out")), _pattern(place), RunPart(2, 3))
    record.write_bytes(b"shardtool part 1 crc32c:%08x\n[]" % crc32c(b"[]"))
    with pytest.raises(CorruptShard, match="part2of3: not a valid part record: "):
        read_part_record(open_folder(str(place / "out")), _pattern(place), RunPart(2, 3))


@pytest.mark.parametrize("forged", ["source", "fingerprint"])
def test_a_record_must_match_the_other_parts(place: Path, forged: str) -> None:
    """A valid record of another source or with another content is refused."""
    _pack(place, "1/3")
    _pack(place, "2/3")
    record = place / "out/.x.part2of3"
    document = json.loads(record.read_bytes().partition(b"\n")[2])
    old = read_part_record(open_folder(str(place / "out")), _pattern(place), RunPart(2, 3)).dataset
    assert old is not None
    made = RunRecord({**old.run.document, "source": "elsewhere"}) if forged == "source" else old.run
    fingerprint = "b2:" + 64 * "0" if forged == "fingerprint" else old.fingerprint
    document["dataset"] = replace(old, run=made, fingerprint=fingerprint).encode().decode()
    body = json.dumps(document).encode()
    record.write_bytes(b"shardtool part 1 crc32c:%08x\n%b" % (crc32c(body), body))
    with pytest.raises(CorruptShard, match="contradict each other" if forged == "source" else "as in the sidecars"):
        _pack(place, "3/3")
    assert not (place / "out/x.json").exists()


def test_metadata_of_a_manifest(place: Path) -> None:
    """Sidecars of parts contain manifest columns, nulls included, as in a single run."""
    rows = {"key": [f"k{n:02}" for n in range(20)], "path": [f"{'ab'[n % 2]}/{n % 13:02}.txt" for n in range(20)]}
    more = {"width": [None if n % 3 else n for n in range(20)], "good": [n % 2 == 0 or None for n in range(20)]}
    options = CreateOptions(max_count=3, root=place / "in", field={"cls": "path"}, classes=("cls",), workers=0)
    for out, each in (("one", [None]), ("out", ["2/2", "1/2"])):
        for part in each:
            create(pa.table({**rows, **more}), place / out / "x-{000..}.tfrecord", replace(options, part=part))
    assert read_tree(place / "out") == read_tree(place / "one")


def test_summary_and_json(place: Path) -> None:
    """The summary and the JSON of a part name the part, and whether the dataset file exists."""
    words: list[str | Path] = [
        "create",
        place / "in",
        place / "out/x-{000..}.tar",
        "--on-error",
        "skip",
        "--max-count",
        "7",
        "--part",
    ]
    ran = typed(*words, "1/2")
    assert re.search(
        r"samples in 1 shard of part 1/2, .*\n(?:.*\n)*dataset file  .*/x\.json, after all parts have finished\n",
        ran.out,
    )
    assert "note: 1 of 2 parts have finished; the last part publishes the dataset file" in ran.err
    document = json.loads(typed(*words, "2/2", "--json").out)
    assert (document["part"], document["merged"], document["shards"]) == ("2/2", True, 1)
    ran = typed(*words, "slurm")
    assert (ran.code, "--part slurm: no task; expected the environment" in ran.err) == (2, True)


def test_dry_run_of_a_part(place: Path) -> None:
    """A dry run lists the shards of the part; all parts together list those of a single run."""
    pattern = place / "out/x-{000..}.tar"
    whole = create(place / "in", pattern, _OPTIONS, dry_run=True)
    results = [
        create(place / "in", pattern, replace(_OPTIONS, part=f"{number}/3"), dry_run=True) for number in (1, 2, 3)
    ]
    assert [shard for result in results for shard in result.planned] == [*whole.planned]
    assert [result.skipped for result in results] == [whole.skipped, 0, 0]
    assert not (place / "out").exists()


@pytest.mark.parametrize("text", ["0/64", "65/64", "x", "3", "3/", "-1/3", "1/0", "3/64 ", "1/2000000", "٣/64"])
def test_invalid_parts_are_refused(text: str) -> None:
    """An invalid part is refused, with an example."""
    with pytest.raises(InvalidRequest, match="expected K/N such as 3/64, with K from 1 to N, or slurm or kubernetes"):
        CreateOptions(part=text)


@pytest.mark.parametrize(
    "options",
    [
        {"append": True}, {"overwrite": True}, {"resume": True, "overwrite": True}, {"export": ("wids",)},
        {"resize": 64}, {"encode": "png"}, {"probe": True}, {"map": "tests.mapped:told"},
    ],
)  # fmt: skip
def test_options_that_need_the_whole_dataset_are_refused(place: Path, options: dict[str, Any]) -> None:
    """Options that need the whole dataset, or sizes that are unknown, are refused before anything is written."""
    with pytest.raises(InvalidRequest, match="part"):
        _pack(place, "1/2", **options)
    assert not (place / "out").exists()


def test_payloads_without_offsets_are_refused(place: Path) -> None:
    """Parts refuse payloads in tables, compressed archives or shards, and two passes; they accept a plain tar."""
    for name, mode in (("a.tar", "w"), ("a.tgz", "w:gz")):
        with tarfile.open(place / name, mode) as tar:  # type: ignore[call-overload]
            tar.add(place / "in/c", "c")
            tar.add(place / "in/b/01.txt", "b/1.txt")
    for out, part in (("one", None), ("two", "2/2"), ("two", "1/2")):
        create(place / "a.tar", place / out / "x-{0..}.tar", CreateOptions(max_count=1, part=part))
    assert read_tree(place / "two") == read_tree(place / "one")
    with pytest.raises(InvalidRequest, match="or compressed archive; expected payloads that each part"):
        create(place / "a.tgz", place / "out/y-{0..}.tar", CreateOptions(part="1/2"))
    pq.write_table(pa.table({"key": ["a", "b"], "data": [b"1", b"2"]}), place / "t.parquet")
    with pytest.raises(InvalidRequest, match="payloads in a table"):
        create(place / "t.parquet", place / "out/x-{0..}.tar", CreateOptions(bytes={"bin": "data"}, part="1/2"))
    with pytest.raises(InvalidRequest, match="used with method"):
        reshard("nothing", place / "out/x-{0..}.tar", ReshardOptions(method="scatter", part="1/2"))


@pytest.mark.parametrize(
    ("environment", "part"),
    [
        ({"ID": "3", "COUNT": "64", "MIN": "1", "MAX": "64", "STEP": "1"}, "3/64"),
        ({"ID": "0", "COUNT": "64", "MIN": "0", "MAX": "63"}, "1/64"), ({"ID": "5", "COUNT": "5"}, "5/5"),
        ({"ID": "7", "COUNT": "4", "MIN": "1", "MAX": "7", "STEP": "2"}, "4/4"),
        ({"ID": "17", "COUNT": "2", "MIN": "3", "MAX": "17"}, ""), ({}, ""), ({"ID": "x", "COUNT": "3"}, ""),
        ({"ID": "4", "COUNT": "3"}, ""), ({"ID": "1", "COUNT": "3", "STEP": "0"}, ""), ({"ID": "2"}, ""),
    ],
)  # fmt: skip
def test_slurm_array_tasks_determine_the_part(environment: dict[str, str], part: str) -> None:
    """An array task determines the part; an array with gaps is refused."""
    names = {f"SLURM_ARRAY_TASK_{name}": value for name, value in environment.items()}
    if part:
        assert str(parse_part("slurm", names)) == part
        return
    with pytest.raises(InvalidRequest, match="Use part='K/N', such as part='3/64'"):
        parse_part("slurm", names)


@pytest.mark.parametrize(
    ("index", "completions", "part"),
    [
        ("0", "64", "1/64"),
        ("63", "64", "64/64"),
        ("64", "64", ""),
        ("3", "", ""),
        ("", "64", ""),
        ("-1", "3", ""),
        ("0", "0", ""),
    ],
)
def test_kubernetes_indexed_jobs_determine_the_part(index: str, completions: str, part: str) -> None:
    """The index of an Indexed Job determines the part; without the completions, it is refused."""
    names = {"JOB_COMPLETION_INDEX": index, "JOB_COMPLETIONS": completions}
    if part:
        assert str(parse_part("kubernetes", names)) == part
        return
    with pytest.raises(InvalidRequest, match="with JOB_COMPLETIONS set to `completions`"):
        parse_part("kubernetes", names)


@pytest.mark.parametrize("parts", [1, 2, 7, 64])
def test_parts_partition_the_shards(parts: int) -> None:
    """Each shard belongs to one part, in order, and the sizes of parts differ by at most one."""
    for planned in (1, 5, 64, 1000):
        shares = [RunPart(number, parts).shards(planned) for number in range(1, parts + 1)]
        assert [shard for share in shares for shard in share] == [*range(planned)]
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_part_owns_its_files_alone(place: Path) -> None:
    """Before planning, a part owns no files; then it owns its shards, their sidecars and its record."""
    output = Destination(open_folder(str(place / "out")), _pattern(place), "error", part=RunPart(2, 3))
    assert not output.owns("x-002.tar")
    owned = output.with_shard_count(7)
    names = ["x-001.tar", "x-002.tar", "x-003.index", "x-004.tar", ".x.part2of3", ".x.part1of3", "x.json"]
    assert [name for name in names if owned.owns(name)] == ["x-002.tar", "x-003.index", ".x.part2of3"]


def test_the_example_for_slurm(place: Path) -> None:
    """deploy/slurm.sh works with Slurm's variables set by a loop."""
    from tests.helpers import REPO, shell

    _pack(place, out="one")
    options = "--max-count 2 --label-from-folder --on-error skip --workers 0"
    words = f"SHARDTOOL=\"$T\" bash '{REPO}/deploy/slurm.sh' in 'out/x-{{000..}}.tar' {options}"
    line = f"export SLURM_ARRAY_TASK_COUNT=2; for n in 2 1; do SLURM_ARRAY_TASK_ID=$n {words} || exit; done"
    assert shell(line, place).code == 0
    assert read_tree(place / "out") == read_tree(place / "one")
    assert os.access(REPO / "deploy/slurm.sh", os.R_OK)
