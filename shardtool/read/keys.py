"""Samples by their keys: a lazy sequence of all keys, and where each lies.

A key is looked for in the shard whose first and last key, as the dataset file says, lie around it. That keys ascend
in between is only a guess: what is not found there is looked up in an index of all keys, 12 to 16 bytes a sample,
which is built once for all processes when it is first needed.
"""

from __future__ import annotations

import logging
import operator
import os
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, overload

import numpy as np

from shardtool.errors import InvalidRequest, UnknownKey, listing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardtool.read.catalog import Catalog, IndexStore

    Numbers = NDArray[np.int64]
    Hashes = NDArray[np.uint64]

_FEW = 16  # keys that are looked for in a shard one by one
_AT_ONCE = 2**22  # keys that are sorted in memory at a time
_WORD, _HASHED = 8, 256  # bytes; of a longer key, the start and the end
_FACTORS = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB], np.uint64)
_log = logging.getLogger("shardtool")


class KeyFinder:
    """Finds the samples of a catalog by their keys; picklable without the index of all keys."""

    def __init__(self, store: IndexStore, catalog: Catalog) -> None:
        self._store, self._catalog = store, catalog
        ranges = catalog.key_ranges
        ascend = all(first <= last for first, last in ranges)
        ascend = ascend and all(before[1] < after[0] for before, after in pairwise(ranges))
        self._firsts = [first for first, _ in ranges] if ascend and ("", "") not in ranges else []
        self._index: _KeyIndex | None = None

    def __reduce__(self) -> tuple[type[KeyFinder], tuple[IndexStore, Catalog]]:
        return KeyFinder, (self._store, self._catalog)

    def numbers(self, keys: Sequence[str]) -> Numbers:
        """Return the number of the sample of each key, -1 where there is none: int64 [keys].

        Of several samples with one key, it is always the same one.

        Raises:
            CorruptShard: A shard that had to be looked at has no sound sidecar, and is damaged.
        """
        wanted = [key.encode("utf-8", "surrogateescape") for key in keys]
        found = np.full(len(keys), -1, np.int64)
        if self._index is None and self._firsts:
            self._look_in_ranges(keys, wanted, found)
        left = np.flatnonzero(found < 0)
        if len(left):
            if self._index is None:
                self._index = _KeyIndex(self._store, self._catalog)
            found[left] = self._index.numbers([wanted[at] for at in left.tolist()])
        return found

    def _look_in_ranges(self, keys: Sequence[str], wanted: list[bytes], found: Numbers) -> None:
        """Fill in the samples that lie in the shard whose first and last key say so."""
        by_shard: dict[int, list[int]] = {}
        for at, key in enumerate(keys):
            shard = bisect_right(self._firsts, key) - 1
            if shard >= 0 and key <= self._catalog.key_ranges[shard][1]:
                by_shard.setdefault(shard, []).append(at)
        for shard, places in sorted(by_shard.items()):
            index, first = self._store.index(shard), int(self._catalog.firsts[shard])
            if len(places) <= _FEW:
                rows = [index.row_of(wanted[at]) for at in places]
            else:
                of_key = {key: row for row, key in reversed([*enumerate(index.all_keys())])}
                rows = [of_key.get(wanted[at], -1) for at in places]
            found[places] = [row if row < 0 else first + row for row in rows]


