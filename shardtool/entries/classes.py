"""The numbers of classes: in the order of the bytes of their names, or as a list says that was given."""

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

CLASS_LIST_FORMATS = "a dataset file, a JSON list of names, or a text file with a name a line"
_SURROGATE = re.compile("[\ud800-\udfff]")  # no text that UTF-8 has a form for
MAX_SHOWN_CHARS = 60  # letters of a name in a message


class Classes(NamedTuple):
    """Names of classes, the first of which is number 0.

    Attributes:
        where: What they are from, for messages.
        names: By field; one for all under the empty name.
        grows: Whether other classes get the numbers that follow; otherwise they are an error.
    """

    where: str
    names: Mapping[str, Sequence[str]]
    grows: bool = False

    def of(self, field: str) -> list[str]:
        """Return the names for a field.

        Raises:
            InvalidRequest: There are none.
        """
        if field not in self.names and not self.grows and len(self.names) != 1:
            found = f"no classes of {field!r} in {self.where}" if self.names else f"no classes in {self.where}"
            expected = f"those of one of its fields: {format_list([*self.names])}" if self.names else CLASS_LIST_FORMATS
            raise InvalidRequest(option_text("classes_from"), found, expected=expected)
        if self.grows:
            return [*self.names.get(field, ())]
        return [*self.names.get(field, next(iter(self.names.values())))]


def number_classes(found: Collection[bytes], field: str, known: Classes | None) -> tuple[dict[bytes, int], list[str]]:
    """Return the number of each class that was found, and the names of all, as the dataset file has them.

    Raises:
        InvalidRequest: A class that the list does not have.
    """
    texts = {name: quote_name(name) for name in sorted(found)}
    names = [] if known is None else known.of(field)
    place = {name: at for at, name in enumerate(names)}
    new = [text for text in texts.values() if text not in place]
    if new and known is not None and not known.grows:
        problem = f"{pluralize(len(new), 'label')} of {field!r} not in {known.where}: {_quote_names(new)}"
        expected = f"one of its {pluralize(len(names), 'name')}: {_quote_names(names)}"
        remedy = "Add what is new at the end of a list of your own: the numbers of the others stay as they are."
        raise InvalidRequest(option_text("classes_from"), problem, expected=expected, remedy=remedy)
    for text in new:
        place[text] = len(names)
        names.append(text)
    return {name: place[text] for name, text in texts.items()}, names


def are_class_names(names: object) -> TypeGuard[list[str]]:
    """Tell whether what a file says is names of classes: texts, each once."""
    return isinstance(names, list) and all(map(is_unicode_text, names)) and len({*names}) == len(names)


def is_unicode_text(name: object) -> bool:
    """Tell whether a name is text that UTF-8 has a form for."""
    return isinstance(name, str) and not _SURROGATE.search(name)


def recorded_names(names: Sequence[str]) -> list[str]:
    """Return names of classes as a dataset file has them."""
    return [quote_name(name.encode()) for name in names]


def merge_classes(old: Mapping[str, list[str]], new: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return the names of class numbers; a list may go on where another ends, since that changes no number."""
    classes = dict(old)
    for name, names in new.items():
        before = classes.setdefault(name, names)
        shared = min(len(before), len(names))
        if before[:shared] != names[:shared]:
            at = next(at for at in range(shared) if before[at] != names[at])
            found = f"{at} stands for {names[at]!r} in the new samples"
            expected = f"{before[at]!r}, as in the dataset: {format_list([repr(one) for one in before])}"
            remedy = (
                f"{option_text('classes_from')}, with the dataset file of the dataset, gives the new labels the same "
                "numbers."
            )
            raise InvalidRequest(f"classes of {name}", found, expected=expected, remedy=remedy)
        classes[name] = max(before, names, key=len)
    return classes


def sorted_labels_note(entries: SampleTable, order: NDArray[np.int64] | None) -> str:
    """Return what the user should know of samples that stand class by class; empty where they do not.

    Args:
        entries: The samples.
        order: Which sample stands where; None: in their own order.
    """
    total = len(entries) if order is None else len(order)
    for name in entries.values.classes:
        texts = entries.values.inline.get(name)
        runs = 0 if texts is None else _count_runs(texts, order, total)
        if 1 < runs < total:
            return f"samples stand class by class ({runs:,} classes of {name}): {flag_text('shuffle')} mixes them"
    return ""


def _count_runs(texts: StringColumn, order: NDArray[np.int64] | None, total: int) -> int:
    """Return how many different texts there are, where equal ones all stand next to each other; otherwise 0."""
    seen: set[bytes] = set()
    last: bytes | None = None
    for some in chunk_slices(total):
        data = texts.span(some.start, some.stop) if order is None else texts.gather(order[some])
        for text, _ in groupby(data.split(b"\0")[:-1]):
            if text != last and text in seen:
                return 0
            seen.add(text)
            last = text
    return len(seen)


def _quote_names(names: Sequence[str]) -> str:
    return format_list([repr(name[:MAX_SHOWN_CHARS]) for name in names])
