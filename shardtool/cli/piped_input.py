"""`pipe:COMMAND` and a tar on standard input, where a file is expected.

The data is kept in a temporary file while the command runs, because several processes read it more than once. Only
typed arguments can contain a command; no file can.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, cast

import click

from shardtool.errors import InvalidRequest, OutputFailed, os_error_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_PIPE_PREFIX = "pipe:"


_HEAD_BYTES = 512


_ARCHIVE_MAGIC = ((257, b"ustar", ".tar"), (0, b"\x1f\x8b", ".tar.gz"), (0, b"\x28\xb5\x2f\xfd", ".tar.zst"),
          (0, b"PK\x03\x04", ".zip"))  # fmt: skip


_BRACE_RANGE = re.compile(r"\{[^{}]*\.\.[^{}]*\}")


def materialize_inputs(names: Sequence[str], *, table: bool = False) -> tuple[str, ...]:
    """Return names with temporary files in place of commands and of standard input; they go when the command ends.

    Args:
        names: What was typed.
        table: Whether `-` may be a table or a list: then it stays, unless it is a tar or a zip.

    Raises:
        InvalidRequest: A command fails, or gives something else than a tar or zip.
        OutputFailed: There is no room for it.
    """
    return tuple(_materialize(name, number, table=table) for number, name in enumerate(names))


def _materialize(name: str, number: int, *, table: bool) -> str:
    if name == "-":
        stdin: IO[bytes] = sys.stdin.buffer
        head = stdin.peek(_HEAD_BYTES) if hasattr(stdin, "peek") else b""
        if table and not _archive_ending(head[:_HEAD_BYTES]):
            return name
        return click.get_current_context().with_resource(_keep_stream(stdin, "standard input", number))
    if name.startswith(_PIPE_PREFIX):
        if braces := _BRACE_RANGE.search(name):
            found = f"a range ({braces[0]}) in a command, which gives one shard"
            remedy = "Give the pattern itself, such as s3://bucket/out-{000..041}.tar."
            raise InvalidRequest(name, found, expected="a command for each shard", remedy=remedy)
        return click.get_current_context().with_resource(_run_command(name, number))
    return name


@contextmanager
def _run_command(name: str, number: int) -> Iterator[str]:
    """Give a file with what a command writes."""
    import subprocess

    command = name.removeprefix(_PIPE_PREFIX)
    with (
        subprocess.Popen(command, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as run,  # noqa: S602 - the user typed it
        _keep_stream(cast("IO[bytes]", run.stdout), name, number) as path,
    ):
        if status := run.wait():
            raise InvalidRequest(name, f"the command ends with the status {status}", expected="0")
        yield path


@contextmanager
def _keep_stream(stream: IO[bytes], where: str, number: int) -> Iterator[str]:
    """Give a file with what a stream holds."""
    import shutil
    import tempfile

    head = stream.read(_HEAD_BYTES)
    ending = _archive_ending(head)
    if not ending:
        found = "nothing" if not head else "no tar, and no zip"
        raise InvalidRequest(where, found, expected="a tar, perhaps packed by gzip or zstd, or a zip")
    with tempfile.TemporaryDirectory(prefix="shardtool-") as folder:
        path = os.path.join(folder, f"piped-{number:03}{ending}")
        try:
            with open(path, "wb") as file:
                file.write(head)
                shutil.copyfileobj(stream, file)
        except OSError as error:
            remedy = "TMPDIR names another folder."
            raise OutputFailed(path, f"cannot keep {where}: {os_error_text(error)}", remedy=remedy) from None
        yield path


def _archive_ending(head: bytes) -> str:
    """Return what a file is called that starts so; empty for no tar or zip."""
    return next((ending for at, magic, ending in _ARCHIVE_MAGIC if head[at : at + len(magic)] == magic), "")
