"""File descriptors: write all bytes, and find the processes that have a file open."""

from __future__ import annotations

import os
from contextlib import suppress


def processes_with_open_files(folder: str) -> dict[str, list[int]]:
    """Return which processes have files below a folder open, as far as this system shows: path to their ids."""
    found: dict[str, list[int]] = {}
    top = os.path.join(os.path.realpath(folder), "")
    with suppress(OSError):
        for pid in sorted(map(int, filter(str.isdigit, os.listdir("/proc")))):
            with suppress(OSError):  # it ended, or is another user's
                paths = {_link_target(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
                for path in paths:
                    if path.startswith(top):
                        found.setdefault(path, []).append(pid)
    return found


def _link_target(link: str) -> str:
    with suppress(OSError):
        return os.readlink(link)
    return ""


def write_all(fd: int, data: bytes | memoryview, at: int | None = None) -> None:
    """Write all of `data`, at a place in a file or behind what was written last, in as many calls as that takes.

    Raises:
        OSError: The disk is full, or refuses.
    """
    rest = memoryview(data).cast("B")
    while rest:
        done = os.write(fd, rest) if at is None else os.pwrite(fd, rest, at)
        rest, at = rest[done:], None if at is None else at + done
