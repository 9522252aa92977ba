"""The first rows of a table that is next to files: which of its columns names them."""

from __future__ import annotations

import csv
import io
import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from shardtool.names import to_bytes
from shardtool.storage import files
from shardtool.storage.remote import address
from shardtool.table.columns import PATH_NAMES
from shardtool.table.detect import (
    ARROW_ENDINGS,
    COMPRESSIONS,
    DELIMITERS,
    JSON_ENDING,
    JSON_LINES_ENDINGS,
    PARQUET_ENDING,
    table_ending,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_HEAD = 2**18  # bytes
_ROWS = 8
_MOST = 0.5  # share of the rows that must name a file: a table may list more files than there are
_DELIMITERS = (",", "\t", ";", "|")
_NAMES_COCO = re.compile(r'"file_name"\s*:\s*"([^"\\]+)"')
_TEXT_NAMES = ("text", "txt", "caption", "content", "prompt", "sentence", "transcript", "transcription")
_KEY_NAMES = ("key", "__key__", "id", "sample_id", "uid", "uuid")


class TableHead(NamedTuple):
    """Some rows of a table.

    Attributes:
        forms: Ways to read it, the usual one first: the options that say so, and the rows, by their columns.
        is_coco: Whether it is a JSON file of COCO.
    """

    forms: tuple[tuple[Mapping[str, object], list[dict[str, object]]], ...]
    is_coco: bool = False


class Match(NamedTuple):
    """How a table names files.

    Attributes:
        options: The options of `create`, by their fields.
        as_source: Whether the table is the source; otherwise it is joined.
    """

    options: dict[str, object]
    as_source: bool


def head_of(path: str) -> TableHead | None:
    """Return the first rows of a table; None if it is not one that can be read so."""
    ending = table_ending(path)
    with suppress(Exception):  # the table is not what was asked for: whatever is wrong with it is no error of this run
        if ending in (PARQUET_ENDING, *ARROW_ENDINGS):
            return TableHead((({}, _arrow_rows(path, ending)),)) if not address.is_url(path) else None
        if any(path.lower().endswith(one) for one in COMPRESSIONS):
            return None
        text = files.read_head(path, _HEAD)[0].decode("utf-8-sig", "ignore")
        if ending in DELIMITERS:
            return TableHead((*_delimited(text, DELIMITERS[ending]),))
        if ending in JSON_LINES_ENDINGS or text.lstrip().startswith("["):
            return TableHead((({}, [*_objects(text)]),))
        if ending == JSON_ENDING and '"images"' in text:
            return TableHead((({}, [{"file_name": name} for name in _NAMES_COCO.findall(text)[:_ROWS]]),), is_coco=True)
    return None


def _arrow_rows(path: str, ending: str) -> list[dict[str, object]]:
    import pyarrow.dataset as ds

    form = "parquet" if ending == PARQUET_ENDING else "ipc"
    scanned: list[dict[str, object]] = ds.dataset(path, format=form).head(_ROWS).to_pylist()
    return scanned


def _objects(text: str) -> Iterator[dict[str, object]]:
    """Yield the first objects of JSON lines, or of a list."""
    decoder, at = json.JSONDecoder(), 0
    for _ in range(_ROWS):
        at = next((place for place in range(at, len(text)) if text[place] not in " \t\r\n,["), len(text))
        if at == len(text) or text[at] != "{":
            return
        try:
            row, at = decoder.raw_decode(text, at)
        except ValueError:  # cut at the end of the head
            return
        yield row


def _delimited(text: str, usual: str) -> Iterator[tuple[Mapping[str, object], list[dict[str, object]]]]:
    """Yield ways to read a text: with each delimiter, with its first row as the header and without."""
    for delimiter in sorted(_DELIMITERS, key=lambda one: one != usual):
        stream = io.StringIO(text, newline="")
        is_plain = delimiter == "|"  # between bars, quotation marks are text
        reader = csv.reader(stream, delimiter=delimiter, quoting=csv.QUOTE_NONE if is_plain else csv.QUOTE_MINIMAL)
        rows = [row for _, row in zip(range(_ROWS + 1), reader, strict=False) if row]
        if len(rows) < 2 or len({len(row) for row in rows[:-1]}) > 1:  # noqa: PLR2004 - a header and a row
            continue
        said = {} if delimiter == usual else {"delimiter": delimiter}
        yield said, [dict(zip(rows[0], row, strict=False)) for row in rows[1:]]
        numbers = [str(at + 1) for at in range(len(rows[0]))]
        yield {**said, "no_header": True}, [dict(zip(numbers, row, strict=False)) for row in rows]


def matching_column(
    head: TableHead, has_file: Callable[[bytes], bool], has_key: Callable[[bytes], bool], root: bytes
) -> Match | None:
    """Return how a table names the files of a folder; None if no column does.

    Args:
        head: Some rows.
        has_file: Tells whether a path below the source is a file.
        has_key: Tells whether a sample has a key.
        root: The folder that the table's values count from, empty or ending in a slash.
    """
    for form, rows in head.forms:
        columns = [*rows[0]] if rows else []
        if "no_header" not in form and any(has_key(root + to_bytes(name)) for name in columns):
            continue  # the first row is no header
        usual = [name for wanted in PATH_NAMES for name in columns if name.casefold() == wanted]
        for column in [*usual, *(name for name in columns if name not in usual)]:
            values = [to_bytes(str(row.get(column))).removeprefix(b"./") for row in rows if row.get(column) is not None]
            if _are_most(values, root, has_file):
                if head.is_coco:
                    return Match({}, as_source=False)
                named = {} if [column] == usual[:1] else {"path": column}
                return Match({**form, **named}, as_source=True)
            if _are_most(values, root, has_key):
                return Match({**form, "on": column}, as_source=False)
    return None


def _are_most(values: Sequence[bytes], root: bytes, has: Callable[[bytes], bool]) -> bool:
    return bool(values) and sum(bool(value) and has(root + value) for value in values) > _MOST * len(values)


def options_of_rows(path: str) -> tuple[dict[str, object], bool]:
    """Return the options that pack the rows of a table, and whether a column names files.

    Without a column of paths or bytes, the first column of texts becomes the field txt.
    """
    head = head_of(path)
    rows = head.forms[0][1] if head is not None and head.forms else []
    row = next(iter(rows), {})
    names = {name.casefold(): name for name in row}
    if any(name in names for name in PATH_NAMES):
        return {}, True
    if any(isinstance(value, bytes | dict) for value in row.values()):
        return {}, False
    texts = [name for name, value in row.items() if isinstance(value, str) and name.casefold() not in _KEY_NAMES]
    usual = [names[name] for name in _TEXT_NAMES if names.get(name) in texts]
    column = next(iter((*usual, *texts)), None)
    return {} if column is None else {"values": {"txt": column}}, False
