from __future__ import annotations

import errno
import fcntl
import json
import os
import pickle
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import shardtool
from shardtool import Cache, CorruptShard, InvalidRequest, OutputFailed
from shardtool.dataset.find import open_dataset
from shardtool.storage import locks
from shardtool.storage.locks import take_lock
from shardtool.verbs.cache import cache_space
from shardtool.verbs.cache.counts import CountsFile
from shardtool.verbs.cache.status import cache_clear
from tests.helpers import PATIENCE_S, flip, write_tree
from tests.verbs.cache.conftest import SHARD, write_shards
from tests.verbs.cache.helpers import KILLING, copies, python, read_all

if TYPE_CHECKING:
    from shardtool.dataset.stored import StoredShard
    from shardtool.verbs.cache.cache_space import Policy
    from tests.verbs.cache.conftest import NoteRecorder

Shards = tuple["StoredShard", ...]


def test_a_shard_is_copied_once(tmp_path: Path, shards: Shards) -> None:
    """The first reader copies a shard; all others read the copy, in this process or another one."""
    first = Cache(tmp_path / "cache")
    assert read_all(first, shards) == [True] * 6
    assert (first.counts.copies, first.counts.hits) == (6, 0)
    unpickled = pickle.loads(pickle.dumps(Cache(tmp_path / "cache", "1GB", "oldest")))  # noqa: S301 - our own
    assert (unpickled.max_bytes, unpickled.policy) == (10**9, "oldest")
    assert read_all(unpickled, shards) == [True] * 6
    assert (unpickled.counts.copies, unpickled.counts.hits) == (0, 6)
    assert (unpickled.total().copies, unpickled.total().hits, unpickled.total().hit_rate) == (6, 6, 0.5)
    assert copies(tmp_path / "cache") == [shard.name for shard in shards]


