"""`--append`: new samples become new shards, existing shards do not change, and every intermediate state is safe."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool import (
    CorruptShard,
    CreateOptions,
    InvalidRequest,
    Observer,
    OutputExists,
    SampleFailed,
    ShardError,
    create,
    export,
    index,
    inspect,
    verify,
)
from shardtool.dataset.dataset_file import DatasetFile, parse_dataset
from shardtool.dataset.skipped_list import encode_skipped, merge_skipped, parse_skipped, unmerge_skipped
from shardtool.entries.sample_table import FieldValues
from shardtool.entries.strings import PackedStrings
from shardtool.pack.append import prepare_append
from shardtool.pack.run import Listed, Output
from shardtool.pattern import parse_pattern, sidecar_name
from shardtool.publish.append_target import Append, FinishedAppend, list_later_files, remaining_names
from shardtool.publish.dataset_keys import check_new_keys, read_dataset_keys
from shardtool.publish.destination import Destination, inspect_destination
from shardtool.publish.foreign_index_files import export_notes, find_existing_exports
from shardtool.skipped import Skipped
from shardtool.storage.folders import open_folder
from tests import tfrecords
from tests.helpers import create_and_die, existing, flip, identity, members, read_tree, shards, typed, write_tree
from tests.stored import contents, skipped, sound

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardtool.request.run_record import RunRecord

# Forked workers start ten times faster, and use no lock that a thread of this process may hold.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

STEM = "out-{000..}"


def _tree(root: Path, folder: str, count: int, more: int = 0) -> Path:
    """Write samples with two fields. Every third sample lacks a field."""
    files = {}
    for number in range(count):
        files[f"{folder}/{number:03}.txt"] = f"{folder} {number} ".encode() * (number + 1 + more)
        if number % 3:
            files[f"{folder}/{number:03}.bin"] = bytes([number]) * (200 * number)
    return write_tree(root, files)


@pytest.fixture(scope="session")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return seven samples."""
    return _tree(tmp_path_factory.mktemp("old"), "old", 7)


