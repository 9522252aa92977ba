"""Choose the samples of a source that a run packs: neither removed earlier, nor already in the dataset.

Samples that a dataset lists as skipped are not new: they would fail again, and be listed again, in every run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shardtool.entries.strings import PackedStrings
from shardtool.errors import (
    format_list,
    printable,
    reporting_memory_errors,
)
from shardtool.messages import option_text
from shardtool.names import to_bytes, to_local_name, to_text
from shardtool.plan.random_order import random_at
from shardtool.publish.dataset_keys import encode_shard_keys
from shardtool.publish.listed_files import read_listed_sidecar
from shardtool.skipped import Skipped, drop_keys, failed_rows, hash_key
from shardtool.table.keys import find_positions
from shardtool.units import pluralize
from shardtool.verbs.create import append, changes
from shardtool.verbs.create.outputs import check_source_kept
from shardtool.verbs.create.run import Run, RunOutput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shardtool.entries.sample_table import SampleTable
    from shardtool.skipped import Skipped
    from shardtool.verbs.create.run import Run, RunOutput
if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shardtool.entries.sample_table import SampleTable


_MTIME_SLACK_NS = 120 * 10**9  # a shard's time is a minute before its run began, and clocks may differ by another


_MAX_LISTED_KEYS = 3  # keys in a note


_DATASET_STAYS = "the dataset keeps what it has"


def _describe_samples(which: NDArray[np.bool_], entries: SampleTable) -> str:
    places = np.flatnonzero(which)
    keys = [printable(to_text(entries.keys[place])) for place in places[:_MAX_LISTED_KEYS].tolist()]
    return f"{pluralize(len(places), 'sample')} ({format_list(keys, _MAX_LISTED_KEYS, total=len(places))})"


def find_new_samples(run: Run) -> NDArray[np.bool_]:
    """Tell of each sample of a run whether it is new, compared with all that the datasets appended to hold.

    What the user should know of the others is noted: those whose files have other names, sizes or times than those
    that were packed stay as they are.

    Raises:
        CorruptShard: A sidecar, or the list of what was left out, is damaged.
    """
    entries, destinations = run.entries, [output.destination for output in run.outputs]
    numbers = {name: number for number, name in enumerate(entries.fields)}
    free = [numbers[name] for name in entries.values.inline]  # of any size: a number has other bytes in each format
    keys, marks, written = [], [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for destination in destinations:
        for shard in destination.old.shards if destination.old else ():
            index = read_listed_sidecar(destination.folder, shard)
            codes = np.array([numbers.setdefault(name, len(numbers)) for name in index.names], np.int64)[index.codes]
            keys.append(encode_shard_keys(index))
            marks.append(_hash_samples(codes, index.lengths, index.firsts, free))
            fact = destination.existing[to_local_name(shard.name)]
            written.append(np.full(len(index), fact.mtime_ns + _MTIME_SLACK_NS, np.int64))
    place = find_positions(PackedStrings.parse(b"".join(keys)), entries.keys)
    packed, (there, listed, changed, lost) = np.flatnonzero(place >= 0), np.zeros((4, len(entries)), np.bool_)
    mine = place[packed]
    there[mine] = True
    if len(mine):
        times = entries.rows.changed_ns if entries.is_remote else entries.rows.mtime_ns
        newest = np.maximum.reduceat(times, entries.first[:-1])
        changed[mine[newest[mine] > np.concatenate(written)[packed]]] = True
        if run.transform is None:  # else the sizes and fields in shards say nothing
            now = _hash_samples(entries.rows.code, entries.rows.size, entries.first, free)
            changed[mine[now[mine] != np.concatenate(marks)[packed]]] = True
    rows = [one for output in run.outputs for one in _list_known_skipped(run, output)]
    left_out, failed = {one.key for one in rows}, {one.key for one in failed_rows(rows)}
    for at in np.flatnonzero(~there).tolist() if left_out else ():
        key = printable(to_text(entries.keys[at]))
        listed[at], lost[at] = key in left_out, key in failed
    _note_other_samples(run, (there, listed, changed, lost), gone=len(place) - len(packed))
    new: NDArray[np.bool_] = ~(there | listed)
    return new


def _list_known_skipped(run: Run, output: RunOutput) -> list[Skipped]:
    """Return what a dataset lists as left out, without what another condition did not take: this one may."""
    if (old := output.destination.old) is None:
        return []
    now, runs = run.record(output), (old.made, *old.made.appended)
    judged = run.updates or any((one.source, one.choosing) == (now.source, now.choosing) for one in runs)
    return [one for one in output.destination.load_skipped() if judged or one.code != "not-chosen"]


def _note_other_samples(run: Run, which: Sequence[NDArray[np.bool_]], *, gone: int) -> None:
    """Note what becomes of samples that are not new; an update takes for granted that what is there stays.

    Args:
        run: The run.
        which: Which samples the datasets have, which they list as left out, which changed since they were packed, and
            which of those listed could not be packed.
        gone: How many samples of the datasets the source has no more.
    """
    entries, (there, listed, changed, lost) = run.entries, which
    if run.updates:
        if gone:
            run.notes.add(f"{pluralize(gone, 'sample')} not in the source any more; {_DATASET_STAYS}")
    elif not (there | listed).all() and (count := int(there.sum())):
        run.notes.add(f"{pluralize(count, 'sample')} left out: the dataset has their keys")
    if lost.any():
        once = f"once mended, {option_text('if_exists', 'append')} adds them alone"
        run.notes.add(f"{_describe_samples(lost, entries)} stay left out, as the dataset lists them: {once}")
    if changed.any():
        run.notes.add(
            f"{_describe_samples(changed, entries)} changed in files, sizes or times since they were packed; {_DATASET_STAYS}"
        )


def _hash_samples(
    codes: NDArray[np.integer], sizes: NDArray[np.integer], first: NDArray[np.integer], free: list[int]
) -> NDArray[np.uint64]:
    """Return a number for each sample that others have where they have other fields, or files of other sizes.

    Args:
        codes: The field of each row.
        sizes: Its bytes.
        first: Where the rows of each sample start, and where those of the last end.
        free: Fields whose sizes say nothing.
    """
    rows = (codes.astype(np.uint64) << np.uint64(48)) ^ np.where(np.isin(codes, free), 0, sizes).astype(np.uint64)
    total = np.cumsum(np.concatenate((np.zeros(1, np.uint64), random_at(0, rows))))  # of random numbers, modulo 2^64
    marks: NDArray[np.uint64] = np.diff(total[first])
    return marks


@reporting_memory_errors("planning the shards")
def choose_samples(run: Run) -> None:
    """Refuse samples whose files the output would replace, or that are in the datasets that are appended to.

    Where only new ones are wanted, these stay, for the datasets that get any. How far each append is, is found out.

    Raises:
        InvalidRequest: There are such samples.
        CorruptShard: What is appended to is damaged.
    """
    check_source_kept(run)
    _skip_removed(run)
    if not any(output.destination.appends for output in run.outputs):
        return
    if run.updates:
        changes.check_same_options(run)
    if run.takes_only_new:
        new = find_new_samples(run)
        run.listed = run.listed if new.all() else replace(run.listed, digest=None)  # that of all samples
        for output in run.outputs:
            which = get_sample_numbers(run, output)
            output.which = which[new[which]]
        for output in run.outputs:
            if (old := output.destination.old) is not None and not len(get_sample_numbers(run, output)):
                output.dataset = old
                run.untouched.append(output)
        run.outputs = [output for output in run.outputs if len(get_sample_numbers(run, output))]
    append.prepare_append(run)


def get_sample_numbers(run: Run, output: RunOutput) -> NDArray[np.int64]:
    """Return the places of an output's samples."""
    return np.arange(len(run.entries)) if output.which is None else output.which


def _skip_removed(run: Run) -> None:
    """Leave out samples that were removed from a dataset that goes on, and their names in what is said of others.

    A dataset that is replaced has them again.

    Raises:
        CorruptShard: The list of what was left out is damaged.
    """
    keys = run.entries.keys
    for output in run.outputs:
        gone = output.destination.removed()
        which = get_sample_numbers(run, output) if gone else np.zeros(0, np.int64)
        again = np.array([hash_key(keys[at]) in gone for at in which.tolist()], np.bool_)
        what, replaced = pluralize(int(again.sum()), "sample"), "overwrite" in output.destination.if_exists
        if replaced and again.any():
            run.notes.add(f"{what} that `remove` had taken out of the dataset will be in it again")
        elif again.any():
            output.which, run.listed = which[~again], replace(run.listed, digest=None)
            run.notes.add(f"{what} left out, which `remove` took out of the dataset")
        if gone and not replaced:
            hidden = {printable(keys[at]) for at in which[again].tolist()}
            hidden |= {printable(one.key) for one in run.listed.skipped if hash_key(to_bytes(one.key)) in gone}
            run.listed = replace(run.listed, skipped=tuple(drop_keys(run.listed.skipped, hidden)))
