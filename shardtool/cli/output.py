"""What the command line prints, results on stdout and messages on stderr; and what it reads of standard input.

All that is printed goes through here, so that nothing that was read can steer a terminal: names of files, keys and
fields are what others chose. Text for people passes `printable`, line by line, whatever the verb thought of; JSON
escapes by itself. It is loaded with the command line, for an error can be that no more files may be opened.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, TypeVar, cast

import click

from shardtool.errors import InvalidRequest, OutputFailed, printable, reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Part = TypeVar("Part")


def show(text: str) -> None:
    """Print a result for people on stdout, all of it, as `encodable`.

    Args:
        text: Its lines. A name with a line break in it must have been made `printable` before.

    Raises:
        OutputFailed: It cannot be written. A reader that has seen enough (`| head`) is no error.
    """
    _print(encodable(_clean(text)))


def encodable(text: str) -> str:
    """Return text as stdout can write it: what its encoding lacks is written as `\\u2588`."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def show_json(document: object) -> None:
    """Print a result for programs on stdout.

    Raises:
        OutputFailed: It cannot be written.
    """
    _print(json_text(document))


def show_bytes(blocks: Iterable[bytes]) -> None:
    """Write bytes to stdout as they are: to a file or a program, never to a terminal.

    Raises:
        InvalidRequest: stdout is a terminal.
        OutputFailed: It cannot be written.
    """
    if sys.stdout is None or sys.stdout.isatty():
        raise InvalidRequest("stdout", "a terminal", expected="a file or a program", remedy="Add > FILE.")
    for block in while_read(blocks):
        with _stdout():
            sys.stdout.buffer.write(block)
            sys.stdout.flush()


def while_read(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield what is printed part by part, until the reader stops (`| head`)."""
    reader = sys.stdout
    for part in parts:
        yield part
        if sys.stdout is not reader:
            return


def json_text(document: object) -> str:
    """Return a document as JSON, without a character that steers a terminal; with how fast it went, and what waited."""
    if isinstance(document, dict):
        document = {**document, **LOG.rates(document.get("seconds")), **_retry_totals()}
    return json.dumps(document, indent=2).replace("\x7f", "\\u007f")  # the one control that JSON leaves as it is


def say(text: str) -> None:
    """Print text for people on stderr, past a progress bar's line; with `--log`, as a line of that.

    Raises:
        OSError: The reader of stderr is gone.
    """
    if LOG.style:
        LOG.write("message", text=text)
    elif sys.stderr is not None:
        sys.stderr.write(_clean(text) + "\n")
        sys.stderr.flush()


def _retry_totals() -> dict[str, float]:
    retry = sys.modules.get("shardtool.storage.remote.retry")  # where it is not loaded, nothing was asked
    return {} if retry is None else retry.retry_totals()


class Log:
    """What `--log` writes: a line of stderr for each event, and for the end, which is the last one.

    Attributes:
        style: `json` or `text`; empty: nothing is written.
        samples: Those of the shards that were done, and not kept from a run before.
        size: Bytes of these shards.
        result: What `--json` prints.
    """

    def __init__(self) -> None:
        self.begin("")

    def begin(self, style: str) -> None:
        """Write what comes in that style."""
        self.style, self.samples, self.size, self._began = style, 0, 0, time.monotonic()
        self.result: dict[str, object] = {}

    def write(self, event: str, **facts: object) -> None:
        """Write a line; who reads them may be gone."""
        now = time.time()
        at = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03}Z"
        if self.style == "json":
            line = json.dumps({"time": at, "event": event, **facts})
        else:
            line = " ".join([at, event, *(f"{name}={json.dumps(value)}" for name, value in facts.items())])
        with suppress(OSError, AttributeError):
            sys.stderr.write(line.replace("\x7f", "\\u007f") + "\n")
            sys.stderr.flush()

    def rates(self, seconds: object) -> dict[str, float]:
        """Return how many bytes and samples were done a second, if any were, in so many seconds; None: not known."""
        if not self.size or not isinstance(seconds, float):
            return {}
        seconds = max(seconds, 1e-3)
        return {"bytes_per_s": round(self.size / seconds), "samples_per_s": round(self.samples / seconds, 1)}

    def end(self, code: int, error: object = None) -> None:
        """Write the last line, unless that was written, with an exit code and an error, or the result."""
        if not self.style:
            return
        seconds = max(time.monotonic() - self._began, 1e-3)
        facts = {"exit_code": code, "seconds": round(seconds, 3), "bytes": self.size}
        facts |= {"bytes_per_s": 0, "samples_per_s": 0, "retries": 0, "waited_s": 0.0}
        facts |= {**self.rates(seconds), **_retry_totals()}
        short = {name: value for name, value in self.result.items() if not isinstance(value, list)}
        self.write("end", **facts, **({"result": short} if error is None else {"error": error}))
        self.style = ""


LOG = Log()


def _clean(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


def _print(text: str) -> None:
    with _stdout():
        click.echo(text)
        if sys.stdout is not None:
            sys.stdout.flush()


@contextmanager
def _stdout() -> Iterator[None]:
    """Write to stdout in the block, until whoever reads it is gone."""
    try:
        yield
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for what the interpreter flushes at its end
    except OSError as error:
        raise OutputFailed("stdout", f"cannot write: {reason(error)}") from None


# `pipe:COMMAND`, and a tar on standard input: what a user types where a file is meant.
#
# What comes out is kept in a temporary file for as long as the command runs, because it is read more than once, and by
# several processes. No file can name a command: only what is typed gets here.


_PIPE = "pipe:"
_HEAD = 512
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
    with (
        subprocess.Popen(command, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as run,  # noqa: S602 - the user typed it
        _kept(cast("IO[bytes]", run.stdout), name, number) as path,
    ):
        if status := run.wait():
            raise InvalidRequest(name, f"the command ends with the status {status}", expected="0")
        yield path


@contextmanager
def _kept(stream: IO[bytes], where: str, number: int) -> Iterator[str]:
    """Give a file with what a stream holds."""
    import shutil
    import tempfile

    head = stream.read(_HEAD)
    ending = _ending(head)
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
            raise OutputFailed(path, f"cannot keep {where}: {reason(error)}", remedy=remedy) from None
        yield path


def _ending(head: bytes) -> str:
    """Return what a file is called that starts so; empty for no tar or zip."""
    return next((ending for at, magic, ending in _MAGIC if head[at : at + len(magic)] == magic), "")
