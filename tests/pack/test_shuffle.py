"""A shuffle larger than memory: `gather` and `scatter` write the same shards."""

from __future__ import annotations

import gzip
import os
import random
import re
import resource
import shutil
import subprocess
import tempfile
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardtool.entries.strings import PackedStrings
from shardtool.errors import CorruptShard, InvalidRequest, OutputFailed, SampleFailed
from shardtool.execute.local_pool import LocalPool
from shardtool.fingerprint import crc32c
from shardtool.pack import shuffle
from shardtool.pack.shuffle import ReadCost, SpoolLimits, choose_read_strategy, is_gathering_cheaper, scatter_payloads
from shardtool.pattern import parse_pattern
from shardtool.plan.plan import Plan, make_plan
from shardtool.plan.random_order import random_permutation
from shardtool.plan.shard_bounds import ShardBounds
from shardtool.plan.shard_task import build_shard_samples
from shardtool.request.create_options import ReshardOptions
from shardtool.request.observer import Observer
from shardtool.shard_samples import INLINE, SPAN, SpanFile
from shardtool.storage.staging import Folder
from shardtool.units import format_time
from shardtool.write.pack_shard import pack_shard
from shardtool.write.span_reader import SpanReader
from shardtool.write.task import ShardTask
from tests.helpers import flip
from tests.made import changed, flat_entries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.entries.sample_table import SampleTable
    from shardtool.values import OnError

# Forked workers start ten times faster, and use no lock that a thread of this process may hold.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

MEMORY = 16 * 10**6
SPOOL = "out.spool"
FIELDS = ("bin", "cls", "txt")
ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.zst")
_GIB = 2**30


@dataclass(frozen=True)
class Source:
    """Files with payloads among unused bytes, and their samples."""

    entries: SampleTable
    payloads: dict[int, bytes]  # of the SPAN rows

    @property
    def paths(self) -> list[Path]:
        """The files."""
        return [Path(os.fsdecode(file.path)) for file in self.entries.known_spans.files]


def write_packed(path: Path, data: bytes) -> None:
    """Write a file, compressed according to its name."""
    if path.suffix in (".gz", ".tgz"):
        path.write_bytes(gzip.compress(data, 1))
    elif path.suffix == ".zst":
        with pa.output_stream(str(path), compression="zstd") as stream:
            stream.write(data)
    else:
        path.write_bytes(data)


