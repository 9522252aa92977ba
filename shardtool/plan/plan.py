"""Which sample goes into which shard, decided before a byte is written.

A `Plan` is pure: entries and bounds in, columns out, no file opened. Because the size of every
record is known beforehand, a shard is a task of its own with a known name and size, which is what
makes workers, resume and "no shard is ever larger than asked" simple.

Samples keep their order, or are put into one global random order, or into one by the hashes of their keys; shards are
contiguous runs of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from shardtool.entries.arrow import number_array
from shardtool.errors import InvalidRequest, listing, printable
from shardtool.format.sizes import NUMBERS, SAMPLE_LIMIT, TRAILER_SIZE, Payloads, sample_sizes
from shardtool.format.tfrecord import KEY_FEATURE, encode_number
from shardtool.plan.cuts import NO_LIMIT, Bounds, Limits, Runs, ShardsAsked, bounded, check_multiple, exactly, running
from shardtool.plan.shuffle import shuffled
from shardtool.skipped import Skipped
from shardtool.values import INLINE, Oversize, counted, show_size, source_name, to_text
from shardtool.wording import option, typed_option

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from shardtool.entries.entries import Entries
    from shardtool.names import Names
    from shardtool.pattern import ShardPattern


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
            salt = blake2b(b"%d" % seed, digest_size=16).digest()
            order = np.argsort(self._keys.hashes(b"shardtool order", salt), kind="stable")
        shard = self._shard_of(count)
        counts, _ = self._loads(count)
        return order[np.argsort(shard[order], kind="stable")], np.cumsum(counts), notes

    def _check(self, asked: ShardsAsked) -> tuple[int, tuple[str, ...]]:
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

    def _refuse(self, asked: ShardsAsked, found: str, expected: str, *, fewer: bool) -> None:
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


DEFAULT_MAX_SIZE = 10**9
_ESTIMATED_SHARE = 0.97  # of the bound is filled where sizes are estimates: few shards leave a remainder then


@dataclass(frozen=True, slots=True)
class Plan:
    """Samples in shard order, and where the shards end.

    Attributes:
        format: `tar` or `tfrecord`.
        entries: The samples.
        stored: int64[rows], the bytes that payloads take in the shard; None: `entries.rows.size`.
        order: int64[samples]: which sample stands where; None for the entries' own order.
        total: int64[samples + 1]: bytes of the records before each place.
        ends: int64[shards]: the place after each shard's last sample.
        sizes: int64[shards]: bytes of each finished file, exact.
        limits: What the shards were cut by.
        skipped: Samples that `oversize` left out.
        notes: What the user should know, such as shards over the bound.
        regions: int64[regions, 2], ascending: where parts of the first of the spans' files start and end, each of them
            what some places next to each other want of it, and best read whole; None: spans are read one by one.
    """

    format: str
    entries: Entries
    stored: NDArray[np.int64] | None
    order: NDArray[np.int64] | None
    total: NDArray[np.int64]
    ends: NDArray[np.int64]
    sizes: NDArray[np.int64]
    limits: Limits
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    regions: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        """Return how many samples there are, those that were left out not counted."""
        return len(self.total) - 1

    @property
    def shards(self) -> int:
        """The number of shards."""
        return len(self.ends)

    def span(self, shard: int) -> tuple[int, int]:
        """Return the first place of a shard, and the place after its last."""
        return (int(self.ends[shard - 1]) if shard else 0), int(self.ends[shard])

    def count(self, shard: int) -> int:
        """Return how many samples a shard holds."""
        first, last = self.span(shard)
        return last - first

    def key_at(self, place: int) -> str:
        """Return the key of the sample at a place of the plan's order."""
        return self.entries.key(place if self.order is None else int(self.order[place]))

    def metadata(self, shard: int) -> pa.Table | None:
        """Return the metadata of a shard's samples."""
        metadata = self.entries.metadata
        if metadata is None:
            return None
        first, last = self.span(shard)
        if self.order is None:
            return metadata.slice(first, last - first)
        return metadata.take(number_array(self.which(shard)))

    def changed_ns(self, shard: int) -> int:
        """Return when anything that goes into a shard can have changed last, in nanoseconds since 1970."""
        return int(np.max(self.entries.rows.changed_ns[self.rows(shard)]))

    def again(self, places: NDArray[np.int64]) -> Plan:
        """Return the plan for the samples at some places of this one's order, in that order, by the same limits."""
        order = places if self.order is None else self.order[places]
        total = running(np.diff(self.total), places)
        ends = Runs(total, self.limits.planned, self.limits.max_count).fill()
        sizes = np.diff(total[np.concatenate(([0], ends))]) + TRAILER_SIZE[self.format]
        return replace(self, order=order, total=total, ends=ends, sizes=sizes, skipped=(), notes=())

    def which(self, shard: int) -> NDArray[np.int64]:
        """Return the samples of a shard."""
        first, last = self.span(shard)
        return np.arange(first, last) if self.order is None else self.order[first:last]

    def rows(self, shard: int) -> NDArray[np.int64] | slice:
        """Return the rows of a shard's samples; a slice where they lie together."""
        first, last = self.span(shard)
        if self.order is None:
            return slice(int(self.entries.first[first]), int(self.entries.first[last]))
        return self.entries.rows_of(self.which(shard))


