"""The dataset that samples are appended to: is it whole, as far as a listing shows, and which names are left?

Shards and sidecars are looked at by their sizes, and never read here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from shardtool.dataset.dataset_file import read_dataset
from shardtool.errors import CorruptShard, InvalidRequest, OutputExists, listing
from shardtool.pattern import SIDECAR_SUFFIX, ShardPattern, sidecar_name, text_of
from shardtool.values import counted, output_text, to_bytes
from shardtool.wording import either, option

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.storage.folders import OutputFolder
    from shardtool.storage.staging import FileFact

_REMEDY = "`shardtool verify` shows what is damaged."
_WIDER = "Use an open range such as out-{000000..}.tar, or a wider one."


@dataclass(frozen=True, slots=True)
class Append:
    """An append to a dataset.

    Attributes:
        old: What the dataset file says of it.
        data: The bytes of that file.
        first: The number of the append's first shard.
    """

    old: DatasetFile
    data: bytes
    first: int


class NewAppend(Append):
    """Nothing of it is there."""

    __slots__ = ()


class KilledAppend(Append):
    """It was killed: some of its shards are there, and the dataset file does not list them."""

    __slots__ = ()


class EndedAppend(Append):
    """It was killed after its end: the dataset file lists its shards. Nothing is published, only compared."""

    __slots__ = ()


def check_old(
    folder: OutputFolder, pattern: ShardPattern, existing: Mapping[str, FileFact], data: bytes
) -> DatasetFile:
    """Return the dataset that is there, if samples can be appended to it under the names of a pattern.

    Args:
        folder: Where it lies.
        pattern: The names of the shards, with those of the new ones.
        existing: What is known of the files that the pattern owns.
        data: The bytes of its dataset file.

    Raises:
        CorruptShard: The dataset file is damaged, or a file that it lists is missing or has another size.
        OutputExists: A file that it lists is a link: what it leads to may be changed by others.
        InvalidRequest: The pattern's first names are not those of its shards.
    """
    where = folder.full_path(pattern.dataset_file)
    old = read_dataset(data, where)
    _check_names(old, pattern, where)
    for shard in old.shards:
        for name, size in ((shard.name, shard.size), (shard.sidecar, shard.sidecar_size)):
            fact = existing.get(os.fsdecode(to_bytes(name)))
            if fact is None or fact.size != size:
                found = "no such file" if fact is None else f"{fact.size:,} bytes"
                expected = f"{size:,} bytes, as the dataset file says"
                if os.path.islink(path := folder.full_path(name)):
                    raise OutputExists(path, "a symbolic link", expected="the file itself, to append to")
                raise CorruptShard(path, found, expected=expected, remedy=_REMEDY)
    return old


def _check_names(old: DatasetFile, pattern: ShardPattern, where: str) -> None:
    count = len(old.shards)
    known = count if pattern.count is None else min(count, pattern.count)
    names = [output_text(pattern.shard(number)) for number in range(known)]
    for ours, theirs in zip_longest(names, (shard.name for shard in old.shards)):
        if ours != theirs:
            found = f"the pattern calls a shard {ours}" if ours else f"{pattern.count:,} names for {count:,} shards"
            expected = f"{theirs}, as {where} does" if ours else f"the pattern of {where}, which is {old.pattern}"
            raise InvalidRequest(pattern.text, found, expected=expected, remedy="Use that dataset's own pattern.")
    if old.format != pattern.format:
        raise InvalidRequest(pattern.text, f"{pattern.format} shards", expected=f"{old.format}, as {where} says")


def check_none_left(folder: OutputFolder, later: Collection[str]) -> None:
    """Refuse what a killed append has left, where it is not to be resumed.

    Raises:
        OutputExists: There is such a file.
    """
    if later:
        found = f"{counted(len(later), 'file')} of an append that did not end: {listing(sorted(later), 3)}"
        remedy = (
            f"Finish it with {option('if_exists', 'append-resume')}, or remove them: the dataset does not list them."
        )
        raise OutputExists(folder.path or ".", found, remedy=remedy)


def nothing_there(folder: OutputFolder, pattern: ShardPattern, existing: Collection[str]) -> InvalidRequest:
    """Return the error that there is no dataset to append to."""
    where = folder.full_path(pattern.dataset_file)
    if existing:
        found = f"no dataset file, beside {counted(len(existing), 'file')} of its name"
        finish = option("if_exists", "resume") + either("", ", without --append")
        remedy = f"Finish the run that made them with {finish}; those of another tool, `index` first."
        return InvalidRequest(where, found, remedy=remedy)
    return InvalidRequest(
        where, "nothing to append to: no such file", remedy=f"Leave {option('if_exists', 'append')} out."
    )


def later_files(pattern: ShardPattern, existing: Collection[str], count: int) -> list[str]:
    """Return those of the pattern's files that are of shard `count`, counted from 0, or of a later one."""
    if pattern.names is not None:
        later = {file for name in pattern.names[count:] for file in (name, sidecar_name(name))}
        return sorted(later.intersection(existing))
    shared = (pattern.dataset_file, pattern.skipped_file)
    return sorted(name for name in existing if name not in shared and _number(pattern, name) >= count)


def _number(pattern: ShardPattern, name: str) -> int:
    """Return the number of the shard that a file which the pattern owns belongs to, counted from 0."""
    stem, tail = _stem(name), _stem(pattern.suffix)
    return int(stem[len(pattern.prefix) : len(stem) - len(tail)]) - pattern.first


def _stem(name: str) -> str:
    return sidecar_name(name).removesuffix(SIDECAR_SUFFIX)


def names_left(pattern: ShardPattern, taken: int) -> ShardPattern:
    """Return the pattern of the names after the first `taken`.

    Raises:
        InvalidRequest: There are none.
    """
    if not taken:
        return pattern
    if pattern.count is not None and pattern.count <= taken:
        raise InvalidRequest(pattern.text, f"all of its {counted(pattern.count, 'name')} taken", remedy=_WIDER)
    count = None if pattern.count is None else pattern.count - taken
    if pattern.names is not None:
        names = pattern.names[taken:]
        return replace(pattern, count=count, names=names, text=text_of(names))
    first, width = pattern.first + taken, pattern.width
    last = "" if count is None else f"{first + count - 1:0{width}d}"
    text = f"{pattern.prefix}{{{first:0{width}d}..{last}}}{pattern.suffix}"
    return replace(pattern, first=first, count=count, text=text)
