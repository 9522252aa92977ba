"""Run tasks on a node of a Ray cluster, and check which files and modules the node has.

This module does not import Ray. Two attempts at a task may run at the same time (docs/decisions/018-ray.md).
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
from shardtool.errors import os_error_text
from shardtool.execute.pool import as_reportable, describe_task, make_reporter
from shardtool.storage.remote.store_options import known_options, register_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType


_INSTALL_FOLDERS = {"site-packages", "dist-packages"}
_REPORT_INTERVAL_S = 1.0
ATTEMPT_TOKEN_BYTES = 4


class TaskEnvironment(NamedTuple):
    """The state of the parent process that each task restores.

    Attributes:
        path: `sys.path` of the parent, to search after the node's own `sys.path`.
        variables: Environment variables that options for remote stores have set.
        storage: Storage options, by the KEY in addresses (see `Address.marker`).
        sources: Source code of the modules of the `--map` function, by module name.
    """

    folder: str
    path: tuple[str, ...]
    umask: int
    command_line: bool
    variables: dict[str, str]
    storage: dict[str, dict[str, Any]]
    sources: dict[str, str]

    @classmethod
    def here(cls, function: str = "") -> TaskEnvironment:
        """Return the state of this process. If `function` is given, include the source code of its modules."""
        from shardtool.storage.paths import INHERITED_VARIABLES

        umask = os.umask(0o077)
        os.umask(umask)
        path = tuple(os.path.abspath(folder) for folder in sys.path)
        variables = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
        sources = _function_sources(function) if function else {}
        return cls(os.getcwd(), path, umask, messages.uses_cli_names(), variables, known_options(), sources)

    def enter(self) -> None:
        """Restore the parent's state in this process, except a working directory that does not exist here."""
        with suppress(OSError):
            os.chdir(self.folder)
        sys.path += [folder for folder in self.path if folder not in sys.path and os.path.exists(folder)]
        os.umask(self.umask)
        os.environ.update(self.variables)
        register_options(self.storage)
        messages.set_cli_names(command_line=self.command_line)
        _SentModules(self.sources).enter()


def _function_sources(function: str) -> dict[str, str]:
    """Return the source code of a function's module, and of all loaded modules in the same folder tree.

    Installed packages are not included, so every node must have them.
    """
    import sysconfig

    from shardtool.storage.files import read_small
    from shardtool.transform.transform import find_function

    find_function(function)
    name = function.partition(":")[0]
    if not (file := getattr(sys.modules[name], "__file__", None)):
        return {}
    is_package = hasattr(sys.modules[name], "__path__")
    root = os.path.dirname(os.path.abspath(file)) if is_package else os.path.abspath(file)
    for _ in name.split("."):
        root = os.path.dirname(root)
    sources, python = {}, sysconfig.get_path("stdlib")
    for module_name, module in [*sys.modules.items()]:
        path = os.path.abspath(getattr(module, "__file__", None) or "")
        is_own = module_name.partition(".")[0] not in ("__main__", "shardtool")
        is_own &= _INSTALL_FOLDERS.isdisjoint(path.split(os.sep)) and not path.startswith(python)
        if is_own and path.startswith(os.path.join(root, "")):
            with suppress(OSError, UnicodeDecodeError):
                sources[module_name] = read_small(path).decode()
    return sources


class _SentModules:
    """Imports modules whose source code was sent with a task, unless the node has them."""

    def __init__(self, sources: dict[str, str]) -> None:
        self.sources = sources

    def enter(self) -> None:
        from shardtool.transform.transformer import get_transformer

        previous = [finder for finder in sys.meta_path if isinstance(finder, _SentModules)]
        if self.sources and all(finder.sources != self.sources for finder in previous):
            for name in {*self.sources}.union(*(finder.sources for finder in previous)):
                sys.modules.pop(name, None)
            sys.meta_path[:] = [*(finder for finder in sys.meta_path if finder not in previous), cast("Any", self)]
            importlib.invalidate_caches()
            get_transformer.cache_clear()

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        return spec_from_loader(name, cast("Any", self)) if name in self.sources or self.is_package(name) else None

    def is_package(self, name: str) -> bool:
        return any(module_name.startswith(f"{name}.") for module_name in self.sources)

    def create_module(self, _spec: ModuleSpec) -> None:
        """Return None, so Python creates the module."""

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self.sources.get(module.__name__, ""), module.__name__, "exec"), module.__dict__)  # noqa: S102


