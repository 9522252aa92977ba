"""Datasets for PyTorch's own `DataLoader`, and for torchdata's StatefulDataLoader: by number, and as a stream.

A stream's samples are divided among ranks and loader workers in batches: worker w of N takes the batches n with
n % N == w, and the DataLoader returns them in that order. So the batches are the same for any number of workers,
and the
n-th batches of all ranks together hold the same samples for any number of ranks.
"""

from __future__ import annotations

import copyreg
import inspect
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed
import torch.utils.data

from shardtool.errors import InvalidRequest, PlainError, SampleFailed, format_list
from shardtool.read.collate import Batch
from shardtool.read.dataset import Dataset
from shardtool.read.mix import MixedDataset
from shardtool.read.pipeline import Pipeline
from shardtool.storage.shared_blocks import SharedBlocks
from shardtool.torch.streaming import Decoders, StreamOptions, Transform, extend_pipeline, split_pipeline
from shardtool.torch.worker_state import SharedPassStart, SkipCounter, WorkerState, check_no_skipped, stream_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import FrameType

    from shardtool.read.sample_reader import SkippedSamples
    from shardtool.read.stream import Stream


_DIVIDING_CALLERS = {
    "IterableDatasetShard",
    "DataLoaderDispatcher",
}  # of accelerate, and the first of transformers, too


class _ErrorFromText(type):
    """The class of errors which PyTorch can make of a text alone, of a class of which it cannot.

    Classes are pickled by their names, unless their own class says otherwise.
    """

    @classmethod
    def of(cls, kind: type[Exception]) -> _ErrorFromText:
        """Return such a class of a kind of errors, which is caught as that kind."""

        def made(self: Exception, message: str) -> None:
            Exception.__init__(self, message)

        own = {"__init__": made, "__str__": Exception.__str__, "__module__": kind.__module__}
        return cls(kind.__name__, (kind,), own)


copyreg.pickle(_ErrorFromText, lambda kind: (_ErrorFromText.of, kind.__bases__))


@contextmanager
def _picklable_errors() -> Iterator[None]:
    """Have an error that leaves a DataLoader's worker arrive as what it is: PyTorch hands on its class and its text."""
    try:
        yield
    except PlainError as error:
        if torch.utils.data.get_worker_info():
            error.embed_in_text()
        raise
    except Exception as error:
        if torch.utils.data.get_worker_info():
            try:
                type(error)("")
            except MemoryError:
                raise
            except Exception:  # noqa: BLE001 - whatever its class does, PyTorch would make a RuntimeError of it
                raise cast("Any", _ErrorFromText.of(type(error)))(str(error)) from error
        raise


def _worker_number() -> tuple[int, int]:
    """Return the number of this worker of a DataLoader, and how many there are."""
    info = torch.utils.data.get_worker_info()
    return (info.id, info.num_workers) if info else (0, 1)


