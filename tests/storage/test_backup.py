"""Laws of second names."""

from pathlib import Path

import pytest

from shardtool.errors import OutputFailed
from shardtool.storage.backup import BackupLinks


def test_what_was_kept_comes_back(tmp_path: Path) -> None:
    """Files that were changed or removed are as they were once they are brought back, and no second name is left."""
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").write_bytes(b"2")
    kept = BackupLinks(str(tmp_path), str(tmp_path / ".kept"))
    kept.keep(["a", "b", "missing"])
    (tmp_path / "a").unlink()
    (tmp_path / "b").unlink()
    (tmp_path / "b").write_bytes(b"3")
    kept.restore_files(last="b")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"1", "b": b"2"}


def test_what_an_earlier_repair_kept_stays(tmp_path: Path) -> None:
    """Nothing is kept where an earlier repair was cut off, and what that one kept is untouched."""
    (tmp_path / ".kept").mkdir()
    (tmp_path / ".kept" / "a").write_bytes(b"1")
    with pytest.raises(OutputFailed, match="cut off"):
        BackupLinks(str(tmp_path), str(tmp_path / ".kept")).keep(["b"])
    assert (tmp_path / ".kept" / "a").read_bytes() == b"1"
