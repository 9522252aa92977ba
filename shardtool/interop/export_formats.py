"""Index files of other tools, made from our sidecars: rows in, bytes out, no file opened.

Each is held against the tool that makes it and the tool that reads it, in tests/clients.

Source: the modules of the tools, which name theirs; docs/format.md, "Exported indexes".
"""

from __future__ import annotations

import json
import os
import re
import struct
from itertools import pairwise
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest
from shardtool.interop import indexes as energon
from shardtool.interop import indexes as sample_counts
from shardtool.interop.export_types import Export, FolderIndex
from shardtool.interop.huggingface import hub_index
from shardtool.interop.indexes import offsets_index, tfrecord_index, webdataset_index
from shardtool.pattern import SIDECAR_SUFFIX, format_of, sidecar_name
from shardtool.values import to_bytes
from shardtool.wording import either, exporting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.interop.export_types import IndexedShard


_NV_META = FolderIndex(energon.folder_index, energon.INFO_FILE, energon.shard_counts, energon.DATASET_YAML)
_TIMM = FolderIndex(sample_counts.timm_info, sample_counts.TIMM_FILE, sample_counts.timm_counts)
_OPEN_CLIP = FolderIndex(sample_counts.open_clip_sizes, sample_counts.OPEN_CLIP_FILE, sample_counts.open_clip_counts)
EXPORTS = {
    "dali-webdataset": Export("tar", "DALI", ".idx", webdataset_index, least=1),
    "energon": Export("tar", "energon", ".tar.idx", energon.offsets_index, once=_NV_META),
    "huggingface": Export("tar", "the Hugging Face Hub", ".json", hub_index, hashed=True, readme=True),
    "timm": Export("tar", "timm", once=_TIMM),
    "open-clip": Export("tar", "open_clip", once=_OPEN_CLIP),
    "wids": Export("tar", "wids", note="the dataset file is what wids wants: nothing to write"),
    "dali-tfrecord": Export("tfrecord", "DALI", ".idx", tfrecord_index, least=1),
    "tfrecord": Export("tfrecord", "the tfrecord package", ".tfindex", tfrecord_index, least=2),
}
ONCE = {name: export.once for name, export in EXPORTS.items() if export.once is not None}


def wanted_exports(formats: Sequence[str], shard_format: str = "") -> dict[str, Export]:
    """Return the exports of these names.

    Args:
        formats: Their names.
        shard_format: The format of their shards; empty: not known yet.

    Raises:
        InvalidRequest: One is unknown, or an index of other shards.
    """
    for name in formats:
        if name not in EXPORTS:
            raise InvalidRequest(either("export", "--export"), repr(name), expected=f"one of {', '.join(EXPORTS)}")
        if shard_format and EXPORTS[name].shard_format != shard_format:
            others = [one for one, other in EXPORTS.items() if other.shard_format == shard_format]
            found = f"an index of {EXPORTS[name].shard_format} shards, and these are {shard_format}"
            raise InvalidRequest(exporting(name), found, expected=f"one of {', '.join(others)}")
    return {name: EXPORTS[name] for name in formats}


# Index files of other tools that lie beside shards: which files are such, and do they fit their shard?
#
# Whoever made one, it leads into the bytes of one shard, which its name says; most readers return what lies at its
# offsets, also in another shard's bytes, and report no error. A file is taken for an index only where its start has the
# form of one: a user's own file of such a name is none. No file is opened here.
#
# Source: docs/format.md, "Exported indexes".


_LEAST_OFFSETS = 16  # bytes of the offsets of a sample and of the end
HEAD_SIZE = 64  # bytes from the start of a file that show its form
_RECORDS = re.compile(rb"\d{1,20} \d{1,20}\r?\n")
_TEXTS = {  # how an index that is text starts
    "dali-webdataset": re.compile(rb"v1\.\d{1,3} \d{1,20}\r?\n"),
    "dali-tfrecord": _RECORDS,
    "tfrecord": _RECORDS,
    "huggingface": re.compile(rb'\s*\{\s*"(?:filesize|files|hash|hash_lfs)"\s*:'),
}
_SUFFIXES = sorted({export.suffix for export in EXPORTS.values() if export.suffix}, key=len, reverse=True)
_BLOCK = 512
_FIRST_LIMIT = 2**24  # where a tar's first sample may start: after a global header
_OTHER = "the places of other samples"
_HEAD_LIMIT = 4096  # bytes of an index besides those of its fields
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
        name: The file's name.
        head: Its first bytes, `HEAD_SIZE` or all.
        size: How many it has.
    """
    for export, kind in EXPORTS.items():
        suffix = kind.suffix
        if suffix and name.endswith(suffix) and _has_form(export, head, size):
            return export
    return ""


def _has_form(export: str, head: bytes, size: int) -> bool:
    if export != "energon":
        return _TEXTS[export].match(head) is not None
    if size % 8 or len(head) < _LEAST_OFFSETS:
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
        export: What the file is, as `form_of` returns it.
        data: Its bytes.
        shard: Its hashes are compared only where it has some.
    """
    found = EXPORTS[export]
    if found.encode is None or found.shard_format != _format_of(shard):
        return f"an index of {found.shard_format} shards"
    compare = _DIFFERENCES[export]
    try:
        return compare(data, shard)
    except InvalidRequest as error:
        return error.found
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, IndexError):
        return _OTHER


def _dali_difference(data: bytes, shard: IndexedShard) -> str:
    same = webdataset_index(shard) == data or _places_of_lines(data) == _places(shard)
    return "" if same else _OTHER


def _energon_difference(data: bytes, shard: IndexedShard) -> str:
    return "" if offsets_index(shard) == data else _OTHER


def _tfrecord_difference(data: bytes, shard: IndexedShard) -> str:
    return "" if tfrecord_index(shard).split() == data.split() else _OTHER


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
        samples.append([(words[at], int(words[at + 1]), int(words[at + 2])) for at in range(0, len(words), step)])
    return samples


def _hub_difference(data: bytes, shard: IndexedShard) -> str:
    document = json.loads(data)
    keys = shard.table.column("__key__").to_pylist()
    wanted = {
        f"{key}.{name.decode()}": (offset, length)
        for key, fields in zip(keys, _places(shard), strict=True)
        for name, offset, length in fields
    }
    files: dict[str, dict[str, object]] = document["files"]
    found = {name: (one["offset"], one.get("size", one.get("length"))) for name, one in files.items()}
    if document.get("filesize", shard.size) != shard.size or found != wanted:
        return _OTHER
    if shard.digests is None:
        return ""
    digests = shard.digests
    whole = {"hash": digests.git, "hash_lfs": digests.sha256}
    same = all(document.get(name, value) == value for name, value in whole.items())
    parts = zip(wanted, range(len(wanted)), strict=True)
    same = same and all(files[name].get("sha256", digests.payload(at)) == digests.payload(at) for name, at in parts)
    return "" if same else "the hashes of other bytes"


_DIFFERENCES = {  # every export of an index has one
    "dali-webdataset": _dali_difference,
    "energon": _energon_difference,
    "huggingface": _hub_difference,
    "dali-tfrecord": _tfrecord_difference,
    "tfrecord": _tfrecord_difference,
}
