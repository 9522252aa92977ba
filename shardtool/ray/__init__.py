"""Shards for Ray Data and Ray Train: a dataset as a source of blocks, read where they are needed.

Ray is imported when a function is called, and nowhere else but for `execute/`, which runs tasks on a cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardtool.errors import InvalidRequest
from shardtool.read.dataset import Dataset

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["datasource"]


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
    try:
        from shardtool.ray.source import ShardSource
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("ray", "fsspec"):
            raise
        remedy = "Run `pip install 'shardtool[ray]'`."
        raise InvalidRequest("shardtool.ray", f"{error.name} is not installed", remedy=remedy) from None
    return ShardSource(dataset, fields)
