"""Receive and run tasks in a worker process.

A worker receives tasks through one pipe, and sends results through another. Each message consists of a length (4
bytes, little-endian) and a pickle of this length.

A third pipe, the lifeline, closes if the parent dies during a task. The kernel then sends SIGIO, which terminates the
worker.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import select
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from shardtool.execute.pool import as_reportable, describe_task, make_reporter
from shardtool.storage.descriptors import write_all
from shardtool.storage.remote import retry
from shardtool.storage.remote.notices import set_listener

DONE, FAILED, PROGRESS, EVENT = 0, 1, 2, 3
_PROGRESS_INTERVAL_S = 0.1
_LENGTH_BYTES = 4


class PipeClosed(Exception):
    """The other side closed the pipe."""


def send(fd: int, message: object) -> None:
    """Write a message to a pipe."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    write_all(fd, len(data).to_bytes(_LENGTH_BYTES, "little"))
    write_all(fd, data)


def receive(fd: int) -> Any:
    """Read a message from a pipe, or raise `PipeClosed` if the pipe is closed."""
    return pickle.loads(_read_exactly(fd, int.from_bytes(_read_exactly(fd, _LENGTH_BYTES), "little")))  # noqa: S301 - only shardtool writes to the pipe


def _read_exactly(fd: int, size: int) -> bytearray:
    data = bytearray(size)
    view, received = memoryview(data), 0
    while received < size:
        try:
            count = os.readv(fd, (view[received:],))
        except ConnectionError:
            count = 0
        if not count:
            raise PipeClosed
        received += count
    return data


def run_worker(tasks: int, results: int, lifeline: int) -> None:
    """Run tasks from the pipe `tasks` until the parent closes it."""
    # Ctrl-C sends SIGINT to all processes, but only the parent handles it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGIO):
        if signum == signal.SIGIO or signal.getsignal(signum) != signal.SIG_IGN:  # keep SIGHUP ignored under nohup
            signal.signal(signum, signal.SIG_DFL)
    _redirect_stdout({tasks, results, lifeline})
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:
        return  # the parent died before SIGIO was requested
    # Several threads send messages. Create the lock here, because a lock created before the fork may be locked forever.
    sending = threading.Lock()

    def answer(kind: int, number: int, value: object) -> None:
        with sending:
            send(results, (kind, number, value))

    retry.start_worker()
    set_listener(lambda event: answer(EVENT, 0, event))
    try:
        while True:
            _serve_task(tasks, answer)
    except (PipeClosed, BrokenPipeError):
        return


def _serve_task(tasks: int, answer: Callable[[int, int, object], None]) -> None:
    location = "worker (receiving its task)"
    try:
        function, number, task, reports = receive(tasks)
        location = describe_task(function, task)
        send_progress = partial(answer, PROGRESS, number)
        callbacks = [make_reporter(send_progress, _PROGRESS_INTERVAL_S, cumulative=False)] if reports else []
        answer(DONE, number, function(task, *callbacks))
    except (PipeClosed, BrokenPipeError):
        raise
    except Exception as error:  # noqa: BLE001 - every error must reach the parent
        answer(FAILED, 0, as_reportable(location, error))


def _redirect_stdout(pipes: set[int]) -> None:
    sys.stdout = sys.stderr  # stderr is unbuffered, so no output is lost if the worker is killed
    if pipes & {1, 2}:
        return
    try:
        os.dup2(2, 1)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
