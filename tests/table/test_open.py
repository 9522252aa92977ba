from __future__ import annotations

import gzip
import io
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from shardtool import CreateOptions, InvalidRequest, SampleFailed
from shardtool.request.option_values import DelimitedFormat
from shardtool.source.manifest.source import ManifestSource
from shardtool.table import base
from shardtool.table.base import parse_numbers
from shardtool.table.detect import is_table
from shardtool.table.open import open_table
from tests.helpers import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Callable

_ROWS = [
    {"id": "007", "path": "a/1.jpg", "n": 1, "x": 1.5, "text": 'say "a, b"\nNA'},
    {"id": "008", "path": "a/é.jpg", "n": None, "x": None, "text": "NA"},
    {"id": "009", "path": "b/3.jpg", "n": 3, "x": 2.0, "text": ""},
]
_SCHEMA = pa.schema(
    [("id", pa.string()), ("path", pa.string()), ("n", pa.int64()), ("x", pa.float64()), ("text", pa.string())]
)
_TABLE = pa.Table.from_pylist(_ROWS, _SCHEMA)
_BYTES = pa.table({"id": [1, 2, 3], "jpg": [b"one", b"", b"three"]})


class Stream:
    """A data frame of any library, which only exports an Arrow C stream."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def _csv(table: Any) -> bytes:
    return bytes(table.to_pandas(integer_object_nulls=True).to_csv(index=False).encode())


def _lines(table: Any) -> bytes:
    return bytes(table.to_pandas(integer_object_nulls=True).to_json(orient="records", lines=True).encode())


def _write(path: Path, table: Any) -> Path:
    """Write a table in the format that the path's ending names."""
    writers: dict[str, Callable[[], object]] = {
        "t.csv": lambda: path.write_bytes(_csv(table)),
        "t.csv.gz": lambda: path.write_bytes(gzip.compress(_csv(table))),
        "t.tsv": lambda: path.write_bytes(
            table.to_pandas(integer_object_nulls=True).to_csv(index=False, sep="\t").encode()
        ),
        "t.jsonl": lambda: path.write_bytes(_lines(table)),
        "t.ndjson.gz": lambda: path.write_bytes(gzip.compress(_lines(table))),
        "t.parquet": lambda: pq.write_table(table, path, row_group_size=2),
        "t.feather": lambda: pyarrow.feather.write_feather(table, path),
        "t.arrow": lambda: _write_stream(path, table),
    }
    writers[path.name]()
    return path


def _write_stream(path: Path, table: Any) -> None:
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


def _read(source: Any, *, text: tuple[str, ...] = ("id", "path")) -> Any:
    table = open_table(source, ())
    return table.read(table.schema.names, text)


