"""The state of one run of `create` or `reshard`: its options, its samples, and the datasets that it writes.

The steps of `write_dataset` fill in the attributes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest, OutputExists
from shardtool.interop.exports import ExportFormat, select_exports
from shardtool.messages import flag_text, option_text
from shardtool.names import list_names
from shardtool.pattern import OUTPUT_EXAMPLE, ShardPattern, check_writable, parse_pattern
from shardtool.request.create_options import CreateOptions, ReshardOptions
from shardtool.request.run_part import RunPart, parse_part
from shardtool.request.run_record import RunRecord
from shardtool.storage.folders import open_folder
from shardtool.values import Dots, OutputNames, __version__

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
    from shardtool.source.base import Listing
    from shardtool.source.plan_request import PlanRequest
    from shardtool.transform.transform import Transform


_SPLIT_FIELD = "{split}"


_SPLIT_MARK = "\ue000"  # placeholder for {split} while a pattern is parsed: a private-use character


@dataclass(slots=True, eq=False, repr=False)
class RunOutput:
    """One dataset that a run writes, or one of its splits.

    Attributes:
        split: Empty without splits.
        sample_numbers: Its samples; None means all.
        plan: Set once the shards are planned.
        publication: Set once the output is locked.
        plan_fingerprint: For a part: of the plan that all parts share.
        totals: Set once the shards are packed.
    """

    split: str
    destination: Destination
    sample_numbers: NDArray[np.int64] | None = None
    plan: Plan = field(init=False)
    publication: Publication = field(init=False)
    plan_fingerprint: str = ""
    totals: DatasetTotals = field(init=False)
    kept: int = 0
    dropped: int = 0
    dataset: DatasetFile = field(init=False)

    @property
    def pattern(self) -> ShardPattern:
        """The shard pattern."""
        return self.destination.pattern

    @property
    def own_shards(self) -> range:
        """The numbers of the planned shards that this run writes."""
        part = self.destination.part
        return range(self.plan.shards) if part is None else part.shards(self.plan.shards)

    def shard_name(self, shard: int) -> str:
        """Return the name of a planned shard."""
        return self.pattern.shard(self.destination.first + shard)


@dataclass(slots=True, eq=False, repr=False)
class Run:
    """One run of `create` or `reshard`.

    Attributes:
        names: A shard pattern, or shard names, with `{split}` for splits.
        started: Seconds since 1970, before the source was listed.
        identity: Identifies the transform; empty for none.
        shuffle: The options of a `reshard`; None for a `create`.
        outputs: Empty while the split names are unknown.
        refusal: An error for existing output. Errors in the source and the query are reported first.
        untouched: Outputs of an append without new samples.
        dots: The dot at which keys end in tar member names.
        lost_splits: Existing splits without samples in the source, which the run removes.
        made_keys: Hashes of the keys that the user's function has returned.
        plan_request: The request that the plan file records; None without a plan file.
        plan_listing: For the plan file: the listing before splitting and renaming.
        split_values: For the plan file: the column that determines the split.
    """

    names: tuple[str, ...]
    options: CreateOptions | ReshardOptions
    pool: Pool
    notes: Notes
    started: float
    dry: bool
    split_options: SplitOptions | None
    transform: Transform | None
    identity: str
    shuffle: ReshardOptions | None
    exports: Mapping[str, ExportFormat]
    part: RunPart | None
    outputs: list[RunOutput] = field(default_factory=list)
    refusal: OutputExists | None = None
    untouched: list[RunOutput] = field(default_factory=list)
    listed: Listing = field(init=False)
    dots: Dots = "first"
    changes: ResumeChanges | None = None
    lost_splits: tuple[str, ...] = ()
    made_keys: set[bytes] = field(default_factory=set)
    plan_only: str = ""
    plan_request: PlanRequest | None = None
    plan_listing: Listing = field(init=False)
    split_values: pa.ChunkedArray | None = None
    expected: DatasetFile | None = None

    @property
    def verb(self) -> str:
        """`create` or `reshard`."""
        return "create" if self.shuffle is None else "reshard"

    @property
    def entries(self) -> SampleTable:
        """The samples."""
        return self.listed.entries

    @property
    def is_binary(self) -> bool:
        """Whether payloads are in a table in memory, which workers cannot read."""
        return self.entries.spans is not None and not self.entries.spans.files

    @property
    def fetches(self) -> bool:
        """Whether samples have URLs, whose sizes are unknown."""
        return self.transform is not None and self.transform.fetch is not None

    @property
    def makes_keys(self) -> bool:
        """Whether the user's function returns the keys."""
        return self.transform is not None and bool(self.transform.function)

    @property
    def appends(self) -> bool:
        """Whether samples are added to an existing dataset."""
        return self.options.if_exists in ("append", "append-resume", "update")

    @property
    def updates(self) -> bool:
        """Whether the run adds new samples, or creates missing datasets."""
        return self.options.if_exists == "update"

    @property
    def continue_option(self) -> str:
        """The option that continues an interrupted run."""
        if self.updates or not self.appends:
            return flag_text("update" if self.updates else "resume")
        return flag_text("append", "resume")

    @property
    def takes_only_new(self) -> bool:
        """Whether samples that the existing dataset contains are skipped."""
        return self.updates or (self.verb == "create" and self.options.on_duplicate == "first")

    @property
    def format(self) -> str:
        """The format of the shards."""
        return parse_output_pattern(self.names).format

    @property
    def dataset_file(self) -> str:
        """The path of the dataset file, with `{split}` for splits."""
        pattern = parse_output_pattern(self.names)
        return open_folder(pattern.folder).full_path(pattern.dataset_file).replace(_SPLIT_MARK, _SPLIT_FIELD)

    @property
    def splits(self) -> list[str]:
        """The split names, in recorded order."""
        return sorted(output.split for output in (*self.outputs, *self.untouched))

    def record(self, output: RunOutput) -> RunRecord:
        """Return the run record for a dataset file."""
        options = {**self.options.recorded(), **self.listed.recorded}
        if self.updates and output.destination.appends:
            options.setdefault("on_duplicate", "first")  # an update of an existing dataset implies it
        return RunRecord(
            {
                "verb": self.verb,
                "source": self.listed.name,
                **({"split": output.split, "splits": self.splits} if output.split else {}),
                "options": json.loads(json.dumps(options)),
                "tool": f"shardtool {__version__}",
            }
        )


