"""Publish the dataset file of packed shards, after the last checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.dataset import skipped_list
from shardtool.errors import CorruptShard, InvalidRequest, reporting_memory_errors
from shardtool.messages import choose_text, flag_text, option_text
from shardtool.names import to_local_name
from shardtool.pattern import sidecar_name
from shardtool.publish import parts
from shardtool.publish.append_target import FinishedAppend, list_later_files
from shardtool.publish.join_datasets import join_datasets
from shardtool.publish.totals import build_dataset_file
from shardtool.skipped import Skipped, sort_rows
from shardtool.storage.folders import check_published

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.dataset.dataset_file import DatasetFile, ShardEntry
    from shardtool.publish.destination import Destination
    from shardtool.publish.publication import Publication
    from shardtool.publish.totals import DatasetTotals
    from shardtool.request.run_record import RunRecord


@reporting_memory_errors("the dataset file")
def publish_dataset(
    totals: DatasetTotals, publication: Publication, destination: Destination, run_record: RunRecord, part: str = ""
) -> DatasetFile:
    """Publish the list of skipped samples and the dataset file, or the record of the `part` of a writer."""
    pattern = destination.pattern
    last = destination.first + len(totals.shards)
    if isinstance(destination.append, FinishedAppend):
        check_same_append(destination.append, last, None, destination)
        destination.folder.remove(parts.list_run_files(destination.folder, pattern))
        return destination.append.old
    skipped = _merge_skipped_rows(destination, sort_rows(totals.skipped))
    dataset = build_dataset_file(totals, pattern, skipped, run_record)
    if destination.old is not None:
        dataset = join_datasets(destination.old, dataset)
    if destination.expected is not None:
        _check_recreated(dataset, destination.expected)
    sizes = {to_local_name(shard.name): shard.size for shard in totals.shards}
    sizes |= {to_local_name(shard.sidecar): shard.sidecar_size for shard in totals.shards}
    remedy = f"Run the same command again with {flag_text('resume')}."
    check_published(destination.folder, sizes, remedy)
    new_shards = [pattern.shard(shard) for shard in range(destination.first, last)]
    finish_dataset(publication, destination, new_shards, dataset, skipped, part)
    return dataset


def _check_recreated(dataset: DatasetFile, expected_dataset: DatasetFile) -> None:
    shards, expected_shards = (
        [(shard.name, shard.size, shard.crc) for shard in file.shards] for file in (dataset, expected_dataset)
    )
    if shards != expected_shards:
        found = "other content than the dataset was created from"
        raise InvalidRequest(option_text("source"), found, expected="the same content")


def finish_dataset(
    publication: Publication,
    destination: Destination,
    new_shards: Sequence[str],
    dataset: DatasetFile,
    skipped: Sequence[Skipped],
    part: str = "",
) -> None:
    """Finish a publication; delete journals, records of parts, and files that the dataset does not list."""
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
        leftovers=parts.list_run_files(destination.folder, pattern),
    )


def _merge_skipped_rows(destination: Destination, skipped: Sequence[Skipped]) -> list[Skipped]:
    old_dataset = destination.old
    if old_dataset is None:
        removed = destination.load_removed() if destination.if_exists == "resume" else {}
        return sort_rows([*skipped, *removed.values()]) if removed else [*skipped]
    return skipped_list.merge_new_rows(destination.load_skipped(), old_dataset, skipped, destination.skipped_file)


def check_same_append(append: FinishedAppend, number: int, shard: ShardEntry | None, destination: Destination) -> None:
    """Refuse an append that the dataset already contains with other content."""
    if [*append.old.shards[number : number + 1]] != ([] if shard is None else [shard]):
        found = "the dataset already contains these keys with other content"
        action = choose_text(f"use {flag_text('append')}", "run without --resume")
        remedy = f"Rename the new samples and {action}."
        raise InvalidRequest(destination.pattern.text, found, remedy=remedy)


def check_fingerprint(source: str, found: str, expected_fingerprint: str) -> None:
    """Check that samples have the content fingerprint of their source."""
    if found != expected_fingerprint:
        problem, expected = f"samples with fingerprint {found}", f"{expected_fingerprint}, as in the source dataset"
        remedy = "No dataset file was written. Run `shardtool verify` on the source."
        raise CorruptShard(source, problem, expected=expected, remedy=remedy)
