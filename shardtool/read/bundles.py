"""Samples in bundles: blocks of tokens that documents are packed into, and batches of samples of about one size.

How long samples are, sidecars say, before any is read. So which of them make a bundle is arithmetic, as all of an order
is: that of the samples is cut into windows of a fixed number of positions, and a rule divides each window. A position
of the bundled order is a bundle, so that ranks, workers and states count bundles, and are as exact as with samples.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from hashlib import blake2b
from itertools import accumulate, count
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import numpy as np
import pyarrow as pa

from shardtool.errors import InvalidRequest, SampleFailed, ShardError, listing
from shardtool.plan.order import permuted, random_at, random_start
from shardtool.read.catalog import metadata_schema
from shardtool.read.chain import Lists, Map, Stages, collate, read_npy
from shardtool.read.fetch import Fetcher, MixedReader, Reader, SkippedSamples
from shardtool.read.order import MixedSamples, Order, OrderOptions, SampleView, Views
from shardtool.wording import call, option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import DTypeLike, NDArray

    from shardtool.read.catalog import Numbers
    from shardtool.read.fetch import Sample, Samples

    Pieces = tuple[Numbers, Numbers, Numbers, Numbers]

By = Literal["first-fit", "concat"]
ASPECTS = (1 / 2, 9 / 16, 2 / 3, 3 / 4, 1.0, 4 / 3, 3 / 2, 16 / 9, 2.0)


# How a window is divided: sizes of its samples in, pieces of these in bundles out, bundle after bundle.
#
# Of each piece, int64: the bundle that it is in, from 0 on, the sample that it is of, where in that it starts, and how
# long it is.


def concatenated(tokens: int, lengths: Numbers) -> Pieces:
    """Return blocks that are cut from documents one behind the other: a document may go on in the next block."""
    ends = np.cumsum(lengths)
    firsts, total = ends - lengths, int(ends[-1])
    starts = np.union1d(firsts[lengths > 0], np.arange(0, total, tokens))
    places = np.searchsorted(ends, starts, side="right")
    return starts // tokens, places, starts - firsts[places], np.diff(starts, append=total)


def fitted(tokens: int, lengths: Numbers) -> Pieces:
    """Return blocks of whole documents: the longest first, each into a block with the least room that holds it.

    A document that is longer than a block is cut into pieces of one, and what is left. Documents of one length are
    placed together, so that it takes time by the lengths there are rather than by documents.

    Source: best-fit decreasing; Johnson, "Near-optimal bin packing algorithms", MIT 1973.
    """
    pieces = -(-lengths // tokens)
    places = np.repeat(np.arange(len(lengths)), pieces)
    starts = (np.arange(len(places)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * tokens
    counts = np.minimum(tokens, lengths[places] - starts)
    blocks: list[int] = []  # of each piece, from the longest
    room: dict[int, list[int]] = {}  # the blocks that have so much room left
    rooms: list[int] = []
    used = 0
    for length, left in zip(*(found[::-1].tolist() for found in np.unique(counts, return_counts=True)), strict=True):
        end = len(blocks) + left
        while left := end - len(blocks):
            at = bisect_left(rooms, length)
            if at < len(rooms):
                free = rooms[at]
                taken = room[free][-left:]
                del room[free][-left:]
                if not room[free]:
                    del room[free], rooms[at]
            else:
                free, first = tokens, used
                used += -(-left // (tokens // length))
                taken = [*range(first, used)]
            blocks += taken
            if free > length:
                if free - length not in room:
                    insort(rooms, free - length)
                room.setdefault(free - length, []).extend(taken)
    bundles = np.empty(len(counts), np.int64)
    bundles[np.argsort(-counts, kind="stable")] = blocks
    order = np.argsort(bundles, kind="stable")  # in a block, documents stand in the order of the window
    return bundles[order], places[order], starts[order], counts[order]


def of_like_length(tokens: int, lengths: Numbers) -> Pieces:
    """Return batches of which each takes, padded to its longest sample, no more tokens than are given."""
    order = np.argsort(-lengths, kind="stable")
    descending, ends = lengths[order], [0]
    while ends[-1] < len(order):
        ends.append(min(len(order), ends[-1] + max(1, tokens // max(1, int(descending[ends[-1]])))))
    return np.repeat(np.arange(len(ends) - 1), np.diff(ends)), order, np.zeros_like(order), descending


def of_one_kind(size: int, kinds: Numbers) -> Pieces:
    """Return batches of so many samples of one kind; the last of each kind may be smaller."""
    order = np.argsort(kinds, kind="stable")
    _, firsts, counts = np.unique(kinds[order], return_index=True, return_counts=True)
    begins = (np.arange(len(order)) - np.repeat(firsts, counts)) % size == 0
    return np.cumsum(begins) - 1, order, np.zeros_like(order), np.ones_like(order)


# The order of bundles.


_LEAST = 64  # bundles of a window, about: fewer are packed worse, and batches of them are less shuffled
_OF_KINDS = 2**17  # samples of a window where the last batch of each kind is smaller
_KEPT = 4  # windows: as many as are read side by side
_PLACES = 2**40  # more than bundles in an epoch: a number of a bundle says which order, and which position there
_orders = count()


class Bundle(NamedTuple):
    """The pieces of samples that a bundle is of: int64 [pieces] each.

    Attributes:
        numbers: Their samples.
        sizes: How long these are as a whole.
        starts: Where in its sample each starts.
        counts: How long it is.
    """

    numbers: Numbers
    sizes: Numbers
    starts: Numbers
    counts: Numbers


class BundledOrder:
    """The order of the bundles of an epoch; its positions are bundles.

    Samples are shuffled in windows that are as many times larger than for bundles of one, as bundles have samples.

    Args:
        source: What is bundled.
        options: The order.
        first: The number of the first bundle in this process.
    """

    def __init__(self, source: Bundles, options: OrderOptions, first: int) -> None:
        self._source, self.options, self._first = source, options, first
        self._samples = source.samples.order(replace(options, window=options.window * source.each))
        self._step = _OF_KINDS if source.in_turn else source.each * max(_LEAST, options.round)
        self._window = lru_cache(_KEPT)(self._divided)

    def __reduce__(self) -> tuple[Callable[[OrderOptions], BundledOrder], tuple[OrderOptions]]:
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
            key = random_at(random_start("bundles", options.seed, options.epoch), np.array([window], np.uint64))[0]
            turns = permuted(np.arange(len(cuts) - 1), len(cuts) - 1, key)
        else:
            turns = np.argsort(places[cuts[1:] - 1], kind="stable")
        return Bundle(numbers[places], sizes[places], starts, counts), turns.tolist(), cuts.tolist()


class Bundles:
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

    span = _PLACES * _PLACES // 2

    def __init__(
        self, reader: Reader, views: Views, sizes: Numbers, rule: Callable[[int, Numbers], Pieces], limit: int,
        make: Callable[[Bundle, list[Sample]], Sample], *facts: object,
    ) -> None:  # fmt: skip
        self.in_turn = rule is of_one_kind
        if not self.in_turn and not sizes.any():
            raise InvalidRequest("the dataset", "no tokens in any sample")
        self._reader, self.samples, self.sizes = reader, views, sizes
        self.divide, self._make = partial(rule, limit), make
        mean = 1 if self.in_turn else sizes.sum() / sum(view.length for _, view in _each_dataset(reader, views))
        self.each = 1 << max(0, round(math.log2(limit / mean)))
        digest = blake2b(repr((views.fingerprint, rule.__name__, limit, facts)).encode(), digest_size=16)
        digest.update(np.ascontiguousarray(sizes, "<i8").data)
        self.fingerprint = digest.hexdigest()
        self.mean_size, self.copies, self.reads_at_once = (
            reader.mean_size * self.each,
            reader.copies,
            reader.reads_at_once,
        )
        self._orders: dict[int, BundledOrder] = {}

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_orders": {}}  # they are made again where they are needed

    @property
    def length(self) -> int:
        """Bundles in an epoch that is not shuffled."""
        return self.length_in(OrderOptions(shuffle=False))

    def length_in(self, options: OrderOptions) -> int:
        """Return how many bundles an epoch has: all of it is divided for that, once in each process."""
        return self.order(options).length

    def order(self, options: OrderOptions) -> BundledOrder:
        """Return the order of an epoch."""
        for known in [*self._orders.values()]:
            if known.options == options:
                return known
        place = next(_orders)
        return self._orders.setdefault(place, BundledOrder(self, options, place * _PLACES))

    def bundle(self, number: int) -> Bundle:
        """Return a bundle by its number in this process."""
        return self._orders[number // _PLACES].bundle(number % _PLACES)

    def expect(self, numbers: Numbers, seen: set[str]) -> None:
        """Have the shards of bundles that are read soon copied into the cache, but for those of `seen`."""
        self._reader.expect(self._members(numbers), seen)

    def reading_only(self, _: frozenset[str] | None) -> Bundles:
        """Return this reader: which fields are read is said where samples are bundled."""
        return self

    def leave_out(self, error: ShardError, number: int, *counts: SkippedSamples, damaged: bool = True) -> None:
        """Count a bundle that is left out, in the dataset and in `counts`, or raise its error, as the dataset does."""
        self._reader.leave_out(error, self._culprit(number), *counts, damaged=damaged)

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

    def telling(self, bundles: Samples, skipped: Callable[[], SkippedSamples]) -> Iterator[Sample | ShardError]:
        """Yield bundles that, where they are batches, have what counts a sample that is left out of one."""

        def tell(error: ShardError, number: int) -> None:
            self._reader.leave_out(error, number, skipped(), damaged=False)

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


AnyReader = Fetcher | MixedReader | Bundles
AnySamples = Views | Bundles
AnyOrder = Order | BundledOrder


# How long samples are, before any is read.


class TokenField(NamedTuple):
    """A field that holds values, one after the other.

    Attributes:
        name: Its name.
        form: `.npy`, plain bytes, or other values, whose number no size says.
        dtype: Of a value.
        head: Of `.npy`: the bytes up to the shape, which are the same in all samples.
        header: Of `.npy`: bytes before the values.
        row: Bytes from a value of the first axis to the next.
    """

    name: str
    form: Literal["npy", "bytes", "values"]
    dtype: np.dtype[np.generic]
    head: bytes = b""
    header: int = 0
    row: int = 1

    @classmethod
    def of(cls, reader: Fetcher, number: int, name: str, dtype: DTypeLike | None) -> TokenField:
        """Return what a sample says of the field of all.

        Raises:
            InvalidRequest: It has no such field, or `dtype` is no type of numbers.
            ShardError: It is damaged.
        """
        sample = reader.selecting(None).one(number)
        if isinstance(sample, ShardError):
            raise sample
        if name not in sample:
            there = listing([one for one in sample if one[:2] != "__"])
            raise InvalidRequest("field", f"no {name} in the sample {sample['__key__']}", expected=f"one of {there}")
        value = sample[name]
        if not isinstance(value, bytes):
            return cls(name, "values", np.asarray(value).dtype)
        if dtype is None and name.rpartition(".")[2].lower() == "npy":
            try:
                array = read_npy(value)
            except ValueError as error:
                raise SampleFailed(f"sample {sample['__key__']}, field {name}", f"no array: {error}") from error
            row = max(1, array.itemsize * math.prod(array.shape[1:]))
            return cls(name, "npy", array.dtype, value[: value.find(b"(") + 1], len(value) - array.nbytes, row)
        try:
            kind = np.dtype(dtype or np.uint8)
        except TypeError:
            kind = np.dtype(object)
        if kind.kind not in "iuf":
            raise InvalidRequest("dtype", repr(dtype), expected="a type of numbers, such as 'uint16'")
        return cls(name, "bytes", kind, row=kind.itemsize)

    def values(self, sample: Sample, size: int) -> NDArray[np.generic]:
        """Return the values of a sample: as many as were expected.

        Raises:
            SampleFailed: They are others.
        """
        value, found = sample.get(self.name), None
        head = b"%b%d,)" % (self.head, size) if self.head else b""
        if not isinstance(value, bytes):
            found = np.asarray(value).reshape(-1)
        elif value.startswith(head) and not (len(value) - self.header) % self.dtype.itemsize:
            found = np.frombuffer(value, self.dtype, offset=self.header)
        if found is None or len(found) != size or not np.can_cast(found.dtype, self.dtype, "same_kind"):
            what = "of another number, type or shape" if found is None else f"{len(found):,} of {found.dtype}"
            where = f"sample {sample['__key__']}, field {self.name}"
            raise SampleFailed(where, what, expected=f"{size:,} of {self.dtype}, as its size or its column says")
        return found


def _each_dataset(reader: Reader, views: Views) -> Iterator[tuple[Fetcher, SampleView]]:
    """Yield the datasets of a mix, or the only one."""
    if isinstance(reader, MixedReader):
        for one, view in zip(reader.readers, cast("MixedSamples", views).sources, strict=True):
            yield from _each_dataset(one, view)
    else:
        yield reader, cast("SampleView", views)


def _sizes(reader: Reader, views: Views, of_shard: Callable[[Fetcher, int], Numbers], what: str) -> Numbers:
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
    for fetcher, view in _each_dataset(reader, views):
        found = np.zeros(view.span, np.int64)
        for shard, chosen in view.by_shard():
            rows = np.asarray(chosen) - fetcher.catalog.firsts[shard]
            found[chosen] = sizes = of_shard(fetcher, shard)[rows]
            for key in fetcher.store.index(shard).keys_of(rows[sizes < 0][:1]):
                remedy = "Choose those that have it with where(...) or take(...)."
                raise InvalidRequest(f"sample {key}", f"no {what}", remedy=remedy)
        parts.append(found)
    return np.concatenate(parts)


def column_of(name: str, reader: Reader, views: Views) -> Numbers:
    """Return a column of metadata, at the numbers of the samples.

    Raises:
        InvalidRequest: There is no such column of whole numbers from 0 on, or not for a sample.
    """

    def of_shard(fetcher: Fetcher, shard: int) -> Numbers:
        numbers = [one.name for one in metadata_schema(fetcher.catalog) if pa.types.is_integer(one.type)]
        if name not in numbers:
            remedy = f"{call('create', probe=True)} makes width and height, {option('join')} of `reshard` others."
            expected = f"one of {listing(numbers)}" if numbers else "a column of whole numbers"
            raise InvalidRequest("column", f"no {name} of whole numbers", expected=expected, remedy=remedy)
        column = fetcher.store.metadata(shard).column(name)
        return cast("Numbers", column.cast(pa.int64()).fill_null(-1).to_numpy())

    return _sizes(reader, views, of_shard, f"{name} in its metadata")


def aspects_of(aspects: Sequence[float], reader: Reader, views: Views) -> Numbers:
    """Return which aspect is the nearest of each image, at the numbers of the samples.

    Args:
        aspects: Widths per height, ascending.
        reader: Of the samples.
        views: Which.

    Raises:
        InvalidRequest: No column has widths or heights, or aspects are none.
    """
    if not aspects or aspects[0] <= 0:
        raise InvalidRequest("aspects", repr(aspects), expected="widths per height, above 0")
    width, height = (np.log(np.maximum(1, column_of(name, reader, views))) for name in ("width", "height"))
    logs = np.log(aspects)
    return np.searchsorted((logs[1:] + logs[:-1]) / 2, width - height).astype(np.int64)


def lengths_of(
    name: str | None, dtype: DTypeLike | None, column: str | None, reader: Reader, views: Views
) -> tuple[TokenField, Numbers]:
    """Return a field of tokens, and how many of them each sample has.

    Args:
        name: Of the field; None: the only one there is.
        dtype: Of tokens that are stored as plain bytes.
        column: The metadata that says how many there are; None: the size of the field says it.
        reader: Of the samples.
        views: Which.

    Raises:
        InvalidRequest: It is not known how many there are.
    """
    fields: dict[Fetcher, TokenField] = {}
    for fetcher, view in _each_dataset(reader, views):
        shard, chosen = next(view.by_shard())
        names = fetcher.store.index(shard).names
        if name is None and len(names) > 1:
            raise InvalidRequest("field", "not given", expected=f"the field of tokens, one of {listing([*names])}")
        fields[fetcher] = source = TokenField.of(fetcher, int(chosen[0]), name or names[0], dtype)
        if source.form == "values" and column is None:
            what = "its size does not say how many values there are"
            raise InvalidRequest(f"field {source.name}", what, remedy="Give a column that does: length='...'.")
    if len(kinds := {(one.name, one.form, one.dtype) for one in fields.values()}) > 1:
        raise InvalidRequest("field", f"of {listing([*map(str, kinds)])}", expected="one type of tokens")

    def of_shard(fetcher: Fetcher, shard: int) -> Numbers:
        index, layout = fetcher.store.index(shard), fields[fetcher]
        found = np.full(len(index), -1, np.int64)
        if layout.name in index.names:
            at = np.flatnonzero(index.codes == index.names.index(layout.name))
            rows = np.searchsorted(index.firsts, at, side="right") - 1
            found[rows] = (index.lengths[at].astype(np.int64) - layout.header) // layout.row
        return found

    if column is not None:
        return source, column_of(column, reader, views)
    return source, _sizes(reader, views, of_shard, f"field {source.name}")


# What a bundle is: a block of tokens, or samples that become a batch.


@dataclass(frozen=True)
class Block:
    """Makes a block of documents.

    Attributes:
        tokens: How many it has.
        source: The field that they come from.
        pad: What stands behind the last document.
    """

    tokens: int
    source: TokenField
    pad: int

    def __call__(self, bundle: Bundle, samples: list[Sample]) -> Sample:
        """Return a block.

        Raises:
            SampleFailed: A document is not as long as was said.
        """
        cuts = zip(samples, bundle.sizes.tolist(), bundle.starts.tolist(), bundle.counts.tolist(), strict=True)
        parts = [self.source.values(one, size)[first : first + some] for one, size, first, some in cuts]
        counts = np.append(bundle.counts, self.tokens - bundle.counts.sum())
        firsts = np.repeat(np.cumsum(counts) - counts, counts)
        tokens = np.full(self.tokens, self.pad, self.source.dtype.newbyteorder("="))
        np.concatenate(parts, out=tokens[: self.tokens - counts[-1]], casting="same_kind")
        return {
            "__key__": [sample["__key__"] for sample in samples],
            "tokens": tokens,
            "positions": (np.arange(self.tokens) - firsts).astype(np.int32),
            "segments": np.repeat(np.append(np.arange(len(parts)) + 1, 0), counts).astype(np.int32),
        }


def together(aspects: Sequence[float], bundle: Bundle, samples: list[Sample]) -> Sample:
    """Return samples as what `Batches` makes a batch of; where they are of one aspect, they say which."""
    if aspects:
        samples = [{**sample, "__aspect__": aspects[int(bundle.sizes[0])]} for sample in samples]
    numbered = [*zip(bundle.numbers.tolist(), samples, strict=True)]
    return {"__key__": [sample["__key__"] for sample in samples], "__samples__": numbered}


class Batches(Map):
    """Makes a batch of the samples that a stream gives together, each of which goes through stages of its own before.

    A batch goes without samples that these leave out; where none is left, another batch takes its place.
    """

    def __init__(self, stages: Stages, lists: Lists = ()) -> None:
        super().__init__(partial(_batch, stages, lists))


def _batch(stages: Stages, lists: Lists, bundle: Sample, rng: np.random.Generator) -> object:
    padding = {name: bundle[name] for name in ("__padding__",) if name in bundle}
    start, kept, left_out = int(rng.integers(2**63)), list[object](), list[tuple[ShardError, int]]()
    for at, (number, sample) in enumerate(cast("list[tuple[int, Sample]]", bundle["__samples__"])):

        def skip(error: ShardError, number: int = number) -> None:
            left_out.append((error, number))

        kept += stages.run([{**sample, **padding}], skip, partial(_rng_within, start, at))
    if "__tell__" in bundle:  # a batch that takes the place of another has counted there
        for each in left_out[not kept :]:  # where nothing is left, the place counts one
            cast("Callable[..., None]", bundle["__tell__"])(*each)
    return collate(kept, lists) if kept else None


def _rng_within(start: int, sample: int, stage: int) -> np.random.Generator:
    """Return the generator that a stage draws from for a sample of a batch."""
    return np.random.default_rng([start, sample, stage])