def make_plan(
    entries: Entries,
    pattern: ShardPattern,
    bounds: Bounds,
    shuffle_seed: int | None = None,
    *,
    which: NDArray[np.int64] | None = None,
    estimate: NDArray[np.int64] | None = None,
) -> Plan:
    """Return the plan for `entries`.

    Args:
        entries: The samples, one or more.
        pattern: The shards' names: their number is the most, or, where nothing bounds a shard and there are as many
            samples, what is asked for.
        bounds: What limits a shard.
        shuffle_seed: Puts the samples into the random order of that seed.
        which: The samples to plan, where it is not all of them, in order.
        estimate: int64[samples]: the records of each, where they are unknown before they are written.

    Raises:
        InvalidRequest: A sample over the bound, or more shards than the pattern has names.
    """
    shard_format = pattern.format
    trailer = TRAILER_SIZE[shard_format]
    asked = _asked(pattern, bounds, len(entries) if which is None else len(which))
    max_size = bounds.max_size or (DEFAULT_MAX_SIZE if bounds.max_count is None and asked is None else None)
    room = max_size - trailer if max_size else NO_LIMIT
    stored, rounded = _stored(entries) if NUMBERS[shard_format] else (None, ())
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    if estimate is not None:
        limits = Limits(room, room if room == NO_LIMIT else int(room * _ESTIMATED_SHARE), bounds.max_count)
        sizes = np.minimum(estimate, limits.planned)
    else:
        limits = Limits(room, room, bounds.max_count)
        rows, whole = entries.rows, None if entries.spans is None else entries.spans.whole
        held = rows.size if stored is None else stored
        payloads = Payloads(entries.keys, entries.first, entries.fields, rows.code, held, whole)
        sizes = sample_sizes(shard_format, payloads)
        fit = _Room(room, SAMPLE_LIMIT[shard_format], trailer)
        which, skipped, notes = _fit(entries, sizes, fit, bounds.oversize, which)
    chosen = sizes if which is None else sizes[which]
    order: NDArray[np.int64] | None = None
    if bounds.by_hash:
        keys = entries.keys if which is None else entries.keys.take(which)
        order, ends, changed = HashedSamples(keys, chosen, limits, bounds).divide(asked, shuffle_seed)
        notes, total = (*notes, *changed), running(chosen, order)
    else:
        order = None if shuffle_seed is None else shuffled(len(chosen), shuffle_seed)
        total = running(chosen, order)
        ends = bounded(total, limits, bounds) if asked is None else exactly(total, asked, limits, bounds)
    order = which if order is None else order if which is None else which[order]
    notes = (*notes, *_check_names(pattern, bounds, len(ends), len(chosen)))
    starts = np.concatenate(([0], ends[:-1]))
    shard_sizes = total[ends] - total[starts] + trailer
    return Plan(shard_format, entries, stored, order, total, ends, shard_sizes, limits, skipped, (*notes, *rounded))


def _asked(pattern: ShardPattern, bounds: Bounds, samples: int) -> ShardsAsked | None:
    """Return the number of shards that is asked for; None: as many as the bounds need."""
    if bounds.shards is not None:
        return ShardsAsked(bounds.shards, option("shards", bounds.shards))
    if bounds.max_size is not None or bounds.max_count is not None or (pattern.count or samples + 1) > samples:
        return None
    return ShardsAsked(pattern.count or 0, pattern.text)


def _check_names(pattern: ShardPattern, bounds: Bounds, shards: int, samples: int) -> tuple[str, ...]:
    """Refuse more shards than there are names, and note where a range could not be filled."""
    if pattern.count is None:
        return ()
    if shards > pattern.count:
        remedy = "Use an open range such as out-{000000..}.tar, a wider range, or larger shards."
        raise InvalidRequest(pattern.text, f"{pattern.count:,} names for {shards:,} shards", remedy=remedy)
    if shards == pattern.count or (bounds.max_size, bounds.max_count, bounds.shards) != (None, None, None):
        return ()
    made = f"{counted(shards, 'shard')} of at most {show_size(DEFAULT_MAX_SIZE)}"
    why = f"exactly {pattern.count:,} take at least {pattern.count:,} samples, here {samples:,}"
    most = "" if bounds.by_hash else f" ({option('shards', samples)} makes the most)"
    return (f"{pattern.text}: {made}; {why}{most}",)


