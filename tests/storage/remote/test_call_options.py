"""`storage_options=` applies to one call, for each store and server and in workers. Secrets appear nowhere."""

from __future__ import annotations

import base64
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

import shardtool
from shardtool.errors import AccessRefused, InvalidRequest, ShardError
from shardtool.storage.remote.http import sign_url
from shardtool.storage.remote.network import web_headers, without_user
from shardtool.storage.remote.store_access import credentials_kind, environment_for, is_anonymous, store_for
from shardtool.storage.remote.store_options import address_with_options
from tests.helpers import read_tree, write_tree
from tests.servers.bucket import SECRET, Bucket, served

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("obstore")
_FILES = {
    f"{folder}/{number}.{field}": b"%d" % number for folder in "ab" for number in range(4) for field in ("n", "t")
}
_TOKEN = "Bearer tokenOfTheServer"  # noqa: S105 - of a server of this file


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove all settings of stores from the environment."""
    for name in [*os.environ]:
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "SHARDTOOL_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")


@pytest.fixture
def buckets() -> Iterator[tuple[Bucket, Bucket]]:
    """Yield two servers, each with a bucket `b`."""
    first, second = Bucket(), Bucket()
    with served(first), served(second):
        yield first, second


def _options(bucket: Bucket) -> dict[str, Any]:
    return {"endpoint": bucket.url, "access_key_id": "AKIAMEMORY", "secret_access_key": SECRET, "region": "us-east-1"}


def _check_clean(*texts: object) -> None:
    for text in texts:
        for word in (SECRET, _TOKEN, "options=", "AKIAMEMORY"):
            assert word not in str(text)


def _all_files(*buckets: Bucket) -> str:
    return "".join(f"{key}{data.decode('latin-1')}" for bucket in buckets for key, data in bucket.objects.items())


def test_all_verbs(buckets: tuple[Bucket, Bucket], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """All verbs read and write with the settings of the call, and results, files and logs contain no setting."""
    caplog.set_level(logging.DEBUG, "shardtool")
    (bucket, other_bucket), source = buckets, write_tree(tmp_path / "in", _FILES)
    first, second = (_options(bucket) for bucket in buckets)
    both = {"s3://b/": first, "s3://b/copied/": second, "s3://b/new/": second}
    out: dict[str, Any] = {"max_count": 3, "workers": 0, "label_from_folder": True}
    results: list[Any] = [
        shardtool.create(source, "s3://b/x/x-{0..}.tar", storage_options=first, **out),
        shardtool.create(source, "s3://b/x/x-{0..}.tar", storage_options=first, resume=True, **out),
        shardtool.index("s3://b/x/x.json", columns_from="n", workers=0, storage_options=first),
        shardtool.verify(["s3://b/x/x.json"], source=source, workers=0, storage_options=first),
        shardtool.inspect("s3://b/x", storage_options=first),
        shardtool.reshard("s3://b/x/x.json", "s3://b/new/y-{0..}.tar", shuffle=True, workers=0, storage_options=both),
        shardtool.copy("s3://b/x/x.json", "s3://b/copied", workers=0, storage_options=both),
        shardtool.diff("s3://b/x/x.json", "s3://b/new/y.json", workers=0, storage_options=both),
        shardtool.extract("s3://b/x/x.json", tmp_path / "files", fields="t", workers=0, storage_options=first),
        shardtool.remove("s3://b/copied/x.json", where="n > 2", workers=0, storage_options=both),
        shardtool.export("s3://b/x/x.json", "timm", workers=0, storage_options=first),
        shardtool.doctor("s3://b/x", storage_options=first),
    ]
    results += [
        shardtool.find_duplicates("s3://b/x/x.json", storage_options=first),
        shardtool.inspect_table("s3://b/x/x.json", tmp_path / "t.csv", storage_options=first),
        shardtool.inspect_html("s3://b/x/x.json", tmp_path / "page.html", storage_options=first),
    ]
    with shardtool.ShardWriter("s3://b/w/z-{0..}.tar", storage_options=second) as writer:
        writer.write({"__key__": "a", "txt": "text"})
    assert (results[3].sound, results[7].same, results[9].datasets[0].removed) == (True, True, 2)
    assert ([*bucket.below("w")], {*bucket.below("new")}) == ([], set())
    assert {"x.json", "x-0.tar"} <= {*other_bucket.below("copied")}
    assert {*other_bucket.below("new")} >= {"y.json"}
    assert {*other_bucket.below("w")} == {"z-0.tar", "z-0.index", "z.json"}
    assert writer.dataset_file == "s3://b/w/z.json"
    assert results[0].dataset_file == "s3://b/x/x.json"
    documents = [result.to_json() for result in results if hasattr(result, "to_json")]
    _check_clean(
        results, documents, writer, writer.notes, caplog.text, _all_files(bucket, other_bucket), dict(os.environ)
    )
    opened = shardtool.open("s3://b/new/y.json", storage_options=second, cache=shardtool.Cache(tmp_path / "cache"))
    assert (len([*opened]), opened.table().to_table().num_rows) == (8, 8)
    for part in range(2):
        with shardtool.ShardWriter("s3://b/m/z-{0..}.tar", part=part, parts=2, storage_options=second) as writer:
            writer.write({"__key__": f"{part}", "txt": "text"})
    merged = shardtool.merge("s3://b/m/z-{0..}.tar", storage_options=second)
    assert (merged.dataset_file, merged.samples) == ("s3://b/m/z.json", 2)
    _check_clean(opened, *(data.decode("latin-1") for data in read_tree(tmp_path).values()))


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_get_the_options(start: Any, buckets: tuple[Bucket, Bucket], tmp_path: Path) -> None:
    """Worker processes write and read with the settings of the call, however they start."""
    source, worker_options = write_tree(tmp_path / "in", _FILES), {"workers": 2, "start_method": start}
    options = _options(buckets[0])
    shardtool.create(source, "s3://b/x/x-{0..}.tar", max_count=3, storage_options=options, **worker_options)
    assert shardtool.verify("s3://b/x/x.json", storage_options=options, **worker_options).sound


def test_calls_of_two_threads(buckets: tuple[Bucket, Bucket], tmp_path: Path) -> None:
    """Calls that run at the same time use their own settings, even for buckets with the same name."""

    def run(number: int) -> list[str]:
        source = write_tree(tmp_path / str(number), {f"{number}{name}.t": b"x" for name in "abc"})
        options = _options(buckets[number])
        shardtool.create(source, "s3://b/x-{0..}.tar", workers=0, storage_options=options)
        return [*shardtool.open("s3://b/x.json", storage_options=options).keys]

    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(run, range(2))] == [[f"{number}{name}" for name in "abc"] for number in range(2)]


class _Closed(BaseHTTPRequestHandler):
    """Serves the files of `folder` to requests with the token."""

    protocol_version = "HTTP/1.1"
    folder: Path

    def do_GET(self) -> None:
        path = self.folder / self.path.lstrip("/").partition("?")[0]
        data = path.read_bytes() if path.is_file() else b""
        status = 401 if self.headers.get("Authorization") != _TOKEN else 200 if data else 404
        first, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")
        start = int(first or max(0, len(data) - int(last)))
        end = min(len(data), int(last) + 1 if first and last else len(data))
        part = data[start:end] if status == 200 else b""
        self.send_response(206 if part else status)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_headers_of_a_web_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`headers` are sent to the server of the call, and appear nowhere else."""
    caplog.set_level(logging.DEBUG, "shardtool")
    shardtool.create(write_tree(tmp_path / "in", _FILES), tmp_path / "x-{0..}.tar", max_count=3, workers=0)
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Closed,), {"folder": tmp_path})) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/x.json"
        options = {"headers": {"Authorization": _TOKEN}}
        report = shardtool.verify(url, workers=0, storage_options=options)
        copied = shardtool.copy(url, tmp_path / "copy", workers=0, storage_options=options)
        keys = [*shardtool.open(url, storage_options={"http://": options}).keys]
        with pytest.raises(AccessRefused) as refused:
            shardtool.verify(url, workers=0, storage_options={"headers": {"Authorization": _TOKEN[:-1]}})
        server.shutdown()
    assert (report.sound, copied.datasets[0].copied, len(keys)) == (True, 3, 8)
    _check_clean(report, copied, refused.value, caplog.text)
    assert _TOKEN[:-1] not in str(refused.value)


