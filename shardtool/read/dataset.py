"""Open datasets for training (`open`), and read their samples by number or key (`Dataset`)."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np

from shardtool.dataset.find import EXPECTED_DATASET
from shardtool.entries.strings import PackedStrings
from shardtool.errors import InvalidRequest, ShardError, UnknownKey, explaining_missing_cwd, format_list
from shardtool.names import list_names
from shardtool.notebook import SampleList
from shardtool.read.catalog import join_catalogs, open_catalog
from shardtool.read.epoch_samples import CatalogSamples
from shardtool.read.metadata import arrow_schema, matching_samples, metadata_names, read_column, read_table
from shardtool.read.options import GrowingCache, HeldShards, ReadOptions
from shardtool.read.pipeline import Pipeline, SampleT, with_dataloader_hints
from shardtool.read.sample_reader import SampleReader, SkippedSamples, read_valid
from shardtool.read.streamable import Streamable
from shardtool.request.option_checks import check_minimum
from shardtool.request.split_options import SplitOptions, format_shares, parse_shares
from shardtool.select.splits import SplitAssignment, assign_splits
from shardtool.storage.remote.store_options import options_in, with_options
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd
    import pyarrow as pa
    import pyarrow.dataset as pads
    from numpy.typing import NDArray
    from typing_extensions import Self, Unpack

    from shardtool.read.catalog import Numbers
    from shardtool.read.collate import ListFields
    from shardtool.read.decode import Decoder
    from shardtool.read.index_store import IndexStore
    from shardtool.read.options import RawSample, ShardCache
    from shardtool.read.pipeline import AnyTuple, DecodeOptions, NewT, OnMissing
    from shardtool.read.streamable import BundledDataset
    from shardtool.values import DatasetLike, OnError

    SplitShares = Mapping[str, float | str] | str
    SampleIndexes = Sequence[int] | list[str] | tuple[str, ...] | NDArray[np.generic]


_KEY_BLOCK_SAMPLES = 2**16
_MAX_COMPLETED_KEYS = 1000
_EXPECTED_INDEX = "a number, a key, a slice, a list of numbers or keys, or a boolean mask of all samples"


class Dataset(Streamable[SampleT]):
    """The samples of one or several datasets, as returned by `open`, or a view of some of these samples.

    A dataset can be pickled, and used in several threads and after a fork.
    """

    reader: SampleReader
    source: CatalogSamples

    if TYPE_CHECKING:  # declare narrower result types

        def decode(
            self, own: Mapping[str, Decoder] | None = None, **options: Unpack[DecodeOptions]
        ) -> Dataset[dict[str, Any]]: ...
        def map(self, function: Callable[..., NewT | None]) -> Dataset[NewT]: ...
        def tuple(self, *fields: str, missing: OnMissing = "raise") -> Dataset[AnyTuple]: ...
        @overload  # type: ignore[override]
        def batch(self, size: int, *, drop_last: bool = ..., lists: ListFields = ...) -> Dataset[Any]: ...
        @overload
        def batch(
            self, size: int | None = ..., *, by: Literal["length", "aspect"], **_: Any
        ) -> BundledDataset[Any]: ...
        def batch(self, size: int | None = None, **options: Any) -> Any: ...

    def __init__(self, reader: SampleReader, shares: SplitOptions | None = None) -> None:
        if not isinstance(reader, SampleReader):
            raise InvalidRequest("Dataset", f"{reader!r:.80}", remedy="Open a dataset with `shardtool.open(...)`.")
        super().__init__(reader, CatalogSamples(reader.catalog))
        self.stages = Pipeline(types=reader.catalog.types, on_error=reader.options.on_error)
        self._shares = shares

    @property
    def skipped(self) -> SkippedSamples:
        """Counts of samples that this process skipped: damaged samples, and samples that a stage dropped."""
        return self.reader.skipped

    @property
    def field_counts(self) -> Mapping[str, int]:
        """The number of samples with each field.

        For a view, or if there is no dataset file, this reads shard indexes.
        """
        catalog = self.reader.catalog
        if self.source.chosen is None and catalog.fields:
            return catalog.fields
        counts: Counter[str] = Counter()
        for shard, numbers in self.source.group_by_shard():
            index, first = self.reader.store.index(shard), catalog.first_samples[shard]
            rows = np.arange(len(numbers)) if isinstance(numbers, range) else np.array(numbers) - first
            counts.update(dict(zip(index.names, index.field_counts(rows), strict=True)))
        return dict(+counts)

    @property
    def classes(self) -> Mapping[str, list[str]]:
        """The class names of each label field, in the order of class numbers."""
        return self.reader.catalog.classes

    @property
    def splits(self) -> Mapping[str, int]:
        """The number of samples per split. Without `open(splits=)`, each opened dataset is a split."""
        splits = self.reader.catalog.splits
        if self.source.chosen is None and self._assignment is None:
            return {name: sum(map(len, parts)) for name, parts in splits.items()}
        return {name: len(self.partition(name)) for name in (self._assignment.names if self._assignment else splits)}

    @cached_property
    def _assignment(self) -> SplitAssignment | None:
        if self._shares is None:
            return None
        store, shards = self.reader.store, range(len(self.reader.catalog.shards))
        keys = PackedStrings.of(key for shard in shards for key in store.index(shard).all_keys())
        return assign_splits(keys, self._shares)

    @property
    def fingerprint(self) -> str:
        """A hash of the samples.

        For a single dataset (not a view), this is the content fingerprint in the dataset file, if there is one.
        """
        recorded = self.reader.catalog.fingerprint if self.source.chosen is None else ""
        return recorded or self.source.fingerprint

    @property
    def schema(self) -> pa.Schema:
        """The names and types of all sidecar columns."""
        return arrow_schema(self.reader.catalog)

    @property
    def columns(self) -> list[str]:
        """The names of the metadata columns: all sidecar columns whose names do not start with `__`."""
        return metadata_names(self.reader.catalog)

    @property
    def keys(self) -> Keys:
        """The keys of all samples in order."""
        return Keys(self.reader.store, self.source)

    def __contains__(self, key: object) -> bool:
        return key in self.keys

    def __repr__(self) -> str:
        catalog = self.reader.catalog
        view = "" if self.source.chosen is None else f"{self.source.length:,} of "
        contents = f"{view}{pluralize(len(catalog), 'sample')} in {pluralize(len(catalog.shards), 'shard')}"
        fields = f", fields {format_list([*catalog.fields])}" if catalog.fields else ""
        return f"<Dataset {catalog.name}: {contents}{fields}{self.stages}>"

    def _repr_html_(self) -> str:
        from shardtool.read.dataset_html import dataset_html

        return dataset_html(repr(self), self.reader, self.source.chosen)

    def _ipython_key_completions_(self) -> list[str]:
        try:
            return self.keys[:_MAX_COMPLETED_KEYS]
        except ShardError:  # completion must not print errors
            return []

    @overload
    def __getitem__(self, which: int | str | np.integer) -> SampleT: ...
    @overload
    def __getitem__(self, which: slice) -> Self: ...
    @overload
    def __getitem__(self, which: SampleIndexes) -> list[SampleT]: ...

    def __getitem__(self, which: int | str | np.integer | slice | SampleIndexes) -> Any:
        """Return a sample for a number or key, a list of samples for a list or mask, or a view for a slice.

        A returned list omits the samples that a stage skips. `skipped` counts them.

        Raises:
            IndexError: A number is out of range.
            UnknownKey: No sample has the key.
            CorruptShard: A shard is missing or damaged.
            SampleFailed: A stage fails, or skips the only requested sample.
        """
        if type(which) is int:  # fast path for plain integers
            plain = self.source.chosen is None and 0 <= which < self.source.length
            return self._read_sample(which if plain else self._resolve_position(which))
        if isinstance(which, slice):
            positions = np.arange(*which.indices(self.source.length), dtype=np.int64)
            return self._view_of(self._resolve_positions(positions))
        if isinstance(which, str):
            return self._read_sample(int(self._resolve_keys([which])[0]))
        if isinstance(which, Sequence) or np.ndim(which):
            samples = read_valid(self.reader, self._resolve_many(cast("SampleIndexes", which)))
            return [*self.stages.apply_each(samples, self.count_dropped)] if self.stages.stages else samples
        try:
            position = operator.index(which)
        except TypeError:
            raise InvalidRequest("the dataset", f"invalid index {which!r:.80}", expected=_EXPECTED_INDEX) from None
        return self._read_sample(self._resolve_position(position))

    def count_dropped(self, error: ShardError) -> None:
        self.skipped.count_sample(error, "", damaged=False)

    def _read_sample(self, number: int) -> object:
        sample = self.reader.read_one(number)
        if isinstance(sample, ShardError):
            raise sample
        return self.stages.apply(sample) if self.stages.stages else sample

    def _resolve_many(self, which: SampleIndexes) -> Numbers:
        try:
            indexes = np.asarray(which)
        except ValueError:  # `which` contains lists of different lengths
            indexes = np.zeros(())
        are_keys = indexes.dtype.kind in "UTO" and all(isinstance(item, str) for item in which)
        if indexes.ndim != 1 or not (are_keys or indexes.dtype.kind in "biu" or not len(indexes)):
            raise InvalidRequest("the dataset", f"invalid index {which!r:.80}", expected=_EXPECTED_INDEX)
        if are_keys:
            return self._resolve_keys([str(item) for item in which])
        if indexes.dtype.kind == "b":
            if len(indexes) != self.source.length:
                raise IndexError(f"a mask of length {len(indexes):,} for {pluralize(self.source.length, 'sample')}")
            indexes = np.flatnonzero(indexes)
        return self._resolve_positions(indexes.astype(np.int64))

    def _resolve_position(self, position: int) -> int:
        if not -self.source.length <= position < self.source.length:
            raise IndexError(f"sample {position} of {self.source.length:,}")
        position = position if position >= 0 else position + self.source.length
        return position if self.source.chosen is None else int(self.source.chosen[position])

    def _resolve_positions(self, positions: Numbers) -> Numbers:
        positions = check_in_range(positions, self.source.length)
        return positions if self.source.chosen is None else self.source.chosen[positions]

    def _resolve_keys(self, keys: Iterable[str]) -> Numbers:
        requested, chosen = [*keys], self.source.chosen
        numbers = self.reader.store.numbers(requested)
        missing = numbers < 0 if chosen is None else (numbers < 0) | ~np.isin(numbers, chosen)
        if unknown := [requested[index] for index in np.flatnonzero(missing).tolist()]:
            problem = "no sample has this key" if len(unknown) == 1 else f"{len(unknown):,} keys do not exist"
            problem += "" if chosen is None else " in this view"
            remedy = _key_fix(self.reader.store, unknown[0])
            expected = "keys such as those in `.keys`"
            raise UnknownKey(format_list([*map(repr, unknown)]), problem, expected=expected, remedy=remedy)
        return numbers

    def _view_of(self, chosen: Numbers) -> Self:
        view = copy(self)
        view.source = CatalogSamples(self.reader.catalog, chosen)
        return view

    def select(self, indices: Iterable[int] | Iterable[str] | NDArray[np.generic]) -> Self:
        """Return a view of the samples with these numbers or keys, in this order.

        You can also pass a boolean mask with one value per sample.

        Raises:
            IndexError: A number is out of range.
            UnknownKey: A key belongs to no sample of this dataset or view.
        """
        if isinstance(indices, str) or not isinstance(indices, Iterable):
            expected = f"a list of numbers or keys, such as [{indices!r}], or a boolean mask"
            raise InvalidRequest("select", repr(indices), expected=expected, remedy="For fields, use fields(...).")
        indices = indices if hasattr(indices, "__len__") else [*indices]
        return self._view_of(self._resolve_many(cast("SampleIndexes", indices)))

    def take(self, n: int) -> Self:
        """Return a view of at most the first `n` samples."""
        check_minimum("n", n, 0)
        return self[:n]

    def head(self, n: int = 5) -> list[SampleT]:
        """Return at most the first `n` samples, as a list with a short `repr`."""
        return SampleList(self.take(n)[range(min(n, self.source.length))])

    def partition(self, split: str) -> Dataset[SampleT]:
        """Return the samples of the split with this name.

        Raises:
            InvalidRequest: No split has this name.
        """
        catalog, chosen, assignment = self.reader.catalog, self.source.chosen, self._assignment
        splits = catalog.splits
        if split not in (names := [*splits] if assignment is None else assignment.names):
            remedy = "To choose samples by key, use select(...)."
            expected = f"one of {format_list([*names])}"
            raise InvalidRequest("partition", f"no split {split!r:.80}", expected=expected, remedy=remedy)
        if assignment is not None:
            number = names.index(split)
            samples = assignment.samples(number)
            return self._view_of(samples if chosen is None else chosen[assignment.number[chosen] == number])
        if chosen is None:
            reader = SampleReader(join_catalogs(splits[split]), self.reader.options)
            return Dataset[SampleT](reader).with_stages(self.stages)
        inside = [(chosen >= first) & (chosen < last) for first, last in catalog.sample_ranges(split)]
        return self._view_of(chosen[np.logical_or.reduce(inside)])

    def where(self, query: str) -> Self:
        """Return a view of the samples that match a query such as `label == 'dog' and width > 256`.

        In addition to sidecar columns, a query can use `key`, `shard`, `size` (bytes of all fields) and `fields`
        (number of fields).

        Raises:
            InvalidRequest: The query is invalid, or uses an unknown column.
        """
        if not isinstance(query, str):
            raise InvalidRequest("where", f"{query!r:.40}", expected="a query, such as \"label == 'dog'\"")
        return self._view_of(matching_samples(self.reader.catalog, self.source.chosen, query))

    def column(self, name: str) -> list[Any]:
        """Return a sidecar column, with None for missing values.

        Raises:
            InvalidRequest: No sidecar has this column.
        """
        return read_column(self.reader.catalog, self.source.chosen, name)

    def table(self) -> pads.Dataset:
        """Return the sidecars as a `pyarrow.dataset.Dataset`, for pandas, DuckDB or polars.

        A row contains the key of a sample (`__key__`), its shard (`__shard__`), the location of its bytes in the shard,
        and its metadata. Local sidecars are read, without checks, when you query the table. For views, remote datasets
        and shards without a sidecar, all rows are first loaded into memory.
        """
        return read_table(self.reader.catalog, self.source.chosen)

    def to_pandas(self) -> pd.DataFrame:
        """Return a DataFrame with the column `__key__` and the metadata columns.

        You can pass a boolean column, such as `frame["width"] > 256`, to `select`.
        """
        frame: pd.DataFrame = self.table().to_table(columns=["__key__", *self.columns]).to_pandas()
        return frame

    def to_hf(self, *, streaming: bool = False, **options: Any) -> Any:
        """Return a Hugging Face `datasets.Dataset`, or an `IterableDataset` if `streaming` is true.

        The library `datasets` decodes images and audio. Fields with class names become `ClassLabel`, and metadata
        columns become columns of the result. `options` are passed to `from_generator` of the returned class. Without
        `streaming`, `from_generator` copies the samples to the cache of `datasets`.

        Raises:
            InvalidRequest: `datasets` (or `torchcodec`, for audio) is not installed, or the dataset has stages.
        """
        from shardtool.read.huggingface import huggingface_dataset

        if self.stages.stages:
            expected = "stored samples: call to_hf first, then select_columns or map of `datasets`"
            raise InvalidRequest("to_hf", "called after other stages", expected=expected)
        return huggingface_dataset(self.reader, self.source.chosen, streaming=streaming, options=options)


def check_in_range(positions: Numbers, count: int) -> Numbers:
    """Convert negative positions (from the end) to positions from 0. Raise IndexError if a position is out of range."""
    out_of_range = positions[(positions < -count) | (positions >= count)]
    if len(out_of_range):
        raise IndexError(f"sample {out_of_range[0]} of {count:,}")
    return np.where(positions < 0, positions + count, positions)


@overload
def open(  # noqa: A001
    dataset: DatasetLike | GrowingCache | HeldShards, *, check: bool = ..., cache: ShardCache | None = ...,
    on_error: OnError = ..., metadata: Literal[False] = ..., splits: SplitShares | None = ..., seed: int = ...,
    storage_options: Mapping[str, Any] | None = ...,
) -> Dataset[RawSample]: ...  # fmt: skip
@overload
def open(  # noqa: A001
    dataset: DatasetLike | GrowingCache | HeldShards, *, check: bool = ..., cache: ShardCache | None = ...,
    on_error: OnError = ..., metadata: bool, splits: SplitShares | None = ..., seed: int = ...,
    storage_options: Mapping[str, Any] | None = ...,
) -> Dataset[dict[str, Any]]: ...  # fmt: skip
@with_dataloader_hints
@explaining_missing_cwd()
def open(  # noqa: A001, PLR0913 - public API
    dataset: DatasetLike | GrowingCache | HeldShards, *, check: bool = False, cache: ShardCache | None = None,
    on_error: OnError = "raise", metadata: bool = False, splits: SplitShares | None = None, seed: int = 0,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset[Any]:  # fmt: skip
    """Open a dataset for reading.

    Args:
        dataset: A dataset file (of shardtool or wids), a shard pattern, a glob, a folder, or a list of shards. Several
            datasets, such as the splits in a folder, are concatenated. Shards without a sidecar are scanned once, with
            a warning. For a `Cache`, the shards finished so far are opened. To open the same shards in several
            processes, call `Cache.refresh` once, and pass its result to all processes.
        check: Whether to verify the CRC-32C checksum of each field that is read.
        cache: Cache into which shards are copied before they are read.
        on_error: What to do with a sample that is damaged or cannot be decoded: `raise` an error, or `skip` and count
            it.
        metadata: Whether to add the sidecar columns to samples. A field replaces a column of the same name.
        splits: Shares of the splits that `partition` returns, such as `{"train": 0.9, "val": 0.1}`. Samples are
            assigned by a hash of their keys, as with `create --split`.
        seed: Seed of the hash.
        storage_options: Settings for the store or server, such as `endpoint` and `access_key_id`. See docs/remote.md.

    Raises:
        InvalidRequest: The dataset does not exist, or an option is invalid.
        CorruptShard: A dataset file, or a shard without a sidecar, is damaged.

    Example:
        >>> dataset = shardtool.open("out.json").decode()
        >>> dataset["cat/0001"]["jpg"].shape
        (256, 256, 3)
    """
    dataset = dataset.refresh() if isinstance(dataset, GrowingCache) else dataset
    if isinstance(dataset, HeldShards):
        cache, dataset = dataset, [*dataset]
        if not dataset:
            remedy = "Wait until its writers have finished a shard; `refresh()` returns the finished shards."
            raise InvalidRequest("the cache", "no finished shards yet", remedy=remedy)
    shares = None
    if splits is not None:
        shares = SplitOptions(parse_shares(format_shares(splits)), seed=seed)
    options = ReadOptions(check, cache, on_error, metadata)
    if storage_options:
        names: list[str] = with_options(list_names("the dataset", dataset, EXPECTED_DATASET), storage_options)
        options = replace(options, storage=options_in(names))
        dataset = names[0] if len(names) == 1 else names
    return Dataset(SampleReader(open_catalog(dataset), options), shares=shares)


class Keys(Sequence[str]):
    """The keys of a dataset's samples in order, read on demand."""

    def __init__(self, store: IndexStore, samples: CatalogSamples) -> None:
        self._store, self._samples = store, samples

    def __len__(self) -> int:
        return self._samples.length

    @overload
    def __getitem__(self, which: int) -> str: ...
    @overload
    def __getitem__(self, which: slice) -> list[str]: ...

    def __getitem__(self, which: int | slice) -> str | list[str]:
        if isinstance(which, slice):
            return self.at_positions(np.arange(*which.indices(len(self)), dtype=np.int64))
        position = operator.index(which)
        if not -len(self) <= position < len(self):
            raise IndexError(f"key {position} of {len(self)}")
        return self.at_positions(np.array([position % len(self)]))[0]

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), _KEY_BLOCK_SAMPLES):
            yield from self.at_positions(np.arange(first, min(len(self), first + _KEY_BLOCK_SAMPLES)))

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, str):
            return False
        number, chosen = self._store.numbers([key])[0], self._samples.chosen
        return bool(number >= 0 and (chosen is None or np.any(chosen == number)))

    def __repr__(self) -> str:
        return f"<{len(self):,} keys: {format_list([*map(repr, self[:3])], total=len(self))}>"

    def at_positions(self, positions: Numbers) -> list[str]:
        chosen = self._samples.chosen
        return self._store.keys(positions if chosen is None else chosen[positions])


def _key_fix(store: IndexStore, name: str) -> str:
    folder, slash, file = name.rpartition("/")
    keys = [folder + slash + file[:index] for index, letter in enumerate(file) if letter == "." and index]
    numbers = store.numbers(keys)
    existing = np.flatnonzero(numbers >= 0).tolist()
    return next((f"Use {keys[index]!r}: a key has no extension." for index in existing), "")