def make_source(
    folder: Path, sizes: Sequence[tuple[int, int]], *, files: int = 2, ending: str = ".tar", gap: int = 700
) -> Source:
    """Write samples with these two payload sizes evenly into files. Every third sample also has a number field.

    In the files, the fields of a sample are not sorted by name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(len(sizes))  # noqa: S311 - the same bytes each time
    contents = [bytearray() for _ in range(files)]
    rows: list[tuple[int, int, int, int, int]] = []  # code, kind, size, offset, CRC
    payloads, counts, of_file, numbers = {}, [], [], []
    for sample, pair in enumerate(sizes):
        at_file = sample * files // len(sizes)
        content, sample_rows = contents[at_file], []
        for code, size in ((2, pair[1]), (0, pair[0])):
            content += chance.randbytes(chance.randrange(gap + 1))
            payload = chance.randbytes(size)
            sample_rows.append((code, SPAN, size, len(content), crc32c(payload), payload))
            content += payload
        text = b"%d" % (sample * 1000) if sample % 3 == 0 else b""
        if text:
            sample_rows.append((1, INLINE, len(text), 0, -1, text))
        for code, kind, size, offset, crc, payload in sorted(sample_rows):
            if kind == SPAN:
                payloads[len(rows)] = payload
            rows.append((code, kind, size, offset, crc))
        counts.append(len(sample_rows))
        of_file.append(at_file)
        numbers.append(text)
    spans = []
    for number, content in enumerate(contents):
        path = folder / f"in-{number}{ending}"
        write_packed(path, bytes(content) + b"end")
        fact = path.stat()
        spans.append(SpanFile(os.fsencode(path), fact.st_size, fact.st_mtime_ns))
    columns = [np.array(column, np.int64) for column in zip(*rows, strict=True)]
    entries = flat_entries(
        [b"k/%05d" % sample for sample in range(len(sizes))],
        counts,
        FIELDS,
        code=columns[0].astype(np.uint16),
        kind=columns[1].astype(np.uint8),
        size=columns[2],
        inline={"cls": PackedStrings.of(numbers)},
        numbers={"cls": "int64"},
        offset=columns[3],
        files=tuple(spans),
        file=np.array(of_file, np.uint32),
        crc=columns[4],
        source_identity="a test",
    )
    return Source(entries, payloads)


def make_plan_of(entries: SampleTable, seed: int | None = 1, ending: str = "tar", **more: Any) -> Plan:
    """Return a plan for a few shards."""
    bounds = ShardBounds(max_count=more.pop("max_count", 7))
    return make_plan(entries, parse_pattern(f"out-{{000..}}.{ending}"), bounds, seed, **more)


@dataclass(frozen=True)
class Packed:
    """The content of a packed shard."""

    data: bytes
    field_crcs: bytes
    digest: int
    skipped: tuple[Any, ...]


def pack(plan: Plan, folder: Path, on_error: OnError = "raise") -> list[Packed]:
    """Pack and return all shards of a plan."""
    folder.mkdir(exist_ok=True)
    packed = []
    for shard in range(plan.shards):
        task = ShardTask(f"s{shard}", plan.format, Folder(str(folder)), build_shard_samples(plan, shard), on_error, 0)
        result = pack_shard(task, lambda _samples, _bytes: None)
        assert result.staged is not None
        path = Path(result.staged.path)
        packed.append(Packed(path.read_bytes(), result.field_crcs, result.digest, result.skipped))
        path.unlink()
    return packed


@contextmanager
def scatter(plans: list[Plan], temp: Path, pool: LocalPool, share: int = MEMORY, **more: Any) -> Iterator[list[Plan]]:
    """Scatter with `share` bytes of memory per worker, and delete the spool afterwards."""
    temp.mkdir(exist_ok=True)
    folder = Folder(str(temp))
    try:
        observer = more.pop("observer", Observer())
        room = SpoolLimits(folder, SPOOL, MEMORY, MEMORY // share, more.pop("other_bytes", 0))
        yield scatter_payloads(plans, room, pool, observer, **more)
    finally:
        folder.discard_staged([SPOOL])
        assert not (temp / f".{SPOOL}.part").exists()


@pytest.fixture
def place() -> Iterator[Path]:
    """Return a folder in memory if possible, because durable writes to disk are slow."""
    memory = "/dev/shm"  # noqa: S108 - the folder is private
    folder = tempfile.mkdtemp(prefix="shardtool-scatter-", dir=memory if os.access(memory, os.W_OK) else None)
    yield Path(folder)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def pools() -> Iterator[dict[int, LocalPool]]:
    """Return pools of one, two and three workers."""
    with LocalPool(1, "spawn") as one, LocalPool(2, "spawn") as two, LocalPool(3, "spawn") as three:
        yield {1: one, 2: two, 3: three}


@pytest.fixture
def pool() -> Iterator[LocalPool]:
    """Return a pool that an error may make unusable."""
    with LocalPool(2, "fork") as fresh:
        yield fresh


SIZES = st.lists(
    st.tuples(st.integers(0, 3000) | st.just(40_000), st.integers(0, 3000) | st.just(600_000)), min_size=1, max_size=40
)
SHARES = st.sampled_from([MEMORY, MEMORY // 3, 100_000, 8_000, 1000])


@pytest.mark.slow
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=SIZES, seed=st.none() | st.integers(0, 9), files=st.integers(1, 5), share=SHARES,
    workers=st.integers(1, 3), ending=st.sampled_from(["tar", "tfrecord"]), source_ending=st.sampled_from(ENDINGS),
    entries_seed=st.none() | st.integers(0, 3),
)  # fmt: skip
def test_scattering_and_gathering_give_the_same_shards(  # noqa: PLR0913, PLR0917 - a law for all combinations
    place: Path, pools: dict[int, LocalPool], sizes: list[tuple[int, int]], seed: int | None, files: int, share: int,
    workers: int, ending: str, source_ending: str, entries_seed: int | None,
) -> None:  # fmt: skip
    """The shards are the same for any memory, number of workers, format, compression and order of samples."""
    plain = make_source(place / "plain", sizes, files=files)
    packed = make_source(place / "packed", sizes, files=files, ending=source_ending)
    order = np.arange(len(sizes)) if entries_seed is None else random_permutation(len(sizes), entries_seed)
    gathered = pack(make_plan_of(plain.entries.take(order), seed, ending), place / "out")
    plan = make_plan_of(packed.entries.take(order), seed, ending)
    with scatter([plan], place / "temp", pools[workers], share) as plans:
        assert pack(plans[0], place / "out") == gathered


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=SIZES, share=SHARES, shares=st.integers(1, 3))
def test_the_spool_is_in_plan_order(
    place: Path, pools: dict[int, LocalPool], sizes: list[tuple[int, int]], share: int, shares: int
) -> None:
    """Payloads are in plan order; each region belongs to one shard and fits in memory."""
    source = make_source(place, sizes)
    divided = [np.flatnonzero(np.arange(len(sizes)) % shares == at) for at in range(min(shares, len(sizes)))]
    before = [make_plan_of(source.entries, 3, samples=samples) for samples in divided]
    with scatter(before, place / "temp", pools[2], share) as plans:
        spool = Path(os.fsdecode(plans[0].entries.known_spans.files[0].path)).read_bytes()
        assert len(spool) == sum(map(len, source.payloads.values()))
        end = 0
        for old, new in zip(before, plans, strict=True):
            entries = new.entries
            assert entries.known_spans.offset is plans[0].entries.known_spans.offset
            assert not entries.known_spans.file.any()
            assert new.order is old.order
            assert entries.known_spans.crc is old.entries.known_spans.crc
            for shard in range(new.shards):
                rows = entries.rows_of(new.sample_numbers(shard))
                rows = rows[entries.rows.kind[rows] == SPAN]
                for row in rows.tolist():
                    start = int(entries.known_spans.offset[row])
                    assert spool[start : start + int(entries.rows.size[row])] == source.payloads[row]
                starts = entries.known_spans.offset[rows]
                first, last = min(starts, default=end), max(starts + entries.rows.size[rows], default=end)
                assert (first, last - first) == (end, int(entries.rows.size[rows].sum()))
                regions = np.frombuffer(build_shard_samples(new, shard).spans.regions, np.int64).reshape(-1, 2)
                assert all(0 < stop - start <= share for start, stop in regions.tolist())
                assert all(first <= start < stop <= last for start, stop in regions.tolist())
                assert (regions[1:, 0] >= regions[:-1, 1]).all()
                end = last


def test_buckets_are_as_large_as_possible(place: Path, pools: dict[int, LocalPool]) -> None:
    """Two neighbouring regions of one shard do not fit in memory together."""
    source = make_source(place, [(1000, 500)] * 300)
    with scatter([make_plan_of(source.entries, max_count=150)], place / "temp", pools[1], 40_000) as plans:
        regions = [
            np.frombuffer(build_shard_samples(plans[0], at).spans.regions, np.int64).reshape(-1, 2) for at in range(2)
        ]
    for shard_regions in regions:
        assert len(shard_regions) > 5
        assert ((shard_regions[1:, 1] - shard_regions[:-1, 0]) > 20_000).all()
        assert (shard_regions[1:, 0] == shard_regions[:-1, 1]).all()
    assert sum(int((shard_regions[:, 1] - shard_regions[:, 0]).sum()) for shard_regions in regions) == 300 * 1500


@pytest.mark.parametrize("share", [MEMORY, 1000])
def test_spans_far_apart_empty_or_shared(place: Path, pools: dict[int, LocalPool], share: int) -> None:
    """Unused bytes can have any length, and samples can share bytes."""
    path = place / "in.tar"
    data = np.arange(5_000_000).astype(np.uint32).tobytes()[:5_000_000]
    path.write_bytes(data)
    places = [(0, 10), (10, 0), (10, 5), (4_000_000, 700), (4_000_000, 700), (4_000_100, 3), (4_999_990, 10)]
    source = make_source(place / "made", [(1, 1)] * len(places))
    entries = changed(
        source.entries.take_rows(np.flatnonzero(source.entries.rows.code == 0)),
        first_rows=np.arange(len(places) + 1),
        offset=np.array([start for start, _ in places]),
        size=np.array([size for _, size in places]),
        crc=np.array([crc32c(data[start : start + size]) if start else -1 for start, size in places]),
        files=(SpanFile(os.fsencode(path), len(data), path.stat().st_mtime_ns),),
        file=np.zeros(len(places), np.uint32),
    )
    with scatter([make_plan_of(entries)], place / "temp", pools[1], share) as plans:
        spool = (place / "temp" / f".{SPOOL}.part").read_bytes()
        for at, (start, size) in zip(plans[0].entries.known_spans.offset.tolist(), places, strict=True):
            assert spool[at : at + size] == data[start : start + size]
        assert pack(plans[0], place / "out") == pack(make_plan_of(entries), place / "out")


def test_remaining_samples_are_read_from_the_spool(place: Path, pools: dict[int, LocalPool]) -> None:
    """A plan for a part of the scattered samples gives the same bytes."""
    source = make_source(place, [(900, 300)] * 100)
    plan, places = make_plan_of(source.entries, max_count=50), np.array([3, 60, *range(70, 90)])
    with scatter([plan], place / "temp", pools[1], 40_000) as plans:
        again = plans[0].subset(places)
        assert len(build_shard_samples(again, 0).spans.regions) == 2 * 16, "two of five regions are worth it"
        assert pack(again, place / "out") == pack(plan.subset(places), place / "out")


def _system_calls() -> int:
    return int(re.search(r"syscr: (\d+)", Path("/proc/self/io").read_text(encoding="ascii"))[1])  # type: ignore[index]


def test_packing_reads_regions_whole(place: Path, pools: dict[int, LocalPool]) -> None:
    """Packing uses one system call per region, not one per sample."""
    source = make_source(place, [(300, 300)] * 600)
    with scatter([make_plan_of(source.entries, max_count=200)], place / "temp", pools[1], 100_000) as plans:
        regions = sum(len(build_shard_samples(plans[0], shard).spans.regions) // 16 for shard in range(3))
        before = _system_calls()
        pack(plans[0], place / "out")
        assert 3 <= regions <= 12
        assert _system_calls() - before < regions + 30  # the test's own


def test_an_unreadable_region(place: Path) -> None:
    """An unreadable region does not affect samples of other regions."""
    path = place / "spool"
    path.write_bytes(bytes(range(200)))
    into = memoryview(bytearray(4))
    files, regions = (SpanFile(os.fsencode(path), 200, -1),), np.array([0, 50, 50, 200]).tobytes()
    with closing(SpanReader(files, regions, has_crcs=False)) as reader:
        reader.read(0, 10, into)
        os.truncate(path, 100)
        with pytest.raises(OSError, match="too early"):
            reader.read(0, 60, into)
        reader.read(0, 10, into)
        assert bytes(into) == bytes(range(10, 14))


class _RecordingObserver(Observer):
    """Records its calls."""

    def __init__(self) -> None:
        self.details: list[str] = []
        self.phases: list[tuple[str, int]] = []
        self.size = 0

    def log(self, text: str) -> None:
        self.details.append(text)

    def phase(self, text: str, size: int) -> None:
        self.phases.append((text, size))

    def advance(self, samples: int, size: int, shards: int) -> None:
        assert (samples, shards) == (0, 0)
        assert self.phases, "progress before the phase"
        self.size += size


@pytest.mark.parametrize("share", [MEMORY, 1000])
def test_progress_of_the_first_pass(place: Path, pools: dict[int, LocalPool], share: int) -> None:
    """The observer receives the size and location first, and then each byte once."""
    source, observer = make_source(place, [(300, 700)] * 70), _RecordingObserver()
    with scatter([make_plan_of(source.entries)], place / "temp", pools[2], share, observer=observer):
        pass
    buckets = 10 if share == MEMORY else 70
    assert observer.details == [f"first pass of two: 70 kB to {buckets} buckets in {place}/temp"]
    assert (observer.phases, observer.size) == ([("first pass", 70_000)], 70_000)


@pytest.mark.parametrize("size", [2000, 50_000])
@pytest.mark.parametrize("ending", [".tar", ".tar.gz"])
@pytest.mark.parametrize("at", [0, -1])
def test_a_flipped_byte_is_found_in_the_first_pass(
    place: Path, pool: LocalPool, size: int, ending: str, at: int
) -> None:
    """A flipped byte is an error with the offset, whether or not the payload fits in memory."""
    source = make_source(place, [(size, size)] * 12)
    rows = np.flatnonzero(source.entries.rows.code == 2)
    row = int(rows[9])
    offset, path = int(source.entries.known_spans.offset[row]), source.paths[1]
    flip(path, offset + at % size)
    if ending != ".tar":
        damaged = path.read_bytes()
        path = path.with_name(f"in-1{ending}")
        write_packed(path, damaged)
    fact = path.stat()
    files = (source.entries.known_spans.files[0], SpanFile(os.fsencode(path), fact.st_size, fact.st_mtime_ns))
    entries = changed(source.entries, files=files)
    with pytest.raises(CorruptShard) as raised, scatter([make_plan_of(entries)], place / "temp", pool, 40_000):
        pass
    payload = bytearray(source.payloads[row])
    payload[at] ^= 1
    wrong, wanted = crc32c(payload), crc32c(source.payloads[row])
    assert raised.value.where == str(path)
    assert raised.value.found == (f"k/00009: at {offset:,}: field 'txt' has the CRC-32C {wrong:08x}, not {wanted:08x}")
    assert "This file was not copied" in raised.value.remedy


def _flipped(source: Source) -> None:
    for row in (4, 5, 21):
        sample = int(np.searchsorted(source.entries.first_rows, row, "right")) - 1
        path = source.paths[int(source.entries.known_spans.file[sample])]
        fact = path.stat()
        flip(path, int(source.entries.known_spans.offset[row]))
        os.utime(path, ns=(fact.st_mtime_ns, fact.st_mtime_ns))


def _touched(source: Source) -> None:
    os.utime(source.paths[0])


def _removed(source: Source) -> None:
    source.paths[1].unlink()


def _cut(source: Source) -> None:
    with source.paths[1].open("r+b") as file:
        file.truncate(100)


def _all(source: Source) -> None:
    _flipped(source)
    _removed(source)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [_flipped, _touched, _removed, _cut, _all])
@pytest.mark.parametrize("share", [MEMORY, 3000])
def test_the_same_samples_are_skipped(
    place: Path, pool: LocalPool, damage: Callable[[Source], None], share: int
) -> None:
    """If damaged samples are skipped, both methods give the same shards and the same list."""
    source = make_source(place, [(900, 1500)] * 30, files=3)
    damage(source)
    plan = make_plan_of(source.entries)
    gathered = pack(plan, place / "out", "skip")
    assert any(packed.skipped for packed in gathered)
    with scatter([plan], place / "temp", pool, share, on_error="skip") as plans:
        assert pack(plans[0], place / "out", "skip") == gathered


@pytest.mark.parametrize("seed", [None, 1])
def test_a_span_beyond_the_end(place: Path, pool: LocalPool, seed: int | None) -> None:
    """An offset beyond the end stops the first pass, or skips only that sample."""
    source = make_source(place, [(900, 1500)] * 30, files=3)
    size = source.entries.rows.size.copy()
    size[-2] += 10_000
    plan = make_plan_of(changed(source.entries, size=size), seed, max_count=20)
    gathered = pack(plan, place / "out", "skip")
    assert sum(len(packed.skipped) for packed in gathered) == 1
    with pytest.raises(SampleFailed, match=r"in-2\.tar: ends at .* too early"), scatter([plan], place / "t", pool):
        pass
    with LocalPool(1, "fork") as another, scatter([plan], place / "t", another, on_error="skip") as plans:
        assert pack(plans[0], place / "out", "skip") == gathered


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_touched, "changed while it was read: its modification time differs"),
        (_removed, "no such file or directory"),
        (_cut, "changed while it was read"),
    ],
)
def test_a_source_that_changed(place: Path, pool: LocalPool, damage: Callable[[Source], None], message: str) -> None:
    """A file that changed after listing stops the first pass and is named."""
    source = make_source(place, [(900, 1500)] * 30)
    damage(source)
    with (
        pytest.raises(SampleFailed, match=message) as raised,
        scatter([make_plan_of(source.entries)], place / "t", pool),
    ):
        pass
    assert raised.value.where in map(str, source.paths)


@pytest.mark.slow
@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("ending", ENDINGS[1:])
def test_a_damaged_compressed_file(place: Path, pool: LocalPool, ending: str, on_error: OnError) -> None:
    """A damaged compressed file always stops the run, because data after the damage is unreadable."""
    source = make_source(place, [(900, 1500)] * 30, ending=ending)
    path, file = source.paths[1], source.entries.known_spans.files[1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(file.mtime_ns, file.mtime_ns))
    with (
        pytest.raises(CorruptShard) as raised,
        scatter([make_plan_of(source.entries)], place / "temp", pool, on_error=on_error),
    ):
        pass
    assert raised.value.where == str(path)


@pytest.fixture
def disk(place: Path) -> Iterator[Path]:
    """Mount a file system of 1 MB."""
    folder = place / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mount is not permitted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_temporary_folder_that_is_too_small(place: Path, disk: Path, pool: LocalPool) -> None:
    """A temporary folder that is too small is refused before anything is written, with the free and required space."""
    source = make_source(place, [(30_000, 30_000)] * 20)
    with pytest.raises(OutputFailed) as raised, scatter([make_plan_of(source.entries)], disk, pool):
        pass
    assert raised.value.where == str(disk)
    assert raised.value.found == "1.05 MB free, 1.2 MB needed for the two passes of a shuffle"
    assert re.search(r"temp_dir.*method='gather'", raised.value.remedy)
    assert os.listdir(disk) == []


class _Filling(Observer):
    """Fills a disk between the check and the first pass."""

    def __init__(self, folder: Path, room: int) -> None:
        self._folder, self._room = folder, room

    def phase(self, text: str, size: int) -> None:  # noqa: ARG002 - the signature of the base class
        fact = os.statvfs(self._folder)
        fd = os.open(self._folder / "filler", os.O_CREAT | os.O_WRONLY)
        os.posix_fallocate(fd, 0, fact.f_bavail * fact.f_frsize - self._room)
        os.close(fd)


@pytest.mark.parametrize("room", [0, 4096, 400_000])
def test_a_temporary_folder_that_fills_up(place: Path, disk: Path, pool: LocalPool, room: int) -> None:
    """If the temporary folder fills up, the run fails with its name and advice, and leaves no file."""
    source = make_source(place, [(20_000, 20_000)] * 20)
    observer = _Filling(disk, room)
    with (
        pytest.raises(OutputFailed) as raised,
        scatter([make_plan_of(source.entries)], disk, pool, 100_000, observer=observer),
    ):
        pass
    assert raised.value.where == str(disk)
    assert raised.value.found == "cannot write a temporary file: no space left on device"
    assert re.search(r"temp_dir.*method='gather'", raised.value.remedy)
    assert os.listdir(disk) == ["filler"]


def test_a_limit_of_file_sizes(place: Path, pool: LocalPool) -> None:
    """A limit of file sizes (`ulimit -f`) gives the same error as a full disk."""
    source = make_source(place, [(20_000, 20_000)] * 20)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, limits[1]))
        with (
            pytest.raises(OutputFailed, match="file too large"),
            scatter([make_plan_of(source.entries)], place / "temp", pool),
        ):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(place / "temp") == []


def test_no_temporary_folder(place: Path, pool: LocalPool) -> None:
    """The error for a missing temporary folder names the folder."""
    source = make_source(place, [(20, 20)] * 20)
    with pytest.raises(OutputFailed, match="no such file or directory") as raised:
        scatter_payloads(
            [make_plan_of(source.entries)], SpoolLimits(Folder(str(place / "gone")), SPOOL, MEMORY, 1), pool, Observer()
        )
    assert raised.value.where == str(place / "gone")


def _peaks(pids: list[int]) -> list[int]:
    texts = [Path(f"/proc/{pid}/status").read_text(encoding="ascii") for pid in pids]
    return [int(re.search(r"VmHWM:\s*(\d+) kB", text)[1]) * 1024 for text in texts]  # type: ignore[index]


def _children() -> set[int]:
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()}


@pytest.mark.slow
@pytest.mark.parametrize(("count", "size"), [(1200, 80_000), (100_000, 10)])
def test_workers_stay_within_the_memory(place: Path, count: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither pass exceeds a worker's share, with many small payloads or one larger than the memory."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 1}, raising=False)  # two workers from the start
    path, memory, large = place / "in.tar", 16 * 10**6, 40 * 10**6
    path.touch()
    os.truncate(path, count * size + large)
    few = make_source(place / "few", [(9, 9)] * 20).entries
    entries = flat_entries(
        [b"%06d" % at for at in range(count + 1)],
        [1] * (count + 1),
        FIELDS,
        kind=np.full(count + 1, SPAN, np.uint8),
        size=[size] * count + [large],
        offset=np.arange(count + 1) * size,
        files=(SpanFile(os.fsencode(path), count * size + large, path.stat().st_mtime_ns),),
    )
    before = _children()
    with LocalPool(2, "spawn") as pool:
        workers = sorted(_children() - before)
        _pack_all(make_plan_of(few), place, pool)
        base = _peaks(workers)
        _both_passes(make_plan_of(entries, max_count=1000), place, pool, memory)
        grown = [after - at_first for after, at_first in zip(_peaks(workers), base, strict=True)]
    assert len(grown) == 2
    assert max(grown) <= memory // 2
    assert min(grown) > memory // 4, "what is measured is not what they use"


def _both_passes(plan: Plan, temp: Path, pool: LocalPool, memory: int) -> None:
    folder = Folder(str(temp))
    _pack_all(scatter_payloads([plan], SpoolLimits(folder, SPOOL, memory, 2), pool, Observer())[0], temp, pool)
    folder.discard_staged([SPOOL])


def _pack_all(plan: Plan, out: Path, pool: LocalPool) -> None:
    folder = Folder(str(out))
    shards = [ShardTask(f"{at}", "tar", folder, build_shard_samples(plan, at), "raise", 0) for at in range(plan.shards)]
    for _ in pool.map(pack_shard, shards, lambda *_: None):
        pass
    folder.discard_staged([shard.name for shard in shards])


def _method(source: Source, plans: list[Plan] | None = None, **more: Any) -> Any:
    arguments = {"workers": 2, "is_compressed": False, "requested": "auto", **more}
    return choose_read_strategy(plans or [make_plan_of(source.entries)], **arguments)


@pytest.mark.parametrize("method", ["auto", "gather", "scatter"])
def test_samples_in_file_order_need_no_method(place: Path, method: str) -> None:
    """Samples in file order are read in this order, for any order of files and any subset of samples."""
    source = make_source(place, [(10, 10)] * 100, files=4)
    files_swapped = np.concatenate((np.arange(50, 100), np.arange(50)))
    subset = np.flatnonzero(random_permutation(100, 1) < 30)
    for order in (None, files_swapped, subset):
        plan = make_plan_of(source.entries, None, samples=order)
        assert _method(source, [plan], requested=method).name == "order"
    swapped = make_plan_of(source.entries.take(files_swapped), None)
    assert choose_read_strategy([swapped], workers=1, is_compressed=False, requested="auto").name == "order"
    offsets = source.entries.known_spans.offset
    in_turn = np.argsort(offsets[source.entries.rows.code == 2])  # ascending in each file, but alternating files
    for order in (random_permutation(100, 1), in_turn):
        assert _method(source, [make_plan_of(source.entries, None, samples=order)], requested="gather").name == "gather"


def test_compressed_shards_are_scattered(place: Path) -> None:
    """Compressed shards are scattered even in file order, because they cannot be gathered."""
    source = make_source(place, [(10, 10)] * 100, ending=".tar.gz")
    for plan in (make_plan_of(source.entries), make_plan_of(source.entries, None)):
        for method in ("auto", "scatter"):
            strategy = _method(source, [plan], is_compressed=True, requested=method)
            assert strategy.name == "scatter"
            assert "compressed" in strategy.note


@pytest.mark.parametrize("method", ["gather", "scatter"])
def test_a_requested_method_is_used(place: Path, method: str) -> None:
    """A requested method is used without measuring reads."""
    assert _method(make_source(place, [(10, 10)] * 100), requested=method).name == method


def test_little_memory_is_refused() -> None:
    """Too little memory is refused with the required memory, before anything else happens."""
    with pytest.raises(InvalidRequest, match=r"memory: 16 MB; expected at least 16 MB"):
        ReshardOptions(memory=16 * 10**6 - 1)
    with pytest.raises(InvalidRequest, match="memory: 1 MB"):
        ReshardOptions(memory="1MB")


def test_few_samples_are_gathered(place: Path) -> None:
    """A few samples are gathered, because measuring takes longer."""
    method = _method(make_source(place, [(10, 10)] * 50))
    assert (method.name, method.note) == ("gather", "")


def test_measured_costs_are_logged(place: Path) -> None:
    """The log gives the cost of a sample, and the size of two passes."""
    method = _method(make_source(place, [(1000, 3000)] * 500))
    cost = r"a random read takes \d+(\.\d+)? [um]s per sample"
    notes = {"gather": f"reading samples by offset: {cost}", "scatter": f"shuffled in two passes over 2 MB: {cost}"}
    assert re.fullmatch(notes[method.name], method.note)


def test_a_source_that_cannot_be_measured_is_gathered(place: Path) -> None:
    """A source that cannot be measured is gathered, and packing reports the error."""
    source = make_source(place, [(10, 10)] * 100)
    _removed(source)
    assert _method(source).name == "gather"


@pytest.mark.parametrize(("size", "name"), [(10_000, "scatter"), (5_000_000, "gather")])
def test_store_requests_have_an_assumed_cost(
    size: int, name: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests to a store are not measured, so the choice is always the same. The log explains it."""
    monkeypatch.setattr(shuffle, "measure_read_cost", None)
    source = make_source(place, [(10, 10)] * 100)
    plan, spans, rows = make_plan_of(source.entries), source.entries.known_spans, source.entries.rows
    files = tuple(
        file._replace(path=b"s3://bucket/%d.tar" % number, size=100 * size) for number, file in enumerate(spans.files)
    )
    sizes = np.where(rows.kind == SPAN, size, rows.size)
    far = replace(source.entries, rows=replace(rows, size=sizes), spans=replace(spans, files=files))
    plans = [replace(plan, entries=far)]
    strategies = [
        choose_read_strategy(plans, workers=workers, is_compressed=False, requested="auto") for workers in (1, 64)
    ]
    assert strategies[0] == strategies[1]
    assert strategies[0].name == name
    assert "assuming 30 ms for each of 100 requests, one per sample" in strategies[0].note


