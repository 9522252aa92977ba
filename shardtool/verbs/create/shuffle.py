"""A shuffle of more than memory holds: how its samples are best read, and the first pass where that takes two.

*Gathering* reads each sample at its place: a system call a sample, which memory and fast disks bear, and nothing that
seeks, is far away, or is compressed. *Scattering* reads each source file once, in sequence, and writes every payload
to its place in a spool; packing reads that region by region. A region is what some places next to each other in a
shard want, no more than memory may hold. What is written at last is the same, whichever was chosen.

Everything here runs in the parent process, which decides on all places: see `write/scatter.py` for what workers do.
"""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from contextlib import closing
from dataclasses import replace
from hashlib import blake2b
from math import isqrt
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from shardtool.dataset.shard_file import is_packed
from shardtool.errors import CorruptShard, OutputFailed, SampleFailed, memory_for
from shardtool.plan.order import Limits, Runs, running
from shardtool.storage.places import is_place
from shardtool.storage.staging import Folder, local_folder, spool_remedy
from shardtool.values import SPAN, OnError, ReadMethod, SpanFile, counted, parse_size, show_size, show_time, to_text
from shardtool.verbs.create.earlier import new_sizes
from shardtool.wording import option
from shardtool.write.packer import BUFFER_SIZE, GAP, OPEN_FILES, SourceFailed, open_span_file
from shardtool.write.scatter import LEAST, ROW_SHARE, ScatterResult, ScatterTask, scatter_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.entries.entries import Entries, FieldSpans
    from shardtool.execute.pool import Pool
    from shardtool.plan.plan import Plan
    from shardtool.request.settings import Observer
    from shardtool.verbs.create.run import Run

_BUFFERS = 2 * BUFFER_SIZE + GAP  # what a worker needs of its share besides payloads
_RUN = 2**20  # bytes that a write should have on average: less would seek, more gains nothing
_LEAST_REGION, _MOST_REGION = 4 * 2**20, 2**30
_CHUNK = 2**20  # rows at a time: temporary columns stay small


def spool_place(run: Run) -> tuple[Folder, str] | None:
    """Return the folder and the name of the temporary file: the same for the same output. None: there is none.

    A part has none: it reads its samples where they lie, for it would arrange those of all others, too.
    """
    if run.shuffle is None or run.part is not None:
        return None
    temp, first, there = run.shuffle.temp_dir, run.outputs[0].pattern, run.outputs[0].destination.folder
    folder = there.temporary if temp is None else local_folder(temp)
    whose = os.path.realpath(os.path.join(first.folder, first.base)) if there.hides else there.full_path(first.base)
    return folder, f"{first.base}-{blake2b(os.fsencode(whose), digest_size=6).hexdigest()}.spool"


@memory_for("arranging the payloads")
def arrange_payloads(run: Run) -> None:
    """Bring payloads of datasets into a better order before they are packed, where that pays; outputs are locked."""
    temporary, compressed = spool_place(run), run.listed.compressed
    if run.shuffle is None or temporary is None or run.entries.known_spans.of_row is not None:
        return
    to_write = sum(sum(new_sizes(run, output)) for output in run.outputs)
    if not to_write and not compressed:
        return  # all is there, and is only compared
    plans = [output.plan for output in run.outputs]
    memory, workers = parse_size(run.shuffle.memory), run.pool.most_together
    method = choose_method(plans, workers=workers, packed=compressed, asked=run.shuffle.method)
    if method.note:
        run.notes.observer.log(method.note)
    if method.name == "scatter":
        folder, name = temporary
        besides = to_write if folder.shares_space(run.outputs[0].destination.folder.path) else 0
        room = SpoolRoom(folder, name, memory, workers, besides)
        plans = scatter(plans, room, run.pool, run.notes.observer, on_error=run.options.on_error)
        for output, plan in zip(run.outputs, plans, strict=True):
            output.plan = plan


class ReadStrategy(NamedTuple):
    """The way in which the samples of plans are read.

    Attributes:
        name: `order`: they lie as they are wanted; `gather`: each at its place; `scatter`: in two passes.
        note: For people: what was chosen and why; empty where there was no choice.
    """

    name: Literal["order", "gather", "scatter"]
    note: str = ""


