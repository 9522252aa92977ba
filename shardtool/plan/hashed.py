"""Which samples go into which shard by the hash of their keys: one sample more or less changes one shard.

Source: docs/format.md, "Shards by hash".
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from shardtool.errors import InvalidRequest
from shardtool.plan.cuts import NO_LIMIT, check_multiple
from shardtool.values import counted, show_size
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardtool.names import Names
    from shardtool.plan.cuts import Asked, Bounds, Limits

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
        self, asked: Asked | None, seed: int | None
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
            salt = blake2b(b"%d" % seed, digest_size=16).digest()
            order = np.argsort(self._keys.hashes(b"shardtool order", salt), kind="stable")
        shard = self._shard_of(count)
        counts, _ = self._loads(count)
        return order[np.argsort(shard[order], kind="stable")], np.cumsum(counts), notes

    def _check(self, asked: Asked) -> tuple[int, tuple[str, ...]]:
        """Return the number of shards that is asked for, unless one of them would be over the bounds, or empty."""
        check_multiple(asked, self._bounds)
        samples, count = len(self._keys), asked.count
        if count > samples:
            self._refuse(asked, f"{count:,} shards for {counted(samples, 'sample')}", "a sample in each", fewer=True)
        counts, sizes = self._loads(count)
        if empty := int(np.count_nonzero(counts == 0)):
            found = f"{empty:,} of {count:,} shards by hash without one of {counted(samples, 'sample')}"
            self._refuse(asked, found, "a sample in each", fewer=True)
        if counts.max() > self._max_count:
            found = f"{counted(int(counts.max()), 'sample')} in one of {counted(count, 'shard')} by hash"
            self._refuse(asked, found, f"at most {self._max_count:,}", fewer=False)
        if sizes.max() > self._limits.planned:
            found = f"{show_size(int(sizes.max()))} in one of {counted(count, 'shard')} by hash"
            self._refuse(asked, found, f"at most {show_size(self._bounds.max_size or 0)}", fewer=False)
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

    def _shard_of(self, count: int) -> NDArray[np.int64]:
        shard: NDArray[np.int64] = (self._hashes % np.uint64(count)).astype(np.int64)
        return shard

    def _loads(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return how many samples each shard gets, and their bytes."""
        shard = self._shard_of(count)
        counts = np.bincount(shard, minlength=count).astype(np.int64)
        return counts, np.asarray(np.bincount(shard, weights=self._sizes, minlength=count), np.float64)

    def _holds(self, count: int, share: float) -> bool:
        """Tell whether so many shards all get a sample, and none more than a share of the bounds."""
        if count > len(self._keys) or count % self._bounds.multiple_of:
            return False
        counts, sizes = self._loads(count)
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

    def _refuse(self, asked: Asked, found: str, expected: str, *, fewer: bool) -> None:
        numbers = self._downward(asked.count - 1) if fewer else self._upward(asked.count + 1, 1)
        other = self._first(numbers, 1)
        raise InvalidRequest(asked.where, found, expected=expected, remedy=_remedy(other))


def _step(count: int, multiple: int) -> int:
    """Return how far the next number of shards to try is from one."""
    return multiple if count <= _FEW else max(1, count // _STEPS // multiple) * multiple


def _remedy(count: int = 0) -> str:
    """Return what to do about a number of shards: `count` is one that would do, if there is any."""
    order = option("place", "order")
    if count:
        return f"Choose {option('shards', count)}, or {order}."
    return f"Choose {order}, or larger shards: {option('max_size')}, {option('max_count')}."
