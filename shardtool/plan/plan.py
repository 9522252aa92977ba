"""Assign samples to shards, in order or by the hash of their keys.

If samples are assigned by hash, and the number of shards stays the same, adding or removing a sample changes only one
shard (docs/format.md, "Shards by hash").
"""

from __future__ import annotations

from dataclasses import field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from shardtool.dataclass import dataclass
from shardtool.entries.arrow import number_array
from shardtool.entries.record_sizes import MAX_SAMPLE_BYTES, STORES_NUMBERS, TRAILER_SIZE, RecordColumns, sample_sizes
from shardtool.errors import InvalidRequest, format_list, printable
from shardtool.format.tfrecord_write import KEY_FEATURE, encode_number
from shardtool.messages import cli_option, option_text
from shardtool.names import source_label, to_text
from shardtool.plan.random_order import random_permutation
from shardtool.plan.shard_bounds import (
    NO_LIMIT,
    RequestedShards,
    ShardBounds,
    ShardCapacity,
    ShardRuns,
    cumulative_sizes,
    cut_shards,
)
from shardtool.shard_samples import INLINE
from shardtool.skipped import Skipped
from shardtool.units import format_size, pluralize
from shardtool.values import NumberType, Oversize, chunk_slices

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from shardtool.entries.sample_table import SampleTable
    from shardtool.entries.strings import PackedStrings
    from shardtool.pattern import ShardPattern


_HEADROOM = 0.8  # fill new shards to this share of the limits, so a growing dataset keeps its shard count
_STEP_DIVISOR = 16
_MAX_EXHAUSTIVE_SHARDS = 100


