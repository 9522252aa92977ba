"""Collect and hash the data that a worker needs to write a planned shard."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from shardtool.entries.arrow import ipc_stream
from shardtool.entries.record_sizes import STORES_NUMBERS, RecordColumns, head_and_tail_sizes
from shardtool.fetch.options import redact_url_bytes
from shardtool.names import to_bytes
from shardtool.shard_samples import FILE, INLINE, LINK, SPAN, ShardContent, ShardSamples, ShardSpans

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from shardtool.entries.sample_table import SampleTable
    from shardtool.plan.plan import Plan
    from shardtool.transform.transform import ReadCondition


PLAN_HASH_VERSION = 1
_MIN_REGION_SHARE = 0.25  # if a shard needs less of a region, reading payloads one by one is faster


def build_shard_samples(plan: Plan, shard: int) -> ShardSamples:
    """Return the data that a worker needs to write a shard."""
    first, last = plan.span(shard)
    entries = replace(plan.entries, metadata=None).take(plan.sample_numbers(shard))
    stored = entries.rows.size if plan.stored_sizes is None else plan.stored_sizes[plan.rows(shard)]
    content = ShardContent(
        keys=entries.keys.data,
        counts=entries.counts().astype(np.uint16).tobytes(),
        fields=tuple(map(to_bytes, entries.fields)),
        codes=entries.rows.code.tobytes(),
        sizes=entries.rows.size.tobytes(),
        stored_sizes=stored.tobytes(),
        inline=_inline_payloads(entries) if entries.values.inline else b"",
    )
    if STORES_NUMBERS[plan.format]:
        is_list = None if entries.spans is None else entries.spans.is_list
        content = replace(
            content,
            is_list=b"" if is_list is None else is_list.tobytes(),
            numbers={entries.fields.index(name): number for name, number in entries.values.numbers.items()},
            lists={entries.fields.index(name): kind for name, kind in entries.values.lists.items()},
        )
    return ShardSamples(
        content=content,
        record_sizes=np.diff(plan.total[first : last + 1]).tobytes(),
        root=entries.root,
        kinds=entries.rows.kind.tobytes(),
        mtimes=entries.rows.mtime_ns.tobytes(),
        paths=b"" if entries.rows.paths is None else entries.rows.paths.span(0, len(stored)),
        folders=entries.folders,
        latest_ctime_ns=int(np.max(entries.rows.changed_ns, where=np.isin(entries.rows.kind, (FILE, LINK)), initial=0)),
        spans=ShardSpans() if entries.spans is None else _build_shard_spans(plan, entries, stored),
    )


def _build_shard_spans(plan: Plan, entries: SampleTable, stored: NDArray[np.int64]) -> ShardSpans:
    spans, all_rows = entries.known_spans, np.arange(len(stored))
    used_files, file_codes = _unique_codes(entries.file_numbers(all_rows))
    files = tuple(spans.files[number] for number in used_files) if spans.files else ()
    regions = b"" if plan.regions is None else _select_regions(plan.regions, entries)
    runs = b""
    is_zip = any(span_file.form == "zip" for span_file in files)
    if plan.format == "tar" and files and not is_zip and np.isin(entries.rows.kind, (SPAN, INLINE)).all():
        ends = all_rows + 1 if regions else _run_ends(entries, stored, file_codes)
        runs = ends.astype(np.uint32).tobytes()
    return ShardSpans(
        files=files,
        file_codes=file_codes.astype(np.uint32).tobytes(),
        offsets=spans.offset.tobytes(),
        crcs=spans.crc.tobytes() if np.any(spans.crc >= 0) else b"",
        runs=runs,
        regions=regions,
    )


def _select_regions(regions: NDArray[np.int64], entries: SampleTable) -> bytes:
    spans = entries.known_spans
    spooled = (entries.rows.kind == SPAN) & (entries.file_numbers(np.arange(len(entries.rows.kind))) == 0)
    offset, size = spans.offset[spooled], entries.rows.size[spooled]
    starts, ends = regions.T
    region_index = np.searchsorted(starts, offset, "right") - 1
    is_inside = (region_index >= 0) & (offset < ends[region_index])
    used, used_index = np.unique(region_index[is_inside], return_inverse=True)
    needed_bytes = np.bincount(used_index, weights=size[is_inside], minlength=len(used))
    is_worth_reading = needed_bytes >= _MIN_REGION_SHARE * (ends - starts)[used]
    return bytes(regions[used[is_worth_reading]].tobytes())


def _run_ends(entries: SampleTable, stored: NDArray[np.int64], file: NDArray[np.int64]) -> NDArray[np.int64]:
    kinds = entries.rows.kind
    columns = RecordColumns(entries.keys, entries.first_rows, entries.fields, entries.rows.code, stored)
    heads, tails = head_and_tail_sizes("tar", columns)
    shard_offsets = np.cumsum(heads + stored + tails) - stored - tails
    breaks = (np.diff(entries.known_spans.offset - shard_offsets) != 0) | (kinds[1:] != SPAN) | (kinds[:-1] != SPAN)
    breaks |= np.diff(file) != 0
    return np.append(np.flatnonzero(breaks) + 1, len(stored))


def _inline_payloads(entries: SampleTable) -> bytes:
    inline, texts = entries.rows.kind == INLINE, [b""] * len(entries.rows.kind)
    for name, column in entries.values.inline.items():
        rows = np.flatnonzero(inline & (entries.rows.code == entries.fields.index(name)))
        payloads = column.span(0, len(entries))[:-1].split(b"\0")
        for row, sample in zip(rows.tolist(), entries.samples_of(rows).tolist(), strict=True):
            texts[row] = payloads[sample]
    return b"\0".join(texts) + b"\0"


def encode_known_columns(plan: Plan, shard: int, where: ReadCondition | None) -> bytes:
    """Return an Arrow stream of the shard's metadata columns that `where` needs, or b""."""
    if where is None or (metadata := plan.metadata(shard)) is None:
        return b""
    names = [name for name in where.columns if name in metadata.column_names]
    return bytes(ipc_stream(metadata.select(names))) if names else b""


