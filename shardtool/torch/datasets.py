"""Datasets for PyTorch's own `DataLoader`, and for torchdata's StatefulDataLoader: by number, and as a stream.

A stream's samples are divided among ranks and loader workers in batches: worker w of N takes the batches n with
n % N == w, and the DataLoader puts them together again in that order. So the batches are the same for any number of
workers, and the n-th of all ranks together hold the same samples for any number of ranks.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.data

from shardtool.errors import InvalidRequest, PlainError, SampleFailed
from shardtool.read.dataset import Dataset
from shardtool.storage.shared import SharedBlocks
from shardtool.torch.streaming import (
    WORKERS,
    Decoders,
    SkipTally,
    Streaming,
    Transform,
    WorkerState,
    chained,
    stream_state,
    unchained,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import FrameType

    from shardtool.read.chain.stages import Stages
    from shardtool.read.fetch import SkippedSamples
    from shardtool.read.stream import Stream

_DIVIDERS = {"IterableDatasetShard", "DataLoaderDispatcher"}  # of accelerate, and the first of transformers, too


@contextmanager
def _whole_errors() -> Iterator[None]:
    """Have an error that leaves a DataLoader's worker arrive as what it is: PyTorch hands on its class and its text."""
    try:
        yield
    except PlainError as error:
        if torch.utils.data.get_worker_info():
            error.put_into_text()
        raise


@dataclass(eq=False)
class MapDataset(torch.utils.data.Dataset):  # type: ignore[misc]
    """Samples by number, for a `DataLoader` with any sampler. A batch is read in file order, with few system calls.

    Attributes:
        dataset: What is read. Its own chain (`decode`, `map`, `select`, `tuple`) comes before `decode`.
        decode: True: all fields by their names, as `Dataset.decode` does; or field to decoder; None: as the chain does.
        transform: Called with each sample, after all else.
        labels: Key to label, which becomes the field `label`.
    """

    dataset: Dataset
    decode: Decoders = None
    transform: Transform | None = None
    labels: Mapping[str, Any] | None = field(default=None, repr=False)
    _bare: Dataset = field(init=False, repr=False)
    _stages: Stages = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._bare, stages = unchained(self.dataset, (Dataset,))
        self._stages = chained(stages, self.decode, self.labels, self.transform)

    def __len__(self) -> int:
        return len(self._bare)

    @_whole_errors()
    def __getitem__(self, which: int) -> Any:
        return self._stages.apply(self._bare[which])

    def __getstate__(self) -> dict[str, Any]:
        return {"_stages": self._stages, **vars(self)}  # first: it says which function cannot be pickled

    @_whole_errors()
    def __getitems__(self, which: Sequence[int]) -> list[Any]:
        """Return the samples of a batch: what a DataLoader calls where it is there.

        Raises:
            SampleFailed: All are damaged, and left out: a DataLoader can leave out samples, but no batch.
        """
        found = self._bare[list(which)]
        if not found and len(which):
            remedy = "Take a stream or a loader, which goes on with other samples."
            raise SampleFailed("a batch", f"all of its {len(which)} samples are damaged", remedy=remedy)
        return [self._stages.apply(sample) for sample in found]


