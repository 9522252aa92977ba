"""Copy the valid index files of other tools together with a dataset.

No checksum covers these files, so each is compared with the sidecar of its shard. A file that exists at the
destination stays. A web server lists no files, so nothing is copied from there.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from shardtool.errors import AccessRefused, CorruptShard, InvalidRequest, OutputExists, format_list
from shardtool.interop import exports, huggingface, indexed_shard
from shardtool.names import to_local_name, to_output_name
from shardtool.publish.foreign_index_files import open_subfolder, read_foreign_index
from shardtool.storage import files, lookup, paths
from shardtool.storage import paths as storage_paths
from shardtool.storage.remote import address
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.request.observer import Notes
    from shardtool.storage.folders import OutputFolder


def copy_indexes(dataset_file: str, dataset: DatasetFile, folder: OutputFolder, notes: Notes) -> int:
    """Copy the index files that lead into a shard, where they are right; return how many were.

    Args:
        dataset_file: Where the dataset file is that the files lie beside.
        dataset: What it says.
        folder: The folder that they are copied to.
        notes: Gets what was not copied.

    Raises:
        OutputFailed: One cannot be written.
    """
    source = paths.folder_of(dataset_file)
    if address.is_web(source) or dataset.shards_folder:
        return 0
    try:
        names = {*lookup.list_folder_names(source, needed=True)} - {paths.base_name(dataset_file)}
    except AccessRefused:
        notes.add("indexes of other tools were not looked for: the store does not let us list")
        return 0
    copied, wrong = 0, list[str]()
    for shard in dataset.shards:
        for name in exports.find_index_names(to_local_name(shard.name), names):
            data = _read_valid_index(paths.join(source, name), paths.join(source, to_local_name(shard.sidecar)))
            if data is None:
                wrong.append(to_output_name(name))
            else:
                copied += _write_new(folder, name, data)
    if wrong:
        found = f"{pluralize(len(wrong), 'index file')} of other tools"
        notes.add(f"{found} not copied, for they are not those of their shards: {format_list(sorted(wrong), 3)}")
    return copied


def _read_valid_index(path: str, sidecar: str) -> bytes | None:
    """Return the bytes of a shard's index; empty: the file is something else; None: it is not that of this shard."""
    from shardtool.dataset.sidecar_read import parse_sidecar

    try:
        if not (form := exports.detect_export(paths.base_name(path), *files.read_head(path, exports.PROBE_BYTES))):
            return b""
        shard = indexed_shard.IndexedShard(parse_sidecar(files.read_small(sidecar), sidecar, None, metadata=False))
        data, wrong = read_foreign_index(path, form, shard)
    except (OSError, CorruptShard):
        return None
    return None if wrong else data


def copy_folder_indexes(datasets: Sequence[DatasetFile], source: str, folder: OutputFolder) -> None:
    """Copy the files of other tools that list the shards of a folder, where all of those are copied.

    Args:
        datasets: The datasets of one folder that were copied.
        source: That folder.
        folder: The folder that they were copied to.

    Raises:
        OutputFailed: One cannot be written.
    """
    if address.is_web(source) or any(dataset.shards_folder for dataset in datasets):
        return
    shards, paths = {shard.name: shard.samples for dataset in datasets for shard in dataset.shards}, list[str]()
    for once in exports.FOLDER_INDEXES.values():
        counts = once.counts(exports.read_index_list(storage_paths.join(source, once.info)))
        if counts and counts == {name: shards[name] for name in counts if name in shards}:
            with suppress(InvalidRequest):
                paths += once.encode(datasets)
    data = exports.read_index_list(storage_paths.join(source, huggingface.README_FILE))
    if huggingface.is_own_readme(data) and huggingface.readme_shards(
        data, [*map(to_output_name, lookup.list_folder_names(source))]
    ) == {*shards}:
        paths.append(huggingface.README_FILE)
    for path in paths:
        _write_new(folder, path, exports.read_index_list(storage_paths.join(source, path)))


def _write_new(folder: OutputFolder, path: str, data: bytes) -> bool:
    """Write a file where there is none of its name; return whether that was done."""
    below, name = os.path.split(path)
    try:
        folder = open_subfolder(folder, below)
    except OutputExists:
        return False
    if not data or folder.facts([name]):
        return False
    folder.ready()
    folder.publish(folder.stage_bytes(name, data))
    return True
