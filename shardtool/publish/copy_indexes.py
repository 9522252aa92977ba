"""Copy the valid index files of other tools together with a dataset.

No checksum covers these files, so each is compared with the sidecar of its shard. Existing files at the destination
stay. A web server cannot list files, so nothing is copied from it.
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
from shardtool.storage.remote import address
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.request.observer import Notes
    from shardtool.storage.folders import OutputFolder


def copy_indexes(dataset_file: str, dataset: DatasetFile, folder: OutputFolder, notes: Notes) -> int:
    """Copy the valid index files of single shards; return how many were copied."""
    source = paths.folder_of(dataset_file)
    if address.is_web(source) or dataset.shards_folder:
        return 0
    try:
        names = {*lookup.list_folder_names(source, needed=True)} - {paths.base_name(dataset_file)}
    except AccessRefused:
        notes.add("indexes of other tools were not copied, because the store denies listing")
        return 0
    copied, invalid = 0, list[str]()
    for shard in dataset.shards:
        for name in exports.find_index_names(to_local_name(shard.name), names):
            data = _read_valid_index(paths.join(source, name), paths.join(source, to_local_name(shard.sidecar)))
            if data is None:
                invalid.append(to_output_name(name))
            else:
                copied += _write_new(folder, name, data)
    if invalid:
        found = f"{pluralize(len(invalid), 'index file')} of other tools"
        notes.add(f"{found} not copied, because they do not match their shards: {format_list(sorted(invalid), 3)}")
    return copied


def _read_valid_index(path: str, sidecar: str) -> bytes | None:
    """Return the bytes of a valid index; empty if the file is no index, None if it does not fit."""
    from shardtool.dataset.sidecar_read import parse_sidecar

    try:
        if not (
            export_name := exports.detect_export(paths.base_name(path), *files.read_head(path, exports.PROBE_BYTES))
        ):
            return b""
        shard = indexed_shard.IndexedShard(parse_sidecar(files.read_small(sidecar), sidecar, None, metadata=False))
        data, problem = read_foreign_index(path, export_name, shard)
    except (OSError, CorruptShard):
        return None
    return None if problem else data


def copy_folder_indexes(datasets: Sequence[DatasetFile], source: str, folder: OutputFolder) -> None:
    """Copy the index files that cover a folder, if all shards that they list were copied."""
    if address.is_web(source) or any(dataset.shards_folder for dataset in datasets):
        return
    shards, index_paths = {shard.name: shard.samples for dataset in datasets for shard in dataset.shards}, list[str]()
    for export in exports.FOLDER_EXPORTS:
        counts = export.sample_counts(exports.read_index_list(paths.join(source, export.folder_file)))
        if counts and counts == {name: shards[name] for name in counts if name in shards}:
            with suppress(InvalidRequest):
                index_paths += export.folder_index.encode(datasets)
    data = exports.read_index_list(paths.join(source, huggingface.README_FILE))
    if huggingface.is_own_readme(data) and huggingface.readme_shards(
        data, [*map(to_output_name, lookup.list_folder_names(source))]
    ) == {*shards}:
        index_paths.append(huggingface.README_FILE)
    for path in index_paths:
        _write_new(folder, path, exports.read_index_list(paths.join(source, path)))


def _write_new(folder: OutputFolder, path: str, data: bytes) -> bool:
    subfolder, name = os.path.split(path)
    try:
        folder = open_subfolder(folder, subfolder)
    except OutputExists:
        return False
    if not data or folder.find_entries([name]):
        return False
    folder.create()
    folder.publish_bytes(name, data)
    return True
