"""Bugs, interrupts and missing resources, as a user sees them; each test uses its own process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import shardtool
from shardtool import CreateOptions, create
from shardtool.cli.commands import VERBS
from shardtool.errors import Bug, CorruptShard, Interrupted, ShardError, is_out_of_memory
from shardtool.execute.local_pool import LocalPool
from shardtool.table.base import reading_table
from tests import warm
from tests.helpers import typed, write_tree

if TYPE_CHECKING:
    from collections.abc import Sequence


_PACKAGE = Path(shardtool.__file__).parent
_VERBS = ("create", "reshard", "index", "inspect", "verify")
_WORDS = {
    "create": ["create", "in", "new/x-{00..}.tar"],
    "reshard": ["reshard", "out/x.json", "new/x-{00..}.tar"],
    "index": ["index", "out"],
    "inspect": ["inspect", "out"],
    "verify": ["verify", "out"],
}
# Runs the command line in this process, with `code` before the function that does the work of the verb.
_HOOKED = """
import contextlib, sys, time
from shardtool import cli
from shardtool.cli import main
cli.signals._CLEANUP_LIMIT_S = {cleanup_limit_s}
import shardtool.{module} as hooked
first = hooked.{name}
def instead(*given, **named):
    print("there", file=sys.stderr, flush=True)
{code}
    return first(*given, **named)
hooked.{name} = instead
sys.argv = ["shardtool", *{words!r}]
main()
"""
_WHERE = {"create": ("verbs.create", "pack_dataset"), "inspect": ("verbs.inspect.inspect", "inspect"),
          "verify": ("verbs.verify.verify", "verify"), "index": ("verbs.index", "index"),
          "reshard": ("verbs.create", "pack_dataset")}  # fmt: skip
_PATIENCE_S = 30


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a small source `in` and its dataset `out`."""
    folder = tmp_path_factory.mktemp("edge")
    write_tree(folder / "in", {f"{number}.txt": b"text" for number in range(6)})
    create(folder / "in", f"{folder}/out/x-{{00..}}.tar", CreateOptions(workers=0, max_count=3))
    return folder


def _start(place: Path, verb: str, code: str, *more: str, cleanup_limit_s: float = 2) -> warm.Started:
    """Start a verb that runs `code`, lines with the indentation of a function's, before its work."""
    module, name = _WHERE[verb]
    words = [*_WORDS[verb], *more]
    script = _HOOKED.format(module=module, name=name, code=code, words=words, cleanup_limit_s=cleanup_limit_s)
    environment = {"PYTHONPATH": str(_PACKAGE.parent)}
    if warm.POSSIBLE:
        return warm.Warm([], code=script, cwd=place, env=environment, session=False)
    return subprocess.Popen(
        [sys.executable, "-c", script], cwd=place, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
    )  # fmt: skip


def _signalled(run: warm.Started, signals: Sequence[int]) -> tuple[int, str, str, float]:
    """Send signals while the verb runs its code; return its exit code, stdout, stderr and duration."""
    assert run.stderr is not None
    assert run.stderr.readline() == b"there\n"
    time.sleep(0.1)
    begun = time.monotonic()
    for signum in signals:
        with suppress(ProcessLookupError):
            os.kill(run.pid, signum)
        time.sleep(0.1)
    out, err = run.communicate(timeout=_PATIENCE_S)
    return run.wait(0), out.decode(), err.decode(), time.monotonic() - begun


_SWALLOWED = "    with contextlib.suppress(BaseException):\n        time.sleep(60)\n    time.sleep(60)"
_IN_A_DESTRUCTOR = """    class One:
        def __del__(self):
            time.sleep(60)
    one = One()
    del one
    time.sleep(60)"""
_SLOW_END = "    try:\n        time.sleep(60)\n    finally:\n        time.sleep(60)"


@pytest.mark.slow
@pytest.mark.parametrize("verb", _VERBS)
@pytest.mark.parametrize("code", [_SWALLOWED, _IN_A_DESTRUCTOR], ids=["swallowed", "in a destructor"])
def test_an_interrupt_is_not_lost(code: str, verb: str, place: Path) -> None:
    """One Ctrl-C stops any verb, even if a library drops the exception."""
    ended, out, err, elapsed_s = _signalled(_start(place, verb, code), [signal.SIGINT])
    assert (ended, out) == (130, "")
    assert err.startswith("shardtool: interrupted by SIGINT. ")
    assert len(err.splitlines()) == 1
    assert elapsed_s < _PATIENCE_S / 2


@pytest.mark.slow
@pytest.mark.parametrize("signals", [(2, 2), (2, 15), (15, 1)])
def test_a_second_signal_stops_a_slow_cleanup(signals: tuple[int, int], place: Path) -> None:
    """If cleanup takes too long, a second signal ends the process soon."""
    ended, out, err, elapsed_s = _signalled(_start(place, "inspect", _SLOW_END, cleanup_limit_s=0.5), signals)
    assert (ended, out) == (128 + signals[0], "")
    assert f"interrupted by {signal.Signals(signals[0]).name}" in err
    assert elapsed_s < _PATIENCE_S / 2


