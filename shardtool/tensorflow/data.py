"""TFRecords as a `tf.data.Dataset`: no byte of a sample passes through Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardtool.dataset.dataset_file import Feature
    from shardtool.tensorflow.records import RecordOrder, Records

_AT_ONCE = 16  # shards that a shuffle reads from at the same time


def read_records(found: Records, order: RecordOrder, batch_size: int | None) -> Any:
    """Return the dataset that `tf_dataset` promises."""
    records, spec = _shuffled(found, order) if order.shuffle else _in_order(found), spec_of(found.features)
    parse, length = tf.io.parse_single_example, found.samples
    if batch_size is not None:
        records = records.batch(batch_size)
        parse, length = tf.io.parse_example, -(-found.samples // batch_size)
    samples = records.map(lambda record: parse(record, spec), num_parallel_calls=tf.data.AUTOTUNE)
    samples = samples.apply(tf.data.experimental.assert_cardinality(length)).prefetch(tf.data.AUTOTUNE)
    samples.classes = dict(found.classes)
    return samples


def spec_of(features: Mapping[str, Feature]) -> dict[str, Any]:
    """Return what TensorFlow's parser must know of features."""
    return {name: _spec(one) for name, one in features.items()}


def _spec(feature: Feature) -> Any:
    kind = {"bytes": tf.string, "int64": tf.int64, "float": tf.float32}[feature.kind]
    if feature.is_list:
        return tf.io.VarLenFeature(kind)
    return tf.io.FixedLenFeature([], kind, feature.default if feature.lacking else None)


def _in_order(found: Records) -> Any:
    return tf.data.TFRecordDataset([*found.paths], found.packing)


def _shuffled(found: Records, order: RecordOrder) -> Any:
    """Return records in a random order: shards in such an order, read side by side, and a buffer."""
    every = order.epoch is None  # pass has another order
    of_shards, of_samples = np.random.SeedSequence([order.seed, order.epoch or 0]).generate_state(2).tolist()
    shards = tf.data.Dataset.from_tensor_slices([*found.paths])
    shards = shards.shuffle(len(found.paths), seed=of_shards, reshuffle_each_iteration=every)
    records = tf.data.TFRecordDataset(shards, found.packing, num_parallel_reads=_AT_ONCE)
    return records.shuffle(found.buffer(order), seed=of_samples, reshuffle_each_iteration=every)
