"""Parse option values."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from shardtool.errors import InvalidRequest
from shardtool.messages import option_text
from shardtool.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Iterable
    from fractions import Fraction

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,30}")
_SHARE = re.compile(r"\s*(\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(e[+-]?\d{1,3})?\s*(%?)\s*", re.ASCII | re.IGNORECASE)
_MAX_SIDE_PIXELS = 65_535  # limit of JPEG
_PIXELS = re.compile(r"[0-9]{1,5}")
_SUBSTITUTION_START = re.compile(r"s[/|,#:@!;%]")
_SUBSTITUTION = re.compile(r"s(.)((?:\\.|(?!\1)[^\\])*)\1((?:\\.|(?!\1)[^\\])*)\1([gi]*)", re.DOTALL)
_ESCAPE = re.compile(r"\\.|&", re.DOTALL)
_MAX_SUBSTITUTION_LETTERS = 256  # longer replacements could create huge keys


def parse_whole_number(text: str) -> int | str:
    """Convert a plain whole number to an integer. Return other strings, such as `1_000`, unchanged."""
    return int(text) if _WHOLE_NUMBER.fullmatch(text.strip()) else text


def split_commas(name: str, value: object) -> list[str]:
    """Split a string at commas, or return a copy of a list of strings."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
        raise InvalidRequest(option_text(name), repr(value), expected="a string with commas, or a list of strings")
    return [*parts]


def parse_pairs(
    name: str, texts: Iterable[str], expected: str = "FIELD=COLUMN, such as jpg=path"
) -> tuple[tuple[str, str], ...]:
    """Split strings of the form `left=right` into pairs."""
    pairs = []
    for text in texts:
        left, _, right = text.partition("=")
        if not left or not right:
            raise InvalidRequest(option_text(name), repr(text), expected=expected)
        pairs.append((left, right))
    return tuple(pairs)


def format_pair(name: str, left: str, right: str) -> str:
    """Return the text `left=right`. Raise InvalidRequest if `left` contains `=`, because `parse_pairs` splits there."""
    if not isinstance(left, str) or not isinstance(right, str) or "=" in left:
        found = f"{left!r}: {right!r}"
        raise InvalidRequest(option_text(name), found, expected="two strings, the first without an equals sign")
    return f"{left}={right}"


def parse_delimiter(name: str, text: str) -> str:
    r"""Return the delimiter character. `tab` and `\t` mean a tab."""
    delimiter = "\t" if text in ("tab", r"\t") else text
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n\0':
        raise InvalidRequest(option_text(name), repr(text[:20]), expected="one character, such as ; or |, or tab")
    return delimiter


class DelimitedFormat(NamedTuple):
    """Format of a text table.

    If `delimiter` is "", the file extension determines the delimiter. If `header` is false, columns are named 1, 2, ...
    """

    delimiter: str = ""
    header: bool = True


DEFAULT_FORMAT = DelimitedFormat()


class Substitution(NamedTuple):
    """A substitution as in sed: RE2 pattern, replacement, and maximum number of replacements (None for all)."""

    pattern: str
    replacement: str
    limit: int | None


def parse_substitution(name: str, text: str) -> Substitution | None:
    """Return the parts of `s/PATTERN/REPLACEMENT/FLAGS`, or None for other strings.

    Any of `/|,#:@!;%` can separate the parts. In the replacement, `&` is the match, and `\\1` a group. Flags: `g`
    replaces all matches, `i` ignores case.
    """
    if not _SUBSTITUTION_START.match(text):
        return None
    match = _SUBSTITUTION.fullmatch(text)
    if match is None or not match[2] or max(map(len, match.groups())) > _MAX_SUBSTITUTION_LETTERS:
        expected = "s/PATTERN/REPLACEMENT/, with the flags g and i, such as s/^/2024-/"
        raise InvalidRequest(option_text(name), repr(text[:100]), expected=expected)
    mark, pattern, replacement, flags = match.groups()
    literal = {"&": "&", mark: mark, "\\": "\\\\"}
    replacement = _ESCAPE.sub(lambda part: "\\0" if part[0] == "&" else literal.get(part[0][1:], part[0]), replacement)
    return Substitution(f"(?i){pattern}" if "i" in flags else pattern, replacement, None if "g" in flags else 1)


def parse_size_option(name: str, text: str | int) -> int:
    """Return a size such as `500MB` in bytes."""
    try:
        return parse_size(text)
    except InvalidRequest as error:
        raise InvalidRequest(
            option_text(name), f"{error.found}: {str(text)[:100]!r}", expected=error.expected
        ) from None


def parse_rate(name: str, text: str | int) -> int:
    """Return a rate such as `100MB/s` in bytes per second, at least 1."""
    rate = parse_size_option(name, text.removesuffix("/s") if isinstance(text, str) else text)
    if not rate:
        raise InvalidRequest(option_text(name), repr(text), expected="a rate such as 100MB/s")
    return rate


def parse_share(name: str, text: str | float, *, positive: bool = False) -> Fraction:
    """Return a share such as `0.1` or `10%` as an exact fraction. The float 0.1 becomes 1/10."""
    from fractions import Fraction

    match = _SHARE.fullmatch(str(text))
    share = Fraction(match[1] + (match[2] or "")) / (100 if match[3] else 1) if match else Fraction(-1)
    if not 0 <= share <= 1 or (positive and not share):
        expected = f"a share {'above 0 and at most' if positive else 'from 0 to'} 1, such as 0.01 or 1%"
        raise InvalidRequest(option_text(name), repr(str(text)), expected=expected)
    return share


def parse_pixels(name: str, size: str | int | tuple[int, int]) -> tuple[int, int]:
    """Return (width, height) for `256`, `(640, 480)` or `640x480`."""
    text = "x".join(map(str, size)) if isinstance(size, tuple) else str(size)
    width, cross, height = text.lower().partition("x")
    if not _PIXELS.fullmatch(width) or (cross and not _PIXELS.fullmatch(height)):
        expected = f"a number of pixels, or WIDTHxHEIGHT, at most {_MAX_SIDE_PIXELS:,}"
        raise InvalidRequest(option_text(name), repr(text[:100]), expected=expected)
    sides = int(width), int(height or width)
    if max(sides) > _MAX_SIDE_PIXELS:
        raise InvalidRequest(option_text(name), repr(text), expected=f"at most {_MAX_SIDE_PIXELS:,} pixels per side")
    return sides
