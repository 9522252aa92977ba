"""Settings of all tests, and fixtures with source folders."""

from __future__ import annotations

import gc
import os
import signal
from functools import cache
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from shardtool.cli import commands
from shardtool.execute import local_pool
from shardtool.write.task import BUFFER_SIZE
from tests.helpers import PHOTOS, memory_root, write_tree
from tests.servers.fixtures import http_files, proxies, use

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["http_files", "proxies", "use"]  # fixtures

for profile, examples in (("few", 10), ("many", 100)):  # for property tests without their own number
    settings.register_profile(
        profile, max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "few"))

# Create temporary folders in memory. (pytest keeps them only after failures.)
if (root := memory_root()) is not None:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", root)

# No test may send requests to stores that it has not started, or request credentials from the machine.
_NO_STORE = {
    "SHARDTOOL_ENDPOINT": "http://127.0.0.1:9",
    "AWS_ACCESS_KEY_ID": "none",
    "AWS_SECRET_ACCESS_KEY": "none",
    "AWS_EC2_METADATA_DISABLED": "true",
    "GOOGLE_SKIP_SIGNATURE": "true",
    "AZURE_STORAGE_ACCOUNT_NAME": "none",
    "AZURE_SKIP_SIGNATURE": "true",
}
os.environ.update(_NO_STORE)

# Under `nohup` or in the background of a shell, these signals are ignored. Child processes would inherit that, and
# tests of signals would fail.
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Collection creates millions of objects that live until the end. The garbage collector would visit all of them in each
# run. In forked processes, these visits would also copy the memory pages of the objects.
gc.disable()


def pytest_collection_finish() -> None:
    """Exclude all existing objects from garbage collection."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def same_commands() -> Iterator[None]:
    """Create the click command of each verb only once, because `typed` runs many commands in this process."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(commands, "VERBS", {verb: cache(create) for verb, create in commands.VERBS.items()})
        yield


@pytest.fixture(scope="session", autouse=True)
def few_processes() -> Iterator[None]:
    """Run tasks in this process by default. Fork the workers that a test requests, because Python starts slowly."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("shardtool.execute.usable_cores", lambda: 0)
        patched.setattr("shardtool.verbs.verify.verify.usable_cores", lambda: 0)
        patched.setattr(local_pool, "_can_fork", lambda: True)
        yield


_BUFFER = BUFFER_SIZE  # samples up to this size are packed in one piece, and larger samples are streamed


@pytest.fixture(scope="session", params=["tar", "tfrecord"])
def ending(request: pytest.FixtureRequest) -> str:
    """Return the extension of a shard format. A test with this fixture runs once for each format."""
    return str(request.param)


@pytest.fixture(scope="session")
def sample_data() -> Path:
    """Return the folder of sample photographs."""
    return PHOTOS


def _small(folder: Path) -> Path:
    files = {}
    for number in range(12):
        name = f"{'ab'[number % 2]}/{number:03}"
        files[f"{name}.txt"] = f"caption of {number}\n".encode() * (number + 1)
        files[f"{name}.bin"] = bytes([number]) * (300 * number)
    return write_tree(folder / "small", files)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Return a new source folder of 12 samples with two fields each, in the subfolders `a` and `b`."""
    return _small(tmp_path)


@pytest.fixture(scope="session")
def small_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a source folder with the files of `small`, which all tests share and must not change."""
    return _small(tmp_path_factory.mktemp("once"))


@pytest.fixture(scope="session")
def awkward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a source folder with sizes around the tar block and the packing buffer, long names, spaces and a link."""
    sizes = (0, 1, 511, 512, 513, 10_240, _BUFFER - 512, _BUFFER - 511, _BUFFER, _BUFFER + 1, 2 * _BUFFER + 77)
    files = {f"sizes/{size:07}.bin": bytes(at % 251 for at in range(1000)) * (size // 1000 + 1) for size in sizes}
    files = {name: data[: int(name[6:13])] for name, data in files.items()}
    files |= {f"sizes/{size:07}.txt": b"%d" % size for size in sizes}
    files["sp ace/ü ñ.jpg"] = b"named by hand"
    files["prefix/" + "d" * 120 + "/leaf.jpg"] = b"divided at a slash"
    files["pax/" + "n" * 180 + ".jpg"] = b"carried by a pax header"
    files["pax/" + "n" * 180 + ".seg.png"] = b"twice"
    root = write_tree(tmp_path_factory.mktemp("awkward"), files)
    (root / "sizes" / "link.txt").symlink_to("0000513.txt")
    return root
