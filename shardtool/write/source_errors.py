"""Errors for source files that cannot be read or have changed."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from shardtool.errors import PROCESS_ERRNOS, is_out_of_memory, os_error_text, printable, raise_if_machine_error

if TYPE_CHECKING:
    from shardtool.skipped import SkipCode
    from shardtool.storage.remote.objects import FileInfo


class SourceFailed(Exception):
    """A source file cannot be read or differs from the plan, or a transform rejects its sample."""

    def __init__(self, path: bytes, code: SkipCode, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.path, self.code, self.message, self.detail = path, code, message, detail


def describe_change(info: FileInfo, size: int, mtime_ns: int | None, action: str) -> str:
    """Return how a file differs from the plan, or "". If `mtime_ns` is None, compare only sizes."""
    if info.st_size != size:
        return f"changed while it was {action}: {size:,} bytes in the plan, {info.st_size:,} now"
    if mtime_ns in (None, info.st_mtime_ns):
        return ""
    property_name = "modification time" if isinstance(info, os.stat_result) else "version (ETag)"
    return f"changed while it was {action}: its {property_name} differs"


class RestartShard(Exception):
    """A sample failed after it was partly written, so the shard must be packed again."""


class SourceTouched(RestartShard):
    """The ctime of a file changed while it was read, so the shard may mix two versions."""

    def __init__(self, path: bytes) -> None:
        super().__init__(path)
        self.path = path


def read_error(path: bytes, error: OSError) -> SourceFailed:
    """Return the error for a file that cannot be read, or raise an error if this process or machine is the cause."""
    if is_out_of_memory(error):
        raise error
    raise_if_machine_error(error, printable(path), PROCESS_ERRNOS)
    if error.errno == errno.ESTALE:
        return SourceFailed(path, "changed", "changed while it was packed")
    code: SkipCode = "vanished" if isinstance(error, FileNotFoundError) else "unreadable"
    return SourceFailed(path, code, os_error_text(error))


def change_error(path: bytes, size: int, mtime_ns: int, size_read: int, info: FileInfo) -> SourceFailed:
    """Return the error for a file that differs from the plan."""
    if size_read != size == info.st_size:
        return SourceFailed(path, "changed", f"contains {size_read:,} bytes, but the file system reports {size:,}")
    return SourceFailed(path, "changed", describe_change(info, size, mtime_ns, "packed"))
