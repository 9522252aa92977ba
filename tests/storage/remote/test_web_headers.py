"""Headers for web servers are sent only to the right server, and appear nowhere else."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from shardtool import CreateOptions, ReshardOptions, copy, create, inspect, reshard, verify
from shardtool.errors import AccessRefused, InvalidRequest
from shardtool.storage.files import read_small
from shardtool.storage.remote.network import use_headers
from shardtool.storage.remote.store_options import HEADERS_VARIABLE
from tests.helpers import read_tree, write_tree

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers.processes import Server

_BASIC = "Basic bWU6cEBzcw=="


class _Handler(BaseHTTPRequestHandler):
    """Redirect `/to/PORT/NAME` to another server; answer 401 for `/closed` without a password."""

    protocol_version = "HTTP/1.1"
    requests: list[tuple[int, dict[str, str]]]

    def do_GET(self) -> None:
        self.requests.append((self.connection.getsockname()[1], dict(self.headers)))
        status, more, body = 200, {}, b"read"
        if self.path.startswith("/to/"):
            _, _, port, name = self.path.split("/", 3)
            status, more, body = 302, {"Location": f"http://other:secret@127.0.0.1:{port}/{name}"}, b""
        elif self.path.startswith("/closed") and "Authorization" not in self.headers:
            status = 401
        self.send_response(status)
        for name, value in {**more, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def _serving(requests: list[tuple[int, dict[str, str]]]) -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"requests": requests})) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[int, dict[str, str]]]:
    """Return the list of requests, which the servers fill."""
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv(HEADERS_VARIABLE, "")
    return []


@pytest.fixture
def ports(requests: list[tuple[int, dict[str, str]]]) -> Iterator[list[int]]:
    """Yield the ports of two servers."""
    with ExitStack() as stack:
        yield [stack.enter_context(_serving(requests)) for _ in range(2)]


@pytest.mark.parametrize("way", ["address", "header", "variable", "netrc"])
def test_credentials_are_sent_only_to_the_named_server(
    way: str,
    requests: list[tuple[int, dict[str, str]]],
    ports: list[int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A user in the URL, headers and `.netrc` are sent to the named server, but not after a redirect to another."""
    user = "me:p%40ss@" if way == "address" else ""
    if way == "header":
        use_headers([f"authorization: {_BASIC}", "X-Token: secret"])
    elif way == "variable":
        monkeypatch.setenv(HEADERS_VARIABLE, f"X-Token: secret\nAuthorization: {_BASIC}\n")
    elif way == "netrc":
        (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password p@ss\n")
    assert read_small(f"http://{user}127.0.0.1:{ports[0]}/closed") == b"read"
    assert read_small(f"http://{user}127.0.0.1:{ports[0]}/to/{ports[0]}/closed") == b"read"
    with pytest.raises(AccessRefused, match="401") as caught:
        read_small(f"http://{user}127.0.0.1:{ports[0]}/to/{ports[1]}/closed")
    assert not any(secret in str(caught.value) for secret in ("p%40ss", "p@ss", "secret", "me:"))
    for port, headers in requests:
        named = port == ports[0]
        assert headers.get("Authorization") == (_BASIC if named else None)
        assert headers.get("X-Token") == ("secret" if named and way in ("header", "variable") else None)


@pytest.mark.parametrize("line", ["secret", "a b: secret", "Range: bytes=secret", "Host: secret", "X: secret\nY: z"])
def test_invalid_headers_are_refused(line: str) -> None:
    """An invalid or reserved header is refused, and its value is not shown."""
    with pytest.raises(InvalidRequest) as caught:
        use_headers([line])
    assert "secret" not in str(caught.value)


def test_outputs_contain_no_credentials(tmp_path: Path, http_files: Server) -> None:
    """Outputs of verbs on a URL with user and password contain neither."""
    at = http_files.new_prefix()
    files = {f"{number}.txt": bytes([number]) * 3000 for number in range(4)}
    create(write_tree(tmp_path / "in", files), f"{http_files.local(at)}/x-{{0..}}.tar", CreateOptions(workers=0))
    address = f"{at}/x.json".replace("://", "://someone:secret@")
    made_again = reshard(address, f"{tmp_path}/y-{{0..}}.tar", ReshardOptions(workers=0))
    results = copy(address, tmp_path / "copy"), made_again, verify(address), inspect(address)
    shown = [json.dumps(result.to_json()) for result in results]
    outputs = [*read_tree(tmp_path).values(), *map(str.encode, shown)]
    assert not any(b"secret" in result or b"someone" in result for result in outputs)
