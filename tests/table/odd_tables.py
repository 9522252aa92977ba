# ruff: noqa: E501 - long lists of values
"""Malformed and unusual tables in each format of a manifest, generated from a seed, for property tests."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from random import Random

ENDINGS = (".csv", ".tsv", ".jsonl", ".parquet", ".feather", ".arrow")
_NAMES = ("path", "key", "id", "image", "c", "c", "json", "__key__", "__x", "", " ", "a" * 100_000, "é", "a,b", "a\nb",
          "\ufeffpath", "split", "x" * 300)  # fmt: skip
_CELLS = ("", "a.txt", "b.txt", "d/" * 700 + "a.txt", "../a.txt", "/etc/passwd", "true", "false", "NA", "1", "007", "-0",
          "1e999", "inf", "nan", str(10**30), str(2**63), "9" * 5000, "99999-12-31", "2024-02-30", "0000-00-00", "\0",
          "\ud800", "x" * 3_000_000, '"', "'", "\r", "\n", "{}", "[1]", "http://x/a.txt", "a", ".", "..", "²", " 5")  # fmt: skip
_JSON = ("null", "1", "[]", '"x"', "{}", '{"path":"a.txt"}', '{"path":null}', '{"path":1}', '{"path":"a.txt","d":[[[]]]}',
         '{"path":"a.txt","d":' + "[" * 40 + "]" * 40 + "}", "[" * 5000, '{"a":' * 5000, '{"path":"a.txt"} null', "{",
         '{"path":"a.txt","n":' + "9" * 5000 + "}", '{"path":"a.txt","n":1e999}', '{"path":"a.txt","n":NaN}', "\ufeff{}",
         '{"path":"\\ud800.txt"}', '{"path":"a.txt","path":"b.txt"}', '{"":1,"path":"a.txt"}', '{"__key__":"x"}', "",
         '{"path":"a.txt","t":"99999-01-01T00:00:00"}', '{"path":"a.txt","s":{"a":{"b":[{"c":null}]}}}', "\x00", "nul",
         '{"path":"b.txt","k":{}}', '{"path":"a.txt","k":[{}]}')  # fmt: skip


def odd_table(random: Random) -> Any:
    """Return a random Arrow table with columns of any type."""
    rows = random.choice((0, 1, 2, 3))
    columns, names = [], []
    for at in range(random.randint(1, 4)):
        columns.append(_column(random, rows))
        names.append(random.choice(_NAMES) if random.random() < 0.1 else ("path", "key", "v", "w")[at])
    return pa.Table.from_arrays(columns, names)


def _column(random: Random, rows: int) -> Any:
    texts = ["a.txt", "b.txt", "c.txt"]
    kinds = [
        lambda: pa.array(texts[:rows]),
        lambda: pa.array(texts[:rows]).dictionary_encode(),
        lambda: pa.array(texts[:rows], pa.string_view()),
        lambda: pa.array(texts[:rows], pa.large_string()),
        lambda: pa.array([random.choice(_CELLS).encode("utf-8", "surrogatepass") for _ in range(rows)]),
        lambda: pa.array([b"x", None, b"\xff"][:rows], pa.binary(-1)).view(pa.string()),
        lambda: pa.array([b"x", b"y", b"\xff"][:rows]).dictionary_encode(),
        lambda: pa.nulls(rows),
        lambda: pa.array([1, None, 3][:rows], random.choice((pa.int8(), pa.uint64(), pa.int64(), pa.float32()))),
        lambda: pa.array([1, 2, 3][:rows], pa.float16()),
        lambda: pa.array([1, 2, 3][:rows], pa.decimal128(38, -5)),
        lambda: pa.array([1, 2, 3][:rows], pa.decimal256(76, 70)),
        lambda: pa.array([2**62, -(2**62), None][:rows], pa.timestamp(random.choice(("s", "ms", "us", "ns")))),
        lambda: pa.array([2**62, 0, None][:rows], pa.timestamp("s", random.choice(("UTC", "+99:99", "No/Where")))),
        lambda: pa.array([2**31 - 1, -(2**31), None][:rows], pa.date32()),
        lambda: pa.array([2**62, 0, None][:rows], pa.int64()).view(pa.date64()),
        lambda: pa.array([2**62, 0, None][:rows], pa.int64()).view(pa.time64("ns")),
        lambda: pa.array([2**62, 0, None][:rows], pa.duration("s")),
        lambda: pa.array([(1, 2, 3)] * rows, pa.month_day_nano_interval()),
        lambda: pa.array([[1], [], None][:rows]),
        lambda: pa.array([[1.5, float("nan")], [float("inf"), 0], None][:rows], pa.list_(pa.float32(), 2)),
        lambda: pa.array([{"a": 1}, {"b": "x"}, None][:rows], pa.struct([("a", pa.int8()), ("b", pa.string())])),
        lambda: pa.array([{"bytes": b"x", "path": "a.jpg"}] * rows, pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        lambda: pa.array([{}] * rows, pa.struct([])),
        lambda: pa.array([[("a", 1)], [("a", 1), ("a", 2)], None][:rows], pa.map_(pa.string(), pa.int8())),
        lambda: pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)] * rows, pa.binary(16))),
        lambda: pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}"] * rows)),
        lambda: pa.RunEndEncodedArray.from_arrays([rows], pa.array(["a.txt"])) if rows else pa.nulls(0),
        lambda: pa.UnionArray.from_sparse(pa.array([0] * rows, pa.int8()), [pa.array([1] * rows)]),
        lambda: _nested(rows, random.choice((5, 31, 60, 300))),
        lambda: pa.array([True, False, None][:rows]),
        lambda: pa.array([bytes(4)] * rows, pa.binary(4)),
        lambda: pa.array([b"x"] * rows, pa.binary_view()),
        lambda: pa.array([[1]] * rows, pa.list_view(pa.int8())),
    ]  # fmt: skip
    try:
        return random.choice(kinds)()
    except (pa.ArrowException, ValueError, TypeError, AttributeError):  # not supported by this version of pyarrow
        return pa.nulls(rows)


def _nested(rows: int, depth: int) -> Any:
    array = pa.array([1] * rows, pa.int8())
    for _ in range(depth):
        array = pa.StructArray.from_arrays([array], ["s"])
    return array


def odd_file(random: Random, ending: str) -> bytes:
    """Return the bytes of a table file with unusual content. Some files are also damaged at random positions."""
    data = _text(random, ending) if ending in (".csv", ".tsv", ".jsonl") else _columns(random, ending)
    for _ in range(random.choice((0, 0, 0, 0, 1, 3))):
        data = _mutated(random, data)
    return data


def _text(random: Random, ending: str) -> bytes:
    start = random.choice(("", "", "", "\ufeff"))
    if ending == ".jsonl":
        text = random.choice(("\n", "\n", "\r\n", "\r", "\n\n")).join(random.choices(_JSON, k=random.randint(1, 4)))
        if random.random() < 0.2:
            text = "\n".join(json.dumps({"path": "a.txt", f"k{at}": at}) for at in range(random.choice((20, 12_000))))
    else:
        separator = "," if ending == ".csv" else "\t"
        width = random.choice((1, 2, 3, 12_000))
        header = (
            random.choices(_NAMES[:6], k=width) if random.random() < 0.1 else [f"path{at or ''}" for at in range(width)]
        )
        cells = _CELLS if width < 10 else _CELLS[:3]
        rows = [[random.choice(cells) for _ in header] for _ in range(random.randint(0, 3))]
        text = "\n".join(separator.join(row) for row in [header, *rows])
    encoding = random.choice(("utf-8", "utf-8", "utf-8", "utf-8", "utf-16", "latin-1"))
    return (start + text).encode(encoding, "surrogatepass" if encoding != "latin-1" else "replace")


def _columns(random: Random, ending: str) -> bytes:
    table, sink = odd_table(random), io.BytesIO()
    try:
        if ending == ".parquet":
            pq.write_table(table, sink, compression=random.choice(("none", "zstd")))
        elif ending == ".feather":
            pyarrow.feather.write_feather(table, sink, compression=random.choice(("uncompressed", "lz4", "zstd")))
        else:
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
    except (pa.ArrowException, ValueError, OSError, RecursionError):  # the format cannot store this table
        return b"PAR1" if ending == ".parquet" else b"ARROW1"
    return sink.getvalue()


def _mutated(random: Random, data: bytes) -> bytes:
    if not data:
        return bytes([random.randrange(256)])
    changed = bytearray(data)
    at = random.randrange(len(data))
    how = random.randrange(4)
    if how == 0:
        changed[at] = random.randrange(256)
    elif how == 1:
        changed[at : at + 4] = random.choice((b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f"))
    elif how == 2:
        del changed[at : at + random.choice((1, 8, 1000))]
    else:
        changed[at:at] = changed[max(0, at - 8) : at]
    return bytes(changed)
