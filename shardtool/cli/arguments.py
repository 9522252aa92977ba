"""Split the arguments of a command into sources or datasets, and the output.

A shell may have expanded a shard pattern into many names.
"""

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


_PATTERN_LAST = "a shard pattern as the last argument, quoted, such as 'out-{000000..}.tar'"


_PATTERN = re.compile(r"[{<%]")


_PATTERN_MARKS = re.compile(r"[{<%*?[]")  # of patterns and globs: each may mean several shards


_NUMBERED_NAME = re.compile(r"(.*?)([0-9]{1,18})(\.[^/0-9]*)", re.DOTALL)


def split_sources(names: tuple[str, ...]) -> tuple[str | list[str], list[str]]:
    """Return the source, or several, and the output that `SOURCE... OUTPUT` means.

    The output is the last argument, with all names of shards before it, for a shell may have expanded its pattern;
    where the first argument is an archive, which has such a name too, with those that count up to it.

    Raises:
        InvalidRequest: There is only one argument, or the output is before the source.
    """
    at = len(names) - 1
    first, last = names[0], names[at]
    if at > 0 and _is_source(last) and _is_output(first):
        raise _swapped_arguments(first, last, "a shard pattern before the source", "SOURCE before OUTPUT")
    if at < 1:
        raise InvalidRequest("OUTPUT", "not given", expected=_PATTERN_LAST)
    is_archive = is_shard_name(os.path.basename(names[0]))
    while at > 1 and is_shard_name(os.path.basename(names[at - 1])):
        if is_archive and not _is_next_number(names[at - 1], names[at]):
            break
        at -= 1
    sources = [*names[:at]]
    return sources[0] if len(sources) == 1 else sources, [*names[at:]]


def _is_source(name: str) -> bool:
    """Tell whether a name can only be that of something to read: an existing file or folder that is no shard."""
    return not is_shard_name(os.path.basename(name)) and os.path.exists(name)


def _is_output(name: str) -> bool:
    """Tell whether a name can only be that of shards to write: a local pattern, or shard, of which no file exists."""
    if is_url(name):
        return False
    head = re.split(_PATTERN, name, maxsplit=1)[0]
    if head == name:
        return is_shard_name(os.path.basename(name)) and not os.path.lexists(name)
    folder, start = os.path.split(head)
    return not any(one.startswith(start) and is_shard_name(one) for one in list_folder_names(folder or "."))


def _swapped_arguments(first: str, last: str, found: str, expected: str) -> InvalidRequest:
    """Return the error of two arguments in the wrong order."""
    remedy = f"Swap them: {shlex.quote(last)} {shlex.quote(first)}."
    return InvalidRequest(first, found, expected=expected, remedy=remedy)


def split_datasets(names: tuple[str, ...]) -> tuple[list[str | list[str]], list[str]]:
    """Return the datasets and the output that `DATASET... OUTPUT` means.

    The output is the last argument where that is a pattern. Otherwise a shell has expanded one: then it is the names
    at the end that differ in their number only, and count up.

    Raises:
        InvalidRequest: It is unclear which is which.
    """
    at = len(names) - 1
    first, last = names[0], names[at]
    if at == 1 and _is_source(last) and _is_output(first):
        raise _swapped_arguments(first, last, "a shard pattern before the dataset", "DATASET before OUTPUT")
    if not _PATTERN.search(names[at]):
        while at > 0 and _is_next_number(names[at - 1], names[at]):
            at -= 1
    if at < 1:
        found = "not given" if len(names) == 1 else "cannot be told apart from DATASET"
        raise InvalidRequest("OUTPUT", found, expected=_PATTERN_LAST)
    return _group_shards(names[:at]), [*names[at:]]


def split_destination(names: tuple[str, ...], *missing: str) -> tuple[list[str], str]:
    """Return the names of datasets, and where they go to.

    Raises:
        InvalidRequest: There is only one name.
    """
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


def _group_shards(names: Sequence[str]) -> list[str | list[str]]:
    """Return datasets, shards of one folder that follow each other being one: a shell has expanded a pattern."""

    def folder(name: str) -> str | None:
        is_shard = is_shard_name(os.path.basename(name)) and not _PATTERN_MARKS.search(name)
        return os.path.dirname(name) if is_shard else None

    found: list[str | list[str]] = []
    for above, group in groupby(names, folder):
        together = [*group]
        found += together if above is None else [together]
    return found


def _is_next_number(one: str, other: str) -> bool:
    """Tell whether a name is the other's, but for a number that is the next one."""
    first, second = _NUMBERED_NAME.fullmatch(one), _NUMBERED_NAME.fullmatch(other)
    if first is None or second is None:
        return False
    same = (first[1], first[3]) == (second[1], second[3])
    wide = len(first[2]) == len(second[2]) or not second[2].startswith("0")  # 999 and 1000
    return same and wide and int(first[2]) + 1 == int(second[2])
