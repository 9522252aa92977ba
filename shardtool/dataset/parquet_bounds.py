"""What a Parquet file would take in memory, read from its footer and the heads of its pages before anything is decoded.

A file of a few kilobytes can claim to hold terabytes: in its footer, in the head of a page, which no checksum covers,
by short places in a dictionary that stand for long text, and by levels that say of a million values that they are
null. Nothing here takes more memory or time than the file has bytes, times a small factor.

Each number is believed only under the type that Parquet gives it, and each field of a struct only once: readers in
other languages pass over what they do not expect, and so would read other pages than those that were checked.

Source: apache/parquet-format, parquet.thrift; apache/thrift, "Thrift Compact protocol encoding".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shardtool.format.varint import read_varint

if TYPE_CHECKING:
    from collections.abc import Iterator

PARQUET_MAGIC = b"PAR1"
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 4, 5, 6, 8, 9, 10, 12
_LONG_LIST_MARK = 15
_MIN_TWO_BYTES = 128  # the least number that takes two
_MAX_DEPTH = 12  # structs and lists of Thrift within each other
_MAX_VALUES = 2**19  # that one struct may hold, all that lies in it included: as objects they take 100 bytes each
_MAX_CHUNKS = 2**16  # columns times row groups: in pyarrow each takes a kilobyte
_MAX_NESTING = 16  # of nested columns: pyarrow goes into them by recursion
_SCHEMA, _ROWS, _GROUPS, _KEY_VALUES = 2, 3, 4, 5  # fields of the footer
_TYPE, _WIDTH, _REPEATS, _NAME, _CHILDREN = 1, 2, 3, 4, 5  # of an element of the schema
_REPEATED = 2
_KEY, _VALUE = 1, 2
_COLUMNS, _GROUP_ROWS = 1, 3  # of a row group
_CHUNK = 3  # of a column in it, and what that holds:
_CHUNK_TYPE, _PATH, _CHUNK_VALUES, _CHUNK_SIZE, _DATA_OFFSET, _DICTIONARY_OFFSET = 1, 3, 5, 7, 9, 11
_UNCOMPRESSED, _COMPRESSED, _DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 2, 3, 5, 7, 8  # of a page's head
_PAGE_VALUES = 1
_ENCODING = {_DATA_PAGE: 2, _DATA_PAGE_V2: 4, _DICTIONARY_PAGE: 2}
# Without DELTA_BYTE_ARRAY (7), where a value of no bytes may repeat a megabyte of the one before.
_ENCODINGS = (0, 2, 3, 4, 5, 6, 8, 9)
BYTE_ARRAY = 6  # BYTE_ARRAY
_FIXED = 7  # FIXED_LEN_BYTE_ARRAY
_WIDTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8, BYTE_ARRAY: 4}
_LEVEL_BYTES = 4  # bytes: two levels a value
_Struct = dict[int, tuple[int, Any]]  # field to the type and the value


class ParquetLeaf(NamedTuple):
    """A column of plain values, which may be part of a nested one.

    Attributes:
        path: Its names from the top down, with dots between them.
        top: The name of the column that it is part of.
        kind: Parquet's physical type.
        width: Bytes that a value takes in memory; of text, its offset.
        depth: How many names the path has.
        repeated: Whether a row may hold several values.
    """

    path: str
    top: str
    kind: int
    width: int
    depth: int
    repeated: bool


class ParquetFooter(NamedTuple):
    """The content of a footer.

    Attributes:
        rows: How many rows the table has.
        leaves: In the order of the schema.
        facts: The key-value metadata.
        chunks: A row group: its rows, and what it says of each leaf.
    """

    rows: int
    leaves: tuple[ParquetLeaf, ...]
    facts: dict[str, str]
    chunks: tuple[tuple[int, tuple[_Struct, ...]], ...]


class LeafMemory(NamedTuple):
    """The memory that a leaf takes.

    Attributes:
        leaf: The leaf.
        values: Nulls and empty lists included.
        unfolded: Bytes of all its pages, decompressed.
        coded: Whether values are places in a dictionary, so that text may be longer than its pages.
    """

    leaf: ParquetLeaf
    values: int
    unfolded: int
    coded: bool

    @property
    def memory(self) -> int:
        """Bytes that it takes in memory, at the most; of text in a dictionary, without what is there many times."""
        return self.unfolded + self.values * (self.leaf.width + _LEVEL_BYTES * self.leaf.depth)


def parse_footer(data: bytes) -> ParquetFooter:
    """Return what the footer of a Parquet file says, if its parts fit each other.

    Raises:
        ValueError: They do not, or it is no Parquet file.
    """
    size = int.from_bytes(data[-8:-4], "little")
    if data[-4:] != PARQUET_MAGIC or size > len(data) - 12:
        raise ValueError("no Parquet file")
    found = _parse_struct(data, len(data) - 8 - size)[0]
    leaves = _leaves(_structs(found, _SCHEMA))
    groups = _structs(found, _GROUPS)
    if len(leaves) * len(groups) > _MAX_CHUNKS:
        raise ValueError(f"{len(groups):,} groups of {len(leaves):,} columns")
    chunks = tuple((_number(group, _GROUP_ROWS, _I64), _chunks(group, leaves)) for group in groups)
    rows = _number(found, _ROWS, _I64)
    if rows != sum(of_group for of_group, _ in chunks):
        raise ValueError("groups with other rows than the table")
    return ParquetFooter(rows, leaves, _key_values(found), chunks)


def leaf_memory(data: bytes, footer: ParquetFooter) -> tuple[LeafMemory, ...]:
    """Return what each leaf takes, if all of its pages say what the footer says.

    Raises:
        ValueError: They do not.
    """
    if sum(_number(chunk, _CHUNK_SIZE, _I64) for _, chunks in footer.chunks for chunk in chunks) > len(data):
        raise ValueError("columns that share their pages")  # to read them again and again would take for ever
    found = []
    for at, leaf in enumerate(footer.leaves):
        parts = [_leaf_memory(data, chunks[at], leaf, rows) for rows, chunks in footer.chunks]
        values, unfolded = sum(one.values for one in parts), sum(one.unfolded for one in parts)
        found.append(LeafMemory(leaf, values, unfolded, any(one.coded for one in parts)))
    return tuple(found)


def _leaves(elements: list[_Struct]) -> tuple[ParquetLeaf, ...]:
    """Return the leaves of a schema, which lists a tree from the top down."""
    left = iter(elements)
    found = tuple(_leaves_below(next(left, {}), left))
    if next(left, None) is not None:
        raise ValueError("a schema that is no tree")
    return found


def _leaves_below(
    group: _Struct, left: Iterator[_Struct], names: tuple[str, ...] = (), *, repeated: bool = False
) -> Iterator[ParquetLeaf]:
    """Yield the leaves of a group, whose elements come next of those that are left."""
    count = _number(group, _CHILDREN, _I32)
    if len(names) > _MAX_NESTING or (names and not count):
        raise ValueError("columns nested too deeply, or a group of none")
    for _ in range(count):
        element = next(left, {})  # behind the last one there is one without a name
        path = (*names, _text(element, _NAME).decode("utf-8", "backslashreplace"))
        many = repeated or (_REPEATS in element and _number(element, _REPEATS, _I32) == _REPEATED)
        if _TYPE not in element:
            yield from _leaves_below(element, left, path, repeated=many)
            continue
        kind = _number(element, _TYPE, _I32)
        width = _number(element, _WIDTH, _I32) if kind == _FIXED else _WIDTHS.get(kind)
        if width is None:
            raise ValueError(f"a column of the type {kind}")
        yield ParquetLeaf(".".join(path), path[0], kind, width, len(path), many)


def _chunks(group: _Struct, leaves: tuple[ParquetLeaf, ...]) -> tuple[_Struct, ...]:
    """Return what a row group says of each leaf: pyarrow goes by their order, so their names and types must fit."""
    columns = _structs(group, _COLUMNS)
    if len(columns) != len(leaves):
        raise ValueError("a row group with other columns than the schema")
    found = []
    for column, leaf in zip(columns, leaves, strict=True):
        kind, chunk = column.get(_CHUNK, (0, None))
        if kind != _STRUCT or _number(chunk, _CHUNK_TYPE, _I32) != leaf.kind:
            raise ValueError(f"a row group without the column {leaf.path}")
        if ".".join(name.decode("utf-8", "backslashreplace") for name in _list(chunk, _PATH, _BINARY)) != leaf.path:
            raise ValueError(f"another column in the place of {leaf.path}")
        found.append(chunk)
    return tuple(found)


def _key_values(footer: _Struct) -> dict[str, str]:
    if _KEY_VALUES not in footer:
        return {}
    pairs = [one for one in _structs(footer, _KEY_VALUES) if _VALUE in one]
    return {_text(pair, _KEY).decode(): _text(pair, _VALUE).decode() for pair in pairs}


def _leaf_memory(data: bytes, chunk: _Struct, leaf: ParquetLeaf, rows: int) -> LeafMemory:
    """Return what a leaf takes in one row group, as the heads of its pages say."""
    values = unfolded = 0
    coded = False
    at = _number(chunk, _DATA_OFFSET, _I64)
    if _DICTIONARY_OFFSET in chunk and (place := _number(chunk, _DICTIONARY_OFFSET, _I64)):
        at = min(at or place, place)  # of a row group without rows there is no page of data, at 0
    end = at + _number(chunk, _CHUNK_SIZE, _I64)
    if end > len(data):
        raise ValueError("pages outside of the file")
    while at < end:
        head, at = _parse_struct(data, at)
        size = _number(head, _UNCOMPRESSED, _I32)
        at += _number(head, _COMPRESSED, _I32)
        unfolded += size
        for kind in _ENCODING.keys() & head.keys():
            count = _page(head, kind)
            if kind == _DICTIONARY_PAGE:
                coded = True
                if count * leaf.width > size:
                    raise ValueError(f"a dictionary of {count:,} values in {size:,} bytes")
            else:
                values += count
    if at != end:
        raise ValueError("a page beyond its column")
    if values != _number(chunk, _CHUNK_VALUES, _I64):
        expected = f"{_number(chunk, _CHUNK_VALUES, _I64):,}, as the footer says"
        raise ValueError(f"pages of {leaf.path} with {values:,} values, not {expected}")
    if values < rows or (values > rows and not leaf.repeated):
        raise ValueError(f"{values:,} values of {leaf.path} in {rows:,} rows")
    return LeafMemory(leaf, values, unfolded, coded)


def _page(head: _Struct, field: int) -> int:
    """Return how many values a page has, if they are stored in a way that takes bytes for bytes."""
    kind, page = head[field]
    if kind != _STRUCT or _number(page, _ENCODING[field], _I32) not in _ENCODINGS:
        raise ValueError("a page in an encoding that no sidecar has")
    return _number(page, _PAGE_VALUES, _I32)


def _number(found: _Struct, field: int, kind: int) -> int:
    """Return a number that counts something."""
    given, number = found.get(field, (0, -1))
    if given != kind or number < 0:
        raise ValueError("a head without its numbers")
    return int(number)


def _text(found: _Struct, field: int) -> bytes:
    kind, text = found.get(field, (0, b""))
    if kind != _BINARY:
        raise ValueError("a head without its text")
    return bytes(text)


def _list(found: _Struct, field: int, kind: int) -> list[Any]:
    given, parts = found.get(field, (0, (0, [])))
    if given != _LIST or (parts[1] and parts[0] != kind):
        raise ValueError("a footer without its lists")
    return list(parts[1])


def _structs(found: _Struct, field: int) -> list[_Struct]:
    return _list(found, field, _STRUCT)


def _parse_struct(data: bytes, at: int) -> tuple[_Struct, int]:
    """Return the Thrift struct at a place, and the place after it."""
    reader = _ThriftReader(data, at)
    try:
        return reader.struct(0), reader.at
    except IndexError:
        raise ValueError("it ends in the middle of a head") from None


class _ThriftReader:
    """Reads one struct in compact protocol."""

    def __init__(self, data: bytes, at: int) -> None:
        self.at = at
        self._data, self._left = data, _MAX_VALUES

    def struct(self, depth: int) -> _Struct:
        """Return a struct: field to type and value."""
        found: _Struct = {}
        data, field = self._data, 0
        while kind := (byte := data[self.at]) & 15:
            self.at += 1
            field = field + (byte >> 4) if byte >> 4 else self._signed()
            if field in found:
                raise ValueError("a field twice")
            found[field] = (kind, kind == _TRUE) if kind in (_TRUE, _FALSE) else (kind, self._value(kind, depth))
        self.at += 1
        return found

    def _value(self, kind: int, depth: int) -> Any:
        self._left -= 1
        if depth > _MAX_DEPTH or not self._left:
            raise ValueError("a head that is too deep, or of too many parts")
        if kind in (_I16, _I32, _I64):
            return self._signed()
        if kind in (_TRUE, _FALSE, _BYTE):
            self.at += 1
            return self._data[self.at - 1]
        if kind == _BINARY:
            size = self._varint()
            self.at += size
            return self._data[self.at - size : self.at]
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind in (_LIST, _SET):
            return self._list(depth)
        raise ValueError("a type that Parquet does not use")

    def _list(self, depth: int) -> tuple[int, list[Any]]:
        """Return the type of a list's values, and the list; it ends with the data, since each takes a byte or more."""
        byte = self._data[self.at]
        self.at += 1
        count, kind = byte >> 4, byte & 15
        if count == _LONG_LIST_MARK:
            count = self._varint()
        return kind, [self._value(kind, depth + 1) for _ in range(count)]

    def _signed(self) -> int:
        number = self._varint()
        return number >> 1 ^ -(number & 1)

    def _varint(self) -> int:
        if (byte := self._data[self.at]) < _MIN_TWO_BYTES:  # a short cut: nearly all are
            self.at += 1
            return byte
        number, self.at = read_varint(self._data, self.at, len(self._data))
        return number
