"""A stream yields the samples of one rank or worker in a reproducible order, and reads ahead."""

from __future__ import annotations

import logging
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar, cast

import numpy as np

from shardtool.errors import InvalidRequest, SampleFailed, ShardError
from shardtool.read import bundles
from shardtool.read import order as orders
from shardtool.read.order import MAX_REPLACEMENTS, OrderOptions, replacement_positions
from shardtool.read.pipeline import PipelineMethods, SampleT
from shardtool.read.sample_reader import SkippedSamples
from shardtool.read.shard_read import LARGE_SAMPLE_BYTES
from shardtool.request.option_checks import check_choice
from shardtool.threads import stop_threads
from shardtool.units import pluralize
from shardtool.values import OnError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from typing_extensions import Self, Unpack

    from shardtool.read.bundles import StreamOrder, StreamReader, StreamSamples
    from shardtool.read.catalog import Numbers
    from shardtool.read.collate import ListFields
    from shardtool.read.decode import Decoder
    from shardtool.read.options import Sample, Samples
    from shardtool.read.order import Share
    from shardtool.read.pipeline import AnyTuple, DecodeOptions, NewT, OnMissing, Pipeline

    _NumberedSamples = tuple[Numbers, Samples]


_NUMBER_KEYS = ("seed", "epoch", "parts", "window", "position")
_KEYS_BY_VERSION = {1: _NUMBER_KEYS, 2: (*_NUMBER_KEYS, "ranks")}
_OTHER_KEYS = ("version", "fingerprint", "shuffle")
_STATE_FIX = "Pass the unchanged result of `state_dict`."


class StreamState(NamedTuple):
    """The options that determine a stream's order, and how many samples all ranks together have read in the epoch."""

    fingerprint: str
    options: OrderOptions
    position: int

    def to_json(self) -> dict[str, object]:
        order = {name: value for name, value in vars(self.options).items() if value or name != "ranks"}
        version = 2 if self.options.ranks else 1
        return {"version": version, "fingerprint": self.fingerprint, **order, "position": self.position}

    @classmethod
    def at_position(cls, source: Any, options: OrderOptions, position: int, end: int) -> StreamState:
        """Return the state at a position. At the end of an epoch, return the start of the next epoch."""
        if position < end:
            return cls(source.fingerprint, options, position)
        return cls(source.fingerprint, replace(options, epoch=options.epoch + 1), 0)

    @classmethod
    def from_json(cls, state: object, source: Any) -> StreamState:
        values = _check_state(state)
        if values["fingerprint"] != source.fingerprint:
            found = f"belongs to other samples, with fingerprint {values['fingerprint']}"
            remedy = "Open the same dataset, and choose the same samples, as when the state was saved."
            raise InvalidRequest("the state", found, expected=source.fingerprint, remedy=remedy)
        numbers = {name: cast("int", values[name]) for name in _KEYS_BY_VERSION[cast("int", values["version"])]}
        position = numbers.pop("position")
        options = OrderOptions(cast("bool", values["shuffle"]), **numbers)
        length = max(1, source.length_in(options))
        if not 0 <= position < length:
            expected = f"0 to {length - 1}"
            raise InvalidRequest("position of the state", str(position), expected=expected, remedy=_STATE_FIX)
        return cls(source.fingerprint, options, position)


def _check_state(state: object) -> Mapping[str, object]:
    if not isinstance(state, dict):
        raise InvalidRequest("the state", f"a {type(state).__name__}", expected="a dictionary", remedy=_STATE_FIX)
    version = state.get("version")
    if type(version) is not int or version not in _KEYS_BY_VERSION:
        found, expected = repr(state.get("version", "none")), " or ".join(map(str, _KEYS_BY_VERSION))
        remedy = "Continue with the version of shardtool that saved the state."
        raise InvalidRequest("version of the state", found, expected=expected, remedy=remedy)
    keys = (*_OTHER_KEYS, *_KEYS_BY_VERSION[version])
    missing = [key for key in keys if key not in state]
    if missing:
        raise InvalidRequest("the state", f"no {', '.join(missing)}", expected=", ".join(keys), remedy=_STATE_FIX)
    for name, kind in (("fingerprint", str), *((name, int) for name in _KEYS_BY_VERSION[version])):
        if type(state[name]) is not kind:
            expected = "text" if kind is str else "a whole number"
            raise InvalidRequest(f"{name} of the state", repr(state[name]), expected=expected, remedy=_STATE_FIX)
    return state


