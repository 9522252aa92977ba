"""Find a column of existing files that a table's request would ignore."""

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


MAX_CHECKED_ROWS = 100  # whose texts may be paths of files


MAX_CHECKED_COLUMNS = 100


MAX_MISSING_FILES = 10  # of the first texts of a column: if no file exists, the column holds no paths


MAX_CHECKED_OBJECTS = 3  # each takes a request


MAX_NAMED_COLUMNS = 8  # in a message


def find_unused_file(root: bytes, texts: Sequence[str | None], packed: Sequence[Sequence[str | None]]) -> str:
    """Return a text that is the path of a file that is not packed; empty: the texts of this column are no such paths.

    They are if most of them are paths of files, and one of these files is none of those that the row names already.

    Args:
        root: What paths count from.
        texts: The first texts of a column.
        packed: The texts of the columns of paths, in the same rows.
    """
    if is_address(root):
        return _find_unused_object(root, texts, packed)
    folder, files, missing, example = os.fsdecode(root), 0, 0, ""
    for row, text in enumerate(texts):
        if not text:
            continue
        fact = _regular_file(folder, text)
        if fact is None:
            missing += 1
            if not files and missing >= MAX_MISSING_FILES:
                return ""
            continue
        files += 1
        others = [_regular_file(folder, column[row] or "") for column in packed if row < len(column)]
        if not example and not any(other is not None and os.path.samestat(fact, other) for other in others):
            example = text
    return example if files > missing else ""


def _regular_file(folder: str, path: str) -> os.stat_result | None:
    """Return the facts of a file; None: there is none, or something else."""
    try:
        fact = stat_file(os.path.join(folder, path))
    except (OSError, ValueError):  # no file, no path, or a NUL in it
        return None
    return fact if stat.S_ISREG(fact.st_mode) else None


def _find_unused_object(root: bytes, texts: Sequence[str | None], packed: Sequence[Sequence[str | None]]) -> str:
    """Do what `find_unused_file` does in a store or on a server: ask for texts with the ending of a binary format only."""
    taken = {text for column in packed for text in column}
    wanted = [
        text
        for text in texts
        if text and text not in taken and "\0" not in text and path_ending(text, "last").lower() in BINARY_ENDINGS
    ][:MAX_CHECKED_OBJECTS]
    if not wanted:
        return ""
    paths = [*relative_to_root(arrow.text_array(wanted), root).to_pylist()]
    data = b"".join([to_bytes(path) + b"\0" for path in paths])
    try:
        part = stat_files(StatTask(root, data, outside=False))
    except StoreFailed:  # what the run needs is asked for again, and named
        return ""
    problems = np.frombuffer(part.facts, np.int64).reshape(-1, 4)[:, 3]
    return wanted[0] if not problems.any() else ""


def packing_options(roles: ColumnRoles, examples: Mapping[str, str], dots: Dots) -> str:
    """Return the options that pack the files of columns, too, of which an example is given."""
    if len(examples) == 1 and not (roles.paths() or roles.binary or roles.urls):
        return option_text("path", next(iter(examples)))
    words = [option_text("path", roles.path)] if roles.path is not None else []
    taken = {*roles.field_names()}
    for name, example in examples.items():
        ending = path_ending(example, dots) or "FIELD"
        field = (
            ending
            if ending not in taken and roles.path is None
            else f"{_UNSAFE_FIELD_CHARACTER.sub('_', name)}.{ending}"
        )
        taken.add(field)
        words.append(option_text("files", {field: name}))
    return " ".join(words)


_UNSAFE_FIELD_CHARACTER = re.compile(r"[^A-Za-z0-9_-]")
