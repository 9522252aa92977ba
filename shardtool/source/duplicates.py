"""Find and drop duplicates: samples with the same content under different keys.

The content of a sample is its images, audio, video and arrays; without these, its texts; then other bytes; then
JSON.
Labels and numbers are not content. Lengths and known checksums select candidates; a digest of the bytes decides.
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


# The first of these that a sample has is what it holds.
_CONTENT_RANKS = {"image": 0, "audio": 0, "video": 0, "array": 0, "text": 1, "bytes": 2, "pickle": 2, "json": 3}


_JSON_RANK, _NO_RANK = 3, 4


_HASH_MULTIPLIERS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)  # odd numbers


class DuplicateGroups(NamedTuple):
    """The groups of samples that hold the same.

    Attributes:
        groups: The samples of each, two or more, in the order of their keys, but those that are there already come
            first; groups in the order of their first ones.
        sizes: Bytes of what each sample of a group holds.
        fields: The fields that samples hold.
        differ: Sample to the labels and other fields that the first one of its group has with other values.
    """

    groups: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    fields: tuple[str, ...]
    differ: dict[int, tuple[str, ...]]


def find_duplicates(
    entries: SampleTable, source: Source | None, pool: Pool, observer: Observer, there: NDArray[np.bool_] | None = None
) -> DuplicateGroups:
    """Return which samples hold the same.

    Args:
        entries: The samples.
        source: What they come from; of shards, None.
        pool: Reads payloads: of those samples that may be twins.
        observer: Gets progress.
        there: Whether each sample comes before those that are not; None: none does.

    Raises:
        CorruptShard: A shard cannot be read.
    """
    held, ranks = _content_rows(entries)
    fields = tuple(entries.fields[code] for code in np.unique(entries.rows.code[held]).tolist())
    owners = entries.owners(held)
    alike = np.isin(owners, _find_candidates(entries, held, owners))
    digests = checksums.source_digests(source, entries, held[alike], pool, observer)
    groups = _group_by_digest(owners[alike], digests, ranks)

    def place(sample: int) -> tuple[bool, bytes, int]:
        return there is None or not there[sample], entries.keys[sample], sample

    several = sorted((tuple(sorted(group, key=place)) for group in groups), key=lambda group: place(group[0]))
    sizes = np.bincount(owners, entries.rows.size[held], len(entries))
    of_groups = tuple(int(sizes[group[0]]) for group in several)
    return DuplicateGroups(
        tuple(several), of_groups, fields, dict(_find_differing_values(entries, several, held, source, pool))
    )


def _content_rows(entries: SampleTable) -> tuple[Rows, NDArray[np.uint8]]:
    """Return the rows that are what their samples hold, and of what rank that is, for each sample."""
    values = entries.values
    ranks = np.full(len(entries.fields), _NO_RANK, np.uint8)
    for code, name in enumerate(entries.fields):
        if not (is_label_name(name) or name in values.numbers or name in values.lists or name in values.classes):
            ranks[code] = _CONTENT_RANKS.get(content_type(name), _NO_RANK)
    of_rows, owners = ranks[entries.rows.code], np.repeat(np.arange(len(entries)), entries.counts())
    of_samples = np.full(len(entries), _NO_RANK, np.uint8)
    np.minimum.at(of_samples, owners, of_rows)
    return np.flatnonzero((of_rows < _NO_RANK) & (of_rows == of_samples[owners])), of_samples


def _find_candidates(entries: SampleTable, held: Rows, owners: Rows) -> Rows:
    """Return the samples that hold as many payloads as another one, of these lengths and checksums."""
    if not len(held):
        return held
    crcs = np.full(len(held), -1, np.int64)
    if entries.spans is not None and np.all(entries.rows.kind[held] == SPAN):
        crcs = entries.spans.expected[held]
    crcs = crcs if crcs.min() >= 0 else np.zeros_like(crcs)  # some unknown: lengths alone
    mixed = (entries.rows.size[held].astype(np.uint64) * _HASH_MULTIPLIERS[0]) ^ (
        crcs.astype(np.uint64) * _HASH_MULTIPLIERS[1]
    )
    mixed = (mixed ^ (mixed >> np.uint64(29))) * _HASH_MULTIPLIERS[2]
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    sums, samples = np.add.reduceat(mixed, starts), owners[starts]
    order = np.argsort(sums, kind="stable")
    same = sums[order][1:] == sums[order][:-1]
    return np.asarray(np.sort(samples[order[np.append(same, False) | np.append(False, same)]]))


def _group_by_digest(owners: Rows, digests: NDArray[np.bytes_], ranks: NDArray[np.uint8]) -> list[list[int]]:
    """Return the samples whose payloads, in any order, have the same digests; not those that cannot be read.

    Args:
        owners: The sample of each payload, ascending.
        digests: The digest of each; empty where it cannot be had.
        ranks: What payloads are, for each sample.
    """
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    ends, found, samples = np.append(starts[1:], len(owners)), digests[starts], owners[starts]
    for at in np.flatnonzero(ends - starts > 1).tolist():
        own = np.sort(digests[starts[at] : ends[at]])
        found[at] = blake2b(own.tobytes(), digest_size=found.itemsize).digest() if np.all(own != b"") else b""
    samples, found = samples[found != b""], found[found != b""]
    order = np.lexsort((found, ranks[samples]))
    samples, found = samples[order], found[order]
    same = (found[1:] == found[:-1]) & (ranks[samples[1:]] == ranks[samples[:-1]])
    starts = np.flatnonzero(np.append(True, ~same))[: len(samples)]
    ends = np.append(starts[1:], len(samples))
    several = ends - starts > 1
    return [samples[start:end].tolist() for start, end in zip(starts[several], ends[several], strict=True)]


def _find_differing_values(
    entries: SampleTable, groups: list[tuple[int, ...]], held: Rows, source: Source | None, pool: Pool
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield samples that have other values than the first one of their group, but for JSON, and the names of these."""
    samples = np.array(sorted(sample for group in groups for sample in group), np.int64)
    if not len(samples):
        return
    others = np.setdiff1d(entries.rows_of(samples), held, assume_unique=True)
    names = [entries.fields[code] for code in entries.rows.code[others].tolist()]
    said: dict[int, dict[str, object]] = {sample: {} for sample in samples.tolist()}
    digests = checksums.source_digests(source, entries, others, pool).tolist()
    for sample, name, digest in zip(entries.owners(others).tolist(), names, digests, strict=True):
        if _CONTENT_RANKS.get(content_type(name)) != _JSON_RANK:
            said[sample][name] = digest
    table = entries.metadata if entries.metadata is not None else pa.table({})
    for name in filter(is_label_name, table.column_names):
        values = table.column(name).take(arrow.number_array(samples)).to_pylist()
        for sample, value in zip(samples.tolist(), values, strict=True):
            if value is not None:
                said[sample].setdefault(name, value)
    for group in groups:
        first = said[group[0]]
        for sample in group[1:]:
            here = said[sample]
            unlike = sorted(name for name in first.keys() & here.keys() if first[name] != here[name])
            if unlike:
                yield sample, tuple(unlike)


