"""Find the shards of datasets, merge classes and metadata, and list the samples in the order of the shards.

A listing contains the offset of each payload, and each number in a TFRecord as a string.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from shardtool.dataset.dataset_file import merge_value_types
from shardtool.dataset.features import number_features
from shardtool.dataset.find import find_dataset, names_listed_by
from shardtool.dataset.scan import ShardScanTask, scan_shard
from shardtool.dataset.shard_file import is_compressed
from shardtool.dataset.stored import StoredDataset
from shardtool.dataset.unfinished import require_finished
from shardtool.entries import arrow
from shardtool.entries.sample_table import FieldRows, FieldSpans, FieldValues, SampleTable
from shardtool.entries.strings import PackedStrings
from shardtool.errors import CorruptShard, InvalidRequest, format_list, printable
from shardtool.fingerprint import sum_fingerprints
from shardtool.messages import flag_text, option_text
from shardtool.names import MAX_NAME_BYTES, to_bytes, to_output_name
from shardtool.pattern import DATASET_SUFFIX
from shardtool.select.field_rows import check_field_count
from shardtool.select.storable_names import has_dotted_keys
from shardtool.shard_samples import INLINE, SPAN, SpanFile
from shardtool.skipped import Skipped
from shardtool.source import number_fields, source_shard
from shardtool.source.base import Listing
from shardtool.source.source_shard import ExaminedFiles, SourceShard
from shardtool.storage.files import files_at, list_folder_names, map_paths
from shardtool.storage.paths import base_name, join
from shardtool.storage.remote.address import is_url
from shardtool.table.keys import gather_keys
from shardtool.units import pluralize
from shardtool.values import DatasetLike, ValueType
from shardtool.values import number_fields as typed_number_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.execute.pool import Pool
    from shardtool.request.observer import Observer
    from shardtool.source.number_fields import NumberFields
    from shardtool.source.number_texts import NumberTexts
    from shardtool.values import NumberType


def open_datasets(
    sources: Sequence[DatasetLike], examined: ExaminedFiles
) -> tuple[list[StoredDataset], list[SourceShard]]:
    """Return datasets and their shards, and add their files to `examined`. Read dataset files, but not shards."""
    datasets, shards = list[StoredDataset](), list[SourceShard]()
    for number, source in enumerate(sources):
        dataset = find_dataset(source).read()
        file = dataset.file
        if file is not None and dataset.dataset_file is not None:
            examined.add(dataset.dataset_file, files_at(dataset.dataset_file).info(dataset.dataset_file))
        elif dataset.dataset_file is None:
            _check_one_dataset(dataset)
        record_types: Mapping[str, NumberType] | None = None
        # `index` also accepts shards of other tools. To find their list fields, scan the shards.
        is_ours = file is not None and file.run.verb != "index"
        if file is not None and is_ours and not any(feature.is_list for feature in file.features.values()):
            record_types = number_features(file.features)
        for stored, file_stat in zip(dataset.shards, map_paths(source_shard.stat_shard, dataset.paths), strict=True):
            examined.add(stored.path, file_stat)
            if stored.entry is not None and stored.entry.size != file_stat.st_size:
                problem, expected = f"{file_stat.st_size:,} bytes", f"{stored.entry.size:,}, as in the dataset file"
                remedy = "Run `shardtool verify` to see what is wrong."
                raise CorruptShard(stored.path, problem, expected=expected, remedy=remedy)
            span_file = SpanFile(os.fsencode(stored.path), file_stat.st_size, file_stat.st_mtime_ns)
            kinds = record_types if (form := stored.format) == "tfrecord" else file.numbers if file else {}
            shards.append(SourceShard(stored, span_file, form, number, kinds))
        datasets.append(dataset)
    return datasets, shards


def dataset_notes(dataset: StoredDataset) -> list[str]:
    """Return a note if the dataset file does not list all shards, or if a run is unfinished."""
    if dataset.unlisted and dataset.dataset_file:
        name, unlisted = to_output_name(base_name(dataset.dataset_file)), [*map(_shard_name, dataset.unlisted)]
        return [f"{name} does not list {pluralize(len(unlisted), 'shard')}, excluded: {format_list(unlisted)}"]
    if dataset.dataset_file is None:
        try:
            require_finished(dataset)
        except InvalidRequest as error:
            return [f"{error.where}: {error.found}; only these are used"]
    return []


def _check_one_dataset(dataset: StoredDataset) -> None:
    shard_names = {shard.name for shard in dataset.shards}
    if {*dataset.folders()} != {dataset.folder}:
        return
    names = (name for name in list_folder_names(dataset.folder) if name.endswith(DATASET_SUFFIX))
    listing_files = [name for name in names if shard_names & names_listed_by(join(dataset.folder, name))]
    if len(listing_files) > 1:
        problem = f"shards of {len(listing_files)} datasets: {format_list(listing_files)}"
        remedy = f"Name the datasets one by one, by their dataset files: {' '.join(listing_files[:3])}."
        raise InvalidRequest(dataset.folder or ".", problem, expected="shards of one dataset", remedy=remedy)


def _shard_name(path: str) -> str:
    return to_output_name(base_name(path))


def source_dataset_name(dataset: StoredDataset) -> str:
    """Return the name of a dataset for messages, without folders."""
    if dataset.file is not None:
        return dataset.file.name
    if not isinstance(dataset.argument, (str, os.PathLike)):
        names = [*map(_shard_name, dataset.paths)]
        return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more"
    path = os.fspath(dataset.argument)
    if is_url(path):
        return printable(base_name(path.rstrip("/")))
    return printable(os.fsencode(os.path.basename(os.path.realpath(path) if os.path.isdir(path) else path)))


def merge_classes(
    datasets: Sequence[StoredDataset], parts: Sequence[SourceShard], is_wanted: Callable[[str], bool]
) -> tuple[dict[str, list[str]], list[str]]:
    """Return the class names by field, and notes. Raise an error if the class names of a field differ."""
    merged: dict[str, list[str]] = {}
    datasets_of_field: dict[str, dict[int, None]] = {}
    for part in parts:
        for name in filter(is_wanted, part.index.names):
            datasets_of_field.setdefault(name, {})[part.dataset] = None
    notes = []
    for name, indices in datasets_of_field.items():
        class_lists = {
            index: file.classes[name] for index in indices if (file := datasets[index].file) and name in file.classes
        }
        for index, classes in class_lists.items():
            if classes != merged.setdefault(name, classes):
                first = source_dataset_name(datasets[next(iter(class_lists))])
                problem = f"other classes in {source_dataset_name(datasets[index])} ({format_list(classes)})"
                expected = f"the classes of {first}: {format_list(merged[name])}"
                values, labels = option_text("field", {name: "COLUMN"}), option_text("classes", (name,))
                drop = option_text("drop_fields", (name,))
                remedy = f"Number them again with {values} {labels}, or drop the field with {drop}."
                raise InvalidRequest(f"the field {name!r}", problem, expected=expected, remedy=remedy)
        if class_lists and len(class_lists) < len(indices):
            others = [source_dataset_name(datasets[index]) for index in indices if index not in class_lists]
            notes.append(f"no class names for {name!r} in {format_list(others)}; using the names of the other datasets")
    return merged, notes


def agreed_classes(datasets: Sequence[StoredDataset]) -> dict[str, list[str]]:
    """Return the class names by field, except fields whose class names differ between datasets."""
    agreed: dict[str, list[str]] = {}
    for dataset in datasets:
        for name, names in dataset.file.classes.items() if dataset.file else ():
            if agreed.setdefault(name, names) != names:
                agreed[name] = []
    return {name: names for name, names in agreed.items() if names}


def drop_partial_labels(
    columns: pa.Table | None, parts: Sequence[SourceShard], labels: Collection[str]
) -> tuple[pa.Table | None, list[str]]:
    """Drop a label column if a shard has the label as a field, but not as a column. Return other columns, and notes."""
    notes = []
    for name in sorted({*labels}.intersection(() if columns is None else columns.column_names)):
        lacking = [part for part in parts if name in part.index.names and name not in part.index.metadata.column_names]
        if lacking and columns is not None:
            remaining = [column for column in columns.column_names if column != name]
            columns = columns.select(remaining) if remaining else None
            dropped = f"column {name!r} dropped: {pluralize(len(lacking), 'shard')} with this field lack the column"
            notes.append(f"{dropped} (create it from the field with {option_text('columns_from', (name,))})")
    return columns, notes


def merge_metadata(parts: Sequence[SourceShard], datasets: Sequence[StoredDataset]) -> pa.Table | None:
    """Concatenate the metadata of all shards. Missing columns become null. Return None if no shard has metadata."""
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
    for name in names:
        holders = [part for part in parts if name in part.index.metadata.column_names]
        columns = [part.index.metadata.select([name]) for part in holders]
        try:
            # Concatenate values, not only types, because large whole numbers do not fit into floats.
            pa.concat_tables(columns, promote_options="permissive")
        except MemoryError:
            raise
        except pa.ArrowException:
            kinds: dict[str, str] = {}
            for part, column in zip(holders, columns, strict=True):
                kinds.setdefault(str(column.schema.types[0]), source_dataset_name(datasets[part.dataset]))
            shown = ", ".join(f"{kind} in {where}" for kind, where in kinds.items())
            remedy = f"Reshard the datasets separately, with {option_text('join')} to give the column another type."
            return InvalidRequest(f"the column {name!r}", shown, expected="compatible types", remedy=remedy)
    where = format_list([*map(source_dataset_name, datasets)])
    return InvalidRequest(where, f"metadata that does not fit into one table: {str(error)[:200]}")


def merge_fingerprints(datasets: Sequence[StoredDataset]) -> int | None:
    """Return the sum of the datasets' fingerprints, or None if the fingerprint of the samples may differ."""
    files = [dataset.file for dataset in datasets if dataset.file is not None and not dataset.file.part_of]
    for file in files:
        kinds = {*number_features(file.features).values()}
        may_map = any("map" in run.options for run in (file.run, *file.run.appended))
        # The fingerprint may cover a text such as 1.50, but the shard stores only the number 1.5.
        if "float" in kinds or (kinds and may_map):
            return None
    return sum_fingerprints(file.fingerprint for file in files) if len(files) == len(datasets) else None


