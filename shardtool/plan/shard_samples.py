"""What a worker must know of a shard's samples, taken out of the plan, and the hash of it."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.format.sizes import NUMBERS, Payloads, heads_and_tails
from shardtool.names import Names
from shardtool.values import INLINE, SPAN, ShardSamples, to_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardtool.plan.plan import Plan

FORMAT_VERSION = 1  # of the hash
_WORTH_READING = 0.25  # of a region must be wanted: then reading it whole beats reading its spans one by one


def shard_samples(plan: Plan, shard: int) -> ShardSamples:
    """Return what a worker must know to write a shard: plain bytes, no arrays."""
    e, rows = plan.entries, plan.rows(shard)
    first, last = plan.span(shard)
    if isinstance(rows, slice):
        keys, counts = e.keys.span(first, last), np.diff(e.first[first : last + 1])
        paths = e.paths.span(rows.start, rows.stop) if e.paths is not None else None
    else:
        which = plan.which(shard)
        keys, counts = e.keys.gather(which), e.counts()[which]
        paths = e.paths.gather(rows) if e.paths is not None else None
    has_numbers = NUMBERS[plan.format]
    numbers = {e.fields.index(name): number for name, number in e.numbers.items()} if has_numbers else {}
    return ShardSamples(
        root=e.root,
        keys=keys,
        needs=np.diff(plan.total[first : last + 1]).tobytes(),
        counts=counts.astype(np.uint16).tobytes(),
        fields=tuple(map(to_bytes, e.fields)),
        codes=e.code[rows].tobytes(),
        kinds=e.kind[rows].tobytes(),
        sizes=e.size[rows].tobytes(),
        mtimes=e.mtime_ns[rows].tobytes(),
        paths=paths,
        inline=_inline(plan, shard, rows, counts) if e.inline else None,
        stored=None if plan.stored is None else plan.stored[rows].tobytes(),
        numbers=numbers,
        lists={e.fields.index(name): kind for name, kind in e.lists.items()} if has_numbers else {},
        whole=e.whole[rows].tobytes() if e.whole is not None and has_numbers else None,
        **_spans(plan, shard, rows),
    )


def _spans(plan: Plan, shard: int, rows: NDArray[np.int64] | slice) -> dict[str, Any]:
    """Return where the SPAN rows of a shard lie."""
    e = plan.entries
    if e.offset is None:
        return {}
    which = plan.which(shard)
    files, file = e.files, np.zeros(len(which), np.int64)
    if e.file is not None:
        used, file = _used(e.file[which])
        files = tuple(e.files[at] for at in used)
    regions, runs = _regions(plan, shard, rows), None
    if plan.format == "tar" and files and np.isin(e.kind[rows], (SPAN, INLINE)).all():
        runs = _runs(plan, shard, rows, file) if regions is None else _each(len(e.kind[rows]))
    return {
        "offsets": e.offset[rows].tobytes(),
        "files": files,
        "file": file.astype(np.uint32).tobytes(),
        "expected": None if e.expected is None else e.expected[rows].tobytes(),
        "runs": runs,
        "regions": regions,
    }


def _regions(plan: Plan, shard: int, rows: NDArray[np.int64] | slice) -> bytes | None:
    """Return the regions of which a shard wants enough to read them whole; None where there are none."""
    e = plan.entries
    if plan.regions is None or e.offset is None:
        return None
    spooled = e.kind[rows] == SPAN
    if e.file is not None:
        which = plan.which(shard)
        spooled &= np.repeat(e.file[which] == 0, e.counts()[which])
    offset, size = e.offset[rows][spooled], e.size[rows][spooled]
    at = np.searchsorted(plan.regions[:, 0], offset, "right") - 1
    inside = (at >= 0) & (offset < plan.regions[at, 1])
    used, place = np.unique(at[inside], return_inverse=True)
    wanted = np.bincount(place, weights=size[inside], minlength=len(used))
    found = plan.regions[used]
    found = found[wanted >= _WORTH_READING * (found[:, 1] - found[:, 0])]
    return found.tobytes() if len(found) else None


def _runs(plan: Plan, shard: int, rows: NDArray[np.int64] | slice, file: NDArray[np.int64]) -> bytes:
    """Return where each run of rows ends that one read can copy: same file, same spacing in source and shard."""
    e, which = plan.entries, plan.which(shard)
    counts = e.counts()[which]
    first = np.concatenate(([0], np.cumsum(counts)))
    size = e.size[rows] if plan.stored is None else plan.stored[rows]
    keys = Names.parse(e.keys.gather(which))
    heads, tails = heads_and_tails(plan.format, Payloads(keys, first, e.fields, e.code[rows], size))
    place = np.cumsum(heads + size + tails) - size - tails
    moved = (e.offset[rows] if e.offset is not None else 0) - place
    breaks = (np.diff(moved) != 0) | (e.kind[rows][1:] != SPAN) | (e.kind[rows][:-1] != SPAN)
    breaks |= np.diff(np.repeat(file, counts)) != 0
    return np.append(np.flatnonzero(breaks) + 1, len(size)).astype(np.uint32).tobytes()


def _inline(plan: Plan, shard: int, rows: NDArray[np.int64] | slice, counts: NDArray[np.int64]) -> bytes:
    """Return the payload of each row of a shard that is INLINE, nothing for others, a NUL after each."""
    e, (first, last) = plan.entries, plan.span(shard)
    code, inline = e.code[rows], e.kind[rows] == INLINE
    owners = np.repeat(np.arange(last - first), counts)
    texts = [b""] * len(code)
    for name, column in e.inline.items():
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


def _used(numbers: NDArray[Any]) -> tuple[list[int], NDArray[np.int64]]:
    """Return which numbers occur, ascending, and the place of each among them: `np.unique` imports half of NumPy."""
    seen = np.zeros(int(numbers.max(initial=0)) + 1, np.bool_)
    seen[numbers] = True
    return np.flatnonzero(seen).tolist(), (np.cumsum(seen) - 1)[numbers]
