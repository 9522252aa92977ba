"""Connect to a Ray cluster. Ray's own messages are kept from the terminal: its log files have them."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import ray
from ray import exceptions

from shardtool.errors import InvalidRequest, os_error_text
from shardtool.messages import option_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_CONNECT_TIMEOUT_S = 5.0  # for a cluster's port to answer


_SCHEMES = ("", "ray")


NO_CLUSTER_TEXT = "Could not find"  # any running cluster, as Ray says


_START_ADVICE = "Start one with `ray start`, or give the address of one that runs."


_CONNECT_ADVICE = (
    "If it wants a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN; else see whether a cluster is there."
)


class Node(NamedTuple):
    """A node that runs tasks.

    Attributes:
        key: Ray's name of it.
        name: What messages call it.
        slots: How many tasks it runs at the same time.
    """

    key: str
    name: str
    slots: int


def version_probe() -> Callable[[], tuple[str, str, str]]:
    """Return a function that travels as it is, so that it runs where this package is another one, or missing."""

    def versions() -> tuple[str, str, str]:

        import ray

        try:
            from shardtool.values import __version__ as installed
        except ImportError:
            installed = ""
        return installed, ".".join(map(str, sys.version_info[:2])), ray.__version__

    return versions


def refuse_nodes(problems: list[tuple[str, str, str]], remedy: str) -> None:
    if problems:
        where, found, expected = problems[0]
        others = len({name for name, _, _ in problems}) - 1
        more = f" (and {others:,} more nodes)" if others else ""
        raise InvalidRequest(where + more, found, expected=expected, remedy=remedy)


def check_reachable(address: str | None) -> None:
    """Refuse an address at which nothing answers: Ray itself would wait for a minute.

    Raises:
        InvalidRequest: There is nothing, or it is no address.
    """
    given = address if address not in (None, "auto") else os.environ.get("RAY_ADDRESS", "auto")
    if given in (None, "", "auto"):
        return
    scheme, _, place = str(given).rpartition("://")
    host, _, port = place.partition("/")[0].rpartition(":")
    if scheme not in _SCHEMES or not host or not port.isdecimal():
        raise InvalidRequest(option_text("address", given), "no address", expected="auto, ray://host:port or host:port")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        found = f"no Ray cluster: {os_error_text(error) if isinstance(error, OSError) else error}"
        raise InvalidRequest(option_text("address", given), found, remedy=_START_ADVICE) from None


def unreachable_error(address: str | None, error: Exception) -> InvalidRequest:
    where = option_text("executor", "ray") if address is None else option_text("address", address)
    text = " ".join(str(error).split())
    if "Version mismatch" in text or "version mismatch" in text:
        return InvalidRequest(where, text, remedy="Install the same Ray and the same Python on all nodes.")
    if NO_CLUSTER_TEXT in text:
        return InvalidRequest(where, "no Ray cluster there", remedy=_START_ADVICE)
    return InvalidRequest(where, f"no connection: {text[:300]}", remedy=_CONNECT_ADVICE)


def connect_ray(address: str, **more: Any) -> Exception | None:
    """Connect to a cluster, `local`: one that is started for that; return what has kept Ray from it."""
    try:
        with own_signal_handlers(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL, **more)
    except (ConnectionError, RuntimeError, ValueError, OSError, exceptions.RayError) as error:
        return error
    return None


@contextmanager
def own_signal_handlers() -> Iterator[None]:
    """Keep this process's way with signals: Ray takes SIGTERM for itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
