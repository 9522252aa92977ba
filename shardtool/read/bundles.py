"""The order of bundles, and reading them: each position of an epoch is a bundle of several samples.

Sidecars list the sizes of samples, so no sample is read to compute the order. The order of samples is cut into
windows of
a fixed number of positions, and a rule divides each window. Ranks, workers and states count bundles, and are as
exact as
with single samples.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from hashlib import blake2b
from itertools import accumulate, count
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa

from shardtool.errors import InvalidRequest, SampleFailed, ShardError, format_list
from shardtool.messages import call_text, option_text
from shardtool.plan.random_order import derive_state, permute_positions, random_at
from shardtool.read.bundle_rules import Bundle, of_one_kind
from shardtool.read.epoch_samples import CatalogSamples, EpochSamples, MixedSamples
from shardtool.read.metadata import metadata_schema
from shardtool.read.mixed_reader import AnySampleReader, MixedReader
from shardtool.read.order import Order, OrderOptions
from shardtool.read.sample_reader import SampleReader, SkippedSamples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardtool.read.catalog import Numbers
    from shardtool.read.options import Sample, Samples

    Pieces = tuple[Numbers, Numbers, Numbers, Numbers]


_MIN_BUNDLES_IN_WINDOW = 64  # bundles of a window, about: fewer are packed worse, and batches of them are less shuffled


_SAMPLES_IN_KIND_WINDOW = 2**17  # samples of a window where the last batch of each kind is smaller


_MAX_CACHED_WINDOWS = 4  # windows: as many as are read side by side


_MAX_BUNDLES_IN_EPOCH = (
    2**40
)  # more than bundles in an epoch: a number of a bundle says which order, and which position there


_order_numbers = count()


class BundleOrder:
    """The order of the bundles of an epoch; its positions are bundles.

    Samples are shuffled in windows that are as many times larger than for bundles of one, as bundles have samples.

    Args:
        source: What is bundled.
        options: The order.
        first: The number of the first bundle in this process.
    """

    def __init__(self, source: BundleReader, options: OrderOptions, first: int) -> None:
        self._source, self.options, self._first = source, options, first
        self._samples = source.samples.order(replace(options, window=options.window * source.each))
        self._step = (
            _SAMPLES_IN_KIND_WINDOW if source.in_turn else source.each * max(_MIN_BUNDLES_IN_WINDOW, options.round)
        )
        self._window = lru_cache(_MAX_CACHED_WINDOWS)(self._divided)

    def __reduce__(self) -> tuple[Callable[[OrderOptions], BundleOrder], tuple[OrderOptions]]:
        return self._source.order, (self.options,)

    @cached_property
    def _ends(self) -> list[int]:
        """Bundles before each window, and in all."""
        windows = range(-(-self._samples.length // self._step))
        return [*accumulate((len(self._window(window)[1]) for window in windows), initial=0)]

    @property
    def length(self) -> int:
        """Bundles in the epoch."""
        return self._ends[-1]

    def numbers(self, positions: Numbers) -> Numbers:
        """Return the bundle at each position: its number in this process."""
        return positions + self._first

    def bundle(self, position: int) -> Bundle:
        """Return the bundle at a position."""
        window = bisect_right(self._ends, position) - 1
        pieces, turns, cuts = self._window(window)
        at = turns[position - self._ends[window]]
        return Bundle(*(column[cuts[at] : cuts[at + 1]] for column in pieces))

    def _divided(self, window: int) -> tuple[Bundle, list[int], list[int]]:
        """Return the pieces of a window, which bundle comes at each of its positions, and where each ends."""
        first, options = window * self._step, self.options
        numbers = self._samples.numbers(np.arange(first, min(first + self._step, self._samples.length)))
        sizes = self._source.sizes[numbers]
        bundles, places, starts, counts = self._source.divide(sizes)
        cuts = np.append(np.flatnonzero(np.diff(bundles, prepend=-1)), len(bundles))
        if options.shuffle and not self._source.in_turn and len(bundles):
            key = random_at(derive_state("bundles", options.seed, options.epoch), np.array([window], np.uint64))[0]
            turns = permute_positions(np.arange(len(cuts) - 1), len(cuts) - 1, key)
        else:
            turns = np.argsort(places[cuts[1:] - 1], kind="stable")
        return Bundle(numbers[places], sizes[places], starts, counts), turns.tolist(), cuts.tolist()


class BundleReader:
    """Bundles of samples: what reads them, and what epochs take in an order.

    Args:
        reader: Reads the samples.
        views: Which.
        sizes: int64 [span]: of each; 0 where no epoch takes it.
        rule: Makes pieces of a limit and the sizes of a window.
        limit: Tokens, or samples, of a bundle.
        make: Makes what a bundle is, of its samples.
        facts: What bundles depend on beside all that.

    Attributes:
        samples: What is bundled.
        sizes: As given.
        divide: Makes pieces of the sizes of a window.
        each: Samples of a bundle: about as many, a power of two.
        fingerprint: What is equal for equal bundles in an equal order.
        in_turn: Whether bundles come in the order in which they are full, rather than in random order.
        span: How many numbers there are: of this process, in all orders.

    Raises:
        InvalidRequest: There is nothing to bundle.
    """

    span = _MAX_BUNDLES_IN_EPOCH * _MAX_BUNDLES_IN_EPOCH // 2

    def __init__(
        self, reader: AnySampleReader, views: EpochSamples, sizes: Numbers, rule: Callable[[int, Numbers], Pieces], limit: int,
        make: Callable[[Bundle, list[Sample]], Sample], *facts: object,
    ) -> None:  # fmt: skip
        self.in_turn = rule is of_one_kind
        if not self.in_turn and not sizes.any():
            raise InvalidRequest("the dataset", "no tokens in any sample")
        self._reader, self.samples, self.sizes = reader, views, sizes
        self.divide, self._make = partial(rule, limit), make
        mean = 1 if self.in_turn else sizes.sum() / sum(view.length for _, view in each_dataset(reader, views))
        self.each = 1 << max(0, round(math.log2(limit / mean)))
        digest = blake2b(repr((views.fingerprint, rule.__name__, limit, facts)).encode(), digest_size=16)
        digest.update(np.ascontiguousarray(sizes, "<i8").data)
        self.fingerprint = digest.hexdigest()
        self.mean_size, self.copies, self.concurrent_reads = (
            reader.mean_size * self.each,
            reader.copies,
            reader.concurrent_reads,
        )
        self._orders: dict[int, BundleOrder] = {}

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_orders": {}}  # they are made again where they are needed

    @property
    def length(self) -> int:
        """Bundles in an epoch that is not shuffled."""
        return self.length_in(OrderOptions(shuffle=False))

    def length_in(self, options: OrderOptions) -> int:
        """Return how many bundles an epoch has: all of it is divided for that, once in each process."""
        return self.order(options).length

    def order(self, options: OrderOptions) -> BundleOrder:
        """Return the order of an epoch."""
        for known in [*self._orders.values()]:
            if known.options == options:
                return known
        place = next(_order_numbers)
        return self._orders.setdefault(place, BundleOrder(self, options, place * _MAX_BUNDLES_IN_EPOCH))

    def bundle(self, number: int) -> Bundle:
        """Return a bundle by its number in this process."""
        return self._orders[number // _MAX_BUNDLES_IN_EPOCH].bundle(number % _MAX_BUNDLES_IN_EPOCH)

    def expect(self, numbers: Numbers, seen: set[str]) -> None:
        """Have the shards of bundles that are read soon copied into the cache, but for those of `seen`."""
        self._reader.expect(self._members(numbers), seen)

    def reader_of_fields(self, _: frozenset[str] | None) -> BundleReader:
        """Return this reader: which fields are read is said where samples are bundled."""
        return self

    def skip_or_raise(self, error: ShardError, number: int, *counts: SkippedSamples, damaged: bool = True) -> None:
        """Count a bundle that is left out, in the dataset and in `counts`, or raise its error, as the dataset does."""
        self._reader.skip_or_raise(error, self._culprit(number), *counts, damaged=damaged)

    def read(self, numbers: Numbers) -> list[Sample | ShardError]:
        """Return bundles, in the order of their numbers in the argument; a sample that is damaged damages its own."""
        return [*self.read_late(numbers)]

    def read_late(self, numbers: Numbers) -> Samples:
        """Return bundles as `read` does, each made when it is asked for; a sample of several is read once."""
        wanted = self._members(numbers)
        once, which = np.unique(wanted, return_inverse=True)
        if len(once) == len(wanted):
            return self._made(numbers, iter(self._reader.read_late(wanted)))
        read = [*self._reader.read(once)]
        return self._made(numbers, (read[at] for at in which.tolist()))

    def with_skip_callback(
        self, bundles: Samples, skipped: Callable[[], SkippedSamples]
    ) -> Iterator[Sample | ShardError]:
        """Yield bundles that, where they are batches, have what counts a sample that is left out of one."""

        def tell(error: ShardError, number: int) -> None:
            self._reader.skip_or_raise(error, number, skipped(), damaged=False)

        for bundle in bundles:
            if isinstance(bundle, dict) and "__samples__" in bundle:
                bundle["__tell__"] = tell
            yield bundle

    def _made(self, numbers: Numbers, samples: Iterator[Sample | ShardError]) -> Iterator[Sample | ShardError]:
        for bundle in map(self.bundle, numbers.tolist()):
            some = [next(samples) for _ in range(len(bundle.numbers))]
            try:
                if bad := [one for one in some if isinstance(one, ShardError)]:
                    yield bad[0]
                else:
                    yield self._make(bundle, cast("list[Sample]", some))
            except SampleFailed as error:
                yield error

    def _members(self, numbers: Numbers) -> Numbers:
        empty = np.zeros(0, np.int64)
        return np.concatenate([empty, *(self.bundle(number).numbers for number in numbers.tolist())])

    def _culprit(self, number: int) -> int:
        """Return the sample of a bundle that cannot be read, or else its first."""
        members: list[int] = self.bundle(number).numbers.tolist()
        read = zip(members, self._reader.read(np.array(members)), strict=True)
        return next((member for member, one in read if isinstance(one, ShardError)), members[0])


StreamReader = SampleReader | MixedReader | BundleReader


StreamSamples = EpochSamples | BundleReader


StreamOrder = Order | BundleOrder


def each_dataset(reader: AnySampleReader, views: EpochSamples) -> Iterator[tuple[SampleReader, CatalogSamples]]:
    """Yield the datasets of a mix, or the only one."""
    if isinstance(reader, MixedReader):
        for one, view in zip(reader.readers, cast("MixedSamples", views).sources, strict=True):
            yield from each_dataset(one, view)
    else:
        yield reader, cast("CatalogSamples", views)


def sample_sizes(
    reader: AnySampleReader, views: EpochSamples, of_shard: Callable[[SampleReader, int], Numbers], what: str
) -> Numbers:
    """Return what is known of each sample, at its number; of samples that no epoch takes, 0.

    Args:
        reader: Of the samples.
        views: Which.
        of_shard: Returns what is known of the samples of a shard; less than 0 where nothing is.
        what: That is, for messages.

    Raises:
        InvalidRequest: Nothing is known of a sample.
    """
    parts = []
    for fetcher, view in each_dataset(reader, views):
        found = np.zeros(view.span, np.int64)
        for shard, chosen in view.group_by_shard():
            rows = np.asarray(chosen) - fetcher.catalog.firsts[shard]
            found[chosen] = sizes = of_shard(fetcher, shard)[rows]
            for key in fetcher.store.index(shard).keys_of(rows[sizes < 0][:1]):
                remedy = "Choose those that have it with where(...) or take(...)."
                raise InvalidRequest(f"sample {key}", f"no {what}", remedy=remedy)
        parts.append(found)
    return np.concatenate(parts)


def metadata_sizes(name: str, reader: AnySampleReader, views: EpochSamples) -> Numbers:
    """Return a column of metadata, at the numbers of the samples.

    Raises:
        InvalidRequest: There is no such column of whole numbers from 0 on, or not for a sample.
    """

    def of_shard(fetcher: SampleReader, shard: int) -> Numbers:
        numbers = [one.name for one in metadata_schema(fetcher.catalog) if pa.types.is_integer(one.type)]
        if name not in numbers:
            remedy = (
                f"{call_text('create', probe=True)} makes width and height, {option_text('join')} of `reshard` others."
            )
            expected = f"one of {format_list(numbers)}" if numbers else "a column of whole numbers"
            raise InvalidRequest("column", f"no {name} of whole numbers", expected=expected, remedy=remedy)
        column = fetcher.store.metadata(shard).column(name)
        return cast("Numbers", column.cast(pa.int64()).fill_null(-1).to_numpy())

    return sample_sizes(reader, views, of_shard, f"{name} in its metadata")
