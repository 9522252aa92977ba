"""Findings: what `verify` finds wrong, as data: a stable code, the place, what was found, and what to do.

`KINDS` is the table of codes; docs/findings.md explains each, with causes and cure.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from shardtool.errors import CorruptShard, ShardError, printable
from shardtool.messages import call_text, choose_text, flag_text, option_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_RENAME_FIX = "Rename one of them in the source, and make the shards anew."
MAX_LISTED_PER_FILE = 100  # findings of one code about one file: the rest says nothing new, and is counted
_MAX_TEXT_CHARS = 1000  # characters of a text: a name in a tar may have a million, and be in a thousand findings


class FindingKind(NamedTuple):
    """The meaning of a code, in a few words, and what to do about it.

    Attributes:
        meaning: A few words.
        cure: What to do; `{resume}` and the like stand for what a message calls the options.
    """

    meaning: str
    cure: str

    @property
    def remedy(self) -> str:
        """What to do, as a message says it."""
        if "{" not in self.cure:
            return self.cure
        source = choose_text("source=...", "--source SOURCE")
        return self.cure.format(
            resume=option_text("if_exists", "resume"),
            repair=call_text("verify", repair=True),
            remake=choose_text(f"`verify(repair=True, {source})`", f"`shardtool verify --repair {source}`"),
            take_in=choose_text(
                "`index([*all_shards], overwrite=True)`", "`shardtool index 'FOLDER/*.tar' --overwrite`"
            ),
            export=choose_text(
                "`export(..., overwrite=True)`", "`shardtool index DATASET --export FORMAT --overwrite`"
            ),
            readme=choose_text("`export(..., 'huggingface')`", "`shardtool index DATASET --export huggingface`"),
            portable=choose_text(f"`create` with {flag_text('portable')}", "`shardtool create --portable`"),
        )


_REPACK_FIX = "Get it again, or make it anew: {remake} or its own command with {resume}."
_REINDEX_FIX = "{repair} makes it again where the shard is proven sound."
_SOURCE_FIX = "If the source is right, run the command that made the dataset again, with {resume}."

FINDING_KINDS = {
    "dataset-file-missing": FindingKind("sidecars, but no dataset file", _REINDEX_FIX),
    "dataset-file-damaged": FindingKind("the dataset file is not what was written", _REINDEX_FIX),
    "dataset-incomplete": FindingKind("fewer shards than their run planned, and no dataset file",
                               "Finish that run: its own command with {resume}; or copy the rest."),
    "totals-differ": FindingKind("the dataset file counts other samples or fields than there are", _REINDEX_FIX),
    "fingerprint-differs": FindingKind("the content is another than the dataset file's fingerprint says", _REPACK_FIX),
    "shard-missing": FindingKind("a shard is not there", _REPACK_FIX),
    "shard-extra": FindingKind("a file of the shard pattern that the dataset file does not list",
                        "Remove it, or take it in: {take_in}."),
    "numbering-gap": FindingKind("a number is missing between shards", "Get the missing shards."),
    "shard-unreadable": FindingKind("a shard cannot be read", "Mend permissions or the disk, or get it again."),
    "shard-size": FindingKind("a shard is longer or shorter than it was written", _REPACK_FIX),
    "shard-checksum": FindingKind("a shard's bytes are not those that were written", _REPACK_FIX),
    "shard-damaged": FindingKind("the framing of a shard is broken: what follows cannot be read", _REPACK_FIX),
    "padding-not-zero": FindingKind("there is something between payloads where zeros belong", _REPACK_FIX),
    "payload-checksum": FindingKind("a payload's bytes are not those that were written", _REPACK_FIX),
    "sidecar-missing": FindingKind("a sidecar is not there", _REINDEX_FIX),
    "sidecar-extra": FindingKind("a sidecar without a shard", "Get its shard, or remove it."),
    "sidecar-size": FindingKind("a sidecar is longer or shorter than it was written", _REINDEX_FIX),
    "sidecar-checksum": FindingKind("a sidecar's bytes are not those that were written", _REINDEX_FIX),
    "sidecar-damaged": FindingKind("a sidecar cannot be read", _REINDEX_FIX),
    "sidecar-stale": FindingKind("a sidecar of another shard", _REINDEX_FIX),
    "index-differs": FindingKind("a sidecar lists other samples than the shard holds", _REINDEX_FIX),
    "key-duplicate": FindingKind("two samples have the same key", _RENAME_FIX),
    "split-leak": FindingKind("a sample of one split that another split has, too",
                       "Leave it out of one of them: `shardtool reshard` with a query makes the shards anew."),
    "field-duplicate": FindingKind("a sample has a field twice", _RENAME_FIX),
    "key-unsafe": FindingKind("a name that could lead out of a folder, steer a terminal, or mean something else",
                       "Do not extract this shard; rename it in the source, and make the shards anew."),
    "member-unsafe": FindingKind("a member besides samples that could do harm where the shard is extracted",
                          "Do not extract this shard; make it anew from its samples: `shardtool reshard`."),
    "readers-differ": FindingKind("a tar header that readers do not read alike",
                           "Make the shard anew from its source, or with `shardtool reshard`: its headers are plain."),
    "skipped-differs": FindingKind("the list of what was left out is not the one in the dataset file",
                            "Run the command that made the dataset again, with {resume}."),
    "image-bad": FindingKind("an image that cannot be decoded", "Mend it in the source, or leave it out."),
    "array-bad": FindingKind("a .npy field that is none", "Mend it in the source, or leave it out."),
    "json-bad": FindingKind("a JSON field that is none", "Mend it in the source, or leave it out."),
    "number-bad": FindingKind("a label that is no number, or none of the classes", "Mend it in the source."),
    "source-missing": FindingKind("a sample or field of the source that the dataset does not have", _SOURCE_FIX),
    "source-extra": FindingKind("a sample or field that the source does not have", _SOURCE_FIX),
    "source-differs": FindingKind("a payload that is another in the source", _SOURCE_FIX),
    "export-stale": FindingKind("an index of another tool that leads into other bytes than its shard's",
                         "{export} makes it again."),
    "target-format": FindingKind("shards that a reader does not read at all", "`shardtool reshard` makes tar shards of them."),
    "target-fields": FindingKind("fields that a reader drops or refuses", "Give every sample the same fields."),
    "target-folder": FindingKind("a folder in which a reader takes other files for the data",
                          "{readme} writes a README.md that names the shards."),
    "target-name": FindingKind("a shard's name that a reader cannot open", "Rename them with `shardtool reshard`."),
    "misread": FindingKind("names that a reader gets wrong", "{portable} makes names safe for all."),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong.

    Attributes:
        code: One of `KINDS`.
        file: The name of the shard, sidecar or dataset file that it is about.
        found: What is there.
        expected: What should be there; empty where that is plain.
        offset: The place in the file, in bytes; None: the finding is about the whole file.
        key: The sample's key; empty where it is about none.
        field: The field's name; empty where it is about none.
    """

    code: str
    file: str
    found: str
    expected: str = ""
    offset: int | None = None
    key: str = ""
    field: str = ""

    def __post_init__(self) -> None:
        for name in ("file", "found", "expected", "key", "field"):
            text = getattr(self, name)
            if len(text) > _MAX_TEXT_CHARS:
                object.__setattr__(self, name, f"{text[:_MAX_TEXT_CHARS]}... ({len(text):,} characters)")

    @property
    def remedy(self) -> str:
        """The remedy."""
        return FINDING_KINDS[self.code].remedy

    @property
    def place(self) -> str:
        """The place, for people."""
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
        """The message, for people."""
        return printable(self.found + (f"; expected {self.expected}" if self.expected else ""))

    def __str__(self) -> str:
        return f"{self.place}: {self.message} [{self.code}]"

    def to_json(self) -> dict[str, object]:
        """Return the finding as data, the way `--json` prints it."""
        names = "code", "file", "offset", "key", "field", "found", "expected"
        values = {name: getattr(self, name) for name in names}
        texts = {name: printable(value) if isinstance(value, str) else value for name, value in values.items()}
        return {**texts, "remedy": self.remedy}


