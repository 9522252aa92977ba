"""Describe a dataset for the terminal, `--json` and the HTML page."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from shardtool.dataclass import dataclass
from shardtool.dataset.find import natural_key
from shardtool.entries.arrow import is_list_type
from shardtool.errors import printable, redact_secrets
from shardtool.names import to_output_name
from shardtool.notebook import Displayed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray


def printable_path(path: str) -> str:
    """Return a path without secrets and control characters."""
    return redact_secrets(printable(to_output_name(path)))


Value = TypeVar("Value")


_MAX_EXACT_VALUES = 2**17  # up to this many values, the median is exact
_BUCKET_BITS = 10  # for more values, each is rounded to this many bits, so the median's error is below 0.2 %
_BUCKETS_PER_OCTAVE = 64
_MAX_DISTINCT_VALUES = 10_000
_MAX_VALUE_CHARS = 200


@dataclass(frozen=True, slots=True)
class Spread:
    """Count, smallest, median, largest and sum of numbers."""

    count: int
    smallest: int
    median: int
    largest: int
    total: int


class SizeTally:
    """Collects non-negative numbers, and computes their `Spread`."""

    def __init__(self) -> None:
        self._count = self._total = self._largest = 0
        self._smallest = 2**64
        self._kept: list[NDArray[np.uint64]] = []
        self._kept_count = 0
        self._buckets = Counter[int]()

    def add(self, values: NDArray[np.uint64]) -> None:
        """Add numbers."""
        if not len(values):
            return
        self._count += len(values)
        largest = int(values.max())
        fits_int64 = largest < 2**62 // len(values)
        self._total += int(values.sum()) if fits_int64 else sum(values.tolist())
        self._smallest, self._largest = min(self._smallest, int(values.min())), max(self._largest, largest)
        self._kept.append(values)
        self._kept_count += len(values)
        if self._kept_count > _MAX_EXACT_VALUES:
            self._fold()

    def _fold(self) -> None:
        values = np.concatenate(self._kept)
        self._kept, self._kept_count = [], 0
        shift = np.maximum(np.frexp(values.astype(np.float64))[1] - _BUCKET_BITS, 0).astype(np.uint64)
        buckets, counts = np.unique((shift << np.uint64(_BUCKET_BITS + 1)) | (values >> shift), return_counts=True)
        self._buckets.update(dict(zip(buckets.tolist(), counts.tolist(), strict=True)))

    def spread(self) -> Spread:
        """Return the statistics so far."""
        if not self._count:
            return Spread(0, 0, 0, 0, 0)
        return Spread(self._count, self._smallest, self._median(), self._largest, self._total)

    def _median(self) -> int:
        if not self._buckets:
            return int(np.sort(np.concatenate(self._kept))[self._count // 2])
        if self._kept:
            self._fold()
        remaining = self._count // 2
        for bucket in sorted(self._buckets):
            remaining -= self._buckets[bucket]
            if remaining < 0:
                break
        return max(self._smallest, min(self._largest, _bucket_middle(bucket)))

    def histogram(self, max_bars: int) -> list[tuple[float, float, int]]:
        """Return up to `max_bars` bars (from, to, count) of the positive numbers, equally wide on a log scale."""
        middles = np.array([_bucket_middle(bucket) for bucket in self._buckets], np.uint64)
        values = np.concatenate([*self._kept, middles])
        counts = np.concatenate([np.ones(self._kept_count, np.int64), np.array([*self._buckets.values()], np.int64)])
        steps = (np.log2(values[values > 0].astype(np.float64)) * _BUCKETS_PER_OCTAVE).astype(np.int64)
        if not len(steps):
            return []
        first = int(steps.min())
        width = max(_BUCKETS_PER_OCTAVE // 16, -(-(int(steps.max()) + 1 - first) // max_bars))
        heights = np.zeros((int(steps.max()) - first) // width + 1, np.int64)
        np.add.at(heights, (steps - first) // width, counts[values > 0])
        starts = range(first, first + width * len(heights), width)
        return [
            (2 ** (start / _BUCKETS_PER_OCTAVE), 2 ** ((start + width) / _BUCKETS_PER_OCTAVE), count)
            for start, count in zip(starts, heights.tolist(), strict=True)
        ]


def _bucket_middle(bucket: int) -> int:
    shift = bucket >> (_BUCKET_BITS + 1)
    low: int = (bucket & (2 ** (_BUCKET_BITS + 1) - 1)) << shift
    return low + (1 << shift >> 1)


class ValueCounts(Generic[Value]):
    """Counts of values. `values` becomes None if there are too many values, or a value is too long."""

    def __init__(self, max_values: int = _MAX_DISTINCT_VALUES) -> None:
        self._max_values = max_values
        self.values: dict[Value, int] | None = {}

    def add(self, values: Iterable[tuple[Value, int]]) -> None:
        """Add (value, count) pairs."""
        if self.values is None:
            return
        for value, count in values:
            if isinstance(value, str) and len(value) > _MAX_VALUE_CHARS:
                self.values = None
                return
            self.values[value] = self.values.get(value, 0) + count
        if len(self.values) > self._max_values:
            self.values = None

    def add_array(self, values: pa.Array) -> None:
        """Add the values of an Arrow array without nulls."""
        if self.values is None:
            return
        counts = values.value_counts()
        if len(counts) > self._max_values:
            self.values = None
            return
        names = counts.field("values")
        names = names.dictionary_decode() if pt.is_dictionary(names.type) else names
        self.add(zip(names.to_pylist(), counts.field("counts").to_pylist(), strict=True))

    def most_frequent(self) -> list[tuple[Value, int]]:
        """Return (value, count) pairs, in descending order of count."""
        return sorted((self.values or {}).items(), key=lambda item: (-item[1], natural_key(str(item[0]))))


@dataclass(frozen=True, slots=True)
class ColumnValue:
    """A value of a column, and the number of samples with this value."""

    value: str
    samples: int


@dataclass(frozen=True, slots=True)
class ColumnSummary:
    """The statistics of a metadata column.

    Attributes:
        values: The most frequent values. Empty if all values differ or were not counted.
    """

    type: str
    filled: int = 0
    distinct: int | None = None
    smallest: int | float | str | None = None
    largest: int | float | str | None = None
    mean: float | None = None
    values: tuple[ColumnValue, ...] = ()
    element: str | None = None
    lengths: Spread | None = None


def is_scalar_type(kind: pa.DataType) -> bool:
    """Return whether a type is a number, string, boolean or time."""
    is_number = pt.is_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind)
    return bool(is_number or pt.is_string(kind) or pt.is_temporal(kind))


class ColumnTally:
    """Collects the values of a metadata column, and computes a `ColumnSummary`."""

    def __init__(self, kind: str) -> None:
        self.type, self.filled, self.counts = kind, 0, ValueCounts[object]()
        self._element, self._lengths = "null", SizeTally()
        self._ends: list[Any] = []
        self._total, self._numbers, self._counted = 0.0, 0, False
        self._kinds: set[str] = set()

    def add_type(self, kind: str) -> None:
        """Merge the column's type in another shard into `type`."""
        self.type = _join_types(self.type, kind)

    def add(self, values: pa.ChunkedArray) -> None:
        """Add one shard's values of a type that is not nested."""
        values = values.combine_chunks()
        kind = values.type
        self.filled += len(values) - values.null_count
        values = values.drop_null()
        if not len(values):
            return
        is_number = pt.is_integer(kind) or pt.is_floating(kind)
        self._kinds.add("number" if is_number else "time" if pt.is_temporal(kind) else "other")
        if is_number:
            self._add_numbers(values)
        elif pt.is_temporal(kind):
            self._add_ends(values.cast(pa.string()))
            return
        self._counted = True
        if not pt.is_floating(kind):
            self.counts.add_array(values)

    def add_nested(self, values: pa.ChunkedArray) -> None:
        """Add one shard's values of a nested type."""
        import pyarrow.compute as pc

        kind, count = values.type, len(values) - values.null_count
        if not count:
            return
        self.filled += count
        self._kinds.add("nested")
        if is_list_type(kind):
            self._element = _join_types(self._element, str(kind.value_type))
            self._lengths.add(pc.list_value_length(values).drop_null().to_numpy().astype(np.uint64))

    def _add_numbers(self, values: pa.Array) -> None:
        import pyarrow.compute as pc

        if pt.is_floating(values.type):
            values = values.filter(pc.is_finite(values))
            self.counts.values = None
        if len(values):
            self._add_ends(values)
            self._total += float(values.cast(pa.float64(), safe=False).sum().as_py())
            self._numbers += len(values)

    def _add_ends(self, values: pa.Array) -> None:
        import pyarrow.compute as pc

        self._ends += pc.min_max(values).as_py().values()

    def summary(self, max_values: int) -> ColumnSummary:
        """Return the statistics so far, with at most `max_values` values."""
        counted = self.counts.values if self._counted and "nested" not in self._kinds else None
        is_uniform = len(self._kinds) == 1  # numbers and times have no common minimum
        low, high = (min(self._ends), max(self._ends)) if is_uniform and self._ends else (None, None)
        mean = self._total / self._numbers if self._numbers and is_uniform else None
        frequent = self.counts.most_frequent()[:max_values] if counted and len(counted) < self.filled else []
        values = tuple(ColumnValue(str(value), count) for value, count in frequent)
        distinct = None if counted is None else len(counted)
        lengths = self._lengths.spread()
        summary = ColumnSummary(self.type, self.filled, distinct, low, high, mean, values)
        return replace(summary, element=self._element, lengths=lengths) if lengths.count else summary


