"""Tables that are text: CSV and TSV, JSON lines, and a list of paths.

pyarrow reads them. What it says little about is found here: the header that has another delimiter,
and the rows that do not fit, by their numbers. Row 1 is the first after the header; empty lines are no rows.

Types of a CSV's columns are inferred (whole numbers, truths, dates, times, other numbers, text); the
columns that the caller names stay text, so that the key 00123 is no 123, and so do numbers with more
digits than a float has. In columns of text, `NA` and an empty cell are text; in others they are null.
Text in JSON lines stays text; their whole numbers beyond 64 bits are floats.
"""

from __future__ import annotations

import csv
import io
import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.errors import InvalidRequest, listing, printable
from shardtool.sample import counted
from shardtool.source import buffers
from shardtool.source.rows import mixed_types, rows_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    Opened = Callable[[], Any]  # a binary stream, from the start

_HEAD = 2**20  # bytes that surely hold the header
_BLOCK = 2**20  # bytes of JSON lines that a thread reads at a time; a line must fit
_LARGEST_BLOCK = 2**30
_GAPS = ["", "NA", "N/A", "null", "NULL", "nan", "NaN"]
_NUMBERS = (
    (r"^(0|-?[1-9][0-9]{0,17})$", pa.int64()),
    (r"^-?(0|[1-9][0-9]{0,17})(\.[0-9]*)?([eE][+-]?[0-9]{1,3})?$", pa.float64()),
)
_TAIL = 64  # bytes that surely hold what ends a file
_EXACT = 2.0**53  # from here on a float holds not every whole number
_SEPARATORS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
_MARKS = ((b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"), (b"\x1f\x8b", "gzip"), (b"PK\x03\x04", "a ZIP file"))
_UTF8 = b"\xef\xbb\xbf"
_RECODE = "`iconv -f CP1252 -t UTF-8` turns what Excel writes into it."


class DelimitedTable:
    """A CSV or TSV.

    Args:
        where: What the user called it.
        opened: Opens it.
        separator: Between values.
        name: Of the file.
        folder: What relative paths in it count from.

    Attributes:
        schema: The columns; all text until they are read.
        untyped: Its types are inferred.

    Raises:
        InvalidRequest: No text, no header, or another separator.
    """

    untyped = True

    def __init__(self, where: str, opened: Opened, separator: str, *, name: str, folder: str) -> None:
        self.name, self.where, self.folder = name, where, folder
        self._opened, self._separator = opened, separator
        self._table: Any = None
        with opened() as stream:
            head = stream.read(_HEAD)
        names = _header(where, head, separator)
        self.schema = pa.schema([(one, pa.string()) for one in names])

    def read(self, columns: Collection[str], text: Collection[str]) -> Any:
        """Return some columns, in the order of the table.

        Args:
            columns: Their names.
            text: Columns that stay text, as the first call says it.

        Raises:
            InvalidRequest: Rows that do not fit the header.
        """
        if self._table is None:
            self._table = buffers.compact(self._typed(frozenset(text) & set(self.schema.names)))
        return self._table.select([name for name in self.schema.names if name in columns])

    def _typed(self, text: frozenset[str]) -> Any:
        table = self._read(text, threads=True)
        long = [one.name for one in table.schema if pa.types.is_floating(one.type) and _too_long(table[one.name])]
        return self._read(text | set(long), threads=True) if long else table

    def count(self) -> int:
        """Return the number of rows."""
        return int(self.read((), ()).num_rows)

    def batches(self, columns: list[str]) -> Iterator[Any]:
        """Yield record batches of some columns."""
        yield from self.read(columns, ()).select(columns).to_batches()

    def _read(self, text: frozenset[str], *, threads: bool) -> Any:
        from pyarrow import csv as arrow_csv

        ragged: list[Any] = []

        def note(row: Any) -> str:
            ragged.append(row)
            return "skip"

        convert = arrow_csv.ConvertOptions(column_types=dict.fromkeys(text, pa.string()), check_utf8=False)
        parse = arrow_csv.ParseOptions(delimiter=self._separator, newlines_in_values=True, invalid_row_handler=note)
        read = arrow_csv.ReadOptions(use_threads=threads)
        try:
            with self._opened() as stream:
                table = arrow_csv.read_csv(stream, read_options=read, parse_options=parse, convert_options=convert)
        except pa.ArrowInvalid as error:
            if "Empty CSV" in str(error):  # a header without a newline
                return self.schema.empty_table()
            raise
        if ragged and threads:
            return self._read(text, threads=False)  # rows have numbers only without threads
        if ragged:
            raise self._ragged(ragged)
        self._check_end(table)
        return table

    def _check_end(self, table: Any) -> None:
        """Refuse a last value that goes on to the end of the file: pyarrow takes the rows after it for its text."""
        last = table.column(table.num_columns - 1)
        if not table.num_rows or not pa.types.is_string(last.type):
            return
        value = last[-1].as_buffer()
        if value is None or b"\n" not in value.to_pybytes():
            return
        tail = b""
        with self._opened() as stream:
            while data := stream.read(_BLOCK):
                tail = (tail + data)[-_TAIL:]
        if not tail.rstrip(b"\r\n").endswith(b'"'):
            raise InvalidRequest(
                self.where, f"row {table.num_rows:,}: a quotation mark that is not closed, up to the end of the file",
                expected="text between two quotation marks, with those inside of it doubled",
            )  # fmt: skip

    def _ragged(self, rows: list[Any]) -> InvalidRequest:
        found = [f"row {row.number - 1} has {row.actual_columns}" for row in rows]
        shown = rows[0].text.splitlines()[0][:60] if rows[0].text else ""
        remedy = f"Row {rows[0].number - 1} begins with '{printable(shown)}'."
        if '"' in shown and "\n" in rows[0].text:
            remedy += " Is a quotation mark not closed there?"
        return InvalidRequest(
            self.where, f"{counted(len(rows), 'row')} with more or fewer values than the header: {listing(found)}",
            expected=f"{rows[0].expected_columns}", remedy=remedy,
        )  # fmt: skip


def numbers_of(column: Any) -> Any:
    """Return text as numbers where all of it is what a number is written as; 007 is not, and stays text as it is.

    A gap (an empty cell, NA, null, NaN) among numbers is null.
    """
    gaps = pc.is_in(column, value_set=buffers.texts(_GAPS).cast(column.type))
    filled = column.filter(pc.invert(gaps)).drop_null()
    for pattern, kind in _NUMBERS:
        if len(filled) and pc.all(pc.match_substring_regex(filled, pattern)).as_py():
            empty = buffers.texts([None])[0].cast(column.type)
            return pc.cast(pc.if_else(gaps, empty, column), kind)
    return column


def read_json_lines(name: str, opened: Opened) -> Any:
    """Return a table of JSON objects, one a line; text that looks like a time stays text.

    Raises:
        InvalidRequest: A line that is no object, or a column of several types.
    """
    with opened() as stream:
        _check_text(name, stream.read(_HEAD))
    try:
        table = _read_json(opened, None)
        if any(_with_text(one.type) != one.type for one in table.schema):
            table = _read_json(opened, pa.schema([one.with_type(_with_text(one.type)) for one in table.schema]))
    except pa.ArrowInvalid as error:
        raise _json_problem(name, opened, str(error)) from None
    return buffers.compact(table)


def _read_json(opened: Opened, schema: Any) -> Any:
    from pyarrow import json as arrow_json

    block = _BLOCK
    while True:
        try:
            with opened() as stream:
                return arrow_json.read_json(
                    stream, arrow_json.ReadOptions(block_size=block), arrow_json.ParseOptions(explicit_schema=schema)
                )
        except pa.ArrowInvalid as error:
            if "straddl" not in str(error) or block >= _LARGEST_BLOCK:
                raise
            block *= 8


def _with_text(kind: Any) -> Any:
    """Return an inferred type with text for timestamps."""
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_text(kind.value_type)))
    if pa.types.is_struct(kind):
        parts = [kind.field(at) for at in range(kind.num_fields)]
        return pa.struct([part.with_type(_with_text(part.type)) for part in parts])
    return kind


