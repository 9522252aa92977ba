"""A sidecar's rows as columns of numbers, read with distrust: nothing in it makes us read or hold much.

A Parquet file of a few kilobytes can claim to hold terabytes, in its footer and, where the footer is honest, in the
head of a page, which no checksum covers. So each page's head is read before any page is decoded, and what they add
up to must fit the shard that the sidecar tells of.

Source: apache/parquet-format, parquet.thrift; apache/thrift, "Thrift Compact protocol encoding".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shardtool.arrow import numbers
from shardtool.errors import CorruptShard
from shardtool.sidecar import SCHEMA

if TYPE_CHECKING:
    from numpy.typing import NDArray

_REMEDY = "`shardtool index` makes it again."
_LEAVES = ("__key__", "__offset__", "__size__", "__fields__.list.element.name", "__fields__.list.element.offset",
           "__fields__.list.element.length", "__fields__.list.element.crc32c")  # fmt: skip
_LEAST_RECORD = 16  # bytes of a shard that a sample takes, at the least
_LEAST_FIELD = 2
_SLACK = 2**24  # bytes that any sidecar may unfold to
_UNFOLDED = 64  # bytes of index a field, without its name
_UNCOMPRESSED, _COMPRESSED, _DATA_PAGE, _DATA_PAGE_V2 = 2, 3, 5, 8  # fields of a page's head
_NUM_VALUES = 1
_GROUPS, _COLUMNS, _GROUP_ROWS, _FACT = 4, 1, 3, 3  # fields of the footer, a row group, and a column in it
_PATH, _VALUES, _COLUMN_SIZE, _DATA_PLACE, _DICTIONARY_PLACE = 3, 5, 7, 9, 11
_TRUE, _FALSE, _BYTE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 8, 9, 10, 12  # types that Parquet uses
_WHOLE = (4, 5, 6)
_LONG_LIST = 15
_DEEPEST = 12
_MAGIC = b"PAR1"


@dataclass(frozen=True, slots=True)
class Rows:
    """What a sidecar says of its shard's samples.

    Attributes:
        keys: Their bytes, end to end.
        key_sizes: int64 a sample.
        starts: int64 a sample, `__offset__`.
        sizes: int64 a sample, `__size__`.
        counts: int64 a sample, fields.
        names: The field names that `codes` stands for.
        codes: int64 a field.
        offsets: int64 a field.
        lengths: int64 a field.
        crcs: uint32 a field; None where the sidecar has no checksums.
    """

    keys: bytes
    key_sizes: NDArray[np.int64]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    counts: NDArray[np.int64]
    names: list[bytes]
    codes: NDArray[np.int64]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    crcs: NDArray[np.uint32] | None

    def all_keys(self) -> list[bytes]:
        """Return the key of each sample."""
        ends = np.cumsum(self.key_sizes).tolist()
        return [self.keys[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def read_rows(data: bytes, size: int, name: str) -> Rows:
    """Return a sidecar's rows.

    Args:
        data: Its bytes.
        size: Bytes of its shard, which bounds what can be in it.
        name: Its name, for messages.

    Raises:
        CorruptShard: It cannot be read, or tells of more than such a shard can hold.
    """
    try:
        coded = _check_bounds(data, size, name)
        with pq.ParquetFile(pa.BufferReader(data), read_dictionary=coded, page_checksum_verification=True) as file:
            # Group by group: pyarrow cannot read lists of several as one (seen, 26.0.1).
            groups = [file.read_row_group(at, SCHEMA.names, use_threads=False) for at in range(file.num_row_groups)]
            table = pa.concat_tables(groups) if groups else file.schema_arrow.empty_table().select(SCHEMA.names)
        table.validate(full=True)
        _check_types(table.schema)
        return _rows(table.combine_chunks(), _SLACK + 2 * size)
    except (ValueError, KeyError, IndexError, OverflowError, OSError, MemoryError, pa.ArrowException) as error:
        raise CorruptShard(name, f"no sidecar: {str(error)[:300]}", remedy=_REMEDY) from None


def _rows(table: Any, bound: int) -> Rows:
    def one(column: str) -> Any:
        chunks = table.column(column).chunks
        return chunks[0] if chunks else pa.array([], table.schema.field(column).type)

    keys, lists = one("__key__"), one("__fields__")
    if pa.types.is_dictionary(keys.type):
        lengths = numbers(pc.binary_length(keys.dictionary))
        if len(keys) and int(lengths[numbers(keys.indices)].sum()) > bound:
            raise ValueError("keys longer than their shard")
        keys = keys.dictionary_decode()
    fields = lists.flatten()
    coded = fields.field("name")
    if not pa.types.is_dictionary(coded.type):
        coded = coded.dictionary_encode()
    crcs = fields.field("crc32c")
    flat = [_numbers(fields.field(part)) for part in ("offset", "length")]
    raw, ends = _bytes_of(keys)
    return Rows(
        keys=raw,
        key_sizes=np.diff(ends),
        starts=_numbers(one("__offset__")),
        sizes=_numbers(one("__size__")),
        counts=np.diff(numbers(lists.offsets)).astype(np.int64),
        names=[text.encode() for text in coded.dictionary.to_pylist()],
        codes=numbers(coded.indices).astype(np.int64),
        offsets=flat[0],
        lengths=flat[1],
        crcs=None if crcs.null_count else numbers(crcs).astype(np.uint32),
    )


def _check_types(schema: Any) -> None:
    """See that columns have the types that docs/format.md says; text may come as places in a dictionary."""
    lists = schema.field("__fields__").type
    inner = lists.value_type if pa.types.is_list(lists) else None
    parts = [(one.name, _plain(one.type)) for one in inner] if inner is not None and pa.types.is_struct(inner) else []
    wanted = [(one.name, one.type) for one in SCHEMA.field("__fields__").type.value_type]
    if parts != wanted or [_plain(one.type) for one in schema][:3] != SCHEMA.types[:3]:
        raise ValueError(f"columns of other types: {schema.types}")


def _plain(kind: Any) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _numbers(column: Any) -> NDArray[np.int64]:
    if column.null_count:
        raise ValueError("a null where a number must be")
    values = numbers(column)
    if values.dtype != np.uint64:
        raise ValueError(f"numbers of type {values.dtype}")
    if len(values) and values.max() >= 2**63:
        raise ValueError(f"the number {values.max()}")
    return np.asarray(values.astype(np.int64))


def _bytes_of(column: Any) -> tuple[bytes, NDArray[np.int64]]:
    """Return the bytes of strings, end to end, and where each starts."""
    if column.null_count:
        raise ValueError("a sample without a key")
    if not len(column):
        return b"", np.zeros(1, np.int64)
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset).astype(np.int64)
    raw = data.to_pybytes()[int(ends[0]) : int(ends[-1])] if data is not None else b""
    return raw, ends - ends[0]


def _check_bounds(data: bytes, size: int, name: str) -> list[str]:
    """See that no page of the index's columns unfolds to more than a shard of `size` bytes can need.

    Returns:
        The columns of text with a dictionary, whose values are to be left as places in it: short ones that stand for
        long ones would be a way around the bound.
    """
    rows, groups = _footer(data)
    if rows > size // _LEAST_RECORD + 1 or len(groups) > rows + 1:
        raise CorruptShard(name, f"{rows:,} samples, in a shard of {size:,} bytes", remedy=_REMEDY)
    fields, unfolded = 0, 0
    coded: set[str] = set()
    for group in groups:
        seen: dict[str, int] = {}
        for column in _parts(group, _COLUMNS):
            fact = column.get(_FACT)
            path = _path(fact)
            if path not in _LEAVES or not isinstance(fact, dict):
                continue
            if _DICTIONARY_PLACE in fact and path in (_LEAVES[0], _LEAVES[3]):
                coded.add(path)
            values, more = _pages(data, fact)
            unfolded += more
            seen[path] = values
            if values != _size(fact, _VALUES):
                raise CorruptShard(
                    name, f"pages of {path} with {values:,} values",
                    expected=f"{_size(fact, _VALUES):,}, as the footer says", remedy=_REMEDY,
                )  # fmt: skip
        if sorted(seen) != sorted(_LEAVES):
            raise CorruptShard(name, "other columns than a sidecar's", remedy=_REMEDY)
        alike = {seen[leaf] for leaf in _LEAVES[:3]} | {_size(group, _GROUP_ROWS)}
        if len(alike) > 1 or len({seen[leaf] for leaf in _LEAVES[3:]}) > 1:
            raise CorruptShard(name, "columns of unequal length", remedy=_REMEDY)
        fields += seen[_LEAVES[3]]
    bound = _SLACK + 2 * size + _UNFOLDED * fields
    if fields > size // _LEAST_FIELD + rows or unfolded > bound:
        found = f"{fields:,} fields, {unfolded:,} bytes unfolded"
        raise CorruptShard(name, f"{found}, in a shard of {size:,} bytes", remedy=_REMEDY)
    return sorted(coded)


def unfolded_bytes(data: bytes) -> int:
    """Return to how many bytes all pages of a sidecar unfold, values in dictionaries counted once.

    Raises:
        ValueError: It is no sidecar.
        IndexError: Likewise.
    """
    facts = [column.get(_FACT) for group in _footer(data)[1] for column in _parts(group, _COLUMNS)]
    return sum(_pages(data, fact)[1] for fact in facts if isinstance(fact, dict))


def _footer(data: bytes) -> tuple[int, list[dict[int, Any]]]:
    """Return the number of rows, and the row groups. pyarrow's own accessors end the process on some damaged ones."""
    size = int.from_bytes(data[-8:-4], "little")
    if data[-4:] != _MAGIC or size > len(data) - 12:
        raise ValueError("no Parquet file")
    found, _ = _struct(data, len(data) - 8 - size, 0)
    groups = _parts(found, _GROUPS)
    return sum(_size(group, _GROUP_ROWS) for group in groups), groups


