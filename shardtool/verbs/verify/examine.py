"""Examine a shard in a worker process."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import field
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from shardtool.dataclass import dataclass
from shardtool.dataset.scan import ShardScan, decode_name
from shardtool.dataset.shard_file import CompressedFile, ShardFile, open_shard
from shardtool.errors import CorruptShard, InvalidRequest, StoreFailed, printable
from shardtool.names import IMAGE_ENDINGS
from shardtool.verbs.verify.findings import MAX_LISTED_PER_FILE, Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardtool.dataset.stored import StoredShard


KEY_HASH_BYTES = 16
_INT_FIELDS = frozenset({"cls", "cls2", "index", "inx", "id"})  # webdataset decodes these as integers
# Larger payloads are not decoded: decompression can expand them a thousandfold.
MAX_IMAGE_BYTES = 250_000_000
MAX_JSON_BYTES = 8_000_000  # parsed JSON, such as `[],[],[]`, needs up to 22 times as much memory as its text
_MAX_NUMBER_DIGITS = 100
_WHOLE_NUMBER = re.compile(rb"[+-]?[0-9]+")  # readers call `int`, which fails for 3.5 and 1e3
_MAX_NUMBER_BYTES = 2**12


class ExamineTask(NamedTuple):
    """A shard to examine, and the number of classes of each label field."""

    shard: StoredShard
    decode: bool = False
    classes: Mapping[str, int] = {}


@dataclass(slots=True)
class ShardExamination:
    """The result of examining a shard.

    Attributes:
        unrecognised: Number of tar members that do not belong to a sample.
        hashes: The 16-byte hashes of the keys, concatenated.
        content_ids: The 8-byte ids of the samples' content, concatenated, or b"" if not needed.
        further_counts: Number of findings that are not in `findings`, by code.
        undecoded: Number of payloads too large to decode.
        error: Why the shard cannot be opened, or None.
        damage: The damage that ended the scan, or None.
        digest: The content fingerprint, or None if unknown.
    """

    unrecognised: int = 0
    hashes: bytes = b""
    content_ids: bytes = b""
    findings: list[Finding] = field(default_factory=list)
    further_counts: dict[str, int] = field(default_factory=dict)
    undecoded: int = 0
    error: CorruptShard | InvalidRequest | None = None
    damage: CorruptShard | None = None
    crc: int | None = None
    digest: int | None = None


def examine_shard(task: ExamineTask) -> tuple[ShardScan | None, ShardExamination]:
    """Scan a shard until its end or the first damage, and decode its fields if requested.

    Return the scan (None if the shard cannot be opened), and a `ShardExamination`.
    """
    try:
        scan = task.shard.scan(checksum=True)
    except StoreFailed as failed:
        if not failed.affects_one_file:  # the machine or the network failed, not the shard
            raise
        return None, ShardExamination(error=CorruptShard(task.shard.path, failed.found))
    except (CorruptShard, InvalidRequest) as error:
        return None, ShardExamination(error=error)
    hashes = b"".join([blake2b(key, digest_size=KEY_HASH_BYTES).digest() for key in scan.keys])
    examination = ShardExamination(
        unrecognised=len(scan.unrecognised), hashes=hashes, damage=scan.error, crc=scan.crc, digest=scan.digest
    )
    if task.decode:
        _decode_fields(task, scan, examination)
    return scan, examination


def count_fields(scan: ShardScan) -> Counter[str]:
    """Return the number of samples with each field. Call this in the main process, so workers need not import NumPy."""
    import numpy as np

    fields, counts = Counter[str](), np.bincount(np.frombuffer(scan.codes, np.uint32), minlength=len(scan.names))
    for name, count in zip(scan.names, counts.tolist(), strict=True):
        fields[decode_name(name)] += count
    return fields


def content_ids(scan: ShardScan, labels: frozenset[str]) -> bytes:
    """Return the samples' content ids for a `ShardExamination`. Call this in the main process, like `count_fields`."""
    import numpy as np

    from shardtool.dataset.duplicates import index_content
    from shardtool.dataset.shard_index import scanned_index

    index = scanned_index(scan)
    content = index_content(index, labels)
    crcs = np.zeros(len(index.codes), np.uint32)
    crcs[: len(scan.crcs)] = scan.crcs  # a damaged shard may lack the checksum of its last payload
    return content.ids(index.lengths[content.rows], crcs[content.rows]).tobytes()


class DigestTask(NamedTuple):
    """Samples of a shard to compare by content. The content excludes the fields `labels`."""

    shard: StoredShard
    labels: frozenset[str]
    samples: list[int]


