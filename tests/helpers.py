"""Run the command line, write small folders of files, and read shards without code of the package."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from shardtool import cli
from shardtool.cli.signals import SignalHandler
from tests import tfrecords, warm

if TYPE_CHECKING:
    from collections.abc import Mapping

REPO = Path(__file__).resolve().parent.parent
PHOTOS = REPO / "sample_data" / "photos"
# By default, NumPy starts threads for linear algebra, which takes 50 ms in each process. No test needs these threads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# If these variables are set, each process loads the certificates, even for connections without TLS. That takes 0.1 s.
for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
    os.environ.pop(name, None)
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPO), "PYTHONDONTWRITEBYTECODE": "1"}
PATIENCE_S = 120  # a command that takes longer hangs
_ROOM = 3 * 2**30


@dataclass(frozen=True)
class Ran:
    """Exit code and output of a finished command."""

    code: int
    out: str
    err: str


def memory_root() -> str | None:
    """Return /dev/shm if it has enough free space, because disks are slow. Otherwise, return None."""
    shm = "/dev/shm"  # noqa: S108 - tests create private folders in it
    with suppress(OSError):
        fact = os.statvfs(shm)
        return shm if fact.f_bavail * fact.f_frsize > _ROOM and os.access(shm, os.W_OK) else None
    return None


def typed(*words: str | Path, cwd: Path | None = None, traceback: bool = False) -> Ran:
    """Run the command line with the arguments `words` in this process. That takes a tenth of the time of `tool`.

    Check that a traceback is printed exactly if `traceback` is true.
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "surrogateescape", write_through=True) for _ in range(2))
    before = Path.cwd()
    os.chdir(cwd or before)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = cli._run([str(word) for word in words], SignalHandler(print))  # noqa: SLF001 - `main` would exit this process
    finally:
        os.chdir(before)
    ran = Ran(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))
    assert ("Traceback" in ran.out + ran.err) == traceback, ran
    return ran


def tool(*words: str | Path, cwd: Path | None = None, stdout: IO[bytes] | int = subprocess.PIPE, **env: str) -> Ran:
    """Run `python -m shardtool` with the arguments `words` in another process, and check that it prints no traceback.

    The process is forked from the server of `tests.warm`, unless `env` or `stdout` is given.
    """
    if warm.POSSIBLE and not env and stdout == subprocess.PIPE:
        run = warm.Warm([*map(str, words)], cwd=cwd or Path.cwd(), env=ENVIRONMENT, session=False)
        out, err = (data.decode() for data in run.communicate(PATIENCE_S))
        assert "Traceback" not in out + err, (out, err)
        return Ran(run.wait(0), out, err)
    command = [sys.executable, "-m", "shardtool", *map(str, words)]
    done = subprocess.run(
        command, cwd=cwd, env={**ENVIRONMENT, **env}, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    ran = Ran(done.returncode, (done.stdout or b"").decode(), done.stderr.decode())
    assert "Traceback" not in ran.out + ran.err, ran
    return ran


_CREATE_AND_DIE = """
import json, os, signal, sys
from shardtool import create
from shardtool.storage import staging
left, rename = int(sys.argv[3]), os.rename
def counted(*names):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    rename(*names)
staging.os.rename = counted
create(sys.argv[1], sys.argv[2], **json.loads(sys.argv[4]))
"""


def create_and_die(source: Path, pattern: str, rename: int, **options: object) -> bool:
    """Run `create` in a process that kills itself before rename number `rename` (from 1). Return whether it did."""
    words = [str(source), pattern, str(rename), json.dumps(options)]
    command = [sys.executable, "-W", "error", "-c", _CREATE_AND_DIE, *words]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


def shell(line: str, cwd: Path) -> Ran:
    """Run a line of bash, in which `$T` is `shardtool`. Of a pipe, return the exit code of the first command.

    The command is forked from the server of `tests.warm`, unless the line closes a descriptor.
    """
    how, fds = (f"{sys.executable} -m shardtool", []) if "&-" in line else warm.command()
    done = subprocess.run(
        ["bash", "-c", f'T="{how}"; {line}; exit ${{PIPESTATUS[0]}}'], pass_fds=fds,
        cwd=cwd, env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


def write_tree(root: Path, files: Mapping[str, bytes] | Mapping[bytes, bytes]) -> Path:
    """Write files below `root`, and return `root`. Names are relative paths, and can be bytes."""
    root.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        path = os.path.join(os.fsencode(root), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
    return root


def read_tree(root: Path) -> dict[str, bytes]:
    """Return the content of all files below `root`, by relative path. Links are followed."""
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def shards(folder: Path) -> list[Path]:
    """Return the shards of a folder, in order."""
    return sorted([*folder.glob("*.tar"), *folder.glob("*.tfrecord")])


def sidecar(shard: str) -> str:
    """Return the name of a shard's sidecar."""
    return f"{shard.rpartition('.')[0]}.index"


def members(*paths: Path) -> list[tuple[str, bytes]]:
    """Return (`KEY.FIELD`, payload) of every field in shards. Tars are read with Python's `tarfile`."""
    found = []
    for path in paths:
        if path.suffix == ".tfrecord":
            found += _features(path)
            continue
        with tarfile.open(path, "r:", encoding="utf-8", errors="surrogateescape") as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                found.append((member.name, file.read()))
    return found


def _features(path: Path) -> list[tuple[str, bytes]]:
    found = []
    for _, data in tfrecords.records(path.read_bytes()):
        features = {one.name: one.text for one in tfrecords.parse_example(data)}
        key = features.pop("__key__").decode()
        found += [(f"{key}.{name}", text) for name, text in features.items()]
    return found


def identity(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return inode, mtime and ctime of every file. All three stay the same if nothing touches the file."""
    facts = {path.name: path.lstat() for path in folder.iterdir()}
    return {name: (fact.st_ino, fact.st_mtime_ns, fact.st_ctime_ns) for name, fact in sorted(facts.items())}


def flip(path: Path, at: int) -> None:
    """Flip the lowest bit of the byte at offset `at`. A negative offset counts from the end."""
    with path.open("r+b") as file:
        file.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def existing(how: str) -> dict[str, Any]:
    """Return options of `create`: `append-resume` sets `append` and `resume`, and `error` sets nothing."""
    return {} if how == "error" else dict.fromkeys(how.split("-"), True)