def drop_duplicate_samples(
    listed: Listing,
    source: Source,
    options: SelectingOptions,
    pool: Pool,
    observer: Observer,
    taken: Callable[[], PackedStrings | None],
) -> Listing:
    """Return the samples, where that is asked for without those that hold the same as one whose key comes first.

    These are left out by name. A plan has none already.

    Args:
        listed: The samples.
        source: What they come from.
        options: What is asked for.
        pool: Reads payloads.
        observer: Gets progress.
        taken: Returns the keys of samples that a dataset has already: these stay, and come first.

    Raises:
        CorruptShard: A shard of the source cannot be read.
    """
    if not options.drop_duplicates or getattr(options, "plan", None) is not None:
        return listed
    entries, there = listed.entries, np.zeros(len(listed.entries), np.bool_)
    if (known := taken()) is not None:
        there = contains_hashes(hash_keys(entries.keys), np.sort(hash_keys(known)))
    twins = find_duplicates(entries, source, pool, observer, there)
    skipped = {
        sample: _skip_duplicate(entries, sample, group[0], twins.differ.get(sample, ()))
        for group in twins.groups
        for sample in group[1:]
        if not there[sample]
    }
    if not skipped:
        return listed
    lost = sorted(skipped)
    rows = tuple(skipped[sample] for sample in lost)
    return replace(listed, entries=entries.without(lost), skipped=listed.skipped + rows, digest=None)


def _skip_duplicate(entries: SampleTable, sample: int, first: int, differ: tuple[str, ...]) -> Skipped:
    return Skipped(to_text(entries.keys[sample]), "", "duplicate", duplicate_message(printable(entries.keys[first]), differ))
