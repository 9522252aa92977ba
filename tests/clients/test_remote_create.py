"""Runs that write to stores produce the bytes of a local run or nothing, despite faults, kills and other runs."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest
import urllib3

from shardtool.storage.remote import buckets
from tests.clients.packed import PHOTOS
from tests.clients.remote import check_no_secret, local, start, stored, tool
from tests.servers.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.servers.faults import FaultyProxy
    from tests.servers.processes import Server
    from tests.warm import Started

pytestmark = pytest.mark.clients
OPTIONS = ("--max-size", "500kB", "--label-from-folder", "--workers", "2")
SHARDS = 6


@pytest.fixture(scope="session")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Give what a local run writes."""
    folder = tmp_path_factory.mktemp("local")
    code, text = tool("create", PHOTOS, f"{folder}/out-{{000000..}}.tar", *OPTIONS)
    assert code == 0, text
    assert len(local(folder)) == 2 * SHARDS + 1
    return local(folder)


@pytest.fixture(params=["moto", "azurite", "gcs"])
def proxy(
    request: pytest.FixtureRequest, use: Callable[[Server], Server], proxies: Callable[[Server], FaultyProxy]
) -> FaultyProxy:
    """Give each store that keeps conditions, behind the proxy."""
    before = proxies(request.getfixturevalue(request.param))
    use(before.server)
    return before


def _create(at: str) -> tuple[str | Path, ...]:
    return ("create", PHOTOS, f"{at}/out-{{000000..}}.tar", *OPTIONS)


def test_same_bytes(proxy: FaultyProxy, expected: dict[str, bytes]) -> None:
    """A store gets what a folder gets, byte for byte, under any name, and no secret; `verify` finds it sound."""
    at = f"{proxy.server.new_prefix()}/a b#ü?%"
    code, text = tool(*_create(at), server=proxy.server)
    assert code == 0, text
    found = stored(at)
    assert found == expected
    check_no_secret(
        b"".join(data for name, data in found.items() if ".tar" not in name).decode("latin-1"), proxy.server
    )
    code, text = tool("verify", f"{at}/out.json", server=proxy.server)
    assert (code, text.rstrip().endswith("valid") and "not valid" not in text) == (0, True), text


def test_reshard(moto: Server, use: Callable[[Server], Server], expected: dict[str, bytes], tmp_path: Path) -> None:
    """Samples of a store are resharded within it like samples of a folder: sorted, shuffled, in another format."""
    at = use(moto).new_prefix()
    for name, data in expected.items():
        buckets.put_object(f"{at}/out/{name}", data)
        (tmp_path / name).write_bytes(data)
    for where, source in ((tmp_path, f"{tmp_path}/out.json"), (at, f"{at}/out/out.json")):
        code, text = tool(
            "reshard", source, f"{where}/re/re-{{000000..}}.tfrecord", "--shuffle", "--seed", "3", server=moto
        )
        assert code == 0, text
    here, there = local(tmp_path / "re"), stored(f"{at}/re")
    assert {*here} == {*there}
    assert [name for name in here if name.endswith(".tfrecord") and here[name] != there[name]] == []
    code, text = tool("verify", f"{at}/re/re.json", server=moto)
    assert (code, text.rstrip().endswith("valid") and "not valid" not in text) == (0, True), text


def test_a_store_without_conditions(
    rclone: Server, use: Callable[[Server], Server], expected: dict[str, bytes]
) -> None:
    """A store without conditional writes is refused, unless the user insists."""
    at = use(rclone).new_prefix()
    code, text = tool(*_create(at), server=rclone)
    assert (code, "SHARDTOOL_UNLOCKED" in text, stored(at)) == (2, True, {}), text
    code, text = tool(*_create(at), server=rclone, SHARDTOOL_UNLOCKED="1")
    assert code == 0, text
    assert stored(at) == expected == local(rclone.local(at))


