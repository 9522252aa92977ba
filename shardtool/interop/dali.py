"""Index files of DALI, and of the `tfrecord` package, next to a shard.

Source: NVIDIA/DALI, `tools/wds2idx.py`, `tools/tfrecord2idx` and `ParseIndexFile` in
`dali/operators/reader/loader/webdataset_loader.cc`; vahidk/tfrecord, `tfrecord/tools/tfrecord2idx.py`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shardtool.errors import (
    InvalidRequest,
    printable,
)
from shardtool.messages import flag_text

if TYPE_CHECKING:
    from shardtool.interop.indexed_shard import IndexedShard

    Fields = list[tuple[bytes, int, int]]  # of a sample: each one's name, offset and length


_WHITESPACE = re.compile(rb"[\x00-\x20\x7f]")


_UNSAFE = re.compile(rb"[\x00-\x20\x7f%]")


def dali_tfrecord_index(shard: IndexedShard) -> bytes:
    """Return what the `tfrecord2idx` of DALI and that of the `tfrecord` package write: `OFFSET SIZE` of each record."""
    return b"".join([b"%d %d\n" % place for place in shard.places()])


def dali_webdataset_index(shard: IndexedShard) -> bytes:
    """Return what DALI's `wds2idx` writes, version 1.2: `FIELD OFFSET LENGTH NAME` of each field, a line per sample.

    Its reader ends a word at any white space. It takes a name for nothing but a label, so what is unsafe in one is
    percent-encoded.

    Raises:
        InvalidRequest: A field has white space in its name.
    """
    used = {shard.index.names[code].encode() for code in {*shard.index.codes.tolist()}}
    if unsafe := sorted(name for name in used if _WHITESPACE.search(name)):
        found = f"white space in the field {printable(unsafe[0])!r}, which DALI's index cannot name"
        raise InvalidRequest(shard.name, found, remedy=f"Pack the samples with {flag_text('portable')}.")
    lines = [b"v1.2 %d\n" % len(shard.index)]
    for key, fields in shard.samples():
        safe = _UNSAFE.sub(lambda match: b"%%%02X" % match[0][0], key)
        words = [b"%b %d %d %b.%b" % (name, at, size, safe, name.replace(b"%", b"%25")) for name, at, size in fields]
        lines.append(b" ".join(words) + b"\n")
    return b"".join(lines)


def parse_dali_index(data: bytes) -> list[Fields]:
    """Return the fields in DALI's index, of any tool: names of members are labels there, and version 1.1 has none."""
    head, *lines = data.removesuffix(b"\n").split(b"\n")
    version, count = head.split()
    step = 3 if version == b"v1.1" else 4
    if int(count) != len(lines):
        raise ValueError(count)
    samples = []
    for words in map(bytes.split, lines):
        if len(words) % step:
            raise ValueError(len(words))
        samples.append([(words[at], int(words[at + 1]), int(words[at + 2])) for at in range(0, len(words), step)])
    return samples
