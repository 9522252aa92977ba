"""Options of every command that starts workers or writes shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from shardtool.errors import InvalidRequest
from shardtool.messages import choose_text, option_text
from shardtool.request.base_options import BaseOptions
from shardtool.request.option_spec import (
    Shares,
    Texts,
    alias,
    option,
    option_specs,
    options_class,
)
from shardtool.request.split_options import SplitOptions, format_shares, parse_shares
from shardtool.values import (
    AssignBy,
    IfExists,
    OnError,
    Oversize,
    StartMethod,
    Target,
    Trust,
)

_MAX_SAMPLES = 10**15  # so that sums of a few stay within 64 bits


COUNT_RANGE = (1, _MAX_SAMPLES)


SEED_RANGE = (-(2**63), 2**63 - 1)


MAX_WORKERS = 1024  # a process each


WORKERS_RANGE = (1, MAX_WORKERS)


_SEEDED_OPTIONS = ("shuffle", "split", "per_class")


TRANSFORM_OPTIONS = (
    "resize",
    "encode",
    "probe",
    "exif",
    "hash",
    "map",
)  # what sizes of samples are only estimated with


def _expand_split_by(kind: type, value: str) -> dict[str, object]:
    """Return what a column, or `folder`, divides by."""
    of_folder = value == "folder" and "split_from_folder" in option_specs(kind)
    return {"split_from_folder": True} if of_folder else {"split_column": value}


@options_class
class WorkerOptions(BaseOptions):
    """The options of every verb that starts workers."""

    workers: int | None = option(
        None, "Number of tasks that run at once.", section="machines", typed="workers/j", range=WORKERS_RANGE,
        shown="the cores", common=True, recorded=False,
    )  # fmt: skip
    start_method: StartMethod = option("auto", "How worker processes start.", recorded=False, rare=True)
    executor: Literal["local", "ray"] = option(
        "local", "Where tasks run: on this machine, or on the nodes of a Ray cluster.", recorded=False
    )
    address: str | None = option(
        None, "Address of the Ray cluster: auto, ray://host:port or host:port.", metavar="ADDRESS",
        shown="RAY_ADDRESS, or the cluster of this machine", requires={"executor=ray": "no cluster to use"},
        recorded=False,
    )  # fmt: skip


def noted_readers(asked: Sequence[str], exports: Texts = ()) -> tuple[str, ...]:
    """Return the readers that notes are about: those asked for, or the one that the closing lines name, and of exports.

    Args:
        asked: Those that `target` names.
        exports: The indexes that are written, each called by its reader: `dali-webdataset`.
    """
    exported = {name.partition("-")[0] for name in exports}
    named = asked or ("webdataset",)
    return tuple(one for one in get_args(Target) if one in named or one in exported)


@options_class
class OutputOptions(WorkerOptions):
    """The options of every verb that writes shards; options on the command line have the same names."""

    max_size: str | int | None = option(
        None, "Maximum size of a shard in bytes: 500MB, 1GiB.", section="shards", form="size", shown="1GB", common=True
    )
    max_count: int | None = option(None, "Maximum number of samples in a shard.", range=COUNT_RANGE)
    shards: int | None = option(
        None, "Number of shards, exactly. With splits, that of each; with `if_exists='append'`, that of the new ones.",
        range=COUNT_RANGE, common=True,
    )  # fmt: skip
    equal_count: bool = option(False, "Put equally many samples into each shard, give or take one.")
    shards_multiple_of: int = option(
        1, "Make the number of shards a multiple of this, so that ranks x workers divide it.", range=(1, 10**6)
    )
    oversize: Oversize = option(
        "error", "What becomes of a sample that fits in no shard: an error, a shard of its own, or it is left out."
    )
    place: AssignBy = option(
        "order", "What decides in which shard a sample lies: the order of samples, or the hash of its key, so that "
        "one sample more or less changes one shard.", conflicts=("equal_count", "oversize=alone"),
    )  # fmt: skip
    shuffle: bool = option(
        False, "Put all samples into one random order. With `place='hash'`, those of each shard.", common=True
    )
    seed: int = option(0, "Seed of `shuffle` and `split`.", range=SEED_RANGE, common=True)
    where: str | None = option(
        None, "Only samples of which this is true: \"label == 'dog' and width > 256\". It knows the columns of a "
        "manifest, of indexes, of `join` and `columns_from`, and: of files key, path, folder and size; of datasets "
        "key, shard, size and fields. With `probe`, `exif` and `hash` it knows what these find.", section="choosing",
        metavar="QUERY", common=True,
    )  # fmt: skip
    split: Shares | None = option(
        None, "Shares of the splits: train=0.8,val=0.1,test=0.1. Each becomes a dataset; its name takes the place of "
        "{split} in the output.", form="shares", metavar="SHARES", example="train=0.8,val=0.2", common=True,
    )  # fmt: skip
    split_by: str | None = option(
        None, "Column of the splits.", metavar="COLUMN",
        common=True, recorded=False, expand=_expand_split_by,
    )  # fmt: skip
    split_column: str | None = option(
        None, "Column of the splits.", metavar="COLUMN",
        family="split-by {}", conflicts=("split", "stratify", "group_by"),
    )  # fmt: skip
    stratify: str | None = option(
        None, "Column of labels, each of which keeps the shares of `split`.", metavar="COLUMN",
        requires={"split": "no shares"},
    )  # fmt: skip
    group_by: str | None = option(
        None, "Column whose equal values stay in one split.", metavar="COLUMN", requires={"split": "no shares"},
        conflicts=("stratify, and groups that stay whole cannot keep the shares of every label",),
    )  # fmt: skip
    portable: bool = option(
        False, "Make names safe for every reader; the sidecars keep the originals.", section="fields"
    )
    target: Target | tuple[Target, ...] | list[Target] = option(
        (), "Readers whose mistakes are worth a note: " + ", ".join(get_args(Target)) + ".", section="output",
        typed="for", old="target", metavar="READERS", shown="webdataset, and those of exports", comma_separated=True,
        recorded=False,
    )  # fmt: skip
    export: Texts = option((), "Tool whose index is written, too.", section="output", metavar="TOOL", recorded=False)
    on_error: OnError = option(
        "stop", "What happens at a sample that cannot be read. The run stops, or leaves it out and lists it in "
        "NAME.skipped.", section="rerun", recorded=False, common=True,
    )  # fmt: skip
    if_exists: IfExists = option(
        "error", "What happens where a dataset is there: an error; append adds new shards to it, resume finishes an "
        "earlier run, overwrite replaces it. With resume-overwrite, what is right is kept, and all else replaced. With "
        "update, what is new is added, what was killed is finished, and a first dataset is made.",
        section="rerun", recorded=False, common=True, flags={
            "update": "Add what is new in the source, and keep what is there. Make the dataset where there is none.",
            "append": "Add new shards to the dataset that is there. Nothing of it is rewritten.",
            "resume": "Finish an earlier run; what is done and unchanged is kept.",
            "overwrite": "Replace an earlier dataset, once the new one is complete. With `if_exists='resume'`, what "
            "must change of it.",
        },
    )  # fmt: skip
    append: bool | None = alias("if_exists=append")
    resume: bool | None = alias("if_exists=resume")
    overwrite: bool | None = alias("if_exists=overwrite")
    update: bool | None = alias("if_exists=update")
    max_removed: str | float = option(
        "10%", "Share of the samples that `if_exists='resume'` may remove, where the source has lost them.",
        form="share", metavar="SHARE", recorded=False,
    )  # fmt: skip
    trust: Trust = option(
        "time", "How `if_exists='resume'` knows a finished shard: by times and its checksum, or by sizes, reading "
        "nothing.", requires={"if_exists=resume|if_exists=update": "nothing to resume"}, recorded=False,
    )  # fmt: skip
    part: str | None = option(
        None, "Part of N runs side by side whose shards are written: 3/64, or slurm or kubernetes for this task's own.",
        section="machines", form="part", metavar="K/N", recorded=False,
    )  # fmt: skip

    def __post_init__(self) -> None:
        BaseOptions.__post_init__(self)  # `super()` does not work in a dataclass with slots
        if self.part is not None:
            self._check_alone()

    def _check_alone(self) -> None:
        """Refuse what one part cannot do without knowing of the others."""
        part = option_text("part", self.part)
        if self.if_exists not in ("error", "resume"):
            given = option_text("if_exists", self.if_exists)
            remedy = "Remove the old dataset first, or write elsewhere." if "overwrite" in self.if_exists else ""
            expected = f"a new dataset, or {option_text('if_exists', 'resume')}"
            raise InvalidRequest(part, f"used with {given}", expected=expected, remedy=remedy)
        if self.export:
            remedy = choose_text(
                "`export` what `merge` has made.", "`shardtool index OUTPUT --merge` has --export, too."
            )
            raise InvalidRequest(part, f"used with {option_text('export')}", expected="one of them", remedy=remedy)
        changes = [name for name in ("urls", *TRANSFORM_OPTIONS) if getattr(self, name, None)]
        found, why = "", ""
        if changes and not (changes[0] == "urls" and self.max_size is None):  # of URLs, a shard has room for any bytes
            found, why = changes[0], "samples whose sizes are known"
        elif getattr(self, "method", "auto") == "scatter":
            found, why = "method", "samples that are read at their places"
        if found:
            remedy = "Write it in one run, or pack the samples as they are in parts, and change them before or after."
            raise InvalidRequest(part, f"used with {option_text(found)}", expected=why, remedy=remedy)

    @property
    def readers(self) -> tuple[str, ...]:
        """The readers that notes are about."""
        return noted_readers(self.target, self.export)

    def recorded(self) -> dict[str, object]:
        """Return the options that decide the dataset's bytes, where they differ from the default."""
        found = BaseOptions.recorded(self)
        if not any(getattr(self, name, None) for name in _SEEDED_OPTIONS):
            found.pop("seed", None)
        return found

    def make_split_options(self) -> SplitOptions | None:
        """Return how samples are divided; None: they are not."""
        if not self.split and self.split_column is None:
            return None
        shares = parse_shares(format_shares(self.split)) if self.split else ()
        return SplitOptions(shares, self.split_column, self.stratify, self.group_by, self.seed)
