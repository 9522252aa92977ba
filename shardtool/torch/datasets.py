"""Datasets for PyTorch's own `DataLoader`, and for torchdata's StatefulDataLoader: by number, and as a stream.

A stream's samples are divided among ranks and loader workers in batches: worker w of N takes the batches n with
n % N == w, and the DataLoader puts them together again in that order. So the batches are the same for any number of
workers, and the n-th of all ranks together hold the same samples for any number of ranks.
"""

from __future__ import annotations

import copyreg
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import KW_ONLY, asdict, dataclass, field, fields, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar, cast

import torch
import torch.distributed
import torch.utils.data

from shardtool.errors import InvalidRequest, PlainError, SampleFailed, ShardError, listing
from shardtool.read.bundles import Batches
from shardtool.read.chain import Batch, Decode, Decoder, Map, Stages, own_decoders, refuse_dataloaders
from shardtool.read.dataset import Dataset, Mixture, Stream, Streamable, no_number
from shardtool.read.fetch import SkippedSamples
from shardtool.request.settings import check_least
from shardtool.storage.shared import SharedBlocks
from shardtool.values import counted

if TYPE_CHECKING:
    from types import FrameType

    from typing_extensions import Self

    from shardtool.read.order import Ends, Shuffle

# What becomes of samples on the way to a batch: the dataset's own chain, then the options of a loader or dataset.


Decoders: TypeAlias = "bool | Mapping[str, Decoder] | Decode | None"
Transform: TypeAlias = Callable[[Any], Any]
Given = TypeVar("Given", bound=Streamable | Stream)


def _labelled(labels: Mapping[str, Any], sample: dict[str, object]) -> dict[str, object]:
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


def unchained(source: Given, kinds: tuple[type, ...]) -> tuple[Given, Stages]:
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
    bare.stages = Stages()
    return bare, stages


def chained(stages: Stages, decode: Decoders, labels: Mapping[str, Any] | None, transform: Transform | None) -> Stages:
    """Return a chain with the stages of options added: decode, then label, then transform."""
    if decode is not None and decode is not False:
        given = decode if isinstance(decode, Decode) else Decode(() if decode is True else own_decoders(decode))
        stages = stages.then(given)
    if labels is not None:
        if isinstance(labels, (str, Sequence)):
            raise InvalidRequest("labels", f"a {type(labels).__name__}", expected="key to label, such as {'cat/1': 0}")
        stages = stages.then(Map(partial(_labelled, labels)))
    return stages if transform is None else stages.then(Map(transform))


_OF_STREAM = ("shuffle", "seed", "buffer", "parts", "ends", "rank", "world_size", "groups")


@dataclass(eq=False)
class Streaming:
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
    _stages: Stages = field(init=False, repr=False)

    def __post_init__(self) -> None:
        bare, stages = unchained(self.source, (Streamable, Stream))
        check_least("batch_size", self.batch_size)
        if any(isinstance(stage, Batch) for stage in stages.stages):
            raise InvalidRequest("batch", "in the dataset's chain", expected="batch_size alone")
        if self.batch_size > 1 and any(isinstance(stage, Batches) for stage in stages.stages):
            raise InvalidRequest("batch_size", f"{self.batch_size} of batches by size", expected="1: one such batch")
        self._stages = chained(stages, self.decode, self.labels, self.transform)
        if isinstance(bare, Stream):
            self._stream = self._checked(bare)
        else:
            rank, world_size = _rank_and_world_size(self.rank, self.world_size)
            options = {name: getattr(self, name) for name in _OF_STREAM}
            self._stream = bare.stream(**options | {"rank": rank, "world_size": world_size})

    def __new__(cls, *_: object, **options: object) -> Self:
        """Say what an option of a DataLoader is here."""
        refuse_dataloaders(options, {one.name for one in fields(cls)})
        return super().__new__(cls)

    def __getitem__(self, _: object) -> NoReturn:
        """Refuse a number, which a DataLoader asks for where it is given a loader."""
        raise no_number(f"a {type(self).__name__}")

    def _checked_epoch(self, epoch: int) -> int:
        """Return the number of an epoch.

        Raises:
            InvalidRequest: It is none.
        """
        copy(self._stream).set_epoch(epoch)
        return int(epoch)

    def _checked(self, stream: Stream) -> Stream:
        """Return a stream that was given, which brings what the options of a dataset's stream say."""
        for one in fields(Streaming):
            if one.name in _OF_STREAM and getattr(self, one.name) != one.default:
                remedy = "Give it to stream(...), or the dataset here."
                raise InvalidRequest(one.name, "given for a stream", remedy=remedy)
        _, world_size = _rank_and_world_size(None, None)
        processes = stream.share.world_size * stream.share.alike
        if world_size not in (None, processes):
            found = f"{processes} of the stream, but torch.distributed has {world_size}"
            raise InvalidRequest("world_size", found, remedy="Give the dataset itself.")
        stream.rewind()
        return stream

    def __getstate__(self) -> dict[str, Any]:
        return {"_stages": self._stages, **vars(self)}  # first: it says which function cannot be pickled


