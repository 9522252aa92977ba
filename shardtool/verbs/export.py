"""`export`: write the index files of other tools for a dataset."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

from shardtool.dataset.find import find_dataset
from shardtool.errors import InvalidRequest, printable
from shardtool.execute import start_pool
from shardtool.interop.exports import EXPORTS, select_exports
from shardtool.messages import choose_text
from shardtool.pattern import DATASET_SUFFIX, parse_pattern
from shardtool.publish.export_indexes import Exporter, list_index_names
from shardtool.request.dataset_options import ExportOptions
from shardtool.request.observer import Notes, Observer
from shardtool.request.results import ExportResult
from shardtool.request.verb_call import accepts_options
from shardtool.storage.folders import open_folder
from shardtool.storage.paths import base_name, folder_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.values import DatasetLike


@accepts_options(ExportOptions)
def export(
    dataset_file: str | os.PathLike[str], formats: str | Sequence[str], options: ExportOptions, observer: Observer
) -> ExportResult:
    """Write the index files that other tools need for the shards of a dataset.

    Args:
        dataset_file: The path of the dataset file, such as `out.json`.
        formats: One or more of `dali-webdataset`, `energon`, `huggingface`, `timm`, `open-clip`, `wids`,
            `dali-tfrecord` and `tfrecord`.

    Raises:
        InvalidRequest: The request is invalid.
        CorruptShard: The dataset file, a sidecar or a shard is damaged.
        OutputExists: An existing index file has other content, or another run is writing. Nothing was changed.
        OutputFailed: The index files cannot be written.
        WorkerDied: A worker process was killed.
    """
    notes, path = Notes(observer), os.fspath(dataset_file)
    source, name = folder_of(path), base_name(path)
    exports = select_exports([formats] if isinstance(formats, str) else [*formats])
    if not exports:
        raise InvalidRequest(choose_text("formats", "--export"), "no format", expected=f"one of {', '.join(EXPORTS)}")
    with ExitStack() as stack:
        pool = None
        if any(export_format.has_hashes for export_format in exports.values()):
            pool = stack.enter_context(start_pool(options, observer=notes.observer))
        exporter = Exporter(open_folder(source), name, exports, notes)
        exporter.check()
        target = exporter.folder if options.output is None else open_folder(os.fspath(options.output))
        target.create()
        stack.enter_context(target.lock(name.removesuffix(DATASET_SUFFIX)))
        files, kept = exporter.write(target, pool, overwrite=options.overwrite)
    where, folder = printable(os.fspath(dataset_file)), printable(target.path or ".")
    return ExportResult(where, folder, tuple(exports), files, kept, tuple(notes.texts))


def check_index_names(dataset: DatasetLike, formats: Sequence[str]) -> None:
    """Raise an error if two index files would have the same name."""
    found = find_dataset(dataset)
    names = [base_name(path) for path in found.paths]
    exports = select_exports(formats, found.shards[0].format if names else "")
    file = found.dataset_file or (parse_pattern(names).dataset_file if names else "")
    list_index_names(names, exports, base_name(file))
