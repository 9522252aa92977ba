"""Open a dataset to copy, and find the files that already exist at the destination.

If the destination is a folder, existing files are read and compared with the source. In a store, a shard matches if its
size, its sidecar and the store's MD5 match.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from shardtool import errors
from shardtool.dataset.dataset_file import RUN_VERIFY, DatasetFile, ShardEntry, is_dataset_content, parse_dataset
from shardtool.dataset.find import check_not_damaged, find_dataset
from shardtool.dataset.skipped_list import read_skipped_bytes
from shardtool.messages import flag_text
from shardtool.names import to_local_name
from shardtool.pattern import DATASET_SUFFIX, old_list_name
from shardtool.publish.foreign_index_files import open_subfolder
from shardtool.publish.listed_files import wrong_size_error
from shardtool.storage import files, folders, paths, remote
from shardtool.storage.copying import OriginalFile
from shardtool.storage.file_system import EntryInfo, check_entries
from shardtool.storage.files import read_blocks, read_crc
from shardtool.storage.folders import open_folder
from shardtool.storage.remote import address
from shardtool.units import already_exist_text, pluralize
from shardtool.verbs.copy.threads import ByteMeter, run_in_threads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardtool.request.dataset_options import CopyOptions
    from shardtool.request.observer import Notes
    from shardtool.values import DatasetLike, Trust


class ShardCopy(NamedTuple):
    """A shard and its sidecar to copy.

    `shard_matches` and `sidecar_matches` are None if the file is missing at the destination or was not compared yet.
    """

    shard: OriginalFile
    sidecar: OriginalFile
    samples: int
    shard_matches: bool | None = None
    sidecar_matches: bool | None = None

    @property
    def differing(self) -> list[str]:
        """The names of files at the destination that differ from the source."""
        return [original.name for original, matches in self.parts if matches is False]

    @property
    def size(self) -> int:
        """Number of bytes to copy."""
        return sum(original.size for original, matches in self.parts if not matches)

    @property
    def parts(self) -> tuple[tuple[OriginalFile, bool | None], tuple[OriginalFile, bool | None]]:
        """The shard with `shard_matches`, and the sidecar with `sidecar_matches`."""
        return (self.shard, self.shard_matches), (self.sidecar, self.sidecar_matches)


class CopySource(NamedTuple):
    """A dataset to copy.

    Attributes:
        data: The bytes of the dataset file at the start of the run.
        pairs: The shards and sidecars, not yet compared with the destination.
        skipped: The bytes of the list of skipped samples, or b"".
    """

    path: str
    data: bytes
    file: DatasetFile
    pairs: tuple[ShardCopy, ...]
    skipped: bytes

    @property
    def name(self) -> str:
        return paths.base_name(self.path)

    @property
    def old_list(self) -> str:
        """The name that the replaced dataset file has until the copy is complete."""
        return old_list_name(self.name.removesuffix(DATASET_SUFFIX))

    @property
    def folder(self) -> str:
        return paths.folder_of(self.path)

    @property
    def names(self) -> tuple[list[str], list[str]]:
        """The names of all files except shards, and the names of the shards."""
        names = [self.name, self.old_list, self.file.skipped_file, *(pair.sidecar.name for pair in self.pairs)]
        return names, [pair.shard.name for pair in self.pairs]

    def has_changed(self) -> bool:
        """Return whether the dataset file was changed or deleted since it was read."""
        try:
            return files.read_small(self.path) != self.data
        except OSError:
            return True


def open_source(given: DatasetLike) -> CopySource:
    """Open a dataset to copy, and check that all files have the recorded sizes."""
    dataset = find_dataset(given)
    if dataset.dataset_file is None or not dataset.has_own_file:
        check_not_damaged(dataset)
        expected, remedy = "a dataset with a dataset file", "`index` creates one."
        raise errors.InvalidRequest(dataset.where, "no dataset file of shardtool", expected=expected, remedy=remedy)
    path, data = dataset.dataset_file, read_dataset_bytes(dataset.dataset_file)
    file = parse_dataset(data, path)
    names = {shard.name for shard in dataset.shards}
    if missing := [shard.name for shard in file.shards if shard.name not in names]:
        problem = f"shards that were not selected: {errors.format_list(missing, 3)}"
        remedy = "Pass the dataset file to copy all shards, or use `reshard` to create a dataset from some of them."
        raise errors.InvalidRequest(path, problem, expected="all shards of the dataset file", remedy=remedy)
    folder = paths.folder_of(path)
    shards_folder = paths.join(folder, to_local_name(file.shards_folder)) if file.shards_folder else folder
    shards = [_original_file(shards_folder, entry.name, entry.size, entry.crc) for entry in file.shards]
    sidecars = [_original_file(folder, entry.sidecar, entry.sidecar_size, entry.sidecar_crc) for entry in file.shards]
    if not address.is_web(folder):  # on the web, sizes are checked when files are copied
        _check_sizes([*shards, *sidecars])
    pairs = tuple(map(ShardCopy, shards, sidecars, (entry.samples for entry in file.shards)))
    return CopySource(path, data, file, pairs, read_skipped_bytes(file, folder))


def _original_file(folder: str, name: str, size: int, crc: int | None) -> OriginalFile:
    return OriginalFile(paths.join(folder, to_local_name(name)), size, crc, to_local_name(name))


def read_dataset_bytes(path: str) -> bytes:
    """Return the bytes of a dataset file. Raise `CorruptShard` if it cannot be read."""
    try:
        return files.read_small(path)
    except OSError as error:
        raise errors.CorruptShard(path, f"cannot be read: {errors.os_error_text(error)}", remedy=RUN_VERIFY) from None


def _check_sizes(originals: Sequence[OriginalFile]) -> None:
    for original, size in zip(originals, files.plain_sizes([original.path for original in originals]), strict=True):
        if size != original.size:
            raise wrong_size_error(errors.printable(original.path), size, original.size)


class CopyTarget(NamedTuple):
    """The destination of a copy, and the files of the dataset that already exist there.

    Attributes:
        shard_folder: The folder of the shards: `folder` or a subfolder.
        existing, existing_shards: The existing files by name, in `folder` and in `shard_folder`.
        data: The bytes of the existing dataset file (after an interrupted copy, of the file `old_list`), or None.
        old: The parsed `data`, or None if missing or damaged.
    """

    source: CopySource
    folder: folders.OutputFolder
    shard_folder: folders.OutputFolder
    existing: Mapping[str, EntryInfo]
    existing_shards: Mapping[str, EntryInfo]
    data: bytes | None
    old: DatasetFile | None
    old_shard_folder: folders.OutputFolder

    @property
    def dataset_file(self) -> str:
        return self.folder.full_path(self.source.name)

    @property
    def only_adds_shards(self) -> bool:
        """Whether the source contains all shards of the existing dataset."""
        if self.data is None:
            return True
        if self.old is None or self.old.shards_folder != self.source.file.shards_folder:
            return False
        return {*map(_entry_content, self.old.shards)} <= {*map(_entry_content, self.source.file.shards)}

    def removed(self) -> tuple[list[str], list[str]]:
        """Return two lists of names that only the existing dataset has: first files other than shards, then shards."""
        if self.old is None:
            return [], []
        same_folder, pairs = self.old.shards_folder == self.source.file.shards_folder, self.source.pairs
        names = {to_local_name(entry.sidecar) for entry in self.old.shards} - {entry.sidecar.name for entry in pairs}
        shards = {to_local_name(entry.name) for entry in self.old.shards} - {
            entry.shard.name for entry in pairs if same_folder
        }
        if self.old.skipped and not self.source.skipped:
            names.add(self.source.file.skipped_file)
        return sorted(names), sorted(shards)


def open_target(source: CopySource, where: str) -> CopyTarget:
    """Open the destination `where` of a copy, and find its existing files.

    Raises:
        OutputExists: A folder or link has a name that the copy needs, or the existing dataset file is invalid.
    """
    folder = open_folder(where)
    shard_folder = open_subfolder(folder, to_local_name(source.file.shards_folder))
    names, shards = source.names
    existing, existing_shards = folder.find_entries(names), shard_folder.find_entries(shards)
    check_entries(folder.full_path, existing)
    check_entries(shard_folder.full_path, existing_shards)
    data, old = None, None
    if name := next((name for name in (source.name, source.old_list) if name in existing), ""):
        data = b""
        with suppress(OSError):
            data = folder.read(name)
        file = folder.full_path(name)
        if not is_dataset_content(data):
            problem = "a file that is not a dataset file of shardtool"
            raise errors.OutputExists(file, problem, remedy="Choose another folder, or rename the file.")
        with suppress(errors.CorruptShard):
            old = parse_dataset(data, file)
    old_shard_folder = shard_folder if old is None else open_subfolder(folder, to_local_name(old.shards_folder))
    return CopyTarget(source, folder, shard_folder, existing, existing_shards, data, old, old_shard_folder)


def shards_to_copy(target: CopyTarget, options: CopyOptions, notes: Notes) -> list[ShardCopy]:
    """Compare existing files with the source. Return the shards to copy, new shards first.

    Raises:
        OutputExists: Another dataset or other files would be replaced, and `overwrite` is false.
    """
    pairs, shard_files = target.source.pairs, target.existing_shards
    existing = [pair for pair in pairs if pair.shard.name in shard_files or pair.sidecar.name in target.existing]
    if existing:
        sizes = [shard_files[pair.shard.name].size for pair in existing if pair.shard.name in shard_files]
        notes.observer.phase("comparing", sum(sizes))
    compared, compare = dict[str, ShardCopy](), partial(_compare_shard, target, options.trust)
    for pair, state in run_in_threads(compare, existing, options, notes.observer):
        compared[pair.shard.name] = state
    remedy = f"Choose another folder, or {flag_text('overwrite')}."
    if not target.only_adds_shards and not options.overwrite:
        raise errors.OutputExists(
            target.dataset_file, _conflict(target), expected=f"{target.source.path}, or none", remedy=remedy
        )
    listed = {*map(_entry_content, target.old.shards)} if target.old else set()
    states = [compared.get(pair.shard.name, pair) for pair in pairs]
    damaged, others = list[str](), list[str]()
    for state, entry in zip(states, target.source.file.shards, strict=True):
        (damaged if _entry_content(entry) in listed else others).extend(state.differing)
    if others and not options.overwrite:
        found = f"{already_exist_text(len(others), 'file')} with other bytes: {errors.format_list(others, 3)}"
        raise errors.OutputExists(target.folder.path or ".", errors.printable(found), remedy=remedy)
    if damaged:
        notes.add(f"{errors.format_list(sorted(damaged), 3)}: damaged at the destination; copied again")
    pending = [state for state in states if not (state.shard_matches and state.sidecar_matches)]
    return sorted(pending, key=lambda state: bool(state.differing))


def _conflict(target: CopyTarget) -> str:
    if target.old is None:
        return "a damaged dataset file"
    if target.old.shards_folder != target.source.file.shards_folder:
        return "a dataset file whose shards are in another folder"
    source_contents = {*map(_entry_content, target.source.file.shards)}
    others = [entry.name for entry in target.old.shards if _entry_content(entry) not in source_contents]
    shown = errors.format_list(others, 3)
    return f"a dataset with {pluralize(len(others), 'shard')} that differ from the source: {shown}"


def _entry_content(entry: ShardEntry) -> tuple[object, ...]:
    return entry.name, entry.size, entry.crc, entry.sidecar_size, entry.sidecar_crc


def _compare_shard(target: CopyTarget, trust: Trust | None, pair: ShardCopy, meter: ByteMeter) -> ShardCopy:
    sidecar_matches = _matches_original(target.folder, target.existing, pair.sidecar, meter)
    info = target.existing_shards.get(pair.shard.name)
    if info is None or info.size != pair.shard.size:
        return pair._replace(shard_matches=None if info is None else False, sidecar_matches=sidecar_matches)
    if sidecar_matches and trust and _is_trusted(target, pair.shard, info, trust, meter):
        matches: bool | None = True
    elif pair.shard.crc is None or (sidecar_matches is not None and not target.shard_folder.has_staging):
        matches = bool(sidecar_matches) and _is_same_object(target.shard_folder, pair.shard, meter)
    else:  # compare the bytes of a local shard, or of an object without a sidecar
        matches = _matches_original(target.shard_folder, target.existing_shards, pair.shard, meter)
    return pair._replace(shard_matches=matches, sidecar_matches=sidecar_matches)


def _matches_original(
    folder: folders.OutputFolder, existing: Mapping[str, EntryInfo], original: OriginalFile, meter: ByteMeter
) -> bool | None:
    info = existing.get(original.name)
    if info is None:
        return None
    if info.size != original.size:
        return False
    path = folder.full_path(original.name)
    with suppress(OSError):  # a link or an unreadable file does not match
        stored_crc = files.files_at(path).crc(path)
        return (read_crc(path, meter.add)[1] if stored_crc is None else stored_crc) == original.crc
    return False


def _is_trusted(target: CopyTarget, shard: OriginalFile, info: EntryInfo, trust: Trust, meter: ByteMeter) -> bool:
    folder = target.shard_folder
    if address.is_url(shard.path):
        return trust == "size" and (folder.has_staging or _is_same_object(folder, shard, meter))
    return trust == "size" or (folder.has_staging and info.mtime_ns == files.stat_file(shard.path).st_mtime_ns)


def _is_same_object(folder: folders.OutputFolder, original: OriginalFile, meter: ByteMeter) -> bool:
    stored_md5 = folder.md5(original.name)
    if stored_md5 is None or address.is_web(original.path):
        return True
    if address.is_url(original.path):
        return remote.remote_folder.remote_md5(original.path) in (None, stored_md5)
    md5 = hashlib.md5(usedforsecurity=False)
    for block in read_blocks(original.path):
        md5.update(block)
        meter.add(len(block))
    return md5.hexdigest() == stored_md5
