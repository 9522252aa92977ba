"""Which positions of an epoch one reader takes: ranks and loader workers divide them, and change nothing else."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, cast

import numpy as np

from shardtool.errors import InvalidRequest
from shardtool.plan.shuffle import permuted, random_at, random_start
from shardtool.read.order.orders import OrderOptions
from shardtool.request.choices import check_choice, check_least

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from shardtool.read.order.orders import Order, OrderedSamples


Ends = Literal["drop", "pad", "uneven"]
MOST_OTHERS = 10_000
_NEAR = 64


@dataclass(frozen=True)
class Share:
    """The share of one reader in an epoch, or in what is left of it.

    Of the positions from `origin` on, rank r of W takes the r-th, and each W-th from there. It takes them in batches:
    worker w of N takes those batches whose number n, counted from `origin`, has n % N == w. So the n-th batches of
    all ranks together hold the same positions for any number of ranks and workers, as long as they hold as many.

    Attributes:
        rank: The rank.
        world_size: How many ranks there are.
        ends: What becomes of positions that are no multiple of the ranks: they are dropped (`drop`), filled up with
            the first ones of the epoch (`pad`), or given to the first ranks (`uneven`).
        worker: The loader worker.
        workers: How many there are.
        batch_size: Samples of a rank's batch: what a worker takes at a time.
        origin: The position where these ranks began to read: 0, or where a state was taken.
    """

    rank: int = 0
    world_size: int = 1
    ends: Ends = "drop"
    worker: int = 0
    workers: int = 1
    batch_size: int = 1
    origin: int = 0

    def __post_init__(self) -> None:
        _check_part("rank", self.rank, "world_size", self.world_size)
        _check_part("worker", self.worker, "workers", self.workers)
        check_least("batch_size", self.batch_size)
        check_least("origin", self.origin, 0)
        check_choice("ends", self.ends, Ends)

    def end(self, length: int) -> int:
        """Return the position before which all ranks stop in an epoch of so many samples; `pad`: maybe past it."""
        left = max(0, length - self.origin)
        if self.ends == "uneven":
            return self.origin + left
        whole, more = divmod(left, self.world_size)
        return self.origin + (whole + (self.ends == "pad" and more > 0)) * self.world_size

    def count(self, length: int) -> int:
        """Return how many samples the rank takes from `origin` to the end of an epoch of so many."""
        return -(-(self.end(length) - self.origin - self.rank) // self.world_size)

    def positions(self, start: int, stop: int, length: int) -> NDArray[np.int64]:
        """Return the positions from `start` to `stop` of the epoch that are this reader's, in order.

        Args:
            start: Where to begin: at `origin` or later.
            stop: Where to end.
            length: Samples in the epoch. With `pad`, positions may be past it: they stand for those of its start.

        Returns:
            int64 [n].
        """
        shift = self.origin + self.rank
        first = -(-(start - shift) // self.world_size)
        last = -(-(min(stop, self.end(length)) - shift) // self.world_size)
        local = np.arange(max(0, first), max(0, last), dtype=np.int64)
        if self.workers > 1:
            local = local[(local // self.batch_size) % self.workers == self.worker]
        return local * self.world_size + shift

    def after(self, position: int) -> int:
        """Return where all ranks are when this one has taken a position: past as many as there are ranks."""
        return position - self.rank + self.world_size


def others(order: Order, options: OrderOptions, position: int) -> Iterator[int]:
    """Yield positions whose samples stand in, in turn, for that of a position which gives nothing.

    They depend on the order and the position alone, as all samples do: not on ranks, workers, or where a run began. The
    first are of its round, which is read about now; then any of the epoch, ten thousand at most.

    Args:
        order: The order of the epoch.
        options: What it depends on.
        position: Which one; with `pad`, maybe past the end.
    """
    key = random_at(random_start("others", options.seed, options.epoch), np.array([position], np.uint64))[0]
    first = position % order.length // order.round * order.round
    near = min(order.round, order.length - first)
    for start, count, most in ((first, near, _NEAR), (0, order.length, MOST_OTHERS)):
        yield from (start + permuted(np.arange(min(count, most)), count, key)).tolist()


def _check_part(name: str, value: object, total_name: str, total: object) -> None:
    check_least(total_name, total)
    if type(value) is not int or not 0 <= value < cast("int", total):
        raise InvalidRequest(name, f"{value!r} of {total}", expected=f"0 to {cast('int', total) - 1}")


def default_share(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and world size: as given, else those of the environment, where both are set, else 0 of 1.

    Raises:
        InvalidRequest: Only one is given, or the environment has no numbers.
    """
    if rank is not None and world_size is not None:
        return rank, world_size
    if rank is not None or world_size is not None:
        given = "rank" if rank is not None else "world_size"
        raise InvalidRequest(given, "given alone", expected="rank and world_size together")
    texts = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if None in texts:
        return 0, 1
    try:
        return int(texts[0] or ""), int(texts[1] or "")
    except ValueError:
        raise InvalidRequest("RANK, WORLD_SIZE", f"{texts[0]!r}, {texts[1]!r}", expected="two numbers") from None