def _rank_and_world_size(rank: int | None, world_size: int | None) -> tuple[int | None, int | None]:
    """Return what was given, else what torch.distributed says of this process; None where it was not started."""
    distributed = torch.distributed
    if rank is None and world_size is None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return rank, world_size


# Where a pass is: one worker's part of it, and what that says about all ranks and workers.
#
# A stream's state is the same for all ranks and any number of workers (`read.order.StreamState`). A
# DataLoader's worker knows only what it has taken itself, and reads ahead of what training has seen. How many batches
# were handed out, the loader knows: with that, the state of any one worker becomes the stream's.


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
        return {_WORKER: _VERSION, **asdict(self)}

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> WorkerState | None:
        """Return the state that `to_json` gave; None: it is no state of a worker.

        Raises:
            InvalidRequest: It is one of another version, or incomplete.
        """
        if not isinstance(given, Mapping) or _WORKER not in given:
            return None
        names = [one.name for one in fields(cls) if one.name in given or one.name != "left_out"]
        if given[_WORKER] != _VERSION or not all(name in given for name in names):
            raise InvalidRequest("the state", "a worker's, of another version of shardtool, or incomplete")
        return cls(**{name: given[name] for name in names})

    def after(self, batches: int) -> dict[str, object]:
        """Return the stream's state when each rank was handed so many batches of the pass.

        Raises:
            InvalidRequest: Samples were skipped and not replaced.
        """
        _check_even("the state", self.left_out)
        position = self.start["position"] + batches * self.batch_size * self.world_size
        if position < self.end:
            return {**self.start, "position": position}
        return {**self.start, "epoch": self.start["epoch"] + 1, "position": 0}


def _check_even(where: str, left_out: int) -> None:
    """Refuse to count batches if samples were skipped and not replaced."""
    if left_out:
        found = f"{counted(left_out, 'sample')} skipped and not replaced: batches tell no position"
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
        return _after(given, given["_num_yielded"]) or given
    snapshot = given.get("_snapshot")
    if not isinstance(snapshot, Mapping):
        return given
    batches = snapshot["_snapshot_step"] + given["_steps_since_snapshot"]
    workers = snapshot["_worker_snapshots"].values()
    found = [*filter(None, (_after(worker, batches) for worker in workers))]  # of all: any may have left samples out
    return found[0] if found else given


def _after(loader: Mapping[str, Any], batches: int) -> dict[str, object] | None:
    state = WorkerState.of(loader.get("dataset_state") or {})
    return state.after(batches) if state else None


# What the workers of a loader left out, where their parent sees it: each tells by a block of a file that all share.


WORKERS = 256  # blocks: where there are more workers, several have one
_LAG = 16  # a worker tells again when it has left out a part in so many more: a block is never written over


