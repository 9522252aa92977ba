"""Sample counts per shard for trainers: timm's `_info.json`, and open_clip's `sizes.json`, one file per folder.

Source: huggingface/pytorch-image-models, `timm/data/readers/reader_wds.py`; mlfoundations/open_clip,
get_dataset_size.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from shardtool.errors import InvalidRequest
from shardtool.interop.exports import FolderIndexFiles
from shardtool.interop.indexed_shard import DEFAULT_SPLIT, split_order
from shardtool.messages import export_text
from shardtool.pattern import OPEN_CLIP_FILE, TIMM_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shardtool.dataset.dataset_file import DatasetFile


def timm_info(splits: Sequence[DatasetFile]) -> dict[str, bytes]:
    """Return `_info.json`."""
    entries = {}
    check_timm_splits([split.made.split for split in splits])
    for split in sorted(splits, key=split_order):
        name, counts = split.made.split or DEFAULT_SPLIT, [shard.samples for shard in split.shards]
        names = [shard.name for shard in split.shards]
        entries[name] = {"name": name, "num_samples": sum(counts), "filenames": names, "shard_lengths": counts}
    return {TIMM_FILE: json.dumps({"splits": entries}, indent=2).encode() + b"\n"}


def check_timm_splits(splits: Iterable[str]) -> None:
    """Check that timm can find the splits by name."""
    for name in splits:
        if "tar" in name or ".." in name:
            found = f"the split {name}, which timm would read as a shard name"
            raise InvalidRequest(export_text("timm"), found, expected="split names without 'tar' and '..'")


def open_clip_sizes(splits: Sequence[DatasetFile]) -> dict[str, bytes]:
    """Return `sizes.json`."""
    counts = {shard.name: shard.samples for split in sorted(splits, key=split_order) for shard in split.shards}
    return {OPEN_CLIP_FILE: json.dumps(counts, indent=2).encode() + b"\n"}


def timm_shard_counts(info: Any) -> Iterator[tuple[object, object]]:
    """Yield the shards in a parsed `_info.json`, with their sample counts."""
    for split in info["splits"].values():
        yield from zip(split["filenames"], split["shard_lengths"], strict=True)


FOLDER_INDEXES = {
    "timm": FolderIndexFiles(timm_info, timm_shard_counts),
    "open-clip": FolderIndexFiles(open_clip_sizes, dict.items),
}
