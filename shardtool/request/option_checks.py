"""Check single values of options and parameters."""

from __future__ import annotations

import sys
from operator import index
from typing import TYPE_CHECKING, Any, get_args

from shardtool.errors import InvalidRequest
from shardtool.messages import option_text
from shardtool.request import option_values, run_part, split_options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardtool.request.option_spec import OptionSpec, ValueForm

_MIN_SIMILARITY = 0.85
VALUE_CHECKS: dict[ValueForm, Callable[[str, Any, OptionSpec], object]] = {
    "size": lambda name, value, _spec: option_values.parse_size_option(name, value),
    "rate": lambda name, value, _spec: option_values.parse_rate(name, value),
    "share": lambda name, value, _spec: option_values.parse_share(name, value),
    "sample": lambda name, value, _spec: option_values.parse_share(name, value, positive=True),
    "pairs": lambda name, value, spec: option_values.parse_pairs(
        name, value, f"{spec.metavar}, such as {spec.example or 'jpg=path'}"
    ),
    "shares": lambda _name, value, _spec: value == {} or split_options.parse_shares(split_options.format_shares(value)),
    "part": lambda _name, value, _spec: value in (run_part.SLURM, run_part.KUBERNETES) or run_part.parse_part(value),
    "rename": lambda name, value, _spec: option_values.parse_substitution(name, value),
    "function": lambda name, value, _spec: _check_function(name, value),
}


def _check_function(name: str, value: object) -> None:
    if not value:
        raise InvalidRequest(option_text(name), repr(value), expected="package.module:function")


def suggest_choice(text: str, choices: Sequence[str]) -> str:
    """Return a suggestion such as `Did you mean webp?`, or "" if no choice is similar."""
    from difflib import get_close_matches  # a slow import

    similar = [choice for choice in choices if text and choice.startswith(text)]
    similar = similar or get_close_matches(text, choices, 1, _MIN_SIMILARITY)
    return f"Did you mean {' or '.join(similar)}?" if similar else ""


def check_flag(name: str, value: object) -> None:
    """Raise InvalidRequest unless a value is True, False or None. Python would treat the string `no` as true."""
    if value is not None and type(value) is not bool:
        raise InvalidRequest(option_text(name), repr(value)[:100], expected="True or False")


def check_range(name: str, value: object, bounds: tuple[int, int]) -> None:
    """Raise InvalidRequest unless a value is a whole number in a range."""
    minimum, maximum = bounds
    try:
        is_valid = minimum <= index(value) <= maximum  # type: ignore[arg-type]
    except TypeError:
        is_valid = False
    if not is_valid:
        shown = repr(value) if not isinstance(value, int) else f"{value}" if abs(value) < 10**30 else "a huge number"
        raise InvalidRequest(option_text(name), shown, expected=f"a whole number from {minimum:,} to {maximum:,}")


def import_name(function: Callable[..., object]) -> str:
    """Return a function as `module:name`, so workers and later runs can import the function."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    imported: object = sys.modules.get(module or "")
    for part in (name or "").split("."):
        imported = getattr(imported, part, None)
    if imported is not function or module in ("__main__", "__mp_main__"):
        shown = f"{module}.{name}" if name else repr(function)
        problem = f"{shown} cannot be imported by this name"
        remedy = "Define the function at the top level of a module, and import it from there."
        raise InvalidRequest(
            option_text("map"), problem, expected="a function at the top level of a module", remedy=remedy
        )
    return f"{module}:{name}"


def check_choice(name: str, value: object, literal: object) -> None:
    """Raise InvalidRequest unless `value` is a choice of the type `literal`."""
    choices = get_args(literal)
    if value not in choices:
        raise InvalidRequest(name, repr(value), expected=f"one of {', '.join(choices)}")


def check_minimum(name: str, value: object, minimum: int = 1) -> None:
    """Raise InvalidRequest unless a value is a whole number of at least `minimum`."""
    if type(value) is not int or value < minimum:
        raise InvalidRequest(name, repr(value), expected=f"a whole number, {minimum} or more")
