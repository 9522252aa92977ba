"""Find samples with the same content in one or several datasets (`inspect --duplicates`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shardtool.dataset.expand import expand_datasets
from shardtool.dataset.find import open_dataset
from shardtool.errors import explaining_missing_cwd, format_list, redact_secrets
from shardtool.execute import start_pool
from shardtool.names import to_output_name
from shardtool.notebook import record_html
from shardtool.request.observer import Observer, default_observer
from shardtool.request.output_options import WorkerOptions
from shardtool.request.results import LazyList
from shardtool.storage.remote.store_options import with_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.source.base import Listing
    from shardtool.storage.remote.store_options import StorageOptions
    from shardtool.values import DatasetLike


class DuplicateSample(NamedTuple):
    """A sample of a duplicate group, and the fields that differ from the group's first sample."""

    key: str
    dataset: str
    split: str
    shard: str
    differs: tuple[str, ...] = ()


class DuplicateGroups(NamedTuple):
    """Groups of samples with the same content, sorted by the key of their first sample.

    Attributes:
        surplus: Number of samples in groups, except the first sample of each group.
        size: Total bytes of the `surplus` samples.
        leaks: Number of groups whose samples are in more than one split.
        unlike: Number of groups whose samples differ in labels or other fields.
    """

    dataset: str
    samples: int
    fields: tuple[str, ...]
    groups: Sequence[tuple[DuplicateSample, ...]]
    surplus: int
    size: int
    leaks: int
    unlike: int

    def _repr_html_(self) -> str:
        return record_html(self)

    def to_json(self) -> dict[str, object]:
        """Return the groups as `--json` prints them."""
        counts = {"groups": len(self.groups), "surplus": self.surplus, "leaks": self.leaks, "unlike": self.unlike}
        return {
            "dataset": self.dataset,
            "samples": self.samples,
            "fields": list(self.fields),
            "counts": counts,
            "size": self.size,
            "groups": [
                [{**sample._asdict(), "differs": list(sample.differs)} for sample in group] for group in self.groups
            ],
        }


@explaining_missing_cwd()
def find_duplicates(
    dataset: DatasetLike, *, observer: Observer | None = None, storage_options: StorageOptions | None = None
) -> DuplicateGroups:
    """Find samples with the same content, even if their keys, splits or datasets differ.

    Args:
        dataset: Datasets, in any form that `verify` accepts.
        storage_options: See `open`.

    Raises:
        InvalidRequest: A dataset does not exist.
        CorruptShard: A dataset is damaged.
    """
    observer = observer or default_observer()
    dataset = with_options(dataset, storage_options)
    with start_pool(WorkerOptions()) as pool:  # fork workers before heavy imports, while forking is fast
        from shardtool.source.duplicates import find_duplicates as group_by_content
        from shardtool.source.shard_listing import list_datasets

        datasets = [open_dataset(name) for name in expand_datasets(dataset)]
        one_format = len({shard.format for stored in datasets for shard in stored.shards}) == 1
        dataset_args = [stored.argument for stored in datasets]
        # compares numbers of different formats as strings
        listing = list_datasets(dataset_args, pool, observer, to_format="tfrecord", as_stored=one_format)
        for note in listing.notes:
            observer.note(note)
        duplicates = group_by_content(listing.entries, None, pool, observer)
    groups, shard_numbers = duplicates.groups, listing.entries.known_spans.file
    splits = [stored.split for stored, _ in listing.stored]

    def is_leak(group: tuple[int, ...]) -> bool:
        return len({splits[shard_numbers[sample]] for sample in group} - {""}) > 1

    return DuplicateGroups(
        dataset=format_list([redact_secrets(to_output_name(stored.where)) for stored in datasets], 3),
        samples=len(listing.entries),
        fields=duplicates.fields,
        groups=LazyList(
            len(groups), lambda index: tuple(_duplicate_of(listing, row, duplicates.differ) for row in groups[index])
        ),
        surplus=sum(len(group) - 1 for group in groups),
        size=sum(duplicates.sizes[index] * (len(group) - 1) for index, group in enumerate(groups)),
        leaks=sum(map(is_leak, groups)),
        unlike=sum(any(sample in duplicates.differ for sample in group) for group in groups),
    )


def _duplicate_of(listing: Listing, sample: int, differ: dict[int, tuple[str, ...]]) -> DuplicateSample:
    from shardtool.dataset.scan import decode_name

    entries = listing.entries
    dataset, shard = listing.stored[int(entries.known_spans.file[sample])]
    key, name = decode_name(entries.keys[sample]), redact_secrets(to_output_name(dataset.where))
    return DuplicateSample(key, name, dataset.split, shard.name, differ.get(sample, ()))
