"""Resolve keys that several samples have: refuse them, rename samples, or keep one sample of each key.

Samples of a dataset that is appended to never change. They are not among the entries; `taken` lists their keys.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from shardtool.entries.strings import PackedStrings
from shardtool.errors import InvalidRequest, format_list, printable
from shardtool.messages import option_text
from shardtool.names import (
    to_text,
)
from shardtool.skipped import Skipped
from shardtool.table.keys import find_repeated
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.entries.sample_table import SampleTable
    from shardtool.values import OnDuplicate


_MAX_LISTED = 3  # keys, shards or new names in a message


_APPENDED_TO = "the dataset appended to"


_INTERLEAVED_ADVICE = (
    "It looks like a plain tar in which the fields of a sample lie apart: unpack it, and use `create`."
)


class _KeyGroup(NamedTuple):
    """Samples that share a key.

    Attributes:
        key: The key.
        samples: Their places, ascending.
        taken: Whether the dataset appended to has it too.
    """

    key: bytes
    samples: list[int]
    taken: bool


def resolve_duplicate_keys(
    entries: SampleTable,
    rule: OnDuplicate,
    shards: Sequence[str],
    taken: PackedStrings | None = None,
    *,
    where: str = "the datasets",
) -> tuple[SampleTable, tuple[Skipped, ...], str]:
    """Return the samples with a key of its own for each, what is left out, and a note of new names.

    Args:
        entries: The samples.
        rule: `rename` makes of the second `a` an `a-2`, of the third an `a-3`, and so on, passing over names that any
            sample has; `first` and `last` keep one of them.
        shards: The names of the shards that they lie in, as `known_spans.file` counts them.
        taken: The keys of the dataset appended to.
        where: What the source is called.

    Raises:
        InvalidRequest: `error`, and a key that several samples have; or `last` for a dataset appended to.
    """
    if rule == "last" and taken is not None:
        problem = "last, for a dataset that is appended to"
        remedy = "Its shards are not written again: make a new dataset of both sources instead."
        raise InvalidRequest(option_text("on_duplicate"), problem, expected="error, rename or first", remedy=remedy)
    groups = _find_key_groups(entries.keys, taken)
    if not groups:
        return entries, (), ""
    if rule == "error":
        raise _duplicate_keys_error(entries, groups, shards, where)
    if rule == "rename":
        found, note = _rename_duplicates(entries, groups, taken)
        return found, (), note
    return *_keep_one_each(entries, groups, shards, keep=0 if rule == "first" else -1), ""


def _find_key_groups(keys: PackedStrings, taken: PackedStrings | None) -> list[_KeyGroup]:
    """Return the samples that share a key with others, in the order of the first of each."""
    before, found = 0, []
    if taken is not None:
        before, keys = len(taken), PackedStrings.parse(taken.span(0, len(taken)) + keys.span(0, len(keys)))
    for key, places in find_repeated(keys).items():
        samples = [place - before for place in places if place >= before]
        if samples:
            found.append(_KeyGroup(key, samples, taken=len(samples) < len(places)))
    return sorted(found, key=lambda group: group.samples[0])


def _duplicate_keys_error(
    entries: SampleTable, groups: list[_KeyGroup], shards: Sequence[str], where: str
) -> InvalidRequest:
    """Return the error that names keys, and the shards of their samples."""
    named, torn = [], True
    for group in groups[:_MAX_LISTED]:
        files = {_shard_number(entries, one): None for one in group.samples}  # of two sources, two may have one name
        torn &= len(files) == 1 and not group.taken and _are_disjoint(entries, group.samples)
        times = f"{len(group.samples)} times in " if len(files) == 1 and len(group.samples) > 1 else ""
        held = format_list([shards[file] for file in files], _MAX_LISTED) + (
            f", and {_APPENDED_TO}" if group.taken else ""
        )
        named.append(f"'{printable(group.key)}' ({times}{held})")
    found = f"{pluralize(len(groups), 'key')} more than once: {format_list(named, _MAX_LISTED, total=len(groups))}"
    if torn:
        remedy = _INTERLEAVED_ADVICE
    elif any(group.taken for group in groups):
        remedy = f"{option_text('on_duplicate', 'rename')} gives the new samples other keys, first leaves them out."
    else:
        remedy = (
            f"{option_text('on_duplicate', 'rename')} gives the later ones other keys, first or last keeps one of each."
        )
    return InvalidRequest(where, found, expected="a key of its own for each sample", remedy=remedy)


def _shard_number(entries: SampleTable, sample: int) -> int:
    return int(entries.known_spans.file[sample])


def _are_disjoint(entries: SampleTable, samples: list[int]) -> bool:
    """Tell whether no two samples have a field in common, as if they were parts of one."""
    codes = entries.rows.code[entries.rows_of(np.array(samples, np.int64))]
    return len(np.unique(codes)) == len(codes)


def _rename_duplicates(
    entries: SampleTable, groups: list[_KeyGroup], taken: PackedStrings | None
) -> tuple[SampleTable, str]:
    bases = {group.key for group in groups}
    known = {name for keys in (entries.keys, taken) if keys is not None for name in _taken_names(keys, bases)}
    names: dict[int, bytes] = {}
    for group in groups:  # two never get one name: what stands before the last dash differs
        number = 2
        for sample in group.samples if group.taken else group.samples[1:]:
            while (name := b"%b-%d" % (group.key, number)) in known:
                number += 1
            names[sample] = name
            number += 1
    some = [
        f"'{printable(entries.keys[sample])}' -> '{printable(names[sample])}'" for sample in sorted(names)[:_MAX_LISTED]
    ]
    note = f"{pluralize(len(names), 'sample')} renamed: {format_list(some, _MAX_LISTED, total=len(names))}"
    # The new names stand behind the keys, and are taken in place of some of these.
    keys, place = entries.keys, np.arange(len(entries))
    place[[*names]] = len(keys) + np.arange(len(names))
    both = PackedStrings.parse(keys.span(0, len(keys)) + b"".join([name + b"\0" for name in names.values()]))
    return replace(entries, keys=both.take(place)), note


def _taken_names(keys: PackedStrings, bases: set[bytes]) -> set[bytes]:
    """Return the keys that are one of `bases`, a dash and more: those that a new name could be."""
    return {name for _, names in keys.chunks() for name in names if name.rpartition(b"-")[0] in bases}


def _keep_one_each(
    entries: SampleTable, groups: list[_KeyGroup], shards: Sequence[str], *, keep: int
) -> tuple[SampleTable, tuple[Skipped, ...]]:
    """Return the samples without those of each group but the one at `keep`, without any that is taken; and those."""
    messages: dict[int, str] = {}
    for group in groups:
        kept = None if group.taken else group.samples[keep]
        where = _APPENDED_TO if kept is None else printable(shards[_shard_number(entries, kept)])
        messages |= {one: f"another sample of that key is in {where}" for one in group.samples if one != kept}
    lost = sorted(messages)
    skipped = tuple(Skipped(to_text(entries.keys[one]), "", "duplicate", messages[one]) for one in lost)
    return entries.without(lost), skipped
