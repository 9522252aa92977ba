"""Any table becomes Arrow: files of several formats, and tables in memory.

What a table means is not decided here, but for standard input: that may be a list of paths.

pyarrow reads tables that are text. What it says little about is found here: the header that has another delimiter,
and the rows that do not fit, by their numbers. Row 1 is the first after the header; empty lines are no rows.

Types of a CSV's columns are inferred from all their values (whole numbers, truths, dates, times, other numbers, text),
whatever they are used for; but the columns that the caller names stay text, for the key 1e5 is no 100000. So do columns
with a number such as 007, or of more digits than a float has. In columns of text, `NA` and an empty cell are text; in
others they are null.
Text in JSON lines stays text; their whole numbers beyond 64 bits are floats.
"""

from __future__ import annotations

import csv
import fnmatch
import io
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from shlex import quote
from typing import TYPE_CHECKING, Any, BinaryIO, Literal
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries import arrow
from shardtool.entries.classes import are_names, recorded
from shardtool.errors import InvalidRequest, SampleFailed, is_out_of_memory, listing, printable
from shardtool.request.texts import BY_NAME, TextForm
from shardtool.storage import places
from shardtool.storage.places import file_fact, open_blob, open_object
from shardtool.table import kinds
from shardtool.table.columns import (
    LONGEST_ROW,
    MOST_COLUMNS,
    MOST_LEVELS,
    PATH_NAMES,
    Rows,
    check_names,
    check_shape,
    mixed_types,
    rows_text,
    too_deep,
    too_long,
    too_many_columns,
)
from shardtool.values import counted, is_utf8
from shardtool.wording import create_again, either, option

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow.parquet as pq
    from numpy.typing import NDArray
    from pyarrow.csv import InvalidRow

    Opened = Callable[[], BinaryIO]


