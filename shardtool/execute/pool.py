"""Where tasks run: in this process, as `Pool` does them, or in worker processes of this machine.

At the end, what runs on the nodes of a Ray cluster: a task as a local worker would run it, and a look at what a node
has. Nothing of Ray is imported.

Why not `concurrent.futures` or `multiprocessing.Pool`? Both need semaphores in /dev/shm, which
containers keep tiny or read-only; the latter hangs for ever when a worker is killed; the former
leaves workers behind when its parent is killed, and a spawned worker of either runs the user's
main script again. Here a worker has a pipe each way, and one that closes when its parent dies.

Workers are forked where that is safe (no other thread runs yet: it costs 5 ms, and the command
line does it before anything heavy is imported), and started afresh elsewhere.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import pickle
import select
import signal
import stat
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec, spec_from_loader
from itertools import islice, zip_longest
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from shardtool import wording
from shardtool.errors import (
    MEMORY_REMEDY,
    Bug,
    InvalidRequest,
    OutOfMemory,
    PlainError,
    WorkerDied,
    is_out_of_memory,
    reason,
)
from shardtool.storage.remote.retry import SLICE_S, Stall, hear, tell
from shardtool.storage.shared import write_all
from shardtool.wording import option

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from typing_extensions import Self

    from shardtool.values import StartMethod

    Progress = Callable[..., None]  # a task's number, samples, bytes, and of URLs the samples that failed

Result = TypeVar("Result")
_FEW = 6  # paths that are all looked at


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

    def check(self, paths: Sequence[str | bytes] = (), *, output: str | None = None, function: str = "") -> None:
        """Refuse machines that lack what tasks will need, the same as this process sees; this one has that.

        Args:
            paths: Files and folders, of which a few are looked at; a name that leads nowhere here is passed over.
            output: A folder that workers write into; None: none is asked about.
            function: `module:name` of a function of the user's; empty: there is none.

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


