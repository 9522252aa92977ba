"""Read the metadata columns of sidecars, and find the samples that match a query."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.dataset.shard_index import ShardIndex, part_offsets
from shardtool.dataset.sidecar_schema import SCHEMA_WITHOUT_CRC, SIDECAR_SCHEMA, with_shard_column
from shardtool.entries.arrow import number_array, string_array, text_scalar, to_python_values
from shardtool.errors import CorruptShard, InvalidRequest, format_list, printable, redact_secrets
from shardtool.messages import option_text, recreate_hint
from shardtool.read.catalog import logger
from shardtool.select.query import match_rows
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    import pyarrow.dataset as pads
    from numpy.typing import NDArray

    from shardtool.dataset.stored import StoredDataset, StoredShard
    from shardtool.read.catalog import Catalog, Numbers


VERIFY_FIX = "Run `shardtool verify`."


def queryable_table(
    shard: StoredShard, shard_index: ShardIndex, columns: Iterable[str], labels: Collection[str]
) -> pa.Table:
    """Return a table with all columns of a shard that a query (`select.query`) can use.

    A column that the sidecar lacks is null. If the missing column is in `labels`, and the shard has a field of the same
    name, the column is omitted, because a query does not read fields.
    """
    existing = {name: shard_index.metadata.column(name) for name in shard_index.metadata.column_names}
    unknown = {*labels}.intersection(shard_index.names)
    missing = dict.fromkeys(sorted({*columns}.difference(existing, unknown)), pa.nulls(len(shard_index)))
    computed = {
        "key": string_array(bytes(shard_index.keys), shard_index.key_sizes),
        "shard": pa.repeat(text_scalar(printable(shard.file_name)), len(shard_index)),
        "size": number_array(np.diff(part_offsets(shard_index.lengths)[shard_index.first_rows])),
        "fields": number_array(shard_index.counts),
    }
    table = {**existing, **missing}
    return pa.table(table | {name: column for name, column in computed.items() if name not in table})


def arrow_schema(catalog: Catalog) -> pa.Schema:
    """Return the names and types of all sidecar columns, including `__shard__`."""
    return pa.schema([*with_shard_column(SCHEMA_WITHOUT_CRC), *metadata_schema(catalog)])


def metadata_schema(catalog: Catalog) -> pa.Schema:
    """Return the metadata columns of all sidecars, with a common type for each column.

    Raises:
        InvalidRequest: Two sidecars store a column with incompatible types.
    """
    try:
        return pa.unify_schemas(_metadata_schemas(catalog), promote_options="permissive")
    except pa.ArrowTypeError as error:
        raise _type_error(error) from None


def metadata_names(catalog: Catalog) -> list[str]:
    """Return the names of the metadata columns of all sidecars."""
    return [*dict.fromkeys(name for schema in _metadata_schemas(catalog) for name in schema.names)]


def _metadata_schemas(catalog: Catalog) -> list[pa.Schema]:
    metadata_schemas = [pa.schema([])]
    for dataset in catalog.datasets:
        # all shards of a run have the same columns, so read only the first valid sidecar of each run
        firsts = sorted({0, *dataset.appends}) if dataset.listed else range(len(dataset.shards))
        for first, end in pairwise([*firsts, len(dataset.shards)]):
            schemas = (shard.schema() for shard in dataset.shards[first:end])
            schema = next((schema for schema in schemas if schema is not SIDECAR_SCHEMA), SIDECAR_SCHEMA)
            metadata_schemas.append(pa.schema([column for column in schema if not column.name.startswith("__")]))
    return metadata_schemas


def _type_error(error: pa.ArrowException) -> InvalidRequest:
    remedy = "Open the datasets one by one."
    return InvalidRequest("the metadata", str(error), expected="the same types in all datasets", remedy=remedy)


def matching_samples(catalog: Catalog, chosen: Numbers | None, query: str) -> Numbers:
    """Return the numbers of the samples that match a query, in order."""
    columns = metadata_names(catalog)
    matches = [np.zeros(0, np.int64)]
    shards = range(len(catalog.shards)) if chosen is None else np.unique(catalog.locate(chosen)[0]).tolist()
    for shard in shards:
        shard_index = read_index(catalog, shard, metadata=True)
        table = queryable_table(catalog.shards[shard], shard_index, columns, catalog.classes)
        matches.append(match_rows(table, query, catalog.classes) + catalog.first_samples[shard])
    matching = np.concatenate(matches)
    return matching if chosen is None else chosen[np.isin(chosen, matching)]


def read_column(catalog: Catalog, chosen: Numbers | None, name: str) -> list[Any]:
    """Return the values of a metadata column for the samples `chosen`, or for all samples. A missing value is None."""
    schema = metadata_schema(catalog)
    if name not in schema.names:
        remedy = f"Run reshard with {option_text('columns_from', name)} to turn a field into a column."
        problem = f"no sidecar has this column; they have {format_list(schema.names) or 'no metadata columns'}"
        raise InvalidRequest(f"column {name!r}", problem, remedy=remedy)
    numbers = np.arange(len(catalog)) if chosen is None else chosen
    return [*to_python_values(_read_rows(catalog, numbers, pa.schema([schema.field(name)])).column(name))]


def read_table(catalog: Catalog, chosen: Numbers | None) -> pads.Dataset:
    """Return the sidecars as one table. If `chosen` is given, load the rows of these samples into memory."""
    import pyarrow.dataset as pads

    schema = arrow_schema(catalog)
    if chosen is not None:
        return pads.dataset(_read_rows(catalog, chosen, schema))
    parts = []
    for has_sidecar, group in groupby(
        range(len(catalog.shards)),
        lambda number: not catalog.is_remote and catalog.shards[number].read_footer() is not None,
    ):
        if has_sidecar:
            sidecars = [catalog.shards[number].sidecar for number in group]
            parts.append(pads.dataset(sidecars, schema=schema, format="parquet"))
        else:
            tables = [read_sidecar_table(catalog, number, schema) for number in group]
            parts.append(pads.dataset(pa.concat_tables(tables)))
    return parts[0] if len(parts) == 1 else pads.dataset(parts)


def _read_rows(catalog: Catalog, chosen: Numbers, schema: pa.Schema) -> pa.Table:
    parts, indexes = [schema.empty_table()], [np.zeros(0, np.int64)]
    for shard, rows, shard_indexes in catalog.group_by_shard(chosen):
        parts.append(read_sidecar_table(catalog, shard, schema).take(pa.array(rows)))
        indexes.append(shard_indexes)
    rows_by_shard, order = pa.concat_tables(parts), np.concatenate(indexes)
    return rows_by_shard if (np.diff(order) == 1).all() else rows_by_shard.take(pa.array(np.argsort(order)))


def read_sidecar_table(catalog: Catalog, number: int, schema: pa.Schema) -> pa.Table:
    """Return the columns in `schema` from a shard's sidecar. Missing columns are null."""
    shard_index = read_index(catalog, number, metadata=True)
    columns = {name: shard_index.table.column(name) for name in shard_index.table.column_names}
    columns["__shard__"] = pa.array([catalog.shards[number].name] * len(shard_index), pa.string())
    values = [columns.get(field.name, pa.nulls(len(shard_index), field.type)) for field in schema]
    try:
        values = [pc.cast(column, field.type) for column, field in zip(values, schema, strict=True)]
    except pa.ArrowInvalid as error:  # for example, an integer above 2^53 in a column of floats
        raise _type_error(error) from None
    return pa.table(values, schema=schema)


