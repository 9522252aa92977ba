"""Handle samples with the same key: raise an error, rename the later samples, or keep one sample per key."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardtool.entries.strings import PackedStrings
from shardtool.errors import InvalidRequest, format_list, printable
from shardtool.messages import option_text
from shardtool.names import to_text
from shardtool.skipped import Skipped
from shardtool.table.keys import find_repeated
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.entries.sample_table import SampleTable
    from shardtool.values import OnDuplicate


_MAX_LISTED = 3
_EXISTING_DATASET = "the existing dataset"
_INTERLEAVED_ADVICE = "The fields of a sample are not adjacent, as in a tar that is not a shard: pack it with `create`."


class _KeyGroup(NamedTuple):
    key: bytes
    samples: list[int]
    in_existing: bool


def resolve_duplicate_keys(
    entries: SampleTable,
    rule: OnDuplicate,
    shards: Sequence[str],
    existing_keys: PackedStrings | None = None,
    *,
    where: str = "the datasets",
) -> tuple[SampleTable, tuple[Skipped, ...], str]:
    """Make the keys of samples unique. Return the samples, the skipped samples, and a note about renamed samples.

    Args:
        rule: With `rename`, the second sample with the key `a` gets the first unused key of `a-2`, `a-3` and so on.
            `last` cannot be combined with `existing_keys`.
        shards: The displayed name of each of `entries.known_spans.files`.
        existing_keys: Keys of the dataset to which the samples are appended. These keys never change.
    """
    if rule == "last" and existing_keys is not None:
        problem = "last, but samples are appended to an existing dataset"
        remedy = "Appending cannot change existing shards: create a new dataset from both sources instead."
        raise InvalidRequest(option_text("on_duplicate"), problem, expected="error, rename or first", remedy=remedy)
    if not (groups := _find_key_groups(entries.keys, existing_keys)):
        return entries, (), ""
    if rule == "error":
        raise _duplicate_keys_error(entries, groups, shards, where)
    if rule == "rename":
        renamed, note = _rename_duplicates(entries, groups, existing_keys)
        return renamed, (), note
    return *_keep_one_each(entries, groups, shards, keep=0 if rule == "first" else -1), ""


def _find_key_groups(keys: PackedStrings, existing_keys: PackedStrings | None) -> list[_KeyGroup]:
    groups, existing_count = [], len(existing_keys or ())
    if existing_keys is not None:
        keys = PackedStrings.parse(existing_keys.span(0, existing_count) + keys.span(0, len(keys)))
    for key, positions in find_repeated(keys).items():
        if samples := [position - existing_count for position in positions if position >= existing_count]:
            groups.append(_KeyGroup(key, samples, in_existing=len(samples) < len(positions)))
    return sorted(groups, key=lambda group: group.samples[0])


def _duplicate_keys_error(
    entries: SampleTable, groups: list[_KeyGroup], shards: Sequence[str], where: str
) -> InvalidRequest:
    named, interleaved = [], True
    for group in groups[:_MAX_LISTED]:
        files = {_shard_number(entries, sample): None for sample in group.samples}
        # probably fields of one sample
        interleaved &= len(files) == 1 and not group.in_existing and _have_disjoint_fields(entries, group.samples)
        times = f"{len(group.samples)} times in " if len(files) == 1 and len(group.samples) > 1 else ""
        appended_to = f", and {_EXISTING_DATASET}" if group.in_existing else ""
        shard_names = format_list([shards[file] for file in files], _MAX_LISTED) + appended_to
        named.append(f"'{printable(group.key)}' ({times}{shard_names})")
    found = f"{pluralize(len(groups), 'key')} more than once: {format_list(named, _MAX_LISTED, total=len(groups))}"
    rename, first = (option_text("on_duplicate", rule) for rule in ("rename", "first"))
    if interleaved:
        remedy = _INTERLEAVED_ADVICE
    elif any(group.in_existing for group in groups):
        remedy = f"Rename the new samples with {rename}, or skip them with {first}."
    else:
        last = option_text("on_duplicate", "last")
        remedy = f"Rename the later samples with {rename}, or keep one per key with {first} or {last}."
    return InvalidRequest(where, found, expected="a unique key for each sample", remedy=remedy)


def _shard_number(entries: SampleTable, sample: int) -> int:
    return int(entries.known_spans.file[sample])


def _have_disjoint_fields(entries: SampleTable, samples: list[int]) -> bool:
    codes = entries.rows.code[entries.rows_of(np.array(samples, np.int64))]
    return len(np.unique(codes)) == len(codes)


def _rename_duplicates(
    entries: SampleTable, groups: list[_KeyGroup], existing_keys: PackedStrings | None
) -> tuple[SampleTable, str]:
    bases = {group.key for group in groups}
    tables = [keys for keys in (entries.keys, existing_keys) if keys is not None]
    old_names = (name for keys in tables for _, chunk in keys.chunks() for name in chunk)
    used_names = {name for name in old_names if name.rpartition(b"-")[0] in bases}
    names: dict[int, bytes] = {}
    # A new key is the group's key, `-` and a number, so `used_names` can omit keys of other groups.
    for group in groups:
        number = 2
        for sample in group.samples if group.in_existing else group.samples[1:]:
            while (name := b"%b-%d" % (group.key, number)) in used_names:
                number += 1
            names[sample] = name
            number += 1
    first = sorted(names)[:_MAX_LISTED]
    shown = [f"'{printable(entries.keys[sample])}' -> '{printable(names[sample])}'" for sample in first]
    note = f"{pluralize(len(names), 'sample')} renamed: {format_list(shown, _MAX_LISTED, total=len(names))}"
    keys, index = entries.keys, np.arange(len(entries))
    index[[*names]] = len(keys) + np.arange(len(names))
    all_names = PackedStrings.parse(keys.span(0, len(keys)) + b"".join([name + b"\0" for name in names.values()]))
    return replace(entries, keys=all_names.take(index)), note


def _keep_one_each(
    entries: SampleTable, groups: list[_KeyGroup], shards: Sequence[str], *, keep: int
) -> tuple[SampleTable, tuple[Skipped, ...]]:
    messages: dict[int, str] = {}
    for group in groups:
        kept = None if group.in_existing else group.samples[keep]
        where = _EXISTING_DATASET if kept is None else printable(shards[_shard_number(entries, kept)])
        others = [sample for sample in group.samples if sample != kept]
        messages |= dict.fromkeys(others, f"another sample with this key is in {where}")
    lost = sorted(messages)
    skipped = tuple(Skipped(to_text(entries.keys[sample]), "", "duplicate", messages[sample]) for sample in lost)
    return entries.without(lost), skipped
