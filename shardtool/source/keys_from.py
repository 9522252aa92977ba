"""Find the samples whose keys a file, standard input or a program lists."""

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


_MAX_LISTED_KEYS = 5  # in a message


def find_samples_by_key(keys: PackedStrings, given: object, gone: Collection[str] = ()) -> Rows:
    """Return the places of the samples that have given keys, in their own order.

    Args:
        keys: The keys of all samples.
        given: A file with a key a line, `-` for standard input, or the keys.
        gone: Marks of keys that no sample needs to have, for these were removed.

    Raises:
        InvalidRequest: There is no such file, it has no key, or one that no sample has.
    """
    wanted = PackedStrings.of(dict.fromkeys(_read_keys(given)))
    if not len(wanted):
        raise InvalidRequest(option_text("keys_from"), "no key", expected="a key a line")
    found = find_positions(keys, wanted)
    unknown = np.setdiff1d(np.arange(len(wanted)), found).tolist()
    lacking = [wanted[at] for at in unknown if not gone or hash_key(wanted[at]) not in gone]
    if lacking:
        shown = [*map(printable, lacking[:_MAX_LISTED_KEYS])]
        problem = f"{pluralize(len(lacking), 'key')} that no sample has: {format_list(shown, total=len(lacking))}"
        example = f", such as {printable(keys[0])}" if len(keys) else ""
        expected, remedy = f"keys of the dataset{example}", "Nothing was touched."
        raise InvalidRequest(option_text("keys_from"), problem, expected=expected, remedy=remedy)
    return np.flatnonzero(found >= 0)


def _read_keys(given: object) -> list[bytes]:
    """Return the keys of a file, or of a program."""
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
        found = [*given]
        if all(isinstance(key, str) and key and "\0" not in key for key in found):
            with suppress(UnicodeEncodeError):  # half of a surrogate pair
                return [to_bytes(key) for key in found]
    raise InvalidRequest(option_text("keys_from"), type(given).__name__, expected="a file with a key a line, or keys")
