"""The options of `Loader` and `StreamDataset`, and the state that workers and their parent share.

Workers read ahead, so the position of a worker is later than the position of the training loop. The state of a stream
is therefore computed from the start of the pass (the current iteration) and the number of batches that the training
loop has received.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import KW_ONLY, asdict, dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar, cast

import torch
import torch.distributed
import torch.utils.data

from shardtool.errors import InvalidRequest, ShardError
from shardtool.read.bundles import SizeBatches
from shardtool.read.collate import Batch
from shardtool.read.decode import Decode, Decoder, check_decoders
from shardtool.read.pipeline import Map, Pipeline, refuse_dataloader_options
from shardtool.read.sample_reader import SkippedSamples
from shardtool.read.stream import Stream, no_random_access_error
from shardtool.read.streamable import Streamable
from shardtool.request.option_checks import check_minimum
from shardtool.units import pluralize

if TYPE_CHECKING:
    from typing_extensions import Self

    from shardtool.read.order import Ends, Shuffle
    from shardtool.storage.shared_blocks import SharedBlocks
    from shardtool.values import OnError


Decoders: TypeAlias = "bool | Mapping[str, Decoder] | Decode | None"
Transform: TypeAlias = Callable[[Any], Any]
StreamableT = TypeVar("StreamableT", bound=Streamable | Stream)


def _add_label(labels: Mapping[str, Any], sample: dict[str, object]) -> dict[str, object]:
    if not isinstance(sample, dict):
        expected = "dicts: keep the samples dicts, and make tuples in transform"
        raise InvalidRequest("labels", f"a {type(sample).__name__}", expected=expected)
    key = sample["__key__"]
    try:
        return {**sample, "label": labels[str(key)]}
    except KeyError:
        raise InvalidRequest("labels", f"no label for sample {key}", expected="a label for every key") from None


def split_pipeline(
    source: StreamableT, kinds: tuple[type, ...], on_error: OnError | None
) -> tuple[StreamableT, Pipeline]:
    """Return a copy of `source` without stages, and its stages. Raise InvalidRequest if its type is not in `kinds`."""
    if not isinstance(source, kinds):
        expected = "a dataset that shardtool.open returned"
        if Stream in kinds:
            expected += ", or a stream of it"
        raise InvalidRequest("the dataset", f"a {type(source).__name__}", expected=expected)
    bare = cast("StreamableT", source.with_on_error(on_error))
    stages, bare.stages = bare.stages, Pipeline()
    return bare, stages


def extend_pipeline(
    stages: Pipeline, decode: Decoders, labels: Mapping[str, Any] | None, transform: Transform | None
) -> Pipeline:
    """Append stages for `decode`, `labels` and `transform`."""
    if decode is not None and decode is not False:
        decoder = decode if isinstance(decode, Decode) else Decode(() if decode is True else check_decoders(decode))
        stages = stages.then(decoder)
    if labels is not None:
        if isinstance(labels, (str, Sequence)):
            raise InvalidRequest("labels", f"a {type(labels).__name__}", expected="key to label, such as {'cat/1': 0}")
        stages = stages.then(Map(partial(_add_label, labels)))
    return stages if transform is None else stages.then(Map(transform))


_STREAM_OPTIONS = ("shuffle", "seed", "buffer", "parts", "ends", "rank", "world_size", "groups", "on_error")


@dataclass(eq=False, repr=False)
class StreamOptions:
    """The samples to read, their order, and the stages for each sample.

    Attributes:
        source: A dataset, a mix, or a stream with its own order and rank. Its stages run first.
        batch_size: Samples per batch and rank, or 1 if the source makes batches by size (`batch(by=...)`).
        decode, labels, transform: See `MapDataset`.
        rank: Rank of this process. By default, torch.distributed or the environment determines `rank` and `world_size`.

    For the other options, see `Dataset.stream`.
    """

    source: Streamable | Stream
    batch_size: int
    _: KW_ONLY
    decode: Decoders = None
    labels: Mapping[str, Any] | None = field(default=None, repr=False)
    transform: Transform | None = None
    shuffle: Shuffle = True
    seed: int = 0
    buffer: int | None = None
    parts: int | None = None
    ends: Ends | None = None
    rank: int | None = None
    world_size: int | None = None
    groups: int | None = None
    on_error: OnError | None = None
    _stream: Stream = field(init=False, repr=False)
    _stages: Pipeline = field(init=False, repr=False)

    def __post_init__(self) -> None:
        bare, stages = split_pipeline(self.source, (Streamable, Stream), self.on_error)
        check_minimum("batch_size", self.batch_size)
        if any(isinstance(stage, Batch) for stage in stages.stages):
            raise InvalidRequest("batch", "the dataset is already batched", remedy="Use batch_size, not batch(...).")
        if self.batch_size > 1 and any(isinstance(stage, SizeBatches) for stage in stages.stages):
            raise InvalidRequest("batch_size", f"{self.batch_size} for batches by size", expected="1")
        self._stages = extend_pipeline(stages, self.decode, self.labels, self.transform)
        if isinstance(bare, Stream):
            self._stream = self._check_stream(bare)
        else:
            rank, world_size = _distributed_rank(self.rank, self.world_size)
            options = {name: getattr(self, name) for name in _STREAM_OPTIONS}
            self._stream = bare.stream(**options | {"rank": rank, "world_size": world_size})

    def __new__(cls, *_: object, **options: object) -> Self:
        """Raise InvalidRequest for options of a DataLoader."""
        refuse_dataloader_options(options, {option.name for option in fields(cls)})
        return super().__new__(cls)

    def __repr__(self) -> str:
        options = [option for option in fields(self) if option.repr and option.name not in ("source", "batch_size")]
        changed = [option.name for option in options if getattr(self, option.name) != option.default]
        shown = "".join(f", {name}={getattr(self, name)!r}" for name in changed)
        return f"<{type(self).__name__}: batches of {self.batch_size} of {self.source!r}{shown}>"

    def __getitem__(self, _: object) -> NoReturn:
        raise no_random_access_error(f"a {type(self).__name__}")

    def _check_epoch(self, epoch: int) -> int:
        copy(self._stream).set_epoch(epoch)
        return int(epoch)

    def _check_stream(self, stream: Stream) -> Stream:
        for option in fields(StreamOptions):
            if option.name in _STREAM_OPTIONS and getattr(self, option.name) != option.default:
                remedy = "Pass it to stream(...), or pass the dataset here."
                raise InvalidRequest(option.name, "given with a stream", remedy=remedy)
        _, world_size = _distributed_rank(None, None)
        processes = stream.share.world_size * stream.share.group_size
        if world_size not in (None, processes):
            found = f"{processes} in the stream, but torch.distributed has {world_size}"
            raise InvalidRequest("world_size", found, remedy="Pass the dataset instead of the stream.")
        stream.rewind()
        return stream

    def __getstate__(self) -> dict[str, Any]:
        # pickle the stages first: `Pipeline.__getstate__` raises an error that names an unpicklable function
        return {"_stages": self._stages, **vars(self)}


def _distributed_rank(rank: int | None, world_size: int | None) -> tuple[int | None, int | None]:
    distributed = torch.distributed
    if rank is None and world_size is None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return rank, world_size


_WORKER_KEY = "shardtool_worker"
_STATE_VERSION = 1


@dataclass
class WorkerState:
    """The progress of one worker in a pass.

    Attributes:
        position: Position after the last sample that this worker has read.
        left_out: Number of samples that were skipped and not replaced.
    """

    start: dict[str, Any]
    end: int
    world_size: int
    worker: int
    workers: int
    batch_size: int
    position: int
    left_out: int = 0

    def to_json(self) -> dict[str, object]:
        """Return the state as JSON data."""
        return {_WORKER_KEY: _STATE_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> WorkerState | None:
        """Parse JSON data. Return None if it is not the state of a worker."""
        if not isinstance(state, Mapping) or _WORKER_KEY not in state:
            return None
        names = [field.name for field in fields(cls) if field.name in state or field.name != "left_out"]
        if state[_WORKER_KEY] != _STATE_VERSION or not all(name in state for name in names):
            raise InvalidRequest("the state", "from another version of shardtool, or incomplete")
        return cls(**{name: state[name] for name in names})

    def after(self, batches: int) -> dict[str, object]:
        """Return the state of the stream after this number of batches per rank."""
        check_no_skipped("the state", self.left_out)
        position = self.start["position"] + batches * self.batch_size * self.world_size
        if position < self.end:
            return {**self.start, "position": position}
        return {**self.start, "epoch": self.start["epoch"] + 1, "position": 0}


def check_no_skipped(where: str, unreplaced: int) -> None:
    """Raise InvalidRequest if samples were skipped and not replaced."""
    if unreplaced:
        found = f"{pluralize(unreplaced, 'sample')} skipped and not replaced, so batches do not determine the position"
        remedy = "Choose samples before you stream them (where, select), use ends='pad', or use a loader."
        raise InvalidRequest(where, found, remedy=remedy)


def stream_state(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert the state of a loader or StatefulDataLoader to the state of a stream."""
    if WorkerState.from_json(state) is not None:
        remedy = "Use state_at(batches) of the dataset, or the state of the StatefulDataLoader."
        raise InvalidRequest("the state", "belongs to one worker, which has read ahead", remedy=remedy)
    if not isinstance(state, Mapping):
        return state
    if "_num_yielded" in state:  # the state of a StatefulDataLoader without workers
        return _state_after_batches(state, state["_num_yielded"]) or state
    snapshot = state.get("_snapshot")
    if not isinstance(snapshot, Mapping):
        return state
    batches = snapshot["_snapshot_step"] + state["_steps_since_snapshot"]
    workers = snapshot["_worker_snapshots"].values()
    # compute all states, because `_state_after_batches` raises an error if a worker skipped samples
    states = [*filter(None, (_state_after_batches(worker, batches) for worker in workers))]
    return states[0] if states else state


