from __future__ import annotations

import os
import pickle
import shutil
import threading
from decimal import Decimal
from itertools import chain
from typing import TYPE_CHECKING

import pytest

import shardtool
from shardtool import Cache, InvalidRequest, OutputFailed, ShardError
from shardtool.errors import OutOfMemory
from shardtool.verbs.cache import cache as cache_module
from tests.verbs.cache.conftest import write_shards
from tests.verbs.cache.helpers import KILLING, python, read_all

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from shardtool.verbs.cache.cache import CacheWriter, ShardFormat
    from tests.verbs.cache.conftest import NoteRecorder

SIZE = 12_000  # bytes of a shard at most: seven samples of 1,000 bytes in a tar


def write_samples(writer: CacheWriter, numbers: Iterable[int]) -> None:
    """Write samples whose fields contain their number."""
    for number in numbers:
        writer.write({"__key__": f"{number}", "bin": b"%04d" % number * 250}, {"number": number})


def numbers_in(paths: Iterable[str]) -> list[int]:
    """Return the numbers of all samples in shards, and check each sample."""
    numbers = []
    for sample in shardtool.open([*paths], check=True):
        number = int(str(sample["__key__"]))
        assert sample["bin"] == b"%04d" % number * 250
        numbers.append(number)
    return numbers


def test_a_trainer_sees_only_finished_shards(tmp_path: Path, ending: ShardFormat) -> None:
    """A trainer sees only finished shards: each when the next starts, or at the end of the block."""
    cache = Cache(tmp_path / "cache", "1MB")
    with cache.writer(3, format=ending, max_size=SIZE, max_count=6) as writer:
        assert [*cache.refresh()] == []
        write_samples(writer, range(13))
        assert numbers_in(cache.refresh()) == [*range(12)]
        writer.publish()
        assert numbers_in(cache.refresh()) == [*range(13)]
        write_samples(writer, [0])  # a sampler may give a sample again
    assert numbers_in(cache.paths()) == [*range(13), 0]
    assert (writer.shards, writer.samples) == (4, 14)
    assert len(os.listdir(tmp_path / "cache" / "written")) == 8


def test_a_failed_block_leaves_only_full_shards(tmp_path: Path) -> None:
    """A block that ends with an exception leaves the full shards and nothing else."""
    cache = Cache(tmp_path / "cache", "1MB")
    writer = cache.writer(max_count=4, max_size=SIZE)
    numbers = chain(range(7), map(int, ["no number"]))
    with pytest.raises(ValueError, match="no number"), writer:
        write_samples(writer, numbers)
    assert numbers_in(cache.refresh()) == [0, 1, 2, 3]
    assert len(os.listdir(tmp_path / "cache" / "written")) == 2
    with pytest.raises(InvalidRequest, match="closed"):
        write_samples(writer, [8])


def test_the_policy_covers_written_shards_and_copies(tmp_path: Path) -> None:
    """Written shards and copies share one bound and one policy; shards that no process has read are evicted last."""
    shards = write_shards(tmp_path, 2)
    cache = Cache(tmp_path / "cache", 60_000)
    read_all(cache, shards)
    with cache.writer(max_size=SIZE) as writer:
        write_samples(writer, range(14))
        writer.publish()
        assert len(cache.refresh()) == 2
        cache.refresh().close()
        write_samples(writer, range(14, 35))
    total = sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*.*"))
    assert total <= 60_000
    assert list((tmp_path / "cache" / "copied").iterdir()) == []
    assert numbers_in(cache.refresh()) == [*range(7, 35)]


def test_writers_wait_for_trainers(tmp_path: Path, noting: NoteRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer's shards stay for its epoch, and a writer waits if there is no other space.

    The writer notes it once, and gets space at the next refresh. A shard due for eviction is not leased again, so two
    trainers that take turns cannot keep it.
    """
    monkeypatch.setattr(cache_module, "_WAIT_NOTE_S", 0.01)
    monkeypatch.setattr(cache_module, "_POLL_S", 0.01)
    first, second = (Cache(tmp_path / "cache", 5 * SIZE, "oldest", observer=noting) for _ in range(2))
    with first.writer(max_size=SIZE) as writer:
        write_samples(writer, range(28))
    shards = first.refresh(), second.refresh()
    assert [len(paths) for paths in shards] == [4, 4]
    sampler = Cache(tmp_path / "cache", 5 * SIZE, "oldest", observer=noting)

    def sample() -> None:
        with sampler.writer(max_size=SIZE) as writer:
            write_samples(writer, range(28, 42))

    thread = threading.Thread(target=sample)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    assert numbers_in(shards[0]) == [*range(28)]
    assert len(first.refresh()) == 3
    assert len(second.refresh()) == 3
    while thread.is_alive():
        first.refresh()
        second.refresh()
        thread.join(0.02)
    assert numbers_in(second.refresh())[-7:] == [*range(35, 42)]
    assert ["is waiting for space" in note for note in noting.notes] == [True]


def test_open_reads_the_finished_shards(tmp_path: Path) -> None:
    """`shardtool.open` of a cache returns a dataset of the finished shards, and holds them as long as it exists."""
    cache = Cache(tmp_path / "cache", 5 * SIZE, "oldest")
    with pytest.raises(InvalidRequest, match="no finished shards yet"):
        shardtool.open(cache)
    with cache.writer(max_size=SIZE) as writer:
        write_samples(writer, range(21))
    dataset = shardtool.open(Cache(tmp_path / "cache", 5 * SIZE))
    assert read_all(cache, write_shards(tmp_path / "slow", 3)) == [True] * 3
    assert sorted(int(str(sample["__key__"])) for sample in dataset.stream(rank=0, world_size=1)) == [*range(21)]


_FEW = """
import os, resource, sys
from shardtool import Cache, OutputFailed
cache = Cache(sys.argv[1], "1MB")
with cache.writer(max_count=1) as writer:
    for at in range(20):
        writer.write({"__key__": f"{at}", "bin": b"x"})
there, before = os.listdir("/proc/self/fd"), resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (20, before[1]))
try:
    print(len(cache.refresh()))
