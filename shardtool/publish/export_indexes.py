"""Write and update the index files of other tools for a dataset.

All files are staged before the first is published, so an error while staging changes no file.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from shardtool.dataset.dataset_file import RUN_VERIFY, DatasetFile, ShardEntry, is_dataset_content, parse_dataset
from shardtool.dataset.expand import splits_in
from shardtool.dataset.find import check_folders_inside
from shardtool.errors import CorruptShard, InvalidRequest, OutputExists, format_list, os_error_text
from shardtool.interop import exports, huggingface, indexed_shard
from shardtool.messages import export_text, flag_text, option_text, recreate_hint
from shardtool.names import to_local_name, to_output_name
from shardtool.pattern import DATASET_SUFFIX, ShardPattern, is_compressed_name
from shardtool.publish.foreign_index_files import (
    find_existing_exports,
    open_subfolder,
    read_or_empty,
    read_sample_counts,
)
from shardtool.publish.listed_files import read_listed_sidecar
from shardtool.storage import paths
from shardtool.storage.folders import open_folder
from shardtool.storage.staging import DurableFile
from shardtool.units import already_exist_text, pluralize

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from shardtool.dataset.shard_index import ShardIndex
    from shardtool.execute.pool import Pool
    from shardtool.interop.exports import ExportFormat
    from shardtool.request.observer import Notes
    from shardtool.storage.folders import OutputFolder


# Path, content, `may_replace` (replace an existing file that differs, even without `overwrite`), and `is_user_file`
# (never replace an existing file).
IndexFile = tuple[str, bytes, bool, bool]


def _encode_folder_index(
    export: ExportFormat, datasets: Sequence[DatasetFile], target: OutputFolder
) -> tuple[dict[str, bytes], bool]:
    folder_index = export.folder_index
    files, counts = folder_index.encode(datasets), read_sample_counts(export, target)
    check_other_shards(export, target, counts.keys() - {shard.name for dataset in datasets for shard in dataset.shards})
    earlier = [_find_listed_state(dataset, counts) for dataset in datasets]
    old_files = folder_index.encode([dataset for dataset in earlier if dataset is not None])
    old_files.pop(folder_index.user_file, None)
    return files, all(read_or_empty(target, path) == data for path, data in old_files.items())


def _find_listed_state(dataset: DatasetFile, listed: Collection[str]) -> DatasetFile | None:
    """Return the newest state of `dataset` (before or after an append) whose shards are all in `listed`, or None."""
    for shard_count in (len(dataset.shards), *reversed(dataset.appends)):
        if all(shard.name in listed for shard in dataset.shards[:shard_count] if shard.samples):
            return replace(dataset, shards=dataset.shards[:shard_count])
    return None


def check_other_shards(export: ExportFormat, target: OutputFolder, others: Iterable[str]) -> None:
    """Raise an error if one of `others` (shards of other datasets in an index) exists or is in a subfolder."""
    existing_names = {to_output_name(name) for name in target.names()}
    if others := sorted(name for name in others if "/" in name or name in existing_names):
        found = f"an index of other shards: {format_list(others, 3)}"
        expected = "one dataset per folder, or the splits of one dataset"
        remedy = f"Use one folder per dataset, or delete {os.path.dirname(export.folder_file) or export.folder_file}."
        raise OutputExists(target.full_path(export.folder_file), found, expected=expected, remedy=remedy)


def _discard_staged(folders: Mapping[str, OutputFolder], paths: Sequence[str]) -> None:
    for folder in folders.values():
        folder.discard_staged(map(os.path.basename, paths))


def _keep_or_refuse(folder: OutputFolder, name: str, data: bytes, *, overwrite: bool) -> bool:
    file_info = folder.find_entries([name]).get(name)
    if file_info is None:
        return False
    where, remedy = folder.full_path(name), f"choose another folder with {option_text('output')}."
    if file_info.special:
        raise OutputExists(where, file_info.special, remedy=remedy.capitalize())
    if file_info.size == len(data) and read_or_empty(folder, name) == data:
        return True
    if not overwrite:
        remedy = f"Replace it with {flag_text('overwrite')}, or {remedy}"
        raise OutputExists(where, "an existing file with other content", remedy=remedy)
    if name.endswith(DATASET_SUFFIX) and is_dataset_content(read_or_empty(folder, name)):
        raise OutputExists(where, "a dataset file", remedy=remedy.capitalize())
    return False


_FOLDER_LOCK = ".exported"


def check_index_files(
    outputs: Sequence[tuple[ShardPattern, int]], requested: Mapping[str, ExportFormat], *, overwrite: bool
) -> None:
    """Raise an error if index files of planned shards cannot be written. `outputs` are patterns and shard counts."""
    for pattern, shard_count in outputs:
        folder = open_folder(pattern.folder)
        names = list_index_names(map(pattern.shard, range(shard_count)), requested, pattern.dataset_file)
        for export in [export for export in requested.values() if export.folder_file]:
            listed = read_sample_counts(export, folder)
            others = [name for name in listed if not any(own_pattern.owns(name) for own_pattern, _ in outputs)]
            check_other_shards(export, folder, others)
            names.append(export.folder_file)
        if not overwrite and (existing_files := [*folder.find_entries(names)]):
            found = f"{already_exist_text(len(existing_files), 'file')}: {format_list(existing_files, 3)}"
            remedy = f"Choose another folder, or replace these files with {flag_text('overwrite')}."
            raise OutputExists(folder.path or ".", found, remedy=remedy)


class Exporter:
    """Writes index files for one dataset. The caller of `write` must hold the lock of the dataset."""

    def __init__(self, folder: OutputFolder, name: str, requested: Mapping[str, ExportFormat], notes: Notes) -> None:
        self.folder, self.name, self.requested, self.observer = folder, name, requested, notes.observer
        self._note = notes.add_new

    def check(self) -> DatasetFile:
        """Parse the dataset file. Raise an error if the requested indexes cannot be written."""
        where = self.folder.full_path(self.name)
        if not self.name.endswith(DATASET_SUFFIX):
            raise InvalidRequest(where or "the dataset", "not a dataset file", expected="a name such as out.json")
        try:
            data = self.folder.read(self.name)
        except OSError as error:
            raise InvalidRequest(where, os_error_text(error), expected="a dataset file") from None
        dataset = parse_dataset(data, where)
        check_folders_inside(where, {dataset.shards_folder})
        exports.select_exports([*self.requested], dataset.format)
        if compressed := [shard.name for shard in dataset.shards if is_compressed_name(shard.name)]:
            expected = "uncompressed shards, because indexes contain offsets"
            raise InvalidRequest(compressed[0], "a compressed shard", expected=expected)
        return dataset

    def write(self, target: OutputFolder, pool: Pool | None = None, *, overwrite: bool) -> tuple[tuple[str, ...], int]:
        """Publish all index files. Return their names, and the number of existing files kept.

        Only indexes with hashes of payloads need `pool`.
        """
        # Check again, because the dataset may have changed before it was locked.
        dataset, requested = self.check(), self.requested.values()
        self._note_limits(dataset, target)
        dataset_file = self.name if target == self.folder else ""
        names = list_index_names([shard.name for shard in dataset.shards], self.requested, dataset_file)
        has_readmes = any(export.has_readme for export in requested)
        with ExitStack() as stack:
            if has_readmes or any(export.folder_file for export in requested):
                stack.enter_context(target.lock(_FOLDER_LOCK))
            folder_files = self._make_folder_files(dataset, target)
            names += [path for path, *_ in folder_files]
            folders = {subfolder: open_subfolder(target, subfolder) for subfolder in ("", *map(os.path.dirname, names))}
            stack.callback(_discard_staged, folders, names)
            _discard_staged(folders, names)
            kept, staged = 0, dict[str, list[DurableFile]]()
            for path, data, may_replace, is_user_file in chain(self._encode_shard_indexes(dataset, pool), folder_files):
                subfolder, name = os.path.split(path)
                folder = folders[subfolder]
                if (is_user_file and folder.find_entries([name])) or _keep_or_refuse(
                    folder, name, data, overwrite=overwrite or may_replace
                ):
                    kept += 1
                    continue
                if subfolder:
                    folder.create()
                staged.setdefault(subfolder, []).append(folder.stage_bytes(name, data))
            for subfolder, files in staged.items():
                folders[subfolder].publish(*files)
        return tuple(names), kept

    def _encode_shard_indexes(self, dataset: DatasetFile, pool: Pool | None) -> Iterator[IndexFile]:
        for shard in self._read_shards(dataset, pool):
            for export in self.requested.values():
                if export.suffix:
                    yield exports.index_name(shard.name, export), export.shard_index.encode(shard), False, False

    def _make_folder_files(self, dataset: DatasetFile, target: OutputFolder) -> list[IndexFile]:
        index_files, requested = list[IndexFile](), self.requested.values()
        for export in requested:
            if export.folder_file:
                covered = self._list_covered_datasets(export, dataset, target)
                files, may_replace = _encode_folder_index(export, covered, target)
                user_file = export.folder_index.user_file
                index_files += [(path, data, may_replace, path == user_file) for path, data in files.items()]
        for export in requested if target == self.folder else ():
            if export.has_readme and (data := self._make_readme(export, dataset)) is not None:
                index_files.append((huggingface.README_FILE, data, True, False))
        return index_files

    def _note_limits(self, dataset: DatasetFile, target: OutputFolder) -> None:
        for name, export in self.requested.items():
            small_shards = [shard.name for shard in dataset.shards if shard.samples < export.min_samples]
            if small_shards:
                kind = f"shard with fewer than {pluralize(export.min_samples, 'sample')}"
                shards = f"{pluralize(len(small_shards), kind)}: {format_list(small_shards, 3)}"
                self._note(f"{export.reader} cannot read the index ({name}) of {shards}")
            if export.note:
                self._note(f"{name}: {export.note}")
            if export.folder_file and (target != self.folder or dataset.shards_folder):
                self._note(f"{name}: {export.reader} expects the shards in the same folder as these files")

    def _read_shards(self, dataset: DatasetFile, pool: Pool | None) -> Iterator[indexed_shard.IndexedShard]:
        shards, requested = dataset.shards, self.requested.values()
        if all(not export.suffix for export in requested):
            return
        needs_hashes = pool is not None and any(export.has_hashes for export in requested)
        size = sum(shard.size if needs_hashes else shard.sidecar_size for shard in shards)
        self.observer.start(sum(shard.samples for shard in shards), size, len(shards))
        if pool is None or not needs_hashes:
            for shard in shards:
                yield indexed_shard.IndexedShard(read_listed_sidecar(self.folder, shard))
                self._report_done(shard, shard.sidecar_size)
            return
        indexes: dict[int, ShardIndex] = {}

        def make_tasks() -> Iterator[indexed_shard.ShardHashTask]:
            for number, shard in enumerate(shards):
                indexes[number] = read_listed_sidecar(self.folder, shard)
                yield self._make_hash_task(dataset, shard, indexes[number])

        for number, digests in pool.map(
            indexed_shard.hash_shard, make_tasks(), lambda _, __, size: self.observer.advance(0, size, 0)
        ):
            shard = shards[number]
            if shard.crc is not None and shard.crc != digests.crc:
                where = self.folder.full_path(shard.name)
                raise CorruptShard(where, "checksum differs from the dataset file", remedy=RUN_VERIFY)
            yield indexed_shard.IndexedShard(indexes.pop(number), digests)
            self._report_done(shard, 0)

    def _report_done(self, shard: ShardEntry, size: int) -> None:
        self.observer.advance(shard.samples, size, 1)
        self.observer.shard(shard.name, "indexed", shard.samples, shard.size)

    def _make_hash_task(
        self, dataset: DatasetFile, shard: ShardEntry, index: ShardIndex
    ) -> indexed_shard.ShardHashTask:
        if (index.offsets[1:] < (index.offsets + index.lengths)[:-1]).any():
            raise CorruptShard(self.folder.full_path(shard.sidecar), "overlapping fields", remedy=recreate_hint())
        path = paths.join(paths.join(self.folder.path, to_local_name(dataset.shards_folder)), to_local_name(shard.name))
        return indexed_shard.ShardHashTask.of(path, shard.size, index)

    def _list_covered_datasets(
        self, export: ExportFormat, dataset: DatasetFile, target: OutputFolder
    ) -> list[DatasetFile]:
        covered = [dataset]
        for split_dataset in splits_in(self.folder.path, dataset.run).values():
            shards = split_dataset.shards if export.suffix else ()
            names = {exports.index_name(shard.name, export) for shard in shards}
            if len(target.find_entries(names)) == len(names):
                covered.append(split_dataset)
        return covered

    def _make_readme(self, export: ExportFormat, dataset: DatasetFile) -> bytes | None:
        datasets = self._list_covered_datasets(export, dataset, self.folder)
        folder_names = {*map(to_output_name, self.folder.names())}
        for covered in datasets:
            if (split := covered.run.split) and (name := huggingface.huggingface_split(split)) != split:
                used = f"{huggingface.README_FILE} uses {name}"
                self._note(f"Hugging Face datasets does not accept split {split!r}: {used}")
        if huggingface.README_FILE in folder_names:
            old_readme = read_or_empty(self.folder, huggingface.README_FILE)
            own_shards = {shard.name for covered in datasets for shard in covered.shards}
            others = sorted(huggingface.readme_shards(old_readme, folder_names) & folder_names - own_shards)
            if not huggingface.is_own_readme(old_readme) or others:
                reason = "was not written by shardtool"
                if huggingface.is_own_readme(old_readme):
                    reason = f"names other shards ({format_list(others, 3)})"
                self._note(
                    f"{huggingface.README_FILE} {reason} and is kept. Add the shards to it as data_files; "
                    "otherwise Hugging Face load_dataset(folder) loads the JSON files as data"
                )
                return None
        return huggingface.make_readme(datasets, folder_names)


def list_index_names(shards: Iterable[str], requested: Mapping[str, ExportFormat], dataset_file: str) -> list[str]:
    """Return the names of the shards' index files. Raise an error if two files would have the same name."""
    shard_exports = {name: export for name, export in requested.items() if export.suffix}
    for name, export in requested.items():
        if dataset_file and export.folder_file == dataset_file:
            found, expected = f"{dataset_file}, the name of the dataset file", "shards with other names"
            raise InvalidRequest(export_text(name), found, expected=expected)
    owners: dict[str, str] = {}
    for shard in shards:
        for name, export in shard_exports.items():
            index_name = exports.index_name(shard, export)
            if index_name == dataset_file or index_name in owners:
                other_file = "the dataset file" if index_name == dataset_file else f"an index of {owners[index_name]}"
                found = f"the index of {shard} and {other_file} would both be {index_name}"
                expected = "shards with a number in their names, such as out-{000..}.tar"
                raise InvalidRequest(export_text(name), found, expected=expected)
            owners[index_name] = shard
    return [*owners]


def update_exports(
    folder: OutputFolder, dataset_file: str, old: DatasetFile | None, written: Collection[str], notes: Notes
) -> None:
    """Update the existing indexes after an append. If an index cannot be updated, add a note.

    Skip the formats in `written`, and formats with hashes of payloads, which require reading all shards.
    """
    for name in find_existing_exports(folder, old):
        export = exports.EXPORTS[name]
        if name not in written and not export.has_hashes:
            try:
                Exporter(folder, dataset_file, {name: export}, notes).write(folder, overwrite=True)
            except (InvalidRequest, OutputExists) as error:
                notes.add(f"the index for {export.reader} could not be updated: {error}")
