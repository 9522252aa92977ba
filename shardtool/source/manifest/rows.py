"""Combine the columns of a manifest into rows. The rows of a sample are sorted by the bytes of the field names.

All samples have the same fields, except for the field that the extension of a path defines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar, Union

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries import arrow
from shardtool.entries.sample_table import FieldRows, FieldSpans, SampleTable
from shardtool.names import to_bytes
from shardtool.shard_samples import SPAN
from shardtool.source.manifest.paths import CHUNK_ROWS, PathEndings, row_paths
from shardtool.table import columns as tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shardtool.skipped import SkipCode
    from shardtool.source.base import Writable
    from shardtool.source.stat_files import StatResult

    Problem = tuple[SkipCode, str]


_Number = TypeVar("_Number", bound=np.generic)
ScalarOrArray = Union[int, "NDArray[np.integer]"]


class FieldColumn(NamedTuple):
    """One field in all samples. Each attribute is one value for all samples, or an array with one value per sample."""

    kind: ScalarOrArray
    size: ScalarOrArray
    mtime_ns: ScalarOrArray
    changed_ns: ScalarOrArray


class FieldLayout(NamedTuple):
    """The order of the fields of each sample, which depends on the extension of its path.

    Attributes:
        code: uint16[extensions, fields], the sorted fields as indices into `fields`.
        column: int64[extensions, fields], the column of each of these fields.
    """

    fields: tuple[str, ...]
    code: NDArray[np.uint16]
    column: NDArray[np.int64]
    endings: NDArray[np.uint16] | None

    def rows(self, columns: Sequence[FieldColumn], paths: Sequence[pa.Array], samples: int) -> FieldRows:
        """Return the rows of all samples. `paths` are the paths of the first columns."""
        code = np.empty((samples, self.code.shape[1]), np.uint16)
        code[:] = self.code[0] if self.endings is None else self.code[self.endings]
        kinds, sizes, mtimes, changed = zip(*columns, strict=True)
        return FieldRows(
            code=code.reshape(-1),
            kind=self._spread(kinds, samples, np.uint8),
            size=self._spread(sizes, samples, np.int64),
            mtime_ns=self._spread(mtimes, samples, np.int64),
            changed_ns=self._spread(changed, samples, np.int64),
            paths=row_paths(samples, paths, np.where(self.column < len(paths), self.column, -1), self.endings),
        )

    def _spread(self, parts: Sequence[ScalarOrArray], samples: int, kind: type[_Number]) -> NDArray[_Number]:
        if not any(isinstance(part, np.ndarray) or part for part in parts):
            return np.broadcast_to(kind(0), samples * len(parts))
        values_of_rows = np.empty((samples, len(parts)), kind)
        if self.endings is None:
            for position, part in enumerate(self.column[0].tolist()):
                values_of_rows[:, position] = parts[part]
            return values_of_rows.reshape(-1)
        for part, values in enumerate(parts):
            values_of_rows[:, part] = values
        for first in range(0, samples, CHUNK_ROWS):
            chunk = values_of_rows[first : first + CHUNK_ROWS]
            chunk[:] = np.take_along_axis(chunk, self.column[self.endings[first : first + CHUNK_ROWS]], axis=1)
        return values_of_rows.reshape(-1)


def arrange_fields(endings: PathEndings | None, names_of_others: Sequence[str]) -> FieldLayout:
    """Return the order of the fields of each sample. `endings` are the extensions that name the first field."""
    names = [] if endings is None else endings.names
    fields = tuple(sorted({*names, *names_of_others}, key=to_bytes))
    number = {name: index for index, name in enumerate(fields)}
    code, part = [], []
    for parts in [[ending, *names_of_others] for ending in names] or [[*names_of_others]]:
        order = sorted(range(len(parts)), key=lambda index: to_bytes(parts[index]))
        code.append([number[parts[index]] for index in order])
        part.append(order)
    codes = endings.codes if endings is not None and len(names) > 1 else None
    return FieldLayout(fields, np.array(code, np.uint16), np.array(part, np.int64), codes)


def merge_stat_results(
    parts: list[StatResult], columns: int
) -> tuple[list[FieldColumn], list[Problem], NDArray[np.int64]]:
    """Merge the results of workers into one field for each column of paths.

    Also return the problems, and the index of each file's problem plus one (or 0) as int64[samples, columns].
    """
    kinds = np.frombuffer(b"".join([part.kinds for part in parts]), np.uint8).reshape(-1, columns)
    arrays = [np.frombuffer(part.facts, np.int64).reshape(-1, columns, 4) for part in parts]
    all_facts, problem = np.concatenate(arrays), []
    problems: list[Problem] = []
    for part, numbers in zip(parts, arrays, strict=True):
        problem.append(np.where(numbers[..., 3] > 0, numbers[..., 3] + len(problems), 0))
        problems += part.problems
    files = [FieldColumn(kinds[:, column], *all_facts[:, column, :3].T) for column in range(columns)]
    return files, problems, np.concatenate(problem)


BINARY_BATCH_ROWS = 256


def binary_spans(entries: SampleTable) -> FieldSpans:
    """Return the location of each payload in the file that `write_binary_rows` writes."""
    spans = entries.rows.kind == SPAN
    sizes = np.where(spans, entries.rows.size, 0)
    offset = np.where(spans, np.cumsum(sizes) - sizes, 0)
    first, unknown = np.broadcast_to(np.uint32(0), len(entries)), np.broadcast_to(np.int64(-1), len(offset))
    return FieldSpans(files=(), file=first, offset=offset, expected=unknown)


def binary_values(array: pa.Array) -> pa.Array:
    """Return the bytes in a column of bytes, text or `struct<bytes, path>`."""
    if tables.is_wrapped_bytes(array.type):
        array = array.flatten()[array.type.get_field_index("bytes")]
    array = arrow.to_plain(array)
    return pc.cast(array, pa.binary()) if pa.types.is_fixed_size_binary(array.type) else array


def write_binary_rows(file: Writable, batch: list[pa.Array], lengths: list[NDArray[np.int64]]) -> None:
    """Write the values of several columns, row by row."""
    if len(batch) == 1:
        file.write(arrow.concat_values(batch[0]))
        return
    columns = []
    for array, sizes in zip(batch, lengths, strict=True):
        data, ends = arrow.concat_values(array), np.cumsum(sizes)
        columns.append([data[start:end] for start, end in zip((ends - sizes).tolist(), ends.tolist(), strict=True)])
    for row in zip(*columns, strict=True):
        for value in row:
            file.write(value)
