"""The findings and the report of `verify`. docs/findings.md explains each finding code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import field
from itertools import islice
from typing import ClassVar, NamedTuple

from shardtool.dataclass import dataclass
from shardtool.errors import CorruptShard, ShardError, printable
from shardtool.messages import call_text, choose_text, flag_text
from shardtool.notebook import Displayed

_RENAME_FIX = "Rename one of them in the source, and recreate the shards."
MAX_LISTED_PER_FILE = 100  # and per finding code; further findings are only counted
_MAX_TEXT_CHARS = 1000  # a name in a tar may have a million characters, and occur in many findings


class FindingKind(NamedTuple):
    """The meaning of a finding code, and its fix.

    Attributes:
        fix: What to do, with placeholders such as `{resume}` for options and commands.
    """

    meaning: str
    fix: str

    @property
    def remedy(self) -> str:
        """The fix, as text for the command line or for Python."""
        if "{" not in self.fix:
            return self.fix
        source = choose_text("source=...", "--source SOURCE")
        return self.fix.format(
            resume=flag_text("resume"),
            repair=call_text("verify", repair=True),
            remake=choose_text(f"`verify(repair=True, {source})`", f"`shardtool verify --repair {source}`"),
            add_shards=choose_text(
                "`index([*all_shards], overwrite=True)`", "`shardtool index 'FOLDER/*.tar' --overwrite`"
            ),
            export=choose_text(
                "`export(..., overwrite=True)`", "`shardtool index DATASET --export FORMAT --overwrite`"
            ),
            readme=choose_text("`export(..., 'huggingface')`", "`shardtool index DATASET --export huggingface`"),
            portable=choose_text(f"`create` with {flag_text('portable')}", "`shardtool create --portable`"),
        )


_REPACK_FIX = "Restore the file from a copy, or recreate it: {remake}, or rerun the original command with {resume}."
_REINDEX_FIX = "{repair} rebuilds the file from verified shards."
_SOURCE_FIX = "If the source is right, rerun the command that created the dataset with {resume}."
_MEANINGS_AND_FIXES = {
    "dataset-file-missing": ("sidecars exist, but no valid dataset file",
        _REINDEX_FIX + " To replace a damaged dataset file, rerun the original command with {resume}."),
    "dataset-file-damaged": ("the dataset file is damaged", _REINDEX_FIX),
    "dataset-incomplete": ("fewer shards than planned, and no dataset file",
        "Rerun the original command with {resume}, or copy the missing shards."),
    "totals-differ": ("counts or keys in the dataset file differ from the shards", _REINDEX_FIX),
    "fingerprint-differs": ("the content differs from the dataset file's fingerprint", _REPACK_FIX),
    "shard-missing": ("a shard does not exist", _REPACK_FIX),
    "shard-extra": ("a file has a shard name of the dataset, but the dataset file does not list it",
        "Delete it, or add it to the dataset: {add_shards}."),
    "numbering-gap": ("a shard number is missing", "Copy the missing shards."),
    "shard-unreadable": ("a shard cannot be read", "Fix permissions or the disk, or restore the shard from a copy."),
    "shard-size": ("a shard is longer or shorter than when it was written", _REPACK_FIX),
    "shard-checksum": ("a shard's bytes differ from when it was written", _REPACK_FIX),
    "shard-damaged": ("the structure of a shard is broken; the rest cannot be read", _REPACK_FIX),
    "padding-not-zero": ("padding between payloads contains nonzero bytes", _REPACK_FIX),
    "payload-checksum": ("a payload's bytes differ from when it was written", _REPACK_FIX),
    "sidecar-missing": ("a sidecar does not exist", _REINDEX_FIX),
    "sidecar-extra": ("a sidecar without a shard", "Copy its shard, or delete the sidecar."),
    "sidecar-size": ("a sidecar is longer or shorter than when it was written", _REINDEX_FIX),
    "sidecar-checksum": ("a sidecar's bytes differ from when it was written", _REINDEX_FIX),
    "sidecar-damaged": ("a sidecar cannot be read", _REINDEX_FIX),
    "sidecar-stale": ("a sidecar describes another shard", _REINDEX_FIX),
    "index-differs": ("a sidecar lists other samples than its shard contains", _REINDEX_FIX),
    "key-duplicate": ("two samples have the same key", _RENAME_FIX),
    "split-leak": ("two splits contain the same sample",
        "Use `shardtool reshard` with a query to exclude it from one of the splits."),
    "field-duplicate": ("a sample has a field twice", _RENAME_FIX),
    "key-unsafe": ("a key or field name that is dangerous as a path or on a terminal, or that readers reserve",
        "Do not extract this shard. Rename the file in the source, and recreate the shards."),
    "member-unsafe": ("a tar member that belongs to no sample and is dangerous to extract",
        "Do not extract this shard. `shardtool reshard` copies only the samples."),
    "readers-differ": ("a tar header that tools interpret differently",
        "Recreate the shard from its source, or with `shardtool reshard`."),
    "skipped-differs": ("the list of skipped samples differs from the dataset file",
        "Rerun the command that created the dataset with {resume}."),
    "image-bad": ("an image that cannot be decoded", "Fix it in the source, or exclude it."),
    "array-bad": ("an invalid .npy field", "Fix it in the source, or exclude it."),
    "json-bad": ("an invalid JSON field", "Fix it in the source, or exclude it."),
    "number-bad": ("a label that is not a number, or not a class number", "Fix it in the source."),
    "source-missing": ("a sample or field of the source is not in the dataset", _SOURCE_FIX),
    "source-extra": ("a sample or field is not in the source", _SOURCE_FIX),
    "source-differs": ("a payload differs from the source", _SOURCE_FIX),
    "export-stale": ("an index of another tool does not match its shard", "{export} recreates it."),
    "target-format": ("shards in a format that a reader cannot read", "`shardtool reshard` converts them to tar."),
    "target-fields": ("fields that a reader drops or refuses", "Give every sample the same fields."),
    "target-folder": ("a reader that opens this folder would load other files instead of the shards",
        "{readme} writes a README.md that lists the shards."),
    "target-name": ("a shard name that a reader cannot open", "Rename them with `shardtool reshard`."),
    "misread": ("names that a reader misreads", "{portable} writes names that all readers accept."),
}  # fmt: skip
FINDING_KINDS = {code: FindingKind(*kind) for code, kind in _MEANINGS_AND_FIXES.items()}


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem in a file.

    Attributes:
        offset: Offset of the problem in bytes, or None for the whole file.
    """

    code: str
    file: str
    found: str
    expected: str = ""
    offset: int | None = None
    key: str = ""
    field: str = ""
    # in HTML
    _displayed: ClassVar = ("code", "place", "message", "remedy")

    def __post_init__(self) -> None:
        for name in ("file", "found", "expected", "key", "field"):
            text = getattr(self, name)
            if len(text) > _MAX_TEXT_CHARS:
                object.__setattr__(self, name, f"{text[:_MAX_TEXT_CHARS]}... ({len(text):,} characters)")

    @property
    def remedy(self) -> str:
        """How to fix the problem."""
        return FINDING_KINDS[self.code].remedy

    @property
    def place(self) -> str:
        """The file, offset, key and field as text for messages."""
        parts = [self.file]
        if self.offset is not None:
            parts.append(f"at {self.offset:,}")
        if self.key:
            parts.append(f"{self.key}.{self.field}" if self.field else self.key)
        elif self.field:
            parts.append(f"field {self.field}")
        return printable(": ".join(parts))

    @property
    def message(self) -> str:
        """The problem and what was expected, in one line."""
        return printable(self.found + (f"; expected {self.expected}" if self.expected else ""))

    def __str__(self) -> str:
        return f"{self.place}: {self.message} [{self.code}]"

    def to_json(self) -> dict[str, object]:
        """Return the finding as `--json` prints it."""
        names = "code", "file", "offset", "key", "field", "found", "expected"
        values = {name: getattr(self, name) for name in names}
        texts = {name: printable(value) if isinstance(value, str) else value for name, value in values.items()}
        return {**texts, "remedy": self.remedy}


