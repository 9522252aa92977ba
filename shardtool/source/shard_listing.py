"""List the samples of datasets, in the order in which the datasets are given.

A payload is a SPAN of its shard, and a number of a TFRecord is an INLINE text. The checksum that a payload must
have is
listed with it, for the worker that reads it. Sidecars provide the offsets, without an object per payload; workers
scan
shards that have no sidecar.
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
from shardtool.source.merge_datasets import (
    agreed_classes,
    drop_partial_labels,
    merge_classes,
    merge_fingerprints,
    merge_metadata,
)
from shardtool.source.open_datasets import dataset_notes, open_datasets, source_dataset_name
from shardtool.source.source_shard import FilesSeen, SourceShard
from shardtool.storage.lookup import map_paths
from shardtool.table.keys import gather_keys
from shardtool.units import pluralize
from shardtool.values import number_fields as typed_number_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.dataset.stored import StoredDataset
    from shardtool.execute.pool import Pool
    from shardtool.request.observer import Observer
    from shardtool.source.number_fields import NumberFields
    from shardtool.source.number_texts import NumberTexts
    from shardtool.values import DatasetLike, ValueType


_BAD_FIELD = re.compile(r"[\x00-\x1f\x7f-\x9f]|^$")


_MAX_NAME_LETTERS = 120  # letters of a name in a message


_NO_ROWS = np.zeros(0, np.int64)


_Number = TypeVar("_Number", bound=np.generic)


def list_datasets(  # noqa: PLR0913 - what is asked of each dataset, by name
    givens: Sequence[DatasetLike],
    pool: Pool,
    observer: Observer,
    *,
    to_format: str,
    only: Collection[str] = (),
    without: Collection[str] = (),
    salvage: bool = False,
    as_stored: bool = False,
) -> Listing:
    """Return the samples of datasets, one after the other.

    `recorded_names` says where keys must end in members' names: `last` where a dataset says so, or a key has a dot in its
    name. The digest is that of all samples, as the dataset files have it.

    Args:
        givens: The datasets: dataset files, patterns, globs, folders, or lists of shards.
        pool: Walks shards that have no sidecar, and reads numbers.
        observer: Gets how many samples were found.
        to_format: What they will be written as: `tar` or `tfrecord`.
        only: The fields that will be taken; empty: all. Others are listed as they lie, and nothing in them is an error.
        without: Fields that will not be taken; nothing in them is an error either.
        salvage: Whether damaged parts of shards without an index, and damaged numbers, are left out.
        as_stored: Whether samples are only looked at: numbers are the bytes that shards have, nothing in a field is an
            error, and what numbers of classes stand for is not asked.

    Raises:
        InvalidRequest: There is no such dataset, or its samples cannot be those of one dataset.
        CorruptShard: A shard, sidecar or dataset file is damaged, or missing.
    """

    def wanted(name: str) -> bool:
        return not as_stored and (not only or name in only) and name not in without

    seen = FilesSeen()
    datasets, shards = open_datasets(givens, seen)
    notes = [note for dataset in datasets for note in dataset_notes(dataset)]
    parts = _list_shards(shards, seen, pool, observer, salvage=salvage)
    for part in parts:
        _check_fields(part, wanted)
    classes, more = merge_classes(datasets, parts, wanted)
    numbers = number_fields.find_number_fields(parts, wanted, to_format, pool.map, salvage=salvage)
    columns = merge_metadata(parts, datasets)
    classes_known = agreed_classes(datasets)
    columns, lacking = drop_partial_labels(columns, parts, classes_known)
    notes += [*more, *lacking]
    for part in parts:
        if part.joined:
            notes.append(f"{part.name}: {pluralize(part.joined, 'sample')} put together of fields that lie apart")
    skipped = tuple(one for part in parts for one in part.skipped)
    damaged = numbers.damaged(parts)
    entries = _make_entries(parts, numbers, seen)
    types = _merge_types(datasets, numbers)
    entries = replace(entries, values=entries.values._replace(types=types, classes=classes), metadata=columns)
    if damaged:
        skipped += tuple(
            Skipped(entries.key(at), shard, "corrupt", "a number that has not its checksum") for at, shard in damaged
        )
        entries = entries.without([at for at, _ in damaged])
    pa.default_memory_pool().release_unused()  # what all of the sidecars took
    dots = any(shard.stored.dots == "last" for shard in shards) or has_dotted_keys(entries.keys)
    dotted = [repr(printable(name)) for name in entries.fields if "." in name.strip(".") and wanted(name)]
    if dots and dotted and to_format == "tar":
        notes.append(
            f"keys with dots, and fields too ({format_list(dotted)}): readers tear such names; "
            f"{flag_text('portable')} mends keys"
        )
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
    shards: list[SourceShard], seen: FilesSeen, pool: Pool, observer: Observer, *, salvage: bool
) -> list[SourceShard]:
    """Return what lies in each shard: as its sidecar says, or a walk finds, which checks the records of TFRecords."""
    parts, walks, with_index = [*shards], list[int](), set[int]()
    for at, found in enumerate(map_paths(source_shard.read_sidecar_bytes, shards, lambda shard: shard.path)):
        if isinstance(found, CorruptShard):
            raise found
        if found is not None:
            seen.add(shards[at].path, found[0])
            parts[at] = source_shard.apply_sidecar(shards[at], found[1])
            with_index.add(at)
        if found is None or source_shard.needs_scan(parts[at]):
            walks.append(at)
        else:
            parts[at] = source_shard.sort_fields(parts[at])
            observer.listed(len(parts[at].index))
    tasks = [  # behind damage a walk goes on only where no index says what there is
        ShardScanTask(
            shards[at].path, shards[at].format == "tfrecord", shards[at].stored.dots, salvage and at not in with_index
        )
        for at in walks
    ]
    pool.check([shard.path for shard in shards])  # also where there is no walk: numbers are read there
    for number, found_there in pool.map(scan_shard, tasks):
        at = walks[number]
        parts[at] = source_shard.apply_scan(parts[at], found_there, has_index=at in with_index)
        observer.listed(len(parts[at].index))
    return parts


def _merge_types(datasets: Sequence[StoredDataset], numbers: NumberFields) -> dict[str, ValueType]:
    """Return what values were, as far as all datasets say so; numbers alone where texts stand for them."""
    agreed = merge_value_types([(one.file.types, one.file.fields) if one.file else ({}, ()) for one in datasets])
    numbered = typed_number_fields(agreed)
    own = {name: kind for name, kind in agreed.items() if numbered.get(name) == numbers.numbers.get(name)}
    return {**numbers.numbers, **own}


def _check_fields(part: SourceShard, wanted: Callable[[str], bool]) -> None:
    """Check that fields have names, and no sample has one twice."""
    names, codes, owners = part.index.names, part.index.codes, part.index.owners()
    for name in filter(wanted, names):
        if _BAD_FIELD.search(name) or len(to_bytes(name)) > MAX_NAME_BYTES:
            found = f"the field {name[:_MAX_NAME_LETTERS]!r}, without a name, with control characters in it, or far too long"
            raise InvalidRequest(part.describe_first(name), found, remedy="Make the shard anew with other names.")
    twice = np.flatnonzero((codes[1:] == codes[:-1]) & (owners[1:] == owners[:-1]))
    for row in twice.tolist():
        if wanted(name := names[codes[row]]):
            remedy = f"Leave it out with {option_text('drop_fields', (name,))}, or make the shard anew."
            found = f"the field {name!r} twice"
            raise InvalidRequest(part.where(int(owners[row])), found, expected="each field once", remedy=remedy)


def _make_entries(parts: list[SourceShard], numbers: NumberFields, seen: FilesSeen) -> SampleTable:
    """Return the samples of all parts, which are used up by it, without classes and metadata."""
    fields = sorted({name for part in parts for name in part.index.names}, key=to_bytes)
    check_field_count(parts[0].path if parts else "", fields)
    place = {name: at for at, name in enumerate(fields)}
    files, whole = tuple(part.file for part in parts), _merge_whole(parts)
    names, texts = _merge_keys(parts), numbers.columns(parts)
    counts, rows = [len(part.index) for part in parts], [len(part.index.codes) for part in parts]
    kind, first = np.full(sum(rows), SPAN, np.uint8), np.zeros(sum(counts) + 1, np.int64)
    row = sample = 0
    for at, part in enumerate(parts):
        index, here = part.index, slice(row, row + rows[at])
        first[sample + 1 : sample + 1 + counts[at]] = index.firsts[1:]
        first[sample + 1 : sample + 1 + counts[at]] += row
        codes = np.array([*map(place.get, index.names), 0], np.uint16)[index.codes]
        lengths = _payload_sizes(part, numbers.texts[at], kind[here])
        index = replace(
            index, keys=b"", key_ends=_NO_ROWS, firsts=_NO_ROWS, metadata=pa.table({}), codes=codes, lengths=lengths
        )
        parts[at] = replace(part, index=index)
        row, sample = row + rows[at], sample + counts[at]
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
            changed_ns=np.broadcast_to(np.int64(seen.changed_ns), row),
        ),
        values=FieldValues(texts, lists=numbers.lists),
        spans=FieldSpans(files, np.repeat(np.arange(len(parts), dtype=np.uint32), counts), offset, expected, whole),
        identity=seen.identity,
    )


def _payload_sizes(part: SourceShard, numbers: Mapping[str, NumberTexts], kind: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the sizes of a part's payloads: those of numbers, which are INLINE, are those of their texts.

    Args:
        part: The part.
        numbers: The texts of numbers in it, by field.
        kind: uint8 per row of the part; is set to INLINE for these.
    """
    lengths: NDArray[np.int64] = part.index.lengths.copy() if numbers else part.index.lengths
    for name, texts in numbers.items():
        rows = part.rows_of(name)
        kind[rows], lengths[rows] = INLINE, PackedStrings.parse(texts.data).lengths()
    return lengths


