"""Several datasets, mixed into one stream by weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np

from shardtool.errors import InvalidRequest, ShardError, format_list
from shardtool.read.collate import Batch
from shardtool.read.dataset import check_in_range
from shardtool.read.epoch_samples import MixedSamples
from shardtool.read.mixed_reader import MixedReader
from shardtool.read.order import OrderOptions
from shardtool.read.pipeline import DatasetPipelines, Pipeline, Stage
from shardtool.read.pipeline_methods import with_dataloader_hints
from shardtool.read.streamable import BundledDataset, Streamable
from shardtool.units import pluralize
from shardtool.values import common_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardtool.read.catalog import Numbers
    from shardtool.read.epoch_samples import EpochSamples, Stop
    from shardtool.read.mixed_reader import AnySampleReader

    Several = Sequence[int] | list[str] | tuple[str, ...] | NDArray[np.generic]


class MixedDataset(Streamable):
    """Samples of several datasets: what `mix` returns. Each says which it is of by its number, as `__dataset__`."""

    source: MixedSamples
    fetcher: MixedReader

    def __repr__(self) -> str:
        return f"<Mixture: {pluralize(self.source.length, 'sample')} an epoch{self.stages}>"

    @overload
    def __getitem__(self, which: int) -> Any: ...
    @overload
    def __getitem__(self, which: Sequence[int] | Numbers) -> list[Any]: ...

    def __getitem__(self, which: int | Sequence[int] | Numbers) -> Any:
        """Return the sample at a place of an epoch that is not shuffled, or a list of those at several.

        Raises:
            IndexError: There is no such place.
            CorruptShard: A shard is missing or damaged.
            SampleFailed: A stage cannot do its work, or would leave the sample out.
        """
        places = np.asarray(which)
        if isinstance(which, slice) or places.ndim > 1 or not (places.dtype.kind in "iu" or not places.size):
            expected = "a number, or several: views are taken of datasets, before they are mixed"
            raise InvalidRequest("the mix", f"asked for {which!r:.80}", expected=expected)
        places = check_in_range(places.reshape(-1).astype(np.int64), self.source.length)
        numbers = self.source.order(OrderOptions(shuffle=False)).numbers(places)
        if np.ndim(which):
            return [self.stages.apply(sample) for sample in self.fetcher.fetch(numbers)]
        (found,) = self.fetcher.read(numbers)
        if isinstance(found, ShardError):
            raise found
        return self.stages.apply(found)


@with_dataloader_hints
def mix(
    datasets: Iterable[Streamable], weights: Sequence[float] | None = None, *, choose: Sequence[int] | None = None,
    repeat: Sequence[float] | None = None, stop: Stop | None = None,
) -> MixedDataset:  # fmt: skip
    """Return several datasets as one that can be streamed: exact, divided among ranks, and resumed as one is.

    Which dataset comes next is random in blocks of 64 samples, in which shares are exact; without `shuffle`, too, where
    each dataset keeps its own order. A dataset that is exhausted before the epoch ends goes on with its next epoch, in
    another order; and in the next epoch of the mix, each goes on where it was. With datasets alone, an epoch has each
    of their samples once.

    Args:
        datasets: Datasets, views of them, or other mixes. What is done to the samples of each comes before what is done
            to those of the mix.
        weights: Of each, above 0: with 3 and 1, three of four samples are of the first; None: their lengths.
        choose: How many samples of each an epoch has, in place of weights.
        repeat: How many times an epoch has each: 2 twice, 0.5 one half of it, in the next epoch the other.
        stop: When an epoch by weights ends: with the last sample of the dataset that is exhausted first (`first`), when
            each was seen as a whole (`all`), or after a number of samples.

    Raises:
        InvalidRequest: A dataset has no samples, or makes batches, or weights and the like are none of their values.
    """
    datasets = [*datasets] if isinstance(datasets, Iterable) else [datasets]
    for at, one in enumerate(datasets):
        if not isinstance(one, Streamable):
            found = f"a {type(one).__name__}"
            raise InvalidRequest(f"dataset {at} of the mix", found, expected="what shardtool.open returned")
        if any(isinstance(stage, Batch) for stage in one.stages.stages) or isinstance(one, BundledDataset):
            expected = "samples: mix first, then batch or pack"
            raise InvalidRequest(f"dataset {at} of the mix", "batches", expected=expected)
    given = [name for name, one in (("weights", weights), ("choose", choose), ("repeat", repeat)) if one is not None]
    if len(given) > 1 or (stop is not None and {*given} - {"weights"}):
        found = f"given with {format_list([*given[1:], *(['stop'] if stop is not None else [])])}"
        raise InvalidRequest(given[0], found, expected="weights and stop, choose, or repeat")
    sources = [cast("EpochSamples", one.source) for one in datasets]
    if weights is None and stop is None:
        source = MixedSamples.from_counts(sources, choose, repeat)
    else:
        weights = [one.length for one in sources] if weights is None else weights
        source = MixedSamples.of(sources, weights, "first" if stop is None else stop)
    mixed = MixedDataset(MixedReader([cast("AnySampleReader", one.fetcher) for one in datasets], source), source)
    agreed = {name: common_type(one.stages.types.get(name) for one in datasets) for name in datasets[0].stages.types}
    chains = tuple(chain for one in datasets for chain in _pipelines_of(one))
    stages = (DatasetPipelines(chains),) if any(chains) else ()
    return mixed.with_stages(Pipeline(stages, {name: kind for name, kind in agreed.items() if kind}))


def _pipelines_of(one: Streamable) -> list[tuple[Stage, ...]]:
    """Return what is done to the samples of a dataset, or of each that a mix has."""
    own = tuple(stage for stage in one.stages.stages if not isinstance(stage, Batch))
    if own and isinstance(own[0], DatasetPipelines):
        return [(*before, *own[1:]) for before in own[0].each]
    return [own] * (sum(one.source.datasets) if isinstance(one, MixedDataset) else 1)
