"""Laws of what a shell completes, where completion was installed as `--help` says."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from shardtool.cli import cli
from tests.helpers import write_tree

_LIMIT_S = 60.0  # for a shell on a busy machine
_START = {
    "bash": ("bash --norc --noprofile -i", 'eval "$(_SHARDTOOL_COMPLETE=bash_source shardtool)"'),
    "zsh": (
        "zsh -f -i",
        'autoload -Uz compinit; compinit -u -D; eval "$(_SHARDTOOL_COMPLETE=zsh_source shardtool)"',
    ),
}
_PLACES = ("FILE", "TABLE", "DIR", "FOLDER", "SOURCE", "DATASET", "OUTPUT")


def _typed(shell: str, lines: list[str], folder: Path) -> str:
    """Type lines at a terminal, until the last has printed `<end>`; return what the terminal shows."""
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "TERM": "dumb", "PS1": "$ "}
    shown = b""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe(shell, _START[shell][0].split(), env)  # noqa: S606 - a shell of the machine
    try:
        os.write(terminal, "".join(f"{line}\r" for line in lines).encode())
        end = time.monotonic() + _LIMIT_S
        while b"\n<end>" not in shown and time.monotonic() < end:
            if select.select([terminal], [], [], 1)[0]:
                shown += os.read(terminal, 2**16)
    finally:
        os.close(terminal)
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    return shown.decode(errors="replace")


@pytest.mark.slow
@pytest.mark.parametrize("shell", _START)
def test_shells_complete_names_of_files(shell: str, tmp_path: Path) -> None:
    """At a terminal, TAB completes the files that an argument or an option names."""
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    write_tree(tmp_path, {"pictures/1.jpg": b"x", "labels.csv": b"x"})
    lines = ["shardtool create pict", "shardtool create --join lab", "shardtool reshard pict", "shardtool copy x pict"]
    typed = [f"{line}\t\x01echo " for line in lines]  # then, at the start of the line, what prints it
    shown = _typed(shell, [_START[shell][1], *typed, "echo '<end>'"], tmp_path)
    printed = [line.strip().rstrip("/") for line in shown.replace("\r", "\n").split("\n")]
    for line in lines:
        whole = line.replace("pict", "pictures").replace(" lab", " labels.csv")
        assert whole in printed, shown


def test_fish_completes_names_of_files(tmp_path: Path) -> None:
    """In fish, too, files complete where an argument or an option names one."""
    if shutil.which("fish") is None:
        pytest.skip("no fish")
    write_tree(tmp_path, {"pictures/1.jpg": b"x", "labels.csv": b"x"})
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    for line, found in (
        ("create pict", "pictures/"),
        ("create --join lab", "labels.csv"),
        ("reshard pict", "pictures/"),
    ):
        code = f'_SHARDTOOL_COMPLETE=fish_source shardtool | source; complete -C "shardtool {line}"'
        run = subprocess.run(["fish", "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
        assert run.stdout.split("\t")[0].split() == [found]


def test_all_that_names_a_file_completes_files() -> None:
    """Each argument and option whose help calls it a file, a table, a folder or a dataset completes files."""
    context = click.Context(cli)
    for verb in cli.list_commands(context):
        command = cli.get_command(context, verb)
        assert command is not None
        below = click.Context(command, parent=context, info_name=verb)
        for param in command.get_params(below):
            shown = param.metavar or ""
            if isinstance(param.type, click.Path) or any(word in _PLACES for word in shown.replace("...", " ").split()):
                assert [one.type for one in param.shell_complete(below, "im")] == ["file"], (verb, param.name)
