"""Kill child processes when their parent exits for any reason, so that no process outlives the tests.

    python -IS tied.py PARENT PROGRAM WORD...

runs the program, and kills it when the process PARENT exits. Only Linux supports this. On other systems, the parent
must stop its children. Linux kills the child when the thread that started it exits. Forked children of the program are
not tied, and must call `tie` themselves.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def tie(parent: int) -> None:
    """Let the kernel kill this process when its parent exits; exit now if the parent has already exited."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def tied(*command: str) -> list[str]:
    """Return a command that runs `command` and is killed when this process exits."""
    return [sys.executable, "-IS", str(Path(__file__).resolve()), str(os.getpid()), *command]


if __name__ == "__main__":
    tie(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - the command comes from a test
