"""Where a copy goes: what is there already, what of it is right, and whether the rest may be touched.

Nothing is changed here. What is there is right if it has the bytes that the source's dataset file says: of a folder of
a file system, all of them are read. In a store a shard is right if it has the right size, its sidecar, which comes
after the whole of a shard, has the right bytes, and the MD5 that the store says of it is that of the source, as far as
both are to be had without reading an object. A copy takes the place of nothing else, unless that was asked for; only
shards that the dataset file there lists are removed, for only they are known to be the dataset's.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardtool.dataset.dataset_file import read_dataset, shard_names
from shardtool.errors import CorruptShard, OutputExists, listing, printable
from shardtool.fingerprint import crc32c
from shardtool.storage.copying import blocks_of
from shardtool.storage.folders import open_folder
from shardtool.storage.places import folder_of, is_url, is_web
from shardtool.storage.reading import file_stat
from shardtool.storage.staging import check_facts
from shardtool.transfer.origin import local_name
from shardtool.values import counted
from shardtool.wording import flag

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardtool.dataset.dataset_file import DatasetFile, ShardEntry
    from shardtool.storage.copying import Original
    from shardtool.storage.folders import OutputFolder
    from shardtool.storage.staging import FileFact
    from shardtool.transfer.origin import Origin, Pair
    from shardtool.transfer.threads import Meter
    from shardtool.values import Trust

_BLOCK = 2**20


@dataclass(frozen=True, slots=True)
class Goal:
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

    origin: Origin
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
class State:
    """What is there of a shard and of its sidecar: True if it is right, False if it is not, None if nothing is."""

    shard: bool | None
    sidecar: bool | None

    @property
    def is_right(self) -> bool:
        """Whether nothing is to be copied."""
        return bool(self.shard and self.sidecar)


@dataclass(slots=True)
class Todo:
    """What a copy has to do.

    Attributes:
        missing: Shards to be copied, of which nothing that is there is replaced; and their states.
        replaced: Those in whose place there is something.
        kept: How many are right.
        mended: The names of files that are replaced since they are not what the dataset file beside them says.
    """

    missing: list[tuple[Pair, State]] = field(default_factory=list)
    replaced: list[tuple[Pair, State]] = field(default_factory=list)
    kept: int = 0
    mended: list[str] = field(default_factory=list)

    @property
    def all(self) -> list[tuple[Pair, State]]:
        """All shards that are copied, or whose sidecars are."""
        return [*self.missing, *self.replaced]

    @property
    def size(self) -> int:
        """The bytes that are copied."""
        shards = sum(pair.shard.size for pair, state in self.all if not state.shard)
        return shards + sum(pair.sidecar.size for pair, state in self.all if not state.sidecar)


def look(origin: Origin, where: str) -> Goal:
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
    return Goal(origin, folder, below, facts, data, old, old_below)


def state_of(goal: Goal, pair: Pair, meter: Meter, trust: Trust | None = None) -> State:
    """Return what is there of a shard and its sidecar; `trust`: by what a shard of the right size is known unread."""
    sidecar = _is_right(goal.folder, goal.facts[0], pair.sidecar, meter)
    fact = goal.facts[1].get(pair.shard.name)
    if fact is None or fact.size != pair.shard.size:
        return State(None if fact is None else False, sidecar)
    if sidecar and trust and _is_trusted(goal, pair.shard, fact, trust, meter):
        return State(shard=True, sidecar=True)
    if pair.shard.crc is not None and (goal.below.hides or sidecar is None):  # a kill leaves a shard before its sidecar
        return State(_is_right(goal.below, goal.facts[1], pair.shard, meter), sidecar)
    return State(bool(sidecar) and _is_same_object(goal.below, pair.shard, meter), sidecar)


def decide(goal: Goal, states: Mapping[str, State], *, overwrite: bool) -> Todo:
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
    todo, others = Todo(), list[str]()
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


def _rival(goal: Goal) -> str:
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


def _is_trusted(goal: Goal, shard: Original, fact: FileFact, trust: Trust, meter: Meter) -> bool:
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