_BAD_FIELD = re.compile(r"[\x00-\x1f\x7f-\x9f]|^$")
_MAX_NAME_LETTERS = 120
_NO_ROWS = np.zeros(0, np.int64)
_Number = TypeVar("_Number", bound=np.generic)


def list_datasets(  # noqa: PLR0913 - keyword options
    sources: Sequence[DatasetLike],
    pool: Pool,
    observer: Observer,
    *,
    to_format: str,
    only: Collection[str] = (),
    without: Collection[str] = (),
    salvage: bool = False,
    as_stored: bool = False,
) -> Listing:
    """Return the samples of datasets.

    `Listing.recorded` contains `--dots last` if a dataset used this option, or if the last component of a key contains
    a dot.

    Args:
        only: The fields to check and to read numbers from, or empty for all fields.
        without: Fields that are not checked, and whose numbers are not read.
        salvage: Skip samples with damaged numbers, and damaged parts of shards without a sidecar.
        as_stored: Keep numbers as stored, not as strings, and do not check fields and class names.
    """

    def is_wanted(name: str) -> bool:
        return not as_stored and (not only or name in only) and name not in without

    examined = ExaminedFiles()
    datasets, shards = open_datasets(sources, examined)
    notes = [note for dataset in datasets for note in dataset_notes(dataset)]
    parts = _list_shards(shards, examined, pool, observer, salvage=salvage)
    for part in parts:
        _check_fields(part, is_wanted)
    classes, class_notes = merge_classes(datasets, parts, is_wanted)
    numbers = number_fields.find_number_fields(parts, is_wanted, to_format, pool.map, salvage=salvage)
    columns = merge_metadata(parts, datasets)
    classes_known = agreed_classes(datasets)
    columns, label_notes = drop_partial_labels(columns, parts, classes_known)
    notes += [*class_notes, *label_notes]
    for part in parts:
        if part.regrouped:
            notes.append(
                f"{part.name}: grouped the fields of {pluralize(part.regrouped, 'sample')}, which were not adjacent"
            )
    skipped = tuple(row for part in parts for row in part.skipped)
    damaged = numbers.damaged(parts)
    entries = _make_entries(parts, numbers, examined)
    types = _merge_types(datasets, numbers)
    entries = replace(entries, values=entries.values._replace(types=types, classes=classes), metadata=columns)
    if damaged:
        why = "a number does not match its checksum"
        skipped += tuple(Skipped(entries.key(sample), shard, "corrupt", why) for sample, shard in damaged)
        entries = entries.without([sample for sample, _ in damaged])
    pa.default_memory_pool().release_unused()
    dots = any(shard.stored.dots == "last" for shard in shards) or has_dotted_keys(entries.keys)
    dotted = [repr(printable(name)) for name in entries.fields if "." in name.strip(".") and is_wanted(name)]
    if dots and dotted and to_format == "tar":
        problem = "readers split such names in the wrong place"
        safe = f"make keys safe with {flag_text('portable')}"
        notes.append(f"keys and fields with dots ({format_list(dotted)}): {problem}; {safe}")
    return Listing(
        entries=entries,
        skipped=skipped,
        name=", ".join(map(source_dataset_name, datasets)),
        notes=(*notes, *numbers.notes),
        recorded={"dots": "last"} if dots else {},
        digest=merge_fingerprints(datasets),
        shards=tuple(shard.name for shard in shards),
        stored=tuple((datasets[shard.dataset], shard.stored) for shard in shards),
        compressed=any(is_compressed(shard.path) for shard in shards),
        classes=classes_known,
    )


