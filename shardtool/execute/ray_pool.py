"""A pool whose workers are the processes of a Ray cluster.

Ray sends a task to a free slot, and repeats it up to `MAX_ATTEMPTS` times if its worker or node is lost. An
exception
in a task is returned as its result and ends the run. Tasks are submitted as slots become free, so neither this
process nor Ray's object store holds many. Sample data passes through neither (docs/decisions/018-ray.md).
"""

from __future__ import annotations

import os
import select
import socket
import struct
import sys
import time
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from itertools import islice
from queue import Empty, SimpleQueue
from secrets import token_hex
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar, cast

import ray
from ray import exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shardtool.errors import Bug, InvalidRequest, WorkerDied
from shardtool.execute.pool import Pool, describe_task, sample_paths
from shardtool.execute.ray_cluster import (
    NO_CLUSTER_TEXT,
    Node,
    check_reachable,
    connect_ray,
    own_signal_handlers,
    refuse_nodes,
    unreachable_error,
    version_probe,
)
from shardtool.execute.ray_task import (
    ATTEMPT_TOKEN_BYTES,
    TaskCounts,
    TaskEnvironment,
    describe_path,
    inspect_node,
    run_task,
)
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
    from shardtool.execute.ray_task import TaskResult
    from shardtool.request.output_options import WorkerOptions


Said = TypeVar("Said")


_NODE_CHECK_INTERVAL_S = 1.0  # between looks at which nodes are still there


_NODE_TIMEOUT_S = 60.0  # for each node to start a worker, which imports Ray first


_LOST_ERRORS = (exceptions.NodeDiedError, exceptions.TaskUnschedulableError, exceptions.WorkerCrashedError)


MAX_ATTEMPTS = 5


_REPORT_INTERVAL_S = 0.5  # between looks at what tasks have reported


_SLOT_COUNT_INTERVAL_S = 5.0  # between looks at how many slots there are: nodes come and go


_CANCEL_TIMEOUT_S = 10.0  # for tasks to end that are cancelled


_MAX_EXTRA_TASKS = 8  # so many slots have one task more waiting, so that none is free while this process is busy


