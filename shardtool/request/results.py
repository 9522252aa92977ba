"""What the verbs that write return: plain values, for people and programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING

from shardtool.errors import printable
from shardtool.values import counted

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """A shard of a dry run; `size` is the finished file's bytes."""

    name: str
    samples: int
    size: int
    first_key: str
    last_key: str


@dataclass(frozen=True, slots=True)
class Changes:
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
        return f"would keep {counts}; add {self.samples_added:,} and remove {counted(self.samples_removed, 'sample')}"


@dataclass(frozen=True, slots=True)
class DryRun:
    """The shards that `create` would write, of all splits. `changes`: what a resume would change."""

    dataset_file: str
    shards: tuple[PlannedShard, ...]
    skipped: int
    notes: tuple[str, ...]
    changes: Changes | None = None

    def to_json(self) -> dict[str, object]:
        """Return the plan as data, the way `--json` prints it."""
        changes = {} if self.changes is None else {"changes": asdict(self.changes)}
        return {
            "dry_run": True,
            "dataset_file": self.dataset_file,
            "shards": [{one.name: getattr(shard, one.name) for one in fields(PlannedShard)} for shard in self.shards],
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
class SplitResult:
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

    def to_json(self) -> dict[str, object]:
        """Return it as data."""
        return {name: value for name, value in asdict(self).items() if value or name != "urls"}


@dataclass(frozen=True, slots=True)
class AppendedPart:
    """The part that a run has added to existing datasets; see `CreateResult`."""

    shards: int
    samples: int
    size: int


@dataclass(frozen=True, slots=True)
class CreateResult:
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
    changes: Changes | None = None
    part: str = ""
    merged: bool = False

    def to_json(self) -> dict[str, object]:
        """Return the result as data, the way `--json` prints it; what was not asked for is left out."""
        found: dict[str, object] = {one.name: getattr(self, one.name) for one in fields(self)}
        found |= {"notes": list(self.notes), "seconds": round(self.seconds, 3), "features": dict(self.features)}
        found["exported"] = list(self.exported)
        found["splits"] = {name: split.to_json() for name, split in self.splits.items()}
        found["appended"] = None if self.appended is None else asdict(self.appended)
        found["changes"] = None if self.changes is None else asdict(self.changes)
        optional = ("dropped", "features", "urls", "splits", "appended", "exported", "changes", "part")
        if not self.part:
            del found["merged"]
        return {name: value for name, value in found.items() if value or name not in optional}


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
class IndexResult:
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

    def to_json(self) -> dict[str, object]:
        """Return the result as data, the way `--json` prints it."""
        return asdict(self) | {"notes": list(self.notes)}


@dataclass(frozen=True, slots=True)
class ExportResult:
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

    def to_json(self) -> dict[str, object]:
        """Return the result as data, the way `--json` prints it."""
        return asdict(self)


# Progress and notes of a run.


class Observer:
    """Gets the progress and the notes of a run, in the parent process, and ignores them: override what you need."""

    def note(self, text: str) -> None:
        """Take something that the user should know before a byte is written."""

    def log(self, text: str) -> None:
        """Take a detail."""

    def listed(self, samples: int) -> None:
        """Take how many more samples were found."""

    def phase(self, text: str, size: int) -> None:
        """Take what is done before `start`, and how many bytes that takes; they come by `advance`."""

    def start(self, samples: int, size: int, shards: int) -> None:
        """Take how much there is to do, sizes in bytes."""

    def failed(self, samples: int) -> None:
        """Take how many of the samples that `advance` takes next could not be fetched."""

    def advance(self, samples: int, size: int, shards: int) -> None:
        """Take how much more is done."""


class Notes:
    """The notes of a run for the user: given to the observer at once, and kept in order for its result.

    Args:
        observer: Gets each note at once.
    """

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.said: list[str] = []

    def add(self, *notes: str) -> None:
        """Give notes to the user, now and in the result."""
        for note in map(printable, notes):
            self.said.append(note)
            self.observer.note(note)

    def add_new(self, note: str) -> None:
        """Give a note to the user, unless it was given before."""
        if printable(note) not in self.said:
            self.add(note)
