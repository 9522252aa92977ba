"""Print results on stdout and messages on stderr.

All output goes through this module, so that file names, keys and fields chosen by others cannot control the
terminal:
text passes `printable` line by line, and JSON escapes. It is imported at start-up, because an error can be that no
more files may be opened.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

import click

from shardtool.errors import InvalidRequest, OutputFailed, os_error_text, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_PartT = TypeVar("_PartT")


def print_text(text: str) -> None:
    """Print a result for people on stdout, all of it, as `escape_unencodable`.

    Args:
        text: Its lines. A name with a line break in it must have been made `printable` before.

    Raises:
        OutputFailed: It cannot be written. A reader that has seen enough (`| head`) is no error.
    """
    _write_stdout(escape_unencodable(_printable_lines(text)))


def escape_unencodable(text: str) -> str:
    """Return text as stdout can write it: what its encoding lacks is written as `\\u2588`."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def print_json(document: object) -> None:
    """Print a result for programs on stdout.

    Raises:
        OutputFailed: It cannot be written.
    """
    _write_stdout(json_text(document))


def write_bytes(blocks: Iterable[bytes]) -> None:
    """Write bytes to stdout as they are: to a file or a program, never to a terminal.

    Raises:
        InvalidRequest: stdout is a terminal.
        OutputFailed: It cannot be written.
    """
    if sys.stdout is None or sys.stdout.isatty():
        raise InvalidRequest("stdout", "a terminal", expected="a file or a program", remedy="Add > FILE.")
    for block in until_closed(blocks):
        with _stdout_errors():
            sys.stdout.buffer.write(block)
            sys.stdout.flush()


def until_closed(parts: Iterable[_PartT]) -> Iterator[_PartT]:
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


def print_message(text: str) -> None:
    """Print text for people on stderr, past a progress bar's line; with `--log`, as a line of that.

    Raises:
        OSError: The reader of stderr is gone.
    """
    if LOG.style:
        LOG.write("message", text=text)
    elif sys.stderr is not None:
        sys.stderr.write(_printable_lines(text) + "\n")
        sys.stderr.flush()


def _retry_totals() -> dict[str, float]:
    retry = sys.modules.get("shardtool.storage.remote.notices")  # where it is not loaded, nothing was asked
    return {} if retry is None else retry.retry_totals()


class EventLog:
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


LOG = EventLog()


def _printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


def _write_stdout(text: str) -> None:
    with _stdout_errors():
        click.echo(text)
        if sys.stdout is not None:
            sys.stdout.flush()


@contextmanager
def _stdout_errors() -> Iterator[None]:
    """Write to stdout in the block, until whoever reads it is gone."""
    try:
        yield
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for what the interpreter flushes at its end
    except OSError as error:
        raise OutputFailed("stdout", f"cannot write: {os_error_text(error)}") from None
