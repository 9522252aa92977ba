"""Find columns of a manifest that contain paths of files but are not packed."""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING

import numpy as np

from shardtool.entries import arrow
from shardtool.errors import InvalidRequest, StoreFailed, format_list, printable
from shardtool.messages import option_text
from shardtool.names import BINARY_ENDINGS, to_bytes
from shardtool.source.manifest.paths import relative_to_root
from shardtool.source.manifest.roles import path_ending
from shardtool.source.stat_files import StatTask, stat_files
from shardtool.storage.lookup import stat_file
from shardtool.storage.paths import is_address
from shardtool.table.columns import is_text_type

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from shardtool.request.create_options import CreateOptions
    from shardtool.source.manifest.roles import ColumnRoles
    from shardtool.values import Dots

    Texts = Sequence[str | None]

MAX_CHECKED_ROWS = 100
_MAX_CHECKED_COLUMNS = 100
_MAX_MISSING_FILES = 10  # if none of the first ten strings is the path of a file, skip the column
_MAX_CHECKED_OBJECTS = 3  # in a store, each check takes a request
_MAX_NAMED_COLUMNS = 8
_UNSAFE_FIELD_CHARACTER = re.compile(r"[^A-Za-z0-9_-]")


def check_unused_paths(
    where: str, schema: pa.Schema, roles: ColumnRoles, options: CreateOptions, root: bytes,
    read_texts: Callable[[Sequence[str]], dict[str, list[str | None]]],
) -> list[str]:  # fmt: skip
    """Raise an error if a column contains paths of files that would not be packed.

    If an option names the files to pack, return a note instead. `read_texts` returns the first values of columns.
    """
    used = {*roles.paths(), *(name for role in ("urls", "binary", "values") for name in roles.columns_of(role))}
    if options.meta not in (None, "all", "none"):
        used |= {*roles.meta}
    if roles.key is not None and (options.key is not None or roles.paths() or roles.binary or roles.urls):
        used.add(roles.key)
    unused = [column.name for column in schema if is_text_type(column.type) and column.name not in used]
    values = read_texts([*roles.paths(), *unused[:_MAX_CHECKED_COLUMNS]])
    packed = [values.pop(name) for name in roles.paths()]
    examples = {name: example for name in values if (example := _find_unused_file(root, values[name], packed))}
    if not examples:
        return []
    name, example = next(iter(examples.items()))
    pack, names = _packing_options(roles, examples, options.dots or "first"), format_list([*map(repr, examples)])
    subject = f"column {names} holds" if len(examples) == 1 else f"columns {names} hold"
    found = f"{subject} paths of existing files, such as {printable(example)!r},"
    if options.path is not None or options.file or options.bytes or options.url:
        return [f"{found} which are not packed (pack them with {pack})"]
    named = [*roles.meta] if options.meta != "none" else []
    named += [column for column in examples if column not in named]
    kept = option_text("meta", ",".join(named) if len(named) <= _MAX_NAMED_COLUMNS else f"{name},...")
    remedy = f"Pack the files: {pack}. To store the paths as metadata only: {kept}."
    expected = "an option that names the path columns"
    raise InvalidRequest(where, f"{found} which would not be packed", expected=expected, remedy=remedy)


def _find_unused_file(root: bytes, texts: Texts, packed: Sequence[Texts]) -> str:
    # If most strings are paths of files, return the first path of a file that is not packed.
    if is_address(root):
        return _find_unused_object(root, texts, packed)
    folder, files, missing, example = os.fsdecode(root), 0, 0, ""
    for row, text in enumerate(texts):
        if not text:
            continue
        stat_result = _regular_file(folder, text)
        if stat_result is None:
            missing += 1
            if not files and missing >= _MAX_MISSING_FILES:
                return ""
            continue
        files += 1
        packed_files = [_regular_file(folder, column[row] or "") for column in packed if row < len(column)]
        if not example and not any(os.path.samestat(stat_result, other) for other in packed_files if other is not None):
            example = text
    return example if files > missing else ""


def _regular_file(folder: str, path: str) -> os.stat_result | None:
    try:
        stat_result = stat_file(os.path.join(folder, path))
    except (OSError, ValueError):  # ValueError is raised if the path contains a NUL
        return None
    return stat_result if stat.S_ISREG(stat_result.st_mode) else None


def _find_unused_object(root: bytes, texts: Texts, packed: Sequence[Texts]) -> str:
    packed_texts = {text for column in packed for text in column}
    unpacked = [text for text in texts if text and text not in packed_texts and "\0" not in text]
    candidates = [text for text in unpacked if path_ending(text, "last").lower() in BINARY_ENDINGS]
    candidates = candidates[:_MAX_CHECKED_OBJECTS]
    if not candidates:
        return ""
    paths = [*relative_to_root(arrow.text_array(candidates), root).to_pylist()]
    data = b"".join([to_bytes(path) + b"\0" for path in paths])
    try:
        part = stat_files(StatTask(root, data, outside=False))
    except StoreFailed:  # the run reports the error later, if it needs the store
        return ""
    problems = np.frombuffer(part.facts, np.int64).reshape(-1, 4)[:, 3]
    return candidates[0] if not problems.any() else ""


def _packing_options(roles: ColumnRoles, examples: Mapping[str, str], dots: Dots) -> str:
    if len(examples) == 1 and not (roles.paths() or roles.binary or roles.urls):
        return option_text("path", next(iter(examples)))
    words = [option_text("path", roles.path)] if roles.path is not None else []
    used_fields = {*roles.field_names()}
    for name, example in examples.items():
        ending = path_ending(example, dots) or "FIELD"
        is_free = ending not in used_fields and roles.path is None
        field = ending if is_free else f"{_UNSAFE_FIELD_CHARACTER.sub('_', name)}.{ending}"
        used_fields.add(field)
        words.append(option_text("file", {field: name}))
    return " ".join(words)
