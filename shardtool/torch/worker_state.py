"""The state that a DataLoader's workers and their parent share during a pass over a stream.

Because workers read ahead of training, the state of a stream is computed from the state of any worker and the number of
returned batches. The start of a pass and the counts of skipped samples are in shared memory.
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


_WORKER_KEY = "shardtool_worker"
_STATE_VERSION = 1


@dataclass
class WorkerState:
    """The progress of one worker in a pass.

    Attributes:
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


def check_no_skipped(where: str, left_out: int) -> None:
    """Raise InvalidRequest if samples were skipped and not replaced."""
    if left_out:
        found = f"{pluralize(left_out, 'sample')} skipped and not replaced, so batches do not determine the position"
        remedy = "Choose samples before you stream them (where, select), use ends='pad', or use a loader."
        raise InvalidRequest(where, found, remedy=remedy)


def stream_state(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert the state of a loader, stream or StatefulDataLoader to the state of a stream."""
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
    # for all workers, because `_state_after_batches` raises an error if one has skipped samples
    states = [*filter(None, (_state_after_batches(worker, batches) for worker in workers))]
    return states[0] if states else state


def _state_after_batches(loader: Mapping[str, Any], batches: int) -> dict[str, object] | None:
    state = WorkerState.from_json(loader.get("dataset_state") or {})
    return state.after(batches) if state else None


SKIP_TALLY_BLOCKS = 256  # blocks of shared memory; if there are more workers, some of them share a block
_TALLY_STEP_DIVISOR = 16  # each publication takes new shared memory, so wait until counts have grown by 1/16


class SkipCounter(SkippedSamples):
    """Counters of the samples that one worker skipped. Other processes can read the counters after `publish`."""

    def __init__(self, blocks: SharedBlocks, worker: int) -> None:
        super().__init__()
        self._blocks, self._worker = blocks, worker % SKIP_TALLY_BLOCKS
        self._add_shared(blocks, self._worker)
        self._published = self.samples

    @classmethod
    def total(cls, blocks: SharedBlocks) -> SkippedSamples:
        """Return the sum of the published counters of all workers."""
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

    The first worker of a pass sets both. If all workers finished the last pass, the next epoch starts.
    """

    def __init__(self, blocks: SharedBlocks) -> None:
        self._blocks = blocks
        # epoch, position, and the three numbers of the group
        self._now = torch.zeros(5, dtype=torch.int64).share_memory_()
        self._workers = torch.zeros(_MAX_WORKERS, dtype=torch.uint8).share_memory_()

    @property
    def epoch_and_position(self) -> tuple[int, int]:
        """The epoch, and the position in the epoch."""
        epoch, position = self._now[:2].tolist()
        return epoch, position

    def set_start(self, epoch: int, position: int, group: Sequence[int] = (0, 0, 0)) -> None:
        """Set the epoch and position at which a pass starts. `group` identifies a pass that has started."""
        self._now.copy_(torch.tensor([epoch, position, *group]))
        self._workers.zero_()

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass read this epoch from its start, unless an unfinished pass reads this epoch."""
        with self._blocks.locked():
            if self._is_over or epoch != self.epoch_and_position[0]:
                self.set_start(epoch, 0)

    def record_worker_start(self, worker: int, group: Sequence[int], resumed: Mapping[str, int] | None) -> None:
        """Record that a worker starts a pass over the stream. The first worker to start sets the epoch and position.

        `group` identifies the pass: the seed, the number of this worker's passes, and the number of workers. If
        `resumed` is given, the pass continues from this state.
        """
        with self._blocks.locked():
            if self._now[2:].tolist() != [*group] or self._workers[worker]:
                epoch, position = self.epoch_and_position
                if self._now[-1]:
                    epoch, position = epoch + self._is_over, 0
                if resumed is not None:
                    epoch, position = resumed["epoch"], resumed["position"]
                self.set_start(epoch, position, group)
            self._workers[worker] = _STARTED

    def record_worker_end(self, worker: int, group: Sequence[int]) -> None:
        """Record that a worker finished its share of a pass."""
        with self._blocks.locked():
            if self._now[2:].tolist() == [*group]:
                self._workers[worker] = _FINISHED

    @property
    def _is_over(self) -> bool:
        workers = int(self._now[-1])
        return workers > 0 and bool((self._workers[:workers] == _FINISHED).all())
