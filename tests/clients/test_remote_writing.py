"""Datasets that are written to stores: the same bytes as in a folder, whole or not at all, by one run at a time."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from shardtool import CreateOptions, create, verify
from shardtool.storage import places
from shardtool.storage.remote import lock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.servers.processes import Server

pytestmark = pytest.mark.clients
STORES = ("moto", "rclone", "azurite", "gcs")
_SAMPLES = 60


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of samples of 20 KB, with a few that are larger than a buffer."""
    folder, bytes_of = tmp_path_factory.mktemp("writing"), random.Random(1)  # noqa: S311 - no secret
    for number in range(_SAMPLES):
        size = 20_000 if number % 20 else 3_000_000
        (folder / f"{number:03}.jpg").write_bytes(bytes_of.randbytes(size))
        (folder / f"{number:03}.cls").write_text(str(number % 7))
    return folder


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> Callable[[Server], Server]:
    """Return what makes this process reach a server, and none of those before."""

    def reach(server: Server) -> Server:
        for name in [*os.environ]:
            if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "SHARDTOOL_")):
                monkeypatch.delenv(name)
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        if server.folder is not None:
            monkeypatch.setenv(lock.UNLOCKED, "1")  # rclone takes no conditions
        return server

    return reach


@pytest.fixture
def store(request: pytest.FixtureRequest, reached: Callable[[Server], Server]) -> Server:
    """A store, reached by this process; moto, where the test does not say which."""
    return reached(request.getfixturevalue(getattr(request, "param", "moto")))


def _files(prefix: str) -> dict[str, bytes]:
    return {name: places.read_small(places.join(prefix, name)) for name in places.list_folder(prefix)}


def _local(folder: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in folder.iterdir()}


@pytest.mark.parametrize("store", STORES, indirect=True)
@pytest.mark.parametrize("ending", ["tar", "tfrecord"])
def test_same_bytes(store: Server, source: Path, tmp_path: Path, ending: str) -> None:
    """All files of a dataset are those that a run to a folder writes, and nothing else stays, in names of any kind."""
    prefix, pattern = f"{store.new_prefix()}/a b#%20ü+&", f"out é-{{000000..}}.{ending}"
    options = CreateOptions(max_size="2MB", oversize="alone", workers=2)
    create(source, f"{tmp_path}/{pattern}", options)
    made = create(source, f"{prefix}/{pattern}", options)
    assert _files(prefix) == _local(tmp_path)
    assert made.samples == _SAMPLES
    assert verify(made.dataset_file).sound
