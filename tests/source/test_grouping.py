"""Parts that become samples: parts with the same key are one sample, and no file is lost."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtool import CreateOptions, InvalidRequest, VerifyOptions, create, verify
from shardtool.entries.strings import PackedStrings
from shardtool.select.field_rows import group_sorted
from shardtool.table.rows import group_rows
from tests.helpers import members, shards, write_tree

if TYPE_CHECKING:
    from pathlib import Path

_FILES = {"a/1.jpg": b"1", "a/1.txt": b"{}", "a/2.jpg": b"22", "b/3.jpg": b"3", "b/3.txt": b"[]"}


@given(st.lists(st.binary(min_size=1, max_size=2).filter(lambda name: b"\0" not in name), max_size=12), st.booleans())
@settings(max_examples=15)
def test_equal_keys_form_groups(keys: list[bytes], by_key: bool) -> None:  # noqa: FBT001 - Hypothesis gives it
    """Parts with the same key form a group; samples are in the order of keys, or of first parts."""
    strings = PackedStrings.of(keys)
    groups = group_sorted(strings) if by_key else group_rows(strings.array())
    expected = sorted({*keys}) if by_key else [*dict.fromkeys(keys)]
    assert groups.first.tolist() == [keys.index(key) for key in expected]
    assert groups.of_row.tolist() == [expected.index(key) for key in keys]


def _list_paths(monkeypatch: pytest.MonkeyPatch, source: Path, text: str, folder: Path) -> dict[str, bytes]:
    """Pack paths from standard input; return the contents of the shards."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    create("-", f"{folder}/out.tar", CreateOptions(root=source, workers=0))
    return dict(members(*shards(folder)))


@pytest.mark.parametrize("end", ["\n", "\0"])
def test_a_list_of_paths_makes_the_samples_of_a_folder(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same files give the same samples for any order of the list; samples are in the order of their first files."""
    source = write_tree(tmp_path / "in", _FILES)
    paths = ["b/3.txt", "a/1.jpg", "a/2.jpg", "b/3.jpg", "a/1.txt"]
    packed = _list_paths(monkeypatch, source, "".join(path + end for path in paths), tmp_path / "list")
    assert packed == _FILES
    assert [*packed] == ["b/3.jpg", "b/3.txt", "a/1.jpg", "a/1.txt", "a/2.jpg"]
    create(source, f"{tmp_path}/folder.tar", CreateOptions(workers=0))
    documents = [
        json.loads(path.read_text())["shardtool"] for path in (tmp_path / "list/out.json", tmp_path / "folder.json")
    ]
    assert documents[0]["fingerprint"] == documents[1]["fingerprint"]


def _table(**columns: Any) -> pa.Table:
    return pa.table({
        "id": [7, 8, 7, 9, 9],
        "path": ["a/1.jpg", "a/2.jpg", "a/1.txt", "b/3.jpg", "b/3.txt"],
        **columns,
    })  # fmt: skip


def test_rows_of_files_with_keys_and_values(tmp_path: Path) -> None:
    """Rows that share a key in a column are one sample, with the values that its rows share; splits work."""
    source = write_tree(tmp_path / "in", _FILES)
    table = _table(label=["x", "y", "x", None, None], score=[1.5, 2.0, 1.5, np.nan, np.nan])
    options = CreateOptions(root=source, workers=0, meta="none", field=("cls=label",), where="id < 9")
    create(table, f"{tmp_path}/out.tar", options)
    assert dict(members(tmp_path / "out.tar")) == {
        "7.cls": b"x", "7.jpg": b"1", "7.txt": b"{}", "8.jpg": b"22", "8.cls": b"y",
    }  # fmt: skip
    assert verify(tmp_path / "out.json", VerifyOptions(source=table, root=source, workers=0)).sound
    split = CreateOptions(root=source, workers=0, split_column="part", meta="none")
    create(_table(part=["p", "q", "p", "q", "q"]), f"{tmp_path}/{{split}}.tar", split)
    assert [name for name, _ in members(tmp_path / "q.tar")] == ["8.jpg", "9.jpg", "9.txt"]


def test_contradictory_rows_are_refused(tmp_path: Path) -> None:
    """Rows of a sample with different values, or with the same field, are refused with their numbers."""
    source = write_tree(tmp_path / "in", _FILES)
    for values in ([1, 1, 2, 1, 1], [[1], [1], [1], [2], None]):
        with pytest.raises(InvalidRequest, match=r"column 'w' differs from the first row with the same key, in row"):
            create(_table(w=values), f"{tmp_path}/out.tar", CreateOptions(root=source, workers=0, meta="w"))
    again = pa.table({"path": ["a/1.jpg", "a/1.txt", "a/1.jpg"]})
    with pytest.raises(InvalidRequest, match=r"1 key more than once: 'a/1' \(rows 1, 3\)"):
        create(again, f"{tmp_path}/out.tar", CreateOptions(root=source, workers=0))


def test_a_sample_with_a_missing_file_is_skipped(tmp_path: Path) -> None:
    """A sample with a missing file is skipped whole."""
    source = write_tree(tmp_path / "in", _FILES)
    (source / "a" / "1.txt").unlink()
    create(_table(), f"{tmp_path}/out.tar", CreateOptions(root=source, workers=0, on_error="skip", meta="none"))
    assert [name for name, _ in members(tmp_path / "out.tar")] == ["8.jpg", "9.jpg", "9.txt"]
