"""`diff`: what differs between two datasets, or between a dataset and what it was made from.

The library twin of `shardtool diff`. Both sides become `Entries`; keys are joined as bytes, by a hash table of Arrow's,
and all else as numbers, with no object for a sample. Where both sides have checksums, no payload is read.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shardtool.dataset.find import EXPECTED, find_dataset, given_datasets, open_dataset
from shardtool.errors import InvalidRequest, listing, without_secrets
from shardtool.execute import start_pool
from shardtool.request.options import DiffOptions
from shardtool.request.settings import Notes, Observer, by_names
from shardtool.storage.places import is_url
from shardtool.table.kinds import archive_in, is_table
from shardtool.values import Given, given_names, output_text
from shardtool.wording import option

if TYPE_CHECKING:
    from shardtool.request.results import DiffResult


@by_names(DiffOptions)
def diff(a: Given, b: object, options: DiffOptions, observer: Observer) -> DiffResult:
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
        from shardtool.verbs.diff.compare import Comparison, LeftOut, two_sides, with_source

        datasets = [open_dataset(one) for one in given_datasets(a)]
        others = _datasets(b)
        if others is not None and options.join is not None:
            raise InvalidRequest(option("join"), f"{_name(b)} is a dataset", expected="the source of the other dataset")
        if others is None:
            sides, left_out = with_source(datasets, b, options, pool, notes)
        else:
            sides, left_out = two_sides(datasets, [open_dataset(one) for one in others], pool, notes), LeftOut()
        left_out = left_out._replace(metadata=options.ignore_metadata)
        found = Comparison(*sides, left_out, pool, notes).result()
    return replace(found, a=_name(a), b=_name(b), notes=tuple(notes.said), seconds=time.time() - begun)


def _datasets(given: Any) -> list[Given] | None:
    """Return the datasets that are meant; None: it is a folder of samples, a manifest or an archive."""
    several = isinstance(given, list | tuple)
    if not several and is_table(given):
        return None
    try:
        found = given_datasets(given)
        for one in found:
            find_dataset(one, lacking=True)
    except InvalidRequest:
        each = given_names("the dataset or its source", given, EXPECTED)
        if all(os.path.isdir(one) or is_url(one) or archive_in(one) for one in each):
            return None
        raise
    return found


def _name(given: object) -> str:
    names = given if isinstance(given, list | tuple) else [given]
    texts = [output_text(os.fspath(one)) if isinstance(one, str | os.PathLike) else "the table" for one in names]
    return listing([without_secrets(one) for one in texts], 3)
