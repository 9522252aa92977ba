"""Read class names from a dataset file, JSON or text."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping

from shardtool.dataset.dataset_file import parse_dataset, parse_shard_names
from shardtool.entries.classes import CLASS_LIST_FORMATS, MAX_SHOWN_CHARS, Classes, is_unicode_text
from shardtool.errors import InvalidRequest, os_error_text, printable
from shardtool.messages import option_text
from shardtool.names import quote_name
from shardtool.storage.files import read_small

_MAX_FILE_BYTES = 2**28  # bytes: no list of names is larger


def read_classes(given: object) -> Classes | None:
    """Return the classes of a file, a list of names, or such a list for each of some fields; None: none were given.

    Raises:
        InvalidRequest: It is none of these.
        CorruptShard: A dataset file is damaged.
    """
    if given is None or isinstance(given, Classes):
        return given
    where, found = "the list", given
    if isinstance(given, (str, os.PathLike)):
        where = printable(os.path.basename(os.fspath(given)))
        try:
            found = _read_class_file(os.fspath(given))
        except (OSError, ValueError, RecursionError) as error:
            problem = os_error_text(error) if isinstance(error, OSError) else str(error)[:80]
            raise InvalidRequest(
                option_text("classes_from"), f"{where}: {problem}", expected=CLASS_LIST_FORMATS
            ) from None
    return _check_classes(where, found)


def _read_class_file(path: str) -> object:
    data = read_small(path, _MAX_FILE_BYTES)
    if parse_shard_names(data) is not None:
        return dict(parse_dataset(data, path).classes)
    text = data.decode("utf-8-sig")
    if text.lstrip()[:1] in ("[", "{"):
        return _parse_classes(json.loads(text))
    return _parse_classes(text.rstrip("\n").split("\n") if text.strip() else [])


def _parse_classes(found: object) -> object:
    """Return class names from a file, as the dataset file has them."""
    if isinstance(found, list):
        return [quote_name(one.strip("\r").encode()) if isinstance(one, str) else one for one in found]
    return {name: _parse_classes(names) for name, names in found.items()} if isinstance(found, dict) else found


def _check_classes(where: str, found: object) -> Classes:
    lists: dict[str, list[str]] = {}
    for one, given in (found if isinstance(found, Mapping) else {"": found}).items():
        if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
            raise InvalidRequest(
                option_text("classes_from"), f"{where} holds no list of names", expected=CLASS_LIST_FORMATS
            )
        names = lists[one] = [*given]
        if not names or not all(name and is_unicode_text(name) for name in names):
            raise InvalidRequest(
                option_text("classes_from"), f"{where} holds what is no name, or none", expected=CLASS_LIST_FORMATS
            )
        if len(set(names)) < len(names):
            twice = next(name for at, name in enumerate(names) if name in names[:at])
            problem = f"{where} names {twice[:MAX_SHOWN_CHARS]!r} twice"
            raise InvalidRequest(option_text("classes_from"), problem, expected="each class once")
    return Classes(where, lists)
