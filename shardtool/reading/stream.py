"""A stream of samples: an epoch, or one reader's share of it, read ahead in rounds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest
from shardtool.reading.order import OrderOptions, window_of
from shardtool.reading.share import Share, default_share
from shardtool.reading.state import StreamState

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from shardtool.reading.fetch import Fetcher, Sample
    from shardtool.reading.order import Order, Ordered, Shuffle
    from shardtool.reading.share import Ends


class Streamable:
    """Samples that can be read as a stream."""

    def __init__(self, fetcher: Fetcher, source: Ordered) -> None:
        self.fetcher, self.source = fetcher, source

    def stream(  # noqa: PLR0913 - its public options
        self, *, shuffle: Shuffle = True, seed: int = 0, epoch: int = 0, rank: int | None = None,
        world_size: int | None = None, buffer: int | None = None, parts: int = 64, ends: Ends = "drop",
    ) -> Stream:  # fmt: skip
        """Return a stream of the samples.

        The order depends on the data, `shuffle`, `seed`, `epoch`, `parts` and `buffer` alone: ranks only divide it.

        Args:
            shuffle: Whether shards and samples are shuffled; `"full"`: one random order of all samples.
            seed: With the epoch, what the shuffle depends on.
            epoch: Counted from 0.
            rank: This reader's place among the ranks; RANK of the environment, or 0, where none is given.
            world_size: How many ranks there are; WORLD_SIZE of the environment, or 1, where none is given.
            buffer: Samples that are held, and shuffled among themselves; None: about 32 MB of them.
            parts: Into how many parts the samples are cut, which are read side by side.
            ends: What becomes of the last samples where they are no multiple of the ranks: `drop`, `pad` (each rank
                has as many; those read for it have `__padding__`), or `uneven`.

        Raises:
            InvalidRequest: There are no samples, or an argument is out of its range.
        """
        if not self.source.length:
            raise InvalidRequest("the dataset", "no samples")
        options = OrderOptions(shuffle, seed, epoch, parts, window_of(self.fetcher.catalog, buffer, parts))
        return Stream(self.fetcher, self.source, options, Share(*default_share(rank, world_size), ends))


class Stream:
    """Samples in an exact order: iterate over it for one epoch."""

    def __init__(self, fetcher: Fetcher, source: Ordered, options: OrderOptions, share: Share) -> None:
        self._fetcher, self._source, self._options, self._share = fetcher, source, options, share
        self._position = 0

    def __len__(self) -> int:
        """Return how many samples this reader's rank takes of an epoch."""
        return replace(self._share, origin=0).count(self._source.length)

    def __iter__(self) -> Iterator[Sample]:
        order, share = self._source.order(self._options), self._share
        end = share.end(order.length)
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
                        self._position = share.after(position)
                        yield sample
                waiting = coming
        self.set_epoch(self._options.epoch + 1)

    @property
    def world_size(self) -> int:
        """How many ranks divide the stream."""
        return self._share.world_size

    @property
    def end(self) -> int:
        """How many samples of the epoch all ranks together have taken when they are through it."""
        return self._share.end(self._source.length)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch."""
        self._go_to(replace(self._options, epoch=epoch), 0)

    def state_dict(self) -> dict[str, object]:
        """Return where the stream is: the same for all ranks at the same step; JSON."""
        end = self._share.end(self._source.length)
        return StreamState.at(self._source, self._options, self._position, end).to_json()

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Go on where a stream of the same samples was, in its order, with any number of ranks and workers.

        Raises:
            InvalidRequest: It is no state of a stream, or one of other samples.
        """
        found = StreamState.of(state, self._source)
        self._go_to(found.options, found.position)

    def state_after(self, samples: int) -> dict[str, object]:
        """Return where the stream will be when each rank has taken so many more samples, at most to the epoch's end."""
        position = min(self.end, self._position + samples * self.world_size)
        return StreamState.at(self._source, self._options, position, self.end).to_json()

    def divided(self, worker: int, workers: int, batch_size: int, taken: int = 0) -> Stream:
        """Return the stream of one loader worker, which takes each `workers`-th batch of this rank from here on.

        Args:
            worker: Its number.
            workers: How many there are.
            batch_size: Samples of a batch.
            taken: Samples that this worker has taken already.
        """
        share = replace(
            self._share, worker=worker, workers=workers, batch_size=batch_size, origin=self._position
        )  # fmt: skip
        batches, more = divmod(taken, batch_size)
        divided = Stream(self._fetcher, self._source, self._options, share)
        divided._position = self._position + ((batches * workers + worker) * batch_size + more) * share.world_size
        return divided

    def _go_to(self, options: OrderOptions, position: int) -> None:
        self._options, self._position = options, position
        self._share = replace(self._share, origin=position)

    def _read(self, order: Order, positions: NDArray[np.int64]) -> list[Sample]:
        samples = self._fetcher.fetch(order.numbers(positions % order.length))
        if self._share.ends == "pad":
            for sample, position in zip(samples, positions.tolist(), strict=True):
                sample["__padding__"] = position >= order.length
        return samples
