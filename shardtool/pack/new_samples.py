"""Choose the samples to pack. Exclude samples that earlier runs packed or skipped, or that `remove` deleted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shardtool.entries.strings import PackedStrings
from shardtool.errors import format_list, printable, reporting_memory_errors
from shardtool.messages import flag_text
from shardtool.names import to_bytes, to_local_name, to_text
from shardtool.pack import append, changes
from shardtool.pack.outputs import check_source_kept
from shardtool.pack.run import FinishedOutput, Listed, Output
from shardtool.plan.random_order import random_at
from shardtool.publish.listed_files import read_listed_sidecar
from shardtool.skipped import Skipped, drop_keys, failed_rows, hash_key
from shardtool.table.keys import find_positions
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shardtool.entries.sample_table import SampleTable


# A shard's mtime is one minute before the start of its run. Another minute allows for differences between clocks.
_MTIME_SLACK_NS = 120 * 10**9
_MAX_LISTED_KEYS = 3
_DATASET_STAYS = "the dataset keeps the old samples"


def _describe_samples(mask: NDArray[np.bool_], entries: SampleTable) -> str:
    numbers = np.flatnonzero(mask)
    keys = [printable(to_text(entries.keys[number])) for number in numbers[:_MAX_LISTED_KEYS].tolist()]
    return f"{pluralize(len(numbers), 'sample')} ({format_list(keys, _MAX_LISTED_KEYS, total=len(numbers))})"


def find_new_samples(listed: Listed) -> NDArray[np.bool_]:
    """Return a mask of the samples that no dataset contains or lists as skipped. Add notes about excluded samples."""
    entries, destinations = listed.entries, [output.destination for output in listed.outputs]
    codes_by_name = {name: code for code, name in enumerate(entries.fields)}
    inline_fields = [codes_by_name[name] for name in entries.values.inline]
    old_keys, old_hashes, old_times = [], [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for destination in destinations:
        for shard in destination.old.shards if destination.old else ():
            index = read_listed_sidecar(destination.folder, shard)
            name_codes = [codes_by_name.setdefault(name, len(codes_by_name)) for name in index.names]
            codes = np.array(name_codes, np.int64)[index.codes]
            old_keys.append(index.keys_with_nul())
            old_hashes.append(_hash_samples(codes, index.lengths, index.first_rows, inline_fields))
            file_info = destination.existing[to_local_name(shard.name)]
            old_times.append(np.full(len(index), file_info.mtime_ns + _MTIME_SLACK_NS, np.int64))
    positions = find_positions(PackedStrings.parse(b"".join(old_keys)), entries.keys)
    found_positions = np.flatnonzero(positions >= 0)
    in_dataset, is_skipped, is_changed, has_failed = np.zeros((4, len(entries)), np.bool_)
    source_numbers = positions[found_positions]
    in_dataset[source_numbers] = True
    if len(source_numbers):
        source_times = entries.rows.changed_ns if entries.is_remote else entries.rows.mtime_ns
        newest = np.maximum.reduceat(source_times, entries.first_rows[:-1])
        is_changed[source_numbers[newest[source_numbers] > np.concatenate(old_times)[found_positions]]] = True
        if listed.transform is None:
            source_hashes = _hash_samples(entries.rows.code, entries.rows.size, entries.first_rows, inline_fields)
            differs = source_hashes[source_numbers] != np.concatenate(old_hashes)[found_positions]
            is_changed[source_numbers[differs]] = True
    rows = [row for output in listed.outputs for row in _list_known_skipped(listed, output)]
    skipped_keys, failed_keys = {row.key for row in rows}, {row.key for row in failed_rows(rows)}
    for number in np.flatnonzero(~in_dataset).tolist() if skipped_keys else ():
        key = printable(to_text(entries.keys[number]))
        is_skipped[number], has_failed[number] = key in skipped_keys, key in failed_keys
    masks, missing = (in_dataset, is_skipped, is_changed, has_failed), len(positions) - len(found_positions)
    _note_other_samples(listed, masks, missing=missing)
    new: NDArray[np.bool_] = ~(in_dataset | is_skipped)
    return new


def _list_known_skipped(listed: Listed, output: Output) -> list[Skipped]:
    if (old_dataset := output.destination.old) is None:
        return []
    new_record, old_records = listed.record(output), (old_dataset.run, *old_dataset.run.appended)
    same_query = listed.run.updates or any(
        (record.source, record.selecting_options) == (new_record.source, new_record.selecting_options)
        for record in old_records
    )
    return [row for row in output.destination.load_skipped() if same_query or row.code != "not-chosen"]


def _note_other_samples(listed: Listed, masks: Sequence[NDArray[np.bool_]], *, missing: int) -> None:
    in_dataset, is_skipped, is_changed, has_failed = masks
    run, entries = listed.run, listed.entries
    if run.updates:
        if missing:
            run.notes.add(f"{pluralize(missing, 'sample')} no longer in the source; {_DATASET_STAYS}")
    elif not (in_dataset | is_skipped).all() and (count := int(in_dataset.sum())):
        run.notes.add(f"{pluralize(count, 'sample')} skipped: the dataset already has their keys")
    if has_failed.any():
        reason, advice = "as the dataset lists them as failed", f"once fixed, add them with {flag_text('append')}"
        run.notes.add(f"{_describe_samples(has_failed, entries)} skipped again, {reason}; {advice}")
    if is_changed.any():
        run.notes.add(f"{_describe_samples(is_changed, entries)} changed since they were packed; {_DATASET_STAYS}")


def _hash_samples(
    codes: NDArray[np.integer], sizes: NDArray[np.integer], first_rows: NDArray[np.integer], inline_fields: list[int]
) -> NDArray[np.uint64]:
    known_sizes = np.where(np.isin(codes, inline_fields), 0, sizes)
    rows = (codes.astype(np.uint64) << np.uint64(48)) ^ known_sizes.astype(np.uint64)
    # The sums may overflow, but their differences are still correct.
    cumulative_hashes = np.cumsum(np.concatenate((np.zeros(1, np.uint64), random_at(0, rows))))
    sample_hashes: NDArray[np.uint64] = np.diff(cumulative_hashes[first_rows])
    return sample_hashes


@reporting_memory_errors("planning the shards")
def choose_samples(listed: Listed) -> Listed:
    """Choose the samples to pack. Raise an error if the output would replace a source file."""
    check_source_kept(listed)
    listed = _skip_removed(listed)
    if not listed.appends:
        return listed
    if listed.run.updates:
        changes.check_same_options(listed)
    if listed.run.skips_existing or not len(listed.entries):
        listed = _skip_existing(listed)
    return append.prepare_append(listed)


def _skip_existing(listed: Listed) -> Listed:
    is_new = find_new_samples(listed)
    outputs, unchanged = list[Output](), list[FinishedOutput]()
    for output in listed.outputs:
        numbers = output.positions(listed.entries)
        new_numbers = numbers[is_new[numbers]]
        if len(new_numbers):
            outputs.append(replace(output, sample_numbers=new_numbers))
        elif (old := output.destination.old) is not None:
            unchanged.append(FinishedOutput(output.split, output.destination, old))
    listing = listed.listing if is_new.all() else replace(listed.listing, digest=None)
    return replace(listed, listing=listing, outputs=tuple(outputs), unchanged_outputs=tuple(unchanged))


def _skip_removed(listed: Listed) -> Listed:
    keys, notes, listing = listed.entries.keys, listed.run.notes, listed.listing
    outputs = list[Output]()
    for output in listed.outputs:
        outputs.append(output)
        if not (removed_hashes := output.destination.load_removed()):
            continue
        numbers = output.positions(listed.entries)
        was_removed = np.array([hash_key(keys[number]) in removed_hashes for number in numbers.tolist()], np.bool_)
        count = pluralize(int(was_removed.sum()), "sample")
        if listed.run.options.overwrite:
            if was_removed.any():
                notes.add(f"{count} deleted earlier with `remove` will be packed again")
            continue
        if was_removed.any():
            outputs[-1] = replace(output, sample_numbers=numbers[~was_removed])
            listing = replace(listing, digest=None)
            notes.add(f"{count} skipped, deleted earlier with `remove`")
        hidden_keys = {printable(keys[number]) for number in numbers[was_removed].tolist()}
        hidden_keys |= {printable(row.key) for row in listing.skipped if hash_key(to_bytes(row.key)) in removed_hashes}
        listing = replace(listing, skipped=tuple(drop_keys(listing.skipped, hidden_keys)))
    return replace(listed, listing=listing, outputs=tuple(outputs))
