"""What the command line prints: results on stdout, and messages on stderr.

All of it goes through here, so that nothing that was read can steer a terminal: names of files, keys and fields are
what others chose. Text for people passes `printable`, line by line, whatever the verb thought of; JSON escapes by
itself. It is loaded with the command line, for an error can be that no more files may be opened.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from shardtool.errors import InvalidRequest, OutputFailed, printable, reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


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
    reader = sys.stdout
    for block in blocks:
        with _stdout():
            reader.buffer.write(block)
            reader.flush()
        if sys.stdout is not reader:
            return


def json_text(document: object) -> str:
    """Return a document as JSON, without a character that steers a terminal; with how often a store was asked again."""
    retry = sys.modules.get("shardtool.storage.remote.retry")  # where it is not loaded, nothing was asked
    if isinstance(document, dict) and retry is not None and (again := retry.asked_again()):
        document = {**document, "retries": again}
    return json.dumps(document, indent=2).replace("\x7f", "\\u007f")  # the one control that JSON leaves as it is


def say(text: str) -> None:
    """Print text for people on stderr, past a progress bar's line.

    Raises:
        OSError: The reader of stderr is gone.
    """
    if sys.stderr is not None:
        sys.stderr.write(_clean(text) + "\n")
        sys.stderr.flush()


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
