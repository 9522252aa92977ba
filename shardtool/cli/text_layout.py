"""Lay out text for a terminal: widths, columns, tables."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

from shardtool.errors import printable
from shardtool.units import format_size, pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence


_DEFAULT_COLUMNS, _MIN_COLUMNS, _MAX_COLUMNS = 100, 40, 160


def terminal_width() -> int:
    """Return how many columns there are: the terminal's, or 100 where there is none."""
    import shutil  # bz2, lzma: for what is shown at the end

    return max(_MIN_COLUMNS, min(_MAX_COLUMNS, shutil.get_terminal_size((_DEFAULT_COLUMNS, 24)).columns))


def display_width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def fit_line(text: str, room: int) -> str:
    """Return a text on one line, cut to `room` columns of a terminal where it is longer."""
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
    blanks = " " * max(0, room - display_width(text))
    return blanks + text if right else text + blanks


def samples_in_shards(samples: int, shards: int) -> str:
    return f"{pluralize(samples, 'sample')} in {pluralize(shards, 'shard')}"


def format_table(head: Sequence[str], rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Return rows with their columns one below the other; `sides` has an `l` or `r` for each."""
    widths = [max(display_width(row[at]) for row in [head, *rows]) for at in range(len(head))]
    return [
        "  ".join(
            pad(cell, wide, right=side == "r") for cell, wide, side in zip(row, widths, sides, strict=True)
        ).rstrip()
        for row in [head, *rows]
    ]


def join_lines(*lines: str) -> str:
    """Return lines, but for empty ones, each as one line, whatever names are in it."""
    return "\n".join(map(printable, filter(None, lines)))


def format_speed(size: int, seconds: float) -> str:
    return f"{seconds:.1f} s, {format_size(size / max(seconds, 1e-9))}/s"
