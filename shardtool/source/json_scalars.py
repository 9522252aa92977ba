"""The top-level texts, numbers and truths of JSON payloads, read in workers: `json_columns` makes columns of them.

It imports nothing heavy, for the workers. What comes back is lines of JSON, which a reader of tables takes as they are.
"""

from __future__ import annotations

import errno
import json
import math
import os
from array import array
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardtool.dataset.shard_file import ShardFile, open_shard
from shardtool.errors import CorruptShard, StoreFailed, reason
from shardtool.fingerprint import crc32c
from shardtool.format import zip_read
from shardtool.skipped import SkipCode
from shardtool.source.base import Files, Spans
from shardtool.storage import places, sources
from shardtool.storage.reading import READ_FOLLOWING, READ_PLAIN, read_small

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardtool.dataset.shard_file import PackedFile

Scalar = str | int | float | bool | None
_MOST, _MOST_SCALARS = 2**24, 2**20  # bytes of a payload, and of what is taken of it
LONG_TEXT = 2**15  # letters: longer texts are no metadata, such as the images that labelme keeps in its JSON
_WHOLE = 2**63  # whole numbers beyond fit into no column
_KINDS = {str: "text", int: "number", float: "number", bool: "truth", list: "list"}


@dataclass(frozen=True, slots=True)
class Scalars:
    """The scalars of some payloads.

    Attributes:
        lines: A JSON object and a newline for each payload; an empty object where it cannot be read.
        kinds: For each name, how many of its values are of which kind.
        long: For each name, how many of its values are longer than `LONG_TEXT`, and were left out.
        crcs: uint32, the CRC-32C of each payload.
        failed: The places of those that cannot be read, and why.
    """

    lines: bytes
    kinds: Mapping[str, Counter[str]]
    long: Counter[str]
    crcs: bytes
    failed: tuple[tuple[int, SkipCode, str], ...]


def read_scalars(task: Files | Spans) -> Scalars:
    """Return the scalars of payloads. Runs in a worker.

    Raises:
        CorruptShard: A shard cannot be read.
    """
    lines, kinds, long, crcs = [], dict[str, Counter[str]](), Counter[str](), array("I")
    failed = list[tuple[int, SkipCode, str]]()
    for at, payload in enumerate(_of_files(task) if isinstance(task, Files) else _of_shard(task)):
        line, scalars = b"{}", dict[str, Scalar]()
        if isinstance(payload, OSError):
            failed.append((at, "unreadable", reason(payload)))
        else:
            try:
                line, scalars = _scalars(payload, long)
            except (TypeError, ValueError, RecursionError) as error:
                failed.append((at, "bad-json", _problem(error)))
        for name, value in scalars.items():
            if value is not None:
                kinds.setdefault(name, Counter())[_KINDS[type(value)]] += 1
        lines.append(line)
        crcs.append(0 if isinstance(payload, OSError) else crc32c(payload))
    return Scalars(b"\n".join([*lines, b""]), kinds, long, crcs.tobytes(), tuple(failed))


def _scalars(payload: bytes, long: Counter[str]) -> tuple[bytes, dict[str, Scalar]]:
    """Return the values at the top of a JSON object that are no lists or objects, as a line of JSON too.

    What JSON has no number for is null. `long` counts the texts that are left out.

    Raises:
        TypeError: It is no object.
        ValueError: It is no JSON, or holds what no column can, or too much of it.
        RecursionError: It is nested too deep.
    """
    found = json.loads(payload)
    if not isinstance(found, dict):
        message = f"a JSON {_KINDS.get(type(found), 'null')}, not an object"
        raise TypeError(message)
    scalars: dict[str, Scalar] = {}
    for name, value in found.items():
        if isinstance(value, int) and not -_WHOLE <= value < _WHOLE:
            message = f"a whole number over 2^63: {name[:80]!r}"
            raise ValueError(message)
        if isinstance(value, str) and len(value) > LONG_TEXT:
            long[name] += 1
        elif not isinstance(value, (list, dict)):
            scalars[name] = None if isinstance(value, float) and not math.isfinite(value) else value
    line = json.dumps(scalars, ensure_ascii=False, separators=(",", ":")).encode()
    if len(line) > _MOST_SCALARS:
        message = f"{len(line):,} bytes of texts and numbers at its top, more than {_MOST_SCALARS:,}"
        raise ValueError(message)
    return line, scalars


def _problem(error: Exception) -> str:
    """Return what is wrong with a payload, in words."""
    if isinstance(error, UnicodeError):
        return "text that is no Unicode"
    if isinstance(error, RecursionError):
        return "lists or objects far too deep in each other"
    return f"no JSON: {error}" if isinstance(error, json.JSONDecodeError) else str(error)


def _of_files(task: Files) -> Iterator[bytes | OSError]:
    pairs = zip(task.paths, task.links, strict=True)
    return sources.at_once(_of_file, pairs) if any(map(sources.is_place, task.paths)) else map(_of_file, pairs)


def _of_file(one: tuple[bytes, int]) -> bytes | OSError:
    path, link = one
    try:
        if sources.is_place(path):
            return places.read_small(sources.address_of(path), _MOST)
        return read_small(os.fsdecode(path), _MOST, flags=READ_FOLLOWING if link else READ_PLAIN)
    except OSError as error:
        return error
    except StoreFailed as failed:  # a file of the source that cannot be read is left out by name
        if failed.of_file and isinstance(failed.__context__, OSError):
            return failed.__context__
        raise


def _of_shard(task: Spans) -> Iterator[bytes | OSError]:
    with ShardFile(task.path) if task.form == "zip" else open_shard(task.path) as shard:
        for offset, length in zip(array("q", task.offsets), array("q", task.lengths), strict=True):
            if length > _MOST:
                yield OSError(errno.EFBIG, f"{length:,} bytes, too large")
            elif task.form == "zip":
                yield _member(shard, offset, length)
            else:
                yield bytes(shard.read(offset, length))


def _member(file: ShardFile | PackedFile, offset: int, length: int) -> bytes | OSError:
    """Return the payload of a zip's member."""
    try:
        return b"".join(zip_read.payload(file.read, offset, length, file.path))
    except CorruptShard as error:
        return OSError(errno.EIO, error.found)
