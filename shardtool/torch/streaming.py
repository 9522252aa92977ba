"""The samples of an epoch for one rank: what `loader` and `StreamDataset` are asked for."""

from __future__ import annotations

from copy import copy
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import TYPE_CHECKING, Any

import torch.distributed

from shardtool.errors import InvalidRequest
from shardtool.reading.chain.batch import Batch
from shardtool.reading.stream import Stream, Streamable
from shardtool.request.ranges import check_least
from shardtool.torch.chain import Decoders, Transform, chained, unchained

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardtool.reading.chain.stages import Stages
    from shardtool.reading.order.orders import Shuffle
    from shardtool.reading.order.share import Ends

_OF_STREAM = ("shuffle", "seed", "buffer", "parts", "ends", "rank", "world_size")


@dataclass(eq=False)
class Streaming:
    """What is read, in which order, and what becomes of each sample.

    Attributes:
        source: A dataset, a mix, or a stream of one, which brings its own order and rank. Its chain (`decode`, `map`,
            `select`, `tuple`) comes before `decode`.
        batch_size: Samples of a rank's batch.
        decode: True: all fields by their names, as `Dataset.decode` does; or field to decoder; None: as the chain does.
        labels: Key to label, which becomes the field `label`.
        transform: Called with each sample, after all else.
        shuffle: Whether shards and samples are shuffled; `full`: one random order of all samples.
        seed: With the epoch, what the shuffle depends on.
        buffer: Samples that are held, and shuffled among themselves; None: about 32 MB of them.
        parts: Into how many parts the samples are cut, which are read side by side.
        ends: What becomes of the last samples where they are no multiple of the ranks: see `Dataset.stream`.
        rank: None: as torch.distributed says, or else RANK and WORLD_SIZE of the environment, or else 0 of 1.
        world_size: As `rank`.
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
    parts: int = 64
    ends: Ends = "drop"
    rank: int | None = None
    world_size: int | None = None
    _stream: Stream = field(init=False, repr=False)
    _stages: Stages = field(init=False, repr=False)

    def __post_init__(self) -> None:
        bare, stages = unchained(self.source, (Streamable, Stream))
        check_least("batch_size", self.batch_size)
        if any(isinstance(stage, Batch) for stage in stages.stages):
            raise InvalidRequest("batch", "in the dataset's chain", expected="batch_size alone")
        self._stages = chained(stages, self.decode, self.labels, self.transform)
        self._stream = self._checked(bare) if isinstance(bare, Stream) else self._opened(bare)

    def _checked_epoch(self, epoch: int) -> int:
        """Return the number of an epoch.

        Raises:
            InvalidRequest: It is none.
        """
        copy(self._stream).set_epoch(epoch)
        return int(epoch)

    def _opened(self, dataset: Streamable) -> Stream:
        rank, world_size = _rank_and_world_size(self.rank, self.world_size)
        return dataset.stream(
            shuffle=self.shuffle, seed=self.seed, rank=rank, world_size=world_size, buffer=self.buffer,
            parts=self.parts, ends=self.ends,
        )  # fmt: skip

    def _checked(self, stream: Stream) -> Stream:
        """Return a stream that was given, which brings what the options of a dataset's stream say."""
        for one in fields(Streaming):
            if one.name in _OF_STREAM and getattr(self, one.name) != one.default:
                raise InvalidRequest(
                    one.name, "given for a stream", remedy="Give it to stream(...), or the dataset here."
                )
        _, world_size = _rank_and_world_size(None, None)
        if world_size not in (None, stream.world_size):
            found = f"{stream.world_size} of the stream, but torch.distributed has {world_size}"
            raise InvalidRequest("world_size", found, remedy="Give the dataset itself.")
        return stream

    def __getstate__(self) -> dict[str, Any]:
        return {"_stages": self._stages, **vars(self)}  # first: it says which function cannot be pickled


def _rank_and_world_size(rank: int | None, world_size: int | None) -> tuple[int | None, int | None]:
    """Return what was given, else what torch.distributed says of this process; None where it was not started."""
    distributed = torch.distributed
    if rank is None and world_size is None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return rank, world_size
