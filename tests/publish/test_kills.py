"""Kills at every step of every publication: visible files are complete, and the same command finishes the run."""

from __future__ import annotations

import os
import shutil
import signal
import traceback
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING

import pytest

from shardtool import verify
from shardtool.storage.remote import http, store_access
from tests import warm
from tests.helpers import ENVIRONMENT, REPO, identity, read_tree
from tests.publish.jobs import AGAIN, FIRST, JOBS, Job
from tests.servers.bucket import Bucket, served

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

_CALLS = ("rename", "replace", "unlink", "fsync", "mkdir", "rmdir", "link", "truncate")


def _runs_to_the_end(job: Job, out: str, root: Path, last_call: int) -> bool:
    """Run a job in a child that is killed at a system call, counted from 0. Return whether the job finished."""
    child = os.fork()
    if not child:
        calls = count()

        def killing(real: Callable[..., object]) -> Callable[..., object]:
            def call(*words: object, **more: object) -> object:
                if next(calls) == last_call:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*words, **more)

            return call

        for name in _CALLS:
            setattr(os, name, killing(getattr(os, name)))
        try:
            job.run(out, root, FIRST)
        except BaseException:  # noqa: BLE001 - the child must not return into pytest
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), status
    return status == 0


def _visible(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if not name.startswith(".")}


def _check_interrupted(
    job: Job, before: dict[str, bytes], now: dict[str, bytes], after: dict[str, bytes], out: str
) -> None:
    """Check the state after a kill: each file is an old or a new file, and a dataset file is valid."""
    for name, data in _visible(now).items():
        is_unlisted = name.endswith(".index") and "out.json" not in now  # a writer rewrites its sidecars at the end
        assert data in (before.get(name), after.get(name)) or is_unlisted, name
    if job.keeps_old:
        kept = [name for name in before if name not in ("out.json", "out.skipped") and not name.startswith(".")]
        assert {name: now.get(name) for name in kept} == {name: before[name] for name in kept}
        assert "out.json" in now
    if "out.json" in now and ".out.replacing" not in now and job.is_sound:
        assert now["out.json"] in (before.get("out.json"), after["out.json"])
        unlisted = {"shard-extra", "sidecar-extra"} if job.keeps_old else set()
        assert {*verify(f"{out}/out.json", workers=0).counts} <= unlisted
    if ".out.replacing" in now:
        assert now[".out.replacing"] == after["out.json"]


_ALL = range(1000)


@pytest.mark.parametrize("calls", [(8, 27), pytest.param(_ALL, marks=pytest.mark.slow)], ids=["some", "all"])
@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_in_a_folder(job: Job, calls: Sequence[int], tmp_path: Path) -> None:
    """After a kill at any system call that changes the folder, the next run ends with the same bytes."""
    start, done = tmp_path / "start", tmp_path / "done"
    for folder in (start, done):
        folder.mkdir()
        job.prepare(str(folder), tmp_path)
    job.run(str(done), tmp_path, FIRST)
    before, after = read_tree(start), read_tree(done)
    assert {*after} == {*_visible(after)}, "temporary files remain"
    states = set()
    for call in calls:
        folder = tmp_path / f"at{call}"
        shutil.copytree(start, folder)
        out = str(folder)
        is_finished = _runs_to_the_end(job, out, tmp_path, call)
        now = read_tree(folder)
        _check_interrupted(job, before, now, after, out)
        states.add(("out.json" in now, ".out.replacing" in now))
        published = [name for name, data in _visible(now).items() if name.endswith(".tar") and data == after.get(name)]
        files = identity(folder)
        if not is_finished:
            job.run(out, tmp_path, AGAIN)
        if _visible(now) == after:  # nothing was left to do, so the second run may take no lock
            (folder / ".out.lock").unlink(missing_ok=True)
        assert read_tree(folder) == after, call
        if job.keeps_files:
            assert {name: identity(folder)[name] for name in published} == {name: files[name] for name in published}
        shutil.rmtree(folder)
        if is_finished:
            break
    assert is_finished or calls != _ALL
    if calls == _ALL and job.run is JOBS["remove"].run:
        assert states == {(True, False), (True, True), (False, True)}


# these jobs write to a store in the same steps as other jobs
_NOT_IN_STORES = {"create --part", "reshard", "copy of a grown dataset", "index", "ShardWriter overwrite"}
_RUN = """
import os, pathlib, sys
from tests.publish.jobs import JOBS
JOBS[sys.argv[1]].run(sys.argv[2], pathlib.Path(sys.argv[3]), 0)
os._exit(0)  # without deleting all modules, which takes longer than the run
"""
_PREFIX = "s3://b/x"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """Yield an empty bucket, which this process reaches as `s3://b`."""
    bucket = Bucket()
    with served(bucket):
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        for made in (store_access._make_store, http._make_pool):  # noqa: SLF001
            made.cache_clear()
        yield bucket
        for made in (store_access._make_store, http._make_pool):  # noqa: SLF001
            made.cache_clear()


def _run_until(bucket: Bucket, name: str, root: Path, write: int) -> bool:
    """Run a job in a process that is killed when it requests a write. Return whether the job finished."""
    bucket.hold(write)
    run = warm.Warm([name, _PREFIX, str(root)], code=_RUN, cwd=REPO, env={**ENVIRONMENT, **bucket.environment})
    while run.poll() is None and not bucket.is_held.wait(0.01):
        pass
    is_finished = not bucket.is_held.is_set()
    with suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)
    out, err = run.communicate(30)
    assert run.wait(0) == (0 if is_finished else -signal.SIGKILL), err.decode() + out.decode()
    bucket.hold(None)
    return is_finished


@pytest.mark.skipif(not warm.POSSIBLE, reason="needs processes that start warm")
@pytest.mark.parametrize("calls", [(4,), pytest.param(_ALL, marks=pytest.mark.slow)], ids=["one", "all"])
@pytest.mark.parametrize("name", [name for name in JOBS if name not in _NOT_IN_STORES])
def test_in_a_store(name: str, calls: Sequence[int], bucket: Bucket, tmp_path: Path) -> None:
    """After a kill at any write, the next run ends with the same bytes, whether or not the store copies objects."""
    job = JOBS[name]
    job.prepare(_PREFIX, tmp_path)
    start, before = dict(bucket.objects), bucket.below("x")
    job.run(_PREFIX, tmp_path, FIRST)
    after = bucket.below("x")
    assert {*after} == {*_visible(after)}, "temporary files remain"
    for call in calls:
        bucket.objects, bucket.copies = dict(start), call % 2 == 0
        is_finished = _run_until(bucket, name, tmp_path, call)
        _check_interrupted(job, before, now := bucket.below("x"), after, _PREFIX)
        if not is_finished:
            job.run(_PREFIX, tmp_path, AGAIN)
        if _visible(now) == after:  # nothing was left to do, so the second run may take no lock
            bucket.objects.pop("x/.out.lock", None)
        assert bucket.below("x") == after, call
        if name == "remove":
            assert not [key for key, data in bucket.objects.items() if b"a1a1" in data]
        if is_finished:
            break
    assert is_finished == (calls == _ALL)
