"""Samples of a dataset, found and looked at: the twin of `inspect` with `--show`, `--head`, `--keys` or `--table`.

A payload is read as far as people look at it, and shown as what it is. Damage is shown with the field that has it.
"""

from __future__ import annotations

import base64
import json
import math
import os
import sys
from codecs import getincrementaldecoder
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from shardtool.dataset.dataset_file import numbers_in
from shardtool.dataset.payload import (
    IMAGE_LIMIT,
    MOST_LEVELS,
    TEXT_LIMIT,
    content_of,
    image_fact,
    json_of,
    label_of,
    value_of,
)
from shardtool.dataset.shard_file import PackedFile, ShardFile, open_shard, payload, walked_text
from shardtool.dataset.shard_index import UNREAD, FieldRow, ShardIndex, types_of
from shardtool.errors import CorruptShard, InvalidRequest, listing, printable
from shardtool.fingerprint import crc32c
from shardtool.format import tfrecord
from shardtool.format.tfrecord import FRAME_HEAD, FRAME_TAIL
from shardtool.read.catalog import asked_table
from shardtool.select.query import matching
from shardtool.storage.folders import check_name, target_file
from shardtool.storage.places import real_path
from shardtool.storage.staging import Tree, check_target, named_folder, path_problem
from shardtool.values import Number, output_text, to_bytes
from shardtool.verbs.inspect.inspect import FoundSample, found_samples, is_plain
from shardtool.wording import either, flag, option, typed_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from shardtool.dataset.find import StoredDataset, StoredShard


# Which samples of datasets are asked for: all, or those for which a query is true; a shard at a time.


class Piece(NamedTuple):
    """A shard of one of the datasets.

    Attributes:
        dataset: The dataset.
        shard: The shard.
        part: Its index.
        first: The number of its first sample, counted from 0 over all datasets.
        rows: The samples that are asked for, in order.
    """

    dataset: StoredDataset
    shard: StoredShard
    part: ShardIndex
    first: int
    rows: NDArray[np.int64]

    def raise_damage(self) -> None:
        """Raise what ended a walk over the shard: there may be more samples.

        Raises:
            CorruptShard: Something did.
        """
        if self.part.problems:
            raise self.part.problems[-1]


def pieces(datasets: Sequence[StoredDataset], where: str | None = None, *, metadata: bool = False) -> Iterator[Piece]:
    """Yield the shards of datasets, those without a sample that is asked for, too.

    Args:
        datasets: In order.
        where: A query over the columns of the sidecars, and `key`, `shard`, `size` and `fields`; None: all samples.
        metadata: Whether the sidecars' columns are wanted, too.

    Raises:
        InvalidRequest: The query is none, or true for no sample.
        CorruptShard: A shard has no sound sidecar, and cannot be opened.
    """
    columns = set() if where is None else _columns(datasets)
    first = found = 0
    for dataset in datasets:
        for shard in dataset.shards:
            part = shard.index(metadata=metadata or where is not None)
            rows = np.arange(len(part))
            if where is not None:
                classes = dataset.file.classes if dataset.file else {}
                rows = matching(asked_table(shard, part, columns, classes), where, classes)
            yield Piece(dataset, shard, part, first, rows)
            first, found = first + len(part), found + len(rows)
    if where is not None and not found:
        raise InvalidRequest(option("where"), f"no sample for which {where}", expected="one sample or more")


def _columns(datasets: Sequence[StoredDataset]) -> set[str]:
    """Return the columns that any sidecar has; a query may name one that a shard lacks."""
    names: set[str] = set()
    for dataset in datasets:
        if dataset.file is not None:
            names.update(dataset.file.schema)
        else:
            names.update(name for shard in dataset.shards for name in shard.index().schema.names)
    return {name for name in names if not name.startswith("__")}


