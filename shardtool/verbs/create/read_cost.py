"""What reading costs here: a sample at its place, a byte in sequence, a file. Measured, for no two disks are alike."""

from __future__ import annotations

import time
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardtool.storage.open_file import READ_FOLLOWING, READ_PLAIN, read_file
from shardtool.values import FILE, LINK
from shardtool.write.spans import open_span_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.entries.entries import Entries
    from shardtool.values import SpanFile

PROBES = 64  # places read at
_LEAST_PROBES = 12
_MOST_S = 1.0  # at most, but for the first few
_OUTLIERS = 8  # the slowest are left out: a pause of the machine is none of the disk's
_MOST_READ = 2**20  # bytes at each place: from there on, there is little between them and a sequence
_SEQUENCE = 4 * 2**20
_STEP = 2**18
_MILLISECOND = 1e-3
_TRIED = 12  # files
_LOOKED_AT = 256  # rows, to find these
_STRIDE = 2_654_435_761  # between them, around the end: a prime, so that they are of all fields and folders
_HEAD = 4096  # bytes of each: a file's first come with it
_SLOW_S = 0.5e-3  # a thread costs a tenth of that a file, and a disk of this machine answers before
_READS = 16  # files that one worker reads at the same time
_ALL_READS = 64  # that all workers read: more is of no use to most servers, and takes memory
REQUEST_S, REMOTE_BYTE_S = 30e-3, 1 / 100e6  # of a store, as a rule: until an answer begins; and a byte of it
REMOTE_READS = 32  # of a store or server, where nearly all of the time is waiting
_LONG = 9.95  # from there on, two digits stand before the point


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of reading: seconds for a sample at its place, and for a byte in sequence."""

    sample_s: float
    byte_s: float


def probe(spans: Sequence[tuple[SpanFile, int]], length: int, *, opening: bool) -> Cost:
    """Read at some places, and some megabytes in sequence, and see how long that takes.

    Args:
        spans: Files, and where in them what is to be read starts: in a random order, `PROBES` at least.
        length: Bytes to be read at each place.
        opening: Whether a file is opened anew for each.

    Raises:
        OSError: A file cannot be read.
        Failed: It is not the one that the plan saw.
    """
    taken = min(length, _MOST_READ)
    times: list[float] = []
    end = time.monotonic() + _MOST_S
    for file, start in spans[:PROBES]:
        times.append(_time_read(file, start, taken, opening=opening))
        if len(times) >= _LEAST_PROBES and time.monotonic() > end:
            break
    kept = sorted(times)[: max(1, len(times) - _OUTLIERS)]
    byte_s = _time_sequence(*spans[-1])
    return Cost(sum(kept) / len(kept) + (length - taken) * byte_s, byte_s)


def _time_read(planned: SpanFile, offset: int, length: int, *, opening: bool) -> float:
    """Return the seconds that it takes to read at a place, and, if that counts, to open the file."""
    into = memoryview(bytearray(length))
    begun = time.perf_counter()
    with closing(open_span_file(planned)) as source:
        source.expect_random()
        if not opening:
            begun = time.perf_counter()
        source.read_into(into, offset)
        return time.perf_counter() - begun


def _time_sequence(planned: SpanFile, start: int) -> float:
    """Return the seconds that a byte takes when many are read in sequence."""
    into = memoryview(bytearray(_STEP))
    first = max(0, min(start, planned.size - _SEQUENCE))
    with closing(open_span_file(planned)) as source:
        if planned.size > 2 * _STEP:
            first += source.read_into(into, first)  # the way there does not count
        begun, done = time.perf_counter(), 0
        for at in range(first, min(first + _SEQUENCE, planned.size), _STEP):
            done += source.read_into(into, at)
        return (time.perf_counter() - begun) / max(1, done)


def opening_s(entries: Entries) -> float:
    """Return the seconds that it takes to open a file and read its start: the median of a few; 0 where none is read.

    What is wrong with a file is found when it is packed.
    """
    rows, into = entries.rows, memoryview(bytearray(_HEAD))
    times: list[float] = []
    end = time.monotonic() + _MOST_S
    for row in (at * _STRIDE % len(rows.kind) for at in range(min(_LOOKED_AT, len(rows.kind)))):
        if len(times) == _TRIED or time.monotonic() > end:
            break
        if (kind := int(rows.kind[row])) in (FILE, LINK):
            begun = time.perf_counter()
            with suppress(OSError):
                read_file(entries.place(row), into, READ_PLAIN if kind == FILE else READ_FOLLOWING)
            times.append(time.perf_counter() - begun)
    return sorted(times)[len(times) // 2] if times else 0.0


def reads_at_once(file_s: float, workers: int) -> int:
    """Return how many files each of `workers` is to read at the same time, if opening one takes `file_s` seconds."""
    return 1 if file_s < _SLOW_S else max(1, min(_READS, _ALL_READS // workers))


def show_time(seconds: float) -> str:
    """Return a time for people: `4.4 us`, `83 us`, `9.1 ms`."""
    value, unit = (seconds * 1e6, "us") if seconds < _MILLISECOND else (seconds * 1e3, "ms")
    return f"{value:.0f} {unit}" if value >= _LONG else f"{value:.1f} {unit}"
