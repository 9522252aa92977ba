"""Datasets for PyTorch's own `DataLoader`, and for torchdata's StatefulDataLoader: by number, and as a stream.

A stream's samples are divided among ranks and loader workers in batches: worker w of N takes the batches n with
n % N == w, and the DataLoader puts them together again in that order. So the batches are the same for any number of
workers, and the n-th of all ranks together hold the same samples for any number of ranks.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.data

from shardtool.errors import InvalidRequest, SampleFailed
from shardtool.reading.dataset import Dataset
from shardtool.torch.chain import Decoders, Transform, chained, unchained
from shardtool.torch.states import WorkerState, stream_state
from shardtool.torch.streaming import Streaming

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardtool.reading.chain.stages import Stages
    from shardtool.reading.stream import Stream


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

    def __getitem__(self, which: int) -> Any:
        return self._stages.apply(self._bare[which])

    def __getstate__(self) -> dict[str, Any]:
        return {"_stages": self._stages, **vars(self)}  # first: it says which function cannot be pickled

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
        return iter(self._reading)

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass read an epoch from its start; from where a state said, if it is the epoch of that state."""
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
