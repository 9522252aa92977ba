"""One run of `create` or `reshard`: what was asked for, after the options were checked."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from shardtool._version import __version__
from shardtool.errors import InvalidRequest
from shardtool.interop.export_formats import wanted_exports
from shardtool.pattern import ShardPattern, check_written, parse_pattern
from shardtool.request.part import parse_part
from shardtool.request.reshard_options import ReshardOptions
from shardtool.request.run_record import RunRecord
from shardtool.storage.folders import open_folder
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardtool.interop.export_types import Export
    from shardtool.request.options import CreateOptions, OutputOptions
    from shardtool.request.part import Part
    from shardtool.request.split_options import SplitOptions
    from shardtool.source.base import Listing
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
