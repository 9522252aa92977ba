"""Reading files in advance in threads."""

from __future__ import annotations

import os
import resource
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from shardtool.errors import AccessRefused, SampleFailed
from shardtool.pattern import parse_pattern
from shardtool.plan.plan import make_plan
from shardtool.plan.shard_bounds import ShardBounds
from shardtool.plan.shard_task import build_shard_samples
from shardtool.storage.files import READ_PLAIN, read_file
from shardtool.storage.staging import Folder
from shardtool.write import packer
from shardtool.write.pack_shard import pack_shard
from shardtool.write.packer import no_report
from shardtool.write.read_ahead import PlannedFile, ReadAhead
from shardtool.write.task import BUFFER_SIZE, ShardTask
from tests.made import flat_entries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from shardtool.write.task import ShardResult

SAMPLES = 40
LARGE = 20  # number of a sample larger than the buffer; only its first file is small enough to be read in advance
READS = 4
SIZES = {(LARGE, 0): BUFFER_SIZE + 5, (LARGE, 1): READS * BUFFER_SIZE, (3, 1): 0}


def _replaced(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


FAULTS: dict[str, Callable[[Path], object]] = {
    "vanishes": lambda path: path.unlink(),
    "shrinks": lambda path: os.truncate(path, 10),
    "grows": lambda path: os.truncate(path, path.stat().st_size + 10),
    "is touched": lambda path: os.utime(path, ns=(1, 1)),
    "becomes a folder": lambda path: _replaced(path, os.mkdir),
    "becomes a fifo": lambda path: _replaced(path, os.mkfifo),
    "becomes a link": lambda path: _replaced(path, lambda gone: gone.symlink_to("/etc/passwd")),
}


@pytest.fixture(name="source")
def _source(tmp_path: Path) -> Path:
    """Write samples of two files each, most of them small."""
    source = tmp_path / "in"
    source.mkdir()
    for number in range(SAMPLES):
        for field, ending in enumerate(("a", "b")):
            path = source / f"s{number:02}.{ending}"
            path.write_bytes(bytes([number + field]) * SIZES.get((number, field), 1000 + number))
            os.utime(path, ns=(10**18, 10**18))
    return source


def _task(source: Path, ending: str) -> ShardTask:
    files = sorted(source.iterdir())
    entries = flat_entries(
        [b"s%02d" % number for number in range(SAMPLES)],
        [2] * SAMPLES,
        ("a", "b"),
        root=os.fsencode(source) + b"/",
        code=[0, 1] * SAMPLES,
        size=[path.stat().st_size for path in files],
        mtime_ns=[10**18] * len(files),
    )
    plan = make_plan(entries, parse_pattern(str(source.parent / f"out-{{000..}}.{ending}")), ShardBounds())
    folder = Folder(str(source.parent))
    return ShardTask(f"out-000.{ending}", plan.format, folder, build_shard_samples(plan, 0), "skip", 0)


def _packed(task: ShardTask) -> tuple[bytes, ShardResult]:
    """Return the bytes of a shard, and its result."""
    result = pack_shard(task, no_report)
    assert result.staged is not None
    task.folder.publish(result.staged)
    with open(task.folder.full_path(task.name), "rb") as file:
        return file.read(), result._replace(staged=None)


def _failure(task: ShardTask) -> str:
    with pytest.raises(SampleFailed) as failed:
        pack_shard(task._replace(on_error="raise"), no_report)
    return str(failed.value)


@pytest.mark.parametrize("ending", ["tar", "tfrecord"])
@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_results_do_not_depend_on_reading_ahead(fault: str | None, ending: str, source: Path) -> None:
    """Bytes, checksums, skipped samples and errors are the same as when reading one file at a time."""
    task, threads = _task(source, ending), {*threading.enumerate()}
    if fault is not None:
        for name in ("s00.b", "s03.a", "s04.a", "s04.b", f"s{LARGE}.a", f"s{SAMPLES - 1}.b"):
            FAULTS[fault](source / name)
    alone, together = _packed(task), _packed(task._replace(parallel_reads=READS))
    assert together == alone
    assert [number for number, _ in alone[1].skipped] == ([] if fault is None else [0, 3, 4, LARGE, SAMPLES - 1])
    assert {*threading.enumerate()} <= threads  # threads of other tests may end meanwhile
    if fault is not None:
        assert _failure(task._replace(parallel_reads=READS)) == _failure(task)


def test_an_existing_shard_is_compared(source: Path) -> None:
    """An existing shard is compared with a source that is read in advance."""
    task = _task(source, "tar")._replace(parallel_reads=READS)
    _packed(task)
    assert pack_shard(task._replace(action="compare"), no_report).compared
    (source / "s07.a").unlink()
    assert not pack_shard(task._replace(action="compare"), no_report).compared


def _planned(source: Path) -> Iterator[PlannedFile]:
    for path in sorted(source.iterdir()):
        yield PlannedFile(os.fsencode(path), READ_PLAIN, path.stat().st_size, path.stat().st_mtime_ns)


@pytest.mark.parametrize("omitted", [set[int](), {0}, {1, 2, 3, 10}, set(range(0, SAMPLES, 2))])
def test_memory_is_bounded(omitted: set[int], tmp_path: Path) -> None:
    """Files read ahead and in flight never exceed the memory bound, whichever files are requested."""
    for number in range(SAMPLES):
        (tmp_path / f"{number:02}").write_bytes(bytes([number]) * (1 + number * BUFFER_SIZE // SAMPLES))
    ahead, max_held = ReadAhead(_planned(tmp_path), 2, read_file, 2**62), 0
    for number, file in enumerate(_planned(tmp_path)):
        if number in omitted:
            continue
        into = memoryview(bytearray(file.size))
        assert ahead.read(file.path, into, file.flags)[0] == file.size
        assert into == bytes([number]) * file.size
        max_held = max(max_held, ahead.held + file.size)
    ahead.close()
    assert BUFFER_SIZE < max_held <= ahead.memory == 2 * BUFFER_SIZE


@pytest.mark.parametrize("listed_ns", [1, 2 * 10**18])
def test_all_files_are_read_with_few_descriptors(listed_ns: int, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If fewer files can be open than threads, all files are still read, also those changed after the listing."""

    def read_slowly(path: bytes, *arguments: Any) -> Any:
        with open(os.devnull, "rb"):
            if threading.current_thread() is not threading.main_thread() and not path.endswith(b"s00.a"):
                time.sleep(0.01)
            return read_file(path, *arguments)

    monkeypatch.setattr(packer, "read_file", read_slowly)
    task = _task(source, "tar")
    task = task._replace(samples=replace(task.samples, latest_ctime_ns=listed_ns))
    alone, before = _packed(task), resource.getrlimit(resource.RLIMIT_NOFILE)
    highest, used = max(map(int, os.listdir("/proc/self/fd"))), [os.dup(0)]
    while used[-1] < highest:  # until no lower number is free
        used.append(os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used[-1] + 5, before[1]))
    try:
        together = _packed(task._replace(parallel_reads=64))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for descriptor in used:
            os.close(descriptor)
    assert together == alone


def test_a_refused_file_is_read_once(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a store denies access, no file is requested a second time."""
    paths = list[bytes]()

    def refuse(path: bytes, *_: Any) -> Any:
        paths.append(os.path.basename(path))
        raise AccessRefused(os.fsdecode(path), "the server returned 403")

    monkeypatch.setattr(packer, "read_file", refuse)
    task = _task(source, "tar")
    with pytest.raises(AccessRefused):
        pack_shard(task._replace(parallel_reads=READS, samples=replace(task.samples, latest_ctime_ns=1)), no_report)
    assert 1 <= len(paths) == len({*paths})


@pytest.mark.parametrize("possible", [0, 1])
def test_all_files_are_read_with_few_threads(possible: int, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If few or no threads can be started, all files are still read."""
    task, start, left = _task(source, "tar"), threading.Thread.start, iter(range(possible))
    alone = _packed(task)

    def start_a_few(thread: threading.Thread) -> None:
        if next(left, None) is None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_a_few)
    assert _packed(task._replace(parallel_reads=READS)) == alone