class TaskResult(NamedTuple):
    """The result or the error of a task. The error is not raised, because Ray would change its type."""

    result: object = None
    error: Exception | None = None


def run_task(
    environment: TaskEnvironment, function: Callable[..., object], number: int, task: object, counts: Any
) -> TaskResult:
    """Run a task in a Ray worker process. Send the progress to `counts`, a `TaskCounts` actor or None."""
    from shardtool.storage import staging

    environment.enter()
    staging.set_attempt(token_hex(ATTEMPT_TOKEN_BYTES))
    location = describe_task(function, task)
    try:
        if counts is None:
            return TaskResult(function(task))

        def send_counts(totals: list[int]) -> None:
            counts.add.remote(number, *totals[:2])  # samples and bytes

        return TaskResult(function(task, make_reporter(send_counts, _REPORT_INTERVAL_S, cumulative=True)))
    except Exception as error:  # noqa: BLE001 - every error must reach the parent
        return TaskResult(error=as_reportable(location, error))


class TaskCounts:
    """A Ray actor that keeps the progress of each task's latest attempt."""

    def __init__(self) -> None:
        self._counts: dict[int, tuple[int, int]] = {}

    def add(self, number: int, samples: int, size: int) -> None:
        """Store the progress of an attempt."""
        self._counts[number] = samples, size

    def take(self) -> dict[int, tuple[int, int]]:
        """Return the progress stored since the last call, by task number."""
        counts, self._counts = self._counts, {}
        return counts


def describe_path(path: str | bytes) -> str:
    """Describe a path, to compare it between nodes: `a folder`, the size and time of a file, or the error."""
    try:
        info = os.stat(path)
    except OSError as error:
        return os_error_text(error)
    if stat.S_ISDIR(info.st_mode):
        return "a folder"
    seconds, rest = divmod(info.st_mtime_ns, 10**9)
    return f"{info.st_size:,} bytes, changed at {seconds}.{rest:09}" if stat.S_ISREG(info.st_mode) else "special"


def inspect_node(
    environment: TaskEnvironment, expected_paths: dict[str | bytes, str], output: str | None, marker: str, function: str
) -> list[tuple[str, str]]:
    """Return how this node differs from the parent, as pairs (found, expected).

    `expected_paths` maps paths to the parent's results of `describe_path`. The node must see `marker`, a file that the
    parent created in `output`.
    """
    environment.enter()
    problems = [
        (f"{os.fsdecode(path)}: {description}", f"{expected}, as here")
        for path, expected in expected_paths.items()
        if (description := describe_path(path)) != expected
    ]
    folder = output or "."
    if output is not None and not os.path.exists(marker):
        problems.append((f"{folder}: missing, or a different folder", "the folder that this process writes to"))
    elif output is not None and not os.access(folder, os.W_OK | os.X_OK):
        problems.append((f"{folder}: no permission to write", "a folder that every node may write to"))
    if function and (problem := _module_problem(function, environment.sources)):
        problems.append((f"{function}: {problem}", "the module of this process"))
    return problems


def _module_problem(function: str, sources: dict[str, str]) -> str:
    from shardtool.storage.files import read_small

    module = function.partition(":")[0]
    try:
        spec = find_spec(module)
        if spec and spec.origin and module in sources and read_small(spec.origin) != sources[module].encode():
            return f"a different module {module}"
    except (ImportError, ValueError, OSError) as error:
        return str(error)
    return "" if spec else f"no module {module}"
