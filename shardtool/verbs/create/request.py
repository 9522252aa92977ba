"""One run of `create` or `reshard`: what was asked for, after the options were checked."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from shardtool._version import __version__
from shardtool.dataset.dataset_file import open_classes, read_dataset
from shardtool.dataset.find import find_dataset
from shardtool.dataset.several import given_datasets, of_glob
from shardtool.entries.classes import Classes, joined_classes
from shardtool.errors import InvalidRequest, OutputExists
from shardtool.execute.pool import Needs
from shardtool.interop.indexes import wanted_exports
from shardtool.pattern import ShardPattern, check_written, parse_pattern
from shardtool.publish.destination import Destination, look
from shardtool.publish.foreign_indexes import StaleIndexes
from shardtool.publish.publisher import Publisher, clean
from shardtool.publish.records import PartShare, check_divided_alike
from shardtool.request.options import ReshardOptions
from shardtool.request.part import parse_part
from shardtool.request.run_record import RunRecord
from shardtool.storage.folders import open_folder
from shardtool.storage.places import is_url, read_small
from shardtool.values import to_bytes
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import ExitStack

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.entries.entries import Entries
    from shardtool.execute.pool import Pool
    from shardtool.interop.indexes import Export
    from shardtool.request.options import CreateOptions, OutputOptions
    from shardtool.request.part import Part
    from shardtool.request.split_options import SplitOptions
    from shardtool.source.base import Listing
    from shardtool.storage.staging import Folder
    from shardtool.transform.steps import Transform
    from shardtool.values import Dots


OutputNames = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Verb = Literal["create", "reshard"]

_SPLIT = "{split}"
_MARK = "\ue000"  # placeholder for {split} while a pattern is parsed: a private-use character


@dataclass(frozen=True, slots=True)
class Request:
    """One run of `create` or `reshard`.

    Attributes:
        verb: Which of them.
        names: A shard pattern, or the shards' names; with `{split}` in them if there are splits.
        options: What was asked for.
        dry: Whether nothing is written.
        dividing: How samples are divided into splits; None: they are not.
        transform: What is done to samples; None: nothing.
        identity: What distinguishes the transform from any other; empty for none.
        exports: The indexes of other tools that are written, too.
        part: The part of the shards that is written; None: all.
    """

    verb: Verb
    names: tuple[str, ...]
    options: CreateOptions | ReshardOptions
    dry: bool
    dividing: SplitOptions | None
    transform: Transform | None
    identity: str
    exports: Mapping[str, Export]
    part: Part | None = None

    @property
    def appends(self) -> bool:
        """Whether samples are added to a dataset that is there."""
        return self.options.if_exists in ("append", "append-resume")

    @property
    def takes_only_new(self) -> bool:
        """Whether samples that the dataset appended to has already are passed over, as `create` does if asked."""
        return self.verb == "create" and self.options.on_duplicate == "first"

    @property
    def format(self) -> str:
        """The format of the shards."""
        return output_pattern(self.names).format

    @property
    def dataset_file(self) -> str:
        """The dataset file's path; with `{split}` in it if there are splits."""
        pattern = output_pattern(self.names)
        return open_folder(pattern.folder).full_path(pattern.dataset_file).replace(_MARK, _SPLIT)


@dataclass(frozen=True, slots=True)
class Manner:
    """The way in which plans are carried out.

    Attributes:
        request: What was asked for.
        begun: When the run began, before the source was listed: seconds since 1970.
        dots: The dot at which keys end in the names of a tar's members.
    """

    request: Request
    begun: float
    dots: Dots = "first"

    @property
    def transform(self) -> Transform | None:
        """The changes to each sample; None: none."""
        return self.request.transform

    @property
    def options(self) -> OutputOptions:
        """The options of the run."""
        return self.request.options


def read_request(output: OutputNames, options: CreateOptions | ReshardOptions, *, dry: bool) -> Request:
    """Return a run, if its options and its output make sense together.

    Raises:
        InvalidRequest: They do not.
    """
    names = tuple(os.fspath(one) for one in ([output] if isinstance(output, (str, os.PathLike)) else output))
    options = _first_of_many(names, options)
    dividing, transform = options.of_split(), None
    verb: Verb = "reshard"
    if not isinstance(options, ReshardOptions):
        verb, transform = "create", options.of_transform()
    _check_names(names, verb, divides=dividing is not None)
    exports = wanted_exports(options.export, output_pattern(names).format)
    identity = transform.identity() if transform else ""
    part = None if options.part is None else parse_part(options.part)
    if part is not None:
        _check_part(options, changes=transform is not None and not _cut_by_count(options))
    return Request(verb, names, options, dry, dividing, transform, identity, exports, part)


