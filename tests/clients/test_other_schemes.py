"""Addresses that fsspec reads, seen with its file system in memory."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

import shardtool
from shardtool import CreateOptions, InvalidRequest, create
from shardtool.errors import AccessRefused, StoreFailed
from shardtool.storage import files
from shardtool.storage.files import list_folder
from shardtool.storage.remote import fsspec as remote_fsspec
from shardtool.storage.remote import objects
from tests.helpers import members, read_tree, write_tree

if TYPE_CHECKING:
    from pathlib import Path

fsspec = pytest.importorskip("fsspec")

pytestmark = pytest.mark.clients
TREE = {"cat/1.jpg": b"one", "cat/1.json": b"{}", "dog/a b#ü?%25.jpg": b"x" * 600_000, "empty.txt": b""}


@pytest.fixture
def memory(tmp_path: Path) -> str:
    """Return an address in memory with a tree `t` and its dataset `d`, which `tmp_path` contains too."""
    create(str(write_tree(tmp_path / "t", TREE)), str(tmp_path / "d" / "out-{000..}.tar"), CreateOptions(max_count=2))
    files = fsspec.filesystem("memory")
    for name, data in read_tree(tmp_path).items():
        files.pipe_file(f"/{tmp_path.name}/{name}", data)
    return f"memory://{tmp_path.name}"


def test_reading(memory: str, tmp_path: Path) -> None:
    """A dataset is found by its file, its folder and its pattern, and read as one of this machine is."""
    local = [dict(sample) for sample in shardtool.open(str(tmp_path / "d" / "out.json"))]
    for given in ("d/out.json", "d", "d/out-{000..}.tar"):
        assert [dict(sample) for sample in shardtool.open(f"{memory}/{given}")] == local
    assert files.read_tail(f"{memory}/t/cat/1.jpg", 2) == b"ne"
    capitals = memory.replace("memory:", "MEMORY:")
    assert [dict(sample) for sample in shardtool.open(f"{capitals}/d")] == local
    assert sorted(list_folder(f"{capitals}/t")) == sorted(list_folder(f"{memory}/t"))


def test_source(memory: str, tmp_path: Path) -> None:
    """A tree becomes the same shards as on this machine; a manifest's paths count from there."""
    forked = CreateOptions(max_count=2, workers=1, start_method="fork")  # the worker then shares this memory
    create(f"{memory}/t", str(tmp_path / "n" / "out-{000..}.tar"), forked)
    assert read_tree(tmp_path / "n") == read_tree(tmp_path / "d")
    fsspec.filesystem("memory").pipe_file(f"/{tmp_path.name}/t/m.csv", b"path\ncat/1.jpg\n")
    create(f"{memory}/t/m.csv", str(tmp_path / "m" / "out-{000..}.tar"), forked)
    assert members(tmp_path / "m" / "out-000.tar") == [("cat/1.jpg", b"one")]
    assert sorted(one.key for one in objects.iter_objects(f"{memory}/t")) == sorted([*TREE, "m.csv"])


def test_unsupported_addresses(memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read-only schemes are refused as output, unknown schemes are errors, and errors contain no secrets."""
    with pytest.raises(InvalidRequest, match="locations are read-only"):
        create(str(tmp_path / "t"), f"{memory}/new/out-{{000..}}.tar")
    with pytest.raises(InvalidRequest, match=r"the scheme nosuch://; expected .* a scheme of fsspec: .*hf"):
        shardtool.open("nosuch://x/y.json")
    with pytest.raises(FileNotFoundError):
        objects.open_remote(f"{memory}/none")
    kind = type(fsspec.filesystem("memory"))
    for error, ours in ((PermissionError("key=sesame"), AccessRefused), (RuntimeError("key=sesame"), StoreFailed)):

        def fail(*_: object, error: Exception = error, **__: object) -> bytes:
            raise error

        monkeypatch.setattr(kind, "cat_file", fail)
        with pytest.raises(ours) as said:
            objects.open_remote(f"{memory}/t/cat/1.jpg").read(0, 1)
        assert "sesame" not in str(said.value)
        assert said.value.__suppress_context__


class _Answered(Exception):
    """What a client of HTTP raises for an answer with an error."""

    def __init__(self, status: int) -> None:
        super().__init__("key=sesame")
        self.response = SimpleNamespace(status_code=status, headers={"Retry-After": "0"})


def test_retries_depend_on_the_status(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are repeated after 429 and 503, but not after 401; for private `hf://` paths, see its token."""
    kind, answers = type(fsspec.filesystem("memory")), [429, 503]
    whole = kind.cat_file

    def busy(*given: object, **how: object) -> object:
        if answers:
            raise _Answered(answers.pop())
        return whole(*given, **how)

    monkeypatch.setattr(kind, "cat_file", busy)
    assert objects.open_remote(f"{memory}/t/cat/1.jpg").read(0, 3) == b"one"
    assert not answers
    answers += [401, 401]
    with pytest.raises(AccessRefused):
        objects.open_remote(f"{memory}/t/cat/1.jpg").read(0, 3)
    assert answers == [401]
    with (
        pytest.raises(AccessRefused, match="HF_TOKEN") as said,
        remote_fsspec._fsspec_errors("hf://datasets/o/n/x.json"),  # noqa: SLF001
    ):
        raise FileNotFoundError from _Answered(401)
    assert "sesame" not in str(said.value)


@pytest.mark.parametrize(
    ("scheme", "library", "cure"),
    [("hf", "huggingface_hub", "shardtool[hf]"), ("sftp", "paramiko", "paramiko"), ("s3a", "s3fs", "s3://"),
     ("gcs", "gcsfs", "gs://"), ("abfs", "adlfs", "az://")],
)  # fmt: skip
def test_a_library_that_is_missing_is_named(
    scheme: str, library: str, cure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheme whose library is missing is named with that, or with the scheme of ours that needs none."""
    monkeypatch.setitem(sys.modules, library, None)
    for name in [one for one in sys.modules if one.startswith((f"{library}.", f"fsspec.implementations.{scheme}"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, scheme, raising=False)  # noqa: SLF001
    with pytest.raises(StoreFailed, match=f"the library for {scheme}:// is not installed") as caught:
        files.read_small(f"{scheme}://place/key.json")
    assert cure in caught.value.remedy
