from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtool import InvalidRequest
from shardtool.entries.strings import PackedStrings
from shardtool.names import to_bytes
from shardtool.pattern import parse_pattern
from shardtool.plan.plan import make_plan
from shardtool.plan.shard_bounds import ShardBounds
from shardtool.plan.shard_task import build_shard_samples
from shardtool.select import join
from shardtool.select.query import match_rows
from shardtool.select.value_fields import set_value_fields
from shardtool.shard_samples import INLINE, SPAN, SpanFile
from shardtool.source.manifest.source import ManifestSource
from tests.made import changed, flat_entries, list_manifest, manifest_options, metadata_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from shardtool.entries.sample_table import SampleTable
    from shardtool.values import NumberType

    Fields = Mapping[str, bytes | None]  # of one sample: the text of a number, or None for a payload in a shard

_FILES = (SpanFile(b"/data/a.tar", 10**6, 1), SpanFile(b"/data/b.tar", 10**6, 2))


def _entries(
    samples: Mapping[str, Fields], columns: Any = None, numbers: Mapping[str, NumberType] | None = None, **more: Any
) -> SampleTable:
    """Return the entries of shards with these samples; the offset of a payload identifies its row."""
    names = sorted({name for fields in samples.values() for name in fields}, key=to_bytes)
    rows = [(name, fields[name]) for fields in samples.values() for name in sorted(fields, key=to_bytes)]
    at = np.arange(len(rows))
    spans = np.array([text is None for _, text in rows], bool)
    numbered = {name for name, text in rows if text is not None}
    return flat_entries(
        [to_bytes(key) for key in samples],
        [len(fields) for fields in samples.values()],
        names,
        code=[names.index(name) for name, _ in rows],
        kind=np.where(spans, SPAN, INLINE).astype(np.uint8),
        size=[7 if text is None else len(text) for _, text in rows],
        mtime_ns=np.broadcast_to(np.int64(0), len(rows)),
        changed_ns=np.where(spans, 5, 0),
        inline={name: PackedStrings.of(fields.get(name) or b"" for fields in samples.values()) for name in numbered},
        numbers=numbers or {},
        offset=np.where(spans, 512 + at, 0),
        files=_FILES,
        file=(np.arange(len(samples)) % 2).astype(np.uint32),
        crc=np.where(spans, 100 + at, -1),
        source_identity="shards",
        metadata=columns,
        **more,
    )


def _contents(entries: SampleTable) -> dict[str, dict[str, Any]]:
    """Return each sample's fields: the inline text, or the offset and the checksum in a shard."""
    kinds = {"code": "uint16", "kind": "uint8", "file": "uint32"}
    for name in ("first_rows", "code", "kind", "size", "mtime_ns", "changed_ns", "offset", "crc", "file"):
        block = next(item for item in (entries, entries.rows, entries.known_spans) if hasattr(item, name))
        values = getattr(block, name)
        assert values.dtype == kinds.get(name, "int64")
        if name not in {"first_rows", "file"}:
            assert len(values) == entries.first_rows[-1]
    used = Counter(entries.rows.code.tolist())
    assert sorted(used) == list(range(len(entries.fields)))
    assert {*entries.values.numbers} <= {*entries.values.inline} <= {*entries.fields}
    assert {*entries.values.classes} <= {*entries.fields}
    texts = {name: column.span(0, len(entries)).split(b"\0") for name, column in entries.values.inline.items()}
    result: dict[str, dict[str, Any]] = {}
    rows, spans = entries.rows, entries.known_spans
    for sample in range(len(entries)):
        fields = result[entries.key(sample)] = {}
        for row in range(int(entries.first_rows[sample]), int(entries.first_rows[sample + 1])):
            name = entries.fields[entries.rows.code[row]]
            rest = [int(item[row]) for item in (spans.offset, spans.crc, rows.changed_ns, rows.mtime_ns)]
            if entries.rows.kind[row] == INLINE:
                assert rest == [0, -1, 0, 0]
                assert int(entries.rows.size[row]) == len(texts[name][sample])
                fields[name] = texts[name][sample]
            else:
                fields[name] = (int(entries.known_spans.file[sample]), *rest, int(entries.rows.size[row]))
        assert list(fields) == sorted(fields, key=to_bytes)
    return result


