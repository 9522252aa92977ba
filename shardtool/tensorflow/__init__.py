"""Shards for TensorFlow and Keras: TFRecords at the speed of `tf.data`, and batches of any dataset for `fit`.

TensorFlow and Keras are imported when a function is called, and nowhere else in the package. No byte of a sample of
TFRecords passes through Python.
"""

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

from shardtool.dataset.dataset_file import Feature, features_of
from shardtool.dataset.find import StoredDataset, given_datasets, open_dataset
from shardtool.dataset.shard_file import SurveyTask, shard_kind, survey, walked_text
from shardtool.dataset.shard_index import walked_index
from shardtool.errors import InvalidRequest, listing
from shardtool.read.dataset import Stream
from shardtool.read.order import OrderOptions, order_of
from shardtool.request.settings import check_least
from shardtool.values import Given, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

_LIBRARIES = ("keras", "tensorflow")
_AT_ONCE = 16  # shards that a shuffle reads from at the same time
_BUFFER = 2**28  # bytes of samples that a shuffle holds, unless a number of samples is given
_MOST = 10_000  # samples that it holds then
_KEY_OF_OTHERS = Feature(lacking=True)  # not all tools give their records a key
_PACKINGS = {"": "", "gzip": "GZIP"}  # those that TensorFlow unpacks, and its names of them
__all__ = ["feature_spec", "keras_sequence", "tf_dataset"]


