"""Index files of which a folder has one set, such as energon's .nv-meta, shared by all splits of a dataset."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardtool.dataset.dataset_file import read_dataset
from shardtool.errors import CorruptShard, OutputExists, listing
from shardtool.interop.huggingface import README, is_ours
from shardtool.pattern import DATASET_SUFFIX
from shardtool.values import output_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.interop.export_types import FolderIndex
    from shardtool.storage.folders import OutputFolder


@dataclass(frozen=True, slots=True)
class OnceFiles:
    """The index files that are to be in a folder.

    Attributes:
        files: Bytes by path, in the order in which they should appear.
        lasting: The one that stays where it is there.
        renewed: Whether what is there now is our own, of fewer splits, or of fewer shards since samples were appended:
            it may be replaced without a word.
    """

    files: dict[str, bytes]
    lasting: str
    renewed: bool


def once_files(once: FolderIndex, datasets: Sequence[DatasetFile], target: OutputFolder) -> OnceFiles:
    """Return the files that cover these datasets.

    Raises:
        InvalidRequest: A name cannot stand in them.
        OutputExists: The ones that are there cover other shards that are there.
    """
    files = once.encode([one.split_shards() for one in datasets])
    ours = {shard.name for dataset in datasets for shard in dataset.shards}
    listed = listed_shards(once, target)
    if listed is None:
        return OnceFiles(files, once.lasting, renewed=False)
    refuse_others(once, target, listed - ours)
    earlier = [found for one in datasets if (found := _as_listed(one, listed)) is not None]
    was = once.encode([one.split_shards() for one in earlier])
    return OnceFiles(files, once.lasting, all(_read(target, one) == was[one] for one in was if one != once.lasting))


def _as_listed(dataset: DatasetFile, listed: set[str]) -> DatasetFile | None:
    """Return a dataset as it was when all of its shards were listed: now, or before samples were appended."""
    for shards in (len(dataset.shards), *reversed(dataset.appends)):
        if listed.issuperset(shard.name for shard in dataset.shards[:shards] if shard.samples):
            return replace(dataset, shards=dataset.shards[:shards])
    return None


def listed_shards(once: FolderIndex, target: OutputFolder) -> set[str] | None:
    """Return the shards that the files which are there cover; None: there are no such files."""
    counts = sample_counts(once, target)
    return None if counts is None else set(counts)


def sample_counts(once: FolderIndex, target: OutputFolder) -> dict[str, int] | None:
    """Return how many samples the files which are there give for each shard; None: there are no such files."""
    below = os.path.dirname(once.info)  # not through a link to a folder
    apart = below and not all(fact.is_folder for fact in target.facts([below]).values())
    info = None if apart else _read(target, once.info)
    return None if info is None else once.counts(info)


def refuse_others(once: FolderIndex, target: OutputFolder, others: Iterable[str]) -> None:
    """Refuse files that cover shards of another dataset.

    Raises:
        OutputExists: Some of these other shards are there.
    """
    there = {output_text(name) for name in target.names()}
    if others := sorted(name for name in others if "/" in name or name in there):
        found = f"that of other shards: {listing(others, 3)}"
        expected = "one dataset in a folder, or the splits of one"
        remedy = f"Put the datasets into folders of their own, or remove {os.path.dirname(once.info) or once.info}."
        raise OutputExists(target.full_path(once.info), found, expected=expected, remedy=remedy)


def other_splits(dataset: DatasetFile, name: str, folder: OutputFolder) -> list[DatasetFile]:
    """Return the datasets in a folder that the same run made as `dataset`, called `name`, for other splits."""
    if not dataset.made.split:
        return []
    found = []
    for other in sorted(folder.names()):
        if other.endswith(DATASET_SUFFIX) and other != name:
            with suppress(OSError, CorruptShard):
                read = read_dataset(folder.read(other), other)
                if dataset.made.is_split_with(read.made):
                    found.append(read)
    return found


def has_own_readme(folder: OutputFolder) -> bool:
    """Tell whether there is a `README.md` of ours, which names the shards."""
    with suppress(OSError):
        return is_ours(folder.read(README))
    return False


def _read(folder: OutputFolder, path: str) -> bytes | None:
    try:
        return folder.read(path)
    except OSError:
        return None
