"""Colours of errors and notes: only on a terminal, and only if the user has not turned them off."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.helpers import ENVIRONMENT, PATIENCE_S, tool, write_tree

if TYPE_CHECKING:
    from pathlib import Path

_RED, _YELLOW, _BOLD, _RESET = "\x1b[31m", "\x1b[33m", "\x1b[1m", "\x1b[0m"


def _stderr_on_terminal(*words: str | Path, cwd: Path, **env: str) -> str:
    """Run `shardtool` with a pseudo-terminal as stderr; return what it wrote there."""
    terminal, stderr = pty.openpty()
    try:
        environment = {**ENVIRONMENT, "TERM": "xterm", **env}
        command = [sys.executable, "-m", "shardtool", *map(str, words)]
        subprocess.run(
            command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr,
            timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        os.close(stderr)
        parts = []
        try:
            while part := os.read(terminal, 4096):
                parts.append(part)
        except OSError:  # Linux reports the end of a pseudo-terminal as EIO
            pass
        return b"".join(parts).decode().replace("\r\n", "\n")
    finally:
        os.close(terminal)


def test_an_error_on_a_terminal_has_colours(tmp_path: Path) -> None:
    """`shardtool:` is red and the location bold; the text is the same as without a terminal."""
    words = ("verify", "missing.json")
    plain = tool(*words, cwd=tmp_path).err
    colored = _stderr_on_terminal(*words, cwd=tmp_path)
    assert colored.startswith(f"{_RED}shardtool:{_RESET}{_BOLD} missing.json{_RESET}: ")
    assert "\x1b" not in plain
    for code in (_RED, _BOLD, _RESET):
        colored = colored.replace(code, "")
    assert colored == plain


def test_a_note_on_a_terminal_has_colours(tmp_path: Path) -> None:
    """`note:` is yellow; the rest of the note has no colour."""
    source = write_tree(tmp_path / "in", {"a.jpg": b"1", "README": b"text"})
    shown = _stderr_on_terminal("create", source, "out-{0..}.tar", "--workers", "0", "--quiet", cwd=tmp_path)
    assert shown == ""
    shown = _stderr_on_terminal("create", source, "out-{0..}.tar", "--workers", "0", "--overwrite", cwd=tmp_path)
    assert f"{_YELLOW}note:{_RESET} 1 file" in shown
    assert _RED not in shown


@pytest.mark.parametrize(
    ("words", "env"), [((), {"NO_COLOR": "1"}), ((), {"TERM": "dumb"}), (("--no-color",), {}), ((), {"TERM": ""})]
)
def test_colours_can_be_turned_off(tmp_path: Path, words: tuple[str, ...], env: dict[str, str]) -> None:
    """NO_COLOR, `--no-color`, and an empty or `dumb` TERM turn colours off."""
    shown = _stderr_on_terminal("verify", "missing.json", *words, cwd=tmp_path, **env)
    assert shown.startswith("shardtool: missing.json: ")
    assert "\x1b" not in shown


def test_no_color_is_accepted_before_the_verb(tmp_path: Path) -> None:
    """`shardtool --no-color VERB` works too, and an empty NO_COLOR does not turn colours off."""
    assert "\x1b" not in _stderr_on_terminal("--no-color", "verify", "missing.json", cwd=tmp_path)
    assert "\x1b" in _stderr_on_terminal("verify", "missing.json", cwd=tmp_path, NO_COLOR="")


def test_an_escape_sequence_in_a_name_stays_escaped(tmp_path: Path) -> None:
    """A name with control characters is printed in escaped form, also if it is bold."""
    shown = _stderr_on_terminal("verify", "x\x1b[32m.json", cwd=tmp_path)
    assert shown.startswith(f"{_RED}shardtool:{_RESET}{_BOLD} x\\x1b[32m.json{_RESET}: ")


def test_json_on_stderr_has_no_colours(tmp_path: Path) -> None:
    """`--log json` writes plain lines, also to a terminal."""
    shown = _stderr_on_terminal("verify", "missing.json", "--log", "json", cwd=tmp_path)
    assert "\x1b" not in shown
    assert shown.startswith('{"time": ')