@pytest.fixture(scope="session")
def new(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return five other samples."""
    return _tree(tmp_path_factory.mktemp("new"), "new", 5)


def _options(**asked: Any) -> CreateOptions:
    """Return options for three samples per shard and one worker by default."""
    return CreateOptions(**{"max_count": 3, "workers": 0, **asked})


def _create(source: Any, output: Any, **asked: Any) -> Path:
    """Create a dataset; return its dataset file."""
    create(source, output, _options(**asked))
    pattern = parse_pattern(output)
    return Path(pattern.folder) / pattern.dataset_file


def append(source: Any, output: Any, observer: Observer | None = None, *, resume: bool = False, **asked: Any) -> None:
    """Append the samples of a source."""
    options = _options(append=True, resume=resume, **asked)
    create(source, output, options, observer=observer)


def _read(file: Path) -> DatasetFile:
    return parse_dataset(file.read_bytes(), file.name)


def _check_valid(file: Path) -> None:
    """Check a dataset with `verify`, and without any code of shardtool."""
    report = verify(file)
    assert report.sound, report.findings
    sound(file)


@pytest.fixture
def pattern(tmp_path: Path, ending: str) -> str:
    """Return a pattern in an empty folder."""
    return f"{tmp_path}/out/{STEM}.{ending}"


@pytest.fixture
def dataset(old: Path, pattern: str) -> Path:
    """Return the dataset file of the old samples."""
    return _create(old, pattern)


@pytest.fixture
def tar_pattern(tmp_path: Path) -> str:
    """Return a pattern of tar shards in an empty folder."""
    return f"{tmp_path}/out/{STEM}.tar"


@pytest.fixture
def tars(old: Path, tar_pattern: str) -> Path:
    """Return the dataset file of the old samples in tar shards."""
    return _create(old, tar_pattern)


def test_an_append_equals_a_dataset_of_both_sources(
    old: Path, new: Path, dataset: Path, pattern: str, tmp_path: Path
) -> None:
    """After an append, the dataset has the content and the counts of a dataset created from both sources."""
    append(new, pattern)
    _check_valid(dataset)
    both = shutil.copytree(old, tmp_path / "both")
    shutil.copytree(new, both, dirs_exist_ok=True)
    whole = _create(both, pattern.replace("/out/", "/whole/"))
    dataset_file, expected = _read(dataset), _read(whole)
    for name in ("name", "pattern", "format", "fields", "schema", "classes", "features", "fingerprint"):
        assert getattr(dataset_file, name) == getattr(expected, name), name
    assert dataset_file.field_bytes == expected.field_bytes
    assert contents(sound(dataset)) == contents(sound(whole))
    assert [record.source for record in dataset_file.run.appended] == [new.name]
    assert dataset_file.appends == (3,)


def test_existing_shards_are_not_opened_for_writing(new: Path, dataset: Path, pattern: str) -> None:
    """An append replaces the dataset file and opens no other existing file for writing."""
    before = identity(dataset.parent)
    append(new, pattern)
    after = identity(dataset.parent)
    assert {name: after[name] for name in before if name != dataset.name} == {
        name: fact for name, fact in before.items() if name != dataset.name
    }
    assert len(after) == len(before) + 4


@pytest.mark.parametrize("workers", [1, 2])
def test_appended_shards_equal_created_shards(new: Path, dataset: Path, pattern: str, workers: int) -> None:
    """Appended shards and sidecars are byte-identical to those that `create` writes under these names."""
    append(new, pattern, workers=workers)
    alone = pattern.replace("/out/", "/alone/")
    _create(new, alone.replace("{000..}", "{003..}"))
    made = read_tree(Path(parse_pattern(alone).folder))
    del made["out.json"]
    assert len(made) == 4
    assert made.items() <= read_tree(dataset.parent).items()


class _Watching(Observer):
    """Reads the dataset, as a reader would, whenever a shard is finished."""

    def __init__(self, dataset: Path) -> None:
        self._dataset, self._before, self.finished_shards = dataset, dataset.read_bytes(), 0

    def advance(self, samples: int, size: int, shards: int) -> None:  # noqa: ARG002 - the signature of the base class
        """Check that the dataset file is the old one, and correct."""
        assert self._dataset.read_bytes() == self._before
        if shards:
            assert _is_listing_correct(self._dataset.parent, json.loads(self._before))
            self.finished_shards += 1


def _is_listing_correct(folder: Path, listing: Any) -> bool:
    """Return whether a dataset file describes its shards correctly."""
    import crc32c

    data = [(folder / shard["url"]).read_bytes() for shard in listing["shardlist"]]
    listed = [(shard["filesize"], shard["crc32c"]) for shard in listing["shardlist"]]
    return [(len(shard), f"{crc32c.crc32c(shard):08x}") for shard in data] == listed


def test_readers_see_the_old_or_the_new_dataset(new: Path, tars: Path, tar_pattern: str) -> None:
    """Readers that opened the old dataset can read all of it. During an append, readers open the old dataset."""
    watching = _Watching(tars)
    with tars.open("rb") as opened:
        append(new, tar_pattern, watching)
        listing = json.loads(opened.read())
    assert watching.finished_shards == 2
    assert len(listing["shardlist"]) == 3
    assert _is_listing_correct(tars.parent, listing)
    now = json.loads(tars.read_bytes())
    assert now["shardlist"][:3] == listing["shardlist"]
    assert _is_listing_correct(tars.parent, now)


def _killed(source: Path, pattern: str, rename: int, *, resume: bool = False) -> None:
    """Append in a process that is killed at the given rename, counted from 1."""
    assert create_and_die(source, pattern, rename, max_count=3, on_error="skip", workers=2, append=True, resume=resume)


@pytest.fixture
def gaps(tmp_path: Path) -> Path:
    """Return five samples, and two files that cannot be read."""
    source = _tree(tmp_path / "gaps", "gaps", 5)
    os.mkfifo(source / "gaps" / "007.txt")
    os.mkfifo(source / "gaps" / "008.txt")
    return source


@pytest.fixture
def holed(old: Path, tmp_path: Path) -> Path:
    """Return a dataset with skipped samples."""
    source = shutil.copytree(old, tmp_path / "holed")
    os.mkfifo(source / "old" / "x\x1b.txt")
    return _create(source, f"{tmp_path}/out/{STEM}.tar", on_error="skip")


@pytest.mark.slow
@pytest.mark.parametrize("rename", [1, 2, 3, 4, 5, 6])
def test_an_interrupted_append_is_resumed(gaps: Path, holed: Path, tmp_path: Path, rename: int) -> None:
    """After a kill at any rename, the old dataset is whole, and `--resume` writes the same bytes."""
    output = f"{tmp_path}/out/{STEM}.tar"
    safe = shutil.copytree(holed.parent, tmp_path / "safe")
    append(gaps, f"{safe}/{STEM}.tar", on_error="skip")
    expected = read_tree(safe)
    before = read_tree(holed.parent)

    _killed(gaps, output, rename)
    interrupted = read_tree(holed.parent)
    assert {name: data for name, data in interrupted.items() if name in before and name != "out.skipped"} == {
        name: data for name, data in before.items() if name != "out.skipped"
    }
    assert {name: data for name, data in interrupted.items() if name[0] != "."}.items() <= {
        **expected, "out.json": before["out.json"], "out.skipped": interrupted["out.skipped"]
    }.items()  # fmt: skip
    assert interrupted["out.skipped"] in (before["out.skipped"], expected["out.skipped"])
    if any(name[0] != "." and name not in before for name in interrupted):
        with pytest.raises(OutputExists, match="append=True, resume=True"):
            append(gaps, output, on_error="skip")
        assert read_tree(holed.parent) == interrupted
    finished = identity(holed.parent)
    append(gaps, output, resume=True, on_error="skip")
    assert read_tree(holed.parent) == expected
    done = {name: fact for name, fact in finished.items() if name.endswith((".tar", ".index")) and name[0] != "."}
    assert {name: fact for name, fact in identity(holed.parent).items() if name in done} == done
    _check_valid(holed)
    assert len(skipped(holed)) == 3


@pytest.mark.slow
def test_an_append_interrupted_repeatedly_is_resumed(gaps: Path, holed: Path, tmp_path: Path) -> None:
    """An append that is interrupted any number of times ends with the same bytes."""
    output = f"{tmp_path}/out/{STEM}.tar"
    safe = shutil.copytree(holed.parent, tmp_path / "safe")
    append(gaps, f"{safe}/{STEM}.tar", on_error="skip", workers=2)
    _killed(gaps, output, 2)
    for rename in (2, 2):  # finished shards are not renamed again
        _killed(gaps, output, rename, resume=True)
    append(gaps, output, resume=True, on_error="skip")
    assert read_tree(holed.parent) == read_tree(safe)


def test_resume_with_another_source_replaces_shards(new: Path, dataset: Path, pattern: str, tmp_path: Path) -> None:
    """Shards of an interrupted append are replaced, and shards beyond the new plan are deleted."""
    leftover = _create(_tree(tmp_path / "more", "more", 9), pattern.replace("/out/", "/more/"))
    for number in (0, 2):
        for name in (f"out-{number:03}{shards(dataset.parent)[0].suffix}", f"out-{number:03}.index"):
            shutil.copy(leftover.parent / name, dataset.parent / name.replace(f"{number:03}", f"{number + 3:03}"))
    append(new, pattern, resume=True)
    assert [path.stem for path in shards(dataset.parent)] == [f"out-{number:03}" for number in range(5)]
    _check_valid(dataset)


def test_a_finished_append_is_detected(new: Path, dataset: Path, pattern: str) -> None:
    """An append that was interrupted after its dataset file writes nothing when resumed."""
    append(new, pattern)
    before = identity(dataset.parent)
    append(new, pattern, resume=True)
    assert identity(dataset.parent) == before


def test_a_finished_append_with_skipped_samples_is_detected(gaps: Path, holed: Path, tmp_path: Path) -> None:
    """A finished append with skipped samples is detected. If fewer samples are skipped, it is another append."""
    output = f"{tmp_path}/out/{STEM}.tar"
    asked: dict[str, Any] = {"on_error": "skip", "oversize": "skip", "max_size": 8000}
    (gaps / "gaps" / "big.txt").write_bytes(bytes(8000))
    append(gaps, output, **asked)
    assert [row["code"] for row in skipped(holed)] == ["oversize", *["special-file"] * 3]
    before = identity(holed.parent)
    append(gaps, output, resume=True, **asked)
    assert identity(holed.parent) == before
    (gaps / "gaps" / "small.txt").write_bytes(b"small")
    with pytest.raises(InvalidRequest, match="5 keys already exist"):
        append(gaps, output, resume=True, **asked)
    assert identity(holed.parent) == before


def test_a_finished_append_with_other_content_is_refused(
    new: Path, tars: Path, tar_pattern: str, tmp_path: Path
) -> None:
    """Other content under the keys of the last append is refused."""
    append(new, tar_pattern)
    before = read_tree(tars.parent)
    other = shutil.copytree(new, tmp_path / new.name)
    (other / "new" / "002.txt").write_bytes((other / "new" / "002.txt").read_bytes().swapcase())
    with pytest.raises(InvalidRequest, match="other content"):
        append(other, tar_pattern, resume=True)
    (other / "new" / "002.txt").write_bytes(b"of another size")
    with pytest.raises(InvalidRequest, match="other content"):
        append(other, tar_pattern, resume=True)
    assert read_tree(tars.parent) == before


def test_resume_of_other_samples_appends_them(new: Path, tars: Path, tar_pattern: str, tmp_path: Path) -> None:
    """`--append --resume` appends if there is nothing to resume, even if the last append had the same options."""
    append(new, tar_pattern)
    append(_tree(tmp_path / new.name, "more", 4), tar_pattern, resume=True)
    assert _read(tars).appends == (3, 5)
    assert len(_read(tars).shards) == 7
    _check_valid(tars)


@pytest.mark.parametrize("resume", [False, True])
def test_existing_keys_are_refused(old: Path, tars: Path, tar_pattern: str, tmp_path: Path, *, resume: bool) -> None:
    """A key that already exists is refused, with the option that skips it; no file changes."""
    before, first = identity(tars.parent), "on_duplicate='first' appends only samples with new keys"
    advice = "This source may have been appended before"
    with pytest.raises(InvalidRequest, match=rf"all 7 keys already exist: old/000, .* {advice}\. {first}"):
        append(old, tar_pattern, resume=resume)
    some = write_tree(tmp_path / "some", {"new/1.txt": b"1", "old/004.txt": b"2", "old/9.txt": b"3"})
    with pytest.raises(InvalidRequest, match=rf"1 key already exists: old/004;.* {first}"):
        append(some, tar_pattern, resume=resume)
    assert identity(tars.parent) == before


@given(
    st.lists(st.text("ab/\xe9", max_size=3), unique=True, max_size=20),
    st.lists(st.text("ab/\xe9", max_size=3), max_size=20),
)
def test_keys_are_refused_exactly_if_one_exists(keys: list[str], taken: list[str]) -> None:
    """Keys are refused exactly if one of them exists."""
    names = PackedStrings.of([key.encode() for key in keys]), PackedStrings.of([key.encode() for key in taken])
    shared = set(keys) & set(taken)
    if not shared:
        check_new_keys(*names, "out.json")
        return
    with pytest.raises(InvalidRequest) as raised:
        check_new_keys(*names, "out.json")
    assert f"{len(shared)} key" in raised.value.found
    assert ("all" in raised.value.found) == (len(shared) == len(keys))


def test_keys_come_from_sidecars(tars: Path) -> None:
    """Keys are read in sample order, and a flipped bit in any sidecar is detected."""
    folder = open_folder(str(tars.parent))
    keys = read_dataset_keys(folder, _read(tars).shards)
    assert [keys[at].decode() for at in range(len(keys))] == list(contents(sound(tars)))
    index = tars.parent / "out-001.index"
    for at in range(0, index.stat().st_size, 97):
        flip(index, at)
        with pytest.raises(CorruptShard, match=r"out-001\.index"):
            read_dataset_keys(folder, _read(tars).shards)
        flip(index, at)


def test_resume_does_not_remove_appended_shards(old: Path, new: Path, dataset: Path, pattern: str) -> None:
    """`--resume` of the first run is refused if it would delete appended shards."""
    append(new, pattern)
    for at in (-20, 60):
        before = identity(dataset.parent)
        with pytest.raises(OutputExists, match="appended shards"):
            create(old, pattern, _options(resume=True))
        with pytest.raises(OutputExists, match="Delete the dataset first, or use another output"):
            create(old, pattern, _options(resume=True, part="1/2"))
        assert identity(dataset.parent) == before
        flip(dataset, at)
    create(old, pattern, _options(overwrite=True))
    assert _read(dataset).appends == ()
    assert len(shards(dataset.parent)) == 3


def _refused(source: Path, output: Any, folder: Path, error: type[ShardError], message: str) -> None:
    before = identity(folder) if folder.exists() else None
    for resume in (False, True):
        with pytest.raises(error, match=message):
            append(source, output, resume=resume)
    assert before == (identity(folder) if folder.exists() else None)


def test_an_append_needs_a_dataset(new: Path, tar_pattern: str, tars: Path) -> None:
    """Without a complete dataset, an append is refused."""
    _refused(
        new, tar_pattern.replace("/out/", "/no/"), tars.parent.with_name("no"), InvalidRequest, "without append=True"
    )
    tars.unlink()
    _refused(new, tar_pattern, tars.parent, InvalidRequest, "no dataset file, but 6 files")


def _flip_dataset_file(dataset: Path) -> str:
    flip(dataset, 400)
    return r"out\.json.*checksum"


def _cut_shard(dataset: Path) -> str:
    path = shards(dataset.parent)[1]
    os.truncate(path, path.stat().st_size - 1)
    return rf"{path.name}: .* bytes"


def _lose_shard(dataset: Path) -> str:
    path = shards(dataset.parent)[2]
    path.unlink()
    return rf"{path.name}: no such file"


def _lose_sidecar(dataset: Path) -> str:
    (dataset.parent / "out-000.index").unlink()
    return r"out-000\.index: no such file"


def _flip_sidecar(dataset: Path) -> str:
    flip(dataset.parent / "out-002.index", 40)
    return r"out-002\.index: .*CRC-32C"


def _list_an_unknown_sample(dataset: Path) -> str:
    (dataset.parent / "out.skipped").write_bytes(b'{"key": "", "path": "a", "code": "x", "message": ""}\n')
    return r"out\.skipped: 1 row"


@pytest.mark.parametrize(
    "damage", [_flip_dataset_file, _cut_shard, _lose_shard, _lose_sidecar, _flip_sidecar, _list_an_unknown_sample]
)
def test_a_damaged_dataset_is_not_appended_to(
    new: Path, tars: Path, tar_pattern: str, damage: Callable[[Path], str]
) -> None:
    """A dataset with a missing, truncated or changed file is refused, and does not change."""
    _refused(new, tar_pattern, tars.parent, CorruptShard, damage(tars))


@pytest.mark.parametrize(
    ("output", "error", "message"),
    [
        ("out-{001..}.tar", InvalidRequest, "a pattern with a shard out-001.tar.*out-000.tar"),
        ("out-{000..001}.tar", InvalidRequest, "2 names for 3 shards"),
        ("out-{000..002}.tar", InvalidRequest, "all 3 names used"),
        ("out-{0..}.tar", InvalidRequest, "a pattern with a shard out-0.tar; expected out-000.tar"),
        ("out-{000..}.tfrecord", OutputExists, "shards of another format"),
        (
            ("out-000.tar", "out-002.tar", "out-001.tar", "out-003.tar"),
            InvalidRequest,
            "a pattern with a shard out-002.tar",
        ),
    ],
)
def test_another_pattern_is_refused(new: Path, tars: Path, output: Any, error: type[ShardError], message: str) -> None:
    """A pattern that does not produce the names of the existing shards is refused."""
    placed = [f"{tars.parent}/{name}" for name in ([output] if isinstance(output, str) else output)]
    _refused(new, placed, tars.parent, error, message)


@pytest.mark.parametrize(
    ("names", "fits"),
    [("out-{000..004}.tar", True), ("out-{000..003}.tar", False), (tuple("abcde"), True), (tuple("abcd"), False)],
)
def test_a_closed_range_limits_an_append(old: Path, new: Path, tmp_path: Path, names: Any, *, fits: bool) -> None:
    """The remaining names of a closed range or a list limit the append."""
    is_range = isinstance(names, str)
    output = [f"{tmp_path}/{name}" for name in ([names] if is_range else [f"{name}.tar" for name in names])]
    first = f"{tmp_path}/out-{{000..}}.tar" if is_range else output[:3]
    dataset = tmp_path / ("out.json" if is_range else "dataset.json")
    create(old, first, _options())
    if not fits:
        _refused(new, output, tmp_path, InvalidRequest, "1 name for 2 shards")
        return
    append(new, output)
    assert verify(dataset).sound
    assert len(_read(dataset).shards) == 5


def test_a_closed_range_is_filled(old: Path, new: Path, tmp_path: Path) -> None:
    """Without a bound, an append fills the remaining names of a closed range."""
    _create(old, f"{tmp_path}/{STEM}.tar")
    append(new, f"{tmp_path}/out-{{000..006}}.tar", max_count=None)
    assert [len(samples) for samples in sound(tmp_path / "out.json")[3:]] == [2, 1, 1, 1]


@given(st.integers(0, 2000), st.integers(0, 40), st.integers(1, 60), st.integers(0, 5))
def test_remaining_names(first: int, width: int, count: int, taken: int) -> None:
    """The remaining pattern contains exactly the unused names, and so does its text."""
    last = f"{first + count - 1:0{width}d}"
    for end in ("", last):
        pattern = parse_pattern(f"a/x{{{first:0{width}d}..{end}}}-0.tar")
        if end and taken >= count:
            if taken:
                with pytest.raises(InvalidRequest):
                    remaining_names(pattern, taken)
            continue
        left = remaining_names(pattern, taken)
        numbers = range(count - taken if end else 3)
        names = [left.shard(number) for number in numbers]
        assert names == [pattern.shard(taken + number) for number in numbers]
        assert [parse_pattern(f"a/{left.text}").shard(number) for number in numbers] == names
        assert (left.base, left.format) == (pattern.base, pattern.format)


@given(st.integers(0, 30), st.integers(0, 12), st.sampled_from(["-0.tar", ".tar", "x1.tar"]))
def test_later_files(first: int, count: int, suffix: str) -> None:
    """Later files are exactly the shards and sidecars from a number on."""
    pattern = parse_pattern(f"{'n'}{{{first:02}..}}{suffix}")
    owned = [pattern.dataset_file, pattern.skipped_file]
    owned += [file for at in range(12) for file in (pattern.shard(at), sidecar_name(pattern.shard(at)))]
    below = [f"n{number:02}{suffix}" for number in range(first)]
    assert all(map(pattern.owns, [*owned, *below]))
    expected = [file for at in range(count, 12) for file in (pattern.shard(at), sidecar_name(pattern.shard(at)))]
    assert list_later_files(pattern, [*owned, *below], count) == sorted(expected)
    listed = parse_pattern([pattern.shard(at) for at in (5, 3, 8)])
    assert list_later_files(listed, owned, 2) == sorted([pattern.shard(8), sidecar_name(pattern.shard(8))])


_TEXTS = st.text(st.sampled_from('ab"\\\x1b\n\udcff\xe9%'), max_size=3)
_ROWS = st.lists(st.builds(Skipped, _TEXTS, _TEXTS, st.sampled_from(["x", "y"]), _TEXTS), max_size=8)


@given(_ROWS, _ROWS)
def test_skipped_lists_round_trip(old: list[Skipped], new: list[Skipped]) -> None:
    """A list is read as it was written; a merged list contains both, and can be separated again."""
    rows = parse_skipped(encode_skipped(old), "out.skipped")
    assert encode_skipped(rows) == encode_skipped(old)
    both = merge_skipped(rows, new)
    assert sorted(encode_skipped(both).splitlines()) == sorted(encode_skipped([*old, *new]).splitlines())
    assert merge_skipped(rows, new[::-1]) == both
    assert sorted(encode_skipped(unmerge_skipped(both, new)).splitlines()) == sorted(encode_skipped(old).splitlines())


@pytest.mark.parametrize("data", [b"[]\n", b"{}\n", b"no JSON\n", b'{"key": 1}\n', b"\xff\n"])
def test_an_invalid_skipped_list_is_refused(data: bytes) -> None:
    """A list of skipped samples with other content is damaged."""
    with pytest.raises(CorruptShard, match="list of skipped samples"):
        parse_skipped(data, "out.skipped")


@settings(max_examples=6)
@given(groups=st.lists(st.sets(st.integers(0, 9), min_size=1), min_size=1, max_size=4))
def test_the_content_does_not_depend_on_the_number_of_appends(
    tmp_path_factory: pytest.TempPathFactory, groups: list[set[int]]
) -> None:
    """One run or several appends give the same content fingerprint."""
    root, seen = tmp_path_factory.mktemp("groups"), set[int]()
    fields = ("txt", "bin", "cls")
    for at, group in enumerate(groups):
        files = {f"{n}.{fields[n % 3]}": b"%d" % n for n in group - seen}
        if not files:
            continue
        source = write_tree(root / f"{at}", files)
        (append if seen else _create)(source, f"{root}/out-{{0..}}.tar")
        write_tree(root / "all", files)
        seen |= group
    appended, whole = _read(root / "out.json"), _read(_create(root / "all", f"{root}/whole/out-{{0..}}.tar"))
    assert (appended.fields, appended.field_bytes) == (whole.fields, whole.field_bytes)
    assert appended.fingerprint == whole.fingerprint
    assert verify(root / "out.json").sound


def _table(keys: list[str], **columns: Any) -> pa.Table:
    return pa.table({"key": keys, "text": [f"text of {key}" for key in keys], **columns})


def _from_table(table: pa.Table, output: str, **more: Any) -> None:
    append(table, output, key="key", field=("txt=text",), **more)


@pytest.fixture
def tabled(tmp_path: Path, ending: str) -> str:
    """Return the pattern of a dataset with a column `width`."""
    pattern = f"{tmp_path}/out/{STEM}.{ending}"
    _create(_table(["a", "b", "c", "d"], width=[1, 2, 3, 4]), pattern, key="key", field=("txt=text",))
    return pattern


def test_an_append_adds_columns(tabled: str, tmp_path: Path) -> None:
    """New samples may lack columns and add some; the schema and readers of sidecars include all."""
    _from_table(_table(["e", "f"], caption=["x", "y"], width=[5, 6]), tabled)
    _from_table(_table(["g"]), tabled)
    file = tmp_path / "out" / "out.json"
    assert list(_read(file).schema.items())[6:] == [("width", "int64"), ("caption", "string")]
    _check_valid(file)
    rows = [sample.columns for shard in sound(file) for sample in shard]
    assert [row.pop("text") for row in rows] == [f"text of {key}" for key in "abcdefg"]
    assert rows[3:] == [{"width": 4}, {"width": 5, "caption": "x"}, {"width": 6, "caption": "y"}, {}]
    sidecars = [str(path) for path in sorted(file.parent.glob("*.index"))]
    frames = pd.concat([pd.read_parquet(path) for path in sidecars])
    assert frames["caption"].tolist()[4:6] == ["x", "y"]
    schema = pa.unify_schemas([pq.read_schema(path) for path in sidecars])
    assert pads.dataset(sidecars, schema).to_table().column("width").to_pylist() == [1, 2, 3, 4, 5, 6, None]
    summary = inspect(file)
    assert summary.samples == 7
    assert typed("inspect", file, "--full").code == 0


def test_a_column_of_nulls_matches_any_type(tabled: str, tmp_path: Path) -> None:
    """A column of nulls takes the type of the other samples."""
    _from_table(_table(["e"], width=pa.array([None], pa.null()), more=pa.array([None], pa.null())), tabled)
    _from_table(_table(["f"], more=["x"]), tabled)
    file = tmp_path / "out" / "out.json"
    assert list(_read(file).schema.items())[6:] == [("width", "int64"), ("more", "string")]
    _check_valid(file)


def test_a_column_with_another_type_is_refused(tabled: str, tmp_path: Path) -> None:
    """A column with another type is refused before anything is written."""
    before = identity(tmp_path / "out")
    found = r"column width: string in the new samples, for example 'wide' in sample 'f'; .* exclude it with meta\."
    with pytest.raises(InvalidRequest, match=found):
        _from_table(_table(["e", "f"], width=["3", "wide"]), tabled)
    assert identity(tmp_path / "out") == before


def test_a_column_from_json_with_another_type_is_refused(tmp_path: Path) -> None:
    """The error names a sample with another type, and its advice works for a folder."""
    output, source = f"{tmp_path}/o/x-{{0..}}.tar", tmp_path / "in"
    asked = ("--columns-from", "json")
    typed("create", write_tree(source, {"1.json": b'{"w": 1}'}), output, *asked)
    write_tree(source, {"2.json": b'{"w": 2}', "3.json": b'{"w": "three"}'})
    ran = typed("create", source, output, *asked, "--update")
    assert (ran.code, "for example 'three' in sample '3'; expected int64" in ran.err) == (2, True), ran.err
    assert ran.err.endswith("Convert it to that type, or rename it, or remove --columns-from.\n")
    typed("create", write_tree(tmp_path / "one", {"3.json": b'{"w": "three"}'}), tmp_path / "one-{0..}.tar", *asked)
    ran = typed("reshard", tmp_path / "one.json", output, "--append")
    assert ran.err.endswith(
        "'three' in sample '3'; expected int64, as in the dataset. Convert it to that type, or rename it.\n"
    )
    assert typed("create", source, output, "--append", "--on-duplicate", "first").code == 0


def test_tfrecord_features_keep_their_type(tmp_path: Path) -> None:
    """A TFRecord feature with another type is refused; missing features get a default."""
    pattern, values = f"{tmp_path}/out/{STEM}.tfrecord", ("n=n", "txt=text")
    _create(_table(["a", "b"], n=[1, 2]), pattern, key="key", field=values)
    before = identity(tmp_path / "out")
    for kind, value in (("float", 0.5), ("bytes", "x")):
        with pytest.raises(InvalidRequest, match=rf"field n: {kind} in the new samples; expected int64"):
            append(_table(["c"], of=[value]), pattern, key="key", field=("n=of", "txt=text"))
    assert identity(tmp_path / "out") == before
    append(_table(["c"]), pattern, key="key", field=("txt=text",))
    append(_table(["d"], x=[0.5], n=[3]), pattern, key="key", field=(*values, "x=x"))
    features = _read(tmp_path / "out" / "out.json").feature_texts()
    assert features["n"] == "tf.io.FixedLenFeature([], tf.int64, default_value=-1)"
    assert features["x"] == "tf.io.FixedLenFeature([], tf.float32, default_value=-1)"
    assert features["txt"] == "tf.io.FixedLenFeature([], tf.string)"
    assert verify(tmp_path / "out" / "out.json").sound


def test_numbers_of_tar_shards(tmp_path: Path) -> None:
    """In tar shards, a field is a number only if it is one in all samples."""
    pattern, values = f"{tmp_path}/out/{STEM}.tar", ("n=n", "m=m")
    _create(_table(["a"], n=[1], m=[2]), pattern, key="key", field=values)
    append(_table(["b"], n=[3], o=["x"], k=[0.5]), pattern, key="key", field=("n=n", "m=o", "k=k"))
    assert _read(tmp_path / "out" / "out.json").numbers == {"k": "float", "n": "int64"}


def _labelled(folder: Path, *names: str) -> Path:
    return write_tree(folder, {f"{name}/{folder.name}.txt": name.encode() for name in names})


def test_class_numbers_agree(ending: str, tmp_path: Path) -> None:
    """Class lists may grow, but numbers do not change."""
    pattern = f"{tmp_path}/out/{STEM}.{ending}"
    _create(_labelled(tmp_path / "0", "cat", "dog"), pattern, label_from_folder=True)
    file, before = tmp_path / "out" / "out.json", identity(tmp_path / "out")
    with pytest.raises(InvalidRequest, match=r"classes of cls: number 0 means 'dog'.*'cat'"):
        append(_labelled(tmp_path / "1", "dog"), pattern, label_from_folder=True, classes_from=["dog"])
    names = ["cat", "cow", "dog"]
    with pytest.raises(InvalidRequest, match=r"number 1 means 'cow'"):
        append(_labelled(tmp_path / "2", *names), pattern, label_from_folder=True, classes_from=names)
    assert identity(tmp_path / "out") == before
    append(_labelled(tmp_path / "3", "cat"), pattern, label_from_folder=True)
    assert _read(file).classes == {"cls": ["cat", "dog"]}
    append(_labelled(tmp_path / "4", "cat", "dog", "emu"), pattern, label_from_folder=True)
    append(_table(["x"], cls=[2]), pattern, key="key", field=("cls=cls",))
    assert _read(file).classes == {"cls": ["cat", "dog", "emu"]}
    assert verify(file).sound


def test_another_dots_rule_is_refused(tmp_path: Path) -> None:
    """Readers apply one rule per dataset, so another `--dots` is refused."""
    pattern = f"{tmp_path}/out/{STEM}.tar"
    dataset = _create(write_tree(tmp_path / "0", {"a.b.txt": b"1"}), pattern, dots="last")
    more = write_tree(tmp_path / "1", {"c.d.txt": b"2"})
    with pytest.raises(InvalidRequest, match="keys that end at the first dot"):
        append(more, pattern)
    append(more, pattern, dots="last")
    assert verify(dataset).sound


def test_an_indexed_dataset_can_be_appended_to(new: Path, tmp_path: Path) -> None:
    """A dataset that `index` created can be appended to; unknown values stay unknown."""
    folder = tmp_path / "out"
    folder.mkdir()
    for number in range(2):
        with tarfile.open(folder / f"out-{number:03}.tar", "w") as tar:
            for at in range(3):
                info = tarfile.TarInfo(f"foreign/{number}{at}.txt")
                info.size = 5
                tar.addfile(info, io.BytesIO(b"12345"))
    index(folder)
    append(new, f"{folder}/{STEM}.tar")
    dataset = _read(folder / "out.json")
    assert [shard.crc is None for shard in dataset.shards] == [True, True, False, False]
    assert dataset.fingerprint == ""
    assert dataset.fields == {"bin": 3, "txt": 11}
    assert "crc32c: uint32>" in dataset.schema["__fields__"], "which may be null in some"
    assert verify(folder / "out.json").sound
    index(folder)
    assert verify(folder / "out.json").sound


def test_a_foreign_key_may_contain_nul(tmp_path: Path) -> None:
    """A foreign key that contains NUL is one key, which no new sample can have."""
    for number, key in enumerate((b"a\0b", b"c")):
        features = [(b"__key__", tfrecords.BYTES, key), (b"txt", tfrecords.BYTES, b"x")]
        data = tfrecords.frame(tfrecords.example(features))
        write_tree(tmp_path / "out", {f"out-{number:03}.tfrecord": data})
    index(tmp_path / "out")
    pattern = f"{tmp_path}/out/{STEM}.tfrecord"
    with pytest.raises(InvalidRequest, match="1 key already exists: c;"):
        append(write_tree(tmp_path / "0", {"c.txt": b"1", "d.txt": b"2"}), pattern)
    append(write_tree(tmp_path / "1", {"a.txt": b"1", "b.txt": b"2"}), pattern)
    assert _read(tmp_path / "out" / "out.json").fields == {"txt": 4}


def test_a_concurrently_changed_dataset_is_refused(new: Path, tars: Path, tar_pattern: str, tmp_path: Path) -> None:
    """A dataset that another run changed since it was inspected is not replaced."""
    parsed = parse_pattern(tar_pattern)
    output = inspect_destination(Destination(open_folder(parsed.folder), parsed, "append"))
    append(_tree(tmp_path / "quick", "quick", 2), tar_pattern)
    before = identity(tars.parent)
    with pytest.raises(OutputExists, match="another run changed the dataset"):
        inspect_destination(output)
    assert identity(tars.parent) == before
    append(new, tar_pattern)


def test_indexes_of_other_tools_are_updated(new: Path, dataset: Path, pattern: str, ending: str) -> None:
    """An append updates the indexes of other tools, except indexes with payload hashes."""
    parsed = parse_pattern(pattern)
    output = inspect_destination(Destination(open_folder(parsed.folder), parsed, "append"))
    assert find_existing_exports(output.folder, output.old) == []
    formats = {"tar": ["dali-webdataset", "energon"], "tfrecord": ["dali-tfrecord", "tfrecord"]}[ending]
    export(dataset, formats)
    assert find_existing_exports(output.folder, output.old) == formats
    create(new, pattern, _options(append=True))
    assert export(dataset, formats).kept == len(export(dataset, formats).files)
    assert verify(dataset).sound


def test_indexes_with_hashes_are_not_updated(new: Path, tars: Path, tar_pattern: str) -> None:
    """The Hugging Face index is updated only on request, because this reads all shards."""
    export(tars, "huggingface")
    parsed = parse_pattern(tar_pattern)
    output = inspect_destination(Destination(open_folder(parsed.folder), parsed, "append"))
    (note,) = export_notes(output.folder, output.old, ())
    assert "huggingface" in note
    assert list(export_notes(output.folder, output.old, ["huggingface"])) == []
    create(new, tar_pattern, _options(append=True))
    export(tars, "huggingface")


def test_each_split_is_appended_to_its_dataset(old: Path, new: Path, tmp_path: Path) -> None:
    """Keys must be new to all splits, and all splits record the same run."""
    files = {}
    for source, if_exists in ((old, "error"), (new, "append")):
        output = f"{tmp_path}/out/out-{{split}}-{{000..}}.tar"
        asked = _options(split="train=0.5,val=0.5", **existing(if_exists))
        create(source, output, asked)
    for split in ("train", "val"):
        files[split] = _read(tmp_path / "out" / f"out-{split}.json")
        assert files[split].run.split == split
        assert verify(tmp_path / "out" / f"out-{split}.json").sound
    made = [{name: value for name, value in file.run.document.items() if name != "split"} for file in files.values()]
    assert made[0] == made[1]
    assert sum(len(file.run.appended) for file in files.values()) == 2


def _find_appends(patterns: list[str], keys: list[bytes], made: RunRecord) -> list[Destination]:
    """Return the appends of a run that adds the first keys to one dataset, and the last to another."""
    outputs = []
    for pattern, which in zip(patterns, ([*range(len(keys) - 1)], [len(keys) - 1]), strict=True):
        parsed = parse_pattern(pattern)
        destination = inspect_destination(Destination(open_folder(parsed.folder), parsed, "append-resume"))
        outputs.append(Output("", destination, np.array(which)))

    class Recorded(Listed):
        def record(self, _output: Output) -> RunRecord:
            return made

    entries = SimpleNamespace(keys=PackedStrings.of(keys), values=FieldValues(), metadata=None)
    run: Any = SimpleNamespace(options=CreateOptions(), map_returns_keys=False)
    listing: Any = SimpleNamespace(entries=entries)
    source: Any = None
    return [
        output.destination for output in prepare_append(Recorded(run, source, listing, tuple(outputs), None)).outputs
    ]


def test_an_append_interrupted_between_splits_is_resumed(new: Path, tmp_path: Path) -> None:
    """Finished splits are detected, and the others are appended to."""
    patterns = [f"{tmp_path}/{name}/{STEM}.tar" for name in ("train", "val")]
    for number, pattern in enumerate(patterns):
        _create(write_tree(tmp_path / f"{number}", {f"{number}.txt": b"x"}), pattern)
    append(new, patterns[0])
    record = _read(tmp_path / "train" / "out.json").run.appended[-1]
    added = members(*shards(tmp_path / "train")[1:])
    done = [*dict.fromkeys(name.partition(".")[0].encode() for name, _ in added)]
    appends = [destination.append for destination in _find_appends(patterns, [*done, b"other"], record)]
    assert [(type(append), append and append.first) for append in appends] == [(FinishedAppend, 1), (Append, 1)]
    with pytest.raises(InvalidRequest, match=r"train/out\.json: all 1 key already exists: new/000"):
        _find_appends(patterns, [*done, done[0]], record)


def test_existing_keys_from_a_function_are_refused(tmp_path: Path) -> None:
    """An existing key from `--map` stops the append; the dataset does not change."""
    pattern = f"{tmp_path}/out/{STEM}.tar"
    dataset = _create(write_tree(tmp_path / "0", {"a.txt": b"1"}), pattern)
    code = b'{"__key__": %r, "txt": b"x"}'
    source = write_tree(tmp_path / "1", {"n.py": code % "m", "o.py": code % "a"})
    before = dataset.read_bytes()
    with pytest.raises(SampleFailed, match=r"a: the function of map returned this key, which the existing dataset"):
        append(source, pattern, map="tests.mapped:evaluated", max_count=1)
    assert dataset.read_bytes() == before
    (source / "o.py").write_bytes(code % "b")
    append(source, pattern, map="tests.mapped:evaluated", max_count=1, resume=True)
    assert sorted(contents(sound(dataset))) == ["a", "b", "m"]
    assert verify(dataset).sound
    names = identity(dataset.parent)
    append(source, pattern, map="tests.mapped:evaluated", max_count=1, resume=True)
    assert identity(dataset.parent) == names


@pytest.mark.parametrize("appends", ["[0]", "[2, 2]", "[3]", "[true]", '"x"', "[1.0]", "[-1]"])
def test_impossible_appends_in_a_dataset_file_are_damage(tars: Path, appends: str) -> None:
    """An append starts at a shard after the previous append."""
    import crc32c

    text = tars.read_text(encoding="ascii").replace('"made": {', '"made": {"appended": [{}, {}],')
    text = text.replace('"fingerprint"', f'"appends": {appends}, "fingerprint"')
    body = text[: -len('01234567"\n}\n')].encode()
    with pytest.raises(CorruptShard):
        parse_dataset(body + b'%08x"\n}\n' % crc32c.crc32c(body), "out.json")
    sound_text = text.replace(f'"appends": {appends}', '"appends": [1, 2]')
    body = sound_text[: -len('01234567"\n}\n')].encode()
    assert parse_dataset(body + b'%08x"\n}\n' % crc32c.crc32c(body), "out.json").appends == (1, 2)
