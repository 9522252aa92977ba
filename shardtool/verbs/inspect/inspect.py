"""`inspect`: what is in a dataset. The library twin of `shardtool inspect`.

It reads the dataset file and the sidecars, one at a time, and of the shards only a seeded few images and labels. Shards
without a sidecar are walked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.dataset.opened import open_dataset
from shardtool.dataset.several import given_datasets
from shardtool.errors import CorruptShard, current_folder
from shardtool.request.choices import given_options
from shardtool.request.options import InspectOptions
from shardtool.request.results import Observer
from shardtool.verbs.inspect.overview import Overview
from shardtool.verbs.inspect.summary import ShardSpreads, summarize, together

if TYPE_CHECKING:
    from shardtool.dataset.opened import OpenedDataset
    from shardtool.values import Given
    from shardtool.verbs.inspect.summary import Summary


@current_folder()
def inspect(dataset: Given, options: InspectOptions | None = None, *, observer: Observer | None = None) -> Summary:
    """Return what is in a dataset, or in several.

    Args:
        dataset: A dataset file, a shard pattern, a glob, a folder, or shards; with `{split}` in a name, or of several
            such in a list, the summary has `datasets`, those of each.
        options: See `InspectOptions`.
        observer: Hears of progress.

    Raises:
        InvalidRequest: There is none.
        CorruptShard: The dataset file is damaged, or no shard can be read.
    """
    options, observer, spreads = given_options(options, InspectOptions), observer or Observer(), ShardSpreads()
    opened = [open_dataset(one) for one in given_datasets(dataset)]
    summaries = [_summary(one, options, observer, spreads) for one in opened]
    return summaries[0] if len(summaries) == 1 else together(summaries, spreads)


def _summary(dataset: OpenedDataset, options: InspectOptions, observer: Observer, spreads: ShardSpreads) -> Summary:
    overview = Overview(dataset, options, observer)
    for _ in overview.read():
        pass
    overview.look()
    summary = summarize(overview)
    if not overview.counts:
        where, problem = dataset.found.dataset_file or dataset.shards[0].path, summary.problems[0]
        found = f"no shard can be read: {problem.where}: {problem.message}"
        raise CorruptShard(where, found, remedy="Get the shards again.")
    spreads.add(overview)
    return summary