_HEAD = 2**20  # bytes that surely hold the header
_BLOCK = 2**20  # bytes that a thread reads at a time; a row must fit
_GAPS = ["", "NA", "N/A", "null", "NULL", "nan", "NaN"]
_NUMBERS = (
    (r"^(0|-?[1-9][0-9]{0,17})$", pa.int64()),
    (r"^-?(0|[1-9][0-9]{0,17})(\.[0-9]*)?([eE][+-]?[0-9]{1,3})?$", pa.float64()),
)
_SHOWN = 5  # rows in a message
_ZEROS = r"^\s*[+-]?0[0-9]"
_TAIL = 64  # bytes that surely hold what ends a file
_EXACT = 2.0**53  # from here on a float holds not every whole number
_SEPARATORS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
_TAB = "\t"
_UNQUOTED = "|"  # between values in which quotation marks are text, as in those of LJSpeech
_MARKS = ((b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"), (b"\x1f\x8b", "gzip"), (b"PK\x03\x04", "a ZIP file"))
_UTF8 = b"\xef\xbb\xbf"
_RECODE = "`iconv -f CP1252 -t UTF-8` turns what Excel writes into it."


class Table:
    """A table that can be read.

    Args:
        where: What the user called it: its path, where it is a file or a folder.
        name: What it is called where it is neither.

    Attributes:
        where: What the user called it.
        folder: What relative paths in it count from.
        name: The name of the file, or of the kind of table.
        schema: Its columns.
        classes: Of columns of class numbers, or of lists of these: the names of classes.
        on: The column that names samples, where the format says it; else empty.
        notes: What people should know of it.
    """

    schema: pa.Schema

    def __init__(self, where: str, name: str = "") -> None:
        self.where, self.name = where, name or places.base_name(places.real_path(where))
        self.folder = "." if name else places.folder_of(where.rstrip("/")) or "."
        self.classes: Mapping[str, list[str]] = {}
        self.on = ""
        self.notes: tuple[str, ...] = ()

    def read(self, columns: list[str], text: Collection[str], /) -> pa.Table:
        """Return some columns, which stand in the order of the table, of none perhaps no rows; `text` stays text."""
        raise NotImplementedError

    def count(self) -> int:
        """Return the number of rows."""
        return sum(batch.num_rows for batch in self.batches(self.schema.names[:1]))

    def batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield record batches of some columns, all rows in order."""
        yield from self.read(columns, ()).to_batches()

    def parts(self, column: str, part: str) -> Iterator[pa.Array]:
        """Yield a part of a column of structs, all rows in order."""
        at = self.schema.field(column).type.get_field_index(part)
        for batch in self.batches([column]):
            yield batch.column(0).flatten()[at]


class MemoryTable(Table):
    """A table in memory."""

    def __init__(self, where: str, table: pa.Table, name: str = "") -> None:
        super().__init__(where, name)
        self._table, self.schema = table, table.schema

    def read(self, columns: list[str], _text: Collection[str], /) -> pa.Table:
        """Return some columns."""
        return self._table.select(columns)

    def count(self) -> int:
        """Return the number of rows, also of a table without columns."""
        return int(self._table.num_rows)


class DelimitedTable(Table):
    """A CSV or TSV, or another text with a delimiter.

    Args:
        where: What the user called it.
        opened: Opens it.
        form: How it is written.
        separator: Between values, where `form` does not say it.
        name: What it is called where it is no file.

    Attributes:
        schema: The columns; all text until they are read.

    Raises:
        InvalidRequest: No text, no header, or another separator.
    """

    def __init__(self, where: str, opened: Opened, form: TextForm, separator: str, name: str = "") -> None:
        super().__init__(where, name)
        self._opened, self._separator = opened, form.delimiter or separator
        self._header, self._quoted = form.header, self._separator != _UNQUOTED
        self._table: pa.Table | None = None
        with opened() as stream:
            head = stream.read(_HEAD)
        names = _first_row(where, head, self._separator, form)
        names = names if form.header else [str(number) for number in range(1, len(names) + 1)]
        self.schema = pa.schema([(one, pa.string()) for one in names])

    def read(self, columns: list[str], text: Collection[str], /) -> pa.Table:
        """Return some columns.

        Args:
            columns: Their names.
            text: Columns that stay text, as the first call says it.

        Raises:
            InvalidRequest: Rows that do not fit the header.
        """
        if self._table is None:
            self._table = arrow.compact(self._typed(frozenset(text) & set(self.schema.names)))
        return self._table.select(columns)

    def _typed(self, text: frozenset[str]) -> pa.Table:
        table = self._read(text)
        long = [one.name for one in table.schema if pa.types.is_floating(one.type) and _too_long(table[one.name])]
        tests = (pa.types.is_floating, pa.types.is_integer)
        numbers = [one.name for one in table.schema if any(test(one.type) for test in tests)]
        zeros = numbers if numbers and self._has_zeros() else []
        if not long and not zeros:
            return table
        texts = self._read(text.union(long, zeros))
        odd = [one for one in zeros if pc.any(pc.match_substring_regex(texts[one], _ZEROS)).as_py()]
        for name in {*long, *odd}:
            table = table.set_column(table.column_names.index(name), name, texts[name])
        return table

    def _has_zeros(self) -> bool:
        """Tell whether there may be a value such as 007, which is no number: seen in the bytes."""
        zeros, last = re.compile(rb'0(?<=[%b\n\r" +-]0)[0-9]' % re.escape(self._separator.encode())), b"\n"
        with self._opened() as stream:
            while data := stream.read(_BLOCK):
                if zeros.search(last + data):
                    return True
                last = data[-2:]
        return False

    def _read(self, text: frozenset[str]) -> pa.Table:
        try:
            table = self._parse(text)
        except pa.ArrowInvalid as error:
            said = str(error)
            if "Empty CSV" in said:  # a header without a newline
                return self.schema.empty_table()
            if "straddl" in said:
                raise too_long(self.where) from None
            if "CSV parse error: Expected" in said:
                raise self._ragged() from None
            raise
        if self._quoted:
            self._check_end(table)
        return table

    def _parse(self, text: Collection[str], noted: list[InvalidRow | None] | None = None) -> pa.Table:
        """Return what pyarrow's parser makes of the file.

        Args:
            text: Columns that stay text.
            noted: Gets each row that does not fit, but None once there are some, and then no other columns are
                returned; without it, such a row is an error.
        """
        from pyarrow import csv as arrow_csv

        def note(row: InvalidRow) -> str:
            found.append(row if len(found) < _SHOWN else None)
            return "skip"

        def read(block: int) -> pa.Table:
            found.clear()
            with self._opened() as stream:
                options = arrow_csv.ReadOptions(use_threads=noted is None, block_size=block, column_names=names)
                # as Latin-1, which any bytes are: pyarrow prints a traceback of others
                read = stream if noted is None else pa.transcoding_input_stream(stream, "latin-1", "utf-8")
                return arrow_csv.read_csv(read, read_options=options, parse_options=parse, convert_options=convert)

        found, handler = ([], None) if noted is None else (noted, note)  # rows have numbers only without threads
        names = None if self._header else self.schema.names  # of columns that have none in the file
        only = None if noted is None else [*text]
        types = dict.fromkeys(text, pa.string())
        convert = arrow_csv.ConvertOptions(column_types=types, include_columns=only, check_utf8=False)
        quote = '"' if self._quoted else False
        parse = arrow_csv.ParseOptions(
            delimiter=self._separator, quote_char=quote, newlines_in_values=self._quoted, invalid_row_handler=handler
        )
        return _in_blocks(read)

    def _check_end(self, table: pa.Table) -> None:
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
            found = f"row {table.num_rows:,}: a quotation mark that is not closed, up to the end of the file"
            expected = "text between two quotation marks, with those inside of it doubled"
            raise InvalidRequest(self.where, found, expected=expected)

    def _ragged(self) -> InvalidRequest:
        """Return the error for rows with another number of values than the header, found in a second pass."""
        noted: list[InvalidRow | None] = []
        with suppress(pa.ArrowInvalid):
            self._parse(self.schema.names[:1], noted)
        rows = [row for row in noted[:_SHOWN] if row is not None]
        whose = "the header" if self._header else "row 1"
        if not rows:
            return InvalidRequest(self.where, f"rows with more or fewer values than {whose}")
        before = int(self._header)
        found = [f"row {row.number - before} has {row.actual_columns}" for row in rows]
        first = rows[0].text.encode("latin-1", "replace")
        shown = printable((first.splitlines() or [b""])[0][:60])
        remedy = f"Row {rows[0].number - before} begins with '{shown}'."
        if self._quoted and '"' in shown and b"\n" in first:
            remedy += " Is a quotation mark not closed there?"
        what = (
            f"{counted(len(noted), 'row')} with more or fewer values than {whose}: {listing(found, total=len(noted))}"
        )
        return InvalidRequest(self.where, what, expected=f"{rows[0].expected_columns}", remedy=remedy)


def numbers_of(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return text as numbers where all of it is what a number is written as; 007 is not, and stays text as it is.

    A gap (an empty cell, NA, null, NaN) among numbers is null.
    """
    gaps = pc.is_in(column, value_set=arrow.texts(_GAPS).cast(column.type))
    filled = column.filter(pc.invert(gaps)).drop_null()
    for pattern, kind in _NUMBERS:
        if len(filled) and pc.all(pc.match_substring_regex(filled, pattern)).as_py():
            empty = arrow.texts([None])[0].cast(column.type)
            return pc.cast(pc.if_else(gaps, empty, column), kind)
    return column


def read_json_lines(name: str, opened: Opened) -> pa.Table:
    """Return a table of JSON objects, one per line; text that looks like a time stays text.

    Raises:
        InvalidRequest: A line that is no object, or a column of several types.
    """
    with opened() as stream:
        _check_text(name, stream.read(_HEAD))
    rows = check_lines(name, opened)
    try:
        table = _read_json(opened, None)
        check_shape(name, table.schema)
        if any(_with_text(one.type) != one.type for one in table.schema):
            table = _read_json(opened, pa.schema([one.with_type(_with_text(one.type)) for one in table.schema]))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _json_problem(name, opened, str(error)) from None
    if table.num_rows != rows:  # an object of several lines, or several in one
        raise _json_problem(name, opened, "not one object a line")
    return arrow.compact(table)


def _read_json(opened: Opened, schema: pa.Schema | None) -> pa.Table:
    from pyarrow import json as arrow_json

    parse = arrow_json.ParseOptions(explicit_schema=schema)

    def read(block: int) -> pa.Table:
        with opened() as stream:
            return arrow_json.read_json(stream, arrow_json.ReadOptions(block_size=block), parse)

    return _in_blocks(read)


def _in_blocks(read: Callable[[int], pa.Table]) -> pa.Table:
    """Return what `read` gives for the smallest size of blocks that holds every row."""
    block = _BLOCK
    while True:
        try:
            return read(block)
        except pa.ArrowInvalid as error:
            if "straddl" not in str(error) or block > LONGEST_ROW:
                raise
            block *= 8


def _with_text(kind: pa.DataType) -> pa.DataType:
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
    for number, row, _ in _each_row(name, opened):
        for column, value in row.items():
            if value is not None:
                kinds.setdefault(column, {}).setdefault(_kind_of(value), []).append(number)
    for column, found in kinds.items():
        if len(found) > 1:
            return mixed_types(name, column, found)
    if not kinds:
        return InvalidRequest(name, "empty", expected="one JSON object a line")
    said = re.sub(r"^JSON parse error: |in row [0-9]+$", "", said.splitlines()[0])  # its rows count from anywhere
    return InvalidRequest(name, f"cannot be read: {said.strip()}", expected="JSON objects with values of one type")


def read_list(name: str, data: bytes, column: str) -> pa.Table:
    """Return a table of one column: paths that end with a newline each, or with a NUL where there are any."""
    if b"\0" in data:
        lines = data.removesuffix(b"\0").split(b"\0")
    else:
        lines = data.removesuffix(b"\n").split(b"\n")
        if all(line.endswith(b"\r") for line in lines[:-1]):
            lines = [line.removesuffix(b"\r") for line in lines]
    bad = [number for number, line in enumerate(lines, 1) if not is_utf8(line)]
    if bad:
        raise InvalidRequest(name, f"{rows_text(bad)}: no UTF-8", expected="paths in UTF-8")
    if lines == [b""]:
        lines = []
    return pa.table({column: arrow.texts([line.decode() for line in lines])})


def _first_row(name: str, head: bytes, separator: str, form: TextForm) -> list[str]:
    """Return the values of the first row, which are the names of the columns where it is the header."""
    text = _check_text(name, head).decode("utf-8", "surrogateescape")
    quoting: Literal[0, 3] = csv.QUOTE_NONE if separator == _UNQUOTED else csv.QUOTE_MINIMAL
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator, quoting=quoting)
    expected = "a first row that names the columns" if form.header else "a row for each sample"
    try:
        names = next((row for row in rows if row), [])
    except csv.Error as error:
        raise InvalidRequest(name, f"no first row: {error}", expected=expected) from None
    if not names:
        raise InvalidRequest(name, "empty", expected=expected)
    if not form.header and form.delimiter:  # one column may hold anything
        return names
    if len(names) == 1:
        other = next((one for one in _SEPARATORS if one != separator and one in names[0]), None)
        if other:
            called = other.replace(_TAB, "tab")
            remedy = either(f"delimiter={called!r} reads it.", f"--delimiter {quote(called)} reads it.")
            found = f"one column, '{printable(names[0])}': {_SEPARATORS[other]} between the values"
            expected = _SEPARATORS.get(separator, repr(separator))
            raise InvalidRequest(name, found, expected=expected, remedy=remedy)
    if form.header and any("\udc80" <= char <= "\udcff" for char in "".join(names)):
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


def _too_long(column: pa.ChunkedArray) -> bool:
    """Tell whether a column inferred as floats holds whole numbers that floats cannot."""
    large = False
    for chunk in column.chunks:
        values = arrow.numbers(chunk.drop_null())
        if not np.all(values == np.floor(values)):
            return False
        large = large or bool(np.any((np.abs(values) >= _EXACT) & np.isfinite(values)))
    return large


# JSON lines, looked at before a table is made of them.
#
# The table's reader dies of a line that is `null`, and of deep nesting, with the whole process; it takes objects for
# rows wherever lines end; and it gives each name that any line uses a value in every row. So each line must be one
# object, not nested deeper than `MOST_LEVELS`, and names times rows must be in proportion to the bytes. Marks are
# counted for that, a block at a time; only lines that look odd are parsed here.


_WHITE = b" \t\r\n"
_ODD = (
    re.compile(rb"}[ \t\r]*(?:null|{)"),  # a second value in a line
    re.compile(rb'"[ \t\r]+:'),  # a name, and white space before its colon
    re.compile(rb'\\"[^"]*":'),  # a name that holds a quotation mark
)
_NO_MARKS = bytes({*range(256)} - {*b'"[]{}'})
_FEW_CELLS = 5 * 10**7  # of a file of any size: half a gigabyte
_CELLS_PER_BYTE = 2  # a value that is there takes six bytes or more in the file, and eight in memory


def check_lines(where: str, opened: Opened) -> int:
    """Return the number of lines that are not blank, or refuse those that the table's reader cannot be given.

    Raises:
        InvalidRequest: A line that is no object or nested too deep, or far too many names.
    """
    names, rows, size = set[bytes](), 0, 0
    with opened() as stream:
        for block in blocks(where, stream):
            data, size = block.strip(_WHITE), size + len(block)
            if not _is_plain(data):
                found, rows = _names_of(where, rows, data)
                names |= found
            else:
                rows += data.count(b"\n") + 1
                names.update([part.rpartition(b'"')[2] for part in data.split(b'":')[:-1]])  # and what texts look like
            if _too_many(len(names), rows, size):
                return _check_each(where, opened)
    return rows


def _names_of(where: str, rows: int, data: bytes) -> tuple[set[bytes], int]:
    """Return the names in some lines, each parsed, and the number of lines with these."""
    found = set[tuple[str, ...]]()
    for line in data.split(b"\n"):
        if line.strip(_WHITE):
            rows += 1
            _add_names(_read_line(where, rows, line), (), found)
    return {path[-1].encode("utf-8", "surrogatepass") for path in found}, rows


def _is_plain(data: bytes) -> bool:
    """Tell whether lines look like one object each, not too deep, and have no names but before `":`."""
    others, ends = data.count(b"\n"), data.count(b"}\n")
    if ends < others:
        ends += data.count(b"}\r\n")
    if not data.count(b"\n{") == ends == others or data[:1] != b"{" or data[-1:] != b"}":
        return False
    if any(odd.search(data) for odd in _ODD):
        return False
    if data.count(b"{") + data.count(b"[") <= others + MOST_LEVELS:
        return True
    lines = data.split(b"\n")
    return not any(line.count(b"{") + line.count(b"[") > MOST_LEVELS and _is_deep(line) for line in lines)


def _is_deep(line: bytes) -> bool:
    """Tell whether more than `MOST_LEVELS` brackets stand open at once, or some are not closed."""
    marks = re.sub(rb'"[^"]*"', b"", re.sub(rb"\\.", b"", line).translate(None, _NO_MARKS))
    for _ in range(MOST_LEVELS):
        marks = re.sub(rb"\[\]|{}", b"", marks)
    return bool(marks)


def blocks(where: str, stream: BinaryIO) -> Iterator[bytes]:
    """Yield whole lines, about a mebibyte at a time, without a byte-order mark.

    Raises:
        InvalidRequest: A line is too long.
    """
    parts: list[bytes] = []
    held, first = 0, True
    while data := stream.read(_BLOCK):
        if first:
            data, first = data.removeprefix(_UTF8), False
        end = data.rfind(b"\n") + 1
        if end:
            yield b"".join([*parts, data[:end]])
            parts, held, data = [], 0, data[end:]
        held += len(data)
        if held > LONGEST_ROW:
            raise too_long(where)
        parts.append(data)
    if held:
        yield b"".join(parts)


def _each_row(where: str, opened: Opened) -> Iterator[tuple[int, dict[str, object], int]]:
    """Yield the number of each line that is not blank, its object, and how many bytes were read so far."""
    number = size = 0
    with opened() as stream:
        for data in blocks(where, stream):
            size += len(data)
            for line in data.split(b"\n"):
                if line.strip(_WHITE):
                    number += 1
                    yield number, _read_line(where, number, line), size


def _read_line(where: str, number: int, line: bytes) -> dict[str, object]:
    """Return the object that a line is.

    Raises:
        InvalidRequest: It is none, or nested too deep.
    """
    try:
        row = json.loads(line)
    except RecursionError:
        raise too_deep(f"{where}, row {number:,}") from None
    except ValueError as error:
        said = str(error).partition(":")[0]
        raise _no_object(where, number, line, said[:1].lower() + said[1:]) from None
    if not isinstance(row, dict):
        raise _no_object(where, number, line, f"a JSON {_kind_of(row)}")
    if _levels(row) > MOST_LEVELS:
        raise too_deep(f"{where}, row {number:,}")
    return row


def _levels(value: object) -> int:
    """Return how deep lists and objects lie in each other."""
    found, level = 0, [value]
    while level := [one for one in level if isinstance(one, dict | list)]:
        found += 1
        level = [part for one in level for part in (one.values() if isinstance(one, dict) else one)]
    return found


def _kind_of(value: object) -> str:
    """Return what a JSON value is called."""
    names = {bool: "truth", int: "number", float: "number", str: "text", list: "list", dict: "object"}
    return names.get(type(value), "null")


def _no_object(where: str, number: int, line: bytes, found: str) -> InvalidRequest:
    """Return the error for a line that is no object."""
    remedy = f"It begins with '{printable(line[:60].strip())}'."
    if number == 1 and line.lstrip()[:1] == b"[":
        remedy = "`jq -c '.[]'` makes lines of a JSON array."
    return InvalidRequest(where, f"row {number:,}: {found}", expected="one JSON object a line", remedy=remedy)


def _too_many(count: int, rows: int, size: int) -> bool:
    return count > MOST_COLUMNS or count * rows > max(_FEW_CELLS, _CELLS_PER_BYTE * size)


def _check_each(where: str, opened: Opened) -> int:
    """Return the number of lines, parsed one by one; see `check_lines`."""
    tops, names = set[str](), set[tuple[str, ...]]()
    rows = 0
    size = 0
    for rows, row, size in _each_row(where, opened):
        tops.update(row)
        _add_names(row, (), names)
        if len(tops) > MOST_COLUMNS:
            raise too_many_columns(where)
        if _too_many(len(names), rows, size):
            found = f"{len(names):,} different names in objects of the first {rows:,} rows"
            expected = f"the same names in most rows, {MOST_COLUMNS:,} at most"
            remedy = "Write what differs from row to row as lists of names and of values."
            raise InvalidRequest(where, f"{found}, most of them without a value", expected=expected, remedy=remedy)
    return rows


def _add_names(value: object, path: tuple[str, ...], names: set[tuple[str, ...]]) -> None:
    if isinstance(value, dict):
        for name, part in value.items():
            names.add((*path, name))
            _add_names(part, (*path, name), names)
    elif isinstance(value, list):
        for part in value:
            _add_names(part, path, names)


# Tables in files of columns: Parquet, and Arrow's own formats.
#
# Light columns are read whole, and again only the columns of bytes, a batch at a time.


_BUFFER = 2**20  # of a file: without one, pyarrow reads a whole column of a row group at once
_BATCH = 64  # rows of bytes at a time; a page of them, which is what a writer made it, is in memory besides


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Say of whatever goes wrong in reading a table that it is the table's fault, but for a lack of memory."""
    try:
        yield
    except MemoryError:  # an ArrowException, too
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, ArithmeticError) as error:
        if is_out_of_memory(error):
            raise
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InvalidRequest(name, f"cannot be read: {(said.splitlines() or [type(error).__name__])[0]}") from None