def _error(call: Any, *args: Any, **options: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        call(*args, **options)
    return str(caught.value)


_SAMPLES: dict[str, Fields] = {key: {"jpg": None, "cls": None} for key in ("a", "b", "007", "c")}


def _labelled(values: Any = ("old", "old", None, "old"), kind: Any = None) -> SampleTable:
    """Return samples that already have labels."""
    return _entries(_SAMPLES, pa.table({"label": pa.array(values, kind)}))


_KEYS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0."), min_size=1, max_size=3)
_INT = st.integers(-(2**63), 2**63 - 1)


def _maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


@given(st.data(), st.integers(1, 4))
def test_join_looks_up_rows_by_key(data: st.DataObject, chunk: int) -> None:
    """Each sample gets the values of the row with its key; without a row, it keeps its old values or null."""
    keys = data.draw(st.lists(_KEYS, min_size=1, max_size=8, unique=True))
    by_column = data.draw(st.booleans())
    which = data.draw(st.lists(_maybe(_KEYS), min_size=len(keys), max_size=len(keys))) if by_column else [*keys]
    rows = data.draw(st.lists(st.sampled_from(keys) | _KEYS, min_size=1, max_size=8, unique=True))
    bare = not by_column and data.draw(st.booleans())  # no metadata yet
    old = data.draw(st.lists(_maybe(_INT), min_size=len(keys), max_size=len(keys)))
    new = data.draw(st.lists(st.tuples(_maybe(_INT), _maybe(st.text("xy é"))), min_size=len(rows), max_size=len(rows)))
    by_key = dict(zip(rows, new, strict=True))
    columns = {"n": pa.array(old, pa.int64())} | ({"who": pa.array(which, pa.string())} if by_column else {})
    entries = _entries({key: {"jpg": None} for key in keys}, None if bare else pa.table(columns))
    numbers, texts = pa.array([one for one, _ in new], pa.int64()), pa.array([one for _, one in new], pa.string())
    table = pa.table({"t": texts, "who": pa.array(rows, pa.string()), "n": numbers})
    half = len(rows) // 2
    if data.draw(st.booleans()):
        table = pa.concat_tables([table.slice(0, half), table.slice(half)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shardtool.values.CHUNK_ROWS", chunk)
        if not any(item in by_key for item in which):
            assert "no row matches a sample" in _error(join.join_table, entries, table, "who")
            return
        joined = join.join_table(entries, table, "who")
    had = [None] * len(keys) if bare else old
    expected = [
        by_key.get(one, (before, None)) if one else (before, None) for one, before in zip(which, had, strict=True)
    ]
    result = metadata_of(joined.entries).to_pydict()
    assert list(zip(result["n"], result["t"], strict=True)) == expected
    assert joined.unmatched == sum(item not in by_key for item in which)
    assert joined.unused == len({*rows} - {*which})
    changed_some = not bare and [one for one, _ in expected] != had
    assert len(joined.notes) == (joined.unmatched > 0) + (joined.unused > 0) + changed_some
    assert all(column.num_chunks <= 1 for column in metadata_of(joined.entries).columns)
    assert _contents(joined.entries) == _contents(entries)
    assert metadata_of(joined.entries).column_names == (["t", "n"] if bare else [*columns, "t"])


_CSV = "key,label,width\n007,cat,3\na,dog,\nzz,bird,5\n"


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl", "parquet", "feather", "frame", "arrow", "categories", "gz"])
def test_every_table_format_can_be_joined(tmp_path: Path, form: str) -> None:
    """All manifest formats can be joined, and keys such as 007 stay as written."""
    rows = [{"key": "007", "label": "cat", "width": 3}, {"key": "a", "label": "dog"}, {"key": "zz", "label": "bird"}]
    frame = pd.DataFrame({"key": ["007", "a", "zz"], "label": ["cat", "dog", "bird"], "width": [3, None, 5]})
    path = tmp_path / f"labels.{form}"
    table: Any = path
    if form == "csv":
        path.write_text(_CSV)
    elif form == "tsv":
        path.write_text(_CSV.replace(",", "\t"))
    elif form == "gz":
        table = tmp_path / "labels.csv.gz"
        frame.to_csv(table, index=False)
    elif form == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    elif form == "parquet":
        frame.to_parquet(path)
    elif form == "feather":
        pyarrow.feather.write_feather(frame, str(path))
    else:
        table = frame.astype({"key": "category", "label": "category"}) if form == "categories" else frame
        table = pa.Table.from_pandas(frame) if form == "arrow" else table
    joined = join.join_table(_labelled(), table if form in {"frame", "arrow", "categories"} else str(table), "key")
    result = metadata_of(joined.entries).to_pydict()
    assert result == {"label": ["dog", "old", "cat", "old"], "width": [None, None, 3, None]}
    named = {"frame": "DataFrame", "categories": "DataFrame", "arrow": "Table"}
    assert joined.name == named.get(form, "labels.csv.gz" if form == "gz" else f"labels.{form}")
    assert (joined.unmatched, joined.unused) == (2, 1)
    assert joined.notes == (
        f"2 of 4 samples have no row in {joined.name}, such as 'b', 'c'",
        f"1 row of {joined.name} matches no sample, such as 'zz'",
        "column 'label' replaced for 2 samples",
    )


def test_a_perfect_match_needs_no_note() -> None:
    """If each sample has a row, each row a sample, and no column is replaced, there are no notes."""
    joined = join.join_table(_entries(_SAMPLES), pa.table({"key": [*_SAMPLES], "n": [1, 2, 3, 4]}), "key")
    assert (joined.unmatched, joined.unused, joined.notes) == (0, 0, ())
    assert metadata_of(joined.entries).to_pydict() == {"n": [1, 2, 3, 4]}


def test_notes_count_all_and_show_three() -> None:
    """Notes count all samples or rows, and show three."""
    samples: dict[str, Fields] = {f"s{at}": {"jpg": None} for at in range(2000)}
    table = pa.table({"id": [*(f"s{at}" for at in range(700)), *(f"x{at}" for at in range(1300))], "n": range(2000)})
    assert join.join_table(_entries(samples), table, "id").notes == (
        "1,300 of 2,000 samples have no row in Table, such as 's700', 's701', 's702'",
        "1,300 rows of Table match no sample, such as 'x0', 'x1', 'x2'",
    )
    assert join.join_table(_entries({"s0": {}, "b\n": {}}), table.slice(0, 1), "id").notes == (
        "1 of 2 samples has no row in Table, such as 'b\\x0a'",
    )


@pytest.mark.parametrize(
    "column",
    [
        pa.array([7, 8], pa.int8()), pa.array([7.0, 8.0]), pa.array(["7", "8"]), pa.array([7, 8], pa.uint64()),
        pa.array([7, 8], pa.decimal128(5, 0)), pa.array(["7", "8"]).dictionary_encode(),
    ],
    ids=lambda column: str(column.type),
)  # fmt: skip
def test_whole_numbers_can_be_keys(column: Any) -> None:
    """A whole number matches its decimal text, on both sides."""
    entries = _entries({"8": {"jpg": None}, "07": {"jpg": None}, "7": {"jpg": None}})
    result = join.join_table(entries, pa.table({"k": column, "n": [1, 2]}), "k").entries
    assert metadata_of(result).to_pydict() == {"n": [2, None, 1]}
    by_column = replace(entries, metadata=pa.table({"k": pa.concat_arrays([column, pa.nulls(1, column.type)])}))
    for other in (pa.table({"k": ["8", "7"], "n": [2, 1]}), pa.table({"k": pa.array([8, 7]), "n": [2, 1]})):
        assert metadata_of(join.join_table(by_column, other, "k").entries)["n"].to_pylist() == [1, 2, None]


def test_a_column_of_the_samples_is_matched_first() -> None:
    """If the samples have a column of that name, many can match one row; values that cannot be keys match nothing."""
    columns = pa.table({"kind": [1.0, math.nan, 2.5, 1.0]})
    table = pa.table({"kind": [1, 2], "name": ["one", "two"]})
    joined = join.join_table(_entries(_SAMPLES, columns), table, "kind")
    assert metadata_of(joined.entries)["name"].to_pylist() == ["one", None, None, "one"]
    assert metadata_of(joined.entries).column_names == ["kind", "name"]
    assert (joined.unmatched, joined.unused) == (2, 1)
    columns = pa.table({"kind": ["1", "1\0", "", None]})
    assert metadata_of(join.join_table(_entries(_SAMPLES, columns), table, "kind").entries)["name"].to_pylist() == [
        "one", None, None, None,
    ]  # fmt: skip


def test_text_stays_text(tmp_path: Path) -> None:
    """A CSV column is text if the dataset's column is, or if a value has a leading zero."""
    path = tmp_path / "t.csv"
    path.write_text("key,label,code,n\n007,1,007,1\n008,NA,8,2\n")
    samples: dict[str, Fields] = {"007": {}, "7": {}, "008": {}}
    entries = _entries(samples, pa.table({"label": ["x", "y", "z"]}))
    result = metadata_of(join.join_table(entries, str(path), "key").entries)
    assert result.to_pydict() == {"label": ["1", "y", "NA"], "code": ["007", None, "8"], "n": [1, None, 2]}
    assert result.schema.field("n").type == pa.int64()


@pytest.mark.parametrize(
    ("old", "new", "united"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.int64(), pa.int8(), pa.int64()),
        (pa.int64(), pa.uint64(), pa.int64()),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.dictionary(pa.int8(), pa.string()), pa.string(), pa.string()),
        (pa.string(), pa.dictionary(pa.int32(), pa.string()), pa.string()),
        (pa.string_view(), pa.string(), pa.large_string()),
        (pa.int64(), pa.float64(), pa.float64()),
        (pa.float32(), pa.int16(), pa.float32()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.null(), pa.int64(), pa.int64()),
        (pa.bool_(), pa.null(), pa.bool_()),
        (pa.timestamp("s"), pa.timestamp("us"), pa.timestamp("us")),
        (pa.decimal128(6, 2), pa.int8(), pa.decimal128(6, 2)),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), pa.list_(pa.int64())),
    ],
    ids=str,
)
def test_compatible_types_are_unified(old: Any, new: Any, united: Any) -> None:
    """A replaced column has the type that holds the values of both."""

    def values(kind: Any, number: int) -> Any:
        if pa.types.is_null(kind):
            return pa.nulls(1)
        if pa.types.is_list(kind):
            return pa.array([[number]], kind)
        if pa.types.is_boolean(kind):
            return pa.array([True])
        if "string" in str(kind):
            return pa.array([str(number)]).cast(kind)
        return pa.array([Decimal(number) if pa.types.is_decimal(kind) else number]).cast(kind)

    columns = pa.table({"v": pa.chunked_array([values(old, 1), values(old, 2)], old)})
    joined = join.join_table(
        _entries({"a": {}, "b": {}}, columns), pa.table({"key": ["a"], "v": values(new, 3)}), "key"
    )
    result = metadata_of(joined.entries)["v"]
    assert result.type == united
    assert result.to_pylist() == [*values(new, 3).to_pylist(), *values(old, 2).to_pylist()]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (pa.array(["x"]), pa.array([1])),
        (pa.array([1]), pa.array(["x"])),
        (pa.array([2**53 + 1]), pa.array([0.5])),
        (pa.array([0.5]), pa.array([2**62 + 1])),
        (pa.array([0.5], pa.float32()), pa.array([2**60 + 1])),
        (pa.array([1]), pa.array([2**64 - 1], pa.uint64())),
        (pa.array([True]), pa.array([1])),
        (pa.array([0.1]), pa.array([1]).cast(pa.decimal128(21, 2))),
        (pa.array([1]).cast(pa.decimal128(21, 2)), pa.array([0.1])),
        (pa.array([1]).cast(pa.timestamp("s")), pa.array([1]).cast(pa.timestamp("s", "UTC"))),
        (pa.array([1]).cast(pa.timestamp("s")), pa.array([1], pa.int32()).cast(pa.date32())),
        (pa.array([[1]]), pa.array([1])),
    ],
    ids=lambda array: str(array.type),
)  # fmt: skip
def test_incompatible_types_are_refused(old: Any, new: Any) -> None:
    """Types without a common type, or whose values would change, are refused, naming both types."""
    columns = pa.table({"v": pa.concat_arrays([old, old])})
    message = _error(join.join_table, _entries({"a": {}, "b": {}}, columns), pa.table({"key": ["a"], "v": new}), "key")
    assert message == (
        f"Table: column 'v' holds {new.type}; expected {old.type}, the type of the dataset's column of that name. "
        "Convert or rename the column."
    )


