"""Compare `copy` with `rclone copy` (4 transfers) of the same files, with servers on this machine.

    python -m benchmarks.remote_copy --size 300MB --rounds 5

The copies go into `rclone serve s3`, from nginx, and from folder to folder. Both tools verify the copies: shardtool
compares the CRC-32C of each shard with the dataset file, and rclone compares the MD5 of the store if there is one. The
runs are interleaved, each into an empty folder. The output is the ratio of the rates in each round: median, minimum and
maximum. Requires rclone and nginx on the path.

With `--delay 0.05`, the script compares `copy`, which increases the number of shards at a time, with `--workers 4`. The
store delays each response by this many seconds. Shards are copied into the store and within the store.

    python -m benchmarks.remote_copy --size 20MB --shard 100kB --rounds 3 --delay 0.05
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from shardtool import CreateOptions, create
from shardtool.units import parse_size
from tests.helpers import memory_root
from tests.servers import stores
from tests.servers.faults import FaultyProxy, behind

if TYPE_CHECKING:
    from tests.servers.processes import Server

REPO = Path(__file__).resolve().parent.parent
_SAMPLE = 100_000


def _made(folder: Path, size: int, shard: str) -> Path:
    """Create a dataset of about `size` bytes with shards of limited size."""
    (folder / "in").mkdir()
    for at in range(size // _SAMPLE):
        (folder / "in" / f"{at:06}.bin").write_bytes(os.urandom(_SAMPLE))
    create(folder / "in", f"{folder}/out/out-{{000000..}}.tar", CreateOptions(max_size=shard))
    shutil.rmtree(folder / "in")
    return folder / "out"


def _run(command: list[str], environment: dict[str, str]) -> tuple[float, float, int]:
    """Return the seconds, the CPU seconds and the peak memory in MB of a command."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begun
    if status:
        raise SystemExit(f"{command} failed")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu, used.ru_maxrss // 1000


def _rclone(source: str, where: str) -> list[str]:
    return ["rclone", "copy", "--transfers", "4", "--config", "", source, where]


def _shardtool(source: str, where: str) -> list[str]:
    return [sys.executable, "-m", "shardtool", "copy", source, where, "--quiet"]


def _compare(name: str, ours: list[str], theirs: list[str], environment: dict[str, str], place: Path) -> float:
    """Run both tools once, each into an empty folder, and return our rate divided by the rate of rclone."""
    found = []
    for command in (ours, theirs):
        shutil.rmtree(place, ignore_errors=True)
        found.append(_run(command, environment))
    (seconds, cpu, memory), (their_s, their_cpu, their_memory) = found
    print(
        f"{name:>14}  {seconds:6.2f} s {cpu:5.2f} cpu {memory:4} MB   rclone {their_s:6.2f} s {their_cpu:5.2f} cpu "
        f"{their_memory:4} MB   {their_s / seconds:5.2f}",
        flush=True,
    )
    return their_s / seconds


def _s3_of_rclone(server: Server) -> dict[str, str]:
    """Return the options with which rclone connects to a server."""
    given = server.environment
    return {
        "RCLONE_CONFIG_HERE_TYPE": "s3",
        "RCLONE_CONFIG_HERE_PROVIDER": "Other",
        "RCLONE_CONFIG_HERE_ENDPOINT": server.url,
        "RCLONE_CONFIG_HERE_ACCESS_KEY_ID": given["AWS_ACCESS_KEY_ID"],
        "RCLONE_CONFIG_HERE_SECRET_ACCESS_KEY": given["AWS_SECRET_ACCESS_KEY"],
        "RCLONE_CONFIG_HERE_NO_CHECK_BUCKET": "true",
    }


def _tuned(data: Path, root: Path, rounds: int, delay_s: float) -> dict[str, list[float]]:
    """Copy into and within a store with delayed responses. Return our rate divided by the rate with four shards."""
    ratios: dict[str, list[float]] = {}
    (root / "proxy").mkdir()
    with stores.rclone(root) as server, stores.proxy(server, root / "proxy") as port:
        proxy = FaultyProxy(behind(server, port))
        proxy.set(delay_s=delay_s)
        environment = {**proxy.server.environment, "SHARDTOOL_UNLOCKED": "1"}
        for at in range(rounds):
            inside = f"{server.bucket}/0-4"
            for name, source in (("folder to late s3", str(data)), ("within late s3", inside)):
                found = []
                for more in (["--workers", "4"], []):
                    where = f"{server.bucket}/{at}-{len(more) * 2}{'' if source == str(data) else '-inside'}"
                    found.append(_run([*_shardtool(source, where), *more], environment)[0])
                    print(f"{name} {' '.join(more):>12}  {found[-1]:6.2f} s", flush=True)
                ratios.setdefault(name, []).append(found[0] / found[1])
    return ratios


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--size", default="300MB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shard", default="20MB")
    parser.add_argument("--delay", type=float)
    given = parser.parse_args()
    root = Path(mkdtemp(prefix="remote-copy-", dir=memory_root()))
    ratios: dict[str, list[float]] = {}
    try:
        data = _made(root, parse_size(given.size), given.shard)
        if given.delay is not None:
            _print(_tuned(data, root, given.rounds, given.delay), "the rate of four at once")
            return
        with ExitStack() as stack:
            for name in ("rclone", "nginx", "local"):
                (root / name).mkdir()
            s3, web = (
                stack.enter_context(stores.rclone(root / "rclone")),
                stack.enter_context(stores.nginx(root / "nginx")),
            )
            plain = web["plain"]
            served = plain.local(f"{plain.bucket}/out")
            (root / "names").write_text("".join(f"{path.name}\n" for path in data.iterdir()))
            shutil.copytree(data, served, dirs_exist_ok=True)
            to_s3, local = s3.local(s3.bucket) / "copy", root / "local" / "copy"
            environment = {**s3.environment, **_s3_of_rclone(s3), "SHARDTOOL_UNLOCKED": "1"}
            ways = [
                ("folder to s3", _shardtool(str(data), f"{s3.bucket}/copy"),
                 _rclone(str(data), f"here:{s3.bucket.removeprefix('s3://')}/copy"), to_s3),
                ("web to folder", _shardtool(f"{plain.bucket}/out/out.json", str(local)),
                 [*_rclone(":http:", str(local)), "--http-url", f"{plain.bucket}/out/", "--no-traverse",
                  "--files-from-raw", str(root / "names")], local),
                ("folder to folder", _shardtool(str(data), str(local)), _rclone(str(data), str(local)), local),
            ]  # fmt: skip
            for _ in range(given.rounds):
                for name, ours, theirs, place in ways:
                    ratios.setdefault(name, []).append(_compare(name, ours, theirs, environment, place))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    _print(ratios, "rclone's rate")


def _print(ratios: dict[str, list[float]], of: str) -> None:
    print()
    for name, found in ratios.items():
        print(f"{name:>17}  {statistics.median(found):.2f} ({min(found):.2f}-{max(found):.2f}) of {of}")


if __name__ == "__main__":
    main()
