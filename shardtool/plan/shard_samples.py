"""What a worker must know of a shard's samples, taken out of the plan, and the hash of it."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from shardtool.fetch import shown_bytes
from shardtool.format.sizes import NUMBERS, Payloads, heads_and_tails
from shardtool.names import Names
from shardtool.values import INLINE, SPAN, ShardContent, ShardSamples, ShardSpans, to_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardtool.entries.entries import FieldSpans
    from shardtool.plan.plan import Plan

    _RowsOf = NDArray[np.int64] | slice  # of a shard

FORMAT_VERSION = 1  # of the hash
_WORTH_READING = 0.25  # of a region must be wanted: then reading it whole beats reading its spans one by one


def shard_samples(plan: Plan, shard: int) -> ShardSamples:
    """Return what a worker must know to write a shard: plain bytes, no arrays."""
    e, rows = plan.entries, plan.rows(shard)
    first, last = plan.span(shard)
    paths = b""
    if isinstance(rows, slice):
        keys, counts = e.keys.span(first, last), np.diff(e.first[first : last + 1])
        if e.rows.paths is not None:
            paths = e.rows.paths.span(rows.start, rows.stop)
    else:
        which = plan.which(shard)
        keys, counts = e.keys.gather(which), e.counts_of(which)
        if e.rows.paths is not None:
            paths = e.rows.paths.gather(rows)
    sizes = e.rows.size[rows].tobytes()
    content = ShardContent(
        keys=keys,
        counts=counts.astype(np.uint16).tobytes(),
        fields=tuple(map(to_bytes, e.fields)),
        codes=e.rows.code[rows].tobytes(),
        sizes=sizes,
        stored=sizes if plan.stored is None else plan.stored[rows].tobytes(),
        inline=_inline(plan, shard, rows, counts) if e.values.inline else b"",
    )
    if NUMBERS[plan.format]:
        whole = None if e.spans is None else e.spans.whole
        content = replace(
            content,
            whole=b"" if whole is None else whole[rows].tobytes(),
            numbers={e.fields.index(name): number for name, number in e.values.numbers.items()},
            lists={e.fields.index(name): kind for name, kind in e.values.lists.items()},
        )
    return ShardSamples(
        content=content,
        needs=np.diff(plan.total[first : last + 1]).tobytes(),
        root=e.root,
        kinds=e.rows.kind[rows].tobytes(),
        mtimes=e.rows.mtime_ns[rows].tobytes(),
        paths=paths,
        folders=e.folders,
        spans=ShardSpans() if e.spans is None else _shard_spans(plan, e.spans, shard, rows),
    )


def _shard_spans(plan: Plan, spans: FieldSpans, shard: int, rows: _RowsOf) -> ShardSpans:
    """Return where the SPAN rows of a shard lie."""
    kinds, expected = plan.entries.rows.kind[rows], spans.expected[rows]
    used, file = _used(spans.file[plan.which(shard)])
    regions, runs = _regions(plan, spans, shard, rows), b""
    is_zip = any(spans.files[at].form == "zip" for at in used) if spans.files else False
    if plan.format == "tar" and spans.files and not is_zip and np.isin(kinds, (SPAN, INLINE)).all():
        runs = _each(len(kinds)) if regions else _runs(plan, spans, shard, rows, file)
    return ShardSpans(
        files=tuple(spans.files[at] for at in used) if spans.files else (),
        file=file.astype(np.uint32).tobytes(),
        offsets=spans.offset[rows].tobytes(),
        expected=expected.tobytes() if np.any(expected >= 0) else b"",
        runs=runs,
        regions=regions,
    )


def _regions(plan: Plan, spans: FieldSpans, shard: int, rows: _RowsOf) -> bytes:
    """Return the regions of which a shard wants enough to read them whole."""
    e = plan.entries
    if plan.regions is None:
        return b""
    which = plan.which(shard)
    spooled = (e.rows.kind[rows] == SPAN) & np.repeat(spans.file[which] == 0, e.counts_of(which))
    offset, size = spans.offset[rows][spooled], e.rows.size[rows][spooled]
    at = np.searchsorted(plan.regions[:, 0], offset, "right") - 1
    inside = (at >= 0) & (offset < plan.regions[at, 1])
    used, place = np.unique(at[inside], return_inverse=True)
    wanted = np.bincount(place, weights=size[inside], minlength=len(used))
    found: NDArray[np.int64] = plan.regions[used]
    return found[wanted >= _WORTH_READING * (found[:, 1] - found[:, 0])].tobytes()


def _runs(plan: Plan, spans: FieldSpans, shard: int, rows: _RowsOf, file: NDArray[np.int64]) -> bytes:
    """Return where each run of rows ends that one read can copy: same file, same spacing in source and shard."""
    e, which = plan.entries, plan.which(shard)
    counts, kinds, codes = e.counts_of(which), e.rows.kind[rows], e.rows.code[rows]
    first = np.concatenate(([0], np.cumsum(counts)))
    size = e.rows.size[rows] if plan.stored is None else plan.stored[rows]
    keys = Names.parse(e.keys.gather(which))
    heads, tails = heads_and_tails(plan.format, Payloads(keys, first, e.fields, codes, size))
    place = np.cumsum(heads + size + tails) - size - tails
    breaks = (np.diff(spans.offset[rows] - place) != 0) | (kinds[1:] != SPAN) | (kinds[:-1] != SPAN)
    breaks |= np.diff(np.repeat(file, counts)) != 0
    return np.append(np.flatnonzero(breaks) + 1, len(size)).astype(np.uint32).tobytes()


def _inline(plan: Plan, shard: int, rows: _RowsOf, counts: NDArray[np.int64]) -> bytes:
    """Return the payload of each row of a shard that is INLINE, nothing for others, a NUL after each."""
    e, (first, last) = plan.entries, plan.span(shard)
    code, inline = e.rows.code[rows], e.rows.kind[rows] == INLINE
    owners = np.repeat(np.arange(last - first), counts)
    texts = [b""] * len(code)
    for name, column in e.values.inline.items():
        at = np.flatnonzero(inline & (code == e.fields.index(name)))
        data = column.span(first, last) if plan.order is None else column.gather(plan.which(shard))
        found = data[:-1].split(b"\0")
        for row, owner in zip(at.tolist(), owners[at].tolist(), strict=True):
            texts[row] = found[owner]
    return b"\0".join(texts) + b"\0"


def _each(rows: int) -> bytes:
    """Return runs of one row each."""
    return np.arange(1, rows + 1, dtype=np.uint32).tobytes()


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
    digest = blake2b(b"shardtool plan %d" % FORMAT_VERSION, digest_size=16)
    if shard_format != "tar":
        digest.update(shard_format.encode())
    if work:
        digest.update(f" {work}".encode())
    local = codes.astype(np.uint16).tobytes()
    paths = samples.shown_paths(shown_bytes)  # another signature of a URL makes no other file of it
    paths = paths if paths.strip(b"\0") else b""  # bytes of a table are in no file, as those of a program
    columns = [content.keys, content.counts, names, local, content.sizes, paths, content.inline]
    kinds = [content.numbers.get(code) or content.lists.get(code) or "" for code in used]
    if any(kinds):
        columns += [" ".join(kinds).encode(), content.whole]
    for column in columns:
        digest.update(b"%d:" % len(column))
        digest.update(column)
    return digest.hexdigest()


def _used(numbers: NDArray[np.unsignedinteger]) -> tuple[list[int], NDArray[np.int64]]:
    """Return which numbers occur, ascending, and the place of each among them: `np.unique` imports half of NumPy."""
    seen = np.zeros(int(numbers.max(initial=0)) + 1, np.bool_)
    seen[numbers] = True
    return np.flatnonzero(seen).tolist(), (np.cumsum(seen) - 1)[numbers]
