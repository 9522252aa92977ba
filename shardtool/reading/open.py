"""`shardtool.open`: a dataset for training code, given in any way that the commands take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest, current_folder
from shardtool.reading.catalog import open_catalog
from shardtool.reading.dataset import Dataset
from shardtool.reading.files import GrowingCache, TakenShards
from shardtool.reading.options import ReadOptions

if TYPE_CHECKING:
    from shardtool.reading.files import ShardCache
    from shardtool.values import Given, OnBadSample


@current_folder()
def open(  # noqa: A001 - its public name
    given: Given | GrowingCache | TakenShards, *, check: bool = False, cache: ShardCache | None = None,
    on_error: OnBadSample = "raise", metadata: bool = False,
) -> Dataset:  # fmt: skip
    """Return a dataset for reading.

    Args:
        given: A dataset file (of shardtool or wids), a shard pattern, a glob, a folder, or shards; several datasets,
            such as the splits in a folder, become one, in their order. Shards without a sidecar are walked now, once
            for all processes, and a warning says so. A `Cache` stands for the shards that samplers have finished in it
            by now; what its `refresh` returned, for those of then, in whichever process.
        check: Whether the checksum of each payload that is read is compared with its index.
        cache: Where shards are copied to before they are read.
        on_error: `skip`: a damaged sample is left out, and counted, instead of being an error.
        metadata: Whether samples have the metadata of their sidecar, under the names of its columns; None where a shard
            lacks one. Where a field has the same name, the field stays.

    Raises:
        InvalidRequest: There is no such dataset.
        CorruptShard: A dataset file is damaged, or a shard that no sidecar describes cannot be read.
    """
    given = given.refresh() if isinstance(given, GrowingCache) else given
    if isinstance(given, TakenShards):
        cache, given = given, [*given]
        if not given:
            remedy = "Wait for its writers: `refresh()` says how many shards there are."
            raise InvalidRequest("the cache", "no finished shards yet", remedy=remedy)
    return Dataset.of(open_catalog(given), ReadOptions(check, cache, on_error, metadata))
