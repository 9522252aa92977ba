"""How many samples each shard has, as trainers read it: timm's `_info.json`, and `sizes.json` of open_clip.

Each is one file a folder, beside the shards. Without it the user has to count the samples for them.

Source: huggingface/pytorch-image-models, `timm/data/readers/reader_wds.py`; mlfoundations/open_clip,
`get_dataset_size`; docs/format.md, "Exported indexes".
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest
from shardtool.interop.energon import by_split
from shardtool.wording import exporting

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shardtool.interop.export_types import SplitShards

TIMM_FILE = "_info.json"
OPEN_CLIP_FILE = "sizes.json"
_TRAIN = "train"  # of a dataset without splits: what timm looks for


def timm_info(splits: Sequence[SplitShards]) -> dict[str, bytes]:
    """Return `_info.json`: of each split its shards and their samples.

    Raises:
        InvalidRequest: timm would take a split's name for the name of shards.
    """
    found = {}
    check_timm_splits([split.name for split in splits])
    for split in sorted(splits, key=by_split):
        found[split.name or _TRAIN] = {
            "name": split.name or _TRAIN,
            "num_samples": sum(split.shards.values()),
            "filenames": [*split.shards],
            "shard_lengths": [*split.shards.values()],
        }
    return {TIMM_FILE: json.dumps({"splits": found}, indent=2).encode() + b"\n"}


def check_timm_splits(splits: Iterable[str]) -> None:
    """Check that timm finds the splits by their names.

    Raises:
        InvalidRequest: It would take one for the name of shards.
    """
    for name in splits:
        if "tar" in name or ".." in name:
            what = f"the split {name}, which timm takes for the name of shards"
            raise InvalidRequest(exporting("timm"), what, expected="names of splits without 'tar' and '..'")


def timm_counts(info: bytes) -> dict[str, int]:
    """Return how many samples an `_info.json` gives for each shard, as far as it can be read; -1: no number."""
    try:
        splits = json.loads(info)["splits"].values()
        return _counts(pair for one in splits for pair in zip(one["filenames"], one["shard_lengths"], strict=True))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def open_clip_sizes(splits: Sequence[SplitShards]) -> dict[str, bytes]:
    """Return `sizes.json`: each shard of the folder to its samples."""
    counts = {name: count for split in sorted(splits, key=by_split) for name, count in split.shards.items()}
    return {OPEN_CLIP_FILE: json.dumps(counts, indent=2).encode() + b"\n"}


def open_clip_counts(sizes: bytes) -> dict[str, int]:
    """Return how many samples a `sizes.json` gives for each shard, as far as it can be read; -1: no number."""
    try:
        return _counts(json.loads(sizes).items())
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _counts(pairs: Iterable[tuple[object, object]]) -> dict[str, int]:
    return {str(name): count if type(count) is int else -1 for name, count in pairs}
