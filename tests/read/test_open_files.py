"""Open shards: limited descriptors, cache leases, and compressed shards unpacked once."""

from __future__ import annotations

import gzip
import os
import resource
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from shardtool import ShardWriter, mix
from shardtool.dataset.stored import StoredShard
from shardtool.errors import CorruptShard, OutputFailed
from shardtool.read.dataset import open as open_data
from shardtool.read.open_files import OpenFiles, OpenShardFile
from tests.read.made_data import make


def _shards(folder: Path, count: int) -> list[StoredShard]:
    shards = [StoredShard(str(folder / f"s-{at:03d}.tar"), at) for at in range(count)]
    for shard in shards:
        Path(shard.path).write_bytes(b"shard %03d" % shard.number)
    return shards


def _open_in(folder: Path) -> int:
    links = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if os.path.lexists(path)]
    return sum(link.startswith(str(folder)) for link in links)


def test_descriptors_are_bounded(tmp_path: Path) -> None:
    """Few shards are open at a time, fewer with a low descriptor limit, and none afterwards."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(80, limits[1]), limits[1]))
    try:
        files = OpenFiles(None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    usual = min(256, limits[0] // 4) if limits[0] > 0 else 256
    shards = _shards(tmp_path, 260)
    both = [(20, files), (usual, OpenFiles(None))]
    del files
    while both:
        max_open, opened = both.pop()
        for shard in [*shards, *shards[:9]]:
            assert [*opened.open(shard).read([6], [3])] == [b"%03d" % shard.number]
        assert _open_in(tmp_path) == max_open
        del opened
        assert _open_in(tmp_path) == 0


def test_descriptors_of_many_datasets_are_bounded(tmp_path: Path) -> None:
    """Several datasets of a process share the descriptors, so that a mix can be read with a low limit."""
    for name in "abcd":
        with ShardWriter(tmp_path / name / "x-{00..}.tar", max_count=1) as writer:
            for number in range(40):
                writer.write({"__key__": f"{number}", "txt": name})
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = len(os.listdir("/proc/self/fd")) + 60
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, limits[1]))
    try:
        datasets = [open_data(tmp_path / name) for name in "abcd"]
        for mixed in (mix(datasets), mix([dataset[::-1] for dataset in datasets])):
            assert sum(1 for _ in mixed.stream()) == 160
            assert _open_in(tmp_path) <= low // 3
        assert [len([*dataset]) for dataset in datasets] == [40] * 4
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_shard_stays_open_while_it_is_read(tmp_path: Path) -> None:
    """A dropped shard stays readable to its users; its descriptor is not inherited."""
    (shard,) = _shards(tmp_path, 1)
    files = OpenFiles(None)
    file = files.open(shard)
    del files
    assert [*file.read([0, 6], [5, 3])] == [b"shard", b"000"]
    (fd,) = [int(path.name) for path in Path("/proc/self/fd").iterdir() if os.path.realpath(path) == shard.path]
    assert not os.get_inheritable(fd)
    del file
    assert _open_in(tmp_path) == 0


def test_a_truncated_shard_is_named(tmp_path: Path) -> None:
    """Reading past the end, another size, and a missing file are errors that name the shard."""
    (shard,) = _shards(tmp_path, 1)
    with pytest.raises(CorruptShard, match="at 9: the shard ends; expected 21 more bytes") as error:
        [*OpenShardFile(shard, None).read([4], [26])]
    assert (error.value.where, error.value.offset) == (shard.path, 9)
    with pytest.raises(CorruptShard, match="9 bytes; expected 10"):
        OpenShardFile(shard, None, 10)
    Path(shard.path).unlink()
    with pytest.raises(CorruptShard, match="no such file"):
        OpenShardFile(shard, None)
    os.mkfifo(shard.path)
    with pytest.raises(CorruptShard, match="not a regular file"):
        OpenShardFile(shard, None)


@dataclass
class _Lease:
    path: str
    log: list[str]

    def close(self) -> None:
        self.log.append("close")


@dataclass
class _Copies:
    """A cache that copies shards into a folder and records its leases."""

    folder: Path
    log: list[str] = field(default_factory=list)

    def open(self, shard: StoredShard) -> _Lease:
        copy = self.folder / shard.name
        copy.write_bytes(Path(shard.path).read_bytes())
        self.log.append("open")
        return _Lease(str(copy), self.log)


def test_a_lease_lasts_while_a_shard_is_open(tmp_path: Path) -> None:
    """The cached copy is read; its lease ends once, with the file, and not in a forked process."""
    (shard,) = _shards(tmp_path, 1)
    (tmp_path / "copies").mkdir()
    cache = _Copies(tmp_path / "copies")
    files = OpenFiles(cache)
    file = files.open(shard)
    Path(shard.path).unlink()
    assert [*files.open(shard).read([0], [5])] == [b"shard"]
    child = os.fork()
    if not child:
        del files, file
        os._exit(len(cache.log))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert cache.log == ["open"]
    del files
    assert cache.log == ["open"]
    del file
    assert cache.log == ["open", "close"]


@pytest.fixture
def packed(ending: str, tmp_path: Path) -> tuple[Path, list[dict[str, object]]]:
    """A folder of compressed shards, and their samples."""
    made = make(tmp_path / "plain", ending)
    (tmp_path / "packed").mkdir()
    for at in range(4):
        shard = made.shard(at)
        (tmp_path / "packed" / f"{shard.name}.gz").write_bytes(gzip.compress(shard.read_bytes(), 1))
    return tmp_path / "packed", made.samples


def test_compressed_shards_are_read_in_any_order(packed: tuple[Path, list[dict[str, object]]]) -> None:
    """They are unpacked once each, and read at any position and as a stream."""
    folder, samples = packed
    data = open_data(str(folder))
    assert data[[50, 3, 20, 3]] == [samples[at] for at in (50, 3, 20, 3)]
    assert list(data) == samples


def test_a_full_disk_is_reported_for_compressed_shards(
    packed: tuple[Path, list[dict[str, object]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no space to decompress a shard, the error names the folder, and what to do."""
    folder, _ = packed
    data = open_data(str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with pytest.raises(OutputFailed, match=r"no space to decompress .*TMPDIR"):
        data[[0, 1, 2, 3, 4, 5]]
