"""Which sample goes into which shard, decided before a byte is written.

A `Plan` is pure: entries and bounds in, columns out, no file opened. Because the size of every
record is known beforehand, a shard is a task of its own with a known name and size, which is what
makes workers, resume and "no shard is ever larger than asked" simple.

Samples keep their order, or are put into one global random order; shards are contiguous runs of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.entries.arrow import number_array
from shardtool.errors import InvalidRequest, listing, printable
from shardtool.format.sizes import (
    NUMBERS,
    SAMPLE_LIMIT,
    TRAILER_SIZE,
    Payloads,
    heads_and_tails,
    sample_sizes,
)
from shardtool.format.tfrecord import KEY_FEATURE, encode_number
from shardtool.names import Names
from shardtool.values import INLINE, SPAN, Oversize, ShardSamples, Skipped, counted, show_size, to_bytes, to_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardtool.entries.entries import Entries
    from shardtool.pattern import ShardPattern

DEFAULT_MAX_SIZE = 10**9
FORMAT_VERSION = 1
NO_LIMIT = 2**62
_WORTH_READING = 0.25  # of a region must be wanted: then reading it whole beats reading its spans one by one
_ESTIMATED_SHARE = 0.97  # of the bound is filled where sizes are estimates: few shards leave a remainder then


@dataclass(frozen=True, slots=True)
class Bounds:
    """What limits a shard.

    Attributes:
        max_size: Bytes of the finished file; None: no such bound was asked for.
        max_count: Samples; likewise.
        equal_count: Whether shards hold equally many samples, give or take one.
        multiple_of: The number of shards is a multiple of this.
        oversize: What becomes of a sample that fits in no shard: an error, a shard of its own, or left out.
    """

    max_size: int | None = None
    max_count: int | None = None
    equal_count: bool = False
    multiple_of: int = 1
    oversize: Oversize = "error"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a plan's shards were cut by.

    Attributes:
        room: Bytes of records that a shard may hold; `NO_LIMIT` where nothing bounds them.
        planned: What the plan fills of that: less, where it only estimates what samples take.
        max_count: Samples; None: any number.
    """

    room: int
    planned: int
    max_count: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """Samples in shard order, and where the shards end.

    Attributes:
        format: `tar` or `tfrecord`.
        entries: The samples.
        stored: int64[rows], the bytes that payloads take in the shard; None: `entries.size`.
        order: int64[samples]: which sample stands where; None for the entries' own order.
        total: int64[samples + 1]: bytes of the records before each place.
        ends: int64[shards]: the place after each shard's last sample.
        sizes: int64[shards]: bytes of each finished file, exact.
        limits: What the shards were cut by.
        left_out: Samples that `oversize` left out.
        notes: What the user should know, such as shards over the bound.
        regions: int64[regions, 2], ascending: where parts of the first of `entries.files` start and end, each of them
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
    left_out: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    regions: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        """Return how many samples there are, those that were left out not counted."""
        return len(self.total) - 1

    @property
    def shards(self) -> int:
        """How many shards there are."""
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

    def samples(self, shard: int) -> ShardSamples:
        """Return what a worker must know to write a shard: plain bytes, no arrays."""
        e, rows = self.entries, self._rows(shard)
        first, last = self.span(shard)
        if isinstance(rows, slice):
            keys, counts = e.keys.span(first, last), np.diff(e.first[first : last + 1])
            paths = e.paths.span(rows.start, rows.stop) if e.paths is not None else None
        else:
            which = self.which(shard)
            keys, counts = e.keys.gather(which), e.counts()[which]
            paths = e.paths.gather(rows) if e.paths is not None else None
        has_numbers = NUMBERS[self.format]
        numbers = {e.fields.index(name): number for name, number in e.numbers.items()} if has_numbers else {}
        return ShardSamples(
            root=e.root,
            keys=keys,
            needs=np.diff(self.total[first : last + 1]).tobytes(),
            counts=counts.astype(np.uint16).tobytes(),
            fields=tuple(map(to_bytes, e.fields)),
            codes=e.code[rows].tobytes(),
            kinds=e.kind[rows].tobytes(),
            sizes=e.size[rows].tobytes(),
            mtimes=e.mtime_ns[rows].tobytes(),
            paths=paths,
            inline=self._inline(shard, rows, counts) if e.inline else None,
            stored=None if self.stored is None else self.stored[rows].tobytes(),
            numbers=numbers,
            lists={e.fields.index(name): kind for name, kind in e.lists.items()} if has_numbers else {},
            whole=e.whole[rows].tobytes() if e.whole is not None and has_numbers else None,
            **self._spans(shard, rows),
        )

    def _spans(self, shard: int, rows: NDArray[np.int64] | slice) -> dict[str, Any]:
        """Return where the SPAN rows of a shard lie."""
        e = self.entries
        if e.offset is None:
            return {}
        which = self.which(shard)
        files, file = e.files, np.zeros(len(which), np.int64)
        if e.file is not None:
            used, file = _used(e.file[which])
            files = tuple(e.files[at] for at in used)
        regions, runs = self._regions(shard, rows), None
        if self.format == "tar" and files and np.isin(e.kind[rows], (SPAN, INLINE)).all():
            runs = self._runs(shard, rows, file) if regions is None else _each(len(e.kind[rows]))
        return {
            "offsets": e.offset[rows].tobytes(),
            "files": files,
            "file": file.astype(np.uint32).tobytes(),
            "expected": None if e.expected is None else e.expected[rows].tobytes(),
            "runs": runs,
            "regions": regions,
        }

    def _regions(self, shard: int, rows: NDArray[np.int64] | slice) -> bytes | None:
        """Return the regions of which a shard wants enough to read them whole; None where there are none."""
        e = self.entries
        if self.regions is None or e.offset is None:
            return None
        spooled = e.kind[rows] == SPAN
        if e.file is not None:
            which = self.which(shard)
            spooled &= np.repeat(e.file[which] == 0, e.counts()[which])
        offset, size = e.offset[rows][spooled], e.size[rows][spooled]
        at = np.searchsorted(self.regions[:, 0], offset, "right") - 1
        inside = (at >= 0) & (offset < self.regions[at, 1])
        used, place = np.unique(at[inside], return_inverse=True)
        wanted = np.bincount(place, weights=size[inside], minlength=len(used))
        found = self.regions[used]
        found = found[wanted >= _WORTH_READING * (found[:, 1] - found[:, 0])]
        return found.tobytes() if len(found) else None

    def _runs(self, shard: int, rows: NDArray[np.int64] | slice, file: NDArray[np.int64]) -> bytes:
        """Return the ends of runs of rows that lie in one file as far apart as they will in the shard."""
        e, which = self.entries, self.which(shard)
        counts = e.counts()[which]
        first = np.concatenate(([0], np.cumsum(counts)))
        size = e.size[rows] if self.stored is None else self.stored[rows]
        keys = Names.parse(e.keys.gather(which))
        heads, tails = heads_and_tails(self.format, Payloads(keys, first, e.fields, e.code[rows], size))
        place = np.cumsum(heads + size + tails) - size - tails
        moved = (e.offset[rows] if e.offset is not None else 0) - place
        breaks = (np.diff(moved) != 0) | (e.kind[rows][1:] != SPAN) | (e.kind[rows][:-1] != SPAN)
        breaks |= np.diff(np.repeat(file, counts)) != 0
        return np.append(np.flatnonzero(breaks) + 1, len(size)).astype(np.uint32).tobytes()

    def _inline(self, shard: int, rows: NDArray[np.int64] | slice, counts: NDArray[np.int64]) -> bytes:
        """Return the payload of each row of a shard that is INLINE, nothing for others, a NUL after each."""
        e, (first, last) = self.entries, self.span(shard)
        code, inline = e.code[rows], e.kind[rows] == INLINE
        owners = np.repeat(np.arange(last - first), counts)
        texts = [b""] * len(code)
        for name, column in e.inline.items():
            at = np.flatnonzero(inline & (code == e.fields.index(name)))
            data = column.span(first, last) if self.order is None else column.gather(self.which(shard))
            found = data[:-1].split(b"\0")
            for row, owner in zip(at.tolist(), owners[at].tolist(), strict=True):
                texts[row] = found[owner]
        return b"\0".join(texts) + b"\0"

    def columns(self, shard: int) -> Any:
        """Return the metadata of a shard's samples, a `pyarrow.Table`; None where there is none."""
        if self.entries.columns is None:
            return None
        first, last = self.span(shard)
        if self.order is None:
            return self.entries.columns.slice(first, last - first)
        return self.entries.columns.take(number_array(self.which(shard)))

    def changed_ns(self, shard: int) -> int:
        """Return when anything that goes into a shard can have changed last, in nanoseconds since 1970."""
        return int(np.max(self.entries.changed_ns[self._rows(shard)]))

    def again(self, places: NDArray[np.int64]) -> Plan:
        """Return the plan for the samples at some places of this one's order, in that order, by the same limits."""
        order = places if self.order is None else self.order[places]
        total = _running(np.diff(self.total)[places])
        ends = _Runs(total, self.limits.planned, self.limits.max_count).fill()
        sizes = np.diff(total[np.concatenate(([0], ends))]) + TRAILER_SIZE[self.format]
        return replace(self, order=order, total=total, ends=ends, sizes=sizes, left_out=(), notes=())

    def which(self, shard: int) -> NDArray[np.int64]:
        """Return the samples of a shard."""
        first, last = self.span(shard)
        return np.arange(first, last) if self.order is None else self.order[first:last]

    def _rows(self, shard: int) -> NDArray[np.int64] | slice:
        """Return the rows of a shard's samples; a slice where they lie together."""
        first, last = self.span(shard)
        if self.order is None:
            return slice(int(self.entries.first[first]), int(self.entries.first[last]))
        return self.entries.rows_of(self.which(shard))


