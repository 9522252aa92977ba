"""Samples of datasets that hold the same: the twin of `inspect --duplicates`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shardtool.dataset.expand import expand_datasets
from shardtool.dataset.find import open_dataset
from shardtool.errors import explaining_missing_cwd, format_list, redact_secrets
from shardtool.execute import start_pool
from shardtool.names import to_output_name
from shardtool.request.observer import Observer
from shardtool.request.output_options import WorkerOptions
from shardtool.request.results import LazyList

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.source.base import Listing
    from shardtool.values import DatasetLike


class DuplicateSample(NamedTuple):
    """A sample that another one is the same as.

    Attributes:
        key: Its key.
        dataset: Its dataset.
        split: The split that this is; empty: none.
        shard: Its shard.
        differs: The labels and other fields in which it differs from the first one of its group.
    """

    key: str
    dataset: str
    split: str
    shard: str
    differs: tuple[str, ...] = ()


class DuplicateGroups(NamedTuple):
    """The groups of samples that hold the same.

    Attributes:
        dataset: What was looked at.
        samples: How many samples there are.
        fields: The fields that had to be the same.
        groups: Two samples or more each, in the order of their keys.
        surplus: How many samples there are beside the first one of each group.
        size: Bytes of what these hold.
        leaks: How many groups are in several splits.
        unlike: How many groups have labels or other fields that differ.
    """

    dataset: str
    samples: int
    fields: tuple[str, ...]
    groups: Sequence[tuple[DuplicateSample, ...]]
    surplus: int
    size: int
    leaks: int
    unlike: int

    def to_json(self) -> dict[str, object]:
        """Return it as data, the way `--json` prints it."""
        counts = {"groups": len(self.groups), "surplus": self.surplus, "leaks": self.leaks, "unlike": self.unlike}
        return {
            "dataset": self.dataset,
            "samples": self.samples,
            "fields": list(self.fields),
            "counts": counts,
            "size": self.size,
            "groups": [[{**one._asdict(), "differs": list(one.differs)} for one in group] for group in self.groups],
        }


@explaining_missing_cwd()
def inspect_duplicates(dataset: DatasetLike, *, observer: Observer | None = None) -> DuplicateGroups:
    """Return which samples of one or several datasets hold the same.

    Args:
        dataset: As `inspect` takes it.
        observer: Hears of progress.

    Raises:
        InvalidRequest: There is none.
        CorruptShard: A dataset file, a sidecar or a shard is damaged.
    """
    observer = observer or Observer()
    with start_pool(WorkerOptions()) as pool:  # forked before anything heavy is imported
        from shardtool.source.duplicates import find_duplicates
        from shardtool.source.shard_listing import list_datasets

        opened = [open_dataset(one) for one in expand_datasets(dataset)]
        alike = len({shard.format for one in opened for shard in one.shards}) == 1
        givens = [one.given for one in opened]
        listed = list_datasets(givens, pool, observer, to_format="tfrecord", as_stored=alike)
        for note in listed.notes:
            observer.note(note)
        twins = find_duplicates(listed.entries, None, pool, observer)
    groups, files = twins.groups, listed.entries.known_spans.file
    splits = [one.split for one, _ in listed.stored]

    def is_leak(group: tuple[int, ...]) -> bool:
        return len({splits[files[sample]] for sample in group} - {""}) > 1

    return DuplicateGroups(
        dataset=format_list([redact_secrets(to_output_name(one.where)) for one in opened], 3),
        samples=len(listed.entries),
        fields=twins.fields,
        groups=LazyList(len(groups), lambda at: tuple(_duplicate_of(listed, one, twins.differ) for one in groups[at])),
        surplus=sum(len(group) - 1 for group in groups),
        size=sum(twins.sizes[at] * (len(group) - 1) for at, group in enumerate(groups)),
        leaks=sum(map(is_leak, groups)),
        unlike=sum(any(one in twins.differ for one in group) for group in groups),
    )


def _duplicate_of(listed: Listing, sample: int, differ: dict[int, tuple[str, ...]]) -> DuplicateSample:
    from shardtool.dataset.scan import index_text

    entries = listed.entries
    dataset, shard = listed.stored[int(entries.known_spans.file[sample])]
    key, where = index_text(entries.keys[sample]), redact_secrets(to_output_name(dataset.where))
    return DuplicateSample(key, where, dataset.split, shard.name, differ.get(sample, ()))
