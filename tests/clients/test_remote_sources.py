"""`create` packs objects of real stores, which differ in listings, names and ETags."""

from __future__ import annotations

from contextlib import closing
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any

import pytest

from shardtool import CreateOptions, InvalidRequest, SampleFailed, VerifyOptions, create, verify
from shardtool.errors import AccessRefused, StoreFailed
from tests.helpers import read_tree, write_tree
from tests.servers.faults import Fault
from tests.stored import skipped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.servers.faults import FaultyProxy
    from tests.servers.processes import Server

obstore = pytest.importorskip("obstore")

pytestmark = pytest.mark.clients
OUT = "out-{000..}.tar"
LARGE = 3_000_000
TREE = {
    **{f"{name}/{at}.{ending}": f"{name} {at} {ending}".encode() * 9 for name in ("cat", "dog", "cat-1", "a!")
       for at in range(5) for ending in ("jpg", "json")},
    "cat/sub/a b#ü?%25.jpg": b"odd",
    "cat/empty.jpg": b"",
    "large.bin": bytes(range(250)) * (LARGE // 250),
    ".hidden/x.jpg": b"hidden",
    "dog/Thumbs.db": b"left behind",
    "noending": b"no field",
}  # fmt: skip


def _store(server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    options = {"client_options": {"allow_http": True}}
    return pytest.importorskip("obstore.store").from_url(prefix, **options)


def _put(store: Any, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        obstore.put(store, name, data)


def _tree(proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, files: Mapping[str, bytes]) -> tuple[str, Any]:
    prefix = proxy.server.new_prefix()
    store = _store(proxy.server, prefix, monkeypatch)
    if proxy.server.folder:  # rclone takes no empty object from obstore
        write_tree(proxy.server.local(prefix), files)
    else:
        _put(store, files)
    proxy.set()
    return prefix, store


@pytest.mark.parametrize("name", ["moto", "rclone", "azurite", "gcs"])
def test_same_as_local(
    name: str,
    request: pytest.FixtureRequest,
    proxies: Callable[[Server], FaultyProxy],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The objects below a prefix become the shards, sidecars and dataset file that the same files become."""
    proxy = proxies(request.getfixturevalue(name))
    prefix, store = _tree(proxy, monkeypatch, TREE)
    local = write_tree(tmp_path / prefix.rpartition("/")[2], TREE)
    for number, options in enumerate(
        (CreateOptions(max_count=9), CreateOptions(exclude=("*.bin",), include=("*/*",), label_from_folder=True))
    ):
        one, other = tmp_path / f"web{number}", tmp_path / f"local{number}"
        result = create(prefix, str(one / OUT), options)
        create(str(local), str(other / OUT), options)
        assert read_tree(one) == read_tree(other)
    report = verify(result.dataset_file, VerifyOptions(source=prefix))
    assert report.sound, report.findings
    obstore.put(store, "cat/1.jpg", b"another")
    assert not verify(result.dataset_file, VerifyOptions(source=prefix)).sound


def test_many_parallel_requests(
    moto: Server, proxies: Callable[[Server], FaultyProxy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small objects are read with many parallel requests, one for each object."""
    proxy = proxies(moto)
    files = {f"{at:03}.jpg": b"%d" % at for at in range(200)}
    prefix, _ = _tree(proxy, monkeypatch, files)
    proxy.set(delay_s=0.05)
    create(prefix, str(tmp_path / OUT), CreateOptions(workers=1))
    log = proxy.log()
    assert log.most >= 16
    assert sum(asked.method == "GET" and ".jpg" in asked.path for asked in log.asked) == len(files)


def test_listing_by_pages(
    moto: Server, proxies: Callable[[Server], FaultyProxy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing continues after a failed page: no object is lost or listed twice."""
    proxy = proxies(moto)
    files = {f"{at:04}.jpg": b"x" for at in range(2100)}
    prefix, _ = _tree(proxy, monkeypatch, files)
    proxy.set(Fault("status", path="list-type", first=3), Fault("cut", path="list-type", first=5))
    assert sum(one.samples for one in create(prefix, str(tmp_path / OUT), dry_run=True).planned) == len(files)
    assert {"status", "cut"} <= {asked.fault for asked in proxy.log().asked}
    proxy.set(Fault("status", path="list-type", first=3, times=None, status=403))
    with pytest.raises(AccessRefused):
        create(prefix, str(tmp_path / OUT), dry_run=True)


def test_changed_and_deleted_objects(
    moto: Server, proxies: Callable[[Server], FaultyProxy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object that is replaced or deleted before it is packed fails its sample, like a file."""
    proxy = proxies(moto)
    prefix, _ = _tree(proxy, monkeypatch, {"a.jpg": b"a", "b.jpg": b"b", "c.jpg": b"c", "d.bin": TREE["large.bin"]})
    faults = (
        Fault("etag", path="a.jpg", times=None),
        Fault("status", path="b.jpg", times=None, status=404),
        Fault("etag", path="d.bin", times=None),
    )
    proxy.set(*faults)
    with pytest.raises(SampleFailed, match=r"a\.jpg: changed while it was packed: its version"):
        create(prefix, str(tmp_path / OUT), CreateOptions(workers=1))
    proxy.set(*faults)
    result = create(prefix, str(tmp_path / OUT), CreateOptions(workers=1, on_error="skip", resume=True))
    assert (result.samples, result.skipped) == (1, 3)
    codes = {row["path"]: row["code"] for row in skipped(tmp_path / "out.json")}
    assert codes == {"a.jpg": "changed", "b.jpg": "vanished", "d.bin": "changed"}


@pytest.mark.parametrize("size", [9, LARGE])
def test_bytes_that_do_not_match_the_etag(
    size: int, moto: Server, proxies: Callable[[Server], FaultyProxy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object whose bytes do not match its ETag, an MD5, fails its sample, unless a second read matches."""
    proxy, data = proxies(moto), TREE["large.bin"][:size]
    prefix, _ = _tree(proxy, monkeypatch, {"a.bin": data, "b.bin": data[::-1], "c.bin": data})
    proxy.set(Fault("flip", path=r"b\.bin", times=None))
    with pytest.raises(SampleFailed, match=r"b\.bin: .*as the store reports"):
        create(prefix, str(tmp_path / OUT), CreateOptions(workers=1))
    proxy.set(Fault("flip", path=r"b\.bin", times=None))
    result = create(prefix, str(tmp_path / OUT), CreateOptions(workers=1, on_error="skip", resume=True))
    assert (result.samples, result.skipped) == (2, 1)
    assert verify(tmp_path / "out.json", VerifyOptions(workers=1)).sound
    if size < LARGE:
        proxy.set(Fault("flip", path=r"b\.bin"))
        assert create(prefix, str(tmp_path / "new" / OUT), CreateOptions(workers=1)).samples == 3


@pytest.mark.parametrize("key", ["a//b.jpg", "a/../b.jpg", "a/./b.jpg"])
def test_a_key_that_no_tar_can_hold_is_named(key: str, moto: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key with an empty part, `.` or `..` is named by the error that it keeps its prefix from being listed."""
    prefix = moto.new_prefix()
    _put(_store(moto, prefix, monkeypatch), {"x.jpg": b"x"})
    connection = HTTPConnection("127.0.0.1", moto.port)
    with closing(connection):
        connection.request("PUT", f"/moto/{prefix.removeprefix(moto.bucket).lstrip('/')}/{key}", b"data")
        assert connection.getresponse().status == 200
    with pytest.raises(StoreFailed) as caught:
        create(prefix, OUT, dry_run=True)
    assert key in caught.value.found


def test_refusals(
    moto: Server, proxies: Callable[[Server], FaultyProxy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that refuses or fails ends the run, and receives no requests that had not started."""
    proxy = proxies(moto)
    prefix, _ = _tree(proxy, monkeypatch, {f"{at:03}.jpg": b"x" for at in range(300)})
    proxy.set(Fault("status", path="jpg", times=None, status=403))
    with pytest.raises(AccessRefused, match=r"\.jpg: the server returned 403"):
        create(prefix, str(tmp_path / OUT), CreateOptions(workers=1))
    assert sum(asked.status == 403 for asked in proxy.log().asked) <= 64  # those in flight, and those queued meanwhile
    proxy.set()
    with pytest.raises(InvalidRequest, match="nothing found"):
        create(f"{prefix}/none", str(tmp_path / OUT))
    with pytest.raises(StoreFailed, match="no such bucket"):
        create("s3://nobucket/x", str(tmp_path / OUT))
    assert not [name for name in read_tree(tmp_path) if not name.startswith(".")]


def test_resume(
    moto: Server, proxies: Callable[[Server], FaultyProxy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is resumed writes the shards of objects that are others by now, and of new ones, and no others."""
    proxy = proxies(moto)
    files = {f"{at:03}.jpg": b"%d" % at for at in range(40)}
    prefix, store = _tree(proxy, monkeypatch, files)
    monkeypatch.setattr("shardtool.pack.resume._CLOCK_SLACK_S", -60)  # the objects are not a minute old
    options = CreateOptions(max_count=10, resume=True, workers=1)
    create(prefix, str(tmp_path / OUT), options)
    proxy.set()
    assert create(prefix, str(tmp_path / OUT), options).kept == 4
    assert not any(".jpg" in asked.path for asked in proxy.log().asked)
    obstore.put(store, "015.jpg", b"x" * 600)
    obstore.put(store, "100.jpg", b"new")
    proxy.set()
    result = create(prefix, str(tmp_path / OUT), options)
    assert (result.shards, result.kept, result.samples) == (5, 3, 41)
    assert sum(".jpg" in asked.path for asked in proxy.log().asked) == 11
    write_tree(tmp_path / "tree", {**files, "015.jpg": b"x" * 600, "100.jpg": b"new"})
    fresh = create(str(tmp_path / "tree"), str(tmp_path / "local" / OUT), CreateOptions(max_count=10))
    assert fresh.fingerprint == result.fingerprint


def test_a_prefix_that_grows(moto: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New objects are appended, existing samples are kept, and no object is read twice."""
    prefix = moto.new_prefix()
    store = _store(moto, prefix, monkeypatch)
    _put(store, {f"{at}.jpg": b"%d" % at for at in range(4)})
    create(prefix, str(tmp_path / OUT), CreateOptions(workers=1))
    _put(store, {"4.jpg": b"4", "2.jpg": b"longer than before"})
    options = CreateOptions(workers=1, append=True, on_duplicate="first")
    result = create(prefix, str(tmp_path / OUT), options)
    assert (result.shards, result.samples) == (2, 5)
    assert any("2" in note and "changed" in note for note in result.notes), result.notes
    assert verify(result.dataset_file).sound
