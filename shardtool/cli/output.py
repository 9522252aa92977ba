"""Print results on stdout and messages on stderr, and lay out text for terminals.

All output goes through this module. It escapes control characters, so names and fields cannot control the terminal.
Import this module at start-up. A process with too many open files could not import it later to report this problem.
"""

from __future__ import annotations

import json
import os
import sys
import time
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

import click

from shardtool.errors import InvalidRequest, OutputFailed, os_error_text, printable
from shardtool.units import format_size, pluralize

_PartT = TypeVar("_PartT")

_color_allowed = True


def print_text(text: str) -> None:
    """Print a result on stdout. A closed pipe (`| head`) is no error.

    Pass names that may contain line breaks through `printable` first.
    """
    _write_stdout(escape_unencodable(_printable_lines(text)))


def escape_unencodable(text: str) -> str:
    """Replace characters that stdout cannot encode by escapes such as `\\u2588`."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def print_json(document: object) -> None:
    """Print a document as JSON on stdout."""
    _write_stdout(json_text(document))


def write_bytes(blocks: Iterable[bytes]) -> None:
    """Write bytes to stdout. Raise InvalidRequest if stdout is a terminal."""
    if sys.stdout is None or sys.stdout.isatty():
        raise InvalidRequest("stdout", "a terminal", expected="a file or a pipe", remedy="Add > FILE to the command.")
    for block in until_closed(blocks):
        with _stdout_errors():
            sys.stdout.buffer.write(block)
            sys.stdout.flush()


def until_closed(parts: Iterable[_PartT]) -> Iterator[_PartT]:
    """Yield the parts of a result until the reader of stdout closes the pipe."""
    reader = sys.stdout
    for part in parts:
        yield part
        if sys.stdout is not reader:
            return


def json_text(document: object) -> str:
    """Return a document as JSON without control characters. If it is a dict, add the speed and retries of this run."""
    if isinstance(document, dict):
        document = {**document, **LOG.rates(document.get("seconds")), **_retry_totals()}
    # DEL is the only control character that JSON does not escape.
    return json.dumps(document, indent=2).replace("\x7f", "\\u007f")


def print_message(text: str, *, label: str = "", label_color: str = "", location: str = "") -> None:
    """Print a message on stderr. With `--log`, write it as a line of the log.

    `label`, such as `note:`, precedes `text`. If `text` starts with `location`, a terminal shows `location` in bold.
    """
    plain = f"{label} {text}" if label else text
    if LOG.is_enabled:
        LOG.write("message", text=plain)
    elif sys.stderr is not None:
        lines = _printable_lines(plain)
        sys.stderr.write((_colored(lines, label, label_color, location) if _has_color() else lines) + "\n")
        sys.stderr.flush()


def allow_color(*, allowed: bool) -> None:
    """Allow or forbid colours on terminals."""
    global _color_allowed  # noqa: PLW0603 - one terminal per process
    _color_allowed = allowed


def _has_color() -> bool:
    is_dumb = os.environ.get("TERM", "") in ("", "dumb")
    return _color_allowed and not os.environ.get("NO_COLOR") and not is_dumb and sys.stderr.isatty()


def _colored(text: str, label: str, label_color: str, location: str) -> str:
    rest = text[len(label) :]
    bold = f" {printable(location)}"
    if location and rest.startswith(bold):
        rest = click.style(bold, bold=True) + rest[len(bold) :]
    return (click.style(label, fg=label_color) if label_color else label) + rest


def _retry_totals() -> dict[str, float]:
    retry = sys.modules.get("shardtool.storage.remote.notices")  # imported when a verb is loaded
    return {} if retry is None else retry.retry_totals()


class EventLog:
    """Writes the log for `--log`: one line per event, on stderr.

    `samples` and `size` are totals, without kept shards. `result` is the document that `--json` would print.
    """

    def __init__(self) -> None:
        self.begin("")

    def begin(self, style: str) -> None:
        """Start a log in the style `json` or `text`, or turn the log off with ""."""
        self.is_enabled, self._style = bool(style), style
        self.samples, self.size, self._started = 0, 0, time.monotonic()
        self.result: dict[str, object] = {}

    def write(self, event: str, **facts: object) -> None:
        """Write a line for an event, unless stderr is closed."""
        now = time.time()
        at = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03}Z"
        if self._style == "json":
            line = json.dumps({"time": at, "event": event, **facts})
        else:
            line = " ".join([at, event, *(f"{name}={json.dumps(value)}" for name, value in facts.items())])
        with suppress(OSError, AttributeError):
            sys.stderr.write(line.replace("\x7f", "\\u007f") + "\n")
            sys.stderr.flush()

    def rates(self, seconds: object) -> dict[str, float]:
        """Return bytes and samples per second, or an empty dict if unknown."""
        if not self.size or not isinstance(seconds, float):
            return {}
        seconds = max(seconds, 1e-3)
        return {"bytes_per_s": round(self.size / seconds), "samples_per_s": round(self.samples / seconds, 1)}

    def end(self, code: int, error: object = None) -> None:
        """Write the event `end` with totals, and turn the log off."""
        if not self.is_enabled:
            return
        seconds = max(time.monotonic() - self._started, 1e-3)
        facts = {"exit_code": code, "seconds": round(seconds, 3), "bytes": self.size}
        facts |= {"bytes_per_s": 0, "samples_per_s": 0, "retries": 0, "waited_s": 0.0}
        facts |= {**self.rates(seconds), **_retry_totals()}
        short = {name: value for name, value in self.result.items() if not isinstance(value, list)}
        self.write("end", **facts, **({"result": short} if error is None else {"error": error}))
        self.is_enabled = False


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
    try:
        yield
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - stays open until exit
    except OSError as error:
        raise OutputFailed("stdout", f"cannot write: {os_error_text(error)}") from None


_DEFAULT_COLUMNS, _MIN_COLUMNS, _MAX_COLUMNS = 100, 40, 160


def terminal_width(default: int = _DEFAULT_COLUMNS) -> int:
    """Return COLUMNS if set, else the terminal's width, else `default`. The result is between 40 and 160."""
    # Do not use shutil.get_terminal_size, because shutil imports bz2 and lzma.
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        width = int(columns)
    else:
        try:
            width = os.get_terminal_size(sys.__stdout__.fileno()).columns or default  # type: ignore[union-attr]
        except (AttributeError, ValueError, OSError):  # stdout is closed, replaced, or not a terminal
            width = default
    return max(_MIN_COLUMNS, min(_MAX_COLUMNS, width))


