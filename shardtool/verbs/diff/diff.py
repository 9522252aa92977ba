"""`diff`: compare two datasets, or a dataset with its source. No payload is read if both sides have checksums."""

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
    """Compare two datasets. List added, removed and changed samples, and samples that moved to another split.

    Args:
        a: A dataset file, shard pattern, glob, folder, or shards. For several datasets, pass a list, or a name with
            `{split}`.
        b: Other datasets, or the source of `a`: a folder, an archive or a manifest. For a source, the result lists
            what would change if `create` packed it again.

    Raises:
        InvalidRequest: The dataset does not exist, or the source cannot be compared with it.
        CorruptShard: A dataset file, a sidecar or a shard is damaged.
    """
    started, notes = time.time(), Notes(observer)
    with start_pool(options) as pool:  # fork workers before heavy imports, while forking is fast
        from shardtool.verbs.diff.compare import Exclusions, SideComparison, dataset_and_source, dataset_sides

        datasets = [open_dataset(given) for given in expand_datasets(a)]
        datasets_b = _open_datasets(b)
        if datasets_b is not None and options.join is not None:
            found = f"the second argument {_display_name(b)} is a dataset"
            raise InvalidRequest(option_text("join"), found, expected="the source of the first")
        if datasets_b is None:
            sides, excluded = dataset_and_source(datasets, b, options, pool, notes)
        else:
            sides = dataset_sides(datasets, [open_dataset(given) for given in datasets_b], pool, notes)
            excluded = Exclusions()
        excluded = excluded._replace(ignore_metadata=options.ignore_metadata)
        result = SideComparison(*sides, excluded, pool, notes).result()
    seconds = time.time() - started
    return replace(result, a=_display_name(a), b=_display_name(b), notes=tuple(notes.texts), seconds=seconds)


def _open_datasets(given: Any) -> list[DatasetLike] | None:
    # Return None if `given` is the source of a dataset.
    several = isinstance(given, list | tuple)
    if not several and is_table(given):
        return None
    try:
        datasets = expand_datasets(given)
        for item in datasets:
            find_dataset(item, allow_missing=True)
    except InvalidRequest:
        names = list_names("the dataset or its source", given, EXPECTED_DATASET)
        if all(os.path.isdir(item) or is_url(item) or find_archive(item) for item in names):
            return None
        raise
    return datasets


def _display_name(given: object) -> str:
    names = given if isinstance(given, list | tuple) else [given]
    texts = [to_output_name(os.fspath(item)) if isinstance(item, str | os.PathLike) else "the table" for item in names]
    return format_list([redact_secrets(item) for item in texts], 3)