def _list_shards(
    shards: list[SourceShard], examined: ExaminedFiles, pool: Pool, observer: Observer, *, salvage: bool
) -> list[SourceShard]:
    parts = [*shards]
    to_scan, with_index = list[int](), set[int]()
    for index, sidecar in enumerate(map_paths(source_shard.read_sidecar_bytes, shards, lambda shard: shard.path)):
        if isinstance(sidecar, CorruptShard):
            raise sidecar
        if sidecar is not None:
            info, data = sidecar
            examined.add(shards[index].path, info)
            parts[index] = source_shard.apply_sidecar(shards[index], data)
            with_index.add(index)
        if sidecar is None or source_shard.needs_scan(parts[index]):
            to_scan.append(index)
        else:
            parts[index] = source_shard.sort_fields(parts[index])
            observer.listed(len(parts[index].index))
    tasks = []
    for index in to_scan:
        shard = shards[index]
        continues = salvage and index not in with_index
        tasks.append(ShardScanTask(shard.path, shard.format == "tfrecord", shard.stored.dots, continues))
    # Check access even if no shard is scanned, because workers later read numbers from the shards.
    pool.check_access([shard.path for shard in shards])
    for number, scan in pool.map(scan_shard, tasks):
        index = to_scan[number]
        parts[index] = source_shard.apply_scan(parts[index], scan, has_index=index in with_index)
        observer.listed(len(parts[index].index))
    return parts


