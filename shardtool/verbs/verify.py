"""`verify`: is a dataset whole? The library twin of `shardtool verify`."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from shardtool.check.look import look
from shardtool.request.observer import Observer
from shardtool.request.options import VerifyOptions

if TYPE_CHECKING:
    from shardtool.check.look import Report
    from shardtool.values import Given


def verify(dataset: Given, options: VerifyOptions | None = None, *, observer: Observer | None = None) -> Report:
    """Return what is wrong with a dataset. Nothing is written, but for `repair`.

    Args:
        dataset: A dataset file, a shard pattern, a glob, a folder, or shards.
        options: See `VerifyOptions`.
        observer: Gets progress.

    Raises:
        InvalidRequest: There is no such dataset, or options make no sense.
        CorruptShard: The dataset file names what lies elsewhere, or is none: nothing could be read.
        OutputFailed: The file system refuses to take what was mended.
    """
    options, observer, begun = options or VerifyOptions(), observer or Observer(), time.time()
    if options.repair:
        from shardtool.verbs.repair import repair

        report = repair(dataset, options, observer)
    else:
        report, _ = look(dataset, options, observer)
    return replace(report, seconds=time.time() - begun)
