from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardtool import CreateOptions, InvalidRequest, SampleFailed
from shardtool.entries.strings import PackedStrings
from shardtool.names import split_name, to_bytes
from shardtool.shard_samples import FILE, INLINE, LINK, SPAN
from shardtool.source.manifest import paths as manifest_paths
from shardtool.source.manifest.rows import FieldColumn, arrange_fields
from shardtool.source.manifest.source import ManifestSource
from shardtool.source.scan_part import ALWAYS_CHANGED
from shardtool.table import keys
from tests.helpers import ENVIRONMENT, PHOTOS, write_tree
from tests.made import list_manifest, manifest_options, metadata_of

if TYPE_CHECKING:
    from pathlib import Path

    from shardtool.entries.sample_table import SampleTable
    from shardtool.skipped import Skipped
    from shardtool.table.render import ArrowStrings

_FILES = {"imgs/1.jpg": b"one", "imgs/2.png": b"second", "imgs/3.jpg": b"the third", "masks/1.png": b"m"}


@dataclass
class Spool:
    """Receives the payloads from `write_payloads`."""

    data: bytes = b""

    def write(self, data: memoryview) -> None:
        self.data += bytes(data)


def _listed(
    source: Any, *, rows: list[int] | None = None, **options: Any
) -> tuple[ManifestSource, SampleTable, tuple[Skipped, ...]]:
    manifest = ManifestSource(source, manifest_options(**options))
    if rows is not None:
        manifest.keep_rows(np.array(rows, np.int64))
    listed = list_manifest(manifest)
    return manifest, listed.entries, listed.skipped


def _entries(source: Any, **options: Any) -> tuple[ManifestSource, SampleTable]:
    return _listed(source, **options)[:2]


def _samples(source: Any, **options: Any) -> dict[str, dict[str, bytes]]:
    """Return each sample's fields with their payloads, read as the entries describe."""
    manifest, entries = _entries(source, **options)
    spool = Spool()
    manifest.write_payloads(spool)
    texts = {name: column.span(0, len(entries)).split(b"\0") for name, column in entries.values.inline.items()}
    samples: dict[str, dict[str, bytes]] = {}
    for sample in range(len(entries)):
        fields = samples[entries.key(sample)] = {}
        for row in range(int(entries.first_rows[sample]), int(entries.first_rows[sample + 1])):
            rows = entries.rows
            name, kind, size = entries.fields[rows.code[row]], rows.kind[row], int(rows.size[row])
            if kind == INLINE:
                fields[name] = texts[name][sample]
            elif kind == SPAN:
                start = int(entries.known_spans.offset[row])
                fields[name] = spool.data[start : start + size]
            else:
                with open(entries.root + entries.path(row), "rb") as file:
                    fields[name] = file.read()
            assert len(fields[name]) == size
            assert (entries.path(row) == b"") == (kind in {INLINE, SPAN})
        assert list(fields) == sorted(fields, key=str.encode)
    return samples


