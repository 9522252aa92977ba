"""The files that a scan found, as columns, and rows for skipped files."""

from __future__ import annotations

import errno
from array import array
from collections import Counter
from dataclasses import dataclass, field

from shardtool.errors import os_error_text
from shardtool.names import to_text
from shardtool.skipped import SkipCode, Skipped
from shardtool.source.scan_rules import SYSTEM_FILES, ScanRules

_MAC_FILES = (b"._", b".DS_Store")  # prefixes: `._NAME` next to each file, and `.DS_Store`


SPECIAL_FILE_MESSAGE = "a fifo, socket or device; only files can be packed"


ALWAYS_CHANGED = 2**62  # change time for targets that change without a trace in the tree


@dataclass
class ScanPart:
    """Columns of the samples found: see `SampleTable`."""

    fields: dict[bytes, int] = field(default_factory=dict)
    keys: list[bytes] = field(default_factory=list)
    counts: array[int] = field(default_factory=lambda: array("I"))
    codes: array[int] = field(default_factory=lambda: array("I"))
    kinds: bytearray = field(default_factory=bytearray)
    sizes: array[int] = field(default_factory=lambda: array("q"))
    mtimes: array[int] = field(default_factory=lambda: array("q"))
    changed: array[int] = field(default_factory=lambda: array("q"))
    skipped: list[Skipped] = field(default_factory=list)
    left_behind: Counter[bytes] = field(default_factory=Counter)

    def packed(self) -> ScanPart:
        """Return the part with its keys as one buffer, for fast pickling."""
        self.keys = [b"".join([key + b"\0" for key in self.keys])]
        return self


def count_system_file(rules: ScanRules, prefix: bytes, name: bytes, part: ScanPart) -> None:
    """Count an ignored name, unless a rule excludes it."""
    if (name in SYSTEM_FILES or name.startswith(_MAC_FILES)) and rules.includes_file(prefix, name):
        part.left_behind[b"._*" if name[:2] == b"._" else name] += 1


def link_failure(error: OSError) -> tuple[SkipCode, str]:
    """Return the reason code and message for a link that cannot be followed."""
    if isinstance(error, FileNotFoundError):
        return "dangling-link", "a link to nothing"
    return "link-loop" if error.errno == errno.ELOOP else "unreadable", os_error_text(error)


def skipped_row(key: bytes, path: bytes, code: SkipCode, message: str) -> Skipped:
    """Return a skipped row from bytes."""
    return Skipped(to_text(key), to_text(path), code, message)


def no_field_row(prefix: bytes, name: bytes) -> Skipped:
    """Return the skipped row of a file without a field."""
    return skipped_row(b"", prefix + name, "no-field", "the name has no extension to name a field")


def path_failure(error: OSError) -> tuple[SkipCode, str]:
    """Return the reason code and message for a path that cannot be read."""
    is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
    return "vanished" if is_missing else "unreadable", os_error_text(error)
