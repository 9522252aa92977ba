"""Parse the text values of options: pairs, sizes, rates, shares, image sizes, delimiters."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from shardtool.errors import InvalidRequest
from shardtool.messages import option_text
from shardtool.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Iterable

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,30}")


_SHARE = re.compile(r"\s*(\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(e[+-]?\d{1,3})?\s*(%?)\s*", re.ASCII | re.IGNORECASE)


_MAX_SIDE_PIXELS = 65_535  # a side: what JPEG has room for


_PIXELS = re.compile(r"[0-9]{1,5}")


def parse_whole_number(text: str) -> int | str:
    """Return the number that a text is; the text itself where it is none: int() reads more than people type."""
    return int(text) if _WHOLE_NUMBER.fullmatch(text.strip()) else text


def split_commas(name: str, given: object) -> list[str]:
    """Return the parts of a text with commas, or of several texts.

    Raises:
        InvalidRequest: It is neither.
    """
    found = given.split(",") if isinstance(given, str) else given
    if not isinstance(found, (list, tuple)) or not all(isinstance(one, str) for one in found):
        raise InvalidRequest(option_text(name), repr(given), expected="a text with commas, or several texts")
    return [*found]


def parse_pairs(
    name: str, given: Iterable[str], expected: str = "FIELD=COLUMN, such as jpg=path"
) -> tuple[tuple[str, str], ...]:
    """Return the two sides of each `one=other`.

    Raises:
        InvalidRequest: One is no such text.
    """
    found = []
    for text in given:
        one, _, other = text.partition("=")
        if not one or not other:
            raise InvalidRequest(option_text(name), repr(text), expected=expected)
        found.append((one, other))
    return tuple(found)


def format_pair(name: str, one: str, other: str) -> str:
    """Return `one=other`.

    Raises:
        InvalidRequest: One is no text, or the first has an equals sign.
    """
    if not isinstance(one, str) or not isinstance(other, str) or "=" in one:
        found = f"{one!r}: {other!r}"
        raise InvalidRequest(option_text(name), found, expected="two texts, the first without an equals sign")
    return f"{one}={other}"


def parse_delimiter(name: str, text: str) -> str:
    r"""Return the character that a text means: `tab` and `\t` are one.

    Raises:
        InvalidRequest: It is none that can stand between values.
    """
    found = "\t" if text in ("tab", r"\t") else text
    if len(found) != 1 or not found.isascii() or found in '"\r\n\0':
        raise InvalidRequest(option_text(name), repr(text[:20]), expected="one character, such as ; or |, or tab")
    return found


class DelimitedFormat(NamedTuple):
    """How a table that is text is written, as far as its name does not say.

    Attributes:
        delimiter: What stands between values; empty: what the ending of its name says.
        header: Whether its first row names the columns; else they are called 1, 2, ...
    """

    delimiter: str = ""
    header: bool = True


DEFAULT_FORMAT = DelimitedFormat()


def parse_size_option(name: str, text: str | int) -> int:
    """Return the bytes that a size such as `500MB` means.

    Raises:
        InvalidRequest: It is none.
    """
    try:
        return parse_size(text)
    except InvalidRequest as error:
        raise InvalidRequest(
            option_text(name), f"{error.found}: {str(text)[:100]!r}", expected=error.expected
        ) from None


def parse_rate(name: str, text: str | int) -> int:
    """Return the bytes a second that a rate such as `100MB/s` means, at least one.

    Raises:
        InvalidRequest: It is none.
    """
    found = parse_size_option(name, text.removesuffix("/s") if isinstance(text, str) else text)
    if not found:
        raise InvalidRequest(option_text(name), repr(text), expected="a rate such as 100MB/s")
    return found


def parse_share(name: str, text: str | float, *, some: bool = False) -> Fraction:
    """Return a share such as `0.1` or `10%`, exactly as it is written; of a float, what Python shows.

    Args:
        name: The option.
        text: What was given.
        some: Whether it must be above 0.

    Raises:
        InvalidRequest: It is none from 0 to 1.
    """
    match = _SHARE.fullmatch(str(text))
    found = Fraction(match[1] + (match[2] or "")) / (100 if match[3] else 1) if match else Fraction(-1)
    if not 0 <= found <= 1 or (some and not found):
        expected = f"a share {'above 0 and at most' if some else 'from 0 to'} 1, such as 0.01 or 1%"
        raise InvalidRequest(option_text(name), repr(str(text)), expected=expected)
    return found


def parse_pixels(name: str, given: str | int | tuple[int, int]) -> tuple[int, int]:
    """Return the width and the height that `256`, `(640, 480)` or `640x480` means.

    Raises:
        InvalidRequest: It is no such text.
    """
    text = "x".join(map(str, given)) if isinstance(given, tuple) else str(given)
    width, cross, height = text.lower().partition("x")
    if not _PIXELS.fullmatch(width) or (cross and not _PIXELS.fullmatch(height)):
        expected = f"a number of pixels, or WIDTHxHEIGHT, {_MAX_SIDE_PIXELS:,} at most"
        raise InvalidRequest(option_text(name), repr(text[:100]), expected=expected)
    sides = int(width), int(height or width)
    if max(sides) > _MAX_SIDE_PIXELS:
        raise InvalidRequest(option_text(name), repr(text), expected=f"{_MAX_SIDE_PIXELS:,} pixels a side at most")
    return sides
