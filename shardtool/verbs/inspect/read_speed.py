"""How fast a dataset is read here: as a stream, at random, decoded; and whether its shards are large enough for it.

The twin of `inspect --read-speed`. What the system holds in memory is read from there: a second run is often faster.
"""

from __future__ import annotations

import time
from itertools import chain, repeat
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardtool.errors import InvalidRequest
from shardtool.read.catalog import open_catalog
from shardtool.read.dataset import Dataset
from shardtool.read.decode import Decode
from shardtool.read.options import ReadOptions
from shardtool.read.sample_reader import SampleReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardtool.values import DatasetLike

    Sample = dict[str, Any]

_MEASURE_S = 2.0  # of each kind of reading, of which a sample at least is read
_SAMPLES_PER_READ = 64  # samples that are asked for at once: a batch
_MAX_OPENED_SHARDS = 16  # shards whose opening is timed
_MAX_OPENING_SHARE = 0.1  # of a stream's time that may go into opening


class Speed(NamedTuple):
    """How much was read, and in what time.

    Attributes:
        samples: How many.
        bytes: Bytes of their fields, before they are decoded.
        seconds: How long it took.
    """

    samples: int
    bytes: int
    seconds: float

    @property
    def samples_per_s(self) -> float:
        """Samples in a second."""
        return self.samples / self.seconds

    @property
    def bytes_per_s(self) -> float:
        """Bytes in a second."""
        return self.bytes / self.seconds


class ReadSpeed(NamedTuple):
    """How fast a dataset was read, by one process.

    Attributes:
        dataset: Its name.
        shards: How many there are.
        mean_size: Bytes of a shard.
        opening: Seconds that the opening of a shard takes, with its index.
        stream: Shuffled, as for training.
        random: Samples from anywhere, 64 at a time.
        decoded: A stream whose fields are decoded in one thread; None: not asked for.
    """

    dataset: str
    shards: int
    mean_size: int
    opening: float
    stream: Speed
    random: Speed
    decoded: Speed | None

    @property
    def opening_share(self) -> float:
        """The part of a stream's time that goes into opening shards."""
        return self.opening / (self.opening + self.mean_size / max(1, self.stream.bytes_per_s))

    @property
    def large_enough(self) -> bool:
        """Whether that is a tenth at most, or there is only one shard."""
        return self.shards == 1 or self.opening_share <= _MAX_OPENING_SHARE

    @property
    def advised_size(self) -> int:
        """Bytes of a shard from which on it is a tenth."""
        return round(self.opening * self.stream.bytes_per_s * (1 / _MAX_OPENING_SHARE - 1))

    def to_json(self) -> dict[str, object]:
        """Return it as `--json` prints it."""
        speeds = {"stream": self.stream, "random": self.random, "decoded": self.decoded}
        return {
            "dataset": self.dataset,
            "shards": {
                "count": self.shards,
                "mean_size": self.mean_size,
                "opening_s": self.opening,
                "opening_share": self.opening_share,
                "large_enough": self.large_enough,
                "advised_size": self.advised_size,
            },
            **{
                name: one and {**one._asdict(), "samples_per_s": one.samples_per_s, "bytes_per_s": one.bytes_per_s}
                for name, one in speeds.items()
            },
        }


def read_speed(given: DatasetLike, *, decode: bool = False, seed: int = 0) -> ReadSpeed:
    """Read a dataset for some seconds, and return how fast that was.

    Args:
        given: A dataset, as for `shardtool.open`; several are read as one.
        decode: Whether fields are decoded, too.
        seed: Of the order.

    Raises:
        InvalidRequest: There is no such dataset, or it has no samples.
        CorruptShard: A shard is missing or damaged.
        SampleFailed: A field cannot be decoded.
    """
    catalog = open_catalog(given)
    full = np.flatnonzero(np.diff(catalog.firsts))
    if not len(full):
        raise InvalidRequest(catalog.name, "no samples", expected="one at least, which is read")
    chosen = full[:: max(1, len(full) // _MAX_OPENED_SHARDS)][:_MAX_OPENED_SHARDS]
    dataset = Dataset(SampleReader(catalog, ReadOptions()))
    opening = _opening_time(dataset, [int(catalog.firsts[shard]) for shard in chosen])
    return ReadSpeed(
        dataset=catalog.name,
        shards=len(full),
        mean_size=int(catalog.sizes[full].mean()),
        opening=opening,
        stream=_measure_speed(_stream_samples(dataset, seed)),
        random=_measure_speed(_random_samples(dataset, seed)),
        decoded=_measure_speed(_stream_samples(dataset, seed), Decode()) if decode else None,
    )


def _opening_time(dataset: Dataset, numbers: list[int]) -> float:
    """Return what the first reading of a shard takes longer than the second, in seconds: the median of some shards."""
    dataset[numbers[0]]  # and what is imported for it
    return max(
        0.0, median(_read_time(dataset, number) - _read_time(dataset, number) for number in numbers[1:] or numbers)
    )


def _read_time(dataset: Dataset, number: int) -> float:
    start = time.perf_counter()
    dataset[number]
    return time.perf_counter() - start


def _stream_samples(dataset: Dataset, seed: int) -> Iterator[Sample]:
    """Yield samples, epoch after epoch."""
    stream = dataset.stream(seed=seed, rank=0, world_size=1)
    return chain.from_iterable(repeat(stream))


def _random_samples(dataset: Dataset, seed: int) -> Iterator[Sample]:
    """Yield samples from anywhere."""
    draw = np.random.default_rng(seed)
    return chain.from_iterable(dataset[draw.integers(0, len(dataset), _SAMPLES_PER_READ)] for _ in repeat(None))


def _measure_speed(samples: Iterable[Sample], decode: Decode | None = None) -> Speed:
    count, size, start = 0, 0, time.perf_counter()
    for sample in samples:
        count += 1
        size += sum(len(value) for value in sample.values() if type(value) is bytes)
        if decode is not None:
            decode(sample)
        if time.perf_counter() - start >= _MEASURE_S:
            break
    return Speed(count, size, max(time.perf_counter() - start, 1e-9))