def opened(path: str) -> pa.NativeFile | str:
    """Return what pyarrow can open: a path as it is, and an address as a file."""
    return pa.PythonFile(open_object(path), "r") if places.is_url(path) else path


def _fact(path: str) -> tuple[int, int, int]:
    fact = file_fact(path)
    return getattr(fact, "st_ino", 0), fact.st_size, fact.st_mtime_ns


class _Files(Table):
    """A table of files that are read again for their bytes; they must stay as they are meanwhile."""

    def __init__(self, path: str, files: list[str]) -> None:
        super().__init__(path)
        self._files = files
        self._facts = self._look()

    def _look(self) -> list[tuple[int, int, int]]:
        return list(places.for_each(_fact, self._files))

    def _check_same(self) -> None:
        try:
            same = self._look() == self._facts
        except OSError:
            same = False
        if not same:
            expected = "a table that stays as it was when the run began"
            remedy = f"Run it again; {create_again()} keeps what is finished."
            raise SampleFailed(self.where, "changed while it was read", expected=expected, remedy=remedy)


class ParquetTable(_Files):
    """A Parquet file, or the files of a folder; parts of their paths such as `year=2024/` are columns."""

    def __init__(self, path: str, files: list[str]) -> None:
        super().__init__(path, files)
        self._partitions = [_partition(os.path.relpath(file, path)) for file in files] if files != [path] else [{}]
        with readable(path):
            schemas = [file.schema_arrow for _, file in self._each()]
            self.classes, schema = classes_of(schemas[0]), schemas[0].remove_metadata()
            if len(schemas) > 1:
                schema = pa.unify_schemas(schemas, promote_options="permissive").remove_metadata()
        for name in sorted({name for one in self._partitions for name in one}):
            schema = schema if name in schema.names else schema.append(pa.field(name, pa.string()))
        self.schema = schema

    def _each(self, **reading: Any) -> Iterator[tuple[str, pq.ParquetFile]]:
        """Yield the path of each file, and what reads it."""
        import pyarrow.parquet as pq

        for path in self._files:
            with pq.ParquetFile(opened(path), **reading) as file:
                yield path, file

    def read(self, columns: list[str], _text: Collection[str], /) -> pa.Table:
        """Return some columns."""
        folders = [name for name in columns if any(name in one for one in self._partitions)]
        tables = []
        with readable(self.where):
            for (_, file), partition in zip(self._each(pre_buffer=False), self._partitions, strict=True):
                own = [name for name in file.schema_arrow.names if name in columns]
                table = _read_columns(file, own)
                for name in folders:
                    if name in partition and name not in own:
                        same = arrow.number_array(np.zeros(table.num_rows, np.int64))
                        table = table.append_column(name, arrow.texts([partition[name]]).take(same))
                tables.append(table)
            table = tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")
        self._check_same()
        for name in folders:
            at = table.column_names.index(name)
            table = table.set_column(at, name, numbers_of(table.column(at)))
        return table.select(columns)

    def count(self) -> int:
        """Return the number of rows."""
        with readable(self.where):
            return sum(file.metadata.num_rows for _, file in self._each())

    def batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield record batches of some columns."""
        with readable(self.where):
            for path, file in self._each(pre_buffer=False, buffer_size=_BUFFER):
                missing = [name for name in columns if name not in file.schema_arrow.names]
                if missing:
                    raise InvalidRequest(path, f"no column {listing([repr(name) for name in missing])}")
                yield from file.iter_batches(_BATCH, columns=columns, use_threads=False)
        self._check_same()

    def parts(self, column: str, part: str) -> Iterator[pa.Array]:
        """Yield a part of a column of structs; the others are not read."""
        for _, file in self._each(pre_buffer=False):
            for group in range(file.num_row_groups):
                for chunk in file.read_row_group(group, columns=[f"{column}.{part}"], use_threads=False)[0].chunks:
                    yield chunk.flatten()[chunk.type.get_field_index(part)]
        self._check_same()


def _read_columns(file: pq.ParquetFile, names: list[str]) -> pa.Table:
    """Return columns of a Parquet file.

    A column and a row group at a time, each column made one chunk at once: of five million rows that takes 550 MB
    where reading them as they come takes 750.
    """
    schema, columns = file.schema_arrow, []
    for name in names:
        groups = [
            file.read_row_group(at, columns=[name], use_threads=False).column(name) for at in range(file.num_row_groups)
        ]
        chunks = [chunk for group in groups for chunk in group.chunks]
        del groups
        columns.append(arrow.one_chunk(pa.chunked_array(chunks, schema.field(name).type)))
        del chunks
    pa.default_memory_pool().release_unused()
    return pa.Table.from_arrays(columns, names)


def classes_of(schema: pa.Schema) -> dict[str, list[str]]:
    """Return the names of classes of columns of their numbers, as Hugging Face's datasets leave them with a table.

    Source: huggingface/datasets, `arrow_writer.py` (the key `huggingface`) and `features/features.py` (`ClassLabel`).
    """
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        labels = {name: one["names"] for name, one in features.items() if one.get("_type") == "ClassLabel"}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
    return {
        name: recorded(names)
        for name, names in labels.items()
        if name in schema.names and pa.types.is_integer(schema.field(name).type) and are_names(names)
    }


def _partition(path: str) -> dict[str, str | None]:
    """Return what the folders of a path say, Hive's way: `year=2024`."""
    found: dict[str, str | None] = {}
    for part in path.split("/")[:-1]:
        name, equals, value = part.partition("=")
        if equals:
            found[unquote(name)] = None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value)
    return found


