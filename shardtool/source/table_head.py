"""Read the first rows of a table, and find a column with paths or keys of files in a folder."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, cast

from shardtool.names import to_bytes
from shardtool.source.manifest.roles import KEY_NAMES
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

_HEAD_BYTES = 2**18
_HEAD_ROWS = 32
_MIN_MATCH_SHARE = 0.5
_DELIMITERS = (",", "\t", ";", "|")
_NAMES_COCO = re.compile(r'"file_name"\s*:\s*"([^"\\]+)"')
_ANNOTATION_COLUMNS = {"bbox": "boxes", "category_id": "labels", "caption": "captions"}
_TEXT_NAMES = ("text", "txt", "caption", "content", "prompt", "sentence", "transcript", "transcription")


class TableHead(NamedTuple):
    """The first rows of a table.

    Attributes:
        forms: Ways to read the table, the most likely first: pairs of `create` options and the resulting rows.
        annotations: The annotation columns of a COCO file. None for other tables.
    """

    forms: tuple[tuple[Mapping[str, object], list[dict[str, object]]], ...]
    annotations: Sequence[str] | None = None


class Match(NamedTuple):
    """The `create` options that pack the files listed in a table.

    If `as_source`, the table is the source. Otherwise, the source is a folder, and `--join` names the table.
    """

    options: dict[str, object]
    as_source: bool


def read_table_head(path: str) -> TableHead | None:
    """Return the first rows of a table, or None if the table cannot be read."""
    ending = table_ending(path)
    with suppress(Exception):  # report no errors, because the user did not name this table
        if ending in (PARQUET_ENDING, *ARROW_ENDINGS):
            return TableHead((({}, _arrow_rows(path, ending)),)) if not address.is_url(path) else None
        text = _read_head(path).decode("utf-8-sig", "ignore")
        if ending in DELIMITERS:
            return TableHead((*_delimited(text, DELIMITERS[ending]),))
        if ending in JSON_LINES_ENDINGS or text.lstrip().startswith("["):
            return TableHead((({}, [*_objects(text)]),))
        if ending == JSON_ENDING and '"images"' in text:
            rows: list[dict[str, object]] = [{"file_name": name} for name in _NAMES_COCO.findall(text)[:_HEAD_ROWS]]
            text += files.read_tail(path, _HEAD_BYTES).decode("utf-8", "ignore")
            columns = [column for key, column in _ANNOTATION_COLUMNS.items() if f'"{key}"' in text]
            return TableHead((({}, rows),), columns)
    return None


def _read_head(path: str) -> bytes:
    if not path.lower().endswith((*COMPRESSIONS,)):
        return files.read_head(path, _HEAD_BYTES)[0]
    import pyarrow as pa

    if address.is_url(path):
        return b""
    with pa.input_stream(path, compression="detect") as stream:
        return cast("bytes", stream.read(_HEAD_BYTES))


def _arrow_rows(path: str, ending: str) -> list[dict[str, object]]:
    import pyarrow.dataset as ds

    form = "parquet" if ending == PARQUET_ENDING else "ipc"
    rows: list[dict[str, object]] = ds.dataset(path, format=form).head(_HEAD_ROWS).to_pylist()
    return rows


def _objects(text: str) -> Iterator[dict[str, object]]:
    decoder, position = json.JSONDecoder(), 0
    for _ in range(_HEAD_ROWS):
        position = next((index for index in range(position, len(text)) if text[index] not in " \t\r\n,["), len(text))
        if position == len(text) or text[position] != "{":
            return
        try:
            row, position = decoder.raw_decode(text, position)
        except ValueError:
            return
        yield row


def _delimited(text: str, usual: str) -> Iterator[tuple[Mapping[str, object], list[dict[str, object]]]]:
    for delimiter in sorted(_DELIMITERS, key=lambda candidate: candidate != usual):
        stream = io.StringIO(text, newline="")
        is_plain = delimiter == "|"  # with this delimiter, quotation marks are text
        reader = csv.reader(stream, delimiter=delimiter, quoting=csv.QUOTE_NONE if is_plain else csv.QUOTE_MINIMAL)
        rows = [row for _, row in zip(range(_HEAD_ROWS + 1), reader, strict=False) if row]
        if len(rows) < 2 or len({len(row) for row in rows[:-1]}) > 1:  # noqa: PLR2004 - a header and a row
            continue
        delimiter_option = {} if delimiter == usual else {"delimiter": delimiter}
        yield delimiter_option, [dict(zip(rows[0], row, strict=False)) for row in rows[1:]]
        numbers = [str(index + 1) for index in range(len(rows[0]))]
        yield {**delimiter_option, "no_header": True}, [dict(zip(numbers, row, strict=False)) for row in rows]


def matching_column(
    head: TableHead, has_file: Callable[[bytes], bool], has_key: Callable[[bytes], bool], root: bytes
) -> Match | None:
    """Return the options for a table that lists paths or keys of files below `root`, or None for other tables.

    `root` is empty or ends in a slash.
    """
    for form, rows in head.forms:
        columns = [*rows[0]] if rows else []
        if "no_header" not in form and any(has_key(root + to_bytes(name)) for name in columns):
            continue
        usual = [name for path_name in PATH_NAMES for name in columns if name.casefold() == path_name]
        for column in [*usual, *(name for name in columns if name not in usual)]:
            values = [to_bytes(str(row.get(column))).removeprefix(b"./") for row in rows if row.get(column) is not None]
            if _do_most_match(values, root, has_file):
                if head.annotations is not None:
                    fields = {f"{name}.json": name for name in head.annotations}
                    return Match({"field": fields} if fields else {}, as_source=False)
                path_option = {} if [column] == usual[:1] else {"path": column}
                has_keys = any(name.casefold() in KEY_NAMES for name in columns if name != column)
                collected = {} if has_keys else _collecting_option(values)
                return Match({**form, **path_option, **collected}, as_source=True)
            if _do_most_match(values, root, has_key):
                return Match({**form, "on": column, **_collecting_option(values)}, as_source=False)
    return None


def _collecting_option(keys: Sequence[bytes]) -> dict[str, object]:
    return {"collect": ("all",)} if len({*keys}) < len(keys) else {}


def _do_most_match(values: Sequence[bytes], root: bytes, has: Callable[[bytes], bool]) -> bool:
    return bool(values) and sum(bool(value) and has(root + value) for value in values) > _MIN_MATCH_SHARE * len(values)


def row_packing_options(path: str) -> tuple[dict[str, object], bool]:
    """Return the options that pack the rows of a table, and whether a column contains paths.

    If no column contains paths or bytes, the options create the field txt from a column with a usual name such as
    `caption`, or from the first column of text.
    """
    head = read_table_head(path)
    rows = head.forms[0][1] if head is not None and head.forms else []
    row = rows[0] if rows else {}
    names = {name.casefold(): name for name in row}
    if any(name in names for name in PATH_NAMES):
        return {}, True
    if any(isinstance(value, bytes | dict) for value in row.values()):
        return {}, False
    texts = [name for name, value in row.items() if isinstance(value, str) and name.casefold() not in KEY_NAMES]
    usual = [names[name] for name in _TEXT_NAMES if names.get(name) in texts]
    column = next(iter((*usual, *texts)), None)
    return {} if column is None else {"field": {"txt": column}}, False
