"""Run tasks as on a node of a Ray cluster, but without a cluster. `tests/clients/test_ray.py` uses a cluster."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from shardtool.errors import Bug, SampleFailed
from shardtool.execute.local_pool import LocalPool
from shardtool.execute.ray_task import TaskCounts, TaskEnvironment, describe_path, inspect_node, run_task
from shardtool.storage.remote.store_options import object_headers
from shardtool.storage.staging import Folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="module")
def pool() -> Any:
    """Yield a pool with one process, which acts as a Ray worker."""
    with LocalPool(1, "fork") as pool:
        yield pool


def staged(task: tuple[str, str]) -> tuple[str, str]:
    """Stage a file in a shared folder. Return its path, and the current folder."""
    folder, data = task
    with Folder(folder).stage("out.tar") as file:
        file.write(data.encode())
        return file.finish().path, os.getcwd()


def failing(task: str) -> None:
    """Raise an error about the data, or a bug if the task is empty."""
    raise SampleFailed(task, "odd") if task else KeyError(task)


def run_as_worker(task: tuple[TaskEnvironment, Callable[..., object], Any]) -> Any:
    """Run a task as a Ray worker does."""
    environment, function, argument = task
    return run_task(environment, function, 0, argument, None)


def inspect_here(task: tuple[TaskEnvironment, dict[str | bytes, str], str | None, str, str]) -> list[tuple[str, str]]:
    """Inspect this machine as a node does."""
    return inspect_node(*task)


def test_each_attempt_has_its_own_file(pool: LocalPool, tmp_path: Path) -> None:
    """Attempts at a task stage separate files; the parent publishes one, and the others are deleted."""
    (tmp_path / "out").mkdir()
    environment, folder = TaskEnvironment.here()._replace(folder=str(tmp_path)), Folder(str(tmp_path / "out"))
    tasks = [(environment, staged, ("out", data)) for data in ("late", "right", "early")]
    answers = [answer.result for _, answer in pool.map(run_as_worker, tasks)]
    assert {folder_path for _, folder_path in answers} == {str(tmp_path)}
    assert len({path for path, _ in answers}) == 3
    assert folder.staged_names() == ["out.tar"]
    os.rename(tmp_path / answers[1][0], tmp_path / "out" / "out.tar")
    folder.discard_staged(["out.tar.gz", "t.tar"])
    assert len(folder.names()) == 3
    folder.discard_staged(["out.tar"])
    assert {file.name: file.read_text() for file in (tmp_path / "out").iterdir()} == {"out.tar": "right"}


def store_headers(_: str) -> dict[str, str]:
    """Return the headers that a store would receive."""
    return object_headers("s3://bucket/key")


def test_store_options_reach_the_nodes(pool: LocalPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options for remote stores are sent with a task; credentials are not."""
    monkeypatch.setenv("SHARDTOOL_STORE_OPTIONS", "sse=AES256")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    environment = TaskEnvironment.here()
    assert "hidden" not in str(environment)
    monkeypatch.delenv("SHARDTOOL_STORE_OPTIONS")
    [(_, answer)] = pool.map(run_as_worker, [(environment, store_headers, "")])
    assert answer.result == {"x-amz-server-side-encryption": "AES256"}


def test_errors_are_returned(pool: LocalPool) -> None:
    """A data error is returned unchanged, any other as Bug with its traceback."""
    environment = TaskEnvironment.here()
    (_, failed), (_, bug) = pool.map(run_as_worker, [(environment, failing, "7"), (environment, failing, "")])
    assert (type(failed.error), str(failed.error)) == (SampleFailed, "7: odd")
    assert isinstance(bug.error, Bug)
    assert "KeyError" in bug.error.detail


def test_inspect_node_reports_differences(pool: LocalPool, tmp_path: Path) -> None:
    """A node reports paths, the output folder and modules that differ from the parent's."""
    (tmp_path / "a").write_bytes(b"123")
    (tmp_path / "mine.py").write_text("")
    os.utime(tmp_path / "a", ns=(0, 10**9 + 1))
    environment, function, output = TaskEnvironment.here(), (None, "", "mine:same"), str(tmp_path)
    with_path = environment._replace(path=(*environment.path, str(tmp_path)))
    marker = str(tmp_path / "a")
    same: dict[str | bytes, str] = {str(tmp_path): describe_path(tmp_path.as_posix()), marker: describe_path(marker)}
    assert list(same.values()) == ["a folder", "3 bytes, changed at 1.000000001"]
    different: dict[str | bytes, str] = {str(tmp_path): same[marker], str(tmp_path / "b"): "a folder"}
    tasks = [
        (environment, different, *function),
        (with_path, same, *function),
        (environment, same, output, "no marker", ""),
        (environment, same, output, marker, ""),
    ]
    first, *rest = (problems for _, problems in pool.map(inspect_here, tasks))
    assert first == [
        (f"{tmp_path}: a folder", "3 bytes, changed at 1.000000001, as here"),
        (f"{tmp_path}/b: no such file or directory", "a folder, as here"),
        ("mine:same: no module mine", "the module of this process"),
    ]
    missing = (f"{tmp_path}: missing, or a different folder", "the folder that this process writes to")
    assert rest == [[], [missing], []]


def test_counts_are_those_of_the_latest_attempt() -> None:
    """If a task runs again, its latest attempt counts; counts are returned once."""
    counts = TaskCounts()
    for samples in (5, 9, 2):
        counts.add(3, samples, samples * 10)
    counts.add(4, 1, 1)
    assert counts.take() == {3: (2, 20), 4: (1, 1)}
    assert counts.take() == {}
