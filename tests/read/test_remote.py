"""Datasets over HTTP: the same samples, few concurrent requests, and named faults."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shardtool.errors import AccessRefused, CorruptShard, StoreFailed
from shardtool.read.dataset import open as open_data
from shardtool.storage.remote import requests, retry
from shardtool.verbs.cache.cache import Cache
from tests.helpers import shards
from tests.read.made_data import Made, make
from tests.servers.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.queues import Queue
    from pathlib import Path

    from shardtool.read.dataset import Dataset
    from tests.servers.faults import FaultyProxy
    from tests.servers.processes import Server

_ORDER: dict[str, Any] = {"seed": 3, "rank": 0, "world_size": 1}


@pytest.fixture(scope="module")
def proxy(http_files: Server, proxies: Callable[[Server], FaultyProxy]) -> FaultyProxy:
    """A server that injects faults."""
    return proxies(http_files)


@pytest.fixture(scope="module", params=["tar", "tfrecord"])
def made(request: pytest.FixtureRequest, proxy: FaultyProxy) -> tuple[Made, str]:
    """A dataset, and its address."""
    at = proxy.server.new_prefix()
    found = make(proxy.server.local(at), request.param)
    return found, f"{at}/{found.path.relative_to(proxy.server.local(at))}"


@pytest.fixture(scope="module")
def tar(proxy: FaultyProxy) -> tuple[Made, str]:
    """A dataset of tar shards, and its address."""
    at = proxy.server.new_prefix()
    found = make(proxy.server.local(at), "tar")
    return found, f"{at}/{found.path.relative_to(proxy.server.local(at))}"


@pytest.fixture(autouse=True)
def _harmless(proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy.set()
    monkeypatch.setattr(retry, "DEFAULT_POLICY", retry.RetryPolicy(first_wait_s=0.01, max_total_s=0.5))


def test_warnings_have_no_secrets(tar: tuple[Made, str], proxy: FaultyProxy, caplog: pytest.LogCaptureFixture) -> None:
    """A warning about a missing sidecar contains no password and no query of the dataset's address."""
    proxy.set(Fault("status", path=r"\.index", times=None, status=404))
    with caplog.at_level("WARNING", "shardtool"):
        assert open_data(f"{tar[1].replace('//', '//u:secret@')}?token=secret")[0] == tar[0].open()[0]
    assert "missing. The shard was scanned instead" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.slow
def test_samples_equal_local_ones(made: tuple[Made, str]) -> None:
    """In streams, batches and single reads, in the same order, with all options."""
    near, far = made
    for options in ({}, {"check": True}, {"metadata": True}):
        local, remote = near.open(**options), open_data(far, **options)  # type: ignore[call-overload]
        assert list(remote) == list(local)
        assert list(remote.stream(**_ORDER)) == list(local.stream(**_ORDER))
        numbers = np.random.default_rng(0).integers(0, len(local), 40)
        assert list(remote[numbers]) == list(local[numbers])
        assert remote[7] == local[7]
        assert remote[str(local[7]["__key__"])] == local[7]
    assert list(near.open().fields("jpg")) == list(open_data(far).fields("jpg"))


def test_requests_are_merged_and_concurrent(tar: tuple[Made, str], proxy: FaultyProxy) -> None:
    """Neighbouring payloads are one request; shards are requested concurrently."""
    data = open_data(tar[1])
    list(data)
    proxy.set(delay_s=0.1)
    assert len(list(data[np.arange(len(data))])) == len(data)
    log = proxy.log()
    assert len(log.asked) == log.most == len(data.reader.catalog.shards)


