"""Run tasks on the nodes of a Ray cluster, and check what a node can see. Does not import Ray.

A task may run twice at the same time, because a node that was considered dead may still write. Each attempt
therefore
uses its own temporary names, and the parent publishes the files of the attempt whose result it received.
"""

from __future__ import annotations

import importlib
import os
import stat
import sys
from contextlib import suppress
from importlib.util import find_spec, spec_from_loader
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from shardtool import messages
from shardtool.errors import (
    os_error_text,
)
from shardtool.execute.pool import as_reportable, describe_task, make_reporter

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType


_INSTALL_FOLDERS = {"site-packages", "dist-packages"}


_REPORT_INTERVAL_S = 1.0


ATTEMPT_TOKEN_BYTES = 4


class TaskEnvironment(NamedTuple):
    """What tasks find as they would on the parent's machine.

    Attributes:
        folder: The current folder, which relative paths count from.
        path: Where modules are looked for, after the node's own places.
        umask: Which rights new files lack.
        command_line: Whether messages call options as the command line does.
        variables: What options about stores have put into the environment.
        sources: Modules that a node may lack, which the function of `--map` needs: name to source.
    """

    folder: str
    path: tuple[str, ...]
    umask: int
    command_line: bool
    variables: dict[str, str]
    sources: dict[str, str]

    @classmethod
    def here(cls, function: str = "") -> TaskEnvironment:
        """Return those of this process, for a function of the user's, `module:name`, or none."""
        from shardtool.storage.paths import INHERITED_VARIABLES

        umask = os.umask(0o077)
        os.umask(umask)
        path = tuple(os.path.abspath(one) for one in sys.path)
        variables = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
        sources = _function_sources(function) if function else {}
        return cls(os.getcwd(), path, umask, messages.uses_cli_names(), variables, sources)

    def enter(self) -> None:
        """Make this process have them; without the folder where there is none."""
        with suppress(OSError):
            os.chdir(self.folder)
        sys.path += [one for one in self.path if one not in sys.path and os.path.exists(one)]
        os.umask(self.umask)
        os.environ.update(self.variables)
        messages.set_cli_names(command_line=self.command_line)
        _SentModules(self.sources).enter()


def _function_sources(function: str) -> dict[str, str]:
    """Return the sources of the module of a function, and of what lies in its folder, or below, and is imported by now.

    What is installed is none of that: packages are for the nodes to have, and hold more than sources.
    """
    import sysconfig

    from shardtool.storage.files import read_small
    from shardtool.transform.transform import find_function

    find_function(function)
    name = function.partition(":")[0]
    if not (file := getattr(sys.modules[name], "__file__", None)):
        return {}
    above = os.path.abspath(file)
    for _ in range(1 + name.count(".") + hasattr(sys.modules[name], "__path__")):
        above = os.path.dirname(above)
    found, python = {}, sysconfig.get_path("stdlib")
    for one, module in [*sys.modules.items()]:
        path = os.path.abspath(getattr(module, "__file__", None) or "")
        installed = one.partition(".")[0] in ("__main__", "shardtool") or _INSTALL_FOLDERS.intersection(
            path.split(os.sep)
        )
        if path.startswith(os.path.join(above, "")) and not installed and not path.startswith(python):
            with suppress(OSError, UnicodeDecodeError):
                found[one] = read_small(path).decode()
    return found