def _move_column(parts: list[SourceShard], name: str, counts: list[int], kind: type[_Number]) -> NDArray[_Number]:
    """Return a column of all parts as one, -1 for what is not known, and take it from them: memory holds it once."""
    found = np.empty(sum(counts), kind)
    row = 0
    for at, count in enumerate(counts):
        column = getattr(parts[at].index, name)
        found[row : row + count] = -1 if column is None else column
        row += count
        nothing: Any = {name: _NO_ROWS}
        parts[at] = replace(parts[at], index=replace(parts[at].index, **nothing))
    return found


def _merge_whole(parts: list[SourceShard]) -> NDArray[np.bool_] | None:
    """Return which rows of all parts are all that a list holds; None where none is."""
    if all(part.whole is None for part in parts):
        return None
    return np.concatenate(
        [np.zeros(len(part.index.codes), np.bool_) if part.whole is None else part.whole for part in parts]
    )


def _merge_keys(parts: list[SourceShard]) -> PackedStrings:
    """Return the keys of all parts.

    Raises:
        InvalidRequest: One cannot be part of a file's name.
    """
    names, bad = gather_keys(arrow.string_array(bytes(part.index.keys), part.index.key_sizes) for part in parts)
    if len(bad):
        ends = np.cumsum([len(part.index) for part in parts])
        at = int(np.searchsorted(ends, bad[0], side="right"))
        part = parts[at]
        sample = int(bad[0] - ends[at]) + len(part.index)
        found = f"the key {printable(part.key(sample))[:_MAX_NAME_LETTERS]!r}"
        expected = f"a path such as cat/0001 of at most {MAX_NAME_BYTES:,} bytes, without control characters and parts like `..`"
        raise InvalidRequest(part.path, found, expected=expected, remedy="Make the shard anew with other keys.")
    return names
