"""Check the dataset to append to, without reading its shards and sidecars."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from shardtool.dataclass import dataclass
from shardtool.dataset.dataset_file import DatasetFile, parse_dataset
from shardtool.errors import InvalidRequest, OutputExists
from shardtool.names import to_local_name, to_output_name
from shardtool.pattern import ShardPattern, abbreviate_names, sidecar_name
from shardtool.publish import listed_files
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from shardtool.storage.file_system import EntryInfo
    from shardtool.storage.folders import OutputFolder


_USE_WIDER_RANGE = "Use an open range such as out-{000000..}.tar, or a wider range."


@dataclass(frozen=True, slots=True)
class Append:
    """A run that appends to the dataset `old`.

    Attributes:
        data: The bytes of the old dataset file.
        first: Number of the first new shard.
    """

    old: DatasetFile
    data: bytes
    first: int


class FinishedAppend(Append):
    """An append that an earlier run has published. This run only checks the new shards."""

    __slots__ = ()


def check_existing_dataset(
    folder: OutputFolder, pattern: ShardPattern, existing: Mapping[str, EntryInfo], data: bytes
) -> DatasetFile:
    """Parse the dataset file `data`. Check the shard names, and the sizes of shards and sidecars."""
    where = folder.full_path(pattern.dataset_file)
    old = parse_dataset(data, where)
    _check_names(old, pattern, where)
    for shard in old.shards:
        for name, size in ((shard.name, shard.size), (shard.sidecar, shard.sidecar_size)):
            file_info = existing.get(to_local_name(name))
            if file_info is None or file_info.size != size:
                if os.path.islink(path := folder.full_path(name)):
                    raise OutputExists(path, "a symbolic link", expected="a regular file")
                raise listed_files.wrong_size_error(path, None if file_info is None else file_info.size, size)
    return old


def _check_names(old: DatasetFile, pattern: ShardPattern, where: str) -> None:
    count = len(old.shards)
    compared = count if pattern.count is None else min(count, pattern.count)
    names = [to_output_name(pattern.shard(number)) for number in range(compared)]
    for pattern_name, shard_name in zip_longest(names, (shard.name for shard in old.shards)):
        if pattern_name != shard_name:
            found, expected = f"a pattern with a shard {pattern_name}", f"{shard_name}, as in {where}"
            if not pattern_name:
                found = f"{pattern.count:,} names for {count:,} shards"
                expected = f"{old.pattern}, the pattern in {where}"
            raise InvalidRequest(pattern.text, found, expected=expected, remedy="Use the pattern of that dataset.")
    if old.format != pattern.format:
        raise InvalidRequest(pattern.text, f"{pattern.format} shards", expected=f"{old.format}, as in {where}")


def list_later_files(pattern: ShardPattern, existing: Collection[str], count: int) -> list[str]:
    """Return the existing shards and sidecars after the first `count` shards of the pattern."""
    if pattern.names is not None:
        later = {file for name in pattern.names[count:] for file in (name, sidecar_name(name))}
        return sorted(later.intersection(existing))
    later_files = []
    for name in {*existing} - {pattern.dataset_file, pattern.skipped_file}:
        digits = sidecar_name(name).removeprefix(pattern.prefix).removesuffix(sidecar_name(pattern.suffix))
        if int(digits) - pattern.first >= count:
            later_files.append(name)
    return sorted(later_files)


def remaining_names(pattern: ShardPattern, used: int) -> ShardPattern:
    """Return the shard pattern without its first `used` names."""
    if not used:
        return pattern
    if pattern.count is not None and pattern.count <= used:
        raise InvalidRequest(pattern.text, f"all {pluralize(pattern.count, 'name')} used", remedy=_USE_WIDER_RANGE)
    count = None if pattern.count is None else pattern.count - used
    if pattern.names is not None:
        names = pattern.names[used:]
        return replace(pattern, count=count, names=names, text=abbreviate_names(names))
    first, width = pattern.first + used, pattern.width
    last = "" if count is None else f"{first + count - 1:0{width}d}"
    text = f"{pattern.prefix}{{{first:0{width}d}..{last}}}{pattern.suffix}"
    return replace(pattern, first=first, count=count, text=text)
