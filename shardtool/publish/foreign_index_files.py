"""Read the index files of other tools, copy valid ones with a dataset, and delete stale ones.

Index files have no checksums, so they are compared with sidecars. They are not copied from web servers, which cannot
list files.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from shardtool.errors import AccessRefused, CorruptShard, InvalidRequest, OutputExists, format_list
from shardtool.interop import exports, huggingface, indexed_shard
from shardtool.messages import export_call_text, flag_text
from shardtool.names import to_local_name, to_output_name
from shardtool.storage import files, paths
from shardtool.storage.folders import open_folder
from shardtool.storage.remote import address
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.interop.exports import ExportFormat
    from shardtool.pattern import ShardPattern
    from shardtool.request.observer import Notes
    from shardtool.storage.folders import OutputFolder


def open_subfolder(folder: OutputFolder, names: str) -> OutputFolder:
    """Return the subfolder with the path `names`. Raise an error if a component is a file."""
    for name in names.split("/") if names else ():
        file_info = folder.find_entries([name]).get(name)
        if file_info is not None and not file_info.is_folder:
            raise OutputExists(folder.full_path(name), "not a folder", remedy="Move it to another folder.")
        folder = open_folder(folder.full_path(name))
    return folder


def read_foreign_index(path: str, export_name: str, shard: indexed_shard.IndexedShard) -> tuple[bytes, str]:
    """Return the content of a shard's index file, and the problem of the file ("" if it is valid)."""
    limit = shard.limit()
    try:
        data, size = files.read_head(path, limit)
    except (OSError, AccessRefused):  # a store may deny access to a missing object
        data, size = b"", 0
    return data, f"{size:,} bytes" if size > limit else exports.describe_index_difference(export_name, data, shard)


def read_sample_counts(export: ExportFormat, target: OutputFolder) -> dict[str, int]:
    """Return the sample count of each shard in a folder's index."""
    subfolder = os.path.dirname(export.folder_file)  # ignore an index whose folder is a symbolic link
    is_outside = subfolder and not all(file_info.is_folder for file_info in target.find_entries([subfolder]).values())
    return {} if is_outside else export.sample_counts(read_or_empty(target, export.folder_file))


def has_own_readme(folder: OutputFolder) -> bool:
    """Return whether the folder has a `README.md` that shardtool wrote."""
    return huggingface.is_own_readme(read_or_empty(folder, huggingface.README_FILE))


def read_or_empty(folder: OutputFolder, path: str) -> bytes:
    """Return the content of an output file, or b"" if it is missing or not regular."""
    with suppress(OSError):
        return folder.read(path)
    return b""


def find_existing_exports(folder: OutputFolder, old: DatasetFile | None) -> list[str]:
    """Return the `--export` formats whose index files exist for the dataset `old`."""
    if old is None or not old.shards:
        return []
    shards = {shard.name for shard in old.shards}
    existing = []
    for name, export in exports.EXPORTS.items():
        if export.folder_file:  # the file may belong to another dataset in the folder
            exists = not shards.isdisjoint(read_sample_counts(export, folder))
        else:
            name_of_first = exports.index_name(old.shards[0].name, export)
            exists = bool(export.suffix) and bool(folder.find_entries([name_of_first]))
        if exists and export.shard_format == old.format:
            existing.append(name)
    return existing


def export_notes(folder: OutputFolder, old: DatasetFile | None, renewed: Collection[str]) -> Iterable[str]:
    """Yield a note if indexes with hashes do not list the appended samples.

    This run writes the formats in `renewed`, so there is no note about them.
    """
    with_hashes = {name for name in find_existing_exports(folder, old) if exports.EXPORTS[name].has_hashes}
    if stale := sorted(with_hashes.difference(renewed)):
        advice = f"update them with {export_call_text('', stale, overwrite=False)}, which reads all shards"
        yield f"the indexes for {format_list(stale)} do not include the appended shards: {advice}"


