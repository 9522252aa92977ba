"""A dataset for training code: samples by number, by key, in batches and as a stream; and views of some of them."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np

from shardtool.entries.strings import PackedStrings
from shardtool.errors import InvalidRequest, ShardError, UnknownKey, explaining_missing_cwd, format_list
from shardtool.read.catalog import join_catalogs, open_catalog
from shardtool.read.epoch_samples import CatalogSamples
from shardtool.read.metadata import arrow_schema, matching_samples, read_column, read_table
from shardtool.read.options import GrowingCache, HeldShards, ReadOptions
from shardtool.read.pipeline import Pipeline
from shardtool.read.pipeline_methods import with_dataloader_hints
from shardtool.read.sample_reader import SampleReader, SkippedSamples
from shardtool.read.streamable import Streamable
from shardtool.request.split_options import SplitOptions, parse_shares
from shardtool.select.splits import SplitAssignment, assign_splits
from shardtool.units import pluralize

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as pads
    from numpy.typing import NDArray

    from shardtool.read.catalog import Numbers
    from shardtool.read.index_store import IndexStore
    from shardtool.read.options import ShardCache
    from shardtool.values import DatasetLike, OnBadSample

    Several = Sequence[int] | list[str] | tuple[str, ...] | NDArray[np.generic]


_KEY_BLOCK_SAMPLES = 2**16


_EXPECTED_INDEX = "a number, a key, a slice, several of these, or a mask of all samples"


class Dataset(Streamable):
    """Samples of shards, or some of them.

    Picklable without open files; safe in threads and after a fork.
    """

    fetcher: SampleReader
    source: CatalogSamples

    def __init__(self, fetcher: SampleReader, shares: SplitOptions | None = None) -> None:
        super().__init__(fetcher, CatalogSamples(fetcher.catalog))
        self.stages = Pipeline(types=fetcher.catalog.types)
        self._shares = shares

    @property
    def skipped(self) -> SkippedSamples:
        """Damaged samples that were left out with `on_error="skip"`, in this process."""
        return self.fetcher.skipped

    @property
    def fields(self) -> Mapping[str, int]:
        """How many samples have each field; counted where no dataset file says so, and of a view."""
        catalog = self.fetcher.catalog
        if self.source.chosen is None and catalog.fields:
            return catalog.fields
        found: Counter[str] = Counter()
        for shard, numbers in self.source.group_by_shard():
            index, first = self.fetcher.store.index(shard), catalog.firsts[shard]
            rows = np.arange(len(numbers)) if isinstance(numbers, range) else np.array(numbers) - first
            found.update(dict(zip(index.names, index.field_counts(rows), strict=True)))
        return dict(+found)

    @property
    def classes(self) -> Mapping[str, list[str]]:
        """Field to the names of its class numbers."""
        return self.fetcher.catalog.classes

    @property
    def splits(self) -> Mapping[str, int]:
        """How many samples each split has, by its name: of `open(splits=)`, or of several datasets, each is one."""
        splits = self.fetcher.catalog.splits
        if self.source.chosen is None and self._divided is None:
            return {name: sum(map(len, parts)) for name, parts in splits.items()}
        return {name: len(self.partition(name)) for name in (self._divided.names if self._divided else splits)}

    @cached_property
    def _divided(self) -> SplitAssignment | None:
        """The split of each sample of the whole dataset, where shares are asked for; None where they are not."""
        if self._shares is None:
            return None
        store, shards = self.fetcher.store, range(len(self.fetcher.catalog.shards))
        return assign_splits(
            PackedStrings.of(key for shard in shards for key in store.index(shard).all_keys()), self._shares
        )

    @property
    def fingerprint(self) -> str:
        """What is equal for equal samples: of a whole dataset, its content fingerprint, where that is known."""
        content = self.fetcher.catalog.content if self.source.chosen is None else ""
        return content or self.source.fingerprint

    @property
    def schema(self) -> pa.Schema:
        """The columns of the sidecars, and their types."""
        return arrow_schema(self.fetcher.catalog)

    @property
    def keys(self) -> Keys:
        """The keys of all samples, in order: a sequence that is read when it is asked."""
        return Keys(self.fetcher.store, self.source)

    def __contains__(self, key: object) -> bool:
        return key in self.keys

    def __repr__(self) -> str:
        catalog = self.fetcher.catalog
        of = "" if self.source.chosen is None else f"{self.source.length:,} of "
        what = f"{of}{pluralize(len(catalog), 'sample')} in {pluralize(len(catalog.shards), 'shard')}"
        fields = f", fields {format_list([*catalog.fields])}" if catalog.fields else ""
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
            plain = self.source.chosen is None and 0 <= which < self.source.length
            return self._one(which if plain else self._number(which))
        if isinstance(which, slice):
            return self._with_chosen(self._numbers(np.arange(*which.indices(self.source.length), dtype=np.int64)))
        if isinstance(which, str):
            return self._one(int(self._with_keys([which])[0]))
        if isinstance(which, Sequence) or np.ndim(which):  # arrays, tensors, pandas
            found = self.fetcher.fetch(self._several(cast("Several", which)))
            return [self.stages.apply(sample) for sample in found] if self.stages.stages else found
        try:
            place = operator.index(which)
        except TypeError:
            raise InvalidRequest("the dataset", f"asked for {which!r:.80}", expected=_EXPECTED_INDEX) from None
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
            raise InvalidRequest("the dataset", f"asked for {which!r:.80}", expected=_EXPECTED_INDEX)
        if texts:
            return self._with_keys([str(one) for one in which])
        if asked.dtype.kind == "b":
            if len(asked) != self.source.length:
                raise IndexError(f"a mask of {len(asked):,} for {pluralize(self.source.length, 'sample')}")
            asked = np.flatnonzero(asked)
        return self._numbers(asked.astype(np.int64))

    def _number(self, place: int) -> int:
        """Return the number of a sample in the catalog, by its place here; a place below 0 counts from the end."""
        if not -self.source.length <= place < self.source.length:
            raise IndexError(f"sample {place} of {self.source.length:,}")
        place = place if place >= 0 else place + self.source.length
        return place if self.source.chosen is None else int(self.source.chosen[place])

    def _numbers(self, places: Numbers) -> Numbers:
        """Return the numbers of samples in the catalog, by their places here; places below 0 count from the end."""
        places = check_in_range(places, self.source.length)
        return places if self.source.chosen is None else self.source.chosen[places]

    def _with_keys(self, keys: Iterable[str]) -> Numbers:
        """Return the number of the sample of each key: int64 [keys].

        Raises:
            UnknownKey: There is no sample of some keys, which it names.
        """
        wanted, chosen = [*keys], self.source.chosen
        for one in wanted:
            if not isinstance(one, str):
                raise InvalidRequest("keys", f"{one!r:.40}", expected="texts, as those in `.keys`")
        numbers = self.fetcher.store.numbers(wanted)
        lacking = numbers < 0 if chosen is None else (numbers < 0) | ~np.isin(numbers, chosen)
        if bad := [wanted[at] for at in np.flatnonzero(lacking).tolist()]:
            what = "no sample of that key" if len(bad) == 1 else f"{len(bad):,} keys of no sample"
            what += "" if chosen is None else " in this view"
            remedy = _key_fix(self.fetcher.store, bad[0])
            expected = "keys such as those in `.keys`"
            raise UnknownKey(format_list([*map(repr, bad)]), what, expected=expected, remedy=remedy)
        return numbers

    def _with_chosen(self, chosen: Numbers) -> Dataset:
        found = copy(self)
        found.source = CatalogSamples(self.fetcher.catalog, chosen)
        return found

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
        catalog, chosen, divided = self.fetcher.catalog, self.source.chosen, self._divided
        splits = catalog.splits
        if which not in (names := [*splits] if divided is None else divided.names):
            expected = f"one of {format_list([*names])}, or keys"
            raise InvalidRequest("partition", f"no split {which!r}", expected=expected)
        if divided is not None:
            split = names.index(which)
            whole = divided.samples(split)
            return self._with_chosen(whole if chosen is None else chosen[divided.number[chosen] == split])
        if chosen is None:
            return Dataset(SampleReader(join_catalogs(splits[which]), self.fetcher.options)).with_stages(self.stages)
        inside = [(chosen >= first) & (chosen < last) for first, last in catalog.bounds(which)]
        return self._with_chosen(chosen[np.logical_or.reduce(inside)])

    def where(self, query: str) -> Dataset:
        """Return a view of the samples for which a query is true, such as `bi == 'dog' and width > 256`.

        It may name the columns of the sidecars, and `key`, `shard`, `size` (bytes of all fields) and `fields` (how
        many). All sidecars are read for it, one after the other.

        Raises:
            InvalidRequest: It is no query, or names what is no column.
        """
        if not isinstance(query, str):
            raise InvalidRequest("where", f"{query!r:.40}", expected="a query, such as \"bi == 'dog'\"")
        return self._with_chosen(matching_samples(self.fetcher.catalog, self.source.chosen, query))

    def column(self, name: str) -> list[Any]:
        """Return a column of the sidecars, such as that of labels, a value a sample; no payload is read.

        None stands where a sample has no value.

        Raises:
            InvalidRequest: There is no such column.
        """
        return read_column(self.fetcher.catalog, self.source.chosen, name)

    def table(self) -> pads.Dataset:
        """Return the sidecars as one table that pandas, DuckDB and polars can query: a `pyarrow.dataset.Dataset`.

        It has a row a sample: `__key__`, `__shard__`, where it lies, and the metadata. Of a whole dataset, files are
        read when it is queried, and not checked before; the rows of a view are held in memory, in its order.
        """
        return read_table(self.fetcher.catalog, self.source.chosen)


def check_in_range(places: Numbers, count: int) -> Numbers:
    """Return places of so many samples; those below 0 count from the end."""
    bad = places[(places < -count) | (places >= count)]
    if len(bad):
        raise IndexError(f"sample {bad[0]} of {count:,}")
    return np.where(places < 0, places + count, places)


@with_dataloader_hints
@explaining_missing_cwd()
def open(  # noqa: A001, PLR0913 - its public name and options
    given: DatasetLike | GrowingCache | HeldShards, *, check: bool = False, cache: ShardCache | None = None,
    on_error: OnBadSample = "raise", metadata: bool = False, splits: Mapping[str, float | str] | str | None = None,
    seed: int = 0,
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
        splits: Splits and their shares, such as `{"train": 0.9, "val": 0.1}`, for `partition`: in place of those that
            the datasets are. A hash of a sample's key decides, as for `create --split`: into the same ones.
        seed: Of `splits`: another one divides otherwise.

    Raises:
        InvalidRequest: There is no such dataset.
        CorruptShard: A dataset file is damaged, or a shard that no sidecar describes cannot be read.
    """
    given = given.refresh() if isinstance(given, GrowingCache) else given
    if isinstance(given, HeldShards):
        cache, given = given, [*given]
        if not given:
            remedy = "Wait for its writers: `refresh()` says how many shards there are."
            raise InvalidRequest("the cache", "no finished shards yet", remedy=remedy)
    shares = None
    if splits is not None:
        shares = SplitOptions(parse_shares(splits if isinstance(splits, str) else _split_texts(splits)), seed=seed)
    return Dataset(SampleReader(open_catalog(given), ReadOptions(check, cache, on_error, metadata)), shares=shares)