@dataclass(eq=False)
class MapDataset(torch.utils.data.Dataset):  # type: ignore[misc]
    """Samples by number, for a `DataLoader` with any sampler. A batch is read in file order, with few system calls.

    Attributes:
        dataset: What is read, by numbers; of a mix, by places of an epoch that is not shuffled. Its own chain
            (`decode`, `map`, `select`, `tuple`) comes before `decode`.
        decode: True: all fields by their names, as `Dataset.decode` does; or field to decoder; None: as the chain does.
        transform: Called with each sample, after all else.
        labels: Key to label, which becomes the field `label`.
    """

    dataset: Dataset | MixedDataset
    decode: Decoders = None
    transform: Transform | None = None
    labels: Mapping[str, Any] | None = field(default=None, repr=False)
    _bare: Dataset | MixedDataset = field(init=False, repr=False)
    _stages: Pipeline = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._bare, stages = split_pipeline(self.dataset, (Dataset, MixedDataset))
        self._stages = extend_pipeline(stages, self.decode, self.labels, self.transform)

    def __len__(self) -> int:
        return len(self._bare)

    @property
    def _one(self) -> Dataset:
        """What is read, if it is no mix: the datasets of one may number their classes each in its own way."""
        if isinstance(self._bare, MixedDataset):
            raise InvalidRequest("targets", "asked of a mix", expected="those of each of its datasets")
        return self._bare

    @property
    def _label(self) -> str:
        """The field of class numbers."""
        names = [*self._one.classes] or ["cls"]
        if "cls" not in names and len(names) > 1:
            remedy = "Take dataset.classes and dataset.column of the one that is meant."
            raise InvalidRequest("targets", f"several fields of labels: {format_list(names)}", remedy=remedy)
        return "cls" if "cls" in names else names[0]

    @property
    def classes(self) -> list[str]:
        """The names of the classes, as torchvision's datasets have them; none are known of `labels`."""
        return [] if self.labels is not None else [*self._one.classes.get(self._label, ())]

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The number of each class, as torchvision's datasets have it."""
        return {name: number for number, name in enumerate(self.classes)}

    @cached_property
    def targets(self) -> list[Any]:
        """The label of each sample: of `labels`, or the number of its class as the sidecars have it; None: it has none.

        Raises:
            InvalidRequest: The sidecars have no column of labels, or there are several.
            KeyError: `labels` has none for a key.
        """
        if self.labels is not None:
            return [self.labels[key] for key in self._one.keys]
        return self._one.column(self._label)

    @_picklable_errors()
    def __getitem__(self, which: int) -> Any:
        return self._stages.apply(self._bare[which])

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: value for name, value in vars(self).items() if name != "targets"}
        return {"_stages": self._stages, **kept}  # first: it says which function cannot be pickled

    @_picklable_errors()
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
class StreamDataset(StreamOptions, torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Samples as a stream, for a `DataLoader` with the same `batch_size` and any number of workers.

    Each pass begins at the start of the current epoch, as that of a stream does: of the next one after a pass that came
    to its end. Workers read ahead: a `break` among the last batches, those that they hold ready, counts as the end.
    `set_epoch` says which epoch it is, in workers that persist, too. A state (`state_at`, or a StatefulDataLoader's)
    goes on with any number of ranks and workers.
    """

    _tallies: SharedBlocks = field(init=False, repr=False, default_factory=SharedBlocks)
    _start: SharedPassStart = field(init=False, repr=False)
    _passes: int = field(init=False, repr=False, default=0)  # that this process began
    _group: tuple[int, int, int] = field(init=False, repr=False, default=(0, 0, 0))  # of the last one's workers
    _drop_last: torch.Tensor = field(init=False, repr=False, default_factory=lambda: torch.zeros(1).share_memory_())
    _resumed: WorkerState | None = field(init=False, repr=False, default=None)
    _pass: WorkerState | None = field(init=False, repr=False, default=None)  # where the pass of this process began
    _reading: Stream | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        now: dict[str, Any] = self._stream.state_dict()
        self._start = SharedPassStart(self._tallies)
        self._start.go_to(now["epoch"], now["position"])

    def __len__(self) -> int:
        return len(self._stream)

    def __iter__(self) -> Iterator[Any]:
        self._check_undivided(inspect.currentframe())
        return self._begun()

    @_picklable_errors()
    def _begun(self) -> Iterator[Any]:
        self._note_end()
        (worker, workers), info = _worker_number(), torch.utils.data.get_worker_info()
        resumed, self._resumed = self._resumed, None
        self._passes += 1
        self._group = (info.seed - worker if info else -1, self._passes, workers)
        self._start.begin(worker, self._group, resumed.start if resumed else None)
        stream = self._next_pass()
        if resumed:
            stream.load_state_dict(resumed.start)
        start: dict[str, Any] = stream.state_dict()
        position = resumed.position if resumed else start["position"]
        self._reading = stream.divided(worker, workers, self.batch_size, position).with_stages(self._stages)
        self._pass = WorkerState(start, stream.end, stream.world_size, worker, workers, self.batch_size, position)
        self._reading.skipped = tally = SkipCounter(self._tallies, worker)
        return self._checked_batches(iter(self._reading), tally)

    def _note_end(self) -> None:
        """Note that a pass without workers is over, where nobody asked for more than its last batch."""
        if self._reading and self._pass and self._pass.workers == 1:
            counts = Pipeline((Batch(self.batch_size, bool(self._drop_last)),))
            if self._reading.next_epoch(counts) > self._pass.start["epoch"]:
                self._start.end(0, self._group)

    @property
    def skipped(self) -> SkippedSamples:
        """What was left out so far, in all workers; while they run, a count may lag behind by a part in sixteen."""
        told = SkipCounter.total(self._tallies)
        return max(told, self._reading.skipped if self._reading else told, key=lambda one: one.samples)

    def _checked_batches(self, samples: Iterator[Any], tally: SkipCounter) -> Iterator[Any]:
        """Yield samples, after a look at how many the DataLoader wants at a time: nothing else tells its batch size.

        Raises:
            InvalidRequest: It is another one, so that workers and states would count other batches.
        """
        (worker, _), group, frame = _worker_number(), self._group, inspect.currentframe()
        with _picklable_errors():
            self._check_batch_size(frame.f_back.f_locals if frame and frame.f_back else {})
            del frame  # and the cycle that it is
            try:
                yield from samples
            finally:
                tally.tell()
            self._start.end(worker, group)

    def _check_batch_size(self, caller: Mapping[str, Any]) -> None:
        if "possibly_batched_index" in caller:  # PyTorch's fetcher
            wanted = caller["possibly_batched_index"]
            size = len(wanted) if isinstance(wanted, list) else 1
            self._drop_last[0] = getattr(caller.get("self"), "drop_last", False)
            if size != self.batch_size:  # one, where the DataLoader is to make no batches
                found = f"{self.batch_size} of the StreamDataset, {size} of the DataLoader"
                raise InvalidRequest("batch_size", found, expected="the same: workers and states count batches by it")

    def _check_undivided(self, frame: FrameType | None) -> None:
        """Refuse to be called, from the caller of a frame, by what divides the samples of a rank among ranks again."""
        caller = frame.f_back.f_locals.get("self") if frame and frame.f_back else None
        names = {one.__name__ for one in type(caller).__mro__} & _DIVIDING_CALLERS
        if names and self._stream.world_size > 1:
            found = f"divided already, among {self._stream.world_size} ranks, and again by Accelerate's {names.pop()}"
            remedy = "Give StreamDataset(..., rank=0, world_size=1), or keep its DataLoader out of prepare(...)."
            raise InvalidRequest("StreamDataset", found, remedy=remedy)

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass read an epoch from its start; in that of a state that was loaded, from the state."""
        self._check_undivided(inspect.currentframe())
        self._note_end()
        self._start.set_epoch(self._checked_epoch(epoch))

    def state_at(self, batches: int) -> dict[str, object]:
        """Return the state when each rank was handed so many batches of the pass begun last, or coming first; JSON.

        Raises:
            InvalidRequest: Samples were skipped and not replaced, so that batches do not tell where the pass is.
        """
        if batches < 0:
            raise InvalidRequest("batches", f"{batches}", expected="0 or more")
        check_no_skipped("state_at", self._unfilled(self.skipped))
        stream, together = self._next_pass(), self.batch_size * self._stream.world_size
        left = stream.end - self._start.place[1] - batches * together
        is_over = bool(self._drop_last) and left < together  # the DataLoader hands out no smaller batch
        return stream.state_after(stream.end if is_over else batches * self.batch_size)

    def state_dict(self) -> dict[str, object]:
        """Return how far this process is in its pass: what a StatefulDataLoader asks its workers for.

        Raises:
            InvalidRequest: This process began no pass: its workers know.
        """
        if self._pass is None or self._reading is None:
            remedy = "Take state_at(batches): it counts what you count."
            raise InvalidRequest("state_dict", "this process has read nothing", remedy=remedy)
        now: dict[str, Any] = self._reading.state_dict()
        here = now["position"] if now["epoch"] == self._pass.start["epoch"] else self._pass.end
        return replace(self._pass, position=here, left_out=self._unfilled(self._reading.skipped)).to_json()

    def _unfilled(self, skipped: SkippedSamples) -> int:
        """Return how many skipped samples were not replaced: they make batches of a worker shift."""
        share, dropped = self._stream.share, skipped.samples - skipped.damaged
        return dropped * (not share.fills(damaged=False)) + skipped.damaged * (not share.fills(damaged=True))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass go on from a state of `state_at`, of a stream or loader, or of a StatefulDataLoader.

        Raises:
            InvalidRequest: It is no such state, or one of other samples.
        """
        found = WorkerState.of(state)
        here = *_worker_number(), self.batch_size, self._stream.world_size
        if found and (found.worker, found.workers, found.batch_size, found.world_size) == here:
            self._resumed = found
            return
        self._stream.load_state_dict(dict(stream_state(state)))
        now: dict[str, Any] = self._stream.state_dict()
        self._start.go_to(now["epoch"], now["position"])

    def _next_pass(self) -> Stream:
        """Return the stream of all workers of this rank, where the pass begins."""
        epoch, position = self._start.place
        stream = copy(self._stream)
        stream.load_state_dict({**stream.state_dict(), "epoch": epoch, "position": position})
        return stream