def digest_samples(task: DigestTask) -> list[bytes]:
    """Return the digest of each sample's content, or b"" if the sample cannot be read completely."""
    from shardtool.dataset.duplicates import index_content, sample_digests
    from shardtool.dataset.shard_index import scanned_index

    index = scanned_index(task.shard.scan())
    return sample_digests(task.shard.path, index, index_content(index, task.labels), task.samples)


class _PayloadCheck(NamedTuple):
    """How to check the payloads of a field.

    Attributes:
        decode: Function that returns the problem of a payload, "" if valid, or None if too large to check.
        skip_large: Whether payloads of more than `limit` bytes are skipped. Otherwise, they are invalid.
    """

    code: str
    decode: Callable[[bytes], str | None]
    limit: int
    skip_large: bool = True


def _decode_fields(task: ExamineTask, scan: ShardScan, examination: ShardExamination) -> None:
    names = [decode_name(name) for name in scan.names]
    pairs = zip(names, scan.kinds, strict=True)
    checks = [_payload_check(name, task.classes.get(name)) if kind == "bytes" else None for name, kind in pairs]
    if not any(checks):
        return
    first_row = 0
    with open_shard(task.shard.path) as shard:
        for key, count in zip(scan.keys, scan.counts, strict=True):
            rows = range(first_row, min(first_row + count, len(scan.lengths)))
            for row in sorted(rows, key=scan.offsets.__getitem__):  # compressed shards must be read in order
                check, offset, length = checks[scan.codes[row]], scan.offsets[row], scan.lengths[row]
                if check is None:
                    continue
                is_skipped = check.skip_large and length > check.limit
                problem = None if is_skipped else _payload_problem(check, shard, offset, length)
                if problem is None:
                    examination.undecoded += 1
                elif problem and len(examination.findings) >= MAX_LISTED_PER_FILE:
                    examination.further_counts[check.code] = examination.further_counts.get(check.code, 0) + 1
                elif problem:
                    key_and_field = decode_name(key), names[scan.codes[row]]
                    shard_offset = offset if scan.size >= 0 else None
                    finding = Finding(check.code, task.shard.name, problem, "", shard_offset, *key_and_field)
                    examination.findings.append(finding)
            first_row += count


def _payload_problem(check: _PayloadCheck, shard: ShardFile | CompressedFile, offset: int, length: int) -> str | None:
    size = min(length, check.limit + 1)
    try:
        data = bytes(shard.read(offset, size))
    except CorruptShard:  # the scan has already reported the damage
        return ""
    return check.decode(data) if len(data) == size else ""


def _image_problem(data: bytes) -> str | None:
    import warnings

    from shardtool.transform.image_decode import BadImage, decode_image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            decode_image(data, exact=True)
    except BadImage as error:
        # If the image is too large to check, `decode_image` raises this error without a cause.
        if error.code == "image-too-large" and error.__cause__ is None:
            return None
        return "" if error.code == "image-depth" else error.message
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
    except ValueError as error:
        return printable(str(error)[:200]) or type(error).__name__
    return ""


def _number_problem(data: bytes, classes: int | None) -> str:
    text = data.strip()
    if len(data) > _MAX_NUMBER_BYTES:
        return f"more than {_MAX_NUMBER_BYTES:,} bytes"
    if not _WHOLE_NUMBER.fullmatch(text) or len(text) > _MAX_NUMBER_DIGITS:
        return repr(printable(text[:40]))
    if classes is not None and not 0 <= int(text) < classes:
        return f"{printable(text)}, but there are {classes:,} classes"
    return ""


_PAYLOAD_CHECKS = {
    "json": _PayloadCheck("json-bad", _json_problem, MAX_JSON_BYTES),
    "npy": _PayloadCheck("array-bad", _array_problem, MAX_IMAGE_BYTES),
    **dict.fromkeys(IMAGE_ENDINGS, _PayloadCheck("image-bad", _image_problem, MAX_IMAGE_BYTES)),
}


def _payload_check(name: str, classes: int | None) -> _PayloadCheck | None:
    ending = name.rpartition(".")[2].lower()
    if ending not in _PAYLOAD_CHECKS and (classes is not None or ending in _INT_FIELDS):
        decode = partial(_number_problem, classes=classes)
        return _PayloadCheck("number-bad", decode, _MAX_NUMBER_BYTES, skip_large=False)
    return _PAYLOAD_CHECKS.get(ending)
