"""Index files of other tools that lie beside shards: which files are such, and do they tell of their shard?

Whoever made one, it leads into the bytes of one shard, which its name tells; of another shard's bytes, most readers
give what lies there without a word. A file is taken for an index only where its start has the form of one: a user's own
file of such a name is none. No file is opened here.

Source: docs/format.md, "Exported indexes".
"""

from __future__ import annotations

import json
import os
import re
import struct
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from shardtool.errors import InvalidRequest
from shardtool.interop.exports import EXPORTS
from shardtool.pattern import SIDECAR_SUFFIX, sidecar_name
from shardtool.shard_names import format_of
from shardtool.values import to_bytes

if TYPE_CHECKING:
    from shardtool.interop.export import Export, IndexedShard

HEAD_SIZE = 64  # bytes from the start of a file that tell its form
_RECORDS = re.compile(rb"\d{1,20} \d{1,20}\r?\n")
_FORMS = {
    "dali-webdataset": re.compile(rb"v1\.\d{1,3} \d{1,20}\r?\n"),
    "dali-tfrecord": _RECORDS,
    "tfrecord": _RECORDS,
    "huggingface": re.compile(rb'\s*\{\s*"(?:filesize|files|hash|hash_lfs)"\s*:'),
}
_SUFFIXES = sorted({export.suffix for export in EXPORTS.values() if export.suffix}, key=len, reverse=True)
_BLOCK = 512
_FIRST_LIMIT = 2**24  # where a tar's first sample may start: after a global header
_HEAD_LIMIT = 4096  # bytes of an index that tell of no field
_FIELD_LIMIT = 1024  # bytes of an index that a field takes, its name aside
_ESCAPED = 6  # bytes that one byte of a name may take in JSON


def index_name(shard: str, export: Export) -> str:
    """Return the name of a shard's index: `out-000000.idx` for `out-000000.tar`."""
    name = sidecar_name(shard).removesuffix(SIDECAR_SUFFIX) + export.suffix
    return os.fsdecode(to_bytes(name))


def stems_of(name: str) -> list[str]:
    """Return the names, without their endings, of the shards that a file could be an index of, by its own name."""
    return [name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix) and name != suffix]


def form_of(name: str, head: bytes, size: int) -> str:
    """Return what a file is by its name and its start, as `--export` calls it; empty where it is no index.

    Args:
        name: Of the file.
        head: Its first bytes, `HEAD_SIZE` or all.
        size: How many it has.
    """
    for export in EXPORTS:
        suffix = EXPORTS[export].suffix
        if suffix and name.endswith(suffix) and _has_form(export, head, size):
            return export
    return ""


def _has_form(export: str, head: bytes, size: int) -> bool:
    if export in _FORMS:
        return _FORMS[export].match(head) is not None
    if size % 8 or len(head) < 16:  # noqa: PLR2004 - a sample and the end
        return False
    first, second = struct.unpack("<QQ", head[:16])
    return first < min(second, _FIRST_LIMIT) and not first % _BLOCK and not second % _BLOCK


def index_limit(shard: IndexedShard) -> int:
    """Return how many bytes the index of a shard may have: more is none of it."""
    import pyarrow.compute as pc

    lists = shard.table.column("__fields__").combine_chunks()
    keys, names = shard.table.column("__key__").cast("binary"), lists.flatten().field("name").cast("binary")
    letters = pc.sum(pc.multiply(pc.binary_length(keys), lists.value_lengths())).as_py() or 0
    letters += pc.sum(pc.binary_length(names)).as_py() or 0
    return _HEAD_LIMIT + len(names) * _FIELD_LIMIT + letters * _ESCAPED


def difference(export: str, data: bytes, shard: IndexedShard) -> str:
    """Return how an index differs from one of the shard; empty where readers find by it what lies there.

    Args:
        export: What the file is, as `form_of` tells.
        data: Its bytes.
        shard: Its hashes are compared only where it has some.
    """
    found = EXPORTS[export]
    if found.encode is None or found.shard_format != _format_of(shard):
        return f"an index of {found.shard_format} shards"
    try:
        if export == "huggingface":
            return _hub_difference(data, shard)
        if found.encode(shard) == data:
            return ""
        if export == "dali-webdataset":
            same = _places_of_lines(data) == _places(shard)
        elif export == "energon":
            same = False
        else:
            same = data.split() == found.encode(shard).split()
    except InvalidRequest as error:
        return error.found
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, IndexError):
        same = False
    return "" if same else "the places of other samples"


def _format_of(shard: IndexedShard) -> str:
    return format_of(shard.name) or "tfrecord"  # TensorFlow's names need not tell


def _places(shard: IndexedShard) -> list[list[tuple[bytes, int, int]]]:
    """Return each sample's fields: name, offset and length."""
    lists = shard.table.column("__fields__").combine_chunks()
    fields = lists.flatten()
    columns = [fields.field("name").cast("binary").to_pylist()]
    columns += [fields.field(part).to_pylist() for part in ("offset", "length")]
    rows = list(zip(*columns, strict=True))
    return [rows[first:last] for first, last in pairwise(lists.offsets.to_pylist())]


def _places_of_lines(data: bytes) -> list[list[tuple[bytes, int, int]]]:
    """Return the same of DALI's index, of any tool: names of members are labels there, and version 1.1 has none."""
    head, *lines = data.removesuffix(b"\n").split(b"\n")
    version, count = head.split()
    step = 3 if version == b"v1.1" else 4
    if int(count) != len(lines):
        raise ValueError(count)
    samples = []
    for words in map(bytes.split, lines):
        if len(words) % step:
            raise ValueError(len(words))
        samples.append([
            (words[at], int(words[at + 1]), int(words[at + 2])) for at in range(0, len(words), step)
        ])  # fmt: skip
    return samples


def _hub_difference(data: bytes, shard: IndexedShard) -> str:
    document: Any = json.loads(data)
    keys = shard.table.column("__key__").to_pylist()
    wanted = {
        f"{key}.{name.decode()}": (offset, length)
        for key, fields in zip(keys, _places(shard), strict=True)
        for name, offset, length in fields
    }
    files: dict[str, Any] = document["files"]
    found = {name: (one["offset"], one.get("size", one.get("length"))) for name, one in files.items()}
    if document.get("filesize", shard.size) != shard.size or found != wanted:
        return "the places of other samples"
    if shard.digests is None:
        return ""
    digests = shard.digests
    whole = {"hash": digests.git, "hash_lfs": digests.sha256}
    same = all(document.get(name, value) == value for name, value in whole.items())
    parts = zip(wanted, range(len(wanted)), strict=True)
    same = same and all(files[name].get("sha256", digests.payload(at)) == digests.payload(at) for name, at in parts)
    return "" if same else "the hashes of other bytes"
