"""Find the samples whose keys are in a text file, a table or a list."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from shardtool.entries import arrow
from shardtool.entries.strings import PackedStrings
from shardtool.errors import InvalidRequest, format_list, os_error_text, printable
from shardtool.messages import option_text
from shardtool.names import to_bytes
from shardtool.storage.files import read_small
from shardtool.storage.paths import base_name, real_path, similar_path
from shardtool.table.detect import is_frame, table_ending
from shardtool.table.keys import find_positions, gather_keys, is_key_type, iter_key_texts
from shardtool.units import pluralize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.int64]


_KEY_COLUMNS = ("key", "__key__")
_MAX_LISTED_KEYS = 5
_MAX_SIMILAR_KEYS, _MAX_COMPARED_KEYS = 3, 1000


def match_keys(
    keys: PackedStrings, key_list: object, is_known: Callable[[bytes], bool] | None = None, *, may_lack: bool = False
) -> tuple[Rows, str]:
    """Return the sorted positions in `keys` of the listed keys, and a message about unknown keys (or "").

    A listed key is unknown if `keys` does not contain it and `is_known` returns false. Unknown keys are an error. If
    `may_lack`, they are an error only if `keys` contains no listed key. `key_list` is a text file with one key per
    line, a table with a column `key`, `-` for standard input, or a list.
    """
    requested = _read_keys(key_list)
    if not len(requested):
        raise InvalidRequest(_option(key_list), "no key", expected="one key per line")
    matches = find_positions(keys, requested)
    is_unknown = np.ones(len(requested), bool)
    is_unknown[matches[matches >= 0]] = False
    unknown = np.flatnonzero(is_unknown)
    if is_known is not None:
        unknown = np.array([index for index in unknown.tolist() if not is_known(requested[index])], np.int64)
    samples = np.flatnonzero(matches >= 0)
    if not len(unknown):
        return samples, ""
    first = [requested[index] for index in unknown[:_MAX_LISTED_KEYS].tolist()]
    listed = format_list([*map(printable, first)], _MAX_LISTED_KEYS, total=len(unknown))
    problem = f"{pluralize(len(unknown), 'key')} not found: {listed}"
    if may_lack and len(samples):
        return samples, problem
    example = f", such as {printable(keys[0])}" if len(keys) else ""
    similar = [key for name in first for key in _similar_keys(name, keys)][:_MAX_SIMILAR_KEYS]
    hint = f"Did you mean {format_list([*dict.fromkeys(similar)])}? " if similar else ""
    expected, remedy = f"keys of the dataset{example}", f"{hint}Nothing was changed."
    raise InvalidRequest(_option(key_list), problem, expected=expected, remedy=remedy)


def key_list_name(key_list: object) -> str:
    """Return the name of a key list for the dataset file, without folders."""
    if isinstance(key_list, str | os.PathLike):
        return base_name(real_path(os.fspath(key_list)))
    return type(key_list).__name__ if _is_table_object(key_list) else "keys"


def _option(key_list: object) -> str:
    return option_text("keys" if isinstance(key_list, list | tuple) else "keys_from")


def _is_table_object(key_list: object) -> bool:
    return is_frame(key_list) or isinstance(key_list, Mapping) or hasattr(key_list, "__arrow_c_stream__")


def _read_keys(key_list: object) -> PackedStrings:
    path = os.fspath(key_list) if isinstance(key_list, str | os.PathLike) else None
    if table_ending(path or "") or _is_table_object(key_list):
        keys = _read_key_column(key_list)
    elif isinstance(key_list, PackedStrings):
        keys = key_list
    else:
        keys = PackedStrings.of(_listed_keys(key_list) if path is None else _read_lines(path))
    return PackedStrings.parse(bytes(arrow.concat_values(keys.array().unique())))


def _read_lines(path: str) -> list[bytes]:
    try:
        data = sys.stdin.buffer.read() if path == "-" else read_small(path)
    except OSError as error:
        is_shown = os.path.isfile(path) or os.path.isdir(path)
        remedy = "" if is_shown else similar_path(path) or "To read the keys from a pipe, use -."
        problem = f"{path}: {os_error_text(error)}"
        raise InvalidRequest(option_text("keys_from"), problem, expected="a file of keys", remedy=remedy) from None
    if b"\0" in data:
        raise InvalidRequest(option_text("keys_from"), f"{path}: NUL bytes", expected="UTF-8 text, one key per line")
    return [line for line in data.removeprefix(b"\xef\xbb\xbf").splitlines() if line]


def _listed_keys(key_list: object) -> list[bytes]:
    if isinstance(key_list, Iterable) and not isinstance(key_list, bytes):
        keys = [*key_list]
        if all(isinstance(key, str) and key and "\0" not in key for key in keys):
            with suppress(UnicodeEncodeError):  # a lone surrogate is invalid
                return [to_bytes(key) for key in keys]
        if "" in keys:
            raise InvalidRequest(_option(key_list), "an empty key", expected="keys such as cat/0001")
    raise InvalidRequest(_option(key_list), type(key_list).__name__, expected="a file with one key per line, or keys")


def _read_key_column(key_list: object) -> PackedStrings:
    from shardtool.table.open import open_table, read_columns
    from shardtool.table.payloads import missing_positions
    from shardtool.table.rows import TableRows

    table = open_table(key_list, _KEY_COLUMNS)
    name = next((name for name in _KEY_COLUMNS if name in table.schema.names), None)
    if name is None:
        found = f"no column 'key' among {format_list(table.schema.names)}"
        remedy = "Rename the column of keys, or use a text file (.txt) with one key per line."
        raise InvalidRequest(table.location, found, expected="a table with the keys in the column key", remedy=remedy)
    columns = read_columns(table, [name], {name})
    rows, column = TableRows(table.location, columns, None, table.row_counts()), columns[name]
    rows.refuse(missing_positions(column), f"column {name!r}: no key", expected="a key in each row")
    if not is_key_type(column.type):
        raise InvalidRequest(table.location, f"column {name!r} holds {column.type}", expected="keys as text")
    keys, invalid = gather_keys(iter_key_texts(column))
    rows.refuse(invalid, f"column {name!r}: a value that cannot be a key", expected="keys such as cat/0001")
    return keys


def _similar_keys(name: bytes, keys: PackedStrings) -> list[str]:
    from difflib import get_close_matches

    import pyarrow.compute as pc

    array, shortest, longest = keys.array(), 0, len(name)
    while shortest < longest:  # find the longest prefix that `name` shares with a key
        length = (shortest + longest + 1) // 2
        is_shared = pc.any(pc.starts_with(array, name[:length])).as_py()
        shortest, longest = (length, longest) if is_shared else (shortest, length - 1)
    masks = [pc.match_substring(array, name.rpartition(b"/")[2], ignore_case=True)]
    masks += [pc.starts_with(array, name[:shortest])] if shortest else []
    rows = [row for mask in masks for row in arrow.true_positions(mask)[:_MAX_COMPARED_KEYS].tolist()]
    return get_close_matches(printable(name), dict.fromkeys(printable(keys[row]) for row in rows))