except OutputFailed as error:
    print(error)
resource.setrlimit(resource.RLIMIT_NOFILE, before)
assert len(os.listdir("/proc/self/fd")) == len(there)
print(len(cache.refresh()))
"""


def test_too_many_shards_for_the_descriptor_limit(tmp_path: Path) -> None:
    """If a process cannot open all shards, it gets an error with a fix and holds none."""
    refused, count = python(_FEW, tmp_path).splitlines()
    assert "too many open files. Write larger shards" in refused
    assert count == "20"


def test_refresh_can_be_limited_to_the_newest_shards(tmp_path: Path) -> None:
    """`refresh` with a limit returns the newest shards, and leaves space for writers."""
    cache = Cache(tmp_path / "cache", 5 * SIZE)
    with cache.writer(max_size=SIZE) as writer:
        write_samples(writer, range(28))
    assert numbers_in(cache.refresh(2 * 15_000)) == [*range(14, 28)]


def test_unpickled_shards_are_leased(tmp_path: Path, noting: NoteRecorder) -> None:
    """Pickled shards are leased in the process that unpickles them, until it closes them."""
    cache = Cache(tmp_path / "cache", "1MB")
    with cache.writer(max_size=SIZE) as writer:
        write_samples(writer, range(14))
    shards = cache.refresh()
    again = pickle.loads(pickle.dumps(shards))  # noqa: S301 - our own
    assert again[:] == shards[:]
    shards.close()
    small = Cache(tmp_path / "cache", SIZE, "oldest", observer=noting)
    with pytest.raises(InvalidRequest, match="max_size: 24 kB, but the cache has only 12 kB"):
        small.writer(max_size=2 * SIZE)
    slow = write_shards(tmp_path, 1)
    assert read_all(small, slow) == [False]
    assert all(os.path.exists(path) for path in again)
    again.close()
    assert read_all(small, slow) == [True]
    assert not any(os.path.exists(path) for path in again)


def test_pickled_shards_are_the_same_dataset_in_any_process(tmp_path: Path, noting: NoteRecorder) -> None:
    """Pickled shards open as the same dataset in any process, and stay as long as a dataset reads them.

    If a shard was evicted meanwhile, each process gets an error; none continues with fewer shards.
    """
    cache = Cache(tmp_path / "cache", "1MB", "oldest")
    small = Cache(tmp_path / "cache", SIZE, "oldest", observer=noting)
    with cache.writer(max_size=SIZE) as writer:
        write_samples(writer, range(14))
        writer.publish()
        data = pickle.dumps(cache.refresh())
        dataset = shardtool.open(pickle.loads(data))  # noqa: S301 - our own
        write_samples(writer, range(14, 28))
    assert len(shardtool.open(cache)) == 28
    cache.refresh().close()
    slow = write_shards(tmp_path, 1)
    assert read_all(small, slow) == [False]
    assert [int(sample["__key__"]) for sample in dataset] == [*range(14)]
    again = shardtool.open(pickle.loads(data))  # noqa: S301 - our own
    assert (again.fingerprint, [*again]) == (dataset.fingerprint, [*dataset])
    del dataset, again
    assert read_all(small, slow) == [True]
    with pytest.raises(ShardError, match=r"\.tar: (missing|no such file)"):
        shardtool.open(pickle.loads(data), on_error="skip")  # noqa: S301 - our own


@pytest.mark.parametrize(
    ("options", "problem"),
    [({"part": "a/b"}, "part: 'a/b'"), ({"format": "zip"}, "format: 'zip'"), ({"max_size": "2GB"}, "max_size: 2 GB")],
)
def test_invalid_writers_are_refused(tmp_path: Path, options: dict[str, str], problem: str) -> None:
    """A writer is refused if its shards have an invalid name, format, size or folder, or the cache evicts nothing."""
    with pytest.raises(InvalidRequest, match=problem):
        Cache(tmp_path / "cache", "1GB").writer(**options)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="policy='keep': a cache that never evicts shards"):
        Cache(tmp_path / "cache", "1GB", "keep").writer()
    cache = Cache(tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    with pytest.raises(OutputFailed, match="written: cannot write: no such file"):
        cache.writer()


def test_the_writer_continues_after_an_invalid_sample(tmp_path: Path) -> None:
    """An invalid or too large sample is refused by name, and the writer continues."""
    cache = Cache(tmp_path / "cache", "1MB")
    with cache.writer(max_size=SIZE) as writer:
        write_samples(writer, [1])
        with pytest.raises(InvalidRequest, match=r"max_size: 2 has 21 kB; expected at most 11 kB"):
            writer.write({"__key__": "2", "bin": bytes(20_000)})
        with pytest.raises(InvalidRequest, match="a duplicate key"):
            write_samples(writer, [1])
        write_samples(writer, [3])
    assert numbers_in(cache.refresh()) == [1, 3]


def test_the_writer_continues_after_incompatible_metadata(tmp_path: Path) -> None:
    """A shard with incompatible metadata is lost, and the writer continues."""
    cache = Cache(tmp_path / "cache", "1MB")
    with cache.writer(max_count=2, max_size=SIZE) as writer:
        for number, value in [(1, Decimal("1e60")), (2, Decimal("1e-60"))]:  # more digits than a column has
            writer.write({"__key__": f"{number}", "bin": b"%04d" % number * 250}, {"c": value})
        with pytest.raises(InvalidRequest, match="cannot store in one column"):
            write_samples(writer, [3])
        write_samples(writer, [4, 5, 6])
        with pytest.raises(OutOfMemory, match="a sample"):
            writer.write({"__key__": "7", "bin": _TooLarge()})
        write_samples(writer, [8])
    assert numbers_in(cache.refresh()) == [4, 5, 6, 8]
    assert writer.samples == 6


class _TooLarge:
    """A value that needs more memory than there is."""

    def __array__(self, *_: object) -> None:
        raise MemoryError


_KILLED = (
    KILLING
    + """
