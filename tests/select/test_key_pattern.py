from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool import CreateOptions, InvalidRequest, OutputExists, create, verify
from shardtool.entries.strings import PackedStrings
from shardtool.select.key_pattern import KeyPattern, apply_key_pattern
from tests.helpers import members, read_tree, write_tree
from tests.made import flat_entries

if TYPE_CHECKING:
    from pathlib import Path

_PAIRS = {
    "1.png": b"i1",
    "1_mask.png": b"m1",
    "a/2.png": b"i2",
    "a/2_mask.png": b"m2",
    "a/2.txt": b"t2",
    "3.png": b"i3",
}
_PACKED = [
    ("1.mask.png", b"m1"), ("1.png", b"i1"), ("3.png", b"i3"), ("a/2.mask.png", b"m2"), ("a/2.png", b"i2"),
    ("a/2.txt", b"t2"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "name", "key", "left"),
    [
        ("(.+)_mask", "a/b_mask", "a/b", "mask"),
        ("(.+)_mask", "a/b", "a/b", ""),
        ("(.+)_mask", "a/b_mask_v2", "a/b_mask_v2", ""),
        ("(.+?)(?:_mask)?", "b_mask", "b", "mask"),
        ("(.+)_(leftImg8bit|gtFine_.+)", "x/y_1_gtFine_labelIds", "x/y_1", "gtFine_labelIds"),
        ("(.+)_rgb|(.+)-depth", "x-depth", "x", "depth"),
        ("mask_(.+)", "mask_7", "7", "mask"),
        ("mask_([0-9]+)_v.", "mask_7_v2", "7", "mask_v2"),
        ("(?:images|masks)/(.+)", "images/7", "7", ""),
        ("images/(.+)_rgb", "images/train/7_rgb", "train/7", "rgb"),
        (r"(?P<key>.+)[()\]]x", "a)x", "a", ")x"),
        (r"([^\]_]+)\(\d\)", "a(1)", "a", "(1)"),
        ("([[:alpha:]]+)_.*", "é_m", "é_m", ""),
        ("(.é)_m", "aé_m", "aé", "m"),
    ],
)
def test_a_pattern_splits_paths(pattern: str, name: str, key: str, left: str) -> None:
    """The first group is the key, the rest of the name goes into the field; without a match the path is the key."""
    result, known, which = KeyPattern(pattern).split(PackedStrings.of([name.encode()]))
    assert (result[0].decode(), known[which[0]].decode()) == (key, left)


@given(
    stems=st.lists(
        st.tuples(st.sampled_from(["", "d/"]), st.text("ab_", min_size=1, max_size=5)), unique=True, max_size=12
    )
)
def test_no_file_is_lost_or_moved(stems: list[tuple[str, str]]) -> None:
    """Each file is in the sample of its key, once; samples are in key order, and fields in field order."""
    names = sorted("".join(item).encode() for item in stems)
    entries = flat_entries(names, [2] * len(names), ("jpg", "png"), root=b"/x/", code=[0, 1] * len(names))
    try:
        result = apply_key_pattern(entries, KeyPattern("(.+)_[ab]*"))
    except InvalidRequest:
        assert any(
            name.endswith(b"_") or b"/_" in name for name in names
        )  # nothing remains for the field, or for the key
        return
    assert sorted(result.path(row) for row in range(len(result.rows.code))) == sorted(
        name + ending for name in names for ending in (b".jpg", b".png")
    )
    keys = [result.keys[at] for at in range(len(result))]
    assert keys == sorted({*keys})
    for sample, key in enumerate(keys):
        rows = range(int(result.first_rows[sample]), int(result.first_rows[sample + 1]))
        assert [*result.rows.code[rows.start : rows.stop]] == sorted({*result.rows.code[rows.start : rows.stop]})
        for row in rows:
            field, path = result.fields[result.rows.code[row]].encode(), result.path(row)
            assert path.startswith(key)
            assert path.endswith(field.rpartition(b".")[2])
            assert path[len(key) :].strip(b"_").replace(b"_.", b".") in (field, b"." + field)


@pytest.mark.parametrize("kind", ["folder", "zip", "folders"])
def test_pairs_by_suffix(kind: str, tmp_path: Path) -> None:
    """Files of a folder, of an archive, and of several folders are paired alike, and `verify` accepts the dataset."""
    source: Any = write_tree(tmp_path / "pairs", _PAIRS)
    if kind == "zip":
        source = shutil.make_archive(str(tmp_path / "pairs"), "zip", source)
    elif kind == "folders":
        source = [tmp_path / name for name in ("images", "masks")]
        for folder in source:
            is_mask = folder.name == "masks"
            write_tree(folder, {name: data for name, data in _PAIRS.items() if ("mask" in name) == is_mask})
    options = CreateOptions(key_pattern="(.+)_mask")
    create(source, f"{tmp_path}/o-{{0..}}.tar", options)
    assert members(tmp_path / "o-0.tar") == _PACKED
    assert verify(tmp_path / "o.json", source=source).sound
    before = read_tree(tmp_path)
    create(source, f"{tmp_path}/o-{{0..}}.tar", CreateOptions(key_pattern="(.+)_mask", resume=True))
    assert read_tree(tmp_path) == before
    with pytest.raises(OutputExists, match="differs: "):
        create(source, f"{tmp_path}/o-{{0..}}.tar", CreateOptions(key_pattern="(.+)_m.*", resume=True))


def test_a_sample_with_a_failed_file_is_skipped_whole(tmp_path: Path) -> None:
    """If a file cannot be packed, all files with the same key by the pattern are skipped."""
    write_tree(tmp_path / "pairs", _PAIRS)
    (tmp_path / "pairs" / "3_mask.png").symlink_to("nowhere")
    made = create(
        tmp_path / "pairs", f"{tmp_path}/o-{{0..}}.tar", CreateOptions(key_pattern="(.+)_mask", on_error="skip")
    )
    assert [name for name, _ in members(tmp_path / "o-0.tar") if name.startswith("3")] == []
    assert (made.samples, '"key": "3"' in (tmp_path / "o.skipped").read_text()) == (2, True)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(.+)_msk", "no file matches; expected a pattern for whole paths without their endings, such as '1'"),
        (".+_mask", "no group in parentheses; expected a group for the key"),
        ("(.+", "missing )"),
        ("(.+)_\udcff", "not valid UTF-8"),
        ("(.{1000}){1000}", "invalid repetition size"),
        ("(?=x)(.*)", "invalid perl operator: (?=; expected an RE2 regular expression"),
        ("(?:a/)?(.+)", "files with the same key and field: "),
        ("()_?.*", "the key '' of '1'"),
        ("(.*/)?.*", "the key 'a/' of 'a/2'"),
    ],
)
def test_invalid_patterns_are_refused(pattern: str, message: str, tmp_path: Path) -> None:
    """Invalid patterns, and patterns that match nothing or merge files, are refused with an example."""
    write_tree(tmp_path / "pairs", _PAIRS | {"a/3.png": b""})
    with pytest.raises(InvalidRequest) as caught:
        create(tmp_path / "pairs", f"{tmp_path}/o-{{0..}}.tar", CreateOptions(key_pattern=pattern))
    assert message in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["pairs"]


def test_patterns_take_linear_time() -> None:
    """A pattern with exponential time in Python's engine is fast here, because patterns may be untrusted."""
    began = time.monotonic()
    names = PackedStrings.of(b"a" * 2000 + b"%d" % at for at in range(50))
    assert np.all(np.array(KeyPattern("((a+)+)+b").split(names)[2]) == 0)
    assert time.monotonic() - began < 20
