"""Read TFRecords with `tf.data`, and pass batches of any dataset to `fit` of Keras."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import cache
from importlib import import_module
from numbers import Integral
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from shardtool.dataset.expand import expand_datasets
from shardtool.dataset.features import TfFeature, tf_features
from shardtool.dataset.find import open_dataset
from shardtool.dataset.scan import ShardScanTask, scan_shard
from shardtool.dataset.shard_file import detect_kind
from shardtool.dataset.shard_index import scanned_index
from shardtool.errors import InvalidRequest, SampleFailed, format_list
from shardtool.read.order import OrderOptions, epoch_order
from shardtool.read.stream import Stream
from shardtool.request.option_checks import check_minimum
from shardtool.values import DatasetLike, FeatureType

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardtool.dataset.stored import StoredDataset


_SHUFFLE_BUFFER_BYTES = 2**28
_MAX_BUFFER_SAMPLES = 10_000
_OPTIONAL_KEY = TfFeature(is_optional=True)  # TFRecords of some tools have no key
_COMPRESSION_TYPES = {"": "", "gzip": "GZIP"}


class TFRecordShards(NamedTuple):
    """TFRecord shards that TensorFlow can read.

    `size` is the number of bytes in all shards, or, without a dataset file, in all fields. `compression` is
    TensorFlow's name of the compression, or "".
    """

    paths: tuple[str, ...]
    samples: int
    size: int
    features: Mapping[str, TfFeature]
    classes: Mapping[str, Sequence[str]] = {}
    compression: str = ""

    def buffer(self, shuffle: bool | int) -> int:  # noqa: FBT001 - public API
        """Return the number of samples in the shuffle buffer, for `tf_dataset(shuffle=)`."""
        if shuffle is not True:
            return max(1, int(shuffle))
        return max(1, min(_MAX_BUFFER_SAMPLES, self.samples, _SHUFFLE_BUFFER_BYTES * self.samples // max(1, self.size)))


def find_tfrecords(dataset: DatasetLike, fields: Collection[str] | None) -> TFRecordShards:
    """Find TFRecord shards, and the features of the requested fields."""
    datasets = [open_dataset(part) for part in expand_datasets(dataset)]
    compression = _compression_of(datasets)
    parts = [_tfrecords_of(dataset) for dataset in datasets]
    features = _merge_features([part.features for part in parts])
    requested = [*features] if fields is None else list(dict.fromkeys(fields))
    if (unknown := [name for name in requested if name not in features]) or not requested:
        found = f"no {format_list(unknown)}" if unknown else "none"
        raise InvalidRequest("fields", found, expected=f"some of {format_list([*features])}")
    classes: dict[str, Sequence[str]] = {}
    for name, names in ((name, names) for part in parts for name, names in part.classes.items()):
        if classes.setdefault(name, names) != names:
            expected = "the same class names in the same order, because class numbers depend on them"
            raise InvalidRequest(f"the classes of {name!r}", "differ between two datasets", expected=expected)
    return TFRecordShards(
        paths=tuple(path for part in parts for path in part.paths),
        samples=sum(part.samples for part in parts),
        size=sum(part.size for part in parts),
        features={name: features[name] for name in requested},
        classes=classes,
        compression=compression,
    )


def _tfrecords_of(dataset: StoredDataset) -> TFRecordShards:
    if (file := dataset.file) is not None:
        features = dict(file.features)
        if file.run.document.get("verb") == "index":
            features["__key__"] = _OPTIONAL_KEY
        samples, size = (sum(getattr(shard, name) for shard in file.shards) for name in ("samples", "size"))
        return TFRecordShards(dataset.paths, samples, size, features, file.classes)
    fields, kinds, lists, samples, size = Counter[str](), dict[str, FeatureType](), set[str](), 0, 0
    for path in dataset.paths:
        scan = scan_shard(ShardScanTask(path))
        if scan.error is not None:
            raise scan.error
        index = scanned_index(scan)
        tally, kinds = index.tally(), {**index.kinds, **kinds}
        lists.update(scan.list_features())
        fields.update(tally.fields)
        samples, size = samples + tally.samples, size + tally.field_bytes
    return TFRecordShards(
        dataset.paths, samples, size, tf_features(fields, kinds, samples, lists) | {"__key__": _OPTIONAL_KEY}
    )


def _compression_of(datasets: Sequence[StoredDataset]) -> str:
    kinds: dict[str, str] = {}
    for dataset in datasets:
        for shard in dataset.shards:
            kind = detect_kind(shard.path)
            if kind.format != "tfrecord":
                name = dataset.dataset_file or shard.path
                remedy = (
                    f"Convert them with `shardtool reshard {name} 'out-{{000000..}}.tfrecord'`, or use "
                    "shardtool.tensorflow.keras_sequence with Keras."
                )
                expected = "TFRecords, which TensorFlow can read"
                raise InvalidRequest(name, "tar shards", expected=expected, remedy=remedy)
            kinds[kind.compression] = shard.path
    for compression, path in kinds.items():
        if compression not in _COMPRESSION_TYPES:
            found = f"compressed with {compression}, which TensorFlow cannot decompress"
            raise InvalidRequest(path, found, expected="plain or gzip-compressed TFRecords")
        if len(kinds) > 1 and compression:
            found = f"compressed with {compression}, unlike other shards"
            raise InvalidRequest(path, found, expected="the same compression for all shards")
    return _COMPRESSION_TYPES[next(iter(kinds))]


def _merge_features(parts: Sequence[Mapping[str, TfFeature]]) -> dict[str, TfFeature]:
    merged: dict[str, TfFeature] = {}
    for features in parts:
        for name, feature in features.items():
            earlier = merged.setdefault(name, feature)
            if earlier.kind != feature.kind:
                problem = f"{earlier.kind} in one dataset, {feature.kind} in another"
                raise InvalidRequest(f"the field {name!r}", problem, expected="the same type in all datasets")
            is_list = earlier.is_list or feature.is_list
            is_optional = earlier.is_optional or feature.is_optional or any(name not in part for part in parts)
            merged[name] = TfFeature(feature.kind, is_list, not is_list and is_optional)
    return merged


_OPTIONAL_LIBRARIES = ("keras", "tensorflow")


class SampleSequence(Protocol):
    """A sequence that accepts an array of indexes."""

    def __len__(self) -> int: ...

    def __getitem__(self, which: NDArray[np.int64]) -> Sequence[Any]: ...


@cache
def keras_sequence_class() -> type[Any]:
    """Import Keras, and return `BatchSequence` as a subclass of its `PyDataset`."""
    return type("BatchSequence", (BatchSequence, import_library("keras").utils.PyDataset), {})


def _new_keras_sequence() -> Any:
    return object.__new__(keras_sequence_class())


def import_library(module: str) -> Any:
    """Import a module. Raise InvalidRequest if it needs a missing optional library."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OPTIONAL_LIBRARIES:
            raise
        remedy = "Run `pip install 'shardtool[tensorflow]'`."
        raise InvalidRequest("shardtool.tensorflow", f"{error.name} is not installed", remedy=remedy) from None


