"""What datasets say of their samples besides payloads, joined: classes, metadata, and the content fingerprint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from shardtool.dataset.feature import numbers_in
from shardtool.errors import InvalidRequest, listing
from shardtool.fingerprint import sum_fingerprints
from shardtool.table import arrays
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.source.shards.datasets import Dataset
    from shardtool.source.shards.shard_columns import ShardColumns


def joined_classes(
    datasets: Sequence[Dataset], parts: Sequence[ShardColumns], wanted: Callable[[str], bool]
) -> tuple[dict[str, list[str]], list[str]]:
    """Return what the numbers of labels stand for, and notes.

    Raises:
        InvalidRequest: It is not the same in all datasets.
    """
    found: dict[str, list[str]] = {}
    having: dict[str, dict[int, None]] = {}  # the datasets that have a field
    for part in parts:
        for name in filter(wanted, part.names):
            having.setdefault(name, {})[part.shard.dataset] = None
    notes = []
    for name, places in having.items():
        known = {at: file.classes[name] for at in places if (file := datasets[at].file) and name in file.classes}
        for at, classes in known.items():
            if classes != found.setdefault(name, classes):
                first = datasets[next(iter(known))].name
                problem = f"other classes in {datasets[at].name} ({listing(classes)})"
                expected = f"those of {first}: {listing(found[name])}"
                remedy = (
                    f"Number them anew with {option('values', {name: 'COLUMN'})} {option('classes', (name,))}, "
                    f"or leave the field out with {option('drop_fields', (name,))}."
                )
                raise InvalidRequest(f"the field {name!r}", problem, expected=expected, remedy=remedy)
        if known and len(known) < len(places):
            others = [datasets[at].name for at in places if at not in known]
            notes.append(
                f"the classes of {name!r} are those of the datasets that name them: {listing(others)} does not"
            )
    return found, notes


def joined_columns(parts: Sequence[ShardColumns], datasets: Sequence[Dataset]) -> pa.Table | None:
    """Return the metadata of all parts, null where one has none of a name; None where there is none at all.

    Raises:
        InvalidRequest: Values of one name have types that cannot be one.
    """
    names = [*dict.fromkeys(name for part in parts if part.columns is not None for name in part.columns.column_names)]
    if not names:
        return None
    tables = [
        part.columns if part.columns is not None else pa.Table.from_arrays([pa.nulls(len(part))], [names[0]])
        for part in parts
    ]
    try:
        return arrays.compact(pa.concat_tables(tables, promote_options="permissive").select(names))
    except MemoryError:
        raise
    except pa.ArrowException as error:
        for name in names:
            _check_alike(name, parts, datasets)
        where = ", ".join(dataset.name for dataset in datasets)
        raise InvalidRequest(where, f"metadata that cannot be one table: {str(error)[:200]}") from None


def _check_alike(name: str, parts: Sequence[ShardColumns], datasets: Sequence[Dataset]) -> None:
    """Check that the values of a column can be one column."""
    kinds: dict[str, str] = {}
    columns = []
    for part in parts:
        if part.columns is not None and name in part.columns.column_names:
            columns.append(part.columns.select([name]))
            kinds.setdefault(str(columns[-1].schema.types[0]), datasets[part.shard.dataset].name)
            try:
                pa.concat_tables(columns, promote_options="permissive")
            except MemoryError:
                raise
            except pa.ArrowException:
                shown = ", ".join(f"{kind} in {where}" for kind, where in kinds.items())
                expected = "types that can be one"
                remedy = f"Reshard them apart, with {option('join')} to give the column another type."
                raise InvalidRequest(f"the column {name!r}", shown, expected=expected, remedy=remedy) from None


def joined_digest(datasets: Sequence[Dataset]) -> int | None:
    """Return the sum of the datasets' fingerprints; None where one is not known to be that of what was listed."""
    files = [dataset.file for dataset in datasets if dataset.whole and dataset.file is not None]
    if len(files) < len(datasets) or any(map(_from_other_texts, files)):
        return None
    return sum_fingerprints(file.fingerprint for file in files)


def _from_other_texts(file: DatasetFile) -> bool:
    """Tell whether a fingerprint may be that of texts which a TFRecord's numbers do not give back."""
    kinds = {*numbers_in(file.features).values()}
    return "float" in kinds or bool(kinds and any("map" in run.options for run in (file.made, *file.made.appended)))