def _merge_types(datasets: Sequence[StoredDataset], numbers: NumberFields) -> dict[str, ValueType]:
    files = [dataset.file for dataset in datasets]
    agreed = merge_value_types([(file.types, file.fields) if file else ({}, ()) for file in files])
    numbered = typed_number_fields(agreed)
    types = {name: kind for name, kind in agreed.items() if numbered.get(name) == numbers.numbers.get(name)}
    return {**numbers.numbers, **types}


def _check_fields(part: SourceShard, is_wanted: Callable[[str], bool]) -> None:
    names, codes, sample_of_row = part.index.names, part.index.codes, part.index.sample_of_row()
    for name in filter(is_wanted, names):
        if _BAD_FIELD.search(name) or len(to_bytes(name)) > MAX_NAME_BYTES:
            found = f"the field {name[:_MAX_NAME_LETTERS]!r}: empty, too long, or with control characters"
            raise InvalidRequest(part.describe_value(name), found, remedy="Recreate the shard with other names.")
    twice = np.flatnonzero((codes[1:] == codes[:-1]) & (sample_of_row[1:] == sample_of_row[:-1]))
    for row in twice.tolist():
        if is_wanted(name := names[codes[row]]):
            remedy = f"Drop the field with {option_text('drop_fields', (name,))}, or recreate the shard."
            found = f"the field {name!r} twice"
            raise InvalidRequest(part.where(int(sample_of_row[row])), found, expected="each field once", remedy=remedy)


