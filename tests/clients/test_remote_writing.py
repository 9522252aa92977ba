"""Datasets that are written to stores: the same bytes as in a folder, whole or not at all, by one run at a time."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from typing import TYPE_CHECKING, Literal

import pytest

from shardtool import CreateOptions, IndexOptions, ReshardOptions, create, export, index, merge, remove, reshard, verify
from shardtool.errors import AccessRefused, InvalidRequest, OutputExists
from shardtool.pack import run_parts
from shardtool.storage import files, paths
from shardtool.storage.files import list_folder
from shardtool.storage.folders import open_folder
from shardtool.storage.remote import buckets, lock
from tests.clients.remote import start, tool
from tests.faults.helpers import settles
from tests.servers.faults import Fault
from tests.servers.processes import Server

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.servers.faults import FaultyProxy

    Proxies = Callable[[Server], FaultyProxy]
    Reach = Callable[[Server], Server]

pytestmark = pytest.mark.clients
STORES = ("moto", "rclone", "azurite", "gcs")
_SAMPLES = 60
_EXISTS, _CORRUPT, _REQUEST = 5, 4, 2  # exit codes


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
            monkeypatch.setenv(lock.UNLOCKED_VARIABLE, "1")  # rclone takes no conditions
        return server

    return reach


@pytest.fixture
def store(request: pytest.FixtureRequest, reached: Callable[[Server], Server]) -> Server:
    """A store that this process can use; moto by default."""
    return reached(request.getfixturevalue(getattr(request, "param", "moto")))


def _files(prefix: str) -> dict[str, bytes]:
    return {name: files.read_small(paths.join(prefix, name)) for name in list_folder(prefix)}


def _at(store: Server, prefix: str) -> dict[str, bytes]:
    """Return the files of a store that this process reaches no more."""
    with pytest.MonkeyPatch.context() as again:
        again.setenv("AWS_ENDPOINT_URL", store.url)
        return _files(prefix)


def _local(folder: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in folder.iterdir()}


@pytest.mark.parametrize("store", STORES, indirect=True)
@pytest.mark.parametrize("ending", ["tar", "tfrecord"])
def test_same_bytes(store: Server, source: Path, tmp_path: Path, ending: str) -> None:
    """All files of a dataset equal those of a local run, and nothing else remains, for names of any kind."""
    prefix, pattern = f"{store.new_prefix()}/a b#%20ü+&", f"out é-{{000000..}}.{ending}"
    options = CreateOptions(max_size="2MB", oversize="alone", workers=2)
    create(source, f"{tmp_path}/{pattern}", options)
    made = create(source, f"{prefix}/{pattern}", options)
    assert _files(prefix) == _local(tmp_path)
    assert made.samples == _SAMPLES
    assert verify(made.dataset_file).sound


def _said(store: Server, *words: str) -> tuple[int, str]:
    """Return the exit code and the output of a command, which must contain no secret."""
    return tool(*words, server=store, **store.environment)


@pytest.mark.parametrize("puts", [1, 3, 6, 9])
def test_killed(store: Server, source: Path, tmp_path: Path, proxies: Proxies, puts: int) -> None:
    """After SIGKILL, no dataset file exists and objects are complete; an immediate --resume gives the same bytes."""
    create(source, f"{tmp_path}/out-{{000000..}}.tar", CreateOptions(max_size="1MB", oversize="alone"))
    prefix, proxy = store.new_prefix(), proxies(store)
    proxy.set(bytes_per_s=3_000_000)
    words = [
        "create",
        str(source),
        f"{prefix}/out-{{000000..}}.tar",
        "--max-size",
        "1MB",
        "--oversize",
        "alone",
        "--workers",
        "2",
    ]
    with start(*words, **proxy.server.environment) as run:
        assert settles(lambda: sum(one.method == "PUT" for one in proxy.log().asked) >= puts)
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate(timeout=60)
    proxy.set()
    wanted, left = _local(tmp_path), _files(prefix)
    assert "out.json" not in left
    left.pop(".out.lock", None)
    assert {name: wanted.get(name) for name in left} == left
    code, said = _said(store, *words, "--resume")
    assert code == 0, said
    assert _files(prefix) == wanted


def test_two_runs(store: Server, source: Path) -> None:
    """A second run is refused and names the first, also while the lock of another machine may be held."""
    prefix = store.new_prefix()
    where = f"{prefix}/.out.lock"
    with lock.hold_lock(prefix, "out"):
        code, said = _said(store, "create", str(source), f"{prefix}/out-{{000000..}}.tar", "--oversize", "alone")
        assert code == 5
        assert f"process {os.getpid()}" in said
    assert list_folder(prefix) == []
    other = lock.LockHolder("ann@elsewhere, process 1", "2026-01-01", "abc", "another machine", 1, "1")
    buckets.put_object(where, other.encode(), "")
    with pytest.raises(OutputExists, match="ann@elsewhere"), lock.hold_lock(prefix, "out"):
        pass
    assert json.loads(files.read_small(where))["who"].startswith("ann@")


def test_lock_is_taken_over(store: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """An expired lock, by the store's clock, is acquired by one of several runs; the others stop."""
    prefix = store.new_prefix()
    other = lock.LockHolder("ann@elsewhere, process 1", "2026-01-01", "abc", "another machine", 1, "1")
    buckets.put_object(f"{prefix}/.out.lock", other.encode(), "")
    time.sleep(2.1)  # stores count whole seconds
    monkeypatch.setattr(lock, "LEASE_S", 1)
    with lock.hold_lock(prefix, "out"):
        monkeypatch.setattr(lock, "LEASE_S", 100)
        with pytest.raises(OutputExists, match=f"process {os.getpid()}"), lock.hold_lock(prefix, "out"):
            pass
    assert list_folder(prefix) == []


