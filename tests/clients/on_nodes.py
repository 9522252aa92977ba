"""Functions for `--map` that do something to the node that they run on, once, as a file in the field `do` asks for."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

KEY = "__key__"
Sample = dict[str, Any]


def _first(flag: Path) -> bool:
    """Return whether this call is the first of all that ask."""
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def act(sample: Sample) -> Sample:
    """Do what `do` says: an action and the folder of its flags."""
    action, _, place = sample.pop("do", b"").decode().partition(" ")
    flags = Path(place)
    if action == "kill-worker" and _first(flags / "killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    if action in ("kill-raylet", "stop-raylet") and _may_lose(flags) and _first(flags / "killed"):
        os.kill(os.getppid(), signal.SIGKILL if action == "kill-raylet" else signal.SIGSTOP)
        if action == "stop-raylet":  # the node is taken for dead, and this attempt goes on beside the next one
            _wait_for(flags / "again")
    elif action == "stop-raylet" and (flags / "killed").exists():
        (flags / "again").touch()
        time.sleep(0.5)
    if action == "slow" and _may_lose(flags):
        time.sleep(0.3)
    if action == "wait":
        _wait_for(flags / "go")
    if action == "fail":
        raise ValueError(sample[KEY])
    return sample


def _may_lose(flags: Path) -> bool:
    """Return whether this node is one that a test may lose: their raylets are listed, and not the driver's."""
    return str(os.getppid()) in (flags / "raylets").read_text().split()


def _wait_for(flag: Path) -> None:
    latest = time.monotonic() + 30
    while not flag.exists() and time.monotonic() < latest:
        time.sleep(0.02)