_NO_KEY = "column 'key': no key (empty, null or NaN) in "


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"id": ["a"], "n": [1]}, ("on: no column 'key'; expected one of id, n",)),
        ({"Key": ["a"], "n": [1]}, ("on: no column 'key'", "Did you mean 'Key'?")),
        ({"key": ["a"]}, ("Table: no column except 'key'; expected columns to join, other",)),
        ({"key": pa.array([], pa.string()), "n": []}, ("Table: no rows; expected a row for each key",)),
        (
            {"key": ["a", None, "b", None], "n": [1, 2, 3, 4]},
            (f"Table: {_NO_KEY}rows 2, 4; expected a key in each row", "Remove these rows from the table."),
        ),
        ({"key": ["a", ""], "n": [1, 2]}, (f"{_NO_KEY}row 2; ",)),
        ({"key": [1.0, math.nan], "n": [1, 2]}, (f"{_NO_KEY}row 2; ",)),
        ({"key": ["a", "a\0"], "n": [1, 2]}, ("column 'key': a NUL in the text in row 2; ",)),
        ({"key": [1.0, 1.5], "n": [1, 2]}, ("column 'key': a key is not a whole number in row 2; ",)),
        (
            {"key": [*"abaacab"], "n": range(7)},
            (
                "Table: 2 keys more than once: 'a' (rows 1, 3, 4, 6), 'b' (rows 2, 7); ",
                (
                    "expected one row for each value of column 'key'. "
                    "Collect the rows of each key into lists with collect='all'."
                ),
            ),
        ),
        (
            {"key": [*"pqrsuvwx"] * 2, "n": range(16)},
            ("8 keys more than once: 'p' (rows 1, 9), 'q' (rows 2, 10), 'r' (rows 3, 11) and 5 more; ",),
        ),
        (
            {"key": ["x", "y"], "n": [1, 2]},
            (
                "Table: no row matches a sample: column 'key' contains 'x'; expected keys, such as 'a'",
                "Choose another column with on.",
            ),
        ),
        ({"key": [b"a"], "n": [1]}, ("Table: column 'key' (key) holds binary; expected text or whole numbers",)),
        ({"key": [True], "n": [1]}, ("Table: column 'key' (key) holds bool; expected text or whole numbers",)),
        (
            {"key": ["a"], "jpg": [[b"x"]]},
            ("Table: no column except 'key'; expected columns to join, other than columns of bytes",),
        ),
        (
            {"key": ["a"], "__size__": [1]},
            (
                "Table: column '__size__': names that start with two underscores are reserved for the sidecar. ",
                "Rename them, or remove them from the table.",
            ),
        ),
        ({"key": ["a"], " ": [1]}, ("Table: column 2 without a name; ",)),
    ],
)
def test_tables_that_cannot_be_joined(table: dict[str, Any], message: tuple[str, ...]) -> None:
    """Errors of a table name the rows and what to do."""
    error = _error(join.join_table, _labelled(), pa.table(table), "key")
    assert all(item in error for item in message), error


