"""A pool that runs tasks on a Ray cluster (docs/decisions/018-ray.md).

A slot is one CPU core of the cluster. At most eight submitted tasks wait for a slot. Sample data never passes through
this process or Ray's object store.
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
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from queue import Empty, SimpleQueue
from secrets import token_hex
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import ray
from ray import exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shardtool.errors import Bug, InvalidRequest, WorkerDied, os_error_text
from shardtool.execute import ray_task
from shardtool.execute.pool import Pool, describe_task, sample_paths
from shardtool.messages import option_text
from shardtool.request.observer import Observer
from shardtool.storage import staging
from shardtool.storage.remote.address import is_url
from shardtool.storage.staging import local_folder
from shardtool.units import pluralize
from shardtool.values import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Sequence

    from shardtool.execute.pool import Progress, Result
    from shardtool.request.output_options import WorkerOptions


_CONNECT_TIMEOUT_S = 5.0
_SCHEMES = ("", "ray")
NO_CLUSTER_TEXT = "Could not find"
_START_ADVICE = "Start one with `ray start`, or set the address of a running one."

_CONNECT_ADVICE = (
    "If the cluster requires a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN; otherwise check that it runs."
)


class Node(NamedTuple):
    """A node that runs at most `slots` concurrent tasks. `key` is Ray's node ID, and `name` is for messages."""

    key: str
    name: str
    slots: int


def version_probe() -> Callable[[], tuple[str, str, str]]:
    """Return a function that returns the versions of shardtool, Python and Ray on a node.

    The function is self-contained, because nodes may lack shardtool.
    """

    def versions() -> tuple[str, str, str]:
        import ray

        try:
            from shardtool.values import __version__ as installed
        except ImportError:
            installed = ""
        return installed, ".".join(map(str, sys.version_info[:2])), ray.__version__

    return versions


def refuse_nodes(problems: list[tuple[str, str, str]], remedy: str) -> None:
    """Raise `InvalidRequest` for the first of `problems` (node name, found, expected)."""
    if problems:
        node_name, found, expected = problems[0]
        other_nodes = len({name for name, _, _ in problems}) - 1
        suffix = f" (and {other_nodes:,} more nodes)" if other_nodes else ""
        raise InvalidRequest(node_name + suffix, found, expected=expected, remedy=remedy)


def check_reachable(address: str | None) -> None:
    """Raise `InvalidRequest` if nothing answers at the cluster's address. Ray itself would wait for a minute."""
    cluster_address = address if address not in (None, "auto") else os.environ.get("RAY_ADDRESS", "auto")
    if cluster_address in (None, "", "auto"):
        return
    scheme, _, host_and_path = str(cluster_address).rpartition("://")
    host, _, port = host_and_path.partition("/")[0].rpartition(":")
    if scheme not in _SCHEMES or not host or not port.isdecimal():
        expected = "auto, ray://host:port or host:port"
        raise InvalidRequest(option_text("address", cluster_address), "not an address", expected=expected)
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        found = f"no Ray cluster: {os_error_text(error) if isinstance(error, OSError) else error}"
        raise InvalidRequest(option_text("address", cluster_address), found, remedy=_START_ADVICE) from None


def unreachable_error(address: str | None, error: Exception) -> InvalidRequest:
    """Return the error for a failed connection to a cluster."""
    option = option_text("executor", "ray") if address is None else option_text("address", address)
    text = " ".join(str(error).split())
    if "Version mismatch" in text or "version mismatch" in text:
        return InvalidRequest(option, text, remedy="Install the same Ray and the same Python on all nodes.")
    if NO_CLUSTER_TEXT in text:
        return InvalidRequest(option, "no Ray cluster at this address", remedy=_START_ADVICE)
    return InvalidRequest(option, f"cannot connect: {text[:300]}", remedy=_CONNECT_ADVICE)


def connect_ray(address: str, **options: Any) -> Exception | None:
    """Connect to a cluster, or return the error. The address `local` starts a new cluster."""
    try:
        with restoring_signal_handlers(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL, **options)
    except (ConnectionError, RuntimeError, ValueError, OSError, exceptions.RayError) as error:
        return error
    return None


