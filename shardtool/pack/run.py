"""A run of `create` or `reshard`.

A `Run` is the request. Listing returns `Listed`, planning returns `Planned`, packing returns `Packed`, and publishing
returns a `FinishedOutput` for each dataset.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from shardtool.dataclass import dataclass
from shardtool.errors import InvalidRequest, OutputExists
from shardtool.interop.exports import ExportFormat, select_exports
from shardtool.messages import flag_text, option_text
from shardtool.pattern import SPLIT_FIELD, SPLIT_STAND_IN, ShardPattern, check_writable, parse_pattern
from shardtool.request.create_options import CreateOptions, ReshardOptions
from shardtool.request.run_part import RunPart, parse_part
from shardtool.request.run_record import RunRecord
from shardtool.storage.folders import open_folder
from shardtool.values import Dots, __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.entries.sample_table import SampleTable
    from shardtool.execute.pool import Pool
    from shardtool.plan.plan import Plan
    from shardtool.publish.destination import Destination
    from shardtool.publish.publication import Publication
    from shardtool.publish.totals import DatasetTotals
    from shardtool.request.observer import Notes
    from shardtool.request.results import ResumeChanges
    from shardtool.request.split_options import SplitOptions
    from shardtool.source.base import Listing, Source
    from shardtool.source.plan_request import PlanRequest
    from shardtool.transform.transform import Transform


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Run:
    """The request of a run, and the services that all steps use.

    Attributes:
        names: A shard pattern or shard names. They contain `{split}` if there are splits.
        pattern: The shard pattern, with a placeholder for the split name.
        started: The start time, in seconds since 1970.
        dry: Whether to only plan the shards.
        reshard_options: The options of `reshard`, or None for `create`.
        repaired_dataset: The dataset that the new shards must equal, or None.
    """

    names: tuple[str, ...]
    pattern: ShardPattern
    options: CreateOptions | ReshardOptions
    pool: Pool
    notes: Notes
    started: float
    dry: bool
    split_options: SplitOptions | None
    transform: Transform | None
    reshard_options: ReshardOptions | None
    exports: Mapping[str, ExportFormat]
    part: RunPart | None
    repaired_dataset: DatasetFile | None

    @property
    def verb(self) -> str:
        """`create` or `reshard`."""
        return "create" if self.reshard_options is None else "reshard"

    @property
    def fetches(self) -> bool:
        """Whether samples are downloaded from URLs."""
        return self.transform is not None and self.transform.fetch is not None

    @property
    def map_returns_keys(self) -> bool:
        """Whether the user's function returns the keys."""
        return self.transform is not None and bool(self.transform.function)

    @property
    def may_append(self) -> bool:
        """Whether this run may add samples to an existing dataset."""
        return self.options.append or self.options.update

    @property
    def updates(self) -> bool:
        """Whether this run adds only new samples, and creates missing datasets."""
        return self.options.update

    @property
    def continue_option(self) -> str:
        """The option that continues an interrupted run."""
        if self.updates or not self.may_append:
            return flag_text("update" if self.updates else "resume")
        return flag_text("append", "resume")

    @property
    def skips_existing(self) -> bool:
        """Whether this run skips samples of the existing dataset."""
        return self.updates or (self.verb == "create" and self.options.on_duplicate == "first")

    @property
    def dataset_file(self) -> str:
        """The path of the dataset file. It contains `{split}` if there are splits."""
        path = open_folder(self.pattern.folder).full_path(self.pattern.dataset_file)
        return path.replace(SPLIT_STAND_IN, SPLIT_FIELD)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Output:
    """One dataset that a run writes. Each split is a dataset.

    Attributes:
        sample_numbers: The positions of the dataset's samples in the sample table, or None for all.
    """

    split: str
    destination: Destination
    sample_numbers: NDArray[np.int64] | None = None

    @property
    def pattern(self) -> ShardPattern:
        """The shard pattern."""
        return self.destination.pattern

    def positions(self, entries: SampleTable) -> NDArray[np.int64]:
        """Return the positions of the dataset's samples in `entries`."""
        from numpy import arange

        return arange(len(entries)) if self.sample_numbers is None else self.sample_numbers


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class PlannedOutput(Output):
    """A dataset whose shards are planned.

    Attributes:
        plan_fingerprint: The fingerprint of the plan if the run is a part, else "".
    """

    plan: Plan
    plan_fingerprint: str = ""

    @property
    def own_shards(self) -> range:
        """The numbers of the shards that this run writes."""
        part = self.destination.part
        return range(self.plan.shards) if part is None else part.shards(self.plan.shards)

    def shard_name(self, shard: int) -> str:
        """Return the name of a planned shard."""
        return self.pattern.shard(self.destination.first + shard)


class PackedOutput(NamedTuple):
    """A dataset whose shards are published but whose dataset file is not.

    Attributes:
        kept: Number of shards that an earlier run wrote.
        dropped: Number of samples that the user's function dropped.
    """

    planned: PlannedOutput
    publication: Publication
    totals: DatasetTotals
    kept: int
    dropped: int


class FinishedOutput(NamedTuple):
    """A complete dataset that this run or an earlier run wrote."""

    split: str
    destination: Destination
    dataset: DatasetFile
    kept: int = 0
    dropped: int = 0