def test_the_column_key_joins_by_default() -> None:
    """Without `on`, the column `key` joins the table, with a note; if it is missing, all columns are listed."""
    entries = _entries({"a": {"jpg": None}, "7": {"jpg": None}})
    joined = join.join_table(entries, {"key": ["a", "7"], "n": [1, 2]}, "")
    assert metadata_of(joined.entries).to_pydict() == {"n": [1, 2]}
    assert joined.notes == ("using key as the key column (change with on='COLUMN')",)
    message = _error(join.join_table, entries, {"name": ["a"], "n": [1]}, "")
    assert "no column 'key' among name, n; expected a key column. Name the key column with on='COLUMN'." in message


def test_file_names_match_keys() -> None:
    """If no key matches, a file name up to its first dot is the key, unless two rows have the same."""
    entries = _entries({key: {"jpg": None} for key in ("a", "d/b", "c")}, None)
    joined = join.join_table(entries, pa.table({"file": ["d/b.tar.jpg", "a.png", "x.png"], "n": [1, 2, 3]}), "file")
    assert metadata_of(joined.entries)["n"].to_pylist() == [2, 1, None]
    assert joined.notes[0].endswith("rows were matched by the path without its extension")
    error = _error(join.join_table, entries, pa.table({"file": ["a.png", "a.jpg"], "n": [1, 2]}), "file")
    assert "no row matches a sample" in error


