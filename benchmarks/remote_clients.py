"""Compare client libraries for object stores and HTTP. All servers run on this machine.

    python benchmarks/remote_clients.py [--only CASES] [--megabytes N]

Requires a separate environment (`pip install "moto[server]" obstore pyarrow s3fs aiohttp urllib3`), and `nginx` and
`curl` on the path. Each figure comes from a new process. Markdown is printed to stdout. nginx measures speed, moto
implements S3, and `remote_server.py` adds delays and faults and counts requests. CASES are names of the tables below,
separated by commas.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import multiprocessing
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).resolve().parent
DELAY_MS = 50
RANGES, RANGE = 1000, 100_000
ROUNDS = 5
THREADS = 32
PIECE = 2**23
LIMIT_S = 60
FORK_LIMIT_S = 5
CHILDREN = 50  # processes forked while threads of the parent read
KEY, SECRET, TOKEN = "AKIALEAKLEAKLEAK", "SECRETLEAK" * 4, "TOKENLEAK"
LEAKS = (KEY, "SECRETLEAK", "TOKENLEAK", "PASSLEAK", "QUERYLEAK", "X-Amz-Signature=")
KEYS = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": TOKEN}
REGION = {"AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1"}
# No client may request credentials from the metadata service. obstore ignores the first variable:
NO_METADATA = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_METADATA_ENDPOINT": "http://127.0.0.1:9",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9",
}


class Pieces:
    """The content of an object to upload: its size, and an iterator over its parts."""

    def __init__(self, size: int, pieces: Iterator[bytes]) -> None:
        self.size, self._pieces = size, pieces

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces


def lib(name: str) -> Any:
    """Import a library that may be missing in the environment of this repository."""
    return importlib.import_module(name)


class ObstoreHttp:
    """obstore as an HTTP client."""

    imports: tuple[str, ...] = ("obstore", "obstore.store")
    packages: tuple[str, ...] = ("obstore",)

    def __init__(self, base: str) -> None:
        self.obs, self.base = lib("obstore"), base

    def store(self, bucket: str) -> Any:
        """Return the store of a bucket."""
        options = {"allow_http": True}
        return lib("obstore.store").HTTPStore(f"{self.base}/{bucket}", client_options=options)

    def read(self, bucket: str, key: str) -> int:
        """Read a whole object, and return the number of bytes."""
        stream = self.obs.get(self.store(bucket), key).stream(min_chunk_size=PIECE)
        return sum(len(piece) for piece in stream)

    def fetch(self, bucket: str, key: str, start: int, length: int) -> bytes:
        """Return a range."""
        return bytes(self.obs.get_range(self.store(bucket), key, start=start, length=length))

    def ranges(self, bucket: str, key: str, starts: list[int]) -> int:
        """Read many ranges as fast as the library can, and return the number of bytes."""
        got = self.obs.get_ranges(self.store(bucket), key, starts=starts, lengths=[RANGE] * len(starts), coalesce=0)
        return sum(map(len, got))


class ObstoreThreads(ObstoreHttp):
    """obstore, called from threads of this script."""

    def ranges(self, bucket: str, key: str, starts: list[int]) -> int:
        """Read many ranges as fast as the library can, and return the number of bytes."""
        store = self.store(bucket)
        with ThreadPoolExecutor(THREADS) as pool:
            one = lambda start: len(self.obs.get_range(store, key, start=start, length=RANGE))  # noqa: E731
            return sum(pool.map(one, starts))


class ObstoreS3(ObstoreHttp):
    """obstore as an S3 client."""

    def store(self, bucket: str) -> Any:
        """Return the store of a bucket."""
        options = {"allow_http": True}
        return lib("obstore.store").S3Store(bucket, endpoint=self.base, client_options=options)

    def put(self, bucket: str, key: str, pieces: Pieces) -> None:
        """Write an object."""
        with self.obs.open_writer(self.store(bucket), key) as file:
            for piece in pieces:
                file.write(piece)

    def create(self, bucket: str, key: str, data: bytes) -> None:
        """Create an object; fail if it exists."""
        self.obs.put(self.store(bucket), key, data, mode="create")

    def listing(self, bucket: str) -> int:
        """Return the number of keys."""
        return sum(map(len, self.obs.list(self.store(bucket))))


class PyarrowS3:
    """The S3 client of pyarrow."""

    imports = ("pyarrow.fs",)
    packages = ("pyarrow",)

    def __init__(self, base: str) -> None:
        self.fs = lib("pyarrow.fs").S3FileSystem(endpoint_override=base, region="us-east-1")

    def read(self, bucket: str, key: str) -> int:
        """Read a whole object, and return the number of bytes."""
        total = 0
        with self.fs.open_input_stream(f"{bucket}/{key}") as file:
            while piece := file.read(PIECE):
                total += len(piece)
        return total

    def fetch(self, bucket: str, key: str, start: int, length: int) -> bytes:
        """Return a range."""
        with self.fs.open_input_file(f"{bucket}/{key}") as file:
            return bytes(file.read_at(length, start))

    def ranges(self, bucket: str, key: str, starts: list[int]) -> int:
        """Read many ranges as fast as the library can, and return the number of bytes."""
        with self.fs.open_input_file(f"{bucket}/{key}") as file, ThreadPoolExecutor(THREADS) as pool:
            return sum(pool.map(lambda start: len(file.read_at(RANGE, start)), starts))

    def put(self, bucket: str, key: str, pieces: Pieces) -> None:
        """Write an object."""
        with self.fs.open_output_stream(f"{bucket}/{key}") as file:
            for piece in pieces:
                file.write(piece)

    def listing(self, bucket: str) -> int:
        """Return the number of keys."""
        return len(self.fs.get_file_info(lib("pyarrow.fs").FileSelector(bucket, recursive=True)))


class FsspecHttp:
    """The HTTP client of fsspec (aiohttp)."""

    imports: tuple[str, ...] = ("fsspec.implementations.http",)
    packages: tuple[str, ...] = ("fsspec", "aiohttp")

    def __init__(self, base: str) -> None:
        self.base = base
        self.fs = lib("fsspec").filesystem("http", skip_instance_cache=True)

    def path(self, bucket: str, key: str) -> str:
        """Return the name of an object."""
        return f"{self.base}/{bucket}/{key}"

    def read(self, bucket: str, key: str) -> int:
        """Read a whole object, and return the number of bytes."""
        total = 0
        with self.fs.open(self.path(bucket, key), "rb", block_size=PIECE, cache_type="readahead") as file:
            while piece := file.read(PIECE):
                total += len(piece)
        return total

    def fetch(self, bucket: str, key: str, start: int, length: int) -> bytes:
        """Return a range."""
        return bytes(self.fs.cat_file(self.path(bucket, key), start=start, end=start + length))

    def ranges(self, bucket: str, key: str, starts: list[int]) -> int:
        """Read many ranges as fast as the library can, and return the number of bytes."""
        path = self.path(bucket, key)
        got = self.fs.cat_ranges([path] * len(starts), starts, [start + RANGE for start in starts])
        return sum(map(len, got))


class S3fs(FsspecHttp):
    """s3fs (aiobotocore)."""

    imports = ("s3fs",)
    packages = ("s3fs",)

    def __init__(self, base: str) -> None:
        self.fs = lib("s3fs").S3FileSystem(client_kwargs={"endpoint_url": base}, skip_instance_cache=True)

    def path(self, bucket: str, key: str) -> str:
        """Return the name of an object."""
        return f"{bucket}/{key}"

    def put(self, bucket: str, key: str, pieces: Pieces) -> None:
        """Write an object."""
        with self.fs.open(self.path(bucket, key), "wb") as file:
            for piece in pieces:
                file.write(piece)

    def create(self, bucket: str, key: str, data: bytes) -> None:
        """Create an object; fail if it exists."""
        self.fs.pipe_file(self.path(bucket, key), data, mode="create")

    def listing(self, bucket: str) -> int:
        """Return the number of keys."""
        return len(self.fs.find(bucket))


class Urllib3:
    """urllib3 with a connection pool, called from threads of this script."""

    imports: tuple[str, ...] = ("urllib3",)
    packages: tuple[str, ...] = ("urllib3",)

    def __init__(self, base: str) -> None:
        self.base, self.pool = base, lib("urllib3").PoolManager(maxsize=THREADS)

    def address(self, bucket: str, key: str) -> str:
        """Return the URL of an object."""
        return f"{self.base}/{bucket}/{key}"

    def read(self, bucket: str, key: str) -> int:
        """Read a whole object, and return the number of bytes."""
        answer = self.pool.request("GET", self.address(bucket, key), preload_content=False)
        _sound(answer.status)
        total, into = 0, memoryview(bytearray(PIECE))
        while got := answer.readinto(into):
            total += got
        answer.release_conn()
        return total

    def fetch(self, bucket: str, key: str, start: int, length: int) -> bytes:
        """Return a range."""
        headers = {"Range": f"bytes={start}-{start + length - 1}"}
        answer = self.pool.request("GET", self.address(bucket, key), headers=headers)
        _sound(answer.status)
        return bytes(answer.data)

    def ranges(self, bucket: str, key: str, starts: list[int]) -> int:
        """Read many ranges as fast as the library can, and return the number of bytes."""
        with ThreadPoolExecutor(THREADS) as threads:
            return sum(threads.map(lambda start: len(self.fetch(bucket, key, start, RANGE)), starts))


class Signed(Urllib3):
    """urllib3 with URLs that obstore signs for each request."""

    imports = ("obstore", "obstore.store", "urllib3")
    packages = ("obstore", "urllib3")

    def __init__(self, base: str) -> None:
        super().__init__(base)
        self.signer = ObstoreS3(base)
        self.stores: dict[str, Any] = {}

    def address(self, bucket: str, key: str) -> str:
        """Return the URL of an object."""
        if bucket not in self.stores:  # creating a store takes milliseconds
            self.stores[bucket] = self.signer.store(bucket)
        return str(self.signer.obs.sign(self.stores[bucket], "GET", key, timedelta(hours=1)))

    def put(self, bucket: str, key: str, pieces: Pieces) -> None:
        """Write an object."""
        to = self.signer.obs.sign(self.signer.store(bucket), "PUT", key, timedelta(hours=1))
        headers = {"Content-Length": str(pieces.size)}
        _sound(self.pool.request("PUT", to, body=iter(pieces), headers=headers, retries=False).status)


class HttpClient:
    """http.client of the standard library, with one connection per thread."""

    imports = ("http.client",)
    packages = ()

    def __init__(self, base: str) -> None:
        self.host, self.local = base.removeprefix("http://"), threading.local()

    def request(self, bucket: str, key: str, headers: dict[str, str]) -> Any:
        """Send a request and return the response."""
        if not hasattr(self.local, "connection"):
            self.local.connection = lib("http.client").HTTPConnection(self.host)
        self.local.connection.request("GET", f"/{bucket}/{key}", headers=headers)
        answer = self.local.connection.getresponse()
        _sound(answer.status)
        return answer

    def read(self, bucket: str, key: str) -> int:
        """Read a whole object, and return the number of bytes."""
        answer, total, into = self.request(bucket, key, {}), 0, memoryview(bytearray(PIECE))
        while got := answer.readinto(into):
            total += got
        return total

    def fetch(self, bucket: str, key: str, start: int, length: int) -> bytes:
        """Return a range."""
        return bytes(self.request(bucket, key, {"Range": f"bytes={start}-{start + length - 1}"}).read())

    def ranges(self, bucket: str, key: str, starts: list[int]) -> int:
        """Read many ranges as fast as the library can, and return the number of bytes."""
        with ThreadPoolExecutor(THREADS) as threads:
            return sum(threads.map(lambda start: len(self.fetch(bucket, key, start, RANGE)), starts))


def _sound(status: int) -> None:
    if status not in (200, 206):
        raise OSError(f"HTTP status {status}")


CLIENTS: dict[str, Any] = {
    "obstore http": ObstoreHttp,
    "obstore http, threads": ObstoreThreads,
    "obstore s3": ObstoreS3,
    "pyarrow s3": PyarrowS3,
    "fsspec http": FsspecHttp,
    "s3fs": S3fs,
    "urllib3": Urllib3,
    "signed, urllib3": Signed,
    "http.client": HttpClient,
}
STORES = ("obstore s3", "pyarrow s3", "s3fs")
WRITERS = (*STORES, "signed, urllib3")
WEB = [name for name in CLIENTS if name != "obstore http, threads"]

# Each of these functions runs in a child process. It gets a client's name and the server addresses, and returns a row.


def do_import(name: str, _: dict[str, str]) -> dict[str, Any]:
    """Import the library, to measure its memory."""
    for one in CLIENTS[name].imports:
        lib(one)
    return {}


def do_stream(name: str, to: dict[str, str]) -> dict[str, Any]:
    """Read a large object twice. The second time is reported."""
    client = CLIENTS[name](to["nginx"])
    client.read("data", "big")
    begun, cpu = time.perf_counter(), time.process_time()
    total = client.read("data", "big")
    seconds = time.perf_counter() - begun
    return {"MB/s": round(total / seconds / 1e6), "CPU s/GB": round((time.process_time() - cpu) / total * 1e9, 2)}


def do_ranges(name: str, to: dict[str, str]) -> dict[str, Any]:
    """Read many small ranges. Each response is delayed."""
    size = int(to["size"])
    slots = random.Random(1).sample(range(size // (2 * RANGE)), RANGES)
    starts = sorted(slot * 2 * RANGE for slot in slots)  # with gaps, so that no library merges the ranges
    client = CLIENTS[name](to["slow"])
    stats(to["slow"])
    begun = time.perf_counter()
    total = client.ranges("data", "big", starts)
    seconds = time.perf_counter() - begun
    seen = stats(to["slow"])
    row = {"s": round(seconds, 2), "ranges/s": round(RANGES / seconds), "requests": seen["requests"]}
    return {**row, "most in flight": seen["most_in_flight"], "all bytes": total == RANGES * RANGE}


def do_upload(name: str, to: dict[str, str]) -> dict[str, Any]:
    """Write a large object."""
    piece, count = bytes(PIECE), int(to["size"]) // PIECE
    client = CLIENTS[name](to["fast"])
    stats(to["fast"])
    begun = time.perf_counter()
    client.put("sink", "k", Pieces(count * PIECE, (piece for _ in range(count))))
    seconds = time.perf_counter() - begun
    return {"MB/s": round(count * PIECE / seconds / 1e6), "requests": stats(to["fast"])["requests"]}


def do_whole(name: str, to: dict[str, str]) -> dict[str, Any]:
    """Report what readers see of an upload while it runs, after an error in its `with` block, and after SIGKILL."""
    s3 = lib("boto3").client("s3", endpoint_url=to["moto"])
    bucket = "whole-" + re.sub("[^a-z0-9]+", "-", name)
    s3.create_bucket(Bucket=bucket)
    row: dict[str, Any] = {}

    def failing() -> Iterator[bytes]:
        yield bytes(3 * PIECE)
        time.sleep(1)
        row["while it runs"] = _seen(s3, bucket)
        raise ValueError("an error of the writer")

    with contextlib.suppress(Exception):  # urllib3 converts it to another error
        CLIENTS[name](to["moto"]).put(bucket, "k", Pieces(6 * PIECE, failing()))
    row["after an error"] = _seen(s3, bucket)
    words = [sys.executable, __file__, "--child", "hold", name, json.dumps({**to, "bucket": bucket})]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None  # noqa: S101 - PIPE
        child.stdout.readline()
        child.kill()
    row["after SIGKILL"] = _seen(s3, bucket)
    return row


def do_hold(name: str, to: dict[str, str]) -> dict[str, Any]:
    """Write part of an object, and wait to be killed."""

    def pieces() -> Iterator[bytes]:
        yield bytes(3 * PIECE)
        time.sleep(1)
        print("written", flush=True)
        time.sleep(LIMIT_S)

    CLIENTS[name](to["moto"]).put(to["bucket"], "killed", Pieces(6 * PIECE, pieces()))
    return {}


def _seen(s3: Any, bucket: str) -> str:
    found = [f"{one['Key']}: {one['Size']:,} bytes" for one in s3.list_objects_v2(Bucket=bucket).get("Contents", [])]
    unfinished = len(s3.list_multipart_uploads(Bucket=bucket).get("Uploads", []))
    return f"visible: {', '.join(found) or 'nothing'}; unfinished uploads: {unfinished}"


def do_conditional(name: str, to: dict[str, str]) -> dict[str, Any]:
    """Create an object twice, and read an object that changes."""
    row, client = {}, CLIENTS[name](to["moto"])
    if hasattr(client, "create"):
        client.create("bucket", f"once {name}", b"first")
        row["second create"] = _outcome(lambda: client.create("bucket", f"once {name}", b"second"))
    else:
        row["second create"] = "no such option"
    if name == "obstore s3":
        store, obs = client.store("bucket"), client.obs
        obs.put(store, "part", bytes(2 * PIECE))
        row["create by parts"] = _outcome(
            lambda: obs.put(store, "part", bytes(2 * PIECE), mode="create", use_multipart=True)
        )
        wrong = {"range": (0, 4), "if_match": '"other"'}
        row["read, other ETag"] = _outcome(lambda: obs.get(store, "part", options=wrong))
        tag = obs.head(store, "part")["e_tag"]
        obs.put(store, "lock", b"1")
        row["update, other ETag"] = _outcome(lambda: obs.put(store, "lock", b"2", mode={"e_tag": tag}))
    if name == "s3fs":
        row["read, other ETag"] = _outcome(
            lambda: client.fs.call_s3("get_object", Bucket="bucket", Key=f"once {name}", IfMatch='"other"')
        )
    return row


def do_listing(name: str, to: dict[str, str]) -> dict[str, Any]:
    """List 100,000 keys."""
    client = CLIENTS[name](to["fast"])
    stats(to["fast"])
    begun = time.perf_counter()
    count = client.listing("list")
    return {"keys": count, "s": round(time.perf_counter() - begun, 2), "requests": stats(to["fast"])["requests"]}


FAULTS = ("busy", "denied", "cut", "lies", "changing")


def do_faults(name: str, to: dict[str, str]) -> dict[str, Any]:
    """Read one or two ranges from a bucket that fails."""
    row: dict[str, Any] = {}
    for bucket in FAULTS:
        client = CLIENTS[name](to["fast"])
        stats(to["fast"])

        def twice(client: Any = client, bucket: str = bucket) -> str:
            parts = [client.fetch(bucket, name, at, 100) for at in (1000, 2000)]
            with Path(to["file"]).open("rb") as file:
                file.seek(1000)
                return "right bytes" if parts[0] == file.read(100) else f"wrong bytes, {len(parts[0]):,}"

        begun = time.perf_counter()
        said = _limited(twice)
        row[bucket] = f"{said}; {time.perf_counter() - begun:.1f} s, {stats(to['fast'])['requests']} requests"
    return row


def do_messages(name: str, to: dict[str, str]) -> dict[str, Any]:
    """Report the error messages, and whether they contain secrets."""
    leaky = to["moto"] if name in (*STORES, "signed, urllib3") else to["nginx"]
    if name not in (*STORES, "http.client", "signed, urllib3"):
        leaky = leaky.replace("//", "//user:PASSLEAK@")
    dead = f"http://127.0.0.1:{_port()}"
    row: dict[str, Any] = {}
    for what, base, bucket, key in (
        ("no object", leaky, "bucket", "no-such"),
        ("no bucket", leaky, "no-such-bucket", "x"),
        ("signed address", leaky, "denied", "x?sig=QUERYLEAK"),
        ("no server", dead, "bucket", "x"),
    ):
        if what != "signed address" or name not in (*STORES, "signed, urllib3"):
            row[what] = _limited(lambda base=base, bucket=bucket, key=key: CLIENTS[name](base).fetch(bucket, key, 0, 9))  # type: ignore[misc]
    shown = _outcome(lambda: repr(CLIENTS[name](to["moto"]).__dict__), most=2000)
    if hasattr(CLIENTS[name], "store"):
        store = CLIENTS[name](leaky).store("bucket")
        shown += repr(store) + repr(getattr(store, "config", ""))
    row["repr"] = "leaks: " + (", ".join(one for one in LEAKS if one in shown) or "none")
    return row


def do_profile(name: str, to: dict[str, str]) -> dict[str, Any]:
    """Find the endpoint and credentials in the environment, and in a profile of the AWS tools."""
    for variable in (*KEYS, "AWS_REGION", "AWS_DEFAULT_REGION"):
        os.environ.pop(variable, None)
    words = [sys.executable, __file__, "--child", "bare", name, json.dumps(to)]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config"
        keys = f"aws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
        config.write_text(f"[profile ours]\nregion = us-east-1\nendpoint_url = {to['moto']}\n{keys}")
        ways = {
            "AWS_ENDPOINT_URL": {"AWS_ENDPOINT_URL": to["moto"], **KEYS, **REGION},
            "AWS_PROFILE": {"AWS_PROFILE": "ours", "AWS_CONFIG_FILE": str(config)},
            "profile, endpoint given": {"AWS_PROFILE": "ours", "AWS_CONFIG_FILE": str(config), "GIVEN": to["moto"]},
        }  # fmt: skip
        row = {}
        for way, variables in ways.items():
            try:
                got = subprocess.run(
                    words, env={**os.environ, **variables}, capture_output=True, text=True, timeout=20, check=False
                )
                row[way] = json.loads(got.stdout.splitlines()[-1])["got"] if got.stdout else got.stderr[-200:]
            except subprocess.TimeoutExpired:
                row[way] = "no answer in 20 s"
    return row


def do_bare(name: str, _: dict[str, str]) -> dict[str, Any]:
    """Read an object with the settings in the environment."""
    given = os.environ.get("GIVEN")

    def read() -> bytes:
        if name == "obstore s3":
            more = {"endpoint": given} if given else {}
            store = lib("obstore.store").S3Store("bucket", client_options={"allow_http": True}, **more)
            return bytes(lib("obstore").get_range(store, "big", start=0, length=9))
        if name == "pyarrow s3":
            more = {"endpoint_override": given} if given else {}
            return bytes(lib("pyarrow.fs").S3FileSystem(**more).open_input_file("bucket/big").read_at(9, 0))
        more_s3fs = {"client_kwargs": {"endpoint_url": given}} if given else {}
        return bytes(lib("s3fs").S3FileSystem(**more_s3fs).cat_file("bucket/big", start=0, end=9))

    return {"got": _outcome(lambda: f"{len(read())} bytes")}


def do_fork(name: str, to: dict[str, str]) -> dict[str, Any]:
    """Use a client in child processes: forked after use, forked while threads use it, and spawned."""
    client = CLIENTS[name](to["nginx"])
    use: Callable[[Any], object] = lambda client: len(client.fetch("data", "big", 5, 100))  # noqa: E731
    use(client)
    if name == "signed, urllib3":
        use(ObstoreS3(to["nginx"]))  # its threads must run when the process forks
    fresh = lambda: use(CLIENTS[name](to["nginx"]))  # noqa: E731
    row = {"same client": _forked(lambda: use(client)), "new client": _forked(fresh)}
    ended = threading.Event()

    def reading() -> None:
        own = [CLIENTS[name](to["nginx"]), *([ObstoreS3(to["nginx"])] if name == "signed, urllib3" else [])]
        while not ended.is_set():
            for one in own:
                use(one)

    if row["new client"].startswith("100"):
        threads = [threading.Thread(target=reading) for _ in range(4)]
        for one in threads:
            one.start()
        done: list[bool] = []
        while len(done) < CHILDREN and done.count(False) < 4:  # noqa: PLR2004 - each costs its time limit
            done.append(_forked(fresh).startswith("100"))
        ended.set()
        row["new client, threads read in the parent"] = f"{sum(done)} of {len(done)} children read"
    else:
        row["new client, threads read in the parent"] = "not tried"
    if name.startswith("obstore"):
        row["second copy of the extension"] = _forked(lambda: _copied(to))
    for method in ("spawn", "forkserver"):
        pool = getattr(multiprocessing.get_context(method), "Process")(  # noqa: B009 - not in the type stubs
            target=_child_reads, args=(name, to["nginx"])
        )
        pool.start()
        pool.join(FORK_LIMIT_S)
        row[method] = "reads" if pool.exitcode == 0 else f"fails: {pool.exitcode}"
    return row


def _child_reads(name: str, base: str) -> None:
    os._exit(0 if len(CLIENTS[name](base).fetch("data", "big", 5, 100)) == 100 else 1)  # noqa: PLR2004


def _copied(to: dict[str, str]) -> int:
    """Import obstore a second time from a copy of its folder, and read with the copy."""
    import shutil

    folder = tempfile.mkdtemp()
    try:
        shutil.copytree(Path(lib("obstore").__file__).parent, Path(folder) / "obstore")
        for one in [one for one in sys.modules if one.split(".")[0] == "obstore"]:
            del sys.modules[one]
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
        return len(ObstoreHttp(to["nginx"]).fetch("data", "big", 5, 100))
    finally:
        shutil.rmtree(folder)


def _forked(job: Callable[[], object]) -> str:
    """Run a job in a forked child process with a time limit."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            os.write(writer, _outcome(job).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        killer = threading.Timer(FORK_LIMIT_S, os.kill, (child, signal.SIGKILL))
        killer.start()
        said = pipe.read().decode()
        killer.cancel()
    os.waitpid(child, 0)
    return said or f"hangs (killed after {FORK_LIMIT_S} s)"


