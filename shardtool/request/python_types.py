"""What a Python caller may give for an option: its own types, beside the texts that a run records and workers get."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from shardtool.errors import InvalidRequest
from shardtool.wording import option

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Pairs = Mapping[str, str] | tuple[str, ...]  # {"jpg": "path"}, or jpg=path
Shares = str | Mapping[str, float]  # train=0.8,val=0.2, or {"train": 0.8, "val": 0.2}
Function = str | Callable[..., object]  # package.module:function, or the function
Options = TypeVar("Options")
Folder = str | os.PathLike[str]


def given_options(given: object, kind: type[Options]) -> Options:
    """Return the options that a verb was given, or those by default.

    Raises:
        InvalidRequest: They are something else, such as a dict.
    """
    if given is None:
        return kind()
    if not isinstance(given, kind):
        made = kind.__name__
        remedy = f"Of a dict, {made}(**options) makes them." if isinstance(given, Mapping) else ""
        raise InvalidRequest("options", type(given).__name__, expected=f"{made}(...), or None", remedy=remedy)
    return given


def keep_texts(options: DataclassInstance) -> None:
    """Replace what has a recorded form by that: pairs, shares and functions.

    Raises:
        InvalidRequest: It has none.
    """
    for name in options.__dataclass_fields__:
        value = getattr(options, name)
        if name == "map" and callable(value):
            text: object = _function_name(value)
        elif name == "split" and isinstance(value, Mapping):
            text = shares_text(value)
        elif name in ("files", "binary", "urls", "values", "rename_fields") and isinstance(value, Mapping):
            text = tuple(_pair(name, *pair) for pair in value.items())
        else:
            continue
        object.__setattr__(options, name, text)  # frozen, and still being made


def shares_text(shares: Shares) -> str:
    """Return shares as a run records them."""
    return shares if isinstance(shares, str) else ",".join(f"{name}={share}" for name, share in shares.items())


def pairs(name: str, given: Pairs, expected: str = "FIELD=COLUMN, such as jpg=path") -> tuple[tuple[str, str], ...]:
    """Return the two sides of each `one=other`.

    Raises:
        InvalidRequest: One is no such text.
    """
    found = []
    for text in (_pair(name, *pair) for pair in given.items()) if isinstance(given, Mapping) else given:
        field, _, column = text.partition("=")
        if not field or not column:
            raise InvalidRequest(option(name), repr(text), expected=expected)
        found.append((field, column))
    return tuple(found)


def _pair(name: str, one: str, other: str) -> str:
    """Return `one=other`."""
    if not isinstance(one, str) or not isinstance(other, str) or "=" in one:
        found = f"{one!r}: {other!r}"
        raise InvalidRequest(option(name), found, expected="two texts, the first without an equals sign")
    return f"{one}={other}"


def _function_name(function: Callable[..., object]) -> str:
    """Return `module:name` of a function: workers, and whoever repeats the run, import it by that."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    found: object = sys.modules.get(module or "")
    for part in (name or "").split("."):
        found = getattr(found, part, None)
    if found is not function or module == "__main__":
        shown = f"{module}.{name}" if name else repr(function)
        problem = f"{shown}, which cannot be imported by that name"
        remedy = "Put it into a file of its own, at its top level, and import it from there."
        raise InvalidRequest(option("map"), problem, expected="a function of a module", remedy=remedy)
    return f"{module}:{name}"
