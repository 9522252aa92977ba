"""Datasets read from stores and from the web: the samples of local files, or an error that names the object."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

import shardtool
from shardtool.errors import AccessRefused, ShardError
from shardtool.storage.remote import address, buckets, requests, retry
from tests.clients.packed import PHOTOS
from tests.clients.remote import REPO, local, start, stored, tool
from tests.servers.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from tests.servers.faults import FaultyProxy
    from tests.servers.processes import Server

pytestmark = pytest.mark.clients
OPTIONS = ("--max-size", "500kB", "--label-from-folder", "--workers", "2")
STORES = ["moto", "rclone", "azurite", "gcs"]
WEB = ["http_files", "nginx"]
ODD = "a b#ü?%"


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of a dataset."""
    folder = tmp_path_factory.mktemp("dataset")
    code, text = tool("create", PHOTOS, f"{folder}/out-{{000000..}}.tar", *OPTIONS)
    assert code == 0, text
    return folder


@pytest.fixture(scope="session")
def samples(dataset: Path) -> list[dict[str, object]]:
    """Give its samples."""
    return _all(shardtool.open(f"{dataset}/out.json"))


@pytest.fixture(params=[*STORES, *WEB])
def proxy(
    request: pytest.FixtureRequest, use: Callable[[Server], Server], proxies: Callable[[Server], FaultyProxy]
) -> FaultyProxy:
    """Give each server, behind the proxy."""
    before = proxies(request.getfixturevalue(request.param))
    use(before.server)
    return before


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait little between tries, and for an answer."""
    monkeypatch.setattr(
        retry, "DEFAULT_POLICY", retry.RetryPolicy(first_wait_s=0.01, max_total_s=20, speed_window_s=0.5)
    )


def _all(samples: Iterable[Mapping[str, object]]) -> list[dict[str, object]]:
    return [dict(sample) for sample in samples]


def _put(server: Server, files: Mapping[str, bytes]) -> str:
    """Put files under a prefix of an odd name; return its address."""
    at = server.new_prefix()
    if not server.bucket.startswith("http"):
        for name, data in files.items():
            buckets.put_object(address.join_address(f"{at}/{ODD}", name), data)
        return f"{at}/{ODD}"
    (folder := server.local(at) / ODD).mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return f"{at}/{quote(ODD)}"


def test_same_samples(proxy: FaultyProxy, dataset: Path, samples: list[dict[str, object]]) -> None:
    """A dataset of a store or of the web has the samples of the same files in a folder, in order and by number."""
    at = _put(proxy.server, local(dataset))
    found = shardtool.open(f"{at}/out.json")
    assert _all(found) == samples
    assert [dict(found[number]) for number in (97, 3, 50)] == [samples[number] for number in (97, 3, 50)]
    by_pattern = shardtool.open(f"{at}/out-{{000000..000005}}.tar")
    assert _all(by_pattern) == samples


def test_faults_are_survived(proxy: FaultyProxy, dataset: Path, samples: list[dict[str, object]]) -> None:
    """Reading goes on where a server fails now and then."""
    at = _put(proxy.server, local(dataset))
    proxy.set(
        Fault("status", path="out.json", headers={"Retry-After": "1"}),
        Fault("cut", path=r"000000\.tar"),
        Fault("reset", path=r"000001\.tar"),
        Fault("lost", path=r"000002\.tar", times=2),
        Fault("stall", path=r"000003\.tar"),
        Fault("refuse", path=r"000005\.tar"),
        Fault("status", path=r"\.index", status=500, times=3),
    )
    assert _all(shardtool.open(f"{at}/out.json")) == samples
    assert len({one.fault for one in proxy.log().asked if one.fault}) >= 6


def test_verify_under_faults(proxy: FaultyProxy, dataset: Path) -> None:
    """`verify` finds a dataset sound where the server fails, and damaged where one bit of a shard is another."""
    at = _put(proxy.server, local(dataset))
    proxy.set(Fault("cut", path=r"000001\.tar", first=2), Fault("status", times=3, chance=0.3), seed=1)
    code, text = tool("verify", f"{at}/out.json", server=proxy.server)
    assert (code, text.rstrip().endswith("valid") and "not valid" not in text) == (0, True), text
    proxy.set(Fault("flip", path=r"000003\.tar", at=5000, times=None))
    code, text = tool("verify", f"{at}/out.json", server=proxy.server)
    assert (code, "out-000003.tar" in text) == (3, True), text


def test_no_request_after_a_refusal(proxy: FaultyProxy, dataset: Path) -> None:
    """Where permission ends in the middle of reading, the error names the shard, and each thread asks once at most."""
    at = _put(proxy.server, local(dataset))
    found = shardtool.open(f"{at}/out.json")
    proxy.set(Fault("status", status=403, path=r"\.tar", times=None))
    with pytest.raises(AccessRefused, match=r"out-00000\d\.tar"):
        _all(found)
    requests.caller_threads().shutdown()  # requests in progress have finished
    requests._thread_pool.cache_clear()  # noqa: SLF001
    asked = [one.path.partition("?")[0] for one in proxy.log().asked if one.fault]
    assert 1 <= len(asked) <= requests.MAX_CONCURRENT_REQUESTS
    assert len(asked) == len(set(asked))
    for words in (("verify", f"{at}/out.json"), ("inspect", f"{at}/out.json")):
        proxy.set(Fault("status", status=403, times=None))
        code, text = tool(*words, server=proxy.server)
        assert (code, f"{at}/out" in text) == (7, True), text
        assert len(proxy.log().asked) == 1


@pytest.mark.parametrize("fault", [Fault("whole", times=None), Fault("shift", times=None), Fault("gzip", times=None)])
def test_wrong_ranges_are_noticed(
    fault: Fault,
    http_files: Server,
    proxies: Callable[[Server], FaultyProxy],
    use: Callable[[Server], Server],
    dataset: Path,
) -> None:
    """A server that returns other bytes than requested is named; these bytes never become a sample."""
    proxy = proxies(http_files)
    at = _put(use(proxy.server), local(dataset))
    found = shardtool.open(f"{at}/out.json")
    proxy.set(fault)
    with pytest.raises((ShardError, OSError), match="out-000002"):
        dict(found[40])


def test_a_dataset_that_is_replaced(
    moto: Server, use: Callable[[Server], Server], dataset: Path, samples: list[dict[str, object]]
) -> None:
    """A shard that was replaced after the dataset was opened is an error that names it."""
    at = _put(use(moto), local(dataset))
    found = shardtool.open(f"{at}/out.json")
    assert dict(found[0]) == samples[0]
    shard = (dataset / "out-000000.tar").read_bytes()
    buckets.put_object(f"{at}/out-000000.tar", shard[:-1024] + b"\1" * 1024)
    with pytest.raises((ShardError, OSError), match="out-000000"):
        dict(found[1])


_FORKED = """
import os, sys, threading, shardtool
found = shardtool.open(sys.argv[1])
first = [dict(found[number]) for number in range(4)]
busy = [threading.Thread(target=lambda: [dict(one) for one in found], daemon=True) for _ in range(4)]
for thread in busy:
    thread.start()
