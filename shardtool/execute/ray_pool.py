"""A pool whose workers are the processes of a Ray cluster.

Ray brings a task to a free slot, and runs it again where its worker or its node is lost; only such tasks, and no more
than `_ATTEMPTS` times. What a task raises is no such loss: it comes back as a result, and ends the run. Tasks are drawn
as slots become free, so that neither this process nor Ray's object store holds many; no sample's bytes pass through
either. See docs/decisions/018-ray.md.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from itertools import islice
from queue import Empty, SimpleQueue
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TypeVar, cast

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shardtool.errors import Bug, InvalidRequest, WorkerDied
from shardtool.execute.ray_cluster import Cluster
from shardtool.execute.ray_task import ATTEMPT_BYTES, Counts, Surroundings, serve
from shardtool.execute.worker import what_of
from shardtool.storage import staging
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator

    from typing_extensions import Self

    from shardtool.execute.pool import Needs, Progress
    from shardtool.execute.ray_task import Answer

Result = TypeVar("Result")
_ATTEMPTS = 5
_LOOK_S = 0.5  # between looks at what tasks have reported
_COUNT_S = 5.0  # between looks at how many slots there are: nodes come and go
_END_S = 10.0  # for tasks to end that are cancelled
_AHEAD = 8  # so many slots have one task more waiting, so that none is free while this process is busy


class RayPool:
    """Slots of a Ray cluster, to be used in a `with` block; leaving it ends the tasks that still run.

    Args:
        workers: How many tasks run at once at most; None: as many as the cluster has cores.
        address: `auto`, `ray://host:port` or `host:port`; None: what Ray's environment says, or `auto`.
        again: What to do after a task was lost too often.

    Raises:
        InvalidRequest: There is no cluster there, or a node of it has other versions.
        WorkerDied: A node does not answer.
    """

    def __init__(self, workers: int | None, address: str | None, again: str) -> None:
        self._asked, self._again = workers, again
        self._cluster = Cluster(address)
        self._running: dict[int, tuple[Any, str]] = {}  # by number: the result to come, and what makes it
        self._counts: Any = None
        self._tell: Callable[[tuple[int, Future[Answer]]], None] = lambda _: None
        try:
            self._cluster.check_versions()
            self._count_slots()
            self._cluster.watch(lambda: self._tell((-1, Future())))
        except BaseException:
            self.close()
            raise
        self._serve = ray.remote(num_cpus=1, max_retries=_ATTEMPTS - 1, scheduling_strategy="SPREAD")(serve)
        self._surroundings = ray.put(Surroundings.here())
        staging.set_attempt(token_hex(ATTEMPT_BYTES))  # a spool of this run is none that a task of another one knows

    def _count_slots(self) -> None:
        nodes = self._cluster.nodes()
        self._slots, self._counted = sum(node.slots for node in nodes), time.monotonic()
        if not self._slots:
            raise InvalidRequest(option("executor", "ray"), "a cluster without cores", expected="one or more")
        self.most = min(self._slots, self._asked or self._slots)
        self.most_together = min(self.most, max((node.slots for node in nodes), default=1))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End what runs, and wait until it has ended, so that nothing is staged any more; then the connection."""
        if self._cluster.lost:
            return  # Ray would end this process where it is called
        running, self._running = [ref for ref, _ in self._running.values()], {}
        for ref in running:
            ray.cancel(ref, force=True)
        if running:
            ray.wait(running, num_returns=len(running), timeout=_END_S)
        if self._counts is not None:
            ray.kill(self._counts)
            self._counts = None
        staging.set_attempt("")
        self._cluster.close()

    def check(self, needs: Needs) -> None:
        """Refuse nodes that lack what tasks will need.

        Raises:
            InvalidRequest: There are such; the first is named, with what it has.
            WorkerDied: One does not answer.
        """
        self._cluster.check(needs)

    def map(
        self, function: Callable[..., Result], tasks: Iterable[object], progress: Progress | None = None
    ) -> Iterator[tuple[int, Result]]:
        """Yield (number, result) of each task as it is done; see `Pool.map`."""
        queue, done = enumerate(tasks), SimpleQueue[tuple[int, "Future[Answer]"]]()
        reports = None if progress is None else _Reports(self._counter(), progress)

        def feed() -> None:
            for number, task in islice(queue, self._room()):
                ref = self._serve.remote(self._surroundings, function, number, task, reports and reports.actor)
                self._running[number] = ref, what_of(function, task)
                ref.future().add_done_callback(lambda future, number=number: done.put((number, future)))

        feed()
        self._tell = done.put
        while self._running:
            try:
                number, future = done.get(timeout=_LOOK_S)
            except Empty:
                if reports is not None:
                    reports.look(self._running)
                continue
            if self._cluster.lost:
                raise WorkerDied(
                    self._cluster.lost, "its raylet, by which we reach the cluster, has ended", remedy=self._again
                )
            result = self._result(self._running.pop(number)[1], future)
            feed()  # before the result is used, so that no slot waits for that
            if reports is not None:
                reports.end(number)
            yield number, cast("Result", result)

    def _room(self) -> int:
        """Return how many tasks more may be under way."""
        if time.monotonic() - self._counted > _COUNT_S:
            self._count_slots()
        ahead = 0 if self._asked is not None and self._asked <= self._slots else min(self._slots, _AHEAD)
        return max(0, self.most + ahead - len(self._running))

    def _result(self, what: str, future: Future[Answer]) -> object:
        try:
            answer = future.result()
        except RayTaskError as error:  # before the task began: what it is made of cannot be had there
            raise Bug.of(what, error) from None
        except RayError as error:
            found = f"lost {_ATTEMPTS} times: {' '.join(str(error).split())[:300]}"
            raise WorkerDied(what, found, remedy=self._again) from None
        if answer.error is not None:
            raise answer.error
        return answer.result

    def _counter(self) -> Any:
        """Return the actor that counts, near this process, so that it is there as long as we are."""
        if self._counts is None:
            near = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
            actor = ray.remote(num_cpus=0, max_restarts=-1)(Counts)
            self._counts = actor.options(scheduling_strategy=near).remote()
        return self._counts


class _Reports:
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
            except GetTimeoutError:
                return
            except RayError:
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
