"""Memory does not grow with the size of samples."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.faults.helpers import MEBIBYTE, create, start, write_samples

if TYPE_CHECKING:
    from tests.faults.helpers import Run

_LARGE = 400 * MEBIBYTE  # five times what is allowed
_ALLOWED = 80 * MEBIBYTE

# Records the memory of an idle worker, or of the only process, between plan and packing.
_BASELINE = (
    "import os, re; "
    "kids = open(f'/proc/{os.getpid()}/task/{os.getpid()}/children').read().split() or ['self']; "
    "print(max(re.search(r'VmHWM:\\s*(\\d+)', open(f'/proc/{kid}/status').read())[1] for kid in kids), "
    "file=open(sys.argv[2] + '.baseline', 'w'))"
)


def _peak(pid: int) -> int:
    """Return the peak memory of a process in bytes; 0 if it has exited."""
    with suppress(OSError):
        match = re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
        return int(match[1]) * 1024 if match else 0
    return 0


def _watch(run: Run, part: Path, *, workers: bool = True) -> tuple[int, int]:
    """Return the highest peak of any worker, or of the only process, and the last observed size of the output."""
    peak = seen = 0
    while run.process.poll() is None:
        with suppress(OSError):
            size = part.stat().st_size
            now = max((_peak(pid) for pid in (run.workers() if workers else [run.process.pid])), default=0)
            if now:
                peak, seen = max(peak, now), max(seen, size)
    return peak, seen


@pytest.mark.parametrize("workers", ["0", "1"])
def test_large_sample(place: Path, workers: str) -> None:
    """Packing a 400 MB file needs less than 80 MB of additional memory."""
    source = write_samples(place / "src", 1, _LARGE)
    options = ("--workers", workers, "--max-size", "3GB", "--quiet")
    run = start(source, place / "out", *options, code=_BASELINE)
    peak, seen = _watch(run, place / "out" / ".out-000.tar.part", workers=workers != "0")
    assert run.end().code == 0, run.err
    baseline = int((place / "src.baseline").read_text()) * 1024
    assert baseline > MEBIBYTE
    assert seen > _LARGE // 2, "the run was not watched while it packed"
    assert peak - baseline < _ALLOWED


def test_resume_of_a_large_shard(place: Path) -> None:
    """Verifying a 400 MB shard on resume needs no more than that."""
    source = write_samples(place / "src", 1, _LARGE)
    options = ("--workers", "1", "--max-size", "3GB", "--quiet")
    assert create(source, place / "out", *options).code == 0
    (place / "out" / "out.json").unlink()
    run = start(source, place / "out", *options, "--resume", code=_BASELINE)
    peak, _ = _watch(run, place / "out" / "out-000.tar")
    assert (run.end().code, run.err) == (0, "")
    baseline = int((place / "src.baseline").read_text()) * 1024
    assert peak > MEBIBYTE
    assert peak - baseline < _ALLOWED
