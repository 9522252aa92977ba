"""What is copied: the files of a dataset, and what its dataset file says that each of them is."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from shardtool.dataset.dataset_file import read_dataset
from shardtool.dataset.find import find_dataset
from shardtool.dataset.several import recorded_pattern
from shardtool.errors import CorruptShard, InvalidRequest, ShardError, StoreFailed, listing, printable, reason
from shardtool.pattern import DATASET_SUFFIX, SKIPPED_SUFFIX, parse_pattern
from shardtool.publish.records import check_skipped_file
from shardtool.storage.folders import Original
from shardtool.storage.places import base_name, folder_of, is_web, join, plain_sizes, read_small
from shardtool.storage.remote.retry import RequestStopped, until
from shardtool.values import counted, output_text, to_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.pattern import ShardPattern
    from shardtool.request.results import Observer
    from shardtool.values import Given


_EXPECTED = "a dataset with a dataset file, which says what its shards must be"
_CURE = "`shardtool verify` shows what is damaged."


@dataclass(frozen=True, slots=True)
class ShardPair:
    """A shard and its sidecar, as they are to be copied."""

    shard: Original
    sidecar: Original
    samples: int


@dataclass(frozen=True, slots=True)
class CopySource:
    """A dataset that is copied.

    Attributes:
        path: Where its dataset file is.
        data: The bytes of that file, which are what is copied, whatever becomes of the file meanwhile.
        file: What it says.
        pairs: Its shards and their sidecars, in order.
        skipped: The list of what was left out; empty: there is none.
    """

    path: str
    data: bytes
    file: DatasetFile
    pairs: tuple[ShardPair, ...]
    skipped: bytes

    @property
    def name(self) -> str:
        """The name of the dataset file."""
        return base_name(self.path)

    @property
    def base(self) -> str:
        """The same without its ending."""
        return self.name.removesuffix(DATASET_SUFFIX)

    @property
    def skipped_name(self) -> str:
        """The name of the list of what was left out."""
        return local_name(self.file.name) + SKIPPED_SUFFIX

    @property
    def pattern(self) -> ShardPattern | None:
        """The names of its shards, where they lie beside the dataset file and are such as a pattern can have."""
        if self.file.shards_folder:
            return None
        if (pattern := recorded_pattern(self.file)) is not None:
            return pattern
        with suppress(InvalidRequest):
            return parse_pattern([one.shard.name for one in self.pairs])
        return None

    def has_changed(self) -> bool:
        """Tell whether the dataset file is another one by now, or gone."""
        try:
            return read_small(self.path) != self.data
        except StoreFailed:
            raise
        except (OSError, ShardError):
            return True

    @property
    def folder(self) -> str:
        """Where the dataset file and the sidecars are."""
        return folder_of(self.path)


def open_origin(given: Given) -> CopySource:
    """Return a dataset that can be copied: all of its files are there, as far as their sizes show.

    Raises:
        InvalidRequest: There is no such dataset, it has no dataset file, or only some of its shards are given.
        CorruptShard: Its dataset file is damaged, or a file that it lists is not there, or has another size.
    """
    found = find_dataset(given)
    if found.dataset_file is None or not found.own:
        where = found.dataset_file or found.folder or "."
        raise InvalidRequest(where, "no dataset file of shardtool", expected=_EXPECTED, remedy="`index` makes one.")
    path, data = found.dataset_file, _read(found.dataset_file)
    file = read_dataset(data, path)
    names = {output_text(base_name(shard)) for shard in found.shards}
    if lacking := [shard.name for shard in file.shards if shard.name not in names]:
        what = f"{counted(len(names), 'shard')}, without {listing(lacking, 3)}"
        remedy = "Give that file to copy them all; `reshard` makes a dataset of some shards."
        raise InvalidRequest(path, what, expected=f"all {len(file.shards):,} that it lists", remedy=remedy)
    folder = folder_of(path)
    below = join(folder, local_name(file.shards_folder)) if file.shards_folder else folder
    pairs = tuple(
        ShardPair(
            _original(below, shard.name, shard.size, shard.crc),
            _original(folder, shard.sidecar, shard.sidecar_size, shard.sidecar_crc),
            shard.samples,
        )
        for shard in file.shards
    )
    _check_sizes(below, [one.shard for one in pairs])
    _check_sizes(folder, [one.sidecar for one in pairs])
    origin = CopySource(path, data, file, pairs, b"")
    if not file.skipped:
        return origin
    list_path = join(folder, origin.skipped_name)
    skipped = _read(list_path)
    check_skipped_file(skipped, file, list_path)
    return CopySource(path, data, file, pairs, skipped)


def local_name(name: str) -> str:
    """Return what the file system calls a file, by its name in a dataset file."""
    return os.fsdecode(to_bytes(name))


def _original(folder: str, name: str, size: int, crc: int | None) -> Original:
    name = local_name(name)
    return Original(join(folder, name), size, crc, name)


def _read(path: str) -> bytes:
    try:
        return read_small(path)
    except OSError as error:
        raise CorruptShard(path, f"cannot be read: {reason(error)}", remedy=_CURE) from None


def _check_sizes(folder: str, originals: list[Original]) -> None:
    """Check that files are there with the sizes that the dataset file says, before the first of them is copied."""
    if is_web(folder):
        return  # each is asked for when it is copied
    for one, size in zip(originals, plain_sizes([one.path for one in originals]), strict=True):
        if size != one.size:
            found = "no such file" if size is None else f"{size:,} bytes"
            expected = f"{one.size:,} bytes, as the dataset file says"
            raise CorruptShard(printable(one.path), found, expected=expected, remedy=_CURE)


# Several shards at once, each in a thread: they wait for disks and servers, and all that counts bytes frees Python.


Task = TypeVar("Task")
Result = TypeVar("Result")
_TICK_S = 0.2  # between two looks at how many bytes there are


class Meter:
    """The bytes that threads have dealt with, and the word that they are to stop.

    Attributes:
        stopped: Set when the run has ended: threads end at their next block, and requests wherever they are.
    """

    def __init__(self) -> None:
        self._lock, self._bytes, self.stopped = threading.Lock(), 0, threading.Event()

    def took(self, size: int) -> None:
        """Count bytes.

        Raises:
            Stopped: The run has ended.
        """
        with self._lock:
            self._bytes += size
        if self.stopped.is_set():
            raise RequestStopped

    def taken(self) -> int:
        """Return the bytes since the last call."""
        with self._lock:
            size, self._bytes = self._bytes, 0
        return size


def side_by_side(
    work: Callable[[Task, Meter], Result], tasks: Iterable[Task], threads: int, observer: Observer
) -> Iterator[tuple[Task, Result]]:
    """Yield each task with what came of it, as it is done; tasks are drawn as threads become free.

    Whatever ends the loop, no thread runs on after it.

    Args:
        work: What is done; it calls `Meter.took` for each block.
        tasks: What with.
        threads: How many at a time.
        observer: Gets progress, in this thread.
    """
    from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

    meter, left = Meter(), iter(tasks)

    def carry_out(task: Task) -> Result:
        with until(meter.stopped):
            return work(task, meter)

    with ThreadPoolExecutor(threads, "shardtool-copy") as pool:
        running: dict[Future[Result], Task] = {}
        try:
            while True:
                while len(running) < 2 * threads and (task := next(left, None)) is not None:
                    running[pool.submit(carry_out, task)] = task
                if not running:
                    return
                done, _ = wait(running, _TICK_S, FIRST_COMPLETED)
                observer.advance(0, meter.taken(), 0)
                for one in [one for one in running if one in done]:
                    yield running.pop(one), one.result()
        finally:
            meter.stopped.set()
            pool.shutdown(wait=True, cancel_futures=True)
