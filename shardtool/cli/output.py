"""What the command line prints: all of it goes through here, so that nothing that was read can steer a terminal.

Names of files, keys and fields are what others chose. Text for people passes `printable` here, line by line, whatever
the verb thought of; JSON escapes by itself. Everything but results goes to stderr.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, BinaryIO

import click

from shardtool.errors import InvalidRequest, OutputFailed, printable, reason
from shardtool.storage.remote.retry import asked_again

if TYPE_CHECKING:
    from collections.abc import Iterable


def show(text: str) -> None:
    """Print a result for people on stdout, all of it.

    Args:
        text: Its lines. A name with a line break in it must have been made `printable` before.

    Raises:
        OutputFailed: It cannot be written. A reader that has seen enough (`| head`) is no error.
    """
    _print(_clean(text))


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
    for block in blocks:
        if not _wrote(sys.stdout.buffer, block):
            return


def _wrote(stream: BinaryIO, block: bytes) -> bool:
    """Write bytes, all of them; return whether anybody reads them."""
    try:
        stream.write(block)
        stream.flush()
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for what the interpreter flushes at its end
        return False
    except OSError as error:
        raise OutputFailed("stdout", f"cannot write: {reason(error)}") from None
    return True


def json_text(document: object) -> str:
    """Return a document as JSON, without a character that steers a terminal; with how often a store was asked again."""
    import json

    if isinstance(document, dict) and (again := asked_again()):
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
    try:
        click.echo(text)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for what the interpreter flushes at its end
    except OSError as error:
        where = reason(error)
        raise OutputFailed("stdout", f"cannot write: {where}") from None
