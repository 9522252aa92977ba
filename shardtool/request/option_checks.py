"""Check single option values and parameters."""

from __future__ import annotations

import sys
from operator import index
from typing import (
    TYPE_CHECKING,
    Any,
    get_args,
)

from shardtool.errors import InvalidRequest
from shardtool.messages import option_text
from shardtool.request import option_values, run_part, split_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardtool.request.option_spec import OptionSpec, ValueForm

VALUE_CHECKS: dict[ValueForm, Callable[[str, Any, OptionSpec], object]] = {
    "size": lambda name, value, _facts: option_values.parse_size_option(name, value),
    "rate": lambda name, value, _facts: option_values.parse_rate(name, value),
    "share": lambda name, value, _facts: option_values.parse_share(name, value),
    "sample": lambda name, value, _facts: option_values.parse_share(name, value, some=True),
    "pairs": lambda name, value, facts: option_values.parse_pairs(
        name, value, f"{facts.metavar}, such as {facts.example or 'jpg=path'}"
    ),
    "shares": lambda _name, value, _facts: (
        value == {} or split_options.parse_shares(split_options.format_shares(value))
    ),
    "part": lambda _name, value, _facts: value in (run_part.SLURM, run_part.KUBERNETES) or run_part.parse_part(value),
    "function": lambda name, value, _facts: _check_function(name, value),
}


def _check_function(name: str, value: object) -> None:
    """Refuse an empty text, as a variable of a shell that is not set gives it: samples would be packed unchanged."""
    if not value:
        raise InvalidRequest(option_text(name), repr(value), expected="package.module:function")


def check_flag(name: str, value: object) -> None:
    """Refuse what is neither yes nor no: the text `no` would be a yes."""
    if value is not None and type(value) is not bool:
        raise InvalidRequest(option_text(name), repr(value)[:100], expected="True or False")


def check_range(name: str, value: object, bounds: tuple[int, int]) -> None:
    """Refuse a number that is none, or out of range.

    Raises:
        InvalidRequest: It is.
    """
    least, most = bounds
    try:
        right = least <= index(value) <= most  # type: ignore[arg-type]
    except TypeError:
        right = False
    if not right:
        shown = repr(value) if not isinstance(value, int) else f"{value}" if abs(value) < 10**30 else "a huge number"
        raise InvalidRequest(option_text(name), shown, expected=f"a whole number from {least} to {most}")


def import_name(function: Callable[..., object]) -> str:
    """Return `module:name` of a function: workers, and whoever repeats the run, import it by that."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    found: object = sys.modules.get(module or "")
    for part in (name or "").split("."):
        found = getattr(found, part, None)
    if found is not function or module == "__main__":
        shown = f"{module}.{name}" if name else repr(function)
        problem = f"{shown}, which cannot be imported by that name"
        remedy = "Put it into a file of its own, at its top level, and import it from there."
        raise InvalidRequest(option_text("map"), problem, expected="a function of a module", remedy=remedy)
    return f"{module}:{name}"


def check_choice(name: str, value: object, literal: object) -> None:
    """Refuse what is none of the texts of a Literal.

    Raises:
        InvalidRequest: It is none.
    """
    known = get_args(literal)
    if value not in known:
        raise InvalidRequest(name, repr(value), expected=f"one of {', '.join(known)}")


def check_minimum(name: str, value: object, least: int = 1) -> None:
    """Refuse what is no plain whole number, or too small.

    Raises:
        InvalidRequest: It is.
    """
    if type(value) is not int or value < least:
        raise InvalidRequest(name, repr(value), expected=f"a whole number, {least} or more")
