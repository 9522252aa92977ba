"""`index`: write sidecars and a dataset file for existing shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.publish.index_shards import index_shards
from shardtool.request.dataset_options import IndexOptions
from shardtool.request.verb_call import accepts_options

if TYPE_CHECKING:
    from shardtool.request.observer import Observer
    from shardtool.request.results import IndexResult
    from shardtool.values import DatasetLike


@accepts_options(IndexOptions)
def index(dataset: DatasetLike, options: IndexOptions, observer: Observer) -> IndexResult:
    """Write the sidecars and the dataset file of existing shards.

    Args:
        dataset: A dataset file, a shard pattern, a glob, a folder, or shards.

    Raises:
        InvalidRequest: The shards do not exist or are compressed.
        CorruptShard: A shard is damaged.
        OutputExists: Another run is writing, other shards have the same sidecar names, or an existing sidecar or
            dataset file does not match the shards and `overwrite` is false.
        OutputFailed: The output cannot be written.
    """
    return index_shards(dataset, options, observer)
