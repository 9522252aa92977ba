"""Compute how much memory a Parquet file needs, before pyarrow decodes it.

A small file can expand to terabytes, for example if many dictionary indices refer to one long text.

Headers with repeated fields, or with numbers of a wrong type, are rejected. Otherwise, pyarrow could interpret them
differently than this module, and read unchecked pages.

Source: apache/parquet-format, parquet.thrift; apache/thrift, "Thrift Compact protocol encoding".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from shardtool.format.varint import read_varint

PARQUET_MAGIC = b"PAR1"
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 4, 5, 6, 8, 9, 10, 12
_LONG_LIST_MARK = 15
_MIN_TWO_BYTES = 128
_MAX_DEPTH = 12
_MAX_VALUES = 2**19
_MAX_CHUNKS = 2**16  # a chunk is one column of one row group; pyarrow needs a kilobyte per chunk
_MAX_NESTING = 16  # limits the recursion in pyarrow
_SCHEMA, _ROWS, _GROUPS, _KEY_VALUES = 2, 3, 4, 5  # field numbers of the footer
_TYPE, _WIDTH, _REPEATS, _NAME, _CHILDREN = 1, 2, 3, 4, 5  # field numbers of a schema element
_REPEATED = 2
_KEY, _VALUE = 1, 2
_COLUMNS, _GROUP_ROWS = 1, 3  # field numbers of a row group
_CHUNK = 3  # field number of the metadata in a column chunk
_CHUNK_TYPE, _PATH, _CHUNK_VALUES, _CHUNK_SIZE, _DATA_OFFSET, _DICTIONARY_OFFSET = 1, 3, 5, 7, 9, 11
# field numbers of a page header
_UNCOMPRESSED, _COMPRESSED, _DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 2, 3, 5, 7, 8
_PAGE_VALUES = 1
_ENCODING = {_DATA_PAGE: 2, _DATA_PAGE_V2: 4, _DICTIONARY_PAGE: 2}
# DELTA_BYTE_ARRAY (7) is not allowed, because a value encoded in 0 bytes can repeat a megabyte of the previous value.
_ENCODINGS = (0, 2, 3, 4, 5, 6, 8, 9)
BYTE_ARRAY = 6
_FIXED = 7
_WIDTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8, BYTE_ARRAY: 4}
_LEVEL_BYTES = 4
_Struct = dict[int, tuple[int, Any]]  # maps field numbers to (type, value)


class ParquetLeaf(NamedTuple):
    """A leaf column, at the top level or nested in other columns.

    Attributes:
        path: Names from the top-level column `top` to the leaf, joined by dots.
        width: Bytes in memory per value. For text, this is the size of an offset, without the text.
    """

    path: str
    top: str
    kind: int
    width: int
    depth: int
    repeated: bool


class ParquetFooter(NamedTuple):
    """The content of a Parquet footer.

    Attributes:
        chunks: For each row group, the number of rows, and the metadata of each leaf's column chunk.
    """

    rows: int
    leaves: tuple[ParquetLeaf, ...]
    key_values: dict[str, str]
    chunks: tuple[tuple[int, tuple[_Struct, ...]], ...]


class LeafMemory(NamedTuple):
    """The memory that a leaf column needs.

    Attributes:
        values: Number of values, including nulls and empty lists.
        uncompressed: Bytes of all decompressed pages.
        is_dictionary: Whether values are dictionary indices, so decoded text can be larger than `uncompressed`.
    """

    leaf: ParquetLeaf
    values: int
    uncompressed: int
    is_dictionary: bool

    @property
    def memory(self) -> int:
        """Maximum bytes in memory, if dictionary indices are not decoded."""
        return self.uncompressed + self.values * (self.leaf.width + _LEVEL_BYTES * self.leaf.depth)


def parse_footer(data: bytes) -> ParquetFooter:
    """Parse the footer of a Parquet file.

    Raises:
        ValueError: The footer is invalid.
    """
    size = int.from_bytes(data[-8:-4], "little")
    if data[-4:] != PARQUET_MAGIC or size > len(data) - 12:
        raise ValueError("not a Parquet file")
    footer = _parse_struct(data, len(data) - 8 - size)[0]
    leaves = _leaves(_structs(footer, _SCHEMA))
    groups = _structs(footer, _GROUPS)
    if len(leaves) * len(groups) > _MAX_CHUNKS:
        raise ValueError(f"{len(groups):,} groups of {len(leaves):,} columns")
    chunks = tuple((_number(group, _GROUP_ROWS, _I64), _chunks(group, leaves)) for group in groups)
    rows = _number(footer, _ROWS, _I64)
    if rows != sum(group_rows for group_rows, _ in chunks):
        raise ValueError("different numbers of rows in the footer and in the row groups")
    return ParquetFooter(rows, leaves, _key_values(footer), chunks)


def leaf_memory(data: bytes, footer: ParquetFooter) -> tuple[LeafMemory, ...]:
    """Return the memory that each leaf column needs.

    Raises:
        ValueError: A page header contradicts the footer.
    """
    if sum(_number(chunk, _CHUNK_SIZE, _I64) for _, chunks in footer.chunks for chunk in chunks) > len(data):
        # Decoding shared pages once per column could take too long.
        raise ValueError("columns that share pages")
    leaves = []
    for index, leaf in enumerate(footer.leaves):
        parts = [_leaf_memory(data, chunks[index], leaf, rows) for rows, chunks in footer.chunks]
        values, uncompressed = sum(part.values for part in parts), sum(part.uncompressed for part in parts)
        leaves.append(LeafMemory(leaf, values, uncompressed, any(part.is_dictionary for part in parts)))
    return tuple(leaves)


def _leaves(elements: list[_Struct]) -> tuple[ParquetLeaf, ...]:
    remaining = iter(elements)
    leaves = tuple(_leaves_below(next(remaining, {}), remaining))
    if next(remaining, None) is not None:
        raise ValueError("a schema that is not a tree")
    return leaves


def _leaves_below(
    group: _Struct, elements: Iterator[_Struct], names: tuple[str, ...] = (), *, repeated: bool = False
) -> Iterator[ParquetLeaf]:
    count = _number(group, _CHILDREN, _I32)
    if len(names) > _MAX_NESTING or (names and not count):
        raise ValueError("columns nested too deeply, or an empty group")
    for _ in range(count):
        element = next(elements, {})
        path = (*names, _text(element, _NAME).decode("utf-8", "backslashreplace"))
        is_repeated = repeated or (_REPEATS in element and _number(element, _REPEATS, _I32) == _REPEATED)
        if _TYPE not in element:
            yield from _leaves_below(element, elements, path, repeated=is_repeated)
            continue
        physical_type = _number(element, _TYPE, _I32)
        width = _number(element, _WIDTH, _I32) if physical_type == _FIXED else _WIDTHS.get(physical_type)
        if width is None:
            raise ValueError(f"a column of the type {physical_type}")
        yield ParquetLeaf(".".join(path), path[0], physical_type, width, len(path), is_repeated)


def _chunks(group: _Struct, leaves: tuple[ParquetLeaf, ...]) -> tuple[_Struct, ...]:
    columns = _structs(group, _COLUMNS)
    if len(columns) != len(leaves):
        raise ValueError("a row group whose columns differ from the schema")
    chunks = []
    for column, leaf in zip(columns, leaves, strict=True):
        thrift_type, chunk = column.get(_CHUNK, (0, None))
        if thrift_type != _STRUCT or _number(chunk, _CHUNK_TYPE, _I32) != leaf.kind:
            raise ValueError(f"a row group that lacks the column {leaf.path}")
        if ".".join(name.decode("utf-8", "backslashreplace") for name in _list(chunk, _PATH, _BINARY)) != leaf.path:
            raise ValueError(f"a row group with a different column where {leaf.path} should be")
        chunks.append(chunk)
    return tuple(chunks)


def _key_values(footer: _Struct) -> dict[str, str]:
    if _KEY_VALUES not in footer:
        return {}
    pairs = [pair for pair in _structs(footer, _KEY_VALUES) if _VALUE in pair]
    return {_text(pair, _KEY).decode(): _text(pair, _VALUE).decode() for pair in pairs}


def _leaf_memory(data: bytes, chunk: _Struct, leaf: ParquetLeaf, rows: int) -> LeafMemory:
    values = uncompressed = 0
    is_dictionary = False
    offset = _number(chunk, _DATA_OFFSET, _I64)
    if _DICTIONARY_OFFSET in chunk and (dictionary_offset := _number(chunk, _DICTIONARY_OFFSET, _I64)):
        offset = min(offset or dictionary_offset, dictionary_offset)
    end = offset + _number(chunk, _CHUNK_SIZE, _I64)
    if end > len(data):
        raise ValueError("pages outside the file")
    while offset < end:
        head, offset = _parse_struct(data, offset)
        size = _number(head, _UNCOMPRESSED, _I32)
        offset += _number(head, _COMPRESSED, _I32)
        uncompressed += size
        for page_type in _ENCODING.keys() & head.keys():
            count = _page(head, page_type)
            if page_type == _DICTIONARY_PAGE:
                is_dictionary = True
                if count * leaf.width > size:
                    raise ValueError(f"a dictionary of {count:,} values, which do not fit into {size:,} bytes")
            else:
                values += count
    if offset != end:
        raise ValueError("a page beyond the end of its column")
    if values != _number(chunk, _CHUNK_VALUES, _I64):
        recorded = f"{_number(chunk, _CHUNK_VALUES, _I64):,}"
        raise ValueError(f"pages of {leaf.path} with {values:,} values, but {recorded} in the footer")
    if values < rows or (values > rows and not leaf.repeated):
        raise ValueError(f"{values:,} values of {leaf.path} in {rows:,} rows")
    return LeafMemory(leaf, values, uncompressed, is_dictionary)


def _page(head: _Struct, field: int) -> int:
    thrift_type, page = head[field]
    if thrift_type != _STRUCT or _number(page, _ENCODING[field], _I32) not in _ENCODINGS:
        raise ValueError("a page with an encoding that sidecars do not use")
    return _number(page, _PAGE_VALUES, _I32)


def _number(struct: _Struct, field: int, thrift_type: int) -> int:
    stored_type, number = struct.get(field, (0, -1))
    if stored_type != thrift_type or number < 0:
        raise ValueError("a header with a missing or invalid number")
    return int(number)


def _text(struct: _Struct, field: int) -> bytes:
    thrift_type, text = struct.get(field, (0, b""))
    if thrift_type != _BINARY:
        raise ValueError("a header with a missing or invalid string")
    return bytes(text)


def _list(struct: _Struct, field: int, thrift_type: int) -> list[Any]:
    stored_type, stored = struct.get(field, (0, None))
    if stored_type == _LIST:
        element_type, elements = stored
        if element_type == thrift_type or not elements:
            return list(elements)
    raise ValueError("a footer with a missing or invalid list")


def _structs(struct: _Struct, field: int) -> list[_Struct]:
    return _list(struct, field, _STRUCT)


def _parse_struct(data: bytes, offset: int) -> tuple[_Struct, int]:
    reader = _ThriftReader(data, offset)
    try:
        return reader.struct(0), reader.offset
    except IndexError:
        raise ValueError("the data ends inside a header") from None


class _ThriftReader:
    def __init__(self, data: bytes, offset: int) -> None:
        self.offset = offset
        self._data, self._remaining = data, _MAX_VALUES

    def struct(self, depth: int) -> _Struct:
        fields: _Struct = {}
        data, field = self._data, 0
        while kind := (byte := data[self.offset]) & 15:
            self.offset += 1
            field = field + (byte >> 4) if byte >> 4 else self._signed()
            if field in fields:
                raise ValueError("a duplicate field")
            value = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth)
            fields[field] = kind, value
        self.offset += 1
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        self._remaining -= 1
        if depth > _MAX_DEPTH or not self._remaining:
            raise ValueError("a header with too many or too deeply nested values")
        if kind in (_I16, _I32, _I64):
            return self._signed()
        if kind in (_TRUE, _FALSE, _BYTE):
            self.offset += 1
            return self._data[self.offset - 1]
        if kind == _BINARY:
            size = self._varint()
            self.offset += size
            return self._data[self.offset - size : self.offset]
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind in (_LIST, _SET):
            return self._list(depth)
        raise ValueError("a type that Parquet does not use")

    def _list(self, depth: int) -> tuple[int, list[Any]]:
        byte = self._data[self.offset]
        self.offset += 1
        count, kind = byte >> 4, byte & 15
        if count == _LONG_LIST_MARK:
            count = self._varint()
        # `count` needs no limit: each value takes a byte or more of the data
        return kind, [self._value(kind, depth + 1) for _ in range(count)]

    def _signed(self) -> int:
        number = self._varint()
        return number >> 1 ^ -(number & 1)

    def _varint(self) -> int:
        if (byte := self._data[self.offset]) < _MIN_TWO_BYTES:
            self.offset += 1
            return byte
        number, self.offset = read_varint(self._data, self.offset, len(self._data))
        return number
