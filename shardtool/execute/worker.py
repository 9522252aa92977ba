"""The main loop of a worker process.

Messages are pickles, each preceded by its length (4 bytes, little-endian), in one pipe for each direction. A worker
ends when its parent closes the pipe. It also ends in the middle of a task if its parent dies: the kernel sends
SIGIO,
whose default action is to terminate the process, when the other end of a third pipe, the lifeline, is closed. No
thread has to wait for that.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import select
import signal
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from shardtool.execute.pool import as_reportable, describe_task, make_reporter
from shardtool.storage.descriptors import write_all
from shardtool.storage.remote.notices import set_listener

if TYPE_CHECKING:
    from collections.abc import Callable


DONE, FAILED, PROGRESS, EVENT = 0, 1, 2, 3


_PROGRESS_INTERVAL_S = 0.1


_LENGTH_BYTES = 4


class PipeClosed(Exception):
    """The other side closed the pipe."""


def send(fd: int, message: object) -> None:
    """Send one message, all of it."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    write_all(fd, len(data).to_bytes(_LENGTH_BYTES, "little"))
    write_all(fd, data)


def receive(fd: int) -> Any:
    """Return the next message.

    Raises:
        PipeClosed: The other side is gone.
    """
    return pickle.loads(_read_exactly(fd, int.from_bytes(_read_exactly(fd, _LENGTH_BYTES), "little")))  # noqa: S301 - our own process


def _read_exactly(fd: int, size: int) -> bytearray:
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


def run_worker(tasks: int, results: int, lifeline: int) -> None:
    """Serve tasks until the parent closes its side; the arguments are file descriptors."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent decides
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGIO):
        if signum == signal.SIGIO or signal.getsignal(signum) != signal.SIG_IGN:  # nohup holds for workers too
            signal.signal(signum, signal.SIG_DFL)
    _redirect_stdout({tasks, results, lifeline})
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:
        return  # the parent died before the kernel knew whom to signal
    sending = threading.Lock()  # any thread tells of requests, say; made here, so that no fork holds it

    def answer(kind: int, number: int, value: object) -> None:
        with sending:
            send(results, (kind, number, value))

    set_listener(lambda event: answer(EVENT, 0, event))
    try:
        while True:
            _serve_task(tasks, answer)
    except (PipeClosed, BrokenPipeError):
        return


def _serve_task(tasks: int, answer: Callable[[int, int, object], None]) -> None:
    """Take one task and send its result; where that cannot be read or sent, an error in its place."""
    what = "a worker, taking its task"
    try:
        function, number, task, reports = receive(tasks)
        what = describe_task(function, task)
        report = (
            make_reporter(partial(answer, PROGRESS, number), _PROGRESS_INTERVAL_S, cumulative=False)
            if reports
            else None
        )
        answer(DONE, number, function(task) if report is None else function(task, report))
    except (PipeClosed, BrokenPipeError):
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent must hear of it
        answer(FAILED, 0, as_reportable(what, error))  # it ends the run: no number is needed


def _redirect_stdout(pipes: set[int]) -> None:
    """Let what a user's function prints go to stderr: stdout is for the parent's result."""
    if pipes & {1, 2}:
        return  # both were closed when the pipes were made
    try:
        os.dup2(2, 1)
    except OSError:  # closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
