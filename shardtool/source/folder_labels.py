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


_GLOB_CHARACTERS = re.compile(rb"[*?\[]")


def add_folder_labels(
    entries: SampleTable, known: Classes | None = None, *, depth: int = 0, skipped: Iterable[Skipped] = ()
) -> SampleTable:
    """Add the class number of each sample as the field `cls`. Each top folder is a class, as in ImageFolder.

    Classes are numbered in byte order, unless `known` lists them. Samples must be sorted by key. `depth` is the number
    of folder levels above the class folders. The folders of skipped files are classes too.
    """
    import numpy as np

    from shardtool.entries.arrow import number_array
    from shardtool.entries.classes import number_classes
    from shardtool.entries.strings import PackedStrings
    from shardtool.select.add_fields import NewField, add_fields

    if not len(entries):
        return entries
    if "cls" in entries.fields:
        raise InvalidRequest(option_text("label_from_folder"), "the samples already have a field 'cls'")
    expected = "paths such as SPLIT/CLASS/FILE" if depth else "paths such as CLASS/FILE"
    spans = _folder_spans(entries.keys, depth, ("label_from_folder", expected))
    # Number the folders of skipped files too, so that numbers stay the same if a later run can read the files.
    paths = [to_bytes(row.path).split(b"/") for row in skipped if row.code != "no-field"]
    failed = {parts[depth] for parts in paths if len(parts) > depth + 1}
    number, names = number_classes({*(name for _, _, name in spans), *failed}, "cls", known)
    label = np.repeat(np.array([number[name] for _, _, name in spans]), [high - low for low, high, _ in spans])
    labels = PackedStrings.of(b"%d" % index for index in range(len(names))).take(label)
    all_samples = np.ones(len(entries), bool)
    return add_fields(entries, [NewField("cls", labels, all_samples, "int64", names, number_array(label))])


def top_folders(keys: PackedStrings, *, in_order: bool = True) -> pa.ChunkedArray:
    """Return the top folder of each sample. `in_order` means that keys are sorted."""
    import numpy as np
    import pyarrow as pa

    from shardtool.entries.arrow import bytes_array, number_array

    if not in_order:
        order = keys.sorted_order()
        return top_folders(keys.take(order)).take(number_array(np.argsort(order)))
    spans = _folder_spans(keys, 0, ("split_from_folder", "paths such as SPLIT/FILE"))
    folder_of_sample = np.repeat(np.arange(len(spans)), [high - low for low, high, _ in spans])
    return pa.chunked_array([bytes_array([name for _, _, name in spans]).take(number_array(folder_of_sample))])


def split_folder_notes(entries: SampleTable) -> tuple[str, ...]:
    """Return a note if class folders have names of splits, such as train and val."""
    classes = entries.values.classes.get("cls", [])
    split_names = [name for name in classes if name.lower() in SPLIT_NAMES]
    if len(split_names) < min(2, len(classes)) or not split_names:
        return ()
    shown = format_list(split_names)
    label, split = option_text("label_from_folder"), option_text("split_from_folder")
    return (f"{label} uses {shown} as classes; if they are splits of classes, add {split}",)


def _folder_spans(keys: PackedStrings, depth: int, option_and_paths: tuple[str, str]) -> list[tuple[int, int, bytes]]:
    spans, outside = [(0, len(keys), b"")], list[str]()
    for _ in range(depth + 1):
        inner_spans = []
        for low, high, parent in spans:
            sample = low
            while sample < high:
                name, slash, _rest = keys[sample][len(parent) :].partition(b"/")
                if not slash:
                    path = printable(_GLOB_CHARACTERS.sub(rb"[\g<0>]", keys[sample]))
                    outside.append(path + ".*" if b"/" in keys[sample] else f"./{path}.*")
                    sample += 1
                    continue
                # the first key after the folder, because "0" follows "/" in byte order
                end = bisect_left(cast("Sequence[bytes]", keys), parent + name + b"0", sample, high)
                inner_spans.append((sample, end, parent + name + b"/"))
                sample = end
        spans = inner_spans
    if outside:
        if len(outside) == len(keys):
            problem = f"no sample is in a folder below the source: {format_list(outside)}"
            raise InvalidRequest(option_text(option_and_paths[0]), problem, expected=option_and_paths[1])
        problem = f"{pluralize(len(outside), 'sample')} outside such folders: {format_list(outside)}"
        exclude = choose_text(f"exclude=({outside[0]!r}, ...)", f"--exclude {quote(outside[0])}")
        remedy = f"Move them, or exclude them: {exclude}."
        raise InvalidRequest(option_text(option_and_paths[0]), problem, expected=option_and_paths[1], remedy=remedy)
    return [(low, high, path.split(b"/")[depth]) for low, high, path in spans]