def choose_method(plans: list[Plan], *, workers: int, packed: bool, asked: ReadMethod) -> ReadStrategy:
    """Return how the samples of `plans` should be read.

    Where it is not plain, some samples are read where they lie, and some megabytes in sequence, to learn what costs
    less. That may differ from machine to machine; what is written does not. In a store nothing is measured, for one
    request says little of the next: requests and bytes are weighed, so that the same job is done in the same way.

    Args:
        plans: Of the same samples, in whose order they are wanted.
        workers: How many processes will read.
        packed: Whether files are compressed, so that nothing can be read at its place.
        asked: What the user wants.
    """
    entries = plans[0].entries
    lie = _SpanPlaces(entries)
    size = sum(int(lie.sizes[_which(plan)].sum()) for plan in plans)
    if packed:
        note = f"two passes over {show_size(size)}: compressed shards can only be read in sequence"
        return ReadStrategy("scatter", note)
    if all(_in_order(plan, lie) for plan in plans):
        return ReadStrategy("order")
    if asked != "auto":
        return ReadStrategy(asked)
    return _cheaper(plans, entries.known_spans.files, lie, size, workers)


class SpoolRoom(NamedTuple):
    """What the first pass may take.

    Attributes:
        folder: Where the spool is written.
        name: What it is called.
        memory: Bytes that all workers together may use, now and when they pack, besides what they use anyway.
        workers: How many there are.
        besides: Bytes that will be written where the spool lies, before it is removed.
    """

    folder: Folder
    name: str
    memory: int
    workers: int
    besides: int = 0


def scatter(
    plans: list[Plan], room: SpoolRoom, pool: Pool, observer: Observer, *, on_error: OnError = "stop"
) -> list[Plan]:
    """First pass: copy all planned payloads into a spool, in shard order; return the plans with offsets into it.

    No sample is in two plans. The caller removes the spool, whatever becomes of this.

    Args:
        plans: Plans of the same samples.
        room: What it may take.
        pool: The workers.
        observer: Gets the progress.
        on_error: Whether a payload that is not what its index says ends the run; otherwise its sample stays where it
            is, so that packing finds that again, and leaves it out. A damaged compressed shard always ends the run.

    Raises:
        CorruptShard: A payload is not what its index says, or a compressed shard is damaged.
        SampleFailed: A source file cannot be read, or is not the one that was listed.
        OutputFailed: There is no space for the spool, or it cannot be written.
    """
    first_pass = _Pass(plans, room, observer, stop=on_error == "stop")
    spans, regions = first_pass.run(pool), first_pass.regions if len(first_pass.regions) else None
    return [replace(plan, entries=replace(plan.entries, spans=spans), regions=regions) for plan in plans]


def _which(plan: Plan) -> NDArray[np.int64]:
    """Return the samples of a plan, in its order."""
    return np.arange(len(plan)) if plan.order is None else plan.order


class _SpanPlaces:
    """The places of each sample's SPAN rows.

    Attributes:
        file: Which of the files.
        start: int64[samples]: where the first of them starts; `NOWHERE` for samples that have none.
        sizes: int64[samples]: what they hold together.
    """

    NOWHERE = 2**62

    def __init__(self, entries: Entries) -> None:
        rows, spans = entries.rows, entries.known_spans
        some = np.flatnonzero(entries.counts())  # a sample may have no field
        self.file = spans.file
        self.start = np.full(len(entries), self.NOWHERE)
        self.sizes = np.zeros(len(entries), np.int64)
        if len(some):
            first, spanned = entries.first[some], rows.kind == SPAN
            self.start[some] = np.minimum.reduceat(np.where(spanned, spans.offset, self.NOWHERE), first)
            self.sizes[some] = np.add.reduceat(np.where(spanned, rows.size, 0), first)


def _in_order(plan: Plan, lie: _SpanPlaces) -> bool:
    """Tell whether samples lie in the order of a plan, file by file, in whatever order the files are."""
    which = _which(plan)
    which = which[lie.start[which] < lie.NOWHERE]
    file, start = lie.file[which], lie.start[which]
    breaks = (file[1:] != file[:-1]) | (start[1:] < start[:-1])
    return int(np.count_nonzero(breaks)) < max(1, int(np.count_nonzero(np.bincount(file))))


