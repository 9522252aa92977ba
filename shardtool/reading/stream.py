"""A stream of samples: an epoch, or one reader's share of it, read ahead in rounds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from shardtool.errors import InvalidRequest
from shardtool.reading.order import InOrder, Shuffled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from shardtool.reading.fetch import Fetcher, Sample
    from shardtool.reading.order import Order
    from shardtool.reading.share import Share

Shuffle = bool | Literal["full"]
_STATE_VERSION = 1
_ROUND_BYTES = 2**25
_MOST_IN_WINDOW = 1024


@dataclass(frozen=True)
class StreamOptions:
    """How a stream goes through its samples.

    Attributes:
        shuffle: Whether shards and samples are shuffled; `full`: one random order of all samples.
        seed: What the order depends on, with the epoch.
        epoch: Counted from 0.
        buffer: Samples that are held, and shuffled among themselves; None: about 32 MB of them.
        parts: Into how many parts the samples are cut, which are read side by side.
    """

    shuffle: Shuffle = True
    seed: int = 0
    epoch: int = 0
    buffer: int | None = None
    parts: int = 64


class Stream:
    """Samples in an exact order: iterate over it for one epoch."""

    def __init__(
        self, fetcher: Fetcher, chosen: NDArray[np.int64] | None, options: StreamOptions, share: Share
    ) -> None:
        self._fetcher, self._chosen, self._options, self._share = fetcher, chosen, options, share
        self._position = 0

    def __len__(self) -> int:
        """Return how many samples this reader's rank takes of an epoch."""
        return self._share.count(self._order().length)

    def __iter__(self) -> Iterator[Sample]:
        order, share = self._order(), self._share
        end = -(-order.length // share.world_size) * share.world_size
        with ThreadPoolExecutor(1, "shardtool-read") as ahead:
            start, waiting = self._position, None
            while start < end or waiting is not None:
                coming = None
                if start < end:
                    stop = min(end, (start // order.round + 1) * order.round)
                    positions = share.positions(start, stop, order.length)
                    coming = positions, ahead.submit(self._read, order, positions)
                    start = stop
                if waiting is not None:
                    for position, sample in zip(waiting[0].tolist(), waiting[1].result(), strict=True):
                        self._position = (position // share.world_size + 1) * share.world_size
                        yield sample
                waiting = coming
        self.set_epoch(self._options.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch."""
        self._options, self._position = replace(self._options, epoch=epoch), 0

    def state_dict(self) -> dict[str, object]:
        """Return where the stream is: the same for all ranks at the same step; JSON."""
        return {
            "version": _STATE_VERSION,
            "fingerprint": self._fetcher.catalog.fingerprint,
            "seed": self._options.seed,
            "epoch": self._options.epoch,
            "position": self._position,
        }

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Go on where a stream of the same dataset was, with any number of ranks and workers.

        Raises:
            InvalidRequest: It is the state of another dataset.
        """
        if state["fingerprint"] != self._fetcher.catalog.fingerprint:
            raise InvalidRequest("the state", "of another dataset")
        self.set_epoch(int(str(state["epoch"])))
        self._position = int(str(state["position"]))

    def _read(self, order: Order, positions: NDArray[np.int64]) -> list[Sample]:
        numbers = order.numbers(positions % max(1, order.length))
        return self._fetcher.fetch(numbers if self._chosen is None else self._chosen[numbers])

    def _order(self) -> Order:
        catalog, options = self._fetcher.catalog, self._options
        counts = np.diff(catalog.firsts)
        if self._chosen is not None:
            counts = np.bincount(catalog.places(self._chosen)[0], minlength=len(counts)).astype(np.int64)
        length, mean = int(counts.sum()), int(catalog.sizes.sum()) // max(1, len(catalog)) + 1
        buffer = options.buffer or options.parts * max(1, min(_MOST_IN_WINDOW, _ROUND_BYTES // options.parts // mean))
        window = max(1, buffer // options.parts)
        if not options.shuffle:
            return InOrder(length, window * options.parts)
        return Shuffled(counts, options.seed, options.epoch, options.parts, window)
