"""Users who share a folder cannot block or damage each other's datasets.

Each test first runs everything as root, because another user may be unable to import modules.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import shardtool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
_NOBODY = 65534


@contextmanager
def _effective_user(user: int) -> Iterator[None]:
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def enter_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """Return a function that creates a folder with two sources, and changes to this folder."""

    def enter(folder: str, mode: int) -> None:
        for name in ("source/1.bin", "source/2.bin", "more/3.bin"):
            path = tmp_path / folder / name
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_bytes(bytes(5000))
        monkeypatch.chdir(tmp_path / folder)
        Path().chmod(mode)

    return enter


def test_parts(enter_folder: Callable[[str, int], None]) -> None:
    """The lock file that the first user left does not stop the second user from finishing the dataset."""
    for user in (0, _NOBODY):
        enter_folder(f"of-{user}", 0o777)
        shardtool.create("source", "out-{000..}.tar", max_count=1, part="1/2", workers=0)
        with _effective_user(user):
            shardtool.create("source", "out-{000..}.tar", max_count=1, part="2/2", workers=0)
        assert len(shardtool.open("out.json")) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda: shardtool.create("more", "out-{000..}.tar", append=True, workers=0),
        lambda: shardtool.remove("out.json", keys=["1"], workers=0),
    ],
    ids=["append", "remove"],
)
def test_sticky_folder(change: Callable[[], object], enter_folder: Callable[[str, int], None]) -> None:
    """In a folder with the sticky bit, a run that may not replace the dataset file changes nothing."""
    for user in (0, _NOBODY):
        enter_folder(f"of-{user}", 0o1777)
        os.chown(".", 1, 1)
        shardtool.create("source", "out-{000..}.tar", workers=0)
        before = sorted(os.listdir())
        refused = (
            pytest.raises(shardtool.OutputFailed, match="Another user may own this file") if user else nullcontext()
        )
        with _effective_user(user), refused:
            change()
        assert sorted(os.listdir()) == before or not user
