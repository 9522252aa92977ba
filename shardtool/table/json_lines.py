"""JSON lines, checked before pyarrow reads them.

pyarrow's reader kills the process on a line that is `null` and on deep nesting, accepts objects that span lines,
and
allocates a value in every row for each name that any line uses. Therefore each line must be one object, nested at
most `MAX_NESTING` levels, and names times rows must be in proportion to the bytes. Marks are counted a block at a
time; only suspicious lines are parsed here. Text stays text, even if it looks like a time. Integers beyond 64 bits
become floats.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa

from shardtool.entries import arrow
from shardtool.errors import InvalidRequest, printable
from shardtool.table.base import HEADER_BYTES, READ_BLOCK_BYTES, UTF8_MARK, check_text_start, read_in_blocks
from shardtool.table.limits import (
    MAX_COLUMNS,
    MAX_NESTING,
    MAX_ROW_BYTES,
    check_shape,
    column_count_error,
    nesting_error,
    row_size_error,
)
from shardtool.table.rows import mixed_types_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Opened = Callable[[], BinaryIO]


def read_json_lines(name: str, opened: Opened) -> pa.Table:
    """Return a table of JSON objects, one per line; text that looks like a time stays text.

    Raises:
        InvalidRequest: A line that is no object, or a column of several types.
    """
    with opened() as stream:
        check_text_start(name, stream.read(HEADER_BYTES))
    rows = check_json_lines(name, opened)
    try:
        table = _read_json(opened, None)
        check_shape(name, table.schema)
        if any(_times_as_text(one.type) != one.type for one in table.schema):
            table = _read_json(opened, pa.schema([one.with_type(_times_as_text(one.type)) for one in table.schema]))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _json_error(name, opened, str(error)) from None
    if table.num_rows != rows:  # an object of several lines, or several in one
        raise _json_error(name, opened, "not one object a line")
    return arrow.compact_table(table)


def _read_json(opened: Opened, schema: pa.Schema | None) -> pa.Table:
    from pyarrow import json as arrow_json

    parse = arrow_json.ParseOptions(explicit_schema=schema)

    def read(block: int) -> pa.Table:
        with opened() as stream:
            return arrow_json.read_json(stream, arrow_json.ReadOptions(block_size=block), parse)

    return read_in_blocks(read)


def _times_as_text(kind: pa.DataType) -> pa.DataType:
    """Return an inferred type with text for timestamps."""
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_times_as_text(kind.value_type)))
    if pa.types.is_struct(kind):
        parts = [kind.field(at) for at in range(kind.num_fields)]
        return pa.struct([part.with_type(_times_as_text(part.type)) for part in parts])
    return kind


def _json_error(name: str, opened: Opened, said: str) -> InvalidRequest:
    """Return the error for what pyarrow could not read, found line by line."""
    kinds: dict[str, dict[str, list[int]]] = {}
    for number, row, _ in _iter_rows(name, opened):
        for column, value in row.items():
            if value is not None:
                kinds.setdefault(column, {}).setdefault(_json_type(value), []).append(number)
    for column, found in kinds.items():
        if len(found) > 1:
            return mixed_types_error(name, column, found)
    if not kinds:
        return InvalidRequest(name, "empty", expected="one JSON object a line")
    said = re.sub(r"^JSON parse error: |in row [0-9]+$", "", said.splitlines()[0])  # its rows count from anywhere
    return InvalidRequest(name, f"cannot be read: {said.strip()}", expected="JSON objects with values of one type")


_WHITE = b" \t\r\n"


_SUSPICIOUS = (
    re.compile(rb"}[ \t\r]*(?:null|{)"),  # a second value in a line
    re.compile(rb'"[ \t\r]+:'),  # a name, and white space before its colon
    re.compile(rb'\\"[^"]*":'),  # a name that holds a quotation mark
)


_NON_MARKS = bytes({*range(256)} - {*b'"[]{}'})


_MIN_CELL_LIMIT = 5 * 10**7  # of a file of any size: half a gigabyte


_CELLS_PER_BYTE = 2  # a value that is there takes six bytes or more in the file, and eight in memory


def check_json_lines(where: str, opened: Opened) -> int:
    """Return the number of lines that are not blank, or refuse those that the table's reader cannot be given.

    Raises:
        InvalidRequest: A line that is no object or nested too deep, or far too many names.
    """
    names, rows, size = set[bytes](), 0, 0
    with opened() as stream:
        for block in read_line_blocks(where, stream):
            data, size = block.strip(_WHITE), size + len(block)
            if not _is_plain_block(data):
                found, rows = _collect_names(where, rows, data)
                names |= found
            else:
                rows += data.count(b"\n") + 1
                names.update([part.rpartition(b'"')[2] for part in data.split(b'":')[:-1]])  # and what texts look like
            if _has_too_many_cells(len(names), rows, size):
                return _check_each_line(where, opened)
    return rows


def _collect_names(where: str, rows: int, data: bytes) -> tuple[set[bytes], int]:
    """Return the names in some lines, each parsed, and the number of lines with these."""
    found = set[tuple[str, ...]]()
    for line in data.split(b"\n"):
        if line.strip(_WHITE):
            rows += 1
            _add_names(_read_line(where, rows, line), (), found)
    return {path[-1].encode("utf-8", "surrogatepass") for path in found}, rows


def _is_plain_block(data: bytes) -> bool:
    """Tell whether lines look like one object each, not too deep, and have no names but before `":`."""
    others, ends = data.count(b"\n"), data.count(b"}\n")
    if ends < others:
        ends += data.count(b"}\r\n")
    if not data.count(b"\n{") == ends == others or data[:1] != b"{" or data[-1:] != b"}":
        return False
    if any(odd.search(data) for odd in _SUSPICIOUS):
        return False
    if data.count(b"{") + data.count(b"[") <= others + MAX_NESTING:
        return True
    lines = data.split(b"\n")
    return not any(line.count(b"{") + line.count(b"[") > MAX_NESTING and _is_deep(line) for line in lines)


def _is_deep(line: bytes) -> bool:
    """Tell whether more than `MOST_LEVELS` brackets stand open at once, or some are not closed."""
    marks = re.sub(rb'"[^"]*"', b"", re.sub(rb"\\.", b"", line).translate(None, _NON_MARKS))
    for _ in range(MAX_NESTING):
        marks = re.sub(rb"\[\]|{}", b"", marks)
    return bool(marks)


def read_line_blocks(where: str, stream: BinaryIO) -> Iterator[bytes]:
    """Yield whole lines, about a mebibyte at a time, without a byte-order mark.

    Raises:
        InvalidRequest: A line is too long.
    """
    parts: list[bytes] = []
    held, first = 0, True
    while data := stream.read(READ_BLOCK_BYTES):
        if first:
            data, first = data.removeprefix(UTF8_MARK), False
        end = data.rfind(b"\n") + 1
        if end:
            yield b"".join([*parts, data[:end]])
            parts, held, data = [], 0, data[end:]
        held += len(data)
        if held > MAX_ROW_BYTES:
            raise row_size_error(where)
        parts.append(data)
    if held:
        yield b"".join(parts)


def _iter_rows(where: str, opened: Opened) -> Iterator[tuple[int, dict[str, object], int]]:
    """Yield the number of each line that is not blank, its object, and how many bytes were read so far."""
    number = size = 0
    with opened() as stream:
        for data in read_line_blocks(where, stream):
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
        raise nesting_error(f"{where}, row {number:,}") from None
    except ValueError as error:
        said = str(error).partition(":")[0]
        raise _line_error(where, number, line, said[:1].lower() + said[1:]) from None
    if not isinstance(row, dict):
        raise _line_error(where, number, line, f"a JSON {_json_type(row)}")
    if _nesting_depth(row) > MAX_NESTING:
        raise nesting_error(f"{where}, row {number:,}")
    return row


def _nesting_depth(value: object) -> int:
    """Return how deep lists and objects lie in each other."""
    found, level = 0, [value]
    while level := [one for one in level if isinstance(one, dict | list)]:
        found += 1
        level = [part for one in level for part in (one.values() if isinstance(one, dict) else one)]
    return found


def _json_type(value: object) -> str:
    """Return what a JSON value is called."""
    names = {bool: "truth", int: "number", float: "number", str: "text", list: "list", dict: "object"}
    return names.get(type(value), "null")


def _line_error(where: str, number: int, line: bytes, found: str) -> InvalidRequest:
    """Return the error for a line that is no object."""
    remedy = f"It begins with '{printable(line[:60].strip())}'."
    if number == 1 and line.lstrip()[:1] == b"[":
        remedy = "`jq -c '.[]'` makes lines of a JSON array."
    return InvalidRequest(where, f"row {number:,}: {found}", expected="one JSON object a line", remedy=remedy)


def _has_too_many_cells(count: int, rows: int, size: int) -> bool:
    return count > MAX_COLUMNS or count * rows > max(_MIN_CELL_LIMIT, _CELLS_PER_BYTE * size)


def _check_each_line(where: str, opened: Opened) -> int:
    """Return the number of lines, parsed one by one; see `check_json_lines`."""
    tops, names = set[str](), set[tuple[str, ...]]()
    rows = 0
    size = 0
    for rows, row, size in _iter_rows(where, opened):
        tops.update(row)
        _add_names(row, (), names)
        if len(tops) > MAX_COLUMNS:
            raise column_count_error(where)
        if _has_too_many_cells(len(names), rows, size):
            found = f"{len(names):,} different names in objects of the first {rows:,} rows"
            expected = f"the same names in most rows, {MAX_COLUMNS:,} at most"
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
