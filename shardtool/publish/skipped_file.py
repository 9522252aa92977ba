"""The list of what was left out, `out.skipped`: rows to bytes and back, and the rows of several runs in one list.

Source: docs/format.md, "`out.skipped`".
"""

from __future__ import annotations

import heapq
import json
from collections import Counter
from typing import TYPE_CHECKING, cast

from shardtool.errors import CorruptShard, printable
from shardtool.fingerprint import crc32c
from shardtool.skipped import SkipCode, Skipped
from shardtool.values import counted, to_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shardtool.dataset.dataset_file import DatasetFile

_COLUMNS = ("key", "path", "code", "message")
_REMEDY = "`shardtool verify` shows what is damaged."


def encode_skipped(skipped: Iterable[Skipped]) -> bytes:
    """Return the bytes of the list of what was left out."""
    return b"".join(_row(one) for one in skipped)


def _row(one: Skipped) -> bytes:
    row = {"key": printable(one.key), "path": printable(one.path), "code": one.code, "message": printable(one.message)}
    return json.dumps(row, ensure_ascii=True).encode() + b"\n"


def read_skipped(data: bytes, where: str) -> list[Skipped]:
    """Return the rows of a list.

    Args:
        data: Its bytes.
        where: Its name, for messages.

    Raises:
        CorruptShard: It is none.
    """
    try:
        rows = [[str(json.loads(line)[name]) for name in _COLUMNS] for line in data.splitlines()]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptShard(where, f"no list of what was left out: {str(error)[:200]}", remedy=_REMEDY) from None
    return [Skipped(key, path, cast("SkipCode", code), message) for key, path, code, message in rows]


def check_skipped_file(data: bytes, dataset: DatasetFile, where: str) -> None:
    """Check that a list, empty where there is none, is the one in the dataset file.

    Raises:
        CorruptShard: It is another.
    """
    rows = data.count(b"\n")
    if rows != dataset.skipped:
        expected = f"{dataset.skipped:,}, as the dataset file says"
        raise CorruptShard(where, counted(rows, "row"), expected=expected, remedy=_REMEDY)
    if dataset.skipped_crc not in (None, crc32c(data)):
        raise CorruptShard(where, "its checksum is not the one in the dataset file", remedy=_REMEDY)


def merged(old: Sequence[Skipped], new: Iterable[Skipped]) -> list[Skipped]:
    """Return the rows of an older list, in its order, and newer ones among them."""
    rows = [Skipped(printable(one.key), printable(one.path), one.code, printable(one.message)) for one in new]
    rows.sort(key=lambda one: (*_place(one), one.code, one.message))
    return list(heapq.merge(old, rows, key=_place))


def unmerged(rows: Iterable[Skipped], newer: Iterable[Skipped]) -> list[Skipped]:
    """Return what `merged` was given as the older list, from what it gave, and the newer ones."""
    left = Counter(merged((), newer))
    found = []
    for one in rows:
        if left[one]:
            left[one] -= 1
        else:
            found.append(one)
    return found


def _place(one: Skipped) -> tuple[bytes, bytes]:
    return to_bytes(one.path), to_bytes(one.key)
