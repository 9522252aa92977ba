"""What a run tells: notes before shards are written, the dataset file of those that are there, and the result."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shardtool.dataset.dataset_file import DatasetFile, features_of
from shardtool.errors import Bug, CorruptShard, InvalidRequest, memory_for, printable
from shardtool.fingerprint import crc32c, show_fingerprint, sum_fingerprints
from shardtool.interop.indexes import cure, index_name, misreading
from shardtool.interop.readers import unopenable
from shardtool.publish.foreign_indexes import has_own_readme
from shardtool.publish.publisher import EndedAppend
from shardtool.publish.records import encode_skipped
from shardtool.request.results import AppendedPart, CreateResult, DryRun, PlannedShard, SplitResult
from shardtool.skipped import in_order
from shardtool.values import INLINE, URL, counted, local_name, output_text, show_size, to_bytes
from shardtool.verbs.create.append import joined
from shardtool.wording import either, flag, option

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardtool.dataset.dataset_file import ShardEntry
    from shardtool.entries.entries import Entries
    from shardtool.interop.indexes import Export
    from shardtool.pattern import ShardPattern
    from shardtool.publish.publisher import Destination, Publisher
    from shardtool.request.options import OutputOptions
    from shardtool.request.results import Changes, RunRecord
    from shardtool.skipped import Skipped
    from shardtool.verbs.create.run import Output, Run, Totals


# What the user should know of readers before shards are written: of their names, and of their folder.


_WORKERS = 8  # of a loader: a usual number
_LARGE = 2**28  # bytes of a dataset that is worth reading with several workers
_MAY_BE_EMPTY = ("txt", "text")  # a caption, or objects of an image that has none
_MANY, _FEW, _SMALL = 1000, 100, 2**22  # shards, and samples and bytes of one
_READERS = {"huggingface": "Hugging Face datasets"}


def loader_notes(outputs: Sequence[tuple[Destination, int]], sizes: Sequence[int]) -> Iterator[str]:
    """Yield which datasets have fewer shards than a loader usually has workers, where they could have more.

    Args:
        outputs: Where each dataset goes, and how many shards it gets.
        sizes: Bytes of its new shards, all together.
    """
    for (output, shards), size in zip(outputs, sizes, strict=True):
        total = output.first + shards
        if output.pattern.count is None and total < _WORKERS and size >= _LARGE:
            few = f"{output_text(output.pattern.dataset_file)}: {counted(total, 'shard')}"
            bound = option("max_size", f"{size // _WORKERS // 10**6}MB")
            yield f"{few}, and a loader of more workers leaves some without data: {bound} makes {_WORKERS} or more"


def empty_notes(entries: Entries) -> Iterator[str]:
    """Yield how many fields of samples have no bytes: they are packed, but an interrupted download leaves such."""
    rows, texts = entries.rows, [code for code, name in enumerate(entries.fields) if name in _MAY_BE_EMPTY]
    empty = ((rows.size == 0) & (rows.kind != INLINE) & (rows.kind != URL)).nonzero()[0]
    empty = empty[~np.isin(rows.code[empty], texts)]
    if len(empty):
        key, field = printable(entries.key(int(entries.owners(empty[:1])[0]))), entries.fields[rows.code[empty[0]]]
        where = f"the first as {printable(field)} of '{key}'"
        yield f"{counted(len(empty), 'file without a byte')} among the samples, {where}: interrupted copies leave such"


def label_notes(entries: Entries, options: OutputOptions) -> Iterator[str]:
    """Yield that the folders whose numbers are wanted are one, as where the source is a folder too high or too low."""
    for name, names in entries.values.classes.items() if getattr(options, "label_from_folder", False) else ():
        if len(names) == 1:
            found = f"all samples have one class of {name}, {printable(names[0])!r}"
            yield f"{found}: {flag('label_from_folder')} numbers the folders that lie in the source"


def small_notes(outputs: Sequence[Output], options: OutputOptions) -> Iterator[str]:
    """Yield which datasets have so many shards, of so few samples, that opening them takes longer than reading."""
    bounds = [name for name in ("max_count", "max_size", "shards") if options.is_given(name)]
    for output in outputs:
        plan = output.plan
        shards, samples, size = plan.shards, len(plan), int(plan.sizes.sum())
        if bounds and shards >= _MANY and samples < shards * _FEW and size < shards * _SMALL:
            each = f"{counted(samples // shards, 'sample')} ({show_size(size // shards)}) or so"
            cure = f"{'a smaller' if bounds == ['shards'] else 'a larger'} {option(bounds[0])} makes fewer"
            yield f"{counted(shards, 'shard')} of {each} each are slow to read: {cure}"


def seed_notes(options: OutputOptions) -> Iterator[str]:
    """Yield that a seed decides nothing."""
    if options.is_given("seed") and "seed" not in options.recorded():
        yield f"{option('seed')} has no effect without {flag('shuffle')} or {option('split')}"


def name_notes(outputs: Sequence[tuple[Destination, int]], readers: Sequence[str]) -> Iterator[str]:
    """Yield what readers make of names of shards that they cannot open, each reader once.

    Args:
        outputs: Where each dataset goes, and how many shards it gets.
        readers: Those that count.
    """
    said = set()
    for output, _ in outputs:
        name = output_text(output.pattern.shard(0))
        for reader, why in unopenable(name).items():
            if output.pattern.format == "tar" and reader in readers and reader not in said:
                said.add(reader)
                yield f"{_READERS.get(reader, reader)} cannot open shards called such as '{name}': it {why}"


def folder_notes(outputs: Sequence[tuple[Destination, int]], exports: Mapping[str, Export]) -> Iterator[str]:
    """Yield what `load_dataset` makes of each folder that is written to, where it does not take the shards.

    Args:
        outputs: As above.
        exports: The indexes of other tools that are written, too.
    """
    folders: dict[str, list[tuple[Destination, int]]] = {}
    for output, shards in () if any(export.readme for export in exports.values()) else outputs:
        folders.setdefault(output.folder.path, []).append((output, shards))
    notes = dict[str, None]()
    for group in folders.values():
        output = group[0][0]
        if output.pattern.format != "tar":
            wrong = f"reads no TFRecord, and takes {output.pattern.dataset_file} for the data"
            notes[f"Hugging Face load_dataset(folder) {wrong}: tar shards are what it reads"] = None
        elif not has_own_readme(output.folder) and (wrong := misreading(_names(group, exports))):
            notes[f"Hugging Face load_dataset(folder) {wrong}: {cure()}"] = None
    yield from notes


def _names(group: Sequence[tuple[Destination, int]], exports: Mapping[str, Export]) -> set[str]:
    """Return the names of the files that a folder gets, whatever else it has."""
    names: set[str] = set()
    for output, shards in group:
        pattern = output.pattern
        written = [pattern.shard(number) for number in range(output.first + shards)]
        indexes = (export for export in exports.values() if export.encode is not None)
        names |= {index_name(name, export) for export in indexes for name in written}
        names |= {*written, pattern.dataset_file}
    return {output_text(name) for name in names}


# The dataset file, which says what the packed shards of a plan hold together.


@memory_for("the dataset file")
def publish_dataset(totals: Totals, publisher: Publisher, made: RunRecord) -> DatasetFile:
    """Publish what was skipped and the dataset file; return what it says.

    Args:
        totals: What the shards hold.
        publisher: What published them.
        made: How the dataset was made, or what was appended.
    """
    output, pattern = publisher.destination, publisher.pattern
    last = output.first + len(totals.shards)
    if isinstance(output.append, EndedAppend):
        check_same(output.append, last, None, output)
        return output.append.old
    skipped = publisher.all_skipped(in_order(totals.skipped))
    dataset = dataset_of(totals, pattern, skipped, made)
    if output.old is not None:
        dataset = joined(output.old, dataset)
    publisher.check_there(totals.shards)
    publisher.finish([pattern.shard(shard) for shard in range(output.first, last)], dataset.encode(), skipped)
    return dataset


def dataset_of(
    totals: Totals, pattern: ShardPattern, skipped: Sequence[Skipped], made: RunRecord, shard_format: str = ""
) -> DatasetFile:
    """Return what the dataset file says of packed shards, and of all that is left out; the format is as names tell."""
    shard_format = shard_format or pattern.format
    values, is_tar = totals.values, shard_format == "tar"
    kinds = {**values.numbers, **values.lists}
    fields = {name: totals.fields[name] for name in sorted(totals.fields, key=to_bytes)}
    return DatasetFile(
        name=output_text(pattern.base),
        pattern=output_text(pattern.text),
        format=shard_format,
        shards=tuple(totals.shards),
        fields=fields,
        field_bytes=totals.field_bytes,
        skipped=len(skipped),
        schema=totals.schema,
        classes=values.classes,
        features={} if is_tar else features_of(totals.fields, kinds, totals.samples, values.lists),
        made=made,
        fingerprint=show_fingerprint(totals.digest),
        skipped_crc=crc32c(encode_skipped(skipped)) if skipped else None,
        types={name: values.types[name] for name in fields if name in values.types},
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


def check_content(run: Run) -> None:
    """See, before a dataset file is published, that all content is that of the source, if its digest is known.

    Raises:
        CorruptShard: It is not.
    """
    wanted = run.listed.digest
    if wanted is not None and not any(output.totals.skipped for output in run.outputs):
        found = sum(output.totals.digest for output in run.outputs)
        check_fingerprint(run.listed.name, show_fingerprint(found), show_fingerprint(wanted))


def check_fingerprint(source: str, found: str, wanted: str) -> None:
    """See that packed samples have the content fingerprint of their source.

    Raises:
        CorruptShard: They have another.
    """
    if found != wanted:
        problem, expected = f"samples with the fingerprint {found}", f"{wanted}, as their dataset files say"
        remedy = "No dataset file was written. `shardtool verify` shows what is wrong with the source."
        raise CorruptShard(source, problem, expected=expected, remedy=remedy)


# The result.


def result(run: Run, *, merged: bool = False) -> CreateResult:
    """Return what a run made; `merged`: whether it was a part, and the dataset file of all is there."""
    for output in run.untouched:
        if output.destination.old is None:
            raise Bug(output.destination.dataset_file, "nothing new for a dataset that is not there")
        output.dataset = output.destination.old
    written = [*run.untouched, *run.outputs]
    splits = {output.split: _of_split(output) for output in written}
    return CreateResult(
        dataset_file=run.dataset_file,
        shards=sum(one.shards for one in splits.values()),
        kept=sum(one.kept for one in splits.values()),
        samples=sum(one.samples for one in splits.values()),
        skipped=sum(one.skipped for one in splits.values()),
        size=sum(one.size for one in splits.values()),
        seconds=time.time() - run.begun,
        fingerprint=show_fingerprint(sum_fingerprints(output.dataset.fingerprint for output in written)),
        notes=tuple(run.notes.said),
        dropped=sum(one.dropped for one in splits.values()),
        features=written[0].dataset.feature_texts() if run.part is None else {},
        urls=next(iter(splits.values())).urls if run.dividing is None else "",
        splits={} if run.dividing is None else splits,
        appended=_appended(written),
        exported=tuple(run.exports),
        changes=_changes(run, written),
        part="" if run.part is None else str(run.part),
        merged=merged,
    )


def _of_split(output: Output) -> SplitResult:
    """Return what was made of one dataset."""
    shards, pattern = output.dataset.shards, output.pattern
    urls = pattern.closed(len(shards)) if pattern.format == "tar" and output.destination.own is None else ""
    shard = os.path.join(pattern.folder, pattern.shard(0))
    unread = "{" in shard or "webdataset" in unopenable(output_text(shard))
    return SplitResult(
        dataset_file=output.destination.dataset_file,
        shards=len(shards),
        kept=output.kept,
        samples=sum(shard.samples for shard in shards),
        skipped=output.dataset.skipped,
        dropped=output.dropped,
        size=sum(shard.size for shard in shards),
        fingerprint=output.dataset.fingerprint,
        urls="" if unread else output_text(urls),
    )


def _appended(written: Sequence[Output]) -> AppendedPart | None:
    """Return what a run has added to datasets that were there; None if there were none."""
    if not any(output.destination.appends for output in written):
        return None
    new = [shard for output in written for shard in output.dataset.shards[output.destination.first :]]
    return AppendedPart(len(new), sum(one.samples for one in new), sum(one.size for one in new))


def _changes(run: Run, written: Sequence[Output]) -> Changes | None:
    """Return what a run that resumed has changed, now that its shards are known."""
    kept, removed, total = sum(output.kept for output in written), 0, 0
    for output in written:
        there = {name for name in output.destination.existing if name.endswith(output.pattern.format)}
        removed += len(there.difference(local_name(shard.name) for shard in output.dataset.shards))
        total += len(output.dataset.shards)
    counts = {"shards_kept": kept, "shards_written": total - kept, "shards_removed": removed}
    return None if run.changes is None else replace(run.changes, **counts)


def dry_result(run: Run) -> DryRun:
    """Return what a run would write; a shard's name has its folder if splits lie in several."""
    folders = {output.split: os.path.abspath(output.pattern.folder or ".") for output in run.outputs}
    above, skipped, shards = os.path.commonpath([*folders.values()] or ["/"]), 0, []
    for output in run.outputs:
        plan, below = output.plan, os.path.relpath(folders[output.split], above)
        skipped += len(plan.skipped) if run.part is None or run.part.number == 1 else 0
        for shard in output.own_shards:
            first, last = plan.span(shard)
            keys = printable(plan.key_at(first)), printable(plan.key_at(last - 1))
            name = os.path.normpath(os.path.join(below, output.shard_name(shard)))
            shards.append(PlannedShard(name, last - first, int(plan.sizes[shard]), *keys))
    return DryRun(run.dataset_file, tuple(shards), skipped, tuple(run.notes.said), run.changes)
