"""A stream: one epoch, or one reader's share of it, in an exact order, read ahead in rounds."""

from __future__ import annotations

import logging
import sys
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from shardtool.errors import InvalidRequest, SampleFailed, ShardError
from shardtool.read import bundles, share
from shardtool.read import order as orders
from shardtool.read.pipeline_methods import PipelineMethods
from shardtool.read.readable_shard import LATE_SAMPLE_BYTES
from shardtool.read.sample_reader import SkippedSamples
from shardtool.read.stream_state import StreamState
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from numpy.typing import NDArray
    from typing_extensions import Self

    from shardtool.read.bundles import StreamOrder, StreamReader, StreamSamples
    from shardtool.read.catalog import Numbers
    from shardtool.read.options import Sample, Samples
    from shardtool.read.order import OrderOptions
    from shardtool.read.pipeline import Pipeline
    from shardtool.read.share import Share

    Several = Sequence[int] | list[str] | tuple[str, ...] | NDArray[np.generic]


_log = logging.getLogger("shardtool")


Job = TypeVar("Job")


Result = TypeVar("Result")


def read_ahead(
    jobs: Iterable[Job], function: Callable[[Job], Result], ahead: int = 1, *, threads: int = 1, name: str = "read"
) -> Generator[tuple[Job, Future[Result]]]:
    """Yield each job, in order, and what `function` makes of it in a thread; close it, and the threads have ended.

    Args:
        jobs: What to read; asked for in the caller's thread, and not further ahead than is read.
        function: Reads a job.
        ahead: How many results are made, or on their way, before they are wanted.
        threads: How many call `function`.
        name: Of the threads.
    """
    thread = ThreadPoolExecutor(threads, f"shardtool-{name}")
    ending = sys.is_finalizing  # the end of the program has waited for the thread, and taken modules away
    waiting: deque[tuple[Job, Future[Result]]] = deque()
    try:
        for job in jobs:
            waiting.append((job, thread.submit(function, job)))
            if len(waiting) > ahead:
                yield waiting.popleft()
        while waiting:
            yield waiting.popleft()
    finally:
        if not ending():
            thread.shutdown(wait=True, cancel_futures=True)


_READ_BYTES = 2**23  # bytes that are read at once where nothing asks for more: they stay in a processor's cache


_LATE_READ_BYTES = 2**25  # bytes of large samples, of which only the places are looked up at once


_MAX_SAMPLES_PER_READ = 2**12  # samples


_STEPS_AHEAD = 2


_CONCURRENT_ROUNDS = (
    2  # reads of shuffled samples where shards lie elsewhere: none waits for the last requests of another
)


_ROUNDS_PER_READ = 2  # that such a read takes, of each rank: less would be many small requests


_MAX_ROUND_GROWTH = 4  # times what a rank holds in its own order, it holds in that of a state of more ranks


_PREFETCH_BYTES = 2**30  # bytes before they are read, their shards are copied into a cache: while a large one is copied


_MAX_PREFETCH_JOBS = 2**8  # jobs


class ReadsSamples(PipelineMethods):
    """What reads samples, and does something to them."""

    fetcher: StreamReader

    def with_stages(self, stages: Pipeline) -> Self:
        """Return a copy with other stages, which reads no more fields than these look at."""
        found = super().with_stages(stages)
        found.fetcher = self.fetcher.reader_of_fields(stages.wanted)
        return found


