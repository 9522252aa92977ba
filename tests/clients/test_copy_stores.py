"""Laws of `copy` between folders, stores and the web: the same result as between folders, despite network faults."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from shardtool import (
    CopyOptions,
    CorruptShard,
    CreateOptions,
    Observer,
    OutputExists,
    VerifyOptions,
    copy,
    create,
    verify,
)
from shardtool.errors import AccessRefused, InvalidRequest
from shardtool.storage import files
from shardtool.storage.files import list_folder
from shardtool.storage.folders import open_folder
from tests.clients.test_remote_objects import publish
from tests.faults.helpers import settles
from tests.helpers import REPO, flip, read_tree, shards, write_tree
from tests.servers.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.servers.faults import FaultyProxy
    from tests.servers.processes import Server

pytestmark = pytest.mark.clients
OVERWRITE = CopyOptions(overwrite=True)
FILES = {f"{at:02}.{field}": os.urandom(2000) for at in range(12) for field in ("txt", "bin")}
MANY = 700_000  # bytes of a sample, where a copy is to last


@pytest.fixture(params=["moto", "azurite", "gcs", "rclone"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Server:
    """Give each store, reached as its users reach it; rclone's keeps no conditions, and so no lock."""
    server: Server = request.getfixturevalue(request.param)
    _use(server, monkeypatch)
    return server


@pytest.fixture
def slow(moto: Server, proxies: Callable[[Server], FaultyProxy]) -> tuple[Server, FaultyProxy]:
    """Give a store, and a proxy before it that makes faults."""
    return moto, proxies(moto)


