"""In which order an epoch takes the samples: pure functions from positions of the epoch to numbers of samples.

An order depends on the data, the seed and the epoch alone. Ranks and loader workers divide its positions
(`shardtool.reading.share`), so that any number of them sees the same order; and any position can be asked for at
once, so that a run goes on in the middle of an epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol

import numpy as np

from shardtool.plan.shuffle import FIRST_FACTOR, GAMMA, SECOND_FACTOR

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]


class Order(Protocol):
    """An order of an epoch."""

    @property
    def length(self) -> int:
        """Samples in an epoch."""
        ...

    @property
    def round(self) -> int:
        """Positions that are best read together."""
        ...

    def numbers(self, positions: Numbers) -> Numbers:
        """Return the sample at each position.

        Args:
            positions: int64 [n], each below `length`.

        Returns:
            int64 [n].
        """
        ...


@dataclass(frozen=True)
class InOrder:
    """The order of the dataset."""

    length: int
    round: int

    def numbers(self, positions: Numbers) -> Numbers:
        """Return the sample at each position: its number."""
        return positions


@dataclass(frozen=True)
class Shuffled:
    """Shards in random order, cut into parts that are read side by side; samples shuffled in windows.

    The permuted sequence of shards is cut into `parts` contiguous parts. Position g is number g // parts of the part
    g % parts, and each window of so many samples of a part is permuted.

    Attributes:
        counts: int64 [shards]: samples of each.
        seed: With the epoch, what the order depends on.
        epoch: Counted from 0.
        parts: How many parts there are.
        window: Samples of a part that are permuted among themselves.
    """

    counts: Numbers
    seed: int
    epoch: int
    parts: int
    window: int
    _starts: Numbers = field(init=False, repr=False)
    _ends: Numbers = field(init=False, repr=False)

    def __post_init__(self) -> None:
        order = np.argsort(_random(_start("shards", self.seed, self.epoch), np.arange(len(self.counts))), kind="stable")
        firsts = np.cumsum(self.counts) - self.counts
        object.__setattr__(self, "_starts", firsts[order])
        object.__setattr__(self, "_ends", np.cumsum(self.counts[order]))

    @property
    def length(self) -> int:
        """Samples in an epoch."""
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def round(self) -> int:
        """Positions of a window in each part."""
        return self.parts * self.window

    def numbers(self, positions: Numbers) -> Numbers:
        """Return the sample at each position."""
        part, at = positions % self.parts, positions // self.parts
        whole, more = divmod(self.length, self.parts)
        start, count = part * whole + np.minimum(part, more), whole + (part < more)
        window, within = at // self.window, at % self.window
        size = np.minimum(self.window, count - window * self.window)
        spot = start + window * self.window + self._permuted(part, window, within, size)
        shard = np.searchsorted(self._ends, spot, side="right")
        before = np.concatenate((np.zeros(1, np.int64), self._ends))[shard]
        return self._starts[shard] + spot - before

    def _permuted(self, part: Numbers, window: Numbers, within: Numbers, size: Numbers) -> Numbers:
        """Return where in its window each sample stands that is asked for."""
        name = part + window * self.parts
        names, first, which = np.unique(name, return_index=True, return_inverse=True)
        start = _start("window", self.seed, self.epoch)
        places = names[:, None] * self.window + np.arange(self.window)
        drawn = _random(start, places.ravel()).reshape(places.shape)
        drawn[np.arange(self.window) >= size[first][:, None]] = np.uint64(2**64 - 1)
        return np.argsort(drawn, axis=1, kind="stable")[which, within]


def _start(purpose: str, seed: int, epoch: int) -> int:
    return int.from_bytes(blake2b(f"{purpose} {seed} {epoch}".encode(), digest_size=8).digest(), "little")


def _random(start: int, places: Numbers) -> NDArray[np.uint64]:
    """Return the numbers of SplitMix64 at places of its sequence."""
    state: NDArray[np.uint64] = (places.astype(np.uint64) + np.uint64(1)) * np.uint64(GAMMA) + np.uint64(start)
    for shift, factor in ((30, FIRST_FACTOR), (27, SECOND_FACTOR)):
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
    state ^= state >> np.uint64(31)
    return state