@pytest.mark.parametrize(
    ("sample_s", "byte_s", "size", "pays"),
    [
        (5e-6, 1 / 5e9, 7_000, True),  # memory
        (9e-3, 1 / 150e6, 7_000, False),  # a disk that seeks
        (9e-3 + 20e6 / 150e6, 1 / 150e6, 20_000_000, True),  # samples so large that seeking takes no notable time
        (40e-6, 1 / 1e9, 110_000, True),  # a good solid-state disk
        (30e-3, 1 / 100e6, 110_000, False),  # a store
    ],
)
def test_the_cheaper_method_is_chosen(sample_s: float, byte_s: float, size: int, pays: bool) -> None:  # noqa: FBT001 - a table
    """Samples are gathered if this takes less time than copying all bytes twice."""
    count = 10**6
    assert is_gathering_cheaper(count, count * size, count * size, 2, ReadCost(sample_s, byte_s)) is pays


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (4.44e-6, "4.4 us"),
        (83.4e-6, "83 us"),
        (170e-6, "170 us"),
        (9.1e-3, "9.1 ms"),
        (9.96e-3, "10 ms"),
        (2, "2000 ms"),
    ],
)
def test_times_are_formatted(seconds: float, shown: str) -> None:
    """Times have about two digits and a unit."""
    assert format_time(seconds) == shown


