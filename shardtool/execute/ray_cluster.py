"""Connect to a Ray cluster. Ray's own messages stay in its log files, off the terminal."""

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


_CONNECT_TIMEOUT_S = 5.0
_SCHEMES = ("", "ray")
NO_CLUSTER_TEXT = "Could not find"  # the start of a message of Ray
_START_ADVICE = "Start one with `ray start`, or set the address of a running one."

_CONNECT_ADVICE = (
    "If the cluster requires a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN; otherwise check that it runs."
)


class Node(NamedTuple):
    """A node that runs at most `slots` tasks. `key` is Ray's node ID, `name` is for messages."""

    key: str
    name: str
    slots: int


def version_probe() -> Callable[[], tuple[str, str, str]]:
    """Return a self-contained function, because nodes may lack this package or have another version."""

    def versions() -> tuple[str, str, str]:

        import ray

        try:
            from shardtool.values import __version__ as installed
        except ImportError:
            installed = ""
        return installed, ".".join(map(str, sys.version_info[:2])), ray.__version__

    return versions


def refuse_nodes(problems: list[tuple[str, str, str]], remedy: str) -> None:
    """Raise an error for the first problem, if any. A problem consists of node name, found and expected."""
    if problems:
        node_name, found, expected = problems[0]
        other_nodes = len({name for name, _, _ in problems}) - 1
        suffix = f" (and {other_nodes:,} more nodes)" if other_nodes else ""
        raise InvalidRequest(node_name + suffix, found, expected=expected, remedy=remedy)


def check_reachable(address: str | None) -> None:
    """Raise an error if nothing answers at an address: Ray would wait for a minute."""
    cluster_address = address if address not in (None, "auto") else os.environ.get("RAY_ADDRESS", "auto")
    if cluster_address in (None, "", "auto"):
        return
    scheme, _, host_and_path = str(cluster_address).rpartition("://")
    host, _, port = host_and_path.partition("/")[0].rpartition(":")
    if scheme not in _SCHEMES or not host or not port.isdecimal():
        raise InvalidRequest(
            option_text("address", cluster_address), "not an address", expected="auto, ray://host:port or host:port"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        found = f"no Ray cluster: {os_error_text(error) if isinstance(error, OSError) else error}"
        raise InvalidRequest(option_text("address", cluster_address), found, remedy=_START_ADVICE) from None


def unreachable_error(address: str | None, error: Exception) -> InvalidRequest:
    """Return the error for a failed connection."""
    option = option_text("executor", "ray") if address is None else option_text("address", address)
    text = " ".join(str(error).split())
    if "Version mismatch" in text or "version mismatch" in text:
        return InvalidRequest(option, text, remedy="Install the same Ray and the same Python on all nodes.")
    if NO_CLUSTER_TEXT in text:
        return InvalidRequest(option, "no Ray cluster at this address", remedy=_START_ADVICE)
    return InvalidRequest(option, f"cannot connect: {text[:300]}", remedy=_CONNECT_ADVICE)


def connect_ray(address: str, **options: Any) -> Exception | None:
    """Connect to a cluster (`local` starts one); return the error if that fails."""
    try:
        with own_signal_handlers(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL, **options)
    except (ConnectionError, RuntimeError, ValueError, OSError, exceptions.RayError) as error:
        return error
    return None


@contextmanager
def own_signal_handlers() -> Iterator[None]:
    """Restore this process's signal handlers: Ray replaces the handler of SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