def _outcome(job: Callable[[], object], most: int = 170) -> str:
    """Return the result or the error of a job, and the secrets in its text."""
    try:
        return str(job())[:most]
    except Exception as error:  # noqa: BLE001 - what each library raises is the question
        text = " ".join(f"{type(error).__name__}: {error}".split())
        leaks = [one for one in LEAKS if one in text or one in repr(error)]
        text = re.sub(r"[0-9A-Fa-f]{32,}|127.0.0.1:\d+", "…", text)
        return text[:most].replace("|", "/") + (f" **leaks {', '.join(leaks)}**" if leaks else "")


def _limited(job: Callable[[], object]) -> str:
    """Call `_outcome` with a time limit."""
    box: list[str] = []
    thread = threading.Thread(target=lambda: box.append(_outcome(job)), daemon=True)
    thread.start()
    thread.join(12)
    return box[0] if box else "no end in 12 s"


# These functions run in the parent process.


def stats(base: str) -> dict[str, Any]:
    """Return the requests that the server has received since the last call."""
    with urllib.request.urlopen(f"{base}/stats") as answer:  # noqa: S310 - our own server
        found: dict[str, Any] = json.load(answer)
        return found


def _port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _wait(port: int) -> None:
    for _ in range(200):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.1)
    raise SystemExit("a server does not start")


