"""A dataset for training code: samples by number, by key, in batches and as a stream; and views of some of them."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from copy import copy
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np

from shardtool.errors import InvalidRequest, ShardError, current_folder, listing
from shardtool.read.catalog import joined, matching_rows, open_catalog, schema_of, table_of
from shardtool.read.fetch import Fetcher, MixedReader
from shardtool.read.files import GrowingCache, ReadOptions, TakenShards
from shardtool.read.keys import KeyFinder, Keys, numbers_of
from shardtool.read.order import MixedSamples, SampleView
from shardtool.read.stream import Streamable
from shardtool.values import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa
    import pyarrow.dataset as pads
    from numpy.typing import NDArray

    from shardtool.read.catalog import Catalog
    from shardtool.read.fetch import SkippedSamples
    from shardtool.read.files import ShardCache
    from shardtool.read.order import Stop
    from shardtool.read.samples import Sample
    from shardtool.values import Given, OnBadSample

    Numbers = NDArray[np.int64]
    Several = Sequence[int] | list[str] | tuple[str, ...] | NDArray[np.generic]

_WHICH = "a number, a key, a slice, several of these, or a mask of all samples"


class Dataset(Streamable):
    """Samples of shards, or some of them.

    Picklable without open files; safe in threads and after a fork.
    """

    fetcher: Fetcher

    def __init__(self, fetcher: Fetcher, chosen: Numbers | None = None) -> None:
        super().__init__(fetcher, SampleView(fetcher.catalog, chosen))
        self._chosen = chosen
        self._count = len(fetcher.catalog) if chosen is None else len(chosen)
        self._finder = KeyFinder(fetcher.store, fetcher.catalog)

    @classmethod
    def of(cls, catalog: Catalog, options: ReadOptions) -> Dataset:
        """Return the dataset of a catalog."""
        return cls(Fetcher(catalog, options))

    @property
    def skipped(self) -> SkippedSamples:
        """Damaged samples that were left out with `on_error="skip"`, in this process."""
        return self.fetcher.skipped

    @property
    def fields(self) -> Mapping[str, int]:
        """How many samples have each field; counted where no dataset file says so, and of a view."""
        catalog = self.fetcher.catalog
        if self._chosen is None and catalog.fields:
            return catalog.fields
        found: Counter[str] = Counter()
        for shard, rows, _ in self._by_shard():
            index = self.fetcher.store.index(shard)
            found.update(dict(zip(index.names, index.field_counts(rows), strict=True)))
        return dict(+found)

    @property
    def classes(self) -> Mapping[str, list[str]]:
        """Field to the names of its class numbers."""
        return self.fetcher.catalog.classes

    @property
    def splits(self) -> Mapping[str, int]:
        """How many samples each split has, by its name: of several datasets, each is one."""
        splits = self.fetcher.catalog.splits
        if self._chosen is None:
            return {name: sum(map(len, parts)) for name, parts in splits.items()}
        return {name: len(self.partition(name)) for name in splits}

    @property
    def fingerprint(self) -> str:
        """What is equal for equal samples: of a whole dataset, its content fingerprint, where that is known."""
        content = self.fetcher.catalog.content if self._chosen is None else ""
        return content or self.source.fingerprint

    @property
    def schema(self) -> pa.Schema:
        """The columns of the sidecars, and their types."""
        return schema_of(self.fetcher.catalog)

    @property
    def keys(self) -> Keys:
        """The keys of all samples, in order: a sequence that is read when it is asked."""
        return Keys(self.fetcher.store, self._finder, self.fetcher.catalog, self._chosen)

    def __len__(self) -> int:
        return self.stages.count(self._count)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.stream(shuffle=False, rank=0, world_size=1, ends="uneven") if self._count else ())

    def __contains__(self, key: object) -> bool:
        return key in self.keys

    def __repr__(self) -> str:
        catalog = self.fetcher.catalog
        of = "" if self._chosen is None else f"{self._count:,} of "
        what = f"{of}{counted(len(catalog), 'sample')} in {counted(len(catalog.shards), 'shard')}"
        fields = f", fields {listing([*catalog.fields])}" if catalog.fields else ""
        return f"<Dataset {catalog.name}: {what}{fields}{self.stages}>"

    @overload
    def __getitem__(self, which: int | str) -> Any: ...
    @overload
    def __getitem__(self, which: slice) -> Dataset: ...
    @overload
    def __getitem__(self, which: Several) -> list[Any]: ...

    def __getitem__(self, which: int | str | slice | Several) -> Any:
        """Return the sample of a number or key, a list of those of several, or a view of a slice.

        What the dataset's stages make of a sample is returned; what they would leave out of a stream is an error.

        Raises:
            IndexError: There is no such number.
            UnknownKey: There is no such key.
            CorruptShard: A shard is missing or damaged.
            SampleFailed: A stage cannot do its work.
        """
        if type(which) is int:  # a hot path
            plain = self._chosen is None and 0 <= which < self._count
            return self._one(which if plain else self._number(which))
        if isinstance(which, slice):
            return self._with_chosen(self._numbers(np.arange(*which.indices(self._count), dtype=np.int64)))
        if isinstance(which, str):
            return self._one(int(self._with_keys([which])[0]))
        if isinstance(which, Sequence) or np.ndim(which):  # arrays, tensors, pandas
            found = self.fetcher.fetch(self._several(cast("Several", which)))
            return [self.stages.apply(sample) for sample in found] if self.stages.stages else found
        try:
            place = operator.index(which)
        except TypeError:
            raise InvalidRequest("the dataset", f"asked for {which!r:.80}", expected=_WHICH) from None
        return self._one(self._number(place))

    def _one(self, number: int) -> object:
        """Return what becomes of one sample, which is never left out."""
        sample = self.fetcher.one(number)
        if isinstance(sample, ShardError):
            raise sample
        return self.stages.apply(sample) if self.stages.stages else sample

    def _several(self, which: Several) -> Numbers:
        """Return the numbers in the catalog of several samples here, given by numbers, keys, or a mask."""
        try:
            asked = np.asarray(which)
        except ValueError:  # lists of several lengths
            asked = np.zeros(())
        texts = asked.dtype.kind in "UTO" and all(isinstance(one, str) for one in which)
        if asked.ndim != 1 or not (texts or asked.dtype.kind in "biu" or not len(asked)):
            raise InvalidRequest("the dataset", f"asked for {which!r:.80}", expected=_WHICH)
        if texts:
            return self._with_keys([str(one) for one in which])
        if asked.dtype.kind == "b":
            if len(asked) != self._count:
                raise IndexError(f"a mask of {len(asked):,} for {counted(self._count, 'sample')}")
            asked = np.flatnonzero(asked)
        return self._numbers(asked.astype(np.int64))

    def _number(self, place: int) -> int:
        """Return the number of a sample in the catalog, by its place here; a place below 0 counts from the end."""
        if not -self._count <= place < self._count:
            raise IndexError(f"sample {place} of {self._count:,}")
        place = place if place >= 0 else place + self._count
        return place if self._chosen is None else int(self._chosen[place])

    def _numbers(self, places: Numbers) -> Numbers:
        """Return the numbers of samples in the catalog, by their places here; places below 0 count from the end."""
        bad = places[(places < -self._count) | (places >= self._count)]
        if len(bad):
            raise IndexError(f"sample {bad[0]} of {self._count:,}")
        places = np.where(places < 0, places + self._count, places)
        return places if self._chosen is None else self._chosen[places]

    def _with_keys(self, keys: Iterable[str]) -> Numbers:
        return numbers_of(self._finder, keys, self._chosen)

    def _by_shard(self) -> Iterator[tuple[int, Numbers, Numbers]]:
        """Yield each shard: its place, the rows of the samples that lie in it, and their places here."""
        catalog = self.fetcher.catalog
        if self._chosen is not None:
            yield from catalog.by_shard(self._chosen)
            return
        for shard, (first, last) in enumerate(pairwise(catalog.firsts.tolist())):
            yield shard, np.arange(last - first), np.arange(first, last)

    def _with_chosen(self, chosen: Numbers) -> Dataset:
        found = copy(self)
        vars(found).update(_chosen=chosen, _count=len(chosen), source=SampleView(self.fetcher.catalog, chosen))
        return found

    def _of_split(self, split: str) -> Dataset:
        catalog, chosen = self.fetcher.catalog, self._chosen
        if chosen is None:
            found = Dataset.of(joined(catalog.splits[split]), self.fetcher.options)
            return found.with_stages(self.stages)
        inside = [(chosen >= first) & (chosen < last) for first, last in catalog.bounds(split)]
        return self._with_chosen(chosen[np.logical_or.reduce(inside)])

    def take(self, which: Several) -> Dataset:
        """Return a view of several samples, given by numbers, keys, or a mask, in the order given.

        Raises:
            IndexError: There is no such number.
            UnknownKey: There is no such key.
        """
        return self._with_chosen(self._several(which))

    def partition(self, which: str | Iterable[str]) -> Dataset:
        """Return one split, by its name: what opening it alone gives; or a view of some keys, in the order given.

        Raises:
            InvalidRequest: There is no such split.
            UnknownKey: There are no such keys.
        """
        if not isinstance(which, str):
            return self._with_chosen(self._with_keys(which))
        splits = self.fetcher.catalog.splits
        if which not in splits:
            expected = f"one of {listing([*splits])}, or keys"
            raise InvalidRequest("partition", f"no split {which!r}", expected=expected)
        return self._of_split(which)

    def where(self, query: str) -> Dataset:
        """Return a view of the samples for which a query is true, such as `bi == 'dog' and width > 256`.

        It may name the columns of the sidecars, and `key`, `shard`, `size` (bytes of all fields) and `fields` (how
        many). All sidecars are read for it, one after the other.

        Raises:
            InvalidRequest: It is no query, or names what is no column.
        """
        if not isinstance(query, str):
            raise InvalidRequest("where", f"{query!r:.40}", expected="a query, such as \"bi == 'dog'\"")
        return self._with_chosen(matching_rows(self.fetcher.catalog, self._chosen, query))

    def table(self) -> pads.Dataset:
        """Return the sidecars as one table that pandas, DuckDB and polars can query: a `pyarrow.dataset.Dataset`.

        It has a row a sample: `__key__`, `__shard__`, where it lies, and the metadata. Of a whole dataset, files are
        read when it is queried, and not checked before; the rows of a view are held in memory, in its order.
        """
        return table_of(self.fetcher.catalog, self._chosen)


# `shardtool.open`: a dataset for training code, given in any way that the commands take.


@current_folder()
def open(  # noqa: A001 - its public name
    given: Given | GrowingCache | TakenShards, *, check: bool = False, cache: ShardCache | None = None,
    on_error: OnBadSample = "raise", metadata: bool = False,
) -> Dataset:  # fmt: skip
    """Return a dataset for reading.

    Args:
        given: A dataset file (of shardtool or wids), a shard pattern, a glob, a folder, or shards; several datasets,
            such as the splits in a folder, become one, in their order. Shards without a sidecar are walked now, once
            for all processes, and a warning says so. A `Cache` stands for the shards that samplers have finished in it
            by now; what its `refresh` returned, for those of then, in whichever process.
        check: Whether the checksum of each payload that is read is compared with its index.
        cache: Where shards are copied to before they are read.
        on_error: `skip`: a damaged sample is left out, and counted, instead of being an error.
        metadata: Whether samples have the metadata of their sidecar, under the names of its columns; None where a shard
            lacks one. Where a field has the same name, the field stays.

    Raises:
        InvalidRequest: There is no such dataset.
        CorruptShard: A dataset file is damaged, or a shard that no sidecar describes cannot be read.
    """
    given = given.refresh() if isinstance(given, GrowingCache) else given
    if isinstance(given, TakenShards):
        cache, given = given, [*given]
        if not given:
            remedy = "Wait for its writers: `refresh()` says how many shards there are."
            raise InvalidRequest("the cache", "no finished shards yet", remedy=remedy)
    return Dataset.of(open_catalog(given), ReadOptions(check, cache, on_error, metadata))


_AFTER = "samples as they are read: mix first, then decode, map or select"


class Mixture(Streamable):
    """Samples of several datasets, by weights: what `mix` returns."""

    def __len__(self) -> int:
        """Return how many samples, or batches, an epoch has, of all ranks together."""
        return self.stages.count(self.source.length)

    @property
    def fingerprint(self) -> str:
        """What is equal for equal samples in an equal mix."""
        return self.source.fingerprint

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.stream(shuffle=False, rank=0, world_size=1, ends="uneven"))

    def __repr__(self) -> str:
        return f"<Mixture: {counted(self.source.length, 'sample')} an epoch{self.stages}>"


def mix(datasets: Sequence[Streamable], weights: Sequence[float], *, stop: Stop = "first") -> Mixture:
    """Return several datasets as one that can be streamed: exact, divided among ranks, and resumed as one is.

    Which dataset comes next is random in blocks of 64 samples, in which shares are exact; without `shuffle`, too, where
    each dataset keeps its own order. A dataset that is exhausted before the epoch ends goes on with its next epoch, in
    another order; and in the next epoch of the mix, each goes on where it was.

    Args:
        datasets: Datasets, views of them, or other mixes.
        weights: Of each, above 0: with 3 and 1, three of four samples are of the first.
        stop: When an epoch ends: with the last sample of the dataset that is exhausted first (`first`), when each
            was seen as a whole (`all`), or after a number of samples.

    Raises:
        InvalidRequest: A dataset has no samples, or weights or `stop` are none of their values.
    """
    for at, one in enumerate(datasets):
        if not isinstance(one, Streamable):
            found = f"a {type(one).__name__}"
            raise InvalidRequest(f"dataset {at} of the mix", found, expected="what shardtool.open returned")
        if one.stages.stages:
            raise InvalidRequest(f"dataset {at} of the mix", "something is done to its samples", expected=_AFTER)
    source = MixedSamples.of([one.source for one in datasets], weights, stop)
    return Mixture(MixedReader([one.fetcher for one in datasets], source), source)
