"""Run tasks in worker processes on this machine.

On Linux, a parent with a single thread forks the workers, which takes 5 ms. Other parents start new Python processes,
which takes longer. The command line starts workers before imports that start threads, such as NumPy.
docs/decisions/002-own-worker-pool.md explains why the standard library's pools are not used.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from shardtool import messages
from shardtool.dataclass import dataclass
from shardtool.errors import MEMORY_FIX, OutOfMemory, WorkerDied, is_out_of_memory, os_error_text
from shardtool.execute.pool import Pool, Result, describe_task
from shardtool.execute.worker import EVENT, FAILED, PROGRESS, PipeClosed, receive, run_worker, send
from shardtool.messages import option_text
from shardtool.storage.remote.notices import Stall, emit
from shardtool.storage.remote.retry import SLICE_S
from shardtool.storage.remote.store_options import spawn_environment

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable, Iterator

    from shardtool.execute.pool import Progress
    from shardtool.values import StartMethod


RERUN_ADVICE = "Run the same command again."
_SILENT_WORKER_S = 10.0
_SIGNAL_GRACE_S = 0.2  # a signal that killed a worker may reach this process a little later


def usable_cores() -> int:
    """Return the number of cores that CPU affinity and the container's quota allow."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError), open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
        quota, period = file.read().split()
        count = min(count, max(1, -(-int(quota) // int(period))))
    return count


@dataclass(slots=True)
class _Worker:
    pid: int
    tasks: int
    results: int
    lifeline: int
    process: subprocess.Popen[bytes] | None
    number: int | None = None
    task_text: str = ""
    last_heard: float = 0.0
    status: int | None = None

    @property
    def pipes(self) -> tuple[int, int, int]:
        return self.tasks, self.results, self.lifeline

    def kill(self) -> None:
        """Kill the process. After `wait`, do nothing, because another process may have this pid."""
        if self.status is None:
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        if self.status is None:
            self.status = 0
            if self.process is not None:
                self.status = self.process.wait()
            else:
                with suppress(ChildProcessError):
                    self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.status


class LocalPool(Pool):
    """Runs tasks in worker processes on this machine, and kills the workers at the end of the `with` block.

    The pool first starts at most one worker per core. If there are more tasks, the pool starts more workers, up to
    `workers`. A `lazy` pool with the start method `auto` runs tasks in this process until `start` is called with
    several tasks.
    """

    def __init__(
        self, workers: int, start: StartMethod = "auto", advice: str = RERUN_ADVICE, *, lazy: bool = False
    ) -> None:
        self._advice = advice
        self.max_tasks = self.max_per_machine = workers
        self._start_method = start
        self._workers: list[_Worker] = []
        if not lazy or start != "auto":
            self._start_workers()

    def start(self, tasks: int) -> None:
        if tasks > 1 and not self._workers:
            self._start_workers()

    def _start_workers(self) -> None:
        for _ in range(min(self.max_tasks, usable_cores())):
            self._start_worker()

    def _start_worker(self) -> _Worker:
        fork = self._start_method == "fork" or (self._start_method == "auto" and _can_fork())
        try:
            self._workers.append(self._launch_worker(fork=fork))
        except OSError as error:
            where = f"worker {len(self._workers) + 1} of {self.max_tasks}"
            remedy = f"Use fewer {option_text('workers')}."
            self.close()
            if is_out_of_memory(error):
                raise OutOfMemory(where, "not enough memory to start it", remedy=f"{MEMORY_FIX} {remedy}") from None
            raise WorkerDied(where, f"cannot start: {os_error_text(error)}", remedy=remedy) from None
        except BaseException:
            self.close()
            raise
        return self._workers[-1]

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            for fd in worker.pipes:
                os.close(fd)
            worker.wait()
        self._workers = []

    def map(
        self, function: Callable[..., Result], tasks: Iterable[object], progress: Progress | None = None
    ) -> Iterator[tuple[int, Result]]:
        if self._workers:
            yield from self._map(function, tasks, progress)
        else:
            yield from super().map(function, tasks, progress)

    def _map(  # noqa: C901 - one loop over all messages
        self, function: Callable[..., Result], tasks: Iterable[object], progress: Progress | None
    ) -> Iterator[tuple[int, Result]]:
        queue, reports = enumerate(tasks), progress is not None
        for worker in self._workers:
            self._feed(worker, function, queue, reports=reports)
        if all(worker.number is not None for worker in self._workers):
            for numbered_task in islice(queue, self.max_tasks - len(self._workers)):
                self._feed(self._start_worker(), function, iter([numbered_task]), reports=reports)
        poll = select.poll()
        by_fd = {worker.results: worker for worker in self._workers}
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        while any(worker.number is not None for worker in self._workers):
            for fd, _ in poll.poll(1000 * SLICE_S):
                worker = by_fd[fd]
                worker.last_heard = time.monotonic()
                try:
                    kind, number, value = receive(fd)
                except PipeClosed:
                    raise self._death_error(worker) from None
                if kind == EVENT:
                    emit(value)
                elif kind == PROGRESS and progress is not None:
                    progress(number, *value)
                if kind in (EVENT, PROGRESS):
                    continue
                worker.number = None
                if kind == FAILED:
                    raise value
                # send the next task first, because the caller may take long to use the result
                self._feed(worker, function, queue, reports=reports)
                yield number, value
            if reports:
                self._report_silence()

    def _report_silence(self) -> None:
        now = time.monotonic()
        busy = [worker for worker in self._workers if worker.number is not None]
        silent = min(busy, key=lambda worker: worker.last_heard, default=None)
        if silent is not None and now - silent.last_heard > _SILENT_WORKER_S:
            silence_s = now - silent.last_heard
            emit(Stall(f"{silent.task_text}: no progress for {silence_s:.0f} s (process {silent.pid})"))

    def _feed(
        self, worker: _Worker, function: Callable[..., object], queue: Iterator[tuple[int, object]], *, reports: bool
    ) -> None:
        for number, task in islice(queue, 1):
            worker.number, worker.task_text, worker.last_heard = number, describe_task(function, task), time.monotonic()
            try:
                send(worker.tasks, (function, number, task, reports))
            except BrokenPipeError:
                raise self._death_error(worker) from None

    def _death_error(self, worker: _Worker) -> WorkerDied:
        status = worker.wait()
        if -status in (signal.SIGTERM, signal.SIGHUP):
            time.sleep(_SIGNAL_GRACE_S)
        cause = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
        remedy = self._advice
        if status == -signal.SIGKILL:
            cause += " (out of memory?)"
            remedy += f" Use fewer {option_text('workers')} to save memory."
        return WorkerDied(f"worker process {worker.pid}", cause, remedy=remedy)

    def _launch_worker(self, *, fork: bool) -> _Worker:
        (task_end, tasks), (results, result_end), (life_end, lifeline) = os.pipe(), os.pipe(), os.pipe()
        worker_ends = task_end, result_end, life_end
        process = None if fork else _spawn_worker(worker_ends)
        pid = os.fork() if process is None else process.pid
        if pid == 0:
            try:
                for fd in (tasks, results, lifeline, *(fd for worker in self._workers for fd in worker.pipes)):
                    os.close(fd)
                run_worker(*worker_ends)
            except BaseException:  # noqa: BLE001 - the child must never run the parent's code
                os._exit(1)
            os._exit(0)
        for fd in worker_ends:
            os.close(fd)
        return _Worker(pid, tasks, results, lifeline, process)


def _spawn_worker(worker_ends: tuple[int, int, int]) -> subprocess.Popen[bytes]:
    import subprocess

    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    # pass `sys.path`, so the worker imports the same modules as this process
    path = sys.path if root in sys.path else [root, *sys.path]
    command = (
        f"import sys; sys.path[:] = {path!r}; from shardtool import messages; from shardtool.execute import worker; "
        f"messages.set_cli_names(command_line={messages.uses_cli_names()}); worker.run_worker{worker_ends}"
    )
    # block SIGINT, also in the worker: Ctrl-C while Python starts would print a traceback
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        return subprocess.Popen(  # noqa: S603
            [sys.executable, "-c", command], stdin=subprocess.DEVNULL, pass_fds=worker_ends, env=spawn_environment()
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)


def _can_fork() -> bool:
    """Return whether a fork is safe: on Linux, with one thread (counting threads not started by Python)."""
    if not hasattr(os, "fork") or sys.platform == "darwin" or threading.active_count() > 1:
        return False
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False