def _state_after_batches(loader: Mapping[str, Any], batches: int) -> dict[str, object] | None:
    state = WorkerState.from_json(loader.get("dataset_state") or {})
    return state.after(batches) if state else None


SKIP_TALLY_BLOCKS = 256  # blocks of shared memory; with more workers, several workers share a block
_TALLY_STEP_DIVISOR = 16  # `publish` uses new shared memory, so call it only when counts have grown by 1/16


class SkipCounter(SkippedSamples):
    """Counters of the samples that one worker skipped. Other processes can read published counters."""

    def __init__(self, blocks: SharedBlocks, worker: int) -> None:
        super().__init__()
        self._blocks, self._worker = blocks, worker % SKIP_TALLY_BLOCKS
        self._add_shared(blocks, self._worker)
        self._published = self.samples

    @classmethod
    def total(cls, blocks: SharedBlocks) -> SkippedSamples:
        """Return the sum of all published counters."""
        total = cls(blocks, 0)
        for worker in range(1, SKIP_TALLY_BLOCKS):
            total._add_shared(blocks, worker)
        return total

    def count_sample(self, error: ShardError, shard: str, *, damaged: bool) -> None:
        """Count a skipped sample."""
        super().count_sample(error, shard, damaged=damaged)
        if self.samples >= self._published + max(1, self._published // _TALLY_STEP_DIVISOR):
            self.publish()

    def publish(self) -> None:
        """Write the counters to shared memory."""
        if self.samples > self._published:
            data = json.dumps([self.samples, self.damaged, self.shards, self.reasons]).encode()
            self._blocks.write(self._worker, len(data), [(0, data)])
            self._published = self.samples

    def _add_shared(self, blocks: SharedBlocks, worker: int) -> None:
        with suppress(ValueError):
            if (block := blocks.read(worker)) is not None:
                samples, damaged, shards, reasons = json.loads(bytes(block))
                self.samples += samples
                self.damaged += damaged
                self.shards.update(shards)
                self.reasons.update(reasons)


_MAX_WORKERS = 1024
_STARTED, _FINISHED = 1, 2


class SharedPassStart:
    """The epoch and position at which a pass starts, in shared memory.

    The first worker of a pass sets epoch and position. If all workers finished the previous pass, the new pass reads
    the next epoch. Otherwise, it restarts the same epoch.
    """

    def __init__(self, blocks: SharedBlocks) -> None:
        self._blocks = blocks
        self._epoch_and_position = torch.zeros(2, dtype=torch.int64).share_memory_()
        self._group = torch.zeros(3, dtype=torch.int64).share_memory_()
        self._workers = torch.zeros(_MAX_WORKERS, dtype=torch.uint8).share_memory_()
        self.drop_last = torch.zeros(1).share_memory_()

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        for tensor in (
            self._epoch_and_position,
            self._group,
            self._workers,
            self.drop_last,
        ):  # a copy by pickle or deepcopy is not shared
            tensor.share_memory_()

    @property
    def epoch_and_position(self) -> tuple[int, int]:
        """The epoch, and the position in the epoch."""
        epoch, position = self._epoch_and_position.tolist()
        return epoch, position

    def set_start(self, epoch: int, position: int, group: Sequence[int] = (0, 0, 0)) -> None:
        """Set the start of a pass. For `group`, see `record_worker_start`."""
        self._epoch_and_position.copy_(torch.tensor([epoch, position]))
        self._group.copy_(torch.tensor(group))
        self._workers.zero_()

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass read this epoch from its start. Do nothing if this epoch is already set and unfinished."""
        with self._blocks.locked():
            if self._is_over or epoch != self.epoch_and_position[0]:
                self.set_start(epoch, 0)

    def record_worker_start(self, worker: int, group: Sequence[int], resumed: Mapping[str, int] | None) -> None:
        """Record that a worker starts a pass, from the state `resumed` if given.

        `group` identifies the pass: the base seed of the DataLoader, the number of passes that this worker has started,
        and the number of workers.
        """
        with self._blocks.locked():
            if self._group.tolist() != [*group] or self._workers[worker]:
                epoch, position = self.epoch_and_position
                if self._worker_count:  # not the first pass
                    position = 0
                if self._is_over:
                    epoch += 1
                if resumed is not None:
                    epoch, position = resumed["epoch"], resumed["position"]
                self.set_start(epoch, position, group)
            self._workers[worker] = _STARTED

    def record_worker_end(self, worker: int, group: Sequence[int]) -> None:
        """Record that a worker finished its share of a pass."""
        with self._blocks.locked():
            if self._group.tolist() == [*group]:
                self._workers[worker] = _FINISHED

    @property
    def _worker_count(self) -> int:
        return int(self._group[-1])

    @property
    def _is_over(self) -> bool:
        return self._worker_count > 0 and bool((self._workers[: self._worker_count] == _FINISHED).all())
