"""Decide which sample goes into which shard before a byte is written.

A `Plan` is pure: samples and bounds in, columns out, no file opened. Record sizes are known beforehand, so each
shard
is an independent task with a known name and size.

Samples keep their order, or are shuffled globally, or are ordered by the hash of their keys. Shards are contiguous
runs of that order.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from shardtool.entries.arrow import number_array
from shardtool.entries.record_sizes import (
    MAX_SAMPLE_BYTES,
    STORES_NUMBERS,
    TRAILER_SIZE,
    RecordColumns,
    sample_sizes,
)
from shardtool.errors import InvalidRequest, format_list, printable
from shardtool.format.tfrecord_write import KEY_FEATURE, encode_number
from shardtool.messages import cli_option, option_text
from shardtool.names import source_label, to_text
from shardtool.plan.hash_assignment import HashAssignment
from shardtool.plan.random_order import random_permutation
from shardtool.plan.shard_bounds import (
    NO_LIMIT,
    RequestedShards,
    ShardBounds,
    ShardLimits,
    ShardRuns,
    cumulative_sizes,
    cut_shards,
)
from shardtool.shard_samples import INLINE
from shardtool.skipped import Skipped
from shardtool.units import format_size, pluralize
from shardtool.values import chunk_slices

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from shardtool.entries.sample_table import SampleTable
    from shardtool.pattern import ShardPattern
    from shardtool.values import NumberType, Oversize


DEFAULT_MAX_SIZE = 10**9


_ESTIMATE_FILL_SHARE = 0.97  # of the bound is filled where sizes are estimates: few shards leave a remainder then


@dataclass(frozen=True)
class Plan:
    """Samples in shard order, and where the shards end.

    Attributes:
        format: `tar` or `tfrecord`.
        entries: The samples.
        stored: int64[rows], the bytes that payloads take in the shard; None: `entries.rows.size`.
        order: int64[samples]: which sample stands where; None for the entries' own order.
        total: int64[samples + 1]: bytes of the records before each place.
        ends: int64[shards]: the place after each shard's last sample.
        limits: What the shards were cut by.
        skipped: Samples that `oversize` left out.
        notes: What the user should know, such as shards over the bound.
        regions: int64[regions, 2], ascending: where parts of the first of the spans' files start and end, each of them
            what some places next to each other want of it, and best read whole; None: spans are read one by one.
    """

    format: str
    entries: SampleTable
    stored: NDArray[np.int64] | None
    order: NDArray[np.int64] | None
    total: NDArray[np.int64]
    ends: NDArray[np.int64]
    limits: ShardLimits = field(default_factory=ShardLimits)
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

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """int64[shards]: bytes of each finished file, exact."""
        sizes: NDArray[np.int64] = np.diff(self.total[np.append(0, self.ends)])
        return sizes + TRAILER_SIZE[self.format]

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
        total = cumulative_sizes(np.diff(self.total), places)
        return replace(self, order=order, total=total, ends=ShardRuns(total, self.limits).fill(), skipped=(), notes=())

    def which(self, shard: int) -> NDArray[np.int64]:
        """Return the samples of a shard."""
        first, last = self.span(shard)
        return np.arange(first, last) if self.order is None else self.order[first:last]

    def rows(self, shard: int) -> NDArray[np.int64]:
        """Return the rows of a shard's samples."""
        return self.entries.rows_of(self.which(shard))