class Stream(ReadsSamples):
    """Samples in an exact order: iterate over it for one epoch, for what its stages make of them.

    An iteration begins at the start of the current epoch: of the next one when the last iteration gave all, of the same
    one after a `break`. Where a state was loaded, one iteration goes on from there. Of two iterators at once, the state
    is that of the one started last.

    Samples that stages drop shorten the epoch of a single rank: `len` is then an upper bound. Several ranks perform as
    many steps as `len` reports: up to 1 % of the samples of a rank are replaced by others, which the order chooses; if
    stages drop more, that is an error. With `ends="pad"` any number is replaced, and each replacement has
    `__padding__`. With `ends="uneven"` nothing is replaced. Damaged samples are replaced by `drop` and `pad`.

    Attributes:
        share: What its rank takes of an epoch.
        skipped: Samples that were left out: damaged ones, with `on_error="skip"`, and those that a stage leaves out.
    """

    def __init__(self, fetcher: StreamReader, source: StreamSamples, options: OrderOptions, share: Share) -> None:
        self.fetcher, self._source, self._options, self.share = fetcher, source, options, share
        self.skipped = SkippedSamples()
        self._pass, self._begun = EpochPass(0, options, share), False
        self._most = options.round * _MAX_ROUND_GROWTH  # positions read together, whatever states are loaded

    def __getitem__(self, _: object) -> NoReturn:
        """Refuse a number, which PyTorch's DataLoader asks for where it is given a stream."""
        raise no_random_access_error("a stream")

    def __len__(self) -> int:
        """Return how many samples, or batches, this reader's rank takes of an epoch.

        Skipped samples that are not replaced (a single rank, or `uneven` shares) make this an upper bound.
        """
        return self.stages.count(self._samples_of_rank)

    def __iter__(self) -> Iterator[Any]:
        self.rewind()
        current = self._pass = EpochPass(self._pass.start, self._options, self.share)
        self._begun = True
        samples = self._samples(current)
        return self.stages.run(samples, lambda error: self._place(current).left_out(error), current.rng)

    def rewind(self) -> None:
        """Go to where the next iteration begins: to the start of an epoch, but for a state that was loaded."""
        if self._begun:
            self._go_to(replace(self._options, epoch=self.next_epoch(self.stages)), 0)

    def next_epoch(self, stages: Pipeline) -> int:
        """Return the epoch of the next iteration: this one, while enough is left that stages make something of it."""
        left = -(-(self.end - self._position - self.share.rank) // self.world_size)
        return self._options.epoch + (self._begun and stages.count(max(0, left)) == 0)

    def __repr__(self) -> str:
        options, share = self._options, self.share
        order = f"shuffle={options.shuffle!r}, seed={options.seed}, epoch={options.epoch}"
        name = "rank" if share.alike == 1 else "group"
        rank = f", {name} {share.rank} of {share.world_size}" if share.world_size > 1 else ""
        return f"<Stream: {pluralize(self._samples_of_rank, 'sample')}, {order}{rank}{self.stages}>"

    def place(self) -> StreamPosition:
        """Return the place of the sample that was given out last."""
        return self._place(self._pass)

    def _place(self, current: EpochPass) -> StreamPosition:
        """Return the place of the sample that an iterator gave out last: the same for those that took it."""
        if current.place is None or current.place.position != current.positions[current.taken - 1]:
            current.place = StreamPosition(self, current)
        return current.place

    def _samples(self, current: EpochPass) -> Iterator[Sample]:
        share, options = current.share, current.options
        current.order = order = self._source.order(options)
        at_once = (
            self.fetcher.concurrent_reads if self._step else min(_CONCURRENT_ROUNDS, self.fetcher.concurrent_reads)
        )
        together = share.world_size * max(_ROUNDS_PER_READ, share.workers) if at_once > 1 else 1
        if options.ranks:  # of whose rounds each holds more than one of all parts
            together = max(1, together // (_ROUNDS_PER_READ * options.ranks))
        step = self._step or min(options.round, self._most) * together
        jobs = self._expected(order, _position_blocks(share, current.start, order.length, step))
        ahead = max(at_once, _STEPS_AHEAD) if self._step else 1
        coming = read_ahead(jobs, partial(self._read, order), ahead, threads=at_once)
        with closing(jobs), closing(coming) as rounds:
            for positions, read in rounds:
                numbers, batch = read.result()
                current.positions, current.numbers, current.taken = positions, numbers, 0
                for current.taken, sample in enumerate(batch, 1):
                    if isinstance(sample, dict):
                        yield sample
                    else:
                        self._refuse(sample, int(numbers[current.taken - 1]), current)
                        if (other := self._place(current).other(sample)) is not None:
                            yield other
                del batch, read  # not to hold it while the next one is waited for
                if len(positions):
                    current.start, current.positions = share.after(int(positions[-1])), positions[:0]
        current.start = share.end(order.length)

    @property
    def world_size(self) -> int:
        """How many ranks, or groups of them, divide the stream."""
        return self.share.world_size

    @property
    def end(self) -> int:
        """How many samples of the epoch all ranks together have taken when they are through it."""
        return self.share.end(self._source.length_in(self._options))

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; in that of a state that was loaded, or of the next iteration, it stays."""
        if epoch != self.next_epoch(self.stages):
            self._go_to(replace(self._options, epoch=epoch), 0)

    def state_dict(self) -> dict[str, object]:
        """Return where the stream is: the same for all ranks at the same step; JSON."""
        return self.state_after(0)

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Go on where a stream of the same samples was, in its order, with any number of ranks and workers.

        Raises:
            InvalidRequest: It is no state of a stream, or one of other samples.
        """
        found = StreamState.of(state, self._source)
        self._go_to(found.options, found.position)

    def state_after(self, samples: int) -> dict[str, object]:
        """Return where the stream will be when each rank has taken so many more samples, at most to the epoch's end."""
        position = min(self.end, self._position + samples * self.world_size)
        return StreamState.at(self._source, self._options, position, self.end).to_json()

    def divided(self, worker: int, workers: int, batch_size: int, position: int) -> Stream:
        """Return the stream of one loader worker, which takes each `workers`-th batch of this rank from here on.

        Args:
            worker: Its number.
            workers: How many there are.
            batch_size: Samples of a batch.
            position: The position of the epoch that this worker goes on from: this one, or a later one.
        """
        share = replace(self.share, worker=worker, workers=workers, batch_size=batch_size, origin=self._position)
        divided = Stream(self.fetcher, self._source, self._options, share)
        divided._pass, divided._most = EpochPass(position, self._options, share), self._most
        return divided.with_stages(self.stages)

    def _go_to(self, options: OrderOptions, position: int) -> None:
        self._options, self.share = options, replace(self.share, origin=position)
        self._pass, self._begun = EpochPass(position, options, self.share), False

    @property
    def _samples_of_rank(self) -> int:
        return replace(self.share, origin=0).count(self._source.length_in(self._options))

    @property
    def _position(self) -> int:
        """How many positions of the epoch all ranks are past."""
        current = self._pass
        taken = current.positions[: current.taken]
        return self.share.after(int(taken[-1])) if len(taken) else current.start

    @property
    def _step(self) -> int | None:
        """Positions that are read together where samples are not shuffled among themselves; None: a round."""
        if self._options.shuffle and self._options.window > 1:
            return None
        share, mean = self.share, self.fetcher.mean_size
        most = min(_MAX_SAMPLES_PER_READ, (_LATE_READ_BYTES if mean >= LATE_SAMPLE_BYTES else _READ_BYTES) // mean)
        return max(1, most) * share.world_size * share.workers

    def _read(self, order: StreamOrder, positions: Numbers) -> tuple[Numbers, Samples]:
        numbers = order.numbers(positions % max(1, order.length))
        batch = self.fetcher.read_late(numbers)
        if isinstance(self.fetcher, bundles.BundleReader):
            batch = self.fetcher.with_skip_callback(batch, lambda: self.skipped)
        if self.share.ends == "pad":
            return numbers, _mark_padding(batch, (positions >= order.length).tolist())
        return numbers, batch

    def _expected(self, order: StreamOrder, jobs: Iterator[Numbers]) -> Generator[Numbers]:
        """Yield jobs, whose shards are copied into a cache meanwhile, where there is one."""
        if not self.fetcher.copies or self._options.shuffle == "full":  # which wants all shards at once
            yield from jobs
            return
        seen, share = set[str](), self.share
        size = self.fetcher.mean_size * (self._step or self._options.round) // (share.world_size * share.workers)
        most = min(_MAX_PREFETCH_JOBS, 1 + _PREFETCH_BYTES // max(1, size))

        def expect(positions: Numbers) -> None:
            self.fetcher.expect(order.numbers(positions % max(1, order.length)), seen)

        with closing(read_ahead(jobs, expect, most, name="copy")) as coming:
            for positions, _ in coming:  # nothing waits for the copies; what is wrong, reading says
                yield positions

    def _refuse(self, error: ShardError, number: int, current: EpochPass) -> None:
        """Count a damaged sample, or raise its error, and stay in front of it."""
        try:
            self.fetcher.skip_or_raise(error, number, self.skipped)
        except ShardError:
            current.taken -= 1
            raise


def no_random_access_error(what: str) -> InvalidRequest:
    """Return the error of what has an order, and was asked for a sample by number."""
    remedy = "Give a DataLoader StreamDataset(dataset, batch_size), or MapDataset(dataset) for samples by number."
    return InvalidRequest(what, "asked for a sample by its number", expected="a loop over it", remedy=remedy)


def _position_blocks(share: Share, start: int, length: int, step: int) -> Iterator[Numbers]:
    """Yield the positions of a share that are read together."""
    end = share.end(length)
    while start < end:
        stop = min(end, (start // step + 1) * step)
        yield share.positions(start, stop, length)
        start = stop


def _mark_padding(batch: Samples, padding: list[bool]) -> Iterator[Sample | ShardError]:
    """Yield samples that say whether they were read for others' sake."""
    for sample, padded in zip(batch, padding, strict=True):
        if isinstance(sample, dict):
            sample["__padding__"] = padded
        yield sample


class StreamPosition:
    """A position of an epoch, which another sample may take where its own, and those that took it, are left out.

    Attributes:
        position: Which one; which samples take it in turn, `order.others` says.
    """

    def __init__(self, stream: Stream, current: EpochPass) -> None:
        self.position, self._number = int(current.positions[current.taken - 1]), int(current.numbers[current.taken - 1])
        self._stream, self._current = stream, current
        self._others: Iterator[Sample] | None = None

    def rng(self, stage: int) -> np.random.Generator:
        """Return the generator that a stage draws from, whichever sample takes the place."""
        return orders.rng_at(self._current.options, self.position, stage)

    def left_out(self, error: ShardError) -> Sample | None:
        """Return the sample that comes instead of the last one, as `other` does; count the place's own."""
        if self._others is None:
            self._stream.fetcher.skip_or_raise(error, self._number, self._stream.skipped, damaged=False)
        return self.other(error, damaged=False)

    def other(self, error: ShardError, *, damaged: bool = True) -> Sample | None:
        """Return the sample that comes instead of the last one of this place; None: nothing.

        Raises:
            InvalidRequest: Stages drop too many samples to replace them.
        """
        if self._others is None:
            self._current.count_empty(error, self._stream.skipped, damaged=damaged)
            is_filled = self._current.share.fills(damaged=damaged)
            self._others = self._each_other(error) if is_filled else iter(())
        return next(self._others, None)

    def _each_other(self, error: ShardError) -> Iterator[Sample]:
        """Yield the samples that take the place, in turn.

        Raises:
            SampleFailed: All of them were left out, too.
        """
        order, ends = self._current.order, self._current.share.ends
        for at in share.replacement_positions(order.length, self._current.options, self.position):
            found = order.numbers(np.array([at]))
            (sample,) = self._stream.fetcher.read(found) if found[0] != self._number else (None,)
            if isinstance(sample, dict):
                if ends == "pad":
                    sample["__padding__"] = True
                yield sample
        tried = pluralize(min(share.MAX_REPLACEMENTS, order.length), "sample")
        why = f"{tried} in a row are left out, first {error.where}: {error.found}"
        raise SampleFailed("the stream", why, remedy="Choose other samples with where(...).") from error


class EpochPass:
    """How far an iterator has got.

    Attributes:
        start: Where all ranks were before what is read now.
        positions: int64 [n]: what is read now.
        numbers: int64 [n]: their samples.
        taken: How many of these were given out.
        order: In which the epoch takes its samples.
        options: What the order depends on.
        share: What it takes of them.
        empty: How many positions gave no sample of their own.
        dropped: How many of these samples a stage dropped; the others are damaged.
    """

    order: StreamOrder
    empty = dropped = 0

    def __init__(self, start: int, options: OrderOptions, share: Share) -> None:
        self.start, self.taken, self.options, self.share = start, 0, options, share
        self.positions = self.numbers = np.zeros(0, np.int64)
        self.place: StreamPosition | None = None  # of the sample that was given out last, where it was asked for

    def rng(self, stage: int) -> np.random.Generator:
        """Return the generator that a stage draws from for the sample, or batch, that was given out last."""
        last = self.positions[self.taken - 1] if len(self.positions) else self.start - 1
        return orders.rng_at(self.options, int(last), stage)

    def count_empty(self, error: ShardError, skipped: SkippedSamples, *, damaged: bool) -> None:
        """Count a position that gave no sample of its own, and warn once if these are more than 1 %.

        Args:
            error: Why it gave none.
            skipped: Counts of the stream.
            damaged: Whether its sample cannot be read; otherwise a stage dropped it.

        Raises:
            InvalidRequest: Stages dropped more than 1 % of the samples of one of several ranks, and `ends` is `drop`.
        """
        self.empty += 1
        self.dropped += not damaged
        share, positions = self.share, -(-self.share.count(self.order.length) // self.share.workers)
        example = f"such as {error.where}: {error.found}"
        if share.ends == "drop" and share.world_size > 1 and self.dropped * _MIN_POSITIONS_PER_EMPTY > positions:
            found = f"more than 1 % of the samples of rank {share.rank} of {share.world_size} are dropped, {example}"
            expected = "as many steps on every rank as `len` reports, without repeated samples"
            raise InvalidRequest("the stream", found, expected=expected, remedy=f"{_WHERE_FIX}; {_PAD_FIX}.")
        if self.empty * _MIN_POSITIONS_PER_EMPTY > positions and not skipped.has_warned:
            skipped.has_warned = True
            advice = _VERIFY_FIX if damaged else f"len() counts them too. {_WHERE_FIX}"
            _log.warning("More than 1 %% of the samples of this epoch were skipped, %s. %s.", example, advice)


_MIN_POSITIONS_PER_EMPTY = 100  # positions of which one may give nothing


_WHERE_FIX = (
    "Choose samples before you stream them: dataset.where(QUERY) by columns, or run the filter once and use its keys, "
    "dataset.take([sample['__key__'] for sample in dataset.filter(FUNCTION)])"
)


_PAD_FIX = "or give ends='pad', which repeats samples and marks them with `__padding__`, or ends='uneven'"


_VERIFY_FIX = "Run `shardtool verify` to list what is damaged"
