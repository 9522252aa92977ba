"""What an option can be, from the annotation of its field: for checks, the command line and recorded runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from operator import index
from types import UnionType
from typing import TYPE_CHECKING, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from shardtool.errors import InvalidRequest
from shardtool.wording import option

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from shardtool.values import Executor


_MOST = 2**63 - 1  # of a recorded number
_CONTAINERS = (list, tuple, set, frozenset)
_ONE_TEXT = {str, type(None)}
_KNOWN: dict[type, dict[str, tuple[object, ...]]] = {}  # by class: its annotations are evaluated once


def kinds(options: type) -> dict[str, tuple[object, ...]]:
    """Return the types that each option can have: those that stand in its annotation."""
    if options not in _KNOWN:
        _KNOWN[options] = {
            name: get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
            for name, hint in get_type_hints(options).items()
        }
    return _KNOWN[options]


def choices(options: type, name: str) -> tuple[str, ...]:
    """Return the texts that an option can be, or each of several; empty: any."""
    for kind in kinds(options)[name]:
        for one in (kind, *get_args(kind)):
            if get_origin(one) is Literal:
                return get_args(one)
    return ()


def check_choices(options: DataclassInstance) -> None:
    """Refuse texts that are none of an option's, one text where there are to be several, and several for one.

    Raises:
        InvalidRequest: There are such.
    """
    for name, allowed in kinds(type(options)).items():
        value, several = getattr(options, name), _is_several(allowed)
        if several and isinstance(value, str):
            raise InvalidRequest(option(name), repr(value), expected=f"several texts, such as ({value!r},)")
        if {*allowed} <= _ONE_TEXT and (
            isinstance(value, _CONTAINERS) or (value is None and type(None) not in allowed)
        ):
            shown = ",".join(map(str, value)) if value else "..."
            raise InvalidRequest(option(name), repr(value), expected=f"one text, such as {shown!r}")
        texts = choices(type(options), name)
        for one in value if several else (value,):
            if texts and one not in texts and not (one is None and type(None) in allowed):
                raise InvalidRequest(option(name), repr(one), expected=f"one of {', '.join(texts)}")


def check_choice(name: str, value: object, literal: object) -> None:
    """Refuse what is none of the texts of a Literal; for parameters that no command line has.

    Raises:
        InvalidRequest: It is none.
    """
    texts = get_args(literal)
    if value not in texts:
        raise InvalidRequest(name, repr(value), expected=f"one of {', '.join(texts)}")


def check_address(executor: Executor, address: str | None) -> None:
    """Refuse the address of a cluster that is not used.

    Raises:
        InvalidRequest: There is one.
    """
    if address is not None and executor != "ray":
        expected = f"{option('executor', 'ray')}, too"
        raise InvalidRequest(option("address", address), "no cluster to use", expected=expected)


def _is_several(allowed: tuple[object, ...]) -> bool:
    return str not in allowed and any(get_origin(kind) is tuple for kind in allowed)


def fits(value: object, options: type, name: str) -> bool:
    """Return whether a value from JSON is of an option's type; which texts it can be is checked with the options."""
    allowed = kinds(options)[name]
    origins = {get_origin(kind) for kind in allowed}
    if isinstance(value, list):
        return tuple in origins and all(isinstance(one, str) for one in value)
    if isinstance(value, str):
        return str in allowed or Literal in origins
    if type(value) is int:
        return abs(value) <= _MOST and (int in allowed or float in allowed)
    return value is not None and type(value) in allowed


# What the numbers of a request may be: one table for the command line and the library.


MOST_WORKERS = 1024  # a process each
_MOST_SAMPLES = 10**15  # so that sums of a few stay within 64 bits
RANGES: dict[str, tuple[int, int]] = {
    "max_count": (1, _MOST_SAMPLES),
    "shards": (1, _MOST_SAMPLES),
    "head": (1, _MOST_SAMPLES),
    "shards_multiple_of": (1, 10**6),
    "seed": (-(2**63), 2**63 - 1),
    "workers": (1, MOST_WORKERS),
    "looks": (0, 10**6),  # images that are held to be shown
    "quality": (1, 100),
    "connections": (1, 4096),  # sockets of a worker
    "per_host": (1, 10**6),
    "timeout": (1, 3600),  # seconds
    "max_time": (1, 86_400),
    "retries": (0, 20),
}


def check_ranges(options: DataclassInstance) -> None:
    """Refuse numbers of a request, a dataclass, that are none or out of range.

    Raises:
        InvalidRequest: There are such numbers.
    """
    for one in fields(options):
        if one.name in RANGES and (value := getattr(options, one.name)) is not None:
            check_range(one.name, value)


def check_least(name: str, value: object, least: int = 1) -> None:
    """Refuse what is no plain whole number, or too small; for parameters that no command line has.

    Raises:
        InvalidRequest: It is.
    """
    if type(value) is not int or value < least:
        raise InvalidRequest(name, repr(value), expected=f"a whole number, {least} or more")


def check_range(name: str, value: object) -> None:
    """Refuse a number that is none, or out of range.

    Raises:
        InvalidRequest: It is.
    """
    least, most = RANGES[name]
    try:
        right = least <= index(value) <= most  # type: ignore[arg-type]
    except TypeError:
        right = False
    if not right:
        shown = repr(value) if not isinstance(value, int) else f"{value}" if abs(value) < 10**30 else "a huge number"
        raise InvalidRequest(option(name), shown, expected=f"a whole number from {least} to {most}")


# What a Python caller may give for an option: its own types, beside the texts that a run records and workers get.


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
