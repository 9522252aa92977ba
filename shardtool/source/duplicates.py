"""Find and drop duplicates: samples with the same content under different keys.

The content of a sample is its images, audio, video and arrays; without these, its texts; then other bytes; then JSON.
Labels and numbers are not content. Sizes and known checksums select candidates; a digest decides.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from shardtool.dataset.payload import content_type, is_label_name
from shardtool.entries import arrow
from shardtool.errors import printable
from shardtool.names import to_text
from shardtool.shard_samples import SPAN
from shardtool.skipped import Skipped, duplicate_message
from shardtool.source import checksums
from shardtool.table.keys import contains_hashes, hash_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from shardtool.entries.sample_table import SampleTable
    from shardtool.entries.strings import PackedStrings
    from shardtool.execute.pool import Pool
    from shardtool.request.observer import Observer
    from shardtool.request.selecting_options import SelectingOptions
    from shardtool.source.base import Listing, Source

    Rows = NDArray[np.int64]


# A sample has the lowest rank of its fields.
_CONTENT_RANKS = {"image": 0, "audio": 0, "video": 0, "array": 0, "text": 1, "bytes": 2, "pickle": 2, "json": 3}
_JSON_RANK, _NO_RANK = 3, 4
_HASH_MULTIPLIERS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)  # odd numbers


class DuplicateGroups(NamedTuple):
    """Groups of samples with the same content.

    Attributes:
        groups: The samples of each group, in key order after existing samples; groups in the order of their first ones.
        sizes: Content bytes per sample of each group.
        fields: The fields with content.
        differ: Sample to the labels and other fields that differ from its group's first sample.
    """

    groups: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    fields: tuple[str, ...]
    differ: dict[int, tuple[str, ...]]


def find_duplicates(
    entries: SampleTable, source: Source | None, pool: Pool, observer: Observer, exists: NDArray[np.bool_] | None = None
) -> DuplicateGroups:
    """Return the groups of samples with the same content.

    `source` is None for shards. Samples that `exists` marks come first in their groups.
    """
    content, ranks = _content_rows(entries)
    fields = tuple(entries.fields[code] for code in np.unique(entries.rows.code[content]).tolist())
    owners = entries.owners(content)
    is_candidate = np.isin(owners, _find_candidates(entries, content, owners))
    digests = checksums.source_digests(source, entries, content[is_candidate], pool, observer)
    groups = _group_by_digest(owners[is_candidate], digests, ranks)

    def sort_key(sample: int) -> tuple[bool, bytes, int]:
        return exists is None or not exists[sample], entries.keys[sample], sample

    several = sorted((tuple(sorted(group, key=sort_key)) for group in groups), key=lambda group: sort_key(group[0]))
    sizes = np.bincount(owners, entries.rows.size[content], len(entries))
    group_sizes = tuple(int(sizes[group[0]]) for group in several)
    return DuplicateGroups(
        tuple(several), group_sizes, fields, dict(_find_differing_values(entries, several, content, source, pool))
    )


def _content_rows(entries: SampleTable) -> tuple[Rows, NDArray[np.uint8]]:
    values = entries.values
    ranks = np.full(len(entries.fields), _NO_RANK, np.uint8)
    for code, name in enumerate(entries.fields):
        if not (is_label_name(name) or name in values.numbers or name in values.lists or name in values.classes):
            ranks[code] = _CONTENT_RANKS.get(content_type(name), _NO_RANK)
    row_ranks, owners = ranks[entries.rows.code], np.repeat(np.arange(len(entries)), entries.counts())
    sample_ranks = np.full(len(entries), _NO_RANK, np.uint8)
    np.minimum.at(sample_ranks, owners, row_ranks)
    return np.flatnonzero((row_ranks < _NO_RANK) & (row_ranks == sample_ranks[owners])), sample_ranks


def _find_candidates(entries: SampleTable, content: Rows, owners: Rows) -> Rows:
    if not len(content):
        return content
    crcs = np.full(len(content), -1, np.int64)
    if entries.spans is not None and np.all(entries.rows.kind[content] == SPAN):
        crcs = entries.spans.expected[content]
    crcs = crcs if crcs.min() >= 0 else np.zeros_like(crcs)  # some are unknown: compare sizes only
    mixed = (entries.rows.size[content].astype(np.uint64) * _HASH_MULTIPLIERS[0]) ^ (
        crcs.astype(np.uint64) * _HASH_MULTIPLIERS[1]
    )
    mixed = (mixed ^ (mixed >> np.uint64(29))) * _HASH_MULTIPLIERS[2]
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    sums, samples = np.add.reduceat(mixed, starts), owners[starts]
    order = np.argsort(sums, kind="stable")
    same = sums[order][1:] == sums[order][:-1]
    return np.asarray(np.sort(samples[order[np.append(same, False) | np.append(False, same)]]))


def _group_by_digest(owners: Rows, digests: NDArray[np.bytes_], ranks: NDArray[np.uint8]) -> list[list[int]]:
    """Group samples by their digests in any order, without unreadable samples."""
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    ends, combined, samples = np.append(starts[1:], len(owners)), digests[starts], owners[starts]
    for index in np.flatnonzero(ends - starts > 1).tolist():
        sample_digests = np.sort(digests[starts[index] : ends[index]])
        combined[index] = (
            blake2b(sample_digests.tobytes(), digest_size=combined.itemsize).digest()
            if np.all(sample_digests != b"")
            else b""
        )
    samples, combined = samples[combined != b""], combined[combined != b""]
    order = np.lexsort((combined, ranks[samples]))
    samples, combined = samples[order], combined[order]
    same = (combined[1:] == combined[:-1]) & (ranks[samples[1:]] == ranks[samples[:-1]])
    starts = np.flatnonzero(np.append(True, ~same))[: len(samples)]
    ends = np.append(starts[1:], len(samples))
    several = ends - starts > 1
    return [samples[start:end].tolist() for start, end in zip(starts[several], ends[several], strict=True)]


def _find_differing_values(
    entries: SampleTable, groups: list[tuple[int, ...]], content: Rows, source: Source | None, pool: Pool
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield samples whose labels or fields (not JSON) differ from the first of their group, and the names."""
    samples = np.array(sorted(sample for group in groups for sample in group), np.int64)
    if not len(samples):
        return
    other_rows = np.setdiff1d(entries.rows_of(samples), content, assume_unique=True)
    names = [entries.fields[code] for code in entries.rows.code[other_rows].tolist()]
    values_of: dict[int, dict[str, object]] = {sample: {} for sample in samples.tolist()}
    digests = checksums.source_digests(source, entries, other_rows, pool).tolist()
    for sample, name, digest in zip(entries.owners(other_rows).tolist(), names, digests, strict=True):
        if _CONTENT_RANKS.get(content_type(name)) != _JSON_RANK:
            values_of[sample][name] = digest
    table = entries.metadata if entries.metadata is not None else pa.table({})
    for name in filter(is_label_name, table.column_names):
        values = table.column(name).take(arrow.number_array(samples)).to_pylist()
        for sample, value in zip(samples.tolist(), values, strict=True):
            if value is not None:
                values_of[sample].setdefault(name, value)
    for group in groups:
        first = values_of[group[0]]
        for sample in group[1:]:
            own_values = values_of[sample]
            differing = sorted(name for name in first.keys() & own_values.keys() if first[name] != own_values[name])
            if differing:
                yield sample, tuple(differing)


