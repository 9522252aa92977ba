"""`Summary`: a dataset's content as one value, shown by the terminal, `--json` and the HTML page.

If anything can be read, missing or damaged files are listed as problems. Only `verify` checks all bytes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from shardtool.dataset.find import natural_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shardtool.verbs.inspect.statistics import ColumnSummary, Spread


MAX_LABEL_VALUES = 100  # listed per label

_SUMMARY_VERSION = 1

COMBINED_FIELDS = ("dataset", "format", "samples", "size", "field_bytes", "skipped", "complete")


@dataclass(frozen=True, slots=True)
class Problem:
    """A missing or damaged file (`where`), with a `code` for programs."""

    code: str
    where: str
    message: str


@dataclass(frozen=True, slots=True)
class FieldSummary:
    """A field: how it is stored (`kind`), its content type by name, how many samples have it, payload sizes."""

    kind: str
    content: str
    samples: int
    size: Spread


@dataclass(frozen=True, slots=True)
class ImageSummary:
    """The sizes and modes of images. Width and height are those after applying the EXIF orientation.

    Attributes:
        source: `columns` if from the columns width and height, `sampled` if from the headers of some images.
        unreadable: (key, error message) of images that cannot be read.
    """

    source: str
    images: int
    width: Spread
    height: Spread
    modes: Mapping[str, int]
    unreadable: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Label:
    """A value of a label: its name, its class number if any, and the number of samples with it."""

    name: str
    number: int | float | None
    samples: int


@dataclass(frozen=True, slots=True)
class LabelSummary:
    """The distribution of a label."""

    source: str
    samples: int
    sampled: bool
    distinct: int
    values: tuple[Label, ...]


@dataclass(frozen=True, slots=True)
class StatisticsScope:
    """What the statistics cover: the number of samples, of shards, and of shards scanned for lack of a sidecar."""

    samples: int
    shards: int
    walked: int


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The content of a dataset. The names are those of `--json` (docs/json.md).

    Attributes:
        dataset: The dataset file, or the path given.
        size: Bytes of all shards, as listed or found.
        field_bytes: Bytes of all payloads; None if only some sidecars were read and there is no dataset file.
        skipped: Number of samples skipped when the dataset was created.
        complete: Whether all files in the dataset file exist; None without one.
        fingerprint: Content fingerprint; None if unknown.
        made: How the dataset was created, from its dataset file.
        looked: What the statistics below cover.
        images: Image sizes by field, or by the columns they come from.
        labels: Labels by field or column, the likeliest first.
        splits: Maps splits to numbers of samples.
        siblings: Maps the other splits to their dataset files.
        part_of: Number of shards in the whole dataset, if only some were named.
        datasets: For several datasets, the summary of each; the combined summary has only sizes, counts, `complete` and
            `problems`.
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
        """Return the summary as `--json` prints it (docs/json.md)."""
        if self.datasets:
            document: dict[str, object] = {name: getattr(self, name) for name in COMBINED_FIELDS}
            document |= {"problems": [asdict(problem) for problem in self.problems]}
            return {
                "summary_version": _SUMMARY_VERSION,
                **document,
                "datasets": [summary.to_json() for summary in self.datasets],
            }
        document = asdict(self)
        for name in ("datasets", *(("part_of",) if self.part_of is None else ())):
            del document[name]
        return {"summary_version": _SUMMARY_VERSION, **document}


def sort_labels(labels: Iterable[tuple[tuple[str, int | float | None], int]]) -> tuple[Label, ...]:
    """Sort labels by descending count, then by name."""
    sorted_labels = sorted(labels, key=lambda item: (-item[1], natural_key(item[0][0])))
    return tuple(Label(*value, count) for value, count in sorted_labels)