def _check_part(options: CreateOptions | ReshardOptions, *, changes: bool) -> None:
    """Refuse what no part can plan alone: sizes must be known before, and each payload lie where any part reads it."""
    found, why = "", ""
    if changes:
        given = ("urls", "resize", "encode", "probe", "map")
        found, why = next(name for name in given if getattr(options, name, None)), "samples whose sizes are known"
    elif isinstance(options, ReshardOptions) and options.method == "scatter":
        found, why = "method", "samples that are read at their places"
    if found:
        remedy = "Write it in one run, or pack the samples as they are in parts, and change them before or after."
        raise InvalidRequest(option("part", options.part), f"used with {option(found)}", expected=why, remedy=remedy)


def _cut_by_count(options: CreateOptions | ReshardOptions) -> bool:
    """Tell whether shards of URLs have no bound of bytes, so that all that is planned for one finds room in it."""
    return not isinstance(options, ReshardOptions) and bool(options.urls) and options.max_size is None


def _first_of_many(names: tuple[str, ...], options: CreateOptions | ReshardOptions) -> CreateOptions | ReshardOptions:
    """Return the options of the first run over a source that grows: there is no dataset yet to append to."""
    if isinstance(options, ReshardOptions) or options.on_duplicate == "error":
        return options
    dividing, resumes = options.of_split(), options.if_exists == "append-resume"
    splits = [name for name, _ in dividing.shares] if dividing else [_MARK]
    for pattern in [output_pattern(names, split) for split in splits]:
        owned = [name for name in open_folder(pattern.folder).names() if pattern.owns(name)]
        if pattern.dataset_file in owned or (owned and not resumes):
            return options
    unknown = dividing is not None and not splits
    return options if unknown else replace(options, if_exists="resume" if resumes else "error", on_duplicate="error")


def output_pattern(names: Sequence[str], split: str = _MARK) -> ShardPattern:
    """Return the shard pattern of a split; without its name, what the patterns of all splits have in common."""
    pattern = parse_pattern([name.replace(_SPLIT, split) for name in names])
    check_written(pattern)
    return pattern


def _check_names(names: tuple[str, ...], verb: Verb, *, divides: bool) -> None:
    """Refuse names with `{split}` and no splits, or the other way round."""
    has = [_SPLIT in name for name in names]
    if any(has) and not divides:
        column = option("split_column")
        also = f", {column} or {option('split_from_folder')}" if verb == "create" else f" or {column}"
        expected = f"{option('split', 'train=0.8,val=0.2')}{also}"
        raise InvalidRequest(names[0], "{split} without splits", expected=expected)
    if divides and not all(has):
        expected = "a pattern such as out-{split}-{000000..}.tar"
        raise InvalidRequest(names[0], "no {split} in it", expected=expected)


def run_record(request: Request, listed: Listing, split: str) -> RunRecord:
    """Return how a dataset is made, as its dataset file says."""
    return RunRecord(
        {
            "verb": request.verb,
            "source": listed.name,
            **({"split": split} if split else {}),
            "options": json.loads(json.dumps({**request.options.recorded(), **listed.recorded})),
            "tool": f"shardtool {__version__}",
        }
    )


# The datasets that a run writes, one for each split: their names, folders and locks.


_REPLACED = "a shard of the source, which the output would replace or remove"
_ELSEWHERE = "an output in another folder, or under other names"
_UNTOUCHED = "Nothing was touched. The new dataset can take its place once it is complete."


@dataclass(frozen=True, slots=True)
class OutputDataset:
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


def open_targets(request: Request, splits: Sequence[str] | None = None) -> tuple[OutputDataset, ...]:
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
        own = None if request.part is None else PartShare(request.part)
        output = Destination(open_folder(pattern.folder), pattern, request.options.if_exists, own=own)
        if not request.dry or output.appends or output.resumes:
            output = look(output)
        targets.append(OutputDataset(split, output))
    return tuple(targets)


def keep_classes(request: Request, targets: Sequence[OutputDataset]) -> CreateOptions | ReshardOptions:
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


def _dataset_files(request: Request, targets: Sequence[OutputDataset]) -> list[str]:
    """Return the dataset files of the output; of splits that only the samples will name, those that are there."""
    if targets:
        return [target.output.folder.full_path(target.pattern.dataset_file) for target in targets]
    try:
        return [one for one in given_datasets(request.dataset_file) if isinstance(one, str)]
    except InvalidRequest:  # none is there
        return []


def _datasets_there(request: Request, targets: Sequence[OutputDataset]) -> list[DatasetFile]:
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


def check_source_stays(targets: Sequence[OutputDataset], entries: Entries) -> None:
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
        for path in (path for dataset in of_glob(one) for path in find_dataset(dataset).paths):
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
    targets: Sequence[OutputDataset], temporary: tuple[Folder, str] | None, pool: Pool, stack: ExitStack
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


def _discard(targets: Sequence[OutputDataset], temporary: tuple[Folder, str] | None) -> None:
    for target in targets:
        clean(target.output)
    if temporary is not None:
        folder, name = temporary
        folder.discard_staged([name])
