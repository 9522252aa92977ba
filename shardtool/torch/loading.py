"""`shardtool.torch.loader`: batches that threads read, decode and collate, in order, for one rank.

Three kinds of threads take part in a pass, and none outlives it:

- The source's own reads shards ahead (`read/stream.py`).
- One feeds: it takes the samples of a batch from the source, and hands them to the decoders in small chunks.
- The decoders call the function with each sample, and put what it returns into its row of the batch (`BatchRows`).
  The thread that puts the last row of a batch collates it.

At most `depth` batches are under way. Batches come out in their order, whichever thread is fastest, and an error comes
in the place of its batch. A task of any thread ends by itself, so that a program can end in the middle of a pass.
"""

from __future__ import annotations

import sys
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field
from itertools import islice
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch

from shardtool.errors import SampleFailed, listing
from shardtool.execute.pool import cores
from shardtool.read.bundles import Batches
from shardtool.read.chain import Batch, Lists, Stages, check_lists
from shardtool.request.settings import check_least
from shardtool.torch.datasets import Streaming, stream_state

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    from shardtool.read.fetch import SkippedSamples
    from shardtool.read.stream import Stream, StreamPosition

    Samples = list[Any]
    State = dict[str, object]

LEFT_OUT = object()  # what becomes of a sample that its batch goes without


@dataclass(eq=False)
class Loader(Streaming):
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
    lists: Lists = ()
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
                check_least(name, value)
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
        counts = Stages((Batch(self.batch_size, self.drop_last),))

        def state() -> tuple[State, int]:
            return stream.state_dict(), stream.next_epoch(counts)

        pin = torch.cuda.is_available() if self.pin_memory is None else self.pin_memory
        collate = _only if any(isinstance(stage, Batches) for stage in self._stages.stages) else None
        work = SampleWork(self._changed, self.batch_size, self.drop_last, self.collate or collate, pin, self.lists)
        samples = ((sample, stream.place()) for sample in stream)
        passing = batches(samples, state, work, self.threads or cores(), self.depth)
        try:
            for handed in passing:
                self._note(now, handed.pop())
                yield handed.pop()
        finally:
            passing.close()
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
        return next(self._stages.run((sample,), place.left_out, place.rng), LEFT_OUT)


loader = Loader


def _only(batches: list[Any]) -> Any:
    """Return a batch by size, which is one already, with its arrays as tensors."""
    return torch.utils.data.default_convert(batches[0])


# A batch that threads fill: each sample goes into its row as soon as it is decoded, and no step at the end copies.
#
# Values of a field that are arrays, tensors or images of one shape and type become a tensor [samples, ...], of several
# shapes a list of tensors; numbers a tensor of int64, float64 or bool; all else a list. Tensors are torch's own memory:
# of pinned memory its allocator keeps what is freed, and gives it again only when no copy to a device reads it any
# more.


_NUMBERS = (bool, int, float, np.number, np.bool_)


_PLACED: Any = object()  # stands for a value that lies in its row


def _parts(sample: object) -> tuple[type, Mapping[object, object]]:
    """Return the form of a sample, which is the same for all of a batch, and its fields, or its values by place."""
    if isinstance(sample, dict):
        return dict, sample
    return (tuple, dict(enumerate(sample))) if isinstance(sample, tuple) else (object, {0: sample})


class BatchRows:
    """The samples of one batch; threads put them in, each into a row of its own.

    Args:
        count: Rows there are.
        pin: Whether tensors lie in pinned memory.
        lists: Fields that become lists.
    """

    def __init__(self, count: int, *, pin: bool, lists: Lists = ()) -> None:
        self._count, self._pin, self._lists, self._lock = count, pin, lists, Lock()
        self._forms: list[tuple[type, list[object]] | None] = [None] * count  # None: the sample is left out
        self._fields: dict[object, _Field] = {}

    def put(self, row: int, sample: object) -> None:
        """Put a sample into its row."""
        kind, parts = _parts(sample)
        for name, value in parts.items():
            field = self._fields.get(name)
            if field is None:
                with self._lock:
                    made = _Field(self._count, pin=self._pin, listed=name in self._lists)
                    field = self._fields.setdefault(name, made)
            field.put(row, value)
        self._forms[row] = kind, [*parts]

    def batch(self, keys: list[object]) -> object:
        """Return the batch; None: all of its samples were left out.

        Args:
            keys: Of the rows, for messages.

        Raises:
            InvalidRequest: One of `lists` is no field.
            SampleFailed: A sample has other fields than the first.
        """
        there = [(row, *form) for row, form in enumerate(self._forms) if form is not None]
        if not there:
            return None
        _, kind, names = there[0]
        for row, other, found in there:
            if other is not kind or {*found} != {*names}:
                raise _unlike(keys[row], found if other is kind else None, names)
        check_lists(self._lists, names)
        kept = [row for row, *_ in there]
        fields = {name: self._fields[name].batch(kept) for name in names}
        if kind is object:
            return fields[0]
        return fields if kind is dict else tuple(fields.values())


