"""Kill child processes when their parent exits for any reason, so that no process outlives the tests.

    python -IS tied.py PARENT PROGRAM WORD...

runs the program. Only Linux supports this; elsewhere, the parent must stop its children. It applies to the thread that
starts a process, and to this process only: a forked child must call `tie` again.
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
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - the command of a test
