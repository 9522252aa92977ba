"""Lay out text for terminals: widths, columns and tables."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Sequence

from shardtool.errors import printable
from shardtool.units import format_size, pluralize

_DEFAULT_COLUMNS, _MIN_COLUMNS, _MAX_COLUMNS = 100, 40, 160


def terminal_width(default: int = _DEFAULT_COLUMNS) -> int:
    """Return the output width: the value of COLUMNS, or else the width of the terminal or `default`."""
    # like shutil.get_terminal_size, but shutil imports bz2 and lzma
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


def fit_line(text: str, room: int) -> str:
    """Return a string as one printable line, truncated to `room` columns."""
    text = printable(text)
    if display_width(text) <= room:
        return text
    kept, used = [], 0
    for char in text:
        used += display_width(char)
        if used > room - 3:
            break
        kept.append(char)
    return "".join(kept) + "..."


def pad(text: str, room: int, *, right: bool = False) -> str:
    """Pad a string with spaces to `room` columns. `right` aligns the string on the right."""
    blanks = " " * max(0, room - display_width(text))
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
    """Join lines, with control characters escaped. Empty lines are omitted."""
    return "\n".join(map(printable, filter(None, lines)))


def format_speed(size: int, seconds: float) -> str:
    """Return a string such as `3.2 s, 150 MB/s`."""
    return f"{seconds:.1f} s, {format_size(size / max(seconds, 1e-9))}/s"
