"""Results of verbs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, overload

from shardtool.dataclass import dataclass
from shardtool.notebook import Displayed
from shardtool.units import pluralize

ValueT = TypeVar("ValueT")


class Result(Displayed):
    """Base class of results. After a dry run, the result describes the planned output."""

    __slots__ = ()
    _optional: ClassVar[tuple[str, ...]] = ("dry_run",)  # omitted from JSON if empty or false

    def to_json(self) -> dict[str, object]:
        """Return the result as `--json` prints it."""
        document = asdict(self, dict_factory=_to_data)  # type: ignore[call-overload]
        return {name: value for name, value in document.items() if value or name not in self._optional}


def _to_data(items: list[tuple[str, Any]]) -> dict[str, object]:
    plain: dict[str, Any] = {name: list(value) if isinstance(value, tuple) else value for name, value in items}
    return plain | ({"seconds": round(plain["seconds"], 3)} if "seconds" in plain else {})


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """A shard that a dry run planned. `size` is in bytes."""

    name: str
    samples: int
    size: int
    first_key: str
    last_key: str


@dataclass(frozen=True, slots=True)
class ResumeChanges:
    """How many shards and samples a resumed run keeps, adds or removes, summed over all splits.

    In a dry run, `shards_kept` is based on sidecars only.
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


@dataclass(frozen=True, slots=True, repr=False)
class SplitResult(Result):
    """The dataset of one split. `CreateResult` describes the attributes."""

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
    _displayed = ("dataset_file", "shards", "samples", "size", "skipped", "dropped")


@dataclass(frozen=True, slots=True)
class AppendedPart:
    """Counts of the appended shards, samples and bytes."""

    shards: int
    samples: int
    size: int


@dataclass(frozen=True, slots=True)
class JoinedTable:
    """The columns of a `join` table.

    Attributes:
        columns: Metadata columns that the table adds to the sidecars.
        fields: Maps each field that `field` creates to the table column.
        advice: A `field` option that would create fields from the remaining columns, or "".
    """

    table: str
    columns: tuple[str, ...]
    fields: Mapping[str, str]
    advice: str


@dataclass(frozen=True, slots=True, repr=False)
class CreateResult(Result):
    """The created dataset, or the datasets of all splits together.

    Attributes:
        dataset_file: Path of the dataset file. With splits, it contains `{split}`.
        kept: Number of shards that an earlier run had finished.
        skipped: Number of skipped files and samples, listed in `out.skipped`.
        fingerprint: The content fingerprint. It does not depend on order, shards or splits.
        dropped: Number of samples that the `map` function dropped.
        features: For TFRecord, the dict to pass to `tf.io.parse_single_example`. Its values are Python source, such as
            `tf.io.FixedLenFeature(...)`.
        urls: Pattern of shards to pass to `webdataset.WebDataset`. Empty for TFRecord, splits, parts and dry runs, and
            if webdataset cannot open the shards.
        appended: The appended shards. All other attributes describe the whole dataset.
        changes: What `resume` changed. None with `append`, without `resume`, or without existing shards.
        part: The part of a parallel run, such as `3/64`, or "". Counts cover only this part.
        merged: Whether all parts are finished and the dataset file exists.
        planned: The shards that a dry run planned, for all splits.
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
    dry_run: bool = False
    planned: tuple[PlannedShard, ...] = ()
    joined: JoinedTable | None = None
    _optional = ("dropped", "features", "urls", "splits", "appended", "exported", "changes", "part", "joined")

    def to_json(self) -> dict[str, object]:
        """Return the result as `--json` prints it."""
        if self.dry_run:
            return {
                "dry_run": True,
                "dataset_file": self.dataset_file,
                "shards": [asdict(shard) for shard in self.planned],
                "totals": {name: getattr(self, name) for name in ("shards", "samples", "size", "skipped")},
                **({} if self.changes is None else {"changes": asdict(self.changes)}),
                **({} if self.joined is None else {"joined": asdict(self.joined)}),
                "notes": list(self.notes),
            }
        document = Result.to_json(self)  # `super()` does not work in a dataclass with slots
        if self.splits:
            document["splits"] = {name: split.to_json() for name, split in self.splits.items()}
        hidden = {"dry_run", "planned", *(() if self.part else ("merged",))}
        return {name: value for name, value in document.items() if name not in hidden}


@dataclass(frozen=True, slots=True)
class CopiedDataset:
    """A copied dataset.

    Attributes:
        copied: Number of shards that were copied, or whose sidecar was copied.
        kept: Number of existing shards that were not copied again.
        removed: Number of shards of the replaced dataset that were deleted.
        copied_size: Bytes of the copied shards and sidecars.
        indexes: Number of copied index files for other tools.
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


@dataclass(frozen=True, slots=True, repr=False)
class CopyResult(Displayed):
    """The result of `copy`."""

    datasets: tuple[CopiedDataset, ...]
    notes: tuple[str, ...]
    seconds: float
    dry_run: bool = False

    def to_json(self) -> dict[str, object]:
        """Return the result as `--json` prints it."""
        names = ("shards", "copied", "kept", "removed", "samples", "size", "copied_size")
        return {
            **({"dry_run": True} if self.dry_run else {}),
            "datasets": [asdict(dataset) for dataset in self.datasets],
            "totals": {name: sum(getattr(dataset, name) for dataset in self.datasets) for name in names},
            "notes": list(self.notes),
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True, repr=False)
class ExtractResult(Result):
    """The result of `extract`.

    Attributes:
        manifest: Path of the table with the key and path of each file. `create` accepts this table as a source.
        metadata: Path of the table with the metadata of each sample, for `join`, or "".
        kept: Number of existing files that were not written again.
        create: Options with which `create` packs the files into the same samples.
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
    """What `remove` changed in one dataset.

    Attributes:
        samples: Number of remaining samples.
        empty: Names of the rewritten shards that are now empty.
        size: Total bytes of the rewritten shards.
        freed: How many bytes smaller the shards became.
        fingerprint: The content fingerprint, or "" if unknown or in a dry run.
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


