"""The loop that a worker process runs.

Messages are pickles, each behind its length (4 bytes, little-endian), over a pipe each way. A worker
ends when its parent closes its side. It does not outlive its parent even in the middle of a task: the
kernel sends SIGIO, whose default is to end the process, when the last holder of the other end of a
third pipe, the lifeline, is gone. So a worker needs no thread that waits for that.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import select
import signal
import threading
import time
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from shardtool.storage.remote.retry import hear

if TYPE_CHECKING:
    from collections.abc import Callable

DONE, FAILED, PROGRESS, AGAIN = 0, 1, 2, 3
_PROGRESS_S = 0.1
_LENGTH = 4


class PipeClosed(Exception):
    """The other side closed the pipe."""


def send(fd: int, message: object) -> None:
    """Send one message, all of it."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    for part in (len(data).to_bytes(_LENGTH, "little"), data):
        view = memoryview(part)
        while view:
            view = view[os.write(fd, view) :]


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
    sending = threading.Lock()  # any thread tells of requests that it makes again; made here, so that no fork holds it

    def answer(kind: int, number: int, value: object) -> None:
        with sending:
            send(results, (kind, number, value))

    hear(lambda text: answer(AGAIN, 0, text))
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
        report = _reporter(answer, number) if reports else None
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


def what_of(function: Callable[..., object], task: object) -> str:
    """Return what a worker does, for messages."""
    on = getattr(task, "name", None) or getattr(task, "path", None)
    does = function.__name__.strip("_").replace("_", " ")
    return f"a worker, {does} {on}" if isinstance(on, str) else f"a worker, {does}"


def reported(what: str, error: Exception) -> Exception:
    """Return what the parent is to raise for an exception that ended a task."""
    from shardtool.errors import MEMORY_REMEDY, Bug, OutOfMemory, PlainError, is_out_of_memory
    from shardtool.wording import option

    if isinstance(error, PlainError):
        return error
    if is_out_of_memory(error):
        return OutOfMemory(what, "not enough memory", remedy=f"{MEMORY_REMEDY} Use fewer {option('workers')}.")
    return Bug.of(what, error)


def _reporter(answer: Callable[[int, int, object], None], number: int) -> Callable[..., None]:
    last, done = time.monotonic(), [0, 0]

    def report(*more: int) -> None:
        nonlocal last, done
        done = [one + other for one, other in zip_longest(done, more, fillvalue=0)]
        if time.monotonic() - last > _PROGRESS_S:
            answer(PROGRESS, number, done)
            last, done = time.monotonic(), [0, 0]

    return report
