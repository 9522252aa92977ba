"""Shards for TensorFlow and Keras: TFRecords at the speed of `tf.data`, and batches of any dataset for `fit`.

TensorFlow and Keras are imported when a function is called, and nowhere else in the package.
"""

from __future__ import annotations

from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any

from shardtool.errors import InvalidRequest
from shardtool.read.order import OrderOptions
from shardtool.request.settings import check_least
from shardtool.tensorflow.records import RecordOrder, find_records

if TYPE_CHECKING:
    from collections.abc import Collection

    from shardtool.tensorflow.sequence import Samples
    from shardtool.values import Given

_LIBRARIES = ("keras", "tensorflow")
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
    order = RecordOrder(shuffle, seed, epoch)
    if batch_size is not None:
        check_least("batch_size", batch_size)
    found = find_records(given, fields)
    return _needing("data").read_records(found, order, batch_size)


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
    features = find_records(given, fields).features
    spec: dict[str, Any] = _needing("data").spec_of(features)
    return spec


def keras_sequence(
    dataset: Samples,
    batch_size: int,
    *,
    shuffle: bool = True,
    seed: int = 0,
    epoch: int = 0,
    workers: int = 4,
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
    if not hasattr(dataset, "__getitem__") or isinstance(dataset, str | PathLike):
        raise InvalidRequest("the dataset", f"{dataset!r:.80}", expected="what shardtool.open returned")
    check_least("batch_size", batch_size)
    order = OrderOptions("full" if shuffle else False, seed, epoch)
    return _needing("sequence").BatchSequence(dataset, batch_size, order, workers)


def _needing(module: str) -> Any:
    """Return a module of this folder that needs a library, which may be missing."""
    try:
        return import_module(f"shardtool.tensorflow.{module}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _LIBRARIES:
            raise
        remedy = "Run `pip install 'shardtool[tensorflow]'`."
        raise InvalidRequest("shardtool.tensorflow", f"{error.name} is not installed", remedy=remedy) from None