@contextlib.contextmanager
def servers(folder: Path, megabytes: int) -> Iterator[dict[str, str]]:
    """Start all servers, and yield their addresses."""
    (folder / "data").mkdir()
    big = folder / "data" / "big"
    with big.open("wb") as file:
        for _ in range(megabytes):
            file.write(random.randbytes(10**6))
    ports = {name: _port() for name in ("nginx", "moto", "slow", "fast")}
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/log; worker_processes 1; user root;\n"
        "events { worker_connections 256; }\n"
        f"http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000;\n"
        f"server {{ listen 127.0.0.1:{ports['nginx']}; root {folder}; }} }}\n"
    )
    python, serve = sys.executable, "benchmarks.remote_server"
    commands = (
        ["nginx", "-c", str(folder / "nginx.conf"), "-e", str(folder / "log")],
        [python, "-m", "moto.server", "-p", str(ports["moto"])],
        [python, "-m", serve, str(ports["slow"]), str(big), str(DELAY_MS)],
        [python, "-m", serve, str(ports["fast"]), str(big), "0"],
    )
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = [subprocess.Popen(command, cwd=HERE.parent, **quiet) for command in commands]  # type: ignore[call-overload]
    try:
        for port in ports.values():
            _wait(port)
        to = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
        s3 = lib("boto3").client("s3", endpoint_url=to["moto"])
        s3.create_bucket(Bucket="bucket")
        s3.put_object(Bucket="bucket", Key="big", Body=b"123456789" * 1000)
        yield {**to, "size": str(megabytes * 10**6), "file": str(big)}
    finally:
        for one in started:
            one.terminate()
            one.wait()


