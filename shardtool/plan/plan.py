"""Which sample goes into which shard, decided before a byte is written.

A `Plan` is pure: entries and bounds in, columns out, no file opened. Because the size of every
record is known beforehand, a shard is a task of its own with a known name and size, which is what
makes workers, resume and "no shard is ever larger than asked" simple.

Samples keep their order, or are put into one global random order, or into one by the hashes of their keys; shards are
contiguous runs of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from shardtool.entries.arrow import number_array
from shardtool.entries.sizes import NUMBERS, SAMPLE_LIMIT, TRAILER_SIZE, Payloads, heads_and_tails, sample_sizes
from shardtool.errors import InvalidRequest, listing, printable
from shardtool.fetch import shown_bytes
from shardtool.format.tfrecord import KEY_FEATURE, encode_number
from shardtool.plan.order import NO_LIMIT, Bounds, HashedSamples, Limits, Runs, ShardsAsked, cut, running, shuffled
from shardtool.skipped import Skipped
from shardtool.values import (
    FILE,
    INLINE,
    LINK,
    SPAN,
    ShardContent,
    ShardSamples,
    ShardSpans,
    chunks_of,
    counted,
    show_size,
    source_name,
    to_bytes,
    to_text,
)
from shardtool.wording import option, typed_option

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from shardtool.entries.entries import Entries
    from shardtool.pattern import ShardPattern
    from shardtool.values import Number, Oversize

DEFAULT_MAX_SIZE = 10**9
_ESTIMATED_SHARE = 0.97  # of the bound is filled where sizes are estimates: few shards leave a remainder then


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
    entries: Entries
    stored: NDArray[np.int64] | None
    order: NDArray[np.int64] | None
    total: NDArray[np.int64]
    ends: NDArray[np.int64]
    limits: Limits = field(default_factory=Limits)
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
        total = running(np.diff(self.total), places)
        return replace(self, order=order, total=total, ends=Runs(total, self.limits).fill(), skipped=(), notes=())

    def which(self, shard: int) -> NDArray[np.int64]:
        """Return the samples of a shard."""
        first, last = self.span(shard)
        return np.arange(first, last) if self.order is None else self.order[first:last]

    def rows(self, shard: int) -> NDArray[np.int64]:
        """Return the rows of a shard's samples."""
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
    asked = _asked(pattern, bounds, len(entries) if which is None else len(which))
    max_size = bounds.max_size or (DEFAULT_MAX_SIZE if bounds.max_count is None and asked is None else None)
    room = max_size - TRAILER_SIZE[shard_format] if max_size else NO_LIMIT
    stored, rounded = _stored(entries) if NUMBERS[shard_format] else (None, ())
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    if estimate is not None:
        limits = Limits(room, room if room == NO_LIMIT else int(room * _ESTIMATED_SHARE), bounds.max_count)
        sizes = np.minimum(estimate, limits.planned)
    else:
        limits = Limits(room, room, bounds.max_count)
        sizes = _sizes(entries, stored, shard_format)
        which, skipped, notes = _fit(entries, sizes, shard_format, room, bounds.oversize, which)
    chosen = sizes if which is None else sizes[which]
    order: NDArray[np.int64] | None = None
    if bounds.by_hash:
        keys = entries.keys if which is None else entries.keys.take(which)
        order, ends, changed = HashedSamples(keys, chosen, limits, bounds).divide(asked, shuffle_seed)
        notes, total = (*notes, *changed), running(chosen, order)
    else:
        order = None if shuffle_seed is None else shuffled(len(chosen), shuffle_seed)
        total = running(chosen, order)
        ends = cut(total, asked, limits, bounds)
    order = which if order is None else order if which is None else which[order]
    notes = (*notes, *_check_names(pattern, bounds, len(ends), len(chosen)))
    return Plan(shard_format, entries, stored, order, total, ends, limits, skipped, (*notes, *rounded))


def plan_of_counts(entries: Entries, shard_format: str, counts: Sequence[int]) -> Plan:
    """Return the plan for `entries` in their own order, in shards of `counts` samples.

    Raises:
        InvalidRequest: A number that the format cannot hold.
    """
    stored, rounded = _stored(entries) if NUMBERS[shard_format] else (None, ())
    total = running(_sizes(entries, stored, shard_format))
    return Plan(shard_format, entries, stored, None, total, np.cumsum(counts), notes=rounded)


def _sizes(entries: Entries, stored: NDArray[np.int64] | None, shard_format: str) -> NDArray[np.int64]:
    """Return int64[samples]: all records of each."""
    rows, whole = entries.rows, None if entries.spans is None else entries.spans.whole
    held = rows.size if stored is None else stored
    return sample_sizes(shard_format, Payloads(entries.keys, entries.first, entries.fields, rows.code, held, whole))