def _each(rows: int) -> bytes:
    """Return runs of one row each."""
    return np.arange(1, rows + 1, dtype=np.uint32).tobytes()


def fingerprint(shard_format: str, samples: ShardSamples, work: str = "") -> str:
    """Return a hash of what the plan says of a shard: another one means other bytes.

    Neither the source's root nor times are in it, so that the same tree elsewhere gives the same sidecars.

    Args:
        shard_format: `tar` or `tfrecord`.
        samples: Of the shard.
        work: What tells the transform of the samples from any other; empty for none.
    """
    # Only the fields that this shard has: another one elsewhere in the source changes nothing here.
    used, codes = _used(np.frombuffer(samples.codes, np.uint16))
    names = b"\0".join(samples.fields[code] for code in used)
    digest = blake2b(b"shardtool plan %d" % FORMAT_VERSION, digest_size=16)
    if shard_format != "tar":
        digest.update(shard_format.encode())
    if work:
        digest.update(f" {work}".encode())
    local = codes.astype(np.uint16).tobytes()
    columns = [samples.keys, samples.counts, names, local, samples.sizes, samples.paths, samples.inline]
    if kinds := [samples.numbers.get(code) or samples.lists.get(code) or "" for code in used]:
        columns += [" ".join(kinds).encode(), samples.whole] if any(kinds) else []
    for column in columns:
        digest.update(b"%d:" % len(column or b""))
        digest.update(column or b"")
    return digest.hexdigest()


