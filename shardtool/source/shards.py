"""Datasets as a source: `reshard` selects and changes their samples without decoding them."""

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
from shardtool.select.add_dataset import match_samples, merge_fields
from shardtool.select.field_rows import drop_empty_samples
from shardtool.shard_samples import SPAN
from shardtool.skipped import Skipped
from shardtool.source.base import Listing, Source, check_skipped
from shardtool.source.selection import apply_field_options, join_and_filter, sort_and_limit, take_sample
from shardtool.source.shard_listing import list_datasets
from shardtool.units import pluralize

if TYPE_CHECKING:
    import pyarrow as pa

    from shardtool.entries.sample_table import SampleTable
    from shardtool.entries.strings import PackedStrings
    from shardtool.execute.pool import Pool
    from shardtool.request.create_options import ReshardOptions
    from shardtool.request.observer import Observer
    from shardtool.values import DatasetLike


_CONTENT_OPTIONS = ("select_fields", "drop_fields", "rename_fields", "values", "portable", "resize", "encode", "map")


_SELECTION_OPTIONS = ("where", "sample", "per_class", "head")


_TENSORFLOW_IMAGE = "image/encoded"  # what TensorFlow calls an image


class DatasetSource(Source):
    """The samples of datasets.

    Samples are chosen and changed in this order: their fields, `join` and `where` (`source/selecting.py`), `sample`,
    duplicates, `sort_by`, `head`.

    Args:
        datasets: One, or a list of them.
        options: What is asked for.
        to_format: The format of the shards that the samples go into.
    """

    by_key = False

    def __init__(self, datasets: DatasetLike | Sequence[DatasetLike], options: ReshardOptions, to_format: str) -> None:
        given: Any = datasets if isinstance(datasets, Iterable) and not isinstance(datasets, str) else [datasets]
        self._datasets = [dataset for one in given for dataset in expand_if_pattern(one)]
        if not self._datasets:
            expected = "a dataset file, a pattern, a folder, or shards"
            raise InvalidRequest("the datasets", "none given", expected=expected)
        self._options, self._format = options, to_format

    def list_samples(self, pool: Pool, observer: Observer) -> Listing:
        """List the shards, in the workers where they have no index; choose fields and samples."""
        options = self._options
        renames = parse_pairs("rename_fields", options.rename_fields)
        without = {*options.drop_fields, *options.classes} - {old for old, _ in renames} - {*options.columns_from}
        only, to_format = options.select_fields and (*options.select_fields, *options.columns_from), self._format
        salvage = options.on_error == "skip"
        found = list_datasets(
            self._datasets, pool, observer, to_format=to_format, only=only, without=without, salvage=salvage
        )
        changed = any(getattr(options, name) for name in (*_CONTENT_OPTIONS, *_SELECTION_OPTIONS))
        listed = replace(
            found,
            notes=(*found.notes, *_checksum_notes(found.entries)),
            recorded={} if options.portable else found.recorded,
            digest=None if changed else found.digest,
        )
        listed = apply_field_options(listed, options, pool, to_format)
        for given in options.add:
            listed = self._add_dataset(listed, given, pool, observer)
        listed = join_and_filter(listed, options, may_lack_values=self.may_lack_values)
        if not len(listed.entries):
            return listed
        # An Example may hold nothing but its key.
        entries, empty = drop_empty_samples(
            listed.entries, listed.where, "no sample has a field", "nothing but its key"
        )
        return replace(listed, entries=entries, skipped=listed.skipped + empty, digest=None) if empty else listed

    def choose(self, listed: Listing, taken: Callable[[], PackedStrings | None]) -> Listing:
        """Return the samples that were asked for, in the order that was asked for."""
        options = self._options
        listed = sort_and_limit(
            self._sample_per_class(self._without_duplicates(take_sample(listed, options), taken())), options
        )
        if self._format == "tar":
            _check_tar_fields(listed)
        check_skipped(listed.where, listed.skipped, options.on_error, "make the shards anew without them")
        if not len(listed.entries):
            why = f": all {len(listed.skipped):,} were left out" if listed.skipped else ""
            raise InvalidRequest(listed.where, f"no samples{why}", expected="one or more")
        return listed

    def column(self, listed: Listing, name: str) -> pa.ChunkedArray:
        """Return a column of the sidecars, or one of `key`, `shard`, `size` and `fields`."""
        try:
            return sample_table.table_column(
                sample_table.make_sample_table(listed.entries, listed.shards), name, listed.where
            )
        except InvalidRequest as error:
            if name in listed.entries.fields:
                error.remedy = f"{option_text('columns_from', (name,))} makes a column of the field."
            raise

    def _add_dataset(self, listed: Listing, given: str, pool: Pool, observer: Observer) -> Listing:
        """Return the samples with the fields of another dataset, too.

        Raises:
            InvalidRequest: A sample is not in it, and is not to be left out; or both have a field of one name.
        """
        options = self._options
        other = list_datasets([given], pool, observer, to_format=self._format, salvage=options.on_error == "skip")
        if packed := [one.name for one in (listed, other) if one.compressed]:
            found = "compressed shards, which can only be read in sequence"
            raise InvalidRequest(packed[0], found, expected="shards that are not", remedy="`reshard` unpacks them.")
        shards = [to_text(one.path) for one in other.entries.known_spans.files]
        duplicate_keys.resolve_duplicate_keys(other.entries, "error", shards, where=other.name)
        entries, skipped = listed.entries, listed.skipped
        places = match_samples(entries, other.entries, other.name)
        lone, unused = np.flatnonzero(places < 0), len(other.entries) - int(np.count_nonzero(places >= 0))
        if len(lone):
            shown = format_list([f"'{printable(entries.keys[at])}'" for at in lone[:3].tolist()], total=len(lone))
            found = f"{len(lone):,} of {pluralize(len(places), 'sample')} not in {other.name}: {shown}"
            if options.on_error != "skip" or len(lone) == len(places):
                remedy = f"{option_text('on_error', 'skip')} leaves them out." if len(lone) < len(places) else ""
                raise InvalidRequest(option_text("add"), found, expected="one of each key", remedy=remedy)
            why = f"not in {other.name}"
            skipped += tuple(Skipped(entries.key(at), "", "incomplete", why) for at in lone.tolist())
            entries, places = entries.take(np.flatnonzero(places >= 0)), places[places >= 0]
        notes = [f"{pluralize(unused, 'sample')} of {other.name} not used: no such key here"] if unused else []
        return replace(
            listed,
            entries=merge_fields(entries, other.entries.take(places)),
            skipped=skipped + other.skipped,
            notes=(*listed.notes, *other.notes, *notes),
            recorded={**listed.recorded, "add": [*listed.recorded.get("add", ()), other.name]},  # type: ignore[misc]
            digest=None,
            shards=(*listed.shards, *other.shards),
            classes={**other.classes, **listed.classes},
        )

    def _sample_per_class(self, listed: Listing) -> Listing:
        """Return at most as many samples of each class as `per_class` says."""
        options = self._options
        if options.per_class is None:
            return listed
        from shardtool.select.splits import sample_per_class

        column, keys = options.of or "cls", listed.entries.keys
        labels = self.labels(listed, column)
        samples = sample_per_class(keys, labels, options.per_class, column=column, seed=options.seed)
        return replace(listed, entries=listed.entries.take(samples))

    def _without_duplicates(self, listed: Listing, taken: PackedStrings | None) -> Listing:
        before, asked = listed.entries, self._options.on_duplicate
        # An error says where shards lie, for two may have one name; `out.skipped` must not.
        names = [to_text(one.path) for one in before.known_spans.files] if asked == "error" else listed.shards
        entries, skipped, note = duplicate_keys.resolve_duplicate_keys(before, asked, names, taken, where=listed.where)
        if entries is before:
            return listed
        notes, skipped = (*listed.notes, note) if note else listed.notes, listed.skipped + skipped
        return replace(listed, entries=entries, skipped=skipped, digest=None, notes=notes)