def make_run(
    output: OutputNames, options: CreateOptions | ReshardOptions, pool: Pool, notes: Notes, *, started: float, dry: bool
) -> Run:
    """Return a run, after checking that its options and output fit together."""
    names = (*list_names("the output", output, OUTPUT_EXAMPLE),)
    shuffle, split_options = options if isinstance(options, ReshardOptions) else None, options.make_split_options()
    if shuffle is None and options.on_duplicate != "error":
        updates = options.if_exists == "update"
        options = (
            replace(options, on_duplicate="error") if updates else _get_first_run_options(names, options, split_options)
        )
    transform = options.make_transform()
    has_split_field = [_SPLIT_FIELD in name for name in names]
    if any(has_split_field) and split_options is None:
        alternatives = f", {option_text('split_by', 'COLUMN')} or {option_text('split_by', 'folder')}"
        alternatives = alternatives if shuffle is None else f" or {option_text('split_by', 'COLUMN')}"
        expected = f"{option_text('split', 'train=0.8,val=0.2')}{alternatives}"
        raise InvalidRequest(names[0], "{split} without splits", expected=expected)
    if split_options is not None and not all(has_split_field):
        raise InvalidRequest(
            names[0], "a pattern without {split}", expected="a pattern such as out-{split}-{000000..}.tar"
        )
    return Run(
        names=names,
        options=options,
        pool=pool,
        notes=notes,
        started=started,
        dry=dry,
        split_options=split_options,
        transform=transform,
        identity=transform.identity() if transform else "",
        shuffle=shuffle,
        exports=select_exports(options.export, parse_output_pattern(names).format),
        part=None if options.part is None else parse_part(options.part),
    )


def _get_first_run_options(
    names: tuple[str, ...], options: CreateOptions | ReshardOptions, split_options: SplitOptions | None
) -> CreateOptions | ReshardOptions:
    resumes = options.if_exists == "append-resume"
    splits = [name for name, _ in split_options.shares] if split_options else [_SPLIT_MARK]
    if not splits:
        return options
    for pattern in [parse_output_pattern(names, split) for split in splits]:
        existing_names = [name for name in open_folder(pattern.folder).names() if pattern.owns(name)]
        if pattern.dataset_file in existing_names or (existing_names and not resumes):
            return options
    return replace(options, append=False, update=False, resume=resumes, on_duplicate="error")


def parse_output_pattern(names: Sequence[str], split: str = _SPLIT_MARK) -> ShardPattern:
    """Return the shard pattern of a split; by default, what the patterns of all splits share."""
    try:
        pattern = parse_pattern([name.replace(_SPLIT_FIELD, split) for name in names])
    except InvalidRequest as error:
        where, found = (text.replace(_SPLIT_MARK, _SPLIT_FIELD) for text in (error.where, error.found))
        raise InvalidRequest(where, found, expected=error.expected, remedy=error.remedy) from None
    check_writable(pattern)
    return pattern
