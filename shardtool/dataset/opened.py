"""A dataset opened for reading: its dataset file, an index of each shard, and the bytes of any payload.

The index is the sidecar where there is one that fits the shard, and otherwise what a walk over the shard finds. It is
read a shard at a time and let go, for passes over many shards in bounded memory; a payload, a piece at a time.
What is read is never trusted: see `shardtool.dataset.sidecar_read`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardtool.dataset.dataset_file import read_dataset, shard_names
from shardtool.dataset.find import find_dataset, recorded_dots, sidecar_path
from shardtool.dataset.shard_file import shard_format
from shardtool.dataset.sidecar import SCHEMA, UNREAD, ShardTally
from shardtool.dataset.sidecar_read import Rows, Sidecar, check_shard, read_bytes, read_count, read_sidecar
from shardtool.dataset.walk import Survey, SurveyTask, survey, walked_text
from shardtool.entries.arrow import coded_strings, number_array, strings
from shardtool.errors import AccessRefused, CorruptShard, raise_if_machines, reason
from shardtool.storage.places import base_name, is_url, plain_size, read_small
from shardtool.storage.reading import file_stat
from shardtool.values import output_text
from shardtool.wording import made_again

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.dataset.find import DatasetFiles
    from shardtool.dataset.shard_file import PackedFile, ShardFile
    from shardtool.dataset.sidecar import ShardFact
    from shardtool.values import Dots, Given, Kind

FIELDS = "__fields__"
_BLOCK = 2**20


@dataclass(frozen=True)
class OpenedShard:
    """One shard of a dataset.

    Attributes:
        path: The path of the shard.
        number: Its place in the dataset, counted from 0.
        dots: Where keys end in its members' names.
        index_folder: Where its sidecar lies; None: beside it.
    """

    path: str
    number: int
    dots: Dots = "first"
    index_folder: str | None = None

    @property
    def name(self) -> str:
        """Its file name."""
        return base_name(self.path)

    @property
    def sidecar(self) -> str:
        """The path of its sidecar, which need not be there."""
        return sidecar_path(self.path, self.index_folder)


@dataclass(frozen=True)
class OpenedIndex:
    """The index of a shard.

    Attributes:
        table: A `pyarrow.Table` with the columns of a sidecar (docs/format.md); text may be dictionaries.
        samples: How many there are in the shard.
        schema: All columns of the sidecar and their types, with metadata that was not asked for.
        kinds: In a TFRecord that was walked, field to `bytes`, `int64` or `float`.
        walked: There is no sound sidecar.
        damage: What is wrong with the sidecar, or with a shard that was walked: the table ends there.
    """

    table: pa.Table = field(repr=False)
    samples: int
    schema: pa.Schema
    kinds: Mapping[str, Kind]
    walked: bool
    damage: tuple[CorruptShard, ...]

    def fields(self) -> pa.StructArray:
        """Return the fields of all samples, one after the other: a struct array."""
        column = self.table.column(FIELDS).combine_chunks()
        return column.flatten() if len(column) else pa.array([], column.type.value_type)

    def starts(self) -> NDArray[np.int32]:
        """Return where in `fields` each sample starts, and where the last one ends."""
        offsets: NDArray[np.int32] = self.table.column(FIELDS).combine_chunks().offsets.to_numpy()
        return offsets - offsets[0] if len(offsets) else offsets


@dataclass(frozen=True)
class OpenedDataset:
    """A dataset.

    Attributes:
        found: Where it lies.
        file: What the dataset file says; None where there is none, or one of another tool (wids).
        shards: In order.
    """

    found: DatasetFiles
    file: DatasetFile | None
    shards: tuple[OpenedShard, ...] = field(repr=False)

    @property
    def format(self) -> str:
        """`tar` or `tfrecord`: of the first shard."""
        return shard_format(self.shards[0].path)


def open_dataset(given: Given, *, dots: Dots | None = None) -> OpenedDataset:
    """Return a dataset, given as its dataset file, a pattern, a glob, a folder, or shards.

    Args:
        given: Where it is.
        dots: Where keys end in members' names, if no dataset file says so; None: as sidecars show, which reads them.

    Raises:
        InvalidRequest: There is none.
        CorruptShard: Its dataset file is damaged.
    """
    found = find_dataset(given)
    file, paths = said_of(found)
    dots = file.made.dots if file else dots or recorded_dots(found)
    shards = (OpenedShard(path, at, dots, found.index_folder) for at, path in enumerate(paths))
    return OpenedDataset(found, file, tuple(shards))


def said_of(found: DatasetFiles) -> tuple[DatasetFile | None, tuple[str, ...]]:
    """Return what the dataset file says of just those shards that were found, and these shards, one by one.

    None: there is none of ours, or it does not list all that were named one by one. Of a dataset that was named as a
    whole, the shards are those that it lists.

    Raises:
        CorruptShard: It is damaged.
    """
    data = b"" if found.dataset_file is None else read_small(found.dataset_file)
    if found.dataset_file is None or shard_names(data) is None:
        return None, found.shards
    file = read_dataset(data, found.dataset_file)
    names = {path: output_text(base_name(path)) for path in found.shards}
    listed = {one.name for one in file.shards}
    paths = tuple(path for path in found.shards if names[path] in listed)
    if not found.whole and len(paths) < len(found.shards):
        return None, found.shards
    return file.part([names[path] for path in paths]), paths


@dataclass(frozen=True)
class OpenedRows:
    """The places of a shard's samples, as columns.

    Attributes:
        rows: Where samples and fields lie.
        kinds: In a TFRecord that was walked, field to `bytes`, `int64` or `float`.
        walked: There is no sound sidecar.
        damage: What is wrong with the sidecar.
        error: Where a walk ended too early: the rows end there.
        crc: CRC-32C of the shard, as its sidecar says; None: not known.
    """

    rows: Rows = field(repr=False)
    kinds: Mapping[str, Kind]
    walked: bool
    damage: CorruptShard | None = None
    error: CorruptShard | None = None
    crc: int | None = None


def read_rows(shard: OpenedShard) -> OpenedRows:
    """Return where the samples of a shard lie: as `read_part` does, without the tables.

    Raises:
        CorruptShard: There is no sound sidecar, and the shard cannot be opened.
    """
    found = _sidecar_of(shard, metadata=False)
    if isinstance(found, Sidecar):
        return OpenedRows(found.rows, {}, walked=False, crc=found.fact.crc)
    walked = survey(SurveyTask(shard.path, dots=shard.dots))
    return OpenedRows(_walked_rows(walked), _walked_kinds(walked), walked=True, damage=found, error=walked.error)


def count_samples(shard: OpenedShard) -> tuple[int, ShardFact] | None:
    """Return how many samples a shard has, as the footer of its sidecar says, and what that says of the shard.

    None: there is no sidecar, or one that is damaged or about another shard.
    """
    where, size = shard.sidecar, file_size(shard.path)
    try:
        fact, samples = read_count(where)
        check_shard(fact, where, output_text(shard.name), fact.size if size is None else size)
    except (OSError, CorruptShard):
        return None
    except AccessRefused:
        if shard.index_folder is None:  # as `_sidecar_of` has it
            return None
        raise
    return samples, fact


def sidecar_schema(shard: OpenedShard) -> pa.Schema:
    """Return the columns of a shard's sidecar and their types, by its footer alone; of a shard without one, SCHEMA."""
    if count_samples(shard) is None:
        return SCHEMA
    try:
        where = shard.sidecar
        return pq.read_schema(pa.BufferReader(read_bytes(where)) if is_url(where) else where).remove_metadata()
    except MemoryError:
        raise  # of pyarrow, it is an ArrowException, too
    except (OSError, pa.ArrowException) as error:
        raise_if_machines(error, shard.sidecar)
        raise CorruptShard(shard.sidecar, f"no sidecar: {error}", remedy=made_again()) from None