def _asked(pattern: ShardPattern, bounds: Bounds, samples: int) -> ShardsAsked | None:
    """Return the number of shards that is asked for; None: as many as the bounds need.

    Raises:
        InvalidRequest: It is not the multiple that it is to be.
    """
    if bounds.shards is not None:
        asked = ShardsAsked(bounds.shards, option("shards", bounds.shards))
    elif bounds.max_size is not None or bounds.max_count is not None or (pattern.count or samples + 1) > samples:
        return None
    else:
        asked = ShardsAsked(pattern.count or 0, pattern.text)
    if asked.number % bounds.multiple_of:
        problem = f"{asked.where} asks for {counted(asked.number, 'shard')}"
        raise InvalidRequest(option("shards_multiple_of"), problem, expected=f"a multiple of {bounds.multiple_of:,}")
    return asked


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
    why = f"{pattern.count:,} shards need at least {pattern.count:,} samples; there are {samples:,}"
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
        for part in chunks_of(len(rows)):
            some = samples[part]
            texts = entries.values.inline[name].gather(some)[:-1].split(b"\0")
            stored[rows[part]] = [*_stored_sizes(entries, name, number, some.tolist(), texts)]
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


def _stored_sizes(entries: Entries, name: str, number: Number, samples: list[int], texts: list[bytes]) -> Iterator[int]:
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


def _fit(
    entries: Entries, sizes: NDArray[np.int64], shard_format: str, room: int, oversize: Oversize,
    which: NDArray[np.int64] | None,
) -> tuple[NDArray[np.int64] | None, tuple[Skipped, ...], tuple[str, ...]]:  # fmt: skip
    """Apply the rule for samples that fit in no shard; return which stay (None: all), what is left out, and notes."""
    trailer, most = TRAILER_SIZE[shard_format], SAMPLE_LIMIT[shard_format]
    limit = min(room, most)
    too_large = np.flatnonzero(sizes > limit) if which is None else which[sizes[which] > limit]
    if not len(too_large):
        return which, (), ()
    total, never = sizes + trailer, too_large[sizes[too_large] > most]
    if len(never) and oversize != "skip":
        found = _named(entries, total, never, "a TFRecord")
        remedy = f"Write tar shards, or leave them out with {option('oversize', 'skip')}."
        raise InvalidRequest("TFRecord", found, expected=f"less than 2 GiB ({most:,} bytes)", remedy=remedy)
    found = _named(entries, total, too_large, f"a shard of {show_size(limit + trailer)}")
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


# What a worker must know of a shard's samples, taken out of the plan, and the hash of it.


FORMAT_VERSION = 1  # of the hash
_WORTH_READING = 0.25  # of a region must be wanted: then reading it whole beats reading its spans one by one


def shard_samples(plan: Plan, shard: int) -> ShardSamples:
    """Return what a worker must know to write a shard: plain bytes, no arrays."""
    first, last = plan.span(shard)
    e = replace(plan.entries, metadata=None).take(plan.which(shard))
    stored = e.rows.size if plan.stored is None else plan.stored[plan.rows(shard)]
    content = ShardContent(
        keys=e.keys.data,
        counts=e.counts().astype(np.uint16).tobytes(),
        fields=tuple(map(to_bytes, e.fields)),
        codes=e.rows.code.tobytes(),
        sizes=e.rows.size.tobytes(),
        stored=stored.tobytes(),
        inline=_inline(e) if e.values.inline else b"",
    )
    if NUMBERS[plan.format]:
        whole = None if e.spans is None else e.spans.whole
        content = replace(
            content,
            whole=b"" if whole is None else whole.tobytes(),
            numbers={e.fields.index(name): number for name, number in e.values.numbers.items()},
            lists={e.fields.index(name): kind for name, kind in e.values.lists.items()},
        )
    return ShardSamples(
        content=content,
        needs=np.diff(plan.total[first : last + 1]).tobytes(),
        root=e.root,
        kinds=e.rows.kind.tobytes(),
        mtimes=e.rows.mtime_ns.tobytes(),
        paths=b"" if e.rows.paths is None else e.rows.paths.span(0, len(stored)),
        folders=e.folders,
        changed_ns=int(np.max(e.rows.changed_ns, where=np.isin(e.rows.kind, (FILE, LINK)), initial=0)),
        spans=ShardSpans() if e.spans is None else _shard_spans(plan, e, stored),
    )


