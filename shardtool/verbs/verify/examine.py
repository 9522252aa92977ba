"""Examine one shard in a worker: scan it, compute its checksums and, if requested, decode its fields."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from shardtool.dataset.scan import ShardScan, index_text
from shardtool.dataset.shard_file import CompressedFile, ShardFile, open_shard
from shardtool.errors import (
    CorruptShard,
    InvalidRequest,
    StoreFailed,
    printable,
)
from shardtool.names import IMAGE_ENDINGS
from shardtool.verbs.verify.findings import MAX_LISTED_PER_FILE, Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardtool.dataset.stored import StoredShard


KEY_HASH_BYTES = 16


_LENGTH_MASK = 2**32 - 1  # what is kept of a length


_INT_FIELDS = frozenset({"cls", "cls2", "index", "inx", "id"})  # what webdataset's decoder takes for whole numbers


# Bytes of a payload that is decoded: it is held as a whole, and a compressed shard makes it of a thousandth of that.
MAX_IMAGE_BYTES = 250_000_000  # its pixels are bounded too: see `transform.image.MAX_BYTES`


MAX_JSON_BYTES = 8_000_000  # its objects take up to 22 times its bytes: `[],` is a list of 56 and its place


_MAX_NUMBER_DIGITS = 100  # digits


_WHOLE_NUMBER = re.compile(rb"[+-]?[0-9]+")  # readers take the text for an int: neither 3.5 nor 1e3 is one


_MAX_NUMBER_BYTES = 2**12  # with the white space around them


class ExamineTask(NamedTuple):
    """A shard to examine.

    Attributes:
        shard: The shard.
        decode: Whether payloads are decoded.
        classes: Field to how many classes its numbers stand for.
        contents: Whether it is known what samples hold.
    """

    shard: StoredShard
    decode: bool = False
    classes: Mapping[str, int] = {}
    contents: bool = False


@dataclass(slots=True)
class ShardExamination:
    """The result of walking a shard.

    Attributes:
        survey: What lies in it; None where it cannot be opened. Once it was checked, it is without columns.
        fields: How many samples have each field; none once they were added up: names may be many.
        odd: How many members are no part of a sample.
        hashes: The hash of each key, 16 bytes.
        contents: What each sample holds, where that was asked for: 8 bytes, of the CRC-32C and length of its largest
            payload.
        findings: What is wrong with payloads, the first ones.
        more: How many more of these there are, by code.
        undecoded: How many payloads were too large to be decoded.
        error: Why it cannot be opened; None where it can.
    """

    scan: ShardScan | None
    fields: Counter[str] = field(default_factory=Counter)
    odd: int = 0
    hashes: bytes = b""
    contents: bytes = b""
    findings: list[Finding] = field(default_factory=list)
    more: dict[str, int] = field(default_factory=dict)
    undecoded: int = 0
    error: CorruptShard | InvalidRequest | None = None


def examine_shard(task: ExamineTask) -> ShardExamination:
    """Walk, sum and, where asked for, decode a shard; of a damaged one, what precedes the damage."""
    try:
        found = task.shard.scan(checksum=True)
    except StoreFailed as failed:
        if not failed.of_file:  # the machine's fault, or the network's, not the shard's
            raise
        return ShardExamination(None, error=CorruptShard(task.shard.path, failed.found))
    except (CorruptShard, InvalidRequest) as error:
        return ShardExamination(None, error=error)
    hashes = b"".join([blake2b(key, digest_size=KEY_HASH_BYTES).digest() for key in found.keys])
    contents = _content_ids(found) if task.contents else b""
    examined = ShardExamination(found, odd=len(found.odd), hashes=hashes, contents=contents)
    for code, count in Counter(found.codes).items():
        examined.fields[index_text(found.names[code])] += count
    if task.decode:
        _decode_fields(task, found, examined)
    return examined


def _content_ids(found: ShardScan) -> bytes:
    """Return what samples hold; the last one of a damaged shard may have lost payloads."""
    sums, row, payloads = array("Q"), 0, list(zip(found.lengths, found.crcs, strict=False))
    for count in found.counts:
        length, crc = max(payloads[row : row + count], default=(0, 0))
        sums.append((length & _LENGTH_MASK) << 32 | crc)
        row += count
    return sums.tobytes()


class _PayloadCheck(NamedTuple):
    """The check of a field's payloads by decoding them.

    Attributes:
        code: The code of the finding about a payload that is wrong.
        decode: Returns what is wrong with a payload; empty: nothing is; None: it is too large to be decoded.
        limit: Bytes of the largest that is decoded.
        whole: Whether all of a payload is wanted; else its start shows that it is too long to be right.
    """

    code: str
    decode: Callable[[bytes], str | None]
    limit: int
    whole: bool = True


def _decode_fields(task: ExamineTask, found: ShardScan, examined: ShardExamination) -> None:
    """Decode every field that has a decoder."""
    names = [index_text(name) for name in found.names]
    pairs = zip(names, found.kinds, strict=True)
    checks = [_payload_check(name, task.classes.get(name)) if kind == "bytes" else None for name, kind in pairs]
    if not any(checks):
        return
    row = 0
    with open_shard(task.shard.path) as shard:
        for key, count in zip(found.keys, found.counts, strict=True):
            rows = range(row, min(row + count, len(found.lengths)))
            for at in sorted(rows, key=found.offsets.__getitem__):  # a compressed shard is read in sequence only
                check, offset, length = checks[found.codes[at]], found.offsets[at], found.lengths[at]
                if check is None:
                    continue
                wrong = None if check.whole and length > check.limit else _payload_problem(check, shard, offset, length)
                if wrong is None:
                    examined.undecoded += 1
                elif wrong and len(examined.findings) >= MAX_LISTED_PER_FILE:
                    examined.more[check.code] = examined.more.get(check.code, 0) + 1
                elif wrong:
                    place = index_text(key), names[found.codes[at]]
                    where = offset if found.size >= 0 else None
                    examined.findings.append(Finding(check.code, task.shard.name, wrong, "", where, *place))
            row += count


def _payload_problem(check: _PayloadCheck, shard: ShardFile | CompressedFile, offset: int, length: int) -> str | None:
    """Return what is wrong with a payload; empty: nothing is; None: it is too large to be decoded."""
    wanted = min(length, check.limit + 1)
    try:
        data = bytes(shard.read(offset, wanted))
    except CorruptShard:  # the walk has found it
        return ""
    return check.decode(data) if len(data) == wanted else ""


def _image_problem(data: bytes) -> str | None:
    import warnings

    from shardtool.transform.image_decode import BadImage, decode_image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            decode_image(data, exact=True)
    except BadImage as error:
        if error.code == "image-too-large" and error.__cause__ is None:  # not Pillow's word, but our bound of memory
            return None
        return "" if error.code == "image-depth" else error.message  # it is sound, whatever its values mean
    return ""


def _json_problem(data: bytes) -> str:
    import json

    try:
        json.loads(data)
    except RecursionError:
        return "nested too deeply"
    except ValueError as error:
        return printable(str(error)) or type(error).__name__
    return ""


def _array_problem(data: bytes) -> str:
    from shardtool.read.decode import read_npy

    try:
        read_npy(data)
    except (ValueError, TypeError, SyntaxError, LookupError, ArithmeticError, EOFError, RecursionError) as error:
        return printable(str(error)[:200]) or type(error).__name__
    return ""


def _number_problem(data: bytes, classes: int | None) -> str:
    text = data.strip()
    if len(data) > _MAX_NUMBER_BYTES:
        return f"more than {_MAX_NUMBER_BYTES:,} bytes"
    if not _WHOLE_NUMBER.fullmatch(text) or len(text) > _MAX_NUMBER_DIGITS:
        return repr(printable(text[:40]))
    if classes is not None and not 0 <= int(text) < classes:
        return f"{printable(text)}, of {classes:,} classes"
    return ""


_PAYLOAD_CHECKS = {
    "json": _PayloadCheck("json-bad", _json_problem, MAX_JSON_BYTES),
    "npy": _PayloadCheck("array-bad", _array_problem, MAX_IMAGE_BYTES),
    **dict.fromkeys(IMAGE_ENDINGS, _PayloadCheck("image-bad", _image_problem, MAX_IMAGE_BYTES)),
}


def _payload_check(name: str, classes: int | None) -> _PayloadCheck | None:
    """Return how a field of that name is decoded; None: it can be anything."""
    ending = name.rpartition(".")[2].lower()
    if ending not in _PAYLOAD_CHECKS and (classes is not None or ending in _INT_FIELDS):
        return _PayloadCheck("number-bad", lambda data: _number_problem(data, classes), _MAX_NUMBER_BYTES, whole=False)
    return _PAYLOAD_CHECKS.get(ending)