class ArrowTable(_Files):
    """An Arrow file, which is what Feather is, or the stream format, which Hugging Face datasets writes."""

    def __init__(self, path: str) -> None:
        super().__init__(path, [path])
        with self._reader(None) as reader:
            self.schema, self.classes = reader.schema.remove_metadata(), classes_of(reader.schema)

    @contextmanager
    def _reader(
        self, columns: list[str] | None, local: Callable[[str], pa.NativeFile] = pa.OSFile
    ) -> Iterator[pa.RecordBatchReader]:
        with local(self.where) if isinstance(found := opened(self.where), str) else found as file:
            fields = None if columns is None else [self.schema.get_field_index(name) for name in columns]
            options = pa.ipc.IpcReadOptions(included_fields=fields)
            try:
                reader = pa.ipc.open_file(file, options=options)
            except pa.ArrowInvalid:
                file.seek(0)
                reader = pa.ipc.open_stream(file, options=options)
            yield reader

    def read(self, columns: list[str], _text: Collection[str], /) -> pa.Table:
        """Return some columns."""
        if not columns:
            return pa.table({})
        with readable(self.where), self._reader(columns) as reader:
            table = reader.read_all()
        self._check_same()
        return table

    def batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield record batches of some columns."""
        with readable(self.where), self._reader(columns, pa.memory_map) as reader:  # a batch may be the whole file
            if isinstance(reader, pa.RecordBatchFileReader):
                for at in range(reader.num_record_batches):
                    yield reader.get_batch(at)
            else:
                yield from reader
        self._check_same()


_MOST_SECONDS = 2**63 // 1000 - 1  # Parquet has no seconds: sidecars hold milliseconds
_STDIN = "stdin"
_NESTED = ("list", "dict", "tuple", "ndarray")


def open_table(source: object, named: Collection[str], form: TextForm = BY_NAME) -> Table:
    """Return the table that `source` is.

    Args:
        source: See `is_table`.
        named: The columns that the request names: where there are any, standard input is a table.
        form: How it is written, where its name does not say it.

    Raises:
        InvalidRequest: There is none, it cannot be read, it is no text where it should be, or it has too many columns,
            or one that is nested too deep.
    """
    path = os.fspath(source) if isinstance(source, str | os.PathLike) else None
    table = _in_memory(source) if path is None else _open_path(path, named, form)
    if form != BY_NAME and not isinstance(table, DelimitedTable):
        given = option("delimiter" if form.delimiter else "no_header")
        raise InvalidRequest(table.where, f"used with {given}", expected="a CSV, or other text with delimiters")
    with readable(table.where):  # names may be no UTF-8
        check_names(table.where, table.schema.names)
        check_shape(table.where, table.schema)
    return table


def _open_path(path: str, named: Collection[str], form: TextForm) -> Table:
    if path == "-":
        return _standard_input(sys.stdin.buffer.read(), named, form)
    is_remote = places.is_url(path)
    if kinds.is_glob(path) and (files := kinds.parquet_files(path)):
        return ParquetTable(path, files)
    if not is_remote and not os.path.exists(path):
        _refuse_glob(path)
        raise InvalidRequest(path, "no such file or folder", expected="a table", remedy=places.similar_path(path))
    if kinds.table_ending(path) if is_remote else not os.path.isdir(path):
        with readable(path):
            return _open_file(path, form)
    files = kinds.parquet_files(path)
    if not files:
        raise InvalidRequest(path, "a folder", expected="one that holds Parquet files only")
    return ParquetTable(path, files)


def _refuse_glob(path: str) -> None:
    """Refuse a glob of tables other than Parquet.

    Raises:
        InvalidRequest: It matches files.
    """
    if not any(mark in places.base_name(path) for mark in "*?["):
        return
    folder = places.folder_of(path)
    names = fnmatch.filter(places.names_in(folder), places.base_name(path))
    if not names:
        raise InvalidRequest(path, "a glob that matches no file", expected="a table, or a glob of Parquet files")
    files = [places.join(folder, name) for name in names]
    found, remedy = f"a glob of {counted(len(files), 'file')}", kinds.joining(files)
    remedy = f"Name the file: {printable(files[0])}." if len(files) == 1 else remedy
    raise InvalidRequest(path, found, expected="one table, or a glob of Parquet files", remedy=remedy)


def _open_file(path: str, form: TextForm) -> Table:
    ending = kinds.table_ending(path)
    if ending == kinds.PARQUET:
        return ParquetTable(path, [path])
    if ending in kinds.ARROW:
        return ArrowTable(path)
    if ending == kinds.JSON:
        return _read_json_file(path)
    if ending in kinds.SEPARATORS or (form.delimiter and ending not in kinds.JSON_LINES):
        return DelimitedTable(path, _opener(path), form, kinds.SEPARATORS.get(ending, ""))
    if ending in kinds.JSON_LINES:
        return MemoryTable(path, read_json_lines(path, _opener(path)))
    remedy = f"Of a text, {option('delimiter')} says what stands between the values."
    raise InvalidRequest(path, "no table", expected="CSV, TSV, JSON, Parquet or Feather", remedy=remedy)


def _read_json_file(path: str) -> MemoryTable:
    """Return the table of an array of rows, or of COCO's annotations."""
    from shardtool.table.json_file import ON, JsonStream, lines_of, read_coco

    with _opener(path)() as stream:
        document = JsonStream(path, stream)
        if document.peek() == "{":
            table, classes, notes = read_coco(path, document)
            found = MemoryTable(path, table)
            found.classes, found.on, found.notes = classes, ON, notes
            return found
        lines = lines_of(path, document)
    return MemoryTable(path, read_json_lines(path, lambda: pa.input_stream(lines, compression="lz4")))


