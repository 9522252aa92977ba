"""Join the dataset files of old and new shards, or of all parts of a run, into one."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

from shardtool.dataset import sidecar_schema
from shardtool.dataset.dataset_file import merge_value_types
from shardtool.dataset.features import number_features, tf_features
from shardtool.dataset.skipped_list import encode_skipped
from shardtool.entries.classes import merge_classes
from shardtool.errors import InvalidRequest
from shardtool.fingerprint import crc32c, format_fingerprint, sum_fingerprints
from shardtool.names import to_bytes, to_output_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.dataset.features import TfFeature
    from shardtool.pattern import ShardPattern
    from shardtool.skipped import Skipped
    from shardtool.values import FeatureType


def join_datasets(old: DatasetFile, new: DatasetFile) -> DatasetFile:
    """Return the dataset file of old and new shards. `new.skipped` and its checksum already cover both."""
    shards = (*old.shards, *new.shards)
    names = sorted({*old.fields, *new.fields}, key=to_bytes)
    fields = {name: old.fields.get(name, 0) + new.fields.get(name, 0) for name in names}
    features: Mapping[str, TfFeature] = {}
    if new.format == "tfrecord":
        kinds = join_kinds(old, {name: new.features[name].kind for name in new.fields})
        lists = {name for file in (old, new) for name, feature in file.features.items() if feature.is_list}
        features = tf_features(fields, kinds, sum(shard.samples for shard in shards), lists)
    return replace(
        new,
        shards=shards,
        fields=fields,
        field_bytes=old.field_bytes + new.field_bytes,
        schema=join_schemas(old.schema, new.schema),
        classes=merge_classes(old.classes, new.classes),
        features=features,
        types=merge_value_types([(file.types, file.fields) for file in (old, new)]),
        made=old.made.with_append(new.made),
        appends=(*old.appends, len(old.shards)),
        fingerprint=format_fingerprint(sum_fingerprints((old.fingerprint, new.fingerprint))),
    )


def join_kinds(old: DatasetFile, new: Mapping[str, FeatureType]) -> dict[str, FeatureType]:
    """Return the types of TFRecord features of old and new samples."""
    old_kinds = number_features(old.features)
    kinds: dict[str, FeatureType] = {name: old_kinds.get(name, "bytes") for name in old.fields}
    for name in sorted(new, key=to_bytes):
        if kinds.setdefault(name, new[name]) != new[name]:
            found = f"{new[name]} in the new samples"
            remedy = "A TFRecord feature has one type. Convert the field to that type or rename it."
            raise InvalidRequest(f"field {name}", found, expected=f"{kinds[name]}, as in the dataset", remedy=remedy)
    return kinds


def join_schemas(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    """Return the column types of old and new samples, old columns first."""
    schema = dict(old)
    for name, old_type, new_type in sidecar_schema.merge_types(schema, new):
        expected = f"{old_type}, as in the dataset"
        raise InvalidRequest(f"column {name}", f"{new_type} in the new samples", expected=expected)
    return schema


def join_parts(files: Sequence[DatasetFile], skipped: Sequence[Skipped], pattern: ShardPattern) -> DatasetFile:
    """Return the dataset file of all parts."""
    dataset, rows = reduce(join_datasets, files), encode_skipped(skipped)
    return replace(
        dataset,
        pattern=to_output_name(pattern.text),
        made=files[0].made,
        appends=(),
        skipped=len(skipped),
        skipped_crc=crc32c(rows) if rows else None,
    )
