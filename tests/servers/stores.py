"""Start external servers (nginx, moto, rclone, azurite) and the servers of this package.

Each function is a context manager that starts a server and yields it. If a program is not installed, the test is
skipped.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
import json
import subprocess
import sys
from email.utils import formatdate
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers.processes import Server, found, running

if TYPE_CHECKING:
    from collections.abc import Iterator

REPO = Path(__file__).resolve().parents[2]
KEY_ID, SECRET = "AKIATESTSERVERS00000", "verySecretTestServersKeyOfFortyLetters00"
ACCOUNT, ACCOUNT_KEY = "shardtooltests", base64.b64encode(b"very secret key of a storage account").decode()
# Clients must not request credentials from a cloud metadata server. obstore ignores the first variable.
_NO_METADATA = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_METADATA_ENDPOINT": "http://127.0.0.1:9"}
# Override the variables with which tests/conftest.py disables all stores.
_HERE = {"SHARDTOOL_ENDPOINT": "", "GOOGLE_SKIP_SIGNATURE": "false", "AZURE_SKIP_SIGNATURE": "false"}
_NGINX = """daemon off; master_process off; pid {folder}/pid; error_log {folder}/errors;
events {{ worker_connections 1000; }}
http {{
    access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000; default_type application/octet-stream;
    {temporary}
    server {{
        listen 127.0.0.1:{port};
        location /plain/ {{ alias {folder}/files/; }}
        location /norange/ {{ alias {folder}/files/; max_ranges 0; }}
        location /gzip/ {{ alias {folder}/files/; gzip on; gzip_types *; gzip_min_length 1; }}
    }}
}}
"""


def _module(name: str, *words: str) -> list[str]:
    return [sys.executable, "-m", name, *words]


@contextlib.contextmanager
def http_files(folder: Path) -> Iterator[Server]:
    """Serve a folder with Python only."""
    (files := folder / "files").mkdir()
    command = _module("tests.servers.files")
    with running(lambda port: [*command, str(port), str(files)], folder / "log", PYTHONPATH=str(REPO)) as port:
        url = f"http://127.0.0.1:{port}"
        yield Server(url, url, files)


@contextlib.contextmanager
def hub(folder: Path) -> Iterator[Server]:
    """Run the emulator of Hugging Face's Hub. The environment prevents its clients from reaching other servers."""
    (files := folder / "repositories").mkdir()
    command = _module("tests.servers.hub")
    with running(lambda port: [*command, str(port), str(files)], folder / "log", PYTHONPATH=str(REPO)) as port:
        url = f"http://127.0.0.1:{port}"
        here = {"HF_ENDPOINT": url, "HF_HUB_OFFLINE": "", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}
        here |= {"HF_HOME": str(folder / "home"), "HF_TOKEN": "", "HF_HUB_DISABLE_UPDATE_CHECK": "1"}
        here |= {
            "HTTPS_PROXY": "http://127.0.0.1:9",
            "HTTP_PROXY": "http://127.0.0.1:9",
            "NO_PROXY": "127.0.0.1,localhost",
        }
        yield Server(url, "hf://datasets", files, here)


@contextlib.contextmanager
def proxy(server: Server, folder: Path) -> Iterator[int]:
    """Run the proxy of `tests.servers.proxy` for a server, and yield the port of the proxy."""
    command = _module("tests.servers.proxy")
    with running(lambda port: [*command, str(port), str(server.port)], folder / "log", PYTHONPATH=str(REPO)) as port:
        yield port


@contextlib.contextmanager
def nginx(folder: Path) -> Iterator[dict[str, Server]]:
    """Serve a folder with nginx. Yield three servers: `plain`, `norange` (no range requests) and `gzip`."""
    program = found("nginx")
    (files := folder / "files").mkdir()
    config = folder / "nginx.conf"
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)

    def command(port: int) -> list[str]:
        config.write_text(_NGINX.format(folder=folder, port=port, temporary=temporary))
        return [program, "-c", str(config), "-e", str(folder / "errors")]

    with running(command, folder / "log") as port:
        urls = {way: f"http://127.0.0.1:{port}/{way}" for way in ("plain", "norange", "gzip")}
        yield {way: Server(url, url, files) for way, url in urls.items()}


