"""Compare `create --url` with img2dataset: the same list, local server, processes and connections.

    python benchmarks/urls.py --img2dataset PYTHON [--files N] [--rounds N]

PYTHON is the interpreter of an environment with img2dataset. nginx serves files of 4 to 20 kB, which neither tool
decodes. Every 50th URL is broken. For each round, the output is URLs per second, CPU seconds and peak memory.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEAD = 50  # one in this many URLs is broken
_A_SHARD = 1000
_NGINX = """
worker_processes 1; daemon off; pid {root}/pid; error_log {root}/error.log; events {{ worker_connections 4096; }}
http {{ access_log off; keepalive_requests 1000000; client_body_temp_path {root}/1; proxy_temp_path {root}/2;
fastcgi_temp_path {root}/3; uwsgi_temp_path {root}/4; scgi_temp_path {root}/5;
server {{ listen 127.0.0.1:{port} backlog=4096; root {root}/www; }} }}
"""
_THEIRS = """
from img2dataset import download
if __name__ == "__main__":
    download(url_list={source!r}, output_folder={output!r}, input_format="csv", url_col="url", caption_col="caption",
        output_format="webdataset", processes_count={processes}, thread_count={connections},
        number_sample_per_shard={a_shard}, disable_all_reencoding=True, compute_hash=None, retries=0, timeout=10,
        incremental_mode="incremental")
"""


@contextmanager
def server(root: Path, port: int, files: int) -> Iterator[None]:
    """Serve files of random bytes."""
    root.chmod(0o755)  # nginx may serve as another user
    (root / "www").mkdir()
    source, chosen = os.urandom(2**20), random.Random(1)
    for number in range(files):
        size = chosen.randint(4000, 20_000)
        at = chosen.randint(0, len(source) - size)
        (root / "www" / f"{number}.jpg").write_bytes(b"\xff\xd8\xff" + source[at : at + size])
    (root / "nginx.conf").write_text(_NGINX.format(root=root, port=port))
    nginx = shutil.which("nginx") or "/usr/sbin/nginx"
    process = subprocess.Popen([nginx, "-e", f"{root}/error.log", "-c", f"{root}/nginx.conf"])
    time.sleep(0.5)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def measure(command: list[str]) -> tuple[float, float, int]:
    """Run a command. Return its seconds, CPU seconds and the peak memory of its processes (shared pages once)."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun, most, ended, quiet = time.monotonic(), 0, threading.Event(), subprocess.DEVNULL
    env = {**os.environ, "NO_ALBUMENTATIONS_UPDATE": "1"}  # albumentations, which img2dataset imports
    process = subprocess.Popen(command, start_new_session=True, stdout=quiet, stderr=quiet, env=env)

    def watch() -> None:
        nonlocal most
        while not ended.wait(0.1):
            most = max(most, sum(map(_memory, _session(process.pid))))

    watcher = threading.Thread(target=watch)
    watcher.start()
    code = process.wait()
    seconds = time.monotonic() - begun
    ended.set()
    watcher.join()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if code:
        sys.exit(f"{command[0]} ended with {code}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, most


def _session(leader: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        with suppress(OSError, ValueError):
            after = Path(f"/proc/{int(name)}/stat").read_text().rpartition(")")[2].split()
            if int(after[3]) == leader:
                found.append(int(name))
    return found


def _memory(pid: int) -> int:
    """Return the proportional memory of a process in bytes. Shared pages are divided among their processes."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--img2dataset", required=True, metavar="PYTHON")
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--port", type=int, default=8765)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        names = [f"{n}.jpg" if n % _DEAD else f"dead/{n}.jpg" for n in range(given.files)]
        rows = [f"http://127.0.0.1:{given.port}/{name},caption {n}" for n, name in enumerate(names)]
        (root / "urls.csv").write_text("\n".join(["url,caption", *rows, ""]))
        source, how = f"{root}/urls.csv", {"processes": given.processes, "connections": given.connections}
        theirs = _THEIRS.format(source=source, output=f"{root}/theirs", a_shard=_A_SHARD, **how)
        (root / "theirs.py").write_text(theirs)
        ours = [
            sys.executable, "-m", "shardtool", "create", source, f"{root}/ours/out-{{00000..}}.tar", "--url", "jpg=url",
            "--fetch", f"allow-private,retries=0,connections={given.connections}", "--fetch",
            f"per-host={given.processes * given.connections}", "--workers", f"{given.processes}", "--max-count",
            f"{_A_SHARD}", "--overwrite",
        ]  # fmt: skip
        with server(root, given.port, given.files):
            for number in range(given.rounds):
                shutil.rmtree(root / "theirs", ignore_errors=True)
                shutil.rmtree(root / "ours", ignore_errors=True)
                (root / "theirs").mkdir()
                rates = []
                for name, command in (("img2dataset", [given.img2dataset, f"{root}/theirs.py"]), ("shardtool", ours)):
                    seconds, cpu, most = measure(command)
                    rates.append(given.files / seconds)
                    figures = f"{rates[-1]:6.0f} URLs/s  {cpu:5.1f} s of CPU  {most / 1e6:5.0f} MB"
                    print(f"round {number + 1}  {name:11}  {figures}")
                print(f"round {number + 1}  ratio        {rates[1] / rates[0]:6.2f}")


if __name__ == "__main__":
    main()