def _measure_bias(order: NDArray[np.int64]) -> float:
    """Return how unlikely an order is as a uniform shuffle, in standard deviations: the maximum of three measures.

    The measures are the correlation of positions, a chi-square of tenths of the source by tenths of the target, and a
    chi-square of the orders of four neighbours.
    """
    count = len(order)
    places = np.empty(count, np.int64)
    places[order] = np.arange(count)
    correlation = abs(np.corrcoef(np.arange(count), places)[0, 1]) * count**0.5
    cells = np.bincount(np.arange(count) * 10 // count * 10 + places * 10 // count, minlength=100)
    fours = np.argsort(places[: count // 4 * 4].reshape(-1, 4), axis=1) @ np.array([64, 16, 4, 1])
    patterns = np.unique(fours, return_counts=True)[1]
    return max(float(correlation), _chi_square(cells, 81), _chi_square(np.pad(patterns, (0, 24 - len(patterns))), 23))


def _chi_square(counts: NDArray[np.int64], freedom: int) -> float:
    expected = counts.sum() / len(counts)
    return abs(float(((counts - expected) ** 2 / expected).sum()) - freedom) / float((2 * freedom) ** 0.5)


@pytest.mark.parametrize("seed", [0, 1, 2, 7, 12345, -5, 2**40])
@pytest.mark.parametrize("count", [10_000, 100_000])
def test_a_shuffle_is_uniform(count: int, seed: int) -> None:
    """The position of a sample in the source does not predict its position in the output."""
    assert _measure_bias(random_permutation(count, seed)) < 5


def test_all_orders_are_equally_likely() -> None:
    """Over many seeds, four samples appear equally often in each of their 24 orders."""
    orders = np.array([random_permutation(4, seed) for seed in range(6000)]) @ np.array([64, 16, 4, 1])
    patterns = np.unique(orders, return_counts=True)[1]
    assert len(patterns) == 24
    assert _chi_square(patterns, 23) < 5


def _shuffle_within_shards(count: int) -> NDArray[np.int64]:
    """Shuffle shards, and the samples of each."""
    size = count // 20
    return np.concatenate([shard * size + random_permutation(size, int(shard)) for shard in random_permutation(20, 1)])


def _shuffle_through_a_buffer(count: int) -> NDArray[np.int64]:
    """Shuffle like a stream, through a buffer of a hundredth of all samples."""
    chance, buffer, out = random.Random(1), list(range(count // 100)), []  # noqa: S311
    for sample in range(count // 100, count):
        at = chance.randrange(len(buffer))
        out.append(buffer[at])
        buffer[at] = sample
    chance.shuffle(buffer)
    return np.array(out + buffer)


def _shuffle_by_pairs(count: int) -> NDArray[np.int64]:
    """Shuffle pairs of neighbours."""
    pairs = random_permutation(count // 2, 1)
    return np.column_stack((2 * pairs, 2 * pairs + 1)).ravel()


def _cut_deck(count: int) -> NDArray[np.int64]:
    """Rotate the order."""
    return np.roll(np.arange(count), count // 3)


@pytest.mark.parametrize("broken", [_shuffle_within_shards, _shuffle_through_a_buffer, _shuffle_by_pairs, _cut_deck])
def test_the_measures_detect_weak_shuffles(broken: Callable[[int], NDArray[np.int64]]) -> None:
    """The measures distinguish a global shuffle from common substitutes."""
    order = broken(10_000)
    assert sorted(order.tolist()) == list(range(10_000))
    assert _measure_bias(order) > 50
