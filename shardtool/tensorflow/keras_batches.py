"""Batches of a dataset by number, for `keras.utils.PyDataset`."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from shardtool.errors import InvalidRequest
from shardtool.read.order import OrderOptions, epoch_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray


_OPTIONAL_LIBRARIES = ("keras", "tensorflow")


class SampleSequence(Protocol):
    """A dataset, or another sequence that accepts an array of indexes."""

    def __len__(self) -> int: ...

    def __getitem__(self, which: NDArray[np.int64]) -> Sequence[Any]: ...


@cache
def keras_sequence_class() -> type[Any]:
    """Return the class of sequences. This imports Keras."""
    return type("BatchSequence", (BatchSequence, import_library("keras").utils.PyDataset), {})


def _new_keras_sequence() -> Any:
    return object.__new__(keras_sequence_class())


def import_library(module: str) -> Any:
    """Return a module that is, or needs, an optional library."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OPTIONAL_LIBRARIES:
            raise
        remedy = "Run `pip install 'shardtool[tensorflow]'`."
        raise InvalidRequest("shardtool.tensorflow", f"{error.name} is not installed", remedy=remedy) from None


class BatchSequence:
    """Batches of a dataset, reordered each epoch; a mixin for `keras.utils.PyDataset`.

    Keras requests batches from worker threads, whose shared state is constant during an epoch. Keras also ends an epoch
    after it has read batches only for their shapes. Older releases of Keras do not report the start of an epoch, so
    every end counts.
    """

    def __init__(self, samples: SampleSequence, batch_size: int, first: OrderOptions, workers: int) -> None:
        super().__init__(workers=workers)  # type: ignore[call-arg] # Keras's class
        self._samples, self._batch_size, self._options = samples, batch_size, first
        self._counts_each_end = self._has_started = not hasattr(super(), "on_epoch_begin")

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()], dict[str, object]]:
        return _new_keras_sequence, (), vars(self)

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return math.ceil(len(self._samples) / self._batch_size)

    def __getitem__(self, number: int) -> Any:
        """Return a batch.

        Raises:
            IndexError: The number is out of range.
        """
        if not 0 <= number < len(self):
            raise IndexError(f"batch {number} of {len(self)}")
        first, count = number * self._batch_size, len(self._samples)
        order = epoch_order(np.array([count]), self._options)
        numbers = order.numbers(np.arange(first, min(first + self._batch_size, count)))
        return stack_samples(self._samples[numbers])

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of an epoch. After the last batch, the next epoch is current."""
        epoch, count = self._options.epoch, len(self)
        for number in range(count):
            batch = self[number]
            if number == count - 1 and self._options.epoch == epoch:
                self.set_epoch(epoch + 1)
            yield batch

    def set_epoch(self, epoch: int) -> None:
        """Use the order of an epoch."""
        self._options = replace(self._options, epoch=epoch)

    def on_epoch_begin(self) -> None:
        """Record the start of an epoch."""
        self._has_started = True

    def on_epoch_end(self) -> None:
        """Use the order of the next epoch, if an epoch had started."""
        if self._has_started:
            self.set_epoch(self._options.epoch + 1)
            self._has_started = self._counts_each_end


def stack_samples(samples: Sequence[Any]) -> Any:
    """Return a batch: dicts become a dict of batches, tuples a tuple, values an array [samples, ...].

    Arrays have the samples' dtype: int64 for `int`, float32 for `float`, objects for `str` and `bytes`.
    """
    first = samples[0]
    if isinstance(first, dict):
        names = {name for sample in samples for name in sample}
        if missing := sorted(name for name in names if any(name not in sample for sample in samples)):
            found = f"some samples lack the field {missing[0]!r}"
            raise InvalidRequest("a batch", found, remedy="Select fields that all samples have.")
        return {name: stack_samples([sample[name] for sample in samples]) for name in first}
    if isinstance(first, tuple):
        return tuple(stack_samples(values) for values in zip(*samples, strict=True))
    if isinstance(first, str | bytes):
        return np.array(samples, object)
    if len(shapes := {np.shape(sample) for sample in samples}) > 1:
        found = f"arrays of shapes {' and '.join(map(str, sorted(shapes)[:2]))}"
        raise InvalidRequest("a batch", found, expected="one shape", remedy="Crop or resize images to one size.")
    return np.asarray(samples, np.float32 if isinstance(first, float) else None)
