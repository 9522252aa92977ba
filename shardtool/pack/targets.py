"""The datasets that a run writes, one for each split: their names, folders and locks."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shardtool.dataset.classes import open_classes
from shardtool.dataset.dataset_file import read_dataset
from shardtool.dataset.find import find_dataset
from shardtool.dataset.several import given_datasets, of_glob
from shardtool.entries.classes import Classes, joined_classes
from shardtool.errors import InvalidRequest, OutputExists
from shardtool.execute.pool import Needs
from shardtool.pack.request import output_pattern
from shardtool.publish.destination import Destination, look
from shardtool.publish.part_file import Own, check_divided_alike
from shardtool.publish.publisher import Publisher, clean
from shardtool.publish.stale_indexes import StaleIndexes
from shardtool.storage.folders import open_folder
from shardtool.storage.places import is_url, read_small
from shardtool.values import to_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import ExitStack

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.entries.entries import Entries
    from shardtool.execute.pool import Pool
    from shardtool.pack.request import Request
    from shardtool.pattern import ShardPattern
    from shardtool.request.options import CreateOptions
    from shardtool.request.reshard_options import ReshardOptions
    from shardtool.storage.staging import Folder

_REPLACED = "a shard of the source, which the output would replace or remove"
_ELSEWHERE = "an output in another folder, or under other names"
_UNTOUCHED = "Nothing was touched. The new dataset can take its place once it is complete."


@dataclass(frozen=True, slots=True)
class Target:
    """One dataset to be written: all of it, or a split.

    Attributes:
        split: The split's name; empty without splits.
        output: Where it goes, and what was there when the run looked.
    """

    split: str
    output: Destination

    @property
    def pattern(self) -> ShardPattern:
        """The names of its shards."""
        return self.output.pattern


def open_targets(request: Request, splits: Sequence[str] | None = None) -> tuple[Target, ...]:
    """Return the datasets that a run writes, after a look at what is there; none while their names are unknown.

    A dry run looks only at what it would append to or resume.

    Args:
        request: The run.
        splits: The names of its splits; None: those that the options name.

    Raises:
        InvalidRequest: A file could be of two splits, or there is nothing to append to.
        OutputExists: Something is there that the options do not allow to touch.
        CorruptShard: What is appended to is damaged.
    """
    if splits is None:
        splits = [name for name, _ in request.dividing.shares] if request.dividing else [""]
    patterns = [output_pattern(request.names, split) for split in splits]
    _check_apart(request, splits, patterns)
    targets = []
    for split, pattern in zip(splits, patterns, strict=True):
        own = None if request.part is None else Own(request.part)
        output = Destination(open_folder(pattern.folder), pattern, request.options.if_exists, own=own)
        if not request.dry or output.appends or output.resumes:
            output = look(output)
        targets.append(Target(split, output))
    return tuple(targets)


def keep_classes(request: Request, targets: Sequence[Target]) -> CreateOptions | ReshardOptions:
    """Return options by which labels keep the numbers of the dataset that is there, and new ones get the next.

    So an append numbers them unless a list is given; and the dataset's own dataset file, as that list, means the same.

    Raises:
        InvalidRequest: The splits that are there number them differently.
        CorruptShard: A dataset file is damaged.
    """
    options = request.options
    given = options.classes_from
    if not (options.classes or getattr(options, "label_from_folder", False)):
        return options
    if isinstance(given, str | os.PathLike):
        if not any(_is_same(os.fspath(given), one) for one in _dataset_files(request, targets)):
            return options
        known = open_classes(given)
        return options if known is None else replace(options, classes_from=replace(known, grows=True))
    if given is not None or not request.appends:
        return options
    names: dict[str, list[str]] = {}
    for file in _datasets_there(request, targets):
        names = joined_classes(names, file.classes)
    return replace(options, classes_from=Classes("the dataset", names, grows=True)) if names else options


def _dataset_files(request: Request, targets: Sequence[Target]) -> list[str]:
    """Return the dataset files of the output; of splits that only the samples will name, those that are there."""
    if targets:
        return [target.output.folder.full_path(target.pattern.dataset_file) for target in targets]
    try:
        return [one for one in given_datasets(request.dataset_file) if isinstance(one, str)]
    except InvalidRequest:  # none is there
        return []


def _datasets_there(request: Request, targets: Sequence[Target]) -> list[DatasetFile]:
    if targets:
        return [target.output.old for target in targets if target.output.old is not None]
    found = [read_dataset(read_small(path), path) for path in _dataset_files(request, targets)]
    return [file for file in found if file.made.split]


def _is_same(one: str, other: str) -> bool:
    return one == other or (not is_url(other) and os.path.realpath(one) == os.path.realpath(other))


def _check_apart(request: Request, splits: Sequence[str], patterns: Sequence[ShardPattern]) -> None:
    for one, pattern in zip(splits, patterns, strict=True):
        for other, other_pattern in zip(splits, patterns, strict=True):
            shared = other_pattern.owned_by(pattern) if one != other else None
            if shared:
                found = f"{shared} may be a file of the splits {one} and {other}"
                expected = "names that differ, such as out-{split}-{000000..}.tar"
                raise InvalidRequest(request.names[0], found, expected=expected)


def check_source_stays(targets: Sequence[Target], entries: Entries) -> None:
    """Refuse an output that replaces or removes a file that samples lie in; shards that are appended to stay.

    Raises:
        InvalidRequest: There is such a file.
    """
    paths = {file.path for file in (() if entries.spans is None else entries.spans.files)}
    paths |= {os.path.realpath(path) for path in paths if os.path.islink(path)}
    folders = {os.path.dirname(path) for path in paths}
    for target in targets:
        there, old = os.path.realpath(os.fsencode(target.pattern.folder or ".")), target.output.old
        beside = {folder for folder in folders if os.path.realpath(folder or b".") == there}
        stay = {to_bytes(shard.name) for shard in old.shards} if old is not None else set()
        for path in sorted(paths):
            folder, name = os.path.split(path)
            if folder in beside and name not in stay and target.pattern.owns(os.fsdecode(name)):
                raise InvalidRequest(os.fsdecode(path), _REPLACED, expected=_ELSEWHERE, remedy=_UNTOUCHED)


def check_other_place(request: Request, datasets: Any) -> None:
    """Refuse to reshard datasets onto themselves: what is there already is not to be replaced, then.

    Raises:
        OutputExists: The output has a name of a shard of theirs.
    """
    pattern = output_pattern(request.names)
    for one in datasets if isinstance(datasets, list | tuple) else [datasets]:
        for path in (path for dataset in of_glob(one) for path in find_dataset(dataset).shards):
            same = os.path.realpath(os.path.dirname(path)) == os.path.realpath(pattern.folder)
            if not is_url(path) and same and pattern.owns(os.path.basename(path)):
                raise OutputExists(path, _REPLACED, expected=_ELSEWHERE, remedy=_UNTOUCHED)


def remove_splits(request: Request, names: Sequence[str]) -> None:
    """Remove the datasets of splits that the run has no samples for, the dataset file of each first.

    Raises:
        OutputExists: Another run is writing one of them.
        OutputFailed: The file system refuses.
    """
    for name in names:
        pattern = output_pattern(request.names, name)
        folder = open_folder(pattern.folder)
        with folder.lock(pattern.base):
            beside = StaleIndexes(folder, pattern, appends=False)
            beside.look(folder.names())
            beside.keep_only(())
            folder.remove([pattern.dataset_file])
            beside.remove()
            folder.remove(sorted(one for one in folder.names() if pattern.owns(one)))


def open_publishers(
    targets: Sequence[Target], temporary: tuple[Folder, str] | None, pool: Pool, stack: ExitStack
) -> list[Publisher]:
    """Make the folders, take the locks, look again, and remove what a killed run has left.

    Args:
        targets: Where the run writes.
        temporary: The folder and the name of its temporary file; None: it makes none.
        pool: Its workers, which are stopped before anything is removed.
        stack: At its end, what is staged is removed and the locks are given back.

    Returns:
        What publishes each dataset.

    Raises:
        OutputExists: Another run is writing it, or has changed it.
    """
    for target in targets:
        folder, base, own = target.output.folder, target.pattern.base, target.output.own
        folder.ready()
        stack.enter_context(folder.lock(base, shared=own is not None))  # parts run side by side, and nothing else does
        if own is not None:
            stack.enter_context(folder.lock(f"{base}.{own.part.tag}"))
            check_divided_alike(folder, target.pattern, own.part)
    folders = [*(target.output.folder for target in targets), *([] if temporary is None else [temporary[0]])]
    for path in {folder.path: None for folder in folders}:
        pool.check(Needs(output=path))
    stack.callback(_discard, targets, temporary)
    publishers = [Publisher(look(target.output)) for target in targets]
    for publisher in publishers:
        stack.callback(publisher.abandon)
    stack.callback(pool.close)  # the first thing that is done: then nothing is staged any more
    _discard(targets, temporary)
    return publishers


def _discard(targets: Sequence[Target], temporary: tuple[Folder, str] | None) -> None:
    for target in targets:
        clean(target.output)
    if temporary is not None:
        folder, name = temporary
        folder.discard_staged([name])