def _error(source: Any, kind: type[Exception] = InvalidRequest, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        _entries(source, **options)
    return str(caught.value)


def _table(path: Path, text: str, files: dict[str, bytes] | None = None) -> Path:
    """Write a manifest, and the files that it lists."""
    write_tree(path.parent, _FILES if files is None else files)
    path.write_text(text)
    return path


_THREE = "id,path,label,n\n007,imgs/1.jpg,dog,1\n008,imgs/2.png,cat,\n009,imgs/3.jpg,dog,3\n"


def test_usual_column_names_need_no_option(tmp_path: Path) -> None:
    """Columns with usual names need no option: key, file, and JSON of the rest; notes report the choices."""
    path = _table(tmp_path / "t.csv", _THREE)
    assert _samples(path) == {
        "007": {"jpg": b"one", "json": b'{"label":"dog","n":1}'},
        "008": {"json": b'{"label":"cat","n":null}', "png": b"second"},
        "009": {"jpg": b"the third", "json": b'{"label":"dog","n":3}'},
    }
    manifest, entries = _entries(path)
    assert manifest.name == "t.csv"
    assert manifest.notes == [
        "using id as the key (change with key)",
        "stored in the json field: label, n (choose with meta)",
    ]
    assert metadata_of(entries).to_pydict() == {
        "path": ["imgs/1.jpg", "imgs/2.png", "imgs/3.jpg"], "label": ["dog", "cat", "dog"], "n": [1, None, 3],
    }  # fmt: skip


def test_every_role(tmp_path: Path) -> None:
    """Files, bytes, values and chosen metadata make one sample."""
    write_tree(tmp_path, _FILES)
    table = pa.table(
        {
            "name": ["b", "a"], "photo": ["imgs/1.jpg", "imgs/3.jpg"], "mask": ["masks/1.png", "imgs/2.png"],
            "sound": [b"la", b"li-li"], "thumb": [{"bytes": b"T", "path": "x.png"}, {"bytes": b"", "path": None}],
            "label": ["dog", "cat"], "score": [1.0, 0.5], "width": [3, 4], "height": [5, 6],
        }
    )  # fmt: skip
    options: dict[str, Any] = {
        "key": "name", "file": (("jpg", "photo"), ("mask.png", "mask")),
        "bytes": (("wav", "sound"), ("png", "thumb")),
        "fields": (("cls", "label"), ("score", "score")), "classes": ("cls",), "meta": ("height", "label"),
        "root": str(tmp_path),
    }  # fmt: skip
    samples = _samples(table, **options)
    assert list(samples) == ["b", "a"]
    assert samples["b"] == {
        "cls": b"1", "jpg": b"one", "json": b'{"label":"dog","height":5}', "mask.png": b"m", "png": b"T",
        "score": b"1.0", "wav": b"la",
    }  # fmt: skip
    assert samples["a"]["png"] == b""
    assert samples["a"]["wav"] == b"li-li"
    manifest, entries = _entries(table, **options)
    assert entries.values.classes == {"cls": ["cat", "dog"]}
    assert entries.values.numbers == {"cls": "int64", "score": "float"}
    assert metadata_of(entries).column_names == ["label", "height", "cls", "score"]
    assert manifest.notes == []
    assert manifest.column(None, "width").to_pylist() == [3, 4]


def test_the_photos_in_every_format() -> None:
    """The sample manifests give the same samples from each format, with the bytes of the files."""
    folder = PHOTOS.parent
    rows = pd.read_csv(folder / "photos.csv")
    expected = _samples(folder / "photos.csv", fields=(("cls", "multi"),), classes=("cls",))
    assert list(expected) == [str(key) for key in rows.object_id]
    for key, path, caption in zip(rows.object_id, rows.path, rows.caption, strict=True):
        sample = expected[str(key)]
        assert sample["jpg"] == (folder / path).read_bytes()
        assert json.loads(sample["json"])["caption"] == caption
    for ending in ("tsv", "jsonl", "parquet", "feather"):
        assert _samples(folder / f"photos.{ending}", fields=(("cls", "multi"),), classes=("cls",)) == expected
    assert _samples(rows, fields=(("cls", "multi"),), classes=("cls",), root=str(folder)) == expected


def test_paths_are_the_default_keys(tmp_path: Path) -> None:
    """Without a key column, or with `--key` naming the path column, a key is the path without its extension."""
    path = _table(tmp_path / "t.csv", "path\nimgs/1.jpg\n./imgs//2.png\n" + str(tmp_path / "imgs/./3.jpg") + "\n")
    assert list(_samples(path)) == ["imgs/1", "imgs/2", "imgs/3"]
    assert not ManifestSource(path, CreateOptions()).notes
    assert _samples(path, key="path") == _samples(path)
    assert list(_samples(_table(tmp_path / "t.csv", _THREE), key="path")) == ["imgs/1", "imgs/2", "imgs/3"]


def test_the_path_column_can_be_the_key(tmp_path: Path) -> None:
    """`--key` may name the path column also with `--file`."""
    path = _table(tmp_path / "t.csv", _THREE)
    samples = _samples(path, key="path", file=(("jpg", "path"),), meta="none")
    assert list(samples) == ["imgs/1", "imgs/2", "imgs/3"]


def test_the_root_may_contain_regex_characters(tmp_path: Path) -> None:
    """Paths below a root whose name contains regex characters are recognised."""
    folder = tmp_path / "a b+(c)\n[é]$"
    path = _table(folder / "t.csv", "")
    names = [f"{folder}/imgs/1.jpg", "imgs/2.png", f"{folder}//imgs/./3.jpg"]
    path.write_text("id,path\n" + "".join(f'{at},"{name}"\n' for at, name in enumerate(names)))
    assert [sorted(sample) for sample in _samples(path).values()] == [["jpg"], ["png"], ["jpg"]]
    assert [_entries(path)[1].path(row) for row in range(3)] == [b"imgs/1.jpg", b"imgs/2.png", b"imgs/3.jpg"]


def test_the_index_of_pandas_is_not_metadata(tmp_path: Path) -> None:
    """An unnamed pandas index is not metadata."""
    path = _table(tmp_path / "t.parquet", "")
    pd.DataFrame({"id": [1, 2], "path": ["imgs/1.jpg", "imgs/2.png"], "n": [3, 4]}, index=[5, 2]).to_parquet(path)
    assert "__index_level_0__" in pq.read_schema(path).names
    assert _samples(path)["2"]["json"] == b'{"n":4}'


def test_only_needed_columns_are_read(tmp_path: Path) -> None:
    """A column is only read when it is needed, and only its remaining rows are returned."""
    table = pa.table({"id": [1, 2, 3], "txt": ["a", "b", "c"], "n": [4, 5, 6]})
    pq.write_table(table, tmp_path / "t.parquet")
    manifest, entries = _entries(tmp_path / "t.parquet", rows=[0, 2], fields=(("txt", "txt"),), meta="none")
    assert entries.metadata is None
    assert manifest.column(None, "n").to_pylist() == [4, 6]
    assert manifest.table.to_pydict() == {"id": [1, 3], "txt": ["a", "c"], "n": [4, 6]}
    with pytest.raises(InvalidRequest, match="no column 'm'; expected one of id, txt, n"):
        manifest.column(None, "m")


def test_row_numbers_are_the_fallback_keys() -> None:
    """Bytes without keys and paths have row numbers as keys, also if rows are selected."""
    table = pa.table({"image": [{"bytes": b"a", "path": "x/1.png"}, {"bytes": b"b", "path": None}], "label": [1, 0]})
    assert _samples(table, meta="none") == {"000000000": {"png": b"a"}, "000000001": {"png": b"b"}}
    assert (
        "storing the bytes of image as the field png (change with bytes={'FIELD': 'COLUMN'})"
        in ManifestSource(table, CreateOptions()).notes
    )
    assert list(_samples(table, rows=[1])) == ["000000001"]


@pytest.mark.parametrize(
    ("start", "field"),
    [
        (b"\xff\xd8\xff\xe0", "jpg"),
        (b"\x89PNG\r\n\x1a\n", "png"),
        (b"RIFF\n\0\0\0WEBP", "webp"),
        (b"RIFF\n\0\0\0WAVE", "wav"),
        (b"fLaC", "flac"),
        (b"ID3", "mp3"),
    ],
)
def test_bytes_without_paths_are_named_by_their_content(start: bytes, field: str) -> None:
    """Images and audio of Hugging Face without a path get the extension of the first value's format."""
    table = pa.table({"media": [{"bytes": start + b"a", "path": None}, {"bytes": start + b"b", "path": None}]})
    assert _samples(table) == {"000000000": {field: start + b"a"}, "000000001": {field: start + b"b"}}
    assert "holds bytes of an unknown kind" in _error(pa.table({"media": [{"bytes": b"other", "path": None}]}))


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([10, -2], pa.int8()), ["10", "-2"]),
        (pa.array([2**64 - 1, 0], pa.uint64()), [str(2**64 - 1), "0"]),
        (pa.array([1.0, 2.0]), ["1", "2"]),
        (pa.array([" a ", "b/c.d"]), [" a ", "b/c.d"]),
        (pa.array(["x", "y"]).dictionary_encode(), ["x", "y"]),
        (pa.RunEndEncodedArray.from_arrays([1, 2], ["x", "y"]), ["x", "y"]),
    ],
)
def test_keys_are_text(column: Any, expected: list[str]) -> None:
    """Whole numbers are decimal keys, also if pandas turned them into floats; text stays as it is."""
    assert list(_samples(pa.table({"id": column, "t": ["x", "y"]}), fields=(("txt", "t"),))) == expected


