"""TFRecord shards and their features, as the dataset file lists them. TensorFlow is not needed for this."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from shardtool.dataset.expand import expand_datasets
from shardtool.dataset.features import TfFeature, tf_features
from shardtool.dataset.find import open_dataset
from shardtool.dataset.scan import ShardScanTask, index_text, scan_shard
from shardtool.dataset.shard_file import detect_kind
from shardtool.dataset.shard_index import scanned_index
from shardtool.errors import InvalidRequest, format_list
from shardtool.values import DatasetLike, FeatureType

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from shardtool.dataset.stored import StoredDataset


_SHUFFLE_BUFFER_BYTES = 2**28  # bytes of samples that a shuffle holds, unless a number of samples is given


_MAX_BUFFER_SAMPLES = 10_000  # samples that it holds then


_OPTIONAL_KEY = TfFeature(lacking=True)  # not all tools give their records a key


_COMPRESSION_TYPES = {"": "", "gzip": "GZIP"}  # those that TensorFlow unpacks, and its names of them


class TFRecordShards(NamedTuple):
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
    features: Mapping[str, TfFeature]
    classes: Mapping[str, Sequence[str]] = {}
    packing: str = ""

    def buffer(self, shuffle: bool | int) -> int:  # noqa: FBT001 - as users give it
        """Return how many samples a shuffle holds."""
        if shuffle is not True:
            return max(1, int(shuffle))
        return max(1, min(_MAX_BUFFER_SAMPLES, self.samples, _SHUFFLE_BUFFER_BYTES * self.samples // max(1, self.size)))


def find_tfrecords(given: DatasetLike, fields: Collection[str] | None) -> TFRecordShards:
    """Return the TFRecord shards that are meant, and those of their features that are wanted.

    Raises:
        InvalidRequest: There is no such dataset or field, or these are no TFRecords.
        CorruptShard: A dataset file is damaged, or a shard that had to be walked.
    """
    datasets = [open_dataset(one) for one in expand_datasets(given)]
    packing = _compression_of(datasets)
    parts = [_tfrecords_of(one) for one in datasets]
    features = _merge_features([part.features for part in parts])
    wanted = [*features] if fields is None else list(dict.fromkeys(fields))
    if (lacking := [name for name in wanted if name not in features]) or not wanted:
        found = f"no {format_list(lacking)}" if lacking else "none"
        raise InvalidRequest("fields", found, expected=f"some of {format_list([*features])}")
    classes: dict[str, Sequence[str]] = {}
    for name, names in ((name, names) for part in parts for name, names in part.classes.items()):
        if classes.setdefault(name, names) != names:
            expected = "the same names in the same order: the numbers in the shards depend on it"
            raise InvalidRequest(f"the classes of {name!r}", "different ones in two datasets", expected=expected)
    return TFRecordShards(
        paths=tuple(path for part in parts for path in part.paths),
        samples=sum(part.samples for part in parts),
        size=sum(part.size for part in parts),
        features={name: features[name] for name in wanted},
        classes=classes,
        packing=packing,
    )


def _tfrecords_of(dataset: StoredDataset) -> TFRecordShards:
    """Return what the dataset file says of one dataset; where there is none, its shards are walked.

    Raises:
        CorruptShard: A shard that is walked is damaged.
    """
    if (file := dataset.file) is not None:
        features = dict(file.features)
        if file.made.document.get("verb") == "index":
            features["__key__"] = _OPTIONAL_KEY
        samples, size = (sum(getattr(shard, name) for shard in file.shards) for name in ("samples", "size"))
        return TFRecordShards(dataset.paths, samples, size, features, file.classes)
    fields, kinds, lists, samples, size = Counter[str](), dict[str, FeatureType](), set[str](), 0, 0
    for path in dataset.paths:
        found = scan_shard(ShardScanTask(path))
        if found.error is not None:
            raise found.error
        index = scanned_index(found)
        tally, kinds = index.tally(), {**index.kinds, **kinds}
        lists |= {index_text(found.names[code]) for code, one in found.unlike.items() if one.kind == found.kinds[code]}
        fields.update(tally.fields)
        samples, size = samples + tally.samples, size + tally.field_bytes
    return TFRecordShards(
        dataset.paths, samples, size, tf_features(fields, kinds, samples, lists) | {"__key__": _OPTIONAL_KEY}
    )


def _compression_of(datasets: Sequence[StoredDataset]) -> str:
    """Return how TensorFlow unpacks all shards.

    Raises:
        InvalidRequest: They are no TFRecords, or TensorFlow cannot unpack them.
    """
    kinds: dict[str, str] = {}
    for dataset in datasets:
        for shard in dataset.shards:
            kind = detect_kind(shard.path)
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
        if packing not in _COMPRESSION_TYPES:
            found = f"compressed with {packing}, which TensorFlow cannot unpack"
            raise InvalidRequest(path, found, expected="TFRecords, or such with gzip")
        if len(kinds) > 1 and packing:
            found = f"compressed with {packing}, and other shards are not"
            raise InvalidRequest(path, found, expected="all of one kind")
    return _COMPRESSION_TYPES[next(iter(kinds))]


def _merge_features(parts: Sequence[Mapping[str, TfFeature]]) -> dict[str, TfFeature]:
    """Return the features of the samples of all datasets: what one of them does not have, some samples lack."""
    found: dict[str, TfFeature] = {}
    for features in parts:
        for name, one in features.items():
            before = found.setdefault(name, one)
            if before.kind != one.kind:
                problem = f"{before.kind} in one dataset, {one.kind} in another"
                raise InvalidRequest(f"the field {name!r}", problem, expected="one kind in all")
            is_list = before.is_list or one.is_list
            lacking = not is_list and (before.lacking or one.lacking or any(name not in other for other in parts))
            found[name] = TfFeature(one.kind, is_list, lacking)
    return found
