"""`ShardWriter` to stores: the bytes of a folder, whole or not at all, and resumed to the same after any kill."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import shardtool
from shardtool import InvalidRequest, OutputExists, ShardWriter, merge, verify
from shardtool.errors import StoreFailed
from shardtool.storage import files, folders, paths
from shardtool.storage.files import list_folder
from shardtool.storage.remote import buckets, lock, retry
from tests.faults.helpers import settles
from tests.servers.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.servers.faults import FaultyProxy
    from tests.servers.processes import Server

    Proxies = Callable[[Server], FaultyProxy]

pytestmark = pytest.mark.clients
_REPO, _PATTERN = Path(__file__).resolve().parents[2], "out-{000000..}"
_SAMPLES = 23
_KILLED = "import sys; from tests.clients.test_remote_writer import write; write(sys.argv[1])"


def write(pattern: str, samples: int = _SAMPLES, **options: Any) -> ShardWriter:
    """Write samples of 20 KB, four in a shard, from where a writer that was killed has stopped."""
    bytes_of = random.Random(1)  # noqa: S311 - no secret
    with ShardWriter(pattern, max_count=4, on_error="skip", **options) as writer:
        for number in range(samples):
            key, data = f"{number:03}", bytes_of.randbytes(20_000)
            if writer.last_key is None or writer.last_key < key:
                writer.write(
                    {"__key__": key, "jpg": data, "cls": number}, {"number": number if number < 10 else number / 2}
                )
    return writer


def _files(prefix: str) -> dict[str, bytes]:
    return {name: files.read_small(paths.join(prefix, name)) for name in list_folder(prefix)}


@pytest.fixture
def store(request: pytest.FixtureRequest, use: Callable[[Server], Server], monkeypatch: pytest.MonkeyPatch) -> Server:
    """A store that this process can use; moto by default."""
    server: Server = request.getfixturevalue(getattr(request, "param", "moto"))
    if server.folder is not None:
        monkeypatch.setenv(lock.UNLOCKED_VARIABLE, "1")  # rclone takes no conditions
    return use(server)


@pytest.fixture(scope="session")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a writer to a folder."""
    folder = tmp_path_factory.mktemp("wanted")
    write(f"{folder}/{_PATTERN}.tar")
    return {one.name: one.read_bytes() for one in folder.iterdir()}


