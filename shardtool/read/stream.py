"""A stream of samples: an epoch, or one reader's share of it, read ahead in rounds."""

from __future__ import annotations

import sys
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, cast, overload

import numpy as np

from shardtool.errors import InvalidRequest, SampleFailed, ShardError
from shardtool.read import bundles
from shardtool.read.chain import Batch, Chain, Lists, Stages, without_dataloaders
from shardtool.read.fetch import LATE, Reader, Sample, Samples, SkippedSamples
from shardtool.read.order import MOST_OTHERS, OrderOptions, Share, StreamState, cut_for, default_share, others, rng_at
from shardtool.request.settings import check_choice, check_least
from shardtool.values import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from numpy.typing import DTypeLike
    from typing_extensions import Self

    from shardtool.read.bundles import AnyOrder, AnyReader, AnySamples
    from shardtool.read.catalog import Numbers
    from shardtool.read.order import Ends, Shuffle, Views


# Jobs done in a thread before their results are wanted.


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


_TOGETHER = 2**23  # bytes that are read at once where nothing asks for more: they stay in a processor's cache
_LATER = 2**25  # bytes of large samples, of which only the places are looked up at once
_MOST_TOGETHER = 2**12  # samples
_STEPS_AHEAD = 2
_ROUNDS_AT_ONCE = 2  # reads of shuffled samples where shards lie elsewhere: none waits for the last requests of another
_ROUNDS_TOGETHER = 2  # that such a read takes, of each rank: less would be many small requests
_MOST_OF_OWN = 4  # times what a rank holds in its own order, it holds in that of a state of more ranks
_EXPECTED = 2**30  # bytes before they are read, their shards are copied into a cache: while a large one is copied
_MOST_EXPECTED = 2**8  # jobs


class _Reading(Chain):
    """What reads samples, and does something to them."""

    fetcher: AnyReader

    def with_stages(self, stages: Stages) -> Self:
        """Return a copy with other stages, which reads no more fields than these look at."""
        found = super().with_stages(stages)
        found.fetcher = self.fetcher.reading_only(stages.wanted)
        return found


