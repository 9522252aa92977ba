"""Bucketing: batches of samples of similar length, or of similar aspect ratio."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np

from shardtool.errors import InvalidRequest, ShardError
from shardtool.read.bundles import metadata_sizes
from shardtool.read.collate import ListFields, collate
from shardtool.read.pipeline import Map, Pipeline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardtool.read.bundle_rules import Bundle
    from shardtool.read.catalog import Numbers
    from shardtool.read.epoch_samples import EpochSamples
    from shardtool.read.mixed_reader import AnySampleReader
    from shardtool.read.options import Sample


DEFAULT_ASPECT_RATIOS = (1 / 2, 9 / 16, 2 / 3, 3 / 4, 1.0, 4 / 3, 3 / 2, 16 / 9, 2.0)


def nearest_aspect_ratios(aspects: Sequence[float], reader: AnySampleReader, views: EpochSamples) -> Numbers:
    """Return which aspect is the nearest of each image, at the numbers of the samples.

    Args:
        aspects: Widths per height, ascending.
        reader: Of the samples.
        views: Which.

    Raises:
        InvalidRequest: No column has widths or heights, or aspects are none.
    """
    if not aspects or aspects[0] <= 0:
        raise InvalidRequest("aspects", repr(aspects), expected="widths per height, above 0")
    width, height = (np.log(np.maximum(1, metadata_sizes(name, reader, views))) for name in ("width", "height"))
    logs = np.log(aspects)
    return np.searchsorted((logs[1:] + logs[:-1]) / 2, width - height).astype(np.int64)


def make_size_batch(aspects: Sequence[float], bundle: Bundle, samples: list[Sample]) -> Sample:
    """Return samples as what `Batches` makes a batch of; where they are of one aspect, they say which."""
    if aspects:
        samples = [{**sample, "__aspect__": aspects[int(bundle.sizes[0])]} for sample in samples]
    numbered = [*zip(bundle.numbers.tolist(), samples, strict=True)]
    return {"__key__": [sample["__key__"] for sample in samples], "__samples__": numbered}


class SizeBatches(Map):
    """Makes a batch of the samples that a stream gives together, each of which goes through stages of its own before.

    A batch goes without samples that these leave out; where none is left, another batch takes its place.
    """

    def __init__(self, stages: Pipeline, lists: ListFields = ()) -> None:
        super().__init__(partial(_run_and_collate, stages, lists))


def _run_and_collate(stages: Pipeline, lists: ListFields, bundle: Sample, rng: np.random.Generator) -> object:
    padding = {name: bundle[name] for name in ("__padding__",) if name in bundle}
    start, kept, left_out = int(rng.integers(2**63)), list[object](), list[tuple[ShardError, int]]()
    for at, (number, sample) in enumerate(cast("list[tuple[int, Sample]]", bundle["__samples__"])):

        def skip(error: ShardError, number: int = number) -> None:
            left_out.append((error, number))

        kept += stages.run([{**sample, **padding}], skip, partial(_rng_in_bundle, start, at))
    if "__tell__" in bundle:  # a batch that takes the place of another has counted there
        for each in left_out[not kept :]:  # where nothing is left, the place counts one
            cast("Callable[..., None]", bundle["__tell__"])(*each)
    return collate(kept, lists) if kept else None


def _rng_in_bundle(start: int, sample: int, stage: int) -> np.random.Generator:
    """Return the generator that a stage draws from for a sample of a batch."""
    return np.random.default_rng([start, sample, stage])