def _cheaper(plans: list[Plan], files: Sequence[SpanFile], lie: _SpanPlaces, size: int, workers: int) -> ReadStrategy:
    """Return the method that will cost less, by what reading costs here."""
    samples = sum(map(len, plans))
    if samples <= PROBES or not size:
        return ReadStrategy("gather")
    read = min(size + samples * GAP, sum(file.size for file in files))  # through what is not wanted
    if is_place(files[0].path):
        figure = f"{samples:,} requests, one a sample, are weighed as {show_time(REQUEST_S)} each"
        cost = Cost(REQUEST_S + size / samples * REMOTE_BYTE_S, REMOTE_BYTE_S)
        workers = 1  # both ways run in all of them
    else:
        chance = random.Random(0)  # noqa: S311 - seeded: the same places each time
        orders = [order[lie.sizes[order] > 0] for order in map(_which, plans)]
        chosen = [int(order[chance.randrange(len(order))]) for order in orders for _ in range(PROBES) if len(order)]
        chance.shuffle(chosen)
        places = [(files[int(lie.file[at])], int(lie.start[at])) for at in chosen]
        try:
            cost = probe(places, size // samples, opening=len(files) > OPEN_FILES)
        except (OSError, SourceFailed):
            return ReadStrategy("gather")  # packing will meet that too, and say so
        figure = f"a sample costs {show_time(cost.sample_s)} to read at random here"
    if gathering_pays(samples, size, read, workers, cost):
        return ReadStrategy("gather", f"shuffled by gathering: {figure}")
    return ReadStrategy("scatter", f"shuffled in two passes over {show_size(size)}: {figure}")


def gathering_pays(samples: int, size: int, read: int, workers: int, cost: Cost) -> bool:
    """Tell whether it takes no longer to read each sample at its place than to read and write all bytes twice.

    Args:
        samples: How many.
        size: Their bytes.
        read: Bytes that a scatter reads of the source, with what lies between samples.
        workers: How many read at the same time, where each waits for its samples.
        cost: What reading costs.
    """
    return samples * cost.sample_s / workers + size * cost.byte_s <= (read + 3 * size) * cost.byte_s


def _buckets(plans: list[Plan], held: NDArray[np.int64], room: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return int32[samples], the bucket of each (-1: it is in no plan), and int64[buckets], their bytes.

    Args:
        plans: Who wants samples.
        held: int64[samples]: bytes that go into the spool.
        room: What a bucket may hold, if it is not a single sample.
    """
    bucket, sizes, count = np.full(len(held), -1, np.int32), [], 0
    for plan in plans:
        total = running(held[_which(plan)])
        ends = _cut(total, plan.ends, room)
        numbers = np.arange(count, count + len(ends), dtype=np.int32)
        bucket[_which(plan)] = np.repeat(numbers, np.diff(ends, prepend=0))
        sizes.append(np.diff(total[ends], prepend=0))
        count += len(ends)
    return bucket, np.concatenate(sizes)


def _put(entries: Entries, placed: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[all rows]: where they start if `placed` lie end to end, in this order."""
    offset: NDArray[np.int64] = entries.known_spans.offset.copy()
    size, at = entries.rows.size, 0
    for first in range(0, len(placed), _CHUNK):
        some = placed[first : first + _CHUNK]
        ends = np.cumsum(size[some]) + at
        offset[some] = ends - size[some]
        at = int(ends[-1])
    return offset


def _room(size: int, share: int) -> int:
    """Return how many bytes of payloads a worker holds at a time: all that it may, or enough for writes of a megabyte.

    The first pass writes a run to every region each time that its memory is full: so with M bytes of memory, regions
    of M bytes and D bytes of data, a run has M * M / D.
    """
    enough = max(_LEAST_REGION, min(isqrt(size * _RUN), _MOST_REGION))
    return min(enough, max(share - _BUFFERS, share // 2) * (ROW_SHARE - 1) // ROW_SHARE)


def _cut(total: NDArray[np.int64], shard_ends: NDArray[np.int64], room: int) -> NDArray[np.int64]:
    """Return the places after each bucket: as much of a shard as `room` holds, or one sample."""
    ends, at = [np.zeros(0, np.int64)], 0
    for end in shard_ends.tolist():
        ends.append(at + Runs(total[at : end + 1], Limits(planned=room)).fill())
        at = end
    return np.concatenate(ends)


def _in_file_order(entries: Entries, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[tuple[int, int]]]:
    """Return rows in the order in which they lie in their files, and of each file, where its rows end."""
    if not len(rows):
        return rows, []
    spans = entries.known_spans
    file, offset = np.repeat(spans.file, entries.counts())[rows], spans.offset[rows]
    later = (file[1:] > file[:-1]) | ((file[1:] == file[:-1]) & (offset[1:] >= offset[:-1]))
    if not later.all():
        order = np.lexsort((offset, file))
        rows, file = rows[order], file[order]
    starts = [0, *(np.flatnonzero(np.diff(file)) + 1).tolist()]
    return rows, [*zip(file[starts].tolist(), [*starts[1:], len(rows)], strict=True)]


class _Pass:
    """The first pass: where each payload goes in the spool, and how it gets there.

    Args:
        plans: Who wants them.
        room: What it may take.
        observer: Gets the progress.
        stop: Whether a payload that is not what its index says ends the run.

    Attributes:
        regions: int64[regions, 2]: where parts of the spool that are read whole start and end.
    """

    def __init__(self, plans: list[Plan], room: SpoolRoom, observer: Observer, *, stop: bool) -> None:
        self._entries = entries = plans[0].entries
        self._spans, self._place, self._observer, self._stop = entries.known_spans, room, observer, stop
        held = _SpanPlaces(entries).sizes
        self._room = _room(sum(int(held[_which(plan)].sum()) for plan in plans), room.memory // room.workers)
        bucket, sizes = _buckets(plans, held, self._room)
        of_row = np.repeat(bucket, entries.counts())
        # Those that go into the spool, in the order in which they lie in their files; and where those of each file end.
        self._rows, self._files = _in_file_order(entries, np.flatnonzero((of_row >= 0) & (entries.rows.kind == SPAN)))
        of_row = of_row[self._rows]
        if len(sizes) < 2**16:
            of_row = of_row.astype(np.uint16)  # is sorted several times faster
        self._offset = _put(entries, self._rows[np.argsort(of_row, kind="stable")])  # of all rows
        ends = np.cumsum(sizes)
        self.regions = np.column_stack((ends - sizes, ends))[(sizes > 0) & (sizes <= self._room)]
        self._buckets, self._size = len(sizes), int(sizes.sum())
        self._tasks: list[tuple[int, int]] = []  # of each, its first of `_rows`, and the one after its last
        self._told: defaultdict[int, int] = defaultdict(int)

    def run(self, pool: Pool) -> FieldSpans:
        """Have workers copy all payloads; return where they lie then: in the spool, but for those that could not be."""
        spool, bad = self._open_spool(), [np.zeros(0, np.int64)]
        for number, result in pool.map(scatter_rows, self._make_tasks(spool), self._progress):
            first, last = self._tasks[number]
            rows = self._rows[first:last]
            self._progress(number, 0, int(self._entries.rows.size[rows].sum()) - self._told[number])
            bad.append(self._bad(rows, result))
        file = SpanFile(os.fsencode(spool), self._size, -1)
        return _spooled(self._entries, file, np.concatenate(bad), self._offset)

    def _open_spool(self) -> str:
        """Return the spool, if there is space for it and for what is written later."""
        temp, need = self._place.folder, self._size + self._place.besides
        try:
            free = temp.free_bytes()
        except OutputFailed as error:
            raise OutputFailed(error.where, error.found, remedy=spool_remedy()) from None
        if free < need:
            found = f"{show_size(free)} free, {show_size(need)} needed for the two passes of a shuffle"
            raise OutputFailed(temp.path or ".", found, remedy=spool_remedy())
        spool = temp.spool(self._place.name, self._size)
        where = f"{show_size(self._size)} to {counted(self._buckets, 'bucket')} in {temp.path or '.'}"
        self._observer.log(f"first pass of two: {where}")
        self._observer.phase("first pass", self._size)
        return spool

    def _progress(self, number: int, _samples: int, size: int) -> None:
        self._told[number] += size
        self._observer.advance(0, size, 0)

    def _make_tasks(self, spool: str) -> Iterator[ScatterTask]:
        spans, size, first = self._spans, self._entries.rows.size, 0
        for at, end in self._files:
            source = spans.files[at]
            packed = is_packed(os.fsdecode(source.path))
            for last in [end] if packed else self._parts(first, end):
                rows = self._rows[first:last]
                self._tasks.append((first, last))
                offsets, targets = spans.offset[rows].tobytes(), self._offset[rows].tobytes()
                sizes, expected = size[rows].tobytes(), spans.expected[rows].tobytes()
                yield ScatterTask(source, packed, spool, offsets, sizes, targets, expected, self._room, self._stop)
                first = last

    def _parts(self, first: int, end: int) -> list[int]:
        """Return where to cut what is wanted of one file, so that memory holds each part, or it is one payload."""
        total = running(np.maximum(self._entries.rows.size[self._rows[first:end]], LEAST))
        return [first + int(cut) for cut in _cut(total, np.array([end - first]), self._room)]

    def _bad(self, rows: NDArray[np.int64], result: ScatterResult) -> NDArray[np.int64]:
        """Return those of a task's rows that were not copied.

        Raises:
            CorruptShard: There are such, and they end the run.
            SampleFailed: The file cannot be read, and that ends the run.
        """
        entries, spans = self._entries, self._spans
        at = rows[result.wrong[0][0] if result.wrong else 0]
        sample = int(entries.owners(at))
        source = spans.files[int(spans.file[sample])]
        ends_run = self._stop or is_packed(os.fsdecode(source.path))
        if result.wrong and ends_run:
            crc, name = result.wrong[0][1], entries.fields[int(entries.rows.code[at])]
            place = f"{entries.key(sample)}: at {int(spans.offset[at]):,}"
            found = f"{place}: field {name!r} has the CRC-32C {crc:08x}, not {int(spans.expected[at]):08x}"
            remedy = "Nothing of it was copied. `shardtool verify` shows what else is wrong with that dataset."
            raise CorruptShard(to_text(source.path), found, remedy=remedy)
        if result.failed is not None:
            if not ends_run:
                return rows
            code, message = result.failed
            expected = "a file that stays as it was when the run began" if code == "changed" else ""
            again, skips = option("if_exists", "resume"), option("on_error", "skip")
            remedy = f"Mend it and run again with {again}, or leave such samples out with {skips}."
            raise SampleFailed(to_text(source.path), message, expected=expected, remedy=remedy)
        return rows[[row for row, _ in result.wrong]]


def _spooled(entries: Entries, spool: SpanFile, bad: NDArray[np.int64], offset: NDArray[np.int64]) -> FieldSpans:
    """Return where payloads lie after the first pass: in the spool, but for samples that stay in their shards.

    Args:
        entries: The samples.
        spool: The spool, which becomes file 0.
        bad: Rows that were not copied: their samples stay.
        offset: int64[all rows]: where they start in the spool.
    """
    spans, samples = entries.known_spans, np.unique(entries.owners(bad))
    file = np.zeros(len(entries), np.uint32)
    used, place = np.unique(spans.file[samples], return_inverse=True)
    file[samples] = place + 1
    rows = entries.rows_of(samples)
    offset[rows] = spans.offset[rows]
    return replace(spans, files=(spool, *(spans.files[at] for at in used.tolist())), file=file, offset=offset)


# What reading costs here: a sample at its place, and a byte in sequence. Measured, for no two disks are alike.


PROBES = 64  # places read at
_LEAST_PROBES = 12
_MOST_S = 1.0  # at most, but for the first few
_OUTLIERS = 8  # the slowest are left out: a pause of the machine is none of the disk's
_MOST_READ = 2**20  # bytes at each place: from there on, there is little between them and a sequence
_SEQUENCE = 4 * 2**20
_STEP = 2**18
REQUEST_S, REMOTE_BYTE_S = 30e-3, 1 / 100e6  # of a store, as a rule: until an answer begins; and a byte of it


class Cost(NamedTuple):
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
        SourceFailed: It is not the one that the plan saw.
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