def test_deletion_at_interpreter_exit_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases and caches that are deleted after their modules, at interpreter exit, report nothing."""
    counter, lock = (
        CountsFile(Cache(tmp_path / "cache").folder),
        take_lock(str(tmp_path / "cache" / "lock"), shared=True),
    )
    assert lock is not None
    with monkeypatch.context() as ended:
        ended.setattr(locks, "_exclusive_locks", None)
        ended.setattr(locks, "os", None)
        lock.__del__()
        counter.__del__()
    lock.close()


def test_shards_that_cannot_be_deleted(tmp_path: Path, shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cache_clear` fails if it may not delete a shard, and a reader copies no shard into space that is not free."""
    read_all(Cache(tmp_path / "cache", 3 * SHARD), shards[:3])

    def refuse(path: str, **_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        with pytest.raises(OutputFailed, match="cannot be deleted"):
            cache_clear(tmp_path / "cache")
        with pytest.warns(UserWarning, match="a shard cannot be deleted"):
            read_all(Cache(tmp_path / "cache", 3 * SHARD), shards)
    assert [name for name in copies(tmp_path / "cache") if name in {shard.name for shard in shards[3:]}] == []


def test_a_shard_larger_than_the_free_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a shard needs more than the free space, it stays uncached, and smaller shards are still copied."""
    write_tree(tmp_path / "src", {f"{at}.bin": bytes(10 ** (6 - at)) for at in range(3)})
    shardtool.create(tmp_path / "src", tmp_path / "out-{0..}.tar", max_count=1)
    monkeypatch.setattr("shardtool.storage.staging.Folder.free_bytes", lambda _folder: 500_000)
    shards = open_dataset(tmp_path / "out.json").shards
    with pytest.warns(UserWarning, match="no space left"):
        assert read_all(Cache(tmp_path / "cache", "1GB"), shards) == [False, True, True]


def test_a_copy_does_not_need_the_original(tmp_path: Path) -> None:
    """A copied shard is read from the copy alone, as long as the sidecars exist."""
    shards = write_shards(tmp_path, 1)
    cache = Cache(tmp_path / "cache")
    read_all(cache, shards)
    data = Path(shards[0].path).read_bytes()
    Path(shards[0].path).unlink()
    with Cache(tmp_path / "cache").open(shards[0]) as leased:
        assert Path(leased.path).read_bytes() == data


@pytest.mark.parametrize(("policy", "stay"), [("least-used", [0, 3, 4]), ("oldest", [2, 3, 4]), ("keep", [0, 1, 2])])
def test_the_bound_holds(tmp_path: Path, shards: Shards, policy: Policy, stay: list[int], noting: NoteRecorder) -> None:
    """The cache never exceeds its bound; the policy decides which shards are evicted, if any."""
    cache = Cache(tmp_path / "cache", 3 * SHARD, policy, observer=noting)
    for number in (0, 1, 2, 0, 3, 4):
        with cache.open(shards[number]) as leased:
            assert Path(leased.path).read_bytes() == Path(shards[number].path).read_bytes()
            assert (leased.lock is not None) == (policy != "keep" or number < 3)
        assert len(copies(tmp_path / "cache")) <= 3
    assert copies(tmp_path / "cache") == [shards[number].name for number in stay]
    assert len(noting.notes) == (policy == "keep")


def test_each_process_applies_its_own_bound(tmp_path: Path, shards: Shards) -> None:
    """Each process applies its own bound when it adds a shard."""
    large, small = Cache(tmp_path / "cache", 6 * SHARD), Cache(tmp_path / "cache", 2 * SHARD)
    read_all(large, shards[:5])
    assert len(copies(tmp_path / "cache")) == 5
    read_all(small, shards[5:])
    assert copies(tmp_path / "cache") == [shards[4].name, shards[5].name]


def test_a_shard_in_use_is_not_evicted(tmp_path: Path, shards: Shards, noting: NoteRecorder) -> None:
    """A shard in use is not evicted; if all are in use, the original is read, with one note."""
    cache = Cache(tmp_path / "cache", 2 * SHARD, observer=noting)
    held = [cache.open(shards[0]), cache.open(shards[1])]
    assert read_all(Cache(tmp_path / "cache", 2 * SHARD, observer=noting), shards[2:4]) == [False] * 2
    assert copies(tmp_path / "cache") == [shards[0].name, shards[1].name]
    held[0].close()
    held[0].close()
    assert read_all(cache, shards[2:4]) == [True, True]
    assert copies(tmp_path / "cache") == [shards[1].name, shards[3].name]
    assert len(noting.notes) == 1


def test_an_expected_shard_is_copied_if_it_fits(tmp_path: Path) -> None:
    """An expected shard is copied only if it fits without eviction; its first opening counts as a copy."""
    shards = write_shards(tmp_path / "slow", 4)
    cache = Cache(tmp_path / "cache", 2 * SHARD)
    for shard in shards[:3]:
        cache.expect(shard)
    assert copies(tmp_path / "cache") == [shard.name for shard in shards[:2]]
    assert read_all(cache, shards[:2] * 2) == [True] * 4
    assert (cache.counts.copies, cache.counts.hits, cache.counts.evicted) == (2, 2, 0)
    cache.expect(shards[0])
    assert read_all(cache, shards[:1]) == [True]
    assert (cache.counts.copies, cache.counts.hits) == (2, 3)
    with open(shards[3].path, "ab") as file:
        file.write(b"damaged")
    Cache(tmp_path / "cache", "1GB").expect(shards[3])
    assert len(copies(tmp_path / "cache")) == 2


@pytest.mark.parametrize("mixed", [1, 2])
def test_a_stream_copies_ahead(tmp_path: Path, mixed: int) -> None:
    """A stream copies the next shards ahead; shards that do not fit are read from their original location."""
    caches, datasets = [], []
    for at in range(mixed):
        write_shards(tmp_path / f"slow{at}", 6)
        caches.append(Cache(tmp_path / f"cache{at}", 4 * SHARD, observer=shardtool.Observer()))
        datasets.append(shardtool.open(tmp_path / f"slow{at}", cache=caches[-1]))
    both = datasets[0] if mixed == 1 else shardtool.mix(datasets, [1] * mixed)
    stream = iter(both.stream(shuffle=True, parts=1, buffer=2, rank=0, world_size=1))
    next(stream)
    end_s = time.monotonic() + PATIENCE_S
    while any(len(copies(cache.folder)) < 4 for cache in caches):
        assert time.monotonic() < end_s
        time.sleep(0.001)
    assert sum(1 for _ in stream) >= mixed * 40  # a mix ends with the dataset that ends first
    assert [(cache.counts.copies, cache.counts.evicted) for cache in caches] == [(4, 0)] * mixed


def test_concurrent_readers_share_one_copy(tmp_path: Path, shards: Shards) -> None:
    """Threads and caches that open a shard at the same time get the same copy."""
    caches = [Cache(tmp_path / "cache") for _ in range(4)]
    threads = [threading.Thread(target=read_all, args=(cache, shards)) for cache in caches for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(cache.counts.copies for cache in caches) == len(shards)
    assert sum(cache.counts.hits for cache in caches) == 7 * len(shards)


def test_equal_names_have_separate_copies(tmp_path: Path) -> None:
    """Shards of equal names in two datasets, and a rewritten shard, have separate copies."""
    cache = Cache(tmp_path / "cache")
    first, second = write_shards(tmp_path / "a", 1, "a"), write_shards(tmp_path / "b", 1, "b")
    read_all(cache, [*first, *second])
    for path in (tmp_path / "a").glob("out*"):
        path.write_bytes((tmp_path / "b" / path.name).read_bytes().replace(b"b", b"b"))
    assert read_all(Cache(tmp_path / "cache"), [*first, *second]) == [True, True]
    assert len(copies(tmp_path / "cache")) == 2


def test_a_changed_shard_without_a_sidecar_is_copied_again(tmp_path: Path) -> None:
    """A shard without a sidecar is identified by path, size and time; if it changes, it is copied again."""
    shards = write_shards(tmp_path, 1)
    Path(shards[0].sidecar).unlink()
    read_all(Cache(tmp_path / "cache"), shards)
    flip(Path(shards[0].path), 600)
    os.utime(shards[0].path, ns=(1, 1))
    read_all(Cache(tmp_path / "cache"), shards)
    assert len(copies(tmp_path / "cache")) == 2


def test_a_damaged_shard_is_not_copied(tmp_path: Path, noting: NoteRecorder) -> None:
    """A shard that does not match its sidecar is not copied but read from its original location, with a note."""
    shards = write_shards(tmp_path, 2)
    flip(Path(shards[0].path), 700)
    with Path(shards[1].path).open("ab") as file:
        file.write(b"more")
    cache = Cache(tmp_path / "cache", observer=noting)
    assert read_all(cache, shards) == [False, False]
    assert copies(tmp_path / "cache") == []
    assert ["not copied" in note and shard.name in note for note, shard in zip(noting.notes, shards, strict=True)]


def test_a_damaged_copy_is_made_again(tmp_path: Path, shards: Shards, noting: NoteRecorder) -> None:
    """A truncated or damaged copy is made again, or not used while other processes hold it."""
    cache = Cache(tmp_path / "cache", observer=noting)
    with cache.open(shards[0]) as leased:
        path = Path(leased.path)
    path.write_bytes(b"cut")
    assert read_all(cache, shards[:1]) == [True]
    flip(path, 600)
    cache.drop(shards[0])
    assert not path.exists()
    assert read_all(cache, shards[:1]) == [True]
    with cache.open(shards[0]):
        cache.drop(shards[0])
        assert read_all(cache, shards[:1]) == [False]
    assert len(noting.notes) == 1


@pytest.mark.parametrize("ending", ["tar", "tfrecord"])
@pytest.mark.parametrize("others", [0, 1])
def test_a_verifying_reader_drops_a_damaged_copy(
    tmp_path: Path, ending: str, others: int, noting: NoteRecorder
) -> None:
    """A verifying reader drops a copy with a flipped bit and reads the shard again; a damaged original is an error."""
    with shardtool.ShardWriter(tmp_path / f"out-{{000000..}}.{ending}", max_count=10) as writer:
        for n in range(20):
            writer.write({"__key__": f"{n:02}", "bin": b"%02d" % n * 500, "n": n})
    cache = Cache(tmp_path / "cache", observer=noting)
    opened = shardtool.open(tmp_path / "out.json", cache=cache, check=True)
    right = [sample["bin"] for sample in opened]
    (copy, *_) = sorted((tmp_path / "cache" / "copied").glob(f"*-out-000000.{ending}"))
    flip(copy, copy.read_bytes().index(b"0404") + 99)
    for other in [shardtool.open(tmp_path / "out.json", cache=Cache(tmp_path / "cache"))] * others:
        assert other[0]["bin"] == right[0]  # and it holds the copy
    opened = shardtool.open(tmp_path / "out.json", cache=cache, check=True)
    assert sorted(map(str, (sample["bin"] for sample in opened.stream(shuffle="full")))) == [*map(str, right)]
    assert [sample["bin"] for sample in opened] == right
    (note,) = noting.notes
    assert note.endswith(f"out-000000.{ending}: the cached copy is damaged and is no longer used")
    flip(tmp_path / f"out-000000.{ending}", (tmp_path / f"out-000000.{ending}").read_bytes().index(b"0505") + 99)
    with pytest.raises(CorruptShard, match="05, bin: the checksum"):
        shardtool.open(tmp_path / "out.json", cache=Cache(tmp_path / "second", observer=noting), check=True)[5]


def test_foreign_files_are_kept_and_noted(tmp_path: Path, shards: Shards, noting: NoteRecorder) -> None:
    """Foreign files are never deleted, a note lists them, and no link is followed."""
    folder = tmp_path / "cache"
    (folder / "copied").mkdir(parents=True)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    name = f"{'0' * 24}-4-unknown-a.tar"
    foreign = ["notes.txt", "copied/out-000000.tar", "copied/.out.part", f"copied/.room-{name}", f"copied/{name}"]
    for name in foreign[:3]:
        (folder / name).write_text("x")
    for name in foreign[3:]:
        (folder / name).symlink_to(victim)
    cache = Cache(folder, 2 * SHARD, observer=noting)
    assert read_all(cache, shards) == [True] * 6
    assert all(os.path.lexists(folder / name) for name in foreign)
    assert victim.read_text() == "mine"
    assert "left unchanged" in noting.notes[0]
    assert sum(name in noting.notes[0] for name in foreign) >= 4


def test_invalid_folders_are_refused(tmp_path: Path, shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another cache version, a file, linked folders, a bound below a shard, and missing locks are refused."""
    with pytest.raises(InvalidRequest, match=r"max_bytes: .*out-000000.tar has 11,776 bytes, the cache only 11,775"):
        Cache(tmp_path / "cache", SHARD - 1).open(shards[0])
    with pytest.raises(InvalidRequest, match="folder: None; expected the path of a folder"):
        Cache(None)  # type: ignore[arg-type]
    for make in (Cache, cache_clear):
        with pytest.raises(InvalidRequest, match=r"s3://bucket/cache: a URL; expected a local folder.*ShardWriter"):
            make("s3://bucket/cache")
        with pytest.raises(InvalidRequest, match="Did you mean s3://bucket/cache"):
            make("s3:/bucket/cache")
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequest, match="file: a file; expected a folder, or a path that does not exist"):
        Cache(tmp_path / "file")
    with pytest.raises(InvalidRequest, match="policy: 'odd'; expected one of least-used, oldest, keep"):
        Cache(tmp_path / "cache", policy="odd")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="a URL"):
        Cache("s3://bucket/cache")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "copied").symlink_to(tmp_path)
    with pytest.raises(InvalidRequest, match="a link or a file"):
        Cache(tmp_path / "linked")
    for content, message in ((json.dumps({"shardtool-cache": 0}), "version 0"), ("{", "version unknown")):
        (tmp_path / "cache" / "shardtool-cache.json").write_text(content)
        with pytest.raises(InvalidRequest, match=f"{message}; expected version 1. Use another folder"):
            Cache(tmp_path / "cache")
    monkeypatch.setattr(fcntl, "flock", lambda _fd, _kind: None)
    with pytest.raises(InvalidRequest, match="two processes can hold the same lock; expected a file system with"):
        Cache(tmp_path / "other")