def display_width(text: str) -> int:
    """Return the width of a string in terminal columns."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def fit_line(text: str, width: int) -> str:
    """Return one printable line, truncated to `width` columns."""
    text = printable(text)
    if display_width(text) <= width:
        return text
    kept, used = [], 0
    for char in text:
        used += display_width(char)
        if used > width - 3:
            break
        kept.append(char)
    return "".join(kept) + "..."


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Pad a string with spaces to `width` columns. `right` puts the spaces before the string."""
    blanks = " " * max(0, width - display_width(text))
    return blanks + text if right else text + blanks


def samples_in_shards(samples: int, shards: int) -> str:
    """Return a string such as `3 samples in 1 shard`."""
    return f"{pluralize(samples, 'sample')} in {pluralize(shards, 'shard')}"


def format_table(head: Sequence[str], rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Return the lines of a table. `sides` contains `l` (left) or `r` (right) for each column."""
    widths = [max(display_width(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return [
        "  ".join(
            pad(cell, width, right=side == "r") for cell, width, side in zip(row, widths, sides, strict=True)
        ).rstrip()
        for row in [head, *rows]
    ]


def join_lines(*lines: str) -> str:
    """Join the lines that are not empty, with control characters escaped."""
    return "\n".join(map(printable, filter(None, lines)))


def format_speed(size: int, seconds: float) -> str:
    """Return a string such as `3.2 s, 150 MB/s`."""
    return f"{seconds:.1f} s, {format_size(size / max(seconds, 1e-9))}/s"