def find_row(case: str, name: str, to: dict[str, str]) -> dict[str, Any]:
    """Run a case in a new process, and return its row."""
    words = [sys.executable, __file__, "--child", case, name, json.dumps(to)]
    try:
        got = subprocess.run(words, capture_output=True, text=True, timeout=3 * LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"fails": f"no end in {3 * LIMIT_S} s"}
    try:
        found: dict[str, Any] = json.loads(got.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"fails": (got.stderr.strip().splitlines() or ["?"])[-1][:200]}
    return found


def table(title: str, rows: dict[str, dict[str, Any]]) -> None:
    """Print rows as Markdown."""
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    print(f"\n### {title}\n\n| client | {' | '.join(columns)} |\n| --- |{' --- |' * len(columns)}")
    for name, row in rows.items():
        print(f"| {name} | {' | '.join(str(row.get(column, '')) for column in columns)} |")
    sys.stdout.flush()


def installed(packages: tuple[str, ...]) -> dict[str, Any]:
    """Return the number of distributions that the packages require, and their size on disk in MB."""
    seen: dict[str, int] = {}
    queue = [*packages]
    while queue:
        name = queue.pop().lower().replace("_", "-")
        if name in seen:
            continue
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        paths = [Path(str(found.locate_file(file))) for file in found.files or ()]
        seen[name] = sum(path.stat().st_size for path in paths if path.suffix != ".pyc" and path.is_file())
        wanted = [one for one in found.requires or () if "extra ==" not in one]
        queue += [re.split(r"[^A-Za-z0-9._-]", one)[0] for one in wanted]
    return {"distributions": len(seen), "MB installed": round(sum(seen.values()) / 1e6, 1)}


