"""A dataset opened for reading: its dataset file, an index of each shard, and the bytes of any field.

The index is the sidecar where there is one that fits the shard, and otherwise what a walk over the shard finds.
What is read is never trusted: places outside of a shard are `CorruptShard`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shardtool.arrow import number_array, strings
from shardtool.checksum import crc32c
from shardtool.dataset import read_dataset, shard_names
from shardtool.errors import CorruptShard
from shardtool.reading import find_dataset, open_shard, read_small, shard_format, sidecar_path
from shardtool.sidecar import SCHEMA, UNREAD, ShardFact, read_facts, read_table
from shardtool.survey import Survey, SurveyTask, survey, walked_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.dataset import DatasetFile
    from shardtool.reading import Found
    from shardtool.sample import Dots


@dataclass(frozen=True)
class OpenedShard:
    """One shard of a dataset.

    Attributes:
        path: Of the shard.
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
        return os.path.basename(self.path)

    @property
    def sidecar(self) -> str:
        """The path of its sidecar, which need not be there."""
        return sidecar_path(self.path, self.index_folder)

    @cached_property
    def _index(self) -> tuple[Any, ShardFact | None, CorruptShard | None]:
        try:
            data = read_small(self.sidecar)
        except OSError:
            return *self._walked(), None
        try:
            fact, table = read_facts(data, self.sidecar), read_table(data, self.sidecar)
            check_table(table, os.stat(self.path).st_size, self.sidecar)
        except CorruptShard as error:
            return *self._walked(), error
        except OSError as error:
            raise CorruptShard(self.path, (error.strerror or str(error)).lower()) from None
        return table, fact, None

    def _walked(self) -> tuple[Any, None]:
        found = survey(SurveyTask(self.path, dots=self.dots))
        if found.error is not None:
            raise found.error
        return table_of(found), None

    @property
    def table(self) -> Any:
        """The index: a `pyarrow.Table` with the columns of a sidecar (docs/format.md), metadata included.

        Raises:
            CorruptShard: There is no sound sidecar, and the shard is damaged.
        """
        return self._index[0]

    @property
    def fact(self) -> ShardFact | None:
        """What the sidecar says of the shard; None where there is no sound one."""
        return self._index[1]

    @property
    def damage(self) -> CorruptShard | None:
        """What is wrong with the sidecar; None where it is sound, or missing."""
        return self._index[2]

    def sample(self, row: int) -> dict[str, bytes]:
        """Return a sample's fields: name to bytes. Of a TFRecord's numbers, the packed ones.

        Raises:
            CorruptShard: The shard ends before, or a checksum differs.
        """
        one = self.table.slice(row, 1).to_pylist()[0]
        found = {}
        with open_shard(self.path) as shard:
            for part in one["__fields__"]:
                data = bytes(shard.read(part["offset"], part["length"]))
                where = f"{self.path}, field {part['name']!r} of {one['__key__']}"
                if len(data) != part["length"]:
                    raise CorruptShard(where, f"{len(data):,} bytes", expected=f"{part['length']:,}")
                if part["crc32c"] is not None and crc32c(data) != part["crc32c"]:
                    raise CorruptShard(where, "another checksum than its index says", remedy="Run `shardtool verify`.")
                found[part["name"]] = data
        return found


@dataclass(frozen=True)
class OpenedDataset:
    """A dataset.

    Attributes:
        found: Where it lies.
        file: What the dataset file says; None where there is none, or one of another tool (wids).
        shards: In order.
    """

    found: Found
    file: DatasetFile | None
    shards: tuple[OpenedShard, ...] = field(repr=False)

    @property
    def format(self) -> str:
        """`tar` or `tfrecord`: of the first shard."""
        return shard_format(self.shards[0].path)

    def tables(self) -> Iterator[tuple[OpenedShard, Any]]:
        """Yield each shard with its index."""
        for shard in self.shards:
            yield shard, shard.table


def open_dataset(given: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> OpenedDataset:
    """Return a dataset, given as its dataset file, a pattern, a glob, a folder, or shards.

    Raises:
        InvalidRequest: There is none.
        CorruptShard: Its dataset file is damaged.
    """
    found, file = find_dataset(given), None
    if found.dataset_file is not None:
        data = read_small(found.dataset_file)
        file = read_dataset(data, found.dataset_file) if shard_names(data) is not None else None
    options = file.made.get("options") if file else None
    dots: Dots = "last" if isinstance(options, dict) and options.get("dots") == "last" else "first"
    shards = (OpenedShard(path, at, dots, found.index_folder) for at, path in enumerate(found.shards))
    return OpenedDataset(found, file, tuple(shards))


def check_table(table: Any, size: int, where: str) -> None:
    """See that a sidecar's table has its columns, and that all it speaks of lies in a shard of `size` bytes.

    Raises:
        CorruptShard: It is not so.
    """
    for wanted in SCHEMA:
        if wanted.name not in table.column_names:
            raise CorruptShard(where, f"no column {wanted.name}", remedy="`shardtool index` makes it again.")
    fields = table.column("__fields__").combine_chunks()
    parts = fields.flatten() if len(fields) else None
    try:
        starts = table.column("__offset__").to_numpy().astype(np.uint64)
        sizes = table.column("__size__").to_numpy().astype(np.uint64)
        inner = [] if parts is None else [(parts.field("offset").to_numpy(), parts.field("length").to_numpy())]
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise CorruptShard(where, f"columns of another type: {error}") from None
    for offset, length in [(starts, sizes), *inner]:
        if len(offset) and not (np.all(offset <= size) and np.all(length <= size) and np.all(offset + length <= size)):
            raise CorruptShard(where, f"places outside of its shard of {size:,} bytes",
                               remedy="`shardtool index` makes it again.")  # fmt: skip


def table_of(found: Survey) -> Any:
    """Return what a walk found as a sidecar's table; checksums are null where payloads were not read."""
    counts = np.frombuffer(found.counts, np.uint32).astype(np.int64)
    ends = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    schema = UNREAD if len(found.crcs) < len(found.codes) else SCHEMA
    kind = schema.field("__fields__").type
    fields = pa.StructArray.from_arrays(
        [
            strings([walked_text(name).encode() for name in found.names]).take(
                number_array(np.frombuffer(found.codes, np.uint32).astype(np.int32))
            ),
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


def places_of(table: Any) -> tuple[bytes, ...]:
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
