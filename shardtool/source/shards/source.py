"""Datasets as a source: their samples are chosen and changed, and none is decoded."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from shardtool.dataset.several import of_glob
from shardtool.errors import InvalidRequest, listing
from shardtool.request.python_types import pairs
from shardtool.select import order
from shardtool.source.base import Listing, Source, check_skipped
from shardtool.source.selecting import Selection, take_some
from shardtool.values import SPAN, counted, to_text
from shardtool.wording import call, flag, option

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from shardtool.entries.entries import Entries
    from shardtool.execute.pool import Pool
    from shardtool.names import Names
    from shardtool.request.observer import Observer
    from shardtool.request.reshard_options import ReshardOptions
    from shardtool.values import Given

_CHANGES_CONTENT = ("select_fields", "drop_fields", "rename_fields", "values", "portable")
_CHOOSES = ("where", "sample", "head")
_ENCODED = "image/encoded"  # what TensorFlow calls an image


class ShardSource(Source):
    """The samples of datasets.

    Samples are chosen and changed in this order: what `Selection` does, `sample`, duplicates, `sort_by`, `head`.

    Args:
        datasets: One, or a list of them.
        options: What is asked for.
        to_format: The format of the shards that the samples go into.
    """

    asks_for_taken_keys = True

    def __init__(self, datasets: Given | Sequence[Given], options: ReshardOptions, to_format: str) -> None:
        given = [datasets] if isinstance(datasets, (str, os.PathLike)) else [*datasets]
        self._datasets = [dataset for one in given for dataset in of_glob(one)]
        if not self._datasets:
            raise InvalidRequest(
                "the datasets", "none given", expected="a dataset file, a pattern, a folder, or shards"
            )
        self._options, self._format = options, to_format

    @property
    def by_key(self) -> bool:
        """Whether samples stand in the order of their keys, not in that of their shards."""
        return False

    def list_samples(self, pool: Pool, observer: Observer) -> Listing:
        """List the shards, in the workers where they have no index; choose fields and samples."""
        from shardtool.source.shards.listing import list_datasets

        options = self._options
        renames = pairs("rename_fields", options.rename_fields)
        without = {*options.drop_fields, *options.classes} - {old for old, _ in renames} - {*options.columns_from}
        only, to_format = options.select_fields and (*options.select_fields, *options.columns_from), self._format
        salvage = options.on_error == "skip"
        found = list_datasets(
            self._datasets, pool, observer, to_format=to_format, only=only, without=without, salvage=salvage
        )
        recorded = {"dots": "last"} if found.dots == "last" and not options.portable else {}
        changed = any(getattr(options, name) for name in (*_CHANGES_CONTENT, *_CHOOSES))
        notes = (*found.notes, *_unchecked(found.entries))
        digest = None if changed else found.digest
        listed = Listing(found.entries, found.skipped, found.name, notes, recorded, digest, found.shards, found.packed)
        selection = Selection(options, _table, to_format)
        return self._with_fields(selection.chosen(selection.with_fields(listed, pool)))

    def choose(self, listed: Listing, taken: Names | None) -> Listing:
        """Return the samples that were asked for, in the order that was asked for."""
        options = self._options
        listed = self._without_duplicates(self._sampled(listed), taken)
        listed = Selection(options, _table).in_order(listed)
        listed = replace(listed, entries=self._first(listed.entries))
        entries, skipped = listed.entries, listed.skipped
        if self._format == "tar":
            _check_tar(listed)
        check_skipped(listed.name, skipped, options.on_error, "make the shards anew without them")
        if not len(entries):
            why = f": all {len(skipped):,} were left out" if skipped else ""
            raise InvalidRequest(listed.name, f"no samples{why}", expected="one or more")
        return listed

    def column(self, listed: Listing, name: str) -> pa.ChunkedArray:
        """Return a column of the sidecars, or one of `key`, `shard`, `size` and `fields`."""
        from shardtool.select.order import column_of

        return column_of(_table(listed), name, listed.name)

    def _with_fields(self, listed: Listing) -> Listing:
        """Return the samples that have fields: an Example may hold nothing but its key."""
        from shardtool.select.fields import without_empty

        if not len(listed.entries):
            return listed
        entries, empty = without_empty(listed.entries, listed.name, "no sample has a field", "nothing but its key")
        return replace(listed, entries=entries, skipped=listed.skipped + empty, digest=None) if empty else listed

    def _sampled(self, listed: Listing) -> Listing:

        entries, share = listed.entries, self._options.sample
        if share is None:
            return listed
        samples = order.sample_by_key(entries.keys, share)
        return take_some(listed, samples, option("sample"), f"none of {len(entries):,} samples falls into {share}")

    def _without_duplicates(self, listed: Listing, taken: Names | None) -> Listing:
        from shardtool.select.duplicates import resolve_duplicates

        before, asked = listed.entries, self._options.on_duplicate
        # An error says where shards lie, for two may have one name; `out.skipped` must not.
        names = [to_text(one.path) for one in before.known_spans.files] if asked == "error" else listed.shards
        entries, skipped, note = resolve_duplicates(before, asked, names, taken, where=listed.name)
        if entries is before:
            return listed
        notes, skipped = (*listed.notes, note) if note else listed.notes, listed.skipped + skipped
        return replace(listed, entries=entries, skipped=skipped, digest=None, notes=notes)

    def _first(self, entries: Entries) -> Entries:
        import numpy as np

        head = self._options.head
        return entries if head is None or head >= len(entries) else entries.take(np.arange(head))


def _check_tar(listed: Listing) -> None:
    """Refuse fields that cannot be the ends of members' names, or that would be read as parts of keys there."""
    entries = listed.entries
    fields = [name for name, count in zip(entries.fields, entries.code_counts(), strict=True) if count]
    dotted = [name for name in fields if "." in name]
    if dotted and "dots" in listed.recorded:
        found = f"keys with dots in their last part, and fields with dots: {listing(dotted)}"
        expected = "names that the first dot divides, or the last"
        remedy = (
            f"Rename them ({option('rename_fields', {dotted[0]: dotted[0].rpartition('.')[2]})}), or use "
            f"{flag('portable')}."
        )
        raise InvalidRequest(listed.name, found, expected=expected, remedy=remedy)
    bad = [name for name in fields if "/" in name]
    if bad:
        found = f"fields with a slash, which no tar shard can hold: {listing(list(map(repr, bad)))}"
        renamed = {_ENCODED: "jpg"} if _ENCODED in bad else {bad[0]: bad[0].rpartition("/")[2] or "jpg"}
        remedy = f"Rename them ({option('rename_fields', renamed)}), or {option('drop_fields')}."
        raise InvalidRequest(listed.name, found, expected="endings, such as jpg or cls", remedy=remedy)


def _unchecked(entries: Entries) -> list[str]:
    """Return what the user should know of payloads whose damage nothing would show."""
    import numpy as np

    spans = entries.known_spans
    rows = np.flatnonzero((spans.expected < 0) & (entries.rows.kind == SPAN))
    if not len(rows):
        return []
    shards = int(np.count_nonzero(np.bincount(spans.file[entries.owners(rows)])))
    what = f"{counted(shards, 'shard')} without checksums, so that damage in them cannot be seen"
    return [f"{what}: {call('index', checksum=True)} adds them"]


def _table(listed: Listing) -> pa.Table:
    """Return what a query sees of samples."""
    import numpy as np

    return order.table_of(listed.entries, listed.entries.known_spans.file.astype(np.int32), listed.shards)