@dataclass(frozen=True, slots=True, repr=False)
class RemoveResult(Result):
    """The result of `remove`. `datasets` describes each dataset that contained samples to remove."""

    datasets: tuple[RemovalSummary, ...]
    notes: tuple[str, ...]
    seconds: float
    dry_run: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class IndexResult(Result):
    """The result of `index`.

    Attributes:
        kept: Number of sidecars that were already valid and complete.
    """

    dataset_file: str
    shards: int
    kept: int
    samples: int
    notes: tuple[str, ...]
    columns: tuple[str, ...] = ()
    _optional = ("columns",)


@dataclass(frozen=True, slots=True, repr=False)
class ExportResult(Result):
    """The result of `export`.

    Attributes:
        files: Names of the index files: files for one shard (`out-000000.idx`), then for the folder (`sizes.json`).
        kept: Number of existing files that were not replaced: unchanged files, and files that users may have edited.
    """

    dataset_file: str
    folder: str
    formats: tuple[str, ...]
    files: tuple[str, ...]
    kept: int
    notes: tuple[str, ...]


class LazyList(Sequence[ValueT]):
    """A sequence of `count` items. `item(index)` creates each item on access."""

    def __init__(self, count: int, item: Callable[[int], ValueT]) -> None:
        self._indexes, self._item = range(count), item

    def __len__(self) -> int:
        return len(self._indexes)

    def __repr__(self) -> str:
        return f"<{pluralize(len(self), 'item')}>"

    @overload
    def __getitem__(self, index: int) -> ValueT: ...
    @overload
    def __getitem__(self, index: slice) -> list[ValueT]: ...
    def __getitem__(self, index: int | slice) -> ValueT | list[ValueT]:
        return (
            [*map(self._item, self._indexes[index])] if isinstance(index, slice) else self._item(self._indexes[index])
        )


METADATA_FIELD = "(metadata)"


class ColumnDifference(NamedTuple):
    """A metadata column that was `added`, `removed` or `changed`, and the number of affected samples."""

    change: str
    samples: int


class SampleDifference(NamedTuple):
    """The key and changed fields of a sample. `(metadata)` represents all metadata columns."""

    key: str
    fields: tuple[str, ...]


class MovedSample(NamedTuple):
    """The key, old split and new split of a sample that moved to another split."""

    key: str
    before: str
    now: str


@dataclass(frozen=True, slots=True, repr=False)
class DiffResult(Displayed):
    """The differences between `a` and `b`. A sample can be both moved and changed.

    Attributes:
        added: Keys that only b has.
        removed: Keys that only a has.
        fields: For each field, the number of samples in which it differs.
        classes: Fields in which a class number has different names in a and b.
        metadata_only: Number of changed samples that differ only in metadata.
        uncompared: Fields that were not compared, because the table with their values was not found.
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
    _displayed = (
        "a", "b", "same", "samples", "added", "removed", "changed", "moved", "fields", "classes", "metadata",
        "uncompared", "notes", "seconds",
    )  # fmt: skip

    @property
    def same(self) -> bool:
        """Whether there are no differences."""
        return self.content_same and not self.changed

    @property
    def content_same(self) -> bool:
        """Whether there are no differences except in metadata."""
        content = len(self.changed) - self.metadata_only
        return not (self.added or self.removed or content or self.moved or self.classes)

    def to_json(self) -> dict[str, object]:
        """Return the result as `--json` prints it."""
        return {
            "a": {"dataset": self.a, "samples": self.samples[0]},
            "b": {"dataset": self.b, "samples": self.samples[1]},
            "same": self.same,
            "content_same": self.content_same,
            "counts": {name: len(getattr(self, name)) for name in ("added", "removed", "changed", "moved")},
            "fields": dict(self.fields),
            "classes": list(self.classes),
            "metadata": {name: difference._asdict() for name, difference in self.metadata.items()},
            "metadata_only": self.metadata_only,
            **({"uncompared": [*self.uncompared]} if self.uncompared else {}),
            "added": list(self.added),
            "removed": list(self.removed),
            "changed": [{"key": sample.key, "fields": list(sample.fields)} for sample in self.changed],
            "moved": [sample._asdict() for sample in self.moved],
            "notes": list(self.notes),
            "seconds": round(self.seconds, 3),
        }


class Check(NamedTuple):
    """A check of `doctor`.

    Attributes:
        name: What was checked: `server`, `list`, `delete` ...
        state: `ok`, `wrong`, or `unknown` (`found` contains the reason).
        cure: How to fix the problem.
    """

    name: str
    state: Literal["ok", "wrong", "unknown"]
    found: str
    cure: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class DoctorResult(Displayed):
    """The result of `doctor` for the location `place`."""

    place: str
    checks: tuple[Check, ...]
    seconds: float
    _displayed = ("place", "well", "checks", "seconds")

    @property
    def well(self) -> bool:
        """Whether no check failed."""
        return all(check.state != "wrong" for check in self.checks)

    def to_json(self) -> dict[str, object]:
        """Return the result as `--json` prints it."""
        checks = [check._asdict() for check in self.checks]
        return {"place": self.place, "well": self.well, "checks": checks, "seconds": round(self.seconds, 3)}
