"""Index files of other tools, made from our sidecars: rows in, bytes out, no file opened.

Each is held against the tool that makes it and the tool that reads it, in tests/clients.

Source: the modules of the tools, which name theirs; docs/format.md, "Exported indexes".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest
from shardtool.interop import energon, sample_counts
from shardtool.interop.dali import tfrecord_index, webdataset_index
from shardtool.interop.export_types import Export, FolderIndex
from shardtool.interop.huggingface import hub_index
from shardtool.wording import either, exporting

if TYPE_CHECKING:
    from collections.abc import Sequence

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
