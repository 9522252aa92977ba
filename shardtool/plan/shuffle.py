"""Numbers that look random, and the order that they give: the same on every machine and with every NumPy.

Source: SplitMix64; Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

GAMMA, FIRST_FACTOR, SECOND_FACTOR = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def random_numbers(start: int, count: int) -> NDArray[np.uint64]:
    """Return the first `count` numbers of the generator whose state is `start`, below 2^64."""
    state = np.arange(1, count + 1, dtype=np.uint64)
    state *= np.uint64(GAMMA)
    state += np.uint64(start)
    for shift, factor in ((30, FIRST_FACTOR), (27, SECOND_FACTOR)):
        state ^= state >> np.uint64(shift)
        state *= np.uint64(factor)
    state ^= state >> np.uint64(31)
    return state


def shuffled(count: int, seed: int) -> NDArray[np.int64]:
    """Return a uniform random permutation of `count` places: each gets a 64-bit number, and these are sorted."""
    start = int.from_bytes(blake2b(b"shuffle %d" % seed, digest_size=8).digest(), "little")
    return np.argsort(random_numbers(start, count), kind="stable")
