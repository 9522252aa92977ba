"""Find, check, lock and remove the datasets that a run writes."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import reduce
from itertools import permutations
from typing import TYPE_CHECKING

from shardtool.dataset.dataset_file import DatasetFile, parse_dataset, parse_shard_names
from shardtool.dataset.expand import datasets_by_split
from shardtool.entries.classes import Classes, merge_classes
from shardtool.errors import InvalidRequest, OutputExists
from shardtool.names import to_bytes
from shardtool.publish.destination import Destination, changed_meanwhile_error, inspect_destination
from shardtool.publish.part_records import check_part_count
from shardtool.publish.publisher import Publisher, remove_staged
from shardtool.publish.stale_indexes import StaleIndexes
from shardtool.storage.files import read_small
from shardtool.storage.folders import open_folder
from shardtool.storage.paths import real_path
from shardtool.verbs.create.run import Run, RunOutput, parse_output_pattern

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.request.create_options import CreateOptions, ReshardOptions
    from shardtool.storage.staging import Folder


OUTPUT_IS_SOURCE = "a shard of the source, which the output would replace or remove"


OTHER_OUTPUT = "an output in another folder, or under other names"


NOTHING_CHANGED = "Nothing was touched. The new dataset can take its place once it is complete."


def open_outputs(run: Run, splits: Sequence[str] | None = None) -> None:
    """Find the datasets that a run writes, after a look at what is there; none while their names are unknown.

    A dry run looks only at what it would append to or resume.

    Args:
        run: The run.
        splits: The names of its splits; None: those that the options name.

    Raises:
        InvalidRequest: A file could be of two splits, or there is nothing to append to.
        OutputExists: Something is there that the options do not allow to touch, and the run appends to it or
            updates it. Otherwise `run.refusal` is this error: a mistake in the source or the query comes first.
        CorruptShard: What is appended to is damaged.
    """
    if splits is None:
        splits = [name for name, _ in run.dividing.shares] if run.dividing else [""]
    patterns = {split: parse_output_pattern(run.names, split) for split in splits}
    for (one, pattern), (other, other_pattern) in permutations(patterns.items(), 2):
        if shared := other_pattern.find_overlap(pattern):
            found = f"{shared} may be a file of the splits {one} and {other}"
            expected = "names that differ, such as out-{split}-{000000..}.tar"
            raise InvalidRequest(run.names[0], found, expected=expected)
    run.outputs = []
    for split, pattern in patterns.items():
        there = Destination(open_folder(pattern.folder), pattern, run.options.if_exists, part=run.part)
        try:
            there = inspect_destination(there) if not run.dry or there.appends or there.resumes else there
        except OutputExists as error:
            if there.appends or run.updates:
                raise
            run.refusal = run.refusal or error
        run.outputs.append(RunOutput(split, there))


def find_existing_splits(run: Run) -> list[str]:
    """Return the splits that earlier runs have made under the names of this run, whose own only its samples tell.

    Raises:
        CorruptShard: A dataset file is damaged.
    """
    return [file.made.split for file in _read_existing_datasets(run, _list_dataset_files(run))]


def keep_class_numbers(run: Run) -> CreateOptions | ReshardOptions:
    """Return options by which labels keep the numbers of the dataset that is there, and new ones get the next.

    So an append numbers them unless a list is given; and the dataset's own dataset file, as that list, means the same,
    be it that of one of several splits, or one that an update is yet to make.

    Raises:
        InvalidRequest: The splits that are there number them differently.
        CorruptShard: A dataset file is damaged.
    """
    options, given = run.options, run.options.classes_from
    if not (options.classes or options.values or getattr(options, "label_from_folder", False)):
        return options
    files = _list_dataset_files(run)
    own = isinstance(given, str | os.PathLike) and real_path(os.fspath(given)) in map(real_path, files)
    if not own and (given is not None or not run.appends):
        return options
    there = _read_existing_datasets(run, files)
    names: dict[str, list[str]] = reduce(merge_classes, (file.classes for file in there), {})
    if there or (own and run.updates):
        return replace(options, classes_from=Classes("the dataset", names, grows=True) if names else None)
    return options


def _read_existing_datasets(run: Run, files: Sequence[str]) -> list[DatasetFile]:
    """Return what the dataset files of the output say that are there; where its splits are unknown, of any of them."""
    found = []
    for path in files:
        with suppress(FileNotFoundError):
            data = read_small(path)
            if not run.outputs and parse_shard_names(data) is None:
                continue  # another program's, such as an index
            file = parse_dataset(data, path)
            named = parse_output_pattern(run.names, file.made.split).dataset_file if file.made.split else ""
            if run.outputs or os.path.basename(path) == named:
                found.append(file)
    return found


def _list_dataset_files(run: Run) -> list[str]:
    """Return the dataset files of the output; of splits that only the samples will name, those that are there."""
    if run.outputs:
        return [output.destination.dataset_file for output in run.outputs]
    try:
        named = datasets_by_split(run.dataset_file).values()
        return [one for datasets in named for one in datasets if isinstance(one, str)]
    except InvalidRequest:  # none is there
        return []


def check_source_kept(run: Run) -> None:
    """Refuse an output that replaces or removes a file that samples lie in; shards that are appended to stay.

    Raises:
        InvalidRequest: There is such a file.
    """
    paths = {file.path for file in (() if run.entries.spans is None else run.entries.spans.files)}
    paths |= {os.path.realpath(path) for path in paths if os.path.islink(path)}
    folders = {os.path.dirname(path) for path in paths}
    for output in run.outputs:
        there, old = os.path.realpath(os.fsencode(output.pattern.folder or ".")), output.destination.old
        beside = {folder for folder in folders if os.path.realpath(folder or b".") == there}
        stay = {to_bytes(shard.name) for shard in old.shards} if old is not None else set()
        for path in sorted(paths):
            folder, name = os.path.split(path)
            if folder in beside and name not in stay and output.pattern.owns(os.fsdecode(name)):
                raise InvalidRequest(os.fsdecode(path), OUTPUT_IS_SOURCE, expected=OTHER_OUTPUT, remedy=NOTHING_CHANGED)


def open_publishers(run: Run, temporary: tuple[Folder, str] | None, stack: ExitStack) -> None:
    """Make the folders, take the locks, look again, and remove what a killed run has left.

    Args:
        run: The run.
        temporary: The folder and the name of its temporary file; None: it makes none.
        stack: At its end, what is staged is removed and the locks are given back.

    Raises:
        OutputExists: Another run is writing a dataset, or has changed it.
    """
    for output in run.outputs:
        folder, base = output.destination.folder, output.pattern.base
        folder.ready()
        parts = run.part is not None  # they run side by side, and nothing else does
        stack.enter_context(folder.lock(base, shared=parts))
        if run.part is not None:
            stack.enter_context(folder.lock(f"{base}.{run.part.tag}"))
            check_part_count(folder, output.pattern, run.part)
    folders = [*(output.destination.folder for output in run.outputs), *([] if temporary is None else [temporary[0]])]
    for path in {folder.path: None for folder in folders}:
        run.pool.check(output=path)
    stack.callback(_discard_staged, run, temporary)
    for output in run.outputs:
        before, output.destination = output.destination, inspect_destination(output.destination)
        if output.destination.appends != before.appends:  # an update was overtaken by another
            raise changed_meanwhile_error(before)
        output.publisher = Publisher(output.destination)
        stack.callback(output.publisher.abandon)
    stack.callback(run.pool.close)  # the first thing that is done: then nothing is staged any more
    _discard_staged(run, temporary)


def _discard_staged(run: Run, temporary: tuple[Folder, str] | None) -> None:
    for output in run.outputs:
        remove_staged(output.destination)
    if temporary is not None:
        folder, name = temporary
        folder.discard_staged([name])


def remove_lost_splits(run: Run) -> None:
    """Remove the datasets of splits that the run has no samples for, the dataset file of each first.

    Raises:
        OutputExists: Another run is writing one of them.
        OutputFailed: The file system refuses.
    """
    for name in run.gone:
        pattern = parse_output_pattern(run.names, name)
        folder = open_folder(pattern.folder)
        with folder.lock(pattern.base):
            beside = StaleIndexes(folder, pattern, folder.names(), appends=False)
            beside.keep_only(())
            folder.remove([pattern.dataset_file])
            beside.remove()
            folder.remove(sorted(one for one in folder.names() if pattern.owns(one)))