def _opener(path: str) -> Callable[[], BinaryIO]:
    if places.is_url(path):
        blob = open_blob(path)
        data = pa.py_buffer(blob.read(0, blob.size))  # a text is read more than once
        packed = next(
            (kind for ending, kind in kinds.PACKED.items() if places.base_name(path).lower().endswith(ending)), None
        )
        return lambda: pa.input_stream(data, compression=packed)
    return lambda: pa.input_stream(path, compression="detect")


def read_columns(table: Table, names: Collection[str], text: Collection[str]) -> dict[str, pa.ChunkedArray]:
    """Return columns without bytes, an array in its plain type each, in the order of the table.

    Args:
        table: What to read.
        names: The columns.
        text: Where types are inferred, the columns that stay text.

    Raises:
        InvalidRequest: The table cannot be read, or holds text that is no UTF-8.
    """
    with readable(table.where):
        found = table.read([name for name in table.schema.names if name in names], text)
        columns = {}
        columns_left = found.columns[::-1]
        names_left, found = found.column_names, None
        for name in names_left:
            column = columns_left.pop()  # so that it is not in memory twice
            check_sound(table.where, name, column)
            columns[name] = arrow.one_chunk(arrow.plain(column))
            del column
    return columns


def _standard_input(data: bytes, named: Collection[str], form: TextForm) -> Table:
    """Return the table of what came in: paths, a line each, or a CSV or TSV with a header that can only be one."""
    name = "standard input"
    line, _, rest = data.partition(b"\n")
    header = line.decode("utf-8-sig", "replace").strip("\r")
    separator = "\t" if "\t" in header else ","
    cells = {cell.strip('"') for cell in header.split(separator)}
    usual = {cell.casefold() for cell in cells} & set(PATH_NAMES)
    if b"\0" not in data and (form != BY_NAME or cells & set(named) or (usual and len(cells) > 1)):
        with readable(name):
            return DelimitedTable(name, lambda: io.BytesIO(data), form, separator, _STDIN)
    if usual and b"\0" not in data:  # a column of paths with its header
        data = rest
    return MemoryTable(name, read_list(name, data, "path"), _STDIN)


