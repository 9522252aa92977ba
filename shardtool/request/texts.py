"""What the texts of options mean: pairs, shares, splits, sizes of images, parts of a run, delimiters."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from shardtool.errors import InvalidRequest, listing
from shardtool.values import parse_size
from shardtool.wording import option

_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")
_SHARE = re.compile(r"\s*(\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(e[+-]?\d{1,3})?\s*(%?)\s*", re.ASCII | re.IGNORECASE)
_MOST_PIXELS = 65_535  # a side: what JPEG has room for
_PIXELS = re.compile(r"[0-9]{1,5}")


def shares_text(shares: str | Mapping[str, float]) -> str:
    """Return shares as a run records them.

    Raises:
        InvalidRequest: They are neither text nor a mapping.
    """
    if not isinstance(shares, str | Mapping):
        raise InvalidRequest(option("split"), repr(shares)[:100], expected=_EXAMPLE)
    return shares if isinstance(shares, str) else ",".join(f"{name}={share}" for name, share in shares.items())


def whole(text: str) -> int | str:
    """Return the number that a text is; the text itself where it is none: int() reads more than people type."""
    return int(text) if _WHOLE.fullmatch(text.strip()) else text


def parts(name: str, given: object) -> list[str]:
    """Return the parts of a text with commas, or of several texts.

    Raises:
        InvalidRequest: It is neither.
    """
    found = given.split(",") if isinstance(given, str) else given
    if not isinstance(found, (list, tuple)) or not all(isinstance(one, str) for one in found):
        raise InvalidRequest(option(name), repr(given), expected="a text with commas, or several texts")
    return [*found]


def pairs(
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
            raise InvalidRequest(option(name), repr(text), expected=expected)
        found.append((one, other))
    return tuple(found)


def pair(name: str, one: str, other: str) -> str:
    """Return `one=other`.

    Raises:
        InvalidRequest: One is no text, or the first has an equals sign.
    """
    if not isinstance(one, str) or not isinstance(other, str) or "=" in one:
        found = f"{one!r}: {other!r}"
        raise InvalidRequest(option(name), found, expected="two texts, the first without an equals sign")
    return f"{one}={other}"


def delimiter(name: str, text: str) -> str:
    r"""Return the character that a text means: `tab` and `\t` are one.

    Raises:
        InvalidRequest: It is none that can stand between values.
    """
    found = "\t" if text in ("tab", r"\t") else text
    if len(found) != 1 or not found.isascii() or found in '"\r\n\0':
        raise InvalidRequest(option(name), repr(text[:20]), expected="one character, such as ; or |, or tab")
    return found


class TextForm(NamedTuple):
    """How a table that is text is written, as far as its name does not say.

    Attributes:
        delimiter: What stands between values; empty: what the ending of its name says.
        header: Whether its first row names the columns; else they are called 1, 2, ...
    """

    delimiter: str = ""
    header: bool = True


BY_NAME = TextForm()


def size(name: str, text: str | int) -> int:
    """Return the bytes that a size such as `500MB` means.

    Raises:
        InvalidRequest: It is none.
    """
    try:
        return parse_size(text)
    except InvalidRequest as error:
        raise InvalidRequest(option(name), f"{error.found}: {str(text)[:100]!r}", expected=error.expected) from None


def rate(name: str, text: str | int) -> int:
    """Return the bytes a second that a rate such as `100MB/s` means, at least one.

    Raises:
        InvalidRequest: It is none.
    """
    found = size(name, text.removesuffix("/s") if isinstance(text, str) else text)
    if not found:
        raise InvalidRequest(option(name), repr(text), expected="a rate such as 100MB/s")
    return found


def share(name: str, text: str | float, *, some: bool = False) -> Fraction:
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
        raise InvalidRequest(option(name), repr(str(text)), expected=expected)
    return found


def pixels(name: str, given: str | int | tuple[int, int]) -> tuple[int, int]:
    """Return the width and the height that `256`, `(640, 480)` or `640x480` means.

    Raises:
        InvalidRequest: It is no such text.
    """
    text = "x".join(map(str, given)) if isinstance(given, tuple) else str(given)
    width, cross, height = text.lower().partition("x")
    if not _PIXELS.fullmatch(width) or (cross and not _PIXELS.fullmatch(height)):
        expected = f"a number of pixels, or WIDTHxHEIGHT, {_MOST_PIXELS:,} at most"
        raise InvalidRequest(option(name), repr(text[:100]), expected=expected)
    sides = int(width), int(height or width)
    if max(sides) > _MOST_PIXELS:
        raise InvalidRequest(option(name), repr(text), expected=f"{_MOST_PIXELS:,} pixels a side at most")
    return sides


# How samples are divided: shares, or a column; what each split can be called.


SHARE_UNIT = 10**8  # shares are whole numbers of this part: times a label's samples they stay within 64 bits
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NUMBER = re.compile(r"[0-9]{1,3}(\.[0-9]{1,10})?|\.[0-9]{1,10}")
_SAFE = "letters, digits, _ and -, 64 at most"
_EXAMPLE = "shares such as train=0.8,val=0.1,test=0.1"


class SplitOptions(NamedTuple):
    """The options by which samples are divided into splits.

    Attributes:
        shares: Each split's name and part of the samples, 1 in all; empty where `column` says the split.
        column: The column that holds the split of each sample.
        stratify: A column of labels: each keeps the shares.
        group_by: A column of groups: each stays in one split.
        seed: Another one divides otherwise.
        option: The option that asked for the column, for messages.
    """

    shares: tuple[tuple[str, Decimal], ...] = ()
    column: str | None = None
    stratify: str | None = None
    group_by: str | None = None
    seed: int = 0
    option: str = "split_column"

    @property
    def reads(self) -> tuple[str, str] | None:
        """The column that the division needs, as (option, column); None: it needs the keys alone."""
        asked = {self.option: self.column, "stratify": self.stratify, "group_by": self.group_by}
        return next(((option(name), column) for name, column in asked.items() if column is not None), None)


def parse_shares(text: str) -> tuple[tuple[str, Decimal], ...]:
    """Return the shares that `train=0.8,val=0.2` means, 1 in all; `train=80%,val=20%`, or without %, mean the same.

    Raises:
        InvalidRequest: No such list, unsafe names, or shares that are neither 1 nor 100 in all.
    """
    found, marks = [], set()
    for part in text.split(","):
        name, _, number = (one.strip() for one in part.partition("="))
        number, mark = number.removesuffix("%").rstrip(), number.endswith("%")
        marks.add(mark)
        if not name or not _NUMBER.fullmatch(number):
            raise InvalidRequest(option("split"), f"{part.strip()!r} in {text!r}", expected=_EXAMPLE)
        found.append((name, number))
    if len(marks) > 1:
        raise InvalidRequest(option("split"), f"some shares with % and some without in {text!r}", expected=_EXAMPLE)
    percent = marks == {True} or sum(Fraction(number) for _, number in found) == 100  # noqa: PLR2004 - per cent
    shares = tuple((name, Decimal(f"{number}e-2" if percent else number)) for name, number in found)
    check_split_names([name for name, _ in shares], option("split"))
    for name, share in shares:
        if not share:
            raise InvalidRequest(option("split"), f"the share {share} of {name}", expected="more than 0")
        if (Fraction(share) * SHARE_UNIT).denominator != 1:
            raise InvalidRequest(option("split"), f"the share {share} of {name}", expected="at most 8 decimals")
    if (total := sum(Fraction(share) for _, share in shares)) != 1:
        wrong = f"shares that are {float(total):.10g} in all"
        raise InvalidRequest(option("split"), wrong, expected="1, or 100 for per cent")
    return shares


def check_split_names(names: Sequence[str], where: str) -> None:
    """Refuse splits that cannot all become part of file names, on any file system."""
    if unsafe := [repr(name) for name in names if not _NAME.fullmatch(name)]:
        raise InvalidRequest(where, f"names that no split can have: {listing(unsafe)}", expected=_SAFE)
    seen: dict[str, str] = {}
    for name in names:
        if other := seen.get(name.lower()):
            found = f"{name} twice" if other == name else f"{other} and {name}, which some file systems take for one"
            raise InvalidRequest(where, found, expected="each split once")
        seen[name.lower()] = name


# One of several runs that write a dataset side by side, each the shards that are its own.


SLURM, KUBERNETES = "slurm", "kubernetes"
MOST_PARTS = 10**6
_PART = re.compile(r"([0-9]{1,7})/([0-9]{1,7})", re.ASCII)
_TASK = "SLURM_ARRAY_TASK_"
_INDEX, _COMPLETIONS = "JOB_COMPLETION_INDEX", "JOB_COMPLETIONS"
_PARTS = f"one such as 3/64, counted from 1, {SLURM} or {KUBERNETES}"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a run.

    Attributes:
        number: Its number, counted from 1.
        parts: How many there are.
    """

    number: int
    parts: int

    def __str__(self) -> str:
        return f"{self.number}/{self.parts}"

    @property
    def tag(self) -> str:
        """What the names of its own files have: `part03of64`."""
        return f"part{self.number:0{len(str(self.parts))}d}of{self.parts}"

    def shards(self, planned: int) -> range:
        """Return the numbers of its shards: a run of them, so that it reads its own section of the source.

        Args:
            planned: How many shards all parts make.
        """
        return range(planned * (self.number - 1) // self.parts, planned * self.number // self.parts)


def parse_part(text: str, environment: Mapping[str, str] | None = None) -> Part:
    """Return the part that a text such as `3/64` means.

    Args:
        text: What was given; `slurm`: the array's task, `kubernetes`: the Indexed Job's pod, that this process is.
        environment: Where these say which one it is; None: this process's own.

    Raises:
        InvalidRequest: There is no such part.
    """
    if text in _OF_ENVIRONMENT:
        return _OF_ENVIRONMENT[text](os.environ if environment is None else environment)
    match = _PART.fullmatch(text) if isinstance(text, str) else None
    part = Part(int(match[1]), int(match[2])) if match else Part(0, 0)
    if not 1 <= part.number <= part.parts <= MOST_PARTS:
        raise InvalidRequest(option("part"), repr(text)[:80], expected=_PARTS)
    return part


def _of_task(environment: Mapping[str, str]) -> Part:
    """Return the part of a task of a Slurm array, whose numbers are those of all parts."""
    given = {name: environment.get(_TASK + name, "") for name in ("ID", "COUNT", "MIN", "MAX", "STEP")}
    given = {name: value for name, value in given.items() if value}
    said = {"MIN": "1", "STEP": "1", **given}
    numbers = {name: int(value) for name, value in said.items() if re.fullmatch(r"[0-9]{1,9}", value, re.ASCII)}
    shown = ", ".join(f"{_TASK}{name}={value!r:.40}" for name, value in given.items())
    if {"ID", "COUNT", *said} - numbers.keys() or not numbers["STEP"]:
        expected = f"the environment of an array's task, with {_TASK}ID and {_TASK}COUNT"
        raise _no_part(SLURM, shown or "no task", expected)
    first, step, parts = numbers["MIN"], numbers["STEP"], numbers["COUNT"]
    place, left = divmod(numbers["ID"] - first, step)
    last = numbers.get("MAX", first + (parts - 1) * step)
    if left or not 0 <= place < parts or (last - first) // step + 1 != parts:
        found = f"tasks that are not numbered through: {shown}"
        raise _no_part(SLURM, found, "an array of all parts, such as 1-64")
    return parse_part(f"{place + 1}/{parts}")


def _of_pod(environment: Mapping[str, str]) -> Part:
    """Return the part of a pod of an Indexed Job: it is told its index, and the job's `env` must say the completions.

    Source: https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode
    """
    given = {name: environment.get(name, "") for name in (_INDEX, _COMPLETIONS)}
    numbers = [int(value) for value in given.values() if re.fullmatch(r"[0-9]{1,7}", value, re.ASCII)]
    if len(numbers) < len(given) or not numbers[0] < numbers[1] <= MOST_PARTS:
        shown = ", ".join(f"{name}={value!r:.40}" for name, value in given.items() if value)
        expected = f"the environment of an Indexed Job's pod, with {_COMPLETIONS} set to the job's completions"
        raise _no_part(KUBERNETES, shown or "no pod", expected)
    return Part(numbers[0] + 1, numbers[1])


def _no_part(scheduler: str, found: str, expected: str) -> InvalidRequest:
    remedy = f"Give {option('part', 'NUMBER/PARTS')}, such as {option('part', '3/64')}."
    return InvalidRequest(option("part", scheduler), found, expected=expected, remedy=remedy)


_OF_ENVIRONMENT = {SLURM: _of_task, KUBERNETES: _of_pod}
