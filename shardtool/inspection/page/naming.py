"""What a report calls a dataset, and whether it is whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.inspection.page.thumbnails import shorten
from shardtool.values import counted

if TYPE_CHECKING:
    from shardtool.dataset.opened import OpenedDataset
    from shardtool.inspection.page.figures import Figures
    from shardtool.inspection.page.thumbnails import Shown

_LONGEST = 120


def dataset_name(dataset: OpenedDataset) -> str:
    """Return the dataset's name, for people: of its own, or what its shards' names have in common."""
    if dataset.file and dataset.file.name:
        return shorten(dataset.file.name, _LONGEST)
    names = [shard.name for shard in dataset.shards]
    first, last = min(names), max(names)
    same = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    common = first[:same] if first != last else first.partition(".")[0]
    return shorten(common.rstrip("-_.0123456789") or names[0], _LONGEST)


def state(dataset: OpenedDataset, figures: Figures) -> tuple[str, str]:
    """Return how whole the dataset is: `good`, `warn` or `bad`, and a few words."""
    missing = sum(shard.size is None for shard in figures.shards)
    if missing:
        return "bad", f"{counted(missing, 'shard')} missing"
    wrong = sum(bool(shard.problems) for shard in figures.shards)
    if wrong:
        return "bad", f"{counted(wrong, 'shard')} with problems"
    if dataset.file is None:
        return "warn", "no dataset file: completeness unknown"
    return "good", "complete"


def label_of(figures: Figures, one: Shown) -> str:
    """Return a sample's label, for people: a bare number with the name of what holds it."""
    for labels in figures.labels:
        if labels.name in one.chosen.labels:
            text = one.chosen.labels[labels.name]
            return f"{shorten(labels.name, 30)} {text}" if text.lstrip("-").isdigit() else text
    return ""