def a_few(paths: Sequence[str | bytes]) -> Sequence[str | bytes]:
    """Return the first, the middle and the last of many paths: enough to see whether a machine has the same files."""
    return paths if len(paths) <= _FEW else [paths[at] for at in (0, len(paths) // 2, -1)]


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
        return OutOfMemory(what, "not enough memory", remedy=f"{MEMORY_REMEDY} Use fewer {option('workers')}.")
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


# Worker processes of this machine.


_SILENT_S = 10.0  # after which a worker that reports nothing is named
_GRACE_S = 0.2  # for a signal to the whole process group to reach us too


def cores() -> int:
    """Return how many cores this process may use: affinity, and the container's CPU quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError), open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
        quota, period = file.read().split()
        count = min(count, max(1, -(-int(quota) // int(period))))  # "max" is no number, and no limit
    return count


@dataclass(slots=True)
class _Worker:
    pid: int
    tasks: int  # the writing end of a pipe
    results: int  # the reading end of another
    lifeline: int  # the writing end of the third, which is never written to
    process: subprocess.Popen[bytes] | None
    number: int | None = None  # the task that it works on
    does: str = ""  # what that is
    heard: float = 0.0  # when it said something
    status: int | None = None  # once it has ended

    @property
    def pipes(self) -> tuple[int, int, int]:
        """This process's ends of the pipes."""
        return self.tasks, self.results, self.lifeline

    def kill(self) -> None:
        """End the process, if it still runs: a pid that was waited for may be another process's by now."""
        if self.status is None:
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Wait for the process to end; return its exit status, negative for a signal."""
        if self.status is None:
            self.status = 0
            if self.process is not None:
                self.status = self.process.wait()
            else:
                with suppress(ChildProcessError):
                    self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.status


class LocalPool(Pool):
    """Worker processes, to be used in a `with` block; leaving it ends them all.

    At once there are as many as there are cores; more only where there are tasks for them.

    Args:
        workers: How many at most.
        start: `auto` forks where no other thread runs.
        again: What to do after a worker has died.

    Raises:
        InvalidRequest: `workers` is less than one.
        WorkerDied: They cannot be started.
        OutOfMemory: There is no memory for them.
    """

    def __init__(self, workers: int, start: StartMethod = "auto", again: str = "Run the same command again.") -> None:
        if workers < 1:
            raise InvalidRequest(option("workers"), str(workers), expected="one or more")
        self._again = again
        self.most = self.most_together = workers
        self._start = start
        self._workers: list[_Worker] = []
        for _ in range(min(workers, cores())):
            self._start_one()

    def _start_one(self) -> _Worker:
        fork = self._start == "fork" or (self._start == "auto" and _may_fork())
        try:
            self._workers.append(self._begun(fork=fork))
        except OSError as error:
            where, found = f"worker {len(self._workers) + 1} of {self.most}", reason(error)
            self.close()
            if is_out_of_memory(error):
                raise OutOfMemory(
                    where, "not enough memory to start it", remedy=f"{MEMORY_REMEDY} {_fewer()}"
                ) from None
            raise WorkerDied(where, f"cannot start: {found}", remedy=_fewer()) from None
        except BaseException:
            self.close()
            raise
        return self._workers[-1]

    def close(self) -> None:
        """Kill the workers and wait for them; what they have staged is the caller's to discard."""
        for one in self._workers:
            one.kill()
        for one in self._workers:
            for fd in one.pipes:
                os.close(fd)
            one.wait()
        self._workers = []

    def map(  # noqa: C901 - one loop over what workers say
        self, function: Callable[..., Result], tasks: Iterable[object], progress: Progress | None = None
    ) -> Iterator[tuple[int, Result]]:
        """Yield (number, result) of each task as it is done; see `Pool.map`."""
        queue, reports = enumerate(tasks), progress is not None
        for one in self._workers:
            self._feed(one, function, queue, reports=reports)
        if all(one.number is not None for one in self._workers):
            for first in islice(queue, self.most - len(self._workers)):
                self._feed(self._start_one(), function, iter([first]), reports=reports)
        poll = select.poll()
        by_fd = {one.results: one for one in self._workers}
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        while any(one.number is not None for one in self._workers):
            for fd, _ in poll.poll(1000 * SLICE_S):
                one = by_fd[fd]
                one.heard = time.monotonic()
                try:
                    kind, number, value = receive(fd)
                except PipeClosed:
                    raise self._death(one) from None
                if kind == TOLD:
                    tell(value)
                    continue
                if kind == PROGRESS:
                    if progress is not None:
                        progress(number, *value)
                    continue
                one.number = None
                if kind == FAILED:
                    raise value
                # Before the result is used, so that no worker waits for that.
                self._feed(one, function, queue, reports=reports)
                yield number, value
            if reports:
                self._tell_of_silence()

    def _tell_of_silence(self) -> None:
        """Tell of the worker that has reported nothing for the longest time, if that is long."""
        now = time.monotonic()
        one = min((one for one in self._workers if one.number is not None), key=lambda one: one.heard, default=None)
        if one is not None and now - one.heard > _SILENT_S:
            tell(Stall(f"{one.does}: nothing from it for {now - one.heard:.0f} s (process {one.pid})"))

    def _feed(
        self, one: _Worker, function: Callable[..., object], queue: Iterator[tuple[int, object]], *, reports: bool
    ) -> None:
        for number, task in queue:
            one.number, one.does, one.heard = number, what_of(function, task), time.monotonic()
            try:
                send(one.tasks, (function, number, task, reports))
            except BrokenPipeError:
                raise self._death(one) from None
            return

    def _death(self, one: _Worker) -> WorkerDied:
        """Return the error for a worker that is gone."""
        status = one.wait()
        if -status in (signal.SIGTERM, signal.SIGHUP):
            time.sleep(_GRACE_S)  # the same signal may be on its way to us, and says more
        died = f"died of {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        remedy = self._again
        if status == -signal.SIGKILL:
            died += " (out of memory?)"
            remedy += f" Fewer {option('workers')} use less memory."
        return WorkerDied(f"worker process {one.pid}", died, remedy=remedy)

    def _begun(self, *, fork: bool) -> _Worker:
        (task_end, tasks), (results, result_end), (life_end, lifeline) = os.pipe(), os.pipe(), os.pipe()
        ends = task_end, result_end, life_end
        process = None if fork else _spawned(ends)
        pid = os.fork() if process is None else process.pid
        if pid == 0:
            try:
                for fd in (tasks, results, lifeline, *(fd for other in self._workers for fd in other.pipes)):
                    os.close(fd)
                run(*ends)
            except BaseException:  # noqa: BLE001 - nothing may run on into the parent's code
                os._exit(1)
            os._exit(0)
        for fd in ends:
            os.close(fd)
        return _Worker(pid, tasks, results, lifeline, process)


def _spawned(ends: tuple[int, int, int]) -> subprocess.Popen[bytes]:
    """Start a worker afresh, with its ends of the pipes."""
    import subprocess

    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = sys.path if root in sys.path else [root, *sys.path]  # what can be imported here, can be there
    command = (
        f"import sys; sys.path[:] = {path!r}; from shardtool import wording; from shardtool.execute import pool; "
        f"wording.set_words(command_line={wording.speaks_command_line()}); pool.run{ends}"
    )
    # The mask is inherited: a Ctrl-C while the new interpreter starts would make it print a traceback.
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        return subprocess.Popen([sys.executable, "-c", command], stdin=subprocess.DEVNULL, pass_fds=ends)  # noqa: S603
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)


def _fewer() -> str:
    return f"Use fewer {option('workers')}."  # every verb that starts any has this option


def _may_fork() -> bool:
    """Tell whether this process has a single thread, counting those that Python does not know."""
    if not hasattr(os, "fork") or sys.platform == "darwin" or threading.active_count() > 1:
        return False
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


# The loop that a worker process runs.
#
# Messages are pickles, each behind its length (4 bytes, little-endian), over a pipe each way. A worker
# ends when its parent closes its side. It does not outlive its parent even in the middle of a task: the
# kernel sends SIGIO, whose default is to end the process, when the last holder of the other end of a
# third pipe, the lifeline, is gone. So a worker needs no thread that waits for that.


DONE, FAILED, PROGRESS, TOLD = 0, 1, 2, 3
_PROGRESS_S = 0.1
_LENGTH = 4


class PipeClosed(Exception):
    """The other side closed the pipe."""


def send(fd: int, message: object) -> None:
    """Send one message, all of it."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    write_all(fd, len(data).to_bytes(_LENGTH, "little"))
    write_all(fd, data)


def receive(fd: int) -> Any:
    """Return the next message.

    Raises:
        PipeClosed: The other side is gone.
    """
    return pickle.loads(_exactly(fd, int.from_bytes(_exactly(fd, _LENGTH), "little")))  # noqa: S301 - our own process


def _exactly(fd: int, size: int) -> bytearray:
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        try:
            got = os.readv(fd, (view[done:],))
        except ConnectionError:
            got = 0
        if not got:
            raise PipeClosed
        done += got
    return data


def run(tasks: int, results: int, lifeline: int) -> None:
    """Serve tasks until the parent closes its side; the arguments are file descriptors."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent decides
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGIO):
        if signum == signal.SIGIO or signal.getsignal(signum) != signal.SIG_IGN:  # nohup holds for workers too
            signal.signal(signum, signal.SIG_DFL)
    _spare_stdout({tasks, results, lifeline})
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:
        return  # the parent died before the kernel knew whom to signal
    sending = threading.Lock()  # any thread tells of requests, say; made here, so that no fork holds it

    def answer(kind: int, number: int, value: object) -> None:
        with sending:
            send(results, (kind, number, value))

    hear(lambda event: answer(TOLD, 0, event))
    try:
        while True:
            _serve(tasks, answer)
    except (PipeClosed, BrokenPipeError):
        return


