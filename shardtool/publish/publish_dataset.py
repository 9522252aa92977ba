"""Publish the dataset file of packed shards, after the last checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.errors import CorruptShard, InvalidRequest, reporting_memory_errors
from shardtool.messages import choose_text, option_text
from shardtool.publish.append_target import FinishedAppend
from shardtool.publish.join_datasets import join_datasets
from shardtool.publish.totals import build_dataset_file
from shardtool.skipped import sort_rows

if TYPE_CHECKING:
    from shardtool.dataset.dataset_file import DatasetFile, ShardEntry
    from shardtool.publish.destination import Destination
    from shardtool.publish.publisher import Publisher
    from shardtool.publish.totals import DatasetTotals
    from shardtool.request.run_record import RunRecord


@reporting_memory_errors("the dataset file")
def publish_dataset(totals: DatasetTotals, publisher: Publisher, run_record: RunRecord) -> DatasetFile:
    """Publish the list of skipped samples and the dataset file."""
    destination, pattern = publisher.destination, publisher.pattern
    last = destination.first + len(totals.shards)
    if isinstance(destination.append, FinishedAppend):
        check_same_append(destination.append, last, None, destination)
        return destination.append.old
    skipped = publisher.merge_skipped_rows(sort_rows(totals.skipped))
    dataset = build_dataset_file(totals, pattern, skipped, run_record)
    if destination.old is not None:
        dataset = join_datasets(destination.old, dataset)
    publisher.check_published_shards(totals.shards)
    publisher.finish([pattern.shard(shard) for shard in range(destination.first, last)], dataset.encode(), skipped)
    return dataset


def check_same_append(append: FinishedAppend, number: int, shard: ShardEntry | None, destination: Destination) -> None:
    """Refuse an append that the dataset already contains with other content."""
    if [*append.old.shards[number : number + 1]] != ([] if shard is None else [shard]):
        found = "the dataset already contains these keys with other content"
        remedy = choose_text(
            f"Rename the new samples and use {option_text('if_exists', 'append')}.",
            "Rename the new samples and run without --resume.",
        )
        raise InvalidRequest(destination.pattern.text, found, remedy=remedy)


def check_fingerprint(source: str, found: str, expected_fingerprint: str) -> None:
    """Check that samples have the content fingerprint of their source."""
    if found != expected_fingerprint:
        problem, expected = f"samples with fingerprint {found}", f"{expected_fingerprint}, as in the source dataset"
        remedy = "No dataset file was written. Run `shardtool verify` on the source."
        raise CorruptShard(source, problem, expected=expected, remedy=remedy)
