"""Names of classes, read from a dataset file, JSON or text."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping

from shardtool.dataset.dataset_file import read_dataset, shard_names
from shardtool.entries.classes import EXPECTED, SHOWN, Classes
from shardtool.errors import InvalidRequest, printable, reason
from shardtool.storage.reading import read_small
from shardtool.values import source_text
from shardtool.wording import option

_FILE_LIMIT = 2**28  # bytes: no list of names is larger


def open_classes(given: object) -> Classes | None:
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


def _read(path: str, where: str) -> object:
    try:
        data = read_small(path, _FILE_LIMIT)
    except OSError as error:
        raise InvalidRequest(option("classes_from"), f"{where}: {reason(error)}", expected=EXPECTED) from None
    if shard_names(data) is not None:
        return dict(read_dataset(data, path).classes)
    try:
        text = data.decode("utf-8-sig")
        if text.lstrip()[:1] in ("[", "{"):
            found = json.loads(text)
            return _encoded(found)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(option("classes_from"), f"{where}: {str(error)[:80]}", expected=EXPECTED) from None
    return _encoded(text.rstrip("\n").split("\n") if text.strip() else [])


def _encoded(found: object) -> object:
    """Return class names from a file, as the dataset file has them."""
    if isinstance(found, list):
        return [source_text(one.strip("\r").encode()) if isinstance(one, str) else one for one in found]
    return {name: _encoded(names) for name, names in found.items()} if isinstance(found, dict) else found


def _checked(where: str, found: object) -> Classes:
    lists: dict[str, list[str]] = {}
    for field, given in (found if isinstance(found, Mapping) else {"": found}).items():
        if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
            raise InvalidRequest(option("classes_from"), f"{where} holds no list of names", expected=EXPECTED)
        names = lists[field] = [*given]
        if not names or not all(isinstance(name, str) and name for name in names):
            raise InvalidRequest(option("classes_from"), f"{where} holds what is no name, or none", expected=EXPECTED)
        if len(set(names)) < len(names):
            twice = next(name for at, name in enumerate(names) if name in names[:at])
            raise InvalidRequest(
                option("classes_from"), f"{where} names {twice[:SHOWN]!r} twice", expected="each class once"
            )
    return Classes(where, lists)
