"""Index files of DALI, and of the `tfrecord` package, next to a shard.

Source: NVIDIA/DALI, `tools/wds2idx.py`, `tools/tfrecord2idx` and ParseIndexFile in
`dali/operators/reader/loader/webdataset_loader.cc`; vahidk/tfrecord, `tfrecord/tools/tfrecord2idx.py`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest, printable
from shardtool.interop.exports import OTHER_OFFSETS, ShardIndexFile, matches_start
from shardtool.messages import flag_text

if TYPE_CHECKING:
    from shardtool.interop.indexed_shard import IndexedShard

    Fields = list[tuple[bytes, int, int]]  # name, offset and length of each field of a sample


_WHITESPACE = re.compile(rb"[\x00-\x20\x7f]")
_UNSAFE = re.compile(rb"[\x00-\x20\x7f%]")


def dali_tfrecord_index(shard: IndexedShard) -> bytes:
    """Return the TFRecord index of DALI and the `tfrecord` package: `OFFSET SIZE` per record."""
    return b"".join([b"%d %d\n" % sample for sample in shard.places()])


def dali_webdataset_index(shard: IndexedShard) -> bytes:
    """Return the index of DALI's `wds2idx`, version 1.2: a line per sample, `FIELD OFFSET LENGTH NAME` per field.

    DALI uses names only as labels, so unsafe characters in names are percent-encoded.
    """
    used = {shard.index.names[code].encode() for code in {*shard.index.codes.tolist()}}
    if unsafe := sorted(name for name in used if _WHITESPACE.search(name)):
        found = f"white space in the field {printable(unsafe[0])!r}, which DALI's index cannot name"
        raise InvalidRequest(shard.name, found, remedy=f"Pack the samples with {flag_text('portable')}.")
    lines = [b"v1.2 %d\n" % len(shard.index)]
    for key, fields in shard.samples():
        safe_key = _UNSAFE.sub(lambda match: b"%%%02X" % match[0][0], key)
        words = [
            b"%b %d %d %b.%b" % (name, offset, size, safe_key, name.replace(b"%", b"%25"))
            for name, offset, size in fields
        ]
        lines.append(b" ".join(words) + b"\n")
    return b"".join(lines)


def parse_dali_index(data: bytes) -> list[Fields]:
    """Return the fields in a DALI index of any tool.

    Names of members are ignored; an index of version 1.1 has no names.

    Raises:
        ValueError: The data is not a DALI index.
    """
    head, *lines = data.removesuffix(b"\n").split(b"\n")
    version, count = head.split()
    step = 3 if version == b"v1.1" else 4
    if int(count) != len(lines):
        raise ValueError(count)
    samples = []
    for words in map(bytes.split, lines):
        if len(words) % step:
            raise ValueError(len(words))
        samples.append(
            [(words[index], int(words[index + 1]), int(words[index + 2])) for index in range(0, len(words), step)]
        )
    return samples


def _webdataset_difference(data: bytes, shard: IndexedShard) -> str:
    is_equivalent = parse_dali_index(data) == [fields for _, fields in shard.samples()]
    return "" if is_equivalent else OTHER_OFFSETS


def _tfrecord_difference(data: bytes, shard: IndexedShard) -> str:
    return "" if dali_tfrecord_index(shard).split() == data.split() else OTHER_OFFSETS


_TFRECORD_INDEX = ShardIndexFile(dali_tfrecord_index, matches_start(rb"\d{1,20} \d{1,20}\r?\n"), _tfrecord_difference)
SHARD_INDEXES = {
    "dali-webdataset": ShardIndexFile(
        dali_webdataset_index, matches_start(rb"v1\.\d{1,3} \d{1,20}\r?\n"), _webdataset_difference
    ),
    "dali-tfrecord": _TFRECORD_INDEX,
    "tfrecord": _TFRECORD_INDEX,
}
