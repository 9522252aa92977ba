"""Use a dataset as a data source of Ray Data and Ray Train.

All tasks share one reader of the dataset in Ray's object store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from shardtool.errors import InvalidRequest, format_list
from shardtool.read.dataset import Dataset
from shardtool.read.index_store import LruCache
from shardtool.read.metadata import metadata_schema
from shardtool.read.sample_reader import SampleReader, read_valid

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

_MAX_BLOCK_BYTES = 128 * 2**20  # the maximum that Ray Data recommends
_SampleNumbers = range | np.ndarray[Any, np.dtype[np.int64]]
_ARROW_NUMBER_TYPES = {"int64": pa.int64(), "float": pa.float32()}
_open_datasets = LruCache[str, Any](4)  # the readers that tasks in this process used last


def datasource(dataset: Dataset, *, fields: Collection[str] | None = None) -> Any:
    """Return a dataset as a source for `ray.data.read_datasource`, with one task per shard.

    Each shard becomes one or several blocks of about 128 MB or less, in shard order. The columns are `__key__`, the
    fields, and, for a dataset opened with `metadata=True`, the sidecar columns. Fields contain the stored
    bytes (`large_binary`) or TFRecord numbers (int64 or float32). A missing field is null.

    Args:
        dataset: A dataset or view from `shardtool.open`, with paths that all nodes can read.
        fields: Fields to read, or None for all.

    Returns:
        A `ray.data.Datasource`.

    Raises:
        InvalidRequest: Ray Data is not installed, a field does not exist, or `dataset` is not a dataset or has stages.
    """
    if not isinstance(dataset, Dataset):
        raise InvalidRequest("the dataset", f"{dataset!r:.80}", expected="a dataset from shardtool.open")
    if dataset.stages.stages:
        remedy = "Apply the stages in Ray Data instead: `ray.data.read_datasource(...).map_batches(...)`."
        raise InvalidRequest("the dataset", f"stages{dataset.stages}", expected="no stages", remedy=remedy)
    if _MISSING:
        remedy = "Run `pip install 'shardtool[ray]'`."
        raise InvalidRequest("shardtool.ray", f"{_MISSING} is not installed", remedy=remedy)
    return RayDatasource(dataset, fields)


class RayDatasource(Datasource):  # type: ignore[misc] # Ray is untyped here
    """The data source that `datasource` returns."""

    def __init__(self, dataset: Dataset, fields: Collection[str] | None) -> None:
        super().__init__()
        existing = [*dataset.field_counts]
        names = existing if fields is None else [*fields]
        if unknown := [name for name in names if name not in existing]:
            raise InvalidRequest("fields", f"no field {unknown[0]}", expected=f"some of {format_list(existing)}")
        reader = dataset.reader if fields is None else dataset.reader.with_options(fields=frozenset(names))
        self._catalog, self._exact = reader.catalog, reader.options.on_error == "raise"
        self._columns = _column_types(reader, names)
        self._parts = [*dataset.source.group_by_shard()]
        self._rows = max(1, _MAX_BLOCK_BYTES // reader.mean_size)
        self._reader = ray.put(reader)

    @property
    def shards(self) -> int:
        """Number of shards to read."""
        return len(self._parts)

    def get_name(self) -> str:
        """Return the name that Ray shows for the tasks."""
        return "Shards"

    def estimate_inmemory_data_size(self) -> int:
        """Return the total bytes of all blocks, estimated from the shard sizes."""
        return sum(self._size(*part) for part in self._parts)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: object = None  # noqa: ARG002
    ) -> list[ReadTask]:  # fmt: skip
        """Return one task per shard."""
        return [self._task(*part, per_task_row_limit) for part in self._parts]

    def _task(self, shard: int, numbers: _SampleNumbers, limit: int | None) -> ReadTask:
        count, size, path = len(numbers), self._size(shard, numbers), self._catalog.shards[shard].path
        metadata = BlockMetadata(
            num_rows=count if self._exact else None, size_bytes=size, input_files=[path], exec_stats=None
        )
        read = partial(_read_blocks, self._reader, numbers, self._columns, self._rows)
        schema = None if None in self._columns.values() else pa.schema([*self._columns.items()])
        return ReadTask(read, metadata, schema=schema, per_task_row_limit=limit)

    def _size(self, shard: int, numbers: _SampleNumbers) -> int:
        first, last = self._catalog.first_samples[shard : shard + 2].tolist()
        size: int = int(self._catalog.sizes[shard]) * len(numbers) // (last - first)
        return size


def _column_types(reader: SampleReader, fields: Collection[str]) -> dict[str, pa.DataType | None]:
    catalog = reader.catalog
    all_tar = all(shard.format == "tar" for shard in catalog.shards)
    types: dict[str, pa.DataType | None] = {"__key__": pa.string()}
    for name in fields:
        value_type = _ARROW_NUMBER_TYPES.get(catalog.kinds.get(name, "bytes"), pa.large_binary())
        types[name] = pa.list_(value_type) if name in catalog.lists else value_type
        if not (all_tar or catalog.listed):
            types[name] = None
    if reader.options.metadata:
        types |= {column.name: column.type for column in metadata_schema(catalog) if column.name not in types}
    return types


def _read_blocks(
    reference: Any, numbers: _SampleNumbers, columns: dict[str, pa.DataType | None], rows: int
) -> Iterator[pa.Table]:
    reader, numbers = _open_datasets.get(reference.hex(), lambda: ray.get(reference)), np.asarray(numbers, np.int64)
    for first in range(0, len(numbers), rows):
        samples = read_valid(reader, numbers[first : first + rows])
        yield pa.table(
            {name: pa.array([sample.get(name) for sample in samples], kind) for name, kind in columns.items()}
        )