def test_settings_of_azure_and_google(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings replace those of the environment for one address; the address itself is shown without a marker."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "other")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sig=other")
    key = base64.b64encode(b"a key").decode()
    address = address_with_options("az://c/k", {"account_name": "mine", "account_key": key})
    assert sign_url(address, "GET").startswith("https://mine.blob.core.windows.net/c/k?sp=r&")
    settings = {"account_name": "mine", "sas_token": "sig=1", "endpoint": "https://h:1/mine"}
    assert sign_url(address_with_options("az://c/k", settings), "PUT") == "https://h:1/mine/c/k?sig=1"
    public = address_with_options("az://c/k", {"account_name": "mine", "anonymous": True})
    assert sign_url(public, "GET") == "https://mine.blob.core.windows.net/c/k"
    assert sign_url("az://c/k", "GET") == "https://other.blob.core.windows.net/c/k?sig=other"
    google = address_with_options("gs://c/k", {"endpoint": "http://h:1", "anonymous": True})
    assert sign_url(google, "GET") == "http://h:1/c/k"


def test_credentials_of_azure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token of the call is used even if the environment has an account key."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", base64.b64encode(b"other").decode())
    address = address_with_options("az://c/k", {"account_name": "mine", "sas_token": "?sig=1"})
    assert store_for(address)[0].credential_provider() == {"sas_token": "sig=1", "expires_at": None}
    assert credentials_kind(address) == "shared access signature (storage_options)"
    address = address_with_options("az://c/k", {"account_name": "mine"})
    assert credentials_kind(address) == "account key (environment: AZURE_STORAGE_ACCOUNT_KEY)"


