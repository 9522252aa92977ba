"""What the page and the contact sheet call a dataset, and a sample's label."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.inspection.page.thumbnails import shorten

if TYPE_CHECKING:
    from shardtool.dataset.opened import OpenedDataset
    from shardtool.inspection.page.thumbnails import Shown

_LONGEST = 120


def dataset_name(dataset: OpenedDataset) -> str:
    """Return the dataset's name, for people: its own, or what its shards' names have in common."""
    if dataset.file and dataset.file.name:
        return shorten(dataset.file.name, _LONGEST)
    names = [shard.name for shard in dataset.shards]
    first, last = min(names), max(names)
    same = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    common = first[:same] if first != last else first.partition(".")[0]
    return shorten(common.rstrip("-_.0123456789") or names[0], _LONGEST)


def label_of(one: Shown) -> str:
    """Return a sample's label, for people: a bare number with the name of what holds it."""
    for name, text in one.labels.items():
        return f"{shorten(name, 30)} {text}" if text.lstrip("-").isdigit() else text
    return ""
