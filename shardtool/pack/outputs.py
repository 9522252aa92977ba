"""Find, check, lock and delete the datasets that a run writes."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import reduce
from itertools import permutations
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from shardtool.dataset.dataset_file import DatasetFile, is_dataset_content, parse_dataset
from shardtool.dataset.expand import datasets_by_split
from shardtool.entries.classes import Classes, merge_classes
from shardtool.errors import InvalidRequest, OutputExists
from shardtool.names import to_bytes
from shardtool.pack.run import Listed, Output, Planned, Run, parse_output_pattern
from shardtool.publish.destination import Destination, changed_meanwhile_error, inspect_destination
from shardtool.publish.foreign_index_files import StaleIndexes
from shardtool.publish.parts import check_part_count
from shardtool.storage.files import read_small
from shardtool.storage.folders import open_folder, open_staging_folder
from shardtool.storage.paths import real_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.request.create_options import CreateOptions, ReshardOptions
    from shardtool.storage.staging import Folder


StageT = TypeVar("StageT", Listed, Planned)


class Spool(NamedTuple):
    """The temporary file of a shuffle that exceeds memory."""

    folder: Folder
    name: str


OUTPUT_IS_SOURCE = "a shard of the source, which the output would replace or delete"
OTHER_OUTPUT = "an output in another folder, or with other names"
NOTHING_CHANGED = "Nothing was changed. Write to another name, then rename the complete dataset."


class FoundOutputs(NamedTuple):
    """The datasets that a run writes.

    Attributes:
        refusal: The error for existing output, to raise after checking the source.
    """

    outputs: tuple[Output, ...]
    refusal: OutputExists | None = None


def find_outputs(run: Run, splits: Sequence[str] | None = None) -> FoundOutputs:
    """Find the datasets that a run writes, and check existing files. A dry run checks them only to append or resume."""
    if splits is None:
        splits = [name for name, _ in run.split_options.shares] if run.split_options else [""]
    patterns = {split: parse_output_pattern(run.names, split) for split in splits}
    for (split_a, pattern), (split_b, pattern_b) in permutations(patterns.items(), 2):
        if shared := pattern_b.find_overlap(pattern):
            found = f"{shared} matches the patterns of splits {split_a} and {split_b}"
            raise InvalidRequest(run.names[0], found, expected="different names, such as out-{split}-{000000..}.tar")
    outputs, refusal, repaired_dataset = list[Output](), None, run.repaired_dataset
    for split, pattern in patterns.items():
        folder = open_folder(pattern.folder) if repaired_dataset is None else open_staging_folder(pattern.folder)
        if_exists = run.options.if_exists
        destination = Destination(folder, pattern, if_exists, part=run.part, repaired_dataset=repaired_dataset)
        try:
            if not run.dry or destination.appends or destination.resumes:
                destination = inspect_destination(destination)
        except OutputExists as error:
            if destination.appends or run.updates:
                raise
            refusal = refusal or error
        outputs.append(Output(split, destination))
    return FoundOutputs(tuple(outputs), refusal)


def find_existing_splits(run: Run) -> list[str]:
    """Return the splits that earlier runs wrote with this pattern."""
    return [file.run.split for file in _read_existing_datasets(run, ())]


def make_source_options(run: Run, outputs: Sequence[Output]) -> CreateOptions | ReshardOptions:
    """Return the source's options. Set `classes_from` so existing classes keep their numbers."""
    options, classes_from = run.options, run.options.classes_from
    if not (options.classes or options.field or getattr(options, "label_from_folder", False)):
        return options
    own_files = map(real_path, _list_dataset_files(run, outputs))
    is_own_file = isinstance(classes_from, str | os.PathLike) and real_path(os.fspath(classes_from)) in own_files
    if not is_own_file and (classes_from is not None or not run.may_append):
        return options
    datasets = _read_existing_datasets(run, outputs)
    names: dict[str, list[str]] = reduce(merge_classes, (file.classes for file in datasets), {})
    if datasets or (is_own_file and run.updates):
        return replace(options, classes_from=Classes("the dataset", names, allows_new=True) if names else None)
    return options