def _use(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SHARDTOOL_ENDPOINT", server.environment.get("AWS_ENDPOINT_URL", ""))
    monkeypatch.setenv("SHARDTOOL_UNLOCKED", "1" if server.folder else "")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of a dataset of four shards."""
    folder = tmp_path_factory.mktemp("packed")
    return _dataset(folder / "out")


def _dataset(folder: Path, files: dict[str, bytes] = FILES, **how: object) -> Path:
    options = CreateOptions(max_count=3, workers=1, **how)  # type: ignore[arg-type]
    create(write_tree(folder.parent / f"{folder.name}-in", files), f"{folder}/out-{{000..}}.tar", options)
    return folder


def test_a_damaged_source_takes_nothing_away(server: Server, packed: Path) -> None:
    """A shard that is right at the destination stays so, where the source's has the same size and other bytes."""
    source, copied = server.new_prefix(), server.new_prefix()
    copy(packed, source)
    copy(source, copied)
    name = shards(packed)[1].name
    folder = open_folder(source)
    data = bytearray(folder.read(name))
    data[700] ^= 1
    folder.publish(folder.stage_bytes(name, bytes(data)))
    with suppress(CorruptShard):  # none if no store reports an MD5 that differs
        copy(source, copied)
    assert verify(copied, VerifyOptions(workers=1)).sound


def test_a_bucket_without_read_permission(moto: Server, packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If objects can be listed but not read, the error says this, and not that the dataset file is missing."""
    _use(moto, monkeypatch)
    copy(packed, at := moto.new_prefix())
    monkeypatch.setenv("SHARDTOOL_ANONYMOUS", "true")
    with pytest.raises(AccessRefused, match=r"out\.json: the server returned 403"):
        copy(at, f"{at}/copy")


def _stored(prefix: str) -> dict[str, bytes]:
    folder = open_folder(prefix)
    return {name: folder.read(name) for name in sorted(folder.names()) if not name.startswith(".")}


def test_there_and_back(server: Server, packed: Path, tmp_path: Path) -> None:
    """Copies into a store, within it and back have the same bytes; valid copies are not copied again."""
    first, second = server.new_prefix(), server.new_prefix()
    assert copy(packed, first).datasets[0].copied == 4
    assert _stored(first) == read_tree(packed)
    assert copy(f"{first}/out.json", second + "/").datasets[0].copied == 4
    assert copy(second, tmp_path / "back").datasets[0].copied == 4
    assert read_tree(tmp_path / "back") == read_tree(packed)
    for source, where in ((packed, first), (first, second), (second, tmp_path / "back")):
        again = copy(source, where).datasets[0]
        assert (again.copied, again.kept, again.copied_size) == (0, 4, 0)


def test_a_trusted_size_reads_no_shard(
    slow: tuple[Server, FaultyProxy], packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `trust="size"`, no shard is read; two stores are asked for MD5 checksums."""
    moto, proxy = slow
    _use(proxy.server, monkeypatch)
    first, second, asked = moto.new_prefix(), moto.new_prefix(), CopyOptions(trust="size")
    copy(packed, first)
    copy(first, second)
    copy(first, tmp_path / "back")
    read_blocks = files.read_blocks

    def of_no_shard(path: str, *given: int) -> Iterator[memoryview | bytes]:
        assert not path.endswith(".tar")
        return read_blocks(path, *given)

    monkeypatch.setattr(files, "read_blocks", of_no_shard)
    proxy.set()
    for source, where in ((packed, first), (first, second), (first, tmp_path / "back")):
        again = copy(source, where, asked).datasets[0]
        assert (again.copied, again.kept) == (0, 4)
    assert sum(one.sent for one in proxy.log().asked if ".tar" in one.path) < 100  # a first byte here and there
    monkeypatch.undo()
    _use(proxy.server, monkeypatch)
    folder = open_folder(second)
    folder.publish(folder.stage_bytes("out-001.tar", bytes(folder.find_entries(["out-001.tar"])["out-001.tar"].size)))
    assert copy(first, second, asked).datasets[0].copied == 1


def test_a_whole_bucket(packed: Path, tmp_path: Path, moto: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket itself is a place, with and without a slash; names may hold what needs escaping."""
    _use(moto, monkeypatch)
    other = moto.new_prefix() + "/a b#%2F?ü"
    copy(packed, moto.bucket + "/")
    assert copy(packed, moto.bucket).datasets[0].kept == 4
    copy(moto.bucket, other)
    copy(f"{other}/out.json", tmp_path / "back")
    assert read_tree(tmp_path / "back") == read_tree(packed)


def test_damage_does_not_arrive(server: Server, packed: Path, tmp_path: Path) -> None:
    """A shard with a flipped bit becomes no object, and from a store no file; no dataset file tells of it."""
    source, prefix = _dataset(tmp_path / "source"), server.new_prefix()
    bad = shards(source)[2]
    flip(bad, 3000)
    with pytest.raises(CorruptShard, match=bad.name):
        copy(source, prefix)
    assert _stored(prefix).keys().isdisjoint({bad.name, "out.json"})
    copy(packed, prefix, OVERWRITE)
    folder = open_folder(prefix)
    data = bytearray(folder.read(bad.name))
    data[3000] ^= 1
    folder.publish(folder.stage_bytes(bad.name, bytes(data)))
    with pytest.raises(CorruptShard, match=bad.name):
        copy(prefix, tmp_path / "back")
    assert {bad.name, "out.json"}.isdisjoint(read_tree(tmp_path / "back"))


def test_an_append_moves_only_what_is_new(server: Server, tmp_path: Path) -> None:
    """Of a dataset that was appended to, the new shards are put; the other objects are not written again."""
    source, prefix = _dataset(tmp_path / "source"), server.new_prefix()
    copy(source, prefix)
    options = CreateOptions(max_count=3, workers=1, append=True)
    create(write_tree(tmp_path / "more", {"n1.txt": b"1"}), f"{source}/out-{{000..}}.tar", options)
    (one,) = copy(source, prefix).datasets
    assert (one.copied, one.kept) == (1, 4)
    assert _stored(prefix) == read_tree(source)


def test_another_dataset_is_replaced_when_asked_for(server: Server, packed: Path, tmp_path: Path) -> None:
    """Another dataset stays without `overwrite`; with it, its own shards go, and no object that it does not list."""
    prefix = server.new_prefix()
    copy(packed, prefix)
    folder = open_folder(prefix)
    folder.publish(folder.stage_bytes("notes.txt", b"mine"))
    source = _dataset(tmp_path / "source", {f"{at}.txt": b"other" * at for at in range(6)})
    with pytest.raises(OutputExists, match=r"out-000\.tar"):
        copy(source, prefix)
    (one,) = copy(source, prefix, OVERWRITE).datasets
    assert (one.copied, one.removed) == (2, 2)
    assert _stored(prefix) == {**read_tree(source), "notes.txt": b"mine"}


@pytest.mark.parametrize("name", ["moto", "gcs", "azurite", "rclone"])
def test_a_store_copies_its_own_objects(
    name: str, request: pytest.FixtureRequest, proxies: Callable[[Server], FaultyProxy], packed: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """No shard passes through this machine; if the store has no checksums, copies are read but not rewritten."""
    server: Server = request.getfixturevalue(name)
    proxy = proxies(server)
    _use(proxy.server, monkeypatch)
    first, second = server.new_prefix(), server.new_prefix()
    copy(packed, first)
    proxy.set()
    assert not copy(first, second).notes
    read = [one for one in proxy.log().asked if ".tar" in one.path and one.method == "GET" and one.status < 300]
    assert not [one for one in read if one.sent > 1 and first.rpartition("/")[2] in one.path]
    size = sum(path.stat().st_size for path in shards(packed))
    through_us = sum(one.sent for one in read if one.sent > 1)
    assert through_us == (0 if name in ("moto", "gcs") else size)
    assert _stored(second) == read_tree(packed)


def test_a_source_that_changes_during_a_copy(server: Server, packed: Path) -> None:
    """A shard that is replaced during the copy is refused, and its copy is deleted."""
    first, second = server.new_prefix(), server.new_prefix()
    copy(packed, first)
    folder, name = open_folder(first), "out-002.tar"

    class Changing(Observer):
        def start(self, samples: int, size: int, shards: int) -> None:  # noqa: ARG002 - of an observer
            folder.publish(folder.stage_bytes(name, folder.read(name)[::-1]))

    with pytest.raises(CorruptShard, match=name):
        copy(first, second, observer=Changing())
    assert _stored(second).keys().isdisjoint({name, "out.json"})


_LIE = "<CopyObjectResult><ChecksumCRC32C>AAAAAA==</ChecksumCRC32C></CopyObjectResult>"


@pytest.mark.parametrize("body", [_LIE, "<CopyObjectResult/>", "<Error><Code>InternalError</Code></Error>"])
def test_what_a_store_only_says_to_have_copied(
    body: str, slow: tuple[Server, FaultyProxy], packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that has copied nothing, or other bytes, is found; the shard is read and put, and the rest is not."""
    moto, proxy = slow
    _use(proxy.server, monkeypatch)
    first, second = moto.new_prefix(), moto.new_prefix()
    copy(packed, first)
    answer = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    proxy.set(Fault("raw", method="PUT", path=r"out-001\.tar", body=answer))
    assert not copy(first, second).notes
    put = [one.path for one in proxy.log().asked if one.method == "PUT" and ".tar" in one.path]
    assert len(put) == 5
    assert _stored(second) == read_tree(packed)


@pytest.mark.parametrize("do", ["status", "refuse", "lost", "cut"])
def test_the_store_retries_a_copy(
    do: str, slow: tuple[Server, FaultyProxy], packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy within a store is retried if the store is busy or disconnects; no data passes through this machine."""
    moto, proxy = slow
    _use(proxy.server, monkeypatch)
    first, second = moto.new_prefix(), moto.new_prefix()
    copy(packed, first)
    proxy.set(Fault(do, method="PUT", path=r"\.tar", times=2))
    assert not copy(first, second).notes
    assert not [one for one in proxy.log().asked if one.method == "GET" and ".tar" in one.path and one.sent > 1000]
    assert _stored(second) == read_tree(packed)


@pytest.mark.parametrize("status", [403, 501])
def test_a_store_that_refuses_copies(
    status: int, slow: tuple[Server, FaultyProxy], packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a store refuses to copy, it is asked once, a note says so, and the bytes pass through this machine."""
    moto, proxy = slow
    _use(proxy.server, monkeypatch)
    first, second = moto.new_prefix(), moto.new_prefix()
    copy(packed, first)
    proxy.set(Fault("status", method="PUT", path=r"\.tar", status=status))
    (note,) = copy(first, second, CopyOptions(workers=1)).notes
    assert str(status) in note
    assert not any(secret in note for secret in moto.secrets)
    asked = proxy.log().asked
    assert len([one for one in asked if one.method == "PUT" and ".tar" in one.path]) == 5
    assert sum(one.sent > 1 for one in asked if one.method == "GET" and ".tar" in one.path and one.status < 300) == 4
    assert _stored(second) == read_tree(packed)


def test_a_server_without_copies(azurite: Server, packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that cannot copy large objects, such as azurite, is given up after a while."""
    _use(azurite, monkeypatch)
    monkeypatch.setattr("shardtool.storage.remote.store_copy._MAX_SYNC_COPY_BYTES", 1)
    monkeypatch.setenv("SHARDTOOL_RETRY_FOR", "0.3")
    first, second = azurite.new_prefix(), azurite.new_prefix()
    copy(packed, first)
    assert "500" in copy(first, second).notes[0]
    assert _stored(second) == read_tree(packed)


_PROGRAM = "import sys, shardtool; shardtool.copy(*sys.argv[1:], shardtool.CopyOptions(workers=2))"


@pytest.mark.parametrize("puts", [1, 2, 4])
def test_killed_in_the_middle(
    puts: int, moto: Server, proxies: Callable[[Server], FaultyProxy], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """After SIGKILL, each object is complete and no dataset file exists; the next run produces the same bytes."""
    source = _dataset(tmp_path / "source", {f"{at:02}.bin": os.urandom(MANY) for at in range(12)})
    proxy = proxies(moto)
    proxy.set(bytes_per_s=2_000_000)
    prefix = moto.new_prefix()
    environment = {**os.environ, **proxy.server.environment, "SHARDTOOL_ENDPOINT": "", "PYTHONPATH": str(REPO)}
    run = subprocess.Popen([sys.executable, "-c", _PROGRAM, str(source), prefix], env=environment)
    _use(moto, monkeypatch)
    assert settles(lambda: sum(one.method == "PUT" for one in proxy.log().asked) >= puts)
    run.send_signal(signal.SIGKILL)
    run.wait()
    there = _stored(prefix)
    assert there.items() <= read_tree(source).items()
    assert "out.json" not in there
    whole = len([name for name in there if name.endswith(".index")])
    (one,) = copy(source, prefix).datasets
    assert one.kept == whole
    assert _stored(prefix) == read_tree(source)


def test_killed_while_a_store_copies(
    slow: tuple[Server, FaultyProxy], packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a store has copied when the run is killed is whole, and stays; the next run has the rest copied."""
    moto, proxy = slow
    _use(moto, monkeypatch)
    first, second = moto.new_prefix(), moto.new_prefix()
    copy(packed, first)
    proxy.set(Fault("hang", method="PUT", path=r"002\.tar"))
    environment = {**os.environ, **proxy.server.environment, "SHARDTOOL_ENDPOINT": "", "PYTHONPATH": str(REPO)}
    run = subprocess.Popen([sys.executable, "-c", _PROGRAM, first, second], env=environment)
    assert settles(lambda: {"out-002.tar", "out-003.index"} <= {*_stored(second)})
    run.send_signal(signal.SIGKILL)
    run.wait()
    there = _stored(second)
    assert there.items() <= read_tree(packed).items()
    assert "out.json" not in there
    (one,) = copy(first, second).datasets
    assert (one.kept, one.copied) == (3, 1)
    assert _stored(second) == read_tree(packed)


@pytest.mark.parametrize(
    ("way", "fault"),
    [("to", Fault("status", times=3)), ("to", Fault("upload", method="PUT", path=r"\.tar", times=2)),
     ("to", Fault("lost", method="PUT", path=r"\.tar")), ("to", Fault("lost", method="PUT", path=r"\.json")),
     ("from", Fault("status", times=3)), ("from", Fault("reset", path=r"\.tar", times=2)),
     ("from", Fault("cut", path=r"\.tar", times=2)), ("from", Fault("flip", path=r"002\.tar", first=2))],
    ids=lambda given: given if isinstance(given, str) else given.do,
)  # fmt: skip
def test_what_passes_is_survived(
    way: str, fault: Fault, slow: tuple[Server, FaultyProxy], packed: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Where servers are busy, connections lost, answers cut, the copy has the same bytes in the end."""
    moto, proxy = slow
    _use(moto, monkeypatch)
    prefix = moto.new_prefix()
    if way == "from":
        copy(packed, prefix)
    _use(proxy.server, monkeypatch)
    proxy.set(fault)
    if way == "to":
        copy(packed, prefix)
        proxy.set()
        assert _stored(prefix) == read_tree(packed)
    else:
        copy(prefix, tmp_path / "back")
        assert read_tree(tmp_path / "back") == read_tree(packed)


def test_a_refusal_ends_the_copy(
    moto: Server, proxies: Callable[[Server], FaultyProxy], packed: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A 403 ends the copy with an error without secrets; no dataset file exists."""
    _use(moto, monkeypatch)
    prefix, proxy = moto.new_prefix(), proxies(moto)
    copy(packed, prefix)
    _use(proxy.server, monkeypatch)
    proxy.set(Fault("status", status=403, path=r"out-002\.tar"))
    with pytest.raises(AccessRefused) as caught:
        copy(prefix, tmp_path / "back")
    assert not any(secret in str(caught.value) for secret in moto.secrets)
    assert "out.json" not in read_tree(tmp_path / "back")


def test_verify_quick_reads_no_shard(
    slow: tuple[Server, FaultyProxy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--quick` requests no shard: the listing shows missing and unexpected objects and other sizes."""
    moto, proxy = slow
    _use(proxy.server, monkeypatch)
    prefix, quick = moto.new_prefix(), VerifyOptions(quick=True)
    create(
        write_tree(tmp_path / "in", FILES), f"{tmp_path}/out/out-{{000..}}.tar", CreateOptions(max_count=1, workers=1)
    )
    copy(tmp_path / "out", prefix)
    proxy.set()
    assert verify(prefix, quick).sound
    asked = [one.path for one in proxy.log().asked]
    assert asked
    assert not [path for path in asked if ".tar" in path]
    folder = open_folder(prefix)
    for name, data in (("out-001.tar", b"x"), ("out-012.tar", b"x")):
        folder.publish(folder.stage_bytes(name, data))
    folder.remove(["out-002.tar"])
    assert {*verify(prefix, quick).counts} == {"shard-size", "shard-extra", "shard-missing", "sidecar-stale"}


def test_verify_quick_compares_checksums_of_the_store(
    gcs: Server, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the CRC-32C of Google's store, `--quick` finds a shard of the same size with other bytes."""
    _use(gcs, monkeypatch)
    prefix, quick = gcs.new_prefix(), VerifyOptions(quick=True)
    copy(packed, prefix)
    report = verify(prefix, quick)
    assert report.sound
    assert report.checked[-1] == "the store's own checksums of 4 shards"
    folder = open_folder(prefix)
    folder.publish(folder.stage_bytes("out-001.tar", folder.read("out-001.tar")[::-1]))
    assert verify(prefix, quick).counts == {"shard-checksum": 1}


@pytest.mark.parametrize("way", ["plain", "norange"])
def test_from_nginx(way: str, nginx_ways: dict[str, Server], packed: Path, tmp_path: Path) -> None:
    """A dataset of a web server is copied, also from a server without ranges; existing copies are kept."""
    nginx = nginx_ways[way]
    prefix = nginx.new_prefix()
    write_tree(nginx.local(prefix), read_tree(packed))
    assert copy(f"{prefix}/out.json", tmp_path / "copy").datasets[0].copied == 4
    assert read_tree(tmp_path / "copy") == read_tree(packed)
    assert copy(f"{prefix}/out.json", tmp_path / "copy").datasets[0].kept == 4
    (nginx.local(prefix) / "out-003.tar").unlink()
    with pytest.raises(CorruptShard, match="no such"):
        copy(f"{prefix}/out.json", tmp_path / "other")


_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@pytest.mark.parametrize("how", ["keys", "profile", "--source-endpoint"])
def test_from_one_server_to_another(
    how: str, moto: Server, rclone: Server, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dataset is copied between servers of one kind that have the same bucket name and other keys.

    Each server that checks signatures refuses the keys of the other.
    """
    _use(rclone, monkeypatch)
    place = rclone.new_prefix()
    copy(f"{packed}/out.json", place)
    right = [os.environ[name] for name in _KEYS]
    _use(moto, monkeypatch)
    where, server = moto.new_prefix(), rclone.url if how == "--source-endpoint" else None
    monkeypatch.setenv("SHARDTOOL_SOURCE_ENDPOINT", rclone.url)
    if how == "profile":
        pair = [f"{name.lower()} = {value}" for name, value in zip(_KEYS, right, strict=True)]
        (tmp_path / "config").write_text("\n".join(["[profile theirs]", f"endpoint_url = {rclone.url}", *pair]))
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        monkeypatch.delenv("SHARDTOOL_SOURCE_ENDPOINT")
    elif server:
        monkeypatch.delenv("SHARDTOOL_SOURCE_ENDPOINT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the destination alone")
    if how != "profile":
        with pytest.raises(AccessRefused) as refused:
            copy(f"{place}/out.json", where, source_endpoint=server)
        assert "source=" not in str(refused.value)
        for name, value in zip(_KEYS, right, strict=True):
            monkeypatch.setenv(f"SHARDTOOL_SOURCE_{name}", value)
    else:
        monkeypatch.setenv("SHARDTOOL_SOURCE_AWS_PROFILE", "theirs")
    result = copy(f"{place}/out.json", where, source_endpoint=server)
    [one] = result.datasets
    assert (one.source, one.dataset_file, one.copied) == (f"{place}/out.json", f"{where}/out.json", 4)
    assert copy(place, where, source_endpoint=server).datasets[0].copied == 0
    with pytest.raises(InvalidRequest, match="no such object"):
        copy(f"{where}/out.json", f"{where}/again", source_endpoint=server)  # on the destination's server
    for name in [name for name in os.environ if name.startswith("SHARDTOOL_SOURCE_")]:
        monkeypatch.delenv(name)
    copy(f"{where}/out.json", tmp_path / "back")
    assert read_tree(tmp_path / "back") == read_tree(packed)


def test_a_public_source(moto: Server, packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A public source is read without keys, and the destination is written with its keys."""
    _use(moto, monkeypatch)
    place, where = moto.new_prefix(), moto.new_prefix()
    copy(f"{packed}/out.json", place)
    for name in list_folder(place):
        publish(f"{moto.url}/moto/{place.rpartition('/')[2]}/{name}?acl")
    monkeypatch.setenv("SHARDTOOL_SOURCE_AWS_SKIP_SIGNATURE", "true")
    assert copy(place, where, source_endpoint=moto.url).datasets[0].copied == 4