class _Field:
    """The values of one field; those that are listed have no rows."""

    def __init__(self, count: int, *, pin: bool, listed: bool) -> None:
        self._pin, self._listed, self._lock = pin, listed, Lock()
        self._values: list[Any] = [None] * count
        self._rows: torch.Tensor | None = None
        self._array: np.ndarray[Any, Any] | None = None  # the same memory

    def put(self, row: int, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            rows = None if self._listed else self._rows_like(value)
            if rows is not None and value.shape == rows.shape[1:] and value.dtype == rows.dtype:
                rows[row].copy_(value)
                value = _PLACED
        elif isinstance(value, np.ndarray) or hasattr(type(value), "__array_interface__"):  # Pillow's images
            array = np.asarray(value)
            if array.dtype.kind in "biufc" and array.dtype.isnative:
                if not self._listed:
                    self._rows_like(array)
                ours = self._array
                if ours is not None and array.shape == ours.shape[1:] and array.dtype == ours.dtype:
                    ours[row] = array
                    array = _PLACED
                else:
                    tensor = torch.from_numpy(array.copy())  # as the others of its list
                    array = tensor.pin_memory() if self._pin else tensor
            value = array
        self._values[row] = value

    def _rows_like(self, value: Any) -> torch.Tensor:
        """Return the field's rows; the first value says what they are."""
        with self._lock:
            if self._rows is None:
                tensor = isinstance(value, torch.Tensor)
                dtype = value.dtype if tensor else torch.from_numpy(np.empty(0, value.dtype)).dtype
                self._rows = torch.empty((len(self._values), *value.shape), dtype=dtype, pin_memory=self._pin)
                self._array = None if dtype == torch.bfloat16 else self._rows.numpy()
            return self._rows

    def batch(self, kept: list[int]) -> object:
        values = self._values if len(kept) == len(self._values) else [self._values[row] for row in kept]
        if self._rows is not None:
            if all(value is _PLACED for value in values):
                return self._rows if values is self._values else self._rows[kept]
            return [self._rows[row] if value is _PLACED else value for row, value in zip(kept, values, strict=True)]
        return values if self._listed else _numbers(values, pin=self._pin)


def _numbers(values: list[Any], *, pin: bool) -> object:
    """Return numbers as a tensor, and other values as they are."""
    kinds = {type(value) for value in values}
    if not all(issubclass(kind, _NUMBERS) for kind in kinds) or (bool in kinds and len(kinds) > 1):
        return values
    try:
        numbers = torch.from_numpy(np.array(values))
    except (OverflowError, TypeError):  # integers of more than 64 bits
        return values
    return numbers.pin_memory() if pin else numbers


def _unlike(key: object, found: list[object] | None, first: list[object]) -> SampleFailed:
    """Return the error of a sample with other fields than the first of its batch; None: it has another form."""
    if found is None:
        return SampleFailed(f"sample {key}", "not of the same form as the first of its batch")
    there, expected = (listing([str(name) for name in names if str(name)[:2] != "__"]) for names in (found, first))
    remedy = "Choose the fields that all samples have with select(...) or tuple(...)."
    expected += ", as in the first of its batch"
    return SampleFailed(f"sample {key}", f"fields {there}", expected=expected, remedy=remedy)


def collate(samples: list[Any], lists: Lists = ()) -> Any:
    """Return samples as one batch, as a loader makes it: the `collate_fn` of a DataLoader.

    Args:
        samples: Dicts, tuples or values.
        lists: Fields, or places in tuples, that become a list of tensors in any case: give them by `functools.partial`.

    Raises:
        InvalidRequest: One of `lists` is no field.
        SampleFailed: A sample has other fields than the first.
    """
    rows = BatchRows(len(samples), pin=False, lists=lists)
    for row, sample in enumerate(samples):
        rows.put(row, sample)
    return rows.batch([sample.get("__key__") if isinstance(sample, dict) else None for sample in samples])


_CHUNKS = 4  # of a batch, for each thread: small ones keep all threads busy to the end, large ones cost less


class SampleWork(NamedTuple):
    """What becomes of samples.

    Attributes:
        function: Called with each sample and its place; what it returns is put into the batch, but for `LEFT_OUT`.
        batch_size: Samples of a batch.
        drop_last: Whether a last batch that is smaller is left out.
        collate: Called with the list of a batch's samples; None: they are put into rows.
        pin: Whether tensors lie in pinned memory.
        lists: Fields that become lists.
    """

    function: Callable[[Any], Any]
    batch_size: int
    drop_last: bool
    collate: Callable[[Samples], Any] | None
    pin: bool
    lists: Lists = ()


def batches(
    samples: Generator[Any], state_of: Callable[[], Any], work: SampleWork, threads: int, depth: int
) -> Generator[list[Any]]:
    """Yield each batch, and the samples' state after it, as a list: who empties it holds the only reference.

    Args:
        samples: Each with its place, in order; closed at the end.
        state_of: Returns where they are: after the last one that was taken.
        work: What becomes of them.
        threads: That decode.
        depth: How many batches are under way beside the one that was handed out last.
    """
    stop, feeder = Event(), ThreadPoolExecutor(1, "shardtool-feed")
    decoders = ThreadPoolExecutor(threads, "shardtool-decode")
    ending = sys.is_finalizing  # where this pass is left to the program's end, all threads have been waited for

    def feed() -> _Batch | None:
        some = list(islice(samples, work.batch_size))
        if not some or (work.drop_last and len(some) < work.batch_size):
            return None
        batch = _Batch(some, state_of(), work, stop)
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
        samples.close()


class _Batch:
    """A batch under way.

    Attributes:
        state: The samples' after it.
        done: The batch; None: all of its samples were left out.
    """

    def __init__(self, samples: Samples, state: Any, work: SampleWork, stop: Event) -> None:
        self.state, self.done = state, Future[Any]()
        self._samples, self._work, self._stop = samples, work, stop
        self._keys = [sample["__key__"] for sample, _ in samples]
        self._rows = None if work.collate else BatchRows(len(samples), pin=work.pin, lists=work.lists)
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
                self._samples[row] = None if self._rows else value
                if self._rows and value is not LEFT_OUT:
                    self._rows.put(row, value)
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
        if self._rows is not None:
            return self._rows.batch(self._keys)
        kept = [value for value in self._samples if value is not LEFT_OUT]
        return self._work.collate(kept) if kept and self._work.collate else None
