"""Laws of reading files."""

import os
from pathlib import Path

import pytest

from shardtool.storage.files import open_source_file, read_head, read_small
from shardtool.storage.lookup import dangling_target, iter_entries, list_folder_names, plain_size


def test_a_file_that_ends_early(tmp_path: Path) -> None:
    """Reading in parts tells how much there was, and fills no more."""
    path = tmp_path / "file"
    path.write_bytes(bytes(range(10)))
    parts = [memoryview(bytearray(b"?" * size)) for size in (4, 0, 4, 4)]
    with open_source_file(os.fsencode(path)) as source:
        assert source.read_parts(parts, 1, 12) == 9
        assert b"".join(parts) == bytes(range(1, 10)) + b"???"
        assert source.read_parts(parts[:3], 2, 8) == 8
        assert b"".join(parts[:3]) == bytes(range(2, 10))
        assert source.read_parts(parts, 99, 12) == 0


def test_more_than_one_system_call_reads(tmp_path: Path) -> None:
    """The system reads 2 GiB at most at a time, less one page: what follows comes to its right place too."""
    path, block, tail = tmp_path / "file", memoryview(bytearray(2**22)), memoryview(bytearray(8))
    blocks = 2**31 // len(block) + 1
    with path.open("wb") as file:
        file.seek(blocks * len(block))
        file.write(b"the tail")
    with open_source_file(os.fsencode(path)) as source:
        total = blocks * len(block) + len(tail)
        assert source.read_parts([block] * blocks + [tail], 0, total) == total
    assert (bytes(tail), any(block[:100])) == (b"the tail", False)


def test_what_lies_in_a_folder(tmp_path: Path) -> None:
    """Names are sorted, and none where there is no folder; only plain files, and links to them, have a plain size."""
    for name in ("b", "a"):
        (tmp_path / name).write_bytes(b"12")
    (tmp_path / "c").symlink_to("a")
    (tmp_path / "d").symlink_to("gone")
    assert [dangling_target(str(tmp_path / name)) for name in ("a", "c", "none", "d")] == [None, None, None, "gone"]
    assert (
        list_folder_names(str(tmp_path))
        == ["a", "b", "c", "d"]
        == sorted(one.name for one in iter_entries(str(tmp_path)))
    )
    assert list_folder_names(str(tmp_path / "none")) == []
    assert [plain_size(str(tmp_path / name)) for name in ("a", "c", "none", "d", ".")] == [2, 2, None, None, None]


def test_heads_of_files(tmp_path: Path) -> None:
    """The head of a file is its first bytes, and a file smaller than the limit is read whole."""
    path = tmp_path / "a"
    path.write_bytes(b"0123456789")
    assert read_head(str(path), 4) == (b"0123", 10)
    assert read_head(str(path), 40) == (b"0123456789", 10)
    assert read_small(str(path), 10) == b"0123456789"


@pytest.mark.parametrize("ending", [b"PAR1", b"0000"])
def test_large_files_are_read_for_their_ending(ending: bytes, tmp_path: Path) -> None:
    """A large file with another end than it should have is refused, and so is one over the limit, before it is read."""
    path = tmp_path / "a"
    with path.open("wb") as file:
        file.truncate(2**25 + 1)
        file.seek(0, 2)
        file.write(ending)
    if ending == b"PAR1":
        assert read_small(str(path), ending=b"PAR1").endswith(b"PAR1")
    else:
        with pytest.raises(OSError, match="not what"):
            read_small(str(path), ending=b"PAR1")
    with pytest.raises(OSError, match="too large"):
        read_small(str(path), 2**25)