def _seconds(code: str) -> float:
    """Return the minimum time of a new Python process that runs some code."""
    took = []
    for _ in range(5):
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        took.append(time.perf_counter() - begun)
    return round(min(took), 3)


def imports(to: dict[str, str]) -> None:
    """Print the import cost of each library."""
    rows = {"Python alone": {"whole process, s, best of 5": _seconds("pass")}}
    for name in WEB:
        rows[name] = {"whole process, s, best of 5": _seconds("import " + ", ".join(CLIENTS[name].imports))}
        rows[name].update({**find_row("import", name, to), **installed(CLIENTS[name].packages)})
    table("import: time, memory, what it pulls in", rows)


def stream(to: dict[str, str]) -> None:
    """Print the speed of reading a large object, compared with curl."""
    rows: dict[str, dict[str, Any]] = {}
    for name in WEB:
        shares, best, cpu = [], {"MB/s": 0}, 0.0
        for _ in range(ROUNDS):
            before, begun = os.times(), time.perf_counter()
            subprocess.run(["curl", "-s", "-o", "/dev/null", f"{to['nginx']}/data/big"], check=True)
            curl, after = int(to["size"]) / (time.perf_counter() - begun) / 1e6, os.times()
            cpu = (after.children_user + after.children_system - before.children_user - before.children_system) / int(
                to["size"]
            )
            got = find_row("stream", name, to)
            shares.append(got.get("MB/s", 0) / curl)
            best = max(best, got, key=lambda one: one.get("MB/s", 0))
        extremes = f"{statistics.median(shares):.2f} ({min(shares):.2f}-{max(shares):.2f})"
        rows[name] = {**best, "of curl": extremes, "curl, CPU s/GB": round(cpu * 1e9, 2)}
    table(f"stream: a large object from nginx; of curl: median of {ROUNDS} rounds", rows)


