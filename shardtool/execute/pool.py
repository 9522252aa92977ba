"""Where tasks run: in this process, as `Pool` does them, or in workers; the pools of those offer the same.

At the end, what runs on the nodes of a Ray cluster: a task as a local worker would run it, and a look at what a node
has. It imports nothing of Ray.
"""

from __future__ import annotations

import importlib
import os
import stat
import sys
import time
from contextlib import suppress
from importlib.util import find_spec, spec_from_loader
from itertools import zip_longest
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from shardtool import wording
from shardtool.errors import MEMORY_REMEDY, Bug, OutOfMemory, PlainError, is_out_of_memory, reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from typing_extensions import Self

    Progress = Callable[..., None]  # a task's number, samples, bytes, and of URLs the samples that failed

Result = TypeVar("Result")


class Needs(NamedTuple):
    """What every machine with workers must have: the same as this process sees.

    Attributes:
        paths: Files, a few of many, and folders; a name that leads nowhere here is passed over.
        output: A folder that workers write into; empty: none is asked about.
        function: `module:name` of a function of the user's; empty: there is none.
    """

    paths: tuple[str | bytes, ...] = ()
    output: str | None = None
    function: str = ""


class Pool:
    """Does tasks in this process; to be used in a `with` block, as those are that have workers, which it then ends.

    Attributes:
        most: How many tasks run at the same time at most.
        most_together: How many of them run on one machine.
    """

    most = most_together = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self, needs: Needs) -> None:
        """Refuse machines that lack what tasks will need; this one sees what this process sees.

        Raises:
            InvalidRequest: One does; it is named, with what it has.
            WorkerDied: One does not answer.
        """

    def map(
        self, function: Callable[..., Result], tasks: Iterable[object], progress: Progress | None = None
    ) -> Iterator[tuple[int, Result]]:
        """Yield (number, result) of each task as it is done; tasks are drawn as workers become free.

        Args:
            function: A function of a module; it gets the task and, with `progress`, a function that reports it.
            tasks: What to do, in order.
            progress: Called with a task's number, and the samples and bytes that its worker reports.

        Raises:
            WorkerDied: A worker was killed, or crashed; on a cluster, a task was lost too often.
            ShardError: What `function` raised.
            OutOfMemory: There was no memory for a task.
            Bug: `function` raised something else, in a worker.
        """
        for number, task in enumerate(tasks):
            if progress is None:
                yield number, function(task)
            else:
                yield number, function(task, lambda *done, number=number: progress(number, *done))

    def close(self) -> None:
        """Kill the workers and wait for them; what they have staged is the caller's to discard."""


def folders_of(source: object) -> tuple[str | bytes, ...]:
    """Return the folders that a source, as the user gave it, names; a table is read by this process alone."""
    each = source if isinstance(source, list | tuple) else [source]
    named = [os.fspath(one) for one in each if isinstance(one, str | bytes | os.PathLike)]
    return tuple(one for one in named if os.path.isdir(one))