class HashAssignment:
    """Assigns samples to shards by the hash of their keys. `sizes` has the bytes of each sample in its shard."""

    def __init__(
        self, keys: PackedStrings, sizes: NDArray[np.int64], limits: ShardCapacity, bounds: ShardBounds
    ) -> None:
        self._keys, self._sizes, self._limits, self._bounds = keys, sizes, limits, bounds
        self._hashes = keys.hashes(b"shardtool place")
        self._max_count = NO_LIMIT if limits.max_count is None else limits.max_count

    def assign(
        self, requested: RequestedShards | None, seed: int | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[str, ...]]:
        """Return `order` and `ends` (see `Plan`), and notes.

        The samples of a shard are sorted by key or, with a seed, by a seeded hash of the key.
        """
        count, notes = self._choose_count() if requested is None else self._check_requested(requested)
        if seed is None:
            order = self._keys.sorted_order()
        else:
            order = np.argsort(self._keys.hashes(b"shardtool order", seed), kind="stable")
        shard, counts, _ = self._count_per_shard(count)
        return order[np.argsort(shard[order], kind="stable")], np.cumsum(counts), notes

    def _check_requested(self, requested: RequestedShards) -> tuple[int, tuple[str, ...]]:
        samples, count = pluralize(len(self._keys), "sample"), requested.number
        found, expected = "", "a sample in each shard"
        _, counts, sizes = self._count_per_shard(min(count, len(self._keys)))
        in_one_shard = f"in one of {pluralize(count, 'shard')} by hash"
        if count > len(self._keys):
            found = f"{count:,} shards for {samples}"
        elif empty := int(np.count_nonzero(counts == 0)):
            found = f"{empty:,} of {count:,} shards by hash would be empty, with {samples}"
        elif counts.max() > self._max_count:
            found, expected = f"{pluralize(int(counts.max()), 'sample')} {in_one_shard}", f"at most {self._max_count:,}"
        elif sizes.max() > self._limits.max_planned_bytes:
            found = f"{format_size(int(sizes.max()))} {in_one_shard}"
            expected = f"at most {format_size(self._bounds.max_size or 0)}"
        if found:
            is_any_empty = count > len(self._keys) or not counts.min()
            candidates = self._counts_downward(count - 1) if is_any_empty else self._counts_upward(count + 1, 1)
            alternative = self._first_valid(candidates, 1)
            raise InvalidRequest(requested.where, found, expected=expected, remedy=_advise_count(alternative))
        return count, ()

    def _choose_count(self) -> tuple[int, tuple[str, ...]]:
        before = self._bounds.current_shards
        if before is not None and self._can_hold(before, 1):
            return before, ()
        with_headroom = self._first_valid(self._counts_upward(1, _HEADROOM), _HEADROOM)
        count = with_headroom or self._first_valid(self._counts_upward(1, 1), 1)
        if not count:
            samples = pluralize(len(self._keys), "sample")
            found = f"{samples}: with any number of shards, a shard would be empty or over the limits"
            raise InvalidRequest(option_text("place", "hash"), found, remedy=_advise_count())
        if before is None:
            return count, ()
        problem = f"{pluralize(before, 'shard')} by hash can no longer hold the samples"
        return count, (f"{problem}: writing all samples to {count:,} new shards",)

    def _count_per_shard(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        shard: NDArray[np.int64] = (self._hashes % np.uint64(count)).astype(np.int64)
        counts = np.bincount(shard, minlength=count).astype(np.int64)
        return shard, counts, np.asarray(np.bincount(shard, weights=self._sizes, minlength=count), np.float64)

    def _can_hold(self, count: int, share: float) -> bool:
        if count > len(self._keys) or count % self._bounds.multiple_of:
            return False
        _, counts, sizes = self._count_per_shard(count)
        max_bytes, max_samples = self._limits.max_planned_bytes * share, self._max_count * share
        return bool(counts.min() > 0 and counts.max() <= max_samples and sizes.max() <= max_bytes)

    def _first_valid(self, numbers: Iterator[int], share: float) -> int:
        return next((count for count in numbers if self._can_hold(count, share)), 0)

    def _counts_upward(self, start: int, share: float) -> Iterator[int]:
        samples, multiple = len(self._keys), self._bounds.multiple_of
        needed_by_size = int(self._sizes.sum() / (self._limits.max_planned_bytes * share))
        start = max(start, needed_by_size, int(samples / (self._max_count * share)), 1)
        count = -(-start // multiple) * multiple
        while count <= (samples if samples < _MAX_EXHAUSTIVE_SHARDS else samples // 2):
            yield count
            count += _next_step(count, multiple)

    def _counts_downward(self, start: int) -> Iterator[int]:
        multiple = self._bounds.multiple_of
        count = min(start, len(self._keys)) // multiple * multiple
        while count > 0:
            yield count
            count -= _next_step(count, multiple)


def _next_step(count: int, multiple: int) -> int:
    return multiple if count <= _MAX_EXHAUSTIVE_SHARDS else max(1, count // _STEP_DIVISOR // multiple) * multiple


def _advise_count(count: int = 0) -> str:
    order = option_text("place", "order")
    if count:
        return f"Use {option_text('shards', count)} or {order}."
    return f"Use {order}, or allow larger shards with {option_text('max_size')} and {option_text('max_count')}."


DEFAULT_MAX_SIZE = 10**9
_ESTIMATE_FILL_SHARE = 0.97  # fill shards to this share of the maximum size, because estimates may be too small


@dataclass(frozen=True)
class Plan:
    """The assignment of samples to shards.

    Attributes:
        stored_sizes: int64[rows], bytes of each payload in the shard. None if `entries.rows.size` has the same sizes.
        order: int64[samples], the sample at each position. None if the plan has the order of `entries`.
        total: int64[samples + 1], bytes of all samples before each position.
        ends: int64[shards], the position after the last sample of each shard.
        regions: int64[regions, 2], start and end of each region of a shuffle's temporary file. One call can read
            a whole region. None if payloads are read one by one.
    """

    format: str
    entries: SampleTable
    stored_sizes: NDArray[np.int64] | None
    order: NDArray[np.int64] | None
    total: NDArray[np.int64]
    ends: NDArray[np.int64]
    limits: ShardCapacity = field(default_factory=ShardCapacity)
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    regions: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.total) - 1

    @property
    def shards(self) -> int:
        """The number of shards."""
        return len(self.ends)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """The planned size of each finished shard in bytes, int64[shards]."""
        sizes: NDArray[np.int64] = np.diff(self.total[np.append(0, self.ends)])
        return sizes + TRAILER_SIZE[self.format]

    def span(self, shard: int) -> tuple[int, int]:
        """Return the position of a shard's first sample, and the position after its last sample."""
        return (int(self.ends[shard - 1]) if shard else 0), int(self.ends[shard])

    def count(self, shard: int) -> int:
        """Return the number of samples in a shard."""
        first, last = self.span(shard)
        return last - first

    def key_at(self, position: int) -> str:
        """Return the key of the sample at a position."""
        return self.entries.key(position if self.order is None else int(self.order[position]))

    def metadata(self, shard: int) -> pa.Table | None:
        """Return the metadata of a shard's samples."""
        metadata = self.entries.metadata
        if metadata is None:
            return None
        first, last = self.span(shard)
        if self.order is None:
            return metadata.slice(first, last - first)
        return metadata.take(number_array(self.sample_numbers(shard)))

    def changed_ns(self, shard: int) -> int:
        """Return the latest ctime of a shard's source files, in nanoseconds since 1970."""
        return int(np.max(self.entries.rows.changed_ns[self.rows(shard)]))

    def subset(self, positions: NDArray[np.int64]) -> Plan:
        """Return a plan with the same limits for the samples at these positions."""
        order = positions if self.order is None else self.order[positions]
        total = cumulative_sizes(np.diff(self.total), positions)
        return replace(
            self, order=order, total=total, ends=ShardRuns(total, self.limits).find_fewest_ends(), skipped=(), notes=()
        )

    def sample_numbers(self, shard: int) -> NDArray[np.int64]:
        """Return the indexes in `entries` of the samples in a shard."""
        first, last = self.span(shard)
        return np.arange(first, last) if self.order is None else self.order[first:last]

    def rows(self, shard: int) -> NDArray[np.int64]:
        """Return the indexes in `entries.rows` of the fields in a shard."""
        return self.entries.rows_of(self.sample_numbers(shard))


def make_plan(
    entries: SampleTable,
    pattern: ShardPattern,
    bounds: ShardBounds,
    shuffle_seed: int | None = None,
    *,
    samples: NDArray[np.int64] | None = None,
    estimate: NDArray[np.int64] | None = None,
) -> Plan:
    """Assign samples to shards.

    Args:
        pattern: Pattern of the shard names. A closed range of 100 names requests exactly 100 shards, or at most 100
            shards if `bounds` contains a limit or there are fewer than 100 samples.
        samples: Indexes of the samples to pack, or None for all samples.
        estimate: int64[samples], estimated bytes of each sample, if exact sizes are unknown.
    """
    shard_format = pattern.format
    requested = _requested_shards(pattern, bounds, len(entries) if samples is None else len(samples))
    max_size = bounds.max_size or (DEFAULT_MAX_SIZE if bounds.max_count is None and requested is None else None)
    max_bytes = max_size - TRAILER_SIZE[shard_format] if max_size else NO_LIMIT
    stored, rounded = _stored_number_sizes(entries) if STORES_NUMBERS[shard_format] else (None, ())
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    fill_share = 1 if estimate is None or max_bytes == NO_LIMIT else _ESTIMATE_FILL_SHARE
    limits = ShardCapacity(max_bytes, int(max_bytes * fill_share), bounds.max_count)
    if estimate is not None:
        sizes = np.minimum(estimate, limits.max_planned_bytes)
    else:
        sizes = _sample_sizes(entries, stored, shard_format)
        samples, skipped, notes = _apply_oversize(entries, sizes, shard_format, max_bytes, bounds.oversize, samples)
    chosen_sizes = sizes if samples is None else sizes[samples]
    order: NDArray[np.int64] | None = None
    if bounds.by_hash:
        keys = entries.keys if samples is None else entries.keys.take(samples)
        order, ends, hash_notes = HashAssignment(keys, chosen_sizes, limits, bounds).assign(requested, shuffle_seed)
        notes = (*notes, *hash_notes)
        total = cumulative_sizes(chosen_sizes, order)
    else:
        order = None if shuffle_seed is None else random_permutation(len(chosen_sizes), shuffle_seed)
        total = cumulative_sizes(chosen_sizes, order)
        ends = cut_shards(total, requested, limits, bounds)
    if samples is not None:
        order = samples if order is None else samples[order]
    notes = (*notes, *_check_name_count(pattern, bounds, len(ends), len(chosen_sizes)))
    return Plan(shard_format, entries, stored, order, total, ends, limits, skipped, (*notes, *rounded))


def plan_by_counts(entries: SampleTable, shard_format: str, counts: Sequence[int]) -> Plan:
    """Return a plan that keeps the order of `entries`. `counts` is the number of samples in each shard."""
    stored, rounded = _stored_number_sizes(entries) if STORES_NUMBERS[shard_format] else (None, ())
    total = cumulative_sizes(_sample_sizes(entries, stored, shard_format))
    return Plan(shard_format, entries, stored, None, total, np.cumsum(counts), notes=rounded)


def _sample_sizes(entries: SampleTable, stored: NDArray[np.int64] | None, shard_format: str) -> NDArray[np.int64]:
    sizes = entries.rows.size if stored is None else stored
    is_list = None if entries.spans is None else entries.spans.is_list
    columns = RecordColumns(entries.keys, entries.first_rows, entries.fields, entries.rows.code, sizes, is_list)
    return sample_sizes(shard_format, columns)


def _requested_shards(pattern: ShardPattern, bounds: ShardBounds, samples: int) -> RequestedShards | None:
    if bounds.shards is not None:
        requested = RequestedShards(bounds.shards, option_text("shards", bounds.shards))
    elif (bounds.max_size, bounds.max_count) != (None, None) or pattern.count is None or pattern.count > samples:
        return None
    else:
        requested = RequestedShards(pattern.count, pattern.text)
    if requested.number % bounds.multiple_of:
        problem = f"{requested.where} requests {pluralize(requested.number, 'shard')}"
        expected = f"a multiple of {bounds.multiple_of:,}"
        raise InvalidRequest(option_text("shards_multiple_of"), problem, expected=expected)
    return requested


def _check_name_count(pattern: ShardPattern, bounds: ShardBounds, shards: int, samples: int) -> tuple[str, ...]:
    if pattern.count is None:
        return ()
    if shards > pattern.count:
        remedy = "Use an open range such as out-{000000..}.tar, a wider range, or larger shards."
        raise InvalidRequest(pattern.text, f"{pluralize(pattern.count, 'name')} for {shards:,} shards", remedy=remedy)
    if shards == pattern.count or (bounds.max_size, bounds.max_count, bounds.shards) != (None, None, None):
        return ()
    planned = f"{pluralize(shards, 'shard')} of at most {format_size(DEFAULT_MAX_SIZE)}"
    why = f"{pattern.count:,} shards need at least {pattern.count:,} samples; there are {samples:,}"
    maximum = "" if bounds.by_hash else f" ({option_text('shards', samples)} is the maximum)"
    return (f"{pattern.text}: {planned}; {why}{maximum}",)


def _stored_number_sizes(entries: SampleTable) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    key = to_text(KEY_FEATURE)
    if key in entries.fields and entries.code_counts()[entries.fields.index(key)]:
        raise InvalidRequest(source_label(entries.root), f"a field named {key!r}, which TFRecords reserve for the key")
    if not entries.values.numbers:
        return None, ()
    stored: NDArray[np.int64] = entries.rows.size.copy()
    notes = []
    for name, number in entries.values.numbers.items():
        rounded = 0
        rows = np.flatnonzero((entries.rows.code == entries.fields.index(name)) & (entries.rows.kind == INLINE))
        samples = entries.samples_of(rows)
        for chunk in chunk_slices(len(rows)):
            chunk_samples = samples[chunk]
            texts = entries.values.inline[name].gather(chunk_samples)[:-1].split(b"\0")
            stored[rows[chunk]] = [*_encoded_sizes(entries, name, number, chunk_samples.tolist(), texts)]
            rounded += count_rounded(texts) if number == "float" else 0
        if rounded:
            notes.append(rounded_note(name, rounded))
    return stored, tuple(notes)


def rounded_note(name: str, count: int) -> str:
    """Return a note that `count` values of a field were rounded to 32 bits."""
    return f"{pluralize(count, 'value')} of {name!r} rounded: TFRecord's floats have 32 bits"


def count_rounded(texts: Sequence[bytes]) -> int:
    """Count numbers that a 32-bit float would change. 0.1 does not count, because its float is written as 0.1."""
    wide = np.array([float(text) for text in texts])
    narrow = wide.astype(np.float32).astype(str).astype(np.float64)
    return int(np.count_nonzero((narrow != wide) & ~np.isnan(wide)))


def _encoded_sizes(
    entries: SampleTable, name: str, number: NumberType, samples: list[int], texts: list[bytes]
) -> Iterator[int]:
    for sample, text in zip(samples, texts, strict=True):
        try:
            yield len(encode_number(text, number))
        except (ValueError, OverflowError):
            location = f"{printable(entries.key(sample))}, field {name!r}"
            expected = f"a number that fits into TFRecord's {number}"
            raise InvalidRequest(location, repr(printable(text)), expected=expected) from None


def _apply_oversize(
    entries: SampleTable, sizes: NDArray[np.int64], shard_format: str, max_bytes: int, oversize: Oversize,
    samples: NDArray[np.int64] | None,
) -> tuple[NDArray[np.int64] | None, tuple[Skipped, ...], tuple[str, ...]]:  # fmt: skip
    """Return the remaining samples, the skipped samples, and notes."""
    trailer, format_limit = TRAILER_SIZE[shard_format], MAX_SAMPLE_BYTES[shard_format]
    limit = min(max_bytes, format_limit)
    too_large = np.flatnonzero(sizes > limit) if samples is None else samples[sizes[samples] > limit]
    if not len(too_large):
        return samples, (), ()
    shard_sizes = sizes + trailer
    impossible = too_large[sizes[too_large] > format_limit]
    if len(impossible) and oversize != "skip":
        found = _describe_samples(entries, shard_sizes, impossible, "a TFRecord")
        remedy = f"Write tar shards, or skip these samples with {option_text('oversize', 'skip')}."
        raise InvalidRequest("TFRecord", found, expected=f"less than 2 GiB ({format_limit:,} bytes)", remedy=remedy)
    found = _describe_samples(entries, shard_sizes, too_large, f"a shard of {format_size(limit + trailer)}")
    if oversize == "error":
        alone, skip = option_text("oversize", "alone"), option_text("oversize", "skip")
        remedy = f"Raise {option_text('max_size')}, or use {alone} (one shard per such sample) or {skip}."
        raise InvalidRequest(option_text("max_size"), found, remedy=remedy)
    if oversize == "alone":
        return samples, (), (f"{found}; each gets its own shard",)
    limit_names = dict.fromkeys(too_large.tolist(), cli_option("max_size"))
    limit_names |= dict.fromkeys(impossible.tolist(), "the 2 GiB of a TFRecord")
    skipped = tuple(
        Skipped(entries.key(sample), "", "oversize", f"{int(shard_sizes[sample]):,} bytes, over {name}")
        for sample, name in limit_names.items()
    )
    kept = np.flatnonzero(sizes <= limit) if samples is None else samples[sizes[samples] <= limit]
    if not len(kept):
        remedy = "Write tar shards" if len(impossible) == len(too_large) else f"Raise {option_text('max_size')}"
        raise InvalidRequest(option_text("max_size"), found, remedy=f"{remedy}: no samples remain.")
    return kept, skipped, ()


def _describe_samples(
    entries: SampleTable, sizes: NDArray[np.int64], samples: NDArray[np.int64], container: str
) -> str:
    names = [f"{printable(entries.key(sample))} ({format_size(int(sizes[sample]))})" for sample in samples[:5].tolist()]
    return f"{pluralize(len(samples), 'sample')} too large for {container}: {format_list(names, total=len(samples))}"
