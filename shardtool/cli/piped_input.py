"""`pipe:COMMAND`, and a tar or zip on standard input, as arguments.

The data is kept in a temporary file, because several processes read it more than once. Commands in files are refused.
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
    """Replace commands and standard input by temporary files, which are deleted at the end of the run.

    `table`: keep `-`, because standard input is a table or a list.
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
            found = f"a range ({braces[0]}) in a command, which returns one shard"
            remedy = "Use the pattern without a command, such as s3://bucket/out-{000..041}.tar."
            raise InvalidRequest(name, found, expected="a command for each shard", remedy=remedy)
        return click.get_current_context().with_resource(_run_command(name, number))
    return name


@contextmanager
def _run_command(name: str, number: int) -> Iterator[str]:
    import subprocess

    command = name.removeprefix(_PIPE_PREFIX)
    with (
        subprocess.Popen(command, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as run,  # noqa: S602 - the user typed it
        _keep_stream(cast("IO[bytes]", run.stdout), name, number) as path,
    ):
        if status := run.wait():
            raise InvalidRequest(name, f"the command failed with exit code {status}", expected="exit code 0")
        yield path


@contextmanager
def _keep_stream(stream: IO[bytes], where: str, number: int) -> Iterator[str]:
    import shutil
    import tempfile

    head = stream.read(_HEAD_BYTES)
    ending = _archive_ending(head)
    if not ending:
        found = "no data" if not head else "neither a tar nor a zip"
        raise InvalidRequest(where, found, expected="a tar, also compressed with gzip or zstd, or a zip")
    with tempfile.TemporaryDirectory(prefix="shardtool-") as folder:
        path = os.path.join(folder, f"piped-{number:03}{ending}")
        try:
            with open(path, "wb") as file:
                file.write(head)
                shutil.copyfileobj(stream, file)
        except OSError as error:
            remedy = "Set TMPDIR to another folder."
            raise OutputFailed(path, f"cannot keep {where}: {os_error_text(error)}", remedy=remedy) from None
        yield path


def _archive_ending(head: bytes) -> str:
    return next((ending for start, magic, ending in _ARCHIVE_MAGIC if head[start : start + len(magic)] == magic), "")