children = []
for _ in range(4):
    if not (child := os.fork()):
        again = shardtool.open(sys.argv[1])
        same = all([dict(one[number]) for number in range(4)] == first for one in (found, again))
        os._exit(0 if same else 1)
    children.append(child)
print([os.waitpid(child, 0)[1] for child in children])
os._exit(0)
"""


@pytest.mark.parametrize("name", [*STORES, "http_files"])
def test_forked_children_read(
    name: str, request: pytest.FixtureRequest, use: Callable[[Server], Server], dataset: Path
) -> None:
    """A process that is forked while threads of its parent read, reads by itself, by the same dataset and a new one."""
    at = _put(use(request.getfixturevalue(name)), local(dataset))
    command = [sys.executable, "-W", "ignore", "-c", _FORKED, f"{at}/out.json"]
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("[0, 0, 0, 0]\n", 0), done.stderr


def test_copy_that_is_killed(
    moto: Server,
    azurite: Server,
    use: Callable[[Server], Server],
    proxies: Callable[[Server], FaultyProxy],
    dataset: Path,
) -> None:
    """After a kill, a copy between stores has no dataset file; the next copy completes it."""
    use(azurite)
    proxy = proxies(moto)
    at = _put(use(proxy.server), local(dataset))
    to = f"{azurite.new_prefix()}/copied"
    proxy.set(Fault("stall", path=r"000004\.tar", times=None))
    run = start("copy", f"{at}/out.json", f"{to}/")
    with run:
        while not any(one.fault for one in proxy.log().asked):
            assert run.poll() is None
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate(timeout=60)
    left = {name: data for name, data in stored(to).items() if not name.startswith(".")}
    assert "out.json" not in left
    assert {name: data for name, data in local(dataset).items() if name in left} == left
    proxy.set()
    code, text = tool("copy", f"{at}/out.json", f"{to}/", server=azurite)
    assert code == 0, text
    assert stored(to) == local(dataset)


@pytest.mark.parametrize("name", STORES)
def test_a_source_in_a_store(
    name: str, request: pytest.FixtureRequest, use: Callable[[Server], Server], tmp_path: Path
) -> None:
    """A folder tree in a store gives the same shards as on a disk, for any names."""
    server = use(request.getfixturevalue(name))
    files = {
        f"{ODD}/{number:02}.{ending}": f"{number} {ending}".encode() * 99
        for number in range(7)
        for ending in ("jpg", "txt")
    }
    files |= {"plain/x.jpg": b"", "plain/x.txt": b"of an empty one", "日本語/写真.jpg": b"1", "日本語/写真.txt": b"2"}
    at = server.new_prefix()
    for path, data in files.items():
        buckets.put_object(address.join_address(at, path), data)
        (tmp_path / "tree" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / path).write_bytes(data)
    for source, folder in ((tmp_path / "tree", "here"), (at, "there")):
        code, text = tool(
            "create", source, f"{tmp_path}/{folder}/out-{{000000..}}.tar", "--max-count", "4", server=server
        )
        assert code == 0, text
    here, there = local(tmp_path / "here"), local(tmp_path / "there")
    assert {one: data for one, data in here.items() if one.endswith(".tar")} == {
        one: data for one, data in there.items() if one.endswith(".tar")
    }
    code, text = tool("create", f"{at}/nothing", f"{tmp_path}/none/out-{{000000..}}.tar", server=server)
    assert (code, f"{at}/nothing" in text) == (2, True), text
