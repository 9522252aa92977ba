"""Datasets as the source of `reshard`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.dataset.expand import expand_if_pattern
from shardtool.errors import InvalidRequest, format_list, printable
from shardtool.messages import call_text, flag_text, option_text
from shardtool.names import to_text
from shardtool.request.option_values import parse_pairs
from shardtool.select import duplicate_keys, sample_table
from shardtool.select.add_fields import match_samples, merge_fields
from shardtool.select.field_rows import drop_empty_samples
from shardtool.shard_samples import SPAN
from shardtool.skipped import Skipped
from shardtool.source import selection
from shardtool.source.base import Listing, Source, check_skipped
from shardtool.source.shard_listing import list_datasets
from shardtool.units import pluralize

if TYPE_CHECKING:
    import pyarrow as pa

    from shardtool.entries.sample_table import SampleTable
    from shardtool.entries.strings import PackedStrings
    from shardtool.execute.pool import Pool
    from shardtool.pattern import ShardPattern
    from shardtool.request.create_options import ReshardOptions
    from shardtool.request.observer import Observer
    from shardtool.values import DatasetLike


_CONTENT_OPTIONS = ("select_fields", "drop_fields", "rename_fields", "field", "portable", "resize", "encode", "map")
_SELECTION_OPTIONS = ("where", "keys_from", "sample", "per_class", "head")
_TENSORFLOW_IMAGE = "image/encoded"


class DatasetSource(Source):
    """The samples of datasets.

    Options are applied in this order: fields, `add`, `join`, `keys_from`, `where`, `field`, `sample`, `rename_keys`,
    `on_duplicate`, `per_class`, `sort_by`, `head`.
    """

    by_key = False

    def __init__(
        self,
        datasets: DatasetLike | Sequence[DatasetLike],
        options: ReshardOptions,
        outputs: Sequence[ShardPattern] = (),
    ) -> None:
        arguments: Any = datasets if isinstance(datasets, Iterable) and not isinstance(datasets, str) else [datasets]
        self._datasets = [dataset for argument in arguments for dataset in expand_if_pattern(argument)]
        if not self._datasets:
            expected = "a dataset file, a pattern, a folder, or shards"
            raise InvalidRequest("the datasets", "none given", expected=expected)
        self._options = options
        self._format = outputs[0].format if outputs else "tar"

    def list_samples(self, pool: Pool, observer: Observer) -> Listing:
        options = self._options
        renames = parse_pairs("rename_fields", options.rename_fields)
        without = {*options.drop_fields, *options.classes} - {old for _, old in renames} - {*options.columns_from}
        only = options.select_fields and (*options.select_fields, *options.columns_from)
        to_format = self._format
        salvage = options.on_error == "skip"
        listing = list_datasets(
            self._datasets, pool, observer, to_format=to_format, only=only, without=without, salvage=salvage
        )
        changed = any(map(options.is_given, (*_CONTENT_OPTIONS, *_SELECTION_OPTIONS)))
        listing = replace(
            listing,
            notes=(*listing.notes, *_checksum_notes(listing.entries)),
            recorded={} if options.portable else listing.recorded,
            digest=None if changed else listing.digest,
        )
        listing = selection.apply_field_options(listing, options, pool, to_format)
        for added in options.add:
            listing = self._add_dataset(listing, added, pool, observer)
        listing = selection.join_and_filter(listing, options, optional_values=self.optional_values)
        if not len(listing.entries):
            return listing
        # Drop TFRecord samples that contain only a key.
        entries, empty = drop_empty_samples(listing.entries, listing.where, "no sample has a field", "only a key")
        return replace(listing, entries=entries, skipped=listing.skipped + empty, digest=None) if empty else listing

    def select_and_sort(self, listing: Listing, read_existing_keys: Callable[[], PackedStrings | None]) -> Listing:
        options = self._options
        listing = selection.rename_listed_keys(selection.take_sample(listing, options), options)
        had_samples, listing = len(listing.entries) > 0, self._without_duplicates(listing, read_existing_keys())
        all_exist = had_samples and not len(listing.entries)
        listing = selection.sort_and_limit(self._sample_per_class(listing), options)
        if self._format == "tar":
            _check_tar_fields(listing)
        check_skipped(listing.where, listing.skipped, options.on_error, "recreate the shards without them")
        if not len(listing.entries) and not all_exist:
            why = f": all {len(listing.skipped):,} were skipped" if listing.skipped else ""
            raise InvalidRequest(listing.where, f"no samples{why}", expected="at least one sample")
        return listing

    def column(self, listing: Listing, name: str, option: str = "") -> pa.ChunkedArray:
        """Return a metadata column, or one of `key`, `shard`, `size` and `fields`."""
        table = sample_table.make_sample_table(listing.entries, listing.shards)
        try:
            return sample_table.table_column(table, name, option or listing.where)
        except InvalidRequest as error:
            if name in listing.entries.fields:
                error.remedy = f"Turn the field into a column with {option_text('columns_from', (name,))}."
            raise

    def _add_dataset(self, listing: Listing, dataset: str, pool: Pool, observer: Observer) -> Listing:
        options = self._options
        other = list_datasets([dataset], pool, observer, to_format=self._format, salvage=options.on_error == "skip")
        if packed := [item.name for item in (listing, other) if item.compressed]:
            found = "compressed shards, which can only be read in sequence"
            raise InvalidRequest(packed[0], found, expected="uncompressed shards", remedy="Unpack them with `reshard`.")
        shards = [to_text(item.path) for item in other.entries.known_spans.files]
        duplicate_keys.resolve_duplicate_keys(other.entries, "error", shards, where=other.name)
        entries, skipped = listing.entries, listing.skipped
        positions = match_samples(entries, other.entries, other.name)
        unmatched, unused = np.flatnonzero(positions < 0), len(other.entries) - int(np.count_nonzero(positions >= 0))
        if len(unmatched):
            first = [f"'{printable(entries.keys[sample])}'" for sample in unmatched[:3].tolist()]
            shown = format_list(first, total=len(unmatched))
            found = f"{len(unmatched):,} of {pluralize(len(positions), 'sample')} not in {other.name}: {shown}"
            if options.on_error != "skip" or len(unmatched) == len(positions):
                remedy = f"Skip them with {option_text('on_error', 'skip')}." if len(unmatched) < len(positions) else ""
                raise InvalidRequest(option_text("add"), found, expected="a sample for each key", remedy=remedy)
            why = f"not in {other.name}"
            skipped += tuple(Skipped(entries.key(sample), "", "incomplete", why) for sample in unmatched.tolist())
            entries, positions = entries.take(np.flatnonzero(positions >= 0)), positions[positions >= 0]
        notes = [f"{pluralize(unused, 'sample')} of {other.name} not used: no sample has their keys"] if unused else []
        return replace(
            listing,
            entries=merge_fields(entries, other.entries.take(positions)),
            skipped=skipped + other.skipped,
            notes=(*listing.notes, *other.notes, *notes),
            recorded={**listing.recorded, "add": [*listing.recorded.get("add", ()), other.name]},  # type: ignore[misc]
            digest=None,
            shards=(*listing.shards, *other.shards),
            classes={**other.classes, **listing.classes},
        )

    def _sample_per_class(self, listing: Listing) -> Listing:
        options = self._options
        if options.per_class is None:
            return listing
        from shardtool.select.splits import sample_per_class

        column = options.of or "cls"
        keys = listing.entries.keys
        labels = self.labels(listing, option_text("of"), column)
        samples = sample_per_class(keys, labels, options.per_class, column=column, seed=options.seed)
        return replace(listing, entries=listing.entries.take(samples))

    def _without_duplicates(self, listing: Listing, existing_keys: PackedStrings | None) -> Listing:
        old_entries, rule = listing.entries, self._options.on_duplicate
        # Errors show paths, because two shards may have the same name.
        names = [to_text(file.path) for file in old_entries.known_spans.files] if rule == "error" else listing.shards
        entries, skipped, note = duplicate_keys.resolve_duplicate_keys(
            old_entries, rule, names, existing_keys, where=listing.where
        )
        if entries is old_entries:
            return listing
        notes = (*listing.notes, note) if note else listing.notes
        skipped = listing.skipped + skipped
        return replace(listing, entries=entries, skipped=skipped, digest=None, notes=notes)


def _check_tar_fields(listing: Listing) -> None:
    entries = listing.entries
    fields = entries.used_fields()
    dotted = [name for name in fields if "." in name]
    if dotted and "dots" in listing.recorded:
        found = f"keys with dots in their last part, and fields with dots: {format_list(dotted)}"
        expected = "names in which the first or the last dot ends the key"
        renamed = {dotted[0].rpartition(".")[2]: dotted[0]}
        remedy = f"Rename them ({option_text('rename_fields', renamed)}), or use {flag_text('portable')}."
        raise InvalidRequest(listing.where, found, expected=expected, remedy=remedy)
    if bad := [name for name in fields if "/" in name]:
        found = f"fields with a slash, which a tar shard cannot store: {format_list(list(map(repr, bad)))}"
        first_rename = {bad[0].rpartition("/")[2] or "jpg": bad[0]}
        renamed = {"jpg": _TENSORFLOW_IMAGE} if _TENSORFLOW_IMAGE in bad else first_rename
        remedy = f"Rename them ({option_text('rename_fields', renamed)}), or {option_text('drop_fields')}."
        raise InvalidRequest(listing.where, found, expected="extensions, such as jpg or cls", remedy=remedy)


def _checksum_notes(entries: SampleTable) -> list[str]:
    spans = entries.known_spans
    rows = np.flatnonzero((spans.crc < 0) & (entries.rows.kind == SPAN))
    if not len(rows):
        return []
    shards = int(np.count_nonzero(np.bincount(entries.file_numbers(rows))))
    unverified = f"{pluralize(shards, 'shard')} without checksums, so shardtool cannot detect damaged payloads"
    return [f"{unverified}: to add checksums, use {call_text('index', checksum=True)}"]
