"""Laws of `doctor`: each problem fails its own check with a fix, and nothing written remains."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

import shardtool
from shardtool.storage.remote import network
from shardtool.storage.remote.retry import DEFAULT_POLICY
from tests.helpers import REPO, tool, typed, write_tree
from tests.servers.between import forwarding, tls
from tests.servers.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.servers.faults import FaultyProxy
    from tests.servers.processes import Server

_SECRET = "verySecretKeyOfTheDoctorsTests"  # noqa: S105 - of a server of this file
_ENTRY = "<Contents><Key>{}</Key><Size>{}</Size><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"


class _Bucket:
    """An S3 bucket, served by threads of this process.

    Attributes:
        objects: Bytes by key.
        requests: The requests so far: `PUT`, `GET`, `LIST`, `DELETE`.
        denied: Requests that get status 403.
        fixed_answer: The status and code of every response; None: real responses.
        supported: The supported conditional headers.
        off_s: How far the clock is ahead.
        extra_headers: Further headers of each response.
        late_s: Duration of a PUT.
        was_put: Set after a PUT; the response then waits for `go_on`.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.denied: set[str] = set()
        self.fixed_answer: tuple[int, str] | None = None
        self.supported = {"If-None-Match", "If-Match"}
        self.off_s, self.extra_headers = 0.0, dict[str, str]()
        self.late_s = 0.0
        self.was_put, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()
        self.url = ""

    def answer(self, method: str, path: str, query: str, headers: dict[str, str], body: bytes) -> tuple[int, str]:
        """Return the status, and the body or the code of an error."""
        key = unquote(path).strip("/").partition("/")[2]
        what = "DELETE" if "delete" in query else "LIST" if "list-type" in query else method
        self.requests.append(what)
        if self.fixed_answer is not None:
            return self.fixed_answer
        if what == "DELETE":
            [key] = re.findall("<Key>(.*?)</Key>", body.decode())
            if "DELETE" in self.denied:
                error = f"<Error><Key>{key}</Key><Code>AccessDenied</Code><Message>no</Message></Error>"
                return 200, f"<DeleteResult>{error}</DeleteResult>"
            self.objects.pop(key, None)
            return 200, f"<DeleteResult><Deleted><Key>{key}</Key></Deleted></DeleteResult>"
        if what in self.denied:
            return 403, "AccessDenied"
        if what == "LIST":
            [prefix] = parse_qs(query).get("prefix", [""])
            result = [(one, data) for one, data in sorted(self.objects.items()) if one.startswith(prefix)]
            entries = "".join(_ENTRY.format(one, len(data)) for one, data in result)
            return 200, f"<ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
        return self._of_object(method, key, headers, body)

    def _of_object(self, method: str, key: str, headers: dict[str, str], body: bytes) -> tuple[int, str]:
        if method == "PUT":
            there = _tag(self.objects[key]) if key in self.objects else ""
            for name, holds in (("If-None-Match", not there), ("If-Match", headers.get("if-match") == there)):
                if name.lower() in headers and name in self.supported and not holds:
                    return 412, "PreconditionFailed"
            if self.late_s:
                self.was_put.set()
                time.sleep(self.late_s)
            self.objects[key] = body
            self.was_put.set()
            self.go_on.wait(20)
            return 200, ""
        return (200, self.objects[key].decode()) if key in self.objects else (404, "NoSuchKey")


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


