"""List the samples of datasets in the order of their shards.

A listing contains the offset of each payload, and each number in a TFRecord as a string. Offsets are read from
sidecars. If a shard has no sidecar, a worker scans the shard.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from shardtool.dataset.dataset_file import merge_value_types
from shardtool.dataset.scan import ShardScanTask, scan_shard
from shardtool.dataset.shard_file import is_compressed
from shardtool.entries import arrow
from shardtool.entries.sample_table import FieldRows, FieldSpans, FieldValues, SampleTable
from shardtool.entries.strings import PackedStrings
from shardtool.errors import CorruptShard, InvalidRequest, format_list, printable
from shardtool.messages import flag_text, option_text
from shardtool.names import MAX_NAME_BYTES, to_bytes
from shardtool.select.field_rows import check_field_count
from shardtool.select.storable_names import has_dotted_keys
from shardtool.shard_samples import INLINE, SPAN
from shardtool.skipped import Skipped
from shardtool.source import number_fields, source_shard
from shardtool.source.base import Listing
from shardtool.source.open_datasets import (
    agreed_classes,
    dataset_notes,
    drop_partial_labels,
    merge_classes,
    merge_fingerprints,
    merge_metadata,
    open_datasets,
    source_dataset_name,
)
from shardtool.source.source_shard import ExaminedFiles, SourceShard
from shardtool.storage.lookup import map_paths
from shardtool.table.keys import gather_keys
from shardtool.units import pluralize
from shardtool.values import DatasetLike, ValueType
from shardtool.values import number_fields as typed_number_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.dataset.stored import StoredDataset
    from shardtool.execute.pool import Pool
    from shardtool.request.observer import Observer
    from shardtool.source.number_fields import NumberFields
    from shardtool.source.number_texts import NumberTexts


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

    `Listing.recorded` contains the option `--dots last` if a dataset has it, or if the last component of a key contains
    a dot.

    Args:
        only: The fields to pack and check, or empty for all fields.
        without: Fields that are not packed and not checked.
        salvage: Whether to skip damaged numbers and, in shards without an index, damaged parts.
        as_stored: Whether to list numbers as stored, not as strings. Fields are then not checked, and have no classes.
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
    parts, to_scan, with_index = [*shards], list[int](), set[int]()
    for index, sidecar in enumerate(map_paths(source_shard.read_sidecar_bytes, shards, lambda shard: shard.path)):
        if isinstance(sidecar, CorruptShard):
            raise sidecar
        if sidecar is not None:
            examined.add(shards[index].path, sidecar[0])
            parts[index] = source_shard.apply_sidecar(shards[index], sidecar[1])
            with_index.add(index)
        if sidecar is None or source_shard.needs_scan(parts[index]):
            to_scan.append(index)
        else:
            parts[index] = source_shard.sort_fields(parts[index])
            observer.listed(len(parts[index].index))
    tasks = []
    for index in to_scan:
        shard, continues = shards[index], salvage and index not in with_index
        tasks.append(ShardScanTask(shard.path, shard.format == "tfrecord", shard.stored.dots, continues))
    # Check access even if no shard is scanned, because workers later read numbers.
    pool.check([shard.path for shard in shards])
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
    names, codes, owners = part.index.names, part.index.codes, part.index.owners()
    for name in filter(is_wanted, names):
        if _BAD_FIELD.search(name) or len(to_bytes(name)) > MAX_NAME_BYTES:
            found = f"the field {name[:_MAX_NAME_LETTERS]!r}: empty, too long, or with control characters"
            raise InvalidRequest(part.describe_value(name), found, remedy="Recreate the shard with other names.")
    twice = np.flatnonzero((codes[1:] == codes[:-1]) & (owners[1:] == owners[:-1]))
    for row in twice.tolist():
        if is_wanted(name := names[codes[row]]):
            remedy = f"Drop the field with {option_text('drop_fields', (name,))}, or recreate the shard."
            found = f"the field {name!r} twice"
            raise InvalidRequest(part.where(int(owners[row])), found, expected="each field once", remedy=remedy)


def _make_entries(parts: list[SourceShard], numbers: NumberFields, examined: ExaminedFiles) -> SampleTable:
    fields = sorted({name for part in parts for name in part.index.names}, key=to_bytes)
    check_field_count(parts[0].path if parts else "", fields)
    code_of = {name: index for index, name in enumerate(fields)}
    files, is_list = tuple(part.file for part in parts), _merge_is_list(parts)
    names, texts = _merge_keys(parts), numbers.columns(parts)
    counts, rows = [len(part.index) for part in parts], [len(part.index.codes) for part in parts]
    kind, first = np.full(sum(rows), SPAN, np.uint8), np.zeros(sum(counts) + 1, np.int64)
    row = sample = 0
    for number, part in enumerate(parts):
        index, part_rows = part.index, slice(row, row + rows[number])
        first[sample + 1 : sample + 1 + counts[number]] = index.firsts[1:]
        first[sample + 1 : sample + 1 + counts[number]] += row
        codes = np.array([*map(code_of.get, index.names), 0], np.uint16)[index.codes]
        lengths = _payload_sizes(part, numbers.texts[number], kind[part_rows])
        index = replace(
            index, keys=b"", key_offsets=_NO_ROWS, firsts=_NO_ROWS, metadata=pa.table({}), codes=codes, lengths=lengths
        )
        parts[number] = replace(part, index=index)
        row, sample = row + rows[number], sample + counts[number]
    inline = kind == INLINE
    offset, expected = _move_column(parts, "offsets", rows, np.int64), _move_column(parts, "crcs", rows, np.int64)
    offset[inline], expected[inline] = 0, -1
    return SampleTable(
        root=b"",
        keys=names,
        first=first,
        fields=tuple(fields),
        rows=FieldRows(
            code=_move_column(parts, "codes", rows, np.uint16),
            kind=kind,
            size=_move_column(parts, "lengths", rows, np.int64),
            mtime_ns=np.broadcast_to(np.int64(0), row),
            changed_ns=np.broadcast_to(np.int64(examined.changed_ns), row),
        ),
        values=FieldValues(texts, lists=numbers.lists),
        spans=FieldSpans(files, np.repeat(np.arange(len(parts), dtype=np.uint32), counts), offset, expected, is_list),
        identity=examined.identity,
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
