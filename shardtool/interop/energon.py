"""Index files of Megatron-Energon: offsets next to each shard, and the splits once per folder.

With these files, energon opens the folder without `energon prepare`. Samples are "crude" (a dict of bytes) without a
`dataset.yaml`, which only the user creates.

Source: NVIDIA/Megatron-Energon, `megatron/energon/flavors/webdataset/{itar,metadata,config,prepare}.py`.
"""

from __future__ import annotations

import json
import re
import struct
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest, printable
from shardtool.interop.exports import EXPORTS, FolderIndexFiles, ShardIndexFile
from shardtool.interop.indexed_shard import DEFAULT_SPLIT, STANDARD_SPLITS, IndexedShard, split_order
from shardtool.messages import export_text, flag_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.dataset.dataset_file import DatasetFile


_ENERGON_FOLDER = ".nv-meta"
INFO_FILE = EXPORTS["energon"].folder_file
SPLIT_FILE = f"{_ENERGON_FOLDER}/split.yaml"
DATASET_YAML = f"{_ENERGON_FOLDER}/dataset.yaml"
_CRUDE_DATASET = b"__module__: megatron.energon\n__class__: CrudeWebdataset\n"
_ENERGON_MEMBER = re.compile(rb"(?!__[^/]*__(?:/|$))(?:.*/|)[^.]+[.][^/]*$")
# Energon's YAML reader does not support escapes.
_UNQUOTABLE = re.compile(r'[\x00-\x1f\x7f-\x9f"\\{}\u2028\u2029\ud800-\udfff]')
_TAR_BLOCK_BYTES = 512
_MAX_FIRST_OFFSET = 2**24  # a global pax header can precede the first sample


def energon_index(shard: IndexedShard) -> bytes:
    """Return `out-000000.tar.idx`: uint64 offsets of the samples, and the end of the last sample."""
    for key, fields in shard.samples():
        for field, *_ in fields:
            name = b"%b.%b" % (key, field)
            if not _ENERGON_MEMBER.match(name):
                found = f"{printable(name)!r}, which energon ignores"
                raise InvalidRequest(shard.name, found, remedy=f"Pack the samples with {flag_text('portable')}.")
    positions = shard.places()
    ends = [start for start, _ in positions] + [sum(positions[-1]) if positions else 0]
    return struct.pack(f"<{len(ends)}Q", *ends)


def is_energon_index(head: bytes, size: int) -> bool:
    """Return whether a file starts like `out-000000.tar.idx`: a number of uint64, ascending multiples of 512."""
    if size % 8 or len(head) < 2 * 8:
        return False
    first, second = struct.unpack("<QQ", head[:16])
    return first < min(second, _MAX_FIRST_OFFSET) and not first % _TAR_BLOCK_BYTES and not second % _TAR_BLOCK_BYTES


def energon_folder_index(splits: Sequence[DatasetFile]) -> dict[str, bytes]:
    """Return the files in `.nv-meta`; the last file marks the folder as complete. Energon rejects empty shards."""
    counts: dict[str, int] = {}
    parts: dict[str, list[str]] = {name: [] for name in STANDARD_SPLITS}
    for split in sorted(splits, key=split_order):
        shard_counts = {shard.name: shard.samples for shard in split.shards if shard.samples}
        parts.setdefault(split.made.split or DEFAULT_SPLIT, []).extend(shard_counts)
        counts |= shard_counts
    lines = ["split_parts:"]
    for name, shards in parts.items():
        lines.append(f"  {_quote_yaml(name)}:{'' if shards else ' []'}")
        lines += [f"  - {_quote_yaml(shard)}" for shard in shards]
    return {
        DATASET_YAML: _CRUDE_DATASET,
        SPLIT_FILE: "\n".join([*lines, ""]).encode(),
        INFO_FILE: json.dumps({"shard_counts": counts}, indent=2).encode() + b"\n",
    }


def _quote_yaml(name: str) -> str:
    if _UNQUOTABLE.search(name):
        expected = "a name without quotes, backslashes and braces"
        raise InvalidRequest(export_text("energon"), f"the name {name!r}", expected=expected)
    return f'"{name}"'


SHARD_INDEXES = {"energon": ShardIndexFile(energon_index, is_energon_index)}
FOLDER_INDEXES = {
    "energon": FolderIndexFiles(energon_folder_index, lambda info: info["shard_counts"].items(), DATASET_YAML)
}