def _join_types(types: str, kind: str) -> str:
    names = [name for name in types.split(" or ") if name != "null"]
    return types if kind == "null" or kind in names else " or ".join([*names, kind])


MAX_LABEL_VALUES = 100
_SUMMARY_VERSION = 1
COMBINED_FIELDS = ("dataset", "format", "samples", "size", "field_bytes", "skipped", "complete")


@dataclass(frozen=True, slots=True)
class Problem:
    """A missing or damaged file. `where` is its path. docs/json.md lists the values of `code`."""

    code: str
    where: str
    message: str


@dataclass(frozen=True, slots=True)
class FieldSummary:
    """The statistics of a field."""

    kind: str
    content: str
    samples: int
    size: Spread


@dataclass(frozen=True, slots=True)
class ImageSummary:
    """The sizes and modes of images, after applying the EXIF orientation."""

    source: str
    images: int
    width: Spread
    height: Spread
    modes: Mapping[str, int]
    unreadable: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Label:
    """A label value, its class number or None, and the number of samples with this label."""

    name: str
    number: int | float | None
    samples: int
    _displayed = ("name", "samples")


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
    """How many samples and shards the statistics cover. `walked` counts shards without a sidecar."""

    samples: int
    shards: int
    walked: int


@dataclass(frozen=True, kw_only=True, repr=False)
class Summary(Displayed):
    """The content of a dataset. `--json` prints the attributes under the same names. docs/json.md describes them.

    Attributes:
        field_bytes: Bytes of all payloads, or None if unknown because some sidecars were not read.
        part_of: Number of shards in the whole dataset, if the user named only some.
        datasets: The summaries of several datasets. The combined summary has only sizes, counts, `complete` and
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
    _displayed = (
        "dataset", "name", "format", "samples", "size", "skipped", "complete", "problems", "fields", "labels", "images",
        "columns", "splits", "datasets", "fingerprint",
    )  # fmt: skip

    def to_json(self) -> dict[str, object]:
        """Return the summary as `--json` prints it."""
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
    """Return labels from ((name, class number), count) pairs, by descending count, then by name."""
    sorted_labels = sorted(labels, key=lambda item: (-item[1], natural_key(item[0][0])))
    return tuple(Label(*value, count) for value, count in sorted_labels)
