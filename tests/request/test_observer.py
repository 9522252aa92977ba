"""The default channel of notes and progress."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import tqdm
import tqdm.auto

import shardtool
from tests.helpers import write_tree

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_notes_go_to_the_logger_and_nothing_is_printed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """In a plain program, notes and details are records of the logger `shardtool`."""
    source = write_tree(tmp_path / "in", {"a/0.txt": b"x", "a/1.txt": b"y"})
    with caplog.at_level(logging.DEBUG, "shardtool"):
        result = shardtool.create(source, tmp_path / "out-{00..}.tar", max_removed="5%", workers=0)
    notes = [record.message for record in caplog.records if record.levelno == logging.INFO]
    assert notes == [*result.notes]
    assert notes
    assert [record for record in caplog.records if record.message.startswith("out-00.tar: ")]
    assert capfd.readouterr() == ("", "")


def test_notebooks_show_notes_and_a_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In a Jupyter notebook, notes and a bar appear by default; an observer of the user replaces both."""
    shell = type("Shell", (type("ZMQInteractiveShell", (), {}),), {})()  # as in Colab
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr("tqdm.auto.tqdm", tqdm.tqdm)  # the bar for notebooks needs ipywidgets
    source = write_tree(tmp_path / "in", {"a/0.txt": b"x", "a/1.txt": b"y"})
    result = shardtool.create(source, tmp_path / "out-{0..}.tar", max_removed="5%", workers=0)
    shown = capfd.readouterr()
    assert shown.out.splitlines() == [f"note: {note}" for note in result.notes]
    assert "2 samples: 100%" in shown.err
    shardtool.diff(tmp_path / "out.json", tmp_path / "out.json")
    assert "0.00B" not in capfd.readouterr().err
    shardtool.create(source, tmp_path / "more-{0..}.tar", workers=0, observer=shardtool.Observer())
    assert capfd.readouterr() == ("", "")
