"""`--resume` continues the existing dataset, and never replaces it by a different one unless requested."""

from __future__ import annotations

import json
import os
import shutil
import time
import wsgiref
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool import CreateOptions, InvalidRequest, OutputExists, create, index
from shardtool.dataset.dataset_file import parse_dataset
from shardtool.pack import resume
from shardtool.request.observer import Observer
from shardtool.request.option_values import parse_share
from shardtool.request.results import ResumeChanges
from tests.helpers import existing, read_tree, shards, typed, write_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardtool.request.results import CreateResult
    from shardtool.values import IfExists

_COUNT = 40
_OPTIONS = CreateOptions(workers=0, max_count=4)


def _samples(numbers: range) -> dict[str, bytes]:
    return {f"{number:03}.txt": b"text of %d" % number for number in numbers}


def _pack(place: Path, **more: Any) -> CreateResult:
    options = replace(_OPTIONS, **more)
    return create(place / "in", f"{place}/out/x-{{000..}}.tar", options)


def _without(place: Path, numbers: range) -> None:
    for name in _samples(numbers):
        (place / "in" / name).unlink()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder with a source of 40 samples, `in`, and its ten shards, `out`."""
    write_tree(tmp_path / "in", _samples(range(_COUNT)))
    _pack(tmp_path)
    return tmp_path


def _interrupted(place: Path) -> None:
    """Leave the files of an interrupted run: some finished shards, and no dataset file."""
    (place / "out" / "x.json").unlink()
    for shard in shards(place / "out")[8:]:
        shard.unlink()
        shard.with_suffix(".index").unlink()


@pytest.mark.parametrize("interrupt", [lambda _: None, _interrupted], ids=["finished", "interrupted"])
def test_a_source_that_lost_most_samples_is_refused(interrupt: Callable[[Path], None], place: Path) -> None:
    """A source that lost most samples is refused with their number, and nothing changes."""
    interrupt(place)
    _without(place, range(5, _COUNT))
    before = read_tree(place / "out")
    count = 32 if len(before) < 21 else _COUNT
    with pytest.raises(OutputExists) as caught:
        _pack(place, resume=True)
    assert f"{count - 5} of {count} samples" in caught.value.found
    assert "max_removed" in caught.value.expected
    assert (
        f"keep 1, write 1 and remove {len(before) // 2 - 2} shards; add 0 and remove {count - 5}" in caught.value.remedy
    )
    assert "resume=True, overwrite=True" in caught.value.remedy
    assert read_tree(place / "out") == before
    done = _pack(place, resume=True, overwrite=True)
    assert done.changes == ResumeChanges(1, 1, len(before) // 2 - 2, 0, count - 5, count)
    assert len(shards(place / "out")) == 2


def test_a_dry_run_reports_the_changes(place: Path) -> None:
    """`--dry-run` with `--resume` reports shards, samples and the refusal; nothing changes."""
    _without(place, range(20, _COUNT))
    write_tree(place / "in", {"new.txt": b"new"})
    before = read_tree(place / "out")
    output = f"{place}/out/x-{{000..}}.tar"
    plan = create(place / "in", output, replace(_OPTIONS, resume=True), dry_run=True)
    assert plan.changes == ResumeChanges(5, 1, 4, 1, 20, 40)
    assert any("would fail" in note and "20 of 40" in note for note in plan.notes)
    assert plan.to_json()["changes"]["samples_removed"] == 20  # type: ignore[index]
    assert (
        create(place / "in", output, replace(_OPTIONS, resume=True, overwrite=True), dry_run=True).changes
        == plan.changes
    )
    assert create(place / "in", output, _OPTIONS, dry_run=True).changes is None
    assert read_tree(place / "out") == before


@pytest.mark.parametrize(("max_removed", "removed", "refused"), [
    ("10%", 4, False), ("10%", 5, True), (0, 1, True), (0.5, 20, False), (0.5, 21, True), ("100%", 39, False),
])  # fmt: skip
def test_max_removed_limits_removed_samples(max_removed: str | float, removed: int, refused: bool, place: Path) -> None:  # noqa: FBT001 - a parameter
    """As many samples may be removed as `--max-removed` allows, and not one more; the result gives the number."""
    _without(place, range(removed))
    if refused:
        with pytest.raises(OutputExists):
            _pack(place, resume=True, max_removed=max_removed)
        return
    done = _pack(place, resume=True, max_removed=max_removed)
    assert done.changes is not None
    assert (done.changes.samples_removed, done.changes.samples_before, done.samples) == (removed, 40, 40 - removed)


@given(st.integers(0, 10**6), st.booleans())
def test_shares_are_parsed_exactly(millionths: int, per_cent: bool) -> None:  # noqa: FBT001 - a parameter
    """A share is exact, as a number or a percentage."""
    text = f"{millionths / 10**4:.4f}%" if per_cent else f"{millionths / 10**6:.6f}"
    assert parse_share("x", text) == Fraction(millionths, 10**6)


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "101%", "1e9", "nan", "%", "9" * 99])
def test_invalid_shares_are_refused(text: str) -> None:
    """Anything else is refused with the name of the option."""
    with pytest.raises(InvalidRequest, match="max_removed"):
        CreateOptions(max_removed=text)


def test_other_options_are_refused(place: Path) -> None:
    """Options that change shards are refused with both values; options about how to run may differ."""
    before = read_tree(place / "out")
    with pytest.raises(OutputExists, match="max_count differs: 4 before, now 5"):
        _pack(place, resume=True, max_count=5)
    with pytest.raises(OutputExists, match="shuffle differs: not given before, now given"):
        _pack(place, resume=True, shuffle=True)
    assert read_tree(place / "out") == before
    assert _pack(place, resume=True, on_error="skip", workers=1, start_method="spawn").kept == 10


@pytest.mark.parametrize("change", ["another list", "a class before the others"])
def test_classes_keep_their_numbers(change: str, tmp_path: Path) -> None:
    """A run that would change class numbers is refused; new classes are accepted."""
    write_tree(tmp_path / "in", {f"{label}/{at}.txt": b"x" for label in ("cat", "dog") for at in range(6)})

    def packed(if_exists: IfExists, classes: list[str] | None = None) -> Mapping[str, list[str]]:
        options = CreateOptions(label_from_folder=True, classes_from=classes, **existing(if_exists), workers=0)
        create(tmp_path / "in", tmp_path / "out" / "x-{0..}.tar", options)
        return parse_dataset((tmp_path / "out" / "x.json").read_bytes(), "x").classes

    assert packed("error") == {"cls": ["cat", "dog"]}
    if change == "another list":
        with pytest.raises(OutputExists, match="class 0 of cls would be 'dog' instead of 'cat'"):
            packed("resume", ["dog", "cat"])
        return
    write_tree(tmp_path / "in", {"ant/1.txt": b"x"})
    with pytest.raises(OutputExists, match=r"classes_from='.*x\.json'"):
        packed("resume")
    assert packed("resume", ["cat", "dog", "ant"]) == {"cls": ["cat", "dog", "ant"]}


def test_a_lost_split_is_refused(tmp_path: Path) -> None:
    """A source without samples for a split is refused, because its shards would look current."""
    write_tree(tmp_path / "in", {f"{split}/cat/{at}.txt": b"x" for split in ("train", "val") for at in range(4)})
    options = CreateOptions(split_from_folder=True, workers=0)
    create(tmp_path / "in", tmp_path / "out" / "{split}-{0..}.tar", options)
    shutil.rmtree(tmp_path / "in" / "train")
    before = read_tree(tmp_path / "out")
    with pytest.raises(OutputExists, match="no samples for existing splits: train"):
        create(tmp_path / "in", tmp_path / "out" / "{split}-{0..}.tar", replace(options, resume=True))
    assert read_tree(tmp_path / "out") == before
    (tmp_path / "out" / "train-x.tar").touch()
    done = create(
        tmp_path / "in", tmp_path / "out" / "{split}-{0..}.tar", replace(options, resume=True, overwrite=True)
    )
    assert {path.name for path in (tmp_path / "out").glob("train*")} == {"train-x.tar"}
    assert "split train removed" in done.notes
    assert {*before} - {*read_tree(tmp_path / "out")} == {"train.json", "train-0.tar", "train-0.index"}


@pytest.mark.parametrize("name", ["{split}-{0..}.tar", "{split}/x-{0..}.tar"])
def test_a_renamed_split_is_refused(name: str, tmp_path: Path) -> None:
    """A split whose folder was renamed would stay, so its samples would be in two splits."""
    source, output = tmp_path / "in", f"{tmp_path}/out/{name}"
    write_tree(source, {f"{split}/cat/{at}.txt": b"x" for split in ("train", "val") for at in range(4)})
    options = CreateOptions(split_from_folder=True, workers=0)
    create(source, output, options)
    (source / "train").rename(source / "a-train")
    with pytest.raises(OutputExists, match="no samples for existing splits: train;"):
        create(source, output, replace(options, resume=True, max_removed=1))
    done = create(source, output, replace(options, resume=True, overwrite=True))
    assert "split train removed" in done.notes
    create(source, f"{tmp_path}/fresh/{name}", options)
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "fresh")


def test_an_unfinished_run_with_another_plan_is_noted(place: Path) -> None:
    """If an unfinished run had other options, a note says that its shards are written again."""
    (place / "out" / "x.json").unlink()
    assert not any("earlier run" in note for note in _pack(place, resume=True).notes)
    (place / "out" / "x.json").unlink()
    done = _pack(place, resume=True, max_count=3)
    assert any("written by an earlier run with other options" in note for note in done.notes)


def test_a_dataset_without_recorded_options(place: Path) -> None:
    """A dataset file from `index` records no options, so only samples are compared."""
    (place / "out" / "x.json").unlink()
    index(place / "out")
    assert _pack(place, resume=True).kept == 10


def test_without_sidecars_sample_counts_are_compared(place: Path) -> None:
    """Without sidecars, a plan with fewer samples than the dataset file is detected."""
    for path in (place / "out").glob("*.index"):
        path.unlink()
    assert _pack(place, resume=True).changes == ResumeChanges(10, 0, 0, 0, 0, 40)
    for path in (place / "out").glob("*.index"):
        path.unlink()
    _without(place, range(20))
    with pytest.raises(OutputExists, match="20 of 40"):
        _pack(place, resume=True)


def test_samples_of_a_function_are_counted_by_source(tmp_path: Path) -> None:
    """With `--map`, whose keys are unknown, source samples are counted."""
    write_tree(tmp_path / "in", _samples(range(_COUNT)))
    _pack(tmp_path, map="tests.mapped:doubled")
    assert _pack(tmp_path, resume=True, map="tests.mapped:doubled").changes is not None
    _without(tmp_path, range(20))
    with pytest.raises(OutputExists, match="20 of 40"):
        _pack(tmp_path, resume=True, map="tests.mapped:doubled")


def test_a_sample_that_moves_between_splits_is_not_removed(tmp_path: Path) -> None:
    """A sample that moves to another split is neither added nor removed."""
    rows = [f"{number:03},text{number},{'a' if number < 20 else 'b'}" for number in range(_COUNT)]
    (tmp_path / "m.csv").write_text("key,text,split\n" + "\n".join(rows))
    options = CreateOptions(workers=0, field=("txt=text",), split_column="split", max_count=4)
    output = f"{tmp_path}/{{split}}-{{000..}}.tar"
    create(tmp_path / "m.csv", output, options)
    (tmp_path / "m.csv").write_text("key,text,split\n" + "\n".join(row.replace(",a", ",b", 1) if row < "010" else row
                                                                  for row in rows))  # fmt: skip
    done = create(tmp_path / "m.csv", output, replace(options, resume=True))
    assert done.changes is not None
    assert (done.changes.samples_added, done.changes.samples_removed, done.samples) == (0, 0, _COUNT)


def test_without_an_earlier_run_nothing_changes(tmp_path: Path) -> None:
    """Without an earlier run, there are no changes."""
    write_tree(tmp_path / "in", _samples(range(4)))
    done = _pack(tmp_path, resume=True)
    assert done.changes is None
    assert "changes" not in done.to_json()


def test_the_command_line(place: Path) -> None:
    """The exit code is 5, the suggested command works, and summary and JSON report the removed samples."""
    _without(place, range(30, _COUNT))
    words = ["create", "in", "out/x-{000..}.tar", "--max-count", "4", "--workers", "0"]
    ran = typed(*words, "--resume", cwd=place)
    assert (ran.code, len(ran.err.splitlines())) == (5, 1)
    planned = typed(*words, "--resume", "--dry-run", cwd=place)
    assert planned.code == 0
    assert "would keep 7, write 1 and remove 2 shards; add 0 and remove 10 samples" in planned.out
    done = typed(*words, "--resume", "--overwrite", cwd=place)
    assert done.code == 0
    assert "removed 10 samples and 2 shards of the earlier run" in done.out
    _without(place, range(28, 30))
    document = json.loads(typed(*words, "--resume", "--json", cwd=place).out)
    assert document["changes"] == {"shards_kept": 7, "shards_written": 0, "shards_removed": 1, "samples_added": 0,
                                   "samples_removed": 2, "samples_before": 30}  # fmt: skip


def test_trust_by_size_reads_nothing(place: Path) -> None:
    """`--trust size` keeps shards by size and sidecar; it detects other sizes, but not other bytes."""
    right = read_tree(place / "out")
    (place / "in" / "005.txt").write_bytes(b"TEXT OF 5")
    os.truncate(place / "out" / "x-003.tar", 0)
    os.truncate(place / "out" / "x-003.tar", len(right["x-003.tar"]))
    done = _pack(place, resume=True, trust="size")
    assert (done.kept, done.shards) == (10, 10)
    assert {name: data for name, data in read_tree(place / "out").items() if name != "x-003.tar"} == {
        name: data for name, data in right.items() if name != "x-003.tar"
    }
    (place / "in" / "005.txt").write_bytes(b"longer than it was")
    assert _pack(place, resume=True, trust="size").kept == 9
    assert _pack(place, resume=True).kept == 9  # this run reads the shards, and repairs the shard that was emptied


@pytest.mark.slow
def test_a_compared_shard_is_trusted_from_then_on(tmp_path: Path) -> None:
    """A shard that was compared with its source gets a new modification time, so the next run does not read it."""
    source = Path(wsgiref.__file__).parent  # old files, which no import changes
    output, options = f"{tmp_path}/x-{{000..}}.tar", CreateOptions(workers=0, include=("*.py",), max_count=2)
    create(source, output, options)
    young = shards(tmp_path)[0]
    own = young.stat().st_mtime_ns % 10**9
    os.utime(young, ns=(own, own))  # as if the source had changed shortly before
    times = []
    for at in range(2):
        time.sleep(1.1 * at)  # another modification time would differ by a second
        assert create(source, output, replace(options, resume=True)).kept == len(shards(tmp_path))
        times.append(young.stat().st_mtime_ns)
    assert times[0] > time.time_ns() - 120 * 10**9
    assert times == [times[0]] * 2


def _kill_after_two_shards(place: Path) -> Path:
    """Leave the files of a run that was killed after its second shard. Return the journal."""

    class Dead(BaseException):
        """The end of a process."""

    class Killer(Observer):
        left = 2

        def shard(self, *_: object) -> None:
            self.left -= 1
            if not self.left:
                raise Dead

    shutil.rmtree(place / "out")
    with pytest.raises(Dead):
        create(place / "in", f"{place}/out/x-{{000..}}.tar", _OPTIONS, observer=Killer())
    return place / "out" / ".x.journal"


@pytest.fixture
def old_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each source seem older than the run, so that its shards can be trusted."""
    monkeypatch.setattr(resume, "_CLOCK_SLACK_S", -3600)