def _in_memory(source: object) -> MemoryTable:
    """Return the table that an object is, or gives."""
    name = type(source).__name__
    with readable(name):
        if isinstance(source, pa.Table):
            table = source
        elif kinds.is_frame(source):
            table = _from_pandas(name, source)
        elif hasattr(source, "__arrow_c_stream__"):
            table = pa.RecordBatchReader.from_stream(source).read_all()
        elif isinstance(source, Mapping) or hasattr(source, "__arrow_c_array__"):
            table = pa.Table.from_batches([pa.record_batch(source)])
        else:
            expected = "a path, a DataFrame, an Arrow table, or a dict of columns"
            raise InvalidRequest(f"{source!r:.80}", "neither a path nor a table", expected=expected)
    found = MemoryTable(name, table, name)
    found.classes = classes_of(table.schema)
    return found


def _from_pandas(name: str, frame: pd.DataFrame) -> pa.Table:
    """Return a DataFrame as Arrow; an index with names is columns, any other is left out.

    Raises:
        InvalidRequest: A column holds values of several types.
    """
    columns = [str(column) for column in frame.columns]
    check_names(name, columns)
    keep = all(level is not None for level in frame.index.names)
    try:
        return pa.Table.from_pandas(frame, preserve_index=keep).replace_schema_metadata(None)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        paths = [at for at in range(len(columns)) if any(isinstance(one, os.PathLike) for one in frame.iloc[:, at])]
        if paths:
            return _from_pandas(name, _with_paths_as_text(frame, paths))
        for at, column in enumerate(columns):
            _check_values(name, column, frame, at)
        raise


