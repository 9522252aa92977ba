"""Assign numbers to class names."""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

from shardtool.errors import InvalidRequest, format_list
from shardtool.messages import flag_text, option_text
from shardtool.names import quote_name
from shardtool.units import pluralize
from shardtool.values import chunk_slices

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shardtool.entries.sample_table import SampleTable
    from shardtool.entries.strings import StringColumn

CLASS_LIST_FORMATS = "a dataset file, a JSON list of names, or a text file with one name per line"
_SURROGATE = re.compile("[\ud800-\udfff]")
MAX_SHOWN_CHARS = 60


class Classes(NamedTuple):
    """Existing class names, numbered from 0.

    Attributes:
        where: The file or dataset that lists the classes, for messages.
        names: Class names by field. A single list applies to all fields, unless `allows_new` is true.
        allows_new: Whether `number_classes` appends new classes. Otherwise, a new class is an error.
    """

    where: str
    names: Mapping[str, Sequence[str]]
    allows_new: bool = False

    def of(self, field: str) -> list[str]:
        """Return the class names for a field."""
        if field not in self.names and not self.allows_new and len(self.names) != 1:
            found = f"no classes of {field!r} in {self.where}" if self.names else f"no classes in {self.where}"
            expected = f"a field with classes: {format_list([*self.names])}" if self.names else CLASS_LIST_FORMATS
            raise InvalidRequest(option_text("classes_from"), found, expected=expected)
        if self.allows_new:
            return [*self.names.get(field, ())]
        return [*self.names.get(field, next(iter(self.names.values())))]


def number_classes(
    labels: Collection[bytes], field: str, class_lists: Classes | None
) -> tuple[dict[bytes, int], list[str]]:
    """Return the class number of each label, and the list of class names. New labels are numbered in byte order."""
    texts = {name: quote_name(name) for name in sorted(labels)}
    names = [] if class_lists is None else class_lists.of(field)
    number_of = {name: number for number, name in enumerate(names)}
    new = [text for text in texts.values() if text not in number_of]
    if new and class_lists is not None and not class_lists.allows_new:
        problem = f"{pluralize(len(new), 'label')} of {field!r} not in {class_lists.where}: {_quote_names(new)}"
        expected = f"one of its {pluralize(len(names), 'name')}: {_quote_names(names)}"
        remedy = "Append the new names to a list of your own, so that existing numbers do not change."
        raise InvalidRequest(option_text("classes_from"), problem, expected=expected, remedy=remedy)
    for text in new:
        number_of[text] = len(names)
        names.append(text)
    return {name: number_of[text] for name, text in texts.items()}, names


def are_class_names(names: object) -> TypeGuard[list[str]]:
    """Return whether a value from a file is a list of distinct strings that UTF-8 can encode."""
    return isinstance(names, list) and all(map(is_unicode_text, names)) and len({*names}) == len(names)


def is_unicode_text(name: object) -> bool:
    """Return whether a value is a string that UTF-8 can encode."""
    return isinstance(name, str) and not _SURROGATE.search(name)


def recorded_names(names: Sequence[str]) -> list[str]:
    """Return class names as a dataset file records them (see `quote_name`)."""
    return [quote_name(name.encode()) for name in names]


def merge_classes(old: Mapping[str, list[str]], new: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Merge the class names of each field.

    If both mappings have names for a field, one list must start with the other list, to keep class numbers the same.
    """
    classes = dict(old)
    for name, names in new.items():
        existing = classes.setdefault(name, names)
        shared = min(len(existing), len(names))
        if existing[:shared] != names[:shared]:
            number = next(number for number in range(shared) if existing[number] != names[number])
            found = f"number {number} means {names[number]!r} in the new samples"
            expected = f"{existing[number]!r}, as in the dataset: {format_list([*map(repr, existing)])}"
            remedy = f"To reuse the dataset's numbers, set {option_text('classes_from')} to its dataset file."
            raise InvalidRequest(f"classes of {name}", found, expected=expected, remedy=remedy)
        classes[name] = max(existing, names, key=len)
    return classes


def sorted_labels_note(entries: SampleTable, order: NDArray[np.int64] | None) -> str:
    """Return a note if there are several classes and `order` keeps samples of a class together, otherwise ""."""
    total = len(entries) if order is None else len(order)
    for name in entries.values.classes:
        texts = entries.values.inline.get(name)
        runs = 0 if texts is None else _count_runs(texts, order, total)
        if 1 < runs < total:
            return f"samples are sorted by class ({runs:,} classes of {name}); use {flag_text('shuffle')} to mix them"
    return ""


def _count_runs(texts: StringColumn, order: NDArray[np.int64] | None, total: int) -> int:
    seen: set[bytes] = set()
    last: bytes | None = None
    for chunk in chunk_slices(total):
        data = texts.span(chunk.start, chunk.stop) if order is None else texts.gather(order[chunk])
        for text, _ in groupby(data.split(b"\0")[:-1]):
            if text != last and text in seen:
                return 0
            seen.add(text)
            last = text
    return len(seen)


def _quote_names(names: Sequence[str]) -> str:
    return format_list([repr(name[:MAX_SHOWN_CHARS]) for name in names])
