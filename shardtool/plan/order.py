"""The order that samples stand in, and where their shards end: numbers in, numbers out.

Numbers look random and are the same on every machine and with every NumPy: for the order of shards, and of epochs.
Shards are contiguous runs of that order, within bounds; or the hash of its key says which shard a sample goes into.

Sources: SplitMix64; Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014. A permutation
of any size that is computed place by place: Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardtool.errors import InvalidRequest
from shardtool.values import Oversize, chunks_of, counted, show_size
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardtool.entries.entries import Names

GAMMA, FIRST_FACTOR, SECOND_FACTOR = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_RANKED = 16  # places up to which random numbers are compared: faster, and each order is as frequent as any other
_ROUNDS = 8


def random_numbers(start: int, count: int) -> NDArray[np.uint64]:
    """Return the first `count` numbers of the generator whose state is `start`, below 2^64."""
    found = np.empty(count, np.uint64)
    for some in chunks_of(count):  # in the cache, and without three copies of a hundred million places
        found[some] = random_at(start, np.arange(some.start, some.stop, dtype=np.uint64))
    return found


def random_at(start: int, places: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return those numbers of the generator whose state is `start` that stand at `places`, counted from 0."""
    state: NDArray[np.uint64] = places + np.uint64(1)
    state *= np.uint64(GAMMA)
    state += np.uint64(start)
    for shift, factor in ((30, FIRST_FACTOR), (27, SECOND_FACTOR)):
        state ^= state >> np.uint64(shift)
        state *= np.uint64(factor)
    state ^= state >> np.uint64(31)
    return state


def shuffled(count: int, seed: int) -> NDArray[np.int64]:
    """Return a uniform random permutation of `count` places: each gets a 64-bit number, and these are sorted."""
    return np.argsort(random_numbers(random_start("shuffle", seed), count), kind="stable")


def random_start(purpose: str, *numbers: int) -> int:
    """Return the state of a generator that no other purpose, and no other numbers, have."""
    text = " ".join([purpose, *map(str, numbers)])
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def permuted(places: NDArray[np.int64], size: int, keys: NDArray[np.uint64] | np.uint64) -> NDArray[np.int64]:
    """Return where a permutation that looks random puts places, each computed by itself.

    A Feistel network over the bits of `size`, walked on from a place beyond `size` until it is within. Of few places,
    the rank of a random number among those of all.

    Args:
        places: int64 [n], each below `size`.
        size: How many places the permutation has: 1 to 2^62.
        keys: uint64 [n] or one: which permutation each place is put by.

    Returns:
        int64 [n].
    """
    if size <= _RANKED:
        return _ranked(places, size, keys)
    found = _network(places.astype(np.uint64), size, keys)
    (beyond,) = np.nonzero(found >= np.uint64(size))
    while len(beyond):
        walked = _network(found[beyond], size, keys if isinstance(keys, np.uint64) else keys[beyond])
        found[beyond] = walked
        beyond = beyond[walked >= np.uint64(size)]
    return found.astype(np.int64)


