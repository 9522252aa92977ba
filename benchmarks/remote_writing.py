"""Compare `create` to a store with `create` to a folder and a copy by rclone.

    python benchmarks/remote_writing.py [MEGABYTES [ROUNDS]]

The server is `rclone serve s3`. Both variants pack the same samples of 100 KB: `create` to the server with two workers,
and `create` to a folder followed by `rclone copy --transfers 4` to the server. The runs are interleaved. The output is
the seconds of each variant, the ratio of the medians, and the peak memory of the run with its workers. Requires rclone
on the path.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import TYPE_CHECKING, NamedTuple

from tests.servers import stores

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.processes import Server

_SAMPLE = 100_000


@contextmanager
def _work() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="shardtool-") as folder:
        yield Path(folder)


def _samples(folder: Path, megabytes: int) -> Path:
    bytes_of = random.Random(0)
    for number in range(megabytes * 10**6 // _SAMPLE):
        below = folder / "source" / f"{number // 1000:03}"
        below.mkdir(parents=True, exist_ok=True)
        (below / f"{number:06}.jpg").write_bytes(bytes_of.randbytes(_SAMPLE))
    return folder / "source"


class Cost(NamedTuple):
    """The seconds of a command, and its CPU seconds without those of the server."""

    wall: float
    cpu: float

    def __add__(self, other: tuple[float, ...]) -> Cost:  # type: ignore[override]
        return Cost(self.wall + other[0], self.cpu + other[1])


def _timed(command: list[str], environment: dict[str, str]) -> Cost:
    before, start = getrusage(RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, getrusage(RUSAGE_CHILDREN)
    return Cost(wall, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def _create(source: Path, output: str, environment: dict[str, str]) -> Cost:
    pattern = f"{output}/out-{{000000..}}.tar"
    words = ["create", str(source), pattern, "--max-size", "64MB", "--workers", "2", "--quiet"]
    return _timed([sys.executable, "-m", "shardtool", *words], environment)


def _copy(folder: Path, prefix: str, server: Server) -> Cost:
    remote = (
        f":s3,provider=Rclone,endpoint='{server.url}',access_key_id={stores.KEY_ID},"
        f"secret_access_key={stores.SECRET},force_path_style=true:{prefix.removeprefix('s3://')}"
    )
    return _timed(["rclone", "copy", str(folder), remote, "--transfers", "4", "--config", ""], {})


def main(megabytes: int = 400, rounds: int = 3) -> None:
    """Measure, and print the results."""
    direct, apart = [], []
    with _work() as folder:
        source = _samples(folder, megabytes)
        (folder / "server").mkdir()
        with stores.rclone(folder / "server") as server:
            environment = {**server.environment, "SHARDTOOL_UNLOCKED": "1"}
            for turn in range(rounds + 1):  # the first run fills the page cache
                prefix = server.new_prefix()
                direct.append(_create(source, prefix, environment))
                shutil.rmtree(server.local(prefix))
                most = getrusage(RUSAGE_CHILDREN).ru_maxrss
                prefix, shards = server.new_prefix(), folder / f"local-{turn}"
                local, copied = _create(source, str(shards), {}), _copy(shards, prefix, server)
                apart.append(local + copied)
                shutil.rmtree(shards)
                shutil.rmtree(server.local(prefix))
                print(f"to the store: {_shown(direct[-1])}; to a folder: {_shown(local)}; copied: {_shown(copied)}")
    one, two = (statistics.median(cost.wall for cost in costs[1:]) for costs in (direct, apart))
    print(f"{megabytes} MB: {two / one:.2f} of the speed of a folder and rclone copy; {most / 1024:.0f} MB a process")


def _shown(cost: Cost) -> str:
    return f"{cost.wall:.2f} s, {cost.cpu:.2f} s of processors"


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
