"""Datasets in stores and behind nginx, read for training and by verbs: the same samples, in every kind of worker."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import shardtool
from shardtool import CreateOptions, InvalidRequest, VerifyOptions, create, verify
from shardtool.errors import CorruptShard, StoreFailed
from shardtool.storage import paths
from shardtool.storage.remote import buckets, retry
from tests.clients.packed import PHOTOS
from tests.servers.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.queues import Queue
    from pathlib import Path

    from tests.servers.faults import FaultyProxy
    from tests.servers.processes import Server

    Proxies = Callable[[Server], FaultyProxy]

pytestmark = pytest.mark.clients
STORES = ("moto", "rclone", "azurite", "gcs")
_ORDER: dict[str, Any] = {"seed": 1, "rank": 0, "world_size": 1}


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample photographs in about ten shards, whose names need escaping."""
    folder = tmp_path_factory.mktemp("remote-reading")
    create(PHOTOS, f"{folder}/a b#%ü-{{000..}}.tar", CreateOptions(max_size="300kB", label_from_folder=True))
    return folder


@pytest.fixture(params=STORES)
def stored(
    request: pytest.FixtureRequest, made: Path, proxies: Proxies, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, FaultyProxy]:
    """Give the address of a folder of a store with the dataset, behind the proxy."""
    proxy = proxies(request.getfixturevalue(request.param))
    for name, value in proxy.server.environment.items():
        monkeypatch.setenv(name, value)
    at = proxy.server.new_prefix()
    for path in made.iterdir():
        buckets.put_object(paths.join(at, path.name), path.read_bytes())
    return at, proxy


def test_all_ways_to_name_a_dataset(stored: tuple[str, FaultyProxy], made: Path) -> None:
    """A folder, a dataset file, a glob and patterns refer to the same samples as the local folder."""
    wanted = list(shardtool.open(made).stream(**_ORDER))
    for name in ("", "/a b#%ü.json", "/a b#%ü-*.tar", "/a b#%ü-{000..}.tar", "/a b#%ü-{000..009}.tar"):
        assert list(shardtool.open(f"{stored[0]}{name}").stream(**_ORDER)) == wanted, name
    assert verify(stored[0], VerifyOptions(workers=1)).sound


def _read_in_child(data: Any, at: str, found: Queue[object]) -> None:
    try:
        found.put([one["__key__"] for one in data.stream(**_ORDER)])
        found.put(len(shardtool.open(f"{at}/a b#%ü.json")))
        shardtool.open(at)
    except InvalidRequest as error:
        found.put(str(error))
    else:
        found.put("listed")


@pytest.mark.parametrize(("method", "listing"), [("fork", "forked process"), ("spawn", "listed")])
def test_children_read(method: str, listing: str, stored: tuple[str, FaultyProxy]) -> None:
    """Child processes can read a dataset that the parent has opened, and open it again; forked ones cannot list."""
    data = shardtool.open(stored[0])
    wanted = [one["__key__"] for one in data.stream(**_ORDER)]
    context = multiprocessing.get_context(method)
    found: Queue[object] = context.Queue()
    child = context.Process(  # type: ignore[attr-defined]
        target=_read_in_child, args=(data, stored[0], found)
    )
    child.start()
    try:
        assert found.get(timeout=60) == wanted
        assert found.get(timeout=60) == len(data)
        assert listing in str(found.get(timeout=60))
    finally:
        child.join(10)
        child.kill()


def test_faults_are_survived_or_named(stored: tuple[str, FaultyProxy], monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that fail now and then are made again; an object that changes is named."""
    at, proxy = stored
    monkeypatch.setattr(retry, "DEFAULT_POLICY", retry.RetryPolicy(first_wait_s=0.01, max_total_s=5))
    data = shardtool.open(f"{at}/a b#%ü.json")
    wanted = list(data.stream(**_ORDER))
    harm = [Fault(do, method="GET", times=None, chance=0.1) for do in ("status", "cut", "reset")]
    proxy.set(*harm, seed=7)
    assert list(data.stream(**_ORDER)) == wanted
    proxy.set()
    name = data.reader.catalog.shards[0].name
    buckets.put_object(paths.join(at, name), b"\0" * 300_000)
    with pytest.raises(CorruptShard, match=name):
        list(data.stream(**_ORDER))


def test_ways_of_nginx(nginx_ways: dict[str, Server], made: Path) -> None:
    """Nginx with compression is read; for nginx without ranges, the error says so and what to do."""
    at = nginx_ways["plain"].new_prefix()
    for path in made.iterdir():
        (nginx_ways["plain"].local(at) / path.name).write_bytes(path.read_bytes())
    name = "a%20b%23%25%C3%BC.json"
    wanted = list(shardtool.open(made).stream(**_ORDER))
    for way, server in nginx_ways.items():
        data = shardtool.open(f"{at.replace(nginx_ways['plain'].bucket, server.bucket)}/{name}")
        if way == "norange":
            with pytest.raises(StoreFailed, match=r"does not support range requests.*shardtool copy"):
                data[[0, 50]]
        else:
            assert list(data.stream(**_ORDER)) == wanted


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_loader_workers(method: str, http_files: Server, made: Path) -> None:
    """Workers of a DataLoader read the same epoch however they are started, also where this process has read before."""
    data = pytest.importorskip("torch.utils.data")
    from shardtool.torch import MapDataset, StreamDataset

    at = http_files.new_prefix()
    for path in made.iterdir():
        (http_files.local(at) / path.name).write_bytes(path.read_bytes())
    far = shardtool.open(f"{at}/a%20b%23%25%C3%BC.json")
    wanted = sorted(str(one["__key__"]) for one in far.stream(**_ORDER))
    of_stream = StreamDataset(far.stream(**_ORDER), batch_size=4)
    for one in (of_stream, MapDataset(far))[: 2 if method == "fork" else 1]:  # the others take seconds to start
        loader = data.DataLoader(one, 4, num_workers=2, multiprocessing_context=method, collate_fn=list)
        assert sorted(str(sample["__key__"]) for batch in loader for sample in batch) == wanted
    assert len(list(far[np.arange(len(far))])) == len(wanted)