def _parts(found: dict[int, Any], field: int) -> list[dict[int, Any]]:
    """Return a list of structs."""
    parts = found.get(field, [])
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise ValueError("a footer without its lists")
    return parts


def _path(fact: Any) -> str:
    names = fact.get(_PATH) if isinstance(fact, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, bytes) for name in names):
        raise ValueError("a column without a name")
    return b".".join(names).decode("utf-8", "replace")


def _pages(data: bytes, fact: dict[int, Any]) -> tuple[int, int]:
    """Return how many values the data pages of a column tell of, and to how many bytes all its pages unfold."""
    values = unfolded = 0
    at = _size(fact, _DATA_PLACE)
    if _DICTIONARY_PLACE in fact:
        at = min(at or len(data), _size(fact, _DICTIONARY_PLACE))  # without a value there is no page of data, at 0
    end = at + _size(fact, _COLUMN_SIZE)
    if end > len(data):
        raise ValueError("pages outside of the file")
    while at < end:
        head, at = _struct(data, at, 0)
        unfolded += _size(head, _UNCOMPRESSED)
        at += _size(head, _COMPRESSED)
        page = head.get(_DATA_PAGE, head.get(_DATA_PAGE_V2))
        if isinstance(page, dict):
            values += _size(page, _NUM_VALUES)
    if at != end:
        raise ValueError("a page beyond its column")
    return values, unfolded


