"""The state of a pass, shared between a DataLoader's workers and their parent process.

A stream's state is the same for all ranks and any number of workers. A worker knows only what it has taken itself,
and
reads ahead of training. The loader knows how many batches it returned: with that count, the state of any one worker
becomes the stream's. Workers report skipped samples, and learn where a pass starts, through shared memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
import torch.utils.data

from shardtool.errors import InvalidRequest, ShardError
from shardtool.read.sample_reader import SkippedSamples
from shardtool.units import pluralize

if TYPE_CHECKING:
    from shardtool.storage.shared_blocks import SharedBlocks


_WORKER_KEY = "shardtool_worker"  # the key that says what the rest is


_STATE_VERSION = 1


@dataclass
class WorkerState:
    """How far one worker is in a pass.

    Attributes:
        start: The stream's state where the pass began.
        end: The position of the epoch where the pass ends.
        world_size: How many ranks there are.
        worker: The worker's number.
        workers: How many there are.
        batch_size: Samples of a batch.
        position: The position of the epoch that this worker goes on from.
        left_out: Samples that were skipped and not replaced: then batches tell no position of the stream.
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
        """Return the state as JSON can hold it."""
        return {_WORKER_KEY: _STATE_VERSION, **asdict(self)}

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> WorkerState | None:
        """Return the state that `to_json` gave; None: it is no state of a worker.

        Raises:
            InvalidRequest: It is one of another version, or incomplete.
        """
        if not isinstance(given, Mapping) or _WORKER_KEY not in given:
            return None
        names = [one.name for one in fields(cls) if one.name in given or one.name != "left_out"]
        if given[_WORKER_KEY] != _STATE_VERSION or not all(name in given for name in names):
            raise InvalidRequest("the state", "a worker's, of another version of shardtool, or incomplete")
        return cls(**{name: given[name] for name in names})

    def after(self, batches: int) -> dict[str, object]:
        """Return the stream's state when each rank was handed so many batches of the pass.

        Raises:
            InvalidRequest: Samples were skipped and not replaced.
        """
        check_no_skipped("the state", self.left_out)
        position = self.start["position"] + batches * self.batch_size * self.world_size
        if position < self.end:
            return {**self.start, "position": position}
        return {**self.start, "epoch": self.start["epoch"] + 1, "position": 0}


def check_no_skipped(where: str, left_out: int) -> None:
    """Refuse to count batches if samples were skipped and not replaced."""
    if left_out:
        found = f"{pluralize(left_out, 'sample')} skipped and not replaced: batches tell no position"
        remedy = "Choose samples before you stream them (where, take), give ends='pad', or use a loader."
        raise InvalidRequest(where, found, remedy=remedy)


