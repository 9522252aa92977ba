"""The options that the loader and `StreamDataset` share: what is read, in which order, and the stages for each sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

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


Decoders: TypeAlias = "bool | Mapping[str, Decoder] | Decode | None"


Transform: TypeAlias = Callable[[Any], Any]


StreamableT = TypeVar("StreamableT", bound=Streamable | Stream)


def _add_label(labels: Mapping[str, Any], sample: dict[str, object]) -> dict[str, object]:
    """Return a sample with the label of its key, as its field `label`.

    Raises:
        InvalidRequest: There is none for its key, or the sample is no dict.
    """
    if not isinstance(sample, dict):
        expected = "samples with a key: give labels to select(...), and make a tuple in transform"
        raise InvalidRequest("labels", f"a {type(sample).__name__}", expected=expected)
    key = sample["__key__"]
    try:
        return {**sample, "label": labels[str(key)]}
    except KeyError:
        raise InvalidRequest("labels", f"none for the sample {key}", expected="one for each key") from None


def split_pipeline(source: StreamableT, kinds: tuple[type, ...]) -> tuple[StreamableT, Pipeline]:
    """Return what is read, without its chain, and the chain.

    Raises:
        InvalidRequest: It is none of the kinds that may be given.
    """
    if not isinstance(source, kinds):
        expected = "a dataset that shardtool.open returned"
        if Stream in kinds:
            expected += ", or a stream of it"
        raise InvalidRequest("the dataset", f"a {type(source).__name__}", expected=expected)
    stages = source.stages
    bare = copy(source)
    bare.stages = Pipeline()
    return bare, stages


def extend_pipeline(
    stages: Pipeline, decode: Decoders, labels: Mapping[str, Any] | None, transform: Transform | None
) -> Pipeline:
    """Return a chain with the stages of options added: decode, then label, then transform."""
    if decode is not None and decode is not False:
        given = decode if isinstance(decode, Decode) else Decode(() if decode is True else check_decoders(decode))
        stages = stages.then(given)
    if labels is not None:
        if isinstance(labels, (str, Sequence)):
            raise InvalidRequest("labels", f"a {type(labels).__name__}", expected="key to label, such as {'cat/1': 0}")
        stages = stages.then(Map(partial(_add_label, labels)))
    return stages if transform is None else stages.then(Map(transform))


_STREAM_OPTIONS = ("shuffle", "seed", "buffer", "parts", "ends", "rank", "world_size", "groups")


@dataclass(eq=False)
class StreamOptions:
    """What is read, in which order, and what becomes of each sample.

    Attributes:
        source: A dataset, a mix, or a stream of one, which brings its own order and rank. Its chain (`decode`, `map`,
            `select`, `tuple`) comes before `decode`.
        batch_size: Samples of a rank's batch; of `batch(by=...)`, 1.
        decode: True: all fields by their names, as `Dataset.decode` does; or field to decoder; None: as the chain does.
        labels: Key to label, which becomes the field `label`.
        transform: Called with each sample, after all else.
        shuffle: Whether shards and samples are shuffled; `full`: one random order of all samples.
        seed: With the epoch, what the shuffle depends on.
        buffer: Samples that all ranks hold, and shuffle among themselves; None: about 64 MB of each rank, or 32 MB of
            all where parts are given.
        parts: Into how many parts the samples are cut, which are read side by side; None: 128 for each rank.
        ends: What becomes of the last samples where they are no multiple of the ranks: see `Dataset.stream`.
        rank: None: as torch.distributed says, or else RANK and WORLD_SIZE of the environment, or else 0 of 1.
        world_size: As `rank`.
        groups: Into how many groups neighbouring ranks are put, all of one to get the same samples: see
            `Dataset.stream`.
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
    _stream: Stream = field(init=False, repr=False)
    _stages: Pipeline = field(init=False, repr=False)

    def __post_init__(self) -> None:
        bare, stages = split_pipeline(self.source, (Streamable, Stream))
        check_minimum("batch_size", self.batch_size)
        if any(isinstance(stage, Batch) for stage in stages.stages):
            raise InvalidRequest("batch", "in the dataset's chain", expected="batch_size alone")
        if self.batch_size > 1 and any(isinstance(stage, SizeBatches) for stage in stages.stages):
            raise InvalidRequest("batch_size", f"{self.batch_size} of batches by size", expected="1: one such batch")
        self._stages = extend_pipeline(stages, self.decode, self.labels, self.transform)
        if isinstance(bare, Stream):
            self._stream = self._checked(bare)
        else:
            rank, world_size = _distributed_rank(self.rank, self.world_size)
            options = {name: getattr(self, name) for name in _STREAM_OPTIONS}
            self._stream = bare.stream(**options | {"rank": rank, "world_size": world_size})

    def __new__(cls, *_: object, **options: object) -> Self:
        """Say what an option of a DataLoader is here."""
        refuse_dataloader_options(options, {one.name for one in fields(cls)})
        return super().__new__(cls)

    def __getitem__(self, _: object) -> NoReturn:
        """Refuse a number, which a DataLoader asks for where it is given a loader."""
        raise no_random_access_error(f"a {type(self).__name__}")

    def _checked_epoch(self, epoch: int) -> int:
        """Return the number of an epoch.

        Raises:
            InvalidRequest: It is none.
        """
        copy(self._stream).set_epoch(epoch)
        return int(epoch)

    def _checked(self, stream: Stream) -> Stream:
        """Return a stream that was given, which brings what the options of a dataset's stream say."""
        for one in fields(StreamOptions):
            if one.name in _STREAM_OPTIONS and getattr(self, one.name) != one.default:
                remedy = "Give it to stream(...), or the dataset here."
                raise InvalidRequest(one.name, "given for a stream", remedy=remedy)
        _, world_size = _distributed_rank(None, None)
        processes = stream.share.world_size * stream.share.alike
        if world_size not in (None, processes):
            found = f"{processes} of the stream, but torch.distributed has {world_size}"
            raise InvalidRequest("world_size", found, remedy="Give the dataset itself.")
        stream.rewind()
        return stream

    def __getstate__(self) -> dict[str, Any]:
        return {"_stages": self._stages, **vars(self)}  # first: it says which function cannot be pickled


def _distributed_rank(rank: int | None, world_size: int | None) -> tuple[int | None, int | None]:
    """Return what was given, else what torch.distributed says of this process; None where it was not started."""
    distributed = torch.distributed
    if rank is None and world_size is None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return rank, world_size