def a_few(paths: Sequence[str | bytes]) -> tuple[str | bytes, ...]:
    """Return the first, the middle and the last of many paths: enough to see whether a machine has the same files."""
    return tuple({paths[at]: None for at in (0, len(paths) // 2, -1)}) if paths else ()


# What is said of a task, wherever a worker does it.


def what_of(function: Callable[..., object], task: object) -> str:
    """Return what a worker does, for messages."""
    on = getattr(task, "name", None) or getattr(task, "path", None)
    does = function.__name__.strip("_").replace("_", " ")
    return f"a worker, {does} {on}" if isinstance(on, str) else f"a worker, {does}"


def reported(what: str, error: Exception) -> Exception:
    """Return what the parent is to raise for an exception that ended a task."""
    if isinstance(error, PlainError):
        return error
    if is_out_of_memory(error):
        return OutOfMemory(what, "not enough memory", remedy=f"{MEMORY_REMEDY} Use fewer {wording.option('workers')}.")
    return Bug.of(what, error)


def reporter(tell: Callable[[list[int]], object], pause_s: float, *, in_all: bool) -> Callable[..., None]:
    """Return what a task reports to: now and then, `tell` gets what was done since it was called, or `in_all`."""
    last, done = time.monotonic(), [0, 0]

    def report(*more: int) -> None:
        nonlocal last, done
        done = [one + other for one, other in zip_longest(done, more, fillvalue=0)]
        if any(done) and time.monotonic() - last > pause_s:
            tell(done)
            last, done = time.monotonic(), done if in_all else [0, 0]

    return report


# What runs on the nodes of a Ray cluster.
#
# A task may run twice, and both at the same time: a node that was taken for dead may still write. So the temporary
# files of each attempt have names of its own, and the parent publishes those of the attempt whose result it got.


_INSTALLED = {"site-packages", "dist-packages"}
_REPORT_S = 1.0
ATTEMPT_BYTES = 4


class Surroundings(NamedTuple):
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
    def here(cls, function: str = "") -> Surroundings:
        """Return those of this process, for a function of the user's, `module:name`, or none."""
        from shardtool.storage.places import OF_OPTIONS

        umask = os.umask(0o077)
        os.umask(umask)
        path = tuple(os.path.abspath(one) for one in sys.path)
        variables = {name: os.environ[name] for name in OF_OPTIONS if name in os.environ}
        sources = _sources_of(function) if function else {}
        return cls(os.getcwd(), path, umask, wording.speaks_command_line(), variables, sources)

    def enter(self) -> None:
        """Make this process have them; without the folder where there is none."""
        with suppress(OSError):
            os.chdir(self.folder)
        sys.path += [one for one in self.path if one not in sys.path and os.path.exists(one)]
        os.umask(self.umask)
        os.environ.update(self.variables)
        wording.set_words(command_line=self.command_line)
        _SentModules(self.sources).enter()


def _sources_of(function: str) -> dict[str, str]:
    """Return the sources of the module of a function, and of what lies in its folder, or below, and is imported by now.

    What is installed is none of that: packages are for the nodes to have, and hold more than sources.
    """
    import sysconfig

    from shardtool.storage.places import read_small
    from shardtool.transform import find_function

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
        installed = one.partition(".")[0] in ("__main__", "shardtool") or _INSTALLED.intersection(path.split(os.sep))
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
        from shardtool.transform import transformer

        before = [one for one in sys.meta_path if isinstance(one, _SentModules)]
        if self.sources and all(one.sources != self.sources for one in before):
            for name in {*self.sources}.union(*(one.sources for one in before)):
                sys.modules.pop(name, None)
            sys.meta_path[:] = [*(one for one in sys.meta_path if one not in before), cast("Any", self)]
            importlib.invalidate_caches()
            transformer.cache_clear()

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


class Answer(NamedTuple):
    """The result of a task, or the error that ended it: exceptions that Ray raises for a task would have its type."""

    result: object = None
    error: Exception | None = None


def serve(surroundings: Surroundings, function: Callable[..., object], number: int, task: object, tally: Any) -> Answer:
    """Do one task, in the process of a Ray worker; `tally` is an actor that counts, `TaskCounts`, or None."""
    from shardtool.storage import staging

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
    if needs.function and (problem := _problem(needs.function, surroundings.sources)):
        problems.append((f"{needs.function}: {problem}", "the module of this process"))
    return problems


def _problem(function: str, sources: dict[str, str]) -> str:
    """Return what is wrong with the module of a function on this node; empty: nothing."""
    from shardtool.storage.places import read_small

    module = function.partition(":")[0]
    try:
        found = find_spec(module)
        if found and found.origin and module in sources and read_small(found.origin) != sources[module].encode():
            return f"another module {module}"
    except (ImportError, ValueError, OSError) as error:
        return str(error)
    return "" if found else f"no module {module}"
