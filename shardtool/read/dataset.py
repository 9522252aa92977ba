"""A dataset for training code: samples by number, by key, in batches and as a stream; and views of some of them.

A stream is an epoch, or one reader's share of it, read ahead in rounds.
"""

from __future__ import annotations

import logging
import operator
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, cast, overload

import numpy as np

from shardtool.entries.entries import Names
from shardtool.errors import InvalidRequest, SampleFailed, ShardError, UnknownKey, current_folder, listing
from shardtool.read import bundles
from shardtool.read import order as orders
from shardtool.read.catalog import column_of, joined, matching_rows, open_catalog, schema_of, table_of
from shardtool.read.chain import Batch, Chain, Chains, Each, Lists, Stages, without_dataloaders
from shardtool.read.fetch import LATE, Fetcher, GrowingCache, MixedReader, ReadOptions, SkippedSamples, TakenShards
from shardtool.read.order import MixedSamples, OrderOptions, SampleView, Share, StreamState
from shardtool.request.settings import check_choice, check_least
from shardtool.request.texts import SplitOptions, parse_shares
from shardtool.select.splits import Splits, divide
from shardtool.values import Given, OnBadSample, agreed_type, counted

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import pyarrow as pa
    import pyarrow.dataset as pads
    from numpy.typing import DTypeLike, NDArray
    from typing_extensions import Self

    from shardtool.read.bundles import AnyOrder, AnyReader, AnySamples
    from shardtool.read.catalog import IndexStore, Numbers
    from shardtool.read.fetch import Reader, Sample, Samples, ShardCache
    from shardtool.read.order import Ends, Shuffle, Stop, Views

    Several = Sequence[int] | list[str] | tuple[str, ...] | NDArray[np.generic]