_log = logging.getLogger("shardtool")
Job = TypeVar("Job")
Result = TypeVar("Result")


def read_ahead(
    jobs: Iterable[Job], function: Callable[[Job], Result], ahead: int = 1, *, threads: int = 1, name: str = "read"
) -> Generator[tuple[Job, Future[Result]]]:
    """Yield each job with the future of its result, while threads run the function for up to `ahead` further jobs.

    The caller's thread iterates over `jobs`. Closing the generator stops the threads.
    """
    pool = ThreadPoolExecutor(threads, f"shardtool-{name}")
    stop = stop_threads  # keep a reference, because Python may delete module variables at exit
    waiting: deque[tuple[Job, Future[Result]]] = deque()
    try:
        for job in jobs:
            waiting.append((job, pool.submit(function, job)))
            if len(waiting) > ahead:
                yield waiting.popleft()
        while waiting:
            yield waiting.popleft()
    finally:
        stop(pool, [future for _, future in waiting])


_READ_BYTES = 2**23  # fits into a processor's cache
_LARGE_READ_BYTES = 2**25  # large samples are read on demand, so they need not fit into the cache
_MAX_SAMPLES_PER_READ = 2**12
_STEPS_AHEAD = 2
_CONCURRENT_ROUNDS = 2  # with a shuffle, maximum number of concurrent reads of remote shards
_ROUNDS_PER_READ = 2  # a read of remote shards contains several rounds (`OrderOptions.round_size`), for fewer requests
_MAX_ROUND_GROWTH = 4  # memory limit: a state saved with more ranks has larger rounds
_PREFETCH_BYTES = 2**30  # enough to copy a large shard before it is read
_MAX_PREFETCH_JOBS = 2**8


class SampleSource(PipelineMethods[SampleT]):
    """Base class of datasets and streams."""

    reader: StreamReader

    def with_stages(self, stages: Pipeline) -> Self:
        changed = super().with_stages(stages)
        changed.reader = self.reader.with_fields(stages.required_fields)
        return changed

    def with_on_error(self, on_error: OnError | None) -> Self:
        changed = copy(self)
        if on_error is not None:
            check_choice("on_error", on_error, OnError)
            changed.stages = self.stages.with_on_error(on_error)
            changed.reader = self.reader.with_on_error(on_error)
        return changed


