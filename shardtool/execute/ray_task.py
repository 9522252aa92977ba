"""What runs on the nodes of a Ray cluster: a task as a local worker would run it, and a look at what a node has.

It imports nothing of Ray. A task may run twice, and both at the same time: a node that was taken for dead may still
write. So the temporary files of each attempt have names of its own, and the parent publishes those of the attempt
whose result it got.
"""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from shardtool import wording
from shardtool.errors import reason
from shardtool.execute.pool import reported, reporter, what_of
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


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a task, or the error that ended it: exceptions that Ray raises for a task would have its type."""

    result: object = None
    error: Exception | None = None


def serve(surroundings: Surroundings, function: Callable[..., object], number: int, task: object, tally: Any) -> Answer:
    """Do one task, in the process of a Ray worker; `tally` is an actor that counts, `TaskCounts`, or None."""
    surroundings.enter()
    staging.set_attempt(token_hex(ATTEMPT_BYTES))
    what = what_of(function, task)
    try:
        if tally is None:
            return Answer(function(task))

        def tell(done: list[int]) -> None:  # all of this attempt, and what failed is told at the task's end
            tally.add.remote(number, *done[:2])

        return Answer(function(task, reporter(tell, _REPORT_S, in_all=True)))
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent must hear of it
        return Answer(error=reported(what, error))


class TaskCounts:
    """What tasks have done so far, by number: an actor, to which each attempt tells what it has done in all."""

    def __init__(self) -> None:
        self._done: dict[int, tuple[int, int]] = {}

    def add(self, number: int, samples: int, size: int) -> None:
        """Note what the latest attempt at a task has done."""
        self._done[number] = samples, size

    def take(self) -> dict[int, tuple[int, int]]:
        """Return what was noted since the last time."""
        done, self._done = self._done, {}
        return done


def see(path: str | bytes) -> str:
    """Return what this process sees at a path: a folder, a file with its size and time, or what is wrong."""
    try:
        fact = os.stat(path)
    except OSError as error:
        return reason(error)
    if stat.S_ISDIR(fact.st_mode):
        return "a folder"
    seconds, rest = divmod(fact.st_mtime_ns, 10**9)
    return f"{fact.st_size:,} bytes, changed at {seconds}.{rest:09}" if stat.S_ISREG(fact.st_mode) else "special"


def look(
    surroundings: Surroundings, needs: Needs, wanted: dict[str | bytes, str], marker: str
) -> list[tuple[str, str]]:
    """Return what this node has and should not, or lacks, and what was expected.

    Args:
        surroundings: Those of the parent.
        needs: What is looked at, but for its paths.
        wanted: What the parent sees at each path.
        marker: The path of a file that the parent has just made in the output folder.
    """
    surroundings.enter()
    problems = [
        (f"{os.fsdecode(path)}: {found}", f"{there}, as here")
        for path, there in wanted.items()
        if (found := see(path)) != there
    ]
    where = needs.output or "."
    if needs.output is not None and not os.path.exists(marker):
        problems.append((f"{where}: another folder, or none", "the folder that this process writes to"))
    elif needs.output is not None and not os.access(where, os.W_OK | os.X_OK):
        problems.append((f"{where}: no permission to write", "a folder that every node may write to"))
    if needs.function and (problem := _problem(needs.function)):
        expected = "a module that is installed on each node, or lies in a folder that all of them share"
        problems.append((f"{needs.function}: {problem}", expected))
    return problems


def _problem(function: str) -> str:
    module = function.partition(":")[0]
    try:
        return "" if find_spec(module) else f"no module {module}"
    except (ImportError, ValueError) as error:
        return str(error)
