"""A pool of worker processes on this machine.

Why not `concurrent.futures` or `multiprocessing.Pool`? Both need semaphores in /dev/shm, which
containers keep tiny or read-only; the latter hangs for ever when a worker is killed; the former
leaves workers behind when its parent is killed, and a spawned worker of either runs the user's
main script again. Here a worker has a pipe each way, and one that closes when its parent dies.

Workers are forked where that is safe (no other thread runs yet: it costs 5 ms, and the command
line does it before anything heavy is imported), and started afresh elsewhere.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from shardtool.errors import MEMORY_REMEDY, InvalidRequest, OutOfMemory, WorkerDied, is_out_of_memory, reason
from shardtool.execute.pool import Pool, reported, reporter, what_of
from shardtool.storage.remote.retry import SLICE_S, Stall, hear, tell
from shardtool.storage.shared import write_all
from shardtool.wording import option, speaks_command_line

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable, Iterator

    from shardtool.execute.pool import Progress, Result
    from shardtool.request.observer import Observer
    from shardtool.request.options import WorkerOptions
    from shardtool.values import StartMethod

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
        f"import sys; sys.path[:] = {path!r}; from shardtool import wording; from shardtool.execute import local; "
        f"wording.set_words(command_line={speaks_command_line()}); local.run{ends}"
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


# The one place that decides where tasks run: on this machine, or on a Ray cluster.


_SETTINGS = {  # of Ray, which looks at them when it is imported; where the environment does not say otherwise
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else it warns of its own future
    "RAY_DEDUP_LOGS_SKIP_REGEX": "(?s).*",  # print nothing of the nodes' logs, for which stdout is not meant
    "RAY_gcs_server_port_wait_time_s": "1",  # attempts at a cluster that does not answer, each of half a minute
    "GRPC_VERBOSITY": "NONE",
}


def start_pool(
    asked: WorkerOptions, again: str = "Run the same command again.", observer: Observer | None = None
) -> Pool:
    """Start the workers that options ask for.

    Args:
        asked: The options.
        again: What to do after a worker has died.
        observer: Hears of a cluster that had to be started.

    Raises:
        InvalidRequest: Ray is not installed, there is no cluster at the address, or a node of it has other versions.
        WorkerDied: Workers cannot be started.
        OutOfMemory: There is no memory for them.
    """
    if asked.executor == "local":
        return LocalPool(asked.workers or cores(), asked.start_method, again)
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        from shardtool.execute.ray_pool import RayPool
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        remedy = "Run `pip install 'shardtool[ray]'`, here and on each node."
        raise InvalidRequest(option("executor", "ray"), "Ray is not installed here", remedy=remedy) from None
    return RayPool(asked, again, cores(), observer)


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
        Closed: The other side is gone.
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
