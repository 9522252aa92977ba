"""Folders in memory, and sources. Packing the large source takes long enough to kill or stop the run."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.faults.helpers import MEBIBYTE, PATTERN, contents, create, write_samples
from tests.helpers import memory_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True)
class Bulk:
    """A source that fills 24 shards of 8 MiB.

    Attributes:
        options: Options of `create`.
        expected: Size and checksum of each output file of an undisturbed run.
    """

    source: Path
    options: tuple[str, ...]
    expected: dict[str, str]
    shards: int = 24
    pattern: str = PATTERN


def memory_folder() -> Path:
    """Create a folder in memory, or on disk if less than 3 GiB of memory is free."""
    return Path(tempfile.mkdtemp(prefix="shardtool-faults-", dir=memory_root()))


@pytest.fixture
def place() -> Iterator[Path]:
    """Yield a new folder in memory, which is deleted after the test."""
    folder = memory_folder()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def bulk() -> Iterator[Bulk]:
    """Yield the large source, which is written once for all tests."""
    folder = memory_folder()
    source = write_samples(folder / "src", 96, 2 * MEBIBYTE)
    options = ("--max-count", "4", "--workers", "2", "--quiet")
    run = create(source, folder / "out", *options)
    assert run.code == 0, run.err
    expected = contents(folder / "out")
    shutil.rmtree(folder / "out")
    yield Bulk(source, options, expected)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def bulk_records(bulk: Bulk) -> Bulk:
    """Return the same source with the expected output of TFRecord shards."""
    folder, pattern = memory_folder(), PATTERN.replace(".tar", ".tfrecord")
    run = create(bulk.source, folder / pattern, *bulk.options)
    assert run.code == 0, run.err
    expected = contents(folder)
    shutil.rmtree(folder)
    return replace(bulk, expected=expected, pattern=pattern)


@pytest.fixture
def small(place: Path) -> Path:
    """Create a source of 12 samples of 60 kB (36 files)."""
    return write_samples(place / "src", 12, 60_000)


@pytest.fixture
def disk(place: Path) -> Iterator[Callable[[str], Path]]:
    """Return a function that mounts a file system in memory with options such as `size=1m`."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        folder = place / f"disk{len(mounted)}"
        folder.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"mount is not permitted here: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture(scope="session")
def reference() -> Iterator[Path]:
    """Yield the output folder of an undisturbed run: the samples of `small`, with four samples per shard."""
    folder = memory_folder()
    source = write_samples(folder / "src", 12, 60_000)
    run = create(source, folder / "out", "--max-count", "4", "--quiet")
    assert run.code == 0, run.err
    yield folder / "out"
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def expected(reference: Path) -> dict[str, str]:
    """Return size and checksum of each file of `reference`, by name."""
    return contents(reference)