@dataclass(slots=True)
class Findings:
    """Findings of one or more checks.

    Attributes:
        listed: Pairs of a shard number (-1 for the whole dataset) and a finding.
        counts: Number of findings by code, including unlisted findings.
    """

    listed: list[tuple[int, Finding]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    checked: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    uncompared: list[str] = field(default_factory=list)
    _count_by_code_and_file: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, number: int, findings: Iterable[Finding]) -> None:
        """Add findings about shard `number`."""
        for finding in findings:
            self.counts[finding.code] += 1
            self._list(number, finding)

    def add_first(self, code: str, number: int, total: int, findings: Iterator[Finding]) -> None:
        """Count `total` findings with the same code, and list the first `MAX_LISTED_PER_FILE`."""
        for finding in islice(findings, MAX_LISTED_PER_FILE):
            self._list(number, finding)
        if total:
            self.counts[code] += total

    def merge(self, other: Findings) -> None:
        """Add the findings of another check."""
        for number, finding in other.listed:
            self._list(number, finding)
        self.counts.update(other.counts)
        self.checked += other.checked
        self.unchecked += other.unchecked
        self.uncompared += other.uncompared

    def _list(self, number: int, finding: Finding) -> None:
        self._count_by_code_and_file[finding.code, finding.file] += 1
        if self._count_by_code_and_file[finding.code, finding.file] <= MAX_LISTED_PER_FILE:
            self.listed.append((number, finding))


