"""Read class names from a dataset file, a JSON file or a text file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping

from shardtool.dataset.dataset_file import is_dataset_content, parse_dataset
from shardtool.entries.classes import CLASS_LIST_FORMATS, MAX_SHOWN_CHARS, Classes, is_unicode_text
from shardtool.errors import InvalidRequest, os_error_text, printable
from shardtool.messages import option_text
from shardtool.names import quote_name
from shardtool.storage.files import read_small

_MAX_FILE_BYTES = 2**28


def read_classes(classes: object) -> Classes | None:
    """Read class names from a file, a list, or a mapping from fields to lists."""
    if classes is None or isinstance(classes, Classes):
        return classes
    source, content = "the list", classes
    if isinstance(classes, (str, os.PathLike)):
        source = printable(os.path.basename(os.fspath(classes)))
        try:
            content = _read_class_file(os.fspath(classes))
        except (OSError, ValueError, RecursionError) as error:
            problem = os_error_text(error) if isinstance(error, OSError) else str(error)[:80]
            raise _invalid_classes(f"{source}: {problem}") from None
    return _check_classes(source, content)


def _invalid_classes(problem: str, expected: str = CLASS_LIST_FORMATS) -> InvalidRequest:
    return InvalidRequest(option_text("classes_from"), problem, expected=expected)


def _read_class_file(path: str) -> object:
    data = read_small(path, _MAX_FILE_BYTES)
    if is_dataset_content(data):
        return dict(parse_dataset(data, path).classes)
    text = data.decode("utf-8-sig")
    if text.lstrip()[:1] in ("[", "{"):
        return _parse_classes(json.loads(text))
    return _parse_classes(text.rstrip("\n").split("\n") if text.strip() else [])


def _parse_classes(content: object) -> object:
    if isinstance(content, list):
        return [quote_name(name.strip("\r").encode()) if isinstance(name, str) else name for name in content]
    return {name: _parse_classes(names) for name, names in content.items()} if isinstance(content, dict) else content


def _check_classes(source: str, content: object) -> Classes:
    lists: dict[str, list[str]] = {}
    for field, values in (content if isinstance(content, Mapping) else {"": content}).items():
        if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
            raise _invalid_classes(f"{source} does not contain a list of names")
        classes = lists[field] = [*values]
        if not classes or not all(name and is_unicode_text(name) for name in classes):
            raise _invalid_classes(f"{source} contains an invalid name or no names")
        if len(set(classes)) < len(classes):
            duplicate = next(name for index, name in enumerate(classes) if name in classes[:index])
            raise _invalid_classes(f"{source} contains {duplicate[:MAX_SHOWN_CHARS]!r} twice", "distinct class names")
    return Classes(source, lists)
