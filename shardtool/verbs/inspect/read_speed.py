"""Measure how fast a dataset can be read and decoded (`inspect --read-speed`)."""

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
from shardtool.storage.remote.store_options import with_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shardtool.storage.remote.store_options import StorageOptions
    from shardtool.values import DatasetLike

    Sample = dict[str, Any]

_MEASURE_S = 2.0
_SAMPLES_PER_READ = 64
_MAX_OPENED_SHARDS = 16
_MAX_OPENING_SHARE = 0.1


class Speed(NamedTuple):
    """Number of samples, bytes of these samples before decoding, and seconds for reading and decoding."""

    samples: int
    bytes: int
    seconds: float

    @property
    def samples_per_s(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds

    @property
    def bytes_per_s(self) -> float:
        """Bytes per second."""
        return self.bytes / self.seconds


class ReadSpeed(NamedTuple):
    """The read speed of a dataset in one process.

    Attributes:
        opening: Seconds to open a shard and read its index.
        stream: Speed of a shuffled stream, as in training.
        random: Speed of random access, 64 samples at a time.
        decoded: Speed of a stream decoded in one thread, or None without `decode`.
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
        """The fraction of time spent opening shards."""
        return self.opening / (self.opening + self.mean_size / max(1, self.stream.bytes_per_s))

    @property
    def large_enough(self) -> bool:
        """Whether there is only one shard, or opening shards takes at most a tenth of the total time."""
        return self.shards == 1 or self.opening_share <= _MAX_OPENING_SHARE

    @property
    def advised_size(self) -> int:
        """The shard size in bytes at which opening shards takes a tenth of the total time."""
        return round(self.opening * self.stream.bytes_per_s * (1 / _MAX_OPENING_SHARE - 1))

    def to_json(self) -> dict[str, object]:
        """Return the result as `--json` prints it."""
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
                name: speed
                and {**speed._asdict(), "samples_per_s": speed.samples_per_s, "bytes_per_s": speed.bytes_per_s}
                for name, speed in speeds.items()
            },
        }


def read_speed(
    dataset: DatasetLike, *, decode: bool = False, seed: int = 0, storage_options: StorageOptions | None = None
) -> ReadSpeed:
    """Measure the speed of a stream, of random access and, with `decode`, of decoding, each for two seconds."""
    catalog = open_catalog(with_options(dataset, storage_options))
    filled = np.flatnonzero(np.diff(catalog.first_samples))
    if not len(filled):
        raise InvalidRequest(catalog.name, "no samples", expected="at least one sample")
    opened = filled[:: max(1, len(filled) // _MAX_OPENED_SHARDS)][:_MAX_OPENED_SHARDS]
    opened_dataset = Dataset(SampleReader(catalog, ReadOptions()))
    opening = _opening_time(opened_dataset, [int(catalog.first_samples[shard]) for shard in opened])
    return ReadSpeed(
        dataset=catalog.name,
        shards=len(filled),
        mean_size=int(catalog.sizes[filled].mean()),
        opening=opening,
        stream=_measure_speed(_stream_samples(opened_dataset, seed)),
        random=_measure_speed(_random_samples(opened_dataset, seed)),
        decoded=_measure_speed(_stream_samples(opened_dataset, seed), Decode()) if decode else None,
    )


def _opening_time(dataset: Dataset, numbers: list[int]) -> float:
    dataset[numbers[0]]  # do not measure the first read, because it also imports modules
    differences = [_read_time(dataset, number) - _read_time(dataset, number) for number in numbers[1:] or numbers]
    return max(0.0, median(differences))


def _read_time(dataset: Dataset, number: int) -> float:
    start = time.perf_counter()
    dataset[number]
    return time.perf_counter() - start


def _stream_samples(dataset: Dataset, seed: int) -> Iterator[Sample]:
    return chain.from_iterable(repeat(dataset.stream(seed=seed, rank=0, world_size=1)))


def _random_samples(dataset: Dataset, seed: int) -> Iterator[Sample]:
    generator = np.random.default_rng(seed)
    return chain.from_iterable(dataset[generator.integers(0, len(dataset), _SAMPLES_PER_READ)] for _ in repeat(None))


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