@pytest.mark.usefixtures("old_source")
def test_the_journal_of_an_interrupted_run_replaces_times(place: Path) -> None:
    """Shards in the journal of an interrupted run are kept without the source, whatever their times."""
    journal = _kill_after_two_shards(place)
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [line.get("shard") for line in lines] == [None, "x-000.tar", "x-001.tar"]
    for shard in shards(place / "out"):
        os.utime(shard)
    (place / "in" / "001.txt").write_bytes(b"TEXT OF 1")  # also seems older than the run
    assert _pack(place, resume=True).kept == 2
    assert not journal.exists()
    assert (place / "out" / "x-000.tar").read_bytes().count(b"text of 1") == 1


@pytest.mark.usefixtures("old_source")
@pytest.mark.parametrize(
    "change",
    [
        lambda line: {**line, "crc": line["crc"] ^ 1},
        lambda line: {**line, "size": line["size"] + 1},
        lambda line: {**line, "stamp": line["stamp"] + 1},
        lambda line: {**line, "stamp": "now"},
        lambda line: {**line, "other": 1},
        lambda line: [line],
        lambda line: json.dumps(line)[:-20],
    ],
)
def test_a_wrong_line_of_a_journal_is_not_trusted(change: Callable[[dict[str, Any]], object], place: Path) -> None:
    """A shard whose line is wrong or torn is compared with its source."""
    journal = _kill_after_two_shards(place)
    header, line, _ = journal.read_text().splitlines()
    changed = change(json.loads(line))
    journal.write_text(f"{header}\n{changed if isinstance(changed, str) else json.dumps(changed)}")
    for shard in shards(place / "out"):
        os.utime(shard)
    (place / "in" / "001.txt").write_bytes(b"TEXT OF 1")
    _pack(place, resume=True)
    assert b"TEXT OF 1" in (place / "out" / "x-000.tar").read_bytes()