class BatchSequence:
    """Batches of a dataset, in a new order each epoch: a mixin for `keras.utils.PyDataset`.

    Keras requests batches from worker threads, so the order must not change during an epoch. To determine shapes,
    Keras also reads batches outside an epoch, and then calls `on_epoch_end`. This call therefore starts the next epoch
    only if `on_epoch_begin` was called. Old Keras releases lack `on_epoch_begin`, so every call starts the next epoch.
    """

    def __init__(self, samples: SampleSequence, batch_size: int, first: OrderOptions, workers: int) -> None:
        super().__init__(workers=workers)  # type: ignore[call-arg] # Keras's class
        self._samples, self._batch_size, self._options = samples, batch_size, first
        self._counts_each_end = self._has_started = not hasattr(super(), "on_epoch_begin")

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()], dict[str, object]]:
        return _new_keras_sequence, (), vars(self)

    def __len__(self) -> int:
        return math.ceil(len(self._samples) / self._batch_size)

    def __getitem__(self, number: int) -> Any:
        if not 0 <= number < len(self):
            raise IndexError(f"batch {number} of {len(self)}")
        first, count = number * self._batch_size, len(self._samples)
        order = epoch_order(np.array([count]), self._options)
        numbers = order.numbers(np.arange(first, min(first + self._batch_size, count)))
        samples = self._samples[numbers]
        if len(samples) == 0:
            remedy = "Choose samples that can be read with select(...)."
            raise SampleFailed("a batch", f"all of its {len(numbers)} samples were skipped", remedy=remedy)
        return stack_samples(samples)

    def __iter__(self) -> Iterator[Any]:
        epoch, count = self._options.epoch, len(self)
        for number in range(count):
            batch = self[number]
            if number == count - 1 and self._options.epoch == epoch:
                self.set_epoch(epoch + 1)
            yield batch

    def set_epoch(self, epoch: int) -> None:
        """Use the order of this epoch."""
        self._options = replace(self._options, epoch=epoch)

    def on_epoch_begin(self) -> None:
        """Record the start of an epoch."""
        self._has_started = True

    def on_epoch_end(self) -> None:
        """Use the order of the next epoch, if an epoch has started."""
        if self._has_started:
            self.set_epoch(self._options.epoch + 1)
            self._has_started = self._counts_each_end


