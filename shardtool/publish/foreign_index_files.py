"""Read the index files of other tools in a folder, with a size limit."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from shardtool.errors import AccessRefused, OutputExists, format_list
from shardtool.interop import exports, huggingface, indexed_shard
from shardtool.messages import export_call_text
from shardtool.storage import files
from shardtool.storage.folders import open_folder

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.interop.exports import ExportFormat
    from shardtool.storage.folders import OutputFolder


def open_subfolder(folder: OutputFolder, names: str) -> OutputFolder:
    """Return a subfolder."""
    for name in names.split("/") if names else ():
        file_info = folder.find_entries([name]).get(name)
        if file_info is not None and not file_info.is_folder:
            raise OutputExists(folder.full_path(name), "not a folder", remedy="Move it to another folder.")
        folder = open_folder(folder.full_path(name))
    return folder


def read_foreign_index(path: str, export_name: str, shard: indexed_shard.IndexedShard) -> tuple[bytes, str]:
    """Return the bytes of a shard's index file, and its problem; empty for a valid index.

    Payload hashes are compared only if `shard` has them.
    """
    limit = shard.limit()
    try:
        data, size = files.read_head(path, limit)
    except (OSError, AccessRefused):  # without list permission, stores deny access to missing objects
        data, size = b"", 0
    return data, f"{size:,} bytes" if size > limit else exports.describe_index_difference(export_name, data, shard)


def read_sample_counts(export: ExportFormat, target: OutputFolder) -> dict[str, int]:
    """Return the sample counts by shard in a folder's index files."""
    subfolder = os.path.dirname(export.folder_file)  # a symbolic link is not followed
    is_outside = subfolder and not all(file_info.is_folder for file_info in target.find_entries([subfolder]).values())
    return {} if is_outside else export.sample_counts(read_or_empty(target, export.folder_file))


def has_own_readme(folder: OutputFolder) -> bool:
    """Return whether the folder has a `README.md` that shardtool wrote."""
    return huggingface.is_own_readme(read_or_empty(folder, huggingface.README_FILE))


def read_or_empty(folder: OutputFolder, path: str) -> bytes:
    """Return the bytes of an output file; empty if it cannot be read."""
    with suppress(OSError):
        return folder.read(path)
    return b""


def find_existing_exports(folder: OutputFolder, old: DatasetFile | None) -> list[str]:
    """Return the `--export` names of the indexes next to an existing dataset."""
    if old is None or not old.shards:
        return []
    own_shards, existing = {shard.name for shard in old.shards}, []
    for name, export in exports.EXPORTS.items():
        if export.folder_file:  # it can list shards of other datasets
            is_there = not own_shards.isdisjoint(read_sample_counts(export, folder))
        else:
            name_of_first = exports.index_name(old.shards[0].name, export)
            is_there = bool(export.suffix) and bool(folder.find_entries([name_of_first]))
        if is_there and export.shard_format == old.format:
            existing.append(name)
    return existing


def export_notes(folder: OutputFolder, old: DatasetFile | None, renewed: Collection[str]) -> Iterable[str]:
    """Return notes on indexes that an append makes incomplete."""
    with_hashes = {name for name in find_existing_exports(folder, old) if exports.EXPORTS[name].has_hashes}
    if stale := sorted(with_hashes.difference(renewed)):
        advice = f"renew them with {export_call_text('', stale, overwrite=False)}, which reads all shards"
        yield f"indexes of other tools ({format_list(stale)}) cover the old shards only: {advice}"