def test_bytes_are_not_joined() -> None:
    """Columns of bytes cannot be metadata: they are excluded, with a note."""
    joined = join.join_table(
        _labelled(), pa.table({"key": ["a"], "jpg": [b"x"], "n": [1], "png": [{"bytes": b"x"}]}), "key"
    )
    assert "columns of bytes in Table excluded: jpg, png" in joined.notes
    assert not {"jpg", "png"} & {*metadata_of(joined.entries).column_names}


def test_repeated_column_names_are_refused() -> None:
    """A table with two columns of the same name is refused."""
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array([1]), pa.array([2])], ["key", "n", "n"])
    assert "several columns with the same name: 'n'" in _error(join.join_table, _labelled(), table, "key")


def test_the_samples_column_is_named(tmp_path: Path) -> None:
    """If a column of the samples does not match, the message names it."""
    table = pa.table({"label": ["x"], "n": [1]})
    assert _error(join.join_table, _labelled((None, "p", "q", "r")), table, "label") == (
        "Table: no row matches a sample: column 'label' contains 'x'; expected values of the samples' column 'label', "
        "such as 'p'. Choose another column with on."
    )
    assert _error(join.join_table, _labelled(kind=pa.string(), values=[None] * 4), table, "label").count("such as none")
    dated = _labelled((0, 1, 2, 3), pa.date32())
    assert _error(join.join_table, dated, table, "label") == (
        "on: the samples' column 'label' holds date32[day]; expected a column of text or whole numbers"
    )
    assert "no such file" in _error(join.join_table, _labelled(), str(tmp_path / "no.csv"), "key")
    (tmp_path / "t.csv").write_bytes(b"key,n\na,\xff\n")
    assert "invalid UTF-8 in row 1" in _error(join.join_table, _labelled(), str(tmp_path / "t.csv"), "key")


def test_the_index_of_pandas_is_not_joined(tmp_path: Path) -> None:
    """An unnamed pandas index is not metadata; a named index is a column."""
    frame = pd.DataFrame({"key": ["a", "b"], "n": [3, 4]}, index=[5, 2])
    frame.to_parquet(tmp_path / "t.parquet")
    assert "__index_level_0__" in pq.read_schema(tmp_path / "t.parquet").names
    result = metadata_of(join.join_table(_entries(_SAMPLES), str(tmp_path / "t.parquet"), "key").entries)
    assert result.to_pydict() == {"n": [3, 4, None, None]}
    assert metadata_of(join.join_table(_entries(_SAMPLES), frame.set_index("key"), "key").entries).equals(result)


