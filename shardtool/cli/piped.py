"""`pipe:COMMAND`, and a tar on standard input: what a user types where a file is meant.

What comes out is kept in a temporary file for as long as the command runs, because it is read more than once, and by
several processes. No file can name a command: only what is typed gets here.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import click

from shardtool.errors import InvalidRequest, OutputFailed, reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PIPE = "pipe:"
_HEAD = 512
_BLOCK = 2**20
_MAGIC = ((257, b"ustar", ".tar"), (0, b"\x1f\x8b", ".tar.gz"), (0, b"\x28\xb5\x2f\xfd", ".tar.zst"),
          (0, b"PK\x03\x04", ".zip"))  # fmt: skip
_BRACES = re.compile(r"\{[^{}]*\.\.[^{}]*\}")


def in_files(names: Sequence[str], *, table: bool = False) -> tuple[str, ...]:
    """Return names with temporary files in place of commands and of standard input; they go when the command ends.

    Args:
        names: What was typed.
        table: Whether `-` may be a table or a list: then it stays, unless it is a tar or a zip.

    Raises:
        InvalidRequest: A command fails, or gives something else than a tar or zip.
        OutputFailed: There is no room for it.
    """
    if not any(name == "-" or name.startswith(_PIPE) for name in names):
        return (*names,)
    return tuple(_in_file(name, number, table=table) for number, name in enumerate(names))


def _in_file(name: str, number: int, *, table: bool) -> str:
    if name == "-":
        stdin: IO[bytes] = sys.stdin.buffer
        head = stdin.peek(_HEAD) if hasattr(stdin, "peek") else b""
        if table and not _ending(head[:_HEAD]):
            return name
        return click.get_current_context().with_resource(_kept(stdin, "standard input", number))
    if name.startswith(_PIPE):
        if braces := _BRACES.search(name):
            found = f"a range ({braces[0]}) in a command, which gives one shard"
            remedy = "Give the pattern itself, such as s3://bucket/out-{000..041}.tar."
            raise InvalidRequest(name, found, expected="a command for each shard", remedy=remedy)
        return click.get_current_context().with_resource(_run(name, number))
    return name


@contextmanager
def _run(name: str, number: int) -> Iterator[str]:
    """Give a file with what a command writes."""
    import subprocess

    command = name.removeprefix(_PIPE)
    with subprocess.Popen(command, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as run:  # noqa: S602 - the user typed it
        if run.stdout is None:
            raise InvalidRequest(name, "no output")
        with _kept(run.stdout, name, number) as path:
            if status := run.wait():
                raise InvalidRequest(name, f"the command ends with the status {status}", expected="0")
            yield path


@contextmanager
def _kept(stream: IO[bytes], where: str, number: int) -> Iterator[str]:
    """Give a file with what a stream holds."""
    import tempfile

    head = b""
    while len(head) < _HEAD and (more := stream.read(_HEAD - len(head))):
        head += more
    ending = _ending(head)
    if not ending:
        found = "nothing" if not head else "no tar, and no zip"
        raise InvalidRequest(where, found, expected="a tar, perhaps packed by gzip or zstd, or a zip")
    with tempfile.TemporaryDirectory(prefix="shardtool-") as folder:
        path = os.path.join(folder, f"piped-{number:03}{ending}")
        try:
            with open(path, "wb") as file:
                file.write(head)
                while data := stream.read(_BLOCK):
                    file.write(data)
        except OSError as error:
            remedy = "TMPDIR names another folder."
            raise OutputFailed(path, f"cannot keep {where}: {reason(error)}", remedy=remedy) from None
        yield path


def _ending(head: bytes) -> str:
    """Return what a file is called that starts so; empty for no tar or zip."""
    return next((ending for at, magic, ending in _MAGIC if head[at : at + len(magic)] == magic), "")