@pytest.mark.parametrize("store", ["moto", "rclone", "azurite", "gcs"], indirect=True)
@pytest.mark.parametrize("ending", ["tar", "tfrecord"])
def test_same_bytes(store: Server, tmp_path: Path, ending: str) -> None:
    """All files equal those of a local writer, nothing else remains, and an existing dataset is refused."""
    prefix = f"{store.new_prefix()}/a b#%20ü+&"
    write(f"{tmp_path}/{_PATTERN}.{ending}")
    writer = write(f"{prefix}/{_PATTERN}.{ending}")
    assert _files(prefix) == {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    assert verify(writer.dataset_file).samples == _SAMPLES
    with pytest.raises(OutputExists, match="already exist"):
        write(f"{prefix}/{_PATTERN}.{ending}")
    assert write(f"{prefix}/{_PATTERN}.{ending}", resume=True).samples == _SAMPLES
    with ShardWriter(f"{prefix}/{_PATTERN}.{ending}", overwrite=True) as again:
        again.write({"__key__": "a", "txt": "one"})
    assert len(_files(prefix)) == 3
    assert len(shardtool.open(again.dataset_file)) == 1


@pytest.mark.parametrize("puts", range(1, 34, 3))
def test_killed_and_resumed(store: Server, wanted: dict[str, bytes], proxies: Proxies, puts: int) -> None:
    """After SIGKILL at any request each shard is whole, there is no dataset file, and another writer makes the same."""
    prefix, proxy = store.new_prefix(), proxies(store)
    proxy.set(
        Fault("hang", method="PUT|POST|DELETE", first=puts)
    )  # the store has done it, and the writer does not know
    command = [sys.executable, "-c", _KILLED, f"{prefix}/{_PATTERN}.tar"]
    environment = {**os.environ, **proxy.server.environment, "PYTHONPATH": str(_REPO)}
    with subprocess.Popen(command, env=environment, cwd=_REPO) as run:
        assert settles(lambda: run.poll() is not None or any(one.fault for one in proxy.log().asked))
        run.kill()
    left = _files(prefix)
    assert {name: left[name] for name in left if name.endswith(".tar")}.items() <= wanted.items()
    assert "out.json" not in left or left["out.json"] == wanted["out.json"]
    write(f"{prefix}/{_PATTERN}.tar", resume=True)
    assert _files(prefix) == wanted


def test_resume_reads_no_shard(
    store: Server, wanted: dict[str, bytes], proxies: Proxies, use: Callable[[Server], Server]
) -> None:
    """Shards with an unchanged version in the store are not read; a changed shard is read and written again."""
    prefix, proxy = store.new_prefix(), proxies(store)
    writer = ShardWriter(f"{prefix}/{_PATTERN}.tar", max_count=4, on_error="skip")
    for number, sample in enumerate(shardtool.open(_dataset(store, wanted))):
        if number < 10:
            writer.write({**sample, "cls": number}, {"number": number})
    writer.abandon()
    use(proxy.server)
    proxy.set()
    writer = ShardWriter(f"{prefix}/{_PATTERN}.tar", max_count=4, on_error="skip", resume=True)
    assert writer.samples == 8
    writer.abandon()
    assert not [one for one in proxy.log().asked if one.method == "GET" and ".tar?" in one.path and one.sent > 512]
    buckets.put_object(f"{prefix}/out-000001.tar", b"x" * 100)
    assert write(f"{prefix}/{_PATTERN}.tar", resume=True).notes[0].startswith("out-000001.tar differs from the journal")
    assert _files(prefix) == wanted


def _dataset(store: Server, files: dict[str, bytes]) -> str:
    folder = folders.open_folder(store.new_prefix())
    folder.publish(*(folder.stage_bytes(name, data) for name, data in files.items()))
    return f"{folder.path}/out.json"


_FAULTS = [
    Fault("status", status=503, headers={"Retry-After": "0"}, times=2, first=3),
    Fault("status", status=500, method="PUT", times=2, first=4),
    Fault("lost", method="PUT", path=r"\.tar", times=2),
    Fault("lost", method="PUT", path="journal", times=2),
    Fault("lost", method="PUT", path="lock", times=1),
    Fault("reset", method="PUT", path=r"\.tar", times=2),
    Fault("upload", method="PUT", path=r"\.tar", times=2),
]


@pytest.mark.parametrize("fault", _FAULTS, ids=lambda fault: f"{fault.do}-{fault.path.strip(chr(92))}")
def test_faults(
    store: Server, wanted: dict[str, bytes], proxies: Proxies, use: Callable[[Server], Server], fault: Fault,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """What passes is survived: answers that are lost, a store that is busy, connections that end."""
    monkeypatch.setattr(retry, "_FIRST_S", 0.01, raising=False)
    prefix, proxy = store.new_prefix(), proxies(store)
    use(proxy.server)
    proxy.set(fault)
    write(f"{prefix}/{_PATTERN}.tar")
    assert any(one.fault for one in proxy.log().asked)
    assert _files(prefix) == wanted


def test_refused(store: Server, wanted: dict[str, bytes], proxies: Proxies, use: Callable[[Server], Server]) -> None:
    """After a refusal, the store receives no more requests; the next writer of this machine continues immediately."""
    prefix, proxy = store.new_prefix(), proxies(store)
    use(proxy.server)
    proxy.set(Fault("status", status=403, method="PUT", path=r"000002\.tar\?", times=None))
    with pytest.raises(StoreFailed):
        write(f"{prefix}/{_PATTERN}.tar")
    assert proxy.log().asked[-1].status == 403
    use(store)
    assert write(f"{prefix}/{_PATTERN}.tar", resume=True).samples == _SAMPLES
    assert _files(prefix) == wanted


def test_parts_and_their_merge(store: Server, tmp_path: Path) -> None:
    """Parts write side by side under a prefix, and become one dataset, as in a folder."""
    for where in (str(tmp_path), prefix := store.new_prefix()):
        for part in range(2):
            with ShardWriter(f"{where}/{_PATTERN}.tar", part=part, parts=2, max_count=4) as writer:
                for number in range(part, 20, 2):
                    writer.write({"__key__": f"{number:03}", "txt": f"text {number}"})
        merge(f"{where}/{_PATTERN}.tar")
    assert _files(prefix) == {one.name: one.read_bytes() for one in tmp_path.iterdir()}


def test_one_writer_at_a_time(store: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second writer is refused, one whose lock was taken publishes nothing more, and no shard is over a request."""
    pattern = f"{store.new_prefix()}/{_PATTERN}.tar"
    with ShardWriter(pattern, max_count=1) as writer:
        writer.write({"__key__": "a", "txt": "one"})
        with pytest.raises(OutputExists, match=f"process {os.getpid()}"):
            ShardWriter(pattern)
        before = _files(os.path.dirname(pattern))
        with monkeypatch.context() as changed:
            changed.setattr(lock, "LEASE_S", -1)
            with pytest.raises(OutputExists, match="lock"):  # noqa: PT012 - the second shard is the first to be there
                writer.write({"__key__": "b", "txt": "two"})
                writer.write({"__key__": "c", "txt": "three"})
        assert _files(os.path.dirname(pattern)).keys() <= before.keys()
    with pytest.raises(InvalidRequest, match="the limit of the store"):
        ShardWriter(pattern, max_size="6GB")


def test_an_overwrite_that_ends_early(store: Server, wanted: dict[str, bytes]) -> None:
    """An interrupted overwrite leaves complete shards, and no dataset file; only another overwrite continues."""
    folder = os.path.dirname(_dataset(store, wanted))
    writer = ShardWriter(f"{folder}/{_PATTERN}.tar", max_count=1, overwrite=True)
    for key in "abc":
        writer.write({"__key__": key, "txt": key})
    writer.abandon()
    left = _files(folder)
    assert "out.json" not in left
    assert not [name for name in left if ".journal" in name or ".lock" in name]
    with pytest.raises(OutputExists, match="without the journal"):
        write(f"{folder}/{_PATTERN}.tar", resume=True)
    write(f"{folder}/{_PATTERN}.tar", overwrite=True)
    assert _files(folder) == wanted


@pytest.mark.parametrize("pattern", ["https://127.0.0.1:9/out-{000000..}.tar", "s3:/moto/out-{000000..}.tar"])
def test_no_place_to_write(pattern: str) -> None:
    """An output that is not a store is refused before any request."""
    with pytest.raises(InvalidRequest):
        ShardWriter(pattern)
