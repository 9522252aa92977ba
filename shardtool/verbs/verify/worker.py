"""One shard examined: walked, summed, and where asked for decoded. Runs in a worker.

It knows the shard alone: what its sidecar and the dataset file say is compared by the parent, who needs NumPy and
pyarrow for that, and the workers do not.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from shardtool.dataset.shard_file import PackedFile, ShardFile, is_packed, open_shard
from shardtool.dataset.walk import Survey, SurveyTask, survey, walked_text
from shardtool.errors import CorruptShard, OutputFailed, ShardError, StoreFailed, printable
from shardtool.values import IMAGE_ENDINGS, Dots
from shardtool.verbs.verify.findings import MOST, Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


HASH_SIZE = 16
_LOW = 2**32 - 1  # what is kept of a length
_NUMBERS = frozenset({"cls", "cls2", "index", "inx", "id"})  # what webdataset's decoder takes for whole numbers
# Bytes of a payload that is decoded: it is held as a whole, and a compressed shard makes it of a thousandth of that.
IMAGE_LIMIT = 250_000_000  # its pixels are bounded too: see `transform.image.MAX_BYTES`
JSON_LIMIT = 8_000_000  # its objects take up to 22 times its bytes: `[],` is a list of 56 and its place
_NUMBER_LIMIT = 100  # digits
_WHOLE = re.compile(rb"[+-]?[0-9]+")  # readers take the text for an int: neither 3.5 nor 1e3 is one
_NUMBER_BYTES = 2**12  # with the white space around them


class Task(NamedTuple):
    """A shard to examine.

    Attributes:
        path: The path of the shard.
        name: The name of the shard, for findings.
        dots: The dot at which the key in a member's name ends.
        decode: Whether payloads are decoded.
        classes: Field to how many classes its numbers stand for.
        contents: Whether it is known what samples hold.
    """

    path: str
    name: str
    dots: Dots
    decode: bool = False
    classes: Mapping[str, int] = {}
    contents: bool = False


@dataclass(slots=True)
class ShardExamination:
    """The result of walking a shard.

    Attributes:
        survey: What lies in it; None where it cannot be opened.
        hashes: The hash of each key, 16 bytes.
        contents: What each sample holds, where that was asked for: 8 bytes, of the CRC-32C and length of its largest
            payload.
        findings: What is wrong with payloads, the first ones.
        more: How many more of these there are, by code.
        undecoded: How many payloads were too large to be decoded.
        error: Why it cannot be opened; None where it can.
    """

    survey: Survey | None
    hashes: bytes = b""
    contents: bytes = b""
    findings: list[Finding] = field(default_factory=list)
    more: dict[str, int] = field(default_factory=dict)
    undecoded: int = 0
    error: ShardError | None = None


def examine(task: Task) -> ShardExamination:
    """Walk, sum and, where asked for, decode a shard; of a damaged one, what precedes the damage."""
    try:
        found = survey(SurveyTask(task.path, checksum=True, dots=task.dots))
    except OutputFailed:  # the machine's fault, or the network's, not the shard's
        raise
    except StoreFailed as failed:
        if not failed.of_file:
            raise
        return ShardExamination(None, error=CorruptShard(task.path, failed.found))
    except ShardError as error:
        return ShardExamination(None, error=error)
    hashes = b"".join([blake2b(key, digest_size=HASH_SIZE).digest() for key in found.keys])
    examined = ShardExamination(found, hashes, _contents(found) if task.contents else b"")
    if task.decode:
        _decode(task, found, examined)
    return examined


def _contents(found: Survey) -> bytes:
    """Return what samples hold; the last one of a damaged shard may have lost payloads."""
    sums, row, payloads = array("Q"), 0, list(zip(found.lengths, found.crcs, strict=False))
    for count in found.counts:
        length, crc = max(payloads[row : row + count], default=(0, 0))
        sums.append((length & _LOW) << 32 | crc)
        row += count
    return sums.tobytes()


class _Check(NamedTuple):
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


def _decode(task: Task, found: Survey, examined: ShardExamination) -> None:
    """Decode every field that has a decoder."""
    checks: list[_Check | None] = []
    for name, kind in zip(found.names, found.kinds, strict=True):
        text = walked_text(name)
        checks.append(_check_for(text, task.classes.get(text)) if kind == "bytes" else None)
    if not any(checks):
        return
    packed, row = is_packed(task.path), 0
    with open_shard(task.path) as shard:
        for key, count in zip(found.keys, found.counts, strict=True):
            rows = range(row, min(row + count, len(found.lengths)))
            for at in sorted(rows, key=found.offsets.__getitem__):  # a compressed shard is read in sequence only
                check, offset, length = checks[found.codes[at]], found.offsets[at], found.lengths[at]
                if check is None:
                    continue
                wrong = None if check.whole and length > check.limit else _wrong(check, shard, offset, length)
                if wrong is None:
                    examined.undecoded += 1
                elif wrong and len(examined.findings) >= MOST:
                    examined.more[check.code] = examined.more.get(check.code, 0) + 1
                elif wrong:
                    place, text = None if packed else offset, walked_text(found.names[found.codes[at]])
                    examined.findings.append(Finding(check.code, task.name, wrong, "", place, walked_text(key), text))
            row += count


def _check_for(name: str, classes: int | None) -> _Check | None:
    """Return how a field of that name is decoded; None: it can be anything."""
    ending = name.rpartition(".")[2].lower()
    if ending in ("json", "npy"):
        return _Check("json-bad", _json, JSON_LIMIT) if ending == "json" else _Check("array-bad", _array, IMAGE_LIMIT)
    if ending in IMAGE_ENDINGS:
        return _Check("image-bad", _image, IMAGE_LIMIT)
    if classes is not None or ending in _NUMBERS:
        return _Check("number-bad", lambda data: _number(data, classes), _NUMBER_BYTES, whole=False)
    return None


def _wrong(check: _Check, shard: ShardFile | PackedFile, offset: int, length: int) -> str | None:
    """Return what is wrong with a payload; empty: nothing is; None: it is too large to be decoded."""
    wanted = min(length, check.limit + 1)
    try:
        data = bytes(shard.read(offset, wanted))
    except CorruptShard:  # the walk has found it
        return ""
    return check.decode(data) if len(data) == wanted else ""


def _image(data: bytes) -> str | None:
    import warnings

    from shardtool.transform.image import BadImage, pixels

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pixels(data, exact=True)
    except BadImage as error:
        if error.code == "image-too-large" and error.__cause__ is None:  # not Pillow's word, but our bound of memory
            return None
        return "" if error.code == "image-depth" else error.message  # it is sound, whatever its values mean
    return ""


def _json(data: bytes) -> str:
    import json

    try:
        json.loads(data)
    except RecursionError:
        return "nested too deeply"
    except ValueError as error:
        return printable(str(error)) or type(error).__name__
    return ""


def _array(data: bytes) -> str:
    from shardtool.read.chain import read_npy

    try:
        read_npy(data)
    except (ValueError, TypeError, SyntaxError, LookupError, ArithmeticError, EOFError, RecursionError) as error:
        return printable(str(error)[:200]) or type(error).__name__
    return ""


def _number(data: bytes, classes: int | None) -> str:
    text = data.strip()
    if len(data) > _NUMBER_BYTES:
        return f"more than {_NUMBER_BYTES:,} bytes"
    if not _WHOLE.fullmatch(text) or len(text) > _NUMBER_LIMIT:
        return repr(printable(text[:40]))
    if classes is not None and not 0 <= int(text) < classes:
        return f"{printable(text)}, of {classes:,} classes"
    return ""
