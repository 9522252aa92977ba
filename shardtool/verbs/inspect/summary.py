"""`Summary`: the content of a dataset as one value, which the terminal, `--json` and the page show.

Missing or damaged files are problems in it, as long as anything can be read. Only `verify` checks that a dataset is
complete.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from shardtool.dataset.find import natural_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shardtool.verbs.inspect.statistics import ColumnSummary, Spread


MAX_LABEL_VALUES = 100  # of a label, in a summary


_SUMMARY_VERSION = 1


COMBINED_FIELDS = ("dataset", "format", "samples", "size", "field_bytes", "skipped", "complete")  # of several datasets


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is missing or damaged: `code` is for programs, `where` a file."""

    code: str
    where: str
    message: str


@dataclass(frozen=True, slots=True)
class FieldSummary:
    """A field: what it holds by its name, how it is stored (`kind`), how many samples have it, bytes of payloads."""

    kind: str
    content: str
    samples: int
    size: Spread


@dataclass(frozen=True, slots=True)
class ImageSummary:
    """Images: where the numbers are from (`columns`, or `sampled` headers), how many, and what they are.

    Attributes:
        source: `columns` or `sampled`.
        images: How many the numbers are about.
        width: As a viewer shows them.
        height: As a viewer shows them.
        modes: Pillow's mode to how many images have it.
        unreadable: (key, what is wrong) of those that are no image.
    """

    source: str
    images: int
    width: Spread
    height: Spread
    modes: Mapping[str, int]
    unreadable: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Label:
    """A value of a label: what it is called, its number where it is a class's, and how many samples have it."""

    name: str
    number: int | float | None
    samples: int


@dataclass(frozen=True, slots=True)
class LabelSummary:
    """The distribution of a label.

    Attributes:
        source: `field` or `column`.
        samples: How many were counted.
        sampled: Whether these are only some.
        distinct: How many values there are.
        values: The most frequent ones, most frequent first.
    """

    source: str
    samples: int
    sampled: bool
    distinct: int
    values: tuple[Label, ...]


@dataclass(frozen=True, slots=True)
class StatisticsScope:
    """The scope of the statistics: how many samples and shards of all, and how many shards had to be walked."""

    samples: int
    shards: int
    walked: int


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The content of a dataset.

    Attributes:
        dataset: What was given; of a dataset file, its path.
        dataset_file: Its path; None where there is none.
        name: The name of the dataset; None without a dataset file.
        format: `tar` or `tfrecord`.
        samples: In all shards.
        size: Bytes of all shards that are there, or are listed.
        field_bytes: Bytes of all payloads; None where only some sidecars were read and there is no dataset file.
        skipped: What was left out, when it was made.
        complete: Whether all that the dataset file lists is there; None without one.
        problems: What is missing or damaged.
        fingerprint: The hash of the content; None where unknown.
        made: How it was made, as the dataset file has it.
        looked: What the statistics below are about.
        shard_sizes: Bytes.
        shard_samples: Counts.
        fields: By name.
        images: By field, or by the columns they are from.
        labels: By field or column, the likeliest first.
        splits: Split to how many samples have it.
        siblings: The other splits' dataset files, beside this one: split to file name.
        columns: The metadata.
        part_of: How many shards the dataset has of which some were named; None: all of it was.
        datasets: Where several were given, the summary of each. Of what is above, all of them have sizes and counts,
            `complete` and `problems`; the rest is in `datasets`.
    """

    dataset: str
    dataset_file: str | None = None
    name: str | None = None
    format: str
    samples: int
    size: int
    field_bytes: int | None
    skipped: int
    complete: bool | None
    problems: tuple[Problem, ...]
    fingerprint: str | None = None
    made: Mapping[str, object] | None = None
    looked: StatisticsScope
    shard_sizes: Spread
    shard_samples: Spread
    fields: Mapping[str, FieldSummary] = field(default_factory=dict)
    images: Mapping[str, ImageSummary] = field(default_factory=dict)
    labels: Mapping[str, LabelSummary] = field(default_factory=dict)
    splits: Mapping[str, int] = field(default_factory=dict)
    siblings: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, ColumnSummary] = field(default_factory=dict)
    part_of: int | None = None
    datasets: tuple[Summary, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the summary as data, the way `--json` prints it (docs/json.md)."""
        if self.datasets:
            found: dict[str, object] = {name: getattr(self, name) for name in COMBINED_FIELDS}
            found |= {"problems": [asdict(one) for one in self.problems]}
            return {"summary_version": _SUMMARY_VERSION, **found, "datasets": [one.to_json() for one in self.datasets]}
        found = asdict(self)
        for name in ("datasets", *(("part_of",) if self.part_of is None else ())):
            del found[name]
        return {"summary_version": _SUMMARY_VERSION, **found}


def sort_labels(labels: Iterable[tuple[tuple[str, int | float | None], int]]) -> tuple[Label, ...]:
    """Return labels, most frequent first; of equally many, by name."""
    found = sorted(labels, key=lambda one: (-one[1], natural_key(one[0][0])))
    return tuple(Label(*called, count) for called, count in found)