def copy_indexes(dataset_file: str, dataset: DatasetFile, folder: OutputFolder, notes: Notes) -> int:
    """Copy the valid index files of each shard. Return the number of copied files."""
    source = paths.folder_of(dataset_file)
    if address.is_web(source) or dataset.shards_folder:
        return 0
    try:
        names = {*files.list_folder_names(source, needed=True)} - {paths.base_name(dataset_file)}
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
    """Return the content of an index file, None if it does not match its shard, or b"" if the file is not an index."""
    from shardtool.dataset.sidecar_read import parse_sidecar

    try:
        export_name = exports.detect_export(paths.base_name(path), *files.read_head(path, exports.PROBE_BYTES))
        if not export_name:
            return b""
        shard = indexed_shard.IndexedShard(parse_sidecar(files.read_small(sidecar), sidecar, None, metadata=False))
        data, problem = read_foreign_index(path, export_name, shard)
    except (OSError, CorruptShard):
        return None
    return None if problem else data


def copy_folder_indexes(datasets: Sequence[DatasetFile], source: str, folder: OutputFolder) -> None:
    """Copy each folder index from `source` to `folder`, if the index lists only shards of `datasets`."""
    if address.is_web(source) or any(dataset.shards_folder for dataset in datasets):
        return
    shards, index_paths = {shard.name: shard.samples for dataset in datasets for shard in dataset.shards}, list[str]()
    for export in exports.FOLDER_EXPORTS:
        counts = export.sample_counts(exports.read_index_list(paths.join(source, export.folder_file)))
        if counts and counts == {name: shards[name] for name in counts if name in shards}:
            with suppress(InvalidRequest):
                index_paths += export.folder_index.encode(datasets)
    data = exports.read_index_list(paths.join(source, huggingface.README_FILE))
    if huggingface.is_own_readme(data):
        names = [*map(to_output_name, files.list_folder_names(source))]
        if huggingface.readme_shards(data, names) == {*shards}:
            index_paths.append(huggingface.README_FILE)
    for path in index_paths:
        _write_new(folder, path, exports.read_index_list(paths.join(source, path)))


def _write_new(folder: OutputFolder, path: str, data: bytes) -> bool:
    """Write a file. Return False if the file exists, or `data` is empty."""
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


