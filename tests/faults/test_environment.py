"""The same bytes, or a clear error, in any environment."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.faults.helpers import (
    PATTERN,
    REPO,
    contents,
    create,
    hidden,
    hold,
    identity,
    is_stopped,
    plain,
    release,
    settles,
    shards,
    start,
    write_samples,
)

if TYPE_CHECKING:
    from tests.faults.conftest import Bulk

OPTIONS = ("--max-count", "4", "--workers", "2", "--quiet")

_ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def _shell(line: str) -> list[str]:
    """Return a command prefix that runs a line of shell first."""
    return ["sh", "-c", line, "sh"]


# Words before the command, environment variables, and options.
SURROUNDINGS: dict[str, tuple[list[str], dict[str, str], list[str]]] = {
    "fork": ([], {"PYTHONHASHSEED": "0"}, ["--start-method", "fork"]),
    "spawn": ([], {"PYTHONHASHSEED": "1"}, ["--start-method", "spawn"]),
    "no workers": ([], {}, ["--workers", "0"]),
    "many workers": ([], {"TZ": "Pacific/Kiritimati"}, ["--workers", "9"]),
    "C locale": ([], {"LC_ALL": "C", "LANG": "C"}, []),
    "ASCII": ([], _ASCII, []),
    "ASCII, spawned": ([], _ASCII, ["--start-method", "spawn"]),
    "no folders": ([], {"TMPDIR": "/nonexistent", "HOME": "/nonexistent"}, []),
    "stdin closed": (_shell('exec "$@" <&-'), {}, []),
    "stdin closed, spawned": (_shell('exec "$@" <&-'), {}, ["--start-method", "spawn"]),
    "stdout closed": (_shell('exec "$@" >&-'), {}, []),
    "stderr closed": (_shell('exec "$@" 2>&-'), {}, []),
    "all closed": (_shell('exec "$@" <&- >&- 2>&-'), {}, []),
    "all closed, spawned": (_shell('exec "$@" <&- >&- 2>&-'), {}, ["--start-method", "spawn"]),
    "few descriptors": (_shell('ulimit -n 64; exec "$@"'), {}, []),
    "few descriptors, spawned": (_shell('ulimit -n 64; exec "$@"'), {}, ["--start-method", "spawn"]),
}  # fmt: skip


def _rename_foreign(source: Path) -> Path:
    for number in range(3):
        (source / f"Ä{number} 猫.jpg").write_bytes(b"picture" * number)
    return source.rename(source.with_name("Quelle ü"))


@pytest.fixture
def foreign(small: Path) -> Path:
    """Add non-ASCII names to a source with a non-ASCII name."""
    return _rename_foreign(small)


@pytest.fixture(scope="session")
def foreign_expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the output of an ordinary run on it."""
    folder = tmp_path_factory.mktemp("foreign")
    assert create(_rename_foreign(write_samples(folder / "src", 12, 60_000)), folder / "out", *OPTIONS).code == 0
    return contents(folder / "out")


@pytest.mark.slow
@pytest.mark.parametrize("name", SURROUNDINGS)
def test_same_bytes(name: str, foreign: Path, foreign_expected: dict[str, str], place: Path) -> None:
    """Start method, workers, locale, hash seed, time zone, closed streams and limits change no output byte."""
    before, more, options = SURROUNDINGS[name]
    run = create(foreign, place / "out", *OPTIONS, *options, env={**os.environ, **more}, before=before)
    assert (run.code, run.err) == (0, "")
    assert contents(place / "out") == foreign_expected
    assert run.all_gone()


