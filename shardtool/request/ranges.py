"""What the numbers of a request may be: one table for the command line and the library."""

from __future__ import annotations

from dataclasses import fields
from operator import index
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest
from shardtool.wording import option

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

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
