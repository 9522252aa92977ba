"""Publish the dataset file of packed shards."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

from shardtool.dataset import sidecar_schema, skipped_list
from shardtool.dataset.dataset_file import DatasetFile, ShardEntry, merge_value_types
from shardtool.dataset.features import TfFeature, number_features, tf_features
from shardtool.dataset.skipped_list import encode_skipped
from shardtool.entries.classes import merge_classes
from shardtool.errors import CorruptShard, InvalidRequest, reporting_memory_errors
from shardtool.fingerprint import crc32c, format_fingerprint, sum_fingerprints
from shardtool.messages import choose_text, flag_text, option_text
from shardtool.names import to_bytes, to_local_name, to_output_name
from shardtool.pattern import ShardPattern, sidecar_name
from shardtool.publish import parts
from shardtool.publish.append_target import FinishedAppend, list_later_files
from shardtool.publish.totals import DatasetTotals, build_dataset_file
from shardtool.skipped import Skipped, sort_rows
from shardtool.storage.folders import check_published

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardtool.publish.destination import Destination
    from shardtool.publish.publication import Publication
    from shardtool.request.run_record import RunRecord
    from shardtool.values import FeatureType


@reporting_memory_errors("the dataset file")
def publish_dataset(
    totals: DatasetTotals, publication: Publication, destination: Destination, run_record: RunRecord, part: str = ""
) -> DatasetFile:
    """Publish the dataset file and the list of skipped samples. If `part` is given, publish only the part's record."""
    pattern = destination.pattern
    last = destination.first + len(totals.shards)
    if isinstance(destination.append, FinishedAppend):
        check_append_is_unchanged(destination.append, last, None, destination)
        destination.folder.remove(parts.list_run_files(pattern, destination.folder.names()))
        return destination.append.old
    skipped = _merge_skipped_rows(destination, sort_rows(totals.skipped))
    dataset = build_dataset_file(totals, pattern, skipped, run_record)
    if destination.old is not None:
        dataset = join_datasets(destination.old, dataset)
    if destination.repaired_dataset is not None:
        _check_recreated(dataset, destination.repaired_dataset)
    sizes = {to_local_name(shard.name): shard.size for shard in totals.shards}
    sizes |= {to_local_name(shard.sidecar): shard.sidecar_size for shard in totals.shards}
    check_published(destination.folder, sizes, f"Run the same command again with {flag_text('resume')}.")
    new_shards = [pattern.shard(shard) for shard in range(destination.first, last)]
    finish_dataset(publication, destination, new_shards, dataset, skipped, part)
    return dataset


def _check_recreated(dataset: DatasetFile, expected_dataset: DatasetFile) -> None:
    shards, expected_shards = (
        [(shard.name, shard.size, shard.crc) for shard in file.shards] for file in (dataset, expected_dataset)
    )
    if shards != expected_shards:
        found = "content that differs from the dataset's"
        raise InvalidRequest(option_text("source"), found, expected="the same content")


def finish_dataset(
    publication: Publication,
    destination: Destination,
    new_shards: Sequence[str],
    dataset: DatasetFile,
    skipped: Sequence[Skipped],
    part: str = "",
) -> None:
    """Publish the dataset file, and delete journals, part records and files that the dataset does not list."""
    pattern, old, rows = destination.pattern, destination.old, skipped_list.encode_skipped(skipped)
    small = {pattern.skipped_file: rows} if rows and not part else {}
    kept_names = {*new_shards, *map(sidecar_name, new_shards), *small, *([] if part else [pattern.dataset_file])}
    stale = sorted({*destination.existing} - kept_names)
    if old is not None:
        stale = list_later_files(pattern, destination.existing, destination.first + len(new_shards))
    publication.finish(
        parts.PartRecord(part, dataset, tuple(skipped)).encode() if part else dataset.encode(),
        [shard.name for shard in dataset.shards],
        before=small,
        stale=stale,
        leftovers=parts.list_run_files(pattern, destination.folder.names()),
    )


def _merge_skipped_rows(destination: Destination, skipped: Sequence[Skipped]) -> list[Skipped]:
    old_dataset = destination.old
    if old_dataset is None:
        removed = destination.load_removed() if destination.if_exists == "resume" else {}
        return sort_rows([*skipped, *removed.values()]) if removed else [*skipped]
    return skipped_list.merge_new_rows(destination.load_skipped(), old_dataset, skipped, destination.skipped_file)


def check_append_is_unchanged(
    append: FinishedAppend, number: int, shard: ShardEntry | None, destination: Destination
) -> None:
    """Raise an error unless shard `number` of the dataset equals `shard`.

    If `shard` is None, the dataset must not have this shard.
    """
    if [*append.old.shards[number : number + 1]] != ([] if shard is None else [shard]):
        found = "the dataset already contains these keys with other content"
        action = choose_text(f"use {flag_text('append')}", "run without --resume")
        raise InvalidRequest(destination.pattern.text, found, remedy=f"Rename the new samples and {action}.")


def check_fingerprint(source: str, found: str, expected_fingerprint: str) -> None:
    """Raise an error if the fingerprints of the samples and of their source differ."""
    if found != expected_fingerprint:
        problem, expected = f"samples with fingerprint {found}", f"{expected_fingerprint}, as in the source dataset"
        remedy = "No dataset file was written. Run `shardtool verify` on the source."
        raise CorruptShard(source, problem, expected=expected, remedy=remedy)


def join_datasets(old: DatasetFile, new: DatasetFile) -> DatasetFile:
    """Return one dataset file for old and new shards. `new.skipped` must count the skipped samples of both datasets."""
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
        run=old.run.with_append(new.run),
        appends=(*old.appends, len(old.shards)),
        fingerprint=format_fingerprint(sum_fingerprints((old.fingerprint, new.fingerprint))),
    )


def join_kinds(old: DatasetFile, new: Mapping[str, FeatureType]) -> dict[str, FeatureType]:
    """Return the types of all TFRecord features. Raise an error if a feature has two types."""
    old_kinds = number_features(old.features)
    kinds: dict[str, FeatureType] = {name: old_kinds.get(name, "bytes") for name in old.fields}
    for name in sorted(new, key=to_bytes):
        if kinds.setdefault(name, new[name]) != new[name]:
            found = f"{new[name]} in the new samples"
            remedy = "A TFRecord feature has one type. Convert the field to that type or rename it."
            raise InvalidRequest(f"field {name}", found, expected=f"{kinds[name]}, as in the dataset", remedy=remedy)
    return kinds


def join_schemas(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    """Return the types of all columns, old columns first. Raise an error if a column has two types."""
    schema = dict(old)
    for name, old_type, new_type in sidecar_schema.merge_types(schema, new):
        expected = f"{old_type}, as in the dataset"
        raise InvalidRequest(f"column {name}", f"{new_type} in the new samples", expected=expected)
    return schema


def join_parts(files: Sequence[DatasetFile], skipped: Sequence[Skipped], pattern: ShardPattern) -> DatasetFile:
    """Return one dataset file for all parts."""
    dataset, rows = reduce(join_datasets, files), encode_skipped(skipped)
    return replace(
        dataset,
        pattern=to_output_name(pattern.text),
        run=files[0].run,
        appends=(),
        skipped=len(skipped),
        skipped_crc=crc32c(rows) if rows else None,
    )