@contextmanager
def restoring_signal_handlers() -> Iterator[None]:
    """Restore the signal handlers after the `with` block, because Ray replaces the handler of SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)


Answer = TypeVar("Answer")
_NODE_CHECK_INTERVAL_S = 1.0
_NODE_TIMEOUT_S = 60.0
_LOST_ERRORS = (exceptions.NodeDiedError, exceptions.TaskUnschedulableError, exceptions.WorkerCrashedError)
MAX_ATTEMPTS = 5
_REPORT_INTERVAL_S = 0.5
_SLOT_COUNT_INTERVAL_S = 5.0
_CANCEL_TIMEOUT_S = 10.0
_MAX_EXTRA_TASKS = 8


class RayPool(Pool):
    """Runs tasks in the slots of a Ray cluster. The end of the `with` block cancels unfinished tasks.

    Args:
        options: `workers` is the maximum number of concurrent tasks, or None for all cores of the cluster. `address` is
            `auto`, `ray://host:port` or `host:port`. If it is None, the pool uses the cluster in RAY_ADDRESS, or a
            running cluster, or starts one.
    """

    def __init__(self, options: WorkerOptions, advice: str, cores: int, observer: Observer | None) -> None:
        self._max_workers, self._advice = options.workers, advice
        self._owns_connection = not ray.is_initialized()
        self._closed, self._lost_node = False, ""
        self._running: dict[int, tuple[Any, str]] = {}
        self._counts: Any = None
        self._on_lost: Callable[[tuple[int, Future[ray_task.TaskResult]]], None] = lambda _: None
        self._connect(options.address, cores, observer or Observer())
        try:
            self._check_versions()
            self._count_slots()
            self._watch_raylet()
        except BaseException:
            self.close()
            raise
        as_remote = ray.remote(num_cpus=1, max_retries=MAX_ATTEMPTS - 1, scheduling_strategy="SPREAD")
        self._remote_task = as_remote(ray_task.run_task)
        self._environment = ray.put(ray_task.TaskEnvironment.here())
        staging.set_attempt(token_hex(ray_task.ATTEMPT_TOKEN_BYTES))

    def _connect(self, address: str | None, cores: int, observer: Observer) -> None:
        """Connect to a cluster, or start one on this machine if none runs and none was requested."""
        if not self._owns_connection:
            if address not in (None, "auto"):
                found, remedy = "this process is already connected to a cluster", "Omit the address."
                raise InvalidRequest(option_text("address", address), found, remedy=remedy)
            return
        check_reachable(address)
        error = connect_ray(address or "auto")
        is_cluster_known = address is not None or os.environ.get("RAY_ADDRESS")
        if error is not None and not is_cluster_known and NO_CLUSTER_TEXT in str(error):
            count = self._max_workers or cores
            other = f"to use another, set {option_text('address', 'HOST:PORT')}"
            start = f"starting one on this machine with {pluralize(count, 'core')}, until this run ends"
            observer.note(f"no running Ray cluster: {start}; {other}")
            error = connect_ray("local", num_cpus=count, include_dashboard=False)
        if error is not None:
            raise unreachable_error(address, error)

    def _watch_raylet(self) -> None:
        """Watch the raylet (Ray's process on this machine) in a thread, if possible.

        Ray ends this process one second after the raylet exits, so the exit must be reported immediately.
        """
        own_id = ray.get_runtime_context().get_node_id()
        path = next((node["RayletSocketName"] for node in ray.nodes() if node["NodeID"] == own_id), "")
        # SO_PEERCRED and pidfd_open exist only on Linux
        with suppress(OSError, AttributeError), socket.socket(socket.AF_UNIX) as raylet:
            raylet.connect(path)
            (pid,) = struct.unpack("i8x", raylet.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            process = os.pidfd_open(pid)

            def wait() -> None:
                while not (exited := select.select([process], [], [], _NODE_CHECK_INTERVAL_S)[0]) and not self._closed:
                    pass
                os.close(process)
                if exited and not self._closed:
                    self._lost_node = f"node {ray.util.get_node_ip_address()} ({own_id[:8]})"
                    self._on_lost((-1, Future()))  # wake `map`, which checks `_lost_node`

            Thread(target=wait, daemon=True).start()

    def _count_slots(self) -> None:
        nodes = self._nodes()
        self._slots, self._slots_counted_at = sum(node.slots for node in nodes), time.monotonic()
        if not self._slots:
            raise InvalidRequest(option_text("executor", "ray"), "a cluster without cores", expected="one or more")
        self.max_tasks = min(self._slots, self._max_workers or self._slots)
        self.max_per_machine = min(self.max_tasks, max((node.slots for node in nodes), default=1))

    def close(self) -> None:
        """Cancel the running tasks, wait until they no longer write staged files, and disconnect."""
        if self._lost_node:
            return
        running, self._running = [ref for ref, _ in self._running.values()], {}
        for ref in running:
            ray.cancel(ref, force=True)
        if running:
            ray.wait(running, num_returns=len(running), timeout=_CANCEL_TIMEOUT_S)
        if self._counts is not None:
            ray.kill(self._counts)
            self._counts = None
        staging.set_attempt("")
        self._closed = True
        if self._owns_connection:
            self._owns_connection = False
            with restoring_signal_handlers():
                ray.shutdown()

    def _nodes(self) -> list[Node]:
        return [
            Node(node["NodeID"], f"node {node['NodeManagerAddress']} ({node['NodeID'][:8]})", slots)
            for node in ray.nodes()
            if node["Alive"] and (slots := int(node["Resources"].get("CPU", 0)))
        ]

    def _check_versions(self) -> None:
        expected = (__version__, ".".join(map(str, sys.version_info[:2])), ray.__version__)
        problems = [
            (node.name, f"{package} {there}" if there else f"no {package}", f"{package} {here}, as here")
            for node, versions in self._ask_nodes(version_probe())
            for package, there, here in zip(("shardtool", "Python", "Ray"), versions, expected, strict=True)
            if there != here
        ]
        refuse_nodes(problems, "Install the same versions on all nodes.")

    def check_access(self, paths: Sequence[str | bytes] = (), *, output: str | None = None, function: str = "") -> None:
        if output is not None and is_url(output):
            return
        environment = ray_task.TaskEnvironment.here(function)
        absolute_paths = [os.path.abspath(path) for path in sample_paths(paths)]
        existing_paths = [path for path in absolute_paths if os.path.isfile(path) or os.path.isdir(path)]
        here = {path: ray_task.describe_path(path) for path in existing_paths}
        with ExitStack() as stack:
            marker = ""
            if output is not None:
                file = local_folder(os.path.abspath(output)).stage(f"{token_hex(8)}.node")
                stack.callback(file.abandon)
                marker = file.path
            answers = self._ask_nodes(ray_task.inspect_node, environment, here, output, marker, function)
        problems = [(node.name, *problem) for node, node_problems in answers for problem in node_problems]
        if environment.sources:
            self._environment = ray.put(environment)
        refuse_nodes(problems, "Inputs and outputs must have the same paths on all nodes.")

    def _ask_nodes(self, function: Callable[..., Answer], *arguments: object) -> list[tuple[Node, Answer]]:
        nodes, remote = self._nodes(), ray.remote(num_cpus=0, max_retries=1)(function)
        pending = {}
        for node in nodes:
            strategy = NodeAffinitySchedulingStrategy(node.key, soft=False)
            pending[remote.options(scheduling_strategy=strategy).remote(*arguments)] = node
        answers, deadline = [], time.monotonic() + _NODE_TIMEOUT_S
        while pending:
            done, _ = ray.wait([*pending], num_returns=len(pending), timeout=_NODE_CHECK_INTERVAL_S)
            for ref in done:
                with suppress(*_LOST_ERRORS):
                    answers.append((pending[ref], ray.get(ref)))
                del pending[ref]
            if pending and not done:
                alive = self._nodes()
                pending = {ref: node for ref, node in pending.items() if node in alive}
            for silent_node in pending.values() if time.monotonic() > deadline else ():
                found = f"no answer for {_NODE_TIMEOUT_S:.0f} s"
                raise WorkerDied(silent_node.name, found, remedy="Check whether it is overloaded.")
        return answers

    def map(
        self, function: Callable[..., Result], tasks: Iterable[object], progress: Progress | None = None
    ) -> Iterator[tuple[int, Result]]:
        queue, finished = enumerate(tasks), SimpleQueue[tuple[int, "Future[ray_task.TaskResult]"]]()
        reports = None if progress is None else _TaskReports(self._count_actor(), progress)

        def feed() -> None:
            for number, task in islice(queue, self._free_slots()):
                ref = self._remote_task.remote(self._environment, function, number, task, reports and reports.actor)
                self._running[number] = ref, describe_task(function, task)
                ref.future().add_done_callback(lambda future, number=number: finished.put((number, future)))

        feed()
        self._on_lost = finished.put
        while self._running:
            try:
                number, future = finished.get(timeout=_REPORT_INTERVAL_S)
            except Empty:
                if reports is not None:
                    reports.poll(self._running)
                continue
            if self._lost_node:
                found = "its raylet, which connects this process to the cluster, has exited"
                raise WorkerDied(self._lost_node, found, remedy=self._advice)
            result = self._result(self._running.pop(number)[1], future)
            feed()
            if reports is not None:
                reports.end(number)
            yield number, cast("Result", result)

    def _free_slots(self) -> int:
        if time.monotonic() - self._slots_counted_at > _SLOT_COUNT_INTERVAL_S:
            self._count_slots()
        is_limited = self._max_workers is not None and self._max_workers <= self._slots
        ahead = 0 if is_limited else min(self._slots, _MAX_EXTRA_TASKS)
        return max(0, self.max_tasks + ahead - len(self._running))

    def _result(self, task_text: str, future: Future[ray_task.TaskResult]) -> object:
        try:
            answer = future.result()
        except exceptions.RayTaskError as error:  # the node could not load the task's arguments
            raise Bug.from_exception(task_text, error) from None
        except exceptions.RayError as error:
            found = f"lost {MAX_ATTEMPTS} times: {' '.join(str(error).split())[:300]}"
            raise WorkerDied(task_text, found, remedy=self._advice) from None
        if answer.error is not None:
            raise answer.error
        return answer.result

    def _count_actor(self) -> Any:
        if self._counts is None:
            near = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
            actor = ray.remote(num_cpus=0, max_restarts=-1)(ray_task.TaskCounts)
            self._counts = actor.options(scheduling_strategy=near).remote()
        return self._counts


class _TaskReports:
    """Reports the progress of running tasks. If the actor that stores the progress is lost, reports nothing."""

    def __init__(self, actor: Any, progress: Progress) -> None:
        self.actor, self._progress = actor, progress
        self._pending: Any = None
        self._reported: dict[int, tuple[int, int]] = {}
        actor.take.remote()  # discard the counts of an earlier `map`

    def poll(self, running: Container[int]) -> None:
        if self._pending is not None:
            try:
                for number, (samples, size) in ray.get(self._pending, timeout=0).items():
                    if number in running:
                        self._pass_on(number, samples, size)
            except exceptions.GetTimeoutError:
                return
            except exceptions.RayError:
                pass
        self._pending = self.actor.take.remote()

    def _pass_on(self, number: int, samples: int, size: int) -> None:
        reported = self._reported.get(number, (0, 0))
        # a second attempt counts from zero, so report only what exceeds the first attempt
        if samples > reported[0] or size > reported[1]:
            self._reported[number] = max(samples, reported[0]), max(size, reported[1])
            self._progress(number, max(0, samples - reported[0]), max(0, size - reported[1]))

    def end(self, number: int) -> None:
        self._reported.pop(number, None)
