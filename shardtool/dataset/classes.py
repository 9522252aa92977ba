"""The numbers of classes: in the order of the bytes of their names, or as a list says that was given."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from shardtool.dataset.dataset_file import read_dataset, shard_names
from shardtool.errors import InvalidRequest, listing, printable, reason
from shardtool.storage.reading import read_small
from shardtool.values import counted, source_text

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shardtool.entries.entries import Entries
    from shardtool.names import Texts

_OPTION = "--classes-from"
_EXPECTED = "a dataset file, a JSON list of names, or a text file with a name a line"
_FILE_LIMIT = 2**28  # bytes: no list of names is larger
_AT_ONCE = 2**16  # samples at a time
_SHOWN = 60  # letters of a name in a message


@dataclass(frozen=True, slots=True)
class Classes:
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
            expected = f"those of one of its fields: {listing([*self.names])}" if self.names else _EXPECTED
            raise InvalidRequest(_OPTION, found, expected=expected)
        if self.grows:
            return [*self.names.get(field, ())]
        return [*self.names.get(field, next(iter(self.names.values())))]


def open_classes(given: Any) -> Classes | None:
    """Return the classes of a file, a list of names, or such a list for each of some fields; None: none were given.

    Raises:
        InvalidRequest: It is none of these.
        CorruptShard: A dataset file is damaged.
    """
    if given is None or isinstance(given, Classes):
        return given
    if isinstance(given, (str, os.PathLike)):
        where = printable(os.path.basename(os.fspath(given)))
        return _checked(where, _read(os.fspath(given), where))
    return _checked("the list", given)


def number_classes(found: Collection[bytes], field: str, known: Classes | None) -> tuple[dict[bytes, int], list[str]]:
    """Return the number of each class that was found, and the names of all, as the dataset file has them.

    Raises:
        InvalidRequest: A class that the list does not have.
    """
    texts = {name: source_text(name) for name in sorted(found)}
    names = [] if known is None else known.of(field)
    place = {name: at for at, name in enumerate(names)}
    new = [text for text in texts.values() if text not in place]
    if new and known is not None and not known.grows:
        raise InvalidRequest(
            _OPTION, f"{counted(len(new), 'label')} of {field!r} not in {known.where}: {_quoted(new)}",
            expected=f"one of its {counted(len(names), 'name')}: {_quoted(names)}",
            remedy="Add what is new at the end of a list of your own: the numbers of the others stay as they are.",
        )  # fmt: skip
    for text in new:
        place[text] = len(names)
        names.append(text)
    return {name: place[text] for name, text in texts.items()}, names


def sorted_note(entries: Entries, order: NDArray[np.int64] | None) -> str:
    """Return what the user should know of samples that stand class by class; empty where they do not.

    Args:
        entries: The samples.
        order: Which sample stands where; None: in their own order.
    """
    total = len(entries) if order is None else len(order)
    for name in entries.classes:
        texts = entries.inline.get(name)
        runs = 0 if texts is None else _runs(texts, order, total)
        if 1 < runs < total:
            return f"samples stand class by class ({runs:,} classes of {name}): --shuffle mixes them"
    return ""


def _runs(texts: Texts, order: NDArray[np.int64] | None, total: int) -> int:
    """Return how many different texts there are, where equal ones all stand next to each other; otherwise 0."""
    seen: set[bytes] = set()
    last: bytes | None = None
    for first in range(0, total, _AT_ONCE):
        end = min(first + _AT_ONCE, total)
        data = texts.span(first, end) if order is None else texts.gather(order[first:end])
        for text, _ in groupby(data.split(b"\0")[:-1]):
            if text != last and text in seen:
                return 0
            seen.add(text)
            last = text
    return len(seen)


def _read(path: str, where: str) -> Any:
    try:
        data = read_small(path, _FILE_LIMIT)
    except OSError as error:
        raise InvalidRequest(_OPTION, f"{where}: {reason(error)}", expected=_EXPECTED) from None
    if shard_names(data) is not None:
        return dict(read_dataset(data, path).classes)
    try:
        text = data.decode("utf-8-sig")
        if text.lstrip()[:1] in ("[", "{"):
            found = json.loads(text)
            return _encoded(found)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(_OPTION, f"{where}: {str(error)[:80]}", expected=_EXPECTED) from None
    return _encoded(text.rstrip("\n").split("\n") if text.strip() else [])


def _encoded(found: Any) -> Any:
    """Return names that somebody wrote down as the dataset file has them."""
    if isinstance(found, list):
        return [source_text(one.strip("\r").encode()) if isinstance(one, str) else one for one in found]
    return {name: _encoded(names) for name, names in found.items()} if isinstance(found, dict) else found


def _checked(where: str, found: Any) -> Classes:
    lists = found if isinstance(found, Mapping) else {"": found}
    for names in lists.values():
        if isinstance(names, (str, bytes)) or not hasattr(names, "__iter__"):
            raise InvalidRequest(_OPTION, f"{where} holds no list of names", expected=_EXPECTED)
        names = [*names]  # noqa: PLW2901 - a list of it
        if not names or not all(isinstance(name, str) and name for name in names):
            raise InvalidRequest(_OPTION, f"{where} holds what is no name, or none", expected=_EXPECTED)
        if len(set(names)) < len(names):
            twice = next(name for at, name in enumerate(names) if name in names[:at])
            raise InvalidRequest(_OPTION, f"{where} names {twice[:_SHOWN]!r} twice", expected="each class once")
    return Classes(where, {name: [*names] for name, names in lists.items()})


def _quoted(names: Sequence[str]) -> str:
    return listing([repr(name[:_SHOWN]) for name in names])
