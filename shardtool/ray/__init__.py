"""Shards for Ray Data and Ray Train: a dataset as a source of blocks, read where they are needed.

The catalog of the shards is put into Ray's object store once; the task of a shard holds a reference to it, and which
samples of the shard it reads. A process that runs several tasks of a dataset opens it once.

Ray is imported here, and nowhere else but for `execute/`, which runs tasks on a cluster.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shardtool.errors import InvalidRequest, format_list
from shardtool.read.dataset import Dataset
from shardtool.read.index_store import LruCache
from shardtool.read.metadata import metadata_schema

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from shardtool.read.sample_reader import SampleReader

try:
    import ray
    from ray.data import Datasource
    from ray.data.block import BlockMetadata
    from ray.data.datasource import ReadTask
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("ray", "fsspec"):
        raise
    Datasource, _MISSING = object, error.name
else:
    _MISSING = None

__all__ = ["datasource"]

_MAX_BLOCK_BYTES = 128 * 2**20  # what Ray Data wants a block to be at most
_SampleNumbers = range | np.ndarray[Any, np.dtype[np.int64]]
_ARROW_NUMBER_TYPES = {"int64": pa.int64(), "float": pa.float32()}
_open_datasets = LruCache[str, Any](4)  # the fetchers of the datasets that tasks of this process read last


def datasource(dataset: Dataset, *, fields: Collection[str] | None = None) -> Any:
    """Return a dataset as a source for `ray.data.read_datasource`: a task a shard, which reads it when it runs.

    A shard gives one block, or several of at most 128 MB. Its columns are `__key__` and the fields: bytes as they are
    stored (`large_binary`), numbers of TFRecords as int64 and float32, and null where a sample lacks the field; opened
    with `metadata=True`, the columns of the sidecars, too. Rows stand in the order of the shards. How many there are is
    known before anything is read.

    Args:
        dataset: What `shardtool.open` returned, or a view of it, under paths that all nodes see.
        fields: Those that are read; None: all.

    Returns:
        A `ray.data.Datasource`. It needs a connection to Ray, and makes one as Ray Data does where there is none.

    Raises:
        InvalidRequest: Ray Data is missing, `dataset` is none or has stages, or there is no such field.
    """
    if not isinstance(dataset, Dataset):
        raise InvalidRequest("the dataset", f"{dataset!r:.80}", expected="what shardtool.open returned")
    if dataset.stages.stages:
        remedy = "Do the same in Ray Data: `ray.data.read_datasource(...).map_batches(...)`."
        raise InvalidRequest("the dataset", f"stages{dataset.stages}", expected="samples as they are", remedy=remedy)
    if _MISSING:
        remedy = "Run `pip install 'shardtool[ray]'`."
        raise InvalidRequest("shardtool.ray", f"{_MISSING} is not installed", remedy=remedy)
    return RayDatasource(dataset, fields)


class RayDatasource(Datasource):  # type: ignore[misc] # Ray's types are not looked at
    """The samples of a dataset, a task a shard.

    Args:
        dataset: What to read.
        fields: Those that are read; None: all.

    Raises:
        InvalidRequest: There is no such field.
    """

    def __init__(self, dataset: Dataset, fields: Collection[str] | None) -> None:
        super().__init__()
        there = [*dataset.fields]
        names = there if fields is None else [*fields]
        if unknown := [name for name in names if name not in there]:
            raise InvalidRequest("fields", f"no field {unknown[0]}", expected=f"some of {format_list(there)}")
        fetcher = dataset.fetcher if fields is None else dataset.fetcher.selecting(frozenset(names))
        self._catalog, self._exact = fetcher.catalog, fetcher.options.on_error == "raise"
        self._columns = _column_types(fetcher, names)
        self._parts = [*dataset.source.group_by_shard()]
        self._rows = max(1, _MAX_BLOCK_BYTES // fetcher.mean_size)
        self._fetcher = ray.put(fetcher)

    @property
    def shards(self) -> int:
        """How many shards are read."""
        return len(self._parts)

    def get_name(self) -> str:
        """Return what Ray calls the tasks."""
        return "Shards"

    def estimate_inmemory_data_size(self) -> int:
        """Return the bytes of all blocks, as the shards' sizes say."""
        return sum(self._size(*part) for part in self._parts)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: object = None  # noqa: ARG002
    ) -> list[ReadTask]:  # fmt: skip
        """Return a task for each shard."""
        return [self._task(*part, per_task_row_limit) for part in self._parts]

    def _task(self, shard: int, numbers: _SampleNumbers, limit: int | None) -> ReadTask:
        count, size, path = len(numbers), self._size(shard, numbers), self._catalog.shards[shard].path
        metadata = BlockMetadata(
            num_rows=count if self._exact else None, size_bytes=size, input_files=[path], exec_stats=None
        )
        read = partial(_read_blocks, self._fetcher, numbers, self._columns, self._rows)
        return ReadTask(read, metadata, schema=_arrow_schema(self._columns), per_task_row_limit=limit)

    def _size(self, shard: int, numbers: _SampleNumbers) -> int:
        first, last = self._catalog.firsts[shard : shard + 2].tolist()
        size: int = int(self._catalog.sizes[shard]) * len(numbers) // (last - first)
        return size


def _column_types(fetcher: SampleReader, fields: Collection[str]) -> dict[str, pa.DataType | None]:
    """Return the type of each column; None: only the values say."""
    catalog = fetcher.catalog
    tars = all(shard.format == "tar" for shard in catalog.shards)
    found: dict[str, pa.DataType | None] = {"__key__": pa.string()}
    for name in fields:
        plain = _ARROW_NUMBER_TYPES.get(catalog.kinds.get(name, "bytes"), pa.large_binary())
        found[name] = pa.list_(plain) if name in catalog.lists else plain
        if not (tars or catalog.listed):
            found[name] = None
    if fetcher.options.metadata:
        found |= {one.name: one.type for one in metadata_schema(catalog) if one.name not in found}
    return found


def _arrow_schema(columns: dict[str, pa.DataType | None]) -> pa.Schema | None:
    if any(kind is None for kind in columns.values()):
        return None
    return pa.schema([*columns.items()])


def _read_blocks(
    reference: Any, numbers: _SampleNumbers, columns: dict[str, pa.DataType | None], rows: int
) -> Iterator[pa.Table]:
    """Yield the blocks of a shard, each read when it is asked for, in the process of a Ray worker.

    Args:
        reference: One to the `Fetcher`.
        numbers: The samples.
        columns: See `_columns`.
        rows: How many samples are in a block at most.

    Raises:
        CorruptShard: The shard is missing or damaged.
    """
    fetcher, numbers = _open_datasets.get(reference.hex(), lambda: ray.get(reference)), np.asarray(numbers, np.int64)
    for first in range(0, len(numbers), rows):
        samples = fetcher.fetch(numbers[first : first + rows])
        yield pa.table({name: pa.array([one.get(name) for one in samples], kind) for name, kind in columns.items()})