def make_plan(
    entries: SampleTable,
    pattern: ShardPattern,
    bounds: ShardBounds,
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
    asked = _requested_shards(pattern, bounds, len(entries) if which is None else len(which))
    max_size = bounds.max_size or (DEFAULT_MAX_SIZE if bounds.max_count is None and asked is None else None)
    room = max_size - TRAILER_SIZE[shard_format] if max_size else NO_LIMIT
    stored, rounded = _stored_number_sizes(entries) if STORES_NUMBERS[shard_format] else (None, ())
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    if estimate is not None:
        limits = ShardLimits(room, room if room == NO_LIMIT else int(room * _ESTIMATE_FILL_SHARE), bounds.max_count)
        sizes = np.minimum(estimate, limits.planned)
    else:
        limits = ShardLimits(room, room, bounds.max_count)
        sizes = _sample_sizes(entries, stored, shard_format)
        which, skipped, notes = _apply_oversize(entries, sizes, shard_format, room, bounds.oversize, which)
    chosen = sizes if which is None else sizes[which]
    order: NDArray[np.int64] | None = None
    if bounds.by_hash:
        keys = entries.keys if which is None else entries.keys.take(which)
        order, ends, changed = HashAssignment(keys, chosen, limits, bounds).divide(asked, shuffle_seed)
        notes, total = (*notes, *changed), cumulative_sizes(chosen, order)
    else:
        order = None if shuffle_seed is None else random_permutation(len(chosen), shuffle_seed)
        total = cumulative_sizes(chosen, order)
        ends = cut_shards(total, asked, limits, bounds)
    order = which if order is None else order if which is None else which[order]
    notes = (*notes, *_check_name_count(pattern, bounds, len(ends), len(chosen)))
    return Plan(shard_format, entries, stored, order, total, ends, limits, skipped, (*notes, *rounded))


def plan_by_counts(entries: SampleTable, shard_format: str, counts: Sequence[int]) -> Plan:
    """Return the plan for `entries` in their own order, in shards of `counts` samples.

    Raises:
        InvalidRequest: A number that the format cannot hold.
    """
    stored, rounded = _stored_number_sizes(entries) if STORES_NUMBERS[shard_format] else (None, ())
    total = cumulative_sizes(_sample_sizes(entries, stored, shard_format))
    return Plan(shard_format, entries, stored, None, total, np.cumsum(counts), notes=rounded)


def _sample_sizes(entries: SampleTable, stored: NDArray[np.int64] | None, shard_format: str) -> NDArray[np.int64]:
    """Return int64[samples]: all records of each."""
    rows, whole = entries.rows, None if entries.spans is None else entries.spans.whole
    held = rows.size if stored is None else stored
    return sample_sizes(
        shard_format, RecordColumns(entries.keys, entries.first, entries.fields, rows.code, held, whole)
    )


def _requested_shards(pattern: ShardPattern, bounds: ShardBounds, samples: int) -> RequestedShards | None:
    """Return the number of shards that is asked for; None: as many as the bounds need.

    Raises:
        InvalidRequest: It is not the multiple that it is to be.
    """
    if bounds.shards is not None:
        asked = RequestedShards(bounds.shards, option_text("shards", bounds.shards))
    elif bounds.max_size is not None or bounds.max_count is not None or (pattern.count or samples + 1) > samples:
        return None
    else:
        asked = RequestedShards(pattern.count or 0, pattern.text)
    if asked.number % bounds.multiple_of:
        problem = f"{asked.where} asks for {pluralize(asked.number, 'shard')}"
        raise InvalidRequest(
            option_text("shards_multiple_of"), problem, expected=f"a multiple of {bounds.multiple_of:,}"
        )
    return asked


def _check_name_count(pattern: ShardPattern, bounds: ShardBounds, shards: int, samples: int) -> tuple[str, ...]:
    """Refuse more shards than there are names, and note where a range could not be filled."""
    if pattern.count is None:
        return ()
    if shards > pattern.count:
        remedy = "Use an open range such as out-{000000..}.tar, a wider range, or larger shards."
        raise InvalidRequest(pattern.text, f"{pattern.count:,} names for {shards:,} shards", remedy=remedy)
    if shards == pattern.count or (bounds.max_size, bounds.max_count, bounds.shards) != (None, None, None):
        return ()
    made = f"{pluralize(shards, 'shard')} of at most {format_size(DEFAULT_MAX_SIZE)}"
    why = f"{pattern.count:,} shards need at least {pattern.count:,} samples; there are {samples:,}"
    most = "" if bounds.by_hash else f" ({option_text('shards', samples)} makes the most)"
    return (f"{pattern.text}: {made}; {why}{most}",)


def _stored_number_sizes(entries: SampleTable) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """Return int64[rows], what payloads take in a shard whose format has numbers (None: what they are), and notes.

    Raises:
        InvalidRequest: A number that the format cannot hold, or a field with the name of the key's.
    """
    key = to_text(KEY_FEATURE)
    if key in entries.fields and entries.code_counts()[entries.fields.index(key)]:
        raise InvalidRequest(source_label(entries.root), f"a field called {key!r}, the name of a TFRecord's key")
    if not entries.values.numbers:
        return None, ()
    stored: NDArray[np.int64] = entries.rows.size.copy()
    notes = []
    for name, number in entries.values.numbers.items():
        rounded = 0
        rows = np.flatnonzero((entries.rows.code == entries.fields.index(name)) & (entries.rows.kind == INLINE))
        samples = entries.owners(rows)
        for part in chunk_slices(len(rows)):
            some = samples[part]
            texts = entries.values.inline[name].gather(some)[:-1].split(b"\0")
            stored[rows[part]] = [*_encoded_sizes(entries, name, number, some.tolist(), texts)]
            rounded += count_rounded(texts) if number == "float" else 0
        if rounded:
            notes.append(rounded_note(name, rounded))
    return stored, tuple(notes)


def rounded_note(name: str, count: int) -> str:
    """Return what the user should know of values of a field that TFRecord cannot hold as they are."""
    return f"{pluralize(count, 'value')} of {name!r} rounded: TFRecord's floats have 32 bits"


def count_rounded(texts: Sequence[bytes]) -> int:
    """Return how many numbers are others once they were written with 32 bits and read as their shortest text."""
    wide = np.array([float(text) for text in texts])
    narrow = wide.astype(np.float32).astype(str).astype(np.float64)
    return int(np.count_nonzero((narrow != wide) & ~np.isnan(wide)))


def _encoded_sizes(
    entries: SampleTable, name: str, number: NumberType, samples: list[int], texts: list[bytes]
) -> Iterator[int]:
    """Yield the bytes that numbers of a field take.

    Raises:
        InvalidRequest: One is no number, or too large a one.
    """
    for sample, text in zip(samples, texts, strict=True):
        try:
            yield len(encode_number(text, number))
        except (ValueError, OverflowError):
            where = f"{printable(entries.key(sample))}, field {name!r}"
            expected = f"a number that TFRecord's {number} can hold"
            raise InvalidRequest(where, repr(printable(text)), expected=expected) from None


def _apply_oversize(
    entries: SampleTable, sizes: NDArray[np.int64], shard_format: str, room: int, oversize: Oversize,
    which: NDArray[np.int64] | None,
) -> tuple[NDArray[np.int64] | None, tuple[Skipped, ...], tuple[str, ...]]:  # fmt: skip
    """Apply the rule for samples that fit in no shard; return which stay (None: all), what is left out, and notes."""
    trailer, most = TRAILER_SIZE[shard_format], MAX_SAMPLE_BYTES[shard_format]
    limit = min(room, most)
    too_large = np.flatnonzero(sizes > limit) if which is None else which[sizes[which] > limit]
    if not len(too_large):
        return which, (), ()
    total, never = sizes + trailer, too_large[sizes[too_large] > most]
    if len(never) and oversize != "skip":
        found = _describe_samples(entries, total, never, "a TFRecord")
        remedy = f"Write tar shards, or leave them out with {option_text('oversize', 'skip')}."
        raise InvalidRequest("TFRecord", found, expected=f"less than 2 GiB ({most:,} bytes)", remedy=remedy)
    found = _describe_samples(entries, total, too_large, f"a shard of {format_size(limit + trailer)}")
    if oversize == "error":
        remedy = f"Raise {option_text('max_size')}, or choose {option_text('oversize', 'alone')} (a shard of its own) or skip."
        raise InvalidRequest(option_text("max_size"), found, remedy=remedy)
    if oversize == "alone":
        return which, (), (f"{found}; each gets a shard of its own",)
    over = dict.fromkeys(too_large.tolist(), cli_option("max_size"))
    over |= dict.fromkeys(never.tolist(), "the 2 GiB of a TFRecord")
    skipped = tuple(
        Skipped(entries.key(at), "", "oversize", f"{int(total[at]):,} bytes, over {name}") for at, name in over.items()
    )
    stay = np.flatnonzero(sizes <= limit) if which is None else which[sizes[which] <= limit]
    if not len(stay):
        remedy = "Write tar shards" if len(never) == len(too_large) else f"Raise {option_text('max_size')}"
        raise InvalidRequest(option_text("max_size"), found, remedy=f"{remedy}: no sample is left.")
    return stay, skipped, ()


def _describe_samples(entries: SampleTable, total: NDArray[np.int64], which: NDArray[np.int64], what: str) -> str:
    """Say which samples are larger than `what` may be."""
    names = [f"{printable(entries.key(at))} ({format_size(int(total[at]))})" for at in which[:5].tolist()]
    return f"{pluralize(len(which), 'sample')} larger than {what} may be: {format_list(names, total=len(which))}"
