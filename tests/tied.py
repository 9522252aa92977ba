"""Processes that end with the one that started them, however that ends: nothing of the tests outlives them.

    python -IS tied.py PARENT PROGRAM WORD...

becomes the program. Linux alone has such a rule; elsewhere a process ends when its parent says so. It holds for the
thread that starts a process, here that of the tests, and for that process: one that it forks ties itself anew.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def tie(parent: int) -> None:
    """Have this process killed when its parent ends, which may have happened already."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def tied(*command: str) -> list[str]:
    """Return the command that runs another one, tied to this process."""
    return [sys.executable, "-IS", str(Path(__file__).resolve()), str(os.getpid()), *command]


if __name__ == "__main__":
    tie(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - the command of a test
