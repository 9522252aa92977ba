"""Divide the shards of a dataset among N parallel runs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from shardtool.dataclass import dataclass
from shardtool.errors import InvalidRequest
from shardtool.messages import option_text

SLURM, KUBERNETES = "slurm", "kubernetes"
MAX_PARTS = 10**6
_PART_TEXT = re.compile(r"([0-9]{1,7})/([0-9]{1,7})", re.ASCII)
_SLURM_PREFIX = "SLURM_ARRAY_TASK_"
_POD_INDEX, _JOB_COMPLETIONS = "JOB_COMPLETION_INDEX", "JOB_COMPLETIONS"
_EXPECTED_PART = f"K/N such as 3/64, with K from 1 to N, or {SLURM} or {KUBERNETES}"


@dataclass(frozen=True, slots=True)
class RunPart:
    """One of `parts` parallel runs that write one dataset, numbered from 1."""

    number: int
    parts: int

    def __str__(self) -> str:
        return f"{self.number}/{self.parts}"

    @property
    def tag(self) -> str:
        """The name of this part in file names, such as `part03of64`."""
        return f"part{self.number:0{len(str(self.parts))}d}of{self.parts}"

    def shards(self, planned: int) -> range:
        """Return the numbers of the shards that this part writes. The dataset has `planned` shards in total."""
        return range(planned * (self.number - 1) // self.parts, planned * self.number // self.parts)


def parse_part(text: str, environment: Mapping[str, str] | None = None) -> RunPart:
    """Parse a part: `3/64`, `slurm` for a task of a job array, or `kubernetes` for a pod of an Indexed Job."""
    if text in _SCHEDULERS:
        return _SCHEDULERS[text](os.environ if environment is None else environment)
    match = _PART_TEXT.fullmatch(text) if isinstance(text, str) else None
    part = RunPart(int(match[1]), int(match[2])) if match else RunPart(0, 0)
    if not 1 <= part.number <= part.parts <= MAX_PARTS:
        raise InvalidRequest(option_text("part"), repr(text)[:80], expected=_EXPECTED_PART)
    return part


def _slurm_part(environment: Mapping[str, str]) -> RunPart:
    names = ("ID", "COUNT", "MIN", "MAX", "STEP")
    variables = {name: value for name in names if (value := environment.get(_SLURM_PREFIX + name))}
    settings = {"MIN": "1", "STEP": "1", **variables}
    numbers = {name: int(value) for name, value in settings.items() if re.fullmatch(r"[0-9]{1,9}", value, re.ASCII)}
    shown = ", ".join(f"{_SLURM_PREFIX}{name}={value!r:.40}" for name, value in variables.items())
    if {"ID", "COUNT", *settings} - numbers.keys() or not numbers["STEP"]:
        expected = f"the environment of a job array task, with {_SLURM_PREFIX}ID and {_SLURM_PREFIX}COUNT"
        raise _part_error(SLURM, shown or "no task", expected)
    first, step, parts = numbers["MIN"], numbers["STEP"], numbers["COUNT"]
    index, remainder = divmod(numbers["ID"] - first, step)
    last = numbers.get("MAX", first + (parts - 1) * step)
    if remainder or not 0 <= index < parts or (last - first) // step + 1 != parts:
        found = f"task numbers with gaps: {shown}"
        raise _part_error(SLURM, found, "an array with all parts, such as 1-64")
    return parse_part(f"{index + 1}/{parts}")


def _kubernetes_part(environment: Mapping[str, str]) -> RunPart:
    # https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode
    variables = {name: environment.get(name, "") for name in (_POD_INDEX, _JOB_COMPLETIONS)}
    numbers = [int(value) for value in variables.values() if re.fullmatch(r"[0-9]{1,7}", value, re.ASCII)]
    if len(numbers) < len(variables) or not numbers[0] < numbers[1] <= MAX_PARTS:
        shown = ", ".join(f"{name}={value!r:.40}" for name, value in variables.items() if value)
        expected = f"the environment of an Indexed Job's pod, with {_JOB_COMPLETIONS} set to `completions`"
        raise _part_error(KUBERNETES, shown or "no pod", expected)
    return RunPart(numbers[0] + 1, numbers[1])


def _part_error(scheduler: str, found: str, expected: str) -> InvalidRequest:
    remedy = f"Use {option_text('part', 'K/N')}, such as {option_text('part', '3/64')}."
    return InvalidRequest(option_text("part", scheduler), found, expected=expected, remedy=remedy)


_SCHEDULERS = {SLURM: _slurm_part, KUBERNETES: _kubernetes_part}