class PlanFile(NamedTuple):
    """The plan file that `--plan-only` writes. `listing` contains the samples before splitting and renaming."""

    path: str
    request: PlanRequest
    listing: Listing
    split_values: pa.ChunkedArray | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Listed:
    """The samples of a source, and the output datasets.

    Attributes:
        transform: The transform. `transform.where` is the part of the query that workers evaluate.
        dots: Whether the first or the last dot of a member name ends the key.
        transform_identity: A string that identifies the transform, or "" without a transform.
        unchanged_outputs: Existing datasets that get no new samples from this run.
        refusal: The error for existing output, or None. `list_source` raises the error after checking the source.
    """

    run: Run
    source: Source
    listing: Listing
    outputs: tuple[Output, ...]
    transform: Transform | None
    dots: Dots = "first"
    plan_file: PlanFile | None = None
    transform_identity: str = ""
    unchanged_outputs: tuple[FinishedOutput, ...] = ()
    refusal: OutputExists | None = None

    @property
    def entries(self) -> SampleTable:
        """The samples."""
        return self.listing.entries

    @property
    def has_payloads_in_memory(self) -> bool:
        """Whether the payloads are in the memory of this process, where workers cannot read them."""
        return self.entries.spans is not None and not self.entries.spans.files

    @property
    def appends(self) -> bool:
        """Whether the run adds samples to an existing dataset."""
        return any(output.destination.appends for output in self.outputs)

    def record(self, output: Output) -> RunRecord:
        """Return the run record of one dataset."""
        return make_record(self.run, self.listing, output, [*self.outputs, *self.unchanged_outputs])


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Planned:
    """The planned shards of all datasets.

    Attributes:
        changes: How a resumed run changes the existing shards, or None if nothing is resumed.
        empty_splits: Existing splits to delete, because the source has no samples for them.
    """

    listed: Listed
    outputs: tuple[PlannedOutput, ...]
    changes: ResumeChanges | None = None
    empty_splits: tuple[str, ...] = ()

    @property
    def run(self) -> Run:
        """The run."""
        return self.listed.run

    @property
    def destinations(self) -> list[Destination]:
        """The destinations of all datasets, including datasets that get no new samples."""
        unchanged = [output.destination for output in self.listed.unchanged_outputs]
        return [*(output.destination for output in self.outputs), *unchanged]


class Packed(NamedTuple):
    """The published shards of all datasets."""

    planned: Planned
    outputs: tuple[PackedOutput, ...]


def make_record(run: Run, listing: Listing, output: Output, outputs: Sequence[Output | FinishedOutput]) -> RunRecord:
    """Return the run record of one dataset."""
    options = {**run.options.recorded(), **listing.recorded}
    if run.updates and output.destination.appends:
        options.setdefault("on_duplicate", "first")
    splits = {"split": output.split, "splits": sorted(other.split for other in outputs)} if output.split else {}
    return RunRecord(
        {
            "verb": run.verb,
            "source": listing.name,
            **splits,
            "options": json.loads(json.dumps(options)),
            "tool": f"shardtool {__version__}",
        }
    )


def make_run(
    names: tuple[str, ...],
    options: CreateOptions | ReshardOptions,
    pool: Pool,
    notes: Notes,
    *,
    started: float,
    repaired_dataset: DatasetFile | None = None,
) -> Run:
    """Create a run. Raise an error if its options and shard names contradict each other."""
    split_options = options.make_split_options()
    reshard_options = options if isinstance(options, ReshardOptions) else None
    if reshard_options is None and options.on_duplicate != "error":
        if options.if_exists == "update":
            options = replace(options, on_duplicate="error")
        else:
            options = _get_first_run_options(names, options, split_options)
    transform = options.make_transform()
    has_split_field = [SPLIT_FIELD in name for name in names]
    if any(has_split_field) and split_options is None:
        by_column, by_folder = option_text("split_by", "COLUMN"), option_text("split_by", "folder")
        alternatives = f", {by_column} or {by_folder}" if reshard_options is None else f" or {by_column}"
        options_for_splits = f"{option_text('split', 'train=0.8,val=0.2')}{alternatives}"
        raise InvalidRequest(names[0], "{split} without splits", expected=options_for_splits)
    if split_options is not None and not all(has_split_field):
        expected_pattern = "a pattern such as out-{split}-{000000..}.tar"
        raise InvalidRequest(names[0], "a pattern without {split}", expected=expected_pattern)
    pattern = parse_output_pattern(names)
    return Run(
        names=names,
        pattern=pattern,
        options=options,
        pool=pool,
        notes=notes,
        started=started,
        dry=options.dry_run or getattr(options, "plan_only", None) is not None,
        split_options=split_options,
        transform=transform,
        reshard_options=reshard_options,
        exports=select_exports(options.export, pattern.format),
        part=None if options.part is None else parse_part(options.part),
        repaired_dataset=repaired_dataset,
    )


def _get_first_run_options(
    names: tuple[str, ...], options: CreateOptions | ReshardOptions, split_options: SplitOptions | None
) -> CreateOptions | ReshardOptions:
    resumes = options.if_exists == "append-resume"
    splits = [name for name, _ in split_options.shares] if split_options else [SPLIT_STAND_IN]
    if not splits:
        return options
    for pattern in [parse_output_pattern(names, split) for split in splits]:
        existing_names = [name for name in open_folder(pattern.folder).names() if pattern.owns(name)]
        if pattern.dataset_file in existing_names or (existing_names and not resumes):
            return options
    return replace(options, append=False, update=False, resume=resumes, on_duplicate="error")


def parse_output_pattern(names: Sequence[str], split: str = SPLIT_STAND_IN) -> ShardPattern:
    """Return the shard pattern of a split, by default with a placeholder for the split name."""
    try:
        pattern = parse_pattern([name.replace(SPLIT_FIELD, split) for name in names])
    except InvalidRequest as error:
        where, found = (text.replace(SPLIT_STAND_IN, SPLIT_FIELD) for text in (error.where, error.found))
        raise InvalidRequest(where, found, expected=error.expected, remedy=error.remedy) from None
    check_writable(pattern)
    return pattern
