"""What the verbs that write return: plain values, for people and programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, overload

from shardtool.units import pluralize

ValueT = TypeVar("ValueT")


class Result:
    """What a verb did: plain values."""

    __slots__ = ()
    _optional: ClassVar[tuple[str, ...]] = ("dry_run",)  # left out of the data where they say nothing

    def to_json(self) -> dict[str, object]:
        """Return the result as data, the way `--json` prints it: tuples as lists, times to the millisecond."""
        found = asdict(self, dict_factory=_to_data)  # type: ignore[call-overload]
        return {name: value for name, value in found.items() if value or name not in self._optional}


def _to_data(items: list[tuple[str, Any]]) -> dict[str, object]:
    plain: dict[str, Any] = {name: list(value) if isinstance(value, tuple) else value for name, value in items}
    return plain | ({"seconds": round(plain["seconds"], 3)} if "seconds" in plain else {})


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """A shard of a dry run; `size` is the finished file's bytes."""

    name: str
    samples: int
    size: int
    first_key: str
    last_key: str


@dataclass(frozen=True, slots=True)
class ResumeChanges:
    """The changes that a resumed run makes to existing datasets; with splits, to all of them.

    Attributes:
        shards_kept: Shards that stay as they are; of a dry run, as far as sidecars show: content is not compared.
        shards_written: Shards that are new, or take the place of another.
        shards_removed: Shards that are there no more.
        samples_added: Samples that were not there.
        samples_removed: Samples that are there no more.
        samples_before: Samples that were there.
    """

    shards_kept: int = 0
    shards_written: int = 0
    shards_removed: int = 0
    samples_added: int = 0
    samples_removed: int = 0
    samples_before: int = 0

    def __str__(self) -> str:
        counts = f"{self.shards_kept:,}, write {self.shards_written:,} and remove {self.shards_removed:,} shards"
        return f"would keep {counts}; add {self.samples_added:,} and remove {pluralize(self.samples_removed, 'sample')}"


