"""`diff`: what differs between two datasets, or between a dataset and what it was made from.

The library twin of `shardtool diff`. Both sides become `Entries`; keys are joined as bytes, by a hash table of Arrow's,
and all else as numbers, with no object for a sample. Where both sides have checksums, no payload is read.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shardtool.dataset.expand import expand_datasets
from shardtool.dataset.find import EXPECTED_DATASET, find_dataset, open_dataset
from shardtool.errors import InvalidRequest, format_list, redact_secrets
from shardtool.execute import start_pool
from shardtool.messages import option_text
from shardtool.names import list_names, to_output_name
from shardtool.request.dataset_options import DiffOptions
from shardtool.request.observer import Notes, Observer
from shardtool.request.verb_call import accepts_options
from shardtool.storage.remote.address import is_url
from shardtool.table.detect import find_archive, is_table

if TYPE_CHECKING:
    from shardtool.request.results import DiffResult
    from shardtool.values import DatasetLike


@accepts_options(DiffOptions)
def diff(a: DatasetLike, b: object, options: DiffOptions, observer: Observer) -> DiffResult:
    """Return what differs between two datasets: samples that only one has, that changed, or are in another split.

    Args:
        a: A dataset file, a shard pattern, a glob, a folder, or shards; several, such as all splits, with `{split}` in
            a name or in a list.
        b: The same; or what `a` was made from, a folder or a manifest, as it is now: then what differs is what
            `create` would change.
        options: See `DiffOptions`.
        observer: Gets progress, and what the user should know.

    Raises:
        InvalidRequest: There is no such dataset, or the source cannot be compared with it.
        CorruptShard: A dataset file, a sidecar or a shard is damaged.
    """
    begun, notes = time.time(), Notes(observer)
    with start_pool(options) as pool:  # forked before anything heavy is imported
        from shardtool.verbs.diff.compare import SideComparison
        from shardtool.verbs.diff.sides import Uncompared, dataset_and_source, dataset_sides

        datasets = [open_dataset(one) for one in expand_datasets(a)]
        others = _open_datasets(b)
        if others is not None and options.join is not None:
            raise InvalidRequest(
                option_text("join"), f"{_display_name(b)} is a dataset", expected="the source of the other dataset"
            )
        if others is None:
            sides, left_out = dataset_and_source(datasets, b, options, pool, notes)
        else:
            sides, left_out = dataset_sides(datasets, [open_dataset(one) for one in others], pool, notes), Uncompared()
        left_out = left_out._replace(metadata=options.ignore_metadata)
        found = SideComparison(*sides, left_out, pool, notes).result()
    return replace(found, a=_display_name(a), b=_display_name(b), notes=tuple(notes.said), seconds=time.time() - begun)


def _open_datasets(given: Any) -> list[DatasetLike] | None:
    """Return the datasets that are meant; None: it is a folder of samples, a manifest or an archive."""
    several = isinstance(given, list | tuple)
    if not several and is_table(given):
        return None
    try:
        found = expand_datasets(given)
        for one in found:
            find_dataset(one, lacking=True)
    except InvalidRequest:
        each = list_names("the dataset or its source", given, EXPECTED_DATASET)
        if all(os.path.isdir(one) or is_url(one) or find_archive(one) for one in each):
            return None
        raise
    return found


def _display_name(given: object) -> str:
    names = given if isinstance(given, list | tuple) else [given]
    texts = [to_output_name(os.fspath(one)) if isinstance(one, str | os.PathLike) else "the table" for one in names]
    return format_list([redact_secrets(one) for one in texts], 3)
