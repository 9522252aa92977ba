"""Read CSV, TSV and other delimited text with pyarrow.

Empty lines are ignored and not counted as rows.

The type of a column is inferred from all its values. The following columns are read as text:

- columns that the caller requests as text, such as keys, because 1e5 and 100000 are different keys
- columns with a value such as 007
- columns with whole numbers that a float cannot represent exactly

`NA` and empty cells are text in a text column, and null in other columns.
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
from shardtool.table.columns import row_size_error
from shardtool.units import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pyarrow.csv import InvalidRow

    from shardtool.request.option_values import DelimitedFormat

    Opened = Callable[[], BinaryIO]


_MAX_LISTED_ROWS = 5
_LEADING_ZERO = r"^\s*[+-]?0[0-9]"
_TAIL_BYTES = 64
_MAX_EXACT_FLOAT = 2.0**53
_DELIMITER_NAMES = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
_TAB = "\t"
_UNQUOTED_DELIMITER = "|"  # with this delimiter, quotation marks are text, as in LJSpeech


class DelimitedTable(Table):
    """Delimited text, such as CSV. In `schema`, all columns are text, because types are inferred later."""

    def __init__(self, location: str, opened: Opened, form: DelimitedFormat, separator: str, name: str = "") -> None:
        super().__init__(location, name)
        self._open = opened
        self._separator = form.delimiter or separator
        self._has_header, self._quoted = form.header, self._separator != _UNQUOTED_DELIMITER
        self._table: pa.Table | None = None
        with opened() as stream:
            head = stream.read(HEADER_BYTES)
        names = _first_row(location, head, self._separator, form)
        names = names if form.header else [str(number) for number in range(1, len(names) + 1)]
        self.schema = pa.schema([(column, pa.string()) for column in names])

    def read(self, columns: list[str], text: Collection[str], /) -> pa.Table:
        """Read columns. The first call reads the whole file, so later calls ignore `text`."""
        if self._table is None:
            self._table = arrow.compact_table(self._read_typed(frozenset(text) & set(self.schema.names)))
        return self._table.select(columns)

    def _read_typed(self, text_columns: frozenset[str]) -> pa.Table:
        table = self._read_text(text_columns)
        floats = [column.name for column in table.schema if pa.types.is_floating(column.type)]
        inexact = [name for name in floats if _has_inexact_integers(table[name])]
        type_tests = (pa.types.is_floating, pa.types.is_integer)
        numbers = [column.name for column in table.schema if any(test(column.type) for test in type_tests)]
        number_columns = numbers if numbers and self._has_leading_zeros() else []
        if not inexact and not number_columns:
            return table
        texts = self._read_text(text_columns.union(inexact, number_columns))
        matches = {name: pc.match_substring_regex(texts[name], _LEADING_ZERO) for name in number_columns}
        zero_padded = [name for name in matches if pc.any(matches[name]).as_py()]
        for name in {*inexact, *zero_padded}:
            table = table.set_column(table.column_names.index(name), name, texts[name])
        return table

    def _has_leading_zeros(self) -> bool:
        pattern = re.compile(rb'0(?<=[%b\n\r" +-]0)[0-9]' % re.escape(self._separator.encode()))
        tail = b"\n"
        with self._open() as stream:
            while data := stream.read(READ_BLOCK_BYTES):
                if pattern.search(tail + data):
                    return True
                tail = data[-2:]  # a match may start in the previous block
        return False

    def _read_text(self, text_columns: frozenset[str]) -> pa.Table:
        try:
            table = self._parse(text_columns)
        except pa.ArrowInvalid as error:
            message = str(error)
            if "Empty CSV" in message:
                return self.schema.empty_table()
            if "straddl" in message:
                raise row_size_error(self.location) from None
            if "CSV parse error: Expected" in message:
                raise self._row_length_error() from None
            raise
        if self._quoted:
            self._check_last_quote(table)
        return table

    def _parse(self, text_columns: Collection[str], invalid_rows: list[InvalidRow | None] | None = None) -> pa.Table:
        from pyarrow import csv as arrow_csv

        def on_invalid_row(row: InvalidRow) -> str:
            bad_rows.append(row if len(bad_rows) < _MAX_LISTED_ROWS else None)
            return "skip"

        def read(block: int) -> pa.Table:
            bad_rows.clear()
            with self._open() as stream:
                # pyarrow reports row numbers only without threads.
                options = arrow_csv.ReadOptions(use_threads=invalid_rows is None, block_size=block, column_names=names)
                # pyarrow prints a traceback if an invalid row is not UTF-8, so read Latin-1, which accepts any bytes.
                text = stream if invalid_rows is None else pa.transcoding_input_stream(stream, "latin-1", "utf-8")
                return arrow_csv.read_csv(text, read_options=options, parse_options=parse, convert_options=convert)

        bad_rows = [] if invalid_rows is None else invalid_rows
        handler = None if invalid_rows is None else on_invalid_row
        names = None if self._has_header else self.schema.names
        included = None if invalid_rows is None else [*text_columns]
        types = dict.fromkeys(text_columns, pa.string())
        convert = arrow_csv.ConvertOptions(column_types=types, include_columns=included, check_utf8=False)
        quote = '"' if self._quoted else False
        parse = arrow_csv.ParseOptions(
            delimiter=self._separator, quote_char=quote, newlines_in_values=self._quoted, invalid_row_handler=handler
        )
        return read_in_blocks(read)

    def _check_last_quote(self, table: pa.Table) -> None:
        # After an unclosed quotation mark, pyarrow returns the remaining rows as one value, without an error.
        last_column = table.column(table.num_columns - 1)
        if not table.num_rows or not pa.types.is_string(last_column.type):
            return
        value = last_column[-1].as_buffer()
        if value is None or b"\n" not in value.to_pybytes():
            return
        tail = b""
        with self._open() as stream:
            while data := stream.read(READ_BLOCK_BYTES):
                tail = (tail + data)[-_TAIL_BYTES:]
        if not tail.rstrip(b"\r\n").endswith(b'"'):
            found = f"row {table.num_rows:,}: an opening quotation mark that is never closed"
            expected = "a closing quotation mark; quotation marks inside a value are doubled"
            raise InvalidRequest(self.location, found, expected=expected)

    def _row_length_error(self) -> InvalidRequest:
        invalid_rows: list[InvalidRow | None] = []
        with suppress(pa.ArrowInvalid):
            self._parse(self.schema.names[:1], invalid_rows)
        rows = [row for row in invalid_rows[:_MAX_LISTED_ROWS] if row is not None]
        reference = "the header" if self._has_header else "row 1"
        if not rows:
            return InvalidRequest(self.location, f"rows with more or fewer values than {reference}")
        header_rows = int(self._has_header)
        found = [f"row {row.number - header_rows} has {row.actual_columns}" for row in rows]
        first = rows[0].text.encode("latin-1", "replace")
        shown = printable((first.splitlines() or [b""])[0][:60])
        remedy = f"Row {rows[0].number - header_rows} starts with '{shown}'."
        if self._quoted and '"' in shown and b"\n" in first:
            remedy += " Check for a quotation mark that is not closed."
        count = pluralize(len(invalid_rows), "row")
        problem = f"{count} with more or fewer values than {reference}: {format_list(found, total=len(invalid_rows))}"
        return InvalidRequest(self.location, problem, expected=f"{rows[0].expected_columns}", remedy=remedy)


def _first_row(name: str, head: bytes, separator: str, form: DelimitedFormat) -> list[str]:
    text = check_text_start(name, head).decode("utf-8", "surrogateescape")
    quoting: Literal[0, 3] = csv.QUOTE_NONE if separator == _UNQUOTED_DELIMITER else csv.QUOTE_MINIMAL
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator, quoting=quoting)
    expected = "a first row with column names" if form.header else "a row for each sample"
    try:
        names = next((row for row in rows if row), [])
    except csv.Error as error:
        raise InvalidRequest(name, f"no first row: {error}", expected=expected) from None
    if not names:
        raise InvalidRequest(name, "empty", expected=expected)
    if not form.header and form.delimiter:
        return names
    if len(names) == 1:
        others = [delimiter for delimiter in _DELIMITER_NAMES if delimiter != separator and delimiter in names[0]]
        if other_delimiter := next(iter(others), None):
            delimiter_name = other_delimiter.replace(_TAB, "tab")
            remedy = choose_text(f"Use delimiter={delimiter_name!r}.", f"Use --delimiter {quote(delimiter_name)}.")
            found = f"one column, '{printable(names[0])}': {_DELIMITER_NAMES[other_delimiter]} between the values"
            expected = _DELIMITER_NAMES.get(separator, repr(separator))
            raise InvalidRequest(name, found, expected=expected, remedy=remedy)
    if form.header and any("\udc80" <= char <= "\udcff" for char in "".join(names)):
        raise InvalidRequest(name, "header is not valid UTF-8", expected="text in UTF-8", remedy=RECODE_HINT)
    return names


def _has_inexact_integers(column: pa.ChunkedArray) -> bool:
    large = False
    for chunk in column.chunks:
        values = arrow.number_values(chunk.drop_null())
        if not np.all(values == np.floor(values)):
            return False
        large = large or bool(np.any((np.abs(values) >= _MAX_EXACT_FLOAT) & np.isfinite(values)))
    return large
