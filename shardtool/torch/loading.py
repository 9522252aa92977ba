"""`shardtool.torch.loader`: batches that threads read, decode and collate, for one rank."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from shardtool.execute.local import cores
from shardtool.request.choices import check_least
from shardtool.torch.streaming import Streaming, stream_state
from shardtool.torch.threads import SampleWork, batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from shardtool.read.fetch import SkippedSamples
    from shardtool.read.stream import Stream, StreamPosition

_LEFT_OUT = object()


@dataclass(eq=False)
class Loader(Streaming):
    """Batches of a dataset, read, decoded and collated in threads: no worker processes, and nothing is pickled.

    Threads need no interpreter lock while they read files and while Pillow or NumPy work; a `transform` in pure Python
    holds it, and is faster in the worker processes of a DataLoader.

    An iteration goes on where the last one ended: after a whole epoch with the next, in another order; after an early
    stop with the batch that comes then. `set_epoch` goes to the start of an epoch.

    A batch has the form of a sample: a dict of fields, or a tuple. Arrays and images of one shape become a tensor
    [samples, ...], in pinned memory where there is a GPU, and of several shapes a list of tensors; numbers a tensor of
    int64, float64 or bool; all else a list.

    Attributes:
        threads: That decode; None: as many as this process may use cores.
        drop_last: Whether a last batch that is smaller is left out.
        collate: Called with the list of a batch's samples, and returns the batch; None: as above.
        pin_memory: Whether tensors lie in pinned memory; None: where there is a GPU.
        depth: How many batches are under way beside the one that was handed out last.
    """

    threads: int | None = None
    drop_last: bool = False
    collate: Callable[[list[Any]], Any] | None = None
    pin_memory: bool | None = None
    depth: int = 3
    _state: dict[str, object] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("threads", self.threads), ("depth", self.depth)):
            if value is not None:
                check_least(name, value)
        self._state = self._stream.state_dict()

    def __len__(self) -> int:
        """Return how many batches a whole epoch has."""
        samples = len(self._stream)
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        stream = copy(self._stream)
        stream.load_state_dict(self._state)
        pin = torch.cuda.is_available() if self.pin_memory is None else self.pin_memory
        work = SampleWork(self._changed, _LEFT_OUT, self.batch_size, self.drop_last, self.collate, pin, _key)
        passing = batches(_PlacedStream(stream), work, self.threads or cores(), self.depth)
        try:
            for handed in passing:
                self._state = handed.pop()
                yield handed.pop()
        finally:
            passing.close()
        self._state = stream.state_dict()

    @property
    def skipped(self) -> SkippedSamples:
        """What was left out so far, as `on_error` or `missing` said: damaged samples, and those that the chain left."""
        return self._stream.skipped

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration read another epoch from its start; in the epoch that it is in, it goes on."""
        epoch = self._checked_epoch(epoch)
        if epoch != self._state["epoch"]:
            self._state = {**self._state, "epoch": epoch, "position": 0}

    def state_dict(self) -> dict[str, object]:
        """Return the state after the last batch that was handed out: the same for all ranks at the same step; JSON."""
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on from a state: of a loader, a stream, a StreamDataset or a StatefulDataLoader.

        Raises:
            InvalidRequest: It is no such state, or one of other samples.
        """
        self._stream.load_state_dict(dict(stream_state(state)))
        self._state = self._stream.state_dict()

    def _changed(self, given: tuple[object, StreamPosition]) -> object:
        sample, place = given
        return next(self._stages.run((sample,), place.left_out), _LEFT_OUT)


@dataclass(frozen=True)
class _PlacedStream:
    """A stream whose samples come with their places."""

    stream: Stream

    def __iter__(self) -> Iterator[tuple[object, StreamPosition]]:
        for sample in self.stream:
            yield sample, self.stream.place()

    def state_dict(self) -> dict[str, object]:
        return self.stream.state_dict()


def _key(given: tuple[dict[str, object], StreamPosition]) -> object:
    return given[0]["__key__"]


loader = Loader