def _shard_spans(plan: Plan, e: Entries, stored: NDArray[np.int64]) -> ShardSpans:
    """Return where the SPAN rows of a shard lie, whose samples these are."""
    spans, each = e.known_spans, np.arange(len(stored))
    used, file = _used(e.files_of(each))
    files = tuple(spans.files[at] for at in used) if spans.files else ()
    regions, runs = b"" if plan.regions is None else _regions(plan.regions, e), b""
    is_zip = any(one.form == "zip" for one in files)
    if plan.format == "tar" and files and not is_zip and np.isin(e.rows.kind, (SPAN, INLINE)).all():
        ends = each + 1 if regions else _runs(e, stored, file)  # with regions, runs of one row
        runs = ends.astype(np.uint32).tobytes()
    return ShardSpans(
        files=files,
        file=file.astype(np.uint32).tobytes(),
        offsets=spans.offset.tobytes(),
        expected=spans.expected.tobytes() if np.any(spans.expected >= 0) else b"",
        runs=runs,
        regions=regions,
    )


def _regions(regions: NDArray[np.int64], e: Entries) -> bytes:
    """Return the regions of which a shard wants enough to read them whole."""
    spans = e.known_spans
    spooled = (e.rows.kind == SPAN) & (e.files_of(np.arange(len(e.rows.kind))) == 0)
    offset, size = spans.offset[spooled], e.rows.size[spooled]
    at = np.searchsorted(regions[:, 0], offset, "right") - 1
    inside = (at >= 0) & (offset < regions[at, 1])
    used, place = np.unique(at[inside], return_inverse=True)
    wanted = np.bincount(place, weights=size[inside], minlength=len(used))
    found: NDArray[np.int64] = regions[used]
    return found[wanted >= _WORTH_READING * (found[:, 1] - found[:, 0])].tobytes()


def _runs(e: Entries, stored: NDArray[np.int64], file: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each run of rows ends that one read can copy: same file, same spacing in source and shard."""
    kinds = e.rows.kind
    heads, tails = heads_and_tails("tar", Payloads(e.keys, e.first, e.fields, e.rows.code, stored))
    place = np.cumsum(heads + stored + tails) - stored - tails
    breaks = (np.diff(e.known_spans.offset - place) != 0) | (kinds[1:] != SPAN) | (kinds[:-1] != SPAN)
    breaks |= np.diff(file) != 0
    return np.append(np.flatnonzero(breaks) + 1, len(stored))


def _inline(e: Entries) -> bytes:
    """Return the payload of each row that is INLINE, nothing for others, a NUL after each."""
    inline, texts = e.rows.kind == INLINE, [b""] * len(e.rows.kind)
    for name, column in e.values.inline.items():
        rows = np.flatnonzero(inline & (e.rows.code == e.fields.index(name)))
        found = column.span(0, len(e))[:-1].split(b"\0")
        for row, owner in zip(rows.tolist(), e.owners(rows).tolist(), strict=True):
            texts[row] = found[owner]
    return b"\0".join(texts) + b"\0"


def fingerprint(shard_format: str, samples: ShardSamples, work: str = "") -> str:
    """Return a hash of what the plan says of a shard: another one means other bytes.

    Neither the source's root nor times are in it, so that the same tree elsewhere gives the same sidecars.

    Args:
        shard_format: `tar` or `tfrecord`.
        samples: The shard's samples.
        work: A digest of the transform of the samples; empty for none.
    """
    # Only the fields that this shard has: another one elsewhere in the source changes nothing here.
    content = samples.content
    used, codes = _used(np.frombuffer(content.codes, np.uint16))
    names = b"\0".join(content.fields[code] for code in used)
    what = b"shardtool plan %d" % FORMAT_VERSION
    what += (shard_format if shard_format != "tar" else "").encode() + (f" {work}" if work else "").encode()
    local = codes.astype(np.uint16).tobytes()
    paths = samples.shown_paths(shown_bytes)  # another signature of a URL makes no other file of it
    paths = paths if paths.strip(b"\0") else b""  # bytes of a table are in no file, as those of a program
    columns = [content.keys, content.counts, names, local, content.sizes, paths, content.inline]
    kinds = [content.numbers.get(code) or content.lists.get(code) or "" for code in used]
    if any(kinds):
        columns += [" ".join(kinds).encode(), content.whole]
    return hash_of(what, columns)


def hash_of(what: bytes, columns: Iterable[bytes | memoryview]) -> str:
    """Return a hash of columns, each behind its length, and of what they are."""
    digest = blake2b(what, digest_size=16)
    for column in columns:
        digest.update(b"%d:" % memoryview(column).nbytes)
        digest.update(column)
    return digest.hexdigest()


def _used(numbers: NDArray[np.unsignedinteger]) -> tuple[list[int], NDArray[np.int64]]:
    """Return which numbers occur, ascending, and the place of each among them: `np.unique` imports half of NumPy."""
    seen = np.zeros(int(numbers.max(initial=0)) + 1, np.bool_)
    seen[numbers] = True
    return np.flatnonzero(seen).tolist(), (np.cumsum(seen) - 1)[numbers]
