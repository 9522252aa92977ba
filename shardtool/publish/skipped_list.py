"""The list of skipped samples, `out.skipped`: encode, read, check and merge its rows.

Source: docs/format.md, "`out.skipped`".
"""

from __future__ import annotations

import heapq
import json
from collections import Counter
from typing import TYPE_CHECKING

from shardtool.errors import CorruptShard, os_error_text, printable
from shardtool.fingerprint import crc32c
from shardtool.names import to_bytes
from shardtool.publish.listed_files import RUN_VERIFY
from shardtool.skipped import Skipped, read_row
from shardtool.storage.files import read_small
from shardtool.storage.paths import join
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shardtool.dataset.dataset_file import DatasetFile


_ROW_KEYS = ("key", "path", "code", "message")


def encode_skipped(skipped: Iterable[Skipped]) -> bytes:
    """Return the bytes of the list of what was left out."""
    rows = [{name: printable(getattr(one, name)) for name in _ROW_KEYS} for one in skipped]
    return b"".join(json.dumps(row, ensure_ascii=True).encode() + b"\n" for row in rows)


def parse_skipped(data: bytes, where: str) -> list[Skipped]:
    """Return the rows of a list.

    Args:
        data: Its bytes.
        where: Its name, for messages.

    Raises:
        CorruptShard: It is none.
    """
    try:
        rows = [[str(json.loads(line)[name]) for name in _ROW_KEYS] for line in data.splitlines()]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptShard(where, f"no list of what was left out: {str(error)[:200]}", remedy=RUN_VERIFY) from None
    return [read_row(key, path, code, message) for key, path, code, message in rows]


def read_skipped_bytes(file: DatasetFile, folder: str) -> bytes:
    """Return the list of what was left out of a dataset, checked by what its dataset file says; empty: there is none.

    Args:
        file: What the dataset file says.
        folder: Where that lies.

    Raises:
        CorruptShard: The list cannot be read, or is another.
    """
    where = join(folder, file.skipped_file)
    try:
        data = read_small(where) if file.skipped else b""
    except OSError as error:
        raise CorruptShard(where, os_error_text(error), remedy=RUN_VERIFY) from None
    check_skipped_file(data, file, where)
    return data


def check_skipped_file(data: bytes, dataset: DatasetFile, where: str) -> None:
    """Check that a list, empty where there is none, is the one in the dataset file.

    Raises:
        CorruptShard: It is another.
    """
    rows = data.count(b"\n")
    if rows != dataset.skipped:
        expected = f"{dataset.skipped:,}, as the dataset file says"
        raise CorruptShard(where, pluralize(rows, "row"), expected=expected, remedy=RUN_VERIFY)
    if dataset.skipped_crc not in (None, crc32c(data)):
        raise CorruptShard(where, "its checksum is not the one in the dataset file", remedy=RUN_VERIFY)


def read_skipped_rows(file: DatasetFile, folder: str) -> list[Skipped]:
    """Return the list of what was left out of a dataset.

    Args:
        file: What the dataset file says.
        folder: Where that lies.

    Raises:
        CorruptShard: The list cannot be read, or is another.
    """
    return parse_skipped(read_skipped_bytes(file, folder), join(folder, file.skipped_file))


def merge_skipped(old: Sequence[Skipped], new: Iterable[Skipped]) -> list[Skipped]:
    """Return the rows of an older list, in its order, and newer ones among them."""
    rows = [Skipped(printable(one.key), printable(one.path), one.code, printable(one.message)) for one in new]
    rows.sort(key=lambda one: (*_sort_key(one), one.code, one.message))
    return list(heapq.merge(old, rows, key=_sort_key))


def unmerge_skipped(rows: Iterable[Skipped], newer: Iterable[Skipped]) -> list[Skipped]:
    """Return what `merged` was given as the older list, from what it gave, and the newer ones."""
    left = Counter(merge_skipped((), newer))
    found = []
    for one in rows:
        if left[one]:
            left[one] -= 1
        else:
            found.append(one)
    return found


def _sort_key(one: Skipped) -> tuple[bytes, bytes]:
    return to_bytes(one.path), to_bytes(one.key)