@dataclass(eq=False)
class StreamDataset(Streaming, torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Samples as a stream, for a `DataLoader` with the same `batch_size` and any number of workers.

    Each pass reads the epoch that `set_epoch` says: call it before each pass, as for a DistributedSampler. It reaches
    workers that persist, too. A state (`state_at`, or a StatefulDataLoader's) goes on with any number of ranks and
    workers.
    """

    _tallies: SharedBlocks = field(init=False, repr=False, default_factory=partial(SharedBlocks, WORKERS))
    _at: torch.Tensor = field(init=False, repr=False)  # epoch and position, in memory that workers share
    _resumed: WorkerState | None = field(init=False, repr=False, default=None)
    _pass: WorkerState | None = field(init=False, repr=False, default=None)  # where the pass of this process began
    _reading: Stream | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        now: dict[str, Any] = self._stream.state_dict()
        self._at = torch.tensor([now["epoch"], now["position"]]).share_memory_()

    def __len__(self) -> int:
        return len(self._stream)

    def __iter__(self) -> Iterator[Any]:
        self._check_undivided(inspect.currentframe())
        with _whole_errors():
            return self._begun()

    def _begun(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        resumed, self._resumed = self._resumed, None
        stream = self._next_pass()
        if resumed:
            stream.load_state_dict(resumed.start)
        start: dict[str, Any] = stream.state_dict()
        position = resumed.position if resumed else start["position"]
        self._reading = stream.divided(worker, workers, self.batch_size, position).with_stages(self._stages)
        self._pass = WorkerState(start, stream.end, stream.world_size, worker, workers, self.batch_size, position)
        self._reading.skipped = tally = SkipTally(self._tallies, worker)
        return self._checked_batches(iter(self._reading), workers, tally)

    @property
    def skipped(self) -> SkippedSamples:
        """What was left out so far, in all workers; while they run, a count may lag behind by a part in sixteen."""
        told = SkipTally.total(self._tallies)
        return max(told, self._reading.skipped if self._reading else told, key=lambda one: one.samples)

    def _checked_batches(self, samples: Iterator[Any], workers: int, tally: SkipTally) -> Iterator[Any]:
        """Yield samples, after a look at how many the DataLoader wants at a time: nothing else tells its batch size.

        Raises:
            InvalidRequest: It is another one, so that workers and states would count other batches.
        """
        frame = inspect.currentframe()
        with _whole_errors():
            self._check_batch_size(frame.f_back.f_locals if frame and frame.f_back else {}, workers)
            del frame  # and the cycle that it is
            try:
                yield from samples
            finally:
                tally.tell()

    def _check_batch_size(self, caller: Mapping[str, Any], workers: int) -> None:
        if "possibly_batched_index" in caller:  # PyTorch's fetcher
            wanted = caller["possibly_batched_index"]
            size = len(wanted) if isinstance(wanted, list) else 1
            if size != self.batch_size and (wanted is not None or workers > 1):
                found = f"{self.batch_size} of the StreamDataset, {size} of the DataLoader"
                raise InvalidRequest("batch_size", found, expected="the same: workers and states count batches by it")

    def _check_undivided(self, frame: FrameType | None) -> None:
        """Refuse to be called, from the caller of a frame, by what divides the samples of a rank among ranks again."""
        caller = frame.f_back.f_locals.get("self") if frame and frame.f_back else None
        names = {one.__name__ for one in type(caller).__mro__} & _DIVIDERS
        if names and self._stream.world_size > 1:
            found = f"divided already, among {self._stream.world_size} ranks, and again by Accelerate's {names.pop()}"
            remedy = "Give rank=0 and world_size=1, or keep the loader out of prepare(...)."
            raise InvalidRequest("StreamDataset", found, remedy=remedy)

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass read an epoch from its start; from where a state said, if it is the epoch of that state."""
        self._check_undivided(inspect.currentframe())
        epoch = self._checked_epoch(epoch)
        if epoch != int(self._at[0]):
            self._at.copy_(torch.tensor([epoch, 0]))

    def state_at(self, batches: int) -> dict[str, object]:
        """Return the state when each rank was handed so many batches of the pass that runs now, or comes next; JSON."""
        if batches < 0:
            raise InvalidRequest("batches", f"{batches}", expected="0 or more")
        return self._next_pass().state_after(batches * self.batch_size)

    def state_dict(self) -> dict[str, object]:
        """Return how far this process is in its pass: what a StatefulDataLoader asks its workers for.

        Raises:
            InvalidRequest: This process began no pass: its workers know.
        """
        if self._pass is None or self._reading is None:
            raise InvalidRequest(
                "state_dict",
                "this process has read nothing",
                remedy="Take state_at(batches): it counts what you count.",
            )
        now: dict[str, Any] = self._reading.state_dict()
        here = now["position"] if now["epoch"] == self._pass.start["epoch"] else self._pass.end
        return replace(self._pass, position=here).to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass go on from a state of `state_at`, of a stream or loader, or of a StatefulDataLoader.

        Raises:
            InvalidRequest: It is no such state, or one of other samples.
        """
        found = WorkerState.of(state)
        info = torch.utils.data.get_worker_info()
        here = *((info.id, info.num_workers) if info else (0, 1)), self.batch_size, self._stream.world_size
        if found and (found.worker, found.workers, found.batch_size, found.world_size) == here:
            self._resumed = found
            return
        self._stream.load_state_dict(dict(stream_state(state)))
        now = self._stream.state_dict()
        self._at.copy_(torch.tensor([now["epoch"], now["position"]]))

    def _next_pass(self) -> Stream:
        """Return the stream of all workers of this rank, where the next pass begins."""
        epoch, position = self._at.tolist()
        stream = copy(self._stream)
        stream.load_state_dict({**stream.state_dict(), "epoch": epoch, "position": position})
        return stream
