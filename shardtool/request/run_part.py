"""Part K of N parallel runs that write one dataset, each its own shards; also from Slurm and Kubernetes."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest
from shardtool.messages import option_text

if TYPE_CHECKING:
    from collections.abc import Mapping

SLURM, KUBERNETES = "slurm", "kubernetes"


MAX_PARTS = 10**6


_PART_TEXT = re.compile(r"([0-9]{1,7})/([0-9]{1,7})", re.ASCII)


_SLURM_PREFIX = "SLURM_ARRAY_TASK_"


_POD_INDEX, _JOB_COMPLETIONS = "JOB_COMPLETION_INDEX", "JOB_COMPLETIONS"


_EXPECTED_PART = f"one such as 3/64, counted from 1, {SLURM} or {KUBERNETES}"


@dataclass(frozen=True, slots=True)
class RunPart:
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


def parse_part(text: str, environment: Mapping[str, str] | None = None) -> RunPart:
    """Return the part that a text such as `3/64` means.

    Args:
        text: What was given; `slurm`: the array's task, `kubernetes`: the Indexed Job's pod, that this process is.
        environment: Where these say which one it is; None: this process's own.

    Raises:
        InvalidRequest: There is no such part.
    """
    if text in _SCHEDULERS:
        return _SCHEDULERS[text](os.environ if environment is None else environment)
    match = _PART_TEXT.fullmatch(text) if isinstance(text, str) else None
    part = RunPart(int(match[1]), int(match[2])) if match else RunPart(0, 0)
    if not 1 <= part.number <= part.parts <= MAX_PARTS:
        raise InvalidRequest(option_text("part"), repr(text)[:80], expected=_EXPECTED_PART)
    return part


def _slurm_part(environment: Mapping[str, str]) -> RunPart:
    """Return the part of a task of a Slurm array, whose numbers are those of all parts."""
    given = {name: environment.get(_SLURM_PREFIX + name, "") for name in ("ID", "COUNT", "MIN", "MAX", "STEP")}
    given = {name: value for name, value in given.items() if value}
    said = {"MIN": "1", "STEP": "1", **given}
    numbers = {name: int(value) for name, value in said.items() if re.fullmatch(r"[0-9]{1,9}", value, re.ASCII)}
    shown = ", ".join(f"{_SLURM_PREFIX}{name}={value!r:.40}" for name, value in given.items())
    if {"ID", "COUNT", *said} - numbers.keys() or not numbers["STEP"]:
        expected = f"the environment of an array's task, with {_SLURM_PREFIX}ID and {_SLURM_PREFIX}COUNT"
        raise _part_error(SLURM, shown or "no task", expected)
    first, step, parts = numbers["MIN"], numbers["STEP"], numbers["COUNT"]
    place, left = divmod(numbers["ID"] - first, step)
    last = numbers.get("MAX", first + (parts - 1) * step)
    if left or not 0 <= place < parts or (last - first) // step + 1 != parts:
        found = f"tasks that are not numbered through: {shown}"
        raise _part_error(SLURM, found, "an array of all parts, such as 1-64")
    return parse_part(f"{place + 1}/{parts}")


def _kubernetes_part(environment: Mapping[str, str]) -> RunPart:
    """Return the part of a pod of an Indexed Job: it is told its index, and the job's `env` must say the completions.

    Source: https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode
    """
    given = {name: environment.get(name, "") for name in (_POD_INDEX, _JOB_COMPLETIONS)}
    numbers = [int(value) for value in given.values() if re.fullmatch(r"[0-9]{1,7}", value, re.ASCII)]
    if len(numbers) < len(given) or not numbers[0] < numbers[1] <= MAX_PARTS:
        shown = ", ".join(f"{name}={value!r:.40}" for name, value in given.items() if value)
        expected = f"the environment of an Indexed Job's pod, with {_JOB_COMPLETIONS} set to the job's completions"
        raise _part_error(KUBERNETES, shown or "no pod", expected)
    return RunPart(numbers[0] + 1, numbers[1])


def _part_error(scheduler: str, found: str, expected: str) -> InvalidRequest:
    remedy = f"Give {option_text('part', 'NUMBER/PARTS')}, such as {option_text('part', '3/64')}."
    return InvalidRequest(option_text("part", scheduler), found, expected=expected, remedy=remedy)


_SCHEDULERS = {SLURM: _slurm_part, KUBERNETES: _kubernetes_part}
