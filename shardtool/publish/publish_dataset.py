"""Publish the dataset file of packed shards, after the last checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.errors import (
    CorruptShard,
    InvalidRequest,
    reporting_memory_errors,
)
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
def publish_dataset(totals: DatasetTotals, publisher: Publisher, made: RunRecord) -> DatasetFile:
    """Publish what was skipped and the dataset file; return what it says.

    Args:
        totals: What the shards hold.
        publisher: What published them.
        made: How the dataset was made, or what was appended.
    """
    output, pattern = publisher.destination, publisher.pattern
    last = output.first + len(totals.shards)
    if isinstance(output.append, FinishedAppend):
        check_same_append(output.append, last, None, output)
        return output.append.old
    skipped = publisher.all_skipped(sort_rows(totals.skipped))
    dataset = build_dataset_file(totals, pattern, skipped, made)
    if output.old is not None:
        dataset = join_datasets(output.old, dataset)
    publisher.check_there(totals.shards)
    publisher.finish([pattern.shard(shard) for shard in range(output.first, last)], dataset.encode(), skipped)
    return dataset


def check_same_append(done: FinishedAppend, number: int, shard: ShardEntry | None, output: Destination) -> None:
    """Refuse an append that the dataset has with other content.

    Args:
        done: The append, as the dataset has it.
        number: The number of a shard.
        shard: What this run says of it; None if there is none of that number.
        output: The dataset.

    Raises:
        InvalidRequest: The dataset says something else.
    """
    if [*done.old.shards[number : number + 1]] != ([] if shard is None else [shard]):
        found = "the dataset has these samples already, with other content"
        remedy = choose_text(
            f"Give the new samples other keys, with {option_text('if_exists', 'append')}.",
            "Give the new samples other keys, and leave --resume out.",
        )
        raise InvalidRequest(output.pattern.text, found, remedy=remedy)


def check_fingerprint(source: str, found: str, wanted: str) -> None:
    """See that packed samples have the content fingerprint of their source.

    Raises:
        CorruptShard: They have another.
    """
    if found != wanted:
        problem, expected = f"samples with the fingerprint {found}", f"{wanted}, as their dataset files say"
        remedy = "No dataset file was written. `shardtool verify` shows what is wrong with the source."
        raise CorruptShard(source, problem, expected=expected, remedy=remedy)