class SkipTally(SkippedSamples):
    """What one worker left out, those before it with its number included; what was not told yet, `tell` tells."""

    def __init__(self, blocks: SharedBlocks, worker: int) -> None:
        super().__init__()
        self._blocks, self._worker = blocks, worker % WORKERS
        self._take(blocks, self._worker)
        self._told = self.samples

    @classmethod
    def total(cls, blocks: SharedBlocks) -> SkippedSamples:
        """Return what all workers have told."""
        found = cls(blocks, 0)
        for worker in range(1, WORKERS):
            found._take(blocks, worker)
        return found

    def count_sample(self, error: ShardError, shard: str, *, damaged: bool) -> None:
        """Count a sample."""
        super().count_sample(error, shard, damaged=damaged)
        if self.samples >= self._told + max(1, self._told // _LAG):
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


# Where a pass begins: one answer for all workers of a DataLoader, whose process calls none of our code.


_MOST_WORKERS = 1024
_BEGUN, _THROUGH = 1, 2  # how far a worker is in the pass


class SharedStart:
    """Where the pass begins that runs now, or comes next, in memory that processes share.

    The workers of one pass have a seed that the DataLoader drew for them, and have begun as many passes each. The first
    of them to begin says where: in the next epoch, if all workers of the last pass came to the end of their shares.

    Args:
        blocks: What keeps other processes out meanwhile.
    """

    def __init__(self, blocks: SharedBlocks) -> None:
        self._blocks = blocks
        self._now = torch.zeros(5, dtype=torch.int64).share_memory_()  # epoch, position, and of whom
        self._workers = torch.zeros(_MOST_WORKERS, dtype=torch.uint8).share_memory_()

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
        with self._blocks.alone():
            if self._is_over or epoch != self.place[0]:
                self.go_to(epoch, 0)

    def begin(self, worker: int, group: Sequence[int], resumed: Mapping[str, int] | None) -> None:
        """Note that a worker begins a pass, and where that is, if it is the first.

        Args:
            worker: Its number.
            group: The seed, how many passes the worker has begun, and how many workers there are.
            resumed: The state that the pass goes on from.
        """
        with self._blocks.alone():
            if self._now[2:].tolist() != [*group] or self._workers[worker]:
                epoch, position = self.place
                if self._now[-1]:  # no longer where a state said
                    epoch, position = epoch + self._is_over, 0
                if resumed is not None:
                    epoch, position = resumed["epoch"], resumed["position"]
                self.go_to(epoch, position, group)
            self._workers[worker] = _BEGUN

    def end(self, worker: int, group: Sequence[int]) -> None:
        """Note that a worker came to the end of its share, unless another pass has begun."""
        with self._blocks.alone():
            if self._now[2:].tolist() == [*group]:
                self._workers[worker] = _THROUGH

    @property
    def _is_over(self) -> bool:
        """Whether all workers of the pass came to the end."""
        workers = int(self._now[-1])
        return workers > 0 and bool((self._workers[:workers] == _THROUGH).all())


_DIVIDERS = {"IterableDatasetShard", "DataLoaderDispatcher"}  # of accelerate, and the first of transformers, too


class _MadeOfText(type):
    """The class of errors which PyTorch can make of a text alone, of a class of which it cannot.

    Classes are pickled by their names, unless their own class says otherwise.
    """

    @classmethod
    def of(cls, kind: type[Exception]) -> _MadeOfText:
        """Return such a class of a kind of errors, which is caught as that kind."""

        def made(self: Exception, message: str) -> None:
            Exception.__init__(self, message)

        own = {"__init__": made, "__str__": Exception.__str__, "__module__": kind.__module__}
        return cls(kind.__name__, (kind,), own)


copyreg.pickle(_MadeOfText, lambda kind: (_MadeOfText.of, kind.__bases__))


@contextmanager
def _whole_errors() -> Iterator[None]:
    """Have an error that leaves a DataLoader's worker arrive as what it is: PyTorch hands on its class and its text."""
    try:
        yield
    except PlainError as error:
        if torch.utils.data.get_worker_info():
            error.put_into_text()
        raise
    except Exception as error:
        if torch.utils.data.get_worker_info():
            try:
                type(error)("")
            except MemoryError:
                raise
            except Exception:  # noqa: BLE001 - whatever its class does, PyTorch would make a RuntimeError of it
                raise cast("Any", _MadeOfText.of(type(error)))(str(error)) from error
        raise


def _worker() -> tuple[int, int]:
    """Return the number of this worker of a DataLoader, and how many there are."""
    info = torch.utils.data.get_worker_info()
    return (info.id, info.num_workers) if info else (0, 1)


@dataclass(eq=False)
class MapDataset(torch.utils.data.Dataset):  # type: ignore[misc]
    """Samples by number, for a `DataLoader` with any sampler. A batch is read in file order, with few system calls.

    Attributes:
        dataset: What is read, by numbers; of a mix, by places of an epoch that is not shuffled. Its own chain
            (`decode`, `map`, `select`, `tuple`) comes before `decode`.
        decode: True: all fields by their names, as `Dataset.decode` does; or field to decoder; None: as the chain does.
        transform: Called with each sample, after all else.
        labels: Key to label, which becomes the field `label`.
    """

    dataset: Dataset | Mixture
    decode: Decoders = None
    transform: Transform | None = None
    labels: Mapping[str, Any] | None = field(default=None, repr=False)
    _bare: Dataset | Mixture = field(init=False, repr=False)
    _stages: Stages = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._bare, stages = unchained(self.dataset, (Dataset, Mixture))
        self._stages = chained(stages, self.decode, self.labels, self.transform)

    def __len__(self) -> int:
        return len(self._bare)

    @property
    def _one(self) -> Dataset:
        """What is read, if it is no mix: the datasets of one may number their classes each in its own way."""
        if isinstance(self._bare, Mixture):
            raise InvalidRequest("targets", "asked of a mix", expected="those of each of its datasets")
        return self._bare

    @property
    def _label(self) -> str:
        """The field of class numbers."""
        names = [*self._one.classes] or ["cls"]
        if "cls" not in names and len(names) > 1:
            remedy = "Take dataset.classes and dataset.column of the one that is meant."
            raise InvalidRequest("targets", f"several fields of labels: {listing(names)}", remedy=remedy)
        return "cls" if "cls" in names else names[0]

    @property
    def classes(self) -> list[str]:
        """The names of the classes, as torchvision's datasets have them; none are known of `labels`."""
        return [] if self.labels is not None else [*self._one.classes.get(self._label, ())]

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The number of each class, as torchvision's datasets have it."""
        return {name: number for number, name in enumerate(self.classes)}

    @cached_property
    def targets(self) -> list[Any]:
        """The label of each sample: of `labels`, or the number of its class as the sidecars have it; None: it has none.

        Raises:
            InvalidRequest: The sidecars have no column of labels, or there are several.
            KeyError: `labels` has none for a key.
        """
        if self.labels is not None:
            return [self.labels[key] for key in self._one.keys]
        return self._one.column(self._label)

    @_whole_errors()
    def __getitem__(self, which: int) -> Any:
        return self._stages.apply(self._bare[which])

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: value for name, value in vars(self).items() if name != "targets"}
        return {"_stages": self._stages, **kept}  # first: it says which function cannot be pickled

    @_whole_errors()
    def __getitems__(self, which: Sequence[int]) -> list[Any]:
        """Return the samples of a batch: what a DataLoader calls where it is there.

        Raises:
            SampleFailed: All are damaged, and left out: a DataLoader can leave out samples, but no batch.
        """
        found = self._bare[list(which)]
        if not found and len(which):
            remedy = "Take a stream or a loader, which goes on with other samples."
            raise SampleFailed("a batch", f"all of its {len(which)} samples are damaged", remedy=remedy)
        return [self._stages.apply(sample) for sample in found]


