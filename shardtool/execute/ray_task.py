"""What runs on the nodes of a Ray cluster: a task as a local worker would run it, and a look at what a node has.

It imports nothing of Ray. A task may run twice, and both at the same time: a node that was taken for dead may still
write. So the temporary files of each attempt have names of its own, and the parent publishes those of the attempt
whose result it got.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from secrets import token_hex
from typing import TYPE_CHECKING, Protocol

from shardtool import wording
from shardtool.errors import reason
from shardtool.execute.pool import reported, what_of
from shardtool.storage import staging

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardtool.execute.pool import Needs

_REPORT_S = 1.0
ATTEMPT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What tasks find as they would on the parent's machine.

    Attributes:
        folder: The current folder, which relative paths count from.
        path: Where modules are looked for, after the node's own places.
        umask: Which rights new files lack.
        command_line: Whether messages call options as the command line does.
    """

    folder: str
    path: tuple[str, ...]
    umask: int
    command_line: bool

    @classmethod
    def here(cls) -> Surroundings:
        """Return those of this process."""
        umask = os.umask(0o077)
        os.umask(umask)
        path = tuple(os.path.abspath(one) for one in sys.path)
        return cls(os.getcwd(), path, umask, wording.speaks_command_line())

    def enter(self) -> None:
        """Make this process have them; without the folder where there is none."""
        with suppress(OSError):
            os.chdir(self.folder)
        sys.path += [one for one in self.path if one not in sys.path and os.path.exists(one)]
        os.umask(self.umask)
        wording.set_words(command_line=self.command_line)


class TaskTally(Protocol):
    """An actor that counts what tasks have done so far."""

    add: Remote


class Remote(Protocol):
    """A method of an actor."""

    def remote(self, number: int, samples: int, size: int) -> object:
        """Call it, and wait for nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a task, or the error that ended it: exceptions that Ray raises for a task would have its type."""

    result: object = None
    error: Exception | None = None


def serve(
    surroundings: Surroundings, function: Callable[..., object], number: int, task: object, tally: TaskTally | None
) -> Answer:
    """Do one task, in the process of a Ray worker."""
    surroundings.enter()
    staging.set_attempt(token_hex(ATTEMPT_BYTES))
    what = what_of(function, task)
    try:
        return Answer(function(task) if tally is None else function(task, _reporter(tally, number)))
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent must hear of it
        return Answer(error=reported(what, error))


def _reporter(tally: TaskTally, number: int) -> Callable[..., None]:
    """Return what reports all that this attempt has done so far: a second attempt begins at nothing again."""
    last, samples, size = time.monotonic(), 0, 0

    def report(more_samples: int, more_bytes: int, *_: int) -> None:  # what failed is told at the task's end
        nonlocal last, samples, size
        samples, size = samples + more_samples, size + more_bytes
        if time.monotonic() - last > _REPORT_S:
            tally.add.remote(number, samples, size)
            last = time.monotonic()

    return report


class TaskCounts:
    """What tasks have done so far, by number; the actor behind `TaskTally`."""

    def __init__(self) -> None:
        self._done: dict[int, tuple[int, int]] = {}

    def add(self, number: int, samples: int, size: int) -> None:
        """Note what the latest attempt at a task has done."""
        self._done[number] = samples, size

    def take(self) -> dict[int, tuple[int, int]]:
        """Return what was noted since the last time."""
        done, self._done = self._done, {}
        return done


@dataclass(frozen=True, slots=True)
class FileSeen:
    """A file or folder as a process sees it.

    Attributes:
        path: Where.
        kind: `a file`, `a folder`; or what is wrong.
        size: Bytes of a file, otherwise 0.
        mtime_ns: When a file was changed, otherwise 0.
    """

    path: str | bytes
    kind: str
    size: int = 0
    mtime_ns: int = 0

    @property
    def is_there(self) -> bool:
        """Whether there is something to compare with."""
        return self.kind in ("a file", "a folder")


def see(path: str | bytes) -> FileSeen:
    """Return what this process sees at a path."""
    try:
        fact = os.stat(path)
    except OSError as error:
        return FileSeen(path, reason(error))
    if stat.S_ISDIR(fact.st_mode):
        return FileSeen(path, "a folder")
    return (
        FileSeen(path, "a file", fact.st_size, fact.st_mtime_ns)
        if stat.S_ISREG(fact.st_mode)
        else FileSeen(path, "special")
    )


@dataclass(frozen=True, slots=True)
class NodeView:
    """What a node sees of what was asked for.

    Attributes:
        files: Of each path.
        marker: Whether the parent's marker lies in the output folder.
        writable: Whether this node may write there.
        function: What is wrong with the function; empty: nothing.
    """

    files: tuple[FileSeen, ...]
    marker: bool = True
    writable: bool = True
    function: str = ""


def look(surroundings: Surroundings, needs: Needs, marker: str) -> NodeView:
    """Return what this node sees.

    Args:
        surroundings: Those of the parent.
        needs: What is looked at.
        marker: The path of a file that the parent has just made in the output folder.
    """
    surroundings.enter()
    files = tuple(map(see, needs.paths))
    if needs.output is not None:
        return NodeView(files, os.path.exists(marker), os.access(needs.output or ".", os.W_OK | os.X_OK))
    return NodeView(files, function=_problem(needs.function) if needs.function else "")


def _problem(function: str) -> str:
    module = function.partition(":")[0]
    try:
        return "" if find_spec(module) else f"no module {module}"
    except (ImportError, ValueError) as error:
        return str(error)
