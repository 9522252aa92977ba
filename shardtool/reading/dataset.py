"""A dataset for training code: samples by number, by key, in batches and as a stream."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, cast, overload

import numpy as np

from shardtool.reading.fetch import Fetcher, ReadOptions
from shardtool.reading.order import View
from shardtool.reading.stream import Streamable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.reading.catalog import Catalog
    from shardtool.reading.fetch import Sample


class Dataset(Streamable):
    """Samples of shards, or some of them.

    Picklable without open files; safe in threads and after a fork.
    """

    def __init__(self, fetcher: Fetcher, chosen: NDArray[np.int64] | None = None) -> None:
        super().__init__(fetcher, View(fetcher.catalog, chosen))
        self._chosen = chosen

    @classmethod
    def of(cls, catalog: Catalog, options: ReadOptions) -> Dataset:
        """Return the dataset of a catalog."""
        return cls(Fetcher(catalog, options))

    @property
    def fields(self) -> Mapping[str, int]:
        """How many samples have each field."""
        return self.fetcher.catalog.fields

    @property
    def classes(self) -> Mapping[str, list[str]]:
        """Field to the names of its class numbers."""
        return self.fetcher.catalog.classes

    @property
    def fingerprint(self) -> str:
        """What is equal for equal samples."""
        return self.source.fingerprint

    def __len__(self) -> int:
        return len(self.fetcher.catalog) if self._chosen is None else len(self._chosen)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.stream(shuffle=False, rank=0, world_size=1))

    @overload
    def __getitem__(self, which: int) -> Sample: ...
    @overload
    def __getitem__(self, which: slice) -> Dataset: ...
    @overload
    def __getitem__(self, which: Sequence[int] | NDArray[np.int64]) -> list[Sample]: ...

    def __getitem__(self, which: int | slice | Sequence[int] | NDArray[np.int64]) -> Sample | Dataset | list[Sample]:
        if isinstance(which, slice):
            chosen = np.arange(len(self), dtype=np.int64)[which]
            return Dataset(self.fetcher, chosen if self._chosen is None else self._chosen[chosen])
        if isinstance(which, (list, tuple, np.ndarray)):
            return self.fetcher.fetch(self._numbers(np.asarray(which, np.int64)))
        return self.fetcher.fetch(self._numbers(np.array([operator.index(cast("int", which))])))[0]

    def _numbers(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of samples in the catalog, by their places here; places below 0 count from the end."""
        places = np.where(places < 0, places + len(self), places)
        if len(places) and not 0 <= places.min() <= places.max() < len(self):
            raise IndexError(f"sample {places.max()} of {len(self)}")
        return places if self._chosen is None else self._chosen[places]
