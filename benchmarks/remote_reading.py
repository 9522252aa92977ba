"""Measure reading a dataset over HTTP, compared with curl.

    python benchmarks/remote_reading.py [MB [ROUNDS]]

nginx serves local files directly, and through a proxy that waits 50 ms before each response and limits the total to
100 MB/s. In each round, every measurement runs once in a new process. The output is the median, minimum and maximum of
the ratios within a round. Requires `nginx` and `curl` on the path.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import shardtool
from shardtool import ShardWriter
from tests.servers import stores
from tests.servers.faults import FaultyProxy, behind

_SHARD = 20_000_000
_PAYLOAD = 100_000
_DELAY_S, _RATE, _AT_ONCE = 0.05, 100_000_000, 8


def make(folder: Path, megabytes: int) -> None:
    """Write shards of incompressible pictures of 100 KB."""
    data = np.random.default_rng(0).bytes(_PAYLOAD)
    with ShardWriter(f"{folder}/x-{{000..}}.tar", max_size=_SHARD) as writer:
        for at in range(megabytes * 1_000_000 // _PAYLOAD):
            writer.write({"__key__": f"{at:06}", "jpg": data, "cls": b"%d" % (at % 10)})


def curl(url: str, folder: Path, at_once: int = 1) -> float:
    """Return the MB/s with which curl downloads all shards over the given number of connections."""
    names = sorted(path.name for path in folder.glob("*.tar"))
    words = [word for name in names for word in ("-o", "/dev/null", f"{url}/{name}")]
    many = ["--parallel", "--parallel-max", str(at_once)] if at_once > 1 else []
    begun = time.perf_counter()
    subprocess.run(["curl", "-s", *many, *words], check=True, stderr=subprocess.DEVNULL)
    return sum((folder / name).stat().st_size for name in names) / (time.perf_counter() - begun) / 1e6


def stream(url: str) -> float:
    """Return the MB/s of a shuffled epoch."""
    return _epoch(url, shuffle=True)


def in_order(url: str) -> float:
    """Return the MB/s of an epoch in order."""
    return _epoch(url, shuffle=False)


def _epoch(url: str, *, shuffle: bool) -> float:
    data = shardtool.open(f"{url}/x.json")
    begun, size = time.perf_counter(), 0
    for sample in data.stream(shuffle=shuffle, rank=0, world_size=1):
        size += len(sample["jpg"])
    return size / (time.perf_counter() - begun) / 1e6


def random(url: str) -> float:
    """Return the samples/s of batches of 64 random samples."""
    data = shardtool.open(f"{url}/x.json")
    numbers = np.random.default_rng(1).integers(0, len(data), (8, 64))
    list(data[numbers[0]])
    begun = time.perf_counter()
    read = sum(len(list(data[some])) for some in numbers[1:])
    return read / (time.perf_counter() - begun)


def measured(name: str, url: str) -> float:
    """Run a function of this file in a new process, and return its result."""
    ran = subprocess.run([sys.executable, __file__, name, url], capture_output=True, text=True, check=True)
    return float(ran.stdout)


def main(megabytes: int, rounds: int) -> None:
    """Print the ratios."""
    with tempfile.TemporaryDirectory() as top, stores.nginx(Path(top)) as servers:
        server = servers["plain"]
        folder = server.local(at := server.new_prefix())
        make(folder, megabytes)
        (Path(top) / "before").mkdir()
        with stores.proxy(server, Path(top) / "before") as port:
            proxy = FaultyProxy(behind(server, port))
            far = at.replace(server.bucket, proxy.server.bucket)
            found: dict[str, list[float]] = {}
            for _ in range(rounds):
                base = curl(at, folder)
                found.setdefault("curl, MB/s", []).append(base)
                for name in ("stream", "in_order"):
                    found.setdefault(f"{name}, of curl", []).append(measured(name, at) / base)
                found.setdefault("random, samples/s", []).append(measured("random", at))
                proxy.set(delay_s=_DELAY_S, bytes_per_s=_RATE)
                base = curl(far, folder, _AT_ONCE)
                found.setdefault("50 ms: curl by 8 connections, MB/s", []).append(base)
                for name in ("stream", "in_order"):
                    found.setdefault(f"50 ms: {name}, of that", []).append(measured(name, far) / base)
                proxy.set(delay_s=_DELAY_S)
                found.setdefault("50 ms: random, samples/s", []).append(measured("random", far))
                found.setdefault("50 ms: random, most in flight", []).append(proxy.log().most)
    for name, values in found.items():
        print(f"{name:34} {median(values):8.2f}  ({min(values):.2f}-{max(values):.2f})")


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in ("stream", "in_order", "random"):
        print(globals()[sys.argv[1]](sys.argv[2]))
    else:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        given = [int(word) for word in sys.argv[1:]]
        main(*given, *(300, 3)[len(given) :])