def tf_dataset(
    given: Given,
    *,
    fields: Collection[str] | None = None,
    shuffle: bool | int = False,
    seed: int = 0,
    epoch: int | None = None,
    batch_size: int | None = None,
) -> Any:
    """Return TFRecord shards as a `tf.data.Dataset` of dicts, read and parsed by TensorFlow alone.

    Its length is known. Its attribute `classes` holds the names of classes: `classes["cls"][3]` is that of number 3
    of the field `cls`; datasets that are made of this one do not have it. The order is the same in every run, unless
    `tf.data.Options.deterministic` is set to False on what comes back.

    Args:
        given: A dataset file, a shard pattern, a glob, a folder, shards, or a list of datasets, which become one: of
            TFRecords, plain or with gzip. Where no dataset file lists them, they are walked once, to know their fields.
        fields: Those that a sample has; None: all, and `__key__`.
        shuffle: False: the order of the dataset. True: shards in a random order, several read at the same time, and
            samples drawn from a buffer of 256 MB, or of 10,000 samples where these are smaller. A number: how many
            samples the buffer holds.
        seed: Of the random order.
        epoch: Its number, counted from 0: every pass has the order of that epoch. None: every pass has another order.
        batch_size: Samples in a batch; the last one may be smaller. A batch is parsed at once, which is faster than
            `.batch()` on single samples. None: no batches.

    Returns:
        A field's value is a scalar of `tf.string`, `tf.int64` or `tf.float32`, in a batch a vector of them. Where a
        sample lacks the field, it is `""` or -1. A list of values is a `tf.sparse.SparseTensor`.

    Raises:
        InvalidRequest: TensorFlow is missing, there is no such dataset or field, or these are no TFRecords.
        CorruptShard: A dataset file is damaged, or a shard that is walked.
    """
    for name, value in (("shuffle", shuffle), ("seed", seed), ("epoch", epoch)):
        if value is not None and (not isinstance(value, Integral) or value < 0):
            raise InvalidRequest(name, repr(value), expected="a whole number, 0 or more")
    if batch_size is not None:
        check_least("batch_size", batch_size)
    found, tf = find_records(given, fields), _needing("tensorflow")
    if shuffle:  # shards in a random order, read side by side, and a buffer
        of_shards, of_samples = np.random.SeedSequence([seed, epoch or 0]).generate_state(2).tolist()
        shards = tf.data.Dataset.from_tensor_slices([*found.paths])
        shards = shards.shuffle(len(found.paths), seed=of_shards, reshuffle_each_iteration=epoch is None)
        records = tf.data.TFRecordDataset(shards, found.packing, num_parallel_reads=_AT_ONCE)
        records = records.shuffle(found.buffer(shuffle), seed=of_samples, reshuffle_each_iteration=epoch is None)
    else:
        records = tf.data.TFRecordDataset([*found.paths], found.packing)
    spec, parse, length = _spec_of(found.features), tf.io.parse_single_example, found.samples
    if batch_size is not None:
        records = records.batch(batch_size)
        parse, length = tf.io.parse_example, -(-found.samples // batch_size)
    samples = records.map(lambda record: parse(record, spec), num_parallel_calls=tf.data.AUTOTUNE)
    samples = samples.apply(tf.data.experimental.assert_cardinality(length)).prefetch(tf.data.AUTOTUNE)
    samples.classes = dict(found.classes)
    return samples


def feature_spec(given: Given, fields: Collection[str] | None = None) -> dict[str, Any]:
    """Return what `tf.io.parse_example` must know of the features of TFRecord shards.

    Args:
        given: As for `tf_dataset`.
        fields: Those that are wanted; None: all, and `__key__`.

    Returns:
        Field to `tf.io.FixedLenFeature`, or to `tf.io.VarLenFeature` where samples have lists of values.

    Raises:
        InvalidRequest: As for `tf_dataset`.
        CorruptShard: A dataset file is damaged, or a shard that is walked.
    """
    return _spec_of(find_records(given, fields).features)


def _spec_of(features: Mapping[str, Feature]) -> dict[str, Any]:
    """Return what TensorFlow's parser must know of features."""
    tf, found = _needing("tensorflow"), dict[str, Any]()
    for name, one in features.items():
        kind = {"bytes": tf.string, "int64": tf.int64, "float": tf.float32}[one.kind]
        single: tuple[Any, ...] = () if one.is_list else ([], kind, one.default if one.lacking else None)
        found[name] = tf.io.FixedLenFeature(*single) if single else tf.io.VarLenFeature(kind)
    return found


class Samples(Protocol):
    """What `shardtool.open` gives, or anything else that gives many samples at once."""

    def __len__(self) -> int: ...

    def __getitem__(self, which: NDArray[np.int64]) -> Sequence[Any]: ...


def keras_sequence(
    dataset: Samples, batch_size: int, *, shuffle: bool = True, seed: int = 0, epoch: int = 0, workers: int = 4
) -> Any:
    """Return the batches of a dataset as a `keras.utils.PyDataset`: for `fit`, on any backend of Keras.

    Give `shuffle=False` to `fit`: otherwise Keras shuffles the batches once more, in an order that no seed repeats.

    Args:
        dataset: What `shardtool.open` gives, of tar or TFRecord shards, with a sample as Keras takes it: a tuple of
            inputs and targets, or a dict.
        batch_size: Samples in a batch; the last one may be smaller.
        shuffle: Whether each epoch has a random order of all samples.
        seed: Of that order, with the number of the epoch.
        epoch: The first one, where `fit` goes on with an `initial_epoch`.
        workers: Threads that read and decode batches.

    Returns:
        A sequence of batches: its arrays hold the values of a batch's samples in their own dtype; `int` becomes int64,
        `float` float32, `str` and `bytes` objects.

    Raises:
        InvalidRequest: Keras is missing, or a number is too small.
    """
    if not hasattr(dataset, "__getitem__") or isinstance(dataset, str | PathLike | Stream):
        raise InvalidRequest("the dataset", f"{dataset!r:.80}", expected="what shardtool.open returned")
    check_least("batch_size", batch_size)
    order = OrderOptions("full" if shuffle else False, seed, epoch)
    return _of_keras()(dataset, batch_size, order, workers)


@cache
def _of_keras() -> type[Any]:
    """Return the class of sequences, which needs Keras: imported when it is first wanted."""
    return type("BatchSequence", (BatchSequence, _needing("keras").utils.PyDataset), {})


def _blank() -> Any:
    return object.__new__(_of_keras())


def _needing(module: str) -> Any:
    """Return a module that is, or needs, a library which may be missing."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _LIBRARIES:
            raise
        remedy = "Run `pip install 'shardtool[tensorflow]'`."
        raise InvalidRequest("shardtool.tensorflow", f"{error.name} is not installed", remedy=remedy) from None


class BatchSequence:
    """Batches of a dataset by their numbers, in another order in each epoch: what makes a `keras.utils.PyDataset` ours.

    Keras's worker threads ask for batches at the same time. What they share does not change during an epoch.

    Keras ends an epoch, too, after it has looked at the first batches for their shapes. Its older releases do not say
    when one begins: there, each end counts.
    """

    def __init__(self, samples: Samples, batch_size: int, first: OrderOptions, workers: int) -> None:
        super().__init__(workers=workers)  # type: ignore[call-arg] # of Keras's class
        self._samples, self._batch_size, self._options = samples, batch_size, first
        self._counts_each_end = self._begun = not hasattr(super(), "on_epoch_begin")

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()], dict[str, object]]:
        return _blank, (), vars(self)

    def __len__(self) -> int:
        """Return how many batches an epoch has; the last one may be smaller."""
        return math.ceil(len(self._samples) / self._batch_size)

    def __getitem__(self, number: int) -> Any:
        """Return a batch: the values of its samples side by side, as tuples and dicts have them.

        Raises:
            IndexError: There are fewer batches.
            InvalidRequest: Samples cannot be stacked.
        """
        if not 0 <= number < len(self):
            raise IndexError(f"batch {number} of {len(self)}")
        first, count = number * self._batch_size, len(self._samples)
        order = order_of(np.array([count]), self._options)
        numbers = order.numbers(np.arange(first, min(first + self._batch_size, count)))
        return stacked(self._samples[numbers])

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of an epoch; with the last one, the next epoch is current."""
        epoch, count = self._options.epoch, len(self)
        for number in range(count):
            batch = self[number]
            if number == count - 1 and self._options.epoch == epoch:
                self.set_epoch(epoch + 1)
            yield batch

    def set_epoch(self, epoch: int) -> None:
        """Take the order of an epoch."""
        self._options = replace(self._options, epoch=epoch)

    def on_epoch_begin(self) -> None:
        """Note that an epoch begins."""
        self._begun = True

    def on_epoch_end(self) -> None:
        """Go on to the order of the next epoch, unless none has begun."""
        if self._begun:
            self.set_epoch(self._options.epoch + 1)
            self._begun = self._counts_each_end


def stacked(samples: Sequence[Any]) -> Any:
    """Return a batch of samples: of dicts a dict of batches, of tuples a tuple of them, of values an array.

    Returns:
        An array has the samples' shape behind the dimension of the batch, and their dtype: int64 of `int`, float32 of
        `float`, objects of `str` and `bytes`.

    Raises:
        InvalidRequest: Samples are of different shapes, or some lack a field.
    """
    first = samples[0]
    if isinstance(first, dict):
        names = {name for one in samples for name in one}
        if lacking := sorted(name for name in names if any(name not in one for one in samples)):
            found = f"samples of which some lack {lacking[0]!r}"
            raise InvalidRequest("a batch", found, remedy="Take the fields that all have, or give it a value.")
        return {name: stacked([one[name] for one in samples]) for name in first}
    if isinstance(first, tuple):
        return tuple(stacked(values) for values in zip(*samples, strict=True))
    if isinstance(first, str | bytes):
        return np.array(samples, object)
    if len(shapes := {np.shape(one) for one in samples}) > 1:
        found = f"arrays of the shapes {' and '.join(map(str, sorted(shapes)[:2]))}"
        raise InvalidRequest("a batch", found, expected="one shape", remedy="Crop or resize images to one size.")
    return np.asarray(samples, np.float32 if isinstance(first, float) else None)


# Which TFRecords are meant, and what a dataset file says of them. TensorFlow is not needed for that.


class Records(NamedTuple):
    """TFRecord shards.

    Attributes:
        paths: Where they are, in order.
        samples: How many there are in all.
        size: Bytes of all shards, or of their payloads.
        features: What samples have, by name.
        classes: The names of classes, by field.
        packing: How TensorFlow unpacks them: `GZIP`, or an empty text.
    """

    paths: tuple[str, ...]
    samples: int
    size: int
    features: Mapping[str, Feature]
    classes: Mapping[str, Sequence[str]] = {}
    packing: str = ""

    def buffer(self, shuffle: bool | int) -> int:  # noqa: FBT001 - as users give it
        """Return how many samples a shuffle holds."""
        if shuffle is not True:
            return max(1, int(shuffle))
        return max(1, min(_MOST, self.samples, _BUFFER * self.samples // max(1, self.size)))


def find_records(given: Given, fields: Collection[str] | None) -> Records:
    """Return the TFRecord shards that are meant, and those of their features that are wanted.

    Raises:
        InvalidRequest: There is no such dataset or field, or these are no TFRecords.
        CorruptShard: A dataset file is damaged, or a shard that had to be walked.
    """
    datasets = [open_dataset(one) for one in given_datasets(given)]
    packing = _packing_of(datasets)
    parts = [_records_of(one) for one in datasets]
    features = _merged([part.features for part in parts])
    wanted = [*features] if fields is None else list(dict.fromkeys(fields))
    if (lacking := [name for name in wanted if name not in features]) or not wanted:
        found = f"no {listing(lacking)}" if lacking else "none"
        raise InvalidRequest("fields", found, expected=f"some of {listing([*features])}")
    classes: dict[str, Sequence[str]] = {}
    for name, names in ((name, names) for part in parts for name, names in part.classes.items()):
        if classes.setdefault(name, names) != names:
            expected = "the same names in the same order: the numbers in the shards depend on it"
            raise InvalidRequest(f"the classes of {name!r}", "different ones in two datasets", expected=expected)
    return Records(
        paths=tuple(path for part in parts for path in part.paths),
        samples=sum(part.samples for part in parts),
        size=sum(part.size for part in parts),
        features={name: features[name] for name in wanted},
        classes=classes,
        packing=packing,
    )


def _records_of(dataset: StoredDataset) -> Records:
    """Return what the dataset file says of one dataset; where there is none, its shards are walked.

    Raises:
        CorruptShard: A shard that is walked is damaged.
    """
    if (file := dataset.file) is not None:
        features = dict(file.features)
        if file.made.document.get("verb") == "index":
            features["__key__"] = _KEY_OF_OTHERS
        samples, size = (sum(getattr(shard, name) for shard in file.shards) for name in ("samples", "size"))
        return Records(dataset.paths, samples, size, features, file.classes)
    fields, kinds, lists, samples, size = Counter[str](), dict[str, Kind](), set[str](), 0, 0
    for path in dataset.paths:
        found = survey(SurveyTask(path))
        if found.error is not None:
            raise found.error
        index = walked_index(found)
        tally, kinds = index.tally(), {**index.kinds, **kinds}
        lists |= {walked_text(found.names[code]) for code, one in found.unlike.items() if one.kind == found.kinds[code]}
        fields.update(tally.fields)
        samples, size = samples + tally.samples, size + tally.field_bytes
    return Records(
        dataset.paths, samples, size, features_of(fields, kinds, samples, lists) | {"__key__": _KEY_OF_OTHERS}
    )


def _packing_of(datasets: Sequence[StoredDataset]) -> str:
    """Return how TensorFlow unpacks all shards.

    Raises:
        InvalidRequest: They are no TFRecords, or TensorFlow cannot unpack them.
    """
    kinds: dict[str, str] = {}
    for dataset in datasets:
        for shard in dataset.shards:
            kind = shard_kind(shard.path)
            if kind.format != "tfrecord":
                where = dataset.dataset_file or shard.path
                remedy = (
                    f"Make TFRecords of them, `shardtool reshard {where} 'out-{{000000..}}.tfrecord'`, or give them to "
                    "Keras with shardtool.tensorflow.keras_sequence."
                )
                expected = "TFRecords, which TensorFlow reads by itself"
                raise InvalidRequest(where, "tar shards", expected=expected, remedy=remedy)
            kinds[kind.packing] = shard.path
    for packing, path in kinds.items():
        if packing not in _PACKINGS:
            found = f"compressed with {packing}, which TensorFlow cannot unpack"
            raise InvalidRequest(path, found, expected="TFRecords, or such with gzip")
        if len(kinds) > 1 and packing:
            found = f"compressed with {packing}, and other shards are not"
            raise InvalidRequest(path, found, expected="all of one kind")
    return _PACKINGS[next(iter(kinds))]


def _merged(parts: Sequence[Mapping[str, Feature]]) -> dict[str, Feature]:
    """Return the features of the samples of all datasets: what one of them does not have, some samples lack."""
    found: dict[str, Feature] = {}
    for features in parts:
        for name, one in features.items():
            before = found.setdefault(name, one)
            if before.kind != one.kind:
                problem = f"{before.kind} in one dataset, {one.kind} in another"
                raise InvalidRequest(f"the field {name!r}", problem, expected="one kind in all")
            is_list = before.is_list or one.is_list
            lacking = not is_list and (before.lacking or one.lacking or any(name not in other for other in parts))
            found[name] = Feature(one.kind, is_list, lacking)
    return found
