"""Compare a planned run with an earlier run that wrote the same dataset.

If an unfinished run left no dataset file, its sidecars are compared.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shardtool.dataset import sidecar_read, sidecar_schema
from shardtool.dataset.dataset_file import DatasetFile, ShardEntry, read_valid_dataset
from shardtool.dataset.expand import sibling_files
from shardtool.dataset.unfinished import read_shard_facts
from shardtool.entries.strings import PackedStrings
from shardtool.errors import CorruptShard, OutputExists, format_list, printable
from shardtool.messages import call_text, choose_text, flag_text, option_text
from shardtool.names import to_local_name
from shardtool.pack.resume import ShardPlan
from shardtool.pattern import sidecar_name
from shardtool.plan.shard_task import build_shard_samples
from shardtool.request.results import ResumeChanges
from shardtool.request.run_record import RunRecord, describe_differences
from shardtool.table.keys import contains_hashes, hash_keys
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from fractions import Fraction

    from numpy.typing import NDArray

    from shardtool.pack.run import Listed, Output, Planned, PlannedOutput, Run
    from shardtool.publish.destination import Destination


_MAX_CHECKED_SHARDS = 8


def count_earlier_shards(destination: Destination) -> int | None:
    """Return the earlier run's number of shards, which a resumed run with `place='hash'` keeps if the samples fit.

    Return None if no run is resumed, or if the dataset file records another `place`. Without a dataset file, the first
    sidecar records the number.
    """
    if not destination.resumes or destination.appends:
        return None
    if (file := _read_dataset_file(destination)) is not None:
        first_run_shards = file.appends[0] if file.appends else len(file.shards)
        return first_run_shards if file.run.options.get("place") == "hash" else None
    facts = read_shard_facts(destination.folder.full_path(destination.pattern.shard(0)))
    return None if facts is None else facts.shards


def find_changes(planned: Planned) -> ResumeChanges | None:
    """Return how many samples the run adds and removes, or None if there are no existing shards."""
    earlier_shards = [
        (output.destination, *earlier)
        for output in planned.outputs
        for earlier in _list_earlier_shards(output.destination)
    ]
    if not earlier_shards:
        return None
    source_keys = hash_keys(planned.listed.entries.keys)
    orders = [output.plan.order for output in planned.outputs]
    new_keys = np.sort(np.concatenate([source_keys if order is None else source_keys[order] for order in orders]))
    total = removed = 0
    for destination, name, entry in earlier_shards:
        samples, keys = _read_packed_keys(planned.run, destination, name, entry)
        total, removed = total + samples, removed + int(np.count_nonzero(~contains_hashes(keys, new_keys)))
    removed = max(removed, total - len(new_keys))
    added = len(new_keys) - (total - removed)
    if planned.listed.transform is not None:
        kept_facts = [
            _read_facts_if_as_planned(planned.listed, output, shard)
            for output in planned.outputs
            for shard in output.own_shards
        ]
        added -= sum(len(facts.transform.skipped_rows) for facts in kept_facts if facts and facts.transform)
    return ResumeChanges(samples_added=added, samples_removed=removed, samples_before=total)


def add_planned_counts(changes: ResumeChanges, planned: Planned) -> ResumeChanges:
    """Add the planned numbers of kept, written and removed shards to `changes`."""
    shards = []
    for output in planned.outputs:
        kept = sum(_read_facts_if_as_planned(planned.listed, output, shard) is not None for shard in output.own_shards)
        shards.append((output.destination, kept, [*map(output.shard_name, output.own_shards)]))
    return add_shard_counts(changes, shards)


def add_shard_counts(changes: ResumeChanges, shards: Iterable[tuple[Destination, int, Sequence[str]]]) -> ResumeChanges:
    """Add the numbers of kept, written and removed shards to `changes`.

    For each dataset, `shards` contains the number of kept shards, and the names of all shards.
    """
    kept = written = removed = 0
    for destination, kept_here, names in shards:
        existing_shards = {name for name in destination.existing if name.endswith(destination.pattern.format)}
        kept += kept_here
        written += len(names) - kept_here
        removed += len(existing_shards.difference(names))
    return replace(changes, shards_kept=kept, shards_written=written, shards_removed=removed)


def other_plan_notes(planned: Planned) -> Iterator[str]:
    """Yield a note for each unfinished dataset that a run with other options or another source wrote."""
    for output in planned.outputs:
        existing = output.destination.existing
        if output.pattern.dataset_file in existing:
            continue
        shards = [shard for shard in output.own_shards[:_MAX_CHECKED_SHARDS] if output.shard_name(shard) in existing]
        if shards and not any(_read_facts_if_as_planned(planned.listed, output, shard) for shard in shards):
            cause = "written by an earlier run with other options or another source"
            yield f"{output.shard_name(shards[0])}: {cause}; the shards of this dataset are written again"


def lost_columns_notes(planned: Planned) -> Iterator[str]:
    """Yield a note for each dataset whose sidecars lose columns that `index` has added."""
    transform, metadata = planned.listed.transform, planned.listed.entries.metadata
    measured_columns = dict(transform.measured_columns if transform else ())
    names = {"source_paths", *(() if metadata is None else metadata.column_names), *measured_columns}
    for output in planned.outputs if not planned.run.map_returns_keys else ():
        file = _read_dataset_file(output.destination)
        lost = [name for name in (file.schema if file else ()) if name not in names and not name.startswith("__")]
        if lost:
            add = call_text("index", columns_from=("FIELD",))
            found = f"the sidecars lose the columns {format_list(lost)}"
            yield f"{output.pattern.dataset_file}: {found}; {add} adds columns of a field"


def find_refusal(planned: Planned, changes: ResumeChanges, max_removed: Fraction) -> OutputExists | None:
    """Return an error if resuming would replace an existing dataset by a different dataset, else None.

    `max_removed` is the largest share of the existing samples that the run may remove.
    """

    def refused(output: Output, found: str, expected: str) -> OutputExists:
        overwrite = choose_text(f"choose {flag_text('resume', 'overwrite')}", "add --overwrite")
        remedy = f"Nothing was changed. If the source is complete and you want this, {overwrite}."
        remedy = f"{flag_text('resume')} {add_planned_counts(changes, planned)}. {remedy}"
        return OutputExists(output.destination.dataset_file, found, expected=expected, remedy=remedy)

    for output in planned.outputs:
        if (file := _read_dataset_file(output.destination)) is None:
            continue
        if differences := _describe_differences(file.run, planned.listed.record(output)):
            return refused(output, differences, "the options of the first run")
        if renumbered := _describe_renumbering(file.classes, planned.listed.entries.values.classes):
            numbers = option_text("classes_from", output.destination.dataset_file)
            return refused(output, renumbered, f"the class numbers of the first run: {numbers}")
    first = planned.outputs[0]
    if empty_splits := find_empty_splits(planned.outputs):
        found = f"the source has no samples for existing splits: {', '.join(map(printable, empty_splits))}"
        return refused(first, found, "all splits of the first run")
    if changes.samples_removed <= max_removed * changes.samples_before:
        return None
    share = changes.samples_removed / changes.samples_before
    summary = f"{changes.samples_removed:,} of {pluralize(changes.samples_before, 'sample')} ({share:.0%})"
    expected = f"at most {float(100 * max_removed):.4g}% ({option_text('max_removed')})"
    return refused(first, f"{summary} would be removed, because the source no longer has them", expected)


def check_same_options(listed: Listed) -> None:
    """Raise an error if this update and the first run select samples with different options."""
    for output in listed.outputs:
        if (old := output.destination.old) is None:
            continue
        if differences := _describe_differences(old.run, listed.record(output), compare_shards=False):
            expected = "the options of the first run"
            append = f"{flag_text('append')} {option_text('on_duplicate', 'first')}"
            remedy = f"Nothing was changed. To add samples with other options, use {append}."
            raise OutputExists(output.destination.dataset_file, differences, expected=expected, remedy=remedy)


def find_empty_splits(outputs: Sequence[Output]) -> list[str]:
    """Return the existing splits that get no samples from this run."""
    splits = {output.split for output in outputs}
    for destination in (output.destination for output in outputs):
        if (file := _read_dataset_file(destination)) is not None:
            siblings = sibling_files(destination.dataset_file, file.run).values()
            return sorted({sibling.run.split for sibling in siblings} - splits)
    return []


def _describe_renumbering(old_classes: Mapping[str, list[str]], new_classes: Mapping[str, list[str]]) -> str:
    for field, names in old_classes.items():
        for number, (old_name, new_name) in enumerate(zip(names, new_classes.get(field, []), strict=False)):
            if old_name != new_name:
                return f"class {number} of {field} would be {printable(new_name)!r} instead of {printable(old_name)!r}"
    return ""


def _read_dataset_file(destination: Destination) -> DatasetFile | None:
    exists = destination.pattern.dataset_file in destination.existing
    return read_valid_dataset(destination.dataset_file) if exists else None


def _list_earlier_shards(destination: Destination) -> list[tuple[str, ShardEntry | None]]:
    if (file := _read_dataset_file(destination)) is not None:
        return [(to_local_name(entry.name), entry) for entry in file.shards]
    shards = [name for name in sorted(destination.existing) if name.endswith(destination.pattern.format)]
    return [(name, None) for name in shards if sidecar_name(name) in destination.existing]


def _read_packed_keys(
    run: Run, destination: Destination, name: str, entry: ShardEntry | None
) -> tuple[int, NDArray[np.uint64]]:
    sidecar, keys = sidecar_name(name), np.zeros(0, np.uint64)
    count = 0 if entry is None else entry.samples
    try:
        data = destination.folder.read(sidecar)
        if entry is not None:
            sidecar_read.check_listed_sidecar(data, sidecar, entry)
        if run.map_returns_keys:
            transform = sidecar_read.parse_facts(data, sidecar).transform
            return 0 if transform is None else transform.consumed, keys
        size = destination.existing[name].size if entry is None else entry.size
        keys = hash_keys(PackedStrings.of(sidecar_read.parse_sidecar(data, sidecar, size, metadata=False).all_keys()))
    except (OSError, CorruptShard):
        return 0 if run.map_returns_keys else count, keys
    return len(keys), keys


def _read_facts_if_as_planned(listed: Listed, output: PlannedOutput, shard: int) -> sidecar_schema.ShardFacts | None:
    name, destination = output.shard_name(shard), output.destination
    file_info = destination.existing.get(name)
    if file_info is None or (facts := read_shard_facts(destination.folder.full_path(name))) is None:
        return None
    planned = ShardPlan(listed, output.plan, shard, name, build_shard_samples(output.plan, shard))
    return facts if facts.size == file_info.size and facts.plan == planned.fingerprint() else None


def _describe_differences(old: RunRecord, new: RunRecord, *, compare_shards: bool = True) -> str:
    if old.verb not in ("create", "reshard"):
        return ""
    if old.verb != new.verb:
        return f"created with `{old.verb}`, not `{new.verb}`"
    old_options, new_options = (record.options if compare_shards else record.selecting_options for record in (old, new))
    return "; ".join(describe_differences(old_options, new_options))
