"""Combine the columns of a manifest into rows: one row per field of a sample. The rows are sorted by field name."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar, Union

import numpy as np

from shardtool.entries.sample_table import FieldRows
from shardtool.names import to_bytes
from shardtool.source.manifest.paths import CHUNK_ROWS, PathEndings, row_paths
from shardtool.source.stat_files import PROBLEM_NUMBER

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from shardtool.skipped import SkipCode
    from shardtool.source.stat_files import StatResult

    Problem = tuple[SkipCode, str]


_Number = TypeVar("_Number", bound=np.generic)
ScalarOrArray = Union[int, "NDArray[np.integer]"]


class FieldColumn(NamedTuple):
    """One field. Each attribute is one value for all samples, or an array with one value per sample."""

    kind: ScalarOrArray
    size: ScalarOrArray
    mtime_ns: ScalarOrArray
    changed_ns: ScalarOrArray


class FieldLayout(NamedTuple):
    """The fields of a sample, sorted by name.

    The extension of a path may name a field, so each extension has its own order of fields.

    Attributes:
        code: uint16[extensions, fields], indices into `fields`.
        column: int64[extensions, fields], the index of each field's column.
        endings: uint16[samples], the extension number of each sample, or None if all have the same extension.
    """

    fields: tuple[str, ...]
    code: NDArray[np.uint16]
    column: NDArray[np.int64]
    endings: NDArray[np.uint16] | None

    def rows(self, columns: Sequence[FieldColumn], paths: Sequence[pa.Array], samples: int) -> FieldRows:
        """Return the rows of all samples. `paths` contains the paths or URLs of the first columns."""
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

    def _spread(self, columns: Sequence[ScalarOrArray], samples: int, kind: type[_Number]) -> NDArray[_Number]:
        if not any(isinstance(column, np.ndarray) or column for column in columns):
            return np.broadcast_to(kind(0), samples * len(columns))
        values_of_rows = np.empty((samples, len(columns)), kind)
        if self.endings is None:
            for position, number in enumerate(self.column[0].tolist()):
                values_of_rows[:, position] = columns[number]
            return values_of_rows.reshape(-1)
        for number, column in enumerate(columns):
            values_of_rows[:, number] = column
        for first in range(0, samples, CHUNK_ROWS):
            chunk = values_of_rows[first : first + CHUNK_ROWS]
            chunk[:] = np.take_along_axis(chunk, self.column[self.endings[first : first + CHUNK_ROWS]], axis=1)
        return values_of_rows.reshape(-1)


def arrange_fields(endings: PathEndings | None, names_of_others: Sequence[str]) -> FieldLayout:
    """Return the order of the fields.

    `endings` defines the field of the first column. `names_of_others` are the fields of the other columns, or of all
    columns if `endings` is None.
    """
    names = [] if endings is None else endings.names
    fields = tuple(sorted({*names, *names_of_others}, key=to_bytes))
    code_of = {name: code for code, name in enumerate(fields)}
    codes, columns = [], []
    for column_fields in [[ending, *names_of_others] for ending in names] or [[*names_of_others]]:
        order = sorted(range(len(column_fields)), key=lambda index: to_bytes(column_fields[index]))
        codes.append([code_of[column_fields[index]] for index in order])
        columns.append(order)
    ending_codes = endings.codes if endings is not None and len(names) > 1 else None
    return FieldLayout(fields, np.array(codes, np.uint16), np.array(columns, np.int64), ending_codes)


def merge_stat_results(
    parts: list[StatResult], columns: int
) -> tuple[list[FieldColumn], list[Problem], NDArray[np.int64]]:
    """Merge the results of workers. Return a `FieldColumn` for each column of paths, and the problems.

    The third result is int64[samples, columns]: for each file, 1 + the index of its problem, or 0 for no problem.
    """
    kinds = np.frombuffer(b"".join([part.kinds for part in parts]), np.uint8).reshape(-1, columns)
    arrays = [np.frombuffer(part.states, np.int64).reshape(-1, columns, 4) for part in parts]
    problem_numbers: list[NDArray[np.int64]] = []
    problems: list[Problem] = []
    for part, states in zip(parts, arrays, strict=True):
        numbers = states[..., PROBLEM_NUMBER]
        problem_numbers.append(np.where(numbers > 0, numbers + len(problems), 0))
        problems += part.problems
    numbers_of_files = np.concatenate(arrays)[..., :PROBLEM_NUMBER]  # size, mtime_ns, changed_ns
    files = [FieldColumn(kinds[:, column], *numbers_of_files[:, column].T) for column in range(columns)]
    return files, problems, np.concatenate(problem_numbers)
