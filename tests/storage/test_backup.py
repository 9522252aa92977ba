"""Hard links that protect a dataset during a repair."""

from pathlib import Path

import pytest

from shardtool.errors import OutputFailed
from shardtool.storage.backup import BackupLinks


def test_restore_undoes_changes_and_deletions(tmp_path: Path) -> None:
    """Restoring brings back changed and deleted files, and leaves no links."""
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").write_bytes(b"2")
    kept = BackupLinks(str(tmp_path), str(tmp_path / ".kept"))
    kept.keep(["a", "b", "missing"])
    (tmp_path / "a").unlink()
    (tmp_path / "b").unlink()
    (tmp_path / "b").write_bytes(b"3")
    kept.restore_files(last="b")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"1", "b": b"2"}


def test_backup_of_an_interrupted_repair_is_not_touched(tmp_path: Path) -> None:
    """If a backup exists from an interrupted repair, a new backup fails and the old one is unchanged."""
    (tmp_path / ".kept").mkdir()
    (tmp_path / ".kept" / "a").write_bytes(b"1")
    with pytest.raises(OutputFailed, match="interrupted"):
        BackupLinks(str(tmp_path), str(tmp_path / ".kept")).keep(["b"])
    assert (tmp_path / ".kept" / "a").read_bytes() == b"1"