def _json_problem(name: str, opened: Opened, said: str) -> InvalidRequest:
    """Return the error for what pyarrow could not read, found line by line."""
    kinds: dict[str, dict[str, list[int]]] = {}
    with opened() as stream:
        for number, line in enumerate(_lines(stream), 1):
            try:
                row = json.loads(line)
            except ValueError as error:
                said = str(error).partition(":")[0]
                return _no_object(name, number, line, said[:1].lower() + said[1:])
            if not isinstance(row, dict):
                return _no_object(name, number, line, f"a JSON {_kind(row)}")
            for column, value in row.items():
                if value is not None:
                    kinds.setdefault(column, {}).setdefault(_kind(value), []).append(number)
    for column, found in kinds.items():
        if len(found) > 1:
            return mixed_types(name, column, found)
    if not kinds:
        return InvalidRequest(name, "empty", expected="one JSON object a line")
    said = re.sub(r"^JSON parse error: |in row [0-9]+$", "", said.splitlines()[0])  # its rows count from anywhere
    return InvalidRequest(name, f"cannot be read: {said.strip()}", expected="JSON objects with values of one type")


def _lines(stream: Any) -> Iterator[bytes]:
    rest, first = b"", True
    while data := stream.read(_BLOCK):
        *lines, rest = (rest + (data.removeprefix(_UTF8) if first else data)).split(b"\n")
        first = False
        yield from (line for line in lines if line.strip())
    if rest.strip():
        yield rest


