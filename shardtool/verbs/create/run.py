"""The state of one run of `create` or `reshard`: its options, its samples, and the datasets that it writes.

A `Run` has one `RunOutput` per dataset: a single one, or one per split. The steps of `write_dataset` fill in their
attributes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest, OutputExists
from shardtool.interop.exports import ExportFormat, select_exports
from shardtool.messages import option_text
from shardtool.names import list_names
from shardtool.pattern import OUTPUT_EXAMPLE, ShardPattern, check_writable, parse_pattern
from shardtool.request.create_options import CreateOptions, ReshardOptions
from shardtool.request.run_part import RunPart, parse_part
from shardtool.request.run_record import RunRecord
from shardtool.storage.folders import open_folder
from shardtool.values import Dots, __version__

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.entries.sample_table import SampleTable
    from shardtool.execute.pool import Pool
    from shardtool.plan.plan import Plan
    from shardtool.publish.destination import Destination
    from shardtool.publish.publisher import Publisher
    from shardtool.publish.totals import DatasetTotals
    from shardtool.request.observer import Notes
    from shardtool.request.results import ResumeChanges
    from shardtool.request.split_options import SplitOptions
    from shardtool.source.base import Listing
    from shardtool.source.plan_request import PlanRequest
    from shardtool.transform.transform import Transform


OutputNames = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


_SPLIT_FIELD = "{split}"


_SPLIT_MARK = "\ue000"  # placeholder for {split} while a pattern is parsed: a private-use character


@dataclass(slots=True, eq=False, repr=False)
class RunOutput:
    """One dataset that a run writes: all of it, or a split.

    Attributes:
        split: The split's name; empty without splits.
        destination: Where it goes, and what was there when the run looked last.
        which: The places of its samples; None: it gets all.
        plan: Which samples go into which shard, once that is decided.
        publisher: What publishes its shards, once it is locked.
        part_plan: Of a part: the fingerprint of the plan of all parts.
        totals: What its shards hold, once they are packed.
        kept: How many of them an earlier run had finished.
        dropped: How many samples the user's function dropped.
        dataset: What its dataset file says, at the end.
    """

    split: str
    destination: Destination
    which: NDArray[np.int64] | None = None
    plan: Plan = field(init=False)
    publisher: Publisher = field(init=False)
    plan_fingerprint: str = ""
    totals: DatasetTotals = field(init=False)
    kept: int = 0
    dropped: int = 0
    dataset: DatasetFile = field(init=False)

    @property
    def pattern(self) -> ShardPattern:
        """The names of its shards."""
        return self.destination.pattern

    @property
    def own_shards(self) -> range:
        """The planned shards that the run writes: all, or those of its part."""
        part = self.destination.part
        return range(self.plan.shards) if part is None else part.shards(self.plan.shards)

    def shard_name(self, shard: int) -> str:
        """Return the name of a planned shard."""
        return self.pattern.shard(self.destination.first + shard)


@dataclass(slots=True, eq=False, repr=False)
class Run:
    """One run of `create` or `reshard`.

    Attributes:
        names: A shard pattern, or the shards' names; with `{split}` in them if there are splits.
        options: What was asked for.
        pool: Its workers.
        notes: Gets what the user should know; its observer, the progress.
        begun: When the run began, before the source was listed: seconds since 1970.
        dry: Whether nothing is written.
        dividing: How samples are divided into splits; None: they are not.
        transform: What is done to samples; None: nothing.
        identity: What distinguishes the transform from any other; empty for none.
        shuffle: How samples that lie in shards are read in another order; None: they lie in none.
        exports: The indexes of other tools that are written, too.
        part: The part of the shards that is written; None: all.
        outputs: The datasets that it writes; none while their names are unknown.
        refusal: Existing output that this run may not touch: raised after the source and the query were checked.
        untouched: Those that an append has nothing new for: they stay as they are.
        listed: The samples, and what the source says of them.
        dots: The dot at which keys end in the names of a tar's members.
        changes: What a run that resumes would change; None: nothing is there.
        gone: The splits of the first run that the source has no sample of any more: they are to be removed.
        made_keys: Hashes of the keys that the user's function has given so far.
        plan_only: Where the plan is written.
        asked: What the file of the plan is of; None: none is written.
        chosen: For that file: the samples as the source has listed them.
        divides: The same: the column that they are divided by; None: there is none.
    """

    names: tuple[str, ...]
    options: CreateOptions | ReshardOptions
    pool: Pool
    notes: Notes
    begun: float
    dry: bool
    dividing: SplitOptions | None
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
    gone: tuple[str, ...] = ()
    made_keys: set[bytes] = field(default_factory=set)
    plan_only: str = ""
    asked: PlanRequest | None = None
    chosen: Listing = field(init=False)
    divides: pa.ChunkedArray | None = None

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
        """Whether payloads lie in a table, from which no worker can read them."""
        return self.entries.spans is not None and not self.entries.spans.files

    @property
    def fetches(self) -> bool:
        """Whether samples have files of the web, of which nothing is known before."""
        return self.transform is not None and self.transform.fetch is not None

    @property
    def makes_keys(self) -> bool:
        """Whether a function of the user's makes the keys, so that no plan has those of the shards."""
        return self.transform is not None and bool(self.transform.function)

    @property
    def appends(self) -> bool:
        """Whether samples are added to a dataset that is there."""
        return self.options.if_exists in ("append", "append-resume", "update")

    @property
    def updates(self) -> bool:
        """Whether the run takes what is new of a source, and makes the datasets that are not there."""
        return self.options.if_exists == "update"

    @property
    def again(self) -> str:
        """What finishes a run of this kind that ended too early."""
        if self.updates or not self.appends:
            return option_text("if_exists", "update" if self.updates else "resume")
        return option_text("if_exists", "append-resume")

    @property
    def takes_only_new(self) -> bool:
        """Whether samples that the dataset appended to has already are passed over."""
        return self.updates or (self.verb == "create" and self.options.on_duplicate == "first")

    @property
    def format(self) -> str:
        """The format of the shards."""
        return parse_output_pattern(self.names).format

    @property
    def dataset_file(self) -> str:
        """The dataset file's path; with `{split}` in it if there are splits."""
        pattern = parse_output_pattern(self.names)
        return open_folder(pattern.folder).full_path(pattern.dataset_file).replace(_SPLIT_MARK, _SPLIT_FIELD)

    @property
    def splits(self) -> list[str]:
        """The names of all splits, in the order that dataset files record."""
        return sorted(output.split for output in (*self.outputs, *self.untouched))

    def record(self, output: RunOutput) -> RunRecord:
        """Return how a dataset is made, as its dataset file says."""
        options = {**self.options.recorded(), **self.listed.recorded}
        if self.updates and output.destination.appends:
            options.setdefault("on_duplicate", "first")  # what an update is, once there is a dataset
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
    output: OutputNames, options: CreateOptions | ReshardOptions, pool: Pool, notes: Notes, *, begun: float, dry: bool
) -> Run:
    """Return a run, if its options and its output make sense together.

    Raises:
        InvalidRequest: They do not.
    """
    names = (*list_names("the output", output, OUTPUT_EXAMPLE),)
    shuffle, dividing = options if isinstance(options, ReshardOptions) else None, options.make_split_options()
    if shuffle is None and options.on_duplicate != "error":
        updates = options.if_exists == "update"
        options = (
            replace(options, on_duplicate="error") if updates else _get_first_run_options(names, options, dividing)
        )
    transform = options.make_transform()
    has = [_SPLIT_FIELD in name for name in names]
    if any(has) and dividing is None:
        also = f", {option_text('split_by', 'COLUMN')} or {option_text('split_by', 'folder')}"
        also = also if shuffle is None else f" or {option_text('split_by', 'COLUMN')}"
        expected = f"{option_text('split', 'train=0.8,val=0.2')}{also}"
        raise InvalidRequest(names[0], "{split} without splits", expected=expected)
    if dividing is not None and not all(has):
        raise InvalidRequest(names[0], "no {split} in it", expected="a pattern such as out-{split}-{000000..}.tar")
    return Run(
        names=names,
        options=options,
        pool=pool,
        notes=notes,
        begun=begun,
        dry=dry,
        dividing=dividing,
        transform=transform,
        identity=transform.identity() if transform else "",
        shuffle=shuffle,
        exports=select_exports(options.export, parse_output_pattern(names).format),
        part=None if options.part is None else parse_part(options.part),
    )


