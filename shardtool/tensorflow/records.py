"""TFRecord shards and their features. This module does not import TensorFlow."""

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


_SHUFFLE_BUFFER_BYTES = 2**28
_MAX_BUFFER_SAMPLES = 10_000
_OPTIONAL_KEY = TfFeature(lacking=True)  # records of some tools have no key
_COMPRESSION_TYPES = {"": "", "gzip": "GZIP"}  # compressions that TensorFlow supports, with TensorFlow's names


class TFRecordShards(NamedTuple):
    """TFRecord shards.

    `size` is the bytes of all shards, or of all payloads. `packing` is TensorFlow's name of the compression, or "".
    """

    paths: tuple[str, ...]
    samples: int
    size: int
    features: Mapping[str, TfFeature]
    classes: Mapping[str, Sequence[str]] = {}
    packing: str = ""

    def buffer(self, shuffle: bool | int) -> int:  # noqa: FBT001 - the public option
        """Return the number of samples in a shuffle buffer."""
        if shuffle is not True:
            return max(1, int(shuffle))
        return max(1, min(_MAX_BUFFER_SAMPLES, self.samples, _SHUFFLE_BUFFER_BYTES * self.samples // max(1, self.size)))


def find_tfrecords(dataset: DatasetLike, fields: Collection[str] | None) -> TFRecordShards:
    """Return the matching TFRecord shards, with the requested features."""
    datasets = [open_dataset(part) for part in expand_datasets(dataset)]
    packing = _compression_of(datasets)
    parts = [_tfrecords_of(dataset) for dataset in datasets]
    features = _merge_features([part.features for part in parts])
    requested = [*features] if fields is None else list(dict.fromkeys(fields))
    if (unknown := [name for name in requested if name not in features]) or not requested:
        found = f"no {format_list(unknown)}" if unknown else "none"
        raise InvalidRequest("fields", found, expected=f"some of {format_list([*features])}")
    classes: dict[str, Sequence[str]] = {}
    for name, names in ((name, names) for part in parts for name, names in part.classes.items()):
        if classes.setdefault(name, names) != names:
            expected = "the same names in the same order, which class numbers depend on"
            raise InvalidRequest(f"the classes of {name!r}", "differ between two datasets", expected=expected)
    return TFRecordShards(
        paths=tuple(path for part in parts for path in part.paths),
        samples=sum(part.samples for part in parts),
        size=sum(part.size for part in parts),
        features={name: features[name] for name in requested},
        classes=classes,
        packing=packing,
    )


def _tfrecords_of(dataset: StoredDataset) -> TFRecordShards:
    if (file := dataset.file) is not None:
        features = dict(file.features)
        if file.made.document.get("verb") == "index":
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
        lists |= {
            index_text(scan.names[code]) for code, feature in scan.conflicts.items() if feature.kind == scan.kinds[code]
        }
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
            kinds[kind.packing] = shard.path
    for packing, path in kinds.items():
        if packing not in _COMPRESSION_TYPES:
            found = f"compressed with {packing}, which TensorFlow cannot decompress"
            raise InvalidRequest(path, found, expected="plain or gzip-compressed TFRecords")
        if len(kinds) > 1 and packing:
            found = f"compressed with {packing}, unlike other shards"
            raise InvalidRequest(path, found, expected="the same compression for all shards")
    return _COMPRESSION_TYPES[next(iter(kinds))]


def _merge_features(parts: Sequence[Mapping[str, TfFeature]]) -> dict[str, TfFeature]:
    """Merge the features of datasets. Samples may lack a feature that is not in all datasets."""
    merged: dict[str, TfFeature] = {}
    for features in parts:
        for name, feature in features.items():
            earlier = merged.setdefault(name, feature)
            if earlier.kind != feature.kind:
                problem = f"{earlier.kind} in one dataset, {feature.kind} in another"
                raise InvalidRequest(f"the field {name!r}", problem, expected="the same type in all datasets")
            is_list = earlier.is_list or feature.is_list
            lacking = not is_list and (earlier.lacking or feature.lacking or any(name not in part for part in parts))
            merged[name] = TfFeature(feature.kind, is_list, lacking)
    return merged
