"""Runs of the command line that start warm: forked from a process that has imported what a run imports.

An interpreter that imports NumPy and pyarrow takes 0.3 s of CPU, ten times as much as most faults that tests inject.
A warm run is a process as any other: its descriptors, environment, folder, session and signals are its own, and none
of its ancestors runs anything of ours. Laws about the start itself need `subprocess`.

`python -m tests.warm FD` serves requests from a socket until that is closed, one process for each; what runs then is
killed, as all of it is when the tests are.

    the tests ── socket ── the server, which forks
                             └── one that waits, and writes to a pipe of the tests: pid, then exit code
                                   └── the run
"""

from __future__ import annotations

import atexit
import marshal
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.tied import tie, tied

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

POSSIBLE = sys.platform == "linux"
_FRAMEWORKS = (
    "shardtool.torch",
    "shardtool.tensorflow",
    "shardtool.execute.ray_",
    "shardtool.ray",
)  # not installed here
_HEAVY = ("numpy", "pyarrow.compute", "pyarrow.fs", "pyarrow.parquet")
_NUMBER = struct.Struct("=i")
_MESSAGE = 2**17


class _Request(NamedTuple):
    words: list[str]
    code: str  # to run as the main module; of no text, the command line itself
    cwd: str
    env: dict[str, str]
    session: bool  # a new one


class Warm:
    """A process forked from the server, with stdout and stderr in pipes; it has the attributes of a `Popen`."""

    def __init__(
        self, words: list[str], *, code: str = "", cwd: str | Path, env: Mapping[str, str], session: bool = True
    ) -> None:
        request = marshal.dumps((words, code, str(cwd), dict(env), session))
        (out, out_end), (err, err_end), (self._status, status_end) = os.pipe(), os.pipe(), os.pipe()
        with open(os.devnull, "rb") as nothing:
            ends = [nothing.fileno(), out_end, err_end, status_end]
            socket.send_fds(server(), [request], ends)
        for end in ends[1:]:
            os.close(end)
        self.stdout, self.stderr = open(out, "rb", buffering=0), open(err, "rb", buffering=0)  # noqa: SIM115
        self.pid: int = _NUMBER.unpack(os.read(self._status, _NUMBER.size))[0]
        self.returncode: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        self.stderr.close()

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for its end; return the exit code."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a warm run", timeout)
            self.returncode = _NUMBER.unpack(os.read(self._status, _NUMBER.size))[0]
            os.close(self._status)
        return self.returncode

    def communicate(self, timeout: float) -> tuple[bytes, bytes]:
        """Return its output, after it has exited and no process holds its pipes."""
        end, found = time.monotonic() + timeout, {self.stdout: b"", self.stderr: b""}
        with ExitStack() as stack:
            waiting = [stack.enter_context(stream) for stream in found if not stream.closed]
            while waiting:
                ready = select.select(waiting, [], [], max(0, end - time.monotonic()))[0]
                if not ready:
                    raise subprocess.TimeoutExpired("a warm run", timeout)
                for stream in ready:
                    found[stream] += (data := os.read(stream.fileno(), _MESSAGE))
                    if not data:
                        waiting.remove(stream)
        self.wait(max(0, end - time.monotonic()))
        return found[self.stdout], found[self.stderr]


Started = Warm | subprocess.Popen[bytes]


@cache
def server() -> socket.socket:
    """Return the socket of this process's server, which is started at first use."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = tied(sys.executable, "-m", "tests.warm", str(theirs.fileno()))
    root = str(Path(__file__).resolve().parent.parent)
    process = subprocess.Popen(
        command, cwd=root, env={**os.environ, "PYTHONPATH": root}, pass_fds=[theirs.fileno()], start_new_session=True,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    theirs.close()
    atexit.register(_end, ours, process)
    return ours


def command() -> tuple[str, list[int]]:
    """Return what a shell runs in place of `shardtool`, and the descriptors that it needs for that."""
    if not POSSIBLE:
        return f"{sys.executable} -m shardtool", []
    client, socket_fd = Path(__file__).with_name("warm_client.py"), server().fileno()
    return f"{sys.executable} -IS {client} {socket_fd}", [socket_fd]


def put_on_path(folder: Path) -> str:
    """Make `shardtool` a command in `folder`; return the search path of a shell that finds it there first."""
    folder.mkdir()
    script = folder / "shardtool"
    script.write_text(f'#!/bin/sh\nexec {command()[0]} "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def _end(ours: socket.socket, process: subprocess.Popen[bytes]) -> None:
    ours.close()
    process.wait()


def _serve(requests: socket.socket) -> _Request:
    """Return the request of each run, in its process."""
    own, waiting = os.getpid(), set[int]()
    while True:
        data, fds, _, _ = socket.recv_fds(requests, _MESSAGE, 4)
        if not data:
            break
        pid = os.fork()
        if pid == 0:
            tie(own)
            requests.close()
            _wait_for_another(fds.pop())
            return _become(_Request(*marshal.loads(data)), fds)  # noqa: S302 - from the tests
        waiting.add(pid)
        for fd in fds:
            os.close(fd)
        while waiting and (ended := os.waitpid(-1, os.WNOHANG)[0]):
            waiting.remove(ended)
    for pid in waiting:  # its run goes with it
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)  # its CPU time then counts as ours
    sys.exit()


def _wait_for_another(status: int) -> None:
    """Fork, return in the child, and write how it ends in the parent."""
    own, pid = os.getpid(), os.fork()
    if pid == 0:
        tie(own)
        os.close(status)
        return
    os.closerange(0, status)
    os.write(status, _NUMBER.pack(pid))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(BrokenPipeError):
        os.write(status, _NUMBER.pack(code))
    os._exit(0)


def _become(request: _Request, fds: list[int]) -> _Request:
    """Take on what a new process would be given."""
    if request.session:
        os.setsid()
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(request.cwd)
    sys.path[0] = request.cwd
    os.environ.clear()
    os.environ.update(request.env)
    sys.argv = ["shardtool", *request.words]
    return request


def _import_all() -> None:
    import shardtool

    for name in _HEAVY:
        import_module(name)
    for module in walk_packages(shardtool.__path__, "shardtool."):
        if not module.name.startswith(_FRAMEWORKS) and not module.name.endswith("__main__"):
            import_module(module.name)


if __name__ == "__main__":
    _import_all()
    asked: Any = _serve(socket.socket(fileno=int(sys.argv[1])))
    exec(asked.code or "from shardtool.cli import main; main()", {"__name__": "__main__"})  # noqa: S102 - of the tests