def test_keys_that_are_not_utf8_match_nothing() -> None:
    """A key that is not valid UTF-8 matches no row."""
    entries = replace(_entries({"a": {}, "b": {}}), keys=PackedStrings.of([b"\xff", "é".encode()]))
    joined = join.join_table(entries, pa.table({"key": ["é", "a"], "n": [1, 2]}), "key")
    assert metadata_of(joined.entries)["n"].to_pylist() == [None, 1]
    assert joined.notes[0].endswith("such as '\\xff'")


_COLUMNS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "int": (pa.int64(), _INT),
    "float": (pa.float64(), st.floats(allow_nan=True, allow_infinity=False)),
    "truth": (pa.bool_(), st.booleans()),
    "text": (pa.string(), st.text("xy\n é", max_size=3)),
    "list": (pa.list_(pa.int8()), st.lists(st.integers(-9, 9), max_size=2)),
}
_FIELD = st.sampled_from(["txt", "cls", "a.b", "z", "é", "num", "lab"])


def _text(value: Any) -> bytes:
    """Return the payload of a value."""
    if isinstance(value, list):
        return json.dumps(value, separators=(",", ":")).encode()
    return str(int(value) if isinstance(value, bool) else value).encode()


@given(st.data())
def test_values_replace_fields(data: st.DataObject) -> None:
    """A value replaces the sample's field of that name. A sample without a value keeps its field.

    In fields of numbers or labels, each sample must have a value.
    """
    keys = data.draw(st.lists(_KEYS, min_size=1, max_size=6, unique=True))
    null, may = data.draw(st.sampled_from([(False, True), (True, False), (True, True)]))  # values may be missing, where
    samples: dict[str, Fields] = {}  # they may not be
    for key in keys:
        names = data.draw(st.sets(_FIELD, min_size=1)) if may else {"txt", "cls", "a.b", "z", "é"}
        samples[key] = {name: _text(data.draw(_INT)) if name == "num" else None for name in names}
    table = {
        name: data.draw(st.lists(_maybe(one) if null else one, min_size=len(keys), max_size=len(keys)))
        for name, (_, one) in _COLUMNS.items()
    }
    columns = pa.table({name: pa.array(values, _COLUMNS[name][0]) for name, values in table.items()})
    at_hand = {name for fields in samples.values() for name in fields}
    numbers: dict[str, NumberType] = {"num": "int64"} if "num" in at_hand else {}
    before = _entries(samples, columns, numbers)
    if "lab" in at_hand:
        before = changed(before, classes={"lab": ["x", "y"]})
    named = st.sampled_from([*_COLUMNS] if may else ["text", "list"])
    expected_result = data.draw(
        st.dictionaries(_FIELD if may else st.sampled_from(["txt", "z", "é"]), named, min_size=1, max_size=4)
    )
    classes = data.draw(st.sets(st.sampled_from([*expected_result]) if may else st.nothing()))
    classes -= {name for name, one in expected_result.items() if one == "list"}

    expected: dict[str, dict[str, Any]] = _contents(before)
    wrong, labels = False, {}
    for name, column in expected_result.items():
        texts = [None if item is None or item != item else _text(item) for item in table[column]]  # noqa: PLR0124 - NaN
        if name in classes:
            labels[name] = sorted({item for item in texts if item is not None})
        alike = column in {"int", "float", "truth"} or name in {*classes, *numbers} or name in before.values.classes
        for key, text in zip(keys, texts, strict=True):
            if text is not None:
                expected[key][name] = str(labels[name].index(text)).encode() if name in labels else text
            elif alike or name not in samples[key]:
                wrong = True
    if wrong:
        assert "no value (null or NaN)" in _error(set_value_fields, before, (*expected_result.items(),), (*classes,))
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shardtool.values.CHUNK_ROWS", 2)
        after, notes = set_value_fields(before, (*expected_result.items(),), (*classes,))
    assert _contents(after) == expected
    assert len(notes) == sum(any(name in item for item in samples.values()) for name in expected_result)
    kinds: dict[str, NumberType] = {"int": "int64", "float": "float", "truth": "int64"}
    of_values = {name: kinds[column] for name, column in expected_result.items() if column in kinds}
    kept = {name: number for name, number in numbers.items() if name not in expected_result}
    assert after.values.numbers == {**kept, **of_values, **dict.fromkeys(classes, "int64")}
    assert {
        name: [to_bytes(item) for item in names] for name, names in after.values.classes.items() if name in classes
    } == labels
    assert {*after.values.classes} == classes | ({*before.values.classes} - {*expected_result})
    assert after.known_spans.files == before.known_spans.files
    assert after.keys == before.keys
    assert after.metadata is not None
    assert before.metadata is not None
    old = after.metadata.select(before.metadata.column_names)
    assert repr(old.to_pydict()) == repr(before.metadata.to_pydict())  # NaN is unequal to itself
    new = after.metadata.column_names[before.metadata.num_columns :]
    assert {*new} == {*classes, *of_values}, "a number field is a column, too"
    for name in new:
        shown = [str(int(item) if isinstance(item, bool) else item) for item in after.metadata.column(name).to_pylist()]
        assert shown == [expected[key][name].decode() for key in keys if name in expected[key]]