@contextmanager
def _served(bucket: _Bucket) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

        def _do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            parts = urlsplit(self.path)
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, text = bucket.answer(self.command, parts.path, parts.query, headers, body)
            tag, size = _tag(text.encode() if self.command == "GET" else body), len(text)
            result = re.fullmatch("bytes=([0-9]+)-([0-9]+)", headers.get("range", ""))
            if status >= 300:
                text = f"<Error><Code>{text}</Code><Message>{_SECRET}</Message></Error>"
            elif result:
                status, text = 206, text[int(result[1]) : int(result[2]) + 1]
            self.send_response_only(status)
            if result and status == 206:
                self.send_header("Content-Range", f"bytes {result[1]}-{int(result[1]) + len(text) - 1}/{size}")
            self.send_header("Date", formatdate(time.time() + bucket.off_s, usegmt=True))
            self.send_header("ETag", tag)
            for name, value in bucket.extra_headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_PUT = do_POST = do_DELETE = do_CONNECT = _do  # noqa: N815 - the server's names

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        bucket.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield
        finally:
            bucket.go_on.set()
            server.shutdown()


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Bucket]:
    """Return a bucket named `b` that allows all requests."""
    for name in (*network.NETWORK_VARIABLES, "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    bucket = _Bucket()
    monkeypatch.setattr(
        "shardtool.verbs.doctor._RETRY_POLICY",
        DEFAULT_POLICY._replace(tries=2, first_wait_s=0, max_total_s=0.5, first_response_s=0.5),
    )
    with _served(bucket):
        monkeypatch.setenv("SHARDTOOL_ENDPOINT", bucket.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIADOCTOR")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", _SECRET)
        yield bucket


def _wrong(place: str) -> dict[str, shardtool.Check]:
    result = shardtool.doctor(place)
    assert result.well == all(check.state != "wrong" for check in result.checks)
    assert _SECRET not in repr(result)
    return {check.name: check for check in result.checks if check.state == "wrong"}


def test_an_allowed_store_passes_all_checks(bucket: _Bucket) -> None:
    """If everything is allowed, each check passes, whether or not objects exist, and no object remains."""
    for there in ({}, {"x/cat/1.jpg": b"jpg", "x/dog": b""}):
        bucket.objects = dict(there)
        result = shardtool.doctor("s3://b/x")
        assert {check.name: check for check in result.checks if check.state != "ok"} == {}
        assert bucket.objects == there
    checks = {check.name: check.found for check in result.checks}
    assert checks["server"] == bucket.url
    assert checks["credentials"] == "key (environment: AWS_ACCESS_KEY_ID)"
    assert checks["list"] == "allowed; the first is cat/1.jpg"
    assert [*checks] == ["server", "proxy", "certificate", "clock", "credentials", "bucket", "list", "read", "write",
                       "conditions", "delete"]  # fmt: skip


@pytest.mark.parametrize(
    "place", ["s3://b", "s3://b/", "s3://b/a b/#1%41/", "s3://b/x/out-{000..}.tar", "s3://b/x.json"]
)
def test_any_prefix_or_dataset_names_a_location(place: str, bucket: _Bucket) -> None:
    """A bucket is accepted like its prefixes; for a dataset, its folder is checked."""
    bucket.objects = {"a b/#1%41/cat": b"1", "cat": b"1", "x/cat": b"1"}
    there = dict(bucket.objects)
    result = shardtool.doctor(place)
    assert {check.name: check for check in result.checks if check.state != "ok"} == {}
    assert bucket.objects == there
    assert "cat" in {check.name: check.found for check in result.checks}["list"]


def test_read_only_writes_nothing(bucket: _Bucket) -> None:
    """With `read_only`, nothing is written or deleted, and write checks are not listed."""
    bucket.denied = {"PUT", "DELETE"}
    bucket.objects = {"x/1": b"1"}
    result = shardtool.doctor("s3://b/x/out.json", read_only=True)
    assert result.well
    assert result.place == "s3://b/x"
    assert {"PUT", "DELETE", "POST"}.isdisjoint(bucket.requests)
    assert [check.name for check in result.checks if check.state == "unknown"] == []
    assert {"write", "conditions", "delete"}.isdisjoint(check.name for check in result.checks)


@pytest.mark.parametrize(
    ("denied", "wrong", "cure"),
    [("LIST", "list", "s3:ListBucket"), ("GET", "read", "s3:GetObject"), ("PUT", "write", "s3:PutObject"),
     ("DELETE", "delete", "s3:DeleteObject")],
)  # fmt: skip
def test_a_missing_permission_is_named(denied: str, wrong: str, cure: str, bucket: _Bucket) -> None:
    """A refused step fails under its own name with the permission as its fix; the other steps are still checked."""
    bucket.denied, bucket.objects = {denied}, {"x/1": b"1"}
    failed_checks = _wrong("s3://b/x")
    assert [*failed_checks] == [wrong]
    assert cure in failed_checks[wrong].cure
    assert "AccessDenied" in failed_checks[wrong].found
    assert bucket.objects == {"x/1": b"1"}
    if denied == "DELETE":
        assert "PUT" not in bucket.requests  # nobody could remove it
        checks = {check.name: check.found for check in shardtool.doctor("s3://b/x").checks}
        assert (checks["write"], checks["conditions"]) == ("not checked: delete failed",) * 2


def test_an_unknown_step_names_the_failed_step(bucket: _Bucket) -> None:
    """A step that could not run names the step that it needs."""
    bucket.denied = {"LIST", "PUT"}
    checks = {check.name: check.found for check in shardtool.doctor("s3://b/x").checks}
    assert checks["read"] == "not checked: list failed"
    assert checks["conditions"] == "not checked: write failed"


def test_a_remaining_object_is_named(bucket: _Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """If deleting is refused after the write, the object's address is reported."""
    put = bucket._of_object  # noqa: SLF001 - of this file

    def then_denied(*of: object) -> tuple[int, str]:
        bucket.denied = {"DELETE"} if bucket.requests[-1] == "PUT" else bucket.denied
        return put(*of)  # type: ignore[arg-type]

    monkeypatch.setattr(bucket, "_of_object", then_denied)
    failed_checks = _wrong("s3://b/x")
    [key] = bucket.objects
    assert [*failed_checks] == ["delete"]
    assert failed_checks["delete"].cure == f"Delete s3://b/{key}, which still exists."


@pytest.mark.parametrize("keeps", ["If-None-Match", "If-Match"])
def test_ignored_conditions_are_found(keeps: str, bucket: _Bucket) -> None:
    """A store that ignores one of the conditional writes, which locks need, is found."""
    bucket.supported -= {keeps}
    failed_checks = _wrong("s3://b/x")
    assert [*failed_checks] == ["conditions"]
    assert keeps in failed_checks["conditions"].found
    assert "SHARDTOOL_UNLOCKED" in failed_checks["conditions"].cure
    assert not bucket.objects


@pytest.mark.parametrize(
    ("says", "wrong", "cure"),
    [
        ((403, "SignatureDoesNotMatch"), "credentials", "secret key that belongs to the key id"),
        ((403, "InvalidAccessKeyId"), "credentials", "key id that this server knows"),
        ((400, "ExpiredToken"), "credentials", "Get new credentials"),
        ((403, "RequestTimeTooSkewed"), "credentials", "Set the clock"),
        ((404, "NoSuchBucket"), "bucket", "Create the bucket"),
        ((301, "PermanentRedirect"), "bucket", "region"),
        ((307, "TemporaryRedirect"), "bucket", "region"),
        ((400, "AuthorizationHeaderMalformed</Code><Region>eu-central-1</Region><Code>"), "bucket",
         "AWS_REGION=eu-central-1"),
        ((400, "AuthorizationQueryParametersError"), "bucket", "region"),
        pytest.param((503, "SlowDown"), "server", "Try again", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_error_codes_of_s3_select_the_failed_step(
    says: tuple[int, str], wrong: str, cure: str, bucket: _Bucket
) -> None:
    """The store's error code selects the step and its fix; then nothing else is requested."""
    bucket.fixed_answer = says
    failed_checks = _wrong("s3://b/x")
    assert [*failed_checks] == [wrong]
    assert cure in failed_checks[wrong].cure
    assert {*bucket.requests} == {"GET"}


@pytest.mark.parametrize(
    ("says", "wrong"),
    [((403, "AuthenticationFailed"), "credentials"), ((404, "ContainerNotFound"), "bucket"),
     ((403, "AuthorizationPermissionMismatch"), "list")],
)  # fmt: skip
def test_error_codes_of_azure_are_known(
    says: tuple[int, str], wrong: str, bucket: _Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Azure's error codes are known, too."""
    for name, value in (("NAME", "account"), ("KEY", base64.b64encode(_SECRET.encode()).decode())):
        monkeypatch.setenv(f"AZURE_STORAGE_ACCOUNT_{name}", value)
    monkeypatch.setenv("AZURE_SKIP_SIGNATURE", "false")
    bucket.fixed_answer = says
    failed_checks = _wrong("az://b/x")
    assert next(iter(failed_checks)) == wrong
    assert ("the role Storage Blob Data" in failed_checks[wrong].cure) == (wrong == "list")
    kind = {check.name: check.found for check in shardtool.doctor("az://b/x").checks}["credentials"]
    assert wrong == "credentials" or kind == "account key (environment: AZURE_STORAGE_ACCOUNT_KEY)"


@pytest.mark.parametrize(("off_s", "wrong"), [(0, False), (200, False), (1000, True), (-1000, True)])
def test_a_wrong_clock_is_found(off_s: int, wrong: bool, bucket: _Bucket) -> None:  # noqa: FBT001 - a parameter
    """The clock must match the server's within the tolerance of stores; the message says which one is ahead."""
    bucket.off_s = off_s
    failed_checks = _wrong("s3://b/x")
    assert ("clock" in failed_checks) == wrong
    if wrong:
        assert ("ahead of" in failed_checks["clock"].found) == (off_s < 0)
        assert "Set the clock" in failed_checks["clock"].cure


@pytest.mark.parametrize(
    ("more", "message"), [({"Age": "1000"}, "matches the server's clock"), ({"Age": "x"}, "no time")]
)
def test_a_cached_date_is_corrected_by_its_age(more: dict[str, str], message: str, bucket: _Bucket) -> None:
    """A cached response has an old date and its age."""
    bucket.off_s, bucket.extra_headers = -1000, more
    clock = {check.name: check for check in shardtool.doctor("s3://b/x").checks}["clock"]
    assert clock.state == "ok"
    assert message in clock.found


def test_missing_credentials_are_named(bucket: _Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without credentials no request is sent, and the message says where to set them; anonymous access needs none."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert [*_wrong("s3://b/x")] == ["credentials"]
    assert not bucket.requests
    monkeypatch.setenv("SHARDTOOL_ANONYMOUS", "1")
    bucket.objects = {"x/1": b"1"}
    checks = {check.name: check for check in shardtool.doctor("s3://b/x", read_only=True).checks}
    assert checks["credentials"].found == "none: requests are not signed"
    assert checks["read"].state == "ok"


def test_anonymous_on_the_command_line(bucket: _Bucket) -> None:
    """`--anonymous` signs no request, even if there are keys."""
    bucket.objects = {"x/1": b"1"}
    run = tool("doctor", "s3://b/x", "--read-only", "--anonymous", SHARDTOOL_ENDPOINT=bucket.url)
    assert "none: requests are not signed" in run.out, run


@pytest.mark.slow
def test_an_unreachable_server_or_proxy_is_named_soon(bucket: _Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing server or proxy is named soon, for any number of retries."""
    monkeypatch.setenv("SHARDTOOL_RETRY_FOR", "600")
    begun = time.monotonic()
    with monkeypatch.context() as patched:
        patched.setenv("SHARDTOOL_ENDPOINT", "http://127.0.0.1:9")
        assert "127.0.0.1:9" in _wrong("s3://b/x")["server"].found
    monkeypatch.setenv("HTTP_PROXY", f"http://me:{_SECRET}@127.0.0.1:9")
    failed_checks = _wrong("s3://b/x")
    assert [*failed_checks] == ["server"]
    assert "the proxy 127.0.0.1:9" in failed_checks["server"].found
    assert time.monotonic() - begun < 10
    assert not bucket.requests


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("status", [403, 407])
def test_a_refusing_proxy_is_named(scheme: str, status: int, bucket: _Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that requires authentication or refuses the connection is named with its fix."""
    bucket.fixed_answer = (status, "x")
    monkeypatch.setenv("SHARDTOOL_ENDPOINT", f"{scheme}://127.0.0.1:9")
    monkeypatch.setenv(f"{scheme.upper()}_PROXY", bucket.url)
    failed_checks = _wrong("s3://b/x")
    [(name, wrong)] = [(name, one) for name, one in failed_checks.items() if name in ("server", "bucket", "list")][:1]
    if scheme == "https":
        assert (name, wrong.found) == ("server", f"the proxy {bucket.url[7:]}: status {status}")
        assert len(bucket.requests) == 1
    assert ("HTTPS_PROXY" in wrong.cure) == (scheme == "https" or status == 407)


def test_the_proxy_is_shown_without_credentials(bucket: _Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy of the requests is listed, without its user and password."""
    with forwarding() as between:
        monkeypatch.setenv("HTTP_PROXY", f"http://me:{_SECRET}@127.0.0.1:{between.port}")
        result = shardtool.doctor("s3://b/x")
        assert result.well
        assert {check.name: check.found for check in result.checks}["proxy"] == f"http://127.0.0.1:{between.port}"
        assert _SECRET not in repr(result)
        assert bucket.requests


@pytest.mark.slow
def test_an_untrusted_certificate_fails(
    http_files: Server, tmp_path: Path, bucket: _Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An untrusted certificate is the failed step, with its fix; for a trusted one the expiry is listed."""
    assert bucket.url
    at = http_files.new_prefix()
    (http_files.local(at) / "x").write_bytes(b"here")
    with tls(http_files.port, tmp_path) as between:
        place = at.replace("http:", "https:").replace(str(http_files.port), str(between.port)) + "/x"
        failed_checks = _wrong(place)
        assert [*failed_checks] == ["server"]
        assert "AWS_CA_BUNDLE" in failed_checks["server"].cure
        monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "authority.pem"))
        checks = {check.name: check for check in shardtool.doctor(place).checks}
        assert checks["certificate"].found.startswith("trusted; expires ")
        assert checks["read"].found == "4 bytes"


def test_a_web_file_is_checked(http_files: Server, proxies: Callable[[Server], FaultyProxy]) -> None:
    """Size, ranges and conditions of a file on the web are listed; no ranges, or a missing file, fails."""
    proxy = proxies(http_files)
    at = http_files.new_prefix()
    (http_files.local(at) / "x.json").write_bytes(b"here")
    place = f"{proxy.server.url}/{at.rpartition('/')[2]}/x.json"
    result = shardtool.doctor(f"{place}?token={_SECRET}")
    assert result.well
    assert _SECRET not in json.dumps(result.to_json())
    assert {check.name: check.found for check in result.checks}["conditions"] == "supported (If-Match)"
    proxy.set(Fault("whole", times=None))
    assert [*_wrong(place)] == ["ranges"]
    proxy.set(Fault("status", status=403, times=None))
    assert [*_wrong(place)] == ["read"]
    assert [*_wrong(place.replace("x.json", "y.json"))] == ["read"]


def test_a_web_server_without_conditions_passes(bucket: _Bucket) -> None:
    """A web server that ignores `If-Match` is reported but passes, because ETags are compared."""
    bucket.objects = {"x/1": b"1"}
    result = shardtool.doctor(f"{bucket.url}/b/x/1")
    assert result.well
    assert "ignored" in {check.name: check.found for check in result.checks}["conditions"]


def test_a_folder_is_checked_by_using_it(tmp_path: Path) -> None:
    """A folder, also a missing one, is checked by real operations; nothing is created, and nothing remains."""
    (tmp_path / "a b").write_bytes(b"")
    for place in (tmp_path, tmp_path / "new", f"{tmp_path}/new/", tmp_path / "out.json"):
        result = shardtool.doctor(place)
        assert {check.name: check for check in result.checks if check.state != "ok"} == {}
    assert [item.name for item in tmp_path.iterdir()] == ["a b"]
    assert [*_wrong(str(tmp_path / "a b"))] == ["folder"]
    assert [*_wrong(str(tmp_path / "a b" / "below"))] == ["folder"]


def test_missing_parent_folders_are_reported(tmp_path: Path) -> None:
    """If `create` would create several levels of folders, the check passes and shows a misspelled name."""
    source = write_tree(tmp_path / "source", {"a.txt": b"a"})
    place = tmp_path / "typo" / "below" / "it"
    checks = {check.name: check for check in shardtool.doctor(place).checks}
    assert {item.state for item in checks.values()} == {"ok"}
    assert checks["folder"].found == f"does not exist yet, nor does {place.parent}; both would be created in {tmp_path}"
    assert [*tmp_path.iterdir()] == [source]
    assert shardtool.create(source, place / "out-{000000..}.tar").shards == 1


@pytest.mark.skipif(sys.platform != "linux" or not os.path.isdir("/proc/self"), reason="a folder that takes nothing")
def test_a_folder_without_write_access_fails() -> None:
    """If writing fails, that step fails, and the dependent steps are unknown."""
    assert [*_wrong("/proc/self")] == ["write"]
    states = {check.name: check.state for check in shardtool.doctor("/proc/self").checks}
    assert [name for name, state in states.items() if state == "unknown"] == ["rename", "locks", "delete"]


@pytest.mark.parametrize(
    "place", ["nowhere://x", "s3://", "s3:/b/x", "s3://b//x", "", "-", "pipe:ls", ["a", "b"], "az://c/x"]
)
def test_an_invalid_location_is_refused(place: str | list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An invalid location is refused, or reported as missing."""
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME")
    if place == "az://c/x":
        assert "no account" in _wrong(str(place))["credentials"].found
        return
    with pytest.raises(shardtool.InvalidRequest):
        shardtool.doctor(place)


@pytest.mark.slow
def test_an_unreachable_server_is_tried_twice(bucket: _Bucket) -> None:
    """The command line ends soon if no server listens, and names what to check."""
    assert bucket.url
    nowhere = "http://127.0.0.1:9"
    ran = tool("doctor", "s3://b/x", SHARDTOOL_ENDPOINT=nowhere, AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY=_SECRET)
    assert ran.code == 3
    output = " ".join(ran.out.split())  # wherever its lines are folded
    assert " (2 attempts in " in output
    assert "Check the address" in output


def test_the_output_fits_the_terminal(bucket: _Bucket) -> None:
    """Text is aligned and wrapped; JSON has the same content; the exit code tells whether all checks passed."""
    bucket.denied = {"PUT"}
    ran = typed("doctor", "s3://b/x")
    assert (ran.code, ran.err) == (3, "")
    first, *lines = ran.out.splitlines()
    assert first == "s3://b/x: 1 of 11 checks failed"
    assert max(map(len, lines)) <= 100
    assert " -" in {line[23:25] for line in lines if line[2] == " "}  # a cure; what a slow server folds goes on there
    assert not [line for line in lines if line[23] != " " or line[24] == " "]
    assert "  write        wrong    " in ran.out
    assert "-> Allow s3:PutObject there." in ran.out
    document = json.loads(typed("doctor", "s3://b/x", "--json").out)
    assert (document["well"], len(document["checks"])) == (False, 11)
    assert typed("doctor", "s3://b/x", "--read-only").code == 0


@pytest.mark.parametrize("signum", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_still_deletes_the_object(signum: int, bucket: _Bucket) -> None:
    """A signal during or after the write ends the run, and the object is deleted."""
    bucket.go_on.clear()
    with subprocess.Popen(
        [sys.executable, "-m", "shardtool", "doctor", "s3://b/x"], cwd=REPO, env=dict(os.environ),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as run:  # fmt: skip
        assert bucket.was_put.wait(20)
        assert len(bucket.objects) == (not bucket.late_s)
        run.send_signal(signum)
        out, err = run.communicate(timeout=20)
    assert run.returncode == 128 + signum, err
    assert not out
    assert err == f"shardtool: interrupted by {signal.Signals(signum).name}. Run it again.\n"
    assert not bucket.objects


@pytest.mark.slow
def test_an_object_that_appears_late_is_deleted(bucket: _Bucket) -> None:
    """An object that appears only after the first deletion is deleted again."""
    bucket.late_s = 0.15
    test_a_signal_still_deletes_the_object(signal.SIGINT, bucket)


@pytest.mark.slow
def test_a_signal_names_the_remaining_object(bucket: _Bucket) -> None:
    """If the object cannot be deleted after a signal, its address is reported."""
    bucket.go_on.clear()
    with subprocess.Popen(
        [sys.executable, "-m", "shardtool", "doctor", "s3://b/x"], cwd=REPO, env=dict(os.environ),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as run:  # fmt: skip
        assert bucket.was_put.wait(20)
        bucket.denied = {"DELETE"}
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=20)
    [key] = bucket.objects
    assert f"s3://b/{key} may still exist: delete it." in err
