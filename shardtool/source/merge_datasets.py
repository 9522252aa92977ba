"""Merge the classes, metadata and content fingerprints of several datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from shardtool.dataset.features import number_features
from shardtool.entries import arrow
from shardtool.errors import InvalidRequest, format_list
from shardtool.fingerprint import sum_fingerprints
from shardtool.messages import option_text
from shardtool.source.open_datasets import source_dataset_name
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from shardtool.dataset.stored import StoredDataset
    from shardtool.source.source_shard import SourceShard


def merge_classes(
    datasets: Sequence[StoredDataset], parts: Sequence[SourceShard], wanted: Callable[[str], bool]
) -> tuple[dict[str, list[str]], list[str]]:
    """Return what the numbers of labels stand for, and notes.

    Raises:
        InvalidRequest: It is not the same in all datasets.
    """
    found: dict[str, list[str]] = {}
    having: dict[str, dict[int, None]] = {}  # the datasets that have a field
    for part in parts:
        for name in filter(wanted, part.index.names):
            having.setdefault(name, {})[part.dataset] = None
    notes = []
    for name, places in having.items():
        known = {at: file.classes[name] for at in places if (file := datasets[at].file) and name in file.classes}
        for at, classes in known.items():
            if classes != found.setdefault(name, classes):
                first = source_dataset_name(datasets[next(iter(known))])
                problem = f"other classes in {source_dataset_name(datasets[at])} ({format_list(classes)})"
                expected = f"those of {first}: {format_list(found[name])}"
                remedy = (
                    f"Number them anew with {option_text('values', {name: 'COLUMN'})} {option_text('classes', (name,))}, "
                    f"or leave the field out with {option_text('drop_fields', (name,))}."
                )
                raise InvalidRequest(f"the field {name!r}", problem, expected=expected, remedy=remedy)
        if known and len(known) < len(places):
            others = [source_dataset_name(datasets[at]) for at in places if at not in known]
            known_of = f"the classes of {name!r} are those of the datasets that name them"
            notes.append(f"{known_of}: {format_list(others)} does not")
    return found, notes


def agreed_classes(datasets: Sequence[StoredDataset]) -> dict[str, list[str]]:
    """Return what the numbers of labels stand for in all datasets that say it, where that is the same."""
    found: dict[str, list[str]] = {}
    for name, names in ((name, names) for one in datasets if one.file for name, names in one.file.classes.items()):
        found[name] = names if found.setdefault(name, names) == names else []
    return {name: names for name, names in found.items() if names}


def drop_partial_labels(
    columns: pa.Table | None, parts: Sequence[SourceShard], labels: Collection[str]
) -> tuple[pa.Table | None, list[str]]:
    """Return metadata without columns of labels that only some of the samples with such a field have, and notes."""
    notes = []
    for name in sorted({*labels}.intersection(() if columns is None else columns.column_names)):
        lacking = [one for one in parts if name in one.index.names and name not in one.index.metadata.column_names]
        if lacking and columns is not None:
            left = [one for one in columns.column_names if one != name]
            columns = columns.select(left) if left else None
            what = f"column {name!r} left out: {pluralize(len(lacking), 'shard')} of field {name!r} lack it"
            notes.append(f"{what} ({option_text('columns_from', (name,))} makes it of the field, for all)")
    return columns, notes


def merge_metadata(parts: Sequence[SourceShard], datasets: Sequence[StoredDataset]) -> pa.Table | None:
    """Return the metadata of all parts, null where one has none of a name; None where there is none at all.

    Raises:
        InvalidRequest: Values of one name have types that cannot be one.
    """
    tables = [part.index.metadata for part in parts]
    names = [*dict.fromkeys(name for table in tables for name in table.column_names)]
    if not names:
        return None
    tables = [
        table if table.num_columns else pa.Table.from_arrays([pa.nulls(len(part.index))], [names[0]])
        for table, part in zip(tables, parts, strict=True)
    ]
    try:
        return arrow.compact_table(pa.concat_tables(tables, promote_options="permissive").select(names))
    except MemoryError:
        raise
    except pa.ArrowException as error:
        raise _metadata_conflict(names, parts, datasets, error) from None


def _metadata_conflict(
    names: Sequence[str], parts: Sequence[SourceShard], datasets: Sequence[StoredDataset], error: pa.ArrowException
) -> InvalidRequest:
    """Return the error of metadata that cannot be one table, of which pyarrow says `error`."""
    for name in names:
        having = [part for part in parts if name in part.index.metadata.column_names]
        columns = [part.index.metadata.select([name]) for part in having]
        try:
            pa.concat_tables(
                columns, promote_options="permissive"
            )  # values, too, may not fit: whole numbers, into floats
        except MemoryError:
            raise
        except pa.ArrowException:
            kinds: dict[str, str] = {}
            for part, column in zip(having, columns, strict=True):
                kinds.setdefault(str(column.schema.types[0]), source_dataset_name(datasets[part.dataset]))
            shown = ", ".join(f"{kind} in {where}" for kind, where in kinds.items())
            remedy = f"Reshard them apart, with {option_text('join')} to give the column another type."
            return InvalidRequest(f"the column {name!r}", shown, expected="types that can be one", remedy=remedy)
    where = format_list([*map(source_dataset_name, datasets)])
    return InvalidRequest(where, f"metadata that cannot be one table: {str(error)[:200]}")


def merge_fingerprints(datasets: Sequence[StoredDataset]) -> int | None:
    """Return the sum of the datasets' fingerprints; None where one is not known to be that of what was listed."""
    files = [dataset.file for dataset in datasets if dataset.file is not None and not dataset.file.part_of]
    for file in files:
        kinds = {*number_features(file.features).values()}
        may_map = any("map" in run.options for run in (file.made, *file.made.appended))
        if "float" in kinds or (kinds and may_map):  # it may be that of texts which numbers do not give back
            return None
    return sum_fingerprints(file.fingerprint for file in files) if len(files) == len(datasets) else None
