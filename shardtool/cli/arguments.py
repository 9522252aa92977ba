"""Split arguments into sources or datasets and the output, even if a shell has expanded a shard pattern."""

from __future__ import annotations

import os
import re
import shlex
from itertools import groupby
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest
from shardtool.pattern import DATASET_SUFFIX
from shardtool.shard_names import is_shard_name
from shardtool.storage.lookup import list_folder_names
from shardtool.storage.remote.address import is_url

if TYPE_CHECKING:
    from collections.abc import Sequence


_PATTERN_LAST = "a quoted shard pattern as the last argument, such as 'out-{000000..}.tar'"
_PATTERN = re.compile(r"[{<%]")
_PATTERN_MARKS = re.compile(r"[{<%*?[]")  # characters of patterns and globs, which name several shards
_NUMBERED_NAME = re.compile(r"(.*?)([0-9]{1,18})(\.[^/0-9]*)", re.DOTALL)


def split_sources(names: tuple[str, ...]) -> tuple[str | list[str], list[str]]:
    """Split `SOURCE... OUTPUT` into sources and output.

    All shard names at the end belong to the output: a shell may have expanded its pattern. If the first argument is an
    archive, which also looks like a shard, only consecutive numbers at the end belong to the output.
    """
    output_start = len(names) - 1
    first, last = names[0], names[output_start]
    if output_start > 0 and _is_source(last) and _is_output(first):
        raise _swapped_arguments(first, last, "a shard pattern before the source", "SOURCE before OUTPUT")
    if output_start < 1:
        raise InvalidRequest("OUTPUT", "not given", expected=_PATTERN_LAST)
    is_archive = is_shard_name(os.path.basename(names[0]))
    while output_start > 1 and is_shard_name(os.path.basename(names[output_start - 1])):
        if is_archive and not _is_next_number(names[output_start - 1], names[output_start]):
            break
        output_start -= 1
    sources = [*names[:output_start]]
    return sources[0] if len(sources) == 1 else sources, [*names[output_start:]]


def _is_source(name: str) -> bool:
    return not is_shard_name(os.path.basename(name)) and os.path.exists(name)


def _is_output(name: str) -> bool:
    if is_url(name):
        return False
    head = re.split(_PATTERN, name, maxsplit=1)[0]
    if head == name:
        return is_shard_name(os.path.basename(name)) and not os.path.lexists(name)
    folder, start = os.path.split(head)
    return not any(name.startswith(start) and is_shard_name(name) for name in list_folder_names(folder or "."))


def _swapped_arguments(first: str, last: str, found: str, expected: str) -> InvalidRequest:
    remedy = f"Swap them: {shlex.quote(last)} {shlex.quote(first)}."
    return InvalidRequest(first, found, expected=expected, remedy=remedy)


def split_datasets(names: tuple[str, ...]) -> tuple[list[str | list[str]], list[str]]:
    """Split `DATASET... OUTPUT` into datasets and output.

    The output is the last argument if it is a pattern, else the names with consecutive numbers at the end.
    """
    output_start = len(names) - 1
    first, last = names[0], names[output_start]
    if output_start == 1 and _is_source(last) and _is_output(first):
        raise _swapped_arguments(first, last, "a shard pattern before the dataset", "DATASET before OUTPUT")
    if not _PATTERN.search(names[output_start]):
        while output_start > 0 and _is_next_number(names[output_start - 1], names[output_start]):
            output_start -= 1
    if output_start < 1:
        found = "not given" if len(names) == 1 else "cannot be distinguished from DATASET"
        raise InvalidRequest("OUTPUT", found, expected=_PATTERN_LAST)
    return _group_shards(names[:output_start]), [*names[output_start:]]


def split_destination(names: tuple[str, ...], *missing: str) -> tuple[list[str], str]:
    """Split names into datasets and destination; without a destination, raise an error with the parts `missing`."""
    *datasets, last = names
    if not datasets:
        raise InvalidRequest(*missing)
    if (
        len(datasets) == 1
        and os.path.isfile(last)
        and last.endswith(DATASET_SUFFIX)
        and not _PATTERN_MARKS.search(datasets[0])
    ):
        first = datasets[0]
        holds_shards = any(is_shard_name(name) for name in list_folder_names(first)) if os.path.isdir(first) else False
        if not (is_url(first) or os.path.isfile(first) or holds_shards):
            raise _swapped_arguments(first, last, f"before the dataset file {last}", f"DATASET before {missing[0]}")
    return datasets, last


def split_keys(names: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Split `DATASET... [KEY...]` into datasets and keys: a key is neither a path, a URL, nor the name of a dataset."""

    def is_dataset(name: str) -> bool:
        is_named = "*" in name or name.endswith(DATASET_SUFFIX) or is_shard_name(os.path.basename(name))
        return is_named or is_url(name) or os.path.lexists(name)

    keys = [name for name in names[1:] if not is_dataset(name)]
    return [name for name in names if name not in keys], keys


def _group_shards(names: Sequence[str]) -> list[str | list[str]]:
    """Group consecutive shards of a folder into one dataset: a shell may have expanded a pattern."""

    def folder(name: str) -> str | None:
        is_shard = is_shard_name(os.path.basename(name)) and not _PATTERN_MARKS.search(name)
        return os.path.dirname(name) if is_shard else None

    datasets: list[str | list[str]] = []
    for shard_folder, group in groupby(names, folder):
        members = [*group]
        datasets += members if shard_folder is None else [members]
    return datasets


def _is_next_number(name: str, following: str) -> bool:
    first, second = _NUMBERED_NAME.fullmatch(name), _NUMBERED_NAME.fullmatch(following)
    if first is None or second is None:
        return False
    same = (first[1], first[3]) == (second[1], second[3])
    same_width = len(first[2]) == len(second[2]) or not second[2].startswith("0")  # 999 and 1000
    return same and same_width and int(first[2]) + 1 == int(second[2])
