"""A function for `--map`, `act`, which disturbs the Ray worker or node on which it runs.

The field `do` of a sample contains an action and a folder. Files in this folder are flags that all tasks share.
"""

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
    """Create the file `flag`, and return whether this was the first call of any process."""
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def act(sample: Sample) -> Sample:
    """Perform the action in the field `do` while the sample is packed. Return the sample without this field."""
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
    """In the first attempt of the task, kill this process, but continue packing in a forked child.

    Ray considers the task failed and starts a second attempt, which writes the same shard at the same time.
    """
    if not _first(flags / "killed"):
        (flags / "again").touch()
        time.sleep(0.5)
        return
    if os.fork():
        os.kill(os.getpid(), signal.SIGKILL)
    for fd in range(3, 1024):  # close the connection to Ray, which would show that the child is alive
        if os.path.lexists(f"/proc/self/fd/{fd}") and stat.S_ISSOCK(os.fstat(fd).st_mode):
            os.close(fd)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(10)  # exit after 10 s at the latest, because no process waits for the child
    _wait_for(flags / "again")


def _is_packing() -> bool:
    """Return whether this process is writing a shard. Planning also calls the function, to estimate sizes."""
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return any(os.readlink(link).endswith(".part") for link in links if os.path.lexists(link))


def _may_lose(flags: Path) -> bool:
    """Return whether the test may kill this node. The file `raylets` lists all raylets except the driver's."""
    return str(os.getppid()) in (flags / "raylets").read_text().split()


def _wait_for(flag: Path) -> None:
    latest = time.monotonic() + 300
    while not flag.exists() and time.monotonic() < latest:
        time.sleep(0.02)