def _error(source: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        _read(source)
    return str(caught.value)


@pytest.mark.parametrize(
    "name", ["t.csv", "t.csv.gz", "t.tsv", "t.jsonl", "t.ndjson.gz", "t.parquet", "t.feather", "t.arrow"]
)
def test_one_table_in_every_format(name: str, tmp_path: Path) -> None:
    """A table reads the same from each format: keys stay text; `NA` is text in text columns and null in others."""
    path = _write(tmp_path / name, _TABLE)
    assert is_table(path)
    assert is_table(str(path))
    assert _read(path).to_pylist() == _ROWS


_LJSPEECH = """LJ1|"Yes," he said, No. 2|007
LJ2|in being comparatively "modern."|
LJ3|"open at the end|1
"""


@pytest.mark.parametrize(
    "form", [DelimitedFormat("|", header=False), DelimitedFormat("|"), DelimitedFormat(";", header=False)]
)
def test_other_delimiters(form: DelimitedFormat, tmp_path: Path) -> None:
    """Columns without names are numbered from 1; with bars, quotation marks are plain text."""
    rows, quoted = _LJSPEECH, form.delimiter != "|"
    if quoted:
        rows = 'LJ1;"""Yes,"" he said; No. 2";007\n"LJ2";in being comparatively "modern.";\nLJ3;"a\nb";1\n'
    (tmp_path / "t.txt").write_text(("" if not form.header else "1|2|3\n") + rows)
    read = open_table(tmp_path / "t.txt", (), form)
    result = read.read(read.schema.names, ("1",)).to_pydict()
    assert result["1"] == ["LJ1", "LJ2", "LJ3"]
    assert result["2"] == (
        ['"Yes," he said; No. 2', 'in being comparatively "modern."', "a\nb"]
        if quoted
        else ['"Yes," he said, No. 2', 'in being comparatively "modern."', '"open at the end']
    )
    assert result["3"] == ["007", "", "1"]


def test_row_numbers_without_a_header(tmp_path: Path) -> None:
    """Without a header, errors count rows from the first line."""
    path = tmp_path / "t.csv"
    path.write_text("a;b\nc;d;e\n")
    with pytest.raises(InvalidRequest, match="1 row with more or fewer values than row 1: row 2 has 3; expected 2"):
        open_table(path, (), DelimitedFormat(";", header=False)).read(["1"], ())
    path.write_text("one\ntwo, or three\n")
    assert open_table(path, (), DelimitedFormat("|", header=False)).read(["1"], ()).to_pydict() == {
        "1": ["one", "two, or three"]
    }


@pytest.mark.parametrize("source", ["t.parquet", "t.jsonl", _TABLE])
def test_delimiter_is_refused_for_other_formats(source: Any, tmp_path: Path) -> None:
    """A text format is only allowed for delimited text."""
    source = _write(tmp_path / source, _TABLE) if isinstance(source, str) else source
    for form, name in ((DelimitedFormat("|"), "delimiter"), (DelimitedFormat(header=False), "no_header")):
        with pytest.raises(InvalidRequest, match=f"used with {name}; expected CSV"):
            open_table(source, (), form)


@pytest.mark.parametrize(("given", "kept"), [("tab", "\t"), ("\\t", "\t"), ("\t", "\t"), ("|", "|"), (" ", " ")])
def test_delimiter_spellings(given: str, kept: str) -> None:
    """A tab has a name, and equivalent spellings are recorded in the same way."""
    assert CreateOptions(delimiter=given).delimited_format == DelimitedFormat(kept)
    assert CreateOptions(delimiter=given, no_header=True).recorded() == {"delimiter": kept, "no_header": True}


@pytest.mark.parametrize("given", ["", ";;", '"', "\n", "§"])
def test_invalid_delimiters_are_refused(given: str) -> None:
    """A delimiter must be one ASCII character that can separate values."""
    with pytest.raises(InvalidRequest, match="expected one character, such as"):
        CreateOptions(delimiter=given)


@pytest.mark.parametrize(
    "source",
    [
        _TABLE,
        _TABLE.to_batches()[0],
        Stream(_TABLE),
        _TABLE.to_pandas(types_mapper=pd.ArrowDtype),
        _TABLE.to_pandas(integer_object_nulls=True),
        _TABLE.to_pandas(integer_object_nulls=True).set_index("id"),
        _TABLE.to_pandas(integer_object_nulls=True).sample(frac=1, random_state=1).sort_values("id"),
    ],
    ids=["table", "batch", "stream", "arrow-frame", "frame", "named-index", "nameless-index"],
)
def test_tables_in_memory(source: Any) -> None:
    """A table in memory is read unchanged; a named index is a column, an unnamed one is dropped."""
    result = _read(source)
    assert sorted(result.column_names) == sorted(_SCHEMA.names)
    assert result.select(_SCHEMA.names).to_pylist() == _ROWS


def test_a_batch_stream_is_a_table() -> None:
    """A stream of batches is a table, and is read once."""
    reader = _TABLE.to_reader()
    assert _read(reader).to_pylist() == _ROWS


def test_other_sources_are_not_tables(tmp_path: Path) -> None:
    """Folders of samples, other files and other objects are not tables."""
    (tmp_path / "mixed" / "deep").mkdir(parents=True)
    _write(tmp_path / "mixed" / "deep" / "t.parquet", _TABLE)
    (tmp_path / "mixed" / "a.jpg").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    sources: list[Any] = [tmp_path / "mixed", tmp_path / "empty", "x.jpg", "x.tar", "csv", "x.parquet.gz", "x.gz"]
    for source in sources:
        assert not is_table(source)
    objects: list[object] = [[1], {}, 5]
    for source in objects:
        with pytest.raises(InvalidRequest):
            ManifestSource(source, CreateOptions())
    assert is_table("-")
    assert is_table("gone.csv")


def test_detection_imports_nothing_heavy() -> None:
    """Detecting tables and looking at files imports neither NumPy, pyarrow nor pandas."""
    code = (
        "import sys, shardtool.source.scan; from shardtool.table.detect import is_table; "
        "assert not is_table('.'); print({'numpy', 'pyarrow', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_folder_of_parquet_files(tmp_path: Path) -> None:
    """The files of a folder are one table in path order; Hive partitions are columns."""
    for year, name in ((2025, "b"), (2024, "b"), (2024, "a")):
        folder = tmp_path / "data" / f"year={year}" / "kind=x%20y"
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": [f"{year}{name}"], "n": pa.array([1], pa.int32())}), folder / f"{name}.parquet")
    pq.write_table(pa.table({"id": ["z"], "extra": [1.5]}), tmp_path / "data" / "z.parquet")
    (tmp_path / "data" / "_SUCCESS").write_bytes(b"")
    assert is_table(tmp_path / "data")
    table = open_table(tmp_path / "data", ())
    assert table.folder == str(tmp_path)
    assert table.read(table.schema.names, ()).to_pylist() == [
        {"id": "2024a", "n": 1, "extra": None, "kind": "x y", "year": 2024},
        {"id": "2024b", "n": 1, "extra": None, "kind": "x y", "year": 2024},
        {"id": "2025b", "n": 1, "extra": None, "kind": "x y", "year": 2025},
        {"id": "z", "n": None, "extra": 1.5, "kind": None, "year": None},
    ]


@pytest.mark.parametrize("name", ["t.parquet", "t.feather", "t.arrow"])
def test_bytes_are_streamed(name: str, tmp_path: Path) -> None:
    """Byte columns can be read in batches, in order."""
    path = _write(tmp_path / name, _BYTES)
    table = open_table(path, ())
    assert table.schema.names == ["id", "jpg"]
    assert table.read(["id"], ()).to_pylist() == [{"id": 1}, {"id": 2}, {"id": 3}]
    assert table.count() == 3
    assert [value for batch in table.batches(["jpg"]) for value in batch.column(0).to_pylist()] == [
        b"one",
        b"",
        b"three",
    ]


@pytest.mark.parametrize("name", ["t.parquet", "t.feather", "t.arrow"])
def test_a_changed_table_is_an_error(name: str, tmp_path: Path) -> None:
    """If a file changes before it is read again, the run fails."""
    path = _write(tmp_path / name, _BYTES)
    table = open_table(path, ())
    _write(path, pa.table({"id": [1, 2, 3], "jpg": [b"ONE!", b"", b"three"]}))
    with pytest.raises(SampleFailed, match="changed while it was read"):
        list(table.batches(["jpg"]))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("t.csv", b"", "t.csv: empty; expected a first row with column names"),
        ("t.csv", b"a;b\n1;2\n", "one column, 'a;b': semicolons between the values; expected commas"),
        ("t.csv", b"a\tb\n1\t2\n", "tabs between the values; expected commas. Use delimiter='tab'."),
        ("t.tsv", b"a,b\n1,2\n", "commas between the values; expected tabs. Use delimiter=','."),
        ("t.csv", "a,b\n1,2\n".encode("utf-16"), "UTF-16; expected text in UTF-8"),
        ("t.csv", "a,b\n1,2\n".encode("utf-16-le"), "a NUL byte, so not text"),
        ("t.csv", gzip.compress(b"a,b\n1,2\n", mtime=0), "gzip; expected text in UTF-8"),
        ("t.csv", "ä,b\n1,2\n".encode("latin-1"), "header is not valid UTF-8"),
        ("t.csv", b"a,b\n1,2\n3\n4,5\n6,7,8\n", "values than the header: row 2 has 1, row 4 has 3; expected 2."),
        ("t.csv", b"a,b\n1,2\n3\n4,5\n6,7,8\n", "; expected 2. Row 2 starts with '3'."),
        ("t.csv", b'a,b\n1,2\n3,"x\n4,5,6\n7\n', "row 2: an opening quotation mark that is never closed"),
        ("t.csv", b'a,b\n"1,2\n3,4\n', "Check for a quotation mark that is not closed."),
        ("t.csv", b"x" * 200_000, "no first row: field larger than field limit"),
        ("t.csv.gz", b"a,b\n", "cannot be read"),
        ("t.jsonl", b"", "empty; expected one JSON object per line"),
        ("t.jsonl", b'[{"a":1}]',
         "row 1: a JSON list; expected one JSON object per line. Convert a JSON array to lines: `jq -c '.[]'`"),
        ("t.jsonl", b'{"a":1}\n\n{"a":2', "row 2: expecting ',' delimiter; expected one JSON object per line"),
        ("t.jsonl", b'{"a":1}\n{"a":"x"}\n{"a":2}\n{"a":"y"}\n{"a":3}\n',
         "column 'a' mixes types: number in 3 rows, text in rows 2, 4"),
        ("t.jsonl", b'{"a":true}\n{"a":1}\n{"a":0}\n', "column 'a' mixes types: number in 2 rows, boolean in row 1"),
        ("t.jsonl", b'{"a":[1,"x"]}\n', "cannot be read: Column(/a/[]) changed from number to string"),
        ("t.parquet", b"PAR1....PAR1", "cannot be read"),
        ("t.parquet", b"", "cannot be read"),
        ("t.feather", b"ARROW1\0\0", "cannot be read"),
        ("t.arrow", b"", "cannot be read"),
    ],
)  # fmt: skip
def test_broken_tables_are_refused(name: str, data: bytes, message: str, tmp_path: Path) -> None:
    """The error for a broken table names the file, the problem and the rows."""
    path = tmp_path / name
    path.write_bytes(data)
    assert f"{path}: " in _error(path)
    assert message in _error(path)


