"""Errors of source files that cannot be read, or that changed since they were listed."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from shardtool.errors import (
    PROCESS_ERRNOS,
    is_out_of_memory,
    os_error_text,
    printable,
    raise_if_machine_error,
)

if TYPE_CHECKING:
    from shardtool.skipped import SkipCode
    from shardtool.storage.remote.objects import FileInfo


class SourceFailed(Exception):
    """A file cannot be read, or is not what the plan saw; or a transform cannot take the sample."""

    def __init__(self, path: bytes, code: SkipCode, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.path, self.code, self.message, self.detail = path, code, message, detail


def describe_change(fact: FileInfo, size: int, mtime_ns: int | None, doing: str) -> str:
    """Return in what a file is not the one that the plan saw, for messages; empty: in nothing; None is any time."""
    if fact.st_size != size:
        return f"changed while it was {doing}: {size:,} bytes in the plan, {fact.st_size:,} now"
    if mtime_ns in (None, fact.st_mtime_ns):
        return ""
    what = "modification time" if isinstance(fact, os.stat_result) else "version (ETag)"
    return f"changed while it was {doing}: its {what} is another"


class RestartShard(Exception):
    """A sample failed after a part of it was written."""


class SourceTouched(RestartShard):
    """The ctime of a file changed during a read, so the shard may contain a mixture of two versions."""

    def __init__(self, path: bytes) -> None:
        super().__init__(path)
        self.path = path


def read_error(path: bytes, error: OSError) -> SourceFailed:
    """Return the failure of a file that cannot be read; a lack of memory is raised, for it is no fault of the file."""
    if is_out_of_memory(error):
        raise error
    raise_if_machine_error(error, printable(path), PROCESS_ERRNOS)
    if error.errno == errno.ESTALE:
        return SourceFailed(path, "changed", "changed while it was packed")
    code: SkipCode = "vanished" if isinstance(error, FileNotFoundError) else "unreadable"
    return SourceFailed(path, code, os_error_text(error))


def change_error(path: bytes, size: int, mtime_ns: int, got: int, fact: FileInfo) -> SourceFailed:
    """Return the failure of a file that is not what the plan saw."""
    if got != size == fact.st_size:
        return SourceFailed(path, "changed", f"gives {got:,} bytes where the file system says {size:,}")
    return SourceFailed(path, "changed", describe_change(fact, size, mtime_ns, "packed"))
