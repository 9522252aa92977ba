"""How samples are divided into splits: by shares or by a column, and which names splits can have."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from shardtool.errors import InvalidRequest, format_list
from shardtool.messages import option_text


def format_shares(shares: str | Mapping[str, float]) -> str:
    """Return shares as a run records them.

    Raises:
        InvalidRequest: They are neither text nor a mapping.
    """
    if not isinstance(shares, str | Mapping):
        raise InvalidRequest(option_text("split"), repr(shares)[:100], expected=_SHARES_EXAMPLE)
    return shares if isinstance(shares, str) else ",".join(f"{name}={share}" for name, share in shares.items())


SHARE_UNIT = 10**8  # shares are whole numbers of this part: times a label's samples they stay within 64 bits


_SPLIT_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


_SHARE_NUMBER = re.compile(r"[0-9]{1,3}(\.[0-9]{1,10})?|\.[0-9]{1,10}")


_SPLIT_NAME_RULE = "letters, digits, _ and -, 64 at most"


_SHARES_EXAMPLE = "shares such as train=0.8,val=0.1,test=0.1"


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
        return next(((option_text(name), column) for name, column in asked.items() if column is not None), None)


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
        if not name or not _SHARE_NUMBER.fullmatch(number):
            raise InvalidRequest(option_text("split"), f"{part.strip()!r} in {text!r}", expected=_SHARES_EXAMPLE)
        found.append((name, number))
    if len(marks) > 1:
        raise InvalidRequest(
            option_text("split"), f"some shares with % and some without in {text!r}", expected=_SHARES_EXAMPLE
        )
    percent = marks == {True} or sum(Fraction(number) for _, number in found) == 100  # noqa: PLR2004 - per cent
    shares = tuple((name, Decimal(f"{number}e-2" if percent else number)) for name, number in found)
    check_split_names([name for name, _ in shares], option_text("split"))
    for name, share in shares:
        if not share:
            raise InvalidRequest(option_text("split"), f"the share {share} of {name}", expected="more than 0")
        if (Fraction(share) * SHARE_UNIT).denominator != 1:
            raise InvalidRequest(option_text("split"), f"the share {share} of {name}", expected="at most 8 decimals")
    if (total := sum(Fraction(share) for _, share in shares)) != 1:
        wrong = f"shares that are {float(total):.10g} in all"
        raise InvalidRequest(option_text("split"), wrong, expected="1, or 100 for per cent")
    return shares


def check_split_names(names: Sequence[str], where: str) -> None:
    """Refuse splits that cannot all become part of file names, on any file system."""
    if unsafe := [repr(name) for name in names if not _SPLIT_NAME.fullmatch(name)]:
        raise InvalidRequest(where, f"names that no split can have: {format_list(unsafe)}", expected=_SPLIT_NAME_RULE)
    seen: dict[str, str] = {}
    for name in names:
        if other := seen.get(name.lower()):
            found = f"{name} twice" if other == name else f"{other} and {name}, which some file systems take for one"
            raise InvalidRequest(where, found, expected="each split once")
        seen[name.lower()] = name
