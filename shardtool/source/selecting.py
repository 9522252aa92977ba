"""The fields, columns and samples that are asked for, found in one order for a folder and for datasets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest
from shardtool.request.choices import pairs
from shardtool.source.base import Listing, check_skipped
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from shardtool.execute.pool import Pool
    from shardtool.request.options import SelectingOptions


@dataclass(frozen=True, slots=True)
class Selection:
    """What `SelectingOptions` ask for, done in this order: `columns_from`, fields, `join`, `where`, `values`.

    Attributes:
        options: What is asked for.
        table_of: Returns what a query sees of samples.
        to_format: What the samples will be written as.
    """

    options: SelectingOptions
    table_of: Callable[[Listing], pa.Table]
    to_format: str = "tar"

    def with_fields(self, listed: Listing, pool: Pool) -> Listing:
        """Return the samples with the columns of JSON fields, and those of their fields that were asked for.

        Raises:
            InvalidRequest: There is no such field, or names that no field can have.
            SampleFailed: A JSON field cannot be read, and its sample is not to be skipped.
        """
        options = self.options
        if options.columns_from:
            from shardtool.source.json_columns import with_json_columns

            for field in options.columns_from:
                listed = with_json_columns(listed, field, pool)
            check_skipped(listed.name, listed.skipped, options.on_error, f"leave out {option('columns_from')}")
        if not (options.select_fields or options.drop_fields or options.rename_fields):
            return listed
        from shardtool.select.fields import select_fields

        entries, renames = listed.entries, pairs("rename_fields", options.rename_fields)
        if renames and not listed.shards:
            from shardtool.select.portable import paths_of

            entries = replace(entries, rows=replace(entries.rows, paths=paths_of(entries)))
        chosen = options.select_fields, options.drop_fields, renames
        entries, empty = select_fields(entries, *chosen, to_format=self.to_format)
        return replace(listed, entries=entries, skipped=listed.skipped + empty)

    def chosen(self, listed: Listing) -> Listing:
        """Return the samples that `where` takes, with the columns of the table of `join` and the fields of `values`.

        Raises:
            InvalidRequest: The table, the query or a column is not what it must be, or no sample is left.
        """
        return self._with_values(self._where(self._joined(listed)))

    def in_order(self, listed: Listing) -> Listing:
        """Return the samples in the order of `sort_by`.

        Raises:
            InvalidRequest: There is no such column, or it has no order.
        """
        name = self.options.sort_by
        if name is None:
            return listed
        from shardtool.select.order import column_of, sort_order

        column = column_of(self.table_of(listed), name, option("sort_by"))
        order = sort_order(column, name, descending=self.options.descending)
        return replace(listed, entries=listed.entries.take(order))

    def _joined(self, listed: Listing) -> Listing:
        options = self.options
        if options.join is None:
            return listed
        from shardtool.select.join import join

        joined = join(listed.entries, options.join, options.on or "")
        recorded = {**listed.recorded, "join": joined.name}
        return replace(listed, entries=joined.entries, recorded=recorded, notes=(*listed.notes, *joined.notes))

    def _where(self, listed: Listing) -> Listing:
        query = self.options.where
        if query is None:
            return listed
        from shardtool.select.query import matching

        samples = matching(self.table_of(listed), query)
        return take_some(listed, samples, option("where"), f"no sample for which {query}")

    def _with_values(self, listed: Listing) -> Listing:
        """Return the samples with the fields that `values` and `classes` make of metadata."""
        options, values = self.options, pairs("values", self.options.values)
        if not (values or options.classes):
            return listed
        from shardtool.dataset.dataset_file import open_classes
        from shardtool.select.join import set_fields

        entries, notes = set_fields(listed.entries, values, options.classes, open_classes(options.classes_from))
        return replace(listed, entries=entries, notes=(*listed.notes, *notes))


def take_some(listed: Listing, samples: NDArray[np.int64], option: str, found: str) -> Listing:
    """Return some of the samples.

    Raises:
        InvalidRequest: There are none.
    """
    if not len(samples):
        raise InvalidRequest(option, found, expected="one sample or more")
    return replace(listed, entries=listed.entries.take(samples))
