"""Text results of `diff` and `inspect --duplicates`."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from shardtool.cli.text_layout import display_width, pad
from shardtool.errors import format_list, printable
from shardtool.units import format_size, pluralize

if TYPE_CHECKING:
    from shardtool.request.results import DiffResult
    from shardtool.verbs.inspect.duplicates import DuplicateGroups


def duplicates_text(duplicates: DuplicateGroups, *, whole: bool) -> str:
    """Return the groups of samples with the same content; `whole`: all groups."""
    lines = []
    for group in islice(duplicates.groups, None if whole else _MAX_LISTED):
        splits = len({sample.split for sample in group} - {""}) > 1
        several_datasets = len({sample.dataset for sample in group}) > 1
        names = [
            f"{sample.split or sample.dataset}: {sample.key}" if several_datasets else sample.key for sample in group
        ]
        differing = format_list(list(dict.fromkeys(name for sample in group for name in sample.differs)))
        marks = ["in several splits"] * splits + [f"different {differing}"] * bool(differing)
        lines.append("  ".join([" = ".join(map(printable, names)), *map(printable, marks)]))
    if len(duplicates.groups) > _MAX_LISTED and not whole:
        lines.append(f"... and {len(duplicates.groups) - _MAX_LISTED:,} more groups; use -v to print all")
    head = f"{printable(duplicates.dataset)}: {pluralize(duplicates.samples, 'sample')}"
    if not duplicates.groups:
        fields = ", ".join(map(printable, duplicates.fields))
        same = f", no duplicates ({fields} compared)" if duplicates.samples else ""
        return f"{head}{same}"
    fields = format_list([*map(printable, duplicates.fields)])
    groups = f"{pluralize(len(duplicates.groups), 'group')} with the same {fields}"
    notes = [f"{duplicates.leaks:,} in several splits"] * bool(duplicates.leaks)
    notes += [f"{duplicates.unlike:,} with different labels or fields"] * bool(duplicates.unlike)
    total = f"{head}, {duplicates.surplus:,} redundant ({format_size(duplicates.size)}): {', '.join([groups, *notes])}"
    return "\n".join([*lines, "", total])


_MAX_LISTED = 10  # maximum lines per kind of difference


def diff_text(result: DiffResult, *, whole: bool) -> str:
    """Return the differences of two datasets; `whole`: all of them."""
    from shardtool.request.results import METADATA_FIELD

    counts = [pluralize(count, "sample") for count in result.samples]
    sides = [printable(result.a), printable(result.b)]
    room = max(map(display_width, sides))
    lines = [f"{pad(name, room)}  {count}" for name, count in zip(sides, counts, strict=True)]
    content = len(result.changed) - result.metadata_only
    is_listed = content or any(column.change == "changed" for column in result.metadata.values())
    changed = (f"~ {printable(sample.key)}  {', '.join(map(printable, sample.fields))}" for sample in result.changed)
    moved = (
        f"> {printable(sample.key)}  {printable(sample.before)} -> {printable(sample.now)}" for sample in result.moved
    )
    kinds = {
        "added": (result.added, (f"+ {printable(key)}" for key in result.added)),
        "removed": (result.removed, (f"- {printable(key)}" for key in result.removed)),
        "changed": (result.changed if is_listed else (), changed),
        "moved": (result.moved, moved),
    }
    for items, texts in kinds.values():
        if items:
            lines += ["", *(f"  {text}" for text in islice(texts, None if whole else _MAX_LISTED))]
        if len(items) > _MAX_LISTED and not whole:
            lines.append(f"  ... and {len(items) - _MAX_LISTED:,} more; use -v to print all")
    counts_of = {name: content if name == "changed" else len(items) for name, (items, _) in kinds.items()}
    totals = [f"{count:,} {name}" for name, count in counts_of.items() if count]
    totals += ["different classes"] * bool(result.classes)
    fields = ", ".join(
        f"{printable(name)} {count:,}" for name, count in result.fields.items() if name != METADATA_FIELD
    )
    columns = [
        f"column {printable(name)} {column.change} ({pluralize(column.samples, 'sample')})"
        for name, column in result.metadata.items()
    ]
    lines += [f"\nclass numbers of {printable(name)} have different names" for name in result.classes]
    total = ", ".join(totals) or ("content equal" if columns else "equal")
    if result.uncompared:
        total += f"; not compared: {printable(format_list([*result.uncompared]))}"
    total += f" ({fields})" if fields else ""
    total += f"; metadata: {format_list(columns)}" if columns else ""
    return "\n".join([*lines, "", f"{total}, {result.seconds:.1f} s"])