def test_fields_equal_those_of_a_manifest() -> None:
    """A column becomes the same field as in `create`: the same texts, numbers and class names."""
    table = pa.table(
        {
            "key": [*_SAMPLES], "label": ["dog", "cat", "é", "dog"], "score": [1.0, 0.5, 1e-7, 3.0], "n": [1, 2, 3, 4],
            "box": [[1, 2], [], [3], [4]], "truth": [True, False, True, True], "rank": [10, 9, 10, 8],
            "day": pa.array([0, 1, 2, 3], pa.int32()).cast(pa.date32()),
            "big": pa.array([1, 2, 3, 2**63 - 1], pa.uint64()),
        }
    )  # fmt: skip
    fields = tuple((f"{name}.x", name) for name in table.column_names[1:])
    classes = ("label.x", "rank.x")
    options = manifest_options(key="key", fields=fields, classes=classes, meta="none")
    made = list_manifest(ManifestSource(table, options)).entries
    after, _ = set_value_fields(join.join_table(_entries(_SAMPLES), table, "key").entries, fields, classes)
    assert (after.values.numbers, after.values.classes) == (made.values.numbers, made.values.classes)
    assert after.values.classes == {"label.x": ["cat", "dog", "é"], "rank.x": ["10", "8", "9"]}
    assert {*after.values.inline} == {*made.values.inline}
    assert all(
        after.values.inline[name].span(0, 4) == made.values.inline[name].span(0, 4) for name in made.values.inline
    )


def test_replaced_and_kept_payloads_are_planned() -> None:
    """A field that is a value in some samples and a span in others is planned correctly."""
    entries = _labelled()
    after, notes = set_value_fields(entries, (("cls", "label"),), ())
    assert notes == (
        "field 'cls' from column 'label': replaced in 3 samples, kept in 1 sample where the column is null",
    )
    assert after.fields == ("cls", "jpg")
    plan = make_plan(after, parse_pattern("out-{000000..}.tar"), ShardBounds(), shuffle_seed=3)
    samples = build_shard_samples(plan, 0)
    keys = samples.content.keys.decode().split("\0")[:-1]
    assert sorted(keys) == sorted(_SAMPLES)
    expected = [b"" if field == "jpg" or key == "007" else b"old" for key in keys for field in ("cls", "jpg")]
    assert samples.content.inline.split(b"\0")[:-1] == expected
    sizes = np.frombuffer(samples.content.sizes, np.int64).tolist()
    assert sizes == [3 if text else 7 for text in expected]


def test_field_notes_count_samples() -> None:
    """Notes count the samples in which a field was replaced, added or kept."""
    entries = _entries({"a": {"txt": None}, "b": {"jpg": None}, "c": {"txt": None}}, pa.table({"t": ["x", "y", None]}))
    assert set_value_fields(entries, (("txt", "t"),), ())[1] == (
        (
            "field 'txt' from column 't': replaced in 1 sample, added to 1 sample, "
            "kept in 1 sample where the column is null"
        ),
    )
    none = replace(entries, metadata=pa.table({"t": pa.nulls(3, pa.string())}))
    one = none.take(np.array([0]))
    after, notes = set_value_fields(one, (("txt", "t"),), ())
    assert notes == ("field 'txt' from column 't': kept in 1 sample where the column is null",)
    assert after is one


def test_unused_fields_are_removed() -> None:
    """A name that no row has any more is removed from the fields."""
    samples: dict[str, Fields] = {"a": {"n": b"1", "x": None}, "b": {"x": None}}
    entries = _entries(samples, pa.table({"v": [5, 6]}), {"n": "int64"}).take(np.array([1]))
    after, _ = set_value_fields(entries, (("x", "v"),), ())
    assert (after.fields, [*after.values.inline], after.values.numbers) == (("x",), ["x"], {"x": "int64"})
    assert _contents(after) == {"b": {"x": b"6"}}
    labelled = changed(entries, metadata=pa.table({"v": ["p"]}), classes={"x": ["one", "two"], "n": ["three"]})
    after, _ = set_value_fields(labelled, (("x", "v"),), ())
    assert (after.values.classes, after.values.numbers) == ({}, {})


def test_values_have_no_path_and_time() -> None:
    """Values have no path, and constant times take no memory."""
    samples: dict[str, Fields] = {key: {"jpg": None, "txt": None} for key in "abc"}
    columns = pa.table({"t": ["1", "2", None]})
    entries = _entries(samples, columns, paths=PackedStrings.of(f"{at}".encode() for at in range(6)))
    after, _ = set_value_fields(entries, (("txt", "t"),), ())
    assert after.rows.paths is not None
    assert after.rows.paths.span(0, 6).split(b"\0")[:-1] == [b"0", b"", b"2", b"", b"4", b"5"]
    assert after.rows.mtime_ns.strides == (0,)
    same = set_value_fields(changed(entries, changed_ns=np.broadcast_to(np.int64(9), 6)), (("txt", "t"),), ())[0]
    assert same.rows.changed_ns.tolist() == [9, 0, 9, 0, 9, 9]
    bare = replace(changed(entries, paths=None), spans=None)
    after, _ = set_value_fields(bare, (("txt", "t"),), ())
    assert (after.spans, after.rows.paths) == (None, None)