def test_lost_lock(store: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose lock another has taken publishes nothing more, and leaves the other's lock alone."""
    monkeypatch.setattr(lock, "_RENEW_INTERVAL_S", 0.05)
    prefix = store.new_prefix()
    other = lock.LockHolder("ann@elsewhere, process 1", "2026-01-01", "abc", "another machine", 1, "1")
    with lock.hold_lock(prefix, "out"):
        buckets.put_object(f"{prefix}/.out.lock", other.encode())
        with pytest.raises(OutputExists, match="another run has taken over the lock"):  # noqa: PT012 - once it is renewed
            for _ in range(600):
                lock.check_held(prefix)
                time.sleep(0.05)
    assert json.loads(files.read_small(f"{prefix}/.out.lock"))["who"].startswith("ann@")


def test_stopped_holder(store: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was stopped renews its lock before it changes anything, and changes nothing once that is lost."""
    folder = open_folder(store.new_prefix())
    with folder.lock("out"), monkeypatch.context() as changed:
        changed.setattr(lock, "LEASE_S", -1)
        with folder.lock("out"):  # taken over, and given back
            pass
        with pytest.raises(OutputExists, match="the lock"):
            folder.publish(folder.stage_bytes("out.json", b"{}"))
        assert folder.names() == []
    with folder.lock("late"):
        (lease,) = lock._held_leases[folder.path]  # noqa: SLF001 - nothing else stops a process for minutes
        lease._renewed_s -= 2 * lock.LEASE_S  # noqa: SLF001
        folder.publish(folder.stage_bytes("late.json", b"{}"))
        assert lease._renewals == 1  # noqa: SLF001


def test_append_again(store: Server, source: Path, tmp_path: Path) -> None:
    """An append repeated with changed samples is refused, and no object is changed."""
    more = tmp_path / "more"
    more.mkdir()
    (more / "x.txt").write_text("one")
    pattern = f"{store.new_prefix()}/out-{{000000..}}.tar"
    create(source, pattern, CreateOptions(max_count=40))
    create(more, pattern, CreateOptions(max_count=40, append=True))
    before, again = _files(os.path.dirname(pattern)), CreateOptions(max_count=40, append=True, resume=True)
    create(more, pattern, again)
    (more / "x.txt").write_text("two")
    with pytest.raises(InvalidRequest, match="other content"):
        create(more, pattern, again)
    (more / "x.txt").write_text("three " * 1000)
    with pytest.raises(InvalidRequest, match="other content"):
        create(more, pattern, again)
    assert _files(os.path.dirname(pattern)) == before


def test_update_of_a_small_dataset(store: Server, tmp_path: Path) -> None:
    """An update of a dataset with one shard reports that nothing is new, and not that everything has changed."""
    (tmp_path / "1.txt").write_text("one")
    output, options = f"{store.new_prefix()}/out-{{0..}}.tar", CreateOptions(update=True)
    create(tmp_path, output, options)
    assert not [note for note in create(tmp_path, output, options).notes if "changed" in note]


def test_shared_lock(store: Server) -> None:
    """A shared lock has several holders, and excludes an exclusive one."""
    prefix = store.new_prefix()
    both = lock.hold_lock(prefix, "out", shared=True), lock.hold_lock(prefix, "out", shared=True)
    with both[0], both[1], pytest.raises(OutputExists), lock.hold_lock(prefix, "out"):
        pass
    with lock.hold_lock(prefix, "out"), pytest.raises(OutputExists), lock.hold_lock(prefix, "out", shared=True):
        pass
    assert list_folder(prefix) == []


@pytest.mark.parametrize("store", ["rclone"], indirect=True)
def test_no_conditions(store: Server, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store without conditional writes is refused, unless the user states that no other run writes there."""
    monkeypatch.delenv(lock.UNLOCKED_VARIABLE)
    prefix = store.new_prefix()
    with pytest.raises(InvalidRequest, match=lock.UNLOCKED_VARIABLE):
        create(source, f"{prefix}/out-{{000000..}}.tar", CreateOptions(oversize="alone"))
    assert list_folder(prefix) == []


_FAULTS = [
    Fault("status", status=503, headers={"Retry-After": "0"}, path=r"\.tar", times=2),
    Fault("status", status=500, method="PUT", times=2),
    Fault("reset", method="PUT", path=r"\.tar", times=2),
]


@pytest.mark.parametrize("fault", _FAULTS, ids=["busy", "failing", "reset"])
def test_faults(
    store: Server,
    source: Path,
    tmp_path: Path,
    proxies: Callable[[Server], FaultyProxy],
    reached: Callable[[Server], Server],
    fault: Fault,
) -> None:
    """After temporary faults, the shard is packed again, and the dataset equals that of a local run."""
    options = CreateOptions(max_size="2MB", oversize="alone", workers=2)
    create(source, f"{tmp_path}/out-{{000000..}}.tar", options)
    proxy = proxies(store)
    reached(proxy.server)
    proxy.set(fault)
    prefix = store.new_prefix()
    create(source, f"{prefix}/out-{{000000..}}.tar", options)
    proxy.set()
    assert _files(prefix) == _local(tmp_path)


def test_refused_in_mid_run(
    store: Server,
    source: Path,
    tmp_path: Path,
    proxies: Callable[[Server], FaultyProxy],
    reached: Callable[[Server], Server],
) -> None:
    """After the first 403, no request follows; the error names the shard, and --resume completes the rest."""
    proxy = proxies(store)
    reached(proxy.server)
    proxy.set(Fault("status", status=403, path=r"000002\.tar", method="PUT", times=None))
    prefix = store.new_prefix()
    output, options = f"{prefix}/out-{{000000..}}.tar", CreateOptions(max_size="1MB", oversize="alone", workers=1)
    with pytest.raises(AccessRefused, match=r"out-000002\.tar"):
        create(source, output, options)
    asked = [one.path.partition("?")[0].rpartition("/")[2] for one in proxy.log().asked]
    later = asked[asked.index("out-000002.tar") + 1 :]
    assert later in ([], ["out-000001.index"])  # the parent may be publishing the previous shard
    proxy.set()
    made = create(source, output, CreateOptions(max_size="1MB", oversize="alone", workers=1, resume=True))
    assert made.kept == 2
    create(source, f"{tmp_path}/out-{{000000..}}.tar", options)
    assert _files(prefix) == _local(tmp_path)


def test_left_out(store: Server, source: Path, tmp_path: Path) -> None:
    """Samples that are damaged are left out in a store as in a folder, though the size is then not the plan's."""
    create(source, f"{tmp_path}/in/in-{{000000..}}.tar", CreateOptions(shards=1, max_size="1GB"))
    shard = tmp_path / "in" / "in-000000.tar"
    data = bytearray(shard.read_bytes())
    for name in ("005.jpg", "020.jpg"):  # a small shard, and one that fails after a part was uploaded
        data[data.index((source / name).read_bytes()) + 15_000] ^= 1
    shard.write_bytes(data)
    prefix, options = store.new_prefix(), ReshardOptions(max_size="4MB", on_error="skip", workers=1)
    for place in (prefix, f"{tmp_path}/out"):
        made = reshard(f"{tmp_path}/in/in.json", f"{place}/out-{{000000..}}.tar", options)
        assert (made.samples, made.skipped) == (_SAMPLES - 2, 2)
    assert _files(prefix) == _local(tmp_path / "out")


@pytest.mark.parametrize("method", ["gather", "scatter"])
def test_reshard(store: Server, source: Path, tmp_path: Path, method: Literal["gather", "scatter"]) -> None:
    """Shards of a store become shards of a store with the bytes that a folder's become, by either method."""
    prefix, options = store.new_prefix(), CreateOptions(max_size="2MB", oversize="alone")
    how = ReshardOptions(max_size="4MB", shuffle=True, method=method, workers=2)
    for place in (prefix, str(tmp_path)):
        create(source, f"{place}/in/in-{{000000..}}.tar", options)
        reshard(f"{place}/in/in.json", f"{place}/out/out-{{000000..}}.tfrecord", how)
    assert _files(f"{prefix}/out") == _local(tmp_path / "out")


def test_overwrite(store: Server, source: Path, tmp_path: Path) -> None:
    """A dataset is replaced by another: nothing of the old stays, and what would lead into it went before."""
    prefix = store.new_prefix()
    output = f"{prefix}/out-{{000000..}}.tar"
    made = create(source, output, CreateOptions(max_size="1MB", oversize="alone"))
    export(made.dataset_file, ["wids", "dali-webdataset"])
    options = CreateOptions(max_size="4MB", overwrite=True)
    create(source, output, options)
    create(source, f"{tmp_path}/out-{{000000..}}.tar", options)
    assert _files(prefix) == _local(tmp_path)


def test_index(store: Server, source: Path, tmp_path: Path) -> None:
    """Recreated sidecars and dataset file in a store equal those of a local folder."""
    prefix, options = store.new_prefix(), CreateOptions(max_size="2MB", oversize="alone")
    for place in (prefix, str(tmp_path)):
        create(source, f"{place}/out-{{000000..}}.tar", options)
    for one in tmp_path.iterdir():
        if one.suffix != ".tar":
            one.unlink()
            buckets.delete_objects(prefix, [f"{prefix}/{one.name}".split("/", 3)[3]])
    for place in (prefix, str(tmp_path)):
        index(place, IndexOptions(checksum=True))
    assert _files(prefix) == _local(tmp_path)


def test_no_secrets(store: Server, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is given its server by --endpoint shows no secret, and writes none."""
    prefix, output = store.new_prefix(), "out-{000000..}.tar"
    words = ["create", str(source), f"{prefix}/{output}", "--oversize", "alone", "-v", "--json"]
    without = Server(store.url, store.bucket, None, {**store.environment, "AWS_ENDPOINT_URL": ""}, store.secrets)
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    code, said = _said(without, *words, "--endpoint", store.url)
    assert code == 0, said
    assert "X-Amz" not in said
    assert not any(secret.encode() in data for data in _at(store, prefix).values() for secret in store.secrets)


def test_reports(store: Server, source: Path, tmp_path: Path) -> None:
    """A table, a page and a picture in a store have the bytes of those in a folder, and replace nothing unasked."""
    create(source, f"{tmp_path}/out-{{0..}}.tar", CreateOptions(max_count=20))
    prefix, dataset = store.new_prefix(), f"{tmp_path}/out.json"
    asked = {"--table": ("t.parquet", "t.csv"), "--html": ("report.html",), "--contact-sheet": ("sheet.png",)}
    for option, name in [(option, name) for option, names in asked.items() for name in names]:
        words = ["inspect", dataset, option]
        assert _said(store, *words, str(tmp_path / name))[0] == 0
        assert _said(store, *words, f"{prefix}/{name}")[0] == 0
        assert _at(store, prefix)[name] == (tmp_path / name).read_bytes()
        code, said = _said(store, *words, f"{prefix}/{name}")
        assert (code, "already exist" in said) == (_EXISTS, True), said
        assert _said(store, *words, f"{prefix}/{name}", "--overwrite")[0] == 0
        buckets.put_object(f"{prefix}/{name}", b"of another kind")
        code, said = _said(store, *words, f"{prefix}/{name}", "--overwrite")
        assert (code, "another kind of file" in said) == (_EXISTS, True), said
        assert _at(store, prefix)[name] == b"of another kind"
        assert _said(store, *words, f"https://127.0.0.1:9/{name}")[0] == _REQUEST


@pytest.mark.parametrize("store", STORES, indirect=True)
def test_plan_files(store: Server, source: Path, tmp_path: Path) -> None:
    """A plan in a store equals a local one, replaces no file by default, and is refused if damaged."""
    prefix, words = store.new_prefix(), ["create", str(source), "--max-count", "20"]
    plan, output = f"{prefix}-plans/p é#.parquet", f"{prefix}/out-{{0..}}.tar"
    create(source, f"{tmp_path}/made/out-{{0..}}.tar", CreateOptions(max_count=20))
    for to, where in ((str(tmp_path / "plan.parquet"), str(tmp_path)), (plan, prefix)):
        code, said = _said(store, *words, f"{where}/out-{{0..}}.tar", "--plan-only", to)
        assert code == 0, said
    whole = _files(f"{prefix}-plans")["p é#.parquet"]
    assert whole == (tmp_path / "plan.parquet").read_bytes()
    code, said = _said(store, *words, output, "--plan-only", plan)
    assert (code, "already exist" in said) == (_EXISTS, True), said
    assert _said(store, *words, output, "--plan-only", plan, "--overwrite")[0] == 0
    for part in ("1/2", "2/2"):
        code, said = _said(store, *words, output, "--plan", plan, "--part", part)
        assert code == 0, said
    made = _files(prefix)
    assert {name: made[name] for name in _local(tmp_path / "made")} == _local(tmp_path / "made")
    for data in (b"", b"PAR1", whole[:-1], whole[: len(whole) // 2] + b"PAR1", b"\0" * 2**20):
        buckets.put_object(plan, data)
        code, said = _said(store, *words, output, "--plan", plan, "--resume")
        assert (code, "not a plan file, or damaged" in said) == (_CORRUPT, True), said
    code, said = _said(store, *words, output, "--plan", f"{prefix}-plans/none.parquet", "--resume")
    assert (code, "no such file" in said) == (_REQUEST, True), said


@pytest.mark.parametrize("asked", range(1, 4))
def test_a_plan_is_complete_or_missing(store: Server, source: Path, proxies: Proxies, asked: int) -> None:
    """After a kill at any request, a plan is complete or missing; the next run writes it, or says that it exists."""
    prefix, proxy = store.new_prefix(), proxies(store)
    plan = f"{prefix}/plan.parquet"
    words = ["create", str(source), f"{prefix}/out-{{0..}}.tar", "--plan-only", plan]
    proxy.set(bytes_per_s=2_000)
    with start(*words, **proxy.server.environment) as run:
        assert settles(lambda: len(proxy.log().asked) >= asked or run.poll() is not None)
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate(timeout=60)
    proxy.set()
    left = _files(prefix).get("plan.parquet")
    code, said = _said(store, *words)
    assert code == (0 if left is None else _EXISTS), said
    assert left in (None, _files(prefix)["plan.parquet"])


def _cut(name: str) -> Callable[[dict[str, bytes]], bytes]:
    return lambda files: files[name][:-9]


# Damage of files (None: deleted), and whether it can be repaired.
_DAMAGES: dict[str, tuple[dict[str, Callable[[dict[str, bytes]], bytes] | None], set[str]]] = {
    "sidecars": (
        {"out-0.index": None, "out-1.index": _cut("out-1.index"), "out-2.index": lambda files: files["out-0.index"]},
        {"out-0.index", "out-1.index", "out-2.index"},
    ),
    "shard too": ({"out-0.index": None, "out-0.tar": _cut("out-0.tar"), "out-1.index": None}, {"out-1.index"}),
    "no dataset file": ({"out.json": None}, {"out.json"}),
    "cut dataset file": ({"out.json": _cut("out.json")}, {"out.json"}),
}


def _damaged(store: Server, source: Path, folder: Path, damage: str) -> tuple[str, set[str]]:
    """Write a dataset with a damage into a folder and into a store; return the prefix, and what can be mended."""
    prefix, (wrong, mended) = store.new_prefix(), _DAMAGES[damage]
    create(source, f"{folder}/out-{{0..}}.tar", CreateOptions(max_count=20))
    files = _local(folder)
    for name, change in wrong.items():
        (folder / name).unlink()
        if change is not None:
            (folder / name).write_bytes(change(files))
    for name, data in _local(folder).items():
        buckets.put_object(f"{prefix}/{name}", data)
    return prefix, mended


@pytest.mark.parametrize("store", STORES, indirect=True)
@pytest.mark.parametrize("damage", _DAMAGES)
def test_repair(store: Server, source: Path, tmp_path: Path, damage: str) -> None:
    """The same damage in a folder and in a store is repaired to the same bytes, with the same report."""
    prefix, mended = _damaged(store, source, tmp_path, damage)
    before, here = _files(prefix), verify(tmp_path, repair=True)
    there = verify(prefix, repair=True)
    assert _files(prefix) == _local(tmp_path)
    assert {name for name, data in _files(prefix).items() if before.get(name) != data} == mended | {"out.json"}
    assert (here.sound, here.counts) == (there.sound, there.counts)
    assert [text.replace(str(tmp_path), prefix) for text in here.repaired] == [*there.repaired]
    assert len(here.unchecked) == len(there.unchecked)
    after = _files(prefix)
    assert verify(prefix, repair=True).repaired == ()
    assert _files(prefix) == after


@pytest.mark.parametrize("store", STORES, indirect=True)
def test_repair_from_the_source(store: Server, source: Path, tmp_path: Path) -> None:
    """Shards in a store are rebuilt from the source to the bytes of a local repair; another source changes nothing."""
    prefix, _ = _damaged(store, source, tmp_path, "shard too")
    before = _files(prefix)
    other = shutil.copytree(source, tmp_path / "other")
    (other / "000.cls").write_text("x")
    said = verify(prefix, repair=True, source=other)
    assert (said.sound, said.repaired, _files(prefix)) == (False, (), before)
    shutil.rmtree(other)
    here, there = (verify(one, repair=True, source=source) for one in (tmp_path, prefix))
    assert here.sound
    assert there.sound
    assert _files(prefix) == _local(tmp_path)
    if lock.UNLOCKED_VARIABLE not in os.environ:
        buckets.put_object(f"{prefix}/out-0.index", b"")
        with open_folder(prefix).lock("out"), pytest.raises(OutputExists):
            verify(prefix, repair=True)


@pytest.mark.parametrize("store", STORES, indirect=True)
def test_remove(store: Server, source: Path, tmp_path: Path) -> None:
    """The same samples are removed from a folder and from a store: the same bytes, and no other object remains."""
    prefix, pattern, keys = store.new_prefix(), "out-{000..}.tar", ["001", "020", "059"]
    for folder in (str(tmp_path), prefix):
        create(source, f"{folder}/{pattern}", CreateOptions(max_count=20))
        assert remove(f"{folder}/out.json", keys_from=keys).datasets[0].removed == len(keys)
    assert _files(prefix) == _local(tmp_path)
    assert verify(prefix).sound


@pytest.mark.parametrize("writes", range(1, 8))
def test_repair_killed(store: Server, source: Path, tmp_path: Path, proxies: Proxies, writes: int) -> None:
    """A repair killed at any write has damaged nothing, and the next one produces the bytes of a local repair."""
    (prefix, _), proxy = _damaged(store, source, tmp_path, "sidecars"), proxies(store)
    verify(tmp_path, repair=True)
    with start("verify", prefix, "--repair", **proxy.server.environment) as run:
        assert settles(lambda: sum(one.method != "GET" for one in proxy.log().asked) >= writes)
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate(timeout=60)
    code, said = _said(store, "verify", prefix, "--repair")
    assert code == 0, said
    found = _files(prefix)
    found.pop(".out.lock", None)  # killed after its last write, it left nothing to be done: no run has taken its lock
    assert found == _local(tmp_path)


def test_errors(store: Server, source: Path) -> None:
    """What cannot be written to is named, in one line without a secret."""
    words = ["create", str(source), "--oversize", "alone"]
    for output, code, found in [
        ("s3://there-is-no-such-bucket/out-{000000..}.tar", 7, "no such bucket"),
        ("s4://bucket/out-{000000..}.tar", 2, "Did you mean s3://"),
        ("https://user:password@example.org/out-{000000..}.tar", 2, "read-only"),
    ]:
        ended, said = _said(store, words[0], words[1], output, *words[2:])
        assert (ended, said.count("\n")) == (code, 1), said
        assert found in said
        assert "password" not in said


def test_merge(store: Server, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the last part was killed at its very end, `merge` makes one dataset of all parts in a store."""
    prefix = store.new_prefix()
    output = f"{prefix}/out-{{000000..}}.tar"
    monkeypatch.setattr(run_parts, "merge_if_last", lambda _output, _notes: False)
    for number in (1, 2):
        create(source, output, CreateOptions(max_size="2MB", oversize="alone", part=f"{number}/2"))
        if number == 1:
            with pytest.raises(InvalidRequest, match="missing: 2/2"):
                merge(output)
    merge(output)
    assert verify(f"{prefix}/out.json").sound
