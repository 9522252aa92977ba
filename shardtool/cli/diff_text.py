"""Text results of `diff` and `inspect --duplicates`."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from shardtool.cli.text_layout import display_width, pad
from shardtool.errors import format_list, printable
from shardtool.units import format_size, pluralize

if TYPE_CHECKING:
    from shardtool.request.results import (
        DiffResult,
    )
    from shardtool.verbs.inspect.duplicates import DuplicateGroups


def duplicates_text(found: DuplicateGroups, *, whole: bool) -> str:
    """Return the groups of samples with the same content; `whole`: all groups."""
    lines = []
    for group in islice(found.groups, None if whole else _MAX_LISTED):
        splits = len({one.split for one in group} - {""}) > 1
        several = len({one.dataset for one in group}) > 1
        names = [f"{one.split or one.dataset}: {one.key}" if several else one.key for one in group]
        unlike = format_list(list(dict.fromkeys(name for one in group for name in one.differs)))
        marks = ["in several splits"] * splits + [f"different {unlike}"] * bool(unlike)
        lines.append("  ".join([" = ".join(map(printable, names)), *map(printable, marks)]))
    if len(found.groups) > _MAX_LISTED and not whole:
        lines.append(f"... and {len(found.groups) - _MAX_LISTED:,} more groups; use -v to print all")
    what = f"{printable(found.dataset)}: {pluralize(found.samples, 'sample')}"
    if not found.groups:
        same = f", no duplicates ({', '.join(map(printable, found.fields))} compared)" if found.samples else ""
        return f"{what}{same}"
    groups = f"{pluralize(len(found.groups), 'group')} with the same {format_list([*map(printable, found.fields)])}"
    facts = [f"{found.leaks:,} in several splits"] * bool(found.leaks)
    facts += [f"{found.unlike:,} with different labels or fields"] * bool(found.unlike)
    total = f"{what}, {found.surplus:,} redundant ({format_size(found.size)}): {', '.join([groups, *facts])}"
    return "\n".join([*lines, "", total])


_MAX_LISTED = 10  # per kind of difference


def diff_text(result: DiffResult, *, whole: bool) -> str:
    """Return the differences of two datasets; `whole`: all of them."""
    from shardtool.request.results import METADATA_FIELD

    counts = [pluralize(count, "sample") for count in result.samples]
    sides = [printable(result.a), printable(result.b)]
    room = max(map(display_width, sides))
    lines = [f"{pad(name, room)}  {count}" for name, count in zip(sides, counts, strict=True)]
    content = len(result.changed) - result.metadata_only
    is_listed = content or any(one.change == "changed" for one in result.metadata.values())
    changed = (f"~ {printable(one.key)}  {', '.join(map(printable, one.fields))}" for one in result.changed)
    moved = (f"> {printable(one.key)}  {printable(one.before)} -> {printable(one.now)}" for one in result.moved)
    kinds = {
        "added": (result.added, (f"+ {printable(key)}" for key in result.added)),
        "removed": (result.removed, (f"- {printable(key)}" for key in result.removed)),
        "changed": (result.changed if is_listed else (), changed),
        "moved": (result.moved, moved),
    }
    for found, texts in kinds.values():
        if found:
            lines += ["", *(f"  {text}" for text in islice(texts, None if whole else _MAX_LISTED))]
        if len(found) > _MAX_LISTED and not whole:
            lines.append(f"  ... and {len(found) - _MAX_LISTED:,} more; use -v to print all")
    counts_of = {name: content if name == "changed" else len(found) for name, (found, _) in kinds.items()}
    totals = [f"{count:,} {name}" for name, count in counts_of.items() if count]
    totals += ["different classes"] * bool(result.classes)
    fields = ", ".join(
        f"{printable(name)} {count:,}" for name, count in result.fields.items() if name != METADATA_FIELD
    )
    columns = [
        f"column {printable(name)} {one.change} ({pluralize(one.samples, 'sample')})"
        for name, one in result.metadata.items()
    ]
    lines += [f"\nclass numbers of {printable(name)} have different names" for name in result.classes]
    total = ", ".join(totals) or ("content equal" if columns else "equal")
    if result.uncompared:
        total += f"; not compared: {printable(format_list([*result.uncompared]))}"
    total += f" ({fields})" if fields else ""
    total += f"; metadata: {format_list(columns)}" if columns else ""
    return "\n".join([*lines, "", f"{total}, {result.seconds:.1f} s"])