@pytest.mark.usefixtures("old_source")
def test_a_copied_shard_does_not_match_the_journal(place: Path) -> None:
    """A valid shard of the same size that replaced the one in the journal is compared, and written again."""
    _kill_after_two_shards(place)
    write_tree(place / "other", {name: data.upper() for name, data in _samples(range(_COUNT)).items()})
    create(place / "other", f"{place}/theirs/x-{{000..}}.tar", _OPTIONS)
    for name in ("x-000.tar", "x-000.index"):
        shutil.copy2(place / "theirs" / name, place / "out" / name)
    assert _pack(place, resume=True).kept == 1
    assert b"text of 1" in (place / "out" / "x-000.tar").read_bytes()


def test_a_part_ends_its_own_journal(place: Path) -> None:
    """A part has a journal of its own, which is deleted with the last of its shards."""
    shutil.rmtree(place / "out")
    _pack(place, part="1/2")
    assert sorted(path.name for path in (place / "out").glob(".*")) == [".x.lock", ".x.part1of2"]


def test_a_leftover_journal_is_deleted_with_the_next_dataset(place: Path) -> None:
    """The run that finishes the dataset deletes the journal of an earlier run."""
    journal = _kill_after_two_shards(place)
    assert journal.exists()
    for name in ("..x.journal.part", "..x.part1of2.part"):  # incomplete temporary files of killed runs
        (place / "out" / name).touch()
    _pack(place, overwrite=True)
    assert [path.name for path in (place / "out").glob(".*")] == []
