"""Parts of samples, a column each, become rows: in each sample ordered by the bytes of the fields' names.

Every sample has the same parts. Only the first can have another name from sample to sample, and so
another place among the others: the path whose ending names the field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar, Union

import numpy as np

from shardtool.values import to_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shardtool.source.manifest.stat import ListedPart

_CHUNK = 2**16  # samples at a time
_Number = TypeVar("_Number", bound=np.generic)
_OneOrEach = Union[int, "NDArray[np.integer]"]  # a value for all samples, or one for each


@dataclass(frozen=True, slots=True)
class Layout:
    """The order of each sample's fields.

    Attributes:
        fields: All names, sorted.
        code: uint16[endings, parts], the name at each place.
        part: int64[endings, parts], the part at each place.
        endings: uint16[samples], or None where there is one for all.
    """

    fields: tuple[str, ...]
    code: NDArray[np.uint16]
    part: NDArray[np.int64]
    endings: NDArray[np.uint16] | None

    def take(self, samples: NDArray[np.int64]) -> Layout:
        """Return the layout of some samples."""
        endings = None if self.endings is None else self.endings[samples]
        return Layout(self.fields, self.code, self.part, endings)

    def codes(self, samples: int) -> NDArray[np.uint16]:
        """Return uint16[rows], the name of each row."""
        found = np.empty((samples, self.code.shape[1]), np.uint16)
        found[:] = self.code[0] if self.endings is None else self.code[self.endings]
        return found.reshape(-1)

    def spread(self, parts: Sequence[_OneOrEach], samples: int, kind: type[_Number]) -> NDArray[_Number]:
        """Return a value for each row, out of an array or one value for each part; where all are 0, in no memory."""
        if not any(isinstance(part, np.ndarray) or part for part in parts):
            return np.broadcast_to(kind(0), samples * len(parts))
        found = np.empty((samples, len(parts)), kind)
        if self.endings is None:
            for place, part in enumerate(self.part[0].tolist()):
                found[:, place] = parts[part]
            return found.reshape(-1)
        for part, values in enumerate(parts):
            found[:, part] = values
        for first in range(0, samples, _CHUNK):
            chunk = found[first : first + _CHUNK]
            chunk[:] = np.take_along_axis(chunk, self.part[self.endings[first : first + _CHUNK]], axis=1)
        return found.reshape(-1)


def lay_out(endings: Sequence[str], known: Sequence[str], codes: NDArray[np.uint16] | None) -> Layout:
    """Return the layout of samples.

    Args:
        endings: The names that the first part can have; empty where `known` names that too.
        known: The names of the other parts, in their order.
        codes: uint16[samples] of `endings`.
    """
    fields = tuple(sorted({*endings, *known}, key=to_bytes))
    number = {name: at for at, name in enumerate(fields)}
    code, part = [], []
    for names in [[ending, *known] for ending in endings] or [[*known]]:
        order = sorted(range(len(names)), key=lambda at: to_bytes(names[at]))
        code.append([number[names[at]] for at in order])
        part.append(order)
    several = codes if len(endings) > 1 else None
    return Layout(fields, np.array(code, np.uint16), np.array(part, np.int64), several)


class FieldColumn(NamedTuple):
    """A field of each sample: one value for all, or an array with one per sample."""

    kind: _OneOrEach
    size: _OneOrEach
    mtime_ns: _OneOrEach
    changed_ns: _OneOrEach

    def take(self, samples: NDArray[np.int64]) -> FieldColumn:
        """Return the field of some samples; all values are arrays."""
        return FieldColumn(*(np.asarray(values)[samples] for values in self))


class ListedFiles:
    """The files of a manifest, as workers found them.

    Attributes:
        files: For each column of paths.
        problems: (code, message).
        problem: int64[samples, columns]: 0, or one more than the place in `problems`.
    """

    def __init__(self, parts: list[ListedPart], columns: int) -> None:
        self.problems = [problem for part in parts for problem in part.problems]
        before, problem = 0, []
        for part in parts:
            found = np.frombuffer(part.problem, np.uint32).astype(np.int64)
            problem.append(np.where(found > 0, found + before, 0))
            before += len(part.problems)
        self.problem = np.concatenate(problem).reshape(-1, columns)
        kinds = np.concatenate([np.frombuffer(part.kinds, np.uint8) for part in parts]).reshape(-1, columns)
        sizes, mtimes, changed = (
            np.concatenate([np.frombuffer(values, np.int64) for values in found]).reshape(-1, columns)
            for found in zip(*((part.sizes, part.mtimes, part.changed) for part in parts), strict=True)
        )
        self.files = [FieldColumn(kinds[:, at], sizes[:, at], mtimes[:, at], changed[:, at]) for at in range(columns)]

    def first_problem(self) -> NDArray[np.int64]:
        """Return the first file of each sample that has a problem; -1 where none has."""
        return np.where(np.any(self.problem > 0, axis=1), np.argmax(self.problem > 0, axis=1), -1)