def test_a_dry_run_needs_no_files(tmp_path: Path) -> None:
    """With `stat=False`, files are not examined: a column has the sizes."""
    path = _table(tmp_path / "t.csv", "id,path,size\n1,gone/1.jpg,10\n2,gone/2.png,0\n", {})
    _, entries = _entries(path, stat=False, size_column="size", root="/no/such/folder", meta="none")
    assert entries.rows.size.tolist() == [10, 0]
    assert entries.rows.mtime_ns.tolist() == entries.rows.changed_ns.tolist() == [0, 0]
    assert "their sizes are unknown; expected size_column='COLUMN'" in _error(path, stat=False)
    for value, message in (
        ("-1", "a negative size in row 2"),
        ("1.5", "not a whole number in row 2"),
        ("x", "no numbers"),
    ):
        path.write_text(f"id,path,size\n1,a.jpg,10\n2,b.jpg,{value}\n")
        assert message in _error(path, stat=False, size_column="size")


def test_text_of_any_length_can_be_streamed(tmp_path: Path) -> None:
    """`--bytes` also accepts text, which is read in batches and never all in memory."""
    table = pa.table({"key": ["a", "b"], "text": ["é", "long"]})
    pq.write_table(table, tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text("key,text\na,é\nb,long\n")
    for source in (table, tmp_path / "t.parquet", tmp_path / "t.csv"):
        samples = _samples(source, bytes=(("txt", "text"),))
        assert samples == {"a": {"txt": "é".encode()}, "b": {"txt": b"long"}}


def test_labels_keep_their_numbers(tmp_path: Path) -> None:
    """Classes are numbered in byte order, including those of samples that cannot be packed."""
    text = "id,path,label\n1,imgs/1.jpg,é\n2,imgs/gone.jpg,B\n3,imgs/2.png,a\n4,imgs/3.jpg,10%\n"
    path = _table(tmp_path / "t.csv", text)
    _, entries, skipped = _listed(path, fields=(("cls", "label"),), classes=("cls",))
    assert entries.values.classes == {"cls": ["10%25", "B", "a", "é"]}
    assert entries.values.inline["cls"].span(0, 3) == b"3\x002\x000\x00"
    assert [row.key for row in skipped] == ["2"]


@pytest.mark.parametrize(
    ("cells", "payload", "number"),
    [
        (["1", "2"], [b"1", b"2"], "int64"),
        (["1", "2.5"], [b"1.0", b"2.5"], "float"),
        (["007", "1"], [b"007", b"1"], None),
        (["007", "NA"], [b"007", b"NA"], None),
        (["-07", "1.5"], [b"-07", b"1.5"], None),
        (["True", "false"], [b"1", b"0"], "int64"),
        (["2024-01-01 10:00", "2024-01-01"], [b"2024-01-01T10:00:00", b"2024-01-01T00:00:00"], None),
        (["2024-01-01", "2023-01-01"], [b"2024-01-01", b"2023-01-01"], None),
    ],
)
def test_types_are_inferred_from_a_csv(
    cells: list[str], payload: list[bytes], number: str | None, tmp_path: Path
) -> None:
    """A column has the type of its values, as payload and as metadata: 007 is text, True is a boolean."""
    path = tmp_path / "t.csv"
    path.write_text("key,v,path\n" + "".join(f"{at},{cell},imgs/1.jpg\n" for at, cell in enumerate(cells)))
    write_tree(tmp_path, _FILES)
    _, entries = _entries(path, fields=(("v", "v"),))
    _, others = _entries(path, meta=("v",))
    assert metadata_of(entries)["v"] == metadata_of(others)["v"]
    assert entries.values.inline["v"].span(0, 2).split(b"\0")[:-1] == payload
    assert entries.values.numbers == ({"v": number} if number else {})


_BAD_ROWS: list[tuple[str, dict[str, Any], str]] = [
    ("id,path\n1,a.jpg\n", {"key": "ID"}, "key: no column 'ID'; expected one of id, path. Did you mean 'id'?"),
    ("id,path\n1,a.jpg\n", {"path": "paht"}, "no column 'paht'; expected one of id, path. Did you mean 'path'?"),
    ("id,path\n1,a.jpg\n", {"meta": ("zzz",)}, "meta: no column 'zzz'; expected one of id, path"),
    ("id,path\n", {}, "no rows; expected a row per sample"),
    (",path\n1,a.jpg\n", {}, "column 1 without a name"),
    ("id,path,id\n1,a.jpg,2\n", {}, "several columns with the same name: 'id'"),
    ("name,where\n1,a.jpg\n", {}, "no column with a usual name for paths, among name, where; expected one named"),
    ("URL,v,Text\nx,1,a\n", {},
     "If these columns contain the fields, add url={'jpg': 'URL'} field={'txt': 'Text'}. Otherwise, name others:"),
    ("id,path\n,a.jpg\n/b,b.jpg\nc/../d,c.jpg\n4,d.jpg\n", {},
     "column 'id': 3 values that cannot be keys, such as '', '/b', 'c/../d', in rows 1, 2, 3"),
    ('id,path\n"a\nb",a.jpg\n', {}, r"column 'id': 1 value that cannot be keys, such as 'a\x0ab', in row 1"),
    ("id,path\n1,a.jpg\n2,b.jpg\n1,c.jpg\n2,d.jpg\n1,e.jpg\n", {},
     "2 keys more than once: '1' (rows 1, 3, 5), '2' (rows 2, 4); expected a unique key for each row"),
    ("path\na.jpg\na.png\na.jpg\n", {}, "1 key more than once: 'a' (rows 1, 3)"),
    ("id,path,v\n1,a.jpg,x\n1,a.png,y\n", {},
     "column 'v' differs from the first row with the same key, in row 2; expected one value for all files"),
    ("id,path\n1,a.jpg\n2,\n3,\n", {}, "column 'path': an empty path in rows 2, 3"),
    ("id,path\n1,a.jpg\n2,b\n3,c.\n", {}, "column 'path': a name without an extension, such as 'b', in rows 2, 3"),
    ("id,path\n1,a.jpg\n2,https://x/y.jpg\n", {}, "column 'path': a URL, such as 'https://x/y.jpg', in row 2"),
    ("id,path\n1,../a.jpg\n2,b/../../c.jpg\n3,/etc/d.jpg\n4,b/../e.jpg\n", {},
     "column 'path': a path that leaves the root, such as '../a.jpg', in rows 1, 2, 3; "),
    ("id,path\n1,a.jpg\n2,b.json\n3,c.jpg\n", {"meta": ("id",)},
     "column 'path': a file has the extension 'json', which is also the field of another column, in row 2"),
    ("id,path,v\n1,a.jpg,x\n", {"fields": (("json", "v"),), "meta": ("id",)},
     "several columns for the field 'json'. The metadata is the field json: rename the other field, or"),
    ("id,path,v\n1,a.jpg,x\n", {"file": (("a/b", "path"),)}, "field 'a/b': not a valid field name"),
    ("id,path,v\n1,a.jpg,x\n", {"classes": ("cls",)}, "classes: no field 'cls'. Choose its column with field={'cls': "),
    ("id,path,__v\n1,a.jpg,x\n", {}, "column '__v': names that start with two underscores are reserved for the sidecar"),  # noqa: E501
    ("id,path,v\n1,a.jpg,1\n2,b.jpg,\n", {"fields": (("cls", "v"),)}, "column 'v': no value (null or NaN) in row 2"),
    ("id,path,v\n1,a.jpg,1\n2,b.jpg,-inf\n3,c.jpg,inf\n", {}, "column 'v': an infinite number in rows 2, 3"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "options", "message"), _BAD_ROWS)
def test_invalid_manifests_are_refused(text: str, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Each kind of problem is one error that lists all rows; row 1 is the first after the header."""
    path = _table(tmp_path / "t.csv", text, {})
    assert message in _error(path, **options)


_BAD_TABLES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"id": [1, 2], "path": ["a.jpg", None]}, {}, "column 'path': no path (null or NaN) in row 2"),
    ({"id": [1.0, float("nan")], "path": ["a.jpg", "b.jpg"]}, {}, "column 'id': no key (null or NaN) in row 2"),
    ({"id": [1.0, 1.5], "path": ["a.jpg", "b.jpg"]}, {}, "column 'id': a key is not a whole number in row 2"),
    ({"id": [True], "path": ["a.jpg"]}, {"key": "id"}, "column 'id' (key) holds bool; expected text or whole numbers"),
    ({"id": [1], "path": [3]}, {"path": "path"}, "column 'path' (path) holds int64; expected text"),
    ({"id": [1], "path": [b"a"]}, {"path": "path"},
     "column 'path' (path) holds binary; expected text. Pack a column of bytes with bytes"),
    ({"id": [1], "path": ["a.jpg"], "b": [b"x"]}, {"meta": "b"},
     ("column 'b' (metadata) holds binary; expected values that JSON can represent. "
     "Make it a field (bytes={'jpg': 'b'})")),
    ({"id": [1], "path": ["a.jpg"], "b": [{}]}, {}, "column 'b' (metadata) holds struct<>; expected objects"),
    ({"id": [1], "v": [2]}, {"bytes": (("jpg", "v"),)}, "column 'v' (bytes) holds int64; expected bytes or text"),
    ({"id": [1], "v": [b"x"]}, {"fields": (("jpg", "v"),)}, "column 'v' (field jpg) holds binary; expected"),
    ({"id": [1, 2], "v": ["a", "b\0c"]}, {"fields": (("txt", "v"),)}, "column 'v': a NUL in the text in row 2"),
    ({"id": [1, 2], "v": pa.array([1, 2**63], pa.uint64())}, {"fields": (("n", "v"),)}, "a number over 2^63 in row 2"),
    ({"id": [1], "v": [["a"]]}, {"fields": (("cls", "v"),), "classes": ("cls",)}, "column 'v' (labels) holds list<"),
    ({"id": [1, 2], "path": ["a.jpg"] * 2, "v": [[1.0], [2.0, float("inf")]]}, {}, "'v': an infinite number in row 2"),
    ({"id": [1, 2], "v": [[1.0], [2.0, float("inf")]]}, {"fields": (("v.json", "v"),), "meta": "none"},
     "'v': an infinite number in row 2"),
    ({"id": [1, 2, 3], "jpg": [b"x", None, None]}, {}, "column 'jpg': no bytes in rows 2, 3; expected bytes in each"),
    ({"id": [1, 2], "image": [{"bytes": b"x", "path": "a.jpg"}, {"bytes": None, "path": "b.jpg"}]}, {},
     "column 'image': no bytes in row 2; expected bytes in each row (paths in the same column are ignored)"),
    ({"id": [1], "jpg": [b"x"], "png": [b"x"]}, {}, "2 columns of bytes: jpg, png. Choose one, and its field"),
    ({"id": [1], "blob": [b"x"]}, {}, "column 'blob' holds bytes of an unknown kind"),
]  # fmt: skip


@pytest.mark.parametrize(("columns", "options", "message"), _BAD_TABLES)
def test_invalid_columns_are_refused(columns: dict[str, Any], options: dict[str, Any], message: str) -> None:
    """Wrong types, nulls, and values that cannot be written are reported with their rows."""
    assert message in _error(pa.table(columns), **options)


def _images(*paths: str | None) -> list[dict[str, Any]]:
    return [{"bytes": b"%d" % at, "path": path} for at, path in enumerate(paths)]


@pytest.mark.parametrize(
    ("paths", "keys"),
    [
        (("b/1.png", "a/2.JPG", "x.y/3"), ["b/1", "a/2", "x.y/3"]),
        (("1.png", "2.v1.png", ".png"), ["1", "2.v1", ".png"]),
        (("1.png", "1.jpg", "3.png"), None),
        (("1.png", None, "3.png"), None),
        (("1.png", "../2.png", "3.png"), None),
        (("1.png", "", "3.png"), None),
    ],
)
@pytest.mark.parametrize("kind", ["memory", "parquet", "arrow"])
def test_paths_next_to_bytes_are_keys(
    kind: str, paths: tuple[str | None, ...], keys: list[str] | None, tmp_path: Path
) -> None:
    """If each row has a valid path of its own, it is the key without its extension, for any selection of rows."""
    table = pa.table({"image": _images(*paths), "n": [1, 2, 3]})
    source: Any = table
    if kind == "parquet":
        source = tmp_path / "t.parquet"
        pq.write_table(table, source, row_group_size=2)
    elif kind == "arrow":
        source = tmp_path / "t.arrow"
        with pa.ipc.new_stream(source, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    expected = keys or [f"{row:09}" for row in range(3)]
    options: dict[str, Any] = {"bytes": (("png", "image"),), "meta": "none"}
    assert _samples(source, **options) == {key: {"png": b"%d" % at} for at, key in enumerate(expected)}
    assert list(_samples(source, rows=[1, 2], **options)) == expected[1:]
    assert list(_samples(source, key="n", **options)) == ["1", "2", "3"]


def _labelled(labels: list[int | None], names: Any = None) -> Any:
    features = {"label": {"_type": "ClassLabel", "names": names or ["cat", "100% dog"]}, "t": {"_type": "Value"}}
    description = json.dumps({"info": {"features": features}})
    return pa.table({"id": range(len(labels)), "label": pa.array(labels, pa.int64())}).replace_schema_metadata(
        {"huggingface": description}
    )


def test_hugging_face_class_names_are_used(tmp_path: Path) -> None:
    """The numbers of a ClassLabel stay, and its names become the classes; another list renumbers them."""
    table = _labelled([1, 0, 1])
    pq.write_table(table, tmp_path / "t.parquet")
    with pa.ipc.new_file(tmp_path / "t.arrow", table.schema) as writer:
        writer.write_table(table)
    for source in (table, tmp_path / "t.parquet", tmp_path / "t.arrow"):
        for classes in ((), ("cls",)):
            _, entries = _entries(source, fields=(("cls", "label"),), classes=classes, meta="none")
            assert entries.values.classes == {"cls": ["cat", "100%25%20dog"]}
            assert entries.values.inline["cls"].span(0, 3) == b"1\x000\x001\0"
    options: dict[str, Any] = {"fields": (("cls", "label"),), "classes": ("cls",), "meta": "none"}
    _, entries = _entries(table, classes_from=["cow", "100%25%20dog", "cat"], **options)
    assert entries.values.inline["cls"].span(0, 3) == b"1\x002\x001\0"
    for wrong in (-1, 2):
        assert "column 'label': a number without a class in row 2; expected 0 to 1" in _error(
            _labelled([0, wrong]), fields=(("cls", "label"),)
        )
    for names in ("x", [1, 2], ["a", "a"], ["\ud800", "b"]):
        _, entries = _entries(_labelled([5], names), fields=(("cls", "label"),))
        assert not entries.values.classes


def test_unused_columns_of_bytes_are_excluded(tmp_path: Path) -> None:
    """Columns of bytes, also nested, are excluded from metadata, with a note; a requested one is a field."""
    write_tree(tmp_path, _FILES)
    bytes_of = {"thumb": [b"t", b"u"], "crops": [[{"bytes": b"c", "path": None}], []], "mask": [b"m", b"n"]}
    table = pa.table({"path": ["imgs/1.jpg", "imgs/3.jpg"], "n": [1, 2], **bytes_of})
    samples = _samples(table, root=str(tmp_path), path="path", bytes=(("png", "mask"),))
    assert samples["imgs/1"] == {"jpg": b"one", "json": b'{"n":1}', "png": b"m"}
    manifest, entries = _entries(table, root=str(tmp_path))
    assert (
        manifest.notes[-1] == "columns of bytes excluded: thumb, crops, mask (add one with bytes={'FIELD': 'COLUMN'})"
    )
    assert metadata_of(entries).column_names == ["path", "n"]
    for unclear in ({"blob": bytes_of["thumb"]}, bytes_of):
        texts = _samples(pa.table({"id": [7, 8], "n": [1, 2], **unclear}), fields=(("txt", "n"),), meta="none")
        assert texts == {"7": {"txt": b"1"}, "8": {"txt": b"2"}}


def test_a_table_in_memory_names_files_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absolute paths in a table in memory are relative to their common folder, or to `root`."""
    write_tree(tmp_path / "data", _FILES)
    write_tree(tmp_path / "here", {"own.png": b"own"})
    monkeypatch.chdir(tmp_path / "here")
    images, masks = [f"{tmp_path}/data/imgs/{name}" for name in ("1.jpg", "3.jpg")], [f"{tmp_path}/data/masks/1.png"]
    frame = pd.DataFrame({"path": images, "mask": masks * 2})
    options: dict[str, Any] = {"path": "path", "file": (("png", "mask"),)}
    assert _samples(frame, **options) == {
        "imgs/1": {"jpg": b"one", "png": b"m"}, "imgs/3": {"jpg": b"the third", "png": b"m"},
    }  # fmt: skip
    manifest, entries = _entries(frame, **options)
    assert manifest.notes[-1].startswith(f"paths are relative to {tmp_path}/data, their common folder")
    assert metadata_of(entries)["mask"].to_pylist() == ["masks/1.png"] * 2
    assert _entries(pd.DataFrame({"path": images, "mask": ["own.png"] * 2}), **options)[1].key(0) == "data/imgs/1"
    assert "a path that leaves the root" in _error(frame, root=str(tmp_path / "data" / "imgs"), **options)
    frame.to_csv(tmp_path / "here" / "t.csv", index=False)
    assert "a path that leaves the root" in _error(tmp_path / "here" / "t.csv", **options)


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    """Text in another encoding is reported with its rows."""
    path = tmp_path / "t.csv"
    path.write_bytes("id,path,text\n1,a.jpg,x\n2,b.jpg,é\n3,c.jpg,ü\n".encode("latin-1"))
    expected = "column 'text': invalid UTF-8 in rows 2, 3; expected UTF-8. If Excel"
    assert expected in _error(path)
    assert expected in _error(path, path="path", meta="none")


def test_rows_keep_their_numbers(tmp_path: Path) -> None:
    """Messages about rows that a query selected use their numbers in the table."""
    path = _table(tmp_path / "t.csv", "id,path\n1,a.jpg\n2,b.jpg\n2,\n2,c.jpg\n5,imgs/1.jpg\n")
    assert "an empty path in row 3" in _error(path, rows=[1, 2, 4])
    assert "'2' (rows 2, 4)" in _error(path, rows=[1, 3, 4])
    assert "no remaining row" in _error(path, rows=[])
    manifest, _, skipped = _listed(path, rows=[3, 4])
    assert [row.message for row in skipped] == ["no such file or directory, row 4"]
    assert manifest.column(None, "path").to_pylist() == ["imgs/1.jpg"]
    assert manifest.table.to_pylist() == [{"id": "5", "path": "imgs/1.jpg"}]


def test_samples_with_failed_files_are_skipped(tmp_path: Path) -> None:
    """A sample with a missing or invalid file is skipped whole, once, with its reason."""
    rows = ["1,imgs/1.jpg,gone", "2,gone.jpg,gone", "3,imgs/3.jpg,masks/1.png", "4,imgs/1.jpg,imgs",
            "5,imgs/1.jpg/x.jpg,imgs", "6,pipe.jpg,masks/1.png"]  # fmt: skip
    os.mkfifo(tmp_path / "pipe.jpg")
    path = _table(tmp_path / "t.csv", "\n".join(["id,path,mask", *rows]))
    _, entries, skipped = _listed(path, path="path", file=(("png", "mask"),))
    assert entries.keys.data == b"3\0"
    assert metadata_of(entries).num_rows == 1
    assert [(row.key, row.path, row.code) for row in skipped] == [
        ("1", "gone", "vanished"), ("2", "gone.jpg", "vanished"), ("4", "imgs", "special-file"),
        ("5", "imgs/1.jpg/x.jpg", "vanished"), ("6", "pipe.jpg", "special-file"),
    ]  # fmt: skip
    assert [entries.path(row) for row in range(2)] == [b"imgs/3.jpg", b"masks/1.png"]
    path.write_text("id,path\n1,x/1.jpg\n2,x/2.jpg\n")
    assert (
        f"every row names a missing file, such as 'x/1.jpg'; expected paths relative to {tmp_path}/. "
        "Choose another folder with root" in _error(path)
    )


def _linked(tmp_path: Path) -> Path:
    root = write_tree(tmp_path / "root", _FILES)
    write_tree(tmp_path / "outside", {"o.jpg": b"outside"})
    (root / "in.jpg").symlink_to("imgs/1.jpg")
    (root / "folder").symlink_to("imgs")
    write_tree(root / "imgs" / "deep", {"4.jpg": b"deep"})
    (root / "imgs" / "up").symlink_to("..")
    (root / "out.jpg").symlink_to("../outside/o.jpg")
    (root / "outer").symlink_to("../outside")
    (root / "dangling.jpg").symlink_to("nothing")
    (root / "loop.jpg").symlink_to("loop.jpg")
    names = ["in.jpg", "folder/1.jpg", "imgs/3.jpg", "out.jpg", "outer/o.jpg", "dangling.jpg", "loop.jpg",
             "folder/../../outside/o.jpg", "folder/../in.jpg", "folder/deep/4.jpg",
             "imgs/up/../outside/o.jpg"]  # fmt: skip
    (root / "t.csv").write_text("id,path\n" + "".join(f"{at},{name}\n" for at, name in enumerate(names)))
    return root / "t.csv"


def test_links_stay_inside(tmp_path: Path) -> None:
    """Links are followed within the root; links that leave it, and dangling links, are skipped."""
    _, entries, skipped = _listed(_linked(tmp_path), rows=[0, 1, 2, 3, 4, 5, 6, 8, 9, 10])
    assert entries.keys.data == b"0\x001\x002\x008\x009\x00"
    assert entries.rows.kind.tolist() == [LINK, FILE, FILE, LINK, FILE]
    assert entries.rows.size.tolist() == [3, 3, 9, 3, 4]
    always = [int(when) == ALWAYS_CHANGED for when in entries.rows.changed_ns]
    assert always == [True, True, False, True, True]  # the target of a link can change without a trace in the path
    codes = {row.key: row.code for row in skipped}
    assert codes.pop("6") in {"link-loop", "dangling-link"}
    assert codes == {"3": "link-outside", "4": "link-outside", "5": "dangling-link", "10": "link-outside"}


def test_allow_outside_follows_everything(tmp_path: Path) -> None:
    """`--allow-outside` follows every link and path; absolute paths outside become relative to the root, with `..`."""
    path = _linked(tmp_path)
    _, entries = _entries(path, rows=[0, 3, 4, 7], allow_outside=True)
    assert entries.rows.size.tolist() == [3, 7, 7, 7]
    assert entries.root == os.fsencode(path.parent) + b"/"
    away = tmp_path / "outside" / "o.jpg"
    path.write_text(f"id,path\n1,imgs/1.jpg\n2,{away}\n3,../outside/o.jpg\n4,{path.parent}/imgs/3.jpg\n")
    _, entries = _entries(path, allow_outside=True)
    assert entries.root == os.fsencode(path.parent) + b"/"
    sizes = [os.path.getsize(entries.root + entries.path(row)) for row in range(4)]
    assert sizes == entries.rows.size.tolist() == [3, 7, 7, 9]
    inside, outside = ["imgs/1.jpg", "imgs/3.jpg"], ["../outside/o.jpg"] * 2
    assert metadata_of(entries)["path"].to_pylist() == [inside[0], *outside, inside[1]]


def test_change_times_include_folders(tmp_path: Path) -> None:
    """The change time includes the folders of the path, which resuming needs."""
    path = _table(tmp_path / "t.csv", "id,path\n1,a/b/1.jpg\n", {"a/b/1.jpg": b"x"})
    _, before = _entries(path)
    assert before.rows.mtime_ns.tolist() == [(tmp_path / "a" / "b" / "1.jpg").stat().st_mtime_ns]
    for folder in (tmp_path / "a" / "b", tmp_path / "a", tmp_path):
        (folder / "new").write_bytes(b"")
        _, after = _entries(path)
        assert after.rows.changed_ns.tolist() == [folder.stat().st_ctime_ns]
        assert after.rows.changed_ns[0] >= before.rows.changed_ns[0]


def test_changed_bytes_fail_the_run(tmp_path: Path) -> None:
    """Bytes that change between measuring and writing fail the run."""
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"id": [1, 2], "jpg": [b"x", b"y"]}), path)
    manifest, _ = _entries(path)
    pq.write_table(pa.table({"id": [1, 2], "jpg": [b"x", b"yy"]}), path)
    with pytest.raises(SampleFailed, match="changed while it was"):
        manifest.write_payloads(Spool())


