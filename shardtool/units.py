"""Parse and format sizes, times and counts."""

from __future__ import annotations

import re

from shardtool.errors import InvalidRequest

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)b?\s*", re.IGNORECASE)
_MAX_SIZE_BYTES = 10**18
_UNIT_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_UNIT_STEP = 1000
_TWO_DIGITS = 10


def parse_size(text: str | int) -> int:
    """Return a size in bytes. `500MB` is 500 * 10^6 bytes, `500MiB` is 500 * 2^20, and `500` is 500 bytes."""
    shown = str(text) if not isinstance(text, int) or abs(text) <= _MAX_SIZE_BYTES else "a huge number"
    match = _SIZE.fullmatch(shown)
    size = 0
    if match:
        from decimal import Decimal

        number, power, binary = match.groups()
        size = int(Decimal(number) * (1024 if binary else 1000) ** _UNIT_POWERS[power.lower()])
    if not 1 <= size <= _MAX_SIZE_BYTES:
        found = "invalid size" if size < 1 else "size too large"
        expected = "a number and a unit, such as 500MB or 1.5GiB" if size < 1 else "at most 1 EB (1000PB)"
        raise InvalidRequest(f"size {shown[:100]!r}", found, expected=expected)
    return size


def format_size(size: float) -> str:
    """Format a number of bytes in decimal units: `1.50 GB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < _UNIT_STEP - 0.5:  # 999.5 would be printed as 1000
            return f"{size:.0f} B" if unit == "B" else f"{size:.3g} {unit}"
        size /= _UNIT_STEP
    return f"{size:,.2f} PB"


def format_time(seconds: float) -> str:
    """Format a time: `4.4 us`, `83 us` or `9.1 ms`."""
    value, unit = (seconds * 1e6, "us") if seconds * 1e3 < 1 else (seconds * 1e3, "ms")
    return f"{value:.1f} {unit}" if round(value, 1) < _TWO_DIGITS else f"{value:.0f} {unit}"


def pluralize(number: int, thing: str) -> str:
    """Format a count, for example `1 file with a dot` or `2 files with a dot`."""
    noun, _, rest = thing.partition(" ")
    return f"{number:,} {noun}{'' if number == 1 else 's'}{' ' + rest if rest else ''}"


def already_exist_text(number: int, thing: str) -> str:
    """Return `1 file already exists` or `2 files already exist`."""
    return f"{pluralize(number, thing)} already exist{'s' if number == 1 else ''}"