def _get_first_run_options(
    names: tuple[str, ...], options: CreateOptions | ReshardOptions, dividing: SplitOptions | None
) -> CreateOptions | ReshardOptions:
    """Return the options of the first run over a source that grows: there is no dataset yet to append to."""
    resumes = options.if_exists == "append-resume"
    splits = [name for name, _ in dividing.shares] if dividing else [_SPLIT_MARK]
    if not splits:  # only the samples name them
        return options
    for pattern in [parse_output_pattern(names, split) for split in splits]:
        owned = [name for name in open_folder(pattern.folder).names() if pattern.owns(name)]
        if pattern.dataset_file in owned or (owned and not resumes):
            return options
    return replace(options, if_exists="resume" if resumes else "error", on_duplicate="error")


def parse_output_pattern(names: Sequence[str], split: str = _SPLIT_MARK) -> ShardPattern:
    """Return the shard pattern of a split; without its name, what the patterns of all splits have in common."""
    try:
        pattern = parse_pattern([name.replace(_SPLIT_FIELD, split) for name in names])
    except InvalidRequest as error:
        where, found = (text.replace(_SPLIT_MARK, _SPLIT_FIELD) for text in (error.where, error.found))
        raise InvalidRequest(where, found, expected=error.expected, remedy=error.remedy) from None
    check_writable(pattern)
    return pattern
