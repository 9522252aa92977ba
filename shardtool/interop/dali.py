"""The indexes that DALI, and the `tfrecord` package, read beside a shard.

Source: NVIDIA/DALI, `tools/wds2idx.py`, `tools/tfrecord2idx` and `ParseIndexFile` in
`dali/operators/reader/loader/webdataset_loader.cc`; vahidk/tfrecord, `tfrecord/tools/tfrecord2idx.py`;
docs/format.md, "Exported indexes".
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest, printable
from shardtool.wording import flag

if TYPE_CHECKING:
    from shardtool.interop.export_types import IndexedShard

_SPACE = re.compile(rb"[\x00-\x20\x7f]")
_UNSAFE = re.compile(rb"[\x00-\x20\x7f%]")


def tfrecord_index(shard: IndexedShard) -> bytes:
    """Return what the `tfrecord2idx` of DALI and that of the `tfrecord` package write: `OFFSET SIZE` of each record."""
    columns = (shard.table.column(name).to_numpy().tolist() for name in ("__offset__", "__size__"))
    return b"".join([b"%d %d\n" % row for row in zip(*columns, strict=True)])


def webdataset_index(shard: IndexedShard) -> bytes:
    """Return what DALI's `wds2idx` writes, version 1.2: `FIELD OFFSET LENGTH NAME` of each field, a line per sample.

    Its reader ends a word at any white space. It takes a name for nothing but a label, so what is unsafe in one is
    percent-encoded.

    Raises:
        InvalidRequest: A field has white space in its name.
    """
    keys = shard.table.column("__key__").cast("binary").to_pylist()
    lists = shard.table.column("__fields__").combine_chunks()
    fields = lists.flatten()
    names = fields.field("name").cast("binary").to_pylist()
    if unsafe := sorted(name for name in set(names) if _SPACE.search(name)):
        found = f"white space in the field {printable(unsafe[0])!r}, which DALI's index cannot name"
        raise InvalidRequest(shard.name, found, remedy=f"Pack the samples with {flag('portable')}.")
    offsets, lengths = (fields.field(part).to_numpy().tolist() for part in ("offset", "length"))
    lines = [b"v1.2 %d\n" % len(keys)]
    for key, (first, last) in zip(keys, pairwise(lists.offsets.to_pylist()), strict=True):
        safe = _UNSAFE.sub(_escape, key)
        words = [
            b"%b %d %d %b.%b" % (names[at], offsets[at], lengths[at], safe, names[at].replace(b"%", b"%25"))
            for at in range(first, last)
        ]
        lines.append(b" ".join(words) + b"\n")
    return b"".join(lines)


def _escape(match: re.Match[bytes]) -> bytes:
    return b"%%%02X" % match[0][0]
