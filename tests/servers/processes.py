"""Processes of servers: each gets a free port of 127.0.0.1, and ends with this one, even if that is killed."""

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

_START_S = 60  # on a loaded machine; a second as a rule


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
        url: `http://127.0.0.1:PORT`, perhaps with a path; without a slash at the end.
        bucket: What a user writes before a key: `s3://bucket`; of web servers the same as `url`.
        folder: Where the files of `bucket` lie, if they do.
        environment: Variables with which obstore, and shardtool in a process of its own, reach it.
        secrets: What must never be seen in an output.
    """

    url: str
    bucket: str
    folder: Path | None = None
    environment: dict[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()

    @property
    def port(self) -> int:
        """Return where it listens."""
        return urlsplit(self.url).port or 0

    def new_prefix(self) -> str:
        """Return a prefix in the bucket that nothing has used: `s3://bucket/0123abcd`."""
        return f"{self.bucket}/{token_hex(4)}"

    def local(self, prefix: str) -> Path:
        """Return the folder in which a prefix's files lie, made if it was not there."""
        assert self.folder is not None
        path = self.folder / prefix.removeprefix(self.bucket).lstrip("/")
        path.mkdir(parents=True, exist_ok=True)
        return path


def _free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def found(name: str) -> str:
    """Return the path of a program, of this environment or on the path, or skip the test."""
    beside = Path(sys.executable).parent / name
    path = str(beside) if beside.exists() else shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


@contextlib.contextmanager
def running(command: Callable[[int], Sequence[str]], log: Path, **environment: str) -> Iterator[int]:
    """Run a server; yield its port. What it says is in `log`."""
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