FAULTS = (
    Fault("lost", method="PUT", path=r"\.lock"),
    Fault("status", method="PUT", path=r"000000\.tar", headers={"Retry-After": "1"}),
    Fault("upload", path=r"000001\.tar"),
    Fault("lost", method="PUT", path=r"000002\.tar"),
    Fault("reset", method="PUT", path=r"000003\.tar"),
    Fault("refuse", method="PUT", path=r"000004\.tar"),
    Fault("status", method="PUT", path=r"000000.{1,3}index", status=500),
    Fault("status", method="PUT", path=r"000001.{1,3}index", status=429),
    Fault("lost", method="PUT", path=r"out.{1,3}json"),
    Fault("damage", method="PUT", path=r"000005\.tar"),
    Fault("damage", method="PUT", path=r"000002.{1,3}index"),
    Fault("cut", method="GET"),
    Fault("status", method="DELETE|POST"),
)


def test_faults_are_survived(proxy: FaultyProxy, expected: dict[str, bytes]) -> None:
    """A run against a store that fails now and then writes what any other writes."""
    at = proxy.server.new_prefix()
    proxy.set(*FAULTS)
    code, text = tool(*_create(at), server=proxy.server)
    assert code == 0, text
    done = {(one.fault, one.path.partition("?")[0][-11:]) for one in proxy.log().asked if one.fault}
    assert {"000000.tar", "000001.tar", "000002.tar", "000003.tar", "000004.tar"} <= {path[-10:] for _, path in done}
    assert len(done) >= len(FAULTS) - 1  # not every store receives DELETE or POST
    proxy.set()
    assert stored(at) == expected


@pytest.mark.parametrize(
    "instant",
    [
        Fault("silent", method="PUT", first=2),
        Fault("silent", method="PUT", path=r"000001\.tar"),
        Fault("hang", method="PUT", path=r"000002\.tar"),
        Fault("hang", method="PUT", path=r"000003.{1,3}index"),
        Fault("silent", method="PUT", path=r"out.{1,3}json"),
    ],
    ids=lambda one: f"{one.do}-{one.path}",
)
def test_a_kill_leaves_nothing_visible(
    instant: Fault,
    moto: Server,
    use: Callable[[Server], Server],
    proxies: Callable[[Server], FaultyProxy],
    expected: dict[str, bytes],
) -> None:
    """After a kill, shards are complete or missing, without a dataset file; `--resume` gives the same bytes."""
    proxy = proxies(moto)
    at = use(proxy.server).new_prefix()
    proxy.set(instant)
    _kill(start(*_create(at)), lambda: any(one.fault for one in proxy.log().asked))
    _check_resumed(at, proxy, expected)


@pytest.mark.parametrize("shard", [1, 4])
def test_a_kill_in_the_middle_of_an_upload(
    shard: int,
    moto: Server,
    use: Callable[[Server], Server],
    proxies: Callable[[Server], FaultyProxy],
    expected: dict[str, bytes],
) -> None:
    """After a kill during an upload, neither the shard nor an unfinished upload exists."""
    proxy = proxies(moto)
    at = use(proxy.server).new_prefix()
    proxy.set(bytes_per_s=500_000)
    _kill(start(*_create(at)), lambda: any(f"{shard:06}.tar" in one.path for one in proxy.log().asked))
    _check_resumed(at, proxy, expected)


def test_two_runs_at_once(proxy: FaultyProxy, expected: dict[str, bytes]) -> None:
    """The second run is refused by a message that names the first; once that is killed, the next one may run."""
    at = proxy.server.new_prefix()
    proxy.set(Fault("silent", method="PUT", path=r"000003\.tar"))
    first = start(*_create(at))
    try:
        _wait(lambda: any(one.fault for one in proxy.log().asked))
        for option in ("--resume", "--overwrite"):
            code, text = tool(*_create(at), option, server=proxy.server)
            assert (code, f"process {first.pid}" in text) == (5, True), text
    finally:
        _kill(first, lambda: True)
    code, text = tool(*_create(at), "--overwrite", server=proxy.server)
    assert code == 0, text
    assert stored(at) == expected