class Stream(SampleSource[SampleT]):
    """Samples of one rank in a reproducible order. Each iteration is one epoch.

    An iteration reads the next epoch if the previous iteration was complete, and otherwise restarts the same epoch.
    After `load_state_dict`, the next iteration continues from the state. `state_dict` returns the state of the newest
    iterator.

    On a single rank, the epoch is shorter if stages drop samples, unless `ends` is `pad`. With several ranks, every
    rank must perform as many steps as `len` reports. `ends` therefore determines which dropped samples are replaced:

    - `drop` replaces up to 1 % of a rank's samples. If more are dropped, the stream raises an error.
    - `pad` replaces any number of samples, and marks replacements with `__padding__`.
    - `uneven` replaces no samples.

    `drop` and `pad` also replace damaged samples.

    Attributes:
        skipped: Counts of damaged samples (with `on_error="skip"`) and of samples dropped by stages.
    """

    if TYPE_CHECKING:  # declare narrower result types

        def decode(
            self, own: Mapping[str, Decoder] | None = None, **options: Unpack[DecodeOptions]
        ) -> Stream[dict[str, Any]]: ...
        def map(self, function: Callable[..., NewT | None]) -> Stream[NewT]: ...
        def tuple(self, *fields: str, missing: OnMissing = "raise") -> Stream[AnyTuple]: ...
        def batch(
            self, size: int | None = None, *, drop_last: bool = False, lists: ListFields = (), **dataset_options: Any
        ) -> Stream[Any]: ...

    def __init__(self, reader: StreamReader, source: StreamSamples, options: OrderOptions, share: Share) -> None:
        self.reader, self._source, self._options, self.share = reader, source, options, share
        self.skipped = SkippedSamples()
        self._pass, self._is_started = EpochPass(0, options, share), False
        self._max_round_size = options.round_size * _MAX_ROUND_GROWTH

    def __getitem__(self, _: object) -> NoReturn:
        raise no_random_access_error("a stream")

    def __len__(self) -> int:
        """Return the number of samples or batches of this rank in an epoch, if all skipped samples are replaced."""
        return self.stages.count(self._samples_of_rank)

    def __iter__(self) -> Iterator[SampleT]:
        self.rewind()
        current = self._pass = EpochPass(self._pass.start, self._options, self.share)
        self._is_started = True

        def replace_skipped(error: ShardError) -> Sample | None:
            return self.last_position(current).replace_skipped(error)

        return cast("Iterator[SampleT]", self.stages.run(self._samples(current), replace_skipped, current.rng))

    def rewind(self) -> None:
        """Move to the start of the epoch that the next iteration reads."""
        if self._is_started:
            self._go_to(replace(self._options, epoch=self.next_epoch(self.stages)), 0)

    def next_epoch(self, stages: Pipeline) -> int:
        """Return the current epoch, or the next epoch if `stages` yield no more samples in the current epoch."""
        remaining = -(-(self.end - self._position - self.share.rank) // self.world_size)
        is_over = self._is_started and stages.count(max(0, remaining)) == 0
        return self._options.epoch + 1 if is_over else self._options.epoch

    def __repr__(self) -> str:
        options, share = self._options, self.share
        order = f"shuffle={options.shuffle!r}, seed={options.seed}, epoch={options.epoch}"
        name = "rank" if share.group_size == 1 else "group"
        rank = f", {name} {share.rank} of {share.world_size}" if share.world_size > 1 else ""
        return f"<Stream: {pluralize(self._samples_of_rank, 'sample')}, {order}{rank}{self.stages}>"

    def last_position(self, current: EpochPass | None = None) -> StreamPosition:
        current = current or self._pass
        if current.last_position is None or current.last_position.position != current.positions[current.yielded - 1]:
            current.last_position = StreamPosition(self, current)
        return current.last_position

    def _samples(self, current: EpochPass) -> Iterator[Sample]:
        share, options = current.share, current.options
        current.order = order = self._source.order(options)
        step, threads = self._step, self.reader.concurrent_reads
        ahead = max(threads, _STEPS_AHEAD)
        if step is None:
            threads, ahead = min(_CONCURRENT_ROUNDS, threads), 1
            rounds_together = share.world_size * max(_ROUNDS_PER_READ, share.workers) if threads > 1 else 1
            if options.ranks:
                rounds_together = max(1, rounds_together // (_ROUNDS_PER_READ * options.ranks))
            step = min(options.round_size, self._max_round_size) * rounds_together
        jobs = self._prefetch_shards(order, _position_blocks(share, current.start, order.length, step))
        reads = read_ahead(jobs, partial(self._read, order), ahead, threads=threads)
        with closing(jobs), closing(reads):
            for positions, future in reads:
                numbers, samples = future.result()
                current.positions, current.numbers, current.yielded = positions, numbers, 0
                for current.yielded, sample in enumerate(samples, 1):
                    if isinstance(sample, dict):
                        yield sample
                    else:
                        self._skip_or_raise(sample, int(numbers[current.yielded - 1]), current)
                        if (replacement := self.last_position(current).next_replacement(sample)) is not None:
                            yield replacement
                del samples, future  # release the samples before waiting for more
                if len(positions):
                    current.start, current.positions = share.next_position(int(positions[-1])), positions[:0]
        current.start = share.end(order.length)

    @property
    def world_size(self) -> int:
        return self.share.world_size

    @property
    def end(self) -> int:
        return self.share.end(self._source.length_in(self._options))

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration read this epoch. If a state of this epoch was loaded, continue from the state."""
        if epoch != self.next_epoch(self.stages):
            self._go_to(replace(self._options, epoch=epoch), 0)

    def state_dict(self) -> dict[str, object]:
        """Return the state as JSON data. At the same step, all ranks return the same state."""
        return self.state_after(0)

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Continue from a state, which may come from a different number of ranks and workers.

        Raises:
            InvalidRequest: The state is invalid, or belongs to other samples.
        """
        loaded = StreamState.from_json(state, self._source)
        self._go_to(loaded.options, loaded.position)

    def state_after(self, samples: int) -> dict[str, object]:
        """Return the state after `samples` more samples per rank."""
        position = min(self.end, self._position + samples * self.world_size)
        return StreamState.at_position(self._source, self._options, position, self.end).to_json()

    def worker_stream(self, worker: int, workers: int, batch_size: int, position: int) -> Stream[SampleT]:
        """Return a stream that starts at `position` and reads every `workers`-th batch."""
        share = replace(self.share, worker=worker, workers=workers, batch_size=batch_size, origin=self._position)
        stream = Stream[SampleT](self.reader, self._source, self._options, share)
        stream._pass, stream._max_round_size = EpochPass(position, self._options, share), self._max_round_size
        return stream.with_stages(self.stages)

    def _go_to(self, options: OrderOptions, position: int) -> None:
        self._options, self.share = options, replace(self.share, origin=position)
        self._pass, self._is_started = EpochPass(position, options, self.share), False

    @property
    def _samples_of_rank(self) -> int:
        return replace(self.share, origin=0).count(self._source.length_in(self._options))

    @property
    def _position(self) -> int:
        current = self._pass
        yielded = current.positions[: current.yielded]
        return self.share.next_position(int(yielded[-1])) if len(yielded) else current.start

    @property
    def _step(self) -> int | None:
        """Number of positions to read together, or None for whole rounds."""
        if self._options.shuffle and self._options.window > 1:
            return None
        share, mean = self.share, self.reader.mean_size
        samples = min(_MAX_SAMPLES_PER_READ, (_LARGE_READ_BYTES if mean >= LARGE_SAMPLE_BYTES else _READ_BYTES) // mean)
        return max(1, samples) * share.world_size * share.workers

    def _read(self, order: StreamOrder, positions: Numbers) -> _NumberedSamples:
        numbers = order.numbers(positions % max(1, order.length))
        samples = self.reader.read(numbers, on_demand=True)
        if isinstance(self.reader, bundles.BundleReader):
            samples = self.reader.with_skip_callback(samples, lambda: self.skipped)
        if self.share.ends == "pad":
            return numbers, _mark_padding(samples, (positions >= order.length).tolist())
        return numbers, samples

    def _prefetch_shards(self, order: StreamOrder, jobs: Iterator[Numbers]) -> Generator[Numbers]:
        # shuffle="full" reads all shards together, so do not copy ahead
        if not self.reader.copies or self._options.shuffle == "full":
            yield from jobs
            return
        seen, share = set[str](), self.share
        size = self.reader.mean_size * (self._step or self._options.round_size) // (share.world_size * share.workers)
        jobs_ahead = min(_MAX_PREFETCH_JOBS, 1 + _PREFETCH_BYTES // max(1, size))

        def copy_shards(positions: Numbers) -> None:
            self.reader.copy_ahead(order.numbers(positions % max(1, order.length)), seen)

        with closing(read_ahead(jobs, copy_shards, jobs_ahead, name="copy")) as copied_jobs:
            for positions, _ in copied_jobs:  # an error of a copy is raised later, when the shard is read
                yield positions

    def _skip_or_raise(self, error: ShardError, number: int, current: EpochPass) -> None:
        try:
            self.reader.skip_or_raise(error, number, self.skipped)
        except ShardError:
            current.yielded -= 1  # a saved state starts with this sample
            raise


def no_random_access_error(name: str) -> InvalidRequest:
    """Return the error for indexing a stream like a list."""
    remedy = "In a DataLoader, use StreamDataset(dataset, batch_size), or MapDataset(dataset) for samples by number."
    return InvalidRequest(name, "indexed by a sample number", expected="iteration", remedy=remedy)


def _position_blocks(share: Share, start: int, length: int, step: int) -> Iterator[Numbers]:
    end = share.end(length)
    while start < end:
        stop = min(end, (start // step + 1) * step)
        yield share.positions(start, stop, length)
        start = stop


def _mark_padding(samples: Samples, is_padding: list[bool]) -> Iterator[Sample | ShardError]:
    for sample, padding in zip(samples, is_padding, strict=True):
        if isinstance(sample, dict):
            sample["__padding__"] = padding
        yield sample


class StreamPosition:
    """A position of a stream. Reads replacements if the sample at this position is skipped."""

    def __init__(self, stream: Stream, current: EpochPass) -> None:
        last = current.yielded - 1
        self.position, self._number = int(current.positions[last]), int(current.numbers[last])
        self._stream, self._current = stream, current
        self._candidates: Iterator[Sample] | None = None

    def rng(self, stage: int) -> np.random.Generator:
        """Return the random generator of a stage. A replacement uses the generator of the replaced sample."""
        return orders.rng_at(self._current.options, self.position, stage)

    def replace_skipped(self, error: ShardError) -> Sample | None:
        """Return the replacement of a sample that a stage skipped, or None if it is not replaced."""
        if self._candidates is None:
            self._stream.reader.skip_or_raise(error, self._number, self._stream.skipped, damaged=False)
        return self.next_replacement(error, damaged=False)

    def next_replacement(self, error: ShardError, *, damaged: bool = True) -> Sample | None:
        if self._candidates is None:
            self._current.count_skipped(error, self._stream.skipped, damaged=damaged)
            is_replaced = self._current.share.replaces_skipped(damaged=damaged)
            self._candidates = self._find_candidates(error) if is_replaced else iter(())
        return next(self._candidates, None)

    def _find_candidates(self, error: ShardError) -> Iterator[Sample]:
        order, ends = self._current.order, self._current.share.ends
        for position in replacement_positions(order.length, self._current.options, self.position):
            numbers = order.numbers(np.array([position]))
            if numbers[0] == self._number:
                continue
            (sample,) = self._stream.reader.read(numbers)
            if isinstance(sample, dict):
                if ends == "pad":
                    sample["__padding__"] = True
                yield sample
        tried = pluralize(min(MAX_REPLACEMENTS, order.length), "sample")
        problem = f"skipped {tried} in a row, first {error.where}: {error.found}"
        raise SampleFailed("the stream", problem, remedy="Choose other samples with where(...).") from error


class EpochPass:
    """The progress of one iteration over a stream.

    Attributes:
        start: First unread position before `positions` were read.
        yielded: How many of the samples at `positions` were yielded.
        positions: Positions of the samples that were read together.
    """

    order: StreamOrder
    skipped_count = dropped_count = 0

    def __init__(self, start: int, options: OrderOptions, share: Share) -> None:
        self.start, self.yielded, self.options, self.share = start, 0, options, share
        self.positions = self.numbers = np.zeros(0, np.int64)
        self.last_position: StreamPosition | None = None

    def rng(self, stage: int) -> np.random.Generator:
        last = self.positions[self.yielded - 1] if len(self.positions) else self.start - 1
        return orders.rng_at(self.options, int(last), stage)

    def count_skipped(self, error: ShardError, skipped: SkippedSamples, *, damaged: bool) -> None:
        """Count a skipped sample. Warn if more than 1 % of the rank's samples were skipped.

        With several ranks and `ends="drop"`, raise InvalidRequest if stages alone dropped more than 1 %.
        """
        self.skipped_count += 1
        self.dropped_count += not damaged
        share = self.share
        sample_count = -(-share.count(self.order.length) // share.workers)
        example = f"such as {error.where}: {error.found}"
        if share.ends == "drop" and share.world_size > 1 and self.dropped_count * _MIN_SAMPLES_PER_SKIP > sample_count:
            found = f"stages drop more than 1 % of the samples of rank {share.rank} of {share.world_size}, {example}"
            expected = "at most 1 %, because every rank must take as many steps as len() reports, without repeats"
            raise InvalidRequest("the stream", found, expected=expected, remedy=f"{_WHERE_FIX}; {_PAD_FIX}.")
        if self.skipped_count * _MIN_SAMPLES_PER_SKIP > sample_count and not skipped.has_warned:
            skipped.has_warned = True
            advice = _VERIFY_FIX if damaged else f"len() counts them too. {_WHERE_FIX}"
            _log.warning("More than 1 %% of the samples of this epoch were skipped, %s. %s.", example, advice)


_MIN_SAMPLES_PER_SKIP = 100
_WHERE_FIX = (
    "Choose samples before you stream them: dataset.where(QUERY) by columns, or run the filter once and keep its keys, "
    "dataset.select([sample['__key__'] for sample in dataset.filter(FUNCTION)])"
)


_PAD_FIX = "or use ends='pad', which repeats samples and marks them with `__padding__`, or ends='uneven'"
_VERIFY_FIX = "Run `shardtool verify` to list the damage"
