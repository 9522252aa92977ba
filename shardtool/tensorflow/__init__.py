"""Shards for TensorFlow and Keras: TFRecords for `tf.data`, and batches of any dataset for `fit`.

TensorFlow and Keras are imported when needed. TensorFlow reads TFRecords without Python.
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

    Its attribute `classes` holds class names by field. The order is the same in every run, unless you set
    `tf.data.Options.deterministic` to False.

    Args:
        dataset: TFRecords, plain or with gzip: a dataset file, a shard pattern, a glob, a folder, shards, or a list of
            datasets to concatenate.
        fields: Fields of a sample; None for all fields and `__key__`.
        shuffle: With False, keep the order of the dataset. With True, read shards in random order, several in parallel,
            through a buffer of at most 256 MB and 10,000 samples. A number sets the number of samples in the buffer.
        seed: Seed of the shuffle.
        epoch: Epoch, counted from 0, whose order every pass has. With None, every pass has a different order.
        batch_size: Samples per batch; the last batch can be smaller. With None, samples are not batched.

    Returns:
        A dataset of dicts. A field is a scalar of `tf.string`, `tf.int64` or `tf.float32`, or a vector in a batch. A
            missing field is `""` or -1. A list of values is a `tf.sparse.SparseTensor`.

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
        records = tf.data.TFRecordDataset(shard_paths, shards.packing, num_parallel_reads=_SHUFFLE_SHARDS)
        records = records.shuffle(shards.buffer(shuffle), seed=sample_seed, reshuffle_each_iteration=epoch is None)
    else:
        records = tf.data.TFRecordDataset([*shards.paths], shards.packing)
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

    Arguments and errors are those of `tf_dataset`. Lists of values become `tf.io.VarLenFeature`, other fields
    `tf.io.FixedLenFeature`.
    """
    return _feature_spec(find_tfrecords(dataset, fields).features)


def _feature_spec(features: Mapping[str, TfFeature]) -> dict[str, Any]:
    tf, spec = import_library("tensorflow"), dict[str, Any]()
    for name, feature in features.items():
        kind = {"bytes": tf.string, "int64": tf.int64, "float": tf.float32}[feature.kind]
        single: tuple[Any, ...] = () if feature.is_list else ([], kind, feature.default if feature.lacking else None)
        spec[name] = tf.io.FixedLenFeature(*single) if single else tf.io.VarLenFeature(kind)
    return spec


def keras_sequence(
    dataset: SampleSequence, batch_size: int, *, shuffle: bool = True, seed: int = 0, epoch: int = 0, workers: int = 4
) -> Any:
    """Return the batches of a dataset as a `keras.utils.PyDataset` for `fit`, on any backend of Keras.

    Pass `shuffle=False` to `fit`: otherwise Keras shuffles the batches again, without a seed. Batches keep the samples'
    dtype. `int` becomes int64, `float` becomes float32, and `str` and `bytes` become objects.

    Args:
        dataset: A dataset from `shardtool.open` whose samples are a tuple of inputs and targets, or a dict.
        batch_size: Samples per batch; the last batch can be smaller.
        shuffle: Use a random order of all samples in each epoch.
        seed: Seed of the shuffle, combined with the epoch.
        epoch: First epoch, if `fit` continues at an `initial_epoch`.
        workers: Number of threads that read and decode batches.

    Raises:
        InvalidRequest: Keras is missing, or a number is too small.
    """
    if not hasattr(dataset, "__getitem__") or isinstance(dataset, str | PathLike | Stream):
        raise InvalidRequest("the dataset", f"{dataset!r:.80}", expected="a dataset from shardtool.open")
    check_minimum("batch_size", batch_size)
    order = OrderOptions("full" if shuffle else False, seed, epoch)
    return keras_sequence_class()(dataset, batch_size, order, workers)
