"""Run tasks in worker processes of this machine.

`concurrent.futures` and `multiprocessing.Pool` need semaphores in /dev/shm, which containers keep small or
read-only.
`multiprocessing.Pool` hangs if a worker is killed. `concurrent.futures` leaves workers behind if the parent is
killed. Spawned workers of both run the user's main script again. Here each worker has one pipe in each direction,
and
a third pipe that closes when its parent dies.

Workers are forked while no other thread runs: this takes 5 ms, and the command line does it before heavy imports.
Otherwise they are started as new processes.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from shardtool import messages
from shardtool.errors import (
    MEMORY_FIX,
    InvalidRequest,
    OutOfMemory,
    WorkerDied,
    is_out_of_memory,
    os_error_text,
)
from shardtool.execute.pool import Pool, Result, describe_task
from shardtool.execute.worker import EVENT, FAILED, PROGRESS, PipeClosed, receive, run_worker, send
from shardtool.messages import option_text
from shardtool.storage.remote.notices import Stall, emit
from shardtool.storage.remote.retry import SLICE_S

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable, Iterator

    from shardtool.values import StartMethod

    Progress = Callable[..., None]  # a task's number, samples, bytes, and of URLs the samples that failed


_SILENT_WORKER_S = 10.0  # after which a worker that reports nothing is named


_SIGNAL_GRACE_S = 0.2  # for a signal to the whole process group to reach us too


def usable_cores() -> int:
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
            raise InvalidRequest(option_text("workers"), str(workers), expected="one or more")
        self._again = again
        self.most = self.max_per_machine = workers
        self._start = start
        self._workers: list[_Worker] = []
        for _ in range(min(workers, usable_cores())):
            self._start_worker()

    def _start_worker(self) -> _Worker:
        fork = self._start == "fork" or (self._start == "auto" and _can_fork())
        try:
            self._workers.append(self._begun(fork=fork))
        except OSError as error:
            where, found = f"worker {len(self._workers) + 1} of {self.most}", os_error_text(error)
            self.close()
            if is_out_of_memory(error):
                raise OutOfMemory(
                    where, "not enough memory to start it", remedy=f"{MEMORY_FIX} {_fewer_workers()}"
                ) from None
            raise WorkerDied(where, f"cannot start: {found}", remedy=_fewer_workers()) from None
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
                self._feed(self._start_worker(), function, iter([first]), reports=reports)
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
                    raise self._death_error(one) from None
                if kind == EVENT:
                    emit(value)
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
                self._report_silence()

    def _report_silence(self) -> None:
        """Tell of the worker that has reported nothing for the longest time, if that is long."""
        now = time.monotonic()
        one = min((one for one in self._workers if one.number is not None), key=lambda one: one.heard, default=None)
        if one is not None and now - one.heard > _SILENT_WORKER_S:
            emit(Stall(f"{one.does}: nothing from it for {now - one.heard:.0f} s (process {one.pid})"))

    def _feed(
        self, one: _Worker, function: Callable[..., object], queue: Iterator[tuple[int, object]], *, reports: bool
    ) -> None:
        for number, task in queue:
            one.number, one.does, one.heard = number, describe_task(function, task), time.monotonic()
            try:
                send(one.tasks, (function, number, task, reports))
            except BrokenPipeError:
                raise self._death_error(one) from None
            return

    def _death_error(self, one: _Worker) -> WorkerDied:
        """Return the error for a worker that is gone."""
        status = one.wait()
        if -status in (signal.SIGTERM, signal.SIGHUP):
            time.sleep(_SIGNAL_GRACE_S)  # the same signal may be on its way to us, and says more
        died = f"died of {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        remedy = self._again
        if status == -signal.SIGKILL:
            died += " (out of memory?)"
            remedy += f" Fewer {option_text('workers')} use less memory."
        return WorkerDied(f"worker process {one.pid}", died, remedy=remedy)

    def _begun(self, *, fork: bool) -> _Worker:
        (task_end, tasks), (results, result_end), (life_end, lifeline) = os.pipe(), os.pipe(), os.pipe()
        ends = task_end, result_end, life_end
        process = None if fork else _spawn_worker(ends)
        pid = os.fork() if process is None else process.pid
        if pid == 0:
            try:
                for fd in (tasks, results, lifeline, *(fd for other in self._workers for fd in other.pipes)):
                    os.close(fd)
                run_worker(*ends)
            except BaseException:  # noqa: BLE001 - nothing may run on into the parent's code
                os._exit(1)
            os._exit(0)
        for fd in ends:
            os.close(fd)
        return _Worker(pid, tasks, results, lifeline, process)


def _spawn_worker(ends: tuple[int, int, int]) -> subprocess.Popen[bytes]:
    """Start a worker afresh, with its ends of the pipes."""
    import subprocess

    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = sys.path if root in sys.path else [root, *sys.path]  # what can be imported here, can be there
    command = (
        f"import sys; sys.path[:] = {path!r}; from shardtool import messages; from shardtool.execute import worker; "
        f"messages.set_cli_names(command_line={messages.uses_cli_names()}); worker.run_worker{ends}"
    )
    # The mask is inherited: a Ctrl-C while the new interpreter starts would make it print a traceback.
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        return subprocess.Popen([sys.executable, "-c", command], stdin=subprocess.DEVNULL, pass_fds=ends)  # noqa: S603
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)


def _fewer_workers() -> str:
    return f"Use fewer {option_text('workers')}."  # every verb that starts any has this option


def _can_fork() -> bool:
    """Tell whether this process has a single thread, counting those that Python does not know."""
    if not hasattr(os, "fork") or sys.platform == "darwin" or threading.active_count() > 1:
        return False
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False
