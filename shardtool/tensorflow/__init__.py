"""Shards for TensorFlow and Keras: TFRecords at the speed of `tf.data`, and batches of any dataset for `fit`.

TensorFlow and Keras are imported when a function is called, and nowhere else in the package. No byte of a TFRecord
sample
passes through Python.
"""

from __future__ import annotations

from numbers import Integral
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from shardtool.errors import InvalidRequest
from shardtool.read.order import OrderOptions
from shardtool.read.stream import Stream
from shardtool.request.option_checks import check_minimum
from shardtool.tensorflow.keras_batches import SampleSequence, import_library, keras_sequence_class
from shardtool.tensorflow.records import find_tfrecords

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from shardtool.dataset.features import TfFeature
    from shardtool.values import DatasetLike


_SHUFFLE_SHARDS = 16  # shards that a shuffle reads from at the same time


__all__ = ["feature_spec", "keras_sequence", "tf_dataset"]


def tf_dataset(
    given: DatasetLike,
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
        check_minimum("batch_size", batch_size)
    found, tf = find_tfrecords(given, fields), import_library("tensorflow")
    if shuffle:  # shards in a random order, read side by side, and a buffer
        of_shards, of_samples = np.random.SeedSequence([seed, epoch or 0]).generate_state(2).tolist()
        shards = tf.data.Dataset.from_tensor_slices([*found.paths])
        shards = shards.shuffle(len(found.paths), seed=of_shards, reshuffle_each_iteration=epoch is None)
        records = tf.data.TFRecordDataset(shards, found.packing, num_parallel_reads=_SHUFFLE_SHARDS)
        records = records.shuffle(found.buffer(shuffle), seed=of_samples, reshuffle_each_iteration=epoch is None)
    else:
        records = tf.data.TFRecordDataset([*found.paths], found.packing)
    spec, parse, length = _feature_spec(found.features), tf.io.parse_single_example, found.samples
    if batch_size is not None:
        records = records.batch(batch_size)
        parse, length = tf.io.parse_example, -(-found.samples // batch_size)
    samples = records.map(lambda record: parse(record, spec), num_parallel_calls=tf.data.AUTOTUNE)
    samples = samples.apply(tf.data.experimental.assert_cardinality(length)).prefetch(tf.data.AUTOTUNE)
    samples.classes = dict(found.classes)
    return samples


def feature_spec(given: DatasetLike, fields: Collection[str] | None = None) -> dict[str, Any]:
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
    return _feature_spec(find_tfrecords(given, fields).features)


def _feature_spec(features: Mapping[str, TfFeature]) -> dict[str, Any]:
    """Return what TensorFlow's parser must know of features."""
    tf, found = import_library("tensorflow"), dict[str, Any]()
    for name, one in features.items():
        kind = {"bytes": tf.string, "int64": tf.int64, "float": tf.float32}[one.kind]
        single: tuple[Any, ...] = () if one.is_list else ([], kind, one.default if one.lacking else None)
        found[name] = tf.io.FixedLenFeature(*single) if single else tf.io.VarLenFeature(kind)
    return found


def keras_sequence(
    dataset: SampleSequence, batch_size: int, *, shuffle: bool = True, seed: int = 0, epoch: int = 0, workers: int = 4
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
    check_minimum("batch_size", batch_size)
    order = OrderOptions("full" if shuffle else False, seed, epoch)
    return keras_sequence_class()(dataset, batch_size, order, workers)
