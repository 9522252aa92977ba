"""Make batches of samples of similar length or aspect ratio."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np

from shardtool.errors import InvalidRequest, ShardError
from shardtool.read.bundles import Bundle, metadata_sizes
from shardtool.read.collate import ListFields, collate
from shardtool.read.pipeline import Map, Pipeline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardtool.read.catalog import Numbers
    from shardtool.read.epoch_samples import EpochSamples
    from shardtool.read.options import Sample
    from shardtool.read.sample_reader import AnySampleReader
    from shardtool.values import OnError


DEFAULT_ASPECT_RATIOS = (1 / 2, 9 / 16, 2 / 3, 3 / 4, 1.0, 4 / 3, 3 / 2, 16 / 9, 2.0)


def nearest_aspect_ratios(aspects: Sequence[float], reader: AnySampleReader, views: EpochSamples) -> Numbers:
    """Return the index of the nearest ratio in `aspects` (ascending), by sample number."""
    if not aspects or aspects[0] <= 0:
        raise InvalidRequest("aspects", repr(aspects), expected="ratios of width to height, above 0")
    width, height = (np.log(np.maximum(1, metadata_sizes(name, reader, views))) for name in ("width", "height"))
    logs = np.log(aspects)
    return np.searchsorted((logs[1:] + logs[:-1]) / 2, width - height).astype(np.int64)


def make_size_batch(aspects: Sequence[float], bundle: Bundle, samples: list[Sample]) -> Sample:
    """Return a bundle as one item of a stream. `SizeBatches` collates its samples."""
    if aspects:
        samples = [{**sample, "__aspect__": aspects[int(bundle.sizes[0])]} for sample in samples]
    numbered = [*zip(bundle.numbers.tolist(), samples, strict=True)]
    return {"__key__": [sample["__key__"] for sample in samples], "__samples__": numbered}


class SizeBatches(Map):
    """Runs the stages on each sample of a batch, and collates the results.

    If all samples are skipped, the stream reads another batch.
    """

    def __init__(self, stages: Pipeline, lists: ListFields = ()) -> None:
        super().__init__(partial(_run_and_collate, stages, lists))

    def with_on_error(self, on_error: OnError) -> SizeBatches:
        """Return a copy whose stages use this `on_error`."""
        stages, lists = cast("partial[object]", self.function).args
        return SizeBatches(stages.with_on_error(on_error), lists)


def _run_and_collate(stages: Pipeline, lists: ListFields, bundle: Sample, rng: np.random.Generator) -> object:
    padding = {name: bundle[name] for name in ("__padding__",) if name in bundle}
    start, kept, skipped = int(rng.integers(2**63)), list[object](), list[tuple[ShardError, int]]()
    for index, (number, sample) in enumerate(cast("list[tuple[int, Sample]]", bundle["__samples__"])):

        def skip(error: ShardError, number: int = number) -> None:
            skipped.append((error, number))

        def rng_of(stage: int, index: int = index) -> np.random.Generator:
            return np.random.default_rng([start, index, stage])

        kept += stages.run([{**sample, **padding}], skip, rng_of)
    if "__on_skip__" in bundle:  # missing for a replacement batch, whose skipped samples are not counted again
        for skipped_sample in skipped[not kept :]:  # if all samples are skipped, the stream itself counts the first
            cast("Callable[..., None]", bundle["__on_skip__"])(*skipped_sample)
    return collate(kept, lists) if kept else None