def read_part(shard: OpenedShard, *, metadata: bool = False) -> OpenedIndex:
    """Return the index of a shard, by a walk where there is no sound sidecar.

    Args:
        shard: The shard.
        metadata: Whether the sidecar's other columns are wanted, too.

    Raises:
        CorruptShard: There is no sound sidecar, and the shard cannot be opened.
    """
    found = _sidecar_of(shard, metadata=metadata)
    if not isinstance(found, Sidecar):
        return _walked_part(survey(SurveyTask(shard.path, dots=shard.dots)), found)
    columns = [*found.index.columns, *found.metadata.columns]
    table = pa.table(columns, names=[*found.index.column_names, *found.metadata.column_names])
    return OpenedIndex(table, len(found.rows.counts), found.schema, {}, walked=False, damage=())


def _sidecar_of(shard: OpenedShard, *, metadata: bool) -> Sidecar | CorruptShard | None:
    """Return what a sidecar says, or what is wrong with it; None where there is none."""
    where, size = shard.sidecar, file_size(shard.path)
    try:
        data = read_bytes(where)
        found = read_sidecar(data, where, size, metadata=metadata)
        check_shard(found.fact, where, output_text(shard.name), found.fact.size if size is None else size)
    except FileNotFoundError:
        return None
    except AccessRefused:
        if shard.index_folder is None:  # said of what is not there, where we may not list
            return None
        raise
    except OSError as error:
        return CorruptShard(where, f"cannot be read: {reason(error)}")
    except CorruptShard as error:
        return error
    return found


def file_size(path: str) -> int | None:
    """Return the size of a file; None where it has none."""
    if is_url(path):
        return plain_size(path)
    try:
        return file_stat(path).st_size
    except OSError:
        return None


