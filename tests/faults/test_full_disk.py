"""Full disks, limits of inodes and file size: a clear error, no partial file, and the run can be resumed."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from shardtool import OutputFailed, ShardWriter
from tests.faults.helpers import contents, create, finished, hidden, identity, plain, shards

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.faults.helpers import Run

OPTIONS = ("--max-count", "4", "--workers", "2", "--quiet")
_PAGE = 4096

# Fills the file system of {folder!r} between plan and packing, but for {room} bytes.
_FILL = (
    "import os; fact = os.statvfs({folder!r}); "
    "os.posix_fallocate(os.open({folder!r} + '/filler', os.O_CREAT | os.O_WRONLY), 0, "
    "fact.f_bavail * fact.f_frsize - {room})"
)


def _fill(folder: Path, room: int) -> str:
    return _FILL.format(folder=str(folder), room=room // _PAGE * _PAGE)


def _finished(folder: Path) -> dict[str, str]:
    """Return what an interrupted run leaves, except its journal."""
    return {name: digest for name, digest in contents(folder).items() if name != ".out.journal"}


def _refused(run: Run, folder: Path, said: str) -> None:
    """Check that a run exited with 7 and a message, and left no temporary file or dataset file."""
    assert run.code == 7, run.err
    assert said in run.err
    plain(run)
    assert run.all_gone()
    assert not hidden(folder)
    assert not (folder / "out.json").exists()


@pytest.mark.parametrize("size", ["100k", "300k", "700k", "708k"])
def test_a_writer_fills_the_disk(disk: Callable[[str], Path], tmp_path: Path, size: str) -> None:
    """A disk that becomes full while a program writes contains complete shards, and another writer continues."""

    def write(folder: Path, *, resume: bool) -> None:
        with ShardWriter(folder / "out-{000000..}.tar", max_size=100_000, resume=resume) as writer:
            for n in range(writer.samples, 70):
                writer.write({"__key__": f"{n:03}", "bin": bytes([n]) * 9000, "cls": n}, {"n": n})

    folder = disk(f"size={size}")
    with pytest.raises(OutputFailed, match="no space left"):
        write(folder, resume=False)
    assert not (folder / "out.json").exists()
    assert not hidden(folder)
    for path in folder.glob("*.tar"):
        assert path.with_suffix(".index").exists() or path == max(folder.glob("*.tar"))
    subprocess.run(["mount", "-o", "remount,size=4m", str(folder)], check=True)
    write(folder, resume=True)
    write(tmp_path, resume=False)
    assert contents(folder) == contents(tmp_path)


def _space(folder: Path) -> int:
    """Return the space that the files of a folder need, in whole pages."""
    return sum(-(-os.path.getsize(folder / name) // _PAGE) * _PAGE for name in os.listdir(folder))


def test_output_that_cannot_fit_is_refused(small: Path, disk: Callable[[str], Path]) -> None:
    """Output that cannot fit is refused before writing, with free and needed space."""
    out = disk("size=512k")
    run = create(small, out, *OPTIONS)
    _refused(run, out, "nothing was written")
    assert re.search(r"524 kB free, [78]\d\d kB needed", run.err)
    assert os.listdir(out) == []


# Pages too few for all: at -1 the dataset file does not fit, at -2 the last sidecar, then the last shard, and so on.
@pytest.mark.parametrize("missing", [1, 2, 3, 70, 10_000])
def test_disk_fills_up(
    small: Path, expected: dict[str, str], reference: Path, disk: Callable[[str], Path], missing: int
) -> None:
    """Wherever the disk becomes full, published files are complete; with space, resume finishes."""
    out = disk("size=8m")
    run = create(small, out, *OPTIONS, code=_fill(out, max(0, _space(reference) - missing * _PAGE)))
    _refused(run, out, "no space left")
    assert "Make space" in run.err
    (out / "filler").unlink()
    assert _finished(out).items() <= expected.items()
    before = identity(out, finished(out))
    again = create(small, out, *OPTIONS, "--resume")
    assert (again.code, again.err) == (0, "")
    assert identity(out, list(before)) == before
    assert contents(out) == expected


def test_disk_shrinks(small: Path, expected: dict[str, str], disk: Callable[[str], Path]) -> None:
    """A quota that is reduced during a run has the same effect as a full disk."""
    out = disk("size=8m")
    run = create(small, out, *OPTIONS, code=f"import os; os.system('mount -o remount,size=400k {out}')")
    _refused(run, out, "no space left")
    subprocess.run(["mount", "-o", "remount,size=8m", str(out)], check=True)
    assert _finished(out).items() <= expected.items()
    assert create(small, out, *OPTIONS, "--resume").code == 0
    assert contents(out) == expected


@pytest.mark.parametrize("files", [3, 8])
def test_no_inodes(small: Path, expected: dict[str, str], disk: Callable[[str], Path], files: int) -> None:
    """A disk without inodes has the same effect as a full disk."""
    out = disk(f"size=8m,nr_inodes={files}")
    run = create(small, out, *OPTIONS)
    _refused(run, out, "no space left")
    subprocess.run(["mount", "-o", "remount,nr_inodes=100", str(out)], check=True)
    assert _finished(out).items() <= expected.items()
    assert create(small, out, *OPTIONS, "--resume").code == 0
    assert contents(out) == expected


@pytest.mark.parametrize("room", [0, 300_000])
def test_fills_up_while_overwriting(
    small: Path, expected: dict[str, str], disk: Callable[[str], Path], room: int
) -> None:
    """If the disk becomes full during `--overwrite`, the old dataset is unchanged."""
    out = disk("size=8m")
    assert create(small, out, *OPTIONS, "--include", "s000[0-3]*").code == 0
    before = contents(out)
    run = create(small, out, *OPTIONS, "--overwrite", code=_fill(out, room))
    assert run.code == 7
    assert "no space left" in run.err
    plain(run)
    (out / "filler").unlink()
    assert contents(out) == before
    assert create(small, out, *OPTIONS, "--overwrite").code == 0
    assert contents(out) == expected


def test_overwrite_that_cannot_fit(small: Path, disk: Callable[[str], Path]) -> None:
    """`--overwrite` without space for both datasets is refused, and the error explains why."""
    out = disk("size=1m")
    assert create(small, out, *OPTIONS).code == 0
    before, untouched = contents(out), identity(out, os.listdir(out))
    run = create(small, out, *OPTIONS, "--overwrite")
    assert run.code == 7
    assert "old dataset is kept" in run.err
    assert (contents(out), identity(out, os.listdir(out))) == (before, untouched)


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_file_size_limit(small: Path, place: Path, start_method: str) -> None:
    """A shard above `ulimit -f` is an error that names the limit; SIGXFSZ does not kill the process."""
    out = place / "out"
    limited = ["sh", "-c", 'ulimit -f 200; exec "$@"', "sh"]  # blocks of 512 bytes
    run = create(small, out, *OPTIONS, "--start-method", start_method, before=limited)
    _refused(run, out, "file too large")
    assert "ulimit -f" in run.err
    assert "out-00" in run.err
    assert shards(out) == []


def test_read_only_file_system(small: Path, disk: Callable[[str], Path]) -> None:
    """A read-only file system is named, without a traceback."""
    out = disk("size=8m,ro")
    run = create(small, out, *OPTIONS)
    assert run.code == 7
    assert "read-only file system" in run.err
    plain(run)
    assert os.listdir(out) == []
