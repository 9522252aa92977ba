"""Find the samples with the listed keys."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from shardtool.entries.strings import PackedStrings
from shardtool.errors import InvalidRequest, format_list, os_error_text, printable
from shardtool.messages import option_text
from shardtool.names import to_bytes
from shardtool.skipped import hash_key
from shardtool.storage.files import read_small
from shardtool.storage.paths import similar_path
from shardtool.table.keys import find_positions
from shardtool.units import pluralize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.int64]


_MAX_LISTED_KEYS = 5


def find_samples_by_key(keys: PackedStrings, given: object, removed: Collection[str] = ()) -> Rows:
    """Return the numbers of the samples with the requested keys, ascending.

    `given`: a file with one key per line, `-` for standard input, or the keys. `removed`: hashes of keys that may be
    missing.
    """
    requested = PackedStrings.of(dict.fromkeys(_read_keys(given)))
    if not len(requested):
        raise InvalidRequest(option_text("keys_from"), "no key", expected="one key per line")
    matches = find_positions(keys, requested)
    unknown = np.setdiff1d(np.arange(len(requested)), matches).tolist()
    unknown_keys = [requested[index] for index in unknown if not removed or hash_key(requested[index]) not in removed]
    if unknown_keys:
        shown = [*map(printable, unknown_keys[:_MAX_LISTED_KEYS])]
        listed = format_list(shown, total=len(unknown_keys))
        problem = f"{pluralize(len(unknown_keys), 'key')} that no sample has: {listed}"
        example = f", such as {printable(keys[0])}" if len(keys) else ""
        expected, remedy = f"keys of the dataset{example}", "Nothing was changed."
        raise InvalidRequest(option_text("keys_from"), problem, expected=expected, remedy=remedy)
    return np.flatnonzero(matches >= 0)


def _read_keys(given: object) -> list[bytes]:
    if isinstance(given, str | os.PathLike):
        path = os.fspath(given)
        try:
            data = sys.stdin.buffer.read() if path == "-" else read_small(path)
        except OSError as error:
            problem, remedy = f"{path}: {os_error_text(error)}", "" if os.path.lexists(path) else similar_path(path)
            raise InvalidRequest(option_text("keys_from"), problem, expected="a file of keys", remedy=remedy) from None
        lines = data.removeprefix(b"\xef\xbb\xbf").splitlines()
        return [line for line in lines if line and b"\0" not in line]
    if isinstance(given, Iterable) and not isinstance(given, bytes):
        keys = [*given]
        if all(isinstance(key, str) and key and "\0" not in key for key in keys):
            with suppress(UnicodeEncodeError):  # a lone surrogate cannot be encoded
                return [to_bytes(key) for key in keys]
    raise InvalidRequest(
        option_text("keys_from"), type(given).__name__, expected="a file with one key per line, or keys"
    )
