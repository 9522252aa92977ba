"""Find and drop duplicate samples of a source. `dataset/duplicates.py` defines what a duplicate is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from shardtool.dataset.duplicates import JSON_RANK, content_rank, find_content, repeated
from shardtool.dataset.payload import is_label_name
from shardtool.entries import arrow
from shardtool.errors import printable
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


class DuplicateGroups(NamedTuple):
    """Groups of samples with the same content.

    Attributes:
        groups: The sample numbers of each group, sorted by key. Samples that exist in the output come first.
            Groups are sorted by their first samples.
        sizes: The content size in bytes of each group's first sample.
        fields: The fields whose content was compared.
        differ: Maps a sample number to the fields and labels that differ from the first sample in the group.
    """

    groups: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    fields: tuple[str, ...]
    differ: dict[int, tuple[str, ...]]


def find_duplicates(
    entries: SampleTable, source: Source | None, pool: Pool, observer: Observer, exists: NDArray[np.bool_] | None = None
) -> DuplicateGroups:
    """Find samples with the same content.

    `source` is None if the samples are in shards. `exists` marks samples that already exist in the output.
    """
    values = entries.values
    labels = {*values.numbers, *values.lists, *values.classes}
    content = find_content(entries.fields, labels, entries.rows.code, entries.counts())
    fields = tuple(entries.fields[code] for code in np.unique(entries.rows.code[content.rows]).tolist())
    content_sizes = entries.rows.size[content.rows]
    candidates = content.select(repeated(content.ids(content_sizes, _known_crcs(entries, content.rows))))
    groups = candidates.groups(checksums.source_digests(source, entries, candidates.rows, pool, observer))

    def sort_key(sample: int) -> tuple[bool, bytes, int]:
        return exists is None or not exists[sample], entries.keys[sample], sample

    several = sorted((tuple(sorted(group, key=sort_key)) for group in groups), key=lambda group: sort_key(group[0]))
    sizes = np.bincount(content.samples, content_sizes, len(entries))
    group_sizes = tuple(int(sizes[group[0]]) for group in several)
    differ = dict(_find_differing_values(entries, several, content.rows, source, pool))
    return DuplicateGroups(tuple(several), group_sizes, fields, differ)


def _known_crcs(entries: SampleTable, rows: Rows) -> Rows | None:
    if entries.spans is None or np.any(entries.rows.kind[rows] != SPAN):
        return None
    crcs = entries.spans.crc[rows]
    return crcs if crcs.min(initial=0) >= 0 else None  # if a checksum is unknown, compare sizes only


def _find_differing_values(
    entries: SampleTable, groups: list[tuple[int, ...]], content: Rows, source: Source | None, pool: Pool
) -> Iterator[tuple[int, tuple[str, ...]]]:
    samples = np.array(sorted(sample for group in groups for sample in group), np.int64)
    if not len(samples):
        return
    other_rows = np.setdiff1d(entries.rows_of(samples), content, assume_unique=True)
    names = [entries.fields[code] for code in entries.rows.code[other_rows].tolist()]
    values_of: dict[int, dict[str, object]] = {sample: {} for sample in samples.tolist()}
    digests = checksums.source_digests(source, entries, other_rows, pool).tolist()
    for sample, name, digest in zip(entries.samples_of(other_rows).tolist(), names, digests, strict=True):
        if content_rank(name) != JSON_RANK:
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
    listing: Listing,
    source: Source,
    options: SelectingOptions,
    pool: Pool,
    observer: Observer,
    read_existing_keys: Callable[[], PackedStrings | None],
) -> Listing:
    """With `drop_duplicates`, drop new samples that duplicate a sample in the output or a sample with a smaller key."""
    # The run that wrote a plan file has already dropped the duplicates.
    if not options.drop_duplicates or getattr(options, "plan", None) is not None:
        return listing
    entries, exists = listing.entries, np.zeros(len(listing.entries), np.bool_)
    if (existing_keys := read_existing_keys()) is not None:
        exists = contains_hashes(hash_keys(entries.keys), np.sort(hash_keys(existing_keys)))
    duplicates = find_duplicates(entries, source, pool, observer, exists)
    skipped = {
        sample: _skip_duplicate(entries, sample, group[0], duplicates.differ.get(sample, ()))
        for group in duplicates.groups
        for sample in group[1:]
        if not exists[sample]
    }
    if not skipped:
        return listing
    dropped = sorted(skipped)
    rows, kept = tuple(skipped[sample] for sample in dropped), np.delete(np.arange(len(entries)), dropped)
    return replace(listing, entries=entries.take(kept), skipped=listing.skipped + rows, digest=None, kept=kept)


def _skip_duplicate(entries: SampleTable, sample: int, first: int, differ: tuple[str, ...]) -> Skipped:
    message = duplicate_message(printable(entries.keys[first]), differ)
    return Skipped(entries.key(sample), "", "duplicate", message)
