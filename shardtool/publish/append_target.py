"""The existing dataset that an append extends: check that it is complete, and find the remaining shard names.

Shards and sidecars are checked by size only and never read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from shardtool.dataset.dataset_file import (
    DatasetFile,
    parse_dataset,
)
from shardtool.errors import InvalidRequest, OutputExists
from shardtool.names import to_local_name, to_output_name
from shardtool.pattern import ShardPattern, abbreviate_names, sidecar_name
from shardtool.publish import listed_files
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from shardtool.storage.file_system import EntryInfo
    from shardtool.storage.folders import OutputFolder


_USE_WIDER_RANGE = "Use an open range such as out-{000000..}.tar, or a wider one."


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


class FinishedAppend(Append):
    """It was killed after its end: the dataset file lists its shards. Nothing is published, only compared."""

    __slots__ = ()


def check_existing_dataset(
    folder: OutputFolder, pattern: ShardPattern, existing: Mapping[str, EntryInfo], data: bytes
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
    old = parse_dataset(data, where)
    _check_names(old, pattern, where)
    for shard in old.shards:
        for name, size in ((shard.name, shard.size), (shard.sidecar, shard.sidecar_size)):
            fact = existing.get(to_local_name(name))
            if fact is None or fact.size != size:
                if os.path.islink(path := folder.full_path(name)):
                    raise OutputExists(path, "a symbolic link", expected="the file itself, to append to")
                raise listed_files.wrong_size_error(path, None if fact is None else fact.size, size)
    return old


def _check_names(old: DatasetFile, pattern: ShardPattern, where: str) -> None:
    count = len(old.shards)
    known = count if pattern.count is None else min(count, pattern.count)
    names = [to_output_name(pattern.shard(number)) for number in range(known)]
    for ours, theirs in zip_longest(names, (shard.name for shard in old.shards)):
        if ours != theirs:
            found = f"the pattern calls a shard {ours}" if ours else f"{pattern.count:,} names for {count:,} shards"
            expected = f"{theirs}, as {where} does" if ours else f"the pattern of {where}, which is {old.pattern}"
            raise InvalidRequest(pattern.text, found, expected=expected, remedy="Use that dataset's own pattern.")
    if old.format != pattern.format:
        raise InvalidRequest(pattern.text, f"{pattern.format} shards", expected=f"{old.format}, as {where} says")


def list_later_files(pattern: ShardPattern, existing: Collection[str], count: int) -> list[str]:
    """Return those of the pattern's files that are of shard `count`, counted from 0, or of a later one."""
    if pattern.names is not None:
        later = {file for name in pattern.names[count:] for file in (name, sidecar_name(name))}
        return sorted(later.intersection(existing))
    found = []
    for name in {*existing} - {pattern.dataset_file, pattern.skipped_file}:
        digits = sidecar_name(name).removeprefix(pattern.prefix).removesuffix(sidecar_name(pattern.suffix))
        if int(digits) - pattern.first >= count:
            found.append(name)
    return sorted(found)


def remaining_names(pattern: ShardPattern, taken: int) -> ShardPattern:
    """Return the pattern of the names after the first `taken`.

    Raises:
        InvalidRequest: There are none.
    """
    if not taken:
        return pattern
    if pattern.count is not None and pattern.count <= taken:
        raise InvalidRequest(
            pattern.text, f"all of its {pluralize(pattern.count, 'name')} taken", remedy=_USE_WIDER_RANGE
        )
    count = None if pattern.count is None else pattern.count - taken
    if pattern.names is not None:
        names = pattern.names[taken:]
        return replace(pattern, count=count, names=names, text=abbreviate_names(names))
    first, width = pattern.first + taken, pattern.width
    last = "" if count is None else f"{first + count - 1:0{width}d}"
    text = f"{pattern.prefix}{{{first:0{width}d}..{last}}}{pattern.suffix}"
    return replace(pattern, first=first, count=count, text=text)
