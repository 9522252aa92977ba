"""Batches of any dataset as a `keras.utils.PyDataset`, for `fit`, `evaluate` and `predict` on any backend of Keras."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import keras
import numpy as np

from shardtool.errors import InvalidRequest
from shardtool.read.order import OrderOptions, order_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

# Keras ends an epoch, too, after it has looked at the first batches for their shapes. Its older releases do not say
# when one begins: there, each end counts.
_TELLS_OF_BEGIN = hasattr(keras.utils.PyDataset, "on_epoch_begin")


class Samples(Protocol):
    """What `shardtool.open` gives, or anything else that gives many samples at once."""

    def __len__(self) -> int: ...

    def __getitem__(self, which: NDArray[np.int64]) -> Sequence[Any]: ...


class BatchSequence(keras.utils.PyDataset):  # type: ignore[misc] # Keras has no types
    """Batches of a dataset by their numbers, in another order in each epoch.

    Keras's worker threads ask for batches at the same time. What they share does not change during an epoch.
    """

    def __init__(self, samples: Samples, batch_size: int, first: OrderOptions, workers: int) -> None:
        super().__init__(workers=workers)
        self._samples, self._batch_size, self._options = samples, batch_size, first
        self._begun = not _TELLS_OF_BEGIN

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
        order = order_of(np.array([count]), self._options)
        numbers = order.numbers(np.arange(first, min(first + self._batch_size, count)))
        return stacked(self._samples[numbers])

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
            self._begun = not _TELLS_OF_BEGIN


def stacked(samples: Sequence[Any]) -> Any:
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
        return {name: stacked([one[name] for one in samples]) for name in first}
    if isinstance(first, tuple):
        return tuple(stacked(values) for values in zip(*samples, strict=True))
    if isinstance(first, str | bytes):
        return np.array(samples, object)
    if len(shapes := {np.shape(one) for one in samples}) > 1:
        found = f"arrays of the shapes {' and '.join(map(str, sorted(shapes)[:2]))}"
        raise InvalidRequest("a batch", found, expected="one shape", remedy="Crop or resize images to one size.")
    return np.asarray(samples, np.float32 if isinstance(first, float) else None)