def make_plan(  # noqa: PLR0913 - what there is to say
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
        entries: The samples.
        pattern: Whose number of names is the capacity, or, where nothing bounds a shard, what is asked for.
        bounds: What limits a shard.
        shuffle_seed: Puts the samples into the random order of that seed.
        which: The samples to plan, where it is not all of them, in order.
        estimate: int64[samples]: the records of each, where nobody can know them before they are written.

    Raises:
        InvalidRequest: No samples, a sample over the bound, or more shards than the pattern has names.
    """
    if not len(entries):
        raise InvalidRequest("SOURCE", "no samples", expected="files such as cat/0001.jpg", remedy=_why_empty(entries))
    shard_format = pattern.format
    trailer = TRAILER_SIZE[shard_format]
    exact = bounds.max_size is None and bounds.max_count is None and pattern.count is not None
    max_size = bounds.max_size or (DEFAULT_MAX_SIZE if bounds.max_count is None and not exact else None)
    room = max_size - trailer if max_size else NO_LIMIT
    stored, rounded = _stored(entries) if NUMBERS[shard_format] else (None, ())
    left_out: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    if estimate is not None:
        limits = Limits(room, room if room == NO_LIMIT else int(room * _ESTIMATED_SHARE), bounds.max_count)
        sizes = np.minimum(estimate, limits.planned)
    else:
        limits = Limits(room, room, bounds.max_count)
        payloads = entries.size if stored is None else stored
        sizes = sample_sizes(
            shard_format,
            Payloads(entries.keys, entries.first, entries.fields, entries.code, payloads, entries.whole),
        )
        fit = _Room(room, SAMPLE_LIMIT[shard_format], trailer)
        which, left_out, notes = _fit(entries, sizes, fit, bounds.oversize, which)
    count = len(entries) if which is None else len(which)
    order = which
    if shuffle_seed is not None:
        order = shuffled(count, shuffle_seed)
        order = order if which is None else which[order]
    total = _running(sizes if order is None else sizes[order])
    ends = _exactly(total, pattern, bounds) if exact else _bounded(total, limits, bounds)
    if pattern.count is not None and len(ends) > pattern.count:
        raise InvalidRequest(
            pattern.text, f"{pattern.count:,} names for {len(ends):,} shards",
            remedy="Use an open range such as out-{000000..}.tar, a wider range, or larger shards.",
        )  # fmt: skip
    starts = np.concatenate(([0], ends[:-1]))
    shard_sizes = total[ends] - total[starts] + trailer
    return Plan(shard_format, entries, stored, order, total, ends, shard_sizes, limits, left_out, (*notes, *rounded))


def _used(numbers: NDArray[Any]) -> tuple[list[int], NDArray[np.int64]]:
    """Return which numbers occur, ascending, and the place of each among them: `np.unique` imports half of NumPy."""
    seen = np.zeros(int(numbers.max(initial=0)) + 1, np.bool_)
    seen[numbers] = True
    return np.flatnonzero(seen).tolist(), (np.cumsum(seen) - 1)[numbers]


def _running(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[places + 1]: bytes of the samples before each place."""
    total = np.empty(len(sizes) + 1, np.int64)
    total[0] = 0
    np.cumsum(sizes, out=total[1:])
    return total


def _stored(entries: Entries) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """Return int64[rows], what payloads take in a shard whose format has numbers (None: what they are), and notes.

    Raises:
        InvalidRequest: A number that the format cannot hold, or a field with the name of the key's.
    """
    if to_text(KEY_FEATURE) in entries.fields:
        raise InvalidRequest("SOURCE", "a field called '__key__', the name of a TFRecord's key", remedy="Rename it.")
    if not entries.numbers:
        return None, ()
    stored: NDArray[np.int64] = entries.size.copy()
    notes = []
    for name, number in entries.numbers.items():
        rounded = 0
        rows = np.flatnonzero((entries.code == entries.fields.index(name)) & (entries.kind == INLINE))
        samples = np.searchsorted(entries.first, rows, "right") - 1
        for first in range(0, len(rows), _CHUNK):
            some = samples[first : first + _CHUNK]
            texts = entries.inline[name].gather(some)[:-1].split(b"\0")
            try:
                stored[rows[first : first + _CHUNK]] = [len(encode_number(text, number)) for text in texts]
            except (ValueError, OverflowError):
                raise _no_number(entries, name, number, [*zip(some.tolist(), texts, strict=True)]) from None
            rounded += _rounded(texts) if number == "float" else 0
        if rounded:
            notes.append(f"{counted(rounded, 'value')} of {name!r} rounded: TFRecord's floats have 32 bits")
    return stored, tuple(notes)


def _rounded(texts: list[bytes]) -> int:
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


def shuffled(count: int, seed: int) -> NDArray[np.int64]:
    """Return a uniform random permutation of `count` places, the same on every machine and NumPy version.

    Each place gets a 64-bit number from SplitMix64 (Steele, Lea, Flood, OOPSLA 2014); they are sorted.
    """
    state = np.arange(1, count + 1, dtype=np.uint64)
    offset = int.from_bytes(blake2b(b"shuffle %d" % seed, digest_size=8).digest(), "little")
    state *= np.uint64(0x9E3779B97F4A7C15)
    state += np.uint64(offset)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state ^= state >> np.uint64(shift)
        state *= np.uint64(factor)
    state ^= state >> np.uint64(31)
    return np.argsort(state, kind="stable")


def _why_empty(entries: Entries) -> str:
    if entries.left_out:
        return f"All {len(entries.left_out):,} files were left out, such as {entries.left_out[0].path}."
    return "Is it the right folder? Look at --include, --exclude and --hidden."


@dataclass(frozen=True, slots=True)
class _Room:
    """What a shard has for records, what a sample may take by its format, and what ends a shard: bytes."""

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
        remedy = "Write tar shards, or leave them out with --oversize skip."
        raise InvalidRequest("TFRecord", found, expected=f"less than 2 GiB ({room.sample:,} bytes)", remedy=remedy)
    found = _named(entries, total, too_large, f"a shard of {show_size(min(limit, room.shard) + room.trailer)}")
    if oversize == "error":
        remedy = "Raise --max-size, or choose --oversize alone (a shard of its own) or skip."
        raise InvalidRequest("--max-size", found, remedy=remedy)
    if oversize == "alone":
        return which, (), (f"{found}; each gets a shard of its own",)
    over = dict.fromkeys(too_large.tolist(), "--max-size") | dict.fromkeys(never.tolist(), "the 2 GiB of a TFRecord")
    left_out = tuple(
        Skipped(entries.key(at), "", "oversize", f"{int(total[at]):,} bytes, over {name}") for at, name in over.items()
    )
    stay = np.flatnonzero(sizes <= limit) if which is None else which[sizes[which] <= limit]
    if not len(stay):
        remedy = "Write tar shards" if len(never) == len(too_large) else "Raise --max-size"
        raise InvalidRequest("--max-size", found, remedy=f"{remedy}: no sample is left.")
    return stay, left_out, ()


def _named(entries: Entries, total: NDArray[np.int64], which: NDArray[np.int64], what: str) -> str:
    """Say which samples are larger than `what` may be."""
    names = [f"{printable(entries.key(at))} ({show_size(int(total[at]))})" for at in which[:5].tolist()]
    return f"{counted(len(which), 'sample')} larger than {what} may be: {listing(names, total=len(which))}"


def _bounded(total: NDArray[np.int64], limits: Limits, bounds: Bounds) -> NDArray[np.int64]:
    """Return the ends of as few shards as the bounds allow."""
    runs = _Runs(total, limits.planned, limits.max_count)
    ends = runs.fill()
    multiple, samples = bounds.multiple_of, runs.samples
    count = -(-len(ends) // multiple) * multiple
    if bounds.equal_count:
        while count <= samples:
            ends = np.arange(1, count + 1, dtype=np.int64) * samples // count
            if runs.hold(ends):
                return ends
            most = samples // multiple * multiple
            step = max(1, count // (64 * multiple)) * multiple  # near enough to the least, in a bounded number of tries
            count = count + step if count == most else min(count + step, most)
    elif count <= samples:
        return ends if count == len(ends) and multiple == 1 else runs.divide(count)
    raise InvalidRequest(
        "--shards-multiple-of", f"{samples:,} samples cannot fill a multiple of {multiple:,} shards within the bounds",
        remedy="Choose a smaller multiple, or raise --max-size or --max-count.",
    )  # fmt: skip


def _exactly(total: NDArray[np.int64], pattern: ShardPattern, bounds: Bounds) -> NDArray[np.int64]:
    """Return the ends of as many shards as the pattern has names."""
    count, samples = pattern.count or 0, len(total) - 1
    if count % bounds.multiple_of:
        raise InvalidRequest(
            "--shards-multiple-of", f"{pattern.text} asks for {count:,} shards",
            expected=f"a multiple of {bounds.multiple_of:,}",
        )  # fmt: skip
    if count > samples:
        raise InvalidRequest(
            pattern.text, f"{count:,} shards for {samples:,} samples", expected="at least one sample a shard",
            remedy="Name fewer shards, leave the range open (out-{000000..}.tar), or bound the shards with --max-size.",
        )  # fmt: skip
    if bounds.equal_count:
        return np.arange(1, count + 1, dtype=np.int64) * samples // count
    return _Runs(total, NO_LIMIT, None).divide(count)


class _Runs:
    """Which runs of samples make a shard: within bytes and count, or one sample alone.

    Args:
        total: int64[samples + 1], bytes of the samples before each place.
        room: Bytes that a shard has for records.
        max_count: Samples, or None.
    """

    def __init__(self, total: NDArray[np.int64], room: int, max_count: int | None) -> None:
        self.total, self.room, self.samples = total, room, len(total) - 1
        self.max_count = self.samples if max_count is None else max_count

    def reach(self, first: int) -> int:
        """Return the last place at which a shard that starts at `first` can end."""
        end = int(np.searchsorted(self.total, self.total[first] + self.room, "right")) - 1
        return max(first + 1, min(end, first + self.max_count))

    def back(self, end: int) -> int:
        """Return the first place at which a shard that ends at `end` can start."""
        first = int(np.searchsorted(self.total, self.total[end] - self.room, "left"))
        return max(0, min(end - 1, max(first, end - self.max_count)))

    def hold(self, ends: NDArray[np.int64]) -> bool:
        """Tell whether each of these shards is within the limits."""
        starts = np.concatenate(([0], ends[:-1]))
        counts = ends - starts
        fits = (self.total[ends] - self.total[starts] <= self.room) & (counts <= self.max_count)
        return bool(np.all(fits | (counts == 1)))

    def fill(self) -> NDArray[np.int64]:
        """Fill each shard as far as it goes: the least number of them."""
        ends, at = [], 0
        while at < self.samples:
            at = self.reach(at)
            ends.append(at)
        return np.array(ends, np.int64)

    def divide(self, count: int) -> NDArray[np.int64]:
        """Return the ends of `count` shards, cut as near as the limits allow to equal shares of the bytes.

        Args:
            count: At least as many as `fill` needs, and at most one a sample.
        """
        least = [0] * (count + 1)  # least[k]: where shard k must start at the earliest, for the rest to fit
        least[count] = self.samples
        for shard in range(count - 1, 0, -1):
            least[shard] = max(self.back(least[shard + 1]), shard)
        ends, at = [], 0
        share = [int(self.total[-1]) * number // count for number in range(1, count + 1)]
        after = np.searchsorted(self.total, share, "left").tolist()
        for shard in range(count):
            cut = after[shard]
            if cut > 0 and share[shard] - self.total[cut - 1] < self.total[cut] - share[shard]:
                cut -= 1
            lowest = max(least[shard + 1], at + 1)
            highest = min(self.reach(at), self.samples - (count - 1 - shard))
            at = min(max(cut, lowest), highest)
            ends.append(at)
        return np.array(ends, np.int64)