def hash_shard_plan(shard_format: str, samples: ShardSamples, identity: str = "") -> str:
    """Return a hash of a shard's keys, fields, sizes, paths and inline payloads, and of the transform's `identity`.

    The hash ignores the source's root and times, so a copy of the source has the same hash.
    """
    # Hash only the fields of this shard, so the hash does not depend on other shards.
    content = samples.content
    used, codes = _unique_codes(np.frombuffer(content.codes, np.uint16))
    names = b"\0".join(content.fields[code] for code in used)
    prefix = b"shardtool plan %d" % PLAN_HASH_VERSION
    prefix += (shard_format if shard_format != "tar" else "").encode() + (f" {identity}" if identity else "").encode()
    local = codes.astype(np.uint16).tobytes()
    # Redact URLs, because the signature in a URL may change for the same file.
    paths = samples.output_paths(redact_url_bytes)
    paths = paths if paths.strip(b"\0") else b""
    columns = [content.keys, content.counts, names, local, content.sizes, paths, content.inline]
    kinds = [content.numbers.get(code) or content.lists.get(code) or "" for code in used]
    if any(kinds):
        columns += [" ".join(kinds).encode(), content.is_list]
    return hash_columns(prefix, columns)


def hash_columns(prefix: bytes, columns: Iterable[bytes | memoryview]) -> str:
    """Return a hash of the prefix, the columns and their lengths."""
    digest = blake2b(prefix, digest_size=16)
    for column in columns:
        digest.update(b"%d:" % memoryview(column).nbytes)
        digest.update(column)
    return digest.hexdigest()


def _unique_codes(numbers: NDArray[np.unsignedinteger]) -> tuple[list[int], NDArray[np.int64]]:
    # Do not use `np.unique`, because it imports much of NumPy.
    seen = np.zeros(int(numbers.max(initial=0)) + 1, np.bool_)
    seen[numbers] = True
    return np.flatnonzero(seen).tolist(), (np.cumsum(seen) - 1)[numbers]
