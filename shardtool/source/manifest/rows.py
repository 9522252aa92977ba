"""Combine the columns of a manifest into rows: one row per field of a sample, in the byte order of field names."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar, Union

import numpy as np

from shardtool.entries.sample_table import FieldRows
from shardtool.names import to_bytes
from shardtool.source.manifest.paths import CHUNK_ROWS, PathEndings, row_paths

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
        """Return the rows of all samples. The first columns have paths or URLs, which `paths` contains."""
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
    """Return the order of the fields.

    `endings` defines the field of the first column. `names_of_others` are the fields of the other columns, or of all
    columns if `endings` is None.
    """
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
    """Merge the results of workers. Return a `FieldColumn` for each column of paths, and the problems.

    The third result is int64[samples, columns]: the number of each file's problem, counted from 1, or 0 for no problem.
    """
    kinds = np.frombuffer(b"".join([part.kinds for part in parts]), np.uint8).reshape(-1, columns)
    arrays = [np.frombuffer(part.states, np.int64).reshape(-1, columns, 4) for part in parts]
    states, problem = np.concatenate(arrays), []
    problems: list[Problem] = []
    for part, numbers in zip(parts, arrays, strict=True):
        problem.append(np.where(numbers[..., 3] > 0, numbers[..., 3] + len(problems), 0))
        problems += part.problems
    files = [FieldColumn(kinds[:, column], *states[:, column, :3].T) for column in range(columns)]
    return files, problems, np.concatenate(problem)
