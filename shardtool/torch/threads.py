"""Samples read, decoded and collated in threads, in order: what a pass over a loader does.

Three kinds of threads take part, and none outlives the pass:

- The source's own reads shards ahead (`reading/stream.py`).
- One feeds: it takes the samples of a batch from the source, and hands them to the decoders in small chunks.
- The decoders call the function with each sample, and put what it returns into its row of the batch (`batches.py`).
  The thread that puts the last row of a batch collates it.

At most `depth` batches are under way. Batches come out in their order, whichever thread is fastest, and an error comes
in the place of its batch. A task of any thread ends by itself, so that a program can end in the middle of a pass.
"""

from __future__ import annotations

import sys
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, Protocol

from shardtool.torch.batches import BatchRows

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    Samples = list[Any]

_CHUNKS = 4  # of a batch, for each thread: small ones keep all threads busy to the end, large ones cost less


class Source(Protocol):
    """An ordered source of samples that knows where it is."""

    def __iter__(self) -> Iterator[Any]:
        """Yield samples from where the source is."""

    def state_dict(self) -> dict[str, object]:
        """Return where it is: after the last sample that it yielded."""


@dataclass(frozen=True)
class Work:
    """What becomes of samples.

    Attributes:
        function: Called with each sample; what it returns is put into the batch.
        left_out: What the function returns for a sample that the batch goes without.
        batch_size: Samples of a batch.
        drop_last: Whether a last batch that is smaller is left out.
        collate: Called with the list of a batch's samples; None: they are put into rows.
        pin: Whether tensors lie in pinned memory.
        key: Returns the key of a sample, for messages.
    """

    function: Callable[[Any], Any]
    left_out: object
    batch_size: int
    drop_last: bool
    collate: Callable[[Samples], Any] | None
    pin: bool
    key: Callable[[Any], object]


def batches(source: Source, work: Work, threads: int, depth: int) -> Generator[list[Any], None, None]:
    """Yield each batch, and the source's state after it, as a list: who empties it holds the only reference."""
    stop, samples = Event(), iter(source)
    feeder, decoders = ThreadPoolExecutor(1, "shardtool-feed"), ThreadPoolExecutor(threads, "shardtool-decode")

    ending = sys.is_finalizing  # where this pass is left to the program's end, all threads have been waited for

    def feed() -> _Batch | None:
        some = list(islice(samples, work.batch_size))
        if not some or (work.drop_last and len(some) < work.batch_size):
            return None
        batch = _Batch(some, source.state_dict(), work, stop)
        batch.start(decoders, -(-len(some) // (_CHUNKS * threads)))
        return batch

    coming = deque(feeder.submit(feed) for _ in range(depth))
    try:
        while (batch := coming.popleft().result()) is not None:
            coming.append(feeder.submit(feed))
            handed = [batch.done.result(), batch.state]
            del batch
            if handed[0] is not None:
                yield handed
    finally:
        stop.set()
        if not ending():
            feeder.shutdown(cancel_futures=True)
            decoders.shutdown(cancel_futures=True)
        close = getattr(samples, "close", None)
        if close:
            close()


class _Batch:
    """A batch under way.

    Attributes:
        state: The source's after it.
        done: The batch; None: all of its samples were left out.
    """

    def __init__(self, samples: Samples, state: dict[str, object], work: Work, stop: Event) -> None:
        self.state, self.done = state, Future[Any]()
        self._samples, self._work, self._stop = samples, work, stop
        self._keys = [*map(work.key, samples)]
        self._into: BatchRows | _Listed = (
            _Listed(len(samples), work.collate) if work.collate else BatchRows(len(samples), pin=work.pin)
        )
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
                value = self._work.function(self._samples[row])
                self._samples[row] = None
                if value is not self._work.left_out:
                    self._into.put(row, value)
        except BaseException as error:  # noqa: BLE001 - raised where the batch is asked for
            self._fail(row, error)
        with self._lock:
            self._open -= last - first
            ends = self._open == 0
        if ends:
            self._end()

    def _fail(self, row: int, error: BaseException) -> None:
        """Keep the error of the first sample that has one, whichever thread came upon one first."""
        with self._lock:
            if row < self._failed:
                self._failed, self._error = row, error

    def _end(self) -> None:
        error = self._error
        try:
            value = None if error or self._stop.is_set() else self._into.batch(self._keys)
        except BaseException as caught:  # noqa: BLE001 - as above
            error = caught
        if error is None:
            self.done.set_result(value)
        else:
            self._error = None
            self.done.set_exception(error)


class _Listed:
    """The samples of a batch as a list, for a function that makes the batch of it."""

    def __init__(self, count: int, collate: Callable[[Samples], Any]) -> None:
        self._samples: Samples = [None] * count
        self._there, self._collate = [False] * count, collate

    def put(self, row: int, sample: Any) -> None:
        self._samples[row], self._there[row] = sample, True

    def batch(self, keys: list[object]) -> Any:  # noqa: ARG002 - as for `BatchRows`
        kept = [sample for sample, there in zip(self._samples, self._there, strict=True) if there]
        return self._collate(kept) if kept else None
