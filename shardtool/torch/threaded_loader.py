"""Batches for training: read, decoded and collated in threads, in order, without worker processes.

Three kinds of threads take part in a pass of a loader, and none outlives it:

- The stream's thread reads shards ahead.
- One thread takes the samples of a batch from the stream, and passes them to the decoders in small chunks.
- The decoder threads run the stages and put each value into its row of the batch (`BatchRows`). The thread that
  puts the
  last row of a batch collates it.

At most `depth` batches are in progress. Batches come out in order, whichever thread finishes first.
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


SKIPPED = object()  # what becomes of a sample that its batch goes without


@dataclass(eq=False)
class Loader(StreamOptions):
    """Batches of a dataset, read, decoded and collated in threads: no worker processes, and nothing is pickled.

    Threads need no interpreter lock while they read files and while Pillow or NumPy work; a `transform` in pure Python
    holds it, and is faster in the worker processes of a DataLoader.

    Each iteration begins at the start of the current epoch, as that of a stream does: after a whole epoch that is the
    next one, in another order. Where a state was loaded, one iteration goes on from there.

    A batch has the form of a sample: a dict of fields, or a tuple. Arrays and images of one shape become a tensor
    [samples, ...], in pinned memory where there is a GPU, and of several shapes a list of tensors; numbers a tensor of
    int64, float64 or bool; all else a list.

    Attributes:
        threads: That decode; None: as many as this process may use cores.
        drop_last: Whether a last batch that is smaller is left out.
        lists: Fields, or places in tuples, that become a list of tensors in any case, though a batch may have values of
            one shape: boxes, images of several sizes.
        collate: Called with the list of a batch's samples, and returns the batch; None: as above.
        pin_memory: Whether tensors lie in pinned memory; None: where there is a GPU.
        depth: How many batches are under way beside the one that was handed out last.
    """

    threads: int | None = None
    drop_last: bool = False
    lists: ListFields = ()
    collate: Callable[[list[Any]], Any] | None = None
    pin_memory: bool | None = None
    depth: int = 3
    _state: State = field(init=False, repr=False)
    _next: int | None = field(init=False, repr=False, default=None)  # epoch to begin; None: goes on from the state
    _pass: object = field(init=False, repr=False, default=None)  # that runs

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("threads", self.threads), ("depth", self.depth)):
            if value is not None:
                check_minimum(name, value)
        self._state = self._stream.state_dict()

    def __len__(self) -> int:
        """Return how many batches a whole epoch has."""
        return Batch(self.batch_size, self.drop_last).count(len(self._stream))

    def __iter__(self) -> Iterator[Any]:
        stream, self._pass = copy(self._stream), (now := object())
        if self._next is not None:
            self._state = {**self._state, "epoch": self._next, "position": 0}
        stream.load_state_dict(self._state)
        self._next = cast("int", self._state["epoch"])
        return self._batches(stream, now)

    def _batches(self, stream: Stream, now: object) -> Iterator[Any]:
        """Yield the batches of a pass; note the state after each, and the next epoch, when it is handed out."""
        counts, threads = Pipeline((Batch(self.batch_size, self.drop_last),)), self.threads or usable_cores()
        pin = torch.cuda.is_available() if self.pin_memory is None else self.pin_memory
        collate = self.collate or (
            _size_batch_as_tensors if any(isinstance(one, SizeBatches) for one in self._stages.stages) else None
        )
        stop, feeder = Event(), ThreadPoolExecutor(1, "shardtool-feed")
        decoders = ThreadPoolExecutor(threads, "shardtool-decode")
        ending = sys.is_finalizing  # where this pass is left to the program's end, all threads have been waited for
        samples = ((sample, stream.place()) for sample in stream)

        def state() -> tuple[State, int]:
            return stream.state_dict(), stream.next_epoch(counts)

        def feed() -> _PendingBatch | None:
            some = list(islice(samples, self.batch_size))
            if not some or (self.drop_last and len(some) < self.batch_size):
                return None
            into = collate or BatchRows(len(some), pin=pin, lists=self.lists)
            batch = _PendingBatch(some, self._changed, into, state(), stop)
            batch.start(decoders, -(-len(some) // (_CHUNKS_PER_THREAD * threads)))
            return batch

        coming = deque(feeder.submit(feed) for _ in range(self.depth))
        try:
            while (batch := coming.popleft().result()) is not None:
                coming.append(feeder.submit(feed))
                handed, after = [batch.done.result()], batch.state
                del batch
                if handed[0] is not None:
                    self._note(now, after)
                    yield handed.pop()  # whoever takes it holds the only reference
        finally:
            stop.set()
            if not ending():
                feeder.shutdown(cancel_futures=True)
                decoders.shutdown(cancel_futures=True)
            samples.close()
        self._note(now, state())

    def _note(self, now: object, state: tuple[State, int]) -> None:
        """Note the state of a pass, and the epoch of the next, unless another pass or epoch came after it."""
        if self._pass is now:
            self._state, self._next = state

    @property
    def skipped(self) -> SkippedSamples:
        """What was left out so far, as `on_error` or `missing` said: damaged samples, and those that the chain left."""
        return self._stream.skipped

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration read an epoch from its start; in that of a state that was loaded, from the state."""
        epoch = self._checked_epoch(epoch)
        if epoch != (self._state["epoch"] if self._next is None else self._next):
            self._state, self._next, self._pass = {**self._state, "epoch": epoch, "position": 0}, None, None

    def state_dict(self) -> dict[str, object]:
        """Return the state after the last batch that was handed out: the same for all ranks at the same step; JSON."""
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on from a state: of a loader, a stream, a StreamDataset or a StatefulDataLoader.

        Raises:
            InvalidRequest: It is no such state, or one of other samples.
        """
        self._stream.load_state_dict(dict(stream_state(state)))
        self._state, self._next, self._pass = self._stream.state_dict(), None, None

    def _changed(self, given: tuple[object, StreamPosition]) -> object:
        sample, place = given
        return next(self._stages.run((sample,), place.left_out, place.rng), SKIPPED)


loader = Loader


def _size_batch_as_tensors(batches: list[Any]) -> Any:
    """Return a batch by size, which is one already, with its arrays as tensors."""
    return torch.utils.data.default_convert(batches[0])


_CHUNKS_PER_THREAD = 4  # of a batch, for each thread: small ones keep all threads busy to the end, large ones cost less


class _PendingBatch:
    """A batch under way.

    Args:
        samples: Each with its place.
        function: Called with each of these; what it returns comes into the batch, but for `SKIPPED`.
        into: What makes the batch: the rows that it is put into, or a function of a list.
        state: The samples' after it.
        stop: Set where the batch is no longer wanted.

    Attributes:
        state: As given.
        done: The batch; None: all of its samples were left out.
    """

    def __init__(
        self, samples: Samples, function: Callable[[Any], Any], into: BatchRows | Callable[[Samples], Any], state: Any,
        stop: Event,
    ) -> None:  # fmt: skip
        self.state, self.done = state, Future[Any]()
        self._samples, self._function, self._into, self._stop = samples, function, into, stop
        self._keys = [sample["__key__"] for sample, _ in samples]
        self._lock, self._open, self._failed = Lock(), len(samples), len(samples)
        self._error: BaseException | None = None

    def start(self, decoders: ThreadPoolExecutor, chunk: int) -> None:
        """Hand the samples to the decoders."""
        for first in range(0, len(self._samples), chunk):
            decoders.submit(self._decode, first, min(first + chunk, len(self._samples)))

    def _decode(self, first: int, last: int) -> None:
        """Put samples into their rows, and end the batch if no others are open."""
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
        except BaseException as error:  # noqa: BLE001 - raised where the batch is asked for
            with self._lock:
                if row < self._failed:  # of all samples, the first one's, whichever thread came upon one first
                    self._failed, self._error = row, error
        with self._lock:
            self._open -= last - first
            ends = self._open == 0
        if ends:
            self._end()

    def _end(self) -> None:
        error = self._error
        try:
            value = None if error or self._stop.is_set() else self._collated()
        except BaseException as caught:  # noqa: BLE001 - as above
            error = caught
        if error is None:
            self.done.set_result(value)
        else:
            self._error = None
            self.done.set_exception(error)

    def _collated(self) -> object:
        if isinstance(self._into, BatchRows):
            return self._into.batch(self._keys)
        kept = [value for value in self._samples if value is not SKIPPED]
        return self._into(kept) if kept else None
