"""One of several runs that write a dataset side by side, each the shards that are its own."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Mapping

SLURM = "slurm"
MOST_PARTS = 10**6
_TEXT = re.compile(r"([0-9]{1,7})/([0-9]{1,7})", re.ASCII)
_TASK = "SLURM_ARRAY_TASK_"
_EXPECTED = f"one such as 3/64, counted from 1, or {SLURM}"


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
    """Return the part that a text such as `3/64` means; `slurm`: that of the array task which this process is.

    Args:
        text: What was given.
        environment: Where Slurm says which task this is; None: this process's own.

    Raises:
        InvalidRequest: There is no such part.
    """
    if text == SLURM:
        return _of_task(os.environ if environment is None else environment)
    match = _TEXT.fullmatch(text) if isinstance(text, str) else None
    part = Part(int(match[1]), int(match[2])) if match else Part(0, 0)
    if not 1 <= part.number <= part.parts <= MOST_PARTS:
        raise InvalidRequest(option("part"), repr(text)[:80], expected=_EXPECTED)
    return part


def _of_task(environment: Mapping[str, str]) -> Part:
    """Return the part of a task of a Slurm array, whose numbers are those of all parts."""
    given = {name: environment.get(_TASK + name, "") for name in ("ID", "COUNT", "MIN", "MAX", "STEP")}
    given = {name: value for name, value in given.items() if value}
    said = {"MIN": "1", "STEP": "1", **given}
    numbers = {name: int(value) for name, value in said.items() if re.fullmatch(r"[0-9]{1,9}", value, re.ASCII)}
    shown = ", ".join(f"{_TASK}{name}={value!r:.40}" for name, value in given.items())
    where, remedy = option("part", SLURM), f"Give {option('part', 'NUMBER/PARTS')}, such as {option('part', '3/64')}."
    if {"ID", "COUNT", *said} - numbers.keys() or not numbers["STEP"]:
        raise InvalidRequest(
            where,
            shown or "no task",
            expected=f"the environment of an array's task, with {_TASK}ID and {_TASK}COUNT",
            remedy=remedy,
        )
    first, step, parts = numbers["MIN"], numbers["STEP"], numbers["COUNT"]
    place, left = divmod(numbers["ID"] - first, step)
    last = numbers.get("MAX", first + (parts - 1) * step)
    if left or not 0 <= place < parts or (last - first) // step + 1 != parts:
        expected = "an array of all parts, such as 1-64"
        raise InvalidRequest(where, f"tasks that are not numbered through: {shown}", expected=expected, remedy=remedy)
    return parse_part(f"{place + 1}/{parts}")


def check_part(text: str) -> None:
    """Refuse what is no part.

    Raises:
        InvalidRequest: It is none.
    """
    if text != SLURM:
        parse_part(text)