def _check_tar_fields(listed: Listing) -> None:
    """Refuse fields that cannot be the ends of members' names, or that would be read as parts of keys there."""
    entries = listed.entries
    fields = entries.used_fields()
    dotted = [name for name in fields if "." in name]
    if dotted and "dots" in listed.recorded:
        found = f"keys with dots in their last part, and fields with dots: {format_list(dotted)}"
        expected = "names that the first dot divides, or the last"
        renamed = {dotted[0]: dotted[0].rpartition(".")[2]}
        remedy = f"Rename them ({option_text('rename_fields', renamed)}), or use {flag_text('portable')}."
        raise InvalidRequest(listed.where, found, expected=expected, remedy=remedy)
    bad = [name for name in fields if "/" in name]
    if bad:
        found = f"fields with a slash, which no tar shard can hold: {format_list(list(map(repr, bad)))}"
        renamed = (
            {_TENSORFLOW_IMAGE: "jpg"} if _TENSORFLOW_IMAGE in bad else {bad[0]: bad[0].rpartition("/")[2] or "jpg"}
        )
        remedy = f"Rename them ({option_text('rename_fields', renamed)}), or {option_text('drop_fields')}."
        raise InvalidRequest(listed.where, found, expected="endings, such as jpg or cls", remedy=remedy)


def _checksum_notes(entries: SampleTable) -> list[str]:
    """Return what the user should know of payloads whose damage nothing would show."""
    spans = entries.known_spans
    rows = np.flatnonzero((spans.expected < 0) & (entries.rows.kind == SPAN))
    if not len(rows):
        return []
    shards = int(np.count_nonzero(np.bincount(entries.file_numbers(rows))))
    what = f"{pluralize(shards, 'shard')} without checksums, so that damage in them cannot be seen"
    return [f"{what}: {call_text('index', checksum=True)} adds them"]
