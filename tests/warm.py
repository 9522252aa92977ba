"""Start `shardtool` commands fast, as processes that are forked from a server which has imported the package.

A new interpreter needs 0.3 s of CPU to import NumPy and pyarrow, ten times as much as most fault tests need. A forked
process has its own descriptors, environment, working directory, session and signal handlers. Tests of the start-up use
`subprocess` instead.

`python -m tests.warm FD` is the server. It forks a process for each request from the socket FD, until the socket is
closed. All processes are killed when the tests exit:

    the tests ── socket ── the server, which forks
                             └── a waiting process, which writes the pid and the exit code to a pipe of the tests
                                   └── the command
"""

from __future__ import annotations

import atexit
import gc
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
_NOT_INSTALLED = ("shardtool.torch", "shardtool.tensorflow", "shardtool.execute.ray_", "shardtool.ray")
_HEAVY = ("numpy", "obstore.store", "pyarrow.compute", "pyarrow.fs", "pyarrow.parquet", "urllib3")
_NUMBER = struct.Struct("=i")
_MESSAGE = 2**17


class _Request(NamedTuple):
    words: list[str]
    code: str  # Python code to run; empty for the command line
    cwd: str
    env: dict[str, str]
    session: bool  # start a new session


class Warm:
    """A process forked from the server, with stdout and stderr in pipes. The interface is a subset of `Popen`."""

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
        """Return the exit code, negative for a signal, or None if the process is running."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait until the process exits, and return its exit code."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a warm run", timeout)
            self.returncode = _NUMBER.unpack(os.read(self._status, _NUMBER.size))[0]
            os.close(self._status)
        return self.returncode

    def communicate(self, timeout: float) -> tuple[bytes, bytes]:
        """Return stdout and stderr. Wait until the process has exited and its children have closed the pipes, too."""
        end, output = time.monotonic() + timeout, {self.stdout: b"", self.stderr: b""}
        with ExitStack() as stack:
            waiting = [stack.enter_context(stream) for stream in output if not stream.closed]
            while waiting:
                ready = select.select(waiting, [], [], max(0, end - time.monotonic()))[0]
                if not ready:
                    raise subprocess.TimeoutExpired("a warm run", timeout)
                for stream in ready:
                    output[stream] += (data := os.read(stream.fileno(), _MESSAGE))
                    if not data:
                        waiting.remove(stream)
        self.wait(max(0, end - time.monotonic()))
        return output[self.stdout], output[self.stderr]


Started = Warm | subprocess.Popen[bytes]


@cache
def server() -> socket.socket:
    """Return the socket of the server of this process. The first call starts the server."""
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
    """Return the command that a shell runs instead of `shardtool`, and the descriptors that the shell must inherit."""
    if not POSSIBLE:
        return f"{sys.executable} -m shardtool", []
    client, socket_fd = Path(__file__).with_name("warm_client.py"), server().fileno()
    return f"{sys.executable} -IS {client} {socket_fd}", [socket_fd]


def put_on_path(folder: Path) -> str:
    """Create the command `shardtool` in a new folder. Return a value for `PATH` that starts with this folder."""
    folder.mkdir()
    script = folder / "shardtool"
    script.write_text(f'#!/bin/sh\nexec {command()[0]} "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def _end(ours: socket.socket, process: subprocess.Popen[bytes]) -> None:
    ours.close()
    process.wait()


def _serve(requests: socket.socket) -> _Request:
    """Fork a process for each request. This function returns only in the forked processes, with the request."""
    own, waiting = os.getpid(), set[int]()
    while True:
        data, fds, _, _ = socket.recv_fds(requests, _MESSAGE, 4)
        if not data:
            break
        pid = os.fork()
        if pid == 0:
            tie(own)
            requests.close()
            _fork_and_report(fds.pop())
            return _become(_Request(*marshal.loads(data)), fds)  # noqa: S302 - the request comes from a test
        waiting.add(pid)
        for fd in fds:
            os.close(fd)
        while waiting and (ended := os.waitpid(-1, os.WNOHANG)[0]):
            waiting.remove(ended)
    for pid in waiting:  # killing a waiting process also kills its command, which is tied to it
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)  # adds its CPU time to that of this process
    sys.exit()


def _fork_and_report(status: int) -> None:
    """Fork, and return in the child. In the parent, write the child's pid and exit code to `status`, and exit."""
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
    """Apply the session, descriptors, working directory, environment and arguments of a request to this process."""
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
        if not module.name.startswith(_NOT_INSTALLED) and not module.name.endswith("__main__"):
            import_module(module.name)


if __name__ == "__main__":
    _import_all()
    gc.freeze()  # otherwise each process would copy all imported objects, because its garbage collector visits them
    request: Any = _serve(socket.socket(fileno=int(sys.argv[1])))
    exec(request.code or "from shardtool.cli import main; main()", {"__name__": "__main__"})  # noqa: S102 - the code comes from a test
