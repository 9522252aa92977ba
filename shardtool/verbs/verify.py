"""`verify`: is a dataset whole? The library twin of `shardtool verify`."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from shardtool.check.look import look, open_pool
from shardtool.check.several import look_at_all
from shardtool.dataset.several import given_datasets
from shardtool.errors import current_folder
from shardtool.request.observer import Observer
from shardtool.request.options import VerifyOptions
from shardtool.request.python_types import given_options

if TYPE_CHECKING:
    from shardtool.check.look import Looked, Report
    from shardtool.execute.pool import Pool
    from shardtool.values import Given


@current_folder()
def verify(dataset: Given, options: VerifyOptions | None = None, *, observer: Observer | None = None) -> Report:
    """Return what is wrong with a dataset, or with several. Nothing is written, but for `repair`.

    Args:
        dataset: A dataset file, a shard pattern, a glob, a folder, or shards; with `{split}` in a name, or of several
            such in a list, the report is that of all, and its `datasets` those of each.
        options: See `VerifyOptions`.
        observer: Gets progress.

    Raises:
        InvalidRequest: There is no such dataset, or options make no sense.
        CorruptShard: The dataset file names what lies elsewhere, or is none: nothing could be read.
        OutputFailed: The file system refuses to take what was mended.
    """
    options, observer, begun = given_options(options, VerifyOptions), observer or Observer(), time.time()
    givens = given_datasets(dataset)
    if len(givens) == 1:
        report = _look(givens[0], options, observer).report
    else:
        with nullcontext() if options.repair else open_pool(options) as pool:
            report = look_at_all(
                givens, lambda given, contents: _look(given, options, observer, pool, contents=contents)
            )
    return replace(report, seconds=time.time() - begun)


def _look(
    dataset: Given, options: VerifyOptions, observer: Observer, pool: Pool | None = None, *,
    contents: bool = False,
) -> Looked:  # fmt: skip
    """Look at one dataset, and mend it where that is asked for."""
    begun = time.time()
    if options.repair:
        from shardtool.verbs.repair import repair

        looked = repair(dataset, options, observer, contents=contents)
    else:
        looked = look(dataset, options, observer, pool, contents=contents)
    return replace(looked, report=replace(looked.report, seconds=time.time() - begun))
