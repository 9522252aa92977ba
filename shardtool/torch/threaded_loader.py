"""Batches for training: read, decoded and collated in threads, in order.

The stream's thread reads shards ahead, another passes samples to the decoders in chunks, and the decoder threads run
the stages and fill rows of the batch (`BatchRows`). The last one collates.
"""

from __future__ import annotations

import sys
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field
from itertools import islice
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, cast

import torch

from shardtool.execute.local_pool import usable_cores
from shardtool.read.bucketing import SizeBatches
from shardtool.read.collate import Batch
from shardtool.read.pipeline import Pipeline
from shardtool.request.option_checks import check_minimum
from shardtool.torch.batch_rows import BatchRows
from shardtool.torch.streaming import StreamOptions
from shardtool.torch.worker_state import stream_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from shardtool.read.collate import ListFields
    from shardtool.read.sample_reader import SkippedSamples
    from shardtool.read.stream import Stream, StreamPosition

    Samples = list[Any]
    State = dict[str, object]


SKIPPED = object()  # replaces a skipped sample


@dataclass(eq=False, repr=False)
class Loader(StreamOptions):
    """Batches of a dataset, read, decoded and collated in threads, without worker processes or pickling.

    Threads run in parallel while they read files and while Pillow or NumPy work. A `transform` in pure Python holds the
    interpreter lock, and is faster in a DataLoader.

    Each iteration starts the current epoch; a complete one moves the loader to the next epoch. After `load_state_dict`,
    one iteration continues from the state.

    A batch has the form of a sample, a dict or a tuple. Arrays and images of one shape become a tensor [samples, ...],
    in pinned memory if there is a GPU; of several shapes, a list of tensors. Numbers become a tensor of int64, float64
    or bool. Everything else becomes a list.

    Attributes:
        threads: Decoder threads. None: the number of usable cores.
        drop_last: Skip the last batch if it is smaller.
        lists: Fields, or tuple positions, that always become a list of tensors, such as boxes.
        collate: Makes a batch from a list of samples.
        pin_memory: None: if there is a GPU.
        depth: Batches prepared ahead.

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
    _next: int | None = field(init=False, repr=False, default=None)  # None: continue from `_state`
    _pass: object = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("threads", self.threads), ("depth", self.depth)):
            if value is not None:
                check_minimum(name, value)
        self._state = self._stream.state_dict()

    def __len__(self) -> int:
        """Return the number of batches in a whole epoch."""
        return Batch(self.batch_size, self.drop_last).count(len(self._stream))

    def __iter__(self) -> Iterator[Any]:
        stream, self._pass = copy(self._stream), (this_pass := object())
        if self._next is not None:
            self._state = {**self._state, "epoch": self._next, "position": 0}
        stream.load_state_dict(self._state)
        self._next = cast("int", self._state["epoch"])
        return self._batches(stream, this_pass)

    def _batches(self, stream: Stream, this_pass: object) -> Iterator[Any]:
        counts, threads = Pipeline((Batch(self.batch_size, self.drop_last),)), self.threads or usable_cores()
        pin = torch.cuda.is_available() if self.pin_memory is None else self.pin_memory
        collate = self.collate or (
            _size_batch_as_tensors if any(isinstance(stage, SizeBatches) for stage in self._stages.stages) else None
        )
        stop, feeder = Event(), ThreadPoolExecutor(1, "shardtool-feed")
        decoders = ThreadPoolExecutor(threads, "shardtool-decode")
        ending = sys.is_finalizing  # at interpreter exit, all threads have been joined
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
                    yield result.pop()
        finally:
            stop.set()
            if not ending():
                feeder.shutdown(cancel_futures=True)
                decoders.shutdown(cancel_futures=True)
            samples.close()
        self._record_state(this_pass, state())

    def _record_state(self, this_pass: object, state: tuple[State, int]) -> None:
        if self._pass is this_pass:
            self._state, self._next = state

    @property
    def skipped(self) -> SkippedSamples:
        """Damaged samples, and those dropped by stages."""
        return self._stream.skipped

    def set_epoch(self, epoch: int) -> None:
        """Start the next iteration at an epoch; keep a loaded state of the same epoch."""
        epoch = self._check_epoch(epoch)
        if epoch != (self._state["epoch"] if self._next is None else self._next):
            self._state, self._next, self._pass = {**self._state, "epoch": epoch, "position": 0}, None, None

    def state_dict(self) -> dict[str, object]:
        """Return the state after the last batch, as JSON data, equal for all ranks."""
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of a loader, stream, StreamDataset or StatefulDataLoader.

        Raises:
            InvalidRequest: The state is invalid, or belongs to other samples.
        """
        self._stream.load_state_dict(dict(stream_state(state)))
        self._state, self._next, self._pass = self._stream.state_dict(), None, None

    def _run_stages(self, positioned: tuple[object, StreamPosition]) -> object:
        sample, position = positioned
        return next(self._stages.run((sample,), position.replace_skipped, position.rng), SKIPPED)


loader = Loader


def _size_batch_as_tensors(batches: list[Any]) -> Any:
    return torch.utils.data.default_convert(batches[0])


_CHUNKS_PER_THREAD = 4  # smaller chunks balance the threads, larger ones cost less


class _PendingBatch:
    """A batch in progress."""

    def __init__(
        self, samples: Samples, function: Callable[[Any], Any], into: BatchRows | Callable[[Samples], Any], state: Any,
        stop: Event,
    ) -> None:  # fmt: skip
        self.state, self.done = state, Future[Any]()
        self._samples, self._function, self._into, self._stop = samples, function, into, stop
        self._keys = [sample["__key__"] for sample, _ in samples]
        self._lock, self._remaining, self._failed = Lock(), len(samples), len(samples)
        self._error: BaseException | None = None

    def start(self, decoders: ThreadPoolExecutor, chunk: int) -> None:
        for first in range(0, len(self._samples), chunk):
            decoders.submit(self._decode, first, min(first + chunk, len(self._samples)))

    def _decode(self, first: int, last: int) -> None:
        row = first
        try:
            for row in range(first, last):
                if self._stop.is_set() or row > self._failed:
                    break
                value, self._samples[row] = self._function(self._samples[row]), None
                if not isinstance(self._into, BatchRows):
                    self._samples[row] = value
                elif value is not SKIPPED:
                    self._into.put(row, value)
        except BaseException as error:  # noqa: BLE001 - raised when the batch is requested
            with self._lock:
                if row < self._failed:  # report the first failing sample
                    self._failed, self._error = row, error
        with self._lock:
            self._remaining -= last - first
            is_last = self._remaining == 0
        if is_last:
            self._finish()

    def _finish(self) -> None:
        error = self._error
        try:
            value = None if error or self._stop.is_set() else self._collate()
        except BaseException as caught:  # noqa: BLE001 - as above
            error = caught
        if error is None:
            self.done.set_result(value)
        else:
            self._error = None
            self.done.set_exception(error)

    def _collate(self) -> object:
        if isinstance(self._into, BatchRows):
            return self._into.batch(self._keys)
        values = [value for value in self._samples if value is not SKIPPED]
        return self._into(values) if values else None
