"""What a run returns, made of the datasets that it wrote."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardtool.dataset.dataset_file import DatasetFile
from shardtool.dataset.feature import Feature, features_of
from shardtool.errors import Bug, CorruptShard, InvalidRequest, listing, memory_for, printable
from shardtool.fingerprint import crc32c, show_fingerprint, sum_fingerprints
from shardtool.publish.destination import EndedAppend
from shardtool.publish.records import encode_skipped
from shardtool.request.results import AppendedPart, CreateResult, DryRun, PlannedShard, SplitResult
from shardtool.values import counted, output_text, to_bytes
from shardtool.verbs.create.append import joined
from shardtool.wording import either, export_call, option

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardtool.dataset.dataset_file import ShardEntry
    from shardtool.entries.entries import FieldValues
    from shardtool.interop.readers import NameProblem
    from shardtool.publish.destination import Destination
    from shardtool.publish.publisher import Publisher
    from shardtool.request.results import Changes, Notes
    from shardtool.request.run_record import RunRecord
    from shardtool.skipped import Skipped
    from shardtool.source.base import Listing
    from shardtool.values import Number
    from shardtool.verbs.create.plans import Plans
    from shardtool.verbs.create.request import OutputDataset, Request
    from shardtool.verbs.create.samples import Samples


# What the packed shards of a plan hold together, and the dataset file that says so.


@dataclass(frozen=True, slots=True)
class PackedShards:
    """The shards of a run, all of them published.

    Attributes:
        values: What is known of the fields' values.
        shards: What the dataset file says of each.
        fields: How many samples have each field.
        field_bytes: Bytes of all payloads.
        schema: The columns of the sidecars, and their types.
        digest: The content fingerprint.
        skipped: What was left out, in the order of its list.
        kept: How many shards an earlier run had finished.
        dropped: How many samples the user's function dropped.
        misread: What readers would get wrong about the keys that it made.
    """

    values: FieldValues
    shards: tuple[ShardEntry, ...]
    fields: Mapping[str, int]
    field_bytes: int
    schema: Mapping[str, str]
    digest: int
    skipped: tuple[Skipped, ...]
    kept: int
    dropped: int
    misread: tuple[NameProblem, ...]

    def features(self) -> dict[str, Feature]:
        """Return the features of TFRecords."""
        samples, values = sum(shard.samples for shard in self.shards), self.values
        return features_of(self.fields, {**values.numbers, **values.lists}, samples, values.lists)

    def numbers(self) -> dict[str, Number]:
        """Return the fields of tar shards that are numbers as text, and their kinds."""
        numbers = self.values.numbers
        return {name: numbers[name] for name in sorted(numbers, key=to_bytes) if name in self.fields}


@memory_for("the dataset file")
def publish_dataset(packed: PackedShards, publisher: Publisher, made: RunRecord) -> DatasetFile:
    """Publish what was skipped and the dataset file; return what it says.

    Args:
        packed: The shards.
        publisher: What published them.
        made: How the dataset was made, or what was appended.
    """
    output, pattern = publisher.destination, publisher.pattern
    last = output.first + len(packed.shards)
    if isinstance(output.append, EndedAppend):
        check_same(output.append, last, None, output)
        return output.append.old
    skipped = publisher.all_skipped(packed.skipped)
    dataset = dataset_of(packed, output, skipped, made)
    if output.old is not None:
        dataset = joined(output.old, dataset)
    publisher.check_there(packed.shards)
    publisher.finish([pattern.shard(shard) for shard in range(output.first, last)], dataset.encode(), skipped)
    return dataset


def dataset_of(packed: PackedShards, output: Destination, skipped: Sequence[Skipped], made: RunRecord) -> DatasetFile:
    """Return what the dataset file says of packed shards, and of all that is left out."""
    pattern = output.pattern
    return DatasetFile(
        name=output_text(pattern.base),
        pattern=output_text(pattern.text),
        format=pattern.format,
        shards=packed.shards,
        fields={name: packed.fields[name] for name in sorted(packed.fields, key=to_bytes)},
        field_bytes=packed.field_bytes,
        skipped=len(skipped),
        schema=packed.schema,
        classes=packed.values.classes,
        features=packed.features() if pattern.format == "tfrecord" else {},
        made=made,
        fingerprint=show_fingerprint(packed.digest),
        skipped_crc=crc32c(encode_skipped(skipped)) if skipped else None,
        numbers=packed.numbers() if pattern.format == "tar" else {},
    )


def check_same(done: EndedAppend, number: int, shard: ShardEntry | None, output: Destination) -> None:
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
        remedy = either(
            f"Give the new samples other keys, with {option('if_exists', 'append')}.",
            "Give the new samples other keys, and leave --resume out.",
        )
        raise InvalidRequest(output.pattern.text, found, remedy=remedy)


@dataclass(frozen=True, slots=True)
class WrittenDataset:
    """A dataset that a run wrote.

    Attributes:
        target: Where it was written.
        dataset: What its dataset file says.
        kept: How many shards an earlier run had finished.
        dropped: How many samples the user's function dropped.
    """

    target: OutputDataset
    dataset: DatasetFile
    kept: int
    dropped: int

    @property
    def split_result(self) -> SplitResult:
        """The dataset, as the result has it."""
        shards = self.dataset.shards
        return SplitResult(
            dataset_file=self.target.output.dataset_file,
            shards=len(shards),
            kept=self.kept,
            samples=sum(shard.samples for shard in shards),
            skipped=self.dataset.skipped,
            dropped=self.dropped,
            size=sum(shard.size for shard in shards),
            fingerprint=self.dataset.fingerprint,
            urls=self._urls,
        )

    @property
    def _urls(self) -> str:
        """What webdataset is given to read all shards; empty where it cannot open them."""
        from shardtool.interop.readers import unopenable

        pattern = self.target.output.pattern
        if self.target.output.own is not None:
            return ""
        urls = pattern.closed(len(self.dataset.shards)) if pattern.format == "tar" else ""
        shard = os.path.join(pattern.folder, pattern.shard(0))
        return "" if "{" in shard or "webdataset" in unopenable(output_text(shard)) else output_text(urls)


def unchanged(target: OutputDataset) -> WrittenDataset:
    """Return a dataset that was to be appended to, and that there was nothing new for."""
    old = target.output.old
    if old is None:
        raise Bug(target.output.dataset_file, "nothing new for a dataset that is not there")
    return WrittenDataset(target, old, 0, 0)


def check_content(listed: Listing, packed: Sequence[PackedShards]) -> None:
    """See, before a dataset file is published, that all content is that of the source, if its digest is known.

    Raises:
        CorruptShard: It is not.
    """
    found, wanted = sum(one.digest for one in packed), listed.digest
    if wanted is None or any(one.skipped for one in packed):
        return
    check_fingerprint(listed.name, show_fingerprint(found), show_fingerprint(wanted))


def check_fingerprint(source: str, found: str, wanted: str) -> None:
    """See that packed samples have the content fingerprint of their source.

    Raises:
        CorruptShard: They have another.
    """
    if found != wanted:
        problem, expected = f"samples with the fingerprint {found}", f"{wanted}, as their dataset files say"
        remedy = "No dataset file was written. `shardtool verify` shows what is wrong with the source."
        raise CorruptShard(source, problem, expected=expected, remedy=remedy)


def removal_notes(request: Request, publishers: Sequence[Publisher]) -> Iterator[str]:
    """Yield which indexes of other tools were removed, and are not made again by this run."""
    for publisher in publishers:
        removed = publisher.beside.removed
        gone = {name: form for name, form in removed.items() if form not in request.exports}
        if gone:
            what = f"{counted(len(gone), 'file')} of other tools' indexes removed, since their shards changed"
            again = export_call(publisher.destination.dataset_file, sorted({*gone.values()}), overwrite=True)
            yield f"{what} ({listing([*gone], 3)}): {again} makes them again"


def result(
    request: Request,
    written: Sequence[WrittenDataset],
    changes: Changes | None,
    notes: Notes,
    seconds: float,
    *,
    merged: bool = False,
) -> CreateResult:
    """Return what a run made; `merged`: whether it was a part, and the dataset file of all is there."""
    total = sum_fingerprints(one.dataset.fingerprint for one in written)
    splits = {one.target.split: one.split_result for one in written}
    return CreateResult(
        dataset_file=request.dataset_file,
        shards=sum(one.shards for one in splits.values()),
        kept=sum(one.kept for one in splits.values()),
        samples=sum(one.samples for one in splits.values()),
        skipped=sum(one.skipped for one in splits.values()),
        size=sum(one.size for one in splits.values()),
        seconds=seconds,
        fingerprint="" if total is None else show_fingerprint(total),
        notes=tuple(notes.said),
        dropped=sum(one.dropped for one in splits.values()),
        features=written[0].dataset.feature_texts() if request.part is None else {},
        urls=next(iter(splits.values())).urls if request.dividing is None else "",
        splits={} if request.dividing is None else splits,
        appended=_appended(written),
        exported=tuple(request.exports),
        changes=None if changes is None else _with_shards(changes, written),
        part="" if request.part is None else str(request.part),
        merged=merged,
    )


def _appended(written: Sequence[WrittenDataset]) -> AppendedPart | None:
    """Return what a run has added to datasets that were there; None if there were none."""
    if not any(one.target.output.appends for one in written):
        return None
    new = [shard for one in written for shard in one.dataset.shards[one.target.output.first :]]
    return AppendedPart(len(new), sum(one.samples for one in new), sum(one.size for one in new))


def _with_shards(changes: Changes, written: Sequence[WrittenDataset]) -> Changes:
    """Return what a run that resumed has changed, now that its shards are known."""
    kept, removed = sum(one.kept for one in written), 0
    for one in written:
        there = {name for name in one.target.output.existing if name.endswith(one.target.pattern.format)}
        removed += len(there.difference(os.fsdecode(to_bytes(shard.name)) for shard in one.dataset.shards))
    total = sum(len(one.dataset.shards) for one in written)
    return replace(changes, shards_kept=kept, shards_written=total - kept, shards_removed=removed)


def dry_result(request: Request, samples: Samples, plans: Plans, notes: Notes) -> DryRun:
    """Return what a run would write."""
    shards = []
    for target, plan in zip(plans.targets, plans.each, strict=True):
        own = target.output.own
        for shard in range(plan.shards) if own is None else own.part.shards(plan.shards):
            first, last = plan.span(shard)
            keys = printable(plan.key_at(first)), printable(plan.key_at(last - 1))
            name = _shown(samples.targets, target, shard)
            shards.append(PlannedShard(name, last - first, int(plan.sizes[shard]), *keys))
    skipped = sum(len(plan.skipped) for plan in plans.each) if request.part is None or request.part.number == 1 else 0
    return DryRun(request.dataset_file, tuple(shards), skipped, tuple(notes.said), plans.changes)


def _shown(targets: Sequence[OutputDataset], target: OutputDataset, shard: int) -> str:
    """Return a planned shard's name, with its folder if splits lie in several."""
    folders = [os.path.abspath(one.pattern.folder or ".") for one in targets]
    name = target.output.pattern_left.shard(shard)
    if len(set(folders)) == 1:
        return name
    folder = os.path.abspath(target.pattern.folder or ".")
    return os.path.join(os.path.relpath(folder, os.path.commonpath(folders)), name)
