"""Functions for `--map` that do something to the node that they run on, once, as a file in the field `do` asks for."""

from __future__ import annotations

import os
import signal
import stat
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
    """Perform the action that the field `do` names, with its folder of flags."""
    action, _, place = sample.pop("do", b"").decode().partition(" ")
    flags = Path(place)
    if not _is_packing():
        return sample
    if action == "kill-worker" and _first(flags / "killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "kill-raylet" and _may_lose(flags) and _first(flags / "killed"):
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "go-on":
        _go_on(flags)
    if action == "slow" and _may_lose(flags):
        time.sleep(0.3)
    if action == "wait":
        _wait_for(flags / "go")
    if action == "fail":
        raise ValueError(sample[KEY])
    return sample


def _go_on(flags: Path) -> None:
    """In the first attempt, appear dead to Ray, and continue to write next to the second attempt."""
    if not _first(flags / "killed"):
        (flags / "again").touch()
        time.sleep(0.5)
        return
    if os.fork():
        os.kill(os.getpid(), signal.SIGKILL)
    for fd in range(3, 1024):  # the connection by which Ray detects this process
        if os.path.lexists(f"/proc/self/fd/{fd}") and stat.S_ISSOCK(os.fstat(fd).st_mode):
            os.close(fd)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(10)  # at the latest: no process waits for the result
    _wait_for(flags / "again")


def _is_packing() -> bool:
    """Return whether this process writes a shard: the plan tries the function on some samples before."""
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return any(os.readlink(link).endswith(".part") for link in links if os.path.lexists(link))


def _may_lose(flags: Path) -> bool:
    """Return whether a test may kill this node: only raylets that are not the driver's are listed."""
    return str(os.getppid()) in (flags / "raylets").read_text().split()


def _wait_for(flag: Path) -> None:
    latest = time.monotonic() + 300
    while not flag.exists() and time.monotonic() < latest:
        time.sleep(0.02)