_BIG = pa.py_buffer(np.array([1, 2**63, 2**63, 2**64 - 1], np.uint64))  # the third is null, whatever its bytes
_VALUES = pa.table(
    {
        "label": ["x", None, "y", None], "n": [1, None, 3, 4], "f": [0.5, math.nan, 1.0, 2.0],
        "nul": ["a", "b\0", "c", None],
        "big": pa.Array.from_buffers(pa.uint64(), 4, [pa.py_buffer(b"\x0b"), _BIG]),
        "b": [b"x"] * 4, "bs": [[b"x"]] * 4,
        "my col": [None, "x", "x", "x"], "class": [None, "x", "x", "x"], "list": [[1]] * 4,
    }
)  # fmt: skip


_NO_VALUE = "column 'label': no value (null or NaN) in 2 samples, such as 'b', 'c'; expected a value for each sample"


@pytest.mark.parametrize(
    ("name", "column", "message"),
    [
        ("txt", "label", f"{_NO_VALUE} that has no field 'txt'. Exclude them with where \"label.notna()\"."),
        ("cls!", "label", f"{_NO_VALUE}. "),
        ("num", "label", f"{_NO_VALUE}. "),
        ("lab", "label", f"{_NO_VALUE}. "),
        ("cls", "n", "column 'n': no value (null or NaN) in 1 sample, such as 'b'; expected a value for each sample. "),
        ("cls", "f", "column 'f': no value (null or NaN) in 1 sample, such as 'b'; expected a value for each sample. "),
        ("cls", "nul", "column 'nul': a NUL in the text in 1 sample, such as 'b'; expected text without"),
        (
            "cls",
            "big",
            "column 'big': a number over 2^63 in 2 samples, such as 'b', 'c'; expected a number that fits into int64",
        ),
        ("cls", "b", "column 'b' (field cls) holds binary; expected text or numbers"),
        ("cls", "bs", "column 'bs' (field cls) holds list<item: binary>; expected text or numbers"),
        ("cls!", "list", "column 'list' (labels) holds list<item: int64>; expected text or numbers"),
        ("cls", "labels", "no column 'labels'; expected one of label, n, f, "),
        ("cls", "labels", "Did you mean 'label'"),
        ("a/b", "n", "field 'a/b': not a valid field name; "),
        ("-a", "n", "field '-a': not a valid field name; "),
        ("a,b", "n", "field 'a,b': not a valid field name; "),
    ],
)
def test_invalid_value_columns_are_refused(name: str, column: str, message: str) -> None:
    """Errors of a column name the samples' keys and what to do; `cls!` are labels."""
    samples: dict[str, Fields] = {key: {"cls": None, "num": b"1", "lab": None} for key in "abzc"}
    entries = _entries(samples, _VALUES, {"num": "int64"}, classes={"lab": ["one"]})
    field = name.removesuffix("!")
    error = _error(set_value_fields, entries, ((field, column),), (field,) if field != name else ())
    assert message in error
    assert error.startswith(("field: ", "field '"))


def test_suggested_queries_are_valid() -> None:
    """The suggested query quotes names where needed."""
    entries = _entries({key: {"jpg": None} for key in "abcd"}, _VALUES)
    for column, query in (("my col", "`my col`.notna()"), ("class", "`class`.notna()"), ("label", "label.notna()")):
        assert f'Exclude them with where "{query}".' in _error(set_value_fields, entries, (("txt", column),), ())
        left = entries.take(match_rows(_VALUES, query))
        assert "txt" in set_value_fields(left, (("txt", column),), ())[0].fields


def test_contradictory_value_options_are_refused() -> None:
    """Labels must be requested fields, fields must be unique, and there must be metadata."""
    entries = _labelled()
    assert _error(set_value_fields, entries, (("cls", "label"),), ("cl",)) == (
        "classes: no field 'cl'. Choose its column with field={'cl': 'COLUMN'}."
    )
    twice = (("cls", "label"), ("cls", "label"))
    assert (
        _error(set_value_fields, entries, twice, ())
        == "field: several columns for the field 'cls'. Use a different name for each."
    )
    assert _error(set_value_fields, _entries(_SAMPLES), (("cls", "label"),), ()) == (
        "field: no column 'label', and no others. "
        "Add columns from a table with join, or from JSON fields with columns_from."
    )