def texts_of(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column without dictionaries."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


_HEAD = 64  # bytes of a payload that is neither text nor an image
_DIGITS = 18  # of a number of samples


class FieldView(NamedTuple):
    """A field, for people.

    Attributes:
        name: Its name.
        content: What it turned out to be: `image`, `json`, `text`, `number` or `bytes`.
        offset: Where its payload starts in the shard.
        length: Bytes of the payload.
        value: The text, number or numbers, or what the JSON says; None for images and bytes.
        image: Width, height and mode.
        head: The first 64 bytes, of what is no text.
        problem: What is wrong with it; empty where nothing is.
        label: What the number of a class is called.
    """

    name: str
    content: str
    offset: int
    length: int
    value: object = None
    image: tuple[int, int, str] | None = None
    head: bytes = b""
    problem: str = ""
    label: str | None = None

    def to_json(self) -> dict[str, object]:
        """Return the field as data: bytes as base64, what is not there as null."""
        found = {name: plain(getattr(self, name)) for name in ("content", "offset", "length", "value", "label")}
        image = None if self.image is None else dict(zip(("width", "height", "mode"), self.image, strict=True))
        return {**found, "image": image, "head": plain(self.head) or None, "problem": self.problem or None}


class SampleView(NamedTuple):
    """A sample, and its fields, for people."""

    sample: FoundSample
    fields: tuple[FieldView, ...]

    def to_json(self) -> dict[str, object]:
        """Return the sample as data, the way `--json` prints it (docs/json.md)."""
        one, fields = self.sample, {field.name: field.to_json() for field in self.fields}
        found = {"key": one.key, "number": one.number, "shard": output_text(one.shard.path), "offset": one.offset}
        return {**found, "size": one.size, "fields": fields, "metadata": plain(one.metadata)}


def keys(datasets: Sequence[StoredDataset], where: str | None = None) -> Iterator[str]:
    """Yield all keys, in the order of the samples; with a query, of those for which it is true."""
    for piece in pieces(datasets, where):
        column = piece.part.table.column("__key__")
        yield from (column if where is None else column.take(piece.rows)).to_pylist()
        piece.raise_damage()


def first_samples(
    datasets: Sequence[StoredDataset], most: int | None = None, where: str | None = None
) -> Iterator[FoundSample]:
    """Yield the first samples, or all; with a query, of those for which it is true."""
    left = sys.maxsize if most is None else most
    for piece in pieces(datasets, where, metadata=True):
        for row in piece.rows[:left].tolist():
            yield _found(piece.dataset, piece.shard, piece.part, row, piece.first + row)
        left -= len(piece.rows)
        if left <= 0:
            return
        piece.raise_damage()


def find_sample(datasets: Sequence[StoredDataset], key: str) -> FoundSample:
    """Return the first sample of that key or else, if the key is a number, that sample counted from 0 over all.

    Raises:
        InvalidRequest: There is none.
        CorruptShard: A shard cannot be read.
    """
    if (sample := _in_its_range(datasets, key)) is not None:
        return sample
    wanted = int(key) if key.isascii() and key.isdigit() and len(key) <= _DIGITS else -1
    number, by_number, example = 0, None, ""
    damage: list[CorruptShard] = []
    for dataset, shard in ((one, shard) for one in datasets for shard in one.shards):
        try:
            part = shard.index()
        except CorruptShard as error:
            damage.append(error)
            continue
        damage += part.problems
        column = part.table.column("__key__")
        row = column.index(key).as_py()
        if row >= 0:
            return _found(dataset, shard, part if part.walk else None, row, number + row)
        if number <= wanted < number + len(part):
            by_number = (dataset, shard, part if part.walk else None, wanted - number)
        example = example or (column[0].as_py() if len(part) else "")
        number += len(part)
    if by_number is not None:
        return _found(*by_number, wanted)
    if damage:
        raise damage[0]
    such = f", such as {printable(example)!r}" if example else ""
    expected = f"a key{such}, or a number below {number:,}" if number else "shards with samples: there are none here"
    raise InvalidRequest(either(f"sample {key}", f"--show {key}"), "no such sample", expected=expected)


def _in_its_range(datasets: Sequence[StoredDataset], key: str) -> FoundSample | None:
    """Return the sample of a key, if a dataset file lists shards in the order of keys, and one has room for it.

    Then one index is read instead of thousands. None: where it lies, if anywhere, only all indexes say.
    """
    file, shards = datasets[0].file, datasets[0].shards
    if len(datasets) > 1 or file is None or len(file.shards) != len(shards):
        return None
    listed = file.shards
    if any(one.last_key >= after.first_key for one, after in pairwise(listed)):
        return None
    at = next((at for at, one in enumerate(listed) if one.first_key <= key <= one.last_key), None)
    if at is None:
        return None
    try:
        part = shards[at].index()
    except CorruptShard:
        return None
    row = part.table.column("__key__").index(key).as_py()
    before = sum(one.samples for one in listed[:at])
    return None if row < 0 else _found(datasets[0], shards[at], part if part.walk else None, row, before + row)


def _found(dataset: StoredDataset, shard: StoredShard, part: ShardIndex | None, row: int, number: int) -> FoundSample:
    """Return a sample with all that its index says; None: that is to be read."""
    part = shard.index(metadata=True) if part is None else part
    found = found_samples(shard, part, np.array([row]), first=number - row)[0]
    kinds = part.kinds
    if shard.format == "tfrecord" and part.walk is None:
        kinds = numbers_in(dataset.file.features) if dataset.file else _kinds(shard, found.offset, found.size)
    return replace(found, kinds=kinds, classes=dataset.file.classes if dataset.file else {})


def _kinds(shard: StoredShard, offset: int, size: int) -> dict[str, Number]:
    """Return what the features of a record are, if it is not too large to be read for that."""
    if size > IMAGE_LIMIT:
        return {}
    with open_shard(shard.path) as file:
        start = offset + FRAME_HEAD
        data = b"".join(payload(file, start, max(0, size - FRAME_HEAD - FRAME_TAIL), shard.path))
        found = tfrecord.features(data, start, shard.path)
    return {walked_text(one.name): one.kind for one in found if one.kind != "bytes"}


def view(sample: FoundSample, *, text_limit: int = TEXT_LIMIT) -> SampleView:
    """Return a sample for people to look at.

    Args:
        sample: The sample.
        text_limit: Bytes of text that are read; of what is longer, only the start.

    Raises:
        CorruptShard: The shard cannot be opened.
    """
    with open_shard(sample.shard.path) as file:
        in_order = sorted(range(len(sample.fields)), key=lambda at: sample.fields[at]["offset"])
        found = {at: _view_field(sample, sample.fields[at], file, text_limit) for at in in_order}
    return SampleView(sample, tuple(found[at] for at in range(len(sample.fields))))


def _view_field(sample: FoundSample, one: FieldRow, file: ShardFile | PackedFile, text_limit: int) -> FieldView:
    name, offset, length = one["name"], one["offset"], one["length"]
    kind = sample.kinds.get(name, "bytes")
    content = content_of(name, kind)
    limit = IMAGE_LIMIT if content == "image" else text_limit
    wanted = length if length <= limit else _HEAD if content == "image" else limit
    try:
        data = b"".join(payload(file, offset, length, sample.shard.path, most=wanted))
    except CorruptShard as error:
        return FieldView(name, "bytes", offset, length, problem=error.found)
    problem = ""
    if len(data) == length and one["crc32c"] is not None and crc32c(data) != one["crc32c"]:
        problem = "another checksum than its index says; run `shardtool verify`"
    content, value, image, worse = _recognized(data, content, kind, whole=len(data) == length)
    head = data[:_HEAD] if value is None and image is None else b""
    label = None
    if name in sample.classes and length <= _HEAD and len(data) == length:
        label, number = label_of(data, kind, sample.classes[name])
        content, value, label = ("number", number, label) if isinstance(number, int) else (content, value, None)
    return FieldView(name, content, offset, length, value, image, head, problem or worse, label)


def _recognized(
    data: bytes, content: str, kind: str, *, whole: bool
) -> tuple[str, object, tuple[int, int, str] | None, str]:
    """Return what a payload turned out to be, its value, what image it is, and what is wrong with it."""
    if kind != "bytes":
        value = value_of(data, kind)
        return ("bytes", None, None, f"no {kind}") if value is None else ("number", value, None, "")
    if content == "image" and whole:
        fact = image_fact(data)
        return ("bytes", None, None, fact) if isinstance(fact, str) else ("image", None, fact, "")
    if content in ("audio", "video", "pickle", "array", "image"):
        return "bytes", None, None, ""
    wrong = "no JSON" if content == "json" and whole else ""
    if content == "json" and whole:
        try:
            found = json_of(data)
        except RecursionError:
            found, wrong = None, f"JSON more than {MOST_LEVELS} deep, shown as text"
        if found is not None or data.strip() == b"null":
            return "json", found, None, ""
    text = text_of(data, whole=whole)
    if content == "number" and isinstance(number := value_of(data[:_HEAD]), (int, float)) and len(data) <= _HEAD:
        return "number", number, None, ""
    return ("bytes", None, None, wrong) if text is None else ("text", text, None, wrong)


def text_of(data: bytes, *, whole: bool) -> str | None:
    """Return bytes as text; None where they are none. Where they are not `whole`, the last character may be cut off."""
    try:
        text = getincrementaldecoder("utf-8")().decode(data, final=whole)
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def plain(value: object) -> object:
    """Return a value as JSON has it: bytes as base64, times as text, numbers that are none (NaN) as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return str(value)


# Fields written to files, one each, below a folder and nowhere else, whatever the sample's key says.
#
# A file that is there is an error, unless it may be replaced.


_SHOWN = 255  # letters of a path in a message


def extract(sample: FoundSample, folder: str, *, overwrite: bool = False) -> tuple[str, ...]:
    """Write each field of a sample to `KEY.FIELD` below a folder, which is made where it is missing.

    A number of a TFRecord becomes text, several a JSON list.

    Returns:
        The files' paths.

    Raises:
        InvalidRequest: The folder is no local one.
        CorruptShard: The key or a field's name is no path below a folder, or a payload is damaged.
        OutputExists: There is a file of that name already, or something else where a folder must be.
        OutputFailed: It cannot be written.
    """
    paths = [_path(sample, one["name"]) for one in sample.fields]  # all, before anything is written
    with closing(Tree(named_folder(folder).path)) as tree, open_shard(sample.shard.path) as file:
        for at in sorted(range(len(paths)), key=lambda at: sample.fields[at]["offset"]):
            blocks = partial(_blocks, sample, sample.fields[at], file)
            tree.write(paths[at], blocks, "overwrite" if overwrite else "error")
        return tuple(map(tree.full_path, paths))


def field_bytes(sample: FoundSample, field: str) -> Iterator[bytes]:
    """Yield the bytes of a sample's field, a piece at a time; a number of a TFRecord as text.

    Raises:
        InvalidRequest: The sample has no such field.
        CorruptShard: The payload is damaged; what was read by then was yielded.
    """
    names = [one["name"] for one in sample.fields]
    if field not in names:
        found = f"{printable(sample.key)} has no field {field!r}"
        raise InvalidRequest(typed_name("field"), found, expected=f"one of {listing(sorted(map(printable, names)), 9)}")
    with open_shard(sample.shard.path) as file:
        yield from _blocks(sample, sample.fields[names.index(field)], file)


def _path(sample: FoundSample, field: str) -> bytes:
    """Return a field's path, if all of its parts are plain names."""
    path = to_bytes(f"{sample.key}.{field}")
    if problem := path_problem(path):
        found = f"sample {sample.number:,}: {printable(path)[:_SHOWN]} is {problem}"
        raise CorruptShard(sample.shard.path, found, remedy="Nothing of it was written.")
    return path


def _blocks(sample: FoundSample, one: FieldRow, file: ShardFile | PackedFile) -> Iterator[bytes]:
    """Yield what goes into a field's file."""
    where = f"{sample.shard.path}, field {one['name']!r} of {sample.key}"
    blocks, crc = payload(file, one["offset"], one["length"], where), 0
    kind = sample.kinds.get(one["name"], "bytes")
    if kind != "bytes":
        blocks = iter([b"".join(blocks)])
    for block in blocks:
        crc = crc32c(block, crc)
        yield block if kind == "bytes" else _as_text(block, kind, where)
    if one["crc32c"] is not None and crc != one["crc32c"]:
        raise CorruptShard(where, "another checksum than its index says", remedy="Run `shardtool verify`.")


def _as_text(data: bytes, kind: str, where: str) -> bytes:
    if (value := value_of(data, kind)) is None:
        raise CorruptShard(where, f"no {kind}")
    return str(value).encode()


# Where a report goes: one file, written beside its final name and then renamed, never over a dataset's own.


_FORMS = {
    ".csv": (b'"__key__","__shard__"', b""),
    ".parquet": (b"PAR1", b"__shard__"),
    ".png": (b"\x89PNG\r\n\x1a\n", b""),
    ".html": (b"<!DOCTYPE html>", b'<meta http-equiv="Content-Security-Policy"'),
}


def check_report(dataset: StoredDataset, path: str, *, overwrite: bool, ending: str) -> None:
    """Refuse a path to which no report may be written.

    Args:
        dataset: What it is of.
        path: Where it will be.
        overwrite: Whether it may take the place of another report of its kind.
        ending: `.html`, `.png`, `.csv` or `.parquet`: what it is.

    Raises:
        InvalidRequest: It is no name of a file here or in a store, or one of the dataset's own files.
        OutputExists: There is something already that is not to be replaced.
    """
    check_name(path, f"report{ending}")
    own = [dataset.dataset_file, *(name for shard in dataset.shards for name in (shard.path, shard.sidecar))]
    if real_path(path) in {real_path(name) for name in own if name}:
        raise InvalidRequest(path, "a file of the dataset itself", remedy="Choose another name.")
    begins, holds = _FORMS[ending]
    check_target(path, overwrite=overwrite, begins=begins, holds=holds, cure=flag("overwrite"))


# The index of datasets as one table, Parquet or CSV: what all sidecars say, and the shard of each sample.
#
# It is written a shard at a time, and appears whole. Columns that a shard lacks are null there.


SHARD = "__shard__"
ENDINGS = (".parquet", ".csv")
_ROWS = 2**16  # that are gathered before they are written, so that many small shards make no many small row groups


def write_table(
    datasets: Sequence[StoredDataset], path: str, *, where: str | None = None, overwrite: bool = False
) -> int:
    """Write a row for each sample: `__key__`, `__shard__` (a path), `__offset__`, `__size__`, `__fields__`, metadata.

    In CSV, what is no number, text, truth or time is JSON.

    Args:
        datasets: In order.
        path: Ends in `.parquet` or `.csv`.
        where: Only samples for which this query is true.
        overwrite: Replace a file that is there.

    Returns:
        How many rows there are.

    Raises:
        InvalidRequest: Another ending, a query that is none or true for no sample, columns that cannot be one.
        OutputExists: There is something already.
        OutputFailed: It cannot be written.
        CorruptShard: A sidecar, or a shard without one, is damaged.
    """
    if not path.endswith(ENDINGS):
        raise InvalidRequest(typed_name("table"), path, expected=f"a name that ends in {' or '.join(ENDINGS)}")
    for dataset in datasets:
        check_report(dataset, path, overwrite=overwrite, ending=os.path.splitext(path)[1])
    from pyarrow import csv, parquet

    schema = _schema(datasets)
    rows, is_csv = 0, path.endswith(".csv")
    flat = pa.schema([(one.name, one.type if _is_flat(one) else pa.string()) for one in schema])
    with target_file(path) as file:
        target = pa.PythonFile(file, "w")
        with (
            csv.CSVWriter(target, flat) if is_csv else parquet.ParquetWriter(target, schema, compression="zstd")
        ) as writer:
            for table in _tables(datasets, where, schema):
                writer.write_table(_flattened(table, flat) if is_csv else table)
                rows += table.num_rows
    return rows


def _schema(datasets: Sequence[StoredDataset]) -> pa.Schema:
    """Return the table's columns: those of all sidecars."""
    schemas = []
    for dataset in datasets:
        file, shards = dataset.file, dataset.shards
        known = file is not None and types_of(shards[0].schema()) == file.schema
        schemas += [shard.schema() for shard in (shards[:1] if known else shards)]
    metadata = [
        pa.schema([one.with_nullable(nullable=True) for one in schema if one.name[:2] != "__"]) for schema in schemas
    ]
    try:
        merged = pa.unify_schemas(metadata, promote_options="permissive")
    except MemoryError:
        raise
    except pa.ArrowException as error:
        found = str(error).partition("\n")[0]
        raise InvalidRequest(
            typed_name("table"), found, expected="columns of one type", remedy="Make a table each."
        ) from None
    own = [*UNREAD]
    own.insert(1, pa.field(SHARD, pa.dictionary(pa.int32(), pa.string()), nullable=False))
    return pa.schema([*own, *merged])


def _tables(datasets: Sequence[StoredDataset], where: str | None, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows that are asked for, many at a time."""
    held: list[pa.Table] = []
    for piece in pieces(datasets, where, metadata=True):
        held.append(_table(piece, schema, every=where is None))
        piece.raise_damage()
        if sum(one.num_rows for one in held) >= _ROWS:
            yield pa.concat_tables(held).unify_dictionaries()
            held = []
    if held:
        yield pa.concat_tables(held).unify_dictionaries()


def _table(piece: Piece, schema: pa.Schema, *, every: bool) -> pa.Table:
    """Return the rows of a shard that are asked for."""
    found = piece.part.table if every else piece.part.table.take(piece.rows)
    rows = found.num_rows
    if more := [name for name in found.column_names if name not in schema.names]:
        raise CorruptShard(piece.shard.sidecar, f"a column that the dataset file does not list: {more[0]}")
    codes = pa.array([0] * rows, pa.int32())
    columns = {one.name: pa.nulls(rows, one.type) for one in schema if one.name not in found.column_names}
    columns |= {name: _cast(found.column(name), schema.field(name), piece) for name in found.column_names}
    columns[SHARD] = pa.DictionaryArray.from_arrays(codes, [output_text(piece.shard.path)])
    return pa.table(columns, schema=schema)


def _cast(column: pa.ChunkedArray, field: pa.Field, piece: Piece) -> pa.ChunkedArray:
    try:
        return texts_of(column).cast(field.type)
    except pa.ArrowInvalid as error:
        found = f"column {field.name}: {str(error)[:200]}"
        raise CorruptShard(piece.shard.sidecar, found, expected=f"{field.type}, as elsewhere") from None


def _flattened(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table as CSV can hold it: what is no number, text, truth or time is JSON."""
    columns = [
        texts_of(column) if _is_flat(field) else pa.array([*map(_json_text, column.to_pylist())], pa.string())
        for field, column in zip(table.schema, table.columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _is_flat(field: pa.Field) -> bool:
    kind = field.type
    return field.name == SHARD or (is_plain(kind) and not pa.types.is_time(kind) and not pa.types.is_duration(kind))


def _json_text(value: object) -> str | None:
    found = plain(value)
    return found if found is None or isinstance(found, str) else json.dumps(found, ensure_ascii=False)
