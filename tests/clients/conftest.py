"""Datasets that other tools read. If webdataset is not installed, pytest collects no test of this folder."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from tests.clients.packed import PHOTOS, Packed, pack, write_samples
from tests.servers.fixtures import azurite, gcs, http_files, moto, nginx, nginx_ways, proxies, rclone, use

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["azurite", "gcs", "http_files", "moto", "nginx", "nginx_ways", "proxies", "rclone", "use"]  # fixtures
collect_ignore_glob = [] if find_spec("webdataset") else ["test_*.py"]

_NAMES = [
    "0",
    "a/b/c/0001",
    "a/b/c/0002",
    "a/b/0001",
    "sp ace/two  words",
    "größe/ä ö ü",
    "e\u0301/decomposed",
    "\u00e9/composed",
    "日本語/写真",
    "🐈/🐈‍⬛",
    'quote\'s/"double"',
    "perc%20ent/star*",
    "-dash/--dash",
    "UPPER/lower",
]
_LONG_NAMES = [
    "0",
    "split/" + "a" * 96,
    "n" * 96,  # with .txt, the name fills the 100 bytes of the ustar name field
    "n" * 97,
    "p" * 155 + "/" + "s" * 92,  # the name fills the prefix field and the name field
    "f/" * 70 + "leaf",
    "pax" * 40,
    ("d" * 200 + "/") * 3 + "over-512-bytes",
    "ö" * 40 + "/" + "ü" * 30,
    "a" + "ü" * 60,  # byte 100 is in the middle of a UTF-8 sequence
    "日" * 33 + "/" + "写" * 40,
]
_UNSAFE = [
    "plain/0",
    "scan.2019/scan.2019.01",
    "scan.2019/scan.2019.02",
    "sp ace/tab\there",
    ".hidden/.dot",
    "__meta__/__x__",
    "größe/日本語",
    "perc%20ent/100%",
    "L" * 97 + "/" + "long.name" * 10,
    "日" * 60,
    "UPPER/Case",
    "new\nline/x",
    *(["not-utf8/\udcff"] if sys.platform == "linux" else []),
]


# pytest-xdist distributes whole files among its workers. The slowest files start first, so that all workers finish at
# about the same time.
_LONG = (
    "test_training_examples.py",
    "test_remote_create.py",
    "test_ray.py",
    "test_hub.py",
    "test_targets.py",
    "test_remote_read.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the slowest files first."""
    items.sort(key=lambda item: _LONG.index(item.path.name) if item.path.name in _LONG else len(_LONG))


def _folder(factory: pytest.TempPathFactory, name: str) -> tuple[Path, Path]:
    root = factory.mktemp(name)
    for part in ("source", "shards"):
        (root / part).mkdir()
    return root / "source", root / "shards"


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """The sample photographs with a class number each, in about ten shards."""
    _, shards = _folder(tmp_path_factory, "photos")
    return pack(PHOTOS, shards, "--label-from-folder", "--max-size", "500kB")


@pytest.fixture(scope="session")
def one_shard(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """The sample photographs in a single shard."""
    _, shards = _folder(tmp_path_factory, "one")
    return pack(PHOTOS, shards)


@pytest.fixture(scope="session")
def names(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """A dataset with folders, spaces, quotes, non-ASCII letters, empty files, and an `out.skipped`."""
    source, shards = _folder(tmp_path_factory, "names")
    write_samples(source, _NAMES)
    os.mkfifo(source / "pipe.bin")
    packed = pack(source, shards, "--max-count", "5", "--on-error", "skip")
    assert (shards / "out.skipped").is_file()
    return packed


@pytest.fixture(scope="session")
def long_names(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """A dataset with names that need the ustar prefix field, and names that need a pax header."""
    source, shards = _folder(tmp_path_factory, "long")
    write_samples(source, _LONG_NAMES)
    return pack(source, shards, "--max-count", "4")


@pytest.fixture(scope="session")
def portable(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """A dataset with names that some readers would misread, packed with `--portable`."""
    source, shards = _folder(tmp_path_factory, "portable")
    write_samples(source, _UNSAFE, ("BIN", "txt"))
    return pack(source, shards, "--portable", "--dots", "last", "--hidden", "--max-count", "5")


@pytest.fixture(scope="session")
def photo_records(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """The sample photographs with a class number each, in about ten TFRecords."""
    _, shards = _folder(tmp_path_factory, "photo-records")
    return pack(PHOTOS, shards, "--label-from-folder", "--max-size", "500kB", ending="tfrecord")


@pytest.fixture(scope="session")
def odd_records(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """TFRecords with unusual names, empty and large payloads, missing fields, and fields sorted before `__key__`."""
    source, shards = _folder(tmp_path_factory, "odd-records")
    stems = [f"{number:03}/{stem}" for number, stem in enumerate([*_NAMES, *_LONG_NAMES])]
    stems += [f"{number:03}/x" for number in range(len(stems), 140)]  # some labels need two-byte varints
    write_samples(source, stems, ("BIN", "seg.bin", "txt", "größe"))
    for stem, size in ((stems[3], 512 * 1024), (stems[8], 2_000_000), (stems[130], 1_000_000)):
        (source / f"{stem}.BIN").write_bytes(bytes(at % 251 for at in range(size)))
        (source / f"{stem}.txt").unlink()
    return pack(source, shards, "--label-from-folder", "--max-count", "9", ending="tfrecord")


@pytest.fixture(scope="session", autouse=True)
def _no_network(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Prevent Hugging Face from using the network, and keep caches out of the home folder. Runs before the imports."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_HOME"] = str(tmp_path_factory.mktemp("hf-home"))
    os.environ["WIDS_CACHE"] = str(tmp_path_factory.mktemp("wids-cache"))
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
