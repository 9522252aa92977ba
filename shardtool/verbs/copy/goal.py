"""Where a copy goes: what is there already, what of it is right, and whether the rest may be touched.

Nothing is changed here. What is there is right if it has the bytes that the source's dataset file says: of a folder of
a file system, all of them are read. In a store a shard is right if it has the right size, its sidecar, which comes
after the whole of a shard, has the right bytes, and the MD5 that the store says of it is that of the source, as far as
both are to be had without reading an object. A copy takes the place of nothing else, unless that was asked for; only
shards that the dataset file there lists are removed, for only they are known to be the dataset's.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardtool.dataset.dataset_file import read_dataset, shard_names
from shardtool.errors import AccessRefused, CorruptShard, InvalidRequest, OutputExists, listing, printable
from shardtool.fingerprint import crc32c
from shardtool.interop.export_formats import EXPORTS, HEAD_SIZE, ONCE, difference, form_of, index_limit, index_name
from shardtool.interop.export_types import IndexedShard
from shardtool.interop.huggingface import README, is_ours, listed
from shardtool.pattern import is_packed_name
from shardtool.storage.folders import blocks_of, open_folder
from shardtool.storage.places import folder_of, is_file, is_url, is_web, join, names_in, read_head, read_small
from shardtool.storage.reading import file_stat
from shardtool.storage.staging import check_facts, write_whole
from shardtool.values import counted, output_text
from shardtool.verbs.copy.origin import local_name
from shardtool.wording import flag

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardtool.dataset.dataset_file import DatasetFile, ShardEntry
    from shardtool.request.results import Notes
    from shardtool.storage.folders import Original, OutputFolder
    from shardtool.storage.staging import FileFact
    from shardtool.values import Trust
    from shardtool.verbs.copy.origin import CopySource, Meter, ShardPair


_BLOCK = 2**20


@dataclass(frozen=True, slots=True)
class CopyDestination:
    """The place of a copy, and what was there.

    Attributes:
        origin: The dataset that is copied.
        folder: Of its dataset file, and of sidecars.
        below: Of its shards: the same, or one below it.
        facts: The files there that have names of the dataset's: of `folder`, then of `below`.
        data: The bytes of the dataset file that is there; None: there is none.
        old: What it says; None: there is none, or it is damaged.
        old_below: Where the shards are that it lists.
    """

    origin: CopySource
    folder: OutputFolder
    below: OutputFolder
    facts: tuple[Mapping[str, FileFact], Mapping[str, FileFact]]
    data: bytes | None
    old: DatasetFile | None
    old_below: OutputFolder

    @property
    def dataset_file(self) -> str:
        """The path of the dataset file."""
        return self.folder.full_path(self.origin.name)

    @property
    def has_grown(self) -> bool:
        """Whether the dataset that is there is this one, as it is or as it was before shards were appended."""
        if self.data is None:
            return True
        if self.old is None or self.old.shards_folder != self.origin.file.shards_folder:
            return False
        return {*map(_content, self.old.shards)} <= {*map(_content, self.origin.file.shards)}

    def removed(self) -> tuple[list[str], list[str]]:
        """Return what only the old dataset file lists: names in its folder, and names of its shards in theirs."""
        if self.old is None:
            return [], []
        same = self.old.shards_folder == self.origin.file.shards_folder
        shards, sidecars = ({one.name for one in part} for part in self._originals())
        old = [local_name(one.name) for one in self.old.shards]
        gone = [local_name(one.sidecar) for one in self.old.shards if local_name(one.sidecar) not in sidecars]
        if self.old.skipped and not self.origin.skipped:
            gone.append(self.origin.skipped_name)
        return sorted(gone), sorted(name for name in old if not same or name not in shards)

    def _originals(self) -> tuple[list[Original], list[Original]]:
        return [one.shard for one in self.origin.pairs], [one.sidecar for one in self.origin.pairs]


@dataclass(frozen=True, slots=True)
class ShardState:
    """What is there of a shard and of its sidecar: True if it is right, False if it is not, None if nothing is."""

    shard: bool | None
    sidecar: bool | None

    @property
    def is_right(self) -> bool:
        """Whether nothing is to be copied."""
        return bool(self.shard and self.sidecar)


@dataclass(slots=True)
class CopyPlan:
    """What a copy has to do.

    Attributes:
        missing: Shards to be copied, of which nothing that is there is replaced; and their states.
        replaced: Those in whose place there is something.
        kept: How many are right.
        mended: The names of files that are replaced since they are not what the dataset file beside them says.
    """

    missing: list[tuple[ShardPair, ShardState]] = field(default_factory=list)
    replaced: list[tuple[ShardPair, ShardState]] = field(default_factory=list)
    kept: int = 0
    mended: list[str] = field(default_factory=list)

    @property
    def all(self) -> list[tuple[ShardPair, ShardState]]:
        """All shards that are copied, or whose sidecars are."""
        return [*self.missing, *self.replaced]

    @property
    def size(self) -> int:
        """The bytes that are copied."""
        shards = sum(pair.shard.size for pair, state in self.all if not state.shard)
        return shards + sum(pair.sidecar.size for pair, state in self.all if not state.sidecar)


def look(origin: CopySource, where: str) -> CopyDestination:
    """Return what is at the place of a copy.

    Raises:
        OutputExists: Something has a name of the dataset's that no run replaces.
    """
    folder = open_folder(where)
    below = _below(folder, local_name(origin.file.shards_folder))
    named = [origin.name, origin.skipped_name, *(one.sidecar.name for one in origin.pairs)]
    facts = folder.facts(named), below.facts([one.shard.name for one in origin.pairs])
    for place, found in zip((folder, below), facts, strict=True):
        check_facts(place.full_path, found)
    data, old = None, None
    if origin.name in facts[0]:
        data = b""
        with suppress(OSError):
            data = folder.read(origin.name)
        file = folder.full_path(origin.name)
        if shard_names(data) is None:
            what = "a file that is no dataset file of shardtool"
            raise OutputExists(file, what, remedy="Choose another folder, or move it away.")
        with suppress(CorruptShard):
            old = read_dataset(data, file)
    old_below = below if old is None else _below(folder, local_name(old.shards_folder))
    return CopyDestination(origin, folder, below, facts, data, old, old_below)


def state_of(goal: CopyDestination, pair: ShardPair, meter: Meter, trust: Trust | None = None) -> ShardState:
    """Return what is there of a shard and its sidecar; `trust`: by what a shard of the right size is known unread."""
    sidecar = _is_right(goal.folder, goal.facts[0], pair.sidecar, meter)
    fact = goal.facts[1].get(pair.shard.name)
    if fact is None or fact.size != pair.shard.size:
        return ShardState(None if fact is None else False, sidecar)
    if sidecar and trust and _is_trusted(goal, pair.shard, fact, trust, meter):
        return ShardState(shard=True, sidecar=True)
    if pair.shard.crc is not None and (goal.below.hides or sidecar is None):  # a kill leaves a shard before its sidecar
        return ShardState(_is_right(goal.below, goal.facts[1], pair.shard, meter), sidecar)
    return ShardState(bool(sidecar) and _is_same_object(goal.below, pair.shard, meter), sidecar)


def decide(goal: CopyDestination, states: Mapping[str, ShardState], *, overwrite: bool) -> CopyPlan:
    """Return what is to be done.

    Args:
        goal: The place.
        states: What is there of each shard, by its name.
        overwrite: Whether another dataset, or other files, may be replaced.

    Raises:
        OutputExists: They would be, and that was not asked for.
    """
    cure = f"Choose another folder, or {flag('overwrite')}."
    if not goal.has_grown and not overwrite:
        raise OutputExists(goal.dataset_file, _rival(goal), expected=f"{goal.origin.path}, or none", remedy=cure)
    todo, others = CopyPlan(), list[str]()
    listed = {_content(one) for one in goal.old.shards} if goal.old else set()
    entries = {local_name(one.name): _content(one) for one in goal.origin.file.shards}
    for pair in goal.origin.pairs:
        state = states[pair.shard.name]
        parts = ((pair.shard, state.shard), (pair.sidecar, state.sidecar))
        wrong = [one.name for one, right in parts if right is False]
        if state.is_right:
            todo.kept += 1
        elif not wrong:
            todo.missing.append((pair, state))
        else:
            todo.replaced.append((pair, state))
            (todo.mended if entries[pair.shard.name] in listed else others).extend(wrong)
    if others and not overwrite:
        found = f"{counted(len(others), 'file')} there already with other bytes: {listing(others, 3)}"
        raise OutputExists(goal.folder.path or ".", printable(found), remedy=cure)
    return todo


def _rival(goal: CopyDestination) -> str:
    if goal.old is None:
        return "a dataset file that is damaged"
    if goal.old.shards_folder != goal.origin.file.shards_folder:
        return "the dataset file of shards in another folder"
    ours = {*map(_content, goal.origin.file.shards)}
    others = [one.name for one in goal.old.shards if _content(one) not in ours]
    return f"a dataset with {counted(len(others), 'shard')} that the source does not have so: {listing(others, 3)}"


def _content(entry: ShardEntry) -> tuple[object, ...]:
    return entry.name, entry.size, entry.crc, entry.sidecar_size, entry.sidecar_crc


def _is_right(folder: OutputFolder, facts: Mapping[str, FileFact], original: Original, meter: Meter) -> bool | None:
    """Tell whether a file has the bytes that it should have; None: there is none."""
    fact = facts.get(original.name)
    if fact is None:
        return None
    if fact.size != original.size:
        return False
    crc, buffer = 0, memoryview(bytearray(_BLOCK))
    with suppress(OSError):  # a link, or what cannot be read
        for got in folder.blocks(original.name, buffer):
            if isinstance(got, int):
                crc = crc32c(buffer[:got], crc)
                meter.took(got)
        return crc == original.crc
    return False


def _is_trusted(goal: CopyDestination, shard: Original, fact: FileFact, trust: Trust, meter: Meter) -> bool:
    """Tell whether a shard of the right size is known without reading it; two stores are asked for its MD5."""
    if is_url(shard.path):
        return trust == "size" and (goal.below.hides or _is_same_object(goal.below, shard, meter))
    return trust == "size" or (goal.below.hides and fact.mtime_ns == file_stat(shard.path).st_mtime_ns)


def _is_same_object(folder: OutputFolder, original: Original, meter: Meter) -> bool:
    """Tell whether the MD5 of an object, where its store says it, is that of the original, where that can be known."""
    there = folder.md5(original.name)
    if there is None or is_web(original.path):
        return True
    if is_url(original.path):
        return open_folder(folder_of(original.path)).md5(original.name) in (None, there)
    md5 = hashlib.md5(usedforsecurity=False)
    for block in blocks_of(original.path):
        md5.update(block)
        meter.took(len(block))
    return md5.hexdigest() == there


def _below(folder: OutputFolder, names: str) -> OutputFolder:
    """Return the folder of the shards, which is no link that leads elsewhere."""
    for name in names.split("/") if names else ():
        fact = folder.facts([name]).get(name)
        if fact is not None and not fact.is_folder:
            raise OutputExists(folder.full_path(name), "no folder", remedy="Move it away.")
        folder = open_folder(folder.full_path(name))
    return folder


# The indexes of other tools that lie beside a dataset: they are copied with it where they are right.
#
# No checksum covers them, so each is held against what the sidecars say of the shards, which were copied and checked.
# What has the name of an index at the destination already stays. On the web nothing is listed, and so none is found.


_LIST_LIMIT = 2**28  # bytes of a file that lists a folder's shards


def copy_indexes(goal: CopyDestination, notes: Notes) -> int:
    """Copy the index files that lead into a shard, where they are right; return how many were.

    Raises:
        OutputFailed: One cannot be written.
    """
    origin = goal.origin
    if is_web(origin.path) or origin.file.shards_folder:
        return 0
    try:
        names, copied, wrong = {*names_in(origin.folder, needed=True)}, 0, list[str]()
    except AccessRefused:
        notes.add("indexes of other tools were not looked for: the store does not let us list")
        return 0
    for pair in origin.pairs:
        for name in sorted(_names_of(pair, names) - {origin.name}):
            data = _index_data(join(origin.folder, name), name, pair)
            if data is None:
                wrong.append(output_text(name))
            elif data and _put(goal.folder, name, data):
                copied += 1
    if wrong:
        found = f"{counted(len(wrong), 'index file')} of other tools"
        notes.add(f"{found} not copied, for they are not those of their shards: {listing(sorted(wrong), 3)}")
    return copied


def copy_lists(origins: Sequence[CopySource], where: str) -> int:
    """Copy the files of other tools that list the shards of a folder, where all of those are copied; return how many.

    Args:
        origins: The datasets of one folder that were copied.
        where: The folder that they were copied to.

    Raises:
        OutputFailed: One cannot be written.
    """
    source, folder = origins[0].folder, open_folder(where)
    if is_web(source) or any(origin.file.shards_folder for origin in origins):
        return 0
    shards = {shard.name: shard.samples for origin in origins for shard in origin.file.shards}
    copied = 0
    for name, data in _right_lists(origins, source, shards):
        copied += _put(folder, name, data)
    return copied


def _right_lists(origins: Sequence[CopySource], source: str, shards: dict[str, int]) -> Iterator[tuple[str, bytes]]:
    """Yield the paths and the bytes of such files, in the order in which they should appear."""
    for once in ONCE.values():
        counts = once.counts(_read(join(source, once.info), _LIST_LIMIT))
        if counts and counts == {name: shards[name] for name in counts if name in shards}:
            with suppress(InvalidRequest):
                paths = once.encode([origin.file.split_shards() for origin in origins])
                yield from ((path, _read(join(source, path), _LIST_LIMIT)) for path in paths)
    readme = _read(join(source, README), _LIST_LIMIT)
    if is_ours(readme) and listed(readme, [*map(output_text, names_in(source))]) == {*shards}:
        yield README, readme


def _names_of(pair: ShardPair, names: set[str]) -> set[str]:
    """Return the files that may be indexes of a shard, by their names."""
    if is_packed_name(pair.shard.name):
        return set()
    return {index_name(pair.shard.name, export) for export in EXPORTS.values() if export.suffix} & names


def _index_data(path: str, name: str, pair: ShardPair) -> bytes | None:
    """Return the bytes of a shard's index; empty: the file is something else; None: it is not that of this shard."""
    from shardtool.dataset.sidecar_read import read_sidecar

    try:
        head, size = read_head(path, HEAD_SIZE)
        if not (form := form_of(name, head, size)):
            return b""
        sidecar = read_sidecar(read_small(pair.sidecar.path), pair.sidecar.path, None, metadata=False)
        shard = IndexedShard(output_text(pair.shard.name), pair.shard.size, sidecar.plain_table())
        if size > index_limit(shard):
            return None
        data = read_small(path)
        return None if difference(form, data, shard) else data
    except (OSError, KeyError, CorruptShard):
        return None


def _read(path: str, limit: int) -> bytes:
    """Return a whole file; nothing where there is none, or it cannot be read, which a store may say of none, too."""
    try:
        return read_small(path, limit) if is_file(path) else b""
    except (OSError, AccessRefused):
        return b""


def _put(folder: OutputFolder, path: str, data: bytes) -> bool:
    """Write a file where there is none of its name; return whether that was done."""
    below, name = os.path.split(path)
    if below:
        fact = folder.facts([below]).get(below)
        if fact is not None and not fact.is_folder:  # a link to one would lead elsewhere
            return False
        folder = open_folder(folder.full_path(below))
    if not data or folder.facts([name]):
        return False
    folder.ready()
    folder.publish(write_whole(folder, name, data))
    return True