class Streamable(_Reading):
    """Samples that can be read as a stream, with what is done to them."""

    def __init__(self, fetcher: AnyReader, source: AnySamples) -> None:
        self.fetcher, self.source = fetcher, source

    def __len__(self) -> int:
        """Return how many samples, or batches, an epoch has, of all ranks together."""
        return self.stages.count(self.source.length)

    def __iter__(self) -> Iterator[Any]:
        in_order = self.stream(shuffle=False, rank=0, world_size=1, ends="uneven") if self.source.length else ()
        return iter(in_order)

    @property
    def fingerprint(self) -> str:
        """What is equal for equal samples in an equal order, or mix."""
        return self.source.fingerprint

    @without_dataloaders
    def stream(  # noqa: PLR0913 - its public options
        self, *, shuffle: Shuffle = True, seed: int = 0, epoch: int = 0, rank: int | None = None,
        world_size: int | None = None, buffer: int | None = None, parts: int | None = None, ends: Ends | None = None,
        groups: int | None = None,
    ) -> Stream:  # fmt: skip
        """Return a stream of the samples.

        The order depends on the data, `shuffle`, `seed`, `epoch`, `parts` and `buffer` alone: ranks only divide it.
        Where no parts are given, these depend on the number of ranks; a state has them, and goes on with any number.

        Args:
            shuffle: Whether shards and samples are shuffled; `"full"`: one random order of all samples.
            seed: With the epoch, what the shuffle depends on.
            epoch: Counted from 0.
            rank: This reader's place among the ranks; RANK of the environment, or 0, where none is given.
            world_size: How many ranks there are; WORLD_SIZE of the environment, or 1, where none is given.
            buffer: Samples that all ranks hold, and shuffle among themselves; None: about 64 MB of each rank, or 32 MB
                of all where parts are given.
            parts: Into how many parts the samples are cut, which are read side by side; None: 128 for each rank.
            ends: What becomes of the last samples where they are no multiple of the ranks: `drop`, `pad` (each rank
                has as many; `__padding__` says of each sample whether it was read for that), or `uneven`. None: `drop`
                with a shuffle; without one `pad`, or for a single rank `uneven`.
            groups: Into how many groups neighbouring ranks are put, all of one to get the same samples, as tensor and
                sequence parallelism want it; None: each rank gets samples of its own.

        Raises:
            InvalidRequest: There are no samples, or with `drop` fewer than ranks; or an argument is out of its range.
        """
        rank, ranks = default_share(rank, world_size)
        share = Share(rank, ranks, ends or ("drop" if shuffle else "uneven" if ranks == 1 else "pad")).in_groups(groups)
        reader, ranks = self.fetcher, share.world_size
        cut = cut_for(self.source, reader.mean_size, ranks, buffer, parts, copies=reader.copies)
        options = OrderOptions(shuffle, seed, epoch, *cut)
        length = self.source.length_in(options)
        if not length:
            raise InvalidRequest("the dataset", "no samples")
        if not share.end(length):
            found = f"{counted(length, 'sample')} for {share.world_size:,} ranks, and ends='drop'"
            raise InvalidRequest("world_size", found, remedy="Give ends='pad' or ends='uneven'.")
        stream = Stream(self.fetcher, self.source, options, share)
        return stream.with_stages(self.stages)

    def pack(
        self, tokens: int, field: str | None = None, *, by: bundles.By = "first-fit", dtype: DTypeLike | None = None,
        length: str | None = None, pad: int = 0,
    ) -> Bundled:  # fmt: skip
        """Return blocks that documents are packed into: an order of blocks, divided and resumed as one of samples.

        A block is a dict: `tokens` [tokens], `positions` int32 [tokens], which count from 0 in each document,
        `segments` int32 [tokens], which number its documents from 1 on, and are 0 behind the last one, and `__key__`,
        the list of the documents' keys. How long these are, sidecars say: see `docs/training.md`.

        Args:
            tokens: Of a block.
            field: Of the tokens: `.npy` of one dimension, plain bytes, or the list of a TFRecord; None: the only one.
            by: `first-fit`: documents as a whole, the longest of some thousands first, each into the fullest block that
                holds it; those longer than a block are cut. `concat`: one behind the other, cut where a block is full.
            dtype: Of tokens in plain bytes, such as `uint16`.
            length: The column of metadata that says how many tokens a document has; None: the size of its field.
            pad: The token behind the last document.

        Raises:
            InvalidRequest: It is not known how long documents are, or something is done to them before.
        """
        check_least("tokens", tokens)
        check_choice("by", by, bundles.By)
        if self.stages.stages:
            expected = "documents as they are stored: pack first, then map or select blocks"
            raise InvalidRequest("pack", "something is done to samples before", expected=expected)
        reader, views = self._unbundled()
        source, sizes = bundles.lengths_of(field, dtype, length, reader, views)
        if source.form == "bytes" and dtype is None:
            found = f"not given, and field {source.name} holds plain bytes"
            expected = "that of its tokens, such as 'uint16'; 'uint8' for the bytes of a text"
            raise InvalidRequest("dtype", found, expected=expected, remedy="Write lists to a field that ends in npy.")
        if np.array(pad).astype(source.dtype) != pad:
            raise InvalidRequest("pad", repr(pad), expected=f"a token of {source.dtype}")
        rule, make = bundles.fitted if by == "first-fit" else bundles.concatenated, bundles.Block(tokens, source, pad)
        reader = reader.reading_only(frozenset({source.name}))
        return Bundled(bundles.Bundles(reader, views, sizes, rule, tokens, make, source.name, source.dtype.str, pad))

    @overload  # type: ignore[override] # a Dataset takes more than a stream
    def batch(self, size: int, *, drop_last: bool = False, lists: Lists = ()) -> Self: ...
    @overload
    def batch(
        self, size: int | None = None, *, by: Literal["length", "aspect"], tokens: int | None = None,
        field: str | None = None, dtype: DTypeLike | None = None, length: str | None = None,
        aspects: Sequence[float] = bundles.ASPECTS, lists: Lists = (),
    ) -> Bundled: ...  # fmt: skip

    @without_dataloaders
    def batch(  # noqa: PLR0913 - its public options
        self, size: int | None = None, *, drop_last: bool = False, by: Literal["length", "aspect"] | None = None,
        tokens: int | None = None, field: str | None = None, dtype: DTypeLike | None = None,
        length: str | None = None, aspects: Sequence[float] = bundles.ASPECTS, lists: Lists = (),
    ) -> Self | Bundled:  # fmt: skip
        """Make batches: of so many samples in a row; or in an order of batches, of samples of about one size.

        Args:
            size: Samples of a batch.
            drop_last: Leave out a last batch that is smaller; not by size.
            by: `length`: as many samples as take no more than `tokens`, padded to the longest. `aspect`: images of
                about one aspect, by the columns `width` and `height`; each has it as `__aspect__`.
            tokens: Of a batch by length.
            field: What is long: `.npy` of any dimensions, by its first; else bytes, or values of `dtype`.
            dtype: Of values in plain bytes.
            length: The column of metadata that says how long samples are, in place of the field.
            aspects: Widths per height: each image counts as the nearest.
            lists: Fields whose values a batch has as a list, though they may be of one shape.

        Raises:
            InvalidRequest: Sizes are not known, or a sample alone is longer than a batch.
        """
        if by is None:
            others = {"tokens": tokens, "field": field, "dtype": dtype, "length": length}
            given = {name: value for name, value in others.items() if value is not None}
            return super().batch(size, drop_last=drop_last, lists=lists, **given)
        check_choice("by", by, Literal["length", "aspect"])
        of_size = ("size", size, (tokens, field, dtype, length))
        asked, limit, unasked = ("tokens", tokens, (size,)) if by == "length" else of_size
        if drop_last or any(one is not None for one in unasked):
            raise InvalidRequest("batch", f"by {by}", expected=f"{asked} alone, and no drop_last")
        check_least(asked, limit)
        reader, views = self._unbundled()
        if by == "length":
            _, sizes = bundles.lengths_of(field, dtype, length, reader, views)
            if (longest := int(sizes.max())) > cast("int", tokens):
                remedy = f"Give tokens={longest}, or choose shorter samples with where(...) or take(...)."
                raise InvalidRequest("tokens", f"{tokens}, and the longest sample has {longest}", remedy=remedy)
            known = []
        else:
            known = sorted(aspects)
            sizes = bundles.aspects_of(known, reader, views)
        rule, make = bundles.of_one_kind if known else bundles.of_like_length, partial(bundles.together, known)
        found = bundles.Bundles(reader, views, sizes, rule, cast("int", limit), make, *known)
        return Bundled(found).with_stages(Stages((bundles.Batches(self.stages, lists),)))

    def _unbundled(self) -> tuple[Reader, Views]:
        """Return what reads samples, and which.

        Raises:
            InvalidRequest: There are none, or they are bundled.
        """
        batched = any(isinstance(stage, Batch) for stage in self.stages.stages)
        if batched or isinstance(self.fetcher, bundles.Bundles):
            raise InvalidRequest("the dataset", "packed or batched before", expected="samples")
        if not self.source.length:
            raise InvalidRequest("the dataset", "no samples")
        return self.fetcher, cast("Views", self.source)