@dataclass(slots=True)
class Findings:
    """The findings of one check, or of all.

    Attributes:
        listed: The number of the shard that each finding is about, and the finding; -1: about the whole dataset. Of
            many alike only the first.
        counts: How often each code was found.
        checked: What was looked at, in words.
        unchecked: What was not, and why.
        uncompared: The fields that were not compared with the source.
    """

    listed: list[tuple[int, Finding]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    checked: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    uncompared: list[str] = field(default_factory=list)
    _alike: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, number: int, *findings: Finding) -> None:
        """Add findings about shard `number`."""
        self.counts.update(one.code for one in findings)
        self._list((number, one) for one in findings)

    def add_first(self, code: str, number: int, total: int, findings: Iterator[Finding]) -> None:
        """Add the first of `total` findings of a code, and count the rest."""
        self._list((number, one) for one in islice(findings, MAX_LISTED_PER_FILE))
        if total:
            self.counts[code] += total

    def take(self, other: Findings) -> None:
        """Add all that another check found."""
        self._list(other.listed)
        self.counts.update(other.counts)
        self.checked += other.checked
        self.unchecked += other.unchecked

    def _list(self, findings: Iterable[tuple[int, Finding]]) -> None:
        for number, one in findings:
            self._alike[one.code, one.file] += 1
            if self._alike[one.code, one.file] <= MAX_LISTED_PER_FILE:
                self.listed.append((number, one))


def finding_from_error(code: str, file: str, error: ShardError) -> Finding:
    """Return the finding that an error is."""
    if isinstance(error, CorruptShard):
        return Finding(code, file, error.problem, error.expected, error.offset)
    return Finding(code, file, error.found, error.expected)


@dataclass(frozen=True, slots=True)
class Report:
    """The result of `verify`.

    Attributes:
        dataset: What was verified: its dataset file, or else its folder.
        findings: What is wrong, in the order of the shards; of many alike only the first.
        counts: How often each code was found.
        checked: What was looked at, in words.
        unchecked: What was not, and why.
        shards: How many there are.
        samples: How many were seen.
        size: The bytes of the shards.
        readable: Whether anything could be read at all.
        repaired: What was mended, in words.
        seconds: How long it took.
        read: With `sample`, how many shards were read, and their bytes; None: all.
        datasets: Where several were verified, the report of each; all else is then of all of them.
        quick: Whether no shard was read.
        uncompared: With `source`, the fields that were not compared with it.
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

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.counts

    def to_json(self) -> dict[str, object]:
        """Return the report as data, the way `--json` prints it; of several datasets, what was found in each."""
        name, parts = ("datasets", self.datasets) if self.datasets else ("findings", self.findings)
        found: dict[str, object] = {name: [one.to_json() for one in parts], "counts": self.counts}
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
