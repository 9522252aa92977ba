"""Failures of the machine are never reported as damage, and no sample is skipped because of them."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

import shardtool
from shardtool.errors import CorruptShard, StoreFailed
from shardtool.storage import files
from tests.helpers import ENVIRONMENT, PATIENCE_S, typed, write_tree

_SAMPLES = 40
_STREAM = """
data = shardtool.open("ds/out.json", on_error="skip")
stream = data.stream(shuffle=True)
limit(int(sys.argv[1]))
try:
    print(sum(1 for _ in stream) if len(data) == 40 else "other samples", stream.skipped.samples)
except shardtool.StoreFailed as error:
    print("7", error.code)
"""
_VERB = """
import shardtool.cli
from shardtool.verbs.copy.copy import copy
from shardtool.verbs.index import index
from shardtool.verbs.inspect import inspect
from shardtool.verbs.verify import verify
from shardtool.cli.signals import SignalHandler
limit(int(sys.argv[1]))
print(shardtool.cli._run(sys.argv[2:], SignalHandler(print)), "code")
"""
_BEGIN = """
import os, resource, sys, shardtool
from shardtool import StoreFailed
def limit(free):
    most = max(map(int, os.listdir("/proc/self/fd"))) + free
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
"""


@pytest.fixture(autouse=True)
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create a source and a dataset of many shards in the current folder."""
    monkeypatch.chdir(tmp_path)
    write_tree(Path("src"), {f"{number:03}.txt": b"%d" % number for number in range(_SAMPLES)})
    assert typed("create", "src", "ds/out-{000..}.tar", "--max-count", "4").code == 0


def _run(code: str, *words: str) -> list[str]:
    command = [sys.executable, "-c", _BEGIN + code, *words]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.stdout, done.stderr
    return done.stdout.splitlines()[-1].split()


@pytest.mark.slow
@pytest.mark.parametrize("free", [0, 1, 2, 3, 5, 9, 30])
def test_few_open_files_lose_no_sample(free: int) -> None:
    """With a low limit of open files, a stream that skips damage yields all samples or raises the machine's error."""
    assert _run(_STREAM, str(free)) in (["40", "0"], ["7", "store-failed"])


@pytest.mark.slow
@pytest.mark.parametrize("free", [0, 1, 2, 3, 5, 9])
@pytest.mark.parametrize(
    "words",
    [
        "copy ds to", "verify ds --workers 0", "index ds", "reshard ds new-{0..}.tar --workers 0", "inspect ds",
        "create src new-{0..}.tar --workers 0 --on-error skip",
    ],
)  # fmt: skip
def test_few_open_files_are_not_damage(words: str, free: int) -> None:
    """With a low limit of open files, a verb succeeds or exits with 7, and skips no sample."""
    assert _run(_VERB, str(free), *words.split())[0] in "07"
    assert not Path("new.skipped").exists()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO, errno.EACCES, errno.ENODEV])
@pytest.mark.parametrize("name", ["out-003.tar", "out-003.index", "out.json"])
def test_failing_open_is_not_damage(code: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the machine cannot open a file, readers exit with 7 or raise that error, whatever they skip."""
    opened = files._open  # noqa: SLF001

    def fails(path: str | bytes, flags: int) -> int:
        if os.path.basename(os.fsdecode(path)) == name:
            raise OSError(code, os.strerror(code), path)
        return opened(path, flags)

    monkeypatch.setattr(files, "_open", fails)
    listed = name == "out-003.tar" and code != errno.EMFILE  # verify goes on after a shard that it cannot read
    for words in ("copy ds to", "verify ds", "reshard ds r-{0..}.tar", "index ds --overwrite"):
        ran = typed(*words.split(), "--workers", "0")
        if words == "verify ds" and listed:
            assert (ran.code, "shard-unreadable" in ran.out, "damaged" in ran.out) == (3, True, False), ran
        else:
            assert ran.code == 7, (words, ran)
    with pytest.raises(StoreFailed):
        [*shardtool.open("ds", on_error="skip").stream()]


def test_damage_is_still_skipped() -> None:
    """Damage of a file is still a skipped shard, and an error for `copy`."""
    Path("ds/out-003.tar").write_bytes(b"")
    stream = shardtool.open("ds/out.json", on_error="skip").stream()
    list(stream)
    assert stream.skipped.samples == 4
    with pytest.raises(CorruptShard):
        shardtool.copy("ds", "to")


def test_too_many_open_files_skip_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a folder cannot be opened because of too many open files, the run fails, even if it may skip samples."""
    write_tree(Path("src"), {"sub/x.txt": b"x"})
    scandir = os.scandir

    def refuse_sub(path: bytes | str = ".") -> object:
        if os.fsencode(path).endswith(b"/sub/"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse_sub)
    with pytest.raises(shardtool.StoreFailed, match="too many open files"):
        shardtool.create("src", "new-{0..}.tar", on_error="skip", workers=0)
