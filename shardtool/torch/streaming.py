"""The options that `Loader` and `StreamDataset` have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar, cast

import torch
import torch.distributed
import torch.utils.data

from shardtool.errors import InvalidRequest
from shardtool.read.bucketing import SizeBatches
from shardtool.read.collate import Batch
from shardtool.read.decode import Decode, Decoder, check_decoders
from shardtool.read.pipeline import Map, Pipeline
from shardtool.read.pipeline_methods import refuse_dataloader_options
from shardtool.read.stream import Stream, no_random_access_error
from shardtool.read.streamable import Streamable
from shardtool.request.option_checks import check_minimum

if TYPE_CHECKING:
    from typing_extensions import Self

    from shardtool.read.order import Shuffle
    from shardtool.read.share import Ends
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
        raise InvalidRequest("labels", f"no label for sample {key}", expected="one for each key") from None


def split_pipeline(
    source: StreamableT, kinds: tuple[type, ...], on_error: OnError | None
) -> tuple[StreamableT, Pipeline]:
    """Return a copy of a dataset or stream without its stages, and the stages. Raise InvalidRequest for other types."""
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
    """Return the stages, followed by those for `decode`, `labels` and `transform`."""
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
        source: A dataset, a mix, or a stream with its own order and rank. The stages of the source run first.
        batch_size: Samples per batch and rank, or 1 if the source makes batches by size (`batch(by=...)`).
        decode, labels, transform: As for `MapDataset`.
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
            raise InvalidRequest("batch", "among the dataset's stages", expected="only batch_size")
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
        # pickle the stages first, because their error names a function that cannot be pickled
        return {"_stages": self._stages, **vars(self)}


def _distributed_rank(rank: int | None, world_size: int | None) -> tuple[int | None, int | None]:
    distributed = torch.distributed
    if rank is None and world_size is None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return rank, world_size
