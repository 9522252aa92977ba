"""Order and read bundles of samples. A bundle becomes one packed block, or one batch of similar samples.

Ranks, workers and saved stream positions count bundles, not samples.

A window is a range of consecutive samples of the epoch. A rule is a function that divides a window into bundles. The
rule gets the size or aspect ratio index of each sample, and can split samples into pieces. It returns four int64
columns with one row per piece, sorted by bundle: the bundle number, the index of the sample in the window, and the
start and length of the piece in the sample.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from hashlib import blake2b
from itertools import accumulate, count
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa

from shardtool.errors import InvalidRequest, SampleFailed, ShardError, format_list
from shardtool.messages import call_text, option_text
from shardtool.plan.random_order import derive_state, permute_positions, random_at
from shardtool.read.collate import ListFields, collate
from shardtool.read.epoch_samples import CatalogSamples, EpochSamples, MixedSamples
from shardtool.read.index_store import LruCache
from shardtool.read.metadata import metadata_schema
from shardtool.read.order import Order, OrderOptions
from shardtool.read.pipeline import Map, Pipeline
from shardtool.read.sample_reader import AnySampleReader, MixedReader, SampleReader, SkippedSamples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardtool.read.catalog import Numbers
    from shardtool.read.options import Sample, Samples
    from shardtool.values import OnError

    Pieces = tuple[Numbers, Numbers, Numbers, Numbers]


PackingRule = Literal["first-fit", "concat"]


def concatenated(tokens: int, lengths: Numbers) -> Pieces:
    """Concatenate documents, and cut the result into blocks of `tokens` tokens."""
    ends = np.cumsum(lengths)
    firsts, total = ends - lengths, int(ends[-1])
    starts = np.union1d(firsts[lengths > 0], np.arange(0, total, tokens))
    documents = np.searchsorted(ends, starts, side="right")
    return starts // tokens, documents, starts - firsts[documents], np.diff(starts, append=total)


def fitted(tokens: int, lengths: Numbers) -> Pieces:
    """Pack documents into blocks, longest first. Put each document into the fullest block with enough room.

    A document longer than a block is first split into full blocks and a remainder.

    Source: best-fit decreasing; Johnson, "Near-optimal bin packing algorithms", MIT 1973.
    """
    pieces = -(-lengths // tokens)
    documents = np.repeat(np.arange(len(lengths)), pieces)
    starts = (np.arange(len(documents)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * tokens
    counts = np.minimum(tokens, lengths[documents] - starts)
    block_of_piece: list[int] = []  # block of each piece, longest piece first
    blocks_by_room: dict[int, list[int]] = {}  # room: number of free tokens
    ascending_rooms: list[int] = []
    block_count = 0
    piece_lengths, pieces_of_length = np.unique(counts, return_counts=True)
    for length, number in zip(piece_lengths[::-1].tolist(), pieces_of_length[::-1].tolist(), strict=True):
        end = len(block_of_piece) + number
        while remaining := end - len(block_of_piece):
            index = bisect_left(ascending_rooms, length)
            if index < len(ascending_rooms):
                room = ascending_rooms[index]
                chosen_blocks = blocks_by_room[room][-remaining:]
                del blocks_by_room[room][-remaining:]
                if not blocks_by_room[room]:
                    del blocks_by_room[room], ascending_rooms[index]
            else:
                room = tokens
                new_blocks = -(-remaining // (tokens // length))
                chosen_blocks = [*range(block_count, block_count + new_blocks)]
                block_count += new_blocks
            block_of_piece += chosen_blocks
            if room > length:
                if room - length not in blocks_by_room:
                    insort(ascending_rooms, room - length)
                blocks_by_room.setdefault(room - length, []).extend(chosen_blocks)
    bundles = np.empty(len(counts), np.int64)
    bundles[np.argsort(-counts, kind="stable")] = block_of_piece
    order = np.argsort(bundles, kind="stable")
    return bundles[order], documents[order], starts[order], counts[order]


def of_like_length(tokens: int, lengths: Numbers) -> Pieces:
    """Group samples of similar length into batches of at most `tokens` tokens, including padding."""
    order = np.argsort(-lengths, kind="stable")
    descending = lengths[order]
    cuts = [0]
    while cuts[-1] < len(order):
        longest = max(1, int(descending[cuts[-1]]))
        cuts.append(min(len(order), cuts[-1] + max(1, tokens // longest)))
    return np.repeat(np.arange(len(cuts) - 1), np.diff(cuts)), order, np.zeros_like(order), descending


def of_one_kind(size: int, kinds: Numbers) -> Pieces:
    """Group up to `size` samples with the same value in `kinds` (indexes of aspect ratios) into a batch."""
    order = np.argsort(kinds, kind="stable")
    _, firsts, counts = np.unique(kinds[order], return_index=True, return_counts=True)
    starts_batch = (np.arange(len(order)) - np.repeat(firsts, counts)) % size == 0
    return np.cumsum(starts_batch) - 1, order, np.zeros_like(order), np.ones_like(order)


class Bundle(NamedTuple):
    """The pieces of a bundle, as int64 columns [pieces]. A piece is a sample or part of a sample.

    For each piece, `numbers` and `sizes` contain the number and size of its sample, and `starts` and `counts` the start
    and length of the piece in the sample.
    """

    numbers: Numbers
    sizes: Numbers
    starts: Numbers
    counts: Numbers


_MIN_BUNDLES_IN_WINDOW = 64  # with fewer bundles per window, blocks are less full and the shuffle is weaker
_SAMPLES_IN_KIND_WINDOW = 2**17
_MAX_CACHED_WINDOWS = 4
_MAX_KEPT_ORDERS = 4
# in `BundleOrder` n (from 0), the bundle at position p has the number n * `_MAX_BUNDLES_IN_EPOCH` + p
_MAX_BUNDLES_IN_EPOCH = 2**40
_order_numbers = count()
_Window = tuple[Bundle, list[int], list[int]]  # pieces, order of the bundles, and first piece of each bundle


class BundleOrder:
    """The order of bundles in an epoch. The bundle at position p has the number `first` + p."""

    def __init__(self, source: BundleReader, options: OrderOptions, first: int) -> None:
        self._source, self.options, self._first = source, options, first
        self._samples = source.samples.order(replace(options, window=options.window * source.samples_per_bundle))
        self._step = (
            _SAMPLES_IN_KIND_WINDOW
            if source.is_by_kind
            else source.samples_per_bundle * max(_MIN_BUNDLES_IN_WINDOW, options.round_size)
        )
        self._windows = LruCache[int, _Window](_MAX_CACHED_WINDOWS)

    def __reduce__(self) -> tuple[Callable[[OrderOptions], BundleOrder], tuple[OrderOptions]]:
        return self._source.order, (self.options,)

    @cached_property
    def _ends(self) -> list[int]:
        windows = range(-(-self._samples.length // self._step))
        return [*accumulate((len(self._window(window)[1]) for window in windows), initial=0)]

    @property
    def length(self) -> int:
        """Number of bundles in the epoch."""
        return self._ends[-1]

    def numbers(self, positions: Numbers) -> Numbers:
        """Return the number of the bundle at each position. Bundle numbers are unique in this process."""
        return positions + self._first

    def bundle(self, position: int) -> Bundle:
        """Return the bundle at a position."""
        window = bisect_right(self._ends, position) - 1
        pieces, bundle_order, cuts = self._window(window)
        bundle = bundle_order[position - self._ends[window]]
        return Bundle(*(column[cuts[bundle] : cuts[bundle + 1]] for column in pieces))

    def _window(self, window: int) -> _Window:
        return self._windows.get(window, lambda: self._divide_window(window))

    def _divide_window(self, window: int) -> _Window:
        first = window * self._step
        numbers = self._samples.numbers(np.arange(first, min(first + self._step, self._samples.length)))
        sizes = self._source.sizes[numbers]
        bundles, samples, starts, counts = self._source.divide(sizes)
        cuts = np.append(np.flatnonzero(np.diff(bundles, prepend=-1)), len(bundles))
        if self.options.shuffle and not self._source.is_by_kind and len(bundles):
            seed = derive_state("bundles", self.options.seed, self.options.epoch)
            key = random_at(seed, np.array([window], np.uint64))[0]
            bundle_order = permute_positions(np.arange(len(cuts) - 1), len(cuts) - 1, key)
        else:  # order bundles by their last sample
            bundle_order = np.argsort(samples[cuts[1:] - 1], kind="stable")
        return Bundle(numbers[samples], sizes[samples], starts, counts), bundle_order.tolist(), cuts.tolist()


class BundleReader:
    """Divides the samples of an epoch into bundles, and reads the bundles.

    Args:
        sizes: For each sample number, the number of tokens or the index of the aspect ratio, int64 [samples].
        rule: See the module docstring.
        limit: Maximum number of tokens or samples in a bundle.
        make: Function that makes a block or batch.
    """

    number_limit = _MAX_BUNDLES_IN_EPOCH * _MAX_BUNDLES_IN_EPOCH // 2

    def __init__(
        self, reader: AnySampleReader, samples: EpochSamples, sizes: Numbers, rule: Callable[[int, Numbers], Pieces],
        limit: int, make: Callable[[Bundle, Any], Sample], *fingerprint_values: object,
    ) -> None:  # fmt: skip
        self.is_by_kind = rule is of_one_kind
        self._makes_batches = rule in (of_one_kind, of_like_length)
        if not self.is_by_kind and not sizes.any():
            raise InvalidRequest("the dataset", "no tokens in any sample")
        self._reader, self.samples, self.sizes = reader, samples, sizes
        self.divide, self._make = partial(rule, limit), make
        mean = 1 if self.is_by_kind else sizes.sum() / sum(part.length for _, part in each_dataset(reader, samples))
        self.samples_per_bundle = 1 << max(0, round(math.log2(limit / mean)))
        # saved states contain this hash, so rules must keep their names
        digest_head = repr((samples.fingerprint, rule.__name__, limit, fingerprint_values))
        digest = blake2b(digest_head.encode(), digest_size=16)
        digest.update(np.ascontiguousarray(sizes, "<i8").data)
        self.fingerprint = digest.hexdigest()
        self.mean_size = reader.mean_size * self.samples_per_bundle
        self.copies, self.concurrent_reads = reader.copies, reader.concurrent_reads
        self._forget_orders()

    def _forget_orders(self) -> None:
        # `_orders` contains weak references, by order number; `_newest_orders` keeps the last few orders alive
        self._orders = WeakValueDictionary[int, BundleOrder]()
        self._newest_orders = deque[BundleOrder](maxlen=_MAX_KEPT_ORDERS)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name not in ("_orders", "_newest_orders")}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._forget_orders()

    @property
    def length(self) -> int:
        """Number of bundles in an epoch without shuffling."""
        return self.length_in(OrderOptions(shuffle=False))

    def length_in(self, options: OrderOptions) -> int:
        """Return the number of bundles in an epoch. The first call is slow: it divides all samples into bundles."""
        return self.order(options).length

    def order(self, options: OrderOptions) -> BundleOrder:
        """Return the order of the bundles in an epoch."""
        for reference in self._orders.valuerefs():
            order = reference()
            if order is not None and order.options == options:
                return order
        number = next(_order_numbers)
        order = self._orders[number] = BundleOrder(self, options, number * _MAX_BUNDLES_IN_EPOCH)
        self._newest_orders.append(order)
        return order

    def bundle(self, number: int) -> Bundle:
        """Return the bundle with this number."""
        return self._orders[number // _MAX_BUNDLES_IN_EPOCH].bundle(number % _MAX_BUNDLES_IN_EPOCH)

    def copy_ahead(self, numbers: Numbers, seen: set[str]) -> None:
        """See `SampleReader.copy_ahead`."""
        self._reader.copy_ahead(self._sample_numbers(numbers), seen)

    def with_fields(self, _: frozenset[str] | None) -> BundleReader:
        """Return this reader unchanged."""
        return self

    def with_on_error(self, on_error: OnError) -> BundleReader:
        """See `SampleReader.with_on_error`."""
        reader = copy(self)
        vars(reader).update(_reader=self._reader.with_on_error(on_error))
        return reader

    def skip_or_raise(self, error: ShardError, number: int, *counts: SkippedSamples, damaged: bool = True) -> None:
        """Count the damaged samples of a skipped bundle, or raise their first error if `on_error="raise"`.

        If `damaged` is false (a stage skipped the bundle), count only the first sample.
        """
        members = self.bundle(number).numbers
        samples = zip(members.tolist(), self._reader.read(members) if damaged else (), strict=False)
        failures = [(member, sample) for member, sample in samples if isinstance(sample, ShardError)]
        for member, failure in failures or [(int(members[0]), error)]:
            self._reader.skip_or_raise(failure, member, *counts, damaged=damaged)

    def read(self, numbers: Numbers, *, on_demand: bool = False) -> Samples:  # noqa: ARG002 - all readers accept it
        """Yield bundles. A block with a damaged sample, or a batch of only damaged samples, becomes an error."""
        members = self._sample_numbers(numbers)
        unique_members, inverse = np.unique(members, return_inverse=True)
        if len(unique_members) == len(members):
            return self._make_bundles(numbers, iter(self._reader.read(members, on_demand=True)))
        samples = [*self._reader.read(unique_members)]
        return self._make_bundles(numbers, (samples[at] for at in inverse.tolist()))

    def with_skip_callback(
        self, bundles: Samples, get_skipped: Callable[[], SkippedSamples]
    ) -> Iterator[Sample | ShardError]:
        """Yield bundles, and count damaged samples. `SizeBatches` counts samples that stages skip (`__on_skip__`)."""

        def on_skip(error: ShardError, number: int, *, damaged: bool = False) -> None:
            self._reader.skip_or_raise(error, number, get_skipped(), damaged=damaged)

        for bundle in bundles:
            if isinstance(bundle, dict) and "__samples__" in bundle:
                bundle["__on_skip__"] = on_skip
                try:
                    for number, error in cast("list[tuple[int, ShardError]]", bundle["__damaged__"]):
                        on_skip(error, number, damaged=True)
                except ShardError as error:
                    yield error
                    continue
            yield bundle

    def _make_bundles(self, numbers: Numbers, samples: Iterator[Sample | ShardError]) -> Iterator[Sample | ShardError]:
        for bundle in map(self.bundle, numbers.tolist()):
            members = [next(samples) for _ in range(len(bundle.numbers))]
            try:
                errors = [sample for sample in members if isinstance(sample, ShardError)]
                is_usable = len(errors) < len(members) if self._makes_batches else not errors
                made = self._make(bundle, members) if is_usable else errors[0]
            except SampleFailed as error:
                made = error
            yield made

    def _sample_numbers(self, numbers: Numbers) -> Numbers:
        empty = np.zeros(0, np.int64)
        return np.concatenate([empty, *(self.bundle(number).numbers for number in numbers.tolist())])


StreamReader = SampleReader | MixedReader | BundleReader
StreamSamples = EpochSamples | BundleReader
StreamOrder = Order | BundleOrder


def each_dataset(reader: AnySampleReader, samples: EpochSamples) -> Iterator[tuple[SampleReader, CatalogSamples]]:
    """Yield the reader and the samples of each dataset."""
    if isinstance(reader, MixedReader):
        for part, dataset_samples in zip(reader.readers, cast("MixedSamples", samples).sources, strict=True):
            yield from each_dataset(part, dataset_samples)
    else:
        yield reader, cast("CatalogSamples", samples)


def sample_sizes(
    reader: AnySampleReader, samples: EpochSamples, shard_sizes: Callable[[SampleReader, int], Numbers], value: str
) -> Numbers:
    """Return the size of each sample, indexed by sample number. Samples that are not in `samples` have size 0.

    `shard_sizes` returns the size of each sample in a shard, or a negative number if a value is missing. If one of the
    samples lacks the value, raise InvalidRequest.
    """
    parts = []
    for dataset_reader, dataset_samples in each_dataset(reader, samples):
        result = np.zeros(dataset_samples.number_limit, np.int64)
        for shard, numbers in dataset_samples.group_by_shard():
            rows = np.asarray(numbers) - dataset_reader.catalog.first_samples[shard]
            result[numbers] = sizes = shard_sizes(dataset_reader, shard)[rows]
            for key in dataset_reader.store.index(shard).keys_of(rows[sizes < 0][:1]):
                remedy = "Choose samples that have it with where(...) or select(...)."
                raise InvalidRequest(f"sample {key}", f"no {value}", remedy=remedy)
        parts.append(result)
    return np.concatenate(parts)


def metadata_sizes(name: str, reader: AnySampleReader, samples: EpochSamples) -> Numbers:
    """Return the values of an integer metadata column, indexed by sample number.

    Raises:
        InvalidRequest: The column does not exist, does not contain integers, or lacks the value of a sample.
    """

    def shard_sizes(dataset_reader: SampleReader, shard: int) -> Numbers:
        schema = metadata_schema(dataset_reader.catalog)
        integer_columns = [column.name for column in schema if pa.types.is_integer(column.type)]
        if name not in integer_columns:
            remedy = (
                f"{call_text('create', probe=True)} adds width and height; "
                f"`reshard` with {option_text('join')} adds other columns."
            )
            expected = f"one of {format_list(integer_columns)}" if integer_columns else "a column of whole numbers"
            raise InvalidRequest("column", f"no column {name} of whole numbers", expected=expected, remedy=remedy)
        column = dataset_reader.store.metadata(shard).column(name)
        return cast("Numbers", column.cast(pa.int64()).fill_null(-1).to_numpy())

    return sample_sizes(reader, samples, shard_sizes, f"{name} in its metadata")


DEFAULT_ASPECT_RATIOS = (1 / 2, 9 / 16, 2 / 3, 3 / 4, 1.0, 4 / 3, 3 / 2, 16 / 9, 2.0)


def nearest_aspect_ratios(aspects: Sequence[float], reader: AnySampleReader, samples: EpochSamples) -> Numbers:
    """For each sample number, return the index of the ratio in `aspects` that is nearest to width / height.

    `aspects` must be ascending.
    """
    if not aspects or aspects[0] <= 0:
        raise InvalidRequest("aspects", repr(aspects), expected="ratios of width to height, above 0")
    width, height = (np.log(np.maximum(1, metadata_sizes(name, reader, samples))) for name in ("width", "height"))
    logs = np.log(aspects)
    return np.searchsorted((logs[1:] + logs[:-1]) / 2, width - height).astype(np.int64)


def make_size_batch(aspects: Sequence[float], bundle: Bundle, samples: Samples) -> Sample:
    """Return a bundle as one dict. The stage `SizeBatches` later collates the samples in `__samples__`."""
    numbered: list[tuple[int, Sample]] = []
    damaged: list[tuple[int, ShardError]] = []
    for number, sample in zip(bundle.numbers.tolist(), samples, strict=True):
        if isinstance(sample, ShardError):
            damaged.append((number, sample))
        else:
            aspect = {"__aspect__": aspects[int(bundle.sizes[0])]} if aspects else {}
            numbered.append((number, {**sample, **aspect}))
    keys = [sample["__key__"] for _, sample in numbered]
    return {"__key__": keys, "__samples__": numbered, "__damaged__": damaged}


class SizeBatches(Map):
    """The stage that `batch(by=...)` adds. It runs the earlier stages on each sample, and collates the results.

    If the earlier stages skip all samples of a batch, this stage skips the batch.
    """

    def __init__(self, stages: Pipeline, lists: ListFields = ()) -> None:
        super().__init__(partial(_run_and_collate, stages, lists))

    def with_on_error(self, on_error: OnError) -> SizeBatches:
        """Return a copy with this `on_error`."""
        stages, lists = cast("partial[object]", self.function).args
        return SizeBatches(stages.with_on_error(on_error), lists)


def _run_and_collate(stages: Pipeline, lists: ListFields, bundle: Sample, rng: np.random.Generator) -> object:
    padding = {"__padding__": bundle["__padding__"]} if "__padding__" in bundle else {}
    seed = int(rng.integers(2**63))
    kept = list[object]()
    skipped = list[tuple[ShardError, int]]()
    for index, (number, sample) in enumerate(cast("list[tuple[int, Sample]]", bundle["__samples__"])):

        def skip(error: ShardError, number: int = number) -> None:
            skipped.append((error, number))

        def rng_of(stage: int, index: int = index) -> np.random.Generator:
            return np.random.default_rng([seed, index, stage])

        kept += stages.run([{**sample, **padding}], skip, rng_of)
    if "__on_skip__" in bundle:  # a batch read as a replacement has no callback
        # if `kept` is empty, the stream counts the first skipped sample
        for error, number in skipped if kept else skipped[1:]:
            cast("Callable[..., None]", bundle["__on_skip__"])(error, number)
    return collate(kept, lists) if kept else None