# Where a stream is: a few numbers that go into a checkpoint, and come back in any number of ranks and workers.


_VERSION = 1  # of the keys below, and of the orders that they stand for
_NUMBERS = ("seed", "epoch", "parts", "window", "position")
_KEYS = ("version", "fingerprint", "shuffle", *_NUMBERS)
_REMEDY = "Give what `state_dict` returned, as it was."


@dataclass(frozen=True)
class StreamState:
    """Where a stream is.

    It holds the whole order, so that a stream goes on in it whatever seed, shuffle, parts or buffer it was made with.

    Attributes:
        fingerprint: Of the samples that are streamed.
        options: The order of the epoch.
        position: How many samples of the epoch all ranks together have taken: less than it has.
    """

    fingerprint: str
    options: OrderOptions
    position: int

    def to_json(self) -> dict[str, object]:
        """Return the state as JSON can hold it."""
        numbers = {name: getattr(self.options, name) for name in _NUMBERS[:-1]}
        return {
            "version": _VERSION,
            "fingerprint": self.fingerprint,
            "shuffle": self.options.shuffle,
            **numbers,
            "position": self.position,
        }

    @classmethod
    def at(cls, source: OrderedSamples, options: OrderOptions, position: int, end: int) -> StreamState:
        """Return the state at a position of an epoch; at its end, that of the start of the next one."""
        if position < end:
            return cls(source.fingerprint, options, position)
        return cls(source.fingerprint, replace(options, epoch=options.epoch + 1), 0)

    @classmethod
    def of(cls, given: object, source: OrderedSamples) -> StreamState:
        """Return the state that `to_json` gave.

        Raises:
            InvalidRequest: It is no such state, or one of other samples.
        """
        values = _checked(given)
        if values["fingerprint"] != source.fingerprint:
            raise InvalidRequest(
                "the state",
                f"of other samples: fingerprint {values['fingerprint']}",
                expected=source.fingerprint,
                remedy="Open the dataset, and choose the samples, that the state was taken with.",
            )
        numbers = {name: cast("int", values[name]) for name in _NUMBERS}
        position = numbers.pop("position")
        if not 0 <= position < max(1, source.length):
            expected = f"0 to {max(1, source.length) - 1}"
            raise InvalidRequest("position of the state", str(position), expected=expected, remedy=_REMEDY)
        return cls(source.fingerprint, OrderOptions(cast("bool", values["shuffle"]), **numbers), position)


def _checked(given: object) -> Mapping[str, object]:
    if not isinstance(given, dict):
        raise InvalidRequest("the state", f"a {type(given).__name__}", expected="a dictionary", remedy=_REMEDY)
    if given.get("version") != _VERSION:
        found = repr(given.get("version", "none"))
        raise InvalidRequest(
            "version of the state", found, expected=str(_VERSION), remedy="Go on with the shardtool that it is of."
        )
    missing = [key for key in _KEYS if key not in given]
    if missing:
        raise InvalidRequest("the state", f"no {', '.join(missing)}", expected=", ".join(_KEYS), remedy=_REMEDY)
    for name, kind in (("fingerprint", str), *((name, int) for name in _NUMBERS)):
        if type(given[name]) is not kind:
            expected = "text" if kind is str else "a whole number"
            raise InvalidRequest(f"{name} of the state", repr(given[name]), expected=expected, remedy=_REMEDY)
    return given
