"""The core works without optional features and their packages."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.core_jobs import OPTIONAL_MODULES
from tests.helpers import REPO
from tests.test_layout import module_names

if TYPE_CHECKING:
    from pathlib import Path


def _run(*arguments: object) -> str:
    command = [sys.executable, "-m", "tests.core_jobs", *map(str, arguments)]
    process = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-3000:]
    return process.stdout


@pytest.mark.slow
def test_the_core_works_alone(tmp_path: Path) -> None:
    """The core packs, reads, verifies, indexes, copies and changes datasets without optional features."""
    assert "99 samples" in _run(REPO / "sample_data" / "photos", tmp_path)


@pytest.mark.slow
def test_tests_of_the_core_pass_alone() -> None:
    """Tests of formats, plans, entries and packing pass without optional features."""
    rooms = [f"tests/{room}" for room in ("entries", "format", "plan", "write")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.core_plugin", "-p", "no:cacheprovider", *rooms]
    process = subprocess.run([*command, "-m", "not slow"], cwd=REPO, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout[-3000:]


def test_optional_modules_exist() -> None:
    """Each module that the core must not import exists in the package."""
    assert module_names() >= OPTIONAL_MODULES


def test_missing_packages_are_named() -> None:
    """A feature whose package is missing names the extra to install."""
    messages = dict(line.split(" ", 1) for line in _run("messages").splitlines())
    assert {extra: f"shardtool[{extra}]" in message for extra, message in messages.items()} == dict.fromkeys(
        ("remote", "ray", "urls", "audio", "torch", "tensorflow"), True
    )
