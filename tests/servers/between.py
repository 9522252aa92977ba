"""A forward proxy, and a server that adds TLS to another server. Both run in threads of this process."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import ssl
import subprocess
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tests.servers.processes import found

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_HEAD = 2**16


@dataclass
class Between:
    """A listening proxy or TLS server.

    Attributes:
        port: Port on 127.0.0.1.
        asked: Method and target, and the `Proxy-Authorization` header, of each request to the proxy. A TLS server adds
            an entry (`TLS`, "") for each connection.
        pause_s: Delay of each TLS handshake.
    """

    port: int
    asked: list[tuple[str, str]] = field(default_factory=list)
    pause_s: float = 0


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads, block_on_close, allow_reuse_address = True, False, True

    def handle_error(self, _request: Any, _client_address: Any) -> None:
        """Ignore disconnected clients."""


@contextlib.contextmanager
def forwarding() -> Iterator[Between]:
    """Run a proxy for `HTTP_PROXY` and `HTTPS_PROXY`."""

    def answer(client: socket.socket, between: Between) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            if not (piece := client.recv(_HEAD)):
                return
            head += piece
        lines = head.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ", 2)
        who = next((one.partition(" ")[2] for one in lines if one.lower().startswith("proxy-authorization:")), "")
        between.asked.append((f"{method} {target}", who))
        place = target if method == "CONNECT" else urlsplit(target).netloc
        host, _, port = place.rpartition(":")
        with socket.create_connection((host, int(port))) as server:
            if method == "CONNECT":
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                server.sendall(head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))  # to record each request
            _pipe(client, server)

    with _listening(answer) as between:
        yield between


@contextlib.contextmanager
def tls(port: int, folder: Path) -> Iterator[Between]:
    """Run a TLS server that forwards to the server at `port`. Clients must trust the CA in `folder/authority.pem`."""
    _make_certificates(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")

    def answer(client: socket.socket, between: Between) -> None:
        between.asked.append(("TLS", ""))
        time.sleep(between.pause_s)
        with (
            context.wrap_socket(client, server_side=True) as plain,
            socket.create_connection(("127.0.0.1", port)) as server,
        ):
            _pipe(plain, server)

    with _listening(answer) as between:
        yield between


@contextlib.contextmanager
def _listening(answer: Callable[[socket.socket, Between], None]) -> Iterator[Between]:
    between = Between(0)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            answer(self.request, between)

    with _Server(("127.0.0.1", 0), Handler) as server:
        between.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield between
        finally:
            server.shutdown()
            thread.join()


def _pipe(one: socket.socket, other: socket.socket) -> None:
    """Copy data in both directions until both sides have closed."""
    back = threading.Thread(target=_pass_on, args=(other, one), daemon=True)
    back.start()
    _pass_on(one, other)
    back.join()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(_HEAD):
            target.sendall(piece)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _make_certificates(folder: Path) -> None:
    """Create the certificate of a test CA, and a server certificate for 127.0.0.1."""
    openssl, new = found("openssl"), ["-newkey", "rsa:2048", "-nodes"]
    extensions = folder / "extensions"
    extensions.write_text("subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n")
    for command in (
        ["req", "-x509", *new, "-days", "2", "-subj", "/CN=tests", "-keyout", "authority.key", "-out", "authority.pem"],
        ["req", *new, "-subj", "/CN=127.0.0.1", "-keyout", "server.key", "-out", "server.csr"],
        ["x509", "-req", "-in", "server.csr", "-CA", "authority.pem", "-CAkey", "authority.key", "-CAcreateserial",
         "-days", "2", "-extfile", "extensions", "-out", "server.pem"],
    ):  # fmt: skip
        subprocess.run([openssl, *command], cwd=folder, check=True, capture_output=True)
