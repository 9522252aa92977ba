"""`index`: sidecars and dataset file for shards that any tool made. The library twin of `shardtool index`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.dataset.walk import survey
from shardtool.errors import current_folder
from shardtool.execute.pool import Needs, a_few
from shardtool.execute.start import start_pool
from shardtool.publish.index_target import index_target
from shardtool.publish.indexer import Indexer
from shardtool.request.observer import Observer
from shardtool.request.options import IndexOptions
from shardtool.request.python_types import given_options

if TYPE_CHECKING:
    from shardtool.request.results import IndexResult
    from shardtool.values import Given


@current_folder()
def index(dataset: Given, options: IndexOptions | None = None, *, observer: Observer | None = None) -> IndexResult:
    """Write the sidecars and the dataset file of existing shards.

    Args:
        dataset: A dataset file, a shard pattern, a glob, a folder, or shards.
        options: See `IndexOptions`.
        observer: Gets progress, and notes for the user.

    Raises:
        InvalidRequest: There are no such shards, or they are compressed.
        CorruptShard: A shard is damaged.
        OutputExists: Another run is writing here, other shards own these names, or there is a sidecar or dataset file
            that is wrong, and `overwrite` was not asked for.
        OutputFailed: The output cannot be written.
    """
    options, observer = given_options(options, IndexOptions), observer or Observer()
    with start_pool(options) as pool:
        target = index_target(dataset, options)
        pool.check(Needs(a_few(target.paths)))
        target.folder.ready()
        with target.folder.lock(target.base):
            indexer = Indexer(target, options, observer)
            for number, found in pool.map(survey, indexer.tasks()):
                indexer.add(number, found)
            pool.close()
            return indexer.finish()