def test_credentials_replace_unsigned_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials of the call sign requests that the environment leaves unsigned."""
    for name in ("AWS", "AZURE", "GOOGLE"):
        monkeypatch.setenv(f"{name}_SKIP_SIGNATURE", "true")
    monkeypatch.setenv("SHARDTOOL_ANONYMOUS", "true")
    for address, settings in (
        ("s3://c/k", {"access_key_id": "a", "secret_access_key": "b"}),
        ("gs://c/k", {"service_account_key": "{}"}),
        ("az://c/k", {"account_name": "mine", "sas_token": "sig=1"}),
    ):
        assert is_anonymous(address[:2])
        assert not is_anonymous(address[:2], environment_for(address_with_options(address, settings)))
    assert not store_for(address_with_options(address, settings))[1]


def test_headers_and_a_password() -> None:
    """Headers of a call are sent in addition to the user and password of the address."""
    url = address_with_options("https://me:pw@h/x?q", {"headers": {"x-a": "b"}})
    assert web_headers(url) == {"X-A": "b", "Authorization": f"Basic {base64.b64encode(b'me:pw').decode()}"}
    assert without_user(url) == "https://h/x?q"


_S3 = "endpoint, region, profile, access_key_id, secret_access_key, session_token, anonymous"
_NAMES = "endpoint, account_name, account_key, sas_token, anonymous"


@pytest.mark.parametrize(
    ("where", "options", "said"),
    [
        ("s3://b/x", {"key": "x"}, f"storage_options: the option 'key' of s3://; expected one of {_S3}"),
        ("s3://b/x", {"endpoit": "x"}, f"'endpoit' of s3://; expected one of {_S3}. Did you mean 'endpoint'?"),
        ("az://b/x", {"region": "x"}, f"'region' of az://; expected one of {_NAMES}. Give each store its own options"),
        ("https://h/x", {"endpoint": "x"}, "the option 'endpoint' of https://; expected one of headers. Give each"),
        ("s3://b/x", {"anonymous": "yes"}, "storage_options['anonymous']: a str; expected True or False"),
        ("s3://b/x", {"secret_access_key": ""}, "['secret_access_key']: an empty string; expected a string"),
        ("s3://b/x", {"endpoint": "minio"}, "storage_options['endpoint']: not a server URL"),
        ("gs://b/x", {"service_account": "no.json"}, "storage_options['service_account']: no.json: no such file"),
        ("https://h/x", {"headers": {"a b": _TOKEN}}, "storage_options['headers']: not a header"),
        ("https://h/x", {"headers": "x"}, "storage_options['headers']: a str; expected a dict of strings"),
        ("https://h/x", {"headers": {"a": None}}, "storage_options['headers']: not only strings"),
        ("s3://b/x", {"s3://b/": {}, "region": "x"}, "storage_options: 'region'; expected only addresses such as"),
        ("s3://b/x", {"s3://q/": {"region": "x"}}, "storage_options: no argument starts with 's3://q/'; expected an"),
        ("s3://b/x", "x", "storage_options: a str; expected a dict of settings"),
        ("x.json", {"anonymous": True}, "storage_options: all paths are local; expected an address such as s3://"),
    ],
)
def test_invalid_options(where: str, options: Any, said: str) -> None:
    """Unknown names, invalid values and options without an address are refused, without showing values."""
    for call in (shardtool.open, shardtool.inspect):
        with pytest.raises(InvalidRequest) as refused:
            call(where, storage_options=options)
        assert said in str(refused.value)
        _check_clean(refused.value)
    with pytest.raises(ShardError) as writer:
        shardtool.ShardWriter(f"{where}-{{0..}}.tar", storage_options=options)
    assert said in str(writer.value)