TITLES = {
    "ranges": (f"ranges: {RANGES} of {RANGE:,} bytes, {DELAY_MS} ms each", tuple(CLIENTS)),
    "upload": ("upload: a large object", WRITERS),
    "whole": ("whole: what is seen of an upload of 25 MB that does not end (moto)", WRITERS),
    "conditional": ("conditional: create twice, read with another ETag (moto)", STORES),
    "listing": ("listing: 100,000 keys", STORES),
    "faults": ("faults: two ranges from a server that fails", tuple(WEB)),
    "messages": ("messages: errors, and secrets in them", tuple(WEB)),
    "profile": ("profile: where endpoint and keys come from (moto)", STORES),
    "fork": ("fork: a client in child processes, after its parent has read", tuple(WEB)),
}


def main() -> None:
    """Start the servers, and print a table for each case."""
    if sys.argv[1:2] == ["--child"]:
        case, name, addresses = sys.argv[2:]
        row = globals()[f"do_{case}"](name, json.loads(addresses))
        row["peak RSS MB"] = int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0]) // 1024
        print(json.dumps(row), flush=True)
        os._exit(0)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="import,stream," + ",".join(TITLES))
    parser.add_argument("--megabytes", type=int, default=500)
    given = parser.parse_args()
    os.environ.update({**KEYS, **REGION, **NO_METADATA})
    memory = "/dev/shm"  # noqa: S108 - a folder of random name is made in it
    with tempfile.TemporaryDirectory(dir=memory if Path(memory).is_dir() else None) as folder:
        os.chmod(folder, 0o755)  # noqa: S103 - nginx may read it as another user
        with servers(Path(folder), given.megabytes) as to:
            for case in given.only.split(","):
                if case in TITLES:
                    title, names = TITLES[case]
                    table(title, {name: find_row(case, name, to) for name in names})
                else:
                    {"import": imports, "stream": stream}[case](to)


if __name__ == "__main__":
    main()
