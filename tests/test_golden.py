"""What version 2b7a2d2 left in `golden/`, finished or interrupted, leads to the bytes of an uninterrupted run."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import crc32c
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardtool import ShardWriter, merge
from tests.helpers import identity, read_tree, shards, typed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_GOLDEN = Path(__file__).parent / "golden"
_CREATE = "--max-count 2 --workers 0 --quiet"
_SOURCE = f"create source FOLDER/out-{{000..}}.tar {_CREATE}"
_BEFORE = f"create before FOLDER/out-{{000..}}.tar {_CREATE}"
_APPEND = "create source FOLDER/out-{000..}.tar --include 1/* --max-count 1 --workers 0 --quiet --append"
_UPDATE = "create source FOLDER/out-{000..}.tar --exclude x --max-count 1 --workers 0 --quiet --update"

# The commands that made each folder. The last one was killed, if the folder's name says so.
_RUNS = {
    "finished-tar": [_SOURCE],
    "finished-tfrecord": [_SOURCE.replace(".tar", ".tfrecord")],
    "killed-tar": [_SOURCE],
    "killed-tfrecord": [_SOURCE.replace(".tar", ".tfrecord")],
    "killed-map": [f"{_SOURCE} --map tests.mapped:doubled"],
    "killed-reshard": ["reshard finished-tar/out.json FOLDER/out-{000..}.tar --max-count 3 --workers 0 --quiet"],
    "killed-append": [_BEFORE, _APPEND],
    "killed-update": [f"{_BEFORE} --exclude x", _UPDATE],
}


def _restore(place: Path, names: Iterable[str]) -> None:
    """Copy golden folders, with the modification times that Git does not store."""
    times = json.loads((_GOLDEN / "times.json").read_text())
    for name in names:
        shutil.copytree(_GOLDEN / name, place / name)
    for path, mtime_ns in times.items():
        if (place / path).exists():
            os.utime(place / path, ns=(mtime_ns, mtime_ns))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder of all commands, with the sources."""
    _restore(tmp_path, ["source", "before", "finished-tar"])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _run(line: str, folder: str) -> None:
    ran = typed(*line.replace("FOLDER", folder).split())
    assert ran.code == 0, ran


def _date_by_source(folder: Path, source: Path) -> None:
    """Date shards as 2b7a2d2 does if the source is old: later than each change; nanoseconds identify the root.

    They cannot be stored, because device, inode and status-change time of a restored source are new.
    """
    changed = max(path.lstat().st_ctime_ns for path in [source, *source.rglob("*")])
    info = source.stat()
    own = crc32c.crc32c(f"{info.st_dev} {info.st_ino}".encode()) % (10**9 - 1) + 1
    for shard in shards(folder):
        mtime_ns = (changed // 10**9 + 1) * 10**9 + own
        os.utime(shard, ns=(mtime_ns, mtime_ns))


def _same_pyarrow() -> bool:
    """Return whether sidecars of today have the bytes of the golden ones, which name the version of pyarrow."""
    golden: str = pq.read_metadata(_GOLDEN / "finished-tar/out-000.index").created_by
    return golden == f"parquet-cpp-arrow version {pa.__version__}"


def _contents(folder: Path) -> dict[str, object]:
    """Return all bytes. Sidecars of two versions of pyarrow differ: then return shards and fingerprint."""
    tree = read_tree(folder)
    if _same_pyarrow():
        return {**tree}
    kept = {name: data for name, data in tree.items() if not name.endswith((".index", ".json"))}
    return {**kept, "fingerprint": json.loads(tree["out.json"])["shardtool"]["fingerprint"]}


def _check_resumed(place: Path, name: str, *, kept: Sequence[str]) -> None:
    """Resume the last command of a golden folder, and compare with an uninterrupted run."""
    *first, last = _RUNS[name]
    before = identity(place / name)
    _run(last if name == "killed-update" else f"{last} --resume", name)
    for line in (*first, last):
        _run(line, "fresh")
    assert _contents(place / name) == _contents(place / "fresh")
    after = identity(place / name)
    assert [shard for shard in kept if before[shard] != after[shard]] == []


_KILLED = [name for name in _RUNS if name.startswith("killed")]


@pytest.mark.parametrize(
    ("name", "dated"),
    [*((name, False) for name in _KILLED), *((name, True) for name in _KILLED if name != "killed-reshard")],
)
def test_an_interrupted_run_is_resumed(name: str, place: Path, *, dated: bool) -> None:
    """A killed `create`, `reshard`, append or update is continued, and its finished shards are kept."""
    _restore(place, [name])
    if dated:
        _date_by_source(place / name, place / "source")
    kept = [] if name == "killed-map" and not (dated and _same_pyarrow()) else shards(place / name)
    _check_resumed(place, name, kept=[path.name for path in kept])


@pytest.mark.parametrize("name", ["finished-tar", "finished-tfrecord"])
def test_a_finished_dataset_is_resumed(name: str, place: Path) -> None:
    """`--resume` keeps all shards of a finished dataset, whose shards have today's bytes."""
    if name != "finished-tar":
        _restore(place, [name])
    _check_resumed(place, name, kept=[path.name for path in shards(place / name)])
    golden = [path.read_bytes() for path in shards(_GOLDEN / name)]
    assert golden == [path.read_bytes() for path in shards(place / "fresh")]
    assert typed("verify", f"{name}/out.json").code == 0


@pytest.mark.parametrize("name", ["killed-tar", "finished-tar"])
def test_times_of_shards_are_trusted(name: str, place: Path) -> None:
    """A shard that is dated later than every change of its source is kept without reading the source."""
    if name != "finished-tar":
        _restore(place, [name])
    old = (place / name / "out-000.tar").read_bytes()
    (place / "source/0/0.txt").write_bytes(b"TEXT 0")
    _date_by_source(place / name, place / "source")
    _run(f"{_SOURCE} --resume", name)
    assert (place / name / "out-000.tar").read_bytes() == old
    info = (place / name / "out-000.tar").stat()
    os.utime(place / name / "out-000.tar", ns=(info.st_mtime_ns, info.st_mtime_ns - 1))
    _run(f"{_SOURCE} --resume", name)
    assert (place / name / "out-000.tar").read_bytes() != old


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("parts", f"{_SOURCE} --part 2/3"),
        ("killed-part", f"{_SOURCE} --part 3/3 --resume"),
        ("parts-complete", "index FOLDER/out-{000..}.tar --merge"),
        ("parts-complete", f"{_SOURCE} --part 2/3 --resume"),
    ],
)
def test_parts_are_finished_and_merged(name: str, line: str, place: Path) -> None:
    """Parts with and without the last one, and a killed part, become the dataset of one run."""
    _restore(place, [name])
    before = identity(place / name)
    _run(line, name)
    _run(_SOURCE, "fresh")
    assert _contents(place / name) == _contents(place / "fresh")
    after = identity(place / name)
    assert [shard for shard in before if shard.endswith(".tar") and before[shard] != after[shard]] == []