@pytest.mark.parametrize("first", [1, 5, 12])
def test_an_expiring_token(proxy: FaultyProxy, first: int) -> None:
    """If a token expires during a run, the run fails, names the object, and sends no more requests."""
    at = proxy.server.new_prefix()
    body = f"<Error><Code>ExpiredToken</Code><Message>{proxy.server.secrets[0]}</Message></Error>"
    proxy.set(Fault("status", status=403, first=first, times=None, body=body))
    code, text = tool(*_create(at), server=proxy.server)
    assert (code, at in text, "redentials" in text) == (7, True, True), text
    asked = proxy.log().asked
    refused = [at for at, one in enumerate(asked) if one.fault]
    assert len(refused) <= 2 + 1, asked  # one for each worker with a request in progress
    proxy.set()
    assert "out.json" not in stored(at)


def test_bad_input(moto: Server, use: Callable[[Server], Server]) -> None:
    """Each mistake prints one line that names the cause, and writes nothing."""
    at = use(moto).new_prefix()
    for words, code, parts in (
        ((PHOTOS, "s4://moto/out-{000000..}.tar"), 2, ("s4://", "s3://")),
        ((PHOTOS, "http://127.0.0.1:9/out-{000000..}.tar"), 2, ("http://127.0.0.1:9",)),
        ((PHOTOS, "s3://no-such-bucket/out-{000000..}.tar"), None, ("no-such-bucket",)),
        ((PHOTOS, "s3:///out-{000000..}.tar"), 2, ("s3://",)),
    ):
        found, text = tool("create", *words, server=moto)
        assert found in ((code,) if code else range(1, 9)), text
        assert all(part in text for part in parts), text
        assert len([line for line in text.splitlines() if line.startswith("shardtool:")]) == 1, text
    assert stored(at) == {}


def test_keys_that_are_wrong(rclone: Server, use: Callable[[Server], Server]) -> None:
    """If a store does not know our key, the error names the object, and not the key."""
    at = use(rclone).new_prefix()
    wrong = "aSecretThatTheStoreDoesNotKnow0000000000"
    for words in (_create(at), ("verify", f"{at}/out.json"), ("inspect", at)):
        code, text = tool(*words, server=rclone, AWS_SECRET_ACCESS_KEY=wrong)
        assert (code, at in text, wrong in text) == (7, True, False), text


def test_no_keys(moto: Server, use: Callable[[Server], Server]) -> None:
    """Without keys, and if the machine must not be asked for them, the run fails before any request."""
    at = use(moto).new_prefix()
    none = {
        "AWS_ACCESS_KEY_ID": "",
        "AWS_SECRET_ACCESS_KEY": "",
        "AWS_CONFIG_FILE": "",
        "AWS_SHARED_CREDENTIALS_FILE": "",
    }
    code, text = tool(*_create(at), server=moto, **none)
    assert (code, "no credentials" in text) == (7, True), text


def _kill(run: Started, when: Callable[[], bool]) -> None:
    """Kill a run, and all that it has started."""
    with run:
        _wait(when)
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate(timeout=60)


def _wait(when: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not when():
        assert time.monotonic() < end, "it does not come so far"
        time.sleep(0.02)


def _check_resumed(at: str, proxy: FaultyProxy, expected: dict[str, bytes]) -> None:
    """See what a killed run has left, and that the next one ends its work."""
    proxy.set()
    left = {name: data for name, data in stored(at).items() if not name.startswith(".")}
    assert "out.json" not in left
    assert {name: data for name, data in expected.items() if name in left} == left
    code, text = tool(*_create(at), "--resume", server=proxy.server)
    assert code == 0, text
    assert stored(at) == expected
    assert b"<UploadId>" not in urllib3.request("GET", f"{proxy.server.url}/moto?uploads", retries=False).data