class _KeyIndex:
    """The hashes of all keys, ascending, and the number of the sample of each.

    It lies in the catalog's shared blocks behind those of the shards, and in memory where there is no room for it.
    """

    def __init__(self, store: IndexStore, catalog: Catalog) -> None:
        self._store, self._catalog, count = store, catalog, len(catalog)
        self._number = np.dtype(np.uint32 if count < 2**32 else np.int64)
        size, place = count * (_WORD + self._number.itemsize), len(catalog.shards)
        block: memoryview | bytes | None = catalog.shared.read(place)
        if block is None:
            started = time.monotonic()
            block = catalog.shared.write(place, size, self._sorted()) or self._in_memory(size)
            _log.info("an index of %s keys was built in %.1f s", f"{count:,}", time.monotonic() - started)
        self._hashes: Hashes = np.frombuffer(block, np.uint64, count)
        self._numbers = np.frombuffer(block, self._number, count, count * _WORD)

    def numbers(self, keys: list[bytes]) -> Numbers:
        """Return the number of the first sample of each key, -1 where there is none."""
        ends = np.cumsum([0, *map(len, keys)])
        wanted = hashes(b"".join(keys), ends)
        at = np.searchsorted(self._hashes, wanted)
        found, left = np.full(len(keys), -1, np.int64), np.arange(len(keys))
        while len(left):  # once, but for hashes that several keys share
            places = at[left]
            left = left[places < len(self._hashes)]
            left = left[self._hashes[at[left]] == wanted[left]]
            numbers = self._numbers[at[left]].astype(np.int64)
            fits = self._have(numbers, [keys[one] for one in left.tolist()])
            found[left[fits]] = numbers[fits]
            left = left[~fits]
            at[left] += 1
        return found

    def _have(self, numbers: Numbers, keys: list[bytes]) -> NDArray[np.bool_]:
        """Return which samples have the keys."""
        fits = np.zeros(len(keys), np.bool_)
        for shard, rows, which in self._catalog.by_shard(numbers):
            found = self._store.index(shard).keys_of(rows)
            fits[which] = [one.encode() == keys[at] for one, at in zip(found, which.tolist(), strict=True)]
        return fits

    def _sorted(self) -> Iterator[tuple[int, bytes]]:
        """Yield parts of the block, and where they stand: hashes, and numbers, of so many keys at a time."""
        count = len(self._catalog)
        everything = _scratch(count)
        for shard in range(len(self._catalog.shards)):
            first, last = self._catalog.firsts[shard : shard + 2].tolist()
            index = self._store.index(shard)
            everything[first:last] = hashes(index.keys, index.key_ends)
        parts, done = -(-count // _AT_ONCE), 0
        for part in range(parts):
            where = self._between(everything, 2**64 * part // parts, 2**64 * (part + 1) // parts - 1)
            found = everything[where]
            order = np.argsort(found, kind="stable")
            yield done * _WORD, found[order].tobytes()
            yield count * _WORD + done * self._number.itemsize, where[order].astype(self._number).tobytes()
            done += len(where)

    @staticmethod
    def _between(everything: Hashes, low: int, high: int) -> Numbers:
        blocks = (everything[first : first + _AT_ONCE] for first in range(0, len(everything), _AT_ONCE))
        found = [np.flatnonzero((one >= np.uint64(low)) & (one <= np.uint64(high))) for one in blocks]
        return np.concatenate([one + at * _AT_ONCE for at, one in enumerate(found)])

    def _in_memory(self, size: int) -> bytes:
        block = bytearray(size)
        for at, data in self._sorted():
            block[at : at + len(data)] = data
        return bytes(block)


def _scratch(count: int) -> Hashes:
    """Return room for so many hashes: many of them in a temporary file, if there is room for it."""
    if count > _AT_ONCE and hasattr(os, "posix_fallocate"):
        with suppress(OSError), TemporaryFile() as file:  # the mapping outlives its descriptor
            os.posix_fallocate(file.fileno(), 0, count * _WORD)  # or a full disk would be a signal, not an error
            return np.memmap(file, np.uint64, "r+", shape=(count,))
    return np.empty(count, np.uint64)


def hashes(keys: bytes | memoryview, ends: NDArray[np.integer]) -> Hashes:
    """Return a hash of each key, which depends on nothing else.

    Args:
        keys: Their bytes, end to end.
        ends: [keys + 1]: where each starts, and where the last one ends.

    Returns:
        uint64 [keys].
    """
    padded = np.frombuffer(b"".join((keys, bytes(_WORD))), np.uint8)
    words = np.ndarray((len(padded) - _WORD + 1,), "<u8", padded.data, strides=(1,))  # one at each byte
    starts, lengths = ends[:-1].astype(np.int64), np.diff(ends).astype(np.int64)
    found: Hashes = lengths.astype(np.uint64) * _FACTORS[0]
    for at in range(0, min(_HASHED, int(lengths.max(initial=0))), _WORD):
        (rows,) = np.nonzero(lengths > at)
        found[rows] = _mixed(found[rows], _word(words, starts[rows] + at, lengths[rows] - at))
    (rows,) = np.nonzero(lengths > _HASHED)
    for at in range(_HASHED, 0, -_WORD):
        if len(rows):
            found[rows] = _mixed(
                found[rows], _word(words, starts[rows] + lengths[rows] - at, np.full(len(rows), _WORD))
            )
    return found


def _word(words: Hashes, places: Numbers, left: Numbers) -> Hashes:
    """Return the next eight bytes of keys, or what is left of them."""
    missing = (8 * (_WORD - np.minimum(left, _WORD))).astype(np.uint64)
    found: Hashes = words[places] & (np.uint64(2**64 - 1) >> missing)
    return found


def _mixed(state: Hashes, word: Hashes) -> Hashes:
    state = (state ^ word) * _FACTORS[1]
    state = (state ^ (state >> np.uint64(29))) * _FACTORS[2]
    state ^= state >> np.uint64(32)
    return state


class Keys(Sequence[str]):
    """The keys of samples, in their order; read shard by shard when they are asked for."""

    def __init__(self, store: IndexStore, finder: KeyFinder, catalog: Catalog, chosen: Numbers | None) -> None:
        self._store, self._finder, self._catalog, self._chosen = store, finder, catalog, chosen

    def __len__(self) -> int:
        return len(self._catalog) if self._chosen is None else len(self._chosen)

    @overload
    def __getitem__(self, which: int) -> str: ...
    @overload
    def __getitem__(self, which: slice) -> list[str]: ...

    def __getitem__(self, which: int | slice) -> str | list[str]:
        if isinstance(which, slice):
            return self.of(np.arange(*which.indices(len(self)), dtype=np.int64))
        at = operator.index(which)
        if not -len(self) <= at < len(self):
            raise IndexError(f"key {at} of {len(self)}")
        return self.of(np.array([at % len(self)]))[0]

    def __iter__(self) -> Iterator[str]:
        if self._chosen is None:
            for shard in range(len(self._catalog.shards)):
                for key in self._store.index(shard).all_keys():
                    yield key.decode()
            return
        for first in range(0, len(self), _AT_ONCE // 64):
            yield from self.of(np.arange(first, min(len(self), first + _AT_ONCE // 64)))

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, str):
            return False
        number = self._finder.numbers([key])[0]
        return bool(number >= 0 and (self._chosen is None or np.any(self._chosen == number)))

    def __repr__(self) -> str:
        return f"<{len(self):,} keys: {listing([*map(repr, self[:3])], total=len(self))}>"

    def of(self, places: Numbers) -> list[str]:
        """Return the keys at places here, in the order of the places."""
        numbers = places if self._chosen is None else self._chosen[places]
        found = [""] * len(numbers)
        for shard, rows, which in self._catalog.by_shard(numbers):
            for at, key in zip(which.tolist(), self._store.index(shard).keys_of(rows), strict=True):
                found[at] = key
        return found


def numbers_of(finder: KeyFinder, keys: Iterable[str], chosen: Numbers | None) -> Numbers:
    """Return the number of the sample of each key: int64 [keys].

    Args:
        finder: Finds them.
        keys: Which ones.
        chosen: The numbers among which they must be; None: all.

    Raises:
        UnknownKey: There is no sample of some keys, which it names.
    """
    wanted = [*keys]
    for one in wanted:
        if not isinstance(one, str):
            raise InvalidRequest("keys", f"{one!r:.40}", expected="texts, as those in `.keys`")
    numbers = finder.numbers(wanted)
    lacking = numbers < 0 if chosen is None else (numbers < 0) | ~np.isin(numbers, chosen)
    if bad := [wanted[at] for at in np.flatnonzero(lacking).tolist()]:
        what = "no sample of that key" if len(bad) == 1 else f"{len(bad):,} keys of no sample"
        where = "" if chosen is None else " in this view"
        remedy = _without_ending(finder, bad[0])
        expected = "keys such as those in `.keys`"
        raise UnknownKey(listing([*map(repr, bad)]), f"{what}{where}", expected=expected, remedy=remedy)
    return numbers


def _without_ending(finder: KeyFinder, name: str) -> str:
    """Return what to do about a file's name that was given for a key; nothing where it is none of a sample."""
    folder, slash, file = name.rpartition("/")
    keys = [folder + slash + file[:at] for at, letter in enumerate(file) if letter == "." and at]
    found = finder.numbers(keys)
    return next((f"Take {keys[at]!r}: a key has no ending." for at in np.flatnonzero(found >= 0).tolist()), "")