def test_shards_without_sidecars_are_scanned(tar: tuple[Made, str], proxy: FaultyProxy) -> None:
    """Plain and compressed shards are scanned, also if a pattern names them."""
    import gzip

    at = proxy.server.new_prefix()
    for number, path in enumerate(sorted(tar[0].path.parent.glob("*.tar"))):
        (proxy.server.local(at) / f"x-{number}.tar").write_bytes(path.read_bytes())
        (proxy.server.local(at) / f"z-{number}.tar.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
    last = len(list(proxy.server.local(at).glob("x-*"))) - 1
    wanted = [{name: value for name, value in sample.items() if name != "cls"} for sample in tar[0].samples]
    for name in (f"x-{{0..{last}}}.tar", f"z-{{0..{last}}}.tar.gz"):
        found = [
            {name: value for name, value in sample.items() if name != "cls"} for sample in open_data(f"{at}/{name}")
        ]
        assert found == wanted


@pytest.mark.parametrize("do", ["status", "cut", "reset", "lost", "refuse"])
def test_transient_faults_are_retried(do: str, tar: tuple[Made, str], proxy: FaultyProxy) -> None:
    """After an error, truncated or lost response, the samples are the same."""
    data = open_data(tar[1])
    proxy.set(Fault(do, path="tar", times=None, chance=0.3), seed=4)
    retry.DEFAULT_POLICY = retry.RetryPolicy(first_wait_s=0.01, max_total_s=5)
    assert list(data.stream(**_ORDER)) == list(tar[0].open().stream(**_ORDER))
    assert any(request.fault for request in proxy.log().asked)


def test_no_scan_starts_after_a_refusal(
    tar: tuple[Made, str], proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a shard is refused, running scans finish and no other scan starts."""
    data = open_data(tar[1])
    names = [shard.name for shard in data.reader.catalog.shards]
    with ThreadPoolExecutor(2) as threads:  # instead of AT_ONCE
        monkeypatch.setattr(requests, "caller_threads", lambda: threads)
        proxy.set(
            Fault("status", path=names[0], headers={"Retry-After": "1"}),  # only the other thread runs for a second
            Fault("status", path=r"\.tar", times=None, status=403),
        )
        with pytest.raises(AccessRefused, match=r"data-000\.tar|data-001\.tar"):
            list(data[np.arange(len(data))])
    asked = {request.path.rpartition("/")[2] for request in proxy.log().asked}
    assert asked == set(names[:2]), names


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_failing_server_is_an_error(on_error: str, tar: tuple[Made, str], proxy: FaultyProxy) -> None:
    """A server that keeps failing is named with the shard, and is not skipped as damage."""
    data = open_data(tar[1], on_error=on_error)  # type: ignore[call-overload]
    shard = data.reader.catalog.shards[1]
    proxy.set(Fault("status", path=shard.name, times=None))
    with pytest.raises(StoreFailed, match=rf"{shard.path}: the server returned 503 \([0-9]+ attempts"):
        list(data.stream(**_ORDER))
    proxy.set(Fault("status", path=shard.name, times=None, status=403))
    with pytest.raises(AccessRefused, match=shard.name):
        list(data.stream(**_ORDER))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault("etag", path="tar", first=2, times=None), "changed while it was read"),
        (Fault("shift", path="tar", times=None), "bytes"),
        (Fault("whole", path="tar", times=None), "does not support range requests.*shardtool copy"),
        (Fault("length", path="tar", times=None), "bytes; expected"),
    ],
)
def test_wrong_bytes_are_detected(fault: Fault, message: str, tar: tuple[Made, str], proxy: FaultyProxy) -> None:
    """Other bytes than requested, or of another version, are an error."""
    data = open_data(tar[1])
    list(data[:1])
    proxy.set(fault)
    with pytest.raises((CorruptShard, StoreFailed), match=message):
        [list(data.stream(**_ORDER)) for _ in range(3)]


def test_a_shard_of_another_size_is_damaged(tar: tuple[Made, str], proxy: FaultyProxy) -> None:
    """A shard with another size, or a deleted one, costs its samples if damage is skipped."""
    at = proxy.server.new_prefix()
    folder = proxy.server.local(at)
    for path in tar[0].path.parent.iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    data = open_data(f"{at}/{tar[0].path.name}", on_error="skip")
    catalog = data.reader.catalog
    (folder / catalog.shards[0].name).write_bytes(b"short")
    (folder / catalog.shards[1].name).unlink()
    rest = tar[0].samples[int(catalog.first_samples[2]) :]
    assert [sample["__key__"] for sample in data] == [sample["__key__"] for sample in rest]
    reasons = " ".join(data.skipped.reasons)
    assert "5 bytes" in reasons
    assert "no such object" in reasons


def _read_in_child(data: Dataset, found: Queue[object]) -> None:
    try:
        found.put([sample["__key__"] for sample in data.stream(**_ORDER)])
    except Exception as error:  # noqa: BLE001 - the test compares any error
        found.put(repr(error))


@pytest.mark.parametrize("busy", [False, True])
def test_a_forked_process_reads(tar: tuple[Made, str], *, busy: bool) -> None:
    """Forked after or during reads in its parent, it reads the same samples."""
    data, stop = open_data(tar[1]), threading.Event()
    wanted = [sample["__key__"] for sample in data.stream(**_ORDER)]

    def read() -> None:
        while not stop.is_set():
            list(data[np.arange(len(data))])

    threads = [threading.Thread(target=read) for _ in range(2 if busy else 0)]
    for thread in threads:
        thread.start()
    fork = multiprocessing.get_context("fork")
    found: Queue[object] = fork.Queue()
    children = [fork.Process(target=_read_in_child, args=(data, found)) for _ in range(2)]
    try:
        for child in children:
            child.start()
        assert [found.get(timeout=60) for _ in children] == [wanted, wanted]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        for child in children:
            child.join(10)
            child.kill()


def test_a_cache_requests_each_shard_once(tar: tuple[Made, str], proxy: FaultyProxy, tmp_path: Path) -> None:
    """Also for later processes; a new version is requested again."""
    at = proxy.server.new_prefix()
    folder, wanted = proxy.server.local(at), list(tar[0].open().stream(**_ORDER))
    for path in tar[0].path.parent.iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    cache = Cache(tmp_path / "cache", max_bytes="100MB")
    assert list(open_data(f"{at}/data.json", cache=cache).stream(**_ORDER)) == wanted
    proxy.set()
    assert list(open_data(f"{at}/data.json", cache=cache).stream(**_ORDER)) == wanted
    assert all(
        request.sent <= 1 for request in proxy.log().asked if ".tar" in request.path
    )  # only their sizes are requested
    (folder / "alone.tar").write_bytes(shards(folder)[0].read_bytes())
    first = [sample["__key__"] for sample in open_data(f"{at}/alone.tar", cache=cache)]
    (folder / "alone.tar").write_bytes(shards(folder)[2].read_bytes())
    again = Cache(tmp_path / "cache", max_bytes="100MB")
    assert [sample["__key__"] for sample in open_data(f"{at}/alone.tar", cache=again)] != first


def test_pickle(tar: tuple[Made, str]) -> None:
    """A pickled dataset reads the same samples, and contains no secrets."""
    at, _, rest = tar[1].partition("://")
    data = open_data(f"{at}://{rest}?token=sesame")
    assert data[3] == tar[0].open()[3]
    again: Dataset = pickle.loads(pickle.dumps(data))  # noqa: S301 - our own
    assert again[3] == data[3]
    assert "sesame" not in repr(data) + repr(data.reader.catalog.name)


def test_divided_streams_read_each_sample_once(tar: tuple[Made, str]) -> None:
    """Ranks and workers read the same samples as from local files."""
    near, far = tar[0].open(), open_data(tar[1])
    for rank in range(2):
        local, remote = (
            data.stream(seed=5, rank=rank, world_size=2, ends="uneven").worker_stream(1, 2, 4, 0)
            for data in (near, far)
        )
        assert list(local) == list(remote)


def test_a_folder_named_like_a_scheme(tmp_path: Path) -> None:
    """A folder named `http:` is a path."""
    folder = tmp_path / "http:"
    folder.mkdir()
    assert len(list(make(folder, "tar").open())) > 0
