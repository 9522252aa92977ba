"""Read the scalars of JSON payloads: the strings, numbers, booleans and nulls at the top level of an object.

A payload may also be a single number or string.
"""

from __future__ import annotations

import json
import math
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from shardtool.dataset.shard_file import CompressedFile, ShardFile, open_shard
from shardtool.errors import CorruptShard, StoreFailed, os_error_text
from shardtool.fingerprint import crc32c
from shardtool.format import zip_read
from shardtool.skipped import SkipCode
from shardtool.source.read_tasks import FileReads, SpanReads
from shardtool.storage import files, paths

Scalar = str | int | float | bool | None
_ReadProblem = tuple[SkipCode, str]
_MAX_PAYLOAD_BYTES, _MAX_LINE_BYTES = 2**24, 2**20
MAX_TEXT_LENGTH = 2**15  # longer strings are not metadata, but images, as in labelme files
_MAX_PLAIN_BYTES = 2**10
# Strings such as 007 do not match, and stay strings.
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_INTEGER_LIMIT = 2**63
_KIND_NAMES = {str: "text", int: "number", float: "number", bool: "boolean", list: "list"}


class JsonScalars(NamedTuple):
    """The scalars in the payloads of a field.

    Attributes:
        lines: A line for each payload: a JSON object, or `{}` if the payload cannot be read.
        kinds: For each name, the number of values of each type.
        long: For each name, the number of ignored strings longer than `MAX_TEXT_LENGTH`.
        failed: The index, reason code and message of each payload that cannot be read.
    """

    lines: bytes
    kinds: Mapping[str, Counter[str]]
    long: Counter[str]
    failed: tuple[tuple[int, SkipCode, str], ...]


def read_scalars(task: tuple[str, FileReads | SpanReads]) -> JsonScalars:
    """Read the payloads of a field, and return their scalars."""
    field, payloads = task
    return parse_scalars(field, _read_payloads(payloads))


def parse_scalars(field: str, payloads: Iterable[bytes | _ReadProblem]) -> JsonScalars:
    """Return the scalars of payloads. An unreadable payload is a pair of reason code and message."""
    lines, kinds, long = [], dict[str, Counter[str]](), Counter[str]()
    failed = list[tuple[int, SkipCode, str]]()
    for index, data in enumerate(payloads):
        line, scalars = b"{}", dict[str, Scalar]()
        if isinstance(data, bytes):
            try:
                line, scalars = _parse_payload(field, data, long)
            except (TypeError, ValueError, RecursionError) as error:
                failed.append((index, "bad-json", _describe_error(error)))
        else:
            failed.append((index, *data))
        for name, value in scalars.items():
            if value is not None:
                kinds.setdefault(name, Counter())[_KIND_NAMES[type(value)]] += 1
        lines.append(line)
    return JsonScalars(b"\n".join([*lines, b""]), kinds, long, tuple(failed))


def _parse_payload(field: str, payload: bytes, long: Counter[str]) -> tuple[bytes, dict[str, Scalar]]:
    # A payload must be an object if it starts with `{`, or if the field name ends in json. Any other payload is one
    # number or string, named after the field. NaN and infinity become null.
    is_json = payload.lstrip()[:1] == b"{" or field.rpartition(".")[2].lower() == "json"
    values = json.loads(payload) if is_json else {field: _parse_plain(payload)}
    if not isinstance(values, dict):
        raise TypeError(f"a JSON {_KIND_NAMES.get(type(values), 'null')}, not an object")
    scalars: dict[str, Scalar] = {}
    for name, value in values.items():
        if isinstance(value, int) and not -_INTEGER_LIMIT <= value < _INTEGER_LIMIT:
            raise ValueError(f"a whole number over 2^63: {name[:80]!r}")
        if isinstance(value, str) and len(value) > MAX_TEXT_LENGTH:
            long[name] += 1
        elif not isinstance(value, (list, dict)):
            scalars[name] = None if isinstance(value, float) and not math.isfinite(value) else value
    line = json.dumps(scalars, ensure_ascii=False, separators=(",", ":")).encode()
    if len(line) > _MAX_LINE_BYTES:
        raise ValueError(f"{len(line):,} bytes of top-level texts and numbers, more than {_MAX_LINE_BYTES:,}")
    return line, scalars


def _parse_plain(payload: bytes) -> Scalar:
    if len(payload) > _MAX_PLAIN_BYTES:
        expected = f"not a JSON object, nor a number or text of at most {_MAX_PLAIN_BYTES:,} bytes"
        raise ValueError(f"{len(payload):,} bytes: {expected}")
    text = payload.decode().strip()
    if any(ord(letter) < ord(" ") and letter not in "\t\r\n" for letter in text):
        raise ValueError("control characters: not a JSON object, number or text")
    value = json.loads(text) if _JSON_NUMBER.fullmatch(text) else text
    is_text = isinstance(value, int) and not -_INTEGER_LIMIT <= value < _INTEGER_LIMIT
    return (text if is_text else value) if text else None


def _describe_error(error: Exception) -> str:
    if isinstance(error, UnicodeError):
        return "text that is not valid UTF-8"
    if isinstance(error, RecursionError):
        return "lists or objects nested too deeply"
    return f"not JSON: {error}" if isinstance(error, json.JSONDecodeError) else str(error)


def _read_file(file: tuple[bytes, int]) -> bytes | _ReadProblem:
    path, link = file
    flags = files.READ_FOLLOWING if link else files.READ_PLAIN
    try:
        return files.read_small(paths.source_address(path), _MAX_PAYLOAD_BYTES, flags=flags)
    except OSError as error:
        return "unreadable", os_error_text(error)
    except StoreFailed as failed:  # skip an unreadable file, but fail if the store does not respond
        if failed.affects_one_file and isinstance(failed.__context__, OSError):
            return "unreadable", os_error_text(failed.__context__)
        raise


def _read_payloads(task: FileReads | SpanReads) -> Iterator[bytes | _ReadProblem]:
    if isinstance(task, FileReads):
        reads = zip(task.paths, task.links, strict=True)
        yield from files.map_paths(_read_file, reads, lambda file: paths.source_address(file[0]))
        return
    with ShardFile(task.path) if task.form == "zip" else open_shard(task.path) as shard:
        numbers = (array("q", column) for column in (task.offsets, task.lengths, task.crcs))
        for offset, length, crc in zip(*numbers, strict=True):
            if length > _MAX_PAYLOAD_BYTES:
                yield "unreadable", f"{length:,} bytes, too large"
            elif task.form == "zip":
                yield _read_member(shard, offset, length)
            else:
                data = bytes(shard.read(offset, length))
                is_right = crc < 0 or crc32c(data) == crc
                yield data if is_right else ("corrupt", f"the CRC-32C {crc32c(data):08x}, not {crc:08x}")


def _read_member(file: ShardFile | CompressedFile, offset: int, length: int) -> bytes | _ReadProblem:
    try:
        return b"".join(zip_read.iter_zip_payload(file.read, offset, length, file.path))
    except CorruptShard as error:
        return "unreadable", error.found.lower()