def test_missing_tables_are_refused(tmp_path: Path) -> None:
    """The error names a missing file, or a folder of other files."""
    assert "no such file or folder" in _error(tmp_path / "gone.csv")
    assert "expected a folder of Parquet files only" in _error(tmp_path)


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_a_byte_order_mark_is_ignored(name: str, tmp_path: Path) -> None:
    """A byte-order mark is not part of the first column's name."""
    path = _write(tmp_path / name, _TABLE)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert _read(path).to_pylist() == _ROWS


def test_csv_variants(tmp_path: Path) -> None:
    """CSV may have Windows line ends, empty lines, quoted commas and newlines, or only a header."""
    path = tmp_path / "t.csv"
    path.write_bytes(b'\r\nid,n\r\n"a,b",1\r\n\r\n"c\nd",2')
    assert _read(path).to_pylist() == [{"id": "a,b", "n": 1}, {"id": "c\nd", "n": 2}]
    for header in (b"id,n", b"id,n\n"):
        path.write_bytes(header)
        assert _read(path).to_pylist() == []
        assert _read(path).column_names == ["id", "n"]
    path.write_bytes(b'id,n\n1,"a\n"\n')  # ends in a quoted newline, and that is no unclosed quotation mark
    assert _read(path).to_pylist() == [{"id": "1", "n": "a\n"}]


