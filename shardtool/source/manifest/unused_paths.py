"""Find a column of existing files that the requested options would not pack."""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING

import numpy as np

from shardtool.entries import arrow
from shardtool.errors import StoreFailed
from shardtool.messages import option_text
from shardtool.names import BINARY_ENDINGS, to_bytes
from shardtool.source.manifest.paths import relative_to_root
from shardtool.source.manifest.roles import ColumnRoles, path_ending
from shardtool.source.stat_files import StatTask, stat_files
from shardtool.storage.lookup import stat_file
from shardtool.storage.paths import is_address

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardtool.values import Dots


MAX_CHECKED_ROWS = 100


MAX_CHECKED_COLUMNS = 100


MAX_MISSING_FILES = 10  # if none of the first texts is a file, the column does not hold paths


MAX_CHECKED_OBJECTS = 3  # each takes a request


MAX_NAMED_COLUMNS = 8  # in a message


def find_unused_file(root: bytes, texts: Sequence[str | None], packed: Sequence[Sequence[str | None]]) -> str:
    """Return a path in a column that is not packed, or an empty text.

    Most of the first `texts` must be paths of files, and one of the files must not be in the same row of `packed`.
    """
    if is_address(root):
        return _find_unused_object(root, texts, packed)
    folder, files, missing, example = os.fsdecode(root), 0, 0, ""
    for row, text in enumerate(texts):
        if not text:
            continue
        stat_result = _regular_file(folder, text)
        if stat_result is None:
            missing += 1
            if not files and missing >= MAX_MISSING_FILES:
                return ""
            continue
        files += 1
        packed_files = [_regular_file(folder, column[row] or "") for column in packed if row < len(column)]
        if not example and not any(
            other is not None and os.path.samestat(stat_result, other) for other in packed_files
        ):
            example = text
    return example if files > missing else ""


def _regular_file(folder: str, path: str) -> os.stat_result | None:
    try:
        stat_result = stat_file(os.path.join(folder, path))
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return None
    return stat_result if stat.S_ISREG(stat_result.st_mode) else None


def _find_unused_object(root: bytes, texts: Sequence[str | None], packed: Sequence[Sequence[str | None]]) -> str:
    """Do the same in a store, only for paths with the extension of a binary format."""
    packed_texts = {text for column in packed for text in column}
    candidates = [
        text
        for text in texts
        if text
        and text not in packed_texts
        and "\0" not in text
        and path_ending(text, "last").lower() in BINARY_ENDINGS
    ][:MAX_CHECKED_OBJECTS]
    if not candidates:
        return ""
    paths = [*relative_to_root(arrow.text_array(candidates), root).to_pylist()]
    data = b"".join([to_bytes(path) + b"\0" for path in paths])
    try:
        part = stat_files(StatTask(root, data, outside=False))
    except StoreFailed:  # if the store is needed, the run reports its error later
        return ""
    problems = np.frombuffer(part.facts, np.int64).reshape(-1, 4)[:, 3]
    return candidates[0] if not problems.any() else ""


def packing_options(roles: ColumnRoles, examples: Mapping[str, str], dots: Dots) -> str:
    """Return the options that also pack the files of columns, given a path of each in `examples`."""
    if len(examples) == 1 and not (roles.paths() or roles.binary or roles.urls):
        return option_text("path", next(iter(examples)))
    words = [option_text("path", roles.path)] if roles.path is not None else []
    used_fields = {*roles.field_names()}
    for name, example in examples.items():
        ending = path_ending(example, dots) or "FIELD"
        field = (
            ending
            if ending not in used_fields and roles.path is None
            else f"{_UNSAFE_FIELD_CHARACTER.sub('_', name)}.{ending}"
        )
        used_fields.add(field)
        words.append(option_text("files", {field: name}))
    return " ".join(words)


_UNSAFE_FIELD_CHARACTER = re.compile(r"[^A-Za-z0-9_-]")
