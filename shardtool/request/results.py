"""What the verbs that write return, and what a dataset file records of a run: plain values, for people and programs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, overload

from shardtool.errors import printable
from shardtool.values import Dots, counted
from shardtool.wording import FAMILIES, option, speaks_command_line, typed_words

Value = TypeVar("Value")


class Result:
    """What a verb did: plain values."""

    __slots__ = ()
    _optional: ClassVar[tuple[str, ...]] = ("dry_run",)  # left out of the data where they say nothing

    def to_json(self) -> dict[str, object]:
        """Return the result as data, the way `--json` prints it: tuples as lists, times to the millisecond."""
        found = asdict(self, dict_factory=_as_data)  # type: ignore[call-overload]
        return {name: value for name, value in found.items() if value or name not in self._optional}


def _as_data(items: list[tuple[str, Any]]) -> dict[str, object]:
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
    changes: Changes | None = None
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
class RemovedFrom:
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

    datasets: tuple[RemovedFrom, ...]
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


class LazyList(Sequence[Value]):
    """A sequence whose items are made when they are asked for: there may be millions.

    Args:
        count: How many there are.
        item: Makes one of them, by its place from 0.
    """

    def __init__(self, count: int, item: Callable[[int], Value]) -> None:
        self._places, self._item = range(count), item

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, at: int) -> Value: ...
    @overload
    def __getitem__(self, at: slice) -> list[Value]: ...
    def __getitem__(self, at: int | slice) -> Value | list[Value]:
        return [*map(self._item, self._places[at])] if isinstance(at, slice) else self._item(self._places[at])


class ChangedSample(NamedTuple):
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
        a: What was given.
        b: The same.
        notes: What the user should know.
        seconds: How long it took.
    """

    samples: tuple[int, int]
    added: Sequence[str]
    removed: Sequence[str]
    changed: Sequence[ChangedSample]
    moved: Sequence[MovedSample]
    fields: Mapping[str, int]
    classes: tuple[str, ...] = ()
    a: str = ""
    b: str = ""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not (self.added or self.removed or self.changed or self.moved or self.classes)

    def to_json(self) -> dict[str, object]:
        """Return the result as data, the way `--json` prints it."""
        return {
            "a": {"dataset": self.a, "samples": self.samples[0]},
            "b": {"dataset": self.b, "samples": self.samples[1]},
            "same": self.same,
            "counts": {name: len(getattr(self, name)) for name in ("added", "removed", "changed", "moved")},
            "fields": dict(self.fields),
            "classes": list(self.classes),
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


# Progress and notes of a run.


class Observer:
    """Gets the progress and the notes of a run, in the parent process, and ignores them: override what you need."""

    def note(self, text: str) -> None:
        """Take something that the user should know before a byte is written."""

    def log(self, text: str) -> None:
        """Take a detail."""

    def shard(self, name: str, done: str, samples: int, size: int) -> None:
        """Take that a shard is done, what was done with it, and what it holds, its size in bytes."""
        self.log(f"{name}: {done}, {samples:,} samples, {size:,} bytes")

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


# What a dataset file records of a run: the verb, the source's name, the options, and what was appended since.


_OF_SHARDS = ("max_size", "max_count", "equal_count", "shards_multiple_of", "oversize", "shuffle", "shards", "place")


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run of a verb as a dataset file records it, or an append: plain data, never executed or opened.

    Attributes:
        document: The JSON object, checked by `read_dataset`. It goes into a dataset file as it is, with names that
            this program does not know.
    """

    document: Mapping[str, object]

    @property
    def verb(self) -> str:
        """`create`, `reshard` or `index`; empty: not recorded."""
        return self._text("verb")

    @property
    def source(self) -> str:
        """The name of the source, or the names of several after commas; empty: not recorded."""
        return self._text("source")

    @property
    def split(self) -> str:
        """The split that the run made; empty: it made no splits."""
        return self._text("split")

    @property
    def tool(self) -> str:
        """The program and its version; empty: not recorded."""
        return self._text("tool")

    @property
    def options(self) -> dict[str, object]:
        """The options that were given."""
        found = self.document.get("options")
        return found if isinstance(found, dict) else {}

    @property
    def choosing(self) -> dict[str, object]:
        """The options that choose samples and make their fields: not those of shards, and of keys that are there."""
        others = {*_OF_SHARDS, "on_duplicate", *(() if "split" in self.options else ("seed",))}
        return {name: value for name, value in self.options.items() if name not in others}

    @property
    def removed(self) -> int:
        """How many samples `remove` has taken out since."""
        found = self.document.get("removed")
        return found if type(found) is int else 0

    @property
    def dots(self) -> Dots:
        """The dot at which keys end in the names of a tar's members."""
        return "last" if self.options.get("dots") == "last" else "first"

    @property
    def appended(self) -> tuple[RunRecord, ...]:
        """The runs that appended samples since."""
        runs = self.document.get("appended")
        return tuple(map(RunRecord, runs)) if isinstance(runs, list) else ()

    def as_append_to(self, first: RunRecord) -> RunRecord:
        """Return the record of this run among `appended` of the first: alike for all splits of one run."""
        skipped = "split" if self.split == first.split else ""
        return RunRecord({name: value for name, value in self.document.items() if name != skipped})

    def with_append(self, run: RunRecord) -> RunRecord:
        """Return this record with one more append."""
        runs = [one.document for one in (*self.appended, run.as_append_to(self))]
        return RunRecord({**self.document, "appended": runs})

    def is_new_of(self, first: RunRecord) -> bool:
        """Tell whether this append packed what was new in the source of the first run, chosen and named alike."""
        only_new = self.options.get("on_duplicate") == "first"
        alike = (self.source, self.choosing) == (first.source, first.choosing)
        return only_new and alike and self.verb == first.verb and self.verb in ("create", "reshard")

    def is_split_with(self, other: RunRecord) -> bool:
        """Tell whether the same run made both, for two splits; what became of one of them since is no matter."""
        mine, theirs = ({**one.document, "split": "", "appended": [], "removed": 0} for one in (self, other))
        return mine == theirs and self.split != other.split and bool(self.split and other.split)

    def _text(self, name: str) -> str:
        found = self.document.get(name)
        return found if isinstance(found, str) else ""


# What a recorded run was asked for, as a command line: for people who want to do it again.


_NOT_IN_QUOTES = re.compile(r'["\\$`]|!(?![= ])')


def command_line(run: RunRecord) -> str:
    """Return what was asked for, without the output."""
    is_reshard = run.verb == "reshard"
    words = [run.verb or "?", *(run.source.split(", ") if is_reshard else filter(None, [run.source]))]
    options = {**run.options}
    if options.pop("descending", False):
        options["sort_by"] = f"-{options.get('sort_by', '')}"
    for name, value in options.items():
        if not (is_reshard and name == "dots"):  # found in the source, not asked for
            words += typed_words(name, value)
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    """Return a word as a shell takes it."""
    return f'"{word}"' if "'" in word and not _NOT_IN_QUOTES.search(word) else shlex.quote(word)


# How two runs differ, for messages.


def differing_options(then: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """Return the options in which two runs differ, with what each was given."""
    names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    called = {name: name if name == "format" else option(name) for name in names}  # the shards say it
    return [f"{called[name]} {_given(name, then.get(name))} then, {_given(name, now.get(name))} now" for name in names]


def _given(name: str, value: object) -> str:
    if isinstance(value, list) and name in FAMILIES and speaks_command_line():
        return typed_words(name, value)[-1][:80]
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return "not given" if value is None else "given" if value is True else text[:80]
