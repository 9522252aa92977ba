"""A copy that fails or is interrupted leaves finished files and can be continued."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from shardtool import CreateOptions, OutputFailed, copy, create
from shardtool.storage.staging import Folder
from tests.helpers import ENVIRONMENT, PATIENCE_S, read_tree, write_tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _dataset(place: Path, sample: int = 9000, samples: int = 12) -> Path:
    source = write_tree(place / "in", {f"{at:02}.bin": bytes([at]) * sample for at in range(samples)})
    create(source, f"{place}/out/out-{{000..}}.tar", CreateOptions(max_count=2, workers=1))
    return place / "out"


def test_disk_fills_while_copying(place: Path, disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that becomes full fails the copy; the next copy continues once there is space."""
    source, mounted = _dataset(place), disk("size=256k")
    filler = mounted / "other"
    filler.write_bytes(bytes(150_000))
    with pytest.raises(OutputFailed, match="nothing was copied"):
        copy(source, mounted / "copy")
    with monkeypatch.context() as patched:
        patched.setattr(Folder, "free_bytes", lambda _: 10**9)
        with pytest.raises(OutputFailed, match="no space left"):
            copy(source, mounted / "copy")
    there = read_tree(mounted / "copy")
    assert there.items() < read_tree(source).items()
    assert "out.json" not in there
    filler.unlink()
    copy(source, mounted / "copy")
    assert read_tree(mounted / "copy") == read_tree(source)


def test_read_only_disk(place: Path, disk: Callable[[str], Path]) -> None:
    """A copy to a read-only disk fails and names the folder."""
    source, mounted = _dataset(place), disk("size=1m")
    subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
    with pytest.raises(OutputFailed, match="read-only"):
        copy(source, mounted / "copy")


def test_file_size_limit(place: Path) -> None:
    """A file size limit (`ulimit -f`) is reported as such; no partial file is visible."""
    source = _dataset(place)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (15_000, before[1]))
    try:
        with pytest.raises(OutputFailed, match="ulimit"):
            copy(source, place / "copy")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert read_tree(place / "copy") == {}


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_copy_can_be_continued(signum: signal.Signals, place: Path) -> None:
    """An interrupt ends a copy soon, without temporary files; the same command continues it."""
    source = _dataset(place, 2_000_000, 40)
    command = [sys.executable, "-m", "shardtool", "copy", str(source), str(place / "copy")]
    run = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + PATIENCE_S
    while not [*(place / "copy").glob("*.tar")] and time.monotonic() < end and run.poll() is None:
        time.sleep(0.001)
    run.send_signal(signum)
    said = run.communicate(timeout=PATIENCE_S)[1]
    if run.returncode == 0:
        pytest.skip("it was done before the signal came")
    assert run.returncode == 128 + signum
    assert "Run it again to continue." in said
    there = read_tree(place / "copy")
    assert not [name for name in there if name.startswith(".")]
    assert there.items() < read_tree(source).items()
    copy(source, place / "copy")
    assert read_tree(place / "copy") == read_tree(source)