@pytest.mark.parametrize(("now", "written"), [([1] * 300 + [2] + [1] * 299, 300), ([1] * 601, 600), ([1] * 599, 599)])
def test_bytes_of_another_length_fail_the_run(tmp_path: Path, now: list[int], written: int) -> None:
    """Other sizes, or more or fewer rows than planned, stop the writing."""
    pq.write_table(pa.table({"id": range(600), "jpg": [b"x"] * 600}), path := tmp_path / "t.parquet")
    manifest, _ = _entries(path)
    manifest.write_payloads(whole := Spool())
    assert len(whole.data) == 600
    pq.write_table(pa.table({"id": range(len(now)), "jpg": [b"x" * size for size in now]}), path)
    with pytest.raises(SampleFailed, match="changed while it was"):
        manifest.write_payloads(part := Spool())
    assert len(part.data) <= written


def test_only_selected_bytes_are_written(tmp_path: Path) -> None:
    """Only the bytes of remaining rows are written, in order, for any number of batches and columns."""
    table = pa.table(
        {"id": range(700), "a": [b"%d" % at for at in range(700)], "b": [b"x" * (at % 5) for at in range(700)]}
    )
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=300)
    rows = [0, 1, 255, 256, 299, 300, 699]
    samples = _samples(tmp_path / "t.parquet", bytes=(("b", "b"), ("a", "a")), rows=rows)
    assert samples == {str(at): {"a": b"%d" % at, "b": b"x" * (at % 5)} for at in rows}


