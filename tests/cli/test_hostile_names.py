"""Hostile names cannot control a terminal, forge a line of output, or cause a traceback."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool import cli
from shardtool.cli.signals import SignalHandler
from shardtool.dataset.find import natural_key
from tests.helpers import REPO, write_tree

if TYPE_CHECKING:
    from pathlib import Path

EVIL = "s\x1b]0;PWNED\x07\nFORGED\r\x7f\u009b2J\u202e"
STEERS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]|(?m:^FORGED)")
COUNTED = ["1²", "10²-٣", "①"]


class Shown:
    """Runs the command line in this process and captures its output."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str | Path) -> tuple[int, str]:
        """Return the exit code and the output."""
        self._capsys.readouterr()
        code = cli._run([str(word) for word in words], SignalHandler(print))  # noqa: SLF001 - the entry, without ending this process
        shown = self._capsys.readouterr()
        return code, shown.out + shown.err


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Shown:
    """Return an object that runs the command line."""
    return Shown(capsys)


@pytest.fixture
def hostile(tmp_path: Path, shown: Shown) -> Path:
    """Return a folder that contains only shards with control characters in their names."""
    source = write_tree(tmp_path / "p", {"a.txt": b"x"})
    assert shown("create", source, tmp_path / "ds" / "out-{0..}.tar", "--quiet")[0] == 0
    (tmp_path / "h").mkdir()
    for number in range(2):
        shutil.copy(tmp_path / "ds" / "out-0.tar", tmp_path / "h" / f"{EVIL}-{number}.tar")
    return tmp_path / "h"


@pytest.mark.parametrize("words", [
    ("verify", "{}", "-v"),
    ("verify", "{}", "-v", "--target", "dali"),
    ("verify", "{}", "--report", "github"),
    ("verify", "{}", "--report", "junit"),
    ("verify", "{}", "--json"),
    ("inspect", "{}", "-v"),
    ("inspect", "{}", "--json"),
    ("inspect", "{}", "--sample", "a"),
    ("inspect", "{}", "--sample", f"no{EVIL}"),
    ("inspect", "{}", "--html", f"{{}}/{EVIL}.html"),
    ("index", "{}", "-v"),
    ("index", "{}", "--json"),
    ("reshard", "{}", "{}/new/x-{{0..}}.tar", "-v", "--on-duplicate", "rename"),
    ("reshard", "{}", f"{{}}/new/{EVIL}{{{{0..}}}}.tar", "-v", "--on-duplicate", "rename"),
    ("reshard", "{}", f"{{}}/new/{EVIL}{{{{0..}}}}.tar", "--dry-run", "--on-duplicate", "rename"),
    ("create", "{}", "{}/new/x-{{0..}}.tar", "-v"),
    ("create", f"{{}}/{EVIL}.csv", "{}/new/x-{{0..}}.tar", "-v"),
    ("verify", "{}", f"--{EVIL}"),
    ("verify", f"{{}}/{EVIL}"),
    ("index", f"{{}}/{EVIL}-0.tar", "--export", EVIL),
    (EVIL,),
])  # fmt: skip
def test_control_characters_in_file_names_are_escaped(words: tuple[str, ...], hostile: Path, shown: Shown) -> None:
    """Control characters are escaped in results, with `-v`, and in errors."""
    _, text = shown(*(word.format(hostile) if "{" in word else word for word in words))
    assert text
    assert not STEERS.search(text), text
    if "--json" in words:
        assert json.loads(text.partition("\nnote: ")[0])


def test_control_characters_in_keys_are_escaped(tmp_path: Path, shown: Shown) -> None:
    """Control characters of keys are escaped in plans, notes and lists of skipped samples."""
    source = write_tree(tmp_path / "p", {f"{EVIL}/{EVIL}{number}.txt": b"x" for number in range(3)})
    output = tmp_path / "ds" / "out-{0..}.tar"
    for words in (("--dry-run",), ("-v",), ("--resume", "-v"), ()):
        _, text = shown("create", source, output, *words)
        assert text
        assert not STEERS.search(text), text
    for verb, *more in (["inspect", "--keys"], ["inspect", "--head", "9"], ["verify", "-v", "--source", str(source)]):
        _, text = shown(verb, tmp_path / "ds", *more)
        assert not STEERS.search(text), text


def test_only_one_module_prints() -> None:
    """Only `cli/output.py` prints, so all output is escaped."""
    prints = re.compile(r"click\.(echo|secho)\(|\bprint\(|std(out|err)\.write\(|\.show\(\)")
    for path in (REPO / "shardtool" / "cli").glob("*.py"):
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if prints.search(line)]
        assert path.name == "output.py" or not lines, (path.name, lines)


@pytest.mark.parametrize("name", COUNTED)
def test_non_ascii_digits_in_names_are_accepted(name: str, tmp_path: Path, shown: Shown) -> None:
    """Every verb accepts file names with digits that `int` does not parse."""
    source = write_tree(tmp_path / "p", {"a.txt": b"x"})
    folder = tmp_path / "ds"
    assert shown("create", source, folder / "out-{0..}.tar", "--quiet")[0] == 0
    write_tree(folder, {name: b""})
    for words in (("verify",), ("verify", "--repair"), ("inspect",), ("index",), ("index", "--json")):
        code, text = shown(words[0], folder, *words[1:])
        assert code == 0, text
    assert shown("verify", folder / "out.json")[0] == 0
    assert shown("reshard", folder, tmp_path / "new" / "x-{0..}.tar")[0] == 0
    shutil.copy(folder / "out-0.tar", folder / f"out-{name}.tar")
    assert shown("verify", folder / "out-*.tar")[0] in (0, 3)
    assert shown("create", source, tmp_path / "new" / f"y{name}-{{0..}}.tar")[0] == 0


@given(st.lists(st.text(alphabet=st.sampled_from("a-_09²³٣Ⅷ①"), max_size=6), max_size=6))
def test_names_sort_by_their_numbers(names: list[str]) -> None:
    """All names can be sorted; ASCII digits sort as numbers."""
    assert sorted([*names, "s-10", "s-9"], key=natural_key).index("s-9") < sorted(
        [*names, "s-10", "s-9"], key=natural_key
    ).index("s-10")
