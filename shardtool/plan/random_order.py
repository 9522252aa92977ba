"""Random numbers and permutations that are identical on every machine and with every NumPy version.

Source: SplitMix64; Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014. For
`permute_positions`: Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from shardtool.values import chunk_slices

if TYPE_CHECKING:
    from numpy.typing import NDArray


GAMMA, FIRST_FACTOR, SECOND_FACTOR = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

# Up to this size, ranking random numbers is faster than a Feistel network, and all orders are equally likely.
_MAX_RANKED_SIZE = 16
_ROUNDS = 8


def random_numbers(start: int, count: int) -> NDArray[np.uint64]:
    """Return the first `count` random numbers of a generator that has the state `start`."""
    numbers = np.empty(count, np.uint64)
    # `random_at` copies its input, so use chunks that fit into the CPU cache.
    for chunk in chunk_slices(count):
        numbers[chunk] = random_at(start, np.arange(chunk.start, chunk.stop, dtype=np.uint64))
    return numbers


def random_at(start: int, positions: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the numbers at `positions`, counted from 0, in the output of `random_numbers`."""
    state: NDArray[np.uint64] = positions + np.uint64(1)
    state *= np.uint64(GAMMA)
    state += np.uint64(start)
    for shift, factor in ((30, FIRST_FACTOR), (27, SECOND_FACTOR)):
        state ^= state >> np.uint64(shift)
        state *= np.uint64(factor)
    state ^= state >> np.uint64(31)
    return state


def random_permutation(count: int, seed: int) -> NDArray[np.int64]:
    """Return a uniform random permutation."""
    return np.argsort(random_numbers(derive_state("shuffle", seed), count), kind="stable")


def derive_state(purpose: str, *numbers: int) -> int:
    """Derive a generator's state from a purpose and numbers."""
    text = " ".join([purpose, *map(str, numbers)])
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def permute_positions(
    positions: NDArray[np.int64], size: int, keys: NDArray[np.uint64] | np.uint64
) -> NDArray[np.int64]:
    """Permute the numbers below `size` pseudorandomly, and return the numbers at `positions`.

    For the size 1000, a Feistel network permutes the numbers below 1024. Results of 1000 or more are permuted again
    (cycle walking).

    Args:
        keys: The key that selects the permutation, or an array with one key per position.
    """
    if size <= _MAX_RANKED_SIZE:
        return _rank_positions(positions, size, keys)
    permuted = _feistel_network(positions.astype(np.uint64), size, keys)
    (beyond,) = np.nonzero(permuted >= np.uint64(size))
    while len(beyond):
        walked = _feistel_network(permuted[beyond], size, keys if isinstance(keys, np.uint64) else keys[beyond])
        permuted[beyond] = walked
        beyond = beyond[walked >= np.uint64(size)]
    return permuted.astype(np.int64)


def _rank_positions(positions: NDArray[np.int64], size: int, keys: NDArray[np.uint64] | np.uint64) -> NDArray[np.int64]:
    all_positions = np.arange(size, dtype=np.uint64)
    numbers = random_at(0, all_positions * np.uint64(GAMMA) + np.reshape(keys, (-1, 1)))
    # Replace the last bits with the position, so all numbers differ.
    numbers = np.broadcast_to(
        numbers // np.uint64(_MAX_RANKED_SIZE) * np.uint64(_MAX_RANKED_SIZE) + all_positions, (len(positions), size)
    )
    own_numbers = numbers[np.arange(len(positions)), positions]
    ranks: NDArray[np.int64] = np.count_nonzero(numbers < own_numbers[:, None], axis=1)
    return ranks


def _feistel_network(values: NDArray[np.uint64], size: int, keys: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    bits = (size - 1).bit_length()
    widths = bits - bits // 2, bits // 2
    halves = [values >> np.uint64(widths[1]), values & np.uint64((1 << widths[1]) - 1)]
    for round_number in range(_ROUNDS):
        side = round_number % 2
        mixed = halves[1 - side] + np.uint64(round_number << 32)
        mixed *= np.uint64(GAMMA)
        mixed += keys
        mixed ^= mixed >> np.uint64(32)
        mixed *= np.uint64(FIRST_FACTOR)
        mixed >>= np.uint64(64 - widths[side])
        halves[side] = halves[side] ^ mixed
    permuted: NDArray[np.uint64] = (halves[0] << np.uint64(widths[1])) | halves[1]
    return permuted