def _with_paths_as_text(frame: pd.DataFrame, columns: list[int]) -> pd.DataFrame:
    """Return a DataFrame with text in place of path objects in some columns."""
    found: pd.DataFrame = frame.copy(deep=False)
    for at in columns:
        found.isetitem(at, [os.fsdecode(one) if isinstance(one, os.PathLike) else one for one in frame.iloc[:, at]])
    return found


def _check_values(name: str, column: str, frame: pd.DataFrame, at: int) -> None:
    """Refuse a column of a DataFrame that Arrow cannot hold."""
    values = frame.iloc[:, at]
    try:
        pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        kinds: dict[str, list[int]] = {}
        for row, (value, missing) in enumerate(zip(values.tolist(), values.isna(), strict=True), 1):
            if not missing:
                kinds.setdefault(type(value).__name__, []).append(row)
        if len(kinds) > 1:
            raise mixed_types(name, column, kinds) from None
        held = printable(next(iter(kinds), "nothing"))
        found = f"column {column!r} holds {held} in {counted(len(values), 'row')}"
        if next(iter(kinds), "") not in _NESTED:
            raise InvalidRequest(name, found, expected="values that Arrow knows") from None
        found += f" whose parts differ in type: {str(error).splitlines()[0]}"
        as_json = f"{option('values', {'json': column})} with {option('meta', 'none')}"
        remedy = f"Make it text, frame[{column!r}].map(json.dumps): {as_json} takes it for the field json."
        raise InvalidRequest(name, found, expected="parts of one type in all rows", remedy=remedy) from None