def _kind(value: object) -> str:
    names = {bool: "truth", int: "number", float: "number", str: "text", list: "list", dict: "object"}
    return names.get(type(value), "null")


def _no_object(name: str, number: int, line: bytes, found: str) -> InvalidRequest:
    remedy = f"It begins with '{printable(line[:60].strip())}'."
    if number == 1 and line.lstrip()[:1] == b"[":
        remedy = "`jq -c '.[]'` makes lines of a JSON array."
    return InvalidRequest(name, f"row {number:,}: {found}", expected="one JSON object a line", remedy=remedy)


def read_list(name: str, data: bytes, column: str) -> Any:
    """Return a table of one column: paths that end with a newline each, or with a NUL where there are any."""
    if b"\0" in data:
        lines = data.removesuffix(b"\0").split(b"\0")
    else:
        lines = data.removesuffix(b"\n").split(b"\n")
        if all(line.endswith(b"\r") for line in lines[:-1]):
            lines = [line.removesuffix(b"\r") for line in lines]
    bad = [number for number, line in enumerate(lines, 1) if not _is_utf8(line)]
    if bad:
        raise InvalidRequest(name, f"{rows_text(bad)}: no UTF-8", expected="paths in UTF-8")
    if lines == [b""]:
        lines = []
    return pa.table({column: buffers.texts([line.decode() for line in lines])})


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _header(name: str, head: bytes, separator: str) -> list[str]:
    """Return the names of the columns."""
    text = _check_text(name, head).decode("utf-8", "surrogateescape")
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        names = next((row for row in rows if row), [])
    except csv.Error as error:
        raise InvalidRequest(name, f"no header: {error}", expected="a first row that names the columns") from None
    if not names:
        raise InvalidRequest(name, "empty", expected="a first row that names the columns")
    if len(names) == 1:
        other = next((one for one in _SEPARATORS if one != separator and one in names[0]), None)
        if other:
            ending = {",": ".csv", "\t": ".tsv"}.get(other)
            remedy = f"Call it {ending}." if ending else "Write it with commas, or as Parquet."
            raise InvalidRequest(
                name, f"one column, '{printable(names[0])}': {_SEPARATORS[other]} between the values",
                expected=_SEPARATORS[separator], remedy=remedy,
            )  # fmt: skip
    if any("\udc80" <= char <= "\udcff" for char in "".join(names)):
        raise InvalidRequest(name, "a header that is no UTF-8", expected="text in UTF-8", remedy=_RECODE)
    return names


def _check_text(name: str, head: bytes) -> bytes:
    """Return the start of a text without its byte-order mark."""
    for mark, meaning in _MARKS:
        if head.startswith(mark):
            remedy = "`iconv -f UTF-16 -t UTF-8` makes it that." if meaning == "UTF-16" else ""
            raise InvalidRequest(name, meaning, expected="text in UTF-8", remedy=remedy)
    if b"\0" in head:
        raise InvalidRequest(name, "bytes that are no text", expected="text in UTF-8")
    return head.removeprefix(_UTF8)


def _too_long(column: Any) -> bool:
    """Tell whether a column inferred as floats holds whole numbers that floats cannot."""
    large = False
    for chunk in column.chunks:
        values = buffers.numbers(chunk.drop_null())
        if not np.all(values == np.floor(values)):
            return False
        large = large or bool(np.any((np.abs(values) >= _EXACT) & np.isfinite(values)))
    return large