_log = logging.getLogger("shardtool")

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
        if not self.source.length:
            return iter(())
        in_order = self.stream(shuffle=False, rank=0, world_size=1, ends="uneven")
        in_order.skipped.has_warned = True  # such a loop is how to choose samples with a filter
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
                with a shuffle; without one `pad`, or for a single rank `uneven`. `Stream` describes what each does
                about skipped samples.
            groups: Into how many groups neighbouring ranks are put, all of one to get the same samples, as tensor and
                sequence parallelism want it; None: each rank gets samples of its own.

        Raises:
            InvalidRequest: There are no samples, or with `drop` fewer than ranks; or an argument is out of its range.
        """
        rank, ranks = orders.default_share(rank, world_size)
        share = Share(rank, ranks, ends or ("drop" if shuffle else "uneven" if ranks == 1 else "pad")).in_groups(groups)
        reader, ranks = self.fetcher, share.world_size
        cut = orders.cut_for(self.source, reader.mean_size, ranks, buffer, parts, copies=reader.copies)
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

    Samples that stages drop shorten the epoch of a single rank: `len` is then an upper bound. Several ranks perform as
    many steps as `len` reports: up to 1 % of the samples of a rank are replaced by others, which the order chooses; if
    stages drop more, that is an error. With `ends="pad"` any number is replaced, and each replacement has
    `__padding__`. With `ends="uneven"` nothing is replaced. Damaged samples are replaced by `drop` and `pad`.

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
        """Return how many samples, or batches, this reader's rank takes of an epoch.

        Skipped samples that are not replaced (a single rank, or `uneven` shares) make this an upper bound.
        """
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
    """A position of an epoch, which another sample may take where its own, and those that took it, are left out.

    Attributes:
        position: Which one; which samples take it in turn, `order.others` says.
    """

    def __init__(self, stream: Stream, current: _Pass) -> None:
        self.position, self._number = int(current.positions[current.taken - 1]), int(current.numbers[current.taken - 1])
        self._stream, self._current = stream, current
        self._others: Iterator[Sample] | None = None

    def rng(self, stage: int) -> np.random.Generator:
        """Return the generator that a stage draws from, whichever sample takes the place."""
        return orders.rng_at(self._current.options, self.position, stage)

    def left_out(self, error: ShardError) -> Sample | None:
        """Return the sample that comes instead of the last one, as `other` does; count the place's own."""
        if self._others is None:
            self._stream.fetcher.leave_out(error, self._number, self._stream.skipped, damaged=False)
        return self.other(error, damaged=False)

    def other(self, error: ShardError, *, damaged: bool = True) -> Sample | None:
        """Return the sample that comes instead of the last one of this place; None: nothing.

        Raises:
            InvalidRequest: Stages drop too many samples to replace them.
        """
        if self._others is None:
            self._current.note_empty(error, self._stream.skipped, damaged=damaged)
            is_filled = self._current.share.fills(damaged=damaged)
            self._others = self._each_other(error) if is_filled else iter(())
        return next(self._others, None)

    def _each_other(self, error: ShardError) -> Iterator[Sample]:
        """Yield the samples that take the place, in turn.

        Raises:
            SampleFailed: All of them were left out, too.
        """
        order, ends = self._current.order, self._current.share.ends
        for at in orders.others(order.length, self._current.options, self.position):
            found = order.numbers(np.array([at]))
            (sample,) = self._stream.fetcher.read(found) if found[0] != self._number else (None,)
            if isinstance(sample, dict):
                if ends == "pad":
                    sample["__padding__"] = True
                yield sample
        tried = counted(min(orders.MOST_OTHERS, order.length), "sample")
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
        empty: How many positions gave no sample of their own.
        dropped: How many of these samples a stage dropped; the others are damaged.
    """

    order: AnyOrder
    empty = dropped = 0

    def __init__(self, start: int, options: OrderOptions, share: Share) -> None:
        self.start, self.taken, self.options, self.share = start, 0, options, share
        self.positions = self.numbers = np.zeros(0, np.int64)
        self.place: StreamPosition | None = None  # of the sample that was given out last, where it was asked for

    def rng(self, stage: int) -> np.random.Generator:
        """Return the generator that a stage draws from for the sample, or batch, that was given out last."""
        last = self.positions[self.taken - 1] if len(self.positions) else self.start - 1
        return orders.rng_at(self.options, int(last), stage)

    def note_empty(self, error: ShardError, skipped: SkippedSamples, *, damaged: bool) -> None:
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
        if share.ends == "drop" and share.world_size > 1 and self.dropped * _RARE > positions:
            found = f"more than 1 % of the samples of rank {share.rank} of {share.world_size} are dropped, {example}"
            expected = "as many steps on every rank as `len` reports, without repeated samples"
            raise InvalidRequest("the stream", found, expected=expected, remedy=f"{_CHOOSE}; {_OR_PAD}.")
        if self.empty * _RARE > positions and not skipped.has_warned:
            skipped.has_warned = True
            advice = _VERIFY if damaged else f"len() counts them too. {_CHOOSE}"
            _log.warning("More than 1 %% of the samples of this epoch were skipped, %s. %s.", example, advice)


_RARE = 100  # positions of which one may give nothing
_CHOOSE = (
    "Choose samples before you stream them: dataset.where(QUERY) by columns, or run the filter once and use its keys, "
    "dataset.take([sample['__key__'] for sample in dataset.filter(FUNCTION)])"
)
_OR_PAD = "or give ends='pad', which repeats samples and marks them with `__padding__`, or ends='uneven'"
_VERIFY = "Run `shardtool verify` to list what is damaged"
_KEYS_AT_ONCE = 2**16
_WHICH = "a number, a key, a slice, several of these, or a mask of all samples"


class Dataset(Streamable):
    """Samples of shards, or some of them.

    Picklable without open files; safe in threads and after a fork.
    """

    fetcher: Fetcher
    source: SampleView

    def __init__(self, fetcher: Fetcher, shares: SplitOptions | None = None) -> None:
        super().__init__(fetcher, SampleView(fetcher.catalog))
        self.stages = Stages(types=fetcher.catalog.types)
        self._shares = shares

    @property
    def skipped(self) -> SkippedSamples:
        """Damaged samples that were left out with `on_error="skip"`, in this process."""
        return self.fetcher.skipped

    @property
    def fields(self) -> Mapping[str, int]:
        """How many samples have each field; counted where no dataset file says so, and of a view."""
        catalog = self.fetcher.catalog
        if self.source.chosen is None and catalog.fields:
            return catalog.fields
        found: Counter[str] = Counter()
        for shard, numbers in self.source.by_shard():
            index, first = self.fetcher.store.index(shard), catalog.firsts[shard]
            rows = np.arange(len(numbers)) if isinstance(numbers, range) else np.array(numbers) - first
            found.update(dict(zip(index.names, index.field_counts(rows), strict=True)))
        return dict(+found)

    @property
    def classes(self) -> Mapping[str, list[str]]:
        """Field to the names of its class numbers."""
        return self.fetcher.catalog.classes

    @property
    def splits(self) -> Mapping[str, int]:
        """How many samples each split has, by its name: of `open(splits=)`, or of several datasets, each is one."""
        splits = self.fetcher.catalog.splits
        if self.source.chosen is None and self._divided is None:
            return {name: sum(map(len, parts)) for name, parts in splits.items()}
        return {name: len(self.partition(name)) for name in (self._divided.names if self._divided else splits)}

    @cached_property
    def _divided(self) -> Splits | None:
        """The split of each sample of the whole dataset, where shares are asked for; None where they are not."""
        if self._shares is None:
            return None
        store, shards = self.fetcher.store, range(len(self.fetcher.catalog.shards))
        return divide(Names.of(key for shard in shards for key in store.index(shard).all_keys()), self._shares)

    @property
    def fingerprint(self) -> str:
        """What is equal for equal samples: of a whole dataset, its content fingerprint, where that is known."""
        content = self.fetcher.catalog.content if self.source.chosen is None else ""
        return content or self.source.fingerprint

    @property
    def schema(self) -> pa.Schema:
        """The columns of the sidecars, and their types."""
        return schema_of(self.fetcher.catalog)

    @property
    def keys(self) -> Keys:
        """The keys of all samples, in order: a sequence that is read when it is asked."""
        return Keys(self.fetcher.store, self.source)

    def __contains__(self, key: object) -> bool:
        return key in self.keys

    def __repr__(self) -> str:
        catalog = self.fetcher.catalog
        of = "" if self.source.chosen is None else f"{self.source.length:,} of "
        what = f"{of}{counted(len(catalog), 'sample')} in {counted(len(catalog.shards), 'shard')}"
        fields = f", fields {listing([*catalog.fields])}" if catalog.fields else ""
        return f"<Dataset {catalog.name}: {what}{fields}{self.stages}>"

    @overload
    def __getitem__(self, which: int | str) -> Any: ...
    @overload
    def __getitem__(self, which: slice) -> Dataset: ...
    @overload
    def __getitem__(self, which: Several) -> list[Any]: ...

    def __getitem__(self, which: int | str | slice | Several) -> Any:
        """Return the sample of a number or key, a list of those of several, or a view of a slice.

        What the dataset's stages make of a sample is returned; what they would leave out of a stream is an error.

        Raises:
            IndexError: There is no such number.
            UnknownKey: There is no such key.
            CorruptShard: A shard is missing or damaged.
            SampleFailed: A stage cannot do its work.
        """
        if type(which) is int:  # a hot path
            plain = self.source.chosen is None and 0 <= which < self.source.length
            return self._one(which if plain else self._number(which))
        if isinstance(which, slice):
            return self._with_chosen(self._numbers(np.arange(*which.indices(self.source.length), dtype=np.int64)))
        if isinstance(which, str):
            return self._one(int(self._with_keys([which])[0]))
        if isinstance(which, Sequence) or np.ndim(which):  # arrays, tensors, pandas
            found = self.fetcher.fetch(self._several(cast("Several", which)))
            return [self.stages.apply(sample) for sample in found] if self.stages.stages else found
        try:
            place = operator.index(which)
        except TypeError:
            raise InvalidRequest("the dataset", f"asked for {which!r:.80}", expected=_WHICH) from None
        return self._one(self._number(place))

    def _one(self, number: int) -> object:
        """Return what becomes of one sample, which is never left out."""
        sample = self.fetcher.one(number)
        if isinstance(sample, ShardError):
            raise sample
        return self.stages.apply(sample) if self.stages.stages else sample

    def _several(self, which: Several) -> Numbers:
        """Return the numbers in the catalog of several samples here, given by numbers, keys, or a mask."""
        try:
            asked = np.asarray(which)
        except ValueError:  # lists of several lengths
            asked = np.zeros(())
        texts = asked.dtype.kind in "UTO" and all(isinstance(one, str) for one in which)
        if asked.ndim != 1 or not (texts or asked.dtype.kind in "biu" or not len(asked)):
            raise InvalidRequest("the dataset", f"asked for {which!r:.80}", expected=_WHICH)
        if texts:
            return self._with_keys([str(one) for one in which])
        if asked.dtype.kind == "b":
            if len(asked) != self.source.length:
                raise IndexError(f"a mask of {len(asked):,} for {counted(self.source.length, 'sample')}")
            asked = np.flatnonzero(asked)
        return self._numbers(asked.astype(np.int64))

    def _number(self, place: int) -> int:
        """Return the number of a sample in the catalog, by its place here; a place below 0 counts from the end."""
        if not -self.source.length <= place < self.source.length:
            raise IndexError(f"sample {place} of {self.source.length:,}")
        place = place if place >= 0 else place + self.source.length
        return place if self.source.chosen is None else int(self.source.chosen[place])

    def _numbers(self, places: Numbers) -> Numbers:
        """Return the numbers of samples in the catalog, by their places here; places below 0 count from the end."""
        places = _in_range(places, self.source.length)
        return places if self.source.chosen is None else self.source.chosen[places]

    def _with_keys(self, keys: Iterable[str]) -> Numbers:
        """Return the number of the sample of each key: int64 [keys].

        Raises:
            UnknownKey: There is no sample of some keys, which it names.
        """
        wanted, chosen = [*keys], self.source.chosen
        for one in wanted:
            if not isinstance(one, str):
                raise InvalidRequest("keys", f"{one!r:.40}", expected="texts, as those in `.keys`")
        numbers = self.fetcher.store.numbers(wanted)
        lacking = numbers < 0 if chosen is None else (numbers < 0) | ~np.isin(numbers, chosen)
        if bad := [wanted[at] for at in np.flatnonzero(lacking).tolist()]:
            what = "no sample of that key" if len(bad) == 1 else f"{len(bad):,} keys of no sample"
            what += "" if chosen is None else " in this view"
            remedy = _without_ending(self.fetcher.store, bad[0])
            expected = "keys such as those in `.keys`"
            raise UnknownKey(listing([*map(repr, bad)]), what, expected=expected, remedy=remedy)
        return numbers

    def _with_chosen(self, chosen: Numbers) -> Dataset:
        found = copy(self)
        found.source = SampleView(self.fetcher.catalog, chosen)
        return found

    def take(self, which: Several) -> Dataset:
        """Return a view of several samples, given by numbers, keys, or a mask, in the order given.

        Raises:
            IndexError: There is no such number.
            UnknownKey: There is no such key.
        """
        return self._with_chosen(self._several(which))

    def partition(self, which: str | Iterable[str]) -> Dataset:
        """Return one split, by its name: what opening it alone gives; or a view of some keys, in the order given.

        Raises:
            InvalidRequest: There is no such split.
            UnknownKey: There are no such keys.
        """
        if not isinstance(which, str):
            return self._with_chosen(self._with_keys(which))
        catalog, chosen, divided = self.fetcher.catalog, self.source.chosen, self._divided
        splits = catalog.splits
        if which not in (names := [*splits] if divided is None else divided.names):
            expected = f"one of {listing([*names])}, or keys"
            raise InvalidRequest("partition", f"no split {which!r}", expected=expected)
        if divided is not None:
            split = names.index(which)
            whole = divided.samples(split)
            return self._with_chosen(whole if chosen is None else chosen[divided.number[chosen] == split])
        if chosen is None:
            return Dataset(Fetcher(joined(splits[which]), self.fetcher.options)).with_stages(self.stages)
        inside = [(chosen >= first) & (chosen < last) for first, last in catalog.bounds(which)]
        return self._with_chosen(chosen[np.logical_or.reduce(inside)])

    def where(self, query: str) -> Dataset:
        """Return a view of the samples for which a query is true, such as `bi == 'dog' and width > 256`.

        It may name the columns of the sidecars, and `key`, `shard`, `size` (bytes of all fields) and `fields` (how
        many). All sidecars are read for it, one after the other.

        Raises:
            InvalidRequest: It is no query, or names what is no column.
        """
        if not isinstance(query, str):
            raise InvalidRequest("where", f"{query!r:.40}", expected="a query, such as \"bi == 'dog'\"")
        return self._with_chosen(matching_rows(self.fetcher.catalog, self.source.chosen, query))

    def column(self, name: str) -> list[Any]:
        """Return a column of the sidecars, such as that of labels, a value a sample; no payload is read.

        None stands where a sample has no value.

        Raises:
            InvalidRequest: There is no such column.
        """
        return column_of(self.fetcher.catalog, self.source.chosen, name)

    def table(self) -> pads.Dataset:
        """Return the sidecars as one table that pandas, DuckDB and polars can query: a `pyarrow.dataset.Dataset`.

        It has a row a sample: `__key__`, `__shard__`, where it lies, and the metadata. Of a whole dataset, files are
        read when it is queried, and not checked before; the rows of a view are held in memory, in its order.
        """
        return table_of(self.fetcher.catalog, self.source.chosen)


def _in_range(places: Numbers, count: int) -> Numbers:
    """Return places of so many samples; those below 0 count from the end."""
    bad = places[(places < -count) | (places >= count)]
    if len(bad):
        raise IndexError(f"sample {bad[0]} of {count:,}")
    return np.where(places < 0, places + count, places)


# `shardtool.open`: a dataset for training code, given in any way that the commands take.


@without_dataloaders
@current_folder()
def open(  # noqa: A001, PLR0913 - its public name and options
    given: Given | GrowingCache | TakenShards, *, check: bool = False, cache: ShardCache | None = None,
    on_error: OnBadSample = "raise", metadata: bool = False, splits: Mapping[str, float | str] | str | None = None,
    seed: int = 0,
) -> Dataset:  # fmt: skip
    """Return a dataset for reading.

    Args:
        given: A dataset file (of shardtool or wids), a shard pattern, a glob, a folder, or shards; several datasets,
            such as the splits in a folder, become one, in their order. Shards without a sidecar are walked now, once
            for all processes, and a warning says so. A `Cache` stands for the shards that samplers have finished in it
            by now; what its `refresh` returned, for those of then, in whichever process.
        check: Whether the checksum of each payload that is read is compared with its index.
        cache: Where shards are copied to before they are read.
        on_error: `skip`: a damaged sample is left out, and counted, instead of being an error.
        metadata: Whether samples have the metadata of their sidecar, under the names of its columns; None where a shard
            lacks one. Where a field has the same name, the field stays.
        splits: Splits and their shares, such as `{"train": 0.9, "val": 0.1}`, for `partition`: in place of those that
            the datasets are. A hash of a sample's key decides, as for `create --split`: into the same ones.
        seed: Of `splits`: another one divides otherwise.

    Raises:
        InvalidRequest: There is no such dataset.
        CorruptShard: A dataset file is damaged, or a shard that no sidecar describes cannot be read.
    """
    given = given.refresh() if isinstance(given, GrowingCache) else given
    if isinstance(given, TakenShards):
        cache, given = given, [*given]
        if not given:
            remedy = "Wait for its writers: `refresh()` says how many shards there are."
            raise InvalidRequest("the cache", "no finished shards yet", remedy=remedy)
    shares = None
    if splits is not None:
        shares = SplitOptions(parse_shares(splits if isinstance(splits, str) else _shown(splits)), seed=seed)
    return Dataset(Fetcher(open_catalog(given), ReadOptions(check, cache, on_error, metadata)), shares=shares)


def _shown(shares: Mapping[str, float | str]) -> str:
    """Return shares as `create --split` takes them; of floats, 1 - 0.9 is 0.1."""
    if not isinstance(shares, Mapping):
        raise InvalidRequest("splits", repr(shares), expected="shares such as {'train': 0.9, 'val': 0.1}")
    plain = {name: f"{share:.8f}" if isinstance(share, float) else share for name, share in shares.items()}
    return ",".join(f"{name}={share}" for name, share in plain.items())


class Mixture(Streamable):
    """Samples of several datasets: what `mix` returns. Each says which it is of by its number, as `__dataset__`."""

    source: MixedSamples
    fetcher: MixedReader

    def __repr__(self) -> str:
        return f"<Mixture: {counted(self.source.length, 'sample')} an epoch{self.stages}>"

    @overload
    def __getitem__(self, which: int) -> Any: ...
    @overload
    def __getitem__(self, which: Sequence[int] | Numbers) -> list[Any]: ...

    def __getitem__(self, which: int | Sequence[int] | Numbers) -> Any:
        """Return the sample at a place of an epoch that is not shuffled, or a list of those at several.

        Raises:
            IndexError: There is no such place.
            CorruptShard: A shard is missing or damaged.
            SampleFailed: A stage cannot do its work, or would leave the sample out.
        """
        places = np.asarray(which)
        if isinstance(which, slice) or places.ndim > 1 or not (places.dtype.kind in "iu" or not places.size):
            expected = "a number, or several: views are taken of datasets, before they are mixed"
            raise InvalidRequest("the mix", f"asked for {which!r:.80}", expected=expected)
        places = _in_range(places.reshape(-1).astype(np.int64), self.source.length)
        numbers = self.source.order(OrderOptions(shuffle=False)).numbers(places)
        if np.ndim(which):
            return [self.stages.apply(sample) for sample in self.fetcher.fetch(numbers)]
        (found,) = self.fetcher.read(numbers)
        if isinstance(found, ShardError):
            raise found
        return self.stages.apply(found)


@without_dataloaders
def mix(
    datasets: Iterable[Streamable], weights: Sequence[float] | None = None, *, choose: Sequence[int] | None = None,
    repeat: Sequence[float] | None = None, stop: Stop | None = None,
) -> Mixture:  # fmt: skip
    """Return several datasets as one that can be streamed: exact, divided among ranks, and resumed as one is.

    Which dataset comes next is random in blocks of 64 samples, in which shares are exact; without `shuffle`, too, where
    each dataset keeps its own order. A dataset that is exhausted before the epoch ends goes on with its next epoch, in
    another order; and in the next epoch of the mix, each goes on where it was. With datasets alone, an epoch has each
    of their samples once.

    Args:
        datasets: Datasets, views of them, or other mixes. What is done to the samples of each comes before what is done
            to those of the mix.
        weights: Of each, above 0: with 3 and 1, three of four samples are of the first; None: their lengths.
        choose: How many samples of each an epoch has, in place of weights.
        repeat: How many times an epoch has each: 2 twice, 0.5 one half of it, in the next epoch the other.
        stop: When an epoch by weights ends: with the last sample of the dataset that is exhausted first (`first`), when
            each was seen as a whole (`all`), or after a number of samples.

    Raises:
        InvalidRequest: A dataset has no samples, or makes batches, or weights and the like are none of their values.
    """
    datasets = [*datasets] if isinstance(datasets, Iterable) else [datasets]
    for at, one in enumerate(datasets):
        if not isinstance(one, Streamable):
            found = f"a {type(one).__name__}"
            raise InvalidRequest(f"dataset {at} of the mix", found, expected="what shardtool.open returned")
        if any(isinstance(stage, Batch) for stage in one.stages.stages) or isinstance(one, Bundled):
            expected = "samples: mix first, then batch or pack"
            raise InvalidRequest(f"dataset {at} of the mix", "batches", expected=expected)
    given = [name for name, one in (("weights", weights), ("choose", choose), ("repeat", repeat)) if one is not None]
    if len(given) > 1 or (stop is not None and {*given} - {"weights"}):
        found = f"given with {listing([*given[1:], *(['stop'] if stop is not None else [])])}"
        raise InvalidRequest(given[0], found, expected="weights and stop, choose, or repeat")
    sources = [cast("Views", one.source) for one in datasets]
    if weights is None and stop is None:
        source = MixedSamples.of_counts(sources, choose, repeat)
    else:
        weights = [one.length for one in sources] if weights is None else weights
        source = MixedSamples.of(sources, weights, "first" if stop is None else stop)
    mixed = Mixture(MixedReader([cast("Reader", one.fetcher) for one in datasets], source), source)
    agreed = {name: agreed_type(one.stages.types.get(name) for one in datasets) for name in datasets[0].stages.types}
    chains = tuple(chain for one in datasets for chain in _chains(one))
    stages = (Chains(chains),) if any(chains) else ()
    return mixed.with_stages(Stages(stages, {name: kind for name, kind in agreed.items() if kind}))


def _chains(one: Streamable) -> list[tuple[Each, ...]]:
    """Return what is done to the samples of a dataset, or of each that a mix has."""
    own = tuple(stage for stage in one.stages.stages if not isinstance(stage, Batch))
    if own and isinstance(own[0], Chains):
        return [(*before, *own[1:]) for before in own[0].each]
    return [own] * (sum(one.source.datasets) if isinstance(one, Mixture) else 1)


class Keys(Sequence[str]):
    """The keys of samples, in their order; read shard by shard when they are asked for."""

    def __init__(self, store: IndexStore, view: SampleView) -> None:
        self._store, self._view = store, view

    def __len__(self) -> int:
        return self._view.length

    @overload
    def __getitem__(self, which: int) -> str: ...
    @overload
    def __getitem__(self, which: slice) -> list[str]: ...

    def __getitem__(self, which: int | slice) -> str | list[str]:
        if isinstance(which, slice):
            return self.of(np.arange(*which.indices(len(self)), dtype=np.int64))
        at = operator.index(which)
        if not -len(self) <= at < len(self):
            raise IndexError(f"key {at} of {len(self)}")
        return self.of(np.array([at % len(self)]))[0]

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), _KEYS_AT_ONCE):
            yield from self.of(np.arange(first, min(len(self), first + _KEYS_AT_ONCE)))

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, str):
            return False
        number, chosen = self._store.numbers([key])[0], self._view.chosen
        return bool(number >= 0 and (chosen is None or np.any(chosen == number)))

    def __repr__(self) -> str:
        return f"<{len(self):,} keys: {listing([*map(repr, self[:3])], total=len(self))}>"

    def of(self, places: Numbers) -> list[str]:
        """Return the keys at places here, in the order of the places."""
        chosen = self._view.chosen
        return self._store.keys(places if chosen is None else chosen[places])


def _without_ending(store: IndexStore, name: str) -> str:
    """Return what to do about a file's name that was given for a key; nothing where it is none of a sample."""
    folder, slash, file = name.rpartition("/")
    keys = [folder + slash + file[:at] for at, letter in enumerate(file) if letter == "." and at]
    found = store.numbers(keys)
    return next((f"Take {keys[at]!r}: a key has no ending." for at in np.flatnonzero(found >= 0).tolist()), "")