import sys
from shardtool import Cache
from shardtool.verbs.cache.cache_space import CacheSpace
from shardtool.verbs.cache import cache as cache_module
from shardtool.storage.staging import Folder, StagedFile

folder = sys.argv[1]
rename = os.rename

def first_rename(*given):
    rename(*given)
    killed()

cache = Cache(folder, 60_000, "oldest")
instants = [
    (cache_module, "ShardBuilder", killed), (StagedFile, "write", after(StagedFile.write)), (Folder, "publish", killed),
    (os, "rename", first_rename), (Folder, "publish", after(Folder.publish)), (Folder, "discard", killed),
    (CacheSpace, "remove", after(CacheSpace.remove)),
]
for number, (place, name, function) in enumerate(instants):
    child = os.fork()
    if not child:
        setattr(place, name, function)
        with cache.writer(number, max_size=12_000) as one:
            for at in range(100):
                one.write({"__key__": f"{at}", "bin": b"%04d" % at * 250})
                cache.refresh().close()
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, number
    with cache.writer("b", max_size=12_000) as one:
        for at in range(20):
            one.write({"__key__": f"{at}", "bin": b"%04d" % at * 250})
    shards = cache.refresh()
    left = set(os.listdir(folder + "/written")) - {os.path.basename(one) for one in shards}
    assert {one[-6:] for one in left} == {".index"} and len(left) == len(shards), left
    shards.close()
"""
)


def test_a_killed_writer_leaves_only_finished_shards(tmp_path: Path) -> None:
    """A writer killed at any point, also during an eviction, leaves only finished shards."""
    python(_KILLED, tmp_path / "cache")
    assert set(numbers_in(Cache(tmp_path / "cache", 60_000).refresh())) <= {*range(100)}


def test_a_forked_sampler_does_not_wait_for_its_parent(tmp_path: Path) -> None:
    """A forked sampler does not wait for shards that its parent held."""
    code = """
import os, sys
from shardtool import Cache
cache = Cache(sys.argv[1], 50_000, "oldest")
def grow(count):
    with cache.writer(max_size=12_000) as writer:
        for at in range(count):
            writer.write({"__key__": f"{at}", "bin": bytes(1000)})
grow(21)
assert len(cache.refresh()) == 3
child = os.fork()
if not child:
    grow(21)
    os._exit(0)
cache.refresh().close()
assert os.waitpid(child, 0)[1] == 0
"""
    python(code, tmp_path / "cache")
