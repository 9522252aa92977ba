"""Class labels and splits from the names of the top folders."""

from __future__ import annotations

import re
from bisect import bisect_left
from shlex import quote
from typing import TYPE_CHECKING, cast

from shardtool.errors import InvalidRequest, format_list, printable
from shardtool.messages import choose_text, option_text
from shardtool.names import SPLIT_NAMES, to_bytes
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from shardtool.entries.classes import Classes
    from shardtool.entries.sample_table import SampleTable
    from shardtool.entries.strings import PackedStrings
    from shardtool.skipped import Skipped


_GLOB_CHARACTERS = re.compile(rb"[*?\[]")  # what a glob does not take for itself


def add_folder_labels(
    entries: SampleTable, known: Classes | None = None, *, depth: int = 0, skipped: Iterable[Skipped] = ()
) -> SampleTable:
    """Give each sample the field `cls`: the number of its top folder, in the order of the bytes of their names.

    This is torchvision's ImageFolder convention.

    Args:
        entries: The samples, sorted by their keys.
        known: The numbers that classes have already.
        depth: How many folders lie above those of the classes.
        skipped: What is not among the samples, but in folders of classes.

    Raises:
        InvalidRequest: Samples lie beside the class folders, or have a field `cls` already.
    """
    import numpy as np

    from shardtool.entries.arrow import number_array
    from shardtool.entries.classes import number_classes
    from shardtool.entries.strings import PackedStrings
    from shardtool.select.add_fields import NewField, add_fields

    if not len(entries):
        return entries
    if "cls" in entries.fields:
        raise InvalidRequest(option_text("label_from_folder"), "the samples have a field 'cls' already")
    expected = "paths such as SPLIT/CLASS/FILE" if depth else "paths such as CLASS/FILE"
    spans = _folder_spans(entries.keys, depth, ("label_from_folder", expected))
    # A class keeps its number where all of its samples are left out: it is there, and may be read tomorrow.
    paths = [to_bytes(one.path).split(b"/") for one in skipped if one.code != "no-field"]
    failed = {parts[depth] for parts in paths if len(parts) > depth + 1}
    number, names = number_classes({*(name for _, _, name in spans), *failed}, "cls", known)
    label = np.repeat(np.array([number[name] for _, _, name in spans]), [high - low for low, high, _ in spans])
    labels = PackedStrings.of(b"%d" % at for at in range(len(names))).take(label)
    every = np.ones(len(entries), bool)
    return add_fields(entries, [NewField("cls", labels, every, "int64", names, number_array(label))])


def top_folders(keys: PackedStrings, *, in_order: bool = True) -> pa.ChunkedArray:
    """Return the name of the top folder of each sample, which says its split.

    Args:
        keys: One per sample.
        in_order: Whether they are sorted.

    Raises:
        InvalidRequest: Samples lie beside these folders.
    """
    import numpy as np
    import pyarrow as pa

    from shardtool.entries.arrow import bytes_array, number_array

    if not in_order:
        order = keys.sorted_order()
        return top_folders(keys.take(order)).take(number_array(np.argsort(order)))
    spans = _folder_spans(keys, 0, ("split_from_folder", "paths such as SPLIT/FILE"))
    which = np.repeat(np.arange(len(spans)), [high - low for low, high, _ in spans])
    return pa.chunked_array([bytes_array([name for _, _, name in spans]).take(number_array(which))])


def split_folder_notes(entries: SampleTable) -> tuple[str, ...]:
    """Return what the user should know of classes that are called like splits."""
    classes = entries.values.classes.get("cls", [])
    found = [name for name in classes if name.lower() in SPLIT_NAMES]
    if len(found) < min(2, len(classes)) or not found:
        return ()
    shown = format_list(found)
    label, split = option_text("label_from_folder"), option_text("split_from_folder")
    return (f"{label} takes {shown} for classes: {split} takes them for splits, and labels below",)


def _folder_spans(keys: PackedStrings, depth: int, asked: tuple[str, str]) -> list[tuple[int, int, bytes]]:
    """Return where the samples of each folder start and end, and its name, `depth` folders below the top.

    Keys are sorted, so this is a few bisections.

    Args:
        keys: One per sample.
        depth: How many folders lie above.
        asked: The option that wants to know, and what it expects.

    Raises:
        InvalidRequest: Samples lie beside these folders.
    """
    spans, beside = [(0, len(keys), b"")], list[str]()
    for _ in range(depth + 1):
        found = []
        for low, high, above in spans:
            at = low
            while at < high:
                name, slash, _rest = keys[at][len(above) :].partition(b"/")
                if not slash:
                    path = printable(_GLOB_CHARACTERS.sub(rb"[\g<0>]", keys[at]))
                    beside.append(path + ".*" if b"/" in keys[at] else f"./{path}.*")  # as `exclude` takes it
                    at += 1
                    continue
                end = bisect_left(cast("Sequence[bytes]", keys), above + name + b"0", at, high)  # "0" follows "/"
                found.append((at, end, above + name + b"/"))
                at = end
        spans = found
    if beside:
        if len(beside) == len(keys):
            problem = f"no sample is in a folder below the source: {format_list(beside)}"
            raise InvalidRequest(option_text(asked[0]), problem, expected=asked[1])
        problem = f"{pluralize(len(beside), 'sample')} in no such folder: {format_list(beside)}"
        left_out = choose_text(f"exclude=({beside[0]!r}, ...)", f"--exclude {quote(beside[0])}")
        remedy = f"Move them, or leave them out: {left_out}."
        raise InvalidRequest(option_text(asked[0]), problem, expected=asked[1], remedy=remedy)
    return [(low, high, path.split(b"/")[depth]) for low, high, path in spans]
