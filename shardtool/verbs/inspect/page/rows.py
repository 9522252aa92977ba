"""Embed sample metadata in the HTML page, so users can filter and sort the samples."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from shardtool.entries.arrow import is_list_type, number_array, to_python_values
from shardtool.errors import printable
from shardtool.verbs.inspect.samples import json_text
from shardtool.verbs.inspect.summary import is_scalar_type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardtool.dataset.shard_index import ShardIndex
    from shardtool.dataset.stored import StoredShard
    from shardtool.verbs.inspect.overview import DatasetOverview, FieldPayloads
    from shardtool.verbs.inspect.page.samples import ShownSample

MAX_ROWS = 100_000
MAX_ROW_BYTES = 10_000_000  # size of the rows in Arrow; their JSON has about the same size
_MAX_VALUE_CHARS = 200
_MAX_LIST_VALUES = 20
_MAX_EXACT_INTEGER = 2**53  # larger integers are inexact in JavaScript
_UNSAFE_IN_FILE_NAMES = re.compile(r"[^A-Za-z0-9_-]+")
_OWN_COLUMNS = 2  # the columns `key` and `size`


class _Values(NamedTuple):
    kind: str
    values: pa.Array
    lengths: pa.Array | None = None

    def slice(self, rows: int) -> _Values:
        lengths = None if self.lengths is None else self.lengths.slice(0, rows)
        return _Values(self.kind, self.values.slice(0, rows), lengths)


def class_names_of(classes: Mapping[str, list[str]], column: str) -> list[str]:
    """Return the class names of a column or, if it has none, of its field (`labels.json` for the column `labels`)."""
    matches = (names for name, names in classes.items() if name.rpartition(".")[0] == column)
    return classes.get(column) or next(matches, [])


class RowTable:
    """Collects the rows of a dataset while its indexes are read.

    Attributes:
        first: Number of rows that `add` added: the dataset's first samples, until a limit is reached.
    """

    def __init__(self, name: str, max_rows: int = MAX_ROWS, max_bytes: int = MAX_ROW_BYTES) -> None:
        self.name, self.row_count, self.first = name, 0, 0
        self.shards: list[str] = []
        self.columns: dict[str, list[_Values]] = {}
        self.keys: list[pa.Array] = []
        self.sizes: list[pa.Array] = []
        self._max_rows, self._bytes_left = max_rows, max_bytes
        self._ranges: dict[str, tuple[int, int]] = {}

    def add(
        self,
        overview: DatasetOverview,
        shard: StoredShard,
        shard_index: ShardIndex,
        fields: Mapping[str, FieldPayloads],
    ) -> None:
        """Add the rows of a shard until the limits are reached."""
        names = shard_index.metadata.column_names
        row_bytes = 8 * (len(names) + _OWN_COLUMNS)
        count = min(len(shard_index), self._max_rows - self.row_count, self._bytes_left // row_bytes)
        if count <= 0:
            return
        table = shard_index.table
        table = table if count == len(shard_index) else table.take(number_array(np.arange(count)))
        columns = {name: _convert(table.column(name), class_names_of(overview.classes, name)) for name in names}
        for name, payloads in fields.items():
            # for example, the field `labels.json` contains the column `labels`
            is_column = name in columns or name.rpartition(".")[0] in columns
            if not is_column and payloads.crcs is not None and overview.is_label(name):
                ids, is_missing = np.zeros(len(shard_index), np.uint64), np.ones(len(shard_index), np.bool_)
                ids[payloads.rows], is_missing[payloads.rows] = payloads.content_ids(), False
                columns[name] = _Values("label", pa.array(ids[:count], mask=is_missing[:count]))
        keys = _Values("text", table.column("__key__").combine_chunks())
        arrays = [array for column in (keys, *columns.values()) for array in (column.values, column.lengths)]
        size = sum(array.nbytes for array in arrays if array is not None)
        fitting = count if size <= self._bytes_left else count * self._bytes_left // size
        self._bytes_left -= size
        if fitting < len(shard_index):  # do not add later shards, because rows must not skip samples
            self._bytes_left = 0
        if fitting:
            self._ranges[shard.path] = self.row_count, fitting
            sizes = table.column("__size__").combine_chunks().slice(0, fitting)
            self._append([shard.file_name] * fitting, keys.values.slice(0, fitting), sizes, columns)
            self.first = self.row_count

    def _append(self, shards: Sequence[str], keys: pa.Array, sizes: pa.Array, columns: Mapping[str, _Values]) -> None:
        count = len(keys)
        self.keys.append(keys)
        self.sizes.append(sizes)
        self.shards += shards
        for name in {**self.columns, **columns}:
            missing = [_Values("", pa.nulls(self.row_count, pa.string()))] if self.row_count else []
            values = columns[name].slice(count) if name in columns else _Values("", pa.nulls(count, pa.string()))
            self.columns.setdefault(name, missing).append(values)
        self.row_count += count

    def set_row_numbers(self, samples: Sequence[ShownSample], overview: DatasetOverview) -> None:
        """Set the table row of each shown sample. Add rows beyond the limits if necessary."""
        added: dict[tuple[str, int], tuple[int, ShownSample]] = {}
        for sample in samples:
            path, number = sample.chosen.shard.path, sample.chosen.number
            first, count = self._ranges.get(path, (0, 0))
            if number < count:
                sample.row = first + number
            else:
                sample.row, _ = added.setdefault((path, number), (self.row_count + len(added), sample))
        labels = [sample.labels for _, sample in added.values()]
        chosen = [sample.chosen for _, sample in added.values()]
        columns = {}
        for name in self.columns:
            if name in overview.fields:
                columns[name] = _Values("text", pa.array([texts.get(name) for texts in labels], pa.string()))
            else:
                values = _column_of([sample.metadata.get(name) for sample in chosen])
                columns[name] = _convert(values, class_names_of(overview.classes, name))
        keys = pa.array([sample.key for sample in chosen], pa.string())
        sizes = pa.array([sample.size for sample in chosen], pa.uint64())
        self._append([sample.shard.file_name for sample in chosen], keys, sizes, columns)


def _column_of(values: list[object]) -> pa.ChunkedArray:
    try:
        return pa.chunked_array([pa.array(values)])
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        texts = (None if value is None else _value_text(value, ()) for value in values)
        return pa.chunked_array([pa.array(texts, pa.string())])


def _convert(column: pa.ChunkedArray, class_names: Sequence[str]) -> _Values:
    import pyarrow.compute as pc

    values = column.combine_chunks()
    values = values.dictionary_decode() if pt.is_dictionary(values.type) else values
    kind = values.type
    if values.null_count == len(values):
        return _Values("", pa.nulls(len(values), pa.string()))
    if is_list_type(kind):
        return _Values("list", _list_texts(values, class_names), pc.list_value_length(values).cast(pa.int64()))
    is_integer = pt.is_integer(kind)
    if pt.is_floating(kind) or (is_integer and not class_names and _are_exact(values)):
        return _Values("number", values)
    if pt.is_string(kind) or pt.is_large_string(kind):
        texts = pc.utf8_slice_codeunits(values, 0, _MAX_VALUE_CHARS + 1).cast(pa.string())
    elif pt.is_boolean(kind):
        texts = pc.if_else(values, "True", "False")
    elif (is_integer and not class_names) or pt.is_date(kind) or pt.is_timestamp(kind):
        texts = values.cast(pa.string())
    else:
        texts = pa.array((_value_text(value, class_names) for value in to_python_values(column)), pa.string())
    return _Values("text", texts)


def _are_exact(values: pa.Array) -> bool:
    import pyarrow.compute as pc

    ends = pc.min_max(values).as_py()
    return bool(ends["min"] >= -_MAX_EXACT_INTEGER and ends["max"] <= _MAX_EXACT_INTEGER)


def _list_texts(values: pa.Array, class_names: Sequence[str]) -> pa.Array:
    # Lists of objects, such as conversations, become `[]`, because converting them would take seconds.
    import pyarrow.compute as pc

    if not is_scalar_type(values.type.value_type):
        return pc.if_else(values.is_valid(), "[]", None)
    items = pc.list_slice(values, 0, _MAX_LIST_VALUES, return_fixed_size_list=False)
    texts = [
        json.dumps([cell_text(_value_text(item, class_names) or "") for item in value], ensure_ascii=False)
        if isinstance(value, list)
        else None
        for value in to_python_values(pa.chunked_array([items]))
    ]
    return pa.array(texts, pa.string())


def _value_text(value: object, class_names: Sequence[str]) -> str | None:
    if isinstance(value, int) and 0 <= value < len(class_names):
        return class_names[value]
    text = json_text(value)
    return text and text[: _MAX_VALUE_CHARS + 1]


def cell_text(text: str) -> str:
    """Escape control characters, and cut a text after 200 characters."""
    text = printable(text)
    return text if len(text) <= _MAX_VALUE_CHARS else text[:_MAX_VALUE_CHARS] + "…"


def script_json(value: object, *, ascii_only: bool = False) -> str:
    """Return JSON for a script element. Escape characters that could end the element."""
    document = json.dumps(value, ensure_ascii=ascii_only, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        document = document.replace(char, f"\\u{ord(char):04x}")
    return document


def rows_json(tables: Sequence[RowTable], overviews: Sequence[DatasetOverview]) -> str:
    """Return the rows as JSON for a script element.

    A column contains its cells (`values`), or its distinct texts (`names`) and an index into `names` per cell (`codes`,
    -1 for null). For each row whose key is escaped or cut, `keys` contains the original key.
    """
    pairs = [*zip(tables, overviews, strict=True)]
    keys = [key for table in tables for part in table.keys for key in part.to_pylist()]
    shown_keys = [cell_text(key) for key in keys]
    hidden_keys = {row: key for row, (key, shown) in enumerate(zip(keys, shown_keys, strict=True)) if key != shown}
    documents = [script_json({"name": "key", "kind": "text", "values": shown_keys})]
    if len(tables) > 1:
        documents.append(_names_json("dataset", [table.name for table in tables for _ in range(table.row_count)]))
    ranks = [
        (overview.label_rank(name), position, name)
        for table, overview in pairs
        for position, name in enumerate(table.columns)
    ]
    for name in dict.fromkeys(name for _, _, name in sorted(ranks)):
        parts = []
        for table, overview in pairs:
            if table.row_count:
                values = table.columns.get(name, [_Values("", pa.nulls(table.row_count, pa.string()))])
                parts += [_with_label_texts(part, overview.label_texts.get(name, {})) for part in values]
        is_label = name == "split" or any(overview.is_label(name) for overview in overviews)
        documents.append(script_json({"name": cell_text(name), "label": is_label, **_column_document(parts)}))
    sizes = [size for table in tables for part in table.sizes for size in part.to_pylist()]
    documents.append(script_json({"name": "size", "kind": "number", "values": sizes}))
    documents.append(_names_json("shard", [shard for table in tables for shard in table.shards]))
    file = _UNSAFE_IN_FILE_NAMES.sub("_", tables[0].name)[:60] if len(tables) == 1 else "selection"
    has_metadata = any(not overview.is_label(name) for table, overview in pairs for name in table.columns)
    head = {"file": f"{file}.keys", "datasets": len(tables), "metadata": has_metadata, "count": len(keys)}
    head["keys"] = hidden_keys
    return f'{script_json(head, ascii_only=True)[:-1]},"columns":[{",".join(documents)}]}}'


def _names_json(name: str, values: Sequence[str]) -> str:
    numbers = {text: number for number, text in enumerate(dict.fromkeys(values))}
    document = {"kind": "text", "names": [*map(cell_text, numbers)], "codes": [numbers[text] for text in values]}
    return script_json({"name": name, "label": name == "dataset", **document})


def _with_label_texts(part: _Values, label_texts: Mapping[int, str]) -> _Values:
    if part.kind != "label":
        return part
    ids = part.values.to_pylist()
    texts = (None if content_id is None else label_texts.get(content_id, "?") for content_id in ids)
    return _Values("text", pa.array(texts, pa.string()))


def _column_document(parts: Sequence[_Values]) -> dict[str, object]:
    kinds = {part.kind for part in parts} - {""}
    if kinds == {"number"}:
        return {"kind": "number", "values": [value for part in parts for value in _numbers(part)]}
    if kinds == {"list"}:
        lists = [text for part in parts for text in part.values.to_pylist()]
        lengths = [
            length
            for part in parts
            for length in ([None] * len(part.values) if part.lengths is None else part.lengths.to_pylist())
        ]
        values = [text if text is None else json.loads(text) for text in lists]
        return {"kind": "list", "values": values, "lengths": lengths}
    column = pa.chunked_array([part.values.cast(pa.string()) for part in parts], pa.string())
    encoded = column.combine_chunks().dictionary_encode()
    names = [cell_text(text) for text in encoded.dictionary.to_pylist()]
    if 2 * len(names) <= len(column):
        codes = encoded.indices.fill_null(-1).to_pylist()
        return {"kind": "text", "names": names, "codes": codes}
    return {"kind": "text", "values": [None if text is None else cell_text(text) for text in column.to_pylist()]}


def _numbers(part: _Values) -> list[object]:
    if not part.kind or pt.is_integer(part.values.type):
        return list(part.values.to_pylist())
    # Convert through text, so 32-bit floats get no extra digits. NaN and infinity stay text, because JSON lacks them.
    texts = part.values.cast(pa.string()).to_pylist()
    return [text if text is None or text.lstrip("-") in ("nan", "inf") else float(text) for text in texts]
