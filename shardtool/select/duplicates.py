"""Samples that share a key, where those of several sources come together: refused, renamed, or one of them kept.

Pure, without I/O. The samples of a dataset that is appended to are not in the entries: their keys are `taken`, and they
always stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from shardtool.errors import InvalidRequest, listing, printable
from shardtool.names import Names
from shardtool.skipped import Skipped
from shardtool.table.keys import repeated
from shardtool.values import counted, to_text
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.entries.entries import Entries
    from shardtool.values import OnDuplicate


_SHOWN = 3  # keys, shards or new names in a message
_APPENDED_TO = "the dataset appended to"
_TORN = "It looks like a plain tar in which the fields of a sample lie apart: unpack it, and use `create`."


@dataclass(frozen=True, slots=True)
class _Group:
    """Samples that share a key.

    Attributes:
        key: The key.
        samples: Their places, ascending.
        taken: Whether the dataset appended to has it too.
    """

    key: bytes
    samples: list[int]
    taken: bool


def resolve_duplicates(
    entries: Entries,
    rule: OnDuplicate,
    shards: Sequence[str],
    taken: Names | None = None,
    *,
    where: str = "the datasets",
) -> tuple[Entries, tuple[Skipped, ...], str]:
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
        raise InvalidRequest(option("on_duplicate"), problem, expected="error, rename or first", remedy=remedy)
    groups = _groups(entries.keys, taken)
    if not groups:
        return entries, (), ""
    if rule == "error":
        raise _refusal(entries, groups, shards, where)
    if rule == "rename":
        found, note = _with_new_names(entries, groups, taken)
        return found, (), note
    return *_with_one_each(entries, groups, shards, keep=0 if rule == "first" else -1), ""


def _groups(keys: Names, taken: Names | None) -> list[_Group]:
    """Return the samples that share a key with others, in the order of the first of each."""
    before = 0 if taken is None else len(taken)
    found = []
    for key, places in repeated(keys if taken is None else _joined(taken, keys)).items():
        samples = [place - before for place in places if place >= before]
        if samples:
            found.append(_Group(key, samples, taken=len(samples) < len(places)))
    return sorted(found, key=lambda group: group.samples[0])


def _joined(one: Names, two: Names) -> Names:
    return Names.parse(one.span(0, len(one)) + two.span(0, len(two)))


def _refusal(entries: Entries, groups: list[_Group], shards: Sequence[str], where: str) -> InvalidRequest:
    """Return the error that names keys, and the shards of their samples."""
    named, torn = [], True
    for group in groups[:_SHOWN]:
        files = {_file_of(entries, one): None for one in group.samples}  # of two sources, two may have one name
        torn &= len(files) == 1 and not group.taken and _are_disjoint(entries, group.samples)
        times = f"{len(group.samples)} times in " if len(files) == 1 and len(group.samples) > 1 else ""
        held = listing([shards[file] for file in files], _SHOWN) + (f", and {_APPENDED_TO}" if group.taken else "")
        named.append(f"'{printable(group.key)}' ({times}{held})")
    found = f"{counted(len(groups), 'key')} more than once: {listing(named, _SHOWN, total=len(groups))}"
    if torn:
        remedy = _TORN
    elif any(group.taken for group in groups):
        remedy = f"{option('on_duplicate', 'rename')} gives the new samples other keys, first leaves them out."
    else:
        remedy = f"{option('on_duplicate', 'rename')} gives the later ones other keys, first or last keeps one of each."
    return InvalidRequest(where, found, expected="a key of its own for each sample", remedy=remedy)


def _file_of(entries: Entries, sample: int) -> int:
    return int(entries.known_spans.file[sample])


def _are_disjoint(entries: Entries, samples: list[int]) -> bool:
    """Tell whether no two samples have a field in common, as if they were parts of one."""
    codes = entries.rows.code[entries.rows_of(np.array(samples, np.int64))]
    return len(np.unique(codes)) == len(codes)


def _with_new_names(entries: Entries, groups: list[_Group], taken: Names | None) -> tuple[Entries, str]:
    bases = {group.key for group in groups}
    known = {name for keys in (entries.keys, taken) if keys is not None for name in _numbered(keys, bases)}
    names: dict[int, bytes] = {}
    for group in groups:  # two never get one name: what stands before the last dash differs
        number = 2
        for sample in group.samples if group.taken else group.samples[1:]:
            while (name := b"%b-%d" % (group.key, number)) in known:
                number += 1
            names[sample] = name
            number += 1
    some = [f"'{printable(entries.keys[sample])}' -> '{printable(names[sample])}'" for sample in sorted(names)[:_SHOWN]]
    note = f"{counted(len(names), 'sample')} renamed: {listing(some, _SHOWN, total=len(names))}"
    return replace(entries, keys=_replaced(entries.keys, names)), note


def _numbered(keys: Names, bases: set[bytes]) -> set[bytes]:
    """Return the keys that are one of `bases`, a dash and more: those that a new name could be."""
    found: set[bytes] = set()
    for _, names in keys.chunks():
        found.update([name for name in names if name.rpartition(b"-")[0] in bases])
    return found


def _replaced(keys: Names, names: dict[int, bytes]) -> Names:
    """Return keys, some of them replaced."""
    places = np.array(sorted(names), np.int64)
    parts = []
    for first, texts in keys.chunks():
        low, high = np.searchsorted(places, (first, first + len(texts))).tolist()
        for place in places[low:high].tolist():
            texts[place - first] = names[place]
        parts += [b"\0".join(texts), b"\0"]
    return Names.parse(b"".join(parts))


def _with_one_each(
    entries: Entries, groups: list[_Group], shards: Sequence[str], *, keep: int
) -> tuple[Entries, tuple[Skipped, ...]]:
    """Return the samples without those of each group but the one at `keep`, without any that is taken; and those."""
    messages: dict[int, str] = {}
    for group in groups:
        kept = None if group.taken else group.samples[keep]
        where = _APPENDED_TO if kept is None else printable(shards[_file_of(entries, kept)])
        messages |= {one: f"another sample of that key is in {where}" for one in group.samples if one != kept}
    lost = sorted(messages)
    skipped = tuple(Skipped(to_text(entries.keys[one]), "", "duplicate", messages[one]) for one in lost)
    return entries.take(np.delete(np.arange(len(entries)), lost)), skipped