def _walked_part(found: Survey, damage: CorruptShard | None) -> OpenedIndex:
    """Return what a walk found; `damage` is what is wrong with the sidecar."""
    table = table_of(found)
    errors = tuple(error for error in (damage, found.error) if error is not None)
    return OpenedIndex(table, table.num_rows, table.schema, _walked_kinds(found), walked=True, damage=errors)


def _walked_kinds(found: Survey) -> dict[str, Kind]:
    if found.format != "tfrecord":
        return {}
    return {walked_text(name): kind for name, kind in zip(found.names, found.kinds, strict=True)}


def _walked_rows(found: Survey) -> Rows:
    keys = [walked_text(key).encode() for key in found.keys]
    return Rows(
        keys=b"".join(keys),
        key_sizes=np.array([len(key) for key in keys], np.int64),
        starts=np.frombuffer(found.starts, np.int64),
        sizes=np.frombuffer(found.sizes, np.int64),
        counts=np.frombuffer(found.counts, np.uint32).astype(np.int64),
        names=[walked_text(name).encode() for name in found.names],
        codes=np.frombuffer(found.codes, np.uint32).astype(np.int64),
        offsets=np.frombuffer(found.offsets, np.int64),
        lengths=np.frombuffer(found.lengths, np.int64),
        crcs=None if len(found.crcs) < len(found.codes) else np.frombuffer(found.crcs, np.uint32),
    )


def table_of(found: Survey) -> pa.Table:
    """Return what a walk found as a sidecar's table; checksums are null where payloads were not read."""
    counts = np.frombuffer(found.counts, np.uint32).astype(np.int64)
    ends = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    schema = UNREAD if len(found.crcs) < len(found.codes) else SCHEMA
    kind = schema.field("__fields__").type
    fields = pa.StructArray.from_arrays(
        [
            coded_strings([walked_text(name).encode() for name in found.names], np.frombuffer(found.codes, np.uint32)),
            number_array(np.frombuffer(found.offsets, np.int64).astype(np.uint64)),
            number_array(np.frombuffer(found.lengths, np.int64).astype(np.uint64)),
            pa.nulls(len(found.codes), pa.uint32())
            if schema is UNREAD
            else number_array(np.frombuffer(found.crcs, np.uint32)),
        ],
        fields=list(kind.value_type),
    )
    columns = [
        strings([walked_text(key).encode() for key in found.keys]),
        number_array(np.frombuffer(found.starts, np.int64).astype(np.uint64)),
        number_array(np.frombuffer(found.sizes, np.int64).astype(np.uint64)),
        pa.ListArray.from_arrays(number_array(ends), fields, type=kind),
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def walked_tally(found: Survey) -> ShardTally:
    """Return what the dataset file says of a shard that was walked."""
    first, last = (walked_text(found.keys[at]) for at in (0, -1)) if found.keys else ("", "")
    counts = np.bincount(np.frombuffer(found.codes, np.uint32), minlength=len(found.names)).tolist()
    fields: Counter[str] = Counter()
    for name, count in zip(found.names, counts, strict=True):
        fields[walked_text(name)] += count
    return ShardTally(len(found.keys), first, last, dict(+fields), int(np.frombuffer(found.lengths, np.int64).sum()))


def places_of(table: pa.Table) -> tuple[bytes, ...]:
    """Return where a sidecar's table says that samples and fields lie, as bytes that are equal where the places are."""
    lists = table.column("__fields__").combine_chunks()
    fields = lists.flatten()
    columns = [table.column(name).combine_chunks() for name in ("__key__", "__offset__", "__size__")]
    columns += [lists.value_lengths(), *(fields.field(name) for name in ("name", "offset", "length"))]
    hashes = []
    for column in columns:
        sink = pa.BufferOutputStream()
        batch = pa.RecordBatch.from_arrays([pa.concat_arrays([column])], names=["column"])
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        hashes.append(blake2b(sink.getvalue(), digest_size=16).digest())
    return tuple(hashes)


def payload(
    shard: ShardFile | PackedFile, offset: int, length: int, where: str, *, most: int | None = None
) -> Iterator[bytes]:
    """Yield the bytes of a payload, a piece at a time, and no more than the first `most`.

    Raises:
        CorruptShard: The shard ends before.
    """
    if shard.size >= 0 and not 0 <= offset <= offset + length <= shard.size:
        raise CorruptShard(where, f"{length:,} bytes at {offset:,}", expected=f"a place in {shard.size:,} bytes")
    length = length if most is None else min(length, most)
    while length > 0:
        block = bytes(shard.read(offset, min(length, _BLOCK)))
        if not block:
            raise CorruptShard(where, f"the shard ends at {offset:,}", expected=f"{length:,} more bytes")
        yield block
        offset, length = offset + len(block), length - len(block)