def stack_samples(samples: Sequence[Any]) -> Any:
    """Batch samples: dicts become a dict of batches, tuples a tuple of batches, and other values an array."""
    first = samples[0]
    if isinstance(first, dict):
        names = {name for sample in samples for name in sample}
        if missing := sorted(name for name in names if any(name not in sample for sample in samples)):
            found = f"some samples lack the field {missing[0]!r}"
            raise InvalidRequest("a batch", found, remedy="Select fields that all samples have.")
        return {name: stack_samples([sample[name] for sample in samples]) for name in first}
    if isinstance(first, tuple):
        return tuple(stack_samples(values) for values in zip(*samples, strict=True))
    if isinstance(first, str | bytes):
        return np.array(samples, object)
    if len(shapes := {np.shape(sample) for sample in samples}) > 1:
        found = f"arrays of shapes {' and '.join(map(str, sorted(shapes)[:2]))}"
        raise InvalidRequest("a batch", found, expected="one shape", remedy="Crop or resize images to one size.")
    return np.asarray(samples, np.float32 if isinstance(first, float) else None)


_SHUFFLE_SHARDS = 16
__all__ = ["feature_spec", "keras_sequence", "tf_dataset"]


def tf_dataset(
    dataset: DatasetLike,
    *,
    fields: Collection[str] | None = None,
    shuffle: bool | int = False,
    seed: int = 0,
    epoch: int | None = None,
    batch_size: int | None = None,
) -> Any:
    """Return TFRecord shards as a `tf.data.Dataset` of dicts, read and parsed by TensorFlow.

    The attribute `classes` of the result contains class names by field. Every run has the same order, unless you set
    `tf.data.Options.deterministic` to False.

    Args:
        dataset: Plain or gzip-compressed TFRecords: a dataset file, a shard pattern, a glob, a folder, shards, or a
            list of datasets to concatenate.
        fields: Fields of a sample, or None for all fields and `__key__`.
        shuffle: With False, keep the order of the dataset. With True, read shards in random order, several in parallel,
            through a buffer of at most 256 MB and 10,000 samples. An integer sets the number of samples in the buffer.
        seed: Seed of the shuffle.
        epoch: Epoch, counted from 0, that determines the order of every iteration. With None, every iteration has a
            different order.
        batch_size: Samples per batch. The last batch can be smaller. None yields single samples.

    Returns:
        A dataset of dicts. A field is a scalar of `tf.string`, `tf.int64` or `tf.float32`, or a vector in a batch. A
            missing field is `""`, or -1 for numbers. A list of values is a `tf.sparse.SparseTensor`.

    Raises:
        InvalidRequest: TensorFlow is missing, a dataset or field is missing, or shards are not TFRecords.
        CorruptShard: A dataset file or shard is damaged.
    """
    for name, value in (("shuffle", shuffle), ("seed", seed), ("epoch", epoch)):
        if value is not None and (not isinstance(value, Integral) or value < 0):
            raise InvalidRequest(name, repr(value), expected="a whole number, 0 or more")
    if batch_size is not None:
        check_minimum("batch_size", batch_size)
    shards, tf = find_tfrecords(dataset, fields), import_library("tensorflow")
    if shuffle:
        shard_seed, sample_seed = np.random.SeedSequence([seed, epoch or 0]).generate_state(2).tolist()
        shard_paths = tf.data.Dataset.from_tensor_slices([*shards.paths])
        shard_paths = shard_paths.shuffle(len(shards.paths), seed=shard_seed, reshuffle_each_iteration=epoch is None)
        records = tf.data.TFRecordDataset(shard_paths, shards.compression, num_parallel_reads=_SHUFFLE_SHARDS)
        records = records.shuffle(shards.buffer(shuffle), seed=sample_seed, reshuffle_each_iteration=epoch is None)
    else:
        records = tf.data.TFRecordDataset([*shards.paths], shards.compression)
    spec, parse, length = _feature_spec(shards.features), tf.io.parse_single_example, shards.samples
    if batch_size is not None:
        records = records.batch(batch_size)
        parse, length = tf.io.parse_example, -(-shards.samples // batch_size)
    samples = records.map(lambda record: parse(record, spec), num_parallel_calls=tf.data.AUTOTUNE)
    samples = samples.apply(tf.data.experimental.assert_cardinality(length)).prefetch(tf.data.AUTOTUNE)
    samples.classes = dict(shards.classes)
    return samples


def feature_spec(dataset: DatasetLike, fields: Collection[str] | None = None) -> dict[str, Any]:
    """Return the feature specification of TFRecord shards for `tf.io.parse_example`.

    For arguments and errors, see `tf_dataset`.
    """
    return _feature_spec(find_tfrecords(dataset, fields).features)


def _feature_spec(features: Mapping[str, TfFeature]) -> dict[str, Any]:
    tf, spec = import_library("tensorflow"), dict[str, Any]()
    for name, feature in features.items():
        kind = {"bytes": tf.string, "int64": tf.int64, "float": tf.float32}[feature.kind]
        single: tuple[Any, ...] = (
            () if feature.is_list else ([], kind, feature.default if feature.is_optional else None)
        )
        spec[name] = tf.io.FixedLenFeature(*single) if single else tf.io.VarLenFeature(kind)
    return spec


def keras_sequence(
    dataset: SampleSequence, batch_size: int, *, shuffle: bool = True, seed: int = 0, epoch: int = 0, workers: int = 4
) -> Any:
    """Return the batches of a dataset as a `keras.utils.PyDataset` for `fit`, on any backend of Keras.

    Pass `shuffle=False` to `fit`. Otherwise, Keras shuffles the batches again, without a seed. Batches keep the
    samples' dtype. `int` becomes int64, `float` becomes float32, and `str` and `bytes` become objects.

    Args:
        dataset: A dataset from `shardtool.open` whose samples are a tuple of inputs and targets, or a dict.
        batch_size: Samples per batch. The last batch can be smaller.
        shuffle: Whether to shuffle all samples in each epoch.
        seed: Seed of the shuffle, combined with the epoch.
        epoch: First epoch. Use the same number as `initial_epoch` of `fit`.
        workers: Number of threads.

    Raises:
        InvalidRequest: Keras is missing, or a number is too small.
    """
    if not hasattr(dataset, "__getitem__") or isinstance(dataset, str | PathLike | Stream):
        raise InvalidRequest("the dataset", f"{dataset!r:.80}", expected="a dataset from shardtool.open")
    check_minimum("batch_size", batch_size)
    order = OrderOptions("full" if shuffle else False, seed, epoch)
    return keras_sequence_class()(dataset, batch_size, order, workers)
