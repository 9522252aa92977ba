"""Files that vanish, change or become unreadable after planning."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING

import pytest

from tests.faults.helpers import (
    MEBIBYTE,
    contents,
    create,
    finished,
    hidden,
    identity,
    plain,
    settles,
    shards,
    start,
    write_samples,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.helpers import Run

OPTIONS = ("--max-count", "4", "--workers", "2", "--quiet")
KEY, FILE = "s0005", "s0005.bin"

# What happens to the file {at!r} (code, run between plan and packing), the reason code, and what the message says.
FAULTS = {
    "vanishes": ("os.unlink({at!r})", "vanished", "no such file"),
    "shrinks": ("os.truncate({at!r}, 1000)", "changed", "1,000 now"),
    "is emptied": ("os.truncate({at!r}, 0)", "changed", "0 now"),
    "grows": ("open({at!r}, 'ab').write(b'more')", "changed", "60,004 now"),
    "is rewritten": ("open({at!r}, 'wb').write(bytes(60_000))", "changed", "modification time"),
    "is replaced": (
        "open({at!r} + '~', 'wb').write(bytes(60_000)); os.rename({at!r} + '~', {at!r})", "changed", "modification",
    ),
    "becomes a fifo": ("os.unlink({at!r}); os.mkfifo({at!r})", "changed", ""),
    "becomes a link": ("os.rename({at!r}, {at!r} + '~'); os.symlink({at!r} + '~', {at!r})", "unreadable", ""),
    "becomes a link out": ("os.unlink({at!r}); os.symlink('/etc/passwd', {at!r})", "unreadable", ""),
    "becomes a folder": ("os.unlink({at!r}); os.mkdir({at!r})", "unreadable", "directory"),
}  # fmt: skip


def _fault(name: str, source: Path) -> str:
    return "import os; " + FAULTS[name][0].format(at=str(source / FILE))


def _samples(folder: Path) -> dict[str, bytes]:
    """Return all members of all shards, as tarfile reads them."""
    found = {}
    for name in shards(folder):
        with tarfile.open(folder / name) as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                found[member.name] = file.read()
    return found


def _restore(source: Path, good: Path) -> None:
    shutil.rmtree(source)
    subprocess.run(["cp", "-a", str(good), str(source)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [name for name in FAULTS if name not in {"is emptied", "becomes a link"}])
def test_changed_file_ends_the_run(fault: str, small: Path, expected: dict[str, str], place: Path) -> None:
    """A file that differs from the plan ends the run with 6; once restored, resume produces the same bytes."""
    good = place / "good"
    subprocess.run(["cp", "-a", str(small), str(good)], check=True)
    run = create(small, place / "out", *OPTIONS, code=_fault(fault, small))
    assert run.code == 6
    assert str(small / FILE) in run.err
    assert FAULTS[fault][2] in run.err
    assert "--resume" in run.err
    plain(run)
    assert not hidden(place / "out")
    assert not (place / "out" / "out.json").exists()
    assert len(shards(place / "out")) < 3
    assert run.all_gone()
    before = identity(place / "out", finished(place / "out"))
    _restore(small, good)
    again = create(small, place / "out", *OPTIONS, "--resume")
    assert (again.code, again.err) == (0, "")
    assert identity(place / "out", list(before)) == before
    assert contents(place / "out") == expected


def test_changed_file_is_skipped(small: Path, place: Path) -> None:
    """With `--on-error skip`, such a sample is skipped with all its files and listed; the counts match."""
    faults = {f"s{number:04}": fault for number, fault in enumerate(FAULTS.values())}
    whole = {file.name: file.read_bytes() for file in small.iterdir() if file.name[:5] not in faults}
    code = "; ".join(["import os", *(fault[0].format(at=f"{small}/{key}.bin") for key, fault in faults.items())])
    run = create(small, place / "out", *OPTIONS, "--on-error", "skip", "--json", code=code)
    assert run.code == 0, run.err
    plain(run)
    _check_skipped_list(place / "out", small, [(key, f"{key}.bin", fault[1]) for key, fault in faults.items()])
    messages = [json.loads(line)["message"] for line in (place / "out" / "out.skipped").read_text().splitlines()]
    assert all(fault[2] in message for fault, message in zip(faults.values(), messages, strict=True))
    told = json.loads(run.out)
    assert (told["samples"], told["skipped"]) == (2, 10)
    assert _samples(place / "out") == whole


def _check_skipped_list(folder: Path, source: Path, rows: list[tuple[str, str, str]]) -> None:
    """Check that `out.skipped` lists exactly these samples, and that in = written + skipped."""
    found = [json.loads(line) for line in (folder / "out.skipped").read_text().splitlines()]
    assert [(row["key"], row["path"], row["code"]) for row in found] == rows
    assert all(row["message"] for row in found)
    assert not hidden(folder)
    written = sum(shard["nsamples"] for shard in json.loads((folder / "out.json").read_text())["shardlist"])
    keys = {file.name.split(".")[0] for file in source.iterdir()} | {row[0] for row in rows}
    assert written + len(rows) == len(keys)


def test_skip_twice_gives_the_same_bytes(small: Path, place: Path) -> None:
    """The same failing files give the same dataset, for any number of workers and after a resume."""
    code = "import os; [os.chmod(p, 0) or os.rename(p, p + '~') for p in %r]" % [
        str(small / name) for name in ("s0000.bin", "s0005.txt", "s0011.cls")
    ]
    back = "import os; [os.rename(p + '~', p) for p in %r if os.path.exists(p + '~')]" % [
        str(small / name) for name in ("s0000.bin", "s0005.txt", "s0011.cls")
    ]
    outcomes = []
    for workers in ("1", "3"):
        run = create(small, place / workers, *OPTIONS, "--workers", workers, "--on-error", "skip", code=code)
        assert (run.code, run.err) == (0, "")
        outcomes.append(contents(place / workers))
        subprocess.run([sys.executable, "-c", back], check=True)
    assert outcomes[0] == outcomes[1]
    rows = [("s0000", "s0000.bin", "vanished"), ("s0005", "s0005.txt", "vanished"), ("s0011", "s0011.cls", "vanished")]
    _check_skipped_list(place / "1", small, rows)
    os.unlink(place / "1" / "out.json")
    os.unlink(place / "1" / shards(place / "1")[1])
    assert create(small, place / "1", *OPTIONS, "--resume", "--on-error", "skip", code=code).code == 0
    assert contents(place / "1") == outcomes[0]


def test_skipped_files_restored(small: Path, expected: dict[str, str], place: Path) -> None:
    """Once the files are restored, resume packs the skipped samples and deletes the list."""
    away = f"import os; os.rename({str(small / FILE)!r}, {str(small / FILE)!r} + '~')"
    assert create(small, place / "out", *OPTIONS, "--on-error", "skip", code=away).code == 0
    os.rename(f"{small / FILE}~", small / FILE)
    assert create(small, place / "out", *OPTIONS, "--on-error", "skip", "--resume").code == 0
    assert contents(place / "out") == expected


def test_a_whole_shard_fails(small: Path, place: Path) -> None:
    """If every sample of a shard fails, the other shards are written and each sample is listed."""
    code = f"import os; [os.unlink(f'{small}/s{{n:04}}.bin') for n in range(4, 8)]"
    run = create(small, place / "out", *OPTIONS, "--on-error", "skip", code=code)
    assert (run.code, run.err) == (0, "")
    _check_skipped_list(place / "out", small, [(f"s{n:04}", f"s{n:04}.bin", "vanished") for n in range(4, 8)])
    assert len(_samples(place / "out")) == 8 * 3


def test_a_folder_vanishes(place: Path) -> None:
    """A folder that is moved away after planning fails its samples, each by name."""
    for name in ("a", "b"):
        write_samples(place / "src" / name, 3, 9000)
    code = f"import os; os.rename({str(place / 'src' / 'a')!r}, {str(place / 'away')!r})"
    run = create(place / "src", place / "out", *OPTIONS, "--on-error", "skip", code=code)
    assert (run.code, run.err) == (0, "")
    rows = [json.loads(line) for line in (place / "out" / "out.skipped").read_text().splitlines()]
    assert [(row["key"], row["code"]) for row in rows] == [(f"a/s000{n}", "vanished") for n in range(3)]
    assert len(_samples(place / "out")) == 3 * 3


_AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


@pytest.mark.slow
@pytest.mark.parametrize("on_error", ["stop", "skip"])
@pytest.mark.parametrize("when", ["before", "between"])
def test_unreadable(on_error: str, when: str, small: Path, place: Path) -> None:
    """A file without read permission fails with its name and reason."""
    mine = os.getuid() != 0
    before = [] if mine else _AS_NOBODY
    python = [*before, sys.executable, "-c", "import shardtool, pyarrow"]
    if not mine and (shutil.which("setpriv") is None or subprocess.run(python, check=False).returncode):
        pytest.skip("root reads every file, and an unprivileged user cannot run this Python (setpriv)")
    if not mine:
        (place / "out").mkdir()
        subprocess.run(["chown", "-R", "65534:65534", str(place)], check=True)
    code = "pass"
    if when == "before":
        (small / FILE).chmod(0)
    else:
        code = f"import os; os.chmod({str(small / FILE)!r}, 0)"
    run = create(small, place / "out", *OPTIONS, "--on-error", on_error, code=code, before=before)
    plain(run)
    if on_error == "stop":
        assert run.code == 6
        assert FILE in run.err
        assert "permission denied" in run.err
    else:
        assert run.code == 0, run.err
        _check_skipped_list(place / "out", small, [(KEY, FILE, "unreadable")])
    assert not hidden(place / "out")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "on_error"),
    [("appended", "stop"), ("truncated", "stop"), ("overwritten", "stop"), ("appended", "skip"), ("truncated", "skip")],
)
def test_file_changes_while_packed(fault: str, on_error: str, place: Path) -> None:
    """A large file that changes during the read fails by name, and none of it is in a shard."""
    source = write_samples(place / "src", 2, 9000)
    large = source / "s0001.bin"
    os.truncate(large, 700 * MEBIBYTE)
    run = start(source, place / "out", "--workers", "1", "--quiet", "--max-size", "2GB", "--on-error", on_error)
    part = place / "out" / ".out-000.tar.part"
    assert settles(lambda: part.exists() and part.stat().st_size > 4 * MEBIBYTE, step_s=0.0005)
    _change(fault, large)
    run.end()
    _failed_alone(run, on_error, large, place / "out")


def _change(fault: str, large: Path) -> None:
    if fault == "truncated":
        os.truncate(large, 100 * MEBIBYTE)
        return
    with large.open("r+b") as file:
        file.seek(0, os.SEEK_END if fault == "appended" else os.SEEK_SET)
        file.write(b"changed")


def _failed_alone(run: Run, on_error: str, large: Path, folder: Path) -> None:
    """Check that only the large file failed."""
    plain(run)
    assert not hidden(folder)
    assert run.all_gone()
    if on_error == "stop":
        assert run.code == 6
        assert str(large) in run.err
        assert os.listdir(folder) == []
    else:
        assert run.code == 0, run.err
        _check_skipped_list(folder, large.parent, [("s0001", "s0001.bin", "changed")])
        assert sorted(_samples(folder)) == ["s0000.bin", "s0000.cls", "s0000.txt"]
