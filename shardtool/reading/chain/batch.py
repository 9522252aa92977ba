"""Samples become a batch: arrays where their values allow it, lists where not."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from numbers import Integral
from typing import TYPE_CHECKING, cast

import numpy as np

from shardtool.errors import InvalidRequest, SampleFailed, ShardError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

_NUMBERS = {int: np.int64, float: np.float64, bool: np.bool_}


@dataclass(frozen=True)
class Batch:
    """Makes a batch of so many samples; see `collate`."""

    size: int
    drop_last: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.size, Integral) or self.size < 1:
            raise InvalidRequest("batch", repr(self.size), expected="1 or more samples")

    def count(self, samples: int) -> int:
        """Return how many batches so many samples make."""
        return samples // self.size if self.drop_last else -(-samples // self.size)

    def over(self, samples: Iterable[object]) -> Iterator[object]:
        """Yield batches; the last may be smaller."""
        samples = iter(samples)
        while some := list(islice(samples, self.size)):
            if len(some) == self.size or not self.drop_last:
                yield collate(some)


def collate(samples: list[object]) -> object:
    """Return samples as one batch.

    Dicts become a dict of batched fields, tuples a tuple. A field becomes an array [samples, ...] where its values are
    arrays of one shape and type, or numbers: int64, float64 or bool. Otherwise it becomes a list.

    Raises:
        SampleFailed: A sample lacks a field of another, or has another number of values.
    """
    first = samples[0]
    if isinstance(first, dict):
        for sample in samples:
            if not isinstance(sample, dict) or sample.keys() != first.keys():
                raise _unlike(first, sample)
        return {name: _joined([sample[name] for sample in samples]) for name in first}  # type: ignore[index]
    if isinstance(first, tuple):
        for sample in samples:
            if not isinstance(sample, tuple) or len(sample) != len(first):
                raise SampleFailed("a batch", "samples of different forms", expected=f"tuples of {len(first)}")
        return tuple(_joined([sample[at] for sample in samples]) for at in range(len(first)))  # type: ignore[index]
    return _joined(samples)


def _joined(values: list[object]) -> NDArray[np.generic] | list[object]:
    kinds = {type(value) for value in values}
    kind = kinds.pop() if len(kinds) == 1 else float if kinds == {int, float} else object
    if kind is np.ndarray:
        arrays = cast("list[NDArray[np.generic]]", values)
        return np.stack(arrays) if len({(one.shape, one.dtype) for one in arrays}) == 1 else values
    if kind in _NUMBERS or issubclass(kind, np.number):
        try:
            return np.array(values, _NUMBERS.get(kind))
        except OverflowError:  # more than 64 bits
            return values
    return values


def _unlike(first: dict[str, object], sample: object) -> ShardError:
    """Return the error of samples that make no batch."""
    if not isinstance(sample, dict):
        return InvalidRequest("batch", f"a {type(sample).__name__} among samples with fields")
    name = min(first.keys() ^ sample.keys())
    where = first if name in sample else sample
    remedy = f"select({name!r}, ..., missing='none') before batch gives None, missing='skip' leaves such samples out."
    return SampleFailed(
        f"sample {where.get('__key__')}", f"no field {name}, as others of its batch have", remedy=remedy
    )
