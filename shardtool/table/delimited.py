"""CSV, TSV and other text with a delimiter.

pyarrow reads the text. This module reports what pyarrow does not: a header with another delimiter, and the numbers
of
rows that do not fit. Row 1 is the first after the header; empty lines are not rows.

Column types are inferred from all values (integers, booleans, dates, times, floats, text). Columns that the caller
names stay text, because the key 1e5 is not 100000. Columns with a number such as 007, or with more digits than a
float holds, stay text too. `NA` and an empty cell are text in text columns and null in others.
"""

from __future__ import annotations

import csv
import io
import re
from contextlib import suppress
from shlex import quote
from typing import TYPE_CHECKING, BinaryIO, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries import arrow
from shardtool.errors import InvalidRequest, format_list, printable
from shardtool.messages import choose_text
from shardtool.table.base import HEADER_BYTES, READ_BLOCK_BYTES, RECODE_HINT, Table, check_text_start, read_in_blocks
from shardtool.table.limits import (
    row_size_error,
)
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pyarrow.csv import InvalidRow

    from shardtool.request.option_values import DelimitedFormat

    Opened = Callable[[], BinaryIO]


_MAX_LISTED_ROWS = 5  # rows in a message


_LEADING_ZERO = r"^\s*[+-]?0[0-9]"


_TAIL_BYTES = 64  # bytes that surely hold what ends a file


_MAX_EXACT_FLOAT = 2.0**53  # from here on a float holds not every whole number


_DELIMITER_NAMES = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}


_TAB = "\t"


_UNQUOTED_DELIMITER = "|"  # between values in which quotation marks are text, as in those of LJSpeech


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

    def __init__(self, where: str, opened: Opened, form: DelimitedFormat, separator: str, name: str = "") -> None:
        super().__init__(where, name)
        self._opened, self._separator = opened, form.delimiter or separator
        self._header, self._quoted = form.header, self._separator != _UNQUOTED_DELIMITER
        self._table: pa.Table | None = None
        with opened() as stream:
            head = stream.read(HEADER_BYTES)
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
            self._table = arrow.compact_table(self._typed(frozenset(text) & set(self.schema.names)))
        return self._table.select(columns)

    def _typed(self, text: frozenset[str]) -> pa.Table:
        table = self._read(text)
        long = [
            one.name
            for one in table.schema
            if pa.types.is_floating(one.type) and _has_inexact_integers(table[one.name])
        ]
        tests = (pa.types.is_floating, pa.types.is_integer)
        numbers = [one.name for one in table.schema if any(test(one.type) for test in tests)]
        zeros = numbers if numbers and self._has_zeros() else []
        if not long and not zeros:
            return table
        texts = self._read(text.union(long, zeros))
        odd = [one for one in zeros if pc.any(pc.match_substring_regex(texts[one], _LEADING_ZERO)).as_py()]
        for name in {*long, *odd}:
            table = table.set_column(table.column_names.index(name), name, texts[name])
        return table

    def _has_zeros(self) -> bool:
        """Tell whether there may be a value such as 007, which is no number: seen in the bytes."""
        zeros, last = re.compile(rb'0(?<=[%b\n\r" +-]0)[0-9]' % re.escape(self._separator.encode())), b"\n"
        with self._opened() as stream:
            while data := stream.read(READ_BLOCK_BYTES):
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
                raise row_size_error(self.where) from None
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
            found.append(row if len(found) < _MAX_LISTED_ROWS else None)
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
        return read_in_blocks(read)

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
            while data := stream.read(READ_BLOCK_BYTES):
                tail = (tail + data)[-_TAIL_BYTES:]
        if not tail.rstrip(b"\r\n").endswith(b'"'):
            found = f"row {table.num_rows:,}: a quotation mark that is not closed, up to the end of the file"
            expected = "text between two quotation marks, with those inside of it doubled"
            raise InvalidRequest(self.where, found, expected=expected)

    def _ragged(self) -> InvalidRequest:
        """Return the error for rows with another number of values than the header, found in a second pass."""
        noted: list[InvalidRow | None] = []
        with suppress(pa.ArrowInvalid):
            self._parse(self.schema.names[:1], noted)
        rows = [row for row in noted[:_MAX_LISTED_ROWS] if row is not None]
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
        what = f"{pluralize(len(noted), 'row')} with more or fewer values than {whose}: {format_list(found, total=len(noted))}"
        return InvalidRequest(self.where, what, expected=f"{rows[0].expected_columns}", remedy=remedy)


def _first_row(name: str, head: bytes, separator: str, form: DelimitedFormat) -> list[str]:
    """Return the values of the first row, which are the names of the columns where it is the header."""
    text = check_text_start(name, head).decode("utf-8", "surrogateescape")
    quoting: Literal[0, 3] = csv.QUOTE_NONE if separator == _UNQUOTED_DELIMITER else csv.QUOTE_MINIMAL
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
        other = next((one for one in _DELIMITER_NAMES if one != separator and one in names[0]), None)
        if other:
            called = other.replace(_TAB, "tab")
            remedy = choose_text(f"delimiter={called!r} reads it.", f"--delimiter {quote(called)} reads it.")
            found = f"one column, '{printable(names[0])}': {_DELIMITER_NAMES[other]} between the values"
            expected = _DELIMITER_NAMES.get(separator, repr(separator))
            raise InvalidRequest(name, found, expected=expected, remedy=remedy)
    if form.header and any("\udc80" <= char <= "\udcff" for char in "".join(names)):
        raise InvalidRequest(name, "a header that is no UTF-8", expected="text in UTF-8", remedy=RECODE_HINT)
    return names


def _has_inexact_integers(column: pa.ChunkedArray) -> bool:
    """Tell whether a column inferred as floats holds whole numbers that floats cannot."""
    large = False
    for chunk in column.chunks:
        values = arrow.number_values(chunk.drop_null())
        if not np.all(values == np.floor(values)):
            return False
        large = large or bool(np.any((np.abs(values) >= _MAX_EXACT_FLOAT) & np.isfinite(values)))
    return large