def _read_existing_datasets(run: Run, outputs: Sequence[Output]) -> list[DatasetFile]:
    datasets = []
    for path in _list_dataset_files(run, outputs):
        with suppress(FileNotFoundError):
            data = read_small(path)
            if not outputs and not is_dataset_content(data):
                continue
            file = parse_dataset(data, path)
            expected_name = parse_output_pattern(run.names, file.run.split).dataset_file if file.run.split else ""
            if outputs or os.path.basename(path) == expected_name:
                datasets.append(file)
    return datasets


def _list_dataset_files(run: Run, outputs: Sequence[Output]) -> list[str]:
    if outputs:
        return [output.destination.dataset_file for output in outputs]
    try:
        by_split = datasets_by_split(run.dataset_file).values()
        return [dataset for datasets in by_split for dataset in datasets if isinstance(dataset, str)]
    except InvalidRequest:
        return []


def check_source_kept(listed: Listed) -> None:
    """Raise an error if the output would replace or delete a source file."""
    paths = {file.path for file in (() if listed.entries.spans is None else listed.entries.spans.files)}
    paths |= {os.path.realpath(path) for path in paths if os.path.islink(path)}
    folders = {os.path.dirname(path) for path in paths}
    for output in listed.outputs:
        output_folder, old = os.path.realpath(os.fsencode(output.pattern.folder or ".")), output.destination.old
        same_folders = {folder for folder in folders if os.path.realpath(folder or b".") == output_folder}
        # an append keeps the shards of the old dataset
        kept_names = {to_bytes(shard.name) for shard in old.shards} if old is not None else set()
        for path in sorted(paths):
            folder, name = os.path.split(path)
            if folder in same_folders and name not in kept_names and output.pattern.owns(os.fsdecode(name)):
                raise InvalidRequest(os.fsdecode(path), OUTPUT_IS_SOURCE, expected=OTHER_OUTPUT, remedy=NOTHING_CHANGED)


def lock_outputs(stage: StageT, spool: Spool | None, stack: ExitStack) -> StageT:
    """Lock the output datasets until `stack` closes, check them again, and delete leftover temporary files.

    When `stack` closes, it also deletes staged files.
    """
    run: Run = stage.run
    outputs: Sequence[Output] = stage.outputs
    for output in outputs:
        folder, base = output.destination.folder, output.pattern.base
        folder.create()
        stack.enter_context(folder.lock(base, shared=run.part is not None))
        if run.part is not None:
            stack.enter_context(folder.lock(f"{base}.{run.part.tag}"))
            check_part_count(folder, output.pattern, run.part)
    folders = [*(output.destination.folder for output in outputs), *([] if spool is None else [spool.folder])]
    for path in {folder.path: None for folder in folders}:
        run.pool.check_access(output=path)
    stack.callback(_discard_staged, outputs, spool)
    locked = [replace(output, destination=inspect_destination(output.destination)) for output in outputs]
    for old, output in zip(outputs, locked, strict=True):
        if output.destination.appends != old.destination.appends:
            raise changed_meanwhile_error(old.destination)
    stack.callback(run.pool.close)  # stop the workers before staged files are deleted
    _discard_staged(locked, spool)
    return replace(stage, outputs=tuple(locked))  # type: ignore[arg-type]


def _discard_staged(outputs: Sequence[Output], spool: Spool | None) -> None:
    for output in outputs:
        output.destination.discard_staged()
    if spool is not None:
        spool.folder.discard_staged([spool.name])


def remove_empty_splits(planned: Planned) -> None:
    """Delete the datasets of splits that get no samples from this run."""
    for name in planned.empty_splits:
        pattern = parse_output_pattern(planned.run.names, name)
        folder = open_folder(pattern.folder)
        with folder.lock(pattern.base):
            stale_indexes = StaleIndexes(folder, pattern, folder.names(), appends=False)
            stale_indexes.mark_all_except(())
            folder.remove([pattern.dataset_file])
            stale_indexes.remove_marked()
            folder.remove(sorted(file_name for file_name in folder.names() if pattern.owns(file_name)))
