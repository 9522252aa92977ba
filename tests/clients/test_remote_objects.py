"""Objects of each store, as `storage.remote` reads and writes them: same laws everywhere, and under each fault."""

from __future__ import annotations

import errno
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from shardtool.errors import AccessRefused, InvalidRequest, ShardError, StoreFailed
from shardtool.storage import files
from shardtool.storage.remote import address, buckets, lock, retry, store_access
from shardtool.storage.remote.objects import RemoteObject
from tests.servers.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.servers.faults import FaultyProxy
    from tests.servers.processes import Server

pytestmark = pytest.mark.clients
DATA = bytes(at * 7 % 251 for at in range(300_000))
STORES = ["moto", "rclone", "azurite", "gcs"]
CONDITIONAL = ["moto", "azurite", "gcs"]  # rclone knows no conditions
NAMES = ["plain.tar", "a b#ü?%.tar", "100%25.tar", "+&=;:@,$!'()*.tar", "日本語/写真 1.tar", "~tilde.tar"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait little between tries, and for an answer."""
    monkeypatch.setattr(
        retry, "DEFAULT_POLICY", retry.RetryPolicy(first_wait_s=0.05, max_total_s=2, speed_window_s=0.5)
    )


@pytest.fixture(params=STORES)
def server(request: pytest.FixtureRequest, use: Callable[[Server], Server]) -> Server:
    """Give each store."""
    return use(request.getfixturevalue(request.param))


@pytest.fixture(params=STORES)
def faulty(
    request: pytest.FixtureRequest, use: Callable[[Server], Server], proxies: Callable[[Server], FaultyProxy]
) -> FaultyProxy:
    """Give each store behind the proxy."""
    proxy = proxies(request.getfixturevalue(request.param))
    use(proxy.server)
    return proxy


@pytest.mark.parametrize("name", ["moto", "gcs", "azurite"])
def test_public_buckets_need_no_keys(
    name: str, request: pytest.FixtureRequest, use: Callable[[Server], Server], monkeypatch: pytest.MonkeyPatch,
    proxies: Callable[[Server], FaultyProxy], moto: Server,
) -> None:  # fmt: skip
    """With `--anonymous`, objects are listed and read without signatures, and no credentials are requested."""
    proxy = proxies(request.getfixturevalue(name))
    server = use(proxy.server)
    bucket = "az://public" if name == "azurite" else server.bucket
    at = f"{bucket}/{server.new_prefix().rpartition('/')[2]}"
    buckets.put_object(address.join_address(at, "a b.tar"), DATA)
    if name != "azurite":
        publish(f"{moto.url}/moto/{at.rpartition('/')[2]}/a%20b.tar?acl")
    for variable in os.environ:
        if variable.startswith(("AWS_", "GOOGLE_", "AZURE_")) and "ENDPOINT" not in variable:
            monkeypatch.delenv(variable)
    for variable in ("AWS_METADATA_ENDPOINT", "IDENTITY_ENDPOINT", "GCE_METADATA_HOST", "GCE_METADATA_ROOT"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "shardtooltests")
    monkeypatch.setenv("SHARDTOOL_ANONYMOUS", "")
    if name == "gcs":
        monkeypatch.setenv("SHARDTOOL_ENDPOINT", server.url)
    proxy.set()
    store_access.use_anonymous()
    assert [one.name for one in buckets.list_objects(at)] == ["a b.tar"]
    assert RemoteObject(address.join_address(at, "a b.tar")).read(7, 1000) == DATA[7:1007]
    asked = proxy.log().asked
    assert asked
    assert not [one.path for one in asked if "ignature" in one.path or "sig=" in one.path]


def publish(acl: str) -> None:
    """Let everybody read an object of moto, which takes any key."""
    headers = {
        "x-amz-acl": "public-read",
        "Authorization": "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request",
    }
    with urlopen(Request(acl, b"", headers, method="PUT")) as answer:  # noqa: S310 - on loopback
        assert answer.status == HTTPStatus.OK


def test_anonymous_requests_to_a_private_store(
    rclone: Server, use: Callable[[Server], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `--anonymous`, a private store refuses: available keys are not used."""
    at = use(rclone).new_prefix()
    buckets.put_object(address.join_address(at, "a.tar"), DATA)
    monkeypatch.setenv("SHARDTOOL_ANONYMOUS", "true")
    for ask in (lambda: [*buckets.list_objects(at)], lambda: RemoteObject(address.join_address(at, "a.tar"))):
        with pytest.raises((AccessRefused, StoreFailed), match=r"400 UnsupportedAlgorithm|not allow"):
            ask()


def test_objects(server: Server) -> None:
    """A stored object is listed by its name, for any name, and read completely or in part."""
    at = server.new_prefix()
    for name in NAMES:
        buckets.put_object(address.join_address(at, name), name.encode() + DATA)
    found = {one.key.partition("/")[2]: one.size for one in buckets.list_objects(at, below=True)}
    assert found == {name: len(name.encode() + DATA) for name in NAMES}
    assert {*files.list_folder(at)} == {name.partition("/")[0] for name in NAMES}
    for name in NAMES:
        blob = RemoteObject(address.join_address(at, name))
        assert blob.size == len(name.encode() + DATA)
        assert blob.read(0, blob.size) == name.encode() + DATA
        assert blob.read(blob.size - 9, 100) == DATA[-9:]
        assert blob.read(blob.size, 5) == b""
    buckets.delete_objects(at, [address.parse_address(address.join_address(at, name)).key for name in [*NAMES, "none"]])
    assert files.list_folder(at) == []


def test_empty_object(server: Server) -> None:
    """An object of no bytes is one, and has none."""
    where = address.join_address(server.new_prefix(), "empty")
    buckets.put_object(where, b"")
    assert (RemoteObject(where).size, RemoteObject(where).read(0, 5)) == (0, b"")


def test_nothing_there(server: Server) -> None:
    """A missing object is a missing file, by its name; a bucket that is not there is named, too."""
    at = server.new_prefix()
    with pytest.raises(FileNotFoundError, match=r"none\.tar"):
        RemoteObject(f"{at}/none.tar")
    assert not files.is_file(f"{at}/none.tar")
    assert not files.is_folder(at)
    bucket = f"{server.bucket}-none"
    with pytest.raises((FileNotFoundError, ShardError), match=bucket):
        RemoteObject(f"{bucket}/x")
    with pytest.raises((FileNotFoundError, ShardError), match=bucket):
        buckets.put_object(f"{bucket}/x", b"1")
    with pytest.raises((FileNotFoundError, ShardError), match=bucket):
        list(buckets.list_objects(f"{bucket}/x"))


@pytest.mark.parametrize("name", CONDITIONAL)
def test_conditions(name: str, request: pytest.FixtureRequest, use: Callable[[Server], Server]) -> None:
    """Of two that create an object, or replace one version, the second is refused, and nothing of it is seen."""
    where = address.join_address(use(request.getfixturevalue(name)).new_prefix(), "lock")
    first = buckets.put_object(where, b"1", expected="")
    with pytest.raises(FileExistsError):
        buckets.put_object(where, b"2", expected="")
    second = buckets.put_object(where, b"3", expected=first)
    with pytest.raises(FileExistsError):
        buckets.put_object(where, b"4", expected=first)
    assert RemoteObject(where).read(0, 9) == b"3"
    buckets.put_object(where, b"5", expected=second)


@pytest.mark.parametrize("name", CONDITIONAL)
def test_object_that_changes(name: str, request: pytest.FixtureRequest, use: Callable[[Server], Server]) -> None:
    """An object that was replaced is not read further."""
    where = address.join_address(use(request.getfixturevalue(name)).new_prefix(), "x")
    buckets.put_object(where, DATA)
    blob = RemoteObject(where)
    assert blob.read(0, 10) == DATA[:10]
    buckets.put_object(where, DATA[::-1])
    with pytest.raises(OSError, match="changed while it was read") as caught:
        blob.read(10, 10)
    assert (caught.value.errno, caught.value.filename) == (errno.ESTALE, where)


PASSING = [
    Fault("status", status=500),
    Fault("status", status=503, headers={"Retry-After": "1"}),
    Fault("status", status=429, times=2),
    Fault("refuse"),
    Fault("lost"),
    Fault("cut"),
    Fault("reset"),
    Fault("stall"),
    Fault("silent"),
]


@pytest.mark.parametrize("fault", PASSING, ids=lambda fault: f"{fault.do}-{fault.status}")
def test_temporary_faults(faulty: FaultyProxy, fault: Fault) -> None:
    """After one or two failures, a request continues at the point of failure, and all bytes arrive."""
    where = address.join_address(faulty.server.new_prefix(), "a b#1.tar")
    buckets.put_object(where, DATA)
    blob = RemoteObject(where)
    faulty.set(fault)
    assert blob.read(0, len(DATA)) == DATA
    assert [one.fault for one in faulty.log().asked][: fault.times or 0] == [fault.do] * (fault.times or 0)


@pytest.mark.parametrize("do", ["status", "refuse", "cut"])
def test_faults_that_stay(faulty: FaultyProxy, do: str) -> None:
    """What fails each time is an error that names the object and holds no secret, after a bounded time."""
    where = address.join_address(faulty.server.new_prefix(), "a b#1.tar")
    buckets.put_object(where, DATA)
    blob = RemoteObject(where)
    asks: list[Callable[[], object]] = [lambda: blob.read(0, 9)]
    asks += [lambda: buckets.put_object(where, b"2"), lambda: list(buckets.list_objects(where))] if do != "cut" else []
    for ask in asks:
        faulty.set(Fault(do, times=None, at=0))
        with pytest.raises(StoreFailed) as caught:
            ask()
        _check_error(caught.value, faulty.server, where)
        assert 2 < len(faulty.log().asked) < 100


def test_no_request_after_a_refusal(faulty: FaultyProxy) -> None:
    """After a 403, no request follows; the error names the object and contains no secret."""
    where = address.join_address(faulty.server.new_prefix(), "x.tar")
    buckets.put_object(where, DATA)
    blob = RemoteObject(where)
    body = f"<Error><Code>AccessDenied</Code><Message>{faulty.server.secrets[0]}</Message></Error>"
    for ask in (
        lambda: blob.read(0, 9),
        lambda: RemoteObject(where),
        lambda: buckets.put_object(where, b"2"),
        lambda: list(buckets.list_objects(where)),
        lambda: list(buckets.list_objects(where, below=True)),
        lambda: buckets.delete_objects(where, ["x"]),
    ):
        faulty.set(Fault("status", status=403, times=None, body=body))
        with pytest.raises(AccessRefused) as caught:
            ask()
        _check_error(caught.value, faulty.server, where)
        assert len(faulty.log().asked) == 1


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault("whole", times=None), StoreFailed),
        (Fault("shift", times=None), StoreFailed),
        (Fault("length", times=None), StoreFailed),
        (Fault("etag", times=None), OSError),
        (Fault("redirect", to="http://127.0.0.1:9", times=None), StoreFailed),
        (Fault("gzip", times=None), (StoreFailed, OSError)),
    ],
    ids=lambda one: getattr(one, "do", ""),
)
def test_wrong_ranges_are_noticed(faulty: FaultyProxy, fault: Fault, error: type[Exception]) -> None:
    """Bytes of another range than requested are never used."""
    where = address.join_address(faulty.server.new_prefix(), "x.tar")
    buckets.put_object(where, DATA)
    blob = RemoteObject(where)
    faulty.set(fault)
    with pytest.raises(error) as caught:
        blob.read(1000, 50)
    _check_error(caught.value, faulty.server, where)