def read_index(catalog: Catalog, number: int, *, metadata: bool = False) -> ShardIndex:
    """Return the index of a shard from its sidecar. If the sidecar is missing or damaged, scan the shard and warn.

    Raises:
        CorruptShard: The shard is damaged or differs from the catalog, or has no valid sidecar and must not be scanned.
    """
    shard, dataset = catalog.shards[number], catalog.dataset(number)[0]
    index = shard.index(metadata=metadata)
    if index.scan is not None and not dataset.can_scan:
        raise index.damage or CorruptShard(shard.sidecar, "missing", remedy=recreate_hint())
    if index.error is not None:
        raise index.error
    if index.scan is not None and (dataset.listed or index.damage is not None):
        problem = "missing" if index.damage is None else index.damage.found
        nulls = "; all its metadata is null" if metadata else ""
        where = redact_secrets(shard.sidecar)
        logger.warning("%s: %s. The shard was scanned instead%s. %s", where, problem, nulls, recreate_hint())
    samples = int(catalog.first_samples[number + 1] - catalog.first_samples[number])
    if len(index) != samples:
        expected = f"{samples:,}, as when the dataset was opened, or as its dataset file lists"
        problem, remedy = pluralize(len(index), "sample"), VERIFY_FIX
        raise CorruptShard(shard.path, problem, expected=expected, remedy=remedy)
    crc = int(catalog.crcs[number])
    if index.facts.crc is not None and crc not in (index.facts.crc, -1):
        problem = f"the checksum {index.facts.crc:08x} in its sidecar"
        expected = f"{crc:08x}, as when the dataset was opened"
        raise CorruptShard(shard.path, problem, expected=expected, remedy="Open the dataset again if it was replaced.")
    return index


class SelectedShard(NamedTuple):
    """A shard and its selected samples.

    Attributes:
        first: Number of the shard's first sample, counted over all datasets.
        rows: Rows of the selected samples in the shard.
    """

    dataset: StoredDataset
    shard: StoredShard
    shard_index: ShardIndex
    first: int
    rows: NDArray[np.int64]

    def raise_damage(self) -> None:
        """Raise an error if the shard or its sidecar is damaged."""
        if self.shard_index.problems:
            raise self.shard_index.problems[-1]


def selected_shards(
    datasets: Sequence[StoredDataset], where: str | None = None, *, metadata: bool = False
) -> Iterator[SelectedShard]:
    """Yield each shard with the rows of its matching samples. If the query `where` is None, all samples match.

    Raises:
        InvalidRequest: The query is invalid, or no sample of any shard matches.
    """
    columns = set() if where is None else _query_columns(datasets)
    first = matches = 0
    for dataset in datasets:
        for shard in dataset.shards:
            shard_index = shard.index(metadata=metadata or where is not None)
            rows = np.arange(len(shard_index))
            if where is not None:
                classes = dataset.file.classes if dataset.file else {}
                rows = match_rows(queryable_table(shard, shard_index, columns, classes), where, classes)
            yield SelectedShard(dataset, shard, shard_index, first, rows)
            first, matches = first + len(shard_index), matches + len(rows)
    if where is not None and not matches:
        raise InvalidRequest(option_text("where"), f"no sample matches {where}", expected="at least one match")


def _query_columns(datasets: Sequence[StoredDataset]) -> set[str]:
    names: set[str] = set()
    for dataset in datasets:
        if dataset.file is not None:
            names.update(dataset.file.schema)
        else:
            names.update(name for shard in dataset.shards for name in shard.index().schema.names)
    return {name for name in names if not name.startswith("__")}
