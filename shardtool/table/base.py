"""The base class `Table`, and helpers to read tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries import arrow
from shardtool.entries.classes import are_class_names, recorded_names
from shardtool.errors import InvalidRequest, is_out_of_memory, os_error_text
from shardtool.storage import paths
from shardtool.table.columns import MAX_ROW_BYTES

HEADER_BYTES = 2**20
READ_BLOCK_BYTES = 2**20
_NULL_TEXTS = ["", "NA", "N/A", "null", "NULL", "nan", "NaN"]

_NUMBER_PATTERNS = (
    (r"^(0|-?[1-9][0-9]{0,17})$", pa.int64()),
    (r"^-?(0|[1-9][0-9]{0,17})(\.[0-9]*)?([eE][+-]?[0-9]{1,3})?$", pa.float64()),
)

_FOREIGN_MARKS = (
    (b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"), (b"\x1f\x8b", "gzip"), (b"PK\x03\x04", "a ZIP file")
)  # fmt: skip

UTF8_MARK = b"\xef\xbb\xbf"
RECODE_HINT = "If Excel wrote the file, convert it: `iconv -f CP1252 -t UTF-8`."


class Table:
    """A table whose columns are read on request.

    Attributes:
        folder: The folder to which relative paths in the table refer.
        classes: Class names by column, for columns that contain class numbers or lists of class numbers.
        key_column: The column that identifies samples, or "" if the table's format defines none.
    """

    schema: pa.Schema

    def __init__(self, location: str, name: str = "") -> None:
        self.location = location
        self.name = name or paths.base_name(paths.real_path(location))
        self.folder = "." if name else paths.folder_of(location.rstrip("/")) or "."
        self.classes: Mapping[str, list[str]] = {}
        self.key_column = ""
        self.notes: tuple[str, ...] = ()

    def read(self, columns: list[str], text: Collection[str], /) -> pa.Table:
        """Read `columns`, which must be in the order of `schema`. If `columns` is empty, the result may have no rows.

        A format without types, such as CSV, infers types, except for the columns in `text`.
        """
        raise NotImplementedError

    def count(self) -> int:
        """Return the number of rows."""
        return sum(batch.num_rows for batch in self.batches(self.schema.names[:1]))

    def row_counts(self) -> list[tuple[str, int]]:
        """Return the path and row count of each file of a `ConcatenatedTable`, or [] for other tables."""
        return []

    def batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield all rows of these columns as record batches."""
        yield from self.read(columns, ()).to_batches()

    def iter_struct_field(self, column: str, field: str) -> Iterator[pa.Array]:
        """Yield the values of one field of a struct column."""
        index = self.schema.field(column).type.get_field_index(field)
        for batch in self.batches([column]):
            yield batch.column(0).flatten()[index]


class MemoryTable(Table):
    """A table in memory."""

    def __init__(self, location: str, table: pa.Table, name: str = "") -> None:
        super().__init__(location, name)
        self._table, self.schema = table, table.schema

    def read(self, columns: list[str], _text: Collection[str], /) -> pa.Table:
        """Return these columns."""
        return self._table.select(columns)

    def count(self) -> int:
        """Return the number of rows."""
        return int(self._table.num_rows)


def parse_numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert a text column to numbers if all its values are numbers. A value such as 007 is not a number.

    Empty cells, NA, null and NaN become null in a column of numbers.
    """
    gaps = pc.is_in(column, value_set=arrow.text_array(_NULL_TEXTS).cast(column.type))
    filled = column.filter(pc.invert(gaps)).drop_null()
    for pattern, number_type in _NUMBER_PATTERNS:
        if len(filled) and pc.all(pc.match_substring_regex(filled, pattern)).as_py():
            empty = arrow.text_array([None])[0].cast(column.type)
            return pc.cast(pc.if_else(gaps, empty, column), number_type)
    return column


def read_in_blocks(read: Callable[[int], pa.Table]) -> pa.Table:
    """Call `read` with a block size in bytes. Increase the size until every row fits into a block."""
    block = READ_BLOCK_BYTES
    while True:
        try:
            return read(block)
        except pa.ArrowInvalid as error:
            if "straddl" not in str(error) or block > MAX_ROW_BYTES:
                raise
            block *= 8


def check_text_start(name: str, head: bytes) -> bytes:
    """Return the start of a text file without its byte-order mark. Raise an error for UTF-16, gzip, zip or a NUL."""
    for mark, meaning in _FOREIGN_MARKS:
        if head.startswith(mark):
            remedy = "Convert it: `iconv -f UTF-16 -t UTF-8`." if meaning == "UTF-16" else ""
            raise InvalidRequest(name, meaning, expected="text in UTF-8", remedy=remedy)
    if b"\0" in head:
        raise InvalidRequest(name, "a NUL byte, so not text", expected="text in UTF-8")
    return head.removeprefix(UTF8_MARK)


@contextmanager
def reading_table(name: str) -> Iterator[None]:
    """Convert errors in the block to `InvalidRequest`, except memory errors."""
    try:
        yield
    except MemoryError:  # pyarrow's MemoryError is also an ArrowException
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, ArithmeticError) as error:
        if is_out_of_memory(error):
            raise
        message = os_error_text(error) if isinstance(error, OSError) and error.errno else str(error)
        raise InvalidRequest(name, f"cannot be read: {(message.splitlines() or [type(error).__name__])[0]}") from None


def dataset_classes(schema: pa.Schema) -> dict[str, list[str]]:
    """Return class names by column, from the metadata that Hugging Face datasets stores in a schema.

    Source: huggingface/datasets, `arrow_writer.py` (the key `huggingface`) and `features/features.py` (`ClassLabel`).
    """
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        labels = {name: feature["names"] for name, feature in features.items() if feature.get("_type") == "ClassLabel"}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
    return {
        name: recorded_names(names)
        for name, names in labels.items()
        if name in schema.names and pa.types.is_integer(schema.field(name).type) and are_class_names(names)
    }