def test_wrong_keys(rclone: Server, use: Callable[[Server], Server], monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that the store does not take is a refusal, and is not shown."""
    wrong = "anotherVerySecretKeyThatTheStoreDoesNotKnow"
    use(rclone)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", wrong)
    where = f"{rclone.new_prefix()}/x"
    for ask in (
        lambda: RemoteObject(where),
        lambda: buckets.put_object(where, b"1"),
        lambda: list(buckets.list_objects(where)),
    ):
        with pytest.raises(AccessRefused, match=where) as caught:
            ask()
        assert wrong not in repr(caught.value) + str(caught.value) + str(pickle.dumps(caught.value))


def test_a_listing_of_many_keys(
    moto: Server, use: Callable[[Server], Server], proxies: Callable[[Server], FaultyProxy]
) -> None:
    """A listing of several pages contains each key once, also if a page is requested again."""
    proxy = proxies(moto)
    at = use(proxy.server).new_prefix()
    names = [f"{number:04}" for number in range(1003)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: buckets.put_object(f"{at}/{name}", b""), names))
    proxy.set(Fault("status", first=2))
    assert [one.key.rpartition("/")[2] for one in buckets.list_objects(at, below=True)] == names
    assert [one.status for one in proxy.log().asked][:3] == [200, 503, 200]


def test_prefix_that_is_an_object(moto: Server, use: Callable[[Server], Server]) -> None:
    """An object may have the name of a folder of other objects."""
    at = use(moto).new_prefix()
    buckets.put_object(at, b"file")
    buckets.put_object(f"{at}/x", b"below")
    assert (files.is_file(at), files.is_folder(at), files.list_folder(at)) == (True, True, ["x"])


@pytest.mark.parametrize("scheme", ["s4", "S3x", "htp", "gcs", "abfs"])
def test_a_typo_in_the_scheme(scheme: str) -> None:
    """The error for an unknown scheme lists the known schemes."""
    with pytest.raises(InvalidRequest, match=rf"{scheme.lower()}://.*s3://"):
        RemoteObject(f"{scheme}://bucket/x")


@pytest.mark.parametrize("way", ["plain", "norange", "gzip"])
def test_nginx(way: str, nginx_ways: dict[str, Server]) -> None:
    """A web file is read completely with and without ranges, in part with ranges; a compressed response is refused."""
    server = nginx_ways[way]
    at = server.new_prefix()
    (server.local(at) / "a b#1.tar").write_bytes(DATA)
    where = f"{at}/{quote('a b#1.tar')}"
    blob = RemoteObject(where)
    assert (blob.size, blob.read(0, len(DATA))) == (len(DATA), DATA)
    if way == "norange":
        with pytest.raises(StoreFailed, match="does not support range requests"):
            blob.read(5, 5)
    else:
        assert blob.read(5, 5) == DATA[5:10]


def _check_error(error: Exception, server: Server, where: str) -> None:
    """See that an error names an object, survives a pickle, and holds no secret."""
    said = str(error) + repr(error) + str(pickle.dumps(error)) + repr(error.__cause__)
    assert where in str(error)
    assert not [secret for secret in (*server.secrets, "Signature=", "sig=") if secret in said]


def test_a_lock_that_stays_is_named(
    moto: Server,
    proxies: Callable[[Server], FaultyProxy],
    use: Callable[[Server], Server],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A lock is read again if the response is cut; if it cannot be deleted, a message says so, and the run succeeds."""
    proxy = proxies(moto)
    folder = use(proxy.server).new_prefix()
    with lock.hold_lock(folder, "out"):
        proxy.set(Fault("cut", path=r"\.lock", method="GET", times=2))
    assert not [*buckets.list_objects(folder)]
    assert not caplog.messages
    with lock.hold_lock(folder, "out"):
        proxy.set(Fault("status", status=403, method="DELETE|POST", times=None))
    (said,) = caplog.messages
    assert ".out.lock: cannot delete the lock of this run" in said