def test_a_second_signal_does_not_interrupt_cleanup(place: Path) -> None:
    """Files are deleted after the first signal, despite further signals."""
    code = _SLOW_END.replace("    finally:\n        time.sleep(60)", "    finally:\n        time.sleep(0.6)\n"
                             "        print('removed', file=sys.stderr, flush=True)")  # fmt: skip
    ended, _, err, _ = _signalled(_start(place, "create", code), [2, 2, 15, 1, 2])
    assert ended == 130
    assert err.splitlines()[0] == "removed"


@pytest.mark.slow
@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("verb", _VERBS)
def test_the_hint_after_an_interrupt_fits_the_verb(verb: str, as_json: bool, place: Path) -> None:  # noqa: FBT001 - a parameter
    """The hint of an interrupted verb mentions only its own options; `--json` prints a document."""
    run = _start(place, verb, "    time.sleep(60)", *(["--json"] if as_json else []))
    ended, out, err, _ = _signalled(run, [signal.SIGTERM])
    error = json.loads(out)["error"] if as_json else {"exit_code": 143}
    remedy = str(error.get("remedy", err))
    assert ended == error["exit_code"] == 143
    assert ("--resume" in remedy) == (verb in ("create", "reshard"))
    assert set(re.findall(r"--[a-z-]+", remedy)) <= _options(verb)


def _odd(*_given: object, **_named: object) -> None:
    raise KeyError("odd")


