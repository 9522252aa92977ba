"""Write to file descriptors, and find processes with open files."""

from __future__ import annotations

import os
from contextlib import suppress


def processes_with_open_files(folder: str) -> dict[str, list[int]]:
    """Return a dict from each open file below a folder to the ids of the processes that use the file."""
    pids_of: dict[str, list[int]] = {}
    prefix = os.path.join(os.path.realpath(folder), "")
    with suppress(OSError):
        for pid in sorted(map(int, filter(str.isdigit, os.listdir("/proc")))):
            with suppress(OSError):
                paths = {_link_target(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
                for path in paths:
                    if path.startswith(prefix):
                        pids_of.setdefault(path, []).append(pid)
    return pids_of


def _link_target(link: str) -> str:
    with suppress(OSError):
        return os.readlink(link)
    return ""


def write_all(fd: int, data: bytes | memoryview, offset: int | None = None) -> None:
    """Write all of `data` at `offset`, or at the current position if `offset` is None."""
    remaining = memoryview(data).cast("B")
    while remaining:
        done = os.write(fd, remaining) if offset is None else os.pwrite(fd, remaining, offset)
        remaining = remaining[done:]
        offset = None if offset is None else offset + done
