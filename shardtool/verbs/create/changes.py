"""Compare a planned run with the dataset or the shards of an earlier run: samples, shards, options and splits.

A finished run is described by its dataset file, an interrupted one by the sidecars of its finished shards. No shard
is read. Sidecars are read one at a time, and keys are compared by their hashes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shardtool.dataset import sidecar_read, sidecar_schema
from shardtool.dataset.dataset_file import read_valid_dataset
from shardtool.dataset.expand import splits_in
from shardtool.dataset.unfinished import read_shard_facts
from shardtool.entries.strings import PackedStrings
from shardtool.errors import CorruptShard, OutputExists, printable
from shardtool.messages import choose_text, option_text
from shardtool.names import to_local_name
from shardtool.pattern import sidecar_name
from shardtool.plan.shard_task import build_shard_samples
from shardtool.request.results import ResumeChanges
from shardtool.request.run_record import RunRecord, describe_differences
from shardtool.table.keys import contains_hashes, hash_keys
from shardtool.units import pluralize
from shardtool.verbs.create.resume import ShardPlan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from fractions import Fraction

    from numpy.typing import NDArray

    from shardtool.dataset.dataset_file import DatasetFile, ShardEntry
    from shardtool.publish.destination import Destination
    from shardtool.verbs.create.run import Run, RunOutput


_MAX_CHECKED_SHARDS = 8  # shards of an earlier run that show whether it had the same plan


def count_earlier_shards(output: Destination) -> int | None:
    """Return how many shards a run by hash that is resumed has made, or was to make; None where that is not known."""
    if not output.resumes or output.appends:
        return None
    if (file := _read_dataset_file(output)) is not None:
        by_hash = file.made.options.get("place") == "hash"
        return (file.appends[0] if file.appends else len(file.shards)) if by_hash else None
    fact = read_shard_facts(output.folder.full_path(output.pattern.shard(0)))
    return None if fact is None else fact.shards


def find_changes(run: Run) -> ResumeChanges | None:
    """Return which samples a run would add and remove; None where no earlier one has left anything.

    What a damaged or missing sidecar said is not known; then the number of samples gives a lower bound.
    """
    before = [
        (output.destination, *earlier) for output in run.outputs for earlier in _list_earlier_shards(output.destination)
    ]
    if not before:
        return None
    keys_of_source, orders = hash_keys(run.entries.keys), [output.plan.order for output in run.outputs]
    planned = np.sort(np.concatenate([keys_of_source if one is None else keys_of_source[one] for one in orders]))
    total = removed = 0
    for there, name, listed in before:
        samples, keys = _read_packed_keys(run, there, name, listed)
        total, removed = total + samples, removed + int(np.count_nonzero(~contains_hashes(keys, planned)))
    removed = max(removed, total - len(planned))
    added = len(planned) - (total - removed)
    if run.transform is not None:  # what was left out of a shard that stays is not tried again
        stay = [_read_planned_fact(run, output, shard) for output in run.outputs for shard in output.own_shards]
        added -= sum(len(fact.made.left_out) for fact in stay if fact and fact.made)
    return ResumeChanges(samples_added=added, samples_removed=removed, samples_before=total)


def add_planned_counts(changes: ResumeChanges, run: Run) -> ResumeChanges:
    """Return the same with what would become of shards, as far as sidecars show."""
    planned = []
    for output in run.outputs:
        as_planned = sum(_read_planned_fact(run, output, shard) is not None for shard in output.own_shards)
        planned.append((output, as_planned, [*map(output.shard_name, output.own_shards)]))
    return add_shard_counts(changes, planned)


def add_shard_counts(changes: ResumeChanges, shards: Iterable[tuple[RunOutput, int, Sequence[str]]]) -> ResumeChanges:
    """Return the same with what becomes of shards: of each dataset, how many are kept, and the names of all."""
    kept = written = removed = 0
    for output, stay, names in shards:
        there = {name for name in output.destination.existing if name.endswith(output.pattern.format)}
        kept, written, removed = kept + stay, written + len(names) - stay, removed + len(there.difference(names))
    return replace(changes, shards_kept=kept, shards_written=written, shards_removed=removed)


def other_plan_notes(run: Run) -> Iterator[str]:
    """Yield where an earlier run without an end was of another plan, as far as its first shards show."""
    for output in run.outputs:
        existing = output.destination.existing
        left = [shard for shard in output.own_shards[:_MAX_CHECKED_SHARDS] if output.shard_name(shard) in existing]
        ended = output.pattern.dataset_file in existing
        if left and not ended and not any(_read_planned_fact(run, output, shard) for shard in left):
            other = "left by an earlier run of other options, or of another source"
            yield f"{output.shard_name(left[0])}: {other}; what it has finished is written again"


def find_refusal(run: Run, changes: ResumeChanges, most: Fraction) -> OutputExists | None:
    """Return why a run would replace a dataset by another; None where it goes on with the one that is there.

    Args:
        run: The run.
        changes: Which samples it would add and remove.
        most: The share of samples that may go without being asked for.
    """

    def refused(output: RunOutput, found: str, expected: str) -> OutputExists:
        overwrite = choose_text(f"choose {option_text('if_exists', 'resume-overwrite')}", "add --overwrite")
        remedy = f"Nothing was touched. If the source is complete and this is what you want, {overwrite}."
        remedy = f"{option_text('if_exists', 'resume')} {add_planned_counts(changes, run)}. {remedy}"
        return OutputExists(output.destination.dataset_file, found, expected=expected, remedy=remedy)

    for output in run.outputs:
        file = _read_dataset_file(output.destination)
        if file is not None and (differing := _describe_differences(file.made, run.record(output))):
            return refused(output, differing, "the options of the first run")
        if file is not None and (renumbered := _describe_renumbering(file.classes, run.entries.values.classes)):
            numbers = option_text("classes_from", output.destination.dataset_file)
            return refused(output, renumbered, f"the numbers of the first run: {numbers}")
    first = run.outputs[0]
    if lost := find_lost_splits(run):
        found = f"the source has no sample of {', '.join(map(printable, lost))} any more, of which there are shards"
        return refused(first, found, "all splits of the first run")
    if changes.samples_removed <= most * changes.samples_before:
        return None
    share = changes.samples_removed / changes.samples_before
    gone = f"{changes.samples_removed:,} of {pluralize(changes.samples_before, 'sample')} ({share:.0%})"
    expected = f"at most {float(100 * most):.4g}% of them ({option_text('max_removed')})"
    return refused(first, f"{gone} would be removed, for the source has them no more", expected)


def check_same_options(run: Run) -> None:
    """Refuse an update of a dataset whose samples were chosen and named otherwise; bounds of new shards may differ.

    Raises:
        OutputExists: It is such.
    """
    for output in run.outputs:
        old, now = output.destination.old, run.record(output)
        if old is not None and (differing := _describe_differences(old.made, now, of_shards=False)):
            expected = "the options of the first run"
            append = f"{option_text('if_exists', 'append')} {option_text('on_duplicate', 'first')}"
            remedy = f"Nothing was touched. {append} adds samples that were chosen or made in another way."
            raise OutputExists(output.destination.dataset_file, differing, expected=expected, remedy=remedy)


def find_lost_splits(run: Run) -> list[str]:
    """Return the splits that the first run made in this folder, and that this one has no samples for."""
    there = run.outputs[0].destination
    file = _read_dataset_file(there)
    if file is None:
        return []
    known = {output.split for output in run.outputs}
    made = [other.made for other in splits_in(there.folder.path, file.made).values()]
    return [one.split for one in made if one.split not in known]


def _describe_renumbering(before: Mapping[str, list[str]], now: Mapping[str, list[str]]) -> str:
    """Return which class would get another number; empty: none, though there may be more of them."""
    for field, names in before.items():
        for number, (name, other) in enumerate(zip(names, now.get(field, []), strict=False)):
            if name != other:
                return f"class {number} of {field} would be {printable(other)!r}, and is {printable(name)!r}"
    return ""


def _read_dataset_file(output: Destination) -> DatasetFile | None:
    """Return what the dataset file said when the run looked; a damaged one is made again: then the sidecars say."""
    return read_valid_dataset(output.dataset_file) if output.pattern.dataset_file in output.existing else None


def _list_earlier_shards(output: Destination) -> list[tuple[str, ShardEntry | None]]:
    """Return the shards of the dataset that is there, or those that a run without an end has finished, unlisted."""
    if (file := _read_dataset_file(output)) is not None:
        return [(to_local_name(one.name), one) for one in file.shards]
    there = output.existing
    names = (name for name in sorted(there) if name.endswith(output.pattern.format) and sidecar_name(name) in there)
    return [(name, None) for name in names]


def _read_packed_keys(
    run: Run, output: Destination, name: str, listed: ShardEntry | None
) -> tuple[int, NDArray[np.uint64]]:
    """Return how many samples of the source went into a shard, as far as that is known, and hashes of their keys.

    Where the user's function makes keys, those in the shard say nothing.
    """
    index, keys, known = sidecar_name(name), np.zeros(0, np.uint64), 0 if listed is None else listed.samples
    try:
        data = output.folder.read(index)
        if listed is not None:
            sidecar_read.check_listed_sidecar(data, index, listed)
        if run.makes_keys:
            made = sidecar_read.parse_facts(data, index).made
            return 0 if made is None else made.consumed, keys
        size = output.existing[name].size if listed is None else listed.size
        keys = hash_keys(PackedStrings.of(sidecar_read.parse_sidecar(data, index, size, metadata=False).all_keys()))
    except (OSError, CorruptShard):
        return 0 if run.makes_keys else known, keys
    return len(keys), keys


def _read_planned_fact(run: Run, output: RunOutput, shard: int) -> sidecar_schema.ShardFacts | None:
    """Return the facts of a shard that is there and was planned just like this; its content may have changed since."""
    name, there = output.shard_name(shard), output.destination
    fact = there.existing.get(name)
    if fact is None or (said := read_shard_facts(there.folder.full_path(name))) is None:
        return None
    planned = ShardPlan(run, output.plan, shard, name, build_shard_samples(output.plan, shard))
    return said if said.size == fact.size and said.plan == planned.fingerprint() else None


def _describe_differences(before: RunRecord, now: RunRecord, *, of_shards: bool = True) -> str:
    """Return the options that two runs of `create` or `reshard` do not share; empty: they share all.

    What `index` has made says nothing of the run before it.

    Args:
        before: The first run.
        now: This one.
        of_shards: Whether those count that say how large shards are, and how samples stand in them.
    """
    if before.verb not in ("create", "reshard"):
        return ""
    if before.verb != now.verb:
        return f"`{before.verb}` then, `{now.verb}` now"
    then, asked = (one.options if of_shards else one.choosing for one in (before, now))
    return "; ".join(describe_differences(then, asked))
