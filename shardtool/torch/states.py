"""Where a pass is: one worker's part of it, and what that says about all ranks and workers.

A stream's state is the same for all ranks and any number of workers (`reading/order/state.py`). A
DataLoader's worker knows only what it has taken itself, and reads ahead of what training has seen. How many batches
were handed out, the loader knows: with that, the state of any one worker becomes the stream's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from shardtool.errors import InvalidRequest

_WORKER = "shardtool_worker"  # the key that says what the rest is
_VERSION = 1


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
    """

    start: dict[str, Any]
    end: int
    world_size: int
    worker: int
    workers: int
    batch_size: int
    position: int

    def to_json(self) -> dict[str, object]:
        """Return the state as JSON can hold it."""
        return {_WORKER: _VERSION, **asdict(self)}

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> WorkerState | None:
        """Return the state that `to_json` gave; None: it is no state of a worker.

        Raises:
            InvalidRequest: It is one of another version, or incomplete.
        """
        if not isinstance(given, Mapping) or _WORKER not in given:
            return None
        names = [one.name for one in fields(cls)]
        if given[_WORKER] != _VERSION or not all(name in given for name in names):
            raise InvalidRequest("the state", "a worker's, of another version of shardtool, or incomplete")
        return cls(**{name: given[name] for name in names})

    def after(self, batches: int) -> dict[str, object]:
        """Return the stream's state when each rank was handed so many batches of the pass."""
        position = self.start["position"] + batches * self.batch_size * self.world_size
        if position < self.end:
            return {**self.start, "position": position}
        return {**self.start, "epoch": self.start["epoch"] + 1, "position": 0}


def stream_state(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the stream's state in what a loader gave as its own: ours, or torchdata's StatefulDataLoader.

    Raises:
        InvalidRequest: It is the state of a single worker, which does not know what was handed out.
    """
    if WorkerState.of(given) is not None:
        raise InvalidRequest(
            "the state",
            "that of one worker, which has read ahead",
            remedy="Take state_at(batches) of the dataset, or the state of the StatefulDataLoader.",
        )
    if not isinstance(given, Mapping):
        return given
    if "_num_yielded" in given:  # of a StatefulDataLoader without workers
        return _after(given, given["_num_yielded"]) or given
    snapshot = given.get("_snapshot")
    if not isinstance(snapshot, Mapping):
        return given
    batches = snapshot["_snapshot_step"] + given["_steps_since_snapshot"]
    workers = snapshot["_worker_snapshots"].values()
    return next(filter(None, (_after(worker, batches) for worker in workers)), given)


def _after(loader: Mapping[str, Any], batches: int) -> dict[str, object] | None:
    state = WorkerState.of(loader.get("dataset_state") or {})
    return state.after(batches) if state else None
