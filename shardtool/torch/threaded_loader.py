"""Read, decode and collate batches in threads, in order.

One thread reads shards ahead. Another thread passes chunks of samples to decoder threads. The decoder threads run the
stages, write the results into the rows of a batch (`BatchRows`), and collate full batches. Each batch has its own
memory. PyTorch reuses pinned memory only after all copies from it have finished.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field
from itertools import islice
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from shardtool.execute.local_pool import usable_cores
from shardtool.read.bundles import SizeBatches
from shardtool.read.collate import Batch, check_lists, check_same_fields, join_sample, split_sample
from shardtool.read.pipeline import Pipeline
from shardtool.request.option_checks import check_minimum
from shardtool.threads import may_wait
from shardtool.torch.streaming import StreamOptions, stream_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from shardtool.read.collate import ListFields
    from shardtool.read.sample_reader import SkippedSamples
    from shardtool.read.stream import Stream, StreamPosition

    Samples = list[Any]
    State = dict[str, object]


SKIPPED = object()


@dataclass(eq=False, repr=False)
class Loader(StreamOptions):
    """Yields batches of a dataset. Threads read, decode and collate the samples, without worker processes or pickling.

    A `transform` in pure Python holds the interpreter lock, so it runs faster in the worker processes of a DataLoader.

    Each pass over the loader reads the current epoch. A complete pass moves to the next epoch. After
    `load_state_dict`, the first pass continues from the state.

    A batch is a dict or a tuple, like its samples. The values of a field determine its type in the batch:

    - Arrays and images of one shape become a tensor [samples, ...].
    - Arrays of different shapes become a list of tensors.
    - Numbers become a tensor. Python numbers become int64, float64 or bool.
    - Other values become a list.

    Attributes:
        threads: Number of decoder threads, by default one per usable core.
        drop_last: Whether to skip a smaller last batch.
        lists: Fields or tuple positions whose values always become a list of tensors.
        collate: Function that makes a batch from a list of samples.
        pin_memory: Whether to use pinned memory, by default if there is a GPU.
        depth: Number of batches prepared ahead.

    Example:
        >>> dataset = shardtool.open("train.json").decode().tuple("jpg", "cls")
        >>> loader = shardtool.torch.loader(dataset, batch_size=256, transform=augment)
        >>> for images, labels in loader:  # each iteration is one epoch
        ...     train_step(images, labels)
    """

    threads: int | None = None
    drop_last: bool = False
    lists: ListFields = ()
    collate: Callable[[list[Any]], Any] | None = None
    pin_memory: bool | None = None
    depth: int = 3
    _state: State = field(init=False, repr=False)
    # the epoch that the next iteration reads from its start, or None to continue from `_state`
    _next_epoch: int | None = field(init=False, repr=False, default=None)
    _pass: object = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("threads", self.threads), ("depth", self.depth)):
            if value is not None:
                check_minimum(name, value)
        self._state = self._stream.state_dict()

    def __len__(self) -> int:
        return Batch(self.batch_size, self.drop_last).count(len(self._stream))

    def __iter__(self) -> Iterator[Any]:
        stream = copy(self._stream)
        self._pass = this_pass = object()  # older iterators no longer record states
        if self._next_epoch is not None:
            self._state = {**self._state, "epoch": self._next_epoch, "position": 0}
        stream.load_state_dict(self._state)
        self._next_epoch = cast("int", self._state["epoch"])
        return self._batches(stream, this_pass)

    def _batches(self, stream: Stream, this_pass: object) -> Iterator[Any]:
        counts = Pipeline((Batch(self.batch_size, self.drop_last),))
        threads = self.threads or usable_cores()
        pin = torch.cuda.is_available() if self.pin_memory is None else self.pin_memory
        has_size_batches = any(isinstance(stage, SizeBatches) for stage in self._stages.stages)
        collate = self.collate or (_size_batch_as_tensors if has_size_batches else None)
        stop, feeder = Event(), ThreadPoolExecutor(1, "shardtool-feed")
        decoders = ThreadPoolExecutor(threads, "shardtool-decode")
        can_wait = may_wait  # keep a reference, because Python may delete module variables at exit
        samples = ((sample, stream.last_position()) for sample in stream)

        def state() -> tuple[State, int]:
            return stream.state_dict(), stream.next_epoch(counts)

        def feed() -> _PendingBatch | None:
            batch_samples = list(islice(samples, self.batch_size))
            if not batch_samples or (self.drop_last and len(batch_samples) < self.batch_size):
                return None
            target = collate or BatchRows(len(batch_samples), pin=pin, lists=self.lists)
            batch = _PendingBatch(batch_samples, self._run_stages, target, state(), stop)
            batch.start(decoders, -(-len(batch_samples) // (_CHUNKS_PER_THREAD * threads)))
            return batch

        pending = deque(feeder.submit(feed) for _ in range(self.depth))
        try:
            while (batch := pending.popleft().result()) is not None:
                pending.append(feeder.submit(feed))
                result, state_after = [batch.done.result()], batch.state
                del batch
                if result[0] is not None:
                    self._record_state(this_pass, state_after)
                    yield result.pop()  # keep no reference to the batch
        finally:
            stop.set()
            for future in pending:
                future.cancel()
            if can_wait():
                feeder.shutdown(cancel_futures=True)
                decoders.shutdown(cancel_futures=True)
                samples.close()
        self._record_state(this_pass, state())

    def _record_state(self, this_pass: object, state: tuple[State, int]) -> None:
        if self._pass is this_pass:
            self._state, self._next_epoch = state

    @property
    def skipped(self) -> SkippedSamples:
        """Counts of damaged samples, and of samples dropped by stages."""
        return self._stream.skipped

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration read this epoch. If a state of this epoch was loaded, continue from the state."""
        epoch = self._check_epoch(epoch)
        if epoch != (self._state["epoch"] if self._next_epoch is None else self._next_epoch):
            self._state, self._next_epoch, self._pass = {**self._state, "epoch": epoch, "position": 0}, None, None

    def state_dict(self) -> dict[str, object]:
        """Return the state after the last returned batch as JSON data. It is equal on all ranks."""
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of a loader, stream, StreamDataset or StatefulDataLoader.

        Raises:
            InvalidRequest: The state is invalid, or belongs to other samples.
        """
        self._stream.load_state_dict(dict(stream_state(state)))
        self._state, self._next_epoch, self._pass = self._stream.state_dict(), None, None

    def _run_stages(self, positioned: tuple[object, StreamPosition]) -> object:
        sample, position = positioned
        return next(self._stages.run((sample,), position.replace_skipped, position.rng), SKIPPED)


loader = Loader


def _size_batch_as_tensors(batches: list[Any]) -> Any:
    return torch.utils.data.default_convert(batches[0])


_CHUNKS_PER_THREAD = 4  # small chunks keep all threads busy, large chunks have less overhead


class _PendingBatch:
    def __init__(
        self, samples: Samples, function: Callable[[Any], Any], target: BatchRows | Callable[[Samples], Any],
        state: Any, stop: Event,
    ) -> None:  # fmt: skip
        self.state, self.done = state, Future[Any]()
        self._samples, self._function, self._target, self._stop = samples, function, target, stop
        self._keys = [sample["__key__"] for sample, _ in samples]
        self._lock = Lock()
        self._remaining = self._first_failed_row = len(samples)
        self._error: BaseException | None = None

    def start(self, decoders: ThreadPoolExecutor, chunk: int) -> None:
        for first in range(0, len(self._samples), chunk):
            decoders.submit(self._decode, first, min(first + chunk, len(self._samples)))

    def _decode(self, first: int, last: int) -> None:
        row = first
        try:
            for row in range(first, last):
                if self._stop.is_set() or row > self._first_failed_row:
                    break
                value, self._samples[row] = self._function(self._samples[row]), None
                if not isinstance(self._target, BatchRows):
                    self._samples[row] = value
                elif value is not SKIPPED:
                    self._target.put(row, value)
        except BaseException as error:  # noqa: BLE001 - the future `done` raises the error
            with self._lock:
                if row < self._first_failed_row:  # report the first failing sample
                    self._first_failed_row, self._error = row, error
        with self._lock:
            self._remaining -= last - first
            is_last = self._remaining == 0
        if is_last:
            self._finish()

    def _finish(self) -> None:
        error = self._error
        try:
            value = None if error or self._stop.is_set() else self._collate()
        except BaseException as caught:  # noqa: BLE001 - the future `done` raises the error
            error = caught
        if error is None:
            self.done.set_result(value)
        else:
            self._error = None
            self.done.set_exception(error)

    def _collate(self) -> object:
        if isinstance(self._target, BatchRows):
            return self._target.batch(self._keys)
        values = [value for value in self._samples if value is not SKIPPED]
        return self._target(values) if values else None


_NUMBER_TYPES = (bool, int, float, np.number, np.bool_)
_IN_ROW: Any = object()


class BatchRows:
    """Collects the samples of one batch, in pinned memory if `pin` is true."""

    def __init__(self, count: int, *, pin: bool, lists: ListFields = ()) -> None:
        self._count, self._pin, self._lists, self._lock = count, pin, lists, Lock()
        # the type and fields of each sample, or None for a skipped sample
        self._structures: list[tuple[type, list[object]] | None] = [None] * count
        self._fields: dict[object, _FieldRows] = {}

    def put(self, row: int, sample: object) -> None:
        """Store a sample."""
        structure, parts = split_sample(sample)
        for name, value in parts.items():
            field = self._fields.get(name)
            if field is None:
                with self._lock:
                    rows = _FieldRows(self._count, pin=self._pin, listed=name in self._lists)
                    field = self._fields.setdefault(name, rows)
            field.put(row, value)
        self._structures[row] = structure, [*parts]

    def batch(self, keys: list[object]) -> object:
        """Return the batch, or None if all samples were skipped. `keys` are for error messages."""
        filled = [(row, *fields) for row, fields in enumerate(self._structures) if fields is not None]
        if not filled:
            return None
        check_same_fields([(keys[row], structure, names) for row, structure, names in filled])
        _, structure, names = filled[0]
        check_lists(self._lists, names)
        rows = [row for row, *_ in filled]
        return join_sample(structure, {name: self._fields[name].batch(rows) for name in names})


class _FieldRows:
    def __init__(self, count: int, *, pin: bool, listed: bool) -> None:
        self._pin, self._listed, self._lock = pin, listed, Lock()
        self._values: list[Any] = [None] * count
        self._rows: torch.Tensor | None = None
        self._array: np.ndarray[Any, Any] | None = None

    def put(self, row: int, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            rows = None if self._listed else self._rows_like(value)
            if rows is not None and value.shape == rows.shape[1:] and value.dtype == rows.dtype:
                rows[row].copy_(value)
                value = _IN_ROW
        elif isinstance(value, np.ndarray) or hasattr(type(value), "__array_interface__"):
            # `np.asarray` also converts Pillow images
            array = np.asarray(value)
            if array.dtype.kind in "biufc" and array.dtype.isnative:
                if not self._listed:
                    self._rows_like(array)
                row_array = self._array
                if row_array is not None and array.shape == row_array.shape[1:] and array.dtype == row_array.dtype:
                    row_array[row] = array
                    array = _IN_ROW
                else:
                    tensor = torch.from_numpy(array.copy())
                    array = tensor.pin_memory() if self._pin else tensor
            value = array
        self._values[row] = value

    def _rows_like(self, value: Any) -> torch.Tensor:
        with self._lock:
            if self._rows is None:
                shape = (len(self._values), *value.shape)
                is_tensor = isinstance(value, torch.Tensor)
                if is_tensor or self._pin:
                    dtype = value.dtype if is_tensor else torch.from_numpy(np.empty(0, value.dtype)).dtype
                    self._rows = torch.empty(shape, dtype=dtype, pin_memory=self._pin)
                    self._array = None if dtype == torch.bfloat16 else self._rows.numpy()
                else:  # NumPy requests huge pages for large arrays, which saves most page faults
                    self._array = np.empty(shape, value.dtype)
                    self._rows = torch.from_numpy(self._array)
            return self._rows

    def batch(self, indexes: list[int]) -> object:
        values = self._values if len(indexes) == len(self._values) else [self._values[row] for row in indexes]
        if self._rows is not None:
            if all(value is _IN_ROW for value in values):
                return self._rows if values is self._values else self._rows[indexes]
            return [self._rows[row] if value is _IN_ROW else value for row, value in zip(indexes, values, strict=True)]
        return values if self._listed else _numbers_as_tensor(values, pin=self._pin)


def _numbers_as_tensor(values: list[Any], *, pin: bool) -> object:
    kinds = {type(value) for value in values}
    if not all(issubclass(kind, _NUMBER_TYPES) for kind in kinds) or (bool in kinds and len(kinds) > 1):
        return values
    try:
        numbers = torch.from_numpy(np.array(values, np.int64 if kinds == {int} else None))
    except (OverflowError, TypeError):
        return values
    return numbers.pin_memory() if pin else numbers


def collate(samples: list[Any], lists: ListFields = ()) -> Any:
    """Make a batch of samples, as `shardtool.torch.loader` does. Pass this function to a DataLoader as `collate_fn`.

    Fields, or tuple positions, in `lists` become a list of tensors. To pass `lists`, use `functools.partial`.

    Raises:
        InvalidRequest: `lists` names an unknown field.
        SampleFailed: The samples have different fields or structures.
    """
    rows = BatchRows(len(samples), pin=False, lists=lists)
    for row, sample in enumerate(samples):
        rows.put(row, sample)
    return rows.batch([sample.get("__key__") if isinstance(sample, dict) else None for sample in samples])