@dataclass(eq=False)
class StreamDataset(Streaming, torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Samples as a stream, for a `DataLoader` with the same `batch_size` and any number of workers.

    Each pass begins at the start of the current epoch, as that of a stream does: of the next one after a pass that came
    to its end. Workers read ahead: a `break` among the last batches, those that they hold ready, counts as the end.
    `set_epoch` says which epoch it is, in workers that persist, too. A state (`state_at`, or a StatefulDataLoader's)
    goes on with any number of ranks and workers.
    """

    _tallies: SharedBlocks = field(init=False, repr=False, default_factory=SharedBlocks)
    _start: SharedStart = field(init=False, repr=False)
    _passes: int = field(init=False, repr=False, default=0)  # that this process began
    _group: tuple[int, int, int] = field(init=False, repr=False, default=(0, 0, 0))  # of the last one's workers
    _drop_last: torch.Tensor = field(init=False, repr=False, default_factory=lambda: torch.zeros(1).share_memory_())
    _resumed: WorkerState | None = field(init=False, repr=False, default=None)
    _pass: WorkerState | None = field(init=False, repr=False, default=None)  # where the pass of this process began
    _reading: Stream | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        now: dict[str, Any] = self._stream.state_dict()
        self._start = SharedStart(self._tallies)
        self._start.go_to(now["epoch"], now["position"])

    def __len__(self) -> int:
        return len(self._stream)

    def __iter__(self) -> Iterator[Any]:
        self._check_undivided(inspect.currentframe())
        return self._begun()

    @_whole_errors()
    def _begun(self) -> Iterator[Any]:
        self._note_end()
        (worker, workers), info = _worker(), torch.utils.data.get_worker_info()
        resumed, self._resumed = self._resumed, None
        self._passes += 1
        self._group = (info.seed - worker if info else -1, self._passes, workers)
        self._start.begin(worker, self._group, resumed.start if resumed else None)
        stream = self._next_pass()
        if resumed:
            stream.load_state_dict(resumed.start)
        start: dict[str, Any] = stream.state_dict()
        position = resumed.position if resumed else start["position"]
        self._reading = stream.divided(worker, workers, self.batch_size, position).with_stages(self._stages)
        self._pass = WorkerState(start, stream.end, stream.world_size, worker, workers, self.batch_size, position)
        self._reading.skipped = tally = SkipTally(self._tallies, worker)
        return self._checked_batches(iter(self._reading), tally)

    def _note_end(self) -> None:
        """Note that a pass without workers is over, where nobody asked for more than its last batch."""
        if self._reading and self._pass and self._pass.workers == 1:
            counts = Stages((Batch(self.batch_size, bool(self._drop_last)),))
            if self._reading.next_epoch(counts) > self._pass.start["epoch"]:
                self._start.end(0, self._group)

    @property
    def skipped(self) -> SkippedSamples:
        """What was left out so far, in all workers; while they run, a count may lag behind by a part in sixteen."""
        told = SkipTally.total(self._tallies)
        return max(told, self._reading.skipped if self._reading else told, key=lambda one: one.samples)

    def _checked_batches(self, samples: Iterator[Any], tally: SkipTally) -> Iterator[Any]:
        """Yield samples, after a look at how many the DataLoader wants at a time: nothing else tells its batch size.

        Raises:
            InvalidRequest: It is another one, so that workers and states would count other batches.
        """
        (worker, _), group, frame = _worker(), self._group, inspect.currentframe()
        with _whole_errors():
            self._check_batch_size(frame.f_back.f_locals if frame and frame.f_back else {})
            del frame  # and the cycle that it is
            try:
                yield from samples
            finally:
                tally.tell()
            self._start.end(worker, group)

    def _check_batch_size(self, caller: Mapping[str, Any]) -> None:
        if "possibly_batched_index" in caller:  # PyTorch's fetcher
            wanted = caller["possibly_batched_index"]
            size = len(wanted) if isinstance(wanted, list) else 1
            self._drop_last[0] = getattr(caller.get("self"), "drop_last", False)
            if size != self.batch_size:  # one, where the DataLoader is to make no batches
                found = f"{self.batch_size} of the StreamDataset, {size} of the DataLoader"
                raise InvalidRequest("batch_size", found, expected="the same: workers and states count batches by it")

    def _check_undivided(self, frame: FrameType | None) -> None:
        """Refuse to be called, from the caller of a frame, by what divides the samples of a rank among ranks again."""
        caller = frame.f_back.f_locals.get("self") if frame and frame.f_back else None
        names = {one.__name__ for one in type(caller).__mro__} & _DIVIDERS
        if names and self._stream.world_size > 1:
            found = f"divided already, among {self._stream.world_size} ranks, and again by Accelerate's {names.pop()}"
            remedy = "Give StreamDataset(..., rank=0, world_size=1), or keep its DataLoader out of prepare(...)."
            raise InvalidRequest("StreamDataset", found, remedy=remedy)

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass read an epoch from its start; in that of a state that was loaded, from the state."""
        self._check_undivided(inspect.currentframe())
        self._note_end()
        self._start.set_epoch(self._checked_epoch(epoch))

    def state_at(self, batches: int) -> dict[str, object]:
        """Return the state when each rank was handed so many batches of the pass begun last, or coming first; JSON.

        Raises:
            InvalidRequest: Samples were skipped and not replaced, so that batches do not tell where the pass is.
        """
        if batches < 0:
            raise InvalidRequest("batches", f"{batches}", expected="0 or more")
        _check_even("state_at", self._unfilled(self.skipped))
        stream, together = self._next_pass(), self.batch_size * self._stream.world_size
        left = stream.end - self._start.place[1] - batches * together
        is_over = bool(self._drop_last) and left < together  # the DataLoader hands out no smaller batch
        return stream.state_after(stream.end if is_over else batches * self.batch_size)

    def state_dict(self) -> dict[str, object]:
        """Return how far this process is in its pass: what a StatefulDataLoader asks its workers for.

        Raises:
            InvalidRequest: This process began no pass: its workers know.
        """
        if self._pass is None or self._reading is None:
            remedy = "Take state_at(batches): it counts what you count."
            raise InvalidRequest("state_dict", "this process has read nothing", remedy=remedy)
        now: dict[str, Any] = self._reading.state_dict()
        here = now["position"] if now["epoch"] == self._pass.start["epoch"] else self._pass.end
        return replace(self._pass, position=here, left_out=self._unfilled(self._reading.skipped)).to_json()

    def _unfilled(self, skipped: SkippedSamples) -> int:
        """Return how many skipped samples were not replaced: they make batches of a worker shift."""
        share, dropped = self._stream.share, skipped.samples - skipped.damaged
        return dropped * (not share.fills(damaged=False)) + skipped.damaged * (not share.fills(damaged=True))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass go on from a state of `state_at`, of a stream or loader, or of a StatefulDataLoader.

        Raises:
            InvalidRequest: It is no such state, or one of other samples.
        """
        found = WorkerState.of(state)
        here = *_worker(), self.batch_size, self._stream.world_size
        if found and (found.worker, found.workers, found.batch_size, found.world_size) == here:
            self._resumed = found
            return
        self._stream.load_state_dict(dict(stream_state(state)))
        now: dict[str, Any] = self._stream.state_dict()
        self._start.go_to(now["epoch"], now["position"])

    def _next_pass(self) -> Stream:
        """Return the stream of all workers of this rank, where the pass begins."""
        epoch, position = self._start.place
        stream = copy(self._stream)
        stream.load_state_dict({**stream.state_dict(), "epoch": epoch, "position": position})
        return stream
