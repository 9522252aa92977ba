"""Check JSON lines, and read them with pyarrow.

The checks are needed because of how pyarrow reads JSON lines:

- It crashes if a line is `null`, or if values are deeply nested.
- It accepts objects that span several lines, and several objects on one line.
- It uses memory for each name in each row, even if the row does not have the name.

Each line must therefore be one object with at most `MAX_NESTING` levels. The number of names times the number of rows
must not exceed a limit, which grows with the file size. Python parses the blocks that may break these rules, and
pyarrow all others.

Timestamps stay text. Integers of more than 64 bits become floats.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa

from shardtool.entries import arrow
from shardtool.errors import InvalidRequest, printable
from shardtool.table.base import HEADER_BYTES, READ_BLOCK_BYTES, UTF8_MARK, check_text_start, read_in_blocks
from shardtool.table.columns import (
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


def read_json_lines(name: str, open_stream: Opened) -> pa.Table:
    """Return the objects as a table with one row per line."""
    with open_stream() as stream:
        check_text_start(name, stream.read(HEADER_BYTES))
    rows = check_json_lines(name, open_stream)
    try:
        table = _read_json(open_stream, None)
        check_shape(name, table.schema)
        if any(_times_as_text(field.type) != field.type for field in table.schema):
            schema = pa.schema([field.with_type(_times_as_text(field.type)) for field in table.schema])
            table = _read_json(open_stream, schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _json_error(name, open_stream, str(error)) from None
    if table.num_rows != rows:
        raise _json_error(name, open_stream, "not one object per line")
    return arrow.compact_table(table)


def _read_json(open_stream: Opened, schema: pa.Schema | None) -> pa.Table:
    from pyarrow import json as arrow_json

    parse = arrow_json.ParseOptions(explicit_schema=schema)

    def read(block: int) -> pa.Table:
        with open_stream() as stream:
            return arrow_json.read_json(stream, arrow_json.ReadOptions(block_size=block), parse)

    return read_in_blocks(read)


def _times_as_text(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_times_as_text(kind.value_type)))
    if pa.types.is_struct(kind):
        parts = [kind.field(index) for index in range(kind.num_fields)]
        return pa.struct([part.with_type(_times_as_text(part.type)) for part in parts])
    return kind


def _json_error(name: str, open_stream: Opened, message: str) -> InvalidRequest:
    kinds: dict[str, dict[str, list[int]]] = {}
    for number, row, _ in _iter_rows(name, open_stream):
        for column, value in row.items():
            if value is not None:
                kinds.setdefault(column, {}).setdefault(_json_type(value), []).append(number)
    for column, types in kinds.items():
        if len(types) > 1:
            return mixed_types_error(name, column, types)
    if not kinds:
        return InvalidRequest(name, "empty", expected="one JSON object per line")
    message = re.sub(r"^JSON parse error: |in row [0-9]+$", "", message.splitlines()[0])
    return InvalidRequest(name, f"cannot be read: {message.strip()}", expected="JSON objects with values of one type")


_WHITE = b" \t\r\n"

_SUSPICIOUS = (
    re.compile(rb"}[ \t\r]*(?:null|{)"),  # a second value on a line
    re.compile(rb'"[ \t\r]+:'),  # white space between a name and its colon
    re.compile(rb'\\"[^"]*":'),  # a quotation mark in a name
)

_NON_MARKS = bytes({*range(256)} - {*b'"[]{}'})
_MIN_CELL_LIMIT = 5 * 10**7  # for 50 million values, pyarrow needs about 500 MB
_CELLS_PER_BYTE = 2


def check_json_lines(location: str, open_stream: Opened) -> int:
    """Return the number of nonblank lines. Raise an error if pyarrow cannot read the text safely."""
    names, rows, size = set[bytes](), 0, 0
    with open_stream() as stream:
        for block in _read_line_blocks(location, stream):
            data, size = block.strip(_WHITE), size + len(block)
            if not _is_plain_block(data):
                block_names, rows = _collect_names(location, rows, data)
                names |= block_names
            else:
                rows += data.count(b"\n") + 1
                parts = data.split(b'":')[:-1]
                names.update([part.rpartition(b'"')[2] for part in parts])
            if _has_too_many_cells(len(names), rows, size):
                return _check_each_line(location, open_stream)
    return rows


def _collect_names(location: str, rows: int, data: bytes) -> tuple[set[bytes], int]:
    name_paths = set[tuple[str, ...]]()
    for line in data.split(b"\n"):
        if line.strip(_WHITE):
            rows += 1
            _add_names(_read_line(location, rows, line), (), name_paths)
    return {path[-1].encode("utf-8", "surrogatepass") for path in name_paths}, rows


def _is_plain_block(data: bytes) -> bool:
    newlines, ends = data.count(b"\n"), data.count(b"}\n")
    if ends < newlines:
        ends += data.count(b"}\r\n")
    if not data.count(b"\n{") == ends == newlines or data[:1] != b"{" or data[-1:] != b"}":
        return False
    if any(pattern.search(data) for pattern in _SUSPICIOUS):
        return False
    if data.count(b"{") + data.count(b"[") <= newlines + MAX_NESTING:
        return True
    lines = data.split(b"\n")
    return not any(line.count(b"{") + line.count(b"[") > MAX_NESTING and _is_deep(line) for line in lines)


def _is_deep(line: bytes) -> bool:
    brackets = re.sub(rb'"[^"]*"', b"", re.sub(rb"\\.", b"", line).translate(None, _NON_MARKS))
    for _ in range(MAX_NESTING):
        brackets = re.sub(rb"\[\]|{}", b"", brackets)
    return bool(brackets)


def _read_line_blocks(location: str, stream: BinaryIO) -> Iterator[bytes]:
    parts: list[bytes] = []
    buffered, first = 0, True
    while data := stream.read(READ_BLOCK_BYTES):
        if first:
            data, first = data.removeprefix(UTF8_MARK), False
        end = data.rfind(b"\n") + 1
        if end:
            yield b"".join([*parts, data[:end]])
            parts, buffered, data = [], 0, data[end:]
        buffered += len(data)
        if buffered > MAX_ROW_BYTES:
            raise row_size_error(location)
        parts.append(data)
    if buffered:
        yield b"".join(parts)


def _iter_rows(location: str, open_stream: Opened) -> Iterator[tuple[int, dict[str, object], int]]:
    number = size = 0
    with open_stream() as stream:
        for data in _read_line_blocks(location, stream):
            size += len(data)
            for line in data.split(b"\n"):
                if line.strip(_WHITE):
                    number += 1
                    yield number, _read_line(location, number, line), size


def _read_line(location: str, number: int, line: bytes) -> dict[str, object]:
    try:
        row = json.loads(line)
    except RecursionError:
        raise nesting_error(f"{location}, row {number:,}") from None
    except ValueError as error:
        message = str(error).partition(":")[0]
        raise _line_error(location, number, line, message[:1].lower() + message[1:]) from None
    if not isinstance(row, dict):
        raise _line_error(location, number, line, f"a JSON {_json_type(row)}")
    if _nesting_depth(row) > MAX_NESTING:
        raise nesting_error(f"{location}, row {number:,}")
    return row


def _nesting_depth(value: object) -> int:
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [part for item in level for part in (item.values() if isinstance(item, dict) else item)]
    return depth


def _json_type(value: object) -> str:
    names = {bool: "boolean", int: "number", float: "number", str: "text", list: "list", dict: "object"}
    return names.get(type(value), "null")


def _line_error(location: str, number: int, line: bytes, found: str) -> InvalidRequest:
    remedy = f"It starts with '{printable(line[:60].strip())}'."
    if number == 1 and line.lstrip()[:1] == b"[":
        remedy = "Convert a JSON array to lines: `jq -c '.[]'`."
    return InvalidRequest(location, f"row {number:,}: {found}", expected="one JSON object per line", remedy=remedy)


def _has_too_many_cells(count: int, rows: int, size: int) -> bool:
    return count > MAX_COLUMNS or count * rows > max(_MIN_CELL_LIMIT, _CELLS_PER_BYTE * size)


def _check_each_line(location: str, open_stream: Opened) -> int:
    top_names, names = set[str](), set[tuple[str, ...]]()
    rows = size = 0
    for rows, row, size in _iter_rows(location, open_stream):
        top_names.update(row)
        _add_names(row, (), names)
        if len(top_names) > MAX_COLUMNS:
            raise column_count_error(location)
        if _has_too_many_cells(len(names), rows, size):
            found = f"{len(names):,} different names in objects of the first {rows:,} rows"
            expected = f"the same names in most rows, {MAX_COLUMNS:,} at most"
            remedy = "Store names that differ from row to row as a list of names and a list of values."
            raise InvalidRequest(location, f"{found}, most without a value", expected=expected, remedy=remedy)
    return rows


def _add_names(value: object, path: tuple[str, ...], names: set[tuple[str, ...]]) -> None:
    if isinstance(value, dict):
        for name, part in value.items():
            names.add((*path, name))
            _add_names(part, (*path, name), names)
    elif isinstance(value, list):
        for part in value:
            _add_names(part, path, names)
