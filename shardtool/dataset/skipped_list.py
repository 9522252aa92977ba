"""Encode, parse and merge lists of skipped samples (`out.skipped`, see docs/format.md)."""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Iterable, Sequence

from shardtool.dataset.dataset_file import RUN_VERIFY, DatasetFile
from shardtool.errors import CorruptShard, os_error_text, printable
from shardtool.fingerprint import crc32c
from shardtool.names import to_bytes
from shardtool.skipped import Skipped, read_row
from shardtool.storage.files import read_small
from shardtool.storage.paths import join
from shardtool.units import pluralize

_ROW_KEYS = ("key", "path", "code", "message")


def encode_skipped(skipped: Iterable[Skipped]) -> bytes:
    """Return the bytes of a list of skipped samples."""
    rows = [{name: printable(getattr(sample, name)) for name in _ROW_KEYS} for sample in skipped]
    return b"".join(json.dumps(row, ensure_ascii=True).encode() + b"\n" for row in rows)


def parse_skipped(data: bytes, where: str) -> list[Skipped]:
    """Return the rows of a list of skipped samples."""
    try:
        rows = [[str(json.loads(line)[name]) for name in _ROW_KEYS] for line in data.splitlines()]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        problem = f"not a valid list of skipped samples: {str(error)[:200]}"
        raise CorruptShard(where, problem, remedy=RUN_VERIFY) from None
    return [read_row(key, path, code, message) for key, path, code, message in rows]


def read_skipped_bytes(file: DatasetFile, folder: str) -> bytes:
    """Return the bytes of a dataset's list of skipped samples, or b"" if no sample was skipped."""
    where = join(folder, file.skipped_file)
    try:
        data = read_small(where) if file.skipped else b""
    except OSError as error:
        raise CorruptShard(where, os_error_text(error), remedy=RUN_VERIFY) from None
    check_skipped_file(data, file, where)
    return data


def check_skipped_file(data: bytes, dataset: DatasetFile, where: str) -> None:
    """Raise `CorruptShard` if the row count or checksum of `data` differs from the dataset file."""
    rows = data.count(b"\n")
    if rows != dataset.skipped:
        expected = f"{dataset.skipped:,}, as in the dataset file"
        raise CorruptShard(where, pluralize(rows, "row"), expected=expected, remedy=RUN_VERIFY)
    if dataset.skipped_crc not in (None, crc32c(data)):
        raise CorruptShard(where, "checksum differs from the dataset file", remedy=RUN_VERIFY)


def read_skipped_rows(file: DatasetFile, folder: str) -> list[Skipped]:
    """Return the rows of a dataset's list of skipped samples."""
    return parse_skipped(read_skipped_bytes(file, folder), join(folder, file.skipped_file))


def merge_skipped(old: Sequence[Skipped], new: Iterable[Skipped]) -> list[Skipped]:
    """Merge new rows into an older list, without changing the order of the older rows."""
    rows = [Skipped(printable(row.key), printable(row.path), row.code, printable(row.message)) for row in new]
    rows.sort(key=lambda row: (*_sort_key(row), row.code, row.message))
    return list(heapq.merge(old, rows, key=_sort_key))


def merge_new_rows(rows: Sequence[Skipped], dataset: DatasetFile, new: Sequence[Skipped], where: str) -> list[Skipped]:
    """Merge new rows into a dataset's list of skipped samples, unless an interrupted run has already merged them."""
    try:
        check_skipped_file(encode_skipped(rows), dataset, where)
    except CorruptShard:
        rows = unmerge_skipped(rows, new)
        check_skipped_file(encode_skipped(rows), dataset, where)
    return merge_skipped(rows, new)


def unmerge_skipped(rows: Iterable[Skipped], newer: Iterable[Skipped]) -> list[Skipped]:
    """Undo `merge_skipped`: remove the rows in `newer`."""
    remaining = Counter(merge_skipped((), newer))
    older = []
    for row in rows:
        if remaining[row]:
            remaining[row] -= 1
        else:
            older.append(row)
    return older


def _sort_key(row: Skipped) -> tuple[bytes, bytes]:
    return to_bytes(row.path), to_bytes(row.key)
