"""Sample counts per shard for trainers: timm's `_info.json`, and open_clip's `sizes.json`, one file per folder.

Source: huggingface/pytorch-image-models, `timm/data/readers/reader_wds.py`; mlfoundations/open_clip,
`get_dataset_size`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from shardtool.errors import (
    InvalidRequest,
)
from shardtool.interop.indexed_shard import DEFAULT_SPLIT, split_order
from shardtool.messages import export_text
from shardtool.pattern import OPEN_CLIP_FILE, TIMM_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shardtool.dataset.dataset_file import DatasetFile


def timm_info(splits: Sequence[DatasetFile]) -> dict[str, bytes]:
    """Return `_info.json`: of each split its shards and their samples.

    Raises:
        InvalidRequest: timm would take a split's name for the name of shards.
    """
    found = {}
    check_timm_splits([split.made.split for split in splits])
    for split in sorted(splits, key=split_order):
        name, counts = split.made.split or DEFAULT_SPLIT, [shard.samples for shard in split.shards]
        names = [shard.name for shard in split.shards]
        found[name] = {"name": name, "num_samples": sum(counts), "filenames": names, "shard_lengths": counts}
    return {TIMM_FILE: json.dumps({"splits": found}, indent=2).encode() + b"\n"}


def check_timm_splits(splits: Iterable[str]) -> None:
    """Check that timm finds the splits by their names.

    Raises:
        InvalidRequest: It would take one for the name of shards.
    """
    for name in splits:
        if "tar" in name or ".." in name:
            what = f"the split {name}, which timm takes for the name of shards"
            raise InvalidRequest(export_text("timm"), what, expected="names of splits without 'tar' and '..'")


def open_clip_sizes(splits: Sequence[DatasetFile]) -> dict[str, bytes]:
    """Return `sizes.json`: each shard of the folder to its samples."""
    counts = {shard.name: shard.samples for split in sorted(splits, key=split_order) for shard in split.shards}
    return {OPEN_CLIP_FILE: json.dumps(counts, indent=2).encode() + b"\n"}


def timm_shard_counts(info: Any) -> Iterator[tuple[object, object]]:
    for one in info["splits"].values():
        yield from zip(one["filenames"], one["shard_lengths"], strict=True)
