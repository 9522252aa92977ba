"""Options of all verbs that start workers or write shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from shardtool.errors import InvalidRequest
from shardtool.messages import choose_text, flag_text, option_text
from shardtool.request.base_options import BaseOptions
from shardtool.request.option_spec import Given, Needs, Shares, Texts, option, option_specs, options_class
from shardtool.request.split_options import SplitOptions, format_shares, parse_shares
from shardtool.values import EXPORT_NAMES, AssignBy, IfExists, OnError, Oversize, StartMethod, Target, Trust

_MAX_SAMPLES = 10**15  # the sum of a few such numbers fits into 64 bits
COUNT_RANGE = (1, _MAX_SAMPLES)
SEED_RANGE = (-(2**63), 2**63 - 1)
MAX_WORKERS = 1024
WORKERS_RANGE = (0, MAX_WORKERS)
_SEEDED_OPTIONS = ("shuffle", "split", "per_class")
# With these options, planned sizes are estimates.
TRANSFORM_OPTIONS = ("resize", "encode", "probe", "exif", "hash", "map")


def _expand_split_by(options_type: type, value: str) -> dict[str, object]:
    of_folder = value == "folder" and "split_from_folder" in option_specs(options_type)
    return {"split_from_folder": True} if of_folder else {"split_column": value}


@options_class
class WorkerOptions(BaseOptions):
    """Options of all verbs that start workers.

    Attributes:
        workers: Number of worker processes. 0 runs all tasks in the calling process.
        start_method: Start method of worker processes.
        executor: Run tasks on this machine, or on a Ray cluster.
        address: Address of the Ray cluster: auto, ray://host:port or host:port.
    """

    workers: int | None = option(
        None,
        section="machines",
        cli_names="workers/j",
        range=WORKERS_RANGE,
        default_text="number of cores",
        common=True,
        recorded=False,
    )
    start_method: StartMethod = option("auto", recorded=False, rare=True)
    executor: Literal["local", "ray"] = option("local", recorded=False)
    address: str | None = option(
        None,
        metavar="ADDRESS",
        default_text="RAY_ADDRESS, or the cluster of this machine",
        requires=(Needs("no cluster to use", Given(executor).as_value("ray")),),
        recorded=False,
    )


def readers_for_notes(targets: Sequence[str], exports: Texts = ()) -> tuple[str, ...]:
    """Return the readers for compatibility notes: `targets` (default: webdataset), and the readers of `exports`."""
    exported = {name.partition("-")[0] for name in exports}
    selected = targets or ("webdataset",)
    return tuple(reader for reader in get_args(Target) if reader in selected or reader in exported)


@options_class
class OutputOptions(WorkerOptions):
    """Options of all verbs that write shards.

    Attributes:
        max_size: Maximum size of a shard: 500MB, 1GiB.
        max_count: Maximum number of samples per shard.
        shards: Exact number of shards. With splits, this is the number per split. With `append`, it is the number of
            new shards.
        equal_count: Put the same number of samples into each shard, plus or minus one.
        shards_multiple_of: Make the number of shards a multiple of N, for example ranks x workers.
        oversize: If a sample exceeds `max_size`, fail, put it in its own shard, or skip it.
        place: Assign samples to shards in order, or by a hash of the key. With hash, adding or removing a sample
            changes only one shard.
        shuffle: Shuffle all samples globally. With `place='hash'`, shuffle within each shard.
        seed: Seed for `shuffle` and `split`.
        where: Select samples that match this query: "label == 'dog' and width > 256". You can use the columns of a
            manifest, of sidecars, of `join` and of `columns_from`. For folders, you can also use key, path, folder and
            size. For datasets, you can also use key, shard, size and fields. `probe`, `exif` and `hash` add columns.
        split: Create these splits: train=0.8,val=0.1,test=0.1. Each split becomes a dataset; its name replaces {split}
            in the output.
        split_by: Create a split for each value of this column.
        split_column: As `split_by`, but always a column.
        stratify: Keep the class proportions of this column in every split.
        group_by: Keep samples with the same value in this column in one split.
        portable: Make names safe for every reader. The sidecars keep the original names.
        target: Print notes about compatibility with these readers.
        dry_run: Show the plan; write nothing.
        export: Write the index of another tool.
        on_error: Stop at a sample that cannot be read, or skip it. Skipped samples are listed in NAME.skipped.
        update: Add only samples that the existing dataset lacks, and keep its shards. If no dataset exists, create it.
        append: Add new shards to the existing dataset; keep its shards unchanged.
        resume: Continue an interrupted run, and keep complete and unchanged shards.
        overwrite: Replace an existing dataset once the new dataset is complete. With `resume`, replace only the shards
            that must change.
        max_removed: Fail if `resume` would remove more than this share of the samples.
        trust: With `resume`, compare shards by time and checksum, or by size only.
        part: Write part K of a run with N parts: 3/64. If the value is slurm or kubernetes, the job provides K and N.
    """

    max_size: str | int | None = option(None, section="shards", form="size", default_text="1GB", common=True)
    max_count: int | None = option(None, range=COUNT_RANGE)
    shards: int | None = option(None, range=COUNT_RANGE, common=True)
    equal_count: bool = option(False)
    shards_multiple_of: int = option(1, range=(1, 10**6))
    oversize: Oversize = option("error")
    place: AssignBy = option("order", conflicts=(Given(equal_count), Given(oversize).as_value("alone")))
    shuffle: bool = option(False, common=True)
    seed: int = option(0, range=SEED_RANGE, common=True)
    where: str | None = option(None, section="choosing", metavar="QUERY", common=True)
    split: Shares | None = option(None, form="shares", metavar="SHARES", example="train=0.8,val=0.2", common=True)
    stratify: str | None = option(None, metavar="COLUMN", requires=(Needs("no shares", Given(split)),))
    group_by: str | None = option(
        None,
        metavar="COLUMN",
        requires=(Needs("no shares", Given(split)),),
        conflicts=(Given(stratify, "because whole groups cannot keep class proportions"),),
    )
    split_by: str | None = option(None, metavar="COLUMN", common=True, recorded=False, expand=_expand_split_by)
    split_column: str | None = option(
        None, metavar="COLUMN", parent="split-by {}", conflicts=(Given(split), Given(stratify), Given(group_by))
    )
    portable: bool = option(False, section="fields")
    target: Target | tuple[Target, ...] | list[Target] = option(
        (),
        section="output",
        cli_names="for",
        former_name="target",
        metavar="READERS",
        default_text="webdataset, and the readers of exports",
        comma_separated=True,
        recorded=False,
    )
    dry_run: bool = option(False, section="output", cli_names="dry-run/n", common=True, recorded=False)
    export: Texts = option((), choices=EXPORT_NAMES, section="output", metavar="TOOL", recorded=False)
    on_error: OnError = option("raise", section="rerun", recorded=False, common=True, cli_choices={"stop": "raise"})
    update: bool = option(False, recorded=False, common=True, group="existing")
    append: bool = option(False, recorded=False, common=True, group="existing")
    resume: bool = option(False, recorded=False, common=True, group="existing")
    overwrite: bool = option(
        False,
        recorded=False,
        cli_names="overwrite/f",
        common=True,
        group="existing",
        conflicts=(Given(update, "which keeps the dataset"), Given(append, "which keeps the dataset")),
    )
    max_removed: str | float = option("10%", form="share", metavar="SHARE", recorded=False)
    trust: Trust = option("time", requires=(Needs("nothing to resume", Given(resume), Given(update)),), recorded=False)
    part: str | None = option(None, section="machines", form="part", metavar="K/N", recorded=False)

    def __post_init__(self) -> None:
        BaseOptions.__post_init__(self)  # `super()` does not work in a dataclass with slots
        if self.part is not None:
            self._check_part_options()

    def _check_part_options(self) -> None:
        part = option_text("part", self.part)
        if conflict := self.first_given("overwrite", "append", "update"):
            remedy = "Delete the old dataset first, or use another output." if self.overwrite else ""
            expected = f"a new dataset, or {flag_text('resume')}"
            raise InvalidRequest(part, f"used with {flag_text(conflict)}", expected=expected, remedy=remedy)
        if self.export:
            remedy = choose_text(
                "Call `export` for the merged dataset.", "Use `shardtool index OUTPUT --merge --export TOOL`."
            )
            raise InvalidRequest(part, f"used with {option_text('export')}", expected="only one of them", remedy=remedy)
        changes = [name for name in ("url", *TRANSFORM_OPTIONS) if getattr(self, name, None)]
        option_name, expected = "", ""
        # Without `max_size`, the sizes of downloads, transformed or not, need not be known.
        if changes and (changes[0] != "url" or self.max_size is not None):
            option_name, expected = changes[0], "samples of known size"
        elif getattr(self, "method", "auto") == "scatter":
            option_name, expected = "method", "samples that are read individually"
        if option_name:
            remedy = "Use one run without parts, or transform the samples before or after packing in parts."
            raise InvalidRequest(part, f"used with {option_text(option_name)}", expected=expected, remedy=remedy)

    @property
    def if_exists(self) -> IfExists:
        """What to do with an existing dataset."""
        if self.update:
            return "update"
        if self.append:
            return "append-resume" if self.resume else "append"
        if self.resume:
            return "resume-overwrite" if self.overwrite else "resume"
        return "overwrite" if self.overwrite else "error"

    @property
    def readers(self) -> tuple[str, ...]:
        """The result of `readers_for_notes`."""
        return readers_for_notes(self.target, self.export)

    def recorded(self) -> dict[str, object]:
        """Return the options to record in the dataset file."""
        recorded = BaseOptions.recorded(self)
        if not any(getattr(self, name, None) for name in _SEEDED_OPTIONS):
            recorded.pop("seed", None)
        return recorded

    def make_split_options(self) -> SplitOptions | None:
        """Return the options for splitting the samples, or None."""
        if not self.split and self.split_column is None:
            return None
        shares = parse_shares(format_shares(self.split)) if self.split else ()
        return SplitOptions(shares, self.split_column, self.stratify, self.group_by, self.seed)