def _size(found: dict[int, Any], field: int) -> int:
    """Return a number of a page's head that counts something."""
    number = found.get(field)
    if type(number) is not int or number < 0:
        raise ValueError("a page's head without its sizes")
    return number


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """Return the numbers and structs of a Thrift struct in compact protocol, by field, and the place after it."""
    found: dict[int, Any] = {}
    field = 0
    while kind := (byte := data[at]) & 15:
        at += 1
        if byte >> 4:
            field += byte >> 4
        else:
            number, at = _varint(data, at)
            field = _signed(number)
        found[field], at = _value(data, at, kind, depth)
    return found, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if depth > _DEEPEST:
        raise ValueError("nested too deeply")
    if kind in (_TRUE, _FALSE):
        return kind == _TRUE, at
    if kind == _BYTE:
        return data[at], at + 1
    if kind == _BINARY:
        size, at = _varint(data, at)
        return data[at : at + size], at + size
    if kind == _STRUCT:
        return _struct(data, at, depth + 1)
    if kind in (_LIST, _SET):
        return _list(data, at, depth)
    if kind not in _WHOLE:
        raise ValueError("a type that Parquet does not use")
    number, at = _varint(data, at)
    return _signed(number), at


def _list(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    count, kind = data[at] >> 4, data[at] & 15
    at += 1
    if count == _LONG_LIST:
        count, at = _varint(data, at)
    found = []
    for _ in range(count):  # ends with the data, since each takes a byte or more
        if kind in (_TRUE, _FALSE):
            one, at = data[at] == _TRUE, at + 1
        else:
            one, at = _value(data, at, kind, depth + 1)
        found.append(one)
    return found, at


def _signed(number: int) -> int:
    return number >> 1 ^ -(number & 1)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:  # noqa: PLR2004 - the last byte
            return value, at
    raise ValueError("a number without an end")