@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
def test_skipped_in_any_locale(locale: str, foreign: Path, place: Path) -> None:
    """The list of skipped samples has the same bytes in a locale that cannot print the names."""
    code = "import os; os.unlink(b'%s/\\xc3\\x841 \\xe7\\x8c\\xab.jpg' % os.fsencode(sys.argv[2]))"
    env = {**os.environ, "LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    run = create(foreign, place / "out", *OPTIONS, "--on-error", "skip", env=env, code=code)
    assert (run.code, run.err) == (0, "")
    row = (place / "out" / "out.skipped").read_bytes()
    assert row.startswith(rb'{"key": "\u00c41 \u732b", "path": "\u00c41 \u732b.jpg", "code": "vanished"')


def test_empty_environment(small: Path, expected: dict[str, str], place: Path) -> None:
    """The tool works with no environment variable but PATH."""
    command = [sys.executable, "-m", "shardtool", "create", str(small), f"{place}/out/{PATTERN}", *OPTIONS]
    path = os.environ.get("PATH", os.defpath)
    run = subprocess.run(["env", "-i", f"PATH={path}", *command], cwd=REPO, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert contents(place / "out") == expected


@pytest.mark.parametrize(("umask", "mode"), [("077", 0o600), ("000", 0o666)])
def test_umask(umask: str, mode: int, small: Path, expected: dict[str, str], place: Path) -> None:
    """All files get the mode that the umask allows, and the same bytes."""
    run = create(small, place / "out", *OPTIONS, before=_shell(f'umask {umask}; exec "$@"'))
    assert (run.code, run.err) == (0, "")
    assert contents(place / "out") == expected
    assert {oct(file.stat().st_mode & 0o777) for file in (place / "out").iterdir()} == {oct(mode)}


def test_relative_paths(small: Path, expected: dict[str, str], place: Path) -> None:
    """Relative and absolute paths of source and output give the same bytes."""
    cwd = place / "elsewhere" / "deep"
    cwd.mkdir(parents=True)
    source = os.path.relpath(small, cwd)
    for number, (given, output, there) in enumerate(
        [
            (source, PATTERN, cwd),
            (source, f"../rel/new/{PATTERN}", place / "elsewhere/rel/new"),
            (f"{small}/", f"./more//{PATTERN}", cwd / "more"),
        ]
    ):
        run = create(given, output, *OPTIONS, "--start-method", "spawn" if number % 2 else "fork", cwd=cwd)
        assert (run.code, run.err) == (0, "")
        found = {name: digest for name, digest in contents_of_files(there).items() if name.startswith("out")}
        assert found == expected


def contents_of_files(folder: Path) -> dict[str, str]:
    """Return the contents of a folder that also contains other folders."""
    flat = folder / "flat"
    flat.mkdir()
    for entry in folder.iterdir():
        if entry.is_file():
            entry.rename(flat / entry.name)
    return contents(flat)


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_too_few_descriptors(start_method: str, small: Path, place: Path) -> None:
    """More workers than the limit of open files allows is a clear error without a traceback."""
    limited = _shell('ulimit -n 32; exec "$@"')
    run = create(
        small, place / "out", *OPTIONS, "--max-count", "1", "--workers", "40", "--start-method", start_method,
        before=limited,
    )  # fmt: skip
    plain(run)
    assert run.code == 7
    assert "open files" in run.err
    assert run.all_gone()


def _in_own_mounts(mounts: str) -> list[str]:
    """Return a command prefix for a new mount namespace; skip if that is not permitted."""
    words = ["unshare", "-m", "sh", "-c", f'{mounts} && exec "$@"', "sh"]
    if shutil.which("unshare") is None or subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a mount namespace of one's own is not permitted here")
    return words


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mounts", "start_method"),
    [
        ("mount -t tmpfs -o size=4k,nr_inodes=1 none /dev/shm", "fork"),
        ("mount -t tmpfs -o size=4k,nr_inodes=1 none /dev/shm", "spawn"),
        ("mount -t tmpfs -o ro none /dev/shm", "fork"),
        ("mount -t tmpfs -o ro none /proc", "fork"),
    ],
    ids=["tiny-shm", "tiny-shm-spawned", "read-only-shm", "no-proc"],
)
def test_missing_shm_and_proc(mounts: str, start_method: str, expected: dict[str, str], small: Path) -> None:
    """A full /dev/shm or a missing /proc changes nothing."""
    with tempfile.TemporaryDirectory() as name:  # not in memory: that is hidden
        folder = Path(name)
        shutil.copytree(small, folder / "src")
        before = _in_own_mounts(mounts)
        run = create(folder / "src", folder / "out", *OPTIONS, "--start-method", start_method, before=before)
        assert (run.code, run.err) == (0, "")
        assert contents(folder / "out") == expected


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_full_stdout(small: Path, expected: dict[str, str], place: Path) -> None:
    """If the summary cannot be written, the exit code says so, and the dataset is complete."""
    run = create(small, place / "out", *OPTIONS, "--json", before=_shell('exec "$@" >/dev/full'))
    assert run.code == 7
    assert "no space left" in run.err
    plain(run)
    assert contents(place / "out") == expected


def test_second_run_is_refused(bulk: Bulk, place: Path) -> None:
    """While a run writes, another on the same output exits with 5 and changes nothing; the first succeeds."""
    folder = place / "out"
    first = start(bulk.source, folder, *bulk.options)
    hold(first, folder, 2)
    before = identity(folder, os.listdir(folder))
    for more in ([], ["--resume"], ["--overwrite"]):
        second = create(bulk.source, folder, *bulk.options, *more)
        assert second.code == 5
        assert "another run" in second.err or not more
        plain(second)
        assert identity(folder, os.listdir(folder)) == before
    release(first)
    assert (first.end().code, first.err) == (0, "")
    assert contents(folder) == bulk.expected


def test_locked_before_the_first_shard(small: Path, expected: dict[str, str], place: Path) -> None:
    """A second run is refused even before the first has published a shard."""
    first = start(small, place / "out", *OPTIONS, code="import os, signal; os.kill(0, signal.SIGSTOP)")
    assert settles(lambda: is_stopped(first.process.pid))
    second = create(small, place / "out", *OPTIONS)
    assert second.code == 5
    assert "another run" in second.err
    assert shards(place / "out") == []
    release(first)
    assert (first.end().code, first.err) == (0, "")
    assert contents(place / "out") == expected


def test_runs_started_together(bulk: Bulk, place: Path) -> None:
    """Of runs that start together, one exits with 0, the others with 0 or 5, and the output is complete."""
    runs = [start(bulk.source, place / "out", *bulk.options, "--resume") for _ in range(3)]
    codes = sorted(run.end().code for run in runs)
    assert codes[0] == 0
    assert set(codes) <= {0, 5}
    assert contents(place / "out") == bulk.expected


def test_two_datasets_in_one_folder(bulk: Bulk, place: Path, small: Path, expected: dict[str, str]) -> None:
    """Runs of different datasets in one folder neither wait for each other nor delete each other's files."""
    folder = place / "out"
    first = start(bulk.source, folder, *bulk.options)
    hold(first, folder, 2)
    staged = hidden(folder)
    second = create(small, f"{folder}/other-{{000..}}.tar", *OPTIONS)
    assert (second.code, second.err) == (0, "")
    assert hidden(folder) == staged
    release(first)
    assert first.end().code == 0
    found = contents(folder)
    assert {name: digest for name, digest in found.items() if name.startswith("out")} == bulk.expected
    tars = [found[name] for name in sorted(found) if name.startswith("other") and name.endswith(".tar")]
    assert tars == [expected[name] for name in sorted(expected) if name.endswith(".tar")]


def test_closed_stderr(bulk: Bulk, place: Path) -> None:
    """If the reader of stderr exits, the dataset is complete, or the exit code is not 0 and not a bug."""
    run = start(bulk.source, place / "out", *bulk.options[:-1], "-v")
    assert run.process.stderr is not None
    run.process.stderr.close()
    assert run.process.stdout is not None
    with run.process.stdout:
        run.process.stdout.read()
    code = run.process.wait(30)
    assert code in {0, -signal.SIGPIPE, 128 + signal.SIGPIPE}
    assert run.all_gone()
    assert not hidden(place / "out")
    assert code or (place / "out" / "out.json").exists(), "0 over a dataset that is not complete"
    assert create(bulk.source, place / "out", *bulk.options, "--resume").code == 0
    assert contents(place / "out") == bulk.expected