def stream_state(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the stream's state in what a loader gave as its own: ours, or torchdata's StatefulDataLoader.

    Raises:
        InvalidRequest: It is the state of a single worker, which does not know what was handed out.
    """
    if WorkerState.of(given) is not None:
        remedy = "Take state_at(batches) of the dataset, or the state of the StatefulDataLoader."
        raise InvalidRequest("the state", "that of one worker, which has read ahead", remedy=remedy)
    if not isinstance(given, Mapping):
        return given
    if "_num_yielded" in given:  # of a StatefulDataLoader without workers
        return _state_after_batches(given, given["_num_yielded"]) or given
    snapshot = given.get("_snapshot")
    if not isinstance(snapshot, Mapping):
        return given
    batches = snapshot["_snapshot_step"] + given["_steps_since_snapshot"]
    workers = snapshot["_worker_snapshots"].values()
    found = [
        *filter(None, (_state_after_batches(worker, batches) for worker in workers))
    ]  # of all: any may have left samples out
    return found[0] if found else given


def _state_after_batches(loader: Mapping[str, Any], batches: int) -> dict[str, object] | None:
    state = WorkerState.of(loader.get("dataset_state") or {})
    return state.after(batches) if state else None


SKIP_TALLY_BLOCKS = 256  # blocks: where there are more workers, several have one


_TALLY_STEP_DIVISOR = (
    16  # a worker tells again when it has left out a part in so many more: a block is never written over
)


class SkipCounter(SkippedSamples):
    """What one worker left out, those before it with its number included; what was not told yet, `tell` tells."""

    def __init__(self, blocks: SharedBlocks, worker: int) -> None:
        super().__init__()
        self._blocks, self._worker = blocks, worker % SKIP_TALLY_BLOCKS
        self._take(blocks, self._worker)
        self._told = self.samples

    @classmethod
    def total(cls, blocks: SharedBlocks) -> SkippedSamples:
        """Return what all workers have told."""
        found = cls(blocks, 0)
        for worker in range(1, SKIP_TALLY_BLOCKS):
            found._take(blocks, worker)
        return found

    def count_sample(self, error: ShardError, shard: str, *, damaged: bool) -> None:
        """Count a sample."""
        super().count_sample(error, shard, damaged=damaged)
        if self.samples >= self._told + max(1, self._told // _TALLY_STEP_DIVISOR):
            self.tell()

    def tell(self) -> None:
        """Tell how many there are."""
        if self.samples > self._told:
            data = json.dumps([self.samples, self.damaged, self.shards, self.reasons]).encode()
            self._blocks.write(self._worker, len(data), [(0, data)])
            self._told = self.samples

    def _take(self, blocks: SharedBlocks, worker: int) -> None:
        """Add what a worker has told."""
        with suppress(ValueError):  # half of it was written yet
            if (told := blocks.read(worker)) is not None:
                samples, damaged, shards, reasons = json.loads(bytes(told))
                self.samples += samples
                self.damaged += damaged
                self.shards.update(shards)
                self.reasons.update(reasons)


_MAX_WORKERS = 1024


_STARTED, _FINISHED = 1, 2  # how far a worker is in the pass


class SharedPassStart:
    """Where the pass begins that runs now, or comes next, in memory that processes share.

    The workers of one pass have a seed that the DataLoader drew for them, and have begun as many passes each. The first
    of them to begin says where: in the next epoch, if all workers of the last pass came to the end of their shares.

    Args:
        blocks: What keeps other processes out meanwhile.
    """

    def __init__(self, blocks: SharedBlocks) -> None:
        self._blocks = blocks
        self._now = torch.zeros(5, dtype=torch.int64).share_memory_()  # epoch, position, and of whom
        self._workers = torch.zeros(_MAX_WORKERS, dtype=torch.uint8).share_memory_()

    @property
    def place(self) -> tuple[int, int]:
        """The epoch, and the position in it."""
        epoch, position = self._now[:2].tolist()
        return epoch, position

    def go_to(self, epoch: int, position: int, group: Sequence[int] = (0, 0, 0)) -> None:
        """Let a pass begin somewhere: that of a group of workers, or of whoever comes first."""
        self._now.copy_(torch.tensor([epoch, position, *group]))
        self._workers.zero_()

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass read an epoch from its start; nothing changes in the epoch of a pass that is not over."""
        with self._blocks.locked():
            if self._is_over or epoch != self.place[0]:
                self.go_to(epoch, 0)

    def begin(self, worker: int, group: Sequence[int], resumed: Mapping[str, int] | None) -> None:
        """Note that a worker begins a pass, and where that is, if it is the first.

        Args:
            worker: Its number.
            group: The seed, how many passes the worker has begun, and how many workers there are.
            resumed: The state that the pass goes on from.
        """
        with self._blocks.locked():
            if self._now[2:].tolist() != [*group] or self._workers[worker]:
                epoch, position = self.place
                if self._now[-1]:  # no longer where a state said
                    epoch, position = epoch + self._is_over, 0
                if resumed is not None:
                    epoch, position = resumed["epoch"], resumed["position"]
                self.go_to(epoch, position, group)
            self._workers[worker] = _STARTED

    def end(self, worker: int, group: Sequence[int]) -> None:
        """Note that a worker came to the end of its share, unless another pass has begun."""
        with self._blocks.locked():
            if self._now[2:].tolist() == [*group]:
                self._workers[worker] = _FINISHED

    @property
    def _is_over(self) -> bool:
        """Whether all workers of the pass came to the end."""
        workers = int(self._now[-1])
        return workers > 0 and bool((self._workers[:workers] == _FINISHED).all())