def _make_entries(parts: list[SourceShard], numbers: NumberFields, examined: ExaminedFiles) -> SampleTable:
    fields = sorted({name for part in parts for name in part.index.names}, key=to_bytes)
    check_field_count(parts[0].path if parts else "", fields)
    code_of = {name: index for index, name in enumerate(fields)}
    keys, texts, is_list = _merge_keys(parts), numbers.columns(parts), _merge_is_list(parts)
    sample_counts, row_counts = [len(part.index) for part in parts], [len(part.index.codes) for part in parts]
    kind, first_rows = np.full(sum(row_counts), SPAN, np.uint8), np.zeros(sum(sample_counts) + 1, np.int64)
    row = sample = 0
    for number, part in enumerate(parts):
        index, end = part.index, row + row_counts[number]
        first_rows[sample + 1 : sample + 1 + sample_counts[number]] = index.first_rows[1:] + np.int64(row)
        codes = np.array([*map(code_of.get, index.names), 0], np.uint16)[index.codes]
        lengths = _payload_sizes(part, numbers.texts[number], kind[row:end])
        unused: Any = {"keys": b"", "key_offsets": _NO_ROWS, "first_rows": _NO_ROWS, "metadata": pa.table({})}
        parts[number] = replace(part, index=replace(index, **unused, codes=codes, lengths=lengths))
        row = end
        sample += sample_counts[number]
    offset = _move_column(parts, "offsets", row_counts, np.int64)
    crc = _move_column(parts, "crcs", row_counts, np.int64)
    file_numbers = np.repeat(np.arange(len(parts), dtype=np.uint32), sample_counts)
    offset[kind == INLINE] = 0
    crc[kind == INLINE] = -1
    return SampleTable(
        root=b"",
        keys=keys,
        first_rows=first_rows,
        fields=tuple(fields),
        rows=FieldRows(
            code=_move_column(parts, "codes", row_counts, np.uint16),
            kind=kind,
            size=_move_column(parts, "lengths", row_counts, np.int64),
            mtime_ns=np.broadcast_to(np.int64(0), row),
            changed_ns=np.broadcast_to(np.int64(examined.changed_ns), row),
        ),
        values=FieldValues(texts, lists=numbers.lists),
        spans=FieldSpans(tuple(part.file for part in parts), file_numbers, offset, crc, is_list),
        source_identity=examined.identity,
    )


def _payload_sizes(part: SourceShard, numbers: Mapping[str, NumberTexts], kind: NDArray[np.uint8]) -> NDArray[np.int64]:
    lengths: NDArray[np.int64] = part.index.lengths.copy() if numbers else part.index.lengths
    for name, texts in numbers.items():
        rows = part.rows_of(name)
        kind[rows], lengths[rows] = INLINE, PackedStrings.parse(texts.data).lengths()
    return lengths


def _move_column(parts: list[SourceShard], name: str, counts: list[int], kind: type[_Number]) -> NDArray[_Number]:
    column_of_all = np.empty(sum(counts), kind)
    row = 0
    for index, count in enumerate(counts):
        column = getattr(parts[index].index, name)
        column_of_all[row : row + count] = -1 if column is None else column
        row += count
        emptied: Any = {name: _NO_ROWS}
        parts[index] = replace(parts[index], index=replace(parts[index].index, **emptied))
    return column_of_all


def _merge_is_list(parts: list[SourceShard]) -> NDArray[np.bool_] | None:
    if all(part.is_list is None for part in parts):
        return None
    columns = [np.zeros(len(part.index.codes), np.bool_) if part.is_list is None else part.is_list for part in parts]
    return np.concatenate(columns)


def _merge_keys(parts: list[SourceShard]) -> PackedStrings:
    names, bad = gather_keys(arrow.string_array(bytes(part.index.keys), part.index.key_sizes) for part in parts)
    if len(bad):
        ends = np.cumsum([len(part.index) for part in parts])
        index = int(np.searchsorted(ends, bad[0], side="right"))
        part = parts[index]
        sample = int(bad[0] - ends[index]) + len(part.index)
        found = f"the key {printable(part.key(sample))[:_MAX_NAME_LETTERS]!r}"
        shape = "without control characters and parts such as `..`"
        expected = f"a path such as cat/0001 of at most {MAX_NAME_BYTES:,} bytes, {shape}"
        raise InvalidRequest(part.path, found, expected=expected, remedy="Recreate the shard with other keys.")
    return names
