"""The reference and the man page match the program."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from shardtool.cli.help import VerbCommand
from tests.helpers import REPO
from tests.reference import pages, verbs


@pytest.mark.parametrize("path", pages())
def test_a_page_is_up_to_date(path: str) -> None:
    """`make reference` changes nothing."""
    assert (REPO / path).read_text(encoding="utf-8") == pages()[path], "run `make reference`"


@pytest.mark.parametrize("path", pages())
def test_a_page_has_every_option(path: str) -> None:
    """Each page lists every verb with all options."""
    text = pages()[path].replace("\\-", "-")
    for name, verb in verbs().items():
        assert f"shardtool {name} " in text
        missing = [word for word in (verb.visible_names() if isinstance(verb, VerbCommand) else ()) if word not in text]
        assert missing == []


@pytest.mark.skipif(shutil.which("man") is None, reason="no man")
def test_the_man_page_renders() -> None:
    """`man` shows the page without warnings."""
    ran = subprocess.run(
        ["man", "--warnings", "-E", "UTF-8", "-l", "docs/shardtool.1"], cwd=REPO, capture_output=True, text=True,
        env={"MANWIDTH": "100", "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}, check=True,
    )  # fmt: skip
    assert ran.stderr == ""
    shown = " ".join(ran.stdout.split())
    assert "shardtool create ./imgs 'out-{000000..}.tar' --label-from-folder --shuffle --seed 1" in shown
    assert "Shuffle all samples globally." in shown