def _stored(entries: Entries) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """Return int64[rows], what payloads take in a shard whose format has numbers (None: what they are), and notes.

    Raises:
        InvalidRequest: A number that the format cannot hold, or a field with the name of the key's.
    """
    key = to_text(KEY_FEATURE)
    if key in entries.fields and entries.code_counts()[entries.fields.index(key)]:
        raise InvalidRequest(source_name(entries.root), f"a field called {key!r}, the name of a TFRecord's key")
    if not entries.values.numbers:
        return None, ()
    stored: NDArray[np.int64] = entries.rows.size.copy()
    notes = []
    for name, number in entries.values.numbers.items():
        rounded = 0
        rows = np.flatnonzero((entries.rows.code == entries.fields.index(name)) & (entries.rows.kind == INLINE))
        samples = entries.owners(rows)
        for first in range(0, len(rows), _CHUNK):
            some = samples[first : first + _CHUNK]
            texts = entries.values.inline[name].gather(some)[:-1].split(b"\0")
            try:
                stored[rows[first : first + _CHUNK]] = [len(encode_number(text, number)) for text in texts]
            except (ValueError, OverflowError):
                raise _no_number(entries, name, number, [*zip(some.tolist(), texts, strict=True)]) from None
            rounded += count_rounded(texts) if number == "float" else 0
        if rounded:
            notes.append(rounded_note(name, rounded))
    return stored, tuple(notes)


def rounded_note(name: str, count: int) -> str:
    """Return what the user should know of values of a field that TFRecord cannot hold as they are."""
    return f"{counted(count, 'value')} of {name!r} rounded: TFRecord's floats have 32 bits"


def count_rounded(texts: Sequence[bytes]) -> int:
    """Return how many numbers are others once they were written with 32 bits and read as their shortest text."""
    wide = np.array([float(text) for text in texts])
    narrow = wide.astype(np.float32).astype(str).astype(np.float64)
    return int(np.count_nonzero((narrow != wide) & ~np.isnan(wide)))


def _no_number(entries: Entries, name: str, number: str, texts: list[tuple[int, bytes]]) -> InvalidRequest:
    """Return the error for the first of `texts` that is no number, or too large a one."""
    for sample, text in texts:
        try:
            encode_number(text, number)  # type: ignore[arg-type]
        except (ValueError, OverflowError):
            where = f"{printable(entries.key(sample))}, field {name!r}"
            return InvalidRequest(where, repr(printable(text)), expected=f"a number that TFRecord's {number} can hold")
    return InvalidRequest(name, "no numbers")


_CHUNK = 2**16  # texts at a time


@dataclass(frozen=True, slots=True)
class _Room:
    """Bytes: a shard's room for records, the most that a sample may take by its format, and the end of a shard."""

    shard: int
    sample: int
    trailer: int


def _fit(
    entries: Entries, sizes: NDArray[np.int64], room: _Room, oversize: Oversize, which: NDArray[np.int64] | None
) -> tuple[NDArray[np.int64] | None, tuple[Skipped, ...], tuple[str, ...]]:
    """Apply the rule for samples that fit in no shard; return which stay (None: all), what is left out, and notes."""
    limit = min(room.shard, room.sample)
    too_large = np.flatnonzero(sizes > limit) if which is None else which[sizes[which] > limit]
    if not len(too_large):
        return which, (), ()
    total, never = sizes + room.trailer, too_large[sizes[too_large] > room.sample]
    if len(never) and oversize != "skip":
        found = _named(entries, total, never, "a TFRecord")
        remedy = f"Write tar shards, or leave them out with {option('oversize', 'skip')}."
        raise InvalidRequest("TFRecord", found, expected=f"less than 2 GiB ({room.sample:,} bytes)", remedy=remedy)
    found = _named(entries, total, too_large, f"a shard of {show_size(min(limit, room.shard) + room.trailer)}")
    if oversize == "error":
        remedy = f"Raise {option('max_size')}, or choose {option('oversize', 'alone')} (a shard of its own) or skip."
        raise InvalidRequest(option("max_size"), found, remedy=remedy)
    if oversize == "alone":
        return which, (), (f"{found}; each gets a shard of its own",)
    over = dict.fromkeys(too_large.tolist(), typed_option("max_size"))
    over |= dict.fromkeys(never.tolist(), "the 2 GiB of a TFRecord")
    skipped = tuple(
        Skipped(entries.key(at), "", "oversize", f"{int(total[at]):,} bytes, over {name}") for at, name in over.items()
    )
    stay = np.flatnonzero(sizes <= limit) if which is None else which[sizes[which] <= limit]
    if not len(stay):
        remedy = "Write tar shards" if len(never) == len(too_large) else f"Raise {option('max_size')}"
        raise InvalidRequest(option("max_size"), found, remedy=f"{remedy}: no sample is left.")
    return stay, skipped, ()


def _named(entries: Entries, total: NDArray[np.int64], which: NDArray[np.int64], what: str) -> str:
    """Say which samples are larger than `what` may be."""
    names = [f"{printable(entries.key(at))} ({show_size(int(total[at]))})" for at in which[:5].tolist()]
    return f"{counted(len(which), 'sample')} larger than {what} may be: {listing(names, total=len(which))}"