class _SentModules:
    """What imports the modules that came with a task, where the node has none of that name.

    It is a finder and a loader by its methods: the classes of `importlib.abc` cost each start 10 ms.

    Args:
        sources: Name to source.
    """

    def __init__(self, sources: dict[str, str]) -> None:
        self.sources = sources

    def enter(self) -> None:
        """Be asked for modules, after all others; what a worker has imported for an earlier run is forgotten."""
        from shardtool.transform.transformer import get_transformer

        before = [one for one in sys.meta_path if isinstance(one, _SentModules)]
        if self.sources and all(one.sources != self.sources for one in before):
            for name in {*self.sources}.union(*(one.sources for one in before)):
                sys.modules.pop(name, None)
            sys.meta_path[:] = [*(one for one in sys.meta_path if one not in before), cast("Any", self)]
            importlib.invalidate_caches()
            get_transformer.cache_clear()

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Return the spec of a module; None: it is none of these."""
        return spec_from_loader(name, cast("Any", self)) if name in self.sources or self.is_package(name) else None

    def is_package(self, name: str) -> bool:
        """Tell whether some of these lie in a module."""
        return any(one.startswith(f"{name}.") for one in self.sources)

    def create_module(self, _spec: ModuleSpec) -> None:
        """Leave it to Python."""

    def exec_module(self, module: ModuleType) -> None:
        """Run a module; a folder of modules may have no source."""
        exec(compile(self.sources.get(module.__name__, ""), module.__name__, "exec"), module.__dict__)  # noqa: S102


class TaskResult(NamedTuple):
    """The result of a task, or the error that ended it: exceptions that Ray raises for a task would have its type."""

    result: object = None
    error: Exception | None = None


def run_task(
    surroundings: TaskEnvironment, function: Callable[..., object], number: int, task: object, tally: Any
) -> TaskResult:
    """Do one task, in the process of a Ray worker; `tally` is an actor that counts, `TaskCounts`, or None."""
    from shardtool.storage import staging

    surroundings.enter()
    staging.set_attempt(token_hex(ATTEMPT_TOKEN_BYTES))
    what = describe_task(function, task)
    try:
        if tally is None:
            return TaskResult(function(task))

        def tell(done: list[int]) -> None:  # all of this attempt, and what failed is told at the task's end
            tally.add.remote(number, *done[:2])

        return TaskResult(function(task, make_reporter(tell, _REPORT_INTERVAL_S, cumulative=True)))
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent must hear of it
        return TaskResult(error=as_reportable(what, error))


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


def describe_path(path: str | bytes) -> str:
    """Return what this process sees at a path: a folder, a file with its size and time, or what is wrong."""
    try:
        fact = os.stat(path)
    except OSError as error:
        return os_error_text(error)
    if stat.S_ISDIR(fact.st_mode):
        return "a folder"
    seconds, rest = divmod(fact.st_mtime_ns, 10**9)
    return f"{fact.st_size:,} bytes, changed at {seconds}.{rest:09}" if stat.S_ISREG(fact.st_mode) else "special"


def inspect_node(
    surroundings: TaskEnvironment, wanted: dict[str | bytes, str], output: str | None, marker: str, function: str
) -> list[tuple[str, str]]:
    """Return what this node has and should not, or lacks, and what was expected.

    Args:
        surroundings: Those of the parent.
        wanted: What the parent sees at each path.
        output: The folder that workers write into; None: none is looked at.
        marker: The path of a file that the parent has just made there.
        function: `module:name` of a function of the user's; empty: there is none.
    """
    surroundings.enter()
    problems = [
        (f"{os.fsdecode(path)}: {found}", f"{there}, as here")
        for path, there in wanted.items()
        if (found := describe_path(path)) != there
    ]
    where = output or "."
    if output is not None and not os.path.exists(marker):
        problems.append((f"{where}: another folder, or none", "the folder that this process writes to"))
    elif output is not None and not os.access(where, os.W_OK | os.X_OK):
        problems.append((f"{where}: no permission to write", "a folder that every node may write to"))
    if function and (problem := _module_problem(function, surroundings.sources)):
        problems.append((f"{function}: {problem}", "the module of this process"))
    return problems


def _module_problem(function: str, sources: dict[str, str]) -> str:
    """Return what is wrong with the module of a function on this node; empty: nothing."""
    from shardtool.storage.files import read_small

    module = function.partition(":")[0]
    try:
        found = find_spec(module)
        if found and found.origin and module in sources and read_small(found.origin) != sources[module].encode():
            return f"another module {module}"
    except (ImportError, ValueError, OSError) as error:
        return str(error)
    return "" if found else f"no module {module}"
