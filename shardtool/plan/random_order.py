"""Random numbers and permutations that are the same on every machine and with every NumPy.

Sources: SplitMix64; Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014. A
permutation of any size, computed one position at a time: Black and Rogaway, "Ciphers with arbitrary finite
domains",
CT-RSA 2002.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from shardtool.values import chunk_slices

if TYPE_CHECKING:
    from numpy.typing import NDArray


GAMMA, FIRST_FACTOR, SECOND_FACTOR = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


_MAX_RANKED_SIZE = (
    16  # places up to which random numbers are compared: faster, and each order is as frequent as any other
)


_ROUNDS = 8


def random_numbers(start: int, count: int) -> NDArray[np.uint64]:
    """Return the first `count` numbers of the generator whose state is `start`, below 2^64."""
    found = np.empty(count, np.uint64)
    for some in chunk_slices(count):  # in the cache, and without three copies of a hundred million places
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


def random_permutation(count: int, seed: int) -> NDArray[np.int64]:
    """Return a uniform random permutation of `count` places: each gets a 64-bit number, and these are sorted."""
    return np.argsort(random_numbers(derive_state("shuffle", seed), count), kind="stable")


def derive_state(purpose: str, *numbers: int) -> int:
    """Return the state of a generator that no other purpose, and no other numbers, have."""
    text = " ".join([purpose, *map(str, numbers)])
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def permute_positions(places: NDArray[np.int64], size: int, keys: NDArray[np.uint64] | np.uint64) -> NDArray[np.int64]:
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
    if size <= _MAX_RANKED_SIZE:
        return _rank_positions(places, size, keys)
    found = _feistel_network(places.astype(np.uint64), size, keys)
    (beyond,) = np.nonzero(found >= np.uint64(size))
    while len(beyond):
        walked = _feistel_network(found[beyond], size, keys if isinstance(keys, np.uint64) else keys[beyond])
        found[beyond] = walked
        beyond = beyond[walked >= np.uint64(size)]
    return found.astype(np.int64)


def _rank_positions(places: NDArray[np.int64], size: int, keys: NDArray[np.uint64] | np.uint64) -> NDArray[np.int64]:
    """Return the rank of each place's random number among those of all; equal ones are ranked by their place."""
    each = np.arange(size, dtype=np.uint64)
    drawn = random_at(0, each * np.uint64(GAMMA) + np.reshape(keys, (-1, 1)))
    drawn = np.broadcast_to(
        drawn // np.uint64(_MAX_RANKED_SIZE) * np.uint64(_MAX_RANKED_SIZE) + each, (len(places), size)
    )
    own = drawn[np.arange(len(places)), places]
    found: NDArray[np.int64] = np.count_nonzero(drawn < own[:, None], axis=1)
    return found


def _feistel_network(values: NDArray[np.uint64], size: int, keys: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
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
