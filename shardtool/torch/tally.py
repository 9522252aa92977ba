"""What the workers of a loader left out, where their parent sees it: each tells by a block of a file that all share."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

from shardtool.reading.fetch import Skipped

if TYPE_CHECKING:
    from shardtool.errors import ShardError
    from shardtool.storage.shared import SharedBlocks

WORKERS = 256  # blocks: where there are more workers, several have one
_LAG = 16  # a worker tells again when it has left out a part in so many more: a block is never written over


class Tally(Skipped):
    """What one worker left out, those before it with its number included; what was not told yet, `tell` tells."""

    def __init__(self, blocks: SharedBlocks, worker: int) -> None:
        super().__init__()
        self._blocks, self._worker = blocks, worker % WORKERS
        self._take(blocks, self._worker)
        self._told = self.samples

    @classmethod
    def total(cls, blocks: SharedBlocks) -> Skipped:
        """Return what all workers have told."""
        found = cls(blocks, 0)
        for worker in range(1, WORKERS):
            found._take(blocks, worker)
        return found

    def add(self, error: ShardError, shard: str) -> None:
        """Count a sample."""
        super().add(error, shard)
        if self.samples >= self._told + max(1, self._told // _LAG):
            self.tell()

    def tell(self) -> None:
        """Tell how many there are."""
        if self.samples > self._told:
            data = json.dumps([self.samples, self.shards, self.reasons]).encode()
            self._blocks.write(self._worker, len(data), [(0, data)])
            self._told = self.samples

    def _take(self, blocks: SharedBlocks, worker: int) -> None:
        """Add what a worker has told."""
        with suppress(ValueError):  # half of it was written yet
            if (told := blocks.read(worker)) is not None:
                samples, shards, reasons = json.loads(bytes(told))
                self.samples += samples
                self.shards.update(shards)
                self.reasons.update(reasons)
