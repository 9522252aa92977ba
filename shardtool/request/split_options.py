"""Options for splitting samples by shares or by a column."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

from shardtool.errors import InvalidRequest, format_list
from shardtool.messages import option_text

if TYPE_CHECKING:
    from decimal import Decimal


SHARE_UNIT = 10**8  # shares are multiples of 1/SHARE_UNIT, so products with sample counts fit into 64 bits
_MAX_ROUNDING_ERROR = 1e-7
_SPLIT_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SHARE_NUMBER = re.compile(r"[0-9]{1,3}(\.[0-9]{1,10})?|\.[0-9]{1,10}")
_SPLIT_NAME_RULE = "letters, digits, _ and -, at most 64"
_SHARES_EXAMPLE = "shares such as train=0.8,val=0.1,test=0.1"


class SplitOptions(NamedTuple):
    """Options for splitting samples.

    Attributes:
        shares: Name and share of each split. The sum of the shares is 1. Empty if `column` contains the split names.
        stratify: Column of labels that have the same proportions in every split.
        group_by: Column of groups. Samples with the same value stay in one split.
        option: Name of the option that set `column`, used in messages.
    """

    shares: tuple[tuple[str, Decimal], ...] = ()
    column: str | None = None
    stratify: str | None = None
    group_by: str | None = None
    seed: int = 0
    option: str = "split_column"

    @property
    def option_and_column(self) -> tuple[str, str] | None:
        """The first option that names a column, and the column. None if only keys determine the split."""
        columns = {self.option: self.column, "stratify": self.stratify, "group_by": self.group_by}
        return next(((option_text(name), column) for name, column in columns.items() if column is not None), None)


def format_shares(shares: str | Mapping[str, float | str]) -> str:
    """Return shares as text, such as `train=0.8,val=0.2`. Numbers such as 1 / 3 are rounded, but keep the sum 1."""
    if not isinstance(shares, str | Mapping):
        raise InvalidRequest(option_text("split"), repr(shares)[:100], expected=_SHARES_EXAMPLE)
    if isinstance(shares, str):
        return shares
    values: list[Any] = [*shares.values()]
    if all(isinstance(value, Real) for value in values) and abs(sum(values) - 1) < _MAX_ROUNDING_ERROR:
        units = [round(float(value) * SHARE_UNIT) for value in values]
        units[-1] += SHARE_UNIT - sum(units)
        values = [f"{unit / SHARE_UNIT:.8f}".rstrip("0").rstrip(".") for unit in units]
    return ",".join(f"{name}={value}" for name, value in zip(shares, values, strict=True))


def parse_shares(text: str) -> tuple[tuple[str, Decimal], ...]:
    """Parse shares such as `train=0.8,val=0.2`, `train=80%,val=20%` or `train=80,val=20`."""
    from decimal import Decimal
    from fractions import Fraction

    numbers, marks = [], set()
    for part in text.split(","):
        name, _, number = (side.strip() for side in part.partition("="))
        number, has_mark = number.removesuffix("%").rstrip(), number.endswith("%")
        marks.add(has_mark)
        if not name or not _SHARE_NUMBER.fullmatch(number):
            found = repr(part.strip()) if part == text else f"{part.strip()!r} in {text!r}"
            raise InvalidRequest(option_text("split"), found, expected=_SHARES_EXAMPLE)
        numbers.append((name, number))
    if len(marks) > 1:
        raise InvalidRequest(
            option_text("split"), f"some shares with % and some without in {text!r}", expected=_SHARES_EXAMPLE
        )
    percent = marks == {True} or sum(Fraction(number) for _, number in numbers) == 100  # noqa: PLR2004 - per cent
    shares = tuple((name, Decimal(f"{number}e-2" if percent else number)) for name, number in numbers)
    check_split_names([name for name, _ in shares], option_text("split"))
    for name, share in shares:
        if not share:
            raise InvalidRequest(option_text("split"), f"the share {share} of {name}", expected="more than 0")
        if (Fraction(share) * SHARE_UNIT).denominator != 1:
            raise InvalidRequest(option_text("split"), f"the share {share} of {name}", expected="at most 8 decimals")
    if (total := sum(Fraction(share) for _, share in shares)) != 1:
        found = f"shares with the sum {float(total):.10g}"
        raise InvalidRequest(option_text("split"), found, expected="the sum 1, or 100 for percentages")
    return shares


def check_split_names(names: Sequence[str], where: str) -> None:
    """Raise InvalidRequest for split names that some file systems do not allow or cannot distinguish."""
    if unsafe := [repr(name) for name in names if not _SPLIT_NAME.fullmatch(name)]:
        raise InvalidRequest(where, f"invalid split names: {format_list(unsafe)}", expected=_SPLIT_NAME_RULE)
    seen: dict[str, str] = {}
    for name in names:
        if other := seen.get(name.lower()):
            found = f"{name} twice" if other == name else f"{other} and {name}, which are the same on some file systems"
            raise InvalidRequest(where, found, expected="each split once")
        seen[name.lower()] = name
