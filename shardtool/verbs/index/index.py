"""`index`: sidecars and dataset file for shards that any tool made. The library twin of `shardtool index`."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

from shardtool.dataset.find import find_dataset
from shardtool.dataset.shard_file import shard_format
from shardtool.dataset.walk import survey
from shardtool.errors import InvalidRequest, current_folder, printable
from shardtool.execute.local import start_pool
from shardtool.execute.pool import Needs, a_few
from shardtool.interop.export_formats import EXPORTS, wanted_exports
from shardtool.pattern import DATASET_SUFFIX, parse_pattern
from shardtool.publish.exporter import Exporter, index_names
from shardtool.request.choices import given_options
from shardtool.request.options import ExportOptions, IndexOptions
from shardtool.request.results import ExportResult, Notes, Observer
from shardtool.storage.folders import open_folder
from shardtool.storage.places import base_name, folder_of
from shardtool.verbs.index.indexer import Indexer
from shardtool.verbs.index.target import index_target
from shardtool.wording import either

if TYPE_CHECKING:
    from collections.abc import Sequence

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


# `export`: the indexes of other tools. The library twin of `shardtool index --export`.


@current_folder()
def export(
    dataset_file: str | os.PathLike[str],
    formats: str | Sequence[str],
    options: ExportOptions | None = None,
    *,
    observer: Observer | None = None,
) -> ExportResult:
    """Write the index files that other tools want for the shards of a dataset.

    Args:
        dataset_file: Such as `out.json`.
        formats: `dali-webdataset`, `energon`, `huggingface`, `timm`, `open-clip`, `wids`, `dali-tfrecord` or
            `tfrecord`; one or several.
        options: See `ExportOptions`.
        observer: Gets progress, and notes for the user.

    Raises:
        InvalidRequest: The request makes no sense.
        CorruptShard: The dataset file, a sidecar or a shard is damaged.
        OutputExists: There are other files of these names, or another run is writing here; nothing was touched.
        OutputFailed: They cannot be written.
        WorkerDied: A worker was killed.
    """
    options = given_options(options, ExportOptions)
    notes = Notes(observer or Observer())
    given = os.fspath(dataset_file)
    source, name = folder_of(given), base_name(given)
    wanted = wanted_exports([formats] if isinstance(formats, str) else [*formats])
    if not wanted:
        raise InvalidRequest(either("formats", "--export"), "no format", expected=f"one of {', '.join(EXPORTS)}")
    with ExitStack() as stack:
        pool = None
        if any(one.hashed for one in wanted.values()):
            pool = stack.enter_context(start_pool(options))
        exporter = Exporter(open_folder(source), name, wanted, notes)
        exporter.check()
        target = exporter.folder if options.output is None else open_folder(os.fspath(options.output))
        target.ready()
        stack.enter_context(target.lock(name.removesuffix(DATASET_SUFFIX)))
        files, kept = exporter.write(target, pool, overwrite=options.overwrite)
    where, folder = printable(os.fspath(dataset_file)), printable(target.path or ".")
    return ExportResult(where, folder, tuple(wanted), files, kept, tuple(notes.said))


def check_names(dataset: Given, formats: Sequence[str]) -> None:
    """Check, before shards are indexed, that their indexes for other tools can have names of their own.

    Raises:
        InvalidRequest: They cannot, they are indexes of other shards, or there are no such shards.
    """
    found = find_dataset(dataset)
    names = [base_name(path) for path in found.shards]
    wanted = wanted_exports(formats, shard_format(found.shards[0]) if names else "")
    file = found.dataset_file or (parse_pattern(names).dataset_file if names else "")
    index_names(names, wanted, base_name(file))