def finding_from_error(code: str, file: str, error: ShardError) -> Finding:
    """Create a finding from an error about a file."""
    if isinstance(error, CorruptShard):
        return Finding(code, file, error.problem, error.expected, error.offset)
    return Finding(code, file, error.found, error.expected)


@dataclass(frozen=True, slots=True, repr=False)
class Report(Displayed):
    """The result of `verify`.

    Attributes:
        findings: Problems in the order of the shards, up to `MAX_LISTED_PER_FILE` for each code and file.
        read: Number and total size of the shards that `sample` selected, or None without `sample`.
        datasets: If several datasets were verified, one report for each; other attributes cover all datasets.
        uncompared: Fields that were not compared with `source`.
    """

    dataset: str
    findings: tuple[Finding, ...]
    counts: dict[str, int]
    checked: tuple[str, ...]
    unchecked: tuple[str, ...]
    shards: int
    samples: int
    size: int
    readable: bool = True
    repaired: tuple[str, ...] = ()
    seconds: float = 0.0
    read: tuple[int, int] | None = None
    datasets: tuple[Report, ...] = ()
    quick: bool = False
    uncompared: tuple[str, ...] = ()
    _displayed = (
        "dataset", "sound", "findings", "counts", "shards", "samples", "size", "unchecked", "uncompared", "repaired",
        "datasets", "seconds",
    )  # fmt: skip

    @property
    def sound(self) -> bool:
        """Whether the dataset has no findings."""
        return not self.counts

    def to_json(self) -> dict[str, object]:
        """Return the report as `--json` prints it."""
        name, parts = ("datasets", self.datasets) if self.datasets else ("findings", self.findings)
        found: dict[str, object] = {name: [part.to_json() for part in parts], "counts": self.counts}
        if not self.datasets:
            found |= {name: list(getattr(self, name)) for name in ("checked", "unchecked", "repaired")}
        return {
            "dataset": printable(self.dataset),
            "sound": self.sound,
            **({"uncompared": [*map(printable, self.uncompared)]} if self.uncompared else {}),
            **({"quick": True} if self.quick else {}),
            **found,
            "totals": {"shards": self.shards, "samples": self.samples, "size": self.size},
            **({} if self.read is None else {"read": dict(zip(("shards", "size"), self.read, strict=True))}),
            "seconds": round(self.seconds, 3),
        }