class StaleIndexes:
    """Marks and deletes index files of other tools that do not match the shards in an output folder.

    Args:
        pattern: The shard pattern, or None to ignore all index files.
        appends: Whether all existing shards are kept, so a folder's index stays valid, but lacks new shards.

    Attributes:
        removed: The `--export` format of each deleted file.
    """

    def __init__(
        self, folder: OutputFolder, pattern: ShardPattern | None, existing_names: Iterable[str], *, appends: bool
    ) -> None:
        self.folder, self._appends = folder, appends
        self.removed: dict[str, str] = {}
        # Maps each shard to its index files, and each index file to its export format.
        self._files: dict[str, dict[str, str]] = {}
        self._stale: dict[str, str] = {}
        # Maps each export format to the sample count of each shard.
        self._counts: dict[str, dict[str, int]] = {}
        self._owns = (lambda _: False) if pattern is None else pattern.owns
        if pattern is None:
            return
        ending = "." + pattern.shard(0).rpartition(".")[2]
        for name in existing_names:
            owned = [stem + ending for stem in exports.shard_stems(name) if pattern.owns(stem + ending)]
            if owned and name != pattern.dataset_file and (export_name := self._detect_export(name)):
                self._files.setdefault(owned[0], {})[name] = export_name
        for export in exports.FOLDER_EXPORTS:
            counts = read_sample_counts(export, folder)
            if own_counts := {name: count for name, count in counts.items() if pattern.owns(name)}:
                self._counts[export.name] = own_counts

    def _detect_export(self, name: str) -> str:
        with suppress(OSError):
            path = self.folder.full_path(name)
            return exports.detect_export(name, *files.read_head(path, exports.PROBE_BYTES, files.READ_PLAIN))
        return ""

    def check_no_leftovers(self, existing_names: Collection[str]) -> None:
        """Raise an error if there are index files without shards."""
        leftovers = sorted(
            name for shard, names in self._files.items() if shard not in existing_names for name in names
        )
        if leftovers:
            found = f"{pluralize(len(leftovers), 'file')} with indexes of earlier shards: {format_list(leftovers, 3)}"
            expected = "no files that readers would use as indexes of the new shards"
            remedy = f"Delete these files, for example with {flag_text('overwrite')}, or choose another name."
            raise OutputExists(self.folder.path or ".", found, expected=expected, remedy=remedy)

    def compare(self, shard: str, sidecar: Callable[[], bytes], *, written: bool) -> None:
        """Mark the shard's index files and the folder's indexes if they do not match the shard.

        If this run wrote the shard (`written`), mark index files with hashes, too.
        """
        files = self._files.pop(shard, {})
        counts = {} if self._appends else self._counts
        for name, export_name in [*files.items()]:
            if written and exports.EXPORTS[export_name].has_hashes:
                self._stale[name] = files.pop(name)
        if not files and not counts:
            return
        from shardtool.dataset.sidecar_read import parse_sidecar

        try:
            indexed = indexed_shard.IndexedShard(parse_sidecar(sidecar(), shard, None, metadata=False))
        except CorruptShard:
            self._stale |= files
            if counts:
                raise
            return
        for name, export_name in files.items():
            if read_foreign_index(self.folder.full_path(name), export_name, indexed)[1]:
                self._stale[name] = export_name
        samples = len(indexed.index)
        self._mark_folder_indexes([name for name, listed in counts.items() if listed.pop(shard, 0) != samples])

    def mark_shard(self, shard: str) -> None:
        """Mark a shard's index files, and the folder's indexes that list the shard."""
        self._stale |= self._files.pop(shard, {})
        if not self._appends:
            self._mark_folder_indexes([export_name for export_name, counts in self._counts.items() if shard in counts])

    def _mark_folder_indexes(self, export_names: Iterable[str]) -> None:
        for export_name in export_names:
            del self._counts[export_name]
            self._stale[exports.EXPORTS[export_name].folder_file] = export_name

    def mark_all_except(self, shards: Iterable[str]) -> None:
        """Mark the index files of shards that are not in `shards`, and the folder's indexes that list such shards."""
        current_shards = {*map(to_local_name, shards)}
        for shard in sorted(set(self._files) - current_shards):
            self._stale |= self._files.pop(shard)
        self._mark_folder_indexes([name for name, counts in self._counts.items() if counts.keys() - current_shards])
        files_in_folder = set(self.folder.names())
        has_readme = huggingface.README_FILE in files_in_folder
        data = read_or_empty(self.folder, huggingface.README_FILE) if has_readme else b""
        if huggingface.is_own_readme(data):
            names = {name for name in files_in_folder if not self._owns(name)} | current_shards
            listed_shards = {name for name in huggingface.readme_shards(data, names) if self._owns(name)}
            if listed_shards and listed_shards != current_shards:
                self._stale[huggingface.README_FILE] = "huggingface"

    def remove_marked(self) -> None:
        """Delete the marked files. Call this before a shard changes."""
        for name in self._stale:
            subfolder, _, file_name = name.rpartition("/")
            (open_folder(self.folder.full_path(subfolder)) if subfolder else self.folder).remove([file_name])
        self.removed |= self._stale
        self._stale = {}

    def removal_notes(self, dataset_file: str, renewed: Collection[str] = ()) -> Iterator[str]:
        """Yield a note about the deleted index files, except the formats in `renewed`."""
        if removed := {name: export_name for name, export_name in self.removed.items() if export_name not in renewed}:
            summary = f"{pluralize(len(removed), 'file')} of other tools' indexes deleted, because their shards changed"
            advice = export_call_text(dataset_file, sorted({*removed.values()}), overwrite=True)
            yield f"{summary} ({format_list([*removed], 3)}): recreate them with {advice}"
