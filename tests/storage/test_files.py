"""Reading local files."""

import os
from pathlib import Path

import pytest

from shardtool.storage.files import (
    dangling_target,
    iter_entries,
    list_folder_names,
    open_source_file,
    plain_size,
    read_head,
    read_small,
)
from shardtool.storage.paths import similar_path


def test_similar_path(tmp_path: Path) -> None:
    """A hidden file, such as the journal of an unfinished run, is suggested only for a hidden name."""
    (tmp_path / ".out.journal").touch()
    assert similar_path(f"{tmp_path}/out.json") == ""
    assert similar_path(f"{tmp_path}/.out.jurnal") == f"Did you mean {tmp_path}/.out.journal?"
    (tmp_path / "out-a.json").touch()
    assert similar_path(f"{tmp_path}/out.json") == f"Did you mean {tmp_path}/out-a.json?"


def test_read_parts_at_the_end_of_a_file(tmp_path: Path) -> None:
    """Reading past the end returns the number of bytes read and leaves the remaining buffers unchanged."""
    path = tmp_path / "file"
    path.write_bytes(bytes(range(10)))
    parts = [memoryview(bytearray(b"?" * size)) for size in (4, 0, 4, 4)]
    with open_source_file(os.fsencode(path)) as source:
        assert source.read_parts(parts, 1, 12) == 9
        assert b"".join(parts) == bytes(range(1, 10)) + b"???"
        assert source.read_parts(parts[:3], 2, 8) == 8
        assert b"".join(parts[:3]) == bytes(range(2, 10))
        assert source.read_parts(parts, 99, 12) == 0


def test_read_parts_of_more_than_2_gib(tmp_path: Path) -> None:
    """One system call reads at most 2 GiB minus one page; the bytes after that arrive in the right buffer."""
    path, block, tail = tmp_path / "file", memoryview(bytearray(2**22)), memoryview(bytearray(8))
    blocks = 2**31 // len(block) + 1
    with path.open("wb") as file:
        file.seek(blocks * len(block))
        file.write(b"the tail")
    with open_source_file(os.fsencode(path)) as source:
        total = blocks * len(block) + len(tail)
        assert source.read_parts([block] * blocks + [tail], 0, total) == total
    assert (bytes(tail), any(block[:100])) == (b"the tail", False)


def test_list_folder_names_and_plain_size(tmp_path: Path) -> None:
    """Names are sorted, and none if the folder does not exist; only regular files and links to them have a size."""
    for name in ("b", "a"):
        (tmp_path / name).write_bytes(b"12")
    (tmp_path / "c").symlink_to("a")
    (tmp_path / "d").symlink_to("gone")
    assert [dangling_target(str(tmp_path / name)) for name in ("a", "c", "none", "d")] == [None, None, None, "gone"]
    assert (
        list_folder_names(str(tmp_path))
        == ["a", "b", "c", "d"]
        == sorted(entry.name for entry in iter_entries(str(tmp_path)))
    )
    assert list_folder_names(str(tmp_path / "none")) == []
    assert [plain_size(str(tmp_path / name)) for name in ("a", "c", "none", "d", ".")] == [2, 2, None, None, None]


def test_read_head_and_read_small(tmp_path: Path) -> None:
    """`read_head` returns the first bytes; a file below the limit is read completely."""
    path = tmp_path / "a"
    path.write_bytes(b"0123456789")
    assert read_head(str(path), 4) == (b"0123", 10)
    assert read_head(str(path), 40) == (b"0123456789", 10)
    assert read_small(str(path), 10) == b"0123456789"


@pytest.mark.parametrize("ending", [b"PAR1", b"0000"])
def test_large_files_need_the_expected_ending(ending: bytes, tmp_path: Path) -> None:
    """A large file with a wrong ending, or above the limit, is refused before it is read."""
    path = tmp_path / "a"
    with path.open("wb") as file:
        file.truncate(2**25 + 1)
        file.seek(0, 2)
        file.write(ending)
    if ending == b"PAR1":
        assert read_small(str(path), ending=b"PAR1").endswith(b"PAR1")
    else:
        with pytest.raises(OSError, match="does not match"):
            read_small(str(path), ending=b"PAR1")
    with pytest.raises(OSError, match="too large"):
        read_small(str(path), 2**25)


def test_an_address_is_no_broken_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A local link whose path looks like an address is never followed for the address."""
    monkeypatch.chdir(tmp_path)
    Path("s3:/bucket").mkdir(parents=True)
    Path("s3:/bucket/a.tar").symlink_to("nothing")
    assert dangling_target("s3:/bucket/a.tar") == "nothing"
    assert dangling_target("s3://bucket/a.tar") is None
