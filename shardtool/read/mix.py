"""Mix several datasets into one, in given proportions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np

from shardtool.errors import InvalidRequest, ShardError, format_list
from shardtool.read.collate import Batch
from shardtool.read.dataset import check_in_range
from shardtool.read.epoch_samples import EpochSamples, MixedSamples, Stop
from shardtool.read.order import OrderOptions
from shardtool.read.pipeline import DatasetPipelines, OnMissing, Pipeline, SampleT, Stage, with_dataloader_hints
from shardtool.read.sample_reader import AnySampleReader, MixedReader, read_valid
from shardtool.read.streamable import BundledDataset, Streamable
from shardtool.units import pluralize
from shardtool.values import OnError, common_type

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from shardtool.read.catalog import Numbers
    from shardtool.read.decode import Decoder
    from shardtool.read.pipeline import AnyTuple, DecodeOptions, NewT


class MixedDataset(Streamable[SampleT]):
    """A mix of datasets. The field `__dataset__` of a sample is the number of its dataset, from 0."""

    source: MixedSamples
    reader: MixedReader

    if TYPE_CHECKING:  # declare narrower result types

        def decode(
            self, own: Mapping[str, Decoder] | None = None, **options: Unpack[DecodeOptions]
        ) -> MixedDataset[dict[str, Any]]: ...
        def map(self, function: Callable[..., NewT | None]) -> MixedDataset[NewT]: ...
        def tuple(self, *fields: str, missing: OnMissing = "raise") -> MixedDataset[AnyTuple]: ...

    def __repr__(self) -> str:
        return f"<Mixture: {pluralize(self.source.length, 'sample')} an epoch{self.stages}>"

    @overload
    def __getitem__(self, which: int) -> SampleT: ...
    @overload
    def __getitem__(self, which: Sequence[int] | Numbers) -> list[SampleT]: ...

    def __getitem__(self, which: int | Sequence[int] | Numbers) -> Any:
        """Return the sample at a position of an unshuffled epoch, or a list of samples.

        Raises:
            IndexError: A position is out of range.
            CorruptShard: A shard is missing or damaged.
            SampleFailed: A stage fails, or would skip the sample.
        """
        positions = np.asarray(which)
        if isinstance(which, slice) or positions.ndim > 1 or not (positions.dtype.kind in "iu" or not positions.size):
            expected = "one or several numbers; select views of the datasets before you mix them"
            raise InvalidRequest("the mix", f"invalid index {which!r:.80}", expected=expected)
        positions = check_in_range(positions.reshape(-1).astype(np.int64), self.source.length)
        numbers = self.source.order(OrderOptions(shuffle=False)).numbers(positions)
        if np.ndim(which):
            return [*self.stages.apply_each(read_valid(self.reader, numbers), self.count_dropped)]
        (sample,) = self.reader.read(numbers)
        if isinstance(sample, ShardError):
            raise sample
        return self.stages.apply(sample)


@with_dataloader_hints
def mix(
    datasets: Iterable[Streamable[SampleT]], weights: Sequence[float] | None = None, *,
    choose: Sequence[int] | None = None, repeat: Sequence[float] | None = None, stop: Stop | None = None,
) -> MixedDataset[SampleT]:  # fmt: skip
    """Mix several datasets into one.

    Each block of 64 samples has the requested proportions, up to rounding. The datasets alternate in random order, even
    without `shuffle`. After its last sample, a dataset continues with its next epoch. A new epoch of the mix
    continues each dataset where the previous epoch stopped. Without options, each sample occurs once per epoch.

    Args:
        datasets: Datasets, views or other mixes. Their stages run before the stages of the mix.
        weights: `[3, 1]` draws three of four samples from the first dataset. Default: the lengths of the datasets.
        choose: Number of samples per epoch from each dataset, instead of weights.
        repeat: How often to read each dataset per epoch, instead of weights. With 0.5, the epochs 0 and 1 together
            read each sample once.
        stop: With weights, end an epoch when one dataset was read completely (`first`, the default), when every
            dataset was read completely (`all`), or after this number of samples.

    Raises:
        InvalidRequest: A dataset is empty or batched, or an option is invalid.
    """
    datasets = [*datasets] if isinstance(datasets, Iterable) else [datasets]
    for number, dataset in enumerate(datasets):
        if not isinstance(dataset, Streamable):
            found = f"a {type(dataset).__name__}"
            raise InvalidRequest(f"dataset {number} of the mix", found, expected="a dataset from shardtool.open")
        if any(isinstance(stage, Batch) for stage in dataset.stages.stages) or isinstance(dataset, BundledDataset):
            expected = "single samples: mix first, then batch or pack"
            raise InvalidRequest(f"dataset {number} of the mix", "batches", expected=expected)
    options = {"weights": weights, "choose": choose, "repeat": repeat}
    given_options = [name for name, value in options.items() if value is not None]
    if len(given_options) > 1 or (stop is not None and {*given_options} - {"weights"}):
        found = f"given with {format_list([*given_options[1:], *(['stop'] if stop is not None else [])])}"
        raise InvalidRequest(given_options[0], found, expected="only one of: weights (with stop), choose, repeat")
    sources = [cast("EpochSamples", dataset.source) for dataset in datasets]
    if weights is None and stop is None:
        source = MixedSamples.from_counts(sources, choose, repeat)
    else:
        weights = [dataset.length for dataset in sources] if weights is None else weights
        source = MixedSamples.from_weights(sources, weights, "first" if stop is None else stop)
    readers = [cast("AnySampleReader", dataset.reader) for dataset in datasets]
    mixed = MixedDataset[SampleT](MixedReader(readers, source), source)
    types = [dataset.stages.types for dataset in datasets]
    agreed = {name: common_type(dataset_types.get(name) for dataset_types in types) for name in types[0]}
    pipelines = tuple(pipeline for dataset in datasets for pipeline in _pipelines_of(dataset))
    stages = (DatasetPipelines(pipelines),) if any(pipelines) else ()
    on_error: OnError = "skip" if all(dataset.stages.on_error == "skip" for dataset in datasets) else "raise"
    return mixed.with_stages(Pipeline(stages, {name: kind for name, kind in agreed.items() if kind}, on_error))


def _pipelines_of(dataset: Streamable[Any]) -> list[tuple[Stage, ...]]:
    stages = tuple(stage for stage in dataset.stages.stages if not isinstance(stage, Batch))
    if stages and isinstance(stages[0], DatasetPipelines):
        return [(*inner_stages, *stages[1:]) for inner_stages in stages[0].by_dataset]
    return [stages] * (sum(dataset.source.datasets) if isinstance(dataset, MixedDataset) else 1)