@dataclass(frozen=True, slots=True)
class DryRun:
    """The shards that `create` would write, of all splits. `changes`: what a resume would change."""

    dataset_file: str
    shards: tuple[PlannedShard, ...]
    skipped: int
    notes: tuple[str, ...]
    changes: ResumeChanges | None = None

    def to_json(self) -> dict[str, object]:
        """Return the plan as data, the way `--json` prints it."""
        changes = {} if self.changes is None else {"changes": asdict(self.changes)}
        return {
            "dry_run": True,
            "dataset_file": self.dataset_file,
            "shards": [asdict(shard) for shard in self.shards],
            "totals": {
                "shards": len(self.shards),
                "samples": sum(shard.samples for shard in self.shards),
                "size": sum(shard.size for shard in self.shards),
                "skipped": self.skipped,
            },
            **changes,
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class SplitResult(Result):
    """The dataset of one split; see `CreateResult`."""

    dataset_file: str
    shards: int
    kept: int
    samples: int
    skipped: int
    dropped: int
    size: int
    fingerprint: str
    urls: str = ""
    _optional = ("urls",)


@dataclass(frozen=True, slots=True)
class AppendedPart:
    """The part that a run has added to existing datasets; see `CreateResult`."""

    shards: int
    samples: int
    size: int


@dataclass(frozen=True, slots=True)
class CreateResult(Result):
    """A finished dataset, or one for each split.

    Attributes:
        dataset_file: Its path; of several splits, with `{split}` in it.
        shards: How many.
        kept: How many of them an earlier run had finished.
        samples: How many were written.
        skipped: How many files and samples were left out; `out.skipped` lists them.
        size: Bytes of all shards.
        seconds: How long it took.
        fingerprint: The content fingerprint: the same for the same samples, however ordered, sharded or divided.
        notes: What the user should know.
        dropped: How many samples the function of `map` dropped.
        features: Only for TFRecord: feature to what `tf.io.parse_single_example` wants for it.
        urls: Only for tar: what `webdataset.WebDataset` is given to read all shards; empty where it cannot open them,
            and of several splits, which have their own.
        splits: Each split's own dataset; empty without splits.
        appended: What an append added; all else is about the whole dataset.
        exported: The formats of `export`, whose files are there, too.
        changes: What a resume changed of what was there; None: nothing was there.
        part: Of one of several runs side by side, which it was, such as `3/64`: all counts are of its own shards.
        merged: Of such a run, whether the dataset file of all parts is there.
    """

    dataset_file: str
    shards: int
    kept: int
    samples: int
    skipped: int
    size: int
    seconds: float
    fingerprint: str
    notes: tuple[str, ...]
    dropped: int = 0
    features: Mapping[str, str] = field(default_factory=dict)
    urls: str = ""
    splits: Mapping[str, SplitResult] = field(default_factory=dict)
    appended: AppendedPart | None = None
    exported: tuple[str, ...] = ()
    changes: ResumeChanges | None = None
    part: str = ""
    merged: bool = False
    _optional = ("dropped", "features", "urls", "splits", "appended", "exported", "changes", "part")

    def to_json(self) -> dict[str, object]:
        """Return the result as data, the way `--json` prints it; what was not asked for is left out."""
        found = Result.to_json(self)  # `super()` does not work in a dataclass with slots
        if self.splits:
            found["splits"] = {name: split.to_json() for name, split in self.splits.items()}
        return {name: value for name, value in found.items() if self.part or name != "merged"}


@dataclass(frozen=True, slots=True)
class CopiedDataset:
    """A dataset that was copied.

    Attributes:
        source: The path of its dataset file.
        dataset_file: The path of the copy's.
        shards: How many.
        copied: How many of them, or their sidecars, were copied.
        kept: How many were there already, with the right bytes.
        removed: Shards that only the dataset had which was replaced.
        samples: In all shards.
        size: Bytes of all shards.
        copied_size: Bytes of the shards and sidecars that were copied.
        indexes: How many index files of other tools were copied.
    """

    source: str
    dataset_file: str
    shards: int
    copied: int
    kept: int
    removed: int
    samples: int
    size: int
    copied_size: int
    indexes: int = 0


@dataclass(frozen=True, slots=True)
class CopyResult:
    """Datasets that were copied, or that would be.

    Attributes:
        datasets: Each.
        notes: What the user should know.
        seconds: How long it took.
        dry_run: Nothing was written: this is what would be done.
    """

    datasets: tuple[CopiedDataset, ...]
    notes: tuple[str, ...]
    seconds: float
    dry_run: bool = False

    def to_json(self) -> dict[str, object]:
        """Return the result as data, the way `--json` prints it."""
        names = ("shards", "copied", "kept", "removed", "samples", "size", "copied_size")
        return {
            **({"dry_run": True} if self.dry_run else {}),
            "datasets": [asdict(one) for one in self.datasets],
            "totals": {name: sum(getattr(one, name) for one in self.datasets) for name in names},
            "notes": list(self.notes),
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class ExtractResult(Result):
    """Files that samples have become, or would.

    Attributes:
        folder: Where they are.
        manifest: The path of the table with a row for each file: its sample's key, its path. `create` takes it, too.
        metadata: The path of the table with the metadata of each sample, for `join`; empty: they have none.
        samples: How many.
        files: How many files, one for each field.
        kept: How many of them were there already, with the right bytes.
        size: Bytes of all of them.
        seconds: How long it took.
        notes: What the user should know.
        create: The options of `create` that make the same samples of them, by their names.
        dry_run: Nothing was written: this is what would be done.
    """

    folder: str
    manifest: str
    metadata: str
    samples: int
    files: int
    kept: int
    size: int
    seconds: float
    notes: tuple[str, ...]
    create: Mapping[str, Any] = field(default_factory=dict)
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class RemovalSummary:
    """A dataset that samples were removed from, or would be.

    Attributes:
        dataset_file: Its path.
        removed: How many samples went.
        samples: How many are left.
        shards: How many shards it has, as before.
        rewritten: The names of those that were written again.
        empty: Those of these that have no sample any more.
        size: Bytes of the shards that were written again.
        freed: By how many bytes they are smaller.
        fingerprint: The content fingerprint; empty where it is not known, and of a dry run.
    """

    dataset_file: str
    removed: int
    samples: int
    shards: int
    rewritten: tuple[str, ...]
    empty: tuple[str, ...]
    size: int
    freed: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class RemoveResult(Result):
    """Datasets that samples were removed from, or would be.

    Attributes:
        datasets: Those that had such samples.
        notes: What the user should know.
        seconds: How long it took.
        dry_run: Nothing was written: this is what would be done.
    """

    datasets: tuple[RemovalSummary, ...]
    notes: tuple[str, ...]
    seconds: float
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class IndexResult(Result):
    """The index of a dataset.

    Attributes:
        dataset_file: Its path.
        shards: How many.
        kept: How many of their sidecars were right already.
        samples: In all shards.
        notes: What the user should know.
    """

    dataset_file: str
    shards: int
    kept: int
    samples: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExportResult(Result):
    """Index files for other tools.

    Attributes:
        dataset_file: The path of what they were made for.
        folder: Their folder.
        formats: What was asked for.
        files: Their names, by shard, then by format; then those of which a folder has one set.
        kept: How many of them were there already, the same to the byte or the user's to change.
        notes: What the user should know.
    """

    dataset_file: str
    folder: str
    formats: tuple[str, ...]
    files: tuple[str, ...]
    kept: int
    notes: tuple[str, ...]


class LazyList(Sequence[ValueT]):
    """A sequence whose items are made when they are asked for: there may be millions.

    Args:
        count: How many there are.
        item: Makes one of them, by its place from 0.
    """

    def __init__(self, count: int, item: Callable[[int], ValueT]) -> None:
        self._places, self._item = range(count), item

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, at: int) -> ValueT: ...
    @overload
    def __getitem__(self, at: slice) -> list[ValueT]: ...
    def __getitem__(self, at: int | slice) -> ValueT | list[ValueT]:
        return [*map(self._item, self._places[at])] if isinstance(at, slice) else self._item(self._places[at])


METADATA_FIELD = "(metadata)"  # stands for all columns among the fields of a sample that changed


class ColumnDifference(NamedTuple):
    """A metadata column that differs: `added`, `removed` or `changed`, and in how many samples of both sides."""

    change: str
    samples: int


class SampleDifference(NamedTuple):
    """A sample that differs: its key, and the fields that do; `(metadata)` stands for all columns."""

    key: str
    fields: tuple[str, ...]


class MovedSample(NamedTuple):
    """A sample that is in another split: its key, the split before, and the one now."""

    key: str
    before: str
    now: str


@dataclass(frozen=True, slots=True)
class DiffResult:
    """What differs between two sides, a and b, each one or several datasets; b may be the source of a.

    A sample that moved may have changed, too. The lists stand in the order of their sides.

    Attributes:
        samples: How many each side has.
        added: Keys that only b has.
        removed: Keys that only a has.
        changed: What both have, with other contents.
        moved: What both have, in another split.
        fields: Field to how many of the changed samples differ in it.
        classes: Fields whose numbers of classes stand for other names.
        metadata: Metadata column to how it differs.
        metadata_only: How many of the changed samples differ in metadata only.
        uncompared: The fields that were not compared with the source: their table was not found.
        a: What was given.
        b: The same.
        notes: What the user should know.
        seconds: How long it took.
    """

    samples: tuple[int, int]
    added: Sequence[str]
    removed: Sequence[str]
    changed: Sequence[SampleDifference]
    moved: Sequence[MovedSample]
    fields: Mapping[str, int]
    classes: tuple[str, ...] = ()
    metadata: Mapping[str, ColumnDifference] = field(default_factory=dict)
    metadata_only: int = 0
    uncompared: tuple[str, ...] = ()
    a: str = ""
    b: str = ""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return self.content_same and not self.changed

    @property
    def content_same(self) -> bool:
        """Whether nothing differs, or only metadata."""
        content = len(self.changed) - self.metadata_only
        return not (self.added or self.removed or content or self.moved or self.classes)

    def to_json(self) -> dict[str, object]:
        """Return the result as data, the way `--json` prints it."""
        return {
            "a": {"dataset": self.a, "samples": self.samples[0]},
            "b": {"dataset": self.b, "samples": self.samples[1]},
            "same": self.same,
            "content_same": self.content_same,
            "counts": {name: len(getattr(self, name)) for name in ("added", "removed", "changed", "moved")},
            "fields": dict(self.fields),
            "classes": list(self.classes),
            "metadata": {name: one._asdict() for name, one in self.metadata.items()},
            "metadata_only": self.metadata_only,
            **({"uncompared": [*self.uncompared]} if self.uncompared else {}),
            "added": list(self.added),
            "removed": list(self.removed),
            "changed": [{"key": one.key, "fields": list(one.fields)} for one in self.changed],
            "moved": [one._asdict() for one in self.moved],
            "notes": list(self.notes),
            "seconds": round(self.seconds, 3),
        }


class Check(NamedTuple):
    """One thing that `doctor` has looked at.

    Attributes:
        name: What: `server`, `list`, `delete` ...
        state: Whether it is as it must be; `unknown`: that could not be seen, for the reason that `found` gives.
        found: What is there.
        cure: What to do where it is wrong.
    """

    name: str
    state: Literal["ok", "wrong", "unknown"]
    found: str
    cure: str = ""


@dataclass(frozen=True, slots=True)
class DoctorResult:
    """What `doctor` has found out about a place.

    Attributes:
        place: Its path or address.
        checks: What was looked at, in the order in which things depend on each other.
        seconds: How long it took.
    """

    place: str
    checks: tuple[Check, ...]
    seconds: float

    @property
    def well(self) -> bool:
        """Whether nothing is wrong."""
        return all(one.state != "wrong" for one in self.checks)

    def to_json(self) -> dict[str, object]:
        """Return the result as data, the way `--json` prints it."""
        checks = [one._asdict() for one in self.checks]
        return {"place": self.place, "well": self.well, "checks": checks, "seconds": round(self.seconds, 3)}
