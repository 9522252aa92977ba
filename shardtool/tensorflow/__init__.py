"""Shards for TensorFlow and Keras: TFRecords at the speed of `tf.data`, and batches of any dataset for `fit`.

TensorFlow and Keras are imported when a function is called, and nowhere else in the package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from shardtool.errors import InvalidRequest
from shardtool.tensorflow.records import Order, find_records

if TYPE_CHECKING:
    from collections.abc import Collection

    from shardtool.values import Given

__all__ = ["feature_spec", "tf_dataset"]


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
    order = Order(shuffle, seed, epoch)
    order.check()
    if batch_size is not None and batch_size < 1:
        raise InvalidRequest("batch_size", f"{batch_size}", expected="1 or more")
    return _needing("tensorflow", "data").read_records(find_records(given, fields), order, batch_size)


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
    found: dict[str, Any] = _needing("tensorflow", "data").spec_of(find_records(given, fields).features)
    return found


def _needing(library: str, module: str) -> Any:
    """Return a module of this folder, which needs a library that may be missing."""
    try:
        return import_module(f"shardtool.tensorflow.{module}")
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        remedy = f"Install it: `pip install 'shardtool[tensorflow]'`, or `pip install {library}`."
        raise InvalidRequest(library, "not installed", remedy=remedy) from None