@pytest.mark.parametrize("verb", _VERBS)
def test_a_bug_is_one_line(verb: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected exception is one line and exit code 1, or a document; `-v` adds the traceback."""
    module, name = _WHERE[verb]
    monkeypatch.setattr(f"shardtool.{module}.{name}", _odd)
    for more in ((), ("--json",), ("-v",), ("-v", "--json")):
        ran = typed(*_WORDS[verb], *more, cwd=place, traceback="-v" in more)
        assert ran.code == 1
        if "--json" in more:
            error = json.loads(ran.out)["error"]
            assert (error["code"], error["exit_code"], error["where"]) == ("bug", 1, f"shardtool {verb}")
            assert "odd" in error["found"]
            assert "report" in error["remedy"]
        else:
            assert ran.out == ""
            assert ran.err.splitlines()[0].startswith(f"shardtool: shardtool {verb}: KeyError: 'odd'. ")
            assert len(ran.err.splitlines()) == 1 or "-v" in more


def test_a_bug_sets_the_exit_code_of_the_process(place: Path) -> None:
    """The process has the exit code of a bug."""
    run = _start(place, "create", "    raise KeyError('odd')")
    out, err = run.communicate(timeout=_PATIENCE_S)
    assert (run.wait(0), out, len(err.splitlines())) == (1, b"", 2)


def test_data_error_handlers_do_not_catch_bugs() -> None:
    """Handlers of damaged data or invalid requests catch neither bugs nor interrupts."""
    assert not issubclass(Bug, ShardError)
    assert issubclass(CorruptShard, ShardError)
    assert not issubclass(Interrupted, Exception)


def test_a_bug_in_a_worker() -> None:
    """An exception in a worker is reported as a bug, with the task in the message and the traceback as detail."""
    with LocalPool(1, "fork") as pool, pytest.raises(Bug, match=r"worker \(odd\): KeyError: 'odd'") as caught:
        list(pool.map(_odd, [1]))
    assert "Traceback" in caught.value.detail
    assert "Traceback" not in caught.value.found


_COMMON = [
    _WORDS["create"], [*_WORDS["create"], "--overwrite"], ["create", "in", "new/y-{00..}.tfrecord"], _WORDS["inspect"],
    ["inspect", "out", "--head", "2"], ["inspect", "out", "--sample", "3"], ["inspect", "out", "--html", "page.html"],
    _WORDS["verify"], ["verify", "out", "--source", "in", "--decode"], ["index", "out", "--checksum"],
    ["index", "out", "--export", "wids"], ["reshard", "out/x.json", "new/z-{00..}.tar", "--shuffle"],
    [*_WORDS["create"], "--resume"],
]  # fmt: skip
# Runs command lines one after the other in one process, which keeps imported modules.
_ONE_AFTER_THE_OTHER = """
import os, sys, types
from shardtool import cli
def go_on(code):
    withheld = [type(one).__name__ for one in sys.meta_path].count("_PandasBlocker") > 0
    imported = [name for name in sys.modules if name.startswith("pandas.")]
    print(code, imported, withheld, "pyarrow" in sys.modules, file=sys.stderr)
    if words := next(lines, None):
        sys.argv[1:] = words
        cli.main()
    os._exit(0)
lines = iter({lines!r})
cli.os = types.SimpleNamespace(**{{**vars(os), "_exit": go_on}})
go_on(0)
"""


@pytest.mark.slow
def test_nothing_imports_pandas(place: Path) -> None:
    """A command line never imports pandas by itself: that is slow and would lose an interrupt."""
    ran = subprocess.run(
        [sys.executable, "-c", _ONE_AFTER_THE_OTHER.format(lines=_COMMON)], cwd=place, text=True,
        capture_output=True, check=False, env={"PYTHONPATH": str(_PACKAGE.parent)},
    )  # fmt: skip
    lines = [line for line in ran.stderr.splitlines() if " [" in line]
    assert lines == ["0 [] False False", *["0 [] True True"] * len(_COMMON)], ran.stderr


@pytest.mark.slow
def test_user_modules_can_import_pandas(place: Path) -> None:
    """User modules that import pandas work on the command line."""
    (place / "theirs.py").write_text("import pandas as pd\ndef same(sample):\n    pd.Series([1])\n    return sample\n")
    words = ["create", "in", "new/w-{00..}.tar", "--where", "size > 1 and key != '3'", "--map", "theirs:same"]
    for start in ("fork", "spawn"):
        ran = subprocess.run(
            [sys.executable, "-m", "shardtool", *words, "--start-method", start, "--overwrite", "--json"],
            cwd=place, text=True, capture_output=True, check=False, env={"PYTHONPATH": str(_PACKAGE.parent)},
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        assert json.loads(ran.stdout)["samples"] == 5


def _options(verb: str) -> set[str]:
    return {name for param in VERBS[verb]().params for name in param.opts} | {"--help"}


_GONE = """
import os, sys, shardtool
folder, output = sys.argv[1:]
os.chdir(folder)
os.rmdir(folder)
for run in (
    lambda: shardtool.create(f"{output}/s", "x-{0..}.tar"), lambda: shardtool.copy(f"{output}/o/o.json", "here"),
    lambda: shardtool.reshard(f"{output}/o/o.json", "x-{0..}.tar"),
):
    try:
        run()
    except shardtool.InvalidRequest as error:
        print(error)
print(shardtool.open(f"{output}/o/o.json")[0]["txt"])
"""


@pytest.mark.slow
def test_a_deleted_current_folder_is_explained(tmp_path: Path) -> None:
    """Relative paths in a deleted current folder give one message, also in the library; absolute paths work."""
    write_tree(tmp_path, {"s/a.txt": b"a"})
    create(tmp_path / "s", f"{tmp_path}/o/o-{{0..}}.tar", CreateOptions(workers=0))
    (tmp_path / "gone").mkdir()
    words = [sys.executable, "-c", _GONE, str(tmp_path / "gone"), str(tmp_path)]
    ran = subprocess.run(words, capture_output=True, text=True, check=False, cwd=_PACKAGE.parent)
    assert not ran.returncode, ran.stderr
    *messages, read = ran.stdout.splitlines()
    assert (len(messages), read) == (3, "b'a'")
    assert {line.partition(".")[0] for line in messages} == {"the current folder: was deleted"}
    (tmp_path / "gone").mkdir()
    command = f"cd '{tmp_path}/gone'; rmdir '{tmp_path}/gone'; '{sys.executable}' -m shardtool create '{tmp_path}/s'"
    env = {**os.environ, "PYTHONPATH": str(_PACKAGE.parent)}
    for output, code in (("x-{0..}.tar", 2), (f"{tmp_path}/p/p-{{0..}}.tar", 0)):
        shell = subprocess.run(
            ["sh", "-c", f"{command} '{output}' --quiet"], capture_output=True, text=True, env=env, check=False
        )
        assert (shell.returncode, "the current folder" in shell.stderr) == (code, code == 2), shell.stderr


@pytest.mark.parametrize("limit_kb", [150_000, 200_000, 250_000, 290_000])
def test_little_memory_is_one_message(limit_kb: int, tmp_path: Path) -> None:
    """If libraries cannot be loaded for lack of memory, the exit code is 7 with one message; help still works."""
    write_tree(tmp_path, {"s/a.txt": b"a", "t.csv": b"key,lab\na,x\n"})
    env, tool = (
        {**os.environ, "PYTHONPATH": str(_PACKAGE.parent)},
        f"ulimit -v {limit_kb}; exec '{sys.executable}' -m shardtool",
    )
    words = "create s 'o/x-{000..}.tar' --join t.csv --on key --workers 2"
    ran = subprocess.run(
        ["bash", "-c", f"{tool} {words}"], capture_output=True, text=True, env=env, cwd=tmp_path, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (7, "", 1), ran.stderr
    assert ran.stderr.startswith("shardtool: ulimit -v: ")
    shown = subprocess.run(
        ["bash", "-c", f"{tool} --version"], capture_output=True, text=True, env=env, cwd=tmp_path, check=False
    )
    assert shown.returncode == 0


def test_a_thread_that_cannot_start_is_out_of_memory() -> None:
    """The exception of pyarrow has no class of its own; it is reported as lack of memory, not as an invalid table."""
    error = pa.ArrowException("Unknown error: Failed to launch worker thread: Resource temporarily unavailable")
    assert is_out_of_memory(error)
    with pytest.raises(pa.ArrowException), reading_table("t.csv"):
        raise error