def _write(folder: str, numbers: range, **options: Any) -> None:
    with ShardWriter(f"{folder}/out-{{000..}}.tar", max_count=2, **options) as writer:
        for number in numbers:
            if writer.last_key is None or f"{number:03}" > writer.last_key:
                sample = {"__key__": f"{number:03}", "txt": f"text {number}", "cls": number % 3}
                writer.write(sample, metadata={"number": number})


def test_an_interrupted_writer_is_resumed(place: Path) -> None:
    """The journal of a killed writer leads to the bytes of an uninterrupted one; a finished one stays as it is."""
    _restore(place, ["killed-writer", "writer"])
    kept = identity(place / "killed-writer")["out-000.tar"]
    _write("killed-writer", range(8), resume=True)
    _write("fresh", range(8))
    assert _contents(place / "killed-writer") == _contents(place / "fresh")
    assert identity(place / "killed-writer")["out-000.tar"] == kept
    before = identity(place / "writer")
    _write("writer", range(8), resume=True)
    assert identity(place / "writer") == before
    assert _contents(place / "writer") == _contents(place / "fresh")


_PARTS: list[tuple[range, dict[str, int]]] = [
    (range(3), {"part": 0}),
    (range(0), {"part": 1}),
    (range(3, 8), {"part": 2}),
]


@pytest.mark.parametrize("name", ["writer-parts", "killed-writer-parts"])
def test_parts_of_writers_are_merged(name: str, place: Path) -> None:
    """Parts of writers, the last one killed or not, are merged to the bytes of parts of today."""
    _restore(place, [name])
    if name.startswith("killed"):
        _write(name, range(3, 8), part=2, parts=3, resume=True)
    for numbers, part in _PARTS:
        _write("fresh", numbers, parts=3, **part)
    for folder in (name, "fresh"):
        assert merge(f"{folder}/out-{{000..}}.tar").samples == 8
    assert _contents(place / name) == _contents(place / "fresh")


def test_old_and_new_parts_of_writers_are_merged(place: Path) -> None:
    """A part that today's writer adds is merged with named parts of 2b7a2d2."""
    _restore(place, ["writer-names"])
    _write("writer-names", range(8, 10), part="c")
    for numbers, part in ((range(3), "a"), (range(3, 8), "b"), (range(8, 10), "c")):
        _write("fresh", numbers, part=part)
    for folder in ("writer-names", "fresh"):
        assert merge(f"{folder}/out-{{000..}}.tar").samples == 10
    assert _contents(place / "writer-names") == _contents(place / "fresh")