class Bundled(Streamable):
    """Blocks of tokens, or batches of samples of about one size: what `pack` and `batch(by=...)` return."""

    def __init__(self, made: bundles.Bundles) -> None:
        super().__init__(made, made)

    def __repr__(self) -> str:
        return f"<Bundled: {counted(self.source.length, 'bundle')} an epoch{self.stages}>"


class Stream(_Reading):
    """Samples in an exact order: iterate over it for one epoch, for what its stages make of them.

    An iteration begins at the start of the current epoch: of the next one when the last iteration gave all, of the same
    one after a `break`. Where a state was loaded, one iteration goes on from there. Of two iterators at once, the state
    is that of the one started last.

    A sample that is left out gives its place to another of the epoch, which thus comes twice: every rank gives as many
    as `len` says. With `ends="pad"` that one has `__padding__`; with `"uneven"`, which a single rank has without a
    shuffle, nothing takes the place: `len` says how many there are at most.

    Attributes:
        share: What its rank takes of an epoch.
        skipped: Samples that were left out: damaged ones, with `on_error="skip"`, and those that a stage leaves out.
    """

    def __init__(self, fetcher: AnyReader, source: AnySamples, options: OrderOptions, share: Share) -> None:
        self.fetcher, self._source, self._options, self.share = fetcher, source, options, share
        self.skipped = SkippedSamples()
        self._pass, self._begun = _Pass(0, options, share), False
        self._most = options.round * _MOST_OF_OWN  # positions read together, whatever states are loaded

    def __getitem__(self, _: object) -> NoReturn:
        """Refuse a number, which PyTorch's DataLoader asks for where it is given a stream."""
        raise no_number("a stream")

    def __len__(self) -> int:
        """Return how many samples, or batches, this reader's rank takes of an epoch: at most, with `uneven` shares."""
        return self.stages.count(self._samples_of_rank)

    def __iter__(self) -> Iterator[Any]:
        self.rewind()
        current = self._pass = _Pass(self._pass.start, self._options, self.share)
        self._begun = True
        samples = self._samples(current)
        return self.stages.run(samples, lambda error: self._place(current).left_out(error), current.rng)

    def rewind(self) -> None:
        """Go to where the next iteration begins: to the start of an epoch, but for a state that was loaded."""
        if self._begun:
            self._go_to(replace(self._options, epoch=self.next_epoch(self.stages)), 0)

    def next_epoch(self, stages: Stages) -> int:
        """Return the epoch of the next iteration: this one, while enough is left that stages make something of it."""
        left = -(-(self.end - self._position - self.share.rank) // self.world_size)
        return self._options.epoch + (self._begun and stages.count(max(0, left)) == 0)

    def __repr__(self) -> str:
        options, share = self._options, self.share
        order = f"shuffle={options.shuffle!r}, seed={options.seed}, epoch={options.epoch}"
        name = "rank" if share.alike == 1 else "group"
        rank = f", {name} {share.rank} of {share.world_size}" if share.world_size > 1 else ""
        return f"<Stream: {counted(self._samples_of_rank, 'sample')}, {order}{rank}{self.stages}>"

    def place(self) -> StreamPosition:
        """Return the place of the sample that was given out last."""
        return self._place(self._pass)

    def _place(self, current: _Pass) -> StreamPosition:
        """Return the place of the sample that an iterator gave out last: the same for those that took it."""
        if current.place is None or current.place.position != current.positions[current.taken - 1]:
            current.place = StreamPosition(self, current)
        return current.place

    def _samples(self, current: _Pass) -> Iterator[Sample]:
        share, options = current.share, current.options
        current.order = order = self._source.order(options)
        at_once = self.fetcher.reads_at_once if self._step else min(_ROUNDS_AT_ONCE, self.fetcher.reads_at_once)
        together = share.world_size * max(_ROUNDS_TOGETHER, share.workers) if at_once > 1 else 1
        if options.ranks:  # of whose rounds each holds more than one of all parts
            together = max(1, together // (_ROUNDS_TOGETHER * options.ranks))
        step = self._step or min(options.round, self._most) * together
        jobs = self._expected(order, _jobs(share, current.start, order.length, step))
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
        divided._pass, divided._most = _Pass(position, self._options, share), self._most
        return divided.with_stages(self.stages)

    def _go_to(self, options: OrderOptions, position: int) -> None:
        self._options, self.share = options, replace(self.share, origin=position)
        self._pass, self._begun = _Pass(position, options, self.share), False

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
        most = min(_MOST_TOGETHER, (_LATER if mean >= LATE else _TOGETHER) // mean)
        return max(1, most) * share.world_size * share.workers

    def _read(self, order: AnyOrder, positions: Numbers) -> tuple[Numbers, Samples]:
        numbers = order.numbers(positions % max(1, order.length))
        batch = self.fetcher.read_late(numbers)
        if isinstance(self.fetcher, bundles.Bundles):
            batch = self.fetcher.telling(batch, lambda: self.skipped)
        if self.share.ends == "pad":
            return numbers, _padded(batch, (positions >= order.length).tolist())
        return numbers, batch

    def _expected(self, order: AnyOrder, jobs: Iterator[Numbers]) -> Generator[Numbers]:
        """Yield jobs, whose shards are copied into a cache meanwhile, where there is one."""
        if not self.fetcher.copies or self._options.shuffle == "full":  # which wants all shards at once
            yield from jobs
            return
        seen, share = set[str](), self.share
        size = self.fetcher.mean_size * (self._step or self._options.round) // (share.world_size * share.workers)
        most = min(_MOST_EXPECTED, 1 + _EXPECTED // max(1, size))

        def expect(positions: Numbers) -> None:
            self.fetcher.expect(order.numbers(positions % max(1, order.length)), seen)

        with closing(read_ahead(jobs, expect, most, name="copy")) as coming:
            for positions, _ in coming:  # nothing waits for the copies; what is wrong, reading says
                yield positions

    def _refuse(self, error: ShardError, number: int, current: _Pass) -> None:
        """Count a damaged sample, or raise its error, and stay in front of it."""
        try:
            self.fetcher.leave_out(error, number, self.skipped)
        except ShardError:
            current.taken -= 1
            raise


def no_number(what: str) -> InvalidRequest:
    """Return the error of what has an order, and was asked for a sample by number."""
    remedy = "Give a DataLoader StreamDataset(dataset, batch_size), or MapDataset(dataset) for samples by number."
    return InvalidRequest(what, "asked for a sample by its number", expected="a loop over it", remedy=remedy)


def _jobs(share: Share, start: int, length: int, step: int) -> Iterator[Numbers]:
    """Yield the positions of a share that are read together."""
    end = share.end(length)
    while start < end:
        stop = min(end, (start // step + 1) * step)
        yield share.positions(start, stop, length)
        start = stop


def _padded(batch: Samples, padding: list[bool]) -> Iterator[Sample | ShardError]:
    """Yield samples that say whether they were read for others' sake."""
    for sample, padded in zip(batch, padding, strict=True):
        if isinstance(sample, dict):
            sample["__padding__"] = padded
        yield sample


class StreamPosition:
    """A position of an epoch, which another sample takes where its own, and those that took it, are left out.

    Attributes:
        position: Which one; which samples take it in turn, `order.others` says.
    """

    def __init__(self, stream: Stream, current: _Pass) -> None:
        self.position, self._number = int(current.positions[current.taken - 1]), int(current.numbers[current.taken - 1])
        self._stream, self._order, self._options = stream, current.order, current.options
        self._others: Iterator[Sample] | None = None

    def rng(self, stage: int) -> np.random.Generator:
        """Return the generator that a stage draws from, whichever sample takes the place."""
        return rng_at(self._options, self.position, stage)

    def left_out(self, error: ShardError) -> Sample | None:
        """Return the sample that comes instead of the last one, as `other` does; count the place's own."""
        if self._others is None:
            self._stream.fetcher.leave_out(error, self._number, self._stream.skipped, damaged=False)
        return self.other(error)

    def other(self, error: ShardError) -> Sample | None:
        """Return the sample that comes instead of the last one of this place; None: nothing."""
        if self._others is None:
            self._others = self._each_other(error)
        return next(self._others, None)

    def _each_other(self, error: ShardError) -> Iterator[Sample]:
        """Yield the samples that take the place, in turn; with `ends="uneven"`, none.

        Raises:
            SampleFailed: All of them were left out, too.
        """
        order, ends = self._order, self._stream.share.ends
        if ends == "uneven":
            return
        for at in others(order.length, self._options, self.position):
            found = order.numbers(np.array([at]))
            (sample,) = self._stream.fetcher.read(found) if found[0] != self._number else (None,)
            if isinstance(sample, dict):
                if ends == "pad":
                    sample["__padding__"] = True
                yield sample
        tried = counted(min(MOST_OTHERS, order.length), "sample")
        why = f"{tried} in a row are left out, first {error.where}: {error.found}"
        raise SampleFailed("the stream", why, remedy="Choose other samples with where(...).") from error


class _Pass:
    """How far an iterator has got.

    Attributes:
        start: Where all ranks were before what is read now.
        positions: int64 [n]: what is read now.
        numbers: int64 [n]: their samples.
        taken: How many of these were given out.
        order: In which the epoch takes its samples.
        options: What the order depends on.
        share: What it takes of them.
    """

    order: AnyOrder

    def __init__(self, start: int, options: OrderOptions, share: Share) -> None:
        self.start, self.taken, self.options, self.share = start, 0, options, share
        self.positions = self.numbers = np.zeros(0, np.int64)
        self.place: StreamPosition | None = None  # of the sample that was given out last, where it was asked for

    def rng(self, stage: int) -> np.random.Generator:
        """Return the generator that a stage draws from for the sample, or batch, that was given out last."""
        last = self.positions[self.taken - 1] if len(self.positions) else self.start - 1
        return rng_at(self.options, int(last), stage)