def _ranked(places: NDArray[np.int64], size: int, keys: NDArray[np.uint64] | np.uint64) -> NDArray[np.int64]:
    """Return the rank of each place's random number among those of all; equal ones are ranked by their place."""
    each = np.arange(size, dtype=np.uint64)
    drawn = random_at(0, each * np.uint64(GAMMA) + np.reshape(keys, (-1, 1)))
    drawn = np.broadcast_to(drawn // np.uint64(_RANKED) * np.uint64(_RANKED) + each, (len(places), size))
    own = drawn[np.arange(len(places)), places]
    found: NDArray[np.int64] = np.count_nonzero(drawn < own[:, None], axis=1)
    return found


def _network(values: NDArray[np.uint64], size: int, keys: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    """Return where a permutation of the next power of two puts values."""
    bits = (size - 1).bit_length()
    widths = bits - bits // 2, bits // 2
    halves = [values >> np.uint64(widths[1]), values & np.uint64((1 << widths[1]) - 1)]
    for number in range(_ROUNDS):
        side = number % 2
        mixed = halves[1 - side] + np.uint64(number << 32)
        mixed *= np.uint64(GAMMA)
        mixed += keys
        mixed ^= mixed >> np.uint64(32)
        mixed *= np.uint64(FIRST_FACTOR)
        mixed >>= np.uint64(64 - widths[side])
        halves[side] = halves[side] ^ mixed
    found: NDArray[np.uint64] = (halves[0] << np.uint64(widths[1])) | halves[1]
    return found


# Where shards end: the bounds that limit them, and the runs of samples that are within.


NO_LIMIT = 2**62


class Bounds(NamedTuple):
    """The limits that were asked for.

    Attributes:
        max_size: Bytes of the finished file; None: no such bound was asked for.
        max_count: Samples in a shard, at most; None: no bound.
        shards: The number of shards; None: as many as the names or the bounds say.
        equal_count: Whether shards hold equally many samples, give or take one.
        multiple_of: The number of shards is a multiple of this.
        oversize: What becomes of a sample that fits in no shard: an error, a shard of its own, or left out.
        by_hash: Whether samples go into shards by the hash of their keys.
        before: The number of shards by hash that are there, which stays while it can.
    """

    max_size: int | None = None
    max_count: int | None = None
    shards: int | None = None
    equal_count: bool = False
    multiple_of: int = 1
    oversize: Oversize = "error"
    by_hash: bool = False
    before: int | None = None


class ShardsAsked(NamedTuple):
    """The number of shards that was asked for, and by what: an option, or the pattern."""

    number: int
    where: str


class Limits(NamedTuple):
    """The limits by which a plan's shards were cut.

    Attributes:
        room: Bytes of records that a shard may hold; `NO_LIMIT` where nothing bounds them.
        planned: What the plan fills of that: less, where it only estimates what samples take.
        max_count: Samples; None: any number.
    """

    room: int = NO_LIMIT
    planned: int = NO_LIMIT
    max_count: int | None = None


def running(sizes: NDArray[np.int64], order: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """Return int64[places + 1]: bytes of the samples before each place.

    Args:
        sizes: Bytes of each sample.
        order: Which of them stands where; None: in their own order.
    """
    total = np.empty((len(sizes) if order is None else len(order)) + 1, np.int64)
    total[0] = 0
    if order is not None:
        np.take(sizes, order, out=total[1:], mode="clip")  # the only mode that makes no copy: all places are there
    np.cumsum(sizes if order is None else total[1:], out=total[1:])
    return total


def cut(total: NDArray[np.int64], asked: ShardsAsked | None, limits: Limits, bounds: Bounds) -> NDArray[np.int64]:
    """Return the ends of as many shards as were asked for; of as few as the bounds allow, where none were.

    Raises:
        InvalidRequest: There are fewer samples, or no such number of shards can hold them.
    """
    runs = Runs(total, limits)
    if asked is None:
        return _fewest(runs, bounds)
    count, samples = asked.number, runs.samples
    if count > samples:
        found, remedy = f"{count:,} shards for {counted(samples, 'sample')}", f"At most {option('shards', samples)}."
        raise InvalidRequest(asked.where, found, expected="at least one sample a shard", remedy=remedy)
    if bounds.equal_count:
        ends = np.arange(1, count + 1, dtype=np.int64) * samples // count
        if runs.hold(ends):
            return ends
    elif len(runs.fill()) <= count:
        return runs.divide(count)
    found = f"{counted(count, 'shard')} cannot hold {counted(samples, 'sample')} within the bounds"
    holding = option("shards", len(_fewest(runs, bounds)))
    remedy = f"Choose {holding}, or raise {option('max_size')} or {option('max_count')}."
    raise InvalidRequest(asked.where, found, remedy=remedy)


def _fewest(runs: Runs, bounds: Bounds) -> NDArray[np.int64]:
    """Return the ends of as few shards as the bounds allow."""
    ends = runs.fill()
    multiple, samples = bounds.multiple_of, runs.samples
    count = -(-len(ends) // multiple) * multiple
    if bounds.equal_count:
        while count <= samples:
            ends = np.arange(1, count + 1, dtype=np.int64) * samples // count
            if runs.hold(ends):
                return ends
            most = samples // multiple * multiple
            step = max(1, count // (64 * multiple)) * multiple  # near enough to the least, in a bounded number of tries
            count = count + step if count == most else min(count + step, most)
    elif count <= samples:
        return ends if count == len(ends) and multiple == 1 else runs.divide(count)
    found = f"{samples:,} samples cannot fill a multiple of {multiple:,} shards within the bounds"
    remedy = f"Choose a smaller multiple, or raise {option('max_size')} or {option('max_count')}."
    raise InvalidRequest(option("shards_multiple_of"), found, remedy=remedy)


class Runs:
    """The runs of samples that can be a shard: within bytes and count, or one sample alone.

    Args:
        total: int64[samples + 1], bytes of the samples before each place.
        limits: What a shard may hold.
    """

    def __init__(self, total: NDArray[np.int64], limits: Limits) -> None:
        self.total, self.room, self.samples = total, limits.planned, len(total) - 1
        self.max_count = self.samples if limits.max_count is None else limits.max_count

    def reach(self, first: int) -> int:
        """Return the last place at which a shard that starts at `first` can end."""
        end = int(np.searchsorted(self.total, self.total[first] + self.room, "right")) - 1
        return max(first + 1, min(end, first + self.max_count))

    def back(self, end: int) -> int:
        """Return the first place at which a shard that ends at `end` can start."""
        first = int(np.searchsorted(self.total, self.total[end] - self.room, "left"))
        return max(0, min(end - 1, max(first, end - self.max_count)))

    def hold(self, ends: NDArray[np.int64]) -> bool:
        """Tell whether each of these shards is within the limits."""
        starts = np.concatenate(([0], ends[:-1]))
        counts = ends - starts
        fits = (self.total[ends] - self.total[starts] <= self.room) & (counts <= self.max_count)
        return bool(np.all(fits | (counts == 1)))

    def fill(self) -> NDArray[np.int64]:
        """Fill each shard as far as it goes: the least number of them."""
        ends, at = [], 0
        while at < self.samples:
            at = self.reach(at)
            ends.append(at)
        return np.array(ends, np.int64)

    def divide(self, count: int) -> NDArray[np.int64]:
        """Return the ends of `count` shards, cut as near as the limits allow to equal shares of the bytes.

        Args:
            count: At least as many as `fill` needs, and at most one per sample.
        """
        least = [0] * (count + 1)  # least[k]: where shard k must start at the earliest, for the rest to fit
        least[count] = self.samples
        for shard in range(count - 1, 0, -1):
            least[shard] = max(self.back(least[shard + 1]), shard)
        ends, at = [], 0
        share = [int(self.total[-1]) * number // count for number in range(1, count + 1)]
        after = np.searchsorted(self.total, share, "left").tolist()
        for shard in range(count):
            cut = after[shard]
            if cut > 0 and share[shard] - self.total[cut - 1] < self.total[cut] - share[shard]:
                cut -= 1
            lowest = max(least[shard + 1], at + 1)
            highest = min(self.reach(at), self.samples - (count - 1 - shard))
            at = min(max(cut, lowest), highest)
            ends.append(at)
        return np.array(ends, np.int64)


# Which samples go into which shard by the hash of their keys: one sample more or less changes one shard.
#
# Source: docs/format.md, "Shards by hash".


_HEADROOM = 0.8  # of the bounds is used where the number of shards is free, so that it stays while a dataset grows
_STEPS = 16  # numbers of shards are tried in steps of this part of them
_FEW = 100  # shards: up to so many, all are tried


class HashedSamples:
    """The samples of a plan, each of which goes into the shard that the hash of its key says.

    Args:
        keys: Their keys.
        sizes: int64[samples]: bytes of their records.
        limits: What a shard may hold.
        bounds: What was asked for.
    """

    def __init__(self, keys: Names, sizes: NDArray[np.int64], limits: Limits, bounds: Bounds) -> None:
        self._keys, self._sizes, self._limits, self._bounds = keys, sizes, limits, bounds
        self._hashes = keys.hashes(b"shardtool place")
        self._max_count = NO_LIMIT if limits.max_count is None else limits.max_count

    def divide(
        self, asked: ShardsAsked | None, seed: int | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[str, ...]]:
        """Return the samples in the order of their shards, the place after each shard's last sample, and notes.

        Within a shard they stand in the order of the bytes of their keys, or of hashes that the seed decides.

        Raises:
            InvalidRequest: So many shards, or any number where none is asked for, cannot hold them.
        """
        count, notes = self._choose() if asked is None else self._check(asked)
        if seed is None:
            order = self._keys.sorted_order()
        else:
            order = np.argsort(self._keys.hashes(b"shardtool order", seed), kind="stable")
        shard, counts, _ = self._loads(count)
        return order[np.argsort(shard[order], kind="stable")], np.cumsum(counts), notes

    def _check(self, asked: ShardsAsked) -> tuple[int, tuple[str, ...]]:
        """Return the number of shards that is asked for, unless one of them would be over the bounds, or empty."""
        samples, count, found, expected = counted(len(self._keys), "sample"), asked.number, "", "a sample in each"
        _, counts, sizes = self._loads(min(count, len(self._keys)))
        one = f"in one of {counted(count, 'shard')} by hash"
        if count > len(self._keys):
            found = f"{count:,} shards for {samples}"
        elif empty := int(np.count_nonzero(counts == 0)):
            found = f"{empty:,} of {count:,} shards by hash without one of {samples}"
        elif counts.max() > self._max_count:
            found, expected = f"{counted(int(counts.max()), 'sample')} {one}", f"at most {self._max_count:,}"
        elif sizes.max() > self._limits.planned:
            found, expected = f"{show_size(int(sizes.max()))} {one}", f"at most {show_size(self._bounds.max_size or 0)}"
        if found:
            fewer = expected == "a sample in each"
            other = self._first(self._downward(count - 1) if fewer else self._upward(count + 1, 1), 1)
            raise InvalidRequest(asked.where, found, expected=expected, remedy=_remedy(other))
        return count, ()

    def _choose(self) -> tuple[int, tuple[str, ...]]:
        """Return how many shards hold the samples, and a note if it cannot be as many as before."""
        before = self._bounds.before
        if before is not None and self._holds(before, 1):
            return before, ()
        count = self._first(self._upward(1, _HEADROOM), _HEADROOM) or self._first(self._upward(1, 1), 1)
        if not count:
            found = f"{counted(len(self._keys), 'sample')}: any number of shards leaves one empty, or over the bounds"
            raise InvalidRequest(option("place", "hash"), found, remedy=_remedy())
        if before is None:
            return count, ()
        gone = f"{counted(before, 'shard')} by hash cannot hold the samples any more"
        return count, (f"{gone}: now {count:,}, and all are written again",)

    def _loads(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Return the shard of each sample, how many samples each shard gets, and their bytes."""
        shard: NDArray[np.int64] = (self._hashes % np.uint64(count)).astype(np.int64)
        counts = np.bincount(shard, minlength=count).astype(np.int64)
        return shard, counts, np.asarray(np.bincount(shard, weights=self._sizes, minlength=count), np.float64)

    def _holds(self, count: int, share: float) -> bool:
        """Tell whether so many shards all get a sample, and none more than a share of the bounds."""
        if count > len(self._keys) or count % self._bounds.multiple_of:
            return False
        _, counts, sizes = self._loads(count)
        room, most = self._limits.planned * share, self._max_count * share
        return bool(counts.min() > 0 and counts.max() <= most and sizes.max() <= room)

    def _first(self, numbers: Iterator[int], share: float) -> int:
        """Return the first number of shards that hold the samples; 0 where none does."""
        return next((count for count in numbers if self._holds(count, share)), 0)

    def _upward(self, start: int, share: float) -> Iterator[int]:
        """Yield numbers of shards, from the least that can hold the samples until most shards would be empty."""
        samples, multiple = len(self._keys), self._bounds.multiple_of
        of_size = int(self._sizes.sum() / (self._limits.planned * share))
        start = max(start, of_size, int(samples / (self._max_count * share)), 1)
        count = -(-start // multiple) * multiple
        while count <= (samples if samples < _FEW else samples // 2):
            yield count
            count += _step(count, multiple)

    def _downward(self, start: int) -> Iterator[int]:
        multiple = self._bounds.multiple_of
        count = min(start, len(self._keys)) // multiple * multiple
        while count > 0:
            yield count
            count -= _step(count, multiple)


def _step(count: int, multiple: int) -> int:
    """Return how far the next number of shards to try is from one."""
    return multiple if count <= _FEW else max(1, count // _STEPS // multiple) * multiple


def _remedy(count: int = 0) -> str:
    """Return what to do about a number of shards: `count` is one that would do, if there is any."""
    order = option("place", "order")
    if count:
        return f"Choose {option('shards', count)}, or {order}."
    return f"Choose {order}, or larger shards: {option('max_size')}, {option('max_count')}."