def test_long_numbers_are_not_rounded(tmp_path: Path) -> None:
    """A column with more digits than a float holds stays text."""
    path = tmp_path / "t.csv"
    path.write_bytes(b"hash,x\n12345678901234567891,1e300\n5,0.5\n")
    assert _read(path).to_pylist() == [{"hash": "12345678901234567891", "x": 1e300}, {"hash": "5", "x": 0.5}]


def test_text_in_json_stays_text(tmp_path: Path) -> None:
    """Text that looks like a time stays text, in lists and objects too."""
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"a":"2024-01-01","b":["2024-01-01"],"c":{"d":"2024-01-01 10:00"}}\n')
    expected = [{"a": "2024-01-01", "b": ["2024-01-01"], "c": {"d": "2024-01-01 10:00"}}]
    assert _read(path).to_pylist() == expected


def test_lines_longer_than_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A JSON line may be longer than a block."""
    monkeypatch.setattr(base, "READ_BLOCK_BYTES", 64)
    path = tmp_path / "t.jsonl"
    long = "x" * 5000
    path.write_bytes(b'{"a":"b"}\n' + f'{{"a":"{long}"}}\n'.encode() + b'{"a":"c"}\n')
    assert _read(path)["a"].to_pylist() == ["b", long, "c"]


@pytest.mark.parametrize(
    ("data", "named", "expected"),
    [
        (b"a/1.jpg\na/2 x.jpg\n", (), ["a/1.jpg", "a/2 x.jpg"]),
        (b"a/1.jpg\na/2.jpg", (), ["a/1.jpg", "a/2.jpg"]),
        (b"a/1.jpg\r\na/2.jpg\r\n", (), ["a/1.jpg", "a/2.jpg"]),
        (b"a/1\n.jpg\0a/2.jpg\0", (), ["a/1\n.jpg", "a/2.jpg"]),
        (b"path\na/1.jpg\n", (), ["a/1.jpg"]),
        (b"a,1.jpg\nb\t2.jpg\n", (), ["a,1.jpg", "b\t2.jpg"]),
        (b"id,path\n1,a/1.jpg\n", (), ["a/1.jpg"]),
        (b"id\tpath\n1\ta/1.jpg\n", (), ["a/1.jpg"]),
        (b"place,path\nx,a/1.jpg\n", ("place",), ["a/1.jpg"]),
        (b"", (), []),
    ],
)
def test_standard_input(
    data: bytes, named: tuple[str, ...], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standard input is a list of paths, or a table if its first line is clearly a header."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    table = open_table("-", named)
    assert table.name == "stdin"
    assert table.read(["path"], ["path"])["path"].to_pylist() == expected


def test_paths_must_be_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the lines that are not valid UTF-8."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a.jpg\n\xff.jpg\n")))
    assert "row 2: not valid UTF-8" in _error("-")


def test_a_frame_of_mixed_types() -> None:
    """The error for a column of several Python types lists the rows of each type."""
    message = _error(pd.DataFrame({"id": [1, 2, 3, 4], "x": ["a", 1, None, "b"]}))
    assert message == "DataFrame: column 'x' mixes types: str in 2 rows, int in row 2; expected values of one type"
    assert "column 'x' holds object in 1 row" in _error(pd.DataFrame({"x": [object()]}))
    twice = pd.DataFrame([[1, 2]], columns=["a", "a"])
    assert "several columns with the same name: 'a'" in _error(twice)


def test_a_frame_of_path_objects() -> None:
    """Path objects are read as text; the frame is unchanged."""
    frame = pd.DataFrame({"path": [Path("a/1.jpg"), None, "b.jpg"], "mask": map(Path, ("x", "y", "z")), "n": [1, 2, 3]})
    table = open_table(frame, ()).read(["path", "mask", "n"], [])
    assert table.to_pydict() == {"path": ["a/1.jpg", None, "b.jpg"], "mask": ["x", "y", "z"], "n": [1, 2, 3]}
    assert frame.path[0] == Path("a/1.jpg")


def test_a_frame_of_mixed_lists() -> None:
    """The error for lists of different types says how to convert them to JSON."""
    kinds = [[{"segmentation": [[1.0, 2.0]]}], [{"segmentation": {"counts": [1], "size": [1, 1]}}]]
    message = _error(pd.DataFrame({"id": [1, 2], "objects": kinds}))
    expected = "column 'objects' holds list in 2 rows with elements of different types: cannot mix list and non-list"
    assert expected in message
    assert "frame['objects'].map(json.dumps), then use field={'json': 'objects'} with meta='none'" in message


def test_numbers_in_text() -> None:
    """Text becomes numbers if every value is one; 007 is not, and gaps become null."""
    for values, expected in (
        (["1", "-20", "0"], [1, -20, 0]),
        (["1", "NA", ""], [1, None, None]),
        (["1", "2.5", "1e3"], [1.0, 2.5, 1000.0]),
        (["007", "1"], ["007", "1"]),
        (["1", "x"], ["1", "x"]),
        (["", "NA"], ["", "NA"]),
        (["12345678901234567890"], ["12345678901234567890"]),
        ([], []),
    ):
        assert parse_numbers(pa.array(values, pa.string())).to_pylist() == expected


@pytest.mark.parametrize("size", [3_000_000, 10_000_000])
def test_a_long_cell(size: int, tmp_path: Path) -> None:
    """Blocks grow until a cell of several megabytes fits."""
    (tmp_path / "t.csv").write_text(f"path,c\na,x\nb,{'x' * size}\nc,y\n")
    result = open_table(str(tmp_path / "t.csv"), ()).read(["c"], ())
    assert [len(text) for text in result.column("c").to_pylist()] == [1, size, 1]


def test_invalid_rows_that_are_not_utf8(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Rows with too many values are reported even if they are not UTF-8, and nothing else is printed."""
    (tmp_path / "t.csv").write_bytes(b"path,c\na,x\n\xff,1,2\n" + b"b,y,z\n" * 9)
    with pytest.raises(InvalidRequest, match=r"10 rows with more or fewer .*row 2 has 3, .*starts with '.xff,1,2'"):
        open_table(str(tmp_path / "t.csv"), ()).read(["c"], ())
    assert capfd.readouterr().err == ""