_PART = st.text("a.b/+ \né", max_size=6)


@given(st.lists(_PART, min_size=1, max_size=12), st.sampled_from(["first", "last"]), st.integers(1, 4))
@example(["a.jpg", "b.jpg", "x/.a", ".a.b", "a..", "..a", "a.b.c", "é/a.b"], "first", 3)
def test_endings_follow_the_rule_of_folders(paths: list[str], dots: Any, chunk: int) -> None:
    """A path gives the same key and field as a file of that name in a folder, for any chunk size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_paths, "CHUNK_ROWS", chunk)
        endings = manifest_paths.PathEndings("t", pa.array(paths), dots)
        stems = [stem for part in endings.stems() for stem in part.to_pylist()]
    for path, code, stem in zip(paths, endings.codes.tolist(), stems, strict=True):
        folder, slash, name = path.rpartition("/")
        split = split_name(name.encode(), dots)
        assert endings.names[code] == (split[1].decode() if split else "")
        assert stem == (folder + slash + split[0].decode() if split else path)


@given(
    st.lists(st.binary(min_size=0, max_size=3).map(lambda key: key.replace(b"\0", b"")), max_size=40), st.integers(1, 5)
)
def test_repeated_keys_are_found(names: list[bytes], chunk: int) -> None:
    """Exactly the repeated keys are reported, with all their rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shardtool.values.CHUNK_ROWS", chunk)
        repeated = keys.find_repeated(PackedStrings.of(names))
    expected: dict[bytes, list[int]] = {}
    for at, name in enumerate(names):
        expected.setdefault(name, []).append(at)
    assert repeated == {name: at for name, at in expected.items() if len(at) > 1}


