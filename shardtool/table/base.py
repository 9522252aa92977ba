"""`Table`, the base of all tables that can be read, `MemoryTable`, and reading with clear errors."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries import arrow
from shardtool.entries.classes import are_class_names, recorded_names
from shardtool.errors import InvalidRequest, is_out_of_memory
from shardtool.storage import paths
from shardtool.table.limits import (
    MAX_ROW_BYTES,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping


HEADER_BYTES = 2**20  # bytes that surely hold the header


READ_BLOCK_BYTES = 2**20  # bytes that a thread reads at a time; a row must fit


_NULL_TEXTS = ["", "NA", "N/A", "null", "NULL", "nan", "NaN"]


_NUMBER_PATTERNS = (
    (r"^(0|-?[1-9][0-9]{0,17})$", pa.int64()),
    (r"^-?(0|[1-9][0-9]{0,17})(\.[0-9]*)?([eE][+-]?[0-9]{1,3})?$", pa.float64()),
)


_FOREIGN_MARKS = (
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
    (b"\x1f\x8b", "gzip"),
    (b"PK\x03\x04", "a ZIP file"),
)


UTF8_MARK = b"\xef\xbb\xbf"


RECODE_HINT = "`iconv -f CP1252 -t UTF-8` turns what Excel writes into it."


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
        self.where, self.name = where, name or paths.base_name(paths.real_path(where))
        self.folder = "." if name else paths.folder_of(where.rstrip("/")) or "."
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


def parse_numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return text as numbers where all of it is what a number is written as; 007 is not, and stays text as it is.

    A gap (an empty cell, NA, null, NaN) among numbers is null.
    """
    gaps = pc.is_in(column, value_set=arrow.text_array(_NULL_TEXTS).cast(column.type))
    filled = column.filter(pc.invert(gaps)).drop_null()
    for pattern, kind in _NUMBER_PATTERNS:
        if len(filled) and pc.all(pc.match_substring_regex(filled, pattern)).as_py():
            empty = arrow.text_array([None])[0].cast(column.type)
            return pc.cast(pc.if_else(gaps, empty, column), kind)
    return column


def read_in_blocks(read: Callable[[int], pa.Table]) -> pa.Table:
    """Return what `read` gives for the smallest size of blocks that holds every row."""
    block = READ_BLOCK_BYTES
    while True:
        try:
            return read(block)
        except pa.ArrowInvalid as error:
            if "straddl" not in str(error) or block > MAX_ROW_BYTES:
                raise
            block *= 8


def check_text_start(name: str, head: bytes) -> bytes:
    """Return the start of a text without its byte-order mark."""
    for mark, meaning in _FOREIGN_MARKS:
        if head.startswith(mark):
            remedy = "`iconv -f UTF-16 -t UTF-8` makes it that." if meaning == "UTF-16" else ""
            raise InvalidRequest(name, meaning, expected="text in UTF-8", remedy=remedy)
    if b"\0" in head:
        raise InvalidRequest(name, "bytes that are no text", expected="text in UTF-8")
    return head.removeprefix(UTF8_MARK)


@contextmanager
def reading_table(name: str) -> Iterator[None]:
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


def dataset_classes(schema: pa.Schema) -> dict[str, list[str]]:
    """Return the names of classes of columns of their numbers, as Hugging Face's datasets leave them with a table.

    Source: huggingface/datasets, `arrow_writer.py` (the key `huggingface`) and `features/features.py` (`ClassLabel`).
    """
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        labels = {name: one["names"] for name, one in features.items() if one.get("_type") == "ClassLabel"}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
    return {
        name: recorded_names(names)
        for name, names in labels.items()
        if name in schema.names and pa.types.is_integer(schema.field(name).type) and are_class_names(names)
    }