def _s3(port: int, bucket: str, folder: Path | None = None) -> Server:
    url = f"http://127.0.0.1:{port}"
    environment = {
        **_HERE,
        "AWS_ENDPOINT_URL": url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        **_NO_METADATA,
    }
    return Server(url, f"s3://{bucket}", folder, environment, (SECRET,))


@contextlib.contextmanager
def moto(folder: Path) -> Iterator[Server]:
    """Run moto: S3 with versions, conditional writes and multipart uploads, in memory. It accepts any credentials."""
    found("moto_server")
    with running(lambda port: _module("moto.server", "-H", "127.0.0.1", "-p", str(port)), folder / "log") as port:
        _put(port, "/moto")
        yield _s3(port, "moto")


@contextlib.contextmanager
def rclone(folder: Path) -> Iterator[Server]:
    """Run `rclone serve s3` for a folder. It checks signatures, and detects changes in the folder after 50 ms."""
    program = found("rclone")
    (files := folder / "files" / "rclone").mkdir(parents=True)
    options = ["--auth-key", f"{KEY_ID},{SECRET}", "--config", "", "--dir-cache-time", "50ms", "--no-cleanup"]
    with running(
        lambda port: [program, "serve", "s3", str(files.parent), "--addr", f"127.0.0.1:{port}", *options],
        folder / "log",
    ) as port:
        yield _s3(port, "rclone", files)


@contextlib.contextmanager
def gcs(server: Server, folder: Path) -> Iterator[Server]:
    """Run the emulator of Google Cloud Storage on top of `server`. It does not check signatures."""
    command = [found("openssl"), "genrsa", "2048"]
    key = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    command = _module("tests.servers.gcs")
    with running(lambda port: [*command, str(port), str(server.port)], folder / "log", PYTHONPATH=str(REPO)) as port:
        url = f"http://127.0.0.1:{port}"
        account = {"gcs_base_url": url, "client_email": "tests@example.com", "private_key": key, "private_key_id": "1"}
        secrets = tuple(line for line in key.splitlines() if "--" not in line)
        environment = {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account), **_HERE}
        yield Server(url, f"gs{server.bucket[2:]}", None, environment, secrets)


@contextlib.contextmanager
def azurite(folder: Path) -> Iterator[Server]:
    """Run azurite, in memory."""
    program = found("azurite-blob")
    options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--blobHost", "127.0.0.1"]
    with running(
        lambda port: [found("node"), program, *options, "--blobPort", str(port)],
        folder / "log",
        AZURITE_ACCOUNTS=f"{ACCOUNT}:{ACCOUNT_KEY}",
    ) as port:
        url = f"http://127.0.0.1:{port}"
        environment = {
            **_HERE,
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY,
            "AZURE_STORAGE_ENDPOINT": f"{url}/{ACCOUNT}",
            "AZURE_ALLOW_HTTP": "true",
        }
        _make_container(port, "azurite")
        _make_container(port, "public", **{"x-ms-blob-public-access": "container"})
        yield Server(url, "az://azurite", None, environment, (ACCOUNT_KEY,))


def _make_container(port: int, name: str, **access: str) -> None:
    """Create a container. Source of the signature: "Authorize with Shared Key" in Azure's documentation."""
    date, version = formatdate(usegmt=True), "2021-08-06"
    path = f"/{ACCOUNT}/{name}"
    headers = {**access, "x-ms-date": date, "x-ms-version": version}
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    text = f"PUT{12 * chr(10)}{lines}/{ACCOUNT}{path}\nrestype:container"
    signature = hmac.new(base64.b64decode(ACCOUNT_KEY), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(signature).decode()}"
    _put(port, f"{path}?restype=container", headers)


def _put(port: int, path: str, headers: dict[str, str] | None = None) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    with contextlib.closing(connection):
        connection.request("PUT", path, headers={"Content-Length": "0", **(headers or {})})
        assert connection.getresponse().status in (200, 201)
