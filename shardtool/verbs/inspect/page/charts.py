"""Draw bar charts of metadata columns."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from shardtool.entries.arrow import is_list_type
from shardtool.units import pluralize
from shardtool.verbs.inspect.page.rows import class_names_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from shardtool.dataset.shard_index import ShardIndex
    from shardtool.dataset.stored import StoredShard
    from shardtool.verbs.inspect.overview import DatasetOverview, FieldPayloads
    from shardtool.verbs.inspect.summary import ColumnSummary

_MAX_COLUMNS = 400
_MAX_KEPT_VALUES = 2**13
_MAX_BARS = 24
_MAX_CATEGORIES = 10
_MAX_CHART_NUMBER = 1e150  # larger numbers are clipped, so that differences stay finite
_MAX_WHOLE_RANGE = 2**50
_TIMES = "times"
_LOG_RATIO = 20  # the scale is logarithmic if the largest value exceeds the median by this factor


class Chart(NamedTuple):
    """The bar chart of a metadata column.

    Attributes:
        note: What the bars count, and how many samples lack a value.
        bars: The range or value of each bar, and its count.
    """

    name: str
    type: str
    note: str
    bars: list[tuple[str, float]]
    ends: tuple[str, str]


class _KeptNumbers:
    def __init__(self) -> None:
        self._kept: list[NDArray[np.float64]] = []
        self._count = self._kept_count = 0
        self.step = 1

    def add(self, values: NDArray[np.float64]) -> None:
        kept = values[-self._count % self.step :: self.step]
        self._count += len(values)
        self._kept.append(kept[np.isfinite(kept)])
        self._kept_count += len(kept)
        while self._kept_count > _MAX_KEPT_VALUES:
            self._kept = [np.concatenate(self._kept)[::2]]
            self._kept_count, self.step = len(self._kept[0]), 2 * self.step

    @property
    def values(self) -> NDArray[np.float64]:
        return np.concatenate([np.zeros(0), *self._kept])


class ColumnCharts:
    """Collects the values of all columns while the indexes are read.

    Attributes:
        class_counts: For each column with lists of class numbers, the count of each class.
    """

    def __init__(self) -> None:
        self.class_counts: dict[str, Counter[str]] = {}
        self._numbers: dict[tuple[str, str], _KeptNumbers] = {}

    def add(
        self, overview: DatasetOverview, _: StoredShard, shard_index: ShardIndex, __: Mapping[str, FieldPayloads]
    ) -> None:
        """Add the columns of a shard."""
        import pyarrow.compute as pc

        for name in shard_index.metadata.column_names[:_MAX_COLUMNS]:
            values = shard_index.metadata.column(name).combine_chunks()
            values = values.dictionary_decode() if pt.is_dictionary(values.type) else values
            kind = values.type
            if is_list_type(kind):
                unit, numbers = "list length", pc.list_value_length(values)
                self._count_classes(name, values, class_names_of(overview.classes, name))
            elif pt.is_string(kind) or pt.is_large_string(kind):
                unit, numbers = "characters", pc.utf8_length(values)
            elif pt.is_integer(kind) or pt.is_floating(kind):
                unit, numbers = "", values
            elif pt.is_date(kind) or pt.is_timestamp(kind):
                unit, numbers = _TIMES, values.cast(pa.int32() if pt.is_date32(kind) else pa.int64())
            else:
                continue
            kept = self._numbers.setdefault((name, unit), _KeptNumbers())
            kept.add(numbers.drop_null().to_numpy(zero_copy_only=False).astype(np.float64))

    def _count_classes(self, name: str, values: object, class_names: list[str]) -> None:
        import pyarrow.compute as pc

        flat = pc.list_flatten(values) if class_names else None
        if flat is None or not pt.is_integer(flat.type):
            return
        counter = self.class_counts.setdefault(name, Counter())
        for pair in flat.drop_null().value_counts().to_pylist():
            number = pair["values"]
            known = 0 <= number < len(class_names)
            counter[class_names[number] if known else str(number)] += pair["counts"]

    def charts(self, columns: Mapping[str, ColumnSummary], samples: int) -> list[Chart]:
        """Return one chart per column, in the order of the summary."""
        return [self._chart(name, column, samples) for name, column in columns.items()]

    def _chart(self, name: str, column: ColumnSummary, samples: int) -> Chart:
        missing = f"{samples - column.filled:,} without a value" if column.filled < samples else ""
        if column.type in ("string", "bool") and column.values and (column.distinct or 0) <= _MAX_CATEGORIES:
            bars = [(value.value, float(value.samples)) for value in column.values]
            ends = bars[0][0], bars[-1][0] if len(bars) > 1 else ""
            return Chart(name, column.type, _join(pluralize(column.distinct or 0, "value"), missing), bars, ends)
        units = [unit for chart_name, unit in self._numbers if chart_name == name]
        values = self._numbers[name, units[0]].values if len(units) == 1 else np.zeros(0)
        if not len(values):
            return Chart(name, column.type, missing if column.filled else "no values", [], ("", ""))
        kept = self._numbers[name, units[0]]
        mean = f"mean {number_text(column.mean)}" if column.mean is not None and not units[0] else ""
        from_some = f"from 1 in {kept.step:,} values" if kept.step > 1 else ""
        bars, is_log = _histogram(values)
        if units[0] == _TIMES:
            bars = [("", count) for _, count in bars]
            return Chart(
                name, column.type, _join(from_some, missing), bars, (str(column.smallest), str(column.largest))
            )
        note = _join(units[0], mean, "log scale" if is_log else "", from_some, missing)
        return Chart(name, column.type, note, bars, (number_text(values.min()), number_text(values.max())))


def _join(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def _histogram(values: NDArray[np.float64]) -> tuple[list[tuple[str, float]], bool]:
    values = np.clip(values, -_MAX_CHART_NUMBER, _MAX_CHART_NUMBER)
    low, high = float(values.min()), float(values.max())
    if low == high:
        return [(number_text(low), float(len(values)))], False
    is_log = low > 0 and high > _LOG_RATIO * float(np.median(values))
    width = (high - low) // _MAX_BARS + 1
    is_whole = not is_log and high - low < _MAX_WHOLE_RANGE and bool((values == np.floor(values)).all())
    if is_whole:
        edges = low + width * np.arange((high - low) // width + 2)
    else:
        edges = np.geomspace(low, high, _MAX_BARS + 1) if is_log else np.linspace(low, high, _MAX_BARS + 1)
        edges[0], edges[-1] = low, high
        edges = np.maximum.accumulate(np.clip(edges, low, high))
    counts, _ = np.histogram(values, edges)
    gap = 1 if is_whole else 0
    names = [f"{number_text(start)} to {number_text(end - gap)}" for start, end in pairwise(edges.tolist())]
    if is_whole and width == 1:
        names = [number_text(start) for start in edges[:-1].tolist()]
    return [*zip(names, counts.astype(float).tolist(), strict=True)], is_log


def number_text(value: float) -> str:
    """Format a number with four significant digits, or an integer below 1e15 with all digits."""
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e15 else f"{value:,.4g}"  # noqa: PLR2004
