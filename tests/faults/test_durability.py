"""Order of fsync and rename, seen with strace; and each such call failing."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.faults.helpers import contents, create, hidden, plain

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS = ("--max-count", "4", "--workers", "1", "--quiet")
_RENAMES = "rename,renameat,renameat2"


@pytest.fixture(scope="session")
def strace() -> str:
    """Return the path of strace, if it may trace."""
    path = shutil.which("strace")
    if path is None:
        pytest.skip("strace is not installed (apt-get install strace)")
    done = subprocess.run([path, "-f", "-qq", "-e", "trace=none", "true"], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"strace may not trace here: {done.stderr.decode().strip()}")
    return path


def _events(log: Path, folder: Path) -> list[tuple[str, str]]:
    """Return the successful calls in order, as (`sync` or `name`, file); "" is the folder."""
    found = []
    for line in _joined(log.read_text(errors="replace").splitlines()):
        if match := re.search(r"(?:fsync|fdatasync)\(\d+<([^>]*)>\)\s+= 0", line):
            call, path = "sync", match[1]
        elif match := re.search(r'rename(?:at2?)?\(.*"([^"]*)"(?:, \w+)?\)\s+= 0', line):
            call, path = "name", match[1]
        else:
            continue
        if path == str(folder) or path.startswith(f"{folder}/"):
            found.append((call, path[len(str(folder)) + 1 :]))
    return found


def _joined(lines: list[str]) -> list[str]:
    """Join calls that strace prints in two parts because another process was scheduled."""
    waiting: dict[str, str] = {}
    whole = []
    for line in lines:
        pid = line.split(maxsplit=1)[0]
        if line.endswith("<unfinished ...>"):
            waiting[pid] = line.removesuffix("<unfinished ...>")
        elif "resumed>" in line:
            whole.append(waiting.pop(pid).rstrip() + line.partition("resumed>")[2])
        else:
            whole.append(line)
    return whole


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("verb", ["", "--overwrite"], ids=["fresh", "overwrite"])
def test_sync_before_rename(strace: str, workers: str, verb: str, small: Path, place: Path) -> None:
    """Each file is synced before its rename, the folder after; shard, then sidecar, dataset file last."""
    out, log = place / "out", place / "log"
    if verb:
        assert create(small, out, *OPTIONS, "--include", "s000*").code == 0
    traced = [strace, "-f", "-y", "-qq", "-s", "400", "-e", f"trace=fsync,fdatasync,{_RENAMES}", "-o", str(log)]
    run = create(small, out, *OPTIONS, "--workers", workers, *([verb] if verb else []), before=traced)
    assert run.code == 0, run.err
    events = _events(log, out)
    named = [file for call, file in events if call == "name" and file != ".out.journal"]
    shards = [f"out-00{number}.tar" for number in range(3)]
    assert sorted(named) == sorted([*shards, *(name.replace(".tar", ".index") for name in shards), "out.json"])
    assert named[-1] == "out.json"
    for file in named:
        at = events.index(("name", file))
        assert ("sync", f".{file}.part") in events[:at], f"{file} was renamed before it was synced"
        assert ("sync", "") in events[at:], f"{file}: the folder was not synced after its rename"
        if file.endswith(".index"):
            assert ("name", file.replace(".index", ".tar")) in events[:at], f"{file} came before its shard"
    last = events.index(("name", "out.json"))
    others = max(events.index(("name", file)) for file in named[:-1])
    assert ("sync", "") in events[others:last], "the dataset file was named before the others were durable"


def test_new_folders_are_durable(strace: str, small: Path, place: Path) -> None:
    """New folders are synced into their parents before any file in them is renamed."""
    out, log = place / "new" / "deep", place / "log"
    traced = [strace, "-f", "-y", "-qq", "-s", "400", "-e", f"trace=fsync,{_RENAMES}", "-o", str(log)]
    assert create(small, out, *OPTIONS, before=traced).code == 0
    events = _events(log, place)
    first = next(at for at, (call, _) in enumerate(events) if call == "name")
    assert {("sync", ""), ("sync", "new")} <= set(events[:first])


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        ("fsync", 1, "EIO", "input/output error"),
        ("fsync", 3, "ENOSPC", "no space left"),
        ("fsync", 8, "EDQUOT", "quota"),
        (_RENAMES, 2, "ENOSPC", "no space left"),
        (_RENAMES, 7, "EIO", "input/output error"),
        ("utimensat", 1, "EIO", "input/output error"),
    ],
    ids=lambda fault: f"{fault[0].partition(',')[0]}-{fault[1]}",
)
def test_failing_system_call(
    strace: str, fault: tuple[str, int, str, str], small: Path, expected: dict[str, str], place: Path
) -> None:
    """Any failing fsync, rename or similar call ends the run with 7; resume produces the same bytes."""
    out, (call, number, error, said) = place / "out", fault
    inject = f"inject={call}:error={error}:when={number}"
    traced = [strace, "-f", "-qq", "-e", f"trace={call}", "-e", inject, "-o", str(place / "log")]
    run = create(small, out, *OPTIONS, before=traced)
    assert run.code == 7, run.err
    assert said in run.err
    assert "out" in run.err
    plain(run)
    assert run.all_gone()
    assert not hidden(out)
    assert {name: data for name, data in contents(out).items() if name != ".out.journal"}.items() <= expected.items()
    again = create(small, out, *OPTIONS, "--resume")
    assert (again.code, again.err) == (0, "")
    assert contents(out) == expected


@pytest.mark.slow
@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_source_read_error(strace: str, on_error: str, small: Path, place: Path) -> None:
    """A read that fails with EIO fails its sample by name; it is not replaced by zeros."""
    bad = small / "s0005.bin"
    inject = "inject=readv,read,pread64,preadv:error=EIO"
    traced = [strace, "-f", "-qq", "-P", str(bad), "-e", "trace=readv,read,pread64,preadv", "-e", inject]
    out = place / "out"
    run = create(small, out, *OPTIONS, "--on-error", on_error, before=[*traced, "-o", str(place / "log")])
    plain(run)
    assert not hidden(out)
    if on_error == "stop":
        assert run.code == 6
        assert f"{bad}: input/output error" in run.err
    else:
        assert run.code == 0, run.err
        assert '"code": "unreadable", "message": "input/output error"' in (out / "out.skipped").read_text()