def drop_duplicate_samples(
    listed: Listing,
    source: Source,
    options: SelectingOptions,
    pool: Pool,
    observer: Observer,
    taken: Callable[[], PackedStrings | None],
) -> Listing:
    """Return the samples, without duplicates if requested: the first key of each group stays.

    A plan file is already without duplicates.
    """
    if not options.drop_duplicates or getattr(options, "plan", None) is not None:
        return listed
    entries, exists = listed.entries, np.zeros(len(listed.entries), np.bool_)
    if (existing_keys := taken()) is not None:
        exists = contains_hashes(hash_keys(entries.keys), np.sort(hash_keys(existing_keys)))
    duplicates = find_duplicates(entries, source, pool, observer, exists)
    skipped = {
        sample: _skip_duplicate(entries, sample, group[0], duplicates.differ.get(sample, ()))
        for group in duplicates.groups
        for sample in group[1:]
        if not exists[sample]
    }
    if not skipped:
        return listed
    dropped = sorted(skipped)
    rows = tuple(skipped[sample] for sample in dropped)
    return replace(listed, entries=entries.without(dropped), skipped=listed.skipped + rows, digest=None)


def _skip_duplicate(entries: SampleTable, sample: int, first: int, differ: tuple[str, ...]) -> Skipped:
    return Skipped(
        to_text(entries.keys[sample]), "", "duplicate", duplicate_message(printable(entries.keys[first]), differ)
    )