def check_sound(where: str, name: str, column: pa.ChunkedArray) -> None:
    """Refuse a column, a chunked array, that is not what its type says, and text that is no UTF-8: no reader looks.

    Raises:
        InvalidRequest: It is not.
    """
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        kind = column.type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            column.validate()
            found = f"column {name!r}: text that is no UTF-8"
            Rows(where, {}, None).refuse(_undecodable(column), found, expected="UTF-8", remedy=_RECODE)
        raise InvalidRequest(where, f"column {name!r}: {str(error).splitlines()[0]}") from None
    if pa.types.is_timestamp(column.type) and column.type.unit == "s":
        seconds = column.cast(pa.int64()).combine_chunks().fill_null(0).to_numpy()
        found = f"column {name!r}: a time that Parquet cannot hold"
        expected = "milliseconds since 1970 of 63 bits"
        Rows(where, {}, None).refuse(np.flatnonzero(np.abs(seconds) > _MOST_SECONDS), found, expected=expected)


def _undecodable(column: pa.ChunkedArray) -> NDArray[np.int64]:
    wide = pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary()
    values = (value for chunk in column.chunks for value in chunk.view(wide).to_pylist())
    return np.array([at for at, value in enumerate(values) if value is not None and not is_utf8(value)], np.int64)