class RayPool(Pool):
    """Slots of a Ray cluster, to be used in a `with` block; leaving it ends the tasks that still run.

    Args:
        asked: How many tasks run at once at most, `workers`; None: as many as the cluster has cores. And its `address`:
            `auto`, `ray://host:port` or `host:port`; None: what Ray's environment says, or `auto`, or one of our own.
        again: What to do after a task was lost too often.
        cores: How many a cluster gets that is started here.
        observer: Is told where one was.

    Raises:
        InvalidRequest: There is no cluster there, or a node of it has other versions.
        WorkerDied: A node does not answer.
    """

    def __init__(self, asked: WorkerOptions, again: str, cores: int, observer: Observer | None) -> None:
        self._asked, self._again = asked.workers, again
        self._own, self._closed, self._lost = not ray.is_initialized(), False, ""  # whether we connect, and end it
        self._running: dict[int, tuple[Any, str]] = {}  # by number: the result to come, and what makes it
        self._counts: Any = None
        self._tell: Callable[[tuple[int, Future[TaskResult]]], None] = lambda _: None
        self._connect(asked.address, cores, observer or Observer())
        try:
            self._check_versions()
            self._count_slots()
            self._watch()
        except BaseException:
            self.close()
            raise
        self._serve = ray.remote(num_cpus=1, max_retries=MAX_ATTEMPTS - 1, scheduling_strategy="SPREAD")(run_task)
        self._surroundings = ray.put(TaskEnvironment.here())
        staging.set_attempt(
            token_hex(ATTEMPT_TOKEN_BYTES)
        )  # a spool of this run is none that a task of another one knows

    def _connect(self, address: str | None, cores: int, observer: Observer) -> None:
        """Connect to a cluster, or start one on this machine where none is known, as `ray.init` does.

        A connection that the program has made already is used, and stays.
        """
        if not self._own:
            if address not in (None, "auto"):
                found, remedy = "this process is connected to a cluster already", "Leave the address out."
                raise InvalidRequest(option_text("address", address), found, remedy=remedy)
            return
        check_reachable(address)
        error = connect_ray(address or "auto")
        if (
            error is not None
            and address is None
            and not os.environ.get("RAY_ADDRESS")
            and NO_CLUSTER_TEXT in str(error)
        ):
            count = self._asked or cores
            own = f"{pluralize(count, 'core')} until this run ends; {option_text('address', 'HOST:PORT')} names another"
            observer.note(f"no Ray cluster runs here: one is started on this machine, with {own}")
            error = connect_ray("local", num_cpus=count, include_dashboard=False)
        if error is not None:
            raise unreachable_error(address, error)

    def _watch(self) -> None:
        """Have the run told, by a thread, when the raylet of this machine ends: a second later, Ray ends the process.

        Where that cannot be watched, nothing is.
        """
        here = ray.get_runtime_context().get_node_id()
        path = next((one["RayletSocketName"] for one in ray.nodes() if one["NodeID"] == here), "")
        with suppress(OSError, AttributeError), socket.socket(socket.AF_UNIX) as raylet:  # of Linux
            raylet.connect(path)
            (pid,) = struct.unpack("i8x", raylet.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            process = os.pidfd_open(pid)

            def wait() -> None:
                while not (ended := select.select([process], [], [], _NODE_CHECK_INTERVAL_S)[0]) and not self._closed:
                    pass
                os.close(process)
                if ended and not self._closed:
                    self._lost = f"node {ray.util.get_node_ip_address()} ({here[:8]})"
                    self._tell((-1, Future()))

            Thread(target=wait, daemon=True).start()

    def _count_slots(self) -> None:
        nodes = self._nodes()
        self._slots, self._counted = sum(node.slots for node in nodes), time.monotonic()
        if not self._slots:
            raise InvalidRequest(option_text("executor", "ray"), "a cluster without cores", expected="one or more")
        self.most = min(self._slots, self._asked or self._slots)
        self.max_per_machine = min(self.most, max((node.slots for node in nodes), default=1))

    def close(self) -> None:
        """End what runs, and wait until it has ended, so that nothing is staged any more; then our connection."""
        if self._lost:
            return  # Ray would end this process where it is called
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
        if self._own:
            self._own = False
            with own_signal_handlers():
                ray.shutdown()

    def _nodes(self) -> list[Node]:
        """Return the nodes that are there now and run tasks."""
        found = []
        for one in ray.nodes():
            slots = int(one["Resources"].get("CPU", 0))
            if one["Alive"] and slots:
                found.append(Node(one["NodeID"], f"node {one['NodeManagerAddress']} ({one['NodeID'][:8]})", slots))
        return found

    def _check_versions(self) -> None:
        """Refuse nodes on which something else is installed than here.

        Raises:
            InvalidRequest: There are such.
            WorkerDied: One does not answer.
        """
        wanted = (__version__, ".".join(map(str, sys.version_info[:2])), ray.__version__)
        problems = []
        for node, found in self._ask(version_probe()):
            for what, one, other in zip(("shardtool", "Python", "Ray"), found, wanted, strict=True):
                if one != other:
                    problems.append((node.name, f"{what} {one}" if one else f"no {what}", f"{what} {other}, as here"))
        refuse_nodes(problems, "Install the same on all nodes.")

    def check(self, paths: Sequence[str | bytes] = (), *, output: str | None = None, function: str = "") -> None:
        """Refuse nodes that do not see what this process sees.

        Raises:
            InvalidRequest: There are such.
            WorkerDied: One does not answer.
        """
        if output is not None and is_url(output):
            return  # a store is the same from everywhere
        here = TaskEnvironment.here(function)
        there = [os.path.abspath(path) for path in sample_paths(paths) if os.path.isfile(path) or os.path.isdir(path)]
        with ExitStack() as stack:
            marker = ""
            if output is not None:  # a file that lies in that folder for as long as nodes are asked
                file = local_folder(os.path.abspath(output)).stage(f"{token_hex(8)}.node")
                stack.callback(file.abandon)
                marker = file.path
            found = self._ask(
                inspect_node, here, {path: describe_path(path) for path in there}, output, marker, function
            )
        problems = [(node.name, *problem) for node, said in found for problem in said]
        if here.sources:
            self._surroundings = ray.put(here)
        refuse_nodes(problems, "What is read and written must be reachable from all nodes under the same names.")

    def _ask(self, function: Callable[..., Said], *given: object) -> list[tuple[Node, Said]]:
        """Return what a function says on each node."""
        nodes, remote = self._nodes(), ray.remote(num_cpus=0, max_retries=1)(function)
        asked = {}
        for node in nodes:
            where = NodeAffinitySchedulingStrategy(node.key, soft=False)
            asked[remote.options(scheduling_strategy=where).remote(*given)] = node
        found, latest = [], time.monotonic() + _NODE_TIMEOUT_S
        while asked:
            done, _ = ray.wait([*asked], num_returns=len(asked), timeout=_NODE_CHECK_INTERVAL_S)
            for ref in done:
                with suppress(*_LOST_ERRORS):  # such a node runs no tasks either
                    found.append((asked[ref], ray.get(ref)))
                del asked[ref]
            if asked and not done:  # Ray may wait for a node that it has given up
                alive = self._nodes()
                asked = {ref: node for ref, node in asked.items() if node in alive}
            for late in asked.values() if time.monotonic() > latest else ():
                raise WorkerDied(late.name, f"no answer for {_NODE_TIMEOUT_S:.0f} s", remedy="Is it overloaded?")
        return found

    def map(
        self, function: Callable[..., Result], tasks: Iterable[object], progress: Progress | None = None
    ) -> Iterator[tuple[int, Result]]:
        """Yield (number, result) of each task as it is done; see `Pool.map`."""
        queue, done = enumerate(tasks), SimpleQueue[tuple[int, "Future[TaskResult]"]]()
        reports = None if progress is None else _TaskReports(self._counter(), progress)

        def feed() -> None:
            for number, task in islice(queue, self._room()):
                ref = self._serve.remote(self._surroundings, function, number, task, reports and reports.actor)
                self._running[number] = ref, describe_task(function, task)
                ref.future().add_done_callback(lambda future, number=number: done.put((number, future)))

        feed()
        self._tell = done.put
        while self._running:
            try:
                number, future = done.get(timeout=_REPORT_INTERVAL_S)
            except Empty:
                if reports is not None:
                    reports.look(self._running)
                continue
            if self._lost:
                raise WorkerDied(self._lost, "its raylet, by which we reach the cluster, has ended", remedy=self._again)
            result = self._result(self._running.pop(number)[1], future)
            feed()  # before the result is used, so that no slot waits for that
            if reports is not None:
                reports.end(number)
            yield number, cast("Result", result)

    def _room(self) -> int:
        """Return how many tasks more may be under way."""
        if time.monotonic() - self._counted > _SLOT_COUNT_INTERVAL_S:
            self._count_slots()
        ahead = 0 if self._asked is not None and self._asked <= self._slots else min(self._slots, _MAX_EXTRA_TASKS)
        return max(0, self.most + ahead - len(self._running))

    def _result(self, what: str, future: Future[TaskResult]) -> object:
        try:
            answer = future.result()
        except exceptions.RayTaskError as error:  # before the task began: what it is made of cannot be had there
            raise Bug.of(what, error) from None
        except exceptions.RayError as error:
            found = f"lost {MAX_ATTEMPTS} times: {' '.join(str(error).split())[:300]}"
            raise WorkerDied(what, found, remedy=self._again) from None
        if answer.error is not None:
            raise answer.error
        return answer.result

    def _counter(self) -> Any:
        """Return the actor that counts, near this process, so that it is there as long as we are."""
        if self._counts is None:
            near = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
            actor = ray.remote(num_cpus=0, max_restarts=-1)(TaskCounts)
            self._counts = actor.options(scheduling_strategy=near).remote()
        return self._counts


class _TaskReports:
    """What tasks report on their way, passed on; without it, a run goes on all the same.

    Args:
        actor: Where they report it.
        progress: Gets what is new.
    """

    def __init__(self, actor: Any, progress: Progress) -> None:
        self.actor, self._progress = actor, progress
        self._asked: Any = None
        self._told: dict[int, tuple[int, int]] = {}
        actor.take.remote()  # what is left of an earlier use of the pool

    def look(self, running: Container[int]) -> None:
        """Pass on what has come of tasks that run; ask for what comes next, and do not wait for it."""
        if self._asked is not None:
            try:
                for number, (samples, size) in ray.get(self._asked, timeout=0).items():
                    if number in running:
                        self._pass_on(number, samples, size)
            except exceptions.GetTimeoutError:
                return
            except exceptions.RayError:
                pass  # the actor's node is gone, and another starts
        self._asked = self.actor.take.remote()

    def _pass_on(self, number: int, samples: int, size: int) -> None:
        told = self._told.get(number, (0, 0))
        if samples > told[0] or size > told[1]:  # a second attempt begins at nothing
            self._told[number] = max(samples, told[0]), max(size, told[1])
            self._progress(number, max(0, samples - told[0]), max(0, size - told[1]))

    def end(self, number: int) -> None:
        """Forget a task that is done: who gets its result knows all of it."""
        self._told.pop(number, None)
