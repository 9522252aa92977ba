"""Start server processes on free ports of 127.0.0.1. They are killed when this process exits, even if it is killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.tied import tied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_START_S = 60  # usually one second, but longer on a busy machine


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
        url: `http://127.0.0.1:PORT`, perhaps with a path, without a trailing slash.
        bucket: URL of the bucket, such as `s3://bucket`. For web servers, the same as `url`.
        folder: Folder whose files are the objects in `bucket`, if the server has such a folder.
        environment: Environment variables that select the server and its credentials.
        secrets: Texts that must not appear in any output.
    """

    url: str
    bucket: str
    folder: Path | None = None
    environment: dict[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()

    @property
    def port(self) -> int:
        """Port of the server."""
        return urlsplit(self.url).port or 0

    def new_prefix(self) -> str:
        """Return an unused random prefix in the bucket, such as `s3://bucket/0123abcd`."""
        return f"{self.bucket}/{token_hex(4)}"

    def local(self, prefix: str) -> Path:
        """Return the local folder of a prefix, after creating it if necessary."""
        assert self.folder is not None
        path = self.folder / prefix.removeprefix(self.bucket).lstrip("/")
        path.mkdir(parents=True, exist_ok=True)
        return path


def _free_port() -> int:
    """Return a free port."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def found(name: str) -> str:
    """Return the path of a program. If the program is not installed, skip the test."""
    beside = Path(sys.executable).parent / name
    path = str(beside) if beside.exists() else shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


@contextlib.contextmanager
def running(command: Callable[[int], Sequence[str]], log: Path, **environment: str) -> Iterator[int]:
    """Run a server, and yield its port. `command` returns the command for a port, and `log` receives the output."""
    port = _free_port()
    env = {**os.environ, **environment}
    with log.open("wb") as said:
        server = subprocess.Popen(tied(*command(port)), stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=env)
    try:
        _wait(server, port, log)
        yield port
    finally:
        server.kill()
        server.wait()


def _wait(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end and server.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.02)
    raise RuntimeError(f"{server.args!r} does not listen: {log.read_text(errors='replace')[-2000:]}")