def _serve(tasks: int, answer: Callable[[int, int, object], None]) -> None:
    """Take one task and send its result; where that cannot be read or sent, an error in its place."""
    what = "a worker, taking its task"
    try:
        function, number, task, reports = receive(tasks)
        what = what_of(function, task)
        report = reporter(partial(answer, PROGRESS, number), _PROGRESS_S, in_all=False) if reports else None
        answer(DONE, number, function(task) if report is None else function(task, report))
    except (PipeClosed, BrokenPipeError):
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent must hear of it
        answer(FAILED, 0, reported(what, error))  # it ends the run: no number is needed


def _spare_stdout(pipes: set[int]) -> None:
    """Let what a user's function prints go to stderr: stdout is for the parent's result."""
    if pipes & {1, 2}:
        return  # both were closed when the pipes were made
    try:
        os.dup2(2, 1)
    except OSError:  # closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


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
    surroundings: Surroundings, wanted: dict[str | bytes, str], output: str | None, marker: str, function: str
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
        if (found := see(path)) != there
    ]
    where = output or "."
    if output is not None and not os.path.exists(marker):
        problems.append((f"{where}: another folder, or none", "the folder that this process writes to"))
    elif output is not None and not os.access(where, os.W_OK | os.X_OK):
        problems.append((f"{where}: no permission to write", "a folder that every node may write to"))
    if function and (problem := _problem(function, surroundings.sources)):
        problems.append((f"{function}: {problem}", "the module of this process"))
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
