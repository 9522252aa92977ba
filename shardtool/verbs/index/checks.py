"""Check the shards to index, their folder, and the existing dataset file."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from shardtool.dataset.dataset_file import DatasetFile, ShardEntry, parse_dataset, parse_shard_names
from shardtool.dataset.scan import ShardScan, index_text, interleaved_samples
from shardtool.dataset.shard_file import describe_missing
from shardtool.dataset.unfinished import require_finished
from shardtool.errors import CorruptShard, InvalidRequest, OutputExists, format_list, os_error_text, printable
from shardtool.messages import choose_text, flag_text, option_text
from shardtool.names import to_local_name, to_output_name
from shardtool.pattern import sidecar_name
from shardtool.shard_names import READABLE_ENDINGS, is_shard_name
from shardtool.storage.files import read_small
from shardtool.storage.lookup import list_folder_names
from shardtool.storage.paths import folder_of, join
from shardtool.storage.remote.address import is_url
from shardtool.units import pluralize

if TYPE_CHECKING:
    from shardtool.dataset.stored import StoredDataset
    from shardtool.storage.folders import OutputFolder


_LOST_WITH_DATASET_FILE = "how the dataset was made, what was left out and the names of classes"


def sort_as_listed(found: StoredDataset) -> StoredDataset:
    """Return the shards of a dataset in the order in which its file lists them, however they were named."""
    listed = parse_shard_names(read_small(found.dataset_file)) if found.own and found.dataset_file else None
    shards = {shard.name: shard for shard in found.shards}
    is_all = listed is not None and {*listed} == {*shards}
    return replace(found, shards=tuple(shards[one] for one in listed or ())) if is_all else found


def read_if_exists(path: str) -> bytes | None:
    """Return a small file that may have to be replaced; None where there is none.

    Raises:
        OutputExists: It cannot be read, so that it cannot be known whether it is right.
    """
    try:
        return read_small(path)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and (is_url(path) or not os.path.islink(path)):
            return None
        found, remedy = f"cannot be read: {os_error_text(error)}", "Make it readable, or move it away."
        raise OutputExists(path, found, expected="a file, or none", remedy=remedy) from None


def check_format(found: StoredDataset) -> None:
    """Check the format of the shards.

    Raises:
        InvalidRequest: There are none, they are compressed, or of two formats.
    """
    if packed := [shard.path for shard in found.shards if shard.packed]:
        remedy = "Decompress it: nothing can be read at an offset of a compressed file."
        raise InvalidRequest(packed[0], "a compressed shard", expected="a plain one", remedy=remedy)
    if not found.shards:
        raise InvalidRequest(found.where, "no shards", expected="one at least")
    if blobs := [shard.path for shard in found.shards if not is_shard_name(shard.file_name)]:
        expected, remedy = (
            f"one that ends in one of {READABLE_ENDINGS}",
            "Make a link to it that has such a name, and index that.",
        )
        raise InvalidRequest(blobs[0], "a name that does not tell what it is", expected=expected, remedy=remedy)
    if len({shard.format for shard in found.shards}) > 1:
        raise InvalidRequest(found.where, "tar and TFRecord shards", expected="one format", remedy="Index each alone.")


def missing_shard_error(path: str) -> CorruptShard:
    """Return what is wrong with a shard that is no plain file."""
    remedy = f"Get it again, or run the command that made it again with {option_text('if_exists', 'resume')}."
    found, fetch = describe_missing(path)
    return CorruptShard(path, found, expected="a shard", remedy=fetch or remedy)


def get_subfolder(folder: str, shards: list[str]) -> str:
    """Return the way from the dataset file's folder down to that of the shards; empty: it is the same.

    Raises:
        InvalidRequest: The shards lie in several folders, or not below: a dataset file leads nowhere else.
    """
    if len(shards) > 1:
        found = f"shards in {len(shards)} folders: {format_list(shards, 3)}"
        raise InvalidRequest(shards[0] or ".", found, expected="one folder", remedy="Index each alone.")
    path = _get_relative_path(folder, shards[0])
    if path == os.curdir:
        return ""
    if path.split(os.sep)[0] == os.pardir:
        alone = choose_text("`export`", "--export alone")
        problem = f"{folder or '.'}, which does not hold the shards"
        remedy = f"A dataset file leads to no other place. {alone}, with a dataset file, writes anywhere."
        raise InvalidRequest(option_text("output"), problem, expected="their folder, or one above it", remedy=remedy)
    name = to_output_name(path)
    if printable(name) != name or ":" in name:
        raise InvalidRequest(path, "a folder that a dataset file cannot name", expected="a name that can be printed")
    return name


def _get_relative_path(folder: str, below: str) -> str:
    """Return the way from one folder down to another; it starts with `..` where that lies elsewhere."""
    if not is_url(folder) and not is_url(below):
        return os.path.relpath(os.path.realpath(below or "."), os.path.realpath(folder or "."))
    top, place = f"{folder.rstrip('/')}/", f"{below.rstrip('/')}/"
    return (place[len(top) : -1] or os.curdir) if place.startswith(top) else os.pardir


def check_rivals(folder: OutputFolder, names: list[str], own: set[str]) -> None:
    """Refuse a folder in which other shards have sidecars of these names."""
    sidecars = {*map(sidecar_name, names)}
    others = [name for name in folder.names() if is_shard_name(name) and sidecar_name(name) in sidecars]
    if rivals := sorted(name for name in others if name not in own):
        found = f"other shards whose sidecars have these names: {format_list(rivals, 3)}"
        expected = "none that would share their indexes"
        raise OutputExists(folder.path or ".", found, expected=expected, remedy="Move one of the datasets away.")


def read_old_dataset(found: StoredDataset, path: str, data: bytes, *, overwrite: bool) -> DatasetFile | None:
    """Return what the dataset file at its place says; None where it may be replaced.

    Raises:
        OutputExists: It is damaged, or none of ours.
    """
    problem, lost = "no JSON: cut or damaged", _LOST_WITH_DATASET_FILE
    if parse_shard_names(data) is not None:
        try:
            return parse_dataset(data, path)
        except CorruptShard as error:
            problem = error.found
    elif path == found.dataset_file:
        problem, lost = "an index of wids", "what only it says of the shards"
    else:
        with suppress(ValueError, RecursionError):
            json.loads(data)
            remedy = f"Move it away, or choose another {option_text('output')}."
            raise OutputExists(path, "a file that is no dataset file of shardtool", remedy=remedy)
    require_finished(found)
    _check_replaceable(path, problem, lost, overwrite=overwrite)
    return None


def check_listed_shards(
    old: DatasetFile, found: StoredDataset, path: str, shards_folder: str, *, overwrite: bool
) -> None:
    """Refuse a dataset file that lists other shards than were given, unless it does so wrongly and may be replaced."""
    listed, given = {one.name for one in old.shards}, {shard.name for shard in found.shards}
    others = sorted(listed - given)
    folder = join(folder_of(path), to_local_name(old.shards_folder))
    lies = set(list_folder_names(folder)) if others else set()
    if there := [name for name in others if to_local_name(name) in lies]:
        what = f"it lists {pluralize(len(there), 'shard')} that are there and were not given: {format_list(there, 3)}"
        raise OutputExists(
            path, what, remedy=f"Give all shards of the dataset, or choose another {option_text('output')}."
        )
    if given - listed:  # an append that did not end has left them, or one that the dataset file knows nothing of
        require_finished(found)
    if listed != given or old.shards_folder != shards_folder:
        gone = f", {pluralize(len(others), 'shard')} of them not there: {format_list(others, 3)}" if others else ""
        what = f"it lists {pluralize(len(listed), 'shard')}{gone}; {len(given):,} were given"
        _check_replaceable(path, what, _LOST_WITH_DATASET_FILE, overwrite=overwrite)


def _check_replaceable(path: str, found: str, lost: str, *, overwrite: bool) -> None:
    """Refuse to replace a dataset file that was read and found wrong, unless the user asked for that."""
    if not overwrite:
        expected = "the dataset file of these shards"
        remedy = (
            f"`index` with {flag_text('overwrite')} replaces it; {lost} is lost then."  # `verify --repair` asks it, too
        )
        raise OutputExists(path, found, expected=expected, remedy=remedy)


def check_not_interleaved(found: ShardScan) -> None:
    """Refuse a tar in which the fields of samples lie apart: every reader would make several samples of one."""
    repeated = found.format == "tar" and len({*found.keys}) < len(found.keys)
    if torn := interleaved_samples(found.keys, found.fields()) if repeated else []:
        one, other = torn[0]
        key, places = index_text(found.keys[one]), f"at {found.starts[one]:,} and at {found.starts[other]:,}"
        what = f"the fields of {pluralize(len(torn), 'sample')} lie apart, such as those of {key!r} {places}"
        remedy = "`shardtool reshard` writes shards with the fields of each sample together."
        raise InvalidRequest(found.path, what, expected="the fields of a sample next to each other", remedy=remedy)


def is_same_shard(before: ShardEntry, now: ShardEntry) -> bool:
    """Return whether what a dataset file says of a shard, without its sidecar, is what was found."""
    shapes = [(one.name, one.size, one.samples, one.first_key, one.last_key) for one in (before, now)]
    return shapes[0] == shapes[1] and (None in (before.crc, now.crc) or before.crc == now.crc)