def _split_texts(shares: Mapping[str, float | str]) -> str:
    """Return shares as `create --split` takes them; of floats, 1 - 0.9 is 0.1."""
    if not isinstance(shares, Mapping):
        raise InvalidRequest("splits", repr(shares), expected="shares such as {'train': 0.9, 'val': 0.1}")
    plain = {name: f"{share:.8f}" if isinstance(share, float) else share for name, share in shares.items()}
    return ",".join(f"{name}={share}" for name, share in plain.items())


class Keys(Sequence[str]):
    """The keys of samples, in their order; read shard by shard when they are asked for."""

    def __init__(self, store: IndexStore, view: CatalogSamples) -> None:
        self._store, self._view = store, view

    def __len__(self) -> int:
        return self._view.length

    @overload
    def __getitem__(self, which: int) -> str: ...
    @overload
    def __getitem__(self, which: slice) -> list[str]: ...

    def __getitem__(self, which: int | slice) -> str | list[str]:
        if isinstance(which, slice):
            return self.of(np.arange(*which.indices(len(self)), dtype=np.int64))
        at = operator.index(which)
        if not -len(self) <= at < len(self):
            raise IndexError(f"key {at} of {len(self)}")
        return self.of(np.array([at % len(self)]))[0]

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), _KEY_BLOCK_SAMPLES):
            yield from self.of(np.arange(first, min(len(self), first + _KEY_BLOCK_SAMPLES)))

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, str):
            return False
        number, chosen = self._store.numbers([key])[0], self._view.chosen
        return bool(number >= 0 and (chosen is None or np.any(chosen == number)))

    def __repr__(self) -> str:
        return f"<{len(self):,} keys: {format_list([*map(repr, self[:3])], total=len(self))}>"

    def of(self, places: Numbers) -> list[str]:
        """Return the keys at places here, in the order of the places."""
        chosen = self._view.chosen
        return self._store.keys(places if chosen is None else chosen[places])


def _key_fix(store: IndexStore, name: str) -> str:
    """Return what to do about a file's name that was given for a key; nothing where it is none of a sample."""
    folder, slash, file = name.rpartition("/")
    keys = [folder + slash + file[:at] for at, letter in enumerate(file) if letter == "." and at]
    found = store.numbers(keys)
    return next((f"Take {keys[at]!r}: a key has no ending." for at in np.flatnonzero(found >= 0).tolist()), "")
