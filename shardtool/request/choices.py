"""What an option can be, from the annotation of its field: for checks, the command line and recorded runs."""

from __future__ import annotations

from types import UnionType
from typing import TYPE_CHECKING, Literal, Union, get_args, get_origin, get_type_hints

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
