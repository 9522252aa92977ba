"""Datasets for PyTorch's `DataLoader` and torchdata's StatefulDataLoader."""

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
from shardtool.torch.streaming import (
    Decoders,
    SharedPassStart,
    SkipCounter,
    StreamOptions,
    Transform,
    WorkerState,
    check_no_skipped,
    extend_pipeline,
    split_pipeline,
    stream_state,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import FrameType

    from shardtool.read.sample_reader import SkippedSamples
    from shardtool.read.stream import Stream
    from shardtool.values import OnError


# classes of accelerate and transformers that divide samples among ranks
_DIVIDING_CALLERS = {"IterableDatasetShard", "DataLoaderDispatcher"}


class _ErrorFromText(type):
    """Metaclass of the error classes that `_picklable_errors` creates.

    PyTorch recreates a worker's error in the parent process by calling its class with a string, which the created
    classes accept. They cannot be pickled by name, so the metaclass is registered with copyreg.
    """

    @classmethod
    def of(cls, kind: type[Exception]) -> _ErrorFromText:
        def init(self: Exception, message: str) -> None:
            Exception.__init__(self, message)

        namespace = {"__init__": init, "__str__": Exception.__str__, "__module__": kind.__module__}
        return cls(kind.__name__, (kind,), namespace)


copyreg.pickle(_ErrorFromText, lambda kind: (_ErrorFromText.of, kind.__bases__))


@contextmanager
def _picklable_errors() -> Iterator[None]:
    """Let the parent process recreate a worker's errors."""
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
            except Exception:  # noqa: BLE001 - PyTorch raises a RuntimeError if this call fails
                raise cast("Any", _ErrorFromText.of(type(error)))(str(error)) from error
        raise


def _worker_and_count() -> tuple[int, int]:
    info = torch.utils.data.get_worker_info()
    return (info.id, info.num_workers) if info else (0, 1)


@dataclass(eq=False)
class MapDataset(torch.utils.data.Dataset):  # type: ignore[misc]
    """Samples by number, for a `DataLoader` with any sampler. A batch is read in file order.

    Attributes:
        dataset: A dataset or mix. Its stages run first. Sample n of a mix is at position n of an unshuffled epoch.
        decode: True decodes each field according to its name. A dict contains a decoder for each field. None decodes
            nothing.
        transform: Function to call with each sample after all other stages.
        labels: Labels by sample key, added as the field `label`.
        on_error: `raise` an error for a damaged or undecodable sample, or `skip` and count it in `dataset.skipped`. The
            default is the value passed to `open`.
    """

    dataset: Dataset | MixedDataset
    decode: Decoders = None
    transform: Transform | None = None
    labels: Mapping[str, Any] | None = field(default=None, repr=False)
    on_error: OnError | None = None
    _bare: Dataset | MixedDataset = field(init=False, repr=False)
    _stages: Pipeline = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._bare, stages = split_pipeline(self.dataset, (Dataset, MixedDataset), self.on_error)
        self._stages = extend_pipeline(stages, self.decode, self.labels, self.transform)

    def __len__(self) -> int:
        return len(self._bare)

    @property
    def _single_dataset(self) -> Dataset:
        if isinstance(self._bare, MixedDataset):
            raise InvalidRequest("targets", "not available for a mix", expected="a single dataset")
        return self._bare

    @property
    def _label(self) -> str:
        names = [*self._single_dataset.classes] or ["cls"]
        if "cls" not in names and len(names) > 1:
            remedy = "Use dataset.classes and dataset.column instead."
            raise InvalidRequest("targets", f"several label fields: {format_list(names)}", remedy=remedy)
        return "cls" if "cls" in names else names[0]

    @property
    def classes(self) -> list[str]:
        """Class names, as in torchvision, or an empty list if `labels` is given."""
        return [] if self.labels is not None else [*self._single_dataset.classes.get(self._label, ())]

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Class numbers by name, as in torchvision."""
        return {name: number for number, name in enumerate(self.classes)}

    @cached_property
    def targets(self) -> list[Any]:
        """The label of each sample, from `labels` or the sidecars (None if a sidecar has no label).

        Raises:
            InvalidRequest: The sidecars have no label column, or several.
            KeyError: `labels` lacks a key.
        """
        if self.labels is not None:
            return [self.labels[key] for key in self._single_dataset.keys]
        return self._single_dataset.column(self._label)

    @_picklable_errors()
    def __getitem__(self, which: int) -> Any:
        return self._stages.apply(self._bare[which])

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: value for name, value in vars(self).items() if name != "targets"}
        # pickle the stages first: `Pipeline.__getstate__` raises an error that names an unpicklable function
        return {"_stages": self._stages, **kept}

    @_picklable_errors()
    def __getitems__(self, which: Sequence[int]) -> list[Any]:
        """Return the samples of a batch. Raise SampleFailed if all samples are skipped."""
        samples = [*self._stages.apply_each(self._bare[list(which)], self._bare.count_dropped)]
        if not samples and len(which):
            remedy = "Use a stream or a loader, which replaces skipped samples."
            raise SampleFailed("a batch", f"all of its {len(which)} samples were skipped", remedy=remedy)
        return samples


@dataclass(eq=False, repr=False)
class StreamDataset(StreamOptions, torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Samples as a stream, for a `DataLoader` with this `batch_size` and any number of workers.

    A pass is one iteration over the `DataLoader`, and reads the current epoch. A complete pass moves to the next epoch.
    Workers read ahead, so a pass that you stop during its last batches may count as complete. `set_epoch` also works
    with persistent workers. You can load a state that was saved with a different number of ranks or workers.
    """

    _tallies: SharedBlocks = field(init=False, repr=False, default_factory=SharedBlocks)
    _pass_start: SharedPassStart = field(init=False, repr=False)
    _passes: int = field(init=False, repr=False, default=0)
    # identifies the latest pass in all its workers: base seed, pass, workers
    _group: tuple[int, int, int] = field(init=False, repr=False, default=(0, 0, 0))
    _resumed: WorkerState | None = field(init=False, repr=False, default=None)
    _pass: WorkerState | None = field(init=False, repr=False, default=None)
    _reading: Stream | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        state: dict[str, Any] = self._stream.state_dict()
        self._pass_start = SharedPassStart(self._tallies)
        self._pass_start.set_start(state["epoch"], state["position"])

    def __len__(self) -> int:
        return len(self._stream)

    def __iter__(self) -> Iterator[Any]:
        self._check_undivided(inspect.currentframe())
        return self._start_pass()

    @_picklable_errors()
    def _start_pass(self) -> Iterator[Any]:
        self._record_end()
        worker, workers = _worker_and_count()
        info = torch.utils.data.get_worker_info()
        resumed, self._resumed = self._resumed, None
        self._passes += 1
        base_seed = info.seed - worker if info else -1  # PyTorch adds `worker` to the seed
        self._group = base_seed, self._passes, workers
        self._pass_start.record_worker_start(worker, self._group, resumed.start if resumed else None)
        stream = self._next_pass()
        if resumed:
            stream.load_state_dict(resumed.start)
        start: dict[str, Any] = stream.state_dict()
        position = resumed.position if resumed else start["position"]
        self._reading = stream.worker_stream(worker, workers, self.batch_size, position).with_stages(self._stages)
        self._pass = WorkerState(start, stream.end, stream.world_size, worker, workers, self.batch_size, position)
        self._reading.skipped = tally = SkipCounter(self._tallies, worker)
        return self._checked_batches(iter(self._reading), tally)

    def _record_end(self) -> None:
        """Record the end of a pass of one worker that read the last batch but did not exhaust the iterator."""
        if self._reading and self._pass and self._pass.workers == 1:
            batching = Pipeline((Batch(self.batch_size, bool(self._pass_start.drop_last)),))
            if self._reading.next_epoch(batching) > self._pass.start["epoch"]:
                self._pass_start.record_worker_end(0, self._group)

    @property
    def skipped(self) -> SkippedSamples:
        """Counts of skipped samples. While workers run, the counts can be too low by up to 1/16."""
        total = SkipCounter.total(self._tallies)  # may lag behind this process's own counter
        return max(total, self._reading.skipped if self._reading else total, key=lambda counter: counter.samples)

    def _checked_batches(self, samples: Iterator[Any], tally: SkipCounter) -> Iterator[Any]:
        # the caller's frame contains the batch size of the DataLoader
        worker, _ = _worker_and_count()
        group, frame = self._group, inspect.currentframe()
        with _picklable_errors():
            self._check_batch_size(frame.f_back.f_locals if frame and frame.f_back else {})
            del frame  # avoid a reference cycle
            try:
                yield from samples
            finally:
                tally.publish()
            self._pass_start.record_worker_end(worker, group)

    def _check_batch_size(self, caller: Mapping[str, Any]) -> None:
        if "possibly_batched_index" in caller:  # the caller is PyTorch's fetcher
            requested = caller["possibly_batched_index"]
            size = len(requested) if isinstance(requested, list) else 1
            self._pass_start.drop_last[0] = getattr(caller.get("self"), "drop_last", False)
            if size != self.batch_size:
                found = f"{self.batch_size} in the StreamDataset, {size} in the DataLoader"
                raise InvalidRequest("batch_size", found, expected="the same value in both")

    def _check_undivided(self, frame: FrameType | None) -> None:
        """Raise InvalidRequest if the caller would divide this rank's samples among the ranks again."""
        caller = frame.f_back.f_locals.get("self") if frame and frame.f_back else None
        names = {base.__name__ for base in type(caller).__mro__} & _DIVIDING_CALLERS
        if names and (ranks := self._stream.world_size) > 1:
            found = f"already divided among {ranks} ranks; Accelerate's {names.pop()} would divide it again"
            remedy = "Use StreamDataset(..., rank=0, world_size=1), or do not pass its DataLoader to prepare(...)."
            raise InvalidRequest("StreamDataset", found, remedy=remedy)

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass read this epoch. If a state of this epoch was loaded, continue from the state."""
        self._check_undivided(inspect.currentframe())
        self._record_end()
        self._pass_start.set_epoch(self._check_epoch(epoch))

    def state_at(self, batches: int) -> dict[str, object]:
        """Return the state after this number of batches per rank from the start or loaded state, as JSON data.

        Raises:
            InvalidRequest: Skipped samples were not replaced.
        """
        if batches < 0:
            raise InvalidRequest("batches", f"{batches}", expected="0 or more")
        check_no_skipped("state_at", self._count_unreplaced(self.skipped))
        stream, samples_per_step = self._next_pass(), self.batch_size * self._stream.world_size
        remaining = stream.end - self._pass_start.epoch_and_position[1] - batches * samples_per_step
        is_over = bool(self._pass_start.drop_last) and remaining < samples_per_step
        return stream.state_after(stream.end if is_over else batches * self.batch_size)

    def state_dict(self) -> dict[str, object]:
        """Return the progress of this process, for a StatefulDataLoader."""
        if self._pass is None or self._reading is None:
            remedy = "Use state_at(batches) with the number of batches that you received."
            raise InvalidRequest("state_dict", "this process has read no samples", remedy=remedy)
        state: dict[str, Any] = self._reading.state_dict()
        position = state["position"] if state["epoch"] == self._pass.start["epoch"] else self._pass.end
        return replace(self._pass, position=position, left_out=self._count_unreplaced(self._reading.skipped)).to_json()

    def _count_unreplaced(self, skipped: SkippedSamples) -> int:
        share = self._stream.share
        damaged = 0 if share.replaces_skipped(damaged=True) else skipped.damaged
        undecoded = 0 if share.replaces_skipped(damaged=False) else skipped.samples - skipped.damaged
        return damaged + undecoded

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state_at`, a stream, a loader or a StatefulDataLoader returned.

        Raises:
            InvalidRequest: The state is invalid, or belongs to other samples.
        """
        worker_state = WorkerState.from_json(state)
        own_layout = *_worker_and_count(), self.batch_size, self._stream.world_size
        if worker_state:
            saved = (worker_state.worker, worker_state.workers, worker_state.batch_size, worker_state.world_size)
            if saved == own_layout:
                self._resumed = worker_state
                return
        self._stream.load_state_dict(dict(stream_state(state)))
        start: dict[str, Any] = self._stream.state_dict()
        self._pass_start.set_start(start["epoch"], start["position"])

    def _next_pass(self) -> Stream:
        epoch, position = self._pass_start.epoch_and_position
        stream = copy(self._stream)
        stream.load_state_dict({**stream.state_dict(), "epoch": epoch, "position": position})
        return stream
