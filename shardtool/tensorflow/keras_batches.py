"""Batches of a dataset by number, in another order in each epoch, for `keras.utils.PyDataset`."""

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
    """What `shardtool.open` gives, or anything else that gives many samples at once."""

    def __len__(self) -> int: ...

    def __getitem__(self, which: NDArray[np.int64]) -> Sequence[Any]: ...


@cache
def keras_sequence_class() -> type[Any]:
    """Return the class of sequences, which needs Keras: imported when it is first wanted."""
    return type("BatchSequence", (BatchSequence, import_library("keras").utils.PyDataset), {})


def _new_keras_sequence() -> Any:
    return object.__new__(keras_sequence_class())


def import_library(module: str) -> Any:
    """Return a module that is, or needs, a library which may be missing."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OPTIONAL_LIBRARIES:
            raise
        remedy = "Run `pip install 'shardtool[tensorflow]'`."
        raise InvalidRequest("shardtool.tensorflow", f"{error.name} is not installed", remedy=remedy) from None


class BatchSequence:
    """Batches of a dataset by their numbers, in another order in each epoch: what makes a `keras.utils.PyDataset` ours.

    Keras's worker threads ask for batches at the same time. What they share does not change during an epoch.

    Keras ends an epoch, too, after it has looked at the first batches for their shapes. Its older releases do not say
    when one begins: there, each end counts.
    """

    def __init__(self, samples: SampleSequence, batch_size: int, first: OrderOptions, workers: int) -> None:
        super().__init__(workers=workers)  # type: ignore[call-arg] # of Keras's class
        self._samples, self._batch_size, self._options = samples, batch_size, first
        self._counts_each_end = self._begun = not hasattr(super(), "on_epoch_begin")

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()], dict[str, object]]:
        return _new_keras_sequence, (), vars(self)

    def __len__(self) -> int:
        """Return how many batches an epoch has; the last one may be smaller."""
        return math.ceil(len(self._samples) / self._batch_size)

    def __getitem__(self, number: int) -> Any:
        """Return a batch: the values of its samples side by side, as tuples and dicts have them.

        Raises:
            IndexError: There are fewer batches.
            InvalidRequest: Samples cannot be stacked.
        """
        if not 0 <= number < len(self):
            raise IndexError(f"batch {number} of {len(self)}")
        first, count = number * self._batch_size, len(self._samples)
        order = epoch_order(np.array([count]), self._options)
        numbers = order.numbers(np.arange(first, min(first + self._batch_size, count)))
        return stack_samples(self._samples[numbers])

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of an epoch; with the last one, the next epoch is current."""
        epoch, count = self._options.epoch, len(self)
        for number in range(count):
            batch = self[number]
            if number == count - 1 and self._options.epoch == epoch:
                self.set_epoch(epoch + 1)
            yield batch

    def set_epoch(self, epoch: int) -> None:
        """Take the order of an epoch."""
        self._options = replace(self._options, epoch=epoch)

    def on_epoch_begin(self) -> None:
        """Note that an epoch begins."""
        self._begun = True

    def on_epoch_end(self) -> None:
        """Go on to the order of the next epoch, unless none has begun."""
        if self._begun:
            self.set_epoch(self._options.epoch + 1)
            self._begun = self._counts_each_end


def stack_samples(samples: Sequence[Any]) -> Any:
    """Return a batch of samples: of dicts a dict of batches, of tuples a tuple of them, of values an array.

    Returns:
        An array has the samples' shape behind the dimension of the batch, and their dtype: int64 of `int`, float32 of
        `float`, objects of `str` and `bytes`.

    Raises:
        InvalidRequest: Samples are of different shapes, or some lack a field.
    """
    first = samples[0]
    if isinstance(first, dict):
        names = {name for one in samples for name in one}
        if lacking := sorted(name for name in names if any(name not in one for one in samples)):
            found = f"samples of which some lack {lacking[0]!r}"
            raise InvalidRequest("a batch", found, remedy="Take the fields that all have, or give it a value.")
        return {name: stack_samples([one[name] for one in samples]) for name in first}
    if isinstance(first, tuple):
        return tuple(stack_samples(values) for values in zip(*samples, strict=True))
    if isinstance(first, str | bytes):
        return np.array(samples, object)
    if len(shapes := {np.shape(one) for one in samples}) > 1:
        found = f"arrays of the shapes {' and '.join(map(str, sorted(shapes)[:2]))}"
        raise InvalidRequest("a batch", found, expected="one shape", remedy="Crop or resize images to one size.")
    return np.asarray(samples, np.float32 if isinstance(first, float) else None)
