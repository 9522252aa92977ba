"""The destination of a copy: what exists there, what of it is right, and what may be replaced. Nothing is changed.

In a folder, all bytes of an existing file are read. In a store a shard is right if its size, its sidecar's bytes,
and the
MD5 that the store reports are right, as far as they can be known without reading the object.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from shardtool import errors
from shardtool.dataset.dataset_file import DatasetFile, ShardEntry, parse_dataset, parse_shard_names
from shardtool.messages import flag_text
from shardtool.names import to_local_name
from shardtool.publish.foreign_index_files import open_subfolder
from shardtool.storage import folders, lookup, remote_folder
from shardtool.storage.file_system import EntryInfo, check_entries
from shardtool.storage.files import read_blocks, read_crc
from shardtool.storage.folders import open_folder
from shardtool.storage.remote import address
from shardtool.units import already_exist_text, pluralize
from shardtool.verbs.copy.source import CopySource, ShardCopy
from shardtool.verbs.copy.threads import ByteMeter, run_in_threads

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardtool.request.dataset_options import CopyOptions
    from shardtool.request.observer import Notes
    from shardtool.storage.copying import OriginalFile
    from shardtool.values import Trust


class CopyTarget(NamedTuple):
    """The place of a copy, and what was there.

    Attributes:
        source: The dataset that is copied.
        folder: Of its dataset file, and of sidecars.
        below: Of its shards: the same, or one below it.
        facts: The files there that have names of the dataset's: of `folder`, then of `below`.
        data: The bytes of the dataset file that is there; None: there is none.
        old: What it says; None: there is none, or it is damaged.
        old_below: Where the shards are that it lists.
    """

    source: CopySource
    folder: folders.OutputFolder
    below: folders.OutputFolder
    facts: tuple[Mapping[str, EntryInfo], Mapping[str, EntryInfo]]
    data: bytes | None
    old: DatasetFile | None
    old_below: folders.OutputFolder

    @property
    def dataset_file(self) -> str:
        """The path of the dataset file."""
        return self.folder.full_path(self.source.name)

    @property
    def has_grown(self) -> bool:
        """Whether the dataset that is there is this one, as it is or as it was before shards were appended."""
        if self.data is None:
            return True
        if self.old is None or self.old.shards_folder != self.source.file.shards_folder:
            return False
        return {*map(_entry_content, self.old.shards)} <= {*map(_entry_content, self.source.file.shards)}

    def removed(self) -> tuple[list[str], list[str]]:
        """Return what only the old dataset file lists: names in its folder, and names of its shards in theirs."""
        if self.old is None:
            return [], []
        same, pairs = self.old.shards_folder == self.source.file.shards_folder, self.source.pairs
        gone = {to_local_name(one.sidecar) for one in self.old.shards} - {one.sidecar.name for one in pairs}
        shards = {to_local_name(one.name) for one in self.old.shards} - {one.shard.name for one in pairs if same}
        if self.old.skipped and not self.source.skipped:
            gone.add(self.source.file.skipped_file)
        return sorted(gone), sorted(shards)


def open_target(source: CopySource, where: str) -> CopyTarget:
    """Return what is at the place of a copy.

    Raises:
        OutputExists: Something has a name of the dataset's that no run replaces.
    """
    folder = open_folder(where)
    below = open_subfolder(folder, to_local_name(source.file.shards_folder))
    named, shards = source.names
    facts = folder.facts(named), below.facts(shards)
    for place, found in zip((folder, below), facts, strict=True):
        check_entries(place.full_path, found)
    data, old = None, None
    if source.name in facts[0]:
        data = b""
        with suppress(OSError):
            data = folder.read(source.name)
        file = folder.full_path(source.name)
        if parse_shard_names(data) is None:
            what = "a file that is no dataset file of shardtool"
            raise errors.OutputExists(file, what, remedy="Choose another folder, or move it away.")
        with suppress(errors.CorruptShard):
            old = parse_dataset(data, file)
    old_below = below if old is None else open_subfolder(folder, to_local_name(old.shards_folder))
    return CopyTarget(source, folder, below, facts, data, old, old_below)


def shards_to_copy(goal: CopyTarget, options: CopyOptions, notes: Notes) -> list[ShardCopy]:
    """Return what is to be copied, now that all that is there was read: first what takes the place of nothing.

    Raises:
        OutputExists: Another dataset, or other files, would be replaced, and that was not asked for.
    """
    pairs, (beside, below) = goal.source.pairs, goal.facts
    there = [one for one in pairs if one.shard.name in below or one.sidecar.name in beside]
    if there:
        sizes = [below[one.shard.name].size for one in there if one.shard.name in below]
        notes.observer.phase("comparing", sum(sizes))
    known, compare = dict[str, ShardCopy](), partial(_compare_shard, goal, options.trust)
    for pair, state in run_in_threads(compare, there, options, notes.observer):
        known[pair.shard.name] = state
    cure = f"Choose another folder, or {flag_text('overwrite')}."
    if not goal.has_grown and not options.overwrite:
        raise errors.OutputExists(
            goal.dataset_file, _conflict(goal), expected=f"{goal.source.path}, or none", remedy=cure
        )
    listed = {*map(_entry_content, goal.old.shards)} if goal.old else set()
    states = [known.get(pair.shard.name, pair) for pair in pairs]
    mended, others = list[str](), list[str]()
    for state, entry in zip(states, goal.source.file.shards, strict=True):
        (mended if _entry_content(entry) in listed else others).extend(state.wrong)
    if others and not options.overwrite:
        found = f"{already_exist_text(len(others), 'file')} with other bytes: {errors.format_list(others, 3)}"
        raise errors.OutputExists(goal.folder.path or ".", errors.printable(found), remedy=cure)
    if mended:
        what = "not what the dataset file there says, and copied again"
        notes.add(f"{errors.format_list(sorted(mended), 3)} at the destination: {what}")
    todo = [one for one in states if not (one.shard_right and one.sidecar_right)]
    return sorted(todo, key=lambda one: bool(one.wrong))


def _conflict(goal: CopyTarget) -> str:
    if goal.old is None:
        return "a dataset file that is damaged"
    if goal.old.shards_folder != goal.source.file.shards_folder:
        return "the dataset file of shards in another folder"
    ours = {*map(_entry_content, goal.source.file.shards)}
    others = [one.name for one in goal.old.shards if _entry_content(one) not in ours]
    shown = errors.format_list(others, 3)
    return f"a dataset with {pluralize(len(others), 'shard')} that the source does not have so: {shown}"


def _entry_content(entry: ShardEntry) -> tuple[object, ...]:
    return entry.name, entry.size, entry.crc, entry.sidecar_size, entry.sidecar_crc


def _compare_shard(goal: CopyTarget, trust: Trust | None, pair: ShardCopy, meter: ByteMeter) -> ShardCopy:
    """Return what is there of a shard and its sidecar; `trust`: by what a shard of the right size is known unread."""
    sidecar = _is_right(goal.folder, goal.facts[0], pair.sidecar, meter)
    fact = goal.facts[1].get(pair.shard.name)
    if fact is None or fact.size != pair.shard.size:
        return pair._replace(shard_right=None if fact is None else False, sidecar_right=sidecar)
    if sidecar and trust and _is_trusted(goal, pair.shard, fact, trust, meter):
        right: bool | None = True
    elif pair.shard.crc is None or (sidecar is not None and not goal.below.hides):
        right = bool(sidecar) and _is_same_object(goal.below, pair.shard, meter)
    else:  # without its sidecar in a store, too: a kill leaves a shard before that
        right = _is_right(goal.below, goal.facts[1], pair.shard, meter)
    return pair._replace(shard_right=right, sidecar_right=sidecar)


def _is_right(
    folder: folders.OutputFolder, facts: Mapping[str, EntryInfo], original: OriginalFile, meter: ByteMeter
) -> bool | None:
    """Tell whether a file has the bytes that it should have; None: there is none."""
    fact = facts.get(original.name)
    if fact is None:
        return None
    if fact.size != original.size:
        return False
    path = folder.full_path(original.name)
    with suppress(OSError):  # a link, or what cannot be read
        said = lookup.recorded_crc(path)
        return (read_crc(path, meter.took)[1] if said is None else said) == original.crc
    return False


def _is_trusted(goal: CopyTarget, shard: OriginalFile, fact: EntryInfo, trust: Trust, meter: ByteMeter) -> bool:
    """Tell whether a shard of the right size is known without reading it; two stores are asked for its MD5."""
    if address.is_url(shard.path):
        return trust == "size" and (goal.below.hides or _is_same_object(goal.below, shard, meter))
    return trust == "size" or (goal.below.hides and fact.mtime_ns == lookup.stat_file(shard.path).st_mtime_ns)


def _is_same_object(folder: folders.OutputFolder, original: OriginalFile, meter: ByteMeter) -> bool:
    """Tell whether the MD5 of an object, where its store says it, is that of the original, where that can be known."""
    there = folder.md5(original.name)
    if there is None or address.is_web(original.path):
        return True
    if address.is_url(original.path):
        return remote_folder.remote_md5(original.path) in (None, there)
    md5 = hashlib.md5(usedforsecurity=False)
    for block in read_blocks(original.path):
        md5.update(block)
        meter.took(len(block))
    return md5.hexdigest() == there
