"""Start a pool as the options request, and run tasks in each kind of pool."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import shardtool
from shardtool.errors import InvalidRequest, SampleFailed
from shardtool.execute import start_pool
from shardtool.execute.local_pool import LocalPool
from shardtool.execute.pool import Pool, sample_paths
from shardtool.execute.worker import send
from tests.helpers import read_tree, typed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


_forks: list[None] = []
os.register_at_fork(before=lambda: _forks.append(None))


def halved(task: int, report: Callable[[int, int], None] | None = None) -> int:
    """Return half of an even number, or raise an error for an odd number."""
    if task % 2:
        raise SampleFailed(str(task), "odd")
    if report is not None:
        report(1, task)
    return task // 2


@pytest.fixture(params=["here", "local"])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    """Yield a pool of each kind that needs no cluster."""
    with Pool() if request.param == "here" else LocalPool(2, "fork") as pool:
        yield pool


def test_all_pools_behave_alike(pool: Pool, tmp_path: Path) -> None:
    """Each pool returns every result with its task number, passes on errors, and sees what this process sees."""
    pool.check_access((str(tmp_path),), output=str(tmp_path), function="no.module:function")
    assert sorted(pool.map(halved, range(0, 20, 2))) == [(number, number) for number in range(10)]
    assert pool.max_tasks >= pool.max_per_machine >= 1
    with pytest.raises(SampleFailed, match="3: odd"):
        list(pool.map(halved, [2, 3]))


def test_pools_do_not_wait_for_each_other() -> None:
    """A worker that is slow to read its task delays no other pool of the process."""
    reads, writes = os.pipe()
    ended = threading.Event()

    def answer() -> None:
        with suppress(BrokenPipeError):
            send(writes, bytes(2**20))  # more than a pipe holds
        ended.set()

    def run() -> list[tuple[int, int]]:
        with LocalPool(1, "fork") as pool:
            return list(pool.map(halved, [2]))

    threading.Thread(target=answer, daemon=True).start()
    select.select([reads], [], [])
    results: list[list[tuple[int, int]]] = []
    thread = threading.Thread(target=lambda: results.append(run()), daemon=True)
    thread.start()
    thread.join(30)
    assert not ended.is_set()
    os.close(reads)
    assert ended.wait(30)
    os.close(writes)
    assert results == [[(0, 1)]]


def test_progress_has_task_numbers() -> None:
    """Progress reports have task numbers, in this process too."""
    reports: list[tuple[int, int, int]] = []
    assert list(Pool().map(halved, [4, 8], lambda *report: reports.append(report))) == [(0, 2), (1, 4)]
    assert reports == [(0, 1, 4), (1, 1, 8)]


def _prints(task: int) -> int:
    print(task)  # noqa: T201 - as a user's function may
    return task


@pytest.mark.parametrize("workers", [0, 1])
def test_functions_that_print_do_not_write_to_stdout(capfd: pytest.CaptureFixture[str], workers: int) -> None:
    """Output of a user's function goes to stderr, and none is lost: stdout has the result of the command."""
    with start_pool(shardtool.CreateOptions(workers=workers)) as pool:
        assert list(pool.map(_prints, [1])) == [(0, 1)]
    assert capfd.readouterr() == ("", "1\n")


@pytest.mark.parametrize("name", ["executor", "start_method"])
def test_options_of_workers_need_workers(name: str) -> None:
    """`workers=0` conflicts with options that have an effect only on workers."""
    options = shardtool.CreateOptions(workers=0, **{name: {"executor": "ray", "start_method": "fork"}[name]})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=rf"{name}=.*: used with workers=0, .* expected only one of them"):
        start_pool(options)


COMMANDS = {
    "create": "create in new-{0..}.tar --max-count 4",
    "reshard": "reshard x.json new-{0..}.tfrecord --shuffle --max-count 3",
    "verify": "verify x.json --source in --decode",
    "index": "index x-*.tar --overwrite",
    "diff": "diff x.json in",
    "extract": "extract x.json files",
    "remove": "remove x.json --where key=='a/000'",
}


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_verb_runs_without_workers(verb: str, small_once: Path, tmp_path: Path) -> None:
    """With `--workers 0`, a verb starts no process; files, output and exit code equal those with workers."""
    outcomes = []
    for workers in (0, 2):
        folder = tmp_path / str(workers)
        folder.mkdir()
        (folder / "in").symlink_to(small_once)
        assert typed("create", "in", "x-{0..}.tar", "--max-count", "5", "--workers", "0", cwd=folder).code == 0
        _forks.clear()
        ran = typed(*COMMANDS[verb].split(), "--workers", str(workers), cwd=folder)
        assert bool(_forks) == bool(workers)
        (folder / "in").unlink()
        outcomes.append((ran.code, re.sub(r"[\d.]+ s\b.*", "", ran.out + ran.err), read_tree(folder)))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0] == 0, outcomes[0][1]


def test_missing_ray_is_reported() -> None:
    """Without Ray, the error names the package to install."""
    hidden = "import sys; sys.modules['ray'] = None\n"
    code = f"{hidden}from shardtool.cli import main; sys.argv[1:] = ['verify', '.', '--executor', 'ray']; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    remedy = "Run `pip install 'shardtool[ray]'` here and on every node."
    assert done.stderr == f"shardtool: --executor ray: Ray is not installed here. {remedy}\n"


@pytest.mark.parametrize(
    "options", [shardtool.CreateOptions, shardtool.ReshardOptions, shardtool.VerifyOptions, shardtool.IndexOptions]
)
def test_an_address_needs_a_cluster(options: type[shardtool.VerifyOptions]) -> None:
    """An address is refused without a cluster, and so is an unknown executor; neither is recorded."""
    with pytest.raises(InvalidRequest, match="address: no cluster to use; expected executor='ray', too"):
        options(address="auto")
    with pytest.raises(InvalidRequest, match="expected one of local, ray"):
        options(executor="slurm")  # type: ignore[arg-type]
    ray_options = shardtool.CreateOptions(executor="ray", address="auto")
    assert ray_options.recorded() == shardtool.CreateOptions().recorded()


def test_start_pool_follows_the_executor() -> None:
    """The executor option chooses the pool."""
    with start_pool(shardtool.VerifyOptions(workers=1, start_method="fork")) as pool:
        assert isinstance(pool, LocalPool)


def test_three_paths_are_checked() -> None:
    """Of many files, three are checked."""
    assert sample_paths([]) == []
    assert sample_paths(["a"]) == ["a"]
    assert sample_paths([str(number) for number in range(9)]) == ["0", "4", "8"]


def process_of(_task: object) -> int:
    """Return the process that runs a task."""
    return os.getpid()


def test_a_lazy_pool_starts_no_worker_for_one_task() -> None:
    """A lazy pool runs tasks in this process until more than one is announced. Then it forks its workers."""
    with LocalPool(2, lazy=True) as pool:
        before = len(_forks)
        pool.start(1)
        assert {process for _, process in [*pool.map(process_of, [1]), *pool.map(process_of, [1, 2, 3])]} == {
            os.getpid()
        }
        assert len(_forks) == before
        pool.start(2)
        assert os.getpid() not in {process for _, process in pool.map(process_of, [1, 2])}
    with LocalPool(2, "fork", lazy=True) as pool:
        assert os.getpid() not in {process for _, process in pool.map(process_of, [1])}
    with LocalPool(2, lazy=True) as pool:
        pool.start(2)
        assert os.getpid() not in {process for _, process in pool.map(process_of, [1, 2])}