def test_a_reader_does_not_wait_forever_for_a_stopped_copier(
    tmp_path: Path, shards: Shards, noting: NoteRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that waits for a stopped copier finally reads the original."""
    monkeypatch.setattr(cache_space, "MAX_WAIT_S", 0.05)
    cache = Cache(tmp_path / "cache", observer=noting)
    with cache.open(shards[0]) as leased:
        name = Path(leased.path).name
    Path(leased.path).unlink()
    with take_lock(str(tmp_path / "cache" / "copied" / f".room-{name}"), create=True) or pytest.fail("held"):
        assert read_all(cache, shards[:1]) == [False]
    assert "makes no progress" in noting.notes[0]
    assert read_all(cache, shards[:1]) == [True]


_KILLED = (
    KILLING
    + """
import sys
from shardtool import Cache
from shardtool.verbs.cache import leases
from shardtool.dataset.find import open_dataset
from shardtool.storage.staging import Folder, StagedFile

folder, dataset = sys.argv[1:]
shards = open_dataset(dataset).shards
cache = Cache(folder, 2 * 11776)
cache.open(shards[5]).close()
instants = [
    (leases, "_copy_shard", killed), (leases, "copy_verified", killed), (StagedFile, "write", after(StagedFile.write)),
    (Folder, "publish", killed), (Folder, "publish", after(Folder.publish)), (Folder, "discard", killed),
]
for number, (place, name, function) in enumerate(instants):
    child = os.fork()
    if not child:
        held = Cache(folder, 2 * 11776).open(shards[5])
        setattr(place, name, function)
        cache.open(shards[number % 3])
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, number
    found = [one for one in os.scandir(folder + "/copied") if not one.name.startswith(".room-")]
    assert sum(one.stat().st_size for one in found) <= 2 * 11776, found
    with cache.open(shards[number % 3]) as one:
        assert one.lock and open(one.path, "rb").read() == open(shards[number % 3].path, "rb").read()
cache.open(shards[3]).close()
cache.open(shards[4]).close()
assert {name[-6:] for name in os.listdir(folder + "/copied")} == {"03.tar", "04.tar"}
"""
)


def test_a_killed_copier_leaves_nothing(tmp_path: Path) -> None:
    """A copier killed at any point leaves nothing visible, and nothing that blocks or outlives the next process."""
    write_shards(tmp_path)
    python(_KILLED, tmp_path / "cache", tmp_path / "out.json")
