"""Check the shards to index, their folder, and the existing dataset file and sidecars."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from shardtool.dataset.dataset_file import RUN_VERIFY, DatasetFile, ShardEntry, parse_dataset, parse_shard_names
from shardtool.dataset.scan import ShardScan, decode_name, interleaved_samples
from shardtool.dataset.shard_file import describe_missing, is_compressed
from shardtool.dataset.unfinished import require_finished
from shardtool.errors import CorruptShard, InvalidRequest, OutputExists, format_list, os_error_text, printable
from shardtool.messages import choose_text, flag_text, option_text
from shardtool.names import to_local_name, to_output_name
from shardtool.pattern import READABLE_ENDINGS, is_shard_name, sidecar_name
from shardtool.storage.files import list_folder_names, read_small
from shardtool.storage.paths import folder_of, join
from shardtool.storage.remote.address import is_url
from shardtool.units import pluralize

if TYPE_CHECKING:
    from shardtool.dataset.shard_index import ShardIndex
    from shardtool.dataset.stored import StoredDataset
    from shardtool.storage.folders import OutputFolder


_LOST_WITH_DATASET_FILE = "how the dataset was created, skipped samples and class names"


def sort_as_listed(dataset: StoredDataset) -> StoredDataset:
    """Sort the shards in the order of the dataset file, if it lists exactly these shards."""
    file = dataset.dataset_file if dataset.has_own_file else None
    listed = parse_shard_names(read_small(file)) if file else None
    shards = {shard.name: shard for shard in dataset.shards}
    is_all = listed is not None and {*listed} == {*shards}
    return replace(dataset, shards=tuple(shards[name] for name in listed or ())) if is_all else dataset


def read_if_exists(path: str) -> bytes | None:
    """Return the content of a small file, or None if the file does not exist."""
    try:
        return read_small(path)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and (is_url(path) or not os.path.islink(path)):
            return None
        found, remedy = f"cannot be read: {os_error_text(error)}", "Make it readable, or move it to another folder."
        raise OutputExists(path, found, expected="a readable file, or none", remedy=remedy) from None


def check_format(dataset: StoredDataset) -> None:
    """Raise an error if the shards cannot be indexed because of their names or formats."""
    if compressed := [path for path in dataset.paths if is_compressed(path)]:
        remedy = "Decompress it, because compressed files cannot be read by offset."
        raise InvalidRequest(compressed[0], "a compressed shard", expected="an uncompressed shard", remedy=remedy)
    if not dataset.shards:
        raise InvalidRequest(dataset.where, "no shards", expected="at least one shard")
    if unnamed := [shard.path for shard in dataset.shards if not is_shard_name(shard.file_name)]:
        expected = f"a name that ends in one of {READABLE_ENDINGS}"
        remedy = "Create a link with such a name, and index the link."
        raise InvalidRequest(unnamed[0], "a name without a shard extension", expected=expected, remedy=remedy)
    if len({shard.format for shard in dataset.shards}) > 1:
        found, remedy = "tar and TFRecord shards", "Index each format separately."
        raise InvalidRequest(dataset.where, found, expected="one format", remedy=remedy)


def missing_shard_error(path: str) -> CorruptShard:
    """Return the error for a shard that is not a regular file."""
    remedy = f"Restore it, or repeat the command that created it with {flag_text('resume')}."
    found, fetch = describe_missing(path)
    return CorruptShard(path, found, expected="a shard", remedy=fetch or remedy)


def get_subfolder(folder: str, shards: list[str]) -> str:
    """Return the shards' folder relative to `folder`. `shards` contains the folders of all shards.

    Raise an error for several folders, or for a folder outside `folder`.
    """
    if len(shards) > 1:
        found = f"shards in {len(shards)} folders: {format_list(shards, 3)}"
        raise InvalidRequest(shards[0] or ".", found, expected="one folder", remedy="Index each folder separately.")
    path = _get_relative_path(folder, shards[0])
    if path == os.curdir:
        return ""
    if path.split(os.sep)[0] == os.pardir:
        alone = choose_text("`export`", "--export alone")
        problem = f"{folder or '.'}, which does not contain the shards"
        expected = "the folder of the shards, or a parent folder"
        only_below = "A dataset file can list only shards in its own folder or below."
        remedy = f"{only_below} To write indexes elsewhere, use {alone} with a dataset file."
        raise InvalidRequest(option_text("output"), problem, expected=expected, remedy=remedy)
    name = to_output_name(path)
    if printable(name) != name or ":" in name:
        found = "a folder name that a dataset file cannot store"
        raise InvalidRequest(path, found, expected="a printable name without colons")
    return name


def _get_relative_path(folder: str, target: str) -> str:
    if not is_url(folder) and not is_url(target):
        return os.path.relpath(os.path.realpath(target or "."), os.path.realpath(folder or "."))
    prefix, target_prefix = f"{folder.rstrip('/')}/", f"{target.rstrip('/')}/"
    return (target_prefix[len(prefix) : -1] or os.curdir) if target_prefix.startswith(prefix) else os.pardir


def check_sidecar_names_free(folder: OutputFolder, names: list[str], own_names: set[str]) -> None:
    """Raise an error if another shard in the folder would share a sidecar name with one of `names`."""
    sidecars = {*map(sidecar_name, names)}
    others = [name for name in folder.names() if is_shard_name(name) and sidecar_name(name) in sidecars]
    if rivals := sorted(name for name in others if name not in own_names):
        found = f"other shards with the same sidecar names: {format_list(rivals, 3)}"
        expected = "no shards that would share sidecars"
        raise OutputExists(folder.path or ".", found, expected=expected, remedy="Move one dataset to another folder.")


def read_old_dataset(dataset: StoredDataset, path: str, data: bytes, *, overwrite: bool) -> DatasetFile | None:
    """Parse an existing dataset file. Return None if it is invalid but may be replaced."""
    problem, lost = "not valid JSON: truncated or damaged", _LOST_WITH_DATASET_FILE
    if parse_shard_names(data) is not None:
        try:
            return parse_dataset(data, path)
        except CorruptShard as error:
            problem = error.found
    elif path == dataset.dataset_file:
        problem, lost = "a wids index", "its other information"
    else:
        with suppress(ValueError, RecursionError):
            json.loads(data)
            remedy = f"Move it to another folder, or choose another {option_text('output')}."
            raise OutputExists(path, "a file that is not a shardtool dataset file", remedy=remedy)
    require_finished(dataset)
    _check_replaceable(path, problem, lost, overwrite=overwrite)
    return None


def check_listed_shards(
    old: DatasetFile, dataset: StoredDataset, path: str, shards_folder: str, *, overwrite: bool
) -> None:
    """Raise an error if the dataset file lists existing shards that are not in `dataset`.

    Without `overwrite`, also raise an error if the file does not list exactly the shards of `dataset`.
    """
    listed_names, given_names = {entry.name for entry in old.shards}, {shard.name for shard in dataset.shards}
    not_given = sorted(listed_names - given_names)
    folder = join(folder_of(path), to_local_name(old.shards_folder))
    in_folder = set(list_folder_names(folder)) if not_given else set()
    if existing := [name for name in not_given if to_local_name(name) in in_folder]:
        found = (
            f"it lists {pluralize(len(existing), 'shard')} that exist and were not given: {format_list(existing, 3)}"
        )
        remedy = f"Index all shards of the dataset, or choose another {option_text('output')}."
        raise OutputExists(path, found, remedy=remedy)
    if given_names - listed_names:
        require_finished(dataset)
    if listed_names != given_names or old.shards_folder != shards_folder:
        missing = f", {pluralize(len(not_given), 'shard')} of them missing: {format_list(not_given, 3)}"
        missing = missing if not_given else ""
        found = f"it lists {pluralize(len(listed_names), 'shard')}{missing}; {len(given_names):,} were given"
        _check_replaceable(path, found, _LOST_WITH_DATASET_FILE, overwrite=overwrite)


def _check_replaceable(path: str, found: str, lost: str, *, overwrite: bool) -> None:
    if not overwrite:
        expected = "the dataset file of these shards"
        remedy = f"Replace it with `index` and {flag_text('overwrite')}. This loses {lost}."
        raise OutputExists(path, found, expected=expected, remedy=remedy)


def check_not_interleaved(scan: ShardScan) -> None:
    """Raise an error if the fields of samples are interleaved, because readers would split these samples."""
    if scan.format != "tar" or len({*scan.keys}) == len(scan.keys):
        return
    if interleaved := interleaved_samples(scan.keys, scan.fields()):
        first, second = interleaved[0]
        key, offsets = decode_name(scan.keys[first]), f"at {scan.starts[first]:,} and at {scan.starts[second]:,}"
        found = f"interleaved fields in {pluralize(len(interleaved), 'sample')}, for example {key!r} {offsets}"
        remedy = "Use `shardtool reshard` to write the fields of each sample next to each other."
        raise InvalidRequest(scan.path, found, expected="the fields of a sample next to each other", remedy=remedy)


def is_same_shard(old: ShardEntry, new: ShardEntry) -> bool:
    """Return whether two entries describe the same shard, even with different sidecars."""
    identities = [(entry.name, entry.size, entry.samples, entry.first_key, entry.last_key) for entry in (old, new)]
    return identities[0] == identities[1] and (None in (old.crc, new.crc) or old.crc == new.crc)


class DifferingSidecar(NamedTuple):
    """How a sidecar differs from its shard, and the metadata columns that a new sidecar would lose."""

    found: str
    lost: frozenset[str] = frozenset()


def compare_sidecar(
    path: str, scanned: ShardIndex, where: str, data: bytes
) -> tuple[ShardIndex, bytes | None] | DifferingSidecar:
    """Compare a sidecar with the scan of its shard.

    If they differ, return a `DifferingSidecar`. Otherwise, return the index and the bytes of the sidecar (None if it
    must be rewritten).
    """
    from shardtool.dataset.shard_index import compare_indexes
    from shardtool.dataset.sidecar_read import FORMAT_VERSION, parse_sidecar

    scanned_facts = scanned.facts
    try:
        index = parse_sidecar(data, where, scanned_facts.size)
    except CorruptShard:
        return DifferingSidecar("damaged")
    facts, columns = index.facts, frozenset(index.metadata.column_names)
    difference = next(compare_indexes(index, scanned), None)
    same_samples = difference is None or difference.what == "checksum"
    if not same_samples or (facts.name, facts.size) != (scanned_facts.name, scanned_facts.size):
        return DifferingSidecar("of another shard", columns)
    if facts.crc is not None and scanned_facts.crc not in (facts.crc, None):
        found, expected = f"checksum {scanned_facts.crc:08x}", f"{facts.crc:08x}, as in its sidecar"
        raise CorruptShard(path, found, expected=expected, remedy=RUN_VERIFY)
    if difference is not None:
        return DifferingSidecar("checksums of other payloads", columns)
    if scanned_facts.crc is None or (facts.crc is not None and index.crcs is not None):
        return index, data if index.version == FORMAT_VERSION else None
    return replace(index, crcs=scanned.crcs, facts=facts._replace(crc=scanned_facts.crc)), None
