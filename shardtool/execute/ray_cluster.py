"""A connection to a Ray cluster, and whether each of its nodes can do the work.

What Ray says itself is kept from the user's terminal: its log files have it.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
import warnings
from contextlib import contextmanager, suppress
from dataclasses import replace
from secrets import token_hex
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import ray
from ray.exceptions import NodeDiedError, RayError, TaskUnschedulableError, WorkerCrashedError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shardtool._version import __version__
from shardtool.errors import InvalidRequest, WorkerDied, reason
from shardtool.execute.ray_task import Surroundings, look, see
from shardtool.storage.remote.address import is_url
from shardtool.storage.staging import local_folder
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardtool.execute.pool import Needs
    from shardtool.execute.ray_task import Seen, View

Said = TypeVar("Said")
_REACH_S = 5.0  # for a cluster's port to answer
_LOOK_S = 1.0  # between looks at which nodes are still there
_ANSWER_S = 60.0  # for each node to start a worker, which imports Ray first
_SCHEMES = ("", "ray")


_START = "Start one with `ray start`, or give the address of one that runs."
_GONE = (NodeDiedError, TaskUnschedulableError, WorkerCrashedError)


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


class Cluster:
    """A connection, to be closed. One that the program has made already is used, and stays.

    Raises:
        InvalidRequest: There is no cluster there, or it is of another version.
    """

    def __init__(self, address: str | None) -> None:
        self._own, self._closed, self.lost = not ray.is_initialized(), False, ""
        if not self._own:
            if address not in (None, "auto"):
                found, remedy = "this process is connected to a cluster already", "Leave the address out."
                raise InvalidRequest(option("address", address), found, remedy=remedy)
            return
        _check_answers(address)
        try:
            with _own_signals(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ray.init(address or "auto", log_to_driver=False, logging_level=logging.CRITICAL)
        except (ConnectionError, RuntimeError, ValueError, RayError) as error:
            raise _unreachable(address, error) from None

    def watch(self, tell: Callable[[], None]) -> None:
        """Have `tell` called, in a thread, when the raylet of this machine ends: a second later, Ray ends the process.

        Where that cannot be watched, nothing is.
        """
        here = ray.get_runtime_context().get_node_id()
        path = next((one["RayletSocketName"] for one in ray.nodes() if one["NodeID"] == here), "")
        with suppress(OSError, AttributeError), socket.socket(socket.AF_UNIX) as raylet:  # of Linux
            raylet.connect(path)
            (pid,) = struct.unpack("i8x", raylet.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            process = os.pidfd_open(pid)

            def wait() -> None:
                while not (ended := select.select([process], [], [], _LOOK_S)[0]) and not self._closed:
                    pass
                os.close(process)
                if ended and not self._closed:
                    self.lost = f"node {ray.util.get_node_ip_address()} ({here[:8]})"
                    tell()

            Thread(target=wait, daemon=True).start()

    def close(self) -> None:
        """End the connection, if it is ours, and there."""
        self._closed = True
        if self._own and not self.lost:
            self._own = False
            with _own_signals():
                ray.shutdown()

    def nodes(self) -> list[Node]:
        """Return the nodes that are there now and run tasks."""
        found = []
        for one in ray.nodes():
            slots = int(one["Resources"].get("CPU", 0))
            if one["Alive"] and slots:
                found.append(Node(one["NodeID"], f"node {one['NodeManagerAddress']} ({one['NodeID'][:8]})", slots))
        return found

    def check_versions(self) -> None:
        """Refuse nodes on which something else is installed than here.

        Raises:
            InvalidRequest: There are such.
            WorkerDied: One does not answer.
        """
        wanted = (__version__, ".".join(map(str, sys.version_info[:2])), ray.__version__)
        problems = []
        for node, found in self._ask(_version_probe()):
            for what, one, other in zip(("shardtool", "Python", "Ray"), found, wanted, strict=True):
                if one != other:
                    problems.append((node.name, f"{what} {one}" if one else f"no {what}", f"{what} {other}, as here"))
        remedy = "Install the same on all nodes."
        _refuse(problems, remedy)

    def check(self, needs: Needs) -> None:
        """Refuse nodes that do not see what this process sees.

        Raises:
            InvalidRequest: There are such.
            WorkerDied: One does not answer.
        """
        if needs.output is not None and is_url(needs.output):
            return  # a store is the same from everywhere
        here = [seen for seen in (see(os.path.abspath(path)) for path in needs.paths) if seen.is_there]
        paths = tuple(one.path for one in here)
        with _marker(needs.output) as marker:
            views = self._ask(look, Surroundings.here(), replace(needs, paths=paths), marker)
        problems = [(node.name, *problem) for node, view in views for problem in _problems(view, here, needs)]
        _refuse(problems, "What is read and written must be reachable from all nodes under the same names.")

    def _ask(self, function: Callable[..., Said], *given: object) -> list[tuple[Node, Said]]:
        """Return what a function says on each node."""
        nodes, remote = self.nodes(), ray.remote(num_cpus=0, max_retries=1)(function)
        asked = {}
        for node in nodes:
            where = NodeAffinitySchedulingStrategy(node.key, soft=False)
            asked[remote.options(scheduling_strategy=where).remote(*given)] = node
        found, latest = [], time.monotonic() + _ANSWER_S
        while asked:
            done, _ = ray.wait([*asked], num_returns=len(asked), timeout=_LOOK_S)
            for ref in done:
                with suppress(*_GONE):  # such a node runs no tasks either
                    found.append((asked[ref], ray.get(ref)))
                del asked[ref]
            if asked and not done:  # Ray may wait for a node that it has given up
                alive = self.nodes()
                asked = {ref: node for ref, node in asked.items() if node in alive}
            for late in asked.values() if time.monotonic() > latest else ():
                raise WorkerDied(late.name, f"no answer for {_ANSWER_S:.0f} s", remedy="Is it overloaded?")
        return found


def _version_probe() -> Callable[[], tuple[str, str, str]]:
    """Return a function that travels as it is, so that it runs where this package is another one, or missing."""

    def versions() -> tuple[str, str, str]:
        import sys

        import ray

        try:
            from shardtool._version import __version__ as installed
        except ImportError:
            installed = ""
        return installed, ".".join(map(str, sys.version_info[:2])), ray.__version__

    return versions


def _problems(view: View, here: list[Seen], needs: Needs) -> Iterator[tuple[str, str]]:
    """Yield what a node has, and what it should have."""
    for seen, wanted in zip(view.files, here, strict=True):
        if seen != wanted:
            yield f"{os.fsdecode(seen.path)}: {_shown(seen)}", f"{_shown(wanted)}, as here"
    if not view.marker:
        yield f"{needs.output or '.'}: another folder, or none", "the folder that this process writes to"
    elif not view.writable:
        yield f"{needs.output or '.'}: no permission to write", "a folder that every node may write to"
    if view.function:
        expected = "a module that is installed on each node, or lies in a folder that all of them share"
        yield f"{needs.function}: {view.function}", expected


def _shown(seen: Seen) -> str:
    if seen.kind != "a file":
        return seen.kind
    return f"{seen.size:,} bytes, changed at {seen.mtime_ns / 10**9:.9f}"


def _refuse(problems: list[tuple[str, str, str]], remedy: str) -> None:
    if problems:
        where, found, expected = problems[0]
        others = len({name for name, _, _ in problems}) - 1
        more = f" (and {others:,} more nodes)" if others else ""
        raise InvalidRequest(where + more, found, expected=expected, remedy=remedy)


@contextmanager
def _marker(output: str | None) -> Iterator[str]:
    """Give the path of a file that lies in a folder for as long as the block runs."""
    if output is None:
        yield ""
        return
    folder = local_folder(os.path.abspath(output))
    with folder.stage(f"{token_hex(8)}.node") as file:
        try:
            yield file.path
        finally:
            file.abandon()


def _check_answers(address: str | None) -> None:
    """Refuse an address at which nothing answers: Ray itself would wait for a minute.

    Raises:
        InvalidRequest: There is nothing, or it is no address.
    """
    given = address if address not in (None, "auto") else os.environ.get("RAY_ADDRESS", "auto")
    if given in (None, "", "auto", "local"):
        if given == "local":
            raise InvalidRequest(option("address", given), "no cluster", expected="auto, ray://host:port or host:port")
        return
    scheme, _, place = str(given).rpartition("://")
    host, _, port = place.partition("/")[0].rpartition(":")
    if scheme not in _SCHEMES or not host or not port.isdecimal():
        raise InvalidRequest(option("address", given), "no address", expected="auto, ray://host:port or host:port")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_S).close()
    except (OSError, OverflowError) as error:
        found = f"no Ray cluster: {reason(error) if isinstance(error, OSError) else error}"
        raise InvalidRequest(option("address", given), found, remedy=_START) from None


def _unreachable(address: str | None, error: Exception) -> InvalidRequest:
    where = option("executor", "ray") if address is None else option("address", address)
    text = " ".join(str(error).split())
    if "Version mismatch" in text or "version mismatch" in text:
        return InvalidRequest(where, text, remedy="Install the same Ray and the same Python on all nodes.")
    if isinstance(error, ConnectionError) or "Could not find" in text:
        said = "" if "Could not find" in text else f": {text[:300]}"  # such as that it wants a token
        return InvalidRequest(where, f"no Ray cluster there{said}", remedy=_START)
    return InvalidRequest(where, f"no connection: {text[:300]}", remedy=_START)


@contextmanager
def _own_signals() -> Iterator[None]:
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