def test_hash_collisions_are_not_duplicates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that share a hash are not confused."""
    monkeypatch.setattr(keys, "hash_keys", lambda names: np.zeros(len(names), np.uint64))
    assert keys.find_repeated(PackedStrings.of([b"a", b"b", b"c", b"b"])) == {b"b": [1, 3]}


@given(st.lists(st.text("a./\x01\x7f é", max_size=5), min_size=1, max_size=8))
@example(["", "a", ".", "a/..", "a//b", "/a", "a/", "...", ".a", "a\x85"])
def test_invalid_keys_are_refused(names: list[str]) -> None:
    """A key has no control characters, and no part that is empty, `.` or `..`."""
    gathered, bad = keys.gather_keys([pa.array(names)])
    sound = [
        not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in name)
        and not {"", ".", ".."} & set(name.split("/"))
        for name in names
    ]
    assert bad.tolist() == [at for at, right in enumerate(sound) if not right]
    if all(sound):
        assert gathered.data == b"".join(name.encode() + b"\0" for name in names)


_NAME = st.sampled_from(["jpg", "a.jpg", "json", "png", "z", "é", "B"])


@given(st.sets(_NAME, max_size=3), st.lists(_NAME, unique=True, min_size=1, max_size=4), st.data())
def test_fields_are_ordered(several: set[str], named: list[str], data: st.DataObject) -> None:
    """The fields of each sample are in byte order, for any extension of its path, with their own values."""
    endings, known = sorted(several - set(named)), named
    count = data.draw(st.integers(1, 6))
    codes = np.array(
        data.draw(st.lists(st.integers(0, max(0, len(endings) - 1)), min_size=count, max_size=count)), np.uint16
    )
    layout = arrange_fields(cast("Any", SimpleNamespace(names=endings, codes=codes)) if endings else None, known)
    width = len(known) + bool(endings)
    columns = [pa.array([f"{sample * 10}" for sample in range(count)])] if endings else []
    parts = [FieldColumn(0, np.arange(count) * 10 + part, 0, 0) for part in range(width)]
    rows = layout.rows(parts, columns, count)
    code, spread = rows.code.reshape(count, width), rows.size.reshape(count, width)
    paths = cast("ArrowStrings", rows.paths)
    texts = paths.span(0, count * width).split(b"\0")[:-1]
    for sample in range(count):
        names = [*([endings[codes[sample]]] if endings else []), *known]
        order = sorted(range(width), key=lambda part: to_bytes(names[part]))
        assert [layout.fields[at] for at in code[sample]] == [names[part] for part in order]
        assert spread[sample].tolist() == [sample * 10 + part for part in order]
        expected = [b"%d" % (sample * 10) if endings and part == 0 else b"" for part in order]
        assert texts[sample * width : (sample + 1) * width] == expected
    which = np.array(data.draw(st.lists(st.integers(0, count * width - 1))), np.int64)
    assert paths.gather(which) == b"".join(texts[row] + b"\0" for row in which.tolist())
    assert paths.take(which).span(0, len(which)) == paths.gather(which)
    assert paths.span(0, len(paths)).count(b"\0") == count * width


def test_files_need_no_pandas(tmp_path: Path) -> None:
    """A manifest in a file is planned without pandas, whose import takes as long as packing thousands of files."""
    pq.write_table(
        pa.table({"id": [1, 2], "path": ["imgs/1.jpg", "imgs/2.png"], "x": [0.5, None], "n": [1, 2]}),
        tmp_path / "t.parquet",
    )
    path = _table(tmp_path / "t.csv", _THREE)
    code = (
        "import sys\n"
        "from shardtool import CreateOptions\n"
        "from shardtool.request.observer import Observer\n"
        "from shardtool.source.manifest.source import ManifestSource\n"
        "class Pool:\n"
        "    def map(self, function, tasks): return enumerate(map(function, tasks))\n"
        "for source in sys.argv[1:]:\n"
        "    m = ManifestSource(source, CreateOptions()); e = m.list_samples(Pool(), Observer()).entries\n"
        "    e.rows.paths.span(0, 2), e.values.inline['json'].span(0, 2), m.column(None, 'n')\n"
        "print('pandas' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(path), str(tmp_path / "t.parquet")]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("meta", ["all", "none", ("path",)])
@pytest.mark.parametrize("outside", [False, True])
def test_outputs_do_not_contain_the_root(meta: Any, *, outside: bool, tmp_path: Path) -> None:
    """The same manifest with another absolute prefix gives the same paths and columns, none of them absolute."""
    results = []
    for name in ("one", "another/place"):
        root = tmp_path / name / "r"
        write_tree(root, {"imgs/1.jpg": b"one"})
        write_tree(root.parent / "away", {"2.jpg": b"two"})
        second = root.parent / "away" / "2.jpg" if outside else root / "gone.jpg"
        (root / "t.csv").write_text(f"key,path\na,{root}/imgs/1.jpg\nb,{second}\n")
        _, entries, skipped = _listed(str(root / "t.csv"), meta=meta, allow_outside=outside)
        columns = None if entries.metadata is None else metadata_of(entries).to_pydict()
        assert columns == (None if meta == "none" else {"path": ["imgs/1.jpg", *["../away/2.jpg"][: int(outside)]]})
        paths = [entries.path(row) for row in range(len(entries.rows.code))]
        results.append((columns, paths, [row.path for row in skipped]))
    assert results[0] == results[1]
    assert results[0][2] == ([] if outside else ["gone.jpg"])


def test_deep_paths_are_missing_files(tmp_path: Path) -> None:
    """A path with more parts than Python's recursion limit is an ordinary missing file."""
    path = _table(tmp_path / "t.csv", "path\nimgs/1.jpg\n" + "d/" * 1900 + "x.jpg\n")
    _, _, skipped = _listed(path)
    assert [row.code for row in skipped] == ["vanished"]


def test_the_number_of_columns_is_limited(tmp_path: Path) -> None:
    """A table has at most 10,000 columns; these are read in linear time."""
    path = _table(tmp_path / "t.csv", "")
    for count, message in (
        (3000, ""),
        (10_001, "10,001 columns; expected at most 10,000"),
        (60_000, "columns; expected at most 10,000"),
    ):
        header = ",".join(["path", *(f"c{at}" for at in range(count - 1))])
        path.write_text(f"{header}\nimgs/1.jpg{',1' * (count - 1)}\n")
        assert message in _error(path) if message else len(metadata_of(_entries(path)[1]).column_names) == count
