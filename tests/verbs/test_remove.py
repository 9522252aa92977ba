"""Laws of `remove`: removed samples leave no trace, and all others stay, even after a kill."""

from __future__ import annotations

import json
import os
import random
import shutil
from typing import TYPE_CHECKING

import pytest

from shardtool import InvalidRequest, create, remove, verify
from shardtool.skipped import hash_key
from tests import stored
from tests.helpers import flip, identity, read_tree, sidecar, typed, write_tree
from tests.verbs.test_inspect import tar_of

if TYPE_CHECKING:
    from pathlib import Path

_KEYS = [f"{top}/person-{number:03}" for top in ("ann", "bob", "eve") for number in range(20)]


def _bytes(key: str) -> bytes:
    return random.Random(key).randbytes(600)  # noqa: S311 - only to differ


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Give a folder of 60 samples of three people."""
    files = {f"{key}.jpg": _bytes(key) for key in _KEYS}
    return write_tree(tmp_path / "source", files | {f"{key}.txt": key.encode() for key in _KEYS[::2]})


def _packed(source: Path, ending: str = "tar", count: int = 7) -> Path:
    pattern = source.parent / "out" / f"out-{{000..}}.{ending}"
    return source.parent / "out" / create(source, pattern, max_count=count, label_from_folder=True).dataset_file


def _traces(folder: Path, keys: list[str]) -> list[tuple[str, str]]:
    """Return the files that have a key, or a part of a payload, of these samples."""
    marks = {key: (key.encode(), _bytes(key)[100:132]) for key in keys}
    files = read_tree(folder)
    result = (
        (name, key) for name, data in files.items() for key, pair in marks.items() if any(item in data for item in pair)
    )
    return [*result]


def _keys(dataset: Path) -> list[str]:
    return [sample.key for shard in stored.sound(dataset) for sample in shard]


def test_removed_samples_leave_no_byte(source: Path, ending: str) -> None:
    """The dataset equals one created without these samples, and no file contains a trace of them."""
    dataset, deleted = _packed(source, ending), [_KEYS[3], _KEYS[4], _KEYS[41]]
    before = identity(dataset.parent)
    (done,) = remove(dataset, keys_from=deleted).datasets
    assert (done.removed, done.samples, done.shards) == (3, 57, 9)
    assert [name[4:7] for name in done.rewritten] == ["000", "005"]
    assert done.size == sum((dataset.parent / name).stat().st_size for name in done.rewritten)
    assert _traces(dataset.parent, deleted) == []
    assert verify(dataset, source=source).sound
    written = {*done.rewritten, *map(sidecar, done.rewritten), "out.json"}
    after = identity(dataset.parent)
    assert {name: after.get(name) for name in before if name not in written} == {
        name: fact for name, fact in before.items() if name not in written
    }
    for key in deleted:
        for path in source.glob(f"{key}.*"):
            path.unlink()
    assert (
        done.fingerprint == create(source, source.parent / f"new-{{0..}}.{ending}", label_from_folder=True).fingerprint
    )
    assert _keys(dataset) == [key for key in sorted(_KEYS) if key not in deleted]


def test_a_dry_run_reports_and_changes_nothing(source: Path) -> None:
    """It lists the shards to rewrite and their sizes, and changes no file."""
    dataset = _packed(source)
    before = identity(dataset.parent)
    plan = json.loads(typed("remove", dataset, "--where", "key < 'ann/person-002'", "--dry-run", "--json").out)
    assert identity(dataset.parent) == before
    done = json.loads(typed("remove", dataset, "--where", "key < 'ann/person-002'", "--json").out)
    for found in (plan, done):
        del found["seconds"], found["datasets"][0]["fingerprint"]
    assert done.keys() - plan.keys() == {"bytes_per_s", "samples_per_s"}  # nothing was done, so there is no speed
    assert plan == {**{name: done[name] for name in plan.keys() & done.keys()}, "dry_run": True}


@pytest.mark.parametrize(
    ("words", "says"),
    [(("--where", "key == 'nobody'"), "no sample"), (("--where", "key > ''"), "would remove all"), ((), "no samples"),
     (("--keys-from", "none"), "no such file"), (("--where", "key > 'b'", "--keys-from", "none"), "used with")],
)  # fmt: skip
def test_invalid_requests_change_nothing(source: Path, words: tuple[str, ...], says: str) -> None:
    """No matching sample, all samples, and contradictory options are errors."""
    dataset = _packed(source)
    before = identity(dataset.parent)
    ran = typed("remove", dataset, *words)
    assert (ran.code, says in ran.err, identity(dataset.parent)) == (2, True, before), ran
    with pytest.raises(InvalidRequest, match="1 key not found: x"):
        remove(dataset, keys_from=[_KEYS[0], "x"])
    with pytest.raises(InvalidRequest, match="expected a file with one key per line, or keys"):
        remove(dataset, keys_from=["half of a pair: \ud800"])
    assert identity(dataset.parent) == before


def test_only_whole_datasets_are_accepted(source: Path, tmp_path: Path) -> None:
    """Shards without a dataset file, and some shards of a dataset, are refused."""
    dataset = _packed(source)
    shard = tar_of(tmp_path / "x.tar", [("a.txt", b"1")])
    for given in (shard, dataset.parent / "out-000.tar"):
        ran = typed("remove", given, "--where", "key > ''")
        assert (ran.code, "expected the dataset file of a whole dataset" in ran.err) == (2, True), ran


def test_other_files_that_may_contain_samples_are_found(source: Path) -> None:
    """Temporary files of an interrupted run are deleted; unlisted shards are refused."""
    dataset = _packed(source)
    (dataset.parent / ".out-001.tar.part").write_bytes(_bytes(_KEYS[0]))
    shutil.copy(dataset.parent / "out-000.tar", dataset.parent / "out-009.tar")
    assert typed("remove", dataset, "--where", f"key == '{_KEYS[0]}'").code == 5
    (dataset.parent / "out-009.tar").rename(source.parent / "moved.tar")
    (dataset.parent / "out-002.tar").rename(source.parent / "stored.tar")
    (dataset.parent / "out-002.tar").symlink_to(source.parent / "stored.tar")
    assert typed("remove", dataset, "--where", f"key == '{_KEYS[0]}'").code == 5
    (source.parent / "stored.tar").rename(dataset.parent / "out-002.tar")
    shutil.copy(dataset.parent / "out-001.tar", dataset.parent / "out-0024.tar")
    (dataset.parent / "out-x1.tar").write_bytes(b"another's")
    ran = typed("remove", dataset, "--where", f"key == '{_KEYS[0]}'")
    assert ran.code == 0
    assert "out-0024.tar: not part of the dataset, but may contain these samples, too" in ran.err
    (dataset.parent / "out-0024.tar").unlink()
    assert _traces(dataset.parent, [_KEYS[0]]) == []


def test_an_unreadable_plan_changes_nothing(source: Path) -> None:
    """A folder or a link with the name of a plan is an error."""
    dataset = _packed(source)
    before, plan = read_tree(dataset.parent), dataset.parent / ".out.replacing"
    for is_link in (False, True):
        plan.symlink_to(dataset) if is_link else plan.mkdir()
        ran = typed("remove", dataset, "--where", f"key == '{_KEYS[3]}'")
        assert (ran.code, "not a plan for replacing shards" in ran.err) == (4, True)
        plan.unlink() if is_link else plan.rmdir()
    assert read_tree(dataset.parent) == before


def test_an_empty_shard_keeps_its_number(source: Path, ending: str) -> None:
    """A shard without samples stays, the dataset is valid, and a class without samples keeps its number."""
    dataset = _packed(source, ending)
    (done,) = remove(dataset, where="key < 'bob'").datasets
    assert (done.samples, done.empty[:2]) == (40, (f"out-000.{ending}", f"out-001.{ending}"))
    assert verify(dataset).sound
    assert json.loads(dataset.read_text())["shardtool"]["classes"]["cls"] == ["ann", "bob", "eve"]
    assert _keys(dataset) == sorted(_KEYS)[20:]


def test_removed_samples_do_not_come_back(source: Path) -> None:
    """`--resume` and appends skip removed samples with a note; `--overwrite` adds them again with a note."""
    dataset, deleted = _packed(source), _KEYS[5]
    remove(dataset, keys_from=[deleted])
    again = ("create", source, dataset.parent / "out-{000..}.tar", "--max-count", "7", "--label-from-folder")
    for words in (("--resume",), ("--append", "--on-duplicate", "first")):
        ran = typed(*again, *words)
        assert (ran.code, "1 sample skipped, deleted earlier with `remove`" in ran.err) == (0, True), ran
        assert _keys(dataset) == [key for key in sorted(_KEYS) if key != deleted]
        assert hash_key(deleted.encode()) in (dataset.parent / "out.skipped").read_text()
        assert verify(dataset, source=source).sound
    assert "were removed before" in "".join(remove(dataset, keys_from=[deleted]).notes)
    ran = typed(*again, "--overwrite")
    assert (ran.code, deleted in _keys(dataset), "deleted earlier with `remove` will be" in ran.err) == (0, True, True)


def test_no_list_names_a_removed_sample_again(tmp_path: Path) -> None:
    """A continued run does not list a removed sample as a duplicate or as unreadable."""
    source = write_tree(tmp_path / "source", {f"{name}.jpg": name.encode() for name in ("ann", "bob", "eve", "zoe")})
    other = ", which has another x"
    write_tree(source, {f"{name}.jpg": b"ann" for name in ("ann-2", f"ann-2{other}", "ann-3")})
    write_tree(source, {"ann.cls": b"1", "ann-3.cls": b"2", "bob.json": b'{"a": 1}'})
    options = (source, tmp_path / "out-{0..}.tar", "--drop-duplicates", "--columns-from", "json", "--on-error", "skip")
    assert typed("create", *options).code == 0
    assert "ann, which has another cls" in (tmp_path / "out.skipped").read_text()
    remove(tmp_path / "out.json", keys_from=["ann", "bob"])
    write_tree(source, {"bob.json": b"{"})
    for words in ("--resume", "--resume", "--update"):
        ran = typed("create", *options, words)
        assert ran.code == 0, ran
        rows = [json.loads(line) for line in (tmp_path / "out.skipped").read_text().splitlines()]
        assert sorted(row["key"][:3] for row in rows) == ["ann", "ann", "ann", "b2:", "b2:"]
        messages = {row["message"] for row in rows if row["code"] == "duplicate"}
        assert messages == {"has the same content as a removed sample"}
        assert "bob" not in ran.err + ran.out


def test_splits_are_processed_separately(source: Path) -> None:
    """Each split with such samples gets new shards; the others are unchanged, and all remain splits of one run."""
    folder = source.parent / "out"
    create(source, folder / "{split}-{000..}.tar", split="a=0.5,b=0.4,c=0.1", max_count=9)
    splits = {name: _keys(folder / f"{name}.json") for name in "abc"}
    deleted, before = [splits["a"][0], splits["b"][-1]], identity(folder)
    ran = remove(f"{folder}/{{split}}.json", keys_from=deleted)
    assert [os.path.basename(dataset.dataset_file) for dataset in ran.datasets] == ["a.json", "b.json"]
    assert {name for name, fact in identity(folder).items() if before.get(name) != fact} == {
        name for dataset in ran.datasets for shard in dataset.rewritten for name in (shard, sidecar(shard))
    } | {"a.json", "b.json", "a.skipped", "b.skipped"}
    report = typed("verify", f"{folder}/{{split}}.json", "--source", source)
    assert (report.code, _traces(folder, deleted)) == (0, []), report


def test_metadata_stay_and_the_skipped_list_is_updated(tmp_path: Path) -> None:
    """Columns of other samples are unchanged; rows of the skipped list that name the sample are deleted."""
    files = {"a.json": b'{"n": 1}', "b.json": b'{"n": 2}', "c.json": b'{"n": 3}', "bad.json": b"{", "b.x": b"1"}
    made = create(write_tree(tmp_path / "s", files), tmp_path / "o-{000..}.tar", columns_from=["json"], on_error="skip")
    data = tmp_path / made.dataset_file
    remove(data, where="n == 2")
    assert [sample.columns["n"] for shard in stored.sound(data) for sample in shard] == [1, 3]
    rows = [json.loads(line) for line in (tmp_path / "o.skipped").read_text().splitlines()]
    assert [row["code"] for row in rows] == ["removed", "bad-json"]
    assert verify(data).sound


def test_a_damaged_sample_can_be_removed(source: Path, ending: str) -> None:
    """The remaining dataset is valid; damage in another sample of the shard fails the run."""
    dataset = _packed(source, ending)
    shard = dataset.parent / f"out-000.{ending}"
    flip(shard, shard.read_bytes().index(_bytes(_KEYS[2])) + 9)
    before = identity(dataset.parent)
    ran = typed("remove", dataset, "--where", f"key == '{_KEYS[1]}'")
    assert (ran.code, identity(dataset.parent)) == (4, before), ran
    assert typed("remove", dataset, "--where", f"key == '{_KEYS[2]}'").code == 0
    assert verify(dataset).sound
    assert _keys(dataset) == [key for key in sorted(_KEYS) if key != _KEYS[2]]
